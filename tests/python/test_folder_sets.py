"""In folders with several sets of tensors the index decides. Otherwise the user must name one; nothing is merged
silently."""

import json

import pytest
from clients import client_of
from support import run_ok, run_tool

torch = client_of("torch")
safetensors_torch = client_of("safetensors.torch")

MODEL = {"model.a.weight": torch.arange(6.0), "model.b.weight": torch.ones(4)}
HALF = {name: tensor.half() for name, tensor in MODEL.items()}
OTHER = {"layers.0.wq.weight": torch.zeros(5), "layers.0.wo.weight": torch.zeros(3)}
ADAPTER = {"base_model.model.a.lora_A.weight": torch.ones(2, 3)}


def sharded(folder, state, stem="model", end="", index=None):
    """Writes a file for each tensor, named as by `save_pretrained`, and an index if `index` names one."""
    folder.mkdir(exist_ok=True)
    files = {name: f"{stem}-{i + 1:05}-of-{len(state):05}{end}.safetensors" for i, name in enumerate(state)}
    for name, file in files.items():
        safetensors_torch.save_file({name: state[name]}, folder / file)
    if index:
        (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": files}))


def one(folder, state, name):
    folder.mkdir(exist_ok=True)
    safetensors_torch.save_file(state, folder / name)


def read(path, out):
    """Converts a folder to safetensors; returns the tensors and the messages."""
    result = run_tool("convert", path, "--to", "safetensors", "-o", out)
    if result.returncode != 0:
        assert not out.exists() and "error:" in result.stderr, result
        return None, result.stderr
    return safetensors_torch.load_file(out / "model.safetensors"), result.stderr


def same(found, wanted):
    return found.keys() == wanted.keys() and all(
        torch.equal(found[name], wanted[name]) and found[name].dtype == wanted[name].dtype for name in wanted)


INDEX = "model.safetensors.index.json"
# How to make a folder, and which tensors are the model. A text means that the run fails with it.
FOLDERS = {
    "an adapter beside an index": (lambda f: (sharded(f, MODEL, index=INDEX),
                                              one(f, ADAPTER, "adapter_model.safetensors")), MODEL),
    "an adapter beside a file": (lambda f: (one(f, MODEL, "model.safetensors"),
                                            one(f, ADAPTER, "adapter_model.safetensors")), MODEL),
    "an adapter alone": (lambda f: one(f, ADAPTER, "adapter_model.safetensors"), ADAPTER),
    "an adapter beside shards": (lambda f: (sharded(f, MODEL), one(f, ADAPTER, "adapter_model.safetensors")),
                                 "`adapter_model.safetensors` (an adapter)"),
    "an adapter beside PyTorch files": (lambda f: (one(f, ADAPTER, "adapter_model.safetensors"),
                                                   torch.save(MODEL, f / "pytorch_model.bin")), "and PyTorch files"),
    "shards alone": (lambda f: sharded(f, MODEL), MODEL),
    "consolidated beside an index": (lambda f: (sharded(f, MODEL, index=INDEX),
                                                one(f, OTHER, "consolidated.safetensors")), MODEL),
    "consolidated beside shards": (lambda f: (sharded(f, MODEL), one(f, OTHER, "consolidated.safetensors")),
                                   "`consolidated.safetensors`"),
    "two indexes": (lambda f: (sharded(f, MODEL, index=INDEX),
                               sharded(f, HALF, "model.fp16", index="model.safetensors.index.fp16.json")), MODEL),
    "indexes of variants alone": (lambda f: (sharded(f, MODEL, "model.fp32", index="model.safetensors.index.fp32.json"),
                                             sharded(f, HALF, "model.fp16", index="model.safetensors.index.fp16.json")),
                                  "model.safetensors.index.fp16.json"),
    "one index of a variant": (lambda f: sharded(f, HALF, "model.fp16", index="model.safetensors.index.fp16.json"),
                               HALF),
    "files of variants": (lambda f: (one(f, MODEL, "model.fp32.safetensors"), one(f, HALF, "model.fp16.safetensors")),
                          "`model.fp16.safetensors`"),
    "a variant beside the file": (lambda f: (one(f, MODEL, "model.safetensors"),
                                             one(f, HALF, "model.fp16.safetensors")), MODEL),
    "Diffusers' variants": (lambda f: (one(f, MODEL, "diffusion_pytorch_model.safetensors"),
                                       one(f, HALF, "diffusion_pytorch_model.fp16.safetensors")), MODEL),
    "Diffusers' index": (lambda f: (sharded(f, MODEL, "diffusion_pytorch_model",
                                            index="diffusion_pytorch_model.safetensors.index.json"),
                                    sharded(f, HALF, "diffusion_pytorch_model", ".fp16",
                                            "diffusion_pytorch_model.safetensors.index.fp16.json")),
                         MODEL),
    "two saves": (lambda f: (sharded(f, MODEL), sharded(f, {**OTHER, "x": torch.ones(1)})), "-of-00003.safetensors"),
    "an optimizer": (lambda f: (sharded(f, MODEL), one(f, OTHER, "optimizer.safetensors")), "`optimizer.safetensors`"),
}


@pytest.mark.parametrize("what", FOLDERS)
def test_folder_with_several_models_is_resolved_or_rejected(tmp_path, what):
    make, wanted = FOLDERS[what]
    folder = tmp_path / "in"
    folder.mkdir()
    make(folder)
    found, said = read(folder, tmp_path / "out")
    if isinstance(wanted, str):
        assert found is None and wanted in said, said
    else:
        assert found is not None and same(found, wanted), said
        if "adapter" in what and "alone" not in what:
            assert "adapters are not merged" in said


def test_path_of_an_index_selects_its_files(tmp_path):
    """The path of an index selects its files in every command, together with the config next to it."""
    folder = tmp_path / "in"
    sharded(folder, MODEL, "model.fp32", index="model.safetensors.index.fp32.json")
    sharded(folder, HALF, "model.fp16", index="model.safetensors.index.fp16.json")
    one(folder, OTHER, "consolidated.safetensors")
    (folder / "config.json").write_text("{}")
    for name, wanted in ("model.safetensors.index.fp32.json", MODEL), ("model.safetensors.index.fp16.json",
                                                                       HALF), ("consolidated.safetensors", OTHER):
        out = tmp_path / name.replace(".", "-")
        found, said = read(folder / name, out)
        assert found is not None and same(found, wanted), said
        assert run_ok("digest", folder / name).stdout == run_ok("digest", out).stdout
        assert (out / "config.json").exists() == name.endswith(".json")
    part = folder / "model.fp32-00001-of-00002.safetensors"
    assert "is part 1 of 2, and read alone" in run_ok("digest", part).stderr
    part.unlink()
    assert f"lists `{part.name}`, which is missing" in read(folder / "model.safetensors.index.fp32.json",
                                                            tmp_path / "lost")[1]


def test_path_of_a_pytorch_index_selects_its_files(tmp_path):
    folder, files = tmp_path / "in", {}
    one(folder, OTHER, "model.safetensors")
    for i, (name, tensor) in enumerate(MODEL.items()):
        files[name] = f"pytorch_model-{i + 1:05}-of-00002.bin"
        torch.save({name: tensor}, folder / files[name])
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    assert same(read(index, tmp_path / "out")[0], MODEL)
    assert same(read(folder, tmp_path / "whole")[0], OTHER)


@pytest.mark.parametrize("listed", [0, 1])
@pytest.mark.parametrize("stale", [torch.full((6,), 7.0), torch.full((3, 2), 7.0), torch.ones(6).half()])
def test_index_decides_between_two_copies_of_a_tensor(tmp_path, listed, stale):
    """If two files have the same tensor, the index decides, whatever the shape and type of the stale copy."""
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    folder = tmp_path / "in"
    one(folder, {"a": MODEL["model.a.weight"], "b": torch.ones(2)}, files[listed])
    one(folder, {"a": stale, "c": torch.ones(3)}, files[1 - listed])
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": files[listed], "b": files[listed],
                                                           "c": files[1 - listed]}}))
    found, said = read(folder, tmp_path / "out")
    assert torch.equal(found["a"], MODEL["model.a.weight"]) and found.keys() == {"a", "b", "c"}
    assert f"{files[1 - listed]}: a is not read: `{INDEX}` places it in `{files[listed]}`" in said
    (folder / INDEX).write_text(json.dumps({"weight_map": {"b": files[listed], "c": files[1 - listed]}}))
    assert read(folder, tmp_path / "none")[0] is None


@pytest.mark.parametrize("tie, name, is_read", [
    (True, "encoder.embed_tokens.weight", True), (False, "decoder.embed_tokens.weight", True),
    (None, "lm_head.weight", True),
    (True, "lm_head.weight", True), (False, "lm_head.weight", False), ("no config", "lm_head.weight", False),
    (True, "encoder.final_layer_norm.weight", False), (True, "embed_tokens.weight", False)])
def test_index_may_list_tied_tensors_that_are_absent(tmp_path, tie, name, is_read):
    state = {"shared.weight": torch.ones(3, 2), "w": torch.ones(2)}
    folder = tmp_path / "in"
    sharded(folder, state, index=INDEX)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"][name] = index["weight_map"]["shared.weight"]
    (folder / INDEX).write_text(json.dumps(index))
    if tie != "no config":
        (folder / "config.json").write_text(json.dumps({} if tie is None else {"tie_word_embeddings": tie}))
    found, said = read(folder, tmp_path / "out")
    assert same(found, state) if is_read else found is None, said
    assert name in said


def test_convert_keeps_safetensors_metadata(tmp_path):
    """Metadata of safetensors is kept, since torchao describes its tensors there."""
    metadata = {"format": "pt", "w": json.dumps({"_type": "Int8Tensor"}), "tensor_names": '["w"]'}
    folder = tmp_path / "in"
    folder.mkdir()
    for i, name in enumerate(["w", "v"]):
        safetensors_torch.save_file({name: torch.ones(3)}, folder / f"model-{i + 1:05}-of-00002.safetensors", metadata)
    run_ok("convert", folder, "--to", "safetensors", "-o", tmp_path / "out")
    safetensors = client_of("safetensors")
    with safetensors.safe_open(tmp_path / "out/model.safetensors", "pt") as file:
        assert file.metadata() == metadata
    for form in "dcp", "hdf5":
        assert "keeps the `__metadata__` of its files" in run_ok("convert", folder, "--to", form, "-o",
                                                                       tmp_path / form).stderr
    safetensors_torch.save_file({"v": torch.ones(3)}, folder / "model-00002-of-00002.safetensors",
                                {**metadata, "w": "another"})
    assert "has another `w` in its metadata" in run_ok("digest", folder).stderr
