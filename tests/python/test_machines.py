"""Two machines, or two mounts, share one folder. Each sees new files late, caches old attributes, loses handles of
files that the other removed, and has its own locks.

Rules simulate such a client (interposed.py). At whatever call one run waits while another begins and ends, the exit
status is meaningful, no file has its final name without its bytes, and running the same command again succeeds. The
day's seed draws the cases; SHARDINIT_GENERATED_SEED sets another seed. SHARDINIT_MEETINGS, as in test_overtaken.py,
runs all cases that match `COMMAND:CLIENT:INDEX:END`."""

import errno
import fnmatch
import os
import pathlib
import random

import pytest

from interposed import Counted, interposed, rule
from stopping import Stopped
from support import run_ok, run_tool, tree_of
from test_every_fault import FOLDERS, READERS, SEED, Command, Wrong, is_temporary, need
from test_overtaken import ENDS, EVERY_RANK, HALVES_TOO, LOOKS, PATTERN

SAMPLE = 6  # meetings of each command
RANKS = {f"convert --ranks --to {form}": [*EVERY_RANK, form, "-o"] for form in ("hdf5", "dcp")}
NAMES = ["gen", "gen with devices", "gen of the rest", "gen --repair", "finalize", "reshard", "reshard --ranks",
         "export --to dcp", "export of a checkpoint", "convert --to hdf5", *RANKS]
SEEN = "open,stat,access,opendir,readdir"
USED = "open,stat,read,pread,pwrite,fsync,fdatasync,mkdir,rename,link,unlink,readdir,ftruncate"
OWN_LOCKS = [rule("flock", "return", 0),
             rule("open", "fail", errno.ENOENT, where="/proc/sys/kernel/random/boot_id")]  # one kernel for each run


def late(where, looks=2):
    return [*OWN_LOCKS, rule(SEEN, "late", looks, where=f"{where}/")]


def old(where):
    return [*OWN_LOCKS, rule("stat", "old", where=f"{where}/")]


def stale(where):
    return [*OWN_LOCKS, rule(USED, "stale", where=f"{where}/")]


CLIENTS = {
    "names come late": late,
    "names do not come": lambda where: late(where, 1 << 30),
    "attributes are old": old,
    "handles get stale": stale,
    "all of it": lambda where: [*late(where), *old(where), *stale(where)],
    "another mount": lambda where: [rule("flock", "return", 0), rule("stat", "device", 7, where=where)],
}


def make_command(name, folder):
    return Command(name, folder, RANKS.get(name) or FOLDERS.get(name), HALVES_TOO.get(name))


def check_end(status, stderr, said):
    """Accepts the statuses for success, for "try again", and for another process at work in the folder."""
    need((status in (0, 3) or (status == 4 and "another process" in stderr)) and "bug" not in stderr, said)


def check_left(command, said):
    """Each file has its bytes, and another machine that runs the command completes the folder."""
    for path, data in command.look().items():
        need(is_temporary(path) or data in (command.good.get(path, b"-"), command.before.get(path, b"-")),
             f"{path} has its name, but not its bytes; {said}")
    again = command.run()
    need(again.returncode == 0, f"the next run ended with {again.returncode}: {again.stderr}; {said}")
    # Files of a killed run on another machine stay for hours.
    end = {path: data for path, data in command.look().items() if not is_temporary(path)}
    need(end == command.good, f"the next run left {sorted(end)}; {said}")


def meet(command, rules, at, end):
    """Stops one run at a call on the folder until another has begun and ended; then the first continues or is killed
    there."""
    command.reset()
    kill = [rule(LOOKS, "kill", when=at, where=f"{command.work}/")] if end == "is killed" else []
    first = Stopped(command.work.parent, LOOKS, f"{command.work}/", *command.words, command.work / "out",
                    cwd=command.inputs, when=at, rules=[*kill, *rules])
    try:
        second = command.run(env=interposed(*rules))
    finally:
        status, _, stderr = first.go()
    said = f"the first ended with {status}: {stderr}, the second with {second.returncode}: {second.stderr}"
    check_end(second.returncode, second.stderr, said)
    if end == "is killed":
        need(status == -9, said)
    else:
        check_end(status, stderr, said)
    check_left(command, said)


def count_looks(command, rules):
    command.reset()
    counted = Counted(rule(LOOKS, "count", when=0, where=f"{command.work}/"), *rules)
    assert command.run(env=counted.env).returncode == 0
    return counted.met()[0]


@pytest.mark.parametrize("name", [name for name in NAMES
                                  if not PATTERN or fnmatch.fnmatchcase(name, PATTERN.split(":")[0])])
def test_runs_on_two_machines_do_not_conflict(name, tmp_path):
    command = make_command(name, tmp_path)
    chance = random.Random(f"{SEED} {name}")
    clients = {client: rules(command.work) for client, rules in CLIENTS.items()}
    if PATTERN:
        cases = [(client, at, end) for client, rules in clients.items()
                 for at in range(1, count_looks(command, rules) + 1) for end in ENDS
                 if fnmatch.fnmatchcase(f"{name}:{client}:{at}:{end}", PATTERN)]
    else:
        cases = [(client, chance.randint(1, count_looks(command, clients[client])), chance.choice(ENDS))
                 for client in chance.choices(list(clients), k=SAMPLE)]
    wrong = []
    for client, at, end in cases:
        try:
            meet(command, clients[client], at, end)
        except Wrong as e:
            wrong.append(f"SHARDINIT_MEETINGS='{name}:{client}:{at}:{end}': {e}")
    assert not wrong, f"{len(wrong)} of {len(cases)} cases, seed {SEED}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("name", READERS)
def test_commands_read_what_another_machine_made(name, tmp_path):
    command = Command(name, tmp_path)
    for client, rules in CLIENTS.items():
        result = run_tool(*command.words, cwd=command.inputs, env=interposed(*rules(command.inputs)))
        assert result.returncode == 0 and result.stdout == command.printed, (client, result)


# Regressions --------------------------------------------------------------------

LARGE = "shardinit: 1\nname: large\ndtype: f32\nmodules:\n  w: {shape: [256, 256], init: {normal: {std: 1}}}\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "spec.yaml").write_text(LARGE)
    run_ok("gen", "spec.yaml", "-o", "wanted", cwd=tmp_path)
    return tmp_path


@pytest.mark.parametrize("looks, status", [(2, 0), (1 << 30, 3)])
def test_gen_accepts_a_plan_that_becomes_visible_late(looks, status, folder):
    """If another machine names plan.json first, the run succeeds, or exits with 3 as long as it cannot see the file. It
    used to exit with 4, "has lost its plan.json"."""
    words = ["gen", "spec.yaml", "-o", "out"]
    # A hard link or renameat2 names the file only if the name is free.
    first = Stopped(folder, "rename,link", folder / "out/plan.json", *words, cwd=folder,
                    rules=late(folder / "out", looks))
    run_ok(*words, cwd=folder)
    ended, _, stderr = first.go()
    assert ended == status and (status == 0 or "not visible here yet" in stderr), stderr
    run_ok(*words, cwd=folder)
    assert tree_of(folder / "out") == tree_of(folder / "wanted")


@pytest.mark.parametrize("looks, status", [(2, 0), (1 << 30, 3)])
@pytest.mark.parametrize("form", ["safetensors", "dcp"])
def test_export_accepts_an_export_that_becomes_visible_late(form, looks, status, folder):
    """The slower of two equal exports succeeds, or exits with 3 as long as it cannot see the other. It used to exit
    with 4, "has appeared meanwhile"."""
    words = ["export", "spec.yaml", "--to", form, "-o", "out"]
    first = Stopped(folder, "rename", folder / "out", *words, cwd=folder, rules=late(folder, looks))
    run_ok(*words, cwd=folder)
    there = tree_of(folder / "out")
    ended, _, stderr = first.go()
    assert ended == status and (status == 0 or "not visible here yet" in stderr), stderr
    assert "was there already" in run_ok(*words, cwd=folder).stderr and tree_of(folder / "out") == there


def test_gen_accepts_a_devices_file_that_becomes_visible_late(folder):
    """If the folder lists devices.json but it cannot be opened yet, the run succeeds or exits with 3. A hint used to
    say to remove the file."""
    words = ["gen", "spec.yaml", "--set", "mesh={axes: {a: 1}, devices: [5]}", "-o", "out"]
    run_ok(*words, cwd=folder)
    before = tree_of(folder / "out")
    for when in range(1, 5):
        gone = rule("open", "fail", errno.ENOENT, when=when, where=folder / "out/devices.json")
        assert run_tool(*words, cwd=folder, env=interposed(gone)).returncode in (0, 3)
        run_ok(*words, cwd=folder)
        assert tree_of(folder / "out") == before


def test_gen_rewrites_a_temporary_file_removed_elsewhere(folder):
    """If another machine removes a temporary file before its maker locks it, the run makes the file again. It used to
    exit with 3 because the handle was stale."""
    first = Stopped(folder, "flock", f"{folder}/out/.plan.json.tmp-", "gen", "spec.yaml", "-o", "out", cwd=folder,
                    when=1, rules=[rule(USED, "stale", where=f"{folder}/out/")])
    for path in (folder / "out").glob(".plan.json.tmp-*"):
        path.unlink()
    status, _, stderr = first.go()
    assert status == 0 and tree_of(folder / "out") == tree_of(folder / "wanted"), stderr


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("words", [["gen", "spec.yaml"], ["export", "spec.yaml", "--to", "dcp"]])
def test_write_errors_reported_by_close_fail_the_run(words, error, folder):
    """A write error that only `close` reports, as in sshfs on a full disk, makes the run exit with 3. A rank's file
    used to get its name before this close, without its bytes."""
    wanted = folder / "good"
    run_ok(*words, "-o", "good", cwd=folder)
    said = rule("close", "fail", getattr(errno, error), when=1, where=f"{folder}/out/ranks/.rank-00000.h5.tmp-")
    if words[0] == "export":
        said = rule("close", "fail", getattr(errno, error), when=1, where="__0_0.distcp")
    result = run_tool(*words, "-o", "out", cwd=folder, env=interposed(said))
    assert result.returncode == 3 and os.strerror(getattr(errno, error)) in result.stderr, result
    named = [path for path in folder.glob("out/**/*.h5") if not path.name.startswith(".")]
    assert named == [] and not pathlib.Path(folder, "out/.metadata").exists()
    run_ok(*words, "-o", "out", cwd=folder)
    assert tree_of(folder / "out") == tree_of(wanted)


def test_stale_temporary_files_are_removed(folder):
    """Temporary files for which `stat` returns ESTALE are removed. Each used to be made again and stay, ten in the
    end."""
    stale = interposed(*OWN_LOCKS, rule("stat", "fail", errno.ESTALE, when="1+", where=f"{folder}/.page.tmp-"))
    run_tool("graph", "spec.yaml", "--html", "page", cwd=folder, env=stale)
    run_ok("graph", "spec.yaml", "--html", "page", cwd=folder)
    assert sorted(path.name for path in folder.iterdir()) == ["page", "spec.yaml", "wanted"]
