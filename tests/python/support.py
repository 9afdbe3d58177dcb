"""Shared helpers of the command tests: they run shardinit and read its files with only h5py, NumPy
and the attributes that the format defines."""

import hashlib
import json
import os
import pathlib
import re
import subprocess

import h5py
import ml_dtypes
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("SHARDINIT", ROOT / "build/release/src/shardinit")).resolve()
TINY = ROOT / "configs/llama3-tiny.yaml"
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
RECIPES = sorted((ROOT / "configs/recipes").glob("*.yaml"))
FAMILIES = sorted((ROOT / "configs/huggingface").glob("*.yaml"))  # `import` includes them.
LAYOUTS = sorted((ROOT / "configs/layouts").glob("*.yaml"))  # Specs include them.

DTYPES = {
    "f32": np.dtype("<f4"),
    "f64": np.dtype("<f8"),
    "f16": np.dtype("<f2"),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    **{f"{kind}{8 * n}": np.dtype(f"<{kind}{n}") for kind in "iu" for n in (1, 2, 4, 8)},
    "bool": np.dtype("?"),
}
FLOATS = ["f32", "f64", "f16", "bf16", "f8e4m3fn", "f8e5m2"]

# Tensors of every kind that is hard to shard, store or read: all HDF5 floats, ranks up to 5, a
# dimension sharded by two axes in reverse mesh order, boxes that include empty ones, and a tensor
# in several blocks.
AWKWARD = """
shardinit: 1
name: awkward
dtype: f32
uneven: chunk
mesh: {axes: {a: 2, b: 2}}
rules:
  - {x: a}
  - {y: b}
  - {xy: [b, a]}
init:
  n: {normal: {std: 0.5}}
modules:
  vector: {shape: [5], axes: [xy], init: n}
  short: {shape: [3], axes: [xy], init: n, dtype: bf16}
  matrix: {shape: [33, 17], axes: [x, y], init: n, dtype: f64}
  columns: {shape: [7, 1025], axes: [null, xy], init: n, dtype: bf16}
  wide: {shape: [5, 20000], axes: [x, y], init: n, dtype: bf16}
  cube: {shape: [5, 6, 7], axes: [y, null, x], init: n, dtype: f16}
  deep: {shape: [2, 3, 2, 3, 2], axes: [null, x, null, y, null], init: {uniform: {low: -1, high: 2}}}
  whole: {shape: [1000], axes: [null], init: {truncated_normal: {std: 0.02}}, dtype: bf16}
  one: {shape: [1], axes: [x], init: n, dtype: f16}
  zeros: {shape: [9, 9], axes: [x, y], init: zeros}
  constant: {shape: [9], axes: [y], init: {constant: {value: -1.5}}, dtype: f16}
"""

# Removes the variables through which a user's shell could affect the tests.
CLEAN = {k: v for k, v in os.environ.items()
         if not k.startswith(("SHARDINIT", "LC_", "LANG", "SLURM_", "NO_COLOR", "COLUMNS"))}


def run_tool(*arguments, binary=BINARY, env=None, wrap=(), **options):
    """Runs shardinit to its end, under the command `wrap` if given."""
    options.setdefault("timeout", 120)
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run([*map(str, wrap), str(binary), *map(str, arguments)],
                          env={**CLEAN, **(env or {})}, text=True, errors="replace", **options)


def run_ok(*arguments, **options):
    """Like run_tool, but the command must succeed."""
    result = run_tool(*arguments, **options)
    assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


def run_json(*arguments, **options):
    return json.loads(run_ok(*arguments, "--json", **options).stdout)


# The formats that `export --help` lists. Without a program, conftest.py ends the run.
FORMATS = re.search(r"--to FORMAT +Format: (.*)", run_ok("export", "--help").stdout)[1].split(", ") \
    if BINARY.is_file() else []
OF_NAMES = ["keras", "megatron"]  # These formats need specific tensor names.
OF_ANY = [format for format in FORMATS if format not in OF_NAMES]


def tree_of(folder):
    """Maps the relative path of every file in a folder to its bytes, and of every folder to
    None."""
    folder = pathlib.Path(folder)
    return {str(p.relative_to(folder)): None if p.is_dir() else p.read_bytes()
            for p in sorted(folder.rglob("*"))}


def text_of(value):
    return value.decode() if isinstance(value, bytes) else str(value)


def read_raw(dataset):
    """Returns a dataset's stored bytes as an array, without conversion."""
    dtype = DTYPES[text_of(dataset.attrs["dtype"])]
    words = np.empty(dataset.shape, dtype=f"<u{dtype.itemsize}")
    if words.size:
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, words, mtype=dataset.id.get_type())
    return words


def datasets_in(file):
    """Returns every dataset of a file that records its tensor's path."""
    found = []

    def visit(_, item):
        if isinstance(item, h5py.Dataset) and "path" in item.attrs:
            found.append(item)

    file.visititems(visit)
    return found


def rank_files(folder):
    return sorted(pathlib.Path(folder, "ranks").glob("rank-*.h5"))


def reassemble(folder):
    """Assembles all tensors from the rank files only: path → (dtype name, whole tensor as unsigned
    words).

    Fails if an element is missing, or is present twice with different bits."""
    tensors, seen = {}, {}
    for name in rank_files(folder):
        with h5py.File(name, "r") as file:
            for dataset in datasets_in(file):
                path = text_of(dataset.attrs["path"])
                dtype = text_of(dataset.attrs["dtype"])
                shape, offset = (
                    () if isinstance(numbers, h5py.Empty) else tuple(map(int, numbers))
                    for numbers in (dataset.attrs["global_shape"], dataset.attrs["offset"])
                )
                words = read_raw(dataset)
                if path not in tensors:
                    tensors[path] = (dtype, np.zeros(shape, words.dtype))
                    seen[path] = np.zeros(shape, bool)
                assert tensors[path][0] == dtype and tensors[path][1].shape == shape
                box = tuple(slice(o, o + n) for o, n in zip(offset, dataset.shape))
                assert tensors[path][1][box].shape == dataset.shape, f"{path}: box outside the tensor"
                old = seen[path][box]
                assert np.array_equal(tensors[path][1][box][old], words[old]), f"{path}: replicas differ"
                tensors[path][1][box] = words
                seen[path][box] = True
    for path, mask in seen.items():
        assert mask.all(), f"{path}: {mask.size - mask.sum()} elements are in no rank's file"
    return tensors


def table_file(folder, data):
    """Writes a file with these bytes (or an array's), named by their digest. Returns its absolute
    path, for `file` in specs."""
    data = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
    path = pathlib.Path(folder, hashlib.sha256(data).hexdigest() + ".bin")
    path.write_bytes(data)
    return path


def sha256_of(words):
    return hashlib.sha256(np.ascontiguousarray(words).tobytes()).hexdigest()


def read_tensor(folder, path):
    """Returns one reassembled tensor as numbers."""
    dtype, words = reassemble(folder)[path]
    return words.view(DTYPES[dtype])
