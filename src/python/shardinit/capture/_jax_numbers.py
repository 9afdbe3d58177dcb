"""Converts the random numbers of a JAX draw to terms of a spec's expression."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._dtypes import name_of, rounding_of
from ._expression import (
    Index,
    NoFormula,
    Term,
    affine,
    binary,
    call,
    number,
    shortest,
    truncated_normal,
    where,
)
from ._jax_values import Draw
from ._tensor import make


@dataclasses.dataclass(frozen=True)
class Scaled(Term):
    """The term `scale * x + shift`, where x is a number of a draw."""

    draw: Draw | None = None
    scale: float = 1
    shift: float = 0


def scaled(draw: Draw, scale: float = 1, shift: float = 0) -> Scaled:
    if draw.kind == "uniform":
        low, high = bounds(draw, scale, shift)
        term, times, plus = Term("uniform()"), rounded(high - low, draw.dtype), low
    else:
        term, times, plus = _standard(draw), scale, shift
    if times == -1:  # The draw of an exponential distribution has this factor.
        term = binary("-", number(plus), term)
    else:
        term = affine(term, number(times), number(plus))
    return Scaled(term.text, term.binds, draw=draw, scale=scale, shift=shift)


def as_jax_does(draw: Draw, scale: float = 1, shift: float = 0) -> Scaled:
    """Does the same as `scaled`, with JAX's bits: multiply, round to f32, add, and round again.

    If the expression would have other bits, its text has a word in angle brackets.
    """
    term = Term("normal()" if draw.kind == "normal" else f"<{draw.kind}>")
    if draw.kind == "uniform" and is_unit(draw):
        term = above(draw, Term("uniform()"))
    if scale != 1:
        term = rounding(binary("*", term, number(exactly(scale, draw.dtype))), draw.dtype)
    if shift:
        term = rounding(affine(term, None, number(exactly(shift, draw.dtype))), draw.dtype)
    return Scaled(term.text, term.binds, dtype=term.dtype, exact=term.exact, draw=draw,
                  scale=scale, shift=shift)  # fmt: skip


def is_unit(draw: Draw) -> bool:
    """Returns whether a draw is uniform from 0 to 1, or from the least number for logarithms."""
    low, high = (exactly(draw.parameters[end], draw.dtype) for end in ("low", "high"))
    return high == 1 and 0 <= low < LEAST


def above(draw: Draw, unit: Term) -> Term:
    low = exactly(draw.parameters["low"], draw.dtype)
    return rounding(binary("+", unit, number(low)), draw.dtype) if low else unit


NO_QR = "no engine has the bits of JAX's QR decomposition"
LEAST = 2.0**-80  # A uniform distribution may begin at this number instead of 0.


def exactly(value: Any, dtype: Any) -> float | int:
    """Returns the number as stored in the type."""
    exact = float(np.asarray(value).astype(dtype))
    if not math.isfinite(exact):
        raise NoFormula(f"a spec has no number {exact}")
    return exact


def rounding(term: Term, dtype: Any) -> Term:
    """Returns a term rounded to a type, as by a JAX operation."""
    name = rounding_of(np.dtype(dtype))
    if not name or term.value is not None or term.dtype == name:
        return term
    made = call(name, term)
    return Term(made.text, made.binds, dtype=name, exact=term)


def bounds(draw: Draw, scale: float, shift: float) -> tuple[float, float]:
    """Returns the bounds of uniform numbers, or of truncated ones in standard deviations."""
    ends = (short(draw.parameters[end], draw.dtype) for end in ("low", "high"))
    low, high = (rounded(end * scale + shift, draw.dtype) for end in ends)
    return low, high


def _standard(draw: Draw) -> Term:
    match draw.kind:
        case "normal":
            return Term("normal()")
        case "truncated_normal":
            return truncated_normal(*bounds(draw, 1, 0))
    return Term(f"<{draw.kind}>")


def short(value: Any, dtype: Any) -> float | int:
    """Returns the shortest number that rounds to this one in the type."""
    dtype = np.dtype(dtype)
    if dtype.kind in "biu":
        return int(value)
    exact = float(value)
    if not math.isfinite(exact):
        raise NoFormula(f"a spec has no number {exact}")
    return shortest(exact, lambda near: float(np.asarray(near).astype(dtype)) == exact)


def low_bits(word: Term, draw: Draw) -> Term:
    """Returns the lower bits of a random word, in the width of the type."""
    width = 8 * np.dtype(draw.dtype).itemsize
    if width > 32:
        raise NoFormula("JAX draws 64 bits of two words", draw.origin)
    return word if width == 32 else call("mod", word, number(1 << width))


def of_bits(draw: Draw, word: Term) -> Term:
    """Returns a 16-bit number as JAX's `_uniform`, `_normal_real` and `_truncated_normal` make it.

    A bf16 is made from a word's lower 8 bits, of which it keeps 7; an f16 from 16 bits, of which it
    keeps 10. XLA rounds each operation to bf16. For f16, a product and sum are rounded once if the
    processor has a fused operation (AVX512-FP16), and twice otherwise: NoFormula is raised if these
    differ.
    """
    dtype = np.dtype(draw.dtype)
    if str(dtype) not in ("bfloat16", "float16"):
        raise NoFormula(f"JAX draws {draw.dtype} numbers in another way than f32,"
                        " which the engine has", draw.origin)  # fmt: skip
    drawn, kept = (8, 7) if str(dtype) == "bfloat16" else (16, 10)
    lower = call("mod", word, number(1 << drawn))
    lowest = call("floor", binary("/", lower, number(1 << drawn - kept)))
    unit = binary("/", lowest, number(1 << kept))

    def at(value: float) -> float:
        return float(exactly(value, dtype))

    def uniform(low: float, high: float) -> Term:
        if drawn == 16 and not _is_rounded_alike(at(high - low), low, 1 << kept):
            why = "XLA makes other numbers of f16 in these bounds where the processor has fused"
            raise NoFormula(f"{why} operations for them: draw them in f32", draw.origin)
        product = rounding(binary("*", unit, number(at(high - low))), dtype)
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


def _is_rounded_alike(scale: float, shift: float, steps: int) -> bool:
    """Returns whether rounding the product in `i / steps * scale + shift` changes no f16 result."""
    product = np.arange(steps) / steps * scale
    twice = product.astype(np.float16).astype(np.float64) + shift
    return bool(((product + shift).astype(np.float16) == twice.astype(np.float16)).all())


@functools.cache
def _other_erf_inv(dtype: str, low: float, high: float, bits: int) -> tuple[tuple[int, float], ...]:
    """Returns the numbers whose erf_inv JAX rounds differently: pairs of place and JAX's value."""
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
    """Returns the neighbour of a number; 0 if the neighbour is subnormal, as in XLA."""
    found = float(np.nextafter(np.array(value, dtype), np.array(to, dtype)))
    smallest = float(jnp.finfo(dtype).smallest_normal)  # type: ignore[no-untyped-call]
    return found if abs(found) >= smallest else 0.0


def integers_of(draw: Draw, upper: Term, lower: Term) -> Term:
    """Returns a number of JAX's `_randint`: the remainder of twice as many bits as the type has."""
    width = 8 * np.dtype(draw.dtype).itemsize
    low, high = (int(draw.parameters[end]) for end in ("low", "high"))
    span, every = high - low, 1 << width
    if width > 32 or span > 1 << 26:
        raise NoFormula("whole numbers of more than 26 bits", draw.origin)
    factor = ((1 << width // 2) % span) ** 2 % every % span
    if width < 32:
        upper, lower = (call("mod", word, number(every)) for word in (upper, lower))
    rest = call("mod", lower, number(span))
    if factor:
        first = call("mod", upper, number(span))
        product = call("mod", binary("*", first, number(factor)), number(every))
        rest = call("mod", call("mod", binary("+", product, rest), number(every)), number(span))
    return binary("+", rest, number(low))


def place_of(draw: Draw, index: tuple[Index, ...]) -> Index:
    """Returns the place of a draw's element among the numbers of its key."""
    batch, place = len(draw.keys.shape), Index(0)
    for d, i in enumerate(index[batch:], batch):
        place = place.plus(i, math.prod(draw.shape[d + 1 :]))
    return place


def draw_is_of_one_key(draw: Draw) -> bool:
    """Returns whether JAX makes these integers from words of one key, the second of its two."""
    span = int(draw.parameters["high"]) - int(draw.parameters["low"])
    return 0 < span <= 1 << 16 and not span & (span - 1) and np.dtype(draw.dtype).itemsize == 4


def rounded(value: float, dtype: Any) -> float:
    """Returns a number as stored in the type, with as few digits as possible."""
    if np.dtype(dtype).kind in "biu":
        return value
    # The shortest digits that round to a 16-bit number are another number if they are not rounded.
    say = exactly if np.dtype(dtype).itemsize == 2 else short
    return say(np.asarray(value).astype(dtype), dtype)
