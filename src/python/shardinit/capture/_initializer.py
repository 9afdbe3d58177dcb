"""Finds the spec initializer that gives a PyTorch tensor its elements."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from .._dtypes import name_of
from ._expression import NoFormula, Term, shortest, stored
from ._formula import Formula
from ._stream import TORCH_CPU, Words, is_one_round
from ._tensor import (
    BEHIND,
    LONGEST,
    Initializer,
    Linear,
    Tensor,
    Text,
    at,
    constant,
    expression,
    has_bits,
    make,
    of_numbers,
    plain,
    root,
    table,
    varying,
)
from ._torch_numbers import MATRIX, torch_term
from ._values import COMPUTED, Draw, Literal, Value, contiguous, evaluate
from ._walk import check_uses


def tensor_of(path: str, value: Value, engine: str) -> Tensor:
    """Returns the spec's tensor for a value; raises NoFormula if a spec cannot express it."""
    dtype = name_of(value.dtype)
    if value.dtype.is_complex:
        why = "complex numbers: keep the real and the imaginary part as two tensors"
        raise NoFormula(why, value.origin)
    if not dtype:
        raise NoFormula(f"a spec has no {value.dtype}".replace("torch.", ""), value.origin)
    if not math.prod(value.shape):
        return Tensor(path, value.shape, dtype, "zeros", [], path)
    if not value.random:
        return of_numbers(path, value.shape, dtype, _fixed(value, dtype))
    if engine == TORCH_CPU:
        formula = Formula(value, _fixed_text)
        if formula.is_constant():
            return tensor_of(path, _whatever_is_drawn(value), engine)
        draw = formula.uses[0].draw
        text = stored(formula.term, dtype).text
        if text == _filling(draw, value) and (init := _filled_with(draw, value.shape)) is not None:
            fans = _fans_of(init, value.shape)
            asked = None if MATRIX in text else _placed(text, formula)
            return Tensor(
                path, value.shape, dtype, init, formula.uses, path, draw.place, asked, fans=fans
            )
        placed = _placed(text, formula)
        if placed is None:
            raise NoFormula(BEHIND, draw.origin)
        return Tensor(path, value.shape, dtype, placed, formula.uses, path)
    formula = Formula(value, table=_fixed_text)
    if formula.is_constant():
        return tensor_of(path, _whatever_is_drawn(value), engine)
    check_uses(formula.uses)
    init = _drawn(formula, value.shape)
    fans = _fans_of(init, value.shape)
    return Tensor(path, value.shape, dtype, init, formula.uses, path, fans=fans)


def _whatever_is_drawn(value: Value) -> Value:
    """Computes a value that comes from random numbers, but does not depend on them."""
    data = evaluate(value, lambda draw: torch.zeros(draw.shape, dtype=draw.dtype))
    return Literal(value.shape, value.dtype, value.origin, data)


def _fans_of(init: Initializer, shape: tuple[int, ...]) -> str:
    """Returns PyTorch's order of dimensions, if an initializer uses fans."""
    name = init if isinstance(init, str) else next(iter(init))
    looks = name.startswith(("xavier", "kaiming")) or (name == "orthogonal" and len(shape) > 2)
    return "out_in" if looks else ""


def _filling(draw: Draw, value: Value) -> str:
    """Returns the expression for the elements of a draw; "" if the types forbid it."""
    size = math.prod(value.shape)
    if draw.dtype != value.dtype:
        # The engine draws in the tensor's type. Only its normal numbers in bf16 and f16 may equal
        # the rounded f32 numbers of the draw.
        rounded = draw.dtype == torch.float32 and value.dtype in (torch.bfloat16, torch.float16)
        normal = draw.kind == "normal" or (
            draw.kind == "trunc_normal" and is_one_round(draw.parameters, draw.place.pairs)
        )
        if not rounded or not normal or (size % 16 and size > 16):
            return ""
    if size != math.prod(draw.shape) or (draw.place.pairs and size >= 16):
        return ""
    index = " + ".join(
        f"{stride} * i{d}" if stride > 1 else f"i{d}"
        for d, stride in enumerate(contiguous(value.shape))
        if value.shape[d] > 1
    )
    marks: dict[Words, Term] = {}

    def mark(words: Words) -> Term:
        return marks.setdefault(words, Term(f"@{len(marks)}@"))

    return torch_term(draw, Term(index or "0", 2), mark).text


def _placed(text: str, formula: Formula) -> Initializer | None:
    """Returns an expression over PyTorch's numbers; None if their places depend on the seed."""
    origin = formula.uses[0].draw.origin
    places = {mark: Linear(words.count) for mark, words in formula.marks.items()}
    init = expression(text, origin, **places)
    if MATRIX in text:
        raise NoFormula("such random values are changed", origin)
    return None if any(words.after >= 0 for words in formula.marks.values()) else init


def _filled_with(draw: Draw, shape: tuple[int, ...]) -> Initializer | None:
    """Returns the initializer that fills a tensor with a draw."""
    p = draw.parameters
    match draw.kind:
        case "normal":
            return _normal(p.get("mean", 0.0), p.get("std", 1.0), shape, draw.recipe)
        case "uniform":
            # All bits of an f64 bound matter, and a formula may round the last ones differently.
            recipe = draw.recipe if draw.dtype != torch.float64 else ""
            return _uniform(p.get("low", 0.0), p.get("high", 1.0), shape, recipe)
        case "trunc_normal" | "orthogonal" | "sparse":
            if draw.kind != "trunc_normal" and shape != draw.shape:
                return None
            numbers = {k: v for k, v in p.items() if (k, v) not in (("mean", 0), ("gain", 1))}
            return {draw.kind: numbers} if numbers else draw.kind
    return None


def _drawn(formula: Formula, shape: tuple[int, ...]) -> Initializer:
    text = formula.term.text
    draw = formula.uses[0].draw
    whole = dataclasses.replace(draw, problem="")
    is_whole = len(formula.uses) == 1 and text == Formula(whole).term.text
    if is_whole and (init := _filled_with(draw, shape)) is not None:
        return init
    if (along := re.fullmatch(r"<normalized>(?: \* ([\d.e-]+))?", text)) is not None:
        length = {} if along[1] is None else {"length": float(along[1])}
        return {"normalized": {"axis": formula.along, **length}}
    scaled = re.fullmatch(r"normal\(\)(?: \* ([\d.e-]+))?(?: ([+-]) ([\d.e-]+))?", text)
    if scaled:
        std, sign, mean = scaled.groups()
        return _normal(float((sign or "") + (mean or "0")), float(std or 1), shape, "")
    return expression(text, draw.origin)


def _normal(mean: float, std: float, shape: tuple[int, ...], recipe: str) -> Initializer:
    if mean == 0 and std > 0:
        for name, gain, fan in _fans(shape, recipe):
            if name == "kaiming" and gain / math.sqrt(fan) == std:
                return _kaiming("kaiming_normal", gain)
            if name == "xavier" and math.sqrt(2.0 / fan) == std:
                return "xavier_normal"
    numbers = {"mean": mean} if mean else {}
    return {"normal": {**numbers, "std": root(std)}}


def _uniform(low: float, high: float, shape: tuple[int, ...], recipe: str) -> Initializer:
    if low == -high:
        for name, gain, fan in _fans(shape, recipe):
            if name == "kaiming" and math.sqrt(3.0) * (gain / math.sqrt(fan)) == high:
                return _kaiming("kaiming_uniform", gain)
            if name == "xavier" and math.sqrt(3.0) * math.sqrt(2.0 / fan) == high:
                return "xavier_uniform"
        bound = root(high)
        if isinstance(bound, Text):
            return {"uniform": {"low": Text(f"-{bound.text}"), "high": bound}}
    return {"uniform": {"low": low, "high": high}}


_GAINS = {math.sqrt(2.0): None, math.sqrt(2.0 / (1 + math.sqrt(5) ** 2)): Text("sqrt(5)")}


def _kaiming(name: str, gain: float) -> Initializer:
    a = _GAINS[gain]
    return name if a is None else {name: {"a": a}}


def _fans(shape: tuple[int, ...], recipe: str) -> Iterator[tuple[str, float, float]]:
    """Yields name, gain and radicand of the initializers that use fans."""
    if len(shape) < 2:
        return
    field = math.prod(shape[2:])
    if recipe.startswith("kaiming"):
        for gain in _GAINS:
            yield "kaiming", gain, shape[1] * field
    if recipe.startswith("xavier"):
        yield "xavier", 1.0, float(shape[1] * field + shape[0] * field)


def _fixed(value: Value, dtype: str) -> Initializer | bytes:
    """Returns the initializer of a value that is not random, or its bytes if none gives them."""
    problem = None
    try:
        term = Formula(value).term
        if len(term.text) > LONGEST:
            raise NoFormula("its expression is too long", value.origin)
    except NoFormula as error:
        term, problem = None, error
    size = math.prod(value.shape)
    if term is not None and term.value is not None and size > COMPUTED >> 6:
        return constant(_short(_cast(term.value, value.dtype), value.dtype))
    if size > COMPUTED:
        raise problem or NoFormula(f"{size} elements are too many to compute", value.origin)
    real = evaluate(value).contiguous()
    if value.dtype.is_floating_point and bool(torch.isnan(real.double()).any()):
        why = "it has elements that are NaN, or that nothing was written to"
        raise NoFormula(why, value.origin)
    stored_bits = bits(real).tobytes()
    if value.dtype.is_floating_point and bool(torch.isinf(real.double()).any()):
        return stored_bits
    first = real.flatten()[0]
    if bool((real == first).all()) and not (first == 0 and _signs(real)):
        return constant(_short(first.item(), real.dtype))
    if len(shape := value.shape) >= 2:
        centre = " * ".join(f"(i{d} == {shape[d] // 2})" for d in range(2, len(shape)))
        if has_bits("(i0 == i1)" + (f" * {centre}" if centre else ""), shape, dtype, stored_bits):
            return "dirac" if len(shape) > 2 else "eye"
    text = _found(term.text if term is not None else None, real, value.shape, dtype)
    return stored_bits if text is None else {"expr": {"": Text(text)}}


def _found(text: str | None, real: torch.Tensor, shape: tuple[int, ...], dtype: str) -> str | None:
    """Returns an expression with exactly these bits, which may differ from `text`."""
    wanted = bits(real).tobytes()
    attempts = _attempts(text, real, shape)
    return next((attempt for attempt in attempts if has_bits(attempt, shape, dtype, wanted)), None)


def _fixed_text(value: Value) -> str:
    """Returns an expression with the bits of a nonrandom value, to use next to random ones."""
    try:
        text = Formula(value).term.text
    except NoFormula:
        text = None
    if math.prod(value.shape) <= COMPUTED:
        real = evaluate(value).contiguous()
        found = _found(text, real, value.shape, name_of(value.dtype))
        if found is not None:
            return found
    raise NoFormula("no expression was found that gives the bits of its numbers", value.origin)


def _signs(real: torch.Tensor) -> bool:
    return real.dtype.is_floating_point and bool(torch.signbit(real).any())


def _cast(value: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(value, dtype=dtype).item())


def _short(value: Any, dtype: torch.dtype) -> Any:
    """Returns the shortest number that rounds to this one in the type."""
    if not dtype.is_floating_point:
        return int(value)
    return shortest(value, lambda near: _cast(near, dtype) == value)


def _attempts(text: str | None, real: torch.Tensor, shape: tuple[int, ...]) -> Iterator[str]:
    """Yields expressions that may have exactly these bits, the most readable first."""
    if text is not None:
        yield text
        if real.dtype.is_floating_point:
            yield from _corrected(text, real, shape)
    numbers = real.double().numpy() if real.dtype.is_floating_point else real.numpy()
    if found := table(numbers, lambda number: _short(number.item(), real.dtype)):
        yield found


def _corrected(text: str, real: torch.Tensor, shape: tuple[int, ...]) -> Iterator[str]:
    """Yields the expression with a small summand where PyTorch rounds differently."""
    made = make(text, shape, "f64")
    if made is None or not np.isfinite(made).all():
        return
    wanted = real.double().numpy()
    if not made.shape:
        return
    kept = torch.from_numpy(made).float().to(real.dtype).double().numpy()
    _, dimensions = varying(made, wanted)
    cut = tuple(slice(None) if d in dimensions else slice(0, 1) for d in range(len(shape)))
    places = [tuple(int(i) for i in place) for place in np.argwhere((kept != wanted)[cut])]
    if len(places) * 20 + len(text) > LONGEST:
        return
    for place in places:
        here, goal = float(made[place]), float(wanted[place])

        def is_good(short: float, here: float = here, goal: float = goal) -> bool:
            moved = torch.tensor(here + math.copysign(short, goal - here), dtype=torch.float64)
            return float(moved.float().to(real.dtype)) == goal

        sign = "+" if goal > here else "-"
        text += f" {sign} {at(place, dimensions)} * {plain(shortest(abs(goal - here), is_good))}"
    yield text


def bits(real: torch.Tensor) -> np.ndarray[Any, Any]:
    """Returns the bits of a contiguous tensor's elements, as integers of the same size."""
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return real.view(words[real.element_size()]).numpy()
