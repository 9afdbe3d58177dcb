"""Injects every fault at every call of each command that writes a result or reads a folder.

The command is killed at the n-th call of a kind, that call fails, or power fails. Then the exit status must report it,
no file may have its final name without its bytes, and other files must be unchanged. The same command, run again, must
succeed and leave nothing else.

A case is `COMMAND:CALL:INDEX:FAULT`. Each run draws a sample with the day's seed. To repeat a case, or to run all cases
that match:

    SHARDINIT_FAULTS='gen:pwrite:7:EIO' build/venv/bin/python -m pytest tests/python/test_every_fault.py
    SHARDINIT_FAULTS='*:*:*:*' build/venv/bin/python -m pytest -n 2 tests/python/test_every_fault.py

SHARDINIT_GENERATED_SEED sets the seed; `sh tests/generated.sh SECONDS every_fault` tries new seeds.
"""

import datetime
import errno
import fnmatch
import functools
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess

import pytest

from interposed import Counted, interposed, rule
from power_loss import Disk, trace
from support import run_ok, run_tool, tree_of
from test_full_disk import FOLDERS as ON_FULL_DISKS
from test_full_disk import KERAS, SPEC
from test_outputs import CAPTURED, CONFIG, OUTPUTS, PROGRAM, PYTHON

SEED = int(os.environ.get("SHARDINIT_GENERATED_SEED", datetime.date.today().toordinal()))
PATTERN = os.environ.get("SHARDINIT_FAULTS")
SAMPLE = 24  # cases for each command
MOST = 60  # seconds for each run

SOURCED = """
shardinit: 1
name: sourced
dtype: f32
mesh: {axes: {a: 2}}
sources: {old: {path: weights}}
modules:
  w: {shape: [200, 60], shard: [a], init: {source: old}}
  v: {shape: [20, 6], init: {normal: {std: 0.5}}}
"""

# Each command runs in a folder with its inputs (Command.make_inputs) and makes `out`, its last argument, in another
# folder. Commands that write one file run twice, the second time over the output for another input.
FILES = {name: OUTPUTS[name][0] for name in PROGRAM}
FOLDERS = {
    **ON_FULL_DISKS,
    "gen of a source": ["gen", "sourced.yaml", "-o"],
    "convert of weights": ["convert", "weights", "--to", "hdf5", "-o"],
}
# These continue earlier work: the command that makes it, the change to it, and the command under test.
PARTS = ["convert", "weights", "--to", "dcp", "--sharding", "fsdpv2", "--mesh", "fsdp=2"]
HALVES = {
    "reshard over leftovers": (FOLDERS["reshard"], lambda out: leave_staged(out), FOLDERS["reshard"]),
    "gen of the rest": (FOLDERS["gen"], lambda out: lose(out, "manifest.json"), FOLDERS["gen"]),
    "gen --repair": (FOLDERS["gen"], lambda out: flip(out / "ranks/rank-00001.h5"),
                     ["gen", "spec.yaml", "--repair", "-o"]),
    "finalize": (FOLDERS["gen"], lambda out: lose(out, "manifest.json", "index.h5"), ["finalize"]),
    "convert --ranks": ([*PARTS, "--ranks", "0", "-o"], lambda out: None, [*PARTS, "--ranks", "1", "-o"]),
}
READERS = {
    "verify": ["verify", "source"],
    "verify of an export": ["verify", "weights"],
    "verify --spec": ["verify", "weights", "--spec", "spec.yaml"],
    "status": ["status", "source"],
    "stats": ["stats", "source"],
    "diff --values": ["diff", "source", "weights", "--values"],
    "inspect": ["inspect", "source/ranks/rank-00001.h5"],
    "digest of a folder": ["digest", "weights"],
    "digest --check": ["digest", "spec.yaml", "--check", "digests.json"],
}
PROGRAMS = {"capture -o": OUTPUTS["capture -o"][0]}  # written in Python
COMMANDS = [*FILES, *(f"{name} again" for name in FILES), *FOLDERS, *HALVES, *READERS, *PROGRAMS]
# A single thread makes its calls in a fixed order.
THREADS = ("gen", "export", "convert", "reshard", "verify", "digest", "diff")


def lose(folder, *names):
    for name in names:
        (folder / name).unlink()


def flip(path):
    data = bytearray(path.read_bytes())
    data[-7] ^= 1
    path.write_bytes(data)


def leave_staged(out):
    """Leaves next to `out` the files that an equal run had staged when it was killed."""
    made = out.rename(out.with_name("made"))
    killed = rule("pwrite", "kill", when=3, where=f"{out.parent}/")
    run_tool(*FOLDERS["reshard"], out, cwd=out.parent.parent / "inputs", env=interposed(killed))
    assert list(out.parent.glob(".out.part-*")) and not out.exists()
    made.rename(out)


# Faults -------------------------------------------------------------------------

# Errors that calls of each kind may return. With `+`, all calls from the n-th on fail.
ERRORS = {
    "open": ["EIO", "EMFILE", "EMFILE+", "ESTALE", "EINTR", "ENOSPC", "EDQUOT", "EACCES"],
    "opendir": ["EIO", "EMFILE", "ENOMEM"],
    "readdir": ["EIO", "ESTALE"],
    "read": ["EIO", "ESTALE", "EINTR", "short", "one"],
    "pread": ["EIO", "EIO+", "ESTALE", "EINTR", "short", "one"],
    "write": ["EIO", "ENOSPC", "EDQUOT", "EINTR", "ENOSPC+", "short", "one"],
    "pwrite": ["EIO", "ENOSPC", "EDQUOT", "EINTR", "ENOSPC+", "ESTALE", "short", "one"],
    "stat": ["EIO", "ESTALE", "ESTALE+", "EACCES", "ENOMEM"],
    "access": ["EIO", "EACCES"],
    "readlink": ["EIO"],
    "link": ["EIO", "EMLINK", "ENOSPC", "EDQUOT"],
    "rename": ["EIO", "ENOSPC", "EDQUOT", "ESTALE"],
    "unlink": ["EIO", "EIO+", "EACCES", "ESTALE"],
    "mkdir": ["EIO", "ENOSPC", "EDQUOT", "EMLINK", "ESTALE"],
    "close": ["EIO", "ENOSPC", "EDQUOT", "EINTR"],
    "fsync": ["EIO", "ENOSPC", "EDQUOT", "EINTR", "ESTALE"],
    "fdatasync": ["EIO", "ENOSPC", "EDQUOT", "EINTR", "ESTALE"],
    "ftruncate": ["EIO", "ENOSPC", "EINTR"],
    "fallocate": ["EIO", "ENOSPC", "EDQUOT", "EINTR", "EOPNOTSUPP"],
    "mmap": ["ENOMEM"],
    "getrandom": ["EINTR", "one", "EPERM"],
    "malloc": ["ENOMEM"],
    "malloc of HDF5": ["ENOMEM"],
    "flock": ["EINTR", "ENOLCK"],
    "statfs": ["EIO", "ENOSYS"],
    "chmod": ["EPERM", "EIO"],
    "fork": ["EAGAIN", "ENOMEM"],
    "pipe": ["EMFILE"],
    "thread": ["EAGAIN"],
}
CALLS = list(ERRORS)
# Each kind of `malloc` counts the requests of one library. HDF5 crashes or calls exit(-1) at some places when memory
# runs out, mostly while it starts.
MEMORY = {"malloc": "libstdc++.so.6", "malloc of HDF5": "libhdf5_serial.so.103"}
ENDING = 100  # calls for memory, at most, to report that a command is missing
CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, 255)
# The message must contain the error's text if one of these fails. Exceptions: if space cannot be reserved, it reports
# the free space; if a place is not writable, it reports only that.
SAYS_WHY = [call for call in ERRORS if call not in (*MEMORY, "mmap", "fork", "thread", "fallocate", "access")]
# After an interrupted or partial call the command continues and succeeds.
GOES_ON = ["EINTR", "short", "one"]


def fault(call, index, kind, where):
    call = call.split()[0]
    if kind == "kill":
        return rule(call, "kill", when=index, where=where)
    if kind in ("short", "one"):
        return rule(call, "short", 1 if kind == "one" else 0, when=index, where=where)
    name, more = kind.rstrip("+"), kind[len(kind.rstrip("+")):]
    return rule(call, "fail", getattr(errno, name), when=f"{index}{more}", where=where)


# Folders ------------------------------------------------------------------------

# Files of others: next to the output, some with names similar to shardinit's temporary files.
SENTINELS = ["mine", ".out.tmp-mine", f".other.tmp-{'0' * 16}-{'1' * 16}", "out.part", ".out.part-mine"]


def put_tree(tree, folder):
    for path, data in tree.items():
        if data is None:  # Incomplete folders are private.
            (folder / path).mkdir(0o700 if re.search(r"\.part-[^/]*$", path) else 0o777)
        else:
            (folder / path).write_bytes(data)


def is_temporary(path):
    """Returns whether the path is, or is inside, incomplete output of a run."""
    return any(re.fullmatch(r"\..*\.(tmp-[0-9a-f]{16}-[0-9a-f]{16}|part-[0-9a-f]{16})|out\.parts", part)
               for part in pathlib.PurePath(path).parts)


@functools.cache
def count_common_requests():
    """Counts the memory requests that every command makes first, for its options and HDF5's tables."""
    counted = Counted(*(rule("malloc", "count", when=0, where=where) for where in MEMORY.values()))
    assert run_tool(env=counted.env).returncode == 2
    return {call: count - ENDING for call, count in zip(MEMORY, counted.met())}


def file_states(folder):
    """Returns metadata that changes when a file changes, without reading it."""
    return {path: (info.st_ino, info.st_size, info.st_mtime_ns) for path in sorted(folder.rglob("*"))
            for info in [path.lstat()]}


def tree_key(tree):
    """Returns a key; it is equal for trees that differ only in the random part of temporary names."""
    hash_ = hashlib.sha256()
    masked = [(re.sub(r"-[0-9a-f]{16}", "-X", path), data) for path, data in tree.items()]
    for path, data in sorted(masked, key=lambda each: (each[0], each[1] or b"")):
        hash_.update(f"{path} {data if data is None else hashlib.sha256(data).hexdigest()}\n".encode())
    return hash_.hexdigest()


class Wrong(Exception):
    """A case did not end as required."""


def need(holds, what):
    if not holds:
        raise Wrong(what)


class Command:
    """A command with its inputs, the files that exist before it, and its result.

    A name that is not in the tables above needs `words`, or `half` as in HALVES to continue earlier work."""

    def __init__(self, name, folder, words=None, half=None):
        self.name, self.inputs, self.work = name, folder / "inputs", folder / "work"
        self.reads_only, self.in_python = name in READERS, name in PROGRAMS
        self.make_inputs()
        self.work.mkdir()
        if half := half or HALVES.get(name):
            first, change, self.words = half
            run_ok(*first, self.work / "out", cwd=self.inputs)
            change(self.work / "out")
        else:
            self.words = words or {**FILES, **FOLDERS, **READERS, **PROGRAMS}[name.removesuffix(" again")]
        if name.endswith(" again"):
            others = {"spec.yaml": "other.yaml", "config.json": "other.json"}
            run_ok(*(others.get(word, word) for word in self.words), self.work / "out", cwd=self.inputs)
        if self.words[0] in THREADS:
            self.words = [self.words[0], "--jobs", "1", *self.words[1:]]
        self.before = tree_of(self.work)
        self.state = file_states(self.inputs)
        self.reset()
        result = self.run()
        assert result.returncode == 0, result
        self.good, self.printed = self.look(), result.stdout
        assert self.reads_only or self.good != self.before
        self.reset()
        counted = Counted(*(rule(call.split()[0], "count", when=0, where=self.where(call)) for call in CALLS))
        assert self.run(env=counted.env).returncode == 0
        self.counts = dict(zip(CALLS, counted.met()))
        if self.in_python:  # Other packages use these libraries, too, and end the process without memory.
            self.counts.update(dict.fromkeys(MEMORY, 0))
        assert self.in_python or all(self.counts[call] for call in MEMORY)
        # The first command alone tests the calls that all commands share.
        self.first = {call: 1 if name == COMMANDS[0] else 1 + count_common_requests().get(call, 0) for call in CALLS}
        self.reruns = set()
        self.traced = None

    def where(self, call):
        """Returns where calls are counted. Python makes many of its own elsewhere."""
        return MEMORY.get(call) or (f"{self.work}/" if self.in_python else "*")

    def make_inputs(self):
        self.inputs.mkdir()
        for name, text in {"spec.yaml": SPEC, "keras.yaml": KERAS, "config.json": CONFIG,
                           "other.yaml": SPEC.replace("std: 0.5", "std: 0.25").replace("a: 2", "a: 4"),
                           "other.json": json.dumps({**json.loads(CONFIG), "num_hidden_layers": 1}),
                           "sourced.yaml": SOURCED}.items():
            (self.inputs / name).write_text(text)
        run_ok("gen", "spec.yaml", "-o", "source", cwd=self.inputs)
        run_ok("export", "spec.yaml", "--to", "safetensors", "-o", "weights", cwd=self.inputs)
        run_ok("digest", "spec.yaml", "--write", "digests.json", cwd=self.inputs)

    def reset(self):
        shutil.rmtree(self.work)
        self.work.mkdir()
        put_tree(self.before, self.work)
        for name in SENTINELS:
            (self.work / name).write_text(f"mine: {name}\n")

    def run(self, env=None):
        if self.in_python:
            return subprocess.run([*CAPTURED, *self.words, self.work / "out"], cwd=self.inputs, text=True, timeout=MOST,
                                  capture_output=True, stdin=subprocess.DEVNULL, env={**PYTHON, **(env or {})})
        out = [] if self.reads_only else [self.work / "out"]
        return run_tool(*self.words, *out, cwd=self.inputs, env=env, timeout=MOST)

    def look(self):
        """Returns the files in `work` after checking that files of others are unchanged."""
        tree = tree_of(self.work)
        for name in SENTINELS:
            need(tree.pop(name, b"") == f"mine: {name}\n".encode(), f"{name} belongs to others, but is lost or changed")
        return tree

    def trace(self):
        """Returns the disk operations of a run."""
        if self.traced is None:
            self.reset()
            self.traced = trace(self.work, *self.words, self.work / "out", cwd=self.inputs)
        return self.traced

    def kinds(self, call):
        """Returns the faults for a call.

        Readers write only into a pipe, which is never full. A kill at a call that does not touch the disk leaves the
        same files as a kill at the next call that does."""
        kill = [] if call in (*MEMORY, "getrandom") else ["kill"]
        return [*kill, *(GOES_ON if self.reads_only and call == "write" else ERRORS[call])]

    def cases(self):
        """Yields every case as (call, index, kind of fault)."""
        for call, count in self.counts.items():
            for index in range(self.first[call], count + 1):
                for kind in self.kinds(call):
                    yield call, index, kind
        if not (self.reads_only or self.in_python):
            for index in range(1, len(self.trace()) + 1):
                yield "power", index, "lost"

    def draw(self, chance):
        """Draws a case. Each call has the same probability, since some are made much more often than others."""
        calls = [call for call, count in self.counts.items() if count]
        call = chance.choice(calls if self.reads_only or self.in_python else [*calls, "power"])
        if call == "power":
            return call, chance.randint(1, len(self.trace())), "lost"
        return call, chance.randint(self.first[call], self.counts[call]), chance.choice(self.kinds(call))

    def check_power(self, index):
        """Checks every state in which power loss can leave the disk after the first `index` operations."""
        self.reset()
        disk = Disk(tree_of(self.work))
        for call in self.trace()[:index]:
            disk.apply(*call)
        for tree in disk.states():
            if tree_key({path: data for path, data in tree.items() if path not in SENTINELS}) in self.reruns:
                continue
            shutil.rmtree(self.work)
            self.work.mkdir()
            put_tree(tree, self.work)
            self.check_left()

    def check(self, call, index, kind):
        if call == "power":
            return self.check_power(index)
        self.reset()
        injected = Counted(fault(call, index, kind, self.where(call)))
        try:
            result = self.run(env=injected.env)
        except subprocess.TimeoutExpired:
            raise Wrong("the command did not end within a minute") from None
        finally:
            happened = injected.met()[0] >= index
        self.check_status(result, call, kind, happened)
        left = self.check_left()
        if result.returncode == 0:
            need({path: data for path, data in left.items() if not is_temporary(path)} == self.good,
                 f"the command succeeded, but left {sorted(left)}: {result.stderr}")
            need(result.stdout == self.printed, f"the command succeeded, but printed {result.stdout}")

    def check_left(self):
        """Checks that the next run can continue from the files that a run left."""
        left = self.look()
        need(file_states(self.inputs) == self.state, "the inputs changed")
        for path, data in left.items():
            if not is_temporary(path):
                need(data in (self.good.get(path, b"-"), self.before.get(path, b"-")),
                     f"{path} has its final name, but not the right bytes")
        if self.reads_only:
            need(left == {}, f"the command left {sorted(left)}")
        elif (key := tree_key(left)) not in self.reruns:
            again = self.run()
            need(again.returncode == 0, f"the next run ended with {again.returncode}: {again.stderr}")
            end = self.look()
            need(end == self.good, f"the next run left {sorted(end)}")
            self.reruns.add(key)
        return left

    def check_status(self, result, call, kind, happened):
        status, said = result.returncode, f"the command ended with {result.returncode}: {result.stderr}"
        if self.in_python and (call, kind) == ("close", "EINTR"):  # Python treats it as an error.
            need(status == 3, said)
        elif not happened or kind in GOES_ON:
            need(status == 0, said)
        elif kind == "kill":  # `inspect` reads in another process, which may end as on a hostile file.
            need(status in (0, -signal.SIGKILL) or self.name == "inspect" and status in (3, 5), said)
        elif call == "malloc of HDF5":
            need(status in (0, 3, *CRASHES) or self.name == "inspect" and status == 5, said)
        else:
            # Without permission for a place, retries cannot succeed.
            need(status in (0, 2 if kind == "EACCES" else 3), said)
            if status != 0 and call in SAYS_WHY:
                need(os.strerror(getattr(errno, kind.rstrip("+"))) in result.stderr, said)


ASKED = [name for name in COMMANDS if not PATTERN or fnmatch.fnmatchcase(name, PATTERN.split(":")[0])]
assert ASKED, f"SHARDINIT_FAULTS: no command matches `{PATTERN}`"


@pytest.mark.parametrize("name", ASKED)
def test_commands_recover_from_every_injected_fault(name, tmp_path):
    command = Command(name, tmp_path)
    chance = random.Random(f"{SEED} {name}")
    if PATTERN:
        cases = [case for case in command.cases() if fnmatch.fnmatchcase(":".join(map(str, (name, *case))), PATTERN)]
    else:
        cases = [command.draw(chance) for _ in range(SAMPLE)]
    wrong = []
    for case in cases:
        try:
            command.check(*case)
        except Wrong as e:
            wrong.append(f"SHARDINIT_FAULTS='{name}:{':'.join(map(str, case))}': {e}")
    assert cases and not wrong, f"{len(wrong)} of {len(cases)} cases, seed {SEED}:\n" + "\n".join(wrong)


# What was wrong before ----------------------------------------------------------

@pytest.fixture
def folder(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    run_ok("gen", "spec.yaml", "-o", "source", cwd=tmp_path)
    return tmp_path


@pytest.fixture
def fails(folder):
    """Returns a function that runs a command whose calls fail on paths with this prefix."""
    def run(calls, error, where, *words, when="1+"):
        return run_tool(*words, cwd=folder, env=interposed(rule(calls, "fail", error, when=when, where=where)))

    return run


@pytest.mark.parametrize("calls", ["open", "pread"])
def test_unreadable_old_output_exits_with_status_3(calls, folder, fails):
    """If the old output cannot be read, the run ends with 3, not with 4 as if another program had written it.
    Interrupted and short reads are retried."""
    words = ["plan", "spec.yaml", "--html", "page"]
    run_ok(*words, cwd=folder)
    before = (folder / "page").read_bytes()
    result = fails(calls, errno.EIO, folder / "page", *words)
    assert result.returncode == 3 and "cannot read `page`: Input/output error" in result.stderr
    assert (folder / "page").read_bytes() == before
    assert fails(calls, errno.EINTR, folder / "page", *words, when=1).returncode == 0
    run_ok(*words, cwd=folder, env=interposed(rule("pread", "short", 1)))


def test_gen_works_if_the_mount_table_is_unreadable(folder, fails):
    result = fails("read", errno.EIO, "mountinfo", "gen", "spec.yaml", "-o", "out")
    assert result.returncode == 0, result.stderr  # Before a fix, the status was 70.


def test_interrupted_open_of_a_folder_is_retried(folder, fails):
    for words in (["status", "source"], ["gen", "spec.yaml", "-o", "out"], ["verify", "source"]):
        for when in range(1, 8):
            result = fails("open", errno.EINTR, f"{folder}/", *words, when=when)
            assert result.returncode == 0, result.stderr


def test_stat_error_on_a_spec_does_not_select_the_shipped_one(folder, fails):
    (folder / "llama3-tiny").write_text(SPEC)
    wanted = run_ok("digest", "llama3-tiny", cwd=folder).stdout
    for when in range(1, 8):
        result = fails("stat", errno.EIO, folder / "llama3-tiny", "digest", "llama3-tiny", when=when)
        assert result.returncode == 0 and result.stdout == wanted or \
            result.returncode == 3 and "cannot read `llama3-tiny`" in result.stderr and result.stdout == "", result


@pytest.mark.parametrize("error", ["EIO", "ESTALE"])
def test_unreadable_hdf5_exits_with_status_3(error, folder, fails):
    """Unreadable HDF5 gives status 3, so that jobs try again; 5 is for hostile and 2 for other files."""
    words = ["inspect", "source/ranks/rank-00001.h5"]
    printed = run_ok(*words, cwd=folder).stdout
    for calls in ("open", "pread", "stat"):
        for when in range(1, 20):
            # The sandboxed reader may not query the path of a descriptor; it reads only this file.
            where = "*" if calls == "pread" else folder / words[1]
            result = fails(calls, getattr(errno, error), where, *words, when=when)
            assert result.returncode == 3 and os.strerror(getattr(errno, error)) in result.stderr \
                or result.returncode == 0 and result.stdout == printed, result
            if result.returncode == 0:
                break


@pytest.mark.parametrize("calls", ["open", "stat", "mkdir", "rename", "unlink", "fsync"])
def test_next_run_removes_a_staged_folder(calls, folder):
    """After a run is killed or fails at any of these calls, the next run removes its staged folder."""
    words = ["reshard", "source", "--mesh", "a=4", "-o", "out"]
    run_ok(*words, cwd=folder)
    wanted = tree_of(folder / "out")
    shutil.rmtree(folder / "out")
    for kind in (rule(calls, "kill", when=0, where=f"{folder}/."),
                 rule(calls, "fail", errno.EMFILE, when=0, where=f"{folder}/.")):
        for when in range(1, 12):
            run_tool(*words, cwd=folder, env=interposed(kind.replace("\t0\t", f"\t{when}\t", 1)))
            run_ok(*words, cwd=folder)
            assert tree_of(folder / "out") == wanted
            assert sorted(path.name for path in folder.iterdir()) == ["out", "source", "spec.yaml"]
            shutil.rmtree(folder / "out")


def test_stat_error_on_a_source_is_not_a_change(folder, fails):
    """A `stat` error on the source is not treated as a changed source, so the next run finds the earlier work."""
    run_ok("export", "spec.yaml", "--to", "safetensors", "-o", "weights", cwd=folder)
    words = ["convert", "weights", "--to", "hdf5", "-o", "out"]
    for when in range(1, 12):
        result = fails("stat", errno.EIO, folder / "weights/model", *words, when=when)
        assert result.returncode in (0, 3) and "was changed" not in result.stderr, result
        run_ok(*words, cwd=folder)
        assert sorted(path.name for path in folder.iterdir()) == ["out", "source", "spec.yaml", "weights"]
        shutil.rmtree(folder / "out")


def test_half_written_record_is_not_part_of_the_export(folder):
    run_ok("export", "spec.yaml", "--to", "safetensors", "-o", "weights", cwd=folder)
    run_ok(*PARTS, "-o", "wanted", cwd=folder)
    run_ok(*PARTS, "--ranks", "0", "-o", "out", cwd=folder)
    words = [*PARTS, "--ranks", "1", "-o", "out"]
    killed = rule("pwrite", "kill", when=1, where=folder / "out.parts/files/.shardinit-export.json")
    assert run_tool(*words, cwd=folder, env=interposed(killed)).returncode == -signal.SIGKILL
    run_ok(*words, cwd=folder)
    assert tree_of(folder / "out") == tree_of(folder / "wanted")


def test_out_of_memory_is_not_reported_as_damage(tmp_path):
    """If memory for parsing a manifest runs out, the run does not report damage (1)."""
    command = Command("export of a checkpoint", tmp_path)
    for index in range(command.first["malloc"], command.counts["malloc"], 9):
        command.check("malloc", index, "ENOMEM")


def test_run_without_free_descriptors_still_knows_its_machine(tmp_path):
    """A run without free file descriptors still knows its machine, so the next run removes its leftovers."""
    command = Command("reshard over leftovers", tmp_path)
    for index in range(1, command.counts["open"] + 1):
        command.check("open", index, "EMFILE+")


@pytest.mark.parametrize("when", [1, 20, 100, 1000, 2000, 4000, 8000])
def test_out_of_memory_exits_with_status_3(when, folder):
    """Exhausted memory gives status 3 even before main and in `noexcept` functions."""
    memory = rule("malloc", "fail", errno.ENOMEM, when=f"{when}+", where=MEMORY["malloc"])
    result = run_tool("validate", "spec.yaml", cwd=folder, env=interposed(memory))
    assert result.returncode == 3 and "error: out of memory" in result.stderr, result


def test_cleanup_of_parts_may_be_killed_at_any_removal(tmp_path):
    """Cleaning up after parts removes the claim last. Otherwise, after a kill, the next run would not recognize the
    rest."""
    command = Command("convert --ranks", tmp_path)
    for index in range(1, command.counts["unlink"] + 1):
        command.check("unlink", index, "kill")


@pytest.mark.parametrize("name", ["out", "m+1.yaml"])
def test_next_capture_removes_files_of_a_killed_one(tmp_path, name):
    """A killed capture's temporary file is removed by the next run; a file from another machine is kept for hours."""
    words = [*CAPTURED, *OUTPUTS["capture -o"][0], name]
    others = tmp_path / f".{name}.tmp-{'0' * 16}-{'1' * 16}"
    others.touch()
    # A temporary file of a result with a similar name.
    foreign = tmp_path / f".mm1_yaml.tmp-{'0' * 16}-{'1' * 16}"
    foreign.touch()
    os.utime(foreign, (0, 0))

    def capture(*rules):
        return subprocess.run(words, cwd=tmp_path, env={**PYTHON, **interposed(*rules)}, capture_output=True, text=True)

    for call in ("write", "fsync", "link", "unlink"):
        killed = capture(rule(call, "kill", when=1, where=f"{tmp_path}/"))
        assert killed.returncode == -signal.SIGKILL and len(list(tmp_path.glob(f".{name}.tmp-*"))) == 2
        assert capture().returncode == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([foreign.name, others.name, name])
        (tmp_path / name).unlink()
    os.utime(others, (0, 0))
    assert capture().returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [foreign.name, name]
    unread = capture(rule("read", "fail", errno.EIO, where=tmp_path / name))
    assert unread.returncode == 3 and "Input/output error" in unread.stderr and "Traceback" not in unread.stderr
