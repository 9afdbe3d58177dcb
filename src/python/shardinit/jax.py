"""Brings checkpoints and specs into JAX: sharded arrays, nested dicts, and pytrees.

    import shardinit

    arrays = shardinit.jax.load("DIR", shardings)                # {path: jax.Array}
    params = shardinit.jax.load("DIR", shardings, nested=True)   # {"model": {"norm": …}}
    model = shardinit.jax.fill(skeleton, "DIR", shardings)       # any pytree
    arrays = shardinit.jax.init_sharded("SPEC", shardings)       # without files
    arrays = shardinit.jax.run("SPEC", mesh)                     # made by the devices themselves
    model = shardinit.jax.init_model(Model, mesh, shardings)     # captured, sharded, and filled

But for `run`, every array is made by ``jax.make_array_from_callback``: a process reads or makes
the slices of its own devices, and each slice once. A sharding has to divide a tensor evenly, as
JAX demands; how the checkpoint is sharded does not matter.

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
        checkpoint: a folder or URL, or a checkpoint or spec that is open.
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
    """Makes tensors of a spec as global arrays, without files: for each device its slice alone.

    Args:
        spec: a YAML file, a mapping as for `shardinit.open_spec`, or a spec that is open.
        set, layout: as for `shardinit.open_spec`; not for a spec that is open.
        shardings, keys, nested: as for `load`.

    Returns:
        What `load` returns for a checkpoint of the spec, bit for bit.

    Raises:
        MismatchError: as `load`.
        SpecError, LibraryError: as `shardinit.open_spec`.
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
        shardings: as for `load`. None takes the leaf's own sharding, if it has one.
        rename: a leaf's name, as `path_of` makes it, → its path in the checkpoint.
        strict: whether it is an error if the checkpoint has more tensors.

    Returns:
        A tree of the same structure, its arrays as `load` returns them.

    Raises:
        MismatchError: tensors are missing, unexpected, or have another shape or dtype; it
            names them all.
        NotACheckpointError, FormatError, DamageError: as `Checkpoint.read`.
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
    """Has a mesh's devices make the tensors, each its own shards: the bits that files would have.

        arrays = shardinit.jax.run("SPEC", mesh)                  # {path: jax.Array}
        model = shardinit.jax.run("SPEC", mesh, tree=skeleton)    # any pytree

    The devices run StableHLO, which ``shardinit program`` writes. Tensors that differ in their keys
    and parameters alone share one compiled program, another seed compiles nothing, and where
    ``jax_compilation_cache_dir`` is set, programs are kept there for the next process.

    Args:
        program: a spec, whose program ``shardinit program --kinds`` writes; a folder that it wrote;
            or a file ``*.mlir`` of one module for all tensors.
        mesh: the devices.
        shardings: shardings over these devices, as for `load`. None is how the spec shards its
            tensors, over the axes of the same names, of any sizes; with ``uneven: pad``, tensors
            are as long as these sizes ask for. With `shardings`, tensors have the spec's own sizes.
        set, layout: as for `shardinit.open_spec`, for a spec.
        keys, nested: as for `load`.
        tree, rename, strict: fill this pytree instead, as `fill` does. Without `shardings`, leaves
            keep shardings that are over these devices.

    Returns:
        Path → ``jax.Array`` of the stored dtype and the global shape; with `nested` dicts in
        dicts; with `tree` a tree of its structure.

    Raises:
        SpecError: the spec is invalid, or no program makes one of its tensors, such as a large
            orthogonal matrix; the text is what ``shardinit`` reports.
        LibraryError: the program ``shardinit`` is not there.
        FormatError: a folder or module that ``shardinit program`` did not write.
        MismatchError: as `load` and `fill`; and the mesh lacks an axis that shards tensors,
            has several devices for a program of one rank, or shardings are over other devices.
        TypeError: the arguments do not go together.
    """
    from ._jax_program import open_program  # No other function needs what this imports.
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
    """Checks arguments of `run`: those that choose tensors, and those that fit names to a tree."""
    if not isinstance(mesh, Mesh):
        raise TypeError(f"`mesh` is a jax.sharding.Mesh, not {type(mesh).__name__}")
    if not isinstance(program, (str, os.PathLike)):
        raise TypeError(f"a program is a file or a folder, not {type(program).__name__}")
    if tree is None and fits:
        raise TypeError("`rename` and `strict` are for a `tree`")
    if tree is not None and chooses:
        raise TypeError("a `tree` says which tensors there are: give no `keys`, and not `nested`")


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
    """Makes a model whose arrays are sharded over a mesh, for each device its slices alone.

        model = shardinit.jax.init_model(lambda key: Model(config, key=key), mesh, shardings)

    Without a spec the function is captured, as by `shardinit.capture.jax`. Its shapes are those of
    ``jax.eval_shape``, and then its arrays are filled as by `fill`: no device and no process makes
    an array whole that is sharded. Keys of JAX in the model are those that the function makes.

    Args:
        make: a class or function that returns a pytree: a model of Equinox or Flax NNX, or the
            variables of Flax Linen or Haiku. A parameter ``key`` or ``rng`` gets
            ``jax.random.key(seed)``, and ``rngs`` a ``flax.nnx.Rngs(seed)``. It is called several
            times, and has to do the same each time.
        mesh: the devices.
        shardings: as for `load`, over these devices; a ``PartitionSpec`` is one over the mesh. None
            is a leaf's own sharding, or how the spec shards its tensors, over the axes of the same
            names. What neither shards is whole on every device.
        spec: a YAML file, a mapping as for `shardinit.open_spec`, or a spec that is open. None
            captures the function.
        seed, engine: of the capture: ``engine="jax_threefry"`` gives the numbers that the function
            gives itself, as `shardinit.capture.jax` says. By default 0 and ``philox4x32``.
        set, layout: as for `shardinit.open_spec`; for a spec that is not open.
        rename: a leaf's name, as `path_of` makes it, → its path in the spec.
        on_devices: have the devices make the values, as `run` does, which `spec` has to be a file
            for. None of the values changes.

    Returns:
        What `make` returns, with ``jax.Array``s over the mesh.

    Raises:
        CaptureError: no spec can stand for the function, or it fails: all its arrays that cannot be
            followed are named, with the reason.
        MismatchError: the spec is of another model, the mesh lacks an axis, or shardings are over
            other devices or do not divide an array; all that differs is named.
        TypeError: the arguments do not go together.
        SpecError, LibraryError: as `shardinit.open_spec`, and with `on_devices` as `run`.
    """
    from . import _jax_init_model as of  # No other function needs what this imports.

    options = (seed, engine, set, layout, rename, run if on_devices else None)
    return of.init_model(make, mesh, shardings, spec, *options)


def mesh_of(checkpoint: Folder, devices: Iterable[Any] | None = None) -> Mesh:
    """The mesh that a checkpoint or spec is sharded over, its devices where the spec put them.

        mesh = shardinit.jax.mesh_of("DIR")
        arrays = shardinit.jax.load("DIR", shardinit.jax.shardings_of("DIR", mesh))

    Args:
        checkpoint: as for `load`.
        devices: the devices to use; None is ``jax.devices()``. Where the spec's mesh has ``slices``
            or ``devices``, each goes by its id to the place that the manifest gives it; otherwise
            they are taken in their order, as they always are for an open spec.

    Raises:
        MismatchError: there are more or fewer devices than ranks, or devices of other ids.
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
    """The checkpoint's or spec's own partitions, over a mesh with axes of the same names.

    The axes may have other sizes, and there may be more of them.

    Raises:
        MismatchError: partitions name an axis which `mesh` does not have, or no
            ``NamedSharding`` can say them: segments, stages, and axes that shard one after the
            other what they do not divide. It names them all.
        DamageError: ``plan.json`` is missing, or is another one.
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
