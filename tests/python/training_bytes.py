"""Runs one training step in 8 processes over gloo, and counts the bytes that a rank sends over each mesh axis.

`main` reads a JSON list of runs, {"model": a function here, "mesh": {axis: size}, "tokens": number for each rank,
"settings": the model's settings}, and writes a list of {axis: bytes}. PyTorch's own functions make the collectives:
fully_shard, parallelize_module, all_to_all_single. A DispatchMode sees each collective and its operands. One of n
ranks sends (n - 1) / n of an all-gather's output or of the input of a reduce-scatter or all-to-all, and twice that
for an all-reduce."""

import json
import os
import tempfile
from collections import Counter

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

RANKS = 8
# Name of the operation → which argument has all elements, and how many times they are sent.
COLLECTIVES = {
    "_allgather_base_": (0, 1), "_reduce_scatter_base_": (1, 1), "allreduce_": (0, 2), "alltoall_base_": (1, 1),
    "all_reduce": (0, 2), "reduce_scatter_tensor": (0, 1), "all_to_all_single": (0, 1),
}

LOCAL = {"wait_tensor", "_wrap_tensor_autograd"}


def count_bytes(tensors):
    tensors = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Wire(TorchDispatchMode):
    def __init__(self, mesh):
        super().__init__()
        self.axes = {mesh.get_group(axis).group_name: (axis, mesh[axis].size()) for axis in mesh.mesh_dim_names}
        self.sent = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._opname
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor turns these into collectives of local tensors.
        if function.namespace in ("c10d", "_c10d_functional") and name not in LOCAL:
            groups = [dist.ProcessGroup.unbox(arg).group_name
                      if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()) else arg
                      for arg in args]
            axis, n = next(self.axes[group] for group in groups if isinstance(group, str) and group in self.axes)
            if name == "all_gather_into_tensor":
                size = count_bytes(args[0]) * n
            else:
                operand, times = COLLECTIVES[name]
                size = count_bytes(args[operand]) * times
            self.sent[axis] += size * (n - 1) // n
        return function(*args, **(kwargs or {}))


def shard_fully(module, mesh):
    """Calls fully_shard; on CPUs it cannot scale the sums."""
    fully_shard(module, mesh=mesh, reshard_after_forward=True)


def llama(mesh, settings, tokens):
    """Shards by columns and rows, then by fully_shard."""
    model = LlamaForCausalLM(LlamaConfig(**settings, use_cache=False))
    whole, plan = Replicate(), {}
    for i in range(settings["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        plan[f"{layer}.self_attn"] = PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": whole}, desired_input_kwarg_layouts={"hidden_states": whole})
        plan[f"{layer}.mlp"] = PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole)
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
            plan[f"{layer}.{name}"] = ColwiseParallel()
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            plan[f"{layer}.{name}"] = RowwiseParallel()
    plan["model.embed_tokens"] = RowwiseParallel(input_layouts=whole)
    plan["lm_head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh["tensor"], plan)
    for layer in model.model.layers:
        shard_fully(layer, mesh["fsdp"])
    shard_fully(model, mesh["fsdp"])
    ids = torch.randint(settings["vocab_size"], (2, tokens // 2))

    def step():
        logits = model(input_ids=ids).logits
        target = DTensor.from_local(ids.flatten(), mesh["tensor"], [whole], run_check=False)
        with loss_parallel():
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), target).backward()

    return model, step


def gpt2(mesh, settings, tokens):
    """Hybrid sharding has replicas of fully sharded groups."""
    model = GPT2LMHeadModel(GPT2Config(**settings, use_cache=False))
    for layer in model.transformer.h:
        shard_fully(layer, mesh["replicate", "fsdp"])
    shard_fully(model, mesh["replicate", "fsdp"])
    ids = torch.randint(settings["vocab_size"], (2, tokens // 2))
    return model, lambda: model(input_ids=ids, labels=ids).loss.backward()


class Experts(torch.nn.Module):
    """The experts of this rank. All ranks of the axis send them tokens, the same number to each expert."""

    def __init__(self, experts, d, ff, per_token, group):
        super().__init__()
        self.experts, self.per_token, self.group, self.n = experts, per_token, group, group.size()
        self.gate_up_proj = torch.nn.Parameter(torch.randn(experts // self.n, 2 * ff, d) * 0.02)
        self.down_proj = torch.nn.Parameter(torch.randn(experts // self.n, d, ff) * 0.02)

    def forward(self, x):
        tokens = x.repeat_interleave(self.per_token, 0)  # Cycles through the experts in order.
        order = torch.arange(len(tokens)).reshape(-1, self.experts).t().flatten()
        split = [len(tokens) // self.n] * self.n
        here = funcol.all_to_all_single_autograd(tokens[order], split, split, self.group)
        here = here.unflatten(0, (self.n, self.experts // self.n, -1)).transpose(0, 1).flatten(1, 2)
        gate, up = torch.einsum("etd,efd->etf", here, self.gate_up_proj).chunk(2, -1)
        out = torch.einsum("etf,edf->etd", torch.nn.functional.silu(gate) * up, self.down_proj)
        out = out.unflatten(1, (self.n, -1)).transpose(0, 1).flatten(0, 2)
        back = funcol.all_to_all_single_autograd(out, split, split, self.group)
        return torch.empty_like(back).index_copy(0, order, back).unflatten(0, (-1, self.per_token)).sum(1)


def mixture(mesh, settings, tokens):
    """Makes a Mixtral with its experts distributed over `expert`, and data parallelism around it."""
    model = LlamaForCausalLM(LlamaConfig(**settings["llama"], use_cache=False))
    d, experts, ff = model.config.hidden_size, settings["experts"], model.config.intermediate_size
    for layer in model.model.layers:
        layer.mlp = torch.nn.Module()
        layer.mlp.gate = torch.nn.Linear(d, experts, bias=False)
        layer.mlp.experts = Experts(experts, d, ff, settings["per_token"], mesh.get_group("expert"))

        def forward(x, mlp=layer.mlp):
            flat = x.flatten(0, 1)
            return (mlp.experts(flat) * mlp.gate(flat).softmax(-1).amax(-1, keepdim=True)).view_as(x)

        layer.mlp.forward = forward
        fully_shard(layer.mlp.experts, mesh=mesh["fsdp"], reshard_after_forward=True,
                    shard_placement_fn=lambda _: Shard(1))
        shard_fully(layer, mesh["expert", "fsdp"])
    shard_fully(model, mesh["expert", "fsdp"])
    ids = torch.randint(settings["llama"]["vocab_size"], (2, tokens // 2))
    return model, lambda: model(input_ids=ids, labels=ids).loss.backward()


def run_rank(rank, runs, folder):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    all_sent = []
    for run in runs:
        torch.manual_seed(0)
        mesh = init_device_mesh("cpu", tuple(run["mesh"].values()), mesh_dim_names=tuple(run["mesh"]))
        model, step = globals()[run["model"]](mesh, run["settings"], run["tokens"])
        for part in model.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)
        step()  # The first step also prepares FSDP.
        with Wire(mesh) as wire:
            step()
        all_sent.append(dict(wire.sent))
    if rank == 0:
        with open(f"{folder}/sent.json", "w") as file:
            json.dump(all_sent, file)
    dist.barrier()
    dist.destroy_process_group()


def main(given, result):
    with open(given) as file:
        runs = json.load(file)
    with tempfile.TemporaryDirectory() as folder:
        # Forked processes need not repeat the imports, which take seconds.
        torch.multiprocessing.start_processes(run_rank, (runs, folder), nprocs=RANKS, start_method="fork")
        os.replace(f"{folder}/sent.json", result)
