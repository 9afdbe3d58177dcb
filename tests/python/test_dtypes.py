"""Tests every element type from the spec to HDF5, NumPy, PyTorch and JAX, with ml_dtypes
and NumPy as the reference. Also tests each tensor of configs/dtypes.yaml."""

import hashlib

import h5py
import ml_dtypes
import numpy as np
import pytest

from clients import bits_of, gen_ok
from support import DTYPES, FLOATS, ROOT, read_raw, reassemble, run_ok, run_tool

import shardinit

SPEC = ROOT / "configs/dtypes.yaml"
HEAD = "shardinit: 1\nname: x\nseed: 3\ndtype: {dtype}\nmesh: {{axes: {{a: 2}}}}\nuneven: chunk\nmodules:\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return gen_ok(SPEC, tmp_path_factory.mktemp("dtypes"))


def generated_values(tmp_path, dtype, tensors):
    """Generates a spec whose tensor lines are `tensors` and returns the values by path."""
    (tmp_path / dtype).mkdir()
    out = gen_ok(HEAD.format(dtype=dtype) + tensors, tmp_path / dtype)
    return {path: words.view(DTYPES[name]) for path, (name, words) in reassemble(out).items()}


# ---- Rounding.


def test_recorded_encodings_match_ml_dtypes():
    """The digests that tests/unit/tensor_encode_test.cc compares with match ml_dtypes."""
    lows = [0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    words = np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | np.array(lows, np.uint32)
    values = words.ravel().view(np.float32)
    values = values[~np.isnan(values)]
    lines = (ROOT / "tests/vectors/encodings.txt").read_text().splitlines()
    cases = [line.split() for line in lines if not line.startswith("#")]
    assert [name for name, _ in cases] == ["bf16", "f16", "f8e4m3fn", "f8e5m2"]
    with np.errstate(over="ignore"):
        for name, digest in cases:
            assert hashlib.sha256(values.astype(DTYPES[name]).tobytes()).hexdigest() == digest


@pytest.mark.parametrize("dtype, lowest, highest", [("f8e4m3fn", -13, 8), ("f8e5m2", -20, 15)])
def test_fp8_rounding_matches_ml_dtypes_at_every_magnitude(dtype, lowest, highest, tmp_path):
    """Rounding to fp8 matches ml_dtypes from 0 to overflow.

    Each power of two has 2^11 numbers, which include every tie and both its neighbours."""
    per = 1 << 11
    count = (highest - lowest + 1) * per
    # Four neighbours of each of 2^9 mantissas: two below, the number itself, one above.
    text = (f"(1 + (floor(mod(i0, {per}) / 4) * 16384 + mod(i0, 4) - 2) / 8388608) "
            f"* pow(2, floor(i0 / {per}) + {lowest})")
    most = np.nextafter(np.float32(61440), np.float32(0)) if dtype == "f8e5m2" else np.float32(464)
    spec = "".join(f'  {name}: {{shape: [{count}], shard: [a], init: {{expr: "{sign}min({text}, {float(most)})"}}}}\n'
                   for name, sign in (("plus", ""), ("minus", "-")))
    exact, rounded = generated_values(tmp_path, "f32", spec), generated_values(tmp_path, dtype, spec)
    for name in ("plus", "minus"):
        assert np.unique(exact[name]).size > 0.9 * count * (most / 2.0 ** (highest + 1))
        want = exact[name].astype(DTYPES[dtype])
        assert np.isfinite(want.astype(np.float32)).all()
        assert np.array_equal(bits_of(rounded[name]), bits_of(want))
    assert {abs(float(v)) for v in rounded["plus"]} >= {0, float(ml_dtypes.finfo(DTYPES[dtype]).max)}


@pytest.mark.parametrize("init", ["{normal: {std: 3}}", "{uniform: {low: -300, high: 440}}",
                                  "{truncated_normal: {mean: 0.01, std: 0.01}}",
                                  '{expr: "normal() * uniform()"}'])
def test_drawn_values_are_rounded_f32_values(init, tmp_path):
    lines = f"  w: {{shape: [61, 83], shard: [null, a], init: {init}}}\n"
    exact = generated_values(tmp_path, "f32", lines)["w"]
    for dtype in FLOATS[1:]:
        want = exact.astype(DTYPES[dtype])
        got = generated_values(tmp_path, dtype, lines)["w"]
        if dtype == "f64" and "expr" in init:
            assert np.array_equal(got.astype(np.float32), exact)
            continue
        assert np.array_equal(bits_of(got), bits_of(want)), dtype


# ---- Integers.


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in (*FLOATS, "bool")])
def test_integer_dtypes_hold_their_extreme_values(dtype, tmp_path):
    info = np.iinfo(DTYPES[dtype])
    low, high = max(info.min, 1 - 2**53), min(info.max, 2**53 - 1)
    got = generated_values(tmp_path, dtype, f"""\
  low: {{shape: [3], init: {{constant: {{value: {low}}}}}}}
  high: {{shape: [3], init: {{constant: {{value: {high}}}}}}}
  up: {{shape: [100], shard: [a], init: {{arange: {{start: {low}}}}}}}
  down: {{shape: [100], shard: [a], init: {{arange: {{start: {high}, step: -1}}}}}}
  digits: {{shape: [1000], shard: [a], init: {{expr: "floor(uniform() * 10)"}}}}
""")
    assert (got["low"] == low).all() and (got["high"] == high).all()
    assert got["up"].tolist() == [low + i for i in range(100)]
    assert got["down"].tolist() == [high - i for i in range(100)]
    assert np.bincount(got["digits"].astype(int)).min() > 60
    assert all(array.dtype == DTYPES[dtype] for array in got.values())


@pytest.mark.parametrize("dtype, expr, said", [
    ("i8", "i0 * 100", "element [2] of `w` is 200, but i8 holds whole numbers from -128 to 127"),
    ("u8", "3 - i0", "element [4] of `w` is -1, but u8 holds whole numbers from 0 to 255"),
    ("i32", "i0 / 4", "element [1] of `w` is 0.25, but i32 holds whole numbers from -2147483648 to 2147483647"),
    ("i64", "i0 * pow(2, 52)", "element [2] of `w` is 9007199254740992, but i64 holds whole numbers "
                               "from -9007199254740991 to 9007199254740991"),
    ("u64", "i0 / 2", "element [1] of `w` is 0.5, but u64 holds whole numbers from 0 to 9007199254740991"),
    ("i16", "log(-i0)", "element [0] of `w` is -inf, but i16 holds whole numbers from -32768 to 32767"),
    ("bool", "i0", "element [2] of `w` is 2, but bool holds 0 and 1"),
    ("f8e4m3fn", "464 + i0 / 1024", "element [1] of `w` is 464.0009765625, which f8e4m3fn cannot hold"),
    ("f8e5m2", "i0 * 61440", "element [1] of `w` is 61440, which f8e5m2 cannot hold"),
])
def test_gen_rejects_an_element_that_its_dtype_cannot_hold(dtype, expr, said, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(HEAD.format(dtype=dtype) + f'  w: {{shape: [1000], init: {{expr: "{expr}"}}}}\n')
    result = run_tool("gen", spec, "-o", tmp_path / "out")
    assert result.returncode == 2 and said in result.stderr, result.stderr
    assert not (tmp_path / "out/manifest.json").exists()


def test_finalize_rejects_a_changed_plan(tmp_path):
    out = gen_ok(HEAD.format(dtype="i32") + "  w: {shape: [4], init: {constant: {value: 7}}}\n", tmp_path)
    plan = (out / "plan.json").read_text()
    for init, said in (('{"constant": {"value": 0.5}}', "values of `w` are 0.5"),
                       ('{"normal": {"mean": 0, "std": 1}}', "values of `w` are fractions")):
        (out / "plan.json").write_text(plan.replace('{"constant": {"value": 7}}', init))
        result = run_tool("finalize", out)
        assert result.returncode == 5 and said in result.stderr


# ---- configs/dtypes.yaml.


def test_tensors_of_dtypes_yaml_have_the_expected_values(folder):
    got = {path: words.view(DTYPES[dtype]) for path, (dtype, words) in reassemble(folder).items()}
    d, ff, window = 256, 1000, 7
    std = np.float32(0.02 / 64)
    assert got["fp8.weight"].shape == (ff, d) and got["fp8.weight_scale_inv"].shape == (8, 2)
    assert (got["fp8.weight_scale_inv"] == std).all()
    weight = got["fp8.weight"].astype(np.float32) * std
    # Rounding to 3 bits adds about 2^-4 squared over 3 to the variance.
    assert weight.std() == pytest.approx(0.02, rel=0.01) and abs(weight.mean()) < 5 * 0.02 / np.sqrt(d * ff)
    assert np.unique(got["fp8.grad"]).size < 128 and abs(got["fp8.grad"].astype(np.float32)).max() <= 2
    int8 = got["int8.weight"]
    assert (int8.min(), int8.max()) == (-127, 127) and abs(int8.mean()) < 0.5
    assert int8.std() * 4 / 127 == pytest.approx(1, rel=0.01)
    assert (got["int8.scale"] == np.float16(4 * 0.02 / 127)).all() and (got["mx.scale"] == 127).all()
    assert np.array_equal(got["embeddings.position_ids"], np.arange(512)[None])
    assert not got["embeddings.token_type_ids"].any()
    # As in Swin's WindowAttention.__init__.
    place = np.stack(np.meshgrid(np.arange(window), np.arange(window), indexing="ij")).reshape(2, -1)
    offset = (place[:, :, None] - place[:, None, :]).transpose(1, 2, 0) + (window - 1)
    offset[:, :, 0] *= 2 * window - 1
    assert np.array_equal(got["swin.relative_position_index"], offset.sum(-1))
    assert np.array_equal(got["attn.bias"], np.tril(np.ones((512, 512), bool))[None, None])
    assert got["norm.num_batches_tracked"] == 0 and got["norm.frozen"].all()
    assert np.array_equal(got["moe.offset"], np.arange(-512, 512, 16))
    # These are words of each tensor's own stream, 32 bits for each element.
    assert np.unique(got["moe.seed"]).size == 64 and got["moe.seed"].max() > 2**31
    assert (got["moe.multiplier"] % 2 == 1).all() and got["moe.multiplier"].max() > 2**32
    assert np.unique(got["moe.salt"]).size > 60
    assert {str(a.dtype) for a in got.values()} == {
        "float8_e4m3fn", "float8_e5m2", "float32", "float16", "int8", "int16", "int32", "int64",
        "uint8", "uint16", "uint32", "uint64", "bool"}


def test_hdf5_readers_see_native_types(folder):
    """HDF5 readers see native integers, the fields of fp8 types, and virtual datasets with
    the same bytes."""
    whole = reassemble(folder)
    with h5py.File(folder / "index.h5") as file:
        for path, (dtype, words) in whole.items():
            dataset = file[path.replace(".", "/")]
            assert np.array_equal(read_raw(dataset), words)
            kind = dataset.id.get_type()
            if dtype in ("f8e4m3fn", "f8e5m2"):
                e = int(dtype[3])
                assert kind.get_fields() == (7, 7 - e, e, 0, 7 - e) and kind.get_size() == 1
                assert kind.get_ebias() == 2 ** (e - 1) - 1
            elif dtype == "bool":
                assert kind.equal(h5py.h5t.STD_U8LE)
            elif dtype[0] in "iu":
                assert dataset.dtype == DTYPES[dtype] and np.array_equal(bits_of(dataset[()]), words)
        # HDF5 reads e5m2 correctly, but takes 0x78 to 0x7e in e4m3 for NaN or infinity.
        grad = whole["fp8.grad"][1].view(ml_dtypes.float8_e5m2)
        assert np.array_equal(file["fp8/grad"][()], grad.astype(np.float16))


def test_missing_rank_file_reads_as_implausible_values(tmp_path):
    lines = "".join(f"  {d}: {{shape: [4], shard: [a], dtype: {d}, init: ones}}\n" for d in DTYPES)
    out = gen_ok(HEAD.format(dtype="f32") + lines, tmp_path)
    (out / "ranks/rank-00001.h5").unlink()
    with h5py.File(out / "index.h5") as file:
        for dtype, kind in DTYPES.items():
            words = read_raw(file[dtype])
            there, gone = words[:2].view(kind), words[2:]
            assert (there == 1).all()
            if dtype == "bool":
                assert (gone == 255).all()
            elif dtype in FLOATS:
                assert np.isnan(gone.view(kind).astype(np.float64)).all()
            else:
                info = np.iinfo(kind)
                assert (gone.view(kind) == (info.min if info.min else info.max)).all()
    assert run_tool("verify", out).returncode == 1


def test_every_dtype_is_the_same_on_another_mesh(folder, tmp_path):
    whole = reassemble(folder)
    other = reassemble(gen_ok(SPEC, tmp_path, "--mesh", "data=3,tensor=1", "--replicas", "full"))
    for path, (dtype, words) in whole.items():
        assert other[path][0] == dtype and np.array_equal(other[path][1], words), path
    lines = dict(reversed(line.split()) for line in run_ok("digest", SPEC).stdout.splitlines())
    assert {p: hashlib.sha256(w.tobytes()).hexdigest() for p, (_, w) in whole.items()} == {
        p: d for p, d in lines.items() if p != "(model)"}
    assert "f8e4m3fn" in run_ok("inspect", folder).stdout and "bool" in run_ok("plan", SPEC, "--rank", "3").stdout


# ---- Readers.


def test_numpy_reads_every_dtype(folder):
    with shardinit.open(folder) as checkpoint:
        for path, (dtype, words) in reassemble(folder).items():
            array = checkpoint.read(path, verify=True)
            assert array.dtype == DTYPES[dtype] and np.array_equal(bits_of(array), words)
            part = checkpoint.read(path, (..., slice(1, 3)) if words.ndim else ())
            assert np.array_equal(bits_of(part), words[..., 1:3] if words.ndim else words)


def test_torch_loads_every_dtype(folder):
    torch = pytest.importorskip("torch")
    import torch.distributed.checkpoint as dcp

    names = {"bool": "bool", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
    names |= {f"{k}{n}": f"{t}{n}" for k, t in (("i", "int"), ("u", "uint")) for n in (8, 16, 32, 64)}
    names |= {"f32": "float32", "f16": "float16"}
    state = shardinit.torch.load_state_dict(folder, verify=True)
    loaded = {path: torch.zeros_like(t.view(torch.uint8) if t.ndim else t).view(t.dtype)
              for path, t in state.items()}
    dcp.load(loaded, storage_reader=shardinit.torch.StorageReader(folder), no_dist=True)
    for path, (dtype, words) in reassemble(folder).items():
        assert state[path].dtype == loaded[path].dtype == getattr(torch, names[dtype])
        for tensor in (state[path], loaded[path]):
            assert tuple(tensor.shape) == words.shape
            got = tensor.reshape(-1).view(torch.uint8).numpy()
            assert np.array_equal(got, words.reshape(-1).view(np.uint8)), path


def test_jax_loads_every_dtype(folder):
    jax = pytest.importorskip("jax")

    whole = reassemble(folder)
    # 64-bit types need jax_enable_x64; the error names all of these tensors.
    with pytest.raises(shardinit.MismatchError) as caught:
        shardinit.jax.load(folder)
    assert set(caught.value.mismatching) == {p for p, (d, _) in whole.items() if d in ("i64", "u64")}
    jax.config.update("jax_enable_x64", True)
    try:
        arrays = shardinit.jax.load(folder)
    finally:
        jax.config.update("jax_enable_x64", False)
    for path, (dtype, words) in whole.items():
        assert arrays[path].dtype == DTYPES[dtype]
        assert np.array_equal(bits_of(arrays[path]), words), path


# ---- Exports.


def test_exports_have_the_bits_of_every_dtype(folder, tmp_path):
    torch = pytest.importorskip("torch")
    ts = pytest.importorskip("tensorstore")
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file

    expected = shardinit.torch.load_state_dict(folder)
    run_ok("export", SPEC, "--to", "safetensors", "-o", tmp_path / "safetensors")
    loaded = load_file(tmp_path / "safetensors/model.safetensors")
    run_ok("export", SPEC, "--to", "zarr", "-o", tmp_path / "zarr")
    run_ok("export", SPEC, "--to", "hf-dcp", "-o", tmp_path / "hf-dcp", "--mesh", "data=2,tensor=3")
    merged = {path: torch.empty_like(tensor) for path, tensor in expected.items()}
    dcp.load(merged, storage_reader=dcp.HuggingFaceStorageReader(str(tmp_path / "hf-dcp")), no_dist=True)
    for path, tensor in expected.items():
        assert loaded[path].dtype == tensor.dtype
        words = tensor.reshape(-1).view(torch.uint8)
        assert torch.equal(loaded[path].reshape(-1).view(torch.uint8), words), path
        assert torch.equal(merged[path].reshape(-1).view(torch.uint8), words), path
        store = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{tmp_path}/zarr/{path}/"}}
        array = np.asarray(ts.open(store, read=True).result().read().result())
        assert array.dtype == shardinit.open(folder).info(path).numpy_dtype
        assert array.tobytes() == words.numpy().tobytes(), path
