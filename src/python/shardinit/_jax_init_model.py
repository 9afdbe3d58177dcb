"""Implements `init_model` for JAX: from a class or function to a sharded pytree.

The function is captured, then its pytree is filled by `fill` or `run`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from . import _jax_load
from ._errors import CaptureError, MismatchError
from ._jax_load import Shardings, fill_tree, reader
from ._source import TensorInfo
from ._spec import AnySpec, Sets, Spec, as_spec
from .capture import Captured
from .capture import jax as capture_jax
from .capture._jax_capture import call
from .capture._jax_values import is_key


class Kept:
    """A placeholder for a leaf that no spec has."""


def init_model(
    make: Callable[..., Any],
    mesh: Mesh,
    shardings: Any,
    spec: AnySpec | None,
    seed: int | None,
    engine: str | None,
    set: Sets,
    layout: str | None,
    rename: Callable[[str], str] | None,
    run: Callable[..., Any] | None,
) -> Any:
    """Implements `shardinit.jax.init_model`; `run` is `shardinit.jax.run`, or None for the host."""
    _check(make, mesh)
    of: Captured | AnySpec
    if spec is None:
        if set or layout is not None:
            raise TypeError("`set` and `layout` are for a spec: give `seed` for another seed")
        of = _captured(make, seed or 0, engine or "philox4x32")
        layout = of.layout
    elif seed is None and engine is None:
        of = spec
    else:
        raise TypeError(
            "`seed` and `engine` are for a capture, and here is a spec, which has its own: "
            'give `set={"seed": 7}`'
        )
    number = (seed or 0) % (1 << 63)  # JAX keys have no larger seeds.
    tree = skeleton(make, number)
    keys = [leaf for leaf in jax.tree.leaves(tree) if _is_key(leaf)]
    hidden = jax.tree.map(lambda leaf: Kept() if _is_key(leaf) else leaf, tree)
    chosen = _place_over(shardings, mesh)
    try:
        if run is not None:
            options: Any = {"set": set, "layout": layout, "tree": hidden, "rename": rename}
            with _file(of) as path:
                filled = run(path, mesh, chosen, **options)
        elif isinstance(of, Captured):
            filled = _fill(hidden, of.spec(), mesh, chosen, rename)
        else:
            opened = as_spec(of, set, layout, "shardinit.jax.load")
            filled = _fill(hidden, opened, mesh, chosen, rename)
    except MismatchError as error:
        if spec is None:
            raise
        hint = (
            "if the spec is of another model, leave it out, and this one's function is captured; "
            "or say in `rename` how the names differ"
        )
        raise error.with_hint(hint) from None
    made = iter(_keys(make, number, mesh) if keys else ())
    return jax.tree.map(lambda leaf: next(made) if isinstance(leaf, Kept) else leaf, filled)


def _check(make: Any, mesh: Any) -> None:
    if not isinstance(mesh, Mesh):
        raise TypeError(f"`mesh` is a jax.sharding.Mesh, not {type(mesh).__name__}")
    if not callable(make):
        raise TypeError(
            f"init_model() calls its first argument, and {type(make).__name__} cannot be called: "
            "give a class or a function, as `lambda key: Model(config, key=key)`"
        )


def _captured(make: Callable[..., Any], seed: int, engine: str) -> Captured:
    try:
        return capture_jax(make, seed=seed, engine=engine)
    except CaptureError as error:
        raise _explained(make, error) from None


def _explained(make: Callable[..., Any], error: Exception) -> Exception:
    """Returns the same error; adds a hint if the function needs more than a key."""
    if "required" not in str(error) or "argument" not in str(error):
        return error
    name = getattr(make, "__name__", type(make).__name__)
    hint = (
        f"  hint: init_model() gives {name}() a `key`, `rng` or `rngs` alone: give it a function "
        f"that has the rest, as `lambda key: {name}(config, key=key)`, and of data the shapes, as "
        "`jax.numpy.zeros(shape)`"
    )
    return CaptureError(f"{error}\n{hint}")


def skeleton(make: Callable[..., Any], seed: int) -> Any:
    """Returns the result of `make`, with ``jax.ShapeDtypeStruct`` instead of arrays."""
    kept: list[Any] = []

    def arrays() -> list[Any]:
        leaves, structure = jax.tree.flatten(call(make, (), {}, seed))
        kept[:] = [structure, [None if _is_array(leaf) else leaf for leaf in leaves]]
        return [leaf if _is_array(leaf) else None for leaf in leaves]

    try:
        nnx = sys.modules.get("flax.nnx")
        shapes = jax.eval_shape(arrays)
        structure, others = kept
        either = zip(shapes, others, strict=True)
        tree = structure.unflatten([other if shape is None else shape for shape, other in either])
        if nnx is not None and isinstance(tree, nnx.Module):
            return nnx.eval_shape(lambda: call(make, (), {}, seed))
        return tree
    except Exception as error:
        raise _explained(make, CaptureError(f"the function failed: {error}")) from error


def _keys(make: Callable[..., Any], seed: int, mesh: Mesh) -> list[jax.Array]:
    """Returns the keys in the result of `make`, whole on every device; nothing else is computed."""

    def keys() -> list[Any]:
        return [leaf for leaf in jax.tree.leaves(call(make, (), {}, seed)) if _is_key(leaf)]

    everywhere = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]
    found: list[jax.Array] = jax.jit(keys, out_shardings=everywhere)()
    return found


def _fill(
    tree: Any,
    opened: Spec,
    mesh: Mesh,
    shardings: Shardings,
    rename: Callable[[str], str] | None,
) -> Any:
    lacking = {
        path: f"is sharded over the axis `{axis}`, which the mesh does not have"
        for path in (opened if shardings is None else ())
        for axes in opened.partition_spec(path)
        for axis in axes
        if axis not in mesh.axis_names
    }
    if lacking:
        raise MismatchError(
            f"cannot shard {opened.where} over the mesh with axes {', '.join(mesh.axis_names)}",
            mismatching=lacking,
            hint="give `shardings`, or name the axes of the mesh as the spec does",
            noun=opened.noun,
        )

    def default(info: TensorInfo) -> Sharding:
        return _jax_load.named_sharding(mesh, opened.partition_spec(info.path))

    return fill_tree(tree, opened, reader(opened, False), shardings, default, rename, True, mesh)


@contextlib.contextmanager
def _file(spec: Captured | AnySpec) -> Iterator[str | os.PathLike[str]]:
    """Yields the file of a spec, since the devices' program is generated from a file."""
    if isinstance(spec, (str, os.PathLike)):
        yield spec
    elif isinstance(spec, Captured):
        with tempfile.TemporaryDirectory(prefix="shardinit-") as folder:
            path = os.path.join(folder, "spec.yaml")
            spec.write(path)
            yield path
    else:
        raise TypeError(
            f"with `on_devices` a spec is a file, not {type(spec).__name__}: the program "
            "`shardinit` reads it"
        )


def _place_over(shardings: Any, mesh: Mesh) -> Any:
    """Returns the same shardings, with each ``PartitionSpec`` placed over `mesh`."""
    if isinstance(shardings, PartitionSpec):
        return NamedSharding(mesh, shardings)
    if isinstance(shardings, Mapping):
        return {key: _place_over(value, mesh) for key, value in shardings.items()}
    if shardings is None or isinstance(shardings, Sharding) or not callable(shardings):
        return shardings
    return lambda info: _place_over(shardings(info), mesh)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _is_key(leaf: Any) -> bool:
    return _is_array(leaf) and bool(is_key(leaf.dtype))
