"""From a constructor to the text of a spec."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .._errors import CaptureError, LibraryError
from . import Captured
from ._formula import NoFormula, Use
from ._initializer import Tensor, tensor_of
from ._record import Blocked, Recorder, record, users_frame
from ._write import spec_text

_PATH = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def capture(
    make: Callable[[], Any],
    *,
    name: str | None,
    seed: int,
    dtype: torch.dtype | None,
    engine: str,
    all_buffers: bool,
    config: Mapping[str, Any] | None,
) -> Captured:
    """`shardinit.capture.torch`, with its arguments checked."""
    try:
        model, recorder = record(make, dtype)
    except Blocked as error:
        raise CaptureError(f"the constructor cannot run without numbers: {error}") from error
    except Exception as error:
        where = users_frame(error)
        raise CaptureError(
            f"the constructor failed: {type(error).__name__}: {error}\n  at {where}"
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise CaptureError(
            f"the constructor returned {type(model).__name__}, not a `torch.nn.Module`"
        )
    state = _state(model, all_buffers)
    tensors, problems = _tensors(state, recorder)
    problems |= _share(tensors)
    problems = {path: problems[path] for path in state if path in problems}
    if problems:
        raise CaptureError(
            f"{len(problems)} tensors cannot be said in a spec" if len(problems) > 1
            else "a tensor cannot be said in a spec",
            problems,
        )  # fmt: skip
    if not tensors:
        raise CaptureError(f"`{type(model).__name__}` has no tensors")
    text = spec_text(
        tensors,
        name=re.sub(r"[^A-Za-z0-9_.-]", "-", name or type(model).__name__),
        seed=seed,
        engine=engine,
        comment=f"{type(model).__name__}, captured by shardinit-capture from PyTorch"
        f" {torch.__version__}.",
        config=config,
    )
    captured = Captured(text, {t.path: (t.shape, t.dtype) for t in tensors})
    _check(captured)
    return captured


def _state(model: torch.nn.Module, all_buffers: bool) -> dict[str, torch.Tensor]:
    state = {
        path: tensor
        for path, tensor in model.state_dict(keep_vars=True).items()
        if isinstance(tensor, torch.Tensor)
    }
    if all_buffers:
        for path, buffer in model.named_buffers(remove_duplicate=False):
            state.setdefault(path, buffer)
    return state


def _tensors(
    state: Mapping[str, torch.Tensor], recorder: Recorder
) -> tuple[list[Tensor], dict[str, str]]:
    tensors: list[Tensor] = []
    problems: dict[str, str] = {}
    for path, tensor in state.items():
        try:
            if not _PATH.fullmatch(path):
                raise NoFormula("its name has characters that a path of a spec cannot have")
            tensors.append(tensor_of(path, recorder.value(tensor)))
        except (NoFormula, Blocked) as error:
            problems[path] = str(error)
    return tensors, problems


def _share(tensors: list[Tensor]) -> dict[str, str]:
    """Gives tensors of the same random numbers one key."""
    problems: dict[str, str] = {}
    users: dict[int, list[tuple[Tensor, Use]]] = {}
    for tensor in tensors:
        for use in tensor.uses:
            for other, before in users.get(use.draw.order, ()):
                if other is tensor or use.apart(before):
                    continue
                if (tensor.shape, tensor.init, [(u.draw.order, u.index) for u in tensor.uses]) != (
                    other.shape, other.init, [(u.draw.order, u.index) for u in other.uses]
                ):  # fmt: skip
                    problems[tensor.path] = (
                        f"some of its random numbers are also those of `{other.path}`, which is"
                        f" not the same otherwise: {use.draw.origin}"
                    )
                else:
                    tensor.key = other.key
                break
            else:
                users.setdefault(use.draw.order, []).append((tensor, use))
    return problems


def _check(captured: Captured) -> None:
    """The spec says what was captured, as the tool itself reads it."""
    try:
        with captured.spec() as spec:
            read = {path: (info.global_shape, info.dtype) for path, info in spec.tensors.items()}
    except LibraryError:
        return  # What needed the library was checked with it.
    if read != captured.tensors:
        different = sorted(
            path
            for path in {*read, *captured.tensors}
            if read.get(path) != captured.tensors.get(path)
        )
        raise AssertionError(f"the spec does not say what was captured: {different[:5]}")
