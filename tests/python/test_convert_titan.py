"""Compares `convert` between the Hub and torchtitan's DCP with torchtitan's state-dict adapters, bit for bit."""

import dataclasses
import json

import pytest
from clients import client_of
from support import run_ok, run_tool
from test_generated_converts import trained
from titan_models import DEEPSEEK, LLAMA, deepseek_config, llama_config, titan

torch = client_of("torch")
client_of("torchtitan")
dcp = client_of("torch.distributed.checkpoint")
safetensors_torch = client_of("safetensors.torch")

SMALL = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "hidden_size": 24, "intermediate_size": 10,
         "num_hidden_layers": 3, "vocab_size": 50, "tie_word_embeddings": False, "pad_token_id": None}
OF_LLAMA = {"num_attention_heads": LLAMA["heads"], "num_key_value_heads": LLAMA["kv_heads"], "hidden_size": LLAMA["d"],
            "intermediate_size": LLAMA["ff"], "num_hidden_layers": LLAMA["layers"], "vocab_size": LLAMA["vocab"],
            "head_dim": LLAMA["head_dim"]}
OF_DEEPSEEK = {
    "num_attention_heads": DEEPSEEK["heads"], "num_key_value_heads": DEEPSEEK["heads"], "hidden_size": DEEPSEEK["d"],
    "intermediate_size": DEEPSEEK["ff"], "moe_intermediate_size": DEEPSEEK["expert_ff"],
    "num_hidden_layers": DEEPSEEK["layers"], "first_k_dense_replace": DEEPSEEK["dense_layers"],
    "n_routed_experts": DEEPSEEK["experts"], "n_shared_experts": DEEPSEEK["shared_experts"],
    "qk_nope_head_dim": DEEPSEEK["nope_dim"], "qk_rope_head_dim": DEEPSEEK["rope_dim"],
    "v_head_dim": DEEPSEEK["value_dim"],
    "q_lora_rank": DEEPSEEK["query_rank"], "kv_lora_rank": DEEPSEEK["kv_rank"], "vocab_size": DEEPSEEK["vocab"],
    "n_group": 2, "topk_group": 1}


def make_adapter(family, tied):
    if family == "Llama":
        llama3 = titan("torchtitan.models.llama3")
        return llama3.Llama3StateDictAdapter(llama_config(llama3, "tied" if tied else None), None)
    if family == "DeepseekV3":
        deepseek = titan("torchtitan.models.deepseek_v3")
        return deepseek.DeepSeekV3StateDictAdapter(deepseek_config(deepseek), None)
    qwen3 = titan("torchtitan.models.qwen3")
    config = qwen3._debugmodel_moe("flex") if family == "Qwen3Moe" else qwen3._debugmodel("flex")
    return qwen3.Qwen3StateDictAdapter(dataclasses.replace(config, enable_weight_tying=tied), None)


CASES = {"Llama": OF_LLAMA, "Qwen3": {}, "Qwen3Moe": {"num_experts": 64, "moe_intermediate_size": 5},
         "DeepseekV3": OF_DEEPSEEK}


def assert_same_tensors(made, wanted):
    assert made.keys() == wanted.keys()
    for path, tensor in wanted.items():
        assert made[path].dtype == tensor.dtype and made[path].shape == tensor.shape, path
        a, b = (t.contiguous().reshape(-1).view(torch.uint8) for t in (made[path], tensor))
        assert torch.equal(a, b), path


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family, tied", [("Llama", False), ("Llama", True), ("Qwen3", False), ("Qwen3", True),
                                          ("Qwen3Moe", False), ("DeepseekV3", False)])
def test_convert_matches_torchtitans_adapters_both_ways(tmp_path, family, tied, dtype):
    config = {**SMALL, "dtype": dtype, "tie_word_embeddings": tied, **CASES[family]}
    if family == "DeepseekV3":
        del config["head_dim"]
    state = trained(family, config, 3, tmp_path / "in")
    adapter = make_adapter(family, tied)
    wanted = adapter.from_hf(dict(state))
    run_ok("convert", tmp_path / "in", "--layout", "torchtitan", "--to", "dcp", "-o", tmp_path / "titan")
    made = {name: torch.zeros(t.shape, dtype=t.dtype) for name, t in wanted.items()}
    dcp.load(made, checkpoint_id=tmp_path / "titan")
    assert_same_tensors(made, wanted)
    # torchtitan's own files convert back to the tensors of its adapter.
    dcp.save(wanted, checkpoint_id=tmp_path / "theirs")
    run_ok("convert", tmp_path / "theirs", "--spec", tmp_path / "in/config.json", "--from-layout", "torchtitan", "--to",
           "safetensors", "-o", tmp_path / "back")
    back = safetensors_torch.load_file(tmp_path / "back/model.safetensors")
    assert_same_tensors(back, state)
    given = adapter.to_hf(dict(wanted))
    given = {name: t for name, t in given.items() if name in state}
    assert_same_tensors(given, state)


def quantized(state, size):
    """Returns the state with the experts as blocks of fp8 with scales, and with the numbers that these represent."""
    stored, wide = dict(state), dict(state)
    for name in state:
        if state[name].dtype == torch.float32:
            stored[name] = torch.randn(state[name].shape)
            wide[name] = stored[name].to(torch.bfloat16)
        if ".mlp.experts." not in name:
            continue
        rows, columns = state[name].shape
        scales = torch.rand(-(-rows // size), -(-columns // size)) + 0.1
        each = scales.repeat_interleave(size, 0)[:rows].repeat_interleave(size, 1)[:, :columns]
        stored[name] = (torch.randn(rows, columns) / each).to(torch.float8_e4m3fn)
        stored[name + "_scale_inv"] = scales
        wide[name] = (stored[name].float() * each).to(torch.bfloat16)
    return stored, wide


def test_quantized_release_becomes_torchtitans_checkpoint_in_one_pass(tmp_path):
    torch.manual_seed(8)
    config = {**SMALL, "dtype": "bfloat16", **OF_DEEPSEEK}
    del config["head_dim"]
    state, wide = quantized(trained("DeepseekV3", config, 3, tmp_path / "in"), 16)
    (tmp_path / "in/model.safetensors").unlink()
    safetensors_torch.save_file(state, tmp_path / "in/model.safetensors", {"format": "pt"})
    path = tmp_path / "in/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 16]}}))
    to_titan = ["convert", tmp_path / "in", "--layout", "torchtitan", "--to", "dcp", "-o", tmp_path / "titan"]
    refused = run_tool(*to_titan)
    assert refused.returncode == 2 and "`convert` can read it with `--dtype bf16`" in refused.stderr
    run_ok(*to_titan, "--dtype", "bf16")
    wanted = make_adapter("DeepseekV3", False).from_hf(dict(wide))
    made = {name: torch.zeros(t.shape, dtype=torch.bfloat16) for name, t in wanted.items()}
    dcp.load(made, checkpoint_id=tmp_path / "titan")
    assert_same_tensors(made, wanted)
    # A spec takes its values from the same folder, under the names of Transformers.
    down = torch.stack([wide[f"model.layers.1.mlp.experts.{e}.down_proj.weight"] for e in range(DEEPSEEK["experts"])])
    (tmp_path / "spec.yaml").write_text(json.dumps({
        "shardinit": 1, "name": "experts", "sources": {"base": {"path": "in", "layout": "hub", "quantized": "widened"}},
        "modules": {"model.layers.1.mlp.experts.down_proj": {
            "shape": list(down.shape), "dtype": "bf16", "init": {"expr": "source('base')"}}}}))
    run_ok("export", tmp_path / "spec.yaml", "--to", "safetensors", "-o", tmp_path / "drawn")
    drawn = safetensors_torch.load_file(tmp_path / "drawn/model.safetensors")
    assert_same_tensors(drawn, {"model.layers.1.mlp.experts.down_proj": down})
