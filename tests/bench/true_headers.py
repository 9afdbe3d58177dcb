"""Measures conversions of quantized releases at their true sizes: sparse files with the names, shapes and types of Kimi
K2 Thinking (INT4 of compressed-tensors), of DeepSeek V3.2 (f8e4m3fn with scales of f32), and of DeepSeek V4 Flash
(f8e4m3fn and experts of f4e2m1fn with scales of f8e8m0; Transformers' model and its table of names). All numbers are
0, which take no space on the disk; scales, too.

    build/venv/bin/python tests/bench/true_headers.py FOLDER

FOLDER needs about 60 GB, for two layers of Kimi K2. Prints seconds, bytes read and the peak of memory of each run."""

import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import time

TOOL = pathlib.Path(__file__).parents[2] / "build/release/src/shardinit"
SIZES = {"F32": 4, "BF16": 2, "I32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "I64": 8}
EACH_FILE = 16 << 30


def deepseek(config, layers):
    """Yields the name and the shape of each weight, and whether it is a matrix of experts."""
    d, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    yield "model.embed_tokens", (config["vocab_size"], d), False
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for name, shape in {"q_a_proj": (config["q_lora_rank"], d), "q_b_proj": (heads * (nope + rope), config["q_lora_rank"]),
                            "kv_a_proj_with_mqa": (rank + rope, d), "kv_b_proj": (heads * (nope + value), rank),
                            "o_proj": (d, heads * value)}.items():
            yield f"{at}.self_attn.{name}", shape, False
        yield f"{at}.self_attn.q_a_layernorm", (config["q_lora_rank"],), False
        yield f"{at}.self_attn.kv_a_layernorm", (rank,), False
        yield f"{at}.input_layernorm", (d,), False
        yield f"{at}.post_attention_layernorm", (d,), False
        inner, of = config["moe_intermediate_size"], {}
        if layer < config["first_k_dense_replace"]:
            of["mlp"] = config["intermediate_size"]
        else:
            yield f"{at}.mlp.gate", (config["n_routed_experts"], d), False
            of["mlp.shared_experts"] = inner * config["n_shared_experts"]
            of.update({f"mlp.experts.{i}": inner for i in range(config["n_routed_experts"])})
        for name, width in of.items():
            for side, shape in {"gate_proj": (width, d), "up_proj": (width, d), "down_proj": (d, width)}.items():
                yield f"{at}.{name}.{side}", shape, ".experts." in name
    yield "model.norm", (d,), False
    yield "lm_head", (config["vocab_size"], d), False


MODEL = {"hidden_size": 7168, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
         "v_head_dim": 128, "moe_intermediate_size": 2048, "intermediate_size": 18432, "n_shared_experts": 1,
         "num_hidden_layers": 61}
KIMI = MODEL | {"model_type": "kimi_k2", "vocab_size": 163840, "num_attention_heads": 64, "n_routed_experts": 384,
                "first_k_dense_replace": 1,
                "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
                                        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                                            "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32,
                                            "symmetric": True}}}}}
V3 = MODEL | {"vocab_size": 129280, "num_attention_heads": 128, "n_routed_experts": 256, "first_k_dense_replace": 3,
              "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}}


V4 = {"num_hidden_layers": 43, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128],
                                                       "scale_fmt": "ue8m0", "expert_dtype": "fp4"}}
# The names of DeepSeek V4's release, by Transformers' names (its conversion_mapping.py).
V4_NAMES = [(r"^model\.", ""), (r"self_attn\.", "attn."), (r"mlp\.", "ffn."), ("embed_tokens", "embed"),
            ("lm_head", "head"), (r"hc_head\.hc_", "hc_head_"), ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "ffn_norm"), (r"attn_hc\.", "hc_attn_"), (r"ffn_hc\.", "hc_ffn_"),
            ("sinks", "attn_sink"), (r"compressor\.indexer\.scorer\.", "indexer."),
            (r"compressor\.indexer\.q_b_proj", "indexer.wq_b"), (r"compressor\.indexer", "indexer.compressor"),
            (r"kv_norm", "norm"), ("position_bias", "ape"), ("q_a_proj", "wq_a"), ("q_b_proj", "wq_b"),
            ("kv_proj", "wkv"), (r"compressor\.gate_proj", "compressor.wgate"), ("o_a_proj", "wo_a"),
            ("o_b_proj", "wo_b"), ("q_a_norm", "q_norm"), ("e_score_correction_bias", "bias"),
            (r"shared_experts\.gate_proj", "shared_experts.w1"), (r"shared_experts\.down_proj", "shared_experts.w2"),
            (r"shared_experts\.up_proj", "shared_experts.w3")]


def stored_v4(layers):
    """Yields the same for DeepSeek V4 Flash."""
    import torch
    import transformers
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("deepseek_v4"))
    for name, tensor in model.state_dict().items():
        if ".layers." in name and int(name.split(".")[2]) >= layers:
            continue
        shape = tuple(tensor.shape)
        for pattern, short in V4_NAMES:
            name = re.sub(pattern, short, name)
        if "experts.gate_up_proj" in name or "experts.down_proj" in name:
            experts, rows, columns = shape
            halves = ["w1", "w3"] if "gate_up" in name else ["w2"]
            for expert in range(experts):
                for half in halves:
                    at = f"{name[:name.index('experts.') + 8]}{expert}.{half}"
                    yield f"{at}.weight", "I8", (rows // len(halves), columns // 2), b""
                    yield f"{at}.scale", "F8_E8M0", (rows // len(halves), columns // 32), b""
        elif re.search(r"\.(w[qo]_[ab]|attn\.wkv|shared_experts\.w[123])\.weight$", name):
            yield name, "F8_E4M3", shape, b""
            yield name[:-6] + "scale", "F8_E8M0", (-(-shape[0] // 128), -(-shape[1] // 128)), b""
        else:
            yield name, "I64" if "tid2eid" in name else "BF16", shape, b""


def stored(config, layers):
    """Yields the name, the type, the shape and the first bytes of each stored tensor."""
    if config is V4:
        yield from stored_v4(layers)
        return
    is_kimi = config is KIMI
    for name, shape, is_expert in deepseek(config, layers):
        if name.endswith(".mlp.gate"):
            yield f"{name}.e_score_correction_bias", "F32", shape[:1], b""
        if is_kimi and is_expert:
            yield f"{name}.weight_packed", "I32", (shape[0], shape[1] // 8), b""
            yield f"{name}.weight_scale", "BF16", (shape[0], shape[1] // 32), b""
            yield f"{name}.weight_shape", "I32", (2,), struct.pack("<2i", *shape)
        elif not is_kimi and "_proj" in name:
            yield f"{name}.weight", "F8_E4M3", shape, b""
            yield f"{name}.weight_scale_inv", "F32", (-(-shape[0] // 128), -(-shape[1] // 128)), b""
        else:
            yield f"{name}.weight", "BF16", shape, b""


def write(folder, config, layers):
    """Writes sparse files and returns how many tensors and bytes they have."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "none"} | config | {"num_hidden_layers": layers}))
    files, size = [[]], 0
    for name, dtype, shape, data in stored(config, layers):
        count = SIZES[dtype]
        for extent in shape:
            count *= extent
        if files[-1] and size + count > EACH_FILE:
            files.append([])
            size = 0
        files[-1].append((name, dtype, shape, size, count, data))
        size += count
    weight_map = {}
    for number, tensors in enumerate(files):
        path = folder / f"model-{number + 1:05}-of-{len(files):05}.safetensors"
        header = json.dumps({name: {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + count]}
                             for name, dtype, shape, offset, count, _ in tensors}).encode()
        with path.open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for name, _, _, offset, count, data in tensors:
                weight_map[name] = path.name
                if data:
                    file.seek(8 + len(header) + offset)
                    file.write(data)
            file.truncate(8 + len(header) + tensors[-1][3] + tensors[-1][4])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return len(weight_map), sum(path.stat().st_size for path in folder.iterdir())


def measure(what, *words):
    """Runs the tool, and prints its time, bytes read and memory."""
    begin = time.monotonic()
    process = subprocess.Popen([TOOL, *map(str, words), "-q"])
    read = peak = 0
    while process.poll() is None:
        try:
            io = dict(line.split(": ") for line in pathlib.Path(f"/proc/{process.pid}/io").read_text().splitlines())
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            read = int(io["rchar"])
            peak = max(peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
        except (OSError, ValueError, KeyError):
            pass
        time.sleep(0.01)
    print(f"{what}: exit {process.returncode}, {time.monotonic() - begin:.1f} s, {read / 1e9:.2f} GB read, "
          f"{peak / 1e3:.0f} MB", flush=True)


def measure_torch_dist(folder, what, is_whole, common):
    """Measures conversions to Megatron-core's checkpoint: of the whole model, or of one rank."""
    for path in folder.glob("out*"):
        shutil.rmtree(path)
    megatron = [*common, "--to", "megatron", "--layout", "torch_dist"]
    if is_whole:
        measure(f"{what}: all to torch_dist", *megatron)
        shutil.rmtree(folder / "out", ignore_errors=True)
    measure(f"{what}: one of 512 ranks to torch_dist", *megatron, "--mesh", "fsdp=16,expert=32", "--ranks", "7")


def main(folder):
    for name, config, few in (("Kimi K2", KIMI, 2), ("DeepSeek V3.2", V3, 4), ("DeepSeek V4 Flash", V4, 4)):
        for layers in (few, config["num_hidden_layers"]):
            tensors, size = write(folder / "in", config, layers)
            what = f"{name}, {layers} layers, {tensors} tensors, {size / 1e9:.1f} GB"
            measure(f"{what}: inspect", "inspect", folder / "in", "--only", "lm_head.weight")
            common = ["convert", folder / "in", "--dtype", "bf16", "-o", folder / "out"]
            if layers == few:
                measure(f"{what}: all to safetensors", *common, "--to", "safetensors")
                shutil.rmtree(folder / "out", ignore_errors=True)
            ranks = ["--sharding", "fsdpv2", "--mesh", "fsdp=512", "--ranks", "7"]
            measure(f"{what}: one of 512 ranks to hdf5", *common, "--to", "hdf5", *ranks)
            if config is KIMI:
                measure_torch_dist(folder, what, layers == few, common)
            for path in folder.glob("out*"):
                shutil.rmtree(path)
            shutil.rmtree(folder / "in")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
