"""Converts a PyTorch value to a spec's expression over the indices of its elements."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence

import torch

from ._expression import (
    Index,
    NoFormula,
    Range,
    Term,
    affine,
    binary,
    call,
    chosen,
    divide,
    identity,
    negative,
    number,
    truncated_normal,
)
from ._operations import CHOOSES, OPERATIONS, Operation
from ._reduced import TORCH_CPU_HAS_THEM
from ._stream import GROUP, Words, is_one_round
from ._torch_numbers import rounded, torch_term
from ._values import (
    Apply,
    Draw,
    Empty,
    Gather,
    Geometry,
    Literal,
    Scatter,
    Value,
    evaluate,
    first_draw,
)
from ._walk import At, Ranges, Walk

_LOOKED_AT = 1 << 16  # Larger values are not checked for being constant.


class Formula(Walk):
    """An expression for the elements of a value.

    Args:
        value: the value that has the elements.
        fixed: a function for the engine torch_cpu, which has PyTorch's own numbers; else None. It
            returns an expression, exact to the bit, for values without random numbers. With it, a
            number may be used as often as in the constructor, and is rounded between operations as
            in PyTorch.
        table: a similar function for other engines, for values that have no other expression.

    Attributes:
        along: the dimension along which its vectors are normalized, if it is such a draw.
        term: the expression.
        uses: the draws in it.
        marks: placeholder in the expression → the place in PyTorch's stream that it represents.
    """

    def __init__(
        self,
        value: Value,
        fixed: Callable[[Value], str] | None = None,
        table: Callable[[Value], str] | None = None,
    ) -> None:
        super().__init__()
        self.marks: dict[str, Words] = {}
        self.along = 0
        self.rounds = fixed is not None
        self._fixed, self._table = fixed, table
        self._no_pieces: set[int] = set()  # Ids of values that are not written piece by piece.
        self._unwritten, self._unwritten_at = "memory that nothing is written to", None
        if value.random:
            self._unwritten = "it is drawn in parts that no expression joins"
            self._unwritten_at = first_draw(value).origin
        ranges = {d: (0, n - 1) for d, n in enumerate(value.shape)}
        try:
            self.term = self.of(value, identity(value.shape), ranges)
        except RecursionError:
            why = "its expression has too many operations in one another"
            raise NoFormula(why, value.origin) from None
        text = re.sub(r"<normalized>( \* [\d.e-]+)?$", "", self.term.text)
        if "<" in text and re.search("<[a-z]+>.|.<[a-z]+>", text):
            why = "such random values are changed"
            if "<orthogonal>" in text or "<sparse>" in text:
                why += f" or are a part of a tensor, but {TORCH_CPU_HAS_THEM}"
            raise NoFormula(why, self.uses[0].draw.origin)

    def is_constant(self) -> bool:
        """Returns whether the elements contain no random numbers."""
        return not self.uses or self.term.value is not None

    def of(self, value: Value, index: tuple[Index, ...], ranges: Ranges) -> Term:
        """Returns one element of a value."""
        self.step(value)
        if value.random or self._table is None or isinstance(value, Empty):
            return self._of(value, index, ranges)
        try:
            return self._of(value, index, ranges)
        except NoFormula:
            return _reindexed(self._table(value), index)

    def _of(self, value: Value, index: tuple[Index, ...], ranges: Ranges) -> Term:
        if isinstance(value, Draw):
            return self._draw(value, index, ranges)
        if isinstance(value, Empty):
            raise NoFormula(self._unwritten, self._unwritten_at or value.origin)
        if self._fixed is not None and not value.random and value.dtype.is_floating_point:
            constant = _constant(value)
            if constant is not None:
                return number(constant)
            return rounded(_reindexed(self._fixed(value), index), value.dtype)
        if isinstance(value, Gather):
            base = value.base
            if self.rounds and isinstance(base, Draw) and _in_memory(base, value.layout):
                # Elements of a storage are in the order in which they were drawn.
                flat = _place(value.layout, value.view, index)
                return self._draw(base, index, ranges, flat.text())
            base, index = self.gathered(value, index, ranges)
            return self.of(base, index, ranges)
        if isinstance(value, Scatter):
            return self._scatter(value, index, ranges)
        if isinstance(value, Literal):
            return self._literal(value, index, ranges)
        assert isinstance(value, Apply)
        names = [argument.name for argument in value.function._schema.arguments]
        arguments = dict(zip(names, value.args, strict=False)) | value.kwargs
        for argument in value.function._schema.arguments:
            if argument.name not in arguments and argument.has_default_value():
                arguments[argument.name] = argument.default_value
        term = Operation(self, value, index, ranges, arguments).built(OPERATIONS, value.name)
        chooses = value.name in CHOOSES and term.value is None
        return rounded(term, value.dtype) if self.rounds and not chooses else term

    def gathered(
        self, value: Gather, index: tuple[Index, ...], ranges: Ranges
    ) -> tuple[Value, tuple[Index, ...]]:
        """Returns the base of a view, and the index of the view's element there."""
        flat = _place(value.layout, value.view, index)
        return value.base, _unflatten(flat, value.layout, ranges)

    def mark(self, words: Words) -> Term:
        """Returns the placeholder for a place of PyTorch's stream."""
        for name, other in self.marks.items():
            if other == words:
                return Term(name)
        name = f"@{len(self.marks)}@"
        self.marks[name] = words
        return Term(name)

    def _draw(
        self, draw: Draw, index: tuple[Index, ...], ranges: Ranges, flat: Term | None = None
    ) -> Term:
        if draw.problem:
            raise NoFormula(draw.problem, draw.origin)
        if draw.place.again and not self.rounds:
            raise NoFormula("numbers are drawn that were drawn before", draw.origin)
        self.use(draw, index, ranges)
        if self.rounds:
            return torch_term(draw, _draw_index(draw, index) if flat is None else flat, self.mark)
        p = {key: number(value) for key, value in draw.parameters.items()}
        u = Term("uniform()")
        minus = negative(u)
        match draw.kind:
            case "normal":
                return affine(Term("normal()"), p.get("std"), p.get("mean"))
            case "log_normal":
                return call("exp", affine(Term("normal()"), p["std"], p["mean"]))
            case "uniform":
                if "low" not in p:
                    return u
                return affine(u, binary("-", p["high"], p["low"]), p["low"])
            case "integers":
                span = binary("-", p["high"], p["low"])
                return binary("+", call("floor", binary("*", u, span)), p["low"])
            case "bernoulli":
                return binary("<", u, p["p"])
            case "exponential":
                return binary("/", negative(call("log1p", minus)), p["lambd"])
            case "geometric":
                rate = number(math.log1p(-draw.parameters["p"]))
                return negative(call("floor", negative(binary("/", call("log1p", minus), rate))))
            case "trunc_normal":
                mean, std = draw.parameters["mean"], draw.parameters["std"]
                if std == 0:
                    raise NoFormula("truncated numbers whose std is 0", draw.origin)
                low, high = ((draw.parameters[end] - mean) / std for end in "ab")
                return truncated_normal(low, high, std, mean)
        if index == identity(draw.shape) and draw.kind in ("orthogonal", "sparse"):
            return Term(f"<{draw.kind}>")
        why = "no expression draws such values"
        if draw.kind == "orthogonal":
            why = f"parts of an orthogonal matrix, but {TORCH_CPU_HAS_THEM}"
        raise NoFormula(why, draw.origin)

    def _literal(self, value: Literal, index: tuple[Index, ...], ranges: Ranges) -> Term:
        low = tuple(i.bounds(ranges)[0] for i in index)
        if all(i.bounds(ranges) == (a, a) for i, a in zip(index, low, strict=True)):
            return number(value.data[low].item())
        if value.data.numel() and bool((value.data == value.data.flatten()[0]).all()):
            return number(value.data.flatten()[0].item())
        if value.data.ndim == 1 and value.data.numel() <= 64:
            numbers = value.data.tolist()
            steps = {b - a for a, b in itertools.pairwise(numbers)}
            at = index[0].text()
            if len(steps) == 1 and value.data.dtype == torch.int64:
                return binary("+", binary("*", number(steps.pop()), at), number(numbers[0]))
            return chosen(at, list(enumerate(map(number, numbers))))
        raise NoFormula("numbers from outside", value.origin)

    def _scatter(self, value: Scatter, index: tuple[Index, ...], ranges: Ranges) -> Term:
        if not any(value.view.size) and value.view.size:
            return self.of(value.base, index, ranges)
        if id(value) not in self._no_pieces:
            dimension, pieces = _pieces(value, self._no_pieces)
            if pieces:
                return self._of_pieces(pieces, dimension, index, ranges)
        boxes = _boxes(value.layout, value.view)
        if boxes is None:
            raise NoFormula("a part of a tensor that is not a slice is written to", value.origin)
        return At(self, value, index, ranges).overwritten(
            boxes,
            len(value.view.size),
            lambda rest: self.of(value.base, index, rest),
            lambda source, inside: self.of(value.values, source, inside),
        )


    def _of_pieces(
        self, pieces: Sequence[_Piece], dimension: int, index: tuple[Index, ...], ranges: Ranges
    ) -> Term:
        """Returns an element of a tensor that was written piece by piece along a dimension."""
        low, high = index[dimension].bounds(ranges)
        if self.rounds and low < high:
            term = self._one_draw(pieces, dimension, index, ranges)
            if term is not None:
                return term
        terms: list[Term] = []

        def part(n: int, inside: tuple[Index, ...], ranges: Ranges) -> Term:
            terms.append(self.of(pieces[n].values, pieces[n].source(inside), ranges))
            return terms[-1]

        counts = [piece.boxes[dimension][2] for piece in pieces]
        whole = self.joined(counts, dimension, index, ranges, part)
        # Without PyTorch's own numbers, draws of one distribution become one draw.
        is_one = not self.rounds and len({term.text for term in terms}) == 1
        return terms[0] if is_one and "<" not in terms[0].text else whole

    def _one_draw(
        self, pieces: Sequence[_Piece], dimension: int, index: tuple[Index, ...], ranges: Ranges
    ) -> Term | None:
        """Treats pieces drawn at equal distances in the stream as one draw; returns an element."""
        draws = [piece.values for piece in pieces if isinstance(piece.values, Draw)]
        if len(draws) < len(pieces) or len(draws) < 2:
            return None
        first, second = draws[:2]
        grouped = first.kind == "normal" or (
            first.kind == "trunc_normal" and is_one_round(first.parameters, first.place.pairs)
        )
        size = math.prod(first.shape)
        words = 2 if first.dtype == torch.float64 else 1
        step, rest = divmod(second.place.position.count - first.place.position.count, words)
        # Normal numbers are drawn in groups.
        unit = GROUP if grouped else 1
        if first.kind != "uniform" and (not grouped or first.place.pairs):
            return None
        if rest or step < size or step % unit or size % unit:
            return None
        for n, (draw, piece) in enumerate(zip(draws, pieces, strict=True)):
            place = dataclasses.replace(
                first.place,
                position=first.place.position.plus(n * step * words),
                spare=draw.place.spare,
                end=draw.place.end,
                left=draw.place.left,
            )
            same = (draw.kind, draw.shape, draw.dtype, draw.parameters, draw.problem)
            if piece.boxes[dimension][2] > 1 or draw.place != place or draw.problem or same != (
                first.kind, first.shape, first.dtype, first.parameters, first.problem
            ):  # fmt: skip
                return None
        source = pieces[0].source(index)
        for draw in draws:
            self.use(draw, source, ranges)
        count = step * (len(draws) - 1) + size
        at = dataclasses.replace(first.place, spare=None, strides=(step, *first.place.strides))
        whole = dataclasses.replace(first, shape=(count,), place=at)
        return torch_term(whole, _draw_index(whole, (index[dimension], *source)), self.mark)


@dataclasses.dataclass
class _Piece:
    """A part of a tensor that was overwritten; see `_boxes`."""

    values: Value
    boxes: list[_Box]

    def source(self, index: Sequence[Index]) -> tuple[Index, ...]:
        """Returns the index of the values for the index of an element within the piece."""
        source = [Index(0)] * len(self.values.shape)
        for i, (_, _, count, dimension) in zip(index, self.boxes, strict=True):
            if dimension is not None and count > 1:
                source[dimension] = i
        return tuple(source)


def _pieces(top: Scatter, others: set[int]) -> tuple[int, list[_Piece]]:
    """Returns the pieces, along a dimension, in which a whole tensor was written.

    The list is empty for tensors that are made in another way; their parts are added to `others`.
    """
    found: dict[int, _Piece] = {}
    layout, dimension = top.layout, -1
    value: Value = top
    ends: dict[int, int] = {}
    while isinstance(value, Scatter) and value.layout == layout:
        boxes = _boxes(layout, value.view)
        if boxes is None:
            break
        parts = [d for d, n in enumerate(layout.size) if boxes[d][:3] != (0, 1, n)]
        dimension = parts[0] if dimension < 0 and parts else dimension
        if parts != [dimension] or boxes[dimension][1] != 1:
            break
        start, end = boxes[dimension][0], boxes[dimension][0] + boxes[dimension][2]
        over = [s for s in ends if start < ends[s] and s < end]
        if not over:
            found[start], ends[start] = _Piece(value.values, boxes), end
        elif not (over[0] <= start and end <= ends[over[0]]):
            break  # A part of the overlapped piece is still visible.
        if sum(ends.values()) - sum(ends) == layout.size[dimension]:
            return dimension, [found[s] for s in sorted(found)]
        others.add(id(value))
        value = value.base
    others.add(id(value))
    return -1, []


def _draw_index(draw: Draw, index: tuple[Index, ...]) -> Term:
    """Returns the number of a draw's elements that are drawn before this one."""
    whole, term = Index(0), number(0)
    for i, stride in zip(index, draw.place.strides, strict=True):
        if type(i) is not Index:
            term = binary("+", term, binary("*", number(stride), i.text()))
        else:
            whole = whole.plus(i, stride)
    return binary("+", term, whole.text())


def _in_memory(draw: Draw, layout: Geometry) -> bool:
    """Returns whether the elements are contiguous in memory, in the order of the draw."""
    lies = zip(layout.size, layout.stride, draw.place.strides, strict=True)
    return all(n == 1 or stride == drawn for n, stride, drawn in lies)


_INDEX = re.compile(r"\bi(\d+)\b")


def _reindexed(text: str, index: tuple[Index, ...]) -> Term:
    """Returns an expression over an element's indices, with the indices replaced by `index`."""
    at = {str(d): i.text() for d, i in enumerate(index)}

    def place(match: re.Match[str]) -> str:
        term = at[match[1]]
        return term.text if term.binds == 9 else f"({term.text})"

    return Term(_INDEX.sub(place, text), 9 if re.fullmatch(r"\w+", text) else 0)


def _constant(value: Value) -> float | int | None:
    """Returns the value of all elements; None if they differ, or are too many to compute."""
    if math.prod(value.shape) > _LOOKED_AT or not math.prod(value.shape):
        return None
    data = evaluate(value).flatten()
    same: bool = bool((data == data[0]).all())
    return data[0].item() if same and math.isfinite(data[0].item()) else None


_Box = tuple[int, int, int, int | None]


def _boxes(layout: Geometry, view: Geometry) -> list[_Box] | None:
    """Returns a view as a box: (start, step, count, dimension of the view) per storage dimension.

    Returns None if the view is not a box each of whose dimensions follows one of the storage.
    """
    order = sorted(range(len(layout.size)), key=lambda d: (layout.stride[d], layout.size[d]))
    starts = [0] * len(layout.size)
    rest = view.offset - layout.offset
    for d in reversed(order):
        if layout.size[d] > 1:
            starts[d], rest = divmod(rest, layout.stride[d])
    if rest:
        return None
    boxes: list[_Box] = [(s, 1, 1, None) for s in starts]
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


def _place(layout: Geometry, view: Geometry, index: tuple[Index, ...]) -> Index:
    """Returns the number of elements of memory before an element of a view."""
    flat = Index(view.offset - layout.offset)
    for i, n, stride in zip(index, view.size, view.stride, strict=True):
        if n > 1 and stride:
            if type(i) is not Index:
                raise NoFormula("chosen elements, or every few of them, are moved")
            flat = flat.plus(i, stride)
    return flat


def _unflatten(flat: Index, layout: Geometry, ranges: Mapping[int, Range]) -> tuple[Index, ...]:
    result = [Index(0)] * len(layout.size)
    order = sorted(range(len(layout.size)), key=lambda d: (-layout.stride[d], -layout.size[d]))
    for d in order:
        if layout.size[d] == 1:
            continue
        result[d], flat = divide(flat, layout.stride[d], ranges)
    return tuple(result)
