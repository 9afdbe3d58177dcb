"""torch.distributed.checkpoint loads folders of `export --to dcp`, given only the folder's name."""

import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
from clients import client_of
from support import AWKWARD, DTYPES, FLOATS, reassemble, run_ok, run_tool, tree_of

torch = client_of("torch")
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor  # noqa: E402
from torch_processes import spawn_it  # noqa: E402

TORCH = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
         "f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2, "bool": torch.bool,
         **{f"{k}{n}": getattr(torch, f"{word}{n}") for k, word in (("i", "int"), ("u", "uint"))
            for n in (8, 16, 32, 64)}}
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
INDEX = "{expr: 'mod(index, 2)'}"
TYPES = ("shardinit: 1\nname: types\ndtype: f32\nmesh: {axes: {a: 2, b: 2}}\ninit: {n: {normal: {std: 1}}}\n"
         "modules:\n  step: {shape: [], init: {constant: {value: 7}}}\n"
         + "".join(f"  {d}: {{shape: [6, 4], shard: [a, b], dtype: {d}, init: {'n' if d in FLOATS else INDEX}}}\n"
                   for d in DTYPES))


def tensor_words(tensor):
    return tensor.detach().contiguous().view(WORDS[tensor.element_size()]).numpy()


def equal(tensor, words):
    held = tensor_words(tensor)
    return held.shape == words.shape and (held.view(words.dtype) == words).all()


class Exported:
    """A spec's export, and the tensors that `gen` makes."""

    def __init__(self, folder, text, *arguments):
        self.spec, self.path = folder / "spec.yaml", folder / "dcp"
        self.spec.write_text(text)
        run_ok("gen", self.spec, "-o", folder / "gen")
        self.expected = reassemble(folder / "gen")
        run_ok("export", self.spec, "--to", "dcp", "-o", self.path, *arguments)
        self.metadata = pickle.loads((self.path / ".metadata").read_bytes())

    def empty(self):
        return {p: torch.full(words.shape, 3).to(TORCH[dtype]) for p, (dtype, words) in self.expected.items()}

    def load(self):
        state = self.empty()
        dcp.load(state, checkpoint_id=str(self.path), no_dist=True)
        return state

    def slices(self):
        for index, info in self.metadata.storage_data.items():
            with open(self.path / info.relative_path, "rb") as file:
                file.seek(info.offset)
                yield index, file.read(info.length)


@pytest.fixture(scope="module", params=["a=1,b=1", "a=3,b=2"])
def awkward(request, tmp_path_factory):
    return Exported(tmp_path_factory.mktemp("awkward"), AWKWARD, "--mesh", request.param)


def test_dcp_export_loads_in_one_process(awkward):
    for path, tensor in awkward.load().items():
        assert equal(tensor, awkward.expected[path][1]), path


def test_dcp_export_loads_every_dtype_and_a_scalar(tmp_path):
    types = Exported(tmp_path, TYPES)
    for path, tensor in types.load().items():
        assert equal(tensor, types.expected[path][1]), path
    kinds = {path: entry.properties.dtype for path, entry in types.metadata.state_dict_metadata.items()}
    assert kinds == {path: TORCH[dtype] for path, (dtype, _) in types.expected.items()}


def test_dcp_export_becomes_one_torch_file(awkward, tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(str(awkward.path), str(tmp_path / "model.pt"))
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert state.keys() == awkward.expected.keys()
    for path, tensor in state.items():
        assert tensor.dtype == TORCH[awkward.expected[path][0]] and equal(tensor, awkward.expected[path][1])


def test_dcp_items_are_archives_that_cover_each_tensor(awkward):
    """Each item is a valid archive with correct CRCs; the tensors have their chunks' shapes and together cover the
    whole."""
    held = {path: np.zeros(words.shape, int) for path, (_, words) in awkward.expected.items()}
    ends = {}
    for index, data in awkward.slices():
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert archive.testzip() is None
            assert all(item.compress_type == zipfile.ZIP_STORED for item in archive.infolist())
            assert archive.read("archive/data/0") in data
        chunk = awkward.metadata.state_dict_metadata[index.fqn].chunks[index.index]
        box = tuple(slice(o, o + n) for o, n in zip(index.offset, chunk.sizes))
        dtype, words = awkward.expected[index.fqn]
        tensor = torch.load(io.BytesIO(data), weights_only=True)
        assert tensor.dtype == TORCH[dtype] and tensor.is_contiguous() and chunk.offsets == index.offset
        assert equal(tensor, words[box])
        held[index.fqn][box] += 1
    assert all((count == 1).all() for count in held.values())
    # The slices fill the files without gaps.
    for info in awkward.metadata.storage_data.values():
        assert info.offset == ends.get(info.relative_path, 0)
        ends[info.relative_path] = info.offset + info.length
    assert ends == {p.name: p.stat().st_size for p in awkward.path.glob("*.distcp")}


def test_zip_reader_detects_a_damaged_dcp_item(awkward):
    _, data = next(awkward.slices())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        at = data.index(archive.read("archive/data/0"))
    bad = data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
    assert zipfile.ZipFile(io.BytesIO(bad)).testzip() == "archive/data/0"


def test_dcp_bytes_do_not_depend_on_jobs_or_replicas(awkward, tmp_path):
    ranks = len(list(awkward.path.glob("*.distcp")))
    mesh = "a=1,b=1" if ranks == 1 else "a=3,b=2"
    for i, more in enumerate([["--jobs", 1, "--memory", "1M"], ["--set", "replicas=full"]]):
        run_ok("export", awkward.spec, "--to", "dcp", "-o", tmp_path / str(i), "--mesh", mesh, *more)
        for name, data in tree_of(awkward.path).items():
            assert name == "shardinit-export.json" or (tmp_path / str(i) / name).read_bytes() == data
    run_ok("verify", awkward.path)


CHUNKS = """
shardinit: 1
name: chunks
dtype: i8
init: {n: {expr: "mod(index, 251) - 125"}}
modules:
  rows: {shape: [17, 1048577], init: n}
  planes: {shape: [1, 2, 9000001], init: n}
  line: {shape: [17000001], init: n}
  small: {shape: [4096, 4096], init: n}
"""


def test_dcp_export_cuts_large_tensors_into_chunks(tmp_path):
    chunks = Exported(tmp_path, CHUNKS)
    counts = {path: len(entry.chunks) for path, entry in chunks.metadata.state_dict_metadata.items()}
    assert counts == {"rows": 2, "planes": 2, "line": 2, "small": 1}
    assert {tuple(c.sizes) for c in chunks.metadata.state_dict_metadata["rows"].chunks} == {(9, 1048577), (8, 1048577)}
    assert {tuple(c.sizes) for c in chunks.metadata.state_dict_metadata["planes"].chunks} == {(1, 1, 9000001)}
    for path, tensor in chunks.load().items():
        assert equal(tensor, chunks.expected[path][1]), path
    # Large tensors are aligned to pages.
    record = json.loads((chunks.path / "shardinit-export.json").read_text())
    assert all(box["file_offset"] % 4096 == 0 for file in record["files"] for box in file["boxes"])


def test_dcp_export_stores_tied_tensors_twice(tmp_path):
    tied = Exported(tmp_path, "shardinit: 1\nname: tied\ndtype: bf16\nmodules:\n"
                    "  embed.weight: {shape: [10, 4], init: {normal: {std: 1}}}\n"
                    "  head.weight: {shape: [10, 4], init: {normal: {std: 1}}, tie: embed.weight}\n")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

    model = Model().bfloat16()
    state = model.state_dict()
    assert state.keys() == tied.expected.keys()
    dcp.load(state, checkpoint_id=str(tied.path), no_dist=True)
    assert model.head.weight is model.embed.weight
    assert equal(model.head.weight, tied.expected["head.weight"][1])
    assert equal(tied.load()["embed.weight"], tied.expected["head.weight"][1])


LAYOUT = """
shardinit: 1
name: layout
dtype: f32
mesh: {axes: {a: 2}}
modules:
  q: {shape: [8, 4], shard: [a], init: {normal: {std: 1}}}
  k: {shape: [4, 4], shard: [a], init: {normal: {std: 1}}}
layouts:
  fused:
    qk: {from: {concat: {axis: 0, of: [q, k]}}, shard: [a]}
"""


def test_dcp_export_follows_layout_and_only(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(LAYOUT)
    run_ok("gen", spec, "-o", tmp_path / "gen")
    whole = {path: words for path, (_, words) in reassemble(tmp_path / "gen").items()}
    run_ok("export", spec, "--to", "dcp", "-o", tmp_path / "fused", "--layout", "fused")
    state = {"qk": torch.zeros(12, 4)}
    dcp.load(state, checkpoint_id=str(tmp_path / "fused"), no_dist=True)
    assert equal(state["qk"], np.concatenate([whole["q"], whole["k"]]))
    run_ok("export", tmp_path / "gen", "--to", "dcp", "-o", tmp_path / "some", "--only", "k")
    assert list(pickle.loads((tmp_path / "some/.metadata").read_bytes()).state_dict_metadata) == ["k"]
    state = {"k": torch.zeros(4, 4)}
    dcp.load(state, checkpoint_id=str(tmp_path / "some"), no_dist=True)
    assert equal(state["k"], whole["k"])


# Several processes --------------------------------------------------------------


def locals_are_equal(state, whole):
    """Checks that each local shard has the bits that PyTorch's distribute_tensor gives it."""
    for path, tensor in state.items():
        wanted = torch.from_numpy(whole[path])
        if isinstance(tensor, DTensor):
            wanted = distribute_tensor(wanted, tensor.device_mesh, tensor.placements, src_data_rank=None).to_local()
            tensor = tensor.to_local()
        assert equal(tensor, wanted.numpy()), path


def load_on_meshes(folder, expected):
    world = dist.get_world_size()
    line = init_device_mesh("cpu", (world,))
    meshes = [(line, [Shard(0)]), (line, [Shard(1)]), (line, [Replicate()])]
    if world == 4:
        square = init_device_mesh("cpu", (2, 2))
        meshes += [(square, p) for p in ([Shard(0), Shard(1)], [Shard(0), Shard(0)], [Replicate(), Shard(1)])]
    whole = {path: words.view(f"<i{words.itemsize}") for path, (_, words) in expected.items()}
    for mesh, placements in meshes:
        state = {}
        for path, (dtype, words) in expected.items():
            fit = [p if getattr(p, "dim", 0) < words.ndim else Replicate() for p in placements]
            state[path] = distribute_tensor(torch.full(words.shape, 3).to(TORCH[dtype]), mesh, fit, src_data_rank=None)
        dcp.load(state, checkpoint_id=folder)
        locals_are_equal(state, whole)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_dcp_export_loads_in_several_processes(world, tmp_path):
    awkward = Exported(tmp_path, AWKWARD, "--mesh", "a=3,b=2")
    spawn_it(world, tmp_path, load_on_meshes, str(awkward.path), awkward.expected)


# No mesh divides the extents of the second model.
def toy_spec(d, ff, vocab, layers=2):
    layer = "".join(f"      {name}: {{shape: [{shape}], init: {{normal: {{std: 0.02}}}}}}\n" for name, shape in [
        ("up.weight", f"{ff}, {d}"), ("down.weight", f"{d}, {ff}"), ("norm.weight", d)])
    return (f"shardinit: 1\nname: toy\ndtype: f32\nmodules:\n  embed.weight: {{shape: [{vocab}, {d}], init: "
            f"{{normal: {{std: 1}}}}}}\n  layers:\n    repeat: {{layer: {layers}}}\n" + layer.replace("      ", "    "))


class Layer(nn.Module):
    def __init__(self, d, ff):
        super().__init__()
        self.norm = nn.LayerNorm(d, bias=False)
        self.up, self.down = nn.Linear(d, ff, bias=False), nn.Linear(ff, d, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class ToyModel(nn.Module):
    def __init__(self, d, ff, vocab, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(Layer(d, ff) for _ in range(layers))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return x @ self.embed.weight.T


def load_sharded(folder, expected, sizes, tensor_parallel):
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    whole = {path: words.view("<i4") for path, (_, words) in expected.items()}
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("first", "second"))
    meshes = [init_device_mesh("cpu", (4,)), square]  # FSDP2; HSDP.
    for mesh in [*meshes, None]:
        if mesh is None and not tensor_parallel:
            continue
        with torch.device("meta"):
            model = ToyModel(*sizes)
        if mesh is None:
            mesh = square["first"]
            for layer in model.layers:
                parallelize_module(layer, square["second"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        for module in [*model.layers, model]:
            fully_shard(module, mesh=mesh)
        model.to_empty(device="cpu")
        state = get_model_state_dict(model)
        assert state.keys() == whole.keys()
        dcp.load(state, checkpoint_id=folder)
        set_model_state_dict(model, state)
        locals_are_equal(dict(model.named_parameters()), whole)
        tokens = torch.arange(6)[None]
        model(tokens).square().mean().backward()


@pytest.mark.parametrize("sizes, tensor_parallel", [((16, 32, 64), True), ((7, 13, 23), False), ((10, 6, 23), True)],
                         ids=["even", "uneven", "uneven with TP"])
def test_dcp_export_loads_with_fsdp2_hsdp_and_tensor_parallel(sizes, tensor_parallel, tmp_path):
    toy = Exported(tmp_path, toy_spec(*sizes))
    spawn_it(4, tmp_path, load_sharded, str(toy.path), toy.expected, sizes, tensor_parallel)


def test_failed_dcp_export_leaves_no_metadata(tmp_path):
    """An export that fails before its data is synced leaves no `.metadata`."""
    (tmp_path / "spec.yaml").write_text(AWKWARD)
    result = run_tool("export", tmp_path / "spec.yaml", "--to", "dcp", "-o", tmp_path / "out",
                      wrap=["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e",
                            "inject=fdatasync:error=EIO:when=1"])
    assert result.returncode == 3
    assert sorted(os.listdir(tmp_path)) == ["spec.yaml"]
