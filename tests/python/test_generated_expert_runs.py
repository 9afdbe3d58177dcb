"""DeepSpeed trains random models with experts on four processes. Reading its checkpoints gives each parameter that
DeepSpeed gathers itself, bit for bit, and changed folders are refused."""

import random
import shutil

import pytest
import zero_runs
from clients import client_of
from generated import SEED
from support import run_json, run_tool
from test_generated_deepspeed import assert_same, read
from torch_processes import spawn_it

torch = client_of("torch")
client_of("deepspeed")

RANKS = 4
STAGES = 0, 1, 2, 2, 1, 0


def draw(seed, stage):
    drawn = random.Random(seed)
    experts = drawn.choice([4, 8])
    return {"stage": stage, "bf16": drawn.random() < 0.5, "data first": drawn.random() < 0.5,
            "group": drawn.choice([20, 10**6]),
            "model": (drawn.choice([3, 5]), experts, [drawn.choice([1, 2, 4]) for _ in range(2)], drawn.random() < 0.5)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Returns the folder of each run and its parameters."""
    folder = tmp_path_factory.mktemp("runs")
    first = SEED * len(STAGES)
    print("seeds", first, "to", first + len(STAGES) - 1)
    cases = [draw(first + i, stage) for i, stage in enumerate(STAGES)]
    cases[1]["model"][2][:] = [2, 4]  # several ranks for each expert, and several degrees
    spawn_it(RANKS, folder, zero_runs.save_experts, cases, str(folder))
    wanted = []
    for i in range(len(cases)):
        wanted.append({})
        for rank in range(RANKS):
            wanted[-1] |= torch.load(folder / f"wanted-{i}-{rank}.pt")
    return [(folder / str(i), case, parameters) for i, (case, parameters) in enumerate(zip(cases, wanted))]


def test_experts_of_all_ranks_have_the_parameters_that_deepspeed_gathers(runs, tmp_path):
    for run, case, wanted in runs:
        for path in run, run / "step-2":
            found = read(path, tmp_path / "out")
            assert_same({name: found[name] for name in wanted}, wanted)
            # The rest is buffers of the gates.
            assert not any("experts" in name for name in found.keys() - wanted.keys()), case
        experts = {int(name.split("_experts.")[1].split(".")[0]) for name in wanted if "_experts." in name}
        assert experts == set(range(case["model"][1]))
        assert run_json("inspect", run)["others"].keys() >= ({"optimizer"} if case["stage"] else set())


@pytest.mark.parametrize("damage, says", [
    ("expert", "model_states.pt` is missing"), ("more", "files of experts instead of"),
    ("rank", "has files of"), ("renamed", "is not a tensor of expert 1"), ("groups", "other groups"),
    ("owners", "is not an expert of"), ("shape", "lack"), ("name", "of tensor or pipeline parallelism"),
    ("autoep", "AutoEP placed its experts")])
def test_changed_runs_with_experts_are_refused(runs, tmp_path, damage, says):
    run = runs[1][0]
    shutil.copytree(run, tmp_path / "run")
    tag = tmp_path / "run/step-2"
    expert = tag / "layer_1_expert_1_mp_rank_00_model_states.pt"
    optimizers = sorted(tag.glob("*_optim_states.pt"))

    def change(path, work):
        state = torch.load(path, weights_only=False)
        work(state)
        torch.save(state, path)

    if damage == "expert":
        expert.unlink()
    elif damage == "more":
        shutil.copy(expert, tag / "layer_1_expert_99_mp_rank_00_model_states.pt")
    elif damage == "rank":
        optimizers[-1].unlink()
    elif damage == "renamed":
        shutil.copy(tag / "layer_1_expert_0_mp_rank_00_model_states.pt", expert)
    elif damage in ("groups", "owners"):
        for path in optimizers[-1:] if damage == "groups" else optimizers:
            change(path, lambda state: state["optimizer_state_dict"]["partition_count"].reverse())
    elif damage == "shape":
        change(expert, lambda state: state.update({name: value[None] for name, value in state.items()}))
    elif damage == "name":
        shutil.copy(expert, tag / "layer_01_expert_1_mp_rank_00_model_states.pt")
    else:
        change(tag / "mp_rank_00_model_states.pt", lambda state: state.update(ds_autoep_layers=[{}]))
    for command in (["digest"], ["convert", "--to", "dcp", "-o", tmp_path / "out"]):
        result = run_tool(command[0], tmp_path / "run", *command[1:])
        assert result.returncode == 5 and says in result.stderr, result
    assert not (tmp_path / "out").exists()
