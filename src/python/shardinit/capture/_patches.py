"""Replaces functions of PyTorch while a constructor runs without memory.

The originals would look at random numbers, or behave differently with tensors without memory.

The patch replaces a function's code, not its names, so aliases of the function (as in Transformers)
change, too, and nothing remains afterwards.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import gc
import math
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
from ._values import Blocked, evaluate

if TYPE_CHECKING:
    from ._record import Recorder


def at_work() -> Recorder | None:
    """Returns the calling constructor's recorder; None outside of one, and in its threads."""
    for mode in _get_current_dispatch_mode_stack():
        if hasattr(mode, "copied_memory"):
            return mode  # type: ignore[return-value]
    return None


@contextlib.contextmanager
def patches() -> Iterator[None]:
    """Patches functions of PyTorch while a constructor runs."""
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
    """Replaces a function's code by the code of `by`, which can call the original.

    In threads without a recorder, the original runs. `by` has no variables except its arguments:
    its globals are the globals of `function`.
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


def drawn(name: str, tensor: Any, parameters: dict[str, Any], generator: Any) -> Any:
    """Records a call of a function of torch.nn.init as one draw.

    The original runs on a small tensor with memory, so that arguments of all types keep their
    meaning, and wrong arguments raise PyTorch's own errors.
    """
    recorder = at_work()
    if recorder is None:
        return _BEFORE[name](tensor, **parameters, generator=generator)
    if tensor.device.type == "meta" or (name == "orthogonal_" and not tensor.numel()):
        return tensor
    given = {key: _known(recorder, name, key, value) for key, value in parameters.items()}
    with _disable_current_modes(), torch.no_grad():
        kind, numbers = _CALLS[name](tensor, **given)
    if not tensor.numel():
        return tensor
    # sparse_ draws its places from PyTorch's generator, whatever generator is given.
    original = None if kind == "sparse" else functools.partial(_BEFORE[name], **given)
    recorder.fill(tensor, kind, numbers, generator, original)
    if kind == "sparse" and not is_default(generator):
        why = "`sparse_` still draws its places from PyTorch's generator before"
        recorder.stream.lose(why)
    if kind == "uniform":  # PyTorch draws further numbers to accept or reject these.
        torch.empty_like(tensor).uniform_(generator=generator)
    if kind == "orthogonal" and _has_dimensions(given["gain"]):
        tensor.mul_(parameters["gain"])
    return tensor


def _known(recorder: Recorder, name: str, key: str, value: Any) -> Any:
    """Returns an argument, with its memory if it is a tensor; raises Blocked if it is random."""
    if not isinstance(value, torch.Tensor):
        return value
    made = recorder.value(value)
    if made.random:
        raise recorder.block(f"`{name}` has a random number as `{key}`")
    return evaluate(made)


def _called_orthogonal(tensor: Any, gain: Any) -> tuple[str, dict[str, float]]:
    gain = 1 if _has_dimensions(gain) else gain  # The caller multiplies by such a tensor.
    _BEFORE["orthogonal_"](torch.empty((1, 1), dtype=tensor.dtype), gain, torch.Generator())
    return "orthogonal", {"gain": float(gain)}


def _has_dimensions(number: Any) -> bool:
    return isinstance(number, torch.Tensor) and number.ndim > 0


def _called_sparse(tensor: Any, sparsity: Any, std: Any) -> tuple[str, dict[str, float]]:
    rows = tensor.shape[0]
    zeros = len(range(rows)[: math.ceil(sparsity * rows)])
    torch.empty(0, dtype=tensor.dtype).normal_(0, std)
    part = float(sparsity)
    if not 0 <= part <= 1 or math.ceil(part * rows) != zeros:  # f32 may round differently.
        part = max(zeros - 0.5, 0) / max(rows, 1)
    return "sparse", {"sparsity": part, "std": float(std)}


_BEYOND = 16  # No number is this many standard deviations from the mean.


def _called_trunc_normal(
    tensor: Any, mean: Any, std: Any, a: Any, b: Any
) -> tuple[str, dict[str, float]]:
    _BEFORE["_no_grad_trunc_normal_"](torch.empty(0, dtype=tensor.dtype), mean, std, a, b)
    ends = [(1 + math.erf((end - mean) / std / math.sqrt(2))) / 2 for end in (b, a)]
    is_one = a == b and _accepts_every(float(a), mean, std, tensor.dtype)
    mean, std, a, b = (float(x) for x in (mean, std, a, b))
    if is_one:
        return "uniform", {"low": a, "high": b}
    if std == 0 and ends[0] - ends[1] > 0.3:
        if not a <= mean <= b:
            raise Blocked("`trunc_normal_` never ends where the mean is out of bounds and std is 0")
        return "normal", {"mean": mean, "std": 0.0}
    if math.isinf(a) and math.isinf(b):
        return "normal", {"mean": mean, "std": std}
    a, b = (mean + math.copysign(_BEYOND * std, x) if math.isinf(x) else x for x in (a, b))
    return "trunc_normal", {"mean": mean, "std": std, "a": a, "b": b}


def _accepts_every(at: float, mean: Any, std: Any, dtype: torch.dtype) -> bool:
    """Returns whether `trunc_normal_` accepts the first numbers if both of its bounds are `at`."""
    peak = -0.5 * ((at - mean) / std) ** 2
    logarithm = torch.full((1,), at, dtype=dtype).sub_(mean).div_(std).pow_(2).mul_(-0.5).sub_(peak)
    largest = torch.nextafter(torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype))
    return bool(largest.log() <= logarithm)


# Each function returns a draw's kind and its numbers from a call's arguments, as PyTorch computes
# them.
_CALLS: dict[str, Callable[..., tuple[str, dict[str, float]]]] = {
    "orthogonal_": _called_orthogonal,
    "sparse_": _called_sparse,
    "_no_grad_trunc_normal_": _called_trunc_normal,
}


def _swap(a: Any, b: Any) -> None:  # The original rejects fake tensors with weak references.
    a.data, b.data = b.data, a.data


def _apply(module: Any, function: Any, recurse: bool = True) -> Any:
    """Does with fake tensors what `Module._apply` does only with real ones."""
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
    """Copies a tensor and the whole memory that contains it, as PyTorch does.

    Copies of buffers share memory if the buffers do; copies of parameters never share it.
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
        if isinstance(tensor, torch.nn.Parameter):  # Parameters copy themselves differently.
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
    """Ends a capture whose constructor asks for the generator's seed, or the system for one.

    Generators have a C type, so the method can only be replaced in the type's own namespace.
    """
    methods = gc.get_referents(torch._C.Generator.__dict__)[0]
    before, seed = methods["initial_seed"], methods["seed"]

    def initial_seed(generator: torch.Generator) -> int:
        recorder = at_work()
        if recorder is not None and is_default(generator):
            why = "`initial_seed` asks for the seed, which another spec's differs in"
            raise recorder.block(why)
        return int(before(generator))

    def new_seed(generator: torch.Generator) -> int:
        recorder = at_work()
        if recorder is not None and not is_default(generator):
            why = "`seed` gives a generator a seed of the system: give it one by `manual_seed`"
            raise recorder.block(why)
        return int(seed(generator))

    def put(**by: Any) -> None:
        methods.update(by)
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(torch._C.Generator))

    put(initial_seed=initial_seed, seed=new_seed)
    try:
        yield
    finally:
        put(initial_seed=before, seed=seed)


_HOLD = ("dict", "list", "tuple", "_lru_list_elem")


def _forget_fakes() -> None:
    """Clears caches of functions, which would keep this run's tensors without memory."""
    kinds = (functools._lru_cache_wrapper,)
    for wrapper in [x for x in gc.get_objects() if type(x) in kinds]:
        found, left = gc.get_referents(wrapper), 4
        while left and not any(isinstance(x, FakeTensor) for x in found):
            found = [y for x in found if type(x).__name__ in _HOLD for y in gc.get_referents(x)]
            left -= 1
        if left:
            wrapper.cache_clear()
