"""Measures how XLA's compile time grows with the number of layers for each form of a program, and compares its speed
with JAX's own random numbers. Prints a table; asserts nothing.

    python tests/bench/program.py SHARDINIT [LAYERS...]
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters import mlir
from jaxlib import xla_client
from jaxlib.mlir import ir

ROOT = pathlib.Path(__file__).resolve().parents[2]


def compile_program(path):
    options = xla_client.CompileOptions()
    devices = jax.devices()[:1]
    with mlir.make_ir_context():
        begin = time.monotonic()
        module = ir.Module.parse(path.read_text())
        program = devices[0].client.compile_and_load(module, xla_client.DeviceList(tuple(devices)), options)
        return program, time.monotonic() - begin


def best(f, rounds=4):
    times = []
    for _ in range(rounds):
        begin = time.monotonic()
        f()
        times.append(time.monotonic() - begin)
    return min(times)


def main(binary, *layers):
    def write(spec, *arguments):
        subprocess.run([binary, "program", spec, *arguments], check=True)

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        print("seconds to compile a small Llama (d 256) for one device")
        print("layers    whole    stack    kinds")
        for n in layers or ("4", "32", "126"):
            common = [ROOT / "configs/llama3-tiny.yaml", "--mesh", "fsdp=1,tensor=1", "--set", f"vars.layers={n}", "-o"]
            write(*common, folder / "whole.mlir")
            write(*common, folder / "stack.mlir", "--stack")
            write(*common, folder / f"kinds{n}", "--kinds")
            kinds = sum(compile_program(path)[1] for path in sorted((folder / f"kinds{n}").glob("*.mlir")))
            print(f"{n:>6} {compile_program(folder / 'whole.mlir')[1]:8.1f} "
                  f"{compile_program(folder / 'stack.mlir')[1]:8.1f} {kinds:8.1f}")

        (folder / "normal.yaml").write_text("shardinit: 1\nname: normal\ndtype: bf16\nmodules:\n"
                                            "  w: {shape: [4096, 8192], init: {normal: {std: 0.02}}}\n")
        zero = jax.device_put(np.uint32(0))
        print("\nmillion values of a normal bf16 tensor in a second, all cores")
        for arithmetic in ("f32", "f64"):
            write(folder / "normal.yaml", "--arith", arithmetic, "-o", folder / "normal.mlir")
            program, _ = compile_program(folder / "normal.mlir")
            given = [zero] if arithmetic == "f32" else []
            seconds = best(lambda: program.execute_sharded(given).disassemble_into_single_device_arrays()[0][0].block_until_ready())
            print(f"  program, --arith {arithmetic}  {2**25 / seconds / 1e6:8.1f}")
        draw = jax.jit(lambda key: jax.random.normal(key, (4096, 8192), jnp.float32).astype(jnp.bfloat16))
        key = jax.random.key(0)
        print(f"  jax.random.normal    {2**25 / best(lambda: draw(key).block_until_ready()) / 1e6:8.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
