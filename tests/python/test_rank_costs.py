"""What a rank costs the disk and the file system. strace counts the calls, so that what is linear stays linear."""

import collections
import re
import sys

import pytest

from support import run_json, run_ok, run_tool, tree_of

SPEC = """
shardinit: 1
name: costs
dtype: f32
mesh: {{axes: {{a: {ranks}}}}}
modules:
  w: {{shape: [{ranks}, 16], init: {{normal: {{std: 1}}}}, shard: [a, null]}}
  v: {{shape: [{ranks}, 3], init: ones, shard: [a, null]}}
"""
KINDS = {"renames": ["rename", "renameat", "renameat2", "link", "linkat"], "data": ["fdatasync"], "folders": ["fsync"],
         "opens": ["open", "openat", "openat2"],
         "stats": ["stat", "lstat", "fstat", "newfstatat", "fstatat64", "statx", "access", "faccessat", "faccessat2"]}
FEW, MANY = 8, 40


@pytest.fixture
def spec(tmp_path):
    def make(ranks):
        path = tmp_path / f"spec{ranks}.yaml"
        path.write_text(SPEC.format(ranks=ranks))
        return path
    return make


@pytest.fixture
def count(tmp_path):
    """Runs a command and returns how many calls of each kind it makes."""
    def run(*arguments):
        log = tmp_path / "strace.log"
        calls = ",".join(f"?{call}" for names in KINDS.values() for call in names)
        jobs = ["--jobs", 1] if arguments[0] in ("gen", "verify") else []
        run_ok(*arguments, *jobs, wrap=["strace", "-f", "-qq", "-o", log, "-e", f"trace={calls}"])
        seen = collections.Counter(re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.M))
        return {kind: sum(seen[call] for call in names) for kind, names in KINDS.items()}
    return run


def each(more, fewer):
    """The calls of each further rank, which must be the same for all of them."""
    assert all((more[kind] - fewer[kind]) % (MANY - FEW) == 0 for kind in KINDS), (more, fewer)
    return {kind: (more[kind] - fewer[kind]) // (MANY - FEW) for kind in KINDS}


def test_a_fresh_rank(spec, count, tmp_path):
    """A comment at RankWriter::Commit() says what each of them is for."""
    few, many = (count("gen", spec(n), "-o", tmp_path / f"{n}") for n in (FEW, MANY))
    cost = each(many, few)
    assert {kind: cost[kind] for kind in ("renames", "data", "folders")} == {"renames": 2, "data": 2, "folders": 1}
    # Both files, the first past the cache, too; the receipt, which is read at the end.
    assert cost["opens"] == 4 and cost["stats"] <= 8


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_a_rank_alone(order, spec, count, tmp_path):
    """An array job of single ranks is not quadratic: all but the last look at no other rank's files but its
    neighbours' names."""
    costs, last = [], []
    for n in (FEW, MANY):
        out = tmp_path / f"{n}"
        others, one, missing = (f"0-{n - 3}", n - 2, n - 1) if order == "ascending" else (f"2-{n - 1}", 1, 0)
        run_ok("gen", spec(n), "-o", out, "--ranks", others)
        costs.append(count("gen", spec(n), "-o", out, "--ranks", one))
        assert run_json("status", out)["missing_ranks"] == str(missing)
        last.append(count("gen", spec(n), "-o", out, "--ranks", missing))
        assert run_json("status", out)["complete"]
        whole = tmp_path / f"whole{n}"
        run_ok("gen", spec(n), "-o", whole)
        assert tree_of(out) == tree_of(whole)
        run_ok("verify", out)
    assert each(costs[1], costs[0]) == {"renames": 0, "data": 0, "folders": 0, "opens": 0, "stats": 0}
    assert costs[0]["renames"] == costs[0]["data"] == 2 and costs[0]["folders"] <= 4
    assert each(last[1], last[0]) == {"renames": 0, "data": 0, "folders": 0, "opens": 1, "stats": 2}


def test_a_damaged_receipt_of_another_rank(spec, tmp_path):
    """A run of one rank that makes nothing believes the manifest. One that makes its rank, or meets no manifest, reads the
    receipts of the others, and finalizes nothing."""
    out = tmp_path / "out"
    run_ok("gen", spec(FEW), "-o", out)
    good = tree_of(out)
    receipt = out / "ranks/rank-00002.json"
    receipt.write_text(receipt.read_text().replace("path", "paths", 1))
    for name in ["ranks/rank-00005.h5", "ranks/rank-00005.json"]:
        (out / name).unlink()
    for remove_manifest, state in [(False, "unfinished"), (False, "complete"), (True, "unfinished")]:
        if remove_manifest:
            (out / "manifest.json").unlink()
        result = run_ok("gen", spec(FEW), "-o", out, "--ranks", 5)
        assert state in result.stdout
        assert (out / "manifest.json").exists() != remove_manifest
        assert run_json("status", out)["missing_ranks"] == "2"
    run_ok("gen", spec(FEW), "-o", out)
    assert tree_of(out) == good


@pytest.mark.parametrize("command, opens, stats",
                         [("gen", 1, 2), ("status", 1, 2), ("finalize", 1, 2), ("verify", 2, 2)])
def test_a_rank_that_is_there(command, opens, stats, spec, count, tmp_path):
    costs = []
    for n in (FEW, MANY):
        out = tmp_path / f"{n}"
        run_ok("gen", spec(n), "-o", out)
        costs.append(count(*([command, spec(n), "-o", out] if command == "gen" else [command, out])))
    assert each(costs[1], costs[0]) == {"renames": 0, "data": 0, "folders": 0, "opens": opens, "stats": stats}


# A process begins with the peak of the one that starts it, so a small one starts the command.
START = """
import os, sys
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])
_, status, usage = os.wait4(child, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def peak_of(*arguments):
    """The peak of a command's memory, in bytes."""
    return 1024 * int(run_ok(*arguments, wrap=[sys.executable, "-SEc", START]).stdout)


def test_memory_of_many_tensors_in_one_file(tmp_path):
    """The metadata of a file and its receipt are in memory once. 100,000 tensors take 173 MB."""
    (tmp_path / "spec.yaml").write_text("""
shardinit: 1
name: many
dtype: bf16
modules:
  layers:
    repeat: {layer: 20000}
    weight: {shape: [8, 128], init: {normal: {std: 0.02}}}
""")
    out = tmp_path / "out"
    assert peak_of("gen", tmp_path / "spec.yaml", "-o", out) < 152e6
    assert peak_of("finalize", out) < 140e6
    assert peak_of("verify", out) < 52e6
    assert peak_of("status", out) < 47e6


def test_memory_of_as_many_tensors_as_a_spec_may_have(tmp_path):
    """Tensors of a repeat share all but their paths and keys: 4,000,000 of them take 470 MB."""
    (tmp_path / "spec.yaml").write_text("""
shardinit: 1
name: most
dtype: bf16
mesh: {axes: {data: 2, fsdp: 4}}
rules: [{mlp: fsdp}]
training: {batch: [data]}
modules:
  model.layers:
    repeat: {layer: 2000000}
    mlp.up_proj.weight: {shape: [8, 4], axes: [mlp, null], init: {normal: {std: 0.02}}}
    mlp.down_proj.weight: {shape: [4, 8], axes: [null, mlp], init: {normal: {std: 0.02}}}
""")
    for command in ("validate", "plan"):
        assert peak_of(command, tmp_path / "spec.yaml") < 512 * 2**20, command


def many_pieces(path, tensors, ranks):
    path.write_text(f"""
shardinit: 1
name: many
dtype: bf16
mesh: {{axes: {{a: {ranks}}}}}
modules:
  layers:
    repeat: {{layer: {tensors}}}
    weight: {{shape: [{ranks}, 128], init: {{normal: {{std: 0.02}}}}, shard: [a, null]}}
""")
    return path


def test_memory_of_a_part_of_an_export_of_many_chunks(tmp_path):
    """What stands between the chunks is made file by file: that of all files would take 1.3 GB."""
    spec, out = many_pieces(tmp_path / "spec.yaml", 1000, 500), tmp_path / "out"
    assert peak_of("export", spec, "--to", "dcp", "-o", out, "--part", "3/500", "--jobs", 2, "--memory", "16M") < 125e6
    assert not out.exists()


def test_an_export_of_too_many_pieces_is_refused(tmp_path):
    result = run_tool("export", many_pieces(tmp_path / "spec.yaml", 2001, 4000), "--to", "hf-dcp", "-o", tmp_path / "out")
    assert result.returncode == 2 and "would have 8,004,000 pieces, more than 8,000,000" in result.stderr, result.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "spec.yaml"]


def test_a_rank_of_a_complete_checkpoint(spec, count, tmp_path):
    """An array that is run again is not quadratic: the manifest stands for the receipts of the other ranks, whose names
    are enough. A rank that was lost since is noticed."""
    opens = []
    for n in (FEW, MANY):
        out = tmp_path / f"{n}"
        run_ok("gen", spec(n), "-o", out)
        opens.append(count("gen", spec(n), "-o", out, "--ranks", 1)["opens"])
        assert "complete" in run_ok("gen", spec(n), "-o", out, "--ranks", 1).stdout
    assert opens[0] == opens[1]
    (out / "ranks/rank-00039.json").unlink()
    assert "unfinished: other ranks are missing" in run_ok("gen", spec(MANY), "-o", out, "--ranks", 1).stdout
