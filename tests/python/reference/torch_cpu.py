"""The engine torch_cpu: words, samplers, matrices and the functions of expressions."""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from .expressions import FUNCTIONS, natural_log, log1p, sine_of
from .jax_threefry import multiply_add
from .matrices import left_to_right
from .samplers import f32, f64, from_hex, u32, u64

LN = [f32(c) for c in (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
                       -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)]
LN2 = [f32(c) for c in (0.693359375, -2.12194440e-4)]
QUARTER = [f32(c) for c in (-0.78515625, -2.4187564849853515625e-4, -3.77489497744594108e-8)]
COS = [f32(c) for c in (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)]
SIN = [f32(c) for c in (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)]
HALF_ROOT, OCTANTS, TURN = from_hex("0x1.6a09e6p-1 0x1.45f306p+0 0x1.921fb6p+2", f32)
TURN64, = from_hex("0x1.921fb54442d18p+2", f64)


class Words:
    """MT19937 of a seed."""

    def __init__(self, seed):
        self.x = [seed & 0xFFFFFFFF]
        for i in range(1, 624):
            self.x.append((1812433253 * (self.x[-1] ^ (self.x[-1] >> 30)) + i) & 0xFFFFFFFF)

    def at(self, places):
        x = self.x
        for i in range(len(x), 625 + int(np.max(places, initial=-1))):
            y = (x[i - 624] & 0x80000000) | (x[i - 623] & 0x7FFFFFFF)
            x.append(x[i - 227] ^ (y >> 1) ^ (0x9908B0DF if y & 1 else 0))
        y = np.array(x, u32)[624 + places]
        y = y ^ (y >> u32(11))
        y = y ^ ((y << u32(7)) & u32(0x9D2C5680))
        y = y ^ ((y << u32(15)) & u32(0xEFC60000))
        return y ^ (y >> u32(18))

    def two(self, p):
        return self.at(p).astype(u64) << u64(32) | self.at(p + 1)

    def u24(self, p):
        return (self.at(p) & u32(0xFFFFFF)).astype(f32) * f32(2.0**-24)

    def u53(self, p):
        return (self.two(p) & u64(2**53 - 1)).astype(f64) * 2.0**-53

    def permutation(self, p, size):
        v = list(range(size))
        for i, word in enumerate(self.at(p + np.arange(size - 1)).tolist()):
            k = i + word % (size - i)
            v[i], v[k] = v[k], v[i]
        return v


def fma64(a, b, c):
    def once(a, b, c):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        return float(exact) if exact != 0 else a * b + c
    return np.vectorize(once, otypes=[f64])(a, b, c)


def rounded(x, dtype):
    """To a number of the type, over f32 but for f64."""
    return f64(x) if dtype == "f64" else FUNCTIONS[dtype](f64(x))


class Draw(NamedTuple):
    """What one call draws."""
    words: Words
    position: int
    spare: int | None
    size: int
    dtype: str = "f32"

    def end(self):
        """The place and the spare after it, if it is normal."""
        if self.size >= 16:
            each = 2 if self.dtype == "f64" else 1
            first = self.size if self.dtype in ("f32", "f64") else self.size // 16 * 16
            return self.position + each * (self.size if self.size % 16 == 0 else first + 16), self.spare
        own = self.size - (self.spare is not None and self.size > 0)
        end = self.position + (own + 1) // 2 * 4
        return end, self.spare if self.size == 0 else end - 4 if own % 2 else None


# The elements i of a draw, as f64 numbers.

def uniform(draw, i, low, high):
    if draw.dtype == "f64":
        v = fma64(draw.words.u53(draw.position + 2 * i), high - low, low)
    else:
        v = rounded(multiply_add(draw.words.u24(draw.position + i), f32(high) - f32(low), f32(low)), draw.dtype)
    return np.where(v == rounded(high, draw.dtype), rounded(low, draw.dtype), v)


def log_of(u):
    bits = u.view(u32)
    e = ((bits >> u32(23)).astype(np.int32) - 126).astype(f32)
    m = ((bits & u32(0x7FFFFF)) | u32(0x3F000000)).view(f32)
    e, m = np.where(m < HALF_ROOT, e - f32(1), e), np.where(m < HALF_ROOT, (m - f32(1)) + m, m - f32(1))
    q, y = m * m, np.full_like(m, LN[0])
    for c in LN[1:]:
        y = multiply_add(y, m, c)
    y = multiply_add(y * m, q, e * LN2[1])
    y = multiply_add(-q, f32(0.5), y)
    return multiply_add(e, LN2[0], m + y)


def sine_and_cosine(a):
    k = ((a * OCTANTS).astype(np.int32) + 1) & ~1
    x = a
    for c in QUARTER:
        x = multiply_add(k.astype(f32), c, x)
    q = x * x
    cosine = multiply_add(multiply_add(np.full_like(q, COS[0]), q, COS[1]), q, COS[2]) * q
    cosine = multiply_add(cosine, q, -(q * f32(0.5))) + f32(1)
    sine = multiply_add(multiply_add(np.full_like(q, SIN[0]), q, SIN[1]), q, SIN[2]) * q
    sine = multiply_add(sine, x, x)
    quarter = [k % 8 == 2 * n for n in range(4)]
    return (np.select(quarter, [sine, cosine, -sine, -cosine]), np.select(quarter, [cosine, -sine, -cosine, sine]))


def in_group(draw, begin, j, mean, std):
    eighth = begin + j % 8
    r = np.sqrt(f32(-2) * log_of(f32(1) - draw.words.u24(eighth)))
    sine, cosine = sine_and_cosine(TURN * draw.words.u24(eighth + 8))
    return multiply_add(r * np.where(j < 8, cosine, sine), f32(std), f32(mean))


def in_wide_group(draw, begin, j, mean, std):
    eighth = begin + 2 * (j % 8)
    r = np.sqrt(-2 * natural_log(1 - draw.words.u53(eighth)))
    t = TURN64 * draw.words.u53(eighth + 16)
    return fma64(r * np.where(j < 8, sine_of(t, 1), sine_of(t, 0)), std, mean)


def pairs(draw, i, mean, std):
    own = i - (draw.spare is not None)  # -1 for the one that was left over
    begin = np.where(own < 0, draw.spare or 0, draw.position + own // 2 * 4)
    r = np.sqrt(-2 * log1p(-draw.words.u53(begin + 2)))
    t = TURN64 * draw.words.u53(begin)
    return rounded(fma64(r * np.where(own % 2 == 0, sine_of(t, 1), sine_of(t, 0)), std, mean), draw.dtype)


def normal(draw, i, mean, std):
    if draw.size < 16:
        return pairs(draw, i, mean, std)
    anew = (draw.size % 16 != 0) & (i >= draw.size - 16)
    j = np.where(anew, i - (draw.size - 16), i % 16)
    each = 2 if draw.dtype == "f64" else 1
    before = each * (draw.size if draw.dtype in ("f32", "f64") else draw.size // 16 * 16)
    begin = draw.position + np.where(anew, before, each * (i - i % 16))
    return rounded((in_wide_group if draw.dtype == "f64" else in_group)(draw, begin, j, mean, std), draw.dtype)


def truncated_normal(draw, i, mean, std, low, high):
    low, high = rounded(low, draw.dtype), rounded(high, draw.dtype)
    values, outside = np.zeros(len(i)), np.ones(len(i), bool)
    while outside.any():
        values[outside] = normal(draw, i[outside], mean, std)
        outside = (values < low) | (values > high)
        position, spare = draw.end()
        draw = draw._replace(position=position, spare=spare)
    return values


def sparse(draw, shape, i, std, zeros):
    values, (rows, columns) = normal(draw, i, 0.0, std), shape
    for c in set((i % columns).tolist()):
        zero = draw.words.permutation(draw.end()[0] + c * (rows - 1), rows)[:zeros]
        values[(i % columns == c) & np.isin(i // columns, zero)] = 0
    return values


def dot(a, b):
    terms, eights = a * b, len(a) // 8 * 8
    total = 0.0
    for term in terms[eights:]:
        total = total + term
    for m in range(8):
        total = total + (left_to_right(terms[m:eights:8]) if eights else 0.0)
    return total


def orthogonal(draw, shape, i, gain):
    x = normal(draw, np.arange(draw.size), 0.0, 1.0).reshape(shape[0], -1)
    turned = x.shape[0] < x.shape[1]
    q = x.T.copy() if turned else x
    for c in range(q.shape[1]):
        a = q[:, c]
        for k in [*range(c), *range(c)]:
            a = a - dot(a, q[:, k]) * q[:, k]
        q[:, c] = a / np.sqrt(dot(a, a))
    return ((q.T if turned else q).astype(f32) * f32(gain)).ravel()[i]


class Stream:
    """Stands for a tensor's key: its place in the stream, if it has one."""

    def __init__(self, seed, position=0, spare=None):
        self.words, self.place = Words(seed), (position, spare)

    def elements_of(self, kind, p, dtype, shape, i):
        draw = Draw(self.words, *self.place, int(np.prod(shape, dtype=np.int64)), dtype)
        if kind == "truncated_normal":
            low, high = (p["mean"] + p[end] * p["std"] for end in ("low", "high"))
            return truncated_normal(draw, i, p["mean"], p["std"], low, high)
        if kind == "sparse":
            return sparse(draw, shape, i, p["std"], p["zeros"])
        if kind == "orthogonal":
            return orthogonal(draw, shape, i, p["gain"])
        return {"uniform": uniform, "normal": normal}[kind](draw, i, *p.values())

    def call(self, name, *arguments):
        """A function of expressions."""
        kind, dtype = name.rsplit("_", 1) if name.endswith(("_bf16", "_f16", "_f64")) else (name, "f32")
        place, *numbers = arguments
        size, words = 2.0**53, self.words
        if kind == "torch_word":
            i, make = place, words.at
        elif kind == "torch_randint":
            i, n = numbers
            one = lambda i: words.at(int(place) + i).astype(u64)
            two = lambda i: words.two(int(place) + 2 * i)
            make = lambda i: (one if n < 2**28 else two)(i) % u64(n)
        elif kind == "torch_permutation":
            size, i = numbers
            make = lambda i: np.array(words.permutation(int(place), int(size)))[i]
        elif kind == "torch_orthogonal":
            spare, rows, columns, i, gain = numbers
            size = rows * columns
            draw = Draw(words, int(place), None if spare == -1 else int(spare), int(size))
            make = lambda i: orthogonal(draw, (int(rows), int(columns)), i, gain)
        elif kind.endswith(("_sums", "_sorted")):
            spare = int(numbers.pop(0)) if kind.startswith("torch_normal") else -1
            *rows, i, low, high = numbers if kind.endswith("_sorted") else [*numbers[:4], *numbers[5:]]
            count, length = int(rows[0]), int(rows[1])
            draw = Draw(words, int(place), None if spare == -1 else spare, count)
            drawn = (normal if kind.startswith("torch_normal") else uniform)(draw, np.arange(count), low, high)
            if kind.endswith("_sorted"):
                found = np.sort(drawn.reshape(-1, length), axis=1).ravel()
            else:
                powers = drawn.astype(f64).reshape(-1, length, int(rows[2])) ** int(numbers[4])
                found = left_to_right(np.swapaxes(powers, 0, 1)).ravel()
            size, make = len(found), lambda i: found[i]
        elif kind == "torch_uniform":
            i, *parameters = numbers
            make = lambda i: uniform(Draw(words, int(place), None, 0, dtype), i, *parameters)
        else:
            spare = None if numbers[0] == -1 else int(numbers[0])
            if kind == "torch_pairs":
                i, *parameters = numbers[1:]
            else:
                size, i, *parameters = numbers[1:]
            draw = Draw(words, int(place), spare, int(size), dtype)
            sampler = {"torch_normal": normal, "torch_pairs": pairs, "torch_trunc_normal": truncated_normal}[kind]
            make = lambda i: sampler(draw, i, *parameters)
        i = np.atleast_1d(i)
        known = (i >= 0) & (i < size) & (np.floor(i) == i)
        values = np.full(i.shape, np.nan)
        values[known] = make(i[known].astype(np.int64))
        return values
