"""Computes sums, products and comparisons of two terms as JAX does in their type."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .._dtypes import rounding_of
from ._expression import NoFormula, Term, binary, call, number
from ._jax_numbers import Scaled, as_jax_does, bounds, rounded, rounding, scaled
from ._jax_values import Apply, Value
from ._walk import At

if TYPE_CHECKING:
    from ._jax_formula import Formula


class Operation(At):
    """An operation, and the place at which its result is requested."""

    formula: Formula
    value: Apply

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the primitive."""
        return self.value.params

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The inputs of the operation."""
        return self.value.inputs

    def of(self, n: int) -> Term:
        """Returns the n-th input's element at the result's place, or a scalar input itself."""
        value = self.inputs[n]
        return self.at(value, self.index if value.shape else ())

    def starts(self, first: int) -> list[int]:
        """Returns the numbers from input `first` on."""
        starts = []
        for value in self.inputs[first:]:
            if value.random:
                raise NoFormula("a place is random")
            starts.append(int(self.formula.graph.compute(value)))
        return starts


def combined(operator: str, left: Term, right: Term, at: Operation) -> Term:
    """Returns the result of an operator, as JAX computes it in the type of its operands."""
    dtype, exact = at.inputs[0].dtype, at.formula.exact
    is_float = np.dtype(dtype).kind not in "biu"
    if left.value is not None and right.value is not None:
        return _folded(operator, left.value, right.value, at)
    if operator not in _ARITHMETIC:
        return binary(operator, left, right)
    if not is_float:
        return whole(at, binary(operator, left, right))
    if exact and any(0 < abs(x.value) < _NORMAL for x in (left, right) if x.value is not None):
        raise NoFormula(f"a number below {_NORMAL:.3g}, which XLA takes for 0")
    if not exact and left.exact is not None and left.dtype == rounding_of(np.dtype(dtype)):
        left = left.exact  # One rounding more or less does not change the distribution.
    if isinstance(left, Scaled) and left.draw is not None and right.value is not None:
        found = _rescaled(operator, left, right.value, dtype, exact)
        if found is not None:
            return found
    if isinstance(right, Scaled) and left.value is not None and operator in "+*":
        return combined(operator, right, left, at)
    draw = right.draw if isinstance(right, Scaled) and not exact else None
    if operator == "-" and isinstance(right, Scaled) and draw and left.value is not None:
        return scaled(draw, -right.scale, rounded(left.value - right.shift, dtype))
    term = _signed_zero(operator, left, right)
    if term is None:
        if operator in "+-" and right.value is not None and right.value < 0:
            term = binary("-" if operator == "+" else "+", left, number(-right.value))
        elif operator == "+" and right.value is None and left.value is not None:
            term = binary("+", right, left)
        else:
            term = binary(operator, left, right)
    is_same = term.text in (left.text, right.text)
    return rounding(term, dtype) if exact and not is_same else term


_NORMAL = float(np.finfo(np.float32).smallest_normal)

_ARITHMETIC = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}

_COMPARISONS = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
                "==": np.equal, "!=": np.not_equal}  # fmt: skip


def _folded(operator: str, left: float, right: float, at: Operation) -> Term:
    """Returns the result for two numbers, rounded to the type, with the sign of a zero."""
    dtype = np.dtype(at.inputs[0].dtype)
    if operator == "/" and dtype.kind in "iu":
        raise NoFormula("a quotient of whole numbers")
    with np.errstate(all="ignore"):
        operation = {**_ARITHMETIC, **_COMPARISONS}[operator]
        made = operation(np.array(left, dtype), np.array(right, dtype))
    if made.dtype.kind == "b":
        return number(int(made))
    return at.formula.number(made, at.value.dtype)


def _rescaled(operator: str, x: Scaled, by: float, dtype: Any, exact: bool) -> Term | None:
    """Returns the term of a draw after another scaling or shift; None if it is not a draw."""
    assert x.draw is not None
    if exact:
        # The term stays a draw while the engine rounds each step as JAX does.
        is_plain = x.draw.kind != "uniform" or bounds(x.draw, 1, 0) in ((0, 1), (-1, 1))
        if not is_plain or x.shift or not by or str(x.draw.dtype) != str(np.dtype(dtype)):
            return None
        if operator == "*" and x.scale == 1:
            return as_jax_does(x.draw, rounded(by, dtype))
        if operator in "+-" and x.draw.kind != "uniform":
            return as_jax_does(x.draw, x.scale, rounded(by if operator == "+" else -by, dtype))
        return None
    if operator == "*" and by:
        return scaled(x.draw, rounded(x.scale * by, dtype), rounded(x.shift * by, dtype))
    if operator == "/" and by:
        return scaled(x.draw, rounded(x.scale / by, dtype), rounded(x.shift / by, dtype))
    if operator in "+-":
        shift = x.shift + by if operator == "+" else x.shift - by
        return scaled(x.draw, x.scale, rounded(shift, dtype))
    return None


def _signed_zero(operator: str, left: Term, right: Term) -> Term | None:
    """Returns the sum of 0 and a term whose parts may be -0; None if that does not matter."""
    numbers = [term.value for term in (left, right) if term.value is not None]
    zeros = [value == 0 and math.copysign(1, value) for value in numbers]
    if operator not in "+-" or zeros not in ([1], [-1]):
        return None
    if operator == "-" and left.value is not None:
        if zeros == [-1]:  # In IEEE arithmetic, -0 - x is -x.
            return minus(right)
        operand = right.text if right.binds > 2 else f"({right.text})"
        return Term(f"0 - {operand}", 2)
    term = left if right.value is not None else right
    if zeros == [1 if operator == "-" else -1] or "-" not in term.text:
        return term
    return Term(f"{term.text} {operator} {'0' if operator == '+' else '-0.0'}", 2)


def minus(term: Term) -> Term:
    """Returns a term with the opposite sign, even if it is zero."""
    operand = term.text if term.binds > 3 else f"({term.text})"
    return Term(f"-{operand}", 4)


def whole(at: Operation, term: Term) -> Term:
    """Returns an integer that wraps around at the limits of its type."""
    low, high = at.formula.graph.interval(at.value)
    info = np.iinfo(at.value.dtype)
    if info.min <= low and high <= info.max:
        return term
    if max(-low, high) > 1 << 53:
        raise NoFormula("whole numbers that may be above 2^53")
    every = number(1 << info.bits)
    if not info.min:
        return call("mod", term, every)
    moved = call("mod", binary("+", term, number(-info.min)), every)
    return binary("-", moved, number(-info.min))
