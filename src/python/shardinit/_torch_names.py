"""Finds the path in a checkpoint of each tensor of a state dict, including wrapped modules.

``torch.compile``, DistributedDataParallel, FullyShardedDataParallel, activation checkpointing and
``torch.nn.utils.parametrize`` insert parts into the names of a model. A name is looked up first
unchanged, and then without these parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

# ``module`` can also be a name in the model, so it is removed last.
_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


class Inverse(NamedTuple):
    """A parametrized tensor whose stored form is a function of its value.

    Attributes:
        path: the path of the value in the checkpoint.
        names: the stored tensors' names in the state dict: ``….original`` or ``….original0`` …
        originals: the stored tensors.
        of: their parametrizations.
    """

    path: str
    names: list[str]
    originals: list[torch.Tensor]
    of: ParametrizationList

    def apply(self, value: torch.Tensor) -> list[torch.Tensor]:
        """Returns the tensors to store for a value, by the rule of ``register_parametrization``."""
        stored: Any = value
        for parametrization in reversed(self.of):
            inverse: Any = getattr(parametrization, "right_inverse", None)
            stored = inverse(stored) if inverse else stored  # The default is the identity.
        return [stored] if isinstance(stored, torch.Tensor) else list(stored)


def paths_of(
    names: Iterable[str],
    known: Mapping[str, Any],
    prefix: str,
    place: str,
    rename: Callable[[str], str] | None,
) -> dict[str, str]:
    """Returns the path of each name: by `rename`, or by removing wrappers until it is known."""
    if rename is not None:
        return {name: prefix + rename(place + name) for name in names}
    paths = {name: prefix + name for name in names}
    taken = {path for path in paths.values() if path in known}
    for name, path in paths.items():
        if path in known:
            continue
        plain = without_wrappers(name)
        for candidate in (prefix + plain, prefix + _without(plain, {"module"})):
            if candidate in known and candidate not in taken:
                paths[name] = candidate
                break
        else:
            paths[name] = prefix + plain
    return paths


def without_wrappers(name: str) -> str:
    """Returns a name without the parts that certainly come from wrappers."""
    return _without(name, _WRAPPERS)


def _without(name: str, wrappers: set[str]) -> str:
    parts = [part for part in name.split(".") if part not in wrappers]
    if len(parts) > 2 and parts[-3] == "parametrizations" and parts[-1].startswith("original"):
        parts[-3:] = [parts[-2]]
    return ".".join(parts)


def inverses_of(
    model: nn.Module,
    tensors: Mapping[str, torch.Tensor],
    paths: Mapping[str, str],
    known: Mapping[str, Any],
) -> list[Inverse]:
    """Returns the parametrized tensors of a model that cannot be filled directly.

    They have a ``right_inverse``, and the source has their value, but not their stored form.
    """
    found = []
    name_of = {id(tensor): name for name, tensor in tensors.items()}
    for module in model.modules():
        if not isinstance(module, ParametrizationList):
            continue
        originals: list[torch.Tensor] = [*module.parameters(False), *module.buffers(False)]
        names = [name_of.get(id(original), "") for original in originals]
        if "" in names or not any(hasattr(each, "right_inverse") for each in module):
            continue
        path = paths[names[0]]
        if path in known and path.rpartition(".")[2] != names[0].rpartition(".")[2]:
            found.append(Inverse(path, names, originals, module))
    return found
