"""An open checkpoint: its facts, and any part of its tensors as an array."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _native
from ._boxes import Boxes, StoredTensorInfo
from ._errors import DamageError, FormatError, LibraryError, NotACheckpointError, SpecError
from ._export import RECORD, Export
from ._files import NOT_A_FOLDER, Files, LocalFiles
from ._folder import TensorFolder
from ._opened import Opened, errors_of_files, mesh_of
from ._source import Box, Shape, Source
from ._store import StoreFiles, is_squeezed, local_path

MANIFEST = "manifest.json"
PLAN = "plan.json"

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
    return any(files.holds(name) for name in (MANIFEST, RECORD))


def _open_files(files: Files, rank: int | None = None) -> Checkpoint | Export | TensorFolder:
    if files.holds(MANIFEST):
        return Checkpoint(files, rank)
    if files.holds(RECORD):
        return Export(files)
    may_hold_tensors = files.why_no_folder() in ("", NOT_A_FOLDER) and not is_spec(files.name)
    if not may_hold_tensors or files.holds(PLAN):
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
        or f"it has no {MANIFEST} (which is written last, when all ranks are complete) "
        f"and no {RECORD}"
    )


@dataclass(frozen=True, slots=True)
class Device:
    """The place of a device in the mesh.

    Attributes:
        id: the device's id in JAX.
        slice: the slice that the device belongs to.
        coordinate: the device's place, one index per axis of the mesh.
        rank: the same place as a row-major number; the device reads this rank's file.
    """

    id: int
    slice: int
    coordinate: Shape
    rank: int


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
        super().__init__(files, MANIFEST, is_manifest=1)
        for name in (PLAN, "index.h5", "devices.json"):  # Read later, or by other programs.
            files.refuse_link(name)
        of = self._described
        self.mesh = mesh_of(of)
        self.world_size: int = of.file_count
        self.replicas: str = of.replicas.decode()
        self.devices: tuple[Device, ...] = ()
        if of.device_ids:
            ids, slices = of.device_ids[: self.world_size], of.device_slices[: self.world_size]
            places = np.ndindex(*self.mesh.shape)
            self.devices = tuple(map(Device, ids, slices, places, range(self.world_size)))
        self._rank = rank
        self._receipts: set[int] = set()  # The ranks whose receipts were read.
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
            name = self._files.path(PLAN)
            try:
                text = self._files.read(PLAN)
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
                raise FormatError(f"`{name}` has not the tensors and mesh of {MANIFEST}")
            self._plan = plan
        return self._plan

    def check(self) -> None:
        """See `Boxes.check`."""
        for first in range(0, self.world_size, _TOGETHER):
            ranks = range(first, min(first + _TOGETHER, self.world_size))
            self._files.look_again([self._sizes[rank][0] for rank in ranks])
            self._files.expect([self._receipt(rank) for rank in ranks], ())
            for rank in ranks:
                self._read_receipt(rank)
                self._files.check(*self._sizes[rank])

    def _in_order(self, info: StoredTensorInfo, replicas: list[int]) -> list[int]:
        return sorted(replicas, key=lambda number: info.shards[number].rank != self._rank)

    def _receipts_of(self, files: Iterable[int]) -> list[str]:
        return [self._receipt(rank) for rank in files if rank not in self._receipts]

    def _find_places(self, file: int) -> None:
        if file not in self._receipts:
            self._read_receipt(file)

    def _read_receipt(self, rank: int) -> None:
        name = self._receipt(rank)
        try:
            text = self._files.read(name)
        except FileNotFoundError:
            raise DamageError(f"`{self._files.path(name)}` is missing") from None
        with errors_of_files():
            _native.call("add_receipt", self._listing.value, rank, text, len(text))
        self._receipts.add(rank)

    def _receipt(self, rank: int) -> str:
        return self._sizes[rank][0].removesuffix("h5") + "json"
