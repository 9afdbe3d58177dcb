"""Compares `convert` to and from MaxText, whose conventions change values, with the functions of MaxText's own
converter (maxtext/checkpoint_conversion/utils/param_mapping.py)."""

import re

import numpy as np
import pytest
from clients import client_of
from support import run_ok, run_tool

torch = client_of("torch")
transformers = client_of("transformers")
safetensors_torch = client_of("safetensors.torch")
mapping = client_of("maxtext.checkpoint_conversion.utils.param_mapping")
ml_dtypes = client_of("ml_dtypes")

COMMON = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 48, "intermediate_size": 40,
          "num_hidden_layers": 4, "vocab_size": 130, "tie_word_embeddings": False, "pad_token_id": None}
FAMILIES = {  # → its configuration, the functions' prefix, the layout next to config.json
    "Llama": ({"head_dim": 12}, "LLAMA31", "llama"),
    "Mixtral": ({"head_dim": 12, "num_local_experts": 3}, "MIXTRAL", None),
    "Qwen3": ({"head_dim": 12}, "QWEN", None),
    "Qwen3Moe": ({"head_dim": 12, "num_experts": 3, "moe_intermediate_size": 20}, "QWEN", None),
    "Gemma2": ({"head_dim": 12, "tie_word_embeddings": True}, "GEMMA2", None),
}
EXACT = ["Qwen3", "Qwen3Moe"]


def trained(family, dtype, folder, more=()):
    """Returns settings and weights of the sizes that training gives, among them NaN, -0 and infinity."""
    settings = getattr(transformers,
                       f"{family}Config")(**{**COMMON, **dict(FAMILIES.get(family, ({},))[0]), **dict(more),
                                             "dtype": dtype})
    getattr(transformers, f"{family}ForCausalLM")(settings).to(dtype).save_pretrained(folder)
    bits = torch.Generator().manual_seed(5)
    state = {}
    for name, t in safetensors_torch.load_file(folder / "model.safetensors").items():
        value = (torch.randn(t.shape, generator=bits) * 0.02 + (1 if "norm" in name else 0)).to(dtype)
        value.view(-1)[:3] = torch.tensor([float("nan"), -0.0, float("inf")])
        state[name] = value
    safetensors_torch.save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return settings, state


def arrays(state):
    return {name: t.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if t.dtype == torch.bfloat16 else t.numpy()
            for name, t in state.items()}


def same(a, b, name):
    assert a.dtype == b.dtype and a.shape == b.shape, (name, a.shape, b.shape, a.dtype, b.dtype)
    nan = np.isnan(a.astype(np.float64))
    np.testing.assert_array_equal(nan, np.isnan(b.astype(np.float64)), err_msg=name)
    word = np.dtype(f"u{a.dtype.itemsize}")
    np.testing.assert_array_equal(a.view(word)[~nan], b.view(word)[~nan], err_msg=name)


def apply_hooks(hooks, array, shape):
    for hook in hooks if isinstance(hooks, list) else [hooks]:
        array = hook(array, shape) if hook else array
    return array


def maxtext_tensors(family, settings, state, shapes):
    """Returns the tensors that MaxText's functions make, of the given shapes, with layers along dimension 1."""
    prefix = FAMILIES[family][1]
    arguments = (settings.to_dict(), type("Config", (), {"head_dim": 12, "num_experts": 3})(), True)
    names = getattr(mapping, f"{prefix}_MAXTEXT_TO_HF_PARAM_MAPPING")(*arguments)
    hooks = getattr(mapping, f"{prefix}_MAXTEXT_TO_HF_PARAM_HOOK_FN")(*arguments, False)
    made = {}
    for key, theirs in names.items():
        path = "params." + key.replace("-", ".")
        flat = np.ravel(np.array(theirs, object))
        if not all(name in state for name in flat):
            assert all(re.search(r"bias$|norm|lm_head", name) for name in flat), theirs
            continue
        shape = shapes[path]
        hook = hooks.get(key)
        if isinstance(theirs, str):
            made[path] = apply_hooks(hook, state[theirs], shape)
        elif isinstance(theirs[0], str):
            layer = shape[:1] + shape[2:]
            made[path] = np.stack([apply_hooks(hook, state[name], layer) for name in theirs], axis=1)
        else:
            made[path] = np.stack([np.stack([apply_hooks(hook, state[name], shape[2:]) for name in layers])
                                   for layers in theirs])
    return made


def maxtext_spec(family, folder):
    if FAMILIES[family][2] is None:
        return folder / "config.json"
    spec = folder / "spec.yaml"
    spec.write_text(f"shardinit: 1\ninclude: [config.json, <shardinit>/layouts/{FAMILIES[family][2]}.yaml]\n")
    return spec


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("family", FAMILIES)
def test_convert_matches_maxtexts_converter(tmp_path, family, dtype):
    settings, state = trained(family, dtype, tmp_path / "in")
    spec = maxtext_spec(family, tmp_path / "in")
    arguments = ["convert", tmp_path / "in", "--spec", spec, "--layout", "maxtext", "--to", "safetensors"]
    result = run_tool(*arguments, "-o", tmp_path / "there")
    if family not in EXACT:
        assert result.returncode == 2 and "--inexact" in result.stderr and "values of" in result.stderr, result
        result = run_tool(*arguments, "-o", tmp_path / "there", "--inexact")
        assert "cannot be restored exactly" in result.stderr
    assert result.returncode == 0, result
    there = arrays(safetensors_torch.load_file(tmp_path / "there/model.safetensors"))
    wanted = maxtext_tensors(family, settings, arrays(state), {name: a.shape for name, a in there.items()})
    assert there.keys() == wanted.keys()
    for name, array in wanted.items():
        same(there[name], array.astype(there[name].dtype), name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("family", ["Mistral", *FAMILIES])
def test_convert_counts_elements_that_do_not_round_trip(tmp_path, family, dtype):
    """The number of elements that differ after a round trip is the number that `convert` reported."""
    FAMILIES.setdefault("Mistral", ({"head_dim": 12}, None, None))
    _, state = trained(family, dtype, tmp_path / "in")
    spec = maxtext_spec(family, tmp_path / "in")
    there = run_tool("convert", tmp_path / "in", "--spec", spec, "--layout", "maxtext", "--to", "zarr", "--inexact",
                     "-o", tmp_path / "there")
    assert there.returncode == 0, there
    run_ok("convert", tmp_path / "there", "--spec", spec, "--from-layout", "maxtext", "--to", "safetensors",
           "--inexact", "-o", tmp_path / "back")
    back = safetensors_torch.load_file(tmp_path / "back/model.safetensors")
    assert back.keys() == state.keys()
    word = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    lost = sum(int((back[name].view(word) != t.view(word)).sum()) for name, t in state.items())
    said = re.search(r"([\d,]+) of these cannot be restored exactly", there.stderr)
    assert lost == (int(said[1].replace(",", "")) if said else 0)
    assert (lost == 0) == (family in EXACT), lost


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_maxtext_round_trip_of_power_of_two_heads_is_exact(tmp_path, dtype):
    """A Mistral with heads of 16 converts to MaxText and back without a difference."""
    trained("Mistral", dtype, tmp_path / "in", {"head_dim": 16})
    there = run_tool("convert", tmp_path / "in", "--layout", "maxtext", "--to", "zarr", "--inexact", "-o",
                     tmp_path / "there")
    assert there.returncode == 0 and " 0 of these cannot be restored exactly" in there.stderr, there
    run_ok("convert", tmp_path / "there", "--spec", tmp_path / "in/config.json", "--from-layout", "maxtext",
           "--inexact", "--to", "safetensors", "-o", tmp_path / "back")
    assert "no difference" in run_ok("diff", tmp_path / "in", tmp_path / "back", "--values").stdout
    # Converting from MaxText to MaxText changes nothing.
    run_ok("convert", tmp_path / "there", "--spec", tmp_path / "in/config.json", "--from-layout", "maxtext", "--layout",
           "maxtext", "--to", "dcp", "-o", tmp_path / "same")
    assert "no difference" in run_ok("diff", tmp_path / "there", tmp_path / "same", "--values").stdout


def test_convert_rejects_values_that_overflow(tmp_path):
    _, state = trained("Gemma2", torch.bfloat16, tmp_path / "in")
    state["model.embed_tokens.weight"][5, 5] = 3e38
    safetensors_torch.save_file(state, tmp_path / "in/model.safetensors", metadata={"format": "pt"})
    result = run_tool("convert", tmp_path / "in", "--layout", "maxtext", "--to", "zarr", "--inexact", "-o",
                      tmp_path / "out")
    assert result.returncode == 2 and "token_embedder.embedding` has the value" in result.stderr
    assert not (tmp_path / "out").exists()
