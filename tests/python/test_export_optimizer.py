"""With `export --optimizer adamw`, the first step after loading equals the first step with a fresh optimizer, bit for
bit."""

import fnmatch
import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from clients import client_of
from support import reassemble, run_ok, run_tool, tree_of

torch = client_of("torch")
import shardinit.torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint import state_dict  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, distribute_tensor  # noqa: E402
from torch_processes import spawn_it  # noqa: E402

SPEC = """
shardinit: 1
name: toy
dtype: f32
mesh: {axes: {fsdp: 2}}
sharding: fsdp
init: {n: {normal: {std: 0.5}}}
modules:
  embed.weight: {shape: [11, 6], init: n}
  norm:
    weight: {shape: [6], init: ones}
    bias: {shape: [6], init: zeros}
    running_mean: {shape: [6], init: zeros, kind: buffer}
    running_var: {shape: [6], init: ones}
    num_batches_tracked: {shape: [], dtype: i64, init: zeros}
  up.weight: {shape: [10, 6], init: n}
  down.weight: {shape: [6, 10], init: n}
  head.weight: {shape: [11, 6], init: n, tie: embed.weight}
"""
TRAINED = ["embed.weight", "norm.weight", "norm.bias", "up.weight", "down.weight"]
OWN = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-7, "weight_decay": 0.2}
INLINE = "{adamw: {lr: 0.03, betas: [0.8, 0.95], eps: 1e-7, weight_decay: 0.2}}"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.norm = nn.BatchNorm1d(6)
        self.up, self.down = nn.Linear(6, 10, bias=False), nn.Linear(10, 6, bias=False)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.down(self.up(self.norm(self.embed(tokens))).tanh()))


TOKENS = torch.tensor([1, 4, 9, 1, 0, 10])


def take_step(model, optimizer):
    nn.functional.cross_entropy(model(TOKENS), TOKENS.roll(1)).backward()
    optimizer.step()


def one_group(model, **more):
    return torch.optim.AdamW(model.parameters(), **{**OWN, **more})


def two_groups(model, **more):
    flat = [p for p in model.parameters() if p.ndim < 2]
    return torch.optim.AdamW([{"params": [p for p in model.parameters() if p.ndim > 1]},
                              {"params": flat, "weight_decay": 0.0, "lr": 0.01}], **{**OWN, **more})


def made_by_hand(values, make):
    """Makes the model with these values and takes a step with a fresh optimizer."""
    model = Model()
    model.load_state_dict(values)
    optimizer = make(model)
    take_step(model, optimizer)
    return model, optimizer


def load_checkpoint(folder, model, optimizer, with_groups):
    """Loads the checkpoint as trainers do when they resume."""
    held, optim = state_dict.get_state_dict(model, optimizer)
    wanted = optim if with_groups else {"state": optim["state"]}
    dcp.load({"model": held, "optim": wanted}, checkpoint_id=str(folder))
    state_dict.set_state_dict(model, optimizer, model_state_dict=held, optim_state_dict=optim)


def gathered(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def same_bits(a, b):
    a, b = gathered(a), gathered(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


def assert_same_training_state(model, optimizer, other, optimizer_of_other):
    for (name, a), b in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert same_bits(a, b), name
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        mine, others = optimizer.state[a], optimizer_of_other.state[b]
        assert mine.keys() == others.keys() and all(same_bits(mine[k], others[k]) for k in mine)
    plain = [[{k: v for k, v in group.items() if k != "params"} for group in each.param_groups]
             for each in (optimizer, optimizer_of_other)]
    assert plain[0] == plain[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("optimizer")
    (path / "spec.yaml").write_text(SPEC)
    run_ok("gen", path / "spec.yaml", "-o", path / "gen")
    return path


@pytest.fixture(scope="module")
def values(folder):
    types = {"f32": torch.float32, "i64": torch.int64}
    return {name: torch.from_numpy(words.view(f"<i{words.itemsize}").copy()).view(types[dtype])
            for name, (dtype, words) in reassemble(folder / "gen").items()}


@pytest.fixture(scope="module")
def export(folder):
    def export_it(name, optimizer, *arguments):
        out = folder / name
        if not out.exists():
            run_ok("export", folder / "spec.yaml", "--to", "dcp", "-o", out, "--optimizer", optimizer, *arguments)
        return out

    return export_it


def dump(model, make, path, **more):
    """Writes a run's own parameter groups as the README shows."""
    groups = state_dict.get_optimizer_state_dict(model, make(model, **more))["param_groups"]
    path.write_text(json.dumps({"adamw": groups}))
    return path


def test_first_step_uses_the_runs_own_hyperparameters(export, values):
    """An export without hyperparameters does not change the run's own ones."""
    out = export("moments", "adamw")
    model = Model()
    optimizer = two_groups(model)
    load_checkpoint(out, model, optimizer, with_groups=False)
    assert all(state["step"] == 0 and not state["exp_avg"].any() for state in optimizer.state.values())
    take_step(model, optimizer)
    assert_same_training_state(model, optimizer, *made_by_hand(values, two_groups))


def test_first_step_uses_the_exports_hyperparameters(export, values):
    out = export("inline", INLINE)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    load_checkpoint(out, model, optimizer, with_groups=True)
    take_step(model, optimizer)
    assert_same_training_state(model, optimizer, *made_by_hand(values, one_group))


@pytest.mark.parametrize("more", [{}, {"amsgrad": True, "foreach": False, "maximize": True}])
def test_first_step_uses_groups_that_a_run_wrote(folder, export, values, more):
    name = f"groups-{len(more)}"
    out = export(name, dump(Model(), two_groups, folder / f"{name}.json", **more))
    model = Model()
    optimizer = two_groups(model, **{**more, "lr": 7.0, "eps": 1.0})
    optimizer.param_groups[1]["weight_decay"] = 3.0
    load_checkpoint(out, model, optimizer, with_groups=True)
    take_step(model, optimizer)
    assert_same_training_state(model, optimizer, *made_by_hand(values, lambda made: two_groups(made, **more)))


def test_optimizer_export_has_pytorchs_names_and_groups(folder, export, values, tmp_path):
    """Names, types and groups equal the metadata that PyTorch writes when the same run saves itself."""
    model = Model()
    optimizer = two_groups(model)
    held, optim = state_dict.get_state_dict(model, optimizer)
    dcp.save({"model": held, "optim": optim}, checkpoint_id=str(tmp_path / "own"), no_dist=True)
    out = export("groups-0", dump(Model(), two_groups, folder / "groups-0.json"))
    own, ours = (pickle.loads((p / ".metadata").read_bytes()) for p in (tmp_path / "own", out))
    # `running_var` has moments, since this spec does not mark it as a buffer.
    extra = {f"optim.state.norm.running_{k}.{s}" for k in ("mean", "var") for s in ("step", "exp_avg", "exp_avg_sq")}
    assert ours.state_dict_metadata.keys() - own.state_dict_metadata.keys() <= extra
    for name, entry in own.state_dict_metadata.items():
        mine = ours.state_dict_metadata[name]
        assert type(mine) is type(entry) and ours.planner_data[name] == own.planner_data[name], name
        if hasattr(entry, "size"):
            assert mine.size == entry.size and mine.properties.dtype == entry.properties.dtype, name


def test_optimizer_export_becomes_one_torch_file(export, values, tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(str(export("inline", INLINE)), str(tmp_path / "all.pt"))
    saved = torch.load(tmp_path / "all.pt", weights_only=True)
    assert saved["optim"]["param_groups"][0]["betas"] == OWN["betas"]
    assert set(TRAINED) <= set(saved["optim"]["param_groups"][0]["params"]) <= values.keys() - {"head.weight"}
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    state_dict.set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optim"])
    take_step(model, optimizer)
    assert_same_training_state(model, optimizer, *made_by_hand(values, one_group))


def test_integers_and_buffers_have_no_optimizer_state(export):
    names = pickle.loads((export("moments", "adamw") / ".metadata").read_bytes()).state_dict_metadata
    states = {name.removeprefix("optim.state.").removesuffix(".exp_avg") for name in names
              if name.endswith(".exp_avg")}
    assert states == {*TRAINED, "head.weight", "norm.running_var"}
    assert not any("param_groups" in name for name in names)
    only = "{adamw: {params: [embed.weight, '*.w*ght']}}"
    names = pickle.loads((export("only", only) / ".metadata").read_bytes()).state_dict_metadata
    assert sum(name.endswith(".exp_avg") for name in names) == 5


GROUPS = [["*"], ["up.weight", "embed.weight"], ["*.weight"], ["norm.*", "up.weight"], ["norm.bias"]]


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (2, 1, 0), (3, 2, 4, 0), (4, 3, 1, 2), (2, 4, 1, 3)])
def test_parameter_belongs_to_the_first_matching_group(order, export, tmp_path):
    """If several groups match a parameter by path or pattern, it belongs to the first one."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    own = ", ".join(f"{key}: {list(value) if key == 'betas' else value}" for key, value in OWN.items() if key != "lr")
    groups = [f"{{params: {GROUPS[g]}, lr: {i + 1}, {own}}}" for i, g in enumerate(order)]
    out = export("-".join(map(str, order)), "{adamw: [" + ", ".join(groups) + "]}")
    dcp_to_torch_save(str(out), str(tmp_path / "all.pt"))
    saved = torch.load(tmp_path / "all.pt", weights_only=True)["optim"]
    found = {path: group["lr"] for group in saved["param_groups"] for path in group["params"]}
    first = {path: next((i + 1 for i, g in enumerate(order) for p in GROUPS[g] if fnmatch.fnmatchcase(path, p)), None)
             for path in TRAINED}
    assert {path: found.get(path) for path in TRAINED} == first
    assert {path for path in TRAINED if path in saved["state"]} == {path for path in TRAINED if first[path]}


# Two values for each hyperparameter.
OPTIONS = {"lr": (0.25, 0.5), "betas": ((0.5, 0.75), (0.125, 0.25)), "eps": (0.0625, 0.03125), "weight_decay": (0, 0.5),
           "amsgrad": (True, False), "maximize": (False, True), "foreach": (None, False), "capturable": (False, True),
           "differentiable": (True, False), "fused": (None, True), "decoupled_weight_decay": (True, True),
           "initial_lr": (0.75, 1)}


@pytest.mark.parametrize("first", [0, 1])
def test_groups_keep_hyperparameters_and_states_keep_dtypes(first, tmp_path):
    """Each group keeps its own hyperparameters, and each state the dtype and shape of its tensor."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    kinds = {"a": ("f32", [4]), "b": ("bf16", [4]), "c": ("f32", [2, 2]), "d": ("f16", [4]), "e": ("bf16", [1, 4]),
             "f": ("f64", [4]), "g": ("f32", [])}
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: kinds\nmodules:\n" + "".join(
        f"  {name}: {{shape: {shape}, dtype: {dtype}, init: ones}}\n" for name, (dtype, shape) in kinds.items()))
    options = [{name: values[first ^ g] for name, values in OPTIONS.items()} for g in range(2)]
    groups = [{"params": params, **own} for params, own in zip((["a", "b", "e"], ["*"]), options, strict=True)]
    (tmp_path / "adamw.json").write_text(json.dumps({"adamw": groups}))
    run_ok("export", tmp_path / "spec.yaml", "--to", "dcp", "-o", tmp_path / "out", "--optimizer",
           tmp_path / "adamw.json")
    dcp_to_torch_save(str(tmp_path / "out"), str(tmp_path / "all.pt"))
    saved = torch.load(tmp_path / "all.pt", weights_only=True)["optim"]
    assert saved["param_groups"] == [{"params": list("abe"), **options[0]}, {"params": list("cdfg"), **options[1]}]
    torchs = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
    for name, (dtype, shape) in kinds.items():
        moments = ["exp_avg", "exp_avg_sq", *["max_exp_avg_sq"] * options[name not in "abe"]["amsgrad"]]
        assert {key: (value.dtype, list(value.shape)) for key, value in saved["state"][name].items()} == {
            "step": (torch.float32, []), **dict.fromkeys(moments, (torchs[dtype], shape))}, name


def test_only_equal_slices_are_one_parameter(tmp_path):
    """Different parts of a tensor are separate parameters; a second name for the same part is tied, not listed
    again."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    slices = {"first": (0, 5), "second": (5, 10), "again": (0, 5)}
    (tmp_path / "spec.yaml").write_text(SPEC + "layouts:\n  parts:\n" + "".join(
        f"    {name}: {{from: {{slice: {{axis: 0, start: {start}, stop: {stop}, of: up.weight}}}}}}\n"
        for name, (start, stop) in slices.items())
        + "    padded: {from: {pad: {axis: 0, to: 12, of: up.weight}}}\n"
          "    turned: {from: {reshape: {shape: [6, 10], of: up.weight}}}\n"
          "    moved: {from: {transpose: {of: up.weight}}}\n"
          "    keep: [embed.weight, 'norm.*', down.weight, head.weight]\n")
    run_ok("export", tmp_path / "spec.yaml", "--layout", "parts", "--to", "dcp", "-o", tmp_path / "out", "--optimizer",
           INLINE)
    dcp_to_torch_save(str(tmp_path / "out"), str(tmp_path / "all.pt"))
    saved = torch.load(tmp_path / "all.pt", weights_only=True)["optim"]
    (group,) = saved["param_groups"]
    assert {path for path in group["params"] if "." not in path} == {"first", "second", "padded", "turned", "moved"}
    assert "head.weight" not in group["params"] and saved["state"].keys() >= slices.keys()


@pytest.mark.parametrize("engine, keys", [
    ("torch_cpu", ["{torch: {position: 4}}", "{torch: {position: 5}}", "{torch: {position: 4, spare: 0}}",
                   "{torch: {position: 4, spare: 1}}"]),
    ("jax_threefry", ["{jax: {seed: 1}}", "{jax: {seed: 2}}", "{jax: {seed: 1, fold_in: 1}}", "first", "second"]),
])
def test_tensors_with_different_keys_are_separate_parameters(engine, keys, tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    names = [f"w{i}" for i in range(len(keys))]
    (tmp_path / "spec.yaml").write_text(
        f"shardinit: 1\nname: toy\ndtype: f32\nengine: {engine}\nmodules:\n" + "".join(
            f"  {name}: {{shape: [3], init: {{normal: {{std: 1}}}}, key: {key}}}\n"
            f"  {name}_tied: {{shape: [3], init: {{normal: {{std: 1}}}}, tie: {name}}}\n"
            for name, key in zip(names, keys, strict=True)))
    run_ok("export", tmp_path / "spec.yaml", "--to", "dcp", "-o", tmp_path / "out", "--optimizer", INLINE)
    dcp_to_torch_save(str(tmp_path / "out"), str(tmp_path / "all.pt"))
    (group,) = torch.load(tmp_path / "all.pt", weights_only=True)["optim"]["param_groups"]
    assert group["params"] == names


@pytest.mark.parametrize("engine", ["philox4x32", "torch_cpu"])
def test_tensors_tied_only_in_the_spec_have_separate_states(engine, tmp_path):
    """Tensors that are tied in the spec but not in the model, such as the copied layers of nn.TransformerEncoder, have
    separate states."""
    text = SPEC.replace("dtype: f32", f"dtype: f32\nengine: {engine}", 1)
    (tmp_path / "spec.yaml").write_text(text)
    run_ok("export", tmp_path / "spec.yaml", "--to", "dcp", "-o", tmp_path / "out", "--optimizer", INLINE)
    model = Model()
    model.head.weight = nn.Parameter(torch.zeros(11, 6))
    optimizer = one_group(model)
    load_checkpoint(tmp_path / "out", model, optimizer, True)
    other = Model()
    other.head.weight = nn.Parameter(torch.zeros(11, 6))
    other.load_state_dict(model.state_dict())
    assert same_bits(model.head.weight, model.embed.weight) and model.head.weight is not model.embed.weight
    again = one_group(other)
    take_step(model, optimizer)
    take_step(other, again)
    assert_same_training_state(model, optimizer, other, again)


LARGE = """
shardinit: 1
name: large
dtype: bf16
modules:
  layers: {repeat: {i: 4}, w: {shape: [1000, 1000], init: zeros}, b: {shape: [1000], dtype: f8e4m3fn, init: zeros}}
"""


def test_optimizer_export_of_zero_moments_is_small(tmp_path):
    (tmp_path / "spec.yaml").write_text(LARGE)
    for name, more in ("plain", []), ("optimizer", ["--optimizer", INLINE]):
        run_ok("export", tmp_path / "spec.yaml", "--to", "dcp", "-o", tmp_path / name, *more)
    plain, optimizer = ({p.name: p.stat().st_size for p in (tmp_path / name).iterdir()}
                        for name in ("plain", "optimizer"))
    assert optimizer["__0_0.distcp"] == plain["__0_0.distcp"] > 8_000_000
    assert optimizer["__0_1.distcp"] < 15_000
    names = pickle.loads((tmp_path / "optimizer/.metadata").read_bytes()).state_dict_metadata
    state = {"optim": {"state": {f"layers.{i}.{k}": {
        "step": torch.tensor(5.0), "exp_avg": torch.full(shape, 3).to(dtype),
        "exp_avg_sq": torch.full(shape, 3).to(dtype),
    } for i in range(4) for k, shape,
                                 dtype in (("w", (1000, 1000), torch.bfloat16), ("b", (1000,), torch.float8_e4m3fn))}}}
    assert sum(name.startswith("optim.state") for name in names) == 24
    dcp.load(state, checkpoint_id=str(tmp_path / "optimizer"), no_dist=True)
    for moments in state["optim"]["state"].values():
        assert not any(t.view(torch.uint8).any() if t.ndim else t != 0 for t in moments.values())
        assert all(t.is_contiguous() for t in moments.values())


def test_optimizer_state_follows_the_layout(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC + """
layouts:
  other:
    tokens: embed.weight
    logits: head.weight
    transposed: {from: {transpose: {axes: [1, 0], of: up.weight}}}
    both: {from: {stack: {axis: 0, of: [norm.weight, norm.bias]}}}
    turned: {from: {transpose: {axes: [1, 0], of: embed.weight}}}
    turned_again: {from: {transpose: {axes: [1, 0], of: head.weight}}}
    keep: ["down.weight", "norm.num*"]
    omit: ["norm.running*"]
""")
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "gen", "--layout", "other")
    for source in tmp_path / "spec.yaml", tmp_path / "gen":
        more = ["--layout", "other"] if source.suffix else []
        out = tmp_path / f"out-{source.stem}"
        run_ok("export", source, "--to", "dcp", "-o", out, "--optimizer", "adamw", *more)
        entries = pickle.loads((out / ".metadata").read_bytes()).state_dict_metadata
        sizes = {name.split(".state.")[1].removesuffix(".exp_avg"): list(entry.size)
                 for name, entry in entries.items() if name.endswith(".exp_avg")}
        assert sizes == {"tokens": [11, 6], "logits": [11, 6], "transposed": [6, 10], "both": [2, 6], "turned": [6, 11],
                         "turned_again": [6, 11], "down.weight": [6, 10]}
        run_ok("verify", out)
        assert "equal to toy" in run_ok("verify", out, "--spec", tmp_path / "spec.yaml", "--layout", "other").stdout
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "out.yaml")


def test_verify_does_not_compare_optimizer_entries(folder, export, tmp_path):
    out = export("inline", INLINE)
    assert "intact" in run_ok("verify", out).stdout
    said = run_ok("verify", out, "--spec", folder / "spec.yaml").stdout
    entries = 7 * 3 + 12
    assert said.endswith(f"9 tensors, 1.1 kB; not compared: {entries} entries of an optimizer\n")
    result = json.loads(run_ok("verify", out, "--spec", folder / "spec.yaml", "--json").stdout)
    assert result["equal"] and result["optimizer_entries"] == entries
    result = run_tool("verify", out, "--spec", folder / "spec.yaml", "--set", "seed=9")
    assert result.returncode == 1 and "embed.weight has other values" in result.stderr
    # The same holds for a folder that PyTorch saved.
    model = Model()
    optimizer = one_group(model)
    load_checkpoint(out, model, optimizer, with_groups=True)
    held, optim = state_dict.get_state_dict(model, optimizer)
    dcp.save({"model": held, "optim": optim}, checkpoint_id=str(tmp_path / "own"), no_dist=True)
    assert "27 entries of an optimizer" in run_ok("verify", tmp_path / "own", "--spec", folder / "spec.yaml").stdout
    # Flip one byte of a moment.
    (tmp_path / "bad").mkdir()
    for name, data in tree_of(out).items():
        (tmp_path / "bad" / name).write_bytes(data)
    data = bytearray((out / "__0_1.distcp").read_bytes())
    data[200] ^= 1
    (tmp_path / "bad/__0_1.distcp").write_bytes(data)
    assert run_tool("verify", tmp_path / "bad").returncode == 1


def test_python_package_reads_a_model_with_optimizer(export, values, tmp_path):
    out = export("inline", INLINE)
    (tmp_path / "spec.yaml").write_text(SPEC)
    run_ok("export", tmp_path / "spec.yaml", "--to", "zarr", "-o", tmp_path / "zarr", "--optimizer", "adamw")
    for folder in out, tmp_path / "zarr":
        model = Model()
        shardinit.torch.load_into(model, folder)
        assert all(same_bits(tensor, values[name]) for name, tensor in model.state_dict().items())


def test_optimizer_export_bytes_do_not_depend_on_jobs(folder, export, tmp_path):
    out = export("inline", INLINE)
    run_ok("export", folder / "spec.yaml", "--to", "dcp", "-o", tmp_path / "again", "--optimizer", INLINE, "--jobs", 1)
    assert tree_of(tmp_path / "again") == tree_of(out)
    # The record contains the options: an equal export is complete already, another one is a conflict.
    arguments = ["export", folder / "spec.yaml", "--to", "dcp", "-o", tmp_path / "again", "--optimizer"]
    assert "was there already" in run_ok(*arguments, INLINE).stderr
    assert run_tool(*arguments, "adamw").returncode == 4
    (tmp_path / "file.yaml").write_text(json.dumps(json.loads((out / "shardinit-export.json").read_text())["optimizer"]))
    assert "was there already" in run_ok(*arguments, tmp_path / "file.yaml").stderr


def sharded(folder, values):
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    wanted = Model()
    wanted.load_state_dict(values)
    model = Model()
    for each in wanted, model:
        for part in each.up, each.down:
            fully_shard(part, mesh=mesh)
        fully_shard(each, mesh=mesh)
    optimizer, by_hand = one_group(model), one_group(wanted)
    load_checkpoint(folder, model, optimizer, with_groups=True)
    placed = {name: distribute_tensor(tensor, mesh, p.placements, src_data_rank=None)
              for name, tensor in values.items() if isinstance(p := model.state_dict()[name], DTensor)}
    for name, tensor in placed.items():
        assert same_bits(model.state_dict()[name], tensor), name
    take_step(model, optimizer)
    take_step(wanted, by_hand)
    assert_same_training_state(model, optimizer, wanted, by_hand)


def test_optimizer_export_loads_with_fsdp_in_two_processes(export, values, tmp_path):
    spawn_it(2, tmp_path, sharded, str(export("inline", INLINE)), values)


@pytest.mark.parametrize(("optimizer", "message"), [
    ("sgd", "1:1: error: unknown optimizer `sgd`"),
    ("{adamw: {weigth_decay: 0.1, lr: 1}}", "1:10: error: a parameter group of AdamW has no `weigth_decay`"),
    ("{adamw: {weight_decay: 0.1}}", "error: a parameter group with hyperparameters needs `lr`"),
    ("{adamw: {lr: high}}", "1:14: error: `lr` must be a finite number of at least 0, not `high`"),
    ("{adamw: {lr: 1, betas: [0.9, 1]}}", "error: `betas` must be two numbers from 0 to less than 1"),
    *((f"{{adamw: {{lr: 1, betas: {betas}}}}}", f"numbers from 0 to less than 1, such as `[0.9, 0.95]`, not {count}")
      for betas, count in (("[]", 0), ("[0.9]", 1), ("[0.9, 0.95, 0.99]", 3), ("[0, 0, 0, 0]", 4))),
    ("{adamw: {lr: 1, amsgrad: null}}", "error: `amsgrad` must be `true` or `false`, not nothing"),
    ("{adamw: {lr: 1, decoupled_weight_decay: false}}", "error: without `decoupled_weight_decay` this is Adam"),
    ("{adamw: {params: embd.weight}}", "1:18: error: no tensor matches `embd.weight`"),
    ("{adamw: [{params: up.weight, lr: 1}, {params: '*'}]}", "error: parameter group 1 has no hyperparameters"),
    ("{adamw: [1]}", "error: a parameter group must be a mapping, not `1`"),
    ("[adamw]", "error: an optimizer has a name"),
    ("none.yaml", "1:1: error: there is no file `none.yaml`"),
])
def test_optimizer_option_errors_name_line_and_column(folder, tmp_path, optimizer, message):
    result = run_tool("export", folder / "spec.yaml", "--to", "dcp", "-o", tmp_path / "out", "--optimizer", optimizer,
                      cwd=tmp_path)
    assert result.returncode == 2 and result.stderr.startswith("--optimizer:") and message in result.stderr
    assert result.stderr.count("error:") == 1 and not (tmp_path / "out").exists()


def test_torch_load_reads_each_optimizer_item(export):
    """`torch.load` reads each item on its own."""
    import io
    import zipfile

    out = export("inline", INLINE)
    metadata = pickle.loads((out / ".metadata").read_bytes())
    data = (out / "__0_1.distcp").read_bytes()
    for index, info in metadata.storage_data.items():
        if info.relative_path != "__0_1.distcp":
            continue
        item = data[info.offset:info.offset + info.length]
        assert zipfile.ZipFile(io.BytesIO(item)).testzip() is None
        held = torch.load(io.BytesIO(item), weights_only=True)
        if index.fqn.endswith("exp_avg"):
            assert held.shape == metadata.state_dict_metadata[index.fqn].size and held.stride() == (0,) * held.ndim
            assert np.array_equal(held.numpy(), np.zeros(held.shape, np.float32))


FLAX = """
shardinit: 1
name: flax
dtype: f32
mesh: {axes: {fsdp: 2}}
sharding: fsdp
init: {n: {normal: {std: 0.5}}}
modules:
  dense: {kernel: {shape: [8, 4], init: n}, bias: {shape: [4], init: zeros}}
  out.kernel: {shape: [4, 3], dtype: bf16, init: n}
  table: {shape: [8, 4], init: n, tie: dense.kernel}
"""

OPTAX = """
import os, sys
os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=4")
import jax, jax.numpy as jnp, numpy as np, optax, orbax.checkpoint as ocp
from clients import bits_of
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from support import reassemble
folder, gen = sys.argv[1:]
types = {"f32": jnp.float32, "bf16": jnp.bfloat16}
values = {p: jnp.asarray(words.view(f"<i{words.itemsize}")).view(types[dtype])
          for p, (dtype, words) in reassemble(gen).items()}
params = {"dense": {"kernel": values["dense.kernel"], "bias": values["dense.bias"]},
          "out": {"kernel": values["out.kernel"]}, "table": values["table"]}
blank = jax.tree.map(lambda x: jnp.full_like(x, 3), params)

def loss_of(p):
    x = jnp.arange(16.0).reshape(2, 8) / 16
    y = jnp.tanh(x @ p["dense"]["kernel"] + p["dense"]["bias"]) @ p["out"]["kernel"].astype(jnp.float32)
    return jnp.sum(y ** 2) + jnp.sum(p["table"] ** 2)

def equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
        assert np.asarray(x).dtype == np.asarray(y).dtype and (bits_of(np.asarray(x)) == bits_of(np.asarray(y))).all()

def step(state):
    return state.apply_gradients(grads=jax.grad(loss_of)(state.params))

for name, lr in ("constant", 1e-2), ("schedule", optax.linear_schedule(1e-2, 1e-3, 10)):
    tx = optax.adamw(lr, b1=0.8, weight_decay=0.1)
    fresh = TrainState.create(apply_fn=None, params=params, tx=tx)
    target = jax.tree.map(lambda x: x if isinstance(x, int) else jnp.full_like(x, 3), fresh)
    target = target.replace(params=blank)
    path = os.path.join(folder, name)
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, target)
    state = ocp.StandardCheckpointer().restore(path, abstract)
    equal(state, fresh)
    equal(step(state), step(fresh))
    # Without a target: dictionaries and lists.
    plain = ocp.PyTreeCheckpointer().restore(path)
    equal(plain["params"], jax.tree.map(np.asarray, params))
    assert int(plain["step"]) == 0 and not any(map(np.any, jax.tree.leaves(plain["opt_state"])))
    # Sharded over 4 devices.
    mesh = Mesh(np.array(jax.devices()), ("x",))
    cut = lambda x: NamedSharding(mesh, PartitionSpec("x") if x.ndim and x.shape[0] % 4 == 0 else PartitionSpec())
    abstract = jax.tree.map(lambda x: x if isinstance(x, int) else
                            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=cut(x)), target)
    state = ocp.StandardCheckpointer().restore(path, abstract)
    equal(state, fresh)
    assert state.opt_state[0].mu["table"].sharding == cut(params["table"])
"""


def test_first_optax_step_starts_from_an_orbax_export(tmp_path):
    for package in "orbax.checkpoint", "optax", "flax":
        client_of(package)
    (tmp_path / "spec.yaml").write_text(FLAX)
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "gen")
    for name, optimizer in ("constant", "adamw"), ("schedule", "{adamw: {schedule: true}}"):
        run_ok("export", tmp_path / "spec.yaml", "--to", "zarr", "-o", tmp_path / name, "--optimizer", optimizer)
        run_ok("verify", tmp_path / name)
        said = run_ok("verify", tmp_path / name, "--spec", tmp_path / "spec.yaml").stdout
        assert f"4 tensors, 296 B; not compared: {10 + (name != 'constant')} entries of an optimizer" in said
    # The moments consist only of metadata.
    names = [n for n, data in tree_of(tmp_path / "constant").items() if data is not None and "opt_state" in n]
    assert len(names) == 9 and all(name.endswith("/.zarray") for name in names)
    here = os.path.dirname(os.path.abspath(__file__))
    result = subprocess.run([sys.executable, "-c", OPTAX, tmp_path, tmp_path / "gen"], capture_output=True, text=True,
                            timeout=300, env={**os.environ, "PYTHONPATH": here})
    assert result.returncode == 0, result.stderr


def test_flax_collections_without_parameters_have_no_moments(tmp_path):
    """Flax collections other than `params` keep their place and have no moments."""
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: flax\ndtype: f32\nmodules:\n  params.dense.kernel: {shape: [8, 4], init: "
                    "ones}\n"
                    "  batch_stats.norm.mean: {shape: [4], init: zeros}\n")
    run_ok("export", spec, "--to", "zarr", "-o", tmp_path / "out", "--optimizer", "adamw")
    assert sorted(n for n, data in tree_of(tmp_path / "out").items() if data is None) == [
        "batch_stats.norm.mean", "opt_state.0.count", "opt_state.0.mu.dense.kernel", "opt_state.0.nu.dense.kernel",
        "params.dense.kernel", "step"]
    assert "2 tensors" in run_ok("verify", tmp_path / "out", "--spec", spec).stdout
    spec.write_text(spec.read_text() + "  step: {shape: [], init: zeros}\n")
    result = run_tool("export", spec, "--to", "zarr", "-o", tmp_path / "step", "--optimizer", "adamw")
    assert result.returncode == 2 and "`step` is the name of a part of the optimizer's state" in result.stderr


@pytest.mark.parametrize(("to", "optimizer", "message"), [
    ("zarr", "{adamw: {lr: 1}}", "the state of Optax does not contain hyperparameters"),
    ("dcp", "{adamw: {schedule: true}}", "the state of PyTorch's AdamW cannot contain a schedule"),
    ("safetensors", "adamw", "`--optimizer` does not apply to the format `safetensors`"),
    ("megatron", "adamw", "`--optimizer` does not apply to the format `megatron`"),
])
def test_optimizer_option_rejects_what_a_format_lacks(folder, tmp_path, to, optimizer, message):
    result = run_tool("export", folder / "spec.yaml", "--to", to, "-o", tmp_path / "out", "--optimizer", optimizer)
    assert result.returncode == 2 and message in result.stderr and "hint: " in result.stderr


def test_zarr_export_has_no_optimizer_state_for_buffers(tmp_path):
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: m\ndtype: f32\nmodules:\n  w: {shape: [4], init: zeros}\n"
                                        "  b: {shape: [4], init: zeros, kind: buffer}\n")
    run_ok("export", tmp_path / "spec.yaml", "--to", "zarr", "--optimizer", "adamw", "-o", tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()}
    assert {"params.b", "params.w", "opt_state.0.mu.w", "opt_state.0.nu.w"} <= names and not {"opt_state.0.mu.b",
        "opt_state.0.nu.b"} & names
