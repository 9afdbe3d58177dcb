"""Folders from other tools: their pitfalls give errors or warnings with names, and no data is silently lost."""

import json
import os
import shutil
import zipfile

import numpy as np
import pytest
from changing import changing, counted
from clients import client_of
from support import TINY, run_json, run_ok, run_tool

torch = client_of("torch")
safetensors_torch = client_of("safetensors.torch")

STATE = {"model.embed_tokens.weight": torch.arange(32.0).reshape(8, 4), "lm_head.weight": torch.ones(8, 4)}


def refused(*arguments, code=None):
    result = run_tool(*arguments)
    assert result.returncode != 0 and (code is None or result.returncode == code), result
    return result.stderr


def hub(folder, state=STATE, name="model.safetensors", **config):
    folder.mkdir(exist_ok=True)
    safetensors_torch.save_file(state, folder / name)
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_convert_keeps_a_head_that_differs_from_its_tie(tmp_path):
    """If config.json ties a head that differs from the embedding, both tensors are kept and a message reports it;
    Transformers would untie them silently."""
    folder = hub(tmp_path / "in", tie_word_embeddings=True)
    result = run_tool("convert", folder, "--to", "dcp", "-o", tmp_path / "out")
    assert result.returncode == 0 and "ties `lm_head.weight`" in result.stderr
    assert run_ok("diff", folder, tmp_path / "out", "--values").stdout == "no difference: 2 tensors\n"
    same = {name: STATE["lm_head.weight"].clone() for name in STATE}
    folder = hub(tmp_path / "same", same, tie_word_embeddings=True)
    assert "ties" not in run_tool("digest", folder).stderr


def test_file_headers_decide_instead_of_a_wrong_index(tmp_path):
    """The headers of the files decide which tensors they hold; the index only lists files."""
    folder = tmp_path / "in"
    hub(folder, {"a": torch.ones(2)}, "model-00001-of-00002.safetensors")
    hub(folder, {"b": torch.zeros(2)}, "model-00002-of-00002.safetensors")
    index = folder / "model.safetensors.index.json"
    files = ["model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"]
    index.write_text(json.dumps({"weight_map": dict(zip("ab", files))}))
    result = run_tool("digest", folder)
    assert result.returncode == 0 and "model.safetensors.index.json: a is not in" in result.stderr
    index.write_text(json.dumps({"weight_map": {"a": files[1]}}))
    assert "is not part of the model" in run_tool("digest", folder).stderr
    index.write_text(json.dumps({"weight_map": {"a": files[1], "b": "model-00003.safetensors"}}))
    assert "`model-00003.safetensors`, which is missing" in refused("digest", folder)
    index.unlink()
    (folder / files[0]).unlink()
    assert f"`{files[0]}` is missing" in refused("digest", folder)


def test_convert_rejects_a_single_file_next_to_an_index(tmp_path):
    folder = hub(tmp_path / "in")
    hub(folder, {"a": torch.ones(2)}, "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))
    assert "`model.safetensors` is next to" in refused("convert", folder, "--to", "dcp", "-o", tmp_path / "out")


@pytest.mark.parametrize("bit", ["conj", "neg"])
def test_digest_rejects_conjugate_and_negative_views(tmp_path, bit):
    value = torch.complex(torch.ones(3), torch.ones(3)).conj()
    torch.save({"a": value if bit == "conj" else value.imag}, tmp_path / "in.pt")
    assert f"the bit `{bit}`" in refused("digest", tmp_path / "in.pt", code=5)


def rewritten(path, to, change, compression=zipfile.ZIP_STORED):
    """Copies an archive; `change(name, data)` returns the new content of each file."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(to, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return to


def test_digest_rejects_big_endian_and_compressed_archives(tmp_path):
    torch.save(STATE, tmp_path / "in.pt")
    big = rewritten(tmp_path / "in.pt", tmp_path / "big.pt",
                    lambda name, data: b"big" if name.endswith("byteorder") else data)
    assert "big-endian" in refused("digest", big, code=5)
    packed = rewritten(tmp_path / "in.pt", tmp_path / "packed.pt", lambda name, data: data, zipfile.ZIP_DEFLATED)
    assert "compressed" in refused("digest", packed, code=5)
    plain = rewritten(tmp_path / "in.pt", tmp_path / "plain.pt", lambda name, data: data)
    assert run_ok("digest", plain).stdout == run_ok("digest", tmp_path / "in.pt").stdout


def test_legacy_torch_file_of_a_linear_layer_is_read(tmp_path):
    """In old files of torch.save, a count of 12 elements precedes the 48 bytes of a 4 × 3 weight."""
    layer = torch.nn.Linear(4, 3)
    torch.save(layer.state_dict(), tmp_path / "in.pt", _use_new_zipfile_serialization=False)
    weight = layer.weight.detach().numpy().tobytes()
    data = (tmp_path / "in.pt").read_bytes()
    assert (12).to_bytes(8, "little") + weight in data
    safetensors_torch.save_file(layer.state_dict(), tmp_path / "as.safetensors")
    assert run_ok("diff", tmp_path / "in.pt", tmp_path / "as.safetensors",
                  "--values").stdout == "no difference: 2 tensors\n"


def test_strides_with_a_product_over_64_bits_are_read(tmp_path):
    """The product of strides may exceed 64 bits: for these twelve dimensions it is 2^66."""
    tensor = torch.arange(4096, dtype=torch.float32).reshape([2] * 12)
    torch.save({"a": tensor}, tmp_path / "many.pt")
    torch.save({"a": tensor.permute(*range(10, -1, -1), 11)}, tmp_path / "other.pt")
    run_ok("convert", tmp_path / "many.pt", "--to", "safetensors", "-o", tmp_path / "out", "-q")
    assert torch.equal(safetensors_torch.load_file(tmp_path / "out/model.safetensors")["a"], tensor)
    run_ok("convert", tmp_path / "other.pt", "--to", "safetensors", "-o", tmp_path / "turned", "-q")
    assert torch.equal(safetensors_torch.load_file(tmp_path / "turned/model.safetensors")["a"],
                       tensor.permute(*range(10, -1, -1), 11))


def test_digest_rejects_pickles_that_would_run_code(tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    assert "whose code would have to run" in refused("digest", tmp_path / "module.pt", code=5)
    torch.save({"optimizer": {}, "epoch": 1}, tmp_path / "no.pt")
    assert "contains no model: its keys are `epoch`, `optimizer`" in refused("digest", tmp_path / "no.pt", code=5)
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    torch.save({"a": torch.ones(2), "q": quantized}, tmp_path / "q.pt")
    assert "_rebuild_qtensor" in refused("digest", tmp_path / "q.pt", code=5)
    torch.save({"a": torch.ones(2), "s": torch.eye(3).to_sparse()}, tmp_path / "s.pt")
    assert "_rebuild_sparse_tensor" in refused("digest", tmp_path / "s.pt", code=5)


def test_strided_tensors_of_torch_files_are_read(tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    state = {"rows": base[:, 1:4], "transposed": base.t(), "expanded": torch.ones(1).expand(3, 2), "tied": base}
    torch.save(state, tmp_path / "in.pt")
    safetensors_torch.save_file({n: t.contiguous().clone() for n, t in state.items()}, tmp_path / "as.safetensors")
    assert run_ok("diff", tmp_path / "in.pt", tmp_path / "as.safetensors",
                  "--values").stdout == "no difference: 4 tensors\n"


@pytest.mark.parametrize("shape, strides", [
    ((3000, 2000), (1, 3000)), ((96, 96, 3, 3), (864, 1, 288, 96)), ((3000, 3000), (0, 0)), ((1 << 20,), (3,)),
    ((5000, 3, 100), (1, 500000, 5000)), ((2000, 3000), (3000 + 4096, 1)), ((70000, 2), (1, 70000)),
    ((1200, 1200), (1, 1)),
])
@pytest.mark.parametrize("options", [[], ["--memory", "1M", "-j", 1], ["--mesh", "fsdp=3", "--sharding", "fsdpv2"]])
def test_strided_tensors_with_many_runs_are_read(tmp_path, shape, strides, options):
    """Strided tensors are read even if their runs are too many to list, from a file and from a DCP item."""
    end = sum((n - 1) * s for n, s in zip(shape, strides)) + 1
    tensor = torch.arange(end + 3, dtype=torch.float32)[3:].as_strided(shape, strides)
    wanted = run_ok("digest", hub(tmp_path / "wanted", {"w": tensor.contiguous()})).stdout
    torch.save({"w": tensor}, tmp_path / "in.pt")
    client_of("torch.distributed.checkpoint").save({"w": tensor}, checkpoint_id=tmp_path / "in", no_dist=True)
    for source in "in.pt", "in":
        out = tmp_path / f"out-{source == 'in'}"
        run_ok("convert", tmp_path / source, "-o", out, "--to", "dcp", *options)
        assert run_ok("digest", tmp_path / source).stdout == run_ok("digest", out).stdout == wanted
        assert run_json("inspect", tmp_path / source, "--json")["tensors"][0]["shards"] == 1
        run_ok("stats", tmp_path / source)


def test_error_names_the_package_of_a_foreign_archive(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    with zipfile.ZipFile(tmp_path / "a.keras", "w") as out:
        out.writestr("metadata.json", "{}")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        out.writestr("a.txt", "")
    for file, what in ("a.npz", "a file of NumPy"), ("a.keras", "an archive of Keras"), ("a.zip", "a ZIP archive"):
        for command in "inspect", "digest":
            said = refused(command, tmp_path / file)
            assert f" {what}, not " in said and f"shardinit {command} {tmp_path / file}" not in said


def test_dcp_items_in_safetensors_are_read(tmp_path):
    filesystem = client_of("torch.distributed.checkpoint.filesystem")
    dcp = client_of("torch.distributed.checkpoint")
    state = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "c": torch.tensor(5)}
    writer = filesystem.FileSystemWriter(
        tmp_path / "in", serialization_format=filesystem.SerializationFormat.SAFETENSORS)
    dcp.save(state, storage_writer=writer, no_dist=True)
    assert run_ok("digest", tmp_path / "in").stdout == run_ok("digest", hub(tmp_path / "wanted", state)).stdout
    file = tmp_path / "in/__0_0.distcp"
    file.write_bytes(file.read_bytes().replace(b'"BF16"', b'"F16" '))
    assert "`b` is F16 [3], but BF16 [3] in `.metadata`" in refused("digest", tmp_path / "in", code=5)


def test_convert_rejects_names_that_a_format_cannot_hold(tmp_path):
    folder = hub(tmp_path / "in", {"a b": torch.ones(2), "c/d": torch.ones(2)})
    assert "`a b` cannot be a name in a checkpoint" in refused("convert", folder, "--to", "hdf5", "-o",
                                                               tmp_path / "out")
    assert "`a b` cannot be a name in a checkpoint" in refused("reshard", folder, "-o", tmp_path / "out")
    said = refused("convert", folder, "--to", "zarr", "-o", tmp_path / "out")
    assert "`c/d` cannot be the name of a zarr array's folder: it has a slash" in said
    said = refused("convert", hub(tmp_path / "layer", {"a/b.vars.0": torch.ones(2)}), "--to", "keras", "-o",
                   tmp_path / "out")
    assert "`a/b.vars.0` is not the path of a variable of Keras" in said
    torch.save({"__metadata__": torch.ones(2)}, tmp_path / "in.pt")
    said = refused("convert", tmp_path / "in.pt", "--to", "safetensors", "-o", tmp_path / "out")
    assert "`__metadata__` is not the name of a tensor in safetensors files" in said and not (tmp_path / "out").exists()


def test_unsupported_folders_are_rejected_with_a_hint(tmp_path):
    folder = tmp_path / "deepspeed"
    folder.mkdir()
    (folder / "zero_to_fp32.py").write_text("{}")
    assert "`latest` does not name a folder in it" in refused("inspect", folder, code=5)
    (tmp_path / "empty").mkdir()
    assert ("contains no safetensors files, DCP files, zarr arrays, PyTorch files, DeepSpeed files or Megatron-LM files"
            in refused("digest", tmp_path / "empty", code=2))
    both = hub(tmp_path / "both")
    (both / "w").mkdir()
    (both / "w/.zarray").write_text(json.dumps({"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "<f4",
                                                "compressor": None, "filters": None, "order": "C", "fill_value": 0}))
    (both / "w/0").write_bytes(bytes(4))
    assert "holds safetensors files and zarr arrays" in refused("digest", both, code=2)


def test_convert_rejects_unsupported_tensors_unless_dropped(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    torch.save({"a": torch.ones(2), "c": torch.ones(2, dtype=torch.complex128), "z": torch.zeros(0)},
               folder / "pytorch_model.bin")
    assert "cannot copy `c`" in refused("convert", folder, "--to", "dcp", "-o", tmp_path / "out", code=5)
    assert "has no elements" in refused("convert", folder, "--to", "dcp", "-o", tmp_path / "out", "--drop", "c", code=5)
    run_ok("convert", folder, "--to", "dcp", "-o", tmp_path / "out", "--drop", "c", "--drop", "z")
    assert "no tensor matches `--drop x`" in refused("convert", folder, "--to", "dcp", "-o", tmp_path / "y", "--drop",
                                                     "x",
                                                    "--drop", "c", "--drop", "z")


def test_convert_of_another_source_is_a_conflict(tmp_path):
    folder = hub(tmp_path / "in")
    for form in ["dcp", "hdf5"]:
        out = tmp_path / form
        run_ok("convert", folder, "--to", form, "-o", out)
        before = {f: f.read_bytes() for f in out.rglob("*") if f.is_file()}
        assert "was there already" in run_tool("convert", folder, "--to", form, "-o", out).stderr
        other = hub(tmp_path / f"other-{form}", {**STATE, "lm_head.weight": torch.zeros(8, 4)})
        renamed = tmp_path / "moved"
        folder.rename(renamed)
        other.rename(folder)
        assert "has other values" in refused("convert", folder, "--to", form, "-o", out)
        assert before == {f: f.read_bytes() for f in out.rglob("*") if f.is_file()}
        shutil.rmtree(folder)
        renamed.rename(folder)


def test_links_of_a_model_cache_are_followed(tmp_path):
    hub(tmp_path / "blobs")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to("../blobs/model.safetensors")
    assert run_ok("digest", folder).stdout == run_ok("digest", tmp_path / "blobs").stdout


def test_stats_counts_nan_infinity_and_zero_rows(tmp_path):
    state = {"w": torch.ones(4, 3), "bad": torch.tensor([1.0, float("nan"), float("inf")])}
    state["w"][1:3] = 0
    found = {t["path"]: t for t in json.loads(run_ok("stats", hub(tmp_path / "in", state), "--json").stdout)["tensors"]}
    assert found["bad"]["not_finite"] == 2 and found["w"]["zero_rows"] == 2 and found["bad"]["zero_rows"] == 0
    assert found["bad"]["nan"] == found["bad"]["infinite"] == 1 and "is_initial" not in found["bad"]
    state["z"] = torch.full((5,), -2.5)
    text = run_ok("stats", hub(tmp_path / "z", state)).stdout
    assert "-, 1 NaN, 1 infinite\n" in text and text.endswith("\n\n1 tensor has one number in all its elements: z "
                                                              "(-2.5)\n")
    text = run_ok("stats", hub(tmp_path / "many", {f"t{i:02}": torch.ones(2) for i in range(11)})).stdout
    assert text.endswith("t06 (1), t07 (1) and 3 more\n")


def test_stats_skips_zero_rows_in_files_with_parts_of_rows(tmp_path):
    """stats does not count rows of zeros in files that store parts of rows, since half a row of zeros is not a row of
    zeros."""
    (tmp_path / "spec.yaml").write_text("""
shardinit: 1
name: x
dtype: f32
mesh: {axes: {x: 2}}
modules:
  halves: {shape: [6, 4], shard: [null, x], init: {expr: floor(i1 / 2)}}
  zeros: {shape: [6, 4], shard: [null, x], init: zeros}
  rows: {shape: [6, 4], shard: [x], init: {expr: floor(i0 / 2)}}
  flat: {shape: [6], shard: [x], init: zeros}
""")
    run_ok("export", tmp_path / "spec.yaml", "--to", "dcp", "-o", tmp_path / "in")
    found = {t["path"]: t["zero_rows"] for t in run_json("stats", tmp_path / "in")["tensors"]}
    assert found == {"halves": None, "zeros": None, "rows": 2, "flat": 0}
    text = run_ok("stats", tmp_path / "in").stdout
    assert text.count(" of zeros") == 1 and "-, 2 rows of zeros\n" in text


def test_diff_compares_values_bit_by_bit(tmp_path):
    a, b = np.zeros((3, 4), "f4"), np.zeros((3, 4), "f4")
    b[1, 2] = -0.0
    a[2, 3], b[2, 3] = np.array([0x7FC00001, 0x7FC00002], "u4").view("f4")
    hub(tmp_path / "a", {"w": torch.from_numpy(a)})
    hub(tmp_path / "b", {"w": torch.from_numpy(b)})
    result = run_tool("diff", tmp_path / "a", tmp_path / "b", "--values")
    assert result.returncode == 1 and "values: 2 of 12 elements differ, the first at [1, 2]" in result.stdout


@pytest.mark.parametrize("jobs", [1, 4])
def test_diff_compares_values_of_large_tensors(tmp_path, jobs):
    """diff counts the differing elements of several large tensors and reports the first one of each."""
    shape, places = (3, 7, 100_003), {"v": [2_100_000, 1_050_001, 1_050_003], "w": [1_700_000], "u": []}
    before = {name: torch.zeros(shape, dtype=torch.float64 if name == "v" else torch.float32) for name in places}
    after = {name: tensor.clone() for name, tensor in before.items()}
    for name, of in places.items():
        after[name].view(-1)[of] = 1
    hub(tmp_path / "a", before)
    hub(tmp_path / "b", after)
    result = run_tool("diff", tmp_path / "a", tmp_path / "b", "--values", "--jobs", jobs)
    assert result.returncode == 1
    index = {name: [int(i) for i in np.unravel_index(min(of), shape)] for name, of in places.items() if of}
    assert result.stdout == "".join(
        f"~ {name}\n  values: {len(places[name])} of 2,100,063 elements differ, the first at {at}\n"
        for name, at in index.items()) + "2 tensors differ, 1 equal\n"


@pytest.mark.parametrize("head, table", [
    ((torch.float16, (4, 6)), (torch.bfloat16, (4, 6))), ((torch.bfloat16, (4, 6)), (torch.float16, (4, 6))),
    ((torch.float32, (4, 6)), (torch.bfloat16, (4, 6))), ((torch.bfloat16, (4, 6)), (torch.float32, (4, 6))),
    ((torch.float32, (4, 6)), (torch.float32, (6, 4))), ((torch.float32, (4, 6)), (torch.float32, (24,)))])
def test_head_of_another_dtype_or_shape_is_not_tied(tmp_path, head, table):
    """A head whose type or shape differs from the embedding's is not tied, even if all bytes of both are zeros."""
    state = {name: torch.zeros(shape, dtype=dtype)
             for name, (dtype, shape) in (("lm_head.weight", head), ("model.embed_tokens.weight", table))}
    folder = hub(tmp_path / "in", state, tie_word_embeddings=True)
    assert ("`: config.json ties `lm_head.weight` to the embedding, but the file has one that differs; both are read "
            "as "
            "they are\n") in run_ok("digest", folder).stderr


@pytest.mark.parametrize("dtype, said", [
    ("bf16", "2 tensors become bf16; 2 of other types stay\n"),
    ("f64", "2 tensors become f64; 2 of other types stay\n"),
    ("f32", "1 tensor becomes f32; 1 of other types stays\n"),
    ("f16", "3 tensors become f16; 2 of other types stay\n")])
def test_convert_counts_only_tensors_whose_dtype_changes(tmp_path, dtype, said):
    state = {"a": torch.ones(2), "b": torch.zeros(2), "c": torch.ones(3).bfloat16(), "i": torch.arange(3),
             "k_scale": torch.ones(1)}
    if dtype == "f64":
        state["b"] = state["b"].double()
    folder = hub(tmp_path / "in", state)
    assert f"shardinit: {said}" in run_ok("convert", folder, "--to", "dcp", "--dtype", dtype, "-o",
                                          tmp_path / "out").stderr
    run_ok("convert", hub(tmp_path / "one", {"a": torch.ones(2), "i": torch.arange(2)}), "--to", "dcp", "-o",
           tmp_path / "dcp")
    assert "shardinit: 1 tensor becomes f16; 1 of other types stays\n" in run_ok(
        "convert", tmp_path / "dcp", "--to", "dcp", "--dtype", "f16", "-o", tmp_path / "f16").stderr


def test_convert_changes_dtypes_only_on_request(tmp_path):
    values = torch.cat([torch.randn(1000) * 10.0 ** k for k in range(-3, 4)])
    values[:4] = torch.tensor([float("nan"), -0.0, float("inf"), 1e-40])
    scales = {name: values[:8].clone() for name in ("w_scale_inv", "k_scale", "k_scales", "k.scales")}
    state = {"w": values.reshape(7, 1000), "d": values.double(), "q": values.to(torch.float8_e4m3fn),
             "i": torch.arange(3), **scales}
    folder = hub(tmp_path / "in", state)
    result = run_tool("convert", folder, "--to", "safetensors", "--dtype", "bf16", "-o", tmp_path / "out")
    assert "2 tensors become bf16; 6 of other types stay" in result.stderr
    found = safetensors_torch.load_file(tmp_path / "out/model.safetensors")
    for name in "w", "d":
        wanted = state[name].bfloat16()
        assert torch.equal(found[name].isnan(), wanted.isnan())
        kept = ~wanted.isnan()
        assert torch.equal(found[name].view(torch.int16)[kept], wanted.view(torch.int16)[kept])
    for name in scales:
        assert torch.equal(found[name].view(torch.int32), state[name].view(torch.int32))
    assert torch.equal(found["q"].view(torch.uint8), state["q"].view(torch.uint8))
    hub(tmp_path / "large", {"w": torch.full((3,), 1e6)})
    assert "`w` has the value 1000000, which f16 cannot hold" in refused(
        "convert", tmp_path / "large", "--to", "dcp", "--dtype", "f16", "-o", tmp_path / "no", code=2)
    assert "not a floating-point type" in refused("convert", folder, "--to", "dcp", "--dtype", "i8", "-o", tmp_path / "no")


LAYOUTS = ["stacked", "hf", "torchtitan", "meta", "megatron", "torch_dist", "kerashub"]


def save_random_model(cls, config, folder):
    """Makes a Transformers folder with random bits in all elements, including NaN payloads and -0."""
    cls(config).to(torch.bfloat16).save_pretrained(folder)
    state = safetensors_torch.load_file(folder / "model.safetensors")
    bits = torch.Generator().manual_seed(3)
    state = {name: torch.randint(-(1 << 15), 1 << 15, t.shape, generator=bits, dtype=torch.int16).view(torch.bfloat16)
             for name, t in state.items()}
    safetensors_torch.save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2"])
def test_every_layout_converts_back_bit_for_bit(tmp_path, family):
    """Every layout (stacked, fused, interleaved, padded) can be converted back bit for bit, and files do not depend on
    the number of jobs."""
    transformers = client_of("transformers")
    config = getattr(transformers, f"{family}Config")(
        hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=130, max_position_embeddings=64)
    folder = save_random_model(getattr(transformers, f"{family}ForCausalLM"), config, tmp_path / "in")
    config = folder / "config.json"
    tested = 0
    for layout in LAYOUTS:
        there, eight, back = (tmp_path / f"{layout}-{what}" for what in ("there", "eight", "back"))
        result = run_tool("convert", folder, "--to", "dcp", "--layout", layout, "-o", there, "-j", 1)
        if "has no layout" in result.stderr:
            continue
        assert result.returncode == 0, result
        tested += 1
        run_ok("convert", folder, "--to", "dcp", "--layout", layout, "-o", eight, "-j", 8)
        for file in there.iterdir():
            assert file.read_bytes() == (eight / file.name).read_bytes(), file
        run_ok("convert", there, "--to", "safetensors", "--spec", config, "--from-layout", layout, "-o", back)
        assert "no difference" in run_ok("diff", folder, back, "--values").stdout
    assert tested >= 3
    # Also through a checkpoint on a mesh.
    run_ok("convert", folder, "--to", "hdf5", "--layout", "torch_dist", "--mesh", "tensor=2", "-o", tmp_path / "own")
    run_ok("verify", tmp_path / "own", "-q")
    run_ok("convert", tmp_path / "own", "--to", "megatron", "-o", tmp_path / "megatron")
    run_ok("convert", tmp_path / "megatron", "--to", "safetensors", "--spec", config, "--from-layout", "torch_dist",
           "-o", tmp_path / "end")
    assert "no difference" in run_ok("diff", folder, tmp_path / "end", "--values").stdout


def test_convert_rejects_a_layout_that_does_not_fit(tmp_path):
    transformers = client_of("transformers")
    config = transformers.LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
                                      vocab_size=8)
    folder = save_random_model(transformers.LlamaForCausalLM, config, tmp_path / "in")
    out = tmp_path / "out"
    assert "the folder has no `tok_embeddings.weight`" in refused(
        "convert", folder, "--to", "dcp", "--from-layout", "torchtitan", "-o", out, code=2)
    state = safetensors_torch.load_file(folder / "model.safetensors")
    hub(folder, {**state, "model.layers.0.self_attn.gate": torch.ones(4)})
    assert "but not in the model's own names" in refused("convert", folder, "--to", "dcp", "--layout", "meta", "-o",
                                                         out)
    run_ok("convert", folder, "--to", "dcp", "--layout", "meta", "--drop", "**.gate", "-o", out)
    hub(folder, {**state, "lm_head.weight": torch.ones(9, 16).bfloat16()})
    assert "`lm_head.weight` is [9, 16] in the folder, but [8, 16]" in refused(
        "convert", folder, "--to", "dcp", "--layout", "meta", "-o", tmp_path / "x", code=2)


def write_wide_tensors(folder):
    """Writes two tensors that are read in several parts."""
    bits = torch.Generator().manual_seed(5)
    hub(folder, {name: torch.randint(-99, 99, (300, 1000), generator=bits).float() for name in "ab"})
    file = folder / "model.safetensors"
    os.utime(file, (1_700_000_000, 1_700_000_000))
    return file


@pytest.mark.faults
@pytest.mark.parametrize("form", ["dcp", "hdf5"])
@pytest.mark.parametrize("what", ["xor", "disguise", "cut", "swap"])
def test_convert_detects_a_source_that_changes_meanwhile(tmp_path, form, what):
    """If the source changes before any read, convert fails without output, or writes the values from before the
    change."""
    folder = tmp_path / "in"
    file = write_wide_tensors(folder)
    before = file.read_bytes()
    wanted = run_ok("digest", folder).stdout
    arguments = ["convert", folder, "--to", form, "-j", 1, "--memory", "4M", "--sharding", "fsdpv2", "--mesh", "fsdp=3"]
    count = tmp_path / "count"
    run_ok(*arguments, "-o", tmp_path / "whole", env=changing(folder, count=count))
    reads = counted(count)[0]
    other = tmp_path / "other"
    for read in sorted({1, 2, 3, reads // 2, reads - 1, reads}):
        file.unlink()
        file.write_bytes(before)
        os.utime(file, (1_700_000_000, 1_700_000_000))
        shutil.copy2(file, other)
        with_what = {"xor": len(before) - 5000, "disguise": len(before) - 5000, "cut": len(before) - 5000,
                     "swap": other}[what]
        if what == "swap":
            data = bytearray(before)
            data[-5000] ^= 1
            other.write_bytes(data)
        out = tmp_path / f"out-{read}"
        result = run_tool(*arguments, "-o", out, env=changing(folder, f"{read} {what} {file} {with_what}"))
        if result.returncode == 0:
            assert run_ok("digest", out).stdout == wanted, read
        else:
            assert result.returncode in (3, 5) and file.name in result.stderr, result
            assert not out.exists()


@pytest.mark.faults
@pytest.mark.parametrize("form", ["dcp", "hdf5"])
def test_convert_resumes_after_sigkill_at_any_step(tmp_path, form):
    """After a kill at any step, the same command completes the conversion with the same bytes."""
    folder = tmp_path / "in"
    write_wide_tensors(folder)
    arguments = ["convert", folder, "--to", form, "-j", 2, "--sharding", "fsdpv2", "--mesh", "fsdp=3"]
    count = tmp_path / "count"
    run_ok(*arguments, "-o", tmp_path / "whole", env=changing(folder, count=count))
    wanted = {f.relative_to(tmp_path / "whole"): f.read_bytes() for f in (tmp_path / "whole").rglob("*") if f.is_file()}
    steps = counted(count)[1]
    for kill in sorted({1, 2, steps // 2, steps - 1, steps}):
        out = tmp_path / f"out-{kill}"
        assert run_tool(*arguments, "-o", out, env=changing(folder, kill=kill)).returncode < 0
        run_ok(*arguments, "-o", out)
        assert wanted == {f.relative_to(out): f.read_bytes() for f in out.rglob("*") if f.is_file()}, kill


def test_safetensors_file_with_a_long_header_is_recognized(tmp_path):
    for count in (1, 2000):
        folder = hub(tmp_path / str(count), {f"layers.{i}.weight": torch.ones(1) for i in range(count)})
        assert "this is a safetensors file, not a spec" in refused("validate", folder / "model.safetensors", code=2)


@pytest.mark.parametrize("form", ["checkpoint", "safetensors", "dcp", "zarr"])
@pytest.mark.parametrize("to", ["hdf5", "safetensors"])
def test_convert_to_a_layout_works_with_dropped_tensors(tmp_path, form, to):
    """Sources whose extra tensors are dropped can be converted to a layout, including checkpoints with a manifest."""
    lines = {name: f"  {name}: {{shape: [{rows}, 3], init: {{normal: {{std: 1}}}}, shard: [t]}}\n"
             for name, rows in {"a": 4, "b": 2, "w": 6, "x": 8}.items()}
    for name, of in ("all", "abwx"), ("less", "aw"):
        (tmp_path / f"{name}.yaml").write_text(
            "shardinit: 1\nname: x\ndtype: f32\nmesh: {axes: {t: 2}}\nlayouts: {l: {w.t: {from: {transpose: {of: w}}}, "
            f"keep: [a]}}}}\nmodules:\n{''.join(lines[tensor] for tensor in of)}".replace(
                "keep: [a]", "keep: [a]" if of == "aw" else "keep: [a, b, x]"))
    make = ["gen"] if form == "checkpoint" else ["export", "--to", form]
    run_ok(make[0], tmp_path / "all.yaml", *make[1:], "-o", tmp_path / "in")
    for layout in [], ["--layout", "l"]:
        out = tmp_path / f"out{len(layout)}"
        run_ok("convert", tmp_path / "in", "--spec", tmp_path / "less.yaml", *layout, "--drop", "b", "--drop", "x",
               "--to", to, "-o", out)
        run_ok("gen", tmp_path / "less.yaml", *layout, "-o", tmp_path / f"wanted{len(layout)}")
        assert run_ok("digest", out).stdout == run_ok("digest", tmp_path / f"wanted{len(layout)}").stdout


@pytest.mark.parametrize("end",
                         [".bin", ".pt", ".pth", ".ckpt", ".safetensors", ".pth.tar", "", ".blob", "-old", "-st"])
def test_single_file_is_recognized_by_suffix_or_first_bytes(tmp_path, end):
    """The end of a file's name or its first bytes identify its format, in every command."""
    state = {"w": torch.arange(6.0).reshape(2, 3), "v": torch.ones(4)}
    whole = run_ok("digest", hub(tmp_path / "in", state)).stdout
    file = tmp_path / f"model.json{end}"
    if end in (".safetensors", "-st"):
        shutil.copy(tmp_path / "in/model.safetensors", file)
    else:
        torch.save(state, file, _use_new_zipfile_serialization=end != "-old")
    run_ok("inspect", file)
    assert run_ok("digest", file).stdout == whole
    run_ok("convert", file, "--to", "dcp", "-o", tmp_path / "out")
    assert run_ok("digest", tmp_path / "out").stdout == whole


def test_latest_step_of_a_run_is_found(tmp_path):
    """The latest step of a run is found from Megatron-core's iteration file or in the item folders of Orbax's
    managers."""
    run_ok("gen", TINY, "-o", tmp_path / "own")
    run = tmp_path / "run"
    run.mkdir()
    (run / "latest_checkpointed_iteration.txt").write_text("20")
    run_ok("export", TINY, "--to", "dcp", "-o", run / "iter_0000020")
    run_ok("export", TINY, "--to", "zarr", "-o", tmp_path / "step/items")
    for folder in run, tmp_path / "step":
        assert "no difference" in run_ok("diff", tmp_path / "own", folder, "--values").stdout
        run_ok("verify", folder, "--spec", TINY)
    for text in "20\n", "20 ", "20 \n\n", "0000020":
        (run / "latest_checkpointed_iteration.txt").write_text(text)
        assert "no difference" in run_ok("diff", tmp_path / "own", run).stdout
    (run / "iter_0000020").rename(run / "release")
    (run / "latest_checkpointed_iteration.txt").write_text("release\n")
    assert "no difference" in run_ok("diff", tmp_path / "own", run).stdout
    # NeMo's folder has the run's configuration next to the weights.
    (tmp_path / "nemo/context").mkdir(parents=True)
    run_ok("export", TINY, "--to", "dcp", "-o", tmp_path / "nemo/weights")
    assert "no difference" in run_ok("diff", tmp_path / "own", tmp_path / "nemo", "--values").stdout
    (run / "latest_checkpointed_iteration.txt").write_text("../..")
    assert "has no iteration, but `../..`" in refused("digest", run, code=5)


def test_convert_detects_a_replaced_part_of_a_transposed_tensor(tmp_path):
    """If one of two files is replaced before any read, convert reports it or uses only one version of the file."""
    (tmp_path / "spec.yaml").write_text(
        "shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {a: 2}}\n"
        "modules: {w: {shape: [40, 30], shard: [a], init: {normal: {std: 1}}}}\n"
        "layouts: {turned: {w: {from: {transpose: {of: w}}}}}\n")
    folder, other = tmp_path / "in", tmp_path / "other"
    run_ok("export", tmp_path / "spec.yaml", "--to", "dcp", "-o", folder)
    run_ok("export", tmp_path / "spec.yaml", "--to", "dcp", "--set", "seed=1", "-o", other)
    (folder / "shardinit-export.json").unlink()
    file = folder / "__1_0.distcp"
    old, new = file.read_bytes(), (other / file.name).read_bytes()
    arguments = ["convert", folder, "--to", "safetensors", "--spec", tmp_path / "spec.yaml", "--layout", "turned", "-j",
                 "1", "-o"]
    run_ok(*arguments, tmp_path / "whole", env=changing(folder, count=tmp_path / "count"))
    file.write_bytes(new)
    run_ok(*arguments, tmp_path / "new")
    wanted = {run_ok("digest", tmp_path / name).stdout for name in ("whole", "new")}
    reads, told = counted(tmp_path / "count")[0], 0
    for read in sorted({1, 2, *range(reads // 4, reads, max(1, reads // 8)), reads}):
        file.write_bytes(old)
        (tmp_path / "place").write_bytes(new)
        out = tmp_path / f"out{read}"
        result = run_tool(*arguments, out, env=changing(folder, f"{read} swap {file} {tmp_path}/place"))
        if result.returncode:
            assert result.returncode == 3 and f"{file.name}` was changed while it was read" in result.stderr and not out.exists(), result
            told += 1
        else:
            assert run_ok("digest", out).stdout in wanted
    assert told >= 2
