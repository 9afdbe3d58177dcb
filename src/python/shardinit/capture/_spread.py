"""Computes the error of a tensor's elements if PyTorch and shardinit round differently."""

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
_OFF = 2  # The maximum error of a function's result in ulps.
_SAFE = 4  # The real numbers' error may exceed the sampled numbers' error by this factor.


def spread_of(path: str, values: Mapping[str, Value]) -> Ulps:
    """Returns the possible error in ulps: one number for the whole tensor, or one for each element.

    This is the change of the elements if their inputs are off: functions by two ulps, sums and
    orthogonal matrices by the possible error of PyTorch's.
    """
    value = values[path]
    functions = np.array(_spread_of_functions(value))
    parts = random_parts(value) if value.random else ()
    if not any(isinstance(part, Draw) and part.kind == "orthogonal" for part in parts):
        return functions
    exact, moved = (evaluate(value, numbers).double() for numbers in (_numbers, _perturbed_numbers))
    unit = torch.finfo(value.dtype).eps / 2 * exact.abs().max()
    most: Ulps = np.maximum(functions, np.ceil(((exact - moved).abs() / unit).numpy()))
    return most


def _perturbed_numbers(draw: Draw) -> torch.Tensor:
    """Returns the numbers of `_numbers`, with the largest possible error in orthogonal matrices."""
    made = _numbers(draw)
    if draw.kind != "orthogonal":
        return made
    most = torch.from_numpy(ulps_of_orthogonal(tuple(draw.shape)).astype(np.float64))
    unit = torch.finfo(draw.dtype).eps / 2 * made.abs().max()
    sign = -1 if draw.order % 2 else 1
    return (made.double() + sign * most * unit).to(draw.dtype)


def _spread_of_functions(value: Value) -> int:
    """Returns the ulps by which elements change if the results of all functions change by two.

    An ulp is the element's own, or the largest element's. In `log(exp(x) - 1)`, one ulp of the
    inner function may become a hundred.
    """
    if not value.dtype.is_floating_point or math.prod(value.shape) > COMPUTED:
        return 0
    most = 0.0
    for sign in (1, -1):
        exact = evaluate(value, _numbers).double()
        moved = evaluate(value, _numbers, functools.partial(_perturbed_result, sign)).double()
        apart = (exact - moved).abs()
        if not bool(torch.isfinite(apart).all()):
            return 0
        unit = torch.finfo(value.dtype).eps / 2
        alone = torch.where(apart > 0, apart / exact.abs(), 0).max() / unit
        most = max(most, min(float(alone), float(apart.max() / exact.abs().max() / unit)))
    return math.ceil(_SAFE * most) if most > 2 * _OFF else 0  # A unit may be two of the largest's.


def _perturbed_result(sign: int, value: Value, made: torch.Tensor) -> torch.Tensor:
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
    """Returns numbers roughly of the draw's distribution, the same for the same draw."""
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
