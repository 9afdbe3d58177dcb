"""Each rank has a constant cost in disk and file system calls. strace counts the calls, so that linear commands stay
linear."""

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
    """Returns a function that runs a command and counts its calls of each kind."""
    def run(*arguments):
        log = tmp_path / "strace.log"
        calls = ",".join(f"?{call}" for names in KINDS.values() for call in names)
        jobs = ["--jobs", 1] if arguments[0] in ("gen", "verify") else []
        run_ok(*arguments, *jobs, wrap=["strace", "-f", "-qq", "-o", log, "-e", f"trace={calls}"])
        seen = collections.Counter(re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.M))
        return {kind: sum(seen[call] for call in names) for kind, names in KINDS.items()}
    return run


def each(more, fewer):
    """Returns the calls of each further rank, and asserts that each rank makes equally many."""
    assert all((more[kind] - fewer[kind]) % (MANY - FEW) == 0 for kind in KINDS), (more, fewer)
    return {kind: (more[kind] - fewer[kind]) // (MANY - FEW) for kind in KINDS}


def test_each_new_rank_makes_few_system_calls(spec, count, tmp_path):
    """Each new rank makes the calls that a comment at RankWriter::Commit() explains."""
    few, many = (count("gen", spec(n), "-o", tmp_path / f"{n}") for n in (FEW, MANY))
    cost = each(many, few)
    assert {kind: cost[kind] for kind in ("renames", "data", "folders")} == {"renames": 2, "data": 2, "folders": 1}
    # Both files, the first also past the cache, and the receipt, which is read at the end.
    assert cost["opens"] == 4 and cost["stats"] <= 8


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_system_calls_of_single_rank_runs_are_not_quadratic(order, spec, count, tmp_path):
    """An array job of single ranks is not quadratic: all but the last check only the names of neighbouring ranks'
    files."""
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


def test_damaged_receipt_of_another_rank_prevents_finalizing(spec, tmp_path):
    """A run of one rank that makes nothing trusts the manifest. A run that makes its rank, or finds no manifest, reads
    the other ranks' receipts, and finalizes nothing if one is damaged."""
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
def test_each_complete_rank_makes_few_system_calls(command, opens, stats, spec, count, tmp_path):
    costs = []
    for n in (FEW, MANY):
        out = tmp_path / f"{n}"
        run_ok("gen", spec(n), "-o", out)
        costs.append(count(*([command, spec(n), "-o", out] if command == "gen" else [command, out])))
    assert each(costs[1], costs[0]) == {"renames": 0, "data": 0, "folders": 0, "opens": opens, "stats": stats}


# A process inherits the peak memory of its parent, so a small process starts the command.
START = """
import os, sys
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])
_, status, usage = os.wait4(child, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def peak_ram(*arguments):
    """Returns the peak memory of a command in bytes."""
    return 1024 * int(run_ok(*arguments, wrap=[sys.executable, "-SEc", START]).stdout)


def test_many_tensors_in_one_file_need_little_memory(tmp_path):
    """A file's metadata and receipt are in memory once: 20,000 tensors need less than 152 MB."""
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
    assert peak_ram("gen", tmp_path / "spec.yaml", "-o", out) < 152e6
    assert peak_ram("finalize", out) < 140e6
    assert peak_ram("verify", out) < 52e6
    assert peak_ram("status", out) < 47e6


def test_spec_with_the_most_tensors_needs_little_memory(tmp_path):
    """Tensors of a repeat share everything except paths and keys: 4,000,000 tensors need about 470 MB."""
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
        assert peak_ram(command, tmp_path / "spec.yaml") < 512 * 2**20, command


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


def test_one_part_of_a_large_export_needs_little_memory(tmp_path):
    """Metadata between the chunks is made file by file; for all files together it would take 1.3 GB."""
    spec, out = many_pieces(tmp_path / "spec.yaml", 1000, 500), tmp_path / "out"
    assert peak_ram("export", spec, "--to", "dcp", "-o", out, "--part", "3/500", "--jobs", 2, "--memory", "16M") < 125e6
    assert not out.exists()


def test_export_with_too_many_pieces_is_rejected(tmp_path):
    result = run_tool("export", many_pieces(tmp_path / "spec.yaml", 2001, 4000), "--to", "hf-dcp", "-o",
                      tmp_path / "out")
    assert result.returncode == 2 and "would have 8,004,000 pieces, more than 8,000,000" in result.stderr, result.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "spec.yaml"]


def test_rerun_of_one_rank_reads_no_other_receipts(spec, count, tmp_path):
    """Running an array again is not quadratic: the manifest replaces the other ranks' receipts, of which only names are
    checked. A rank that was lost since is noticed."""
    opens = []
    for n in (FEW, MANY):
        out = tmp_path / f"{n}"
        run_ok("gen", spec(n), "-o", out)
        opens.append(count("gen", spec(n), "-o", out, "--ranks", 1)["opens"])
        assert "complete" in run_ok("gen", spec(n), "-o", out, "--ranks", 1).stdout
    assert opens[0] == opens[1]
    (out / "ranks/rank-00039.json").unlink()
    assert "unfinished: other ranks are missing" in run_ok("gen", spec(MANY), "-o", out, "--ranks", 1).stdout
