"""Checkpoints and specs into JAX: sharded arrays, nested dicts for Flax, pytrees for Equinox.

    import shardinit

    arrays = shardinit.jax.load("DIR", shardings)                # {path: jax.Array}
    params = shardinit.jax.load("DIR", shardings, nested=True)   # {"model": {"norm": …}}
    model = shardinit.jax.fill(skeleton, "DIR", shardings)       # any pytree
    arrays = shardinit.jax.init_sharded("SPEC", shardings)       # without files
    arrays = shardinit.jax.run("SPEC", mesh)                     # made by the devices themselves

But for `run`, every array is made by ``jax.make_array_from_callback``: a process reads or makes
the slices of its own devices, and each slice once. A sharding has to divide a tensor evenly, as
JAX demands; how the checkpoint is cut does not matter.

Where a checkpoint is asked for, a spec that is open (`shardinit.open_spec`) will do.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

try:
    import jax
except ImportError as error:
    raise ImportError('shardinit.jax needs JAX: pip install "jax[cpu]"') from error
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
)

from ._checkpoint import Folder, as_source
from ._errors import MismatchError
from ._source import Source, TensorInfo
from ._spec import Sets, Spec, as_spec

__all__ = ["fill", "init_sharded", "load", "mesh_of", "nest", "path_of", "run", "shardings_of"]

Shardings = Sharding | Mapping[str, Any] | Callable[[TensorInfo], Sharding] | None
Make = Callable[[Mapping[str, Sharding]], Mapping[str, jax.Array]]


class _Described(Protocol):
    """What is known of tensors before there are any: of a `Source` or a `Program`."""

    @property
    def tensors(self) -> Mapping[str, Any]: ...
    @property
    def noun(self) -> str: ...
    @property
    def where(self) -> str: ...
    def info(self, path: str) -> TensorInfo: ...


def load(
    checkpoint: Folder,
    shardings: Shardings = None,
    *,
    keys: Iterable[str] | None = None,
    nested: bool = False,
    verify: bool = False,
) -> dict[str, Any]:
    """Reads tensors as global arrays.

    Args:
        checkpoint: a folder, or a checkpoint or spec that is open.
        shardings: one ``Sharding`` for all; or a dict from path (or nested, as `nest`
            makes it) to ``Sharding``, with exactly the paths that are loaded; or a function
            of a `TensorInfo`, such as `shardings_of` returns. None is the first local device.
        keys: the paths to read; None is all.
        nested: return dicts in dicts, one level for each part of a path, as Flax has them.
        verify: check the digests of all boxes that are touched.

    Returns:
        Path → ``jax.Array`` of the stored dtype and the global shape.

    Raises:
        MismatchError: paths of `keys` or `shardings` that the checkpoint does not have,
            paths without a sharding, shardings that do not divide a tensor, and 64-bit
            tensors while ``jax_enable_x64`` is off; it names them all.
        NotACheckpointError, FormatError, DamageError: as `Checkpoint.read`.
    """
    opened = as_source(checkpoint, "shardinit.jax.init_sharded")
    return _load(opened, _reader(opened, verify), shardings, keys, nested)


def init_sharded(
    spec: str | os.PathLike[str] | Spec,
    shardings: Shardings = None,
    *,
    set: Sets = (),
    layout: str | None = None,
    keys: Iterable[str] | None = None,
    nested: bool = False,
) -> dict[str, Any]:
    """Makes tensors of a spec as global arrays, without files; each device's slice alone.

    Args:
        spec: a YAML file, or a spec that is open.
        set, layout: as for `shardinit.open_spec`; not for a spec that is open.
        shardings, keys, nested: as for `load`.

    Returns:
        What `load` returns for a checkpoint of the spec, bit for bit.

    Raises:
        MismatchError: as `load`.
        SpecError, LibraryError: as `shardinit.open_spec`.
    """
    return load(
        as_spec(spec, set, layout, "shardinit.jax.load"), shardings, keys=keys, nested=nested
    )


def fill(
    tree: Any,
    checkpoint: Folder,
    shardings: Shardings = None,
    *,
    rename: Callable[[str], str] | None = None,
    strict: bool = True,
    verify: bool = False,
) -> Any:
    """Fills a pytree, such as an Equinox model or a Flax NNX state.

        skeleton = eqx.filter_eval_shape(Model, key)
        model = shardinit.jax.fill(skeleton, "DIR", shardings)

    Args:
        tree: leaves with a shape and a dtype (``jax.ShapeDtypeStruct`` or arrays) are
            replaced; others stay as they are.
        checkpoint: a folder, or a checkpoint or spec that is open.
        shardings: as for `load`. None takes the leaf's own sharding, if it has one.
        rename: a leaf's name, as `path_of` makes it, → its path in the checkpoint.
        strict: that the checkpoint has more tensors is an error.
        verify: check the digests of all boxes that are touched.

    Returns:
        A tree of the same structure, its arrays as `load` returns them.

    Raises:
        MismatchError: tensors are missing, unexpected, or have another shape or dtype; it
            names them all.
        NotACheckpointError, FormatError, DamageError: as `Checkpoint.read`.
    """
    opened = as_source(checkpoint, "shardinit.jax.init_sharded")
    make = _reader(opened, verify)
    return _fill(tree, opened, make, shardings, lambda info: _choose(None, info), rename, strict)


def run(
    program: str | os.PathLike[str],
    mesh: Mesh,
    shardings: Shardings = None,
    *,
    set: Sets = (),
    layout: str | None = None,
    keys: Iterable[str] | None = None,
    nested: bool = False,
    tree: Any = None,
    rename: Callable[[str], str] | None = None,
    strict: bool = True,
) -> Any:
    """Has a mesh's devices make the tensors, each its own shards: the bits that files would have.

        arrays = shardinit.jax.run("SPEC", mesh)                  # {path: jax.Array}
        model = shardinit.jax.run("SPEC", mesh, tree=skeleton)    # any pytree

    What runs is StableHLO, which ``shardinit program`` writes. Tensors that differ in their keys
    and parameters alone share one compiled program, another seed compiles nothing, and where
    ``jax_compilation_cache_dir`` is set, all are kept there for the next process.

    Args:
        program: a spec, whose program ``shardinit program --kinds`` writes; the folder that this
            wrote; or a file ``*.mlir`` of one module for all tensors.
        mesh: the devices.
        shardings: over these devices, as for `load`. None is how the spec cuts its tensors, over
            the axes of the same names, of any sizes; with ``uneven: pad``, tensors are as long as
            these sizes ask for. Those that are given are of a spec's tensors as they are.
        set, layout: as for `shardinit.open_spec`, for a spec.
        keys, nested: as for `load`.
        tree, rename, strict: fill this pytree instead, as `fill` does. With no `shardings`, those
            of its leaves count that are over these devices.

    Returns:
        Path → ``jax.Array`` of the stored dtype and the global shape; with `nested` dicts in
        dicts; with `tree` a tree of its structure.

    Raises:
        SpecError: what ``shardinit`` reports: the spec is invalid, or no program makes one of its
            tensors, such as a large orthogonal matrix.
        LibraryError: the program ``shardinit`` is not there.
        FormatError: a folder or module that ``shardinit program`` did not write.
        MismatchError: as `load` and `fill`; and the mesh lacks an axis that tensors are cut over,
            has several devices for a program of one rank, or shardings are over other devices.
        TypeError: arguments that do not go together.
    """
    from ._jax_program import open_program  # Which other functions do not need.

    if not isinstance(mesh, Mesh):
        raise TypeError(f"`mesh` is a jax.sharding.Mesh, not {type(mesh).__name__}")
    if not isinstance(program, (str, os.PathLike)):
        raise TypeError(f"a program is a file or a folder, not {type(program).__name__}")
    if tree is None and (rename is not None or not strict):
        raise TypeError("`rename` and `strict` are for a `tree`")
    if tree is not None and (keys is not None or nested):
        raise TypeError("a `tree` says which tensors there are: give no `keys`, and not `nested`")
    opened = open_program(program, mesh, shardings is not None, set, layout)
    opened.check(mesh)
    devices = frozenset(mesh.devices.flat)

    def make(chosen: Mapping[str, Sharding]) -> dict[str, jax.Array]:
        return opened.make(mesh, chosen)

    cuts = opened.partitions(mesh) if shardings is None else {}

    def default(info: TensorInfo) -> Sharding:
        return _named_sharding(mesh, cuts[info.path])

    if tree is not None:
        return _fill(tree, opened, make, shardings, default, rename, strict, mesh)
    return _load(opened, make, default if shardings is None else shardings, keys, nested, devices)


def _load(
    opened: _Described,
    make: Make,
    shardings: Shardings,
    keys: Iterable[str] | None,
    nested: bool,
    devices: frozenset[Any] | None = None,
) -> dict[str, Any]:
    """`load`, from anything. `devices`: those that shardings must be over."""
    wanted = list(opened.tensors) if keys is None else list(keys)
    missing = [path for path in wanted if path not in opened.tensors]
    unexpected: list[str] = []
    if isinstance(shardings, Mapping):
        flat = _flatten(shardings)
        unexpected = [path for path in wanted if path not in flat and path not in missing]
        missing += [path for path in flat if path not in opened.tensors and path not in missing]
        chosen = flat
    else:
        chosen = {p: _choose(shardings, opened.info(p)) for p in wanted if p not in missing}
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


def _fill(
    tree: Any,
    opened: _Described,
    make: Make,
    shardings: Shardings,
    default: Callable[[TensorInfo], Sharding],
    rename: Callable[[str], str] | None,
    strict: bool,
    mesh: Mesh | None = None,
) -> Any:
    """`fill`, from anything.

    `default` is of leaves that have no sharding, if there are no `shardings`; `mesh` has the devices
    that shardings must be over.
    """
    devices = None if mesh is None else frozenset(mesh.devices.flat)
    flat = _flatten(shardings) if isinstance(shardings, Mapping) else None
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    streams = _streams(tree)
    paths: list[str | None] = []
    chosen: dict[str, Any] = {}
    missing: list[str] = []
    mismatching: dict[str, str] = {}
    for keys, leaf in leaves:
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            paths.append(None)
            continue
        path = ".".join(parts_of(keys))
        if path not in opened.tensors or rename:
            path = rename(path_of(keys)) if rename else path_of(keys)
        if path not in opened.tensors and jax.tree_util.keystr(keys) in streams:
            paths.append(None)
            continue
        paths.append(path)
        if path not in opened.tensors:
            missing.append(path)
            continue
        info = opened.info(path)
        if flat is not None:
            if path not in flat:
                mismatching[path] = "has no sharding"
                continue
            chosen[path] = flat[path]
        elif shardings is None:
            try:
                own = _own_sharding(leaf, mesh)
            except MismatchError as error:
                mismatching[path] = str(error)
                continue
            fits = own is not None and (devices is None or own.device_set == devices)
            chosen[path] = own if fits else default(info)
        else:
            chosen[path] = _choose(shardings, info)
        why = _mismatch(info, chosen[path], devices)
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


def _streams(tree: Any) -> frozenset[str]:
    """Where Flax NNX has the keys and counters of its random streams, as those of ``nnx.Dropout``."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return frozenset()
    leaves = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: isinstance(node, nnx.RngState)
    )[0]
    found = [(keys, leaf) for keys, leaf in leaves if isinstance(leaf, nnx.RngState)]
    return frozenset(
        jax.tree_util.keystr((*keys, *inner))
        for keys, state in found
        for inner, _ in jax.tree_util.tree_flatten_with_path(state)[0]
    )


def _own_sharding(leaf: Any, mesh: Mesh | None) -> Sharding | None:
    """A leaf's sharding; one over an ``AbstractMesh``, as skeletons that are made under
    ``jax.set_mesh`` have, is over the mesh of these names.

    Raises:
        MismatchError: no mesh has them.
    """
    own: Sharding | None = getattr(leaf, "sharding", None)
    if not isinstance(own, NamedSharding) or not isinstance(own.mesh, AbstractMesh):
        return own
    named = [a for axes in own.spec if axes for a in ((axes,) if isinstance(axes, str) else axes)]
    if not named and AxisType.Explicit not in own.mesh.axis_types:
        return None  # JAX chooses how it is cut, so nothing is said.
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


def mesh_of(checkpoint: Folder, devices: Iterable[Any] | None = None) -> Mesh:
    """The mesh that a checkpoint or spec is cut over, its devices where the spec put them.

        mesh = shardinit.jax.mesh_of("DIR")
        arrays = shardinit.jax.load("DIR", shardinit.jax.shardings_of("DIR", mesh))

    Args:
        checkpoint: a folder, or a checkpoint or spec that is open.
        devices: those to use; None is ``jax.devices()``. Where the spec's mesh has ``slices`` or
            ``devices``, each goes by its id to the place that the manifest gives it; else they
            are taken in their order. A spec that is open does not say.

    Raises:
        MismatchError: there are more or fewer devices than ranks, or others.
    """
    opened = as_source(checkpoint, "shardinit.jax.init_sharded")
    given = list(jax.devices() if devices is None else devices)
    wanted = [device.id for device in getattr(opened, "devices", ())]
    shape = opened.mesh.shape
    if len(given) != math.prod(shape):
        what = f"{opened.where} has {math.prod(shape)} ranks, but there are {len(given)} devices"
        raise MismatchError(what)
    by_id = {device.id: device for device in given}
    if missing := [each for each in wanted if each not in by_id]:
        raise MismatchError(f"{opened.where} has device {missing[0]}, which is not there")
    ordered = np.empty(len(given), object)
    ordered[:] = [by_id[each] for each in wanted] if wanted else given
    return Mesh(ordered.reshape(shape), opened.mesh.axes)


def shardings_of(checkpoint: Folder, mesh: Mesh) -> dict[str, NamedSharding]:
    """The checkpoint's or spec's own partition of tensors, over a mesh with axes of these names.

    The mesh may have other sizes than theirs, and more axes.

    Raises:
        MismatchError: partitions that name an axis which `mesh` does not have, or that no
            ``NamedSharding`` says: segments, stages, and axes that cut one after the other what
            they do not divide. It names them all.
        DamageError: ``plan.json`` is missing, or is another one.
    """
    opened = as_source(checkpoint, "shardinit.jax.init_sharded")
    specs = {path: opened.partition_spec(path) for path in opened.tensors}
    mismatching = {
        path: "has segments, a stage or axes that cut one after the other, which JAX has not"
        for path in specs
        if opened.is_extended(path)
    }
    mismatching |= {
        path: f"is cut over the axis `{axis}`, which the mesh does not have"
        for path, spec in specs.items()
        for axes in spec
        for axis in axes
        if axis not in mesh.axis_names
    }
    if mismatching:
        raise MismatchError(f"cannot shard {opened.where}", mismatching=mismatching)
    return {path: _named_sharding(mesh, spec) for path, spec in specs.items()}


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dicts in dicts from paths: ``{"a.b": x}`` → ``{"a": {"b": x}}``."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree


def path_of(keys: Iterable[Any]) -> str:
    """The path of a leaf from JAX's key path: attributes, keys and indices, joined by dots.

    A last attribute ``value`` is left out, which is the array of a Flax NNX variable, and the last
    key of the only array of a node that names none, as Haliax's ``NamedArray``; `fill` does so
    where the checkpoint has no such path.
    """
    keys = list(keys)
    unnamed = bool(keys) and keys[-1] == jax.tree_util.FlattenedIndexKey(0)
    if len(keys) > 1 and (unnamed or getattr(keys[-1], "name", "") == "value"):
        keys.pop()
    return ".".join(parts_of(keys))


def _named_sharding(mesh: Mesh, spec: tuple[tuple[str, ...], ...]) -> NamedSharding:
    partition = PartitionSpec(*(axes or None for axes in spec))  # type: ignore[no-untyped-call]
    return NamedSharding(mesh, partition)


def parts_of(keys: Iterable[Any]) -> list[str]:
    """The names of JAX's key path."""
    parts = []
    for key in keys:
        for attribute in ("name", "key", "idx"):  # GetAttrKey; DictKey and others; SequenceKey.
            if hasattr(key, attribute):
                parts.append(str(getattr(key, attribute)))
                break
        else:
            parts.append(str(key))
    return parts


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _choose(shardings: Any, info: TensorInfo) -> Sharding:
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


def _reader(opened: Source, verify: bool) -> Make:
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
