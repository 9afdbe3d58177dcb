"""`shardinit diff` says without generating what `digest` and `plan` say with."""

import json

import pytest

from support import ROOT, run_json, run_ok, run_tool

BEFORE, AFTER = ROOT / "golden/diff/before.yaml", ROOT / "golden/diff/after.yaml"
LAYOUT = ROOT / "golden/plan_layout/spec.yaml"


def diff(*arguments):
    result = run_tool("diff", *arguments, "--json")
    found = json.loads(result.stdout)
    assert result.returncode == (0 if found["equal"] else 1), result.stderr
    return found


def kinds(found):
    """Path → the changes of a tensor, or the kind if it is on one side only."""
    return {t["path"]: {c["what"] for c in t["changes"]} if t["kind"] == "changed" else t["kind"] for t in found}


def digests(spec):
    return {t["path"]: (t["dtype"], t["shape"], t["sha256"]) for t in run_json("digest", spec)["tensors"]}


def boxes_of(spec):
    boxes = {}
    for rank in range(8):
        for box in run_json("plan", spec, "--rank", rank, "--replicas", "full")["boxes"]:
            boxes[box["path"], rank] = (box["offset"], box["shape"])
    return boxes


def test_diff_is_what_digests_and_boxes_say():
    found = kinds(diff(BEFORE, AFTER)["tensors"])
    before, after = digests(BEFORE), digests(AFTER)
    assert {p for p, k in found.items() if k == "added"} == after.keys() - before.keys()
    assert {p for p, k in found.items() if k == "removed"} == before.keys() - after.keys()
    both = before.keys() & after.keys()
    boxes, other = boxes_of(BEFORE), boxes_of(AFTER)
    for path in both:
        changes = found.get(path, set())
        assert bool(changes & {"values", "dtype", "shape"}) == (before[path] != after[path]), path
        if before[path][1] == after[path][1]:
            assert ("sharding" in changes) == any(boxes[path, r] != other[path, r] for r in range(8)), path


def test_checkpoints_and_plans(tmp_path):
    run_ok("gen", BEFORE, "-o", tmp_path / "out")
    for other in [BEFORE, tmp_path / "out", tmp_path / "out/plan.json"]:
        assert diff(tmp_path / "out", other)["equal"]
    found = diff(tmp_path / "out/plan.json", AFTER)
    assert found == diff(BEFORE, AFTER)


def test_layouts(tmp_path):
    name = (ROOT / "golden/plan_layout/cmd").read_text().split("--layout")[1].split()[0]
    run_ok("gen", LAYOUT, "-o", tmp_path / "out", "--layout", name)
    found = diff(LAYOUT, tmp_path / "out")
    assert [c["what"] for c in found["changes"]] == ["layout"]
    assert found["tensors"] == [] and found["stored"] != []
    assert diff(tmp_path / "out", tmp_path / "out")["equal"]
    assert found["equal_tensors"] == len(digests(LAYOUT))
    # The stored tensor is a view, which declares no distribution of its own.
    measured = {t["path"]: t for t in run_json("stats", tmp_path / "out")["tensors"]}
    views = [t["path"] for t in found["stored"] if t["kind"] == "added"]
    assert views and all(measured[path]["declared"] is None for path in views)


def test_a_config_that_says_late_what_it_is(tmp_path):
    """Behind 64 KiB of other fields it was read as a damaged plan."""
    config = {"labels": {str(i): 20 * "x" for i in range(4000)}, **json.loads((ROOT / "golden/import_config/config.json").read_text())}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "no difference" in run_ok("diff", tmp_path / "config.json", tmp_path / "config.json").stdout


@pytest.mark.parametrize("arguments, text", [([BEFORE, ROOT / "golden"], "is not a checkpoint"),
                                             ([BEFORE, ROOT / "schemas/spec.schema.json"], "this is a JSON schema, not a spec")])
def test_what_is_nothing_to_compare(arguments, text):
    result = run_tool("diff", *arguments)
    assert result.returncode in (2, 5) and text in result.stderr
