"""Parts of a plan's ranks: `gen --part` and `status --missing-parts`."""

import pytest
from support import run_json, run_ok, run_tool, tree_of

SPEC = """
shardinit: 1
name: parts
seed: 3
dtype: f32
mesh: {axes: {data: 4, tensor: 2}}
rules: [{rows: tensor}]
modules:
  a: {shape: [64, 32], axes: [rows, null], init: {normal: {std: 1}}}
  b: {shape: [7], init: ones}
"""


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path / "spec.yaml"


@pytest.mark.parametrize("replicas", ["dedupe", "full"])
@pytest.mark.parametrize("count", [1, 3, 8, 11])
def test_parts_together_are_one_run(spec, tmp_path, replicas, count):
    options = ["--replicas", replicas, "-o"]
    run_ok("gen", spec, *options, tmp_path / "whole")
    for part in reversed(range(count)):
        run_ok("gen", spec, *options, tmp_path / "parts", "--part", f"{part}/{count}")
        left = run_json("status", tmp_path / "parts", "--missing-parts", count)
        assert (left["missing_parts"] == "") == (left["missing_ranks"] == "")
        assert str(part) not in left["missing_parts"].replace("-", ",").split(",")
    assert tree_of(tmp_path / "parts") == tree_of(tmp_path / "whole")
    assert run_ok("status", tmp_path / "parts", "--missing-parts", count).stdout == "\n"


def test_missing_parts_are_those_to_run_again(spec, tmp_path):
    for part in (0, 2):
        run_ok("gen", spec, "--replicas", "full", "-o", tmp_path / "out", "--part", f"{part}/4")
    assert run_ok("status", tmp_path / "out", "--missing-parts", 4).stdout == "1,3\n"
    # Another number of parts is as good.
    assert run_ok("status", tmp_path / "out", "--missing-parts", 8).stdout == "2-3,6-7\n"
    assert run_ok("status", tmp_path / "out", "--missing-parts", 2).stdout == "0-1\n"


@pytest.mark.parametrize("part, message", [
    ("4/4", "parts count from 0"), ("9/4", "parts count from 0"), ("1", "is not a part"), ("1/", "is not a part"),
    ("-1/4", "is not a part"), ("0/0", "there cannot be 0 parts"), ("0/9000000", "there cannot be 9,000,000 parts"),
    ("1/4x", "is not a part"), ("/", "is not a part")])
def test_wrong_parts(spec, tmp_path, part, message):
    result = run_tool("gen", spec, "-o", tmp_path / "out", f"--part={part}")
    assert result.returncode == 2 and message in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_part_and_ranks_are_two_answers(spec, tmp_path):
    for other in (["--ranks", "0"], ["--devices", "0"]):
        result = run_tool("gen", spec, "-o", tmp_path / "out", "--part", "0/2", *other)
        assert result.returncode == 2 and "both say what to make" in result.stderr
    result = run_tool("status", tmp_path, "--missing-parts", "-1")
    assert result.returncode == 2 and "there cannot be" in result.stderr
