"""What specs, plans and folders of tensors share, which libshardinit opens."""

from __future__ import annotations

import contextlib
import ctypes
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from . import _native
from ._errors import DamageError, FormatError, NotACheckpointError, SpecError
from ._source import (
    Array,
    Box,
    Job,
    Mesh,
    Shape,
    Slices,
    Source,
    TensorInfo,
    Words,
    expanded,
    region,
    words_for,
)
from ._view import Infos


@dataclass(frozen=True)
class SpecTensorInfo(TensorInfo):
    """A tensor of a spec, plan or folder: a `TensorInfo`, and its partition.

    Attributes:
        partition_spec: for each dimension, the mesh axes that shard it, the major one first.
    """

    partition_spec: tuple[tuple[str, ...], ...]
    _index: int = field(repr=False, compare=False)
    _extended: bool = field(repr=False, compare=False)


class Opened(Source):
    """A source that libshardinit has opened: a plan, or a subclass's spec or folder.

    Attributes:
        tensors: path → `SpecTensorInfo`, in the order of the source.
        name, engine, seed, parameters, bytes: as in ``shardinit_info``.
        library_version: the version of libshardinit.
    """

    noun = "plan"
    name: str
    engine: str
    seed: int
    parameters: int
    bytes: int

    def __init__(self, where: str, **members: Any) -> None:
        """Opens a source with these members of ``shardinit_source``."""
        self.where = where
        self._handle: Handle | None = None
        handle = Handle(members)
        of = handle.describe(self)
        self.mesh = mesh_of(of)
        self.library_version: str = handle.library.shardinit_version().decode()
        tensors = {}
        for index, (path, dtype, shape, tensor) in enumerate(handle.tensors(of)):
            info = SpecTensorInfo(
                path,
                dtype,
                shape,
                tuple(
                    tuple(cut.decode().split(",")) if cut else ()
                    for cut in tensor.partition[: tensor.dimensions]
                ),
                index,
                bool(tensor.extended),
            )
            tensors[info.path] = info
        self.tensors: Mapping[str, SpecTensorInfo] = Infos(tensors)
        self._handle = handle
        if of.warnings:
            warnings.warn(of.warnings.decode().rstrip("\n"), stacklevel=4)

    def close(self) -> None:
        """Releases the memory, after calls in other threads have returned."""
        self._handle = None

    def info(self, path: str) -> SpecTensorInfo:
        """Returns the `SpecTensorInfo` of a path; raises UnknownTensorError for an unknown path."""
        return cast("SpecTensorInfo", super().info(path))

    def partition_spec(self, path: str) -> tuple[tuple[str, ...], ...]:
        """See `Source.partition_spec`."""
        return self.info(path).partition_spec

    def is_extended(self, path: str) -> bool:
        """See `Source.is_extended`."""
        return self.info(path)._extended

    def boxes(self, path: str, rank: int) -> list[Box]:
        """See `Source.boxes`; also raises ValueError if the source is closed."""
        info = self.info(path)
        self._check_rank(rank)
        dimensions = len(info.global_shape)
        count = 0
        while True:  # The first call only counts the boxes.
            numbers = ctypes.c_int64 * (count * dimensions)
            offsets, shapes, found = numbers(), numbers(), ctypes.c_int64()
            handle = self._open()  # Keeps it alive until the call returns.
            at, into = (handle.value, info._index, rank), (offsets, shapes, count)
            _native.call("boxes", *at, *into, ctypes.byref(found))
            if found.value == count:
                break
            count = found.value
        each = [slice(i * dimensions, (i + 1) * dimensions) for i in range(count)]
        return [(tuple(offsets[at]), tuple(shapes[at])) for at in each]

    def _open(self) -> Handle:
        if self._handle is None:
            raise ValueError(f"{self.where} is closed")
        return self._handle

    def read(
        self, path: str, slices: Slices = None, *, verify: bool = False, out: Array | None = None
    ) -> Array:
        """See `Source.read`."""
        return self._read(path, slices, out, 0)

    def jobs(self, path: str, slices: Slices, out: Array, *, verify: bool = False) -> list[Job]:
        """Returns the only job: one call of `read`."""
        return [lambda: self.read(path, slices, out=out)]

    def _run(self, jobs: list[Job]) -> None:
        """Runs the jobs one after another, since each has its own threads."""
        for job in jobs:
            job()

    def _read(self, path: str, slices: Slices, out: Array | None, threads: int) -> Array:
        info = self.info(path)
        start, extent, kept = region(info, slices)
        array = words_for(info, tuple(extent[d] for d in kept), out)
        self._fill(info, start, expanded(array, extent, kept), threads)
        return array.view(info.numpy_dtype) if out is None else out

    def _fill(self, info: SpecTensorInfo, start: Shape, into: Words, threads: int) -> None:
        """Fills `into`, in any memory order, from the part of a tensor at `start`."""
        direct = into.flags.c_contiguous and into.flags.aligned
        made = into if direct else np.empty(into.shape, into.dtype)
        handle = self._open()  # Keeps it alive until the call returns.
        numbers = ctypes.c_int64 * into.ndim
        part = handle.value, info._index, numbers(*start), numbers(*into.shape)
        _native.call("fill", *part, made.ctypes.data, made.nbytes, threads)
        if not direct:
            into[...] = made


def mesh_of(of: _native.Info) -> Mesh:
    """Returns the mesh of an open source."""
    axes = of.mesh_dimensions
    return Mesh(tuple(name.decode() for name in of.mesh_axes[:axes]), tuple(of.mesh_shape[:axes]))


_ERRORS = {1: DamageError, 2: NotACheckpointError, 3: OSError, 5: FormatError}


@contextlib.contextmanager
def errors_of_files() -> Iterator[None]:
    """Raises the errors of the library about files as those of this package."""
    try:
        yield
    except SpecError as error:
        kind = _ERRORS.get(error.code)
        raise (error if kind is None else kind(str(error))) from None


class Handle:
    """Owns a ``shardinit_spec``."""

    def __init__(self, source: Mapping[str, Any]) -> None:
        self.value = ctypes.c_void_p()
        self.library = _native.library()
        self._source = _native.Source(struct_size=ctypes.sizeof(_native.Source), **source)
        _native.call("open", ctypes.byref(self._source), ctypes.byref(self.value))

    def describe(self, source: Any) -> _native.Info:
        """Sets what all open sources have, and returns the rest."""
        of: _native.Info = self.library.shardinit_describe(self.value).contents
        source.name, source.engine, source.seed = of.name.decode(), of.engine.decode(), of.seed
        source.parameters, source.bytes = of.parameters, of.bytes
        return of

    def tensors(self, of: _native.Info) -> Iterator[tuple[str, str, Shape, _native.Tensor]]:
        """Yields path, dtype and shape of each tensor, and the rest."""
        for index in range(of.tensor_count):
            each = self.library.shardinit_tensor_at(self.value, index).contents
            shape = tuple(each.shape[: each.dimensions])
            yield each.path.decode(), each.dtype.decode(), shape, each

    def __del__(self) -> None:
        if self.value:
            self.library.shardinit_close(self.value)
