"""Tracks PyTorch's CPU generator while a constructor runs, whichever function sets it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ._stream import Reached, Stream
from ._values import Blocked


def is_default(generator: torch.Generator | None) -> bool:
    """Returns whether this is PyTorch's CPU generator, perhaps as another Python object."""
    return generator is None or (
        generator._cdata == torch.default_generator._cdata  # type: ignore[attr-defined]
    )


class Watched:
    """The generator itself, which random operations on fake tensors do not change.

    It gets an unpredictable seed, and is moved by a word for each draw, so that each place in the
    stream has a unique state. If the state is not the last one, the constructor has set it, with
    `manual_seed`, `set_state`, `fork_rng` or another function. If that state was reached before,
    the stream continues from its place.

    Attributes:
        seeded: whether the constructor seeds it with the spec's own seed.
    """

    def __init__(self, seed: int, stream: Stream) -> None:
        self._seed, self._stream = seed, stream
        self.seeded = False
        self._begin = b""  # The state after the spec's seed.
        self._states: dict[bytes, Reached] = {}
        self._last = b""

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Restores the generator at the end."""
        with _disable_current_modes():
            before = torch.default_generator.get_state()
            torch.default_generator.manual_seed(self._seed)
            self._begin = _state()
            self._states[self._begin] = self._stream.reached()
            torch.default_generator.manual_seed(self._seed ^ _NOBODYS)
        self._note()
        try:
            yield
        finally:
            with _disable_current_modes():
                torch.default_generator.set_state(before)

    def follow(self) -> None:
        """Moves the stream to the place to which the constructor has set the generator."""
        state = _state()
        if state == self._last:
            return
        self._last = state
        self.seeded |= state == self._begin
        self._stream.go(self._states.get(state) or self._seeded())

    def _seeded(self) -> Reached:
        with _disable_current_modes():
            same = torch.Generator()
            same.set_state(torch.default_generator.get_state())
            seed = same.initial_seed()
            fresh = torch.Generator().manual_seed(seed).get_state().numpy().tobytes()
        if fresh == self._last:
            problem = f"the constructor seeds PyTorch's generator with {seed}"
            problem += f", and the spec's seed is {self._seed}"
            return Reached(problem=problem, seed=seed)
        raise Blocked(
            "PyTorch's generator is moved by what is not seen, as a thread's draws, or is set to a"
            " state from elsewhere"
        )

    def draw(self) -> None:
        """Records a draw."""
        move(torch.default_generator)
        self._note()

    def _note(self) -> None:
        self._last = _state()
        self._states[self._last] = self._stream.reached()

    def is_state(self, data: torch.Tensor) -> bool:
        """Returns whether a tensor is a state, as `get_state` returns it."""
        if data.dtype != torch.uint8 or data.nbytes != len(self._last):
            return False
        return data.numpy().tobytes() in self._states


    def is_a_copy(self, generator: torch.Generator) -> bool:
        """Returns whether another generator has a state of this one."""
        with _disable_current_modes():
            return generator.get_state().numpy().tobytes() in self._states


_NOBODYS = 0x1E3779B97F4A7C15


def move(generator: torch.Generator) -> None:
    """Changes the state of a generator, as if numbers were drawn."""
    with _disable_current_modes():
        torch.empty(1, dtype=torch.uint8, device=generator.device).random_(generator=generator)


def _state() -> bytes:
    with _disable_current_modes():
        return torch.default_generator.get_state().numpy().tobytes()
