"""Renames tensors of Transformers models from the families that `import` knows, as wrappers, other
prefixes, old names, buffers and tied copies do.

`convert` must write exactly the tensors that `save_pretrained` wrote, or refuse. If
`from_pretrained` knows the names, it must load the same tensors."""

import functools
import pathlib
import tempfile

from clients import client_of
from generated import generated, given
from hypothesis import strategies as st
from support import run_tool

torch = client_of("torch")
transformers = client_of("transformers")
safetensors_torch = client_of("safetensors.torch")
dcp = client_of("torch.distributed.checkpoint")

from test_import import FAMILIES

PREFIXES = ["", "module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod.", "_fsdp_wrapped_module.",
            "_forward_module.", "net.", "model.", "student.backbone."]
INNER = ["", "_checkpoint_wrapped_module.", "_orig_mod.", "_fsdp_wrapped_module.",
         "_fsdp_wrapped_module._checkpoint_wrapped_module."]
# Family → path of its embedding table, unless it is `model.embed_tokens.weight`.
TABLES = {"bert": "bert.embeddings.word_embeddings.weight", "gpt2": "transformer.wte.weight", "t5": "shared.weight"}


@functools.cache
def saved(name, changes):
    """Makes a tiny model with `save_pretrained`; returns its tensors, config and class."""
    of, tiny, variations = FAMILIES[name]
    values = {"architectures": [of], **tiny, **(variations[changes] if changes < len(variations) else {})}
    values.pop("dtype", None)
    cls = getattr(transformers, values["architectures"][0])
    torch.manual_seed(0)
    model = cls(cls.config_class(**values))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        state = {}
        for file in pathlib.Path(folder).glob("*.safetensors"):
            state |= safetensors_torch.load_file(file)
        return state, (pathlib.Path(folder) / "config.json").read_text(), cls


@st.composite
def cases(draw):
    name = draw(st.sampled_from(sorted(FAMILIES)))
    return {"family": name, "changes": draw(st.integers(0, len(FAMILIES[name][2]))),
            "prefix": draw(st.sampled_from(PREFIXES)), "inner": draw(st.sampled_from(INNER)),
            "base": draw(st.booleans()), "old": draw(st.booleans()), "buffers": draw(st.booleans()),
            "tied": draw(st.sampled_from([None, None, "equal", "other"])), "extra": draw(st.integers(0, 5)) == 0,
            "writer": draw(st.sampled_from(["safetensors", "bin", "dcp"]))}


def renamed(case, name, base):
    """Returns the name in the folder."""
    if case["base"] and name.startswith(base):
        name = name.removeprefix(base)
    if case["old"] and "LayerNorm." in name:
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    parts = name.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    if at is not None:
        parts[at] += "." + case["inner"][:-1] if case["inner"] else ""
    return case["prefix"] + ".".join(parts)


def write_folder(case, folder):
    """Writes the model under other names. Returns the expected tensors; None if the run must be
    refused."""
    state, config, cls = saved(case["family"], case["changes"])
    base = cls.base_model_prefix + "."
    names = {name: renamed(case, name, base) for name in state}
    there = {names[name]: tensor for name, tensor in state.items()}
    wanted = state
    if case["buffers"] and case["family"] in ("gpt2", "gpt_neox", "bert"):
        there[case["prefix"] + {"gpt2": "h.0.attn.bias", "gpt_neox": "gpt_neox.layers.0.attention.bias",
                                "bert": "bert.embeddings.position_ids"}[case["family"]]] = (
            torch.arange(8).reshape(1, 8) if case["family"] == "bert" else torch.ones(1, 1, 8, 8).tril().bool())
    table = TABLES.get(case["family"], "model.embed_tokens.weight")
    tied = "cls.predictions.decoder.weight" if case["family"] == "bert" else "lm_head.weight"
    if case["tied"] and table in state and tied not in state and case["family"] not in ("t5", "mamba", "mamba2"):
        there[case["prefix"] + tied] = state[table].clone() + (case["tied"] == "other")
        if case["tied"] == "other":
            wanted = None
    if case["extra"]:
        there["quite.another.weight"] = torch.ones(3)
        wanted = None
    folder.mkdir()
    (folder / "config.json").write_text(config)
    if case["writer"] == "safetensors":
        safetensors_torch.save_file(there, folder / "model.safetensors", {"format": "pt"})
    elif case["writer"] == "bin":
        torch.save(there, folder / "pytorch_model.bin")
    else:
        dcp.save(there, checkpoint_id=folder, no_dist=True)
    return wanted


def may_be_refused(case):
    """Two changes of prefixes at once are followed only if all names begin alike."""
    return case["prefix"] in ("net.", "student.backbone.", "model.") and case["base"]


@generated(25)
@given(case=cases())
def test_convert_resolves_generated_renamings(case):
    with tempfile.TemporaryDirectory() as name:
        folder, out = pathlib.Path(name, "in"), pathlib.Path(name, "out")
        wanted = write_folder(case, folder)
        result = run_tool("convert", folder, "--to", "safetensors", "--layout", "hub", "-o", out)
        if result.returncode != 0:
            assert result.returncode == 2 and not out.exists(), (case, result)
            assert wanted is None or may_be_refused(case), (case, result)
            return
        assert wanted is not None, (case, result)
        found = safetensors_torch.load_file(out / "model.safetensors")
        assert found.keys() == wanted.keys(), (case, found.keys() ^ wanted.keys())
        for path, tensor in wanted.items():
            assert torch.equal(found[path], tensor) and found[path].dtype == tensor.dtype, (case, path)
        if case["prefix"] == case["inner"] == "" and case["writer"] != "dcp":
            compare_with_transformers(case, folder, out)


def compare_with_transformers(case, folder, out):
    cls = saved(case["family"], case["changes"])[2]
    theirs, info = cls.from_pretrained(folder, output_loading_info=True)
    if info["missing_keys"]:
        return  # Transformers does not know these names either.
    ours = cls.from_pretrained(out).state_dict()
    assert all(torch.equal(tensor, ours[path]) for path, tensor in theirs.state_dict().items()), case
