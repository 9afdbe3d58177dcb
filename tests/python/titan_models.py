"""torchtitan's modules, and tiny torchtitan models with the equivalent settings of configs/."""

import dataclasses
import importlib
import sys
from unittest import mock

from support import ROOT

LLAMA = {"d": 64, "ff": 96, "layers": 2, "heads": 8, "kv_heads": 4, "head_dim": 8, "vocab": 128}
DEEPSEEK = {"d": 64, "ff": 96, "expert_ff": 32, "layers": 3, "dense_layers": 1, "experts": 4, "shared_experts": 2,
            "heads": 4, "nope_dim": 16, "rope_dim": 8, "value_dim": 12, "query_rank": 24, "kv_rank": 20, "vocab": 128}
SPECS = {"llama": (ROOT / "configs/llama3.1-8b.yaml", [f"vars.{name}={value}" for name, value in LLAMA.items()]),
         "deepseek": (ROOT / "configs/deepseek-v3.yaml", [f"vars.{name}={value}" for name, value in DEEPSEEK.items()])}


def titan(module, *without):
    """Imports a module of torchtitan, with stand-ins for Triton, which it needs only on GPUs, and for the packages
    `without`."""
    import torch._dynamo  # noqa: F401
    import torch._inductor.compile_fx  # noqa: F401
    import torch.nn.attention.flex_attention  # noqa: F401
    names = [name for name in ("triton", "triton.language", *without) if name not in sys.modules]
    sys.modules.update({name: mock.MagicMock() for name in names})
    try:
        return importlib.import_module(module)
    finally:
        for name in names:
            del sys.modules[name]


def small(config, width, vocab, **more):
    return dataclasses.replace(
        config, dim=width, vocab_size=vocab,
        tok_embeddings=dataclasses.replace(config.tok_embeddings, num_embeddings=vocab, embedding_dim=width),
        norm=dataclasses.replace(config.norm, normalized_shape=width),
        lm_head=dataclasses.replace(config.lm_head, in_features=width, out_features=vocab), **more)


def llama_config(llama3, kind=None):
    """Returns a config of the module torchtitan.models.llama3; `kind` may be "fused" or "tied"."""
    layers = llama3._build_llama3_layers(
        fuse_qkv=kind == "fused", n_layers=LLAMA["layers"], dim=LLAMA["d"], n_heads=LLAMA["heads"],
        n_kv_heads=LLAMA["kv_heads"], hidden_dim=LLAMA["ff"], attn_backend="flex",
        rope=llama3.ComplexRoPE.Config(dim=LLAMA["head_dim"], max_seq_len=128, theta=5e5, scaling="llama"))
    return small(llama3._debugmodel("flex"), LLAMA["d"], LLAMA["vocab"], layers=layers,
                 enable_weight_tying=kind == "tied")


def deepseek_config(deepseek):
    """Returns a config of the module torchtitan.models.deepseek_v3."""
    config, s = deepseek._debugmodel("flex", "standard"), DEEPSEEK
    layers = deepseek._build_dsv3_layers(
        n_layers=s["layers"], n_dense_layers=s["dense_layers"], dim=s["d"], n_heads=s["heads"],
        q_lora_rank=s["query_rank"], kv_lora_rank=s["kv_rank"], qk_nope_head_dim=s["nope_dim"],
        qk_rope_head_dim=s["rope_dim"], v_head_dim=s["value_dim"], mscale=0.7, dense_hidden_dim=s["ff"],
        moe_hidden_dim=s["expert_ff"], num_experts=s["experts"], num_shared_experts=s["shared_experts"],
        router_top_k=2, router_score_func="sigmoid", attn_backend="flex", moe_comm_backend="standard",
        non_blocking_capacity_factor=None,
        rope=dataclasses.replace(config.layers[0].attention.rope, dim=s["rope_dim"]))
    return small(config, s["d"], s["vocab"], layers=layers, mtp_layers=[])
