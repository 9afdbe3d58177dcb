"""Arrays and trees of JAX, from a checkpoint, a spec or a program alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from ._errors import MismatchError
from ._jax_trees import flatten, nest, own_sharding, parts_of, path_of, streams_of
from ._source import Source, TensorInfo

Shardings = Sharding | Mapping[str, Any] | Callable[[TensorInfo], Sharding] | None

Make = Callable[[Mapping[str, Sharding]], Mapping[str, jax.Array]]


class Described(Protocol):
    """A `Source` or a `Program`: what tensors it has."""

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

    Args:
        tree, shardings, rename, strict: as for `shardinit.jax.fill`.
        opened: what has the tensors.
        make: makes those that it is given shardings of.
        default: the sharding of a leaf that has none, where there are no `shardings`.
        mesh: its devices are those that shardings must be over; None is any.
    """
    devices = None if mesh is None else frozenset(mesh.devices.flat)
    flat = flatten(shardings) if isinstance(shardings, Mapping) else None
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    streams = streams_of(tree)

    def sharding_of(info: TensorInfo, leaf: Any) -> Sharding | str:
        """The sharding of a leaf, or why there is none."""
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
        found = sharding_of(info, leaf)
        if isinstance(found, str):
            mismatching[path] = found
            continue
        chosen[path] = found
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
    filled = [
        leaf if path is None else arrays[path]
        for path, (_, leaf) in zip(paths, leaves, strict=True)
    ]
    return jax.tree_util.tree_unflatten(structure, filled)


def _path_in(
    opened: Described,
    keys: Any,
    leaf: Any,
    rename: Callable[[str], str] | None,
    streams: frozenset[str],
) -> str | None:
    """The leaf's path among the tensors, or that which is missing; None: it stays as it is."""
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
        return f"{type(sharding).__name__} is no sharding"
    if devices is not None and sharding.device_set != devices:
        return f"its {len(sharding.device_set)} devices are not the {len(devices)} of the mesh"
    x64 = jax.config.read("jax_enable_x64")  # type: ignore[no-untyped-call]
    if info.numpy_dtype.itemsize == 8 and not x64:
        return f"is {info.dtype}, but jax_enable_x64 is off"
    try:
        sharding.shard_shape(info.global_shape)
    except (ValueError, IndexError) as error:
        return str(error).splitlines()[0]
    return ""


def reader(opened: Source, verify: bool) -> Make:
    return lambda chosen: {
        path: _array(opened, path, each, verify) for path, each in chosen.items()
    }


def _array(checkpoint: Source, path: str, sharding: Sharding, verify: bool) -> jax.Array:
    info = checkpoint.info(path)
    # Devices with the same slice share it: no byte is read twice.
    seen: dict[Any, np.ndarray[Any, Any]] = {}

    def read(index: tuple[slice, ...] | None) -> np.ndarray[Any, Any]:
        slices = index or ()
        key = tuple(part.indices(n) for part, n in zip(slices, info.global_shape, strict=True))
        if key not in seen:
            seen[key] = checkpoint.read(path, slices, verify=verify)
        return seen[key]

    return jax.make_array_from_callback(info.global_shape, sharding, read, dtype=info.numpy_dtype)
