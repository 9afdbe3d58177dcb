"""An open spec, which generates any part of any of its tensors in memory."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from . import _native
from ._errors import SpecError
from ._mapping import text_of
from ._source import Array, Box, Job, Mesh, Shape, Slices, Source, TensorInfo, region, words_for
from ._view import Infos

Sets = Mapping[str, Any] | Iterable[str]


@dataclass(frozen=True)
class SpecTensorInfo(TensorInfo):
    """A tensor of a spec: a `TensorInfo`, and its partition.

    Attributes:
        partition_spec: for each dimension, the mesh axes that shard it, the major one first.
    """

    partition_spec: tuple[tuple[str, ...], ...]
    _index: int = field(repr=False, compare=False)
    _extended: bool = field(repr=False, compare=False)


class Spec(Source):
    """An open spec, returned by `shardinit.open_spec`.

    Several threads may use it at once: the GIL is released while values are generated.

    Attributes:
        tensors: path → `SpecTensorInfo`, in the order of the spec.
        mesh: the grid of ranks that the spec declares. Values do not depend on it.
        name, engine, seed: as in the spec.
        parameters: the number of elements of all tensors except buffers.
        bytes: the size of all tensors in bytes.
        threads: the number of threads that generate one part; 0 is one for each core that the
            process may use. Values do not depend on it.
        library_version: the version of libshardinit.
    """

    noun = "spec"

    def __init__(
        self,
        path: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        *,
        text: str | None = None,
        set: Sets = (),
        mesh: str | Mapping[str, int] | None = None,
        layout: str | None = None,
        threads: int = 0,
    ) -> None:
        """See `shardinit.open_spec`."""
        self._handle: _Handle | None = None
        if isinstance(path, Mapping):
            if isinstance(path, Source):
                raise TypeError(f"{path.where} is open already: open_spec() takes a file or a dict")
            if text is not None:
                raise TypeError("open_spec() takes a mapping or a `text`, not both: each is a spec")
            text = text_of(path)
            path = None
        if path is None and text is None:
            raise TypeError("open_spec() needs the path of a spec, or its text")
        if path is not None and text is None:
            _refuse_folder(path, "shardinit.open")
        self.where = "the spec" if path is None else f"`{os.fspath(path)}`"
        self.threads = threads
        handle = _Handle(path, text, set, mesh, layout)
        library = handle.library
        of = library.shardinit_describe(handle.value).contents
        self.name: str = of.name.decode()
        self.engine: str = of.engine.decode()
        self.seed: int = of.seed
        self.parameters: int = of.parameters
        self.bytes: int = of.bytes
        axes = of.mesh_dimensions
        self.mesh = Mesh(
            tuple(name.decode() for name in of.mesh_axes[:axes]), tuple(of.mesh_shape[:axes])
        )
        self.library_version: str = library.shardinit_version().decode()
        tensors = {}
        for index in range(of.tensor_count):
            tensor = library.shardinit_tensor_at(handle.value, index).contents
            info = SpecTensorInfo(
                tensor.path.decode(),
                tensor.dtype.decode(),
                tuple(tensor.shape[: tensor.dimensions]),
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
            warnings.warn(of.warnings.decode().rstrip("\n"), stacklevel=3)

    def __repr__(self) -> str:
        return (
            f"<shardinit.Spec: {self.name}, {self.parameters:,} parameters in "
            f"{len(self.tensors)} tensors, seed {self.seed}>"
        )

    def close(self) -> None:
        """Releases the spec's memory, after calls in other threads have returned."""
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
        """See `Source.boxes`; also raises ValueError if the spec is closed."""
        info = self.info(path)
        self._check_rank(rank)
        dimensions = len(info.global_shape)
        count = 0
        while True:  # The first call only counts the boxes.
            numbers = ctypes.c_int64 * (count * dimensions)
            offsets, shapes, found = numbers(), numbers(), ctypes.c_int64()
            handle = self._open()  # Keeps the spec alive until the call returns.
            at, into = (handle.value, info._index, rank), (offsets, shapes, count)
            _native.call("boxes", *at, *into, ctypes.byref(found))
            if found.value == count:
                break
            count = found.value
        each = [slice(i * dimensions, (i + 1) * dimensions) for i in range(count)]
        return [(tuple(offsets[at]), tuple(shapes[at])) for at in each]

    def generate(
        self,
        path: str,
        slices: Slices = None,
        *,
        threads: int | None = None,
        out: Array | None = None,
    ) -> Array:
        """Generates a tensor, or a part of it, with the bits of a checkpoint of the spec.

        Args:
            path: the tensor.
            slices: as for NumPy's basic indexing, with steps of 1: integers (which drop their
                dimension), slices and one ``...``. None is the whole tensor.
            threads: the number of threads; None is the spec's `threads`.
            out: an array to fill instead of a new one, as for `Checkpoint.read`. If it is not
                C-contiguous, it is filled from a temporary copy.

        Returns:
            An array of the part's shape and of `TensorInfo.numpy_dtype`, as `Checkpoint.read`
            returns it; or `out`.

        Raises:
            UnknownTensorError: the spec has no such tensor.
            IndexError: `slices` do not fit the tensor's shape.
            TypeError, ValueError: as for `Checkpoint.read`; also ValueError if the spec is closed.
            SpecError: an expression over elements returned a value that the tensor's type cannot
                hold.
        """
        info = self.info(path)
        start, extent, kept = region(info, slices)
        array = words_for(info, tuple(extent[d] for d in kept), out)
        direct = array.flags.c_contiguous and array.flags.aligned
        made = array if direct else np.empty(array.shape, array.dtype)
        self._fill(info, start, extent, made, self.threads if threads is None else threads)
        if not direct:
            array[...] = made
        return array.view(info.numpy_dtype) if out is None else out

    def read(
        self, path: str, slices: Slices = None, *, verify: bool = False, out: Array | None = None
    ) -> Array:
        """Calls `generate`, under the name that checkpoints use; `verify` has nothing to check."""
        return self.generate(path, slices, out=out)

    def jobs(self, path: str, slices: Slices, out: Array, *, verify: bool = False) -> list[Job]:
        """Returns the only job: one call of `generate`."""
        return [lambda: self.generate(path, slices, out=out)]

    def _run(self, jobs: list[Job]) -> None:
        """Runs the jobs one after another, since each has its own threads."""
        for job in jobs:
            job()

    def fill_cuda(self, path: str, slices: Slices, address: int, size: int, stream: int) -> bool:
        """Generates a tensor, or a part of it, in the memory of a CUDA device, with a kernel.

        The elements are valid after the stream has finished this work.

        Args:
            path, slices: as for `generate`.
            address: the address of the first element. The elements are contiguous, in row-major
                order.
            size: the size of the part in bytes.
            stream: the number of a CUDA stream; 0 is the default one.

        Returns:
            False, with nothing done, if no kernel can generate these values; then use `generate`.

        Raises:
            SpecError: the address is not on a device, `size` is not the size of the part, or CUDA's
                driver failed.
            UnknownTensorError, IndexError, TypeError, ValueError: as for `generate`.
        """
        info = self.info(path)
        start, extent, _ = region(info, slices)
        handle = self._open()  # Keeps the spec alive until the call returns.
        numbers = ctypes.c_int64 * len(extent)
        part = handle.value, info._index, numbers(*start), numbers(*extent)
        made = ctypes.c_int32()
        _native.call("fill_cuda", *part, address, size, stream, ctypes.byref(made))
        return bool(made.value)

    def _open(self) -> _Handle:
        if self._handle is None:
            raise ValueError(f"{self.where} is closed")
        return self._handle

    def _fill(
        self, info: SpecTensorInfo, start: Shape, extent: Shape, out: Any, threads: int
    ) -> None:
        handle = self._open()  # Keeps the spec alive until the call returns.
        numbers = ctypes.c_int64 * len(extent)
        part = handle.value, info._index, numbers(*start), numbers(*extent)
        size = math.prod(extent) * out.itemsize
        _native.call("fill", *part, out.ctypes.data, size, threads)


AnySpec = str | os.PathLike[str] | Mapping[str, Any] | Spec


def as_spec(
    spec: AnySpec,
    set: Sets = (),
    layout: str | None = None,
    instead: str = "shardinit.open",
) -> Spec:
    """Returns `spec` if it is open, else what `open_spec` returns for the file or dict.

    Only values matter here, and they do not depend on the mesh. So the mesh need not divide the
    tensors: a large model's mesh does not divide a small model's tensors. `instead` is the function
    for checkpoints, named in the TypeError about one.
    """
    if isinstance(spec, Spec):
        if set or layout is not None:
            raise TypeError("`set` and `layout` are for open_spec(): this spec is open already")
        return spec
    if isinstance(spec, Source):
        raise TypeError(f"{spec.where} is a {spec.noun}, not a spec: {instead}() takes it")
    if not isinstance(spec, (str, os.PathLike, Mapping)):
        raise TypeError(f"a spec is a YAML file or an open spec, not {type(spec).__name__}")
    if not isinstance(spec, Mapping):
        _refuse_folder(spec, instead)
    with contextlib.suppress(SpecError):
        return Spec(spec, set=set, layout=layout)
    return Spec(spec, set=[*overrides(set), "uneven=chunk"], layout=layout)


def _refuse_folder(path: str | os.PathLike[str], instead: str) -> None:
    if not os.path.isdir(path):
        return
    name = os.fspath(path)
    if os.path.isfile(os.path.join(path, "manifest.json")):
        text = f"`{name}` is a checkpoint, not a spec: {instead}() takes it"
    else:
        text = f"`{name}` is a folder, not a spec, which is a YAML file"
    raise SpecError(text, 2)


class _Handle:
    """Owns a ``shardinit_spec``."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        text: str | None,
        set: Sets,
        mesh: str | Mapping[str, int] | None,
        layout: str | None,
    ) -> None:
        self.value = ctypes.c_void_p()
        self.library = _native.library()
        if isinstance(mesh, Mapping):
            mesh = ",".join(f"{axis}={size}" for axis, size in mesh.items())
        strings = [_c_string(each) for each in overrides(set)]
        encoded = None if text is None else text.encode()
        source = _native.Source(
            struct_size=ctypes.sizeof(_native.Source),
            path=None if path is None else os.fsencode(path),
            text=encoded,
            text_size=0 if encoded is None else len(encoded),
            sets=(ctypes.c_char_p * len(strings))(*strings),
            set_count=len(strings),
            mesh=None if mesh is None else _c_string(mesh),
            layout=None if layout is None else _c_string(layout),
        )
        _native.call("open", ctypes.byref(source), ctypes.byref(self.value))

    def __del__(self) -> None:
        if self.value:
            self.library.shardinit_close(self.value)


def overrides(sets: Sets) -> list[str]:
    """Returns overrides as ``KEY=VALUE``, the form of the command line's ``--set``."""
    if isinstance(sets, str):
        return [sets]
    if not isinstance(sets, Mapping):
        return list(sets)
    # A string stays unchanged, so that it can be an expression; other values become JSON.
    return [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in sets.items()
    ]


def _c_string(text: str) -> bytes:
    encoded = text.encode()
    if b"\0" in encoded:
        raise ValueError(f"{text!r} has a NUL character")
    return encoded
