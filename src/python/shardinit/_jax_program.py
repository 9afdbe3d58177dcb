"""Compiles and runs programs of ``shardinit program`` with JAX.

A module becomes a ``jax.export.Exported``, which ``jax.jit`` compiles like any other function: for
given devices and shardings, and with JAX's persistent cache. So a module's own device annotations
are only read, for `Program.partitions`, and then removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from . import _native
from ._errors import FormatError, MismatchError
from ._result_file import require_local
from ._source import Mesh as Grid
from ._source import TensorInfo
from ._spec import Sets, overrides
from ._stablehlo import Module, Partition, read_module


@dataclass(frozen=True)
class Call:
    """A module, its arguments, and the tensors that it returns for them."""

    module: Module
    paths: tuple[str, ...]
    arguments: tuple[np.ndarray[Any, Any], ...]


class Program:
    """A program that JAX can run, and the tensors that it returns.

    Attributes:
        tensors: path → `TensorInfo`, in the order of the spec.
        grid: the mesh that the program was written for; None for a program of one rank.
        noun, where: as for `Source`.
    """

    noun = "program"

    def __init__(
        self, where: str, calls: list[Call], grid: Grid | None, cuts: list[Partition]
    ) -> None:
        self.where, self.grid, self._calls = where, grid, calls
        made = [
            dataclasses.replace(info, path=path)
            for call in calls
            for path, info in zip(call.paths, call.module.results, strict=True)
        ]
        self.tensors = {info.path: info for info in made}
        self._partitions = {info.path: cut for info, cut in zip(made, cuts, strict=True)}

    def info(self, path: str) -> TensorInfo:
        """Returns the `TensorInfo` of a path, which must be in `tensors`."""
        return self.tensors[path]

    def check(self, mesh: Mesh) -> None:
        """Raises MismatchError if no devices of this mesh can run the program."""
        if self.grid is None and mesh.size != 1:
            raise MismatchError(
                f"{self.where} makes what one rank holds, on one device; the mesh has {mesh.size}",
                hint="a program that was written without `--rank` is for all devices",
            )

    def partitions(self, mesh: Mesh) -> dict[str, Partition]:
        """Returns each tensor's partition: for each dimension the mesh axes, the major one first.

        Raises MismatchError if the mesh lacks an axis that shards a tensor.
        """
        sizes = {} if self.grid is None else dict(zip(*dataclasses.astuple(self.grid), strict=True))
        one = {axis for axis, size in sizes.items() if size == 1 and axis not in mesh.axis_names}
        cuts = {
            path: tuple(tuple(axis for axis in axes if axis not in one) for axes in cut)
            for path, cut in self._partitions.items()
        }
        used = {axis for cut in cuts.values() for axes in cut for axis in axes}
        if not used <= set(mesh.axis_names):
            raise _axes_differ(self.where, sizes, mesh)
        return cuts

    def compiled(self, mesh: Mesh, shardings: Mapping[str, Sharding]) -> Iterator[Compiled]:
        """Yields the compiled programs of the tensors that have a sharding."""
        for call in self._calls:
            wanted = tuple(i for i, path in enumerate(call.paths) if path in shardings)
            if not wanted:
                continue
            paths = tuple(call.paths[i] for i in wanted)
            with _in_persistent_cache():
                # Calls that differ only in their arguments share one program.
                program = _compile(call.module, wanted, tuple(map(shardings.get, paths)), mesh)
            yield Compiled(program, paths, call.arguments)

    def make(self, mesh: Mesh, shardings: Mapping[str, Sharding]) -> dict[str, jax.Array]:
        """Generates the tensors that have a sharding, over the devices of the mesh."""
        made: dict[str, jax.Array] = {}
        for each in self.compiled(mesh, shardings):
            made.update(zip(each.paths, each.program(*each.arguments), strict=True))
        return made


@dataclass(frozen=True)
class Compiled:
    """A compiled program, the tensors that it returns, and its arguments."""

    program: jax.stages.Compiled
    paths: tuple[str, ...]
    arguments: tuple[np.ndarray[Any, Any], ...]


def open_program(
    path: str | os.PathLike[str], mesh: Mesh, whole: bool, set: Sets, layout: str | None
) -> Program:
    """Opens a program for `mesh`, from a folder of ``--kinds``, a module's file, or a spec.

    A spec's axes get the sizes of `mesh`. With `whole`, nothing is sharded, since the spec's own
    sharding does not matter. The errors are described at `shardinit.jax.run`.
    """
    name = os.fspath(path)
    require_local(name)
    folder = os.path.isdir(name)
    if not folder and not name.endswith(".mlir"):
        program = _of_spec(name, mesh, whole, set, layout)
    elif set or layout is not None:
        raise TypeError(f"`set` and `layout` are for a spec: `{name}` is a program already")
    else:
        program = _of_folder(name, f"`{name}`") if folder else _of_file(name)
    program.check(mesh)
    return program


def _of_file(name: str) -> Program:
    with open(name, encoding="utf-8") as file:
        module, cuts, grid = read_module(file.read(), name)
    paths = tuple(info.path for info in module.results)
    if len(set(paths)) < len(paths) or "" in paths or any(module.arguments[1:]):
        raise FormatError(
            f"`{name}` is not what `shardinit program` writes: results without names of their own\n"
            "  hint: a module of `--kinds` is run with its folder"
        )
    return Program(f"`{name}`", [Call(module, paths, _zeros(module))], grid, cuts)


def _of_folder(name: str, where: str) -> Program:
    listing = os.path.join(name, "program.json")
    if not os.path.isfile(listing):
        checkpoint = os.path.isfile(os.path.join(name, "manifest.json"))
        raise FormatError(
            f"`{name}` is a checkpoint, not a program: shardinit.jax.load() takes it"
            if checkpoint
            else f"`{name}` has no `program.json`, so `shardinit program --kinds` did not write it"
        )
    with open(listing, encoding="utf-8") as file:
        text = file.read()
    try:
        described = json.loads(text)
        read = [_read_kind(name, kind["file"]) for kind in described["kinds"]]
        calls, cuts = [], []
        for tensor in described["tensors"]:
            module, cut = read[tensor["kind"]]
            part = f"@{tensor['part']}" if tensor.get("part") else ""
            tables = [np.array(words, np.uint32) for words in tensor["tables"]]
            shapes = module.arguments[len(module.arguments) - len(tables) :]
            arguments = (
                *_zeros(module)[: len(module.arguments) - len(tables)],
                *(words.reshape(shape) for words, shape in zip(tables, shapes, strict=True)),
            )
            calls.append(Call(module, (tensor["path"] + part,), arguments))
            cuts.append(cut)
        mesh = described["mesh"]
        alone = described["rank"] is not None
        grid = None if alone else Grid(tuple(mesh["axes"]), tuple(mesh["shape"]))
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise FormatError(
            f"`{listing}` is not what `shardinit program --kinds` writes: "
            f"{type(error).__name__}: {error}"
        ) from error
    return Program(where, calls, grid, cuts)


def _read_kind(folder: str, name: str) -> tuple[Module, Partition]:
    if os.path.basename(name) != name:
        raise ValueError(f"`{name}` leads out of the folder")
    path = os.path.join(folder, name)
    with open(path, encoding="utf-8") as file:
        module, (cut,), _ = read_module(file.read(), path)
    return module, cut


def _of_spec(name: str, mesh: Mesh, whole: bool, set: Sets, layout: str | None) -> Program:
    options = [part for each in overrides(set) for part in ("--set", each)]
    # `uneven=chunk` makes `plan` print the axes even if they do not divide the spec's tensors.
    own = json.loads(_native.run("plan", name, "--json", *options, "--set", "uneven=chunk"))["mesh"]
    sizes = dict(zip(own["axes"], own["shape"], strict=True))
    if not whole and any(n > 1 and axis not in mesh.axis_names for axis, n in sizes.items()):
        raise _axes_differ(f"`{name}`", sizes, mesh)
    if sizes:  # `mesh`, not the spec, decides where each device is.
        axes = {axis: 1 if whole else mesh.shape.get(axis, 1) for axis in sizes}
        options += ["--set", f"mesh={json.dumps({'axes': axes})}"]
    if layout is not None:
        options += ["--layout", layout]
    with tempfile.TemporaryDirectory(prefix="shardinit-") as folder:
        kinds = os.path.join(folder, "kinds")
        _native.run("program", name, "--kinds", "-o", kinds, *options)
        return _of_folder(kinds, f"`{name}`")


def _axes_differ(where: str, axes: Iterable[str], mesh: Mesh) -> MismatchError:
    """Returns the error about a program and a mesh whose axes have other names."""
    named = [", ".join(f"`{a}`" for a in each) or "no axis" for each in (axes, mesh.axis_names)]
    return MismatchError(
        f"{where} is sharded over the mesh axes {named[0]}; this mesh has {named[1]}",
        hint="give the mesh axes of these names, of any sizes, or give `shardings`",
    )


def _zeros(module: Module) -> tuple[np.ndarray[Any, Any], ...]:
    """Returns the arguments of a module whose tables are constants: one zero, or none."""
    return tuple(np.zeros(shape, np.uint32) for shape in module.arguments)


@functools.lru_cache(maxsize=256)
def _compile(
    module: Module, wanted: tuple[int, ...], shardings: tuple[Sharding, ...], mesh: Mesh
) -> jax.stages.Compiled:
    """Compiles a function that returns the `wanted` results of a module, with these shardings."""
    arguments = [jax.ShapeDtypeStruct(s, np.uint32) for s in module.arguments]  # type: ignore[no-untyped-call]

    def empty(*_: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(jnp.zeros(each.global_shape, each.numpy_dtype) for each in module.results)

    # The export of a function with this signature is right, except for the module itself.
    signature = export.export(
        jax.jit(empty), disabled_checks=[export.DisabledSafetyCheck.platform()]
    )(*arguments)
    exported = dataclasses.replace(
        signature,
        mlir_module_serialized=module.artifact,
        module_kept_var_idx=tuple(range(len(arguments))),
    )

    def shardinit(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        results = exported.call(*arguments)  # type: ignore[no-untyped-call]
        return tuple(results[i] for i in wanted)

    everywhere = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]
    jitted = jax.jit(
        shardinit, in_shardings=(everywhere,) * len(arguments), out_shardings=shardings
    )
    return jitted.lower(*arguments).compile()


@contextlib.contextmanager
def _in_persistent_cache() -> Iterator[None]:
    """Makes JAX's persistent cache, if there is one, also keep programs that compile quickly."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, 0.0)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        jax.config.update(name, before)  # type: ignore[no-untyped-call]
