"""The tree of a spec's modules, in which layers that are alike stand once."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._tensor import Initializer, Key, Linear, Tensor, Text


class Unlike(Exception):
    """Layers that are not one module repeated."""


@dataclasses.dataclass
class Leaf:
    """A tensor.

    Attributes:
        key: the path under which it is drawn; `path`, in which repeats have their variables, if
            that is its own.
        place: in PyTorch's stream; empty: where the one before ends, or there is none.
    """

    path: str
    shape: tuple[Any, ...]
    dtype: str
    init: Initializer
    key: str
    when: str = ""
    place: dict[str, Any] = dataclasses.field(default_factory=dict)
    given: Key | None = None
    axes: tuple[tuple[str, Any], ...] = ()

    def leaves(self) -> int:
        return 1


@dataclasses.dataclass
class Module:
    """What has members.

    Attributes:
        count: how many times they are repeated, counted by `variable`; 0 is no repeat.
    """

    members: dict[str, Leaf | Module] = dataclasses.field(default_factory=dict)
    variable: str = ""
    count: int = 0
    when: str = ""

    def leaves(self) -> int:
        return sum(member.leaves() for member in self.members.values())


Node = Leaf | Module


def tree(
    tensors: Sequence[Tensor], places: Mapping[str, dict[str, Any]], fold: bool = True
) -> Module:
    """The modules of tensors.

    Args:
        places: path → `Leaf.place`.
        fold: layers that are alike stand once.
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
        )
    if fold:
        _fold(root, "", ())
    return root


def _fold(module: Module, name: str, variables: tuple[str, ...]) -> None:
    count = len(module.members)
    layers = [module.members.get(str(i)) for i in range(count)]
    variable = ""
    if count > 1 and all(isinstance(layer, Module) for layer in layers):
        variable = _variable(name, variables)
        variables = (*variables, variable)
    for inner, member in module.members.items():
        if isinstance(member, Module):
            _fold(member, inner, variables)
    if not variable:
        return
    try:
        union = _union(layers, range(count), variable, count)
    except Unlike:
        return
    assert isinstance(union, Module)
    if union.count or 3 * union.leaves() > 2 * module.leaves():
        return
    module.members, module.variable, module.count = union.members, variable, count


# What an expression or a module may say by itself.
_TAKEN = re.compile(r"i\d+|n\d+|row|col|index|size_.*|mesh_.*|repeat|shape|fans|when|stage")


def _variable(name: str, taken: Sequence[str]) -> str:
    """`layer` for `layers`, and another one within it."""
    base = re.sub(r"\W", "_", name)
    base = base[:-1] if len(base) > 2 and base.endswith("s") and not base.endswith("ss") else base
    if len(base) < 2 or not base[0].isalpha() or _TAKEN.fullmatch(base):
        base = "layer"
    variable, n = base, 2
    while variable in taken:
        variable, n = f"{base}{n}", n + 1
    return variable


def _union(nodes: Sequence[Node | None], at: Sequence[int], variable: str, count: int) -> Node:
    """One node for those of several layers, None where a layer has none.

    Args:
        nodes: of each of the layers in `at`.
        at: the layers that could have one.
        count: how many layers there are.
    """
    there = [(layer, node) for layer, node in zip(at, nodes, strict=True) if node is not None]
    layers = [layer for layer, _ in there]
    when = "" if len(layers) == len(at) else _condition(layers, at, variable)
    if all(isinstance(node, Leaf) for _, node in there):
        leaves = [node for _, node in there if isinstance(node, Leaf)]
        first = leaves[0]
        if len({(leaf.dtype, len(leaf.shape), leaf.when, leaf.axes) for leaf in leaves}) > 1:
            raise Unlike
        path = _path([leaf.path for leaf in leaves], layers, variable)
        own = all(leaf.key == leaf.path for leaf in leaves)
        shape = tuple(
            _common([leaf.shape[d] for leaf in leaves], layers, variable)
            for d in range(len(first.shape))
        )
        return Leaf(
            path,
            shape,
            first.dtype,
            _common_init([leaf.init for leaf in leaves], layers, variable),
            path if own else _path([leaf.key for leaf in leaves], layers, variable),
            both(first.when, when),
            _common_numbers([leaf.place for leaf in leaves], layers, variable),
            _common_key([leaf.given for leaf in leaves], layers, variable),
            first.axes,
        )
    modules = [node for _, node in there if isinstance(node, Module)]
    first_module = modules[0]
    same = {(module.count, module.variable, module.when) for module in modules}
    if len(modules) < len(there) or len(same) > 1:
        raise Unlike
    names: dict[str, None] = {}
    for module in modules:
        names.update(dict.fromkeys(module.members))
    members = {
        name: _union([m.members.get(name) for m in modules], layers, variable, count)
        for name in names
    }
    return Module(members, first_module.variable, first_module.count, both(first_module.when, when))


def both(a: str, b: str) -> str:
    """The condition that two are true; no text is always."""
    return f"({a}) * ({b})" if a and b else a or b


def _condition(layers: Sequence[int], at: Sequence[int], variable: str) -> str:
    """When a layer is one of `layers`, given that it is in `at`."""
    missing = [layer for layer in at if layer not in set(layers)]
    for some, equal in ((layers, "=="), (missing, "!=")):
        if len(some) == 1:
            return f"{variable} {equal} {some[0]}"
    if layers[-1] < missing[0]:
        return f"{variable} < {missing[0]}"
    if layers[0] > missing[-1]:
        return f"{variable} >= {layers[0]}"
    for some, other, equal in ((layers, missing, "=="), (missing, layers, "!=")):
        step, rest = some[1] - some[0], some[0] % (some[1] - some[0])
        if all(x % step == rest for x in some) and not any(x % step == rest for x in other):
            return f"mod({variable}, {step}) {equal} {rest}"
    if not any(layers[0] <= x <= layers[-1] for x in missing):
        return f"({variable} >= {layers[0]}) * ({variable} <= {layers[-1]})"
    if len(layers) <= 8:
        return " + ".join(f"({variable} == {layer})" for layer in layers)
    raise Unlike


def _path(paths: Sequence[str], layers: Sequence[int], variable: str) -> str:
    """One path for those of several layers, with the variable in the place of the number."""
    if len(set(paths)) == 1:
        return paths[0]
    parts = [path.split(".") for path in paths]
    if len({len(p) for p in parts}) > 1:
        raise Unlike
    common = []
    for column in zip(*parts, strict=True):
        if len(set(column)) == 1:
            common.append(column[0])
        elif all(name == str(layer) for name, layer in zip(column, layers, strict=True)):
            common.append(f"{{{variable}}}")
        else:
            raise Unlike
    return ".".join(common)


def _common(values: Sequence[Any], layers: Sequence[int], variable: str) -> Any:
    """One number or expression for those of several layers."""
    first = values[0]
    if all(value == first and type(value) is type(first) for value in values):
        return first
    if all(isinstance(value, Linear) for value in values):
        return _places(values, layers, variable)
    if all(isinstance(value, int) for value in values) and len(values) > 2:
        step, rest = divmod(values[1] - first, layers[1] - layers[0])
        if not rest and all(
            value == first + step * (layer - layers[0])
            for value, layer in zip(values, layers, strict=True)
        ):
            constant = first - step * layers[0]
            sign = "+" if constant >= 0 else "-"
            summand = f" {sign} {abs(constant)}" if constant else ""
            return Text(f"{f'{step} * ' if step != 1 else ''}{variable}{summand}")
    if len(values) < 4:
        raise Unlike
    change = next(i for i, value in enumerate(values) if value != first)
    if all(value == values[change] for value in values[change:]):
        a, b = (_text(value) for value in (first, values[change]))
        return Text(f"where({variable} < {layers[change]}, {a}, {b})")
    raise Unlike


def _text(value: Any) -> str:
    if isinstance(value, (int, float, Text)):
        return str(value.text if isinstance(value, Text) else value)
    raise Unlike


def _common_key(keys: Sequence[Key | None], layers: Sequence[int], variable: str) -> Key | None:
    """One key for those of several layers."""
    first = keys[0]
    if first is None or any(key is None for key in keys):
        if any(keys):
            raise Unlike
        return None
    there = [key for key in keys if key is not None]
    if len({(key.engine, tuple((name, len(n)) for name, n in key.steps)) for key in there}) > 1:
        raise Unlike
    return Key(
        first.engine,
        tuple(
            (
                name,
                tuple(
                    _common([key.steps[i][1][j] for key in there], layers, variable)
                    for j in range(len(numbers))
                ),
            )
            for i, (name, numbers) in enumerate(first.steps)
        ),
    )


def _common_init(inits: Sequence[Initializer], layers: Sequence[int], variable: str) -> Initializer:
    first = inits[0]
    if all(init == first for init in inits):
        return first
    if not all(isinstance(init, dict) for init in inits):
        raise Unlike
    names = {name for init in inits for name in init}
    if len(names) > 1:
        raise Unlike
    (name,) = names
    numbers = [init[name] for init in inits if isinstance(init, dict)]
    if name == "norms":
        return {name: {"of": Text(_path([n["of"].text for n in numbers], layers, variable))}}
    if name in ("expr", "file") and len({n[""] for n in numbers}) > 1:
        raise Unlike
    return {name: _common_numbers(numbers, layers, variable)}


def _common_numbers(
    numbers: Sequence[dict[str, Any]], layers: Sequence[int], variable: str
) -> dict[str, Any]:
    if len({tuple(n) for n in numbers}) > 1:
        raise Unlike
    return {key: _common([n[key] for n in numbers], layers, variable) for key in numbers[0]}


_RUNS = 8  # So many lines, or layers that come around, are not too long to read.


def _places(values: Sequence[Linear], layers: Sequence[int], variable: str) -> Linear | Text:
    """Places in a stream: a line, or several one after another, or one for every few layers."""
    if len({value.factors for value in values}) > 1:
        raise Unlike
    points = [(layer, value.constant) for layer, value in zip(layers, values, strict=True)]
    runs = _runs(points)
    lines = [(run[-1][0], _line(run, variable, values[0].factors)) for run in runs]
    if len(lines) == 1:
        return lines[0][1]
    if len(lines) <= _RUNS:
        text = lines[-1][1].text
        for last, line in reversed(lines[:-1]):
            text = f"where({variable} <= {last}, {line.text}, {text})"
        return Text(text)
    for period in range(2, _RUNS + 1):
        steps = {b[1] - a[1] for a, b in zip(points, points[period:], strict=False)
                 if b[0] - a[0] == period}  # fmt: skip
        apart = all(b[0] - a[0] == period for a, b in zip(points, points[period:], strict=False))
        if len(steps) != 1 or not apart:
            continue
        (step,) = steps
        rests = {layer % period: at - step * (layer // period) for layer, at in points}
        *before, (_, text) = [
            (rest, Linear(at, values[0].factors).text) for rest, at in rests.items()
        ]
        for rest, other in reversed(before):
            text = f"where(mod({variable}, {period}) == {rest}, {other}, {text})"
        return Text(f"{step} * floor({variable} / {period}) + {text}")
    raise Unlike


def _runs(points: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """(layer, number) in runs that are lines."""
    runs: list[list[tuple[int, int]]] = []
    for layer, at in points:
        if runs and len(runs[-1]) > 1:
            (a, first), (b, second) = runs[-1][:2]
            if (at - first) * (b - a) == (second - first) * (layer - a):
                runs[-1].append((layer, at))
                continue
        elif runs and (at - runs[-1][0][1]) % (layer - runs[-1][0][0]) == 0:
            runs[-1].append((layer, at))
            continue
        runs.append([(layer, at)])
    return runs


def _line(
    run: Sequence[tuple[int, int]], variable: str, factors: tuple[tuple[str, int], ...]
) -> Linear:
    step = (run[1][1] - run[0][1]) // (run[1][0] - run[0][0]) if len(run) > 1 else 0
    new = ((variable, step),) if step else ()
    return Linear(run[0][1] - step * run[0][0], (*factors, *new))


def instances(
    module: Module, values: Mapping[str, int] | None = None
) -> Iterator[tuple[Leaf, str]]:
    """(tensor of a tree, path of a tensor that it stands for), in the order of the spec.

    Of a tensor that has conditions also those that do not meet them.
    """
    for number in range(module.count or 1):
        here = {**(values or {}), **({module.variable: number} if module.count else {})}
        for member in module.members.values():
            if isinstance(member, Leaf):
                yield member, member.path.format(**here)
            else:
                yield from instances(member, here)


def leaves(node: Node) -> Iterator[Leaf]:
    """All tensors of a tree."""
    if isinstance(node, Leaf):
        yield node
        return
    for member in node.members.values():
        yield from leaves(member)
