"""Runs a function in processes that talk to each other through PyTorch's gloo."""

import os

import torch
import torch.distributed as dist


def enter(rank, world, folder, work, arguments):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    try:
        work(*arguments)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def spawn_it(world, folder, work, *arguments):
    torch.multiprocessing.spawn(enter, (world, str(folder), work, arguments), nprocs=world)
