"""`shardinit diff` reports, without generating values, the differences that `digest` and `plan` show."""

import json

import pytest

from recorded import case_named, file_of
from support import ROOT, run_json, run_ok, run_tool

BEFORE, AFTER = file_of("diff", "diff", "before.yaml"), file_of("diff", "diff", "after.yaml")
LAYOUT = file_of("plan", "plan_layout")


def diff(*arguments):
    result = run_tool("diff", *arguments, "--json")
    found = json.loads(result.stdout)
    assert result.returncode == (0 if found["equal"] else 1), result.stderr
    return found


def change_kinds(found):
    """Maps each path to the changes of its tensor, or to "added" or "removed"."""
    return {t["path"]: {c["what"] for c in t["changes"]} if t["kind"] == "changed" else t["kind"] for t in found}


def digests(spec):
    return {t["path"]: (t["dtype"], t["shape"], t["sha256"]) for t in run_json("digest", spec)["tensors"]}


def planned_boxes(spec):
    boxes = {}
    for rank in range(8):
        for box in run_json("plan", spec, "--rank", rank, "--replicas", "full")["boxes"]:
            boxes[box["path"], rank] = (box["offset"], box["shape"])
    return boxes


def test_diff_agrees_with_digests_and_boxes():
    found = change_kinds(diff(BEFORE, AFTER)["tensors"])
    before, after = digests(BEFORE), digests(AFTER)
    assert {p for p, k in found.items() if k == "added"} == after.keys() - before.keys()
    assert {p for p, k in found.items() if k == "removed"} == before.keys() - after.keys()
    both = before.keys() & after.keys()
    boxes, other = planned_boxes(BEFORE), planned_boxes(AFTER)
    for path in both:
        changes = found.get(path, set())
        assert bool(changes & {"values", "dtype", "shape"}) == (before[path] != after[path]), path
        if before[path][1] == after[path][1]:
            assert ("sharding" in changes) == any(boxes[path, r] != other[path, r] for r in range(8)), path


def test_diff_compares_checkpoints_and_plans(tmp_path):
    run_ok("gen", BEFORE, "-o", tmp_path / "out")
    for other in [BEFORE, tmp_path / "out", tmp_path / "out/plan.json"]:
        assert diff(tmp_path / "out", other)["equal"]
    found = diff(tmp_path / "out/plan.json", AFTER)
    assert found == diff(BEFORE, AFTER)


def test_diff_compares_layouts(tmp_path):
    name = case_named("plan", "plan_layout").commands[0].split("--layout")[1].split()[0]
    run_ok("gen", LAYOUT, "-o", tmp_path / "out", "--layout", name)
    found = diff(LAYOUT, tmp_path / "out")
    assert [c["what"] for c in found["changes"]] == ["layout"]
    assert found["tensors"] == [] and found["stored"] != []
    assert diff(tmp_path / "out", tmp_path / "out")["equal"]
    assert found["equal_tensors"] == len(digests(LAYOUT))
    # A view does not declare a distribution.
    measured = {t["path"]: t for t in run_json("stats", tmp_path / "out")["tensors"]}
    views = [t["path"] for t in found["stored"] if t["kind"] == "added"]
    assert views and all(measured[path]["declared"] is None for path in views)


def test_diff_recognizes_a_config_json_by_late_fields(tmp_path):
    """A config.json whose telling fields come after 64 KiB of others is still recognized, not read as a damaged
    plan."""
    config = {"labels": {str(i): 20 * "x" for i in range(4000)},
              **json.loads(file_of("import", "import_config", "config.json").read_text())}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "no difference" in run_ok("diff", tmp_path / "config.json", tmp_path / "config.json").stdout


@pytest.mark.parametrize("arguments, text", [([BEFORE, ROOT / "golden"], "is not a checkpoint"),
                                             ([BEFORE, ROOT / "schemas/spec.schema.json"],
                                              "this is a JSON schema, not a spec")])
def test_diff_rejects_what_it_cannot_compare(arguments, text):
    result = run_tool("diff", *arguments)
    assert result.returncode in (2, 5) and text in result.stderr


EACH = """shardinit: 1
name: x
seed: 1
dtype: f32
mesh: {axes: {a: 2, b: 2}}
modules:
  w: {shape: [8, 8], init: {normal: {std: 1}}, shard: [a, b]}
  v: {shape: [8, 8], init: ones}
  u: {shape: [8, 8], init: {normal: {std: 2}}}
layouts:
  one: {t: {from: {transpose: {of: w}}}, v: {from: v, shard: [a]}, u: u}
  two: {t: {from: {transpose: {of: u}}}, v: {from: v, shard: [a]}, u: w}
  three: {t: w, u: u, x: {from: v, shard: [a]}}
"""
def changes_in(tensors, was, became):
    """Maps each path to all reported changes of its tensor, or to "added" or "removed"."""
    return {t["path"]: [(c["what"], c[was], c[became]) for c in t["changes"]] if t["kind"] == "changed" else t["kind"]
            for t in tensors}


NORMAL, WIDE = "normal mean 0 std 1", "normal mean 0 std 2"


@pytest.mark.parametrize("change, of_all, of_tensors", [
    ("name=y", [("name", "x", "y")], {}),
    ("seed=2", [("seed", "1", "2")], {"w": [("values", f"{NORMAL}, seed 1", f"{NORMAL}, seed 2")],
                                      "u": [("values", f"{WIDE}, seed 1", f"{WIDE}, seed 2")]}),
    ("engine=jax_threefry", [("engine", "philox4x32", "jax_threefry")],
     {"w": [("values", f"{NORMAL}, engine philox4x32", f"{NORMAL}, engine jax_threefry")],
      "u": [("values", f"{WIDE}, engine philox4x32", f"{WIDE}, engine jax_threefry")]}),
    ("mesh.axes={a: 4, b: 1}", [("mesh", "a=2, b=2", "a=4, b=1")],
     {"w": [("sharding", "[a, b] of a=2, b=2", "[a, b] of a=4, b=1")]}),
    ("mesh.axes.a=4", [("mesh", "a=2, b=2", "a=4, b=2")],
     {"w": [("sharding", "[a, b] of a=2, b=2", "[a, b] of a=4, b=2")],
      "v": [("sharding", "[-, -] of a=2, b=2", "[-, -] of a=4, b=2")],
      "u": [("sharding", "[-, -] of a=2, b=2", "[-, -] of a=4, b=2")]}),
    ("replicas=full", [("replicas", "dedupe", "full")], {}),
    ("modules.w.dtype=bf16", [], {"w": [("dtype", "f32", "bf16")]}),
    ("modules.w.kind=buffer", [], {"w": [("kind", "parameter", "buffer")]}),
    ("modules.w.shape=[8, 16]", [], {"w": [("shape", "[8, 8]", "[8, 16]")]}),
    ("modules.w.shard=[b, a]", [], {"w": [("sharding", "[a, b]", "[b, a]")]}),
    ("modules.w.key=k", [], {"w": [("values", f"{NORMAL}, key w", f"{NORMAL}, key k")]}),
    ("modules.w.init=ones", [], {"w": [("values", NORMAL, "constant 1")]}),
    ("modules.v.init=zeros", [], {"v": [("values", "constant 1", "constant 0")]}),
    ("modules.v.init={normal: {std: 1}}", [], {"v": [("values", "constant 1", NORMAL)]}),
])
def test_diff_reports_every_kind_of_change(tmp_path, change, of_all, of_tensors):
    """diff reports each kind of change in both directions, and nothing about the rest."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(EACH)
    run_ok("gen", spec, "-o", tmp_path / "a")
    run_ok("gen", spec, "-o", tmp_path / "b", "--set", change)
    sides = "before", "after"
    for arguments, (was, became) in [((spec, "--set", change), sides), ((tmp_path / "a", tmp_path / "b"), sides),
                                     ((tmp_path / "b", tmp_path / "a"), sides[::-1])]:
        found = diff(*arguments)
        assert [(c["what"], c[was], c[became]) for c in found["changes"]] == of_all and found["stored"] == []
        assert changes_in(found["tensors"], was, became) == of_tensors
        assert found["equal_tensors"] == 3 - len(of_tensors)


@pytest.mark.parametrize("engine, before, after, was, became", [
    ("torch_cpu", "{torch: {position: 4}}", "{torch: {position: 5}}", "position 4", "position 5"),
    ("torch_cpu", "{torch: {position: 4}}", "{torch: {position: 4, spare: 0}}", "position 4", "position 4, spare 0"),
    ("torch_cpu", "{torch: {position: 4, spare: 1}}", "{torch: {position: 4, spare: 0}}", "position 4, spare 1",
     "position 4, spare 0"),
    ("jax_threefry", "{jax: {seed: 1}}", "{jax: {seed: 2}}", "0000000100000000", "0000000200000000"),
    ("jax_threefry", "{jax: {seed: 1}}", "other", "0000000100000000", "other"),
])
def test_diff_prints_the_differing_part_of_a_key(tmp_path, engine, before, after, was, became):
    """diff prints the part that differs between two keys, so both sides of a change always read differently."""
    for name, key in ("before", before), ("after", after):
        (tmp_path / f"{name}.yaml").write_text(
            f"shardinit: 1\nname: x\ndtype: f32\nengine: {engine}\nmodules:\n"
            f"  w: {{shape: [3], init: {{normal: {{std: 1}}}}, key: {key}}}\n")
    found = diff(tmp_path / "before.yaml", tmp_path / "after.yaml")
    assert changes_in(found["tensors"], "before", "after") == {
        "w": [("values", f"{NORMAL}, key {was}", f"{NORMAL}, key {became}")]}


def test_diff_reports_every_kind_of_layout_change(tmp_path):
    (tmp_path / "spec.yaml").write_text(EACH)
    for layout in ["one", "two", "three"]:
        run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / layout, "--layout", layout)
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "none")
    w, u = "transpose axes=[1, 0] of w", "transpose axes=[1, 0] of u"
    cut, whole = "[a, b]", "[-, -]"
    for before, after, stored in [
        ("one", "two", {"t": [("view", w, u), ("sharding", "[b, a]", whole)],
                        "u": [("view", "u", "w"), ("sharding", whole, cut)]}),
        ("two", "three", {"t": [("view", u, "w"), ("sharding", whole, cut)],
                          "u": [("view", "w", "u"), ("sharding", cut, whole)], "v": "removed", "x": "added"}),
        ("none", "three", {"t": "added", "u": [("view", "as it is drawn", "u")], "v": "removed", "w": "removed",
                           "x": "added"}),
    ]:
        found = diff(tmp_path / before, tmp_path / after)
        assert found["changes"] == [{"what": "layout", "before": before, "after": after}] and found["tensors"] == []
        assert changes_in(found["stored"], "before", "after") == stored and found["equal_tensors"] == 3
        found = diff(tmp_path / after, tmp_path / before)
        turned = {"added": "removed", "removed": "added"}
        assert changes_in(found["stored"], "after", "before") == {
            path: turned.get(kind, kind) if isinstance(kind, str) else kind for path, kind in stored.items()}
        one = diff(tmp_path / before, tmp_path / after, "--only", "u")
        assert changes_in(one["stored"], "before", "after") == {"u": stored["u"]} and one["equal_tensors"] == 1


def test_views_made_only_of_buffers_are_buffers(tmp_path):
    """A view is a buffer if it is made only of buffers; padding does not count."""
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: x\ndtype: f32\nmodules:\n  w: {shape: [4, 4], init: ones}\n"
                    "  b: {shape: [4, 4], init: ones}\n  c: {shape: [4, 4], init: ones, kind: buffer}\nlayouts:\n"
                    "  all:\n"
                    "    padded: {from: {pad: {axis: 0, to: 6, of: b}}}\n"
                    "    both: {from: {stack: {axis: 0, of: [b, c]}}}\n"
                    "    mixed: {from: {concat: {axis: 0, of: [b, w]}}}\n    moved: {from: {transpose: {of: w}}}\n")
    run_ok("gen", spec, "-o", tmp_path / "a", "--layout", "all")
    run_ok("gen", spec, "-o", tmp_path / "b", "--layout", "all", "--set", "modules.b.kind=buffer")
    found = diff(tmp_path / "a", tmp_path / "b")
    became = [("kind", "parameter", "buffer")]
    assert changes_in(found["tensors"], "before", "after") == {"b": became}
    assert changes_in(found["stored"], "before", "after") == {"padded": became, "both": became}
    kinds_of = {path: run_json("explain", spec, path, "--layout", "all", "--set", "modules.b.kind=buffer").get("kind")
                for path in ["padded", "both", "mixed", "moved"]}
    assert kinds_of == {"padded": "buffer", "both": "buffer", "mixed": None, "moved": None}
