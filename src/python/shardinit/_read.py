"""Reads bytes of a box from a file into an array, without conversion and without extra copies.

Bytes that are contiguous both in the file and in the array are read in one call. Rows that are
separate in the array are read by one scattering call, or, if they are short, through a buffer that
fits the processor's cache. Bytes between rows that were not requested are skipped, unless they are
less than a page: so each page that is read has requested bytes.

Half of the time is spent on page faults in new memory, and SHA-256 takes longer than reading. All
cores share both, a large region in slabs, and bytes are hashed while they are still in the cache.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ._errors import DamageError
from ._source import Job, Words

SLAB = 16 << 20  # This many bytes are worth a thread.

_PAGE = 4096
_BUFFER = 1 << 20
_SCATTER_FROM = 4 << 10  # Shorter rows are faster through the buffer.
_SIEVE_TO = 64 << 10  # Longer rows are worth a call each.
_MAX_ROWS = 1024  # Linux's IOV_MAX.

_local = threading.local()


class BoxFile:
    """A file with boxes; it is closed with the last reference to it."""

    def __init__(self, file: Any, name: str) -> None:
        self._file = file
        self._fd: int = file.fileno()
        self._name = name

    def read(self, at: int, shape: tuple[int, ...], start: tuple[int, ...], into: Words) -> int:
        """Fills `into` from the region at `start` of a box, and returns the number of bytes read.

        The box has `shape`, is row-major, and begins at byte `at`. `into` has the shape of the
        region, any strides, and unsigned integers as wide as an element. Raises DamageError if the
        file ends before the region does.
        """
        if into.size == 0:
            return 0
        strides = [into.itemsize * math.prod(shape[d + 1 :]) for d in range(len(shape))]
        at += sum(s * stride for s, stride in zip(start, strides, strict=True))
        # Dimensions from `cut` on are contiguous in the file.
        cut = max((d for d in range(len(shape)) if into.shape[d] != shape[d]), default=0)
        while cut > 0 and into.shape[0] == 1:
            into, strides, cut = into[0], strides[1:], cut - 1
        return self._region(at, strides[:cut], into)

    def read_hashed(self, at: int, box: Words) -> str:
        """Fills `box`, which is C-contiguous, from byte `at` on; returns its SHA-256 in hex."""
        digest = hashlib.sha256()
        rest = box.reshape(-1).view(np.uint8)
        for first in range(0, len(rest), _BUFFER):
            part = rest[first : first + _BUFFER]
            self._exactly(at + first, part)
            digest.update(part)
        return digest.hexdigest()

    def _region(self, at: int, strides: list[int], into: Words) -> int:
        if not strides:
            self._run(at, into)
            return into.nbytes
        run = math.prod(into.shape[1:]) * into.itemsize
        if len(strides) == 1 and strides[0] - run < _PAGE and strides[0] <= _SIEVE_TO:
            return self._sieve(at, strides[0], into, run)
        if len(strides) == 1 and into[0].flags.c_contiguous:
            for row in into:
                if os.preadv(self._fd, (row,), at) != run:
                    self._run(at, row)
                at += strides[0]
            return into.nbytes
        return sum(
            self._region(at + i * strides[0], strides[1:], row) for i, row in enumerate(into)
        )

    def _sieve(self, at: int, stride: int, into: Words, run: int) -> int:
        buffer = _buffer()
        count = max(1, _BUFFER // stride)
        total = 0
        inner = [into.itemsize * math.prod(into.shape[d + 1 :]) for d in range(1, into.ndim)]
        for first in range(0, into.shape[0], count):
            rows = into[first : first + count]
            span = (len(rows) - 1) * stride + run
            self._exactly(at + first * stride, buffer[:span])
            rows[...] = np.ndarray(rows.shape, into.dtype, buffer, 0, (stride, *inner))
            total += span
        return total

    def _run(self, at: int, into: Words) -> None:
        if into.flags.c_contiguous:
            self._exactly(at, into.reshape(-1).view(np.uint8))
            return
        step = into.nbytes // into.shape[0]  # `into` is not contiguous, so it has a dimension.
        if into.ndim == 2 and step >= _SCATTER_FROM and into[0].flags.c_contiguous:
            self._scatter(at, into, step)
        elif into.nbytes <= _BUFFER or into.ndim == 1:
            count = max(1, _BUFFER // into.itemsize) if into.ndim == 1 else len(into)
            for first in range(0, len(into), count):
                part = into[first : first + count]
                piece = _buffer()[: part.nbytes]
                self._exactly(at + first * step, piece)
                part[...] = piece.view(into.dtype).reshape(part.shape)
        else:
            count = 1 if step >= _SCATTER_FROM else max(1, _BUFFER // step)
            for first in range(0, len(into), count):
                part = into[first : first + count]
                self._run(at + first * step, part[0] if count == 1 else part)

    def _scatter(self, at: int, rows: Words, step: int) -> None:
        first = 0
        while first < len(rows):
            part = list(rows[first : first + _MAX_ROWS])
            done = os.preadv(self._fd, part, at + first * step) // step
            if done == 0:  # Less than a row was read: read the rest of it, or raise an error.
                self._exactly(at + first * step, part[0].view(np.uint8))
                done = 1
            first += done

    def _exactly(self, at: int, into: Words) -> None:
        while len(into):
            count = os.preadv(self._fd, [into], at)
            if count == 0:
                raise DamageError(f"`{self._name}` ends at byte {at}, inside a box")
            into, at = into[count:], at + count

    def __del__(self) -> None:
        self._file.close()


def slabs(into: Words) -> Iterator[tuple[tuple[int, ...], Words]]:
    """Yields parts of a region that are large enough for a thread each, and where each begins."""
    cut = next((d for d in range(into.ndim) if into.shape[d] > 1), None)
    if cut is None or into.nbytes <= SLAB:
        yield (0,) * into.ndim, into
        return
    count = max(1, into.shape[cut] * SLAB // into.nbytes)
    for first in range(0, into.shape[cut], count):
        start = tuple(first if d == cut else 0 for d in range(into.ndim))
        yield start, into[(slice(None),) * cut + (slice(first, first + count),)]


def run(jobs: list[Job], threads: int) -> None:
    """Runs all of `jobs`, and raises the error of the first one that failed."""
    if len(jobs) < 2 or threads < 2:
        for job in jobs:
            job()
        return
    with ThreadPoolExecutor(min(threads, len(jobs))) as pool:
        running = [pool.submit(job) for job in jobs]
        try:
            for each in running:
                each.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _buffer() -> Words:
    if not hasattr(_local, "buffer"):
        _local.buffer = np.empty(_BUFFER, np.uint8)
    buffer: Words = _local.buffer
    return buffer
