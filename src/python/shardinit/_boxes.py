"""Tensors whose boxes lie in files, and any part of them as an array."""

from __future__ import annotations

import contextlib
import operator
import os
import stat
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import numpy as np

from ._errors import DamageError
from ._manifest import Shard, StoredTensorInfo
from ._read import SLAB, BoxFile, run, slabs
from ._regular import open_regular
from ._source import Array, Job, Shape, Slices, Source, Words, expanded, region, words_for

_OPEN_FILES = 64
_MAX_THREADS = 32


class Boxes(Source):
    """What is read box by box from the files of a folder: a `Checkpoint` or an `Export`."""

    tensors: Mapping[str, StoredTensorInfo]
    name: str
    engine: str
    seed: int
    plan_sha256: str

    def __init__(self, folder: str) -> None:
        """Keeps the name of a folder, and reads nothing."""
        self.folder = folder
        self.where = f"`{folder}`"
        self.bytes_read = 0
        self._lock = threading.Lock()
        self._files: OrderedDict[int, BoxFile] = OrderedDict()

    def close(self) -> None:
        """Closes all files; they are opened again if something is read."""
        with self._lock:
            self._files.clear()

    def info(self, path: str) -> StoredTensorInfo:
        """The `StoredTensorInfo` of a path; UnknownTensorError if there is none."""
        return cast("StoredTensorInfo", super().info(path))

    def read(
        self, path: str, slices: Slices = None, *, verify: bool = False, out: Array | None = None
    ) -> Array:
        """Reads a tensor, or a part of it, from whichever files hold it.

        Bytes go from the files straight into the array; nothing is converted, and
        nothing is read that was not asked for (but for gaps of less than a page
        between short rows).

        Args:
            path: the tensor.
            slices: what NumPy's basic indexing takes, with steps of 1: whole numbers
                (which drop their dimension), slices and one ``...``. None is all of it.
            verify: check the digests of all boxes that the part touches. They are read
                whole for that.
            out: an array to fill instead of a new one, of the part's shape and of
                `TensorInfo.numpy_dtype`, in any memory order; or of unsigned integers as
                wide as that, which get the bits.

        Returns:
            An array of the part's shape and of `TensorInfo.numpy_dtype`; or `out`.
            bf16 and fp8 are of the types of ml_dtypes. Without that package they are
            unsigned integers with the same bits, and `TensorInfo.is_bits` is true.

        Raises:
            UnknownTensorError: there is no such tensor.
            IndexError: `slices` do not fit the tensor's shape.
            TypeError: `slices` are not made of numbers, slices and ``...``, or `out` is no
                array of NumPy.
            ValueError: a slice has a step, or `out` another shape or type, is read-only, or
                may have elements in the same memory.
            DamageError: a file is missing or truncated, or a digest is wrong.
            FormatError: manifest, receipts or record say what cannot be.
        """
        array, jobs = self._planned(path, slices, out, verify)
        if array.nbytes <= SLAB:  # This is done sooner than threads are started.
            run(jobs, 1)
        else:
            self.run(jobs)
        return array.view(self.info(path).numpy_dtype) if out is None else out

    def jobs(self, path: str, slices: Slices, out: Array, *, verify: bool = False) -> list[Job]:
        """The jobs of a `read` into `out`: one for each box, or for each part of a large box."""
        return self._planned(path, slices, out, verify)[1]

    def run(self, jobs: list[Job]) -> None:
        """Does `jobs` on all cores that the process may use."""
        run(jobs, min(_MAX_THREADS, len(os.sched_getaffinity(0))))

    def _planned(
        self, path: str, slices: Slices, out: Array | None, verify: bool
    ) -> tuple[Words, list[Job]]:
        """The memory that a `read` fills, and its jobs."""
        info = self.info(path)
        start, extent, kept = region(info, slices)
        # The pieces are found before memory is taken: a manifest that lies can ask for a lot of it.
        touched = () if 0 in extent else info.grid.touched(start, extent)
        pieces = [self._locate(info, replicas) for replicas in touched]
        array = words_for(info, tuple(extent[d] for d in kept), out)
        return array, self._jobs(info, pieces, start, expanded(array, extent, kept), verify)

    def _jobs(
        self,
        info: StoredTensorInfo,
        pieces: list[tuple[Shard, int]],
        start: Shape,
        whole: Words,
        verify: bool,
    ) -> list[Job]:
        found: list[Job] = []
        for shard, at in pieces:
            low = tuple(map(max, start, shard.offset))
            high = tuple(
                min(s + n, o + m)
                for s, n, o, m in zip(start, whole.shape, shard.offset, shard.shape, strict=True)
            )
            part: Any = [slice(a - s, b - s) for a, b, s in zip(low, high, start, strict=True)]
            into = whole[(*part, ...)]  # The `...` makes a scalar an array, too, and not a copy.
            within = tuple(a - o for a, o in zip(low, shard.offset, strict=True))
            if verify:
                found.append(partial(self._read_verified, info, shard, at, within, into))
                continue
            for first, some in slabs(into):
                begin = tuple(map(operator.add, within, first))
                found.append(partial(self._read, shard, at, begin, some))
        return found

    def _read(self, shard: Shard, at: int, within: Shape, into: Words) -> None:
        # A file is opened no sooner than here, so that few are open at once.
        self._count(self._file(shard.rank).read(at, shard.shape, within, into))

    def _read_verified(
        self, info: StoredTensorInfo, shard: Shard, at: int, within: Shape, into: Words
    ) -> None:
        """Does what `_read` does by way of the whole box, whose digest must be right."""
        direct = into.shape == shard.shape and into.flags.c_contiguous
        box = into if direct else np.empty(shard.shape, into.dtype)
        if self._file(shard.rank).read_hashed(at, box) != shard.sha256:
            path = os.path.join(self.folder, self._file_of(shard.rank)[0])
            raise DamageError(
                f"the box of `{info.path}` at {list(shard.offset)} in `{path}` does not have its "
                "digest"
            )
        self._count(box.nbytes)
        if not direct:
            ends = zip(within, into.shape, strict=True)
            into[...] = box[tuple(slice(first, first + n) for first, n in ends)]

    def _count(self, count: int) -> None:
        with self._lock:
            self.bytes_read += count

    @abstractmethod
    def _locate(self, info: StoredTensorInfo, replicas: list[Shard]) -> tuple[Shard, int]:
        """Finds, of the replicas of a box, one whose file is there, and its place in that file."""

    @abstractmethod
    def _file_of(self, rank: int) -> tuple[str, int]:
        """Name of a file, relative to the folder, and the size that it must have."""

    def _file(self, rank: int) -> BoxFile:
        with self._lock:
            if rank in self._files:
                self._files.move_to_end(rank)
                return self._files[rank]
        name, _ = self._file_of(rank)
        path = os.path.join(self.folder, name)
        try:
            file = open_regular(self.folder, name)
        except FileNotFoundError:
            raise DamageError(f"`{path}` is missing") from None
        with contextlib.ExitStack() as stack:
            stack.callback(file.close)
            self._check_size(rank, os.fstat(file.fileno()))
            stack.pop_all()
        opened = BoxFile(file, path)
        with self._lock:
            opened = self._files.setdefault(rank, opened)
            while len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)
        return opened

    def _check_size(self, rank: int, found: os.stat_result) -> None:
        name, said = self._file_of(rank)
        # The call that opens a link reports it.
        if found.st_size != said and not stat.S_ISLNK(found.st_mode):
            path = os.path.join(self.folder, name)
            raise DamageError(f"`{path}` has {found.st_size} bytes instead of {said}")
