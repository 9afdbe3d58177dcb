"""A tensor of a spec, with its initializer."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._errors import SpecError
from .._spec import Spec
from ._expression import NoFormula, Origin
from ._stream import TORCH_CPU, Place
from ._walk import Use

LONGEST = 4096  # The maximum length of an expression in bytes.
BEHIND = (
    "only the seed decides where in the stream its numbers are, after a truncated distribution,"
    " and an expression needs the place itself"
)


@dataclasses.dataclass(frozen=True)
class Text:
    """An expression, which is written in a spec without quotes if possible."""

    text: str


@dataclasses.dataclass(frozen=True)
class Linear:
    """The integer `constant + Σ factor * variable`, over variables of repeats."""

    constant: int
    factors: tuple[tuple[str, int], ...] = ()

    @property
    def text(self) -> str:
        terms = [f"{f} * {name}" if f != 1 else name for name, f in self.factors]
        if self.constant or not terms:
            terms.append(str(self.constant))
        return " + ".join(terms).replace("+ -", "- ")


Number = float | int | Text
Initializer = str | dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Key:
    """The key that draws a tensor, if it is not the tensor's path: `key: {ENGINE: …}`.

    Attributes:
        engine: the word before the colon.
        steps: the steps of its derivation, in order, each with a number, or with a tuple of names
            and numbers that Flax folds in.
        words: the key itself, which other steps may also make.
    """

    engine: str
    steps: tuple[tuple[str, tuple[Any, ...]], ...]
    words: bytes = dataclasses.field(default=b"", compare=False)


@dataclasses.dataclass
class Tensor:
    """A tensor of a spec.

    Attributes:
        uses: the constructor's draws of its values.
        key: the path of the first tensor with the same draws.
        place: its place in PyTorch's stream, if the engine torch_cpu draws it; else None.
        asked: the expression that requests the same numbers as torch_cpu's draw, if there is one.
        given: the key that draws it; None for the key of the path `key`.
        fans: `out_in` or `in_out`, if its initializer uses fans.
        axes: `in_axis` and similar keys, if `fans` is not sufficient.
        table: the content of its file, if `init` names one.
        of: the path of the tensor whose norms it holds; "" if it has its own values.
        is_buffer: whether it is a buffer, which is not trained.
        origin: the operation that made it, and the user's line.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    init: Initializer
    uses: list[Use]
    key: str
    place: Place | None = None
    asked: Initializer | None = None
    given: Key | None = None
    fans: str = ""
    axes: tuple[tuple[str, Any], ...] = ()
    table: bytes | None = None
    of: str = ""
    is_buffer: bool = False
    origin: Origin | None = None


def share(tensors: list[Tensor], engine: str) -> dict[str, str]:
    """Gives tensors with the same random numbers one key."""
    if engine == TORCH_CPU:
        return _tie_equal(tensors)
    problems: dict[str, str] = {}
    users: dict[int, list[tuple[Tensor, Use]]] = {}
    for tensor in tensors:
        for use in tensor.uses:
            for other, before in users.get(use.draw.order, ()):
                if other is tensor or use.is_disjoint(before):
                    continue
                draws = [[(u.draw.order, u.index) for u in t.uses] for t in (tensor, other)]
                same = (tensor.shape, tensor.dtype, tensor.init) == (
                    other.shape, other.dtype, other.init)  # fmt: skip
                if not same or draws[0] != draws[1]:
                    problems[tensor.path] = (
                        f"some of its random numbers are also in `{other.path}`, which is"
                        f" not the same otherwise: {use.draw.origin}"
                    )
                else:
                    tensor.key = other.key
                break
            else:
                users.setdefault(use.draw.order, []).append((tensor, use))
    return problems


def _tie_equal(tensors: list[Tensor]) -> dict[str, str]:
    """Lets torch_cpu draw one of equal tensors; others request its numbers in expressions."""
    problems: dict[str, str] = {}
    first: dict[Any, Tensor] = {}
    drawn: set[int] = set()
    for tensor in tensors:
        if not tensor.uses:
            continue
        draws = tuple(use.draw.order for use in tensor.uses)
        same = first.setdefault((tensor.shape, tensor.dtype, repr(tensor.init), draws), tensor)
        if same is not tensor:
            tensor.init, tensor.key, tensor.place = same.init, same.path, None
        elif tensor.place is not None and (draws[0] in drawn or tensor.place.again):
            if tensor.asked is None:
                problems[tensor.path] = f"{BEHIND}: {tensor.uses[0].draw.origin}"
            else:
                tensor.init, tensor.place = tensor.asked, None
        elif tensor.place is not None:
            drawn.add(draws[0])
    return problems


def root(value: float) -> Number:
    """Returns the expression 1 / sqrt(n), if it is exactly this number."""
    if 0 < value < 1:
        n = round(1 / value**2)
        if n < 1 << 40 and 1 / math.sqrt(n) == value and len(repr(value)) > 10:
            return Text(f"1 / sqrt({n})")
    return value


def of_numbers(path: str, shape: tuple[int, ...], dtype: str, init: Initializer | bytes) -> Tensor:
    """Returns a tensor that is not random, from an initializer or from bytes for a file."""
    if not isinstance(init, bytes):
        return Tensor(path, shape, dtype, init, [], path)
    file = Text(f"tables/{hashlib.sha256(init).hexdigest()}.bin")  # It is named by its content.
    return Tensor(path, shape, dtype, {"file": {"": file}}, [], path, table=init)


def file_of(tensor: Tensor) -> str:
    """Returns the path of a tensor's file."""
    assert isinstance(tensor.init, dict)
    return str(tensor.init["file"][""].text)


def constant(value: float | int) -> Initializer:
    """Returns the initializer that sets all elements to this number."""
    if value == 0 and math.copysign(1, value) > 0:
        return "zeros"
    return "ones" if value == 1 else {"constant": {"value": value}}


def expression(text: str, origin: Origin, **numbers: Linear) -> Initializer:
    """Returns this expression as an initializer, unless too long; numbers replace its names."""
    if len(text) > LONGEST:
        why = f"its expression has {len(text)} characters, {LONGEST} is the limit"
        raise NoFormula(why, origin)
    return {"expr": {"": Text(text), **numbers}}


def table(real: np.ndarray[Any, Any], short: Callable[[Any], float | int]) -> str | None:
    """Returns an expression that gives each number, made `short`, by place; None if too many."""
    places, kept = varying(real)
    if len(places) > 512:
        return None
    text = "0"
    for place in places:
        number = short(real[place])
        if number:
            text += f" {'-' if number < 0 else '+'} {at(place, kept)} * {plain(abs(number))}"
    return text.removeprefix("0 + ") if len(text) <= LONGEST else None


def plain(value: float) -> str:
    """Returns a number as expressions write it: exponents have no leading zero."""
    return re.sub(r"e([+-])0*(\d)", lambda m: f"e{m[1].replace('+', '')}{m[2]}", repr(value))


def varying(*arrays: np.ndarray[Any, Any]) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """Returns all places that are 0 in dimensions that do not vary, and the dimensions that do."""
    shape = arrays[0].shape
    kept = tuple(
        d
        for d, n in enumerate(shape)
        if n > 1 and any(bool((x != np.take(x, [0], axis=d)).any()) for x in arrays)
    )
    if math.prod(shape[d] for d in kept) > LONGEST:
        return [(0,) * len(shape)] * LONGEST, kept  # Too many for every caller.
    return list(np.ndindex(*(n if d in kept else 1 for d, n in enumerate(shape)))), kept


def at(place: tuple[int, ...], kept: Sequence[int]) -> str:
    """Returns the condition that an element has the place's indices in these dimensions."""
    return " * ".join(f"(i{d} == {place[d]})" for d in kept)


def has_bits(text: str, shape: Sequence[int], dtype: str, bits: bytes) -> bool:
    """Returns whether the elements of an expression have these bits."""
    made = make(text, shape, dtype)
    return made is not None and made.tobytes() == bits


def make(text: str, shape: Sequence[int], dtype: str) -> np.ndarray[Any, Any] | None:
    """Generates the elements of an expression with shardinit; None if shardinit rejects it."""
    spec = (
        f"shardinit: 1\nname: attempt\ndtype: {dtype}\nmodules:\n"
        f'  x: {{shape: [{", ".join(map(str, shape))}], init: {{expr: "{text}"}}}}\n'
    )
    try:
        return Spec(None, text=spec, set=(), mesh=None, layout=None, threads=0).generate("x")
    except SpecError:
        return None
