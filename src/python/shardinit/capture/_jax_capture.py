"""From a function of JAX to the text of a spec."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import inspect
import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._dtypes import name_of
from .._errors import CaptureError, CaptureWarning
from .._jax_trees import parts_of, path_of
from . import Captured
from ._expression import NoFormula
from ._finish import LAYOUT, check_path, finish
from ._jax_initializer import divided_by, drawn, dtype_name, fixed, placed
from ._jax_unseeded import other_generators, unseeded
from ._jaxpr import Graph, Lines, Value, is_key
from ._tensor import Tensor, share
from ._verify import WORDS, Real

ENGINES = ("philox4x32", "jax_threefry")


def capture(
    make: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    name: str | None,
    seed: int,
    engine: str,
) -> Captured:
    """`shardinit.capture.jax`, its arguments and those of `make` apart."""
    if engine not in ENGINES:
        raise ValueError(f"unknown engine `{engine}`: `engine` is one of {', '.join(ENGINES)}")
    partitionable = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    if engine == "jax_threefry" and not partitionable:
        raise CaptureError(
            "`jax_threefry_partitionable` is off, and engine `jax_threefry` has the numbers of"
            " JAX with it on"
        )
    keys = seed if engine == "jax_threefry" else 0  # Else they decide nothing.
    if keys >= 1 << 63:
        raise CaptureError(f"JAX has no key of the seed {seed}: the largest is 2^63 - 1")
    called = str(getattr(make, "__name__", "model")).replace("<lambda>", "model")
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        graph = Graph()
        arrays = _traced(lambda: _call(make, args, kwargs, keys), graph)
        with other_generators():
            again = _traced(lambda: _call(make, args, kwargs, keys), Graph())
        if different := unseeded(arrays, again):
            warnings.warn(
                f"no key of JAX decides the numbers of {_listed(different)}, which are other ones in"
                " another run, as those of `numpy.random`: what they are now is in the spec",
                CaptureWarning,
                stacklevel=3,
            )
        made = _Made(graph, engine)
        for path, value in arrays.items():
            made.add(path, value)
        made.divide()
        made.separate()
    captured = finish(
        list(made.tensors.values()),
        made.problems,
        paths=[*arrays, *made.tensors],
        name=name or called,
        seed=seed,
        engine=engine,
        comment=f"{called}, captured by shardinit-capture from JAX {jax.__version__}."
        + (f"\n--layout {LAYOUT} stores the arrays of the function." if made.layout else ""),
        layouts=made.layout,
        stored={
            path: (value.shape, dtype_name(value))
            for path, value in arrays.items()
            if path not in made.problems
        },
    )
    return dataclasses.replace(
        captured,
        drawn=frozenset(made.drawn),
        _real=lambda seed: _real(make, args, kwargs, seed % (1 << 63)),
        _has_own_seed=engine == "jax_threefry",  # Each key of the spec says it.
    )


def _traced(function: Callable[[], Any], graph: Graph) -> dict[str, Value]:
    """The arrays of the pytree that a function returns, by their paths."""
    paths: list[str] = []
    try:
        closed = jax.make_jaxpr(lambda: _arrays(function(), paths))()
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(
            f"the function failed: {type(error).__name__}: {error}\n  at {Lines().of_error(error)}"
        ) from error
    return dict(zip(paths, graph.results(closed), strict=True))


def _listed(paths: Sequence[str]) -> str:
    shown = ", ".join(f"`{path}`" for path in paths[:5])
    return shown if len(paths) <= 5 else f"{shown} and {len(paths) - 5} others"


def _real(
    make: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], seed: int
) -> dict[str, Real]:
    """The arrays that the function makes, as it is: JAX compiles each operation by itself."""
    paths: list[str] = []
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        leaves = _arrays(_call(make, args, kwargs, seed), paths)
        # Those of NumPy may have 64 bits, of which JAX makes 32.
        arrays = [np.asarray(jnp.asarray(leaf)) for leaf in leaves]
    return dict(zip(paths, map(_real_array, arrays), strict=True))


def _real_array(array: np.ndarray[Any, Any]) -> Real:
    return Real(
        array.shape,
        name_of(array.dtype) or str(array.dtype),
        lambda: array.view(WORDS[array.itemsize]),
        lambda words: words.view(array.dtype).astype(np.float64),
    )


def _call(
    make: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], seed: int
) -> Any:
    """What `make` returns; it is given a key where it asks for one."""
    given = dict(kwargs)
    is_class = isinstance(make, type)
    try:  # What makes instances of a class may hide what these take.
        signature = inspect.signature(make.__init__ if is_class else make)
        taken = signature.bind_partial(*([make] if is_class else []), *args, **kwargs).arguments
    except (TypeError, ValueError):
        return make(*args, **kwargs)  # Its own error says more.
    for name in signature.parameters.keys() - taken.keys():
        if name in ("key", "rng"):
            given[name] = jax.random.key(seed)
        elif name == "rngs":
            from flax import nnx

            given[name] = nnx.Rngs(seed)
    return make(*args, **given)


def _arrays(tree: Any, paths: list[str]) -> list[Any]:
    """The arrays of a pytree, whose paths are added to `paths`."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None:
        tree = jax.tree.map(
            lambda x: nnx.state(x) if isinstance(x, nnx.Module) else x,
            tree,
            is_leaf=lambda x: isinstance(x, nnx.Module),
        )
    leaves = [
        (keys, leaf)
        for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not is_key(leaf.dtype)
    ]
    paths[:] = _paths([keys for keys, _ in leaves])
    return [leaf for _, leaf in leaves]


def _paths(leaves: Sequence[Sequence[Any]]) -> list[str]:
    """The paths of leaves; a last part that `path_of` leaves out stays where others need it."""
    short = [_spec_path(path_of(keys)) for keys in leaves]
    modules, counts = _modules(short), collections.Counter(short)
    paths = [
        _spec_path(".".join(parts_of(keys))) if path in modules or counts[path] > 1 else path
        for path, keys in zip(short, leaves, strict=True)
    ]
    modules = _modules(paths)
    for path, count in collections.Counter(paths).items():
        if count > 1:
            raise CaptureError(f"{count} arrays have the path `{path}`")
        if path in modules:
            raise CaptureError(f"`{path}` is the path of an array, and others are below it")
    return paths


def _modules(paths: Iterable[str]) -> set[str]:
    """All that paths are below of."""
    found: set[str] = set()
    for path in paths:
        names = path.split(".")
        found.update(".".join(names[:n]) for n in range(1, len(names)))
    return found


def _spec_path(path: str) -> str:
    """Modules of Haiku are `mlp/~/linear_0`, which is `mlp.linear_0` here."""
    parts = (part for name in path.split(".") for part in name.split("/"))
    return ".".join(part for part in parts if part and part != "~") or "value"


@dataclasses.dataclass
class _Divided:
    """An array of which each part is drawn by a key of its own.

    Attributes:
        dimensions: those of the array that count the parts, outermost first.
    """

    value: Value
    dimensions: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(self.value.shape[d] for d in self.dimensions)


class _Made:
    """The tensors of a spec.

    Attributes:
        tensors: path → the tensor.
        problems: path → why there is none.
        drawn: the paths of arrays that random numbers are in.
        layout: lines that store the arrays, if some are divided.
    """

    def __init__(self, graph: Graph, engine: str) -> None:
        self.graph, self.engine = graph, engine
        self.tensors: dict[str, Tensor] = {}
        self.problems: dict[str, str] = {}
        self.drawn: set[str] = set()
        self.layout: list[str] = []
        self._order: list[str] = []  # Of the arrays.
        self._whole: dict[str, Value] = {}
        self._divided: dict[str, _Divided] = {}
        self._made: dict[str, tuple[Value, Mapping[int, int]]] = {}  # What each tensor is of.

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

    def _is_divided(self, path: str, value: Value) -> bool:
        """Whether an array is made in parts: where it has to be, and JAX's keys."""
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
        """Makes the parts of arrays that are divided, and the layout that puts them together."""
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
            of = before
            variables = []
            for number in range(len(array.dimensions)):
                variables.append(f"i{number}" if len(array.dimensions) > 1 else "i")
                of += f".{{{variables[-1]}}}"
            of += after
            try:
                for place in itertools.product(*map(range, array.counts)):
                    part = f"{before}.{'.'.join(map(str, place))}{after}"
                    at = dict(zip(array.dimensions, place, strict=True))
                    self._add(part, path, array.value, at)
            except NoFormula as error:
                self.problems[path] = str(error)
                continue
            view = f'"{of}"'
            # The outermost view has the axis that was added last.
            order = sorted(
                zip(array.dimensions, variables, array.counts, strict=True), reverse=True
            )
            for n, (dimension, variable, count) in enumerate(order):
                inner = sum(1 for other, _, _ in order[n + 1 :] if other < dimension)
                view = (
                    f"{{stack: {{axis: {dimension - inner}, for: {{{variable}: {count}}},"
                    f" of: {view}}}}}"
                )
            lines.append(f"    {path}: {{from: {view}}}")
        stored = [path for path in self._whole if path in self.tensors]
        if stored:
            lines.append("    keep:")
            lines += [f'      - "{pattern}"' for pattern in _patterns(stored, list(self.tensors))]
        self.layout = ["layouts:", f"  {LAYOUT}:", *lines]

    def _places(self) -> dict[str, tuple[_Divided, str, str]]:
        """Where the number of a part stands in its path: path → what is before, and behind it.

        It is as far out as all arrays of a module are divided alike, so that it becomes a layer.
        What is not drawn is divided with the others.
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
                path: self._divided.get(path) or self._like(path, dimensions) for path in inside
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

    def _like(self, path: str, dimensions: tuple[int, ...]) -> _Divided | None:
        value = self._whole[path]
        if value.random or len(value.shape) <= max(dimensions):
            return None
        return _Divided(value, dimensions)

    def separate(self) -> None:
        """Has tensors that share random numbers with others ask for them by JAX's keys."""
        if self.engine != "jax_threefry":
            return
        for path in share([t for t in self.tensors.values()], self.engine):
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
            raise NoFormula("its expression has too many operations in one another", value.origin) from None
        if self.tensors[path].uses or "jax_" in str(self.tensors[path].init):
            self.drawn.add(array)

    def _tensor(self, path: str, value: Value, place: Mapping[int, int]) -> Tensor:
        """A tensor of an array, or of its part where these dimensions have these indices."""
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
    """The innermost module that all of these are in."""
    parts = [path.split(".")[:-1] for path in paths]
    same = itertools.takewhile(lambda names: len(set(names)) == 1, zip(*parts, strict=False))
    return ".".join(names[0] for names in same)


def _patterns(wanted: Sequence[str], every: Sequence[str]) -> Iterator[str]:
    """Few patterns that all wanted paths match and no other does."""
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
