"""Lists the tensors of a model to fill: parameters, buffers, its state dict, and their memory."""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ._source import Source

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@dataclass(frozen=True)
class Slot:
    """The place where a module holds a parameter or buffer."""

    name: str
    module: nn.Module
    key: str
    persistent: bool

    @property
    def tensor(self) -> torch.Tensor:
        parameters = self.module._parameters
        found = parameters.get(self.key) if self.key in parameters else None
        return self.module._buffers[self.key] if found is None else found  # type: ignore[return-value]


@dataclass
class Entry:
    """A tensor of the state dict, with all of its names.

    Attributes:
        found: the names whose paths the source has.
        place: ``held`` for a parameter or buffer itself, ``view`` for a tensor that shares memory
            with one, ``made`` for a tensor that a hook created, with its own memory.
    """

    tensor: torch.Tensor
    names: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    place: str = "made"


def slots_of(model: nn.Module) -> list[Slot]:
    """Returns the places of all parameters and buffers in a model and its modules."""
    slots = []
    for name, module in model.named_modules():
        dot = "." if name else ""
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:  # The set only has names of buffers.
                persistent = key not in module._non_persistent_buffers_set
                slots.append(Slot(f"{name}{dot}{key}", module, key, persistent))
    return slots


def is_sharded_tensor(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is from a sharded state dict of FSDP without a mesh."""
    return type(tensor).__name__ == "ShardedTensor"


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the local tensor of a DTensor; any other tensor unchanged."""
    return getattr(tensor, "_local_tensor", tensor)


def _storage(tensor: torch.Tensor) -> Any:
    """Returns an object that is equal for tensors that share memory, also on ``meta``."""
    try:
        return local_part(tensor).untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # Tensors of this class have no storage.
        return id(tensor)


def _identity(tensor: torch.Tensor) -> Any:
    """Returns an object that is equal for tensors that differ only in their names."""
    local = local_part(tensor)
    try:
        where = (local.storage_offset(), local.stride())
    except (NotImplementedError, RuntimeError):
        where = (0, ())
    return _storage(tensor), where, local.shape, tensor.shape, tensor.dtype


def entries_of(
    tensors: Mapping[str, torch.Tensor],
    paths: Mapping[str, str],
    source: Source,
    slots: list[Slot],
) -> list[Entry]:
    """Returns the tensors of a state dict, each once; `paths` maps each name to its source path."""
    held = {id(slot.tensor) for slot in slots}
    real = [slot.tensor for slot in slots if not slot.tensor.is_meta]
    storages = {_storage(tensor): tensor.element_size() for tensor in real}
    entries: dict[Any, Entry] = {}
    for name, tensor in tensors.items():
        entry = entries.setdefault(_identity(tensor), Entry(tensor))
        entry.names.append(name)
        if paths[name] in source.tensors:
            entry.found.append(name)
        if id(tensor) in held:
            entry.tensor, entry.place = tensor, "held"
        elif entry.place == "made" and storages.get(_storage(tensor)) == tensor.element_size():
            strides = zip(local_part(tensor).stride(), tensor.shape, strict=True)
            if all(stride or size < 2 for stride, size in strides):
                entry.place = "view"
    return list(entries.values())


def written_in_place(slots: list[Slot], entries: list[Entry]) -> tuple[set[int], list[str]]:
    """Returns ids of the slots' tensors that `entries` fill completely, and names that overlap."""
    views: dict[int, list[Entry]] = {}
    for entry in entries:
        if entry.place == "view" and entry.found:
            views.setdefault(_storage(entry.tensor), []).append(entry)
    whole = {id(entry.tensor) for entry in entries if entry.place == "held" and entry.found}
    overlapping = []
    done: dict[int, torch.Tensor] = {}  # For each storage, which elements are filled.
    for storage, among in views.items():
        for entry in among:
            local = local_part(entry.tensor)
            size = local.untyped_storage().nbytes() // local.element_size()
            mask = done.setdefault(storage, torch.zeros(size, dtype=torch.bool, device="cpu"))
            part = mask.as_strided(local.shape, local.stride(), local.storage_offset())
            if part.any():
                overlapping.append(entry.found[0])
            part.fill_(True)
    for slot in slots:
        local = local_part(slot.tensor)
        mask_or_none = done.get(_storage(slot.tensor))
        if mask_or_none is not None:
            part = mask_or_none.as_strided(local.shape, local.stride(), local.storage_offset())
            if id(slot.tensor) in whole and part.any():
                overlapping.append(slot.name)
            if part.all():
                whole.add(id(slot.tensor))
    return whole, overlapping


def version(tensor: torch.Tensor) -> Any:
    """Returns an object that changes whenever the tensor, or its local part, is written to."""
    if tensor.is_inference():
        return object()  # Writes are not counted, so assume that it was written to.
    return tensor._version, local_part(tensor)._version


def materialize(tensor: torch.Tensor, device: torch.device | str | None) -> torch.Tensor:
    """Returns a tensor like this one, which is on ``meta``, with memory that is not yet written."""
    mesh = getattr(tensor, "device_mesh", None)
    if device is None:
        device = torch.get_default_device() if mesh is None else mesh.device_type
    empty = torch.empty_like(tensor.detach(), device=device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def moved(tensor: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    """Returns `tensor` with the memory of `fresh`, or, if necessary, `fresh` with its attributes.

    This does the same as ``torch.utils.swap_tensors``, which rejects tensors with any references.
    Here views of the tensor keep their old memory, and weak references, such as in an LSTM, stay
    with the same object anyway.
    """
    by_subclass = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if by_subclass and type(tensor) is not type(fresh):
        return _with_attributes(fresh, tensor)
    hooks = {name: getattr(tensor, name, None) for name in _HOOKS}
    try:
        torch._C._swap_tensor_impl(tensor, fresh)
    except RuntimeError:  # C++ holds weak references to the tensor.
        return _with_attributes(fresh, tensor)
    for name in copyreg._slotnames(type(fresh)) if by_subclass else ():  # type: ignore[attr-defined]
        if hasattr(fresh, name):
            setattr(tensor, name, getattr(fresh, name))
    tensor.__dict__.update(fresh.__dict__)
    for name, value in hooks.items():
        if value is not None:
            setattr(tensor, name, value)
    return tensor


def _with_attributes(fresh: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    for name, value in tensor.__dict__.items():
        fresh.__dict__.setdefault(name, value)
    return fresh
