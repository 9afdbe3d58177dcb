"""`shardinit.torch.init_model` turns a class into a sharded model. Its values equal the spec's, or the constructor's
with the engine torch_cpu, on any mesh. No process makes more than its shards."""

import math
import warnings

import numpy as np
import pytest

from clients import client_of, gen_ok, like_torch_cpu
from support import TINY

torch = client_of("torch")

import shardinit
import torch.distributed as dist
from test_python_torch import MODEL, Toy, count_made, locals_are_equal, spawn_it, tiny_llama, words_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

init_model = shardinit.torch.init_model
NAMES = {1: ("shard",), 2: ("replicate", "shard")}


class Block(nn.Module):
    """Has parameters drawn before they become parameters, and parameters drawn by PyTorch's own layers."""

    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.mix = nn.Parameter(torch.randn(width, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("steps", torch.zeros(3))

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x)))) + x @ self.mix


class Net(Toy):
    def __init__(self, width=24, tied=False):
        super().__init__(tied, width, lambda: Block(width), 3)


class Rotary(Net):
    """Has tensors computed by the constructor that no state dict contains."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", 1 / 10000 ** (torch.arange(0, 24, 2) / 24), persistent=False)
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 3)]
        self.masks = {"causal": torch.ones(4, 4).tril()}
        self.kept = [self.head.weight]


def constructed(make, seed, dtype=torch.float32):
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        torch.set_default_dtype(dtype)
        try:
            return make()
        finally:
            torch.set_default_dtype(torch.float32)


def is_like(model, state):
    held = model.state_dict()
    assert list(held) == list(state)
    for path, tensor in held.items():
        assert tensor.dtype == state[path].dtype and np.array_equal(words_of(tensor), words_of(state[path])), path


def spec_state(captured):
    with captured.spec() as spec:
        return {path: torch.from_numpy(spec.generate(path)) for path in spec}


def raised(error, *arguments, **options):
    with pytest.raises(error) as caught:
        init_model(*arguments, **options)
    return str(caught.value)


# ---- One process.


@like_torch_cpu()
@pytest.mark.parametrize("seed", [0, 7, -1, 2**63 + 5])
@pytest.mark.parametrize("make", [Net, lambda: Net(tied=True), Rotary, Toy], ids=["net", "tied", "rotary", "toy"])
def test_init_model_equals_the_constructor(make, seed):
    is_like(init_model(make, engine="torch_cpu", seed=seed), constructed(make, seed).state_dict())


@like_torch_cpu()
def test_init_model_applies_a_default_dtype():
    model = init_model(Net, engine="torch_cpu", seed=2, dtype=torch.bfloat16)
    is_like(model, constructed(Net, 2, torch.bfloat16).state_dict())
    assert model.head.weight.dtype == torch.bfloat16 and torch.get_default_dtype() == torch.float32


def test_init_model_equals_the_captured_spec():
    model = init_model(Net)
    is_like(model, spec_state(shardinit.capture.torch(Net)))
    assert model.layers[0].mix.std().item() == pytest.approx(0.02, rel=0.2)
    model(torch.arange(8)).sum().backward()


@pytest.mark.parametrize("form", ["file", "open", "mapping"])
def test_init_model_equals_a_given_spec(form, tmp_path):
    yaml = client_of("yaml")
    path = tmp_path / "spec.yaml"
    path.write_text(MODEL)
    spec = {"file": path, "open": shardinit.open_spec(path), "mapping": yaml.safe_load(MODEL)}[form]
    with shardinit.open_spec(path) as opened:
        is_like(init_model(Toy, spec), {p: torch.from_numpy(opened.generate(p)) for p in Toy().state_dict()})
    if form == "file":
        seeded = shardinit.generate(path, "head.weight", set={"seed": 3})
        assert np.array_equal(init_model(Toy, spec, set={"seed": 3}).head.weight.detach(), seeded)
        wide = init_model(lambda: nn.Sequential(Toy().double()), spec, cast=True, rename=lambda n: n.removeprefix("0."))
        assert wide[0].head.weight.dtype == torch.float64


def test_state_outside_the_state_dict_is_the_constructors():
    before = torch.get_rng_state()
    model, real = init_model(Rotary), Rotary()
    torch.set_rng_state(before)
    assert torch.equal(model.table, real.table) and torch.equal(model.masks["causal"], real.masks["causal"])
    assert model.rates == real.rates and model.kept[0] is model.head.weight
    state = torch.get_rng_state()
    init_model(Rotary)
    assert torch.equal(torch.get_rng_state(), state)  # the constructor draws from another stream


def test_tied_parameters_stay_tied():
    model = init_model(lambda: Net(tied=True))
    assert model.head.weight is model.embed.weight


def test_init_model_fills_a_transformers_model():
    transformers = client_of("transformers")
    config = tiny_llama().config
    model = init_model(lambda: transformers.LlamaForCausalLM(config).to(torch.bfloat16), TINY)
    with shardinit.open_spec(TINY, set={"uneven": "chunk"}) as spec:
        for path, tensor in model.state_dict().items():
            assert np.array_equal(words_of(tensor), spec.generate(path).view("<u2")), path
    loss = model(torch.arange(16)[None], labels=torch.arange(16)[None]).loss
    assert abs(loss.item() - math.log(8192)) < 0.3


# ---- Several processes.


class Largest(TorchDispatchMode):
    """Records the largest number of elements of any tensor with memory that is made in its block."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if type(each) in (torch.Tensor, nn.Parameter) and not each.is_meta:
                self.elements = max(self.elements, each.numel())
        return made


def on_meshes():
    warnings.simplefilter("error")
    whole = {"philox4x32": spec_state(shardinit.capture.torch(Net, seed=5)),
             "torch_cpu": constructed(Net, 5).state_dict()}
    made = count_made()
    for shape in ((4,), (2, 2), (1, 4), (4, 1)):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=NAMES[len(shape)])
        for engine, wanted in whole.items():
            made.clear()
            with Largest() as largest:
                model = init_model(Net, mesh=mesh, engine=engine, seed=5)
            state = {p: t for p, t in model.state_dict().items() if isinstance(t, DTensor)}
            assert set(state) == {path for path, _ in Net().named_parameters()}
            locals_are_equal(state, wanted)
            assert all(torch.equal(layer.steps, torch.zeros(3)) for layer in model.layers)
            assert sum(made) == sum(t.to_local().nbytes for t in state.values()) + 3 * 12
            # 4 processes hold up to 13 of 50 rows; no tensor with memory ever has all rows of a sharded tensor.
            assert largest.elements <= math.ceil(50 / shape[-1]) * 24
            assert all(isinstance(each, FSDPModule) for each in (model, *model.layers))
        model(torch.arange(8)).sum().backward()
        torch.optim.AdamW(model.parameters()).step()


@like_torch_cpu()
def test_init_model_shards_over_meshes(tmp_path):
    spawn_it(4, tmp_path, on_meshes)


def on_two_dimensions():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tensor"))

    def shard(model):
        for layer in model.layers:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            fully_shard(parallelize_module(layer, mesh["tensor"], plan), mesh=mesh["fsdp"])
        fully_shard(model, mesh=mesh["fsdp"])

    wanted = constructed(Rotary, 3).state_dict()
    model = init_model(lambda: without_kept(Rotary()), shard=shard, engine="torch_cpu", seed=3)
    state = {p: t for p, t in model.state_dict().items() if isinstance(t, DTensor)}
    assert state["layers.0.up.weight"].placements[1] == Shard(0) and state["layers.0.up.weight"].device_mesh.ndim == 2
    for path, tensor in state.items():
        assert torch.equal(tensor.full_tensor(), wanted[path]), path
    assert torch.equal(model.table, Rotary().table)
    # Sharding must not leave tensors without values.
    with pytest.raises(shardinit.CaptureError, match="kept: it is made of parameters"):
        init_model(Rotary, shard=shard)


def without_kept(model):
    del model.kept
    return model


@like_torch_cpu()
def test_init_model_accepts_a_parallelize_function(tmp_path):
    spawn_it(4, tmp_path, on_two_dimensions)


def with_mistakes():
    three = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("a", "b", "c"))
    assert "the mesh has 3 dimensions, and fully_shard takes one" in raised(
        shardinit.MismatchError, Net, mesh=three)
    assert init_model(Net, mesh=three["a", "b"]).head.weight.placements[1] == Shard(0)
    group = dist.new_group([0, 1])
    if dist.get_rank() > 1:
        two = dist.device_mesh.DeviceMesh("cpu", [0, 1])
        assert raised(shardinit.MismatchError, Net, mesh=two) == (
            f"process {dist.get_rank()} is not in the mesh, which has 2 of 4 processes: make a mesh of all of them, "
            "or call init_model() in its processes alone")
    else:
        two = dist.device_mesh.DeviceMesh("cpu", [0, 1])
        assert init_model(Net, mesh=two).head.weight.to_local().shape == (25, 24)
    assert group is not None
    # A layer in two lists, and a layer that shares its parameter with another.
    model = init_model(Shared, mesh=three["c"], engine="torch_cpu", seed=1)
    assert model.lists[0][0] is model.again[0] and isinstance(model.again[0], FSDPModule)
    assert not any(isinstance(each, FSDPModule) for each in model.tied)
    assert model.tied[0].weight is model.tied[1].weight
    wanted = constructed(Shared, 1).state_dict()
    for path, tensor in model.state_dict().items():
        assert torch.equal(tensor.full_tensor(), wanted[path]), path


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        first = nn.Linear(6, 6)
        self.lists = nn.ModuleList([nn.ModuleList([first, nn.ReLU()]), nn.ModuleDict({"a": nn.Linear(6, 3)})])
        self.again = nn.ModuleList([first])
        self.tied = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.tied[1].weight = self.tied[0].weight


@like_torch_cpu()
def test_init_model_checks_meshes_and_shared_layers(tmp_path):
    spawn_it(4, tmp_path, with_mistakes)


# ---- Mistakes.


class Needs(nn.Module):
    def __init__(self, config):
        super().__init__()


class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))
        self.register_buffer("features", torch.randn(4), persistent=False)
        self.noise = {"of numpy": [torch.from_numpy(np.random.rand(3))]}
        self.own = torch.randn(3, generator=torch.Generator().manual_seed(1))


class View(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))
        self.half = self.weight[:2]


ONES = {"shardinit": 1, "name": "ones", "dtype": "f32", "modules": {"weight": {"shape": [4], "init": "ones"}}}


def test_init_model_rejects_wrong_arguments():
    assert raised(TypeError, Needs) == (
        "init_model() calls Needs() without arguments: missing a required argument: 'config'; give it a function that "
        "has them, as `lambda: Needs(config)`")
    assert raised(TypeError, nn.Linear(2, 2)) == (
        "init_model() makes the model itself: give the class Linear, or a function that calls it; init_() fills a "
        "model "
        "that is there already")
    assert "and str cannot be called: give a class or a function" in raised(TypeError, "Model")
    assert "`mesh` is a torch.distributed.device_mesh.DeviceMesh, not tuple: make one with init_device_mesh()" in \
        raised(TypeError, Net, mesh=(2, 2))
    assert 'which has its own: give `set={"seed": 7}`' in raised(TypeError, Net, ONES, seed=7)
    assert "which has its own" in raised(TypeError, Net, ONES, engine="torch_cpu")
    assert "give `seed` for another seed" in raised(TypeError, Net, set={"seed": 7})
    assert "unknown engine `x`" in raised(ValueError, Net, engine="x")
    for spec in (None, ONES):
        assert "the constructor returned int, not a `torch.nn.Module`" in raised(
            shardinit.CaptureError, lambda: 3, spec)
        assert "no shape before the model has seen" in raised(shardinit.CaptureError, lambda: nn.LazyLinear(3), spec)
        with pytest.raises(shardinit.CaptureError) as caught:
            init_model(View, spec)
        assert list(caught.value.problems) == ["half"]
    with pytest.raises(shardinit.CaptureError) as caught:
        init_model(Drawn, ONES)
    assert list(caught.value.problems) == ["features", "noise"] and (
        "it is drawn at random, and in no state dict: make it a parameter or persistent buffer" in str(caught.value))

    def fails():
        raise OSError("no such data")

    assert "no such data" in raised(shardinit.CaptureError, fails) and raised(OSError, fails, ONES) == "no such data"
    assert nn.Module.__init__.__module__ == "torch.nn.modules.module"


def test_init_model_rejects_the_spec_of_another_model(tmp_path):
    with pytest.raises(shardinit.MismatchError) as caught:
        init_model(Net, ONES)
    assert "layers.2.norm.bias" in caught.value.missing and caught.value.unexpected == ["weight"]
    assert str(caught.value).endswith(
        "  hint: the spec is of another model: leave it out, and this one's constructor is captured; or say in "
        "`rename` how the names differ")
    with pytest.raises(shardinit.SpecError, match=r"shardinit.torch.load_into\(\) takes it"):
        init_model(Toy, gen_ok(MODEL, tmp_path))


def test_init_model_reports_what_cannot_be_captured():
    class Sorted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8).sort().values)

    with pytest.raises(shardinit.CaptureError) as caught:
        init_model(Sorted)
    assert list(caught.value.problems) == ["weight"]
