"""Calls functions of torch.nn.init and jax.nn.initializers with numbers of all types and values.

The spec has the constructor's bits, also for values drawn after the call, or the capture fails with a CaptureError that
names the line. PyTorch and JAX decide which arguments are valid: the capture fails where the constructor fails."""

import collections
import math
import signal

import numpy as np
from clients import client_of, like_torch_cpu
from generated import SEED, generated, given
from hypothesis import note
from hypothesis import strategies as st

torch, jax = client_of("torch"), client_of("jax")

import jax.numpy as jnp
import shardinit
import shardinit.capture
from shardinit.capture._compare import ulps_of_orthogonal
from torch import nn

COUNTS = collections.Counter()
NUMBERS = [0, 1, 0.3, 2, -0.0, -1.5, 1e-3, 0.7, 1e-40, math.inf, -math.inf, math.nan]
KINDS = {
    "float": float, "int": lambda x: int(x) if math.isfinite(x) else x, "bool": bool, "f64": np.float64,
    "f32": np.float32, "i64": lambda x: np.int64(x) if math.isfinite(x) else np.float64(x), "array": np.array,
    "tensor": lambda x: torch.tensor(float(x)), "wide tensor": lambda x: torch.tensor(float(x), dtype=torch.float64),
    "whole tensor": lambda x: torch.tensor(int(x) if math.isfinite(x) else 1),
    "row": lambda x: torch.tensor([float(x)]), "jax": lambda x: jnp.float32(x)}

# Each function → its parameters. A shape is drawn from those that it accepts.
MATRICES = [(4, 6), (6, 4), (1, 3), (5, 2, 4), (0, 3), (32, 8)]
FUNCTIONS = {
    "uniform_": "ab", "normal_": ("mean", "std"), "trunc_normal_": ("mean", "std", "a", "b"), "constant_": ("val",),
    "ones_": "",
    "zeros_": "", "eye_": "", "dirac_": ("groups",), "xavier_uniform_": ("gain",), "xavier_normal_": ("gain",),
    "kaiming_uniform_": ("a",), "kaiming_normal_": ("a",), "orthogonal_": ("gain",), "sparse_": ("sparsity", "std")}
TORCH_KINDS = sorted(KINDS.keys() - {"jax"})


def argument_numbers(names, kinds):
    one = st.tuples(st.sampled_from(kinds), st.sampled_from(NUMBERS))
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, one))


CALLS = st.sampled_from(sorted(FUNCTIONS)).flatmap(lambda name: st.tuples(
    st.just(name), argument_numbers(FUNCTIONS[name], TORCH_KINDS), st.sampled_from(MATRICES),
    st.sampled_from(["float32", "float32", "bfloat16", "float64"])))


class Net(nn.Module):
    def __init__(self, calls):
        super().__init__()
        for n, (name, numbers, shape, dtype) in enumerate(calls):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            needed = {"constant_": {"val": 1.0}, "sparse_": {"sparsity": 0.3}}.get(name, {})
            given = {key: KINDS[kind](x) for key, (kind, x) in numbers.items()}
            getattr(nn.init, name)(tensor, **{**needed, **given})
            if tensor.numel():
                self.register_parameter(f"w{n}", nn.Parameter(tensor))
            self.register_parameter(f"normal{n}", nn.Parameter(torch.randn(3)))
        self.last = nn.Parameter(torch.rand(5))


class Endless(BaseException):
    pass


def really_made(make):
    """Returns the function's result or error, or Endless if PyTorch loops because no number satisfies it."""
    def end(*_):
        raise Endless

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, 20)  # seconds of processor time, since other processes may be running
    try:
        return make()
    except (Exception, Endless) as error:
        return error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def captured_or_refused(capture, real):
    try:
        captured = capture()
    except shardinit.CaptureError as error:
        assert not error.is_fault and __file__ in str(error), error
        if isinstance(real, BaseException):
            COUNTS["failed"] += 1
        else:
            COUNTS["refused"] += 1
            assert "the constructor failed" not in str(error), error
        return None
    assert not isinstance(real, BaseException), (real, captured.text)
    COUNTS["captured"] += 1
    return captured


def raw_bytes(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def is_near(made, real, shape):
    made, real = made.double().numpy().reshape(shape), real.detach().double().numpy().reshape(shape)
    largest = np.abs(real).max()
    return bool((np.abs(made - real) <= ulps_of_orthogonal(shape) * largest / 2**24).all())


@generated(120)
@given(calls=st.lists(CALLS, min_size=1, max_size=3), engine=st.sampled_from(["torch_cpu", "torch_cpu", "philox4x32"]))
def has_the_bits_of_pytorch(calls, engine):
    note(f"SHARDINIT_GENERATED_SEED={SEED}")
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(5)
        real = really_made(lambda: Net(calls))
    if isinstance(real, Endless):
        return
    captured = captured_or_refused(lambda: shardinit.capture.torch(Net, calls, engine=engine, seed=5), real)
    if captured is None:
        return
    with captured.spec() as spec:
        made = shardinit.torch.load_state_dict(spec)
    for path, tensor in real.state_dict().items():
        assert (made[path].dtype, made[path].shape) == (tensor.dtype, tensor.shape), path
        if engine == "philox4x32" and path in captured.drawn:
            continue
        if raw_bytes(made[path]) != raw_bytes(tensor):
            name = calls[int(path[1:])][0] if path.startswith("w") else ""
            wide = tensor.dtype == torch.float64  # PyTorch does not round float64 correctly.
            assert name == "orthogonal_" or wide, (path, made[path], tensor, captured.text)
            assert is_near(made[path], tensor, tuple(tensor.shape)), (path, made[path], tensor, captured.text)


INITIALIZERS = {
    "constant": ("value",), "normal": ("stddev",), "uniform": ("scale",),
    "truncated_normal": ("stddev", "lower", "upper"),
    "orthogonal": ("scale",), "delta_orthogonal": ("scale",), "glorot_normal": "", "glorot_uniform": "",
    "he_normal": "", "he_uniform": "", "lecun_normal": "", "lecun_uniform": "", "variance_scaling": ("scale",)}
JAX_KINDS = ["float", "int", "bool", "f64", "f32", "i64", "array", "jax"]
# JAX cannot compute a QR decomposition of bf16 on a CPU.
JAX_CALLS = st.sampled_from(sorted(INITIALIZERS)).flatmap(lambda name: st.tuples(
    st.just(name), argument_numbers(INITIALIZERS[name], JAX_KINDS),
    st.sampled_from([(4, 6), (6, 4), (3, 3, 4, 6), (1, 3)]),
    st.sampled_from(["float32", "float32", *(["bfloat16"] if "orthogonal" not in name else [])])))


def tree_of(calls):
    def make(key):
        made = {}
        for n, (name, numbers, shape, dtype) in enumerate(calls):
            given = {k: KINDS[kind](x) for k, (kind, x) in numbers.items()}
            if name == "variance_scaling":
                given = {"scale": 1.0, "mode": "fan_in", "distribution": "uniform", **given}
            if name == "constant":
                given = {"value": 1.0, **given}
            made[f"w{n}"] = getattr(jax.nn.initializers, name)(**given)(jax.random.fold_in(key, n), shape, dtype)
        made["last"] = jax.random.uniform(key, (5,))
        return made

    return make


@generated(40)
@given(calls=st.lists(JAX_CALLS, min_size=1, max_size=2), engine=st.sampled_from(["jax_threefry", "philox4x32"]))
def has_the_numbers_of_jax(calls, engine):
    note(f"SHARDINIT_GENERATED_SEED={SEED}")
    real = really_made(lambda: tree_of(calls)(jax.random.key(5)))
    captured = captured_or_refused(lambda: shardinit.capture.jax(tree_of(calls), engine=engine, seed=5), real)
    if captured is not None:
        verified = captured.verify("sample")
        assert verified.good, (verified.table(), captured.text)


@like_torch_cpu()
def test_random_arguments_of_torch_init_are_captured():
    has_the_bits_of_pytorch()
    assert COUNTS["captured"] > COUNTS["refused"], COUNTS


def test_random_arguments_of_jax_initializers_are_captured():
    COUNTS.clear()
    has_the_numbers_of_jax()
    assert COUNTS["captured"] > COUNTS["refused"], COUNTS
