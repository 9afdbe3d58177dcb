"""Models whose state dict differs from their parameters: state_dict hooks, wrappers, parametrizations."""

import sys
from unittest import mock

import numpy as np
import pytest

from clients import client_of, gen_ok

torch = client_of("torch")

import shardinit
from test_python_torch import spawn_it, words_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.utils import parametrizations, parametrize

QKV = """
shardinit: 1
name: qkv
dtype: f32
init: {{n: {{normal: {{std: 0.1}}}}}}
modules:
  layers:
    repeat: {{layer: 2}}
    wq.weight: {{shape: [32, 16], init: n}}
    wk.weight: {{shape: [{kv}, 16], init: n}}
    wv.weight: {{shape: [{kv}, 16], init: n}}
  norm: {{shape: [16], init: n}}
"""
PAIR = """
shardinit: 1
name: pair
dtype: f32
modules:
  one.weight: {shape: [6, 4], init: {normal: {std: 1}}}
  one.bias: {shape: [6], init: {normal: {std: 1}}}
  two.weight: {shape: [4, 6], init: {normal: {std: 1}}}
"""


def fused_qkv_linear(heads, kv_heads):
    """Returns torchtitan's own module. It does not need Triton, which is imported only for GPU kernels."""
    client_of("torch._inductor.compile_fx")  # imported first, so that it does not find the stand-in for Triton
    stand_ins = {name: mock.MagicMock() for name in ("triton", "triton.language")}
    sys.modules.update({name: each for name, each in stand_ins.items() if name not in sys.modules})
    try:
        attention = client_of("torchtitan.models.common.attention")
    finally:
        for name, each in stand_ins.items():
            if sys.modules[name] is each:
                del sys.modules[name]
    linear = client_of("torchtitan.models.common.linear").Linear
    width = 8 * (heads + 2 * kv_heads)
    return attention.FusedQKVLinear.Config(
        head_dim=8,
        n_heads=heads,
        n_kv_heads=kv_heads,
        wqkv=linear.Config(in_features=16, out_features=width),
    ).build()


class Attention(nn.Module):
    def __init__(self, kv_heads):
        super().__init__()
        self.layers = nn.ModuleList([fused_qkv_linear(4, kv_heads) for _ in range(2)])
        self.norm = nn.Parameter(torch.ones(16))


@pytest.fixture(scope="module", params=[2, 1])
def fused(request, tmp_path_factory):
    """Returns KV heads, spec, checkpoint, and the parameters after torch.nn.Module.load_state_dict."""
    text = QKV.format(kv=8 * request.param)
    folder = gen_ok(text, tmp_path_factory.mktemp("qkv"))
    model = Attention(request.param)
    model.load_state_dict(shardinit.torch.load_state_dict(folder))
    return request.param, text, folder, dict(model.named_parameters())


@pytest.mark.parametrize("meta", [True, False])
def test_fused_matrix_split_by_a_hook_is_filled(fused, meta):
    """torchtitan's hook splits a fused matrix. With one KV head the hook returns views, otherwise copies."""
    kv_heads, text, folder, wanted = fused
    for fill in (
        lambda model: shardinit.torch.load_into(model, folder, verify=True),
        lambda model: shardinit.torch.init_(model, shardinit.open_spec(text=text)),
    ):
        with torch.device("meta" if meta else "cpu"):
            model = Attention(kv_heads)
        places = {n: p.data_ptr() for n, p in model.named_parameters()}
        result = fill(model)
        assert result == ([], []) and result.on_meta == []
        assert [n for n, _ in model.named_parameters()] == list(wanted)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, wanted[name]), name
            assert isinstance(parameter, nn.Parameter) and parameter.requires_grad
            assert meta or parameter.data_ptr() == places[name]


@pytest.mark.parametrize("meta", [True, False])
def test_part_of_a_fused_matrix_is_reported_missing(meta, tmp_path):
    without = "\n".join(line for line in QKV.format(kv=16).split("\n") if "wv" not in line)
    spec = shardinit.open_spec(text=without)
    with torch.device("meta" if meta else "cpu"):
        model = Attention(2)
    with pytest.raises(shardinit.MismatchError) as caught:
        shardinit.torch.init_(model, spec)
    assert caught.value.missing == ["layers.0.wv.weight", "layers.1.wv.weight"]
    result = shardinit.torch.init_(model, spec, strict=False)
    unwritten = ["layers.0.wqkv.weight", "layers.1.wqkv.weight"]
    assert result.missing_keys == caught.value.missing + unwritten
    assert result.on_meta == (unwritten if meta else [])
    assert not model.norm.is_meta and not (model.norm == 1).any()


def fill_sharded(folder, text):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    wanted = Attention(2)
    wanted.load_state_dict(shardinit.torch.load_state_dict(folder))
    wanted = dict(wanted.named_parameters())
    mesh = init_device_mesh("cpu", (2,))
    for meta in (True, False):
        with torch.device("meta" if meta else "cpu"):
            model = Attention(2)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if meta:
            shardinit.torch.load_into(model, folder)
        else:
            shardinit.torch.init_(model, shardinit.open_spec(text=text))
        for name, parameter in model.named_parameters():
            assert isinstance(parameter, DTensor) and parameter.placements[0].is_shard(0), name
            assert torch.equal(parameter.full_tensor(), wanted[name]), name
        model.layers[0](torch.ones(1, 3, 16))[0].sum().backward()  # FSDP2 knows its parameters


def test_fused_matrix_under_fsdp2_is_filled(tmp_path):
    fused_qkv_linear(4, 2)
    text = QKV.format(kv=16)
    spawn_it(2, tmp_path, fill_sharded, str(gen_ok(text, tmp_path)), text)


# ---- All kinds of hooks.


class Hooked(nn.Module):
    """Two layers; `save` changes the state dict of the first layer, and `load` reverts the change."""

    def __init__(self, save, load=None):
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 4, bias=False)
        self.one.register_state_dict_post_hook(
            lambda module, state, prefix, _: save(state, prefix, module)
        )
        if load:
            self.one.register_load_state_dict_pre_hook(
                lambda module, state, prefix, *_: load(state, prefix)
            )


def rows(state, prefix, module, clone):
    weight = state.pop(prefix + "weight")
    for i, part in enumerate(weight.split(3)):
        state[f"{prefix}part{i}"] = part.clone() if clone else part


def join_it(state, prefix):
    parts = [state.pop(f"{prefix}part{i}") for i in range(2)]  # a KeyError if a part is missing
    state[prefix + "weight"] = torch.cat(parts)


PARTS = PAIR.replace(
    "  one.weight: {shape: [6, 4], init: {normal: {std: 1}}}",
    "  one.part0: {shape: [3, 4], init: {normal: {std: 1}}}\n"
    "  one.part1: {shape: [3, 4], init: {normal: {std: 1}}}",
)


def is_equal(model, spec):
    made = {path: torch.from_numpy(spec.read(path)) for path in spec.tensors}
    if "one.part0" in made:
        made["one.weight"] = torch.cat([made.pop("one.part0"), made.pop("one.part1")])
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, made[name]), name


@pytest.mark.parametrize("meta", [True, False])
@pytest.mark.parametrize("clone", [True, False])
def test_hook_may_return_copies_or_views(meta, clone):
    spec = shardinit.open_spec(text=PARTS)
    with torch.device("meta" if meta else "cpu"):
        model = Hooked(lambda *of: rows(*of, clone), join_it)
    assert shardinit.torch.load_into(model, spec) == ([], [])
    is_equal(model, spec)


def test_copies_without_a_load_hook_are_reported():
    spec = shardinit.open_spec(text=PARTS)
    for device in ("meta", "cpu"):
        with torch.device(device):
            model = Hooked(lambda *of: rows(*of, True))
        old = model.one.weight
        with pytest.raises(shardinit.MismatchError, match="but not all of it") as caught:
            shardinit.torch.load_into(model, spec)
        assert caught.value.missing == ["one.weight"] and model.one.weight is old
        result = shardinit.torch.load_into(model, spec, strict=False)
        assert result.missing_keys == ["one.weight"]
        assert result.on_meta == (["one.weight"] if device == "meta" else [])
        assert torch.equal(model.two.weight, torch.from_numpy(spec.read("two.weight")))


def test_tensors_left_out_of_the_state_dict_are_reported_first():
    def leave_out(state, prefix, module):
        del state[prefix + "weight"]

    text = "\n".join(line for line in PAIR.split("\n") if "one.weight" not in line)
    spec = shardinit.open_spec(text=text)
    model = Hooked(leave_out)
    before = model.two.weight.clone()
    with pytest.raises(shardinit.MismatchError, match="leaves out `one.weight`") as caught:
        shardinit.torch.load_into(model, spec)
    assert caught.value.missing == ["one.weight"] and torch.equal(model.two.weight, before)
    assert shardinit.torch.load_into(model, spec, strict=False) == (["one.weight"], [])
    assert not torch.equal(model.two.weight, before)


def test_partial_or_overlapping_views_are_rejected():
    def half_one(state, prefix, module):
        state[prefix + "part0"] = state.pop(prefix + "weight")[:3]

    def twice(state, prefix, module):
        weight = state.pop(prefix + "weight")
        state[prefix + "part0"], state[prefix + "part1"] = weight[:3], weight[2:5]

    half = "\n".join(line for line in PARTS.split("\n") if "part1" not in line)
    model = Hooked(half_one)
    with pytest.raises(shardinit.MismatchError) as caught:
        shardinit.torch.load_into(model, shardinit.open_spec(text=half))
    assert caught.value.missing == ["one.weight"]
    model = Hooked(twice)
    with pytest.raises(shardinit.MismatchError) as caught:
        shardinit.torch.load_into(model, shardinit.open_spec(text=PARTS))
    assert caught.value.mismatching == {
        "one.part1": "shares a part of its memory with another tensor"
    }


def test_hooks_may_change_shapes_or_values():
    def transpose(state, prefix, module):
        state[prefix + "weight"] = state[prefix + "weight"].t()

    def double(state, prefix, module):
        state[prefix + "weight"] = state[prefix + "weight"] * 2

    def halve(state, prefix):
        state[prefix + "weight"] = state[prefix + "weight"] / 2

    turned = shardinit.open_spec(text=PAIR.replace("one.weight: {shape: [6, 4]", "one.weight: {shape: [4, 6]"))
    model = Hooked(transpose)
    shardinit.torch.load_into(model, turned)
    assert torch.equal(model.one.weight.t(), torch.from_numpy(turned.read("one.weight")))
    model, spec = Hooked(double, halve), shardinit.open_spec(text=PAIR)
    shardinit.torch.load_into(model, spec)
    assert torch.equal(model.one.weight, torch.from_numpy(spec.read("one.weight")) / 2)
    assert torch.equal(model.one.bias, torch.from_numpy(spec.read("one.bias")))


# ---- Wrappers.


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 4, bias=False)

    def forward(self, x):
        return self.two(self.one(x))


def wrapped():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    inner = Pair()
    inner.one = torch.compile(inner.one)
    yield "compiled", torch.compile(Pair())
    yield "a compiled layer", inner
    yield "DataParallel", nn.DataParallel(Pair())
    yield "DataParallel of compiled", nn.DataParallel(torch.compile(Pair()))
    inner = Pair()
    inner.two = checkpoint_wrapper(inner.two)
    yield "activation checkpointing", inner


@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("meta", [True, False])
def test_wrapped_models_need_no_rename(index, meta):
    spec = shardinit.open_spec(text=PAIR)
    with torch.device("meta" if meta else "cpu"):
        name, model = list(wrapped())[index]
    assert shardinit.torch.load_into(model, spec) == ([], []), name
    for path, parameter in zip(spec.tensors, model.parameters(), strict=True):
        assert torch.equal(parameter, torch.from_numpy(spec.read(path))), (name, path)
    with pytest.raises(shardinit.MismatchError) as caught:
        shardinit.torch.load_into(model, shardinit.open_spec(text=PAIR.replace("two.", "three.")))
    assert [path.removeprefix("module.") for path in caught.value.missing] == ["two.weight"]


def test_submodule_named_module_is_not_a_wrapper():
    """A model's submodule may be named `module`, also in the checkpoint and next to other submodules."""
    text = PAIR.replace("one.", "module.one.").replace("two.", "module.two.")
    spec = shardinit.open_spec(text=text + "  one.weight: {shape: [6, 4], init: ones}\n")
    model = nn.Module()
    model.module, model.one = Pair(), nn.Linear(4, 6, bias=False)
    assert shardinit.torch.load_into(model, spec) == ([], [])
    assert (model.one.weight == 1).all()
    assert np.array_equal(words_of(model.module.one.weight), spec.read("module.one.weight").view("<u4"))


class Scaled(nn.Module):
    def forward(self, x):
        return x * 3


class Power(Scaled):
    def right_inverse(self, x):
        return x / 3


@pytest.mark.parametrize("meta", [True, False])
def test_parametrized_tensors_are_filled(meta):
    """Original tensors get the same values as if parametrization had been registered after loading."""
    spec = shardinit.open_spec(text=PAIR)
    for register in (
        lambda layer: parametrize.register_parametrization(layer, "weight", Scaled(), unsafe=True),
        lambda layer: parametrize.register_parametrization(layer, "weight", Power(), unsafe=True),
        parametrizations.weight_norm,
    ):
        wanted = Pair()
        wanted.load_state_dict({p: torch.from_numpy(spec.read(p)) for p in spec.tensors})
        register(wanted.one)
        model = Pair()
        register(model.one)
        if meta:
            model = model.to("meta")
        assert shardinit.torch.load_into(model, spec, verify=True) == ([], [])
        for name, tensor in wanted.state_dict().items():
            assert torch.equal(model.state_dict()[name], tensor), name
        # Names of the stored originals are considered too.
        direct = shardinit.torch.load_into(
            model, spec, strict=False, rename=lambda name: name.replace("one.", "none.")
        )
        assert len(direct.missing_keys) >= 2 and direct.unexpected_keys == ["one.weight", "one.bias"]


def train_wrapped(text):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel

    spec = shardinit.open_spec(text=text)
    wanted = {path: torch.from_numpy(spec.read(path)) for path in spec.tensors}
    model = DistributedDataParallel(Pair())
    assert shardinit.torch.init_(model, spec) == ([], [])
    for path, parameter in zip(spec.tensors, model.parameters(), strict=True):
        assert torch.equal(parameter, wanted[path])
    model = FullyShardedDataParallel(Pair(), use_orig_params=True, device_id=torch.device("cpu"))
    assert shardinit.torch.init_(model, spec) == ([], [])
    with FullyShardedDataParallel.summon_full_params(model):
        for path, parameter in zip(spec.tensors, model.parameters(), strict=True):
            assert torch.equal(parameter, wanted[path]), path


def test_distributed_wrappers_need_no_rename(tmp_path):
    spawn_it(2, tmp_path, train_wrapped, PAIR)
