"""Runs torchtitan's Trainer on CPUs: `main` trains each run of a JSON file for three steps, and writes the losses to
another file.

A run is {"model": NAME of a function here, "ranks": NUMBER of processes, "values": FILE or null, "arguments":
torchtitan's command line}. FILE contains a dict from path to whole tensor, written by torch.save; load_state_dict
loads it instead of a checkpoint.

Stand-ins replace what CPUs lack: device statistics, FlexAttention's backward pass (ScaledDotProductAttention is used),
and reductions that scale (gloo has none). Others replace parts that the test does not need: a tokenizer, a data set and
TensorBoard."""

import json
import os
import tempfile
import time
import types
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from titan_models import LLAMA, deepseek_config, llama_config, titan

torch._utils._get_available_device_type = lambda: "cpu"
trainer = titan("torchtitan.trainer", "datasets", "datasets.distributed", "torch.utils.tensorboard")

from torchtitan.components import dataloader, loss, metrics, optimizer, tokenizer  # noqa: E402
from torchtitan.config import ConfigManager, ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.models import deepseek_v3, llama3  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402

metrics.build_device_memory_monitor = lambda: types.SimpleNamespace(
    device_name="cpu", reset_peak_stats=lambda: None, get_peak_stats=lambda: metrics.DeviceMemStats(*[0] * 6))
trainer.dist_utils.set_pg_timeouts = lambda **_: None
# It waits for the other ranks.
trainer.time = types.SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda _: None)


class NoTokenizer(tokenizer.BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(tokenizer.BaseTokenizer.Config):
        pass

    def __init__(self, config, **_):
        super().__init__()

    encode = decode = get_vocab_size = None


class Tokens(torch.utils.data.IterableDataset):
    """Loads random tokens, different ones on each rank."""

    def __init__(self, seed, length):
        self.seed, self.length = seed, length

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            tokens = torch.randint(LLAMA["vocab"], (self.length + 1,), generator=generator)
            yield {"input": tokens[:-1], "positions": torch.arange(self.length, dtype=torch.int32)}, tokens[1:]


class DataLoader(dataloader.ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(dataloader.ParallelAwareDataloader.Config):
        pass

    def __init__(self, config, *, dp_rank, dp_world_size, seq_len, local_batch_size, **_):
        super().__init__(Tokens(dp_rank, seq_len), dp_rank, dp_world_size, batch_size=local_batch_size)


class Losses(metrics.MetricsProcessor):
    """Keeps all losses, bit for bit."""

    @dataclass(kw_only=True, slots=True)
    class Config(metrics.MetricsProcessor.Config):
        pass

    def log(self, step, global_avg_loss, *_, **__):
        self.losses = [*getattr(self, "losses", []), global_avg_loss.hex()]


def write_spec(model):
    module = deepseek_v3 if model == "deepseek" else llama3
    spec = module.model_registry("debugmodel")
    spec.model = deepseek_config(module) if model == "deepseek" else llama_config(module, *model.split("_")[1:])
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    parallelize = spec.parallelize_fn

    def parallelize_copy(*arguments, **keywords):
        parallel = parallelize(*arguments, **keywords)
        for part in parallel.modules():
            if isinstance(part, FSDPModule):
                part.set_force_sum_reduction_for_comms(True)
        return parallel

    spec.parallelize_fn = parallelize_copy
    return spec


def put_in(model, values):
    """Copies the values by hand."""
    state = model.state_dict()
    assert state.keys() == values.keys()
    for path, tensor in state.items():
        value = values[path].to(tensor.dtype)
        if isinstance(tensor, DTensor):
            value = distribute_tensor(value, tensor.device_mesh, tensor.placements, src_data_rank=None)
        state[path] = value
    model.load_state_dict(state)


def make_config(model):
    return trainer.Trainer.Config(
        model_spec=write_spec(model), tokenizer=NoTokenizer.Config(), dataloader=DataLoader.Config(),
        metrics=Losses.Config(log_freq=1), loss=loss.CrossEntropyLoss.Config(), activation_checkpoint=None,
        optimizer=optimizer.default_adamw(lr=1e-3), lr_scheduler=optimizer.LRSchedulersContainer.Config(warmup_steps=2),
        training=TrainingConfig(local_batch_size=2, seq_len=32, steps=3, disable_cuda_graphs=True,
                                mixed_precision_param="float32"),
        # PyTorch 2.13 lacks a function of fully_shard that the default backend needs.
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        checkpoint=trainer.CheckpointManager.Config(load_only=True))


llama, llama_fused, llama_tied, deepseek = (
    partial(make_config, model) for model in ("llama", "llama_fused", "llama_tied", "deepseek"))


def train(run, folder):
    torch.manual_seed(0)
    one = ConfigManager().parse_args(["--module", __name__, "--config", run["model"], "--dump_folder", folder,
                                      *run["arguments"]]).build()
    if run["values"]:
        put_in(one.model_parts[0], torch.load(run["values"]))
    one.train()
    one.close()
    return one.metrics_processor.losses


def run_rank(rank, ranks, runs, folder):
    torch.set_num_threads(1)
    os.environ.update(LOCAL_RANK=str(rank), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{ranks}", rank=rank, world_size=ranks)
    losses = [train(run, folder) for run in runs]
    if rank == 0:
        with open(f"{folder}/{ranks}.json", "w") as file:
            json.dump(losses, file)
    dist.barrier()
    dist.destroy_process_group()


def main(given, result):
    with open(given) as file:
        runs = json.load(file)
    losses = [None] * len(runs)
    with tempfile.TemporaryDirectory() as folder:
        for ranks in {run["ranks"] for run in runs}:
            here = [i for i, run in enumerate(runs) if run["ranks"] == ranks]
            # Forked processes need not repeat the imports, which take seconds.
            torch.multiprocessing.start_processes(
                run_rank, (ranks, [runs[i] for i in here], folder), nprocs=ranks, start_method="fork")
            with open(f"{folder}/{ranks}.json") as file:
                for i, found in zip(here, json.load(file), strict=True):
                    losses[i] = found
    with open(result, "w") as file:
        json.dump(losses, file)
