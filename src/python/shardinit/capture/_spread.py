"""Finds how far a tensor's elements may be off where PyTorch and the tool round otherwise."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import torch

from ._initializer import COMPUTED
from ._values import Apply, Draw, Value, evaluate

# These functions are not rounded alike everywhere; everything else in an expression is.
_FUNCTIONS = {
    "cos", "erfinv", "exp", "expm1", "log", "log1p", "pow", "rsqrt", "sin", "sqrt", "tanh",
}  # fmt: skip
_OFF = 2  # A function's result may be off by so many ulps.
_SAFE = 4  # The real numbers may be off by this factor more than those that are tried.


def spread_of(path: str, values: Mapping[str, Value]) -> int:
    """The ulps by which a tensor's elements move when results of all its functions move by two.

    An ulp is that of the element itself, or of the largest one. In `log(exp(x) - 1)` one ulp of the
    inner function may become a hundred.
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
    """Numbers roughly of the draw's distribution, the same for the same draw."""
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
