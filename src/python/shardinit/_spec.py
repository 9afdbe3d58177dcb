"""A spec that is open: its tensors, and any part of them made in memory."""

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
    """A tensor of a spec: a `TensorInfo`, and how it is sharded.

    Attributes:
        partition_spec: for each dimension the mesh axes that shard it, the major one first.
    """

    partition_spec: tuple[tuple[str, ...], ...]
    _index: int = field(repr=False, compare=False)
    _extended: bool = field(repr=False, compare=False)


class Spec(Source):
    """A spec that is open; made by `shardinit.open_spec`.

    It may be used by several threads at once: the GIL is released while values are made.

    Attributes:
        tensors: path → `SpecTensorInfo`, in the order of the spec.
        mesh: the grid of ranks that the spec declares. Values do not depend on it.
        name, engine, seed: as in the spec.
        parameters: how many elements all tensors but buffers have.
        bytes: the bytes of all tensors.
        threads: how many threads make the values of one part; 0 is one for each core that the
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
        """Releases the spec's memory, once the calls of other threads have returned."""
        self._handle = None

    def info(self, path: str) -> SpecTensorInfo:
        """The `SpecTensorInfo` of a path; UnknownTensorError if there is none."""
        return cast("SpecTensorInfo", super().info(path))

    def partition_spec(self, path: str) -> tuple[tuple[str, ...], ...]:
        """See `Source.partition_spec`."""
        return self.info(path).partition_spec

    def is_extended(self, path: str) -> bool:
        """See `Source.is_extended`."""
        return self.info(path)._extended

    def boxes(self, path: str, rank: int) -> list[Box]:
        """See `Source.boxes`; a ValueError, too, if the spec is closed."""
        info = self.info(path)
        self._check_rank(rank)
        dimensions = len(info.global_shape)
        count = 0
        while True:  # The first call only tells how many boxes there are.
            numbers = ctypes.c_int64 * (count * dimensions)
            offsets, shapes, found = numbers(), numbers(), ctypes.c_int64()
            handle = self._open()  # This keeps the spec until the call returns, whoever closes it.
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
        """Makes a tensor, or a part of it: the bits that a checkpoint of the spec holds.

        Args:
            path: the tensor.
            slices: what NumPy's basic indexing takes, with steps of 1: whole numbers
                (which drop their dimension), slices and one ``...``. None is all of it.
            threads: how many threads make it; None is the spec's `threads`.
            out: an array to fill instead of a new one, as for `Checkpoint.read`. One that is not
                C-contiguous is filled by way of one that is.

        Returns:
            An array of the part's shape and of `TensorInfo.numpy_dtype`, as `Checkpoint.read`
            returns it; or `out`.

        Raises:
            UnknownTensorError: there is no such tensor.
            IndexError: `slices` do not fit the tensor's shape.
            TypeError, ValueError: as `Checkpoint.read`; a ValueError, too, if the spec is closed.
            SpecError: an expression over elements gave what the tensor's type cannot hold.
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
        """Does what `generate` does, by the name of checkpoints; `verify` has nothing to check."""
        return self.generate(path, slices, out=out)

    def jobs(self, path: str, slices: Slices, out: Array, *, verify: bool = False) -> list[Job]:
        """The only job: one call of `generate`."""
        return [lambda: self.generate(path, slices, out=out)]

    def _run(self, jobs: list[Job]) -> None:
        """Does the jobs one after another, since each has threads of its own."""
        for job in jobs:
            job()

    def fill_cuda(self, path: str, slices: Slices, address: int, size: int, stream: int) -> bool:
        """Makes a tensor, or a part of it, in the memory of a CUDA device, by a kernel of it.

        The elements are there when the stream's work has come so far.

        Args:
            path, slices: as for `generate`.
            address: of the first element. They lie one after another, in row-major order.
            size: the bytes of the part.
            stream: the number of a CUDA stream; 0 is the default one.

        Returns:
            False, with nothing done, if no kernel makes these values: `generate` does.

        Raises:
            SpecError: the address is not one of a device, `size` is not that of the part, or CUDA's
                driver has failed.
            UnknownTensorError, IndexError, TypeError, ValueError: as `generate`.
        """
        info = self.info(path)
        start, extent, _ = region(info, slices)
        handle = self._open()  # This keeps the spec until the call returns, whoever closes it.
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
        handle = self._open()  # This keeps the spec until the call returns, whoever closes it.
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
    """Returns an open spec, for its values: this one, or what `open_spec` makes of a file or dict.

    Values do not depend on the mesh, so it need not divide the tensors: the mesh of a large model
    does not divide those of a small one. `instead` is the function that takes a checkpoint, for the
    TypeError about one.
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
    """Overrides as ``KEY=VALUE``, the form that the command line's ``--set`` takes."""
    if isinstance(sets, str):
        return [sets]
    if not isinstance(sets, Mapping):
        return list(sets)
    # A string stays as it is, so that it can be an expression; other values become JSON.
    return [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in sets.items()
    ]


def _c_string(text: str) -> bytes:
    encoded = text.encode()
    if b"\0" in encoded:
        raise ValueError(f"{text!r} has a NUL character")
    return encoded
