"""Converts a JAX function's jaxpr to a graph of values, without their elements."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval

from ._expression import Origin
from ._jax_compute import Computed
from ._jax_values import (
    Apply,
    Draw,
    Known,
    Value,
    draws,
    has_keys,
    inner_jaxprs,
    is_key,
    known_of,
    literal_of,
)
from ._lines import JAX, Lines

_ROUNDS = 256  # The maximum rounds of a loop that uses random numbers of earlier rounds.
# A function that jax.random compiles under such a name is a draw: its kind, and its other
# arguments.
_DRAWS: dict[str, tuple[str, dict[str, str]]] = {
    "_uniform": ("uniform", {"minval": "low", "maxval": "high"}),
    "_normal": ("normal", {}),
    "_normal_real": ("normal", {}),
    "_truncated_normal": ("truncated_normal", {"lower": "low", "upper": "high"}),
    "_randint": ("integers", {"minval": "low", "maxval": "high"}),
    "_orthogonal": ("orthogonal", {}),
}

_RANDOM = os.path.join("jax", "_src", "random")
# A product with zeros is zeros, and the inputs with which a model is initialized often are zeros.
_PRODUCTS = ("dot_general", "conv_general_dilated")


class Graph(Computed):
    """Finds the values of a jaxpr's results."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = Lines()

    def results(self, closed: Any) -> list[Value]:
        """Returns values of all results of a closed jaxpr without arguments."""
        jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
        return self._run(jaxpr, closed.consts, [], None)

    def _run(
        self,
        jaxpr: Any,
        consts: Sequence[Any],
        arguments: Sequence[Value],
        within: Origin | None,
    ) -> list[Value]:
        """Returns values of a jaxpr's results; `within` is the JAX function that contains it."""
        known: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))
        outside = Origin("a constant", "?")
        for variable, data in zip(jaxpr.constvars, consts, strict=True):
            known[variable] = data if isinstance(data, Value) else known_of(data, outside)

        def read(atom: Any) -> Value:
            return known[atom] if not isinstance(atom, core.Literal) else literal_of(atom, outside)

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
            if within is None and _is_of(inner.jaxpr, JAX):
                # JAX traces such a function only once, so its inner lines are from the first call.
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
            shape, dtype = tuple(variable.aval.shape), variable.aval.dtype
            return [Draw(shape, dtype, where, "bits", {}, inputs[0])]
        random = name != "random_seed" and any(map(draws, inner_jaxprs(params)))
        return [
            Apply(tuple(variable.aval.shape), variable.aval.dtype, where, equation.primitive,
                  inputs, params, i, random)
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
        """Returns the value of a draw; None if it does not have the form of these functions."""
        kind, names = _DRAWS[name]
        (variable,) = equation.outvars
        shape, dtype = tuple(variable.aval.shape), variable.aval.dtype
        if len(inputs) != 1 + len(names) or not is_key(inputs[0].dtype):
            return None
        keys, arguments = inputs[0], list(names)
        if shape[: len(keys.shape)] != keys.shape:
            return None
        own = getattr(jaxpr.debug_info, "arg_names", None)
        if own is not None and len(own) == len(inputs):  # JAX may remove arguments of a call.
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
        """Returns the results of the branch that is taken; None if a random key determines it."""
        if inputs[0].keyed:
            return None
        branches = equation.params["branches"]
        branch = branches[min(max(int(self.compute(inputs[0])), 0), len(branches) - 1)]
        return self._run(branch.jaxpr, branch.consts, inputs[1:], within)

    def _while(
        self, equation: Any, inputs: tuple[Value, ...], within: Origin | None
    ) -> Sequence[Value] | None:
        """Returns the results of a loop with keys or random numbers in it, round by round.

        Returns None if these determine the number of rounds, or if there are too many rounds.
        """
        p = equation.params
        test, body = p["cond_jaxpr"], p["body_jaxpr"]
        of_test, of_body = p["cond_nconsts"], p["body_nconsts"]
        if not any(value.keyed for value in inputs) and not has_keys(body.jaxpr):
            return None  # JAX itself computes such a loop.
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
        """Returns the results of a loop of known length that draws.

        All rounds are traced at once if they do not use random numbers of earlier rounds. Otherwise
        they are traced one after another.

        Returns None if the loop draws nothing, or if there are too many rounds for that.
        """
        p = equation.params
        body, consts, carried = p["jaxpr"], p["num_consts"], p["num_carry"]
        if not has_keys(body.jaxpr) and not any(value.random for value in inputs):
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
        """Returns the results of a function that is traced on arrays like these."""
        shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype)  # type: ignore[no-untyped-call]
                  for value in arguments]  # fmt: skip
        traced = jax.make_jaxpr(function)(*shapes)
        jaxpr, _ = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars), True)
        return self._run(jaxpr, traced.consts, arguments, within)

    def _carried(self, equation: Any, inputs: tuple[Value, ...]) -> list[Value] | None:
        """Returns the values that each round of a loop gets from the round before, as arrays.

        Returns None if random numbers determine them.
        """
        p = equation.params
        consts, carried, body = p["num_consts"], p["num_carry"], p["jaxpr"]
        wanted = [True] * carried + [False] * (len(body.jaxpr.outvars) - carried)
        step, used = partial_eval.dce_jaxpr(body.jaxpr, wanted)
        needed = [value for value, is_used in zip(inputs, used, strict=True) if is_used]
        if draws(step) or any(value.random for value in needed):
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

def _is_of(jaxpr: Any, folder: str) -> bool:
    """Returns whether a compiled function comes from this folder of JAX."""
    return folder in str(getattr(jaxpr.debug_info, "func_src_info", ""))


def _one_by_one(params: dict[str, Any]) -> Any:
    """Returns a function that runs the rounds of a loop of known length one by one."""
    run = core.jaxpr_as_fun(params["jaxpr"])
    consts, carried = params["num_consts"], params["num_carry"]
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
    """Returns, for each array that a loop carries, whether random keys affect it in any round."""
    consts, carried, body = params["num_consts"], params["num_carry"], params["jaxpr"].jaxpr
    keyed = [value.keyed for value in inputs]
    steps = []
    for j in range(carried):
        wanted = [i == j for i in range(len(body.outvars))]
        steps.append(partial_eval.dce_jaxpr(body, wanted))
    for _ in range(carried):  # Each pass may find one more keyed array.
        for j, (step, used) in enumerate(steps):
            keyed[consts + j] |= has_keys(step) or any(
                k for k, is_used in zip(keyed, used, strict=True) if is_used
            )
    return keyed[consts : consts + carried]
