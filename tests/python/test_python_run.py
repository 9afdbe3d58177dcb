"""Programs run by JAX on 8 devices make the bits of `gen`, and no device makes more than its shards."""

import json
import os
import subprocess
import sys

# JAX reads these once, when it is imported.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import math
import re
import socket

import numpy as np
import pytest

from clients import FLAX, PACKAGE, bits_of, client_of, gen_ok
from documents import displays
from support import ROOT, TINY, reassemble, run_json, run_ok, sha256_of

jax = client_of("jax")

import jax.numpy as jnp
import shardinit
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from shardinit import _jax_program

MIXTRAL = ROOT / "configs/mixtral-8x7b.yaml"
SMALL = {"vars.d": 64, "vars.ff": 128, "vars.layers": 1, "vars.heads": 4, "vars.kv_heads": 2,
         "vars.head_dim": 16, "vars.vocab": 512, "vars.experts": 2}


def make_mesh(*shape, names=("fsdp", "tensor")):
    return Mesh(np.array(jax.devices()[: math.prod(shape)]).reshape(shape), names)


EIGHT = {"fsdp": make_mesh(4, 2), "experts": make_mesh(2, 2, 2, names=("fsdp", "expert", "tensor"))}


def assert_equal(arrays, wanted):
    assert list(arrays) == list(wanted)
    for path, array in arrays.items():
        assert array.shape == wanted[path].shape
        for shard in array.addressable_shards:
            assert np.array_equal(bits_of(shard.data), bits_of(wanted[path])[shard.index]), path


def expected_tensors(spec, **options):
    with shardinit.open_spec(spec, **options) as opened:
        return {path: opened.read(path) for path in opened.tensors}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Returns the tensors of the tiny model as `gen` writes them."""
    folder = gen_ok(TINY, tmp_path_factory.mktemp("tiny"))
    return {path: words for path, (_, words) in reassemble(folder).items()}


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forms")
    run_ok("program", TINY, "--kinds", "-o", folder / "kinds")
    run_ok("program", TINY, "-o", folder / "tiny.mlir")
    return {"spec": TINY, "kinds": folder / "kinds", "module": folder / "tiny.mlir"}


@pytest.mark.parametrize("form", ["spec", "kinds", "module"])
def test_run_computes_the_bits_of_gen_on_eight_devices(tiny, forms, form):
    mesh = EIGHT["fsdp"]
    arrays = shardinit.jax.run(forms[form], mesh)
    assert_equal(arrays, {path: tiny[path] for path in arrays})
    assert set(arrays) == set(tiny)
    assert arrays["lm_head.weight"].sharding == NamedSharding(mesh, P(("tensor",), ("fsdp",)))
    assert arrays["lm_head.weight"].dtype == jnp.bfloat16


def test_run_computes_the_bits_of_gen_on_one_device(tiny, forms):
    one = make_mesh(1, 1)
    arrays = shardinit.jax.run(forms["kinds"], one)
    assert_equal(arrays, {path: tiny[path] for path in arrays})
    module = forms["kinds"].parent / "one.mlir"
    run_ok("program", TINY, "--mesh", "fsdp=1,tensor=1", "--only", "**.layers.0.mlp.**", "-o", module)
    again = shardinit.jax.run(module, make_mesh(1, names=("x",)))
    assert len(again) == 3
    assert_equal(again, {path: tiny[path] for path in again})


def test_run_makes_a_mixture_of_experts_in_another_layout():
    mesh = EIGHT["experts"]
    for layout in (None, "hub"):
        # 2 experts cannot be divided among the 4 ranks of the spec's own axis `expert`.
        arrays = shardinit.jax.run(MIXTRAL, mesh, set=SMALL, layout=layout)
        assert_equal(arrays, expected_tensors(MIXTRAL, set=SMALL, layout=layout, mesh=dict(mesh.shape)))


def test_run_accepts_other_shardings(tiny, forms):
    mesh = make_mesh(8, names=("x",))
    nested = shardinit.jax.run(TINY, mesh, lambda info: NamedSharding(mesh, P("x")), nested=True)
    table = nested["model"]["embed_tokens"]["weight"]
    assert_equal({"t": table}, {"t": tiny["model.embed_tokens.weight"]})
    assert table.sharding.spec == P("x")
    for form in forms.values():
        chosen = {"lm_head.weight": NamedSharding(mesh, P(None, "x"))}
        made = shardinit.jax.run(form, mesh, chosen, keys=chosen)
        assert made["lm_head.weight"].sharding == chosen["lm_head.weight"]
        assert_equal(made, {"lm_head.weight": tiny["lm_head.weight"]})


# Limits of JAX's own shardings do not matter if the caller passes others.
UNEVEN = """
shardinit: 1
name: uneven
dtype: f32
uneven: chunk
mesh: {axes: {x: 4}, slices: {x: 2}, devices: [0, 1, 3, 2]}
init: {n: {normal: {std: 0.5}}}
modules:
  vector: {shape: [7], shard: [x], init: n}
  matrix: {shape: [8, 3], shard: [x], init: n, dtype: f64}
"""


def test_run_of_uneven_shards_needs_padding_or_shardings(tmp_path):
    (tmp_path / "spec.yaml").write_text(UNEVEN)
    spec, mesh = tmp_path / "spec.yaml", make_mesh(8, names=("x",))
    with pytest.raises(shardinit.SpecError, match="`vector` has 7 elements in 8 parts"):
        shardinit.jax.run(spec, mesh)
    # Tensors are padded for this mesh's sizes, not for the spec's.
    made = shardinit.jax.run(spec, mesh, set={"uneven": "pad"}, keys=["vector"])
    padded = expected_tensors(spec, set={"uneven": "pad", "mesh": {"axes": {"x": 8}}})["vector"]
    assert made["vector"].shape == (8,) and made["vector"].sharding.spec == P(("x",))
    assert_equal(made, {"vector": padded})
    with pytest.raises(shardinit.MismatchError) as caught:
        shardinit.jax.run(spec, mesh, NamedSharding(mesh, P()))
    assert caught.value.mismatching == {"matrix": "is f64, but jax_enable_x64 is off"}
    jax.config.update("jax_enable_x64", True)
    try:
        each = {"vector": NamedSharding(mesh, P()), "matrix": NamedSharding(mesh, P("x"))}
        assert_equal(shardinit.jax.run(spec, mesh, each), expected_tensors(spec))
    finally:
        jax.config.update("jax_enable_x64", False)


def llama(params, tokens):
    """Computes logits of the tiny Llama, without positions."""

    def norm(x, layer):
        return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * layer["weight"]

    def linear(x, layer):
        return x @ layer["weight"].astype(jnp.float32).T

    model = params["model"]
    x = model["embed_tokens"]["weight"].astype(jnp.float32)[tokens]
    causal = jnp.tril(jnp.ones((tokens.shape[1], tokens.shape[1]), bool))
    for layer in model["layers"].values():
        y, heads = norm(x, layer["input_layernorm"]), layer["self_attn"]
        q, k, v = (linear(y, heads[name]).reshape(*y.shape[:2], -1, 32)
                   for name in ("q_proj", "k_proj", "v_proj"))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, jnp.repeat(k, 2, 2)) / math.sqrt(32)
        seen = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
        y = jnp.einsum("bhqk,bkhd->bqhd", seen, jnp.repeat(v, 2, 2)).reshape(x.shape)
        x += linear(y, heads["o_proj"])
        y, mlp = norm(x, layer["post_attention_layernorm"]), layer["mlp"]
        x += linear(jax.nn.silu(linear(y, mlp["gate_proj"])) * linear(y, mlp["up_proj"]), mlp["down_proj"])
    return linear(norm(x, model["norm"]), params["lm_head"])


def test_training_step_on_eight_devices():
    mesh = EIGHT["fsdp"]
    params = shardinit.jax.run(TINY, mesh, nested=True)
    listed = {each["path"]: each["sha256"] for each in run_json("digest", TINY)["tensors"]}
    held = {".".join(key.key for key in keys): np.asarray(leaf)
            for keys, leaf in jax.tree_util.tree_flatten_with_path(params)[0]}
    assert {path: sha256_of(array) for path, array in held.items()} == listed

    tokens = np.arange(8 * 17).reshape(8, 17) * 7919 % 8192
    tokens = jax.device_put(tokens, NamedSharding(mesh, P("fsdp")))

    def loss_of(params):
        chosen = jax.nn.log_softmax(llama(params, tokens[:, :-1]))
        return -jnp.mean(jnp.take_along_axis(chosen, tokens[:, 1:, None], -1))

    @jax.jit
    def step(params):
        loss, gradients = jax.value_and_grad(loss_of)(params)
        return loss, jax.tree.map(lambda value, g: (value - 0.5 * g).astype(value.dtype), params, gradients)

    losses = []
    for _ in range(3):
        loss, params = step(params)
        losses.append(float(loss))
    assert abs(losses[0] - math.log(8192)) < 0.1  # the untrained model knows nothing
    assert losses[2] < losses[1] < losses[0]
    assert len(params["lm_head"]["weight"].sharding.device_set) == 8


def compile_kinds(spec, mesh, **options):
    """Returns tensors, shard shapes and compiled program for each distinct kind."""
    program = _jax_program.open_program(spec, mesh, False, options.get("set", ()), options.get("layout"))
    shardings = {path: NamedSharding(mesh, P(*(axes or None for axes in cut)))
                 for path, cut in program.partitions(mesh).items()}
    seen = {}
    for each in program.compiled(mesh, shardings):
        shards = [(program.info(path), shardings[path].shard_shape(program.info(path).global_shape))
                  for path in each.paths]
        seen.setdefault(id(each.program), (shards, each.program))
    return list(seen.values()), program


@pytest.mark.parametrize("spec, mesh, options", [
    (TINY, "fsdp", {}),
    (TINY, "fsdp", {"layout": "torchtitan"}),
    (TINY, "fsdp", {"layout": "maxtext"}),
    (MIXTRAL, "experts", {"set": SMALL}),
    (ROOT / "configs/llama3.1-405b.yaml", "fsdp", {}),
], ids=["tiny", "torchtitan", "maxtext", "mixtral", "405b"])
def test_run_computes_only_each_devices_shard(spec, mesh, options):
    """Programs are only compiled, since the largest tensor of 405B has 2 billion elements."""
    compiled, program = compile_kinds(spec, EIGHT[mesh], **options)
    for shards, each in compiled:
        text = each.as_text()
        assert not re.search(r"all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter", text)
        # No operation has more elements than the shard, so none has the whole tensor.
        sizes = [math.prod(map(int, shape.split(","))) for shape in re.findall(r"\w\[([\d,]+)\]", text)]
        assert max(sizes) <= max(max(math.prod(shape) for _, shape in shards), 4)
        memory = each.memory_analysis()
        assert memory.output_size_in_bytes == sum(
            math.prod(shape) * info.numpy_dtype.itemsize for info, shape in shards)
        assert memory.temp_size_in_bytes <= 256
    if "405b" in str(spec):
        assert len(program.tensors) == 1137 and len(compiled) <= 9


def test_another_seed_does_not_recompile():
    first = shardinit.jax.run(TINY, EIGHT["fsdp"])
    before = _jax_program._compile.cache_info().misses
    other = shardinit.jax.run(TINY, EIGHT["fsdp"], set={"seed": 5})
    assert _jax_program._compile.cache_info().misses == before
    assert not np.array_equal(bits_of(first["lm_head.weight"]), bits_of(other["lm_head.weight"]))
    assert_equal(other, expected_tensors(TINY, set={"seed": 5}))


def start_child(code, *arguments, **env):
    here = os.path.dirname(os.path.abspath(__file__))
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env={**os.environ, "PYTHONPATH": f"{PACKAGE}:{here}", **env})


def child_output(child):
    out, errors = child.communicate(timeout=300)
    assert child.returncode == 0, errors
    return out


def test_next_process_uses_the_compilation_cache(tmp_path):
    code = """
import json, sys, jax, numpy, shardinit
counted = {"cache_hits": 0, "cache_misses": 0}
def count(event, **_):
    name = event.rsplit("/", 1)[1]
    if name in counted:
        counted[name] += 1
jax.monitoring.register_event_listener(count)
mesh = jax.sharding.Mesh(numpy.array(jax.devices()).reshape(4, 2), ("fsdp", "tensor"))
shardinit.jax.run(sys.argv[1], mesh)
print(json.dumps(counted))
"""
    first, second = (json.loads(child_output(start_child(code, TINY, JAX_COMPILATION_CACHE_DIR=str(tmp_path))))
                     for _ in range(2))
    assert first["cache_hits"] == 0 and first["cache_misses"] == 8
    assert second == {"cache_hits": 8, "cache_misses": 0}


def test_run_works_in_two_processes():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = """
import sys, jax, numpy
jax.distributed.initialize(f"127.0.0.1:{sys.argv[2]}", 2, int(sys.argv[3]))
import shardinit
mesh = jax.sharding.Mesh(numpy.array(jax.devices()).reshape(4, 2), ("fsdp", "tensor"))
assert len(jax.devices()) == 8 and len(jax.local_devices()) == 4
paths = ["lm_head.weight", "model.norm.weight", "model.layers.1.mlp.down_proj.weight"]
arrays = shardinit.jax.run(sys.argv[1], mesh, keys=paths)
with shardinit.open_spec(sys.argv[1]) as spec:
    for path, array in arrays.items():
        whole = spec.read(path)
        assert len(array.addressable_shards) == 4
        for shard in array.addressable_shards:
            assert numpy.asarray(shard.data).tobytes() == whole[shard.index].tobytes(), path
"""
    flags = "--xla_force_host_platform_device_count=4"
    children = [start_child(code, TINY, port, number, XLA_FLAGS=flags) for number in (0, 1)]
    for child in children:
        child_output(child)


def test_manual_example_runs_a_program_without_shardinit(tmp_path, tiny):
    code, = (text for text in displays(ROOT / "man/shardinit-program.1") if "compile_and_load" in text)
    assert "import shardinit" not in code and len(code.splitlines()) <= 15
    run_ok("program", TINY, "-o", tmp_path / "tiny.mlir")
    code += """
import re
names = re.findall('jax.result_info = "([^"]*)"', open("tiny.mlir").read())
numpy.savez("shards.npz", **{f"{name}/{i}": numpy.asarray(part).view("<u2")
                             for name, parts in zip(names, tensors, strict=True) for i, part in enumerate(parts)})
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"})
    assert done.returncode == 0, done.stderr
    shards = np.load(tmp_path / "shards.npz")
    with shardinit.open_spec(TINY) as spec:
        assert {name.split("/")[0] for name in shards.files} == set(spec.tensors)
        for path in spec.tensors:
            for rank in range(4):
                assert np.array_equal(shards[f"{path}/{rank}"], bits_of(spec.read_local(path, rank))), path


MLP = """
shardinit: 1
name: mlp
dtype: f32
mesh: {axes: {data: 2, tensor: 2}}
init: {n: {truncated_normal: {std: 0.1}}}
modules:
  layers:
    repeat: {layer: 3}
    weight: {shape: [16, 16], shard: [data, tensor], init: n}
    bias: {shape: [16], init: {uniform: {low: -0.1, high: 0.1}}}
"""


@pytest.fixture
def mlp(tmp_path):
    path = tmp_path / "mlp.yaml"
    path.write_text(MLP)
    return path


def test_run_fills_an_equinox_skeleton(mlp):
    eqx = client_of("equinox")
    mesh = make_mesh(4, 2, names=("data", "tensor"))

    def model_of(key):
        return eqx.nn.MLP(16, 16, 16, depth=2, key=key)

    model = shardinit.jax.run(mlp, mesh, tree=eqx.filter_eval_shape(model_of, jax.random.key(0)))
    wanted = expected_tensors(mlp)
    for i, layer in enumerate(model.layers):
        assert_equal({"w": layer.weight}, {"w": wanted[f"layers.{i}.weight"]})
        assert_equal({"b": layer.bias}, {"b": wanted[f"layers.{i}.bias"]})
        assert layer.weight.sharding == NamedSharding(mesh, P(("data",), ("tensor",)))
    assert eqx.filter_jit(model)(jnp.ones(16)).shape == (16,)


def test_run_fills_a_flax_nnx_state(tmp_path):
    nnx = client_of("flax.nnx")
    spec = tmp_path / "flax.yaml"
    spec.write_text(FLAX)

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.up = nnx.Linear(16, 32, rngs=rngs)
            self.down = nnx.Linear(32, 16, rngs=rngs)

    mesh = make_mesh(8, names=("a",))
    graph, state = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))))
    model = nnx.merge(graph, shardinit.jax.run(spec, mesh, tree=state))
    wanted = expected_tensors(spec)
    for name in ("up", "down"):
        kernel = getattr(model, name).kernel.get_value()
        assert_equal({"k": kernel}, {"k": wanted[f"{name}.kernel"]})
    assert model.up.kernel.get_value().sharding.spec == P(None, ("a",))


def test_run_fills_a_flax_skeleton_made_under_set_mesh(tmp_path):
    """A skeleton may have shardings over an abstract mesh, and `nnx.Dropout` streams that are not in the spec."""
    nnx = client_of("flax.nnx")
    spec = tmp_path / "flax.yaml"
    spec.write_text(FLAX)

    class Model(nnx.Module):
        def __init__(self, rngs):
            split = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("a", None))
            self.up = nnx.Linear(16, 32, rngs=rngs, kernel_init=split)
            self.down = nnx.Linear(32, 16, rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)

    mesh = make_mesh(8, names=("a",))
    with jax.set_mesh(mesh):
        skeleton = nnx.eval_shape(lambda: Model(nnx.Rngs(0)))
    wanted = expected_tensors(spec)

    def check(model):
        for name in ("up", "down"):
            for leaf in ("kernel", "bias"):
                assert_equal({"w": getattr(getattr(model, name), leaf).get_value()}, {"w": wanted[f"{name}.{leaf}"]})
        assert model.up.kernel.get_value().sharding.spec == P("a", None)
        nnx.reseed(model, default=1)
        assert model.dropout(jnp.ones(1000)).min() == 0

    model = shardinit.jax.run(spec, mesh, tree=skeleton)
    # The spec's sharding applies where the skeleton has none.
    assert model.down.kernel.get_value().sharding.spec == P(("a",), None)
    check(model)
    with shardinit.open_spec(spec) as opened:
        with jax.set_mesh(mesh):
            check(shardinit.jax.fill(skeleton, opened))
        with pytest.raises(shardinit.MismatchError, match="axis `a` of an abstract mesh, and no mesh is set"):
            shardinit.jax.fill(skeleton, opened)


@jax.tree_util.register_pytree_node_class
class Named:
    """A node that names none of its keys, like Haliax's NamedArray."""

    def __init__(self, array):
        self.array = array

    def tree_flatten(self):
        return (self.array,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def test_run_follows_shardings_of_skeleton_leaves(mlp):
    mesh = make_mesh(8, names=("data",))
    own, other = NamedSharding(mesh, P(None, "data")), jax.sharding.SingleDeviceSharding(jax.devices()[1])
    tree = {"layers": [{"weight": Named(jax.ShapeDtypeStruct((16, 16), "float32", sharding=sharding))}
                       for sharding in (own, other, None)]}
    (mlp.parent / "one_axis.yaml").write_text(
        MLP.replace("data: 2, tensor: 2", "data: 2").replace("data, tensor", "data"))
    filled = shardinit.jax.run(mlp.parent / "one_axis.yaml", mesh, tree=tree, strict=False)
    wanted = expected_tensors(mlp)
    for i, layer in enumerate(filled["layers"]):
        assert_equal({"w": layer["weight"].array}, {"w": wanted[f"layers.{i}.weight"]})
    # A leaf's sharding applies if it is over the mesh's devices.
    assert [layer["weight"].array.sharding for layer in filled["layers"]] == [
        own, NamedSharding(mesh, P(("data",), None)), NamedSharding(mesh, P(("data",), None))]


def test_run_executes_the_program_of_one_rank(tmp_path):
    run_ok("program", TINY, "--rank", 1, "--kinds", "-o", tmp_path / "kinds")
    run_ok("program", TINY, "--rank", 1, "--only", "**.layers.0.mlp.**", "-o", tmp_path / "rank.mlir")
    one = make_mesh(1, names=("x",))
    with shardinit.open_spec(TINY) as spec:
        wanted = {path: spec.read_local(path, 1) for path in spec.tensors}
    for name, count in (("kinds", len(wanted)), ("rank.mlir", 3)):
        made = shardinit.jax.run(tmp_path / name, one)
        assert len(made) == count
        assert_equal(made, {path: wanted[path] for path in made})
        with pytest.raises(shardinit.MismatchError, match="what one rank holds, on one device; the mesh has 8"):
            shardinit.jax.run(tmp_path / name, EIGHT["fsdp"])


def replaced(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_run_rejects_wrong_arguments(forms, tmp_path, monkeypatch):
    mesh, other = EIGHT["fsdp"], make_mesh(8, names=("x",))
    for form in forms.values():
        with pytest.raises(shardinit.MismatchError, match="over the mesh axes `fsdp`, `tensor`; this mesh has `x`"):
            shardinit.jax.run(form, other)
    few = make_mesh(2, 2)
    with pytest.raises(shardinit.MismatchError, match="its 4 devices are not the 8 of the mesh"):
        shardinit.jax.run(TINY, mesh, NamedSharding(few, P()))
    with pytest.raises(shardinit.MismatchError, match="partitioned 3 times"):
        shardinit.jax.run(forms["kinds"], make_mesh(3, 1))
    with pytest.raises(shardinit.MismatchError) as caught:
        shardinit.jax.run(forms["kinds"], mesh, keys=["a", "lm_head.weight"])
    assert caught.value.missing == ["a"] and "missing from the program" in str(caught.value)
    with pytest.raises(shardinit.SpecError, match="there is no file") as caught:
        shardinit.jax.run(tmp_path / "none.yaml", mesh)
    assert caught.value.code == 2
    (tmp_path / "bad.yaml").write_text(MLP.replace("16, 16", "16, -1"))
    with pytest.raises(shardinit.SpecError, match=r"bad.yaml:10:\d+: error: dimension 1"):
        shardinit.jax.run(tmp_path / "bad.yaml", make_mesh(4, 2, names=("data", "tensor")))
    large = MLP.replace("16, 16", "512, 512").replace("{truncated_normal: {std: 0.1}}", "orthogonal")
    (tmp_path / "large.yaml").write_text(large)
    with pytest.raises(shardinit.SpecError, match="`layers.0.weight` is an orthogonal matrix of 262144 elements"):
        shardinit.jax.run(tmp_path / "large.yaml", make_mesh(4, 2, names=("data", "tensor")))
    with pytest.raises(shardinit.FormatError, match=r"a checkpoint, not a program: shardinit.jax.load\(\)"):
        shardinit.jax.run(gen_ok(MLP, tmp_path), mesh)
    with pytest.raises(shardinit.FormatError, match="no `program.json`"):
        shardinit.jax.run(tmp_path, mesh)
    with pytest.raises(shardinit.FormatError, match="run with its folder"):
        shardinit.jax.run(forms["kinds"] / "kind-000.mlir", mesh)
    (tmp_path / "not.mlir").write_text("module {")
    with pytest.raises(shardinit.FormatError, match="is not a program that jaxlib reads"):
        shardinit.jax.run(tmp_path / "not.mlir", mesh)
    (tmp_path / "empty.mlir").write_text("module {}")
    with pytest.raises(shardinit.FormatError, match="the function `@main` is missing"):
        shardinit.jax.run(tmp_path / "empty.mlir", mesh)
    for mistake in (dict(set={"seed": 1}), dict(layout="hf")):
        with pytest.raises(TypeError, match="is a program already"):
            shardinit.jax.run(forms["kinds"], mesh, **mistake)
    for mistake in (dict(rename=str), dict(strict=False), dict(tree={}, keys=[]), dict(tree={}, nested=True)):
        with pytest.raises(TypeError, match="`tree`"):
            shardinit.jax.run(TINY, mesh, **mistake)
    with pytest.raises(TypeError, match="jax.sharding.Mesh, not AbstractMesh"):
        shardinit.jax.run(TINY, mesh.abstract_mesh)
    with pytest.raises(TypeError, match="not Spec"):
        shardinit.jax.run(shardinit.open_spec(TINY), mesh)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("SHARDINIT_LIBRARY", str(tmp_path / "libshardinit.so.1"))
    with pytest.raises(shardinit.LibraryError, match="the program `shardinit` is not in PATH"):
        shardinit.jax.run(TINY, mesh)


@pytest.mark.parametrize("old, new", [
    ('"kinds": [', '"kind": ['), ('"file": "kind-000.mlir"', '"file": "../kind-000.mlir"'),
    ('"kind": 0', '"kind": 99'), ('"kind": 0', '"kind": "0"'), ('"tables": [[', '"tables": [[-1, '),
    ('"tables": [[', '"tables": [[1, '), ('"rank": null,', ""), ("{", "", )])
def test_run_rejects_invalid_kinds(forms, tmp_path, old, new):
    for path in forms["kinds"].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    listing = tmp_path / "program.json"
    at = listing.read_text().rindex(old) if '"tables"' in old else listing.read_text().index(old)
    text = listing.read_text()
    listing.write_text(text[:at] + new + text[at + len(old):])
    with pytest.raises(shardinit.FormatError, match="program.json` is not what"):
        shardinit.jax.run(tmp_path, EIGHT["fsdp"])
