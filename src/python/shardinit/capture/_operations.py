"""Converts PyTorch operations to expressions of a spec, one function for each operation."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .._dtypes import rounding_of
from ._expression import (
    Index,
    Looked,
    NoFormula,
    Term,
    affine,
    binary,
    call,
    chosen,
    identity,
    negative,
    number,
    where,
)
from ._reduced import REDUCES, is_zero, normalized_along, scaled
from ._torch_numbers import rounded
from ._values import Apply, Literal, Value, evaluate, random_parts, replace
from ._walk import At, is_variable

if TYPE_CHECKING:
    from ._formula import Formula


@dataclasses.dataclass
class Operation(At):
    """An operation, and the place at which its result is requested.

    Attributes:
        a: the operation's arguments by name, including defaults.
    """

    formula: Formula
    value: Apply
    a: dict[str, Any]

    def of(self, name: str) -> Term:
        """Returns the element of the argument `name` at the result's place, with broadcasting."""
        return self.element(self.a[name])

    def element(self, argument: Any) -> Term:
        """Returns the element of an argument, which is a value or a number."""
        if not isinstance(argument, Value):
            return self.number(argument)
        return self.at(argument, self.index[len(self.index) - len(argument.shape) :])

    def number(self, value: float | int | bool) -> Term:
        """Returns a numeric argument, rounded to the type in which PyTorch computes."""
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
        if is_zero(second):  # This may be a product of zeros and random numbers.
            return at.of("self")
        alpha = at.number(at.a.get("alpha", 1))
        if rounds and alpha.value != 1 and at.value.dtype.itemsize == 2:
            raise NoFormula("PyTorch rounds some elements of such a sum in another way")
        other = binary("*", alpha, at.element(second))
        if other.value is not None and other.value < 0:
            return binary("-" if operator == "+" else "+", at.of("self"), number(-other.value))
        return binary(operator, at.of("self"), other)

    return build


def _inner(value: Any, operations: Sequence[str]) -> Any:
    """Returns the x of f(g(x)), for [f, g]; None for a value that is made in another way."""
    for operation in operations:
        if not isinstance(value, Apply) or value.name != operation:
            return None
        value = value.args[0]
    return value


def _divided(at: Operation) -> Term:
    if not at.formula.rounds and (along := normalized_along(at)) is not None:
        if at.index != identity(at.value.shape):
            raise NoFormula("parts of normalized vectors")
        at.formula.along = along
        at.formula.use(scaled(at.a["self"])[0], at.index, at.ranges)
        return Term("<normalized>")
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


_SHIFT = number(3 << 51)  # Sums with this number are rounded to integers, ties to even.


def _round(at: Operation) -> Term:
    decimals, term = at.a.get("decimals", 0), at.of("self")
    factor = number(10 ** abs(decimals))
    rounds = at.formula.rounds

    def step(term: Term) -> Term:
        return rounded(term, at.value.dtype) if rounds else term

    if decimals and rounds and at.value.dtype != torch.float32:
        raise NoFormula("PyTorch rounds decimals otherwise in such a type")
    if decimals:
        term = step(binary("*" if decimals > 0 else "/", term, factor))
    whole = binary("-", binary("+", term, _SHIFT), _SHIFT)
    if rounds:  # The result for a negative number is -0, not 0.
        below = binary("-", binary("+", negative(term), _SHIFT), _SHIFT)
        whole = where(binary("<", term, number(0)), negative(below), whole)
    if decimals:
        whole = binary("/" if decimals > 0 else "*", step(whole), factor)
    return whole


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
        text = term.text
        if (text.startswith("floor(") and text.endswith(")")) or text.endswith(f"- {_SHIFT.text}"):
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
    if low != high and not is_variable(index):
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


_PICKED = 1 << 16  # The maximum number of elements that an operation may choose.


def _picked(source: str) -> Build:
    """Builds an operation that selects elements of `source` by its other, nonrandom arguments."""

    def build(at: Operation) -> Term:
        value, of = at.value, at.a[source]
        if any(part.random for part in value.parts() if part is not of):
            raise NoFormula("random numbers choose elements")
        if math.prod(value.shape) > _PICKED:
            raise NoFormula(f"more than {_PICKED} elements are chosen by a tensor of indices")
        # PyTorch itself chooses among the elements' numbers.
        every = torch.arange(math.prod(of.shape)).view(of.shape)
        numbers = Literal(of.shape, torch.int64, of.origin, every)
        args, kwargs = replace(
            (value.args, value.kwargs), lambda part: numbers if part is of else part, Value
        )
        chosen = evaluate(dataclasses.replace(value, args=args, kwargs=kwargs)).numpy()
        places = np.unravel_index(chosen, of.shape) if of.shape else ()
        return at.at(of, [_look_up(place, at.index) for place in places])

    return build


def _put(argument: str) -> Build:
    """Builds an operation that writes `argument` to selected places of a tensor."""

    def build(at: Operation) -> Term:
        value, of, by = at.value, at.a["self"], at.a[argument]
        if any(part.random for part in value.parts() if part is not of and part is not by):
            raise NoFormula(
                "random numbers choose the written elements: use `torch.where` or `masked_fill_`"
            )
        if at.a.get("accumulate"):
            raise NoFormula("several numbers may be added to one element")
        size = math.prod(of.shape)
        if size > _PICKED:
            raise NoFormula(f"more than {_PICKED} elements are chosen by a tensor of indices")
        places = torch.arange(size).view(of.shape)
        numbers: dict[int, Any] = {id(of): Literal(of.shape, torch.int64, of.origin, places)}
        shape = by.shape if isinstance(by, Value) else ()
        behind = torch.arange(size, size + math.prod(shape)).view(shape)
        written = Literal(shape, torch.int64, value.origin, behind)
        arguments = dict(at.a) | {
            "self": numbers[id(of)],
            argument: written if isinstance(by, Value) else size,
        }
        names = [each.name for each in value.function._schema.arguments]
        args = tuple(arguments[name] for name in names[: len(value.args)])
        kwargs = {name: arguments[name] for name in value.kwargs}
        moved = dataclasses.replace(value, args=args, kwargs=kwargs, dtype=torch.int64)
        found = evaluate(moved).numpy()
        is_written = found >= size
        chosen = _look_up(is_written.astype(np.int64), at.index)
        from_where = np.unravel_index(np.where(is_written, found - size, 0), shape) if shape else ()
        taken = found[is_written]
        once = len(set(taken.tolist())) == taken.size
        source = [_look_up(_fill_gaps(place, is_written), at.index, once) for place in from_where]
        return at.chosen(
            chosen.text,
            lambda: at.at(by, source) if isinstance(by, Value) else at.number(by),
            lambda: at.of("self"),
        )

    return build


def _fill_gaps(places: np.ndarray[Any, Any], known: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns places in which unknown ones are copied from neighbours along each dimension."""
    for axis in range(places.ndim):
        first = np.expand_dims(known.argmax(axis), axis)
        near, is_known = (np.take_along_axis(x, first, axis) for x in (places, known))
        places, known = np.where(known, places, near), known | is_known
    return places


def _look_up(places: np.ndarray[Any, Any], index: Sequence[Index], is_once: bool = False) -> Index:
    """Returns the element of an array of places at an index; see `Looked.up`."""
    at, kept = Index(0), []
    for d, n in enumerate(places.shape):
        kept.append(slice(0, 1))
        if n > 1 and bool((places != places.take([0], axis=d)).any()):
            if type(index[d]) is not Index:
                raise NoFormula("elements are chosen among every few ones")
            at = Index(0).plus(at, n).plus(index[d])
            kept[d] = slice(None)
    return Looked.up(places[tuple(kept)].ravel().tolist(), at, is_once)


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


# These operations compute nothing: each element of a result is an element of their inputs.
CHOOSES = {
    "abs", "cat", "clamp", "clamp_max", "clamp_min", "clone", "constant_pad_nd", "copy",
    "detach_copy", "embedding", "fill", "flip", "gather", "index", "index_copy", "index_fill",
    "index_put", "index_select", "masked_fill",
    "maximum", "minimum", "neg", "roll", "sign", "stack", "take", "to", "_to_copy", "tril",
    "triu", "where", "zero",
}  # fmt: skip


def _refused(why: str) -> Build:
    def build(at: Operation) -> Term:
        raise NoFormula(why)

    return build


_TWO_PARTS = "complex numbers: keep the real and the imaginary part as two tensors"
_FACTORIZE = ("_linalg_eigh", "_linalg_svd", "geqrf", "linalg_eig", "linalg_qr", "svd")


def _of_matrices(at: Operation) -> Term:
    made = (part for part in random_parts(at.value) if isinstance(part, Apply))
    if any(part.name in _FACTORIZE for part in made):
        raise NoFormula(
            "factors of a matrix of random numbers: capture the model without them, and compute"
            " them from its weights (in PEFT capture with `init_lora_weights=True` instead of OLoRA"
            " or PiSSA)"
        )
    raise NoFormula(
        "products of matrices of random numbers: keep the factors, and multiply them in `forward`"
    )


OPERATIONS: dict[str, Build] = {
    **dict.fromkeys(("addmm", "baddbmm", "bmm", "dot", "mm", "mv", *_FACTORIZE), _of_matrices),
    **dict.fromkeys(
        ("_fft_c2c", "_fft_c2r", "_fft_r2c", "angle", "complex", "imag", "polar", "real"),
        _refused(_TWO_PARTS),
    ),
    **dict.fromkeys(("index_copy", "masked_scatter"), _put("source")),
    **dict.fromkeys(
        ("index_fill", "scatter"), lambda at: _put("value" if "value" in at.a else "src")(at)
    ),
    "index_put": _put("values"),
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
    "embedding": _picked("weight"),
    "eq": _operator("=="),
    "erfinv": _function("erf_inv"),
    "eye": lambda at: binary("==", at.index[0].text(), at.index[1].text()),
    "fill": lambda at: at.of("value"),
    "flip": lambda at: at.flipped(at.a["self"], at.a["dims"]),
    "floor_divide": lambda at: call("floor", binary("/", at.of("self"), at.of("other"))),
    "ge": _operator(">="),
    "gt": _operator(">"),
    **dict.fromkeys(("gather", "index", "index_select", "roll", "take"), _picked("self")),
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
    "round": _round,
    "rsqrt": lambda at: binary("/", number(1), call("sqrt", at.of("self"))),
    "rsub": lambda at: binary("-", at.of("other"), at.of("self")),
    "scalar_tensor": _filled("s"),
    "sign": lambda at: _signs(at.of("self")),
    "square": _power,
    "stack": _stack,
    "sub": _sum("-"),
    "tril": _triangle("<="),
    "trunc": lambda at: _towards_zero(at.of("self")),
    "triu": _triangle(">="),
    **REDUCES,
    "where": _choice("condition", "self", "other"),
}
