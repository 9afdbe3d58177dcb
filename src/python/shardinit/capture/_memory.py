"""Keeps a value for each storage of fake tensors, which have no memory themselves."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from ._expression import Origin
from ._generator import Watched
from ._lines import user_line
from ._values import Blocked, Empty, Gather, Geometry, Literal, Scatter, Value, contiguous, evaluate

if TYPE_CHECKING:
    from ._record import Recorder


class _Storage:
    """The storage of a fake tensor, and its value.

    Attributes:
        keep: the storage, kept so that no other storage gets its address.
        real: the real memory of this storage, if it was not made here or NumPy reads it.
        shared: whether writes must also be visible in the real memory.
    """

    def __init__(self, keep: Any, value: Value, layout: Geometry) -> None:
        self.keep = keep
        self.value = value
        self.layout = layout
        self.real: torch.UntypedStorage | None = None
        self.shared = False
        self._was: Value = value  # The value in the real memory at the last look.
        self._bytes = b""

    def stand_for(self, real: torch.UntypedStorage, shared: bool) -> None:
        self.real, self.shared, self._was = real, shared, self.value
        self._bytes = self._bytes_now()

    def row(self, dtype: torch.dtype) -> torch.Tensor:
        """Returns the whole real memory as one row of elements."""
        assert self.real is not None
        empty = torch.empty(0, dtype=dtype, device=self.real.device)
        return empty.set_(self.real)  # type: ignore[no-any-return, unused-ignore]

    def _bytes_now(self) -> bytes:
        with _disable_current_modes():
            return self.row(torch.uint8).cpu().numpy().tobytes()

    def _view(self) -> torch.Tensor:
        row = self.row(self.value.dtype)
        return row.as_strided(self.layout.size, self.layout.stride, self.layout.offset)

    def look(self) -> None:
        """Updates the value from the real memory, to which others may have written."""
        if self.real is None or (now := self._bytes_now()) == self._bytes:
            return
        if self.value is not self._was:
            raise Blocked("memory is written to both by PyTorch and by what shares it, as NumPy")
        with _disable_current_modes():
            data = self._view().cpu().clone(memory_format=torch.contiguous_format)
        self.value = Literal(self.layout.size, self.value.dtype, self.value.origin, data)
        self._was, self._bytes = self.value, now

    def store(self) -> None:
        """Writes the value to the real memory."""
        if not self.shared:
            return
        if self.value.random:
            raise Blocked("random numbers are written to memory that NumPy shares")
        with _disable_current_modes():
            self._view().copy_(evaluate(self.value))
        self._was, self._bytes = self.value, self._bytes_now()


class Mode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """One mode for all fake tensors, even for deep copies of them.

    Attributes:
        recorder: the recorder that must see every operation on them; may be None.
        seen: whether the current operation is the recorder's own, or is known to it.
    """

    recorder: Recorder | None = None
    seen = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Mode:
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


# Deeper values are computed if they have at most this many elements. Otherwise a loop over single
# elements would take time and memory that grow with the square of their number.
_DEEPEST, _COMPUTED = 64, 1 << 20


def _shallow(value: Value) -> Value:
    """Returns the value itself, or its numbers if it is deep and not random."""
    if value.random or value.depth <= _DEEPEST or math.prod(value.shape) > _COMPUTED:
        return value
    return Literal(value.shape, value.dtype, value.origin, evaluate(value))


class Memory:
    """The storages of fake tensors.

    Attributes:
        mode: the mode of the fake tensors.
        generator: PyTorch's generator.
        blocked: the reason that ended the capture, if any, even if the constructor continued.
    """

    def __init__(self, mode: Mode, generator: Watched) -> None:
        self.mode = mode
        self.generator = generator
        self.blocked: Blocked | None = None
        self._storages: dict[int, _Storage] = {}

    def block(self, why: str) -> Blocked:
        """Returns the error that ends the capture, even if the constructor catches it."""
        if self.blocked is None:
            self.blocked = Blocked(f"{why}, at {user_line()}")
        return self.blocked

    def value(self, tensor: torch.Tensor) -> Value:
        """Returns the current value of a tensor."""
        tensor = self.fake(tensor)
        storage = self._storage(tensor)
        view = geometry(tensor)
        if tensor.dtype != storage.value.dtype:
            why = f"a view of {storage.value.dtype} memory as {tensor.dtype}"
            if storage.value.dtype.is_complex or tensor.dtype.is_complex:
                why = "complex numbers: keep the real and the imaginary part as two tensors"
            raise Blocked(f"{why}: {storage.value.origin}")
        if tensor.is_neg() or tensor.is_conj():
            raise Blocked("a view of memory with another sign")
        if view == storage.layout:
            return storage.value
        of = storage.value
        while isinstance(of, Scatter) and of.layout == storage.layout:
            if of.view == view:
                return of.values
            if not of.view.is_apart(view):
                break
            of = of.base
        return Gather(view.size, tensor.dtype, of.origin, of, storage.layout, view)

    def storage_of(self, tensor: torch.Tensor) -> int:
        """Returns a number that is equal for tensors with the same memory."""
        return int(tensor.untyped_storage()._cdata)

    def write(self, tensor: torch.Tensor, value: Value) -> None:
        """Records that the elements of a tensor are overwritten."""
        storage = self._storage(tensor)
        view = geometry(tensor)
        if any(n > 1 and not step for n, step in zip(view.size, view.stride, strict=True)):
            raise Blocked("elements are written to that are one number in memory")
        layout, base = storage.layout, storage.value
        same = math.prod(view.size) == math.prod(layout.size) and view.offset == layout.offset
        if view == layout or (_is_row_major(view) and _is_row_major(layout) and same):
            storage.value, storage.layout = _shallow(value), view
        else:
            value = _shallow(value)
            whole = Scatter(layout.size, base.dtype, value.origin, base, layout, view, value)
            storage.value = _shallow(whole)
        storage.store()

    def copied_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy of the whole memory that contains a tensor, as one row."""
        storage = self._storage(tensor)
        with _disable_current_modes(), self.mode.sees(), self.mode:
            count = tensor.untyped_storage().nbytes() // tensor.element_size()
            made = torch.empty(count, dtype=tensor.dtype, device=tensor.device)
        self.track(made, storage.value)
        self._storages[self.storage_of(made)].layout = storage.layout
        return made

    def _storage(self, tensor: torch.Tensor) -> _Storage:
        storage = self._storages.get(self.storage_of(tensor))
        if storage is None:
            raise Blocked("a tensor whose memory was made where it is not seen")
        storage.look()
        return storage

    def track(self, tensor: torch.Tensor, value: Value) -> None:
        """Adds a new storage, whose whole memory is the tensor's."""
        keep = tensor.untyped_storage()
        self._storages[int(keep._cdata)] = _Storage(keep, _shallow(value), geometry(tensor))

    def tracks(self, tensor: torch.Tensor) -> bool:
        """Returns whether the value of a tensor's memory is tracked."""
        return self.storage_of(tensor) in self._storages

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a fake tensor for a real one, whose value is a literal from then on."""
        if isinstance(tensor, FakeTensor):
            if tensor.fake_mode is not self.mode:
                raise Blocked("a tensor of another capture, which something keeps, is used")
            return tensor
        with _disable_current_modes(), torch.no_grad():
            fake = self.mode.from_tensor(tensor, static_shapes=True)
        if self.tracks(fake):
            return fake
        origin = Origin("a tensor of numbers", user_line())
        if tensor.device.type == "meta":
            self.track(fake, Empty(tuple(fake.shape), fake.dtype, origin))
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
        self.track(fake, Literal(layout.size, data.dtype, origin, data))
        storage = self._storages[self.storage_of(fake)]
        storage.layout = layout
        storage.stand_for(memory, not memory.resizable())
        return fake

    def numpy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor with real memory, which NumPy may read and write."""
        if not isinstance(tensor, FakeTensor):
            self._storage(self.fake(tensor)).shared = True
            return tensor
        if self.value(tensor).random:
            raise self.block("`numpy` asks for the value of random numbers")
        storage = self._storage(tensor)
        if storage.real is None:
            if storage.value.random:
                raise self.block("`numpy` asks for memory with random numbers")
            with _disable_current_modes():
                count = tensor.untyped_storage().nbytes()
                real = torch.UntypedStorage(count)  # type: ignore[no-untyped-call]
                storage.stand_for(real, True)
        storage.shared = True
        storage.store()
        with _disable_current_modes():
            row = storage.row(tensor.dtype)
            return row.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
