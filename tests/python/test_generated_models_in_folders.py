"""Reads the state of training runs as trainers save it: a model under a wrapper's key, next to optimizers, generators,
schedules, numbers and copies.

By construction, the test knows which tensors are the model. `inspect`, `digest` and `convert` must give exactly these,
or refuse and name the parts to choose from."""

import argparse
import hashlib
import json
import os
import pathlib
import pickle
import tempfile

import numpy as np
import pytest
from clients import client_of
from generated import generated, given
from hypothesis import strategies as st
from support import run_json, run_ok, run_tool

torch = client_of("torch")
safetensors_torch = client_of("safetensors.torch")
dcp = client_of("torch.distributed.checkpoint")
ocp = client_of("orbax.checkpoint")

# Keys that lead to the model. The outermost dictionary may be the model itself.
WRAPPERS = ["", "model", "module", "state_dict", "model_state_dict", "net", "network", "ema", "teacher", "student",
            "generator", "netG", "params", "params_ema", "weights", "ema_state_dict", "app.model", "state.model",
            "fsdp_checkpoint.model", "checkpoint.state_dict", "run7.model", "app.model.module"]
OPTIMIZERS = ["optim", "optimizer", "optimizers", "optimizer_0", "optimizer_state_dict", "optimizer_states",
              "opt_state", "chained_0.optimizer", "g_optim", "optimizerG", "last_optimizer_state"]
# Only their contents show that they hold an optimizer.
UNNAMED = ["opt", "solver", "extra", "0"]
COPIES = ["ema", "model_ema", "state_dict_ema", "best_model", "teacher", "discriminator"]
FORMATS = ["pt", "legacy", "dcp", "names", "safetensors", "zarr"]


def random_weights(seed, names):
    bits = np.random.default_rng(seed)
    return {name: torch.from_numpy(bits.random((2 + i, 3) if name.endswith("weight") else 3 + i, np.float32))
            for i, name in enumerate(names)}


def make_state(kind, weights):
    """Returns the state of a PyTorch optimizer after a step, with parameters by name or number."""
    by_name, kind = kind.endswith("-by-name"), kind.removesuffix("-by-name")
    parameters = [torch.nn.Parameter(t.clone()) for t in weights.values()]
    make = {"adamw": torch.optim.AdamW, "amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
            "sgd": lambda p: torch.optim.SGD(p, lr=0.1), "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
            "adagrad": torch.optim.Adagrad, "adadelta": torch.optim.Adadelta, "rmsprop": torch.optim.RMSprop,
            "adamax": torch.optim.Adamax, "nadam": torch.optim.NAdam}[kind]
    optimizer = make(parameters)
    sum(p.square().sum() for p in parameters).backward()
    optimizer.step()
    state = optimizer.state_dict()
    if by_name:
        names = list(weights)
        state = {"state": {names[i]: of for i, of in state["state"].items()},
                 "param_groups": [{**group, "params": names} for group in state["param_groups"]]}
    return state


KINDS = [kind + by for kind in ("adamw", "amsgrad", "momentum", "sgd", "adagrad", "adadelta", "rmsprop", "adamax",
                                "nadam")
         for by in ("", "-by-name")]
OTHERS = {  # next to a model, but not part of it
    "best_val_loss": torch.tensor(1.5), "best_acc1": torch.tensor(70.0), "rng_state": torch.get_rng_state(),
    "cuda_rng_state": [torch.zeros(16, dtype=torch.uint8)], "rng": [{"torch": torch.get_rng_state(), "python": [3, 4]}],
    "epoch": 3, "step": torch.tensor(10), "iteration": 7, "lr_scheduler": {"last_epoch": 3, "_last_lr": [0.1]},
    "lr_schedulers": [{"base_lrs": [torch.tensor(0.1)]}], "scaler": {"scale": torch.tensor(65536.0), "growth": 2},
    "args": {"lr": 0.1, "tensor_model_parallel_size": 1}, "loss_history": torch.ones(5),
          "train_state": {"step": torch.tensor(3)},
    "dataloader": {"seen": torch.tensor([3, 4])}, "class_weights": torch.ones(4),
          "callbacks": {"early": {"best": torch.tensor(0.5)}},
}


def put(tree, path, value):
    *outer, last = path.split(".")
    for key in outer:
        tree = tree.setdefault(key, {})
    tree[last] = value


def flat(tree, prefix=""):
    """Yields names as PyTorch flattens them: a list without tensors is one object."""
    def has_tensor(value):
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
        return isinstance(value, torch.Tensor) or any(has_tensor(part) for part in parts)
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict) or (isinstance(value, list) and has_tensor(value)):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@st.composite
def cases(draw):
    form = draw(st.sampled_from(FORMATS))
    wrapper = draw(st.sampled_from(WRAPPERS))
    outer = wrapper.rpartition(".")[0]
    at = draw(st.sampled_from(["", f"{outer}."])) if outer and outer != "app.model" else f"{outer}." if outer else ""
    optimizers = [] if not draw(st.booleans()) else [
        (draw(st.sampled_from(OPTIMIZERS + (UNNAMED if form != "zarr" else []))), draw(st.sampled_from(KINDS)))]
    others = draw(st.lists(st.sampled_from(sorted(OTHERS)), max_size=3, unique=True))
    copy = draw(st.sampled_from([None, None, None, *COPIES]))
    names = draw(st.lists(st.sampled_from(["layers.0.up.weight", "layers.0.up.bias", "norm.weight", "embed.weight",
                                           "head.bias"]),
                          min_size=1, max_size=4, unique=True))
    return {"form": form, "wrapper": wrapper, "at": at, "optimizers": optimizers, "others": others, "copy": copy,
            "names": sorted({*names, "head.weight"}), "seed": draw(st.integers(0, 1 << 30))}


def can_be_known(case):
    """Returns whether the names are enough to identify the model."""
    wrapper, form, optimizers = case["wrapper"], case["form"], case["optimizers"]
    if form in ("safetensors", "zarr", "names") and "." in wrapper and case["at"] != wrapper.rpartition(".")[0] + ".":
        return False
    if form in ("safetensors", "zarr", "names") and not optimizers:
        return not wrapper and not case["others"] and not case["copy"]  # Only the names are available.
    if form == "safetensors":  # Only an optimizer's own tensors reveal it.
        known = ("adamw", "amsgrad", "momentum", "adadelta", "rmsprop", "adamax", "nadam")
        return optimizers[0][1].split("-")[0] in known and not case["others"] and wrapper.count(".") < 2
    if form in ("names", "zarr"):
        return optimizers[0][0] in OPTIMIZERS and (form == "names" or not optimizers[0][1].startswith("sgd")) \
            and not {"class_weights", "loss_history"} & {*case["others"]} and wrapper.count(".") < 2
    if not wrapper:  # Tensors of a run count as the model's unless an optimizer shows a run.
        return not {"class_weights", "loss_history"} & {*case["others"]} and not case["copy"] and (
            bool(optimizers) or not case["others"])
    return True


def write(case, folder):
    """Writes the run. Returns its path, the model, the tensors of the copy, and the number of tensors."""
    weights = random_weights(case["seed"], case["names"])
    copy = random_weights(case["seed"] + 1, case["names"])
    tree = {}
    if case["wrapper"]:
        put(tree, case["wrapper"], dict(weights))
    else:
        tree.update(weights)
    for name, kind in case["optimizers"]:
        put(tree, case["at"] + name, make_state(kind, weights))
    for name in case["others"]:
        put(tree, case["at"] + name, OTHERS[name])
    if case["copy"]:
        put(tree, case["at"] + case["copy"], dict(copy))
    form, path = case["form"], folder / "in"
    if form in ("pt", "legacy"):
        path = folder / "in.pt"
        torch.save(tree, path, _use_new_zipfile_serialization=form == "pt")
    elif form in ("dcp", "names"):
        dcp.save(tree, checkpoint_id=path, no_dist=True)
        if form == "names":
            meta = pickle.loads((path / ".metadata").read_bytes())
            meta.planner_data = None
            (path / ".metadata").write_bytes(pickle.dumps(meta))
    else:
        tensors = {name: value.contiguous() for name, value in flat(tree) if isinstance(value, torch.Tensor)}
        if form == "safetensors":
            path.mkdir()
            safetensors_torch.save_file({n: t.clone() for n, t in tensors.items()}, path / "model.safetensors")
        else:
            arrays = {n: t.numpy() for n, t in tensors.items()}
            ocp.PyTreeCheckpointer(use_ocdbt=False, use_compression=False).save(path, arrays)
    return path, weights, copy, sum(isinstance(value, torch.Tensor) for _, value in flat(tree))


def check(path, wanted, folder, *more):
    """Checks that all commands give exactly these tensors."""
    digests = {name: hashlib.sha256(t.numpy().tobytes()).hexdigest() for name, t in wanted.items()}
    told = {line.split()[1]: line.split()[0] for line in run_ok("digest", path, *more).stdout.splitlines()}
    told.pop("(model)")
    assert told == digests
    shown = run_json("inspect", path, *more)
    assert {tensor["path"] for tensor in shown["tensors"]} == {*wanted}
    out = folder / f"out{len(list(folder.iterdir()))}"
    run_ok("convert", path, "--to", "safetensors", "-o", out, "-q", *more)
    got = safetensors_torch.load_file(out / "model.safetensors")
    assert got.keys() == wanted.keys() and all(torch.equal(got[n], t) for n, t in wanted.items())
    return shown


def same_part(case, name):
    return case["wrapper"] == case["at"] + name or case["wrapper"].startswith(case["at"] + name + ".")


@generated(60)
@given(case=cases().filter(can_be_known).filter(lambda c: not c["copy"] or not same_part(c, c["copy"])))
def test_generated_models_are_found_in_folders_of_a_run(case):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path, weights, copy, count = write(case, folder)
        if not case["copy"]:
            shown = check(path, weights, folder)
            assert shown.get("part", "") == case["wrapper"]
            assert sum(of["tensors"] for of in shown["others"].values()) + len(weights) == count
        elif case["wrapper"]:
            parts = {case["wrapper"]: weights, case["at"] + case["copy"]: copy}
            for command in (["inspect", path], ["digest", path],
                            ["convert", path, "--to", "dcp", "-o", folder / "out"]):
                result = run_tool(*command)
                assert result.returncode == 5 and all(f"`{part}`" in result.stderr for part in parts), (result, parts)
                assert "--part-of-file" in result.stderr and not (folder / "out").exists()
            for part, wanted in parts.items():
                check(path, wanted, folder, "--part-of-file", part)
        else:  # The copy is the only named part; the rest is next to it.
            check(path, copy, folder, "--part-of-file", case["at"] + case["copy"])
            result = run_tool("digest", path)
            assert result.returncode == 5 or len(result.stdout.splitlines()) == 1 + len(weights) + len(copy), result


def test_inspect_reads_optimizer_state_on_request(tmp_path):
    """A part without weights can be chosen, too."""
    weights = random_weights(1, ["a.weight", "b.bias"])
    torch.save({"model": weights, "optimizer": make_state("adamw-by-name", weights), "epoch": 3}, tmp_path / "in.pt")
    shown = run_json("inspect", tmp_path / "in.pt", "--part-of-file", "optimizer.state")
    assert {t["path"] for t in shown["tensors"]} == {f"{n}.{s}" for n in weights
                                                     for s in ("exp_avg", "exp_avg_sq", "step")}
    assert shown["part"] == "optimizer.state" and shown["others"]["model"] == {
        "entries": 2, "tensors": 2, "elements": 10, "bytes": 40}
    assert json.dumps(shown["others"]["epoch"]) == '{"entries": 1, "tensors": 0, "elements": 0, "bytes": 0}'
    text = run_ok("inspect", tmp_path / "in.pt").stdout
    assert "model      shown           2        10   40 B" in text and "optimizer  not read        6" in text, text
    result = run_tool("digest", tmp_path / "in.pt", "--part-of-file", "modl")
    assert result.returncode == 2 and "has no part `modl` with tensors" in result.stderr and "`model`, `optimizer`" in result.stderr


def split_into_ranks(tree, name):
    """Returns the files of two ranks, each with half of the matrices' rows."""
    return {rank: {**tree, name: {n: t.chunk(2)[rank] for n, t in tree[name].items()}} for rank in range(2)}


# Trainers' file names for ranks, and how the message suggests joining them.
RANKS = {
    "megatron": ("mp_rank_{:02}/model_optim_rng.pt", "mp_rank_01", "--ckpt-format torch_dist"),
    "megatron-pipeline": ("mp_rank_00_{:03}/model_optim_rng.pt", "mp_rank_00_001", "--ckpt-format torch_dist"),
    "deepspeed": ("mp_rank_{:02}_model_states.pt", "mp_rank_01_model_states.pt", "zero_to_fp32.py"),
    "bloom": ("layer_03-model_{:02}-model_states.pt", "layer_03-model_01-model_states.pt", "zero_to_fp32.py"),
    "meta": ("consolidated.{:02}.pth", "consolidated.01.pth", "convert_llama_weights_to_hf.py"),
    "metaseq": ("checkpoint_last-model_part-{}.pt", "checkpoint_last-model_part-1.pt", "torch.distributed.checkpoint"),
    "fairseq": ("checkpoint_last-shard{}.pt", "checkpoint_last-shard1.pt", "torch.distributed.checkpoint"),
    "verl": ("model_world_size_2_rank_{}.pt", "model_world_size_2_rank_1.pt", "torch.distributed.checkpoint"),
    "composer": ("ep0-ba3-rank{}.pt", "ep0-ba3-rank1.pt", "torch.distributed.checkpoint"),
}


@pytest.mark.parametrize("case", RANKS)
def test_one_ranks_file_is_rejected_next_to_its_siblings(tmp_path, case):
    name, sibling, joins = RANKS[case]
    weights = random_weights(1, ["a.weight", "b.weight"])
    for rank, tree in split_into_ranks({"model": weights, "iteration": 3}, "model").items():
        path = tmp_path / "run" / name.format(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(tree, path)
    path = tmp_path / "run" / name.format(0)
    for command in (["inspect", path], ["digest", path], ["convert", path, "--to", "dcp", "-o", tmp_path / "out"]):
        result = run_tool(*command)
        assert result.returncode == 5 and f"`{sibling}`" in result.stderr and joins in result.stderr, result
    other = tmp_path / "run" / name.format(1)
    (other if other.parent == path.parent else other.parent).rename(tmp_path / "elsewhere")
    run_ok("digest", path)  # Files of whole runs, such as Composer's, can have this name.


def test_numbered_files_are_not_mistaken_for_ranks(tmp_path):
    """Numbers of LoRA ranks and of successive checkpoints are not taken for ranks of processes."""
    weights = random_weights(1, ["a.weight"])
    for name in ("lora_rank8.pt", "lora_rank16.pt", "checkpoint_1.pt", "checkpoint_2.pt", "epoch_0.pt", "epoch_1.pt"):
        torch.save(weights, tmp_path / name)
    for path in tmp_path.iterdir():
        run_ok("digest", path)


def test_one_ranks_file_is_rejected_by_its_content(tmp_path):
    """One rank's file is refused if its content shows it: Megatron's arguments, ZeRO's shapes or FSDP's flat
    parameters."""
    weights = random_weights(1, ["a.weight", "b.weight"])
    for name in ("tensor", "pipeline", "expert"):
        for size in (1, 2):
            args = argparse.Namespace(**{f"{name}_model_parallel_size": size, "lr": 1.0})
            torch.save({"model": weights, "args": args}, tmp_path / "in.pt")
            result = run_tool("digest", tmp_path / "in.pt")
            assert result.returncode == (0 if size == 1 else 5)
            assert size == 1 or f"`args.{name}_model_parallel_size` is 2" in result.stderr
    shapes = [{name: t.shape for name, t in weights.items()}]
    for stage, module in ((1, weights), (3, {**{n: torch.empty(0) for n in weights}, "mean": torch.ones(3)}),
                          (3, {"mean": torch.ones(3)})):
        torch.save({"module": module, "param_shapes": shapes, "ds_config": {}, "optimizer": None},
                   tmp_path / "model_states.pt")
        result = run_tool("digest", tmp_path / "model_states.pt")
        assert result.returncode == (0 if stage == 1 else 5) and (stage == 1 or "name the folder" in result.stderr)
    torch.save({"module": weights, "mp_world_size": 2}, tmp_path / "in.pt")
    assert "`mp_world_size` is 2" in run_tool("digest", tmp_path / "in.pt").stderr
    flat_weights = {"layers.0._fsdp_wrapped_module._flat_param": torch.ones(9)}
    torch.save({"model": flat_weights}, tmp_path / "in.pt")
    dcp.save({"model": flat_weights}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    for path in tmp_path / "in.pt", tmp_path / "dcp":
        result = run_tool("digest", path)
        assert result.returncode == 5 and "flat parameter of FSDP" in result.stderr


@pytest.mark.parametrize("shapes, params, is_whole", [
    ({"tok_embeddings": (10, 8), "layers.0.attention.wo": (8, 8)}, {"dim": 8, "n_heads": 2}, True),
    ({"tok_embeddings": (10, 4), "layers.0.attention.wo": (8, 4)}, {"dim": 8, "n_heads": 2}, False),  # Llama 2
    ({"tok_embeddings": (5, 8), "layers.0.attention.wo": (8, 4)}, {"dim": 8, "n_heads": 2}, False),  # Llama 3
    ({"tok_embeddings": (5, 8), "layers.0.attention.wo": (8, 4)}, None, False),
    # Mistral Nemo
    ({"tok_embeddings": (10, 8), "layers.0.attention.wo": (8, 6)}, {"dim": 8, "n_heads": 2, "head_dim": 3}, True)])
def test_one_shard_of_a_meta_checkpoint_is_rejected(tmp_path, shapes, params, is_whole):
    torch.save({**{f"{name}.weight": torch.ones(shape) for name, shape in shapes.items()},
                "norm.weight": torch.ones(8)},
               tmp_path / "consolidated.00.pth")
    if params:
        (tmp_path / "params.json").write_text(json.dumps(params))
    result = run_tool("digest", tmp_path / "consolidated.00.pth")
    assert result.returncode == (0 if is_whole else 5) and (is_whole
                                                                or "convert_llama_weights_to_hf.py" in result.stderr)


def save_parts(rank, folder):
    """Saves the state of one of two ranks: DTensors of FSDP2, and the forms of FSDP1."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{folder}/meet")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    fsdp = torch.distributed.fsdp
    layer = torch.nn.Linear(4, 4)
    fsdp.fully_shard(layer, mesh=mesh)
    states = {"fsdp2": layer.state_dict(),
              "optimizer": {"model": random_weights(1, ["a.weight"]), "optimizer": layer.state_dict()}}
    wrapped = fsdp.FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"))
    for kind in ("LOCAL_STATE_DICT", "SHARDED_STATE_DICT"):
        with fsdp.FullyShardedDataParallel.state_dict_type(wrapped, getattr(fsdp.StateDictType, kind)):
            states[kind.lower()] = wrapped.state_dict()
    states["parameters"] = dict(wrapped.named_parameters())
    for name, state in states.items():
        if rank == 0:
            torch.save(state, f"{folder}/{name}.pt")
    torch.distributed.destroy_process_group()


def test_one_rank_of_sharded_tensors_is_rejected(tmp_path):
    torch.multiprocessing.spawn(save_parts, (str(tmp_path),), nprocs=2)
    for name, words in (("fsdp2", "DTensor"), ("local_state_dict", "ShardedTensor"),
                        ("sharded_state_dict", "ShardedTensor"), ("parameters", "")):
        result = run_tool("digest", tmp_path / f"{name}.pt")
        assert result.returncode == 5 and words in result.stderr, result
    # Parts that are not read may be of any kind.
    assert [line.split()[1] for line in run_ok("digest", tmp_path / "optimizer.pt").stdout.splitlines()] == ["a.weight",
                                                                                                             "(model)"]
