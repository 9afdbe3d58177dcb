"""`convert --quantize-like` with whole models: types, parts, other formats, and folders that do not match."""

import json

import pytest
from changing import changing, counted
from clients import client_of
from support import run_ok, run_tool

torch = client_of("torch")
safetensors_torch = client_of("safetensors.torch")

CONFIG = {"model_type": "none", "quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 32]}}


def write_model(folder):
    """Writes a model like DeepSeek's: blocks of fp8, a bias of f32, and numbers of bf16."""
    bits = torch.Generator().manual_seed(3)
    tensors = {"model.norm.weight": torch.randn(7, generator=bits).to(torch.bfloat16),
               "model.gate.bias": torch.randn(9, generator=bits),
               "model.ids": torch.arange(5)}
    for layer in range(3):
        codes = torch.randint(0, 127, (40, 96), generator=bits, dtype=torch.uint8)
        tensors[f"model.{layer}.weight"] = codes.view(torch.float8_e4m3fn)
        tensors[f"model.{layer}.weight_scale_inv"] = torch.rand(3, 3, generator=bits) + 0.01
    folder.mkdir()
    safetensors_torch.save_file(tensors, folder / "model.safetensors", {"format": "pt", "owner": "me"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text("{}")
    return tensors


@pytest.fixture
def folders(tmp_path):
    """Returns a quantized folder, and the same widened by `--dtype bf16`, which rounds the bias."""
    write_model(tmp_path / "q")
    run_ok("convert", tmp_path / "q", "--to", "safetensors", "--dtype", "bf16", "-o", tmp_path / "wide")
    return tmp_path / "q", tmp_path / "wide"


def requantize(source, like, out, *options, to="safetensors"):
    return run_tool("convert", source, "--to", to, "--quantize-like", like, "-o", out, *options)


def digests(folder):
    return run_ok("digest", folder).stdout


@pytest.mark.parametrize("options", [[], ["--mesh", "fsdp=2", "--sharding", "fsdpv2", "--to", "dcp"],
                                     ["--to", "hf-dcp", "--mesh", "fsdp=2", "--sharding", "fsdpv2"]])
def test_widened_model_comes_back_byte_for_byte(options, folders, tmp_path):
    quantized, wide = folders
    options = options or ["--to", "safetensors"]
    done = run_tool("convert", wide, "--quantize-like", quantized, "-o", tmp_path / "back", *options)
    assert done.returncode == 0 and "3 tensors quantized" in done.stderr and "0 elements changed" in done.stderr, done
    assert digests(tmp_path / "back") == digests(quantized)
    if "safetensors" in options:
        assert json.loads((tmp_path / "back/config.json").read_text())["quantization_config"] == (
            CONFIG["quantization_config"])
        assert (tmp_path / "back/generation_config.json").exists()
        with safetensors_torch.safe_open(tmp_path / "back/model.safetensors", "pt") as file:
            assert file.metadata()["owner"] == "me"


@pytest.mark.parametrize("form", ["dcp", "hdf5", "zarr"])
def test_model_in_another_format_is_quantized(form, folders, tmp_path):
    quantized, wide = folders
    run_ok("convert", wide, "--to", form, "-o", tmp_path / "other", "--mesh", "fsdp=2", "--sharding", "fsdpv2")
    assert requantize(tmp_path / "other", quantized, tmp_path / "back").returncode == 0
    assert digests(tmp_path / "back") == digests(quantized)


def test_parts_write_the_same_folder(folders, tmp_path):
    quantized, wide = folders
    for part in ("0/2", "1/2"):
        done = requantize(wide, quantized, tmp_path / "parts", "--part", part, "--max-shard-size", "5000")
        assert done.returncode == 0, done
    requantize(wide, quantized, tmp_path / "whole", "--max-shard-size", "5000")
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert len(names) > 4 and names == sorted(path.name for path in (tmp_path / "parts").iterdir())
    for name in names:
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert "was there already" in requantize(wide, quantized, tmp_path / "whole", "--max-shard-size", "5000").stderr


def test_changed_numbers_get_the_nearest_code_and_are_counted(folders, tmp_path):
    quantized, wide = folders
    tensors = safetensors_torch.load_file(wide / "model.safetensors")
    old = safetensors_torch.load_file(quantized / "model.safetensors")
    scale = old["model.1.weight_scale_inv"][0, 0]
    tensors["model.1.weight"][0, 0] = 1000 * scale  # out of range: 448
    tensors["model.1.weight"][0, 1] = 100 * scale  # between 96 and 104
    tensors["model.gate.bias"][2] = 0.5
    (tmp_path / "changed").mkdir()
    safetensors_torch.save_file(tensors, tmp_path / "changed/model.safetensors")
    done = requantize(tmp_path / "changed", quantized, tmp_path / "out")
    assert "3 elements changed" in done.stderr, done
    assert "2 elements rounded to the nearest code, 1 of them from outside its range" in done.stderr, done
    made = safetensors_torch.load_file(tmp_path / "out/model.safetensors")
    assert made["model.1.weight"][0, 0].float() == 448 and made["model.1.weight"][0, 1].float() in (96, 104)
    assert made["model.gate.bias"][2] == 0.5
    made["model.1.weight"].view(torch.uint8)[0, :2] = old["model.1.weight"].view(torch.uint8)[0, :2]
    made["model.gate.bias"][2] = old["model.gate.bias"][2]
    for name, tensor in old.items():
        assert bytes(made[name].view(torch.uint8).reshape(-1)) == bytes(tensor.view(torch.uint8).reshape(-1)), name


def test_negative_zero_without_a_code_is_counted_as_rounded(tmp_path):
    """Whole numbers have no -0."""
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    config = {"quant_method": "compressed-tensors", "format": "int-quantized",
              "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    (tmp_path / "q").mkdir(), (tmp_path / "wide").mkdir()
    safetensors_torch.save_file({"x.weight": torch.zeros(2, 4, dtype=torch.int8),
                                 "x.weight_scale": torch.ones(2, 1, dtype=torch.bfloat16)},
                                tmp_path / "q/model.safetensors")
    (tmp_path / "q/config.json").write_text(json.dumps({"quantization_config": config}))
    wide = torch.zeros(2, 4, dtype=torch.bfloat16)
    wide[1, 2] = -0.0
    safetensors_torch.save_file({"x.weight": wide}, tmp_path / "wide/model.safetensors")
    done = requantize(tmp_path / "wide", tmp_path / "q", tmp_path / "out")
    assert "1 element rounded to the nearest code, 0 of them from outside its range" in done.stderr, done
    assert digests(tmp_path / "out") == digests(tmp_path / "q")


def mismatches(quantized, wide, tmp_path):
    """Yields a source, a quantized folder, options, and a part of the error."""
    tensors = safetensors_torch.load_file(wide / "model.safetensors")

    def saved(name, changed):
        (tmp_path / name).mkdir()
        safetensors_torch.save_file(changed, tmp_path / name / "model.safetensors")
        return tmp_path / name
    yield saved("less", {k: v for k, v in tensors.items() if "1" not in k}), quantized, [], "does not"
    yield saved("more", tensors | {"model.new": torch.ones(2)}), quantized, [], "`model.new`"
    yield saved("shape", tensors | {"model.0.weight": torch.ones(40, 97)}), quantized, [], "[40, 97]"
    yield saved("ints", tensors | {"model.0.weight": torch.ones(40, 96, dtype=torch.int32)}), quantized, [], "i32"
    yield saved("type", tensors | {"model.ids": torch.arange(5).float()}), quantized, [], "model.ids"
    nan = tensors["model.0.weight"].clone()
    nan[3, 3] = torch.nan
    yield saved("nan", tensors | {"model.0.weight": nan}), quantized, [], "has the value nan"
    yield wide, wide, [], "has no quantized tensors"
    yield wide, quantized, ["--dtype", "bf16"], "--dtype"
    yield wide, quantized, ["--layout", "torchtitan"], "layouts"
    yield wide, quantized, ["--to", "hdf5"], "hdf5"
    yield wide, tmp_path / "missing", [], "missing"


def test_folders_that_do_not_match_are_errors(folders, tmp_path):
    for source, like, options, message in mismatches(*folders, tmp_path):
        done = run_tool("convert", source, *([] if "--to" in options else ["--to", "safetensors"]), *options,
                        "--quantize-like", like, "-o", tmp_path / "out")
        assert done.returncode == 2 and message in done.stderr and not (tmp_path / "out").exists(), done


def test_additional_tensor_can_be_dropped(folders, tmp_path):
    quantized, wide = folders
    tensors = safetensors_torch.load_file(wide / "model.safetensors") | {"model.new": torch.ones(2)}
    (tmp_path / "more").mkdir()
    safetensors_torch.save_file(tensors, tmp_path / "more/model.safetensors")
    assert requantize(tmp_path / "more", quantized, tmp_path / "out", "--drop", "model.new").returncode == 0
    assert digests(tmp_path / "out") == digests(quantized)


def test_damaged_source_is_an_error(folders, tmp_path):
    quantized, wide = folders
    data = bytearray((wide / "model.safetensors").read_bytes())
    data[-1000] ^= 1
    (wide / "model.safetensors").write_bytes(data)
    done = requantize(wide, quantized, tmp_path / "out")
    assert done.returncode == 1 and "is damaged" in done.stderr and not (tmp_path / "out").exists(), done


def test_output_may_not_be_one_of_the_folders(folders):
    quantized, wide = folders
    for out in (quantized, wide, quantized / "in"):
        assert requantize(wide, quantized, out).returncode in (2, 4)
    run_ok("verify", wide)


@pytest.mark.parametrize("which", ["source", "like"])
def test_changing_checkpoint_gives_the_same_model_or_an_error(which, folders, tmp_path):
    """A byte that changes after its digest was compared never reaches the output."""
    for folder, name in zip(folders, ("like", "source"), strict=True):
        run_ok("convert", folder, "--to", "hdf5", "-o", tmp_path / name)
    run = ["convert", tmp_path / "source", "--to", "safetensors", "--quantize-like", tmp_path / "like", "-j", "1", "-o"]
    run_ok(*run, tmp_path / "whole", env=changing(tmp_path / which, count=tmp_path / "count"))
    wanted, file = digests(tmp_path / "whole"), tmp_path / which / "ranks/rank-00000.h5"
    whole, failed, reads = file.read_bytes(), 0, counted(tmp_path / "count")[0]
    receipt = json.loads(file.with_suffix(".json").read_text())
    box = next(box for box in receipt["boxes"] if box["path"] == "model.1.weight")
    for read in range(1, reads + 1, 1 + reads // 12):
        out = tmp_path / f"out{read}"
        at = box["file_offset"] + box["bytes"] - 3
        done = run_tool(*run, out, env=changing(tmp_path / which, f"{read} xor {file} {at}"))
        file.write_bytes(whole)
        failed += done.returncode != 0
        assert digests(out) == wanted if done.returncode == 0 else done.returncode in (1, 3), done
    assert failed > 0


def test_codes_of_words_on_two_ranks_are_counted_once(tmp_path):
    """A code of 3 bits has bits in two words, which different ranks write; a box is read with the gaps in it."""
    rows, columns = 7, 256
    weights = {"num_bits": 3, "group_size": 32, "strategy": "group", "symmetric": True}
    config = {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
                                      "config_groups": {"all": {"weights": weights}}}}
    (tmp_path / "q").mkdir()
    (tmp_path / "q/config.json").write_text(json.dumps(config))
    safetensors_torch.save_file({"m.weight_packed": torch.zeros(rows, 24, dtype=torch.int32),
                                 "m.weight_scale": torch.ones(rows, 8, dtype=torch.bfloat16),
                                 "m.weight_shape": torch.tensor([rows, columns])}, tmp_path / "q/model.safetensors")
    (tmp_path / "wide").mkdir()
    safetensors_torch.save_file({"m.weight": torch.full((rows, columns), 4.5, dtype=torch.bfloat16)},
                                tmp_path / "wide/model.safetensors")
    done = requantize(tmp_path / "wide", tmp_path / "q", tmp_path / "out", "--mesh", "fsdp=8", "--sharding",
                      "{first_divisible: {replicate_unshardable: true}}", to="dcp")
    assert done.returncode == 0 and f"{rows * columns:,} elements changed" in done.stderr, done
    assert f"{rows * columns:,} elements rounded to the nearest code, {rows * columns:,} of them" in done.stderr, done


def test_error_about_the_quantized_folder_names_it_and_its_option(folders, tmp_path):
    quantized, wide = folders
    done = requantize(wide, quantized, tmp_path / "out", "--drop", "model.1.weight")
    assert done.returncode == 2 and f"`{quantized}`: `model.1.weight_scale_inv` cannot" in done.stderr, done
    assert "leave out `--dtype`" not in done.stderr and "drop a tensor only with its scales" in done.stderr, done


def test_lost_metadata_is_reported_with_the_folder_that_has_it(folders, tmp_path):
    quantized, wide = folders
    done = requantize(wide, quantized, tmp_path / "out", to="dcp")
    assert f"`{quantized}`: only `--to safetensors` keeps the `__metadata__`" in done.stderr, done


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 2.0**-125])
def test_numbers_without_a_fresh_scale_are_named(value, folders, tmp_path):
    quantized, _ = folders
    state = {f"model.{layer}.weight": torch.ones(40, 96) for layer in range(3)} | {
        "model.norm.weight": torch.zeros(7, dtype=torch.bfloat16),
        "model.gate.bias": torch.zeros(9),
        "model.ids": torch.arange(5),
    }
    state["model.1.weight"][:16] = value
    (tmp_path / "new").mkdir()
    safetensors_torch.save_file(state, tmp_path / "new/model.safetensors")
    done = requantize(tmp_path / "new", quantized, tmp_path / "made", "--fresh-scales")
    assert done.returncode == 2 and "`model.1.weight` has" in done.stderr and not (tmp_path / "made").exists()
    state["model.1.weight"][:16] = 500
    safetensors_torch.save_file(state, tmp_path / "new/model.safetensors")
    done = requantize(tmp_path / "new", quantized, tmp_path / "made", "--fresh-scales")
    assert done.returncode == 0 and "the scales are new" in done.stderr, done
    scales = safetensors_torch.load_file(tmp_path / "made/model.safetensors")["model.1.weight_scale_inv"]
    assert torch.allclose(scales, torch.tensor([[500.0] * 3, [1.0] * 3, [1.0] * 3]) / 448, rtol=1e-6)


def test_fresh_scales_need_a_folder_and_a_known_rule(folders, tmp_path):
    quantized, wide = folders
    done = run_tool("convert", wide, "--to", "safetensors", "--fresh-scales", "-o", tmp_path / "made")
    assert done.returncode == 2 and "needs `--quantize-like`" in done.stderr
    run_ok("convert", wide, "--to", "safetensors", "--dtype", "f64", "-o", tmp_path / "f64")
    done = requantize(tmp_path / "f64", quantized, tmp_path / "made", "--fresh-scales")
    assert done.returncode == 2 and "is f64, from which its library does not compute" in done.stderr
