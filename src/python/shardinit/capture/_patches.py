"""Replaces functions of PyTorch while a constructor runs without memory.

The originals would look at random numbers, or behave otherwise with tensors that have no memory.

The code of a function is changed, and none of its names, so aliases of it (as Transformers has)
change, too, and nothing of this is left behind.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import gc
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

from ._generator import is_default
from ._values import Blocked

if TYPE_CHECKING:
    from ._record import Recorder


def at_work() -> Recorder | None:
    """The recorder of the constructor that calls; None outside of one, and in its own threads."""
    for mode in _get_current_dispatch_mode_stack():
        if hasattr(mode, "copied_memory"):
            return mode  # type: ignore[return-value]
    return None


@contextlib.contextmanager
def patches() -> Iterator[None]:
    """Changes functions of PyTorch for as long as a constructor runs."""
    init = torch.nn.init
    deepcopy, numpy = torch.Tensor.__deepcopy__, torch.Tensor.numpy
    uninitialized = (UninitializedParameter, UninitializedBuffer)
    with contextlib.ExitStack() as stack:
        for function, code in (
            (init._no_grad_trunc_normal_, _trunc_normal),
            (init.orthogonal_, _orthogonal),
            (init.sparse_, _sparse),
        ):
            stack.enter_context(_coded(function, code))
        for owner, name, by in (
            (torch.utils, "swap_tensors", _swap),
            (torch.nn.Module, "_apply", _apply),
            (torch.Tensor, "__deepcopy__", lambda tensor, memo: _deepcopy(tensor, memo, deepcopy)),
            (torch.Tensor, "numpy", lambda tensor, **how: _numpy(tensor, numpy, how)),
            *((cls, "__new__", _no_shape) for cls in uninitialized),
        ):
            stack.enter_context(mock.patch.object(owner, name, by))
        stack.enter_context(_seed_is_not_asked_for())
        stack.callback(_forget_fakes)
        yield


@contextlib.contextmanager
def _coded(function: Any, by: Any) -> Iterator[None]:
    """Makes a function do what another one does, which is given the original.

    In threads without a recorder the original runs. `by` has no variables but its arguments: its
    globals are those of `function`.
    """
    code, keywords = function.__code__, function.__kwdefaults__
    before = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    _BEFORE[function.__name__] = before
    function.__code__ = by.__code__
    try:
        yield
    finally:
        function.__code__, function.__kwdefaults__ = code, keywords


_BEFORE: dict[str, Callable[..., Any]] = {}


def _trunc_normal(tensor, mean, std, a, b, generator=None):  # type: ignore[no-untyped-def]
    from shardinit.capture import _patches

    parameters = {"mean": mean, "std": std, "a": a, "b": b}
    return _patches.drawn("_no_grad_trunc_normal_", tensor, parameters, generator)


def _orthogonal(tensor, gain=1, generator=None):  # type: ignore[no-untyped-def]
    from shardinit.capture import _patches

    if tensor.ndim < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    return _patches.drawn("orthogonal_", tensor, {"gain": gain}, generator)


def _sparse(tensor, sparsity, std=0.01, generator=None):  # type: ignore[no-untyped-def]
    from shardinit.capture import _patches

    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    return _patches.drawn("sparse_", tensor, {"sparsity": sparsity, "std": std}, generator)


def drawn(name: str, tensor: Any, parameters: dict[str, float], generator: Any) -> Any:
    """Notes a call of a function of torch.nn.init as one draw."""
    recorder = at_work()
    if recorder is None:
        return _BEFORE[name](tensor, **parameters, generator=generator)
    if tensor.device.type == "meta" or not tensor.numel():
        return tensor
    kind = name.strip("_").removeprefix("no_grad_")
    recorder.fill(tensor, kind, parameters, generator)
    if kind == "sparse" and not is_default(generator):
        why = "`sparse_` draws its places from PyTorch's generator all the same before"
        recorder.stream.lose(why)
    return tensor


def _swap(a: Any, b: Any) -> None:  # The original refuses fake tensors with weak references.
    a.data, b.data = b.data, a.data


def _apply(module: Any, function: Any, recurse: bool = True) -> Any:
    """Does what `Module._apply` does with tensors that have memory, and not with fake ones."""
    if recurse:
        for child in module.children():
            child._apply(function)
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        with torch.no_grad():
            applied = function(parameter)
        if applied.device.type == parameter.device.type:
            parameter.data = applied
        else:
            module._parameters[name] = torch.nn.Parameter(applied, parameter.requires_grad)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = function(buffer)
    return module


def _deepcopy(tensor: Any, memo: dict[int, Any], before: Any) -> Any:
    """Copies a tensor and the whole memory that it is a part of, as PyTorch does.

    Copies of buffers that share memory share it, too, and those of parameters do not.
    """
    recorder = at_work()
    if recorder is None:
        return before(tensor, memo)
    if not isinstance(tensor, FakeTensor):
        with _disable_current_modes():
            return before(tensor, memo)
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy"
            " protocol at the moment."
        )
    with torch.no_grad():
        if isinstance(tensor, torch.nn.Parameter):  # Parameters copy themselves in their own way.
            copied = tensor.data.clone(memory_format=torch.preserve_format)
            memo[id(tensor)] = torch.nn.Parameter(copied, tensor.requires_grad)
            return memo[id(tensor)]
        key = recorder.storage_of(tensor)
        if key not in memo:
            memo[key] = recorder.copied_memory(tensor)
        made = memo[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).detach()
        made.requires_grad_(tensor.requires_grad)
    own = {k: v for k, v in tensor.__dict__.items() if k not in made.__dict__ }
    made.__dict__.update(copy.deepcopy(own, memo))
    memo[id(tensor)] = made
    return made


def _numpy(tensor: Any, before: Any, how: dict[str, Any]) -> Any:
    recorder = at_work()
    if recorder is None:
        return before(tensor, **how)
    if isinstance(tensor, FakeTensor) and tensor.requires_grad and not how.get("force"):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
    with _disable_current_modes():
        return before(recorder.numpy(tensor), **how)


def _no_shape(cls: Any, *_: Any, **__: Any) -> Any:
    why = (
        f"`{cls.__name__}`, as of lazy modules, has no shape before the model has seen an input:"
        " use the module that has its sizes as arguments"
    )
    recorder = at_work()
    raise Blocked(why) if recorder is None else recorder.block(why)


@contextlib.contextmanager
def _seed_is_not_asked_for() -> Iterator[None]:
    """Ends a capture whose constructor asks for the generator's seed.

    Generators are of a type of C, so the only name of the method that can be replaced is in the
    type's own namespace.
    """
    methods = gc.get_referents(torch._C.Generator.__dict__)[0]
    before = methods["initial_seed"]

    def initial_seed(generator: torch.Generator) -> int:
        recorder = at_work()
        if recorder is not None and is_default(generator):
            why = "`initial_seed` asks for the seed, which another spec's differs in"
            raise recorder.block(why)
        return int(before(generator))

    def put(method: Any) -> None:
        methods["initial_seed"] = method
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(torch._C.Generator))

    put(initial_seed)
    try:
        yield
    finally:
        put(before)


_HOLD = ("dict", "list", "tuple", "_lru_list_elem")


def _forget_fakes() -> None:
    """Empties caches of functions, which would keep this run's tensors without memory."""
    kinds = (functools._lru_cache_wrapper,)
    for wrapper in [x for x in gc.get_objects() if type(x) in kinds]:
        found, left = gc.get_referents(wrapper), 4
        while left and not any(isinstance(x, FakeTensor) for x in found):
            found = [y for x in found if type(x).__name__ in _HOLD for y in gc.get_referents(x)]
            left -= 1
        if left:
            wrapper.cache_clear()
