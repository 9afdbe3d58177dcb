"""Parses the manifest and receipts: JSON from untrusted sources.

Everything that later code uses is checked here: types and ranges, that file names follow the format
(so none leads out of the folder), and that the boxes of a tensor tile it.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from . import _dtypes
from ._errors import DamageError, FormatError
from ._json import as_digest, as_int, as_list, as_object, as_path, as_shape, as_text, parse_json
from ._source import Mesh, Shape, TensorInfo

FORMAT_VERSIONS = (1, 2)
CONTRACT_VERSION = 1
MANIFEST = "manifest.json"
PLAN = "plan.json"
BESIDE = (PLAN, "index.h5", "devices.json")  # These are next to the manifest, which lists them.

_MAX_WORLD = 1 << 24


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

    _shards: Any = field(repr=False, compare=False)
    _said_by: str = field(repr=False, compare=False)

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """Returns every stored box, by rank; a box with replicas appears several times.

        Raises:
            FormatError: the manifest's list of shards is malformed.
        """
        where = f"{self._said_by}: `{self.path}`"
        shards = []
        for each in as_list(self._shards, f"{where}: shards"):
            shard = as_object(each, f"{where}: a shard")
            shards.append(
                Shard(
                    as_int(shard.get("rank"), f"{where}: rank", high=_MAX_WORLD - 1),
                    as_shape(shard.get("offset"), f"{where}: offset", low=0),
                    as_shape(shard.get("shape"), f"{where}: shape"),
                    as_digest(shard.get("sha256"), f"{where}: sha256"),
                )
            )
        return tuple(shards)

    @cached_property
    def grid(self) -> Grid:
        """Returns the boxes as a grid, after checking that they hold every element once."""
        return Grid(self)


class Grid:
    """The distinct boxes of a tensor; each box is a product of one interval per dimension."""

    def __init__(self, info: StoredTensorInfo) -> None:
        self.cells: dict[Shape, list[Shard]] = {}
        rank = len(info.global_shape)
        intervals: list[set[tuple[int, int]]] = [set() for _ in range(rank)]
        for shard in info.shards:
            if len(shard.offset) != rank or len(shard.shape) != rank:
                raise FormatError(
                    f"{info._said_by}: a box of `{info.path}` has not {rank} dimensions"
                )
            replicas = self.cells.setdefault(shard.offset, [])
            replicas.append(shard)
            if shard.shape != replicas[0].shape or shard.sha256 != replicas[0].sha256:
                raise FormatError(f"{info._said_by}: replicas of a box of `{info.path}` differ")
            for dimension, interval in enumerate(zip(shard.offset, shard.shape, strict=True)):
                intervals[dimension].add(interval)
        self.cuts: list[list[int]] = []
        for found, extent in zip(intervals, info.global_shape, strict=True):
            ordered = sorted(found)
            ends = [offset + length for offset, length in ordered]
            if [offset for offset, _ in ordered] != [0, *ends[:-1]] or ends[-1:] != [extent]:
                raise FormatError(f"{info._said_by}: the boxes of `{info.path}` do not tile it")
            self.cuts.append([0, *ends])
        # Each box is a product of intervals, all are different, and none is missing.
        if len(self.cells) != math.prod(len(found) for found in intervals):
            raise FormatError(f"{info._said_by}: the boxes of `{info.path}` do not tile it")

    def touched(self, start: Shape, extent: Shape) -> Iterator[list[Shard]]:
        """Yields the replicas of each box that overlaps a region, which must not be empty."""
        parts = []
        for cuts, first, length in zip(self.cuts, start, extent, strict=True):
            low = bisect.bisect_right(cuts, first) - 1
            high = bisect.bisect_left(cuts, first + length)
            parts.append(cuts[low:high])
        for offset in itertools.product(*parts):
            yield self.cells[offset]


@dataclass(frozen=True)
class RankEntry:
    """The entry of a rank in the manifest."""

    size: int
    receipt_sha256: str


@dataclass(frozen=True)
class Manifest:
    """The contents of ``manifest.json``."""

    name: str
    engine: str
    seed: int
    mesh: Mesh
    replicas: str
    parameters: int
    bytes: int
    plan_sha256: str
    devices: tuple[Device, ...]
    ranks: tuple[RankEntry, ...]
    tensors: dict[str, StoredTensorInfo]


@dataclass(frozen=True, slots=True)
class Extent:
    """The place of a box in its rank's file."""

    file_offset: int
    bytes: int
    shape: Shape
    sha256: str


def rank_file(rank: int, suffix: str = "h5") -> str:
    """Returns the only valid name of a rank's file, relative to the folder."""
    return f"ranks/rank-{rank:05d}.{suffix}"


def _check_versions(of: dict[str, Any], path: str) -> None:
    found = (of.get("format_version"), of.get("contract_version", CONTRACT_VERSION))
    known = found[0] in FORMAT_VERSIONS and found[1] == CONTRACT_VERSION
    if not known or any(type(v) is not int for v in found):
        raise FormatError(
            f"`{path}` has format version {found[0]!r} and contract version {found[1]!r}, but this "
            f"package knows {FORMAT_VERSIONS[0]} to {FORMAT_VERSIONS[-1]}, and {CONTRACT_VERSION}: "
            "use a release that does"
        )


def parse_manifest(text: bytes, path: str) -> Manifest:
    """Parses ``manifest.json``; the boxes of a tensor are checked when it is used."""
    of = parse_json(text, path)
    _check_versions(of, path)
    mesh = as_object(of.get("mesh"), f"{MANIFEST}: mesh")
    axes = tuple(as_text(a, "an axis") for a in as_list(mesh.get("axes"), "mesh axes"))
    shape = as_shape(mesh.get("shape"), f"{MANIFEST}: shape of the mesh")
    world = as_int(of.get("world_size"), f"{MANIFEST}: world_size", 1, _MAX_WORLD)
    ranks = []
    for rank, each in enumerate(as_list(of.get("ranks"), f"{MANIFEST}: ranks")):
        entry = as_object(each, f"{MANIFEST}: a rank")
        named = (entry.get("rank"), entry.get("file"), entry.get("receipt"))
        if named != (rank, rank_file(rank), rank_file(rank, "json")):
            raise FormatError(f"{MANIFEST}: rank {rank} does not have the number and files it must")
        size = as_int(entry.get("size"), f"{MANIFEST}: size of rank {rank}")
        digest = as_digest(entry.get("receipt_sha256"), f"{MANIFEST}: receipt_sha256")
        ranks.append(RankEntry(size, digest))
    if len(axes) != len(shape) or len(set(axes)) != len(axes):
        raise FormatError(f"{MANIFEST}: the mesh's axes and shape do not fit")
    if math.prod(shape) != world or len(ranks) != world:
        raise FormatError(f"{MANIFEST}: mesh, world_size and ranks do not fit")
    tensors: dict[str, StoredTensorInfo] = {}
    for each in as_list(of.get("tensors"), f"{MANIFEST}: tensors"):
        tensor = as_object(each, f"{MANIFEST}: a tensor")
        name = as_path(tensor.get("path"), f"{MANIFEST}: a tensor's path")
        if name in tensors:
            raise FormatError(f"{MANIFEST}: `{name}` is there twice")
        dtype = as_text(tensor.get("dtype"), f"{MANIFEST}: dtype of `{name}`")
        if dtype not in _dtypes.NAMES:
            raise FormatError(f"{MANIFEST}: `{name}` has the unknown dtype {dtype!r}")
        global_shape = as_shape(tensor.get("global_shape"), f"{MANIFEST}: shape of `{name}`")
        tensors[name] = StoredTensorInfo(name, dtype, global_shape, tensor.get("shards"), MANIFEST)
    devices = _parse_devices(of["devices"], shape) if "devices" in of else ()
    return Manifest(
        name=as_text(of.get("name"), f"{MANIFEST}: name"),
        engine=as_text(of.get("engine"), f"{MANIFEST}: engine"),
        seed=as_int(of.get("seed"), f"{MANIFEST}: seed", high=2**64 - 1),
        mesh=Mesh(axes, shape),
        replicas=as_text(of.get("replicas"), f"{MANIFEST}: replicas"),
        parameters=as_int(of.get("parameters"), f"{MANIFEST}: parameters"),
        bytes=as_int(of.get("bytes"), f"{MANIFEST}: bytes"),
        plan_sha256=as_digest(of.get("plan_sha256"), f"{MANIFEST}: plan_sha256"),
        devices=devices,
        ranks=tuple(ranks),
        tensors=tensors,
    )


def _parse_devices(of: Any, mesh: Shape) -> tuple[Device, ...]:
    """Parses ``devices``, which is present if rank r is not on device r."""
    devices = []
    entries = as_list(of, f"{MANIFEST}: devices")
    for rank, (place, each) in enumerate(zip(np.ndindex(*mesh), entries, strict=False)):
        entry = as_object(each, f"{MANIFEST}: a device")
        if (entry.get("coordinate"), entry.get("rank")) != (list(place), rank):
            raise FormatError(f"{MANIFEST}: device {rank} in the list is not that of rank {rank}")
        device = as_int(entry.get("id"), f"{MANIFEST}: id of a device", high=2**31 - 1)
        on = as_int(entry.get("slice"), f"{MANIFEST}: slice of a device", high=_MAX_WORLD - 1)
        devices.append(Device(device, on, place, rank))
    if len(entries) != math.prod(mesh) or len({device.id for device in devices}) != len(entries):
        raise FormatError(f"{MANIFEST}: devices and mesh do not fit")
    return tuple(devices)


def parse_receipt(text: bytes, path: str, rank: int, manifest: Manifest) -> dict[Any, Extent]:
    """Parses a receipt: (tensor path, box offset) → place in file.

    Raises:
        DamageError: the receipt does not match its digest in the manifest.
        FormatError: the digest matches, but the contents are inconsistent.
    """
    entry = manifest.ranks[rank]
    if hashlib.sha256(text).hexdigest() != entry.receipt_sha256:
        raise DamageError(f"`{path}` does not have the digest that {MANIFEST} gives")
    of = parse_json(text, path)
    _check_versions(of, path)
    found = (of.get("rank"), of.get("file"), of.get("size"), of.get("plan_sha256"))
    if found != (rank, rank_file(rank), entry.size, manifest.plan_sha256):
        raise FormatError(f"`{path}` is not the receipt of rank {rank} of this checkpoint")
    extents: dict[Any, Extent] = {}
    for each in as_list(of.get("boxes"), f"`{path}`: boxes"):
        box = as_object(each, f"`{path}`: a box")
        name = as_path(box.get("path"), f"`{path}`: path")
        what = f"`{path}`: box of `{name}`"
        extent = Extent(
            as_int(box.get("file_offset"), f"{what}: file_offset", high=entry.size),
            as_int(box.get("bytes"), f"{what}: bytes", high=entry.size),
            as_shape(box.get("shape"), f"{what}: shape"),
            as_digest(box.get("sha256"), f"{what}: sha256"),
        )
        if extent.file_offset + extent.bytes > entry.size:
            raise FormatError(f"{what} ends past the end of the file")
        key = (name, as_shape(box.get("offset"), f"{what}: offset", low=0))
        if key in extents:
            raise FormatError(f"{what} is there twice")
        extents[key] = extent
    return extents
