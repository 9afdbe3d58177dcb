"""Real runs of DeepSpeed on CPUs, whose checkpoints the tests read."""

import os
import random

import torch
import torch.distributed as dist
from torch import nn


def start():
    """Returns DeepSpeed in a process of gloo."""
    os.environ.update(DS_ACCELERATOR="cpu", RANK=str(dist.get_rank()), LOCAL_RANK=str(dist.get_rank()),
                      WORLD_SIZE=str(dist.get_world_size()), MASTER_ADDR="localhost", MASTER_PORT="0")
    import deepspeed

    # DeepSpeed would compile these operations on first use; PyTorch's own suffice.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    return deepspeed


class Model(nn.Module):
    """Has tensors of all ranks, whole numbers, buffers, tied and frozen parameters."""

    def __init__(self, sizes, ties, freezes):
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(torch.randn(size)) for size in sizes)
        self.up = nn.Linear(sizes[0][0], 3)
        self.down = nn.Linear(sizes[0][0], 3, bias=False)
        self.register_buffer("mean", torch.randn(5))
        self.register_buffer("steps", torch.tensor(7))
        if ties:
            self.down.weight = self.up.weight
        for parameter in list(self.layers)[:freezes]:
            parameter.requires_grad_(False)

    def forward(self, x):
        x = self.up(x) + self.down(x)
        return x.sum() + sum((parameter * (i + 1)).sum() for i, parameter in enumerate(self.layers))


def draw(seed):
    """Returns the arguments of a random model, and how DeepSpeed trains it."""
    drawn = random.Random(seed)
    sizes = [tuple(drawn.choice([1, 2, 3, 5, 7, 11]) for _ in range(drawn.randint(1, 4)))
             for _ in range(drawn.randint(1, 6))]
    return {"stage": drawn.choice([0, 1, 2, 3]), "bf16": drawn.random() < 0.5, "groups": drawn.choice([1, 2]),
            "model": (sizes, drawn.random() < 0.5, drawn.randint(0, len(sizes) - 1))}


def save(case, root, tag):
    """Trains two steps and saves a checkpoint."""
    deepspeed = start()
    torch.manual_seed(3)
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": case["bf16"]},
              "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
              "zero_optimization": {"stage": case["stage"], "stage3_param_persistence_threshold": 4,
                                    "sub_group_size": 40}}
    model = Model(*case["model"])
    parameters = [p for p in model.parameters() if p.requires_grad]
    cut = len(parameters) // 2
    groups = [parameters[:cut], parameters[cut:]] if case["groups"] == 2 and cut else [parameters]
    engine, *_ = deepspeed.initialize(
        model=model, config=config, model_parameters=[{"params": group, "weight_decay": 0.1 * i}
                                                      for i, group in enumerate(groups)])
    dtype = torch.bfloat16 if case["bf16"] else torch.float32
    for step in range(2):
        loss = engine(torch.full((1, case["model"][0][0][0]), step + 0.5 + dist.get_rank(), dtype=dtype))
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(root, tag=tag)
    engine.destroy()


def save_all(cases, root):
    for i, case in enumerate(cases):
        folder = os.path.join(root, str(i))
        os.makedirs(folder, exist_ok=True)
        save(case, folder, "step-2")
        dist.barrier()


class Experts(nn.Module):
    """Has layers with their own degrees of expert parallelism."""

    def __init__(self, width, experts, degrees, freezes):
        from deepspeed.moe.layer import MoE

        super().__init__()
        self.up = nn.Linear(width, width)
        self.layers = nn.ModuleList(MoE(width, nn.Linear(width, width), num_experts=experts, ep_size=degree, k=1,
                                        min_capacity=4, use_residual=i == 1) for i, degree in enumerate(degrees))
        if freezes:
            self.layers[0].deepspeed_moe.experts.deepspeed_experts[0].bias.requires_grad_(False)

    def forward(self, x):
        x = self.up(x)
        for layer in self.layers:
            x = x + layer(x)[0]
        return x.float().pow(2).mean()


def whole_name(model, name):
    """Returns a parameter's name in the model of all ranks."""
    from deepspeed.moe.layer import MoE
    from deepspeed.utils import groups

    between = ".deepspeed_moe.experts.deepspeed_experts."
    layer, found, expert = name.partition(between)
    if not found:
        return name
    module = model.get_submodule(layer)
    assert isinstance(module, MoE)
    number, dot, end = expert.partition(".")
    rank = groups._get_expert_parallel_rank(module.expert_group_name)
    return f"{layer}{between}{rank * module.num_local_experts + int(number)}{dot}{end}"


def save_experts(cases, root):
    """Trains models with experts, and saves checkpoints and the parameters that DeepSpeed gathers itself."""
    deepspeed = start()
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
    from deepspeed.utils import groups, safe_get_full_fp32_param

    for i, case in enumerate(cases):
        for known in (groups._EXPERT_PARALLEL_GROUP, groups._EXPERT_DATA_PARALLEL_GROUP,
                      groups._EXPERT_PARALLEL_GROUP_RANKS, groups._EXPERT_DATA_PARALLEL_GROUP_RANKS):
            known.clear()
        torch.manual_seed(dist.get_rank())
        dtype = torch.bfloat16 if case["bf16"] else torch.float32
        model = Experts(*case["model"]).to(dtype)
        config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": case["bf16"]},
                  "use_data_before_expert_parallelism": case["data first"],
                  "zero_optimization": {"stage": case["stage"]}}
        parameters = split_params_into_different_moe_groups_for_optimizer(
            [{"params": [p for p in model.parameters() if p.requires_grad], "name": "all"}],
            max_group_size=case["group"])
        engine, *_ = deepspeed.initialize(model=model, config=config,
                                          optimizer=torch.optim.AdamW(parameters, lr=0.01))
        for step in range(2):
            torch.manual_seed(100 * step + dist.get_rank())
            loss = engine(torch.randn(8, case["model"][0]).to(dtype))
            engine.backward(loss)
            engine.step()
        folder = os.path.join(root, str(i))
        engine.save_checkpoint(folder, tag="step-2")
        wanted = {}
        for name, parameter in model.named_parameters():
            is_trained = case["stage"] and parameter.requires_grad
            wanted[whole_name(model, name)] = (safe_get_full_fp32_param(parameter) if is_trained
                                               else parameter.detach()).clone()
        torch.save(wanted, os.path.join(root, f"wanted-{i}-{dist.get_rank()}.pt"))
        engine.destroy()
        dist.barrier()
