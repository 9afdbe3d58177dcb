"""The engine jax_threefry: words and samplers."""

import mpmath
import numpy as np

from .samplers import JaxKey, f32, f64, from_hex, minus_log2, parameter, u32, u64

CENTRAL = from_hex("0x1.805c5ep+0 0x1.f91ec6p-3 -0x1.11c9dep-8 -0x1.48a810p-10 0x1.ca65b6p-13 "
                   "-0x1.26b582p-18 -0x1.d8e6aep-19 0x1.70966cp-22 0x1.e2cb10p-26", f32)
TAIL = from_hex("0x1.6a9efcp+1 0x1.006db6p+0 0x1.354afcp-7 -0x1.f38baep-8 0x1.7824f6p-8 "
                "-0x1.e17bcep-9 0x1.61b8e4p-10 0x1.a76ad6p-14 -0x1.a3e136p-13", f32)
SQRT2 = f32(float.fromhex("0x1.6a09e6p+0"))


def threefry(key, x):
    """The words for u32 counters (x0, x1)."""
    k = [key & 0xFFFFFFFF, key >> 32]
    k.append(k[0] ^ k[1] ^ 0x1BD11BDA)
    x = [x[0] + u32(k[0]), x[1] + u32(k[1])]
    for g in range(1, 6):
        for r in ((17, 29, 16, 24), (13, 15, 26, 6))[g % 2]:
            x[0] = x[0] + x[1]
            x[1] = (x[1] << u32(r) | x[1] >> u32(32 - r)) ^ x[0]
        x = [x[0] + u32(k[g % 3]), x[1] + u32((k[(g + 1) % 3] + g) & 0xFFFFFFFF)]
    return x


def fold_in(key, data):
    first, second = threefry(key, [np.zeros(1, u32), np.full(1, data, u32)])
    return JaxKey(int(first[0]) | int(second[0]) << 32)


def words_of(key, draw, indices):
    indices = indices.astype(u64)
    first, second = threefry(fold_in(key, draw) if draw else key,
                             [(indices >> u64(32)).astype(u32), (indices & u64(0xFFFFFFFF)).astype(u32)])
    return first ^ second


def multiply_add(a, b, c):
    """a * b + c, rounded once. Of f64 numbers the product is exact; the error of the sum says to
    which side of a tie of f32 the true sum lies."""
    p, c = a.astype(f64) * f64(b), f64(c)
    s = p + c
    v = s - p
    error = (p - (s - v)) + (c - v)
    near = s.astype(f32)
    other = np.nextafter(near, np.where(error > 0, f32(np.inf), f32(-np.inf)).astype(f32))
    beyond = np.abs(s - near) == np.abs(other - s.astype(f64))  # It is halfway, as far as f64 tells.
    to_other = beyond & (error != 0) & (np.sign(error) == np.sign(other.astype(f64) - near))
    return np.where(to_other, other, near).astype(f32)


def horner(c, t):
    total = c[8]
    for coefficient in c[7::-1]:
        total = coefficient + (total * t)
    return total


def standard(u):
    rest = f32(1) - (u * u)
    w = minus_log2(rest, 0, 0) * f32(float.fromhex("0x1.62e430p-1"))
    ratio = np.where(w < f32(5), horner(CENTRAL, w - f32(2.5)), horner(TAIL, np.sqrt(w) - f32(3)))
    return (np.where(rest == 0, f32(4.75), ratio) * u) * SQRT2


def uniform(key, draw, indices, low, high):
    low, high = parameter(low), parameter(high)
    return multiply_add((words_of(key, draw, indices) >> u32(9)).astype(f32) * f32(2.0**-23), high - low, low)


def normal(key, draw, indices, mean, std):
    u = (words_of(key, draw, indices) >> u32(9)).astype(f32) * f32(2.0**-22) - f32(1 - 2.0**-24)
    return (standard(u) * parameter(std)) + parameter(mean)


def erf(z):
    with mpmath.workprec(400):
        value = f32(float(mpmath.erf(mpmath.mpf(float(z / SQRT2)))))
    return value if abs(value) >= 2.0**-40 else f32(0)


def inside(z, direction):
    value = np.nextafter(z, f32(direction))
    return value if abs(value) >= 2.0**-126 else f32(0)


def truncated_normal(key, draw, indices, mean, std, z_low, z_high):
    with np.errstate(over="ignore"):
        z_low, z_high = parameter(z_low), parameter(z_high)
    low, high = erf(z_low), erf(z_high)
    u = multiply_add((words_of(key, draw, indices) >> u32(9)).astype(f32) * f32(2.0**-23), high - low, low)
    z = np.minimum(np.maximum(standard(u), inside(z_low, np.inf)), inside(z_high, -np.inf))
    return (z * parameter(std)) + parameter(mean)
