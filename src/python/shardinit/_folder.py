"""An open folder of tensors that another tool wrote, in any format that shardinit reads."""

from __future__ import annotations

import contextlib
import ctypes
import operator
import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from . import _native
from ._errors import ShardinitError
from ._files import Files
from ._opened import Opened, SpecTensorInfo, errors_of_files
from ._read import run, slabs
from ._source import Array, Job, Shape, Slices, Words, expanded, region, words_for
from ._store import StoreFiles

_THREADS = 32  # The most reads at once: each may be a request to a store.


class TensorFolder(Opened):
    """A folder or file of tensors that another tool wrote, returned by `shardinit.open`.

    It records no mesh, so its mesh is one rank, which holds all tensors.

    Attributes:
        folder: its folder, file or URL.
        tensors: path → `SpecTensorInfo`, in the order of their names.
        parameters, bytes: counts over all tensors.
    """

    noun = "folder"

    def __init__(self, files: Files) -> None:
        """See `shardinit.open`."""
        self.folder = files.name
        self._store = files if isinstance(files, StoreFiles) else None
        self._read_from: set[str] = set()  # Objects to look at again after reading.
        self._thread = threading.local()
        with self._errors():
            super().__init__(
                f"`{files.name}`",
                path=os.fsencode(files.name),
                is_folder=1,
                files=None if self._store is None else ctypes.pointer(self._files(self._store)),
            )
        self._require_unchanged()

    def __repr__(self) -> str:
        return (
            f"<shardinit.TensorFolder {self.folder!r}: {self.parameters:,} parameters in "
            f"{len(self.tensors)} tensors>"
        )

    def read(
        self, path: str, slices: Slices = None, *, verify: bool = False, out: Array | None = None
    ) -> Array:
        """Reads a tensor, or a part of it; see `Checkpoint.read`.

        Raises:
            UnknownTensorError, IndexError, TypeError: as for `Checkpoint.read`.
            ValueError: as for `Checkpoint.read`; also for `verify`, as there are no digests.
            DamageError: a file is missing, or has changed since the folder was opened.
            FormatError: a file is damaged.
        """
        if out is None:
            info = self.info(path)
            _, extent, kept = region(info, slices)
            out = np.empty([extent[d] for d in kept], info.numpy_dtype)
        self.run(self.jobs(path, slices, out, verify=verify))
        return out

    def jobs(self, path: str, slices: Slices, out: Array, *, verify: bool = False) -> list[Job]:
        """Returns the jobs of a `read` into `out`: one for each part of a large region."""
        if verify:
            raise ValueError(f"{self.where} records no digests to verify")
        info = self.info(path)
        start, extent, kept = region(info, slices)
        whole = expanded(words_for(info, tuple(extent[d] for d in kept), out), extent, kept)
        return [
            partial(self._fill, info, tuple(map(operator.add, start, first)), part, 1)
            for first, part in slabs(whole)
        ]

    def _run(self, jobs: list[Job]) -> None:
        """Runs the jobs on several threads."""
        run(jobs, _THREADS)
        self._require_unchanged()

    def _fill(self, info: SpecTensorInfo, start: Shape, into: Words, threads: int) -> None:
        with self._errors():
            super()._fill(info, start, into, threads)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raises the errors of the library, and of reads in a store, as those of this package."""
        self._thread.error = None
        try:
            with errors_of_files():
                yield
        except (ShardinitError, OSError):
            if self._thread.error is None:
                raise
            raise self._thread.error from None

    def _files(self, store: StoreFiles) -> _native.Files:
        """Returns the objects of a store, which the library reads by a call."""
        sizes = store.sizes()

        def read(_: Any, name: bytes, offset: int, size: int, out: Any) -> int:
            try:
                data = store.read_range(name.decode(), offset, offset + size)
            except Exception as error:
                self._thread.error = error
                return 1
            ctypes.memmove(out, data, size)
            self._read_from.add(name.decode())
            return 0

        names = [name.encode() for name in sizes]
        return _native.Files(
            names=(ctypes.c_char_p * len(names))(*names),
            sizes=(ctypes.c_int64 * len(names))(*sizes.values()),
            count=len(names),
            read_range=_native.ReadRange(read),
        )

    def _require_unchanged(self) -> None:
        """Raises DamageError if an object was replaced while it was read."""
        names, self._read_from = self._read_from, set()
        if self._store is not None:
            self._store.require_unchanged(names)
