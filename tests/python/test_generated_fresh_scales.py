"""`convert --quantize-like DIR --fresh-scales` quantizes random matrices to the bytes that the owner's package writes,
and counts the numbers that their new codes do not represent."""

import pathlib
import re
import tempfile

import pytest
import test_generated_quantized as quantized
import test_generated_quantizers as quantizers
from clients import client_of
from generated import generated, given
from hypothesis import assume
from hypothesis import strategies as st
from support import run_ok, run_tool
from test_generated_requantized import assert_bytes_equal, load, widen

torch = client_of("torch")
safetensors_torch = client_of("safetensors.torch")
helpers = client_of("compressed_tensors.quantization.utils.helpers")
modelopt_quantization = client_of("modelopt.torch.quantization")
modelopt_export = client_of("modelopt.torch.export.unified_export_hf")


class Replayed:
    """Gives an owner's second call the draws of its first one."""

    def __init__(self, draw):
        self.draw, self.drawn, self.at = draw, [], 0

    def __call__(self, strategy):
        if self.at == len(self.drawn):
            self.drawn.append(self.draw(strategy))
        self.at += 1
        return self.drawn[self.at - 1]


def small_blocks(draw, weight):
    """Quantizes as float-quantized or int-quantized, with each strategy of compressed-tensors."""
    rows, columns = weight.shape
    high, wide, strategy = draw(st.sampled_from([
        (rows, columns, {"strategy": "tensor"}), (1, columns, {"strategy": "channel"}),
        (1, 16, {"strategy": "group", "group_size": 16}), (16, 8, {"strategy": "block", "block_structure": [16, 8]})]))
    kind = draw(st.sampled_from(["float", "int"])) if high == 1 else "float"
    scheme = quantized.scheme_of(f"{kind}-quantized", num_bits=8, type=kind, symmetric=True, **strategy)
    blocks = weight.reshape(rows // high, high, columns // wide, wide)
    scales, _ = helpers.calculate_qparams(blocks.amin((1, 3)), blocks.amax((1, 3)), scheme.weights)
    if strategy["strategy"] == "tensor":
        scales = scales.reshape(1)
    compressor = quantized.compressors.BaseCompressor.get_value_from_registry(f"{kind}-quantized")
    state = compressor.compress({"weight": weight, "weight_scale": scales}, scheme)
    return state, quantized.config_of(scheme), None


def integers(draw, weight):
    """Quantizes as pack-quantized or int-quantized, with any number of bits, most with zero points."""
    form, columns = draw(st.sampled_from(["pack-quantized", "int-quantized"])), weight.shape[1]
    bits = draw(st.integers(1, 8)) if form == "pack-quantized" else 8
    size = draw(st.sampled_from([n for n in (1, 2, 3, 16, 32, columns) if columns % n == 0]))
    strategy = {"strategy": "group", "group_size": size} if size < columns else {"strategy": "channel"}
    symmetric = draw(st.integers(0, 3)) == 0
    scheme = quantized.scheme_of(form, num_bits=bits, type="int", symmetric=symmetric, **strategy)
    low, high = weight.reshape(len(weight), -1, size).aminmax(dim=-1)
    scales, zeros = helpers.calculate_qparams(low, high, scheme.weights)
    compressor = quantized.compressors.BaseCompressor.get_value_from_registry(form)
    state = {"weight": weight, "weight_scale": scales, "weight_zero_point": zeros}
    state = compressor.compress(state, scheme)
    return {name: t.clone(memory_format=torch.contiguous_format) for name, t in state.items()}, quantized.config_of(
        scheme), None


def modelopt(draw, weight):
    """Quantizes a layer by ModelOpt's calibration and export."""
    algorithm = draw(st.sampled_from(["NVFP4", "FP8"]))
    layer = torch.nn.Linear(*weight.shape[::-1], bias=False, dtype=weight.dtype)
    layer.weight.data = weight.clone()
    model = torch.nn.Sequential(layer)
    settings = getattr(modelopt_quantization, f"{algorithm}_DEFAULT_CFG")
    modelopt_quantization.quantize(model, settings, lambda each: each(torch.ones(1, weight.shape[1], dtype=weight.dtype)))
    modelopt_export._export_quantized_weight(layer, weight.dtype)
    state = {name: t for name, t in layer.state_dict().items() if "quantizer" not in name}
    return state, {"quant_method": "modelopt", "quant_algo": algorithm}, None


def bitsandbytes(draw, weight):
    functional = quantized.functional
    if weight.dtype == torch.float16 and draw(st.booleans()):
        codes, scales, _ = functional.int8_vectorwise_quant(weight.clone())
        return {"weight": codes, "SCB": scales}, {"quant_method": "bitsandbytes", "load_in_8bit": True}, None
    kind, size = draw(st.sampled_from(["nf4", "fp4"])), draw(st.sampled_from([32, 64, 128, 256]))
    storage = draw(st.sampled_from([torch.uint8, torch.bfloat16]))
    codes, state = functional.quantize_4bit(weight, quant_type=kind, blocksize=size, quant_storage=storage)
    parts = {f"weight.{name}": t for name, t in state.as_dict(packed=True).items()}
    return {"weight": codes, **parts}, {"quant_method": "bitsandbytes", "load_in_4bit": True}, None


OWNERS = [quantizers.compressed_tensors, quantizers.deepseek, small_blocks, integers, modelopt, bitsandbytes]
NAMES = {dtype: name for name, dtype in quantized.DTYPES.items()}
UNEVEN = [integers]  # of any size


def draw_weight(draw, rows, columns, dtype):
    bits = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    exponents = draw(st.sampled_from([(-6, 4), (-60, 60), (-140, -110), (100, 126), (0, 1), (-26, -12)]))
    spread = torch.exp2(torch.randint(*exponents, (rows, 1), generator=bits).float())
    weight = (torch.randn(rows, columns, generator=bits) * spread).to(dtype)
    weight[torch.rand(rows, columns, generator=bits) < 0.02] = draw(st.sampled_from([0.0, -0.0]))
    if draw(st.booleans()):
        weight[:16, :32] = 0  # blocks without a largest number
    if draw(st.booleans()):
        weight[1::3], weight[2::3] = weight[1::3].abs(), -weight[2::3].abs()  # on one side of 0
    if draw(st.booleans()):  # scales that are powers of two, or next to them
        weight[:] = torch.randn(rows, columns, generator=bits) / 8
        steps = torch.randint(-3, 4, (rows // 16, columns // 32), generator=bits) * torch.finfo(dtype).eps
        powers = torch.exp2(torch.randint(1, 8, steps.shape, generator=bits).float())
        largest = draw(st.sampled_from([448, 7.5, 127.5, 6, 1]))
        weight[::16, ::32] = (largest * powers * (1 + steps)).to(dtype)
    return weight


@st.composite
def cases(draw, owner):
    rows, columns = 16 * draw(st.integers(1, 4)), 32 * draw(st.integers(1, 4))
    dtype = draw(st.sampled_from([torch.bfloat16, torch.float32, torch.float16]))
    weight, other = (draw_weight(draw, rows, columns, dtype) for _ in range(2))
    if owner in UNEVEN:
        rows, columns = draw(st.integers(1, rows)), draw(st.integers(1, columns))
        weight, other = (each[:rows, :columns].clone(memory_format=torch.contiguous_format) for each in (weight, other))
    assume(weight.isfinite().all() and other.isfinite().all())
    replayed = Replayed(draw)
    wanted, config, _ = owner(replayed, weight)
    replayed.at = 0
    like, _, _ = owner(replayed, other)
    states = ({name: t.contiguous() for name, t in state.items()} for state in (wanted, like))
    sharded = ["--mesh", "fsdp=3", "--sharding", "fully_shard", "--to", "dcp"]
    # A spec has no module with the path of a tensor, as bitsandbytes' names need.
    options = draw(st.sampled_from([[], ["-j", 1]] + ([sharded] if owner != bitsandbytes else [])))
    if draw(st.integers(0, 9)) == 0:
        weight.view(-1)[draw(st.integers(0, weight.numel() - 1))] = draw(st.sampled_from([torch.nan, torch.inf, -torch.inf]))
    return weight, *states, config, options


def is_refused(weight, wanted, config, why):
    """Returns whether the refusal is the right one."""
    if not weight.isfinite().all():
        return "which has no scale" in why
    if "weight_zero_point" in wanted:
        return "too large for a scale" in why and not (2 * weight.abs().max()).isfinite()
    if config["quant_method"] == "modelopt":
        return "too small for a scale" in why and float(weight.abs().max()) < 2.0**-118
    if config.get("format", "").startswith("mx"):
        return weight.dtype == torch.float16 if "does not compute" in why else (
            "too large for a scale" in why and weight.abs().max() > 2.0**127)
    sizes = weight.abs()
    return "too small for a scale" in why and "weight_block_size" in config and (
        (sizes > 0) & (sizes < 2.0**-118)).any()


def check(case):
    weight, wanted, like, config, options = case
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        quantized.write(root / "like", like, quantized.config_json(config))
        (root / "wide").mkdir()
        state = {"model.x.weight": weight, "model.norm.weight": torch.ones(3)}
        safetensors_torch.save_file(state, root / "wide/model.safetensors")
        form = [] if "--to" in options else ["--to", "safetensors"]
        done = run_tool("convert", root / "wide", "--quantize-like", root / "like", "--fresh-scales", "-o",
                        root / "made", *form, *options)
        if done.returncode == 2 and is_refused(weight, wanted, config, done.stderr):
            return
        assert done.returncode == 0 and "the scales are new" in done.stderr and weight.isfinite().all(), done
        if not form:
            run_ok("convert", root / "made", "--to", "safetensors", "-o", root / "whole")
        made = load(root / ("made" if form else "whole"))
        for key, tensor in wanted.items():
            if key != "input_scale":  # of activations
                assert_bytes_equal(made[f"model.x.{key}"], tensor)
        read = widen(root / ("made" if form else "whole"), root / "read", NAMES[weight.dtype])
        if read is not None:
            differ = (read.view(torch.uint8) != weight.view(torch.uint8)).reshape(weight.numel(), -1).any(1).sum().item()
            found = re.search(r"([\d,]+) elements? rounded to the nearest code", done.stderr)
            assert differ == int(found[1].replace(",", "") if found else 0), done.stderr
    return done.stderr


# The scale of the second group of NVFP4 is 1.0625, which is rounded to 1. With zero points, the scale is 0.125 and the
# zero -2.5, which is rounded to -2: the largest number gets 7.5 and the least one -7.5, which is rounded to -8.
NV_GROUPS = [2688.0] + [0.0] * 15 + [6.375, 1.0, -0.5] + [0.0] * 13
NV_FORM = next(form for form in quantizers.FORMS if form[0].startswith("nvfp4"))


def talk_of(owner, draws, weight):
    """Returns what the tool prints for this weight, and an owner that draws these."""
    (wanted, config, _), (like, _, _) = (
        owner(lambda _, left=iter(draws): next(left), each) for each in (weight, torch.ones_like(weight)))
    return check((weight, wanted, like, config, []))


@pytest.mark.parametrize(("owner", "draws", "numbers", "rounded"), [
    (quantizers.compressed_tensors, [NV_FORM], NV_GROUPS, 1), (modelopt, ["NVFP4"], NV_GROUPS, 1),
    (integers, ["pack-quantized", 4, 16, 1], [-0.6875, 1.1875, 0.25] + [0.0] * 13, 2)])
def test_numbers_outside_the_range_of_fresh_scales_are_counted(owner, draws, numbers, rounded):
    for dtype in (torch.float32, torch.bfloat16):
        talk = talk_of(owner, draws, torch.tensor([numbers], dtype=dtype))
        assert f"{rounded} element{'s' * (rounded > 1)} rounded to the nearest code, 1 of them from outside" in talk, talk


@pytest.mark.parametrize("symmetric", [0, 1])
def test_a_half_is_rounded_to_0_for_one_bit(symmetric):
    talk_of(integers, ["pack-quantized", 1, 16, symmetric], torch.tensor([[-1.0, -0.5, -0.25, 0.0] * 4]))


@pytest.mark.parametrize(("owner", "draws", "numbers"), [
    (integers, ["pack-quantized", 4, 16, 1], [65504.0, 4368.0, 8736.0]),  # 15 times the scale 4368 is infinity
    (quantizers.compressed_tensors, [NV_FORM], [65504.0, 0.0, 0.0]),  # is 65536 in bf16, which it is rounded to
    (bitsandbytes, [True], [65504.0, -32752.0, 0.0])])  # -128/127 times 65504 is, and -63.5 is rounded
def test_only_rounded_numbers_are_counted_if_codes_overflow_f16(owner, draws, numbers):
    talk = talk_of(owner, draws, torch.tensor([numbers + [0.0] * 13], dtype=torch.float16))
    assert "1 element rounded to the nearest code, 0 of them from outside its range" in talk, talk


@pytest.mark.parametrize("kind", ["float", "ue8m0"])
def test_scales_of_deepseek_next_to_powers_of_two(kind):
    bits = torch.Generator().manual_seed(5)
    powers = torch.exp2(torch.randint(-80, 110, (64, 64), generator=bits).float())
    weight = torch.rand(16 * 64, 32 * 64, generator=bits) * powers.repeat_interleave(16, 0).repeat_interleave(32, 1)
    steps = torch.randint(-40, 41, powers.shape, generator=bits) * torch.finfo(torch.float32).eps
    weight[::16, ::32] = 448 * powers * (1 + steps)
    wanted, config, _ = quantizers.deepseek(lambda _: kind, weight)
    like, _, _ = quantizers.deepseek(lambda _: kind, torch.ones_like(weight))
    check((weight, wanted, like, config, []))


def other_algorithm(draw, bits):
    state, config, wanted = quantized.modelopt(draw, bits)
    return state, config | {"quant_algo": "W4A8_NVFP4_FP8"}, wanted


def unannounced_zeros(draw, bits):
    state, config, wanted = quantized.int_quantized(draw, bits)
    config["config_groups"]["group_0"]["weights"]["symmetric"] = True
    return state | {"weight_zero_point": bits.codes(*state["weight_scale"].shape).view(torch.int8)}, config, wanted


# The kinds whose owners' scales are not computed, and why.
REFUSED = {quantized.gpt_oss: "with a kernel of the Hub", quantized.awq: "need calibration data",
           quantized.gptq: "need calibration data", quantized.experts: "does not write them",
           other_algorithm: "is not NVFP4", unannounced_zeros: "symmetric of config.json is true",
           quantized.four_bits: "a mean of scales that depends on its threads"}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_forms_without_a_rule_are_refused_with_the_reason(kind):
    @generated(4)
    @given(case=quantized.cases(kind).filter(
        lambda case: kind != quantized.four_bits or "weight.nested_absmax" in case[0]))
    def test(case):
        state, config, exact, _, _ = case
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            quantized.write(root / "like", state, config)
            (root / "wide").mkdir()
            safetensors_torch.save_file({"model.x.weight": torch.zeros(exact.shape), "model.norm.weight": torch.ones(3)},
                                        root / "wide/model.safetensors")
            done = run_tool("convert", root / "wide", "--to", "safetensors", "--quantize-like", root / "like",
                            "--fresh-scales", "-o", root / "made")
            assert done.returncode == 2 and REFUSED[kind] in done.stderr and "`model.x." in done.stderr, done
            assert not (root / "made").exists()
    test()


def make_test(owner):
    @generated(25)
    @given(case=cases(owner))
    def test(case):
        check(case)
    return test


for owner in OWNERS:
    globals()[f"test_fresh_scales_are_those_of_{owner.__name__}"] = make_test(owner)
