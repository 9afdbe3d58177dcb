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

from ._expression import NoFormula, Origin

_COMPUTED = 1 << 27  # Elements of what is computed, and no more.
_REGISTERED = 1 << 16  # Keys of one split whose derivation is kept.


@dataclasses.dataclass(eq=False)
class Value:
    """An array's elements.

    Attributes:
        dtype: a NumPy type, or JAX's type of random keys.
        random: they depend on random numbers.
    """

    shape: tuple[int, ...]
    dtype: Any
    origin: Origin

    @property
    def random(self) -> bool:
        return False


@dataclasses.dataclass(eq=False)
class Known(Value):
    """Numbers that stand in the jaxpr, or that were computed."""

    data: Any


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

    def __post_init__(self) -> None:
        self.is_random = self.is_random or any(value.random for value in self.inputs)

    @property
    def random(self) -> bool:
        return self.is_random

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
        if name == "scan":
            results = self._scan(equation, inputs, within)
            if results is not None:
                return results
        elif name == "cond":
            choice = inputs[0]
            if not choice.random:
                branch = params["branches"][
                    min(max(int(self.compute(choice)), 0), len(params["branches"]) - 1)
                ]
                return self._run(branch.jaxpr, branch.consts, inputs[1:], within)
        elif name != "while":
            for inner in (params.get("call_jaxpr"), params.get("jaxpr"), params.get("fun_jaxpr")):
                if inner is not None and hasattr(inner, "eqns"):
                    closed = hasattr(inner, "jaxpr") and hasattr(inner, "consts")
                    body, consts = (inner.jaxpr, inner.consts) if closed else (inner, ())
                    return self._run(body, consts, inputs, within)
        where = self._origin(equation, within)
        if name in _PRODUCTS and any(map(self._is_zero, inputs)):
            zeros = (equation.outvars[0].aval.shape, equation.outvars[0].aval.dtype)
            return [Known(*zeros, where, np.broadcast_to(np.zeros((), zeros[1]), zeros[0]))]
        if name == "random_bits":
            (variable,) = equation.outvars
            kind = "bits" if params["bit_width"] == 32 else f"{params['bit_width']} random bits"
            return [
                Draw(tuple(variable.aval.shape), variable.aval.dtype, where, kind, {}, inputs[0])
            ]
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
            if value.random:
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

    def _scan(
        self, equation: Any, inputs: tuple[Value, ...], within: Origin | None
    ) -> Sequence[Value] | None:
        """Of a loop whose rounds do not look at random numbers of earlier ones: all rounds at once.

        None where it draws nothing, or where they do.
        """
        p = equation.params
        body, consts, carried = p["jaxpr"], p["num_consts"], p["num_carry"]
        if not _draws(body.jaxpr):
            return None
        first = inputs[consts : consts + carried]
        if any(value.random for value in first):
            return None
        before = self._carried(equation, inputs) if carried else []
        if before is None:
            return None
        arguments = [*inputs[:consts], *before, *inputs[consts + carried :]]
        shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype)  # type: ignore[no-untyped-call]
                  for value in arguments]  # fmt: skip
        axes = [None] * consts + [0] * (len(arguments) - consts)
        rounds = jax.make_jaxpr(
            jax.vmap(core.jaxpr_as_fun(body), in_axes=axes, axis_size=p["length"])
        )(*shapes)
        jaxpr, _ = partial_eval.dce_jaxpr(rounds.jaxpr, [True] * len(rounds.jaxpr.outvars), True)
        results = self._run(jaxpr, rounds.consts, arguments, within)
        where = self._origin(equation, within)
        last = [
            Known(value.shape[1:], value.dtype, where, self.compute(value)[-1 if not p["reverse"] else 0])
            for value in results[:carried]
        ]  # fmt: skip
        return [*last, *results[carried:]]

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
        data = [self.compute(value) if is_used or consts <= i < consts + carried else None
                for i, (value, is_used) in enumerate(zip(inputs, used, strict=True))]  # fmt: skip
        run = core.jaxpr_as_fun(core.ClosedJaxpr(step, body.consts))

        def round_(carry: list[Any], x: list[Any]) -> Any:
            every = [*data[:consts], *carry, *x]
            return run(*(a for a, is_used in zip(every, used, strict=True) if is_used)), carry

        first, xs = data[consts : consts + carried], data[consts + carried :]
        _, before = jax.lax.scan(round_, first, xs, p["length"], reverse=p["reverse"])
        where = self._origin(equation, None)
        return [Known(tuple(array.shape), array.dtype, where, array) for array in before]

    def _is_zero(self, value: Value) -> bool:
        """Whether all elements are known to be zero."""
        while isinstance(value, Apply) and value.name in _MOVES:
            value = value.inputs[0]
        if value.random or is_key(value.dtype):
            return False
        if isinstance(value, Apply) and math.prod(value.shape) > _SMALL:
            return False
        try:
            return not np.any(self.compute(value))
        except NoFormula:
            return False

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

    def compute(self, value: Value) -> Any:
        """The elements of what no random number decides, computed by JAX itself.

        Raises:
            NoFormula: random numbers do decide them, or they are too many.
        """
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
_PRODUCTS = ("dot_general", "conv_general_dilated", "mul")
_MOVES = ("broadcast_in_dim", "reshape", "squeeze", "transpose", "expand_dims", "slice", "rev",
          "convert_element_type", "reduce_sum")  # fmt: skip
_SMALL = 1 << 22  # Elements that are computed to see whether they are zeros.


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
    """Whether random numbers are drawn anywhere in it."""
    return any(
        equation.primitive.name == "random_bits" or any(map(_draws, _inner(equation.params)))
        for equation in jaxpr.eqns
    )
