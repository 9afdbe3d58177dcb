"""Keys, blocks, words and samplers."""

import hashlib

import mpmath
import numpy as np

f32, f64, u32, u64 = np.float32, np.float64, np.uint32, np.uint64


def from_hex(text, kind):
    return [kind(float.fromhex(number)) for number in text.split()]


def coordinates(shape, indices):
    at = []
    for size in reversed(shape):
        at.append(indices % size)
        indices = indices // size
    return at[::-1]


# KEY, BLOCKS AND WORDS --------------------------------------------------------

class JaxKey(int):
    """A key under the engine jax_threefry: the samplers below are then those of jax_threefry.py."""


def key_of(seed, path):
    digest = hashlib.sha256(b"shardinit.key.v1\0" + seed.to_bytes(8, "little") + path.encode()).digest()
    return int.from_bytes(digest[:8], "little")


def blocks_of(key, draw, numbers):
    """The four words of each of the blocks, as rows of u32."""
    low = u64(0xFFFFFFFF)
    x = [numbers & low, numbers >> u64(32), np.full_like(numbers, draw), np.zeros_like(numbers)]
    k = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        p, q = x[0] * u64(0xD2511F53), x[2] * u64(0xCD9E8D57)
        x = [(q >> u64(32)) ^ x[1] ^ u64(k[0]), q & low, (p >> u64(32)) ^ x[3] ^ u64(k[1]), p & low]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(x, axis=-1).astype(u32)


def four_words(key, draw, indices):
    """For each element the words of its block, and which of them is its own."""
    indices = indices.astype(u64)
    block = indices >> u64(2)
    new = np.ones(len(block), bool)  # Neighbours share a block.
    new[1:] = block[1:] != block[:-1]
    return blocks_of(key, draw, block[new])[np.cumsum(new) - 1], (indices & u64(3)).astype(int)


def of_engine(sampler):
    def call(key, *arguments):
        if not isinstance(key, JaxKey):
            return sampler(key, *arguments)
        from . import jax_threefry
        return getattr(jax_threefry, sampler.__name__)(key, *arguments)
    return call


@of_engine
def words_of(key, draw, indices):
    words, own = four_words(key, draw, indices)
    return words[np.arange(len(own)), own]


# SAMPLERS ---------------------------------------------------------------------

LOG = from_hex("-0x1.715472p+0 0x1.715472p-1 -0x1.ec8306p-2 0x1.71614ep-2 "
               "-0x1.2466d0p-2 0x1.e73310p-3 -0x1.f9b01ap-3 0x1.bc8b92p-3", f32)
SIN = from_hex("0x1.921fb6p-1 -0x1.4abc24p-4 0x1.4680a4p-9 -0x1.33198ep-15", f32)
COS = from_hex("0x1p+0 -0x1.3bd39cp-2 0x1.03b058p-6 -0x1.4e78bep-12", f32)
TAIL = from_hex("-0x1.ca36eap-2 -0x1.976660p+0 0x1.f9ed6ep+0 -0x1.019a30p+2 0x1.3d7b70p+3 "
                "0x1.0dba06p+5 0x1.32cdecp+10 0x1.5a77fap+9 -0x1.9baff2p+14", f32)
N = from_hex("0x1.05a43ep-11 0x1.98335cp-5 0x1.4bd16cp-1 0x1.41c8fcp+0 0x1.b267cap-5", f32)
D = from_hex("0x1.ca20b0p-14 0x1.e5bd48p-7 0x1.1d17c4p-2 0x1.1a7e5ep+0", f32)


def horner4(c, x):
    return (c[0] + (c[1] * x)) + ((c[2] + (c[3] * x)) * (x * x))


def horner8(c, x):
    return horner4(c[:4], x) + (horner4(c[4:8], x) * ((x * x) * (x * x)))


def horner9(c, x):
    x4 = (x * x) * (x * x)
    return horner8(c[:8], x) + (c[8] * (x4 * x4))


def minus_log2(x, shift, below):
    n = x.view(u32) - u32(0x3F2AAAAB + (shift * 0x800000) + below)
    e = (n.view(np.int32) >> 23).astype(f32)
    m = ((n & u32(0x7FFFFF)) + u32(0x3F2AAAAB)).view(f32)
    f = m - f32(1)
    return (f * horner8(LOG, f)) - e


def parameter(x):
    """A parameter as f32; -0 counts as 0."""
    return f32(x) + f32(0)


@of_engine
def uniform(key, draw, indices, low, high):
    low, high = parameter(low), parameter(high)
    span = parameter(float(high) - float(low))
    last = f32(float.fromhex("-0x1p-126")) if high == 0 else np.nextafter(high, f32(-np.inf))
    u = (words_of(key, draw, indices) >> u32(8)).astype(f32) * f32(2.0**-24)
    return np.minimum(low + (u * span), last)


@of_engine
def normal(key, draw, indices, mean, std):
    mean, scale = parameter(mean), parameter(std * float.fromhex("0x1.2d6abe44afc43p+0"))
    words, own = four_words(key, draw, indices)
    rows = np.arange(len(own))
    even, odd = words[rows, own & 2], words[rows, own | 1]

    u = np.abs(even.view(np.int32).astype(f32) + f32(0.25))
    radius = np.sqrt(minus_log2(u, 31, 1)) * scale

    x = odd.view(np.int32).astype(f32) * f32(2.0**-31)
    y = x * x
    sine = x * horner4(SIN, y)
    cosine = horner4(COS, y)
    cosine = np.where(odd & u32(2), -cosine, cosine)
    of_sine = (odd & u32(1)).astype(bool) == (own & 1 == 0)
    return (radius * np.where(of_sine, sine, cosine)) + mean


def normal_cdf(z):
    with mpmath.workprec(400):
        return 0.0 if z < -40 else float(mpmath.erfc(-mpmath.mpf(z) / mpmath.sqrt(2)) / 2)


def ratio(v):
    s = np.sqrt(v)
    n = (N[0] + (v * (N[2] + (v * N[4])))) + (s * (N[1] + (v * N[3])))
    d = (D[0] + (v * (D[2] + v))) + (s * (D[1] + (v * D[3])))
    t = np.sqrt(minus_log2(v, 0, 0))
    tail = (f32(float.fromhex("0x1.2d6abep+0")) * t) + horner9(TAIL, (f32(1) / t) - f32(0.1875))
    return np.where(v >= f32(float.fromhex("0x1.3p-10")), n / d, tail)


@of_engine
def truncated_normal(key, draw, indices, mean, std, z_low, z_high):
    both, upper, lower = z_low < 0 < z_high, z_low >= 0, z_high <= 0
    between = (1 - normal_cdf(z_low) - normal_cdf(-z_high) if both else
               normal_cdf(-z_low) - normal_cdf(-z_high) if upper else normal_cdf(z_high) - normal_cdf(z_low))
    middle = between * 2.0**-33
    step = f32(between) * f32(2.0**-32)
    if both:
        tail = f32(normal_cdf(-z_high) + middle), f32(normal_cdf(z_low) + middle)
        steps = step, step
    else:
        ends = (-z_high, -z_low) if upper else (z_low, z_high)
        tail = f32(normal_cdf(ends[0]) + middle), f32(normal_cdf(ends[1]) - middle)
        steps = step, -step
    mean, std, low, high = map(parameter, (mean, std, z_low, z_high))

    word = words_of(key, draw, indices)
    h = (word >> u32(31)).astype(bool)
    q = np.where(h, tail[1], tail[0]) + ((word & u32(0x7FFFFFFF)).astype(f32) * np.where(h, steps[1], steps[0]))
    p = f32(1) - q
    x = p - q
    v = q * p
    z = x * ratio(v)
    z = np.where(h if both else lower, -z, z)
    z = np.minimum(np.maximum(z, low), high)
    return (z * std) + mean
