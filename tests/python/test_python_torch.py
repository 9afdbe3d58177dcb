"""Loads checkpoints into PyTorch: state dicts, models on `meta`, FSDP2, DTensors on other meshes, DCP."""

import itertools
import json
import math

import numpy as np
import pytest

from clients import bits_of, client_of, gen_ok, write_checkpoint
from support import TINY, reassemble

torch = client_of("torch")

import shardinit
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Partial, _StridedShard
from torch_processes import spawn_it

MODEL = """
shardinit: 1
name: toy
dtype: f32
uneven: chunk
mesh: {axes: {a: 2, b: 2}}
rules: [{x: a}, {y: b}]
init: {n: {normal: {std: 0.1}}}
modules:
  embed.weight: {shape: [50, 24], axes: [x, y], init: n}
  layers:
    repeat: {layer: 2}
    up.weight: {shape: [40, 24], axes: [y, x], init: n}
    up.bias: {shape: [40], axes: [x], init: n}
    down.weight: {shape: [24, 40], axes: [x, y], init: n}
    scale: {shape: [24], axes: [y], init: n}
  head.weight: {shape: [50, 24], axes: [y, x], init: n}
"""


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(24, 40)
        self.down = nn.Linear(40, 24, bias=False)
        self.register_buffer("scale", torch.ones(24))

    def forward(self, x):
        return x + self.scale * self.down(torch.relu(self.up(x)))


class Toy(nn.Module):
    def __init__(self, tied=False, width=24, layer=Layer, layers=2):
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.layers = nn.ModuleList(layer() for _ in range(layers))
        self.head = nn.Linear(width, 50, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def on_meta(*arguments, **options):
    with torch.device("meta"):
        return Toy(*arguments, **options)


def words_of(tensor):
    tensor = tensor.detach().contiguous()
    return (
        tensor.view(
            {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        )
        .numpy()
        .view(f"<u{tensor.element_size()}")
    )


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return gen_ok(MODEL, tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module", params=["checkpoint", "spec"])
def source(request, toy):
    """Returns the same tensors, in files or generated in memory."""
    return toy if request.param == "checkpoint" else shardinit.open_spec(text=MODEL)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return gen_ok(TINY, tmp_path_factory.mktemp("tiny"))


# ---- Whole tensors.


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_state_dict_is_bit_exact(dtype, tmp_path):
    out = gen_ok(MODEL.replace("dtype: f32", f"dtype: {dtype}"), tmp_path, "--mesh", "a=3,b=2")
    wanted = reassemble(out)
    state = shardinit.torch.load_state_dict(out, verify=True)
    assert list(state) == list(shardinit.open(out).tensors)
    for path, tensor in state.items():
        assert (
            tensor.dtype
            == {
                "f32": torch.float32,
                "f64": torch.float64,
                "f16": torch.float16,
                "bf16": torch.bfloat16,
            }[dtype]
        )
        assert tensor.is_contiguous() and np.array_equal(words_of(tensor), wanted[path][1])
    assert list(shardinit.torch.load_state_dict(out, ["head.weight"])) == ["head.weight"]
    Toy().to(state["head.weight"].dtype).load_state_dict(state)  # PyTorch accepts the state dict


def test_state_dict_has_fp8_and_bool(tmp_path):
    words = np.arange(256, dtype=np.uint8).reshape(16, 16)
    whole = [(0, (slice(0, 16), slice(0, 16)))]
    out = write_checkpoint(
        tmp_path / "out",
        {
            "a": ("f8e4m3fn", words, whole),
            "b": ("f8e5m2", words, whole),
            "c": ("bool", words % 2, whole),
        },
        1,
    )
    state = shardinit.torch.load_state_dict(out)
    assert [t.dtype for t in state.values()] == [torch.float8_e4m3fn, torch.float8_e5m2, torch.bool]
    assert np.array_equal(words_of(state["a"]), words) and np.array_equal(words_of(state["b"]), words)
    assert state["a"].float()[7, 14] == 448  # 0x7e, which HDF5's conversion turns into NaN


def test_load_state_dict_reports_all_missing_keys(source):
    with pytest.raises(shardinit.MismatchError) as caught:
        shardinit.torch.load_state_dict(source, ["nope", "head.weight", "layers.9.scale"])
    assert caught.value.missing == ["nope", "layers.9.scale"]


# ---- Models in one process.


@pytest.mark.parametrize("meta", [True, False])
def test_load_into_fills_a_model(source, toy, meta):
    wanted = reassemble(toy)
    model = on_meta() if meta else Toy()
    places = {} if meta else {n: t.data_ptr() for n, t in model.state_dict().items()}
    model.head.weight.requires_grad_(False)
    assert shardinit.torch.load_into(model, source, verify=True) == ([], [])
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert np.array_equal(words_of(tensor), wanted[name][1])
        assert places.get(name, tensor.data_ptr()) == tensor.data_ptr()
        assert tensor.requires_grad == (not name.endswith("scale") and name != "head.weight")
        assert isinstance(tensor, nn.Parameter) == (not name.endswith("scale"))
    model(torch.arange(8)).sum().backward()


def test_load_into_checks_tied_parameters(source, tmp_path, monkeypatch):
    for model in (on_meta(tied=True), Toy(tied=True)):
        with pytest.raises(shardinit.MismatchError, match="head.weight: is tied to `embed.weight`"):
            shardinit.torch.load_into(model, source)
    text = "\n".join(line for line in MODEL.split("\n") if "head" not in line)
    one = gen_ok(text, tmp_path)
    for model in (on_meta(tied=True), Toy(tied=True)):
        if isinstance(source, shardinit.Spec):
            shardinit.torch.init_(model, shardinit.open_spec(text=text))
        else:
            shardinit.torch.load_into(model, one)
        assert model.head.weight is model.embed.weight
        assert np.array_equal(words_of(model.head.weight), reassemble(one)["embed.weight"][1])
    (tmp_path / "two").mkdir()
    text = MODEL.replace("[x, y], init: n}\n  layers", "[x, y], init: ones}\n  layers").replace(
        "[50, 24], axes: [y, x], init: n", "[50, 24], axes: [y, x], init: ones"
    )
    shardinit.torch.load_into(on_meta(tied=True), gen_ok(text, tmp_path / "two"))  # sharded differently, but equal
    monkeypatch.setattr(shardinit._torch_loading, "_COMPARE_BYTES", 700)  # compares 7 rows at a time
    shardinit.torch.init_(on_meta(tied=True), shardinit.open_spec(text=text))
    last = text.replace("axes: [y, x], init: ones", 'axes: [y, x], init: {expr: "where(row == 49, 2, 1)"}')
    with pytest.raises(shardinit.MismatchError, match="has other values"):
        shardinit.torch.init_(on_meta(tied=True), shardinit.open_spec(text=last))


def test_load_into_reports_all_mismatches_and_changes_nothing(source, toy):
    noun = "spec" if isinstance(source, shardinit.Spec) else "checkpoint"
    model = Toy()
    model.embed = nn.Embedding(51, 24)
    model.layers[0].up = nn.Linear(24, 40, bias=False)
    model.layers[1].down.to(torch.float64)
    model.extra = nn.Linear(2, 2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(shardinit.MismatchError) as caught:
        shardinit.torch.load_into(model, source)
    error = caught.value
    assert error.missing == ["extra.weight", "extra.bias"]
    assert error.unexpected == ["layers.0.up.bias"]
    assert error.mismatching == {
        "embed.weight": f"shape [50, 24] in the {noun}, [51, 24] here",
        "layers.1.down.weight": f"dtype f32 in the {noun}, torch.float64 here",
    }
    assert f"missing from the {noun} (2)" in str(error)
    assert all(path in str(error) for path in ("extra.bias", "layers.0.up.bias", "embed.weight"))
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    with pytest.raises(shardinit.MismatchError):
        shardinit.torch.load_into(model, source, strict=False)  # shapes must match even so
    model.embed = nn.Embedding(50, 24)
    result = shardinit.torch.load_into(model, source, strict=False, cast=True)
    assert result == (["extra.weight", "extra.bias"], ["layers.0.up.bias"])
    assert np.array_equal(
        bits_of(model.layers[1].down.weight.detach().numpy().astype("<f4")),
        reassemble(toy)["layers.1.down.weight"][1],
    )


def test_load_into_applies_prefix_and_rename(source, toy):
    wanted = reassemble(toy)
    layer = Layer()
    shardinit.torch.load_into(layer, source, prefix="layers.1.")
    assert np.array_equal(words_of(layer.up.bias), wanted["layers.1.up.bias"][1])
    wrapped = nn.Sequential(Toy())
    shardinit.torch.load_into(wrapped, source, rename=lambda name: name.removeprefix("0."))
    assert np.array_equal(words_of(wrapped[0].layers[1].scale), wanted["layers.1.scale"][1])


def test_load_into_reports_buffers_left_on_meta(source):
    model = on_meta()
    model.register_buffer("table", torch.empty(3, device="meta"), persistent=False)
    with pytest.raises(
        shardinit.MismatchError, match=r"(?s)table.*hint: .*`table` on a real device"
    ):
        shardinit.torch.load_into(model, source)
    assert model.head.weight.is_meta
    assert shardinit.torch.load_into(model, source, strict=False).missing_keys == ["table"]
    assert model.table.is_meta and not model.head.weight.is_meta  # no uninitialized memory


def tiny_llama():
    transformers = client_of("transformers")
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        vocab_size=8192,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # Computes its buffers.
    return model


def test_load_into_fills_a_transformers_llama(tiny):
    model = tiny_llama()
    assert shardinit.torch.load_into(model, tiny) == ([], [])
    wanted = reassemble(tiny)
    assert set(model.state_dict()) == set(wanted)
    for name, tensor in model.state_dict().items():
        assert np.array_equal(words_of(tensor), wanted[name][1])
    tokens = torch.randint(0, 8192, (4, 128), generator=torch.Generator().manual_seed(0))
    loss = model(tokens, labels=tokens).loss
    assert abs(loss.item() - math.log(8192)) < 0.1
    loss.backward()
    # A model made by PyTorch accepts the same state dict, with all keys matched.
    other = type(model)(model.config).to(torch.bfloat16)
    other.model.rotary_emb = model.model.rotary_emb
    other.load_state_dict(shardinit.torch.load_state_dict(tiny), strict=True)
    assert torch.equal(other(tokens).logits, model(tokens).logits)


# ---- Boxes of a DTensor.


def every_placement(dimensions):
    yield Replicate()
    for d in range(dimensions):
        yield Shard(d)
        for factor in (2, 3):
            yield _StridedShard(d, split_factor=factor)


def test_local_boxes_match_pytorch():
    from shardinit._torch_tensors import local_boxes as _local_boxes

    count = 0
    for shape in ((7,), (10, 3), (5, 4), (12, 12)):
        whole = torch.arange(math.prod(shape)).reshape(shape)
        for mesh in ((2,), (3,), (2, 2), (3, 2), (2, 5)):
            for placements in itertools.product(every_placement(len(shape)), repeat=len(mesh)):
                for coordinate in itertools.product(*map(range, mesh)):
                    part = whole
                    for size, at, placement in zip(mesh, coordinate, placements, strict=True):
                        if not isinstance(placement, Replicate):
                            part = placement._split_tensor(
                                part, size, with_padding=False, contiguous=True
                            )[0][at]
                    local_shape, boxes = _local_boxes(shape, mesh, coordinate, placements)
                    assert local_shape == tuple(part.shape), (shape, mesh, placements, coordinate)
                    local = torch.full(local_shape, -1)
                    for there, here in boxes:
                        local[here] = whole[there]
                    assert torch.equal(local, part), (shape, mesh, placements, coordinate)
                    count += 1
    assert count > 1000
    # A known case: FSDP2 over tensor parallelism, 8 rows on a 2-by-2 mesh.
    rows = [
        _local_boxes((8,), (2, 2), c, (_StridedShard(0, split_factor=2), Shard(0)))[1][0][0][
            0
        ].start
        for c in itertools.product(range(2), range(2))
    ]
    assert rows == [0, 4, 2, 6]


def test_partial_placements_are_rejected(tmp_path):
    from shardinit._torch_tensors import local_boxes as _local_boxes

    with pytest.raises(TypeError, match="Partial"):
        _local_boxes((8,), (2,), (0,), (Partial(),))


# ---- Several processes.


def whole_one(folder):
    return {
        path: torch.from_numpy(words.view({2: "<i2", 4: "<i4"}[words.itemsize]))
        for path, (_, words) in reassemble(folder).items()
    }


def locals_are_equal(dtensors, whole):
    """Asserts that every local shard has the bits that PyTorch's own distribute_tensor stores there."""
    for path, dtensor in dtensors.items():
        local = dtensor.to_local()
        expected = distribute_tensor(
            whole[path], dtensor.device_mesh, dtensor.placements, src_data_rank=None
        ).to_local()
        assert local.shape == expected.shape, path
        assert np.array_equal(words_of(local), words_of(expected)), (path, dtensor.placements)


def load_on_meshes(folders):
    meshes = [
        (
            init_device_mesh("cpu", (4,), mesh_dim_names=("x",)),
            [(Shard(0),), (Shard(1),), (Replicate(),)],
        ),
        (
            init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "y")),
            [
                (Shard(0), Shard(1)),
                (Shard(1), Shard(0)),
                (Shard(0), Shard(0)),
                (Replicate(), Shard(1)),
                (Shard(1), Replicate()),
                (_StridedShard(0, split_factor=2), Shard(0)),
            ],
        ),
    ]
    for folder in folders:
        whole = whole_one(folder)
        checkpoint = shardinit.open(folder)
        for mesh, all_placements in meshes:
            for placements in all_placements:
                state, direct = {}, {}
                for path, info in checkpoint.tensors.items():
                    fit = [
                        p if getattr(p, "dim", 0) < len(info.global_shape) else Replicate()
                        for p in placements
                    ]
                    fit = [
                        Shard(0) if isinstance(p, _StridedShard) and info.global_shape[0] % 4 else p
                        for p in fit
                    ]
                    direct[path] = shardinit.torch.load_dtensor(checkpoint, path, mesh, fit)
                    empty = torch.full_like(direct[path].to_local(), float("nan"))
                    state[path] = DTensor.from_local(
                        empty,
                        mesh,
                        fit,
                        run_check=False,
                        shape=direct[path].shape,
                        stride=direct[path].stride(),
                    )
                locals_are_equal(direct, whole)
                dcp.load(state, storage_reader=shardinit.torch.StorageReader(folder, verify=True))
                locals_are_equal(state, whole)
    # Each process reads only its own quarter of the rows, since the checkpoint is sharded by rows too.
    reader = shardinit.open(folders[0])
    mesh = meshes[0][0]
    local = shardinit.torch.load_dtensor(reader, "lm_head.weight", mesh, [Shard(0)]).to_local()
    assert reader.bytes_read == local.numel() * 2 == reader.info("lm_head.weight").nbytes // 4


def test_dtensors_load_on_other_meshes(tiny, tmp_path):
    other = gen_ok(TINY, tmp_path, "--mesh", "fsdp=3,tensor=1", "--set", "name=other")
    spawn_it(4, tmp_path, load_on_meshes, [str(tiny), str(other)])


def train_sharded(folder):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    whole = whole_one(folder)
    tokens = torch.arange(16).reshape(2, 8)
    reference = Toy()
    shardinit.torch.load_into(reference, folder)
    wanted = nn.functional.cross_entropy(reference(tokens).flatten(0, 1), tokens.flatten()).item()
    line = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for mesh, meta in ((line, True), (line, False), (square, True)):
        model = on_meta() if meta else Toy()
        for layer in model.layers:
            if mesh is square:
                parallelize_module(
                    layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()}
                )
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        checkpoint = shardinit.open(folder)
        shardinit.torch.load_into(model, checkpoint)
        assert checkpoint.bytes_read < 0.9 * checkpoint.bytes
        sharded = {n: p for n, p in model.named_parameters() if isinstance(p, DTensor)}
        assert len(sharded) == 8
        if mesh is square:
            assert any(
                isinstance(p, _StridedShard) for p in sharded["layers.0.up.weight"].placements
            )
        locals_are_equal(sharded, whole)
        for name, buffer in model.named_buffers():
            assert np.array_equal(words_of(buffer), words_of(whole[name]))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        assert abs(loss.item() - wanted) < 1e-4  # the loss of one process in one step
        loss.backward()
        optimizer.step()
        after = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        assert after.item() < loss.item()
        # Loading through DCP, with the names of a train state.
        state = {"model": model.state_dict()}
        dcp.load(state, storage_reader=shardinit.torch.StorageReader(folder, prefix="model."))
        locals_are_equal({n: p for n, p in state["model"].items() if isinstance(p, DTensor)}, whole)


def test_load_into_fills_a_meta_model_under_fsdp2(toy, tmp_path):
    spawn_it(4, tmp_path, train_sharded, str(toy))


def count_made():
    """Records the bytes of each part that specs generate in this process, which ends with its test."""
    made, plain = [], shardinit.Spec.generate

    def recording(self, path, slices=None, **options):
        array = plain(self, path, slices, **options)
        made.append(array.nbytes)
        return array

    shardinit.Spec.generate = recording
    return made


def init_sharded(folder):
    from torch.distributed.fsdp import fully_shard

    whole = whole_one(folder)
    made = count_made()
    for shape, names in (((4,), ("dp",)), ((2, 2), ("replicate", "shard"))):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        model = tiny_llama()
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        made.clear()
        assert shardinit.torch.init_(model, TINY) == ([], [])
        state = model.state_dict()
        assert set(state) == set(whole) and all(isinstance(t, DTensor) for t in state.values())
        locals_are_equal(state, whole)
        # Exactly this rank's part of every tensor.
        part = sum(t.numel() for t in whole.values()) * 2 // shape[-1]
        assert sum(made) == sum(t.to_local().nbytes for t in state.values()) == part
        loss = model(torch.arange(16)[None], labels=torch.arange(16)[None]).loss
        assert abs(loss.item() - math.log(8192)) < 0.3
        loss.backward()


def test_init_fills_a_meta_llama_under_fsdp2(tiny, tmp_path):
    client_of("transformers")
    spawn_it(4, tmp_path, init_sharded, str(tiny))


def load_under_fsdp1(folder):
    from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp
    from torch.distributed.fsdp import StateDictType

    whole = whole_one(folder)
    sharded = StateDictType.SHARDED_STATE_DICT
    mesh = init_device_mesh("cpu", (2,))
    for orig in (False, True):
        def wrap_model(**more):
            options = {"use_orig_params": orig, "device_id": torch.device("cpu"), **more}
            model = Toy()
            model.head = Fsdp(model.head, **options)
            return Fsdp(model, **options)

        def is_filled(model):
            with Fsdp.summon_full_params(model, writeback=False):
                for name, tensor in model.named_parameters():
                    there = whole[name.replace("_fsdp_wrapped_module.", "")]
                    assert torch.equal(tensor.detach().view(there.dtype), there), name

        model = wrap_model()
        assert shardinit.torch.load_into(model, folder) == ([], [])
        is_filled(model)
        # FSDP frees the gathered parameters again, so no array may pin their memory.
        model = wrap_model()
        with Fsdp.summon_full_params(model):
            assert shardinit.torch.load_into(model.module, folder) == ([], [])
        is_filled(model)
        model = wrap_model(device_mesh=mesh)
        with Fsdp.state_dict_type(model, sharded):
            assert shardinit.torch.load_into(model, folder) == ([], [])
        is_filled(model)
        model = wrap_model()
        message = "head.weight: is a ShardedTensor in its state_dict\\(\\)(.|\\n)*hint: .*FULL_STATE_DICT.*device_mesh"
        with Fsdp.state_dict_type(model, sharded), pytest.raises(shardinit.MismatchError, match=message):
            shardinit.torch.load_into(model, folder)


def test_load_into_fills_a_model_under_fsdp1(toy, tmp_path):
    spawn_it(2, tmp_path, load_under_fsdp1, str(toy))


def test_loaded_tensors_can_be_freed(toy):
    for tensor in (*shardinit.torch.load_state_dict(toy).values(), *Toy().parameters()):
        tensor.detach().untyped_storage().resize_(0)
    model = Toy()
    shardinit.torch.load_into(model, toy)
    for tensor in model.parameters():
        tensor.detach().untyped_storage().resize_(0)


def test_init_ignores_a_mesh_that_does_not_divide_the_model(tmp_path):
    """A large model's spec works with small variables although its mesh does not divide them, as values do not depend
    on the mesh."""
    path = tmp_path / "spec.yaml"
    path.write_text(MODEL.replace("uneven: chunk\n", "").replace("{a: 2, b: 2}", "{a: 7, b: 2}"))
    with pytest.raises(shardinit.SpecError, match="mesh axis `a` .7. does not divide dimension 0 of `embed.weight`"):
        shardinit.open_spec(path)
    wanted = Toy()
    shardinit.torch.init_(wanted, shardinit.open_spec(text=MODEL))
    model = Toy()
    shardinit.torch.init_(model, path)
    with shardinit.torch.from_spec(path):
        built = Toy()
    for made in (model, built):
        for (name, a), b in zip(wanted.state_dict().items(), made.state_dict().values(), strict=True):
            assert torch.equal(a, b), name
    name = "embed.weight"
    assert np.array_equal(shardinit.generate(path, name), wanted.state_dict()[name].numpy())
    # Other mistakes have their own messages.
    with pytest.raises(shardinit.SpecError, match="^--set:1:28: error: unknown name `nothing`") as caught:
        shardinit.torch.init_(Toy(), path, set={"init.n": {"normal": {"std": "nothing"}}})
    assert "divide" not in str(caught.value)


def test_init_applies_overrides(tmp_path):
    spec = shardinit.open_spec(text=MODEL)
    with pytest.raises(TypeError, match="open already"):
        shardinit.torch.init_(Toy(), spec, set={"seed": 1})
    path = tmp_path / "spec.yaml"
    path.write_text(MODEL)
    one, other = Toy(), Toy()
    shardinit.torch.init_(one, path, set={"seed": 1})
    shardinit.torch.load_into(other, gen_ok(MODEL, tmp_path, "--set", "seed=1"))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_storage_reader_loads_in_one_process(toy, tmp_path):
    wanted = reassemble(toy)
    for source in (toy, shardinit.open_spec(text=MODEL)):
        state = {name: torch.zeros_like(tensor) for name, tensor in Toy().state_dict().items()}
        dcp.load(state, storage_reader=shardinit.torch.StorageReader(source), no_dist=True)
        assert all(np.array_equal(words_of(t), wanted[n][1]) for n, t in state.items())
    # DCP reads the checkpoint that dcp.load names, or else the reader's own.
    other = gen_ok(MODEL, tmp_path, "--set", "seed=1")
    reader = shardinit.torch.StorageReader(toy)
    for chosen, folder in ((other, other), (None, other), (str(toy), toy), (None, toy)):
        state = {name: torch.zeros_like(tensor) for name, tensor in Toy().state_dict().items()}
        dcp.load(state, checkpoint_id=chosen, storage_reader=reader, no_dist=True)
        there = reassemble(folder)
        assert all(np.array_equal(words_of(t), there[n][1]) for n, t in state.items())
    assert not np.array_equal(reassemble(other)["embed.weight"][1], wanted["embed.weight"][1])
    with pytest.raises(dcp.CheckpointException, match="nope"):
        dcp.load(
            {"nope": torch.zeros(3)},
            storage_reader=shardinit.torch.StorageReader(toy),
            no_dist=True,
        )
    assert shardinit.torch.StorageReader.validate_checkpoint_id(toy)
    assert not shardinit.torch.StorageReader.validate_checkpoint_id(tmp_path)
    manifest = json.loads((toy / "manifest.json").read_text())
    metadata = shardinit.torch.StorageReader(toy).read_metadata()
    assert {n: tuple(m.size) for n, m in metadata.state_dict_metadata.items()} == {
        t["path"]: tuple(t["global_shape"]) for t in manifest["tensors"]
    }
