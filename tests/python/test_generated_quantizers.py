"""Owners' packages quantize random matrices, and write tensors with the names, types and shapes that they choose. These
are widened to the bits that the same package restores."""

import types

import test_generated_quantized as quantized
from clients import client_of
from generated import generated, given
from hypothesis import strategies as st

torch = client_of("torch")
helpers = client_of("compressed_tensors.quantization.utils.helpers")

# The form, its QuantizationArgs, and the numbers that share a scale; None: all of a row.
FORMS = [("pack-quantized", {"num_bits": bits, "type": "int", "symmetric": symmetric}, 32)
         for bits in (3, 4, 8) for symmetric in (True, False)] + [
    ("int-quantized", {"num_bits": 8, "type": "int", "symmetric": True}, None),
    ("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True}, None),
    ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "symmetric": True}, 16),
    ("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "symmetric": True}, 32),
    ("mxfp6-pack-quantized", {"num_bits": 6, "type": "float", "symmetric": True}, 32),
    ("mxfp8-quantized", {"num_bits": 8, "type": "float", "symmetric": True}, 32)]


def compressed_tensors(draw, weight):
    form, arguments, size = draw(st.sampled_from(FORMS))
    more = {"strategy": "tensor_group" if size == 16 else "group", "group_size": size} if size else {
        "strategy": "channel"}
    if form.startswith("mx"):
        more |= {"scale_dtype": torch.uint8, "zp_dtype": torch.uint8}
    if form.startswith("nv"):
        more |= {"scale_dtype": torch.float8_e4m3fn, "zp_dtype": torch.float8_e4m3fn}
    scheme = quantized.scheme_of(form, **arguments, **more)
    low, high = weight.reshape(len(weight), -1, size or weight.shape[1]).aminmax(dim=-1)
    whole = helpers.generate_gparam(weight.min(), weight.max()).reshape(1) if form.startswith("nv") else None
    scales, zeros = helpers.calculate_qparams(low, high, scheme.weights, global_scale=whole)
    state = {"weight": weight, "weight_scale": scales}
    if not arguments["symmetric"]:
        state["weight_zero_point"] = zeros
    if whole is not None:
        state["weight_global_scale"] = whole
    compressor = quantized.compressors.BaseCompressor.get_value_from_registry(form)
    state = compressor.compress(state, scheme)
    wanted = quantized.decompressed(scheme, state)
    return state, quantized.config_of(scheme), wanted.to(torch.bfloat16) if size and "fp" in form else wanted


def deepseek(draw, weight):
    scales = draw(st.sampled_from(["float", "ue8m0"]))
    config = types.SimpleNamespace(weight_block_size=[16, 32], scale_fmt=scales)
    quantizer = types.SimpleNamespace(quantization_config=config)
    state = quantized.fp8.Fp8Quantize(quantizer)._quantize_one("weight", weight)
    wanted = quantized.fp8.Fp8Dequantize(None)._dequantize_one(*state.values(), torch.float32)
    return {name.rsplit(".")[-1]: t for name, t in state.items()}, {
        "quant_method": "fp8", "weight_block_size": [16, 32], "scale_fmt": scales}, wanted


def modelopt(draw, weight):
    if draw(st.booleans()):
        made, scales, whole = quantized.nvfp4.NVFP4QTensor.quantize(weight, 16)
        state = {"weight": made._quantized_data, "weight_scale": scales, "weight_scale_2": whole}
        wanted = made.dequantize(dtype=torch.float32, scale=scales, double_scale=whole, block_sizes={-1: 16})
        return state, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, wanted
    made, scales = quantized.fp8_tensor.FP8QTensor.quantize(weight.float())
    state = {"weight": made._quantized_data, "weight_scale": scales}
    return state, {"quant_method": "modelopt", "quant_algo": "FP8"}, made.dequantize(dtype=torch.float32, scale=scales)


def bitsandbytes(draw, weight):
    functional = quantized.functional
    if draw(st.booleans()):
        codes, scales, _ = functional.int8_vectorwise_quant(weight.half())
        return {"weight": codes, "SCB": scales}, {
            "quant_method": "bitsandbytes", "load_in_8bit": True}, functional.int8_vectorwise_dequant(codes, scales)
    # The kernel for CPUs gives blocks that begin within a row the scale of another block.
    weight = weight.repeat(1, 2)
    kind, is_nested = draw(st.sampled_from(["nf4", "fp4"])), draw(st.booleans())
    codes, state = functional.quantize_4bit(weight, compress_statistics=is_nested, quant_type=kind, blocksize=64)
    wanted = functional.dequantize_4bit(codes, state)
    return {"weight": codes, **{f"weight.{name}": t for name, t in state.as_dict(packed=True).items()}}, {
        "quant_method": "bitsandbytes", "load_in_4bit": True}, wanted


OWNERS = [compressed_tensors, deepseek, modelopt, bitsandbytes]


@st.composite
def cases(draw, owner):
    rows, columns = 16 * draw(st.integers(1, 4)), 32 * draw(st.integers(1, 4))
    bits = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    spread = torch.exp2(torch.randint(-6, 4, (rows, 1), generator=bits).float())
    weight = (torch.randn(rows, columns, generator=bits) * spread).to(torch.bfloat16)
    weight[torch.rand(rows, columns, generator=bits) < 0.02] = 0
    if draw(st.booleans()):
        weight[:16, :32] = 0  # blocks without a largest number
    state, config, wanted = owner(draw, weight)
    return ({name: t.contiguous() for name, t in state.items()}, quantized.config_json(config), wanted,
            draw(st.sampled_from(list(quantized.DTYPES))), draw(st.sampled_from([1, 2, None])))


def make_test(owner):
    @generated(15)
    @given(case=cases(owner))
    def test(case):
        quantized.check(case)
    return test


for owner in OWNERS:
    globals()[f"test_matrices_that_{owner.__name__}_quantized_are_widened"] = make_test(owner)
