"""Compares a tensor of a spec with the model's: equal, nearly equal, or the same distribution."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._dtypes import digits

# The tolerated difference. Frameworks round some functions differently: by one or two ulps for
# each, and few functions follow one another. The largest difference in a hundred PyTorch models was
# 3 ulps, and so was the largest difference in JAX's normal numbers.
ULPS = 4

_ERRORS = 6  # Means of the same distribution differ by fewer standard errors.

Words = np.ndarray[Any, Any]  # The bits of elements, as integers of the same size.


@dataclasses.dataclass(frozen=True)
class Real:
    """A tensor of the model itself.

    Attributes:
        dtype: the spec's name of its element type, or the framework's name if specs lack the type.
        words: returns the bits of its elements.
        numbers: converts words of its type to f64 numbers.
    """

    shape: tuple[int, ...]
    dtype: str
    words: Callable[[], Words]
    numbers: Callable[[Words], np.ndarray[Any, Any]]


# Size in bytes → integer type of this size.
WORDS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


@dataclasses.dataclass(frozen=True)
class Compared:
    """The result of comparing one tensor.

    Attributes:
        result: `equal`, bit for bit; `inexact`, nearly equal, if the spec promises no more;
            `alike`, drawn from the same distribution; or `different`.
        ulps: the largest difference in ulps of the element, or of the largest element if that is
            less; infinity if the type has no ulps.
        note: describes the difference.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    result: str
    ulps: float = 0
    note: str = ""


def in_ulps(count: float) -> str:
    return "1 ulp" if count == 1 else f"{count:,.0f} ulps"


Ulps = np.ndarray[Any, Any]  # One number for all elements, or one for each.

# A column of an orthogonal matrix exceeds its bound once in this many cases, if the bound is sharp.
_RARE = 10_000


def ulps_of_orthogonal(shape: tuple[int, ...]) -> Ulps:
    """Returns the ulps by which each element of an orthogonal matrix may differ.

    LAPACK's QR applies one reflection for each of the `few` columns. Each takes sums of `many`
    terms in f32, whose roundings add up like random steps: to sqrt(many) units (Higham and Mary
    2019), and over all reflections to sqrt(many * few). This is the error of a random vector,
    relative to its length, which is sqrt(many). Column j is what remains of its vector after
    removing j directions, divided by the length of the remainder: a chi-distributed number with
    many - j degrees of freedom, d. It is below x with a probability of at most x^d / (2^(d/2) *
    gamma(d/2 + 1)). So the error is at most sqrt(many * few) * sqrt(many) / x, where x has the
    probability 1 / _RARE. The other columns determine the last column of a square matrix, so it is
    as exact as they are. The largest element with the wrong sign is always off by more than 2^24
    units.
    """
    rows, columns = shape[0], math.prod(shape[1:])
    few, many = sorted((rows, columns))
    degrees = np.maximum(many - np.arange(few), 2)
    logs = np.array([math.lgamma(d / 2 + 1) for d in degrees]) + degrees / 2 * math.log(2)
    shortest = np.exp((logs - math.log(_RARE)) / degrees)
    allowed = np.clip(np.ceil(many * math.sqrt(few) / shortest), ULPS, 2**24)
    each = allowed[:, None] if rows < columns else allowed[None, :]
    return np.broadcast_to(each, (rows, columns)).reshape(shape)


def error_of_sum(terms: int) -> float:
    """Returns the possible relative error of PyTorch's f32 sum of `terms` positive terms.

    Measured errors are 30 units of 2^-24 for 4,096 terms, 112 for 65,536, 25,000 for 33 million.
    """
    return 2.0**-24 * max(math.sqrt(terms), terms / 1024)


def compare_nearly(
    found: Compared, made: np.ndarray[Any, Any], real: Real, most: Callable[[], Ulps], box: Any
) -> Compared:
    """Changes the result to `inexact` if no element differs by more than a few ulps.

    An ulp is the element's own ulp, or the ulp of the largest element.
    """
    if found.ulps == math.inf:
        return found  # The shape or type differs.
    whole = real.numbers(real.words())
    wanted = whole[box]
    apart = np.abs(real.numbers(words_of(made)) - wanted)
    unit = np.abs(whole).max() / 2 ** digits(found.dtype)
    if not np.isfinite(apart).all() or not unit:
        return found
    alone = np.abs(_ordered(real.words()[box]) - _ordered(words_of(made)))
    ulps = np.minimum(alone, np.ceil(apart / unit))
    allowed = most()
    if not (ulps <= (allowed[box] if allowed.ndim else allowed)).all():
        return found
    return dataclasses.replace(found, result="inexact", ulps=float(ulps.max()), note="")


def compare_bits(
    tensor: Compared, real: Real | None, made: np.ndarray[Any, Any], exact: bool, box: Any
) -> Compared:
    """Compares a box of a tensor with the same box of the model, bit for bit if `exact`."""

    def result(word: str, ulps: float = math.inf, note: str = "") -> Compared:
        return dataclasses.replace(tensor, result=word, ulps=ulps, note=note)

    if real is None:
        return result("different", note="the model has no such tensor")
    if real.shape != tensor.shape or real.dtype != tensor.dtype:
        return result("different", note=f"{real.dtype} {list(real.shape)} in the model")
    wanted, got = np.asarray(real.words()[box]), words_of(made)
    apart = np.flatnonzero(wanted.ravel() != got.ravel())
    if not apart.size:
        return result("equal", 0)
    numbers, others = real.numbers(got), real.numbers(wanted)
    if not exact:
        return _moments(result, numbers, others)
    ulps = math.inf
    if digits(tensor.dtype):
        ulps = float(np.abs(_ordered(wanted).ravel()[apart] - _ordered(got).ravel()[apart]).max())
    first = np.unravel_index(apart[0], wanted.shape)
    begin = [0] * len(first) if box is ... else [side.start for side in box]
    place = ", ".join(str(int(i) + b) for i, b in zip(first, begin, strict=True))
    values = f"{numbers[first]:.9g}, and {others[first]:.9g} in the model"
    by = f", by {in_ulps(ulps)}" if ulps < math.inf else ""
    some = f"{apart.size:,} of {wanted.size:,} elements{by}; [{place}] is {values}"
    return result("different", ulps, some)


def words_of(made: np.ndarray[Any, Any]) -> Words:
    words: Words = np.ascontiguousarray(made).view(WORDS[made.itemsize]).reshape(made.shape)
    return words


def _ordered(words: Words) -> np.ndarray[Any, Any]:
    """Maps floats to integers, so that neighbours become neighbours."""
    signed = words.view(np.int8) if words.dtype == np.uint8 else words
    wide = signed.astype(np.int64)
    return np.where(wide < 0, int(np.iinfo(signed.dtype).min) - wide, wide)


def _moments(
    result: Callable[..., Compared], made: np.ndarray[Any, Any], real: np.ndarray[Any, Any]
) -> Compared:
    """Returns whether both may have the same distribution, by mean and standard deviation."""
    size = made.size
    if size < 30:
        return result("alike")
    both = np.concatenate([made.ravel(), real.ravel()])
    centred = both - both.mean()
    spread = float(centred.std())
    kurtosis = float((centred**4).mean()) / spread**4 if spread else 3.0
    allowed = _ERRORS * spread * math.sqrt(2 / size)
    means = float(made.mean()), float(real.mean())
    deviations = float(made.std()), float(real.std())
    for name, pair, most in (
        ("mean", means, allowed),
        ("standard deviation", deviations, allowed * math.sqrt(max(kurtosis - 1, 0.1) / 4)),
    ):
        if abs(pair[0] - pair[1]) > most + 1e-3 * spread:
            words = f"{name} {pair[0]:.6g}, and {pair[1]:.6g} in the model"
            return result("different", note=words)
    return result("alike")
