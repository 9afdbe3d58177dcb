"""Runs a constructor without memory, and records the value of each of its tensors."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ._expression import Origin
from ._generator import Watched
from ._lines import called_in, user_line
from ._memory import Memory, Mode
from ._patches import patches
from ._random import drawn, empty_like, own_generator, why_not_drawn
from ._stream import Place, Stream, Words
from ._values import (
    COMPUTED,
    Apply,
    Blocked,
    Draw,
    Empty,
    Literal,
    Value,
    default_dtype,
    evaluate,
    first_draw,
    replace,
    values_in,
)

aten = torch.ops.aten

# The results of these operations do not depend on the elements of their first argument.
_LOOK_AT_NO_ELEMENT = (
    "copy_", "fill_", "zero_", "full_like", "ones_like", "zeros_like", "new_full", "new_ones",
    "new_zeros",
)  # fmt: skip


class Recorder(Memory, TorchDispatchMode):
    """Tracks every operation on fake tensors.

    Attributes:
        draws: all draws so far, in order.
        stream: the stream of PyTorch's generator.
    """

    def __init__(self, mode: Mode, seed: int) -> None:
        self.draws: list[Draw] = []
        self.stream = Stream()
        Memory.__init__(self, mode, Watched(seed, self.stream))
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]

    def draw(
        self,
        tensor: torch.Tensor,
        kind: str,
        parameters: dict[str, Any],
        origin: Origin,
        problem: str = "",
        dtype: torch.dtype | None = None,
    ) -> Value:
        """Draws numbers with the shape and element order of a tensor, and its type or `dtype`.

        With a problem, they are not from PyTorch's generator; see `Draw` for all else.
        """
        shape, order = tuple(tensor.shape), len(self.draws)
        dtype = dtype or tensor.dtype
        if problem:
            nowhere = Words(0)
            place = Place(nowhere, None, nowhere, None, False, (), problem)
        else:
            self.generator.follow()
            taken, stride = shape, tensor.stride()
            if dtype.is_complex:  # Complex numbers are drawn as pairs of real ones.
                taken, stride = (*shape, 2), (*(2 * step for step in stride), 1)
                problem = "complex numbers"
            real, dense = str(dtype.to_real()).removeprefix("torch."), tensor.is_contiguous()
            lies = taken, stride, real, dense
            place = self.stream.take(order, kind, parameters, *lies, str(origin))
            self.generator.draw()
            if kind == "uniform" and (only := _only_number(parameters, dtype)) is not None:
                full = aten.full.default
                return Apply(shape, dtype, origin, full, (shape, only), {"dtype": dtype}, 0)
            wanted = shape, dtype, kind, parameters, place
            for draw in self.draws if place.again else ():
                at = dataclasses.replace(draw.place, again=True)
                if (draw.shape, draw.dtype, draw.kind, draw.parameters, at) == wanted:
                    return draw  # Exactly these numbers were drawn before.
        wrong = [x for x in parameters.values() if isinstance(x, float) and not math.isfinite(x)]
        if wrong:
            problem = f"a spec has no number {wrong[0]}"
        recipe = called_in(str(torch.nn.init.__file__))
        draw = Draw(shape, dtype, origin, kind, parameters, order, place, problem, recipe)
        self.draws.append(draw)
        return draw

    def _fold(self, function: Any, args: Any, kwargs: Any, origin: Origin) -> Any:
        """Returns the result of an operation that needs values; raises Blocked if one is random."""
        values = replace((args, kwargs), self.value, torch.Tensor)
        for value in values_in(values):
            if value.random:
                raise Blocked(
                    f"`{origin.operation}` asks for the value of random numbers"
                    f" ({first_draw(value).origin})"
                )
        real_args, real_kwargs = replace(values, evaluate, Value)
        with _disable_current_modes():
            results = function(*real_args, **real_kwargs)

        def track(real: torch.Tensor) -> torch.Tensor:
            with _disable_current_modes():
                real = real.contiguous()
                fake = self.mode.from_tensor(real, static_shapes=True)
            self.track(fake, Literal(tuple(real.shape), real.dtype, origin, real))
            return fake

        return replace(results, track, torch.Tensor)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        try:
            with self.mode.sees():
                return self._follow(function, args, kwargs or {})
        except Blocked as error:
            raise self.block(str(error)) from error

    def _follow(self, function: Any, args: Any, kwargs: Any) -> Any:
        origin = Origin(str(function), user_line())
        if function is aten.lift_fresh.default and not isinstance(args[0], FakeTensor):
            return self.fake(args[0])
        args, kwargs = replace((args, kwargs), self.fake, torch.Tensor)
        schema = function._schema
        written = {
            argument.name: kwargs[argument.name] if argument.name in kwargs else args[i]
            for i, argument in enumerate(schema.arguments)
            if argument.alias_info is not None
            and argument.alias_info.is_write
            and (argument.name in kwargs or i < len(args))
        }
        if schema.name == "aten::set_" or torch.Tag.inplace_view in function.tags:
            return function(*args, **kwargs)  # This moves the tensor to other elements.
        if not written and schema.returns and all(r.alias_info for r in schema.returns):
            result = function(*args, **kwargs)
            if isinstance(result, torch.Tensor) and not self.tracks(result):
                raise Blocked(f"{origin} gives a view of memory that is not seen")
            return result
        # An operation reads all its arguments before it writes.
        values: tuple[Any, Any] = replace((args, kwargs), self.value, torch.Tensor)
        self._check(function, args, kwargs)
        try:
            result = function(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return self._fold(function, args, kwargs, origin)
        name = schema.name.removeprefix("aten::")
        if torch.Tag.nondeterministic_seeded in function.tags or "generator" in kwargs:
            if generator := own_generator(args, kwargs):
                value = self._own(function, (args, kwargs), written, result, generator, origin)
                for tensor in written.values():
                    self.write(tensor, value)
                if not written:
                    self.track(result, value)
                return result
            return self._random(function, name, values, written, result, origin)
        if name in _LOOK_AT_NO_ELEMENT:
            before = values[0][0]
            values = ((Empty(before.shape, before.dtype, origin), *values[0][1:]), values[1])
        for argument, target in written.items():
            for tensor in target if isinstance(target, (list, tuple)) else [target]:
                if not isinstance(target, torch.Tensor):
                    raise Blocked(f"{origin} writes to a list of tensors")
                kind = tuple(tensor.shape), tensor.dtype
                self.write(tensor, Apply(*kind, origin, function, *values, argument))
        outputs = list(result) if isinstance(result, (list, tuple)) else [result]
        typed = any(argument.name == "dtype" for argument in schema.arguments)
        if isinstance(result, torch.Tensor) and typed and next(values_in(values), None) is None:
            values[1].setdefault("dtype", result.dtype)  # The default may change later.
        for i, tensor in enumerate(outputs):
            if not isinstance(tensor, torch.Tensor) or self.tracks(tensor):
                continue
            made: Value
            if name in ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided",
                        "empty_permuted"):  # fmt: skip
                made = Empty(tuple(tensor.shape), tensor.dtype, origin)
            else:
                made = Apply(tuple(tensor.shape), tensor.dtype, origin, function, *values, i)
            self.track(tensor, made)
        return result

    def _check(self, function: Any, args: Any, kwargs: Any) -> None:
        """Lets PyTorch check the numbers of a random operation, which it omits without memory."""
        is_random = torch.Tag.nondeterministic_seeded in function.tags
        if not is_random or not function._schema.name.endswith("_"):
            return
        numbers = {key: x for key, x in kwargs.items() if key != "generator"}
        if not any(isinstance(x, torch.Tensor) for x in (*args[1:], *numbers.values())):
            with _disable_current_modes():
                function(torch.empty(0, dtype=args[0].dtype), *args[1:], **numbers)

    def _random(
        self, function: Any, name: str, values: Any, written: Any, result: Any, origin: Origin
    ) -> Any:
        args, kwargs = values
        arguments = dict(kwargs)
        names = [argument.name for argument in function._schema.arguments]
        arguments |= zip(names, args, strict=False)
        made = [result] if isinstance(result, torch.Tensor) else result
        for tensor in list(written.values() or made):
            value: Value = Empty(tuple(tensor.shape), tensor.dtype, origin)
            if tensor.device.type != "meta":  # PyTorch draws nothing on `meta`.
                value = drawn(self, name, arguments, tensor, origin)
            if written:
                self.write(tensor, value)
            else:
                self.track(tensor, value)
        return result

    def _own(
        self,
        function: Any,
        given: Any,
        written: Any,
        result: torch.Tensor,
        generator: Any,
        origin: Origin,
    ) -> Value:
        """Returns numbers of the constructor's own generator, the same for each spec seed."""
        targets = {id(tensor) for tensor in written.values()}
        shapes_only = str(function._schema.name).endswith("_like")

        def real(tensor: torch.Tensor) -> torch.Tensor:
            with _disable_current_modes():
                made = empty_like(tensor)
                if id(tensor) in targets or shapes_only:
                    return made
                value = self.value(tensor)
                if value.random:
                    raise Blocked(f"{origin} has random arguments and a generator of its own")
                return made.copy_(evaluate(value))

        args, kwargs = replace(given, real, torch.Tensor)
        return self._constant(lambda: function(*args, **kwargs), result, generator, origin)

    def _constant(
        self, draw: Callable[[], Any], result: torch.Tensor, generator: Any, origin: Origin
    ) -> Value:
        """Returns the numbers that a function draws from the constructor's own generator.

        `result` is a fake tensor of that shape.
        """
        if result.numel() > COMPUTED:
            raise Blocked(
                f"{origin} draws {result.numel()} numbers from a generator of its own, which a"
                f" file has to keep, but {COMPUTED} is the limit: use PyTorch's generator"
            )
        if self.generator.is_a_copy(generator):
            raise Blocked(
                f"{origin} draws from a generator with the state of PyTorch's own: draw from"
                " `torch.default_generator` itself"
            )
        with _disable_current_modes(), torch.no_grad():
            data = draw().contiguous()
        return Literal(tuple(data.shape), data.dtype, origin, data)

    def fill(
        self,
        tensor: torch.Tensor,
        kind: str,
        parameters: dict[str, float],
        generator: Any,
        original: Callable[..., torch.Tensor] | None = None,
    ) -> None:
        """Records that a function of torch.nn.init fills a whole tensor.

        `original` is that function with its other arguments, if it draws only from `generator`.
        """
        tensor = self.fake(tensor)
        origin = Origin(f"torch.nn.init.{kind}_", user_line())
        if original is not None and own_generator((tensor,), {"generator": generator}):
            made = empty_like(tensor)

            def draw() -> torch.Tensor:
                return original(made, generator=generator)

            self.write(tensor, self._constant(draw, tensor, generator, origin))
            return
        problem = why_not_drawn(tensor, generator)
        self.write(tensor, self.draw(tensor, kind, parameters, origin, problem))


def _only_number(parameters: dict[str, Any], dtype: torch.dtype) -> float | None:
    """Returns the number to which all of a draw's numbers are equal; None if its bounds differ."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    with _disable_current_modes():
        ends = [torch.tensor(parameters.get(end, x), dtype=wide) for end, x in _BOUNDS]
        return float(ends[0]) if ends[0] == ends[1] else None


_BOUNDS = (("low", 0.0), ("high", 1.0))


def record(
    make: Callable[[], Any], dtype: torch.dtype | None, seed: int
) -> tuple[Any, Recorder]:
    """Runs a constructor on fake tensors, and returns the model and the values of its tensors.

    `dtype` is PyTorch's default element type while it runs, and `seed` is the generator's seed.
    Raises Blocked if the constructor cannot run without memory.
    """
    mode = Mode(allow_non_fake_inputs=True)
    recorder = Recorder(mode, seed)
    with (
        default_dtype(dtype),
        warnings.catch_warnings(),
        recorder.generator.watched(),
        patches(),
        mode.recorded(recorder),
        mode,
        recorder,
        torch.device("cpu"),
    ):
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        model = make()
        recorder.generator.follow()
    if recorder.blocked is not None:
        raise recorder.blocked
    return model, recorder
