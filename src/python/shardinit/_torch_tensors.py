"""Fills PyTorch tensors: their types, their memory, and a DTensor's part of a tensor."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

try:
    import torch
except ImportError as error:
    raise ImportError("shardinit.torch needs PyTorch: pip install torch") from error

from . import _dtypes
from ._errors import MismatchError
from ._source import Job, Slices, Source, Staged, TensorInfo
from ._spec import Spec

_Box = tuple[tuple[slice, ...], tuple[slice, ...]]
Interval = tuple[int, int]  # Start and length.


def dtype_of(info: TensorInfo) -> torch.dtype:
    """Returns PyTorch's type for a tensor's elements.

    Raises:
        MismatchError: PyTorch has no such type.
    """
    dtype: torch.dtype | None = getattr(torch, _dtypes.called(info.dtype) or "-", None)
    if dtype is None:
        raise MismatchError(f"`{info.path}` is {info.dtype}, a type that PyTorch does not have")
    return dtype


def fill_local(checkpoint: Source, path: str, tensor: torch.Tensor, verify: bool) -> list[Job]:
    """Returns jobs that fill a tensor, a DTensor's shard or a ZeRO-3 partition; see `fill`."""
    if is_partitioned(tensor):
        return _fill_partition(checkpoint, path, tensor, verify)
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return fill(checkpoint, path, None, tensor, verify=verify)
    mesh = tensor.device_mesh  # type: ignore[attr-defined]
    shape = checkpoint.info(path).global_shape
    local = tensor.detach().to_local()  # type: ignore[attr-defined]
    local_shape, boxes = local_boxes(
        shape, mesh.shape, mesh.get_coordinate(), placements, what=f"`{path}`"
    )
    if boxes and tuple(local.shape) != local_shape:
        raise MismatchError(
            "a local shard has another shape than its placements say",
            mismatching={path: f"{list(local_shape)} by {placements}, {list(local.shape)} here"},
        )
    parts = (fill(checkpoint, path, there, local[here], verify=verify) for there, here in boxes)
    return list(itertools.chain.from_iterable(parts))


def fill(
    checkpoint: Source, path: str, slices: Slices, target: torch.Tensor, *, verify: bool
) -> list[Job]:
    """Returns jobs for `Source.run` that read a part into a tensor.

    A CPU tensor of the stored dtype is filled without a copy. So is a contiguous tensor on a CUDA
    device, if kernels can generate its values. Other tensors are filled from a temporary tensor.
    """
    dtype = dtype_of(checkpoint.info(path))
    target = target.detach()
    plain = type(target) is torch.Tensor and not target.is_neg() and not target.is_conj()
    if target.device.type == "cpu" and target.dtype == dtype and plain:
        torch.autograd.graph.increment_version(target)
        return checkpoint.jobs(path, slices, _words(target), verify=verify)
    return [_Copied(checkpoint, path, slices, target, verify)]


class _Copied(Staged):
    """Fills a tensor from a temporary CPU tensor of the stored dtype, unless a kernel can."""

    def __init__(
        self, checkpoint: Source, path: str, slices: Slices, target: torch.Tensor, verify: bool
    ) -> None:
        self._part, self._target, self._verify = (checkpoint, path, slices), target, verify
        self._dtype = dtype_of(checkpoint.info(path))
        self.size = target.numel() * self._dtype.itemsize

    def start(self) -> list[Job]:
        checkpoint, path, slices = self._part
        made = _made_on_device(checkpoint, path, slices, self._target, self._dtype)
        if made is not None:
            self._stored = made
            return []
        self._stored = torch.empty(self._target.shape, dtype=self._dtype, device="cpu")
        return checkpoint.jobs(path, slices, _words(self._stored), verify=self._verify)

    def finish(self) -> None:
        if self._stored is not self._target:
            self._target.copy_(self._stored)
        del self._stored


def _made_on_device(
    checkpoint: Source, path: str, slices: Slices, target: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor | None:
    """Returns a tensor of a spec's values on the target's CUDA device; None if no kernel can.

    The result is the target itself, if it is contiguous and has the stored dtype.
    """
    if not isinstance(checkpoint, Spec) or not target.is_cuda or torch.version.cuda is None:
        return None
    plain = type(target) is torch.Tensor and not target.is_neg() and target.is_contiguous()
    with torch.cuda.device(target.device):
        made = target
        if not plain or target.dtype != dtype:
            made = torch.empty(target.shape, dtype=dtype, device=target.device)
        stream = torch.cuda.current_stream(target.device).cuda_stream
        size = made.numel() * made.element_size()
        if not checkpoint.fill_cuda(path, slices, made.data_ptr(), size, stream):
            return None
    if made is target:
        torch.autograd.graph.increment_version(target)
    return made


def is_partitioned(tensor: torch.Tensor) -> bool:
    """Returns whether DeepSpeed's ZeRO-3 has replaced a parameter's memory by a partition."""
    status = getattr(tensor, "ds_status", None)
    return status is not None and status.name != "AVAILABLE"


def whole_shape(tensor: Any) -> tuple[int, ...]:
    """Returns the shape of a whole tensor, of which this process may hold a part."""
    return tuple(tensor.ds_shape if is_partitioned(tensor) else tensor.shape)


def why_not_filled(tensor: Any) -> str:
    """Returns why a ZeRO-3 partition cannot be filled; "" if it can."""
    if not is_partitioned(tensor):
        return ""
    if hasattr(tensor, "_z3_optimizer"):
        return "has a copy in its optimizer already: fill the model before deepspeed.initialize()"
    if tensor.nvme_swapper is not None:
        return "is offloaded to NVMe by ZeRO-3: only memory can be filled"
    if tensor.ds_secondary_tensor is not None or hasattr(tensor.ds_tensor, "ds_quant_scale"):
        return "has a second or quantized partition in ZeRO-3, which cannot be filled"
    return ""


def _fill_partition(checkpoint: Source, path: str, tensor: Any, verify: bool) -> list[Job]:
    """Returns jobs that fill a ZeRO-3 partition: equal runs of row-major elements, one per rank."""
    size = tensor.ds_tensor.ds_numel
    start = size * tensor.ds_zero_partition_rank
    stop = min(tensor.ds_numel, start + size)  # Later elements are padding.
    jobs: list[Job] = []
    at = 0
    for slices, shape in _boxes_in_row(tuple(tensor.ds_shape), start, stop):
        count = math.prod(shape)
        into = tensor.ds_tensor.detach()[at : at + count].view(shape)
        jobs += fill(checkpoint, path, slices, into, verify=verify)
        at += count
    return jobs


def _boxes_in_row(
    shape: tuple[int, ...], start: int, stop: int
) -> Iterator[tuple[tuple[slice, ...], tuple[int, ...]]]:
    """Yields boxes, as slices and shapes, of the elements [start, stop) of a row-major tensor."""
    if not shape and start < stop:
        yield (), ()
        return
    row = math.prod(shape[1:])
    while start < stop:
        index, within = divmod(start, row)
        rows = 0 if within else (stop - start) // row
        if rows:
            yield (slice(index, index + rows),), (rows, *shape[1:])
            start += rows * row
            continue
        end = min(row, within + stop - start)
        for slices, inner in _boxes_in_row(shape[1:], within, end):
            yield (slice(index, index + 1), *slices), (1, *inner)
        start += end - within


def _words(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Returns the memory of a CPU tensor as unsigned integers.

    ``tensor.numpy()`` would forbid freeing the memory, which FullyShardedDataParallel does with
    gathered parameters.
    """
    size, shape = tensor.element_size(), tuple(tensor.shape)
    if tensor.numel() == 0:
        return np.empty(shape, f"<u{size}")
    strides = [stride * size for stride in tensor.stride()]
    span = size + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * span).from_address(tensor.data_ptr())
    memory.tensor = tensor  # type: ignore[attr-defined] # Keeps the tensor alive.
    return np.ndarray(shape, f"<u{size}", memory, strides=strides)


def local_boxes(
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    coordinate: Sequence[int] | None,
    placements: Sequence[Any],
    what: str = "a tensor",
) -> tuple[tuple[int, ...], list[_Box]]:
    """Returns the part of a DTensor at a coordinate of its mesh.

    Returns:
        The local shape, and for each box of the part, its slices in the whole tensor and in the
        local tensor. ``_StridedShard`` may give several boxes.
    """
    from torch.distributed.tensor import Replicate, Shard

    # For each dimension, the local intervals (start and length) in local order.
    here: list[list[tuple[int, int]]] = [[(0, size)] for size in shape]
    if coordinate is None:  # This process is not in the mesh.
        return (0,) * len(shape), []
    for size, at, placement in zip(mesh_shape, coordinate, placements, strict=True):
        if isinstance(placement, Replicate):
            continue
        kind = type(placement).__name__
        if not isinstance(placement, Shard) and kind != "_StridedShard":
            raise TypeError(f"{what} has the placement {placement!r}, which cannot be loaded")
        dimension = placement.dim % len(shape)
        segments = int(placement.split_factor) if kind == "_StridedShard" else 1
        here[dimension] = take_parts(here[dimension], segments, size, at)
    local_shape = tuple(sum(length for _, length in intervals) for intervals in here)
    if 0 in local_shape:
        return local_shape, []
    boxes: list[_Box] = [((), ())]
    for intervals in here:
        parts: list[tuple[slice, slice]] = []
        end = 0
        for start, length in joined(intervals):
            parts.append((slice(start, start + length), slice(end, end + length)))
            end += length
        boxes = [((*t, there), (*h, mine)) for t, h in boxes for there, mine in parts]
    return local_shape, boxes


def take_parts(intervals: list[Interval], segments: int, parts: int, part: int) -> list[Interval]:
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


def joined(intervals: list[Interval]) -> list[Interval]:
    """Merges adjacent intervals."""
    found: list[Interval] = []
    for start, length in intervals:
        if found and sum(found[-1]) == start:
            found[-1] = (found[-1][0], found[-1][1] + length)
        else:
            found.append((start, length))
    return found


def _chunk(start: int, stop: int, parts: int, part: int) -> Interval:
    """Returns the bounds of part `part` of [start, stop), by the rule of ``torch.chunk``."""
    width = -(-(stop - start) // parts)
    return min(stop, start + part * width), min(stop, start + (part + 1) * width)
