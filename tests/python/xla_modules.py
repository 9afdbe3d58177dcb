"""Compiles StableHLO modules with XLA and runs them, for program_clients.py and tests/device/program.py.

Needs only JAX. A process may choose JAX's platform and devices until it calls a function of this file."""

import dataclasses
import time
from typing import Any


def parsed(text):
    """Parses the module in an MLIR context; jaxlib's verifier must accept it."""
    from jaxlib.mlir import ir

    module = ir.Module.parse(text)
    assert module.operation.verify()
    main, = [f for f in module.body.operations if getattr(f, "sym_name", None) and f.sym_name.value == "main"]
    return module, main


def result_names(main):
    """Returns name → attributes, in order."""
    return {a["jax.result_info"].value: a for a in main.attributes["res_attrs"]}


@dataclasses.dataclass
class Compiled:
    """A compiled module: the names of its results, the number of its arguments, and the seconds that compiling took."""

    program: Any
    places: list
    names: list
    arguments: int
    seconds: float

    def placed(self, arguments):
        """Places these arrays on each device, as arguments of `run`."""
        import jax
        import numpy as np

        mesh = jax.sharding.Mesh(np.array(self.places), ("all",))
        everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        return [jax.device_put(array, everywhere) for array in arguments]

    def run(self, placed):
        """Returns each result's parts, which stay on the devices."""
        return self.program.execute_sharded(placed).disassemble_into_single_device_arrays()


def compiled(text, places, shardy=True, overrides=()):
    """Compiles a module for devices, with XLA's default options except for `overrides`, pairs of names and values."""
    import numpy as np
    from jax._src import lib
    from jax._src.interpreters import mlir
    from jaxlib import xla_client

    devices = len(places)
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = 1, devices
    options.env_option_overrides = list(overrides)
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = 1, devices
    build.use_spmd_partitioning = devices > 1
    build.use_shardy_partitioner = devices > 1 and shardy
    build.device_assignment = xla_client.DeviceAssignment.create(np.array([[place.id for place in places]]))
    if lib.cuda_path is not None:  # XLA finds CUDA's tools there, as jax.jit does.
        build.debug_options.xla_gpu_cuda_data_dir = str(lib.cuda_path)
    with mlir.make_ir_context():
        module, main = parsed(text)
        names = list(result_names(main))
        arguments = len(main.arguments)
        begin = time.monotonic()
        program = places[0].client.compile_and_load(module, xla_client.DeviceList(tuple(places)), options)
        seconds = time.monotonic() - begin
    return Compiled(program, places, names, arguments, seconds)
