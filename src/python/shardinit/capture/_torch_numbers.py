"""Converts numbers of PyTorch's CPU generator to calls of spec functions such as `torch_normal`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from .._dtypes import digits, rounding_of
from ._expression import NoFormula, Term, binary, call, negative, number
from ._stream import Words, is_one_round

if TYPE_CHECKING:
    from ._values import Draw

# A text that begins like this is an element of a matrix that is only drawn whole, without a
# function.
MATRIX = "#"
_NO_SUCH = "no expression draws such values"
_LARGEST = 1 << 53  # An f64 holds all integers up to this one.


def rounded(term: Term, dtype: torch.dtype) -> Term:
    """Returns an element of this type, computed in f32; other types are unchanged."""
    name = rounding_of(dtype)
    if not name or term.dtype == name:
        return term
    if term.value is not None:
        return number(torch.tensor(term.value, dtype=torch.float64).float().to(dtype).item())
    exact = term if name == "f32" else rounded(term, torch.float32)
    return dataclasses.replace(call(name, exact), dtype=name, exact=exact)


def torch_term(draw: Draw, index: Term, mark: Callable[[Words], Term]) -> Term:
    """Returns an element of a draw, if the engine torch_cpu has such numbers.

    `index` is the element's number in drawing order. `mark` returns the placeholder of a place in
    the stream.
    """
    place, size = draw.place, number(math.prod(draw.shape))
    if place.problem:
        raise NoFormula(place.problem, draw.origin)
    p = {name: number(value) for name, value in draw.parameters.items()}
    at = mark(place.position)
    spare = mark(place.spare) if place.spare is not None else number(-1)

    def typed(function: str, *arguments: Term) -> Term:
        dtype = rounding_of(draw.dtype) or "f64"
        made = call(function if dtype == "f32" else f"{function}_{dtype}", *arguments)
        return dataclasses.replace(made, dtype=dtype)

    match draw.kind:
        case "normal" | "trunc_normal":
            mean, std = p.get("mean", number(0)), p.get("std", number(1))
            grouped = not place.pairs or math.prod(draw.shape) < 16
            if draw.kind == "trunc_normal" and not is_one_round(draw.parameters, place.pairs):
                if not grouped:
                    raise NoFormula("truncated numbers in another order than in memory",
                                    draw.origin)  # fmt: skip
                ends = p["a"], p["b"]
                return typed("torch_trunc_normal", at, spare, size, index, mean, std, *ends)
            if grouped:
                return typed("torch_normal", at, spare, size, index, mean, std)
            return typed("torch_pairs", at, spare, index, mean, std)
        case "log_normal":
            normal = call("torch_pairs_f64", at, spare, index, p["mean"], p["std"])
            return rounded(call("exp", normal), draw.dtype)
        case "uniform":
            return typed("torch_uniform", at, index, p.get("low", number(0)),
                         p.get("high", number(1)))  # fmt: skip
        case "permutation":
            return call("torch_permutation", at, size, index)
        case "integers" | "bits":
            return _whole_number(draw, at, index)
        case "bernoulli" | "exponential" | "geometric" | "cauchy":
            unit = call("torch_uniform_f64", at, index, number(0), number(1))
            return _transformed(draw, unit, p)
        case "sparse":
            return call(MATRIX + draw.kind, at, spare, index)
        case "orthogonal":
            if draw.dtype != torch.float32:
                raise NoFormula("PyTorch's orthogonal matrices are had in f32 alone", draw.origin)
            rows, columns = draw.shape[0], math.prod(draw.shape[1:])
            made = call("torch_orthogonal", at, spare, number(rows), number(columns), index,
                        p["gain"])  # fmt: skip
            return dataclasses.replace(made, dtype="f32")
        case "normal_sorted" | "uniform_sorted":
            made = _of_rows(draw, "sorted", [p["length"], index], mark)
            return dataclasses.replace(made, dtype="f32")
    raise NoFormula(_NO_SUCH, draw.origin)


def summed(
    draw: Draw, length: int, stride: int, row: Term, power: int, mark: Callable[[Words], Term]
) -> Term:
    """Returns the sum of a power of `length` numbers of a draw, which are `stride` apart."""
    if draw.dtype != torch.float32:
        raise NoFormula("sums of random numbers in a type other than f32", draw.origin)
    return _of_rows(draw, "sums", [number(length), number(stride), row, number(power)], mark)


def _of_rows(
    draw: Draw, what: str, arguments: list[Term], mark: Callable[[Words], Term]
) -> Term:
    """Returns a call of a function over rows of normal or uniform numbers."""
    place, size = draw.place, math.prod(draw.shape)
    if place.problem or (place.pairs and size >= 16):
        raise NoFormula(place.problem or "numbers in the order of memory", draw.origin)
    p = {name: number(value) for name, value in draw.parameters.items()}
    at, kind = mark(place.position), draw.kind.removesuffix("_sorted")
    if kind == "uniform":
        ends = p.get("low", number(0)), p.get("high", number(1))
        return call(f"torch_uniform_{what}", at, number(size), *arguments, *ends)
    spare = mark(place.spare) if place.spare is not None else number(-1)
    moments = p.get("mean", number(0)), p.get("std", number(1))
    return call(f"torch_normal_{what}", at, spare, number(size), *arguments, *moments)


def _whole_number(draw: Draw, at: Term, index: Term) -> Term:
    """Returns an integer within bounds, or with as many bits as PyTorch gives the type."""
    if draw.kind == "integers":
        low, high = draw.parameters["low"], draw.parameters["high"]
        if high - low > _LARGEST or abs(low) > _LARGEST:
            raise NoFormula("whole numbers of more than 53 bits", draw.origin)
        drawn = call("torch_randint", at, index, number(high - low))
        return rounded(binary("+", drawn, number(low)), draw.dtype)
    word = call("torch_word", binary("+", at, index))
    if name := rounding_of(draw.dtype):
        return call("mod", word, number((1 << digits(name)) + 1))
    if draw.dtype in (torch.int64, torch.float64):
        raise NoFormula(_NO_SUCH, draw.origin)
    most = 1 if draw.dtype == torch.bool else torch.iinfo(draw.dtype).max
    return call("mod", word, number(most + 1))


def _transformed(draw: Draw, unit: Term, p: dict[str, Term]) -> Term:
    """Returns a number of a distribution for which PyTorch transforms an f64 from 0 to 1."""
    match draw.kind:
        case "bernoulli":
            return binary("<", unit, p["p"])
        case "exponential":
            rate = number(-1.0 / draw.parameters["lambd"])
            return rounded(binary("*", rate, call("log1p", negative(unit))), draw.dtype)
        case "geometric":
            quotient = binary("/", call("log", unit), number(math.log1p(-draw.parameters["p"])))
            return rounded(negative(call("floor", negative(quotient))), draw.dtype)
    angle = binary("*", number(math.pi), binary("-", unit, number(0.5)))
    tangent = binary("/", call("sin", angle), call("cos", angle))
    return rounded(binary("+", binary("*", p["sigma"], tangent), p["median"]), draw.dtype)
