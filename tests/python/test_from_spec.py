"""`from_spec` makes models without memory for their parameters and fills them when the block
ends."""

import copy
import math
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from clients import client_of, gen_ok
from support import TINY, reassemble

torch = client_of("torch")

import shardinit
from test_python_torch import MODEL, Toy, count_made, locals_are_equal, spawn_it, whole_one, words_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import _StridedShard

from_spec = shardinit.torch.from_spec


def patched():
    """Returns the functions of PyTorch that from_spec replaces within its block."""
    return nn.Module.__init__, nn.Parameter.__dict__["__new__"], nn.Parameter.__deepcopy__


class Rotating(Toy):
    """A module with a buffer outside its state dict."""

    def __init__(self, tied=False):
        super().__init__(tied)
        self.register_buffer("table", torch.arange(5.0).exp(), persistent=False)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return gen_ok(MODEL, tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def spec(toy):
    return toy.parent / "spec.yaml"


@pytest.fixture(autouse=True)
def pytorch_is_as_it_was():
    # PyTorch's compiler, which other tests in this process run, also replaces a function.
    before = patched()
    yield
    assert patched() == before
    assert not hasattr(nn.Module, "__deepcopy__")


def assert_filled_from(model, checkpoint):
    wanted = reassemble(checkpoint)
    state = model.state_dict()
    assert set(state) == set(wanted)
    for name, tensor in state.items():
        assert np.array_equal(words_of(tensor), wanted[name][1]), name


def test_from_spec_fills_a_model_when_its_block_ends(spec, toy):
    before = torch.get_rng_state()
    with from_spec(spec) as built:
        model = Rotating()
        model.head.weight.requires_grad_(False)
        assert all(p.is_meta for p in model.parameters()) and not built.results
        assert not any(b.is_meta for b in model.buffers())
    assert torch.equal(torch.get_rng_state(), before)  # The global generator was not used.
    assert_filled_from(model, toy)
    assert torch.equal(model.table, torch.arange(5.0).exp())
    assert list(built.results) == [model] and built.results[model] == ([], [])
    assert not model.head.weight.requires_grad and model.embed.weight.requires_grad
    assert {type(p) for p in model.parameters()} == {nn.Parameter}
    model(torch.arange(8)).sum().backward()


def test_from_spec_allocates_no_memory_in_its_block(spec):
    class Stop(Exception):
        pass

    with pytest.raises(Stop), from_spec(spec):
        nn.ModuleList(nn.Linear(1 << 16, 1 << 16) for _ in range(64))  # Needs 1 TB if allocated.
        raise Stop


def test_from_spec_keeps_tied_parameters_tied(tmp_path):
    text = "\n".join(line for line in MODEL.split("\n") if "head" not in line)
    out = gen_ok(text, tmp_path)

    class Shared(Toy):
        """Two modules share a parameter that was created outside both."""

        def __init__(self):
            super().__init__()
            weight = nn.Parameter(torch.empty(50, 24))
            self.embed.weight = weight
            self.head.weight = weight

    for make in (lambda: Toy(tied=True), Shared):
        with from_spec(tmp_path / "spec.yaml"):
            model = make()
        assert model.head.weight is model.embed.weight
        assert np.array_equal(words_of(model.head.weight), reassemble(out)["embed.weight"][1])


def test_from_spec_keeps_parameters_made_before_its_block(spec, toy):
    table = nn.Embedding(50, 24)
    place = table.weight.data_ptr()
    other = nn.Linear(3, 3)
    values = other.weight.clone()
    with from_spec(spec):
        model = Toy()
        model.embed.weight = table.weight
        assert not table.weight.is_meta and not other.weight.is_meta
    assert_filled_from(model, toy)
    assert model.embed.weight is table.weight and table.weight.data_ptr() == place
    assert torch.equal(other.weight, values)


def test_from_spec_fills_nothing_after_an_error(spec):
    with pytest.raises(ZeroDivisionError), from_spec(spec) as built:
        model = Toy()
        1 / 0
    assert not built.results and all(p.is_meta for p in model.parameters())
    assert not nn.Linear(2, 2).weight.is_meta


def test_from_spec_rejects_a_model_that_does_not_fit(spec):
    with pytest.raises(shardinit.MismatchError) as caught, from_spec(spec):
        model = Toy()
        model.embed = nn.Embedding(51, 24)
        model.extra = nn.Linear(2, 2)
        model.layers[0].up = nn.Linear(24, 40, bias=False)
    assert caught.value.missing == ["extra.weight", "extra.bias"]
    assert caught.value.unexpected == ["layers.0.up.bias"]
    assert caught.value.mismatching == {"embed.weight": "shape [50, 24] in the spec, [51, 24] here"}
    assert all(p.is_meta for p in model.parameters())
    with from_spec(spec, strict=False) as built:
        model = Toy()
        model.extra = nn.Linear(2, 2)
        model.layers[0].up = nn.Linear(24, 40, bias=False)
    result = built.results[model]
    assert result == (["extra.weight", "extra.bias"], ["layers.0.up.bias"])
    assert result.on_meta == ["extra.weight", "extra.bias"] and not model.embed.weight.is_meta


def test_from_spec_options_set_rename_prefix_and_cast_work(spec, toy, tmp_path):
    seeded = gen_ok(MODEL, tmp_path, "--set", "seed=1")
    with from_spec(spec, set={"seed": 1}):
        model = Toy()
    assert_filled_from(model, seeded)
    with from_spec(spec, rename=lambda name: name.removeprefix("0.")):
        wrapped = nn.Sequential(Toy())
    assert_filled_from(wrapped[0], toy)
    with from_spec(spec, prefix="layers.1."):
        layer = type(model.layers[0])()
    assert np.array_equal(words_of(layer.up.bias), reassemble(toy)["layers.1.up.bias"][1])
    with from_spec(spec, cast=True):
        wide = Toy().to(torch.float64)
    assert torch.equal(wide.embed.weight.to(torch.float32), shardinit.torch.load_state_dict(toy)["embed.weight"])
    (tmp_path / "layout.yaml").write_text("""
shardinit: 1
name: pair
dtype: f32
modules: {head.weight: {shape: [50, 24], init: {normal: {std: 0.1}}}}
layouts: {linear: {weight: head.weight}}
""")
    with from_spec(tmp_path / "layout.yaml", layout="linear"):
        head = nn.Linear(24, 50, bias=False)
    assert np.array_equal(head.weight.detach(), shardinit.generate(tmp_path / "layout.yaml", "head.weight"))
    with pytest.raises(TypeError, match="open already"), from_spec(shardinit.open_spec(spec), set={"seed": 1}):
        pass
    with pytest.raises(shardinit.SpecError, match=r"load_into\(\) takes it"), from_spec(toy):
        pass


def test_from_spec_restores_the_default_device(spec):
    with from_spec(spec):
        with torch.device("cpu"):
            model = Rotating()
    assert {t.device.type for t in [*model.parameters(), *model.buffers()]} == {"cpu"}
    default = torch.get_default_device()
    with from_spec(spec, device="cpu:0"):
        assert torch.get_default_device() == torch.device("cpu:0")
        model = Rotating()
    assert torch.get_default_device() == default
    # The default device does not affect a tensor that is read before its type changes.
    with torch.device("meta"), from_spec(spec, cast=True, device="cpu"):
        model = Toy().to(torch.float64)
    assert {t.device.type for t in [*model.parameters(), *model.buffers()]} == {"cpu"}


def test_from_spec_keeps_the_device_of_each_parameter(spec, toy, monkeypatch):
    from shardinit import _torch_from_spec, _torch_loading

    with from_spec(spec):
        model = Toy()
        block = _torch_from_spec._blocks[threading.get_ident()]
        assert set(block.devices) == set(model.parameters())
        assert set(block.devices.values()) == {torch.device("cpu")}
        head = model.head.weight
        block.devices[head] = torch.device("cuda:1")  # A constructor could do this.
        model.head = copy.deepcopy(model.head)
        assert model.head.weight is not head
        head = model.head.weight
        places, plain = {}, _torch_loading.materialize

        def recording(tensor, device):
            places[tensor] = device
            return plain(tensor, "cpu")

        monkeypatch.setattr(_torch_loading, "materialize", recording)
    assert places.pop(head) == torch.device("cuda:1")
    assert set(places) == set(model.parameters()) - {head}
    assert set(places.values()) == {torch.device("cpu")}
    assert_filled_from(model, toy)


def open_model_spec(model):
    """Opens a spec of the model's state dict."""
    lines = [f"  {n}: {{shape: {list(t.shape)}, init: {{normal: {{std: 1}}}}}}" for n, t in model.state_dict().items()]
    return shardinit.open_spec(text="\n".join(["shardinit: 1", "name: one", "dtype: f32", "modules:", *lines]))


def test_from_spec_keeps_the_parameter_objects(spec, toy):
    class Marked(nn.Parameter):
        pass

    class Keeping(Toy):
        def __init__(self, tied=False):
            super().__init__(tied)
            self.saved = [self.embed.weight]
            self.embed.weight._no_weight_decay = True
            self.calls = []
            self.handle = self.embed.weight.register_hook(lambda grad: self.calls.append("hook"))
            self.embed.weight.register_post_accumulate_grad_hook(lambda p: self.calls.append(p))
            self.part = self.head.weight[:2]

    def goes(model, kept, optimizer):
        assert all(a is b for a, b in zip(kept, model.parameters(), strict=True))
        assert_filled_from(model, toy)
        weight = model.embed.weight
        assert model.saved[0] is weight and weight._no_weight_decay
        before = [p.detach().clone() for p in kept]
        model(torch.arange(8)).square().sum().backward()
        assert len(model.calls) == 2 and model.calls[0] == "hook" and model.calls[1] is weight
        model.handle.remove()
        optimizer.step()
        assert not any(torch.equal(a, b) for a, b in zip(before, kept, strict=True))
        model(torch.arange(8)).sum().backward()
        assert len(model.calls) == 3

    with from_spec(spec):
        model = Keeping()
        kept = list(model.parameters())
        optimizer = torch.optim.AdamW(kept, lr=0.1)
    goes(model, kept, optimizer)
    with torch.device("meta"):
        model = Keeping()
        model.head.weight = Marked(model.head.weight.detach())
        alias = next(model.buffers())
    kept = list(model.parameters())
    shardinit.torch.load_into(model, toy)
    assert type(model.head.weight) is Marked and alias is next(model.buffers())
    goes(model, kept, torch.optim.AdamW(kept, lr=0.1))


def test_from_spec_works_with_weak_references():
    with open_model_spec(nn.LSTM(3, 4, 2)) as opened:
        with from_spec(opened):
            model = nn.LSTM(3, 4, 2)  # An LSTM holds weak references to its parameters.
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = [p.detach().clone() for p in model.parameters()]
        assert all(a is b for a, b in zip(model._flat_weights, model.parameters(), strict=True))
        assert all(a() is b for a, b in zip(model._flat_weight_refs, model.parameters(), strict=True))
        for name, tensor in model.state_dict().items():
            assert np.array_equal(tensor.numpy(), opened.generate(name)), name
        model(torch.ones(3, 1, 3))[0].sum().backward()
        optimizer.step()
        assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_from_spec_copies_attributes_to_a_replaced_parameter(spec, toy, monkeypatch):
    def refusing(one, other):
        raise RuntimeError("Expected no weakrefs")

    monkeypatch.setattr(torch._C, "_swap_tensor_impl", refusing)
    with from_spec(spec):
        model = Toy()
        old = model.embed.weight
        old._no_weight_decay = True
    assert_filled_from(model, toy)
    assert model.embed.weight is not old and model.embed.weight._no_weight_decay


def test_from_spec_fills_the_outermost_modules(spec, toy):
    class Holder(nn.Module):
        model: nn.Module

    holder = Holder()  # It works like a LightningModule, whose configure_model() makes the model.
    with from_spec(spec) as built:
        nn.Linear(7, 7)  # This layer is discarded.
        loss = nn.CrossEntropyLoss()  # It has no tensors.
        holder.model = torch.nn.Sequential(torch.nn.Identity(), Toy())[1]
        cycle = nn.Linear(5, 5)
        cycle.mine = [cycle]
        gone = weakref.ref(cycle)
        del cycle
    assert list(built.results) == [holder.model] and gone() is None and loss is not None
    assert_filled_from(holder.model, toy)
    with from_spec(spec) as built:
        one, two = Toy(), Toy()
    assert list(built.results) == [one, two]
    assert_filled_from(two, toy)
    with pytest.raises(shardinit.MismatchError, match="into Linear"), from_spec(spec):
        one, _ = Toy(), nn.Linear(3, 3)
    assert one.embed.weight.is_meta  # Neither is filled.
    with pytest.raises(shardinit.MismatchError, match="made no model that is still there"), from_spec(spec):
        loss = nn.CrossEntropyLoss()


def test_from_spec_fills_wrapped_and_copied_models(spec, toy):
    with from_spec(spec):
        compiled = torch.compile(Toy())
    assert_filled_from(compiled._orig_mod, toy)
    with from_spec(spec) as built:
        model = Toy()
        copied = copy.deepcopy(model)
    assert list(built.results) == [model, copied]
    assert_filled_from(copied, toy)
    assert copied.embed.weight is not model.embed.weight
    layered = """
shardinit: 1
name: encoder
dtype: f32
modules:
  layers:
    repeat: {layer: 2}
    self_attn.in_proj_weight: {shape: [24, 8], init: {normal: {std: 1}}}
    self_attn.in_proj_bias: {shape: [24], init: zeros}
    self_attn.out_proj.weight: {shape: [8, 8], init: {normal: {std: 1}}}
    self_attn.out_proj.bias: {shape: [8], init: zeros}
    linear1.weight: {shape: [16, 8], init: {normal: {std: 1}}}
    linear1.bias: {shape: [16], init: zeros}
    linear2.weight: {shape: [8, 16], init: {normal: {std: 1}}}
    linear2.bias: {shape: [8], init: zeros}
    norm1.weight: {shape: [8], init: ones}
    norm1.bias: {shape: [8], init: zeros}
    norm2.weight: {shape: [8], init: ones}
    norm2.bias: {shape: [8], init: zeros}
"""
    with shardinit.open_spec(text=layered) as opened:
        with from_spec(opened):  # The encoder copies a layer that is then discarded.
            model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)
        for name, tensor in model.state_dict().items():
            assert np.array_equal(tensor.numpy(), opened.generate(name)), name


class Averaged(nn.Module):
    """Keeps copies of the model, of a part, and of a copy, as trainers do to average weights."""

    def __init__(self, make):
        super().__init__()
        self.model = make()
        self.second = [copy.deepcopy(self.model)]
        self.part = [copy.deepcopy(self.model.layers)]
        self.inner = [copy.deepcopy({"it": self.part[0][1]})["it"]]


@pytest.mark.parametrize("rename", [None, lambda name: name.removeprefix("model.")])
def test_from_spec_gives_copies_the_values_of_their_originals(rename, spec, tmp_path):
    layered = """
shardinit: 1
name: layered
dtype: f32
modules:
  model:
    layers: {repeat: {layer: 3}, weight: {shape: [4, 4], init: {normal: {std: 1}}}, bias: {shape: [4], init: {normal: {std: 1}}}}
    norm:
      weight: {shape: [4], init: {normal: {std: 1}}}
      bias: {shape: [4], init: zeros}
      running_mean: {shape: [4], init: {normal: {std: 1}}}
      running_var: {shape: [4], init: ones}
      num_batches_tracked: {shape: [], dtype: i64, init: zeros}
"""

    def make_it():
        model = nn.Module()
        model.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        model.norm = nn.BatchNorm1d(4)
        model.layers[2].weight = model.layers[1].weight if rename is None else model.layers[2].weight
        return model

    text = layered if rename is None else layered.replace("\n  model:\n", "\n")
    if rename is None:  # The spec has the tied tensor only once.
        text = text.replace("weight: {shape: [4, 4]", "weight: {shape: [4, 4], when: layer < 2")
    with shardinit.open_spec(text=text) as opened:
        outside = nn.Linear(4, 4)
        with from_spec(opened, rename=rename, strict=rename is None) as built:
            of = Averaged(make_it)
            taken = copy.deepcopy(outside)
            both = nn.Sequential(), copy.copy(of.model)
        assert torch.equal(taken.weight, outside.weight) and taken.weight is not outside.weight
        assert len(built.results) == 4
        for copied, like in ((of.second[0], of.model), (both[1], of.model), (of.part[0], of.model.layers),
                             (of.inner[0], of.model.layers[1])):
            wanted = like.state_dict()
            assert copied.state_dict().keys() == wanted.keys()
            for name, tensor in copied.state_dict().items():
                assert not tensor.is_meta and torch.equal(tensor, wanted[name]), name
        weight = of.model.layers[1].weight
        path = "model.layers.1.weight" if rename is None else "layers.1.weight"
        assert np.array_equal(weight.detach().numpy(), opened.generate(path))
        assert of.inner[0].weight is not weight
        assert (of.part[0][2].weight is of.part[0][1].weight) == (rename is None)
        # The model around it no longer exists, so its names are unknown.
        with pytest.raises(shardinit.MismatchError, match="into Linear"), from_spec(opened, rename=rename):
            alone = copy.deepcopy(make_it().layers[1])
        assert alone.weight.is_meta


def test_from_spec_blocks_cannot_nest_and_belong_to_one_thread(spec, toy):
    with pytest.raises(RuntimeError, match="in another one"), from_spec(spec):
        with from_spec(spec):
            pass
    here, there = threading.Event(), threading.Event()
    found = []

    def other_of():
        here.wait()
        found.append(nn.Linear(3, 3))
        with from_spec(spec, set={"seed": 1}):
            found.append(Toy())
            there.set()
            here.wait()

    thread = threading.Thread(target=other_of)
    thread.start()
    with from_spec(spec):
        model = Toy()
        here.set()
        there.wait()
        assert not found[0].weight.is_meta
    thread.join()
    assert_filled_from(model, toy)
    assert not torch.equal(found[1].embed.weight, model.embed.weight)


def test_from_spec_fills_a_transformers_model(tmp_path):
    transformers = client_of("transformers")
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=768, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=4, head_dim=32, vocab_size=8192, tie_word_embeddings=False,
    )
    with from_spec(TINY):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    assert_filled_from(model, gen_ok(TINY, tmp_path))
    other = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    assert [n for n, _ in model.named_buffers()] == [n for n, _ in other.named_buffers()] != []
    for a, b in zip(model.buffers(), other.buffers(), strict=True):
        assert a.dtype == torch.float32 and torch.equal(a, b)
    other.load_state_dict(model.state_dict())
    tokens = torch.randint(0, 8192, (4, 128), generator=torch.Generator().manual_seed(0))
    assert torch.equal(other(tokens).logits, model(tokens).logits)
    assert abs(model(tokens, labels=tokens).loss.item() - math.log(8192)) < 0.1


# ---- Partitions of ZeRO-3.


def test_consecutive_elements_are_split_into_boxes():
    from shardinit._torch_tensors import _boxes_in_row

    for shape in ((), (1,), (7,), (3, 4), (4, 1), (2, 3, 4), (3, 1, 2, 2), (0, 3), (3, 0)):
        whole = np.arange(math.prod(shape)).reshape(shape)
        for start in range(whole.size + 1):
            for stop in range(start, whole.size + 1):
                parts = []
                for slices, extent in _boxes_in_row(shape, start, stop):
                    assert whole[slices].shape == extent and whole[slices].size
                    parts.append(whole[slices].ravel())
                assert len(parts) <= max(1, 2 * len(shape) - 1)
                assert np.array_equal(np.concatenate([*parts, []]), whole.ravel()[start:stop])


def test_deepspeed_partitions_that_cannot_be_filled_give_a_reason():
    from shardinit._torch_tensors import why_not_filled

    def parameter(status="NOT_AVAILABLE", swapper=None, second=None, **more):
        return SimpleNamespace(ds_status=SimpleNamespace(name=status), nvme_swapper=swapper,
                               ds_secondary_tensor=second, ds_tensor=torch.zeros(3), **more)

    assert why_not_filled(parameter()) == "" == why_not_filled(torch.zeros(3))
    assert why_not_filled(parameter("AVAILABLE", swapper=1)) == ""  # The whole parameter is here.
    assert "NVMe" in why_not_filled(parameter(swapper=1))
    assert "second" in why_not_filled(parameter(second=torch.zeros(3)))
    assert "deepspeed.initialize()" in why_not_filled(parameter(_z3_optimizer=1))


# ---- Several processes.


def build_sharded(spec, folder):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    whole = whole_one(folder)
    tokens = torch.arange(16).reshape(2, 8)
    reference = Toy()
    shardinit.torch.load_into(reference, folder)
    made = count_made()
    line = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for mesh in (line, square):
        made.clear()
        with from_spec(spec):
            model = Rotating()
            for layer in model.layers:
                if mesh is square:
                    parallelize_module(
                        layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()}
                    )
                fully_shard(layer, mesh=mesh["dp"])
            fully_shard(model, mesh=mesh["dp"])
            kept = list(model.parameters())
            optimizer = torch.optim.AdamW(kept, lr=0.1)
            assert not made and all(p.is_meta for p in model.parameters())
        assert all(a is b for a, b in zip(kept, model.parameters(), strict=True))
        sharded = {n: p for n, p in model.named_parameters() if isinstance(p, DTensor)}
        assert len(sharded) == 8
        if mesh is square:
            assert any(isinstance(p, _StridedShard) for p in sharded["layers.0.up.weight"].placements)
        locals_are_equal(sharded, whole)
        buffers = dict(model.named_buffers())
        assert torch.equal(buffers.pop("table"), torch.arange(5.0).exp())
        for name, buffer in buffers.items():
            assert np.array_equal(words_of(buffer), words_of(whole[name]))
        # Only this rank's part of each tensor was generated.
        assert sum(made) == sum(p.to_local().nbytes for p in sharded.values()) + sum(
            b.nbytes for b in buffers.values())
        wanted = reference(tokens)
        assert torch.allclose(model(tokens), wanted, atol=1e-5)
        model(tokens).square().sum().backward()
        before = [p.to_local().clone() for p in sharded.values()]
        optimizer.step()
        for a, p in zip(before, sharded.values(), strict=True):
            assert not p.to_local().numel() or not torch.equal(a, p.to_local())
        assert not torch.allclose(model(tokens), wanted, atol=1e-3)


def test_from_spec_fills_models_that_are_sharded_in_its_block(spec, toy, tmp_path):
    spawn_it(4, tmp_path, build_sharded, str(spec), str(toy))
