"""Implements `load_into` and `init_`, which fill a model from a checkpoint or spec."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from . import _torch_cpu
from ._checkpoint import Folder, as_source
from ._spec import AnySpec, Sets, as_spec
from ._torch_loading import LoadResult, fill_models


def load_into(
    model: nn.Module,
    checkpoint: Folder,
    *,
    strict: bool = True,
    prefix: str = "",
    rename: Callable[[str], str] | None = None,
    device: torch.device | str | None = None,
    cast: bool = False,
    verify: bool = False,
) -> LoadResult:
    """Fills the parameters and persistent buffers of a model.

    A tensor that has memory is filled in place. A tensor on ``meta`` gets memory and stays the same
    object, with its attributes and hooks, so that an optimizer that holds it trains it. Tensors
    that were computed from it before, such as ``weight.detach()``, stay on ``meta``. Tied
    parameters stay tied, and need only one of their names in the checkpoint. For a DTensor (after
    ``fully_shard`` or ``parallelize_module``), only the local shard is read. Nothing is changed
    before everything is known to fit.

    Names are the names in ``model.state_dict()``. The parts that wrappers add (``torch.compile``,
    DistributedDataParallel, ``parametrize`` …) need not be in the checkpoint. Tensors that a
    module's state_dict hooks compute from its parameters go through ``load_state_dict``, whose
    hooks convert them back.

    Args:
        model: the model.
        checkpoint: a folder or URL, or an open checkpoint or spec.
        strict: raise an error if tensors are missing or unexpected, or if a tensor of the model is
            not written.
        prefix: the beginning of the model's names in the checkpoint, for example
            ``model.layers.3.`` to load one layer. Tensors without it are ignored.
        rename: maps the model's name of a tensor to its path in the checkpoint, before `prefix`.
        device: the device for tensors that are on ``meta``. None is the default device, and for
            DTensors the device of their mesh.
        cast: convert tensors if the model has another dtype; without it, that is an error.
        verify: check the digests of all boxes that are read.

    Returns:
        The names of missing and unexpected tensors (with ``strict=False``), and in
        `LoadResult.on_meta` the names of tensors that still have no memory.

    Raises:
        MismatchError: tensors are missing, unexpected, or have another shape or dtype; the message
            names them all. Buffers on ``meta`` that are not persistent are such an error, too:
            checkpoints do not have them, and the caller must compute them. So are, after the rest
            is loaded, tensors that a module's hooks did not write.
        TypeError: `model` is not a module.
        NotACheckpointError, FormatError, DamageError: as for `Checkpoint.read`.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"load_into() fills a torch.nn.Module, its first argument, not {type(model).__name__}"
        )
    opened = as_source(checkpoint, "shardinit.torch.init_")
    return fill_models([model], opened, strict, prefix, rename, device, cast, verify)[0]


def init_(
    model: nn.Module,
    spec: AnySpec,
    *,
    set: Sets = (),
    layout: str | None = None,
    strict: bool = True,
    prefix: str = "",
    rename: Callable[[str], str] | None = None,
    device: torch.device | str | None = None,
    cast: bool = False,
) -> LoadResult:
    """Generates the values of the parameters and persistent buffers of a model, without files.

    The result is the same as from `load_into` with a checkpoint of the spec, bit for bit: a model
    on ``meta`` gets memory, a model that has memory is filled in place, and for a DTensor only the
    local shard is generated. Processes do not wait for each other.

    Args:
        model: the model.
        spec: a YAML file, a mapping as for `shardinit.open_spec`, or an open spec.
        set, layout: as for `shardinit.open_spec`; not for an open spec.
        strict, prefix, rename, device, cast: as for `load_into`.

    Returns:
        As for `load_into`.

    Raises:
        MismatchError: as for `load_into`.
        TypeError: `model` is not a module, or `spec` is not a spec.
        SpecError, LibraryError: as for `shardinit.open_spec`.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"init_() fills a torch.nn.Module, its first argument, not {type(model).__name__}; "
            "the spec is the second: init_(model, SPEC)"
        )
    opened = as_spec(spec, set, layout, instead="shardinit.torch.load_into")
    _torch_cpu.warn(opened.engine, stacklevel=2)
    return fill_models([model], opened, strict, prefix, rename, device, cast)[0]
