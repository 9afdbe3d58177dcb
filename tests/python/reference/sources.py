"""Elements of tensors that exist: `source`, `rows_like` and `source()` in expressions."""

import numpy as np

from .samplers import coordinates, f32, f64, normal, u32

SMALL_FLOATS = {"bf16": (7, 127), "f16": (10, 15), "f8e4m3fn": (3, 7), "f8e5m2": (2, 15)}  # Bits of the mantissa; bias.


def numbers_of(words, dtype):
    """The f64 numbers that stored bits are."""
    words = np.asarray(words)
    if dtype == "f32":
        with np.errstate(invalid="ignore"):  # NaN may be signalling.
            return words.astype(u32).view(f32).astype(f64)
    if dtype == "f64":
        return words.astype(np.uint64).view(f64)
    if dtype not in SMALL_FLOATS:
        return words.view(f"i{words.itemsize}").astype(f64) if dtype[0] == "i" else words.astype(f64)
    mantissas, bias = SMALL_FLOATS[dtype]
    exponents = 8 * words.itemsize - 1 - mantissas
    words = words.astype(np.int64)
    mantissa = words & ((1 << mantissas) - 1)
    exponent = words >> mantissas & ((1 << exponents) - 1)
    size = np.where(exponent == 0, np.ldexp(mantissa.astype(f64), 1 - bias - mantissas),
                    np.ldexp((mantissa + (1 << mantissas)).astype(f64), exponent - bias - mantissas))
    top = exponent == (1 << exponents) - 1
    if dtype == "f8e4m3fn":
        size = np.where(top & (mantissa == 7), np.nan, size)
    else:
        size = np.where(top, np.where(mantissa == 0, np.inf, np.nan), size)
    return np.where(words >> (exponents + mantissas) & 1, -size, size)


class SourceTensor:
    """`words` are the stored bits of all its elements, in row-major order."""

    def __init__(self, dtype, shape, words):
        self.dtype, self.shape, self.words = dtype, list(shape), np.asarray(words).ravel()
        self.numbers = numbers_of(self.words, dtype)

    def places(self, index):
        """The row-major indices of the elements with these indices, as f64 numbers."""
        place = 0
        for size, at in zip(self.shape, index, strict=True):
            assert ((at >= 0) & (at < size) & (np.floor(at) == at)).all()
            place = place * size + at.astype(np.int64)
        return place


def moments(rows):
    """The mean and the deviation of each column, summed from the first row on."""
    total = np.zeros(rows.shape[1:])
    for row in rows:
        total = total + row
    mean = total / len(rows)
    total = np.zeros(rows.shape[1:])
    for row in rows:
        total = total + (row - mean) * (row - mean)
    return mean, np.sqrt(total / len(rows))


def rows_like(key, draw, shape, indices, source, axis, rows, std):
    """f64 numbers."""
    mean, deviation = moments(np.moveaxis(source.numbers.reshape(source.shape), axis, 0)[:rows])
    at = tuple(c for d, c in enumerate(coordinates(shape, indices)) if d != axis)
    z = normal(key, draw, indices, 0.0, 1.0).astype(f64) if std > 0 else 0.0
    return np.broadcast_to(mean[at] + (std * deviation[at]) * z, indices.shape)
