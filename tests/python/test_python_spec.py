"""Values generated from a spec in memory equal those in files bit for bit, for every slice, type and number of
threads."""

import concurrent.futures
import contextlib
import gc
import json
import random
import shlex
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np
import pytest

from clients import LIBRARY, PACKAGE, bits_of, gen_ok
from recorded import folded, lines_of, parse
from support import AWKWARD, CLEAN, DTYPES, ROOT, TINY, reassemble, run_json, run_ok, table_file
from test_python_reader import random_slices

import shardinit

INITIALIZERS = next(
    s for s in json.loads((ROOT / "schemas/spec.schema.json").read_text())["definitions"]["initializer"]["anyOf"]
    if "properties" in s
)["properties"]
PARAMETERS = {
    "expr": '"normal() * 0.1 + where(row >= col, uniform(), 1 / (1 + col))"',
    "uniform": "{low: -1, high: 2}",
    "constant": "{value: 0.1}",
    "normalized": "{axis: 1}",
}
FILES = tempfile.TemporaryDirectory()
SHAPES = {"dirac": [40, 24, 3], "delta_orthogonal": [40, 24, 3], "arange": [40], "stft": [40, 1, 24], "norms": [40, 1]}


def single(initializer, dtype):
    parameters = PARAMETERS.get(initializer)
    if initializer == "norms":
        parameters = f"{{of: {dtype}.of_norm}}"
    if initializer == "file":
        words = np.ones(40 * 24 * DTYPES[dtype].itemsize, np.uint8)
        parameters = str(table_file(FILES.name, words))
    if parameters is None:
        required = INITIALIZERS[initializer].get("required", [])
        parameters = "{%s}" % ", ".join(f"{p}: 0.5" for p in required)
    shape = SHAPES.get(initializer, [40, 24])
    other = f"  {dtype}.of_norm: {{shape: [40, 24], dtype: {dtype}, init: ones}}\n" if initializer == "norms" else ""
    return other + f"  {dtype}.{initializer}: {{shape: {shape}, dtype: {dtype}, init: {{{initializer}: {parameters}}}}}\n"


TOP = "shardinit: 1\nname: x\nuneven: chunk\nfans: out_in\nmesh: {axes: {a: 1}}\nmodules:\n"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return reassemble(gen_ok(TINY, tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def awkward(tmp_path_factory):
    return reassemble(gen_ok(AWKWARD, tmp_path_factory.mktemp("awkward")))


def assert_equal(spec, wanted):
    assert set(spec.tensors) == set(wanted)
    for path, (dtype, words) in wanted.items():
        array = spec.generate(path)
        info = spec.tensors[path]
        assert (info.dtype, info.global_shape, info.nbytes) == (dtype, words.shape, words.nbytes)
        assert array.dtype == DTYPES[dtype] == info.numpy_dtype and array.flags.c_contiguous
        assert np.array_equal(bits_of(array), words), path


# ---- Values.


def test_spec_generates_every_tensor(tiny):
    with shardinit.open_spec(TINY) as spec:
        assert_equal(spec, tiny)
        assert (spec.name, spec.engine, spec.seed) == ("llama3-tiny", "philox4x32", 0)
        assert spec.mesh == shardinit.Mesh(("fsdp", "tensor"), (2, 2))
        assert spec.partition_spec("lm_head.weight") == (("tensor",), ("fsdp",))
        assert spec.parameters == sum(w.size for _, w in tiny.values())
        assert spec.bytes == sum(w.nbytes for _, w in tiny.values())
    assert np.array_equal(bits_of(shardinit.generate(TINY, "model.norm.weight")), tiny["model.norm.weight"][1])


def test_spec_generates_every_initializer_and_dtype(tmp_path):
    tensors, drawn, stored = "", set(), set()
    for initializer in INITIALIZERS:
        for dtype in DTYPES:
            line = single(initializer, dtype)
            with contextlib.suppress(shardinit.SpecError):  # some types cannot represent the values
                shardinit.open_spec(text=TOP + line).generate(f"{dtype}.{initializer}")
                tensors += line
                drawn.add(initializer)
                stored.add(dtype)
    # The library does not read folders.
    assert drawn == set(INITIALIZERS) - {"source", "rows_like", "parts"} and stored == set(DTYPES)
    wanted = reassemble(gen_ok(TOP + tensors, tmp_path))
    spec = shardinit.open_spec(text=TOP + tensors)
    assert_equal(spec, wanted)
    rng = random.Random(3)
    for path, (_, words) in wanted.items():
        slices = random_slices(words.shape, rng)
        assert np.array_equal(bits_of(spec.generate(path, slices)), words[slices]), (path, slices)


def test_spec_generates_random_slices(awkward):
    spec = shardinit.open_spec(text=AWKWARD)
    rng = random.Random(1)
    for path, (_, words) in awkward.items():
        for _ in range(40):
            slices = random_slices(words.shape, rng)
            array = spec.generate(path, slices, threads=rng.randint(0, 3))
            assert array.shape == words[slices].shape, (path, slices)
            assert np.array_equal(bits_of(array), words[slices]), (path, slices)


def test_spec_fills_memory_of_any_layout(awkward):
    spec = shardinit.open_spec(text=AWKWARD)
    words = awkward["matrix"][1]
    block = slice(1, 30), slice(2, 17)
    for out in (
        np.zeros((29, 15)),
        np.zeros((15, 29)).T,
        np.zeros((58, 30))[::2, ::2],
        np.zeros((29, 15), "u8"),
        np.zeros(29 * 15 * 8 + 1, "u1")[1:].view("f8").reshape(29, 15),  # unaligned
    ):
        assert spec.generate("matrix", block, out=out) is out
        assert np.array_equal(bits_of(np.ascontiguousarray(out)), words[block])
    for out in (np.zeros((29, 16)), np.zeros((29, 15), "f4"), np.zeros((29, 15), object)):
        with pytest.raises(ValueError, match="`out`"):
            spec.generate("matrix", block, out=out)
    fixed = np.zeros((29, 15))
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="cannot be written"):
        spec.generate("matrix", block, out=fixed)


def test_spec_applies_overrides(tmp_path):
    wanted = reassemble(gen_ok(TINY, tmp_path, "--set", "seed=7", "--set", "vars.ff=3 * d / 2", "--mesh", "fsdp=3"))
    for sets in ({"seed": 7, "vars.ff": "3 * d / 2"}, ["seed=7", "vars.ff=3 * d / 2"]):
        spec = shardinit.open_spec(TINY, set=sets, mesh={"fsdp": 3})
        assert_equal(spec, wanted)
        assert spec.mesh.shape == (3, 1) and spec.seed == 7
    path, key = "model.norm.weight", "modules.model.norm.weight.init"
    for value, number in [("zeros", 0), ({"constant": {"value": 2}}, 2)]:
        assert (shardinit.generate(TINY, path, set={key: value}) == number).all()
    with pytest.raises(TypeError, match="open already"):
        shardinit.generate(spec, path, set={"seed": 1})


@pytest.mark.parametrize("seed", [2**63 - 1, 2**63, 2**64 - 1])
def test_64_bit_seeds_are_exact(seed, tmp_path):
    """A seed is exact in every file, in printed results, and in its effect on values."""
    folder = gen_ok(TINY, tmp_path, "--set", f"seed={seed}")
    wanted = reassemble(folder)
    assert {json.loads((folder / name).read_text())["seed"] for name in ("plan.json", "manifest.json")} == {seed}
    with h5py.File(folder / "ranks/rank-00000.h5") as file:
        assert file.attrs["seed"] == seed and file.attrs["seed"].dtype == (np.int64 if seed < 2**63 else np.uint64)
    for file in (folder, folder / "ranks/rank-00000.h5"):
        assert run_json("inspect", file)["seed"] == seed
    assert run_json("explain", TINY, "lm_head.weight", "--set", f"seed={seed}")["seed"]["value"] == seed
    run_ok("verify", folder, "--spec", TINY, "--set", f"seed={seed}")
    assert shardinit.open(folder).seed == seed
    spec = shardinit.open_spec(TINY, set={"seed": seed})
    assert spec.seed == seed
    assert_equal(spec, wanted)


@pytest.mark.parametrize("layout", ["megatron", "maxtext"])
def test_spec_generates_slices_of_layouts(layout, tmp_path):
    """Slices are also right for tensors assembled from drawn ones."""
    wanted = reassemble(gen_ok(TINY, tmp_path, "--layout", layout))
    spec = shardinit.open_spec(TINY, layout=layout)
    assert_equal(spec, wanted)
    rng = random.Random(4)
    for path, (_, words) in wanted.items():
        for _ in range(4):
            slices = random_slices(words.shape, rng)
            assert np.array_equal(bits_of(spec.generate(path, slices)), words[slices]), (path, slices)
    path = next(iter(wanted))
    assert np.array_equal(bits_of(shardinit.generate(TINY, path, 3, layout=layout)), wanted[path][1][3])


def test_threads_can_generate_from_one_spec(tiny):
    """Several threads can generate from one spec while each uses several threads."""
    spec = shardinit.open_spec(TINY, threads=2)
    rng = random.Random(2)
    tasks = [(path, random_slices(tiny[path][1].shape, rng)) for path in tiny for _ in range(12)]

    def check_slice(task):
        path, slices = task
        return np.array_equal(bits_of(spec.generate(path, slices)), tiny[path][1][slices])

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert all(pool.map(check_slice, tasks))


def test_generate_releases_the_gil():
    """Python keeps running while a tensor is made: it sees the first values before the last ones are written."""
    text = TOP + "  w: {shape: [16, 1048576], dtype: f32, init: {uniform: {low: 1, high: 2}}}\n"
    spec = shardinit.open_spec(text=text, threads=1)

    def seen():
        out = np.zeros((16, 1 << 20), "f4")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            filled = pool.submit(spec.generate, "w", out=out)
            while not out[0, 0]:
                time.sleep(0)
            last = out[-1, -1]
            filled.result()
        assert out.min() >= 1
        return last == 0

    assert any(seen() for _ in range(50))  # one success suffices; a busy machine may need several tries


def test_spec_can_be_closed_while_threads_generate(tiny):
    for _ in range(10):
        spec = shardinit.open_spec(TINY)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            filled = [pool.submit(spec.generate, "lm_head.weight") for _ in range(2)]
            spec.close()
            gc.collect()
            for each in filled:
                try:
                    assert np.array_equal(bits_of(each.result()), tiny["lm_head.weight"][1])
                except ValueError as error:
                    assert str(error) == f"`{TINY}` is closed"
    with pytest.raises(ValueError, match="is closed"):
        spec.generate("lm_head.weight")
    assert spec.info("lm_head.weight").global_shape == (8192, 256)


# ---- Errors and messages.


def test_python_errors_equal_the_programs(tmp_path):
    """The package's errors equal the program's, for every recorded case with a single invalid spec."""
    count = 0
    for title, case in parse((ROOT / "golden/validate.txt").read_text()).items():
        words = shlex.split(case.commands[0])
        is_single = title.startswith("bad_") and len(case.commands) == 1 and words[:2] == ["shardinit", "validate"]
        if not is_single or len(words) < 3 or "exit 2" not in case.outputs[0]:
            continue
        path, options = words[2], words[3:]
        sets = [b for a, b in zip(options, options[1:], strict=False) if a == "--set"]
        meshes = [b for a, b in zip(options, options[1:], strict=False) if a == "--mesh"]
        if path.startswith("-") or "$TMP" in path or len(options) != 2 * len(sets + meshes):
            continue
        if title in ("bad_layout", "bad_layout_beside", "bad_transpose"):
            continue  # only `validate` checks layouts that are not chosen
        if title == "bad_spec_is_folder":
            continue  # Python adds that it may be a checkpoint, and which function opens one
        case.unpack(tmp_path)
        if title == "bad_source":  # the library does not read folders
            with contextlib.chdir(tmp_path), pytest.raises(shardinit.SpecError,
                                                           match="this library reads no folders of tensors"):
                shardinit.open_spec(path)
            continue
        with contextlib.chdir(tmp_path), pytest.raises(shardinit.SpecError) as caught:
            shardinit.open_spec(path, set=sets, mesh="".join(meshes) or None)
        assert caught.value.code == 2
        errors = [folded(lines_of(f"{begin}{caught.value}\n", "! ")) for begin in ("", "shardinit: error: ")]
        assert case.outputs[0].removesuffix("exit 2\n") in errors, title
        count += 1
    assert count > 50


def test_slices_of_huge_tensors_need_little_memory():
    """A slice uses memory only for itself, even for tensors with 2^40 vectors or columns that are drawn whole."""
    big = 2**40
    text = TOP + f"  rows: {{shape: [{big}, 4], dtype: f32, init: {{normalized: {{axis: 1}}}}}}\n" \
        f"  columns: {{shape: [3, {big}], dtype: f32, init: {{normalized: {{axis: 0}}}}}}\n" \
        f"  sparse: {{shape: [3, {big}], dtype: f32, init: {{sparse: {{sparsity: 0.5}}}}}}\n"
    code = f"""if True:
        import resource, shardinit
        spec = shardinit.open_spec(text={text!r}, threads=2)
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        assert spec.generate("rows", slice({big} - 5, None)).shape == (5, 4)
        for path in "columns", "sparse":
            assert spec.generate(path, (slice(None), slice({big} - 5000, None))).shape == (3, 5000)
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60,
                   env={**CLEAN, "PYTHONPATH": str(PACKAGE), "SHARDINIT_LIBRARY": str(LIBRARY)})


def test_generate_rejects_wrong_arguments():
    spec = shardinit.open_spec(TINY)
    with pytest.raises(shardinit.UnknownTensorError,
                       match=r"the spec has no tensor `lm_head.wieght`; did you mean `lm_head.weight`\?"):
        spec.generate("lm_head.wieght")
    for slices, error in [(8192, IndexError), ((0, 0, 0), IndexError), (slice(None, None, 2), ValueError),
                          ("a", TypeError)]:
        with pytest.raises(error):
            spec.generate("lm_head.weight", slices)
    with pytest.raises(shardinit.SpecError, match="use a number from 1 to 4096"):
        spec.generate("lm_head.weight", threads=-1)
    with pytest.raises(TypeError, match="path of a spec, or its text"):
        shardinit.open_spec()
    with pytest.raises(ValueError, match="NUL"):
        shardinit.open_spec(TINY, set=["seed=\0"])
    with pytest.raises(shardinit.SpecError, match=r"element \[2\] of `w` is inf, which f32 cannot hold\n  hint"):
        shardinit.open_spec(text=TOP + '  w: {shape: [3], dtype: f32, init: {expr: "1 / (2 - i0)"}}\n').generate("w")


def test_library_is_found_or_its_absence_is_explained(tmp_path):
    """The library is found by SHARDINIT_LIBRARY or next to the program; otherwise an error explains what to do."""
    code = f"import shardinit; print(shardinit.generate({str(TINY)!r}, 'model.norm.weight').sum())"

    def python(**env):
        path = f"{tmp_path}/bin:/usr/bin:/bin"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              env={**CLEAN, "PATH": path, "PYTHONPATH": str(PACKAGE), **env})

    none = python(SHARDINIT_LIBRARY=str(tmp_path / "none.so"))
    assert none.returncode and "LibraryError: libshardinit.so.1 cannot be loaded:" in none.stderr
    assert "none.so" in none.stderr and "hint: install shardinit's wheel, or build it (`sh src/install.sh`)" in none.stderr
    wrong = python(SHARDINIT_LIBRARY="/lib/x86_64-linux-gnu/libm.so.6")
    assert wrong.returncode and "is not libshardinit.so.1: it has no shardinit_open" in wrong.stderr
    assert python(SHARDINIT_LIBRARY=str(LIBRARY)).stdout == "256\n"
    for folder in ("bin", "opt/bin", "opt/lib"):
        (tmp_path / folder).mkdir(parents=True)
    program = tmp_path / "opt/bin/shardinit"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "bin/shardinit").symlink_to("../opt/bin/shardinit")  # as in module systems
    (tmp_path / "opt/lib/libshardinit.so.1").symlink_to(LIBRARY)
    found = python()
    assert found.stdout == "256\n", found.stderr
