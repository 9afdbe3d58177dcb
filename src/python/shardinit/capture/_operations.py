"""Says an element of the result of each operation of PyTorch by an expression."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .._dtypes import rounding_of
from ._expression import (
    Index,
    NoFormula,
    Term,
    affine,
    binary,
    call,
    chosen,
    negative,
    number,
    where,
)
from ._torch_numbers import rounded
from ._values import Apply, Value
from ._walk import At

if TYPE_CHECKING:
    from ._formula import Formula


@dataclasses.dataclass
class Operation(At):
    """An operation, and the place at which its result is asked for.

    Attributes:
        a: the operation's arguments by their names, defaults included.
    """

    formula: Formula
    value: Apply
    a: dict[str, Any]

    def of(self, name: str) -> Term:
        """The element of the argument of this name at the result's place, by broadcasting."""
        return self.element(self.a[name])

    def element(self, argument: Any) -> Term:
        """The element of an argument itself, a value or a number."""
        if not isinstance(argument, Value):
            return self.number(argument)
        return self.at(argument, self.index[len(self.index) - len(argument.shape) :])

    def number(self, value: float | int | bool) -> Term:
        """A number among the arguments, as PyTorch has it in the type that it computes in."""
        if not self.formula.rounds or isinstance(value, (bool, int)):
            return number(value)
        kinds = [part.dtype for part in self.value.parts()] + [self.value.dtype]
        floats = [dtype for dtype in kinds if rounding_of(dtype)]
        if not floats or torch.float64 in kinds:
            return number(value)
        wide = torch.float32 in floats or self.value.name in ("mul", "div", "addcmul")
        return rounded(number(value), torch.float32 if wide else floats[0])


Build = Callable[[Operation], Term]


def _operator(operator: str) -> Build:
    return lambda at: binary(operator, at.of("self"), at.of("other"))


def _function(name: str, *arguments: str) -> Build:
    return lambda at: call(name, *map(at.of, arguments or ("self",)))


def _filled(argument: str) -> Build:
    return lambda at: number(at.a[argument])


def _sum(operator: str) -> Build:
    def build(at: Operation) -> Term:
        first, second, rounds = at.a["self"], at.a["other"], at.formula.rounds
        softplus = ["log", "neg", "expm1", "neg"]
        if operator == "+" and not rounds and _inner(second, softplus) is first:
            # This is the inverse of softplus in a form that uses x only once.
            return call("log", call("expm1", at.of("self")))
        alpha = at.number(at.a.get("alpha", 1))
        if rounds and alpha.value != 1 and at.value.dtype.itemsize == 2:
            raise NoFormula("PyTorch rounds some elements of such a sum in another way")
        other = binary("*", alpha, at.element(second))
        if other.value is not None and other.value < 0:
            return binary("-" if operator == "+" else "+", at.of("self"), number(-other.value))
        return binary(operator, at.of("self"), other)

    return build


def _inner(value: Any, operations: Sequence[str]) -> Any:
    """The x of f(g(x)), for [f, g]; None for a value that is made in another way."""
    for operation in operations:
        if not isinstance(value, Apply) or value.name != operation:
            return None
        value = value.args[0]
    return value


def _divided(at: Operation) -> Term:
    quotient = binary("/", at.of("self"), at.of("other"))
    match at.a.get("rounding_mode"):
        case "floor":
            return call("floor", quotient)
        case "trunc":
            return _towards_zero(quotient)
    return quotient


def _towards_zero(term: Term) -> Term:
    if term.value is not None:
        return number(math.trunc(term.value))
    if "(" not in term.text and term.binds == 9:
        return term
    if any(name in term.text for name in ("normal()", "uniform()", "bits()")):
        raise NoFormula("random numbers are truncated to whole ones")
    return binary("*", call("floor", call("abs", term)), _signs(term))


def _signs(term: Term) -> Term:
    return binary("-", binary(">", term, number(0)), binary("<", term, number(0)))


def _cast(at: Operation) -> Term:
    source = at.a.get("src", at.a.get("self"))
    term, target = at.element(source), at.value.dtype
    kind = source.dtype if isinstance(source, Value) else None
    if target == torch.bool and kind != torch.bool:
        return binary("!=", term, number(0))
    is_float = isinstance(source, float) if kind is None else kind.is_floating_point
    if not target.is_floating_point and is_float:
        if term.text.startswith("floor(") and term.text.endswith(")"):
            return term
        return _towards_zero(term)
    if target.is_complex:
        raise NoFormula("complex numbers")
    narrower = kind is not None and kind.itemsize > target.itemsize
    return rounded(term, target) if at.formula.rounds and narrower else term


def _clamp(at: Operation) -> Term:
    term, bounds = at.of("self"), [at.a.get(name) for name in ("min", "max")]
    given = [at.element(bound) for bound in bounds if bound is not None]
    name = "clip" if len(given) == 2 else "min" if bounds[0] is None else "max"
    return call(name, term, *given) if given else term


def _arange(at: Operation) -> Term:
    ends = (number(at.a.get(name, usual)) for name, usual in (("step", 1), ("start", 0)))
    return affine(at.index[0].text(), *ends)


def _linspace(at: Operation) -> Term:
    start, end, steps = at.a["start"], at.a["end"], at.a["steps"]
    if isinstance(start, Value) or isinstance(end, Value) or steps < 2:
        raise NoFormula("a range between tensors")
    step = binary("/", number(end - start), number(steps - 1))
    return affine(at.index[0].text(), step, number(start))


def _triangle(operator: str) -> Build:
    def build(at: Operation) -> Term:
        row, column = at.index[-2:]
        diagonal = row.plus(Index(at.a.get("diagonal", 0)))
        return where(binary(operator, column.text(), diagonal.text()), at.of("self"), number(0))

    return build


def _cat(at: Operation) -> Term:
    parts = [part for part in at.a["tensors"] if part.shape != (0,)]
    return at.joined(parts, at.a.get("dim", 0) % len(at.index))


def _stack(at: Operation) -> Term:
    dimension = at.a.get("dim", 0) % len(at.index)
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
            terms.append((place, at.at(at.a["tensors"][place], rest, ranges)))
    return chosen(index.text(), terms)


def _pad(at: Operation) -> Term:
    pads = at.a["pad"]
    before = [0] * (len(at.index) - len(pads) // 2) + list(pads[::2])[::-1]
    return at.padded(at.a["self"], before, number(at.a.get("value") or 0))


def _logical(build: Callable[[Term, Term], Term]) -> Build:
    def of(at: Operation) -> Term:
        names = ("self", "other")
        if not all(getattr(at.a[name], "dtype", torch.bool) == torch.bool for name in names):
            raise NoFormula("bits of whole numbers")
        return build(at.of("self"), at.of("other"))

    return of


_AND, _OR = _logical(lambda x, y: binary("*", x, y)), _logical(lambda x, y: call("max", x, y))


def _power(at: Operation) -> Term:
    base, exponent = at.of("self"), at.element(at.a.get("exponent", 2))
    if at.formula.rounds and exponent.value in (2, 3):
        half = at.value.dtype == torch.bfloat16
        square = rounded(binary("*", base, base), torch.bfloat16 if half else torch.float32)
        return square if exponent.value == 2 else binary("*", square, base)
    if exponent.value == 2 and base.binds == 9 and "(" not in base.text:
        return binary("*", base, base)
    return call("pow", base, exponent)


def _choice(condition: str, yes: str, no: str) -> Build:
    return lambda at: at.chosen(*(functools.partial(at.of, name) for name in (condition, yes, no)))


def _addcmul(at: Operation) -> Term:
    if at.formula.rounds:
        first = binary("*", at.number(at.a.get("value", 1)), at.of("tensor1"))
        if rounding_of(at.value.dtype):
            first = rounded(first, torch.float32)
        return binary("+", at.of("self"), binary("*", first, at.of("tensor2")))
    product = binary("*", at.of("tensor1"), at.of("tensor2"))
    return binary("+", at.of("self"), binary("*", number(at.a.get("value", 1)), product))


# These operations compute nothing: each element of a result is one of their inputs.
CHOOSES = {
    "abs", "cat", "clamp", "clamp_max", "clamp_min", "clone", "constant_pad_nd", "copy",
    "detach_copy", "fill", "flip", "masked_fill", "maximum", "minimum", "neg", "sign", "stack",
    "_to_copy", "to", "tril", "triu", "where", "zero",
}  # fmt: skip

OPERATIONS: dict[str, Build] = {
    **dict.fromkeys(("clamp", "clamp_max", "clamp_min"), _clamp),
    **dict.fromkeys(("clone", "copy", "detach_copy", "_to_copy", "to"), _cast),
    **dict.fromkeys(("full", "full_like", "new_full"), _filled("fill_value")),
    **dict.fromkeys(("new_ones", "ones", "ones_like"), lambda at: number(1)),
    **dict.fromkeys(("new_zeros", "zero", "zeros", "zeros_like"), lambda at: number(0)),
    **dict.fromkeys(("bitwise_and", "logical_and"), _AND),
    **dict.fromkeys(("bitwise_or", "logical_or"), _OR),
    **dict.fromkeys(
        ("bitwise_not", "logical_not"), lambda at: binary("==", at.of("self"), number(0))
    ),
    **{
        name: _function(name)
        for name in ("abs", "cos", "exp", "expm1", "floor", "log", "log1p", "sin", "sqrt", "tanh")
    },
    "add": _sum("+"),
    "addcmul": _addcmul,
    "arange": _arange,
    "cat": _cat,
    "ceil": lambda at: negative(call("floor", negative(at.of("self")))),
    "constant_pad_nd": _pad,
    "div": _divided,
    "eq": _operator("=="),
    "erfinv": _function("erf_inv"),
    "eye": lambda at: binary("==", at.index[0].text(), at.index[1].text()),
    "fill": lambda at: at.of("value"),
    "flip": lambda at: at.turned(at.a["self"], at.a["dims"]),
    "floor_divide": lambda at: call("floor", binary("/", at.of("self"), at.of("other"))),
    "ge": _operator(">="),
    "gt": _operator(">"),
    "le": _operator("<="),
    "linspace": _linspace,
    "lt": _operator("<"),
    "masked_fill": _choice("mask", "value", "self"),
    "maximum": _function("max", "self", "other"),
    "minimum": _function("min", "self", "other"),
    "mul": _operator("*"),
    "ne": _operator("!="),
    "neg": lambda at: negative(at.of("self")),
    "pow": _power,
    "reciprocal": lambda at: binary("/", number(1), at.of("self")),
    "remainder": _function("mod", "self", "other"),
    "rsqrt": lambda at: binary("/", number(1), call("sqrt", at.of("self"))),
    "rsub": lambda at: binary("-", at.of("other"), at.of("self")),
    "scalar_tensor": _filled("s"),
    "sign": lambda at: _signs(at.of("self")),
    "square": _power,
    "stack": _stack,
    "sub": _sum("-"),
    "tril": _triangle("<="),
    "triu": _triangle(">="),
    "where": _choice("condition", "self", "other"),
}
