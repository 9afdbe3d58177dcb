"""Builds JAX arrays and pytrees from a checkpoint, a spec or a program."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
)

from ._errors import MismatchError
from ._source import Job, Source, TensorInfo, grouped

Shardings = Sharding | Mapping[str, Any] | Callable[[TensorInfo], Sharding] | None

Make = Callable[[Mapping[str, Sharding]], Mapping[str, jax.Array]]


class Described(Protocol):
    """The tensors of a `Source` or a `Program`."""

    @property
    def tensors(self) -> Mapping[str, Any]: ...
    @property
    def noun(self) -> str: ...
    @property
    def where(self) -> str: ...
    def info(self, path: str) -> TensorInfo: ...


def load_arrays(
    opened: Described,
    make: Make,
    shardings: Shardings,
    keys: Iterable[str] | None,
    nested: bool,
    devices: frozenset[Any] | None = None,
) -> dict[str, Any]:
    """Loads arrays, as `shardinit.jax.load` does; shardings must be over `devices`, if given."""
    wanted = list(opened.tensors) if keys is None else list(keys)
    missing = [path for path in wanted if path not in opened.tensors]
    unexpected: list[str] = []
    if isinstance(shardings, Mapping):
        flat = flatten(shardings)
        unexpected = [path for path in wanted if path not in flat and path not in missing]
        missing += [path for path in flat if path not in opened.tensors and path not in missing]
        chosen = flat
    else:
        chosen = {p: choose(shardings, opened.info(p)) for p in wanted if p not in missing}
    mismatching = {
        path: why
        for path in wanted
        if path in chosen and path in opened.tensors
        if (why := _mismatch(opened.info(path), chosen[path], devices))
    }
    if missing or unexpected or mismatching:
        hint = "give every tensor a sharding, or name those to load in `keys`" if unexpected else ""
        raise MismatchError(
            f"cannot load {opened.where}", missing, unexpected, mismatching, hint, opened.noun
        )
    arrays = dict(make({path: chosen[path] for path in wanted}))
    return nest(arrays) if nested else arrays


def fill_tree(
    tree: Any,
    opened: Described,
    make: Make,
    shardings: Shardings,
    default: Callable[[TensorInfo], Sharding],
    rename: Callable[[str], str] | None,
    strict: bool,
    mesh: Mesh | None = None,
) -> Any:
    """Fills a pytree, as `shardinit.jax.fill` does.

    Without `shardings`, a leaf without a sharding gets the `default` one. Shardings must be over
    the devices of `mesh`, if it is given.
    """
    devices = None if mesh is None else frozenset(mesh.devices.flat)
    sharding_of = _chooser(shardings, default, mesh, devices)
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    streams = streams_of(tree)
    paths = [_path_in(opened, keys, leaf, rename, streams) for keys, leaf in leaves]
    chosen: dict[str, Any] = {}
    missing: list[str] = []
    mismatching: dict[str, str] = {}
    for path, (_, leaf) in zip(paths, leaves, strict=True):
        if path is None:
            continue
        if path not in opened.tensors:
            missing.append(path)
            continue
        info = opened.info(path)
        found = chosen[path] = sharding_of(info, leaf)
        if isinstance(found, str):
            mismatching[path] = found
            continue
        why = _mismatch(info, found, devices)
        if tuple(leaf.shape) != info.global_shape:
            why = f"shape {list(info.global_shape)} in the {opened.noun}, {list(leaf.shape)} here"
        elif np.dtype(leaf.dtype) != info.numpy_dtype:
            why = why or f"dtype {info.dtype} in the {opened.noun}, {leaf.dtype} here"
        if why:
            mismatching[path] = why
    taken = frozenset(paths)
    unexpected = [path for path in opened.tensors if path not in taken] if strict else []
    if missing or unexpected or mismatching:
        what = f"cannot load {opened.where} into {type(tree).__name__}"
        raise MismatchError(what, missing, unexpected, mismatching, noun=opened.noun)
    arrays = make(chosen)
    every = zip(paths, leaves, strict=True)
    filled = [leaf if path is None else arrays[path] for path, (_, leaf) in every]
    return jax.tree_util.tree_unflatten(structure, filled)


def _chooser(
    shardings: Shardings,
    default: Callable[[TensorInfo], Sharding],
    mesh: Mesh | None,
    devices: frozenset[Any] | None,
) -> Callable[[TensorInfo, Any], Sharding | str]:
    """Returns a function from a leaf's tensor to its sharding, or to why it has none."""
    flat = flatten(shardings) if isinstance(shardings, Mapping) else None

    def sharding_of(info: TensorInfo, leaf: Any) -> Sharding | str:
        if flat is not None:
            given: Sharding | str = flat.get(info.path, "has no sharding")
            return given
        if shardings is not None:
            return choose(shardings, info)
        try:
            own = own_sharding(leaf, mesh)
        except MismatchError as error:
            return str(error)
        fits = own is not None and (devices is None or own.device_set == devices)
        return own if own is not None and fits else default(info)

    return sharding_of


def _path_in(
    opened: Described,
    keys: Any,
    leaf: Any,
    rename: Callable[[str], str] | None,
    streams: frozenset[str],
) -> str | None:
    """Returns the leaf's path in the source, or the missing path; None keeps the leaf."""
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        return None
    path = ".".join(parts_of(keys))
    if path not in opened.tensors or rename:
        path = rename(path_of(keys)) if rename else path_of(keys)
    is_stream = jax.tree_util.keystr(keys) in streams
    return None if path not in opened.tensors and is_stream else path


def named_sharding(mesh: Mesh, spec: tuple[tuple[str, ...], ...]) -> NamedSharding:
    partition = PartitionSpec(*(axes or None for axes in spec))  # type: ignore[no-untyped-call]
    return NamedSharding(mesh, partition)


def choose(shardings: Any, info: TensorInfo) -> Sharding:
    if shardings is None:
        return SingleDeviceSharding(jax.local_devices()[0])
    if isinstance(shardings, Sharding):
        return shardings
    chosen: Sharding = shardings(info)
    return chosen


def _mismatch(info: TensorInfo, sharding: Any, devices: frozenset[Any] | None) -> str:
    if not isinstance(sharding, Sharding):
        return f"{type(sharding).__name__} is not a sharding"
    if devices is not None and sharding.device_set != devices:
        return f"its {len(sharding.device_set)} devices are not the {len(devices)} of the mesh"
    x64 = jax.config.read("jax_enable_x64")  # type: ignore[no-untyped-call]
    if info.dtype in ("f64", "i64", "u64") and not x64:
        return f"is {info.dtype}, but jax_enable_x64 is off"
    try:
        sharding.shard_shape(info.global_shape)
    except (ValueError, IndexError) as error:
        return str(error).splitlines()[0]
    return ""


def reader(opened: Source, verify: bool) -> Make:
    """Returns a function that reads or generates arrays, small ones together."""

    def make(chosen: Mapping[str, Sharding]) -> dict[str, jax.Array]:
        parts = [_Parts(opened.info(path), sharding) for path, sharding in chosen.items()]
        arrays: dict[str, jax.Array] = {}
        for group in grouped(parts, lambda each: each.size):
            opened.run([job for each in group for job in each.jobs(opened, verify)])
            while group:
                each = group.pop(0)
                arrays[each.info.path] = each.array()
        return arrays

    return make


class _Parts:
    """The slices of a tensor that this process's devices hold."""

    def __init__(self, info: TensorInfo, sharding: Sharding) -> None:
        self.info, self._sharding = info, sharding
        # Devices with the same slice share it, so no byte is read twice.
        indices = sharding.addressable_devices_indices_map(info.global_shape).values()
        self._places = {self._key(index): index for index in indices}
        self._held: dict[Any, np.ndarray[Any, Any]] = {}
        shapes = (tuple(stop - start for start, stop, _ in key) for key in self._places)
        self.size = sum(map(math.prod, shapes)) * info.numpy_dtype.itemsize

    def jobs(self, opened: Source, verify: bool) -> list[Job]:
        """Allocates memory for the slices, and returns the jobs that fill it."""
        found: list[Job] = []
        for key, index in self._places.items():
            shape = tuple(stop - start for start, stop, _ in key)
            held = self._held[key] = np.empty(shape, self.info.numpy_dtype)
            found += opened.jobs(self.info.path, index or (), held, verify=verify)
        return found

    def array(self) -> jax.Array:
        """Returns the array, after its slices are filled."""
        return jax.make_array_from_callback(
            self.info.global_shape,
            self._sharding,
            lambda index: self._held[self._key(index)],
            dtype=self.info.numpy_dtype,
        )

    def _key(self, index: tuple[slice, ...] | None) -> tuple[tuple[int, int, int], ...]:
        pairs = zip(index or (), self.info.global_shape, strict=True)
        return tuple(part.indices(n) for part, n in pairs)


def streams_of(tree: Any) -> frozenset[str]:
    """Returns the paths of leaves that are keys and counters of Flax NNX's random streams."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return frozenset()
    flat = jax.tree_util.tree_flatten_with_path
    return frozenset(
        jax.tree_util.keystr((*keys, *inner))
        for keys, leaf in flat(tree, is_leaf=lambda node: isinstance(node, nnx.RngState))[0]
        if isinstance(leaf, nnx.RngState)
        for inner, _ in flat(leaf)[0]
    )


def own_sharding(leaf: Any, mesh: Mesh | None) -> Sharding | None:
    """Returns a leaf's sharding; None if it has none.

    Skeletons that are created under ``jax.set_mesh`` have shardings over an ``AbstractMesh``. These
    become shardings over `mesh`, or over the mesh that is set, if it has their axes.
    """
    own: Sharding | None = getattr(leaf, "sharding", None)
    if not isinstance(own, NamedSharding) or not isinstance(own.mesh, AbstractMesh):
        return own
    named = [a for axes in own.spec if axes for a in ((axes,) if isinstance(axes, str) else axes)]
    if not named and AxisType.Explicit not in own.mesh.axis_types:
        return None  # JAX chooses the sharding of this leaf.
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
    """Converts paths to nested dicts: ``{"a.b": x}`` → ``{"a": {"b": x}}``."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree


def path_of(keys: Iterable[Any]) -> str:
    """Returns the path of a leaf from JAX's key path: attributes, keys and indices, joined by dots.

    Two kinds of last parts are omitted: the attribute ``value``, which is the array of a Flax NNX
    variable, and the key of the only array of a node without names, such as Haliax's
    ``NamedArray``. `fill` omits them if the checkpoint does not have the full path.
    """
    keys = list(keys)
    unnamed = bool(keys) and keys[-1] == jax.tree_util.FlattenedIndexKey(0)
    if len(keys) > 1 and (unnamed or getattr(keys[-1], "name", "") == "value"):
        keys.pop()
    return ".".join(parts_of(keys))


def parts_of(keys: Iterable[Any]) -> list[str]:
    """Returns the names in JAX's key path."""
    names = ("name", "key", "idx")  # Of GetAttrKey; of DictKey and others; of SequenceKey.
    return [str(next((getattr(k, name) for name in names if hasattr(k, name)), k)) for k in keys]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Converts nested dicts to paths; the inverse of `nest`."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
