"""Runs XLA for test_program.py in separate processes, since JAX fixes the number of devices when it starts.

    python program_clients.py FUNCTION < arguments.json > result.json
"""

import json
import os
import pathlib
import re
import sys
import time

from xla_modules import compiled, parsed, result_names


def run_all(devices, cases, shardy=True):
    """Runs modules with XLA's default options except for the number of devices, and stores each device's part of each
    result as unsigned words in a file. A case is [module, file]."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import numpy as np

    places = jax.devices()[:devices]

    def run_case(path, out):
        module = compiled(pathlib.Path(path).read_text(), places, shardy)
        zero = [np.uint32(0)] if module.arguments else []
        results = module.run(module.placed(zero))
        parts = {}
        for number, result in enumerate(results):
            for device, part in enumerate(result):
                array = np.asarray(part)
                parts[f"{number}/{device}"] = array.view(f"u{array.dtype.itemsize}")
        np.savez(out, **parts)
        memory = module.program.get_compiled_memory_stats()
        text = module.program.hlo_modules()[0].to_string()
        return {"names": module.names, "takes_zero": bool(module.arguments), "seconds": module.seconds,
                "output": memory.output_size_in_bytes, "temporary": memory.temp_size_in_bytes,
                "collectives": re.findall(r"all-gather|all-reduce|all-to-all|collective-permute", text),
                "shapes": sorted(set(re.findall(r"\b\w+\[[\d,]+\]", text)))}

    return [run_case(*case) for case in cases]


def shardings(path):
    """Returns the shapes of each result and of its parts, each device's offset, and the seconds for parsing. The
    offsets come from XLA for one annotation and from JAX's mesh for the other."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=512"
    import jax
    import numpy as np
    from jax._src.interpreters import mlir

    text = pathlib.Path(path).read_text()
    begin = time.monotonic()
    with mlir.make_ir_context():
        _, main = parsed(text)
        seconds = time.monotonic() - begin
        axes = re.findall(r'"([^"]+)"=(\d+)', re.search(r"sdy.mesh @mesh = <\[(.*)\]>", text)[1])
        mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape([int(n) for _, n in axes]), [name for name, _ in axes])
        results = {}
        for (name, attributes), type_ in zip(result_names(main).items(), main.type.results):
            dimensions = re.findall(r"\{([^{}]*)\}", str(attributes["sdy.sharding"]).partition("[")[2])
            spec = jax.sharding.PartitionSpec(*(tuple(re.findall(r'"([^"]+)"', d)) for d in dimensions))
            sharding = jax.sharding.NamedSharding(mesh, spec)
            shape = tuple(type_.shape)
            places = sharding.devices_indices_map(shape)
            offsets = [[i.indices(n)[0] for i, n in zip(places[d], shape)] for d in mesh.devices.flat]
            hlo = sharding._to_xla_hlo_sharding(len(shape))
            results[name] = [list(shape), list(sharding.shard_shape(shape)), offsets,
                             attributes["mhlo.sharding"].value, str(hlo)]
    return {"seconds": seconds, "results": results}


def is_portable(path):
    """Returns whether StableHLO can make a portable artifact of a module."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir.dialects import stablehlo

    with mlir.make_ir_context():
        module, _ = parsed(pathlib.Path(path).read_text())
        try:
            made = stablehlo.serialize_portable_artifact_str(str(module), stablehlo.get_current_version())
        except ValueError:
            return False
        return len(stablehlo.deserialize_portable_artifact_str(made)) > 0


def serve():
    """Calls run_all with the arguments of each line, in one process to save start-up time."""
    for line in sys.stdin:
        print(json.dumps(run_all(**json.loads(line))), flush=True)


if __name__ == "__main__" and sys.argv[1] == "serve":
    serve()
elif __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](**json.load(sys.stdin))))
