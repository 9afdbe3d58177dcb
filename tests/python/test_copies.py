"""Tests reshard and export with checkpoints that change meanwhile, and with unfinished copies that others changed."""

import hashlib
import json
import os
import shutil
import subprocess
import time

import pytest

from changing import changing, counted
from interposed import interposed, rule
from support import BINARY, CLEAN, run_json, run_ok, run_tool, tree_of

SPEC = """
shardinit: 1
name: m
dtype: f32
mesh: {axes: {x: 2}}
modules:
  rows: {shape: [40, 50], shard: [x], init: {normal: {std: 1}}}
  columns: {shape: [260, 520], shard: [null, x], init: {normal: {std: 1}}}
"""
COPIES = [["export", "--to", "safetensors"], ["export", "--to", "dcp"], ["export", "--to", "zarr"],
          ["reshard"], ["reshard", "--mesh", "x=1"], ["reshard", "--mesh", "x=4"],
          ["reshard", "--replicas", "full"]]


@pytest.fixture
def source(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "from")
    return tmp_path / "from"


def give_other_values(folder):
    """Gives each box other values, with receipts that match."""
    for receipt in sorted(folder.glob("ranks/*.json")):
        text, file = receipt.read_text(), receipt.with_suffix(".h5")
        data = bytearray(file.read_bytes())
        for box in json.loads(text)["boxes"]:
            place = slice(box["file_offset"], box["file_offset"] + box["bytes"])
            data[place] = bytes(byte ^ 0x81 for byte in data[place])
            text = text.replace(f'"sha256": "{box["sha256"]}"',
                                f'"sha256": "{hashlib.sha256(data[place]).hexdigest()}"')
        file.write_bytes(data)
        receipt.write_text(text)


@pytest.mark.parametrize("command", COPIES, ids=" ".join)
def test_copies_of_a_changing_source_hold_only_verified_bytes(command, source, tmp_path):
    """Only verified bytes are copied, even if a byte changes before the n-th read, for every n."""
    verb, *options = command
    target, whole = tmp_path / "to", shutil.copytree(source, tmp_path / "whole")
    run = [verb, source, *options, "--jobs", "1", "-o", target]
    run_ok(*run, env=changing(source, count=tmp_path / "reads"))
    wanted, reads, failed = tree_of(target), counted(tmp_path / "reads")[0], 0
    shutil.rmtree(target)
    boxes = {box["path"]: box for box in json.loads((source / "ranks/rank-00001.json").read_text())["boxes"]}
    for read in range(reads, 0, -1):
        box = boxes["rows" if read % 2 else "columns"]
        at = box["file_offset"] + read * 7919 % box["bytes"]
        result = run_tool(*run, env=changing(source, f"{read} xor {source}/ranks/rank-00001.h5 {at}"))
        shutil.rmtree(source)
        shutil.copytree(whole, source)
        if result.returncode:
            assert result.returncode in (1, 3) and not target.exists(), result.stderr
            assert "is damaged" in result.stderr or "was changed while it was read" in result.stderr
            failed += 1
            if result.returncode == 1:
                assert not list(tmp_path.glob(".to*"))
                continue
            run_ok(*run)  # The second run resumes.
        assert tree_of(target) == wanted and not list(tmp_path.glob(".to*"))
        shutil.rmtree(target)
    assert failed > 4


def killed(source, tmp_path, *options):
    """Kills a copy and returns its unfinished folder."""
    result = run_tool("reshard", source, *options, "-o", tmp_path / "to", "--jobs", "1",
                      wrap=["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync",
                            "-e", "inject=fdatasync:signal=KILL:when=4"])
    assert result.returncode != 0 and not (tmp_path / "to").exists()
    part, = tmp_path.glob(".to.part-*")
    assert part.stat().st_mode & 0o777 == 0o700
    return part


MESH = ["--mesh", "x=4"]


@pytest.fixture
def wanted(source, tmp_path):
    run_ok("gen", tmp_path / "spec.yaml", *MESH, "-o", tmp_path / "wanted")
    return tree_of(tmp_path / "wanted")


@pytest.mark.quick
def test_reshard_rewrites_existing_ranks_with_other_values(source, wanted, tmp_path):
    part = killed(source, tmp_path, *MESH)
    done = len(list(part.glob("checkpoint/ranks/*.json")))
    assert done
    give_other_values(part / "checkpoint")
    result = run_json("reshard", source, *MESH, "-o", tmp_path / "to")
    assert result["ranks_skipped"] == 0 and result["ranks_written"] == 4
    assert tree_of(tmp_path / "to") == wanted and not list(tmp_path.glob(".to*"))


@pytest.mark.quick
def test_reshard_keeps_equal_ranks_of_a_killed_run(source, wanted, tmp_path):
    part = killed(source, tmp_path, *MESH)
    done = len(list(part.glob("checkpoint/ranks/*.json")))
    assert run_json("reshard", source, *MESH, "-o", tmp_path / "to")["ranks_skipped"] == done > 0
    assert tree_of(tmp_path / "to") == wanted


@pytest.mark.quick
@pytest.mark.parametrize("name", ["notes", "ranks/notes", "ranks/rank-00004.h5", "sub/a", "ranks/rank-1.json"])
def test_reshard_does_not_adopt_foreign_files(name, source, wanted, tmp_path):
    part = killed(source, tmp_path, *MESH)
    (part / "checkpoint" / name).parent.mkdir(exist_ok=True)
    (part / "checkpoint" / name).write_text("mine")
    result = run_ok("reshard", source, *MESH, "-o", tmp_path / "to")
    assert "is not part of this copy" in result.stderr
    assert tree_of(tmp_path / "to") == wanted
    assert (part / "checkpoint" / name).read_text() == "mine"


def test_reshard_does_not_resume_a_folder_others_can_write_to(source, wanted, tmp_path):
    part = killed(source, tmp_path, *MESH)
    before = tree_of(part)
    for spoil in (lambda: part.chmod(0o770), lambda: (part / "token").write_text("0" * 32 + "\n"),
                  lambda: part.rename(tmp_path / f"{part.name[:-1]}{'0' if part.name[-1] != '0' else '1'}")):
        kept = shutil.copytree(part, tmp_path / "kept")
        spoil()
        assert run_json("reshard", source, *MESH, "-o", tmp_path / "to")["ranks_skipped"] == 0
        assert tree_of(tmp_path / "to") == wanted
        assert len(list(tmp_path.glob(".to.part-*"))) == 1  # It stays as it was.
        shutil.rmtree(tmp_path / "to")
        shutil.rmtree(next(tmp_path.glob(".to.part-*")))
        kept.rename(part)
        part.chmod(0o700)
    assert tree_of(part) == before
    assert run_json("reshard", source, *MESH, "-o", tmp_path / "to")["ranks_skipped"] > 0


def test_unfinished_copies_have_unpredictable_names(source, wanted, tmp_path):
    """Each killed run had a name of its own, so nobody can prepare the folder of another run."""
    names = set()
    for _ in range(3):
        part = killed(source, tmp_path, *MESH)
        names.add(part.name)
        shutil.rmtree(part)
    assert len(names) == 3


@pytest.mark.quick
def test_reshard_does_not_resume_a_copy_of_another_source(source, wanted, tmp_path):
    """The copy of a checkpoint resumes nothing from a copy of another checkpoint with the same plan."""
    other = shutil.copytree(source, tmp_path / "other")
    give_other_values(other)
    (other / "manifest.json").unlink()
    run_ok("finalize", other)
    run_ok("reshard", other, *MESH, "-o", tmp_path / "others")
    part = killed(source, tmp_path, *MESH)
    assert run_json("reshard", other, *MESH, "-o", tmp_path / "to")["ranks_skipped"] == 0
    assert tree_of(tmp_path / "to") == tree_of(tmp_path / "others") != wanted
    shutil.rmtree(tmp_path / "to")
    assert part.exists() and run_json("reshard", source, *MESH, "-o", tmp_path / "to")["ranks_skipped"] > 0
    assert tree_of(tmp_path / "to") == wanted


def start_slow_reshard(source, tmp_path):
    """Starts a reshard that has written a rank and waits."""
    process = subprocess.Popen(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e",
         "inject=fdatasync:delay_enter=1500000:when=4", BINARY, "reshard", source, *MESH, "-o", tmp_path / "to",
         "--jobs", "1"], env=CLEAN, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob(".to.part-*/checkpoint/ranks/*.json")):
        assert process.poll() is None
        time.sleep(0.005)
    return process


def test_reshard_leaves_another_active_run_alone(source, wanted, tmp_path):
    process = start_slow_reshard(source, tmp_path)
    result = run_tool("reshard", source, *MESH, "-o", tmp_path / "to")
    assert result.returncode == 4 and "another process is making" in result.stderr
    assert process.wait(60) == 0
    assert tree_of(tmp_path / "to") == wanted and not list(tmp_path.glob(".to*"))


@pytest.mark.parametrize("same", [True, False])
def test_reshard_that_finishes_second_leaves_nothing(same, source, wanted, tmp_path):
    process = start_slow_reshard(source, tmp_path)
    run_ok("reshard", source, *(MESH if same else []), "-o", tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path / "to")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == (0 if same else 4), stderr
    assert (tree_of(tmp_path / "to") == wanted) == same
    assert not list(tmp_path.glob(".to*"))


def test_next_reshard_removes_files_of_a_killed_run(source, wanted, tmp_path):
    killed(source, tmp_path, *MESH)
    run_ok("reshard", source, *MESH, "-o", tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path / "to")
    run_ok("reshard", source, *MESH, "-o", tmp_path / "to")
    assert tree_of(tmp_path / "to") == wanted and not list(tmp_path.glob(".to*"))


@pytest.mark.parametrize("ranks", ["0-3", "2"])
def test_reshard_of_some_ranks_removes_files_of_a_killed_run(ranks, source, wanted, tmp_path):
    killed(source, tmp_path, *MESH)
    run_ok("reshard", source, *MESH, "-o", tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path / "to")
    result = run_json("reshard", source, *MESH, "--ranks", ranks, "-o", tmp_path / "to")
    assert result["ranks_written"] == 0 and result["complete"]
    assert tree_of(tmp_path / "to") == wanted and not list(tmp_path.glob(".to*"))


def test_reshard_succeeds_if_an_equal_copy_replaces_its_files(source, wanted, tmp_path):
    process = start_slow_reshard(source, tmp_path)
    run_ok("reshard", source, *MESH, "-o", tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path / "to")
    part, = tmp_path.glob(".to.part-*")
    shutil.rmtree(part)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert tree_of(tmp_path / "to") == wanted and not list(tmp_path.glob(".to*"))


def test_reshard_output_has_the_mode_of_the_umask(source, tmp_path):
    for umask in (0o022, 0o002):
        run_ok("reshard", source, "-o", tmp_path / "to", umask=umask)
        assert (tmp_path / "to").stat().st_mode & 0o777 == 0o777 & ~umask
        shutil.rmtree(tmp_path / "to")


# One folder through two mounts ---------------------------------------------------


@pytest.fixture
def mounts(tmp_path):
    """Mounts one folder twice, each time with separate locks."""
    if not shutil.which("bindfs") or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("not tested: there is no FUSE here")
    (tmp_path / "back").mkdir()
    made = [tmp_path / "one", tmp_path / "two"]
    mounted = []
    try:
        for mount in made:
            mount.mkdir()
            if subprocess.run(["bindfs", "--no-allow-other", tmp_path / "back", mount], check=False).returncode:
                pytest.skip("not tested: FUSE cannot mount here")
            mounted.append(mount)
        yield made
    finally:
        for mount in mounted:
            subprocess.run(["fusermount", "-u", mount], check=True)


def test_runs_on_two_mounts_keep_each_others_files(mounts, tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC.replace("x: 2", "x: 10"))
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "wanted")
    for turn in range(10):
        runs = [subprocess.Popen([BINARY, "gen", tmp_path / "spec.yaml", "-o", mount / f"to{turn}", "--ranks", ranks],
                                 env=CLEAN, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                for mount, ranks in zip(mounts, ("0-4", "5-9"))]
        for run in runs:
            _, stderr = run.communicate(timeout=60)
            assert run.returncode == 0, stderr
        assert tree_of(tmp_path / f"back/to{turn}") == tree_of(tmp_path / "wanted")


# The locks of such a mount, and its device number, only hold within a process group.
NO_LOCKS = rule("flock", "return", 0)


def device(number):
    return rule("stat", "device", number)


@pytest.mark.parametrize(("before", "after", "stays"), [
    ([], [], False), ([device(7)], [device(7)], False), ([device(7)], [device(8)], True),
    ([device(7)], [], True), ([NO_LOCKS], [NO_LOCKS], True)])
def test_files_of_a_killed_run_stay_if_locks_are_not_visible(before, after, stays, tmp_path):
    """A run removes a killed run's file at once only if it sees its locks: on the same mount, and if locks work."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    command = ["gen", tmp_path / "spec.yaml", "-o", tmp_path / "to", "--ranks", "0", "--jobs", "1"]
    assert run_tool(*command, env=interposed(*before, rule("fdatasync", "kill", when=2))).returncode != 0
    left = list((tmp_path / "to").rglob(".*.tmp-*"))
    assert left
    run_ok(*command, env=interposed(*after))
    assert [path.exists() for path in left] == [stays] * len(left)
    assert len(list((tmp_path / "to").rglob(".*.tmp-*"))) == (len(left) if stays else 0)
    for path in left:  # Now it is hours later.
        if stays:
            os.utime(path, (0, 0))
    (tmp_path / "to/ranks/rank-00000.json").unlink()
    run_ok(*command, env=interposed(*after))
    assert not list((tmp_path / "to").rglob(".*.tmp-*"))


def test_reshard_keeps_the_folder_of_another_machine(source, tmp_path):
    """A folder that another machine writes to is kept, because a file in it has a recent time. The folder's lock is not
    visible here, and its own time is old."""
    other = tmp_path / f".to.tmp-{'0' * 16}-{'1' * 16}"
    file = other / "inner/file"
    file.parent.mkdir(parents=True)
    file.touch()
    for is_old in (False, True):
        for path in (file.parent, other, *([file] if is_old else [])):
            os.utime(path, (0, 0))
        run_ok("export", source, "--to", "dcp", "-o", tmp_path / "to")
        assert file.exists() != is_old
        shutil.rmtree(tmp_path / "to")
    assert not other.exists()


def test_reshard_rewrites_damaged_and_other_ranks(source, wanted, tmp_path):
    part = killed(source, tmp_path, *MESH)
    ranks = part / "checkpoint/ranks"
    shutil.copytree(tmp_path / "wanted/ranks", ranks, dirs_exist_ok=True)
    give_other_values(part / "checkpoint")
    for rank in (0, 2, 3):
        for name in (f"rank-{rank:05}.h5", f"rank-{rank:05}.json"):
            shutil.copy(tmp_path / "wanted/ranks" / name, ranks / name)
    box = json.loads((ranks / "rank-00003.json").read_text())["boxes"][0]
    data = bytearray((ranks / "rank-00003.h5").read_bytes())
    data[box["file_offset"]] ^= 1
    (ranks / "rank-00003.h5").write_bytes(data)
    result = run_json("reshard", source, *MESH, "-o", tmp_path / "to")
    assert tree_of(tmp_path / "to") == wanted and not list(tmp_path.glob(".to*"))
    assert result["ranks_skipped"] == 2 and result["ranks_written"] == 2
