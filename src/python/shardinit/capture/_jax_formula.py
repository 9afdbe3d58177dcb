"""What an array of JAX holds, as an expression of a spec over its elements' indices."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._dtypes import name_of, rounding_of
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
    stored,
    where,
)
from ._jaxpr import Apply, Draw, Graph, Known, Value, is_key, key_words
from ._tensor import make


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


def as_jax_does(draw: Draw, scale: float = 1, shift: float = 0) -> Scaled:
    """The same with the bits of JAX, which multiplies, rounds to f32, adds and rounds again.

    Where the text of an expression has not these bits it has a word in angle brackets.
    """
    text = f"<{draw.kind}>"
    if draw.kind == "normal":
        text = "normal()"
    elif draw.kind == "uniform" and _is_unit(draw):
        text = "uniform()"
    term = Term(text)
    if draw.kind == "uniform" and _is_unit(draw):
        term = _above(draw, term)
    if scale != 1:
        term = rounding(binary("*", term, number(exactly(scale, draw.dtype))), draw.dtype)
    if shift:
        term = rounding(affine(term, None, number(exactly(shift, draw.dtype))), draw.dtype)
    return Scaled(term.text, term.binds, dtype=term.dtype, exact=term.exact, draw=draw,
                  scale=scale, shift=shift)  # fmt: skip


def _is_unit(draw: Draw) -> bool:
    """Uniform from 0 to 1, or from the smallest number, of which JAX takes a logarithm."""
    low, high = (exactly(draw.parameters[end], draw.dtype) for end in ("low", "high"))
    return high == 1 and 0 <= low < _LEAST


def _above(draw: Draw, unit: Term) -> Term:
    low = exactly(draw.parameters["low"], draw.dtype)
    return rounding(binary("+", unit, number(low)), draw.dtype) if low else unit


_LEAST = 2.0**-80  # What a uniform distribution may begin with, if not with 0.


def exactly(value: Any, dtype: Any) -> float | int:
    """The number as the type has it."""
    exact = float(np.asarray(value).astype(dtype))
    if not math.isfinite(exact):
        raise NoFormula(f"a spec has no number {exact}")
    return exact


def rounding(term: Term, dtype: Any) -> Term:
    """A number as an operation of JAX rounds it to its type."""
    name = rounding_of(np.dtype(dtype))
    if not name or term.value is not None or term.dtype == name:
        return term
    made = call(name, term)
    return Term(made.text, made.binds, dtype=name, exact=term)


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
        exact: the numbers are those of JAX, to the bit where its functions are.
        placed: each is asked for by the words of its key and its place, as often as it is used.
        is_placed: one was.
    """

    def __init__(
        self,
        value: Value,
        graph: Graph,
        place: Mapping[int, int] | None = None,
        *,
        exact: bool = False,
        placed: bool = False,
    ) -> None:
        """`place`: dimension → the only index of it that is asked for, and not counted."""
        super().__init__()
        self.graph, self.exact, self.placed, self.is_placed = graph, exact, placed, False
        self._steps = 0
        place = place or {}
        shape = [n for d, n in enumerate(value.shape) if d not in place]
        counted = iter(identity(shape))
        index = tuple(
            Index(place[d]) if d in place else next(counted) for d in range(len(value.shape))
        )
        term = self.of(value, index, {d: (0, n - 1) for d, n in enumerate(shape)})
        is_one = isinstance(term, Scaled) and term.draw is not None
        self.term = term if is_one else stored(term, rounding_of(value.dtype))

    def number(self, value: Any, dtype: Any) -> Term:
        is_float = self.exact and rounding_of(np.dtype(dtype))
        return number(exactly(value, dtype) if is_float else short(value, dtype))

    def of(self, value: Value, index: tuple[Index, ...], ranges: dict[int, Range]) -> Term:
        """One element of a value."""
        self._steps += 1
        if self._steps > _STEPS:
            raise NoFormula(f"its expression has more than {_STEPS} operations", value.origin)
        if isinstance(value, Draw):
            return self._draw(value, index, ranges)
        if is_key(value.dtype):
            raise NoFormula("the words of a key are asked for", value.origin)
        if value.keyed and not value.random:
            self.graph.compute(value)  # Which says why it is no number.
        if not value.random and math.prod(value.shape) == 1:
            data = np.asarray(self.graph.compute(value)).reshape(-1)[0]
            return self.number(data, value.dtype)
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

    def joined(
        self,
        sizes: Sequence[int],
        dimension: int,
        index: tuple[Index, ...],
        ranges: Mapping[int, Range],
        part: Callable[[int, tuple[Index, ...], dict[int, Range]], Term],
    ) -> Term:
        """As `Walk.joined`; draws of one distribution are one, where JAX's own are not asked for."""
        terms: list[Term] = []

        def noted(n: int, index: tuple[Index, ...], ranges: dict[int, Range]) -> Term:
            terms.append(part(n, index, ranges))
            return terms[-1]

        whole = super().joined(sizes, dimension, index, ranges, noted)
        is_one = not self.exact and len({term.text for term in terms}) == 1
        return terms[0] if is_one and "<" not in terms[0].text else whole

    def _draw(self, draw: Draw, index: tuple[Index, ...], ranges: dict[int, Range]) -> Term:
        if self.placed:
            return self._of_keys(draw, index, ranges)
        self.graph.identify(draw)
        self.use(draw, index, ranges)
        if draw.kind == "orthogonal":
            return scaled(draw)
        if draw.kind in ("uniform", "normal", "truncated_normal"):
            if not self.exact:
                return scaled(draw)
            return as_jax_does(draw) if str(draw.dtype) == "float32" else _of_bits(draw, Term("bits()"))
        if draw.kind == "bits":
            return _low_bits(Term("bits()"), draw)
        if draw.kind != "integers":
            raise NoFormula(f"no expression draws {draw.kind}", draw.origin)
        low, high = (int(draw.parameters[end]) for end in ("low", "high"))
        if draw_is_of_one_key(draw) or high - low > _COARSE:
            drawn = call("mod", Term("bits()"), number(high - low))
        else:
            drawn = call("floor", binary("*", Term("uniform()"), number(high - low)))
        return binary("+", drawn, number(low))

    def _of_keys(self, draw: Draw, index: tuple[Index, ...], ranges: dict[int, Range]) -> Term:
        """A number of whichever of several keys it is."""
        batch = len(draw.keys.shape)
        bounds_of = [i.bounds(ranges) for i in index[:batch]]
        every = list(itertools.product(*(range(low, high + 1) for low, high in bounds_of)))
        if len(every) > _KEYS:
            raise NoFormula(f"elements of {len(every)} keys, in another order than JAX draws them", draw.origin)
        term = self._placed(draw, (*map(Index, every[-1]), *index[batch:]))
        for which in reversed(every[:-1]):
            here = [binary("==", i.text(), number(k))
                    for i, k, (low, high) in zip(index, which, bounds_of, strict=False) if low < high]  # fmt: skip
            term = where(both(here), self._placed(draw, (*map(Index, which), *index[batch:])), term)
        return term

    def _placed(self, draw: Draw, index: tuple[Index, ...]) -> Term:
        """A number by the words of its key, and which of that key's it is."""
        batch = len(draw.keys.shape)
        place, sizes = Index(0), draw.shape[batch:]
        for d, i in enumerate(index[batch:]):
            place = place.plus(i, math.prod(sizes[d + 1 :]))
        keys = key_words(self.graph.compute(draw.keys))[tuple(i.constant for i in index[:batch])]
        if keys.shape != (2,):
            raise NoFormula("its key is not one of JAX's default generator, threefry2x32", draw.origin)
        self.is_placed = True

        def of(function: str, words: Any, *more: float) -> Term:
            first = [number(int(word)) for word in words]
            return call(f"jax_{function}", *first, place.text(), *map(number, more))

        if draw.kind == "bits":
            return _low_bits(of("bits", keys), draw)
        if draw.kind == "integers":
            pair = key_words(jax.random.split(jax.random.wrap_key_data(jnp.asarray(keys))))
            return _integers(draw, of("bits", pair[0]), of("bits", pair[1]))
        if draw.kind not in ("uniform", "normal", "truncated_normal"):
            raise NoFormula(_NO_BITS.get(draw.kind, f"no expression draws {draw.kind}"), draw.origin)
        if str(draw.dtype) != "float32":
            return _of_bits(draw, of("bits", keys))
        if draw.kind == "uniform" and _is_unit(draw):
            return _above(draw, Term(of("uniform", keys, 0, 1).text, dtype="f32"))
        ends = [exactly(draw.parameters[end], draw.dtype) for end in ("low", "high") if draw.parameters]
        if any(end and abs(end) < _LEAST for end in ends):
            raise NoFormula(f"bounds below {_LEAST:.3g}", draw.origin)
        return Term(of(draw.kind, keys, *ends).text, dtype="f32")

    def _known(self, value: Known, index: tuple[Index, ...], ranges: dict[int, Range]) -> Term:
        data = np.asarray(value.data)
        low = tuple(i.bounds(ranges)[0] for i in index)
        if all(i.bounds(ranges) == (a, a) for i, a in zip(index, low, strict=True)):
            return self.number(data[low], value.dtype)
        words = np.ascontiguousarray(data).reshape(-1).view(f"u{data.itemsize}")  # -0 is not 0.
        if data.size and bool((words == words[0]).all()):
            return self.number(data.reshape(-1)[0], value.dtype)
        if data.ndim == 1 and data.size <= 64:
            at = index[0].text()
            term = self.number(data[-1], value.dtype)
            for i in reversed(range(data.size - 1)):
                term = where(binary("==", at, number(i)), self.number(data[i], value.dtype), term)
            return term
        raise NoFormula("numbers from outside", value.origin)


_KEYS = 32  # That one expression asks for a number each.
_STEPS = 1 << 14  # Of an expression; text ends long before.
_COARSE = 1 << 20  # Numbers of 24 bits are all whole ones below, and some above.
_NO_BITS = {"orthogonal": "no engine has the bits of JAX's QR decomposition"}


def has_no_text(term: Term) -> bool:
    """Whether there is a draw in it that only an initializer can say."""
    return any(f"<{kind}>" in term.text for kind in ("uniform", "truncated_normal", "orthogonal"))


def _low_bits(word: Term, draw: Draw) -> Term:
    """Random bits of as many as the type has: the lower ones of a word."""
    width = 8 * np.dtype(draw.dtype).itemsize
    if width > 32:
        raise NoFormula("JAX draws 64 bits of two words", draw.origin)
    return word if width == 32 else call("mod", word, number(1 << width))


def _of_bits(draw: Draw, word: Term) -> Term:
    """A number of 16 bits as `_uniform`, `_normal_real` and `_truncated_normal` of JAX make it of a
    word: of bf16 of its lower 8 bits, of which 7 are left, of f16 of 16, of which 10 are.

    XLA rounds each operation to bf16, and the product and the sum of f16 once.
    """
    dtype = np.dtype(draw.dtype)
    if str(dtype) not in ("bfloat16", "float16"):
        raise NoFormula(f"JAX draws {draw.dtype} numbers in another way than those of f32,"
                        " which the engine has", draw.origin)  # fmt: skip
    drawn, kept = (8, 7) if str(dtype) == "bfloat16" else (16, 10)
    lowest = call("floor", binary("/", call("mod", word, number(1 << drawn)), number(1 << drawn - kept)))
    unit = binary("/", lowest, number(1 << kept))

    def at(value: float) -> float:
        return float(exactly(value, dtype))

    def uniform(low: float, high: float) -> Term:
        product = binary("*", unit, number(at(high - low)))
        product = rounding(product, dtype) if drawn == 8 else product
        return rounding(affine(product, None, number(low)) if low else product, dtype)

    low, high = (at(draw.parameters.get(end, 0)) for end in ("low", "high"))
    if draw.kind == "uniform":
        return uniform(low, high)
    root = at(math.sqrt(2))
    if draw.kind == "normal":
        ends = float(np.nextafter(np.array(-1, dtype), np.array(0, dtype))), 1.0
    else:
        ends = at(math.erf(at(low / root))), at(math.erf(at(high / root)))
    made = rounding(call("erf_inv", uniform(*ends)), dtype)
    for place, value in _other_erf_inv(str(dtype), *ends, kept):
        if "bits()" in word.text:
            raise NoFormula("a number that is used twice", draw.origin)
        made = where(binary("==", lowest, number(place)), number(value), made)
    made = rounding(binary("*", made, number(root)), dtype)
    if draw.kind == "normal":
        return made
    inside = [_next(low, math.inf, dtype), _next(high, -math.inf, dtype)]
    return Term(call("clip", made, *map(number, inside)).text, dtype=made.dtype)


@functools.cache
def _other_erf_inv(dtype: str, low: float, high: float, bits: int) -> tuple[tuple[int, float], ...]:
    """Of the few numbers that these bits make those whose erf_inv JAX rounds otherwise, and to what."""
    name, type_ = name_of(dtype), jnp.dtype(dtype)
    inner = f"i0 / {1 << bits} * {float(exactly(high - low, type_))!r}"
    if dtype == "bfloat16":
        inner = f"{name}({inner})"
    uniform = make(f"{name}({inner} + {low!r})", (1 << bits,), name)
    found = make(f"erf_inv({name}({inner} + {low!r}))", (1 << bits,), name)
    if uniform is None or found is None:
        raise NoFormula(f"a spec has no such numbers of {dtype}")
    wanted = np.asarray(jax.lax.erf_inv(jnp.asarray(uniform)))
    other = np.flatnonzero(np.asarray(found).view(np.uint16) != wanted.view(np.uint16))
    return tuple((int(i), float(wanted[i])) for i in other)


def _next(value: float, to: float, dtype: Any) -> float:
    """The neighbour of a number; 0 for one that is subnormal, as XLA has it."""
    found = float(np.nextafter(np.array(value, dtype), np.array(to, dtype)))
    return found if abs(found) >= float(jnp.finfo(dtype).smallest_normal) else 0.0


def _integers(draw: Draw, upper: Term, lower: Term) -> Term:
    """As `_randint` of JAX: the rest of twice as many bits as the type has."""
    width = 8 * np.dtype(draw.dtype).itemsize
    low, high = (int(draw.parameters[end]) for end in ("low", "high"))
    span, every = high - low, 1 << width
    if width > 32 or span > 1 << 26:
        raise NoFormula("whole numbers of more than 26 bits", draw.origin)
    factor = ((1 << width // 2) % span) ** 2 % every % span
    rest = call("mod", lower if width == 32 else call("mod", lower, number(every)), number(span))
    if factor:
        first = call("mod", upper if width == 32 else call("mod", upper, number(every)), number(span))
        product = call("mod", binary("*", first, number(factor)), number(every))
        rest = call("mod", call("mod", binary("+", product, rest), number(every)), number(span))
    return binary("+", rest, number(low))


def draw_is_of_one_key(draw: Draw) -> bool:
    """Whether JAX makes these whole numbers of the words of one key: the second of its two."""
    span = int(draw.parameters["high"]) - int(draw.parameters["low"])
    return 0 < span <= 1 << 16 and not span & (span - 1) and np.dtype(draw.dtype).itemsize == 4


def rounded(value: float, dtype: Any) -> float:
    """As the type has it, in as few digits as say it."""
    if np.dtype(dtype).kind in "biu":
        return value
    # The few digits of a number of 16 bits say another one.
    return (exactly if np.dtype(dtype).itemsize == 2 else short)(np.asarray(value).astype(dtype), dtype)


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
    return lambda at: _combined(operator, at.of(0), at.of(1), at)


def _combined(operator: str, left: Term, right: Term, at: At) -> Term:
    """Of two terms, as JAX computes it in the type of its operands."""
    dtype, exact = at.inputs[0].dtype, at.formula.exact
    is_float = np.dtype(dtype).kind not in "biu"
    if left.value is not None and right.value is not None:
        return _folded(operator, left.value, right.value, at)
    if operator not in _ARITHMETIC:
        return binary(operator, left, right)
    if not is_float:
        return _whole(at, binary(operator, left, right))
    if not exact and left.exact is not None and left.dtype == rounding_of(np.dtype(dtype)):
        left = left.exact  # One rounding more or less makes no other distribution.
    if isinstance(left, Scaled) and left.draw is not None and right.value is not None:
        found = _rescaled(operator, left, right.value, dtype, exact)
        if found is not None:
            return found
    if isinstance(right, Scaled) and left.value is not None and operator in "+*":
        return _combined(operator, right, left, at)
    if isinstance(right, Scaled) and right.draw is not None and left.value is not None and not exact:
        if operator == "-":
            return scaled(right.draw, -right.scale, rounded(left.value - right.shift, dtype))
    term = _signed_zero(operator, left, right)
    if term is None:
        if operator in "+-" and right.value is not None and right.value < 0:
            term = binary("-" if operator == "+" else "+", left, number(-right.value))
        elif operator == "+" and right.value is None and left.value is not None:
            term = binary("+", right, left)
        else:
            term = binary(operator, left, right)
    is_same = term.text in (left.text, right.text)
    return rounding(term, dtype) if exact and not is_same else term


_ARITHMETIC = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}
_COMPARISONS = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
                "==": np.equal, "!=": np.not_equal}  # fmt: skip


def _folded(operator: str, left: float, right: float, at: At) -> Term:
    """Of two numbers: with the sign of a zero, and rounded as the type is."""
    dtype = np.dtype(at.inputs[0].dtype)
    if operator == "/" and dtype.kind in "iu":
        raise NoFormula("a quotient of whole numbers")
    with np.errstate(all="ignore"):
        made = {**_ARITHMETIC, **_COMPARISONS}[operator](np.array(left, dtype), np.array(right, dtype))
    if made.dtype.kind == "b":
        return number(int(made))
    return at.formula.number(made, at.value.dtype)


def _rescaled(operator: str, x: Scaled, by: float, dtype: Any, exact: bool) -> Term | None:
    """A draw that is scaled and moved stays one."""
    assert x.draw is not None
    if exact:
        # As long as the engine's one rounding of each step is that of JAX.
        is_plain = x.draw.kind != "uniform" or bounds(x.draw, 1, 0) in ((0, 1), (-1, 1))
        if not is_plain or x.shift or not by or str(x.draw.dtype) != str(np.dtype(dtype)):
            return None
        if operator == "*" and x.scale == 1:
            return as_jax_does(x.draw, rounded(by, dtype))
        if operator in "+-" and x.draw.kind != "uniform":
            return as_jax_does(x.draw, x.scale, rounded(by if operator == "+" else -by, dtype))
        return None
    if operator == "*" and by:
        return scaled(x.draw, rounded(x.scale * by, dtype), rounded(x.shift * by, dtype))
    if operator == "/" and by:
        return scaled(x.draw, rounded(x.scale / by, dtype), rounded(x.shift / by, dtype))
    if operator in "+-":
        shift = x.shift + by if operator == "+" else x.shift - by
        return scaled(x.draw, x.scale, rounded(shift, dtype))
    return None


def _signed_zero(operator: str, left: Term, right: Term) -> Term | None:
    """What a sum with 0 makes of -0, where a part of the other term may be that."""
    zeros = [t.value == 0 and math.copysign(1, t.value) for t in (left, right) if t.value is not None]
    if operator not in "+-" or zeros not in ([1], [-1]):
        return None
    if operator == "-" and left.value is not None:
        if zeros == [-1]:  # -0 - x is -x.
            return _minus(right)
        operand = right.text if right.binds > 2 else f"({right.text})"
        return Term(f"0 - {operand}", 2)
    term = left if right.value is not None else right
    if zeros == [1 if operator == "-" else -1] or "-" not in term.text:
        return term
    return Term(f"{term.text} {operator} {'0' if operator == '+' else '-0.0'}", 2)


def _minus(term: Term) -> Term:
    """With the other sign, also of a zero."""
    operand = term.text if term.binds > 3 else f"({term.text})"
    return Term(f"-{operand}", 4)


def _whole(at: At, term: Term) -> Term:
    """A whole number, which begins anew where its type ends."""
    low, high = at.formula.graph.interval(at.value)
    info = np.iinfo(at.value.dtype)
    if info.min <= low and high <= info.max:
        return term
    if max(-low, high) > 1 << 53:
        raise NoFormula("whole numbers that may be above 2^53")
    every = number(1 << info.bits)
    if not info.min:
        return call("mod", term, every)
    moved = call("mod", binary("+", term, number(-info.min)), every)
    return binary("-", moved, number(-info.min))


def _divided(at: At) -> Term:
    if np.dtype(at.value.dtype).kind not in "iu":
        return _combined("/", at.of(0), at.of(1), at)
    _check_positive(at)
    return call("floor", binary("/", at.of(0), at.of(1)))


def _rest(at: At) -> Term:
    if np.dtype(at.value.dtype).kind not in "iu":
        raise NoFormula("the rest of a division of fractions")
    _check_positive(at)
    return call("mod", at.of(0), at.of(1))


def _check_positive(at: At) -> None:
    """JAX rounds a quotient towards 0, and an expression down."""
    low, high = (at.formula.graph.interval(at.inputs[n])[0] for n in (0, 1))
    if low < 0 or high < 1:
        raise NoFormula("a division of whole numbers that may be below 0")


def _shifted(at: At) -> Term:
    """To the right, by a known number of places."""
    places = at.of(1)
    if places.value is None or at.formula.graph.interval(at.inputs[0])[0] < 0:
        raise NoFormula("bits of whole numbers")
    return call("floor", binary("/", at.of(0), number(1 << int(places.value))))


def _function(name: str) -> Build:
    return lambda at: _rounded(at, call(name, at.of(0)))


def _rounded(at: At, term: Term) -> Term:
    return rounding(term, at.value.dtype) if at.formula.exact else term


def _sign(at: At) -> Term:
    term = at.of(0)
    if term.value is not None:
        return at.formula.number(np.sign(term.value) if term.value else term.value, at.value.dtype)
    return binary("-", binary(">", term, number(0)), binary("<", at.of(0), number(0)))


def _negative(at: At) -> Term:
    term = at.of(0)
    if np.dtype(at.value.dtype).kind in "iu":
        return _whole(at, binary("-", number(0), term))
    if term.value is not None:
        return at.formula.number(-float(term.value), at.value.dtype)
    if isinstance(term, Scaled) and term.draw is not None:
        again = as_jax_does if at.formula.exact else scaled
        made = again(term.draw, -term.scale, -term.shift)
        return made if not at.formula.exact else dataclasses.replace(
            made, text=_minus(term).text, binds=4)  # fmt: skip
    return _minus(term)


def _converted(at: At) -> Term:
    term, source, target = at.of(0), np.dtype(at.inputs[0].dtype), np.dtype(at.value.dtype)
    if target.kind == "c":
        raise NoFormula("complex numbers")
    if target.kind == "b" and source != target:
        return binary("!=", term, number(0))
    if target.kind in "iu" and source.kind not in "iub":
        if term.value is not None:
            return number(math.trunc(term.value))
        if not (term.text.startswith("floor(") and term.text.endswith(")")):
            raise NoFormula("numbers are cut to whole ones")
    if target.kind in "iu":
        low, high = at.formula.graph.interval(at.inputs[0])
        info = np.iinfo(target)
        if low < info.min or high > info.max:
            raise NoFormula(f"whole numbers that {target} may not have")
    if target.kind not in "biu" and term.value is None:
        if source.kind == "b":
            return term
        if source.kind in "iu":
            low, high = at.formula.graph.interval(at.inputs[0])
            exactly_held = max(-low, high) <= 1 << (jnp.finfo(target).nmant + 1)
        else:
            exactly_held = jnp.finfo(target).nmant >= jnp.finfo(source).nmant
        if not exactly_held and not rounding_of(target):
            raise NoFormula(f"numbers are rounded to {target}")
        if not exactly_held:
            return rounding(term, target)
    return term if term.value is None else at.formula.number(term.value, target)


def _power(at: At) -> Term:
    by = number(at.params["y"]) if "y" in at.params else at.of(1)
    if np.dtype(at.value.dtype).kind in "iu":
        return _whole(at, call("pow", at.of(0), by))
    return _rounded(at, call("pow", at.of(0), by))


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
    index = [Index(int(a)).plus(i, int(s)) for i, a, s in zip(at.index, starts, steps, strict=True)]
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


def _stack(at: At) -> Term:
    axis = at.params["axis"]
    return at.formula.joined(
        [1] * len(at.inputs),
        axis,
        at.index,
        at.ranges,
        lambda n, index, ranges: at.at(
            at.inputs[n], tuple(i for d, i in enumerate(index) if d != axis), ranges),
    )


def _unstack(at: At) -> Term:
    axis = at.params["axis"] % len(at.inputs[0].shape)
    return at.at(at.inputs[0], (*at.index[:axis], Index(at.value.result), *at.index[axis:]))


def _nothing(at: At) -> Term:
    """A sum of zeros."""
    if not at.formula.graph.is_zero(at.value):
        raise NoFormula("no expression has this operation")
    return number(0)


def _squared(at: At) -> Term:
    """A product has the bits of JAX, and needs the number twice."""
    if at.formula.placed:
        return _combined("*", at.of(0), at.of(0), at)
    return _rounded(at, call("pow", at.of(0), number(2)))


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
    "abs": lambda at: call("abs", at.of(0)),
    "add": _operator("+"),
    "and": _logical(lambda x, y: binary("*", x, y)),
    "broadcast_in_dim": _broadcast,
    "ceil": lambda at: _minus(call("floor", _minus(at.of(0)))),
    "clamp": _clamped,
    "concatenate": _concatenate,
    "convert_element_type": _converted,
    "cos": _function("cos"),
    "div": _divided,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "eq": _operator("=="),
    "erf_inv": _function("erf_inv"),
    "exp": _function("exp"),
    "exp2": lambda at: _rounded(at, call("pow", number(2), at.of(0))),
    "expand_dims": _expand,
    "expm1": _function("expm1"),
    "floor": lambda at: call("floor", at.of(0)),
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
    "reduce_sum": _nothing,
    "rem": _rest,
    "reshape": _reshape,
    "rev": _reversed,
    "rsqrt": lambda at: _rounded(at, binary("/", number(1), call("sqrt", at.of(0)))),
    "scatter": _scatter(None),
    "scatter-add": _scatter(lambda at, x, y: _combined("+", x, y, at)),
    "scatter-mul": _scatter(lambda at, x, y: _combined("*", x, y, at)),
    "scatter-sub": _scatter(lambda at, x, y: _combined("-", x, y, at)),
    "select_n": _select,
    "shift_right_logical": _shifted,
    "sign": _sign,
    "sin": _function("sin"),
    "slice": _slice,
    "split": _split,
    "sqrt": _function("sqrt"),
    "square": _squared,
    "stack": _stack,
    "squeeze": _squeeze,
    "sub": _operator("-"),
    "tanh": _function("tanh"),
    "transpose": _transpose,
    "unstack": _unstack,
    "xor": _logical(lambda x, y: binary("!=", x, y)),
}
