"""How far a tensor's elements may be off where PyTorch and the tool round functions otherwise."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import torch

from ._initializer import COMPUTED
from ._values import Apply, Draw, Value, evaluate

# What is not rounded in the same way everywhere: all else that an expression has is.
_FUNCTIONS = {
    "cos", "erfinv", "exp", "expm1", "log", "log1p", "pow", "rsqrt", "sin", "sqrt", "tanh",
}  # fmt: skip
_OFF = 2  # Units in the last place, of a function.
_SAFE = 4  # Other numbers than these may be off by so much more.


def spread_of(path: str, values: Mapping[str, Value]) -> int:
    """The units by which a tensor's elements move when results of all its functions move by two.

    The units are those of the last place, of themselves or of the largest element: behind
    `log(exp(x) - 1)` a last bit may be a hundred.
    """
    value = values[path]
    if not value.dtype.is_floating_point or math.prod(value.shape) > COMPUTED:
        return 0
    most = 0.0
    for sign in (1, -1):
        exact = evaluate(value, _numbers).double()
        moved = evaluate(value, _numbers, functools.partial(_moved, sign)).double()
        apart = (exact - moved).abs()
        if not bool(torch.isfinite(apart).all()):
            return 0
        unit = torch.finfo(value.dtype).eps / 2
        alone = torch.where(apart > 0, apart / exact.abs(), 0).max() / unit
        most = max(most, min(float(alone), float(apart.max() / exact.abs().max() / unit)))
    return math.ceil(_SAFE * most) if most > 2 * _OFF else 0  # A unit may be two of the largest's.


def _moved(sign: int, value: Value, made: torch.Tensor) -> torch.Tensor:
    functions = isinstance(value, Apply) and value.name in _FUNCTIONS
    if not functions or not made.is_floating_point():
        return made
    moved = made.clone()
    for _ in range(_OFF):
        moved = torch.nextafter(moved, torch.full_like(moved, sign * math.inf))
    return moved


def _numbers(draw: Draw) -> torch.Tensor:
    """Numbers of the draw's distribution, as far as that matters: the same for the same draw."""
    generator = torch.Generator().manual_seed(draw.order)
    p = draw.parameters
    made = torch.empty(draw.shape, dtype=torch.float64)
    if draw.kind == "uniform":
        made.uniform_(p.get("low", 0.0), p.get("high", 1.0), generator=generator)
    elif draw.kind in ("normal", "trunc_normal"):
        made.normal_(p.get("mean", 0.0), p.get("std", 1.0), generator=generator)
        if "a" in p:
            made.clamp_(p["a"], p["b"])
    else:
        made.uniform_(generator=generator)
    return made.to(draw.dtype)
