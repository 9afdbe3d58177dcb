"""The end of each capture: a `Captured`, or an error that names every value no spec can say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._errors import CaptureError, LibraryError
from .._json import is_path
from . import Captured
from ._expression import NoFormula
from ._places import placed_tree
from ._tensor import Tensor, file_of, share
from ._write import spec_text

LAYOUT = "pytree"  # The layout of this name stores arrays that are drawn in parts.


def check_path(path: str) -> None:
    """Raises NoFormula for a path that a spec cannot have."""
    if not is_path(path):
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
    """Makes the spec of tensors, and checks how the tool itself reads it.

    Args:
        tensors: the tensors that a spec can say.
        problems: path → why a spec cannot say it, for the others; they are a CaptureError.
        paths: the paths of all, in the model's order.
        name: the spec's name; characters that it cannot have are replaced.
        comment, layouts: the comment at the spec's beginning, and the text at its end.
        stored: path → (shape, dtype) of the tensors that a layout stores, if there is one.
    """
    captured_as = {t.path: (t.shape, t.dtype) for t in tensors} if stored is None else stored
    no_elements = "its shape is {}, and a spec has no tensor without elements"
    empty = {p: no_elements.format(list(s)) for p, (s, _) in captured_as.items() if 0 in s}
    problems = {**problems, **share(tensors, engine), **empty}
    root, without_place = placed_tree(tensors)
    problems |= without_place
    problems = {path: problems[path] for path in paths if path in problems}
    if problems:
        raise CaptureError(
            f"{len(problems)} tensors cannot be said in a spec" if len(problems) > 1
            else "a tensor cannot be said in a spec",
            problems,
        )  # fmt: skip
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
    _check(captured)
    return captured


def _check(captured: Captured) -> None:
    """Checks that the tool itself reads from the spec what was captured."""
    try:
        with captured.spec() as spec:
            read = {path: (info.global_shape, info.dtype) for path, info in spec.tensors.items()}
    except LibraryError:
        return  # Values that need the library were checked with it.
    if read != captured.tensors:
        different = {path for path, _ in {*read.items()} ^ {*captured.tensors.items()}}
        raise AssertionError(f"the spec does not say what was captured: {sorted(different)[:5]}")
