#!/usr/bin/env python3
"""Times whole commands against what bounds or rivals them, in one run.

    python3 tests/bench/run.py [--gigabytes 8] [--repeats 5] [--folder DIR] [--binary PATH]

Prints one table: medians, the spread, and the ratio to the first row of each
group. Rounds are interleaved, so a slow minute of the machine hits every row.
Needs only Python; libshardinit is timed where NumPy, and PyTorch compared with where it
can be imported (tests/bench/requirements.txt). Everything it writes is removed again.
"""

import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]

SPEC = """shardinit: 1
name: bench
dtype: bf16
mesh: {{axes: {{data: 1}}}}
modules:
  layers:
    repeat: {{layer: {layers}}}
    weight: {{shape: [8192, 4096], init: {init}}}
"""
LAYER_BYTES = 8192 * 4096 * 2


def Command(arguments):
    subprocess.run([str(a) for a in arguments], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.PIPE)


def Clear(folder):
    for item in folder.iterdir():
        shutil.rmtree(item) if item.is_dir() else item.unlink()
    os.sync()


def TorchSave(torch, size, folder):
    with open(folder / "torch.pt", "wb") as file:
        torch.save([torch.empty(8192, 4096, dtype=torch.bfloat16).normal_(0, 0.02)
                    for _ in range(size // LAYER_BYTES)], file)
        file.flush()
        os.fsync(file.fileno())


def TorchDraw(torch, size):
    tensor = torch.empty(8192, 4096, dtype=torch.bfloat16)
    for _ in range(size // LAYER_BYTES):
        tensor.normal_(0, 0.02)


def Library(binary):
    """The Python package, with the library that lies beside the program; None without NumPy."""
    os.environ.setdefault("SHARDINIT_LIBRARY", str(binary.parent / "libshardinit.so.1"))
    sys.path.insert(0, str(ROOT / "src/python"))
    try:
        import shardinit
    except ImportError:
        return None
    return shardinit


def Generate(spec, threads):
    tensor = None
    for path in spec.tensors:
        tensor = spec.generate(path, threads=threads, out=tensor)


def Rows(options, folder, out):
    """(group, name, bytes of bf16, what to time) of every row."""
    layers = max(1, round(options.gigabytes * 1e9 / LAYER_BYTES))
    size = layers * LAYER_BYTES
    specs = {}
    for name, init in [("normal", "{normal: {std: 0.02}}"), ("truncated", "{truncated_normal: {std: 0.02}}"),
                       ("ones", "ones")]:
        specs[name] = folder / f"{name}.yaml"
        specs[name].write_text(SPEC.format(layers=layers, init=init))
    binary = options.binary
    yield ("write", "dd oflag=direct bs=4M", size,
           lambda: Command(["dd", "if=/dev/zero", f"of={out}/dd", "oflag=direct", "bs=4M", "conv=fsync",
                            f"count={size // (4 << 20)}"]))
    yield ("write", "gen, normal", size, lambda: Command([binary, "gen", specs["normal"], "-o", out / "a"]))
    yield ("write", "gen, truncated_normal", size,
           lambda: Command([binary, "gen", specs["truncated"], "-o", out / "b"]))
    yield ("write", "gen, ones", size, lambda: Command([binary, "gen", specs["ones"], "-o", out / "c"]))
    yield ("draw", "digest, normal", size, lambda: Command([binary, "digest", specs["normal"]]))
    yield ("draw", "digest, normal, 1 job", size,
           lambda: Command([binary, "digest", specs["normal"], "--jobs", "1"]))
    yield ("draw", "digest, truncated_normal", size, lambda: Command([binary, "digest", specs["truncated"]]))
    if library := Library(binary):
        for name in ("normal", "truncated"):
            spec = library.open_spec(specs[name])
            for threads in (1, 2):
                yield ("draw", f"generate, {name}, {threads} job{'s'[:threads - 1]}", size,
                       lambda spec=spec, threads=threads: Generate(spec, threads))
    try:
        import torch
    except ImportError:
        return
    part = max(1, layers // 8) * LAYER_BYTES  # It is slower; the rate is what counts.
    yield ("write", "torch normal_, save, fsync", part, lambda: TorchSave(torch, part, out))
    yield ("draw", "torch normal_", part, lambda: TorchDraw(torch, part))


def Main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/release/src/shardinit")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(options.folder).free
    if free < 1.2e9 * options.gigabytes:
        sys.exit(f"run.py: {options.folder} has {free / 1e9:.1f} GB free, too little for "
                 f"{options.gigabytes} GB; use --gigabytes or --folder")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.folder) as name:
        folder = pathlib.Path(name)
        out = folder / "out"
        out.mkdir()
        rows = list(Rows(options, folder, out))
        seconds = {row[1]: [] for row in rows}
        for turn in range(options.repeats):
            for _, what, _, work in rows:
                print(f"\rround {turn + 1} of {options.repeats}: {what:40}", end="", file=sys.stderr)
                start = time.monotonic()
                work()
                seconds[what].append(time.monotonic() - start)
                Clear(out)
        print("\r" + " " * 70 + "\r", end="", file=sys.stderr)

    print(f"{'':6}{'':28}{'GB':>6}{'median s':>10}{'GB/s':>7}{'M values/s':>12}{'spread':>9}{'ratio':>7}")
    first = {}
    for group, what, size, _ in sorted(rows, key=lambda row: row[0] != "write"):
        times = seconds[what]
        median = statistics.median(times)
        rate = size / median
        ratio = rate / first.setdefault(group, rate)
        spread = (max(times) - min(times)) / median
        print(f"{group:6}{what:28}{size / 1e9:6.1f}{median:10.2f}{rate / 1e9:7.2f}{rate / 2e6:12.0f}"
              f"{spread:9.0%}{ratio:7.2f}")


if __name__ == "__main__":
    Main()
