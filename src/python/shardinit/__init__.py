"""Loads the initial values of large models: any part of any tensor, on any mesh.

Values come from a checkpoint or export that shardinit wrote, or directly from a spec, without
files:

    import shardinit

    checkpoint = shardinit.open("DIR")                     # a mapping of tensors by path
    checkpoint["lm_head.weight"].shape                     # (128256, 16384)
    rows = checkpoint["lm_head.weight"][:1024]             # these bytes are read, no others

    with shardinit.open_spec("SPEC") as spec:
        rows = spec.generate("lm_head.weight", slice(0, 1024))

`shardinit.torch` and `shardinit.jax` load both into PyTorch and JAX. They are imported on first use
and need PyTorch or JAX. Everything else needs NumPy and the library libshardinit.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ._boxes import Shard, StoredTensorInfo
from ._checkpoint import Checkpoint, Device, open_folder
from ._errors import (
    CaptureError,
    DamageError,
    FormatError,
    LibraryError,
    MismatchError,
    NotACheckpointError,
    ShardinitError,
    SpecError,
    UnknownTensorError,
)
from ._export import Export
from ._folder import TensorFolder
from ._opened import SpecTensorInfo
from ._source import Mesh, Slices, Source, TensorInfo
from ._spec import AnySpec, Sets, Spec, as_spec
from ._view import TensorView

if TYPE_CHECKING:
    from . import capture, jax, torch

# The only definition of the version: CMakeLists.txt and pyproject.toml read this line.
__version__ = "0.1.0"

__all__ = [
    "CaptureError",
    "Checkpoint",
    "DamageError",
    "Device",
    "Export",
    "FormatError",
    "LibraryError",
    "Mesh",
    "MismatchError",
    "NotACheckpointError",
    "Shard",
    "ShardinitError",
    "Source",
    "Spec",
    "SpecError",
    "SpecTensorInfo",
    "StoredTensorInfo",
    "TensorFolder",
    "TensorInfo",
    "TensorView",
    "UnknownTensorError",
    "__version__",
    "capture",
    "generate",
    "jax",
    "open",
    "open_spec",
    "torch",
]


def open(
    folder: str | os.PathLike[str],
    *,
    rank: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Checkpoint | Export | TensorFolder:
    """Opens a checkpoint, an export, or tensors of another tool in any format that is read.

        checkpoint = shardinit.open("s3://bucket/prefix", storage_options={"anon": True})

    Args:
        folder: a folder that ``shardinit gen -o`` or ``shardinit export -o`` wrote; a folder or
            file of another tool that ``shardinit convert`` reads; or the URL of a folder in any
            store that fsspec reads, such as ``s3://bucket/prefix``.
        rank: if several ranks hold a box, prefer this rank's copy. With ``replicas: full``, a
            process that passes its own rank reads only that rank's file.
        storage_options: for a URL, options of fsspec's file system for its store, such as keys and
            the server's address. None takes them from the environment.

    Raises:
        NotACheckpointError: the folder has neither ``manifest.json`` nor
            ``shardinit-export.json``, which are written last, and no tensors of another tool.
        FormatError, DamageError: the folder has such files, but they cannot be read.
        LibraryError: libshardinit is not installed, or has another version.
        OSError: the store denies access (``PermissionError``) or fails.
        ImportError: fsspec, or its package for this kind of store, is not installed.
        ValueError: fsspec does not know this kind of store, or `storage_options` were given for a
            folder.
    """
    return open_folder(folder, rank, storage_options)


def open_spec(
    path: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    text: str | None = None,
    set: Sets = (),
    mesh: str | Mapping[str, int] | None = None,
    layout: str | None = None,
    threads: int = 0,
) -> Spec:
    """Opens a spec, whose tensors can then be generated in memory.

    Args:
        path: a YAML file. With `text`, this file is not read: messages use its name, and
            ``include`` and the ``file`` of tensors are relative to its folder. A mapping is the
            spec itself, as ``yaml.safe_load`` returns it: strings, numbers, bools and None in dicts
            and lists.
        text: the text of the spec.
        set: overrides, as ``shardinit --set`` takes them: ``{"seed": 7}`` or ``["seed=7"]``.
        mesh: another mesh: ``{"fsdp": 8}`` or ``"fsdp=8"``. Values do not depend on it.
        layout: one of the spec's layouts; the `Spec` then has the tensors of that layout.
        threads: the number of threads that generate one part; 0 is one for each core that the
            process may use.

    Raises:
        SpecError: the spec is invalid; the message lists every mistake with its place.
        TypeError, ValueError: a mapping contains a value that YAML cannot represent; the message
            has its place.
        LibraryError: libshardinit is not installed, or has another version.
    """
    return Spec(path, text=text, set=set, mesh=mesh, layout=layout, threads=threads)


def generate(
    spec: AnySpec,
    path: str,
    slices: Slices = None,
    *,
    set: Sets = (),
    layout: str | None = None,
    threads: int | None = None,
    out: np.ndarray[Any, Any] | None = None,
) -> np.ndarray[Any, Any]:
    """Generates a tensor of a spec, or a part of it; see `Spec.generate`.

    To use a spec more than once, open it once with `open_spec`.

    Args:
        spec: a YAML file, a mapping as for `open_spec`, or an open spec.
        path, slices, threads, out: as for `Spec.generate`.
        set, layout: as for `open_spec`; not for an open spec.

    Raises:
        SpecError, LibraryError: as for `open_spec`.
        UnknownTensorError, IndexError, TypeError, ValueError: as for `Spec.generate`.
    """
    return as_spec(spec, set, layout).generate(path, slices, threads=threads, out=out)


def __getattr__(name: str) -> Any:
    if name in ("capture", "jax", "torch"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
