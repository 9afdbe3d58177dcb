"""DeepSpeed trains random models on several processes. Its checkpoints give the tensors that its own zero_to_fp32.py
gives, bit for bit, and damaged ones are refused."""

import os
import random
import shutil
import types

import pytest
import zero_runs
from clients import client_of
from generated import SEED
from support import run_json, run_ok, run_tool
from test_generated_folders import bytes_of
from torch_processes import spawn_it

torch = client_of("torch")
client_of("deepspeed")
safetensors_torch = client_of("safetensors.torch")

CASES = 14


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Returns the folder of each run, and how it was made."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    folder = tmp_path_factory.mktemp("runs")
    first = SEED * CASES
    print("seeds", first, "to", first + CASES - 1)
    cases = [{**zero_runs.draw(first + i), "stage": i % 4} for i in range(CASES)]
    spawn_it(random.Random(SEED).choice([2, 3]), folder, zero_runs.save_all, cases, str(folder))
    return [(folder / str(i), case) for i, case in enumerate(cases)]


def wanted_of(run, case):
    """Returns the tensors of DeepSpeed's own script, and the frozen ones that it loses in stage 1."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    tag = run / "step-2"
    if case["stage"] == 0:
        return torch.load(tag / "mp_rank_00_model_states.pt", weights_only=False)["module"]
    wanted = get_fp32_state_dict_from_zero_checkpoint(run)
    if case["stage"] == 1:
        module = torch.load(tag / "mp_rank_00_model_states.pt", weights_only=False)["module"]
        wanted |= {name: module[name] for name in (f"layers.{i}" for i in range(case["model"][2]))}
    return wanted


def read(path, out):
    run_ok("convert", path, "--to", "safetensors", "-o", out)
    found = safetensors_torch.load_file(out / "model.safetensors")
    shutil.rmtree(out)
    return found


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        # The script makes buffers f32.
        tensor = tensor.to(found[name].dtype) if name == "mean" else tensor
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert bytes_of(found[name]) == bytes_of(tensor), name


def test_runs_of_all_stages_have_the_tensors_of_zero_to_fp32(runs, tmp_path):
    for run, case in runs:
        wanted = wanted_of(run, case)
        for path in run, run / "step-2":
            assert_same(read(path, tmp_path / "out"), wanted)
        others = run_json("inspect", run)["others"]
        assert others["optimizer"]["tensors"] > 0
        assert not case["stage"] or run_tool("digest", run, "--part-of-file", "module").returncode == 2


def to_universal(tag, out):
    from deepspeed.checkpoint import ds_to_universal

    ds_to_universal.main(types.SimpleNamespace(
        input_folder=str(tag), output_folder=str(out), num_extract_workers=1, num_merge_workers=1,
        keep_temp_folder=False, strict=True, inject_missing_state=True))


def test_universal_checkpoints_equal_the_run_that_they_are_from(runs, tmp_path):
    """The tensors are the run's own: DeepSpeed rounds copies of tied tensors, and makes whole numbers f32."""
    for stage in 1, 2, 3:
        run, case = next((run, case) for run, case in runs if case["stage"] == stage)
        universal = tmp_path / f"universal-{stage}"
        to_universal(run / "step-2", universal)
        assert_same(read(universal, tmp_path / "out"), wanted_of(run, case))
        changed = torch.ones(2, 2) if stage == 3 else {"param": torch.ones(2, 2)}
        torch.save(changed, next((universal / "zero").glob("layers.*")) / "fp32.pt")
        assert run_tool("digest", universal).returncode == 5
        shutil.copytree(universal, tmp_path / f"older-{stage}")
        for path in (tmp_path / f"older-{stage}").glob("*_model_states.pt"):
            path.unlink()
        result = run_tool("digest", tmp_path / f"older-{stage}")
        assert result.returncode == 5 and "which have the shapes of tensors" in result.stderr
        shutil.rmtree(universal / "zero/up.weight")
        assert run_tool("digest", universal).returncode != 0


def change(state, drawn):
    """Changes one value in a dictionary or list, at any depth."""
    while True:
        keys = list(state) if isinstance(state, dict) else range(len(state))
        key = drawn.choice(list(keys))
        value = state[key]
        if isinstance(value, (dict, list)) and value and drawn.random() < 0.8:
            state = value
            continue
        others = [None, -1, 0, 1, 2**62, "x", [], {}, [[]], torch.ones(3), torch.ones(2, 2), torch.ones(4)[::2],
                  torch.Size([2**40]), (), state]
        if isinstance(value, torch.Tensor) and value.dim():
            others += [value[:-1], value.repeat(2, *[1] * (value.dim() - 1)), value.bfloat16()] * 3
        if isinstance(value, torch.Size):
            others += [torch.Size([*value, 2]), torch.Size([*value, 1]), torch.Size([1, *value][::-1])] * 3
        state[key] = drawn.choice(others)
        return


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_changed_files_are_refused_or_give_what_deepspeed_reads(runs, tmp_path, stage):
    run, case = next((run, case) for run, case in runs if case["stage"] == stage)
    refused = 0
    for seed in range(SEED, SEED + 40):
        drawn = random.Random(seed)
        path = drawn.choice(sorted((run / "step-2").iterdir()))
        state = torch.load(path, weights_only=False)
        read_first = "param_shapes", "shared_params", "frozen_param_shapes", "frozen_param_fragments"
        part = {key: state[key] for key in read_first} if "model" in path.name else state["optimizer_state_dict"]
        change(part, drawn)
        state |= part if "model" in path.name else {}
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(run, tmp_path / "run")
        torch.save(state, tmp_path / "run/step-2" / path.name)
        result = run_tool("convert", tmp_path / "run", "--to", "safetensors", "-o", tmp_path / "out")
        assert result.returncode in (0, 2, 5), (seed, result)
        refused += result.returncode != 0
        if result.returncode == 0:
            found = safetensors_torch.load_file(tmp_path / "out/model.safetensors")
            shutil.rmtree(tmp_path / "out")
            try:
                wanted = wanted_of(tmp_path / "run", case)
            except (AttributeError, KeyError, TypeError, ValueError):  # Only the first file's shapes are read.
                assert "_rank_0_" not in path.name and "model" in path.name, (seed, path)
                wanted = wanted_of(run, case)
            assert found.keys() >= wanted.keys(), seed
            assert_same({name: found[name] for name in wanted}, wanted)
    assert 5 < refused < 40


@pytest.mark.parametrize("damage, says", [
    ("lost", "has files of"), ("cut", "cannot read"), ("tensor-parallel", "`mp_rank_01_model_states.pt` is of tensor"),
    ("experts", "it has 1 files of experts instead of 0"), ("two", "or of another run"), ("no model", "model_states.pt"),
    ("no optimizer", "it has no files `*_optim_states.pt`"), ("no latest", "`latest` does not name a folder")])
def test_incomplete_runs_are_refused(runs, tmp_path, damage, says):
    for run, case in runs[1:4]:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(run, tmp_path / "run")
        tag = tmp_path / "run/step-2"
        optimizers, models = sorted(tag.glob("*_optim_states.pt")), sorted(tag.glob("*_model_states.pt"))
        if damage == "lost":
            optimizers[0].unlink()
        elif damage == "cut":
            optimizers[1].write_bytes(optimizers[1].read_bytes()[:-70])
        elif damage == "tensor-parallel":
            shutil.copy(models[0], tag / "mp_rank_01_model_states.pt")
        elif damage == "experts":
            shutil.copy(models[0], tag / "layer_0_expert_0_mp_rank_00_model_states.pt")
        elif damage == "two":
            name = optimizers[0].name
            shutil.copy(optimizers[0], tag / (name[5:] if name.startswith("bf16_") else f"bf16_{name}"))
        elif damage == "no latest":
            (tmp_path / "run/latest").unlink()
        else:
            for path in models if damage == "no model" else optimizers:
                path.unlink()
        for command in (["digest"], ["inspect"], ["convert", "--to", "dcp", "-o", tmp_path / "out"]):
            result = run_tool(command[0], tmp_path / "run", *command[1:])
            assert result.returncode == 5 and says in result.stderr, (case, result)
            assert "hint:" in result.stderr or damage in ("lost", "cut")
        assert not (tmp_path / "out").exists()


def test_ranks_with_several_types_are_refused(runs, tmp_path):
    for run, case in runs[1:4]:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(run, tmp_path / "run")
        path = sorted((tmp_path / "run/step-2").glob("*_optim_states.pt"))[-1]
        state = torch.load(path, weights_only=False)
        groups = state["optimizer_state_dict"]
        key = "fp32_flat_groups" if case["stage"] == 3 else "single_partition_of_fp32_groups"
        groups[key] = [group.double() for group in groups[key]]
        torch.save(state, path)
        assert run_tool("digest", tmp_path / "run").returncode == 5, case


def test_buffers_that_differ_between_ranks_are_refused(runs, tmp_path):
    run, case = next((run, case) for run, case in runs if case["stage"] == 3)
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run/step-2/zero_pp_rank_1_mp_rank_00_model_states.pt"
    state = torch.load(path, weights_only=False)
    state["module"]["mean"][2] += 1
    torch.save(state, path)
    result = run_tool("digest", tmp_path / "run")
    assert result.returncode == 5 and "`mean` in" in result.stderr and "differs at [2]" in result.stderr, result
    assert "/zero_pp_rank_0_mp_rank_00_" in result.stderr and f"/{path.name}" in result.stderr


def trainer_parent(run, folder):
    """Returns a run as the Trainer of Transformers leaves it: its own files are next to DeepSpeed's."""
    shutil.copytree(run, folder)
    (folder / "step-2").rename(folder / "global_step100")
    (folder / "global_step50").mkdir()
    (folder / "latest").write_text("global_step100")
    for name in "trainer_state.json", "config.json":
        (folder / name).write_text("{}")
    for name in "training_args.bin", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth":
        torch.save({"state": 1}, folder / name)
    return folder


def test_the_folder_of_a_trainer_leads_to_its_latest_step(runs, tmp_path):
    for run, case in runs[:4]:
        parent = trainer_parent(run, tmp_path / str(case["stage"]) / "checkpoint-100")
        assert_same(read(parent, tmp_path / "out"), wanted_of(run, case))
    (parent / "latest").write_text("global_step70")
    result = run_tool("digest", parent)
    assert result.returncode == 5 and "`latest` does not name a folder" in result.stderr, result


def test_weights_next_to_a_run_are_not_chosen_silently(runs, tmp_path):
    """The Trainer of Transformers saves 16-bit weights next to a run: the user names one of them."""
    run, case = runs[1]
    shutil.copytree(run, tmp_path / "run")
    safetensors_torch.save_file({"w": torch.ones(2)}, tmp_path / "run/model.safetensors")
    result = run_tool("digest", tmp_path / "run")
    assert result.returncode == 2 and "holds safetensors files and DeepSpeed files" in result.stderr
    assert_same(read(tmp_path / "run/step-2", tmp_path / "out"), wanted_of(run, case))
