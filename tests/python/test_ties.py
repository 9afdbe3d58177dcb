"""`tie`: tensors that have the values of another."""

import json

import numpy as np
import pytest
from support import Json, Ok, Reassemble, Run, Tensor

SPEC = """
shardinit: 1
name: ties
dtype: bf16
mesh: {axes: {a: 2, b: 2}}
init: {base: {normal: {std: 0.02}}}
modules:
  head: {shape: [12, 8], init: base, shard: [b, a], tie: table}
  table: {shape: [12, 8], init: base, shard: [a], key: old.name}
  layers:
    repeat: {layer: 3}
    weight: {shape: [6, 4], init: {orthogonal: {gain: 2}}, fans: out_in, tie: layers.0.weight}
    bias: {shape: [4], init: {expr: "uniform() - i0"}}
  copies:
    repeat: {copy: 3}
    bias: {shape: [4], init: {expr: "uniform() - i0"}, tie: "layers.{copy}.bias"}
  ones: {shape: [4], init: ones}
  more_ones: {shape: [4], init: ones, tie: ones}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("ties")
    (where / "spec.yaml").write_text(SPEC)
    Ok("gen", where / "spec.yaml", "-o", where / "out")
    return where


def test_tied_tensors_have_the_values_of_the_other(folder):
    tensors = {path: words for path, (_, words) in Reassemble(folder / "out").items()}
    assert np.array_equal(tensors["head"], tensors["table"])
    for i in range(3):
        assert np.array_equal(tensors[f"layers.{i}.weight"], tensors["layers.0.weight"])
        assert np.array_equal(tensors[f"layers.{i}.bias"], tensors[f"copies.{i}.bias"])
    assert not np.array_equal(tensors["layers.0.bias"], tensors["layers.1.bias"])


def test_values_of_the_other_do_not_change(folder, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace(", tie: table", "").replace(", tie: layers.0.weight", ""))
    Ok("gen", spec, "-o", tmp_path / "out")
    for path in ("table", "layers.0.weight", "layers.1.bias"):
        assert np.array_equal(Tensor(tmp_path / "out", path), Tensor(folder / "out", path))


def test_what_is_tied_can_be_verified_resharded_and_explained(folder, tmp_path):
    Ok("verify", folder / "out", "--spec", folder / "spec.yaml")
    Ok("reshard", folder / "out", "-o", tmp_path / "other", "--mesh", "a=1,b=1")
    Ok("verify", tmp_path / "other")
    assert np.array_equal(Tensor(tmp_path / "other", "head"), Tensor(folder / "out", "table"))
    keys = {Json("explain", folder / "spec.yaml", path)["key"]["value"] for path in ("head", "table")}
    assert len(keys) == 1


def test_two_that_are_not_tied_may_not_share_numbers(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC + "  other: {shape: [12, 8], init: base, key: old.name}\n")
    result = Run("validate", spec)
    assert result.returncode == 2
    assert "`table` and `other` would be drawn from the same random stream" in result.stderr


def test_a_key_of_jax_is_that_of_the_tied(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: ties\ndtype: f32\nengine: jax_threefry\nmodules:\n"
                    "  a: {shape: [9], init: {normal: {std: 1}}, key: {jax: {seed: 3, fold_in: 2}}}\n"
                    "  b: {shape: [9], init: {normal: {std: 1}}, tie: a}\n")
    Ok("gen", spec, "-o", tmp_path / "out")
    Ok("verify", tmp_path / "out", "--spec", spec)
    assert np.array_equal(Tensor(tmp_path / "out", "a"), Tensor(tmp_path / "out", "b"))
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    assert plan["tensors"][0]["key"] == plan["tensors"][1]["key"]
