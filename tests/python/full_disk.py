"""Mounts a small file system for a test, which can run out of blocks or inodes."""

import contextlib
import functools
import os
import pathlib
import subprocess
import tempfile

import pytest

BLOCK = 4096
KINDS = ["tmpfs", "ext4"]


@functools.cache
def can_mount():
    """Returns whether this user may mount file systems."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with mounted(folder):
                return True
        except pytest.skip.Exception:
            return False


@contextlib.contextmanager
def mounted(folder, kind="tmpfs", mebibytes=16):
    """Mounts a file system of this kind at `folder/disk`. Skips the test with a message if that fails."""
    disk = pathlib.Path(folder, "disk")
    disk.mkdir()
    commands = [["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,nr_inodes=4096", "none", disk]]
    if kind == "ext4":  # It allocates blocks only when data is written.
        image = pathlib.Path(folder, "image")
        with open(image, "wb") as file:
            file.truncate(mebibytes << 20)
        commands = [["mkfs.ext4", "-q", "-F", "-b", str(BLOCK), "-m", "0", image], ["mount", "-o", "loop", image, disk]]
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip(f"not tested: a full {kind}, since there is no {command[0]} here")
        if done.returncode:
            pytest.skip(f"not tested: a full {kind}, which cannot be mounted here ({done.stderr.strip()})")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def used(disk):
    """Returns the number of bytes in use or reserved."""
    info = os.statvfs(disk)
    return (info.f_blocks - info.f_bavail) * info.f_frsize


class Full:
    """Leaves only `left` bytes or `inodes` inodes free while the block lasts."""

    def __init__(self, disk, left=0, inodes=None):
        self.ballast = pathlib.Path(disk, "ballast")
        self.ballast.mkdir()
        info = os.statvfs(disk)
        for number in range(0 if inodes is None else info.f_ffree - inodes):
            (self.ballast / str(number)).touch()
        if inodes is None:
            with open(self.ballast / "all", "wb") as file:
                size = info.f_bavail * info.f_frsize
                while size > 0:  # The file system reports its free bytes only roughly.
                    try:
                        os.posix_fallocate(file.fileno(), 0, size)
                        break
                    except OSError:
                        size -= BLOCK
                os.ftruncate(file.fileno(), max(0, size - left))
                os.sync()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for path in self.ballast.iterdir():
            path.unlink()
        self.ballast.rmdir()
