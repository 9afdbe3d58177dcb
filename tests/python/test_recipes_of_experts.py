"""Recipes that turn a dense model into a model with experts; Transformers computes the results."""

import os

import numpy as np
import pytest
from clients import client_of
from grown_models import TRAINED, logits_of, make, tensors_of, write
from support import ROOT, run_ok, run_tool

torch = client_of("torch")
transformers = client_of("transformers")

MIXTRAL = {"config": "mixtral-8x7b", "layers": 2}


@pytest.fixture
def mistral(tmp_path):
    make(tmp_path, "base", [], layers=2, config="mistral-7b-v0.3", more=TRAINED)
    return tmp_path / "base"


def test_sparse_upcycling_turns_mistral_into_mixtral(tmp_path, mistral):
    make(tmp_path, "moe", ["recipes/sparse-upcycling"], variables=", router_std: 0", source=mistral, **MIXTRAL)
    for dtype in (torch.float32, torch.bfloat16):
        (dense, before), (model, after) = logits_of(mistral, dtype), logits_of(tmp_path / "moe", dtype)
        assert type(model).__name__ == "MixtralForCausalLM" and torch.equal(before, after)
    for layer, of in zip(model.model.layers, dense.model.layers):
        both = torch.cat([of.mlp.gate_proj.weight, of.mlp.up_proj.weight])
        assert all(torch.equal(expert, both) for expert in layer.mlp.experts.gate_up_proj)
        assert all(torch.equal(expert, of.mlp.down_proj.weight) for expert in layer.mlp.experts.down_proj)
    # A random router sums the same outputs with rounded weights.
    make(tmp_path, "random", ["recipes/sparse-upcycling"], variables=", router_std: 0.5", source=mistral, **MIXTRAL)
    _, after = logits_of(tmp_path / "random")
    assert (after - logits_of(mistral)[1]).abs().max() < 1e-6 * after.abs().max()


def test_sparse_upcycling_noise_makes_experts_differ(tmp_path, mistral):
    make(tmp_path, "moe", ["recipes/sparse-upcycling"], variables=", noise: 0.01", source=mistral, **MIXTRAL)
    dense, made = tensors_of(mistral), tensors_of(tmp_path / "moe")
    for name, apart in ((name, made[f"model.layers.1.mlp.experts.{name}"].double() - old)
                        for name, old in (("down_proj", dense["model.layers.1.mlp.down_proj.weight"].double()),
                                          ("gate_up_proj", torch.cat([dense[f"model.layers.1.mlp.{part}_proj.weight"]
                                                                      for part in ("gate", "up")]).double()))):
        assert 0.009 < apart.std() < 0.011 and apart.mean().abs() < 5e-4, name
        assert len({tuple(expert.ravel()[:4].tolist()) for expert in apart}) == 8


def test_drop_upcycling_redraws_the_same_units_of_all_matrices(tmp_path, mistral):
    spec = make(tmp_path, "moe", ["recipes/drop-upcycling"], variables=", share: 0.25, redrawn_spread: 3",
                source=mistral, **MIXTRAL)
    dense, made = tensors_of(mistral), tensors_of(tmp_path / "moe")
    redrawn, values = [], []
    for layer in range(2):
        gate, up, down = (dense[f"model.layers.{layer}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        for gate_up, own_down in zip(made[f"model.layers.{layer}.mlp.experts.gate_up_proj"],
                                     made[f"model.layers.{layer}.mlp.experts.down_proj"]):
            apart = [(gate_up[:64] != gate).T, (gate_up[64:] != up).T, own_down != down]
            # A unit is redrawn in all of its elements or in none.
            assert all(torch.equal(each.all(0), each.any(0)) for each in apart)
            units = apart[0].all(0)
            assert all(torch.equal(units, each.all(0)) for each in apart)
            redrawn.append(units.tolist())
            values += [gate_up[:64][units].ravel(), gate_up[64:][units].ravel(), own_down[:, units].ravel()]
    redrawn, values = np.array(redrawn), torch.cat(values)
    assert (redrawn.reshape(16, 4, 16).sum(2) == 4).all()  # of each 16
    assert len({tuple(units) for units in redrawn}) == 16
    assert 0.29 < values.std() < 0.31 and values.mean().abs() < 0.01
    digests = {run_ok("digest", spec, "--source", f"base={mistral}", "--mesh", mesh).stdout
               for mesh in ("fsdp=1,expert=1,tensor=1", "fsdp=2,expert=2,tensor=2", "fsdp=1,expert=8,tensor=1")}
    assert len(digests) == 1
    result = run_tool("validate", spec, "--source", f"base={mistral}", "--set", "vars.share=0.3")
    assert result.returncode == 2 and "the share is not a number of 16 hidden units: `share` is 0.3" in result.stderr


@pytest.mark.parametrize("normalized", [True, False])
def test_upcycling_turns_qwen3_into_qwen3_moe(tmp_path, normalized):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 8,
             "vocab_size": 300, "tie_word_embeddings": False, "pad_token_id": None, "bos_token_id": None,
             "eos_token_id": None}
    torch.manual_seed(3)
    dense = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(intermediate_size=64, **sizes))
    for tensor in dense.parameters():
        torch.nn.init.normal_(tensor, float(tensor.dim() == 1), 0.1)
    dense.save_pretrained(tmp_path / "base")
    transformers.Qwen3MoeConfig(intermediate_size=64, moe_intermediate_size=64, num_experts=8, num_experts_per_tok=2,
                                norm_topk_prob=normalized, **sizes).save_pretrained(tmp_path / "moe-config")
    recipe = os.path.relpath(ROOT / "configs/recipes/sparse-upcycling.yaml", tmp_path)
    for name, scale in (("moe", 1 if normalized else 4), ("wrong", 1)):
        (tmp_path / f"{name}.yaml").write_text(
            f"shardinit: 1\ninclude: [moe-config/config.json, {recipe}]\nname: moe\ndtype: f32\n"
            f"vars: {{router_std: 0, down_scale: {scale}}}\nsources: {{base: {{path: base}}}}\n")
        run_ok("export", tmp_path / f"{name}.yaml", "--to", "safetensors", "-o", tmp_path / name)
    for dtype in (torch.float32, torch.bfloat16):
        (_, before), (moe, after) = (logits_of(tmp_path / name, dtype) for name in ("base", "moe"))
        assert type(moe).__name__ == "Qwen3MoeForCausalLM" and torch.equal(before, after)
    # Without the factor, a token's experts sum to 2 / 8 of the MLP.
    assert torch.equal(before, logits_of(tmp_path / "wrong", dtype)[1]) == normalized


@pytest.mark.parametrize("recipe", ["sparse-upcycling", "drop-upcycling"])
def test_upcycling_rejects_other_sizes_than_the_dense_model(tmp_path, mistral, recipe):
    made = [f"recipes/{recipe}"]
    for change, message in (("ff: 96", "`model.layers.0.mlp.gate_proj.weight` as [64, 32], not [96, 32]"),
                            ("d: 64", "`model.layers.0.mlp.gate_proj.weight` as [64, 32], not [64, 64]"),
                            ("layers: 3", "has 2 tensors `model.layers.*.mlp.gate_proj.weight`, not 3")):
        spec = write(tmp_path, "wrong", made, **MIXTRAL)
        result = run_tool("validate", spec, "--source", f"base={mistral}", "--set", "vars." + change.replace(": ", "="))
        assert result.returncode == 2 and message in result.stderr, result.stderr
        assert "configs/recipes/sparse-upcycling.yaml:" in result.stderr and "set these to the model's values" in result.stderr
