"""An open checkpoint: its facts, and any part of its tensors as an array."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from typing import Any

from . import _dtypes, _manifest
from ._boxes import Boxes
from ._errors import DamageError, FormatError, LibraryError, NotACheckpointError, SpecError
from ._export import RECORD, Export
from ._files import NOT_A_FOLDER, Files, LocalFiles, StoredBox
from ._folder import TensorFolder
from ._manifest import Device, Shard, StoredTensorInfo
from ._opened import Opened
from ._source import Box, Source
from ._store import StoreFiles, is_squeezed, local_path
from ._view import Infos

_TOGETHER = 256  # Receipts are read in groups of this many.

Folder = str | os.PathLike[str] | Source


def as_source(folder: Folder, instead: str = "shardinit.open_spec") -> Source:
    """Returns `folder` if it is open, else opens the checkpoint or export, as `open` does.

    `instead` is the function that takes a spec's file, named in the NotACheckpointError about one.
    """
    if isinstance(folder, Source):
        return folder
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(
            f"a checkpoint is a folder, or an open checkpoint or spec, not {type(folder).__name__}"
        )
    files = files_of(folder)
    if files.why_no_folder() not in ("", NOT_A_FOLDER) or is_spec(files.name):
        raise NotACheckpointError(_why_not(files, instead))
    return _open_files(files)


def open_folder(
    folder: str | os.PathLike[str],
    rank: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Checkpoint | Export | TensorFolder:
    """See `shardinit.open`."""
    return _open_files(files_of(folder, storage_options), rank)


def files_of(
    folder: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Files:
    """Returns the files of a folder, or of a URL in a store."""
    name = os.fspath(folder)
    local = local_path(name)
    if local is None:
        return StoreFiles(name, storage_options)
    if storage_options is not None:
        raise ValueError(f"`{name}` is a folder: `storage_options` are for the URL of a store")
    return LocalFiles(local)


def is_checkpoint(folder: str | os.PathLike[str]) -> bool:
    """Returns whether a folder or URL is a checkpoint or an export."""
    files = files_of(folder)
    return any(files.holds(name) for name in (_manifest.MANIFEST, RECORD))


def _open_files(files: Files, rank: int | None = None) -> Checkpoint | Export | TensorFolder:
    if files.holds(_manifest.MANIFEST):
        return Checkpoint(files, rank)
    if files.holds(RECORD):
        return Export(files)
    may_hold_tensors = files.why_no_folder() in ("", NOT_A_FOLDER) and not is_spec(files.name)
    if not may_hold_tensors or files.holds(_manifest.PLAN):
        raise NotACheckpointError(_why_not(files))
    try:
        return TensorFolder(files)
    except (NotACheckpointError, LibraryError) as error:
        raise NotACheckpointError(f"{_why_not(files)}\n  note: {error}") from None


def is_spec(path: str) -> bool:
    """Returns whether a path is the file of a spec."""
    return path.endswith((".yaml", ".yml")) and os.path.isfile(path)


def _why_not(files: Files, instead: str = "shardinit.open_spec") -> str:
    """Returns why `files` are not a checkpoint, and which function takes them."""
    path, why = files.name, files.why_no_folder()
    if is_spec(path):
        return (
            f"`{path}` is a spec, not a checkpoint: {instead}() takes it; or write a checkpoint "
            f"with `shardinit gen {path} -o DIR`"
        )
    if why == NOT_A_FOLDER:
        return f"`{path}` is not a checkpoint, which is the folder that `shardinit gen` writes"
    if why and is_squeezed(path):
        why += ": a URL is given as text, since a pathlib.Path makes `:/` of `://`"
    return f"`{path}` is not a checkpoint: " + (
        why
        or f"it has no {_manifest.MANIFEST} (which is written last, when all ranks are complete) "
        f"and no {RECORD}"
    )


class Checkpoint(Boxes):
    """A checkpoint that is open for reading, returned by `shardinit.open`.

    Several threads may use it at once. Files are opened when a tensor is read. Each receipt is read
    once.

    Attributes:
        folder: its folder, or its URL in a store.
        tensors: path → `StoredTensorInfo`, in the order of the spec.
        mesh: the grid of ranks that the checkpoint is sharded over.
        name, engine, seed: as in the spec.
        parameters, bytes: counts over all tensors, without replicas.
        world_size: the number of ranks.
        replicas: ``dedupe`` or ``full``.
        plan_sha256: digest of ``plan.json``; checkpoints of the same plan are equal.
        devices: by rank, if the spec's mesh has ``slices`` or ``devices``. Otherwise empty, and
            rank r is on the r-th device.
        bytes_read: bytes of tensors read from files so far.
    """

    noun = "checkpoint"

    def __init__(self, files: Files, rank: int | None = None) -> None:
        """See `shardinit.open`."""
        super().__init__(files)
        text = files.read(_manifest.MANIFEST)
        of = _manifest.parse_manifest(text, files.path(_manifest.MANIFEST))
        for name in _manifest.BESIDE:  # Read later, or by other programs.
            files.refuse_link(name)
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
        self._plan: Opened | None = None

    def __repr__(self) -> str:
        return (
            f"<shardinit.Checkpoint {self.folder!r}: {self.name}, {self.parameters:,} parameters "
            f"in {len(self.tensors)} tensors, {self.world_size} ranks, seed {self.seed}>"
        )

    def partition_spec(self, path: str) -> tuple[tuple[str, ...], ...]:
        """See `Source.partition_spec`; raises DamageError if ``plan.json`` is missing or wrong."""
        return self._plan_of(path).partition_spec(path)

    def is_extended(self, path: str) -> bool:
        """See `Source.is_extended`; raises DamageError as `partition_spec` does."""
        return self._plan_of(path).is_extended(path)

    def boxes(self, path: str, rank: int) -> list[Box]:
        """See `Source.boxes`; raises DamageError as `partition_spec` does."""
        plan = self._plan_of(path)
        self._check_rank(rank)
        return plan.boxes(path, rank)

    def _plan_of(self, path: str) -> Opened:
        self.info(path)
        if self._plan is None:
            name = self._files.path(_manifest.PLAN)
            try:
                text = self._files.read(_manifest.PLAN)
            except FileNotFoundError:
                raise DamageError(f"`{name}` is missing") from None
            if hashlib.sha256(text).hexdigest() != self.plan_sha256:
                raise DamageError(f"`{name}` is not the plan of this checkpoint")
            try:
                plan = Opened(
                    f"`{name}`", path=os.fsencode(name), text=text, text_size=len(text), is_plan=1
                )
            except SpecError as error:
                raise FormatError(str(error)) from None
            kinds = [
                {each.path: (each.dtype, each.global_shape) for each in of.tensors.values()}
                for of in (self, plan)
            ]
            if kinds[0] != kinds[1] or self.mesh != plan.mesh:
                raise FormatError(f"`{name}` has not the tensors and mesh of {_manifest.MANIFEST}")
            self._plan = plan
        return self._plan

    def check(self) -> None:
        """See `Boxes.check`."""
        for first in range(0, self.world_size, _TOGETHER):
            ranks = range(first, min(first + _TOGETHER, self.world_size))
            self._files.look_again([self._name(rank) for rank in ranks])
            self._files.expect([self._name(rank, "json") for rank in ranks], ())
            for rank in ranks:
                self._read_receipt(rank)
                self._files.check(self._name(rank), self._manifest.ranks[rank].size)

    def _expect(self, touched: list[list[Shard]]) -> None:
        ranks = {self._in_order(replicas)[0].rank for replicas in touched}
        receipts = [self._name(rank, "json") for rank in ranks if rank not in self._receipts]
        self._files.expect(receipts, [self._name(rank) for rank in ranks])

    def _in_order(self, replicas: list[Shard]) -> list[Shard]:
        """Returns the replicas of a box, with the own rank's replica first."""
        return sorted(replicas, key=lambda shard: shard.rank != self._rank)

    def _locate(self, info: StoredTensorInfo, replicas: list[Shard]) -> StoredBox:
        problem: DamageError | None = None
        for shard in self._in_order(replicas):
            try:
                extent = self._receipt(shard.rank).get((info.path, shard.offset))
                size = _dtypes.item_size(info.dtype) * math.prod(shard.shape)
                said = (shard.shape, size, shard.sha256)
                if extent is None or (extent.shape, extent.bytes, extent.sha256) != said:
                    raise FormatError(
                        f"the receipt of rank {shard.rank} and {_manifest.MANIFEST} differ on the "
                        f"box of `{info.path}` at {list(shard.offset)}"
                    )
                file, bytes_ = self._name(shard.rank), self._manifest.ranks[shard.rank].size
                self._files.check(file, bytes_)
            except DamageError as error:  # Another rank may have the box.
                problem = problem or error
            else:
                at = extent.file_offset
                return StoredBox(
                    info.path, shard.offset, shard.shape, shard.sha256, file, bytes_, at
                )
        assert problem is not None
        raise problem

    def _receipt(self, rank: int) -> dict[Any, _manifest.Extent]:
        if rank not in self._receipts:
            self._receipts[rank] = self._read_receipt(rank)
        return self._receipts[rank]

    def _read_receipt(self, rank: int) -> dict[Any, _manifest.Extent]:
        name = self._name(rank, "json")
        path = self._files.path(name)
        try:
            text = self._files.read(name)
        except FileNotFoundError:
            raise DamageError(f"`{path}` is missing") from None
        return _manifest.parse_receipt(text, path, rank, self._manifest)

    def _name(self, rank: int, suffix: str = "h5") -> str:
        if rank >= self.world_size:
            raise FormatError(f"{_manifest.MANIFEST}: a box is on rank {rank}, which there is not")
        return _manifest.rank_file(rank, suffix)
