"""Tests `convert` of DeepSeek V3 and Kimi K2 to Megatron-core's `torch_dist`: Megatron's GPTModel that loads the files
computes the logits of Transformers, and quantized folders become the checkpoint of their numbers in one run."""

import copy
import json
import shutil
import signal

import megatron_model
import pytest
import test_generated_quantized as quantized
from clients import client_of
from support import run_ok, run_tool, tree_of
from test_faults import inject
from test_generated_converts import digests_of
from torch_processes import start

torch = client_of("torch")
transformers = client_of("transformers")
dcp = client_of("torch.distributed.checkpoint")
safetensors_torch = client_of("safetensors.torch")
client_of("megatron.core")

# Kimi K2's one group of experts, and sizes that all differ, as far as its architecture lets them.
CONFIG = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 80, "moe_intermediate_size": 32,
          "num_hidden_layers": 3, "first_k_dense_replace": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
          "n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 2, "q_lora_rank": 24, "kv_lora_rank": 16,
          "qk_rope_head_dim": 8, "v_head_dim": 12, "qk_nope_head_dim": 20, "n_group": 1, "topk_group": 1,
          "routed_scaling_factor": 2.827, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "dtype": "bfloat16"}
TO_MEGATRON = ["--layout", "torch_dist", "--to", "megatron"]


def save_model(folder, model_type):
    """Saves a random model, with biases of routers in f32 as in the releases. Returns its tensors, and the model in
    f32."""
    torch.manual_seed(4)
    model = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**CONFIG))
    values = {name: (torch.randn(t.shape) / 8 + ("norm" in name)).to(torch.bfloat16)
              for name, t in model.state_dict().items()}
    model.load_state_dict(values)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    state = safetensors_torch.load_file(folder / "model.safetensors")
    biases = [name for name in state if name.endswith("e_score_correction_bias")]
    assert len(biases) == 2
    changed = {name: torch.randn(state[name].shape) / 8 for name in biases}
    write(folder, state | changed, model_type=model_type)
    model.load_state_dict(changed, strict=False)
    return state | changed, model


def write(folder, state, **config):
    safetensors_torch.save_file(state, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))


def add_prediction_layer(folder, state):
    """Adds DeepSeek's layer for multi-token prediction, with its copies of the embedding and the head, and returns the
    names of the copies."""
    layer = f"model.layers.{CONFIG['num_hidden_layers']}."
    width = CONFIG["hidden_size"]
    more = {"enorm": (width,), "hnorm": (width,), "eh_proj": (width, 2 * width), "shared_head.norm": (width,)}
    added = {f"{layer}{name}.weight": torch.randn(shape).to(torch.bfloat16) for name, shape in more.items()}
    added |= {name.replace("model.layers.2.", layer): torch.randn(t.shape).to(t.dtype)
              for name, t in state.items() if name.startswith("model.layers.2.")}
    copies = {f"{layer}embed_tokens.weight": state["model.embed_tokens.weight"].clone(),
              f"{layer}shared_head.head.weight": state["lm_head.weight"].clone()}
    write(folder, state | added | copies)
    return list(copies)


def load_and_save(rank, world, rendezvous, folder, out, degrees, logits):
    """A process that loads the checkpoint, compares the logits, which only one rank can compute on a CPU, and saves the
    model of bf16."""
    megatron_model.start(rank, world, rendezvous, degrees)
    from megatron.core import dist_checkpointing

    for dtype in torch.float32, torch.bfloat16:
        model = megatron_model.make_deepseek(CONFIG, dtype, degrees)
        before = {name: t.clone() for name, t in model.state_dict().items() if t is not None}
        state = dist_checkpointing.load(model.sharded_state_dict(), folder)
        model.load_state_dict({k: v for k, v in state.items() if isinstance(v, torch.Tensor)}, strict=False)
        after = {name: t for name, t in model.state_dict().items() if isinstance(t, torch.Tensor)}
        assert {"decoder.layers.1.mlp.router.expert_bias", *dict(model.named_parameters())} <= after.keys()
        same = [name for name, t in after.items() if torch.equal(t, before[name]) and "tokens_per_expert" not in name]
        assert same == []
        if logits is not None and dtype == torch.float32:
            tokens, wanted = torch.load(logits)
            with torch.no_grad():
                made = model(tokens, torch.arange(tokens.shape[1]).expand(tokens.shape), None)
            torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-5)
    dist_checkpointing.save(model.sharded_state_dict(), out)
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("model_type, degrees", [
    ("kimi_k2", {}), ("deepseek_v3", {"tensor": 2, "mtp": 1}), ("deepseek_v3", {"expert": 2})], ids=str)
def test_megatron_computes_the_logits_of_transformers(tmp_path, model_type, degrees):
    """The files that Megatron saves convert back to the bits of the folder."""
    for name in "in", "rendezvous", "saved":
        (tmp_path / name).mkdir()
    state, model = save_model(tmp_path / "in", model_type)
    copies, options = [], []
    if "mtp" in degrees:
        copies, options = add_prediction_layer(tmp_path / "in", state), ["--set", "vars.mtp=1"]
        refused = run_tool("convert", tmp_path / "in", *TO_MEGATRON, "-o", tmp_path / "there")
        assert refused.returncode == 2 and "`model.layers.3.eh_proj.weight` is in the folder" in refused.stderr
        assert "`--drop`" in refused.stderr
        run_ok("convert", tmp_path / "in", *TO_MEGATRON, "--drop", "model.layers.3.**", "-o", tmp_path / "without")
        assert "mtp" not in run_ok("inspect", tmp_path / "without").stdout
    drops = [word for name in copies for word in ("--drop", name)]
    run_ok("convert", tmp_path / "in", *TO_MEGATRON, *options, *drops, "-o", tmp_path / "there")
    run_ok("verify", tmp_path / "there")
    logits = None
    if not degrees:
        tokens = torch.randint(0, CONFIG["vocab_size"], (2, 16))
        with torch.no_grad():
            wanted = model(tokens).logits
        assert wanted.std() > 0.1
        logits = tmp_path / "logits.pt"
        torch.save((tokens, wanted), logits)
    world = max([1, *degrees.values()])
    start(world, load_and_save, world, str(tmp_path / "rendezvous"), str(tmp_path / "there"), str(tmp_path / "saved"),
          degrees, logits and str(logits))
    run_ok("convert", tmp_path / "saved", "--spec", tmp_path / "in/config.json", "--from-layout", "torch_dist", "--to",
           "safetensors", *options, "-o", tmp_path / "back")
    wanted = digests_of(tmp_path / "in")
    assert digests_of(tmp_path / "back") == {name: wanted[name] for name in wanted.keys() - copies}


def quantize_experts(folder, state):
    """Stores the experts as INT4 of compressed-tensors, and returns the tensors with the numbers that it restores."""
    scheme = quantized.scheme_of("pack-quantized", num_bits=4, type="int", symmetric=True, strategy="group",
                                 group_size=32)
    bits, stored, wide = quantized.Bits(6), dict(state), dict(state)
    for name in [name for name in state if ".mlp.experts." in name]:
        rows, columns = stored.pop(name).shape
        packed = {"weight_packed": bits.words(rows, columns // 8),
                  "weight_scale": bits.scales(rows, columns // 32, dtype=torch.bfloat16),
                  "weight_shape": torch.tensor([rows, columns])}
        wide[name] = quantized.decompressed(scheme, packed)
        assert wide[name].dtype == torch.bfloat16 and wide[name].shape == (rows, columns)
        stored |= {name.removesuffix("weight") + key: t for key, t in packed.items()}
    write(folder, stored, quantization_config=quantized.config_of(scheme))
    return {name: t.to(torch.bfloat16) for name, t in wide.items()}


def expert_stack(wide, layer, side):
    experts = range(CONFIG["n_routed_experts"])
    return torch.stack([wide[f"model.layers.{layer}.mlp.experts.{e}.{side}_proj.weight"] for e in experts])


def test_quantized_kimi_k2_becomes_megatrons_checkpoint_in_one_run(tmp_path):
    """The run may be killed and repeated, and divided into parts."""
    (tmp_path / "in").mkdir()
    state, _ = save_model(tmp_path / "in", "kimi_k2")
    shutil.copytree(tmp_path / "in", tmp_path / "wide")
    wide = quantize_experts(tmp_path / "in", state)
    arguments = ["convert", tmp_path / "in", *TO_MEGATRON]
    refused = run_tool(*arguments, "-o", tmp_path / "out")
    assert refused.returncode == 2 and "`convert` can read it with `--dtype bf16`" in refused.stderr
    arguments += ["--dtype", "bf16"]
    run_ok(*arguments, "-o", tmp_path / "out")
    expected = {}
    for layer in 1, 2:
        gates = [expert_stack(wide, layer, side) for side in ("gate", "up")]
        at = f"decoder.layers.{layer}.mlp.experts.experts"
        expected[f"{at}.linear_fc1.weight"] = torch.cat(gates, dim=1)
        expected[f"{at}.linear_fc2.weight"] = expert_stack(wide, layer, "down")
    made = {name: torch.zeros(t.shape, dtype=t.dtype) for name, t in expected.items()}
    dcp.load(made, checkpoint_id=tmp_path / "out")
    for name, t in expected.items():
        assert torch.equal(made[name].view(torch.int16), t.view(torch.int16)), name
    # The folder that was never quantized gives the same digests.
    write(tmp_path / "wide", wide)
    run_ok("convert", tmp_path / "wide", *TO_MEGATRON, "-o", tmp_path / "same")
    digests = [run_ok("digest", tmp_path / name).stdout.replace(f"/{name}", "") for name in ("out", "same")]
    assert digests[0] == digests[1] and len(digests[0].splitlines()) > 50
    ranks = [*arguments, "--mesh", "fsdp=2,expert=2"]
    run_ok(*ranks, "-o", tmp_path / "ranks")
    for part in range(3):
        run_ok(*ranks, "-o", tmp_path / "parts", "--part", f"{part}/3")
    assert tree_of(tmp_path / "parts") == tree_of(tmp_path / "ranks")
    for k in range(1, 400, 5):
        killed = run_tool(*ranks, "-j", "1", "-o", tmp_path / "killed",
                          wrap=inject("pwrite64,write,renameat2,fdatasync", f"signal=SIGKILL:when={k}"))
        if killed.returncode == 0:
            break
        assert killed.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), killed.stderr
        run_ok(*ranks, "-o", tmp_path / "killed")
        assert tree_of(tmp_path / "killed") == tree_of(tmp_path / "ranks")
        shutil.rmtree(tmp_path / "killed")
    assert k > 15  # It was killed three times or more.
