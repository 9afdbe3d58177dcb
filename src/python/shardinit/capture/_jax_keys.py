"""Finds the JAX key that draws a tensor, and how the key was derived."""

from __future__ import annotations

import hashlib
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._expression import Index, NoFormula
from ._jax_formula import Formula
from ._jax_numbers import draw_is_of_one_key, place_of
from ._jax_values import key_words
from ._jaxpr import Graph
from ._tensor import Key
from ._walk import Use, check_uses

_STEPS = 4  # Longer derivations are replaced by the key's words, which are shorter.


def dimensions_of_keys(formula: Formula) -> tuple[int, ...]:
    """Returns the dimensions that count the keys of a draw, outermost first; none for one key."""
    check_uses(formula.uses)
    if not formula.uses:
        return ()
    use = _only_use(formula)
    found = []
    for index, n in zip(use.index, use.draw.keys.shape, strict=False):
        if n == 1:
            continue
        if index.constant or len(index.factors) != 1 or index.factors[0][1] != 1:
            raise NoFormula("elements are in another order than JAX draws them", use.draw.origin)
        found.append(index.factors[0][0])
    return tuple(found)


def _only_use(formula: Formula) -> Use:
    if len(formula.uses) > 1:
        raise NoFormula("numbers of several draws are in one array", formula.uses[1].draw.origin)
    return formula.uses[0]


def key_of(formula: Formula, shape: tuple[int, ...], graph: Graph, path: str) -> Key:
    """Returns the key of a tensor whose elements are all elements of one JAX draw, in order."""
    use = _only_use(formula)
    draw = use.draw
    if draw.kind == "integers" and not draw_is_of_one_key(draw):
        raise NoFormula("whole numbers, whose bound is not a power of two, need two keys",
                        draw.origin)  # fmt: skip
    own = Index.of(0, {d: math.prod(shape[d + 1 :]) for d, n in enumerate(shape) if n > 1})
    if place_of(draw, use.index) != own:
        raise NoFormula("elements are in another order than JAX draws them", draw.origin)
    words = graph.words(draw, use.index)
    if draw.kind == "integers":  # JAX splits the key in two, and uses the second one.
        pair = jax.random.split(jax.random.wrap_key_data(jnp.asarray(words)))
        parent, (_, words) = words, key_words(pair)
        graph.keys.setdefault(words.tobytes(), (parent.tobytes(), ("split", (2, 1))))
    return _derivation(words, graph, path)


def _derivation(words: np.ndarray[Any, Any], graph: Graph, path: str) -> Key:
    """Returns the steps that derived a key, or its words if the steps are unknown or longer."""
    steps: list[tuple[str, tuple[Any, ...]]] = []
    key: bytes | None = words.tobytes()
    while key is not None and key in graph.keys and len(steps) <= _STEPS:
        key, (name, numbers) = graph.keys[key]
        flax = _flax_path(numbers[0], path) if name == "fold_in" else None
        steps.append((name, numbers if flax is None else (flax,)))
    if key is not None:
        steps = [("words", (int(words[0]), int(words[1])))]
    return Key("jax", tuple(reversed(steps)), words.tobytes())


_NO_HASH = 1 << 16  # Smaller numbers are unlikely to be the hash of a text.

_COUNTS = 64  # A Flax module is assumed to request fewer keys.


def _flax_path(number: int, path: str) -> tuple[Any, ...] | None:
    """Returns the Linen modules whose hash was folded into a key, and the last one's key count.

    Linen folds in hashes in `_fold_in_static` of flax/core/scope.py, without
    `flax_fix_rng_separator`.
    """
    if number < _NO_HASH:
        return None
    names = path.split(".")
    for begin, end in itertools.combinations_with_replacement(range(len(names)), 2):
        start = hashlib.sha1("".join(names[begin:end]).encode(), usedforsecurity=False)
        for count in range(1, _COUNTS):
            whole = start.copy()
            whole.update(bytes([count]))
            if int.from_bytes(whole.digest()[:4], "big") == number:
                return (*names[begin:end], count)
    return None
