"""JAX runs programs of random specs on eight host devices. Each device must compute the values that `gen` writes for
its rank, without collectives."""

import itertools
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

import h5py
import numpy as np
import pytest
from hypothesis import event, example, strategies

from clients import client_of
from generated import generated, given
from support import datasets_in, rank_files, read_raw, run_ok, text_of

client_of("jax")

MESHES = [{"a": 8}, {"a": 2, "b": 4}, {"a": 2, "b": 2, "c": 2}]
LEAVES = ["index", "i0", "n0", "1.5", "-0.25", "2", "0", "-0", "1", "normal()", "uniform()"]
# Forms of expressions; each is defined for all numbers.
FORMS = ["tanh({})", "sin({})", "cos({})", "abs({})", "floor({})", "-({})", "f32({})", "bf16(tanh({}))",
         "f16(tanh({}))",
         "exp(tanh({}))", "expm1(tanh({}))", "sqrt(abs({}))", "log(abs({}) + 1)", "log1p(abs({}))",
         "erf_inv(tanh({}) * 0.75)",
         "pow(abs({}) + 0.5, tanh({}))", "pow(tanh({}), 2)", "pow(tanh({}), 3.0)", "mod({}, 3)", "ceil_div({}, 4)",
         "round_up({}, 4)", "({} + {})", "({} - {})", "(tanh({}) * {})", "({} / (abs({}) + 1))", "min({}, {})",
         "max({}, {}, 0)", "clip({}, -1, {})", "where({} > {}, 1, {})", "where({} <= 0, {}, {})", "({} == {})",
         # Compilers may simplify these to their argument or to 0.
         "({} + 0)", "(0 - {})", "({} - -0)", "({} * 1)", "({} / 1)", "({} * 0)", "(-({}) * 0)"]


@strategies.composite
def expressions(draw, depth=0):
    if depth == 3 or draw(strategies.integers(0, 3)) == 0:
        return draw(strategies.sampled_from(LEAVES))
    form = draw(strategies.sampled_from(FORMS))
    parts = [draw(expressions(depth + 1)) for _ in range(form.count("{}"))]
    # Expressions of numbers only are another kind, with their own errors.
    return form.format(*parts)


@strategies.composite
def partitions(draw, mesh, shape, exact):
    """Draws `shard` for a tensor: each mesh axis shards one dimension or none, in any order of axes."""
    shard = [[] for _ in shape]
    for axis in draw(strategies.permutations(list(mesh))):
        dimension = draw(strategies.integers(-1, len(shape) - 1))
        parts = math.prod(mesh[other] for other in shard[dimension]) * mesh[axis]
        if dimension >= 0 and (not exact or shape[dimension] % parts == 0):
            shard[dimension].append(axis)
    return shard


@strategies.composite
def tensors(draw, mesh):
    # Few sizes, since compilers can confuse dimensions of equal size.
    rank = draw(strategies.integers(1, 3))
    shape = draw(strategies.lists(strategies.sampled_from([1, 3, 8, 15, 16, 32]), min_size=rank, max_size=rank))
    inits = [{"normal": {"std": 0.5}}, {"uniform": {"low": -1, "high": 2}}, {"trunc_normal": {"std": 0.02}},
             {"constant": {"value": 2.5}}, {"normalized": {"axis": draw(strategies.integers(0, rank - 1))}},
             {"expr": f"clip({draw(expressions())} + 0 * i0, -100, 100)"},
             {"expr": f"clip({draw(expressions())} + 0 * i0, -100, 100)"}]
    if rank == 2:
        inits += [{"sparse": {"sparsity": 0.3}}, "orthogonal"]
    return {"shape": shape, "dtype": draw(strategies.sampled_from(["f32", "f64", "bf16", "f16"])),
            "init": draw(strategies.sampled_from(inits)), "uneven": "pad",
            "shard": draw(partitions(mesh, shape, False))}


@strategies.composite
def views(draw, mesh, path, tensor):
    """Draws stored tensors that contain each element of the drawn ones once, and the tensors that they need in addition
    to `path`."""
    shape, siblings = tensor["shape"], [path]
    axis = draw(strategies.integers(0, len(shape) - 1))
    new = list(shape)
    operation = draw(strategies.sampled_from(["transpose", "concat", "stack", "pad", "slice", "reshape"]))
    if operation == "transpose":
        order = draw(strategies.permutations(range(len(shape))))
        made = [([shape[d] for d in order], {"axes": list(order), "of": path})]
    elif operation in ("concat", "stack"):
        siblings = [path, f"{path}x"]
        new = shape[:axis] + ([2] if operation == "stack" else []) + shape[axis:]
        new[axis] = 2 if operation == "stack" else 2 * shape[axis]
        made = [(new, {"axis": axis, "of": siblings})]
    elif operation == "pad":
        new[axis] += 8
        made = [(new, {"axis": axis, "to": new[axis], "value": 1.5, "of": path})]
    elif operation == "slice":
        cut = [0, *([shape[axis] // 2] if shape[axis] > 1 else []), shape[axis]]
        made = [([*shape[:axis], stop - start, *shape[axis + 1:]],
                 {"axis": axis, "start": start, "stop": stop, "of": path})
                for start, stop in zip(cut, cut[1:])]
    else:
        made = [([math.prod(shape)], {"shape": [math.prod(shape)], "of": path})]
    return siblings, {f"v{path}_{number}": {"from": {operation: view}, "shard": draw(partitions(mesh, size, True))}
                      for number, (size, view) in enumerate(made)}


@strategies.composite
def separate_tensors(draw, mesh):
    return {f"w{i}": draw(tensors(mesh)) for i in range(draw(strategies.integers(1, 3)))}


@strategies.composite
def layers(draw, mesh):
    """Draws tensors whose names differ only in a number and which are equal except for a few properties."""
    first = draw(tensors(mesh))
    numbers = draw(strategies.lists(strategies.integers(0, 4), min_size=2, max_size=4, unique=True))
    drawn = {}
    for number in numbers:
        other = draw(tensors(mesh))
        own = [key for key in ("init", "dtype", "shard") if draw(strategies.integers(0, 3)) == 0]
        if "init" in own and len(other["shape"]) != len(first["shape"]):
            own.remove("init")
        if "shard" in own:
            other["shard"] = draw(partitions(mesh, first["shape"], False))
        drawn[f"l.{number}.w"] = {**first, **{key: other[key] for key in own}}
    return drawn


@strategies.composite
def specs(draw):
    mesh = draw(strategies.sampled_from(MESHES))
    drawn = draw(layers(mesh) | separate_tensors(mesh))
    spec = {"shardinit": 1, "name": "drawn", "seed": draw(strategies.integers(0, 2**64 - 1)), "fans": "out_in",
            "engine": draw(strategies.sampled_from(["philox4x32", "jax_threefry"])), "mesh": {"axes": mesh},
            "modules": drawn}
    if draw(strategies.booleans()):
        stored = {}
        for path, tensor in list(drawn.items()):
            siblings, of_path = draw(views(mesh, path, tensor))
            drawn |= dict.fromkeys(siblings, tensor)
            stored |= of_path
        spec["layouts"] = {"other": stored}
    options = [["--arith", draw(strategies.sampled_from(["f32", "f64"]))],
               ["--annotate", draw(strategies.sampled_from(["both", "sdy"]))],
               draw(strategies.sampled_from([[], ["--stack"]])) if "layouts" not in spec else ["--layout", "other"]]
    return spec, list(itertools.chain.from_iterable(options))


@pytest.fixture(scope="module")
def jax():
    """Yields a function that runs a module and returns its facts (names of results, collectives) and the parts of each
    device."""
    script = pathlib.Path(__file__).with_name("program_clients.py")
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
            [sys.executable, script, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        def run(module):
            out = f"{folder}/parts.npz"
            process.stdin.write(json.dumps({"devices": 8, "cases": [[str(module), out]]}) + "\n")
            process.stdin.flush()
            facts, = json.loads(process.stdout.readline())
            parts = np.load(out)
            return facts, {name: [parts[f"{i}/{device}"] for device in range(8)] for i,
                           name in enumerate(facts["names"])}

        yield run
        process.stdin.close()


def members(name, words):
    """Returns path and words of each tensor in a result. Layers `l.*.w` are numbered from 0; the name can also list
    them, as `l.{1,3..5}.w`."""
    if "*" in name:
        return [(name.replace("*", str(number)), layer) for number, layer in enumerate(words)]
    if "{" not in name:
        return [(name, words)]
    before, numbers, after = re.split("[{}]", name)
    ranges = [[int(end) for end in text.split("..")] for text in numbers.split(",")]
    numbers = [number for ends in ranges for number in range(ends[0], ends[-1] + 1)]
    assert len(numbers) == len(words)
    return [(f"{before}{number}{after}", layer) for number, layer in zip(numbers, words)]


# Twelve parts of this matrix were once gathered.
PADDED = {"shape": [1024, 1020], "shard": [[], ["a"]], "uneven": "pad", "dtype": "f32", "init": {"normal": {"std": 1}}}


@generated(45)
@example(({"shardinit": 1, "name": "padded", "mesh": {"axes": {"a": 8}}, "modules": {"w": PADDED}}, []))
@given(case=specs())
def test_generated_programs_compute_the_bits_of_gen(jax, case):
    spec, options = case
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path = folder / "spec.yaml"
        path.write_text(json.dumps(spec))
        layout = options[options.index("--layout"):] if "--layout" in options else []
        run_ok("gen", path, "-o", folder / "out", "--replicas", "full", *layout)
        run_ok("program", path, "-o", folder / "program.mlir", *options)
        facts, results = jax(folder / "program.mlir")
        for rank, file_name in enumerate(rank_files(folder / "out")):
            with h5py.File(file_name, "r") as file:
                held = {text_of(dataset.attrs["path"]): read_raw(dataset) for dataset in datasets_in(file)}
            made = {path: words for name, parts in results.items() for path, words in members(name, parts[rank])}
            assert held.keys() == made.keys()
            for tensor, words in held.items():
                assert np.array_equal(made[tensor], words), (tensor, rank)
        event(str(options))
        assert facts["collectives"] == []
