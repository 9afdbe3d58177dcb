"""All 22 types of safetensors are carried as they are. inspect, stats and diff count the numbers of 4 and 6 bits, which
share bytes, as safetensors does."""

import hashlib
import json

import ml_dtypes
import numpy as np
import pytest
from clients import client_of
from support import run_json, run_ok, run_tool

import shardinit

safetensors = client_of("safetensors")

# The names of types in safetensors and here, the bits of a number, and NumPy's type for it. By
# https://github.com/huggingface/safetensors, `Dtype` in safetensors/src/tensor.rs (0.8).
TYPES = {
    "BOOL": ("bool", 8, "?"), "F4": ("f4e2m1fn", 4, ml_dtypes.float4_e2m1fn),
    "F6_E2M3": ("f6e2m3fn", 6, ml_dtypes.float6_e2m3fn), "F6_E3M2": ("f6e3m2fn", 6, ml_dtypes.float6_e3m2fn),
    "F8_E5M2": ("f8e5m2", 8, ml_dtypes.float8_e5m2), "F8_E4M3": ("f8e4m3fn", 8, ml_dtypes.float8_e4m3fn),
    "F8_E8M0": ("f8e8m0", 8, ml_dtypes.float8_e8m0fnu), "F8_E4M3FNUZ": ("f8e4m3fnuz", 8, ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": ("f8e5m2fnuz", 8, ml_dtypes.float8_e5m2fnuz), "BF16": ("bf16", 16, ml_dtypes.bfloat16),
    "F16": ("f16", 16, "f2"), "F32": ("f32", 32, "f4"), "F64": ("f64", 64, "f8"), "C64": ("c64", 64, "c8"),
    **{f"{kind}{bits}": (f"{kind.lower()}{bits}", bits, f"{kind.lower()}{bits // 8}")
       for kind in "IU" for bits in (8, 16, 32, 64)}}
SHAPE = [41, 320]


def write(folder, stored, data):
    """Writes a file as safetensors does, which has no package for some types."""
    folder.mkdir(exist_ok=True)
    header = json.dumps({"w": {"dtype": stored, "shape": SHAPE, "data_offsets": [0, len(data)]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    with safetensors.safe_open(folder / "model.safetensors", "np") as file:  # reads the header as its owner does
        found = file.get_slice("w")
        assert (found.get_dtype(), list(found.get_shape())) == (stored, SHAPE)


def made(stored):
    """Returns random bytes, and the numbers they are. A row is zeros."""
    _, bits, dtype = TYPES[stored]
    size = int(np.prod(SHAPE)) * bits // 8
    data = np.random.default_rng(5).integers(0, 2 if stored == "BOOL" else 256, size, dtype=np.uint8)
    row = size // SHAPE[0]
    data[7 * row:8 * row] = 0
    if bits < 8:  # the first number has the lowest bits
        codes = np.packbits(np.unpackbits(data, bitorder="little").reshape(-1, bits), axis=1, bitorder="little")
    else:
        codes = data
    return data.tobytes(), np.frombuffer(codes.tobytes(), dtype).reshape(SHAPE)


def test_all_types_of_safetensors_are_listed():
    assert len(TYPES) == 22


@pytest.mark.parametrize("stored", TYPES)
def test_each_type_of_safetensors_is_carried_by_it(stored, tmp_path):
    data, numbers = made(stored)
    write(tmp_path / "in", stored, data)
    shown, = run_json("inspect", tmp_path / "in")["tensors"]
    assert (shown["dtype"], shown["global_shape"]) == (TYPES[stored][0], SHAPE)
    assert run_ok("digest", tmp_path / "in").stdout.split()[0] == hashlib.sha256(data).hexdigest()
    run_ok("convert", tmp_path / "in", "--to", "hf-dcp", "--mesh", "fsdp=2", "--sharding", "fsdpv2",
           "-o", tmp_path / "parts")
    run_ok("convert", tmp_path / "parts", "--to", "safetensors", "-o", tmp_path / "out")
    written = (tmp_path / "out/model.safetensors").read_bytes()
    assert written.endswith(data)
    with safetensors.safe_open(tmp_path / "out/model.safetensors", "np") as file:
        assert file.get_slice("w").get_dtype() == stored and list(file.get_slice("w").get_shape()) == SHAPE
    assert shardinit.open(tmp_path / "out").read("w").tobytes() == data
    # One number differs: the last of a row.
    codes = bytearray(data)
    last = len(data) // SHAPE[0] - 1
    codes[last] ^= 0x80 if stored != "BOOL" else 1
    write(tmp_path / "other", stored, bytes(codes))
    found = run_tool("diff", tmp_path / "in", tmp_path / "other", "--values")
    assert (found.returncode, "1 of 13,120 elements differ, the first at [0, 319]" in found.stdout) == (1, True), found


@pytest.mark.parametrize("stored", ["F4", "F6_E2M3", "C64", "F8_E8M0"])
def test_lists_of_digests_are_read_again(stored, tmp_path):
    write(tmp_path / "in", stored, made(stored)[0])
    run_ok("digest", "in", "--write", "list.json", cwd=tmp_path)
    run_ok("digest", "in", "--check", "list.json", cwd=tmp_path)
    assert json.loads((tmp_path / "list.json").read_text())["tensors"][0]["shape"] == SHAPE


@pytest.mark.parametrize("init", ["{source: old}", "{rows_like: {source: old}}", "{expr: \"source('old')\"}"])
@pytest.mark.parametrize("stored", ["F4", "F6_E3M2", "C64"])
def test_specs_cannot_use_elements_of_several_numbers(stored, init, tmp_path):
    write(tmp_path / "in", stored, made(stored)[0])
    (tmp_path / "spec.yaml").write_text(
        "shardinit: 1\nname: m\ndtype: f32\nsources: {old: {path: in, must_have: "
        f"[{{tensor: w, shape: {SHAPE}}}]}}}}\nmodules:\n  w: {{shape: {SHAPE}, init: {init}}}\n")
    result = run_tool("validate", tmp_path / "spec.yaml")
    assert result.returncode == 2 and f"is {TYPES[stored][0]}, whose elements no spec can use" in result.stderr, result


@pytest.mark.parametrize("stored", [name for name in TYPES if name not in ("BOOL", "U64", "I64", "F64")])
def test_stats_counts_the_numbers_of_each_type(stored, tmp_path):
    """Quantiles of types with fractions are fractions, and only rows of the number 0 are rows of zeros: F8_E8M0 has no
    such number. The parts of complex numbers are counted as numbers."""
    data, numbers = made(stored)
    write(tmp_path / "in", stored, data)
    found, = run_json("stats", tmp_path / "in")["tensors"]
    values = numbers.ravel().view("f4") if stored == "C64" else numbers.ravel()
    values = values.astype(np.float64)
    assert found["shape"] == SHAPE and found["nan"] == np.isnan(values).sum()
    values = values[np.isfinite(values)]
    assert (found["min"], found["max"]) == (values.min(), values.max())
    assert found["mean"] == pytest.approx(values.mean(), rel=1e-9)
    for part, value in found["quantiles"]:
        wanted = np.quantile(values, part, method="inverted_cdf")
        assert value == (wanted if TYPES[stored][1] <= 16 else pytest.approx(wanted, rel=1 / 256, abs=1)), part
    assert found["zero_rows"] == (stored != "F8_E8M0")


@pytest.mark.parametrize("stored, to", [("F6_E2M3", "dcp"), ("F6_E3M2", "megatron"), ("F4", "zarr"), ("F4", "hdf5"),
                                        ("C64", "hdf5")])
def test_a_format_without_the_type_is_an_error(stored, to, tmp_path):
    write(tmp_path / "in", stored, made(stored)[0])
    result = run_tool("convert", tmp_path / "in", "--to", to, "-o", tmp_path / "out")
    assert result.returncode == 2 and f"is {TYPES[stored][0]}, " in result.stderr, result
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("stored, shape, message", [
    ("F4", [3, 3], "[3, 3], does not end in a multiple of 2: 2 numbers of f4e2m1fn share 1 byte"),
    ("F6_E2M3", [4, 6], "[4, 6], does not end in a multiple of 4: 4 numbers of f6e2m3fn share 3 bytes"),
    ("F4", [], "[], does not end in a multiple of 2"), ("F4", [3, 4], "has 5 bytes, but its shape has 6 elements")])
def test_numbers_that_do_not_fill_bytes_are_rejected(stored, shape, message, tmp_path):
    header = json.dumps({"w": {"dtype": stored, "shape": shape, "data_offsets": [0, 5]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"12345")
    result = run_tool("inspect", tmp_path)
    assert result.returncode == 5 and message in result.stderr, result
