"""Loads checkpoints and specs into JAX: sharded arrays, nested dicts, and pytrees.

    import shardinit

    arrays = shardinit.jax.load("DIR", shardings)                # {path: jax.Array}
    params = shardinit.jax.load("DIR", shardings, nested=True)   # {"model": {"norm": …}}
    model = shardinit.jax.fill(skeleton, "DIR", shardings)       # any pytree
    arrays = shardinit.jax.init_sharded("SPEC", shardings)       # without files
    arrays = shardinit.jax.run("SPEC", mesh)                     # computed on the devices
    model = shardinit.jax.init_model(Model, mesh, shardings)     # captured, sharded, and filled

All functions except `run` create arrays with ``jax.make_array_from_callback``: a process reads or
generates the slices of its own devices, each slice once. A sharding must divide a tensor evenly, as
JAX requires. The checkpoint's own sharding does not matter.

Functions that take a checkpoint also take an open spec (`shardinit.open_spec`).
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

try:
    import jax
except ImportError as error:
    raise ImportError('shardinit.jax needs JAX: pip install "jax[cpu]"') from error
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from . import _jax_load
from ._checkpoint import Folder, as_source
from ._errors import MismatchError
from ._jax_load import Shardings, choose, fill_tree, load_arrays, nest, path_of, reader
from ._source import TensorInfo
from ._spec import AnySpec, Sets, as_spec

__all__ = [
    "fill",
    "init_model",
    "init_sharded",
    "load",
    "mesh_of",
    "nest",
    "path_of",
    "run",
    "shardings_of",
]


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
        checkpoint: a folder or URL, or an open checkpoint or spec.
        shardings: one ``Sharding`` for all; or a dict from path (or nested, as `nest` returns it)
            to ``Sharding``, with exactly the paths that are loaded; or a function of a
            `TensorInfo`, such as `shardings_of` returns. None puts all on the first local device.
        keys: the paths to read; None is all.
        nested: return nested dicts, one level for each part of a path, like Flax.
        verify: check the digests of all boxes that are read.

    Returns:
        Path → ``jax.Array`` of the stored dtype and the global shape.

    Raises:
        MismatchError: paths of `keys` or `shardings` that the checkpoint does not have,
            paths without a sharding, shardings that do not divide a tensor, and 64-bit
            tensors while ``jax_enable_x64`` is off; the message names them all.
        NotACheckpointError, FormatError, DamageError: as for `Checkpoint.read`.
    """
    opened = as_source(checkpoint, "shardinit.jax.init_sharded")
    return load_arrays(opened, reader(opened, verify), shardings, keys, nested)


def init_sharded(
    spec: AnySpec,
    shardings: Shardings = None,
    *,
    set: Sets = (),
    layout: str | None = None,
    keys: Iterable[str] | None = None,
    nested: bool = False,
) -> dict[str, Any]:
    """Generates tensors of a spec as global arrays, without files: for each device only its slices.

    Args:
        spec: a YAML file, a mapping as for `shardinit.open_spec`, or an open spec.
        set, layout: as for `shardinit.open_spec`; not for an open spec.
        shardings, keys, nested: as for `load`.

    Returns:
        The arrays that `load` returns for a checkpoint of the spec, bit for bit.

    Raises:
        MismatchError: as for `load`.
        SpecError, LibraryError: as for `shardinit.open_spec`.
    """
    opened = as_spec(spec, set, layout, "shardinit.jax.load")
    return load(opened, shardings, keys=keys, nested=nested)


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
        checkpoint, verify: as for `load`.
        shardings: as for `load`. None uses the leaf's own sharding, if it has one.
        rename: maps a leaf's name, as `path_of` returns it, to its path in the checkpoint.
        strict: raise an error if the checkpoint has more tensors.

    Returns:
        A tree of the same structure, with arrays as `load` returns them.

    Raises:
        MismatchError: tensors are missing, unexpected, or have another shape or dtype; the message
            names them all.
        NotACheckpointError, FormatError, DamageError: as for `Checkpoint.read`.
    """
    opened = as_source(checkpoint, "shardinit.jax.init_sharded")
    make = reader(opened, verify)
    return fill_tree(tree, opened, make, shardings, lambda info: choose(None, info), rename, strict)


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
    """Generates tensors on the devices of a mesh, each its own shards, with the same bits as files.

        arrays = shardinit.jax.run("SPEC", mesh)                  # {path: jax.Array}
        model = shardinit.jax.run("SPEC", mesh, tree=skeleton)    # any pytree

    The devices run StableHLO, which ``shardinit program`` writes. Tensors that differ only in keys
    and parameters share one compiled program, and another seed compiles nothing. With
    ``jax_compilation_cache_dir``, compiled programs are cached for the next process.

    Args:
        program: a spec, for which ``shardinit program --kinds`` is run; a folder that this command
            wrote; or a file ``*.mlir`` of one module for all tensors.
        mesh: the devices.
        shardings: shardings over these devices, as for `load`. None uses the spec's partitions,
            over the axes of the same names, of any sizes; with ``uneven: pad``, tensors are padded
            for these sizes. With `shardings`, tensors have the spec's own sizes.
        set, layout: as for `shardinit.open_spec`, for a spec.
        keys, nested: as for `load`.
        tree, rename, strict: fill this pytree instead, as `fill` does. Without `shardings`, leaves
            keep shardings that are over these devices.

    Returns:
        Path → ``jax.Array`` of the stored dtype and the global shape; with `nested`, nested dicts;
        with `tree`, a tree of the same structure.

    Raises:
        SpecError: the spec is invalid, or no program can generate one of its tensors, such as a
            large orthogonal matrix; the text is ``shardinit``'s message.
        LibraryError: the program ``shardinit`` is not found.
        FormatError: ``shardinit program`` did not write the folder or module.
        MismatchError: as for `load` and `fill`; also if the mesh lacks an axis that shards tensors,
            has several devices for a program of one rank, or shardings are over other devices.
        TypeError: the arguments cannot be combined.
    """
    from ._jax_program import open_program  # No other function needs this import.
    _check_run(program, mesh, tree, keys is not None or nested, rename is not None or not strict)
    opened = open_program(program, mesh, shardings is not None, set, layout)
    make = functools.partial(opened.make, mesh)
    partitions = opened.partitions(mesh) if shardings is None else {}

    def default(info: TensorInfo) -> Sharding:
        return _jax_load.named_sharding(mesh, partitions[info.path])

    if tree is not None:
        return fill_tree(tree, opened, make, shardings, default, rename, strict, mesh)
    chosen = default if shardings is None else shardings
    return load_arrays(opened, make, chosen, keys, nested, frozenset(mesh.devices.flat))


def _check_run(program: Any, mesh: Any, tree: Any, chooses: bool, fits: bool) -> None:
    """Checks the arguments of `run`: some choose tensors, and others fit names to a tree."""
    if not isinstance(mesh, Mesh):
        raise TypeError(f"`mesh` is a jax.sharding.Mesh, not {type(mesh).__name__}")
    if not isinstance(program, (str, os.PathLike)):
        raise TypeError(f"a program is a file or a folder, not {type(program).__name__}")
    if tree is None and fits:
        raise TypeError("`rename` and `strict` are for a `tree`")
    if tree is not None and chooses:
        raise TypeError("a `tree` determines the tensors: omit `keys` and `nested`")


def init_model(
    make: Callable[..., Any],
    mesh: Mesh,
    shardings: Shardings | PartitionSpec | Mapping[str, Any] = None,
    spec: AnySpec | None = None,
    *,
    seed: int | None = None,
    engine: str | None = None,
    set: Sets = (),
    layout: str | None = None,
    rename: Callable[[str], str] | None = None,
    on_devices: bool = False,
) -> Any:
    """Constructs a model whose arrays are sharded over a mesh, with only its slices on each device.

        model = shardinit.jax.init_model(lambda key: Model(config, key=key), mesh, shardings)

    Without a spec, the function is captured, as by `shardinit.capture.jax`. ``jax.eval_shape``
    gives its shapes, and then its arrays are filled as by `fill`: no device or process holds a
    sharded array whole. JAX keys in the model are the keys that the function itself creates.

    Args:
        make: a class or function that returns a pytree: a model of Equinox or Flax NNX, or the
            variables of Flax Linen or Haiku. A parameter ``key`` or ``rng`` gets
            ``jax.random.key(seed)``, and ``rngs`` a ``flax.nnx.Rngs(seed)``. `make` is called
            several times, and must do the same each time.
        mesh: the devices.
        shardings: as for `load`, over these devices; a ``PartitionSpec`` is over the mesh. None
            uses a leaf's own sharding, or the spec's partition, over the axes of the same names. An
            array that neither shards is whole on every device.
        spec: a YAML file, a mapping as for `shardinit.open_spec`, or an open spec. None captures
            the function.
        seed, engine: for the capture: ``engine="jax_threefry"`` reproduces the function's own
            numbers, as described at `shardinit.capture.jax`. The defaults are 0 and ``philox4x32``.
        set, layout: as for `shardinit.open_spec`; not for an open spec.
        rename: maps a leaf's name, as `path_of` returns it, to its path in the spec.
        on_devices: generate the values on the devices, as `run` does; `spec` must then be a file.
            The values do not change.

    Returns:
        The model that `make` returns, with ``jax.Array``s over the mesh.

    Raises:
        CaptureError: a spec cannot represent the function, or the function fails; the message names
            all arrays that could not be followed, with the reasons.
        MismatchError: the spec is of another model, the mesh lacks an axis, or shardings are over
            other devices or do not divide an array; the message names all differences.
        TypeError: the arguments cannot be combined.
        SpecError, LibraryError: as for `shardinit.open_spec`, and with `on_devices` as for `run`.
    """
    from . import _jax_init_model as of  # No other function needs this import.

    options = (seed, engine, set, layout, rename, run if on_devices else None)
    return of.init_model(make, mesh, shardings, spec, *options)


def mesh_of(checkpoint: Folder, devices: Iterable[Any] | None = None) -> Mesh:
    """Returns the mesh that a checkpoint or spec is sharded over, with the spec's device order.

        mesh = shardinit.jax.mesh_of("DIR")
        arrays = shardinit.jax.load("DIR", shardinit.jax.shardings_of("DIR", mesh))

    Args:
        checkpoint: as for `load`.
        devices: the devices to use; None is ``jax.devices()``. If the spec's mesh has ``slices`` or
            ``devices``, the manifest gives each device's place by its id. Otherwise, and always for
            an open spec, they are used in the given order.

    Raises:
        MismatchError: there are more or fewer devices than ranks, or the devices have other ids.
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
    """Returns the checkpoint's or spec's own partitions, over a mesh with axes of the same names.

    The axes may have other sizes, and the mesh may have more axes.

    Raises:
        MismatchError: partitions name an axis that `mesh` does not have, or have segments, a stage,
            or nested axes that do not divide a dimension, for which there is no ``NamedSharding``.
            The message names them all.
        DamageError: ``plan.json`` is missing, or belongs to another checkpoint.
    """
    opened = as_source(checkpoint, "shardinit.jax.init_sharded")
    specs = {path: opened.partition_spec(path) for path in opened.tensors}
    mismatching = {
        path: "has segments, a stage or axes that shard one after the other, which JAX has not"
        for path in specs
        if opened.is_extended(path)
    }
    mismatching |= {
        path: f"is sharded over the axis `{axis}`, which the mesh does not have"
        for path, spec in specs.items()
        for axes in spec
        for axis in axes
        if axis not in mesh.axis_names
    }
    if mismatching:
        raise MismatchError(f"cannot shard {opened.where}", mismatching=mismatching)
    return {path: _jax_load.named_sharding(mesh, spec) for path, spec in specs.items()}


def __dir__() -> list[str]:
    return sorted(__all__)
