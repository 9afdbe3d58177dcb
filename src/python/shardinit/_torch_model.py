"""A model's parameters and buffers, filled from a checkpoint or spec, and none forgotten.

What is filled is the state dict, since its names are those of checkpoints. Most of its tensors are
the parameters and buffers themselves, or look at the same memory: they are filled in place. Where
the hooks of a module make others of them, as those that split a fused matrix do, these are filled
and handed to ``load_state_dict``, whose hooks make the parameters of them. Afterwards every
parameter and persistent buffer has been written, or is named.
"""

from __future__ import annotations

import copyreg
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from . import _torch_cpu
from ._checkpoint import Folder, as_source
from ._errors import MismatchError
from ._manifest import StoredTensorInfo
from ._source import Job, Slices, Source, TensorInfo
from ._spec import Sets, Spec, as_spec
from ._torch_names import Inverse, inverses_of, paths_of
from ._torch_tensors import dtype_of, fill_local, whole_shape, why_not_filled

_COMPARE_BYTES = 64 << 20
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class _Keys(NamedTuple):
    missing_keys: list[str]
    unexpected_keys: list[str]


class LoadResult(_Keys):
    """What did not fit when a model was loaded with ``strict=False``.

    Attributes:
        missing_keys: paths that the model has, and the checkpoint has not; and names of parameters
            and buffers that nothing was written to, for whatever other reason.
        unexpected_keys: paths of the checkpoint that the model does not have.
        on_meta: names of parameters and buffers that are on ``meta`` still: they have no memory.
    """

    on_meta: list[str]

    def __new__(cls, missing: list[str], unexpected: list[str], on_meta: list[str]) -> LoadResult:
        """A pair, as ``nn.Module.load_state_dict`` returns it."""
        made = super().__new__(cls, missing, unexpected)
        made.on_meta = on_meta
        return made

    def __repr__(self) -> str:
        return (
            f"LoadResult(missing_keys={self.missing_keys}, "
            f"unexpected_keys={self.unexpected_keys}, on_meta={self.on_meta})"
        )


def load_into(
    model: nn.Module,
    checkpoint: Folder,
    *,
    strict: bool = True,
    prefix: str = "",
    rename: Callable[[str], str] | None = None,
    device: torch.device | str | None = None,
    cast: bool = False,
    verify: bool = False,
) -> LoadResult:
    """Fills the parameters and persistent buffers of a model.

    A tensor that has memory is filled in place. One on ``meta`` gets memory and stays the
    same object, with its attributes and hooks, so that an optimizer which has it trains it;
    what was computed of it before, as ``weight.detach()``, stays on ``meta``. Parameters that
    are tied stay tied, and need only one of their names in the checkpoint. Of a DTensor
    (after ``fully_shard`` or ``parallelize_module``) only the local shard is read. Nothing
    is changed before everything is known to fit.

    Names are those of ``model.state_dict()``. What wrappers add to them (``torch.compile``,
    DistributedDataParallel, ``parametrize`` …) need not be in the checkpoint. Tensors that
    a module's state_dict hooks make of its parameters go through ``load_state_dict``, whose
    hooks turn them back.

    Args:
        model: the model.
        checkpoint: a folder, or a checkpoint or spec that is open.
        strict: that tensors are missing or unexpected, or that nothing is written to one of the
            model, is an error.
        prefix: what stands before the model's names in the checkpoint: ``model.layers.3.``
            to load one layer. Tensors without it are not looked at.
        rename: the model's name of a tensor → its path in the checkpoint, before `prefix`.
        device: where tensors that are on ``meta`` go. None is the default device, and for
            DTensors that of their mesh.
        cast: convert where the model has another dtype; otherwise that is an error.
        verify: check the digests of all boxes that are touched.

    Returns:
        The names of tensors that were missing and unexpected (with ``strict=False``), and in
        `LoadResult.on_meta` of those that still have no memory.

    Raises:
        MismatchError: tensors are missing, unexpected, or have another shape or dtype; it
            names them all. Also for buffers on ``meta`` that are not persistent: no
            checkpoint holds them, and whoever made the model has to compute them. And,
            after the rest is loaded, for what a module's hooks did not write.
        TypeError: `model` is no module.
        NotACheckpointError, FormatError, DamageError: as `Checkpoint.read`.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"load_into() fills a torch.nn.Module, its first argument, not {type(model).__name__}"
        )
    opened = as_source(checkpoint, "shardinit.torch.init_")
    return fill_models([model], opened, strict, prefix, rename, device, cast, verify)[0]


def init_(
    model: nn.Module,
    spec: str | os.PathLike[str] | Spec,
    *,
    set: Sets = (),
    layout: str | None = None,
    strict: bool = True,
    prefix: str = "",
    rename: Callable[[str], str] | None = None,
    device: torch.device | str | None = None,
    cast: bool = False,
) -> LoadResult:
    """Makes the values of the parameters and persistent buffers of a model, without files.

    What `load_into` does with a checkpoint of the spec, bit for bit: a model on ``meta`` gets
    memory, one that has memory is filled in place, and of a DTensor only the local shard is
    made. No process waits for another.

    Args:
        model: the model.
        spec: a YAML file, or a spec that is open.
        set, layout: as for `shardinit.open_spec`; not for a spec that is open.
        strict, prefix, rename, device, cast: as for `load_into`.

    Returns:
        As `load_into`.

    Raises:
        MismatchError: as `load_into`.
        TypeError: `model` is no module, or `spec` no spec.
        SpecError, LibraryError: as `shardinit.open_spec`.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"init_() fills a torch.nn.Module, its first argument, not {type(model).__name__}; "
            "the spec is the second: init_(model, SPEC)"
        )
    opened = as_spec(spec, set, layout, instead="shardinit.torch.load_into")
    _torch_cpu.warn(opened.engine, stacklevel=2)
    return fill_models([model], opened, strict, prefix, rename, device, cast)[0]


# ---- What a model has.


@dataclass(frozen=True)
class Slot:
    """Where a module holds a parameter or buffer."""

    name: str
    module: nn.Module
    key: str
    persistent: bool

    @property
    def tensor(self) -> torch.Tensor:
        parameters = self.module._parameters
        found = parameters.get(self.key) if self.key in parameters else None
        return self.module._buffers[self.key] if found is None else found  # type: ignore[return-value]


@dataclass
class _Entry:
    """A tensor of the state dict, with all of its names.

    Attributes:
        found: those of its names whose paths the source has.
        place: ``held``, a parameter or buffer itself; ``view``, memory of some; ``made``, by a
            hook: memory of its own.
    """

    tensor: torch.Tensor
    names: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    place: str = "made"


def slots_of(model: nn.Module) -> list[Slot]:
    slots = []
    for name, module in model.named_modules():
        dot = "." if name else ""
        for key, parameter in module._parameters.items():
            if parameter is not None:
                slots.append(Slot(f"{name}{dot}{key}", module, key, True))
        for key, buffer in module._buffers.items():
            if buffer is not None:
                persistent = key not in module._non_persistent_buffers_set
                slots.append(Slot(f"{name}{dot}{key}", module, key, persistent))
    return slots


def _is_sharded_tensor(tensor: torch.Tensor) -> bool:
    """Whether it is what FullyShardedDataParallel without a mesh has in state dicts but full ones."""
    return type(tensor).__name__ == "ShardedTensor"


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a DTensor that is here; any other tensor as it is."""
    return getattr(tensor, "_local_tensor", tensor)


def _storage(tensor: torch.Tensor) -> Any:
    """What is equal for tensors that share memory, on ``meta``, too."""
    try:
        return _local(tensor).untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # Of a class that has none.
        return id(tensor)


def _look(tensor: torch.Tensor) -> Any:
    """What is equal for tensors that are one in all but name."""
    local = _local(tensor)
    try:
        where = (local.storage_offset(), local.stride())
    except (NotImplementedError, RuntimeError):
        where = (0, ())
    return _storage(tensor), where, local.shape, tensor.shape, tensor.dtype


def _entries(
    tensors: Mapping[str, torch.Tensor],
    paths: Mapping[str, str],
    source: Source,
    slots: list[Slot],
) -> list[_Entry]:
    held = {id(slot.tensor) for slot in slots}
    storages = {
        _storage(slot.tensor): slot.tensor.element_size()
        for slot in slots
        if not slot.tensor.is_meta
    }
    entries: dict[Any, _Entry] = {}
    for name, tensor in tensors.items():
        entry = entries.setdefault(_look(tensor), _Entry(tensor))
        entry.names.append(name)
        if paths[name] in source.tensors:
            entry.found.append(name)
        if id(tensor) in held:
            entry.tensor, entry.place = tensor, "held"
        elif entry.place == "made" and storages.get(_storage(tensor)) == tensor.element_size():
            strides = zip(_local(tensor).stride(), tensor.shape, strict=True)
            if all(stride or size < 2 for stride, size in strides):
                entry.place = "view"
    return list(entries.values())


def _written_in_place(slots: list[Slot], entries: list[_Entry]) -> tuple[set[int], list[str]]:
    """Ids of the tensors of slots that `entries` fill wholly; names of those that overlap."""
    views: dict[int, list[_Entry]] = {}
    for entry in entries:
        if entry.place == "view" and entry.found:
            views.setdefault(_storage(entry.tensor), []).append(entry)
    whole = {id(entry.tensor) for entry in entries if entry.place == "held" and entry.found}
    overlapping = []
    done: dict[int, torch.Tensor] = {}  # Storage → which of its elements are filled.
    for storage, among in views.items():
        for entry in among:
            local = _local(entry.tensor)
            size = local.untyped_storage().nbytes() // local.element_size()
            mask = done.setdefault(storage, torch.zeros(size, dtype=torch.bool, device="cpu"))
            part = mask.as_strided(local.shape, local.stride(), local.storage_offset())
            if part.any():
                overlapping.append(entry.found[0])
            part.fill_(True)
    for slot in slots:
        local = _local(slot.tensor)
        mask_or_none = done.get(_storage(slot.tensor))
        if mask_or_none is not None:
            part = mask_or_none.as_strided(local.shape, local.stride(), local.storage_offset())
            if id(slot.tensor) in whole and part.any():
                overlapping.append(slot.name)
            if part.all():
                whole.add(id(slot.tensor))
    return whole, overlapping


# ---- Loading.


class _Loading:
    """One call of `load_into`: what is to be filled, from where; then filled."""

    def __init__(
        self,
        model: nn.Module,
        source: Source,
        prefix: str,
        rename: Callable[[str], str] | None,
        cast: bool,
    ) -> None:
        self.model, self.source, self.prefix, self.cast = model, source, prefix, cast
        self.slots = slots_of(model)
        lazy = [prefix + slot.name for slot in self.slots if is_lazy(slot.tensor)]
        if lazy:
            raise MismatchError(
                f"cannot load {source.where} into {type(model).__name__}",
                mismatching=dict.fromkeys(lazy, "is not initialized: run the model once"),
            )
        with torch.no_grad():
            self.state = model.state_dict(keep_vars=True)
        tensors = {n: each for n, each in self.state.items() if isinstance(each, torch.Tensor)}
        sharded = [prefix + name for name, each in tensors.items() if _is_sharded_tensor(each)]
        if sharded:
            raise MismatchError(
                f"cannot load {source.where} into {type(model).__name__}",
                mismatching=dict.fromkeys(sharded, "is a ShardedTensor in its state_dict()"),
                hint="load in a block of FullyShardedDataParallel.state_dict_type(model, "
                "StateDictType.FULL_STATE_DICT), or give FullyShardedDataParallel a device_mesh, "
                "with which they are DTensors",
            )
        self.paths = paths_of(tensors, source.tensors, prefix, rename)
        self.inverses = (
            inverses_of(model, tensors, self.paths, source.tensors) if rename is None else []
        )
        for inverse in self.inverses:
            for name in inverse.names:
                del tensors[name]
        self.entries = _entries(tensors, self.paths, source, self.slots)
        whole, self.overlapping = _written_in_place(self.slots, self.entries)
        whole |= {id(original) for inverse in self.inverses for original in inverse.originals}
        # Their paths are missing, so that their names need not be told.
        whole |= {id(e.tensor) for e in self.entries if e.place == "held" and not e.found}
        self.by_hooks = any(each.place == "made" and each.found for each in self.entries)
        # What no entry fills: hooks of load_state_dict may, and else nothing does.
        self.rest = [s for s in self.slots if s.persistent and id(s.tensor) not in whole]

    def check(self, strict: bool) -> tuple[list[str], list[str]]:
        """Missing and unexpected paths, unless they, or anything else, are an error."""
        missing, mismatching = _misfits(self.entries, self.paths, self.source, self.cast)
        for inverse in self.inverses:
            why = _dtype_mismatch(inverse.originals[0], self.source, inverse.path, self.cast)
            if why:
                mismatching[inverse.path] = why
        for name in self.overlapping:
            mismatching[self.prefix + name] = "shares a part of its memory with another tensor"
        known = set(self.paths.values())
        unexpected = [
            p for p in self.source.tensors if p.startswith(self.prefix) and p not in known
        ]
        forgotten = [] if self.by_hooks else [self.prefix + slot.name for slot in self.rest]
        computed = [
            self.prefix + s.name for s in self.slots if not s.persistent and s.tensor.is_meta
        ]
        missing += forgotten + computed
        if mismatching or (strict and (missing or unexpected)):
            hint = ""
            if computed:
                hint = (
                    f"no {self.source.noun} holds buffers that are not persistent: make the "
                    f"modules of {_listed(computed)} on a real device before loading, as "
                    "shardinit.torch.from_spec() does, or load with strict=False and compute them"
                )
            elif forgotten:
                hint = (
                    f"state_dict() leaves out {_listed(forgotten)}, so no {self.source.noun} can "
                    "fill them: load with strict=False and fill them yourself"
                )
            raise MismatchError(
                f"cannot load {self.source.where} into {type(self.model).__name__}",
                missing,
                unexpected,
                mismatching,
                hint,
                self.source.noun,
            )
        return missing, unexpected

    def fill(
        self,
        device: torch.device | str | None,
        verify: bool,
        devices: Mapping[torch.Tensor, torch.device],
    ) -> list[str]:
        """Fills everything, and returns the names of what nothing was written to after all."""
        wanted = [each.tensor for each in self.entries if each.found]
        wanted += [original for inverse in self.inverses for original in inverse.originals]
        wanted += [slot.tensor for slot in self.rest if self.by_hooks]
        held = {id(slot.tensor) for slot in self.slots}
        fresh: dict[int, torch.Tensor] = {}
        for tensor in wanted:
            if tensor.is_meta and id(tensor) not in fresh:
                made = _materialize(tensor, devices.get(tensor, device))
                fresh[id(tensor)] = _moved(tensor, made) if id(tensor) in held else made
        self._replace(fresh)
        given: dict[str, torch.Tensor] = {}
        jobs: list[Job] = []
        for entry in self.entries:
            if not entry.found:
                continue
            tensor = fresh.get(id(entry.tensor), entry.tensor)
            jobs += fill_local(self.source, self.paths[entry.found[0]], tensor, verify)
            if entry.place != "view" or self.by_hooks:
                given.update(
                    dict.fromkeys(entry.names, tensor if entry.place == "held" else tensor.detach())
                )
        self.source.run(jobs)
        for inverse in self.inverses:
            self._fill_inverse(inverse, fresh, verify)
        if not self.by_hooks:
            if fresh:  # For the hooks of those who must know that parameters are others now.
                self._hand_over(given, assign=True)
            return []
        before = [(slot, slot.tensor, _version(slot.tensor)) for slot in self.rest]
        self._hand_over(given, assign=False)
        same = [s for s, tensor, v in before if s.tensor is tensor and _version(tensor) == v]
        was_meta = {id(tensor) for tensor in fresh.values()}
        # Never memory with nothing in it.
        empty = {id(s.tensor): s.tensor for s in same if id(s.tensor) in was_meta}
        self._replace({key: _moved(t, _materialize(t, "meta")) for key, t in empty.items()})
        return [self.prefix + slot.name for slot in same]

    def _replace(self, fresh: Mapping[int, torch.Tensor]) -> None:
        for slot in self.slots:
            tensor = fresh.get(id(slot.tensor), slot.tensor)
            if tensor is not slot.tensor:
                setattr(slot.module, slot.key, tensor)

    def _hand_over(self, given: dict[str, torch.Tensor], assign: bool) -> None:
        whole = type(self.state)(given)
        whole._metadata = self.state._metadata  # type: ignore[attr-defined]
        try:
            self.model.load_state_dict(whole, strict=False, assign=assign)
        except RuntimeError as error:
            raise MismatchError(
                f"cannot load {self.source.where} into {type(self.model).__name__}: its "
                f"load_state_dict hooks and parameters do not fit; what they wrote is not "
                f"complete\n{error}"
            ) from error

    def _fill_inverse(
        self, inverse: Inverse, fresh: Mapping[int, torch.Tensor], verify: bool
    ) -> None:
        info = self.source.info(inverse.path)
        targets = [fresh.get(id(each), each) for each in inverse.originals]
        value = torch.empty(info.global_shape, dtype=dtype_of(info), device="cpu")
        self.source.run(fill_local(self.source, inverse.path, value, verify))
        with torch.no_grad():
            stored = inverse.apply(value.to(targets[0]))
            shapes = [list(each.shape) for each in stored], [list(each.shape) for each in targets]
            if shapes[0] != shapes[1]:
                raise MismatchError(
                    f"cannot load {self.source.where} into {type(self.model).__name__}",
                    mismatching={
                        inverse.path: f"{shapes[0]} by right_inverse of its parametrization, "
                        f"{shapes[1]} here"
                    },
                )
            for target, each in zip(targets, stored, strict=True):
                target.copy_(each)


def fill_models(
    models: Sequence[nn.Module],
    source: Source,
    strict: bool,
    prefix: str = "",
    rename: Callable[[str], str] | None = None,
    device: torch.device | str | None = None,
    cast: bool = False,
    verify: bool = False,
    devices: Mapping[torch.Tensor, torch.device] | None = None,
    places: Sequence[str] = ("",),
) -> list[LoadResult]:
    """`load_into` of several models: nothing is changed before everything fits all of them.

    Of a tensor on ``meta`` that is in `devices`, this is where it goes, and not `device`. What
    stands in `places` goes before the names of the model, whatever `prefix` and `rename` are.
    """
    loadings = [
        _Loading(model, source, prefix + place, rename, cast)
        if rename is None
        else _Loading(model, source, prefix, partial(_renamed, rename, place), cast)
        for model, place in zip(models, places, strict=True)
    ]
    misfits = [loading.check(strict) for loading in loadings]
    results = []
    for loading, (missing, unexpected) in zip(loadings, misfits, strict=True):
        forgotten = loading.fill(device, verify, devices or {})
        if strict and forgotten:
            raise MismatchError(
                f"loaded {source.where} into {type(loading.model).__name__}, but not all of it",
                forgotten,
                hint="no load_state_dict hook of the model makes them of the tensors of its "
                "state_dict(): add one, or load with strict=False and fill them yourself",
                noun=source.noun,
            )
        on_meta = [slot.name for slot in slots_of(loading.model) if slot.tensor.is_meta]
        results.append(LoadResult(missing + forgotten, unexpected, on_meta))
    return results


def _renamed(rename: Callable[[str], str], place: str, name: str) -> str:
    return rename(place + name)


def _misfits(
    entries: list[_Entry], paths: Mapping[str, str], source: Source, cast: bool
) -> tuple[list[str], dict[str, str]]:
    """Paths that are missing; path → what differs."""
    missing: list[str] = []
    mismatching: dict[str, str] = {}
    for entry in entries:
        if not entry.found:
            missing += [paths[name] for name in entry.names]
        for name in entry.found:
            info = source.info(paths[name])
            why = why_not_filled(entry.tensor)
            why = why or _dtype_mismatch(entry.tensor, source, info.path, cast)
            if whole_shape(entry.tensor) != info.global_shape:
                there, here = list(info.global_shape), list(whole_shape(entry.tensor))
                why = f"shape {there} in the {source.noun}, {here} here"
            if not why and name != entry.found[0]:
                why = _tied_mismatch(source, paths[entry.found[0]], info.path)
            if why:
                mismatching[info.path] = why
    return missing, mismatching


def _dtype_mismatch(tensor: torch.Tensor, source: Source, path: str, cast: bool) -> str:
    info = source.info(path)
    if tensor.dtype == dtype_of(info) or cast:
        return ""
    return f"dtype {info.dtype} in the {source.noun}, {tensor.dtype} here"


def _version(tensor: torch.Tensor) -> Any:
    """What is another number after the tensor, or its local part, was written to."""
    if tensor.is_inference():
        return object()  # Not counted: taken as written.
    return tensor._version, _local(tensor)._version


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _materialize(tensor: torch.Tensor, device: torch.device | str | None) -> torch.Tensor:
    """A tensor like this one of `meta`, with memory that holds nothing yet."""
    mesh = getattr(tensor, "device_mesh", None)
    if device is None:
        device = torch.get_default_device() if mesh is None else mesh.device_type
    empty = torch.empty_like(tensor.detach(), device=device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def _moved(tensor: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    """`tensor`, with the memory of `fresh`; or `fresh` with its attributes, if that cannot be.

    As ``torch.utils.swap_tensors``, which refuses where anything looks at the tensor: its views
    keep the memory of before, and weak references, as a LSTM has, are to the same object anyway.
    """
    by_subclass = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if by_subclass and type(tensor) is not type(fresh):
        return _with_attributes(fresh, tensor)
    hooks = {name: getattr(tensor, name, None) for name in _HOOKS}
    try:
        torch._C._swap_tensor_impl(tensor, fresh)
    except RuntimeError:  # C++ has weak references to it.
        return _with_attributes(fresh, tensor)
    for name in copyreg._slotnames(type(fresh)) if by_subclass else ():  # type: ignore[attr-defined]
        if hasattr(fresh, name):
            setattr(tensor, name, getattr(fresh, name))
    tensor.__dict__.update(fresh.__dict__)
    for name, value in hooks.items():
        if value is not None:
            setattr(tensor, name, value)
    return tensor


def _with_attributes(fresh: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    for name, value in tensor.__dict__.items():
        fresh.__dict__.setdefault(name, value)
    return fresh


def _tied_mismatch(source: Source, first: str, second: str) -> str:
    """One tensor of the model cannot hold two of the source, unless they are the same."""
    a, b = source.info(first), source.info(second)
    if (a.dtype, a.global_shape) == (b.dtype, b.global_shape):
        if isinstance(a, StoredTensorInfo) and a.shards == getattr(b, "shards", None):
            return ""  # By their digests.
        if all(_same_bits(source, first, second, rows) for rows in _blocks_of_rows(a)):
            return ""
    return f"is tied to `{first}`, but has other values"


def _same_bits(source: Source, first: str, second: str, slices: Slices) -> bool:
    a, b = source.read(first, slices), source.read(second, slices)
    bits = f"<u{a.dtype.itemsize}"
    return np.array_equal(a.view(bits), b.view(bits))


def _blocks_of_rows(info: TensorInfo) -> Iterator[Slices]:
    """Slices that are a tensor together, none of them large."""
    if not info.size or not info.global_shape:
        yield None
        return
    rows = info.global_shape[0]
    step = max(1, _COMPARE_BYTES * rows // info.nbytes)
    for start in range(0, rows, step):
        yield slice(start, start + step)
