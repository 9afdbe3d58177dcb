"""Captures a PyTorch constructor as the text of a spec."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .. import _torch_cpu
from .._dtypes import name_of
from .._errors import CaptureError, CaptureWarning
from . import Captured
from . import _chance as chance
from ._compare import Real, Words
from ._expression import NoFormula
from ._finish import check_path, finish, unexpected
from ._initializer import bits, tensor_of
from ._lines import users_frame
from ._norms import norms_of
from ._record import Recorder, record
from ._spread import spread_of
from ._stream import TORCH_CPU
from ._tensor import Tensor
from ._values import Blocked, Value, default_dtype


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
    """Implements `shardinit.capture.torch`, which has checked the arguments."""
    if engine == TORCH_CPU and (different := _torch_cpu.difference()):
        warnings.warn(
            f"{different}: the spec has the engine's numbers, but the constructor draws others",
            CaptureWarning,
            stacklevel=3,
        )
    try:
        with chance.warn_about_draws("the constructor"):
            model, recorder = record(make, dtype, seed)
    except Blocked as error:
        raise CaptureError(f"the constructor cannot be followed: {error}") from error
    except Exception as error:
        why = f"{type(error).__name__}: {error}\n  at {users_frame(error)}"
        raise CaptureError(f"the constructor failed: {why}") from error
    called = type(model).__name__
    if not isinstance(model, torch.nn.Module):
        raise CaptureError(f"the constructor returned {called}, not a `torch.nn.Module`")
    state = _state(model, all_buffers)
    tensors, problems, values = _tensors(state, recorder, engine)
    buffers = {path for path, _ in model.named_buffers(remove_duplicate=False)}
    for found in tensors:
        found.is_buffer = found.path in buffers
    captured = finish(
        tensors,
        problems,
        paths=state,
        name=name or called,
        seed=seed,
        engine=engine,
        comment=f"{called}, captured by shardinit-capture from PyTorch {torch.__version__}.",
        config=config,
    )
    return dataclasses.replace(
        captured,
        _real=lambda seed: _real(make, dtype, seed, all_buffers),
        _spread=lambda path: spread_of(path, values),
        _has_own_seed=recorder.generator.seeded,
    )


def _real(
    make: Callable[[], Any], dtype: torch.dtype | None, seed: int, all_buffers: bool
) -> dict[str, Real]:
    """Runs the constructor without a capture, and returns the tensors of its model."""
    with torch.random.fork_rng(devices=()), default_dtype(dtype), torch.device("cpu"):
        torch.manual_seed(seed)
        try:
            state = _state(make(), all_buffers)
        except Exception as error:
            raise CaptureError(
                f"the constructor fails when it is not captured: {type(error).__name__}: {error}"
                f"\n  at {users_frame(error)}"
            ) from error
    return {path: _real_tensor(tensor.detach()) for path, tensor in state.items()}


def _real_tensor(tensor: torch.Tensor) -> Real:
    def numbers(words: Words) -> Words:
        found: Words = torch.from_numpy(words.copy()).view(tensor.dtype).double().numpy()
        return found

    dtype = name_of(tensor.dtype) or str(tensor.dtype)
    return Real(tuple(tensor.shape), dtype, lambda: bits(tensor.contiguous()), numbers)


def _state(model: torch.nn.Module, all_buffers: bool) -> dict[str, torch.Tensor]:
    every = model.state_dict(keep_vars=True).items()
    state = {path: tensor for path, tensor in every if isinstance(tensor, torch.Tensor)}
    if all_buffers:
        for path, buffer in model.named_buffers(remove_duplicate=False):
            state.setdefault(path, buffer)
    return state


def _tensors(
    state: Mapping[str, torch.Tensor], recorder: Recorder, engine: str
) -> tuple[list[Tensor], dict[str, str], dict[str, Value]]:
    tensors: list[Tensor] = []
    problems: dict[str, str] = {}
    values: dict[str, Value] = {}
    for path, tensor in state.items():
        try:
            check_path(path)
            if tensor.device.type == "meta":
                raise NoFormula("it is on the device `meta`, where nothing has values")
            values[path] = recorder.value(tensor)
        except (NoFormula, Blocked) as error:
            problems[path] = str(error)
    for path, value in values.items():
        try:
            tensors.append(_tensor_of(path, value, values, engine))
        except NoFormula as error:
            problems[path] = str(error)
        except Exception as error:
            problems[path] = unexpected(error, str(value.origin))
    return tensors, problems, values


def _tensor_of(path: str, value: Value, values: Mapping[str, Value], engine: str) -> Tensor:
    found = norms_of(path, value, values) or tensor_of(path, value, engine)
    found.origin = found.uses[0].draw.origin if found.uses else value.origin
    return found
