"""What an array of JAX holds, as an expression of a spec over its elements' indices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ._expression import (
    Index,
    NoFormula,
    Range,
    Term,
    Walk,
    affine,
    binary,
    both,
    call,
    divide,
    identity,
    number,
    where,
)
from ._jaxpr import Apply, Draw, Graph, Known, Value, is_key


@dataclasses.dataclass(frozen=True)
class Scaled(Term):
    """`scale * x + shift` of the numbers x of one draw."""

    draw: Draw | None = None
    scale: float = 1
    shift: float = 0


def scaled(draw: Draw, scale: float = 1, shift: float = 0) -> Scaled:
    if draw.kind == "uniform":
        low, high = bounds(draw, scale, shift)
        term, times, plus = Term("uniform()"), rounded(high - low, draw.dtype), low
    else:
        term, times, plus = _standard(draw), scale, shift
    if times == -1:  # As what is drawn for an exponential distribution.
        term = binary("-", number(plus), term)
    else:
        term = affine(term, number(times), number(plus))
    return Scaled(term.text, term.binds, draw=draw, scale=scale, shift=shift)


def bounds(draw: Draw, scale: float, shift: float) -> tuple[float, float]:
    """Those of uniform numbers, or in standard deviations of truncated ones."""
    low, high = (
        rounded(short(draw.parameters[end], draw.dtype) * scale + shift, draw.dtype)
        for end in ("low", "high")
    )
    return low, high


def _standard(draw: Draw) -> Term:
    match draw.kind:
        case "normal":
            return Term("normal()")
        case "truncated_normal":
            # Six standard deviations, at which erf is not 1 yet, are as good as all.
            low, high = (math.erf(min(max(z, -6), 6) / math.sqrt(2)) for z in bounds(draw, 1, 0))
            inner = call("erf_inv", affine(Term("uniform()"), number(high - low), number(low)))
            return binary("*", inner, number(math.sqrt(2)))
    return Term(f"<{draw.kind}>")


def short(value: Any, dtype: Any) -> float | int:
    """The shortest number that the type rounds to this one."""
    dtype = np.dtype(dtype)
    if dtype.kind in "biu":
        return int(value)
    exact = float(value)
    if not math.isfinite(exact):
        raise NoFormula(f"a spec has no number {exact}")
    for digits in range(1, 18):
        near = float(f"{exact:.{digits}g}")
        if float(np.asarray(near).astype(dtype)) == exact:
            return near
    return exact


class Formula(Walk):
    """An expression for the elements of a value.

    Attributes:
        term: the expression.
        uses: the draws in it.
    """

    def __init__(self, value: Value, graph: Graph, place: Mapping[int, int] | None = None) -> None:
        """`place`: dimension → the only index of it that is asked for, and not counted."""
        super().__init__()
        self.graph = graph
        place = place or {}
        shape = [n for d, n in enumerate(value.shape) if d not in place]
        counted = iter(identity(shape))
        index = tuple(
            Index(place[d]) if d in place else next(counted) for d in range(len(value.shape))
        )
        self.term = self.of(value, index, {d: (0, n - 1) for d, n in enumerate(shape)})

    def of(self, value: Value, index: tuple[Index, ...], ranges: dict[int, Range]) -> Term:
        """One element of a value."""
        if isinstance(value, Draw):
            return self._draw(value, index, ranges)
        if is_key(value.dtype):
            raise NoFormula("the words of a key are asked for", value.origin)
        if not value.random and math.prod(value.shape) == 1:
            data = np.asarray(self.graph.compute(value)).reshape(-1)[0]
            return number(short(data, value.dtype))
        if isinstance(value, Known):
            return self._known(value, index, ranges)
        assert isinstance(value, Apply)
        build = _OPERATIONS.get(value.name)
        if build is None:
            raise NoFormula("no expression has this operation", value.origin)
        try:
            return build(At(self, value, index, ranges))
        except NoFormula as error:
            raise error if error.origin else NoFormula(str(error), value.origin) from None

    def _draw(self, draw: Draw, index: tuple[Index, ...], ranges: dict[int, Range]) -> Term:
        self.graph.identify(draw)
        self.use(draw, index, ranges)
        match draw.kind:
            case "uniform" | "normal" | "truncated_normal" | "orthogonal":
                return scaled(draw)
            case "integers":
                low, high = (int(draw.parameters[end]) for end in ("low", "high"))
                if draw_is_of_one_key(draw):
                    return binary("+", call("mod", Term("bits()"), number(high - low)), number(low))
                drawn = call("floor", binary("*", Term("uniform()"), number(high - low)))
                return binary("+", drawn, number(low))
            case "bits":
                return Term("bits()")
        raise NoFormula(f"no expression draws {draw.kind}", draw.origin)

    def _known(self, value: Known, index: tuple[Index, ...], ranges: dict[int, Range]) -> Term:
        data = np.asarray(value.data)
        low = tuple(i.bounds(ranges)[0] for i in index)
        if all(i.bounds(ranges) == (a, a) for i, a in zip(index, low, strict=True)):
            return number(short(data[low], value.dtype))
        if data.size and bool((data == data.reshape(-1)[0]).all()):
            return number(short(data.reshape(-1)[0], value.dtype))
        if data.ndim == 1 and data.size <= 64:
            at = index[0].text()
            term = number(short(data[-1], value.dtype))
            for i in reversed(range(data.size - 1)):
                here = number(short(data[i], value.dtype))
                term = where(binary("==", at, number(i)), here, term)
            return term
        raise NoFormula("numbers from outside", value.origin)


def draw_is_of_one_key(draw: Draw) -> bool:
    """Whether JAX makes these whole numbers of the words of one key: the second of its two."""
    span = int(draw.parameters["high"]) - int(draw.parameters["low"])
    return 0 < span <= 1 << 16 and not span & (span - 1) and np.dtype(draw.dtype).itemsize == 4


def rounded(value: float, dtype: Any) -> float:
    """As the type has it, in as few digits as say it."""
    if np.dtype(dtype).kind in "biu":
        return value
    return short(np.asarray(value).astype(dtype), dtype)


@dataclasses.dataclass
class At:
    """Where an operation's result is asked for."""

    formula: Formula
    value: Apply
    index: tuple[Index, ...]
    ranges: dict[int, Range]

    @property
    def params(self) -> dict[str, Any]:
        return self.value.params

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self.value.inputs

    def of(self, n: int) -> Term:
        """The n-th input's element at the place of the result's; of a number that itself."""
        value = self.inputs[n]
        return self.at(value, self.index if value.shape else ())

    def at(
        self, value: Value, index: Sequence[Index], ranges: dict[int, Range] | None = None
    ) -> Term:
        fixed = tuple(Index(0) if n == 1 else i for n, i in zip(value.shape, index, strict=True))
        return self.formula.of(value, fixed, ranges or self.ranges)

    def starts(self, first: int) -> list[int]:
        """The numbers from the n-th input on."""
        starts = []
        for value in self.inputs[first:]:
            if value.random:
                raise NoFormula("a place is random")
            starts.append(int(self.formula.graph.compute(value)))
        return starts


Build = Callable[[At], Term]


def _operator(operator: str) -> Build:
    return lambda at: _combined(operator, at.of(0), at.of(1), at.value.dtype)


def _combined(operator: str, left: Term, right: Term, dtype: Any) -> Term:
    """As `binary`; a draw that is scaled and moved stays one."""
    if isinstance(left, Scaled) and left.draw is not None and right.value is not None:
        x, by = left, right.value
        if operator == "*" and by:
            scale, shift = rounded(x.scale * by, dtype), rounded(x.shift * by, dtype)
            return scaled(left.draw, scale, shift)
        if operator == "/" and by:
            scale, shift = rounded(x.scale / by, dtype), rounded(x.shift / by, dtype)
            return scaled(left.draw, scale, shift)
        if operator in "+-":
            shift = x.shift + by if operator == "+" else x.shift - by
            return scaled(left.draw, x.scale, rounded(shift, dtype))
    if isinstance(right, Scaled) and left.value is not None and operator in "+*":
        return _combined(operator, right, left, dtype)
    if isinstance(right, Scaled) and right.draw is not None and left.value is not None:
        if operator == "-":
            return scaled(right.draw, -right.scale, rounded(left.value - right.shift, dtype))
    if operator in "+-" and right.value is not None and right.value < 0:
        return binary("-" if operator == "+" else "+", left, number(-right.value))
    if operator == "+" and right.value is None and left.value is not None:
        return binary("+", right, left)
    return binary(operator, left, right)


def _function(name: str) -> Build:
    return lambda at: call(name, at.of(0))


def _negative(at: At) -> Term:
    term = at.of(0)
    if isinstance(term, Scaled) and term.draw is not None:
        return scaled(term.draw, -term.scale, -term.shift)
    return binary("-", number(0), term)


def _converted(at: At) -> Term:
    term, source, target = at.of(0), at.inputs[0].dtype, np.dtype(at.value.dtype)
    if target.kind == "c":
        raise NoFormula("complex numbers")
    if target.kind == "b" and source != target:
        return binary("!=", term, number(0))
    if target.kind in "iu" and np.dtype(source).kind not in "iub":
        if term.value is not None:
            return number(math.trunc(term.value))
        if not (term.text.startswith("floor(") and term.text.endswith(")")):
            raise NoFormula("numbers are cut to whole ones")
    return term


def _power(at: At) -> Term:
    if "y" not in at.params:
        return call("pow", at.of(0), at.of(1))
    return call("pow", at.of(0), number(at.params["y"]))


def _clamped(at: At) -> Term:
    return call("clip", at.of(1), at.of(0), at.of(2))


def _logical(build: Callable[..., Term]) -> Build:
    def of(at: At) -> Term:
        if any(np.dtype(value.dtype).kind != "b" for value in at.inputs):
            raise NoFormula("bits of whole numbers")
        return build(*(at.of(n) for n in range(len(at.inputs))))

    return of


def _select(at: At) -> Term:
    if len(at.inputs) != 3:
        raise NoFormula("a choice of more than two")
    choice = at.formula.choice()
    with at.formula.side(choice, 1):
        yes = at.of(2)
    with at.formula.side(choice, 0):
        no = at.of(1)
    return where(at.of(0), yes, no)


def _iota(at: At) -> Term:
    dimension: int = at.params["dimension"]
    return at.index[dimension].text()


def _broadcast(at: At) -> Term:
    dimensions = at.params["broadcast_dimensions"]
    return at.at(at.inputs[0], [at.index[d] for d in dimensions])


def _reshape(at: At) -> Term:
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


def _squeeze(at: At) -> Term:
    removed = {d % len(at.inputs[0].shape) for d in at.params["dimensions"]}
    kept = iter(at.index)
    return at.at(
        at.inputs[0],
        [Index(0) if d in removed else next(kept) for d in range(len(at.inputs[0].shape))],
    )


def _expand(at: At) -> Term:
    added = set(at.params["dimensions"])
    return at.at(at.inputs[0], [i for d, i in enumerate(at.index) if d not in added])


def _transpose(at: At) -> Term:
    index = [Index(0)] * len(at.index)
    for i, d in zip(at.index, at.params["permutation"], strict=True):
        index[d] = i
    return at.at(at.inputs[0], index)


def _slice(at: At) -> Term:
    starts, steps = at.params["start_indices"], at.params["strides"]
    return _part(at, starts, steps or [1] * len(starts))


def _part(at: At, starts: Sequence[int], steps: Sequence[int]) -> Term:
    index = [Index(a).plus(i, s) for i, a, s in zip(at.index, starts, steps, strict=True)]
    return at.at(at.inputs[0], index)


def _dynamic_slice(at: At) -> Term:
    sizes, shape = at.params["slice_sizes"], at.inputs[0].shape
    return _part(at, _within(at.starts(1), sizes, shape), [1] * len(shape))


def _within(starts: Sequence[int], sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """As XLA moves slices that would reach out of an array."""
    return [min(max(a, 0), n - k) for a, k, n in zip(starts, sizes, shape, strict=True)]


def _reversed(at: At) -> Term:
    shape, turned = at.inputs[0].shape, at.params["dimensions"]
    index = [Index(n - 1).plus(i, -1) if d in turned else i
             for d, (i, n) in enumerate(zip(at.index, shape, strict=True))]  # fmt: skip
    return at.at(at.inputs[0], index)


def _concatenate(at: At) -> Term:
    dimension = at.params["dimension"]
    return at.formula.joined(
        [value.shape[dimension] for value in at.inputs],
        dimension,
        at.index,
        at.ranges,
        lambda n, index, ranges: at.at(at.inputs[n], index, ranges),
    )


def _split(at: At) -> Term:
    axis, sizes = at.params["axis"], at.params["sizes"]
    starts = [sum(sizes[: at.value.result]) if d == axis else 0 for d in range(len(at.index))]
    return _part(at, starts, [1] * len(starts))


def _pad(at: At) -> Term:
    config = at.params["padding_config"]
    if any(inner for _, _, inner in config):
        raise NoFormula("elements are moved apart")
    return at.formula.padded(
        [int(before) for before, _, _ in config],
        at.inputs[0].shape,
        at.index,
        at.ranges,
        lambda index, ranges: at.at(at.inputs[0], index, ranges),
        at.at(at.inputs[1], ()),
    )


def _gather(at: At) -> Term:
    """Of the form that an index of numbers has: one slice."""
    starts, removed = _place(at, at.inputs[1], "start_index_map", "collapsed_slice_dims")
    shape = at.inputs[0].shape
    starts = _within(starts, at.params["slice_sizes"], shape)
    kept = iter(at.index)
    return at.at(
        at.inputs[0],
        [Index(a) if d in removed else next(kept).plus(Index(a)) for d, a in enumerate(starts)],
    )


def _place(at: At, place: Value, mapped: str, removed: str) -> tuple[list[int], set[int]]:
    """Where the slice of a gather or scatter begins, and its dimensions that the other lacks."""
    numbers = at.params["dimension_numbers"]
    if place.random or len(place.shape) != 1 or numbers.operand_batching_dims:
        raise NoFormula("elements at several places, or at random ones")
    starts = [0] * len(at.inputs[0].shape)
    found = np.asarray(at.formula.graph.compute(place))
    for d, start in zip(getattr(numbers, mapped), found, strict=True):
        starts[d] = int(start)
    return starts, set(getattr(numbers, removed))


def _scatter(combine: Callable[[At, Term, Term], Term] | None) -> Build:
    """Of the form that a write to an index of numbers has: one slice."""

    def of(at: At) -> Term:
        starts, removed = _place(
            at, at.inputs[1], "scatter_dims_to_operand_dims", "inserted_window_dims"
        )
        return _overwritten(at, at.inputs[2], starts, removed, combine)

    return of


def _dynamic_update(at: At) -> Term:
    update = at.inputs[1]
    starts = _within(at.starts(2), update.shape, at.inputs[0].shape)
    return _overwritten(at, update, starts, set(), None)


def _overwritten(
    at: At,
    update: Value,
    starts: Sequence[int],
    removed: set[int],
    combine: Callable[[At, Term, Term], Term] | None,
) -> Term:
    """An array's element, where a box of it was overwritten, or combined, with others."""
    sizes = iter(update.shape)
    inside, conditions, source = dict(at.ranges), [], []
    for d, (i, start) in enumerate(zip(at.index, starts, strict=True)):
        last = start + (1 if d in removed else next(sizes)) - 1
        low, high = i.bounds(at.ranges)
        if high < start or low > last:
            return at.at(at.inputs[0], at.index)
        if low < start or high > last:
            if len(i.factors) != 1 or i.factors[0][1] != 1:
                raise NoFormula("a part of a part is written to")
            k = i.factors[0][0]
            first, end = start - i.constant, last - i.constant
            inside[k] = (max(first, at.ranges[k][0]), min(end, at.ranges[k][1]))
            if inside[k][0] == inside[k][1]:
                conditions.append(binary("==", Term(f"i{k}"), number(inside[k][0])))
            else:
                if low < start:
                    conditions.append(binary(">=", Term(f"i{k}"), number(first)))
                if high > last:
                    conditions.append(binary("<=", Term(f"i{k}"), number(end)))
        if d not in removed:
            source.append(i.plus(Index(start), -1))
    choice = at.formula.choice()
    with at.formula.side(choice, 1):
        values = at.at(update, source, inside)
        if combine is not None:
            values = combine(at, at.at(at.inputs[0], at.index, inside), values)
    if not conditions:
        return values
    with at.formula.side(choice, 0):
        base = at.at(at.inputs[0], at.index)
    return where(both(conditions), values, base)


_OPERATIONS: dict[str, Build] = {
    "abs": _function("abs"),
    "add": _operator("+"),
    "and": _logical(lambda x, y: binary("*", x, y)),
    "broadcast_in_dim": _broadcast,
    "ceil": lambda at: binary("-", number(0), call("floor", binary("-", number(0), at.of(0)))),
    "clamp": _clamped,
    "concatenate": _concatenate,
    "convert_element_type": _converted,
    "cos": _function("cos"),
    "div": _operator("/"),
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "eq": _operator("=="),
    "erf_inv": _function("erf_inv"),
    "exp": _function("exp"),
    "exp2": lambda at: call("pow", number(2), at.of(0)),
    "expand_dims": _expand,
    "expm1": _function("expm1"),
    "floor": _function("floor"),
    "gather": _gather,
    "ge": _operator(">="),
    "gt": _operator(">"),
    "integer_pow": _power,
    "iota": _iota,
    "le": _operator("<="),
    "log": _function("log"),
    "log1p": _function("log1p"),
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
    "rem": lambda at: call("mod", at.of(0), at.of(1)),
    "reshape": _reshape,
    "rev": _reversed,
    "rsqrt": lambda at: binary("/", number(1), call("sqrt", at.of(0))),
    "scatter": _scatter(None),
    "scatter-add": _scatter(lambda at, x, y: _combined("+", x, y, at.value.dtype)),
    "scatter-mul": _scatter(lambda at, x, y: _combined("*", x, y, at.value.dtype)),
    "scatter-sub": _scatter(lambda at, x, y: _combined("-", x, y, at.value.dtype)),
    "select_n": _select,
    "sign": lambda at: binary(
        "-", binary(">", at.of(0), number(0)), binary("<", at.of(0), number(0))
    ),
    "sin": _function("sin"),
    "slice": _slice,
    "split": _split,
    "sqrt": _function("sqrt"),
    "square": lambda at: call("pow", at.of(0), number(2)),
    "squeeze": _squeeze,
    "sub": _operator("-"),
    "tanh": _function("tanh"),
    "transpose": _transpose,
    "xor": _logical(lambda x, y: binary("!=", x, y)),
}
