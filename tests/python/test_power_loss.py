"""Power loss. strace records what a run does to the disk; a model of one that
keeps no more than fsync promises then gives every state in which the power
could have left it: unsynced data lost, torn or zero, unsynced names lost in any
combination. In none of them may anything be wrong that has its final name, and
the next run ends as if nothing had happened."""

import copy
import itertools
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from support import BINARY, CLEAN, run_json, run_ok, run_tool, tree_of

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

CALLS = ("openat,pwrite64,fallocate,ftruncate,rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir,"
         "mkdir,mkdirat,fsync,fdatasync")


# What a run does --------------------------------------------------------------

def trace(disk, *arguments):
    """[(call, paths below `disk`, arguments in text, data)], as far as they succeeded."""
    log = disk.parent / "strace.log"
    subprocess.run(["strace", "-f", "-y", "-xx", "-s", "1000000", "-qq", "-o", log, "-e", f"trace={CALLS}",
                    BINARY, *map(str, arguments)], env=CLEAN, check=True, capture_output=True, cwd=disk)
    calls, started = [], {}
    for line in log.read_text().splitlines():
        pid, text = line.split(" ", 1)
        text = text.strip()
        if text.endswith("<unfinished ...>"):
            started[pid] = text.removesuffix("<unfinished ...>")
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", text):
            text = started.pop(pid) + resumed[1]
        if not (call := re.match(r"(\w+)\((.*)\)\s+= (\d+)(<.*>)?", text)):
            continue
        name, inside, result, opened = call.groups()
        words = [bytes.fromhex(w.replace("\\x", "")) for w in re.findall(r'[<"]((?:\\x[0-9a-f]{2})*)[>"]', inside)]
        if name == "openat":
            words = [bytes.fromhex(opened[1:-1].replace("\\x", ""))]
        data = words.pop() if name == "pwrite64" else b""
        if name.endswith(("at", "at2")) and name != "openat":
            words = [os.path.join(*pair) for pair in zip(words[::2], words[1::2])]
        prefix = os.fsencode(disk)
        words = [os.path.join(prefix, w) for w in words]
        inner = [w == prefix or w.startswith(prefix + b"/") for w in words]
        if not any(inner):
            continue
        assert all(inner), text[:200]
        calls.append((name, [os.path.normpath(os.path.relpath(w, prefix)).decode() for w in words],
                      re.sub(r'"[^"]*"|<[^>]*>', "", inside).split(", "), data[:int(result)] if data else b""))
    return calls


# A disk that keeps no more than was synced ------------------------------------

class File:
    def __init__(self):
        self.now, self.synced, self.pending = b"", b"", []

    def change(self, change):
        self.pending.append(change)
        self.now = change(self.now)

    def sync(self):
        self.synced, self.pending = self.now, []


class Folder:
    def __init__(self):
        self.now, self.synced, self.pending = {}, {}, []

    def change(self, change):
        """Name → what it is from now on; all of it happens, or none."""
        self.pending.append(change)
        self.now = {**self.now, **change}

    sync = File.sync


def write(data, offset):
    return lambda old: old[:offset].ljust(offset, b"\0") + data + old[offset + len(data):]


class Disk:
    def __init__(self):
        self.root = Folder()

    def at(self, path):
        node = self.root
        for part in pathlib.PurePath(path).parts:
            node = node.now.get(part)
        return node

    def apply(self, call, paths, arguments, data):
        parents = [(self.at(os.path.dirname(p)), os.path.basename(p)) for p in paths]
        folder, name = parents[0]
        if call == "openat":
            if "O_CREAT" in arguments[2] and folder.now.get(name) is None:
                folder.change({name: File()})
        elif call == "pwrite64":
            self.at(paths[0]).change(write(data, int(arguments[-1])))
        elif call in ("ftruncate", "fallocate"):
            size = int(arguments[-1])
            shorter = size if call == "ftruncate" else None
            self.at(paths[0]).change(lambda old: old[:shorter].ljust(size, b"\0"))
        elif call in ("fsync", "fdatasync"):
            self.at(paths[0]).sync()
        elif call.startswith("mkdir"):
            folder.change({name: Folder()})
        elif call.startswith(("unlink", "rmdir")):
            folder.change({name: None})
        elif call.startswith(("rename", "link")):
            assert parents[1][0] is folder  # All of them stay in their folder.
            moved = {parents[1][1]: folder.now[name]}
            folder.change(moved if call.startswith("link") else {name: None, **moved})

    def changes(self):
        """The names that may be lost: (folder, index of its change)."""
        found, folders = [], [self.root]
        while folders:
            folder = folders.pop()
            found += [(id(folder), i) for i in range(len(folder.pending))]
            # A name that was replaced can come back.
            for entries in [folder.synced, *folder.pending]:
                folders += [node for node in entries.values() if isinstance(node, Folder) and node not in folders]
        return list(dict.fromkeys(found))

    def states(self):
        """Trees, as support.tree_of gives them, that power loss can leave now."""
        changes = self.changes()
        if len(changes) <= 4:
            kept = [set(c) for n in range(len(changes) + 1) for c in itertools.combinations(changes, n)]
        else:
            kept = [set(), set(changes), *({c} for c in changes), *(set(changes) - {c} for c in changes)]
        for names in kept:
            for contents in (lost, torn, zero, kept_one):
                tree = {}
                remains(self.root, "", names, contents, tree)
                yield tree

    def visible(self):
        return next(tree for tree in [{}] if remains(self.root, "", None, kept_one, tree) is None)


def lost(file):
    return file.synced


def kept_one(file):
    return file.now


def zero(file):
    return file.now if file.now == file.synced else b"\0" * len(file.now)


def torn(file):
    text = file.synced
    for change in file.pending[::2]:
        text = change(text)
    return text if len(file.pending) != 1 else text[:len(text) // 2]


def remains(folder, path, names, contents, tree):
    """Adds to `tree` the rest of a folder; all of it, if `names` is None."""
    entries = dict(folder.synced)
    for i, change in enumerate(folder.pending):
        if names is None or (id(folder), i) in names:
            entries.update(change)
    for name, node in sorted(entries.items()):
        if isinstance(node, File):
            tree[path + name] = contents(node)
        elif node is not None:
            tree[path + name] = None
            remains(node, path + name + "/", names, contents, tree)


def final_one(tree):
    """A tree without temporary files."""
    return {path: data for path, data in tree.items() if ".tmp-" not in path}


def put(tree, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path, data in tree.items():
        (folder / path).mkdir() if data is None else (folder / path).write_bytes(data)


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
        # An export that is there may keep a killed one's left-over beside it.
        assert (left if self.rerun[0] == "gen" else final_one(left)) == self.good, where


@pytest.mark.parametrize("command", ["gen", "export --to zarr"])
def test_power_loss(command, tmp_path):
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
    assert disk.visible() == good == tree_of(tmp_path / "disk")  # The model is right, and
    assert not disk.changes()  # what was said to be done will stay.

    # Killed after a call, done again, and then the power fails.
    for k, disk in killed:
        put(disk.visible(), tmp_path / "disk")
        for i, call in enumerate(trace(tmp_path / "disk", *run)):
            disk.apply(*call)
            for tree in disk.states():
                checker.check(tree, f"killed after call {k}, power loss after call {i} of the next run, {call[:2]}")
        assert disk.visible() == good == tree_of(tmp_path / "disk")
        for tree in disk.states():
            assert final_one(tree) == good, f"killed after call {k}, then done, then power loss: {set(good) - set(tree)}"


def test_power_loss_after_gen_was_killed_and_finalize_run(tmp_path):
    """What `finalize` vouches for is on the disk, even where `gen` was killed before it said so."""
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
