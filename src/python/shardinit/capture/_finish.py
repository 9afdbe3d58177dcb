"""Finishes a capture: returns a `Captured`, or reports every value that specs cannot express."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .._errors import CaptureError, CaptureWarning, LibraryError, SpecError
from . import Captured
from ._expression import NoFormula
from ._fold import tree
from ._lines import users_frame
from ._places import placed_tree
from ._tensor import Tensor, file_of, share
from ._write import spec_text

LAYOUT = "pytree"  # The layout that stores arrays which are drawn in parts.
_PATH = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)

_REPORT = "this is a fault of shardinit: report it with this text and the lines that it names"


def unexpected(error: Exception, line: str) -> str:
    """Returns the problem to report for a value whose capture failed with an unexpected error."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    at = f"{os.path.basename(where.filename)}:{where.lineno}"
    return f"{type(error).__name__} at {at}: {error}: {_REPORT}: {line}"


@contextlib.contextmanager
def only_capture_errors() -> Iterator[None]:
    """Converts all unexpected errors of a capture to CaptureErrors."""
    try:
        yield
    except (CaptureError, LibraryError):
        raise
    except Exception as error:
        raise CaptureError(unexpected(error, users_frame(error)), is_fault=True) from error


def check_path(path: str) -> None:
    """Raises NoFormula if a spec cannot have this path."""
    if _PATH.fullmatch(path) is None:
        raise NoFormula("its name has characters that a path of a spec cannot have")


def finish(
    tensors: list[Tensor],
    problems: Mapping[str, str],
    *,
    paths: Iterable[str],
    name: str,
    seed: int,
    engine: str,
    comment: str,
    config: Mapping[str, Any] | None = None,
    layouts: Sequence[str] = (),
    stored: Mapping[str, tuple[tuple[int, ...], str]] | None = None,
) -> Captured:
    """Writes the spec of tensors, and checks how shardinit itself reads it.

    Args:
        tensors: the tensors that a spec can express.
        problems: path → why a spec cannot express it, for the others; they are a CaptureError.
        paths: the paths of all tensors, in the model's order.
        name: the spec's name; invalid characters are replaced.
        comment, layouts: the comment at the spec's beginning, and the text at its end.
        stored: path → (shape, dtype) of the tensors that a layout stores, if there is one.
    """
    tensors = _without_empty_buffers(tensors)
    captured_as = {t.path: (t.shape, t.dtype) for t in tensors} if stored is None else stored
    no_elements = "its shape is {}, and a spec has no tensor without elements"
    empty = {p: no_elements.format(list(s)) for p, (s, _) in captured_as.items() if 0 in s}
    problems = {**problems, **share(tensors, engine), **empty}
    root, without_place = placed_tree(tensors)
    problems |= without_place
    paths = list(paths)
    _refuse(problems, paths)
    if not tensors:
        raise CaptureError(f"`{name}` has no tensors")
    text = spec_text(
        root,
        tensors,
        name=re.sub(r"[^A-Za-z0-9_.-]", "-", name).strip("-._") or "model",
        seed=seed,
        engine=engine,
        comment=comment,
        config=config,
        layouts=layouts,
    )
    captured = Captured(
        text,
        captured_as,
        frozenset(tensor.path for tensor in tensors if tensor.uses or tensor.of),
        {file_of(t): t.table for t in tensors if t.table is not None},
        layout=LAYOUT if layouts else None,
        seed=seed,
    )
    try:
        _check(captured)
    except SpecError as error:
        if error.code == 2:
            _refuse(_refused(tensors, engine), paths)
        raise
    return captured


def _refuse(problems: Mapping[str, str], paths: Sequence[str]) -> None:
    """Raises a CaptureError about the problems, if there are any."""
    problems = {path: problems[path] for path in paths if path in problems}
    if problems:
        raise CaptureError(
            f"{len(problems)} tensors cannot be expressed in a spec" if len(problems) > 1
            else "a tensor cannot be expressed in a spec",
            problems,
            is_fault=any(_REPORT in why for why in problems.values()),
        )  # fmt: skip


def _refused(tensors: Sequence[Tensor], engine: str) -> dict[str, str]:
    """Returns the tensors whose numbers a spec cannot have: path → shardinit's message."""
    said: dict[Any, str] = {}
    problems = {}
    for tensor in tensors:
        if tensor.of or tensor.table is not None:
            continue  # It needs another tensor or a file, and has no numbers.
        kind = repr((tensor.shape, tensor.dtype, tensor.init, tensor.fans, tensor.axes))
        if kind not in said:
            alone = dataclasses.replace(tensor, key=tensor.path, given=None)
            root = tree([alone], {})
            text = spec_text(
                root, [alone], name="x", seed=0, engine=engine, comment="", config=None
            )
            try:
                Captured(text, {}).spec().close()
                said[kind] = ""
            except SpecError as error:
                found = re.search(r"error: (.*)", str(error))
                said[kind] = found[1] if found else str(error)
        if said[kind]:
            problems[tensor.path] = f"{said[kind]}: {tensor.origin}"
    return problems


def _without_empty_buffers(tensors: list[Tensor]) -> list[Tensor]:
    """Removes buffers without elements, with a warning."""
    empty = [f"`{t.path}`" for t in tensors if t.is_buffer and 0 in t.shape]
    if empty:
        warnings.warn(
            f"the spec leaves out {', '.join(empty)}: a spec cannot declare a buffer without"
            " elements, so load the checkpoint with `strict=False`",
            CaptureWarning,
            stacklevel=2,
        )
    return [t for t in tensors if not t.is_buffer or 0 not in t.shape]


def _check(captured: Captured) -> None:
    """Checks that shardinit itself reads the captured tensors from the spec."""
    try:
        with captured.spec() as spec:
            read = {path: (info.global_shape, info.dtype) for path, info in spec.tensors.items()}
    except LibraryError:
        return  # Values that need the library were checked with it.
    if read != captured.tensors:
        different = {path for path, _ in {*read.items()} ^ {*captured.tensors.items()}}
        raise AssertionError(f"the spec differs from the captured model: {sorted(different)[:5]}")
