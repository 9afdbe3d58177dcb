"""Small specs with numbers up to 2^63 and beyond, through every command, under limits of time, memory
and output: a result or a clear error, and a signal ends it at once."""

import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import time

from hypothesis import strategies as st

from generated import generated, given
from support import BINARY, CLEAN

NUMBERS = [0, 1, 2, 3, 4, 7, 8, 16, 255, 256, 1000, 4096, 65536, 65537, 10**6, 2**24, 2**24 + 1, 2**31, 10**9, 10**11,
           2**53 + 1, 2**62, 2**63 - 1, 2**63, 10**30]
# Repeats that are allowed are counted out, so most are small.
REPEATS = [1, 2, 3, 16, 300, 5000, 2**17, 4_000_001, 2**62, 10**30]
# One to each axis, so that meshes are often valid.
EXTENTS = [1, 2, 3, 8, 16, 256, 4096, 65536, 2**20, 2**24, 2**24 + 1, 2**62]

CPU_SECONDS = 20  # 2^17 tensors take about one.
MEMORY = 3 << 30
TEXT_BYTES = 4 << 20  # What people read.
FILE_BYTES = 600 << 20  # What programs read: 2^17 tensors have some 100 MB of JSON.

DRAWN = ["ones", "{constant: {value: %s}}", "{normal: {std: 0.02}}", "{normal: {std: %s}}", "{uniform: {low: 0, high: %s}}",
         "{trunc_normal: {std: 1, a: -2, b: 2}}", "{truncated_normal: {std: 0.5}}", "{orthogonal: {gain: 2}}",
         "{sparse: {sparsity: 0.5}}", "{expr: 'n0 * %s + uniform()'}", "{xavier_uniform: {}}", "kaiming_normal",
         "{variance_scaling: {scale: 2}}"]
SHARDS = ["null", "a", "b", "[a, b]", "{axes: a, segments: %s}", "{axes: [a, b], nested: true}", "{axes: b, segments: 2}"]
LANGUAGES = ["", "", "", "sharding: fsdp\n", "sharding: auto\n", "sharding: {'**': [a]}\n", "sharding: {'**.w': [[a, b]]}\n",
             "rules: [{x: a}, {y: b}]\n"]
LAYOUTS = ["", "", "", "layouts: {l: {keep: ['*']}}\n", "layouts: {l: {stack: ['g', '*.g'], keep: ['*']}}\n",
           "layouts: {l: {w2: {from: {slice: {axis: 0, begin: 0, end: %s, of: w}}}, keep: ['*']}}\n"]


@st.composite
def specs(draw):
    number = st.sampled_from(NUMBERS)

    def filled(text):
        return text % draw(number) if "%s" in text else text

    text = "shardinit: 1\nname: x\n"
    text += draw(st.sampled_from(["dtype: f32\n"] * 3 + ["dtype: bf16\n", "dtype: i8\n", "dtype: f64\n"]))
    text += draw(st.sampled_from([""] * 3 + ["engine: torch_cpu\n"] * 2 + ["engine: jax_threefry\n"]))
    text += draw(st.sampled_from([""] * 4 + ["uneven: chunk\n", "uneven: pad\n", "replicas: full\n", "seed: %d\n" % 2**63]))
    axes = draw(st.integers(0, 2))
    if axes:
        extents = draw(st.lists(st.sampled_from(EXTENTS), min_size=axes, max_size=axes))
        text += "mesh: {axes: {%s}}\n" % ", ".join(f"{axis}: {extent}" for axis, extent in zip("ab", extents))
    text += draw(st.sampled_from(LANGUAGES))
    text += filled(draw(st.sampled_from(LAYOUTS)))
    text += "modules:\n"
    indent = "  "
    for depth in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        text += f"{indent}g:\n{indent}  repeat: {{i{depth}: {draw(st.sampled_from(REPEATS))}}}\n"
        indent += "  "
    index = "i0" if len(indent) > 2 else "1"
    for name in draw(st.sampled_from(["w", "wv", "wvu"])):
        extent = st.one_of(number.map(str), number.map(lambda n: f"{index} + {n}"), number.map(lambda n: f"{index} * {n}"))
        shape = draw(st.lists(extent, max_size=3))
        parts = [f"shape: [{', '.join(shape)}]", f"init: {filled(draw(st.sampled_from(DRAWN)))}"]
        if axes and draw(st.booleans()):
            parts.append(f"shard: [{', '.join(filled(draw(st.sampled_from(SHARDS))) for _ in shape)}]")
        if axes and draw(st.integers(0, 3)) == 0:
            parts.append("stage: {a: %s}" % draw(st.sampled_from(["0", index, f"{index} % mesh_a", f"[0, {index} % mesh_a]"])))
        text += f"{indent}{name}: {{{', '.join(parts)}}}\n"
    return text


PLANNING = ["validate", "validate --json", "plan", "plan --json", "plan --rank 0", "plan --rank 0 --json", "plan --devices",
            "plan --html page.html", "plan --write map.yaml", "graph", "graph --json", "graph --dot", "graph --depth 1",
            "explain w", "explain *", "explain * --json", "plan --layout l", "graph --layout l", "plan --set seed=3 --mesh a=4",
            "program --only *.7.*", "plan --memory-per-rank 1G --sharding auto"]
# These count numbers of torch_cpu, or make them all: they may take long, but a signal ends them.
MAKING = ["digest", "stats", "diff spec.yaml", "gen -o out", "gen -o out --ranks 0", "export --to dcp -o out", "program",
          "export --to safetensors -o out", "export --to orbax -o out", "program --stack", "program --kinds -o out",
          "program --rank 0"]


def limit():
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def start(folder, command):
    name, *options = command.split()
    with open(folder / "stdout", "wb") as stdout, open(folder / "stderr", "wb") as stderr:
        return subprocess.Popen([BINARY, name, "spec.yaml", *options], cwd=folder, env=CLEAN, stdin=subprocess.DEVNULL,
                                stdout=stdout, stderr=stderr, preexec_fn=limit)


def check_end(folder, command, status, statuses):
    message = (folder / "stderr").read_text(errors="replace")
    what = f"{command}: status {status}\n{message[:2000]}"
    assert status in statuses, what
    assert "bug" not in message and "out of memory" not in message, what
    assert status in (0, 1) or message or "validate --json" in command, what
    assert len(message) < 1 << 16, f"{command}: {len(message)} bytes of messages"
    size = (folder / "stdout").stat().st_size
    assert size <= (FILE_BYTES if "--" in command else TEXT_BYTES), f"{command}: {size} bytes for people"
    assert status in (0, 1) or size == 0 or "validate" in command, what


def in_folder(text, run):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bounds-"))
    try:
        (folder / "spec.yaml").write_text(text)
        run(folder)
    finally:
        shutil.rmtree(folder)


@generated(90)
@given(text=specs(), command=st.sampled_from(PLANNING))
def test_generated_planning_has_bounds(text, command):
    def run(folder):
        status = start(folder, command).wait()
        check_end(folder, command, status, (0, 2, 5) if "--write" in command else (0, 2))  # No map of stages.

    in_folder(text, run)


@generated(40)
@given(text=specs(), command=st.sampled_from(MAKING))
def test_generated_making_ends_by_a_signal(text, command):
    def run(folder):
        process = start(folder, command)
        end = time.monotonic() + 0.7
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        if process.poll() is not None:  # Also a disk or a limit of files that is too small.
            return check_end(folder, command, process.returncode, (0, 1, 2, 3))
        sent = time.monotonic()
        process.send_signal(signal.SIGTERM)
        status = process.wait()
        seconds = time.monotonic() - sent
        assert status in (-signal.SIGTERM, 0, 1, 2, 3), f"{command}: {status}"
        assert seconds < 5, f"{command}: {seconds:.1f} s after a signal"
        left = [os.path.join(at, name) for at, folders, names in os.walk(folder) for name in folders + names
                if ".tmp-" in name]
        assert not left, f"{command} left {left}"

    in_folder(text, run)
