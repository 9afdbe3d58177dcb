"""Recipes that start from a model that exists: what the new model computes, in Transformers."""

import os

import numpy as np
import pytest
from clients import client_of
from support import ROOT, run_ok

torch = client_of("torch")
transformers = client_of("transformers")

TINY = "d: 32, ff: 48, layers: %d, heads: 4, kv_heads: 2, head_dim: 8, vocab: %d"
TOKENS = torch.arange(2 * 24).reshape(2, 24) % 300


def make(folder, name, recipes, layers=4, vocab=300, variables="", more="", source=None):
    """A folder as Hugging Face's tools write it, of a tiny Llama with these recipes."""
    include = [os.path.relpath(ROOT / f"configs/{path}.yaml", folder) for path in ("llama3.1-8b", *recipes)]
    spec = folder / f"{name}.yaml"
    spec.write_text(f"shardinit: 1\ninclude: [{', '.join(include)}]\nname: {name}\ndtype: f32\nuneven: chunk\n"
                    f"vars: {{{TINY % (layers, vocab)}{variables}}}\n{more}")
    options = [] if source is None else ["--source", f"base={source}"]
    run_ok("export", spec, "--to", "safetensors", "-o", folder / name, *options)
    return spec


def logits_of(folder, dtype=torch.float32):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=dtype, attn_implementation="eager")
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    with torch.no_grad():
        return model, model.eval()(TOKENS).logits


def test_a_longer_vocabulary_keeps_what_the_model_computes(tmp_path):
    # As with a trained model, rows have means and deviations of their own.
    make(tmp_path, "base", [], more="init: {linear: {normal: {std: 0.1}}, embedding: {normal: {mean: 0.02, std: 0.05}}}\n")
    spec = make(tmp_path, "grown", ["recipes/longer-vocabulary"], vocab=312, source=tmp_path / "base")
    (old, before), (new, after) = logits_of(tmp_path / "base"), logits_of(tmp_path / "grown")
    assert torch.equal(before, after[..., :300])
    for table in ("model.embed_tokens.weight", "lm_head.weight"):
        rows, grown = old.get_parameter(table).detach(), new.get_parameter(table).detach()
        assert torch.equal(grown[:300], rows)
        mean, deviation = rows.double().mean(0), rows.double().std(0, correction=0)
        assert ((grown[300:].double() - mean).abs() < 6 * 3.17e-5 * deviation + 1e-8).all()
    # Transformers' own rows differ from the mean as little.
    old.resize_token_embeddings(312, mean_resizing=True)
    theirs = old.get_input_embeddings().weight[300:].detach().double()
    ours = new.get_input_embeddings().weight[300:].detach().double()
    assert 0.2 < (ours - mean_of(old)).std() / (theirs - mean_of(old)).std() < 5
    assert torch.equal(ours.bfloat16(), theirs.bfloat16()) or (ours.bfloat16() == theirs.bfloat16()).double().mean() > 0.9
    digests = {run_ok("digest", spec, "--source", f"base={tmp_path / 'base'}", "--mesh", mesh).stdout
               for mesh in ("fsdp=1,tensor=1", "fsdp=2,tensor=4", "fsdp=1,tensor=8")}
    assert len(digests) == 1


def mean_of(model):
    return model.get_input_embeddings().weight[:300].detach().double().mean(0)


@pytest.mark.parametrize("layers", [6, 8])
def test_new_layers_of_llama_pro_change_nothing(tmp_path, layers):
    make(tmp_path, "base", [], more="init: {linear: {normal: {std: 0.1}}}\n")
    make(tmp_path, "deeper", ["recipes/llama-pro"], layers=layers, variables=", base_layers: 4", source=tmp_path / "base")
    for dtype in (torch.float32, torch.bfloat16):
        (_, before), (deeper, after) = logits_of(tmp_path / "base", dtype), logits_of(tmp_path / "deeper", dtype)
        assert len(deeper.model.layers) == layers and torch.equal(before, after)


def test_the_average_of_two_models(tmp_path):
    make(tmp_path, "a", [], more="seed: 1\n")
    make(tmp_path, "b", [], more="seed: 2\n")
    mean = "{expr: \"0.25 * source('a') + 0.75 * source('b')\"}"
    spec = make(tmp_path, "mean", [], more=f"sources: {{a: {{path: a}}, b: {{path: b}}}}\n"
                f"init: {{linear: {mean}, norm: {mean}}}\n")
    assert spec.exists()
    (a, _), (b, _), (both, _) = (logits_of(tmp_path / name) for name in ("a", "b", "mean"))
    for name, tensor in both.named_parameters():
        expected = 0.25 * a.get_parameter(name).double() + 0.75 * b.get_parameter(name).double()
        assert torch.equal(tensor, expected.float()), name
    assert np.isfinite(both.lm_head.weight.detach().numpy()).all()
