"""Converts a JAX array to a spec's expression over the indices of its elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._dtypes import rounding_of
from ._expression import (
    Index,
    NoFormula,
    Term,
    binary,
    both,
    call,
    chosen,
    identity,
    number,
    stored,
    where,
)
from ._jax_arithmetic import Operation
from ._jax_numbers import (
    LEAST,
    NO_QR,
    Scaled,
    above,
    as_jax_does,
    draw_is_of_one_key,
    exactly,
    integers_of,
    is_unit,
    low_bits,
    of_bits,
    place_of,
    scaled,
    short,
)
from ._jax_operations import OPERATIONS
from ._jax_values import Apply, Draw, Known, Value, is_key, key_words
from ._jaxpr import Graph
from ._walk import Indices, PartOf, Ranges, Walk


class Formula(Walk):
    """An expression for the elements of a value.

    Attributes:
        term: the expression.
        uses: the draws in it.
        exact: whether the numbers are JAX's own, to the bit if JAX's functions are exact.
        placed: whether each use of a number requests it by its key's words and its place.
        is_placed: whether any number was requested in this way.
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
        """Finds the expression; `place` maps a dimension to the only index that is requested."""
        super().__init__()
        self.graph, self.exact, self.placed, self.is_placed = graph, exact, placed, False
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

    def of(self, value: Value, index: Indices, ranges: Ranges) -> Term:
        """Returns one element of a value."""
        self.step(value)
        if isinstance(value, Draw):
            return self._draw(value, index, ranges)
        if is_key(value.dtype):
            raise NoFormula("the words of a key are asked for", value.origin)
        if value.keyed and not value.random:
            self.graph.compute(value)  # The error explains why it is not a number.
        if not value.random and math.prod(value.shape) == 1:
            data = np.asarray(self.graph.compute(value)).reshape(-1)[0]
            return self.number(data, value.dtype)
        if isinstance(value, Known):
            return self._known(value, index, ranges)
        assert isinstance(value, Apply)
        return Operation(self, value, index, ranges).built(OPERATIONS, value.name)

    def joined(
        self, sizes: Sequence[int], dimension: int, index: Indices, ranges: Ranges, part: PartOf
    ) -> Term:
        """See `Walk.joined`; without JAX's numbers, draws of one distribution become one draw."""
        terms: list[Term] = []

        def noted(n: int, index: Indices, ranges: Ranges) -> Term:
            terms.append(part(n, index, ranges))
            return terms[-1]

        whole = super().joined(sizes, dimension, index, ranges, noted)
        is_one = not self.exact and len({term.text for term in terms}) == 1
        return terms[0] if is_one and "<" not in terms[0].text else whole

    def _draw(self, draw: Draw, index: Indices, ranges: Ranges) -> Term:
        if self.placed:
            return self._of_keys(draw, index, ranges)
        self.graph.identify(draw)
        self.use(draw, index, ranges)
        if draw.kind == "orthogonal":
            return scaled(draw)
        if draw.kind in ("uniform", "normal", "truncated_normal"):
            if not self.exact:
                return scaled(draw)
            if str(draw.dtype) == "float32":
                return as_jax_does(draw)
            return of_bits(draw, Term("bits()"))
        if draw.kind == "bits":
            return low_bits(Term("bits()"), draw)
        if draw.kind != "integers":
            raise NoFormula(f"no expression draws {draw.kind}", draw.origin)
        low, high = (int(draw.parameters[end]) for end in ("low", "high"))
        if draw_is_of_one_key(draw) or high - low > _COARSE:
            drawn = call("mod", Term("bits()"), number(high - low))
        else:
            drawn = call("floor", binary("*", Term("uniform()"), number(high - low)))
        return binary("+", drawn, number(low))

    def _of_keys(self, draw: Draw, index: Indices, ranges: Ranges) -> Term:
        """Returns a number of a draw by several keys, one of which the index selects."""
        batch = len(draw.keys.shape)
        bounds_of = [i.bounds(ranges) for i in index[:batch]]
        every = list(itertools.product(*(range(low, high + 1) for low, high in bounds_of)))
        if len(every) > _KEYS:
            why = f"elements of {len(every)} keys, in another order than JAX draws them"
            raise NoFormula(why, draw.origin)
        term = self._placed(draw, (*map(Index, every[-1]), *index[batch:]))
        for which in reversed(every[:-1]):
            here = [
                binary("==", i.text(), number(k))
                for i, k, (low, high) in zip(index, which, bounds_of, strict=False)
                if low < high
            ]
            term = where(both(here), self._placed(draw, (*map(Index, which), *index[batch:])), term)
        return term

    def _placed(self, draw: Draw, index: Indices) -> Term:
        """Returns a number by the words of its key, and by its place among that key's numbers."""
        place = place_of(draw, index)
        keys = self.graph.words(draw, index)
        self.is_placed = True

        def of(function: str, words: Any, *more: float) -> Term:
            first = [number(int(word)) for word in words]
            return call(f"jax_{function}", *first, place.text(), *map(number, more))

        if draw.kind == "bits":
            return low_bits(of("bits", keys), draw)
        if draw.kind == "integers":
            pair = key_words(jax.random.split(jax.random.wrap_key_data(jnp.asarray(keys))))
            return integers_of(draw, of("bits", pair[0]), of("bits", pair[1]))
        if draw.kind == "orthogonal":
            raise NoFormula(NO_QR, draw.origin)
        if draw.kind not in ("uniform", "normal", "truncated_normal"):
            raise NoFormula(f"no expression draws {draw.kind}", draw.origin)
        if str(draw.dtype) != "float32":
            return of_bits(draw, of("bits", keys))
        if draw.kind == "uniform" and is_unit(draw):
            return above(draw, Term(of("uniform", keys, 0, 1).text, dtype="f32"))
        names = ("low", "high") if draw.parameters else ()
        ends = [exactly(draw.parameters[end], draw.dtype) for end in names]
        if any(end and abs(end) < LEAST for end in ends):
            raise NoFormula(f"bounds below {LEAST:.3g}", draw.origin)
        return Term(of(draw.kind, keys, *ends).text, dtype="f32")

    def _known(self, value: Known, index: Indices, ranges: Ranges) -> Term:
        data = np.asarray(value.data)
        low = tuple(i.bounds(ranges)[0] for i in index)
        if all(i.bounds(ranges) == (a, a) for i, a in zip(index, low, strict=True)):
            return self.number(data[low], value.dtype)
        # Bits distinguish -0 from 0.
        words = np.ascontiguousarray(data).reshape(-1).view(f"u{data.itemsize}")
        if data.size and bool((words == words[0]).all()):
            return self.number(data.reshape(-1)[0], value.dtype)
        if data.ndim == 1 and data.size <= 64:
            numbers = (self.number(each, value.dtype) for each in data)
            return chosen(index[0].text(), list(enumerate(numbers)))
        raise NoFormula("numbers from outside", value.origin)


_KEYS = 32  # One expression requests numbers of at most this many keys.
_COARSE = 1 << 20  # 24-bit numbers include all integers below this, and only some above.


def has_no_text(term: Term) -> bool:
    """Returns whether a term has a draw that only an initializer can express."""
    return any(f"<{kind}>" in term.text for kind in ("uniform", "truncated_normal", "orthogonal"))
