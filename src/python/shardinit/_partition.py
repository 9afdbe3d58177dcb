"""Computes the parts of tensors that ranks hold, from the plan's partitions."""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass

from ._errors import DamageError, FormatError
from ._json import as_int, as_list, as_object, as_path, as_shape, as_text, parse_json
from ._manifest import MANIFEST, Manifest
from ._source import Box, Mesh, Shape

_MAX_SEGMENTS = 1 << 16
_Interval = tuple[int, int]  # Start and length.


@dataclass(frozen=True)
class Partition:
    """How a tensor is sharded: the part that each rank holds.

    Attributes:
        axes: for each dimension, the mesh axes that shard it, the major one first.
        segments: for each dimension, its number of segments.
        nested: for each dimension whose axes are nested, so that each shards the part that the axes
            before it leave: the number of segments into which each axis divides that part, or 0 if
            the axis and the one before it shard as one. It is empty for all other dimensions.
        stage: mesh axis → the indices on it of the ranks that hold the tensor. Indices on other
            axes do not matter.
    """

    axes: tuple[tuple[str, ...], ...]
    segments: tuple[int, ...]
    nested: tuple[tuple[int, ...], ...]
    stage: dict[str, frozenset[int]]

    def boxes(self, shape: Shape, mesh: Mesh, rank: int) -> list[Box]:
        """Returns the boxes of a tensor of that shape that a rank holds; see `Source.boxes`."""
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
                left = taken(left, segments, math.prod(sizes[axis] for axis in axes), part)
            intervals.append(joined(left) if self.nested[d] else left)
        return [
            (tuple(start for start, _ in box), tuple(length for _, length in box))
            for box in itertools.product(*intervals)
        ]

    def _steps(self, d: int) -> list[tuple[int, list[str]]]:
        """Returns the steps that shard a dimension: segment counts, and axes that shard as one."""
        if not self.nested[d]:
            return [(self.segments[d], list(self.axes[d]))]
        steps: list[tuple[int, list[str]]] = []
        for axis, segments in zip(self.axes[d], self.nested[d], strict=True):
            if segments > 0:
                steps.append((segments, []))
            steps[-1][1].append(axis)
        return steps


def taken(intervals: list[_Interval], segments: int, parts: int, part: int) -> list[_Interval]:
    """Divides the elements of intervals into segments, and returns one part of each segment.

    Segments and parts follow the rule of ``torch.chunk``.
    """
    found = []
    total = sum(length for _, length in intervals)
    for segment in range(segments):
        start, stop = _chunk(0, total, segments, segment)
        first, last = _chunk(start, stop, parts, part)
        before = 0  # Counts the elements in earlier intervals.
        for begin, length in intervals:
            some = min(last, before + length) - max(first, before)
            if some > 0:
                found.append((begin + max(first, before) - before, some))
            before += length
    return found


def joined(intervals: list[_Interval]) -> list[_Interval]:
    """Merges adjacent intervals."""
    found: list[_Interval] = []
    for start, length in intervals:
        if found and sum(found[-1]) == start:
            found[-1] = (found[-1][0], found[-1][1] + length)
        else:
            found.append((start, length))
    return found


def _chunk(start: int, stop: int, parts: int, part: int) -> _Interval:
    """Returns the bounds of part `part` of [start, stop), by the rule of ``torch.chunk``."""
    width = -(-(stop - start) // parts)
    return min(stop, start + part * width), min(stop, start + (part + 1) * width)


def parse_partitions(text: bytes, path: str, manifest: Manifest) -> dict[str, Partition]:
    """Parses the partitions in ``plan.json``; returns tensor path → partition."""
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
