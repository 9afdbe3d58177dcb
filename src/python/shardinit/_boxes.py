"""Reads any part of tensors whose boxes are stored in files."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, cast

from ._files import Files, StoredBox
from ._manifest import Shard, StoredTensorInfo
from ._read import SLAB
from ._source import Array, Job, Shape, Slices, Source, Words, expanded, region, words_for

_MAX_THREADS = 32


class Boxes(Source):
    """A source that is read box by box from files: a `Checkpoint` or an `Export`."""

    tensors: Mapping[str, StoredTensorInfo]
    name: str
    engine: str
    seed: int
    plan_sha256: str

    def __init__(self, files: Files) -> None:
        """Stores the files of a folder; reads nothing."""
        self._files = files
        self.folder = files.name
        self.where = f"`{self.folder}`"

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
        touched = [] if 0 in extent else list(info.grid.touched(start, extent))
        if self._files.far:
            self._expect(touched)
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

    @abstractmethod
    def _expect(self, touched: list[list[Shard]]) -> None:
        """Looks up the files of boxes, all at once."""

    @abstractmethod
    def _locate(self, info: StoredTensorInfo, replicas: list[Shard]) -> StoredBox:
        """Finds a replica of a box whose file exists, and returns the place of the box there."""
