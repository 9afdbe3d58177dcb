"""Pytrees of JAX: the names of their leaves, and the shardings that leaves have."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, Sharding

from ._errors import MismatchError


def streams_of(tree: Any) -> frozenset[str]:
    """Leaves that are keys and counters of Flax NNX's random streams, as ``nnx.Dropout`` has."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return frozenset()
    leaves = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: isinstance(node, nnx.RngState)
    )[0]
    found = [(keys, leaf) for keys, leaf in leaves if isinstance(leaf, nnx.RngState)]
    return frozenset(
        jax.tree_util.keystr((*keys, *inner))
        for keys, state in found
        for inner, _ in jax.tree_util.tree_flatten_with_path(state)[0]
    )


def own_sharding(leaf: Any, mesh: Mesh | None) -> Sharding | None:
    """A leaf's sharding; None if it has none.

    One over an ``AbstractMesh``, as skeletons that are made under ``jax.set_mesh`` have, becomes
    one over `mesh`, or the mesh that is set.

    Raises:
        MismatchError: that mesh does not have its axes.
    """
    own: Sharding | None = getattr(leaf, "sharding", None)
    if not isinstance(own, NamedSharding) or not isinstance(own.mesh, AbstractMesh):
        return own
    named = [a for axes in own.spec if axes for a in ((axes,) if isinstance(axes, str) else axes)]
    if not named and AxisType.Explicit not in own.mesh.axis_types:
        return None  # JAX chooses how it is cut, so nothing is said.
    over = mesh if mesh is not None else jax.sharding.get_mesh()
    if missing := [axis for axis in named if axis not in over.axis_names]:
        raise MismatchError(
            f"its sharding is over axis `{missing[0]}` of an abstract mesh, and "
            + ("no mesh is set: call this under `jax.set_mesh`, or give `shardings`"
               if over.empty else "the mesh does not have it")
        )  # fmt: skip
    if over.empty:
        return None
    return NamedSharding(over, own.spec)


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dicts in dicts from paths: ``{"a.b": x}`` → ``{"a": {"b": x}}``."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree


def path_of(keys: Iterable[Any]) -> str:
    """The path of a leaf from JAX's key path: attributes, keys and indices, joined by dots.

    A last attribute ``value`` is left out, which is the array of a Flax NNX variable, and the last
    key of the only array of a node that names none, as Haliax's ``NamedArray``; `fill` does so
    where the checkpoint has no such path.
    """
    keys = list(keys)
    unnamed = bool(keys) and keys[-1] == jax.tree_util.FlattenedIndexKey(0)
    if len(keys) > 1 and (unnamed or getattr(keys[-1], "name", "") == "value"):
        keys.pop()
    return ".".join(parts_of(keys))


def parts_of(keys: Iterable[Any]) -> list[str]:
    """The names of JAX's key path."""
    parts = []
    for key in keys:
        for attribute in ("name", "key", "idx"):  # GetAttrKey; DictKey and others; SequenceKey.
            if hasattr(key, attribute):
                parts.append(str(getattr(key, attribute)))
                break
        else:
            parts.append(str(key))
    return parts


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Paths from dicts in dicts: what `nest` was made from."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
