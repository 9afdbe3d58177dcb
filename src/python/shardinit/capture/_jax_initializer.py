"""Finds the spec initializer that gives a JAX array its elements."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .._dtypes import name_of
from ._expression import NoFormula, Origin, Term
from ._jax_formula import Formula, has_no_text
from ._jax_keys import dimensions_of_keys, key_of
from ._jax_numbers import NO_QR, Scaled, bounds, short
from ._jax_values import Value
from ._jaxpr import Graph
from ._tensor import (
    LONGEST,
    Initializer,
    Tensor,
    Text,
    constant,
    expression,
    has_bits,
    of_numbers,
    root,
    table,
)
from ._walk import Use, check_uses

DEEPEST = 60  # The maximum depth of parentheses; shardinit itself accepts 64.
_COMPARED = 1 << 21  # No expression is searched for larger values.
_CUT_OFF = 0.87962566103423978  # The standard deviation of a normal distribution truncated at two.


def dtype_name(value: Value) -> str:
    """Returns a spec's name of a value's element type; raises NoFormula if it has no name."""
    name = name_of(value.dtype)
    if not name:
        raise NoFormula(f"a spec has no {value.dtype}", value.origin)
    return name


def fixed(path: str, value: Value, graph: Graph, place: Mapping[int, int]) -> Tensor:
    """Makes a tensor without random numbers, with JAX's bits; see `drawn`."""
    shape = tuple(n for d, n in enumerate(value.shape) if d not in place)
    return of_numbers(path, shape, dtype_name(value), _fixed(value, graph, place, shape))


def _fixed(
    value: Value, graph: Graph, place: Mapping[int, int], shape: tuple[int, ...]
) -> Initializer | bytes:
    """Returns an initializer, or the bytes if no expression gives them."""
    term = None
    with contextlib.suppress(NoFormula):
        term = Formula(value, graph, place, exact=value.random).term
    found = None if term is None else term.value
    if found is not None and (found != 0 or math.copysign(1, found) > 0):
        return constant(short(np.asarray(found).astype(value.dtype), value.dtype))
    if value.random and term is not None:  # An overwritten part of a random value.
        return constant(term.value) if term.value is not None else _expression(term, value.origin)
    whole = np.asarray(graph.compute(value))
    real = np.ascontiguousarray(whole[tuple(place.get(d, slice(None)) for d in range(whole.ndim))])
    is_float = np.dtype(value.dtype).kind not in "biu"
    if is_float and np.isnan(real).any():
        raise NoFormula("it has elements that are NaN", value.origin)
    bits = real.tobytes()
    if (is_float and np.isinf(real).any()) or real.size > _COMPARED:
        return bits
    first = real.reshape(-1)[0]
    if (real == first).all() and not (is_float and first == 0 and np.signbit(real).any()):
        return constant(short(first, value.dtype))
    for text in _attempts(term, real, value.dtype):
        if has_bits(text, shape, dtype_name(value), bits):
            return "eye" if text == _EYE else {"expr": {"": Text(text)}}
    return bits


_EYE = "i0 == i1"


def _attempts(term: Term | None, real: np.ndarray[Any, Any], dtype: Any) -> Iterator[str]:
    """Yields expressions that may have exactly these bits, the most readable first."""
    if real.ndim == 2:
        yield _EYE
    if term is not None and len(term.text) <= LONGEST:
        yield term.text
    if text := table(real, lambda number: short(number, dtype)):
        yield text


def drawn(path: str, value: Value, graph: Graph, place: Mapping[int, int], by_keys: bool) -> Tensor:
    """Makes a tensor of random numbers: with `by_keys`, the numbers of JAX's keys.

    `place` maps a dimension to the only index that is requested.
    """
    formula = Formula(value, graph, place, exact=by_keys)
    check_uses(formula.uses)
    if not formula.uses:  # Numbers were drawn, but the value contains none of them.
        return fixed(path, value, graph, place)
    shape = tuple(n for d, n in enumerate(value.shape) if d not in place)
    given = key_of(formula, shape, graph, path) if by_keys else None
    init, axes = _initializer(formula, shape, by_keys)
    name = init if isinstance(init, str) else next(iter(init))
    fans = "in_out" if name in _FAN_NAMES else ""
    kind = path, shape, dtype_name(value)
    return Tensor(*kind, init, formula.uses, path, given=given, fans=fans, axes=axes)


def placed(path: str, value: Value, graph: Graph, place: Mapping[int, int]) -> Tensor:
    """Makes a tensor without `uses`, whose numbers are requested one by one, by JAX's keys."""
    formula = Formula(value, graph, place, exact=True, placed=True)
    if not formula.is_placed:
        return fixed(path, value, graph, place)
    shape = tuple(n for d, n in enumerate(value.shape) if d not in place)
    init = _expression(formula.term, value.origin)
    return Tensor(path, shape, dtype_name(value), init, [], path)


def _initializer(
    formula: Formula, shape: tuple[int, ...], exact: bool
) -> tuple[Initializer, tuple[tuple[str, Any], ...]]:
    """Returns an initializer, and the dimensions of its fans if the shape does not determine them.

    With `exact`, its numbers are JAX's, to the bit if the engine's numbers are.
    """
    term = formula.term
    if not isinstance(term, Scaled) or term.draw is None:
        return _expression(term, formula.uses[0].draw.origin), ()
    draw, scale, shift = term.draw, term.scale, term.shift
    use = formula.uses[0]
    shape_of_one = shape if len(formula.uses) == 1 else ()  # Only a single draw has fans.
    if draw.kind == "orthogonal":
        if exact:
            raise NoFormula(NO_QR, draw.origin)
        return _orthogonal(use, shape, scale, shift), ()
    if exact and scale < 0 and draw.kind != "uniform":
        return _expression(term, formula.uses[0].draw.origin), ()
    scale = abs(scale)
    if draw.kind == "uniform":
        low, high = sorted(bounds(draw, term.scale, shift))
        if exact and term.scale < 0:
            return _expression(term, formula.uses[0].draw.origin), ()
        if low == -high:
            # The numbers of jax.nn.initializers are in [-1, 1), and then scaled.
            if bounds(draw, 1, 0) == (-1, 1):
                found = _named("uniform", high / math.sqrt(3), high, use, shape_of_one, exact)
                if found:
                    return found
            limit = _root(high, draw.dtype)
            if isinstance(limit, Text):
                return {"uniform": {"low": Text(f"-{limit.text}"), "high": limit}}, ()
        return {"uniform": {"low": low, "high": high}}, ()
    numbers: dict[str, Any] = {"mean": shift} if shift else {}
    if draw.kind == "truncated_normal":
        low, high = bounds(draw, 1, 0)
        if (low, high) == (-2, 2) and not shift:
            found = _named("normal", scale * _CUT_OFF, scale, use, shape_of_one, exact)
            if found:
                return found
        numbers |= {"std": _root(scale, draw.dtype)}
        numbers |= {key: n for key, n, usual in (("low", low, -2), ("high", high, 2)) if n != usual}
        return {"truncated_normal": numbers}, ()
    return {"normal": {**numbers, "std": _root(scale, draw.dtype)}}, ()


def _expression(term: Term, origin: Origin) -> Initializer:
    if has_no_text(term):
        raise NoFormula("such random values are changed", origin)
    made = expression(term.text, origin)
    depths = itertools.accumulate((c == "(") - (c == ")") for c in term.text)
    if max(depths, default=0) >= DEEPEST:
        why = f"its expression has more than {DEEPEST} parentheses in one another"
        raise NoFormula(why, origin)
    return made


# The values are: the number that is divided by the fan, which fan, and the distribution.
_FAN_NAMES = {
    f"{name}_{distribution}": (scale, mode, distribution)
    for name, scale, mode in (("lecun", 1.0, "in"), ("he", 2.0, "in"), ("glorot", 1.0, "avg"))
    for distribution in ("normal", "uniform")
}


def _named(
    distribution: str, std: float, parameter: float, use: Use, shape: tuple[int, ...], exact: bool
) -> tuple[Initializer, tuple[tuple[str, Any], ...]] | None:
    """Returns the initializer of jax.nn.initializers that has this standard deviation.

    `parameter` is the number that the spec's distribution has for it, in f32.
    """
    fans = _fans(use, shape) if shape else None
    if fans is None:
        return None
    fan_in, fan_out, axes = fans
    for name, (scale, mode, of) in _FAN_NAMES.items():
        if of != distribution:
            continue
        variance = scale / (fan_in if mode == "in" else (fan_in + fan_out) / 2)
        own = math.sqrt(3 * variance) if of == "uniform" else math.sqrt(variance) / _CUT_OFF
        if np.float32(own) == np.float32(parameter) or (
            not exact and math.isclose(math.sqrt(variance), std, rel_tol=4e-7)
        ):
            return name, axes
    return None


def _fans(
    use: Use, shape: tuple[int, ...]
) -> tuple[float, float, tuple[tuple[str, Any], ...]] | None:
    """Returns the fans of a draw, and their dimensions unless they are the last two."""
    draw = use.draw
    batch = len(draw.keys.shape)
    sizes = draw.shape[batch:]
    if len(sizes) < 2:
        return None
    field = math.prod(sizes[:-2])
    where = [sorted(d for d, _ in index.factors) for index in use.index]
    # A part of a draw has other fans.
    if [math.prod(shape[d] for d in w) for w in where] != list(draw.shape):
        return None
    counted = [d for d, n in enumerate(shape) if n > 1]
    if any(i.constant for i in use.index[batch:]) or sorted(itertools.chain(*where)) != counted:
        return None
    axes: tuple[tuple[str, Any], ...] = ()
    behind = [d for w in where[:batch] for d in w]
    last = len(shape)
    if behind or where[-2:] != [[last - 2], [last - 1]]:
        if not where[-2] or not where[-1]:
            return None
        names = {"in_axis": where[-2], "out_axis": where[-1], "batch_axis": sorted(behind)}
        axes = tuple((k, d[0] if len(d) == 1 else tuple(d)) for k, d in names.items() if d)
    return sizes[-2] * field, sizes[-1] * field, axes


def _orthogonal(use: Use, shape: tuple[int, ...], scale: float, shift: float) -> Initializer:
    draw = use.draw
    if shift or draw.keys.shape:
        raise NoFormula("such random values are changed", draw.origin)
    dimensions = [[d for d, _ in index.factors] for index in use.index]
    columns = [d for d in dimensions if len(d) == 1]
    counted = [d for d, n in enumerate(shape) if n > 1]
    is_whole = sorted(itertools.chain(*dimensions)) == counted
    if any(i.constant for i in use.index) or not columns or not is_whole:
        raise NoFormula("a part of an orthogonal matrix", draw.origin)
    numbers: dict[str, Any] = {} if abs(scale) == 1 else {"gain": abs(scale)}
    if len(shape) > 2:
        numbers["column_axis"] = columns[-1][0]
    return {"orthogonal": numbers} if numbers else "orthogonal"


def _root(value: float, dtype: Any) -> Any:
    """Returns the expression 1 / sqrt(n), if the type rounds it to this number."""
    if 0 < value < 1:
        n = round(1 / value**2)
        exact = 1 / math.sqrt(n) if n < 1 << 40 else 0.0
        if float(np.asarray(exact).astype(dtype)) == float(np.asarray(value).astype(dtype)):
            return root(exact)
    return value


def divided_by(value: Value, graph: Graph, by_keys: bool) -> tuple[int, ...]:
    """Returns the dimensions that count separately drawn parts of an array, outermost first.

    The result is empty if the array is one tensor.
    """
    formula = Formula(value, graph, exact=by_keys)
    if by_keys:
        with contextlib.suppress(NoFormula):
            return dimensions_of_keys(formula)
    ranges = [use.ranges for use in formula.uses]
    counts = [d for d, n in enumerate(value.shape) if n > 1 and ranges]
    stacked = [d for d in counts if all(r[d][0] == r[d][1] for r in ranges)]
    if len({id(use.draw) for use in formula.uses}) == 1 or not stacked:
        return ()
    inner: tuple[int, ...] = ()
    if by_keys:
        first = min(r[stacked[0]][0] for r in ranges)
        with contextlib.suppress(NoFormula):
            found = dimensions_of_keys(Formula(value, graph, {stacked[0]: first}, exact=True))
            inner = tuple(d + (d >= stacked[0]) for d in found)
    return stacked[0], *inner
