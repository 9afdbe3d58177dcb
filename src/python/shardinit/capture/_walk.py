"""Walks from a tensor of any framework back to its draws, and builds an expression."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ._expression import (
    Divided,
    Index,
    NoFormula,
    Origin,
    Range,
    Term,
    binary,
    both,
    call,
    number,
    where,
)

Ranges = dict[int, Range]  # For each variable of an expression, the requested indices.
Indices = tuple[Index, ...]  # A value's element for each element of the tensor.
Part = Callable[[Indices, Ranges], Term]  # Returns an element at an index, for some ranges.
PartOf = Callable[[int, Indices, Ranges], Term]  # The same for one of several values.


@dataclasses.dataclass(frozen=True)
class Use:
    """A draw in an expression.

    Attributes:
        index: the draw's element for each element of the tensor.
        ranges: the elements of the tensor for which it is used.
        branch: the choices around it, each with its side.
    """

    draw: Any
    index: Indices
    ranges: tuple[Range, ...]
    branch: tuple[tuple[int, int], ...]

    def is_exclusive(self, other: Use) -> bool:
        """Returns whether no element uses both."""
        sides = dict(self.branch)
        return any(sides.get(choice, side) != side for choice, side in other.branch)

    def bounds(self) -> list[Range]:
        """Returns the box that contains the draw's used elements."""
        ranges = dict(enumerate(self.ranges))
        return [i.bounds(ranges) for i in self.index]

    def is_same_index(self, other: Use) -> bool:
        """Returns whether each tensor element uses the same element of the draw in both uses."""
        ranges = {
            d: (max(a[0], b[0]), min(a[1], b[1]))
            for d, (a, b) in enumerate(zip(self.ranges, other.ranges, strict=True))
        }
        return all(
            a.fixed(ranges) == b.fixed(ranges) for a, b in zip(self.index, other.index, strict=True)
        )

    def is_disjoint(self, other: Use) -> bool:
        """Returns whether both use different elements of the draw."""
        return any(
            a[1] < b[0] or b[1] < a[0] for a, b in zip(self.bounds(), other.bounds(), strict=True)
        )

    def is_injective(self) -> bool:
        """Returns whether each element of the tensor uses another element of the draw."""
        used = {d for i in self.index for d, _ in i.factors}
        return all(low == high or d in used for d, (low, high) in enumerate(self.ranges))


def check_uses(uses: Sequence[Use]) -> None:
    """Raises NoFormula if a number is used twice, since a spec would draw it again each time."""
    for n, use in enumerate(uses):
        if not use.is_injective():
            raise NoFormula("one random number is in several elements", use.draw.origin)
        for other in uses[:n]:
            if other.draw is not use.draw or use.is_disjoint(other):
                continue
            if not (use.is_exclusive(other) and use.is_same_index(other)):
                raise NoFormula("one random number is used twice", use.draw.origin)


_STEPS = 1 << 14  # Longer expressions would be too long as text, too.


class Walk:
    """Goes from a tensor back to its draws, and builds an expression on the way.

    Attributes:
        uses: the draws in the expression.
    """

    def __init__(self) -> None:
        self.uses: list[Use] = []
        self._steps = 0
        self._branch: tuple[tuple[int, int], ...] = ()
        self._choices = 0

    def use(self, draw: Any, index: Indices, ranges: Mapping[int, Range]) -> None:
        """Records that an element of a draw is requested here."""
        box = tuple(ranges[d] for d in sorted(ranges))
        self.uses.append(Use(draw, index, box, self._branch))

    def of(self, value: Any, index: Indices, ranges: Ranges) -> Term:
        """Returns one element of a value."""
        raise NotImplementedError

    def step(self, value: Any) -> None:
        """Counts an operation; raises NoFormula if there are too many."""
        self._steps += 1
        if self._steps > _STEPS:
            raise NoFormula(f"its expression has more than {_STEPS} operations", value.origin)

    @contextlib.contextmanager
    def side(self, choice: int, side: int) -> Iterator[None]:
        """Marks the requests in this block as one side of a choice."""
        before = self._branch
        self._branch = (*before, (choice, side))
        yield
        self._branch = before

    def choice(self) -> int:
        self._choices += 1
        return self._choices

    def joined(
        self, sizes: Sequence[int], dimension: int, index: Indices, ranges: Ranges, part: PartOf
    ) -> Term:
        """Returns an element of tensors of these sizes, one after another along a dimension.

        `part` returns an element of the n-th tensor, at the tensor's own index, for these ranges.
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
                    what = "a part of tensors that are joined"
                    d, inside[d] = _narrowed(at, start, start + n - 1, ranges, what)
                moved = list(index)
                moved[dimension] = at.plus(Index(start), -1) if n > 1 else Index(0)
                with self.side(choice, start):
                    pieces.append((start + n, part(i, tuple(moved), inside)))
            start += n
        term = pieces[-1][1]
        for end, piece in reversed(pieces[:-1]):
            term = where(binary("<", at.text(), number(end)), piece, term)
        return term


def is_variable(at: Index) -> bool:
    """Returns whether an index is one of the expression's variables, perhaps plus a number."""
    return type(at) is Index and len(at.factors) == 1 and at.factors[0][1] == 1


def _narrowed(
    at: Index, first: int, last: int, ranges: Ranges, what: str, origin: Origin | None = None
) -> tuple[int, Range]:
    """Returns the variable of an index, and its range in which the index is from `first` to `last`.

    Raises NoFormula for an index that is more than a variable; its message calls the index `what`.
    """
    if not is_variable(at):
        raise NoFormula(what, origin)
    d = at.factors[0][0]
    return d, (max(ranges[d][0], first - at.constant), min(ranges[d][1], last - at.constant))


@dataclasses.dataclass
class At:
    """A place at which the result of an operation is requested.

    Attributes:
        formula: the formula that requests it.
        value: the result.
        index: the index of the element.
        ranges: the indices of the tensor for which it is requested.
    """

    formula: Walk
    value: Any
    index: Indices
    ranges: Ranges

    def at(self, value: Any, index: Sequence[Index], ranges: Ranges | None = None) -> Term:
        """Returns an element of another value."""
        fixed = tuple(Index(0) if n == 1 else i for n, i in zip(value.shape, index, strict=True))
        return self.formula.of(value, fixed, ranges or self.ranges)

    def built(self, operations: Mapping[str, Callable[[Any], Term]], name: str) -> Term:
        """Returns the element, by the operation `name`; raises NoFormula if it is unknown."""
        build = operations.get(name)
        if build is None:
            raise NoFormula("no expression has this operation", self.value.origin)
        try:
            return build(self)
        except NoFormula as error:
            raise error if error.origin else NoFormula(str(error), self.value.origin) from None

    def joined(self, values: Sequence[Any], dimension: int) -> Term:
        """Returns an element of values, one after another along a dimension."""
        return self.formula.joined(
            [value.shape[dimension] for value in values],
            dimension,
            self.index,
            self.ranges,
            lambda n, index, ranges: self.at(values[n], index, ranges),
        )

    def padded(self, value: Any, before: Sequence[int], filler: Term) -> Term:
        """Returns an element of a value after `before` other elements along each dimension."""
        moved, conditions, within = list(self.index), [], dict(self.ranges)
        for dimension in reversed(range(len(moved))):
            at = moved[dimension].plus(Index(before[dimension]), -1)
            low, high = at.bounds(self.ranges)
            n = value.shape[dimension]
            if low < 0 or high >= n:
                what = "a part of a tensor that is padded"
                d, within[d] = _narrowed(at, 0, n - 1, self.ranges, what)
                if low < 0:
                    conditions.append(binary(">=", Term(f"i{d}"), number(-at.constant)))
                if high >= n:
                    conditions.append(binary("<", Term(f"i{d}"), number(n - at.constant)))
            moved[dimension] = at
        return where(both(conditions), self.at(value, moved, within), filler)

    def overwritten(
        self,
        boxes: Sequence[tuple[int, int, int, int | None]],
        rank: int,
        base: Callable[[Ranges], Term],
        values: Part,
    ) -> Term:
        """Returns an element of a tensor of which a box was overwritten with values.

        Args:
            boxes: for each dimension of the tensor, the box's start, step and count, and the
                dimension of the values along it, if there is one.
            rank: the number of dimensions of the values.
            base: returns the previous element, for some ranges.
            values: returns an element of the values, at its own index.
        """
        inside, conditions, origin = dict(self.ranges), [], self.value.origin
        narrowed: list[int] = []
        source = [Index(0)] * rank
        for i, (start, step, count, dimension) in zip(self.index, boxes, strict=True):
            last = start + step * (count - 1)
            low, high = i.bounds(self.ranges)
            if high < start or low > last:
                return base(self.ranges)
            if low < start or high > last:
                what = "a part of a part is written to"
                d, inside[d] = _narrowed(i, start, last, self.ranges, what, origin)
                narrowed.append(d)
                variable = Term(f"i{d}")
                if inside[d][0] == inside[d][1]:
                    conditions.append(binary("==", variable, number(inside[d][0])))
                else:
                    if low < start:
                        conditions.append(binary(">=", variable, number(start - i.constant)))
                    if high > last:
                        conditions.append(binary("<=", variable, number(last - i.constant)))
            offset = i.plus(Index(start), -1)
            if step > 1:
                narrowed.append(-1)
                if not is_variable(i):
                    raise NoFormula("every few elements of a part are written to", origin)
                rest = call("mod", offset.text(), number(step))
                conditions.append(binary("==", rest, number(0)))
                offset = Divided(offset.constant, offset.factors, step)
            if dimension is not None:
                source[dimension] = offset
        choice = self.formula.choice()
        with self.formula.side(choice, 1):
            term = values(tuple(source), inside)
        if not conditions:
            return term
        left = dict(self.ranges)
        if len(narrowed) == 1 and narrowed[0] >= 0:  # Perhaps only one end is left.
            (low, high), (first, last) = left[narrowed[0]], inside[narrowed[0]]
            if first == low:
                left[narrowed[0]] = last + 1, high
            elif last == high:
                left[narrowed[0]] = low, first - 1
        with self.formula.side(choice, 0):
            return where(both(conditions), term, base(left))

    def flipped(self, value: Any, dimensions: Sequence[int]) -> Term:
        """Returns an element of a value whose order is reversed along some dimensions."""
        index = list(self.index)
        for d in dimensions:
            index[d] = Index(value.shape[d] - 1).plus(index[d], -1)
        return self.at(value, index)

    def chosen(
        self, condition: Callable[[], Term], yes: Callable[[], Term], no: Callable[[], Term]
    ) -> Term:
        """Returns an element of one of two values."""
        choice = self.formula.choice()
        with self.formula.side(choice, 1):
            first = yes()
        with self.formula.side(choice, 0):
            second = no()
        return where(condition(), first, second)
