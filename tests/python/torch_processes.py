"""Runs a function in several processes that communicate through PyTorch's gloo."""

import multiprocessing
import os

import torch
import torch.distributed as dist

# Processes are forked from a server that only has the imports below, which take seconds. The server keeps the
# environment of the first test that starts processes.
multiprocessing.set_forkserver_preload([
    "torch", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"])


def enter(rank, world, folder, work, arguments):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    try:
        work(*arguments)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def start(world, work, *arguments):
    """Calls `work(rank, *arguments)` in each of several processes, and waits for them. Raises an error of any of
    them."""
    torch.multiprocessing.start_processes(work, arguments, nprocs=world, start_method="forkserver")


def spawn_it(world, folder, work, *arguments):
    start(world, enter, world, str(folder), work, arguments)
