"""Orthogonal matrices, sparse and normalized tensors."""

import numpy as np

from .samplers import coordinates, f32, f64, normal, words_of


def left_to_right(terms):
    """The sum along the first axis."""
    return np.add.accumulate(terms, axis=0)[-1]


def flushed(values):
    """f64 as f32, 0 instead of subnormal numbers."""
    return np.where(np.abs(values) < 2.0**-126, 0, values).astype(f32)


def reflected(key, rows, columns, gain):
    """The whole matrix Q, times gain."""
    x = np.zeros((columns, rows))
    for j in range(columns):
        x[j, j:] = normal(key, 0, np.arange(j * rows + j, (j + 1) * rows), 0.0, 1.0)
    count = (columns + 7) // 8 * 8
    v = np.zeros((count, rows))
    v[:columns] = x
    j = np.arange(columns)
    diagonal = x[j, j]
    length = np.sqrt(left_to_right((x * x).T))
    v[j, j] = np.where(diagonal < 0, diagonal - length, diagonal + length).astype(f32)

    q = np.zeros((rows, columns))
    q[j, j] = np.where(diagonal < 0, 1, -1)
    for b in range(count // 8 - 1, -1, -1):
        of = slice(8 * b, columns)  # The columns that these eight change.
        eight = v[8 * b:8 * b + 8]
        g = left_to_right(eight.T[:, :, None] * eight.T[:, None, :])
        y = np.stack([left_to_right(w[:, None] * q[:, of]) for w in eight])
        s = np.zeros_like(y)
        for j in range(7, -1, -1):
            total = y[j]
            for k in range(7, j, -1):
                total = total - g[j][k] * s[k]
            s[j] = total * (2 / g[j][j] if g[j][j] != 0 else 0)
        for j in range(7, -1, -1):
            q[:, of] -= eight[j][:, None] * s[j]
    return flushed(q * gain)


def orthogonal(key, shape, indices, gain, rows, columns):
    at = coordinates(shape, indices)
    number, size = [], []
    for dimensions in (rows, columns):
        place, total = np.zeros_like(indices), 1
        for d in sorted(dimensions):
            place, total = place * shape[d] + at[d], total * shape[d]
        number.append(place)
        size.append(total)
    centre = np.ones(len(indices), bool)
    for d in set(range(len(shape))) - set(rows) - set(columns):
        centre &= at[d] == (shape[d] - 1) // 2
    if size[0] >= size[1]:
        matrix = reflected(key, size[0], size[1], gain)
    else:
        matrix = reflected(key, size[1], size[0], gain).T
    return np.where(centre, matrix[number[0], number[1]], f32(0))


def sparse(key, shape, indices, std, zeros):
    row, column = coordinates(shape, indices)
    columns, which = np.unique(column, return_inverse=True)
    all_rows = np.arange(shape[0])
    zero = np.zeros((len(columns), shape[0]), bool)
    for number, c in enumerate(columns):
        words = words_of(key, 1, all_rows * shape[1] + c)
        zero[number, np.argsort(words, kind="stable")[:zeros]] = True
    return np.where(zero[which, row], f32(0), normal(key, 0, indices, 0.0, std))


def eight_sums(x):
    """The squares along the first axis, added up."""
    p = [left_to_right(x[m::8] * x[m::8]) if m < len(x) else np.zeros(x.shape[1:]) for m in range(8)]
    return ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]))


def norms(of, shape, indices):
    shape = [*shape, *[1] * (len(of.shape) - len(shape))]
    over = tuple(d for d, size in enumerate(of.shape) if shape[d] != size)
    kept = [d for d in range(len(of.shape)) if d not in over]
    x = of.numbers.reshape(of.shape).transpose([*over, *kept]).reshape(-1, *(of.shape[d] for d in kept))
    return np.sqrt(eight_sums(x)).ravel()[indices]


def normalized(key, shape, indices, axis, length):
    inner = int(np.prod(shape[axis + 1:], dtype=object))
    size = shape[axis]
    first = indices - coordinates(shape, indices)[axis] * inner  # The vector's element 0.
    vectors, which = np.unique(first, return_inverse=True)
    factors = np.empty(len(vectors))
    step = max(1, (1 << 20) // size)
    for begin in range(0, len(vectors), step):
        some = vectors[begin:begin + step]
        x = normal(key, 0, (some[:, None] + np.arange(size) * inner).ravel(), 0.0, 1.0)
        x = x.reshape(len(some), size).T.astype(f64)
        n = eight_sums(x)
        with np.errstate(divide="ignore"):
            factors[begin:begin + step] = np.where(n == 0, 0, length / np.sqrt(n))
    return flushed(normal(key, 0, indices, 0.0, 1.0).astype(f64) * factors[which])
