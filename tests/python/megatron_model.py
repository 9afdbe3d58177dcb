"""Megatron-core's own GPTModel, as a Llama or a Mixtral, on CPUs."""

import os
import warnings


def start(rank, world, rendezvous, degrees):
    """Joins the other processes with these degrees of tensor, pipeline (with `virtual` stages) and expert
    parallelism."""
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")  # Megatron warns without a GPU.
    torch.set_num_threads(1)
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}/rendezvous", rank=rank, world_size=world)
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(
        degrees.get("tensor", 1), degrees.get("pipe", 1), virtual_pipeline_model_parallel_size=degrees.get("virtual"),
        create_gloo_process_groups=False, expert_model_parallel_size=degrees.get("expert", 1))


def make_models(degrees, d, ff, layers, heads, kv_heads, head_dim, vocab, experts=None):
    """Returns this process's stages of a model in bf16."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    chunks = degrees.get("virtual")
    config = TransformerConfig(
        num_layers=layers, hidden_size=d, ffn_hidden_size=ff, num_attention_heads=heads, num_query_groups=kv_heads,
        kv_channels=head_dim, add_bias_linear=False, gated_linear_unit=True, normalization="RMSNorm",
        use_cpu_initialization=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16,
        tensor_model_parallel_size=degrees.get("tensor", 1), pipeline_model_parallel_size=degrees.get("pipe", 1),
        virtual_pipeline_model_parallel_size=chunks, num_moe_experts=experts, moe_ffn_hidden_size=experts and ff,
        moe_router_topk=2, moe_token_dispatcher_type="allgather",
        expert_model_parallel_size=degrees.get("expert", 1))
    models = []
    for stage in range(chunks or 1):
        place = {"ignore_virtual": False, "vp_stage": stage} if chunks else {}
        models.append(GPTModel(
            config, get_gpt_layer_local_spec(experts, normalization="RMSNorm"), vocab_size=vocab,
            max_sequence_length=64, pre_process=parallel_state.is_pipeline_first_stage(**place),
            post_process=parallel_state.is_pipeline_last_stage(**place), position_embedding_type="rope",
            share_embeddings_and_output_weights=False, vp_stage=stage if chunks else None).bfloat16())
    return models
