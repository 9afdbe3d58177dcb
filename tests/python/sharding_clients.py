"""What test_sharding.py asks of JAX and PyTorch, in processes of its own: how many devices a host has
is fixed when JAX starts, and a rank of gloo is a process.

    python sharding_clients.py FUNCTION < arguments.json > result.json
"""

import json
import math
import multiprocessing
import os
import sys
import tempfile


def NamedShardings(devices, cases):
    """The boxes [offset, shape] of each case on each device, None where JAX refuses it.

    A case is [mesh axes, mesh shape, global shape, PartitionSpec]."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import numpy as np

    def Boxes(axes, mesh, shape, spec):
        grid = jax.sharding.Mesh(np.array(jax.devices()).reshape(mesh), axes)
        spec = jax.sharding.PartitionSpec(*(tuple(entry) if isinstance(entry, list) else entry for entry in spec))
        sharding = jax.sharding.NamedSharding(grid, spec)
        places = sharding.devices_indices_map(tuple(shape))
        boxes = []
        for device in grid.devices.flat:
            ranges = [i.indices(n) for i, n in zip(places[device], shape)]
            boxes.append([[begin for begin, _, _ in ranges], [end - begin for begin, end, _ in ranges]])
        return [str(spec), boxes]

    return [Boxes(*case) for case in cases]


def Placements(cases):
    """Of each case on each rank: its local tensor, of elements that are their own index.

    A case is [mesh shape, global shape, [[dimension, split factor], None, ...]]."""
    import torch
    from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

    def Locals(mesh, shape, cuts):
        placements = [Replicate() if cut is None else Shard(cut[0]) if cut[1] is None
                      else _StridedShard(cut[0], split_factor=cut[1]) for cut in cuts]
        locals_ = []
        for rank in range(math.prod(mesh)):
            local, left = torch.arange(math.prod(shape)).reshape(shape), rank
            coordinate = []
            for size in reversed(mesh):
                coordinate.insert(0, left % size)
                left //= size
            for size, index, placement in zip(mesh, coordinate, placements):
                if not isinstance(placement, Replicate):
                    local = placement._split_tensor(local, size, with_padding=False)[0][index]
            locals_.append(local.flatten().tolist())
        return [repr(tuple(placements)), locals_]

    return [Locals(*case) for case in cases]


def FullyShard(mesh, layers, width, hidden, vocab):
    """A small model, cut by parallelize_module and then fully_shard over gloo: of each rank, by
    parameter, its placements and its elements, which are their own index."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    class Block(nn.ModuleDict):
        def forward(self, x):  # fully_shard asks for one.
            raise NotImplementedError

    def Cut(rank, folder):
        torch.set_num_threads(1)
        world = math.prod(mesh)
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
        grid = init_device_mesh("cpu", tuple(mesh), mesh_dim_names=("fsdp", "tensor"))
        model = Block({
            "embed": nn.Embedding(vocab, width),
            "layers": nn.ModuleList(Block({
                "up": nn.Linear(width, hidden),
                "down": nn.Linear(hidden, width),
                "norm": nn.LayerNorm(width),
            }) for _ in range(layers)),
        })
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape))
        plan = {"embed": RowwiseParallel(input_layouts=Replicate())}
        for i in range(layers):
            plan |= {f"layers.{i}.up": ColwiseParallel(), f"layers.{i}.down": RowwiseParallel()}
        parallelize_module(model, grid["tensor"], plan)
        for layer in model["layers"]:
            fully_shard(layer, mesh=grid["fsdp"])
        fully_shard(model, mesh=grid["fsdp"])
        out = {}
        for name, parameter in model.named_parameters():
            names = parameter.device_mesh.mesh_dim_names
            placements = dict(zip(names, map(repr, parameter.placements)))
            out[name] = [placements, parameter.to_local().flatten().int().tolist()]
        with open(f"{folder}/{rank}.json", "w") as file:
            json.dump(out, file)
        dist.destroy_process_group()

    with tempfile.TemporaryDirectory() as folder:
        fork = multiprocessing.get_context("fork")  # PyTorch is imported once.
        ranks = [fork.Process(target=Cut, args=(rank, folder)) for rank in range(math.prod(mesh))]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        assert [process.exitcode for process in ranks] == [0] * len(ranks)
        return [json.load(open(f"{folder}/{rank}.json")) for rank in range(len(ranks))]


if __name__ == "__main__":
    json.dump(globals()[sys.argv[1]](*json.load(sys.stdin)), sys.stdout)
