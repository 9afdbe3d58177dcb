"""Each initializer with a name in PyTorch, JAX or Keras draws the same values as there. Its parameters are read from a
generated plan and compared with the other system's, and so are values drawn with a fixed seed.

If a system is not installed, `test_framework_is_installed[…]` fails, and tests that need the system are skipped with its name."""

import importlib
import json
import math
import os

import numpy as np
import pytest
import scipy.stats

from support import DTYPES, ROOT, reassemble, run_ok

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

SYSTEMS = {}
for name in ["torch", "jax", "keras"]:
    try:
        SYSTEMS[name] = importlib.import_module(name)
    except ImportError as error:
        SYSTEMS[name] = error

SHAPE = (192, 320)  # 61,440 elements with two different fans
KERNEL = (5, 3, 48, 80)  # a convolution in the order of JAX and Keras
TORCH_KERNEL = (80, 48, 5, 3)

# name → (system, tensor of a spec, call of the system)
CASES = {}


def by_torch(init, call, shape=SHAPE, more="fans: out_in"):
    def draw_it(torch):
        torch.manual_seed(7)
        return getattr(torch.nn.init, call[0])(torch.empty(*shape), **call[1]).numpy()

    CASES[f"torch {init} {list(shape)}"] = ("torch", init, shape, more, draw_it)


def by_jax(init, call, shape=SHAPE, more="fans: in_out"):
    def draw_it(jax):
        initializer = getattr(jax.nn.initializers, call[0])(**call[1])
        return np.asarray(initializer(jax.random.key(7), shape, "float32"))

    CASES[f"jax {init} {list(shape)}"] = ("jax", init, shape, more, draw_it)


def by_keras(init, call, shape=SHAPE, more="fans: in_out"):
    def draw_it(keras):
        initializer = getattr(keras.initializers, call[0])(seed=7, **call[1])
        return np.asarray(initializer(shape, dtype="float32"))

    CASES[f"keras {init} {list(shape)}"] = ("keras", init, shape, more, draw_it)


by_torch("{uniform: {low: 0, high: 1}}", ("uniform_", {}))
by_torch("{normal: {std: 1}}", ("normal_", {}))
by_torch("{normal: {mean: 2, std: 3}}", ("normal_", {"mean": 2, "std": 3}))
by_torch("{trunc_normal: {std: 1}}", ("trunc_normal_", {}))
by_torch("{trunc_normal: {mean: 1, std: 0.5, a: 0.25, b: 1.5}}",
      ("trunc_normal_", {"mean": 1, "std": 0.5, "a": 0.25, "b": 1.5}))
by_torch("{constant: {value: 0.3}}", ("constant_", {"val": 0.3}))
by_torch("zeros", ("zeros_", {}))
by_torch("ones", ("ones_", {}))
for kind in ["uniform", "normal"]:
    by_torch(f"xavier_{kind}", (f"xavier_{kind}_", {}))
    by_torch(f"xavier_{kind}", (f"xavier_{kind}_", {}), TORCH_KERNEL)
    by_torch(f"{{xavier_{kind}: {{gain: 5 / 3}}}}", (f"xavier_{kind}_", {"gain": 5 / 3}))
    by_torch(f"kaiming_{kind}", (f"kaiming_{kind}_", {}))
    by_torch(f"kaiming_{kind}", (f"kaiming_{kind}_", {}), TORCH_KERNEL)
    by_torch(f"{{kaiming_{kind}: {{a: sqrt(5)}}}}", (f"kaiming_{kind}_", {"a": math.sqrt(5)}))
    by_torch(f"{{kaiming_{kind}: {{mode: fan_out, nonlinearity: selu}}}}",
          (f"kaiming_{kind}_", {"mode": "fan_out", "nonlinearity": "selu"}))

by_jax("{uniform: {low: 0, high: 0.01}}", ("uniform", {}))
by_jax("{normal: {std: 0.01}}", ("normal", {}))
by_jax("{truncated_normal: {std: 0.01}}", ("truncated_normal", {}))
by_jax("{truncated_normal: {std: 0.5, low: -1, high: 3}}",
    ("truncated_normal", {"stddev": 0.5, "lower": -1, "upper": 3}))
by_jax("{constant: {value: 0.3}}", ("constant", {"value": 0.3}))
for name in ["glorot", "he", "lecun"]:
    for kind in ["uniform", "normal"]:
        by_jax(f"{name}_{kind}", (f"{name}_{kind}", {}))
        by_jax(f"{name}_{kind}", (f"{name}_{kind}", {}), KERNEL)
        class_name = {"glorot": "Glorot", "he": "He", "lecun": "Lecun"}[name] + kind.title()
        by_keras(f"{name}_{kind}", (class_name, {}))
        by_keras(f"{name}_{kind}", (class_name, {}), KERNEL)
for mode in ["fan_in", "fan_out", "fan_avg", "fan_geo_avg"]:
    for form in ["truncated_normal", "normal", "uniform"]:
        arguments = {"scale": 1.5, "mode": mode, "distribution": form}
        init = f"{{variance_scaling: {{scale: 1.5, mode: {mode}, distribution: {form}}}}}"
        by_jax(init, ("variance_scaling", arguments))
        if mode != "fan_geo_avg":
            form = "untruncated_normal" if form == "normal" else form
            init = f"{{variance_scaling: {{scale: 1.5, mode: {mode}, distribution: {form}}}}}"
            by_keras(init, ("VarianceScaling", {**arguments, "distribution": form}))
# Stacked layers, and an embedding with its width as fan_in.
by_jax("lecun_normal", ("lecun_normal", {"batch_axis": 0}), (4, 48, 320), "fans: in_out, batch_axis: 0")
by_jax("lecun_uniform", ("lecun_uniform", {"in_axis": (0, 1), "out_axis": 2}), (16, 12, 320),
    "in_axis: [0, 1], out_axis: 2")
by_jax("he_normal", ("he_normal", {"in_axis": 2, "out_axis": (0, 1)}), (16, 12, 320), "in_axis: -1, out_axis: [0, 1]")

by_keras("random_normal", ("RandomNormal", {}))
by_keras("{random_normal: {mean: 1, stddev: 2}}", ("RandomNormal", {"mean": 1, "stddev": 2}))
by_keras("random_uniform", ("RandomUniform", {}))
by_keras("{random_uniform: {minval: -1, maxval: 3}}", ("RandomUniform", {"minval": -1, "maxval": 3}))
by_keras("{truncated_normal: {std: 0.05}}", ("TruncatedNormal", {}))
by_keras("variance_scaling", ("VarianceScaling", {}))


# Keras and PyTorch reshape a convolution to a matrix in these ways.
for init, call in [("orthogonal", {}), ("{orthogonal: {gain: 3 / 2}}", {"gain": 1.5})]:
    by_torch(init, ("orthogonal_", call))
    by_torch(init, ("orthogonal_", call), TORCH_KERNEL)
    by_keras(init, ("Orthogonal", call), KERNEL)
by_torch("{orthogonal: {gain: tanh}}", ("orthogonal_", {"gain": 5 / 3}), SHAPE[::-1])
by_jax("orthogonal", ("orthogonal", {}), KERNEL)
by_jax("{orthogonal: {column_axis: 1}}", ("orthogonal", {"column_axis": 1}), (48, 80, 15))
by_jax("{delta_orthogonal: {gain: 2}}", ("delta_orthogonal", {"scale": 2}), KERNEL)


by_torch("{sparse: {sparsity: 0.3, std: 2}}", ("sparse_", {"sparsity": 0.3, "std": 2}))

# Every public name of the three systems: our name, or the reason why we have none.
HELPERS = {"calculate_gain": "`gain: relu`", "Initializer": "a type", "get": "a helper", "serialize": "a helper",
           "deserialize": "a helper"}


def public_names(system):
    if system == "torch":
        names = SYSTEMS["torch"].nn.init.__all__
    else:
        module = SYSTEMS[system].nn if system == "jax" else SYSTEMS[system]
        names = [name for name in dir(module.initializers) if not name.startswith("_")]
    return sorted({name.rstrip("_").removesuffix("Initializer") or name for name in names})


@pytest.mark.parametrize("system", SYSTEMS)
def test_initializers_of_each_framework_exist(system):
    if isinstance(SYSTEMS[system], ImportError):
        pytest.skip(f"{system} is not installed")
    schema = json.loads((ROOT / "schemas/spec.schema.json").read_text())
    form = next(f for f in schema["definitions"]["initializer"]["anyOf"] if "properties" in f)
    ours = {name.replace("_", "") for name in form["properties"]}
    names = [name for name in public_names(system) if name not in HELPERS]
    assert len(names) > 12
    assert [name for name in names if name.lower().replace("_", "") not in ours] == []


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    """Maps each case to its flat f32 values; each case is drawn once, as a tensor of one spec."""
    folder = tmp_path_factory.mktemp("initializers")
    lines = [f"  t{i}: {{shape: {list(shape)}, init: {init}, {more}}}\n"
             for i, (_, init, shape, more, _) in enumerate(CASES.values())]
    (folder / "spec.yaml").write_text("shardinit: 1\nname: x\ndtype: f32\nseed: 3\nmodules:\n" + "".join(lines))
    run_ok("gen", folder / "spec.yaml", "-o", folder / "out")
    values = {path: words.view(DTYPES[dtype]).reshape(-1)
              for path, (dtype, words) in reassemble(folder / "out").items()}
    return {case: values[f"t{i}"] for i, case in enumerate(CASES)}


@pytest.mark.parametrize("system", SYSTEMS)
def test_framework_is_installed(system):
    if isinstance(SYSTEMS[system], ImportError):
        pytest.fail(f"{system} is not installed, so no initializer was compared with it: {SYSTEMS[system]}")


def draw_with_framework(case):
    system, _, _, _, draw = CASES[case]
    if isinstance(SYSTEMS[system], ImportError):
        pytest.skip(f"{system} is not installed")
    return draw(SYSTEMS[system]).astype(np.float64).reshape(-1)


@pytest.mark.parametrize("case", CASES)
def test_initializer_matches_the_frameworks_distribution(case, tensors):
    ours, theirs = tensors[case].astype(np.float64), draw_with_framework(case)
    assert ours.size == theirs.size
    if theirs.min() == theirs.max():
        assert ours.min() == ours.max() == theirs.max()
        return
    n, std = ours.size, theirs.std()
    # Five standard errors of the difference. The standard error of a variance has the factor sqrt((kurtosis - 1) / n).
    kurtosis = ((ours - ours.mean()) ** 4).mean() / ours.var() ** 2
    assert abs(ours.mean() - theirs.mean()) < 5 * std * math.sqrt(2 / n)
    assert abs(ours.var() / theirs.var() - 1) < 5 * math.sqrt(2 * (kurtosis - 1) / n)
    # Samples of a bounded distribution approach its bounds.
    if any(word in case.replace("untruncated", "") for word in ["uniform", "trunc", "glorot", "he_", "lecun"]):
        assert abs(ours.max() - theirs.max()) < 0.02 * std
        assert abs(ours.min() - theirs.min()) < 0.02 * std
    assert scipy.stats.ks_2samp(ours, theirs, method="asymp").pvalue > 1e-3


# Keras computes in f32, with sine and cosine arguments of several hundred.
@pytest.mark.parametrize("side", ["real", "imag"])
@pytest.mark.parametrize("window", ["hann", "hamming", None])
@pytest.mark.parametrize("scaling, periodic", [("density", False), ("spectrum", True), (None, False)])
def test_stft_initializer_equals_keras(side, window, scaling, periodic, tmp_path):
    keras = SYSTEMS["keras"]
    if isinstance(keras, ImportError):
        pytest.skip("keras is not installed")
    shapes = [(64, 1, 33), (5, 1, 4), (3, 1, 2), (2, 1, 3), (1, 1, 3)]
    if not periodic and window == "hann":
        shapes.remove((2, 1, 3))  # all zeros, and Keras divides by their sum
    arguments = f"side: {side}, window: {window or 'none'}, scaling: {scaling or 'none'}, periodic: {int(periodic)}"
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: x\ndtype: f32\nmodules:\n" + "".join(
        f"  t{i}: {{shape: {list(shape)}, init: {{stft: {{{arguments}}}}}}}\n" for i, shape in enumerate(shapes)))
    run_ok("gen", spec, "-o", tmp_path / "out")
    ours = {path: words.view("<f4") for path, (_, words) in reassemble(tmp_path / "out").items()}
    for i, shape in enumerate(shapes):
        theirs = np.asarray(keras.initializers.STFT(side, window, scaling, periodic)(shape))
        assert np.abs(ours[f"t{i}"] - theirs).max() < 3e-5, shape


# Every gain matches exactly: with xavier_normal, the std of a [1, 1] tensor is the gain.
def test_gains_equal_pytorch(tmp_path):
    torch = SYSTEMS["torch"]
    if isinstance(torch, ImportError):
        pytest.skip("torch is not installed")
    names = ["linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
             "sigmoid", "tanh", "relu", "leaky_relu", "selu"]
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: x\ndtype: f32\nmodules:\n" + "".join(
        f"  {name}: {{shape: [1, 1], init: {{xavier_normal: {{gain: {name}}}}}}}\n" for name in names))
    run_ok("gen", spec, "-o", tmp_path / "out")
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    assert {t["path"]: t["init"]["normal"]["std"] for t in plan["tensors"]} == {
        name: torch.nn.init.calculate_gain(name) for name in names}


# The plan stores only the lowered distribution.
def test_plan_records_the_distribution(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: x\ndtype: f32\nfans: in_out\n"
                    "modules: {w: {shape: [16, 4], init: lecun_normal}}\n")
    run_ok("gen", spec, "-o", tmp_path / "out")
    tensor, = json.loads((tmp_path / "out/plan.json").read_text())["tensors"]
    assert tensor["init"] == {"truncated_normal": {
        "mean": 0, "std": math.sqrt(1 / 16) / 0.87962566103423978, "low": -2, "high": 2}}
