"""Finds how far a tensor's elements may be off where PyTorch and the tool round otherwise."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import numpy as np
import torch

from ._compare import Ulps, error_of_sum, ulps_of_orthogonal
from ._values import COMPUTED, Apply, Draw, Value, evaluate, random_parts

# These functions are not rounded alike everywhere; everything else in an expression is.
_FUNCTIONS = {
    "cos", "erfinv", "exp", "expm1", "log", "log1p", "pow", "rsqrt", "sin", "sqrt", "tanh",
}  # fmt: skip
_SUMS = {"linalg_vector_norm", "mean", "norm", "std", "sum", "var"}
_OFF = 2  # A function's result may be off by so many ulps.
_SAFE = 4  # The real numbers may be off by this factor more than those that are tried.


def spread_of(path: str, values: Mapping[str, Value]) -> Ulps:
    """The ulps by which a tensor's elements may be off, for all or for each.

    They are those by which elements move when what they are made of is off: functions by two ulps,
    sums and orthogonal matrices by what PyTorch's may be.
    """
    value = values[path]
    functions = np.array(_spread_of_functions(value))
    parts = random_parts(value) if value.random else ()
    if not any(isinstance(part, Draw) and part.kind == "orthogonal" for part in parts):
        return functions
    exact, moved = (evaluate(value, numbers).double() for numbers in (_numbers, _off))
    unit = torch.finfo(value.dtype).eps / 2 * exact.abs().max()
    most: Ulps = np.maximum(functions, np.ceil(((exact - moved).abs() / unit).numpy()))
    return most


def _off(draw: Draw) -> torch.Tensor:
    """The same numbers, with orthogonal matrices as far off as they may be."""
    made = _numbers(draw)
    if draw.kind != "orthogonal":
        return made
    most = torch.from_numpy(ulps_of_orthogonal(tuple(draw.shape)).astype(np.float64))
    unit = torch.finfo(draw.dtype).eps / 2 * made.abs().max()
    sign = -1 if draw.order % 2 else 1
    return (made.double() + sign * most * unit).to(draw.dtype)


def _spread_of_functions(value: Value) -> int:
    """The ulps by which elements move when results of all functions move by two.

    An ulp is that of the element itself, or of the largest one. In `log(exp(x) - 1)` one ulp of the
    inner function may become a hundred.
    """
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
    if not isinstance(value, Apply) or not made.is_floating_point():
        return made
    if value.name in _SUMS:
        terms = math.prod(next(value.parts()).shape) // max(made.numel(), 1)
        # Sums of numbers of both signs are smaller than their terms.
        most = error_of_sum(terms) * (math.sqrt(terms) if value.name in ("sum", "mean") else 1)
        return made + sign * most * made.abs().max()
    if value.name not in _FUNCTIONS:
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
    elif draw.kind == "orthogonal":
        made.normal_(std=p["gain"] / math.sqrt(max(draw.shape)), generator=generator)
    else:
        made.uniform_(generator=generator)
    return made.to(draw.dtype)
