"""Manifest, receipts and plan: JSON that may come from anyone, made into values.

Everything that is used later is checked here: types, ranges, that names of files
are those of the format (so none leads out of the folder), and that the boxes of a
tensor tile it.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import hashlib
import itertools
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from . import _dtypes
from ._errors import DamageError, FormatError
from ._source import Box, Mesh, Shape, TensorInfo

FORMAT_VERSIONS = (1, 2)
CONTRACT_VERSION = 1
MANIFEST = "manifest.json"
PLAN = "plan.json"
BESIDE = (PLAN, "index.h5", "devices.json")  # What lies beside the manifest, which lists it.

_MAX_INT64 = 2**63 - 1
_MAX_JSON = 4 << 30
_MAX_WORLD = 1 << 24
_MAX_DIMENSIONS = 32
_MAX_SEGMENTS = 1 << 16
_Interval = tuple[int, int]  # Start and length.
_PATH = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Device:
    """Which place of the mesh a device has.

    Attributes:
        id: the device, as JAX numbers them.
        slice: the slice that it lies on.
        coordinate: its place, one index per axis of the mesh.
        rank: the same place as a number, row-major: whose file it reads.
    """

    id: int
    slice: int
    coordinate: Shape
    rank: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A box of a tensor that a rank stores.

    Attributes:
        rank: the rank whose file holds it.
        offset: the box's place in the tensor, one number per dimension.
        shape: its shape.
        sha256: digest of its bytes, 64 hexadecimal digits.
    """

    rank: int
    offset: Shape
    shape: Shape
    sha256: str


@dataclass(frozen=True)
class StoredTensorInfo(TensorInfo):
    """What a checkpoint or export says of one tensor: a `TensorInfo`, and who holds it."""

    _shards: Any = field(repr=False, compare=False)
    _said_by: str = field(repr=False, compare=False)

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """Every stored box, by rank; the same box more than once if it has replicas.

        Raises:
            FormatError: the list is not one.
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
        """The boxes as a grid, checked to hold every element once."""
        return Grid(self)


class Grid:
    """The different boxes of a tensor. Cuts of each dimension; their product is the boxes."""

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
        # Each box is one of the product, no two are the same, and none is left out.
        if len(self.cells) != math.prod(len(found) for found in intervals):
            raise FormatError(f"{info._said_by}: the boxes of `{info.path}` do not tile it")

    def touched(self, start: Shape, extent: Shape) -> Iterator[list[Shard]]:
        """The replicas of each box that shares elements with a region that is not empty."""
        parts = []
        for cuts, first, length in zip(self.cuts, start, extent, strict=True):
            low = bisect.bisect_right(cuts, first) - 1
            high = bisect.bisect_left(cuts, first + length)
            parts.append(cuts[low:high])
        for offset in itertools.product(*parts):
            yield self.cells[offset]


@dataclass(frozen=True)
class RankEntry:
    """A rank's line in the manifest."""

    size: int
    receipt_sha256: str


@dataclass(frozen=True)
class Manifest:
    """All of ``manifest.json``."""

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
    """Where a box lies in its rank's file."""

    file_offset: int
    bytes: int
    shape: Shape
    sha256: str


def rank_file(rank: int, suffix: str = "h5") -> str:
    """The only name that the file of a rank can have, relative to the folder."""
    return f"ranks/rank-{rank:05d}.{suffix}"


def as_int(value: Any, what: str, low: int = 0, high: int = _MAX_INT64) -> int:
    """`value`, a whole number in a range."""
    if type(value) is not int or not low <= value <= high:
        raise FormatError(f"{what} is no whole number from {low} to {high}")
    return value


def as_text(value: Any, what: str) -> str:
    """`value`, a string of which a message may say every character."""
    if type(value) is not str:
        raise FormatError(f"{what} is no text")
    if not value.isprintable():
        raise FormatError(f"{what} is {value!r}, which cannot be printed")
    return value


def as_path(value: Any, what: str) -> str:
    """`value`, the path of a tensor."""
    if not _PATH.fullmatch(as_text(value, what)):
        raise FormatError(f"{what} is {value!r}, which is no path")
    return str(value)


def as_list(value: Any, what: str) -> list[Any]:
    """`value`, a list."""
    if type(value) is not list:
        raise FormatError(f"{what} is no list")
    return value


def as_object(value: Any, what: str) -> dict[str, Any]:
    """`value`, a JSON object."""
    if type(value) is not dict:
        raise FormatError(f"{what} is no object")
    return value


def as_digest(value: Any, what: str) -> str:
    """`value`, a SHA-256 in hexadecimal."""
    if not _DIGEST.fullmatch(as_text(value, what)):
        raise FormatError(f"{what} is no SHA-256 in lower-case hexadecimal")
    return str(value)


def as_shape(value: Any, what: str, low: int = 1) -> Shape:
    """`value`, a list of sizes whose product is a size too."""
    shape = tuple(as_int(extent, what, low) for extent in as_list(value, what))
    if len(shape) > _MAX_DIMENSIONS or math.prod(shape) > _MAX_INT64:
        raise FormatError(f"{what} is too large for a shape")
    return shape


def read_regular(folder: str, name: str, limit: int = _MAX_JSON) -> bytes:
    """The bytes of a regular file of at most `limit` bytes; see `open_regular`."""
    with open_regular(folder, name) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise FormatError(
                f"`{os.path.join(folder, name)}` has {size} bytes, more than the {limit} that it "
                "may have"
            )
        return bytes(file.readall())


def open_regular(folder: str, name: str) -> Any:
    """A file of the folder opened for reading, unbuffered: no device, no FIFO, and no link.

    The folder itself may be a symbolic link, but what is in it must not lead out of it.

    Raises:
        FormatError: it, or a folder on the way to it, is a link, or it is no regular file.
        OSError: as ``os.open``.
    """
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *parents, last = name.split("/")
        for parent in parents:
            inner = os.open(parent, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
            _no_link(os.fstat(at), os.path.join(folder, parent))
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        path = os.path.join(folder, name)
        try:
            file = os.open(last, flags, dir_fd=at)
        except OSError as error:
            if error.errno == errno.ELOOP:
                _no_link(os.stat(last, dir_fd=at, follow_symlinks=False), path)
            if error.errno == errno.ENXIO:  # A socket.
                raise FormatError(f"`{path}` is no regular file") from None
            error.filename = path
            raise
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FormatError(f"`{path}` is no regular file")
    return open(file, "rb", buffering=0)


def refuse_link(folder: str, name: str) -> None:
    """Of a file that is not opened, as `open_regular`; one that is not there is no link.

    Raises:
        FormatError: it is a symbolic link.
    """
    path = os.path.join(folder, name)
    with contextlib.suppress(FileNotFoundError):
        _no_link(os.lstat(path), path)


def _no_link(found: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise FormatError(f"`{path}` is a symbolic link: a checkpoint has its files in its folder")


def parse_json(text: bytes, path: str) -> dict[str, Any]:
    """An object from JSON, with every way to fail made a FormatError."""
    try:
        return as_object(json.loads(text), f"`{path}`")
    except (ValueError, RecursionError) as error:
        raise FormatError(f"`{path}` is no JSON: {error}") from None


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
    """``manifest.json`` as a value; the boxes of a tensor are looked at when it is used."""
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
    """``devices``, which is there if rank r is not on device r."""
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
    """A receipt as (tensor path, box offset) → place in the rank's file.

    Raises:
        DamageError: it is not the receipt that the manifest vouches for.
        FormatError: it is, but it says what cannot be.
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


@dataclass(frozen=True)
class Partition:
    """Which part of a tensor which ranks hold.

    Attributes:
        axes: for each dimension the mesh axes that cut it, the major one first.
        segments: for each dimension in how many it is cut first.
        nested: for each dimension whose axes cut one after the other, each what those before it
            left: in how many segments each axis cuts this, 0 where it is as one with the axis
            before it. Empty for all others.
        stage: mesh axis → the indices on it of ranks that hold the tensor; other axes do not
            matter.
    """

    axes: tuple[tuple[str, ...], ...]
    segments: tuple[int, ...]
    nested: tuple[tuple[int, ...], ...]
    stage: dict[str, frozenset[int]]

    def boxes(self, shape: Shape, mesh: Mesh, rank: int) -> list[Box]:
        """What a rank holds of a tensor of that shape: see `Source.boxes`."""
        at: dict[str, int] = {}
        rest = rank
        for axis, extent in zip(reversed(mesh.axes), reversed(mesh.shape), strict=True):
            rest, at[axis] = divmod(rest, extent)
        if any(at[axis] not in indices for axis, indices in self.stage.items()):
            return []
        sizes = dict(zip(mesh.axes, mesh.shape, strict=True))
        intervals = []
        for d, extent in enumerate(shape):
            left = [(0, extent)]
            for segments, axes in self._steps(d):
                part = 0
                for axis in axes:
                    part = part * sizes[axis] + at[axis]
                left = _take(left, segments, math.prod(sizes[axis] for axis in axes), part)
            intervals.append(_joined(left) if self.nested[d] else left)
        return [
            (tuple(start for start, _ in box), tuple(length for _, length in box))
            for box in itertools.product(*intervals)
        ]

    def _steps(self, d: int) -> list[tuple[int, list[str]]]:
        """How a dimension is cut: in so many segments, and these over axes as one."""
        if not self.nested[d]:
            return [(self.segments[d], list(self.axes[d]))]
        steps: list[tuple[int, list[str]]] = []
        for axis, segments in zip(self.axes[d], self.nested[d], strict=True):
            if segments > 0:
                steps.append((segments, []))
            steps[-1][1].append(axis)
        return steps


def _take(intervals: list[_Interval], segments: int, parts: int, part: int) -> list[_Interval]:
    """Of what intervals have together, cut in segments, one of the parts of each."""
    taken = []
    for start, stop in _chunks(0, sum(length for _, length in intervals), segments):
        first, last = _chunk(start, stop, parts, part)
        before = 0  # Elements in front of the interval.
        for begin, length in intervals:
            some = min(last, before + length) - max(first, before)
            if some > 0:
                taken.append((begin + max(first, before) - before, some))
            before += length
    return taken


def _joined(intervals: list[_Interval]) -> list[_Interval]:
    """What lies side by side is one."""
    joined: list[_Interval] = []
    for start, length in intervals:
        if joined and sum(joined[-1]) == start:
            joined[-1] = (joined[-1][0], joined[-1][1] + length)
        else:
            joined.append((start, length))
    return joined


def _chunk(start: int, stop: int, parts: int, part: int) -> tuple[int, int]:
    """One of the parts of [start, stop) by the rule of ``torch.chunk``."""
    width = -(-(stop - start) // parts)
    return min(stop, start + part * width), min(stop, start + (part + 1) * width)


def _chunks(start: int, stop: int, parts: int) -> Iterator[tuple[int, int]]:
    for part in range(parts):
        yield _chunk(start, stop, parts, part)


def parse_partitions(text: bytes, path: str, manifest: Manifest) -> dict[str, Partition]:
    """From ``plan.json``: path → how the tensor is cut."""
    if hashlib.sha256(text).hexdigest() != manifest.plan_sha256:
        raise DamageError(f"`{path}` is not the plan of this checkpoint")
    partitions: dict[str, Partition] = {}
    extents = dict(zip(manifest.mesh.axes, manifest.mesh.shape, strict=True))
    for each in as_list(parse_json(text, path).get("tensors"), f"`{path}`: tensors"):
        tensor = as_object(each, f"`{path}`: a tensor")
        name = as_path(tensor.get("path"), f"`{path}`: a path")
        spec = as_list(tensor.get("partition_spec"), f"`{path}`: partition_spec of `{name}`")
        cut = tuple(
            tuple(as_text(axis, f"`{path}`: an axis") for axis in as_list(axes, f"`{path}`: axes"))
            for axes in spec
        )
        info = manifest.tensors.get(name)
        if info is None or len(cut) != len(info.global_shape):
            raise FormatError(f"`{path}`: partition_spec of `{name}` does not fit {MANIFEST}")
        if not {axis for axes in cut for axis in axes} <= set(manifest.mesh.axes):
            raise FormatError(f"`{path}`: partition_spec of `{name}` has an axis that no mesh has")
        what = f"`{path}`: segments, nested or stage of `{name}`"
        segments = as_shape(tensor.get("segments", [1] * len(cut)), what)
        if len(segments) != len(cut) or math.prod(segments) > _MAX_SEGMENTS:
            raise FormatError(f"{what} do not fit {MANIFEST}")
        stage: dict[str, frozenset[int]] = {}
        for axis, indices in as_object(tensor.get("stage", {}), what).items():
            if axis not in extents:
                raise FormatError(f"{what} do not fit {MANIFEST}")
            high = extents[axis] - 1
            stage[axis] = frozenset(as_int(i, what, 0, high) for i in as_list(indices, what))
        nested = tuple(
            as_shape(steps, what, low=0)
            for steps in as_list(tensor.get("nested", [[] for _ in cut]), what)
        )
        good = len(nested) == len(cut) and all(
            not steps or (len(steps) == len(axes) and steps[0] > 0)
            for axes, steps in zip(cut, nested, strict=True)
        )
        if not good or math.prod(filter(None, itertools.chain(*nested))) > _MAX_SEGMENTS:
            raise FormatError(f"{what} do not fit {MANIFEST}")
        partitions[name] = Partition(cut, segments, nested, stage)
    if len(partitions) != len(manifest.tensors):
        raise FormatError(f"`{path}` has not the tensors of {MANIFEST}")
    return partitions
