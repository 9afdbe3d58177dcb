"""Every layout of a tiny Llama, Qwen2 and Mixtral contains the same model; NumPy undoes each layout."""

import itertools
import json
from functools import partial

import numpy as np
import pytest

from support import ROOT, TINY, reassemble, run_json, run_ok, run_tool, sha256_of, tree_of

D, FF, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB, EXPERTS = 256, 768, 2, 8, 4, 32, 8192, 3
MESHES = {"1": (1, 1), "2x2": (2, 2), "2x3": (2, 3)}


@pytest.fixture(scope="module")
def digests():
    return {t["path"]: t["sha256"] for t in run_json("digest", TINY)["tensors"]}


def rows(tensor, heads):
    """Reorders rows whose rotated pairs are neighbours, so that pairs are half a head apart."""
    return tensor.reshape(heads, HEAD_DIM // 2, 2, -1).swapaxes(1, 2).reshape(tensor.shape)


def columns(tensor):
    return np.concatenate([tensor[..., 0::2], tensor[..., 1::2]], axis=-1)


def by_hf(stored, tensor):
    return stored


def torchtitan(stored, tensor, qkv="attention.qkv_linear.", head="lm_head.weight"):
    names = {"tok_embeddings.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight",
             head: "lm_head.weight"}
    out = {hf: stored[name] for name, hf in names.items()}
    for i in range(LAYERS):
        here, there = f"layers.{i}.", f"model.layers.{i}."
        mlp = here + "feed_forward."
        out[there + "self_attn.q_proj.weight"] = rows(stored[f"{here}{qkv}wq.weight"], HEADS)
        out[there + "self_attn.k_proj.weight"] = rows(stored[f"{here}{qkv}wk.weight"], KV_HEADS)
        out[there + "self_attn.v_proj.weight"] = stored[f"{here}{qkv}wv.weight"]
        out[there + "self_attn.o_proj.weight"] = stored[here + "attention.wo.weight"]
        out[there + "mlp.gate_proj.weight"] = stored[mlp + "w1.weight"]
        out[there + "mlp.down_proj.weight"] = stored[mlp + "w2.weight"]
        out[there + "mlp.up_proj.weight"] = stored[mlp + "w3.weight"]
        out[there + "input_layernorm.weight"] = stored[here + "attention_norm.weight"]
        out[there + "post_attention_layernorm.weight"] = stored[here + "ffn_norm.weight"]
    return out


def meta(stored, tensor):
    return torchtitan(stored, tensor, "attention.", "output.weight")


def split_gate_up(fc1, tensor):
    both = fc1.reshape(tensor, 2, -1, D)
    return both[:, 0].reshape(-1, D), both[:, 1].reshape(-1, D)


def megatron(stored, tensor):
    padded = -(-VOCAB // (128 * tensor)) * 128 * tensor
    out = {"model.norm.weight": stored["decoder.final_layernorm.weight"]}
    for name, hf in [("embedding.word_embeddings", "model.embed_tokens"), ("output_layer", "lm_head")]:
        table = stored[name + ".weight"]
        assert table.shape == (padded, D) and not table[VOCAB:].any()
        out[hf + ".weight"] = table[:VOCAB]
    for i in range(LAYERS):
        here, there = f"decoder.layers.{i}.", f"model.layers.{i}."
        queries = HEADS // KV_HEADS
        heads = stored[here + "self_attention.linear_qkv.weight"].reshape(KV_HEADS, queries + 2, HEAD_DIM, D)
        out[there + "self_attn.q_proj.weight"] = heads[:, :queries].reshape(-1, D)
        out[there + "self_attn.k_proj.weight"] = heads[:, queries].reshape(-1, D)
        out[there + "self_attn.v_proj.weight"] = heads[:, queries + 1].reshape(-1, D)
        out[there + "self_attn.o_proj.weight"] = stored[here + "self_attention.linear_proj.weight"]
        if here + "mlp.linear_fc1.weight" in stored:
            gate_up = split_gate_up(stored[here + "mlp.linear_fc1.weight"], tensor)
            out[there + "mlp.gate_proj.weight"], out[there + "mlp.up_proj.weight"] = gate_up
            out[there + "mlp.down_proj.weight"] = stored[here + "mlp.linear_fc2.weight"]
        out[there + "input_layernorm.weight"] = stored[here + "input_layernorm.weight"]
        out[there + "post_attention_layernorm.weight"] = stored[here + "pre_mlp_layernorm.weight"]
    return out


def torch_dist(stored, tensor, per_layer=megatron):
    """Unstacks layers and the experts in them, and gives norms their other names."""
    out = {}
    for name, array in stored.items():
        if not name.startswith("decoder.layers."):
            out[name] = array
            continue
        name = name.removeprefix("decoder.layers.")
        name = {"self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
                "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight"}.get(name, name)
        assert len(array) == LAYERS
        for i, layer in enumerate(array):
            parts = {f"decoder.layers.{i}.{name}": layer}
            if ".experts.experts." in name:
                assert len(layer) == EXPERTS
                parts = {f"decoder.layers.{i}.{name}".replace("experts.experts", f"experts.local_experts.{j}"): expert
                         for j, expert in enumerate(layer)}
            for path, part in parts.items():
                assert (out.setdefault(path, part) == part).all(), "two names of a norm"
    return per_layer(out, 1)  # same as on one rank, whatever the mesh


def max_text(stored, tensor, turned=columns):
    """`turned` reorders a head's columns, which depend on the model's rotary embedding, to Transformers' order."""
    stored = {name.removeprefix("params.params."): array for name, array in stored.items()}
    layers = {name.removeprefix("decoder.layers."): array for name, array in stored.items()}
    assert layers["self_attention.query.kernel"].shape == (D, LAYERS, HEADS, HEAD_DIM)
    assert layers["self_attention.out.kernel"].shape == (HEADS, LAYERS, HEAD_DIM, D)
    out = {
        "model.embed_tokens.weight": stored["token_embedder.embedding"],
        "model.norm.weight": stored["decoder.decoder_norm.scale"],
        "lm_head.weight": stored["decoder.logits_dense.kernel"].T,
    }
    for i in range(LAYERS):
        there = f"model.layers.{i}."
        layer = {name: array[:, i] for name, array in layers.items() if array.ndim > 1}
        query, key = layer["self_attention.query.kernel"], layer["self_attention.key.kernel"]
        out[there + "self_attn.q_proj.weight"] = turned(query).reshape(D, -1).T
        out[there + "self_attn.k_proj.weight"] = turned(key).reshape(D, -1).T
        out[there + "self_attn.v_proj.weight"] = layer["self_attention.value.kernel"].reshape(D, -1).T
        out[there + "self_attn.o_proj.weight"] = layer["self_attention.out.kernel"].reshape(-1, D).T
        if "mlp.wo.kernel" in layer:
            out[there + "mlp.gate_proj.weight"] = layer["mlp.wi_0.kernel"].T
            out[there + "mlp.up_proj.weight"] = layer["mlp.wi_1.kernel"].T
            out[there + "mlp.down_proj.weight"] = layer["mlp.wo.kernel"].T
        out[there + "input_layernorm.weight"] = layer["pre_self_attention_layer_norm.scale"]
        out[there + "post_attention_layernorm.weight"] = layer["post_self_attention_layer_norm.scale"]
    return out


def keras_hub(stored, tensor):
    out = {
        "model.embed_tokens.weight": stored["layers.reversible_embedding.vars.0"],
        "lm_head.weight": stored["layers.reversible_embedding.vars.1"].T,
        "model.norm.weight": stored["layers.llama_layer_norm.vars.0"],
    }
    for i in range(LAYERS):
        there = f"model.layers.{i}."
        here = f"layers.llama_transformer_decoder.{i}."
        layer = {name.removeprefix(here).removesuffix(".vars.0"): array for name, array in stored.items()}
        attention = "_self_attention_layer."
        assert layer[attention + "_query_dense"].shape == (D, HEADS, HEAD_DIM)
        assert layer[attention + "_output_dense"].shape == (HEADS, HEAD_DIM, D)
        for theirs, hf in [("_query_dense", "q"), ("_key_dense", "k"), ("_value_dense", "v")]:
            out[f"{there}self_attn.{hf}_proj.weight"] = layer[attention + theirs].reshape(D, -1).T
        out[there + "self_attn.o_proj.weight"] = layer[attention + "_output_dense"].reshape(-1, D).T
        for theirs, hf in [("gate", "gate"), ("intermediate", "up"), ("output", "down")]:
            out[f"{there}mlp.{hf}_proj.weight"] = layer[f"_feedforward_{theirs}_dense"].T
        out[there + "input_layernorm.weight"] = layer["_self_attention_layernorm"]
        out[there + "post_attention_layernorm.weight"] = layer["_feedforward_layernorm"]
    return out


def stacked(stored, tensor):
    """Unstacks `model.layers.mlp.w` to `model.layers.0.mlp.w`, …"""
    out = {}
    for path, array in stored.items():
        if not path.startswith("model.layers."):
            out[path] = array
            continue
        assert len(array) == LAYERS
        for i, layer in enumerate(array):
            out[path.replace("layers.", f"layers.{i}.")] = layer
    return out


LAYOUTS = {"hf": by_hf, "stacked": stacked, "torchtitan": torchtitan, "meta": meta, "megatron": megatron,
           "torch_dist": torch_dist, "maxtext": max_text, "kerashub": keras_hub}


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES.keys())
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_store_the_same_model(layout, mesh, digests, tmp_path):
    fsdp, tensor = mesh
    options = ["--layout", layout, "--mesh", f"fsdp={fsdp},tensor={tensor}"]
    run_ok("gen", TINY, "-o", tmp_path / "out", *options)
    run_ok("verify", tmp_path / "out")
    assert json.loads((tmp_path / "out/manifest.json").read_text())["layout"] == layout
    stored = {path: words for path, (_, words) in reassemble(tmp_path / "out").items()}
    tensors = LAYOUTS[layout](stored, tensor)
    assert {path: sha256_of(words) for path, words in tensors.items()} == digests


# Other families ---------------------------------------------------------------

def qwen2_megatron(stored, tensor):
    out = megatron(stored, tensor)
    for i in range(LAYERS):
        there, queries = f"model.layers.{i}.self_attn.", HEADS // KV_HEADS
        heads = stored[f"decoder.layers.{i}.self_attention.linear_qkv.bias"].reshape(KV_HEADS, queries + 2, HEAD_DIM)
        out[there + "q_proj.bias"] = heads[:, :queries].ravel()
        out[there + "k_proj.bias"] = heads[:, queries].ravel()
        out[there + "v_proj.bias"] = heads[:, queries + 1].ravel()
    return out


def hub(stored, tensor):
    out = {path: words for path, words in stored.items() if "block_sparse_moe" not in path}
    for i in range(LAYERS):
        here, there = f"model.layers.{i}.block_sparse_moe.", f"model.layers.{i}.mlp."
        w1, w2, w3 = ([stored[f"{here}experts.{j}.w{w}.weight"] for j in range(EXPERTS)] for w in (1, 2, 3))
        out[there + "gate.weight"] = stored[here + "gate.weight"]
        out[there + "experts.gate_up_proj"] = np.concatenate([np.stack(w1), np.stack(w3)], axis=1)
        out[there + "experts.down_proj"] = np.stack(w2)
    return out


def mixtral_megatron(stored, tensor):
    out = megatron(stored, tensor)
    for i in range(LAYERS):
        here, there = f"decoder.layers.{i}.mlp.", f"model.layers.{i}.mlp."
        experts = [f"{here}experts.local_experts.{j}." for j in range(EXPERTS)]
        out[there + "gate.weight"] = stored[here + "router.weight"]
        out[there + "experts.gate_up_proj"] = np.stack(
            [np.concatenate(split_gate_up(stored[e + "linear_fc1.weight"], tensor)) for e in experts])
        out[there + "experts.down_proj"] = np.stack([stored[e + "linear_fc2.weight"] for e in experts])
    return out


def mixtral_max_text(stored, tensor):
    out = max_text(stored, tensor, turned=np.asarray)
    block = {name: stored[f"params.params.decoder.layers.MoeBlock_0.{name}"]
             for name in ("gate.kernel", "wi_0", "wi_1", "wo")}
    assert block["wi_0"].shape == (EXPERTS, LAYERS, D, FF) and block["wo"].shape == (EXPERTS, LAYERS, FF, D)
    for i in range(LAYERS):
        there = f"model.layers.{i}.mlp."
        out[there + "gate.weight"] = block["gate.kernel"][:, i].T
        out[there + "experts.gate_up_proj"] = np.concatenate(
            [block["wi_0"][:, i].swapaxes(1, 2), block["wi_1"][:, i].swapaxes(1, 2)], axis=1)
        out[there + "experts.down_proj"] = block["wo"][:, i].swapaxes(1, 2)
    return out


SMALL = {"uneven": "chunk", "vars.d": D, "vars.ff": FF, "vars.layers": LAYERS, "vars.heads": HEADS,
         "vars.kv_heads": KV_HEADS, "vars.head_dim": HEAD_DIM, "vars.vocab": VOCAB}
FAMILIES = {
    # Biases that are not all 0, so that their order matters.
    "qwen2.5-72b": ({**SMALL, "init.bias": "linear"},
                    {"hf": by_hf, "stacked": stacked, "megatron": qwen2_megatron,
                     "torch_dist": partial(torch_dist, per_layer=qwen2_megatron)}),
    "mixtral-8x7b": ({**SMALL, "vars.experts": EXPERTS},
                     {"hf": by_hf, "stacked": stacked, "hub": hub, "megatron": mixtral_megatron,
                      "maxtext": mixtral_max_text, "torch_dist": partial(torch_dist, per_layer=mixtral_megatron)}),
}
CASES = [(name, layout) for name, (_, layouts) in FAMILIES.items() for layout in layouts]


@pytest.mark.parametrize("mesh", ["fsdp=1", "fsdp=2,tensor=2", "fsdp=1,tensor=3"])
@pytest.mark.parametrize("name, layout", CASES)
def test_layouts_of_other_families_store_the_same_model(name, layout, mesh, tmp_path):
    sets, layouts = FAMILIES[name]
    arguments = [ROOT / f"configs/{name}.yaml", "--mesh", mesh + (",expert=2" if "mix" in name else "")]
    arguments += itertools.chain.from_iterable(("--set", f"{key}={value}") for key, value in sets.items())
    run_ok("gen", *arguments, "--layout", layout, "-o", tmp_path / "out")
    stored = {path: words for path, (_, words) in reassemble(tmp_path / "out").items()}
    tensors = layouts[layout](stored, int(dict(axis.split("=") for axis in mesh.split(",")).get("tensor", 1)))
    digests = {t["path"]: t["sha256"] for t in run_json("digest", *arguments)["tensors"]}
    assert {path: sha256_of(words) for path, words in tensors.items()} == digests


# Every decoder in configs/: tiny sizes, and its modules that contain layers.
SCANNED = {
    "gemma-2-9b": ({**SMALL, "vars.d": 64}, ["model.layers"]),
    "mistral-7b-v0.3": ({**SMALL, "vars.d": 64}, ["model.layers"]),
    "gpt2-xl": ({"vars.d": 64, "vars.layers": 12, "vars.vocab": 128}, ["transformer.h"]),
    "gpt-neox-20b": ({"vars.d": 64, "vars.head_dim": 8, "vars.layers": 3, "vars.vocab": 128}, ["gpt_neox.layers"]),
    "mamba-2.8b": ({"vars.d": 64, "vars.layers": 3, "vars.vocab": 128}, ["backbone.layers"]),
    "mamba2-2.7b": ({"vars.d": 64, "vars.head_dim": 16, "vars.layers": 3, "vars.vocab": 128}, ["backbone.layers"]),
    "t5-11b": ({"vars.d": 64, "vars.ff": 96, "vars.heads": 8, "vars.layers": 2, "vars.vocab": 128},
               ["encoder.block", "decoder.block"]),
    # The first layer is dense, so a stack contains only the layers that have its tensor.
    "deepseek-v3": ({"vars.d": 64, "vars.ff": 96, "vars.expert_ff": 32, "vars.layers": 4, "vars.dense_layers": 1,
                     "vars.experts": 4, "vars.heads": 4, "vars.query_rank": 32, "vars.kv_rank": 16, "vars.vocab": 128},
                    ["model.layers"]),
}


@pytest.mark.parametrize("name", SCANNED)
def test_stacked_layout_joins_layers(name, tmp_path):
    sets, modules = SCANNED[name]
    spec = ROOT / f"configs/{name}.yaml"
    axes = run_json("plan", spec)["mesh"]["axes"]
    arguments = [spec, "--mesh", f"{axes[0]}=2"]
    arguments += itertools.chain.from_iterable(("--set", f"{key}={value}") for key, value in sets.items())
    run_ok("gen", *arguments, "--layout", "stacked", "-o", tmp_path / "out")
    run_ok("verify", tmp_path / "out")
    stored = {path: words for path, (_, words) in reassemble(tmp_path / "out").items()}
    digests = {t["path"]: t["sha256"] for t in run_json("digest", *arguments)["tensors"]}
    layers = {}  # path of a stack → its tensors in order
    for path in digests:
        module = next((each for each in modules if path.startswith(each + ".")), None)
        if module is None:
            assert sha256_of(stored.pop(path)) == digests[path]
            continue
        number, rest = path.removeprefix(module + ".").split(".", 1)
        layers.setdefault(f"{module}.{rest}", {})[int(number)] = digests[path]
    assert stored.keys() == layers.keys() and len(layers) > 5
    for path, members in layers.items():
        assert [sha256_of(layer) for layer in stored[path]] == [members[number] for number in sorted(members)], path


def test_wrong_stacks_are_rejected(tmp_path):
    spec = tmp_path / "x.yaml"
    head = "shardinit: 1\nname: x\ndtype: f32\nmesh: {axes: {a: 2}}\nmodules:\n"

    def mistake(modules, layout):
        spec.write_text(f"{head}  {modules}\nlayouts: {{x: {layout}}}\n")
        result = run_tool("validate", spec)
        assert result.returncode == 2
        return result.stderr

    layers = "h: {repeat: {i: 2}, w: {shape: [4, 4], init: ones}}"
    assert "`stack` names `layers`, but `modules` has no such module with numbered members" in \
        mistake(layers, "{stack: [layers]}")
    assert "`stack` needs tensors of one shape" in \
        mistake("h: {repeat: {i: 2}, w: {shape: [4, i + 1], init: ones}}", "{stack: [h]}")
    assert "is bf16" in mistake("{h.0.w: {shape: [4], init: ones}, h.1.w: {shape: [4], init: ones, dtype: bf16}}",
                                '{stack: ["*"]}')
    assert "sharded in different ways" in mistake(
        "{h.0.w: {shape: [4], init: ones}, h.1.w: {shape: [4], init: ones, shard: [a]}}", "{stack: [h]}")
    assert "`h.w`" in mistake(f"{{{layers}, h.w: {{shape: [1], init: ones}}}}", '{stack: [h], keep: ["*"]}')


def test_every_layout_is_tested():
    for name in ["qwen2.5-72b", "mixtral-8x7b"]:
        result = run_tool("plan", ROOT / f"configs/{name}.yaml", "--layout", "nothing")
        hint = result.stderr.partition("one of ")[2]
        assert set(hint.replace("`", "").replace("\n", "").split(", ")) == set(FAMILIES[name][1])


def test_digests_do_not_depend_on_the_layout(digests):
    for layout in LAYOUTS:
        assert {t["path"]: t["sha256"] for t in run_json("digest", TINY, "--layout", layout)["tensors"]} == digests


def test_ranks_of_a_layout_can_be_made_separately(tmp_path):
    run_ok("gen", TINY, "-o", tmp_path / "all", "--layout", "maxtext")
    for ranks in ["3", "0-1", "2"]:
        run_ok("gen", TINY, "-o", tmp_path / "parts", "--layout", "maxtext", "--ranks", ranks, "--jobs", "1",
               "--memory", "1M")
    assert tree_of(tmp_path / "all") == tree_of(tmp_path / "parts")
    result = run_tool("gen", TINY, "-o", tmp_path / "all", "--layout", "torchtitan")
    assert result.returncode == 4 and "holds another plan" in result.stderr


def test_changing_a_tensor_leaves_others_unchanged(tmp_path):
    """Adding, removing, moving a tensor, or renaming it with its key, leaves all other values unchanged."""
    head = "shardinit: 1\nname: x\ndtype: f32\nmodules:\n"
    lines = {name: f"  {name}: {{shape: [7, 9], init: {{normal: {{std: 1}}}}}}\n" for name in "abcd"}

    def tensor_digests(text):
        (tmp_path / "x.yaml").write_text(head + text)
        return {t["path"]: t["sha256"] for t in run_json("digest", tmp_path / "x.yaml")["tensors"]}

    all_four = tensor_digests("".join(lines.values()))
    assert len(set(all_four.values())) == 4
    assert tensor_digests("".join(reversed(lines.values()))) == all_four
    for name, digest in all_four.items():
        rest = {n: d for n, d in all_four.items() if n != name}
        assert tensor_digests("".join(line for n, line in lines.items() if n != name)) == rest
        renamed = lines[name].replace(f"  {name}:", "  e:").replace("{shape", f"{{key: {name}, shape")
        others = "".join(line for n, line in lines.items() if n != name)
        assert tensor_digests(renamed + others) == {**rest, "e": digest}


def test_stack_members_are_sorted_by_number(tmp_path):
    """Members of a stack are sorted by number, in whatever order the spec lists them."""
    members = ", ".join(f"h.{i}.w: {{shape: [2], init: {{constant: {{value: {i}}}}}}}"
                        for i in (2, 10, 0, 1, 3, 4, 5, 6, 7, 8, 9))
    (tmp_path / "spec.yaml").write_text(f"shardinit: 1\nname: m\ndtype: f32\nmodules: {{{members}}}\n"
                                        f"layouts: {{stacked: {{stack: [h]}}}}\n")
    run_ok("gen", tmp_path / "spec.yaml", "--layout", "stacked", "-o", tmp_path / "out")
    stored = reassemble(tmp_path / "out")["h.w"][1].view(np.float32)
    assert np.array_equal(stored, np.repeat(np.arange(11, dtype=np.float32), 2).reshape(11, 2))
