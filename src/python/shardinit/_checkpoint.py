"""A checkpoint: what it holds, and any part of it as an array."""

from __future__ import annotations

import contextlib
import json
import math
import operator
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from . import _dtypes, _manifest
from ._errors import DamageError, FormatError, NotACheckpointError
from ._manifest import Device, Shard, StoredTensorInfo
from ._read import SLAB, BoxFile, run, slabs
from ._source import Box, Job, Mesh, Shape, Slices, Source, Words, expanded, region, words_for

_OPEN_FILES = 64
_MAX_THREADS = 32
_EXPORT = "shardinit-export.json"
_MAX_RECORD = 1 << 30
# Format of an export → what loads it.
_READERS = {
    "safetensors": "`from_pretrained` of Transformers, or safetensors.torch.load_file(),",
    "dcp": "torch.distributed.checkpoint.load()",
    "hf-dcp": "torch.distributed.checkpoint.load() with a HuggingFaceStorageReader",
    "megatron": "megatron.core.dist_checkpointing.load()",
    "zarr": "orbax.checkpoint.StandardCheckpointer, or tensorstore.open(),",
    "keras": "`load_weights` of a Keras model",
}

Folder = str | os.PathLike[str] | Source


def as_source(folder: Folder, instead: str = "shardinit.open_spec") -> Source:
    """A checkpoint or spec that is open: this one, or the checkpoint of a folder.

    Args:
        folder: what the user gave.
        instead: for the message about a spec's file: the function that takes one.

    Raises:
        NotACheckpointError: it is something else; the message says which function takes it.
        FormatError: as `shardinit.open`.
        TypeError: it is neither a path nor open.
    """
    if isinstance(folder, Source):
        return folder
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(
            f"a checkpoint is a folder, or an open checkpoint or spec, not {type(folder).__name__}"
        )
    if not os.path.isdir(folder):
        raise NotACheckpointError(_why_not(os.fspath(folder), instead))
    return Checkpoint(folder)


def _why_not(path: str, instead: str = "shardinit.open_spec") -> str:
    """What `path` is, since it is no checkpoint, and which function takes it."""
    if not os.path.exists(path):
        return f"`{path}` is not a checkpoint: there is no such folder"
    if path.endswith((".yaml", ".yml")) and os.path.isfile(path):
        return (
            f"`{path}` is a spec, not a checkpoint: {instead}() takes it; or write a checkpoint "
            f"with `shardinit gen {path} -o DIR`"
        )
    if not os.path.isdir(path):
        return f"`{path}` is not a checkpoint, which is the folder that `shardinit gen` writes"
    try:
        record = json.loads(_manifest.read_regular(path, _EXPORT, _MAX_RECORD))
        format = record["format"]
        return (
            f"`{path}` is an export to {format}, not a checkpoint: {_READERS[format]} takes it; or "
            "write a checkpoint with `shardinit gen`"
        )
    except (OSError, FormatError, ValueError, TypeError, LookupError, RecursionError):
        return (
            f"`{path}` is not a checkpoint: it has no {_manifest.MANIFEST} "
            "(which is written last, when all ranks are complete)"
        )


class Checkpoint(Source):
    """A checkpoint that is open for reading; made by `shardinit.open`.

    It may be used by several threads at once. Files are opened when a tensor is
    read, and a receipt is read once.

    Attributes:
        folder: where it lies.
        tensors: path → `StoredTensorInfo`, in the order of the spec.
        mesh: the grid of ranks that it was cut over.
        name, engine, seed: as in the spec.
        parameters, bytes: of all tensors, replicas not counted.
        world_size: the number of ranks.
        replicas: ``dedupe`` or ``full``.
        plan_sha256: digest of ``plan.json``; two checkpoints of one plan are equal.
        devices: by rank, if the spec's mesh has ``slices`` or ``devices``; else empty, and
            rank r is on the r-th device.
        bytes_read: bytes of tensors read from files so far.
    """

    noun = "checkpoint"

    def __init__(self, folder: str | os.PathLike[str], rank: int | None = None) -> None:
        """See `shardinit.open`."""
        self.folder = os.fspath(folder)
        self.where = f"`{self.folder}`"
        path = os.path.join(self.folder, _manifest.MANIFEST)
        try:
            text = _manifest.read_regular(self.folder, _manifest.MANIFEST)
        except (FileNotFoundError, NotADirectoryError):
            raise NotACheckpointError(_why_not(self.folder)) from None
        of = _manifest.parse_manifest(text, path)
        self._manifest = of
        self.tensors: Mapping[str, StoredTensorInfo] = MappingProxyType(of.tensors)
        self.mesh: Mesh = of.mesh
        self.name = of.name
        self.engine = of.engine
        self.seed = of.seed
        self.parameters = of.parameters
        self.bytes = of.bytes
        self.world_size = len(of.ranks)
        self.replicas = of.replicas
        self.plan_sha256 = of.plan_sha256
        self.devices: tuple[Device, ...] = of.devices
        self.bytes_read = 0
        self._rank = rank
        self._lock = threading.Lock()
        self._files: OrderedDict[int, BoxFile] = OrderedDict()
        self._receipts: dict[int, dict[Any, _manifest.Extent]] = {}
        self._partitions: dict[str, _manifest.Partition] | None = None

    def __repr__(self) -> str:
        return (
            f"<shardinit.Checkpoint {self.folder!r}: {self.name}, {self.parameters:,} parameters "
            f"in {len(self.tensors)} tensors, {self.world_size} ranks, seed {self.seed}>"
        )

    def close(self) -> None:
        """Closes all files; they are opened again if something is read."""
        with self._lock:
            self._files.clear()

    def info(self, path: str) -> StoredTensorInfo:
        """The `StoredTensorInfo` of a path.

        Raises:
            UnknownTensorError: there is no such tensor.
        """
        return cast("StoredTensorInfo", self._find(path))

    def partition_spec(self, path: str) -> tuple[tuple[str, ...], ...]:
        """For each dimension of a tensor the mesh axes that cut it, the major one first.

        Raises:
            UnknownTensorError: there is no such tensor.
            DamageError: ``plan.json`` is missing, or is another one.
        """
        return self._partition(path).axes

    def is_extended(self, path: str) -> bool:
        """See `Source.is_extended`.

        Raises:
            DamageError: ``plan.json`` is missing, or is another one.
        """
        partition = self._partition(path)
        return bool(partition.stage) or any(partition.nested) or any(n > 1 for n in partition.segments)

    def boxes(self, path: str, rank: int) -> list[Box]:
        """See `Source.boxes`.

        Raises:
            DamageError: ``plan.json`` is missing, or is another one.
        """
        partition = self._partition(path)
        self._check_rank(rank)
        return partition.boxes(self.info(path).global_shape, self.mesh, rank)

    def _partition(self, path: str) -> _manifest.Partition:
        self.info(path)
        if self._partitions is None:
            name = os.path.join(self.folder, _manifest.PLAN)
            try:
                text = _manifest.read_regular(self.folder, _manifest.PLAN)
            except FileNotFoundError:
                raise DamageError(f"`{name}` is missing") from None
            self._partitions = _manifest.parse_partitions(text, name, self._manifest)
        return self._partitions[path]

    def read(
        self,
        path: str,
        slices: Slices = None,
        *,
        verify: bool = False,
        out: np.ndarray[Any, Any] | None = None,
    ) -> np.ndarray[Any, Any]:
        """Reads a tensor, or a part of it, from whichever ranks hold it.

        Bytes go from the files straight into the array; nothing is converted, and
        nothing is read that was not asked for (but for gaps of less than a page
        between short rows).

        Args:
            path: the tensor.
            slices: what NumPy's basic indexing takes, with steps of 1: whole numbers
                (which drop their dimension), slices and one ``...``. None is all of it.
            verify: check the digests of all boxes that the part touches. They are read
                whole for that.
            out: an array to fill instead of a new one, of the part's shape and with
                items as wide as the tensor's, in any memory order.

        Returns:
            An array of the part's shape and of `TensorInfo.numpy_dtype`; or `out`.
            bf16 and fp8 are of the types of ml_dtypes. Without that package they are
            unsigned integers with the same bits, and `TensorInfo.is_bits` is true.

        Raises:
            UnknownTensorError: there is no such tensor.
            IndexError: `slices` do not fit the tensor's shape.
            TypeError: `slices` are not made of numbers, slices and ``...``.
            ValueError: a slice has a step, or `out` another shape or item size.
            DamageError: a file is missing or cut short, or a digest is wrong.
            FormatError: manifest or receipts say what cannot be.
        """
        info = self.info(path)
        start, extent, kept = region(info, slices)
        # Found before memory is taken: a manifest that lies can ask for a lot of it.
        pieces = self._pieces(info, start, extent)
        array = words_for(info, tuple(extent[d] for d in kept), out)
        jobs = self._jobs(info, pieces, start, expanded(array, extent, kept), verify)
        if array.nbytes <= SLAB:  # Sooner done than threads are started.
            run(jobs, 1)
        else:
            self.run(jobs)
        return array.view(info.numpy_dtype) if out is None else out

    def jobs(
        self, path: str, slices: Slices, out: np.ndarray[Any, Any], *, verify: bool = False
    ) -> list[Job]:
        """What `read` into `out` comes to: for each box, or each part of a large one, a job."""
        info = self.info(path)
        start, extent, kept = region(info, slices)
        array = words_for(info, tuple(extent[d] for d in kept), out)
        pieces = self._pieces(info, start, extent)
        return self._jobs(info, pieces, start, expanded(array, extent, kept), verify)

    def run(self, jobs: list[Job]) -> None:
        """Does `jobs` on all cores that the process may use."""
        run(jobs, min(_MAX_THREADS, len(os.sched_getaffinity(0))))

    def _pieces(
        self, info: StoredTensorInfo, start: Shape, extent: Shape
    ) -> list[tuple[Shard, int]]:
        if 0 in extent:
            return []
        return [self._locate(info, replicas) for replicas in info.grid.touched(start, extent)]

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
            # With `...` what comes of a scalar is an array too, not a copy of its value.
            part: list[Any] = [
                slice(a - s, b - s) for a, b, s in zip(low, high, start, strict=True)
            ]
            into = whole[(*part, ...)]
            within = tuple(a - o for a, o in zip(low, shard.offset, strict=True))
            if verify:
                found.append(partial(self._read_verified, info, shard, at, within, into))
                continue
            for first, some in slabs(into):
                found.append(
                    partial(self._read, shard, at, tuple(map(operator.add, within, first)), some)
                )
        return found

    def _read(self, shard: Shard, at: int, within: Shape, into: Words) -> None:
        # Opened no sooner, so that few files are open at once.
        self._count(self._file(shard.rank).read(at, shard.shape, within, into))

    def _read_verified(
        self, info: StoredTensorInfo, shard: Shard, at: int, within: Shape, into: Words
    ) -> None:
        """As `_read`, by way of the whole box, whose digest must be right."""
        direct = into.shape == shard.shape and into.flags.c_contiguous
        box = into if direct else np.empty(shard.shape, into.dtype)
        if self._file(shard.rank).read_hashed(at, box) != shard.sha256:
            raise DamageError(
                f"the box of `{info.path}` at {list(shard.offset)} on rank {shard.rank} "
                "does not have its digest"
            )
        self._count(box.nbytes)
        if not direct:
            ends = zip(within, into.shape, strict=True)
            into[...] = box[tuple(slice(first, first + n) for first, n in ends)]

    def _count(self, count: int) -> None:
        with self._lock:
            self.bytes_read += count

    def _locate(self, info: StoredTensorInfo, replicas: list[Shard]) -> tuple[Shard, int]:
        """Of a box that several ranks may hold: one whose file is there, and its place in it."""
        problem: Exception | None = None
        for shard in sorted(replicas, key=lambda s: s.rank != self._rank):
            try:
                extent = self._receipt(shard.rank).get((info.path, shard.offset))
                size = _dtypes.item_size(info.dtype) * math.prod(shard.shape)
                said = (shard.shape, size, shard.sha256)
                if extent is None or (extent.shape, extent.bytes, extent.sha256) != said:
                    raise FormatError(
                        f"the receipt of rank {shard.rank} and {_manifest.MANIFEST} differ on the "
                        f"box of `{info.path}` at {list(shard.offset)}"
                    )
                if shard.rank not in self._files:
                    self._check_size(shard.rank, os.lstat(self._path(shard.rank)))
                return shard, extent.file_offset
            except DamageError as error:  # Another rank may have it.
                problem = problem or error
            except FileNotFoundError:
                problem = problem or DamageError(f"`{self._path(shard.rank)}` is missing")
        assert problem is not None
        raise problem

    def _receipt(self, rank: int) -> dict[Any, _manifest.Extent]:
        if rank not in self._receipts:
            path = self._path(rank, "json")
            try:
                text = _manifest.read_regular(self.folder, _manifest.rank_file(rank, "json"))
            except FileNotFoundError:
                raise DamageError(f"`{path}` is missing") from None
            self._receipts[rank] = _manifest.parse_receipt(text, path, rank, self._manifest)
        return self._receipts[rank]

    def _file(self, rank: int) -> BoxFile:
        with self._lock:
            if rank in self._files:
                self._files.move_to_end(rank)
                return self._files[rank]
        path = self._path(rank)
        try:
            file = _manifest.open_regular(self.folder, _manifest.rank_file(rank))
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
        said = self._manifest.ranks[rank].size
        # What a link is, is said where it is opened.
        if found.st_size != said and not stat.S_ISLNK(found.st_mode):
            raise DamageError(f"`{self._path(rank)}` has {found.st_size} bytes instead of {said}")

    def _path(self, rank: int, suffix: str = "h5") -> str:
        if rank >= self.world_size:
            raise FormatError(f"{_manifest.MANIFEST}: a box is on rank {rank}, which there is not")
        return os.path.join(self.folder, _manifest.rank_file(rank, suffix))
