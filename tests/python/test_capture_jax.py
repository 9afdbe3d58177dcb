"""Compares specs captured from functions of JAX with the functions' arrays: names, shapes and element types; exact
numbers with JAX's engine; and distributions with the tool's own engine."""

import dataclasses
import re
import subprocess
import sys

import numpy as np
import pytest
from clients import LIBRARY, PACKAGE, bits_of, client_of
from support import CLEAN, run_json, run_ok

jax = client_of("jax")
flax = client_of("flax")
equinox = client_of("equinox")
optax = client_of("optax")
haiku = client_of("haiku")

import jax.numpy as jnp
import shardinit
import shardinit.capture
import shardinit.jax
from flax import linen, nnx
from jax import random


class Block(linen.Module):
    @linen.compact
    def __call__(self, x, _=None):
        y = linen.LayerNorm()(x)
        x = x + linen.MultiHeadDotProductAttention(num_heads=2)(y, y)
        x = x + linen.Dense(16)(linen.gelu(linen.Dense(32)(x)))
        return x, None


class Scanned(linen.Module):
    """A model with scanned layers, which dimension `axis` of the parameters counts."""

    axis: int = 0

    @linen.compact
    def __call__(self, tokens):
        x = linen.Embed(50, 16)(tokens)
        layers = linen.scan(linen.remat(Block), variable_axes={"params": self.axis}, split_rngs={"params": True},
                            length=3)
        x, _ = layers(name="layers")(x, None)
        return linen.Dense(50, use_bias=False, kernel_init=linen.initializers.normal(0.02))(x)


class Unscanned(linen.Module):
    """A model whose layers are separate modules, with names from Linen and other names."""

    @linen.compact
    def __call__(self, x):
        for i in range(4):
            x = linen.Dense(16, name=f"layers_{i}", bias_init=linen.initializers.uniform(0.1))(linen.LayerNorm()(x))
        for _ in range(3):
            x = Inner()(x)
        return x


class Inner(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(16, use_bias=False)(linen.Dense(12)(x)) * self.param("scale",
                                                                                linen.initializers.uniform(1.0), (16,))


class Images(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.Conv(8, (3, 3), kernel_init=linen.initializers.he_normal())(x)
        x = linen.BatchNorm(use_running_average=False)(x)
        x = linen.ConvTranspose(4, (2, 2), kernel_init=linen.initializers.xavier_uniform())(x)
        x = linen.DenseGeneral((3, 8), param_dtype=jnp.float32)(linen.GroupNorm(2)(x))
        return linen.Dense(4, bias_init=linen.initializers.uniform(0.3))(x)


class Recurrent(linen.Module):
    @linen.compact
    def __call__(self, x):
        for cell in (linen.LSTMCell(20), linen.GRUCell(20), linen.OptimizedLSTMCell(20)):
            x = linen.RNN(cell)(x)
        return linen.Conv(30, (3,), kernel_init=linen.initializers.orthogonal(0.5))(x)


class Layers(nnx.Module):
    def __init__(self, width, *, rngs):
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def stacked_of(rngs):
            return nnx.Linear(width, width, rngs=rngs)

        self.embed = nnx.Embed(30, width, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(5)])
        self.stacked = stacked_of(rngs)
        self.attention = nnx.MultiHeadAttention(2, width, decode=False, rngs=rngs)
        self.norm, self.stats = nnx.LayerNorm(width, rngs=rngs), nnx.BatchNorm(width, rngs=rngs)
        self.conv = nnx.Conv(width, 4, (3,), rngs=rngs)


def equinox_modules(key):
    keys = random.split(key, 7)
    return {
        "mlp": equinox.nn.MLP(5, 6, 32, 2, key=keys[0]),
        "attention": equinox.nn.MultiheadAttention(2, 8, key=keys[1]),
        "gru": equinox.nn.GRUCell(5, 12, key=keys[2]),
        "lstm": equinox.nn.LSTMCell(5, 12, key=keys[3]),
        "conv": equinox.nn.Conv2d(3, 8, 3, key=keys[4]),
        "embedding": equinox.nn.Embedding(20, 6, key=keys[5]),
        "norm": equinox.nn.LayerNorm(7),
        "ensemble": equinox.filter_vmap(lambda key: equinox.nn.MLP(4, 5, 8, 1, key=key))(random.split(keys[6], 3)),
    }


def trained(key):
    """Returns parameters, an optimizer's state that also has a copy of them, and another copy."""
    params = linen.Dense(40).init(key, jnp.zeros((1, 30)))["params"]
    return params, optax.chain(optax.adamw(1e-3), optax.ema(0.9)).init(params), jax.tree.map(jnp.copy, params)


def haiku_parameters(rng):
    def forward(x):
        x = haiku.BatchNorm(True, True, 0.9)(haiku.Linear(20)(x), is_training=True)
        core = haiku.LSTM(12)
        y, _ = haiku.dynamic_unroll(core, x[:, None], core.initial_state(1))
        y = haiku.LayerNorm(-1, True, True)(y)
        y = haiku.MultiHeadAttention(2, 6, w_init=haiku.initializers.VarianceScaling(1.0))(y, y, y)
        return haiku.nets.MLP([30, 20], w_init=haiku.initializers.RandomNormal(0.1))(y)

    return haiku.transform_with_state(forward).init(rng, jnp.zeros((5, 7)))


def followed(key):
    """Draws numbers and changes them in the ways that functions do."""
    keys = iter(random.split(key, 24))

    def carried(key, _):
        key, drawn = random.split(key)
        return key, random.normal(drawn, (40, 5)) * 0.1

    return {
        "scaled": random.normal(next(keys), (40, 50)) * 0.1 + 0.5,
        "bounded": random.uniform(next(keys), (40, 50), minval=-0.3, maxval=0.3),
        "turned": -random.normal(next(keys), (40, 50)),
        "cut": random.normal(next(keys), (60, 50))[:30],
        "narrow": random.truncated_normal(next(keys), -1.0, 3.0, (40, 50)) * 0.02,
        "coins": random.bernoulli(next(keys), 0.3, (900,)),
        "digits": random.randint(next(keys), (900,), 2, 10),
        "bits": random.bits(next(keys), (90,)),
        "gumbel": random.gumbel(next(keys), (900,)),
        "waits": random.exponential(next(keys), (900,)),
        "signs": random.rademacher(next(keys), (900,)),
        "patched": random.normal(next(keys), (30, 40)).at[1].set(7.0).at[2:5, 3].set(0.5),
        "upper": jnp.triu(random.normal(next(keys), (40, 40)), 1),
        "clipped": jnp.clip(random.normal(next(keys), (900,)), -1, 0.5),
        "halves": random.normal(next(keys), (900,)).astype(jnp.bfloat16),
        "carried": jax.lax.scan(carried, next(keys), None, length=3)[1],
        "old": random.normal(random.PRNGKey(5), (9, 8)),
        "wrapped": random.normal(random.wrap_key_data(jnp.array([7, 8], jnp.uint32)), (9, 8)),
        "causal": jnp.tril(jnp.ones((9, 9), bool)),
        "places": jnp.arange(10)[None],
        "steps": jnp.array([1.0, -1.5, 2.0]),
        "slopes": 2.0 ** -jnp.arange(1, 9),
        "identity": jnp.eye(5),
        "count": jnp.zeros((), jnp.int32),
        "minus": jnp.full((3, 4), -0.1, jnp.bfloat16),
        "signed": jnp.array([-0.0, 1.0])[1:] * jnp.array([-2.0]),
        "negative_zero": jnp.full((3, 4), -0.0),
        "sinusoids": jnp.sin(jnp.arange(64)[:, None] * jnp.exp(jnp.arange(32) * -0.3)),
        "masked": jnp.where(jnp.tril(jnp.ones((9, 9), bool)), 0, -jnp.inf),
    }


def rearranged(key):
    """Draws numbers in another order than the order of the arrays."""
    keys = iter(random.split(key, 24))
    both = random.normal(next(keys), (60, 40))
    return {
        "upper": both[:20],
        "lower": both[20:],
        "doubled": random.normal(next(keys), (30, 40)).at[2:5, 3].mul(2.0),
        "joined": jnp.concatenate([random.normal(next(keys), (20, 30)), jnp.zeros((2, 30)), jnp.ones((3, 30))]),
        "padded": jnp.pad(random.normal(next(keys), (20, 30)), ((1, 2), (0, 3)), constant_values=2.0),
        "transposed": random.uniform(next(keys), (40, 30)).T,
        "reversed": random.normal(next(keys), (40, 30))[::-1, ::2],
        "picked": random.normal(next(keys), (4, 30, 20))[2],
        "placed": jax.lax.dynamic_update_slice(jnp.zeros((40, 30)), random.normal(next(keys), (10, 30)), (5, 0)),
        "halved": jnp.split(random.normal(next(keys), (40, 30)), 2, axis=1)[1],
        "squared": jnp.sqrt(jnp.abs(random.normal(next(keys), (40, 30)))) ** 3,
    }


def init_with(module, *shape, dtype=jnp.float32):
    return lambda key: module.init(key, jnp.zeros(shape, dtype))


# Name → (the function to capture, whether JAX's own numbers can be made).
MODELS = {
    "linen, in a scan": (init_with(Scanned(), 1, 4, dtype=jnp.int32), True),
    "linen, in a scan along another axis": (init_with(Scanned(1), 1, 4, dtype=jnp.int32), True),
    "linen, not in a scan": (init_with(Unscanned(), 1, 16), True),
    "linen, images": (init_with(Images(), 1, 4, 4, 3), True),
    "linen, recurrent": (init_with(Recurrent(), 1, 6, 8), False),
    "nnx": (lambda rngs: Layers(8, rngs=rngs), True),
    "equinox": (equinox_modules, True),
    "optax": (trained, True),
    "haiku": (haiku_parameters, True),
    "followed": (followed, True),
    "rearranged": (rearranged, True),
}


def real_arrays(make, *seeds):
    """Returns for each seed path → the function's array."""
    def function_arrays(seed):
        if next(iter(make.__code__.co_varnames)) == "rngs":
            tree = nnx.state(make(nnx.Rngs(random.key(seed))))
        else:
            tree = make(random.key(seed))
        leaves = [(keys, leaf) for keys,
                  leaf in jax.tree_util.tree_flatten_with_path(tree)[0] if hasattr(leaf, "dtype")]
        paths[:] = [re.sub(r"/~?/?", ".", shardinit.jax.path_of(keys)) for keys, _ in leaves]
        return [leaf for _, leaf in leaves]

    paths = []
    # Compiles quickly, but still with the fused multiply-add of JAX's numbers.
    compiled = jax.jit(function_arrays, compiler_options={"xla_backend_optimization_level": 1})
    return [dict(zip(paths, map(np.asarray, compiled(seed)))) for seed in seeds]


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    """Returns (the function, whether JAX's numbers can be made, its arrays for seeds 3 and 4)."""
    make, exact = MODELS[request.param]
    return make, exact, *real_arrays(make, 3, 4)


def generated_arrays(captured):
    with captured.spec() as spec:
        return {path: spec.generate(path) for path in spec.tensors}


def test_jax_capture_matches_shapes_dtypes_and_distributions(model):
    make, _, first, second = model
    captured = shardinit.capture.jax(make)
    made = generated_arrays(captured)
    assert {p: (a.shape, a.dtype) for p, a in made.items()} == {p: (a.shape, a.dtype) for p, a in first.items()}
    assert list(captured.tensors) == list(first)
    for path, one in first.items():
        mine, two = made[path], second[path]
        if one.tobytes() == two.tobytes():  # It does not depend on the seed.
            if path not in ("old", "wrapped"):
                assert np.array_equal(bits_of(mine), bits_of(one)), path
            continue
        fixed = (one == two) & (path not in ("coins", "digits", "signs", "clipped"))
        assert np.array_equal(mine[fixed], one[fixed]), path
        real = np.concatenate([one[~fixed], two[~fixed]]).astype(float)
        drawn = mine[~fixed].astype(float)
        assert drawn.std() > 0 or drawn.size < 3, path
        if drawn.size >= 30:
            assert abs(drawn.std() / real.std() - 1) < 6 / np.sqrt(drawn.size), path
            assert abs(drawn.mean() - real.mean()) < 8 * real.std() / np.sqrt(drawn.size), path


# These are drawn from uniform numbers, without an operation that rounds again.
EXACT = re.compile(r"mlp|attention|gru|lstm|conv|ensemble|bounded|coins|digits|bits|signs|params.Dense_0.bias")


def test_jax_engine_reproduces_the_numbers_of_jax(model, request):
    make, exact, first, _ = model
    if not exact:
        with pytest.raises(shardinit.CaptureError, match="bits of JAX's QR decomposition"):
            shardinit.capture.jax(make, seed=3, engine="jax_threefry")
        return
    captured = shardinit.capture.jax(make, seed=3, engine="jax_threefry")
    assert "\nengine: jax_threefry\n" in captured.text
    made = generated_arrays(captured)
    assert {p: (a.shape, a.dtype) for p, a in made.items()} == {p: (a.shape, a.dtype) for p, a in first.items()}
    name = request.node.callspec.params["model"]
    for path, real in first.items():
        mine = made[path]
        exactly = EXACT.match(path) and name in ("equinox", "followed", "linen, images")
        if exactly or real.dtype.kind in "iub" or np.array_equal(bits_of(mine), bits_of(real)):
            assert np.array_equal(bits_of(mine), bits_of(real)), path
        elif real.dtype == np.float32:
            # The difference is three ulps, plus the differences of the operations that follow.
            absolute = 1e-6 if path in ("gumbel", "waits", "scaled") else 0
            assert np.allclose(mine, real, rtol=4 * 2.0**-23, atol=absolute), (path, np.abs(mine - real).max())
        else:
            assert (mine == real).mean() > 0.99, path


def test_jax_layers_are_folded_with_their_keys():
    text = shardinit.capture.jax(init_with(Scanned(), 1, 4, dtype=jnp.int32), engine="jax_threefry").text
    assert "repeat: {layer: 3}" in text and "split: [3, layer], fold_in: " in text
    assert ('params.layers.Dense_0.kernel: {from: {stack: {axis: 0, for: {i: 3}, of: '
            '"params.layers.{i}.Dense_0.kernel"}}}'
            in text)
    text = shardinit.capture.jax(MODELS["nnx"][0], engine="jax_threefry").text
    assert "repeat: {layer: 5}" in text and "{seed: 0, fold_in: 2 * layer + 1}" in text
    text = shardinit.capture.jax(equinox.nn.MLP, 8, 8, 8, 6, engine="jax_threefry").text
    assert "repeat: {layer: 7}" in text and "{seed: 0, split: [7, layer]}, {split: [2, 0]}" in text


@pytest.mark.parametrize("engine", ["philox4x32", "jax_threefry"])
def test_unscanned_linen_layers_are_folded(engine):
    text = shardinit.capture.jax(init_with(Unscanned(), 1, 16), engine=engine).text
    for line in ("    layers_{layer}:", "      repeat: {layer: 4}", "    Inner_{inner}:", "      repeat: {inner: 3}",
                 "    LayerNorm_{layernorm}:"):
        assert f"\n{line}\n" in text, text
    if engine == "jax_threefry":
        assert 'bias: {shape: [16], init: {uniform: {low: 0, high: 0.1}}, key: {jax: {seed: 0, fold_in: ["layers_{layer}", 2]}}}' in text
        assert 'Dense_1.kernel: {shape: [16, 12], init: lecun_normal, key: {jax: {seed: 0, fold_in: ["Inner_{inner}", Dense_1, 1]}}}' in text


def test_jax_initializers_are_captured_by_name():
    text = shardinit.capture.jax(init_with(Scanned(), 1, 4, dtype=jnp.int32)).text
    assert "\nfans: in_out\n" in text
    for line in ("params:", "Embed_0.embedding: {shape: [50, 16], init: {normal: {std: 0.25}}}",
                 "Dense_0.kernel: {shape: [16, 50], init: {normal: {std: 0.02}}}",
                 "Dense_1.kernel: {shape: [3, 16, 32], init: lecun_normal, in_axis: 1, out_axis: 2, batch_axis: 0}",
                 "out.kernel: {shape: [3, 2, 8, 16], init: lecun_normal, in_axis: [1, 2], out_axis: 3, batch_axis: 0}",
                 "key.bias: {shape: [3, 2, 8], init: zeros}", "LayerNorm_0.scale: {shape: [3, 16], init: ones}"):
        assert f"  {line}\n" in text, line
    text = shardinit.capture.jax(init_with(Images(), 1, 4, 4, 3)).text
    for line in ("Conv_0.kernel: {shape: [3, 3, 3, 8], init: he_normal}",
                 "ConvTranspose_0.kernel: {shape: [2, 2, 8, 4], init: glorot_uniform}",
                 "batch_stats.BatchNorm_0.var: {shape: [8], init: ones}"):
        assert f"  {line}\n" in text, line


def test_copied_jax_arrays_are_tied():
    make = MODELS["optax"][0]
    made = generated_arrays(shardinit.capture.jax(make))
    assert np.array_equal(made["0.kernel"], made["2.kernel"])
    assert "tie: 0.kernel" in shardinit.capture.jax(make, engine="jax_threefry").text


def test_equinox_model_is_filled_from_its_captured_spec():
    def make_it(key):
        return equinox.nn.MLP(8, 8, 8, 2, key=key)

    skeleton = equinox.filter_eval_shape(make_it, random.key(0))
    with shardinit.capture.jax(make_it, seed=3, engine="jax_threefry").spec() as spec:
        model = shardinit.jax.fill(skeleton, spec)
    x = jnp.arange(8.0)
    assert np.array_equal(model(x), make_it(random.key(3))(x))


def test_unnamed_equinox_state_is_captured_and_filled():
    def make_it(key):
        return equinox.nn.make_with_state(equinox.nn.BatchNorm)(4, "batch", mode="batch")

    real = [leaf for leaf in jax.tree.leaves(make_it(random.key(0))) if hasattr(leaf, "dtype")]
    captured = shardinit.capture.jax(make_it)
    with captured.spec() as spec:
        filled = shardinit.jax.fill(jax.eval_shape(lambda: equinox.filter(make_it(random.key(0)), equinox.is_array)),
                                    spec)
    for mine, other in zip(jax.tree.leaves(filled), real, strict=True):
        assert np.array_equal(mine, other) and mine.dtype == other.dtype


def test_pytree_layout_stores_the_functions_arrays(tmp_path):
    captured = shardinit.capture.jax(init_with(Scanned(), 1, 4, dtype=jnp.int32), engine="jax_threefry", name="scanned")
    captured.write(tmp_path / "spec.yaml")
    assert captured.layout == "pytree"
    run_ok("gen", tmp_path / "spec.yaml", "--layout", "pytree", "-o", tmp_path / "out")
    made = generated_arrays(captured)
    read = shardinit.jax.load(tmp_path / "out")
    assert {path: a.shape for path, a in read.items()} == {p: shape for p, (shape, _) in captured.tensors.items()}
    for path, array in read.items():
        assert np.array_equal(bits_of(array), bits_of(made[path])), path


def verifiable(key):
    first, second, third = random.split(key, 3)
    layers = jax.vmap(lambda key: {"up": random.uniform(key, (8, 4), minval=-0.5, maxval=0.5), "bias": jnp.zeros(4)})
    return {"layers": layers(random.split(first, 3)), "table": random.normal(second, (20, 40)) * 0.02,
            "half": random.normal(third, (400,)).astype(jnp.bfloat16), "steps": jnp.arange(4),
            "count": jnp.zeros((), bool)}


def test_verify_compares_each_array_with_the_functions_array():
    captured = shardinit.capture.jax(verifiable, seed=3, engine="jax_threefry")
    assert captured.layout == "pytree" and captured.drawn == {"layers.up", "table", "half"}
    verified = captured.verify()
    assert {t.path: t.result for t in verified.tensors} == {
        "count": "equal", "half": "equal", "layers.bias": "equal", "layers.up": "equal", "steps": "equal",
        "table": "inexact"}
    assert verified.good and all(t.ulps <= 3 for t in verified.tensors)

    def compare(old, new):
        assert old in captured.text
        verified = dataclasses.replace(captured, text=captured.text.replace(old, new)).verify()
        return {t.path for t in verified.tensors if t.result == "different"}, verified.table()

    assert compare("split: [3, layer]", "split: [3, 2 - layer]")[0] == {"layers.up"}
    assert compare("bias: {shape: [4], init: zeros}", "bias: {shape: [4], init: ones}")[0] == {"layers.bias"}
    different, table = compare("low: -0.5, high: 0.5", "low: -0.5, high: 0.50001")
    assert different == {"layers.up"} and re.search(
        r"^layers.up +1  different: \d+ of 96 elements, by [\d,]+ ulps?; \[\d+, \d+, \d+\] is .*, and .* in the model$",
        table, re.MULTILINE), table
    assert compare("init: {normal: {std: 0.02}}", "init: {normal: {std: 0.02001}}")[0] == {"table"}


def test_verify_of_a_jax_capture_with_the_default_engine():
    captured = shardinit.capture.jax(verifiable)
    assert {t.path: t.result for t in captured.verify().tensors} == {
        "count": "equal", "half": "alike", "layers.bias": "equal", "layers.up": "alike", "steps": "equal",
        "table": "alike"}
    assert "std: 0.02" in captured.text
    verified = dataclasses.replace(captured, text=captured.text.replace("std: 0.02", "std: 0.03")).verify()
    assert [t.path for t in verified.tensors if t.result == "different"] == ["table"]


def test_verify_converts_numpy_arrays_like_jax():
    captured = shardinit.capture.jax(lambda: {"steps": np.arange(8), "times": np.linspace(0, 1, 8)})
    assert dict(captured.tensors) == {"steps": ((8,), "i32"), "times": ((8,), "f32")}
    assert {t.path: t.result for t in captured.verify().tensors} == {"steps": "equal", "times": "equal"}


@pytest.mark.parametrize("engine", ["philox4x32", "jax_threefry"])
def test_capture_error_names_an_array_without_elements(engine):
    """An array without elements is named in full, even if other arrays of its module are drawn in parts."""
    def layer(key):
        return {"up": random.normal(key, (3,)), "none": jnp.zeros(0)}

    with pytest.raises(shardinit.CaptureError) as caught:
        shardinit.capture.jax(lambda key: {"layers": jax.vmap(layer)(random.split(key, 2))}, engine=engine)
    assert caught.value.problems == {
        "layers.none": "its shape is [2, 0], and a spec has no tensor without elements"}


def test_jax_run_generates_the_functions_arrays(tmp_path):
    def make_it(key):
        first, second = random.split(key)
        one = equinox.nn.Linear(8, 8, key=first)
        return one, equinox.filter_vmap(lambda key: equinox.nn.Linear(8, 8, key=key))(random.split(second, 4))

    captured = shardinit.capture.jax(make_it, seed=3, engine="jax_threefry")
    captured.write(tmp_path / "spec.yaml")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    made = shardinit.jax.run(tmp_path / "spec.yaml", mesh, layout=captured.layout)
    for keys, leaf in jax.tree_util.tree_flatten_with_path(make_it(random.key(3)))[0]:
        if hasattr(leaf, "dtype"):
            assert np.array_equal(bits_of(made[shardinit.jax.path_of(keys)]), bits_of(leaf))


def test_capture_error_names_every_unsupported_jax_array():
    def make_it(key):
        a, b, c, d, e, f, g = random.split(key, 7)
        x = random.normal(a, (10, 10))
        return {
            "first": x,
            "square": x * x,
            "row": x[:1],
            "spread": jnp.broadcast_to(random.normal(b, (4, 1)), (4, 5)),
            "normed": (y := random.normal(c, (4, 5))) / jnp.linalg.norm(y),
            "product": x @ x,
            "order": random.permutation(d, 9),
            "other": random.uniform(a, (3,)),
            "laplace": random.laplace(e, (3, 4)),
            "complex": jnp.zeros((3,), jnp.complex64),
            "hole": jnp.array([1.0, jnp.nan]),
            "a b": jnp.zeros(3),
            "none": {"fixed": jnp.zeros((0, 3)), "drawn": random.normal(g, (3, 0))},
            "fine": random.normal(f, (3, 4)),
        }

    with pytest.raises(shardinit.CaptureError) as caught:
        shardinit.capture.jax(make_it)
    problems = caught.value.problems
    expected = {
        "a b": (None, "characters that a path of a spec cannot have"),
        "other": (11, "its key has also drawn other numbers (`jax.random.normal`"),
        "complex": (12, "a spec has no complex64"),
        "hole": (13, "elements that are NaN"),
        "none.drawn": (None, "its shape is [3, 0], and a spec has no tensor without elements"),
        "none.fixed": (None, "its shape is [0, 3], and a spec has no tensor without elements"),
        "laplace": (12, "one random number is used twice: `jax.random.uniform`"),
        "normed": (8, "no expression has this operation: `reduce_sum"),
        "order": (10, "no expression has this operation: `"),
        "product": (9, "no expression has this operation: `dot_general`"),
        "row": (2, "some of its random numbers are also in `first`"),
        "spread": (7, "one random number is in several elements: `jax.random.normal`"),
        "square": (2, "one random number is used twice: `jax.random.normal`"),
    }
    assert problems.keys() == expected.keys()
    first = make_it.__code__.co_firstlineno
    for path, (line, words) in expected.items():
        assert words in problems[path], path
        assert f"  {path}: {problems[path]}" in str(caught.value)
        if line and path not in ("complex", "hole"):
            assert problems[path].endswith(f" at {__file__}:{first + line}"), (path, problems[path])


@pytest.mark.parametrize("make, words", [
    (lambda: random.normal(random.key(1, impl="rbg"), (3,)), "not one of JAX's default generator"),
    (lambda key: random.randint(key, (3,), 0, 1 << 27), "whole numbers of more than 26 bits"),
    (lambda key: random.orthogonal(key, 3), "bits of JAX's QR decomposition"),
])
def test_jax_engine_rejects_draws_that_only_jax_can_make(make, words):
    generated_arrays(shardinit.capture.jax(make))
    with pytest.raises(shardinit.CaptureError, match=words) as caught:
        shardinit.capture.jax(make, engine="jax_threefry")
    assert f" at {__file__}:{make.__code__.co_firstlineno}" in str(caught.value)


def loops(key):
    """Makes arrays by loops that use keys and random numbers of earlier iterations, and by concatenations."""
    first, second, third, fourth, fifth = random.split(key, 5)

    def walk(carry, _):
        key, x = carry
        key, of = random.split(key)
        return (key, x + random.uniform(of, (4,)) * 0.5), x * 2

    def filled_one(i, x):
        return x.at[i].set(random.uniform(random.fold_in(second, i), (5,), jnp.bfloat16))

    fused = random.uniform(third, (6, 12), minval=-0.3, maxval=0.3)
    (_, last), steps = jax.lax.scan(walk, (first, jnp.ones(4)), None, length=6)
    return {
        "last": last, "steps": steps, "filled": jax.lax.fori_loop(0, 3, filled_one, jnp.zeros((4, 5), jnp.bfloat16)),
        **dict(zip("qkv", jnp.split(fused, 3, axis=1))), "heads": fused.reshape(6, 3, 4).transpose(1, 0, 2)[:, ::2],
        "stacked": jnp.stack([random.uniform(key, (3, 4)) * (n + 1) for n, key in enumerate(random.split(fourth, 5))],
                             1),
        "square": (x := random.uniform(fifth, (7,))) * x, "copy": x[::-1] - 0.25,
        "far": random.randint(fifth, (50,), -7, 1000), "short": random.bits(fifth, (50,), jnp.uint8),
        "signs": random.rademacher(fifth, (9,)), "below": random.bits(fifth, (9,)) // jnp.uint32(1000) * jnp.uint32(7),
    }


def test_captured_loops_stacks_and_slices_have_the_bits_of_jax():
    captured = shardinit.capture.jax(loops, seed=5, engine="jax_threefry")
    made = generated_arrays(captured)
    for path, real in loops(random.key(5)).items():
        assert np.array_equal(bits_of(made[path]), bits_of(np.asarray(real))), path
    assert captured.verify().good
    for path in ("steps.1", "stacked.1"):
        assert f"{path.split('.')[1]}: {{shape: [" in captured.text


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_captured_16_bit_draws_have_the_bits_of_jax(dtype):
    """Draws of f16 and bf16 have JAX's bits, for all numbers that can be drawn."""
    def make_it(key):
        keys, shape = random.split(key, 8), (60000,)
        return {
            "normal": random.normal(keys[0], shape, dtype), "scaled": random.normal(keys[1], shape, dtype) * 0.02,
            "uniform": random.uniform(keys[2], shape, dtype),
            "within": random.uniform(keys[3], shape, dtype, -0.3, 0.7),
            "turned": random.normal(keys[7], (30, 50), dtype).T,
            **({name: draw(keys[4], shape, dtype) for name, draw in fused.items()} if dtype == "bfloat16" else {})}

    # The product in these is not an f16 number: it is rounded, unless the processor fuses the addition to it.
    fused = {"narrow": lambda key, *of: random.uniform(key, *of, 0.02, 0.05),
             "cut": lambda key, *of: random.truncated_normal(key, -2, 2, *of),
             "half": lambda key, *of: random.truncated_normal(key, -1, 3, *of)}
    for name, draw in fused.items() if dtype == "float16" else ():
        with pytest.raises(shardinit.CaptureError, match="where the processor has fused operations"):
            shardinit.capture.jax(lambda key, draw=draw: {"drawn": draw(key, (9,), "float16")}, engine="jax_threefry")
    made = generated_arrays(shardinit.capture.jax(make_it, seed=5, engine="jax_threefry"))
    for path, real in make_it(random.key(5)).items():
        assert np.array_equal(bits_of(made[path]), bits_of(np.asarray(real))), path


def test_capture_warning_names_arrays_of_numpys_random_numbers():
    outside = np.random.default_rng(3)
    def make_it(key):
        return {"drawn": random.normal(key, (3,)), "global": np.random.normal(size=3),
                "fresh": np.random.default_rng().random(3),
                "own": np.random.default_rng(0).random(3) + random.normal(random.fold_in(key, 1), (3,)),
                "outside": jnp.full(4, outside.random()), "table": np.arange(3.0)}

    with pytest.warns(shardinit._errors.CaptureWarning,
                      match="no key of JAX decides the numbers of `fresh`, `global`, `outside`, `own`, which"):
        shardinit.capture.jax(make_it)
    before = np.random.default_rng(0).random(3)
    assert np.array_equal(before, np.random.default_rng(0).random(3))


def test_jax_capture_keeps_the_sign_of_zeros():
    def make_it(key):
        zeros = jnp.zeros((3, 4))
        return {"turned": -zeros, "scaled": zeros * -2.0, "sum": -zeros + zeros, "difference": zeros - zeros,
                "sign": jnp.sign(-zeros), "mixed": jnp.array([0.0, -0.0, 1.0]), "set": zeros.at[1].set(-0.0),
                "overwritten": random.normal(random.fold_in(key, 2), (1,)).at[0].set(-0.0) * 0.5,
                "masked": -jnp.tril(random.normal(key, (4, 4))),
                "added": 0.0 + -jnp.tril(random.normal(random.fold_in(key, 1), (4, 4)))}

    for engine in ("philox4x32", "jax_threefry"):
        made = generated_arrays(shardinit.capture.jax(make_it, engine=engine))
        for path, real in make_it(random.key(0)).items():
            fixed = np.asarray(real) == 0
            assert np.array_equal(np.signbit(made[path][fixed]), np.signbit(np.asarray(real)[fixed])), (engine, path)


@pytest.mark.parametrize("make, words", [
    (lambda key: jax.lax.rem(random.randint(key, (9,), -8, 8), 3), "a division of whole numbers that may be below 0"),
    (lambda key: random.bits(key, (9,)) * random.bits(key, (9,)), "one random number is used twice|may be above 2.53"),
    (lambda key: random.randint(key, (9,), -800, 800).astype(jnp.int8), "whole numbers that int8 may not have"),
])
def test_capture_rejects_integer_operations_that_differ_from_jax(make, words):
    for engine in ("philox4x32", "jax_threefry"):
        with pytest.raises(shardinit.CaptureError, match=words):
            shardinit.capture.jax(make, engine=engine)


@pytest.mark.parametrize("engine", ["philox4x32", "jax_threefry"])
def test_verify_detects_a_constant_that_depends_on_the_seed(engine):
    from shardinit.capture import _jax_capture

    captured = shardinit.capture.jax(
        lambda key: {"w": jnp.full(3, 0.5), "v": random.normal(key, (3,))}, engine=engine)
    assert captured.verify().good

    def changed(seed):
        w = jnp.full(3, 0.5 if seed == captured.seed else 0.25)
        return _jax_capture._real(lambda key: {"w": w, "v": random.normal(key, (3,))}, (), {}, seed)

    verified = dataclasses.replace(captured, _real=changed).verify()
    assert not verified.good
    assert [t.path for t in verified.tensors if t.result == "different"] == ["w"]


@pytest.mark.parametrize("make, words", [
    (lambda key: jnp.zeros((2, 3)) @ jnp.zeros((2, 3)), "the function failed: TypeError"),
    (lambda key: 3 if random.normal(key, ()) > 0 else 4, "the function failed: TracerBoolConversionError"),
    (lambda: "nothing", "has no tensors"),
    (lambda: {"a": jnp.zeros(3), "a.b": jnp.zeros(3)}, "`a` is the path of an array, and others are below it"),
    (lambda: {"a": {"b": jnp.zeros(3)}, "a.b": jnp.zeros(3)}, "2 arrays have the path `a.b`"),
    (lambda missing: missing, "the function failed: TypeError"),
])
def test_capture_of_unsupported_jax_functions_gives_a_reason(make, words):
    with pytest.raises(shardinit.CaptureError) as caught:
        shardinit.capture.jax(make)
    assert words in str(caught.value)
    if "Tracer" in words or "@" in words:
        assert f" at {__file__}:{make.__code__.co_firstlineno}" in str(caught.value)


def test_jax_capture_accepts_64_bit_seeds():
    def make_it(key):
        return random.normal(key, (30,), jnp.float32)

    with jax.enable_x64(True):
        captured = shardinit.capture.jax(make_it, seed=2**40 + 3, engine="jax_threefry")
        real = np.asarray(make_it(random.key(2**40 + 3)))
    assert f"key: {{jax: {{seed: {2**40 + 3}}}}}" in captured.text
    assert np.allclose(generated_arrays(captured)["value"], real, rtol=4 * 2.0**-23, atol=0)
    assert "\nseed: 18446744073709551615\n" in shardinit.capture.jax(make_it, seed=2**64 - 1).text
    with pytest.raises(shardinit.CaptureError, match="the largest is 2.63 - 1"):
        shardinit.capture.jax(make_it, seed=2**63, engine="jax_threefry")


# Runs a command and writes the peak of its memory to the file `peak`. No other process counts.
MEASURED = [sys.executable, "-c", """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:])
open("peak", "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(done.returncode)
"""]


def command(*arguments, folder, by=()):
    return subprocess.run([*by, sys.executable, "-m", "shardinit.capture", *map(str, arguments)], capture_output=True,
                          text=True, timeout=300, cwd=folder,
                          env={**CLEAN, "PYTHONPATH": str(PACKAGE), "SHARDINIT_LIBRARY": str(LIBRARY)})


# About 400 billion parameters, in a scan, and an optimizer's state.
LARGE = """
import sys
import jax, jax.numpy as jnp, optax
from flax import linen as nn

class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        y = nn.RMSNorm()(x)
        q = nn.DenseGeneral((128, 128), use_bias=False, name="q")(y)
        k = nn.DenseGeneral((8, 128), use_bias=False, name="k")(y)
        v = nn.DenseGeneral((8, 128), use_bias=False, name="v")(y)
        k, v = (jnp.repeat(a, 16, axis=2) for a in (k, v))
        x = x + nn.DenseGeneral(16384, axis=(-2, -1), use_bias=False, name="o")(nn.dot_product_attention(q, k, v))
        y = nn.RMSNorm()(x)
        y = nn.silu(nn.Dense(53248, use_bias=False, name="gate")(y)) * nn.Dense(53248, use_bias=False, name="up")(y)
        return x + nn.Dense(16384, use_bias=False, name="down")(y), None

class Model(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(128256, 16384, name="embed")(tokens)
        layers = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=126)
        x, _ = layers(name="layers")(x, None)
        return nn.Dense(128256, use_bias=False, name="head")(nn.RMSNorm()(x))

def init(key, tokens=8192):
    params = Model().init(key, jnp.zeros((1, tokens), jnp.int32))["params"]
    return {"params": params, "adam": optax.adam(1e-4).init(params)[0]}
"""


def test_capture_command_captures_a_large_jax_model(tmp_path):
    (tmp_path / "large.py").write_text(LARGE)
    done = command("jax", "large:init", "--args", '{"tokens": 4096}', "--seed", 7, "--engine", "jax_threefry",
                   "--name", "large", "--verify", "none", "-o", "large.yaml", folder=tmp_path, by=MEASURED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "large.yaml: 37 tensors\n"), done.stderr
    planned = run_json("plan", tmp_path / "large.yaml", "--layout", "pytree")
    assert planned["parameters"] > 3 * 400e9
    # Capturing takes no more memory than a process that imports the packages.
    assert int((tmp_path / "peak").read_text()) < 2 << 20
    text = (tmp_path / "large.yaml").read_text()
    assert "\nname: large\nseed: 7\n" in text and len(text.splitlines()) < 120

    for arguments, words in (
        (["jax", "large:none"], "`large` has no `none`"),
        (["jax", "large:init", "--args", "3"], "--args is neither an object nor a list"),
        (["jax", "large:init", "--engine", "torch"], "unknown engine `torch`"),
        (["jax", "large:init", "--args", '{"missing": 1}'], "the function failed: TypeError"),
    ):
        done = command(*arguments, "-o", "none.yaml", folder=tmp_path)
        assert done.returncode == 2 and words in done.stderr, done.stderr
        assert not (tmp_path / "none.yaml").exists()


def test_capture_command_verifies_a_jax_function(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "made = []\n"
        "def init(key, changes=False):\n"
        "    made.append(key)\n"
        "    width = 8 + changes * len(made)\n"
        "    return {f'layers_{i}': jax.random.uniform(k, (4, width)) for i, k in enumerate(jax.random.split(key, "
        "3))}\n")
    done = command("jax", "mine:init", "--engine", "jax_threefry", "--seed", 7, "--verify", "all", "-o", "spec.yaml",
                   folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "spec.yaml: 3 tensors\n")
    assert done.stdout.splitlines() == [
        "tensor        tensors  result", "layers_{0…2}        3  equal", "", "3 tensors: 3 equal"]
    done = command("jax", "mine:init", "--args", '{"changes": true}', "--verify", "all", "-o", "-", folder=tmp_path)
    assert done.returncode == 1 and done.stdout.startswith("# init, captured")
    assert re.search(r"layers_1 +1  different: f32 \[4, \d+\] in the model\n", done.stderr)
    assert "warning: no key of JAX decides the numbers of `layers_0`, `layers_1`, `layers_2`, which differ" in done.stderr


def test_capture_imports_only_the_framework_it_needs(tmp_path):
    for made, other in (("jax(lambda key: jax.random.normal(key, (3,)))", "torch"),
                        ("torch(torch.nn.Linear, 3, 4)", "jax")):
        name = made.split("(")[0]
        done = subprocess.run(
            [sys.executable, "-c",
             f"import sys, {name}, shardinit.capture; shardinit.capture.{made}; print(sorted(sys.modules))"],
            capture_output=True, text=True, timeout=300, cwd=tmp_path,
            env={**CLEAN, "PYTHONPATH": str(PACKAGE), "SHARDINIT_LIBRARY": str(LIBRARY)})
        assert done.returncode == 0, done.stderr
        assert f"'{other}'" not in done.stdout


def positions(key):
    weights = random.normal(key, (3, 4))
    return [weights, weights, {"x": weights, "null": weights}, (random.uniform(random.fold_in(key, 1), (2,)),) * 2]


def equal_keys(key):
    """Draws with equal keys, since JAX's split(key, n)[i] is fold_in(key, i)."""
    return {"all": jax.vmap(lambda k: random.normal(k, (3, 4)))(random.split(key, 4)),
            "same": random.normal(random.fold_in(key, 1), (3, 4)), "other": random.normal(random.fold_in(key, 1), (5,)),
            "uniform": random.uniform(random.split(key, 3)[2], (3, 4))}


def keys_by_two_ways(key):
    inner = random.fold_in(key, 3)
    other = random.wrap_key_data(jnp.array(random.key_data(inner)))
    return {"a": random.normal(inner, (3,)), "b": random.normal(other, (3,)), "c": random.normal(other, (7,)),
            "whole": random.randint(key, (5,), 0, 8), "second": random.normal(random.split(key)[1], (4,))}


@pytest.mark.parametrize("make", [positions, equal_keys, keys_by_two_ways])
def test_jax_capture_accepts_equal_keys_and_numeric_names(make):
    verified = shardinit.capture.jax(make, engine="jax_threefry").verify()
    assert verified.good, verified.table()
