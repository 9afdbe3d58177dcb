"""Finds tensors that hold norms of other tensors, such as `weight_g` of weight_norm."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from .._dtypes import name_of
from ._compare import error_of_sum
from ._reduced import SAME, is_zero
from ._tensor import Tensor, Text
from ._values import COMPUTED, Apply, Draw, Gather, Value, evaluate

_NORMS = ("norm", "linalg_vector_norm", "norm_except_dim")


def norms_of(path: str, value: Value, others: Mapping[str, Value]) -> Tensor | None:
    """Returns a tensor that holds norms of one of `others`, for every seed; else None.

    The value must be the result of a norm function over exactly the elements of that other tensor.
    Other random numbers show which norms they are, however the elements are arranged.
    """
    norm = _unmoved(value)
    if not isinstance(norm, Apply) or norm.name not in _NORMS:
        return None
    elements = _unmoved(next(norm.parts()))
    for other, of in others.items():
        shape = (*value.shape, *(1,) * (len(of.shape) - len(value.shape)))
        shapes = len(shape) == len(of.shape) and all(
            n in (1, m) for n, m in zip(shape, of.shape, strict=True)
        )
        if (
            other == path
            or not shapes
            or not of.dtype.is_floating_point
            or math.prod(of.shape) > COMPUTED
            or _unmoved(of) is not elements
        ):
            continue
        made = evaluate(of, _numbers).double()
        over = [d for d, n in enumerate(of.shape) if shape[d] != n]
        norms = made.square().sum(over).sqrt() if over else made.abs()
        wanted = evaluate(value, _numbers).double()
        terms = made.numel() // wanted.numel()
        error = 2 * torch.finfo(value.dtype).eps + error_of_sum(terms)
        if torch.allclose(wanted, norms.view(value.shape), rtol=error, atol=0):
            init = {"norms": {"of": Text(other)}}
            return Tensor(path, value.shape, name_of(value.dtype), init, [], path, of=other)
    return None


def _unmoved(value: Value) -> Value:
    """Returns the value from which all or some elements of this one are taken, in any order."""
    while isinstance(value, Gather) or (
        isinstance(value, Apply)
        and (value.name in SAME or (value.name in ("add", "sub") and is_zero(value.args[1])))
    ):
        value = next(value.parts())
    return value


def _numbers(draw: Draw) -> torch.Tensor:
    """Returns numbers of all signs and sizes, the same for the same draw."""
    generator = torch.Generator().manual_seed(draw.order)
    if not draw.dtype.is_floating_point:
        return torch.randint(1, 100, draw.shape, generator=generator).to(draw.dtype)
    if draw.kind == "uniform":
        low, high = (float(draw.parameters.get(end, of)) for end, of in (("low", 0), ("high", 1)))
        return torch.empty(draw.shape).uniform_(low, high, generator=generator).to(draw.dtype)
    size = torch.empty(draw.shape).normal_(std=2, generator=generator).exp_()
    return size.mul_(torch.empty(draw.shape).normal_(generator=generator)).to(draw.dtype)
