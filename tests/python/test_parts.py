"""Parts of a plan's ranks and of an export's files: `--part` of each command, and `status --missing-parts`."""

import itertools
import json
import random
import shutil

import pytest
from stopping import Stopped
from support import OF_ANY, run_json, run_ok, run_tool, tree_of

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
def test_all_parts_together_equal_one_run(spec, tmp_path, replicas, count):
    options = ["--replicas", replicas, "-o"]
    run_ok("gen", spec, *options, tmp_path / "whole")
    for part in reversed(range(count)):
        run_ok("gen", spec, *options, tmp_path / "parts", "--part", f"{part}/{count}")
        left = run_json("status", tmp_path / "parts", "--missing-parts", count)
        assert (left["missing_parts"] == "") == (left["missing_ranks"] == "")
        assert str(part) not in left["missing_parts"].replace("-", ",").split(",")
    assert tree_of(tmp_path / "parts") == tree_of(tmp_path / "whole")
    assert run_ok("status", tmp_path / "parts", "--missing-parts", count).stdout == "\n"


def test_status_lists_missing_parts(spec, tmp_path):
    for part in (0, 2):
        run_ok("gen", spec, "--replicas", "full", "-o", tmp_path / "out", "--part", f"{part}/4")
    assert run_ok("status", tmp_path / "out", "--missing-parts", 4).stdout == "1,3\n"
    # Any other number of parts works too.
    assert run_ok("status", tmp_path / "out", "--missing-parts", 8).stdout == "2-3,6-7\n"
    assert run_ok("status", tmp_path / "out", "--missing-parts", 2).stdout == "0-1\n"


@pytest.mark.parametrize("part, message", [
    ("4/4", "parts count from 0"), ("9/4", "parts count from 0"), ("1", "is not a part"), ("1/", "is not a part"),
    ("-1/4", "is not a part"), ("0/0", "there cannot be 0 parts"), ("0/9000000", "there cannot be 9,000,000 parts"),
    ("1/4x", "is not a part"), ("/", "is not a part")])
def test_invalid_parts_are_rejected(spec, tmp_path, part, message):
    result = run_tool("gen", spec, "-o", tmp_path / "out", f"--part={part}")
    assert result.returncode == 2 and message in result.stderr
    assert not (tmp_path / "out").exists()


def test_part_conflicts_with_ranks_and_devices(spec, tmp_path):
    for other in (["--ranks", "0"], ["--devices", "0"]):
        result = run_tool("gen", spec, "-o", tmp_path / "out", "--part", "0/2", *other)
        assert result.returncode == 2 and "both select what to write" in result.stderr
    result = run_tool("status", tmp_path, "--missing-parts", "-1")
    assert result.returncode == 2 and "there cannot be" in result.stderr


# Unless all replicas are written, only some ranks store a part of `a`. The mesh places replicas next to each other or
# far apart.
REPLICATED = """
shardinit: 1
name: replicated
dtype: f32
uneven: chunk
mesh: {axes: {AXES}}
rules: [{rows: shard}]
modules:
  a: {shape: [83, 32], axes: [rows, null], init: {normal: {std: 1}}}
  b: {shape: [1000], init: ones, dtype: f64}
  c: {shape: [5, 3], axes: [null, rows], init: zeros}
"""


def to_ranks(text):
    return [rank for each in text.split(",") if text
            for rank in range(int(each.split("-")[0]), int(each.split("-")[-1]) + 1)]


@pytest.mark.parametrize("replicas", ["dedupe", "full"])
@pytest.mark.parametrize("axes",
                         ["replica: 4, shard: 4", "shard: 4, replica: 4", "replica: 2, shard: 3, other: 2",
                          "shard: 13"])
def test_parts_cover_all_ranks_and_are_balanced(tmp_path, axes, replicas):
    """`plan --part` lists the ranks that `gen --part` makes, with the bytes in their receipts."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(REPLICATED.replace("AXES", axes))
    run_ok("gen", spec, "-o", tmp_path / "whole", "--replicas", replicas)
    stored = [sum(box["bytes"] for box in json.loads(f.read_text())["boxes"])
              for f in sorted((tmp_path / "whole/ranks").glob("*.json"))]
    for count in range(1, 10):
        parts = [run_json("plan", spec, "--replicas", replicas, "--part", f"{i}/{count}")["part"] for i in range(count)]
        ranks = [to_ranks(part["ranks"]) for part in parts]
        assert list(itertools.chain(*ranks)) == list(range(len(stored)))
        assert [part["rank_count"] for part in parts] == list(map(len, ranks))
        loads = [sum(stored[rank] for rank in each) for each in ranks]
        assert [part["bytes"] for part in parts] == loads
        assert max(loads) - sum(loads) / count <= max(stored), (count, loads)
    # Consecutive jobs make the same ranks, each with another number of parts.
    draw = random.Random(f"{axes} {replicas}")
    while not (tmp_path / "out/manifest.json").exists():
        count = draw.randint(1, 9)
        part = draw.randrange(count)
        made = run_json("gen", spec, "--replicas", replicas, "-o", tmp_path / "out", "--part", f"{part}/{count}")
        ranks = to_ranks(run_json("plan", spec, "--replicas", replicas, "--part", f"{part}/{count}")["part"]["ranks"])
        assert made["ranks_written"] + made["ranks_skipped"] == len(ranks)
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "whole")


def made_in_parts(folder, draw, *command):
    """Runs random parts of random counts until the folder has its final name."""
    for _ in range(200):
        count = draw.randint(1, 9)
        run_ok(*command, "-o", folder, "--part", f"{draw.randrange(count)}/{count}")
        if folder.exists():
            return
    raise AssertionError("it is never complete")


OPTIONS = {"safetensors": ["--max-shard-size", "1000"]}


@pytest.mark.parametrize("form", OF_ANY)
@pytest.mark.parametrize("source", ["spec", "folder"])
def test_export_in_parts_equals_one_run(spec, tmp_path, form, source):
    if source == "folder":
        run_ok("gen", spec, "-o", tmp_path / "checkpoint")
    command = ["export", spec if source == "spec" else tmp_path / "checkpoint", "--to", form, *OPTIONS.get(form, [])]
    run_ok(*command, "-o", tmp_path / "whole")
    for count in (1, 3, 11):
        out = tmp_path / f"out{count}"
        for part in reversed(range(count)):
            assert not out.exists() or part < count - 1
            run_ok(*command, "-o", out, "--part", f"{part}/{count}")
        assert tree_of(out) == tree_of(tmp_path / "whole")
    made_in_parts(tmp_path / "mixed", random.Random(form), *command)
    assert tree_of(tmp_path / "mixed") == tree_of(tmp_path / "whole")
    assert sorted(p.name for p in tmp_path.iterdir() if ".parts" in p.name) == []
    run_ok("verify", tmp_path / "mixed")


def test_export_parts_are_balanced_by_bytes(tmp_path):
    """Parts are cut from files, so they are balanced even if one rank would make all files."""
    (tmp_path / "spec.yaml").write_text(SPEC.replace("{data: 4, tensor: 2}", "{data: 1}").replace("[{rows: tensor}]",
                                                                                                  "[]").replace(
        "  a: {shape: [64, 32], axes: [rows, null]", "  l:\n    repeat: {i: 40}\n    a: {shape: [64, 32]"))
    command = ["export", tmp_path / "spec.yaml", "--to", "safetensors", "--max-shard-size", "8192"]
    run_ok(*command, "-o", tmp_path / "whole")
    sizes = [f.stat().st_size for f in (tmp_path / "whole").glob("*.safetensors")]
    assert len(sizes) > 30
    made, files = [], set()
    for part in range(7):
        run_ok(*command, "-o", tmp_path / "out", "--part", f"{part}/7")
        there = {f.name: f.stat().st_size for f in tmp_path.glob("out*/**/*.safetensors")}
        made.append(sum(size for name, size in there.items() if name not in files))
        files = set(there)
    assert sum(made) == sum(sizes) and max(made) - sum(sizes) / 7 <= max(sizes), made
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "whole")


def test_reshard_in_parts_equals_one_run(spec, tmp_path):
    run_ok("gen", spec, "-o", tmp_path / "checkpoint")
    for mesh in ("data=2,tensor=4", "data=1,tensor=1"):
        command = ["reshard", tmp_path / "checkpoint", "--mesh", mesh]
        run_ok(*command, "-o", tmp_path / "whole")
        for count in (1, 3, 11):
            for part in range(count):
                run_ok(*command, "-o", tmp_path / "out", "--part", f"{part}/{count}")
            assert tree_of(tmp_path / "out") == tree_of(tmp_path / "whole")
            shutil.rmtree(tmp_path / "out")
        made_in_parts(tmp_path / "out", random.Random(mesh), *command)
        assert tree_of(tmp_path / "out") == tree_of(tmp_path / "whole")
        shutil.rmtree(tmp_path / "out")
        shutil.rmtree(tmp_path / "whole")
    report = run_json("reshard", tmp_path / "checkpoint", "--mesh", "data=2,tensor=1", "-o", tmp_path / "out",
                      "--ranks", "1")
    assert not report["complete"] and report["ranks_written"] == 1 and not (tmp_path / "out").exists()
    assert run_json("reshard", tmp_path / "checkpoint", "--mesh", "data=2,tensor=1", "-o", tmp_path / "out", "--ranks",
                    "0")["complete"]
    run_ok("verify", tmp_path / "out")


@pytest.mark.parametrize("command", ["export", "reshard"])
def test_parts_with_other_values_are_rejected(spec, tmp_path, command):
    for seed in (3, 4):
        run_ok("gen", spec, "-o", tmp_path / f"seed{seed}", "--set", f"seed={seed}")
    options = {"export": ["--to", "dcp"], "reshard": ["--mesh", "data=2,tensor=2"]}[command]
    run_ok(command, tmp_path / "seed3", *options, "-o", tmp_path / "out", "--part", "0/2")
    before = tree_of(tmp_path / "out.parts")
    result = run_tool(command, tmp_path / "seed4", *options, "-o", tmp_path / "out", "--part", "1/2")
    assert result.returncode == 4 and "was started from another source, or with other options" in result.stderr
    assert tree_of(tmp_path / "out.parts") == before and not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["gen", "export", "reshard", "convert", "plan"])
def test_parts_are_counted_from_0(spec, tmp_path, command):
    run_ok("gen", spec, "-o", tmp_path / "checkpoint")
    words = {"gen": ["gen", spec], "export": ["export", spec, "--to", "dcp"], "plan": ["plan", spec],
             "reshard": ["reshard", tmp_path / "checkpoint"],
             "convert": ["convert", tmp_path / "checkpoint", "--to", "dcp"]}[command]
    words += [] if command == "plan" else ["-o", tmp_path / "out"]
    result = run_tool(*words, "--part", "4/4")
    assert result.returncode == 2 and "parts count from 0" in result.stderr
    assert not list(tmp_path.glob("out*"))
    result = run_ok(*words, "--part", "0/100")
    assert "unfinished" in result.stdout or "no ranks" in result.stdout


@pytest.mark.parametrize("command", ["export spec.yaml --to zarr", "reshard source"])
def test_a_folder_completed_meanwhile_is_not_restarted(tmp_path, command):
    """A folder is not begun again if another run completes it after this run looks for it and before it begins its
    own."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    run_ok("gen", "spec.yaml", "-o", "source", cwd=tmp_path)
    words = [*command.split(), "-o", "out", "--ranks", "0-7"]
    first = Stopped(tmp_path, "mkdir", f"{tmp_path}/out.parts", *words, cwd=tmp_path)
    run_ok(*words, cwd=tmp_path)
    good = tree_of(tmp_path / "out")
    status, stdout, stderr = first.go()
    assert status == 0 and tree_of(tmp_path / "out") == good, (status, stdout, stderr)
    assert not (tmp_path / "out.parts").exists(), stdout + stderr


def test_export_rejects_a_receipt_without_a_file(tmp_path):
    # A receipt lists several files if there are more than 1,024.
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: m\ndtype: u8\n"
                                        "modules: {h: {repeat: {i: 2100}, w: {shape: [1], init: zeros}}}\n")
    command = ["export", tmp_path / "spec.yaml", "--to", "zarr", "-o", tmp_path / "out"]
    run_ok(*command, "--part", "0/2")
    receipts = {path: json.loads(path.read_text()) for path in (tmp_path / "out.parts/notes").iterdir()}
    path, files = next((path, files) for path, files in receipts.items() if len(files) > 1)
    first = files[0]
    lacking = [{key: value for key, value in first.items() if key != lost} for lost in ("file", "digests", "crcs")]
    other = next(each["file"] for each_path, others in receipts.items() if each_path != path for each in others)
    for damaged, why in (
            (files[1:], ""), ([files[1], *files[1:]], ""),  # Listing a file twice does not replace another.
            ([*files, first], ""), ([{**first, "file": 2100}, *files[1:]], ""),
            ([{**first, "file": other}, *files[1:]], ""), ([{**first, "digests": []}, *files[1:]], ""),
            ([{**first, "digests": first["digests"] * 2}, *files[1:]], ""),
            ([{**first, "crcs": [0, 0]}, *files[1:]], ""),
            *(([lack, *files[1:]], f"key '{key}' not found") for lack,
              key in zip(lacking, ("file", "digests", "crcs"))),
            ([{**first, "crcs": [2**32]}, *files[1:]],
             "the value must be a whole number from 0 to 4294967295, not 4294967296"),
            ([{**first, "file": "x"}, *files[1:]],
             "the value must be a whole number from 0 to 18446744073709551615, not string"),
            ([{**first, "digests": [5]}, *files[1:]], "type must be string, but is number"),
            ([[], *files[1:]], "cannot use at() with array")):
        path.write_text(json.dumps(damaged))
        result = run_tool(*command, "--part", "1/2")
        assert result.returncode == 5, result
        shown = f"error: `{path}` is damaged" + (f": {why}" if why else "\n  hint: remove it\n")
        assert shown in result.stderr and result.stderr.endswith("\n  hint: remove it\n"), (why, result)
        assert not (tmp_path / "out").exists()
    path.write_text(json.dumps(files))
    run_ok(*command, "--part", "1/2")
    assert (tmp_path / "out").exists()


def test_export_rewrites_a_truncated_file(tmp_path):
    """A truncated file is made again even if its receipt records the complete file."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    command = ["export", tmp_path / "spec.yaml", "--to", "dcp", "-o"]
    run_ok(*command, tmp_path / "whole")
    run_ok(*command, tmp_path / "out", "--part", "0/2")
    file = sorted((tmp_path / "out.parts/files").glob("*.distcp"))[0]
    file.write_bytes(file.read_bytes()[:-1])
    run_ok(*command, tmp_path / "out", "--part", "1/2")
    assert not (tmp_path / "out").exists()
    run_ok(*command, tmp_path / "out", "--part", "0/2")
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "whole")
