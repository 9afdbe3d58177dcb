"""Makes random modules on random meshes with one call of `init_model` and compares each rank's shards with the
constructor's bits.

PyTorch's fake process group lets a single process act as each rank of a mesh in turn. A module is data, so that
Hypothesis shrinks it to the faulty part and prints it."""

import os

# Must precede the import of JAX, which reads it once.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import collections
import contextlib
import math

import numpy as np
from clients import bits_of, client_of, like_torch_cpu
from generated import SEED, generated, given
from hypothesis import note
from hypothesis import strategies as st

torch, jax = client_of("torch"), client_of("jax")

import shardinit
import torch.distributed as dist
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from shardinit.capture._compare import ULPS
from test_python_torch import words_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

COUNTS = collections.Counter()
WIDTHS = st.integers(1, 9)

# A part of a module is (kind, numbers …) and has an input and an output width.
PARTS = st.one_of(
    st.tuples(st.sampled_from(["linear", "table", "drawn", "scaled", "orthogonal"]), WIDTHS, WIDTHS),
    st.tuples(st.sampled_from(["norm", "step", "rotary", "rates", "frozen"]), WIDTHS),
    st.tuples(st.just("conv"), WIDTHS, st.sampled_from([1, 3])))
MODELS = st.fixed_dictionaries({
    "layers": st.lists(st.lists(PARTS, min_size=1, max_size=2), max_size=3), "rest": st.lists(PARTS, max_size=2),
    "tied": st.booleans(), "again": st.booleans(),
    "dtype": st.sampled_from(["float32", "float32", "bfloat16", "float64"])})
MESHES = st.sampled_from([(1,), (2,), (3,), (4,), (2, 2), (1, 3), (2, 1), (8,)])


class Part(nn.Module):
    def __init__(self, kind, *n):
        super().__init__()
        match kind:
            case "linear":
                self.of = nn.Linear(*n)
            case "table":
                self.of = nn.Embedding(*n)
            case "conv":
                self.of = nn.Conv1d(n[0], 2, n[1])
            case "drawn":
                self.weight = nn.Parameter(torch.randn(n))
            case "scaled":
                self.weight = nn.Parameter(torch.rand(n) * 0.5 - 0.25)
            case "orthogonal":
                self.weight = nn.Parameter(torch.empty(n, dtype=torch.float32))
                nn.init.trunc_normal_(self.weight, std=0.02)
            case "norm":
                self.of = nn.BatchNorm1d(n[0])
            case "step":
                self.register_buffer("step", torch.full(n, 3))
            case "rotary":
                self.weight = nn.Parameter(torch.ones(n))
                self.register_buffer("table", torch.arange(n[0]).float().exp(), persistent=False)
            case "rates":
                self.rates = torch.linspace(0, 1, n[0]).tolist()
                self.weight = nn.Parameter(torch.zeros(n))
            case "frozen":
                self.weight = nn.Parameter(torch.full(n, -0.0), requires_grad=False)


class Model(nn.Module):
    def __init__(self, layers, rest, tied, again, dtype):
        super().__init__()
        self.first = nn.Linear(5, 7, bias=False)
        self.layers = nn.ModuleList(nn.ModuleList(Part(*each) for each in layer) for layer in layers)
        self.rest = nn.ModuleDict({f"p{n}": Part(*each) for n, each in enumerate(rest)})
        self.last = nn.Linear(5, 7, bias=False)
        if tied:
            self.last.weight = self.first.weight
        if again and layers:
            self.again = nn.ModuleList([self.layers[0]])


@contextlib.contextmanager
def as_rank(rank, world):
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def constructed(model, dtype, seed):
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        torch.set_default_dtype(dtype)
        try:
            return Model(**model)
        finally:
            torch.set_default_dtype(torch.float32)


def local_rows(tensor, mesh):
    """Returns this rank's rows of a tensor, which `chunk` gives by the definition of FSDP2."""
    at, count = mesh.get_coordinate()[-1], mesh.shape[-1]
    rows = math.ceil(tensor.shape[0] / count)
    return tensor.detach()[at * rows : (at + 1) * rows]


@generated(14)
@given(model=MODELS, shape=MESHES, seed=st.integers(0, 2**64 - 1))
def has_the_shards_of_the_constructor(model, shape, seed):
    note(f"SHARDINIT_GENERATED_SEED={SEED}")
    dtype = getattr(torch, model["dtype"])
    real = constructed(model, dtype, seed)
    spec = shardinit.capture.torch(lambda: Model(**model), engine="torch_cpu", seed=seed, dtype=dtype).spec()
    world = math.prod(shape)
    for rank in sorted({0, world - 1, seed % world}):
        with as_rank(rank, world):
            # PyTorch caches results by mesh, so a mesh equal to another rank's would get that rank's results.
            COUNTS["meshes"] += 1
            names = tuple(f"{COUNTS['meshes']}_{d}" for d in range(len(shape)))
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
            made = shardinit.torch.init_model(
                lambda: Model(**model), mesh=mesh, engine="torch_cpu", seed=seed, dtype=dtype)
            wanted, held = real.state_dict(), made.state_dict()
            assert list(held) == list(wanted)
            parameters = dict(made.named_parameters(remove_duplicate=False))
            for path, tensor in held.items():
                assert isinstance(tensor, DTensor) == (path in parameters), path
                local, whole, said = tensor, wanted[path], shardinit.torch.load_state_dict(spec, [path])[path]
                if isinstance(tensor, DTensor):
                    local, whole, said = tensor.to_local(), local_rows(whole, mesh), local_rows(said, mesh)
                assert (local.dtype, tensor.shape) == (whole.dtype, wanted[path].shape), path
                assert np.array_equal(words_of(local), words_of(said)), (path, rank)
                # PyTorch does not round 64-bit normal numbers correctly (shardinit-values(7)).
                if local.dtype != torch.float64:
                    assert np.array_equal(words_of(local), words_of(whole)), (path, rank)
                elif local.numel():
                    off = words_of(local).view("i8") - words_of(whole).view("i8")
                    assert np.abs(off).max() <= ULPS, (path, rank)
            for name, buffer in real.named_buffers():
                assert torch.equal(made.get_buffer(name), buffer), name
            assert {n: p.requires_grad for n, p in made.named_parameters()} == {
                n: p.requires_grad for n, p in real.named_parameters()}
    COUNTS["torch"] += 1


TREES = st.dictionaries(st.sampled_from("abcd"), st.tuples(
    st.sampled_from(["uniform", "normal", "constant", "iota"]), st.integers(1, 4), st.integers(1, 4)), min_size=1)


def make_tree_function(tree):
    def make(key):
        made = {}
        for n, (name, (kind, rows, columns)) in enumerate(tree.items()):
            shape, at = (8 * rows, columns), jax.random.fold_in(key, n)
            made[name] = {
                "uniform": lambda: jax.random.uniform(at, shape, minval=-1),
                "constant": lambda: jax.numpy.full(shape, 0.3),
                "normal": lambda: jax.random.normal(at, shape, jax.numpy.bfloat16),
                "iota": lambda: jax.numpy.arange(float(math.prod(shape))).reshape(shape)}[kind]()
        return made

    return make


@generated(20)
@given(tree=TREES, shape=st.sampled_from([(8, 1), (4, 2), (2, 4), (1, 1), (2, 2)]), seed=st.integers(0, 2**63 - 1),
       spec=st.sampled_from([P(), P("x"), P(("x", "y")), P("y", None), None]))
def has_the_arrays_of_the_function(tree, shape, seed, spec):
    note(f"SHARDINIT_GENERATED_SEED={SEED}")
    mesh = Mesh(np.array(jax.devices()[: math.prod(shape)]).reshape(shape), ("x", "y"))
    made = shardinit.jax.init_model(make_tree_function(tree), mesh, spec, seed=seed, engine="jax_threefry")
    real = make_tree_function(tree)(jax.random.key(seed))
    assert made.keys() == real.keys()
    for name, array in made.items():
        assert array.sharding.is_equivalent_to(NamedSharding(mesh, spec or P()), 2)
        for shard in array.addressable_shards:
            assert np.array_equal(bits_of(shard.data), bits_of(real[name])[shard.index]), (name, shard.index)
    COUNTS["jax"] += 1


@like_torch_cpu()
def test_init_model_gives_random_modules_the_constructors_bits():
    has_the_shards_of_the_constructor()
    assert COUNTS["torch"] >= 14


def test_init_model_gives_random_jax_trees_the_functions_arrays():
    has_the_arrays_of_the_function()
    assert COUNTS["jax"] >= 20
