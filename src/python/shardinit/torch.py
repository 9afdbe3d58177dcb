"""Checkpoints and specs into PyTorch: state dicts, models, DTensors, and the DCP reader.

    import shardinit

    state = shardinit.torch.load_state_dict("DIR")       # whole tensors
    shardinit.torch.load_into(model, "DIR")              # a model, on `meta` or not, sharded or not
    shardinit.torch.init_(model, "SPEC")                 # the same, without files
    dcp.load(state_dict, storage_reader=shardinit.torch.StorageReader("DIR"))

Bytes are read from the files, or made, straight into the memory of CPU tensors; for other
devices they are copied there once. Nothing is unpickled. A process reads or makes what its
own shards need, and no process talks to another.

Where a checkpoint is asked for, a spec that is open (`shardinit.open_spec`) will do.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

try:
    import torch
except ImportError as error:
    raise ImportError("shardinit.torch needs PyTorch: pip install torch") from error
from torch import nn

from ._checkpoint import Checkpoint
from ._errors import MismatchError
from ._manifest import StoredTensorInfo
from ._source import Slices, Source, TensorInfo
from ._spec import Sets, Spec, as_spec

__all__ = ["LoadResult", "dtype_of", "init_", "load_dtensor", "load_into", "load_state_dict"]

_DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8e4m3fn": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u64": torch.uint64,
    "u32": torch.uint32,
    "u16": torch.uint16,
    "u8": torch.uint8,
    "bool": torch.bool,
}
# What NumPy can look at whatever the type is.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_HUGE_FROM = 4 << 20
_COMPARE_BYTES = 64 << 20

_Folder = str | os.PathLike[str] | Source
_Box = tuple[tuple[slice, ...], tuple[slice, ...]]


class LoadResult(NamedTuple):
    """What did not fit when a model was loaded with ``strict=False``."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def dtype_of(info: TensorInfo) -> torch.dtype:
    """PyTorch's type of a tensor's elements."""
    return _DTYPES[info.dtype]


def load_state_dict(
    checkpoint: _Folder,
    keys: Iterable[str] | None = None,
    *,
    device: torch.device | str = "cpu",
    verify: bool = False,
) -> dict[str, torch.Tensor]:
    """Reads whole tensors.

    Args:
        checkpoint: a folder, or a checkpoint or spec that is open.
        keys: the paths to read; None is all.
        device: where the tensors are to be.
        verify: check the digests of all boxes.

    Returns:
        Path → contiguous tensor of the stored dtype and the global shape, in the order
        of `keys`, or that of the spec.

    Raises:
        MismatchError: the checkpoint does not have some of `keys`; it names them all.
        NotACheckpointError, FormatError, DamageError: as `Checkpoint.read`.
    """
    opened = _as_source(checkpoint)
    wanted = list(opened.tensors) if keys is None else list(keys)
    missing = [path for path in wanted if path not in opened.tensors]
    if missing:
        raise MismatchError(f"cannot load {opened.where}", missing, noun=opened.noun)
    state = {}
    for path in wanted:
        info = opened.info(path)
        state[path] = torch.empty(info.global_shape, dtype=dtype_of(info), device=device)
        _advise(state[path])
        _fill(opened, path, None, state[path], verify=verify)
    return state


def load_dtensor(
    checkpoint: _Folder,
    path: str,
    mesh: Any,
    placements: Sequence[Any],
    *,
    device: torch.device | str | None = None,
    verify: bool = False,
) -> Any:
    """Reads this process's part of a tensor.

    Args:
        checkpoint: a folder, or a checkpoint or spec that is open.
        path: the tensor.
        mesh: a ``DeviceMesh``.
        placements: for each of its dimensions ``Shard``, ``Replicate`` or ``_StridedShard``.
        device: where the local tensor is to be; None is the mesh's device type.
        verify: check the digests of all boxes that the part touches.

    Returns:
        A ``DTensor`` of the global shape and the stored dtype.

    Raises:
        UnknownTensorError, FormatError, DamageError: as `Checkpoint.read`.
        TypeError: a placement of another kind.
    """
    from torch.distributed.tensor import DTensor

    opened = _as_source(checkpoint)
    info = opened.info(path)
    shape = info.global_shape
    local_shape, boxes = _local_boxes(
        shape, mesh.shape, mesh.get_coordinate(), placements, what=f"`{path}`"
    )
    local = torch.empty(local_shape, dtype=dtype_of(info), device=device or mesh.device_type)
    _advise(local)
    for there, here in boxes:
        _fill(opened, path, there, local[here], verify=verify)
    stride = tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
    )


def load_into(
    model: nn.Module,
    checkpoint: _Folder,
    *,
    strict: bool = True,
    prefix: str = "",
    rename: Callable[[str], str] | None = None,
    device: torch.device | str | None = None,
    cast: bool = False,
    verify: bool = False,
) -> LoadResult:
    """Fills the parameters and persistent buffers of a model.

    A tensor that has memory is filled in place. One on ``meta`` is replaced by one
    with memory, as by ``load_state_dict(assign=True)``; parameters that are tied stay
    tied, and need only one of their names in the checkpoint. Of a DTensor (after
    ``fully_shard`` or ``parallelize_module``) only the local shard is read. Nothing is
    changed before everything is known to fit.

    Args:
        model: the model.
        checkpoint: a folder, or a checkpoint or spec that is open.
        strict: that tensors are missing or unexpected is an error.
        prefix: what stands before the model's names in the checkpoint: ``model.layers.3.``
            to load one layer. Tensors without it are not looked at.
        rename: the model's name of a tensor → its path in the checkpoint, before `prefix`.
        device: where tensors that are on ``meta`` go. None is the default device, and for
            DTensors that of their mesh.
        cast: convert where the model has another dtype; otherwise that is an error.
        verify: check the digests of all boxes that are touched.

    Returns:
        The names of tensors that were missing and unexpected (with ``strict=False``).

    Raises:
        MismatchError: tensors are missing, unexpected, or have another shape or dtype; it
            names them all. Also for buffers on ``meta`` that are not persistent: no
            checkpoint holds them, and whoever made the model has to compute them.
        NotACheckpointError, FormatError, DamageError: as `Checkpoint.read`.
    """
    opened = _as_source(checkpoint)
    tensors = {
        name: tensor
        for name, tensor in model.state_dict(keep_vars=True).items()
        if isinstance(tensor, torch.Tensor)
    }
    path_of = {name: prefix + (rename(name) if rename else name) for name in tensors}
    names_of: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names_of.setdefault(id(tensor), []).append(name)

    missing: list[str] = []
    mismatching: dict[str, str] = {}
    for names in names_of.values():
        found = [name for name in names if path_of[name] in opened.tensors]
        if not found:
            missing += [path_of[name] for name in names]
        for name in found:
            why = _mismatch(tensors[name], opened, path_of[name], cast)
            if not why and name != found[0]:
                why = _tied_mismatch(opened, path_of[found[0]], path_of[name])
            if why:
                mismatching[path_of[name]] = why
    known = set(path_of.values())
    unexpected = [p for p in opened.tensors if p.startswith(prefix) and p not in known]
    computed = [
        prefix + name
        for name, buffer in model.named_buffers()
        if buffer.is_meta and name not in tensors
    ]
    if mismatching or (strict and (missing or unexpected or computed)):
        hint = (
            f"no {opened.noun} holds buffers that are not persistent: make the modules of "
            f"{', '.join(f'`{path}`' for path in computed)} on a real device before loading, or "
            "load with strict=False and compute them"
        )
        raise MismatchError(
            f"cannot load {opened.where} into {type(model).__name__}",
            missing + computed,
            unexpected,
            mismatching,
            hint if computed else "",
            opened.noun,
        )

    fresh: dict[str, torch.Tensor] = {}
    for names in names_of.values():
        found = [name for name in names if path_of[name] in opened.tensors]
        if not found:
            continue
        tensor = tensors[names[0]]
        if tensor.is_meta:
            tensor = _materialize(tensor, device)
            fresh.update(dict.fromkeys(names, tensor))
        _fill_local(opened, path_of[found[0]], tensor, verify)
    if fresh:
        model.load_state_dict(fresh, strict=False, assign=True)
    return LoadResult(missing + computed, unexpected)


def init_(
    model: nn.Module,
    spec: str | os.PathLike[str] | Spec,
    *,
    set: Sets = (),
    layout: str | None = None,
    strict: bool = True,
    prefix: str = "",
    rename: Callable[[str], str] | None = None,
    device: torch.device | str | None = None,
    cast: bool = False,
) -> LoadResult:
    """Makes the values of the parameters and persistent buffers of a model, without files.

    What `load_into` does with a checkpoint of the spec, bit for bit: a model on ``meta`` gets
    memory, one that has memory is filled in place, and of a DTensor only the local shard is
    made. No process waits for another.

    Args:
        model: the model.
        spec: a YAML file, or a spec that is open.
        set, layout: as for `shardinit.open_spec`; not for a spec that is open.
        strict, prefix, rename, device, cast: as for `load_into`.

    Returns:
        The names of tensors that were missing and unexpected (with ``strict=False``).

    Raises:
        MismatchError: as `load_into`.
        SpecError, LibraryError: as `shardinit.open_spec`.
    """
    return load_into(
        model,
        as_spec(spec, set, layout),
        strict=strict,
        prefix=prefix,
        rename=rename,
        device=device,
        cast=cast,
    )


def _mismatch(tensor: torch.Tensor, source: Source, path: str, cast: bool) -> str:
    info = source.info(path)
    if tuple(tensor.shape) != info.global_shape:
        return f"shape {list(info.global_shape)} in the {source.noun}, {list(tensor.shape)} here"
    if tensor.dtype != dtype_of(info) and not cast:
        return f"dtype {info.dtype} in the {source.noun}, {tensor.dtype} here"
    return ""


def _materialize(tensor: torch.Tensor, device: torch.device | str | None) -> torch.Tensor:
    """A tensor like this one of `meta`, with memory that holds nothing yet."""
    mesh = getattr(tensor, "device_mesh", None)
    if device is None:
        device = torch.get_default_device() if mesh is None else mesh.device_type
    empty = torch.empty_like(tensor.detach(), device=device)
    _advise(empty if mesh is None else empty.to_local())  # type: ignore[attr-defined]
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def _tied_mismatch(source: Source, first: str, second: str) -> str:
    """One tensor of the model cannot hold two of the source, unless they are the same."""
    a, b = source.info(first), source.info(second)
    if (a.dtype, a.global_shape) == (b.dtype, b.global_shape):
        if isinstance(a, StoredTensorInfo) and a.shards == getattr(b, "shards", None):
            return ""  # By their digests.
        if all(_same_bits(source, first, second, rows) for rows in _blocks_of_rows(a)):
            return ""
    return f"is tied to `{first}`, but has other values"


def _same_bits(source: Source, first: str, second: str, slices: Slices) -> bool:
    a, b = source.read(first, slices), source.read(second, slices)
    bits = f"<u{a.dtype.itemsize}"
    return np.array_equal(a.view(bits), b.view(bits))


def _blocks_of_rows(info: TensorInfo) -> Iterator[Slices]:
    """Slices that are a tensor together, none of them large."""
    if not info.size or not info.global_shape:
        yield None
        return
    rows = info.global_shape[0]
    step = max(1, _COMPARE_BYTES * rows // info.nbytes)
    for start in range(0, rows, step):
        yield slice(start, start + step)


def _fill_local(checkpoint: Source, path: str, tensor: torch.Tensor, verify: bool) -> None:
    """Fills a tensor, or the local shard of a DTensor."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        _fill(checkpoint, path, None, tensor, verify=verify)
        return
    mesh = tensor.device_mesh  # type: ignore[attr-defined]
    shape = checkpoint.info(path).global_shape
    local = tensor.detach().to_local()  # type: ignore[attr-defined]
    local_shape, boxes = _local_boxes(
        shape, mesh.shape, mesh.get_coordinate(), placements, what=f"`{path}`"
    )
    if boxes and tuple(local.shape) != local_shape:
        raise MismatchError(
            "a local shard has another shape than its placements say",
            mismatching={path: f"{list(local_shape)} by {placements}, {list(local.shape)} here"},
        )
    for there, here in boxes:
        _fill(checkpoint, path, there, local[here], verify=verify)


def _fill(
    checkpoint: Source, path: str, slices: Slices, target: torch.Tensor, *, verify: bool
) -> None:
    """Reads a part into a tensor, without a copy if it is the CPU's and of the stored dtype."""
    dtype = dtype_of(checkpoint.info(path))
    target = target.detach()
    if target.device.type == "cpu" and target.dtype == dtype:
        checkpoint.read(path, slices, verify=verify, out=_words(target))
        torch.autograd.graph.increment_version(target)
        return
    stored = torch.empty(target.shape, dtype=dtype)
    checkpoint.read(path, slices, verify=verify, out=_words(stored))
    target.copy_(stored)


def _advise(fresh: torch.Tensor) -> None:
    """Asks for huge pages, as NumPy does: half the time to fill memory is to get its pages."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None or fresh.device.type != "cpu" or fresh.nbytes < _HUGE_FROM:
        return
    start = -(-fresh.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    length = fresh.data_ptr() + fresh.nbytes - start
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), advice)


def _words(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The memory of a CPU tensor as unsigned integers."""
    size = tensor.element_size()
    words: np.ndarray[Any, Any] = tensor.view(_BITS[size]).numpy()
    return words.view(f"<u{size}")


def _local_boxes(
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    coordinate: Sequence[int] | None,
    placements: Sequence[Any],
    what: str = "a tensor",
) -> tuple[tuple[int, ...], list[_Box]]:
    """The part of a DTensor that is at a coordinate of its mesh.

    Returns:
        The local shape, and for each box of the part its slices in the whole tensor and in
        the local one. More than one box comes of ``_StridedShard``.
    """
    from torch.distributed.tensor import Replicate, Shard

    # For each dimension the intervals [start, stop) that are here, in local order.
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
        parts = [here[dimension]]
        if kind == "_StridedShard":
            factor = int(placement.split_factor)
            parts = [_chunk(here[dimension], factor, i) for i in range(factor)]
        here[dimension] = [interval for part in parts for interval in _chunk(part, size, at)]
    local_shape = tuple(sum(b - a for a, b in intervals) for intervals in here)
    if 0 in local_shape:
        return local_shape, []
    boxes: list[_Box] = [((), ())]
    for intervals in here:
        merged: list[tuple[slice, slice]] = []
        position = 0
        for start, stop in intervals:
            there = slice(start, stop)
            mine = slice(position, position + stop - start)
            if merged and merged[-1][0].stop == start:
                there = slice(merged[-1][0].start, stop)
                mine = slice(merged[-1][1].start, mine.stop)
                merged.pop()
            merged.append((there, mine))
            position = mine.stop
        boxes = [((*t, there), (*h, mine)) for t, h in boxes for there, mine in merged]
    return local_shape, boxes


def _chunk(intervals: list[tuple[int, int]], parts: int, index: int) -> list[tuple[int, int]]:
    """The part of that index by the rule of ``torch.chunk``: each ceil(n / parts) long."""
    total = sum(stop - start for start, stop in intervals)
    width = -(-total // parts)
    low, high = min(total, index * width), min(total, (index + 1) * width)
    chosen = []
    position = 0
    for start, stop in intervals:
        a = max(low, position) - position + start
        b = min(high, position + stop - start) - position + start
        if a < b:
            chosen.append((a, b))
        position += stop - start
    return chosen


def _as_source(checkpoint: _Folder) -> Source:
    return checkpoint if isinstance(checkpoint, Source) else Checkpoint(checkpoint)


if torch.distributed.is_available():
    from ._dcp import StorageReader

    __all__ += ["StorageReader"]
