"""Simulates a power loss in every state it could leave on the disk (power_loss.py). In each state, files with their
final names are correct, and the next run ends as if nothing had happened."""

import copy
import re

import pytest

from power_loss import Disk, final_one, put, trace
from support import run_json, run_ok, run_tool, tree_of

SPEC = """
shardinit: 1
name: crash
dtype: f32
mesh: {axes: {a: 2}}
rules: [{rows: a}]
modules:
  w: {shape: [30, 40], axes: [rows, null], init: {normal: {std: 1}}}
  b: {shape: [3], axes: [null], init: ones}
"""


# The checks -------------------------------------------------------------------

class Checker:
    def __init__(self, good, scratch, rerun, is_complete):
        self.good, self.scratch, self.rerun, self.is_complete = good, scratch, rerun, is_complete
        self.seen = set()

    def check(self, tree, where):
        final = final_one(tree)
        key = tuple(final), len(tree) - len(final)
        for path, data in final.items():
            assert data == self.good[path], f"{where}: {path} has its name, but not its bytes"
        if self.is_complete(final):
            assert final == self.good, f"{where}: complete without {set(self.good) - set(final)}"
        for path in final:
            if re.fullmatch(r"out/ranks/rank-\d+\.json", path):
                assert path.replace(".json", ".h5") in final, f"{where}: {path} without its file"
        if key in self.seen:
            return
        self.seen.add(key)
        put(tree, self.scratch)
        out = self.scratch / "out"
        if self.rerun[0] == "gen":
            complete = self.is_complete(final)
            assert run_tool("verify", out).returncode == (0 if complete else 2), where
            if "out/plan.json" in final:
                assert run_json("status", out)["complete"] == complete, where
            else:
                assert run_tool("status", out).returncode == 2, where
        run_ok(*self.rerun, cwd=self.scratch)
        left = tree_of(self.scratch)
        # A complete export may keep temporary files of a killed run next to it.
        assert (left if self.rerun[0] == "gen" else final_one(left)) == self.good, where


@pytest.mark.parametrize("command", ["gen", "export --to zarr"])
def test_resumes_after_power_loss_at_any_call(command, tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    run = [*command.split(), tmp_path / "spec.yaml", "-o", "out/", "--jobs", "1"]
    for name in ["good", "disk"]:
        (tmp_path / name).mkdir()
    run_ok(*run, cwd=tmp_path / "good")
    good = tree_of(tmp_path / "good")
    last = "out/manifest.json" if command == "gen" else "out/shardinit-export.json"
    checker = Checker(good, tmp_path / "scratch", run, lambda tree: last in tree)
    calls = trace(tmp_path / "disk", *run)
    disk, killed = Disk(), []
    for k, call in enumerate(calls):
        disk.apply(*call)
        for tree in disk.states():
            checker.check(tree, f"power loss after call {k}, {call[0]} {call[1]}")
        if call[0] not in ("pwrite64", "fallocate", "ftruncate", "fsync", "fdatasync"):
            killed.append((k, copy.deepcopy(disk)))
    assert disk.visible() == good == tree_of(tmp_path / "disk")  # the model of the disk is right
    assert not disk.changes()  # completed changes are durable

    # A run is killed after a call, runs again, and then the power fails.
    for k, disk in killed:
        put(disk.visible(), tmp_path / "disk")
        for i, call in enumerate(trace(tmp_path / "disk", *run)):
            disk.apply(*call)
            for tree in disk.states():
                checker.check(tree, f"killed after call {k}, power loss after call {i} of the next run, {call[:2]}")
        assert disk.visible() == good == tree_of(tmp_path / "disk")
        for tree in disk.states():
            assert final_one(tree) == good, f"killed after call {k}, then done, then power loss: {set(good) - set(tree)}"


def test_finalize_flushes_files_of_a_killed_gen(tmp_path):
    """`finalize` flushes everything that its manifest vouches for, even if `gen` was killed before it could."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    run = ["gen", tmp_path / "spec.yaml", "-o", "out/", "--jobs", "1"]
    for name in ["good", "disk"]:
        (tmp_path / name).mkdir()
    run_ok(*run, cwd=tmp_path / "good")
    good = tree_of(tmp_path / "good")
    checker = Checker(good, tmp_path / "scratch", run, lambda tree: "out/manifest.json" in tree)
    calls, disk = trace(tmp_path / "disk", *run), Disk()
    for call in calls:
        disk.apply(*call)
        if all(f"out/ranks/rank-0000{r}.json" in disk.visible() for r in range(2)):
            break
    assert disk.changes(), "the last receipt's name is on the disk already"
    put(disk.visible(), tmp_path / "disk")
    for call in trace(tmp_path / "disk", "finalize", "out"):
        disk.apply(*call)
        for tree in disk.states():
            checker.check(tree, f"power loss after {call[0]} {call[1]} of finalize")
    assert disk.visible() == good == tree_of(tmp_path / "disk")


@pytest.mark.parametrize("command", ["export spec.yaml --to zarr", "reshard source"])
def test_runs_of_ranks_resume_after_power_loss(command, tmp_path):
    """Several processes make the folder. Incomplete files are next to it, and the next run removes them."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    run_ok("gen", "spec.yaml", "-o", "source", cwd=tmp_path)
    words = command.split()
    run = [words[0], tmp_path / words[1], *words[2:], "-o", "out/", "--ranks", "0-1", "--jobs", "1"]
    for name in ["good", "disk"]:
        (tmp_path / name).mkdir()
    run_ok(*run, cwd=tmp_path / "good")
    good = tree_of(tmp_path / "good")
    last = "out/manifest.json" if words[0] == "reshard" else "out/shardinit-export.json"
    seen = set()

    def check(tree, where):
        final = {path: data for path, data in final_one(tree).items() if path.split("/")[0] == "out"}
        if last in final:
            assert final == good, f"{where}: complete without {set(good) - set(final)}"
        if (key := (tuple(tree), tuple(sorted(final)))) in seen:
            return
        seen.add(key)
        put(tree, tmp_path / "scratch")
        run_ok(*run, cwd=tmp_path / "scratch")
        left = tree_of(tmp_path / "scratch")
        assert left == good, f"{where}: {sorted(set(left) ^ set(good))}"

    disk = Disk()
    for k, call in enumerate(trace(tmp_path / "disk", *run)):
        disk.apply(*call)
        for tree in disk.states():
            check(tree, f"power loss after call {k}, {call[0]} {call[1]}")
    assert disk.visible() == good == tree_of(tmp_path / "disk")
    for tree in disk.states():
        assert {p: d for p, d in tree.items() if p.split("/")[0] == "out"} == good


def test_reshard_resumes_after_power_loss(tmp_path):
    """A copy is staged next to its folder. After a power loss the next run continues or removes all staged files."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    run_ok("gen", "spec.yaml", "-o", "source", cwd=tmp_path)
    run = ["reshard", tmp_path / "source", "-o", "out/", "--jobs", "1"]
    for name in ["good", "disk"]:
        (tmp_path / name).mkdir()
    run_ok(*run, cwd=tmp_path / "good")
    good = tree_of(tmp_path / "good")
    disk, seen = Disk(), set()
    for k, call in enumerate(trace(tmp_path / "disk", *run)):
        disk.apply(*call)
        for tree in disk.states():
            where = f"power loss after call {k}, {call[0]} {call[1]}"
            final = {path: data for path, data in tree.items() if path.split("/")[0] == "out"}
            if "out/manifest.json" in final:
                assert final == good, f"{where}: complete without {set(good) - set(final)}"
            if (key := tuple(tree)) in seen:
                continue
            seen.add(key)
            put(tree, tmp_path / "scratch")
            for path in (tmp_path / "scratch").glob(".out.part-*"):
                path.chmod(0o700)  # the model of the disk ignores modes
            run_ok(*run, cwd=tmp_path / "scratch")
            left = {path: data for path, data in tree_of(tmp_path / "scratch").items() if ".tmp-" not in path}
            assert left == good, f"{where}: {sorted(set(left) ^ set(good))}"
    assert disk.visible() == good == tree_of(tmp_path / "disk")
