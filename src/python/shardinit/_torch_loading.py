"""Implements `load_into`: finds what to fill in a model, and from where; reports mismatches; fills.

The state dict is filled, since its names are the names in checkpoints. Most of its tensors are the
parameters and buffers themselves, or share their memory, and are filled in place. If hooks of a
module create other tensors, for example to split a fused matrix, these are filled and passed to
``load_state_dict``, whose hooks convert them to parameters. Afterwards every parameter and
persistent buffer has been written, or is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ._boxes import StoredTensorInfo
from ._errors import MismatchError
from ._source import Job, Slices, Source, TensorInfo
from ._torch_names import Inverse, inverses_of, paths_of
from ._torch_slots import (
    Entry,
    entries_of,
    is_sharded_tensor,
    materialize,
    moved,
    slots_of,
    version,
    written_in_place,
)
from ._torch_tensors import dtype_of, fill_local, whole_shape, why_not_filled

_COMPARE_BYTES = 64 << 20


class _Keys(NamedTuple):
    missing_keys: list[str]
    unexpected_keys: list[str]


class LoadResult(_Keys):
    """The tensors that did not fit when a model was loaded with ``strict=False``.

    Attributes:
        missing_keys: paths of the model that are not in the checkpoint; also names of parameters
            and buffers that were not written, for any other reason.
        unexpected_keys: paths of the checkpoint that the model does not have.
        on_meta: names of parameters and buffers that are still on ``meta``, without memory.
    """

    on_meta: list[str]

    def __new__(cls, missing: list[str], unexpected: list[str], on_meta: list[str]) -> LoadResult:
        """Returns a pair, as ``nn.Module.load_state_dict`` does."""
        made = super().__new__(cls, missing, unexpected)
        made.on_meta = on_meta
        return made

    def __repr__(self) -> str:
        return (
            f"LoadResult(missing_keys={self.missing_keys}, "
            f"unexpected_keys={self.unexpected_keys}, on_meta={self.on_meta})"
        )


class _Loading:
    """Loads one model: first finds what to fill and from where, then fills it."""

    def __init__(
        self,
        model: nn.Module,
        source: Source,
        prefix: str,
        place: str,
        rename: Callable[[str], str] | None,
        cast: bool,
    ) -> None:
        if rename is None:
            prefix, place = prefix + place, ""
        self.model, self.source, self.prefix, self.cast = model, source, prefix, cast
        self.failed = f"cannot load {source.where} into {type(model).__name__}"
        self.slots = slots_of(model)
        lazy = [prefix + slot.name for slot in self.slots if is_lazy(slot.tensor)]
        if lazy:
            why = "is not initialized: run the model once"
            raise MismatchError(self.failed, mismatching=dict.fromkeys(lazy, why))
        with torch.no_grad():
            self.state = model.state_dict(keep_vars=True)
        tensors = {n: each for n, each in self.state.items() if isinstance(each, torch.Tensor)}
        sharded = [prefix + name for name, each in tensors.items() if is_sharded_tensor(each)]
        if sharded:
            raise MismatchError(
                self.failed,
                mismatching=dict.fromkeys(sharded, "is a ShardedTensor in its state_dict()"),
                hint="load in a block of FullyShardedDataParallel.state_dict_type(model, "
                "StateDictType.FULL_STATE_DICT), or give FullyShardedDataParallel a device_mesh, "
                "with which they are DTensors",
            )
        self.paths = paths_of(tensors, source.tensors, prefix, place, rename)
        self.inverses = (
            inverses_of(model, tensors, self.paths, source.tensors) if rename is None else []
        )
        for inverse in self.inverses:
            for name in inverse.names:
                del tensors[name]
        self.entries = entries_of(tensors, self.paths, source, self.slots)
        whole, self.overlapping = written_in_place(self.slots, self.entries)
        whole |= {id(original) for inverse in self.inverses for original in inverse.originals}
        # The paths of these are reported as missing, so their names need not be reported.
        whole |= {id(e.tensor) for e in self.entries if e.place == "held" and not e.found}
        self.by_hooks = any(each.place == "made" and each.found for each in self.entries)
        # No entry fills these. Hooks of load_state_dict may fill them; otherwise nothing does.
        self.rest = [s for s in self.slots if s.persistent and id(s.tensor) not in whole]

    def check(self, strict: bool) -> tuple[list[str], list[str]]:
        """Returns missing and unexpected paths; raises MismatchError if anything is an error."""
        missing, mismatching = _misfits(self.entries, self.paths, self.source, self.cast)
        for inverse in self.inverses:
            why = _dtype_mismatch(inverse.originals[0], self.source, inverse.path, self.cast)
            if why:
                mismatching[inverse.path] = why
        for name in self.overlapping:
            mismatching[self.prefix + name] = "shares a part of its memory with another tensor"
        known, prefix = set(self.paths.values()), self.prefix
        unexpected = [p for p in self.source.tensors if p.startswith(prefix) and p not in known]
        forgotten = [] if self.by_hooks else [prefix + slot.name for slot in self.rest]
        computed = [prefix + s.name for s in self.slots if not s.persistent and s.tensor.is_meta]
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
            noun = self.source.noun
            raise MismatchError(self.failed, missing, unexpected, mismatching, hint, noun)
        return missing, unexpected

    def fill(
        self,
        device: torch.device | str | None,
        verify: bool,
        devices: Mapping[torch.Tensor, torch.device],
    ) -> list[str]:
        """Fills all tensors, and returns the names of tensors that were still not written."""
        wanted = [each.tensor for each in self.entries if each.found]
        wanted += [original for inverse in self.inverses for original in inverse.originals]
        wanted += [slot.tensor for slot in self.rest if self.by_hooks]
        held = {id(slot.tensor) for slot in self.slots}
        fresh: dict[int, torch.Tensor] = {}
        for tensor in wanted:
            if tensor.is_meta and id(tensor) not in fresh:
                made = materialize(tensor, devices.get(tensor, device))
                fresh[id(tensor)] = moved(tensor, made) if id(tensor) in held else made
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
            if fresh:  # Some hooks must be notified that parameters have been replaced.
                self._hand_over(given, assign=True)
            return []
        before = [(slot, slot.tensor, version(slot.tensor)) for slot in self.rest]
        self._hand_over(given, assign=False)
        same = [s for s, tensor, v in before if s.tensor is tensor and version(tensor) == v]
        was_meta = {id(tensor) for tensor in fresh.values()}
        # No parameter keeps memory that was never written.
        empty = {id(s.tensor): s.tensor for s in same if id(s.tensor) in was_meta}
        self._replace({key: moved(t, materialize(t, "meta")) for key, t in empty.items()})
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
                f"{self.failed}: its load_state_dict hooks and parameters do not fit; what they "
                f"wrote is not complete\n{error}"
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
                why = f"{shapes[0]} by right_inverse of its parametrization, {shapes[1]} here"
                raise MismatchError(self.failed, mismatching={inverse.path: why})
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
    """Implements `load_into` for several models; changes nothing before everything fits.

    Args:
        devices: tensor on ``meta`` → its new device; `device` is for all others.
        places: for each model, the prefix of its names, in addition to `prefix` and `rename`.
    """
    loadings = [
        _Loading(model, source, prefix, place, rename, cast)
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


def _misfits(
    entries: list[Entry], paths: Mapping[str, str], source: Source, cast: bool
) -> tuple[list[str], dict[str, str]]:
    """Returns the missing paths, and for other paths what differs."""
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


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _tied_mismatch(source: Source, first: str, second: str) -> str:
    """Returns why one tensor of the model cannot hold two of the source; "" if they are equal."""
    a, b = source.info(first), source.info(second)
    if (a.dtype, a.global_shape) == (b.dtype, b.global_shape):
        if isinstance(a, StoredTensorInfo) and a.shards == getattr(b, "shards", None):
            return ""  # The digests of both are equal.
        if all(_same_bits(source, first, second, rows) for rows in _blocks_of_rows(a)):
            return ""
    return f"is tied to `{first}`, but has other values"


def _same_bits(source: Source, first: str, second: str, slices: Slices) -> bool:
    a, b = source.read(first, slices), source.read(second, slices)
    bits = f"<u{a.dtype.itemsize}"
    return np.array_equal(a.view(bits), b.view(bits))


def _blocks_of_rows(info: TensorInfo) -> Iterator[Slices]:
    """Yields small slices that together cover a tensor."""
    if not info.size or not info.global_shape:
        yield None
        return
    rows = info.global_shape[0]
    step = max(1, _COMPARE_BYTES * rows // info.nbytes)
    for start in range(0, rows, step):
        yield slice(start, start + step)
