"""Expressions of a spec over the indices of a tensor's elements, and the draws in them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where an operation was called: its name, and the user's line."""

    operation: str
    line: str

    def __str__(self) -> str:
        return f"`{self.operation}` at {self.line}"


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
    """A part of an expression.

    Attributes:
        binds: how tightly; 9 is a call or a name.
        value: if it is a number.
        dtype: a type that it is known to be one of; "" for none.
        exact: what it is rounded from, to that type; None if it is no rounding.
    """

    text: str
    binds: int = 9
    value: float | int | None = None
    dtype: str = ""
    exact: Term | None = None


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


def negative(term: Term) -> Term:
    return binary("-", number(0), term)


def stored(term: Term, dtype: str) -> Term:
    """What a tensor of this type, which rounds, may say instead."""
    return term.exact if term.exact is not None and term.dtype == dtype else term


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

    draw: Any
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


def identity(shape: Sequence[int]) -> tuple[Index, ...]:
    return tuple(Index.of(0, {d: 1}) if n > 1 else Index(0) for d, n in enumerate(shape))


class Divided(Index):
    """A whole number that is known to be divisible."""

    def __init__(self, index: Index, divisor: int) -> None:
        super().__init__(index.constant, index.factors)
        object.__setattr__(self, "divisor", divisor)

    def plus(self, other: Index, times: int = 1) -> Index:
        if not other.factors and times * other.constant == 0:
            return self
        raise NoFormula("an index into every few elements is moved")

    def fixed(self, ranges: Mapping[int, Range]) -> Index:
        return Divided(super().fixed(ranges), self.divisor)  # type: ignore[attr-defined]

    def bounds(self, ranges: Mapping[int, Range]) -> Range:
        low, high = super().bounds(ranges)
        return -(-low // self.divisor), high // self.divisor  # type: ignore[attr-defined]

    def text(self) -> Term:
        return binary("/", super().text(), number(self.divisor))  # type: ignore[attr-defined]


def affine(term: Term, factor: Term | None, summand: Term | None) -> Term:
    if factor is not None:
        term = binary("*", term, factor)
    if summand is None:
        return term
    if summand.value is not None and summand.value < 0:
        return binary("-", term, number(-summand.value))
    return binary("+", term, summand)


def divide(index: Index, by: int, ranges: Mapping[int, Range]) -> tuple[Index, Index]:
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


class Walk:
    """What goes from a tensor back to its draws, and makes an expression on the way.

    Attributes:
        uses: the draws in the expression.
    """

    def __init__(self) -> None:
        self.uses: list[Use] = []
        self._branch: tuple[tuple[int, int], ...] = ()
        self._choices = 0

    def use(self, draw: Any, index: tuple[Index, ...], ranges: Mapping[int, Range]) -> None:
        """Notes that an element of a draw is asked for here."""
        box = tuple(ranges[d] for d in sorted(ranges))
        self.uses.append(Use(draw, index, box, self._branch))

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

    def joined(
        self,
        sizes: Sequence[int],
        dimension: int,
        index: tuple[Index, ...],
        ranges: Mapping[int, Range],
        part: Callable[[int, tuple[Index, ...], dict[int, Range]], Term],
    ) -> Term:
        """An element of tensors of these sizes, one after another along a dimension.

        `part` is asked for that of the n-th, at its own index, for what is within the ranges.
        """
        at = index[dimension]
        start = 0
        choice = self.choice()
        pieces: list[tuple[int, Term]] = []
        for i, n in enumerate(sizes):
            low, high = at.bounds(ranges)
            if low < start + n and high >= start:
                inside = dict(ranges)
                if low < start or high >= start + n:
                    if len(at.factors) != 1 or at.factors[0][1] != 1:
                        raise NoFormula("a part of tensors that are joined")
                    d = at.factors[0][0]
                    inside[d] = (
                        max(ranges[d][0], start - at.constant),
                        min(ranges[d][1], start + n - 1 - at.constant),
                    )
                moved = list(index)
                moved[dimension] = at.plus(Index(start), -1) if n > 1 else Index(0)
                with self.side(choice, start):
                    pieces.append((start + n, part(i, tuple(moved), inside)))
            start += n
        term = pieces[-1][1]
        for end, piece in reversed(pieces[:-1]):
            term = where(binary("<", at.text(), number(end)), piece, term)
        return term

    def padded(
        self,
        before: Sequence[int],
        shape: Sequence[int],
        index: tuple[Index, ...],
        ranges: Mapping[int, Range],
        inside: Callable[[tuple[Index, ...], dict[int, Range]], Term],
        filler: Term,
    ) -> Term:
        """An element of a tensor of this shape, with so many others `before` it, and any behind."""
        moved, conditions, within = list(index), [], dict(ranges)
        for dimension in reversed(range(len(index))):
            at = index[dimension].plus(Index(before[dimension]), -1)
            low, high = at.bounds(ranges)
            n = shape[dimension]
            if low < 0 or high >= n:
                if len(at.factors) != 1 or at.factors[0][1] != 1:
                    raise NoFormula("a part of a tensor that is padded")
                d = at.factors[0][0]
                within[d] = (
                    max(ranges[d][0], -at.constant),
                    min(ranges[d][1], n - 1 - at.constant),
                )
                if low < 0:
                    conditions.append(binary(">=", Term(f"i{d}"), number(-at.constant)))
                if high >= n:
                    conditions.append(binary("<", Term(f"i{d}"), number(n - at.constant)))
            moved[dimension] = at if n > 1 else Index(0)
        return where(both(conditions), inside(tuple(moved), within), filler)
