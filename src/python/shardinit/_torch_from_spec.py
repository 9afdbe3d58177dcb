"""Constructs models without memory for their parameters, and then fills them."""

from __future__ import annotations

import contextlib
import copy
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from . import _torch_cpu
from ._errors import MismatchError
from ._spec import AnySpec, Sets, Spec, as_spec
from ._torch_loading import LoadResult, fill_models
from ._torch_names import without_wrappers
from ._torch_slots import slots_of

_ZERO_INIT = "deepspeed.runtime.zero.partition_parameters"


@dataclass
class Built:
    """The models that were constructed in a block of `from_spec`.

    Attributes:
        results: model → the result of `init_` for it, after the block has ended.
    """

    results: dict[nn.Module, LoadResult] = field(default_factory=dict, repr=False)


@contextlib.contextmanager
def from_spec(
    spec: AnySpec,
    *,
    set: Sets = (),
    layout: str | None = None,
    strict: bool = True,
    prefix: str = "",
    rename: Callable[[str], str] | None = None,
    device: torch.device | str | None = None,
    cast: bool = False,
) -> Iterator[Built]:
    """Constructs models without memory in a block, and fills them at its end.

        with shardinit.torch.from_spec(SPEC):
            model = Model(config)
            fully_shard(model)

    Parameters that are created in the block are on ``meta``: a constructor draws and stores nothing
    for them. Buffers are created as usual, so buffers that are in no state dict have their values.
    Every top-level module created inside the block counts as a model, if it has parameters or
    persistent buffers. At the end of the block, `init_` fills each model. If ``fully_shard`` or
    ``parallelize_module`` has sharded a model, only this process's shards are filled. In a block of
    ``deepspeed.zero.Init``, inside or around, only the process's partition is filled.

    Parameters stay the same objects, with their attributes and hooks: an optimizer that is created
    in the block trains them. Tensors that are computed from them in the block stay on ``meta``, and
    operations that need their values fail. Do these after the block: ``.item()``, or wrapping the
    model in DistributedDataParallel, which compares parameters between processes.

    If the block raises, nothing is filled. Other threads are not affected. A top-level module that
    ``copy.deepcopy`` copied from a module of the block gets the same values as its original. So a
    copy of a layer has the layer's values, as long as the layer's model still exists.

    Args:
        spec: a YAML file, a mapping as for `shardinit.open_spec`, or an open spec.
        set, layout: as for `shardinit.open_spec`; not for an open spec.
        strict, prefix, rename, cast: as for `load_into`.
        device: the device on which the block creates tensors, as with ``torch.device(device)``, and
            on which the filled parameters are. None leaves this to the constructor. DTensors are on
            their mesh.

    Yields:
        A `Built`.

    Raises:
        MismatchError: as for `load_into`, for any of the models, and then none is filled; or no
            model was created in the block.
        RuntimeError: the thread is already in such a block.
        TypeError: `spec` is not a spec.
        SpecError, LibraryError: as for `shardinit.open_spec`.
    """
    opened = as_spec(spec, set, layout, instead="shardinit.torch.load_into")
    _torch_cpu.warn(opened.engine, stacklevel=3)  # The level in between is contextlib's.
    block = _Block(None if device is None else torch.device(device))
    built = Built()
    with _entered(block), contextlib.nullcontext() if device is None else torch.device(device):
        yield built
    built.results.update(block.fill(opened, strict, prefix, rename, cast))


class _Block:
    """The state of a running block.

    Attributes:
        device: the user's device, or else the device of the first parameter.
        devices: parameter → its intended device, unless the user gave one. It keeps parameters
            alive, since a tensor with weak references cannot be swapped.
        copying: whether a parameter is being copied.
    """

    def __init__(self, device: torch.device | None) -> None:
        self.device = device
        self.devices: dict[torch.Tensor, torch.device] = {}
        self.copying = False
        self._said = device is not None
        self._made: dict[int, weakref.ref[nn.Module]] = {}
        self._copied: dict[int, weakref.ref[nn.Module]] = {}  # Keys are ids of the copies.

    def add(self, module: nn.Module) -> None:
        for known in (self._made, self._copied):
            known.pop(id(module), None)  # A deleted module may have had this id.
        self._made[id(module)] = weakref.ref(module)

    def copy(self, module: nn.Module, made: nn.Module) -> None:
        known = self._made.get(id(module))
        if known is not None and known() is module:
            self.add(made)
            self._copied[id(made)] = weakref.ref(module)

    def place(self, model: nn.Module, models: list[nn.Module]) -> str:
        """Returns the prefix of a model's names, if it is a copy of a part of another model."""
        copied = self._copied.get(id(model))
        source = None if copied is None else copied()
        for other in models if source is not None else ():
            for name, module in other.named_modules():
                if module is source:
                    within = without_wrappers(name)
                    return self.place(other, models) + (f"{within}." if within else "")
        return ""

    def fill(
        self,
        spec: Spec,
        strict: bool,
        prefix: str,
        rename: Callable[[str], str] | None,
        cast: bool,
    ) -> dict[nn.Module, LoadResult]:
        models = self.models()
        if not models:
            raise MismatchError(
                f"nothing was filled from {spec.where}",
                hint="its block made no model that is still there: call the constructor in it",
            )
        places = [self.place(model, models) for model in models]
        # The device is not passed on, since DTensors are on the device of their mesh.
        with contextlib.nullcontext() if self.device is None else self.device:
            results = fill_models(
                models, spec, strict, prefix, rename, None, cast,
                devices=self.devices, places=places,
            )  # fmt: skip
        return dict(zip(models, results, strict=True))

    def parameter(self, made: torch.Tensor, device: torch.device) -> None:
        if not self._said:
            self.device = self.device or device
            self.devices[made] = device

    def models(self) -> list[nn.Module]:
        """Returns the top-level modules of the block that have something to fill."""
        if len(self._outermost()) > 1:
            gc.collect()  # A discarded module does not count as a model.
        return self._outermost()

    def _outermost(self) -> list[nn.Module]:
        made = [module for each in self._made.values() if (module := each()) is not None]
        inner: set[int] = set()
        for module in made:
            if id(module) not in inner:
                inner.update(id(each) for each in module.modules() if each is not module)
        return [m for m in made if id(m) not in inner and any(s.persistent for s in slots_of(m))]


# ---- Patches PyTorch's constructors while a thread is in a block.

_blocks: dict[int, _Block] = {}  # Keys are threads.
_lock = threading.Lock()
_plain: dict[str, Any] = {}


@contextlib.contextmanager
def _entered(block: _Block) -> Iterator[None]:
    thread = threading.get_ident()
    if thread in _blocks:
        raise RuntimeError("a block of from_spec() is in another one: a model has one spec")
    with _lock:
        if not _blocks:
            _plain["init"] = nn.Module.__init__
            _plain["new"] = nn.Parameter.__dict__["__new__"]
            nn.Module.__init__ = _init  # type: ignore[method-assign]
            nn.Parameter.__new__ = _new  # type: ignore[method-assign]
            _plain["copy"] = nn.Parameter.__deepcopy__
            nn.Parameter.__deepcopy__ = _copy  # type: ignore[method-assign, assignment]
            nn.Module.__deepcopy__ = _copy_module  # type: ignore[attr-defined]
        _blocks[thread] = block
    try:
        yield
    finally:
        with _lock:
            del _blocks[thread]
            if not _blocks:
                nn.Module.__init__ = _plain["init"]  # type: ignore[method-assign]
                nn.Parameter.__new__ = _plain["new"]  # type: ignore[method-assign]
                nn.Parameter.__deepcopy__ = _plain["copy"]  # type: ignore[method-assign]
                del nn.Module.__deepcopy__  # type: ignore[attr-defined]


def _init(self: nn.Module, *arguments: Any, **options: Any) -> None:
    _plain["init"](self, *arguments, **options)
    block = _blocks.get(threading.get_ident())
    if block is not None:
        block.add(self)


def _new(cls: type, data: Any = None, *arguments: Any, **options: Any) -> Any:
    block = _blocks.get(threading.get_ident())
    plain = cls is nn.Parameter and type(data) in (torch.Tensor, nn.Parameter)
    zero = sys.modules.get(_ZERO_INIT)  # DeepSpeed partitions new parameters, which need memory.
    in_zero = zero is not None and zero.zero_init_context > 0
    if block is None or block.copying or not plain or data.is_meta or in_zero:
        return _plain["new"].__func__(cls, data, *arguments, **options)
    empty = torch.empty_like(data, device="meta")
    made = _plain["new"].__func__(cls, empty, *arguments, **options)
    block.parameter(made, data.device)
    return made


def _copy(self: nn.Parameter, memo: dict[int, Any]) -> Any:
    block = _blocks.get(threading.get_ident())
    if block is None:
        return _plain["copy"](self, memo)
    block.copying = True  # A copy has values, so it does not come from a constructor.
    try:
        made = _plain["copy"](self, memo)
    finally:
        block.copying = False
    if self in block.devices:
        block.parameter(made, block.devices[self])
    return made


def _copy_module(self: nn.Module, memo: dict[int, Any]) -> Any:
    """Copies a module as ``copy.deepcopy`` does if a class has no method for it."""
    made = copy._reconstruct(self, memo, *self.__reduce_ex__(4))  # type: ignore[attr-defined]
    block = _blocks.get(threading.get_ident())
    if block is not None:
        block.copy(self, made)
    return made
