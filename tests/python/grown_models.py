"""Tiny Transformers models of recipes that start from an existing model."""

import os

from clients import client_of
from safetensors.torch import load_file
from support import ROOT, run_ok, run_tool

torch = client_of("torch")
transformers = client_of("transformers")

# With 48 hidden units, PyTorch would multiply the halves of a tensor with other instructions than whole tensors.
TINY = "d: 32, ff: 64, layers: %d, heads: 4, kv_heads: 2, head_dim: 8, vocab: %d"
TOKENS = torch.arange(2 * 24).reshape(2, 24) % 300


TRAINED = "init: {linear: {normal: {std: 0.1}}, norm: {normal: {mean: 1, std: 0.1}}}\n"  # Imitates trained weights.


def write(folder, name, recipes, layers=4, vocab=300, variables="", more="", config="llama3.1-8b"):
    """Writes a spec of a tiny model with these recipes."""
    include = [os.path.relpath(ROOT / f"configs/{path}.yaml", folder) for path in (config, *recipes)]
    spec = folder / f"{name}.yaml"
    spec.write_text(f"shardinit: 1\ninclude: [{', '.join(include)}]\nname: {name}\ndtype: f32\nuneven: chunk\n"
                    f"vars: {{{TINY % (layers, vocab)}{variables}}}\n{more}")
    return spec


def make(folder, name, recipes, *arguments, source=None, **options):
    """Exports a tiny Llama with these recipes in the form of Hugging Face's tools."""
    spec = write(folder, name, recipes, *arguments, **options)
    source = [] if source is None else ["--source", f"base={source}"]
    run_ok("export", spec, "--to", "safetensors", "-o", folder / name, *source)
    return spec


def refused(folder, name, recipes, *messages, source, **options):
    """Checks that a recipe is refused with its place, these messages and a hint."""
    spec = write(folder, name, recipes, **options)
    result = run_tool("validate", spec, "--source", f"base={source}")
    assert result.returncode == 2 and "hint: " in result.stderr, result.stderr
    for message in (f"configs/{recipes[-1]}.yaml:", *messages):
        assert message in result.stderr, result.stderr


def tensors_of(folder):
    return load_file(folder / "model.safetensors")


def logits_of(folder, dtype=torch.float32):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=dtype, attn_implementation="eager", experts_implementation="eager")
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    with torch.no_grad():
        return model, model.eval()(TOKENS).logits
