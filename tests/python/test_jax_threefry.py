"""Compares `engine: jax_threefry` with JAX: keys, bits, and uniform, normal and truncated normal numbers."""

import hashlib
import json
import sys

import numpy as np
import pytest

import reference
from clients import PACKAGE
from support import ROOT, run_json, run_ok, run_tool

import flax.core.scope
import jax
from jax.extend.random import threefry_2x32

sys.path.insert(0, str(PACKAGE))
import shardinit

HEAD = "shardinit: 1\nname: x\ndtype: f32\nengine: jax_threefry\n"
SHAPES = [(), (1,), (7,), (3, 5), (130, 257), (2, 3, 4, 5), (1000, 100)]


def open_it(modules, head=HEAD):
    return shardinit.open_spec(text=head + "modules:\n" + "".join(f"  {line}\n" for line in modules))


def key_of(seed, path):
    digest = hashlib.sha256(b"shardinit.key.v1\0" + seed.to_bytes(8, "little") + path.encode()).digest()
    return jax.random.wrap_key_data(np.frombuffer(digest[:8], "<u4"))


def ulps_of(a, b):
    order = [np.where(x.view(np.int32) < 0, -(x.view(np.int32).astype(np.int64) & 0x7FFFFFFF), x.view(np.int32))
             for x in (a, b)]
    return np.abs(order[0].astype(np.int64) - order[1])


def is_equal(made, jax_array):
    assert made.dtype == jax_array.dtype and made.shape == jax_array.shape
    return made.tobytes() == np.asarray(jax_array).tobytes()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_bits_and_uniform_numbers_equal_jax(shape, seed):
    bounds = [(0, 1), (-0.02, 0.02), (-0.1, 0.3), (1, 1.001), (1e-6, 1), (-5000, -4999.9), (-1e30, 2e29), (-3, 0)]
    modules = [f"u{n}: {{shape: {list(shape)}, init: {{uniform: {{low: {low}, high: {high}}}}}}}"
               for n, (low, high) in enumerate(bounds)]
    modules.append(f"a.bits: {{shape: {list(shape)}, dtype: u32, init: {{expr: bits()}}}}")
    with open_it(modules, HEAD + f"seed: {seed}\n") as spec:
        assert is_equal(spec.generate("a.bits"), jax.random.bits(key_of(seed, "a.bits"), shape, "uint32"))
        for number, (low, high) in enumerate(bounds):
            wanted = jax.random.uniform(key_of(seed, f"u{number}"), shape, "float32", low, high)
            assert is_equal(spec.generate(f"u{number}"), wanted), (low, high)


def test_normal_numbers_equal_jax_within_three_ulps():
    shape = (4096, 2048)  # equals the number of distinct values
    with open_it([f"w: {{shape: {list(shape)}, init: {{normal: {{std: 1}}}}}}",
               f"v: {{shape: {list(shape)}, dtype: bf16, init: {{normal: {{std: 1}}}}, key: w2}}",
               f"s: {{shape: {list(shape)}, init: {{normal: {{std: 0.02}}}}, key: w3}}"]) as spec:
        wanted = np.asarray(jax.random.normal(key_of(0, "w"), shape))
        ulps = ulps_of(spec.generate("w"), wanted)
        assert ulps.max() <= 3 and (ulps == 0).mean() > 0.9
        of_bf16 = np.asarray(jax.random.normal(key_of(0, "w2"), shape).astype("bfloat16"))
        assert (spec.generate("v").view(np.uint16) != of_bf16.view(np.uint16)).mean() < 5e-6
        # Scaling adds one multiplication.
        assert ulps_of(spec.generate("s"),
                       np.asarray(jax.random.normal(key_of(0, "w3"), shape) * np.float32(0.02))).max() <= 4


@pytest.mark.parametrize("low, high", [(-2, 2), (-3, 3), (-1, 1), (-1, 3), (0, 1), (0.5, 2), (-2.5, 2.5), (2, 3)])
def test_truncated_normal_numbers_match_jax(low, high):
    """XLA rounds erf of these cut-offs as the manual page says; for other cut-offs every u differs by one f32."""
    shape = (2048, 1024)
    with open_it([f"w: {{shape: {list(shape)}, init: {{truncated_normal: {{std: 1, low: {low}, high: {high}}}}}}}"]) as spec:
        made, wanted = spec.generate("w"), np.asarray(jax.random.truncated_normal(key_of(0, "w"), low, high, shape))
    assert ulps_of(made, wanted).max() <= 3 and (made == wanted).mean() > 0.8
    assert (low <= made.min() if low == 0 else low < made.min()) and made.max() < high


def test_keys_equal_jax():
    key, fold_in_static = jax.random.key, flax.core.scope._fold_in_static
    steps = {
        "{seed: 0}": key(0),
        "{seed: 42, split: [3, 1]}": jax.random.split(key(42), 3)[1],
        "{seed: 7, fold_in: 4294967295}": jax.random.fold_in(key(7), 2**32 - 1),
        "[{seed: 0}, {split: [4, 2]}, {split: [5, 4]}, {fold_in: 9}]":
            jax.random.fold_in(jax.random.split(jax.random.split(key(0), 4)[2], 5)[4], 9),
        "{seed: 3, split: [6, 1 * 3 + 2]}": jax.random.split(key(3), (2, 3))[1, 2],
        "{seed: 5, fold_in: [layers_2, Dense_0, 1]}": fold_in_static(key(5), ("layers_2", "Dense_0", 1)),
        "{seed: 5, fold_in: ['h{n - 1}x{2 * n}', 300, 'ü', 0, '7'], split: [2, 1]}":
            jax.random.split(fold_in_static(key(5), ("h2x6", 300, "ü", 0, "7")))[1],
        "{words: [4294967295, 7], fold_in: n + 1}":
            jax.random.fold_in(jax.random.wrap_key_data(np.array([2**32 - 1, 7], np.uint32)), 4),
    }
    modules = [f"w{n}: {{shape: [3, 50], init: {{normal: {{std: 1}}}}, key: {{jax: {step}}}}}"
               for n, step in enumerate(steps)]
    modules += ["layers: {repeat: {layer: 4}, "
                "w: {shape: [9], init: {uniform: {low: 0, high: 1}}, key: {jax: {seed: 5, split: [4, layer]}}}}"]
    with open_it(modules, HEAD + "vars: {n: 3}\n") as spec:
        for number, (step, wanted) in enumerate(steps.items()):
            made = spec.generate(f"w{number}")
            assert ulps_of(made, np.asarray(jax.random.normal(wanted, (3, 50)))).max() <= 3, step
        for layer, wanted in enumerate(jax.random.split(key(5), 4)):
            assert is_equal(spec.generate(f"layers.{layer}.w"), jax.random.uniform(wanted, (9,)))


def test_seeds_above_32_bits_equal_jax_with_x64():
    for seed in (2**32, 2**40 + 5, 2**63 - 1):
        with jax.enable_x64(True):
            wanted = jax.random.uniform(jax.random.key(seed), (5,), "float32")
        with open_it([f"w: {{shape: [5], init: {{uniform: {{low: 0, high: 1}}}}, key: {{jax: {{seed: {seed}}}}}}}"]) as spec:
            assert is_equal(spec.generate("w"), wanted)
    # These exceed JAX's limits.
    with open_it(["w: {shape: [1], dtype: u32, init: {expr: bits()}, key: {jax: {seed: 18446744073709551615}}}",
               "v: {shape: [1], dtype: u32, init: {expr: bits()}, key: {jax: {seed: 1, fold_in: 2}}}"]) as spec:
        wanted = jax.random.wrap_key_data(np.array([2**32 - 1] * 2, np.uint32))
        assert is_equal(spec.generate("w"), jax.random.bits(wanted, (1,), "uint32"))


@pytest.mark.parametrize("shape, offset", [
    ((2**20, 2**14), (2**18 - 2, 2**14 - 40)),  # contains 2^32
    ((2**40, 3, 2**17), (2**39 + 12345, 1, 77)),
    ((5, 2**33), (4, 2**33 - 301)),
    ((2**60,), (2**60 - 299,)),
])
def test_boxes_of_tensors_over_2_to_the_32_elements(shape, offset):
    """Boxes of tensors with over 2^32 elements are right. JAX cannot make such arrays here, but its counter-based
    generator can compute elements."""
    box = tuple(slice(o, min(o + 150, n)) for o, n in zip(offset, shape))
    index = np.zeros([1] * len(shape), np.uint64)
    for part, extent in zip(np.ix_(*[np.arange(s.start, s.stop, dtype=np.uint64) for s in box]), shape):
        index = index * np.uint64(extent) + part
    high, low = (index >> np.uint64(32)).astype(np.uint32), index.astype(np.uint32)
    assert len(np.unique(high)) > 1 or high.min() > 0
    bits = {}
    for path in ("b", "u"):
        counters = np.concatenate([high.ravel(), low.ravel()])
        first, second = np.split(np.asarray(threefry_2x32(jax.random.key_data(key_of(0, path)), counters)), 2)
        bits[path] = (first ^ second).reshape(index.shape)
    has_bits = np.prod(shape, dtype=object) <= 2**53  # limit for expressions
    modules = [f"u: {{shape: {list(shape)}, init: {{uniform: {{low: 0, high: 1}}}}}}"]
    modules += [f"b: {{shape: {list(shape)}, dtype: u32, init: {{expr: bits()}}}}"] * has_bits
    with open_it(modules) as spec:
        if has_bits:
            assert (spec.generate("b", box) == bits["b"]).all()
        assert (spec.generate("u", box) == (bits["u"] >> np.uint32(9)) * np.float32(2.0**-23)).all()


def test_draws_of_one_tensor_use_folded_keys():
    text = "bits() + normal() * 0 + 4294967296 * (bits() - floor(bits() / 1048576) * 1048576)"
    with open_it([f"w: {{shape: [50], dtype: f64, init: {{expr: '{text}'}}}}"]) as spec:
        made = spec.generate("w")
    first, third, fourth = (np.asarray(jax.random.bits(key, (50,), "uint32")).astype(np.float64) for key in (
        key_of(0, "w"), jax.random.fold_in(key_of(0, "w"), 2), jax.random.fold_in(key_of(0, "w"), 3)))
    assert (made == first + 2.0**32 * (third - np.floor(fourth / 2**20) * 2**20)).all()


def test_manual_example_makes_the_tensor_in_jax():
    """The Python lines in shardinit-values(7) run unchanged and make the same tensor."""
    page = (ROOT / "man/shardinit-values.7").read_text()
    lines = page[page.index(".Ss Keys in JAX"):]
    code = lines[lines.index(".Bd -literal"):].split("\n", 1)[1].split(".Ed")[0].replace("\\", "\\") .replace("\\e",
                                                                                                              "\\")
    names = {"hashlib": hashlib, "np": np, "jax": jax, "seed": 7, "path": "a.b", "shape": (4, 6)}
    exec(code, names)
    with open_it(["a.b: {shape: [4, 6], init: {uniform: {low: 0, high: 1}}}"], HEAD + "seed: 7\n") as spec:
        assert is_equal(spec.generate("a.b"), jax.random.uniform(names["key"], (4, 6)))


def test_tensors_with_the_same_key_are_rejected(tmp_path):
    spec = tmp_path / "spec.yaml"
    normal = "init: {normal: {std: 1}}"
    spec.write_text(HEAD + f"""modules:
  a: {{shape: [4], {normal}, key: {{jax: {{seed: 42, split: [2, 1]}}}}}}
  b: {{shape: [5], {normal}, key: {{jax: {{words: [64467757, 2916123636]}}}}}}
""")
    message = run_tool("validate", spec)
    assert message.returncode == 2 and "`a` and `b` would be drawn from the same random stream" in message.stderr


def test_jax_threefry_shards_plan_and_digests(tmp_path):
    """A rank's box can be generated separately, and the plan records everything that the values need."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(HEAD + """mesh: {axes: {data: 2, tensor: 3}}
modules:
  a: {shape: [8, 9], dtype: bf16, init: {normal: {std: 0.02}}, shard: [data, tensor]}
  b: {shape: [6, 6], init: {orthogonal: {}}, fans: out_in, shard: [tensor, data]}
  c: {shape: [4], init: {truncated_normal: {std: 1}}, shard: [data], key: {jax: {seed: 0, split: [3, 1]}}}
""")
    run_ok("gen", spec, "-o", tmp_path / "out")
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    assert plan["engine"] == "jax_threefry"
    words = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(0), 3)[1])).tolist()
    assert plan["tensors"][2]["key"] == {"words": words}
    assert "key" not in plan["tensors"][0]
    model, digests = reference.digests_of(plan)
    wanted = run_json("digest", spec)
    assert model == wanted["model_digest"]
    run_ok("verify", tmp_path / "out")
    explained = run_json("explain", spec, "c")
    assert explained["engine"]["value"] == "jax_threefry"
    assert explained["key"]["value"] == f"{words[1]:08x}{words[0]:08x}" and "path" not in explained["key"]


# Known answers printed in JAX's documentation.

def test_jax_threefry_known_answers():
    with open_it(["u: {shape: [], init: {uniform: {low: 0, high: 1}}, key: {jax: {seed: 0}}}",
               "v: {shape: [], init: {uniform: {low: 0, high: 1}}, key: {jax: {seed: 0, split: [2, 1]}}}",
               "n: {shape: [3], init: {normal: {std: 1}}, key: {jax: {seed: 42}}}",
               "b: {shape: [4], dtype: u32, init: {expr: bits()}, key: {jax: {seed: 0, fold_in: 0}}}",
               *(f"s{n}: {{shape: [], init: {{normal: {{std: 1}}}}, key: {{jax: {{seed: 42, split: [3, {n}]}}}}}}"
                 for n in range(3))]) as spec:
        assert f"{spec.generate('u'):.6f}" == "0.947667"
        assert f"{spec.generate('v'):.8f}" == "0.00729382"
        assert np.abs(spec.generate("n") - [-0.02830462, 0.46713185, 0.29570296]).max() < 4e-8
        for n, wanted in enumerate([0.07592554, 0.60576403, 0.4323065]):
            assert abs(spec.generate(f"s{n}") - wanted) < 7e-8
        assert (spec.generate("b") == np.asarray(jax.random.bits(jax.random.split(jax.random.key(0))[0], (4,)))).all()
    with open_it(["b: {shape: [4], dtype: u32, init: {expr: bits()}, key: {jax: {seed: 0}}}"]) as spec:
        assert [f"{word:08x}" for word in spec.generate("b")] == ["f29a4fa7", "fa843692", "55110e28", "77faa835"]


def test_numbers_drawn_by_key_equal_jax():
    """Expressions can use keys in any order and any number of times."""
    key = jax.random.wrap_key_data(np.array([2**32 - 1, 7], np.uint32))
    texts = {
        "normal": ("jax_normal(4294967295, 7, 3 * i1 + i0)", np.asarray(jax.random.normal(key, (5, 3))).T),
        "uniform": ("jax_uniform(4294967295, 7, 14 - (5 * i0 + i1), -0.3, 0.7)",
                    np.asarray(jax.random.uniform(key, (15,), "float32", -0.3, 0.7))[::-1].reshape(3, 5)),
        "cut": ("jax_truncated_normal(4294967295, 7, i0, -1, 3)",
                np.repeat(np.asarray(jax.random.truncated_normal(key, -1, 3, (15,)))[:3, None], 5, 1)),
        "bits": ("jax_bits(4294967295, 7, 5 * i0 + i1)", np.asarray(jax.random.bits(key, (3, 5)))),
    }
    with open_it([f"{name}: {{shape: [3, 5], dtype: {'u32' if name == 'bits' else 'f32'}, init: {{expr: \"{text}\"}}}}"
               for name, (text, _) in texts.items()]) as spec:
        for name, (_, wanted) in texts.items():
            made = spec.generate(name)
            assert ulps_of(made, wanted).max() <= (3 if name in ("normal", "cut") else 0), name


@pytest.mark.parametrize("engine, text, words", [
    ("philox4x32", "jax_normal(1, 2, index)", "takes numbers of JAX, which engine `philox4x32` cannot draw"),
    ("torch_cpu", "jax_bits(1, 2, index)", "takes numbers of JAX, which engine `torch_cpu/2.13/avx2` cannot draw"),
    ("jax_threefry", "torch_word(index)", "takes numbers of PyTorch, which engine `jax_threefry` cannot draw"),
    ("jax_threefry", "jax_bits(1, 4294967296, index)", "4294967296 is not a word of a key, which has 32 bits"),
    ("jax_threefry", "jax_bits(index, 1, 1)",
     "argument 1 of `jax_bits`, the first word of the key, is not the same for all elements"),
    ("jax_threefry", "jax_uniform(1, 2, index, 1, 0)", "`low` 1 is not below `high` 0"),
    ("jax_threefry", "jax_truncated_normal(1, 2, index, 50, 60)", "there are too few numbers"),
])
def test_invalid_jax_keys_are_rejected(engine, text, words):
    with pytest.raises(shardinit.SpecError) as caught:
        open_it([f"w: {{shape: [4], init: {{expr: \"{text}\"}}}}"], HEAD.replace("jax_threefry", engine))
    assert words in str(caught.value)
