"""Expressions over elements, and their functions."""

import functools
import math
import re

import numpy as np

from .samplers import JaxKey, coordinates, f64, from_hex, normal, truncated_normal, uniform, words_of
from .sources import moments

L = from_hex("0x1.62e42fefa38p-1 0x1.ef35793c76p-45 0x1.cc01f97b57a08p-87", f64)
A = from_hex("0x1.5555555555555p-1 0x1.5555555555555p-55", f64)
B = from_hex("0x1.999999999999ap-2 -0x1.999999999999ap-56", f64)
T = [2 / f64(n) for n in range(7, 28, 2)]
H = from_hex("0x1.921fb54p+0 0x1.10b461p-30 0x1.a62633p-58 0x1.45c06ep-86 0x1.cd129024e088ap-115", f64)
E = [f64(1 / math.factorial(n)) for n in range(3, 16)]
S = [f64((-1) ** (n // 2) / math.factorial(n)) for n in range(3, 20, 2)]
C = [f64((-1) ** (n // 2) / math.factorial(n)) for n in range(4, 21, 2)]


def two_sum(a, b):
    s = a + b
    v = s - a
    u = s - v
    return s, (a - u) + (b - v)


def fast_two_sum(a, b):
    s = a + b
    return s, b - (s - a)


def split(x):
    t = x * f64(float.fromhex("0x1.0000002p+27"))
    h = t - (t - x)
    return h, x - h


def two_product(a, b):
    p = a * b
    (x, X), (y, Y) = split(a), split(b)
    return p, (((x * y - p) + x * Y) + X * y) + X * Y


def times(a, b):
    p = two_product(a[0], b[0])
    return fast_two_sum(p[0], p[1] + (a[0] * b[1] + a[1] * b[0]))


def nearest(x):
    return (x + f64(1.5 * 2.0**52)) - f64(1.5 * 2.0**52)


def horner(c, x):
    total = c[-1]
    for coefficient in reversed(c[:-1]):
        total = coefficient + x * total
    return total


def clip(x, a, b):
    y = np.where(x < a, a, x)
    return np.where(y > b, b, y)


def whole_power(k):
    """A whole number, as an exponent; any number if the value is no number."""
    return np.where(np.isfinite(k), k, 0).astype(int)


def scale_of(x, k):
    k = whole_power(k)
    h = k // 2
    return (x * np.ldexp(1.0, h)) * np.ldexp(1.0, k - h)


def power(x):
    k = nearest(x[0] * f64(float.fromhex("0x1.71547652b82fep+0")))
    s = two_sum(x[0] - k * L[0], -(k * L[1]))
    r = fast_two_sum(s[0], (s[1] - k * L[2]) + x[1])
    q = two_product(r[0], r[0])
    h, m = 0.5 * q[0], 0.5 * q[1] + r[0] * r[1]
    c = (r[0] * q[0]) * horner(E, r[0])
    t = fast_two_sum(r[0], h)
    return k, fast_two_sum(t[0], ((t[1] + r[1]) + m) + c)


def exp_of(x):
    k, e = power(x)
    o = fast_two_sum(f64(1), e[0])
    return scale_of(o[0] + (o[1] + e[1]), k)


def exp(x):
    return exp_of((clip(x, -1100, 1100), f64(0)))


def expm1_of(x):
    k, e = power((x, f64(0)))
    b = np.ldexp(1.0, whole_power(k))
    m = two_sum(b, f64(-1))
    s = two_sum(m[0], b * e[0])
    return fast_two_sum(s[0], s[1] + (m[1] + b * e[1]))


def expm1(x):
    hi, lo = expm1_of(clip(x, -40, 40))
    return np.where(x > 40, exp(x), hi + lo)


def log_of(x):
    m, e = np.frexp(x)
    low = m < float.fromhex("0x1.6a09e667f3bcdp-1")
    m, e = np.where(low, 2 * m, m), np.where(low, e - 1, e).astype(f64)
    f = m - 1
    d = two_sum(m, f64(1))
    g = f / d[0]
    p = two_product(g, d[0])
    s = g, (((f - p[0]) - p[1]) - g * d[1]) / d[0]
    u = times(s, s)
    a = fast_two_sum(B[0], u[0] * horner(T, u[0]))
    b = times(u, (a[0], a[1] + B[1]))
    c = fast_two_sum(A[0], b[0])
    w = times(times(s, u), (c[0], c[1] + (b[1] + A[1])))
    y = fast_two_sum(2 * s[0], w[0])
    l = fast_two_sum(y[0], y[1] + (2 * s[1] + w[1]))
    W = two_sum(e * L[0], e * L[1])
    total = two_sum(W[0], l[0])
    return fast_two_sum(total[0], total[1] + (W[1] + (l[1] + e * L[2])))


def log_ends(x, log):
    return np.where(x > 0, np.where(x == np.inf, np.inf, log), np.where(x == 0, -np.inf, np.nan))


def natural_log(x):
    hi, lo = log_of(x)
    return log_ends(x, hi + lo)


def log1p(x):
    a = two_sum(f64(1), x)
    l = log_of(a[0])
    m = two_sum(l[0], a[1] / a[0])
    return log_ends(a[0], m[0] + (m[1] + l[1]))


def pow(x, y):
    l = log_of(np.abs(x))
    z = clip(y, -(2.0**64), 2.0**64)
    p = two_product(z, l[0])
    q = clip(p[0], -1100, 1100)
    r = exp_of((q, np.where(q == p[0], p[1] + z * l[1], 0)))
    whole = np.floor(y) == y
    odd = whole & np.isfinite(y) & (np.mod(y, 2) == 1)
    return np.select(
        [y == 0, np.isnan(x) | np.isnan(y) | (x == -np.inf), x == np.inf, x == 0, (x < 0) & ~whole, (x < 0) & odd],
        [1.0, np.nan, np.where(y > 0, np.inf, 0), np.where(y > 0, 0, np.inf), np.nan, -r], r)


def sine_of(x, turns):
    k = nearest(x * f64(float.fromhex("0x1.45f306dc9c883p-1")))
    a = two_sum(x - k * H[0], -(k * H[1]))
    b = two_sum(a[0], -(k * H[2]))
    c = two_sum(a[1], b[1])
    d = two_sum(c[0], -(k * H[3]))
    s = two_sum(b[0], d[0])
    r = fast_two_sum(s[0], s[1] + ((c[1] + d[1]) - k * H[4]))
    q = r[0] * r[0]
    h = 0.5 * q
    n = 1 - h
    sine = r[0] + ((r[0] * q) * horner(S, q) + (r[1] - h * r[1]))
    cosine = n + (((1 - n) - h) + ((q * q) * horner(C, q) - r[0] * r[1]))
    inside = np.abs(x) <= 2.0**26
    quarter = np.mod(np.where(inside, k, 0) + turns, 4)
    value = np.select([quarter == 0, quarter == 1, quarter == 2], [sine, cosine, -sine], -cosine)
    return np.where(inside, value, np.nan)


def tanh(x):
    size = np.abs(x)
    e = expm1_of(2 * np.where(20 < size, 20, size))
    s = two_sum(f64(2), e[0])
    g = e[0] / s[0]
    p = two_product(g, s[0])
    value = g + (((e[0] - p[0]) - p[1]) + (e[1] - g * (s[1] + e[1]))) / s[0]
    return np.where(size < 2.0**-28, x, np.copysign(value, x))


# From, centre, scale, rest and coefficients of each row.
ERF_INV = [(limit, *(f64(float.fromhex(number)) for number in (centre, scale, rest)), from_hex(c, f64))
           for limit, centre, scale, rest, c in (
    (None, "0x1p-3", "0x1p+3", "-0x1.7f22acb79d9ccp-55", """
    0x1.d5b68cab21ed6p-1 0x1.12fc00eac5523p-5 0x1.56a033eae079cp-9
    0x1.08877d2b5758ap-12 0x1.c499564b137f5p-16 0x1.9b356de909b6cp-19
    0x1.84ae113efcb89p-22 0x1.79cf268111f9cp-25 0x1.76f88a42f7e9fp-28
    0x1.7a31dfc502a0cp-31 0x1.825e2ba961e1ep-34 0x1.8edcc0c2b7e25p-37
    0x1.9f590f3c2a44fp-40 0x1.b3b12975db08fp-43 0x1.cbeff8b23ad55p-46
    0x1.e820a0de5eb02p-49 0x1.03414764d3555p-51 0x1.1595f725da5b9p-54
    0x1.483f22b513b17p-57 0x1.621eef9040412p-60"""),
    (1.4375, "0x1.2p+0", "0x1.999999999999ap+1", "0x1.ac3e12f538496p-56", """
    0x1.5a2c18a08a3aap-1 0x1.7405686e7f8e1p-4 -0x1.27c3fb062294ap-6
    0x1.68a23b2daf81dp-9 -0x1.1fb8a1a8cb996p-12 -0x1.47ca05c454ep-18
    0x1.6116ad5a99382p-17 -0x1.95ae97f1d99ap-19 0x1.2674c9de1161ap-21
    -0x1.eb8a29bd8e7bp-25 -0x1.c5ba8b48f0442p-29 0x1.cef38ad73fdfcp-29
    -0x1.0875ce9dea594p-30 0x1.82286991360dap-33 -0x1.330a62cae0a9dp-36
    -0x1.dca7b61d24821p-40 0x1.77f8ba4150cdp-40 -0x1.a72ae5b202163p-42
    0x1.0cc7cba38816ap-44 -0x1.a332b6807971cp-49"""),
    (2.25, "0x1.d8p+0", "0x1.3b13b13b13b14p+1", "-0x1.d61807d05f6cfp-55", """
    0x1.a1b8d8d44c863p-1 0x1.a4347f2f44713p-5 -0x1.6353de4329a7ap-7
    0x1.03f5f2c4874b2p-9 -0x1.504aa87325684p-12 0x1.77fe8e59b55f3p-15
    -0x1.4974c8c22f9a7p-18 0x1.fe7361b29ff63p-23 0x1.3668d4af09c12p-24
    -0x1.07b48ab4c50edp-25 0x1.08fce9ed2e4d6p-27 -0x1.a7a218f79646fp-30
    0x1.19d73c38cd203p-32 -0x1.2a1a18a3c884p-35 0x1.76b1435889d5bp-39
    0x1.2d614222afe69p-42 -0x1.96f297a60b2c5p-43 0x1.dff18ceb27729p-45
    -0x1.e5dc264916a87p-47 0x1.4f46ef220edcep-49"""),
    (3.5, "0x1.7p+1", "0x1.999999999999ap+0", "0x1.6ffdf4ad884e6p-56", """
    0x1.cc420fd61479ep-1 0x1.00c04ccb84a54p-5 -0x1.eedff1f5795bdp-8
    0x1.ab147f4ff7fa7p-10 -0x1.5713bc1a540bap-12 0x1.03d7adc32d197p-14
    -0x1.73a66ac346b75p-17 0x1.f23bc1b0f904fp-20 -0x1.32d46b4f46312p-22
    0x1.4aa26874787cap-25 -0x1.0ad1f1d5e823fp-28 0x1.69a2801e93081p-35
    0x1.134edfead34c8p-33 -0x1.a28cba1d1801fp-35 0x1.c8ad1439ee5abp-37
    -0x1.ac7e357edd6f7p-39 0x1.693362a99923fp-41 -0x1.1c703f1c22c7cp-43
    0x1.cb8e3cfab26aep-46 -0x1.1ee9945e663b6p-48"""),
    (np.inf, "0x1.34p+2", "0x1.8618618618618p-1", "0x1.4c8524f62de7p-57", """
    0x1.e806b34a94b17p-1 0x1.4476fcdb796b6p-6 -0x1.ad8e53a4617eap-8
    0x1.01b9bf660c3ep-9 -0x1.2493b4ea54c87p-11 0x1.3fdb65ea9d6f4p-13
    -0x1.53ac663b4092ep-15 0x1.5ff4f02020951p-17 -0x1.64956bb85aa7ap-19
    0x1.6172e64f9511ap-21 -0x1.5682de20889fbp-23 0x1.43d4537792d25p-25
    -0x1.299c2cf4d3bfbp-27 0x1.082015d24f08bp-29 -0x1.be72bc2db4066p-32
    0x1.61213086bcf15p-34 -0x1.0a7888439b8c6p-36 0x1.40d45ef66d4fp-39
    0x1.4c7ab5129da2p-42 -0x1.f619b9b01f00dp-43"""))]


def erf_inv(y):
    size = np.abs(y)
    central = size <= 0.5
    l = log_of(1 - size)
    s = np.sqrt(-l[0])
    p = two_product(s, s)
    f = np.where(central, size, s)
    g = np.where(central, 0, (((-l[0] - p[0]) - p[1]) - l[1]) / (2 * s))  # f'
    v = np.where(central, y * y, s)
    value = np.full_like(f, np.nan)
    done = np.zeros(f.shape, bool)
    for limit, centre, scale, rest, c in ERF_INV:
        here = ~done & (central if limit is None else s <= limit)
        done |= here
        t = ((v - centre) + g) * scale
        a = two_sum(c[0], t * horner(c[1:], t))
        p = two_product(f, a[0])
        value = np.where(here, p[0] + (p[1] + (f * (a[1] + rest) + g * a[0])), value)
    value = np.where(size < 1, value, np.where(size == 1, np.inf, np.nan))
    return np.copysign(value, y)


def to_f32(x):
    return x.astype(np.float32).astype(f64)


def to_f16(x):
    return x.astype(np.float32).astype(np.float16).astype(f64)


def to_bf16(x):
    """Rounds to the nearest f32 whose last 16 bits are 0, and a tie to the even one."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return np.where(x == x, rounded.astype(np.uint32).view(np.float32).astype(f64), x)


FUNCTIONS = {
    "abs": np.abs,
    "bf16": to_bf16,
    "ceil_div": lambda a, b: -np.floor(-a / b),
    "clip": clip,
    "cos": lambda x: sine_of(x, 1),
    "erf_inv": erf_inv,
    "exp": exp,
    "expm1": expm1,
    "f16": to_f16,
    "f32": to_f32,
    "floor": np.floor,
    "log": natural_log,
    "log1p": log1p,
    "max": lambda *x: functools.reduce(lambda a, b: np.where(b > a, b, a), x),
    "min": lambda *x: functools.reduce(lambda a, b: np.where(b < a, b, a), x),
    "mod": lambda a, b: a - np.floor(a / b) * b,
    "pow": pow,
    "round_up": lambda a, b: -np.floor(-a / b) * b,
    "sin": lambda x: sine_of(x, 0),
    "sqrt": np.sqrt,
    "tanh": tanh,
    "where": lambda a, b, c: np.where(a != 0, b, c),
}
def of_key(sampler, *between):
    """A function of two words of a key and an index, which may be none."""
    def at(low, high, index, *more):
        known = (index >= 0) & (index < 2.0**53) & (np.floor(index) == index)
        key = JaxKey(int(low) | int(high) << 32)
        values = sampler(key, 0, np.where(known, index, 0).astype(np.int64).ravel(), *between, *more)
        return np.where(known, values.astype(f64).reshape(np.shape(index)), np.nan)
    return at


FUNCTIONS |= {
    "jax_bits": of_key(words_of),
    "jax_normal": of_key(normal, 0.0, 1.0),
    "jax_truncated_normal": of_key(truncated_normal, 0.0, 1.0),
    "jax_uniform": of_key(uniform),
}
DRAWS = {
    "normal": lambda key, draw, indices: normal(key, draw, indices, 0.0, 1.0).astype(f64),
    "uniform": lambda key, draw, indices: uniform(key, draw, indices, 0.0, 1.0).astype(f64),
    "bits": lambda key, draw, indices: words_of(key, draw, indices).astype(f64),
}
COMPARISONS = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
               "==": np.equal, "!=": np.not_equal}
OPERATORS = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}


# Of a tensor that a source has, and what else a call gives.
SOURCE_NUMBERS = {"source": lambda tensor, index: tensor.numbers[tensor.places(index)],
                  "source_mean": lambda tensor, none: moments(tensor.numbers)[0],
                  "source_std": lambda tensor, none: moments(tensor.numbers)[1]}


class Expression:
    """The value of a text at elements of a tensor, f64."""

    def __init__(self, text, key, shape, indices, sources=None, first_draw=0):
        self.sources = sources
        self.parts = re.findall(r"'[^']*'|\d+(?:\.\d+)?(?:e[+-]\d+)?|[a-z_]\w*|[<>=!]=|[-+*/<>(),]|\S", text)
        self.at = 0
        self.key, self.shape, self.indices, self.draws = key, shape, indices, first_draw
        with np.errstate(all="ignore"):
            self.value = np.broadcast_to(self.comparison(), indices.shape)
        assert self.at == len(self.parts), text

    def next(self, *wanted):
        """The next part, if it is one of those wanted."""
        part = self.parts[self.at] if self.at < len(self.parts) else None
        if part not in wanted:
            return None
        self.at += 1
        return part

    def comparison(self):
        left = self.sum()
        if operator := self.next(*COMPARISONS):
            left = COMPARISONS[operator](left, self.sum()).astype(f64)
        return left

    def sum(self):
        left = self.product()
        while operator := self.next("+", "-"):
            left = OPERATORS[operator](left, self.product())
        return left

    def product(self):
        left = self.factor()
        while operator := self.next("*", "/"):
            left = OPERATORS[operator](left, self.factor())
        return left

    def factor(self):
        if self.next("-"):
            return -self.factor()
        if self.next("("):
            value = self.comparison()
            assert self.next(")")
            return value
        part = self.parts[self.at]
        self.at += 1
        if part[0].isdigit():
            return f64(part)
        if not self.next("("):
            return self.index(part).astype(f64)
        if part in DRAWS:
            assert self.next(")")
            self.draws += 1
            return DRAWS[part](self.key, self.draws - 1, self.indices)
        if part in SOURCE_NUMBERS:
            return SOURCE_NUMBERS[part](*self.source())
        arguments = [self.comparison()]
        while self.next(","):
            arguments.append(self.comparison())
        assert self.next(")")
        if part.startswith("torch_"):
            return self.key.call(part, *arguments)
        return FUNCTIONS[part](*arguments)

    def source(self):
        names, index = [], []
        while not self.next(")"):
            self.next(",")
            if self.parts[self.at][0] == "'":
                names.append(self.parts[self.at][1:-1])
                self.at += 1
            else:
                index.append(np.broadcast_to(self.comparison(), self.indices.shape))
        return self.sources[tuple(names)], index

    def index(self, name):
        if name == "index":
            return self.indices
        return coordinates(self.shape, self.indices)[int(name[1:])]
