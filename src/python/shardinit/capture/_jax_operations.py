"""Converts JAX operations to expressions of a spec, one function for each operation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._dtypes import rounding_of
from ._expression import Index, NoFormula, Term, binary, call, divide, number
from ._jax_arithmetic import Operation, combined, minus, whole
from ._jax_numbers import Scaled, as_jax_does, rounding, scaled
from ._jax_values import Value
from ._walk import Ranges

Build = Callable[[Operation], Term]


def _operator(operator: str) -> Build:
    return lambda at: combined(operator, at.of(0), at.of(1), at)


def _divided(at: Operation) -> Term:
    if np.dtype(at.value.dtype).kind not in "iu":
        return combined("/", at.of(0), at.of(1), at)
    _check_positive(at)
    return call("floor", binary("/", at.of(0), at.of(1)))


def _rest(at: Operation) -> Term:
    if np.dtype(at.value.dtype).kind not in "iu":
        raise NoFormula("the rest of a division of fractions")
    _check_positive(at)
    return call("mod", at.of(0), at.of(1))


def _check_positive(at: Operation) -> None:
    """Rejects negative quotients, which JAX rounds towards 0 and an expression rounds down."""
    low, high = (at.formula.graph.interval(at.inputs[n])[0] for n in (0, 1))
    if low < 0 or high < 1:
        raise NoFormula("a division of whole numbers that may be below 0")


def _shifted(at: Operation) -> Term:
    """Returns an integer shifted to the right, by a known number of places."""
    places = at.of(1)
    if places.value is None or at.formula.graph.interval(at.inputs[0])[0] < 0:
        raise NoFormula("bits of whole numbers")
    return call("floor", binary("/", at.of(0), number(1 << int(places.value))))


def _function(name: str) -> Build:
    return lambda at: _rounded(at, call(name, at.of(0)))


def _rounded(at: Operation, term: Term) -> Term:
    return rounding(term, at.value.dtype) if at.formula.exact else term


def _sign(at: Operation) -> Term:
    term = at.of(0)
    if term.value is not None:
        return at.formula.number(np.sign(term.value) if term.value else term.value, at.value.dtype)
    return binary("-", binary(">", term, number(0)), binary("<", at.of(0), number(0)))


def _negative(at: Operation) -> Term:
    term = at.of(0)
    if np.dtype(at.value.dtype).kind in "iu":
        return whole(at, binary("-", number(0), term))
    if term.value is not None:
        return at.formula.number(-float(term.value), at.value.dtype)
    if isinstance(term, Scaled) and term.draw is not None:
        again = as_jax_does if at.formula.exact else scaled
        made = again(term.draw, -term.scale, -term.shift)
        return made if not at.formula.exact else dataclasses.replace(
            made, text=minus(term).text, binds=4)  # fmt: skip
    return minus(term)


def _converted(at: Operation) -> Term:
    term, source, target = at.of(0), np.dtype(at.inputs[0].dtype), np.dtype(at.value.dtype)
    if target.kind == "c":
        raise NoFormula("complex numbers")
    if target.kind == "b" and source != target:
        return binary("!=", term, number(0))
    if target.kind in "iu" and source.kind not in "iub":
        if term.value is not None:
            return number(math.trunc(term.value))
        if not (term.text.startswith("floor(") and term.text.endswith(")")):
            raise NoFormula("numbers are truncated to whole ones")
    if target.kind in "iu":
        low, high = at.formula.graph.interval(at.inputs[0])
        info = np.iinfo(target)
        if low < info.min or high > info.max:
            raise NoFormula(f"whole numbers that {target} may not have")
    if target.kind not in "biu" and term.value is None:
        if source.kind == "b":
            return term
        if source.kind in "iu":
            low, high = at.formula.graph.interval(at.inputs[0])
            exactly_held = max(-low, high) <= 1 << _digits(target)
        else:
            exactly_held = _digits(target) >= _digits(source)
        if not exactly_held and not rounding_of(target):
            raise NoFormula(f"numbers are rounded to {target}")
        if not exactly_held:
            return rounding(term, target)
    return term if term.value is None else at.formula.number(term.value, target)


def _digits(dtype: Any) -> int:
    """Returns the binary digits of a float's significand, including the implicit one."""
    return int(jnp.finfo(dtype).nmant) + 1  # type: ignore[no-untyped-call]


def _power(at: Operation) -> Term:
    by = number(at.params["y"]) if "y" in at.params else at.of(1)
    is_whole = np.dtype(at.value.dtype).kind in "iu"
    return (whole if is_whole else _rounded)(at, call("pow", at.of(0), by))


def _logical(build: Callable[..., Term]) -> Build:
    def of(at: Operation) -> Term:
        if any(np.dtype(value.dtype).kind != "b" for value in at.inputs):
            raise NoFormula("bits of whole numbers")
        return build(*(at.of(n) for n in range(len(at.inputs))))

    return of


def _select(at: Operation) -> Term:
    if len(at.inputs) != 3:
        raise NoFormula("a choice of more than two")
    return at.chosen(lambda: at.of(0), lambda: at.of(2), lambda: at.of(1))


def _reshape(at: Operation) -> Term:
    flat = Index(0)
    stride = 1
    for i, n in zip(reversed(at.index), reversed(at.value.shape), strict=True):
        flat, stride = flat.plus(i, stride), stride * n
    index: list[Index] = []
    shape = at.inputs[0].shape
    for d, n in enumerate(shape):
        if n == 1:
            index.append(Index(0))
            continue
        here, flat = divide(flat, math.prod(shape[d + 1 :]), at.ranges)
        index.append(here)
    return at.at(at.inputs[0], index)


def _squeeze(at: Operation) -> Term:
    rank, kept = len(at.inputs[0].shape), iter(at.index)
    removed = {d % rank for d in at.params["dimensions"]}
    index = [Index(0) if d in removed else next(kept) for d in range(rank)]
    return at.at(at.inputs[0], index)


def _expand(at: Operation) -> Term:
    return _picked(at, [d for d in range(len(at.index)) if d not in at.params["dimensions"]])


def _transpose(at: Operation) -> Term:
    order = at.params["permutation"]
    return _picked(at, [order.index(d) for d in range(len(order))])


def _picked(at: Operation, dimensions: Sequence[int]) -> Term:
    """Returns an element of the input, whose dimensions are these dimensions of the result."""
    return at.at(at.inputs[0], [at.index[d] for d in dimensions])


def _slice(at: Operation) -> Term:
    return _part(at, at.params["start_indices"], at.params["strides"])


def _part(at: Operation, starts: Sequence[int], steps: Sequence[int] | None = None) -> Term:
    by = steps or [1] * len(starts)
    index = [Index(int(a)).plus(i, int(s)) for i, a, s in zip(at.index, starts, by, strict=True)]
    return at.at(at.inputs[0], index)


def _dynamic_slice(at: Operation) -> Term:
    sizes, shape = at.params["slice_sizes"], at.inputs[0].shape
    return _part(at, _within(at.starts(1), sizes, shape))


def _within(starts: Sequence[int], sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Returns the starts of slices; XLA moves a slice that would end outside of an array."""
    return [min(max(a, 0), n - k) for a, k, n in zip(starts, sizes, shape, strict=True)]


def _stack(at: Operation) -> Term:
    axis = at.params["axis"]

    def part(n: int, index: tuple[Index, ...], ranges: Ranges) -> Term:
        return at.at(at.inputs[n], (*index[:axis], *index[axis + 1 :]), ranges)

    return at.formula.joined([1] * len(at.inputs), axis, at.index, at.ranges, part)


def _unstack(at: Operation) -> Term:
    axis = at.params["axis"] % len(at.inputs[0].shape)
    return at.at(at.inputs[0], (*at.index[:axis], Index(at.value.result), *at.index[axis:]))


def _zeros(at: Operation) -> Term:
    """Returns a sum of zeros."""
    if not at.formula.graph.is_zero(at.value):
        raise NoFormula("no expression has this operation")
    return number(0)


def _squared(at: Operation) -> Term:
    """Returns the square of a number: a product has JAX's bits, but uses the number twice."""
    if at.formula.placed:
        return combined("*", at.of(0), at.of(0), at)
    return _rounded(at, call("pow", at.of(0), number(2)))


def _split(at: Operation) -> Term:
    axis, before = at.params["axis"], sum(at.params["sizes"][: at.value.result])
    return _part(at, [before if d == axis else 0 for d in range(len(at.index))])


def _pad(at: Operation) -> Term:
    config = at.params["padding_config"]
    if any(inner for _, _, inner in config):
        raise NoFormula("elements are moved apart")
    before = [int(before) for before, _, _ in config]
    return at.padded(at.inputs[0], before, at.at(at.inputs[1], ()))


def _gather(at: Operation) -> Term:
    """Returns an element of a gather of one slice, the form of an index of integers."""
    starts, removed = _place(at, at.inputs[1], "start_index_map", "collapsed_slice_dims")
    shape = at.inputs[0].shape
    starts = _within(starts, at.params["slice_sizes"], shape)
    kept = iter(at.index)
    index = [Index(a) if d in removed else next(kept).plus(Index(a)) for d, a in enumerate(starts)]
    return at.at(at.inputs[0], index)


def _place(at: Operation, place: Value, mapped: str, removed: str) -> tuple[list[int], set[int]]:
    """Returns the start of a gather's or scatter's slice, and the dimensions to remove from it."""
    numbers = at.params["dimension_numbers"]
    if place.random or len(place.shape) != 1 or numbers.operand_batching_dims:
        raise NoFormula("elements at several places, or at random ones")
    starts = [0] * len(at.inputs[0].shape)
    found = np.asarray(at.formula.graph.compute(place))
    for d, start in zip(getattr(numbers, mapped), found, strict=True):
        starts[d] = int(start)
    return starts, set(getattr(numbers, removed))


def _scatter(combine: Callable[[Operation, Term, Term], Term] | None) -> Build:
    """Returns an element of a scatter of one slice, the form of a write to integer indices."""

    def of(at: Operation) -> Term:
        names = "scatter_dims_to_operand_dims", "inserted_window_dims"
        starts, removed = _place(at, at.inputs[1], *names)
        return _overwritten(at, at.inputs[2], starts, removed, combine)

    return of


def _dynamic_update(at: Operation) -> Term:
    update = at.inputs[1]
    starts = _within(at.starts(2), update.shape, at.inputs[0].shape)
    return _overwritten(at, update, starts, set(), None)


def _overwritten(
    at: Operation,
    update: Value,
    starts: Sequence[int],
    removed: set[int],
    combine: Callable[[Operation, Term, Term], Term] | None,
) -> Term:
    """Returns an element of an array with a box overwritten by, or combined with, other values."""
    sizes = iter(enumerate(update.shape))
    boxes: list[tuple[int, int, int, int | None]] = []
    for d, start in enumerate(starts):
        dimension, count = (None, 1) if d in removed else next(sizes)
        boxes.append((start, 1, count, dimension))

    def values(source: tuple[Index, ...], inside: Ranges) -> Term:
        made = at.at(update, source, inside)
        if combine is None:
            return made
        return combine(at, at.at(at.inputs[0], at.index, inside), made)

    return at.overwritten(
        boxes, len(update.shape), lambda rest: at.at(at.inputs[0], at.index, rest), values
    )


OPERATIONS: dict[str, Build] = {
    **{
        name: _function(name)
        for name in ("cos", "erf_inv", "exp", "expm1", "log", "log1p", "sin", "sqrt", "tanh")
    },
    "abs": lambda at: call("abs", at.of(0)),
    "add": _operator("+"),
    "and": _logical(lambda x, y: binary("*", x, y)),
    "broadcast_in_dim": lambda at: _picked(at, at.params["broadcast_dimensions"]),
    "ceil": lambda at: minus(call("floor", minus(at.of(0)))),
    "clamp": lambda at: call("clip", at.of(1), at.of(0), at.of(2)),
    "concatenate": lambda at: at.joined(at.inputs, at.params["dimension"]),
    "convert_element_type": _converted,
    "div": _divided,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "eq": _operator("=="),
    "exp2": lambda at: _rounded(at, call("pow", number(2), at.of(0))),
    "expand_dims": _expand,
    "floor": lambda at: call("floor", at.of(0)),
    "gather": _gather,
    "ge": _operator(">="),
    "gt": _operator(">"),
    "integer_pow": _power,
    "iota": lambda at: at.index[at.params["dimension"]].text(),
    "le": _operator("<="),
    "lt": _operator("<"),
    "max": lambda at: call("max", at.of(0), at.of(1)),
    "min": lambda at: call("min", at.of(0), at.of(1)),
    "mul": _operator("*"),
    "ne": _operator("!="),
    "neg": _negative,
    "not": _logical(lambda x: binary("==", x, number(0))),
    "or": _logical(lambda x, y: call("max", x, y)),
    "pad": _pad,
    "pow": _power,
    "reduce_sum": _zeros,
    "rem": _rest,
    "reshape": _reshape,
    "rev": lambda at: at.flipped(at.inputs[0], at.params["dimensions"]),
    "rsqrt": lambda at: _rounded(at, binary("/", number(1), call("sqrt", at.of(0)))),
    "scatter": _scatter(None),
    "scatter-add": _scatter(lambda at, x, y: combined("+", x, y, at)),
    "scatter-mul": _scatter(lambda at, x, y: combined("*", x, y, at)),
    "scatter-sub": _scatter(lambda at, x, y: combined("-", x, y, at)),
    "select_n": _select,
    "shift_right_logical": _shifted,
    "sign": _sign,
    "slice": _slice,
    "split": _split,
    "square": _squared,
    "stack": _stack,
    "squeeze": _squeeze,
    "sub": _operator("-"),
    "transpose": _transpose,
    "unstack": _unstack,
    "xor": _logical(lambda x, y: binary("!=", x, y)),
}
