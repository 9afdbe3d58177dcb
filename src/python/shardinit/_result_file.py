"""Writes an output file that a user names, as ``base/result_file.h`` does for the program."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator

_STREAMS = (1, 2)
_MOST_LINKS = 40  # Linux follows the same number of links.
_MARKED = 65536  # The first bytes of a file, which are searched for its mark.
_OLD = 6 * 3600  # After this many seconds, another machine's temporary file is a leftover.


def require_local(path: str | os.PathLike[str]) -> None:
    """Rejects URLs of stores.

    Raises:
        ValueError: `path` begins with a scheme and ``://``.
    """
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", os.fsdecode(path))
    if scheme is None:
        return
    hint = (
        "leave `file://` out"
        if scheme[1] == "file"
        else f"use a local folder, and copy it to or from `{scheme[0]}` with that store's own tool"
    )
    raise ValueError(
        f"`{os.fsdecode(path)}` is not a path of a file system, and shardinit knows no other"
        " store\n"
        f"  hint: {hint}"
    )


class ResultFile:
    """An output file: its path, and whether an existing file may be replaced."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        what: str,
        mark: str,
        inputs: Iterable[str | os.PathLike[str]] = (),
        force: bool = False,
    ) -> None:
        """Raises the errors that `write` would raise, so that they are reported before the work.

        Args:
            path: a file, a link to a file, a device or a FIFO.
            what: the kind of file, for messages.
            mark: a regular expression that matches the beginning of files of this kind.
            inputs: files that are read. `path` must not be one of them, nor a module's file.
            force: also replace files of another kind.

        Raises:
            ValueError: `path` is an input, or is not a file system path.
            FileExistsError: a file of another kind exists, and `force` is false.
            OSError: the file cannot be written.
        """
        self._path = os.fsdecode(path)
        self._what = what
        self._mark = mark
        self._inputs = [os.fspath(path) for path in inputs]
        self._force = force
        self._require_ours(*self._find())

    def write(self, text: str) -> None:
        """Writes a regular file atomically, and other files as a shell's ``>`` does."""
        data = text.encode()
        while True:
            path, present = self._find()
            self._require_ours(path, present)
            folder = os.path.dirname(path) or "."
            regular = present is None or (
                stat.S_ISREG(present.st_mode) and not os.path.islink(path)
            )
            if not regular or not os.access(folder, os.W_OK | os.X_OK):
                return _write_into(path, data)
            # If the file's owner cannot be kept, the file is also written in place.
            if _replace(path, present, data):
                return None
            if present is not None:
                return _write_into(path, data)

    def _find(self) -> tuple[str, os.stat_result | None]:
        """Follows links that have names; returns the target's path, and its status if it exists."""
        require_local(self._path)
        path = self._path
        for _ in range(_MOST_LINKS):
            if not os.path.islink(path) or _is_in_proc(path):
                break
            path = os.path.join(os.path.dirname(path), os.readlink(path))
        else:
            raise ValueError(f"`{self._path}` is a link that leads to itself")
        try:
            return path, os.stat(path)
        except FileNotFoundError:
            return path, None

    def _require_ours(self, path: str, present: os.stat_result | None) -> None:
        if path.endswith("/") or (present and stat.S_ISDIR(present.st_mode)):
            raise IsADirectoryError(21, "it is a folder", self._path)
        if present is None:
            folder = os.path.dirname(path) or "."
            os.stat(folder)  # Raises an error that says why there is no folder.
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied", folder)
            return
        if stat.S_ISREG(present.st_mode) and any(
            os.path.samestat(present, other) for other in _stats(self._inputs)
        ):
            raise ValueError(
                f"`{self._path}` is a file that this reads: it would be lost\n"
                "  hint: choose another name"
            )
        if any(_is_open_as(fd, path) for fd in _STREAMS):
            return
        if not os.access(path, os.W_OK):
            raise PermissionError(13, "Permission denied", self._path)
        if self._force or not (stat.S_ISREG(present.st_mode) or stat.S_ISBLK(present.st_mode)):
            return
        if stat.S_ISREG(present.st_mode):
            if present.st_size == 0:
                return
            with open(path, "rb") as file:  # An unreadable file may be of any kind.
                if re.match(self._mark, file.read(_MARKED).decode(errors="replace")):
                    return
        raise FileExistsError(
            17,
            f"it exists and is not a {self._what} that this wrote; replace it with `force`",
            path,
        )


def _stats(inputs: Iterable[str]) -> Iterator[os.stat_result]:
    modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    for path in (*inputs, *modules):
        with contextlib.suppress(OSError, TypeError, ValueError):
            yield os.stat(path)  # type: ignore[arg-type]


def _is_in_proc(path: str) -> bool:
    """Returns whether a path is a descriptor's link, which has no name that could be replaced."""
    return os.path.realpath(os.path.dirname(path) or ".").startswith("/proc/")


def _write_into(path: str, data: bytes) -> None:
    for fd in _STREAMS:
        if _is_open_as(fd, path):  # Writing continues at the descriptor's position.
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            with open(fd, "wb", buffering=0, closefd=False) as file:
                return _write_all(file, data)
    if not os.path.isfile(path):
        with open(path, "wb", buffering=0) as file:
            return _write_all(file, data)
    with open(path, "r+b", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        try:  # Detects a full disk before anything is lost.
            if len(data) > size:
                os.posix_fallocate(file.fileno(), 0, len(data))
        except OSError as error:
            file.truncate(size)
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise OSError(error.errno, error.strerror, path) from None
        _write_all(file, data)
        file.truncate(len(data))
    return None


def _is_open_as(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


def _write_all(file: io.FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]


def _replace(path: str, present: os.stat_result | None, data: bytes) -> bool:
    """Replaces a file; does nothing, and returns False, if one appeared or owners would change."""
    folder, name = os.path.dirname(path) or ".", os.path.basename(path)
    temporary = os.path.join(folder, _temporary_name(folder, name))
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o666)
    try:
        with open(fd, "wb") as file:
            with contextlib.suppress(OSError):  # File systems without locks only lack the locks.
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_left_overs(folder, name, temporary)
            if present is not None:
                try:
                    os.fchown(fd, present.st_uid, present.st_gid)
                    os.fchmod(fd, stat.S_IMODE(present.st_mode) & 0o777)
                except OSError:
                    return False
            file.write(data)
            file.flush()
            os.fsync(fd)
        if present is not None:
            os.replace(temporary, path)
            return True
        try:
            os.link(temporary, path)  # Fails if the name exists.
        except FileExistsError:
            return False
        except OSError:  # The file system has no hard links.
            os.replace(temporary, path)
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


# Temporary files have the names and locks of the program's (base/new_file.cc), so that each removes
# leftovers of killed runs of both.


def _temporary_name(folder: str, name: str) -> str:
    """Returns ``.NAME.tmp-OWNER-RANDOM``; the owner is a kernel and mount that see its locks."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            boot = file.read()
    except OSError:
        boot = secrets.token_bytes(16)
    device = os.stat(folder).st_dev
    text = b"shardinit: temporary files of a kernel and a mount\n%s %d" % (boot, device)
    return f".{name}.tmp-{hashlib.sha256(text).hexdigest()[:16]}-{secrets.token_hex(8)}"


def _remove_left_overs(folder: str, name: str, own: str) -> None:
    pattern = re.compile(rf"\.{re.escape(name)}\.tmp-([0-9a-f]{{16}})-[0-9a-f]{{16}}")
    owner = pattern.fullmatch(os.path.basename(own))
    for entry in os.listdir(folder):
        found = pattern.fullmatch(entry)
        path = os.path.join(folder, entry)
        if found is None or owner is None or path == own:
            continue
        with contextlib.suppress(OSError):  # It is in use, or cannot be removed.
            if _is_left_over(path, own, found[1] == owner[1]):
                os.unlink(path)


def _is_left_over(path: str, own: str, is_ours: bool) -> bool:
    """Returns whether nobody writes the file any more.

    Its lock must be free. It must also be old, or have our owner on a file system with visible
    locks.
    """
    with _opened(path) as fd, _opened(own) as again:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(again).st_mtime - info.st_mtime >= _OLD:
            return True
        try:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # Our own lock is visible.
            return is_ours
        return False


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
