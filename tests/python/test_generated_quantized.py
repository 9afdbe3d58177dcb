"""Random quantized tensors are widened to the bits that their owners' packages compute: compressed-tensors, ModelOpt,
bitsandbytes, Transformers and GPTQModel's formula."""

import json
import math
import pathlib
import tempfile

import pytest
from clients import client_of
from generated import generated, given
from hypothesis import strategies as st
from support import run_tool

torch = client_of("torch")
safetensors_torch = client_of("safetensors.torch")
compressors = client_of("compressed_tensors.compressors")
quantization = client_of("compressed_tensors.quantization")
forward = client_of("compressed_tensors.quantization.lifecycle.forward")
autoawq = client_of("compressed_tensors.entrypoints.convert.converters")
fp8 = client_of("transformers.integrations.finegrained_fp8")
mxfp4 = client_of("transformers.integrations.mxfp4")
functional = client_of("bitsandbytes.functional")
default_ops = client_of("bitsandbytes.backends.default.ops")
nvfp4 = client_of("modelopt.torch.quantization.qtensor.nvfp4_tensor")
fp8_tensor = client_of("modelopt.torch.quantization.qtensor.fp8_tensor")

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "f16": torch.float16}


class Bits:
    """Draws random tensors."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def codes(self, *shape, most=256):
        return torch.randint(0, most, shape, generator=self.generator, dtype=torch.uint8)

    def words(self, *shape):
        return torch.randint(-2**31, 2**31, shape, generator=self.generator).to(torch.int32)

    def scales(self, *shape, dtype=torch.float32):
        """Returns scales of some orders of magnitude, some negative and some 0."""
        scales = torch.randn(shape, generator=self.generator) * torch.exp2(
            torch.randint(-10, 3, shape, generator=self.generator).float())
        scales[torch.rand(shape, generator=self.generator) < 0.02] = 0
        return scales.to(dtype)

    def f8(self, *shape):
        """Returns all codes but NaN."""
        codes = self.codes(*shape)
        codes[(codes & 127) == 127] = 0x80
        return codes.view(torch.float8_e4m3fn)


class Edges(Bits):
    """Draws numbers at the edges of their types: all codes in order, and scales that are 0, -0, negative, subnormal, or
    among the largest."""

    def codes(self, *shape, most=256):
        start = torch.randint(0, most, (), generator=self.generator)
        return ((start + torch.arange(math.prod(shape))) % most).reshape(shape).to(torch.uint8)

    def words(self, *shape):
        return self.codes(*shape, 4).view(torch.int32).reshape(shape)

    def scales(self, *shape, dtype=torch.float32):
        small, large = torch.finfo(dtype), 2.0**30 if dtype != torch.float16 else 2.0**8
        edges = torch.tensor([1, 0, -0.0, -1, 1 / 3, small.smallest_normal, small.tiny / 4, -small.tiny / 2,
                              small.eps, large, -large, 2 - small.eps])
        start = torch.randint(0, len(edges), (), generator=self.generator)
        return edges[(start + torch.arange(math.prod(shape))) % len(edges)].reshape(shape).to(dtype)


def scheme_of(form, **weights):
    weights = quantization.QuantizationArgs(**weights)
    return quantization.QuantizationScheme(targets=["Linear"], weights=weights, format=form)


def form_of(scheme):
    return getattr(scheme.format, "value", scheme.format)


def config_of(scheme):
    return {"quant_method": "compressed-tensors", "format": form_of(scheme),
            "config_groups": {"group_0": json.loads(scheme.model_dump_json())}, "ignore": ["lm_head"]}


def decompressed(scheme, state):
    compressor = compressors.BaseCompressor.get_value_from_registry(form_of(scheme))
    return compressor.decompress({name: tensor.clone().contiguous() for name, tensor in state.items()}, scheme)["weight"]


# Each kind draws its tensors, and returns them, quantization_config and the owner's numbers.

SCALES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


def draw_blocks(draw, columns, divides=None):
    """Draws the strategy of scales: (arguments of QuantizationArgs, columns of scales)."""
    strategy = draw(st.sampled_from(["channel", "group"]))
    if strategy == "channel":
        return {"strategy": strategy}, 1
    groups = draw(st.sampled_from([n for n in (1, 2, 3, 5) if columns % n == 0]))
    return {"strategy": strategy, "group_size": columns // groups}, groups


def pack_quantized(draw, bits):
    width, rows = draw(st.integers(1, 8)), draw(st.integers(1, 70))
    columns = draw(st.integers(1, 30)) * draw(st.sampled_from([1, 2, 6, 32]))
    blocks, groups = draw_blocks(draw, columns)
    symmetric, dtype = draw(st.booleans()), draw(SCALES)
    scheme = scheme_of("pack-quantized", num_bits=width, type="int", symmetric=symmetric, **blocks)
    state = {"weight_packed": bits.words(rows, -(-columns * width // 32)),
             "weight_scale": bits.scales(rows, groups, dtype=dtype), "weight_shape": torch.tensor([rows, columns])}
    if not symmetric:
        state["weight_zero_point"] = bits.words(-(-rows * width // 32), groups)
    return state, config_of(scheme), decompressed(scheme, state)


def int_quantized(draw, bits):
    rows, columns = draw(st.integers(1, 40)), 30
    blocks, groups = draw_blocks(draw, columns)
    symmetric, dtype = draw(st.booleans()), draw(SCALES)
    scheme = scheme_of("int-quantized", num_bits=8, type="int", symmetric=symmetric, **blocks)
    state = {"weight": bits.codes(rows, columns).view(torch.int8),
             "weight_scale": bits.scales(rows, groups, dtype=dtype)}
    if not symmetric:
        state["weight_zero_point"] = bits.codes(rows, groups).view(torch.int8)
    return state, config_of(scheme), decompressed(scheme, state)


def float_quantized(draw, bits):
    rows, columns, dtype = draw(st.integers(1, 70)), draw(st.sampled_from([1, 30, 64, 77])), draw(SCALES)
    strategy = draw(st.sampled_from(["tensor", "channel", "group", "block"]))
    more, shape = {}, {"tensor": [1], "channel": [rows, 1]}.get(strategy)
    if strategy == "group":
        more, groups = draw_blocks(draw, columns)
        shape, strategy = [rows, groups], more.pop("strategy")
    if strategy == "block":
        high, wide = draw(st.sampled_from([(16, 16), (32, 8), (7, 64)]))
        more, shape = {"block_structure": [high, wide]}, [-(-rows // high), -(-columns // wide)]
    scheme = scheme_of("float-quantized", num_bits=8, type="float", symmetric=True, strategy=strategy, **more)
    state = {"weight": bits.f8(rows, columns), "weight_scale": bits.scales(*shape, dtype=dtype)}
    if draw(st.booleans()):
        state["input_scale"] = bits.scales(1)
    return state, config_of(scheme), decompressed(scheme, state)


def small_floats(draw, bits):
    form = draw(st.sampled_from(["nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized",
                                 "mxfp8-quantized"]))
    rows, groups = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    size = 16 if form.startswith("nvfp4") else 32
    columns, width = groups * size, {"nv": 4, "mx": int(form[4])}[form[:2]]
    scheme = scheme_of(form, num_bits=width, type="float", symmetric=True,
                       strategy="tensor_group" if size == 16 else "group", group_size=size)
    state = {"weight_scale": bits.codes(rows, groups)}
    if width == 8:
        state["weight"] = bits.f8(rows, columns)
    else:
        state["weight_packed"] = bits.codes(rows, columns * width // 8)
    if size == 16:
        state["weight_scale"] = bits.f8(rows, groups)
        state["weight_global_scale"] = bits.scales(1).abs() + 0.25
    return state, config_of(scheme), decompressed(scheme, state).to(torch.bfloat16)


def modelopt(draw, bits):
    rows, groups = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    state = {"weight": bits.codes(rows, groups * 8), "weight_scale": bits.f8(rows, groups),
             "weight_scale_2": bits.scales()}
    if draw(st.booleans()):
        state["input_scale"] = bits.scales()
    tensor = nvfp4.NVFP4QTensor(torch.Size([rows, groups * 16]), torch.float32, state["weight"])
    wanted = tensor.dequantize(dtype=torch.float32, scale=state["weight_scale"], double_scale=state["weight_scale_2"],
                               block_sizes={-1: 16})
    return state, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, wanted


def modelopt_fp8(draw, bits):
    rows, columns = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    state = {"weight": bits.f8(rows, columns), "weight_scale": bits.scales()}
    if draw(st.booleans()):
        state["input_scale"] = bits.scales()
    tensor = fp8_tensor.FP8QTensor(torch.Size([rows, columns]), torch.float32, state["weight"])
    wanted = tensor.dequantize(dtype=torch.float32, scale=state["weight_scale"])
    return state, {"quant_method": "modelopt", "quant_algo": "FP8"}, wanted


def gpt_oss(draw, bits):
    """Draws experts of gpt-oss. Transformers' function for CPUs has other numbers for scales from 253 on."""
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 4)))
    state = {"weight_blocks": bits.codes(*shape, 16), "weight_scales": bits.codes(*shape, most=253)}
    return state, {"quant_method": "mxfp4"}, mxfp4.convert_moe_packed_tensors(*state.values())


def awq(draw, bits):
    groups, size, columns = draw(st.integers(1, 4)), draw(st.sampled_from([8, 32])), 8 * draw(st.integers(1, 12))
    state = {"qweight": bits.words(groups * size, columns // 8), "qzeros": bits.words(groups, columns // 8),
             "scales": bits.scales(groups, columns, dtype=torch.float16)}
    config = {"quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": "gemm"}
    weight, scale, zero = autoawq.AutoAWQConverter(group_size=size)._convert_gemm_module(
        state["qweight"], state["scales"], state["qzeros"])
    scheme = scheme_of("pack-quantized", num_bits=4, type="int", symmetric=False, strategy="group", group_size=size)
    return state, config, forward.dequantize(weight, scale, zero, scheme.weights)


def gptq(draw, bits):
    """Computes what GPTQModel's TorchLinear does."""
    width, is_second = draw(st.sampled_from([4, 8])), draw(st.booleans())
    in_word, groups, size = 32 // width, draw(st.integers(1, 4)), draw(st.sampled_from([8, 32]))
    rows, columns = groups * size, 8 * draw(st.integers(1, 12))
    zeros = bits.words(groups, columns // in_word)
    if not is_second:
        zeros[:] = 0x77777777 if width == 4 else 0x7F7F7F7F
    state = {"qweight": bits.words(rows // in_word, columns), "qzeros": zeros,
             "scales": bits.scales(groups, columns, dtype=torch.float16)}
    if draw(st.booleans()):
        state["g_idx"] = (torch.arange(rows) // size).to(torch.int32)
    shifts = torch.arange(0, 32, width)
    mask = 2**width - 1
    codes = (state["qweight"][:, None, :] >> shifts[None, :, None] & mask).reshape(rows, columns)
    zero = (zeros[:, :, None] >> shifts & mask).reshape(groups, columns) + (0 if is_second else 1)
    of_row = torch.arange(rows) // size
    wanted = (state["scales"][of_row] * (codes - zero[of_row]).to(torch.float16)).t()
    config = {"quant_method": "gptq", "bits": width, "group_size": size, "sym": not is_second, "desc_act": False}
    if is_second:
        config["checkpoint_format"] = "gptq_v2"
    return state, config, wanted


def finegrained(draw, bits):
    rows, columns = 16 * draw(st.integers(1, 5)), 32 * draw(st.integers(1, 5))
    kind = draw(st.sampled_from(["grid", "one", "rows"]))
    shape = {"grid": [rows // 16, columns // 32], "one": draw(st.sampled_from([[], [1], [1, 1]])),
             "rows": [rows, 1]}[kind]
    scales = draw(st.sampled_from([bits.scales(*shape), bits.scales(*shape, dtype=torch.bfloat16),
                                   bits.codes(*shape, most=200),
                                   bits.codes(*shape, most=200).view(torch.float8_e8m0fnu)]))
    name = draw(st.sampled_from(["weight_scale_inv", "scale", "qscale_weight"]))
    state = {"weight": bits.f8(rows, columns), name: scales}
    config = {"quant_method": "fp8"}
    if kind == "grid":
        config["weight_block_size"] = [16, 32]
    return state, config, fp8.Fp8Dequantize(None)._dequantize_one(state["weight"], scales, torch.float32)


def experts(draw, bits):
    """Draws an expert of DeepSeek V4, two numbers in a byte."""
    rows, groups = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    state = {"weight": bits.codes(rows, 16 * groups).view(torch.int8),
             draw(st.sampled_from(["weight_scale_inv", "scale"])):
                 bits.codes(rows, groups, most=200).view(torch.float8_e8m0fnu)}
    numbers, scales = state.values()
    config = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0", "expert_dtype": "fp4"}
    return state, config, fp8.Fp8Dequantize(None)._dequantize_one(numbers, scales, torch.float32)


def four_bits(draw, bits):
    """Draws a matrix of bitsandbytes' NF4 or FP4, whose blocks may go on from one row to the next."""
    shape = draw(st.lists(st.integers(1, 40), min_size=2, max_size=3).filter(lambda shape: math.prod(shape) > 2))
    count, block, kind = math.prod(shape), draw(st.sampled_from([64, 128])), draw(st.sampled_from(["nf4", "fp4"]))
    blocks, dtype = -(-count // block), draw(st.sampled_from(list(DTYPES.values())))
    code = functional.get_4bit_type(kind, device="cpu", blocksize=block)
    nested, absmax, offset = None, bits.scales(blocks), None
    if draw(st.booleans()):
        absmax, offset = bits.codes(blocks), bits.scales(1)[0]
        nested = functional.QuantState(absmax=bits.scales(-(-blocks // 256)), blocksize=256, dtype=torch.float32,
                                       code=functional.create_dynamic_map())
    state = functional.QuantState(absmax=absmax, shape=torch.Size(shape), dtype=dtype, blocksize=block, code=code,
                                  quant_type=kind, offset=offset, state2=nested)
    numbers = bits.codes(-(-count // 2), 1)
    storage = draw(st.sampled_from([torch.uint8, torch.bfloat16, torch.float32]))  # bnb_4bit_quant_storage
    is_whole = len(numbers) % storage.itemsize == 0 and len(numbers) > storage.itemsize
    stored = numbers.reshape(-1).view(storage).reshape(-1, 1) if is_whole else numbers
    parts = {f"weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
    # For a last block with fewer numbers, the kernel for CPUs takes the scale of the block before.
    scales = functional.dequantize_blockwise(absmax, nested) + offset if nested else absmax
    wanted = default_ops._dequantize_4bit_compute(numbers.reshape(-1), scales, code, block, shape, dtype)
    return {"weight": stored, **parts}, {"quant_method": "bitsandbytes", "load_in_4bit": True}, wanted


def eight_bits(draw, bits):
    rows, columns = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    state = {"weight": bits.codes(rows, columns).view(torch.int8), "SCB": bits.scales(rows)}
    if draw(st.booleans()):
        state["weight_format"] = torch.tensor(0, dtype=torch.uint8)
    wanted = functional.int8_vectorwise_dequant(state["weight"], state["SCB"])
    return state, {"quant_method": "bitsandbytes", "load_in_8bit": True}, wanted


KINDS = [four_bits, eight_bits, experts, pack_quantized, int_quantized, float_quantized, small_floats, modelopt,
         modelopt_fp8, gpt_oss, awq, gptq, finegrained]


def config_json(config, places=("own",)):
    """Returns a config.json with the quantization in these places: at its top, in its text_config, or both."""
    inner = {"quantization_config": config}
    return {"model_type": "none", **(inner if "own" in places else {}),
            **({"text_config": inner} if "text" in places else {})}


@st.composite
def cases(draw, kind):
    bits = draw(st.sampled_from([Bits, Edges]))(draw(st.integers(0, 1 << 30)))
    state, config, wanted = kind(draw, bits)
    config = config_json(config, draw(st.sampled_from([["own"], ["text"], ["own", "text"]])))
    return state, config, wanted, draw(st.sampled_from(list(DTYPES))), draw(st.sampled_from([1, 2, None]))


def write(folder, state, config):
    folder.mkdir()
    stored = {f"model.x.{key}": tensor for key, tensor in state.items()} | {"model.k_scale": torch.ones(1)}
    safetensors_torch.save_file(stored | {"model.norm.weight": torch.ones(3)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


# Options for a first conversion, in which each rank has some rows or columns.
CUT = ["--sharding", "fsdpv2", "--mesh", "fsdp=2"]


def convert(state, config, *options):
    """Returns the result of `convert`, and the tensors that are made."""
    with tempfile.TemporaryDirectory() as name:
        folder, out = pathlib.Path(name, "in"), pathlib.Path(name, "out")
        write(folder, state, config)
        if options[-len(CUT):] == tuple(CUT):
            parts = pathlib.Path(name, "parts")
            done = run_tool("convert", folder, "--to", "dcp", "-o", parts, "--drop", "model.norm.weight", *options)
            if done.returncode == 0:
                done = run_tool("convert", parts, "--to", "safetensors", "-o", out)
        else:
            done = run_tool("convert", folder, "--to", "safetensors", "-o", out, *options)
        assert out.exists() == (done.returncode == 0), done
        made = safetensors_torch.load_file(out / "model.safetensors") if out.exists() else {}
    return done, made


def assert_same_bits(found, wanted):
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    numbers = {2: torch.int16, 4: torch.int32}[wanted.element_size()]
    same = (found.view(numbers) == wanted.contiguous().view(numbers)) | (found.isnan() & wanted.isnan())
    assert same.all(), (found[~same][:4], wanted[~same][:4], (~same).nonzero()[:4])


def generate(state, config, dtype, shape, quantized):
    """Returns the result of `export`, and the tensors of a spec that takes its values from the folder."""
    with tempfile.TemporaryDirectory() as name:
        folder, out, spec = pathlib.Path(name, "in"), pathlib.Path(name, "out"), pathlib.Path(name, "spec.yaml")
        write(folder, state, config)
        source = {"path": "in"} | ({"quantized": quantized} if quantized else {})
        spec.write_text(json.dumps({
            "shardinit": 1, "name": "m", "dtype": dtype, "sources": {"old": source}, "modules": {
                "model.x.weight": {"shape": list(shape), "init": {"source": "old"}},
                "model.norm.weight": {"shape": [3], "init": {"source": "old"}}}}))
        done = run_tool("export", spec, "--to", "safetensors", "-o", out)
        made = safetensors_torch.load_file(out / "model.safetensors") if done.returncode == 0 else {}
    return done, made


def check(case):
    state, config, exact, dtype, jobs = case
    wanted = exact.to(DTYPES[dtype])
    if jobs is None:
        done, made = generate(state, config, dtype, wanted.shape, "widened")
        raw, _ = generate(state, config, dtype, wanted.shape, None)
        assert raw.returncode == 2, raw
    else:
        done, made = convert(state, config, "--dtype", dtype, "-j", jobs,
                             *(CUT if jobs == 2 and not any(n % 2 for n in wanted.shape) else []))
    if (wanted.isinf() & exact.isfinite()).any():
        assert done.returncode == 2 and "cannot hold" in done.stderr, done
        return
    assert done.returncode == 0, done.stderr
    assert made.keys() - {"model.norm.weight"} == {"model.x.weight"}
    assert_same_bits(made["model.x.weight"], wanted)


OF_NUMBERS = {"weight", "weight_packed", "qweight", "weight_blocks"}


@generated(100)
@given(case=st.one_of([cases(kind) for kind in KINDS]), data=st.data())
def test_quantized_tensors_without_a_part_are_rejected_or_equal(case, data):
    """If any part but the numbers is missing or dropped, the numbers stay the same or there is an error."""
    state, config, exact, _, _ = case
    lost = data.draw(st.sampled_from(sorted(state.keys() - OF_NUMBERS)))
    if data.draw(st.booleans(), label="is dropped"):
        options = ["--drop", f"model.x.{lost}"]
    else:
        state, options = {name: tensor for name, tensor in state.items() if name != lost}, []
    done, made = convert(state, config, "--dtype", "f32", *options)
    if done.returncode == 0:
        assert_same_bits(made["model.x.weight"], exact.to(torch.float32))
    else:
        assert done.returncode == 2 and "cannot be widened" in done.stderr, done


NAMES = ["weight", "weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_global_scale",
         "weight_scale_2", "weight_scale_inv", "scale", "qweight", "qzeros", "scales", "g_idx", "x_blocks", "x_scales",
         "SCB", "weight_format", "weight.absmax", "weight.quant_map", "weight.quant_state.bitsandbytes__nf4",
         "weight.nested_absmax", "weight.nested_quant_map"]
OF_PARTS = [torch.int32, torch.uint8, torch.int8, torch.int64, torch.float16, torch.float32, torch.float8_e4m3fn,
            torch.float8_e8m0fnu, torch.complex64]
VALUES = st.sampled_from([None, True, -1, 0, 1, 2, 3, 4, 8, 32, 2**30, 2**63, 0.5, "4", "gemm", [], [2, 2], [4, 32], {}])
CONFIGS = st.fixed_dictionaries(
    {"quant_method": st.sampled_from(["compressed-tensors", "modelopt", "gptq", "awq", "fp8", "mxfp4",
                                                    "bitsandbytes", None])},
    optional={"bits": VALUES, "group_size": VALUES, "version": VALUES, "checkpoint_format": VALUES,
              "weight_block_size": VALUES,
              "config_groups": st.one_of(VALUES, st.fixed_dictionaries({"a": st.one_of(VALUES, st.fixed_dictionaries(
                  {"weights": st.fixed_dictionaries({}, optional={
                      "num_bits": VALUES, "strategy": st.sampled_from(["tensor", "channel", "group", "block", 1, None]),
                      "group_size": VALUES, "block_structure": VALUES, "actorder": VALUES})}))}))})
PARTS = st.dictionaries(st.sampled_from(NAMES), st.tuples(
    st.sampled_from(OF_PARTS), st.lists(st.sampled_from([1, 2, 3, 4, 8, 32]), max_size=4)), min_size=1, max_size=5)


@generated(60)
@given(parts=PARTS, config=CONFIGS, seed=st.integers(0, 1 << 30))
def test_random_parts_of_quantized_tensors_are_widened_or_rejected(parts, config, seed):
    """Any tensors with the names of quantizers, beside any config, are widened or give an error."""
    bits = Bits(seed)
    state = {name: bits.codes(*shape, dtype.itemsize).view(dtype).reshape(shape)
             for name, (dtype, shape) in parts.items()}
    done, _ = convert(state, config_json(config), "--dtype", "bf16")
    assert done.returncode in (0, 2) and "bug" not in done.stderr, done


def test_eight_bits_of_bitsandbytes_are_not_rounded_without_their_scales():
    state = {"weight": torch.ones(4, 4, dtype=torch.int8), "SCB": torch.full((4,), 1.1)}
    config = config_json({"quant_method": "bitsandbytes"})
    done, _ = convert(state, config, "--dtype", "f8e4m3fn")
    assert done.returncode == 2 and "cannot be widened" in done.stderr, done


@pytest.mark.parametrize("config, path", [
    ({"model_type": "gpt2"}, "x"), ({"model_type": "encoder-decoder", "decoder": {"model_type": "gpt2"}}, "x"),
    (None, "h.0.attn.c_proj"), ({"model_type": "jais"}, "h.0.attn.c_proj")])
def test_transposed_matrices_of_bitsandbytes_are_rejected(config, path, tmp_path):
    safetensors_torch.save_file({f"{path}.weight": torch.ones(4, 4, dtype=torch.int8), f"{path}.SCB": torch.ones(4)},
                                tmp_path / "model.safetensors")
    if config:
        (tmp_path / "config.json").write_text(json.dumps(
            config | {"quantization_config": {"quant_method": "bitsandbytes"}}))
    result = run_tool("convert", tmp_path, "--to", "safetensors", "--dtype", "bf16", "-o", tmp_path / "out")
    assert result.returncode == 2 and "transposed" in result.stderr and not (tmp_path / "out").exists(), result


def make_test(kind, number):
    @generated(number)
    @given(case=cases(kind))
    def test(case):
        check(case)
    return test


for kind in KINDS:
    globals()[f"test_random_{kind.__name__}_tensors_are_widened_like_their_owner"] = make_test(kind, 25)
