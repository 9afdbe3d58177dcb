"""What the results of a JAX function hold: its jaxpr as a graph of values, without their elements."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval

from ._expression import Index, NoFormula, Origin

_COMPUTED = 1 << 27  # Elements of what is computed, and no more.
_REGISTERED = 1 << 16  # Keys of one split whose derivation is kept.
_ROUNDS = 256  # Of a loop whose rounds look at the random numbers of earlier ones.


@dataclasses.dataclass(eq=False)
class Value:
    """An array's elements.

    Attributes:
        dtype: a NumPy type, or JAX's type of random keys.
        random: they depend on random numbers.
        keyed: they descend from a random key, so that another seed may make others of them.
    """

    shape: tuple[int, ...]
    dtype: Any
    origin: Origin

    @property
    def random(self) -> bool:
        return False

    @property
    def keyed(self) -> bool:
        return is_key(self.dtype)


@dataclasses.dataclass(eq=False)
class Known(Value):
    """Numbers that stand in the jaxpr, or that were computed, perhaps of keys."""

    data: Any
    is_keyed: bool = False

    @property
    def keyed(self) -> bool:
        return self.is_keyed or is_key(self.dtype)


@dataclasses.dataclass(eq=False)
class Draw(Value):
    """Random numbers in [0, 1), of a standard distribution or of whole numbers, by a key.

    Attributes:
        kind: `uniform`, `normal`, `truncated_normal`, `orthogonal`, `integers` or `bits`.
        parameters: numbers by name.
        keys: one key, or several, whose numbers are behind one another along the first dimensions.
        order: a number that draws of the same key share.
    """

    kind: str
    parameters: dict[str, Any]
    keys: Value
    order: int = 0

    @property
    def random(self) -> bool:
        return True

    @property
    def keyed(self) -> bool:
        return True


@dataclasses.dataclass(eq=False)
class Apply(Value):
    """A result of a primitive of JAX.

    Attributes:
        result: which of its results.
    """

    primitive: Any
    inputs: tuple[Value, ...]
    params: dict[str, Any]
    result: int
    is_random: bool = False
    is_keyed: bool = False

    def __post_init__(self) -> None:
        self.is_random = self.is_random or any(value.random for value in self.inputs)
        self.is_keyed = (
            self.is_random
            or is_key(self.dtype)
            or any(value.keyed for value in self.inputs)
            or any(map(_has_keys, _inner(self.params)))
        )

    @property
    def random(self) -> bool:
        return self.is_random

    @property
    def keyed(self) -> bool:
        return self.is_keyed

    @property
    def name(self) -> str:
        return str(self.primitive.name)


# What jax.random compiles by these names is one draw: its kind, and its arguments besides the key.
_DRAWS: dict[str, tuple[str, dict[str, str]]] = {
    "_uniform": ("uniform", {"minval": "low", "maxval": "high"}),
    "_normal": ("normal", {}),
    "_normal_real": ("normal", {}),
    "_truncated_normal": ("truncated_normal", {"lower": "low", "upper": "high"}),
    "_randint": ("integers", {"minval": "low", "maxval": "high"}),
    "_orthogonal": ("orthogonal", {}),
}

_JAX = os.sep + "jax" + os.sep
_RANDOM = os.path.join("jax", "_src", "random")
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
# What only hands on what a program asks for.
_FRAMEWORKS = (
    "jax", "jaxlib", "flax", "equinox", "haiku", "optax", "chex", "jaxtyping", "beartype", "jmp"
)  # fmt: skip


class Lines:
    """The user's lines of equations."""

    def __init__(self) -> None:
        self._ours = os.path.dirname(os.path.abspath(__file__)) + os.sep
        self._frameworks = tuple(
            os.path.abspath(folder) + os.sep
            for name in _FRAMEWORKS
            for folder in getattr(sys.modules.get(name), "__path__", ())
        )

    def of(self, equation: Any) -> str:
        """The innermost line that is no framework's, else a framework's, as `file:line`."""
        found = equation.source_info.traceback
        frames = found.frames if found is not None else ()
        return self._innermost((frame.file_name, frame.line_num) for frame in frames)

    def of_error(self, error: BaseException) -> str:
        """The same of where an error comes from."""
        frames = traceback.extract_tb(error.__traceback__)
        return self._innermost((frame.filename, frame.lineno) for frame in reversed(frames))

    def _innermost(self, frames: Iterable[tuple[str, int | None]]) -> str:
        found = "?"
        for name, line in frames:
            installed = "site-packages" in name or "dist-packages" in name
            if name.startswith(("<", self._ours)) or (name.startswith(_STANDARD) and not installed):
                continue
            if not name.startswith(self._frameworks):
                return f"{name}:{line}"
            if found == "?" and _JAX not in name:
                found = f"{name}:{line}"
        return found


class Graph:
    """The values of a jaxpr's results.

    Attributes:
        keys: the bytes of a key → (those of the key that it was made from, the step).
    """

    def __init__(self) -> None:
        self.keys: dict[bytes, tuple[bytes | None, tuple[str, tuple[int, ...]]]] = {}
        self._drawn: dict[Any, Draw] = {}
        self._computed: dict[int, Any] = {}
        self._kept: list[Value] = []  # So that no other value gets an address of `_computed`.
        self._lines = Lines()

    def results(self, closed: Any) -> list[Value]:
        """Values of all results of a closed jaxpr without arguments."""
        jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
        return self._run(jaxpr, closed.consts, [], None)

    def _run(
        self,
        jaxpr: Any,
        consts: Sequence[Any],
        arguments: Sequence[Value],
        within: Origin | None,
    ) -> list[Value]:
        """Of the results of a jaxpr; `within` is the function of JAX that it is a part of."""
        known: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))
        outside = Origin("a constant", "?")
        for variable, data in zip(jaxpr.constvars, consts, strict=True):
            known[variable] = data if isinstance(data, Value) else _known(data, outside)

        def read(atom: Any) -> Value:
            return known[atom] if not isinstance(atom, core.Literal) else _literal(atom, outside)

        for equation in jaxpr.eqns:
            inputs = tuple(read(atom) for atom in equation.invars)
            results = self._apply(equation, inputs, within)
            for variable, value in zip(equation.outvars, results, strict=True):
                known[variable] = value
        return [read(atom) for atom in jaxpr.outvars]

    def _apply(
        self, equation: Any, inputs: tuple[Value, ...], within: Origin | None
    ) -> Sequence[Value]:
        name, params = equation.primitive.name, equation.params
        if name in ("jit", "pjit"):
            inner = params["jaxpr"]
            if params["name"] in _DRAWS and _is_of(inner.jaxpr, _RANDOM):
                draw = self._draw(equation, params["name"], inner.jaxpr, inputs, within)
                if draw is not None:
                    return [draw]
            if within is None and _is_of(inner.jaxpr, _JAX):
                # JAX traces such a function once, so its inner lines are those of the first call.
                within = self._origin(equation, None)
            return self._run(inner.jaxpr, inner.consts, inputs, within)
        if name in ("random_clone", "copy", "copy_p", "optimization_barrier", "stop_gradient"):
            return inputs
        loop = {"scan": self._scan, "while": self._while, "cond": self._cond}.get(name)
        if loop is not None:
            results = loop(equation, inputs, within)
            if results is not None:
                return results
        else:
            for inner in (params.get("call_jaxpr"), params.get("jaxpr"), params.get("fun_jaxpr")):
                if inner is not None and hasattr(inner, "eqns"):
                    closed = hasattr(inner, "jaxpr") and hasattr(inner, "consts")
                    body, consts = (inner.jaxpr, inner.consts) if closed else (inner, ())
                    return self._run(body, consts, inputs, within)
        where = self._origin(equation, within)
        if name in _PRODUCTS and any(map(self.is_zero, inputs)):
            zeros = (equation.outvars[0].aval.shape, equation.outvars[0].aval.dtype)
            return [Known(*zeros, where, np.broadcast_to(np.zeros((), zeros[1]), zeros[0]))]
        if name == "random_bits":
            (variable,) = equation.outvars
            return [Draw(tuple(variable.aval.shape), variable.aval.dtype, where, "bits", {}, inputs[0])]
        random = name != "random_seed" and any(map(_draws, _inner(params)))
        return [
            Apply(tuple(variable.aval.shape), variable.aval.dtype, where, equation.primitive, inputs,
                  params, i, random)
            for i, variable in enumerate(equation.outvars)
        ]  # fmt: skip

    def _origin(self, equation: Any, within: Origin | None) -> Origin:
        name = equation.params.get("name") or equation.primitive.name
        if within is not None:
            return Origin(f"{name}` of `{within.operation.split('`')[0]}", within.line)
        return Origin(str(name), self._lines.of(equation))

    def _draw(
        self, equation: Any, name: str, jaxpr: Any, inputs: tuple[Value, ...], within: Origin | None
    ) -> Value | None:
        """One draw; None where it is not of the form that these functions have."""
        kind, names = _DRAWS[name]
        (variable,) = equation.outvars
        shape, dtype = tuple(variable.aval.shape), variable.aval.dtype
        if len(inputs) != 1 + len(names) or not is_key(inputs[0].dtype):
            return None
        keys, arguments = inputs[0], list(names)
        if shape[: len(keys.shape)] != keys.shape:
            return None
        own = getattr(jaxpr.debug_info, "arg_names", None)
        if own is not None and len(own) == len(inputs):  # As it was called; JAX may forget it.
            arguments = list(own[1:])
            if set(arguments) != set(names):
                return None
        line = within.line if within is not None else self._lines.of(equation)
        where = Origin(f"jax.random.{name.removeprefix('_').removesuffix('_real')}", line)
        if np.dtype(dtype).kind == "c":
            kind = "complex numbers"
        numbers: dict[str, Any] = {}
        for argument, value in zip(arguments, inputs[1:], strict=True):
            if value.keyed:
                return None
            bounds = np.asarray(self.compute(value)).reshape(-1)
            if not (bounds == bounds[0]).all():
                return None
            numbers[names[argument]] = bounds[0]
        if own is None and numbers:
            numbers = dict(zip(("low", "high"), sorted(numbers.values()), strict=True))
        if numbers and not numbers["low"] < numbers["high"]:
            return None
        return Draw(shape, dtype, where, kind, numbers, keys)

    def _cond(
        self, equation: Any, inputs: tuple[Value, ...], within: Origin | None
    ) -> Sequence[Value] | None:
        """The branch that is taken; None where a random key decides it."""
        if inputs[0].keyed:
            return None
        branches = equation.params["branches"]
        branch = branches[min(max(int(self.compute(inputs[0])), 0), len(branches) - 1)]
        return self._run(branch.jaxpr, branch.consts, inputs[1:], within)

    def _while(
        self, equation: Any, inputs: tuple[Value, ...], within: Origin | None
    ) -> Sequence[Value] | None:
        """Of a loop with keys or random numbers in it, one round after another.

        None where these decide how many there are, or where there are many.
        """
        p = equation.params
        test, body = p["cond_jaxpr"], p["body_jaxpr"]
        of_test, of_body = p["cond_nconsts"], p["body_nconsts"]
        if not any(value.keyed for value in inputs) and not _has_keys(body.jaxpr):
            return None  # JAX itself computes it.
        carry: Sequence[Value] = inputs[of_test + of_body :]
        for _ in range(_ROUNDS):
            (goes_on,) = self._run(test.jaxpr, test.consts, [*inputs[:of_test], *carry], within)
            if goes_on.keyed:
                return None
            if not self.compute(goes_on):
                return carry
            arguments = [*inputs[of_test : of_test + of_body], *carry]
            carry = self._run(body.jaxpr, body.consts, arguments, within)
        return None

    def _scan(
        self, equation: Any, inputs: tuple[Value, ...], within: Origin | None
    ) -> Sequence[Value] | None:
        """Of a loop that draws: all rounds at once where they do not look at random numbers of
        earlier ones, else one after another.

        None where it draws nothing, or where there are too many rounds for that.
        """
        p = equation.params
        body, consts, carried = p["jaxpr"], p["num_consts"], p["num_carry"]
        if not _has_keys(body.jaxpr) and not any(value.random for value in inputs):
            return None
        first = inputs[consts : consts + carried]
        before: list[Value] | None = []
        if carried:
            before = None if any(v.random for v in first) else self._carried(equation, inputs)
        if before is None:
            if p["length"] > _ROUNDS:
                return None
            return self._traced(_one_by_one(p), inputs, within)
        arguments = [*inputs[:consts], *before, *inputs[consts + carried :]]
        axes = [None] * consts + [0] * (len(arguments) - consts)
        every = jax.vmap(core.jaxpr_as_fun(body), in_axes=axes, axis_size=p["length"])
        results = self._traced(every, arguments, within)
        where = self._origin(equation, within)
        last = [
            Known(value.shape[1:], value.dtype, where,
                  self._compute(value)[-1 if not p["reverse"] else 0], value.keyed)
            for value in results[:carried]
        ]  # fmt: skip
        return [*last, *results[carried:]]

    def _traced(
        self, function: Any, arguments: Sequence[Value], within: Origin | None
    ) -> Sequence[Value]:
        """The results of a function of arrays like these."""
        shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype)  # type: ignore[no-untyped-call]
                  for value in arguments]  # fmt: skip
        traced = jax.make_jaxpr(function)(*shapes)
        jaxpr, _ = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars), True)
        return self._run(jaxpr, traced.consts, arguments, within)

    def _carried(self, equation: Any, inputs: tuple[Value, ...]) -> list[Value] | None:
        """What each round of a loop is handed by the one before it, as one array for all rounds.

        None where random numbers decide it.
        """
        p = equation.params
        consts, carried, body = p["num_consts"], p["num_carry"], p["jaxpr"]
        wanted = [True] * carried + [False] * (len(body.jaxpr.outvars) - carried)
        step, used = partial_eval.dce_jaxpr(body.jaxpr, wanted)
        needed = [value for value, is_used in zip(inputs, used, strict=True) if is_used]
        if _draws(step) or any(value.random for value in needed):
            return None
        data = [self._compute(value) if is_used or consts <= i < consts + carried else None
                for i, (value, is_used) in enumerate(zip(inputs, used, strict=True))]  # fmt: skip
        run = core.jaxpr_as_fun(core.ClosedJaxpr(step, body.consts))

        def round_(carry: list[Any], x: list[Any]) -> Any:
            every = [*data[:consts], *carry, *x]
            return run(*(a for a, is_used in zip(every, used, strict=True) if is_used)), carry

        first, xs = data[consts : consts + carried], data[consts + carried :]
        _, before = jax.lax.scan(round_, first, xs, p["length"], reverse=p["reverse"])
        where = self._origin(equation, None)
        return [
            Known(tuple(array.shape), array.dtype, where, array, keyed)
            for array, keyed in zip(before, _keyed_carry(p, inputs), strict=True)
        ]

    def is_zero(self, value: Value) -> bool:
        """Whether all elements are known to be zero."""
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
        """What whole numbers lie within.

        Raises:
            NoFormula: nothing says it.
        """
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
        """Of an operation's result, before it begins anew where its type ends."""
        if value.name in ("iota", "argsort"):
            return 0, max(value.shape)
        if value.name == "convert_element_type" and np.dtype(value.inputs[0].dtype).kind == "f":
            return None
        parts = [self._held(part) for part in value.inputs if np.dtype(part.dtype).kind in "iub"]
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
        if value.name in ("rem", "div", "shift_right_logical") and min(parts[0][0], parts[1][0]) >= 0:
            return 0, min(parts[0][1], parts[1][1] - 1) if value.name == "rem" else parts[0][1]
        return None

    def _held(self, value: Value) -> tuple[int, int]:
        """The same of what an array holds."""
        low, high = self.interval(value)
        if np.dtype(value.dtype).kind == "b":
            return low, high
        info = np.iinfo(value.dtype)
        within = info.min <= low and high <= info.max
        return (low, high) if within else (int(info.min), int(info.max))

    def identify(self, draw: Draw) -> None:
        """Sets the order of a draw that is asked for.

        Raises:
            NoFormula: its key is also that of other numbers, which are not independent then.
        """
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
        """The two words of the key that draws an element, of whose index the first numbers are known.

        Raises:
            NoFormula: the key has other words, or random numbers decide it.
        """
        words = key_words(self.compute(draw.keys))
        words = words[tuple(i.constant for i in index[: len(draw.keys.shape)])]
        if words.shape != (2,):
            raise NoFormula(
                "its key is not one of JAX's default generator, threefry2x32", draw.origin
            )
        return words

    def compute(self, value: Value) -> Any:
        """The elements of what no random key decides, or keys, computed by JAX itself.

        Raises:
            NoFormula: a random key does decide them, or they are too many.
        """
        if value.keyed and not value.random and not is_key(value.dtype):
            raise NoFormula("no expression follows what is made of a random key", _maker(value).origin)
        return self._compute(value)

    def _compute(self, value: Value) -> Any:
        """The same, and also numbers that a key decides: what is made of them is `keyed`."""
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
        """How keys were made."""
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


# Of zeros they are zeros: what a model is initialized with often is, and what follows from it.
_PRODUCTS = ("dot_general", "conv_general_dilated")
_MOVES = ("broadcast_in_dim", "reshape", "squeeze", "transpose", "expand_dims", "slice", "rev",
          "convert_element_type", "reduce_sum")  # fmt: skip
_SMALL = 1 << 22  # Elements that are computed to see whether they are zeros.
# Whose results are elements of their first input, or of several.
_OF_FIRST = (*_MOVES[:-1], "dynamic_slice", "gather", "split")
_OF_SEVERAL = ("concatenate", "stack", "select_n", "max", "min", "clamp", "scatter", "pad",
               "dynamic_update_slice")  # fmt: skip


def key_words(keys: Any) -> np.ndarray[Any, Any]:
    """The words of typed keys, along a last dimension."""
    return np.asarray(jax.random.key_data(keys))


def is_key(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def _known(data: Any, origin: Origin) -> Known:
    if not hasattr(data, "dtype"):
        data = np.asarray(data)
    return Known(tuple(data.shape), data.dtype, origin, data)


def _literal(literal: Any, origin: Origin) -> Known:
    aval = literal.aval
    data = np.asarray(literal.val, dtype=aval.dtype).reshape(aval.shape)
    return Known(tuple(aval.shape), aval.dtype, origin, data)


def _is_of(jaxpr: Any, folder: str) -> bool:
    """Whether a compiled function stands in this folder of JAX."""
    return folder in str(getattr(jaxpr.debug_info, "func_src_info", ""))


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs among the parameters of an equation."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            inner = getattr(item, "jaxpr", item)
            if hasattr(inner, "eqns"):
                yield inner


def _draws(jaxpr: Any) -> bool:
    """Whether random numbers are made of keys anywhere in it."""
    for equation in jaxpr.eqns:
        inner = list(_inner(equation.params))
        if equation.primitive.name in _BITS or any(map(_draws, inner)):
            return True
        # Of keys come keys, or their words, or else what they decide.
        if not inner and equation.primitive.name != "random_unwrap" and (
            any(_is_key_of(v) for v in equation.invars)
            and not all(_is_key_of(v) for v in equation.outvars)
        ):
            return True
    return False


_BITS = ("random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform")


def _has_keys(jaxpr: Any) -> bool:
    """Whether there are random keys anywhere in it, or numbers are drawn."""
    return any(
        equation.primitive.name in _BITS
        or any(map(_is_key_of, (*equation.invars, *equation.outvars)))
        or any(map(_has_keys, _inner(equation.params)))
        for equation in jaxpr.eqns
    )


def _is_key_of(variable: Any) -> bool:
    return hasattr(variable.aval, "dtype") and is_key(variable.aval.dtype)


def _maker(value: Value) -> Value:
    """The operation that makes numbers of the key that a value descends from."""
    while True:
        inputs = value.inputs if isinstance(value, Apply) else ()
        inner = [v for v in inputs if v.keyed and not is_key(v.dtype)]
        if not inner:
            return value
        value = inner[0]


def _one_by_one(params: dict[str, Any]) -> Any:
    """A loop of known length as a function without it."""
    run, consts, carried = core.jaxpr_as_fun(params["jaxpr"]), params["num_consts"], params["num_carry"]
    rounds = range(params["length"])

    def function(*arguments: Any) -> Any:
        carry, xs = list(arguments[consts : consts + carried]), arguments[consts + carried :]
        made: dict[int, list[Any]] = {}
        for i in reversed(rounds) if params["reverse"] else rounds:
            x = [jax.lax.index_in_dim(array, i, keepdims=False) for array in xs]
            results = run(*arguments[:consts], *carry, *x)
            carry, made[i] = list(results[:carried]), results[carried:]
        rows = zip(*(made[i] for i in rounds), strict=True)
        return [*carry, *(jax.lax.concatenate([row[None] for row in all_], 0) for all_ in rows)]

    return function


def _keyed_carry(params: dict[str, Any], inputs: Sequence[Value]) -> list[bool]:
    """Of each array that a loop hands on, whether a random key decides it in any round."""
    consts, carried, body = params["num_consts"], params["num_carry"], params["jaxpr"].jaxpr
    keyed = [value.keyed for value in inputs]
    steps = []
    for j in range(carried):
        wanted = [i == j for i in range(len(body.outvars))]
        steps.append(partial_eval.dce_jaxpr(body, wanted))
    for _ in range(carried):  # One round more may be keyed by each.
        for j, (step, used) in enumerate(steps):
            keyed[consts + j] |= _has_keys(step) or any(
                k for k, is_used in zip(keyed, used, strict=True) if is_used
            )
    return keyed[consts : consts + carried]
