"""Merges tensors and modules of layers that are alike: the layer's number becomes a variable."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Any

from ._tensor import Initializer, Key, Linear, Text


class Unlike(Exception):
    """The layers are not repeats of one module."""


@dataclasses.dataclass
class Leaf:
    """A tensor.

    Attributes:
        key: the path under which the tensor is drawn. It is `path`, with the variables of repeats,
            if the tensor is drawn under its own path.
        place: the tensor's place in PyTorch's stream; empty if it begins where the tensor before
            ends, or has no place.
        given: the derivation of the JAX key that draws it; None if JAX does not draw it.
        copies: whether it represents tensors of a repeat that are all copies of the first one,
            which has this place and key.
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
    copies: bool = False
    is_buffer: bool = False

    def leaves(self) -> int:
        return 1


@dataclasses.dataclass
class Module:
    """A module, which has members.

    Attributes:
        count: how many times the members are repeated, counted by `variable`; 0 means no repeat. If
            the repeat's own name contains the variable in braces, no number is appended to it.
    """

    members: dict[str, Leaf | Module] = dataclasses.field(default_factory=dict)
    variable: str = ""
    count: int = 0
    when: str = ""

    def leaves(self) -> int:
        return sum(member.leaves() for member in self.members.values())


Node = Leaf | Module


def union_of(nodes: Sequence[Node | None], at: Sequence[int], variable: str) -> Node:
    """Merges the nodes of several layers, whose number is called `variable`.

    `nodes` has a node or None for each layer in `at`, the layers that could have one.
    """
    there = [(layer, node) for layer, node in zip(at, nodes, strict=True) if node is not None]
    layers = [layer for layer, _ in there]
    when = "" if len(layers) == len(at) else _condition(layers, at, variable)
    if all(isinstance(node, Leaf) for _, node in there):
        leaves = [node for _, node in there if isinstance(node, Leaf)]
        first = leaves[0]
        if len({(x.dtype, x.is_buffer, len(x.shape), x.when, x.axes) for x in leaves}) > 1:
            raise Unlike
        path = _path([leaf.path for leaf in leaves], layers, variable)
        own = all(leaf.key == leaf.path for leaf in leaves)
        copies = not own and all(leaf.key == first.path for leaf in leaves)
        if len({leaf.copies for leaf in leaves}) > 1:
            raise Unlike
        sizes = zip(*(leaf.shape for leaf in leaves), strict=True)
        drawn = [first] * len(leaves) if copies else leaves
        return dataclasses.replace(
            first,
            path=path,
            shape=tuple(_common(column, layers, variable) for column in sizes),
            init=_common_init([leaf.init for leaf in leaves], layers, variable),
            key=path if own else _key_path([leaf.key for leaf in leaves], layers, variable),
            when=and_(first.when, when),
            place=_common_numbers([leaf.place for leaf in drawn], layers, variable),
            given=_common_key([leaf.given for leaf in drawn], layers, variable),
            copies=copies or first.copies,
        )
    modules = [node for _, node in there if isinstance(node, Module)]
    same = {(module.count, module.variable, module.when) for module in modules}
    if len(modules) < len(there) or len(same) > 1:
        raise Unlike
    names: dict[str, None] = {}
    for module in modules:
        names.update(dict.fromkeys(module.members))
    members = {
        name: union_of([m.members.get(name) for m in modules], layers, variable) for name in names
    }
    return dataclasses.replace(modules[0], members=members, when=and_(modules[0].when, when))


def and_(a: str, b: str) -> str:
    """Returns the condition that both conditions are true; an empty one is always true."""
    return f"({a}) * ({b})" if a and b else a or b


def _condition(layers: Sequence[int], at: Sequence[int], variable: str) -> str:
    """Returns the condition that a layer is one of `layers`, given that it is in `at`."""
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
    texts = []
    for some, other, equal in ((layers, missing, ""), (missing, layers, " == 0")):
        terms = _progressions(some, other, variable)
        text = " + ".join(f"({term})" if " * (" not in term else term for term in terms)
        if len(terms) == 1 and not equal:
            text = terms[0]
        texts.append((len(terms), bool(equal), f"({text}){equal}" if equal else text))
    terms_needed, _, text = min(texts)
    if terms_needed > _TERMS:
        raise Unlike
    return text


_TERMS = 8  # Longer conditions are unreadable.


def _progressions(some: Sequence[int], other: Sequence[int], variable: str) -> list[str]:
    """Returns conditions: each number of `some` meets exactly one, each number of `other` none."""
    left, have, terms = list(some), set(some), []
    while left:
        first = left[0]
        run = [first]
        for step in sorted({b - first for b in left[1:]}):
            longer = list(itertools.takewhile(left.__contains__, itertools.count(first, step)))
            run = max(run, longer, key=len)
        left = [number for number in left if number not in run]
        last = run[-1]
        if len(run) == 1:
            terms.append(f"{variable} == {first}")
            continue
        step = run[1] - run[0]
        modulo = "" if step == 1 else f"mod({variable}, {step}) == {first % step}"
        alike = [x for x in (*other, *have) if x % step == first % step]
        bounds = [
            modulo,
            f"{variable} >= {first}" if any(x < first for x in alike) else "",
            f"{variable} <= {last}" if any(x > last for x in alike) else "",
        ]
        parts = [bound for bound in bounds if bound]
        terms.append(parts[0] if len(parts) == 1 else " * ".join(f"({part})" for part in parts))
    return terms


def _path(paths: Sequence[str], layers: Sequence[int], variable: str) -> str:
    """Merges the paths of layers: an expression replaces each number that differs."""
    if len(set(paths)) == 1:
        return paths[0]
    pieces = [re.split(r"(\d+)", path) for path in paths]
    if len({len(p) for p in pieces}) > 1:
        raise Unlike
    common = []
    for n, column in enumerate(zip(*pieces, strict=True)):
        if len(set(column)) == 1:
            common.append(column[0])
        elif n % 2 and all(str(int(number)) == number for number in column):
            # An expression of another repeat must not contain an expression of this one.
            if "".join(common).count("{") > "".join(common).count("}"):
                raise Unlike
            common.append(f"{{{affine([int(n) for n in column], layers, variable).text}}}")
        else:
            raise Unlike
    return "".join(common)


def _key_path(keys: Sequence[str], layers: Sequence[int], variable: str) -> str:
    """Merges the paths of a `tie` or a norm, which have variables and no other expressions."""
    path = _path(keys, layers, variable)
    if re.search(r"\{\w*\W[^}]*\}", path):
        raise Unlike
    return path


def affine(numbers: Sequence[int], layers: Sequence[int], variable: str) -> Text:
    """Returns `step * variable + constant`, which gives each layer its number, 0 or more."""
    step, rest = divmod(numbers[1] - numbers[0], layers[1] - layers[0])
    constant = numbers[0] - step * layers[0]
    if rest or any(
        number != constant + step * layer for number, layer in zip(numbers, layers, strict=True)
    ):
        raise Unlike
    sign = "+" if constant >= 0 else "-"
    summand = f" {sign} {abs(constant)}" if constant else ""
    return Text(f"{f'{step} * ' if step != 1 else ''}{variable}{summand}")


def _common(values: Sequence[Any], layers: Sequence[int], variable: str) -> Any:
    """Merges the numbers or expressions of several layers."""
    first = values[0]
    if all(value == first and type(value) is type(first) for value in values):
        return first
    if all(isinstance(value, Linear) for value in values):
        return _places(values, layers, variable)
    if all(isinstance(value, tuple) for value in values):
        return _statics(values, layers, variable)
    if all(isinstance(value, int) for value in values) and len(values) > 2:
        with contextlib.suppress(Unlike):
            return affine(values, layers, variable)
    if len(values) < 4:
        raise Unlike
    change = next(i for i, value in enumerate(values) if value != first)
    if all(value == values[change] for value in values[change:]):
        a, b = (_text(value) for value in (first, values[change]))
        return Text(f"where({variable} < {layers[change]}, {a}, {b})")
    raise Unlike


def _statics(values: Sequence[Any], layers: Sequence[int], variable: str) -> Any:
    """Merges several tuples of names and numbers."""
    if len({tuple(map(type, value)) for value in values}) > 1:
        raise Unlike
    return tuple(
        _path(column, layers, variable)
        if isinstance(column[0], str)
        else _common(column, layers, variable)
        for column in zip(*values, strict=True)
    )


def _text(value: Any) -> str:
    if isinstance(value, (int, float, Text)):
        return str(value.text if isinstance(value, Text) else value)
    raise Unlike


def _common_key(keys: Sequence[Key | None], layers: Sequence[int], variable: str) -> Key | None:
    """Merges the keys of several layers."""
    first = keys[0]
    if first is None or any(key is None for key in keys):
        if any(keys):
            raise Unlike
        return None
    there = [key for key in keys if key is not None]
    if len({(key.engine, tuple((name, len(n)) for name, n in key.steps)) for key in there}) > 1:
        raise Unlike
    steps = []
    for i, (name, _) in enumerate(first.steps):
        columns = zip(*(key.steps[i][1] for key in there), strict=True)
        steps.append((name, tuple(_common(column, layers, variable) for column in columns)))
    return Key(first.engine, tuple(steps))


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
        return {name: {"of": Text(_key_path([n["of"].text for n in numbers], layers, variable))}}
    if name in ("expr", "file") and len({n[""] for n in numbers}) > 1:
        raise Unlike
    return {name: _common_numbers(numbers, layers, variable)}


def _common_numbers(
    numbers: Sequence[dict[str, Any]], layers: Sequence[int], variable: str
) -> dict[str, Any]:
    if len({tuple(n) for n in numbers}) > 1:
        raise Unlike
    return {key: _common([n[key] for n in numbers], layers, variable) for key in numbers[0]}


_RUNS = 8  # More lines, or longer cycles of layers, are unreadable.


def _places(values: Sequence[Linear], layers: Sequence[int], variable: str) -> Linear | Text:
    """Merges places in a stream: one line, several in a row, or one for every few layers."""
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
        classes: dict[int, list[tuple[int, int]]] = {}
        for layer, at in points:
            classes.setdefault(layer % period, []).append((layer // period, at))
        pairs = itertools.chain.from_iterable(map(itertools.pairwise, classes.values()))
        steps = {(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs}
        if len(steps) != 1 or not (step := steps.pop()).is_integer():
            continue
        rests = {rest: some[0][1] - int(step) * some[0][0] for rest, some in classes.items()}
        *before, (_, text) = [(r, Linear(at, values[0].factors).text) for r, at in rests.items()]
        for rest, other in reversed(before):
            text = f"where(mod({variable}, {period}) == {rest}, {other}, {text})"
        return Text(f"{int(step)} * floor({variable} / {period}) + {text}")
    raise Unlike


def _runs(points: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Divides points (layer, number) into runs, each on one line."""
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
