"""Tensors whose boxes lie in files, and any part of them as an array."""

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
    """What is read box by box from the files of a folder: a `Checkpoint` or an `Export`."""

    tensors: Mapping[str, StoredTensorInfo]
    name: str
    engine: str
    seed: int
    plan_sha256: str

    def __init__(self, files: Files) -> None:
        """Keeps the files of a folder, and reads nothing."""
        self._files = files
        self.folder = files.name
        self.where = f"`{self.folder}`"

    @property
    def bytes_read(self) -> int:
        """Bytes of tensors read from files so far, with what lay between them."""
        return self._files.bytes_read

    def close(self) -> None:
        """Closes all files; they are opened again if something is read."""
        self._files.close()

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
            DamageError: a file is missing, truncated or, in a store, replaced meanwhile; or a
                digest is wrong.
            FormatError: manifest, receipts or record say what cannot be.
        """
        array, jobs = self._planned(path, slices, out, verify)
        if array.nbytes <= SLAB:  # This is done sooner than threads are started.
            self._files.run(jobs, 1)
        else:
            self._run(jobs)
        return array.view(self.info(path).numpy_dtype) if out is None else out

    @abstractmethod
    def check(self) -> None:
        """Checks that every file is there, with the size that it must have; reads no tensor.

        HDF5 gives no error where a rank file is missing, but numbers that were never there: call
        this before other programs read ``index.h5``.

        Raises:
            DamageError: a file is missing, has another size, or is a receipt of another plan.
            FormatError: receipts say what cannot be.
        """

    def jobs(self, path: str, slices: Slices, out: Array, *, verify: bool = False) -> list[Job]:
        """The jobs of a `read` into `out`: one for each box, or for each part of a large box."""
        return self._planned(path, slices, out, verify)[1]

    def _run(self, jobs: list[Job]) -> None:
        """Does `jobs` on all cores that the process may use."""
        self._files.run(jobs, min(_MAX_THREADS, len(os.sched_getaffinity(0))))

    def _planned(
        self, path: str, slices: Slices, out: Array | None, verify: bool
    ) -> tuple[Words, list[Job]]:
        """The memory that a `read` fills, and its jobs."""
        info = self.info(path)
        start, extent, kept = region(info, slices)
        # The pieces are found before memory is taken: a manifest that lies can ask for a lot of it.
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
            into = whole[(*part, ...)]  # The `...` makes a scalar an array, too, and not a copy.
            within = tuple(a - o for a, o in zip(low, box.offset, strict=True))
            found += self._files.jobs(box, within, into, verify)
        return found

    @abstractmethod
    def _expect(self, touched: list[list[Shard]]) -> None:
        """Asks for what is known of the files of boxes, all at once."""

    @abstractmethod
    def _locate(self, info: StoredTensorInfo, replicas: list[Shard]) -> StoredBox:
        """Finds, of the replicas of a box, one whose file is there, and where it lies."""
