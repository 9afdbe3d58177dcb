"""Tests `shardinit import` and every command that takes a config.json. The reference is the model that Transformers
builds from the same file, for each family in configs/huggingface/ and each field of its class."""

import copy
import dataclasses
import json
import math
import types
import typing

import numpy as np
import pytest
import yaml

from clients import client_of
from support import ROOT, run_json, run_ok, run_tool
from test_zoo import MODELS, OTHERS, SAME_AS_ANOTHER, check_distribution, sets_of, spec_of, state_of, whole_one, with_recipe

torch = client_of("torch")
transformers = client_of("transformers")

import shardinit

LLAMA = {"vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2}
BERT = {"vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 32}
BIAS = {"initializer_range": 0.05}

# model type → its class, a small configuration, and changes to it that change tensors
FAMILIES = {
    "llama": ("LlamaForCausalLM", LLAMA, [
        {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}, {"num_key_value_heads": None},
        {"head_dim": 20}, {"pad_token_id": 5, **BIAS}, {"pad_token_id": -1}, {"dtype": "bfloat16"},
        {"dtype": "float16", "tie_word_embeddings": True, "attention_bias": True}]),
    "mistral": ("MistralForCausalLM", LLAMA, [
        {"tie_word_embeddings": True}, {"head_dim": 20}, {"hidden_size": 50, "head_dim": 10}, {"pad_token_id": 0},
        {"dtype": "bfloat16", **BIAS}]),
    "mixtral": ("MixtralForCausalLM", {**LLAMA, "num_local_experts": 3}, [
        {"tie_word_embeddings": True}, {"head_dim": 20, "pad_token_id": 2}, {"dtype": "bfloat16", **BIAS}]),
    "qwen2": ("Qwen2ForCausalLM", LLAMA, [
        {"tie_word_embeddings": True}, {"head_dim": 20}, {"num_key_value_heads": None},
        {"use_sliding_window": True, "pad_token_id": 7}, {"dtype": "bfloat16", **BIAS}]),
    "gemma2": ("Gemma2ForCausalLM", {**LLAMA, "head_dim": 12}, [
        {"tie_word_embeddings": False}, {"attention_bias": True}, {"pad_token_id": None}, {"pad_token_id": 9},
        {"dtype": "bfloat16", **BIAS}]),
    "gemma3_text": ("Gemma3ForCausalLM", {**LLAMA, "head_dim": 12}, [
        {"tie_word_embeddings": False}, {"attention_bias": True}, {"pad_token_id": None}, {"head_dim": 20, **BIAS},
        {"dtype": "bfloat16"}]),
    "qwen3": ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 12}, [
        {"tie_word_embeddings": True}, {"attention_bias": True, "head_dim": 20}, {"num_key_value_heads": None},
        {"hidden_size": 50, **BIAS}, {"pad_token_id": 7, "dtype": "bfloat16"}]),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**LLAMA, "num_experts": 3, "moe_intermediate_size": 20}, [
        {"tie_word_embeddings": True}, {"attention_bias": True, "head_dim": 20},
        {"decoder_sparse_step": 2, "num_hidden_layers": 5}, {"pad_token_id": 7, "dtype": "bfloat16", **BIAS}]),
    "phi3": ("Phi3ForCausalLM", {**LLAMA, "pad_token_id": 3}, [
        {"tie_word_embeddings": True}, {"num_key_value_heads": None}, {"head_dim": 20}, {"pad_token_id": None},
        {"dtype": "bfloat16", **BIAS}]),
    "olmo2": ("Olmo2ForCausalLM", LLAMA, [
        {"tie_word_embeddings": True}, {"attention_bias": True}, {"num_key_value_heads": None}, {"pad_token_id": None},
        {"dtype": "bfloat16", **BIAS}]),
    "smollm3": ("SmolLM3ForCausalLM", {**LLAMA, "pad_token_id": 0}, [
        {"tie_word_embeddings": False}, {"attention_bias": True, "mlp_bias": True}, {"num_key_value_heads": None},
        {"pad_token_id": None, "no_rope_layers": [0, 1]}, {"dtype": "bfloat16", **BIAS}]),
    "granite": ("GraniteForCausalLM", LLAMA, [
        {"tie_word_embeddings": True}, {"attention_bias": True}, {"mlp_bias": True}, {"num_key_value_heads": None},
        {"pad_token_id": 5, "dtype": "bfloat16", **BIAS}]),
    "ministral": ("MinistralForCausalLM", {**LLAMA, "head_dim": 12}, [
        {"tie_word_embeddings": True}, {"head_dim": 20}, {"hidden_size": 50, "head_dim": 10},
        {"pad_token_id": 0, "layer_types": ["sliding_attention", "full_attention"]}, {"dtype": "bfloat16", **BIAS}]),
    "ministral3": ("Ministral3ForCausalLM", {**LLAMA, "head_dim": 12}, [
        {"tie_word_embeddings": True}, {"head_dim": 20, "pad_token_id": None}, {"dtype": "bfloat16", **BIAS}]),
    "ernie4_5": ("Ernie4_5ForCausalLM", {**LLAMA, "head_dim": 12}, [
        {"tie_word_embeddings": False}, {"use_bias": True}, {"num_key_value_heads": None, "head_dim": None},
        {"use_bias": None, "pad_token_id": None}, {"dtype": "bfloat16", "head_dim": 20, **BIAS}]),
    "gemma": ("GemmaForCausalLM", {**LLAMA, "head_dim": 12}, [
        {"tie_word_embeddings": False}, {"attention_bias": True}, {"pad_token_id": None}, {"pad_token_id": 9},
        {"head_dim": 20, "dtype": "bfloat16", **BIAS}]),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 96, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 32}, [
        {"tie_word_embeddings": False}, {"n_inner": 100}, {"pad_token_id": 5, **BIAS}, {"dtype": "bfloat16"}]),
    "gpt_neox": ("GPTNeoXForCausalLM", {**LLAMA, "num_key_value_heads": None}, [
        {"tie_word_embeddings": True}, {"attention_bias": False}, {"pad_token_id": 5, **BIAS}, {"dtype": "float16"}]),
    "bert": ("BertForPreTraining", BERT, [
        {"architectures": ["BertForMaskedLM"]}, {"tie_word_embeddings": False},
        {"architectures": ["BertForMaskedLM"], "tie_word_embeddings": False},
        {"pad_token_id": None}, {"pad_token_id": 8, "type_vocab_size": 3, **BIAS}, {"dtype": "bfloat16"}]),
    "mamba": ("MambaForCausalLM", {"vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 3, "state_size": 8}, [
        {"tie_word_embeddings": False}, {"use_bias": True, "use_conv_bias": False}, {"time_step_rank": 5},
        {"rescale_prenorm_residual": True}, {"time_step_init_scheme": "constant", "time_step_scale": 2.0},
        {"expand": 3, "conv_kernel": 3, "time_step_min": 0.01, **BIAS}, {"dtype": "bfloat16"}]),
    "mamba2": ("Mamba2ForCausalLM", {
        "vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 3, "state_size": 8, "num_heads": 12, "head_dim": 8,
        "n_groups": 2}, [
        {"tie_word_embeddings": True}, {"use_bias": True, "use_conv_bias": False}, {"rescale_prenorm_residual": True},
        {"expand": 3, "num_heads": 18, "n_groups": 3, "time_step_min": 0.01, **BIAS}, {"dtype": "bfloat16"}]),
    "t5": ("T5ForConditionalGeneration", {
        "vocab_size": 96, "d_model": 48, "d_kv": 10, "d_ff": 80, "num_layers": 2, "num_heads": 4}, [
        {"tie_word_embeddings": False}, {"feed_forward_proj": "gated-gelu"}, {"num_decoder_layers": 3},
        {"initializer_factor": 0.5, "relative_attention_num_buckets": 8}, {"feed_forward_proj": "silu"},
        {"dtype": "bfloat16", "feed_forward_proj": "gated-silu"}]),
    "vit": ("ViTForImageClassification", {
        "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
        "image_size": 16, "patch_size": 4}, [
        {"num_labels": 7}, {"qkv_bias": False, "num_channels": 1, **BIAS}, {"dtype": "bfloat16"},
        {"id2label": {0: "a", 1: "=b", 2: "c: \"d\""}, "label2id": {"a": 0, "=b": 1, "c: \"d\"": 2}}]),
    "deepseek_v3": ("DeepseekV3ForCausalLM", {
        "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "moe_intermediate_size": 20,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 8,
        "n_shared_experts": 1, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
        "qk_nope_head_dim": 16, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}, [
        {"tie_word_embeddings": True}, {"attention_bias": True}, {"q_lora_rank": None},
        {"q_lora_rank": None, "attention_bias": True}, {"first_k_dense_replace": 0, "n_shared_experts": 2},
        {"first_k_dense_replace": 3}, {"first_k_dense_replace": 3, "attention_bias": True},
        {"pad_token_id": 3, **BIAS}, {"dtype": "bfloat16"}]),
}
CASES = [(name, changes) for name, (_, _, variations) in FAMILIES.items() for changes in [{}, *variations]]


def saved(name, changes, folder):
    """Returns the class's configuration and the path of the config.json that Transformers saves for it."""
    of, tiny, _ = FAMILIES[name]
    values = {"architectures": [of], **tiny, **changes}
    config = getattr(transformers, values["architectures"][0]).config_class(**values)
    config.save_pretrained(folder)
    return config, folder / "config.json"


def construct_tensors(config, seed):
    """Returns the tensors of the constructor's model with the dtypes of `from_pretrained`, which keeps some buffers in
    float32."""
    torch.manual_seed(seed)
    model = getattr(transformers, config.architectures[0])._from_config(copy.deepcopy(config))
    kept = model._keep_in_fp32_modules_strict or ()
    return {path: tensor.float() if any(name in path for name in kept) else tensor
            for path, tensor in state_of(model).items()}


def forms_of_tensors(tensors):
    return {path: (list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for path, tensor in tensors.items()}


DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64"}


def forms_of(spec):
    return {path: (list(tensor.global_shape), DTYPES[tensor.dtype]) for path, tensor in spec.tensors.items()}


def test_every_imported_family_is_tested():
    files = {path.stem for path in (ROOT / "configs/huggingface").glob("*.yaml")}
    assert files - {"_all", "kimi_k2"} == set(FAMILIES)  # test_kimi_k2_is_the_deepseek_v3_of_transformers


@pytest.mark.parametrize("name, changes", CASES, ids=lambda value: value if isinstance(value, str) else "-".join(value))
def test_import_makes_the_model_of_transformers(name, changes, tmp_path):
    """Names, shapes, types and values equal Transformers', also for the spec that `import` writes."""
    config, path = saved(name, changes, tmp_path)
    states = [construct_tensors(config, seed) for seed in range(3)]
    written = tmp_path / "elsewhere" / "model.yaml"
    written.parent.mkdir()
    run_ok("import", path, "-o", written)
    run_ok("validate", path)  # valid with every layout
    digests = run_ok("digest", path).stdout
    assert digests == run_ok("digest", written, cwd=tmp_path).stdout
    with shardinit.open_spec(path) as spec:
        assert forms_of(spec) == forms_of_tensors(states[0])
        for tensor in spec.tensors:
            made = spec.generate(tensor).astype(np.float64)
            eager = np.stack([state[tensor].double().numpy() for state in states])
            fixed = (eager == eager[0]).all(axis=0)
            # Logarithms may differ in the last bit.
            np.testing.assert_allclose(made[fixed], eager[0][fixed], rtol=1e-6 if config.dtype is None else 1e-2)
            if not fixed.all():
                check_values(made[~fixed], eager[:, ~fixed], tensor, rounded=states[0][tensor].dtype != torch.float32)


def check_values(made, eager, path, rounded):
    if rounded:  # Rounded values and quantiles of the distributions have many ties.
        error = eager.std() * math.sqrt(1 / made.size + 1 / eager.size)
        assert abs(made.mean() - eager.mean()) < 5 * error, path
        assert abs(made.std() - eager.std()) < 5 * error, path
    else:
        check_distribution(made, eager, path)


def other_values(value):
    """Returns other values to try for a field."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value, 0]
    if isinstance(value, float):
        return [value / 2, 2 * value]
    if isinstance(value, str):
        return ["gelu", "relu"]
    if value is None:
        return [True, 1, 2, 0.25, {"quant_method": "fp8"}]
    return []


@pytest.mark.parametrize("name", FAMILIES)
def test_import_follows_or_rejects_every_config_field(name, tmp_path):
    """`import` follows or rejects every field of the class that changes tensors."""
    of, tiny, _ = FAMILIES[name]
    config_class = getattr(transformers, of).config_class
    base = config_class(architectures=[of], **tiny)
    refused, tried = set(), 0
    for field in sorted({field.name for field in dataclasses.fields(config_class)} - {"architectures", "dtype"}):
        for value in other_values(getattr(base, field)):
            try:
                config = config_class(**{"architectures": [of], **tiny, field: value})
                state = construct_tensors(config, 0)
            except Exception:  # Transformers cannot build this model either.
                continue
            path = tmp_path / f"{tried}.json"
            path.write_text(json.dumps({**config.to_dict(), field: value}, default=str))
            tried += 1
            result = run_tool("import", path)
            if result.returncode != 0:
                assert result.returncode == 2 and f"{path}:" in result.stderr, result.stderr
                if value != 0:
                    refused.add(field)
                continue
            with shardinit.open_spec(path) as spec:
                assert forms_of(spec) == forms_of_tensors(state), (field, value)
                for tensor in spec.tensors:
                    made, eager = spec.generate(tensor).astype(np.float64), state[tensor].double().numpy()
                    assert ((made == 0).all() == (eager == 0).all()), (field, value, tensor)
                    if made.size > 500 and made.std() > 0:
                        assert abs(made.std() / eager.std() - 1) < 0.2, (field, value, tensor)
    assert tried > 30
    assert refused <= REFUSED, refused


def declared(path):
    """Returns the fields in `config_json` that change tensors, for a family and the files that it includes."""
    text = yaml.safe_load(path.read_text())
    included = text.get("include", [])
    rows = text.get("config_json", {}).get("fields", {})
    found = set(rows)
    for other in [included] if isinstance(included, str) else included:
        found |= declared((path.parent / other).resolve())
    return found - {field for field, row in rows.items() if row is None}


@pytest.mark.parametrize("name", FAMILIES)
def test_import_knows_every_config_field(name):
    """Fields of the class that change no tensor are listed too, so that misspelled fields are noticed."""
    config = getattr(transformers, FAMILIES[name][0]).config_class
    fields = {field.name for field in dataclasses.fields(config)} | set(config.attribute_map)
    fields -= {field.name for field in dataclasses.fields(transformers.PreTrainedConfig)}
    path = ROOT / f"configs/huggingface/{name}.yaml"
    if "rope_parameters" in fields:
        fields |= {"rope_theta", "rope_scaling"}  # Files have these instead.
    assert set(yaml.safe_load(path.read_text())["config_json"]["no_tensor"]) == fields - declared(path)


JSON_TYPES = {bool: "bool", int: "int", float: "float", str: "text", dict: "map", type(None): "null"}


def json_types(hint):
    """Translates a type annotation into the words of `types`."""
    kind = typing.get_origin(hint) or hint
    if kind in (typing.Union, types.UnionType):
        return set().union(*map(json_types, typing.get_args(hint)))
    if kind in (list, tuple):
        return {next(iter(json_types(typing.get_args(hint)[0]))) + "s"}
    return {"text"} if kind is typing.Literal else {JSON_TYPES.get(kind, "map")}


def declared_types(path):
    text = yaml.safe_load(path.read_text())
    included = text.get("include", [])
    found = {}
    for other in [included] if isinstance(included, str) else included:
        found |= declared_types((path.parent / other).resolve())
    return found | text.get("config_json", {}).get("types", {})


@pytest.mark.parametrize("name", FAMILIES)
def test_config_fields_have_the_types_of_transformers(name):
    config = getattr(transformers, FAMILIES[name][0]).config_class
    of_any = {field.name for field in dataclasses.fields(transformers.PreTrainedConfig)}
    theirs = {field.name: json_types(field.type) for field in dataclasses.fields(config) if field.name not in of_any}
    known = declared_types(ROOT / f"configs/huggingface/{name}.yaml")
    assert {field: set(known[field].split("|")) for field in theirs} == theirs


# Some values of these fields are rejected: no family has such tensors, or the values are invalid.
REFUSED = {"add_cross_attention", "quantization_config", "per_layer_config", "initializer_range", "pad_token_id",
           "time_step_init_scheme", "id2label",
           # These values do not divide evenly.
           "hidden_size", "num_attention_heads", "num_key_value_heads", "image_size", "patch_size"}

ROPE = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3"}


def llama_as_published(**sizes):
    return {"architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "initializer_range": 0.02,
            "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama", "num_key_value_heads": 8,
            "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": ROPE, "rope_theta": 500000.0,
            "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.42.3",
            "use_cache": True, "vocab_size": 128256, **sizes}


# The config.json on the Hub for each spec in configs/. A spec with another recipe is compared with Transformers'
# recipe.
PUBLISHED = {
    "llama3.1-8b": llama_as_published(hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
                                    num_hidden_layers=32),
    "llama3.1-70b": llama_as_published(hidden_size=8192, intermediate_size=28672, num_attention_heads=64,
                                     num_hidden_layers=80),
    "llama3.1-405b": llama_as_published(hidden_size=16384, intermediate_size=53248, num_attention_heads=128,
                                      num_hidden_layers=126),
    "mistral-7b-v0.3": {
        "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 32768},
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": False,
        "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 32000},
    "qwen2.5-72b": {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 8192, "initializer_range": 0.02,
        "intermediate_size": 29568, "max_position_embeddings": 131072, "max_window_layers": 80, "model_type": "qwen2",
        "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "use_cache": True, "use_mrope": False, "use_sliding_window": False, "vocab_size": 152064},
    "gemma-2-9b": {
        "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
        "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 3584, "initializer_range": 0.02,
        "intermediate_size": 14336, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 16,
        "num_hidden_layers": 42, "num_key_value_heads": 8, "pad_token_id": 0, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "sliding_window_size": 4096,
        "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 256000},
    "deepseek-v3": {
        "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "bos_token_id": 0, "eos_token_id": 1,
        "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
        "initializer_range": 0.006, "intermediate_size": 18432, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
        "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
        "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06, "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
        "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
        "use_cache": True, "v_head_dim": 128, "vocab_size": 129280},
    "gpt2-xl": {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 1600, "n_head": 25, "n_layer": 48,
        "n_positions": 1024, "output_past": True, "resid_pdrop": 0.1, "summary_activation": None,
        "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
        "summary_use_proj": True, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": 50257},
    "gpt-neox-20b": {
        "architectures": ["GPTNeoXForCausalLM"], "attention_probs_dropout_prob": 0, "bos_token_id": 0,
        "eos_token_id": 0, "hidden_act": "gelu_fast", "hidden_dropout_prob": 0, "hidden_size": 6144,
        "initializer_range": 0.02, "intermediate_size": 24576, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 64, "num_hidden_layers": 44,
        "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16",
        "use_cache": True, "vocab_size": 50432},
    "bert-large": {
        "architectures": ["BertForPreTraining"], "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 4096,
        "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 16,
        "num_hidden_layers": 24, "pad_token_id": 0, "position_embedding_type": "absolute", "type_vocab_size": 2,
        "use_cache": True, "vocab_size": 30522},
    "mamba-2.8b": {
        "architectures": ["MambaForCausalLM"], "bos_token_id": 0, "conv_kernel": 4, "d_inner": 5120, "d_model": 2560,
        "eos_token_id": 0, "expand": 2, "fused_add_norm": True, "hidden_act": "silu", "hidden_size": 2560,
        "initializer_range": 0.1, "intermediate_size": 5120, "layer_norm_epsilon": 1e-05, "model_type": "mamba",
        "n_layer": 64, "num_hidden_layers": 64, "pad_token_id": 0, "pad_vocab_size_multiple": 8,
        "rescale_prenorm_residual": False, "residual_in_fp32": True, "rms_norm": True, "ssm_cfg": {},
        "state_size": 16, "time_step_floor": 0.0001, "time_step_init_scheme": "random", "time_step_max": 0.1,
        "time_step_min": 0.001, "time_step_rank": 160, "time_step_scale": 1.0, "torch_dtype": "float32",
        "use_bias": False, "use_cache": True, "use_conv_bias": True, "vocab_size": 50280},
    "t5-11b": {
        "architectures": ["T5WithLMHeadModel"], "d_ff": 65536, "d_kv": 128, "d_model": 1024,
        "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1, "initializer_factor": 1.0,
        "is_encoder_decoder": True, "layer_norm_epsilon": 1e-06, "model_type": "t5", "n_positions": 512,
        "num_heads": 128, "num_layers": 24, "output_past": True, "pad_token_id": 0,
        "relative_attention_num_buckets": 32, "torch_dtype": "bfloat16", "vocab_size": 32128},
    "vit-l-16": {
        "architectures": ["ViTForImageClassification"], "attention_probs_dropout_prob": 0.0, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0, "hidden_size": 1024, "id2label": {str(i): f"label, {i}" for i in range(1000)},
        "image_size": 224, "initializer_range": 0.02, "intermediate_size": 4096,
        "label2id": {f"label, {i}": i for i in range(1000)}, "layer_norm_eps": 1e-12, "model_type": "vit",
        "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 24, "patch_size": 16, "qkv_bias": True},
}


# The config.json of Kimi-K2-Instruct. Its code is DeepSeek's, and Transformers has no model of this type.
KIMI_K2 = {
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "aux_loss_alpha": 0.001,
    "bos_token_id": 163584, "eos_token_id": 163585, "first_k_dense_replace": 1, "hidden_act": "silu",
    "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 131072, "model_type": "kimi_k2", "moe_intermediate_size": 2048, "moe_layer_freq": 1,
    "n_group": 1, "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 64,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 64, "num_nextn_predict_layers": 0,
    "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "seq_aux": True,
    "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
    "transformers_version": "4.48.3", "use_cache": True, "v_head_dim": 128, "vocab_size": 163840}


@pytest.mark.parametrize("given", [KIMI_K2, {"model_type": "kimi_k2", "vocab_size": 500},
                                   {**KIMI_K2, **FAMILIES["deepseek_v3"][1], "q_lora_rank": None}],
                         ids=["released", "defaults", "tiny"])
def test_kimi_k2_is_the_deepseek_v3_of_transformers(given, tmp_path):
    path, other = tmp_path / "config.json", tmp_path / "deepseek.json"
    path.write_text(json.dumps(given))
    other.write_text(json.dumps({**given, "model_type": "deepseek_v3"}))
    config = transformers.DeepseekV3Config.from_json_file(other)
    config.architectures = ["DeepseekV3ForCausalLM"]
    with torch.device("meta"):
        wanted = forms_of_tensors(construct_tensors(config, 0))
    with shardinit.open_spec(path) as spec:
        assert forms_of(spec) == wanted
    for layout in "hub", "torch_dist":
        assert run_json("plan", path, "--layout", layout)["parameters"] == run_json("plan", other)["parameters"]
    if given.get("hidden_size", 7168) < 100:
        assert run_ok("digest", path).stdout == run_ok("digest", other).stdout


def preset(name, folder):
    """Returns the spec in configs/ with the initializers that Transformers uses."""
    return with_recipe(name, MODELS[name].recipe, folder) if MODELS[name].recipe else spec_of(name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_config_equals_the_shipped_spec(name, tmp_path):
    """A config.json from the Hub and the spec in configs/ make the same tensors."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PUBLISHED[name], indent=2))
    result = run_tool("diff", preset(name, tmp_path), path, "--json")
    differences = json.loads(result.stdout)
    assert {change["what"] for change in differences["changes"]} <= {"name", "mesh"}
    for tensor in differences["tensors"]:
        assert {change["what"] for change in tensor["changes"]} == {"sharding"}, tensor
    assert differences["equal_tensors"] + len(differences["tensors"]) > 100


# No family of `import` has two towers, stages or two kinds of layers. OTHERS are not Transformers models.
WITHOUT_FAMILY = {"clip-vit-b-32", "convnext-tiny-224", "jamba-v0.1"} | OTHERS


@pytest.mark.parametrize("name", sorted(set(MODELS) - SAME_AS_ANOTHER - WITHOUT_FAMILY))
def test_exported_config_imports_as_the_same_model(name, tmp_path):
    """Importing the config.json that `export` writes gives the same digests."""
    spec = preset(name, tmp_path)
    sets = {"seed": 0, **{f"vars.{variable}": value for variable, value in MODELS[name].tiny.items()}}
    options = [*whole_one(spec), *sets_of(sets)]
    run_ok("export", spec, "--to", "safetensors", "-o", tmp_path / "out", *options)
    assert run_ok("digest", tmp_path / "out/config.json").stdout == run_ok("digest", spec, *options).stdout


def write_config(folder, **changes):
    """Writes the config.json of a tiny Llama, without the fields that are None."""
    path = folder / "config.json"
    values = {"model_type": "llama", **LLAMA, **changes}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}, indent=1))
    return path


def test_every_command_accepts_a_config_json(tmp_path):
    path, written = write_config(tmp_path), tmp_path / "model.yaml"
    run_ok("import", path, "-o", written)
    for command in ["plan", "validate", "digest", "stats", "graph", "program"]:
        of_json, of_yaml = (run_ok(command, of).stdout.replace(str(of), "") for of in (path, written))
        assert of_json == of_yaml != ""
    assert "config.json:" in run_ok("explain", path, "model.norm.weight").stdout
    for of in (path, written):
        run_ok("gen", of, "-o", tmp_path / of.suffix, "--mesh", "fsdp=2,tensor=2")
        run_ok("verify", tmp_path / of.suffix)
    assert (tmp_path / ".json/plan.json").read_text() == (tmp_path / ".yaml/plan.json").read_text()
    run_ok("export", path, "--to", "safetensors", "-o", tmp_path / "hf")
    run_ok("verify", tmp_path / "hf", "--spec", path)
    run_ok("diff", path, written)
    assert run_ok("digest", "-", stdin=path.open()).stdout == run_ok("digest", path).stdout
    # A spec can include it together with shipped files, and the command line can change it.
    over = tmp_path / "over.yaml"
    over.write_text("shardinit: 1\ninclude: [config.json, <shardinit>/sharding/fsdpv2.yaml]\n")
    assert run_json("plan", over)["world_size"] == 8
    over.write_text("shardinit: 1\ninclude: config.json\nseed: 7\n")
    assert run_ok("digest", over).stdout == run_ok("digest", path, "--set", "seed=7").stdout


LLAMA_CONFIGS = {
    "llama2": {}, "llama3.1": {"rope_scaling": ROPE}, "transformers5": {"rope_parameters": {**ROPE, "rope_theta": 5e5}}}


@pytest.mark.parametrize("changes", LLAMA_CONFIGS.values(), ids=LLAMA_CONFIGS)
@pytest.mark.parametrize("file", ["llama", "mistral"])
def test_maxtext_layout_matches_the_rotary_embedding(file, changes, tmp_path):
    """The layout orders queries and keys for rotating neighbours or, for a Mistral, halves of a head as in
    Transformers."""
    config, spec = write_config(tmp_path, **changes), tmp_path / "chosen.yaml"
    assert "no layout `maxtext`" in run_tool("plan", config, "--layout", "maxtext").stderr
    spec.write_text(f"shardinit: 1\ninclude: [config.json, <shardinit>/layouts/{file}.yaml]\n")
    check_max_text(spec, turned=file == "llama")


@pytest.mark.parametrize("name", ["mistral", "mixtral"])
def test_maxtext_layout_keeps_the_order_of_transformers(name, tmp_path):
    _, path = saved(name, {}, tmp_path)
    check_max_text(path, turned=False)


def check_max_text(path, turned):
    with shardinit.open_spec(path) as drawn, shardinit.open_spec(path, layout="maxtext") as stored:
        for name, theirs, heads in [("query", "q", 4), ("key", "k", 2)]:
            kernel = stored.generate(f"params.params.decoder.layers.self_attention.{name}.kernel")
            assert kernel.shape == (48, 2, heads, 12)
            for layer in range(2):
                rows = drawn.generate(f"model.layers.{layer}.self_attn.{theirs}_proj.weight").reshape(heads, 12, 48)
                if turned:
                    rows = np.stack([rows[:, :6], rows[:, 6:]], axis=2).reshape(heads, 12, 48)
                np.testing.assert_array_equal(kernel[:, layer], rows.transpose(2, 0, 1))


def test_export_copies_the_config_json(tmp_path):
    """`export` copies a config.json: fields of variables follow the variables, and other fields stay unchanged."""
    others = {"rope_scaling": ROPE, "eos_token_id": [2, 3], "time_step_limit": [0.0, math.inf], "huge": 1e30,
              "label": "=x", "dtype": "bfloat16"}
    path = write_config(tmp_path, **others)
    path.write_text(path.read_text().replace("1e+30", "1" + "0" * 30))
    run_ok("export", path, "--set", "vars.layers=1", "--to", "safetensors", "-o", tmp_path / "out")
    made = json.loads((tmp_path / "out/config.json").read_text())
    infinite = {"time_step_limit": [0.0, {"__float__": "Infinity"}]}
    given = {**LLAMA, "model_type": "llama", **others, **infinite, "num_hidden_layers": 1}
    assert {key: made[key] for key in given} == given
    assert set(made) - set(given) == {"head_dim", "initializer_range"}  # These are variables.


# A family, changed fields, a variable with a new value, and the field's new value. None: the field cannot follow.
FOLLOWED = [
    ("qwen3", {"layer_types": ["full_attention"] * 2}, "layers=3", ["full_attention"] * 3),
    ("qwen3", {"layer_types": ["sliding_attention", "full_attention"]}, "layers=1", ["sliding_attention"]),
    ("qwen3", {"layer_types": ["sliding_attention", "full_attention"]}, "layers=3", None),
    ("qwen3", {"layer_types": ["sliding_attention", "full_attention"]}, "layers=-1", ()),
    ("gemma2", {"num_hidden_layers": 5,
                "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"]},
     "layers=6", ["sliding_attention", "full_attention"] * 3),
    ("smollm3", {"no_rope_layers": [1, 1]}, "layers=3", [1, 1, 1]),
    ("gpt2", {"hidden_size": 48}, "d=24", type(None)),
    ("vit", {"id2label": {"0": "a", "1": "b", "2": "c"}}, "classes=2", None),
]


@pytest.mark.parametrize("name, changes, variable, expected", FOLLOWED, ids=lambda value: str(value)[:40])
def test_exported_config_follows_set(name, changes, variable, expected, tmp_path):
    """`--set` changes the exported config.json too, so that `from_pretrained` loads the same model."""
    of, tiny, _ = FAMILIES[name]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": name, "architectures": [of], **tiny, **changes}))
    result = run_tool("export", path, "--set", f"vars.{variable}", "--to", "safetensors", "-o", tmp_path / "out")
    (field,) = set(changes) - {"num_hidden_layers"}
    if expected == ():  # Such a model does not exist.
        assert result.returncode == 2 and "layers" in result.stderr, result.stderr
        return
    if expected is None:
        assert result.returncode == 2 and f"`{field}` of `config` has" in result.stderr, result.stderr
        return
    assert result.returncode == 0, result.stderr
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert field not in written if expected is type(None) else written[field] == expected
    _, loading = getattr(transformers, of).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(loading.values()), loading


def test_t5_decoder_layers_default_to_num_layers(tmp_path):
    """As in T5Config, only `num_layers` sets the default number of decoder layers."""
    path = tmp_path / "config.json"
    for given, layers in ({"num_layers": 2}, 2), ({"num_hidden_layers": 2, "num_decoder_layers": 3},
                                                  3), ({"num_hidden_layers": 2}, 6):
        path.write_text(json.dumps({"model_type": "t5", **given}))
        assert transformers.T5Config.from_json_file(path).num_decoder_layers == layers
        result = run_tool("import", path)
        assert (result.returncode == 0) == (layers != 6), result.stderr
        if result.returncode == 0:
            with shardinit.open_spec(path) as spec:
                assert max(int(name.split(".")[2])
                           for name in spec.tensors if name.startswith("decoder.block")) == layers - 1
    assert "write `num_layers` instead, or give `num_decoder_layers` too" in result.stderr


def test_import_lists_defaults(tmp_path):
    path = write_config(tmp_path, intermediate_size=None)
    result = run_ok("import", path, "-o", tmp_path / "model.yaml")
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("defaults of Transformers: ")]
    assert "intermediate_size: 11008" in line and "dtype: float32" in line and "hidden_size" not in line
    assert f"# {line}" in (tmp_path / "model.yaml").read_text().splitlines()[1]


def test_import_uses_the_first_of_several_architectures(tmp_path):
    path = write_config(tmp_path, architectures=["LlamaForCausalLM", "LlamaModel"])
    result = run_ok("import", path)
    assert "`architectures` names 2 classes; the first one, `LlamaForCausalLM`, is used" in result.stderr


WRONG = {  # text of the file, or changes to a Llama's config → the message, with its line
    "not JSON": ("shardinit", "config.json:1:1: error: `shardinit` is not a JSON value"),
    "empty": ("", "config.json:1:1: error: the text ends where a value is expected"),
    "a comma": ('{"model_type": "llama",\n}', "config.json:2:1: error: a value is expected after the comma"),
    "open": ('{"model_type": "llama"', "config.json:1:1: error: `{` is never closed"),
    "twice": ('{"model_type": "llama",\n "model_type": "t5"}',
              "config.json:2:2: error: key `model_type` is given twice"),
    "a list": ("[1]", "config.json:1:1: error: a config.json is an object, not a list"),
    "a number": ("7", "config.json:1:1: error: a config.json is an object, not `7`"),
    "a spec": ('{"shardinit": 1}', "error: this is a spec already"),
    "no type": ("{}", "config.json: error: `model_type`, the name of the family, is missing"),
    "type of a kind": ({"model_type": 5}, "no family has the model type `5`"),
    "unknown type": ({"model_type": "whisper"}, "config.json:2:16: error: no family has the model type `whisper`"),
    "negative": ({"hidden_size": -4},
                 "config.json:4:17: error: `hidden_size` must be a whole number of at least 1, not `-4`"),
    "zero": ({"num_hidden_layers": 0},
             "config.json:6:23: error: `num_hidden_layers` must be a whole number of at least 1"),
    "text": ({"vocab_size": "96"}, "`vocab_size` must be a whole number of at least 1, not the text `96`"),
    "fraction": ({"vocab_size": 9.5}, "`vocab_size` must be a whole number of at least 1, not `9.5`"),
    "boolean": ({"vocab_size": True}, "`vocab_size` must be a whole number of at least 1, not `true`"),
    "huge": ({"vocab_size": 10**20}, "`vocab_size` must be a whole number of at least 1, not `100000000000000000000`"),
    "std": ({"initializer_range": 0}, "`initializer_range` must be a number above 0, not `0`"),
    "quantized": ({"quantization_config": {"quant_method": "fp8"}},
                  "`quantization_config` is a mapping, which the family `llama` has no tensors for"),
    "class": ({"architectures": ["LlamaForSequenceClassification"]},
              "`architectures` is `LlamaForSequenceClassification`, which the family `llama` has no tensors for"),
    "near miss of what changes no tensor": ({"rms_norm_eps": None, "rms_norm_epss": 1e-6},
                                            "`rms_norm_epss` is not a field of a `llama`, and `rms_norm_eps` is not "
                                            "there\n"),
    "near miss": ({"num_hidden_layers": None, "num_hidden_layer": 2},
                  "`num_hidden_layer` is not a field of a `llama`, and `num_hidden_layers` is not there\n"),
    "meant": ({"hidden_size": None, "hiddenSize": 48},
              "hint: did you mean `hidden_size`? If not, remove it: Transformers does not read it"),
    "quantised": ({"quantisation_config": {"quant_method": "fp8"}},
                  "`quantisation_config` is not a field of a `llama`, and `quantization_config` is not there"),
    "capture": ({"architectures": ["LlamaModel"]},
                "config.json -o model.yaml` makes a spec of any model of Transformers"),
    "dtype": ({"torch_dtype": "int8"}, "`torch_dtype` is `int8`, which the family"),
    "heads": ({"num_attention_heads": 5, "num_key_value_heads": 5},
              "config.json:4:17: error: the model needs that hidden_size is a multiple of num_attention_heads, but "
              "`hidden_size` is `48` and `num_attention_heads` is `5`"),
    "groups": ({"num_key_value_heads": 3},
               "heads is not a multiple of kv_heads: `num_attention_heads` is `4` and `num_key_value_heads` is `3`"),
    "no size": ('{"model_type": "llama", "rms_norm_eps": 1e-5}',
                "config.json: error: the config.json has none of the model's sizes"),
    "nested": ('{"model_type": "llama", "vocab_size": 8, "text_config": {"hidden_size": 48}}',
               "`hidden_size` is in `text_config`, where a `llama` ignores it"),
    "null size": ('{"model_type": "llama", "vocab_size": 8, "hidden_size": null}',
                  "`hidden_size` must be a whole number, but is null"),
    "quoted": ({"tie_word_embeddings": "false"},
               "`tie_word_embeddings` must be true or false, but is the text `false`"),
    "type of what changes no tensor": ({"rms_norm_eps": "1e-5"},
                                       "`rms_norm_eps` must be a number with a decimal point, but is the text `1e-5`"),
    "whole": ({"initializer_range": 1}, "`initializer_range` must be a number with a decimal point, but is `1`"),
    "layers": ({"layer_types": ["full_attention"] * 3},
               "`layer_types` must have an entry for each of the 2 layers, but has 3"),
    "layer type": ({"layer_types": ["full_attention", "full"]},
                   "`layer_types` has `full`, which is not a type of layer"),
    "classes": ({"architectures": {"a": 1}},
                "`architectures` is a mapping, which the family `llama` has no tensors for"),
    "head": ({"model_type": "ministral"}, "the model needs that head_dim is given"),
    "pointer": ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
                "this is a pointer of Git LFS, not a"),
    "padding": ({"pad_token_id": 96},
                "pad_token_id is below vocab_size, but `pad_token_id` is `96` and `vocab_size` is `96`"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("command", ["import", "validate"])
def test_import_rejects_wrong_configs(command, name, tmp_path):
    given, message = WRONG[name]
    path = write_config(tmp_path, **given) if isinstance(given, dict) else tmp_path / "config.json"
    if isinstance(given, str):
        path.write_text(given)
    result = run_tool(command, path)
    assert result.returncode == 2, result.stdout
    if command == "import" or isinstance(given, dict):
        assert message in result.stderr
    assert len(result.stderr) < 3000


@pytest.mark.parametrize("name, changes, message", [
    ("t5", {"is_gated_act": True},
     "is_gated_act is true where feed_forward_proj begins with gated, and false where not"),
    ("t5", {"is_gated_act": False, "feed_forward_proj": "gated-gelu"}, "is_gated_act is true where"),
    ("gpt2", {"hidden_size": 64}, "error: `n_embd` is `48`, but `hidden_size`, which is another name of it, is `64`"),
    ("llama", {"dtype": "float32", "torch_dtype": "bfloat16"},
     "`dtype` is `float32`, but `torch_dtype`, which is another name of it, is `bfloat16`"),
    ("vit", {"num_labels": 5, "id2label": {"0": "a", "1": "b"}}, "error: `id2label` says 2, but `num_labels` says 5"),
])
def test_import_rejects_contradictory_fields(name, changes, message, tmp_path):
    of, tiny, _ = FAMILIES[name]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": name, "architectures": [of], **tiny, **changes}))
    result = run_tool("validate", path)
    assert result.returncode == 2 and message in result.stderr, result.stderr


# A config, and an equivalent one: null differs from an absent field, and a field has one value.
SAME = {
    "alias": ("gpt2", {"hidden_size": 48}, ["n_embd"], {}),
    "both names": ("gpt2", {"hidden_size": 48}, [], {}),
    "nearly one that is there": ("llama", {"num_hidden_layer": 9, "num_labels": 3}, [], {}),
    "null": ("qwen2", {"num_key_value_heads": None}, [], {"num_key_value_heads": 4}),
    "absent": ("qwen2", {"num_attention_heads": 32, "hidden_size": 64}, ["num_key_value_heads"], {
        "num_attention_heads": 32, "hidden_size": 64, "num_key_value_heads": 32}),
    "default token": ("gemma2", {}, ["pad_token_id"], {"pad_token_id": 0}),
    "default token of bert": ("bert", {}, ["pad_token_id"], {"pad_token_id": 0}),
}


@pytest.mark.parametrize("case", SAME)
def test_import_reads_fields_as_transformers_does(case, tmp_path):
    name, changes, lacks, said = SAME[case]
    of, tiny, _ = FAMILIES[name]
    whole = {"model_type": name, "architectures": [of], **tiny}
    given = {key: value for key, value in {**whole, **changes}.items() if key not in lacks}
    (tmp_path / "given.json").write_text(json.dumps(given))
    (tmp_path / "said.json").write_text(json.dumps({**whole, **said}))
    class_of = getattr(transformers, of).config_class
    a, b = (class_of.from_json_file(tmp_path / f"{each}.json").to_dict() for each in ("given", "said"))
    assert all(a[key] == b[key] for key in {**tiny, **said})
    assert run_ok("digest", tmp_path / "given.json").stdout == run_ok("digest", tmp_path / "said.json").stdout


def test_unknown_model_type_lists_families():
    result = run_tool("import", "-", input='{"model_type": "whisper"}', stdin=None)
    assert all(f"`{name}`" in result.stderr for name in FAMILIES) and "shardinit-capture hf" in result.stderr


def test_import_reports_all_mistakes_at_once(tmp_path):
    result = run_tool("import", write_config(tmp_path, hidden_size=0, vocab_size="x", torch_dtype="int4"))
    assert result.stderr.count("error:") == 3


def test_import_rejects_too_large_a_config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "x": "' + "x" * (9 << 20) + '"}')
    result = run_tool("import", path)
    assert result.returncode == 2 and "larger than" in result.stderr
