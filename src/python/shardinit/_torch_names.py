"""Finds for each tensor of a state dict its path in a checkpoint, wrapped modules included.

``torch.compile``, DistributedDataParallel, FullyShardedDataParallel, activation checkpointing and
``torch.nn.utils.parametrize`` put names of their own between those of the model. A name is looked
for first as it is, and then without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

# ``module`` alone can also be a model's own name, so it is the last to be left out.
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
        """The tensors to store for a value, by the rule of ``register_parametrization``."""
        stored: Any = value
        for parametrization in reversed(self.of):
            inverse: Any = getattr(parametrization, "right_inverse", None)
            stored = inverse(stored) if inverse else stored  # Without one it is the identity.
        return [stored] if isinstance(stored, torch.Tensor) else list(stored)


def paths_of(
    names: Iterable[str],
    known: Mapping[str, Any],
    prefix: str,
    place: str,
    rename: Callable[[str], str] | None,
) -> dict[str, str]:
    """The path of each name: by `rename`, or by leaving out wrappers until the path is known."""
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
    """A name without the parts that certainly come from wrappers."""
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
    """The parametrized tensors of a model that cannot be filled as they are.

    They have a ``right_inverse``, and the source has their value, but not what is stored for it.
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
