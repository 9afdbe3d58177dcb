"""Distinguishes the user's lines of Python from those in frameworks and the standard library."""

from __future__ import annotations

import functools
import os
import sys
import traceback
import types
from collections.abc import Iterable
from typing import Any

_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
JAX = os.sep + "jax" + os.sep
# Frameworks on top of JAX, which only pass on a program's requests.
_FRAMEWORKS = (
    "jax", "jaxlib", "flax", "equinox", "haiku", "optax", "chex", "jaxtyping", "beartype", "jmp"
)  # fmt: skip


def is_standard(file: str) -> bool:
    """Returns whether a file is in Python's standard library, and not in an installed package."""
    return file.startswith(_STANDARD) and "-packages" not in file


def _folders(*modules: str) -> tuple[str, ...]:
    return tuple(
        os.path.abspath(folder) + os.sep
        for name in modules
        for folder in getattr(sys.modules.get(name), "__path__", ())
    )


class Lines:
    """Finds the user's lines of JAX's equations, given the modules that are imported now."""

    def __init__(self) -> None:
        self._frameworks = _folders(*_FRAMEWORKS)

    def of(self, equation: Any) -> str:
        """Returns the innermost line outside frameworks, or else in a framework, as `file:line`."""
        found = equation.source_info.traceback
        frames = found.frames if found is not None else ()
        return self._innermost((frame.file_name, frame.line_num) for frame in frames)

    def of_error(self, error: BaseException) -> str:
        """Returns the innermost line, as `of` does, for the place where an error was raised."""
        frames = traceback.extract_tb(error.__traceback__)
        return self._innermost((frame.filename, frame.lineno) for frame in reversed(frames))

    def _innermost(self, frames: Iterable[tuple[str, int | None]]) -> str:
        found = "?"
        for name, line in frames:
            if name.startswith(("<", _OURS)) or is_standard(name):
                continue
            if not name.startswith(self._frameworks):
                return f"{name}:{line}"
            if found == "?" and JAX not in name:
                found = f"{name}:{line}"
        return found


@functools.cache
def _torch() -> tuple[str, ...]:
    return _folders("torch")


def _is_users(file: str) -> bool:
    """Returns whether the lines of a file are the user's, and not PyTorch's or shardinit's."""
    handed_on = file.startswith(("<", _OURS, *_torch()))
    return not (handed_on or file.endswith("transformers/initialization.py") or is_standard(file))


def user_line() -> str:
    """Returns the innermost line that is neither PyTorch's nor shardinit's, as `file:line`."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if _is_users(name):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def called_in(file: str) -> str:
    """Returns the outermost function of `file` called by the user's innermost line; "" if none."""
    frame: types.FrameType | None = sys._getframe(1)
    found = ""
    while frame is not None and not _is_users(frame.f_code.co_filename):
        if frame.f_code.co_filename == file:
            found = frame.f_code.co_name
        frame = frame.f_back
    return found


def users_frame(error: BaseException) -> str:
    """Returns the innermost user line of an error's traceback, as `file:line`."""
    users = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if _is_users(frame.filename)
    ]
    return users[-1] if users else "?"
