"""Models a disk that keeps only data that fsync has promised to keep.

strace records a run's disk operations. The model then enumerates every state in which power loss could leave the disk:
unsynced data lost, torn or zero, and any combination of unsynced names lost."""

import itertools
import os
import pathlib
import re
import shutil
import subprocess

from support import BINARY, CLEAN

CALLS = ("openat,pwrite64,fallocate,ftruncate,rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir,"
         "mkdir,mkdirat,fsync,fdatasync")


# What a run does --------------------------------------------------------------

def trace(disk, *arguments, cwd=None):
    """Runs the tool in `disk` or `cwd`; returns its successful calls as [(call, paths below `disk`, arguments as text,
    data)]."""
    log = disk.parent / "strace.log"
    subprocess.run(["strace", "-f", "-y", "-xx", "-s", "1000000", "-qq", "-o", log, "-e", f"trace={CALLS}",
                    BINARY, *map(str, arguments)], env=CLEAN, check=True, capture_output=True, cwd=cwd or disk)
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
    def __init__(self, data=b""):
        self.now, self.synced, self.pending = data, data, []

    def change(self, change):
        self.pending.append(change)
        self.now = change(self.now)

    def sync(self):
        self.synced, self.pending = self.now, []


class Folder:
    def __init__(self, entries=()):
        self.now, self.synced, self.pending = dict(entries), dict(entries), []

    def change(self, change):
        """Applies a map of names to new nodes, which power loss keeps completely or not at all."""
        self.pending.append(change)
        self.now = {**self.now, **change}

    sync = File.sync


def write(data, offset):
    return lambda old: old[:offset].ljust(offset, b"\0") + data + old[offset + len(data):]


class Disk:
    def __init__(self, tree=()):
        """`tree` is the synced content, in the form of support.tree_of."""
        def folder(above):
            return Folder({os.path.basename(path): folder(path) if data is None else File(data)
                           for path, data in dict(tree).items() if os.path.dirname(path) == above})

        self.root = folder("")
        self.moves = []  # between folders: every file system keeps both halves or neither

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
            node = self.at(paths[0])
            for halves in self.moves:
                if any(folder is node for folder, _ in halves):
                    for folder, _ in halves:
                        folder.sync()
            node.sync()
        elif call.startswith("mkdir"):
            folder.change({name: Folder()})
        elif call.startswith(("unlink", "rmdir")):
            folder.change({name: None})
        elif call.startswith(("rename", "link")):
            other, moved = parents[1][0], {parents[1][1]: folder.now[name]}
            if other is folder:
                folder.change(moved if call.startswith("link") else {name: None, **moved})
            elif call.startswith("link"):
                other.change(moved)
            else:
                self.moves.append([(other, moved), (folder, {name: None})])
                for node, change in self.moves[-1]:
                    node.change(change)

    def changes(self):
        """Returns the names that may be lost: (folder, index of its change)."""
        found, folders = [], [self.root]
        while folders:
            folder = folders.pop()
            found += [(id(folder), i) for i in range(len(folder.pending))]
            # A replaced name can come back.
            for entries in [folder.synced, *folder.pending]:
                folders += [node for node in entries.values() if isinstance(node, Folder) and node not in folders]
        return list(dict.fromkeys(found))

    def groups(self):
        """Groups the entries of changes() that are lost together."""
        changes, groups = self.changes(), []
        for halves in self.moves:
            group = {(id(folder), i) for folder, change in halves
                     for i, other in enumerate(folder.pending) if other is change}
            groups += [group] if group else []
        return groups + [{change} for change in changes if not any(change in group for group in groups)]

    def states(self):
        """Yields the trees that power loss can leave now, in the form of support.tree_of."""
        groups = self.groups()
        if len(groups) <= 4:
            kept = [c for n in range(len(groups) + 1) for c in itertools.combinations(groups, n)]
        else:
            kept = [(), groups, *([g] for g in groups), *([g for g in groups if g is not group] for group in groups)]
        for names in (set().union(*each) for each in kept):
            for contents in (lost, torn, zero, keep_one):
                tree = {}
                remains(self.root, "", names, contents, tree)
                yield tree

    def visible(self):
        return next(tree for tree in [{}] if remains(self.root, "", None, keep_one, tree) is None)


def lost(file):
    return file.synced


def keep_one(file):
    return file.now


def zero(file):
    return file.now if file.now == file.synced else b"\0" * len(file.now)


def torn(file):
    text = file.synced
    for change in file.pending[::2]:
        text = change(text)
    return text if len(file.pending) != 1 else text[:len(text) // 2]


def remains(folder, path, names, contents, tree):
    """Adds the rest of a folder to `tree`; all of it if `names` is None."""
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
    """Returns the tree without temporary files."""
    return {path: data for path, data in tree.items() if ".tmp-" not in path}


def put(tree, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path, data in tree.items():
        (folder / path).mkdir() if data is None else (folder / path).write_bytes(data)
