#!/usr/bin/env python3
"""Times whole commands, their lower bounds and their rivals in one run.

    python3 tests/bench/run.py [--gigabytes 8] [--repeats 5] [--only WORD]
    python3 tests/bench/run.py --growth [--most 64]

Prints one table: medians, the spread, and the ratio to the first row of each
group. Rounds are interleaved, so a slow minute of the machine affects every row.
`--only load` compares reading at most 2 GB from the page cache. `--only bucket`
shows only buckets on moto's server on this machine; it does not measure a remote
store. `--growth` instead prints how time and memory grow with bytes, tensors,
ranks and threads, and with ranks in a bucket.

Needs only Python and a build with its tests (bench_kernels). libshardinit is timed
if NumPy can be imported. PyTorch, safetensors, JAX and NumPy are compared if they
can be imported (tests/bench/requirements.txt). Buckets need build/moto and the
imports of tests/python. The script removes everything that it writes."""

import argparse
import contextlib
import functools
import hashlib
import importlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPE = (8192, 4096)
LAYER = SHAPE[0] * SHAPE[1]
BYTES = {"bf16": 2, "f32": 4}
STD = 0.02

SPEC = """shardinit: 1
name: bench
engine: {engine}
dtype: {dtype}
mesh: {{axes: {{data: {ranks}}}}}
modules:
  layers:
    repeat: {{layer: {layers}}}
    weight: {{shape: {shape}, init: {init}, shard: [data]}}
"""
INITS = {"normal": "{normal: {std: 0.02}}", "uniform": "{uniform: {low: -1, high: 1}}",
         "truncated_normal": "{truncated_normal: {std: 0.02}}", "ones": "ones"}


@dataclass
class Row:
    group: str
    name: str
    values: int
    bytes: int
    work: Callable[[], "float | None"]  # Returns seconds, or None to time the call.


def run_command(*arguments, env=None):
    """Runs a command and returns its resource usage, with the peak memory in kB and the seconds of all its threads."""
    process = subprocess.Popen([str(a) for a in arguments], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
    message = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"run.py: {' '.join(map(str, arguments))}: exit {process.returncode}\n{message}")
    return usage


def clear(folder):
    for item in folder.iterdir():
        shutil.rmtree(item) if item.is_dir() else item.unlink()
    os.sync()


def optional(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"not compared, since it is not installed: {name}", file=sys.stderr)
        return None


def write_spec(path, dtype, init, layers, ranks=1, shape=SHAPE, engine="philox4x32"):
    path.write_text(SPEC.format(dtype=dtype, init=INITS[init], layers=layers, ranks=ranks,
                                shape=list(shape), engine=engine))
    return path


# Rates of one core.


def kernels(binary, pattern):
    """Returns name → items or bytes per second for the kernel benchmarks that match."""
    out = subprocess.run([binary, f"--benchmark_filter={pattern}", "--benchmark_format=json",
                          "--benchmark_min_time=0.2"], check=True, capture_output=True, text=True)
    return {row["name"]: row.get("items_per_second") or row.get("bytes_per_second")
            for row in json.loads(out.stdout)["benchmarks"]}


def kernel_rows(options):
    binary = options.kernels
    targets = subprocess.run([binary, "--benchmark_list_tests"], check=True, capture_output=True,
                             text=True).stdout
    best = targets.split("/")[0]
    for target in dict.fromkeys([best, "AVX2"]):
        for sampler, dtype in [("normal", "f32"), ("normal", "bf16"), ("truncated_2", "f32"),
                               ("uniform", "bf16")]:
            name = f"{target}/{sampler}/{dtype}"
            if name in targets:
                yield Row("kernel", f"{sampler} {dtype}, one core, {target}", LAYER,
                          LAYER * BYTES[dtype],
                          lambda name=name: LAYER / kernels(binary, f"^{name}$")[name])
    for name in ["sha256", "sha256_of_two"]:
        yield Row("kernel", f"{name}, one core", 0, LAYER,
                  lambda name=name: LAYER / kernels(binary, f"^{name}$")[name])


def bound(options, layers, dtype):
    """Returns the seconds that all cores need for drawing and hashing alone."""
    rates = kernels(options.kernels, f"/normal/{dtype}$|^sha256_of_two$")
    draw = next(rate for name, rate in rates.items() if name.endswith(f"/normal/{dtype}"))
    hash_rate = rates["sha256_of_two"]
    seconds = layers * LAYER * (1 / draw + BYTES[dtype] / hash_rate)
    return seconds / len(os.sched_getaffinity(0))


# Rivals: they draw `layers` tensors of SHAPE one after another.


def save_synced(path, save):
    with open(path, "wb") as file:
        save(file)
        file.flush()
        os.fsync(file.fileno())


def rival_rows(options, folder, out, layers):
    def row(group, name, dtype, work):
        return Row(group, name, layers * LAYER, layers * LAYER * BYTES[dtype], work)

    torch = optional("torch")
    if torch:
        dtypes = {"bf16": torch.bfloat16, "f32": torch.float32}

        def drawn(dtype):
            return [torch.empty(SHAPE, dtype=dtypes[dtype]).normal_(0, STD) for _ in range(layers)]

        def redraw(dtype, draw):
            tensor = torch.empty(SHAPE, dtype=dtypes[dtype])
            for _ in range(layers):
                draw(tensor)

        yield row("checkpoint", "torch normal_ bf16, torch.save, fsync", "bf16",
                  lambda: save_synced(out / "t.pt", lambda f: torch.save(drawn("bf16"), f)))
        safetensors = optional("safetensors.torch")
        if safetensors:
            def save_safetensors():
                tensors = {str(i): t for i, t in enumerate(drawn("bf16"))}
                safetensors.save_file(tensors, out / "t.safetensors")
                os.sync()
            yield row("checkpoint", "torch normal_ bf16, safetensors, sync", "bf16", save_safetensors)
        yield row("draw bf16", "torch normal_", "bf16",
                  lambda: redraw("bf16", lambda t: t.normal_(0, STD)))
        yield row("draw f32", "torch normal_", "f32",
                  lambda: redraw("f32", lambda t: t.normal_(0, STD)))
        yield row("draw f32 truncated", "torch trunc_normal_", "f32", lambda: redraw(
            "f32", lambda t: torch.nn.init.trunc_normal_(t, 0, STD, -2 * STD, 2 * STD)))
    numpy = optional("numpy")
    if numpy:
        def numpy_draw():
            generator = numpy.random.Generator(numpy.random.SFC64(0))
            array = numpy.empty(SHAPE, numpy.float32)
            for _ in range(layers):
                generator.standard_normal(out=array, dtype=numpy.float32)
        yield row("draw f32", "numpy SFC64 standard_normal", "f32", numpy_draw)
    jax = optional("jax")
    if jax:
        def jax_draw(draw, dtype):
            draw = jax.jit(lambda key, draw=draw, dtype=dtype: draw(key, dtype))
            draw(jax.random.key(0)).block_until_ready()  # This call compiles.

            def work():
                start = time.monotonic()
                for i in range(layers):
                    draw(jax.random.key(i)).block_until_ready()
                return time.monotonic() - start
            return work

        def normal(key, dtype):
            return STD * jax.random.normal(key, SHAPE, dtype)

        def truncated(key, dtype):
            return STD * jax.random.truncated_normal(key, -2, 2, SHAPE, dtype)

        yield row("draw bf16", "jax random.normal", "bf16", jax_draw(normal, jax.numpy.bfloat16))
        yield row("draw f32", "jax random.normal", "f32", jax_draw(normal, jax.numpy.float32))
        yield row("draw f32 truncated", "jax random.truncated_normal", "f32",
                  jax_draw(truncated, jax.numpy.float32))


def load_library(binary):
    """Returns the Python package with the library next to the program, or None without NumPy."""
    os.environ.setdefault("SHARDINIT_LIBRARY", str(binary.parent / "libshardinit.so.1"))
    sys.path.insert(0, str(ROOT / "src/python"))
    return optional("shardinit")


def generate(spec, threads):
    tensor = None
    for path in spec.tensors:
        tensor = spec.generate(path, threads=threads, out=tensor)


def library_rows(options, folder):
    library = load_library(options.binary)
    if library is None:
        return
    layers = max(1, round(options.gigabytes * 1e9 / (LAYER * 4)))
    for init, dtype, group in [("normal", "bf16", "draw bf16"), ("normal", "f32", "draw f32"),
                               ("truncated_normal", "f32", "draw f32 truncated")]:
        for engine in ("philox4x32", "torch_cpu"):
            path = write_spec(folder / f"library-{init}-{dtype}-{engine}.yaml", dtype, init, layers, engine=engine)
            spec = library.open_spec(path)
            for threads in range(1, len(os.sched_getaffinity(0)) + 1):
                yield Row(group, f"libshardinit, {engine}, threads={threads}", layers * LAYER,
                          layers * LAYER * BYTES[dtype],
                          lambda spec=spec, threads=threads: generate(spec, threads))


# Reading from the page cache.


def load_rows(options, folder):
    """Reads whole tensors into new memory, from files in the page cache."""
    library, torch = load_library(options.binary), optional("torch")
    safetensors = optional("safetensors.torch")
    if not (library and torch and safetensors):
        return
    module, dcp = importlib.import_module("shardinit.torch"), importlib.import_module("torch.distributed.checkpoint")
    warnings.filterwarnings("ignore", module="torch")  # A warning about DCP in a single process.
    layers = max(1, round(min(options.gigabytes, 2) * 1e9 / (LAYER * 2)))
    spec = write_spec(folder / "load.yaml", "bf16", "normal", layers, ranks=4)
    checkpoint, by_safetensors, by_dcp = (folder / f"load-{name}" for name in ("gen", "safetensors", "dcp"))
    file, pickled, saved = folder / "load.safetensors", folder / "load.pt", folder / "load-saved"

    @functools.cache
    def make():
        run_command(options.binary, "gen", spec, "-o", checkpoint)
        run_command(options.binary, "export", spec, "--to", "safetensors", "-o", by_safetensors)
        run_command(options.binary, "export", spec, "--to", "dcp", "-o", by_dcp)
        state = module.load_state_dict(checkpoint)
        safetensors.save_file(state, file)
        torch.save(state, pickled)
        dcp.save(state, checkpoint_id=saved, no_dist=True)

    def row(name, source, load):
        def work():
            make()
            for each in filter(pathlib.Path.is_file, [source, *source.rglob("*")]):
                run_command("cat", each)
            start = time.monotonic()
            loaded = load()
            took = time.monotonic() - start
            del loaded
            return took
        return Row("load", name, layers * LAYER, layers * LAYER * 2, work)

    def empty():
        return {f"layers.{i}.weight": torch.empty(SHAPE, dtype=torch.bfloat16) for i in range(layers)}

    def model():
        inner = [torch.nn.Linear(*SHAPE[::-1], bias=False, device="meta", dtype=torch.bfloat16) for _ in range(layers)]
        return torch.nn.ModuleDict({"layers": torch.nn.ModuleList(inner)})

    def load_file(path):
        return {path: t.clone() for path, t in safetensors.load_file(path).items()}

    def into(fill, source):
        filled = model()
        fill(filled, source)
        return filled

    def by_planner(**keywords):
        state = empty()
        dcp.load(state, no_dist=True, **keywords)
        return state

    def digests():
        tensors = safetensors.load_file(file)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return list(pool.map(lambda t: hashlib.sha256(t.view(torch.uint8).numpy()).digest(),
                                 tensors.values()))

    yield row("safetensors load_file, with a copy", file, lambda: load_file(file))
    yield row("torch.load", pickled, lambda: torch.load(pickled))
    yield row("dcp.load of what dcp.save wrote", saved, lambda: by_planner(checkpoint_id=saved))
    exported = by_safetensors / "model.safetensors"
    yield row("export to safetensors: load_file, a copy", exported, lambda: load_file(exported))
    yield row("export to dcp: dcp.load", by_dcp, lambda: by_planner(checkpoint_id=by_dcp))
    yield row("export to safetensors: load_into", by_safetensors, lambda: into(module.load_into, by_safetensors))
    yield row("export to dcp: load_into", by_dcp, lambda: into(module.load_into, by_dcp))
    yield row("gen: dcp.load by shardinit's reader", checkpoint,
              lambda: by_planner(storage_reader=module.StorageReader(checkpoint)))
    yield row("gen: load_state_dict", checkpoint, lambda: module.load_state_dict(checkpoint))
    yield row("gen: load_into", checkpoint, lambda: into(module.load_into, checkpoint))
    yield row("spec: init_", spec, lambda: into(module.init_, spec))
    yield row("SHA-256 on all cores", file, digests)
    yield row("gen: load_state_dict, verify=True", checkpoint,
              lambda: module.load_state_dict(checkpoint, verify=True))


# Copying from a checkpoint in the page cache, as far as it fits.


def seconds_of_copy(to, *command):
    start = time.monotonic()
    run_command(*command, to)
    if command[0] == "cp":
        for file in to.rglob("*"):
            if file.is_file():
                with open(file, "rb") as opened:
                    os.fsync(opened.fileno())
    return time.monotonic() - start


def convert_rows(options, folder, out):
    """Converts a folder of safetensors files to other formats and layouts; compares with cp."""
    binary, source, spec = options.binary, folder / "convert-source", folder / "convert.yaml"
    layers = max(2, round(options.gigabytes * 1e9 / (LAYER * 2)) // 2 * 2)
    spec.write_text(SPEC.format(engine="philox4x32", dtype="bf16", ranks=1, shape=list(SHAPE), layers=layers,
                                init=INITS["normal"]).replace(", shard: [data]", "") + """
layouts:
  turned: {l: {repeat: {i: LAYERS}, w: {from: {transpose: {axes: [1, 0], of: "layers.{i}.weight"}}}}}
  woven: {l: {repeat: {i: LAYERS / 2}, w: {from: {interleave: {axis: 0, groups: 8, of: [
    "layers.{2 * i}.weight", "layers.{2 * i + 1}.weight"]}}}}}
  stacked: {l: {from: {stack: {axis: 0, for: {i: LAYERS}, of: "layers.{i}.weight"}}}}
""".replace("LAYERS", str(layers)))

    def row(name, *command):
        def work():
            if not source.exists():
                run_command(binary, "export", spec, "--to", "safetensors", "--max-shard-size", "1GB", "-o", source)
                (source / "shardinit-export.json").unlink()
            return seconds_of_copy(out / "copy", *command)
        return Row("convert", name, 0, layers * LAYER * 2, work)

    yield row("cp -r, fsync of each file", "cp", "-r", source)
    for form in ["safetensors", "dcp", "hdf5", "zarr"]:
        yield row(f"convert --to {form}", binary, "convert", source, "--to", form, "-o")
    for layout in ["stacked", "woven", "turned"]:
        yield row(f"convert --to dcp, {layout}", binary, "convert", source, "--to", "dcp", "--spec", spec, "--layout",
                  layout, "-o")


def reshard_rows(options, folder, out):
    """Reshards a checkpoint of four ranks to another mesh; compares with cp."""
    binary, source = options.binary, folder / "reshard-source"
    layers = max(1, round(options.gigabytes * 1e9 / (LAYER * 2)))
    spec = folder / "reshard.yaml"
    spec.write_text(SPEC.format(engine="philox4x32", dtype="bf16", ranks="4, tensor: 1", shape=list(SHAPE),
                                layers=layers, init=INITS["normal"]).replace("[data]", "[data, tensor]"))

    def row(name, *command):
        def work():
            if not source.exists():
                run_command(binary, "gen", spec, "-o", source)
            return seconds_of_copy(out / "copy", *command)
        return Row("reshard", name, 0, layers * LAYER * 2, work)

    yield row("cp -r, fsync of each file", "cp", "-r", source)
    yield row("shardinit reshard, 4 ranks to 8", binary, "reshard", source, "--mesh", "data=8", "-o")
    yield row("shardinit reshard, rows to columns", binary, "reshard", source, "--mesh", "tensor=4",
              "-o")


# Buckets in the memory of a server on this machine, which takes most of the time.


class Buckets:
    """Starts moto's server when a row needs it; it ends with `stack`."""

    def __init__(self, folder, stack):
        sys.path.insert(0, str(ROOT / "tests/python"))
        self.module, self.folder, self.stack = optional("moto_server"), folder, stack
        if self.module and not self.module.PROGRAM.exists():
            print("not compared, since it is not installed: build/moto", file=sys.stderr)
            self.module = None

    def __bool__(self):
        return self.module is not None

    @functools.cached_property
    def server(self):
        return self.stack.enter_context(self.module.moto_server(self.folder))

    def empty(self):
        assert self.server.request("POST", "/moto-api/reset")[0] == 200
        self.server.put("/bucket")

    @property
    def env(self):
        # Debian's rclone fails if AWS_CA_BUNDLE is set.
        return {**self.module.KEYS, "AWS_ENDPOINT_URL": self.server.url, "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_CA_BUNDLE": "", "RCLONE_CONFIG": "/dev/null", "RCLONE_CONFIG_S_TYPE": "s3",
                "RCLONE_CONFIG_S_PROVIDER": "Other",
                "RCLONE_CONFIG_S_ENV_AUTH": "true", "RCLONE_CONFIG_S_ENDPOINT": self.server.url}


def bucket_rows(options, folder, out, buckets):
    """Writes a checkpoint of four ranks into a bucket; compares with rclone copying its files there."""
    rclone = shutil.which("rclone")
    if not buckets or not rclone:
        return
    binary, source = options.binary, folder / "bucket-source"
    layers = max(1, round(min(options.gigabytes, 1) * 1e9 / (LAYER * 2)))
    spec = write_spec(folder / "bucket.yaml", "bf16", "normal", layers, ranks=4)

    def row(name, *command):
        def work():
            if not source.exists():
                run_command(binary, "gen", spec, "-o", source)
            buckets.empty()
            start = time.monotonic()
            run_command(*command, env=buckets.env)
            return time.monotonic() - start
        return Row("bucket", name, 0, layers * LAYER * 2, work)

    yield row("rclone copy of the files", rclone, "copy", source, "s:bucket/x")
    yield row("shardinit gen -o s3://", binary, "gen", spec, "-o", "s3://bucket/x")
    yield row("shardinit gen -o DIR, then rclone copy", "sh", "-c",
              '"$1" gen "$2" -o "$3" && "$4" copy "$3" s:bucket/x', "sh", binary, spec, out / "bucket", rclone)


def all_rows(options, folder, out, stack):
    binary = options.binary

    def own(group, command, init, dtype, *more):
        layers = max(1, round(options.gigabytes * 1e9 / (LAYER * BYTES[dtype])))
        spec = write_spec(folder / f"{init}-{dtype}.yaml", dtype, init, layers)
        output = ["-o", out / "checkpoint"] if command == "gen" else []
        name = " ".join([f"shardinit {command}, {init} {dtype}", *more])
        return Row(group, name, layers * LAYER, layers * LAYER * BYTES[dtype],
                   lambda: run_command(binary, command, spec, *output, *more) and None)

    layers = max(1, round(options.gigabytes * 1e9 / (LAYER * 2)))
    size = layers * LAYER * 2
    yield Row("disk", "dd oflag=direct bs=4M conv=fsync", 0, size,
              lambda: run_command("dd", "if=/dev/zero", f"of={out}/dd", "oflag=direct", "bs=4M",
                                  "conv=fsync", f"count={size // (4 << 20)}") and None)
    for init in ["normal", "truncated_normal", "ones"]:
        yield own("disk", "gen", init, "bf16")
    yield Row("digest", "bound: cores / (1 / draw + 1 / SHA-256)", layers * LAYER, size,
              lambda: bound(options, layers, "bf16"))
    yield own("digest", "digest", "normal", "bf16")
    yield own("digest", "digest", "normal", "bf16", "--jobs", "1")
    yield own("checkpoint", "gen", "normal", "bf16")
    yield own("draw bf16", "digest", "normal", "bf16")
    yield own("draw f32", "digest", "normal", "f32")
    yield own("draw f32 truncated", "digest", "truncated_normal", "f32")
    yield from library_rows(options, folder)
    yield from load_rows(options, folder)
    yield from reshard_rows(options, folder, out)
    yield from convert_rows(options, folder, out)
    yield from bucket_rows(options, folder, out, Buckets(folder, stack))
    yield from kernel_rows(options)
    # These are slower, but only the rate matters.
    yield from rival_rows(options, folder, out, max(1, layers // 16))


def compare(options, folder, out, stack):
    rows = [row for row in all_rows(options, folder, out, stack) if options.only in f"{row.group} {row.name}"]
    seconds = [[] for _ in rows]
    for turn in range(options.repeats):
        for row, times in zip(rows, seconds):
            print(f"\rround {turn + 1} of {options.repeats}: {row.name:60}", end="", file=sys.stderr)
            start = time.monotonic()
            took = row.work()
            times.append(time.monotonic() - start if took is None else took)
            clear(out)
    print("\r" + " " * 80 + "\r", end="", file=sys.stderr)
    groups = list(dict.fromkeys(row.group for row in rows))
    print(f"{'':19}{'':41}{'GB':>6}{'GB/s':>7}{'M values/s':>12}{'spread':>8}{'ratio':>7}")
    for group in groups:
        reference = None
        for row, times in zip(rows, seconds):
            if row.group != group:
                continue
            median = statistics.median(times)
            rate = row.bytes / median
            reference = reference or rate
            spread = (max(times) - min(times)) / median
            values = f"{row.values / median / 1e6:.0f}" if row.values else ""
            ratio = "" if group == "kernel" else f"{rate / reference:.2f}"
            print(f"{group:19}{row.name:41}{row.bytes / 1e9:6.2f}{rate / 1e9:7.2f}{values:>12}"
                  f"{spread:8.0%}{ratio:>7}")


def growth(options, folder, out, stack):
    binary = options.binary
    print(f"{'what':14}{'n':>10}{'command':>10}{'GB':>8}{'seconds':>9}{'of CPUs':>9}{'GB/s':>7}{'peak MB':>9}"
          f"{'requests':>10}")

    def measure(what, n, command, size, *arguments, name=None, keep=False, buckets=None):
        if buckets:
            with buckets.server.counted() as requests:
                show(what, n, command, size, [*arguments, "s3://bucket/x"], name, buckets.env)
            return print(f"{len(requests):>10}", flush=True)
        if command == "gen":
            arguments = [*arguments, "-o", out / "checkpoint"]
        show(what, n, command, size, arguments, name)
        print(flush=True)
        if not keep:
            clear(out)

    def show(what, n, command, size, arguments, name, env=None):
        start = time.monotonic()
        usage = run_command(binary, command, *arguments, env=env)
        took = time.monotonic() - start
        print(f"{what:14}{n:>10}{name or command:>10}{size / 1e9:8.2f}{took:9.2f}"
              f"{usage.ru_utime + usage.ru_stime:9.2f}{size / 1e9 / took:7.2f}{usage.ru_maxrss * 1024 / 1e6:9.0f}",
              end="")

    def asks_for(what):
        return options.only in what

    spec = folder / "growth.yaml"
    gigabytes = 1
    while asks_for("GB") and gigabytes <= options.most:
        layers = round(gigabytes * 1e9 / (LAYER * 2))
        size = layers * LAYER * 2
        write_spec(spec, "bf16", "normal", layers)
        for command in ["gen", "digest"]:
            if command == "gen" and shutil.disk_usage(out).free < 1.2 * size:
                print(f"{'GB':14}{gigabytes:>10}{'gen':>10}  not run: too little free space")
                continue
            measure("GB", gigabytes, command, size, spec)
        gigabytes *= 2
    most = 4_000_000  # the limit of a spec
    for tensors in [*(10 ** exponent for exponent in range(1, 7)), most] if asks_for("tensors") else []:
        write_spec(spec, "bf16", "normal", tensors, shape=(8, 128))
        measure("tensors", tensors, "plan", tensors * 2048, spec)
        if tensors <= 100_000:
            measure("tensors", tensors, "gen", tensors * 2048, spec)
    size = 16 * 16384 * 2048 * 2
    for ranks in [1, 8, 64, 512, 4096, 16384] if asks_for("ranks") else []:
        write_spec(spec, "bf16", "normal", 16, ranks, shape=(16384, 2048))
        measure("ranks", ranks, "plan", size, spec)
        measure("ranks", ranks, "gen", size, spec, keep=True)
        measure("ranks", ranks, "gen", size, spec, name="again", keep=True)
        for command in ["status", "finalize", "verify"]:
            measure("ranks", ranks, command, size, out / "checkpoint", keep=True)
        for file in (out / "checkpoint/ranks").glob("rank-00000.*"):
            file.unlink()
        measure("ranks", ranks, "gen", size, spec, "--ranks", 0, name="one rank")
    buckets = Buckets(folder, stack) if asks_for("bucket") else None
    for ranks in [8, 512, 16384] if buckets else []:
        write_spec(spec, "bf16", "normal", 16, ranks, shape=(16384, 2048))
        buckets.empty()
        measure("bucket", ranks, "gen", size, spec, "-o", buckets=buckets)
        measure("bucket", ranks, "gen", size, spec, "-o", name="again", buckets=buckets)
        for command in ["status", "finalize", "verify"]:
            measure("bucket", ranks, command, size, buckets=buckets)
        for end in ["h5", "json"]:
            assert buckets.server.request("DELETE", f"/bucket/x/ranks/rank-00000.{end}")[0] == 204
        measure("bucket", ranks, "gen", size, spec, "--ranks", 0, "-o", name="one rank", buckets=buckets)
    # The tensors and ranks of Llama 3.1 405B on 512 ranks, but with hardly any data, so receipts dominate.
    if asks_for("receipts"):
        write_spec(spec, "bf16", "normal", 1137, 512, shape=(512, 8))
        measure("receipts", 512, "gen", 1137 * 512 * 16, spec, keep=True)
        for command in ["status", "finalize", "verify"]:
            measure("receipts", 512, command, 1137 * 512 * 16, out / "checkpoint", keep=True)
        clear(out)
    write_spec(spec, "bf16", "normal", 60)
    for jobs in range(1, len(os.sched_getaffinity(0)) + 1) if asks_for("threads") else []:
        for command in ["gen", "digest"]:
            measure("threads", jobs, command, 60 * LAYER * 2, spec, "--jobs", jobs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="rows whose group or name holds this; of --growth, groups")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--most", type=float, default=64, help="gigabytes, of --growth")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/release/src/shardinit")
    parser.add_argument("--kernels", type=pathlib.Path,
                        default=ROOT / "build/release/tests/bench_kernels")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(options.folder).free
    if free < 1.2e9 * options.gigabytes:
        sys.exit(f"run.py: {options.folder} has {free / 1e9:.1f} GB free, too little for "
                 f"{options.gigabytes} GB; use --gigabytes or --folder")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.folder) as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        out = folder / "out"
        out.mkdir()
        (growth if options.growth else compare)(options, folder, out, stack)


if __name__ == "__main__":
    main()
