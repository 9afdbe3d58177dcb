"""Makes tensors of a spec for JAX arrays, and the layout that joins arrays made in parts."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from ._expression import NoFormula
from ._finish import LAYOUT, check_path, unexpected
from ._jax_initializer import divided_by, drawn, dtype_name, fixed, placed
from ._jax_values import Value
from ._jaxpr import Graph
from ._tensor import Tensor, share


@dataclasses.dataclass
class _Divided:
    """An array whose parts are each drawn by a separate key.

    Attributes:
        dimensions: the array's dimensions that count the parts, outermost first.
    """

    value: Value
    dimensions: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(self.value.shape[d] for d in self.dimensions)


# Tensors with the same key are tied if these are equal.
_ALIKE = ("shape", "dtype", "init", "fans", "axes")


class Made:
    """The tensors of a spec that represent arrays.

    Attributes:
        tensors: path → the tensor.
        problems: path → why there is no tensor.
        drawn: the paths of arrays that contain random numbers.
        layout: the lines of the layout that stores the arrays, if some are divided.
    """

    def __init__(self, graph: Graph, engine: str) -> None:
        self.graph, self.engine = graph, engine
        self.tensors: dict[str, Tensor] = {}
        self.problems: dict[str, str] = {}
        self.drawn: set[str] = set()
        self.layout: list[str] = []
        self._order: list[str] = []  # The paths of the arrays.
        self._whole: dict[str, Value] = {}
        self._divided: dict[str, _Divided] = {}
        self._made: dict[str, tuple[Value, Mapping[int, int]]] = {}  # Each tensor's array.

    def add(self, path: str, value: Value) -> None:
        self._order.append(path)
        try:
            check_path(path)
            dtype_name(value)
            if value.random and 0 not in value.shape and self._is_divided(path, value):
                return
            self._whole[path] = value
            self._add(path, path, value, {})
        except NoFormula as error:
            self.problems[path] = str(error)
        except Exception as error:
            self.problems[path] = unexpected(error, str(value.origin))

    def _is_divided(self, path: str, value: Value) -> bool:
        """Returns whether an array is made in parts: by JAX's keys, or because it must be."""
        by_keys = self.engine == "jax_threefry"
        dimensions: tuple[int, ...] = ()
        with contextlib.suppress(NoFormula, RecursionError):
            dimensions = divided_by(value, self.graph, by_keys)
        if dimensions and not by_keys:
            with contextlib.suppress(NoFormula, RecursionError):
                self._tensor(path, value, {})
                return False
        if dimensions:
            self._divided[path] = _Divided(value, dimensions)
        return bool(dimensions)

    def divide(self) -> None:
        """Makes the parts of divided arrays, and the layout that joins them."""
        if not self._divided:
            return
        lines: list[str] = []
        places = self._places()
        for path in [path for path in self._order if path in places]:
            array, before, after = places[path]
            self.tensors.pop(path, None)
            if path in ("stack", "keep", "omit"):
                self.problems[path] = "its name is a word of layouts, which divide it: rename it"
                continue
            rank = len(array.dimensions)
            variables = [f"i{number}" for number in range(rank)] if rank > 1 else ["i"]
            try:
                for place in itertools.product(*map(range, array.counts)):
                    part = f"{before}.{'.'.join(map(str, place))}{after}"
                    at = dict(zip(array.dimensions, place, strict=True))
                    self._add(part, path, array.value, at)
            except NoFormula as error:
                self.problems[path] = str(error)
                continue
            view = f'"{before}{"".join(f".{{{name}}}" for name in variables)}{after}"'
            # The axis that was added last belongs to the outermost view.
            order = sorted(
                zip(array.dimensions, variables, array.counts, strict=True), reverse=True
            )
            for n, (dimension, variable, count) in enumerate(order):
                inner = sum(1 for other, _, _ in order[n + 1 :] if other < dimension)
                counted = f"axis: {dimension - inner}, for: {{{variable}: {count}}}"
                view = f"{{stack: {{{counted}, of: {view}}}}}"
            lines.append(f"    {path}: {{from: {view}}}")
        stored = [path for path in self._whole if path in self.tensors]
        if stored:
            lines.append("    keep:")
            lines += [f'      - "{pattern}"' for pattern in _patterns(stored, list(self.tensors))]
        self.layout = ["layouts:", f"  {LAYOUT}:", *lines]

    def _places(self) -> dict[str, tuple[_Divided, str, str]]:
        """Finds where a part's number appears in its path: path → the text before and after it.

        The number is inserted at the outermost module whose arrays are all divided alike, so that
        its parts become layers. Arrays that are not drawn are divided with the others.
        """
        modules: dict[str, list[str]] = {}
        for path in (*self._divided, *self._whole):
            names = path.split(".")
            for n in range(1, len(names)):
                modules.setdefault(".".join(names[:n]), []).append(path)
        places: dict[str, tuple[_Divided, str, str]] = {}
        for module in sorted(modules, key=lambda name: name.count(".")):
            inside = modules[module]
            drawn_in = [self._divided[path] for path in inside if path in self._divided]
            if not drawn_in or any(path in places for path in inside):
                continue
            dimensions, counts = drawn_in[0].dimensions, drawn_in[0].counts
            arrays = {
                path: self._divided.get(path) or self._match(path, dimensions) for path in inside
            }
            if all(array is not None and array.dimensions == dimensions and array.counts == counts
                   for array in arrays.values()):  # fmt: skip
                common = _common(inside)
                for path, array in arrays.items():
                    assert array is not None
                    places[path] = (array, common, path[len(common) :])
        for path, divided in self._divided.items():
            places.setdefault(path, (divided, path, ""))
        return places

    def _match(self, path: str, dimensions: tuple[int, ...]) -> _Divided | None:
        value = self._whole[path]
        is_large = len(value.shape) > max(dimensions)
        return _Divided(value, dimensions) if is_large and not value.random else None

    def separate(self) -> None:
        """Makes tensors that share random numbers request them by JAX's keys."""
        if self.engine != "jax_threefry":
            return
        for path in share(list(self.tensors.values()), self.engine):
            self._request_by_keys(path)
        first: dict[bytes, Tensor] = {}
        for path, tensor in list(self.tensors.items()):
            if tensor.given is None or tensor.key != path:
                continue
            other = first.setdefault(tensor.given.words, tensor)
            if other is tensor:
                continue
            if all(getattr(tensor, name) == getattr(other, name) for name in _ALIKE):
                tensor.key = other.path
            else:
                self._request_by_keys(path)

    def _request_by_keys(self, path: str) -> None:
        """Makes a tensor request its numbers by JAX's keys."""
        value, place = self._made[path]
        try:
            self.tensors[path] = placed(path, value, self.graph, place)
        except NoFormula as error:
            self.problems[path] = str(error)

    def _add(self, path: str, array: str, value: Value, place: Mapping[int, int]) -> None:
        self._made[path] = value, place
        try:
            self.tensors[path] = self._tensor(path, value, place)
        except RecursionError:
            why = "its expression has too many operations in one another"
            raise NoFormula(why, value.origin) from None
        uses = self.tensors[path].uses
        self.tensors[path].origin = uses[0].draw.origin if uses else value.origin
        if self.tensors[path].uses or "jax_" in str(self.tensors[path].init):
            self.drawn.add(array)

    def _tensor(self, path: str, value: Value, place: Mapping[int, int]) -> Tensor:
        """Makes a tensor of an array, or of its part at these indices of these dimensions."""
        dtype = dtype_name(value)
        shape = tuple(n for d, n in enumerate(value.shape) if d not in place)
        if not math.prod(shape):
            return Tensor(path, shape, dtype, "zeros", [], path)
        if not value.random:
            return fixed(path, value, self.graph, place)
        if self.engine != "jax_threefry":
            return drawn(path, value, self.graph, place, False)
        try:
            return drawn(path, value, self.graph, place, True)
        except NoFormula:
            return placed(path, value, self.graph, place)


def _common(paths: Sequence[str]) -> str:
    """Returns the innermost module that contains all of these paths."""
    parts = [path.split(".")[:-1] for path in paths]
    same = itertools.takewhile(lambda names: len(set(names)) == 1, zip(*parts, strict=False))
    return ".".join(names[0] for names in same)


def _patterns(wanted: Sequence[str], every: Sequence[str]) -> Iterator[str]:
    """Yields a few patterns that match all wanted paths and no other path."""
    others = [path for path in every if path not in set(wanted)]
    covered = ""
    for path in wanted:
        if covered and path.startswith(covered):
            continue
        names = path.split(".")
        for n in range(1, len(names)):
            prefix = ".".join(names[:n]) + "."
            if not any(other.startswith(prefix) for other in others):
                covered = prefix
                yield f"{prefix}*"
                break
        else:
            yield path
