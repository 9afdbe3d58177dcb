"""Tests how often reshard and export read each byte of a checkpoint, and that bytes read again are compared."""

import json
import pathlib
import re
import shutil

import numpy
import pytest

from changing import changing, counted
from support import run_ok, run_tool, tree_of


def traced(log):
    """Returns a command that writes the place of each read to `log`."""
    return ["strace", "-f", "-y", "-qq", "-s", "0", "-e", "trace=pread64", "-o", log]


def times_read(log, source):
    """Returns how often each byte was read, as an array [bytes] for each box, and checks that nothing else of rank
    files was read."""
    times = {path: numpy.zeros(path.stat().st_size, int) for path in source.glob("ranks/*.h5")}
    begun = {}  # thread → the file of a call, whose other arguments may come in a later line
    for line in log.read_text().splitlines():
        thread = line.split()[0]
        if file := re.search(r"pread64\(\d+<([^>]*)>", line):
            begun[thread] = pathlib.Path(file[1])
        if (place := re.search(r", (\d+), (\d+)\) += \d+$", line)) and begun[thread] in times:
            size, offset = map(int, place.groups())
            times[begun[thread]][offset:offset + size] += 1
    boxes = [times[path][box["file_offset"]:box["file_offset"] + box["bytes"]] for path in times
             for box in json.loads(path.with_suffix(".json").read_text())["boxes"]]
    assert sum(map(numpy.sum, times.values())) == sum(map(numpy.sum, boxes))
    return boxes


TENSORS = """
shardinit: 1
name: m
dtype: f32
mesh: {axes: {x: 8, y: 1}}
uneven: chunk
modules:
  rows: {shape: [1200, 400], shard: [x, y], init: {normal: {std: 1}}}
  columns: {shape: [400, 1200], shard: [y, x], init: {normal: {std: 1}}}
  middle: {shape: [3, 130, 33], shard: [null, x, y], dtype: bf16, init: {normal: {std: 1}}}
  whole: {shape: [], init: {zeros: {}}}
"""
ONCE = [["export", "--to", "dcp"], ["export", "--to", "zarr"], ["export", "--to", "safetensors"],
        *(["reshard", "--uneven", "chunk", "--mesh", mesh]
          for mesh in ("x=8,y=1", "x=4,y=1", "x=3,y=1", "x=16,y=1", "x=64,y=1", "x=1,y=8", "x=2,y=4", "x=5,y=3"))]


@pytest.mark.parametrize("memory", ["1M", "160M"])
@pytest.mark.parametrize("command", ONCE, ids=" ".join)
def test_reshard_and_export_read_each_byte_once(command, memory, tmp_path):
    (tmp_path / "spec.yaml").write_text(TENSORS)
    source = tmp_path.resolve() / "from"
    run_ok("gen", tmp_path / "spec.yaml", "-o", source)
    verb, *options = command
    run_ok(verb, source, *options, "--jobs", "1", "--memory", memory, "-o", tmp_path / "to",
           wrap=traced(tmp_path / "log"))
    if verb == "reshard":
        run_ok("gen", tmp_path / "spec.yaml", "--mesh", options[-1], "-o", tmp_path / "wanted")
        assert tree_of(tmp_path / "to") == tree_of(tmp_path / "wanted")
    for times in times_read(tmp_path / "log", source):
        assert times.min() == times.max() == 1


@pytest.mark.quick
def test_boxes_shared_by_many_ranks_are_read_again_and_compared(tmp_path):
    """If more ranks share a box than are open together, the others (6 of 70) read their part again and compare it."""
    (tmp_path / "spec.yaml").write_text(TENSORS)
    source = tmp_path.resolve() / "from"
    whole = ["--mesh", "x=1,y=70"]
    run_ok("gen", tmp_path / "spec.yaml", "-o", source)
    run_ok("gen", tmp_path / "spec.yaml", *whole, "-o", tmp_path / "wanted")
    wanted, pristine = tree_of(tmp_path / "wanted"), shutil.copytree(source, tmp_path / "pristine")
    run = ["reshard", source, "--uneven", "chunk", *whole, "--jobs", "1", "-o", tmp_path / "to"]
    run_ok(*run, wrap=traced(tmp_path / "log"))
    assert tree_of(tmp_path / "to") == wanted
    times = times_read(tmp_path / "log", source)
    total = sum(box.size for box in times)
    assert min(box.min() for box in times) == 1
    assert total < sum(box.sum() for box in times) < 4 * total  # Narrow columns are read with the bytes between them.
    shutil.rmtree(tmp_path / "to")
    run_ok(*run, env=changing(source, count=tmp_path / "reads"))
    shutil.rmtree(tmp_path / "to")
    reads, codes = counted(tmp_path / "reads")[0], set()
    box = json.loads((source / "ranks/rank-00003.json").read_text())["boxes"][0]
    for part in range(1, 12):
        at = box["file_offset"] + box["bytes"] * part // 12
        result = run_tool(*run, env=changing(source, f"{reads * part // 12} xor {source}/ranks/rank-00003.h5 {at}"))
        assert result.returncode in (0, 1, 3), result.stderr
        assert (tmp_path / "to").exists() == (result.returncode == 0)
        codes.add(result.returncode)
        if result.returncode == 0:
            assert tree_of(tmp_path / "to") == wanted
        for left in (tmp_path / "to", source, *tmp_path.glob(".to*")):
            shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(pristine, source)
    assert codes - {0}
