"""Tests `convert` to Megatron-core's `torch_dist` for models with norms of queries and keys, tied heads and experts:
Megatron's GPTModel loads the files, and the files that it saves convert back, bit for bit."""

import json

import megatron_model
import pytest
from clients import client_of
from support import run_ok
from test_generated_converts import digests_of, trained

torch = client_of("torch")
client_of("megatron.core")

SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "hidden_size": 24, "intermediate_size": 20,
         "num_hidden_layers": 2, "vocab_size": 50, "pad_token_id": None, "dtype": "bfloat16"}
MODELS = {"Qwen3": {"tie_word_embeddings": True}, "Llama": {"tie_word_embeddings": True},
          "Qwen3Moe": {"tie_word_embeddings": False, "num_experts": 3, "moe_intermediate_size": 20},
          "Mixtral": {"tie_word_embeddings": False, "num_local_experts": 3}}


def load_and_save(rank, rendezvous, folder, out, tied, experts, has_norms):
    megatron_model.start(rank, 1, rendezvous, {})
    from megatron.core import dist_checkpointing
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    config = TransformerConfig(
        num_layers=2, hidden_size=24, ffn_hidden_size=20, num_attention_heads=4, num_query_groups=2, kv_channels=6,
        add_bias_linear=False, gated_linear_unit=True, normalization="RMSNorm", use_cpu_initialization=True,
        params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, qk_layernorm=has_norms, num_moe_experts=experts,
        moe_ffn_hidden_size=experts and 20, moe_router_topk=2, moe_token_dispatcher_type="allgather")
    model = GPTModel(config, get_gpt_layer_local_spec(experts, normalization="RMSNorm", qk_layernorm=has_norms),
                     vocab_size=50, max_sequence_length=64, position_embedding_type="rope",
                     share_embeddings_and_output_weights=tied).bfloat16()
    before = {name: t.clone() for name, t in model.named_parameters()}
    state = dist_checkpointing.load(model.sharded_state_dict(), folder)
    model.load_state_dict({k: v for k, v in state.items() if isinstance(v, torch.Tensor)}, strict=False)
    for name, t in model.named_parameters():
        assert not torch.equal(t.view(torch.int16), before[name].view(torch.int16)), name
    dist_checkpointing.save(model.sharded_state_dict(), out)
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("family", MODELS)
def test_convert_to_megatron_and_back_keeps_all_bits(tmp_path, family):
    config = {**SIZES, **MODELS[family]}
    if family == "Llama":
        config["head_dim"] = 6
    trained(family, config, 9, tmp_path / "in")
    run_ok("convert", tmp_path / "in", "--layout", "torch_dist", "--to", "megatron", "-o", tmp_path / "there")
    for name in "rendezvous", "saved":
        (tmp_path / name).mkdir()
    torch.multiprocessing.spawn(load_and_save, (
        str(tmp_path / "rendezvous"), str(tmp_path / "there"), str(tmp_path / "saved"), config["tie_word_embeddings"],
        config.get("num_experts", config.get("num_local_experts")), "Qwen3" in family), nprocs=1)
    # Local layers have one of the two names of the norm before experts.
    assert "pre_mlp_layernorm" not in run_ok("digest", tmp_path / "saved").stdout
    run_ok("convert", tmp_path / "saved", "--spec", tmp_path / "in/config.json", "--from-layout", "torch_dist", "--to",
           "safetensors", "-o", tmp_path / "back")
    assert digests_of(tmp_path / "back") == digests_of(tmp_path / "in")
    # The record of this tool's own files has the config.json.
    run_ok("convert", tmp_path / "there", "--from-layout", "torch_dist", "--to", "safetensors", "-o", tmp_path / "own")
    assert digests_of(tmp_path / "own") == digests_of(tmp_path / "in")
    assert json.loads((tmp_path / "own/config.json").read_text()) == json.loads((tmp_path / "back/config.json").read_text())
    run_ok("verify", tmp_path / "there")
