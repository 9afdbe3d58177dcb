"""Megatron-core's own GPTModel, as a Llama, a Mixtral or a DeepSeek V3, on CPUs."""

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

    is_grouped = degrees.get("grouped", False)
    if is_grouped:
        from megatron.core.transformer.moe import grouped_gemm_util

        # The package of CUDA kernels is needed to train, not to load and save.
        grouped_gemm_util.assert_grouped_gemm_is_available = lambda: None
    chunks = degrees.get("virtual")
    config = TransformerConfig(
        num_layers=layers, hidden_size=d, ffn_hidden_size=ff, num_attention_heads=heads, num_query_groups=kv_heads,
        kv_channels=head_dim, add_bias_linear=False, gated_linear_unit=True, normalization="RMSNorm",
        use_cpu_initialization=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16,
        tensor_model_parallel_size=degrees.get("tensor", 1), pipeline_model_parallel_size=degrees.get("pipe", 1),
        virtual_pipeline_model_parallel_size=chunks, num_moe_experts=experts, moe_ffn_hidden_size=experts and ff,
        moe_router_topk=2, moe_grouped_gemm=is_grouped, moe_token_dispatcher_type="allgather",
        expert_model_parallel_size=degrees.get("expert", 1))
    models = []
    for stage in range(chunks or 1):
        place = {"ignore_virtual": False, "vp_stage": stage} if chunks else {}
        models.append(GPTModel(
            config, get_gpt_layer_local_spec(experts, is_grouped, normalization="RMSNorm"), vocab_size=vocab,
            max_sequence_length=64, pre_process=parallel_state.is_pipeline_first_stage(**place),
            post_process=parallel_state.is_pipeline_last_stage(**place), position_embedding_type="rope",
            share_embeddings_and_output_weights=False, vp_stage=stage if chunks else None).bfloat16())
    return models


def make_deepseek(config, dtype, degrees):
    """Returns a model of these sizes, which a config.json of Transformers has, with `mtp` layers for multi-token
    prediction."""
    import torch
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    # Without TransformerEngine, megatron-core 0.16 uses these without a value.
    multi_latent_attention.HAVE_TE = False
    moe_utils.te_general_gemm = None

    class Attention(torch.nn.Module):  # Megatron's own for local layers does not accept this attention's sizes.
        def __init__(self, softmax_scale, **_):
            super().__init__()
            self.scale = softmax_scale

        def forward(self, query, key, value, *_, **__):
            heads = (t.permute(1, 2, 0, 3) for t in (query, key, value))
            mixed = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True, scale=self.scale)
            return mixed.permute(2, 0, 1, 3).flatten(2)

    layers, dense, inner = (config[name] for name in (
        "num_hidden_layers", "first_k_dense_replace", "moe_intermediate_size"))
    of = MLATransformerConfig(
        num_layers=layers, hidden_size=config["hidden_size"], ffn_hidden_size=config["intermediate_size"],
        num_attention_heads=config["num_attention_heads"], q_lora_rank=config["q_lora_rank"],
        kv_lora_rank=config["kv_lora_rank"], qk_head_dim=config["qk_nope_head_dim"],
        qk_pos_emb_head_dim=config["qk_rope_head_dim"], v_head_dim=config["v_head_dim"], qk_layernorm=True,
        rope_type="rope", rotary_base=config["rope_theta"], add_bias_linear=False, gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, normalization="RMSNorm", layernorm_epsilon=config["rms_norm_eps"],
        num_moe_experts=config["n_routed_experts"], moe_layer_freq=[0] * dense + [1] * (layers - dense),
        moe_ffn_hidden_size=inner, moe_shared_expert_intermediate_size=config["n_shared_experts"] * inner,
        moe_router_topk=config["num_experts_per_tok"], moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True, moe_router_topk_scaling_factor=config["routed_scaling_factor"],
        moe_router_dtype="fp32", moe_token_dispatcher_type="allgather", use_cpu_initialization=True, params_dtype=dtype,
        pipeline_dtype=dtype, bf16=dtype == torch.bfloat16, tensor_model_parallel_size=degrees.get("tensor", 1),
        expert_model_parallel_size=degrees.get("expert", 1), mtp_num_layers=degrees.get("mtp"))
    spec = get_gpt_decoder_block_spec(of, use_transformer_engine=False, normalization="RMSNorm")
    for layer in spec.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = Attention
    extra = get_gpt_mtp_block_spec(of, spec, use_transformer_engine=False) if "mtp" in degrees else None
    return GPTModel(of, spec, vocab_size=config["vocab_size"], max_sequence_length=64, position_embedding_type="rope",
                    share_embeddings_and_output_weights=False, mtp_block_spec=extra).to(dtype).eval()
