"""Runs a constructor without memory, and notes what each of its tensors holds."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ._stream import Place, Stream, Words
from ._values import (
    Apply,
    Draw,
    Empty,
    Gather,
    Geometry,
    Literal,
    Origin,
    Scatter,
    Value,
    contiguous,
    evaluate,
    replace,
    values_in,
)

aten = torch.ops.aten

_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
# What only hands on what a constructor asks for.
_HANDS_ON = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep for path in (str(torch.__file__), __file__)
)


def _is_users(file: str) -> bool:
    if file.startswith((*_HANDS_ON, "<")) or file.endswith("transformers/initialization.py"):
        return False
    return not file.startswith(_STANDARD) or "site-packages" in file or "dist-packages" in file


# Operation → kind of draw, and the names of its parameters with their defaults. Of the others that
# draw it is not even known how many words they take, if `_random` does not know.
_DRAWS = {
    "normal_": ("normal", ("mean", "std"), (0.0, 1.0)),
    "randn": ("normal", (), ()),
    "randn_like": ("normal", (), ()),
    "uniform_": ("uniform", ("from", "to"), (0.0, 1.0)),
    "rand": ("uniform", (), ()),
    "rand_like": ("uniform", (), ()),
    "log_normal_": ("log_normal", ("mean", "std"), (1.0, 2.0)),
    "exponential_": ("exponential", ("lambd",), (1.0,)),
    "cauchy_": ("cauchy", ("median", "sigma"), (0.0, 1.0)),
    "geometric_": ("geometric", ("p",), ()),
    "randperm": ("permutation", (), ()),
}
_WHOLE = ("random_", "randint", "randint_like")
_NAMES = {"from": "low", "to": "high"}
_OVERWRITES = ("copy_", "fill_", "zero_")  # These do not look at what was there.


def held_by(low: int, high: int, dtype: torch.dtype) -> tuple[int, int]:
    """The ends of the range that PyTorch draws whole numbers for a type of floats from: the next
    that the type holds (`update_from` and `update_to` of ATen/native/DistributionTemplates.h).

    Raises:
        RuntimeError: there is no number in it, as PyTorch has it.
    """
    if not dtype.is_floating_point:
        return low, high
    digits = 1 - round(math.log2(torch.finfo(dtype).eps))

    def cast(value: int) -> int:
        with _disable_current_modes():
            return int(torch.tensor(value, dtype=torch.int64).to(dtype).to(torch.int64))

    def unit(value: int) -> int:
        return 1 << max(abs(value).bit_length() - digits, 0)

    after, before = cast(low + 1), cast(high - 1)
    low, high = (
        after + unit(low + 1) if after < low else low,
        before - unit(high - 1) if before >= high else high,
    )
    if low >= high:
        raise RuntimeError(f"random numbers from {low} to less than {high}, as {dtype} has these")
    return low, high


class Blocked(Exception):
    """The constructor needs a number that only the seed decides."""


def user_line() -> str:
    """The innermost line that is neither PyTorch's nor ours, as `file:line`."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if _is_users(name):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def _recipe() -> str:
    """The function of torch.nn.init that is at work, such as `xavier_uniform_`; "" if none is."""
    frame: types.FrameType | None = sys._getframe(1)
    found = ""
    while frame is not None and not _is_users(frame.f_code.co_filename):
        if frame.f_code.co_filename == torch.nn.init.__file__:
            found = frame.f_code.co_name
        frame = frame.f_back
    return found


def users_frame(error: BaseException) -> str:
    """The innermost line of an error's that is the user's, as `file:line`."""
    place, trace = "?", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if _is_users(name):
            place = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


class _Storage:
    """A storage's memory is that of a fake tensor; here is what it holds."""

    def __init__(self, keep: Any, value: Value, layout: Geometry) -> None:
        self.keep = keep  # So that no other storage gets its address.
        self.value = value
        self.layout = layout


def geometry(tensor: torch.Tensor) -> Geometry:
    return Geometry(tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))


def _is_row_major(geometry: Geometry) -> bool:
    return geometry == Geometry(geometry.size, contiguous(geometry.size), geometry.offset)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every operation on fake tensors.

    Attributes:
        draws: all that were made, in order.
        stream: PyTorch's generator.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mode = mode
        self.draws: list[Draw] = []
        self.stream = Stream()
        self._storages: dict[int, _Storage] = {}

    def value(self, tensor: torch.Tensor) -> Value:
        """What a tensor holds now."""
        storage = self._storage(tensor)
        view = geometry(tensor)
        if tensor.dtype != storage.value.dtype:
            raise Blocked(f"a view of {storage.value.dtype} memory as {tensor.dtype}")
        if view == storage.layout:
            return storage.value
        return Gather(
            view.size, tensor.dtype, storage.value.origin, storage.value, storage.layout, view
        )

    def storage_of(self, tensor: torch.Tensor) -> int:
        return int(tensor.untyped_storage()._cdata)

    def draw(
        self,
        tensor: torch.Tensor,
        kind: str,
        parameters: dict[str, Any],
        origin: Origin,
        problem: str = "",
        dtype: torch.dtype | None = None,
    ) -> Draw:
        """Numbers for a tensor.

        Args:
            tensor: whose shape and order of elements they have.
            kind, parameters, origin, problem: as in `Draw`; with a problem they are not PyTorch's
                generator's.
            dtype: of the numbers; None is the tensor's.
        """
        shape, order = tuple(tensor.shape), len(self.draws)
        dtype = dtype or tensor.dtype
        if problem:
            nowhere = Words(0)
            place = Place(nowhere, None, nowhere, None, False, (), problem)
        else:
            place = self.stream.take(
                order,
                kind,
                parameters,
                shape,
                tensor.stride(),
                str(dtype).removeprefix("torch."),
                tensor.is_contiguous(),
                str(origin),
            )
        draw = Draw(shape, dtype, origin, kind, parameters, order, place, problem, _recipe())
        self.draws.append(draw)
        return draw

    def write(self, tensor: torch.Tensor, value: Value) -> None:
        storage = self._storage(tensor)
        view = geometry(tensor)
        if view == storage.layout or (
            _is_row_major(view)
            and _is_row_major(storage.layout)
            and (
                math.prod(view.size) == math.prod(storage.layout.size)
                and view.offset == storage.layout.offset
            )
        ):
            storage.value, storage.layout = value, view
            return
        storage.value = Scatter(
            storage.layout.size,
            storage.value.dtype,
            value.origin,
            storage.value,
            storage.layout,
            view,
            value,
        )

    def _storage(self, tensor: torch.Tensor) -> _Storage:
        storage = self._storages.get(self.storage_of(tensor))
        if storage is None:
            raise Blocked("a tensor that was made before the constructor ran")
        return storage

    def _enter(self, tensor: torch.Tensor, value: Value) -> None:
        """A new storage: all of its memory is the tensor's."""
        keep = tensor.untyped_storage()
        layout = geometry(tensor)
        self._storages[int(keep._cdata)] = _Storage(keep, value, layout)

    def _known(self, tensor: torch.Tensor) -> bool:
        return self.storage_of(tensor) in self._storages

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor in place of a real one, which is a literal from then on."""
        if isinstance(tensor, FakeTensor):
            return tensor
        origin = Origin("a tensor of numbers", user_line())
        with _disable_current_modes():
            data = tensor.detach().to("cpu").clone(memory_format=torch.contiguous_format)
        fake = self.mode.from_tensor(tensor, static_shapes=True)
        if not self._known(fake):
            keep = fake.untyped_storage()
            literal = Literal(tuple(data.shape), data.dtype, origin, data)
            self._storages[int(keep._cdata)] = _Storage(keep, literal, geometry(fake))
        return fake

    def _fold(self, function: Any, args: Any, kwargs: Any, origin: Origin) -> Any:
        """The result of what depends on values: they are computed, where no draw decides them."""
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

        def enter(real: torch.Tensor) -> torch.Tensor:
            with _disable_current_modes():
                real = real.contiguous()
                fake = self.mode.from_tensor(real, static_shapes=True)
            self._enter(fake, Literal(tuple(real.shape), real.dtype, origin, real))
            return fake

        return replace(results, enter, torch.Tensor)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        origin = Origin(str(function), user_line())
        if function is aten.lift_fresh.default and not isinstance(args[0], FakeTensor):
            with _disable_current_modes():
                data = args[0].detach().clone()
            result = function(*args, **kwargs)
            self._enter(result, Literal(tuple(data.shape), data.dtype, origin, data))
            return result
        args, kwargs = replace((args, kwargs), self._fake, torch.Tensor)
        schema = function._schema
        written = {
            argument.name: kwargs[argument.name] if argument.name in kwargs else args[i]
            for i, argument in enumerate(schema.arguments)
            if argument.alias_info is not None
            and argument.alias_info.is_write
            and (argument.name in kwargs or i < len(args))
        }
        if function is aten.set_.source_Tensor or function is aten.set_.source_Storage:
            return function(*args, **kwargs)  # The tensor's storage is another's now.
        if not written and schema.returns and all(r.alias_info for r in schema.returns):
            result = function(*args, **kwargs)
            if isinstance(result, torch.Tensor) and not self._known(result):
                self._enter(result, self.value(args[0]))
            return result
        # What an operation reads, it reads before it writes.
        values: tuple[Any, Any] = replace((args, kwargs), self.value, torch.Tensor)
        try:
            result = function(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return self._fold(function, args, kwargs, origin)
        name = schema.name.removeprefix("aten::")
        if torch.Tag.nondeterministic_seeded in function.tags:
            return self._random(function, name, values, written, result, origin)
        if name in _OVERWRITES:
            before = values[0][0]
            values = ((Empty(before.shape, before.dtype, origin), *values[0][1:]), values[1])
        for argument, target in written.items():
            for tensor in target if isinstance(target, (list, tuple)) else [target]:
                if not isinstance(target, torch.Tensor):
                    raise Blocked(f"{origin} writes to a list of tensors")
                self.write(
                    tensor,
                    Apply(tuple(tensor.shape), tensor.dtype, origin, function, *values, argument),
                )
        outputs = list(result) if isinstance(result, (list, tuple)) else [result]
        typed = any(argument.name == "dtype" for argument in schema.arguments)
        if isinstance(result, torch.Tensor) and typed and next(values_in(values), None) is None:
            values[1].setdefault("dtype", result.dtype)  # The default may be another one later.
        for i, tensor in enumerate(outputs):
            if not isinstance(tensor, torch.Tensor) or self._known(tensor):
                continue
            made: Value
            if name in ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided",
                        "empty_permuted"):  # fmt: skip
                made = Empty(tuple(tensor.shape), tensor.dtype, origin)
            else:
                made = Apply(tuple(tensor.shape), tensor.dtype, origin, function, *values, i)
            self._enter(tensor, made)
        return result

    def _random(
        self, function: Any, name: str, values: Any, written: Any, result: Any, origin: Origin
    ) -> Any:
        args, kwargs = values
        arguments = dict(kwargs)
        for argument, value in zip(function._schema.arguments, args, strict=False):
            arguments[argument.name] = value
        for tensor in list(written.values()) or (
            [result] if isinstance(result, torch.Tensor) else list(result)
        ):
            value = self._drawn(name, arguments, tensor, origin)
            if written:
                self.write(tensor, value)
            else:
                self._enter(tensor, value)
        return result

    def _drawn(self, name: str, a: dict[str, Any], tensor: torch.Tensor, origin: Origin) -> Value:
        """What a random operation gives, by its name and arguments."""
        problem = "a generator of its own" if a.get("generator") is not None else ""

        def draw(kind: str, dtype: torch.dtype | None = None, **numbers: Any) -> Draw:
            return self.draw(tensor, kind, numbers, origin, problem, dtype)

        def apply(function: Any, *args: Any, **kwargs: Any) -> Apply:
            dtype = torch.bool if function is aten.lt.Tensor else tensor.dtype
            return Apply(tuple(tensor.shape), dtype, origin, function, args, kwargs, 0)

        if name in ("bernoulli", "bernoulli_"):
            # Of bernoulli(p) the probabilities are the first argument, of all others `p`.
            p = a.get("p", 0.5 if name == "bernoulli_" else a["self"])
            if not isinstance(p, Value):
                return draw("bernoulli", p=p)
            wide = torch.float64 if p.dtype == torch.float64 else torch.float32
            chosen = apply(aten.lt.Tensor, draw("uniform", wide, low=0.0, high=1.0), p)
            return apply(aten._to_copy.default, chosen, dtype=tensor.dtype)
        if name == "normal":
            mean, std = a.get("mean", 0.0), a.get("std", 1.0)
            if not isinstance(mean, Value) and not isinstance(std, Value):
                return draw("normal", mean=mean, std=std)
            value: Value = draw("normal", std=1.0 if isinstance(std, Value) else std)
            if isinstance(std, Value):
                value = apply(aten.mul.Tensor, value, std)
            add = aten.add.Tensor if isinstance(mean, Value) else aten.add.Scalar
            return apply(add, value, mean)
        if name in _WHOLE and "from" not in a and "to" not in a and "high" not in a:
            return draw("bits")
        if name in _WHOLE and (high := a.get("to", a.get("high"))) is not None:
            low, high = held_by(a.get("from", a.get("low", 0)), high, tensor.dtype)
            return draw("integers", low=low, high=high)
        if name == "multinomial":
            weights, samples = a["self"], a["num_samples"]
            each = samples > 1 and a.get("replacement", False)
            return draw("choices", drawn=math.prod(tensor.shape if each else weights.shape))
        if name in _DRAWS:
            kind, names, defaults = _DRAWS[name]
            numbers: dict[str, Any] = dict(zip(names, defaults, strict=False))
            numbers |= {key: a[key] for key in names if key in a}
            return draw(kind, **{_NAMES.get(key, key): x for key, x in numbers.items()})
        return draw(name)

    def _macro(self, kind: str, tensor: torch.Tensor, origin: str, generator: Any,
               **parameters: float) -> torch.Tensor:  # fmt: skip
        problem = "a generator of its own" if generator is not None else ""
        where = Origin(origin, user_line())
        self.write(tensor, self.draw(tensor, kind, parameters, where, problem))
        return tensor

    @contextlib.contextmanager
    def patches(self) -> Iterator[None]:
        """Functions that look at random numbers become one draw each."""

        def trunc_normal(tensor: Any, mean: float, std: float, a: float, b: float,
                         generator: Any = None) -> Any:  # fmt: skip
            numbers: dict[str, float] = {"mean": mean, "std": std, "a": a, "b": b}
            return self._macro(
                "trunc_normal", tensor, "torch.nn.init.trunc_normal_", generator, **numbers
            )

        def orthogonal(tensor: Any, gain: float = 1, generator: Any = None) -> Any:
            if tensor.ndim < 2:
                raise ValueError("Only tensors with 2 or more dimensions are supported")
            name = "torch.nn.init.orthogonal_"
            return self._macro("orthogonal", tensor, name, generator, gain=gain)

        def sparse(tensor: Any, sparsity: float, std: float = 0.01, generator: Any = None) -> Any:
            if tensor.ndim != 2:
                raise ValueError("Only tensors with 2 dimensions are supported")
            name = "torch.nn.init.sparse_"
            return self._macro("sparse", tensor, name, generator, sparsity=sparsity, std=std)

        def seeds(name: str) -> Callable[..., Any]:
            function = getattr(torch.random, name)

            def call(*args: Any, **kwargs: Any) -> Any:
                self.stream.lose(
                    f"`torch.{name}` at {user_line()} moves PyTorch's generator before"
                )
                return function(*args, **kwargs)

            return call

        def swap(a: Any, b: Any) -> None:  # Weak references to fake tensors forbid the real one.
            a.data = b.data

        with contextlib.ExitStack() as stack:
            init = torch.nn.init
            functions: dict[str, Callable[..., Any]] = {
                "orthogonal_": orthogonal, "sparse_": sparse}  # fmt: skip
            stack.enter_context(mock.patch.object(init, "_no_grad_trunc_normal_", trunc_normal))
            stack.enter_context(mock.patch.object(torch.utils, "swap_tensors", swap))
            for name, function in functions.items():
                stack.enter_context(mock.patch.object(init, name, function))
            for name in ("manual_seed", "seed", "set_rng_state"):
                for module in (torch, torch.random):
                    stack.enter_context(mock.patch.object(module, name, seeds(name)))
            saved = sys.modules.get("transformers.initialization")
            if saved is not None:  # It keeps PyTorch's functions under names of its own.
                table = getattr(saved, "TORCH_INIT_FUNCTIONS", {})
                stack.enter_context(mock.patch.dict(table, functions))
            yield


def first_draw(value: Value) -> Draw:
    """A draw that a random value depends on."""
    while not isinstance(value, Draw):
        value = next(part for part in value.parts() if part.random)
    return value


def record(make: Callable[[], Any], dtype: torch.dtype | None) -> tuple[Any, Recorder]:
    """Runs a constructor on fake tensors.

    Args:
        make: returns the model.
        dtype: PyTorch's default while it runs; None leaves it.

    Returns:
        What it returned, and what its tensors hold.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    recorder = Recorder(mode)
    before = torch.get_default_dtype()
    try:
        if dtype is not None:
            torch.set_default_dtype(dtype)
        with warnings.catch_warnings(), mode, recorder, recorder.patches(), torch.device("cpu"):
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
            model = make()
    finally:
        torch.set_default_dtype(before)
    return model, recorder
