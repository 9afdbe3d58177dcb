"""Checkpoints load into JAX on 8 devices bit for bit, and each device reads only its slice."""

import dataclasses
import json
import os

# JAX reads these once, when it is imported.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import math

import numpy as np
import pytest

from clients import FLAX, bits_of, client_of, gen_ok
from support import AWKWARD, ROOT, TINY, reassemble

jax = client_of("jax")

import jax.numpy as jnp
import shardinit
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P


@pytest.fixture(scope="module", autouse=True)
def eight_devices():
    assert len(jax.devices()) == 8


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return gen_ok(TINY, tmp_path_factory.mktemp("tiny"))


def make_mesh(*shape, names=("fsdp", "tensor")):
    return Mesh(np.array(jax.devices()).reshape(shape), names[: len(shape)])


def assert_equal(array, words):
    assert array.shape == words.shape
    for shard in array.addressable_shards:
        assert np.array_equal(bits_of(shard.data), words[shard.index])


@pytest.mark.parametrize("files", [True, False], ids=["checkpoint", "spec"])
@pytest.mark.parametrize("shape", [(8, 1), (1, 8), (4, 2), (2, 4)], ids=str)
def test_jax_loads_the_specs_partition_on_other_meshes(tiny, shape, files):
    wanted = reassemble(tiny)
    source = tiny if files else shardinit.open_spec(TINY)
    shardings = shardinit.jax.shardings_of(source, make_mesh(*shape))
    if files:
        arrays = shardinit.jax.load(tiny, shardings, verify=True)
    else:
        arrays = shardinit.jax.init_sharded(source, shardings)
    assert set(arrays) == set(wanted)
    for path, array in arrays.items():
        assert array.dtype == jnp.bfloat16 and array.sharding == shardings[path]
        assert_equal(array, wanted[path][1])
    assert arrays["lm_head.weight"].sharding.spec == P(("tensor",), ("fsdp",))


@pytest.mark.parametrize(
    "spec", [P("fsdp"), P(None, "fsdp"), P(("fsdp", "tensor")), P("tensor", "fsdp"), P()], ids=str
)
def test_each_device_reads_only_its_slice(tiny, spec, monkeypatch):
    checkpoint = shardinit.open(tiny)
    path, words = "lm_head.weight", reassemble(tiny)["lm_head.weight"][1]
    asked, plain = [], shardinit.Checkpoint.jobs

    def recording(self, path, slices, out, **options):
        asked.append((slices, out.nbytes))
        return plain(self, path, slices, out, **options)

    monkeypatch.setattr(shardinit.Checkpoint, "jobs", recording)
    sharding = NamedSharding(make_mesh(4, 2), spec)
    array = shardinit.jax.load(checkpoint, sharding, keys=[path])[path]
    assert_equal(array, words)
    slices = {str(index) for index in sharding.devices_indices_map(words.shape).values()}
    shard = math.prod(sharding.shard_shape(words.shape)) * 2
    # Each distinct slice is read once, with exactly its size; replicas share it.
    assert [size for _, size in asked] == [shard] * len(slices)
    assert sum(size for _, size in asked) == words.nbytes
    # Slices of rows read exactly these bytes from the files. Short pieces of these 256-byte rows are read together with
    # the gaps between them, which are shorter than a page.
    if len(spec) < 2:
        assert checkpoint.bytes_read == words.nbytes
    assert checkpoint.bytes_read <= words.nbytes * 4


@pytest.mark.parametrize("spec", [P("fsdp"), P(None, "fsdp"), P("tensor", "fsdp"), P()], ids=str)
def test_each_device_generates_only_its_slice(tiny, spec, monkeypatch):
    path, words = "lm_head.weight", reassemble(tiny)["lm_head.weight"][1]
    made, plain = [], shardinit.Spec.generate

    def recording(self, path, slices=None, **options):
        array = plain(self, path, slices, **options)
        made.append(array.nbytes)
        return array

    monkeypatch.setattr(shardinit.Spec, "generate", recording)
    sharding = NamedSharding(make_mesh(4, 2), spec)
    assert_equal(shardinit.jax.init_sharded(TINY, sharding, keys=[path])[path], words)
    slices = {str(index) for index in sharding.devices_indices_map(words.shape).values()}
    assert made == [math.prod(sharding.shard_shape(words.shape)) * 2] * len(slices)
    assert sum(made) == words.nbytes  # replicas share a value that is made once


def test_init_sharded_reports_missing_tensors():
    with pytest.raises(shardinit.MismatchError, match="missing from the spec") as caught:
        shardinit.jax.init_sharded(TINY, keys=["a", "lm_head.weight"])
    assert caught.value.missing == ["a"]
    nested = shardinit.jax.init_sharded(TINY, set={"seed": 3}, keys=["model.norm.weight"], nested=True)
    assert (nested["model"]["norm"]["weight"] == 1).all()


def test_jax_loads_every_dtype(tmp_path):
    out = gen_ok(AWKWARD, tmp_path)
    wanted = reassemble(out)
    with pytest.raises(shardinit.MismatchError) as caught:
        shardinit.jax.load(out)
    assert caught.value.mismatching == {"matrix": "is f64, but jax_enable_x64 is off"}
    jax.config.update("jax_enable_x64", True)
    try:
        arrays = shardinit.jax.load(out)
    finally:
        jax.config.update("jax_enable_x64", False)
    for path, array in arrays.items():
        assert_equal(array, wanted[path][1])
    assert {str(a.dtype) for a in arrays.values()} == {"float32", "float64", "float16", "bfloat16"}


def test_jax_load_accepts_nested_shardings_and_functions(tiny):
    mesh = make_mesh(8, names=("x",))
    tree = shardinit.jax.load(tiny, lambda info: NamedSharding(mesh, P("x")), nested=True)
    assert_equal(
        tree["model"]["layers"]["1"]["mlp"]["up_proj"]["weight"],
        reassemble(tiny)["model.layers.1.mlp.up_proj.weight"][1],
    )
    shardings = jax.tree.map(lambda a: a.sharding, tree)  # nested shardings are accepted too
    again = shardinit.jax.load(tiny, shardings, nested=True)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), tree, again))


def test_jax_load_reports_all_mismatches(tiny):
    mesh = make_mesh(8, names=("x",))
    shardings = dict.fromkeys(shardinit.open(tiny).tensors, NamedSharding(mesh, P()))
    del shardings["model.norm.weight"], shardings["lm_head.weight"]
    shardings["model.layers.7.mlp.up_proj.weight"] = NamedSharding(mesh, P())
    shardings["model.embed_tokens.weight"] = NamedSharding(mesh, P(None, None, "x"))
    shardings["model.layers.0.input_layernorm.weight"] = "x"
    with pytest.raises(shardinit.MismatchError) as caught:
        shardinit.jax.load(tiny, shardings)
    assert caught.value.missing == ["model.layers.7.mlp.up_proj.weight"]
    assert caught.value.unexpected == ["model.norm.weight", "lm_head.weight"]
    assert set(caught.value.mismatching) == {
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
    }
    uneven = NamedSharding(Mesh(np.array(jax.devices()[:3]), ("x",)), P("x"))
    with pytest.raises(shardinit.MismatchError, match="partitioned 3 times") as caught:
        shardinit.jax.load(tiny, uneven)
    assert len(caught.value.mismatching) == 17  # all but the four with 768 rows
    with pytest.raises(
        shardinit.MismatchError, match="axis `tensor`, which the mesh does not have"
    ):
        shardinit.jax.shardings_of(tiny, make_mesh(8))
    with pytest.raises(shardinit.MismatchError) as caught:
        shardinit.jax.load(tiny, keys=["a", "lm_head.weight", "b"])
    assert caught.value.missing == ["a", "b"]


MLP = """
shardinit: 1
name: mlp
dtype: f32
mesh: {axes: {a: 2}}
init: {n: {normal: {std: 0.1}}}
modules:
  layers:
    repeat: {layer: 3}
    weight: {shape: [16, 16], shard: [a], init: n}
    bias: {shape: [16], init: zeros}
"""


SCANNED = """
shardinit: 1
include: {root}/configs/layouts/stacked.yaml
name: scanned
dtype: f32
fans: {fans}
mesh: {{axes: {{x: 2}}}}
init: {{n: {{normal: {{std: 0.3}}}}}}
modules:
  embed.{weight}: {{shape: [8, 16], shard: [x], init: n}}
  layers:
    repeat: {{layer: 3}}
    up.{weight}: {{shape: [{up}], shard: [null, x], init: n}}
    up.bias: {{shape: [24], init: n}}
    down.{weight}: {{shape: [{down}], shard: [x], init: n}}
    down.bias: {{shape: [16], init: n}}
"""


def scanned(folder, **names):
    """Returns a checkpoint with stacked layers, and the model's tensors by path."""
    spec = folder / "spec.yaml"
    spec.write_text(SCANNED.format(root=ROOT, **names))
    out = gen_ok(spec, folder, "--layout", "stacked")
    with shardinit.open_spec(spec) as drawn:
        return out, {path: drawn.generate(path) for path in drawn.tensors}


def test_equinox_scans_over_stacked_layers(tmp_path):
    eqx = client_of("equinox")
    out, wanted = scanned(tmp_path, fans="out_in", weight="weight", up="24, 16", down="16, 24")

    class Block(eqx.Module):
        up: eqx.nn.Linear
        down: eqx.nn.Linear

        def __init__(self, key):
            self.up, self.down = eqx.nn.Linear(16, 24, key=key), eqx.nn.Linear(24, 16, key=key)

        def __call__(self, x):
            return x + self.down(jax.nn.relu(self.up(x)))

    class Model(eqx.Module):
        embed: eqx.nn.Embedding
        layers: Block

        def __init__(self, key):
            self.embed = eqx.nn.Embedding(8, 16, key=key)
            self.layers = eqx.filter_vmap(Block)(jax.random.split(key, 3))

        def __call__(self, token):
            arrays, static = eqx.partition(self.layers, eqx.is_array)
            return jax.lax.scan(lambda x, layer: (eqx.combine(layer, static)(x), None), self.embed(token), arrays)[0]

    skeleton = eqx.filter_eval_shape(Model, jax.random.key(0))
    model = shardinit.jax.fill(skeleton, out, NamedSharding(make_mesh(8, names=("x",)), P()))
    x = wanted["embed.weight"][3]
    for i in range(3):
        of = {name: wanted[f"layers.{i}.{name}"] for name in ("up.weight", "up.bias", "down.weight", "down.bias")}
        for name, array in of.items():
            module, leaf = name.split(".")
            assert (np.asarray(getattr(getattr(model.layers, module), leaf)[i]) == array).all()
        x = x + of["down.weight"] @ np.maximum(of["up.weight"] @ x + of["up.bias"], 0) + of["down.bias"]
    assert np.allclose(eqx.filter_jit(model)(3), x, atol=1e-5)


def test_flax_scans_over_stacked_layers(tmp_path):
    nn = client_of("flax.linen")
    out, wanted = scanned(tmp_path, fans="in_out", weight="kernel", up="16, 24", down="24, 16")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return x + nn.Dense(16, name="down")(nn.relu(nn.Dense(24, name="up")(x))), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Dense(16, use_bias=False, name="embed")(x)
            scan = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
            return scan(name="layers")(x, None)[0]

    one = jnp.eye(8)[3]
    skeleton = jax.eval_shape(Model().init, jax.random.key(0), one)["params"]
    assert skeleton["layers"]["up"]["kernel"].shape == (3, 16, 24)
    params = shardinit.jax.fill(skeleton, out, NamedSharding(make_mesh(8, names=("x",)), P()))
    x = wanted["embed.kernel"][3]
    for i in range(3):
        of = {name: wanted[f"layers.{i}.{name}"] for name in ("up.kernel", "up.bias", "down.kernel", "down.bias")}
        for name, array in of.items():
            module, leaf = name.split(".")
            assert (np.asarray(params["layers"][module][leaf][i]) == array).all()
        x = x + np.maximum(x @ of["up.kernel"] + of["up.bias"], 0) @ of["down.kernel"] + of["down.bias"]
    assert np.allclose(Model().apply({"params": params}, one), x, atol=1e-5)


def test_haliax_folds_over_stacked_layers(tmp_path):
    eqx, hax = client_of("equinox"), client_of("haliax")
    nn, stack = client_of("haliax.nn"), client_of("haliax.nn.scan")
    out, wanted = scanned(tmp_path, fans="out_in", weight="weight", up="24, 16", down="16, 24")
    Embed, Mlp, Layers, Vocab = hax.make_axes(embed=16, mlp=24, layers=3, vocab=8)

    class Block(eqx.Module):
        up: nn.Linear
        down: nn.Linear

        @staticmethod
        def init(key):
            return Block(nn.Linear.init(Embed, Mlp, key=key), nn.Linear.init(Mlp, Embed, key=key))

        def __call__(self, x):
            return x + self.down(nn.relu(self.up(x)))

    class Model(eqx.Module):
        embed: nn.Embedding
        layers: stack.Stacked

        @staticmethod
        def init(key):
            return Model(nn.Embedding.init(Vocab, Embed, key=key),
                         stack.Stacked.init(Layers, Block)(jax.random.split(key, 3)))

        def __call__(self, token):
            return self.layers.fold(self.embed(token))

    skeleton = eqx.filter_eval_shape(Model.init, jax.random.key(0))
    model = shardinit.jax.fill(skeleton, out, NamedSharding(make_mesh(8, names=("x",)), P()),
                               rename=lambda path: path.replace(".stacked.", "."))
    assert model.layers.stacked.up.weight.axes == (Layers, Mlp, Embed)
    x = wanted["embed.weight"][3]
    for i in range(3):
        of = {name: wanted[f"layers.{i}.{name}"] for name in ("up.weight", "up.bias", "down.weight", "down.bias")}
        for name, array in of.items():
            module, leaf = name.split(".")
            assert (np.asarray(getattr(getattr(model.layers.stacked, module), leaf).array[i]) == array).all()
        x = x + of["down.weight"] @ np.maximum(of["up.weight"] @ x + of["up.bias"], 0) + of["down.bias"]
    token = hax.named(jnp.array([3]), "token")
    assert np.allclose(hax.named_jit(lambda model, token: model(token))(model, token).array[0], x, atol=1e-5)


def test_flax_train_state(tmp_path):
    """A sharded TrainState can be filled, with rules on parameter names as in t5x and EasyLM."""
    linen, optax, train_state = client_of("flax.linen"), client_of("optax"), client_of("flax.training.train_state")

    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(16, name="down")(linen.relu(linen.Dense(32, name="up")(x)))

    out = gen_ok(FLAX, tmp_path)
    mesh = make_mesh(4, 2, names=("fsdp", "tensor"))
    rules = [("up.kernel", P("fsdp", "tensor")), ("down.kernel", P("tensor", "fsdp")), ("bias", P())]

    def sharding_of(info):
        return NamedSharding(mesh, next(spec for name, spec in rules if name in info.path))

    @jax.jit
    def step(state, x):
        loss, gradients = jax.value_and_grad(lambda params: jnp.mean((state.apply_fn({"params": params}, x) - x) ** 2))(
            state.params)
        return state.apply_gradients(grads=gradients), loss

    def losses_of(params):
        state = train_state.TrainState.create(apply_fn=Model().apply, params=params, tx=optax.adamw(1e-2))
        losses = []
        for x in np.random.default_rng(0).normal(size=(3, 8, 16)).astype("float32"):
            state, loss = step(state, x)
            losses.append(float(loss))
        return state, losses

    params = shardinit.jax.load(out, sharding_of, nested=True)
    state, losses = losses_of(params)
    moments = state.opt_state[0].mu
    for tree in (params, state.params, moments):
        assert tree["up"]["kernel"].sharding.is_equivalent_to(NamedSharding(mesh, P("fsdp", "tensor")), 2)
    by_hand = {"up": {}, "down": {}}
    for path, (_, words) in reassemble(out).items():
        module, leaf = path.split(".")
        by_hand[module][leaf] = jnp.asarray(words.view("<f4"))
        assert_equal(params[module][leaf], words)
    assert np.allclose(losses, losses_of(by_hand)[1], rtol=1e-5)


def test_jax_fills_an_equinox_model(tmp_path):
    eqx = client_of("equinox")
    out = gen_ok(MLP, tmp_path)
    wanted = reassemble(out)

    def model_of(key):
        return eqx.nn.MLP(16, 16, 16, depth=2, key=key)

    skeleton = eqx.filter_eval_shape(model_of, jax.random.key(0))
    mesh = make_mesh(8, names=("x",))
    model = shardinit.jax.fill(skeleton, out, NamedSharding(mesh, P("x")))
    made = shardinit.jax.fill(skeleton, shardinit.open_spec(text=MLP), NamedSharding(mesh, P("x")))
    assert jax.tree.all(jax.tree.map(lambda a, b: not eqx.is_array(a) or bool((a == b).all()), model, made))
    for i, layer in enumerate(model.layers):
        assert_equal(layer.weight, wanted[f"layers.{i}.weight"][1])
        assert_equal(layer.bias, wanted[f"layers.{i}.bias"][1])
        assert layer.weight.sharding.spec == P("x")
    x = jnp.ones(16)
    y = eqx.filter_jit(lambda model, x: model(x))(model, x)
    for i in range(3):
        x = wanted[f"layers.{i}.weight"][1].view("<f4") @ np.asarray(x)
        x = np.maximum(x, 0) if i < 2 else x
    assert np.allclose(y, x, atol=1e-5)

    wrong = eqx.filter_eval_shape(
        lambda key: eqx.nn.MLP(16, 8, 16, depth=3, key=key), jax.random.key(0)
    )
    with pytest.raises(shardinit.MismatchError) as caught:
        shardinit.jax.fill(wrong, out)
    assert caught.value.missing == ["layers.3.weight", "layers.3.bias"]
    three = eqx.filter_eval_shape(
        lambda key: eqx.nn.MLP(16, 8, 16, depth=1, key=key), jax.random.key(0)
    )
    three = jax.tree.map(
        lambda s: (
            jax.ShapeDtypeStruct(s.shape, jnp.bfloat16) if getattr(s, "shape", None) == (16,) else s
        ),
        three,
    )
    with pytest.raises(shardinit.MismatchError) as caught:
        shardinit.jax.fill(three, out)
    assert caught.value.unexpected == ["layers.2.weight", "layers.2.bias"]
    assert caught.value.mismatching == {
        "layers.0.bias": "dtype f32 in the checkpoint, bfloat16 here",
        "layers.1.weight": "shape [16, 16] in the checkpoint, [8, 16] here",
        "layers.1.bias": "shape [16] in the checkpoint, [8] here",
    }


def test_jax_fills_a_flax_linen_model(tmp_path):
    linen = client_of("flax.linen")

    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(16, name="down")(linen.Dense(32, name="up")(x))

    out = gen_ok(FLAX, tmp_path)
    shapes = jax.eval_shape(Model().init, jax.random.key(0), jnp.ones(16))["params"]
    shardings = shardinit.jax.shardings_of(out, make_mesh(8, names=("a",)))
    params = shardinit.jax.load(out, shardings, nested=True)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), params) == jax.tree.map(
        lambda s: (s.shape, s.dtype), shapes
    )
    wanted = {path: words.view("<f4") for path, (_, words) in reassemble(out).items()}
    y = Model().apply({"params": params}, jnp.ones(16))
    assert np.allclose(y, np.ones(16) @ wanted["up.kernel"] @ wanted["down.kernel"], atol=1e-5)


def test_jax_fills_a_flax_nnx_model(tmp_path):
    nnx = client_of("flax.nnx")

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.up = nnx.Linear(16, 32, rngs=rngs)
            self.down = nnx.Linear(32, 16, rngs=rngs)

        def __call__(self, x):
            return self.down(self.up(x))

    out = gen_ok(FLAX, tmp_path)
    skeleton = nnx.eval_shape(lambda: Model(nnx.Rngs(0)))
    graph, state = nnx.split(skeleton)
    shardings = shardinit.jax.shardings_of(out, make_mesh(8, names=("a",)))
    whole = shardinit.jax.fill(skeleton, out, shardings)
    renamed = shardinit.jax.fill(state, out, shardings, rename=lambda name: name)
    state = shardinit.jax.fill(state, out, shardings)
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), state, renamed))
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), state, nnx.state(whole)))
    model = nnx.merge(graph, state)
    wanted = {path: words.view("<f4") for path, (_, words) in reassemble(out).items()}
    assert np.allclose(
        model(jnp.ones(16)), np.ones(16) @ wanted["up.kernel"] @ wanted["down.kernel"], atol=1e-5
    )
    assert model.up.kernel.get_value().sharding.spec == P(None, ("a",))


def test_attribute_named_value_may_be_in_the_path(tmp_path):
    """`value` is dropped from a path only if the checkpoint has no path that contains it."""

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Head:
        value: jax.ShapeDtypeStruct

    leaf = Head(jax.ShapeDtypeStruct((5,), "float32"))
    for path in ("head.value", "head"):
        text = f"""
shardinit: 1
name: head
dtype: f32
modules:
  {path}: {{shape: [5], init: {{normal: {{std: 1}}}}}}
"""
        spec = shardinit.open_spec(text=text)
        filled = shardinit.jax.fill({"head": leaf}, spec)["head"].value
        assert np.array_equal(np.asarray(filled), spec.read(path))


def test_mesh_of_follows_the_device_order_of_the_spec(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: m\ndtype: f32\n"
                    "mesh: {axes: {fsdp: 4, tensor: 2}, slices: {fsdp: 2}, slice_order: inner, "
                    "devices: [0, 1, 4, 5, 3, 2, 7, 6]}\nmodules: {w: {shape: [8, 4], "
                    "shard: [fsdp, tensor], init: {normal: {std: 1}}}}\n")
    folder = gen_ok(spec, tmp_path / "out")
    checkpoint = shardinit.open(folder)
    assert [(d.id, d.slice, d.coordinate, d.rank) for d in checkpoint.devices][:4] == [
        (0, 0, (0, 0), 0), (1, 0, (0, 1), 1), (4, 1, (1, 0), 2), (5, 1, (1, 1), 3)]
    mesh = shardinit.jax.mesh_of(folder)
    assert mesh.axis_names == ("fsdp", "tensor")
    assert [[d.id for d in row] for row in mesh.devices] == [[0, 1], [4, 5], [3, 2], [7, 6]]
    array = shardinit.jax.load(folder, shardinit.jax.shardings_of(folder, mesh))["w"]
    whole = checkpoint.read("w")
    for shard in array.addressable_shards:  # each device has its rank's box
        rank = next(d for d in checkpoint.devices if d.id == shard.device.id).rank
        box = next(s for s in checkpoint.info("w").shards if s.rank == rank)
        assert tuple(part.start or 0 for part in shard.index) == box.offset
        assert np.array_equal(np.asarray(shard.data), whole[shard.index])
    with pytest.raises(shardinit.MismatchError, match="8 ranks, but there are 7 devices"):
        shardinit.jax.mesh_of(folder, jax.devices()[1:])
    others = [dataclasses.make_dataclass("Device", ["id"])(8 + i) for i in range(8)]
    with pytest.raises(shardinit.MismatchError, match="has device 0, which is not there"):
        shardinit.jax.mesh_of(folder, others)


def test_shardings_without_a_named_sharding_are_rejected(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {a: 2, b: 2}}\nmodules:\n"
                    "  plain: {shape: [8], shard: [a], init: zeros}\n"
                    "  fused: {shape: [8], shard: [{axes: a, segments: 2}], init: zeros}\n"
                    "  placed: {shape: [8], stage: {b: 1}, init: zeros}\n")
    for source in (gen_ok(spec, tmp_path / "out"), shardinit.open_spec(spec)):
        with pytest.raises(shardinit.MismatchError) as error:
            shardinit.jax.shardings_of(source, make_mesh(2, 4, names=("a", "b")))
        assert sorted(error.value.mismatching) == ["fused", "placed"]
        opened = source if isinstance(source, shardinit.Spec) else shardinit.open(source)
        assert [opened.is_extended(p) for p in ("plain", "fused", "placed")] == [False, True, True]


def test_mesh_of_defaults_to_the_first_devices(tiny):
    for source in (tiny, shardinit.open_spec(TINY)):
        mesh = shardinit.jax.mesh_of(source, jax.devices()[: shardinit.open(tiny).world_size])
        assert list(mesh.devices.ravel()) == jax.devices()[: mesh.size]
    assert shardinit.open(tiny).devices == ()


@pytest.mark.parametrize("change", [
    lambda d: d.pop(), lambda d: d.append(d[0]), lambda d: d[0].update(id=0),
    lambda d: d[0].update(id=-1), lambda d: d[0].update(rank=1),
    lambda d: d[0].update(coordinate=[1]), lambda d: d[0].update(slice="0"),
    lambda d: d.__setitem__(0, 5)])
def test_impossible_devices_in_a_manifest_are_rejected(tmp_path, change):
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {x: 2}, devices: [1, 0]}\n"
                    "modules: {w: {shape: [8], shard: [x], init: zeros}}\n")
    path = gen_ok(spec, tmp_path / "out") / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest["devices"])
    path.write_text(json.dumps(manifest))
    with pytest.raises(shardinit.FormatError, match="device"):
        shardinit.open(path.parent)
