"""Known answers for the fast set: other tests compare these features with frameworks, this file needs none."""

import json
import re

import pytest

from support import run_ok, run_tool, tree_of

HEAD = "shardinit: 1\nname: known\ndtype: f32\n"
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_layer": 1, "n_head": 4,
        "vocab_size": 64, "n_positions": 16}
QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 32, "num_hidden_layers": 1,
         "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 64,
         "tie_word_embeddings": False, "max_position_embeddings": 16}


def command_output(command, text, tmp_path, *options, name="spec.yaml"):
    (tmp_path / name).write_text(text)
    return run_ok(command, tmp_path / name, *options).stdout


@pytest.mark.parametrize("given, path, shape", [
    ({**GPT2, "hidden_size": GPT2["n_embd"]}, "transformer.wte.weight", "[64, 32]"),
    ({**{k: v for k, v in GPT2.items() if k != "n_embd"}, "hidden_size": 48}, "transformer.wte.weight", "[64, 48]"),
    ({**QWEN2, "num_key_value_heads": None}, "model.layers.0.self_attn.k_proj.weight", "[32, 32]"),
    (QWEN2, "model.layers.0.self_attn.k_proj.weight", "[16, 32]")])
def test_config_fields_give_known_shapes(given, path, shape, tmp_path):
    text = command_output("explain", json.dumps(given), tmp_path, path, name="config.json")
    assert re.search(rf"^shape +{re.escape(shape)}", text, re.M), text


def test_contradictory_aliases_of_a_field_are_rejected(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**GPT2, "hidden_size": 48}))
    result = run_tool("plan", tmp_path / "config.json")
    assert result.returncode == 2 and "`n_embd` is `32`, but `hidden_size`" in result.stderr


def test_major_axis_of_a_dimension_comes_first(tmp_path):
    text = command_output("program", HEAD + "mesh: {axes: {a: 2, b: 2}}\nmodules:\n"
                   "  w: {shape: [8], init: {normal: {std: 1}}, shard: [[b, a]]}\n", tmp_path, "--annotate", "sdy")
    assert re.search(r'#sdy\.sharding<@mesh, \[\{"b", "a"\}\]>', text), text


def test_integers_above_2_to_the_53_are_exact(tmp_path):
    text = command_output("graph", HEAD + "vars: {a: 9007199254740993}\nmodules:\n"
                   "  here: {shape: [1], init: zeros, when: a > 9007199254740992}\n"
                   "  gone: {shape: [1], init: zeros, when: a == 9007199254740992}\n", tmp_path)
    assert "here" in text and "gone" not in text


def test_first_matching_parameter_group_wins(tmp_path):
    """A parameter belongs to the first group with a matching pattern, so both orders of patterns write the same
    files."""
    (tmp_path / "spec.yaml").write_text(HEAD + "modules:\n  a: {shape: [4], init: zeros}\n"
                                               "  b: {shape: [4], init: zeros}\n")

    def exported(name, first, second):
        groups = f"{{adamw: [{{params: [{first}], lr: 1}}, {{params: [{second}], lr: 2}}]}}"
        run_ok("export", tmp_path / "spec.yaml", "--to", "dcp", "-o", tmp_path / name, "--optimizer", groups)
        return {path: each for path, each in tree_of(tmp_path / name).items() if not path.endswith(".json")}

    assert exported("pattern", "a", "'*'") == exported("name", "a", "b") != exported("other", "b", "a")
