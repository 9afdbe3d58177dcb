"""Finds arrays of a JAX function with numbers from outside its keys, such as `numpy.random`."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ._jax_values import Apply, Draw, Known, Value, is_key, key_words


@contextlib.contextmanager
def other_generators() -> Iterator[None]:
    """Makes generators that a function creates or seeds itself return other numbers.

    A generator that exists before the function runs returns other numbers in the second run anyway.
    """
    module: Any = getattr(np.random, "_generator", None)
    made, seeded, also = getattr(module, "PCG64", None), np.random.seed, random.seed
    if made is not None:
        module.PCG64 = lambda seed=None: made()
    np.random.seed = random.seed = lambda *_, **__: None  # type: ignore[assignment]
    try:
        yield
    finally:
        if made is not None:
            module.PCG64 = made
        np.random.seed, random.seed = seeded, also


def unseeded_arrays(first: Mapping[str, Value], second: Mapping[str, Value]) -> list[str]:
    """Returns the paths of arrays that differ between two runs of one function with one key."""
    if first.keys() != second.keys():
        return sorted(first.keys() ^ second.keys())
    same: dict[tuple[int, int], bool] = {}
    return [path for path, value in first.items() if not _is_same(value, second[path], same)]


def _is_same(a: Value, b: Value, known: dict[tuple[int, int], bool]) -> bool:
    """Returns whether two values are computed alike from equal numbers; `known` is a cache."""
    stack = [(a, b)]
    while stack:
        x, y = stack[-1]
        if (id(x), id(y)) in known:
            stack.pop()
            continue
        pairs = list(zip(_parts(x), _parts(y), strict=False))
        missing = [pair for pair in pairs if (id(pair[0]), id(pair[1])) not in known]
        if missing and _is_alike(x, y):
            stack += missing
            continue
        stack.pop()
        known[id(x), id(y)] = _is_alike(x, y) and all(known[id(p), id(q)] for p, q in pairs)
    return known[id(a), id(b)]


def _parts(value: Value) -> tuple[Value, ...]:
    if isinstance(value, Apply):
        return value.inputs
    return (value.keys,) if isinstance(value, Draw) else ()


def _is_alike(x: Value, y: Value) -> bool:
    """Returns whether two values are the same, apart from the values of which they are made."""
    if (type(x), x.shape, x.dtype) != (type(y), y.shape, y.dtype):
        return False
    if isinstance(x, Known) and isinstance(y, Known):
        return _bytes(x) == _bytes(y)
    if isinstance(x, Draw) and isinstance(y, Draw):
        return (x.kind, repr(x.parameters)) == (y.kind, repr(y.parameters))
    return len(_parts(x)) == len(_parts(y))


def _bytes(value: Known) -> bytes:
    return bytes(
        key_words(value.data).tobytes() if is_key(value.dtype) else np.asarray(value.data).tobytes()
    )
