"""Models of Lightning, DeepSpeed and Accelerate, each set up in the usual way, begin with the bits of `gen`."""

import os
import types

import numpy as np
import pytest

from clients import client_of, gen_ok
from support import run_ok

torch = client_of("torch")

import shardinit
import torch.distributed as dist
from test_python_torch import MODEL, Toy, count_made, locals_are_equal, spawn_it, whole_one, words_of
from torch import nn
from torch.distributed.tensor import DTensor


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return gen_ok(MODEL, tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def spec(toy):
    return toy.parent / "spec.yaml"


TOKENS = torch.arange(16).reshape(2, 8)


def compute_loss(model):
    return nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten())


def reference(folder):
    """Returns the loss of the files' model before and after one step of SGD."""
    model = Toy()
    shardinit.torch.load_into(model, folder)
    loss = compute_loss(model)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss.item(), compute_loss(model).item()


# ---- Accelerate.


@pytest.mark.parametrize("size", ["5GB", "8K"])
def test_accelerate(spec, toy, tmp_path, size):
    accelerate = client_of("accelerate")
    run_ok("export", spec, "--to", "safetensors", "--max-shard-size", size, "-o", tmp_path / "out")
    assert (tmp_path / "out/model.safetensors.index.json").exists() == (size == "8K")
    with accelerate.init_empty_weights():
        model = Toy()
    model = accelerate.load_checkpoint_and_dispatch(model, tmp_path / "out", device_map={"": "cpu"})
    whole = whole_one(toy)
    assert set(model.state_dict()) == set(whole)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor.view(torch.int32), whole[name]), name


# ---- Lightning.


def lit(spec, begins):
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.losses = None, ()

        def configure_model(self):
            if self.model is not None:
                return
            with shardinit.torch.from_spec(spec):
                self.model = Toy()
                if self.device_mesh is not None:
                    from torch.distributed.fsdp import fully_shard

                    for layer in self.model.layers:
                        fully_shard(layer, mesh=self.device_mesh["data_parallel"])
                    fully_shard(self.model, mesh=self.device_mesh["data_parallel"])

        def on_train_start(self):
            begins(self.model)

        def training_step(self, batch, _):
            loss = nn.functional.cross_entropy(self.model(batch).flatten(0, 1), batch.flatten())
            self.losses = (*self.losses, loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def train_dataloader(self):
            return torch.utils.data.DataLoader([TOKENS, TOKENS], batch_size=None)

    return Model()


def fit_it(model, folder, **options):
    import lightning

    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=2, logger=False, enable_checkpointing=False, use_distributed_sampler=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, **options)
    trainer.fit(model)


def test_lightning(spec, toy, tmp_path):
    client_of("lightning")
    whole, begun = whole_one(toy), []

    def begins_with(model):
        begun.append(model)
        for name, tensor in model.state_dict().items():
            assert np.array_equal(words_of(tensor), words_of(whole[name])), name

    model = lit(spec, begins_with)
    fit_it(model, tmp_path, devices=1)
    assert begun == [model.model] and np.allclose(model.losses, reference(toy), atol=1e-6)


def fit_sharded(spec, folder, root):
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment
    from lightning.pytorch.strategies import ModelParallelStrategy

    rank, world = dist.get_rank(), dist.get_world_size()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world),
                      GROUP_RANK="0", LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="localhost",
                      MASTER_PORT="0", TORCHELASTIC_RUN_ID="run")
    whole, begun = whole_one(folder), []

    def begins_with(model):
        begun.append(model)
        sharded = {n: p for n, p in model.named_parameters() if isinstance(p, DTensor)}
        assert len(sharded) == 8
        locals_are_equal(sharded, whole)

    model = lit(spec, begins_with)
    fit_it(model, root, devices=world, strategy=ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1),
        plugins=[TorchElasticEnvironment()])
    assert begun == [model.model] and np.allclose(model.losses, reference(folder), atol=1e-5)


def test_lightning_with_fsdp2(spec, toy, tmp_path):
    client_of("lightning")
    spawn_it(2, tmp_path, fit_sharded, str(spec), str(toy), str(tmp_path))


# ---- DeepSpeed.

ZERO3 = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 100},
}


def deep_speed():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    # DeepSpeed would compile these operations on first use; PyTorch's own suffice.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if dist.is_initialized():
        os.environ.update(RANK=str(dist.get_rank()), LOCAL_RANK=str(dist.get_rank()),
                          WORLD_SIZE=str(dist.get_world_size()), MASTER_ADDR="localhost", MASTER_PORT="0")
        deepspeed.init_distributed("gloo")
    return deepspeed


def assert_bits(model, whole):
    import deepspeed

    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters(parameter):
            assert torch.equal(parameter.detach().view(torch.int32), whole[name]), name
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer.view(torch.int32), whole[name]), name


def partition_and_train(spec, folder, root):
    deepspeed = deep_speed()
    whole, rank = whole_one(folder), dist.get_rank()
    made = count_made()
    with shardinit.torch.from_spec(spec), deepspeed.zero.Init(config_dict_or_path=ZERO3):
        outside = Toy()
    assert all(parameter.numel() == 0 for parameter in outside.parameters())
    # Only this process's partitions are made.
    whole_bytes = {name: tensor.nbytes for name, tensor in whole.items()}
    buffers = sum(buffer.nbytes for buffer in outside.buffers())
    assert abs(sum(made) - buffers - (sum(whole_bytes.values()) - buffers) / dist.get_world_size()) < 4 * 8
    assert_bits(outside, whole)
    with deepspeed.zero.Init(config_dict_or_path=ZERO3), shardinit.torch.from_spec(spec):
        model = Toy()
    assert_bits(model, whole)
    with deepspeed.zero.Init(config_dict_or_path=ZERO3):
        late = Toy()
    shardinit.torch.load_into(late, folder)
    assert_bits(late, whole)
    with pytest.raises(shardinit.MismatchError, match=r"shape \[50, 24\] in the spec, \[51, 24\] here"):
        with deepspeed.zero.Init(config_dict_or_path=ZERO3), shardinit.torch.from_spec(spec):
            wrong = Toy()
            wrong.embed = nn.Embedding(51, 24)
    with pytest.raises(shardinit.MismatchError, match="torch.bfloat16 here"):
        with deepspeed.zero.Init(dtype=torch.bfloat16), shardinit.torch.from_spec(spec):
            wrong = Toy()

    engine, *_ = deepspeed.initialize(model=model, config=ZERO3)
    assert_bits(engine.module, whole)
    with pytest.raises(shardinit.MismatchError, match="head.weight: has a copy in its optimizer already"):
        shardinit.torch.init_(engine.module, spec)
    losses = []
    for _ in range(2):
        loss = compute_loss(engine)
        losses.append(loss.item())
        engine.backward(loss)
        engine.step()
    assert abs(losses[0] - reference(folder)[0]) < 1e-5 and losses[1] < losses[0]
    engine.save_checkpoint(root, tag="step-2")
    after = compute_loss(engine).item()
    if rank == 0:
        with open(os.path.join(root, "loss"), "w") as file:
            file.write(repr(after))


def go_on(spec, root):
    """Continues with another number of processes."""
    deepspeed = deep_speed()
    with open(os.path.join(root, "loss")) as file:
        wanted = float(file.read())
    config = {**ZERO3, "checkpoint": {"load_universal": True}}
    with deepspeed.zero.Init(config_dict_or_path=config), shardinit.torch.from_spec(spec):
        model = Toy()
    engine, *_ = deepspeed.initialize(model=model, config=config)
    engine.load_checkpoint(root, tag="universal")
    assert abs(compute_loss(engine).item() - wanted) < 1e-6


def test_deepspeed_zero_3_and_universal_checkpoints(spec, toy, tmp_path):
    client_of("deepspeed")
    root = tmp_path / "checkpoints"
    root.mkdir()
    spawn_it(2, tmp_path, partition_and_train, str(spec), str(toy), str(root))
    deep_speed()
    from deepspeed.checkpoint import ds_to_universal

    ds_to_universal.main(types.SimpleNamespace(
        input_folder=str(root / "step-2"), output_folder=str(root / "universal"), num_extract_workers=1,
        num_merge_workers=1, keep_temp_folder=False, strict=True, inject_missing_state=False))
    (tmp_path / "rendezvous").unlink(missing_ok=True)
    spawn_it(1, tmp_path, go_on, str(spec), str(root))
