"""The interface to the files of a checkpoint or export, and its implementation for local folders.

`LocalFiles` reads local folders; `_store.StoreFiles` reads object stores.
"""

from __future__ import annotations

import contextlib
import errno
import operator
import os
import stat
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from ._errors import DamageError
from ._read import BoxFile, run, slabs
from ._regular import open_regular, read_regular, refuse_link
from ._source import Job, Shape, Words

_OPEN_FILES = 64
NOT_A_FOLDER = "it is not a folder"
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


@dataclass(frozen=True, slots=True)
class StoredBox:
    """The location of a box of a tensor.

    Attributes:
        tensor: the path of the tensor.
        offset: the box's place in the tensor.
        shape: the shape of the box, which is row-major.
        sha256: digest of the box's bytes.
        file: the name of the file that holds the box, relative to the folder.
        size: the size that this file must have, in bytes.
        at: the byte of the file at which the box begins.
    """

    tensor: str
    offset: Shape
    shape: Shape
    sha256: str
    file: str
    size: int
    at: int


class Files(ABC):
    """The files of a folder.

    Attributes:
        name: the name of the folder, for messages.
        bytes_read: bytes of boxes read so far, including gaps between them.
        far: whether each request takes long, so that many should be made at once.
    """

    far: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        """Stores the name; reads nothing."""
        self.name = name
        self.bytes_read = 0
        self._lock = threading.Lock()

    def path(self, name: str) -> str:
        """Returns a file's name, for messages."""
        return os.path.join(self.name, name)

    @abstractmethod
    def why_no_folder(self) -> str:
        """Returns why a checkpoint cannot exist, for a message; "" if only files are missing."""

    @abstractmethod
    def holds(self, name: str) -> bool:
        """Returns whether a file, or anything else, has this name."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Returns all bytes of a file.

        Raises:
            FileNotFoundError: the file does not exist.
            FormatError: the file is not regular, or is too large.
        """

    @abstractmethod
    def refuse_link(self, name: str) -> None:
        """Raises FormatError if a file is a link, in stores that have links."""

    @abstractmethod
    def check(self, name: str, size: int) -> None:
        """Raises DamageError if a file is missing, or does not have `size` bytes."""

    def expect(self, texts: Iterable[str], boxes: Iterable[str]) -> None:  # noqa: B027
        """Prepares for reading these files, whole or for their boxes; useful if they are `far`."""

    @abstractmethod
    def look_again(self, names: list[str]) -> None:
        """Looks at files again, so that `check` uses their current state.

        Raises:
            DamageError: a file was replaced.
        """

    @abstractmethod
    def jobs(self, box: StoredBox, within: Shape, into: Words, verify: bool) -> list[Job]:
        """Returns jobs that fill `into` from the region at `within` of a box.

        With `verify`, the whole box is read, and its digest must match.
        """

    @abstractmethod
    def run(self, jobs: list[Job], threads: int) -> None:
        """Runs jobs, and raises the error of the first one that failed."""

    @abstractmethod
    def close(self) -> None:
        """Closes open files; they are opened again when something is read."""

    def _count(self, count: int) -> None:
        with self._lock:
            self.bytes_read += count


def taken_from(box: Words, within: Shape, into: Words) -> None:
    """Copies the region at `within` out of a box that was read completely."""
    ends = zip(within, into.shape, strict=True)
    into[...] = box[tuple(slice(first, first + n) for first, n in ends)]


def wrong_digest(box: StoredBox, path: str) -> DamageError:
    """Returns the error about a box whose bytes do not match its digest."""
    return DamageError(
        f"the box of `{box.tensor}` at {list(box.offset)} in `{path}` does not have its digest"
    )


class LocalFiles(Files):
    """The regular files of a local folder, opened when a box is read, and not too many at once."""

    def __init__(self, folder: str) -> None:
        """Stores the name of the folder."""
        super().__init__(folder)
        self._open: OrderedDict[str, BoxFile] = OrderedDict()

    def why_no_folder(self) -> str:
        """See `Files.why_no_folder`."""
        if not os.path.exists(self.name):
            return "there is no such folder"
        return "" if os.path.isdir(self.name) else NOT_A_FOLDER

    def holds(self, name: str) -> bool:
        """See `Files.holds`."""
        return os.path.lexists(self.path(name))

    def read(self, name: str) -> bytes:
        """See `Files.read`."""
        try:
            return read_regular(self.name, name)
        except NotADirectoryError as error:
            raise FileNotFoundError(*error.args) from None

    def refuse_link(self, name: str) -> None:
        """See `Files.refuse_link`."""
        refuse_link(self.name, name)

    def check(self, name: str, size: int) -> None:
        """See `Files.check`."""
        if name in self._open:
            return
        path = self.path(name)
        try:
            self._check_size(path, os.lstat(path), size)
        except OSError as error:
            if error.errno in _ABSENT:
                raise DamageError(f"`{path}` is missing") from None
            if error.errno != errno.ELOOP:  # The call that opens a link reports it.
                raise

    def look_again(self, names: list[str]) -> None:
        """See `Files.look_again`; concurrent readers keep their files open."""
        with self._lock:
            for name in names:
                self._open.pop(name, None)

    def jobs(self, box: StoredBox, within: Shape, into: Words, verify: bool) -> list[Job]:
        """Returns one job, or one for each part of a large region; see `Files.jobs`."""
        if verify:
            return [partial(self._read_verified, box, within, into)]
        return [
            partial(self._read, box, tuple(map(operator.add, within, first)), some)
            for first, some in slabs(into)
        ]

    def run(self, jobs: list[Job], threads: int) -> None:
        """See `Files.run`."""
        run(jobs, threads)

    def close(self) -> None:
        """See `Files.close`."""
        with self._lock:
            self._open.clear()

    def _read(self, box: StoredBox, within: Shape, into: Words) -> None:
        # The file is opened only here, so that few are open at once.
        self._count(self._file(box).read(box.at, box.shape, within, into))

    def _read_verified(self, box: StoredBox, within: Shape, into: Words) -> None:
        """Does the same as `_read`, but reads the whole box, whose digest must match."""
        direct = into.shape == box.shape and into.flags.c_contiguous
        whole = into if direct else np.empty(box.shape, into.dtype)
        if self._file(box).read_hashed(box.at, whole) != box.sha256:
            raise wrong_digest(box, self.path(box.file))
        self._count(whole.nbytes)
        if not direct:
            taken_from(whole, within, into)

    def _file(self, box: StoredBox) -> BoxFile:
        with self._lock:
            if box.file in self._open:
                self._open.move_to_end(box.file)
                return self._open[box.file]
        path = self.path(box.file)
        try:
            file = open_regular(self.name, box.file)
        except FileNotFoundError:
            raise DamageError(f"`{path}` is missing") from None
        with contextlib.ExitStack() as stack:
            stack.callback(file.close)
            self._check_size(path, os.fstat(file.fileno()), box.size)
            stack.pop_all()
        opened = BoxFile(file, path)
        with self._lock:
            opened = self._open.setdefault(box.file, opened)
            while len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)
        return opened

    def _check_size(self, path: str, found: os.stat_result, said: int) -> None:
        # The call that opens a link reports it.
        if found.st_size != said and not stat.S_ISLNK(found.st_mode):
            raise DamageError(f"`{path}` has {found.st_size} bytes instead of {said}")
