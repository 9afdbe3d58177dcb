"""What a tensor holds, as an expression of a spec over its elements' indices."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ._values import Apply, Draw, Empty, Gather, Geometry, Literal, Origin, Scatter, Value

Range = tuple[int, int]  # The first and the last of what a variable is.


class NoFormula(Exception):
    """Elements that no expression gives."""

    def __init__(self, problem: str, origin: Origin | None = None) -> None:
        self.origin = origin
        super().__init__(f"{problem}: {origin}" if origin else problem)


@dataclasses.dataclass(frozen=True)
class Index:
    """`constant + Σ factor * i<dimension>`, a whole number."""

    constant: int
    factors: tuple[tuple[int, int], ...] = ()  # (dimension, factor), no factor 0.

    @staticmethod
    def of(constant: int, factors: Mapping[int, int]) -> Index:
        return Index(constant, tuple(sorted((d, f) for d, f in factors.items() if f)))

    def plus(self, other: Index, times: int = 1) -> Index:
        factors = dict(self.factors)
        for d, f in other.factors:
            factors[d] = factors.get(d, 0) + times * f
        return Index.of(self.constant + times * other.constant, factors)

    def bounds(self, ranges: Mapping[int, Range]) -> Range:
        low = high = self.constant
        for d, f in self.factors:
            a, b = ranges[d][0] * f, ranges[d][1] * f
            low, high = low + min(a, b), high + max(a, b)
        return low, high

    def fixed(self, ranges: Mapping[int, Range]) -> Index:
        """The same where variables that have one value are this value."""
        fixed = {d: ranges[d][0] for d, _ in self.factors if ranges[d][0] == ranges[d][1]}
        constant = self.constant + sum(f * fixed.get(d, 0) for d, f in self.factors)
        return Index.of(constant, {d: f for d, f in self.factors if d not in fixed})

    def text(self) -> Term:
        term: Term | None = None
        for d, f in self.factors:
            part = Term(f"i{d}") if f == 1 else binary("*", number(f), Term(f"i{d}"))
            term = part if term is None else binary("+", term, part)
        if term is None:
            return number(self.constant)
        if not self.constant:
            return term
        sign = "+" if self.constant > 0 else "-"
        return binary(sign, term, number(abs(self.constant)))


@dataclasses.dataclass(frozen=True)
class Term:
    """A part of an expression: its text, how tightly it binds, its value if it is a number."""

    text: str
    binds: int = 9
    value: float | int | None = None


_BINDS = {"<": 1, "<=": 1, ">": 1, ">=": 1, "==": 1, "!=": 1, "+": 2, "-": 2, "*": 3, "/": 3}
_FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
}


def number(value: float | int | bool) -> Term:
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NoFormula(f"a spec has no number {value}")
        if (
            value.is_integer()
            and abs(value) < 2**53
            and not (value == 0 and 1 / _signed(value) < 0)
        ):
            value = int(value)
    text = repr(value)
    return Term(text, 4 if text.startswith("-") else 9, value)


def _signed(value: float) -> float:
    return math.copysign(1e-300, value)


def binary(operator: str, left: Term, right: Term) -> Term:
    if left.value is not None and right.value is not None:
        if operator in _FOLDS:
            return number(_FOLDS[operator](left.value, right.value))
        if operator == "/" and right.value != 0:
            return number(left.value / right.value)
    if operator in "*/" and right.value == 1:
        return left
    if operator == "*" and left.value == 1:
        return right
    if operator in "+-" and right.value == 0:
        return left
    if operator == "+" and left.value == 0:
        return right
    binds = _BINDS[operator]
    if operator == "-" and left.value == 0:
        operand = right.text if right.binds > 3 else f"({right.text})"
        return Term(f"-{operand}", 4)
    left_text = left.text if left.binds >= binds and left.binds != 1 else f"({left.text})"
    right_text = right.text if right.binds > binds else f"({right.text})"
    return Term(f"{left_text} {operator} {right_text}", binds)


def call(function: str, *arguments: Term) -> Term:
    return Term(f"{function}({', '.join(argument.text for argument in arguments)})")


def where(condition: Term, yes: Term, no: Term) -> Term:
    if condition.value is not None:
        return yes if condition.value else no
    if yes.text == no.text and "(" not in yes.text:  # Two draws are not one.
        return yes
    return call("where", condition, yes, no)


def both(conditions: Sequence[Term]) -> Term:
    conditions = [c for c in conditions if c.value != 1]
    if not conditions:
        return number(1)
    term = conditions[0]
    for condition in conditions[1:]:
        term = binary("*", term, condition)
    return term


@dataclasses.dataclass(frozen=True)
class Use:
    """A draw in an expression.

    Attributes:
        index: which of its elements, by the element of the tensor.
        ranges: the elements of the tensor for which it is used.
        branch: (a choice, which of its sides) around it.
    """

    draw: Draw
    index: tuple[Index, ...]
    ranges: tuple[Range, ...]
    branch: tuple[tuple[int, int], ...]

    def excludes(self, other: Use) -> bool:
        """No element uses both."""
        sides = dict(self.branch)
        return any(sides.get(choice, side) != side for choice, side in other.branch)

    def bounds(self) -> list[Range]:
        """The draw's elements that are used lie within this box."""
        ranges = dict(enumerate(self.ranges))
        return [i.bounds(ranges) for i in self.index]

    def continues(self, other: Use) -> bool:
        """Each of the tensor's elements uses the same one of the draw, by whichever of both."""
        ranges = {
            d: (max(a[0], b[0]), min(a[1], b[1]))
            for d, (a, b) in enumerate(zip(self.ranges, other.ranges, strict=True))
        }
        return all(
            a.fixed(ranges) == b.fixed(ranges) for a, b in zip(self.index, other.index, strict=True)
        )

    def apart(self, other: Use) -> bool:
        """They use different elements of the draw."""
        return any(
            a[1] < b[0] or b[1] < a[0] for a, b in zip(self.bounds(), other.bounds(), strict=True)
        )

    def once(self) -> bool:
        """Each of the tensor's elements uses another one of the draw."""
        used = {d for i in self.index for d, _ in i.factors}
        return all(low == high or d in used for d, (low, high) in enumerate(self.ranges))


def check_uses(uses: Sequence[Use]) -> None:
    """Whether draws of the spec's own, one for each place in the text, have the same distribution.

    Raises:
        NoFormula: one random number is used more than once.
    """
    for n, use in enumerate(uses):
        if not use.once():
            raise NoFormula("one random number is in several elements", use.draw.origin)
        for other in uses[:n]:
            if other.draw is not use.draw or use.apart(other):
                continue
            if not (use.excludes(other) and use.continues(other)):
                raise NoFormula("one random number is used twice", use.draw.origin)


class Formula:
    """An expression for the elements of a value.

    Attributes:
        term: the expression.
        uses: the draws in it.
    """

    def __init__(self, value: Value) -> None:
        self.uses: list[Use] = []
        self._branch: tuple[tuple[int, int], ...] = ()
        self._choices = 0
        ranges = {d: (0, n - 1) for d, n in enumerate(value.shape)}
        self.term = self._term(value, _identity(value.shape), ranges)
        if "<" in self.term.text and re.search("<[a-z]+>.|.<[a-z]+>", self.term.text):
            raise NoFormula("such random values are changed", self.uses[0].draw.origin)

    def _term(self, value: Value, index: tuple[Index, ...], ranges: dict[int, Range]) -> Term:
        if isinstance(value, Draw):
            return self._draw(value, index, ranges)
        if isinstance(value, Gather):
            return self._term(value.base, _through(value.layout, value.view, index, ranges), ranges)
        if isinstance(value, Scatter):
            return self._scatter(value, index, ranges)
        if isinstance(value, Literal):
            return self._literal(value, index, ranges)
        if isinstance(value, Empty):
            raise NoFormula("memory that nothing is written to", value.origin)
        assert isinstance(value, Apply)
        name = value.function._schema.name.removeprefix("aten::")
        names = [argument.name for argument in value.function._schema.arguments]
        arguments = dict(zip(names, value.args, strict=False)) | value.kwargs
        for argument in value.function._schema.arguments:
            if argument.name not in arguments and argument.has_default_value():
                arguments[argument.name] = argument.default_value
        builder = _OPERATIONS.get(name) or _OPERATIONS.get(name.removesuffix("_"))
        if builder is None:
            raise NoFormula("no expression has this operation", value.origin)
        try:
            return builder(_Context(self, value, index, ranges), arguments)
        except NoFormula as error:
            raise error if error.origin else NoFormula(str(error), value.origin) from None

    @contextlib.contextmanager
    def side(self, choice: int, side: int) -> Iterator[None]:
        """Around what is asked for on one side of a choice."""
        before = self._branch
        self._branch = (*before, (choice, side))
        yield
        self._branch = before

    def choice(self) -> int:
        self._choices += 1
        return self._choices

    def _draw(self, draw: Draw, index: tuple[Index, ...], ranges: dict[int, Range]) -> Term:
        if draw.problem:
            raise NoFormula(draw.problem, draw.origin)
        box = tuple(ranges[d] for d in sorted(ranges))
        self.uses.append(Use(draw, index, box, self._branch))
        p = {key: number(value) for key, value in draw.parameters.items()}
        u = Term("uniform()")
        minus = binary("-", number(0), u)
        match draw.kind:
            case "normal":
                return _affine(Term("normal()"), p.get("std"), p.get("mean"))
            case "log_normal":
                return call("exp", _affine(Term("normal()"), p["std"], p["mean"]))
            case "uniform":
                if "low" not in p:
                    return u
                return _affine(u, binary("-", p["high"], p["low"]), p["low"])
            case "integers":
                span = binary("-", p["high"], p["low"])
                return binary("+", call("floor", binary("*", u, span)), p["low"])
            case "bernoulli":
                return binary("<", u, p["p"])
            case "exponential":
                return binary("/", binary("-", number(0), call("log1p", minus)), p["lambd"])
            case "geometric":
                rate = number(math.log1p(-draw.parameters["p"]))
                return binary(
                    "-",
                    number(0),
                    call("floor", binary("-", number(0), binary("/", call("log1p", minus), rate))),
                )
            case "trunc_normal":
                mean, std = draw.parameters["mean"], draw.parameters["std"]
                # Six standard deviations, at which erf is not 1 yet, are as good as all.
                ends = [(draw.parameters[end] - mean) / std for end in "ab"]
                low, high = (math.erf(min(max(z, -6), 6) / math.sqrt(2)) for z in ends)
                inner = call("erf_inv", _affine(u, number(high - low), number(low)))
                return _affine(inner, number(std * math.sqrt(2)), number(mean))
        if index == _identity(draw.shape):
            return Term(f"<{draw.kind}>")
        raise NoFormula("no expression draws such values", draw.origin)

    def _literal(self, value: Literal, index: tuple[Index, ...], ranges: dict[int, Range]) -> Term:
        low = tuple(i.bounds(ranges)[0] for i in index)
        if all(i.bounds(ranges) == (a, a) for i, a in zip(index, low, strict=True)):
            return number(value.data[low].item())
        if value.data.numel() and bool((value.data == value.data.flatten()[0]).all()):
            return number(value.data.flatten()[0].item())
        if value.data.ndim == 1 and value.data.numel() <= 64:
            numbers = value.data.tolist()
            steps = {b - a for a, b in zip(numbers, numbers[1:], strict=False)}
            where_ = index[0].text()
            if len(steps) == 1 and value.data.dtype == torch.int64:
                return binary("+", binary("*", number(steps.pop()), where_), number(numbers[0]))
            term = number(numbers[-1])
            for i in reversed(range(len(numbers) - 1)):
                term = where(binary("==", where_, number(i)), number(numbers[i]), term)
            return term
        raise NoFormula("numbers from outside", value.origin)

    def _scatter(self, value: Scatter, index: tuple[Index, ...], ranges: dict[int, Range]) -> Term:
        if not any(value.view.size) and value.view.size:
            return self._term(value.base, index, ranges)
        boxes = _boxes(value.layout, value.view)
        if boxes is None:
            raise NoFormula("a part of a tensor that is not a slice is written to", value.origin)
        inside = dict(ranges)
        conditions = []
        source: list[Index] = [Index(0)] * len(value.view.size)
        for i, (start, step, count, dimension) in zip(index, boxes, strict=True):
            last = start + step * (count - 1)
            low, high = i.bounds(ranges)
            if high < start or low > last:
                return self._term(value.base, index, ranges)
            exact = len(i.factors) == 1 and i.factors[0][1] == 1
            if low < start or high > last:
                if not exact:
                    raise NoFormula("a part of a part is written to", value.origin)
                d = i.factors[0][0]
                variable = Term(f"i{d}")
                first, end = start - i.constant, last - i.constant
                inside[d] = (max(first, ranges[d][0]), min(end, ranges[d][1]))
                if inside[d][0] == inside[d][1]:
                    conditions.append(binary("==", variable, number(inside[d][0])))
                else:
                    if low < start:
                        conditions.append(binary(">=", variable, number(first)))
                    if high > last:
                        conditions.append(binary("<=", variable, number(end)))
            offset = i.plus(Index(start), -1)
            if step > 1:
                if not exact:
                    raise NoFormula("every few elements of a part are written to", value.origin)
                rest = call("mod", offset.text(), number(step))
                conditions.append(binary("==", rest, number(0)))
                d = i.factors[0][0]
                if dimension is not None:
                    # i<d> = start + step * j here; j is what the values are indexed by.
                    source[dimension] = _Divided(offset, step)
            elif dimension is not None:
                source[dimension] = offset
        choice = self.choice()
        with self.side(choice, 1):
            values = self._term(value.values, tuple(source), inside)
        if not conditions:
            return values
        with self.side(choice, 0):
            base = self._term(value.base, index, ranges)
        return where(both(conditions), values, base)


def _identity(shape: Sequence[int]) -> tuple[Index, ...]:
    return tuple(Index.of(0, {d: 1}) if n > 1 else Index(0) for d, n in enumerate(shape))


class _Divided(Index):
    """A whole number that is known to be divisible."""

    def __init__(self, index: Index, divisor: int) -> None:
        super().__init__(index.constant, index.factors)
        object.__setattr__(self, "divisor", divisor)

    def plus(self, other: Index, times: int = 1) -> Index:
        if not other.factors and times * other.constant == 0:
            return self
        raise NoFormula("an index into every few elements is moved")

    def fixed(self, ranges: Mapping[int, Range]) -> Index:
        return _Divided(super().fixed(ranges), self.divisor)  # type: ignore[attr-defined]

    def bounds(self, ranges: Mapping[int, Range]) -> Range:
        low, high = super().bounds(ranges)
        return -(-low // self.divisor), high // self.divisor  # type: ignore[attr-defined]

    def text(self) -> Term:
        return binary("/", super().text(), number(self.divisor))  # type: ignore[attr-defined]


def _affine(term: Term, factor: Term | None, summand: Term | None) -> Term:
    if factor is not None:
        term = binary("*", term, factor)
    if summand is None:
        return term
    if summand.value is not None and summand.value < 0:
        return binary("-", term, number(-summand.value))
    return binary("+", term, summand)


def _boxes(layout: Geometry, view: Geometry) -> list[tuple[int, int, int, int | None]] | None:
    """A view as a box: by dimension of the storage (start, step, count, dimension of the view).

    None where it is not a box with each of its dimensions along one of the storage.
    """
    order = sorted(range(len(layout.size)), key=lambda d: (layout.stride[d], layout.size[d]))
    starts = [0] * len(layout.size)
    rest = view.offset - layout.offset
    for d in reversed(order):
        if layout.size[d] > 1:
            starts[d], rest = divmod(rest, layout.stride[d])
    if rest:
        return None
    boxes: list[tuple[int, int, int, int | None]] = [(s, 1, 1, None) for s in starts]
    for dimension, (n, stride) in enumerate(zip(view.size, view.stride, strict=True)):
        if n == 1:
            continue
        for d in reversed(order):
            if layout.size[d] == 1 or not stride or stride % layout.stride[d]:
                continue
            step = stride // layout.stride[d]
            if boxes[d][3] is None and starts[d] + step * (n - 1) < layout.size[d]:
                boxes[d] = (starts[d], step, n, dimension)
                break
        else:
            return None
    return boxes


def _through(
    layout: Geometry, view: Geometry, index: tuple[Index, ...], ranges: Mapping[int, Range]
) -> tuple[Index, ...]:
    """Which element of a storage an element of a view is."""
    flat = Index(view.offset - layout.offset)
    for i, n, stride in zip(index, view.size, view.stride, strict=True):
        if n > 1 and stride:
            if isinstance(i, _Divided):
                raise NoFormula("an index into every few elements is moved")
            flat = flat.plus(i, stride)
    return _unflatten(flat, layout, ranges)


def _unflatten(flat: Index, layout: Geometry, ranges: Mapping[int, Range]) -> tuple[Index, ...]:
    result = [Index(0)] * len(layout.size)
    order = sorted(range(len(layout.size)), key=lambda d: (-layout.stride[d], -layout.size[d]))
    for d in order:
        if layout.size[d] == 1:
            continue
        result[d], flat = _divide(flat, layout.stride[d], ranges)
    return tuple(result)


def _divide(index: Index, by: int, ranges: Mapping[int, Range]) -> tuple[Index, Index]:
    """Quotient and remainder, where both are sums of multiples of variables."""
    whole = Index.of(index.constant // by, {d: f // by for d, f in index.factors if not f % by})
    rest = Index.of(index.constant % by, {d: f for d, f in index.factors if f % by})
    low, high = rest.bounds(ranges)
    if low // by != high // by:
        raise NoFormula("elements in another order than a slice's")
    shift = low // by
    return Index(whole.constant + shift, whole.factors), Index(
        rest.constant - shift * by, rest.factors
    )


@dataclasses.dataclass
class _Context:
    """Where an operation's result is asked for."""

    formula: Formula
    value: Apply
    index: tuple[Index, ...]
    ranges: dict[int, Range]

    def of(self, argument: Any) -> Term:
        """An argument's element at the place of the result's, by broadcasting."""
        if not isinstance(argument, Value):
            return number(argument)
        skip = len(self.index) - len(argument.shape)
        index = tuple(
            Index(0) if n == 1 else i
            for n, i in zip(argument.shape, self.index[skip:], strict=True)
        )
        return self.formula._term(argument, index, self.ranges)

    def at(
        self, argument: Value, index: Sequence[Index], ranges: dict[int, Range] | None = None
    ) -> Term:
        return self.formula._term(argument, tuple(index), ranges or self.ranges)


Arguments = dict[str, Any]


def _operator(operator: str) -> Callable[[_Context, Arguments], Term]:
    return lambda at, a: binary(operator, at.of(a["self"]), at.of(a["other"]))


def _function(name: str) -> Callable[[_Context, Arguments], Term]:
    return lambda at, a: call(name, at.of(a["self"]))


def _sum(operator: str) -> Callable[[_Context, Arguments], Term]:
    def build(at: _Context, a: Arguments) -> Term:
        if operator == "+" and _inner(a["other"], ["log", "neg", "expm1", "neg"]) is a["self"]:
            # The inverse of softplus, for which x is needed once.
            return call("log", call("expm1", at.of(a["self"])))
        other = binary("*", number(a.get("alpha", 1)), at.of(a["other"]))
        if other.value is not None and other.value < 0:
            return binary("-" if operator == "+" else "+", at.of(a["self"]), number(-other.value))
        return binary(operator, at.of(a["self"]), other)

    return build


def _inner(value: Any, operations: Sequence[str]) -> Any:
    """X of f(g(x)), for [f, g]; None for what is made in another way."""
    for operation in operations:
        if not isinstance(value, Apply):
            return None
        if value.function._schema.name.removeprefix("aten::").removesuffix("_") != operation:
            return None
        value = value.args[0]
    return value


def _is_whole(argument: Any) -> bool:
    if isinstance(argument, Value):
        return not argument.dtype.is_floating_point
    return not isinstance(argument, float)


def _divided(at: _Context, a: Arguments) -> Term:
    quotient = binary("/", at.of(a["self"]), at.of(a["other"]))
    match a.get("rounding_mode"):
        case "floor":
            return call("floor", quotient)
        case "trunc":
            return _towards_zero(quotient)
    return quotient


def _towards_zero(term: Term) -> Term:
    if term.value is not None:
        return number(math.trunc(term.value))
    if "(" in term.text or term.binds < 9:
        down = call("floor", call("abs", term))
        if any(name in term.text for name in ("normal()", "uniform()", "bits()")):
            raise NoFormula("random numbers are cut to whole ones")
        return binary(
            "*", down, binary("-", binary(">", term, number(0)), binary("<", term, number(0)))
        )
    return term


def _cast(at: _Context, a: Arguments) -> Term:
    source = a.get("src", a.get("self"))
    term = at.of(source)
    target = at.value.dtype
    if target == torch.bool and getattr(source, "dtype", None) != torch.bool:
        return binary("!=", term, number(0))
    if not target.is_floating_point and not _is_whole(source):
        if term.text.startswith("floor(") and term.text.endswith(")"):
            return term
        return _towards_zero(term)
    if target.is_complex:
        raise NoFormula("complex numbers")
    return term


def _clamp(at: _Context, a: Arguments) -> Term:
    low, high, term = a.get("min"), a.get("max"), at.of(a["self"])
    if low is not None and high is not None:
        return call("clip", term, at.of(low), at.of(high))
    if low is not None:
        return call("max", term, at.of(low))
    return term if high is None else call("min", term, at.of(high))


def _arange(at: _Context, a: Arguments) -> Term:
    step = number(a.get("step", 1))
    return _affine(binary("*", at.index[0].text(), step), None, number(a.get("start", 0)))


def _linspace(at: _Context, a: Arguments) -> Term:
    start, end, steps = a["start"], a["end"], a["steps"]
    if isinstance(start, Value) or isinstance(end, Value) or steps < 2:
        raise NoFormula("a range between tensors")
    step = binary("/", number(end - start), number(steps - 1))
    return _affine(binary("*", at.index[0].text(), step), None, number(start))


def _eye(at: _Context, a: Arguments) -> Term:
    return binary("==", at.index[0].text(), at.index[1].text())


def _triangle(operator: str) -> Callable[[_Context, Arguments], Term]:
    def build(at: _Context, a: Arguments) -> Term:
        row, column = at.index[-2:]
        diagonal = a.get("diagonal", 0)
        condition = binary(operator, column.text(), row.plus(Index(diagonal)).text())
        return where(condition, at.of(a["self"]), number(0))

    return build


def _cat(at: _Context, a: Arguments) -> Term:
    parts = [part for part in a["tensors"] if part.shape != (0,)]
    dimension = a.get("dim", 0) % len(at.index)
    index = at.index[dimension]
    start = 0
    choice = at.formula.choice()
    pieces: list[tuple[int, Term]] = []
    for part in parts:
        n = part.shape[dimension]
        low, high = index.bounds(at.ranges)
        if low < start + n and high >= start:
            ranges = dict(at.ranges)
            if low < start or high >= start + n:
                if len(index.factors) != 1 or index.factors[0][1] != 1:
                    raise NoFormula("a part of tensors that are joined")
                d = index.factors[0][0]
                ranges[d] = (
                    max(ranges[d][0], start - index.constant),
                    min(ranges[d][1], start + n - 1 - index.constant),
                )
            moved = list(at.index)
            moved[dimension] = index.plus(Index(start), -1) if n > 1 else Index(0)
            with at.formula.side(choice, start):
                pieces.append((start + n, at.at(part, moved, ranges)))
        start += n
    term = pieces[-1][1]
    for end, piece in reversed(pieces[:-1]):
        term = where(binary("<", index.text(), number(end)), piece, term)
    return term


def _stack(at: _Context, a: Arguments) -> Term:
    dimension = a.get("dim", 0) % len(at.index)
    index = at.index[dimension]
    rest = [i for d, i in enumerate(at.index) if d != dimension]
    low, high = index.bounds(at.ranges)
    if low != high and (len(index.factors) != 1 or index.factors[0][1] != 1):
        raise NoFormula("a part of tensors that are stacked")
    terms = []
    choice = at.formula.choice()
    for place in range(low, high + 1):
        ranges = dict(at.ranges)
        if low != high:
            d = index.factors[0][0]
            ranges[d] = (place - index.constant, place - index.constant)
        with at.formula.side(choice, place):
            terms.append((place, at.at(a["tensors"][place], rest, ranges)))
    term = terms[-1][1]
    for place, piece in reversed(terms[:-1]):
        term = where(binary("==", index.text(), number(place)), piece, term)
    return term


def _pad(at: _Context, a: Arguments) -> Term:
    source, pads = a["self"], a["pad"]
    index, conditions, ranges = list(at.index), [], dict(at.ranges)
    for k in range(len(pads) // 2):
        dimension = len(index) - 1 - k
        before = pads[2 * k]
        moved = index[dimension].plus(Index(before), -1)
        low, high = moved.bounds(at.ranges)
        n = source.shape[dimension]
        if low < 0 or high >= n:
            if len(moved.factors) != 1 or moved.factors[0][1] != 1:
                raise NoFormula("a part of a tensor that is padded")
            d = moved.factors[0][0]
            ranges[d] = (
                max(ranges[d][0], -moved.constant),
                min(ranges[d][1], n - 1 - moved.constant),
            )
            if low < 0:
                conditions.append(binary(">=", Term(f"i{d}"), number(-moved.constant)))
            if high >= n:
                conditions.append(binary("<", Term(f"i{d}"), number(n - moved.constant)))
        index[dimension] = moved if n > 1 else Index(0)
    return where(both(conditions), at.at(source, index, ranges), number(a.get("value") or 0))


def _flip(at: _Context, a: Arguments) -> Term:
    index = list(at.index)
    for d in a["dims"]:
        index[d] = Index(a["self"].shape[d] - 1).plus(index[d], -1)
    return at.at(a["self"], index)


def _logical(at: _Context, a: Arguments, build: Callable[[Term, Term], Term]) -> Term:
    if not all(getattr(a[k], "dtype", torch.bool) == torch.bool for k in ("self", "other")):
        raise NoFormula("bits of whole numbers")
    return build(at.of(a["self"]), at.of(a["other"]))


def _power(at: _Context, a: Arguments) -> Term:
    base, exponent = at.of(a["self"]), at.of(a["exponent"])
    if exponent.value == 2 and base.binds == 9 and "(" not in base.text:
        return binary("*", base, base)
    return call("pow", base, exponent)


def _choose(at: _Context, condition: Any, yes: Any, no: Any) -> Term:
    choice = at.formula.choice()
    with at.formula.side(choice, 1):
        yes = at.of(yes)
    with at.formula.side(choice, 0):
        no = at.of(no)
    return where(at.of(condition), yes, no)


def _addcmul(at: _Context, a: Arguments) -> Term:
    product = binary("*", at.of(a["tensor1"]), at.of(a["tensor2"]))
    return binary("+", at.of(a["self"]), binary("*", number(a.get("value", 1)), product))


_OPERATIONS: dict[str, Callable[[_Context, Arguments], Term]] = {
    "abs": _function("abs"),
    "add": _sum("+"),
    "addcmul": _addcmul,
    "arange": _arange,
    "bitwise_and": lambda at, a: _logical(at, a, lambda x, y: binary("*", x, y)),
    "bitwise_not": lambda at, a: binary("==", at.of(a["self"]), number(0)),
    "bitwise_or": lambda at, a: _logical(at, a, lambda x, y: call("max", x, y)),
    "cat": _cat,
    "ceil": lambda at, a: binary(
        "-", number(0), call("floor", binary("-", number(0), at.of(a["self"])))
    ),
    "clamp": _clamp,
    "clamp_max": _clamp,
    "clamp_min": _clamp,
    "clone": _cast,
    "constant_pad_nd": _pad,
    "copy": _cast,
    "cos": _function("cos"),
    "detach_copy": _cast,
    "div": _divided,
    "eq": _operator("=="),
    "erfinv": _function("erf_inv"),
    "exp": _function("exp"),
    "expm1": _function("expm1"),
    "eye": _eye,
    "fill": lambda at, a: at.of(a["value"]),
    "flip": _flip,
    "floor": _function("floor"),
    "floor_divide": lambda at, a: call("floor", binary("/", at.of(a["self"]), at.of(a["other"]))),
    "full": lambda at, a: number(a["fill_value"]),
    "full_like": lambda at, a: number(a["fill_value"]),
    "ge": _operator(">="),
    "gt": _operator(">"),
    "le": _operator("<="),
    "linspace": _linspace,
    "log": _function("log"),
    "log1p": _function("log1p"),
    "logical_and": lambda at, a: _logical(at, a, lambda x, y: binary("*", x, y)),
    "logical_not": lambda at, a: binary("==", at.of(a["self"]), number(0)),
    "logical_or": lambda at, a: _logical(at, a, lambda x, y: call("max", x, y)),
    "lt": _operator("<"),
    "masked_fill": lambda at, a: _choose(at, a["mask"], a["value"], a["self"]),
    "maximum": lambda at, a: call("max", at.of(a["self"]), at.of(a["other"])),
    "minimum": lambda at, a: call("min", at.of(a["self"]), at.of(a["other"])),
    "mul": _operator("*"),
    "ne": _operator("!="),
    "neg": lambda at, a: binary("-", number(0), at.of(a["self"])),
    "new_full": lambda at, a: number(a["fill_value"]),
    "new_ones": lambda at, a: number(1),
    "new_zeros": lambda at, a: number(0),
    "ones": lambda at, a: number(1),
    "ones_like": lambda at, a: number(1),
    "pow": _power,
    "reciprocal": lambda at, a: binary("/", number(1), at.of(a["self"])),
    "remainder": lambda at, a: call("mod", at.of(a["self"]), at.of(a["other"])),
    "rsqrt": lambda at, a: binary("/", number(1), call("sqrt", at.of(a["self"]))),
    "rsub": lambda at, a: binary("-", at.of(a["other"]), at.of(a["self"])),
    "scalar_tensor": lambda at, a: number(a["s"]),
    "sin": _function("sin"),
    "sqrt": _function("sqrt"),
    "square": lambda at, a: call("pow", at.of(a["self"]), number(2)),
    "stack": _stack,
    "sub": _sum("-"),
    "tanh": _function("tanh"),
    "_to_copy": _cast,
    "to": _cast,
    "tril": _triangle("<="),
    "triu": _triangle(">="),
    "where": lambda at, a: _choose(at, a["condition"], a["self"], a["other"]),
    "zero": lambda at, a: number(0),
    "zeros": lambda at, a: number(0),
    "zeros_like": lambda at, a: number(0),
}
