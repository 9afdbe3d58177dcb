"""Memory for tensors on ``meta``, which stay the same objects."""

from __future__ import annotations

import copyreg
from typing import Any

import torch
from torch import nn

from ._torch_slots import local_part

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def version(tensor: torch.Tensor) -> Any:
    """An object that is another one after the tensor, or its local part, was written to."""
    if tensor.is_inference():
        return object()  # Writes are not counted, so the tensor is taken as written.
    return tensor._version, local_part(tensor)._version


def materialize(tensor: torch.Tensor, device: torch.device | str | None) -> torch.Tensor:
    """A tensor like this one of `meta`, with memory that holds nothing yet."""
    mesh = getattr(tensor, "device_mesh", None)
    if device is None:
        device = torch.get_default_device() if mesh is None else mesh.device_type
    empty = torch.empty_like(tensor.detach(), device=device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def moved(tensor: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    """`tensor`, with the memory of `fresh`; or `fresh` with its attributes, if that cannot be.

    It does what ``torch.utils.swap_tensors`` does, which refuses where anything looks at the
    tensor: here its views keep the memory of before, and weak references, as a LSTM has, are to the
    same object anyway.
    """
    by_subclass = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if by_subclass and type(tensor) is not type(fresh):
        return _with_attributes(fresh, tensor)
    hooks = {name: getattr(tensor, name, None) for name in _HOOKS}
    try:
        torch._C._swap_tensor_impl(tensor, fresh)
    except RuntimeError:  # There are weak references of C++ to it.
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
