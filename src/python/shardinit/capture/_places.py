"""Writes the stream position of each tensor that does not directly follow the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._alike import Leaf, Module
from ._fold import instances, tree
from ._stream import Place, Words
from ._tensor import Linear, Tensor


def placed_tree(tensors: Sequence[Tensor]) -> tuple[Module, dict[str, str]]:
    """Builds the tree of modules, folded, with places in the stream of the engine torch_cpu.

    Returns:
        The tree; and path → why the tensor's place cannot be expressed.
    """
    if not any(tensor.place for tensor in tensors):
        return tree(tensors, {}), {}
    if any(t.place.position.after >= 0 for t in tensors if t.place):
        tensors = _as_drawn(tensors)
    places = _all_places(tree(tensors, {}, fold=False), tensors)
    for fold in (True, False):
        root = tree(tensors, places, fold)
        problems = _leave_out(root, tensors)
        if not problems:
            break
    return root, problems


def _as_drawn(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns tensors in the order of their draws; others stay after the tensor before them."""
    order, at = {}, -1
    for tensor in tensors:
        if tensor.place:
            at = tensor.uses[0].draw.order
        order[tensor.path] = at
    return sorted(tensors, key=lambda tensor: order[tensor.path])


def _all_places(root: Module, tensors: Sequence[Tensor]) -> dict[str, dict[str, Any]]:
    """Returns `Leaf.place` of each tensor that is drawn."""
    places: dict[str, dict[str, Any]] = {}
    end = Words(0)
    for _, tensor, place in _drawn(root, tensors):
        position, spare = place.position, place.spare
        if position.after >= 0:
            # `_leave_out` reports places for which this does not hold.
            skip = position.count - end.count if end.after == position.after else 0
            places[tensor.path] = {"skip": Linear(max(skip, 0))}
        else:
            places[tensor.path] = {"position": Linear(position.count)}
            if spare is not None and _may_use_spare(tensor, place):
                places[tensor.path]["spare"] = Linear(spare.count)
        end = place.end
    return places


def _leave_out(root: Module, tensors: Sequence[Tensor]) -> dict[str, str]:
    """Removes from the tree the places that follow from the tensor before; returns problems."""
    problems = {}
    following: dict[int, tuple[Leaf, bool]] = {}
    end: Words = Words(0)
    left: Words | str | None = None
    for leaf, tensor, place in _drawn(root, tensors):
        asks, position = _may_use_spare(tensor, place), place.position
        follows = end == position and (not asks or left == place.spare)
        if position.after >= 0:
            known = end.after == position.after and end.count <= position.count
            alone = left is None and place.spare is None
            skip = Linear(position.count - end.count)
            if not known or (asks and not follows and not alone) or leaf.place != {"skip": skip}:
                problems[tensor.path] = (
                    "only the seed decides where in the stream its numbers are, after a truncated"
                    " distribution that is not the tensor before in the spec:"
                    f" {tensor.uses[0].draw.origin}"
                )
        _, others = following.get(id(leaf), (leaf, True))
        following[id(leaf)] = leaf, others and follows
        end = place.end
        # A left-over number is only given if it is used at once.
        left = place.left if asks or place.spare is None else "not said"
    for leaf, follows in following.values():
        if follows:
            leaf.place = {}
    return problems


def _drawn(root: Module, tensors: Sequence[Tensor]) -> list[tuple[Leaf, Tensor, Place]]:
    """Returns the tensors that the engine draws one after another, in the order of the spec."""
    of = {t.path: t for t in tensors if t.place and t.key == t.path}
    return [
        (leaf, of[path], place)
        for leaf, path in instances(root)
        if path in of and (place := of[path].place)
    ]


def _may_use_spare(tensor: Tensor, place: Place) -> bool:
    """Returns whether a tensor's first number may be a left-over one."""
    return place.pairs and tensor.uses[0].draw.kind != "uniform"
