"""Asks JAX and PyTorch for test_sharding.py in separate processes: JAX fixes the number of devices when it starts, and
each rank of gloo needs a process.

    python sharding_clients.py FUNCTION < arguments.json > result.json
"""

import json
import math
import multiprocessing
import os
import sys
import tempfile


def named_sharding_boxes(devices, cases):
    """Returns the boxes [offset, shape] of each case on each device, or None if JAX refuses the case.

    A case is [mesh axes, mesh shape, global shape, PartitionSpec]."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import numpy as np

    def boxes_of(axes, mesh, shape, spec):
        grid = jax.sharding.Mesh(np.array(jax.devices()).reshape(mesh), axes)
        spec = jax.sharding.PartitionSpec(*(tuple(entry) if isinstance(entry, list) else entry for entry in spec))
        sharding = jax.sharding.NamedSharding(grid, spec)
        places = sharding.devices_indices_map(tuple(shape))
        boxes = []
        for device in grid.devices.flat:
            ranges = [i.indices(n) for i, n in zip(places[device], shape)]
            boxes.append([[begin for begin, _, _ in ranges], [end - begin for begin, end, _ in ranges]])
        return [str(spec), boxes]

    return [boxes_of(*case) for case in cases]


def placement_boxes(cases):
    """Returns the local tensor of each case and rank; each element is its own index.

    A case is [mesh shape, global shape, [[dimension, split factor], None, ...]]."""
    import torch
    from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

    def locals(mesh, shape, cuts):
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

    return [locals(*case) for case in cases]


def forked(function, ranks):
    """Calls function(rank, folder) in a forked process for each rank, all at once. Forking avoids another import of
    PyTorch. All processes share the folder."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        def write(rank):
            with open(f"{folder}/{rank}.json", "w") as file:
                json.dump(function(rank, folder), file)

        processes = [fork.Process(target=write, args=(rank,)) for rank in ranks]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * len(processes)
        return [json.load(open(f"{folder}/{rank}.json")) for rank in ranks]


def fully_shard_boxes(mesh, layers, width, hidden, vocab):
    """Shards a small model with parallelize_module and then fully_shard over gloo. Returns for each rank and parameter
    the placements and the elements, which are their own index."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    class Block(nn.ModuleDict):
        def forward(self, x):  # fully_shard needs this method.
            raise NotImplementedError

    def write_boxes(rank, folder):
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
        dist.destroy_process_group()
        return out

    return forked(write_boxes, range(math.prod(mesh)))


def torchtitan_boxes(cases, sizes):
    """Shards torchtitan's Llama with torchtitan's own code. Returns the box [offset, shape] of each parameter for each
    case of degrees and a rank. A fake process group of torch.distributed replaces the other ranks."""
    import unittest.mock

    import torch
    # Only torchtitan's GPU kernels need Triton; these parts of PyTorch look for it.
    import torch._dynamo
    import torch._functorch.partitioners
    import torch._inductor.codecache
    import torch._inductor.compile_fx
    import torch.distributed as dist
    import torch.distributed.pipelining
    import torch.nn.attention.flex_attention
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    from torch.testing._internal.distributed.fake_pg import FakeStore
    with unittest.mock.patch.dict(sys.modules,
                                  {name: unittest.mock.MagicMock() for name in ("triton", "triton.language")}):
        from torchtitan.distributed import ParallelDims, parallel_dims
        from torchtitan.distributed.fsdp import apply_fsdp_to_decoder
        from torchtitan.models import llama3
        from torchtitan.models.llama3.sharding import set_llama3_sharding_config
    import dataclasses

    width, hidden, layers, heads, kv_heads, vocab = sizes
    parallel_dims.device_type = "cpu"

    def config_of():
        config = llama3._debugmodel("flex")
        rope = llama3.ComplexRoPE.Config(dim=width // heads, max_seq_len=128, theta=5e5, scaling="llama")
        return dataclasses.replace(
            config, dim=width, vocab_size=vocab,
            tok_embeddings=dataclasses.replace(config.tok_embeddings, num_embeddings=vocab, embedding_dim=width),
            norm=dataclasses.replace(config.norm, normalized_shape=width),
            lm_head=dataclasses.replace(config.lm_head, in_features=width, out_features=vocab),
            layers=llama3._build_llama3_layers(
                fuse_qkv=False, n_layers=layers, dim=width, n_heads=heads, n_kv_heads=kv_heads, hidden_dim=hidden,
                rope=rope, attn_backend="flex", tp_gemm_backend="default"))

    def boxes_of(case, _):
        torch.set_num_threads(1)
        degrees, rank = cases[case]
        world = math.prod(degrees.values())
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        dims = ParallelDims(**degrees, pp=1, ep=1, world_size=world, spmd_backend="partial_dtensor")
        dims.build_mesh()
        config = config_of()
        set_llama3_sharding_config(config, enable_sp=True)
        with torch.device("meta"):
            model = config.build()
        if dims.tp_enabled:
            model.parallelize(dims)
        names = ["dp_replicate", "fsdp"] if dims.dp_replicate_enabled else ["fsdp"]
        apply_fsdp_to_decoder(
            model, dims.get_mesh(names), param_dtype=torch.bfloat16, reduce_dtype=torch.float32, pp_enabled=False,
            cpu_offload=False, reshard_after_forward_policy="default", dp_mesh_dims=None, enable_symm_mem=False)
        boxes = {}
        for name, parameter in model.named_parameters():
            mesh = parameter.device_mesh
            shape, offset = compute_local_shape_and_global_offset(parameter.shape, mesh, parameter.placements)
            assert tuple(shape) == tuple(parameter.to_local().shape)
            boxes[name] = [list(offset), list(shape)]
        return boxes

    return forked(boxes_of, range(len(cases)))


def heads_refused(cases):
    """Returns whether Megatron-core and torchtitan refuse each case of heads, key-value heads and tensor parallelism,
    by their own checks of configurations."""
    import types
    import unittest.mock
    import warnings

    import torch._dynamo  # noqa: F401
    import torch._functorch.partitioners  # noqa: F401
    import torch._inductor.codecache  # noqa: F401
    import torch._inductor.compile_fx  # noqa: F401
    import torch.distributed.pipelining  # noqa: F401
    import torch.nn.attention.flex_attention  # noqa: F401
    warnings.simplefilter("ignore")
    from megatron.core.transformer import TransformerConfig
    trainer = types.SimpleNamespace(Trainer=types.SimpleNamespace(Config=type("Config", (), {})))
    missing = {"triton": unittest.mock.MagicMock(), "triton.language": unittest.mock.MagicMock(),
               "torchtitan.trainer": trainer}
    with unittest.mock.patch.dict(sys.modules, missing):
        from torchtitan.config import ParallelismConfig
        from torchtitan.models.common import decoder

        def megatron(heads, kv_heads, tensor):
            TransformerConfig(num_layers=1, hidden_size=64 * heads, num_attention_heads=heads,
                              num_query_groups=kv_heads, kv_channels=64, tensor_model_parallel_size=tensor)

        def torchtitan(heads, kv_heads, tensor):
            model = types.SimpleNamespace(
                enable_weight_tying=False, first_attention=types.SimpleNamespace(n_heads=heads, n_kv_heads=kv_heads))
            with unittest.mock.patch.object(decoder, "update_ep_token_dispatcher_config"):
                decoder.Decoder.Config.update_from_config(model, config=types.SimpleNamespace(
                    parallelism=ParallelismConfig(tensor_parallel_degree=tensor)))

        def refuses(check, case):
            try:
                check(*case)
            except ValueError as error:
                return "multiple of" in str(error) or "must divide" in str(error)
            return False

        return [[refuses(check, case) for check in (megatron, torchtitan)] for case in cases]


def titan_expert_dimensions(cases, experts):
    """Returns the dimension in which torchtitan's apply_fsdp_to_decoder shards expert tensors.

    A case has the numbers of ranks for replicas, fully_shard and expert parallelism. A stand-in replaces fully_shard,
    so nothing is sharded."""
    import types
    import unittest.mock

    import torch
    import torch._dynamo
    import torch._functorch.partitioners
    import torch._inductor.codecache
    import torch._inductor.compile_fx
    import torch.distributed.fsdp._fully_shard._fsdp_init as initialized
    import torch.distributed.pipelining
    import torch.nn.attention.flex_attention
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo
    with unittest.mock.patch.dict(sys.modules,
                                  {name: unittest.mock.MagicMock() for name in ("triton", "triton.language")}):
        from torchtitan.distributed import fsdp

    class MeshOf(dict):
        mesh_dim_names = property(tuple)

        def size(self):
            return math.prod(self.values())

        def __getitem__(self, name):
            return MeshOf({name: self.get(name)})

    def dimension(replicate, ranks, expert_parallel):
        inner = torch.nn.Linear(2, 2)
        inner.num_experts = experts
        block = types.SimpleNamespace(moe_enabled=True, moe=types.SimpleNamespace(
            routed_experts=types.SimpleNamespace(inner_experts=inner)), set_modules_to_forward_prefetch=lambda _: None,
            set_modules_to_backward_prefetch=lambda _: None)
        model = unittest.mock.MagicMock(enable_weight_tying=False, layers={"0": block})
        seen = {}
        info = object.__new__(FSDPMeshInfo)
        with unittest.mock.patch.object(fsdp, "fully_shard",
                                        lambda module, **given: seen.update(given) if module is block else None), \
                unittest.mock.patch.object(initialized, "_get_mesh_info", lambda *_: info):
            fsdp.apply_fsdp_to_decoder(
                model, MeshOf(dp_replicate=replicate, fsdp=ranks), torch.bfloat16, torch.float32, False,
                ep_degree=expert_parallel, edp_mesh=MeshOf(dp_replicate=replicate, efsdp=ranks // expert_parallel))
        place = seen.get("shard_placement_fn", lambda _: None)(inner.weight)
        place = getattr(place, "placement", place)
        return 0 if place is None else place.dim

    return [dimension(*case) for case in cases]


def megatron_boxes(cases, sizes, experts=None):
    """Asks Megatron-core's own GPTModel for the boxes of each case of degrees and a rank.

    Returns for each parameter [the box [offset, shape] of each part, the shape on the rank]. Names have the layer's
    number in the whole model and, with experts (of Megatron's SequentialMLP), also the expert's number. As for
    torchtitan, a fake process group replaces the other ranks."""
    import warnings

    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    warnings.simplefilter("ignore")  # Megatron warns without a GPU.
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    width, hidden, layers, heads, kv_heads, vocab = sizes

    def boxes_of(case, _):
        torch.set_num_threads(1)
        degrees, rank = cases[case]
        tensor, pipe, virtual = (degrees[name] for name in ("tensor", "pipe", "virtual"))
        chunks = virtual if virtual > 1 else None  # Megatron uses None for one stage.
        world = tensor * pipe * degrees["context"] * degrees["data"]
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        parallel_state.initialize_model_parallel(
            tensor, pipe, virtual_pipeline_model_parallel_size=chunks,
            context_parallel_size=degrees["context"], create_gloo_process_groups=False,
            expert_model_parallel_size=degrees.get("expert_parallel", 1),
            expert_tensor_parallel_size=degrees.get("expert_tensor"))
        config = TransformerConfig(
            num_layers=layers, hidden_size=width, ffn_hidden_size=hidden, num_attention_heads=heads,
            num_query_groups=kv_heads, kv_channels=width // heads, add_bias_linear=False, gated_linear_unit=True,
            normalization="RMSNorm", use_cpu_initialization=True, perform_initialization=False,
            tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipe,
            virtual_pipeline_model_parallel_size=chunks, pipeline_dtype=torch.float32,
            num_moe_experts=experts, moe_ffn_hidden_size=experts and hidden, moe_router_topk=2,
            expert_model_parallel_size=degrees.get("expert_parallel", 1),
            expert_tensor_parallel_size=degrees.get("expert_tensor"))
        # (Not context_parallel_size: CPU attention lacks it, and parameters do not depend on it.)
        boxes = {}
        for stage in range(virtual):
            place = {"ignore_virtual": False, "vp_stage": stage} if chunks else {}
            model = GPTModel(
                config, get_gpt_layer_local_spec(experts, normalization="RMSNorm"), vocab_size=vocab,
                max_sequence_length=64, pre_process=parallel_state.is_pipeline_first_stage(**place),
                post_process=parallel_state.is_pipeline_last_stage(**place),
                share_embeddings_and_output_weights=False, position_embedding_type="rope",
                vp_stage=stage if chunks else None)
            for name, held in model.sharded_state_dict().items():
                if not isinstance(held, (ShardedTensor, ShardedTensorFactory)):
                    continue  # Skip entries that are not tensors.
                parts = held.build() if isinstance(held, ShardedTensorFactory) else [held]
                parts = list(parts.values()) if isinstance(parts, dict) else parts
                if (words := name.split("."))[:2] == ["decoder", "layers"]:
                    words[2] = str(parts[0].global_offset[0])
                    if "local_experts" in words:
                        words[words.index("local_experts") + 1] = str(parts[0].global_offset[1])
                boxes[".".join(words)] = [
                    [[list(part.global_offset[part.prepend_axis_num:]), list(part.local_shape)] for part in parts],
                    list(held.data.shape)]
        return boxes

    return forked(boxes_of, range(len(cases)))


if __name__ == "__main__":
    json.dump(globals()[sys.argv[1]](*json.load(sys.stdin)), sys.stdout)
