"""`load_into` and `init_`: a model's parameters and buffers, filled from a checkpoint or spec."""

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

    A tensor that has memory is filled in place. One on ``meta`` gets memory and stays the
    same object, with its attributes and hooks, so that an optimizer which has it trains it.
    Tensors that were computed from it before, as ``weight.detach()``, stay on ``meta``. Tied
    parameters stay tied, and need only one of their names in the checkpoint. Of a DTensor
    (after ``fully_shard`` or ``parallelize_module``) only the local shard is read. Nothing
    is changed before everything is known to fit.

    Names are those of ``model.state_dict()``. The parts that wrappers add to them
    (``torch.compile``, DistributedDataParallel, ``parametrize`` …) need not be in the checkpoint.
    Tensors that a module's state_dict hooks make of its parameters go through
    ``load_state_dict``, whose hooks turn them back.

    Args:
        model: the model.
        checkpoint: a folder or URL, or a checkpoint or spec that is open.
        strict: whether it is an error if tensors are missing or unexpected, or if nothing is
            written to a tensor of the model.
        prefix: the beginning that the model's names have in the checkpoint: ``model.layers.3.``
            to load one layer. Tensors without it are ignored.
        rename: the model's name of a tensor → its path in the checkpoint, before `prefix`.
        device: where tensors that are on ``meta`` go. None is the default device, and for
            DTensors that of their mesh.
        cast: convert where the model has another dtype; without it that is an error.
        verify: check the digests of all boxes that are touched.

    Returns:
        The names of tensors that were missing and unexpected (with ``strict=False``), and in
        `LoadResult.on_meta` the names of those that still have no memory.

    Raises:
        MismatchError: tensors are missing, unexpected, or have another shape or dtype; it
            names them all. Buffers on ``meta`` that are not persistent are such an error, too:
            no checkpoint holds them, and whoever made the model has to compute them. So are,
            after the rest is loaded, tensors that a module's hooks did not write.
        TypeError: `model` is not a module.
        NotACheckpointError, FormatError, DamageError: as `Checkpoint.read`.
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
    """Makes the values of the parameters and persistent buffers of a model, without files.

    The result is that of `load_into` with a checkpoint of the spec, bit for bit: a model on
    ``meta`` gets memory, one that has memory is filled in place, and of a DTensor only the local
    shard is made. No process waits for another.

    Args:
        model: the model.
        spec: a YAML file, a mapping as for `shardinit.open_spec`, or a spec that is open.
        set, layout: as for `shardinit.open_spec`; not for a spec that is open.
        strict, prefix, rename, device, cast: as for `load_into`.

    Returns:
        As `load_into`.

    Raises:
        MismatchError: as `load_into`.
        TypeError: `model` is not a module, or `spec` no spec.
        SpecError, LibraryError: as `shardinit.open_spec`.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"init_() fills a torch.nn.Module, its first argument, not {type(model).__name__}; "
            "the spec is the second: init_(model, SPEC)"
        )
    opened = as_spec(spec, set, layout, instead="shardinit.torch.load_into")
    _torch_cpu.warn(opened.engine, stacklevel=2)
    return fill_models([model], opened, strict, prefix, rename, device, cast)[0]
