"""Tensors of 8 and 4 bits with scales are carried as they are, or widened as by torch's and Transformers' functions."""

import json

import pytest
from changing import changing, counted
from clients import client_of
from support import run_ok, run_tool

torch = client_of("torch")
safetensors_torch = client_of("safetensors.torch")

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


def save_folder(path, state, block=(128, 128)):
    path.mkdir()
    safetensors_torch.save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    config = {"model_type": "none", "hidden_size": 8}
    if block:
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": list(block)}
    (path / "config.json").write_text(json.dumps(config))
    weight_map = dict.fromkeys(state, "model.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


def blocks(shape, block=(128, 128), seed=0, least=-8):
    """Returns a matrix of all codes but NaN, with scales from very small to large."""
    bits = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, shape, generator=bits, dtype=torch.uint8)
    codes[(codes & 127) == 127] = 0x80  # -0 instead of NaN
    grid = [-(-n // b) for n, b in zip(shape, block)]
    scales = torch.randn(grid, generator=bits) * 10.0 ** torch.randint(least, 3, grid, generator=bits)
    return codes.view(torch.float8_e4m3fn), scales


def assert_same_bits(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    bits = {2: torch.int16, 4: torch.int32, 1: torch.uint8}[a.element_size()]
    assert torch.equal(a.contiguous().view(bits), b.contiguous().view(bits))


def load(folder):
    return safetensors_torch.load_file(folder / "model.safetensors")


SHAPES = [(128, 128), (300, 200), (576, 384), (1, 1), (129, 127), (256, 1000)]


@pytest.mark.parametrize("form", ["safetensors", "dcp", "hdf5"])
def test_convert_keeps_the_bits_of_fp8_and_mxfp4(tmp_path, form):
    state = {}
    for i, shape in enumerate(SHAPES):
        state[f"l{i}.weight"], state[f"l{i}.weight_scale_inv"] = blocks(shape, seed=i)
    state["e_blocks"] = torch.randint(0, 256, (2, 6, 3, 16), dtype=torch.uint8)
    state["e_scales"] = torch.randint(0, 256, (2, 6, 3), dtype=torch.uint8)
    folder = save_folder(tmp_path / "in", state)
    run_ok("convert", folder, "--to", form, "-o", tmp_path / "there")
    run_ok("convert", tmp_path / "there", "--to", "safetensors", "-o", tmp_path / "back")
    found = load(tmp_path / "back")
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert_same_bits(found[name], tensor)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp8_blocks_are_widened_like_torch(tmp_path, dtype):
    """Blocks are widened as by torch's reader, which torchtitan uses, and which cuts blocks at the edges."""
    module = client_of("torch.distributed.checkpoint.quantized_hf_storage")
    dcp = client_of("torch.distributed.checkpoint")
    state = {"norm.weight": torch.randn(7)}
    for i, shape in enumerate(SHAPES):
        state[f"l{i}.weight"], state[f"l{i}.weight_scale_inv"] = blocks(shape, seed=i)
    folder = save_folder(tmp_path / "in", state)
    wanted = {name: torch.zeros(t.shape, dtype=DTYPES[dtype]) for name, t in state.items() if "scale" not in name}
    reader = module.QuantizedHuggingFaceStorageReader(str(folder), target_dtype=DTYPES[dtype], block_size=128)
    dcp.load(wanted, storage_reader=reader)
    result = run_tool("convert", folder, "--to", "safetensors", "--dtype", dtype, "-o", tmp_path / "out")
    assert result.returncode == 0 and f"{len(SHAPES)} tensors with scales become {dtype}" in result.stderr, result
    found = load(tmp_path / "out")
    assert found.keys() == wanted.keys()
    for i, _ in enumerate(SHAPES):
        product = state[f"l{i}.weight"].float() * state[f"l{i}.weight_scale_inv"].repeat_interleave(
            128, 0).repeat_interleave(128, 1)[:SHAPES[i][0], :SHAPES[i][1]]
        assert_same_bits(found[f"l{i}.weight"], product.to(DTYPES[dtype]))
        assert_same_bits(found[f"l{i}.weight"], wanted[f"l{i}.weight"])
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
    # The numbers are the same in parts of files, in a checkpoint on a mesh, and from a record.
    run_ok("convert", folder, "--to", "hdf5", "--dtype", dtype, "--sharding", "fsdpv2", "--mesh", "fsdp=3", "-o",
           tmp_path / "own", "-j", 1, "--memory", "1M")
    run_ok("convert", folder, "--to", "dcp", "-o", tmp_path / "dcp")
    (tmp_path / "dcp/config.json").write_text((folder / "config.json").read_text())
    run_ok("convert", tmp_path / "dcp", "--to", "safetensors", "--dtype", dtype, "-o", tmp_path / "from-dcp")
    for other in "own", "from-dcp":
        assert "no difference" in run_ok("diff", tmp_path / "out", tmp_path / other, "--values").stdout


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scales", [torch.float32, torch.bfloat16, torch.float16])
def test_fp8_blocks_are_widened_like_transformers(tmp_path, dtype, scales):
    fp8 = client_of("transformers.integrations.finegrained_fp8")
    state = {}
    state["w.weight"], state["w.weight_scale_inv"] = blocks((256, 384))
    state["w.weight_scale_inv"] = state["w.weight_scale_inv"].to(scales)
    folder = save_folder(tmp_path / "in", state)
    run_ok("convert", folder, "--to", "safetensors", "--dtype", dtype, "-o", tmp_path / "out")
    wanted = fp8.Fp8Dequantize(None)._dequantize_one(state["w.weight"], state["w.weight_scale_inv"], DTYPES[dtype])
    assert_same_bits(load(tmp_path / "out")["w.weight"], wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 6, 3), (1, 1, 1), (3, 128, 10), (1, 700, 33)])
def test_mxfp4_is_widened_like_transformers(tmp_path, dtype, shape):
    mxfp4 = client_of("transformers.integrations.mxfp4")
    bits = torch.Generator().manual_seed(1)
    state = {"a.down_proj_blocks": torch.randint(0, 256, (*shape, 16), generator=bits, dtype=torch.uint8),
             "a.down_proj_scales": torch.randint(2, 250, shape, generator=bits, dtype=torch.uint8),
             "bias": torch.ones(3, dtype=torch.bfloat16)}
    folder = save_folder(tmp_path / "in", state, None)
    wanted = mxfp4.convert_moe_packed_tensors(state["a.down_proj_blocks"], state["a.down_proj_scales"])
    for options in [], ["--memory", "1M", "-j", 1]:
        out = tmp_path / f"out-{len(options)}"
        run_ok("convert", folder, "--to", "safetensors", "--dtype", dtype, "-o", out, *options)
        found = load(out)
        assert found.keys() == {"a.down_proj", "bias"}
        assert_same_bits(found["a.down_proj"], wanted.to(DTYPES[dtype]))


@pytest.mark.parametrize("has_both", [False, True])
def test_convert_reads_the_quantization_of_a_text_config(tmp_path, has_both):
    """A model with images, such as Kimi K2.5, has its quantization in text_config, from which `convert` removes it."""
    state = {"norm": torch.ones(3)}
    state["w.weight"], state["w.weight_scale_inv"] = blocks((256, 384))
    folder = save_folder(tmp_path / "in", state)
    run_ok("convert", folder, "--to", "safetensors", "--dtype", "f32", "-o", tmp_path / "plain")
    config = {"model_type": "a", "text_config": json.loads((folder / "config.json").read_text())}
    quantization = config["text_config"]["quantization_config"]
    if has_both:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    run_ok("convert", folder, "--to", "safetensors", "--dtype", "f32", "-o", tmp_path / "out")
    assert_same_bits(load(tmp_path / "out")["w.weight"], load(tmp_path / "plain")["w.weight"])
    assert json.loads((tmp_path / "out/config.json").read_text()) == {
        "model_type": "a", "dtype": "float32", "text_config": {"model_type": "none", "hidden_size": 8}}


@pytest.mark.parametrize("own, inner, why", [
    ([128, 128], [64, 128], "config.json and its text_config must have the same quantization_config, but differ"),
    ([128, 128], "hqq", "config.json and its text_config must have the same quantization_config, but differ"),
    (None, "hqq", "quantization_config of config.json is quant_method is"),
    (None, [64, 128], "`w.weight_scale_inv` is [2, 3], but blocks of 64 x 128 need [4, 3]")])
def test_convert_rejects_other_quantizations_in_text_config(tmp_path, own, inner, why):
    state = {}
    state["w.weight"], state["w.weight_scale_inv"] = blocks((256, 384))
    folder = save_folder(tmp_path / "in", state)

    def config(of):
        return {"quant_method": of} if of == "hqq" else of and {"quant_method": "fp8", "weight_block_size": of}

    (folder / "config.json").write_text(json.dumps({
        "model_type": "a", "quantization_config": config(own), "text_config": {"quantization_config": config(inner)}}))
    words = ["convert", folder, "--to", "safetensors", "-o", tmp_path / "out"]
    result = run_tool(*words, "--dtype", "bf16")
    assert result.returncode == 2 and why in result.stderr and not (tmp_path / "out").exists(), result
    run_ok(*words)  # This follows the hint.


W, INV, F8 = (300, 200), (3, 2), torch.float8_e4m3fn
BLOCKS = {"w": torch.zeros(W, dtype=torch.uint8).view(F8), "w_scale_inv": torch.ones(INV)}
MX = {"x_blocks": torch.zeros(1, 2, 3, 16, dtype=torch.uint8), "x_scales": torch.ones(1, 2, 3, dtype=torch.uint8)}
NO_BLOCK = "there is no config.json next to it with a weight_block_size under quantization_config"


def not_a_matrix(dtype, shape, scales):
    return f"it is {dtype} {list(shape)} with scales of {scales}, not a matrix of f8e4m3fn with scales of f32, bf16, f16, f8e8m0 or u8"


def not_mx(numbers, scales, dtype="u8"):
    return (f"it is u8 {numbers} and `x_scales` {dtype} {scales}, not u8 [experts, rows, groups, 16] and "
            "u8 [experts, rows, groups]")


@pytest.mark.parametrize("path, why, changed, config", [
    ("w", NO_BLOCK, {}, None), ("w", NO_BLOCK, {}, {}), ("w", NO_BLOCK, {}, {"quantization_config": None}),
    ("w", NO_BLOCK, {}, {"quantization_config": {"quant_method": "fp8"}}),
    ("w", NO_BLOCK, {}, {"quantization_config": [128, 128]}),
    *(("w", f"weight_block_size of config.json must be two sizes, but is {json.dumps(size, separators=(',', ':'))}", {},
       {"quantization_config": {"weight_block_size": size}})
      for size in (None, 128, "128", [], [128], [128, 128, 128], [0, 128], [128, 0], [-128, 128], [128, -128],
                   [128.5, 128],
                   [128, 128.5], ["128", 128], [128, "128"], [2**30 + 1, 128], [128, 2**30 + 1], [2**64 - 1, 128])),
    *(("w", f"`w_scale_inv` is [3, 2], but blocks of {block[0]} x {block[1]} need [{grid}]", {},
       {"quantization_config": {"weight_block_size": block}})
      for block, grid in (([64, 128], "5, 2"), ([128, 64], "3, 4"), ([2**30, 128], "1, 2"), ([128, 2**30], "3, 1"),
                          ([150, 128], "2, 2"), ([149, 100], "3, 2"), ([128, 99], "3, 3")) if grid != "3, 2"),
    ("w", "`w_scale_inv` is [2, 3], but blocks of 128 x 128 need [3, 2]", {"w_scale_inv": torch.ones(2, 3)}, ...),
    ("w", "`w_scale_inv` is [6], but blocks of 128 x 128 need [3, 2]", {"w_scale_inv": torch.ones(6)}, ...),
    ("w", not_a_matrix("f8e5m2", W, "f32"), {"w": BLOCKS["w"].view(torch.float8_e5m2)}, ...),
    ("w", not_a_matrix("f8e4m3fn", [60000], "f32"), {"w": BLOCKS["w"].flatten()}, ...),
    ("w", not_a_matrix("f8e4m3fn", [3, 100, 200], "f32"), {"w": BLOCKS["w"].reshape(3, 100, 200)}, ...),
    ("w", not_a_matrix("f8e4m3fn", W, "f8e5m2"), {"w_scale_inv": torch.ones(INV).to(torch.float8_e5m2)}, ...),
    ("w", not_a_matrix("f8e4m3fn", W, "f64"), {"w_scale_inv": torch.ones(INV).double()}, ...),
    ("x_blocks", not_mx("[1, 2, 3, 16]", "[1, 2, 3]", "i8"), {"x_scales": torch.ones(1, 2, 3, dtype=torch.int8)}, ...),
    ("x_blocks", not_mx("[1, 2, 3, 16]", "[1, 3, 2]"), {"x_scales": torch.ones(1, 3, 2, dtype=torch.uint8)}, ...),
    ("x_blocks", not_mx("[1, 2, 3, 16]", "[1, 2, 3, 1]"), {"x_scales": torch.ones(1, 2, 3, 1, dtype=torch.uint8)}, ...),
    ("x_blocks", not_mx("[1, 2, 3, 8]", "[1, 2, 3]"), {"x_blocks": torch.zeros(1, 2, 3, 8, dtype=torch.uint8)}, ...),
    ("x_blocks", not_mx("[2, 3, 16]", "[2, 3]"), {"x_blocks": torch.zeros(2, 3, 16, dtype=torch.uint8),
                                                  "x_scales": torch.ones(2, 3, dtype=torch.uint8)}, ...),
    ("x_blocks", not_mx("[1, 1, 2, 3, 16]", "[1, 1, 2, 3]"),
     {"x_blocks": torch.zeros(1, 1, 2, 3, 16, dtype=torch.uint8),
                                                              "x_scales": torch.ones(1, 1, 2, 3, dtype=torch.uint8)},
     ...),
    ("x_blocks", not_mx("[]", "[]"), {"x_blocks": torch.tensor(1, dtype=torch.uint8),
                                      "x_scales": torch.tensor(1, dtype=torch.uint8)}, ...),
    ("x_blocks", "`x` also exists", {"x": torch.ones(2)}, ...),
    ("x_blocks", "it has no scales, but other tensors or config.json have them", {"x_scales": None}, ...),
    ("w", "it has no scales, but other tensors or config.json have them", {"w_scale_inv": None}, ...),
    ("w_scale_inv", "it scales `w`, which is missing", {"w": None}, ...),
])
def test_convert_names_the_tensor_with_invalid_scales(tmp_path, path, why, changed, config):
    state = {**(MX if path.startswith("x") else BLOCKS), "norm": torch.ones(3), **changed}
    folder = save_folder(tmp_path / "in", {name: tensor for name, tensor in state.items() if tensor is not None})
    if config is None:
        (folder / "config.json").unlink()
    elif config is not ...:
        (folder / "config.json").write_text(json.dumps({"model_type": "none", **config}))
    words = ["convert", folder, "--to", "safetensors", "-o", tmp_path / "out"]
    result = run_tool(*words, "--dtype", "bf16")
    assert result.returncode == 2 and not (tmp_path / "out").exists(), result
    assert (f"error: `{path}` cannot be widened: {why}\n  hint: leave out `--dtype` to copy it unchanged\n"
            in result.stderr), result.stderr
    run_ok(*words)  # This follows the hint.


@pytest.mark.parametrize("block", [(2**30, 2**30), (300, 200), (1, 2**30), (2**30, 1), (299, 199)])
def test_fp8_blocks_may_have_any_size(tmp_path, block):
    weight, scales = blocks(W, block)
    folder = save_folder(tmp_path / "in", {"w": weight, "w_scale_inv": scales}, block)
    run_ok("convert", folder, "--to", "safetensors", "--dtype", "f32", "-o", tmp_path / "out")
    rows, columns = (torch.arange(n) // b for n, b in zip(W, block))
    assert_same_bits(load(tmp_path / "out")["w"], weight.float() * scales[rows][:, columns])


def test_convert_rejects_unknown_scaling(tmp_path):
    weight, scales = blocks((300, 200))

    def refused(state, block=(128, 128), dtype="bf16"):
        name = f"in-{len(list(tmp_path.iterdir()))}"
        folder = save_folder(tmp_path / name, state, block)
        result = run_tool("convert", folder, "--to", "safetensors", "--dtype", dtype, "-o", tmp_path / "out")
        assert result.returncode == 2 and not (tmp_path / "out").exists(), result
        return result.stderr

    assert "it is not known how `w_scale` scales it" in refused({"w": weight, "w_scale": torch.ones(1)})
    # Another tensor next to `w`, before or after it by name, does not hide the error.
    for other in "a", "a.scale", "x", "w.x", "w_":
        for block in (128, 128), None:
            assert "`w` cannot be widened: it is not known how `w_scale` scales it" in refused(
                {"w": weight, "w_scale": torch.ones(1), other: torch.ones(2)}, block)
    # If scales are missing, have another name or have no tensor, the numbers would change.
    two = {"a": weight, "a_scale_inv": scales}
    assert "`b` cannot be widened" in refused({**two, "b": weight.clone()})
    assert "it scales `b`, which is missing" in refused({**two, "b_scale_inv": scales.clone()})
    assert "it has no scales" in refused({"w": weight})
    for name, dtype in (("m.scale", torch.float32), ("m.scale_weight", torch.float32),
                        ("m.weight.scale", torch.bfloat16)):
        assert f"it is not known how `{name}` scales it" in refused({"m.weight": weight, name: torch.ones(1, dtype=dtype)},
                                                                 None)
    for more in ({}, two):  # also next to widened tensors
        codes = torch.ones(4, 4, dtype=torch.uint8)
        assert "it is not known how `m.weight.absmax` scales it" in refused(
            {"m.weight": codes, "m.weight.absmax": torch.ones(4), **more}, (128, 128) if more else None)
    largest = torch.full((300, 200), 0x7E, dtype=torch.uint8).view(torch.float8_e4m3fn)
    for dtype in DTYPES:
        assert "whose product f32 cannot hold" in refused({"w": largest, "w_scale_inv": torch.full((3, 2), 1e37)},
                                                            dtype=dtype)
    codes = torch.zeros(1, 2, 3, 16, dtype=torch.uint8) + 7
    far = torch.full((1, 2, 3), 255, dtype=torch.uint8)
    assert "`x_scales` has the scale 255, which is not a number" in refused({"x_blocks": codes, "x_scales": far})
    assert "`x` has the value 6 with the scale 2^127, whose product f32 cannot hold" in refused(
        {"x_blocks": codes, "x_scales": far - 1}, dtype="f32")
    assert "which f16 cannot hold" in refused({"x_blocks": codes, "x_scales": far - 5}, None, "f16")


def test_dtype_option_does_not_convert_scales(tmp_path):
    """Scales keep their type because of their names, even if the tensors that they scale are missing."""
    scales = ["a.weight_scale_inv", "a.weight_scale", "a_scales", "a.scales"]
    others = ["a.weight", "a.scale_weight", "a.scale", "ascales", "a_scale.weight", "a.scaled", "a_scale_inverse"]
    state = {name: torch.full((3,), 1 / 3) for name in [*scales, *others]}
    state |= {"n": torch.arange(3), "b": torch.ones(2).bfloat16()}
    folder = save_folder(tmp_path / "in", state, None)
    result = run_ok("convert", folder, "--to", "safetensors", "--dtype", "bf16", "-o", tmp_path / "out")
    assert f"shardinit: {len(others)} tensors become bf16; {len(scales) + 1} of other types stay\n" in result.stderr
    found = load(tmp_path / "out")
    assert {name for name, tensor in found.items() if tensor.dtype == torch.float32} == set(scales)
    for name in others:
        assert_same_bits(found[name], state[name].bfloat16())


@pytest.mark.parametrize("name, told", [
    ("w.weight", "the box of `w.weight` at [0, 0]"), ("w.weight_scale_inv", "`w.weight_scale_inv`"),
    ("e_blocks", "the box of `e` at [0, 0, 0, 0]"), ("e_scales", "`e_scales`")])
def test_widening_rejects_bytes_that_differ_from_the_record(tmp_path, name, told):
    """Numbers or scales are not used if their bytes do not match the digest in an export's record."""
    state = dict(zip(["w.weight", "w.weight_scale_inv"], blocks((300, 200))))
    bits = torch.Generator().manual_seed(2)
    state["e_blocks"] = torch.randint(0, 256, (2, 6, 3, 16), generator=bits, dtype=torch.uint8)
    state["e_scales"] = torch.randint(100, 140, (2, 6, 3), generator=bits, dtype=torch.uint8)
    folder = save_folder(tmp_path / "in", state)
    run_ok("convert", folder, "--to", "safetensors", "-o", tmp_path / "out")
    run_ok("convert", tmp_path / "out", "--to", "dcp", "--dtype", "bf16", "-o", tmp_path / "yes")
    file = tmp_path / "out/model.safetensors"
    data = bytearray(file.read_bytes())
    at = data.find(state[name].view(torch.uint8).numpy().tobytes())
    data[at] ^= 1
    file.write_bytes(data)
    result = run_tool("convert", tmp_path / "out", "--to", "dcp", "--dtype", "bf16", "-o", tmp_path / "no")
    assert result.returncode == 1 and f"{told} has other data than was written" in result.stderr, result
    assert not (tmp_path / "no").exists()



def test_widening_rejects_a_nan_scale(tmp_path):
    """A scale that is not a number is rejected, even if its product with the smallest number would be an f32 number."""
    codes, scales = torch.full((1, 2, 3, 16), 0x11, dtype=torch.uint8), torch.full((1, 2, 3), 255, dtype=torch.uint8)
    folder = save_folder(tmp_path / "in", {"x_blocks": codes, "x_scales": scales}, None)
    result = run_tool("convert", folder, "--to", "safetensors", "--dtype", "f32", "-o", tmp_path / "out")
    assert result.returncode == 2 and "`x_scales` has the scale 255, which" in result.stderr, result


def test_convert_detects_scales_that_are_replaced_meanwhile(tmp_path):
    """If the file of the scales is replaced before any read of the folder, `convert` fails or only uses the new one."""
    folder, codes = save_folder(tmp_path / "in", {}), torch.zeros((300, 256), dtype=torch.uint8).view(F8)
    (folder / "model.safetensors").unlink()
    parts = {"a.safetensors": {"w": codes}, "b.safetensors": {"w_scale_inv": torch.ones(3, 2)}}
    for name, state in parts.items():
        safetensors_torch.save_file(state, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({
        "metadata": {}, "weight_map": {name: file for file, state in parts.items() for name in state}}))
    before, other = (folder / "b.safetensors").read_bytes(), tmp_path / "other"
    arguments = ["convert", folder, "--to", "dcp", "--dtype", "f32", "-j", "1", "-o"]
    run_ok(*arguments, tmp_path / "whole", env=changing(folder, count=tmp_path / "count"))
    reads, told = counted(tmp_path / "count")[0], 0
    wanted = run_ok("digest", tmp_path / "whole").stdout
    assert reads > 6
    for read in sorted({1, reads // 4, reads // 2, reads - 1, reads}):
        (folder / "b.safetensors").write_bytes(before)
        other.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        out = tmp_path / f"out{read}"
        result = run_tool(*arguments, out, env=changing(folder, f"{read} swap {folder}/b.safetensors {other}"))
        if result.returncode == 3:
            assert "b.safetensors` was changed while it was read" in result.stderr and not out.exists()
            told += 1
        elif result.returncode == 0 and told == 0:  # The new file was there from the beginning.
            assert run_ok("digest", out).stdout != wanted
        else:
            raise AssertionError(result)
    assert told >= 2



I32, F16 = torch.ones(8, 4, dtype=torch.int32), torch.ones(8, 2).half()
# Tensors under `x.`, and the quant_method, of models with packed numbers.
PACKED = {
    "pack-quantized": ({"weight_packed": I32, "weight_scale": F16, "weight_shape": torch.tensor([8, 32])},
                       "compressed-tensors"),
    "asymmetric": ({"weight_packed": I32, "weight_scale": F16, "weight_zero_point": I32}, "compressed-tensors"),
    "marlin-24": ({"weight_packed": I32, "scale_packed": F16, "meta": torch.ones(4, 4, dtype=torch.int16)},
                  "compressed-tensors"),
    "GPTQ": ({"qweight": I32, "qzeros": I32, "scales": F16, "g_idx": torch.zeros(8, dtype=torch.int32)}, "gptq"),
    "AWQ": ({"qweight": I32, "qzeros": I32, "scales": F16}, "awq"),
    "MLX": ({"weight": torch.ones(8, 4, dtype=torch.uint32), "scales": F16, "biases": F16}, None),
    "bitmask": ({"compressed": torch.ones(5), "bitmask": torch.ones(8, 1, dtype=torch.uint8)}, "compressed-tensors"),
}


@pytest.mark.parametrize("dtype", ["bf16", "f32", "f16", "f8e4m3fn"])
@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("with_config", [True, False])
def test_convert_never_widens_packed_numbers_without_a_whole_config(tmp_path, kind, with_config, dtype):
    """Packed numbers are not widened if the config does not say all of how they are packed. Without `--dtype`, all bits
    stay."""
    tensors, method = PACKED[kind]
    state = {"norm.weight": torch.ones(4)} | {f"x.{name}": tensor.clone() for name, tensor in tensors.items()}
    folder = save_folder(tmp_path / "in", state, None)
    if with_config and method:
        (folder / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": method}}))
    result = run_tool("convert", folder, "--to", "safetensors", "--dtype", dtype, "-o", tmp_path / "out")
    assert result.returncode == 2 and "leave out `--dtype`" in result.stderr and not (tmp_path / "out").exists(), result
    assert "cannot be widened: " in result.stderr, result
    run_ok("convert", folder, "--to", "safetensors", "-o", tmp_path / "out")
    for name, tensor in load(tmp_path / "out").items():
        assert torch.equal(tensor, state[name]) and tensor.dtype == state[name].dtype


@pytest.mark.parametrize("name", ["relative_position_index", "position_ids"])
def test_unpacked_integers_next_to_scales_stay(tmp_path, name):
    """Integers next to a scale stay if they are not packed, such as Swin's indices next to a `logit_scale`."""
    state = {f"a.{name}": torch.arange(6).reshape(2, 3), "a.logit_scale": torch.ones(3, 1)}
    folder = save_folder(tmp_path / "in", state, None)
    run_ok("convert", folder, "--to", "safetensors", "--dtype", "bf16", "-o", tmp_path / "out")


def test_hint_for_unreadable_scales_is_not_to_drop_them(tmp_path):
    header = json.dumps({"w_scale": {"dtype": "F8_E3M4", "shape": [4], "data_offsets": [0, 4]},
                         "w": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}}).encode()
    (tmp_path / "in.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    result = run_tool("convert", tmp_path / "in.safetensors", "--to", "dcp", "-o", tmp_path / "out")
    assert result.returncode == 5 and "dequantize the model" in result.stderr and "--drop" not in result.stderr, result
