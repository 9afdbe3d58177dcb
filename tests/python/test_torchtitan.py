"""The layouts `torchtitan` against torchtitan's own models and its converters from and to Hugging Face's
names, bit for bit."""

import dataclasses
import importlib
import sys
from unittest import mock

import pytest

from clients import Client
from support import Ok, ROOT

torch = Client("torch")
Client("torchtitan")

import shardinit

LLAMA = {"d": 64, "ff": 96, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 128}


def Titan(module):
    """A module of torchtitan; Triton, which its kernels for GPUs import, is not needed for it."""
    import torch._dynamo
    import torch._inductor.compile_fx
    import torch.nn.attention.flex_attention
    names = [name for name in ("triton", "triton.language") if name not in sys.modules]
    sys.modules.update({name: mock.MagicMock() for name in names})
    try:
        return importlib.import_module(module)
    finally:
        for name in names:
            del sys.modules[name]


def Tensors(spec, sets, layout):
    """path → tensor of what is stored."""
    with shardinit.open_spec(spec, set=sets, layout=layout, mesh="fsdp=1") as opened:
        return {path: torch.from_numpy(opened.generate(path)) for path in opened.tensors}


def SameForms(stored, model):
    state = model.state_dict()
    assert {path: (tuple(tensor.shape), tensor.dtype) for path, tensor in stored.items()} == \
        {path: (tuple(tensor.shape), tensor.dtype) for path, tensor in state.items()}


@pytest.mark.parametrize("fused", [False, True])
def test_llama(fused):
    llama3 = Titan("torchtitan.models.llama3")
    width, vocab = LLAMA["d"], LLAMA["vocab"]
    config = llama3._debugmodel("flex")
    config = dataclasses.replace(
        config, dim=width, vocab_size=vocab,
        tok_embeddings=dataclasses.replace(config.tok_embeddings, num_embeddings=vocab, embedding_dim=width),
        norm=dataclasses.replace(config.norm, normalized_shape=width),
        lm_head=dataclasses.replace(config.lm_head, in_features=width, out_features=vocab),
        layers=llama3._build_llama3_layers(
            fuse_qkv=fused, n_layers=LLAMA["layers"], dim=width, n_heads=LLAMA["heads"],
            n_kv_heads=LLAMA["kv_heads"], hidden_dim=LLAMA["ff"], attn_backend="flex",
            rope=llama3.ComplexRoPE.Config(dim=LLAMA["head_dim"], max_seq_len=128, theta=5e5, scaling="llama")))
    sets = ["dtype=f32", *(f"vars.{name}={value}" for name, value in LLAMA.items())]
    spec = ROOT / "configs/llama3.1-8b.yaml"
    stored, drawn = Tensors(spec, sets, "torchtitan"), Tensors(spec, sets, "")
    with torch.device("meta"):
        model = config.build()
    SameForms(stored, model)
    model.to_empty(device="cpu").load_state_dict(stored)
    assert all(torch.equal(tensor, stored[path]) for path, tensor in model.state_dict().items())
    Same(llama3.Llama3StateDictAdapter(config, None).to_hf(stored), drawn)
    Same(llama3.Llama3StateDictAdapter(config, None).from_hf(drawn), stored)


def Same(made, wanted):
    assert made.keys() == wanted.keys()
    for path, tensor in wanted.items():
        assert torch.equal(made[path], tensor), path


def test_deepseek():
    deepseek = Titan("torchtitan.models.deepseek_v3")
    d, ff, expert_ff, layers, dense, heads, experts, vocab = 64, 96, 32, 3, 1, 4, 4, 128
    config = deepseek._debugmodel("flex", "standard")
    rope = dataclasses.replace(config.layers[0].attention.rope, dim=8)
    config = dataclasses.replace(
        config, dim=d, vocab_size=vocab, mtp_layers=[],
        tok_embeddings=dataclasses.replace(config.tok_embeddings, num_embeddings=vocab, embedding_dim=d),
        norm=dataclasses.replace(config.norm, normalized_shape=d),
        lm_head=dataclasses.replace(config.lm_head, in_features=d, out_features=vocab),
        layers=deepseek._build_dsv3_layers(
            n_layers=layers, n_dense_layers=dense, dim=d, n_heads=heads, q_lora_rank=24, kv_lora_rank=20,
            qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, mscale=0.7, dense_hidden_dim=ff,
            moe_hidden_dim=expert_ff, num_experts=experts, num_shared_experts=2, router_top_k=2,
            router_score_func="sigmoid", attn_backend="flex", moe_comm_backend="standard",
            non_blocking_capacity_factor=None, rope=rope))
    sizes = {"d": d, "ff": ff, "expert_ff": expert_ff, "layers": layers, "dense_layers": dense, "experts": experts,
             "shared_experts": 2, "heads": heads, "nope_dim": 16, "rope_dim": 8, "value_dim": 12, "query_rank": 24,
             "kv_rank": 20, "vocab": vocab}
    sets = ["dtype=f32", *(f"vars.{name}={value}" for name, value in sizes.items())]
    spec = ROOT / "configs/deepseek-v3.yaml"
    stored, drawn = Tensors(spec, sets, "torchtitan"), Tensors(spec, sets, "")
    with torch.device("meta"):
        model = config.build()
    SameForms(stored, model)
    # The files on the Hub, which the converter makes, have a matrix for each expert.
    wanted = {}
    for path, tensor in drawn.items():
        if "mlp.experts" not in path:
            wanted[path] = tensor
            continue
        for j, matrix in enumerate(tensor):
            here = path.rpartition(".")[0] + f".{j}."
            if path.endswith("gate_up_proj"):
                wanted[here + "gate_proj.weight"], wanted[here + "up_proj.weight"] = matrix.chunk(2)
            else:
                wanted[here + "down_proj.weight"] = matrix
    Same(deepseek.DeepSeekV3StateDictAdapter(config, None).to_hf(stored), wanted)
