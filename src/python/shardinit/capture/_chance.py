"""Detects random numbers in a constructor that the spec's seed does not determine."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import random
import secrets
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from .._errors import CaptureWarning
from ._lines import is_standard


@contextlib.contextmanager
def warn_about_draws(what: str) -> Iterator[None]:
    """Warns if the block draws random numbers that the spec's seed does not determine.

    Args:
        what: the caller that draws them, for messages, such as "the constructor".
    """
    sources: list[str] = []
    before = _states()
    with _record_entropy(sources):
        yield
    sources += [name for name, state in _states().items() if before.get(name, state) != state]
    for source in dict.fromkeys(sources):
        warnings.warn(
            f"{what} drew from `{source}`, which no seed of the spec decides: what became of it is"
            " in the spec as it was now",
            CaptureWarning,
            stacklevel=5,
        )


def _states() -> dict[str, object]:
    """Returns the states of Python's and NumPy's global generators."""
    states: dict[str, object] = {"random": random.getstate()}
    if "numpy" in sys.modules:
        _, key, *rest = sys.modules["numpy"].random.get_state()
        states["numpy.random"] = (key.tobytes(), *rest)
    return states


@contextlib.contextmanager
def _record_entropy(sources: list[str]) -> Iterator[None]:
    """Records calls for the system's random bytes, for example by `numpy.random.default_rng()`."""

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if _becomes_a_number():
                sources.append("os.urandom")
            return function(*args)

        return call

    urandom = os.urandom  # A number is recorded once.
    seed, by_system = random.Random.seed, noted(lambda: None)

    def seeded(generator: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None:
            by_system()
        seed(generator, a, version)

    with (
        _seeded_anew(sources),
        mock.patch.object(os, "urandom", noted(urandom)),
        mock.patch.object(random, "_urandom", noted(urandom)),
        mock.patch.object(random.Random, "seed", seeded),
    ):
        yield


@contextlib.contextmanager
def _seeded_anew(sources: list[str]) -> Iterator[None]:
    """Discards records of random bytes that a NumPy generator takes before it is seeded.

    `numpy.random.RandomState(123)` creates such a generator, and then seeds it. The generator's
    type is a C type, whose methods can only be replaced in its own namespace.
    """
    if "numpy" not in sys.modules:
        yield
        return
    kind = sys.modules["numpy"].random.MT19937
    methods = gc.get_referents(kind.__dict__)[0]
    before = methods["_legacy_seeding"]

    def legacy_seeding(generator: Any, seed: Any) -> Any:
        if seed is not None and sources and sources[-1] == "os.urandom":
            sources.pop()
        return before(generator, seed)

    def put(method: Any) -> None:
        methods["_legacy_seeding"] = method
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))

    put(legacy_seeding)
    try:
        yield
    finally:
        put(before)


def _becomes_a_number() -> bool:
    """Returns whether the caller may use the system's random bytes for a number in a model.

    Other uses are names of temporary files, and modules that seed their own generators on import.
    """
    frame: types.FrameType | None = sys._getframe(2)
    files = []
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    if any(file.startswith("<frozen importlib") for file in files):
        return False
    own = (__file__, random.__file__, secrets.__file__)
    asks = next((file for file in files if file not in own), "")
    return not is_standard(asks)
