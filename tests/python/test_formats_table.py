"""Each format and each quantization is read by each command: the package that owns the format writes the folder, and
the values must be the ones that this package wrote or computes.

The cells are the rows of `FORMATS` and `QUANTIZED` with the columns `inspect`, `digest`, `diff`, `convert` and `source`,
a source of a spec; `pytest -v` prints them. In quantized rows, `convert` and `source` are tested both for the stored
tensors and for the widened ones. Files of Keras are the row that only `inspect` reads."""

import hashlib
import json
import os
import random

import folder_makers
import pytest
import test_generated_quantized as quantized
from clients import client_of
from folder_makers import bytes_of
from hypothesis import Phase, find, settings
from support import reassemble, run_json, run_ok, run_tool

torch = client_of("torch")
safetensors_torch = client_of("safetensors.torch")

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.int32: "i32", torch.uint8: "u8",
          torch.int8: "i8", torch.int64: "i64", torch.float8_e4m3fn: "f8e4m3fn", torch.float8_e8m0fnu: "f8e8m0"}


def model():
    """Returns tensors of random bits, in which NaN, -0 and subnormal numbers occur, with numbers in the order of layers
    that differs from the order of names."""
    bits = torch.Generator().manual_seed(3)
    shapes = {"embed.weight": (torch.bfloat16, (17, 6)), "layers.2.up.weight": (torch.float32, (5, 7)),
              "layers.10.up.weight": (torch.float32, (4, 3, 2)), "layers.10.up.bias": (torch.float16, (33,)),
              "positions": (torch.int32, (9, 2)), "head.weight": (torch.bfloat16, (6, 17))}
    return {name: torch.randint(0, 256, (*shape, dtype.itemsize), generator=bits, dtype=torch.uint8).view(dtype)
            .reshape(shape) for name, (dtype, shape) in shapes.items()}


def changed(state, name):
    """Returns the tensors with one bit of the last element of `name` changed."""
    data = bytearray(bytes_of(state[name]))
    data[-state[name].itemsize] ^= 1
    other = torch.frombuffer(data, dtype=torch.uint8).view(state[name].dtype).reshape(state[name].shape)
    return {**state, name: other}


FORMATS = {maker.__name__: maker for maker in (
    folder_makers.safetensors_single, folder_makers.safetensors_sharded, folder_makers.torch_bin,
    folder_makers.torch_file, folder_makers.torch_legacy, folder_makers.torch_dcp, folder_makers.torch_dcp_run,
    folder_makers.torch_dcp_safetensors, folder_makers.megatron_torch_dist, folder_makers.orbax_zarr2_raw,
    folder_makers.orbax_zarr2_zstd, folder_makers.orbax_zarr3, folder_makers.orbax_ocdbt, folder_makers.orbax_v1,
    folder_makers.orbax_manager, folder_makers.shardinit_hdf5, folder_makers.shardinit_hdf5_ranks)}

# The kind in test_generated_quantized.py, and the format or type that the config must have.
QUANTIZED = {
    **{form: ("pack_quantized int_quantized float_quantized".split()[i], f'"{form}"')
       for i, form in enumerate(["pack-quantized", "int-quantized", "float-quantized"])},
    **{form: ("small_floats", f'"{form}"') for form in (
        "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized")},
    "deepseek-blocks": ("finegrained", "weight_block_size"), "deepseek-fp4": ("experts", "fp4"),
    "gpt-oss-mxfp4": ("gpt_oss", "mxfp4"), "awq": ("awq", "gemm"), "gptq": ("gptq", '"gptq"'),
    "gptq-v2": ("gptq", "gptq_v2"), "bitsandbytes-nf4": ("four_bits", "nf4"), "bitsandbytes-fp4": ("four_bits", "fp4"),
    "bitsandbytes-int8": ("eight_bits", "8bit"), "modelopt-nvfp4": ("modelopt", "NVFP4"),
    "modelopt-fp8": ("modelopt_fp8", "FP8")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Returns a function that returns a row's folders, made once: (path, equal path, changed path, tensors, changed
    name)."""
    rows = {}

    def make(row, maker, state, name, config=None):
        if row not in rows:
            folder, states = tmp_path_factory.mktemp(row), {"equal": state, "other": changed(state, name)}
            if maker is folder_makers.megatron_torch_dist:
                paths = [maker(folder / "in", state, **states), *(folder / part for part in states)]
            else:
                paths = [maker(folder / part, tensors) for part, tensors in {"in": state, **states}.items()]
            for path in paths if config else []:
                (path / "config.json").write_text(json.dumps(config))
            rows[row] = *paths, state, name
        return rows[row]

    return make


# Each column is a function of the row, whose tensors the folder has as they are.


def inspect(path, equal, other, state, name, tmp_path):
    """inspect prints the names, types and shapes."""
    found = {t["path"]: (t["dtype"], tuple(t["global_shape"])) for t in run_json("inspect", path)["tensors"]}
    assert found == {name: (DTYPES[t.dtype], tuple(t.shape)) for name, t in state.items()}


def digest(path, equal, other, state, name, tmp_path):
    """digest prints the SHA-256 of each tensor's elements."""
    assert digests_of(path) == {name: hashlib.sha256(bytes_of(t)).hexdigest() for name, t in state.items()}


def diff(path, equal, other, state, name, tmp_path):
    """diff finds no difference to an equal folder, and the one element that another folder changes."""
    found = run_json("diff", path, equal, "--values")
    assert found["equal"] and found["values_compared"] and found["equal_tensors"] == len(state)
    result = run_tool("diff", path, other, "--values")
    count = state[name].numel()
    last = [n - 1 for n in state[name].shape]
    assert result.returncode == 1 and f"1 of {count} element" in result.stdout.replace(",", ""), result
    assert f"{name}" in result.stdout and (count == 1 or f"at {last}" in result.stdout), result


def convert(path, equal, other, state, name, tmp_path):
    """convert writes files that the safetensors package reads as the same bits."""
    run_ok("convert", path, "--to", "safetensors", "-o", tmp_path / "out", "-q")
    found = safetensors_torch.load_file(tmp_path / "out/model.safetensors")
    assert {n: (t.dtype, t.shape, bytes_of(t)) for n, t in found.items()} == {
        n: (t.dtype, t.shape, bytes_of(t)) for n, t in state.items()}


def source(path, equal, other, state, name, tmp_path):
    """A spec that copies the tensors has their digests, and its checkpoint has their bits."""
    spec = write_spec(tmp_path, path, {n: (DTYPES[t.dtype], t.shape) for n, t in state.items()})
    assert digests_of(spec) == digests_of(path)
    run_ok("gen", spec, "-o", tmp_path / "out", "-q")
    assert {n: words.tobytes() for n, (_, words) in reassemble(tmp_path / "out").items()} == {
        n: bytes_of(t) for n, t in state.items()}


COLUMNS = {column.__name__: column for column in (inspect, digest, diff, convert, source)}


def digests_of(path):
    lines = [line.split() for line in run_ok("digest", path).stdout.splitlines()]
    return {name: digest for digest, name in lines if name != "(model)"}


def write_spec(folder, path, tensors, **more):
    """Writes a spec whose tensors {name: (type, shape)} are copied from the folder."""
    spec = folder / "spec.yaml"
    modules = {name: {"dtype": dtype, "shape": list(shape), "init": {"source": "x"}}
               for name, (dtype, shape) in tensors.items()}
    spec.write_text(json.dumps({"shardinit": 1, "name": "m", "dtype": "f32", "modules": modules,
                                "sources": {"x": {"path": os.path.relpath(path, folder), **more}}}))
    return spec


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("row", FORMATS)
def test_each_command_reads_each_format(row, column, made, tmp_path):
    COLUMNS[column](*made(row, FORMATS[row], model(), "head.weight"), tmp_path)


def test_the_root_of_orbax_steps_names_the_step(made):
    step = made("orbax_manager", folder_makers.orbax_manager, model(), "head.weight")[0]
    result = run_tool("digest", step.parent)
    assert result.returncode == 2 and f"`{step}/default`" in result.stderr, result
    assert digests_of(step / "default") == digests_of(step)


def test_only_inspect_reads_files_of_keras(tmp_path):
    """inspect prints the shapes of Keras's variables. The other commands name inspect."""
    shapes = {"layers/dense/vars/0": (5, 3), "layers/dense/vars/1": (3,)}
    path = folder_makers.keras_h5(tmp_path / "in", {name: torch.ones(shape) for name, shape in shapes.items()})
    found = {t["dataset"].lstrip("/"): tuple(t["shape"]) for t in run_json("inspect", path)["datasets"]}
    assert found == shapes
    spec = write_spec(tmp_path, path, {name.replace("/", "."): ("f32", shape) for name, shape in shapes.items()})
    for words in (["digest", path], ["diff", path, path, "--values"],
                  ["convert", path, "--to", "safetensors", "-o", tmp_path / "out"], ["digest", spec]):
        result = run_tool(*words)
        is_refused = "HDF5 file" in result.stderr or "is not a folder of tensors" in result.stderr
        assert result.returncode in (2, 5) and is_refused and "hint:" in result.stderr, result
    assert not (tmp_path / "out").exists()


def drawn(row):
    """Returns a case of test_generated_quantized.py, with some groups: (tensors, config, numbers)."""
    kind, marker = QUANTIZED[row]

    def fits(case):
        state, config, numbers, *_ = case
        return (marker in json.dumps(config) + " ".join(state) and numbers.numel() > 150 and numbers.isfinite().all()
                and numbers.to(torch.bfloat16).isfinite().all() and min(numbers.shape) > 1)

    limits = settings(max_examples=2000, database=None, phases=[Phase.generate])
    strategy = quantized.cases(getattr(quantized, kind))
    return find(strategy, fits, settings=limits, random=random.Random(1))[:3]


@pytest.fixture(scope="module")
def made_quantized(made):
    cases = {}

    def make(row):
        if row not in cases:
            state, config, numbers = drawn(row)
            state = {f"model.x.{name}": tensor for name, tensor in state.items()}
            state["model.norm.weight"] = torch.tensor([0.5, -0.0, 3])
            cases[row] = state, config, numbers
        state, config, numbers = cases[row]
        name = next(name for name in state if name.rsplit(".", 1)[1] in quantized.OF_NUMBERS)
        return made(row, folder_makers.safetensors_single, state, name, config), numbers

    return make


@pytest.mark.parametrize("column", ["inspect", "digest", "diff", "convert"])
@pytest.mark.parametrize("row", QUANTIZED)
def test_each_command_reads_each_quantization_as_stored(row, column, made_quantized, tmp_path):
    COLUMNS[column](*made_quantized(row)[0], tmp_path)


@pytest.mark.parametrize("dtype", quantized.DTYPES)
@pytest.mark.parametrize("row", QUANTIZED)
def test_convert_widens_each_quantization_like_its_owner(row, dtype, made_quantized, tmp_path):
    (path, equal, other, _, _), numbers = made_quantized(row)
    wanted = numbers.to(quantized.DTYPES[dtype])
    result = run_tool("convert", path, "--to", "safetensors", "--dtype", dtype, "-o", tmp_path / "out")
    if (wanted.isinf() & numbers.isfinite()).any():
        assert result.returncode == 2 and "cannot hold" in result.stderr, result
        return
    assert result.returncode == 0, result
    found = safetensors_torch.load_file(tmp_path / "out/model.safetensors")
    assert found.keys() == {"model.x.weight", "model.norm.weight"}
    quantized.assert_same_bits(found["model.x.weight"], wanted)
    assert "quantization_config" not in (tmp_path / "out/config.json").read_text()
    run_ok("convert", equal, "--to", "dcp", "--dtype", dtype, "-o", tmp_path / "equal")
    assert run_json("diff", tmp_path / "out", tmp_path / "equal", "--values")["equal"]


@pytest.mark.parametrize("row", QUANTIZED)
def test_specs_widen_each_quantization_like_its_owner(row, made_quantized, tmp_path):
    """A widened source has the owner's numbers in f32; without `quantized`, a spec cannot use them."""
    (path, *_), numbers = made_quantized(row)
    wanted = {"model.x.weight": numbers.float(), "model.norm.weight": torch.tensor([0.5, -0.0, 3])}
    tensors = {name: ("f32", t.shape) for name, t in wanted.items()}
    spec = write_spec(tmp_path, path, tensors, quantized="widened")
    assert digests_of(spec) == {name: hashlib.sha256(bytes_of(t)).hexdigest() for name, t in wanted.items()}
    run_ok("gen", spec, "-o", tmp_path / "out", "-q")
    assert {n: words.tobytes() for n, (_, words) in reassemble(tmp_path / "out").items()} == {
        n: bytes_of(t) for n, t in wanted.items()}
    result = run_tool("digest", write_spec(tmp_path, path, tensors))
    assert result.returncode == 2 and "source `x`" in result.stderr, result
