"""`shardinit.jax.init_model` turns a class or function into a sharded pytree, on 8 devices. Its values equal the
spec's, or the function's with JAX's engine."""

import os

# JAX reads these once, when it is imported.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import math

import numpy as np
import pytest

from clients import bits_of, client_of, gen_ok
from support import TINY

jax = client_of("jax")

import jax.numpy as jnp
import shardinit
import yaml
from jax import random
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

init_model = shardinit.jax.init_model
SHAPES = [(8, 1), (4, 2), (2, 4), (1, 8), (1, 1), (2, 1)]


def make_mesh(*shape, names=("fsdp", "tensor")):
    return Mesh(np.array(jax.devices()[: math.prod(shape)]).reshape(shape), names)


def new_tree(key):
    """Returns a tree whose values have JAX's bits with JAX's engine."""
    one, two = random.split(key)
    return {"up": {"kernel": random.normal(one, (16, 32), jnp.bfloat16) * 0.02, "bias": jnp.zeros(32)},
            "down": {"kernel": random.uniform(two, (32, 16), minval=-0.1, maxval=0.1), "bias": jnp.ones(16)}}


WANTED = {"up": {"kernel": P("tensor", "fsdp"), "bias": P("fsdp")}, "down": {"kernel": P("fsdp"), "bias": P()}}


def assert_same(tree, wanted, mesh=None):
    assert jax.tree.structure(tree) == jax.tree.structure(wanted)
    for leaf, real in zip(jax.tree.leaves(tree), jax.tree.leaves(wanted), strict=True):
        if not hasattr(real, "shape"):
            continue
        assert isinstance(leaf, jax.Array) and (leaf.shape, leaf.dtype) == (real.shape, real.dtype)
        assert mesh is None or leaf.sharding.device_set == frozenset(mesh.devices.flat)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf, real = random.key_data(leaf), random.key_data(real)
        assert np.array_equal(bits_of(leaf), bits_of(real))


def raised(error, *arguments, **options):
    with pytest.raises(error) as caught:
        init_model(*arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("on_devices", [False, True], ids=["host", "devices"])
def test_jax_init_model_equals_the_captured_spec(shape, on_devices):
    mesh = make_mesh(*shape)
    made = init_model(new_tree, mesh, WANTED, seed=4, on_devices=on_devices)
    with shardinit.capture.jax(new_tree, seed=4).spec() as spec:
        assert_same(made, shardinit.jax.nest({path: spec.generate(path) for path in spec}), mesh)
    assert made["up"]["kernel"].sharding == NamedSharding(mesh, P("tensor", "fsdp"))
    assert made["up"]["kernel"].addressable_shards[0].data.shape == (16 // shape[1], 32 // shape[0])


@pytest.mark.parametrize("seed", [0, 9, 2**63 - 1])
def test_jax_init_model_draws_the_numbers_of_jax(seed):
    mesh = make_mesh(4, 2)
    assert_same(init_model(new_tree, mesh, WANTED, seed=seed, engine="jax_threefry"), new_tree(random.key(seed)), mesh)


@pytest.mark.parametrize("shardings", [
    None, P(), P("fsdp"), lambda info: P("tensor") if len(info.shape) > 1 else P(),
    {"up.kernel": P("fsdp"), "up.bias": P(), "down.kernel": P(None, "tensor"), "down.bias": P(("fsdp", "tensor"))}])
def test_jax_init_model_accepts_shardings_in_any_form(shardings):
    mesh = make_mesh(4, 2)
    given = NamedSharding(mesh, P("fsdp")) if shardings == P("fsdp") else shardings
    made, same_made = init_model(new_tree, mesh, shardings), init_model(new_tree, mesh, given)
    assert_same(made, same_made, mesh)
    assert jax.tree.map(lambda x: x.sharding, made) == jax.tree.map(lambda x: x.sharding, same_made)
    kernel = made["up"]["kernel"].sharding.spec
    assert kernel == {type(None): P(None, None), P: shardings, dict: P("fsdp")}.get(type(shardings), P("tensor"))


def test_jax_init_model_makes_no_whole_array(monkeypatch):
    made, plain = [], shardinit.Spec.generate

    def recording(self, path, slices=None, **options):
        array = plain(self, path, slices, **options)
        made.append(array.size)
        return array

    monkeypatch.setattr(shardinit.Spec, "generate", recording)

    init_model(lambda key: {"w": random.normal(key, (1 << 10, 1 << 10))}, make_mesh(8, 1), P("fsdp"))
    assert made and max(made) <= (1 << 20) // 8 and sum(made) <= 1 << 20
    # Tracing 16 TB takes a moment, and nothing is allocated.
    with pytest.raises(shardinit.CaptureError):
        init_model(lambda key: {"w": jnp.sort(random.normal(key, (1 << 22, 1 << 20)))}, make_mesh(8, 1), P("fsdp"))


def test_jax_init_model_equals_a_given_spec(tmp_path):
    mesh = make_mesh(2, 2)
    text = """
shardinit: 1
name: tree
dtype: f32
mesh: {axes: {fsdp: 2, tensor: 2}}
init: {n: {normal: {std: 0.1}}}
modules:
  up.kernel: {shape: [16, 32], shard: [tensor, fsdp], init: n, dtype: bf16}
  up.bias: {shape: [32], init: zeros}
  down.kernel: {shape: [32, 16], shard: [fsdp], init: n}
  down.bias: {shape: [16], init: ones}
"""
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with shardinit.open_spec(path) as spec:
        wanted = shardinit.jax.nest({p: spec.generate(p) for p in spec})
        for given in (path, str(path), spec, yaml.safe_load(text)):
            made = init_model(new_tree, mesh, spec=given)
            assert_same(made, wanted, mesh)
            assert made["up"]["kernel"].sharding.spec == P(("tensor",), ("fsdp",))
    assert_same(init_model(new_tree, mesh, spec=path, on_devices=True), wanted, mesh)
    seeded = init_model(new_tree, mesh, P(), path, set={"seed": 5})
    assert np.array_equal(seeded["down"]["kernel"], shardinit.generate(path, "down.kernel", set={"seed": 5}))
    renamed = init_model(lambda key: {"model": new_tree(key)}, mesh, spec=path,
                         rename=lambda n: n.removeprefix("model."))
    assert_same(renamed["model"], wanted, mesh)
    assert "is a checkpoint, not a spec: shardinit.jax.load() takes it" in raised(
        shardinit.SpecError, new_tree, mesh, spec=gen_ok(text, tmp_path))


def test_jax_init_model_makes_an_equinox_model():
    equinox = client_of("equinox")

    class Model(equinox.Module):
        mlp: equinox.nn.MLP
        dropout: equinox.nn.Dropout
        key: jax.Array
        name: str

        def __init__(self, key):
            self.mlp = equinox.nn.MLP(16, 8, 32, 3, key=key)
            self.dropout = equinox.nn.Dropout(0.5)
            self.key, self.name = random.fold_in(key, 3), "a model"

    mesh = make_mesh(4, 2)
    made = init_model(Model, mesh, lambda info: P("fsdp"), seed=6, engine="jax_threefry")
    assert_same(made, Model(random.key(6)), mesh)
    assert made.name == "a model" and made.mlp.layers[0].weight.sharding.spec == P("fsdp")
    assert equinox.filter_vmap(made.mlp)(jnp.ones((3, 16))).shape == (3, 8)
    assert "equinox" in type(made.mlp).__module__ and math.isclose(made.dropout.p, 0.5)
    # A function with more arguments than a key.
    error = raised(shardinit.CaptureError, equinox.nn.Linear, mesh)
    assert "missing 2 required positional arguments: 'in_features' and 'out_features'" in error
    assert error.endswith("as `lambda key: Linear(config, key=key)`, and of data the shapes, as "
                          "`jax.numpy.zeros(shape)`")


def test_jax_init_model_follows_vmap():
    equinox = client_of("equinox")

    def stacked(key):
        return equinox.filter_vmap(lambda key: equinox.nn.Linear(8, 16, key=key))(random.split(key, 4))

    mesh = make_mesh(4, 2)
    made = init_model(stacked, mesh, P("fsdp"), engine="jax_threefry", seed=2)
    assert_same(made, stacked(random.key(2)), mesh)
    assert_same(init_model(stacked, mesh, P("fsdp"), engine="jax_threefry", seed=2, on_devices=True), made, mesh)


def test_jax_init_model_makes_flax_models():
    client_of("flax")
    from flax import linen, nnx

    mesh = make_mesh(4, 2)
    dense = linen.Dense(32)
    made = init_model(lambda rng: dense.init(rng, jnp.zeros((1, 16))), mesh, P())
    assert made["params"]["kernel"].sharding == NamedSharding(mesh, P()) and 0.1 < made["params"]["kernel"].std() < 0.4
    assert dense.apply(made, jnp.ones((2, 16))).shape == (2, 32)

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(16, 32, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

    model = init_model(Model, mesh, lambda info: P("fsdp") if len(info.shape) > 1 else P(), seed=3)
    assert isinstance(model, Model) and model.linear.kernel.get_value().sharding.spec == P("fsdp")
    assert not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(model))
    assert model.dropout(model.linear(jnp.ones((2, 16)))).shape == (2, 32)  # its random streams continue
    real = Model(nnx.Rngs(3))
    assert (random.key_data(model.dropout.rngs.key.get_value()) == random.key_data(real.dropout.rngs.key.get_value())).all()
    assert model.dropout.rngs.count.get_value() == real.dropout.rngs.count.get_value() + 1


def test_jax_init_model_rejects_wrong_arguments():
    mesh = make_mesh(4, 2)
    assert raised(TypeError, new_tree, (4, 2)) == "`mesh` is a jax.sharding.Mesh, not tuple"
    assert "and dict cannot be called: give a class or a function, as `lambda key: Model(config, key=key)`" in raised(
        TypeError, {}, mesh)
    assert 'which has its own: give `set={"seed": 7}`' in raised(TypeError, new_tree, mesh, spec=TINY, seed=7)
    assert "give `seed` for another seed" in raised(TypeError, new_tree, mesh, set={"seed": 7})
    assert "unknown engine `torch_cpu`" in raised(ValueError, new_tree, mesh, engine="torch_cpu")
    other = raised(shardinit.MismatchError, new_tree, mesh, NamedSharding(make_mesh(2, 2), P()))
    assert "up.kernel: its 4 devices are not the 8 of the mesh" in other
    three = make_mesh(3, 1)
    assert "down.bias: " in raised(shardinit.MismatchError, new_tree, three, P("fsdp")) and "3" in raised(
        shardinit.MismatchError, new_tree, three, P("fsdp"))
    data = make_mesh(8, names=("data",))
    lacking = raised(shardinit.MismatchError, new_tree, data, spec=TINY)
    assert "over the axis `tensor`, which the mesh does not have" in lacking
    assert "hint: give `shardings`, or name the axes of the mesh as the spec does" in lacking
    with pytest.raises(shardinit.MismatchError) as caught:
        init_model(new_tree, mesh, P(), TINY)
    assert "up.kernel" in caught.value.missing and "lm_head.weight" in caught.value.unexpected
    assert "hint: if the spec is of another model, leave it out" in str(caught.value)
    assert "with `on_devices` a spec is a file, not Spec" in raised(
        TypeError, new_tree, mesh, P(), shardinit.open_spec(TINY), on_devices=True)
    with pytest.raises(shardinit.CaptureError) as caught:
        init_model(lambda key: {"w": random.permutation(key, 40)}, mesh, P())
    assert list(caught.value.problems) == ["w"]
    missing = raised(shardinit.CaptureError, lambda key, x: x, mesh)
    assert "missing 1 required positional argument: 'x'" in missing and "of data the shapes" in missing
