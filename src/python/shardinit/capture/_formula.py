"""What a tensor holds, as an expression of a spec over its elements' indices."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .._dtypes import rounding_of
from ._expression import (
    Divided,
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
from ._stream import Words
from ._torch_numbers import rounded, torch_term
from ._values import Apply, Draw, Empty, Gather, Geometry, Literal, Scatter, Value, evaluate

_LOOKED_AT = 1 << 16  # Elements that are computed to see whether they are one number.


class Formula(Walk):
    """An expression for the elements of a value.

    Args:
        value: what has the elements.
        fixed: None, or for the engine torch_cpu, which has PyTorch's own numbers: what gives an
            expression for what no random number decides, to the bit. Then a number may be used
            as often as the constructor uses it, and is rounded between operations as PyTorch does.

    Attributes:
        term: the expression.
        uses: the draws in it.
        marks: what stands for a place of PyTorch's stream in the expression → that place.
    """

    def __init__(self, value: Value, fixed: Callable[[Value], str] | None = None) -> None:
        super().__init__()
        self.marks: dict[str, Words] = {}
        self.rounds = fixed is not None
        self._fixed = fixed
        ranges = {d: (0, n - 1) for d, n in enumerate(value.shape)}
        self.term = self._term(value, identity(value.shape), ranges)
        if "<" in self.term.text and re.search("<[a-z]+>.|.<[a-z]+>", self.term.text):
            raise NoFormula("such random values are changed", self.uses[0].draw.origin)

    def _term(self, value: Value, index: tuple[Index, ...], ranges: dict[int, Range]) -> Term:
        if isinstance(value, Draw):
            return self._draw(value, index, ranges)
        if self._fixed is not None and not value.random and value.dtype.is_floating_point:
            constant = _constant(value)
            if constant is not None:
                return number(constant)
            return rounded(_moved(self._fixed(value), index), value.dtype)
        if isinstance(value, Gather):
            if (
                self.rounds
                and isinstance(value.base, Draw)
                and _in_memory(value.base, value.layout)
            ):
                # A storage as it was drawn: where an element is, is when it is drawn.
                flat = _place(value.layout, value.view, index)
                return self._draw(value.base, index, ranges, flat.text())
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
            term = builder(_Context(self, value, index, ranges), arguments)
        except NoFormula as error:
            raise error if error.origin else NoFormula(str(error), value.origin) from None
        chooses = name.removesuffix("_") in _CHOOSES and term.value is None
        return rounded(term, value.dtype) if self.rounds and not chooses else term

    def mark(self, words: Words) -> Term:
        """What stands for a place of PyTorch's stream."""
        for name, other in self.marks.items():
            if other == words:
                return Term(name)
        name = f"@{len(self.marks)}@"
        self.marks[name] = words
        return Term(name)

    def _draw(
        self,
        draw: Draw,
        index: tuple[Index, ...],
        ranges: dict[int, Range],
        flat: Term | None = None,
    ) -> Term:
        if draw.problem:
            raise NoFormula(draw.problem, draw.origin)
        if draw.place.again and not self.rounds:
            raise NoFormula("numbers are drawn that were drawn before", draw.origin)
        self.use(draw, index, ranges)
        if self.rounds:
            return torch_term(draw, _flat(draw, index) if flat is None else flat, self.mark)
        p = {key: number(value) for key, value in draw.parameters.items()}
        u = Term("uniform()")
        minus = binary("-", number(0), u)
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
                inner = call("erf_inv", affine(u, number(high - low), number(low)))
                return affine(inner, number(std * math.sqrt(2)), number(mean))
        if index == identity(draw.shape) and draw.kind in ("orthogonal", "sparse"):
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
                    source[dimension] = Divided(offset, step)
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


def _flat(draw: Draw, index: tuple[Index, ...]) -> Term:
    """How many of a draw's elements are drawn before this one."""
    whole, term = Index(0), number(0)
    for i, stride in zip(index, draw.place.strides, strict=True):
        if isinstance(i, Divided):
            term = binary("+", term, binary("*", number(stride), i.text()))
        else:
            whole = whole.plus(i, stride)
    return binary("+", term, whole.text())


def _in_memory(draw: Draw, layout: Geometry) -> bool:
    """Whether the elements lie in memory one behind the other, as they are drawn."""
    lies = zip(layout.size, layout.stride, draw.place.strides, strict=True)
    return all(n == 1 or stride == drawn for n, stride, drawn in lies)


_INDEX = re.compile(r"\bi(\d+)\b")


def _moved(text: str, index: tuple[Index, ...]) -> Term:
    """An expression of an element's place, for the element at another one."""
    at = {str(d): i.text() for d, i in enumerate(index)}

    def place(match: re.Match[str]) -> str:
        term = at[match[1]]
        return term.text if term.binds == 9 else f"({term.text})"

    return Term(_INDEX.sub(place, text), 9 if re.fullmatch(r"\w+", text) else 0)


def _constant(value: Value) -> float | int | None:
    """The number that all elements are; None if they differ, or are too many to look at."""
    if math.prod(value.shape) > _LOOKED_AT or not math.prod(value.shape):
        return None
    data = evaluate(value).flatten()
    same: bool = bool((data == data[0]).all())
    return data[0].item() if same and math.isfinite(data[0].item()) else None


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
    return _unflatten(_place(layout, view, index), layout, ranges)


def _place(layout: Geometry, view: Geometry, index: tuple[Index, ...]) -> Index:
    """How many elements of memory are before an element of a view."""
    flat = Index(view.offset - layout.offset)
    for i, n, stride in zip(index, view.size, view.stride, strict=True):
        if n > 1 and stride:
            if isinstance(i, Divided):
                raise NoFormula("an index into every few elements is moved")
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
            return self.number(argument)
        skip = len(self.index) - len(argument.shape)
        index = tuple(
            Index(0) if n == 1 else i
            for n, i in zip(argument.shape, self.index[skip:], strict=True)
        )
        return self.formula._term(argument, index, self.ranges)

    def number(self, value: float | int | bool) -> Term:
        """A number among the arguments, of which PyTorch makes one of the type it computes in."""
        if not self.formula.rounds or isinstance(value, (bool, int)):
            return number(value)
        kinds = [part.dtype for part in self.value.parts()] + [self.value.dtype]
        floats = [dtype for dtype in kinds if rounding_of(dtype)]
        if not floats or torch.float64 in kinds:
            return number(value)
        name = self.value.function._schema.name.removeprefix("aten::").removesuffix("_")
        wide = torch.float32 in floats or name in ("mul", "div", "addcmul")
        return rounded(number(value), torch.float32 if wide else floats[0])

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
        if (
            operator == "+"
            and not at.formula.rounds
            and _inner(a["other"], ["log", "neg", "expm1", "neg"]) is a["self"]
        ):
            # The inverse of softplus, for which x is needed once.
            return call("log", call("expm1", at.of(a["self"])))
        alpha = at.number(a.get("alpha", 1))
        if at.formula.rounds and alpha.value != 1 and at.value.dtype.itemsize == 2:
            raise NoFormula("PyTorch rounds some elements of such a sum in another way")
        other = binary("*", alpha, at.of(a["other"]))
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
    narrower = isinstance(source, Value) and source.dtype.itemsize > target.itemsize
    return rounded(term, target) if at.formula.rounds and narrower else term


def _clamp(at: _Context, a: Arguments) -> Term:
    low, high, term = a.get("min"), a.get("max"), at.of(a["self"])
    if low is not None and high is not None:
        return call("clip", term, at.of(low), at.of(high))
    if low is not None:
        return call("max", term, at.of(low))
    return term if high is None else call("min", term, at.of(high))


def _arange(at: _Context, a: Arguments) -> Term:
    step = number(a.get("step", 1))
    return affine(binary("*", at.index[0].text(), step), None, number(a.get("start", 0)))


def _linspace(at: _Context, a: Arguments) -> Term:
    start, end, steps = a["start"], a["end"], a["steps"]
    if isinstance(start, Value) or isinstance(end, Value) or steps < 2:
        raise NoFormula("a range between tensors")
    step = binary("/", number(end - start), number(steps - 1))
    return affine(binary("*", at.index[0].text(), step), None, number(start))


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
    return at.formula.joined(
        [part.shape[dimension] for part in parts],
        dimension,
        at.index,
        at.ranges,
        lambda n, index, ranges: at.at(parts[n], index, ranges),
    )


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
    before = [0] * (len(at.index) - len(pads) // 2) + list(pads[::2])[::-1]
    return at.formula.padded(
        before,
        source.shape,
        at.index,
        at.ranges,
        lambda index, ranges: at.at(source, index, ranges),
        number(a.get("value") or 0),
    )


def _flip(at: _Context, a: Arguments) -> Term:
    index = list(at.index)
    for d in a["dims"]:
        index[d] = Index(a["self"].shape[d] - 1).plus(index[d], -1)
    return at.at(a["self"], index)


def _logical(at: _Context, a: Arguments, build: Callable[[Term, Term], Term]) -> Term:
    if not all(getattr(a[k], "dtype", torch.bool) == torch.bool for k in ("self", "other")):
        raise NoFormula("bits of whole numbers")
    return build(at.of(a["self"]), at.of(a["other"]))


def _sign(at: _Context, a: Arguments) -> Term:
    term, zero = at.of(a["self"]), number(0)
    return binary("-", binary(">", term, zero), binary("<", term, zero))


def _power(at: _Context, a: Arguments) -> Term:
    base, exponent = at.of(a["self"]), at.of(a["exponent"])
    if at.formula.rounds and exponent.value in (2, 3):
        half = at.value.dtype == torch.bfloat16
        square = rounded(binary("*", base, base), torch.bfloat16 if half else torch.float32)
        return square if exponent.value == 2 else binary("*", square, base)
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
    if at.formula.rounds:
        first = binary("*", at.number(a.get("value", 1)), at.of(a["tensor1"]))
        if rounding_of(at.value.dtype):
            first = rounded(first, torch.float32)
        return binary("+", at.of(a["self"]), binary("*", first, at.of(a["tensor2"])))
    product = binary("*", at.of(a["tensor1"]), at.of(a["tensor2"]))
    return binary("+", at.of(a["self"]), binary("*", number(a.get("value", 1)), product))


# Operations that compute nothing: an element is one of those that they are given.
_CHOOSES = {
    "abs", "cat", "clamp", "clamp_max", "clamp_min", "clone", "constant_pad_nd", "copy",
    "detach_copy", "fill", "flip", "masked_fill", "maximum", "minimum", "neg", "sign", "stack",
    "_to_copy", "to", "tril", "triu", "where", "zero",
}  # fmt: skip

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
    "sign": _sign,
    "sin": _function("sin"),
    "sqrt": _function("sqrt"),
    "square": lambda at, a: _power(at, a | {"exponent": 2}),
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
