"""`tie`: tensors with the values of another tensor."""

import itertools
import json

import numpy as np
import pytest
from support import read_tensor, reassemble, run_json, run_ok, run_tool

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
    run_ok("gen", where / "spec.yaml", "-o", where / "out")
    return where


def test_tied_tensors_have_equal_values(folder):
    tensors = {path: words for path, (_, words) in reassemble(folder / "out").items()}
    assert np.array_equal(tensors["head"], tensors["table"])
    for i in range(3):
        assert np.array_equal(tensors[f"layers.{i}.weight"], tensors["layers.0.weight"])
        assert np.array_equal(tensors[f"layers.{i}.bias"], tensors[f"copies.{i}.bias"])
    assert not np.array_equal(tensors["layers.0.bias"], tensors["layers.1.bias"])


def test_ties_do_not_change_the_first_tensor(folder, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace(", tie: table", "").replace(", tie: layers.0.weight", ""))
    run_ok("gen", spec, "-o", tmp_path / "out")
    for path in ("table", "layers.0.weight", "layers.1.bias"):
        assert np.array_equal(read_tensor(tmp_path / "out", path), read_tensor(folder / "out", path))


def test_commands_work_with_tied_tensors(folder, tmp_path):
    run_ok("verify", folder / "out", "--spec", folder / "spec.yaml")
    run_ok("reshard", folder / "out", "-o", tmp_path / "other", "--mesh", "a=1,b=1")
    run_ok("verify", tmp_path / "other")
    assert np.array_equal(read_tensor(tmp_path / "other", "head"), read_tensor(folder / "out", "table"))
    keys = {run_json("explain", folder / "spec.yaml", path)["key"]["value"] for path in ("head", "table")}
    assert len(keys) == 1


def test_equal_keys_without_a_tie_are_rejected(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC + "  other: {shape: [12, 8], init: base, key: old.name}\n")
    result = run_tool("validate", spec)
    assert result.returncode == 2
    assert "`table` and `other` would be drawn from the same random stream" in result.stderr


@pytest.mark.parametrize("order", list(itertools.permutations(["a", "tied", "keyed"])), ids="-".join)
@pytest.mark.parametrize("others", ["", "first", "last"])
def test_ties_are_distinguished_from_equal_keys(tmp_path, order, others):
    """Only a tied tensor may share a stream; a tensor with an equal `key` is rejected. This holds in any order and next
    to other tied pairs."""
    keys = {"a": "", "tied": ", tie: a", "keyed": ", key: a"}
    lines = {path: f"  {path}: {{shape: [4], init: {{normal: {{std: 1}}}}{key}}}\n" for path, key in keys.items()}
    good = [f"  {path}: {{shape: [4], init: {{normal: {{std: 1}}}}, tie: b{number}}}\n"
            f"  b{number}: {{shape: [4], init: {{normal: {{std: 1}}}}}}\n"
            for number, path in enumerate(["x", "y", "z"])]
    for paths, is_good in ((order, False), ([path for path in order if path != "keyed"], True)):
        text = [lines[path] for path in paths]
        text = good + text if others == "first" else text + good if others == "last" else text
        (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: x\ndtype: f32\nmodules:\n" + "".join(text))
        result = run_tool("validate", tmp_path / "spec.yaml")
        assert result.returncode == (0 if is_good else 2), result.stderr
        assert result.stderr.count("would be drawn from the same random stream") == (0 if is_good else 1)
        assert is_good or "`keyed`" in result.stderr or "`a`" in result.stderr


@pytest.mark.parametrize("engine, key", [
    ("jax_threefry", "{jax: {seed: 3, fold_in: 2}}"),
    ("torch_cpu", "{torch: {position: 40}}")])
def test_first_tensor_of_a_tied_repeat_has_the_key(engine, key, tmp_path):
    head = f"shardinit: 1\nname: ties\ndtype: f32\nengine: {engine}\nmodules:\n"
    tensor = "{shape: [9], init: {uniform: {low: 0, high: 1}}"
    (tmp_path / "spec.yaml").write_text(
        f"{head}  layers:\n    repeat: {{i: 4}}\n    w: {{when: i > 0, {tensor[1:]}, tie: layers.1.w, key: {key}}}\n"
        f"  behind: {tensor}}}\n")
    (tmp_path / "alone.yaml").write_text(f"{head}  w: {tensor}, key: {key}}}\n  behind: {tensor}}}\n")
    for name in ("spec", "alone"):
        run_ok("gen", tmp_path / f"{name}.yaml", "-o", tmp_path / name)
        run_ok("verify", tmp_path / name, "--spec", tmp_path / f"{name}.yaml")
    for i in range(1, 4):
        assert np.array_equal(read_tensor(tmp_path / "spec", f"layers.{i}.w"), read_tensor(tmp_path / "alone", "w"))
    assert np.array_equal(read_tensor(tmp_path / "spec", "behind"), read_tensor(tmp_path / "alone", "behind"))
    # A tied tensor may not have the key of another tensor.
    (tmp_path / "spec.yaml").write_text(f"{head}  a: {tensor}}}\n  b: {tensor}, tie: a, key: {key}}}\n")
    result = run_tool("validate", tmp_path / "spec.yaml")
    assert result.returncode == 2 and "a tensor with `tie` uses the other tensor's `key`" in result.stderr


def test_tied_repeats_draw_once_in_pytorch_order(tmp_path):
    text = ("shardinit: 1\nname: ties\ndtype: f32\nengine: torch_cpu\nmodules:\n"
            "  before: {shape: [9], init: {uniform: {low: 0, high: 1}}}\n"
            "  layers:\n    repeat: {i: 2}\n    w: {shape: [9], init: {uniform: {low: 0, high: 1}}, tie: layers.0.w}\n")
    (tmp_path / "spec.yaml").write_text(text)
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "out")
    (tmp_path / "alone.yaml").write_text(text.replace("repeat: {i: 2}", "repeat: {i: 1}").replace(", tie: layers.0.w",
                                                                                                  ""))
    run_ok("gen", tmp_path / "alone.yaml", "-o", tmp_path / "alone")
    for i in range(2):
        assert np.array_equal(read_tensor(tmp_path / "out", f"layers.{i}.w"),
                              read_tensor(tmp_path / "alone", "layers.0.w"))


def test_tied_tensors_share_a_jax_key(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: ties\ndtype: f32\nengine: jax_threefry\nmodules:\n"
                    "  a: {shape: [9], init: {normal: {std: 1}}, key: {jax: {seed: 3, fold_in: 2}}}\n"
                    "  b: {shape: [9], init: {normal: {std: 1}}, tie: a}\n")
    run_ok("gen", spec, "-o", tmp_path / "out")
    run_ok("verify", tmp_path / "out", "--spec", spec)
    assert np.array_equal(read_tensor(tmp_path / "out", "a"), read_tensor(tmp_path / "out", "b"))
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    assert plan["tensors"][0]["key"] == plan["tensors"][1]["key"]


@pytest.mark.parametrize("layout", [[], ["--layout", "rows"]])
def test_convert_records_no_keys_of_tied_tensors(tmp_path, layout):
    (tmp_path / "spec.yaml").write_text(
        "shardinit: 1\nname: x\ndtype: f32\nmodules:\n"
        "  a: {shape: [4], init: {normal: {std: 1}}}\n"
        "  b: {shape: [4], init: {normal: {std: 2}}, key: old}\n"
        "  c: {shape: [4], init: {normal: {std: 1}}, tie: a}\n"
        "layouts: {rows: {all: {from: {concat: {axis: 0, of: [a, b, c]}}}}}\n")
    run_ok("export", tmp_path / "spec.yaml", "--to", "safetensors", "-o", tmp_path / "folder")
    run_ok("convert", tmp_path / "folder", "--spec", tmp_path / "spec.yaml", *layout, "--to", "hdf5", "-o",
           tmp_path / "out")
    plan = (tmp_path / "out/plan.json").read_text()
    assert '"key"' not in plan and plan.count('"source": {"source": "folder"') == 3
    run_ok("verify", tmp_path / "out")
