"""Converts norms, sums and sorted rows of random numbers to expressions of a spec."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ._expression import Index, NoFormula, Term, binary, call, number
from ._stream import is_row_major
from ._torch_numbers import summed
from ._values import COMPUTED, Apply, Draw, Gather, Value, evaluate, replace

if TYPE_CHECKING:
    from ._operations import Operation

SAME = ("alias", "clone", "detach", "lift_fresh")  # These operations change no element.
_FEW = 64  # The maximum number of terms that are added one by one.
_OVER = 1000  # Variables from this one on count the elements of a sum.
TORCH_CPU_HAS_THEM = "the engine torch_cpu has such numbers (`--engine torch_cpu`)"


def is_zero(value: Any) -> bool:
    """Returns whether all elements are 0, whatever random numbers are among the factors."""
    if not isinstance(value, Value):
        return False
    if not value.random:
        return math.prod(value.shape) <= COMPUTED and not bool(evaluate(value).any())
    if isinstance(value, Gather):
        return is_zero(value.base)
    if not isinstance(value, Apply):
        return False
    if value.name in ("mm", "bmm", "mul"):
        return any(map(is_zero, value.parts()))
    return value.name in ("div", "neg", "_to_copy", *SAME) and is_zero(value.args[0])


def scaled(value: Value) -> tuple[Value, float]:
    """Returns the value of which this one is a multiple, and the factor."""
    factor = 1.0
    while isinstance(value, Apply):
        arguments = (*value.args, None, None)
        if value.name in ("mul", "div") and isinstance(arguments[1], (int, float)):
            factor *= arguments[1] if value.name == "mul" else 1 / arguments[1]
        elif value.name in ("add", "sub") and is_zero(arguments[1]):
            pass
        elif not (value.name in SAME or (value.name == "_to_copy" and _same_type(value))):
            break
        value = arguments[0]
    return value, factor


def _same_type(value: Apply) -> bool:
    return all(part.dtype == value.dtype for part in value.parts())


def _reduced_dimensions(at: Operation, value: Value) -> list[int]:
    """Returns the dimensions that an operation reduces."""
    rank, dims = len(value.shape), at.a.get("dim")
    if dims is None or dims == []:
        return list(range(rank))
    return sorted({d % rank for d in (dims if isinstance(dims, (list, tuple)) else [dims])})


def _argument_index(at: Operation, value: Value, over: list[int]) -> list[Index]:
    """Returns the index of an argument's element, in which variables count reduced dimensions."""
    kept = iter([i for d, i in enumerate(at.index) if not at.a.get("keepdim") or d not in over])
    return [
        Index.of(0, {_OVER + d: 1}) if d in over else next(kept) for d in range(len(value.shape))
    ]


def _sum(at: Operation, value: Value, power: int) -> Term:
    """Returns the sum of a power of the elements that an operation reduces."""
    over = _reduced_dimensions(at, value)
    if at.formula.rounds:
        term = _sum_of_draw(at, value, over, power)
        if term is not None:
            return term
    if math.prod(value.shape[d] for d in over) > _FEW or (power == 1 and at.formula.rounds):
        raise NoFormula(
            "a sum of random numbers" + ("" if at.formula.rounds else f", but {TORCH_CPU_HAS_THEM}")
        )
    terms = []
    index = _argument_index(at, value, over)
    for place in itertools.product(*(range(value.shape[d]) for d in over)):
        fixed = list(index)
        for d, n in zip(over, place, strict=True):
            fixed[d] = Index(n)
        term = at.at(value, fixed)
        terms.append(term if power == 1 else call("pow", term, number(power)))
    total = number(0)
    for term in terms:
        total = binary("+", total, term)
    return total


def _sum_of_draw(at: Operation, value: Value, over: list[int], power: int) -> Term | None:
    """Returns the sum by a torch_cpu function; None if the elements are not a plain draw."""
    index, factor = tuple(_argument_index(at, value, over)), 1.0
    ranges = dict(at.ranges) | {_OVER + d: (0, value.shape[d] - 1) for d in over}
    of = value
    while not isinstance(of, Draw):
        of, times = scaled(of)
        factor *= times
        if isinstance(of, Gather):
            of, index = at.formula.gathered(of, index, ranges)
        elif not isinstance(of, Draw):
            return None
    if of.kind not in ("normal", "uniform") or any(type(i) is not Index for i in index):
        return None
    flat = Index(0)
    for i, stride in zip(index, of.place.strides, strict=True):
        flat = flat.plus(i, stride)
    steps = sorted((f, d) for d, f in flat.factors if d >= _OVER)
    base = Index.of(flat.constant, {d: f for d, f in flat.factors if d < _OVER})
    first = steps[0][0] if steps else 1
    length = 1
    for step, d in steps:
        if step != first * length:
            return None
        length *= ranges[d][1] + 1
    if length != math.prod(value.shape[d] for d in over) or math.prod(of.shape) % (first * length):
        return None
    block, rest = Index(0), base
    for d, f in base.factors:
        if f % (first * length) == 0:
            block = block.plus(Index.of(0, {d: f // length}))
            rest = rest.plus(Index.of(0, {d: f}), -1)
    whole, constant = divmod(rest.constant, first * length)
    rest = Index.of(constant, dict(rest.factors))
    low, high = rest.bounds(at.ranges)
    if low < 0 or high >= first:
        return None  # A sum begins in the middle of other sums.
    at.formula.use(of, tuple(Index(0) for _ in index), at.ranges)
    place = block.plus(rest).plus(Index(whole * first))
    term = summed(of, length, first, place.text(), power, at.formula.mark)
    return binary("*", term, number(factor**power)) if factor != 1 else term


def norm(at: Operation) -> Term:
    if at.a.get("ord", at.a.get("p", 2)) not in (None, 2):
        raise NoFormula("norms of random numbers other than Euclidean ones")
    return call("sqrt", _sum(at, at.a["self"], 2))


def total(at: Operation) -> Term:
    value = at.a["self"]
    if isinstance(value, Apply):
        base, other = (*value.args, None)[:2]
        if (value.name == "pow" and other == 2) or value.name == "square" or (
            value.name == "mul" and base is other
        ):  # fmt: skip
            return _sum(at, base, 2)
    return _sum(at, value, 1)


def mean(at: Operation) -> Term:
    value = at.a["self"]
    count = math.prod(value.shape[d] for d in _reduced_dimensions(at, value))
    return binary("/", total(at), number(count))


def _variance(at: Operation) -> Term:
    value = at.a["self"]
    correction = at.a.get("correction", 1)
    correction = 1 if correction is None else correction
    if "unbiased" in at.a:
        correction = int(at.a["unbiased"])
    count = math.prod(value.shape[d] for d in _reduced_dimensions(at, value))
    if not at.formula.rounds or count <= correction:
        raise NoFormula(f"a variance of random numbers, but {TORCH_CPU_HAS_THEM}")
    sums = [_sum_of_draw(at, value, _reduced_dimensions(at, value), power) for power in (1, 2)]
    if sums[0] is None or sums[1] is None:
        raise NoFormula("a variance of random numbers that are changed before")
    mean_square = binary("/", binary("*", sums[0], sums[0]), number(count))
    return binary("/", binary("-", sums[1], mean_square), number(count - correction))


_RISES = {
    "clamp", "clamp_max", "clamp_min", "erfinv", "exp", "expm1", "log", "log1p", "sqrt", "tanh",
    "_to_copy", *SAME,
}  # fmt: skip


def _is_increasing(value: Apply) -> bool:
    """Returns whether increasing the only random argument never decreases the result."""
    other = value.args[1] if len(value.args) > 1 else None
    if value.name in ("mul", "div"):
        return isinstance(other, (int, float)) and other > 0
    if value.name in ("add", "sub"):
        return isinstance(other, (int, float)) and not value.kwargs
    return value.name in _RISES and not any(part.random for part in list(value.parts())[1:])


def in_order(at: Operation) -> Term:
    """Returns an element of sorted rows: sorting and an increasing function can be swapped."""
    value = at.a["self"]
    rank = len(value.shape)
    if at.value.result != 0:
        raise NoFormula("the order of random numbers")
    if not at.formula.rounds:
        raise NoFormula(f"sorted random numbers, but {TORCH_CPU_HAS_THEM}")
    if rank and at.a.get("dim", -1) % rank != rank - 1:
        raise NoFormula("random numbers that are sorted along another dimension than the last")

    def in_rows(of: Value) -> Value:
        if isinstance(of, Apply) and _is_increasing(of):
            part = next(of.parts())
            changed = in_rows(part)
            args = replace(of.args, lambda x: changed if x is part else x, Value)
            return dataclasses.replace(of, args=args)
        plain = isinstance(of, Draw) and of.kind in ("normal", "uniform")
        if not isinstance(of, Draw) or not plain or of.dtype != torch.float32 or not is_row_major(
            of.shape, of.place.strides
        ):  # fmt: skip
            raise NoFormula("such random numbers are sorted")
        length = of.shape[-1] if of.shape else 1
        parameters = {**of.parameters, "length": length}
        return dataclasses.replace(of, kind=f"{of.kind}_sorted", parameters=parameters)

    index = list(at.index)
    if rank and (at.a.get("descending") or at.value.name == "topk"):
        index[-1] = Index(value.shape[-1] - 1).plus(index[-1], -1)
    return at.at(in_rows(value), index)


def normalized_along(at: Operation) -> int | None:
    """Returns the dimension along which normal numbers are divided by their norms; None if none."""
    value, by = at.a["self"], at.a["other"]
    while isinstance(by, Gather) or (isinstance(by, Apply) and by.name in ("clamp_min", *SAME)):
        by = next(by.parts())
    if not isinstance(by, Apply) or by.name not in ("linalg_vector_norm", "norm"):
        return None
    draw = scaled(value)[0]
    if next(by.parts()) is not value or not isinstance(draw, Draw) or draw.kind != "normal":
        return None
    if draw.problem or draw.parameters.get("mean", 0) != 0:
        return None
    rank, (order, dims) = len(value.shape), (*by.args[1:], None, None)[:2]
    dims = list(range(rank)) if not dims else [d % rank for d in dims]
    keeps = (*by.args[3:], False)[0] or by.kwargs.get("keepdim") or rank == 1
    one = len(dims) == 1 and keeps and order in (None, 2)
    return dims[0] if one and tuple(draw.shape) == tuple(at.value.shape) else None


REDUCES: dict[str, Callable[[Operation], Term]] = {
    "linalg_vector_norm": norm,
    "mean": mean,
    "norm": norm,
    "sort": in_order,
    "std": lambda at: call("sqrt", _variance(at)),
    "sum": total,
    "topk": in_order,
    "var": _variance,
}
