"""Recipes that start from an existing model; Transformers computes the results."""

import json
import os

import numpy as np
import pytest
from clients import client_of
from grown_models import TINY, TOKENS, TRAINED, logits_of, make, refused, tensors_of, write
from safetensors.torch import load_file
from support import ROOT, reassemble, run_ok, run_tool

torch = client_of("torch")
transformers = client_of("transformers")


def test_longer_vocabulary_keeps_the_logits(tmp_path):
    # As in trained models, rows have their own means and deviations.
    make(tmp_path, "base", [], more="init: {linear: {normal: {std: 0.1}}, embedding: {normal: {mean: 0.02, std: "
                                    "0.05}}}\n")
    spec = make(tmp_path, "grown", ["recipes/longer-vocabulary"], vocab=312, source=tmp_path / "base")
    (old, before), (new, after) = logits_of(tmp_path / "base"), logits_of(tmp_path / "grown")
    assert torch.equal(before, after[..., :300])
    for table in ("model.embed_tokens.weight", "lm_head.weight"):
        rows, grown = old.get_parameter(table).detach(), new.get_parameter(table).detach()
        assert torch.equal(grown[:300], rows)
        mean, deviation = rows.double().mean(0), rows.double().std(0, correction=0)
        assert ((grown[300:].double() - mean).abs() < 6 * 3.17e-5 * deviation + 1e-8).all()
    # Transformers' new rows differ from the mean by about as much.
    old.resize_token_embeddings(312, mean_resizing=True)
    theirs = old.get_input_embeddings().weight[300:].detach().double()
    ours = new.get_input_embeddings().weight[300:].detach().double()
    assert 0.2 < (ours - embedding_mean(old)).std() / (theirs - embedding_mean(old)).std() < 5
    assert torch.equal(ours.bfloat16(),
                       theirs.bfloat16()) or (ours.bfloat16() == theirs.bfloat16()).double().mean() > 0.9
    digests = {run_ok("digest", spec, "--source", f"base={tmp_path / 'base'}", "--mesh", mesh).stdout
               for mesh in ("fsdp=1,tensor=1", "fsdp=2,tensor=4", "fsdp=1,tensor=8")}
    assert len(digests) == 1


def embedding_mean(model):
    return model.get_input_embeddings().weight[:300].detach().double().mean(0)


GROWN = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 300, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
TABLES = ("model.embed_tokens.weight", "lm_head.weight")


@pytest.mark.parametrize("tied", [True, False])
def test_longer_vocabulary_equals_resize_token_embeddings(tmp_path, tied):
    """New rows equal the rows that resize_token_embeddings adds: 355 tokens padded to a multiple of 8, with tied and
    separate heads."""
    torch.manual_seed(5)
    old = transformers.LlamaForCausalLM(transformers.LlamaConfig(tie_word_embeddings=tied, **GROWN))
    for table in {old.model.embed_tokens.weight, old.lm_head.weight}:
        torch.nn.init.normal_(table, 0.02, 0.05)
    old.save_pretrained(tmp_path / "base")
    _, before = logits_of(tmp_path / "base")
    old.resize_token_embeddings(355, pad_to_multiple_of=8, mean_resizing=True)
    assert old.config.vocab_size == 360
    old.config.save_pretrained(tmp_path / "config")
    recipe = os.path.relpath(ROOT / "configs/recipes/longer-vocabulary.yaml", tmp_path)
    spec = tmp_path / "grown.yaml"
    spec.write_text(f"shardinit: 1\ninclude: [config/config.json, {recipe}]\nname: grown\ndtype: f32\nuneven: chunk\n"
                    "sources: {base: {path: base}}\n")
    run_ok("export", spec, "--to", "safetensors", "-o", tmp_path / "grown")
    made, rows = tensors_of(tmp_path / "grown"), tensors_of(tmp_path / "base")
    assert made.keys() == rows.keys() and ("lm_head.weight" in made) != tied
    new, after = logits_of(tmp_path / "grown")
    assert torch.equal(after[..., :300], before) and after.shape[-1] == 360
    assert (new.lm_head.weight is new.model.embed_tokens.weight) == tied
    for name in [name for name in TABLES if name in made]:
        ours, theirs = made[name], old.get_parameter(name).detach()
        assert torch.equal(ours[:300], rows[name]) and torch.equal(theirs[:300], rows[name])
        mean, deviation = rows[name].double().mean(0), rows[name].double().std(0, correction=0)
        for each in (ours, theirs):
            assert ((each[300:].double() - mean).abs() < 6 * 3.17e-5 * deviation + 1e-8).all()
            assert (each[300:].bfloat16() == mean.float().bfloat16()).double().mean() > 0.95
    assert all(torch.equal(value, rows[name]) for name, value in made.items() if name not in TABLES)
    # Values are the same with all degrees of tensor parallelism and with pipeline stages.
    values = {path: words for path, (_, words) in reassembled(spec, tmp_path / "one").items()}
    for tensor in (2, 3, 4, 5, 6, 7, 8):
        again = reassembled(spec, tmp_path / f"tp{tensor}", "--mesh", f"fsdp=1,tensor={tensor}")
        assert all(np.array_equal(again[path][1], value) for path, value in values.items())
    stages = spec.with_name("stages.yaml")
    megatron = os.path.relpath(ROOT / "configs/sharding/megatron.yaml", tmp_path)
    stages.write_text(f"shardinit: 1\ninclude: [grown.yaml, {megatron}]\nvars: {{tensor: 4, pipe: 2}}\n")
    again = reassembled(stages, tmp_path / "pp")
    assert all(np.array_equal(again[path][1], value) for path, value in values.items())


def reassembled(spec, out, *options):
    run_ok("gen", spec, "-o", out, *options)
    return reassemble(out)


@pytest.mark.parametrize("layers", [6, 8])
def test_llama_pro_layers_keep_the_logits(tmp_path, layers):
    make(tmp_path, "base", [], more="init: {linear: {normal: {std: 0.1}}}\n")
    make(tmp_path, "deeper", ["recipes/llama-pro"], layers=layers, variables=", base_layers: 4",
         source=tmp_path / "base")
    for dtype in (torch.float32, torch.bfloat16):
        (_, before), (deeper, after) = logits_of(tmp_path / "base", dtype), logits_of(tmp_path / "deeper", dtype)
        assert len(deeper.model.layers) == layers and torch.equal(before, after)


def test_source_expressions_average_two_models(tmp_path):
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


# Deeper and wider models ---------------------------------------------------------

def test_solar_copies_layers(tmp_path):
    make(tmp_path, "base", [], layers=8, more=TRAINED)
    make(tmp_path, "deeper", ["recipes/solar"], layers=12, variables=", base_layers: 8", source=tmp_path / "base")
    old, new = tensors_of(tmp_path / "base"), tensors_of(tmp_path / "deeper")
    layers = [*range(6), *range(2, 8)]  # mergekit's passthrough of [0, 6) and [2, 8)
    expected = {name: old[name] for name in old if "layers" not in name}
    for layer, of in enumerate(layers):
        expected |= {name.replace(f"layers.{of}.", f"layers.{layer}."): value for name, value in old.items()
                     if f"layers.{of}." in name}
    assert new.keys() == expected.keys() and all(torch.equal(value, expected[name]) for name, value in new.items())
    # The output equals the base model's with its layers in that order.
    base, _ = logits_of(tmp_path / "base")
    base.model.layers = torch.nn.ModuleList([base.model.layers[of] for of in layers])
    base.config.num_hidden_layers = 12
    deeper, after = logits_of(tmp_path / "deeper")
    assert len(deeper.model.layers) == 12
    with torch.no_grad():
        assert torch.equal(base(TOKENS, use_cache=False).logits, after)


def test_solar_copies_norms_and_biases(tmp_path):
    """Every tensor of a layer is copied, including norms and biases."""
    layer = "modules: {model: {layers: {self_attn: {q_norm.weight: {shape: [8], axes: [norm], init: norm}, " \
            "q_proj.bias: {shape: [32], axes: [heads], init: bias}}}}}\n"
    make(tmp_path, "base", [], more=layer + "init: {norm: {normal: {std: 1}}, bias: norm}\n")
    make(tmp_path, "deeper", ["recipes/solar"], layers=6, variables=", base_layers: 4", more=layer,
         source=tmp_path / "base")
    old, new = tensors_of(tmp_path / "base"), tensors_of(tmp_path / "deeper")
    for place, of in enumerate([0, 1, 2, 1, 2, 3]):
        for name in ("q_norm.weight", "q_proj.bias"):
            assert torch.equal(new[f"model.layers.{place}.self_attn.{name}"],
                               old[f"model.layers.{of}.self_attn.{name}"])


@pytest.mark.parametrize("recipe, layers", [("solar", 6), ("llama-pro", 6)])
def test_deeper_recipes_check_the_number_of_layers(tmp_path, recipe, layers):
    make(tmp_path, "base", [], layers=5)
    refused(tmp_path, "deeper", [f"recipes/{recipe}"], "has 5 tensors `model.layers.*.input_layernorm.weight`, not 4",
            "`base_layers` is 4", layers=layers, variables=", base_layers: 4", source=tmp_path / "base")
    narrow = run_tool("validate", tmp_path / "deeper.yaml", "--source", f"base={tmp_path / 'base'}", "--set",
                      "vars.d=64")
    assert "`model.layers.0.input_layernorm.weight` as [32], not [64]" in narrow.stderr, narrow.stderr


def test_llama_pro_rejects_outputs_with_a_bias(tmp_path):
    bias = "modules: {model: {layers: {self_attn: {o_proj.bias: {shape: [32], axes: [norm], init: bias}}}}}\n"
    make(tmp_path, "base", [], more=bias)
    refused(tmp_path, "deeper", ["recipes/llama-pro"], "has 4 tensors `model.layers.*.self_attn.o_proj.bias`, not 0",
            layers=6, variables=", base_layers: 4", more=bias, source=tmp_path / "base")


WIDE = "d: %d, ff: %d, layers: 2, heads: %d, kv_heads: %d, head_dim: 8, vocab: 300, base_d: 32, base_ff: 64, base_heads: 4, base_kv_heads: 2"


@pytest.mark.parametrize("times, of_ff", [(2, 2), (3, 3), (2, 4)])
def test_hypercloning_keeps_the_logits(tmp_path, times, of_ff):
    make(tmp_path, "base", [], layers=2, more=TRAINED)
    wider = write(tmp_path, "wider", ["recipes/hypercloning"])
    sizes = WIDE % (32 * times, 64 * of_ff, 4 * times, 2 * times)
    wider.write_text(wider.read_text().replace(f"vars: {{{TINY % (4, 300)}}}", f"vars: {{{sizes}}}"))
    run_ok("export", wider, "--to", "safetensors", "-o", tmp_path / "wider", "--source", f"base={tmp_path / 'base'}")
    (old, before), (new, after) = logits_of(tmp_path / "base"), logits_of(tmp_path / "wider")
    assert new.config.hidden_size == 32 * times
    assert (after - before).abs().max() < 1e-5 * before.abs().max()
    by = {"mlp.down_proj": of_ff}
    for name, value in new.state_dict().items():
        table = old.state_dict()[name]
        repeats = [n // m for n, m in zip(value.shape, table.shape)]
        divided = 1 if "norm" in name or "embed" in name else by.get(name.split(".", 3)[-1].removesuffix(".weight"),
                                                                     times)
        assert torch.equal(value, torch.tile(table, repeats) / divided), name
    # The head of a tied model is made from the table.
    tied = "init: {head: {expr: \"source('base', 'model.embed_tokens.weight', i0, i1 % base_d) / (d / base_d)\"}}\n"
    (tmp_path / "tied.yaml").write_text(f"shardinit: 1\ninclude: wider.yaml\n{tied}")
    run_ok("export", tmp_path / "tied.yaml", "--to", "safetensors", "-o", tmp_path / "tied", "--source",
           f"base={tmp_path / 'base'}")
    old.lm_head.weight = old.model.embed_tokens.weight
    with torch.no_grad():
        assert (logits_of(tmp_path / "tied")[1] - old(TOKENS).logits).abs().max() < 1e-5


@pytest.mark.parametrize("change, message", [
    ("base_d=16", "`model.embed_tokens.weight` as [300, 32], not [300, 16]"),
    ("base_ff=32", "`model.layers.0.mlp.up_proj.weight` as [64, 32], not [32, 32]"),
    ("d=72", "the width is no multiple of the model's: `d` is 72 and `base_d` is 32"),
    ("kv_heads=2", "groups of heads have another size than the model's"),
])
def test_hypercloning_rejects_sizes_that_do_not_fit(tmp_path, change, message):
    make(tmp_path, "base", [], layers=2)
    wider = write(tmp_path, "wider", ["recipes/hypercloning"])
    wider.write_text(wider.read_text().replace(TINY % (4, 300), WIDE % (64, 128, 8, 4)))
    result = run_tool("validate", wider, "--source", f"base={tmp_path / 'base'}", "--set", f"vars.{change}")
    assert result.returncode == 2 and message in result.stderr and "configs/recipes/hypercloning.yaml:" in result.stderr, result.stderr


# Other heads, adapters --------------------------------------------------------

def test_fresh_head_redraws_the_language_model_head(tmp_path):
    make(tmp_path, "base", [], more=TRAINED)
    make(tmp_path, "fresh", ["recipes/fresh-head"], more="seed: 5\n", variables=", head_std: 0.3",
         source=tmp_path / "base")
    old, new = tensors_of(tmp_path / "base"), tensors_of(tmp_path / "fresh")
    assert all(torch.equal(value, old[name]) for name, value in new.items() if name != "lm_head.weight")
    assert 0.29 < new["lm_head.weight"].std() < 0.31
    refused(tmp_path, "wrong", ["recipes/fresh-head"], "`model.embed_tokens.weight` is [301, 32]", "is [300, 32]",
            vocab=301, source=tmp_path / "base")


def test_fresh_head_makes_a_classification_head(tmp_path):
    make(tmp_path, "base", [], more=TRAINED)
    make(tmp_path, "scores", ["recipes/fresh-head"],
         more="config: {architectures: [LlamaForSequenceClassification], num_labels: 3, "
         "pad_token_id: 0}\nmodules: {lm_head.weight: {when: 0}, score.weight: {shape: [3, d], axes: [null, embed], "
         "init: head}}\n", source=tmp_path / "base")
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "scores", output_loading_info=True, attn_implementation="eager", dtype=torch.float32)
    assert not info["missing_keys"] and not info["unexpected_keys"] and model.score.weight.shape == (3, 32)
    base, _ = logits_of(tmp_path / "base")
    with torch.no_grad():
        assert torch.equal(base.model(TOKENS).last_hidden_state, model.eval().model(TOKENS).last_hidden_state)


def test_lora_exports_a_peft_folder(tmp_path):
    peft = client_of("peft")
    make(tmp_path, "base", [], more=TRAINED)
    spec = write(tmp_path, "adapters", ["recipes/lora"], variables=", rank: 4, alpha: 12",
                 more="init: {lora_B: {normal: {std: 0.2}}}\n")
    run_ok("export", spec, "--to", "safetensors", "-o", tmp_path / "adapters")
    assert {path.name for path in (tmp_path / "adapters").iterdir() if not path.name.startswith(".")} >= {
        "adapter_model.safetensors", "adapter_config.json"}
    config = json.loads((tmp_path / "adapters/adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["r"] == 4 and "model_type" not in config and "dtype" not in config
    made = load_file(tmp_path / "adapters/adapter_model.safetensors")
    base, before = logits_of(tmp_path / "base")
    weights = {name: value.detach().clone() for name, value in base.state_dict().items()}
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapters").eval()
    # For a file that does not fit, PEFT only warns and computes the base's output, so each tensor is compared.
    held = peft.get_peft_model_state_dict(model)
    assert held.keys() == made.keys() and len(made) == 4 * 7 * 2
    assert all(torch.equal(held[name], value) for name, value in made.items())
    assert all((value != 0).any() for value in made.values())
    with torch.no_grad():
        after = model(TOKENS).logits
        assert (after - before).abs().max() > 0.01
        merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32,
                                                                   attn_implementation="eager").eval()
        for name in {name.rsplit(".lora_", 1)[0] for name in made}:
            a, b = made[f"{name}.lora_A.weight"], made[f"{name}.lora_B.weight"]
            target = name.removeprefix("base_model.model.") + ".weight"
            merged.get_parameter(target).copy_(weights[target] + 12 / 4 * (b @ a))
        assert (merged(TOKENS).logits - after).abs().max() < 1e-5 * after.abs().max()
    run_ok("verify", tmp_path / "adapters", "--spec", spec)


def test_lora_keeps_the_logits_and_rejects_rank_0(tmp_path):
    peft = client_of("peft")
    make(tmp_path, "base", [], more=TRAINED)
    spec = write(tmp_path, "adapters", ["recipes/lora"])
    run_ok("export", spec, "--to", "safetensors", "-o", tmp_path / "adapters")
    base, before = logits_of(tmp_path / "base")
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapters").eval()
    with torch.no_grad():
        assert torch.equal(model(TOKENS).logits, before)
    result = run_tool("validate", spec, "--set", "vars.rank=0")
    assert result.returncode == 2 and "configs/recipes/lora.yaml:" in result.stderr and "`rank` is 0" in result.stderr
    result = run_tool("export", spec, "--to", "safetensors", "-o", tmp_path / "more", "--max-shard-size", "1KB")
    assert result.returncode == 2 and "but PEFT reads one" in result.stderr and "--max-shard-size" in result.stderr


# Models that recipes were not written for -------------------------------------

def tiny(folder, name, config, sizes, recipe=None, more=""):
    include = [config, *([f"recipes/{recipe}"] if recipe else [])]
    (folder / f"{name}.yaml").write_text(f"shardinit: 1\ninclude: [{', '.join(include)}]\nname: {name}\ndtype: f32\n"
                                         f"uneven: chunk\nvars: {{{sizes}}}\n{more}")
    return folder / f"{name}.yaml"


GEMMA = "d: 32, ff: 64, heads: 4, kv_heads: 2, head_dim: 8, vocab: 300, layers: "


@pytest.mark.parametrize("recipe", ["solar", "llama-pro"])
def test_deeper_recipes_reject_alternating_layers(tmp_path, recipe):
    run_ok("export", tiny(tmp_path, "base", "gemma-2-9b", GEMMA + "4"), "--to", "safetensors", "-o", tmp_path / "base")
    deeper = tiny(tmp_path, "deeper", "gemma-2-9b", GEMMA + "6, base_layers: 4", recipe)
    result = run_tool("validate", deeper, "--source", f"base={tmp_path / 'base'}")
    assert result.returncode == 2 and "pre_feedforward_layernorm.weight`, not 0" in result.stderr, result.stderr


def test_hypercloning_rejects_a_tied_head(tmp_path):
    run_ok("export", tiny(tmp_path, "base", "gemma-2-9b", GEMMA + "2"), "--to", "safetensors", "-o", tmp_path / "base")
    wider = tiny(tmp_path, "wider", "gemma-2-9b",
                 "d: 64, ff: 128, layers: 2, heads: 8, kv_heads: 4, head_dim: 8, vocab: 300, "
                 "base_d: 32, base_ff: 64, base_heads: 4, base_kv_heads: 2", "hypercloning")
    result = run_tool("validate", wider, "--source", f"base={tmp_path / 'base'}")
    assert result.returncode == 2 and "`lm_head.weight`" in result.stderr, result.stderr


@pytest.mark.parametrize("config, sizes", [
    ("t5-11b", "d: 32, ff: 64, layers: 2, heads: 4, head_dim: 8, vocab: 64"),
    ("mamba-2.8b", "d: 32, layers: 2, vocab: 64"), ("mamba2-2.7b", "d: 64, layers: 2, vocab: 64"),
    ("bert-large", "d: 32, ff: 64, layers: 2, heads: 4, vocab: 64"), ("gpt2-xl", "d: 128, layers: 2, vocab: 64"),
    ("vit-l-16", "d: 32, ff: 64, layers: 2, heads: 4"), ("openelm-270m", ""),
    ("gpt-neox-20b", "d: 192, layers: 2, vocab: 64")])
def test_fresh_head_changes_only_heads(tmp_path, config, sizes):
    """Only heads change, whatever roles the config's initializers have."""
    run_ok("export", tiny(tmp_path, "base", config, sizes, more="seed: 1\n"), "--to", "safetensors", "-o",
           tmp_path / "base")
    fresh = tiny(tmp_path, "fresh", config, sizes, "fresh-head", "seed: 2\n")
    run_ok("export", fresh, "--to", "safetensors", "-o", tmp_path / "fresh", "--source", f"base={tmp_path / 'base'}")
    old, new = tensors_of(tmp_path / "base"), tensors_of(tmp_path / "fresh")
    changed = {name for name, value in new.items() if not torch.equal(value, old[name])}
    assert old.keys() == new.keys() and all(
        any(head in name for head in ("head", "embed_out", "classifier")) for name in changed), changed
