"""A checkpoint: what it holds, and any part of it as an array."""

from __future__ import annotations

import math
import os
from typing import Any

from . import _dtypes, _manifest
from ._boxes import Boxes
from ._errors import DamageError, FormatError, NotACheckpointError
from ._export import RECORD, Export
from ._manifest import Device, Shard, StoredTensorInfo
from ._partition import Partition, parse_partitions
from ._regular import read_regular, refuse_link
from ._result_file import require_local
from ._source import Box, Source
from ._view import Infos

Folder = str | os.PathLike[str] | Source


def as_source(folder: Folder, instead: str = "shardinit.open_spec") -> Source:
    """Returns an open checkpoint, export or spec: this one, or that of a folder, as `open` does.

    `instead` is the function that takes a spec's file, for the NotACheckpointError about one.
    """
    if isinstance(folder, Source):
        return folder
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(
            f"a checkpoint is a folder, or an open checkpoint or spec, not {type(folder).__name__}"
        )
    if not os.path.isdir(folder):
        raise NotACheckpointError(_why_not(os.fspath(folder), instead))
    return open_folder(folder)


def open_folder(folder: str | os.PathLike[str], rank: int | None = None) -> Checkpoint | Export:
    """See `shardinit.open`."""
    require_local(folder)
    found = {
        name for name in (_manifest.MANIFEST, RECORD) if os.path.lexists(os.path.join(folder, name))
    }
    return Export(folder) if found == {RECORD} else Checkpoint(folder, rank)


def _why_not(path: str, instead: str = "shardinit.open_spec") -> str:
    """What `path` is, since it is not a checkpoint, and which function takes it."""
    if not os.path.exists(path):
        return f"`{path}` is not a checkpoint: there is no such folder"
    if path.endswith((".yaml", ".yml")) and os.path.isfile(path):
        return (
            f"`{path}` is a spec, not a checkpoint: {instead}() takes it; or write a checkpoint "
            f"with `shardinit gen {path} -o DIR`"
        )
    if not os.path.isdir(path):
        return f"`{path}` is not a checkpoint, which is the folder that `shardinit gen` writes"
    return (
        f"`{path}` is not a checkpoint: it has no {_manifest.MANIFEST} "
        f"(which is written last, when all ranks are complete) and no {RECORD}"
    )


class Checkpoint(Boxes):
    """A checkpoint that is open for reading; made by `shardinit.open`.

    It may be used by several threads at once. Files are opened when a tensor is
    read, and a receipt is read once.

    Attributes:
        folder: where it lies.
        tensors: path → `StoredTensorInfo`, in the order of the spec.
        mesh: the grid of ranks that it was sharded over.
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
        super().__init__(os.fspath(folder))
        path = os.path.join(self.folder, _manifest.MANIFEST)
        try:
            text = read_regular(self.folder, _manifest.MANIFEST)
        except (FileNotFoundError, NotADirectoryError):
            raise NotACheckpointError(_why_not(self.folder)) from None
        of = _manifest.parse_manifest(text, path)
        for name in _manifest.BESIDE:  # Read later, or by other programs.
            refuse_link(self.folder, name)
        self._manifest = of
        self.tensors = Infos(of.tensors)
        self.mesh = of.mesh
        self.name, self.engine, self.seed = of.name, of.engine, of.seed
        self.parameters, self.bytes = of.parameters, of.bytes
        self.world_size = len(of.ranks)
        self.replicas = of.replicas
        self.plan_sha256 = of.plan_sha256
        self.devices: tuple[Device, ...] = of.devices
        self._rank = rank
        self._receipts: dict[int, dict[Any, _manifest.Extent]] = {}
        self._partitions: dict[str, Partition] | None = None

    def __repr__(self) -> str:
        return (
            f"<shardinit.Checkpoint {self.folder!r}: {self.name}, {self.parameters:,} parameters "
            f"in {len(self.tensors)} tensors, {self.world_size} ranks, seed {self.seed}>"
        )

    def partition_spec(self, path: str) -> tuple[tuple[str, ...], ...]:
        """See `Source.partition_spec`; DamageError if ``plan.json`` is missing or another one."""
        return self._partition(path).axes

    def is_extended(self, path: str) -> bool:
        """See `Source.is_extended`; DamageError as `partition_spec`."""
        of = self._partition(path)
        return bool(of.stage) or any(of.nested) or any(n > 1 for n in of.segments)

    def boxes(self, path: str, rank: int) -> list[Box]:
        """See `Source.boxes`; DamageError as `partition_spec`."""
        partition = self._partition(path)
        self._check_rank(rank)
        return partition.boxes(self.info(path).global_shape, self.mesh, rank)

    def _partition(self, path: str) -> Partition:
        self.info(path)
        if self._partitions is None:
            name = os.path.join(self.folder, _manifest.PLAN)
            try:
                text = read_regular(self.folder, _manifest.PLAN)
            except FileNotFoundError:
                raise DamageError(f"`{name}` is missing") from None
            self._partitions = parse_partitions(text, name, self._manifest)
        return self._partitions[path]

    def _locate(self, info: StoredTensorInfo, replicas: list[Shard]) -> tuple[Shard, int]:
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
                text = read_regular(self.folder, _manifest.rank_file(rank, "json"))
            except (FileNotFoundError, NotADirectoryError):
                raise DamageError(f"`{path}` is missing") from None
            self._receipts[rank] = _manifest.parse_receipt(text, path, rank, self._manifest)
        return self._receipts[rank]

    def _file_of(self, rank: int) -> tuple[str, int]:
        return _manifest.rank_file(rank), self._manifest.ranks[rank].size

    def _path(self, rank: int, suffix: str = "h5") -> str:
        if rank >= self.world_size:
            raise FormatError(f"{_manifest.MANIFEST}: a box is on rank {rank}, which there is not")
        return os.path.join(self.folder, _manifest.rank_file(rank, suffix))
