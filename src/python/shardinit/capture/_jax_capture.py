"""Captures a JAX function as the text of a spec."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._dtypes import name_of
from .._errors import CaptureError, CaptureWarning
from .._jax_load import parts_of, path_of
from . import Captured, check_engine
from ._compare import WORDS, Real
from ._finish import LAYOUT, finish, only_capture_errors
from ._jax_divide import Made
from ._jax_initializer import dtype_name
from ._jax_unseeded import other_generators, unseeded_arrays
from ._jax_values import Value, is_key
from ._jaxpr import Graph
from ._lines import Lines

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
    """Implements `shardinit.capture.jax`, with the arguments of `make` kept apart."""
    _check(engine, seed)
    with only_capture_errors():
        return _captured(make, args, kwargs, name=name, seed=seed, engine=engine)


def _captured(
    make: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    name: str | None,
    seed: int,
    engine: str,
) -> Captured:
    keys = seed if engine == "jax_threefry" else 0  # Other engines do not use them.
    called = str(getattr(make, "__name__", "model")).replace("<lambda>", "model")
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        graph = Graph()
        arrays = _traced(lambda: call(make, args, kwargs, keys), graph)
        with other_generators():
            again = _traced(lambda: call(make, args, kwargs, keys), Graph())
        if different := unseeded_arrays(arrays, again):
            warnings.warn(
                f"no key of JAX decides the numbers of {_listed(different)}, which differ"
                " in another run, as numbers of `numpy.random`: the spec has the present ones",
                CaptureWarning,
                stacklevel=4,
            )
        made = Made(graph, engine)
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
        _has_own_seed=engine == "jax_threefry",  # Each key of the spec contains it.
    )


def _check(engine: str, seed: int) -> None:
    check_engine(engine, ENGINES)
    if engine != "jax_threefry":
        return
    if not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        raise CaptureError(
            "`jax_threefry_partitionable` is off, and engine `jax_threefry` has the numbers of"
            " JAX with it on"
        )
    if seed >= 1 << 63:
        raise CaptureError(f"JAX has no key of the seed {seed}: the largest is 2^63 - 1")


def _traced(function: Callable[[], Any], graph: Graph) -> dict[str, Value]:
    """Returns the arrays of the pytree that a function returns, by their paths."""
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
    """Runs the function uncaptured, each operation compiled separately; returns its arrays."""
    paths: list[str] = []
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        leaves = _arrays(call(make, args, kwargs, seed), paths)
        # NumPy arrays may have 64 bits, which JAX converts to 32.
        arrays = [np.asarray(jnp.asarray(leaf)) for leaf in leaves]
    return dict(zip(paths, map(_real_array, arrays), strict=True))


def _real_array(array: np.ndarray[Any, Any]) -> Real:
    return Real(
        array.shape,
        name_of(array.dtype) or str(array.dtype),
        lambda: array.view(WORDS[array.itemsize]),
        lambda words: words.view(array.dtype).astype(np.float64),
    )


def call(
    make: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], seed: int
) -> Any:
    """Calls `make`, with a key if it has a parameter for one."""
    given = dict(kwargs)
    is_class = isinstance(make, type)
    try:  # A metaclass may hide the parameters of a class.
        signature = inspect.signature(make.__init__ if is_class else make)
        taken = signature.bind_partial(*([make] if is_class else []), *args, **kwargs).arguments
    except (TypeError, ValueError):
        return make(*args, **kwargs)  # The function's own error is clearer.
    for name in signature.parameters.keys() - taken.keys():
        if name in ("key", "rng"):
            given[name] = jax.random.key(seed)
        elif name == "rngs":
            from flax import nnx

            given[name] = nnx.Rngs(seed)
    return make(*args, **given)


def _arrays(tree: Any, paths: list[str]) -> list[Any]:
    """Returns the arrays of a pytree, and stores their paths in `paths`."""
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
    """Returns the paths of leaves; keeps last parts that `path_of` omits if paths would collide."""
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
    """Returns the modules that contain the paths, at any depth."""
    found: set[str] = set()
    for path in paths:
        names = path.split(".")
        found.update(".".join(names[:n]) for n in range(1, len(names)))
    return found


def _spec_path(path: str) -> str:
    """Returns the path in a spec: Haiku's module `mlp/~/linear_0` becomes `mlp.linear_0`."""
    parts = (part for name in path.split(".") for part in name.split("/"))
    return ".".join(part for part in parts if part and part != "~") or "value"
