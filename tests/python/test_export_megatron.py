"""Megatron-core's dist_checkpointing loads `export --to megatron` into its own GPTModel."""

import itertools
import json
import pickle
import zipfile

import megatron_model
import pytest
from clients import client_of
from support import ROOT, reassemble, run_ok, run_tool

torch = client_of("torch")
client_of("megatron.core")
from torch_processes import start  # noqa: E402

SIZES = {"d": 64, "ff": 128, "layers": 4, "heads": 8, "kv_heads": 4, "head_dim": 8, "vocab": 512}
EXPERTS = 6  # It differs from the number of layers, as both are parts of state names.


def export(folder, name, *arguments, **sizes):
    """Returns the export's folder, and the arrays that `gen` makes by key."""
    sets = itertools.chain.from_iterable(("--set", f"vars.{k}={n}") for k, n in (SIZES | sizes).items())
    arguments = [ROOT / f"configs/{name}.yaml", "--layout", "torch_dist", *sets, *arguments]
    run_ok("gen", *arguments, "-o", folder / "gen")
    run_ok("export", *arguments, "--to", "megatron", "-o", folder / "out")
    return folder / "out", {path: words for path, (_, words) in reassemble(folder / "gen").items()}


def load_and_compare(rank, world, rendezvous, folder, expected, experts, degrees, strict):
    """A process that loads into each virtual stage and compares every parameter, at the place that Megatron gives
    it."""
    import torch.distributed as dist

    megatron_model.start(rank, world, rendezvous, degrees)
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
    from megatron.core.dist_checkpointing.validation import StrictHandling

    models = megatron_model.make_models(degrees, **SIZES, experts=experts)
    state = {f"model{i}": model.sharded_state_dict() for i, model in enumerate(models)}
    state = dist_checkpointing.load(state, folder, strict=StrictHandling(strict))
    keys = set()
    for i, model in enumerate(models):
        model.load_state_dict({k: v for k, v in state[f"model{i}"].items() if isinstance(v, torch.Tensor)},
                              strict=False)
        names = set()
        for name, held in model.sharded_state_dict().items():
            if not isinstance(held, (ShardedTensor, ShardedTensorFactory)):
                continue
            parts = held.build() if isinstance(held, ShardedTensorFactory) else [held]
            for part in parts.values() if isinstance(parts, dict) else parts:
                extents = [1] * part.prepend_axis_num + list(part.local_shape)
                box = tuple(slice(o, o + n) for o, n in zip(part.global_offset, extents))
                words = expected[part.key][box].reshape(part.local_shape)
                assert tuple(part.global_shape) == expected[part.key].shape
                assert (part.data.view(torch.int16).numpy().view("<u2") == words).all(), (degrees, name)
                keys.add(part.key)
            names.add(name)
        assert names >= {name for name, _ in model.named_parameters()}
    everyone = [None] * world
    dist.all_gather_object(everyone, keys)
    assert set().union(*everyone) == expected.keys() - {"decoder.layers.pre_mlp_layernorm.weight"}
    dist.destroy_process_group()


def spawn_ranks(world, rendezvous, *arguments):
    rendezvous.mkdir()
    start(world, load_and_compare, world, str(rendezvous), *arguments)


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return export(tmp_path_factory.mktemp("dense"), "llama3.1-8b", "--mesh", "fsdp=3,tensor=2", "--set", "uneven=chunk")


@pytest.mark.parametrize("degrees", [{"tensor": 1}, {"tensor": 2}, {"pipe": 2, "virtual": 2}], ids=str)
def test_megatron_loads_an_exported_gpt(degrees, dense, tmp_path):
    world = degrees.get("tensor", 1) * degrees.get("pipe", 1)
    spawn_ranks(world, tmp_path / "r", str(dense[0]), dense[1], None, degrees, "raise_all")


@pytest.mark.parametrize("degrees", [{"tensor": 1}, {"tensor": 2}, {"expert": 2}], ids=str)
def test_megatron_loads_an_exported_mixture_of_experts(degrees, tmp_path):
    folder, expected = export(tmp_path, "mixtral-8x7b", "--mesh", "expert=2", experts=EXPERTS)
    world = degrees.get("tensor", 1) * degrees.get("expert", 1)
    spawn_ranks(world, tmp_path / "r", str(folder), expected, EXPERTS, degrees, "assume_ok_unexpected")


def test_megatron_export_has_the_files_of_a_checkpoint(dense, tmp_path):
    """The folder has the metadata, common state and extra states that Megatron expects, and `verify` accepts it. A spec
    without the layout is refused."""
    folder, expected = dense
    assert json.loads((folder / "metadata.json").read_text()) == {
        "sharded_backend": "torch_dist", "sharded_backend_version": 1,
        "common_backend": "torch", "common_backend_version": 1}
    assert torch.load(folder / "common.pt") == {}
    assert zipfile.ZipFile(folder / "common.pt").testzip() is None
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    modules = ["self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2"]
    assert metadata.state_dict_metadata.keys() - expected.keys() == {
        f"decoder.layers.{module}._extra_state/shard_{i}_4" for module in modules for i in range(4)}
    run_ok("verify", folder)
    arguments = [str(word) for k, n in SIZES.items() for word in ("--set", f"vars.{k}={n}")]
    run_ok("verify", folder, "--spec", ROOT / "configs/llama3.1-8b.yaml", "--layout", "torch_dist", *arguments)
    result = run_tool("export", ROOT / "configs/llama3-tiny.yaml", "--to", "megatron", "-o", tmp_path / "out")
    assert result.returncode == 2 and "`--layout torch_dist`" in result.stderr
    assert not (tmp_path / "out").exists()


def test_megatron_export_has_extra_states_of_experts(tmp_path):
    """Each expert of each layer has an extra state, named by the layer's and the expert's number."""
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: experts\ndtype: bf16\nmodules:\n  decoder.layers.mlp.experts.experts:\n"
                    "    linear_fc2.weight: {shape: [2, 3, 4, 6], init: {normal: {std: 1}}}\n")
    run_ok("export", spec, "--to", "megatron", "-o", tmp_path / "out")
    module = "decoder.layers.mlp.experts.experts.linear_fc2"
    names = pickle.loads((tmp_path / "out/.metadata").read_bytes()).state_dict_metadata.keys()
    assert names == {f"{module}.weight", *(f"{module}._extra_state/shard_{layer}.{expert}_2.3"
                                           for layer in range(2) for expert in range(3))}


def test_megatron_export_has_extra_states_of_unstacked_layers(tmp_path):
    """Layers that are not stacked have extra states of their own, as Megatron's layers of several kinds do."""
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: own\ndtype: bf16\nmodules:\n  decoder.layers:\n    repeat: {i: 2}\n"
                    "    mlp.linear_fc2.weight: {shape: [4, 6], init: {normal: {std: 1}}}\n")
    run_ok("export", spec, "--to", "megatron", "-o", tmp_path / "out")
    names = pickle.loads((tmp_path / "out/.metadata").read_bytes()).state_dict_metadata.keys()
    assert names == {f"decoder.layers.{i}.mlp.linear_fc2.{what}" for i in range(2)
                     for what in ("weight", "_extra_state/shard_0_1")}
