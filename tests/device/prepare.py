"""Writes the cases that tests/device/program.py checks on a machine with an accelerator and without a build:

    python tests/device/prepare.py FOLDER

The cases come from tests/python/test_program.py, as modules for one device. The new folder contains the modules;
`expected.npz` with the words that `gen` writes; `cases.json`, an index of these; and `words.ptx`, a kernel for
tests/device/fills.py."""

import argparse
import gzip
import hashlib
import json
import pathlib
import re
import shutil
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import test_program
from clients import gen_ok
from support import BINARY, DTYPES, ROOT, TINY, run_json, run_ok

import shardinit  # `clients` adds the package to the path.

WORDS_PTX = BINARY.parents[1] / "tests/words.ptx"
# The number of words that are stored for a result. The digest covers all of them.
WORDS = 1 << 12
# Tensors in each module of a table with hundreds: several modules compile at once, and an error costs only one.
TENSORS = 64
LARGE = [32768, 8192]


class Cases:
    """The contents of the folder while it is prepared."""

    def __init__(self, folder):
        self.folder = folder
        self.words = {}
        self.cases, self.kinds, self.large, self.left_out, self.of_ranks = [], [], [], [], []

    def module(self, text):
        """Writes a module once, and returns its file's name."""
        name = hashlib.sha256(text.encode()).hexdigest()[:16] + ".mlir.gz"
        (self.folder / name).write_bytes(gzip.compress(text.encode(), mtime=0))
        return name

    def expected(self, case, arrays):
        """Stores the words of a case's results; returns a description of each result."""
        results, kept = [], []
        for name, array in arrays.items():
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            size = array.dtype.itemsize
            results.append({"name": name, "shape": list(array.shape), "size": size,
                            "words": min(array.size, WORDS), "sha256": hashlib.sha256(data).hexdigest()})
            kept.append(data[:size * WORDS])
        self.words[case] = np.concatenate(kept) if kept else np.zeros(0, np.uint8)
        return results

    def add(self, name, text, arrays, turn, may_differ=None):
        """Adds a case: a module, its results, its turn, and for each result the elements that may differ."""
        assert name not in self.words, name
        self.cases.append({"name": name, "file": self.module(text), "turn": turn,
                           "results": self.expected(name, arrays), "may_differ": may_differ or {}})

    def write(self):
        np.savez_compressed(self.folder / "expected.npz", **self.words)
        self.left_out.append(f"as one module for all devices, but as those of ranks: {'; '.join(self.of_ranks)}")
        described = {"cases": self.cases, "kinds": self.kinds, "large": self.large, "left_out": self.left_out}
        (self.folder / "cases.json").write_text(json.dumps(described, indent=1))


def add_known_answers(cases, folder):
    for arithmetic in ("f32", "f64"):
        for number, batch in enumerate(test_program.batches_of(test_program.vectors_of(arithmetic), TENSORS)):
            arrays = {}
            for vector in batch:
                words = np.array([int(word, 16) for word in vector["bits"].split()], np.uint64)
                arrays[vector["path"]] = words.astype(f"u{DTYPES[vector['dtype']].itemsize}").reshape(vector["shape"])
            module = test_program.module_of(batch, folder, *(["f64"] if arithmetic == "f64" else []))
            may_differ = {vector["path"]: sorted(test_program.flushed_elements(vector)) for vector in batch}
            cases.add(f"known answers, {arithmetic}, {number}: {batch[0]['engine']}", module.read_text(), arrays, 0,
                      may_differ={path: elements for path, elements in may_differ.items() if elements})


def stacked(name, arrays):
    """Returns the values of a result of `--stack`, from the tensors that it joins."""
    layers = [arrays[name.replace("*", str(i))] for i in range(len(arrays)) if name.replace("*", str(i)) in arrays]
    return np.stack(layers) if "*" in name else arrays[name]


def add_spec(cases, name, spec, *options, ranks=None, arithmetics=("f32", "f64"), stack=False):
    """Adds the modules of a spec, given as text or a file: for these ranks, or for a mesh of one device."""
    with tempfile.TemporaryDirectory() as folder:
        made = shardinit.open(gen_ok(spec, folder, *options, "--replicas", "full"))
        path = pathlib.Path(folder, "spec.yaml") if isinstance(spec, str) else spec
        # The rank in the middle comes first, since time may not suffice for the others.
        for number, rank in enumerate(sorted(ranks, key=lambda r: r != ranks[len(ranks) // 2]) if ranks else [None]):
            arrays = test_program.boxes_of(made, rank or 0)
            if stack:
                names = run_ok("program", path, *options, "--stack", "--rank", rank).stdout
                names = re.findall(r'jax\.result_info = "([^"]*)"', names)
                arrays = {result: stacked(result, arrays) for result in names}
            for arithmetic in arithmetics:
                form = ["--rank", rank] if ranks else []
                form += ["--stack"] if stack else []
                text = run_ok("program", path, *options, *form, "--arith", arithmetic).stdout
                suffix = f", rank {rank}" if ranks else ""
                cases.add(f"{name}, {arithmetic}{suffix}", text, arrays, 2 if number else 1)
    if ranks:
        cases.of_ranks.append(f"{name} (of {ranks})")


def add_specs(cases, folder):
    of_eight, mesh = [0, 3, 7], ["--mesh", "fsdp=4,tensor=2"]
    for engine in sorted({engine for engine, _, _ in test_program.FORMS}, key=str):
        name, layout = engine or "views", [] if engine else ["--layout", "all"]
        for devices in (1, 8):
            text = test_program.everything(devices, engine) if engine else test_program.views(devices)
            ranks = of_eight if devices > 1 else None
            add_spec(cases, f"everything, {name}, {devices} devices", text, *layout, ranks=ranks)
    add_spec(cases, "squares", test_program.SQUARES, ranks=of_eight)
    add_spec(cases, "norms", test_program.norms(), ranks=[0, 1])
    add_spec(cases, "uneven", test_program.UNEVEN, ranks=list(range(6)))
    add_spec(cases, "tiny llama", TINY, *mesh, ranks=of_eight)
    for layout, _ in test_program.TRAINERS:
        add_spec(cases, f"layout {layout}", TINY, "--layout", layout, *mesh, ranks=of_eight)
    add_spec(cases, "layers in a loop", TINY, "--set", "vars.layers=5", *mesh, ranks=of_eight, stack=True)
    try:
        spec, _ = test_program.constructor(folder)
        add_spec(cases, "a constructor of PyTorch", spec, ranks=of_eight)
    except test_program.pytest.skip.Exception as reason:
        cases.left_out.append(f"a constructor of PyTorch: {reason}")
    expressions = list(test_program.calls_of().items())
    for i in range(0, len(expressions), TENSORS):  # Expressions are the same in both arithmetics.
        text = test_program.calls(dict(expressions[i:i + TENSORS]))
        add_spec(cases, f"calls from {i}", text, ranks=[3], arithmetics=["f32"])


def add_kinds(cases, folder):
    """Adds the kinds of Llama 3.1 405B: for one rank of its own mesh, and for one device that holds everything."""
    config = ROOT / "configs/llama3.1-405b.yaml"
    cases.of_ranks.append(f"{config.stem} (its kinds)")
    for name, options, largest in (
        ("a rank of 512", ["--rank", "300"], 1 << 23), ("one device", ["--mesh", "fsdp=1,tensor=1"], 1 << 25)
    ):
        out = folder / name
        run_ok("program", config, "--kinds", "-o", out, *options)
        program = json.loads((out / "program.json").read_text())
        mesh = dict(zip(program["mesh"]["axes"], program["mesh"]["shape"], strict=True))
        with shardinit.open_spec(config, mesh=mesh) as spec:
            for number, kind in enumerate(program["kinds"]):
                tensor = next(t for t in program["tensors"] if t["kind"] == number)
                case = f"405B, {name}: {tensor['path']}"
                arrays = None
                if np.prod(kind["shape"]) <= largest:
                    box, = spec.boxes(tensor["path"], program["rank"] or 0)
                    values = spec.read(tensor["path"], tuple(slice(o, o + n) for o, n in zip(*box, strict=True)))
                    arrays = {tensor["path"]: values}
                tables = [np.array(words).reshape(shape).tolist()
                          for words, shape in zip(tensor["tables"], kind["tables"], strict=True)]
                cases.kinds.append({
                    "name": case, "file": cases.module((out / kind["file"]).read_text()), "tables": tables,
                    "shape": kind["shape"], "dtype": kind["dtype"], "may_differ": {},
                    "results": cases.expected(case, arrays) if arrays else None})


def add_large(cases, folder):
    """Adds large tensors of normal numbers, to measure how many are made each second."""
    for engine in ("philox4x32", "jax_threefry"):
        for dtype in ("bf16", "f32"):
            spec = folder / "large.yaml"
            spec.write_text(f"shardinit: 1\nname: large\nengine: {engine}\nmodules:\n"
                            f"  w: {{shape: {LARGE}, dtype: {dtype}, init: {{normal: {{std: 0.02}}}}}}\n")
            tensor, = run_json("digest", spec)["tensors"]
            case = f"{engine}, {dtype} {LARGE}"
            size = DTYPES[dtype].itemsize
            with shardinit.open_spec(spec) as values:
                rows = -(-WORDS // LARGE[1])
                result, = cases.expected(case, {"w": values.read("w", (slice(0, rows), slice(0, LARGE[1])))})
            result |= {"shape": LARGE, "size": size, "words": WORDS, "sha256": tensor["sha256"]}
            cases.large.append({"name": case, "file": cases.module(run_ok("program", spec).stdout), "dtype": dtype,
                                "results": [result], "may_differ": {}})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True)
    cases = Cases(folder)
    cases.left_out.append("the engine torch_cpu and the initializers "
                          f"{sorted(test_program.REFUSED)}: `program` refuses them")
    with tempfile.TemporaryDirectory() as temporary:
        add_known_answers(cases, pathlib.Path(temporary))
        add_specs(cases, pathlib.Path(temporary))
        add_kinds(cases, pathlib.Path(temporary))
        add_large(cases, pathlib.Path(temporary))
    cases.write()
    if WORDS_PTX.is_file():  # Builds without clang have no kernel, and fills.py reports it.
        shutil.copy(WORDS_PTX, folder)
    files = list(folder.iterdir())
    print(f"{len(cases.cases)} cases, {len(cases.kinds)} kinds of tensors, {len(cases.large)} large tensors: "
          f"{len(files)} files, {sum(file.stat().st_size for file in files):,} bytes")


if __name__ == "__main__":
    main()
