"""Megatron-core's own models load random weights on several ranks, and each rank saves a file as Megatron-LM does with
`--ckpt-format torch`. Joining the ranks gives the weights again, bit for bit. (Megatron-LM's own save is not in a
package: each test process writes the dictionary that its `checkpointing.py` writes.)"""

import argparse
import random
import shutil

import megatron_model
import pytest
from clients import client_of
from generated import SEED
from support import ROOT, run_json, run_ok, run_tool

torch = client_of("torch")
client_of("megatron.core")
from torch_processes import start  # noqa: E402

SIZES = {"d": 32, "ff": 48, "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocab": 512}
CASES = {"one": {}, "virtual": {"pipe": 2, "virtual": 2}, "pipe": {"tensor": 2, "pipe": 2},
         "experts": {"tensor": 2, "expert": 2, "experts": 4},
         "grouped": {"tensor": 2, "expert": 2, "experts": 4, "grouped": True}}


def load_and_save(rank, world, rendezvous, folder, out, degrees, sizes):
    megatron_model.start(rank, world, rendezvous, degrees)
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.validation import StrictHandling

    models = megatron_model.make_models(degrees, **sizes, experts=degrees.get("experts"))
    state = {f"model{i}": model.sharded_state_dict() for i, model in enumerate(models)}
    state = dist_checkpointing.load(state, folder, strict=StrictHandling("log_all"))
    for i, model in enumerate(models):
        tensors = {k: v for k, v in state[f"model{i}"].items() if isinstance(v, torch.Tensor)}
        model.load_state_dict(tensors, strict=False)
        assert tensors.keys() >= {name for name, _ in model.named_parameters()}
    args = argparse.Namespace(
        tensor_model_parallel_size=degrees.get("tensor", 1), pipeline_model_parallel_size=degrees.get("pipe", 1),
        virtual_pipeline_model_parallel_size=degrees.get("virtual"), expert_model_parallel_size=degrees.get("expert", 1),
        expert_tensor_parallel_size=degrees.get("tensor", 1), num_experts=degrees.get("experts"), swiglu=True,
        untie_embeddings_and_output_weights=True, pipeline_model_parallel_layout=None, lr=0.1)
    weights = [model.state_dict_for_save_checkpoint() for model in models]
    saved = {"args": args, "checkpoint_version": 3.0, "iteration": 20,
             "optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 0.1}]}}
    saved |= {"model" if len(models) == 1 else f"model{i}": state for i, state in enumerate(weights)}
    place = [f"mp_rank_{parallel_state.get_tensor_model_parallel_rank():02}"]
    if degrees.get("pipe", 1) > 1:
        place.append(f"{parallel_state.get_pipeline_model_parallel_rank():03}")
    if degrees.get("expert", 1) > 1:
        place.append(f"{parallel_state.get_expert_model_parallel_rank():03}")
    path = out / "_".join(place)
    path.mkdir(parents=True, exist_ok=True)
    torch.save(saved, path / "model_optim_rng.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def spec_of(folder, degrees, sizes):
    """Writes a spec with the layout of these degrees."""
    variables = {**sizes, **({"experts": degrees["experts"]} if "experts" in degrees else {})}
    path = folder / "spec.yaml"
    path.write_text(
        f"shardinit: 1\ninclude: {ROOT}/configs/{'mixtral-8x7b' if 'experts' in degrees else 'llama3.1-8b'}.yaml\n"
        f"uneven: chunk\nmesh: {{axes: {{fsdp: 1, tensor: {degrees.get('tensor', 1)}}}}}\nvars:\n"
        + "".join(f"  {name}: {value}\n" for name, value in variables.items()))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Returns the run, degrees and spec of each case, which are made when they are needed."""
    made = {}
    drawn = random.Random(SEED)
    print("seed", SEED)

    def make(name):
        if name in made:
            return made[name]
        degrees, folder = CASES[name], tmp_path_factory.mktemp(name)
        sizes = {**SIZES, "d": drawn.choice([32, 64]), "ff": drawn.choice([16, 48, 80]),
                 "layers": drawn.choice([4, 4, 8]), "kv_heads": drawn.choice([2, 4])}
        spec = spec_of(folder, degrees, sizes)
        run_ok("export", spec, "--layout", "torch_dist", "--to", "megatron", "-o", folder / "dist")
        (folder / "meet").mkdir()
        step = folder / "run/iter_0000020"
        world = world_of(degrees)
        start(world, load_and_save, world, str(folder / "meet"), str(folder / "dist"), step, degrees, sizes)
        (folder / "run/latest_checkpointed_iteration.txt").write_text("20")
        made[name] = folder / "run", degrees, spec
        return made[name]

    return make


def world_of(degrees):
    return degrees.get("tensor", 1) * degrees.get("pipe", 1) * degrees.get("expert", 1)


def values(path, *arguments):
    return set(run_ok("digest", path, *arguments).stdout.splitlines()[1:])


@pytest.mark.parametrize("name", CASES)
def test_joined_ranks_have_the_weights_that_megatron_loaded(runs, name, tmp_path):
    run, degrees, spec = runs(name)
    run_ok("convert", run.parent / "dist", "--spec", spec, "--from-layout", "torch_dist", "--to", "safetensors", "-o",
           tmp_path / "wanted")
    wanted = values(tmp_path / "wanted")
    for path in run, run / "iter_0000020":
        result = run_ok("convert", path, "--spec", spec, "--from-layout", "megatron", "--to", "safetensors", "-o",
                        tmp_path / "out")
        assert values(tmp_path / "out") == wanted
        shutil.rmtree(tmp_path / "out")
        assert ("mesh axis `tensor=2`" in result.stderr) == ("tensor" in degrees)
    assert run_json("inspect", run)["others"]["optimizer"]["tensors"] == world_of(degrees)


def change(model, drawn):
    """Changes or removes one tensor, or adds one."""
    name = drawn.choice([name for name, value in model.items() if isinstance(value, torch.Tensor)])
    tensor = model[name]
    kind = drawn.choice(["lost", "type", "rank", "longer", "layer", "unknown", "expert", "object"])
    if kind == "lost":
        del model[name]
    elif kind == "unknown":
        model["decoder.layers.0.mixer.in_proj.weight"] = tensor
    elif kind == "layer":
        model["decoder.layers.9.self_attention.linear_proj.weight"] = torch.ones(2, 2)
    elif kind == "expert":
        model["decoder.layers.0.mlp.experts.local_experts.7.linear_fc1.weight"] = torch.ones(2, 2)
    else:
        model[name] = {"type": tensor.double(), "rank": tensor[None], "object": object,
                       "longer": torch.cat([tensor, tensor[:1]])}[kind]
    return kind


@pytest.mark.parametrize("name", ["virtual", "pipe", "experts"])
def test_changed_ranks_are_refused(runs, name, tmp_path):
    run, degrees, _ = runs(name)
    for seed in range(SEED, SEED + 12):
        drawn = random.Random(seed)
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(run, tmp_path / "run")
        # Other ranks of experts repeat the rest of the model.
        ranks = sorted(f for f in (tmp_path / "run").rglob("*.pt") if "expert" not in degrees or "_000/" in str(f))
        path = drawn.choice(ranks)
        saved = torch.load(path, weights_only=False)
        chunk = drawn.choice([key for key in saved if key.startswith("model")])
        kind = change(saved[chunk], drawn)
        torch.save(saved, path)
        result = run_tool("digest", tmp_path / "run")
        # Without tensor parallelism, each tensor is whole, whatever it is. With it, some are the same on all ranks.
        whole = kind == "lost" or ("tensor" not in degrees and kind not in ("layer", "object"))
        assert result.returncode == 5 or (whole and result.returncode == 0), (seed, kind, result)
        assert "Megatron-LM: " in result.stderr or "is not whole" in result.stderr or whole, result


@pytest.mark.parametrize("change, says", [
    ({"tensor_model_parallel_size": 4, "expert_tensor_parallel_size": 4}, "`mp_rank_02_000` is missing"),
    ({"tensor_model_parallel_size": 2**40}, "but it has 4 folders"),
    ({"tensor_model_parallel_size": "x"}, "must be a whole number"),
    ({"expert_model_parallel_size": 1}, "`mp_rank_00` is missing"),
    ({"pipeline_model_parallel_size": 2}, "`mp_rank_00_000_000` is missing"),
    ({"expert_model_parallel_size": 1, "pipeline_model_parallel_size": 2}, "it has"),
    ({"expert_model_parallel_size": 1, "pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et|t*7L"},
     "orders its layers"),
    ({"expert_tensor_parallel_size": 1}, "differs from 2"), ({"num_experts": 5}, "do not divide 5 experts"),
    ({"num_experts": 2}, "is not one of 1 experts"), (None, "has 4 folders"), ("lost", "`mp_rank_01_001` is missing"),
    ("more", "it has 5 folders of ranks instead of 4"), ("cut", "cannot read")])
def test_other_runs_are_refused(runs, tmp_path, change, says):
    run, _, _ = runs("experts")
    shutil.copytree(run, tmp_path / "run")
    step = tmp_path / "run/iter_0000020"
    first, last = step / "mp_rank_00_000/model_optim_rng.pt", step / "mp_rank_01_001"
    if change == "lost":
        shutil.rmtree(last)
    elif change == "more":
        shutil.copytree(last, step / "mp_rank_02_000")
    elif change == "cut":
        first.write_bytes(first.read_bytes()[:-50])
    else:
        saved = torch.load(first, weights_only=False)
        if change is None:
            del saved["args"]
        else:
            vars(saved["args"]).update(change)
        torch.save(saved, first)
    result = run_tool("convert", tmp_path / "run", "--to", "dcp", "-o", tmp_path / "out")
    assert result.returncode == 5 and (says in result.stderr or change is None), result
    assert run_tool("digest", run, "--part-of-file", "model").returncode == 2


def test_tied_output_of_a_pipeline_is_a_copy(runs, tmp_path):
    run, _, _ = runs("pipe")
    shutil.copytree(run, tmp_path / "run")
    for path in (tmp_path / "run").rglob("*.pt"):
        saved = torch.load(path, weights_only=False)
        saved["args"].untie_embeddings_and_output_weights = False
        torch.save(saved, path)
    tied = values(tmp_path / "run")
    assert {line.split("  ")[1] for line in values(run) - tied} >= {"output_layer.weight"}
    assert not any("output_layer" in line for line in tied)


def change_one(run, place, name, work):
    """Changes a tensor of one rank."""
    path = run / f"iter_0000020/{place}/model_optim_rng.pt"
    saved = torch.load(path, weights_only=False)
    saved["model"][name] = work(saved["model"][name])
    torch.save(saved, path)


@pytest.mark.parametrize("case, first, place, name, at", [
    ("pipe", "mp_rank_00_001", "mp_rank_01_001", "decoder.final_layernorm.weight", [3]),
    ("experts", "mp_rank_00_000", "mp_rank_01_000", "decoder.layers.1.mlp.router.weight", [2, 5]),
    ("experts", "mp_rank_01_000", "mp_rank_01_001", "decoder.layers.0.self_attention.linear_proj.weight", [1, 3]),
    ("experts", "mp_rank_00_000", "mp_rank_00_001", "embedding.word_embeddings.weight", [100, 0])])
def test_copies_that_differ_are_refused(runs, tmp_path, case, first, place, name, at):
    run, _, _ = runs(case)
    shutil.copytree(run, tmp_path / "run")

    def flip(tensor):
        tensor = tensor.clone()
        tensor.view(torch.int16)[tuple(at)] ^= 1
        return tensor

    change_one(tmp_path / "run", place, name, flip)
    result = run_tool("digest", tmp_path / "run")
    assert result.returncode == 5 and f"`{name}` in" in result.stderr and f"differs at {at}" in result.stderr, result
    assert f"/{first}/" in result.stderr and f"/{place}/" in result.stderr


@pytest.mark.parametrize("work", [lambda t: t.double(), lambda t: t[:, :-1], lambda t: t.t(), lambda t: t[0],
                                  lambda t: t[:, :0]])
def test_changed_groups_of_experts_are_refused(runs, tmp_path, work):
    run, _, _ = runs("grouped")
    shutil.copytree(run, tmp_path / "run")
    change_one(tmp_path / "run", "mp_rank_01_001", "decoder.layers.0.mlp.experts.weight1", work)
    result = run_tool("digest", tmp_path / "run")
    assert result.returncode == 5 and "Megatron-LM: " in result.stderr, result


def save_ranks(folder, name, iterations=(20, 20)):
    """Writes one tensor of two tensor-parallel ranks."""
    args = argparse.Namespace(tensor_model_parallel_size=2, swiglu=False)
    for rank, iteration in enumerate(iterations):
        path = folder / f"mp_rank_{rank:02}"
        path.mkdir(parents=True)
        tensor = torch.full((2, 2), float(rank))
        torch.save({"args": args, "iteration": iteration, "model": {name: tensor}}, path / "model_optim_rng.pt")
    return folder


def test_names_with_another_beginning_are_kept(tmp_path):
    name = "vision_model.decoder.layers.0.mlp.linear_fc1.weight"
    digests = run_ok("digest", save_ranks(tmp_path / "run", name)).stdout.splitlines()
    assert digests[0].split("  ")[1] == name and len(digests) == 2


def test_ranks_of_several_iterations_are_refused(tmp_path):
    run = save_ranks(tmp_path / "run", "decoder.layers.0.mlp.linear_fc1.weight", iterations=(20, 30))
    result = run_tool("digest", run)
    assert result.returncode == 5 and "is of iteration 30 instead of 20" in result.stderr
