"""The value of a JAX array: a graph of the primitives that made it, without results."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._expression import Origin


@dataclasses.dataclass(eq=False)
class Value:
    """The elements of an array.

    Attributes:
        dtype: a NumPy type, or JAX's type of random keys.
        random: whether the elements depend on random numbers.
        keyed: whether the elements are derived from a random key, so that another seed may change
            them.
    """

    shape: tuple[int, ...]
    dtype: Any
    origin: Origin
    random = False
    keyed = False


@dataclasses.dataclass(eq=False)
class Known(Value):
    """Numbers in the jaxpr itself, or computed numbers, perhaps from keys."""

    data: Any
    keyed: bool = False

    def __post_init__(self) -> None:
        self.keyed |= is_key(self.dtype)


@dataclasses.dataclass(eq=False)
class Draw(Value):
    """Random numbers of a key: in [0, 1), from a standard distribution, or integers.

    Attributes:
        kind: `uniform`, `normal`, `truncated_normal`, `orthogonal`, `integers` or `bits`.
        parameters: numbers by name.
        keys: one key, or several, whose numbers follow one another along the first dimensions.
        order: a number that draws of the same key share.
    """

    kind: str
    parameters: dict[str, Any]
    keys: Value
    order: int = 0
    random = True
    keyed = True


@dataclasses.dataclass(eq=False)
class Apply(Value):
    """A result of a JAX primitive.

    Attributes:
        result: the index of this result among the results of the primitive.
    """

    primitive: Any
    inputs: tuple[Value, ...]
    params: dict[str, Any]
    result: int
    random: bool = False
    keyed: bool = False

    def __post_init__(self) -> None:
        self.random |= any(value.random for value in self.inputs)
        self.keyed = (
            self.random
            or is_key(self.dtype)
            or any(value.keyed for value in self.inputs)
            or any(map(has_keys, inner_jaxprs(self.params)))
        )

    @property
    def name(self) -> str:
        return str(self.primitive.name)


def key_words(keys: Any) -> np.ndarray[Any, Any]:
    """Returns the words of typed keys, along a last dimension."""
    return np.asarray(jax.random.key_data(keys))


def is_key(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def known_of(data: Any, origin: Origin) -> Known:
    if not hasattr(data, "dtype"):
        data = np.asarray(data)
    return Known(tuple(data.shape), data.dtype, origin, data)


def literal_of(literal: Any, origin: Origin) -> Known:
    aval = literal.aval
    data = np.asarray(literal.val, dtype=aval.dtype).reshape(aval.shape)
    return Known(tuple(aval.shape), aval.dtype, origin, data)


def inner_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """Yields the jaxprs among the parameters of an equation."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            inner = getattr(item, "jaxpr", item)
            if hasattr(inner, "eqns"):
                yield inner


def draws(jaxpr: Any) -> bool:
    """Returns whether a jaxpr makes random numbers from keys anywhere in it."""
    for equation in jaxpr.eqns:
        inner = list(inner_jaxprs(equation.params))
        if equation.primitive.name in _BITS or any(map(draws, inner)):
            return True
        # An operation on keys returns other keys, or their words, or else random numbers.
        if not inner and equation.primitive.name != "random_unwrap" and (
            any(_is_key_of(v) for v in equation.invars)
            and not all(_is_key_of(v) for v in equation.outvars)
        ):
            return True
    return False


_BITS = ("random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform")


def has_keys(jaxpr: Any) -> bool:
    """Returns whether a jaxpr has random keys anywhere in it, or draws numbers."""
    return any(
        equation.primitive.name in _BITS
        or any(map(_is_key_of, (*equation.invars, *equation.outvars)))
        or any(map(has_keys, inner_jaxprs(equation.params)))
        for equation in jaxpr.eqns
    )


def _is_key_of(variable: Any) -> bool:
    return hasattr(variable.aval, "dtype") and is_key(variable.aval.dtype)
