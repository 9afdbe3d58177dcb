"""Opens regular files of a folder, and rejects links and devices."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Any

from ._errors import FormatError

MAX_BYTES = 4 << 30


def read_regular(folder: str, name: str, limit: int = MAX_BYTES) -> bytes:
    """Returns the bytes of a regular file of at most `limit` bytes; see `open_regular`."""
    with open_regular(folder, name) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise FormatError(
                f"`{os.path.join(folder, name)}` has {size} bytes, more than the {limit} that it "
                "may have"
            )
        return bytes(file.readall())


def open_regular(folder: str, name: str) -> Any:
    """Opens a regular file of the folder for reading, unbuffered; rejects devices, FIFOs and links.

    The folder itself may be a symbolic link, but its files must not lead out of it.

    Raises:
        FormatError: the file, or a folder in its path, is a link, or the file is not regular.
        OSError: as for ``os.open``.
    """
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *parents, last = name.split("/")
        for parent in parents:
            inner = os.open(parent, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
            _no_link(os.fstat(at), os.path.join(folder, parent))
        # With O_NONBLOCK, opening a FIFO does not wait for a writer.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        path = os.path.join(folder, name)
        try:
            file = os.open(last, flags, dir_fd=at)
        except OSError as error:
            if error.errno == errno.ELOOP:
                _no_link(os.stat(last, dir_fd=at, follow_symlinks=False), path)
            if error.errno == errno.ENXIO:  # A socket.
                raise FormatError(f"`{path}` is not a regular file") from None
            error.filename = path
            raise
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FormatError(f"`{path}` is not a regular file")
    return open(file, "rb", buffering=0)


def refuse_link(folder: str, name: str) -> None:
    """Raises FormatError if a file that is not opened is a link."""
    path = os.path.join(folder, name)
    with contextlib.suppress(FileNotFoundError):
        _no_link(os.lstat(path), path)


def _no_link(found: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise FormatError(f"`{path}` is a symbolic link: a checkpoint has its files in its folder")
