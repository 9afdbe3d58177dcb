#!/usr/bin/env python3
"""Compares values per second of `shardinit.jax.run` and of JAX's own random numbers, on XLA's CPU devices.

    python3 tests/bench/jax_run.py [--gigabytes 1] [--repeats 5] [--devices 8]

Programs are compiled before, and rounds are interleaved in one run. Prints medians,
the spread, and the ratio to JAX. Both fill the same number of sharded arrays of one
shape; JAX uses `jax.random` under `jit` with `out_shardings`. Needs JAX
(tests/bench/requirements.txt) and a build."""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPE = (4096, 4096)
STD = 0.02
SPEC = """shardinit: 1
name: bench
dtype: {dtype}
mesh: {{axes: {{data: 1}}}}
modules:
  layers:
    repeat: {{layer: {layers}}}
    weight: {{shape: [{shape[0]}, {shape[1]}], init: {init}, shard: [data]}}
"""
INITS = {"normal": "{normal: {std: 0.02}}", "truncated_normal": "{truncated_normal: {std: 0.02}}",
         "uniform": "{uniform: {low: -1, high: 1}}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--library", default=ROOT / "build/release/src/libshardinit.so.1")
    options = parser.parse_args()
    os.environ.setdefault("SHARDINIT_LIBRARY", str(options.library))
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={options.devices}"
    sys.path.insert(0, str(ROOT / "src/python"))
    import jax
    import numpy as np
    from shardinit import _jax_program

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    jax_draws = {
        "normal": lambda key, dtype: STD * jax.random.normal(key, SHAPE, dtype),
        "truncated_normal": lambda key, dtype: STD * jax.random.truncated_normal(key, -2, 2, SHAPE, dtype),
        "uniform": lambda key, dtype: jax.random.uniform(key, SHAPE, dtype, -1, 1)}

    def all_rows(init, dtype, folder):
        """Yields (name, work) for both; work returns when all values are computed."""
        count = SHAPE[0] * SHAPE[1]
        layers = max(1, round(options.gigabytes * 1e9 / count / (2 if dtype == "bf16" else 4)))
        spec = pathlib.Path(folder, f"{init}-{dtype}.yaml")
        spec.write_text(SPEC.format(dtype=dtype, layers=layers, shape=SHAPE, init=INITS[init]))
        program = _jax_program.open_program(spec, mesh, True, (), None)
        compiled = list(program.compiled(mesh, dict.fromkeys(program.tensors, sharding)))
        kind = {"bf16": jax.numpy.bfloat16, "f32": jax.numpy.float32}[dtype]
        draw = jax.jit(lambda key: jax_draws[init](key, kind), out_shardings=sharding)
        draw(jax.random.key(0)).block_until_ready()

        def by_program():
            for each in compiled:
                jax.block_until_ready(each.program(*each.arguments))

        def by_jax():
            for i in range(layers):
                draw(jax.random.key(i)).block_until_ready()

        return layers * count, {f"jax.random.{init}": by_jax, "shardinit.jax.run": by_program}

    with tempfile.TemporaryDirectory() as folder:
        for init in INITS:
            for dtype in ("bf16", "f32"):
                values, rows = all_rows(init, dtype, folder)
                seconds = {name: [] for name in rows}
                for _ in range(options.repeats):
                    for name, work in rows.items():
                        begin = time.monotonic()
                        work()
                        seconds[name].append(time.monotonic() - begin)
                first = statistics.median(next(iter(seconds.values())))
                for name, each in seconds.items():
                    median = statistics.median(each)
                    print(f"{init} {dtype}  {name:30} {values / median / 1e6:8.0f} M values/s  "
                          f"({values / max(each) / 1e6:.0f} to {values / min(each) / 1e6:.0f})  "
                          f"{first / median:5.2f}", flush=True)


if __name__ == "__main__":
    main()
