"""Reads StableHLO modules with jaxlib: arguments, results and shardings of ``@main``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo
from jax.interpreters import mlir

from . import _dtypes
from ._errors import FormatError
from ._source import Mesh, Shape, TensorInfo

Partition = tuple[tuple[str, ...], ...]  # For each dimension, the mesh axes that shard it.


@dataclass(frozen=True)
class Module:
    """A StableHLO module, without its device annotations.

    Attributes:
        artifact: the module, in StableHLO's portable form.
        arguments: shapes of the arguments of ``@main``, which are all u32.
        results: the tensor of each result; its path is empty if the result has no name.
    """

    artifact: bytes
    arguments: tuple[Shape, ...]
    results: tuple[TensorInfo, ...]


def read_module(text: str, name: str) -> tuple[Module, list[Partition], Mesh | None]:
    """Reads a module, the partitions of its results, and its mesh or None.

    Raises:
        FormatError: jaxlib cannot read the module, or it has no function ``@main`` of u32.
    """
    with mlir.make_ir_context():
        try:
            module = ir.Module.parse(text)
            main: Any = None
            grid = None
            operations: list[Any] = list(module.body.operations)
            for operation in operations:
                if operation.operation.name == "sdy.mesh":
                    axes = [sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(operation.mesh).axes]
                    grid = Mesh(tuple(a.name for a in axes), tuple(a.size for a in axes))
                    operation.operation.erase()
                elif operation.operation.name == "func.func" and operation.sym_name.value == "main":
                    main = operation
            if main is None:
                raise ValueError("the function `@main` is missing")
            arguments = [_type(each) for each in main.type.inputs]
            if any(dtype != "u32" for dtype, _ in arguments):
                raise ValueError("arguments of `@main` are not of the type `ui32`")
            types = [_type(each) for each in main.type.results]
            noted = list(main.attributes["res_attrs"]) if "res_attrs" in main.attributes else []
            noted = [ir.DictAttr(each) for each in noted] or [ir.DictAttr.get({})] * len(types)
            names = [
                ir.StringAttr(each["jax.result_info"]).value if "jax.result_info" in each else ""
                for each in noted
            ]
            cuts = [_axes(each, len(shape)) for each, (_, shape) in zip(noted, types, strict=True)]
            for attributes in ("arg_attrs", "res_attrs"):
                if attributes in main.attributes:
                    del main.attributes[attributes]
            for attribute in list(module.operation.attributes):
                if str(attribute).startswith("mhlo."):
                    del module.operation.attributes[attribute]
            artifact = stablehlo.serialize_portable_artifact_str(
                str(module), stablehlo.get_current_version()
            )
        except (ir.MLIRError, ValueError, KeyError, AttributeError) as error:
            raise FormatError(f"`{name}` is not a program that jaxlib reads: {error}") from error
    results = tuple(
        TensorInfo(name, dtype, shape) for name, (dtype, shape) in zip(names, types, strict=True)
    )
    return Module(bytes(artifact), tuple(shape for _, shape in arguments), results), cuts, grid


def _type(of: Any) -> tuple[str, Shape]:
    """Returns the dtype, as specs write it, and the shape of a tensor's type."""
    tensor = ir.RankedTensorType(of)
    name = str(tensor.element_type).lower()
    dtype = "bool" if name == "i1" else name.replace("ui", "u")
    if dtype not in _dtypes.NAMES:
        raise ValueError(f"shardinit has no element type `{tensor.element_type}`")
    return dtype, tuple(tensor.shape)


def _axes(noted: Any, dimensions: int) -> Partition:
    if "sdy.sharding" not in noted:
        return ((),) * dimensions
    sharding = sdy.TensorShardingAttr(noted["sdy.sharding"])
    return tuple(
        tuple(sdy.AxisRefAttr(axis).name for axis in sdy.DimensionShardingAttr(each).axes)
        for each in sharding.dimension_shardings
    )
