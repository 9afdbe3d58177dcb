"""Nearly matching names are resolved if everything then fits the spec, and each change is reported."""

import json

import pytest
from clients import client_of
from support import run_ok, run_tool

torch = client_of("torch")
dcp = client_of("torch.distributed.checkpoint")
safetensors_torch = client_of("safetensors.torch")

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "hidden_size": 32,
         "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 8, "tie_word_embeddings": False}


@pytest.fixture(name="model")
def a_model(tmp_path):
    """Returns the tensors of a tiny Llama and writes its config.json."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    run_ok("export", tmp_path / "config.json", "--to", "safetensors", "-o", tmp_path / "model")
    return safetensors_torch.load_file(tmp_path / "model/model.safetensors")


def converted(tmp_path, state, *options, spec=None):
    """Converts these tensors for torchtitan; returns the output and the run."""
    folder, out = tmp_path / f"in{len(list(tmp_path.iterdir()))}", tmp_path / f"out{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    safetensors_torch.save_file(state, folder / "model.safetensors")
    result = run_tool("convert", folder, "--to", "safetensors", "--spec", spec or tmp_path / "config.json", "--layout",
                      "torchtitan", "-o", out, *options)
    assert (result.returncode == 0) == out.exists()
    return (safetensors_torch.load_file(out / "model.safetensors") if out.exists() else None), result


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("change, said", [
    (lambda n: "module." + n, "reads 21 names without `module.`"),
    (lambda n: "_orig_mod.module." + n, "reads 21 names without `_orig_mod.`"),
    (lambda n: n.replace("layers.0.", "layers.0._checkpoint_wrapped_module."),
     "reads 9 names without `_checkpoint_wrapped_module.`"),
    (lambda n: "model." + n, "reads 21 names without `model.`"),
    (lambda n: "a.b." + n, "reads 21 names without `a.b.`"),
    (lambda n: n.removeprefix("model."), "reads 20 names with `model.` before them"),
    (lambda n: "net." + n.removeprefix("model."), "reads 21 names without `net.`, with `model.` before them"),
    (lambda n: n.replace("model.layers.1.", "model.layers.1._fsdp_wrapped_module._orig_mod."), "without `_orig_mod.`")])
def test_convert_adds_and_removes_prefixes_of_names(tmp_path, model, change, said):
    wanted, _ = converted(tmp_path, model)
    found, result = converted(tmp_path, {change(name): tensor for name, tensor in model.items()})
    assert found is not None and same(found, wanted) and said in result.stderr, result


@pytest.mark.parametrize("change", [
    lambda s: s | {"module.lm_head.weight": s["lm_head.weight"] + 1},  # present twice
    lambda s: {"module." + name: t for name, t in s.items() if name != "model.norm.weight"},
    lambda s: {"module." + name: t for name, t in s.items()} | {"eagle.fc.weight": torch.ones(3)},
    lambda s: {"module." + name: t.t().contiguous() if "gate" in name else t for name, t in s.items()},
    lambda s: {name.replace("model.norm.", "model.final_norm."): t for name, t in s.items()},
    lambda s: {name.replace("lm_head.", "score."): t for name, t in s.items()},
    lambda s: s | {"model.layers.0.self_attn.attn.bias": torch.ones(32)}])  # a bias, not a mask
def test_convert_does_not_guess_ambiguous_names(tmp_path, model, change):
    found, result = converted(tmp_path, change(model))
    assert found is None and result.returncode == 2 and "reads" not in result.stderr, result


def test_convert_leaves_out_known_buffers(tmp_path, model):
    wanted, _ = converted(tmp_path, model)
    buffers = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(4) for i in range(2)}
    found, result = converted(tmp_path, model | buffers)
    assert same(found, wanted) and "leaves out 2 buffers such as `model.layers.0.self_attn.rotary_emb.inv_freq`" in result.stderr


@pytest.mark.parametrize("head, is_read", [("equal", True), ("other", False), ("half", False), ("smaller", False)])
def test_convert_requires_a_tied_head_to_equal_the_table(tmp_path, model, head, is_read):
    (tmp_path / "tied.json").write_text(json.dumps(LLAMA | {"tie_word_embeddings": True}))
    table = model["model.embed_tokens.weight"]
    state = {name: tensor for name, tensor in model.items() if name != "lm_head.weight"}
    # torchtitan's layout cannot have a tied head, so use another one.
    args = ["--layout", "hub"]
    of = {"equal": table.clone(), "other": table + 1, "half": table.half(), "smaller": table[:32].clone()}[head]
    folder = tmp_path / "tied"
    folder.mkdir()
    safetensors_torch.save_file(state | {"lm_head.weight": of}, folder / "model.safetensors")
    result = run_tool("convert", folder, "--to", "safetensors", "--spec", tmp_path / "tied.json", *args, "-o",
                      tmp_path / "out")
    assert (result.returncode == 0) == is_read, result
    if is_read:
        assert "leaves out `lm_head.weight`, which is equal to `model.embed_tokens.weight`" in result.stderr
        assert same(safetensors_torch.load_file(tmp_path / "out/model.safetensors"), state)
    elif head in ("other", "half"):
        assert "`lm_head.weight` differs from `model.embed_tokens.weight`" in result.stderr


def singletons(folder):
    """Returns the tensors of a `torch_dist` folder as Megatron-core saves unequal layers: one for each layer, fc1 in
    halves."""
    metadata = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {name: torch.empty(of.size, dtype=of.properties.dtype) for name,
             of in metadata.items() if hasattr(of, "size")}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    alone = {}
    for name, tensor in state.items():
        if ".layers." not in name:
            alone[name] = tensor
            continue
        for i, part in enumerate(tensor.unbind()):
            of = name.replace(".layers.", f".layers.{i}.")
            if "experts.experts" in name:
                parts = {of.replace("experts.experts.", f"experts.experts.{e}."): expert for e,
                         expert in enumerate(part.unbind())}
            else:
                parts = {of: part}
            for path, value in parts.items():
                if path.endswith("fc1.weight"):
                    alone[path + "_w"], alone[path + "_v"] = (half.clone() for half in value.chunk(2))
                else:
                    alone[path] = value.clone()
    return alone


@pytest.mark.parametrize("config", [LLAMA, {
    **LLAMA, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 3}])
@pytest.mark.parametrize("lost", [None, 3, "_v"])
def test_convert_joins_megatrons_tensors_of_single_layers(tmp_path, config, lost):
    (tmp_path / "config.json").write_text(json.dumps(config))
    run_ok("export", tmp_path / "config.json", "--to", "dcp", "--layout", "torch_dist", "-o", tmp_path / "td")
    state = singletons(tmp_path / "td")
    if lost is not None:
        name = sorted(name for name in state if ".layers." in name and (lost != "_v" or name.endswith("_v")))[0
            if lost == "_v" else lost]
        del state[name]
    dcp.save(state, checkpoint_id=tmp_path / "alone", no_dist=True)
    arguments = ["--to", "safetensors", "--spec", tmp_path / "config.json", "--from-layout", "torch_dist"]
    result = run_tool("convert", tmp_path / "alone", *arguments, "-o", tmp_path / "out")
    if lost is not None:
        assert result.returncode == 2 and not (tmp_path / "out").exists(), result
        return
    assert result.returncode == 0 and "joins tensors: `decoder.layers.*." in result.stderr, result
    run_ok("convert", tmp_path / "td", *arguments, "-o", tmp_path / "wanted")
    assert run_ok("diff", tmp_path / "out", tmp_path / "wanted", "--values").stdout.startswith("no difference")
