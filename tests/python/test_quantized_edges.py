"""Quantized models at the edges: codes and scales with special values become what their owners compute, and models that
hold more than rounded numbers are rejected by name."""

import copy
import json
import random

import pytest
import test_generated_quantized as quantized
from clients import client_of
from hypothesis import Phase, find, settings
from support import run_ok, run_tool

torch = client_of("torch")
converters = client_of("compressed_tensors.entrypoints.convert.converters")


def case(kind, *markers):
    """Returns a case of test_generated_quantized.py whose config and tensors have the markers: (tensors, config.json)."""
    def fits(found):
        state, config, numbers, *_ = found
        text = json.dumps(config) + " ".join(state)
        return "quantization_config" in config and all(m in text for m in markers) and numbers.isfinite().all()

    limits = settings(max_examples=3000, database=None, phases=[Phase.generate])
    state, config, *_ = find(quantized.cases(kind), fits, settings=limits, random=random.Random(1))
    return state, {name: value for name, value in config.items() if name != "text_config"}


def edited(config, **members):
    """Returns the config with other members of quantization_config, or of the weights of its group."""
    config = copy.deepcopy(config)
    inner = config["quantization_config"]
    for name, value in members.items():
        weights = inner["config_groups"]["group_0"]["weights"] if name in ("actorder", "symmetric") else inner
        weights[name] = value
    return config


PACK, GPTQ, AWQ, NVFP4 = "pack-quantized", "gptq", "awq", "nvfp4-pack-quantized"
CASES = {PACK: (quantized.pack_quantized, '"symmetric": true'), GPTQ: (quantized.gptq, "gptq_v2", "g_idx"),
         AWQ: (quantized.awq, "gemm"), NVFP4: (quantized.small_floats, NVFP4),
         "modelopt": (quantized.modelopt, "NVFP4")}
UNREAD = ["hqq", "quanto", "torchao", "bitnet", "aqlm", "vptq", "quark", "eetq", "higgs", "spqr", "fp_quant", "exl3"]


@pytest.fixture(scope="module")
def cases():
    return {name: case(*arguments) for name, arguments in CASES.items()}


@pytest.mark.parametrize("name, members, why", [
    *((PACK, {"actorder": value}, f"actorder of config.json is `{json.dumps(value)}`")
      for value in ("group", "dynamic", True)),
    (PACK, {"transform_config": {"config_groups": {"u": {"type": "hadamard"}}}}, "transform_config of config.json"),
    (PACK, {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config of config.json has the format"),
    (PACK, {"symmetric": False}, "symmetric"),
    (GPTQ, {"bits": 3}, "bits of config.json is 3"), (GPTQ, {"checkpoint_format": None}, "its zeros differ"),
    (GPTQ, {"checkpoint_format": "marlin"}, "checkpoint_format of config.json is"),
    (AWQ, {"version": "gemv"}, "version of config.json is"), (AWQ, {"version": "marlin"}, "version of config.json is"),
    (AWQ, {"group_size": 64}, "group_size of config.json is 64"),
    *((PACK, {"quant_method": method}, f"quant_method is `\"{method}\"`") for method in UNREAD)])
def test_configs_of_more_than_rounded_numbers_are_rejected(name, members, why, cases):
    state, config = cases[name]
    done, _ = quantized.convert(state, edited(config, **members), "--dtype", "bf16")
    assert done.returncode == 2 and "cannot be widened" in done.stderr and why in done.stderr, done


@pytest.mark.parametrize("name, part, value, why", [
    (PACK, "weight_g_idx", torch.zeros(30, dtype=torch.int32), "`model.x.weight_g_idx`"),
    ("modelopt", "pre_quant_scale", torch.ones(16), "`model.x.pre_quant_scale`"),
    (NVFP4, "weight_global_scale", torch.tensor(2.0), "`model.x.weight_global_scale` is f32 []"),
    (GPTQ, "g_idx", None, "(desc_act)")])
def test_tensors_of_more_than_rounded_numbers_are_rejected(name, part, value, why, cases):
    state, config = cases[name]
    if value is None:  # another order
        value = state[part] + 1
    done, _ = quantized.convert({**state, part: value}, config, "--dtype", "bf16")
    assert done.returncode == 2 and "cannot be widened" in done.stderr and why in done.stderr, done


def test_two_quantized_forms_of_a_tensor_are_rejected(cases):
    state, config = cases[PACK]
    other = {"weight_blocks": torch.zeros(2, 32, 2, 16, dtype=torch.uint8),
             "weight_scales": torch.full((2, 32, 2), 127, dtype=torch.uint8)}
    done, _ = quantized.convert(state | other, config, "--dtype", "bf16")
    assert done.returncode == 2 and "another quantized tensor also becomes `model.x.weight`" in done.stderr, done


def test_quantized_parts_are_joined_in_a_second_run(tmp_path):
    config = {"model_type": "x", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    numbers = torch.randn(2, 128, 256, generator=torch.Generator().manual_seed(1)).to(torch.float8_e4m3fn)
    scales = torch.tensor([[[1.5, 2]], [[0.25, 3]]])
    state = {f"layers.{i}.w.weight{end}": part for i in range(2)
             for end, part in (("", numbers[i]), ("_scale_inv", scales[i]))}
    (tmp_path / "in").mkdir()
    quantized.safetensors_torch.save_file(state, tmp_path / "in/model.safetensors")
    (tmp_path / "in/config.json").write_text(json.dumps(config))
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: s\nmodules:\n"
                    "  layers.w.weight: {shape: [2, 128, 256], dtype: bf16, init: zeros}\n")
    folder, wide, out = tmp_path / "in", tmp_path / "wide", tmp_path / "out"
    to = ("--to", "safetensors", "-o")
    refused = run_tool("convert", folder, "--dtype", "bf16", "--spec", spec, *to, out)
    assert refused.returncode == 2 and not out.exists(), refused
    assert "`layers.0.w.weight` is quantized and a part of `layers.w.weight`" in refused.stderr
    assert "convert the folder without `--spec` first" in refused.stderr
    run_ok("convert", folder, "--dtype", "bf16", *to, wide)
    run_ok("convert", wide, "--spec", spec, *to, out)
    wanted = (numbers.float() * scales.repeat_interleave(128, 2)).bfloat16()
    made = quantized.safetensors_torch.load_file(out / "model.safetensors")
    quantized.assert_same_bits(made["layers.w.weight"], wanted)


@pytest.mark.parametrize("order", ["weight", "static", False, None])
def test_orders_that_keep_the_columns_are_widened(order, cases):
    state, config = cases[PACK]
    done, made = quantized.convert(state, edited(config, actorder=order), "--dtype", "f32")
    plain, wanted = quantized.convert(state, config, "--dtype", "f32")
    assert (done.returncode, plain.returncode) == (0, 0), (done, plain)
    quantized.assert_same_bits(made["model.x.weight"], wanted["model.x.weight"])


@pytest.mark.parametrize("shape", [(576, 512), (192, 128), (200, 384), (321, 130), (1, 1), (127, 129)])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_blocks_at_edges_are_widened_like_compressed_tensors(shape, dtype):
    """Blocks keep their size, and those at the edges are cut, as in V3's kv_a_proj."""
    bits = quantized.Bits(sum(shape))
    state = {"weight": bits.f8(*shape), "weight_scale_inv": bits.scales(*(-(-n // 128) for n in shape))}
    owner = converters.FP8BlockDequantizer(targets=["m"], dtype=torch.float32)
    wanted = owner.process({f"m.{name}": t.clone() for name, t in state.items()})["m.weight"]
    config = quantized.config_json({"quant_method": "fp8", "weight_block_size": [128, 128]})
    done, made = quantized.convert(state, config, "--dtype", dtype)
    assert done.returncode == 0, done
    quantized.assert_same_bits(made["model.x.weight"], wanted.to(quantized.DTYPES[dtype]))


def test_the_code_of_minus_zero_has_its_owners_sign():
    """Code 8 is -0 for compressed-tensors, and +0 for ModelOpt."""
    packed, scale = torch.full((2, 8), 0x88, dtype=torch.uint8), torch.ones(2, 1).to(torch.float8_e4m3fn)
    scheme = quantized.scheme_of(NVFP4, num_bits=4, type="float", symmetric=True, strategy="tensor_group",
                                 group_size=16)
    of_owner = {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": torch.ones(1)}
    for state, config, is_negative in [
            (of_owner, quantized.config_of(scheme), True),
            ({"weight": packed, "weight_scale": scale, "weight_scale_2": torch.tensor(1.0)},
             {"quant_method": "modelopt", "quant_algo": "NVFP4"}, False)]:
        done, made = quantized.convert(state, quantized.config_json(config), "--dtype", "bf16")
        found = made["model.x.weight"]
        assert done.returncode == 0 and (found == 0).all() and (found.signbit() == is_negative).all(), (done, found)
    assert quantized.decompressed(scheme, of_owner).signbit().all()


@pytest.mark.parametrize("form", ["mxfp4-pack-quantized", "mxfp8-quantized"])
def test_the_largest_exponent_is_infinity_for_compressed_tensors(form):
    """The scale 255 is 2^128, infinity, whose product with 0 is NaN."""
    width = int(form[4])
    scheme = quantized.scheme_of(form, num_bits=width, type="float", symmetric=True, strategy="group", group_size=32)
    numbers = torch.arange(256, dtype=torch.uint8).reshape(4, 64)
    state = {"weight_scale": torch.tensor([[255, 254], [0, 1], [255, 127], [253, 2]], dtype=torch.uint8)}
    if width == 4:
        state["weight_packed"] = numbers[:, :32].contiguous()
    else:
        codes = numbers.clone()
        codes[(codes & 127) == 127] = 0x80
        state["weight"] = codes.view(torch.float8_e4m3fn)
    wanted = quantized.decompressed(scheme, state).to(torch.bfloat16)
    assert wanted.isnan().any() and wanted.isinf().any()
    done, made = quantized.convert(state, quantized.config_json(quantized.config_of(scheme)), "--dtype", "bf16")
    assert done.returncode == 0, done
    quantized.assert_same_bits(made["model.x.weight"], wanted)


def test_products_that_overflow_the_type_of_scales_are_infinite():
    """A product is rounded to the type of its scale first, f16, before it becomes f32."""
    scheme = quantized.scheme_of("int-quantized", num_bits=8, type="int", symmetric=True, strategy="channel")
    state = {"weight": torch.tensor([[127, -128, 1, 0]], dtype=torch.int8).repeat(2, 1),
             "weight_scale": torch.tensor([[60000.0], [1e-7]], dtype=torch.float16)}
    wanted = quantized.decompressed(scheme, state)
    assert wanted.isinf().any() and wanted.dtype == torch.float16
    done, made = quantized.convert(state, quantized.config_json(quantized.config_of(scheme)), "--dtype", "f32")
    assert done.returncode == 0, done
    quantized.assert_same_bits(made["model.x.weight"], wanted.float())
