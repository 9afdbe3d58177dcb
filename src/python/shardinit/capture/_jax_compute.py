"""Computes, with JAX, the elements of values without random numbers, including keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._expression import Index, NoFormula
from ._jax_values import Apply, Draw, Known, Value, is_key, key_words

_COMPUTED = 1 << 27  # Larger values are not computed.
_REGISTERED = 1 << 16  # Derivations of the keys of larger splits are not kept.
_SMALL = 1 << 22  # Larger values are not checked for zeros.
_MOVES = ("broadcast_in_dim", "reshape", "squeeze", "transpose", "expand_dims", "slice", "rev",
          "convert_element_type", "reduce_sum")  # fmt: skip
# The results of these primitives are elements of their first input, or of several inputs.
_OF_FIRST = (*_MOVES[:-1], "dynamic_slice", "gather", "split")
_OF_SEVERAL = ("concatenate", "stack", "select_n", "max", "min", "clamp", "scatter", "pad",
               "dynamic_update_slice")  # fmt: skip


class Computed:
    """The known elements of a graph's values.

    Attributes:
        keys: the bytes of a key → (the bytes of its parent key, the step).
    """

    def __init__(self) -> None:
        self.keys: dict[bytes, tuple[bytes | None, tuple[str, tuple[int, ...]]]] = {}
        self._drawn: dict[Any, Draw] = {}
        self._computed: dict[int, Any] = {}
        self._kept: list[Value] = []  # Keeps the values whose addresses are in `_computed`.

    def is_zero(self, value: Value) -> bool:
        """Returns whether all elements are known to be zero."""
        while isinstance(value, Apply) and value.name in _MOVES:
            value = value.inputs[0]
        if isinstance(value, Apply) and value.name == "mul":
            return any(map(self.is_zero, value.inputs))
        if value.keyed:
            return False
        if isinstance(value, Apply) and math.prod(value.shape) > _SMALL:
            return False
        try:
            return not np.any(self.compute(value))
        except NoFormula:
            return False

    def interval(self, value: Value) -> tuple[int, int]:
        """Returns the interval that contains the integers; raises NoFormula if it is unknown."""
        kind = np.dtype(value.dtype).kind
        if kind == "b":
            return 0, 1
        if not value.keyed and math.prod(value.shape) <= _SMALL:
            data = np.asarray(self.compute(value))
            return (int(data.min()), int(data.max())) if data.size else (0, 0)
        if isinstance(value, Draw):
            if value.kind == "integers":
                return int(value.parameters["low"]), int(value.parameters["high"]) - 1
            return 0, (1 << 8 * np.dtype(value.dtype).itemsize) - 1
        if isinstance(value, Apply) and kind in "iu":
            found = self._interval(value)
            if found is not None:
                return found
        raise NoFormula("whole numbers of any size", value.origin)

    def _interval(self, value: Apply) -> tuple[int, int] | None:
        """Returns the bounds of an operation's result, before it wraps around in its type."""
        if value.name in ("iota", "argsort"):
            return 0, max(value.shape)
        if value.name == "convert_element_type" and np.dtype(value.inputs[0].dtype).kind == "f":
            return None
        parts = [self._limits(part) for part in value.inputs if np.dtype(part.dtype).kind in "iub"]
        if value.name in _OF_FIRST:
            return parts[0]
        if value.name in _OF_SEVERAL:
            taken = parts[1:] if value.name == "select_n" else parts
            return min(low for low, _ in taken), max(high for _, high in taken)
        ends = {
            "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
        }.get(value.name)  # fmt: skip
        if ends is not None:
            every = [ends(a, b) for a in parts[0] for b in parts[1]]
            return min(every), max(every)
        if value.name == "neg":
            return -parts[0][1], -parts[0][0]
        falls = value.name in ("rem", "div", "shift_right_logical")
        if falls and min(parts[0][0], parts[1][0]) >= 0:
            return 0, min(parts[0][1], parts[1][1] - 1) if value.name == "rem" else parts[0][1]
        return None

    def _limits(self, value: Value) -> tuple[int, int]:
        """Returns the smallest and the largest element of an array."""
        low, high = self.interval(value)
        if np.dtype(value.dtype).kind == "b":
            return low, high
        info = np.iinfo(value.dtype)
        within = info.min <= low and high <= info.max
        return (low, high) if within else (int(info.min), int(info.max))

    def identify(self, draw: Draw) -> None:
        """Sets the order of a draw that is used; raises NoFormula if its key also draws others."""
        try:
            key: Any = key_words(self.compute(draw.keys)).tobytes()
        except NoFormula:
            key = id(draw.keys)
        first = self._drawn.setdefault(key, draw)
        if first is draw and not draw.order:
            draw.order = len(self._drawn)
        if (first.kind, first.shape, first.dtype) != (draw.kind, draw.shape, draw.dtype):
            raise NoFormula(f"its key has also drawn other numbers ({first.origin})", draw.origin)
        draw.order = first.order

    def words(self, draw: Draw, index: tuple[Index, ...]) -> np.ndarray[Any, Any]:
        """Returns the two words of the key that draws the element at an index."""
        words: np.ndarray[Any, Any] = key_words(self.compute(draw.keys))
        words = words[tuple(i.constant for i in index[: len(draw.keys.shape)])]
        if words.shape != (2,):
            why = "its key is not one of JAX's default generator, threefry2x32"
            raise NoFormula(why, draw.origin)
        return words

    def compute(self, value: Value) -> Any:
        """Computes, with JAX, the elements of a value that no random key determines, or keys."""
        if value.keyed and not value.random and not is_key(value.dtype):
            why = "expressions cannot use values computed from a random key"
            raise NoFormula(why, _maker(value).origin)
        return self._compute(value)

    def _compute(self, value: Value) -> Any:
        """Does the same as `compute`, also for values that are `keyed`."""
        stack = [value]
        while stack:
            top = stack[-1]
            if id(top) in self._computed:
                stack.pop()
                continue
            if isinstance(top, Known):
                data = top.data
            elif isinstance(top, Apply) and not top.random:
                if math.prod(top.shape) > _COMPUTED:
                    raise NoFormula(f"{math.prod(top.shape)} elements are too many to compute",
                                    top.origin)  # fmt: skip
                missing = [part for part in top.inputs if id(part) not in self._computed]
                if missing:
                    stack += missing
                    continue
                inputs = [self._computed[id(part)] for part in top.inputs]
                data = top.primitive.bind(*inputs, **top.params)
                if top.primitive.multiple_results:
                    data = data[top.result]
                self._note(top, inputs, data)
            else:
                raise NoFormula("the value of random numbers is asked for", top.origin)
            stack.pop()
            self._computed[id(top)] = data
            self._kept.append(top)
        return self._computed[id(value)]

    def _note(self, value: Apply, inputs: Sequence[Any], data: Any) -> None:
        """Records how keys were derived."""
        if value.name == "random_seed":
            seed = np.asarray(inputs[0])
            made = key_words(data)
            for number, key in zip(seed.reshape(-1), made.reshape(-1, made.shape[-1]), strict=True):
                bits = int(number) % (1 << 8 * seed.dtype.itemsize)
                self.keys.setdefault(key.tobytes(), (None, ("seed", (bits,))))
        elif value.name == "random_fold_in":
            parents, made = key_words(inputs[0]), key_words(data)
            width = made.shape[-1]
            parents = np.broadcast_to(parents, made.shape).reshape(-1, width)
            numbers = np.broadcast_to(np.asarray(inputs[1]), made.shape[:-1]).reshape(-1)
            for parent, number, key in zip(parents, numbers, made.reshape(-1, width), strict=True):
                step = ("fold_in", (int(number) % (1 << 32),))
                self.keys.setdefault(key.tobytes(), (parent.tobytes(), step))
        elif value.name == "random_split":
            parents, made = key_words(inputs[0]), key_words(data)
            width = made.shape[-1]
            if made.size > _REGISTERED * width:
                return
            count = math.prod(value.params["shape"])
            made = made.reshape(-1, count, width)
            for parent, keys in zip(parents.reshape(-1, width), made, strict=True):
                for i, key in enumerate(keys):
                    self.keys.setdefault(key.tobytes(), (parent.tobytes(), ("split", (count, i))))


def _maker(value: Value) -> Value:
    """Returns the operation that made numbers from the key of which a value is a descendant."""
    while True:
        inputs = value.inputs if isinstance(value, Apply) else ()
        inner = [v for v in inputs if v.keyed and not is_key(v.dtype)]
        if not inner:
            return value
        value = inner[0]
