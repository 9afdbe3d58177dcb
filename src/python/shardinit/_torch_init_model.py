"""Implements `init_model` for PyTorch: from a class to a sharded model.

It captures the constructor, constructs the model with `from_spec`, and shards it with FSDP2.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from typing import cast as cast_type

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parameter import is_lazy

from ._errors import CaptureError, MismatchError
from ._spec import AnySpec, Sets, Spec, as_spec
from ._torch_from_spec import from_spec
from ._torch_slots import slots_of

M = TypeVar("M", bound=nn.Module)

_OF_ANOTHER_MODEL = (
    "the spec is of another model: leave it out, and this one's constructor is captured; or say in "
    "`rename` how the names differ"
)
_DEPTH = 4  # The maximum depth of lists and dicts to search for tensors.


def init_model(
    make: Callable[[], M],
    spec: AnySpec | None = None,
    *,
    mesh: DeviceMesh | None = None,
    shard: Callable[[M], Any] | None = None,
    seed: int | None = None,
    engine: str | None = None,
    dtype: torch.dtype | None = None,
    set: Sets = (),
    layout: str | None = None,
    rename: Callable[[str], str] | None = None,
    cast: bool = False,
) -> M:
    """Constructs a model sharded over a mesh, where each process creates only its own shards.

        model = shardinit.torch.init_model(lambda: Model(config), mesh=mesh)

    Without a spec, the constructor is captured, as by `shardinit.capture.torch`. Then the model is
    constructed on ``meta``, sharded, and filled, as in a block of `from_spec`. A process never
    holds a sharded tensor whole, and does not wait for other processes. If a constructor computes
    tensors that are in no state dict, or looks at values, it is called again with memory for the
    tensors that it computes. Then only the data of one parameter at a time is whole for a moment.

    Args:
        make: a class or function without arguments that returns the model. It is called several
            times, and must do the same each time.
        spec: a YAML file, a mapping as for `shardinit.open_spec`, or an open spec. None captures
            the constructor.
        mesh: the ``DeviceMesh`` over which ``fully_shard`` shards the model: one dimension, or two
            for replicas of shards. Each element of an ``nn.ModuleList`` or ``nn.ModuleDict`` is
            sharded separately, and then the rest. None shards nothing, unless there is `shard`.
        shard: a function that shards the model instead, for example with ``parallelize_module``. If
            it returns a module, that module is returned.
        seed, engine: for the capture: ``engine="torch_cpu"`` reproduces the constructor's values
            after ``torch.manual_seed(seed)``, bit for bit, except for those that
            shardinit-values(7) lists, such as 64-bit normal numbers. The defaults are 0 and
            ``philox4x32``.
        dtype: PyTorch's default element type while `make` runs.
        set, layout: as for `shardinit.open_spec`; not for an open spec.
        rename, cast: as for `load_into`.

    Returns:
        The model, with its tensors on the devices of the mesh.

    Raises:
        CaptureError: a spec cannot represent the constructor, or a tensor that is in no state dict
            is drawn at random or computed from parameters; the message names all of them, with the
            reasons.
        MismatchError: the spec is of another model, and the message names all differences; or this
            process is not in the mesh.
        TypeError: the arguments cannot be combined.
        SpecError, LibraryError: as for `shardinit.open_spec`.
    """
    _check(make, mesh)
    opened = _opened(make, spec, set, layout, seed, engine, dtype)
    try:
        return _made(make, opened, shard, mesh, dtype, rename, cast)
    except MismatchError as error:
        raise (error if spec is None else error.with_hint(_OF_ANOTHER_MODEL)) from None


def _opened(
    make: Callable[[], Any],
    spec: AnySpec | None,
    sets: Sets,
    layout: str | None,
    seed: int | None,
    engine: str | None,
    dtype: torch.dtype | None,
) -> Spec:
    """Returns the user's spec, or else the constructor's captured spec."""
    if spec is not None:
        if seed is not None or engine is not None:
            raise TypeError(
                "`seed` and `engine` are for a capture, and here is a spec, which has its own: "
                'give `set={"seed": 7}`'
            )
        return as_spec(spec, sets, layout, instead="shardinit.torch.load_into")
    if sets or layout is not None:
        raise TypeError("`set` and `layout` are for a spec: give `seed` for another seed")
    from . import capture

    captured = capture.torch(make, seed=seed or 0, dtype=dtype, engine=engine or "philox4x32")
    return captured.spec()


def _check(make: Any, mesh: Any) -> None:
    if isinstance(make, nn.Module):
        raise TypeError(
            f"init_model() makes the model itself: give the class {type(make).__name__}, or a "
            "function that calls it; init_() fills a model that is there already"
        )
    if not callable(make):
        raise TypeError(
            f"init_model() calls its first argument, and {type(make).__name__} cannot be called: "
            "give a class or a function, as `lambda: Model(config)`"
        )
    with contextlib.suppress(ValueError):  # Some C functions have no signature.
        try:
            inspect.signature(make).bind()
        except TypeError as error:
            name = getattr(make, "__name__", type(make).__name__)
            raise TypeError(
                f"init_model() calls {name}() without arguments: {error}; give it a function "
                f"that has them, as `lambda: {name}(config)`"
            ) from None
    if mesh is None:
        return
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(
            f"`mesh` is a torch.distributed.device_mesh.DeviceMesh, not {type(mesh).__name__}: "
            "make one with init_device_mesh()"
        )
    if mesh.get_coordinate() is None:
        raise MismatchError(
            f"process {torch.distributed.get_rank()} is not in the mesh, which has {mesh.size()} "
            f"of {torch.distributed.get_world_size()} processes: make a mesh of all of them, or "
            "call init_model() in its processes alone"
        )


def _made(
    make: Callable[[], M],
    opened: Spec,
    shard: Callable[[M], Any] | None,
    mesh: DeviceMesh | None,
    dtype: torch.dtype | None,
    rename: Callable[[str], str] | None,
    cast: bool,
) -> M:
    from .capture._values import default_dtype

    with from_spec(opened, rename=rename, cast=cast):
        with default_dtype(dtype), torch.random.fork_rng(devices=()):
            made = _without_memory(make)
            model: M = _with_memory(make) if made is None else made
        if shard is not None:
            sharded = shard(model)
            model = cast_type("M", sharded) if isinstance(sharded, nn.Module) else model
        elif mesh is not None:
            _shard_fully(model, mesh)
    left = {name: each for name, each in _unsaved_tensors(model) if each.is_meta}
    if left:
        why = "it is made of parameters, or shares their memory, and these get their values later"
        raise _refused(model, dict.fromkeys(left, why))
    if mesh is not None:
        for slot in slots_of(model):  # Tensors that were not sharded, such as buffers.
            if slot.tensor.device.type != mesh.device_type:
                slot.tensor.data = slot.tensor.data.to(mesh.device_type)
    return model


def _without_memory(make: Callable[[], M]) -> M | None:
    """Returns the model on ``meta``; None if some part of it needs memory."""
    with torch.device("meta"):
        try:
            model = make()
        except Exception:  # If values were not the cause, the next call raises it again.
            return None
    _require_model(model)
    return None if any(each.is_meta for _, each in _unsaved_tensors(model)) else model


def _with_memory(make: Callable[[], M]) -> M:
    """Returns the model with memory except for parameters; raises CaptureError if it is random."""
    found: list[dict[str, torch.Tensor]] = []
    for seed in (1, 0):
        torch.manual_seed(seed)
        model = make()
        _require_model(model)
        found.append(dict(_unsaved_tensors(model)))
    why = "it is drawn at random, and in no state dict: make it a parameter or persistent buffer"
    drawn = [name for name, each in found[1].items() if not _equal(each, found[0].get(name))]
    if drawn:
        raise _refused(model, dict.fromkeys(drawn, why))
    return model


def _require_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise CaptureError(
            f"the constructor returned {type(model).__name__}, not a `torch.nn.Module`"
        )
    lazy = [slot.name for slot in slots_of(model) if is_lazy(slot.tensor)]
    if lazy:
        why = "it has no shape before the model has seen data: use the module that takes its sizes"
        raise _refused(model, dict.fromkeys(lazy, why))


def _refused(model: nn.Module, problems: dict[str, str]) -> CaptureError:
    return CaptureError(f"{type(model).__name__} cannot be made in shards:", problems)


def _equal(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    if b is None or a.is_meta or b.is_meta:
        return b is not None and a.is_meta == b.is_meta
    same = (a.dtype, a.shape) == (b.dtype, b.shape)
    return same and torch.equal(_bytes(a), _bytes(b))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _unsaved_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields tensors of a model that are in no state dict: other buffers, and attributes."""
    slots = slots_of(model)
    held = {id(slot.tensor) for slot in slots if slot.persistent}
    for name, module in model.named_modules():
        dot = "." if name else ""
        own = {k: v for k, v in vars(module).items() if k not in ("_parameters", "_buffers")}
        for key, value in (*module._buffers.items(), *own.items()):
            for tensor in _tensors(value, _DEPTH):
                if id(tensor) not in held:
                    yield f"{name}{dot}{key}", tensor


def _tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, (list, tuple, frozenset)):
        for each in value:
            yield from _tensors(each, depth - 1)
    elif depth and isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each, depth - 1)


def _shard_fully(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shards each layer separately, and then the rest, so that one layer at a time is gathered."""
    from torch.distributed.fsdp import fully_shard

    if mesh.ndim > 2:
        raise MismatchError(
            f"the mesh has {mesh.ndim} dimensions, and fully_shard takes one that shards, after "
            "one that replicates: give a part of the mesh, or in `shard` a function that shards"
        )
    parts = list(_parts(model))
    holders: dict[int, dict[int, None]] = {}  # Parameter → ids of its parts; 0 is the rest.
    within = {id(each): id(part) for part in parts for each in part.modules()}
    for module in model.modules():
        for parameter in module._parameters.values():
            holders.setdefault(id(parameter), {})[within.get(id(module), 0)] = None
    for part in parts:  # A parameter that several parts share is sharded with the rest.
        if all(len(holders[id(parameter)]) == 1 for parameter in part.parameters()):
            fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """Yields the outermost elements of lists and dicts of modules, each once."""
    lists = nn.ModuleList, nn.ModuleDict
    seen: dict[int, None] = {}

    def walk(of: nn.Module) -> Iterator[nn.Module]:
        for child in of.children():
            if not isinstance(of, lists) or isinstance(child, lists):
                yield from walk(child)
            elif id(child) not in seen and any(True for _ in child.parameters()):
                seen[id(child)] = None
                yield child

    return walk(module)
