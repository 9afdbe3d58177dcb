"""An open spec, which generates any part of any of its tensors in memory."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from . import _native
from ._errors import SpecError
from ._mapping import text_of
from ._opened import Opened
from ._source import Array, Slices, Source, region

Sets = Mapping[str, Any] | Iterable[str]


class Spec(Opened):
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
        self.threads = threads
        if isinstance(mesh, Mapping):
            mesh = ",".join(f"{axis}={size}" for axis, size in mesh.items())
        strings = [_c_string(each) for each in overrides(set)]
        encoded = None if text is None else text.encode()
        super().__init__(
            "the spec" if path is None else f"`{os.fspath(path)}`",
            path=None if path is None else os.fsencode(path),
            text=encoded,
            text_size=0 if encoded is None else len(encoded),
            sets=(ctypes.c_char_p * len(strings))(*strings),
            set_count=len(strings),
            mesh=None if mesh is None else _c_string(mesh),
            layout=None if layout is None else _c_string(layout),
        )

    def __repr__(self) -> str:
        return (
            f"<shardinit.Spec: {self.name}, {self.parameters:,} parameters in "
            f"{len(self.tensors)} tensors, seed {self.seed}>"
        )

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
        return self._read(path, slices, out, self.threads if threads is None else threads)

    def read(
        self, path: str, slices: Slices = None, *, verify: bool = False, out: Array | None = None
    ) -> Array:
        """Calls `generate`, under the name that checkpoints use; `verify` has nothing to check."""
        return self.generate(path, slices, out=out)

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
