"""Tests kills, full disks, damage and hostile files.

strace injects the failures, so shardinit's code cannot detect a test.
"""

import contextlib
import errno
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import time

import h5py
import numpy as np
import pytest

from support import BINARY, CLEAN, datasets_in, rank_files, read_raw, run_json, run_ok, run_tool, text_of, tree_of

# A small spec with large and small boxes, replicas, several ranks, and an f64.
SPEC = """
shardinit: 1
name: faulty
dtype: bf16
seed: {seed}
mesh: {{axes: {{a: 2, b: 2}}}}
rules:
  - {{rows: a}}
  - {{columns: b}}
init:
  n: {{normal: {{std: 0.02}}}}
modules:
  model:
    large: {{shape: [512, 384], axes: [rows, columns], init: n}}
    small: {{shape: [6, 2], axes: [rows, columns], init: n, dtype: f64}}
    norm: {{shape: [100], axes: [null], init: ones}}
"""

BIG = "shardinit: 1\nname: big\ndtype: f32\nmodules:\n  w: {shape: [512, 1024, 4096], init: {normal: {std: 1}}}\n"


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    path = tmp_path_factory.mktemp("faults") / "spec.yaml"
    path.write_text(SPEC.format(seed=0))
    return path


@pytest.fixture(scope="module")
def good(spec):
    folder = spec.parent / "good"
    run_ok("gen", spec, "-o", folder)
    return folder


@pytest.fixture
def damaged(good, tmp_path):
    """A copy of the good checkpoint for the test to damage."""
    return pathlib.Path(shutil.copytree(good, tmp_path / "damaged"))


def inject(calls, what):
    return ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}",
            "-e", f"inject={calls}:{what}"]


def can_trace():
    return subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True).returncode == 0


def is_committed(folder):
    return (folder / "manifest.json").exists()


# Kills ------------------------------------------------------------------------

# A run is killed at the k-th call of each kind that touches the disk, for every k.
CALLS = ["pwrite64", "write", "openat", "rename,renameat,renameat2", "fdatasync,fsync",
         "mkdir,mkdirat", "unlink,unlinkat", "ftruncate,fallocate", "close"]


@pytest.mark.parametrize("calls", CALLS)
def test_gen_resumes_after_sigkill_at_every_call(calls, spec, good, tmp_path):
    assert can_trace()
    expected = tree_of(good)
    k, out = 0, tmp_path / "out"
    while True:
        k += 1
        assert k < 500
        result = run_tool("gen", spec, "-o", out, "--jobs", "1",
                          wrap=inject(calls, f"signal=SIGKILL:when={k}"))
        if result.returncode == 0:
            break
        assert result.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), result.stderr
        if is_committed(out):
            run_ok("verify", out)
        run_ok("gen", spec, "-o", out)
        assert tree_of(out) == expected, f"killed at call {k}"
        shutil.rmtree(out)
    assert tree_of(out) == expected


@pytest.mark.parametrize("command", ["finalize", "finalize --index never", "gen --index never"])
def test_complete_checkpoint_stays_complete_after_sigkill(command, spec, good, tmp_path):
    """After a kill at any changing call, the old or the new manifest matches the files."""
    name, *options = command.split()
    killed = 0
    for calls in ["rename,renameat,renameat2", "unlink,unlinkat", "pwrite64", "fdatasync,fsync", "ftruncate"]:
        for k in range(1, 500):
            out = pathlib.Path(shutil.copytree(good, tmp_path / "out"))
            result = run_tool(name, *([out] if name == "finalize" else [spec, "-o", out]), *options,
                              wrap=inject(calls, f"signal=SIGKILL:when={k}"))
            run_ok("verify", out)
            assert result.returncode == 0 or {p
                                              for p in tree_of(out) if "tmp-" not in p} >= set(tree_of(good)) - {"index.h5"}
            shutil.rmtree(out)
            if result.returncode == 0:
                break
            killed += 1
    assert killed >= 5


@pytest.mark.parametrize("seed", range(10))
def test_gen_with_threads_resumes_after_two_sigkills(seed, spec, good, tmp_path):
    chance = random.Random(seed)
    for _ in range(2):
        calls = chance.choice(CALLS[:5])
        run_tool("gen", spec, "-o", tmp_path / "out", "--jobs", "4",
                 wrap=inject(calls, f"signal=SIGKILL:when={chance.randrange(1, 12)}"))
    run_ok("gen", spec, "-o", tmp_path / "out")
    assert tree_of(tmp_path / "out") == tree_of(good)


def test_gen_leaves_a_finished_checkpoint_alone(good, tmp_path, spec):
    out = shutil.copytree(good, tmp_path / "out")
    before = {p: p.stat().st_mtime_ns for p in rank_files(out)}
    run_ok("gen", spec, "-o", out)
    assert {p: p.stat().st_mtime_ns for p in rank_files(out)} == before
    assert tree_of(out) == tree_of(good)


@pytest.mark.parametrize("lost", ["manifest.json", "index.h5", "ranks/rank-00002.h5", "ranks/rank-00001.json"])
def test_gen_rewrites_a_missing_file(lost, damaged, good, spec):
    (damaged / lost).unlink()
    run_ok("gen", spec, "-o", damaged)
    assert tree_of(damaged) == tree_of(good)


# Failing calls ----------------------------------------------------------------

FAILURES = [
    ("pwrite64", "ENOSPC"), ("pwrite64", "EDQUOT"), ("pwrite64", "EIO"), ("pwrite64", "EFBIG"),
    ("fdatasync,fsync", "EIO"), ("fdatasync,fsync", "ENOSPC"),
    ("rename,renameat,renameat2", "ENOSPC"), ("rename,renameat,renameat2", "EACCES"),
    ("mkdir,mkdirat", "EROFS"), ("mkdir,mkdirat", "ENOSPC"), ("pwrite64", "EROFS"),
    ("rename,renameat,renameat2", "EOPNOTSUPP"), ("fdatasync,fsync", "ENOSYS"),
]
PERMANENT = ["EACCES", "EROFS", "EOPNOTSUPP", "ENOSYS"]  # Trying these again is pointless.


@pytest.mark.parametrize("calls, error", FAILURES)
@pytest.mark.parametrize("when", ["1+", "2+", "4"])
def test_gen_reports_each_failing_call(calls, error, when, spec, good, tmp_path):
    out = tmp_path / "out"
    result = run_tool("gen", spec, "-o", out, "--jobs", "1", wrap=inject(calls, f"error={error}:when={when}"))
    if result.returncode == 0:  # The run made no such call.
        assert tree_of(out) == tree_of(good)
        assert when != "1+"
        return
    assert result.returncode == (2 if error in PERMANENT else 3)
    assert os.strerror(getattr(errno, error)) in result.stderr
    assert str(tmp_path) in result.stderr
    assert not is_committed(out) or run_tool("verify", out).returncode == 0
    assert not [p for p in tree_of(out) if "tmp" in p] if out.exists() else True
    run_ok("gen", spec, "-o", out)
    assert tree_of(out) == tree_of(good)


NAMES = ["plan.json", "manifest.json", "index.h5", "ranks/rank-00001.h5", "ranks/rank-00001.json", "ranks"]


@pytest.mark.parametrize("error", ["EIO", "ESTALE"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", ["gen", "gen --ranks 0-3", "finalize", "status", "verify", "export", "stats"])
def test_files_with_read_errors_do_not_count_as_absent(command, name, error, good, spec, tmp_path):
    """A file counts as absent only if the error is ENOENT."""
    command, *options = command.split()
    out = tmp_path / "out"
    run = {"gen": ["gen", spec, "-o", good], "export": ["export", good, "--to", "dcp", "-o", out]}.get(
        command, [command, good]) + options
    wrap = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", good / name, "-P", name.split("/")[-1],
            "-e", "trace=newfstatat,statx,openat", "-e", f"inject=newfstatat,statx,openat:error={error}"]
    before = tree_of(good)
    result = run_tool(*run, wrap=wrap)
    assert tree_of(good) == before
    unread = {"verify": [], "gen": ["index.h5"] if options else []}.get(command, ["manifest.json", "index.h5"])
    if result.returncode == 0:
        assert name in unread or name == "ranks"
        assert result.stdout == run_tool(*run).stdout or command == "export"
    else:
        assert result.returncode == 3 or command in ("verify", "export") and result.returncode == 1, result.stderr


@pytest.mark.parametrize("when", range(1, 9))
def test_gen_retries_interrupted_calls(when, spec, good, tmp_path):
    for calls in ["pwrite64", "openat", "fdatasync", "fsync"]:
        out = tmp_path / calls
        run_ok("gen", spec, "-o", out, "--jobs", "1", wrap=inject(calls, f"error=EINTR:when={when}"))
        assert tree_of(out) == tree_of(good)


@pytest.mark.parametrize("size", [1, 24, 100, 512])
def test_gen_continues_short_writes(size, tmp_path):
    """A write that returns short is continued at the right place.

    strace reports `size` bytes as written but writes none. Only these bytes may be missing; everything after them must
    be present. Each of the four writer threads makes about sixteen writes, and so has a `when`-th one."""
    spec, good = tmp_path / "spec.yaml", tmp_path / "good"
    spec.write_text("shardinit: 1\nname: many\ndtype: f32\nmodules:\n  layers:\n    repeat: {layer: 64}\n"
                    "    w: {shape: [750], init: {normal: {std: 1}}}\n")
    run_ok("gen", spec, "-o", good, "--index", "never")
    places = [box["file_offset"] for box in json.loads((good / "ranks/rank-00000.json").read_text())["boxes"]]
    assert len(places) == 64
    changed = 0
    for when in range(1, 13):
        out = tmp_path / str(when)
        out.mkdir()
        shutil.copy(good / "plan.json", out)  # Otherwise plan.json would be written first.
        result = run_tool("gen", spec, "-o", out, "--index", "never",
                          wrap=inject("pwrite64", f"retval={size}:when={when}"))
        if result.returncode == 3:  # HDF5 notices missing metadata or fails.
            continue
        assert result.returncode == 0, result.stderr
        a, b = (np.fromfile(folder / "ranks/rank-00000.h5", np.uint8) for folder in (good, out))
        assert a.size == b.size
        different = sum(np.count_nonzero(a[at : at + 3000] != b[at : at + 3000]) for at in places)
        changed += different > 0
        assert different <= 4 * size
    assert changed > 1


def test_gen_works_without_direct_io(spec, good, tmp_path):
    """On a file system that rejects O_DIRECT, files have the same bytes."""
    for k in range(1, 40):
        result = run_tool("gen", spec, "-o", tmp_path / "out", wrap=inject("openat", f"error=EINVAL:when={k}"))
        if result.returncode == 0:
            assert tree_of(tmp_path / "out") == tree_of(good)
        else:
            assert result.returncode in (1, 2, 3, 127), result.stderr
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


@pytest.mark.parametrize("calls, error", [
    ("flock", "ENOLCK"), ("flock", "ENOSYS"), ("fallocate", "EOPNOTSUPP"), ("fallocate", "ENOSYS"),
    ("link,linkat", "EPERM"), ("link,linkat", "EOPNOTSUPP"), ("fsync", "EINVAL"), ("statfs,fstatfs", "ENOSYS")])
def test_gen_works_if_the_file_system_lacks_a_feature(calls, error, spec, good, tmp_path):
    run_ok("gen", spec, "-o", tmp_path / "out", wrap=inject(calls, f"error={error}"))
    assert tree_of(tmp_path / "out") == tree_of(good)


@pytest.mark.parametrize("calls", ["rename,renameat,renameat2", "openat", "pwrite64", "fdatasync"])
def test_gen_reports_stale_handles_and_resumes(calls, spec, good, tmp_path):
    for when in range(1, 80, 6 if calls == "openat" else 20):
        result = run_tool("gen", spec, "-o", tmp_path / "out", wrap=inject(calls, f"error=ESTALE:when={when}"))
        assert result.returncode in (0, 1, 2, 3, 127), result.stderr  # Loader and spec errors have other statuses.
        run_ok("gen", spec, "-o", tmp_path / "out")
        assert tree_of(tmp_path / "out") == tree_of(good)
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("when", ["1+", "2+", "3+", "4"])
def test_gen_reports_threads_that_cannot_start(when, spec, good, tmp_path):
    result = run_tool("gen", spec, "-o", tmp_path / "out", "--jobs", "4",
                      wrap=inject("clone3", f"error=EAGAIN:when={when}"))
    assert result.returncode == 0 or result.returncode == 3 and "cannot start a thread" in result.stderr
    run_ok("gen", spec, "-o", tmp_path / "out")
    assert tree_of(tmp_path / "out") == tree_of(good)


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size):
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder],
                          capture_output=True).returncode:
            pytest.skip("tmpfs cannot be mounted here")
        return folder

    yield mount
    subprocess.run(["umount", folder], capture_output=True)


@pytest.mark.parametrize("size", ["4k", "16k", "64k", "132k", "256k", "400k", "512k"])
def test_gen_resumes_after_a_full_disk(size, spec, good, small_disk):
    disk = small_disk(size)
    result = run_tool("gen", spec, "-o", disk / "out")
    if result.returncode == 0:
        assert tree_of(disk / "out") == tree_of(good)
        return
    assert result.returncode == 3
    assert "No space left on device" in result.stderr or " free\n" in result.stderr
    assert not is_committed(disk / "out")
    subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
    run_ok("gen", spec, "-o", disk / "out")
    assert tree_of(disk / "out") == tree_of(good)


def test_gen_resumes_after_a_file_size_limit(spec, good, tmp_path):
    def limit_of():
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))

    result = run_tool("gen", spec, "-o", tmp_path / "out", preexec_fn=limit_of)
    assert result.returncode == 3 and "File too large" in result.stderr
    run_ok("gen", spec, "-o", tmp_path / "out")
    assert tree_of(tmp_path / "out") == tree_of(good)


def test_gen_with_five_descriptors_succeeds_or_reports(spec, tmp_path):
    def limit_of():
        resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))

    assert run_tool("gen", spec, "-o", tmp_path / "out", preexec_fn=limit_of).returncode in (0, 3)


@pytest.mark.parametrize("megabytes", [40, 60, 80, 120, 200, 400])
def test_gen_with_little_memory_succeeds_or_reports(megabytes, spec, good, tmp_path):
    def limit_of():
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    result = run_tool("gen", spec, "-o", tmp_path / "out", preexec_fn=limit_of)
    assert result.returncode in (0, 3, 127), result.stderr  # 127: even the loader does not fit.
    run_ok("gen", spec, "-o", tmp_path / "out")
    assert tree_of(tmp_path / "out") == tree_of(good)


# Folders ----------------------------------------------------------------------

def test_gen_of_another_seed_is_a_conflict(damaged, spec, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(SPEC.format(seed=1))
    before = tree_of(damaged)
    result = run_tool("gen", other, "-o", damaged)
    assert result.returncode == 4
    assert str(damaged) in result.stderr
    assert tree_of(damaged) == before


def test_gen_on_another_mesh_is_a_conflict(damaged, spec):
    before = tree_of(damaged)
    assert run_tool("gen", spec, "-o", damaged, "--mesh", "a=2,b=1").returncode == 4
    assert tree_of(damaged) == before


@pytest.mark.parametrize("more", [1, 1000])
def test_gen_of_a_larger_or_smaller_plan_is_a_conflict(more, good, damaged, spec, tmp_path):
    larger = tmp_path / "larger.yaml"
    larger.write_text(SPEC.format(seed=0) + "".join(f"    extra{i}: {{shape: [1], init: ones}}\n" for i in range(more)))
    assert run_tool("gen", larger, "-o", damaged).returncode == 4
    assert tree_of(damaged) == tree_of(good)
    run_ok("gen", larger, "-o", tmp_path / "larger")
    assert run_tool("gen", spec, "-o", tmp_path / "larger").returncode == 4
    run_ok("verify", tmp_path / "larger")


def test_one_of_two_simultaneous_plans_fails(spec, tmp_path):
    """If two plans are made in one folder at once, one fails with a conflict and writes nothing into it."""
    other = tmp_path / "other.yaml"
    other.write_text(SPEC.format(seed=1))
    for turn in range(20):
        out = tmp_path / str(turn)
        runs = [subprocess.Popen([BINARY, "gen", path, "-o", out], env=CLEAN, stderr=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL) for path in (spec, other)]
        assert sorted(run.wait(timeout=60) for run in runs) == [0, 4]
        run_ok("verify", out)


def test_gen_keeps_a_file_in_place_of_the_output(spec, tmp_path):
    (tmp_path / "out").write_text("mine")
    result = run_tool("gen", spec, "-o", tmp_path / "out")
    assert result.returncode in (3, 4) and "out" in result.stderr
    assert (tmp_path / "out").read_text() == "mine"


def test_gen_keeps_foreign_files_in_the_output_folder(spec, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("mine")
    run_tool("gen", spec, "-o", tmp_path / "out")
    assert (tmp_path / "out/thesis.tex").read_text() == "mine"


# These names resemble the leftovers of killed runs, but belong to others.
BITS = "0123456789abcdef-0123456789abcdef"
MINE = [".photos.tmp-2024/a.jpg", f".photos.tmp-{BITS}/a.jpg", ".plan.json.tmp-mine",
        f".index.h5.tmp-{BITS[:-2]}aa/a.jpg", f"ranks/.rank-00000.h5.tmp-{BITS[:-2]}aa/a",
        f"ranks/.rank-0.h5.tmp-{BITS}", f"ranks/.notes.tmp-{BITS}", f".manifest.json.tmp-{BITS.upper()}",
        f".tmp-{BITS}", ".plan.json.tmp-0123456789abcdef"]
LEFT_OVERS = [f".plan.json.tmp-{BITS}", f".manifest.json.tmp-{BITS}", f".index.h5.tmp-{BITS}",
              f"ranks/.rank-00000.h5.tmp-{BITS}", f"ranks/.rank-123456.json.tmp-{BITS}"]


def write_files(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")


@pytest.mark.parametrize("command", ["gen", "finalize"])
def test_gen_and_finalize_keep_files_of_the_user(command, good, spec, tmp_path):
    out = pathlib.Path(shutil.copytree(good, tmp_path / "out"))
    (out / "manifest.json").unlink()
    write_files(out, MINE + LEFT_OVERS)
    run_ok(*(["finalize", out] if command == "finalize" else ["gen", spec, "-o", out]))
    mine = dict.fromkeys(MINE, b"mine")
    assert {name: data for name, data in tree_of(out).items() if data is not None} == {
        **{name: data for name, data in tree_of(good).items() if data is not None}, **mine}


def test_export_keeps_files_next_to_it(spec, tmp_path):
    old, young = f".out.tmp-{BITS}", f".out.tmp-{BITS[:-2]}aa"
    mine = [".out.tmp-mine/a", f".out.tmp-{BITS.upper()}/a", f".outer.tmp-{BITS}/a", f".out.tmp-{BITS[:-1]}/a",
            f".out.tmp-{BITS[:-2]}bb"]  # A file cannot be the folder of an export.
    write_files(tmp_path, [*mine, f"{old}/a", f"{old}/b/c", f"{young}/b/c"])
    for path in [*(tmp_path / old).rglob("*"), tmp_path / old, tmp_path / young]:
        os.utime(path, (0, 0))
    run_ok("export", spec, "--to", "dcp", "-o", tmp_path / "out")
    for name in [*mine, f"{young}/b/c"]:  # Another machine may still be writing it.
        assert (tmp_path / name).read_text() == "mine"
    assert not (tmp_path / old).exists()


@pytest.mark.parametrize("name", ["ranks", "ranks/rank-00000.h5", "ranks/rank-00000.json", "plan.json",
                                  "manifest.json", "index.h5"])
def test_links_in_the_output_are_not_followed(name, spec, tmp_path):
    victim = tmp_path / "victim"
    if name == "ranks":
        victim.mkdir()
    else:
        victim.write_text("mine")
    link = tmp_path / "out" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    result = run_tool("gen", spec, "-o", tmp_path / "out")
    assert result.returncode in (0, 3, 4)
    assert not list(victim.iterdir()) if name == "ranks" else victim.read_text() == "mine"


def test_gen_reports_a_read_only_folder(spec, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o555)
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search",
            "--inh-caps=-dac_override,-dac_read_search"] if os.getuid() == 0 else []
    result = run_tool("gen", spec, "-o", tmp_path / "closed/out", wrap=drop)
    assert result.returncode == 2 and "Permission denied" in result.stderr
    assert str(tmp_path / "closed/out") in result.stderr


def test_dry_run_writes_nothing(spec, tmp_path):
    run_ok("gen", spec, "-o", tmp_path / "out", "--dry-run")
    assert not (tmp_path / "out").exists()


def test_simultaneous_processes_make_one_checkpoint(spec, good, tmp_path):
    for turn in range(5):
        out = tmp_path / str(turn)
        runs = [subprocess.Popen([BINARY, "gen", spec, "-o", out], env=CLEAN,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for _ in range(6)]
        for run in runs:
            _, stderr = run.communicate(timeout=60)
            assert run.returncode == 0, stderr
        assert tree_of(out) == tree_of(good)


def test_simultaneous_ranks_make_one_checkpoint(spec, good, tmp_path):
    """One process for each rank, as in a cluster job, makes the same checkpoint as one run."""
    runs = [subprocess.Popen([BINARY, "gen", spec, "-o", tmp_path / "out", "--ranks", str(rank)], env=CLEAN,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(4)]
    for run in runs:
        _, stderr = run.communicate(timeout=60)
        assert run.returncode == 0, stderr
    run_ok("finalize", tmp_path / "out")
    assert tree_of(tmp_path / "out") == tree_of(good)


def test_simultaneous_finalize_with_and_without_index_is_valid(good, tmp_path):
    """Two runs of finalize, with and without an index, leave a valid checkpoint in any order."""
    out = pathlib.Path(shutil.copytree(good, tmp_path / "out"))
    slow = ["strace", "-qq", "-o", "/dev/null", "-e", "trace=unlink,unlinkat",
            "-e", "inject=unlink,unlinkat:delay_enter=1000000"]
    never = subprocess.Popen([*slow, BINARY, "finalize", out, "--index", "never"], env=CLEAN,
                             stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while json.loads((out / "manifest.json").read_text())["index"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run_ok("finalize", out, "--index", "always")
    assert never.wait(timeout=20) == 0
    run_ok("verify", out)
    run_ok("finalize", out)
    assert tree_of(out) == tree_of(good)


@pytest.mark.parametrize("lost", ["ranks/rank-00002.json", "ranks/rank-00002.h5"])
def test_status_reports_a_missing_rank(lost, damaged):
    (damaged / lost).unlink()
    status = json.loads(run_ok("status", damaged, "--json").stdout)
    assert not status["complete"] and status["missing_ranks"] == "2" and status["ranks_done"] == 3
    text = run_ok("status", damaged).stdout
    assert "3 of 4 ranks are there, damaged" in text and "missing: 2" in text


def test_gen_exits_with_status_3_if_a_rank_vanishes(spec, good, tmp_path):
    """A run that makes all ranks fails with status 3 if one of them is missing at the end."""
    out = tmp_path / "out"
    slow = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", out / "ranks", "-e", "trace=fsync",
            "-e", "inject=fsync:delay_enter=300000"]
    run = subprocess.Popen([*slow, BINARY, "gen", spec, "-o", out, "--jobs", "1"], env=CLEAN,
                           stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not list(out.glob("ranks/rank-0000?.json")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    next(out.glob("ranks/rank-0000?.json")).unlink()
    stdout, stderr = run.communicate(timeout=30)
    assert run.returncode == 3 and "1 of 4 ranks" in stderr and not stdout
    run_ok("gen", spec, "-o", out)
    assert tree_of(out) == tree_of(good)


# One folder, two plans ---------------------------------------------------------

# Simulates file systems on which a name can be claimed only after checking that it is free.
BARE = ["-e", "inject=renameat2:error=EINVAL", "-e", "inject=linkat:error=EPERM"]


def delayed(calls, seconds, *more):
    return ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls},renameat2,linkat",
            "-e", f"inject={calls}:delay_enter={int(seconds * 1e6)}", *more]


def begin_run(*command, wrap=()):
    return subprocess.Popen([*map(str, wrap), BINARY, *map(str, command)], env=CLEAN, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def other(tmp_path):
    path = tmp_path / "other.yaml"
    path.write_text(SPEC.format(seed=1))
    return path


def test_one_of_two_simultaneous_plans_fails_without_hard_links(spec, other, good, tmp_path):
    for turn in range(10):
        out = tmp_path / str(turn)
        runs = [begin_run("gen", path, "-o", out, wrap=delayed("fdatasync", 0.01, *BARE)) for path in (spec, other)]
        for run in runs:
            run.communicate(timeout=60)
        assert sorted(run.returncode for run in runs) == [0, 4]
        run_ok("verify", out)
        assert "plan.json" in tree_of(out) and len(tree_of(out)) == len(tree_of(good))


def test_gen_resumes_after_sigkill_during_its_claim(spec, good, tmp_path):
    for k in range(1, 20):
        result = run_tool("gen", spec, "-o", tmp_path / "out",
                          wrap=inject("renameat2,renameat,linkat", f"signal=SIGKILL:when={k}") + BARE)
        run_ok("gen", spec, "-o", tmp_path / "out")
        assert tree_of(tmp_path / "out") == tree_of(good)
        shutil.rmtree(tmp_path / "out")
        if result.returncode == 0:
            break
    # The killed run may not even have left an empty file.
    (tmp_path / "out").mkdir()
    (tmp_path / "out/plan.json").touch()
    run_ok("gen", spec, "-o", tmp_path / "out")
    assert tree_of(tmp_path / "out") == tree_of(good)


@pytest.mark.parametrize("point", ["plan.json", "ranks/rank-00001.json", "index.h5"])
def test_suspended_gen_leaves_another_plans_folder_unchanged(point, spec, other, good, tmp_path):
    """A suspended run that continues after its folder was given to another plan leaves that plan's files unchanged."""
    out = tmp_path / "out"
    run = begin_run("gen", spec, "-o", out, "--jobs", "1", wrap=delayed("fsync", 0.15))
    wait_for((out / point).exists)
    child = int(pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()[0])
    os.kill(child, signal.SIGSTOP)
    for path in out.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    run_ok("gen", other, "-o", out)
    before = tree_of(out)
    os.kill(child, signal.SIGCONT)
    run.communicate(timeout=60)
    assert run.returncode in (3, 4)
    assert tree_of(out) == before
    run_ok("verify", out)


def test_gen_exits_with_status_3_if_its_plan_is_lost(spec, good, tmp_path):
    """A run whose plan.json disappears fails with status 3, since the file may only not be visible yet; the same
    command completes the folder."""
    out = tmp_path / "out"
    run = begin_run("gen", spec, "-o", out, "--jobs", "1", wrap=delayed("fsync", 0.05))
    wait_for((out / "ranks/rank-00001.json").exists)
    (out / "plan.json").unlink()
    _, stderr = run.communicate(timeout=60)
    assert run.returncode == 3 and f"`{out}` has lost its plan.json, or it is not visible here yet" in stderr, stderr
    for path in (out / "manifest.json", out / "index.h5"):
        path.unlink(missing_ok=True)
    shutil.rmtree(out / "ranks")
    run_ok("gen", spec, "-o", out)
    assert tree_of(out) == tree_of(good)


@pytest.mark.parametrize("replaced", [False, True])
def test_gen_completes_a_folder_that_is_moved(replaced, spec, good, tmp_path):
    """A run whose folder is moved completes it there and reports the move, even if another folder has the old name."""
    out = tmp_path / "deep/out"
    run = begin_run("gen", spec, "-o", out, "--jobs", "1", wrap=delayed("fsync", 0.05))
    wait_for((out / "ranks/rank-00001.json").exists)
    (tmp_path / "deep").rename(tmp_path / "moved")
    if replaced:
        out.mkdir(parents=True)
    _, stderr = run.communicate(timeout=60)
    assert run.returncode == 3 and "was moved or removed" in stderr
    assert not list(out.iterdir()) if replaced else not (tmp_path / "deep").exists()
    assert tree_of(tmp_path / "moved/out") == tree_of(good)


# Nodes whose locks are their own ------------------------------------------------

def simulated_node(number, tmp_path):
    """Returns a command prefix that simulates the machine of this number, which does not see locks of other
    machines."""
    boot = tmp_path / f"boot-{number}"
    boot.write_text(f"00000000-0000-0000-0000-{number:012}\n")
    return ["unshare", "-m", "sh", "-c",
            f'mount --bind {boot} /proc/sys/kernel/random/boot_id && exec "$@"', "sh",
            "strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=flock,fdatasync", "-e", "inject=flock:retval=0",
            "-e", "inject=fdatasync:delay_enter=50000"]


@pytest.fixture
def nodes(tmp_path):
    made = [simulated_node(number, tmp_path) for number in range(3)]
    if subprocess.run([*made[0], "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here")
    return made


@pytest.mark.parametrize("ranks", [["0,1", "2,3", "0-3"], ["0-3"] * 3])
def test_simultaneous_nodes_keep_each_others_files(ranks, nodes, spec, good, tmp_path):
    for turn in range(3):
        out = tmp_path / str(turn)
        runs = []
        for node, which in zip(nodes, ranks):
            runs.append(begin_run("gen", spec, "-o", out, "--ranks", which, wrap=node))
            time.sleep(0.1)
        for run in runs:
            _, stderr = run.communicate(timeout=60)
            assert run.returncode == 0, stderr
        assert tree_of(out) == tree_of(good)


def test_gen_removes_files_of_a_killed_node(nodes, spec, good, tmp_path):
    out = tmp_path / "out"
    killed = run_tool("gen", spec, "-o", out, wrap=nodes[0] + ["-e", "inject=fdatasync:signal=SIGKILL:when=3"])
    assert killed.returncode != 0
    names = [name for name in tree_of(out) if ".tmp-" in name]
    assert names and not any(b"0000" in name.encode()[-33:-17] for name in names)  # No id appears in plain text.
    run_ok("gen", spec, "-o", out, wrap=nodes[1])
    assert tree_of(out) == tree_of(good)


# Signals ----------------------------------------------------------------------

@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_signals_end_gen_cleanly(number, tmp_path):
    (tmp_path / "big.yaml").write_text(BIG)
    out = tmp_path / "out"
    run = subprocess.Popen([BINARY, "gen", tmp_path / "big.yaml", "-o", out], env=CLEAN,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not any(p.is_file() and p.stat().st_size > 1 << 24 for p in out.rglob("*rank-*")):
        assert run.poll() is None and time.monotonic() < deadline, "the run ended before the signal"
        time.sleep(0.005)
    start = time.monotonic()
    run.send_signal(number)
    _, stderr = run.communicate(timeout=20)
    assert time.monotonic() - start < 3
    assert run.returncode in (-number, 128 + number), stderr
    assert stderr.endswith("shardinit: interrupted; finished ranks are kept, and the same command writes the rest\n")
    assert not is_committed(out)
    assert [p.name for p in (out / "ranks").iterdir()] == []


def test_gen_resumes_after_sigint(tmp_path):
    """After SIGINT, the same command keeps finished ranks, as the message promises."""
    (tmp_path / "x.yaml").write_text("shardinit: 1\nname: x\ndtype: f32\nmesh: {axes: {a: 256}}\nmodules:\n"
                                     "  w: {shape: [256, 16, 4096], shard: [a, null, null], init: {normal: {std: "
                                     "1}}}\n")
    command = ["gen", tmp_path / "x.yaml", "-o", tmp_path / "out", "--jobs", "1"]
    run = subprocess.Popen([BINARY, *command], env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not list((tmp_path / "out").glob("ranks/rank-*.json")):
        assert run.poll() is None and time.monotonic() < deadline, "the run ended before the signal"
        time.sleep(0.002)
    run.send_signal(signal.SIGINT)
    _, stderr = run.communicate(timeout=20)
    assert "the same command writes the rest" in stderr
    done = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out/ranks").glob("rank-*.json")}
    assert 0 < len(done) < 256
    run_ok(*command)
    assert all((tmp_path / "out/ranks" / name).stat().st_mtime_ns == time for name, time in done.items())
    run_ok("verify", tmp_path / "out")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
@pytest.mark.parametrize("command", ["export", "digest", "stats", "verify", "verify --spec", "finalize"])
def test_signals_end_every_command(command, number, spec, good, damaged, tmp_path):
    """A signal at any call ends a command with the signal's status, unless it has already finished."""
    (damaged / "manifest.json").unlink()
    (tmp_path / "long.yaml").write_text(BIG.replace("512, ", "16, "))
    run = {"export": ["export", spec, "--to", "dcp", "-o", tmp_path / "out"],
           "digest": ["digest", tmp_path / "long.yaml"],
           "stats": ["stats", spec], "verify": ["verify", good], "verify --spec": ["verify", good, "--spec", spec],
           "finalize": ["finalize", damaged]}[command]
    calls = "openat" if command == "finalize" else "clone3"
    statuses = set()
    # The libraries are opened before these calls.
    for k in range(45, 80, 5) if calls == "openat" else [1, 2]:
        result = run_tool(*run, wrap=inject(calls, f"signal={number.name}:when={k}"), timeout=30)
        assert result.returncode in (0, -number, 128 + number), result.stderr
        assert result.returncode == 0 or not result.stdout
        statuses.add(result.returncode)
    assert statuses - {0}, "no signal came in time"
    run_ok(*run)
    assert tree_of(damaged) == tree_of(good) or command != "finalize"
    assert not list(tmp_path.glob(".*tmp*"))


# Damage -----------------------------------------------------------------------

def boxes(name):
    """Returns (path, first byte, byte after the last) of every dataset in a rank file."""
    with h5py.File(name, "r") as file:
        return [(text_of(d.attrs["path"]), d.id.get_offset(), d.id.get_offset() + read_raw(d).nbytes)
                for d in datasets_in(file) if d.size]


def flip(name, position):
    with open(name, "r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0x10]))


def test_verify_accepts_what_gen_wrote(good):
    run_ok("verify", good)


def test_verify_changes_nothing(damaged, good):
    flip(damaged / "ranks/rank-00001.h5", 5000)
    before = tree_of(damaged)
    run_tool("verify", damaged)
    assert tree_of(damaged) == before


@pytest.mark.parametrize("rank", range(4))
def test_verify_names_the_tensor_with_a_flipped_bit(rank, damaged):
    name = damaged / f"ranks/rank-{rank:05}.h5"
    for path, start, end in boxes(name):
        for position in {start, (start + end) // 2, end - 1}:
            flip(name, position)
            result = run_tool("verify", damaged)
            assert result.returncode == 1
            assert path in result.stdout + result.stderr
            assert f"{rank}" in result.stdout + result.stderr
            assert json.loads(run_tool("verify", damaged, "--json").stdout)
            flip(name, position)
    run_ok("verify", damaged)


@pytest.mark.parametrize("name", ["ranks/rank-00000.h5", "ranks/rank-00003.h5", "ranks/rank-00000.json",
                                  "manifest.json", "plan.json", "index.h5"])
def test_verify_detects_flipped_bits_in_every_file(name, damaged):
    size = (damaged / name).stat().st_size
    chance = random.Random(name)
    for position in sorted({0, size - 1, *chance.sample(range(size), min(size, 60)),
                            *chance.sample(range(min(size, 3000)), min(size, 60, 3000))}):
        flip(damaged / name, position)
        result = run_tool("verify", damaged)
        assert result.returncode in (1, 5), f"{name}, byte {position}: exit {result.returncode}"
        assert result.stderr or result.stdout
        flip(damaged / name, position)
    run_ok("verify", damaged)


def halve(name):
    os.truncate(name, name.stat().st_size // 2)


def extend(name):
    with open(name, "ab") as file:
        file.write(b"\0" * 4096)


def empty(name):
    os.truncate(name, 0)


def zero(name):
    # A crash can leave a file of the right length without its data.
    (path, start, end) = max(boxes(name), key=lambda box: box[2] - box[1])
    with open(name, "r+b") as file:
        file.seek(start)
        file.write(b"\0" * (end - start))


def replace_by_folder(name):
    name.unlink()
    name.mkdir()


def replace_by_link(name):
    name.rename(name.with_name("elsewhere"))
    name.symlink_to("elsewhere")


@pytest.mark.parametrize("damage", [halve, extend, empty, zero, replace_by_folder, pathlib.Path.unlink],
                         ids=lambda f: f.__name__.lower())
def test_verify_finds_a_damaged_rank_file(damage, damaged):
    damage(damaged / "ranks/rank-00002.h5")
    result = run_tool("verify", damaged)
    assert result.returncode == 1, result.stderr
    assert "rank-00002" in result.stdout + result.stderr or "rank 2" in result.stdout + result.stderr


@pytest.mark.parametrize("name", ["manifest.json", "plan.json", "index.h5", "ranks", "ranks/rank-00002.h5",
                                  "ranks/rank-00002.json"])
def test_verify_reports_links_in_a_checkpoint(name, damaged, tmp_path):
    """A link in a checkpoint is a finding, as its target is outside the folder and may belong to anyone."""
    (damaged / name).rename(tmp_path / "elsewhere")
    (damaged / name).symlink_to(tmp_path / "elsewhere")
    done = run_tool("verify", damaged)
    assert done.returncode == 1 and f"{name}: is a link to elsewhere" in done.stderr, done.stderr
    (tmp_path / "link").symlink_to(damaged)  # The folder itself may be named by a link.
    (damaged / name).unlink()
    (tmp_path / "elsewhere").rename(damaged / name)
    run_ok("verify", tmp_path / "link")


def rewritten(before, folder):
    """Returns the files whose inodes are not in `before`."""
    return {name for name, inode in inodes(folder).items() if before.get(name) != inode}


def inodes(folder):
    return {str(p.relative_to(folder)): p.lstat().st_ino for p in folder.rglob("*") if not p.is_dir()}


RANK_1 = {"ranks/rank-00001.h5", "ranks/rank-00001.json", "index.h5", "manifest.json"}


@pytest.mark.quick
@pytest.mark.parametrize("name, damage, again", [
    ("ranks/rank-00001.h5", "data", RANK_1), ("ranks/rank-00001.h5", "head", RANK_1),
    ("ranks/rank-00001.h5", "link", RANK_1), ("ranks/rank-00001.h5", "cut", RANK_1),
    ("ranks/rank-00001.h5", "lost", RANK_1), ("ranks/rank-00001.json", "data", RANK_1),
    ("ranks/rank-00001.json", "link", RANK_1), ("ranks/rank-00001.json", "lost", RANK_1),
    ("index.h5", "data", {"index.h5", "manifest.json"}), ("index.h5", "lost", {"index.h5", "manifest.json"}),
    ("index.h5", "link", {"index.h5", "manifest.json"}), ("manifest.json", "data", {"index.h5", "manifest.json"}),
    ("manifest.json", "cut", {"index.h5", "manifest.json"}), ("manifest.json", "link", {"index.h5", "manifest.json"}),
    ("plan.json", "data", {"plan.json"}), ("plan.json", "cut", {"plan.json"}), ("plan.json", "lost", {"plan.json"}),
    ("plan.json", "link", {"plan.json"})])
def test_gen_repairs_what_verify_finds(name, damage, again, good, damaged, spec, tmp_path):
    """`--repair` restores the damaged file and leaves all other files alone, including foreign ones."""
    path = damaged / name
    if damage in ("data", "head"):
        flip(path, path.stat().st_size - 1 if damage == "data" and name.endswith("1.h5") else 30)
    elif damage == "cut":
        halve(path)
    else:
        path.rename(tmp_path / "elsewhere")
    if damage == "link":
        path.symlink_to(tmp_path / "elsewhere")
    before, mine = inodes(damaged), damaged / "mine"
    found = run_tool("verify", damaged)
    assert found.returncode == 1 and name in found.stderr and "--repair" in found.stderr
    mine.write_text("mine")
    run_ok("gen", spec, "-o", damaged, "--repair")
    assert rewritten(before, damaged) == again | {"mine"}
    assert mine.read_text() == "mine"
    mine.unlink()
    run_ok("verify", damaged)
    assert tree_of(damaged) == tree_of(good) and not any(p.is_symlink() for p in damaged.rglob("*"))
    before = inodes(damaged)
    assert "4 ranks" in run_ok("gen", spec, "-o", damaged, "--repair").stdout
    assert inodes(damaged) == before


@pytest.mark.quick
def test_repair_works_by_ranks_and_in_an_unfinished_folder(good, spec, tmp_path):
    out = tmp_path / "out"
    run_ok("gen", spec, "-o", out, "--ranks", "0,1", "--repair")  # The folder is still empty.
    flip(out / "ranks/rank-00000.h5", 30)
    flip(out / "ranks/rank-00001.h5", 30)
    run_ok("gen", spec, "-o", out, "--ranks", "1-3", "--repair")
    assert run_json("gen", spec, "-o", out, "--ranks", "1-3", "--repair")["ranks_written"] == 0
    assert run_json("gen", spec, "-o", out, "--repair")["ranks_written"] == 1
    run_ok("verify", out)
    assert tree_of(out) == tree_of(good)


def test_repair_does_not_override_a_conflict(damaged, good, spec):
    done = run_tool("gen", spec, "-o", damaged, "--set", "seed=5", "--repair")
    assert done.returncode == 4 and tree_of(damaged) == tree_of(good)
    (damaged / "manifest.json").unlink()  # Only the manifest shows that the damaged plan matched.
    flip(damaged / "plan.json", 40)
    before = tree_of(damaged)
    assert run_tool("gen", spec, "-o", damaged, "--repair").returncode in (4, 5) and tree_of(damaged) == before
    assert run_tool("gen", spec, "-o", damaged, "--repair", "--dry-run").returncode == 2


def test_progress_ends_at_100_percent(tmp_path):
    """Progress ends at 100%: `verify` counts stored replicas, but an export reads each element once."""
    (tmp_path / "x.yaml").write_text("shardinit: 1\nname: x\ndtype: f32\nmesh: {axes: {a: 8}}\n"
                                     "modules: {w: {shape: [3000, 3000], init: zeros}}\n")
    run_ok("gen", tmp_path / "x.yaml", "-o", tmp_path / "in", "--replicas", "full")

    def lines_of(*command):
        leader, follower = os.openpty()
        process = subprocess.Popen([BINARY, *command, "--progress", "always", "--jobs", "1"],
                                   stdout=subprocess.DEVNULL, stderr=follower, env={**CLEAN, "TERM": "xterm"})
        os.close(follower)
        talk = b""
        with contextlib.suppress(OSError):
            while part := os.read(leader, 65536):
                talk += part
        os.close(leader)
        assert process.wait() == 0
        return talk.decode().split("\r")

    shown = [line for line in lines_of("verify", tmp_path / "in") if "checking" in line]
    assert shown and all("of 288.0 MB" in line for line in shown)
    assert max(int(line.split("(")[1].split("%")[0]) for line in shown) <= 100
    shown = lines_of("export", tmp_path / "in", "--to", "safetensors", "-o", tmp_path / "out")
    assert any("wrote 36.0 MB" in line for line in shown) and not any("288.0 MB" in line for line in shown), shown


def test_verify_reports_foreign_names_in_a_checkpoint(damaged):
    (damaged / f".plan.json.tmp-{BITS}").write_text("")  # Belongs to a run that may still be active.
    (damaged / f"ranks/.rank-00001.h5.tmp-{BITS}").write_text("")
    run_ok("verify", damaged)
    # Runs never use names like the first three, so they are foreign, and no run removes them.
    strange = [".plan.json.tmp-mine", ".plan.json.tmp-0123456789abcdef", f".plan.json.tmp-{BITS.upper()}",
               "x", f".x.tmp-{BITS}", "ranks/x", "ranks/rank-00004.h5", "ranks/rank-00004.json",
               "ranks/rank-000001.h5", "ranks/rank-1.json", "ranks/rank--0001.h5", "ranks/index.h5", "rank-00000.h5"]
    for name in strange:
        (damaged / name).write_text("")
    (damaged / "folder").mkdir()
    (damaged / "folder/inner").write_text("")
    done = run_tool("verify", damaged, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    like_parts = {name for name in strange if name.startswith("ranks/") and name != "ranks/x"}
    assert {(f["file"], f["message"]) for f in found["findings"]} == {
        (name, "does not belong to the checkpoint") for name in like_parts}
    assert found["foreign"] == sorted({*strange, "folder"} - like_parts)


def test_verify_folds_and_counts_findings(damaged):
    """`verify` folds missing ranks into ranges, and lists the first thousand other findings and the number of the
    rest."""
    for rank in 0, 1, 3:
        (damaged / f"ranks/rank-{rank:05}.json").unlink()
    for i in range(1200):
        (damaged / f"ranks/x{i:04}.h5").touch()
        (damaged / f"x{i:04}").touch()
    done = run_tool("verify", damaged, "--json")
    findings = json.loads(done.stdout)
    assert [(f["file"], f["message"]) for f in findings["findings"]] == [
        ("ranks/rank-00000.json", "is missing, and so are those up to rank 1"), ("ranks/rank-00003.json", "is missing"),
        *[(f"ranks/x{i:04}.h5", "does not belong to the checkpoint") for i in range(998)]]
    assert findings["more_findings"] == 202
    assert findings["foreign"] == [f"x{i:04}" for i in range(1000)] and findings["more_foreign"] == 200
    assert "and 202 more\n" in done.stderr and "1,202 findings" in done.stderr


def test_verify_of_a_small_plan_of_many_ranks_is_fast(tmp_path):
    """A plan of 300 bytes cannot occupy `verify` for minutes."""
    (tmp_path / "x.yaml").write_text("shardinit: 1\nname: x\ndtype: bf16\nmesh: {axes: {a: 16777216}}\n"
                                     "modules: {w: {shape: [1], init: zeros}}\n")
    out = tmp_path / "out"
    run_ok("gen", tmp_path / "x.yaml", "-o", out, "--ranks", "0")
    (out / "manifest.json").write_text("{}")
    assert (out / "plan.json").stat().st_size < 320
    limit = ["prlimit", f"--as={300 << 20}", "--cpu=10"]
    done = run_tool("verify", out, wrap=limit, timeout=30)
    assert done.returncode == 1
    assert "ranks/rank-00001.json: is missing, and so are those up to rank 16777215" in done.stderr


def test_verify_finds_swapped_rank_files(damaged):
    a, b = damaged / "ranks/rank-00001.h5", damaged / "ranks/rank-00002.h5"
    a.rename(damaged / "x"), b.rename(a), (damaged / "x").rename(b)
    assert run_tool("verify", damaged).returncode == 1


@pytest.mark.parametrize("name", ["manifest.json", "plan.json", "ranks/rank-00001.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"a":' * 5000, "\xff", "1" * 10000,
                                  '{"format_version": 99}'], ids=range(9))
def test_commands_reject_broken_json(name, text, damaged):
    (damaged / name).write_bytes(text.encode("latin-1"))
    assert run_tool("verify", damaged).returncode in (1, 5)
    for command in ["status", "inspect", "finalize"]:
        result = run_tool(command, damaged)
        assert result.returncode in (0, 1, 2, 3, 5), f"{command}: {result.returncode} {result.stderr}"


def test_verify_rejects_manifest_paths_outside_the_folder(damaged, tmp_path):
    (tmp_path / "secret").write_text("secret")
    for name in ["manifest.json", "plan.json", "ranks/rank-00000.json"]:
        text = (damaged / name).read_text()
        (damaged / name).write_text(text.replace("rank-00000.h5", "../../secret"))
        result = run_tool("verify", damaged)
        assert result.returncode in (0, 1, 5)
        assert (result.returncode != 0) == ("rank-00000.h5" in text)
        (damaged / name).write_text(text)


# Hostile files ----------------------------------------------------------------

def external_data(file, _):
    file.create_dataset("w", (16,), "u1", external=[("/etc/passwd", 0, 16)])


def virtual(file, _):
    layout = h5py.VirtualLayout((16,), "u1")
    layout[:] = h5py.VirtualSource("/etc/passwd", "w", (16,))
    file.create_virtual_dataset("w", layout)


def external_link(file, _):
    file["w"] = h5py.ExternalLink("/etc/passwd", "/w")


def soft_link(file, _):
    file["w"] = h5py.SoftLink("/w")


def cycle(file, _):
    file.create_group("a")["b"] = file["/"]


def deep(file, _):
    group = file
    for _ in range(5000):
        group = group.create_group("g")


def shape_bomb(file, _):
    file.create_dataset("w", (1 << 40, 1 << 20), "f8", chunks=(1, 1))


def filtered(file, _):
    file.create_dataset("w", data=np.zeros(1 << 22, "u1"), compression="gzip")


def huge_attribute(file, _):
    file.create_dataset("w", (1,), "u1").attrs["path"] = "x" * 50_000


def wrong_types(file, _):
    dataset = file.create_dataset("w", (4,), "f4")
    dataset.attrs["path"], dataset.attrs["dtype"] = 7, [1.0, 2.0]
    dataset.attrs["global_shape"], dataset.attrs["offset"] = "x", -1
    file.attrs["rank"], file.attrs["mesh_axes"] = "zero", 3


def hostile_names(file, _):
    file.create_dataset("a\x1b[31mred\n/..", (1,), "u1").attrs["path"] = "../\x1b[31m"


def compound(file, _):
    file.create_dataset("w", (1,), [("a", "f4"), ("b", "S9")])
    file["type"] = np.dtype("f4")


def many(file, _):
    for i in range(2000):
        file.create_dataset(f"d{i}", (0,), "f4")


def endless(file, folder):
    """Adds a dataset with an unlimited number of sources, named by a pattern; HDF5 opens them to find the extent."""
    fifo = folder / "source-0.h5"
    if not fifo.exists():
        os.mkfifo(fifo)
    unlimited = h5py.h5s.UNLIMITED
    whole = h5py.h5s.create_simple((4,), (unlimited,))
    whole.select_hyperslab((0,), (unlimited,), (4,), (4,))
    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_virtual(whole, f"{folder}/source-%b.h5".encode(), b"w", h5py.h5s.create_simple((4,)))
    h5py.h5d.create(file.id, b"w", h5py.h5t.NATIVE_UINT8, whole, create)


@pytest.mark.parametrize("make", [external_data, virtual, endless, external_link, soft_link, cycle, deep, shape_bomb,
                                  filtered, huge_attribute, wrong_types, hostile_names, compound, many],
                         ids=lambda f: f.__name__)
@pytest.mark.parametrize("libver", ["earliest", "v110", "latest"])
def test_inspect_and_verify_survive_hostile_hdf5(make, libver, damaged, tmp_path):
    name = tmp_path / "foreign.h5"
    with h5py.File(name, "w", libver=libver, track_order=False) as file:
        make(file, tmp_path)
    result = run_tool("inspect", name, timeout=20)
    assert result.returncode in (0, 5), f"{result.returncode} {result.stderr}"
    assert "root:" not in result.stdout and "\x1b" not in result.stdout + result.stderr
    shutil.copy(name, damaged / "ranks/rank-00001.h5")
    assert run_tool("verify", damaged, timeout=20).returncode in (1, 5)
    assert run_tool("inspect", damaged, timeout=20).returncode in (0, 1, 5)


def test_inspect_rejects_a_dataset_of_unlimited_sources(tmp_path):
    """`inspect` rejects a file with unlimited sources without opening the first, a FIFO, which would block."""
    with h5py.File(tmp_path / "x.h5", "w", libver=("v110", "v110")) as file:
        endless(file, tmp_path)
    result = run_tool("inspect", tmp_path / "x.h5", timeout=20)
    assert result.returncode == 5 and "`/w` refers to other files without end" in result.stderr


def test_hdf5_reader_process_accesses_no_files(good, tmp_path):
    calls = tmp_path / "calls"
    run_ok("inspect", good / "index.h5",
           wrap=["strace", "-f", "-o", calls, "-e", "trace=open,openat,prlimit64,setrlimit,prctl"])
    lines = calls.read_text().splitlines()
    limit = max(i for i, line in enumerate(lines) if "RLIMIT_NOFILE, {rlim_cur=0, rlim_max=0}" in line)
    child = lines[limit].split()[0]
    assert [line for line in lines[limit:] if line.startswith(child) and "PR_SET_SECCOMP" in line]
    assert not [line for line in lines if line.startswith(child) and "open" in line]


def make_many_paths(file, levels, name):
    """Ten names for the same group at each level make 10^levels paths to a dataset."""
    group = file.create_group("g")
    group.create_dataset(name, (0,), "f4")
    for i in range(levels):
        outer = file.create_group(f"g{i}")
        for k in range(10):
            outer[f"{k}{name}"] = group
        group = outer


def test_inspect_output_is_limited_by_the_file_size(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        make_many_paths(file, 5, "x" * 60)
    size = (tmp_path / "x.h5").stat().st_size
    for arguments in [], ["--json"]:
        result = run_tool("inspect", tmp_path / "x.h5", *arguments, timeout=20)
        assert result.returncode == 5 and "too much for a file of this size" in result.stderr
    with h5py.File(tmp_path / "y.h5", "w") as file:  # One long path among many short ones.
        make_many_paths(file, 1, "x" * 4000)
        many(file, tmp_path)
    size = (tmp_path / "y.h5").stat().st_size
    assert len(run_ok("inspect", tmp_path / "y.h5").stdout) < size
    assert len(run_ok("inspect", tmp_path / "y.h5", "--json").stdout) < size


def test_inspect_json_is_utf_8_for_any_name(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset(b"w\xff\x80 \xc3\xa9", (1,), "u1")
    done = run_tool("inspect", tmp_path / "x.h5", "--json")
    assert json.loads(done.stdout)["datasets"][0]["dataset"] == "/w\\xff\\x80 é"


def test_inspect_lists_a_large_group(tmp_path):
    """`inspect` lists a group in one pass; a lookup of each name would exceed the time limit."""
    with h5py.File(tmp_path / "wide.h5", "w", libver="latest") as file:
        for i in range(10000):
            file.create_dataset(f"d{i}", (0,), "f4")
    assert len(json.loads(run_ok("inspect", tmp_path / "wide.h5", "--json").stdout)["datasets"]) == 10000


def test_a_killed_inspect_leaves_no_process(tmp_path):
    """A killed `inspect` leaves no child process, although the child has more output than fits in a pipe."""
    name = tmp_path / "many.h5"
    with h5py.File(name, "w") as file:
        many(file, tmp_path)
    process = subprocess.Popen([BINARY, "inspect", name], stdout=subprocess.DEVNULL)
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (child := children.read_text().split()):
        assert process.poll() is None
    process.send_signal(signal.SIGSTOP)
    process.kill()
    process.wait()
    stat = pathlib.Path(f"/proc/{child[0]}/stat")
    deadline = time.monotonic() + 60
    while stat.exists() and stat.read_text().rsplit(")")[1].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("text", [b"", b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n" + b"\xff" * 4096,
                                  b"not HDF5 at all\n" * 100, b"\0" * 10000], ids=range(5))
def test_inspect_rejects_files_that_are_not_checkpoints(text, tmp_path):
    (tmp_path / "x.h5").write_bytes(text)
    result = run_tool("inspect", tmp_path / "x.h5")
    assert result.returncode == 5, result.stderr
    assert "x.h5" in result.stderr


@pytest.mark.parametrize("seed", range(40))
def test_inspect_does_not_crash_on_mutated_rank_files(seed, damaged):
    name = damaged / "ranks/rank-00000.h5"
    chance = random.Random(seed)
    raw = bytearray(name.read_bytes())
    metadata = min(start for _, start, _ in boxes(name))
    for _ in range(chance.choice([1, 2, 8, 64])):
        raw[chance.randrange(max(metadata, 4096))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    name.write_bytes(raw)
    result = run_tool("inspect", name, timeout=20)
    assert result.returncode in (0, 1, 3, 5), f"{result.returncode} {result.stderr}"
    result = run_tool("verify", damaged, timeout=20)
    assert result.returncode in (0, 1, 5), f"{result.returncode} {result.stderr}"


@pytest.mark.parametrize("command", ["inspect", "verify", "finalize", "status"])
def test_commands_reject_fifos_devices_and_plain_folders(command, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for name in [tmp_path / "fifo", "/dev/null", tmp_path / "missing", tmp_path]:
        result = run_tool(command, name, timeout=10)
        assert result.returncode in (1, 2, 3, 5), f"{name}: {result.returncode}"
        assert result.stderr


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "fifo", "folder", "missing", "huge"])
def test_validate_rejects_devices_folders_and_huge_files(name, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 34)
    result = run_tool("validate", tmp_path / name, timeout=10)
    assert result.returncode in (2, 3)
    assert name.split("/")[-1] in result.stderr
