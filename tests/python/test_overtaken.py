"""Two equal runs at once: at whatever call one waits, another may begin and end. Both succeed, or one reports that the
other is at work; the result has the bytes of one run. If one is killed or one of its calls fails, the other still
succeeds, and the next run cleans up.

A case is `COMMAND:INDEX:END:OTHER`: the call at which the first run waits; whether it then `goes on`, `is killed` or
`fails`; and whether the other run meanwhile `goes on` to its end, `is killed at N` or `fails at N`. The day's seed
draws some cases for each run. These commands repeat one case, and run all matching cases with a random N:

    SHARDINIT_MEETINGS='gen:7:goes on:fails at 9' build/venv/bin/python -m pytest tests/python/test_overtaken.py
    SHARDINIT_MEETINGS='*:*:*:*' build/venv/bin/python -m pytest -n 2 tests/python/test_overtaken.py
"""

import errno
import fnmatch
import os
import random
import shutil

import pytest

from bucket_tools import make_two_models
from interposed import Counted, interposed, rule
from stopping import Stopped
from support import run_ok, run_tool, tree_of
from test_every_fault import FILES, FOLDERS, HALVES, SEED, Command, Wrong, is_temporary, need

PATTERN = os.environ.get("SHARDINIT_MEETINGS")
SAMPLE = 5  # cases of each command
LOOKS = "open,stat,rename,link,mkdir,unlink,opendir"
ENDS = ("goes on", "is killed", "fails")
EVERY_RANK = ["convert", "weights", "--sharding", "fsdpv2", "--mesh", "fsdp=2", "--ranks", "0-1", "--to"]
HALVES_TOO = {
    **HALVES,
    "reshard --ranks": (["reshard", "source", "--mesh", "a=4", "--ranks", "0-2", "-o"], lambda out: None,
                        ["reshard", "source", "--mesh", "a=4", "--ranks", "3", "-o"]),
}
WHOLE = {
    **FILES,
    **FOLDERS,
    **{f"convert --ranks --to {form}": [*EVERY_RANK, form, "-o"] for form in ("hdf5", "safetensors", "dcp", "zarr")},
}


def make_rules(end, at, command):
    """Returns the rules that let a run continue, be killed, or fail at its n-th call."""
    where = f"{command.work}/"
    return {"goes on": [], "is killed": [rule(LOOKS, "kill", when=at, where=where)],
            "fails": [rule(LOOKS, "fail", errno.EIO, when=at, where=where)]}[end]


# Possible exit statuses. A failed call may be irrelevant to the result, and the fault may come after the last call.
STATUSES = {"goes on": [0], "is killed": [-9, 0], "fails": [0, 3]}


def check(command, at, end, other):
    command.reset()
    first = Stopped(command.work.parent, LOOKS, f"{command.work}/", *command.words, command.work / "out",
                    cwd=command.inputs, when=at, rules=make_rules(end, at, command))
    meanwhile, _, then = other.partition(" at ")
    try:
        second = command.run(env=interposed(*rules) if (rules := make_rules(meanwhile, then, command)) else None)
    finally:
        status, stdout, stderr = first.go()
    said = f"the first ended with {status}: {stderr}, the second with {second.returncode}: {second.stderr}"
    is_busy = second.returncode == 4 and "another process" in second.stderr
    need(second.returncode in STATUSES[meanwhile] or is_busy, said)
    need(status == -9 if end == "is killed" else status in STATUSES[end], said)
    need("unfinished" not in stdout + second.stdout or command.name == "convert --ranks", said + stdout + second.stdout)
    left = command.check_left()
    if (end, meanwhile) != ("goes on", "goes on"):
        left = {path: data for path, data in left.items() if not is_temporary(path)}
    need(left == command.good or 0 not in (status, second.returncode), f"they left {sorted(left)}; {said}")
    need(left in (command.good, command.before) or meanwhile != "goes on", f"they left {sorted(left)}; {said}")


@pytest.mark.parametrize("name", [name for name in [*WHOLE, *HALVES_TOO]
                                  if not PATTERN or fnmatch.fnmatchcase(name, PATTERN.split(":")[0])])
def test_overtaken_runs_end_with_the_same_files(name, tmp_path):
    command = Command(name, tmp_path, WHOLE.get(name), HALVES_TOO.get(name))
    command.reset()
    counted = Counted(rule(LOOKS, "count", when=0, where=f"{command.work}/"))
    assert command.run(env=counted.env).returncode == 0
    (looks,) = counted.met()
    chance = random.Random(f"{SEED} {name}")

    def others():
        return ["goes on", *(f"{end} at {chance.randint(1, looks)}" for end in ENDS[1:])]

    if PATTERN and (asked := PATTERN.split(":"))[3:] and " at " in asked[3]:
        cases = [(int(asked[1]), asked[2], asked[3])]
    elif PATTERN:
        cases = [(at, end, other) for at in range(1, looks + 1) for end in ENDS for other in others()
                 if fnmatch.fnmatchcase(f"{name}:{at}:{end}:{other}", PATTERN)]
    else:
        cases = [(chance.randint(1, looks), chance.choice(ENDS), chance.choice(others())) for _ in range(SAMPLE)]
    wrong = []
    for case in cases:
        try:
            check(command, *case)
        except Wrong as e:
            wrong.append(f"SHARDINIT_MEETINGS='{name}:{':'.join(map(str, case))}': {e}")
    assert cases and not wrong, f"{len(wrong)} of {len(cases)} cases, seed {SEED}:\n" + "\n".join(wrong)


FORMS = ["safetensors", "dcp", "zarr", "hdf5"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("words, call, name", [([], "rename", "out"), (["--ranks", "0"], "mkdir", "out.parts/notes")])
def test_concurrent_runs_with_other_values_conflict(tmp_path, form, words, call, name):
    """If a run from another source finishes first, its values are not accepted as this run's."""
    make_two_models(tmp_path)
    first = Stopped(tmp_path, call, f"{tmp_path}/{name}", "convert", "first/model", "--to", form, "-o", "out", *words,
                    cwd=tmp_path)
    run_ok("convert", "second/model", "--to", form, "-o", "out", cwd=tmp_path)
    there = tree_of(tmp_path / "out")
    status, stdout, stderr = first.go()
    assert status == 4 and tree_of(tmp_path / "out") == there, (status, stdout, stderr)


@pytest.mark.parametrize("form", FORMS)
def test_whole_run_overtakes_a_run_of_some_ranks(tmp_path, form):
    make_two_models(tmp_path)
    command = ["convert", "first/model", "--to", form, "-o", "out"]
    first = Stopped(tmp_path, "mkdir", f"{tmp_path}/out.parts/notes", *command, "--ranks", "0", cwd=tmp_path)
    run_ok(*command, cwd=tmp_path)
    there = tree_of(tmp_path / "out")
    status, stdout, stderr = first.go()
    assert status == 0 and tree_of(tmp_path / "out") == there, (status, stdout, stderr)
    assert sorted(p.name for p in tmp_path.iterdir() if "out" in p.name) == ["out"], (stdout, stderr)


@pytest.mark.parametrize("form", ["safetensors", "hdf5"])
def test_next_run_removes_lock_probe_of_a_killed_run(tmp_path, form):
    """After a run is killed while it looks for files of another, the next run removes the file that is used to ask for
    locks. It used to stay next to the folder forever."""
    make_two_models(tmp_path)
    command = ["convert", "first/model", "--to", form, "-o", "out"]
    killed = [interposed(rule(call, "kill", where=f"{tmp_path}/{where}")) for call, where in
              (("fsync", ".out."), ("unlink", ".out.tmp-"))]
    for env, left in zip(killed, (["folder"], ["file", "folder"])):
        assert run_tool(*command, cwd=tmp_path, env=env).returncode == -9
        assert sorted("folder" if path.is_dir() else "file" for path in tmp_path.glob(".out.tmp-*")) == left
    run_ok(*command, cwd=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == ["out"]


def test_next_run_cleans_up_after_two_killed_runs(tmp_path):
    """The next run cleans up after two killed runs: one killed before its folder has a name that others can continue,
    the other meanwhile, after naming its own."""
    run_ok("gen", "llama3-tiny", "-o", "source", cwd=tmp_path)
    command = ["reshard", "source", "--mesh", "fsdp=1,tensor=1", "-o", "out"]
    dies = [rule(call, "kill", where=f"{tmp_path}/.out.{kind}-") for call,
            kind in (("rename", "part"), ("mkdir", "part"))]
    first = Stopped(tmp_path, "rename", f"{tmp_path}/.out.part-", *command, cwd=tmp_path, rules=dies[:1])
    second = run_tool(*command, cwd=tmp_path, env=interposed(dies[1]))
    assert second.returncode == first.go()[0] == -9, second
    assert sorted(path.name[:9] for path in tmp_path.glob(".out.*")) == [".out.part", ".out.tmp-"]
    run_ok(*command, cwd=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == ["out"]


def test_overtaken_run_leaves_no_temporary_file(tmp_path):
    """A run that stops before renaming a file leaves no temporary file if another run makes that file too and completes
    the folder."""
    make_two_models(tmp_path)
    file = "ranks/rank-00000.h5"
    words = ["convert", "first/model", "--to", "hdf5", "--sharding", "fsdpv2", "--mesh", "fsdp=2", "-o", "out",
             "--ranks"]
    first = Stopped(tmp_path, "rename", f"{tmp_path}/out.parts/files/{file}", *words, "0", cwd=tmp_path)
    run_ok(*words, "0-1", cwd=tmp_path)
    there = tree_of(tmp_path / "out")
    status, stdout, stderr = first.go()
    assert status == 0 and tree_of(tmp_path / "out") == there, (status, stdout, stderr)
    assert file in there and not [path for path in there if ".tmp-" in path]


def test_run_restages_if_the_locked_folder_was_removed(tmp_path):
    """If the locked folder has lost its name meanwhile, the second run makes its own."""
    command = Command("reshard", tmp_path, WHOLE["reshard"], None)
    command.reset()
    there = set(command.work.iterdir())
    killed = Counted(rule("rename", "kill", when=1, where=f"{command.work}/out"))
    command.run(env=killed.env)
    (staged,) = set(command.work.iterdir()) - there
    second = Stopped(tmp_path, "flock", str(staged), *command.words, command.work / "out", cwd=command.inputs)
    shutil.rmtree(staged)  # The first run does this if its values differ from the existing ones.
    status, stdout, stderr = second.go()
    assert status == 0, (stdout, stderr)
    assert command.check_left() == command.good


@pytest.mark.parametrize("command",
                         [["reshard", "source", "--mesh", "fsdp=1,tensor=1"], ["convert", "source", "--to", "dcp"]],
                         ids=lambda command: command[0])
@pytest.mark.parametrize("kind", ["file", "full", "empty"])
def test_foreign_output_that_appears_meanwhile_stays(tmp_path, command, kind):
    """A foreign file or folder that appears when everything is made stays. Only an empty folder is replaced, as it has
    no data."""
    run_ok("gen", "llama3-tiny", "-o", "source", cwd=tmp_path)
    first = Stopped(tmp_path, "rename", f"{tmp_path}/out", *command, "-o", "out", cwd=tmp_path)
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        if kind == "full":
            (out / "mine").touch()
    status, stdout, stderr = first.go()
    if kind == "empty":
        assert status == 0 and len(list(out.iterdir())) > 1, (stdout, stderr)
        return
    # The folder may belong to an equal run and be only partly visible. If it stays so, the next run reports it.
    what = {"reshard": "has no plan or no manifest yet", "convert": "holds something else"}[command[0]]
    assert status == 3 and stderr.endswith(f"error: another process has made `out`, and it {what}\n"
                                           "  hint: run the same command again\n"), stderr
    again = run_tool(*command, "-o", "out", cwd=tmp_path)
    assert again.returncode == 4 and "`out` exists and " in again.stderr and "meanwhile" not in again.stderr, again
    assert out.read_text() == "mine" if kind == "file" else list(out.iterdir()) == [out / "mine"]


def test_different_export_that_appears_is_a_conflict(tmp_path):
    """An export that appears meanwhile is a conflict: its record is written last, so it is complete and will not
    change."""
    run_ok("gen", "llama3-tiny", "-o", "source", cwd=tmp_path)
    run_ok("export", "llama3-tiny", "--to", "dcp", "--set", "seed=1", "-o", "other", cwd=tmp_path)
    first = Stopped(tmp_path, "rename", f"{tmp_path}/out", "convert", "source", "--to", "dcp", "-o", "out",
                    cwd=tmp_path)
    (tmp_path / "other").rename(tmp_path / "out")
    there = tree_of(tmp_path / "out")
    status, stdout, stderr = first.go()
    assert status == 4 and stderr.endswith("error: `out` exists and holds another export\n"
                                           "  hint: choose another folder with `-o`, or remove this one\n"), stderr
    assert tree_of(tmp_path / "out") == there


def test_files_staged_by_another_run_are_kept(tmp_path):
    """The copy appears while another run makes it too. The next run finds the copy and leaves the other's files
    alone."""
    command = Command("reshard", tmp_path, WHOLE["reshard"], None)
    command.reset()
    first = Stopped(tmp_path, "fsync", f"{command.work}/", *command.words, command.work / "out", cwd=command.inputs,
                    when=4)
    (staged,) = (path for path in command.work.glob(".out.part-*") if path.is_dir())
    before = tree_of(staged)
    assert before
    run_ok(*command.words, tmp_path / "made", cwd=command.inputs)
    (tmp_path / "made").rename(command.work / "out")
    run_ok(*command.words, command.work / "out", cwd=command.inputs)
    assert tree_of(staged) == before
    status, stdout, stderr = first.go()
    assert status == 0, (stdout, stderr)
    assert command.check_left() == command.good
