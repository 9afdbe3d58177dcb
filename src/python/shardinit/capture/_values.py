"""The value of a tensor: a graph of the operations that made it, without their results."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ._expression import Origin
from ._stream import Place

COMPUTED = 1 << 27  # The maximum number of elements of a tensor to compute.


class Blocked(Exception):
    """The constructor needs a number that depends on the seed, or cannot be followed."""


@dataclasses.dataclass(eq=False)
class Value:
    """A tensor's elements, in row-major order of `shape`.

    Attributes:
        random: whether the elements depend on random numbers.
        depth: the depth of the nested operations that made the elements.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    origin: Origin
    random: bool = dataclasses.field(init=False)
    depth: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.random = any(part.random for part in self.parts())
        self.depth = 1 + max((part.depth for part in self.parts()), default=-1)

    def parts(self) -> Iterator[Value]:
        return iter(())


@dataclasses.dataclass(eq=False)
class Literal(Value):
    """Numbers that existed before the constructor, or were computed while it ran."""

    data: torch.Tensor


@dataclasses.dataclass(eq=False)
class Empty(Value):
    """Memory that was never written."""


@dataclasses.dataclass(eq=False)
class Draw(Value):
    """Random numbers.

    Attributes:
        kind: `normal`, `uniform`, `trunc_normal`, ….
        parameters: numbers by name.
        order: the number of draws before it, including unused ones.
        place: its words in the stream of PyTorch's generator.
        problem: why no engine has its values; "" if one does.
        recipe: the function of torch.nn.init that drew it; "" for none.
    """

    kind: str
    parameters: dict[str, Any]
    order: int
    place: Place
    problem: str = ""
    recipe: str = ""

    def __post_init__(self) -> None:
        self.random, self.depth = True, 0


@dataclasses.dataclass(eq=False)
class Apply(Value):
    """A result of a PyTorch operation.

    Attributes:
        function: an `OpOverload`.
        args, kwargs: its arguments, with Values in place of tensors.
        result: the number of an output, or the name of an argument that is written to.
        default: PyTorch's default element type when it ran, which affects the types of results.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: int | str
    default: torch.dtype = dataclasses.field(default_factory=torch.get_default_dtype)

    @property
    def name(self) -> str:
        """The operation's name, without the suffix of operations that write to their argument."""
        return str(self.function._schema.name).removeprefix("aten::").removesuffix("_")

    def parts(self) -> Iterator[Value]:
        return values_in((self.args, self.kwargs))


@dataclasses.dataclass(eq=False)
class Geometry:
    """The shape, strides and offset of a tensor in a storage."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def is_apart(self, other: Geometry) -> bool:
        """Returns whether all elements come before or after all elements of `other`."""
        return self.offset > other._last() or self._last() < other.offset

    def _last(self) -> int:
        steps = zip(self.size, self.stride, strict=True)
        return self.offset + sum((n - 1) * step for n, step in steps)

    def __eq__(self, other: object) -> bool:
        """Compares elements and their order; strides of dimensions of size 1 do not matter."""
        return (
            isinstance(other, Geometry)
            and self.size == other.size
            and self.offset == other.offset
            and all(
                a == b or n <= 1
                for n, a, b in zip(self.size, self.stride, other.stride, strict=True)
            )
        )


@dataclasses.dataclass(eq=False)
class Gather(Value):
    """A part of a storage, or its elements in another order.

    Attributes:
        base: the storage's elements, in the geometry `layout`.
    """

    base: Value
    layout: Geometry
    view: Geometry

    def parts(self) -> Iterator[Value]:
        yield self.base


@dataclasses.dataclass(eq=False)
class Scatter(Value):
    """A storage of which `view` was overwritten with `values`."""

    base: Value
    layout: Geometry
    view: Geometry
    values: Value

    def parts(self) -> Iterator[Value]:
        yield self.base
        yield self.values


def values_in(arguments: Any) -> Iterator[Value]:
    """Yields the Values in nested lists, tuples and dicts."""
    if isinstance(arguments, Value):
        yield arguments
    elif isinstance(arguments, (list, tuple)):
        for argument in arguments:
            yield from values_in(argument)
    elif isinstance(arguments, dict):
        yield from values_in(list(arguments.values()))


def first_draw(value: Value) -> Draw:
    """Returns a draw on which a random value depends."""
    while not isinstance(value, Draw):
        value = next(part for part in value.parts() if part.random)
    return value


def random_parts(value: Value) -> Iterator[Value]:
    """Yields a random value and all random values of which it is made, each once."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        top = stack.pop()
        if id(top) in seen or not top.random:
            continue
        seen.add(id(top))
        yield top
        stack += top.parts()


def replace(arguments: Any, function: Callable[[Any], Any], of: type) -> Any:
    """Applies `function` to every object of type `of` in nested lists, tuples and dicts."""
    if isinstance(arguments, of):
        return function(arguments)
    if isinstance(arguments, (list, tuple)):
        return type(arguments)(replace(argument, function, of) for argument in arguments)
    if isinstance(arguments, dict):
        return {name: replace(argument, function, of) for name, argument in arguments.items()}
    return arguments


def contiguous(size: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a row-major tensor."""
    return tuple(math.prod(max(n, 1) for n in size[d + 1 :]) for d in range(len(size)))


def evaluate(
    value: Value,
    draw: Callable[[Draw], torch.Tensor] | None = None,
    then: Callable[[Value, torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Computes the elements with PyTorch itself, with NaN for memory that was never written.

    `draw` returns numbers to use in place of a draw's random ones; without it, they raise
    ValueError. `then` is applied to the elements of each part.
    """
    done: dict[int, torch.Tensor] = {}
    stack = [value]
    with _disable_current_modes(), torch.no_grad(), default_dtype():
        while stack:
            top = stack[-1]
            missing = [part for part in top.parts() if id(part) not in done]
            if missing:
                stack += missing
                continue
            stack.pop()
            if id(top) not in done:
                if draw is not None and isinstance(top, Draw):
                    elements = draw(top)
                else:
                    elements = _compute(top, done)
                done[id(top)] = elements if then is None else then(top, elements)
    return done[id(value)]


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype | None = None) -> Iterator[None]:
    """Sets PyTorch's default element type, unless it is None, and restores it at the end."""
    before = torch.get_default_dtype()
    try:
        if dtype is not None:
            torch.set_default_dtype(dtype)
        yield
    finally:
        torch.set_default_dtype(before)


def _compute(value: Value, done: dict[int, torch.Tensor]) -> torch.Tensor:
    if isinstance(value, Literal):
        return value.data
    if isinstance(value, Apply):
        torch.set_default_dtype(value.default)
        names = [argument.name for argument in value.function._schema.arguments]
        args, kwargs = replace((value.args, value.kwargs), lambda part: done[id(part)], Value)
        if isinstance(value.result, str):
            written: torch.Tensor = (
                kwargs[value.result] if value.result in kwargs else args[names.index(value.result)]
            )
            copy = written.clone()  # Other values may still use the original elements.
            given = args, kwargs
            args, kwargs = replace(given, lambda t: copy if t is written else t, torch.Tensor)
            value.function(*args, **kwargs)
            return copy
        results = value.function(*args, **kwargs)
        return results if isinstance(results, torch.Tensor) else results[value.result]
    if isinstance(value, (Gather, Scatter)):
        storage = torch.empty_strided(value.layout.size, value.layout.stride, dtype=value.dtype)
        storage.copy_(done[id(value.base)])
        view = storage.as_strided(value.view.size, value.view.stride, value.view.offset)
        if isinstance(value, Gather):
            return view
        view.copy_(done[id(value.values)])
        return storage
    if isinstance(value, Empty):
        # This does not matter for overwritten elements; for others, a NaN shows.
        filler = math.nan if value.dtype.is_floating_point or value.dtype.is_complex else 0
        return torch.full(value.shape, filler, dtype=value.dtype)
    raise ValueError(f"{value.origin} is random")
