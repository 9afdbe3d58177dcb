"""Runs random commands with every kind of output: an existing file, folder, link, device and so on.

Foreign files must stay unchanged, bit for bit. The result must be complete and only at the requested place."""

import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile

import pytest
from hypothesis import strategies as st

from full_disk import BLOCK, Full, can_mount, mounted
from generated import generated, given
from support import run_tool
from test_outputs import CONFIG, OUTPUTS, PROGRAM, SPEC, is_whole

# Commands that make or continue a folder.
FOLDERS = {
    "gen": ["gen", "spec.yaml", "-o"],
    "gen --ranks": ["gen", "spec.yaml", "--ranks", "1", "-o"],
    "gen --repair": ["gen", "spec.yaml", "--repair", "-o"],
    "export": ["export", "spec.yaml", "--to", "safetensors", "-o"],
    "export of a checkpoint": ["export", "source", "--to", "dcp", "-o"],
    "reshard": ["reshard", "source", "--mesh", "a=1", "-o"],
    "program --kinds": ["program", "spec.yaml", "--kinds", "-o"],
}
KINDS = ["nothing", "empty", "ours", "mine", "another option's", "input", "hard link to an input", "folder",
         "full folder",
         "FIFO", "socket", "null", "full", "stdout", "closed stdout", "no folder", "below a file", "loop", "store",
         "checkpoint", "export"]


# Kinds of existing output on a full file system, which has space afterwards.
FULL = ["nothing", "empty", "ours", "mine"]


@st.composite
def cases(draw):
    name = draw(st.sampled_from([*PROGRAM, *FOLDERS]))
    return {"command": name, "kind": draw(st.sampled_from(KINDS)), "links": draw(st.integers(0, 2)),
            "force": draw(st.booleans()) and name in OUTPUTS, "slash": draw(st.booleans()) and name in FOLDERS,
            "other": draw(st.sampled_from(PROGRAM))}


def command_words(name):
    return OUTPUTS[name][0] if name in OUTPUTS else FOLDERS[name]


def make(case, folder, path):
    """Makes the thing at `path` for the case, and returns the command's argument for it."""
    kind = case["kind"]
    if kind == "empty":
        path.touch()
    elif kind == "ours" and case["command"] in FOLDERS:
        run_tool(*command_words(case["command"]), path, cwd=folder)
    elif kind in ("ours", "another option's"):
        other = case["command"] if kind == "ours" else case["other"]
        assert run_tool(*command_words(other), path, cwd=folder).returncode == 0
    elif kind == "mine":
        path.write_text("mine\n")
    elif kind == "hard link to an input":
        os.link(folder / "spec.yaml", path)
    elif kind in ("folder", "full folder"):
        path.mkdir()
        if kind == "full folder":
            (path / "manifest.json").write_text("mine")
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as name:
            name.bind(os.path.relpath(path))
    elif kind in ("null", "full"):
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3 if kind == "null" else 7))
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind in ("checkpoint", "export"):
        shutil.copytree(folder / ("source" if kind == "checkpoint" else "exported"), path)
    return {"input": "spec.yaml", "stdout": "/dev/stdout", "closed stdout": "/dev/stdout", "no folder": "none/out",
            "below a file": "spec.yaml/out", "store": "s3://bucket/out"}.get(kind, "out")


def snapshot(folder):
    """Maps each name to its kind, device number and content."""
    found = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        info = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(info.st_mode) else os.readlink(path) if path.is_symlink() else None
        found[str(path.relative_to(folder))] = stat.S_IFMT(info.st_mode), info.st_rdev, content
    return found


def run(case, folder, given_path):
    words = [*command_words(case["command"]), given_path, *(["--force"] if case["force"] else [])]
    if case["kind"] == "closed stdout":
        return run_tool(*words, cwd=folder, wrap=["sh", "-c", '"$@" >&-', "sh"])
    if case["kind"] != "FIFO":
        return run_tool(*words, cwd=folder)
    reader = subprocess.Popen(["timeout", "20", "cat", folder / "out"], stdout=subprocess.PIPE, text=True)
    done = run_tool(*words, cwd=folder)
    if done.returncode:  # The output was never opened.
        reader.terminate()
    done.read = reader.communicate()[0]
    return done


def judge(case, before, after, done, target):
    """Checks the changes that a run may make."""
    kind, name = case["kind"], case["command"]
    assert done.returncode in (0, 1, 2, 3, 4) and "bug in shardinit" not in done.stderr, done.stderr
    assert (done.returncode == 0) == (not done.stderr.startswith("shardinit: error")), done
    changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    if done.returncode:  # A new folder may be incomplete; the user's files must be unchanged.
        assert all(path not in before for path in changed), (changed, done)
        assert name in FOLDERS or not changed, changed
        assert "hint: " in done.stderr or done.returncode == 3, done.stderr
    if kind in ("mine", "another option's", "input", "hard link to an input", "loop", "store", "below a file",
                "full folder", "closed stdout", "full"):
        same = kind == "another option's" and case["other"] == name
        may = same or (case["force"] and kind in ("mine", "another option's"))
        assert (done.returncode == 0) == may, (kind, done)
    if name in FOLDERS:
        # `gen` continues its own checkpoint. No command writes into a folder that another one made.
        assert all(path == target or path.startswith((target + "/", "none")) for path in changed), changed
        if kind in ("export", "checkpoint") and done.returncode == 0:
            assert kind == "checkpoint" and name.startswith("gen") or kind == "export" and name == "export"
        return
    assert changed <= {target}, changed
    if done.returncode:
        return
    if kind in ("null", "FIFO", "stdout"):
        assert not changed
        text = {"FIFO": getattr(done, "read", ""), "stdout": done.stdout}.get(kind)
        assert text is None or (text.startswith(OUTPUTS[name][1])), text
    else:
        assert is_whole(name, after[target][2].decode()), after[target]


@generated(90)
@given(case=cases())
def test_generated_outputs_replace_only_their_own_files(case):
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "spec.yaml").write_text(SPEC)
        (folder / "config.json").write_text(CONFIG)
        if case["kind"] in ("checkpoint", "export") or {"source"} & set(command_words(case["command"])):
            assert run_tool("gen", "spec.yaml", "-o", "source", cwd=folder).returncode == 0
            assert run_tool("export", "spec.yaml", "--to", "safetensors", "-o", "exported", cwd=folder).returncode == 0
        here = os.getcwd()
        os.chdir(folder)  # Names of sockets must be short.
        try:
            named = make(case, folder, folder / "out")
        finally:
            os.chdir(here)
        target = named if named in ("spec.yaml", "none/out") else "out"
        if case["kind"] == "input" and command_words(case["command"])[1] == "config.json":
            named = target = "config.json"
        for i in range(case["links"] if not named.startswith(("s3:", "/dev", "spec.yaml/")) else 0):
            (folder / f"link{i}").symlink_to(named)
            named = f"link{i}"
        if case["kind"] == "hard link to an input" and command_words(case["command"])[1] == "config.json":
            (folder / "out").unlink()
            os.link(folder / "config.json", folder / "out")
        before = snapshot(folder)
        done = run(case, folder, named + "/" * case["slash"])
        judge(case, before, snapshot(folder), done, target)


@st.composite
def full_disks(draw):
    name = draw(st.sampled_from([*PROGRAM, *FOLDERS]))
    return {"command": name, "kind": draw(st.sampled_from(FULL)), "blocks": draw(st.integers(0, 24)),
            "force": draw(st.booleans()) and name in OUTPUTS, "link": draw(st.booleans())}


@generated(60)
@given(case=full_disks())
def test_generated_outputs_survive_a_full_disk(case):
    if not can_mount():
        pytest.skip("not tested: outputs on a full disk, since nothing can be mounted here")
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "spec.yaml").write_text(SPEC)
        (folder / "config.json").write_text(CONFIG)
        if "source" in command_words(case["command"]):
            assert run_tool("gen", "spec.yaml", "-o", "source", cwd=folder).returncode == 0
        with mounted(folder) as disk:
            make(case, folder, disk / "out")
            named = disk / "out"
            if case["link"] and case["command"] in OUTPUTS:
                (folder / "link").symlink_to("disk/out")
                named = folder / "link"
            words = [*command_words(case["command"]), named, *(["--force"] if case["force"] else [])]
            before = snapshot(disk)
            with Full(disk, case["blocks"] * BLOCK):
                done = run_tool(*words, cwd=folder)
            after = snapshot(disk)
            assert done.returncode in (0, 3, 4) and "bug in shardinit" not in done.stderr, done
            if done.returncode == 3:
                full = "No space left on device" in done.stderr or " free\n" in done.stderr
                assert full and str(disk) in done.stderr, done.stderr
            if done.returncode:
                changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
                assert "out/manifest.json" not in changed and not any(".tmp-" in path for path in changed), changed
                # The run may leave an incomplete checkpoint whose files are complete, or a copy under a temporary name
                # (shardinit-reshard(1)). All other files must be unchanged.
                assert all(path not in before for path in changed), (changed, done)
                if case["command"] == "reshard":
                    changed = {path for path in changed if not re.match(r"\.out\.part-[0-9a-f]{16}(/|$)", path)}
                assert not changed or case["command"].startswith("gen"), (changed, done)
            again = run_tool(*words, cwd=folder)
            assert again.returncode == (4 if done.returncode == 4 else 0), again
            theirs = ["mine"] if case["command"] in OUTPUTS else ["mine", "empty"]  # A file in place of the folder.
            assert (done.returncode == 4) == (case["kind"] in theirs and not case["force"]), done
            if again.returncode == 0:
                made = snapshot(disk)
                assert not [path for path in made if ".tmp-" in path or ".part-" in path], made.keys()
                if case["command"] in OUTPUTS:
                    assert set(made) == {"out"} and is_whole(case["command"], made["out"][2].decode())
                elif done.returncode == 0:
                    assert made == after
