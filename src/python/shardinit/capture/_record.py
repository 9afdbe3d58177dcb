"""Runs a constructor without memory, and notes what each of its tensors holds."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ._generator import Watched, is_default, move
from ._patches import patches
from ._stream import Place, Stream, Words
from ._values import (
    Apply,
    Blocked,
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
# What is in their first argument changes nothing.
_LOOK_AT_NO_ELEMENT = (
    "copy_", "fill_", "zero_", "full_like", "ones_like", "zeros_like", "new_full", "new_ones", "new_zeros",
)  # fmt: skip


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
    """A storage's memory is that of a fake tensor; here is what it holds.

    Attributes:
        keep: so that no other storage gets its address.
        real: the memory that it stands for, if it was not made here or NumPy looks at it.
        shared: what is written here has to be seen there, too.
    """

    def __init__(self, keep: Any, value: Value, layout: Geometry) -> None:
        self.keep = keep
        self.value = value
        self.layout = layout
        self.real: torch.UntypedStorage | None = None
        self.shared = False
        self._was: Value = value  # That of the real memory when it was last looked at.
        self._bytes = b""

    def stand_for(self, real: torch.UntypedStorage, shared: bool) -> None:
        self.real, self.shared, self._was = real, shared, self.value
        self._bytes = self._bytes_now()

    def _bytes_now(self) -> bytes:
        with _disable_current_modes():
            assert self.real is not None
            row = torch.empty(0, dtype=torch.uint8, device=self.real.device).set_(self.real)
            return row.cpu().numpy().tobytes()

    def _view(self) -> torch.Tensor:
        assert self.real is not None
        row = torch.empty(0, dtype=self.value.dtype, device=self.real.device).set_(self.real)
        return row.as_strided(self.layout.size, self.layout.stride, self.layout.offset)

    def look(self) -> None:
        """Has the value be what is in the real memory now, which others may have written to."""
        if self.real is None or (now := self._bytes_now()) == self._bytes:
            return
        if self.value is not self._was:
            raise Blocked("memory is written to both by PyTorch and by what shares it, as NumPy")
        with _disable_current_modes():
            data = self._view().cpu().clone(memory_format=torch.contiguous_format)
        self.value = Literal(self.layout.size, self.value.dtype, self.value.origin, data)
        self._was, self._bytes = self.value, now

    def store(self) -> None:
        """Has the real memory be what the value is now."""
        if not self.shared:
            return
        if self.value.random:
            raise Blocked("random numbers are written to memory that NumPy shares")
        with _disable_current_modes():
            self._view().copy_(evaluate(self.value))
        self._was, self._bytes = self.value, self._bytes_now()


class _Mode(FakeTensorMode):
    """One for all fake tensors, also for those that are copied with all that they refer to.

    Attributes:
        recorder: what has to see all that is done with them; None when nothing has to.
        seen: what is done now is what it does itself, or what it has seen.
    """

    recorder: Recorder | None = None
    seen = False

    def __deepcopy__(self, memo: dict[int, Any]) -> _Mode:
        return self

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.recorder is not None and (not self.seen or self._thread != threading.get_ident()):
            raise self.recorder.block(
                f"`{func}` is called where it is not seen, as in a thread or behind PyTorch's modes"
            )
        return super().dispatch(func, types, args, kwargs)

    @contextlib.contextmanager
    def recorded(self, recorder: Recorder) -> Iterator[None]:
        self.recorder, self._thread = recorder, threading.get_ident()
        try:
            yield
        finally:
            self.recorder = None

    @contextlib.contextmanager
    def sees(self) -> Iterator[None]:
        before, self.seen = self.seen, True
        try:
            yield
        finally:
            self.seen = before


def geometry(tensor: torch.Tensor) -> Geometry:
    return Geometry(tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))


def _is_row_major(geometry: Geometry) -> bool:
    return geometry == Geometry(geometry.size, contiguous(geometry.size), geometry.offset)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every operation on fake tensors.

    Attributes:
        draws: all that were made, in order.
        stream, generator: PyTorch's.
        blocked: why the constructor could not go on, if it could not, also where it did.
    """

    def __init__(self, mode: _Mode, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mode = mode
        self.draws: list[Draw] = []
        self.stream = Stream()
        self.generator = Watched(seed, self.stream)
        self.blocked: Blocked | None = None
        self._storages: dict[int, _Storage] = {}

    def block(self, why: str) -> Blocked:
        """What ends the capture, also where the constructor catches it and goes on."""
        if self.blocked is None:
            self.blocked = Blocked(f"{why}, at {user_line()}")
        return self.blocked

    def value(self, tensor: torch.Tensor) -> Value:
        """What a tensor holds now."""
        tensor = self._fake(tensor)
        storage = self._storage(tensor)
        view = geometry(tensor)
        if tensor.dtype != storage.value.dtype:
            raise Blocked(f"a view of {storage.value.dtype} memory as {tensor.dtype}")
        if tensor.is_neg() or tensor.is_conj():
            raise Blocked("a view of memory with another sign")
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
            self.generator.follow()
            taken, stride = shape, tensor.stride()
            if dtype.is_complex:  # They are drawn as pairs of real numbers.
                taken, stride = (*shape, 2), (*(2 * step for step in stride), 1)
                problem = "complex numbers"
            place = self.stream.take(
                order,
                kind,
                parameters,
                taken,
                stride,
                str(dtype.to_real()).removeprefix("torch."),
                tensor.is_contiguous(),
                str(origin),
            )
            self.generator.draw()
            if place.again and (before := self._drawn_before(shape, dtype, kind, parameters, place)):
                return before
        draw = Draw(shape, dtype, origin, kind, parameters, order, place, problem, _recipe())
        self.draws.append(draw)
        return draw

    def _drawn_before(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        kind: str,
        parameters: dict[str, Any],
        place: Place,
    ) -> Draw | None:
        """A draw of the very same numbers."""
        wanted = shape, dtype, kind, parameters, place
        for draw in self.draws:
            at = dataclasses.replace(draw.place, again=True)
            if (draw.shape, draw.dtype, draw.kind, draw.parameters, at) == wanted:
                return draw
        return None

    def write(self, tensor: torch.Tensor, value: Value) -> None:
        storage = self._storage(tensor)
        view = geometry(tensor)
        if any(n > 1 and not step for n, step in zip(view.size, view.stride, strict=True)):
            raise Blocked("elements are written to that are one number in memory")
        if view == storage.layout or (
            _is_row_major(view)
            and _is_row_major(storage.layout)
            and (
                math.prod(view.size) == math.prod(storage.layout.size)
                and view.offset == storage.layout.offset
            )
        ):
            storage.value, storage.layout = value, view
        else:
            storage.value = Scatter(
                storage.layout.size,
                storage.value.dtype,
                value.origin,
                storage.value,
                storage.layout,
                view,
                value,
            )
        storage.store()

    def copied_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of all the memory that a tensor is a part of, as one row."""
        storage = self._storage(tensor)
        with _disable_current_modes(), self.mode.sees(), self.mode:
            count = tensor.untyped_storage().nbytes() // tensor.element_size()
            made = torch.empty(count, dtype=tensor.dtype, device=tensor.device)
        self._enter(made, storage.value)
        self._storages[self.storage_of(made)].layout = storage.layout
        return made

    def _storage(self, tensor: torch.Tensor) -> _Storage:
        storage = self._storages.get(self.storage_of(tensor))
        if storage is None:
            raise Blocked("a tensor whose memory was made where it is not seen")
        storage.look()
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
            if tensor.fake_mode is not self.mode:
                raise Blocked("a tensor of another capture, which something keeps, is used")
            return tensor
        with _disable_current_modes(), torch.no_grad():
            fake = self.mode.from_tensor(tensor, static_shapes=True)
        if self._known(fake) or tensor.device.type == "meta":
            return fake
        with _disable_current_modes(), torch.no_grad():
            memory = tensor.untyped_storage()
            count = memory.nbytes() // tensor.element_size()
            row = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(memory)
            layout = geometry(fake)
            if not (_is_row_major(layout) and fake.numel() == count):
                layout = Geometry((count,), (1,), 0)
            data = row[:count].cpu().clone().view(layout.size)
            if self.generator.is_state(data):
                raise Blocked("the state of PyTorch's generator is used as numbers")
        self._enter(fake, Literal(layout.size, data.dtype, Origin("a tensor of numbers", user_line()), data))
        storage = self._storages[self.storage_of(fake)]
        storage.layout = layout
        storage.stand_for(memory, not memory.resizable())
        return fake

    def numpy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of real memory, which NumPy may look at and write to."""
        if not isinstance(tensor, FakeTensor):
            self._storage(self._fake(tensor)).shared = True
            return tensor
        if self.value(tensor).random:
            raise self.block("`numpy` asks for the value of random numbers")
        storage = self._storage(tensor)
        if storage.real is None:
            if storage.value.random:
                raise self.block("`numpy` asks for memory with random numbers")
            with _disable_current_modes():
                storage.stand_for(torch.UntypedStorage(tensor.untyped_storage().nbytes()), True)
        storage.shared = True
        storage.store()
        with _disable_current_modes():
            row = torch.empty(0, dtype=tensor.dtype).set_(storage.real)
            return row.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

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
        try:
            with self.mode.sees():
                return self._follow(function, args, kwargs or {})
        except Blocked as error:
            raise self.block(str(error)) from error

    def _follow(self, function: Any, args: Any, kwargs: Any) -> Any:
        origin = Origin(str(function), user_line())
        if function is aten.lift_fresh.default and not isinstance(args[0], FakeTensor):
            return self._fake(args[0])
        args, kwargs = replace((args, kwargs), self._fake, torch.Tensor)
        schema = function._schema
        written = {
            argument.name: kwargs[argument.name] if argument.name in kwargs else args[i]
            for i, argument in enumerate(schema.arguments)
            if argument.alias_info is not None
            and argument.alias_info.is_write
            and (argument.name in kwargs or i < len(args))
        }
        if schema.name == "aten::set_" or torch.Tag.inplace_view in function.tags:
            return function(*args, **kwargs)  # Where the tensor's elements are is another place now.
        if not written and schema.returns and all(r.alias_info for r in schema.returns):
            result = function(*args, **kwargs)
            if isinstance(result, torch.Tensor) and not self._known(result):
                raise Blocked(f"{origin} gives a view of memory that is not seen")
            return result
        # What an operation reads, it reads before it writes.
        values: tuple[Any, Any] = replace((args, kwargs), self.value, torch.Tensor)
        try:
            result = function(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return self._fold(function, args, kwargs, origin)
        name = schema.name.removeprefix("aten::")
        if torch.Tag.nondeterministic_seeded in function.tags or "generator" in kwargs:
            return self._random(function, name, values, written, result, origin)
        if name in _LOOK_AT_NO_ELEMENT:
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
            value: Value = Empty(tuple(tensor.shape), tensor.dtype, origin)
            if tensor.device.type != "meta":  # Where nothing is drawn.
                value = self._drawn(name, arguments, tensor, origin)
            if written:
                self.write(tensor, value)
            else:
                self._enter(tensor, value)
        return result

    def _drawn(self, name: str, a: dict[str, Any], tensor: torch.Tensor, origin: Origin) -> Value:
        """What a random operation gives, by its name and arguments."""
        problem = _problem(tensor, a.get("generator"))

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

    def fill(
        self, tensor: torch.Tensor, kind: str, parameters: dict[str, float], generator: Any
    ) -> None:
        """A tensor is filled by a function of torch.nn.init as a whole."""
        tensor = self._fake(tensor)
        origin = Origin(f"torch.nn.init.{kind}_", user_line())
        problem = _problem(tensor, generator)
        self.write(tensor, self.draw(tensor, kind, parameters, origin, problem))


def _problem(tensor: torch.Tensor, generator: Any) -> str:
    """Why a draw is none of PyTorch's CPU generator; "" if it is one."""
    if not is_default(generator):
        move(generator)
        return "a generator of its own"
    if tensor.device.type != "cpu":
        return f"a draw on the device `{tensor.device}`, which has a generator of its own"
    return ""


def first_draw(value: Value) -> Draw:
    """A draw that a random value depends on."""
    while not isinstance(value, Draw):
        value = next(part for part in value.parts() if part.random)
    return value


def record(
    make: Callable[[], Any], dtype: torch.dtype | None, seed: int
) -> tuple[Any, Recorder]:
    """Runs a constructor on fake tensors.

    Args:
        make: returns the model.
        dtype: PyTorch's default while it runs; None leaves it.
        seed: that PyTorch's generator has.

    Returns:
        What it returned, and what its tensors hold.

    Raises:
        Blocked: the constructor cannot run so.
    """
    mode = _Mode(allow_non_fake_inputs=True)
    recorder = Recorder(mode, seed)
    before = torch.get_default_dtype()
    try:
        if dtype is not None:
            torch.set_default_dtype(dtype)
        with (
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
    finally:
        torch.set_default_dtype(before)
    if recorder.blocked is not None:
        raise recorder.blocked
    return model, recorder
