"""Loads checkpoints and specs into PyTorch: state dicts, models, DTensors, and the DCP reader.

    import shardinit

    state = shardinit.torch.load_state_dict("DIR")       # whole tensors
    shardinit.torch.load_into(model, "DIR")              # a model, on `meta` or not, sharded or not
    shardinit.torch.init_(model, "SPEC")                 # the same, without files
    with shardinit.torch.from_spec("SPEC"):              # constructed without memory, then filled
        model = Model()
    model = shardinit.torch.init_model(Model, mesh=mesh) # captured, sharded, and filled
    dcp.load(state_dict, storage_reader=shardinit.torch.StorageReader("DIR"))

Bytes are read, or generated, directly into the memory of CPU tensors; for other devices they are
copied there once. Nothing is unpickled. A process reads or generates only its own shards, and
processes do not communicate.

Functions that take a checkpoint also take an export in any format, and an open spec
(`shardinit.open_spec`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ._torch_tensors import dtype_of, fill, local_boxes  # isort: skip (reports a missing package)
import torch

from ._checkpoint import Folder, as_source
from ._errors import MismatchError
from ._torch_from_spec import Built, from_spec
from ._torch_init_model import init_model
from ._torch_loading import LoadResult
from ._torch_model import init_, load_into

if TYPE_CHECKING:
    from ._dcp import StorageReader

__all__ = [
    "Built",
    "LoadResult",
    "StorageReader",
    "dtype_of",
    "from_spec",
    "init_",
    "init_model",
    "load_dtensor",
    "load_into",
    "load_state_dict",
]


def load_state_dict(
    checkpoint: Folder,
    keys: Iterable[str] | None = None,
    *,
    device: torch.device | str = "cpu",
    verify: bool = False,
) -> dict[str, torch.Tensor]:
    """Reads whole tensors.

    Args:
        checkpoint: a folder or URL, or an open checkpoint or spec.
        keys: the paths to read; None is all.
        device: the device of the tensors.
        verify: check the digests of all boxes that are read.

    Returns:
        Path → contiguous tensor of the stored dtype and the global shape, in the order of `keys`,
        or in the spec's order.

    Raises:
        MismatchError: the checkpoint does not have some of `keys`; the message names them all.
        NotACheckpointError, FormatError, DamageError: as for `Checkpoint.read`.
    """
    opened = as_source(checkpoint, "shardinit.torch.init_")
    wanted = list(opened.tensors) if keys is None else list(keys)
    missing = [path for path in wanted if path not in opened.tensors]
    if missing:
        raise MismatchError(f"cannot load {opened.where}", missing, noun=opened.noun)
    state = {}
    jobs = []
    for path in wanted:
        info = opened.info(path)
        state[path] = torch.empty(info.global_shape, dtype=dtype_of(info), device=device)
        jobs += fill(opened, path, None, state[path], verify=verify)
    opened.run(jobs)
    return state


def load_dtensor(
    checkpoint: Folder,
    path: str,
    mesh: Any,
    placements: Sequence[Any],
    *,
    device: torch.device | str | None = None,
    verify: bool = False,
) -> Any:
    """Reads this process's part of a tensor.

    Args:
        checkpoint, verify: as for `load_state_dict`.
        path: the tensor.
        mesh: a ``DeviceMesh``.
        placements: for each dimension of the mesh, ``Shard``, ``Replicate`` or ``_StridedShard``.
        device: the device of the local tensor; None is the mesh's device type.

    Returns:
        A ``DTensor`` of the global shape and the stored dtype.

    Raises:
        UnknownTensorError, FormatError, DamageError: as for `Checkpoint.read`.
        TypeError: a placement has another type.
    """
    from torch.distributed.tensor import DTensor

    opened = as_source(checkpoint, "shardinit.torch.init_")
    info = opened.info(path)
    shape = info.global_shape
    local_shape, boxes = local_boxes(
        shape, mesh.shape, mesh.get_coordinate(), placements, what=f"`{path}`"
    )
    local = torch.empty(local_shape, dtype=dtype_of(info), device=device or mesh.device_type)
    parts = (fill(opened, path, there, local[here], verify=verify) for there, here in boxes)
    opened.run(list(itertools.chain.from_iterable(parts)))
    stride = tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
    )


def __getattr__(name: str) -> Any:
    if name == "StorageReader":  # The import takes as long as loading 2 GB, so it waits for use.
        from ._dcp import StorageReader

        return StorageReader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
