"""Tensors that are norms of others, as `weight_g` of weight_norm is of `weight_v`."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from ._initializer import COMPUTED, DTYPES
from ._tensor import Tensor, Text
from ._values import Apply, Draw, Value, evaluate
from ._verify import error_of_sum

_NORMS = ("norm", "linalg_vector_norm", "norm_except_dim")


def norms_of(path: str, value: Value, others: Mapping[str, Value]) -> Tensor | None:
    """A tensor that holds norms of another one, for every seed.

    Whether it does is seen with other random numbers, so it does not matter how it is computed.

    Args:
        others: path → what each tensor of the model holds.
    """
    if not any(isinstance(v, Apply) and _name(v) in _NORMS for v in _all_of(value)):
        return None
    draws = {id(v) for v in _all_of(value) if isinstance(v, Draw)}
    for other, of in others.items():
        shapes = len(value.shape) in (0, len(of.shape)) and all(
            n in (1, m) for n, m in zip(value.shape, of.shape)  # noqa: B905  Or none.
        )
        if (
            other == path
            or not shapes
            or not of.dtype.is_floating_point
            or math.prod(of.shape) > COMPUTED
            or {id(v) for v in _all_of(of) if isinstance(v, Draw)} != draws
        ):
            continue
        made = evaluate(of, _numbers).double()
        over = [d for d, n in enumerate(of.shape) if not value.shape or value.shape[d] != n]
        norms = made.square().sum(over, keepdim=bool(value.shape)).sqrt() if over else made.abs()
        wanted = evaluate(value, _numbers).double()
        terms = made.numel() // wanted.numel()
        error = 2 * torch.finfo(value.dtype).eps + error_of_sum(terms)
        if torch.allclose(wanted, norms, rtol=error, atol=0):
            init = {"norms": {"of": Text(other)}}
            return Tensor(path, value.shape, DTYPES[value.dtype], init, [], path, of=other)
    return None


def _all_of(value: Value) -> list[Value]:
    seen: dict[int, Value] = {}
    stack = [value]
    while stack:
        top = stack.pop()
        if id(top) not in seen:
            seen[id(top)] = top
            stack += top.parts()
    return list(seen.values())


def _name(value: Apply) -> str:
    return str(value.function._schema.name).removeprefix("aten::")


def _numbers(draw: Draw) -> torch.Tensor:
    """Any numbers, the same for the same draw."""
    generator = torch.Generator().manual_seed(draw.order)
    if not draw.dtype.is_floating_point:
        return torch.randint(1, 100, draw.shape, generator=generator).to(draw.dtype)
    return torch.rand(draw.shape, generator=generator).add_(0.1).to(draw.dtype)
