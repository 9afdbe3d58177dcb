"""Builds spec expressions over the indices of a tensor's elements, with draws in them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator as op
from collections.abc import Callable, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Origin:
    """The origin of a value: an operation's name, and the user's line that called it."""

    operation: str
    line: str

    def __str__(self) -> str:
        return f"`{self.operation}` at {self.line}"


Range = tuple[int, int]  # The first and the last value of a variable.


class NoFormula(Exception):
    """No expression gives the elements."""

    def __init__(self, problem: str, origin: Origin | None = None) -> None:
        self.origin = origin
        super().__init__(f"{problem}: {origin}" if origin else problem)


@dataclasses.dataclass(frozen=True)
class Index:
    """The integer `constant + Σ factor * i<dimension>`."""

    constant: int
    factors: tuple[tuple[int, int], ...] = ()  # Pairs (dimension, factor), without factors of 0.

    @staticmethod
    def of(constant: int, factors: Mapping[int, int]) -> Index:
        return Index(constant, tuple(sorted((d, f) for d, f in factors.items() if f)))

    def plus(self, other: Index, times: int = 1) -> Index:
        if type(other) is not Index:
            raise NoFormula("chosen elements, or every few of them, are moved")
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
        """Returns an equal index, in which variables with a single value are replaced by it."""
        fixed = {d: ranges[d][0] for d, _ in self.factors if ranges[d][0] == ranges[d][1]}
        constant = self.constant + sum(f * fixed.get(d, 0) for d, f in self.factors)
        return Index.of(constant, {d: f for d, f in self.factors if d not in fixed})

    def text(self) -> Term:
        term = number(0)
        for d, f in self.factors:
            term = binary("+", term, binary("*", number(f), Term(f"i{d}")))
        sign = "+" if self.constant >= 0 else "-"
        return binary(sign, term, number(abs(self.constant)))


@dataclasses.dataclass(frozen=True)
class Divided(Index):
    """The quotient of an index all of whose values are divisible."""

    divisor: int = 1

    def plus(self, other: Index, times: int = 1) -> Index:
        if not other.factors and times * other.constant == 0:
            return self
        raise NoFormula("chosen elements, or every few of them, are moved")

    def fixed(self, ranges: Mapping[int, Range]) -> Index:
        whole = super().fixed(ranges)
        return Divided(whole.constant, whole.factors, self.divisor)

    def bounds(self, ranges: Mapping[int, Range]) -> Range:
        low, high = super().bounds(ranges)
        return -(-low // self.divisor), high // self.divisor

    def text(self) -> Term:
        return binary("/", super().text(), number(self.divisor))


@dataclasses.dataclass(frozen=True)
class Looked(Index):
    """A number from a table: the entry at index `at`.

    `factors` are the factors of `at` if all numbers are distinct, and empty otherwise.
    """

    table: tuple[int, ...] = ()
    at: Index = Index(0)

    @staticmethod
    def up(table: Sequence[int], at: Index, is_once: bool = False) -> Index:
        """Returns the index that is this entry of the table; a sum if its numbers have equal steps.

        `is_once` means that the requested numbers are distinct.
        """
        steps = {b - a for a, b in itertools.pairwise(table)}
        if len(steps) <= 1 and type(at) is Index:
            return Index(table[0]).plus(at, steps.pop() if steps else 0)
        factors = at.factors if is_once or len(set(table)) == len(table) else ()
        return Looked(0, factors, tuple(table), at)

    def plus(self, other: Index, times: int = 1) -> Index:
        if other.factors:
            raise NoFormula("chosen elements, or every few of them, are moved")
        return dataclasses.replace(
            self, table=tuple(n + times * other.constant for n in self.table)
        )

    def fixed(self, ranges: Mapping[int, Range]) -> Index:
        at = self.at.fixed(ranges)
        return dataclasses.replace(self, at=at) if at.factors else Index(self.table[at.constant])

    def bounds(self, ranges: Mapping[int, Range]) -> Range:
        first, last = self.at.bounds(ranges)
        some = self.table[first : last + 1]
        return min(some), max(some)

    def text(self) -> Term:
        at, table = self.at.text(), self.table
        # Entries with equal steps are one piece: (first place, first number, step).
        pieces: list[tuple[int, int, int]] = []
        for place, n in enumerate(table):
            if pieces and (begin := pieces[-1])[1] + begin[2] * (place - begin[0]) == n:
                continue
            step = table[place + 1] - n if place + 1 < len(table) else 0
            pieces.append((place, n, step))
        ends = [place for place, _, _ in pieces[1:]]
        *others, term = [
            binary("+", binary("*", binary("-", at, number(place)), number(step)), number(n))
            if step
            else number(n)
            for place, n, step in pieces
        ]
        for end, other in reversed(list(zip(ends, others, strict=True))):
            term = where(binary("<", at, number(end)), other, term)
        return term


@dataclasses.dataclass(frozen=True)
class Term:
    """A part of an expression.

    Attributes:
        binds: how tightly its operator binds; 9 is a call or a name.
        value: the term's number, if the term is a number.
        dtype: a type that certainly holds the term; "" if none is known.
        exact: the term before rounding to that type; None if this term is not a rounding.
    """

    text: str
    binds: int = 9
    value: float | int | None = None
    dtype: str = ""
    exact: Term | None = None


_BINDS = {"<": 1, "<=": 1, ">": 1, ">=": 1, "==": 1, "!=": 1, "+": 2, "-": 2, "*": 3, "/": 3}
_FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "+": op.add, "-": op.sub, "*": op.mul,
    "<": op.lt, "<=": op.le, ">": op.gt, ">=": op.ge, "==": op.eq, "!=": op.ne,
}  # fmt: skip


def number(value: float | int | bool) -> Term:
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NoFormula(f"a spec has no number {value}")
        is_negative_zero = value == 0 and math.copysign(1, value) < 0
        if value.is_integer() and abs(value) < 2**53 and not is_negative_zero:
            value = int(value)
    text = repr(value)
    return Term(text, 4 if text.startswith("-") else 9, value)


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
    """Returns a term with the same elements in a tensor of this type, whose storage rounds, too."""
    return term.exact if term.exact is not None and term.dtype == dtype else term


def where(condition: Term, yes: Term, no: Term) -> Term:
    if condition.value is not None:
        return yes if condition.value else no
    if yes.text == no.text and "(" not in yes.text:  # Two draws with equal text are still two.
        return yes
    return call("where", condition, yes, no)


def both(conditions: Sequence[Term]) -> Term:
    return functools.reduce(functools.partial(binary, "*"), conditions, number(1))


def identity(shape: Sequence[int]) -> tuple[Index, ...]:
    return tuple(Index.of(0, {d: 1}) if n > 1 else Index(0) for d, n in enumerate(shape))


def affine(term: Term, factor: Term | None, summand: Term | None) -> Term:
    if factor is not None:
        term = binary("*", term, factor)
    if summand is None:
        return term
    if summand.value is not None and summand.value < 0:
        return binary("-", term, number(-summand.value))
    return binary("+", term, summand)


def divide(index: Index, by: int, ranges: Mapping[int, Range]) -> tuple[Index, Index]:
    """Returns the quotient and the remainder, if both are sums of multiples of variables."""
    whole = Index.of(index.constant // by, {d: f // by for d, f in index.factors if not f % by})
    rest = Index.of(index.constant % by, {d: f for d, f in index.factors if f % by})
    low, high = rest.bounds(ranges)
    if low // by != high // by:
        raise NoFormula("elements in another order than a slice's")
    shift = low // by
    return whole.plus(Index(shift)), rest.plus(Index(-shift * by))


def chosen(at: Term, terms: Sequence[tuple[int, Term]]) -> Term:
    """Returns the term that `terms`, pairs of number and term, has for the value of `at`."""
    *others, (_, term) = terms
    for place, other in reversed(others):
        term = where(binary("==", at, number(place)), other, term)
    return term


def truncated_normal(low: float, high: float, std: float = 1, mean: float = 0) -> Term:
    """Returns truncated normal numbers; the bounds are in standard deviations."""
    # Bounds beyond six standard deviations have no effect, and at six erf is not yet 1.
    ends = [math.erf(min(max(z, -6), 6) / math.sqrt(2)) for z in (low, high)]
    unit = affine(Term("uniform()"), number(ends[1] - ends[0]), number(ends[0]))
    return affine(call("erf_inv", unit), number(std * math.sqrt(2)), number(mean))


def shortest(value: float, is_good: Callable[[float], bool]) -> float:
    """Returns the shortest number near a value for which `is_good` is true; else the value."""
    tries = (float(f"{value:.{digits}g}") for digits in range(1, 18))
    return next(filter(is_good, tries), value)
