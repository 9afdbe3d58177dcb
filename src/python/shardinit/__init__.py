"""Reads the checkpoints that shardinit writes: any part of any tensor, on any mesh.

    import shardinit

    checkpoint = shardinit.open("DIR")
    checkpoint.tensors["lm_head.weight"].global_shape      # (128256, 16384)
    rows = checkpoint.read("lm_head.weight", slice(0, 1024))

`shardinit.torch` and `shardinit.jax` bring it into PyTorch and JAX. They are
imported when they are first used, and need these packages; the rest needs NumPy.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from ._checkpoint import Checkpoint
from ._errors import (
    DamageError,
    FormatError,
    MismatchError,
    NotACheckpointError,
    ShardinitError,
    UnknownTensorError,
)
from ._manifest import Mesh, Shard, TensorInfo

if TYPE_CHECKING:
    from . import jax, torch

__all__ = [
    "Checkpoint",
    "DamageError",
    "FormatError",
    "Mesh",
    "MismatchError",
    "NotACheckpointError",
    "Shard",
    "ShardinitError",
    "TensorInfo",
    "UnknownTensorError",
    "jax",
    "open",
    "torch",
]


def open(folder: str | os.PathLike[str], *, rank: int | None = None) -> Checkpoint:
    """Opens a checkpoint.

    Args:
        folder: what ``shardinit gen -o`` wrote.
        rank: of boxes that several ranks hold, take this one's first. With
            ``replicas: full`` a process then reads the file of its own rank only.

    Raises:
        NotACheckpointError: the folder has no ``manifest.json``.
        FormatError: it has one that this package cannot read.
    """
    return Checkpoint(folder, rank)


def __getattr__(name: str) -> Any:
    if name in ("jax", "torch"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
