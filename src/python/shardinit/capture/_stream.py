"""Finds where in the stream of PyTorch's CPU generator each draw of a constructor begins.

The generator returns 32-bit words. Only sizes and types determine how many words an operation
takes. The exception is truncated normal numbers, which are drawn again until none is out of bounds.
Words after such a draw are counted from its end.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

TORCH_CPU = "torch_cpu"  # The engine with this stream.

GROUP = 16  # The group size for normal numbers of a contiguous tensor.
# Normal numbers of 24 and of 53 random bits are at most this many standard deviations from the
# mean.
_FARTHEST, _FARTHEST_OF_PAIRS = 5.78, 8.58
_WIDE = 1 << 28  # Integers of a larger range take 64 bits.


@dataclasses.dataclass(frozen=True)
class Words:
    """A place in the stream.

    Attributes:
        count: the number of words before it, from the stream's beginning or the end of `after`.
        after: the order of a draw whose number of words depends on the seed; -1 is the stream's
            beginning.
    """

    count: int
    after: int = -1

    def plus(self, count: int) -> Words:
        return Words(self.count + count, self.after)


@dataclasses.dataclass(frozen=True)
class Place:
    """The words of the stream that a draw takes.

    Attributes:
        position: the draw's first word.
        spare: the first of four words whose second normal number is left over from the draw before.
        end, left: the position and the spare words of the next draw.
        pairs: whether normal numbers are made two by two from four words, in f64.
        strides: the strides of the draw's elements, in the order in which they are drawn.
        problem: why the place is unknown; "" if it is known.
        again: whether the constructor has set the generator back, and drawn these words before.
    """

    position: Words
    spare: Words | None
    end: Words
    left: Words | None
    pairs: bool
    strides: tuple[int, ...]
    problem: str = ""
    again: bool = False


def strides_in_memory(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of elements in memory order, in which a tensor is filled."""
    result = [0] * len(shape)
    step = 1
    for d in sorted(range(len(shape)), key=lambda d: (stride[d], -d)):
        if shape[d] > 1:
            result[d], step = step, step * shape[d]
    return tuple(result)


def is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Returns whether elements with these strides are drawn in the order of their indices."""
    step = 1
    for n, stride in reversed(list(zip(shape, strides, strict=True))):
        if n > 1 and stride != step:
            return False
        step *= n
    return True


def is_one_round(parameters: dict[str, float], pairs: bool) -> bool:
    """Returns whether no number of `trunc_normal_` can be out of bounds, whatever the seed."""
    mean, std, a, b = (parameters[name] for name in ("mean", "std", "a", "b"))
    farthest = (_FARTHEST_OF_PAIRS if pairs else _FARTHEST) * std
    return a <= mean - farthest and mean + farthest <= b


def _kept(parameters: dict[str, float]) -> float:
    """Returns the part of a normal distribution between the bounds, as in `trunc_normal_`."""
    mean, std, a, b = (parameters[name] for name in ("mean", "std", "a", "b"))
    if std == 0:
        return math.nan
    below = [(1 + math.erf((end - mean) / std / math.sqrt(2))) / 2 for end in (a, b)]
    return below[1] - below[0]


def _words(kind: str, parameters: dict[str, float], size: int, dtype: str) -> int | None:
    """Returns the number of words that a draw takes, if it is not normal; None if unknown."""
    match kind:
        case "uniform":
            return size * (2 if dtype == "float64" else 1)
        case "integers":
            return size * (2 if parameters["high"] - parameters["low"] >= _WIDE else 1)
        case "bits":
            return size * (2 if dtype in ("int64", "float64") else 1)
        case "full bits" | "bernoulli" | "exponential" | "cauchy" | "geometric":
            return 2 * size
        case "permutation":
            return max(size - 1, 0) if size < (2**32 - 1) // 20 else 2 * size
        case "choices":
            return 2 * int(parameters["drawn"])
    return None


@dataclasses.dataclass
class Reached:
    """The place in the stream that the generator has reached.

    Attributes:
        now, left: as `end` and `left` of a `Place`.
        problem: why the number of words taken so far is unknown; "" if it is known.
        seed: the seed that the constructor has set; None for the spec's seed.
        draws: the number of draws since that seed.
    """

    now: Words = Words(0)
    left: Words | None = None
    problem: str = ""
    seed: int | None = None
    draws: int = 0


class Stream:
    """The generator while the constructor runs."""

    def __init__(self) -> None:
        self._at = Reached()
        self._most: dict[int | None, int] = {}  # Seed → the maximum number of draws made with it.

    def lose(self, problem: str) -> None:
        """Records that the generator's place is unknown from here on."""
        self._at.problem = self._at.problem or problem

    def reached(self) -> Reached:
        return dataclasses.replace(self._at)

    def go(self, to: Reached) -> None:
        """Continues from a place where it was before, or from elsewhere."""
        self._at = dataclasses.replace(to)

    def take(
        self,
        order: int,
        kind: str,
        parameters: dict[str, float],
        shape: Sequence[int],
        stride: Sequence[int],
        dtype: str,
        contiguous: bool,
        name: str,
    ) -> Place:
        """Takes the place of the next draw; `name` is the operation's name, for messages."""
        at = self._at
        most = self._most.get(at.seed, 0)
        again = at.draws < most
        at.draws += 1
        self._most[at.seed] = max(most, at.draws)
        size = math.prod(shape)
        before, spare, problem = at.now, at.left, at.problem
        # Normal numbers are made two by two, or in groups of 16.
        pairs = kind == "log_normal" or size < GROUP or not contiguous
        if not size or problem:
            pass
        elif kind in ("normal", "log_normal", "trunc_normal"):
            if kind == "trunc_normal" and not _kept(parameters) > 0.3:
                self.lose(f"how many words {name} took before is only known by drawing them")
                problem = "PyTorch draws in another way where the cut-offs leave less than 30 % of"
                problem += " the numbers"
            else:
                self._normal(size, dtype, pairs)
                if kind == "trunc_normal" and not is_one_round(parameters, pairs):
                    at.now = Words(0, order)
                    if pairs and (size % 2 or spare is not None):
                        self.lose(f"only the seed decides what {name} has left over before")
        elif kind in ("orthogonal", "sparse"):
            # PyTorch draws a matrix of normal numbers, in the tensor or in separate memory.
            self._normal(size, dtype, size < GROUP or (kind == "sparse" and not contiguous))
            if kind == "sparse":
                at.now = at.now.plus(shape[1] * max(shape[0] - 1, 0))
        else:
            words = _words(kind, parameters, size, dtype)
            if words is None:
                self.lose(f"how many words {name} took before is not known")
            else:
                at.now = at.now.plus(words)
        # The matrix of orthogonal_ has separate memory, whatever the tensor's strides are.
        logical = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
        strides = strides_in_memory(shape, logical if kind == "orthogonal" else stride)
        return Place(before, spare, at.now, at.left, pairs, strides, problem, again)

    def _normal(self, size: int, dtype: str, pairs: bool) -> None:
        at = self._at
        if pairs:
            alone = size - (at.left is not None)
            words = (alone + 1) // 2 * 4
            at.left = at.now.plus(words - 4) if alone % 2 else None
            at.now = at.now.plus(words)
            return
        whole = size // GROUP * GROUP
        words = size
        if whole < size:
            # PyTorch fills the whole tensor before it draws the last group again.
            words = (size if dtype in ("float32", "float64") else whole) + GROUP
        double = 2 if dtype == "float64" else 1
        at.now = at.now.plus(double * words)
