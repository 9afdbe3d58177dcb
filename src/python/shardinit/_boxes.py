"""Reads any part of tensors whose boxes are stored in files.

libshardinit checks the manifest or record, which is untrusted, and finds the boxes in the files.
"""

from __future__ import annotations

import ctypes
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np

from ._errors import DamageError
from ._files import Files, StoredBox
from ._native import Listed
from ._opened import Handle, errors_of_files
from ._read import SLAB
from ._source import (
    Array,
    Job,
    Shape,
    Slices,
    Source,
    TensorInfo,
    Words,
    expanded,
    region,
    words_for,
)
from ._view import Infos

_MAX_THREADS = 32


@dataclass(frozen=True, slots=True)
class Shard:
    """A box of a tensor, stored by a rank.

    Attributes:
        rank: the rank whose file holds the box.
        offset: the box's place in the tensor, one number per dimension.
        shape: the shape of the box.
        sha256: digest of its bytes, 64 hexadecimal digits.
    """

    rank: int
    offset: Shape
    shape: Shape
    sha256: str


@dataclass(frozen=True)
class StoredTensorInfo(TensorInfo):
    """A tensor in a checkpoint or export: a `TensorInfo`, and the ranks that hold its boxes."""

    _index: int = field(repr=False, compare=False)
    _listing: Handle = field(repr=False, compare=False)

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """Returns every stored box, by rank; a box with replicas appears several times."""
        rank, shards = len(self.global_shape), list[Shard]()
        while found := self._listed(len(shards)):
            offset, shape = tuple(found.offset[:rank]), tuple(found.shape[:rank])
            digest = ctypes.string_at(found.sha256, 32).hex()
            shards.append(Shard(found.file, offset, shape, digest))
        return tuple(shards)

    def touched(self, start: Shape, extent: Shape) -> list[list[int]]:
        """Returns the numbers of the boxes that overlap a region, replicas of a box together."""
        low, high = self._bounds
        found = np.flatnonzero(((low < np.add(start, extent)) & (high > start)).all(axis=1))
        replicas: dict[Shape, list[int]] = {}
        for number in found.tolist():
            replicas.setdefault(self.shards[number].offset, []).append(number)
        return list(replicas.values())

    def place(self, number: int) -> int:
        """Returns the byte of its file at which a box begins."""
        found = self._listed(number)
        assert found is not None and found.place >= 0
        return int(found.place)

    @cached_property
    def _bounds(self) -> tuple[Array, Array]:
        low = np.array([shard.offset for shard in self.shards], np.int64)
        return low, low + np.array([shard.shape for shard in self.shards], np.int64)

    def _listed(self, number: int) -> Listed | None:
        found, listing = Listed(), self._listing
        at = (listing.value, self._index, number, ctypes.byref(found))
        return found if listing.library.shardinit_listed_at(*at) else None

    def __getstate__(self) -> dict[str, Any]:  # Another process does not have the library's memory.
        return {**self.__dict__, "shards": self.shards, "_listing": None}


class Boxes(Source):
    """A source that is read box by box from files: a `Checkpoint` or an `Export`."""

    tensors: Mapping[str, StoredTensorInfo]
    name: str
    engine: str
    seed: int
    parameters: int
    bytes: int
    plan_sha256: str

    def __init__(self, files: Files, name: str, **kind: int) -> None:
        """Reads the file that lists the boxes: one of this kind in ``shardinit_source``."""
        self._files = files
        self.folder = files.name
        self.where = f"`{self.folder}`"
        text = files.read(name)
        path = os.fsencode(files.path(name))
        with errors_of_files():
            self._listing = Handle({"path": path, "text": text, "text_size": len(text), **kind})
        self._described = of = self._listing.describe(self)
        self.plan_sha256 = of.plan_sha256.decode()
        names = map(bytes.decode, of.file_names[: of.file_count])
        self._sizes = list(zip(names, of.file_sizes[: of.file_count], strict=True))
        self.tensors = Infos(
            {
                path: StoredTensorInfo(path, dtype, shape, index, self._listing)
                for index, (path, dtype, shape, _) in enumerate(self._listing.tensors(of))
            }
        )

    @property
    def bytes_read(self) -> int:
        """Bytes of tensors read from files so far, including gaps between them."""
        return self._files.bytes_read

    def close(self) -> None:
        """Closes all files; they are opened again when something is read."""
        self._files.close()

    def info(self, path: str) -> StoredTensorInfo:
        """Returns the `StoredTensorInfo` of a path; raises UnknownTensorError if it is unknown."""
        return cast("StoredTensorInfo", super().info(path))

    def read(
        self, path: str, slices: Slices = None, *, verify: bool = False, out: Array | None = None
    ) -> Array:
        """Reads a tensor, or a part of it, from whichever files hold it.

        Bytes go from the files directly into the array. Nothing is converted, and only requested
        bytes are read (and gaps of less than a page between short rows).

        Args:
            path: the tensor.
            slices: as for NumPy's basic indexing, with steps of 1: integers (which drop their
                dimension), slices and one ``...``. None is the whole tensor.
            verify: check the digests of all boxes that the part touches, which are then read
                completely.
            out: an array to fill instead of a new one, of the part's shape and of
                `TensorInfo.numpy_dtype`, in any memory order; or of unsigned integers of the same
                width, which receive the bits.

        Returns:
            An array of the part's shape and of `TensorInfo.numpy_dtype`; or `out`.
            bf16 and fp8 have types of ml_dtypes. Without ml_dtypes, they are unsigned integers with
            the same bits, and `TensorInfo.is_bits` is true.

        Raises:
            UnknownTensorError: the source has no such tensor.
            IndexError: `slices` do not fit the tensor's shape.
            TypeError: `slices` contain something other than integers, slices and ``...``, or `out`
                is not a NumPy array.
            ValueError: a slice has a step other than 1, or `out` has another shape or type, is
                read-only, or may have elements that overlap in memory.
            DamageError: a file is missing, truncated or, in a store, was replaced during the read;
                or a digest does not match.
            FormatError: manifest, receipts or record are inconsistent.
        """
        array, jobs = self._planned(path, slices, out, verify)
        if array.nbytes <= SLAB:  # Finishes before threads would have started.
            self._files.run(jobs, 1)
        else:
            self._run(jobs)
        return array.view(self.info(path).numpy_dtype) if out is None else out

    @abstractmethod
    def check(self) -> None:
        """Checks that every file exists and has the right size; reads no tensor.

        If a rank file is missing, HDF5 reports no error but returns numbers that were never stored.
        Call this before other programs read ``index.h5``.

        Raises:
            DamageError: a file is missing, has another size, or is a receipt of another plan.
            FormatError: receipts are inconsistent.
        """

    def jobs(self, path: str, slices: Slices, out: Array, *, verify: bool = False) -> list[Job]:
        """Returns the jobs of a `read` into `out`: one for each box or part of a large box."""
        return self._planned(path, slices, out, verify)[1]

    def _run(self, jobs: list[Job]) -> None:
        """Runs `jobs` on all cores that the process may use."""
        self._files.run(jobs, min(_MAX_THREADS, len(os.sched_getaffinity(0))))

    def _planned(
        self, path: str, slices: Slices, out: Array | None, verify: bool
    ) -> tuple[Words, list[Job]]:
        """Returns the memory that a `read` fills, and its jobs."""
        info = self.info(path)
        start, extent, kept = region(info, slices)
        # Find the pieces before allocating memory: a malicious manifest can request a lot of it.
        touched = [] if 0 in extent else info.touched(start, extent)
        if self._files.far:
            self._expect(info, touched)
        pieces = [self._locate(info, replicas) for replicas in touched]
        array = words_for(info, tuple(extent[d] for d in kept), out)
        return array, self._jobs(pieces, start, expanded(array, extent, kept), verify)

    def _jobs(
        self,
        pieces: list[StoredBox],
        start: Shape,
        whole: Words,
        verify: bool,
    ) -> list[Job]:
        found: list[Job] = []
        for box in pieces:
            low = tuple(map(max, start, box.offset))
            high = tuple(
                min(s + n, o + m)
                for s, n, o, m in zip(start, whole.shape, box.offset, box.shape, strict=True)
            )
            part: Any = [slice(a - s, b - s) for a, b, s in zip(low, high, start, strict=True)]
            into = whole[(*part, ...)]  # The `...` keeps scalars as arrays, without a copy.
            within = tuple(a - o for a, o in zip(low, box.offset, strict=True))
            found += self._files.jobs(box, within, into, verify)
        return found

    def _expect(self, info: StoredTensorInfo, touched: list[list[int]]) -> None:
        """Looks up the files of boxes, all at once."""
        files = {info.shards[self._in_order(info, replicas)[0]].rank for replicas in touched}
        self._files.expect(self._receipts_of(files), [self._sizes[file][0] for file in files])

    def _locate(self, info: StoredTensorInfo, replicas: list[int]) -> StoredBox:
        """Finds a replica of a box whose file exists, and returns the place of the box there."""
        problem: DamageError | None = None
        for number in self._in_order(info, replicas):
            shard = info.shards[number]
            file, size = self._sizes[shard.rank]
            try:
                self._find_places(shard.rank)
                self._files.check(file, size)
            except DamageError as error:  # Another rank may have the box.
                problem = problem or error
                continue
            at = info.place(number)
            return StoredBox(info.path, shard.offset, shard.shape, shard.sha256, file, size, at)
        assert problem is not None
        raise problem

    def _in_order(self, info: StoredTensorInfo, replicas: list[int]) -> list[int]:
        """Returns the replicas of a box, with the preferred one first."""
        return replicas

    def _receipts_of(self, files: Iterable[int]) -> list[str]:
        """Returns the files to read before the places of boxes in these files are known."""
        return []

    def _find_places(self, file: int) -> None:
        """Makes sure that the places of boxes in a file are known."""
