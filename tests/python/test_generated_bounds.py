"""Puts a very large number, or an invalid one, into a spec, a command line, or a file of a checkpoint, an export or a
model's configuration.

Each command must give a result or a clear error within limits of time, memory and output, and a signal must end it at
once."""

import functools
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time

from hypothesis import strategies as st

from generated import generated, given
from recorded import file_of
from support import BINARY, CLEAN, OF_ANY, run_ok
from test_json_numbers import NUMBERS as NO_NUMBERS
from test_json_numbers import places, read_header, write_header

CPU_SECONDS = 20  # 2^18 tensors take about three.
MEMORY = 3 << 30
TEXT_BYTES = 4 << 20  # the most text that a person would read
FILE_BYTES = 600 << 20  # the most that a program would read: 2^18 tensors have about 200 MB

# The largest allowed counts, at which quadratic time shows.
LARGE = [0, 1, 2, 900, 1001, 20480, 2**17, 2**18, 4_000_001, 2**24, 2**24 + 1, 2**31, 10**11, 2**48, 2**53 + 1,
         2**62, 2**63 - 1, 2**63, 2**64, 10**30]

# Valid specs and the commands that use them. One number is replaced at each place where it occurs, so that equal
# numbers stay equal. `<7: …#…>` expands to 7 numbered items.
HEAD = "shardinit: 1\nname: x\ndtype: f32\n"
PLANS = ["validate", "plan", "plan --json", "plan --rank 0", "graph", "explain **", "diff spec.yaml",
         "plan --html page.html", "graph --html page.html",
         "graph --json", "plan --devices", "plan --write map.yaml", "explain ** --json", "program --only **.1.**",
         "graph --depth 1"]
MAKES = ["digest", "stats", "gen -o out", "gen -o out --ranks 0", "export --to dcp -o out",
         "export --to safetensors -o out",
         "export --to zarr -o out", "program -o out", "program --stack", "program --kinds -o out", "program --rank 0"]
RANKS = ["gen --ranks 0 -o out && status out", "gen --ranks 0 -o out && finalize out",
         "gen --ranks 0 -o out && status out --json"]
SPECS = {
    "tensors": (PLANS + MAKES, "modules:\n  w: {shape: [6, 10], init: {normal: {std: 2}}}\n"
                               "  v: {shape: [5], init: {uniform: {low: 3, high: 4}}}\n"),
    "types": (PLANS + MAKES, "modules:\n  w: {shape: [6], dtype: i8, init: {constant: {value: 3}}}\n"
                             "  u: {shape: [7], dtype: u64, init: {expr: 'index * 9 + 5'}}\n"
                             "  e: {shape: [4, 4], init: {eye: {gain: 2}}}\n"
                             "  s: {shape: [8, 11], init: {sparse: {sparsity: 0.5, std: 12}}}\n"),
    "repeats": (PLANS + MAKES, "modules:\n  a:\n    repeat: {i: 5}\n    b:\n      repeat: {j: 3}\n"
                               "      w: {shape: [7, i + 2], init: zeros}\n"
                               "      v: {shape: ['j * 11 + 1'], init: ones, when: i < 4}\n"),
    "shapes": (PLANS + MAKES, "modules:\n  a: {repeat: {i: 12}, w: {shape: [i + 1], init: {normal: {std: 3}}}}\n"),
    "variables": (PLANS, "vars: {n: 6, m: n * 7, k: floor(m / 5)}\nmodules:\n"
                         "  w: {shape: [n, k + 4], init: {constant: {value: m}}}\n"),
    "torch": (PLANS * 2 + MAKES, "engine: torch_cpu\nseed: 3\nmodules:\n"
                                 "  a: {shape: [10, 20], init: {trunc_normal: {std: 1, a: -2, b: 2}}}\n"
                                 "  b: {shape: [7], init: {normal: {std: 1}}}\n"
                                 "  c: {shape: [7], init: {normal: {std: 1}}, key: {torch: {position: 5}}}\n"
                                 "  d: {shape: [9, 6], init: {orthogonal: {gain: 1}}}\n"
                                 "  e: {shape: [11, 8], init: {sparse: {sparsity: 0.5}}}\n"),
    "jax": (PLANS + MAKES, "engine: jax_threefry\nmodules:\n  l:\n    repeat: {i: 4}\n"
                           "    w: {shape: [6, 3], init: {normal: {std: 1}}, key: {jax: [{seed: 5, split: [2, 1]}, "
                           "{split: [4, i]}]}}\n"),
    "stages": (PLANS * 2 + MAKES, "mesh: {axes: {p: 11, q: 2}}\nmodules:\n  l:\n    repeat: {i: 11}\n"
                                  "    w: {shape: [8, 6], init: zeros, shard: [null, q], stage: {p: i}}\n"),
    "stages of an axis": (PLANS + MAKES,
                          "mesh: {axes: {p: 4}}\nmodules:\n  e: {shape: [5], init: ones, stage: {p: [0, mesh_p - 1]}}\n"
                                         "  l:\n    repeat: {i: 12}\n    stage: {p: floor(i * mesh_p / 12)}\n"
                                         "    w: {shape: [8], init: zeros}\n"),
    "ranks": (PLANS + MAKES + RANKS * 4,
              "mesh: {axes: {a: 16}}\nmodules:\n  w: {shape: [16, 4], shard: [a], init: {normal: {std: 1}}}\n"),
    "a mesh": (PLANS + MAKES + RANKS,
               "uneven: chunk\nmesh: {axes: {a: 3, b: 5, c: 1}}\nmodules:\n"
               "  w: {shape: [60, 8], shard: [[a, b], c], init: ones}\n"),
    "devices": (PLANS + MAKES + RANKS,
                "mesh: {axes: {a: 4}, slices: {a: 2}, devices: [7, 5, 11, 3]}\nmodules:\n"
                "  w: {shape: [8], shard: [a], init: ones}\n"),
    "segments": (PLANS * 2 + MAKES, "mesh: {axes: {p: 2}}\nmodules:\n  l:\n    repeat: {i: 5}\n"
                                    "    w: {shape: [4096], init: zeros, shard: [{axes: p, segments: 8}]}\n"),
    "nested": (PLANS + MAKES, "uneven: chunk\nmesh: {axes: {p: 2, q: 3}}\nmodules:\n"
                              "  w: {shape: [48, 5], init: ones, shard: [{axes: [p, q], segments: 4, nested: true}]}\n"),
    "padded": (PLANS + MAKES, "uneven: pad\nmesh: {axes: {p: 4}}\nmodules:\n"
                              "  w: {shape: [10, 3], init: ones, shard: [p]}\n"),
    "fsdp": (PLANS + MAKES, "mesh: {axes: {f: 4, t: 2}}\nsharding: [{megatron: {column: 'l.*.up.*'}}, fully_shard]\n"
                            "modules:\n  l:\n    repeat: {i: 3}\n"
                            "    up.weight: {shape: [16, 8], init: ones}\n"),
    "pipeline": (PLANS, "mesh: {axes: {pipe: 2}}\nsharding:\n  - pipeline: {layers: 'l.*', count: 6}\nmodules:\n  l:\n"
                        "    repeat: {i: 6}\n"
                        "    w: {shape: [8], init: ones}\n"),
    "auto": (PLANS[:4], "mesh: {axes: {a: 4, b: 2}}\nsharding: auto\nmodules:\n  l:\n    repeat: {i: 3}\n"
                        "    up.weight: {shape: [64, 32], init: ones}\n"
                        "    down.weight: {shape: [32, 64], init: ones}\n"),
    "keep": (["validate", "plan --layout l"] * 3,
             "modules:\n  l:\n    repeat: {i: 13}\n    a: {shape: [2], init: zeros}\n"
                                                  "    n: {repeat: {j: 90}, w: {shape: [2], init: zeros}}\n"
                                                  "layouts: {l: {keep: [<13: 'l.#.*'>]}}\n"),
    "omit": (["validate", "plan --layout l"] * 3,
             "modules:\n  l:\n    repeat: {i: 13}\n    a: {shape: [2], init: zeros}\n"
                                                  "    n: {repeat: {j: 90}, w: {shape: [2], init: zeros}}\n"
                                                  "layouts: {l: {keep: ['*.a'], omit: [<13: 'l.#.n.*'>]}}\n"),
    "stack": (["validate", "plan --layout l"],
              "modules:\n  l:\n    repeat: {i: 13}\n    n: {repeat: {j: 90}, w: {shape: [2], init: zeros}}\n"
                                               "layouts: {l: {stack: [<13: 'l.#.n'>]}}\n"),
    "rules": (PLANS, "mesh: {axes: {a: 2}}\nrules: [<14: {r#: a}>]\nmodules:\n  w:\n    repeat: {i: 14}\n"
                     "    v: {shape: [4], axes: ['r{i}'], init: zeros}\n"),
    "views": (["validate", "plan --layout l", "graph --layout l", "gen --layout l -o out", "digest --layout l",
               "graph --layout l --json", "program --layout l -o out"],
              "modules:\n  w: {shape: [12, 10], init: {normal: {std: 1}}}\n"
              "  v: {repeat: {i: 3}, u: {shape: [4], init: ones}}\n"
              "layouts:\n  l:\n    a: {from: {slice: {axis: 0, start: 0, stop: 7, of: w}}}\n"
              "    b: {from: {reshape: {shape: [5, 10], of: {slice: {axis: 0, start: 7, stop: 12, of: w}}}}}\n"
              "    c: {from: {pad: {axis: 0, to: 6, of: {stack: {axis: 0, for: {i: 3}, of: 'v.{i}.u'}}}}}\n"
              "    d: {from: {interleave: {axis: 0, groups: 2, of: [v.0.u, v.1.u]}}}\n"
              "    e: {from: {transpose: {axes: [1, 0], of: w}}}\n"),
    "many axes": (PLANS, "mesh: {axes: {<3: a#: 2>}}\nmodules:\n  w: {shape: [64], init: zeros, shard: [[<3: a#>]]}\n"),
    "many names": (PLANS, "modules:\n  <15: w#: {shape: [2], init: zeros}>\n"),
}
LINES = {  # command → options with numbers, for a valid spec with ranks and layers
    "plan": ["--rank 3", "--mesh a=4,b=2", "--set seed=5", "--set modules.l.repeat.i=6",
             "--memory-per-rank 7G --sharding auto",
             "--tokens 8 --sharding auto", "--json --rank 3", "--set mesh.devices=[9,1,2,3]", "--devices --mesh a=4"],
    "graph": ["--depth 2", "--json --depth 2"],
    "explain": ["l.1.w --rank 3", "l.5.w"],
    "gen": ["--ranks 0-3 -o out", "--ranks 2,1 -o out", "--devices 1-3 -o out", "--devices 2 -o out", "--jobs 2 -o out",
            "--memory 64M -o out", "--memory 512K -o out", "--mesh a=4 --ranks 1 -o out", "--jobs 3 --dry-run -o out"],
    "digest": ["--jobs 2", "--memory 64M"],
    "stats": ["--jobs 2", "--memory 64M"],
    "program": ["--rank 3 -o out", "--set seed=5"],
    "export": ["--to safetensors --max-shard-size 600 -o out", "--to keras --max-shard-size 3K -o out",
               "--to dcp --jobs 2 -o out", "--to zarr --memory 64M -o out"],
}
LINE_SPEC = HEAD + ("mesh: {axes: {a: 4, b: 1}}\nmodules:\n  l:\n    repeat: {i: 6}\n"
                    "    w: {shape: [8, 4], shard: [a], init: {normal: {std: 1}}}\n")
READS = {  # kind of input → the commands that read it
    "checkpoint": ["verify out", "status out", "inspect out", "finalize out", "export out --to dcp -o new",
                   "reshard out --mesh a=2 -o new",
                   "stats out", "gen spec.yaml -o out", "gen spec.yaml --repair -o out", "diff out spec.yaml",
                   "verify out --spec spec.yaml"],
    "export": ["verify out", "verify out --spec spec.yaml"],
    "config.json": ["import config.json", "plan config.json", "validate config.json", "graph config.json",
                    "gen config.json --dry-run -o out"],
    "digests": ["digest spec.yaml --check list.json"],
}


@functools.cache
def made():
    """Makes the inputs of commands once: `checkpoint`, exports by format, and a list of digests."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bounds-made-"))
    (folder / "spec.yaml").write_text(LINE_SPEC.replace("b: 1}", "b: 1}, devices: [4, 3, 2, 1]"))
    run_ok("gen", "spec.yaml", "-o", "checkpoint", cwd=folder)
    for format in OF_ANY:
        run_ok("export", "spec.yaml", "--to", format, "-o", format, cwd=folder)
    run_ok("digest", "spec.yaml", "--write", "list.json", cwd=folder)
    (folder / "config.json").write_text(file_of("import", "import_config", "config.json").read_text())
    return folder


FILES = [("checkpoint", "plan.json"), ("checkpoint", "devices.json"), ("checkpoint", "manifest.json"),
         ("checkpoint", "ranks/rank-00001.json"), ("safetensors", "shardinit-export.json"),
         ("dcp", "shardinit-export.json"),
         ("safetensors", "model.safetensors"), ("hf-dcp", "shard-00001-model-00001-of-00001.safetensors"),
         ("zarr", "l.1.w/.zarray"), ("config.json", "config.json"), ("digests", "list.json")]


def counted(text):
    """Expands `<3: w#>` to `w0, w1, w2`, in a block to one line for each item. At most 2000 items are written."""
    def items(found):
        lines = found[2].endswith("}") and found[2].startswith("w")
        return ("\n  " if lines else ", ").join(found[2].replace("#", str(i)) for i in range(min(int(found[1]), 2000)))

    return re.sub(r"<(\d+): (.*?)>", items, text)


def replace_number(draw, text, numbers):
    """Replaces a number at each place where it occurs in a text."""
    found = sorted(set(re.findall(r"(?<![\w.])\d+(?![\w.])", text)), key=int)
    return re.sub(rf"(?<![\w.]){draw(st.sampled_from(found))}(?![\w.])", str(draw(st.sampled_from(numbers))), text)


@st.composite
def in_specs(draw, commands=None):
    lines = {name: [line for line in of if commands is None or line.split()[0] in commands] for name,
             (of, _) in SPECS.items()}
    name = draw(st.sampled_from(sorted(name for name, of in lines.items() if of)))
    command = draw(st.sampled_from(lines[name]))
    first, *rest = command.split()
    text = HEAD + counted(replace_number(draw, SPECS[name][1], LARGE))
    return {"files": {"spec.yaml": text}, "line": " ".join([first, "spec.yaml", *rest])}


@st.composite
def in_lines(draw):
    name = draw(st.sampled_from(sorted(LINES)))
    words = draw(st.sampled_from(LINES[name]))
    spots = [found.span() for found in re.finditer(r"\d+", words)]
    begin, end = draw(st.sampled_from(spots))
    words = words[:begin] + str(draw(st.sampled_from([*LARGE, -1, "1.5", "1e9"]))) + words[end:]
    return {"files": {"spec.yaml": LINE_SPEC}, "line": f"{name} spec.yaml {words}"}


@st.composite
def in_files(draw):
    folder, name = draw(st.sampled_from(FILES))
    kind = folder if folder in READS else "export"
    # 2^18 layers of a family have three million tensors, which need all memory.
    large = [number for number in LARGE if number != 2**18 or kind != "config.json"]
    return {"folder": folder, "name": name, "place": draw(st.integers(0, 999)),
            "line": draw(st.sampled_from(READS[kind])),
            "number": draw(st.sampled_from([*NO_NUMBERS, *map(str, large)])),
            "spec": (made() / "spec.yaml").read_text()}


def write(case, folder):
    """Writes the files of a case; returns whether a value in them is now wrong."""
    for name, text in case.get("files", {}).items():
        (folder / name).write_text(text)
    if "folder" not in case:
        return False
    (folder / "spec.yaml").write_text(case["spec"])
    if (made() / case["folder"]).is_dir():
        shutil.copytree(made() / case["folder"], folder / "out")
        path = folder / "out" / case["name"]
    else:
        path = folder / case["name"]
        shutil.copy(made() / path.name, path)
    is_header = path.suffix == ".safetensors"
    text = read_header(path) if is_header else path.read_text()
    found = list(places(text))
    begin, end, quote = found[case["place"] * len(found) // 1000]
    other = text[:begin] + case["number"].replace('"', quote) + text[end:]
    (write_header if is_header else pathlib.Path.write_text)(path, other)
    try:
        return json.loads(other) != json.loads(text)
    except ValueError:  # such as a digit of 0.02 replaced by -1
        return True


def limit():
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def start(folder, words):
    with open(folder / "stdout", "wb") as stdout, open(folder / "stderr", "wb") as stderr:
        return subprocess.Popen([BINARY, *words], cwd=folder, env=CLEAN, stdin=subprocess.DEVNULL,
                                stdout=stdout, stderr=stderr, preexec_fn=limit)


def check_end(folder, words, status):
    message = (folder / "stderr").read_text(errors="replace")
    what = f"{' '.join(words)}: status {status}\n{message[:2000]}"
    assert status in (0, 1, 2, 3, 4, 5), what
    if words[0] in ("validate", "plan", "graph", "explain") and words[1] == "spec.yaml":
        assert status in ((0, 2, 5) if "--write" in words else (0, 2)), what
    assert "bug" not in message and "out of memory" not in message, what
    assert status in (0, 1) or message or "--json" in words, what
    assert len(message) < 1 << 16, f"{what}: {len(message)} bytes of messages"
    size = (folder / "stdout").stat().st_size
    assert status in (0, 1) or size == 0 or words[0] == "validate" or words[1] != "spec.yaml" or "--check" in words, what
    for_people = words[0] != "program" and not {"--json", "--dot"} & set(words)
    assert size <= (TEXT_BYTES if for_people else FILE_BYTES), f"{what}: {size} bytes of output"
    # Status 3 is allowed if a disk, a limit of files, or a requested memory size may be too small.
    assert status != 3 or words[0] in ("gen", "export", "program", "finalize", "reshard", "import",
                                       "plan") or "out" in words, what
    if words[0] == "program" and (folder / "out").is_file():
        assert (folder / "out").stat().st_size <= (300 << 20), what


def run_in_folder(case, run):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bounds-"))
    try:
        wrong = write(case, folder)
        run(folder, wrong)
    finally:
        shutil.rmtree(folder)


def check_to_the_end(case):
    def run(folder, wrong):
        for line in case["line"].split(" && "):
            words = line.split()
            status = start(folder, words).wait()
            check_end(folder, words, status)
            assert not wrong or words != ["verify", "out"] or status in (1, 5), f"{case}: {status}"

    run_in_folder(case, run)


@generated(230)
@given(case=in_specs())
def test_specs_with_huge_numbers_stay_within_limits(case):
    makes = case["line"].split()[0] in {command.split()[0] for command in MAKES} and "&&" not in case["line"]
    check_signal_ends(case, 2) if makes else check_to_the_end(case)


@generated(100)
@given(case=in_lines())
def test_command_lines_with_huge_numbers_stay_within_limits(case):
    check_signal_ends(case, 2)


@generated(250)
@given(case=in_files())
def test_files_with_huge_numbers_stay_within_limits(case):
    check_to_the_end(case)


def processor_seconds(process):
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check_signal_ends(case, seconds):
    """Returns a check that a signal ends a long command at once and leaves no files."""
    def run(folder, _):
        for line in case["line"].split(" && "):
            words = line.split()
            process = start(folder, words)
            end = time.monotonic() + seconds
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.005)
            if process.poll() is not None:
                check_end(folder, words, process.returncode)
                continue
            before = processor_seconds(process.pid)
            process.send_signal(signal.SIGTERM)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode in (-signal.SIGTERM, 0, 1, 2, 3), f"{line}: {process.returncode}"
            more = usage.ru_utime + usage.ru_stime - before
            assert more < 5, f"{line}: {more:.1f} s of a processor after a signal"
            left = [os.path.join(at, name) for at, folders, names in os.walk(folder) for name in folders + names
                    if ".tmp-" in name]
            assert not left, f"{line} left {left}"
            return

    run_in_folder(case, run)


@generated(25)
@given(case=in_specs(commands=("gen", "export", "program", "digest", "stats")))
def test_signals_end_commands_that_generate_values(case):
    check_signal_ends(case, 0.5)
