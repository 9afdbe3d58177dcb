"""Builds the tree of a spec's modules, in which layers that are alike appear once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._alike import Leaf, Module, Node, Unlike, affine, union_of
from ._tensor import Tensor


def tree(
    tensors: Sequence[Tensor], places: Mapping[str, dict[str, Any]], fold: bool = True
) -> Module:
    """Builds the tree of the tensors' modules, in the order of the spec.

    `places` maps paths to `Leaf.place`. With `fold`, layers that are alike appear once.
    """
    root = Module()
    for tensor in tensors:
        *names, last = tensor.path.split(".")
        module = root
        for name in names:
            inner = module.members.setdefault(name, Module())
            assert isinstance(inner, Module), tensor.path
            module = inner
        module.members[last] = Leaf(
            tensor.path,
            tensor.shape,
            tensor.dtype,
            tensor.init,
            tensor.key,
            place=places.get(tensor.path, {}),
            given=tensor.given,
            axes=tensor.axes,
            is_buffer=tensor.is_buffer,
        )
    if fold:
        _fold(root, "", ())
    return root


_Form = tuple[str, str]  # The text before the number in a name, and the text after it.


def _fold(module: Module, name: str, variables: tuple[str, ...]) -> None:
    found = _numbered(module)
    variable = {form: _variable(form[0] or name, variables) for form in found}
    for inner, member in module.members.items():
        if isinstance(member, Module):
            form = next((form for form, some in found.items() if inner in some.values()), None)
            _fold(member, inner, (*variables, variable[form]) if form else variables)
    for form, some in found.items():
        numbers, whole = list(some), form == ("", "") and len(some) == len(module.members)
        if whole and numbers == list(range(len(numbers))):
            union = _repeat([module.members[name] for name in some.values()], variable[form])
            if union is not None:
                module.members, module.variable, module.count = (
                    union.members, union.variable, union.count
                )  # fmt: skip
                continue
        for part in _parts(module, some):
            _fold_part(module, form, {n: some[n] for n in part}, variable[form])


def _numbered(module: Module) -> dict[_Form, dict[int, str]]:
    """Returns names of modules that differ only in their last number: number → name, ascending."""
    found: dict[_Form, dict[int, str]] = {}
    for name, member in module.members.items():
        match = re.fullmatch(r"(.*?)(0|[1-9]\d*)(\D*)", name)
        if match and isinstance(member, Module) and not re.search(r"\d$", match[1]):
            found.setdefault((match[1], match[3]), {})[int(match[2])] = name
    return {form: dict(sorted(some.items())) for form, some in found.items() if len(some) > 1}


def _parts(module: Module, some: Mapping[int, str]) -> Iterator[Sequence[int]]:
    """Yields evenly spaced numbers of members that could be one repeat: all, or similar ones."""
    if _step(list(some)) and _repeat([module.members[name] for name in some.values()], "_"):
        yield list(some)
        return
    alike: dict[Any, list[int]] = {}
    for number, name in some.items():
        alike.setdefault(_form(module.members[name]), []).append(number)
    for numbers in alike.values():
        if _step(numbers):
            yield numbers
            continue
        for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
            yield [number for _, number in run]


def _step(numbers: Sequence[int]) -> int:
    """Returns the distance of neighbouring numbers; 0 if they are not evenly spaced."""
    steps = {b - a for a, b in itertools.pairwise(numbers)}
    return steps.pop() if len(steps) == 1 else 0


def _form(node: Node) -> Any:
    """Returns an object that is equal for nodes that may differ only in their numbers."""
    if isinstance(node, Leaf):
        init = node.init if isinstance(node.init, str) else next(iter(node.init))
        return node.shape, node.dtype, node.is_buffer, init
    return node.count, tuple((name, _form(member)) for name, member in node.members.items())


def _fold_part(module: Module, form: _Form, names: Mapping[int, str], variable: str) -> None:
    """Replaces evenly spaced members by one repeat, if that is shorter."""
    numbers = list(names)
    if len(numbers) < 2:
        return
    union = _repeat([module.members[name] for name in names.values()], variable)
    every = sum(module.members[name].leaves() for name in names.values())
    if union is None or 3 * (union.leaves() + 2) >= 2 * every:
        return
    number = affine(numbers, range(len(numbers)), variable)
    new = {f"{form[0]}{{{number.text}}}{form[1]}": union}
    gone = set(names.values())
    members: dict[str, Leaf | Module] = {}
    for name, member in module.members.items():
        members.update({name: member} if name not in gone else new)
    module.members = members


def _repeat(layers: Sequence[Node], variable: str) -> Module | None:
    """Merges several modules into one, if they are similar enough."""
    try:
        union = union_of(layers, range(len(layers)), variable)
    except Unlike:
        return None
    every = sum(layer.leaves() for layer in layers)
    if not isinstance(union, Module) or union.count or 3 * union.leaves() > 2 * every:
        return None
    union.variable, union.count = variable, len(layers)
    return union


# Expressions or modules may use these words, so no variable has such a name.
_TAKEN = re.compile(r"i\d+|n\d+|row|col|index|size_.*|mesh_.*|repeat|shape|fans|when|stage")


def _variable(name: str, taken: Sequence[str]) -> str:
    """Returns a repeat's variable: `layer` for `layers`, unless an outer repeat uses it."""
    base = re.sub(r"\W", "_", name).lower()
    base = base.rstrip("_")
    base = base[:-1] if len(base) > 2 and base.endswith("s") and not base.endswith("ss") else base
    if len(base) < 2 or not base[0].isalpha() or _TAKEN.fullmatch(base):
        base = "layer"
    variable, n = base, 2
    while variable in taken:
        variable, n = f"{base}{n}", n + 1
    return variable


def instances(
    module: Module, values: Mapping[str, int] | None = None
) -> Iterator[tuple[Leaf, str]]:
    """Yields each tensor of a tree with each path that it represents, in the order of the spec.

    A tensor with conditions is also yielded with the paths that do not meet them.
    """
    for number in range(module.count or 1):
        here = {**(values or {}), **({module.variable: number} if module.count else {})}
        for member in module.members.values():
            if isinstance(member, Leaf):
                yield member, _at(member.path, here)
            else:
                yield from instances(member, here)


def _at(path: str, values: Mapping[str, int]) -> str:
    """Returns a path with the expressions of `affine` replaced by numbers."""

    def number(match: re.Match[str]) -> str:
        factor, name, sign, constant = match.groups()
        summand = int(constant or 0) * (-1 if sign == "-" else 1)
        return str(int(factor or 1) * values[name] + summand)

    return re.sub(r"\{(?:(-?\d+) \* )?(\w+)(?: ([+-]) (\d+))?\}", number, path)


def leaves(node: Node) -> Iterator[Leaf]:
    """Yields all tensors of a tree."""
    if isinstance(node, Leaf):
        yield node
        return
    for member in node.members.values():
        yield from leaves(member)
