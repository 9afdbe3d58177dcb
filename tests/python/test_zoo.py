"""Compares configs/ with the classes of Transformers, Diffusers, PEFT and MLX LM, built from published configurations:
all names, shapes and buffers; for tiny models, every tensor's values against the constructor's; and the loss before the
first step."""

import dataclasses
import functools
import importlib
import itertools
import json
import math
import operator
import os
import pathlib

import numpy as np
import pytest
import scipy.stats
import yaml

from clients import bits_of, client_of
from support import CONFIGS, RECIPES, ROOT, run_json, run_ok

torch = client_of("torch")
transformers = client_of("transformers")

import shardinit


@dataclasses.dataclass
class Model:
    """A spec in configs/ and the model that it must equal."""

    of: str  # a class of Transformers
    parameters: int  # published, or counted from the published configuration
    config: dict  # the published configuration, where it differs from the defaults
    variables: dict  # the spec's variables → fields of the configuration
    tiny: dict  # values of these variables in a tiny model
    recipe: str = ""  # Transformers' recipe, if the spec has another

    def make(self, **changes):
        model = getattr(transformers, self.of)
        return model(model.config_class(**nested({**self.config, **changes})))

    def tiny_config(self):
        return {self.variables[name]: value for name, value in self.tiny.items() if name in self.variables}

    def make_tiny(self, seed):
        torch.manual_seed(seed)
        return self.state(self.make(**self.tiny_config()))

    def state(self, made):
        return state_of(made)

    def buffers(self, made):
        return {path for path, _ in made.named_buffers()}


class Diffuser(Model):
    """`of` is a class of Diffusers."""

    def make(self, **changes):
        return getattr(client_of("diffusers"), self.of)(**{**self.config, **changes})

    def load(self, folder):
        """Loads an export after renaming its files, whose names are Transformers'."""
        index = folder / "model.safetensors.index.json"
        index.rename(folder / f"diffusion_pytorch_{index.name}")
        made, info = getattr(client_of("diffusers"), self.of).from_pretrained(folder, output_loading_info=True)
        assert not any(info.values()), info
        return self.state(made)


class Adapters(Model):
    """PEFT's LoRA adapters of a class of Transformers."""

    def make(self, **changes):
        peft = client_of("peft")
        config = peft.LoraConfig(r=changes.pop("r", 16), target_modules="all-linear", task_type="CAUSAL_LM")
        return peft.get_peft_model(super().make(**changes), config)

    def state(self, made):
        return client_of("peft").get_peft_model_state_dict(made)

    def load(self, folder):
        """Loads the exported folder with PEFT."""
        peft, made = client_of("peft"), self.make(**self.tiny_config())
        return self.state(peft.PeftModel.from_pretrained(made.unload(), folder))


class OpenElm(Model):
    """MLX LM's class, which loads apple/OpenELM's files. The repository on the Hub has its own class for them."""

    def module(self):
        return client_of("mlx_lm.models.openelm")

    def make(self, **changes):
        return self.module().Model(self.module().ModelArgs.from_dict({**self.config, **changes}))

    def state(self, made):
        flat = importlib.import_module("mlx.utils").tree_flatten(made.parameters())
        return {path: torch.empty(array.shape, device="meta") for path, array in flat}

    def buffers(self, made):
        return set()

    def make_tiny(self, seed):
        """Draws values as OpenELMModel.reset_parameters does in apple/OpenELM's modeling_openelm.py."""
        torch.manual_seed(seed)
        config = self.tiny_config()
        residual = config["model_dim"]**-0.5 * (2 * config["num_transformer_layers"])**-0.5
        return {path: torch.ones(tensor.shape) if "norm" in path else torch.randn(tensor.shape) * (
                    residual if path.endswith(("out_proj.weight", "ffn.proj_2.weight")) else tensor.shape[1]**-0.5)
                for path, tensor in self.state(self.make(**config)).items()}

    def load(self, folder):
        arrays = client_of("mlx.core").load(str(folder / "model.safetensors"))
        config = json.loads((folder / "config.json").read_text())
        made = self.module().Model(self.module().ModelArgs.from_dict(config))
        made.load_weights(list(arrays.items()), strict=True)
        return {path: torch.from_numpy(np.array(array)) for path, array in arrays.items()}


def nested(fields):
    """Nests fields: `a.b` is the field b of the configuration a."""
    config = {}
    for field, value in fields.items():
        *inner, last = field.split(".")
        functools.reduce(lambda part, name: part.setdefault(name, {}), inner, config)[last] = value
    return config


def state_of(model):
    """Returns path → tensor for a checkpoint, with tied tensors once."""
    tied = set(getattr(model, "_tied_weights_keys", None) or ()) if getattr(model.config, "tie_word_embeddings",
                                                                            False) else set()
    return {path: tensor for path, tensor in model.state_dict().items() if path not in tied}


LLAMA = {"d": "hidden_size", "ff": "intermediate_size", "layers": "num_hidden_layers",
         "heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim",
         "vocab": "vocab_size"}
LLAMA_TINY = {"d": 128, "ff": 192, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 32, "vocab": 512}


TOWER = {"width": "hidden_size", "ff": "intermediate_size", "layers": "num_hidden_layers",
         "heads": "num_attention_heads"}


LLAMA_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8}


def llama(of, parameters, config, variables={}, tiny={}):
    return Model(of, parameters, {**LLAMA_8B, **config}, {**LLAMA, **variables}, {**LLAMA_TINY, **tiny})


MODELS = {
    "llama3.1-8b": llama("LlamaForCausalLM", 8_030_261_248, {"vocab_size": 128256}),
    "llama3.1-70b": llama("LlamaForCausalLM", 70_553_706_496, {
        "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672,
        "num_hidden_layers": 80, "num_attention_heads": 64}),
    "llama3.1-405b": llama("LlamaForCausalLM", 405_853_388_800, {
        "vocab_size": 128256, "hidden_size": 16384, "intermediate_size": 53248,
        "num_hidden_layers": 126, "num_attention_heads": 128}),
    "mistral-7b-v0.3": llama("MistralForCausalLM", 7_248_023_552, {"vocab_size": 32768}),
    "qwen2.5-72b": llama("Qwen2ForCausalLM", 72_706_203_648, {
        "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568,
        "num_hidden_layers": 80, "num_attention_heads": 64}),
    "mixtral-8x7b": llama("MixtralForCausalLM", 46_702_792_704, {},
                          {"experts": "num_local_experts"}, {"experts": 4}),
    "gemma-2-9b": llama("Gemma2ForCausalLM", 9_241_705_984, {
        "hidden_size": 3584, "num_hidden_layers": 42, "num_attention_heads": 16, "head_dim": 256}),
    # Includes the 58 buffers. Files on the Hub also contain layer 61: see
    # test_deepseek_adds_a_multi_token_prediction_layer.
    "deepseek-v3": Model("DeepseekV3ForCausalLM", 671_026_404_352, {"initializer_range": 0.006}, {
        "d": "hidden_size", "ff": "intermediate_size", "expert_ff": "moe_intermediate_size",
        "layers": "num_hidden_layers", "dense_layers": "first_k_dense_replace", "heads": "num_attention_heads",
        "experts": "n_routed_experts", "shared_experts": "n_shared_experts", "query_rank": "q_lora_rank",
        "kv_rank": "kv_lora_rank", "nope_dim": "qk_nope_head_dim", "rope_dim": "qk_rope_head_dim",
        "value_dim": "v_head_dim", "vocab": "vocab_size",
    }, {
        "d": 96, "ff": 160, "expert_ff": 64, "layers": 3, "dense_layers": 1, "heads": 4, "experts": 8,
        "shared_experts": 2, "query_rank": 48, "kv_rank": 40, "nope_dim": 24, "rope_dim": 16, "value_dim": 20,
        "vocab": 512}),
    "gpt2-xl": Model("GPT2LMHeadModel", 1_557_611_200, {"n_embd": 1600, "n_layer": 48, "n_head": 25}, {
        "d": "n_embd", "layers": "n_layer", "vocab": "vocab_size", "positions": "n_positions",
    }, {"d": 150, "head_dim": 6, "layers": 3, "vocab": 509, "positions": 128}),
    "gpt-neox-20b": Model("GPTNeoXForCausalLM", 20_554_567_680, {}, {
        "d": "hidden_size", "ff": "intermediate_size", "layers": "num_hidden_layers", "vocab": "vocab_size",
    }, {"d": 128, "ff": 256, "layers": 2, "head_dim": 2, "vocab": 512}, recipe="huggingface"),
    "mamba-2.8b": Model("MambaForCausalLM", 2_768_345_600, {"hidden_size": 2560, "num_hidden_layers": 64}, {
        "d": "hidden_size", "layers": "num_hidden_layers", "state": "state_size", "conv_kernel": "conv_kernel",
        "vocab": "vocab_size",
    }, {"d": 128, "layers": 2, "state": 8, "conv_kernel": 3, "vocab": 512}, recipe="mamba-huggingface"),
    "mamba2-2.7b": Model("Mamba2ForCausalLM", 2_702_599_680, {
        "hidden_size": 2560, "num_heads": 80, "n_groups": 1, "num_hidden_layers": 64, "vocab_size": 50288,
        "tie_word_embeddings": True,
    }, {
        "d": "hidden_size", "heads": "num_heads", "head_dim": "head_dim", "layers": "num_hidden_layers",
        "groups": "n_groups", "state": "state_size", "conv_kernel": "conv_kernel", "vocab": "vocab_size",
    }, {"d": 128, "heads": 32, "head_dim": 8, "layers": 2, "groups": 2, "state": 16, "conv_kernel": 3,
        "vocab": 512}, recipe="mamba2-huggingface"),
    "vit-l-16": Model("ViTForImageClassification", 304_326_632, {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
        "num_labels": 1000,
    }, {
        "d": "hidden_size", "ff": "intermediate_size", "layers": "num_hidden_layers", "image": "image_size",
        "patch": "patch_size", "channels": "num_channels", "classes": "num_labels",
    }, {"d": 128, "ff": 192, "layers": 2, "image": 32, "patch": 4, "channels": 2, "classes": 50}),
    "t5-11b": Model("T5ForConditionalGeneration", 11_307_321_344, {
        "d_model": 1024, "d_kv": 128, "d_ff": 65536, "num_layers": 24, "num_heads": 128,
    }, {
        "d": "d_model", "ff": "d_ff", "layers": "num_layers", "heads": "num_heads", "head_dim": "d_kv",
        "buckets": "relative_attention_num_buckets", "vocab": "vocab_size",
    }, {"d": 96, "ff": 160, "layers": 2, "heads": 8, "head_dim": 24, "buckets": 16, "vocab": 512}),
    "clip-vit-b-32": Model("CLIPModel", 151_277_313, {}, {
        "d": "projection_dim",
        **{f"text_{name}": f"text_config.{field}" for name, field in TOWER.items()}, "vocab": "text_config.vocab_size",
        "positions": "text_config.max_position_embeddings",
        **{f"vision_{name}": f"vision_config.{field}" for name, field in TOWER.items()},
        "image": "vision_config.image_size", "patch": "vision_config.patch_size",
        "channels": "vision_config.num_channels",
    }, {"d": 96, "text_width": 64, "text_ff": 128, "text_layers": 2, "text_heads": 4, "vocab": 512, "positions": 40,
        "vision_width": 96, "vision_ff": 160, "vision_layers": 3, "vision_heads": 4, "image": 32, "patch": 4,
        "channels": 2}),
    "convnext-tiny-224": Model("ConvNextForImageClassification", 28_589_128, {"num_labels": 1000}, {
        "widths": "hidden_sizes", "depths": "depths", "image": "image_size", "patch": "patch_size",
        "channels": "num_channels", "classes": "num_labels",
    }, {"widths": [32, 48, 64, 80], "depths": [1, 2, 1, 2], "image": 32, "patch": 4, "channels": 2, "classes": 50}),
    "jamba-v0.1": Model("JambaForCausalLM", 51_570_323_328, {}, {
        **{name: field for name, field in LLAMA.items() if name != "head_dim"}, "experts": "num_experts",
        "attn_period": "attn_layer_period", "attn_offset": "attn_layer_offset", "expert_period": "expert_layer_period",
        "expert_offset": "expert_layer_offset", "state": "mamba_d_state", "conv_kernel": "mamba_d_conv",
    }, {**LLAMA_TINY, "layers": 4, "experts": 4, "attn_period": 3, "attn_offset": 2, "expert_offset": 0, "state": 8,
        "conv_kernel": 3}),
    "stable-diffusion-1.5-unet": Diffuser("UNet2DConditionModel", 859_520_964, {"cross_attention_dim": 768}, {
        "widths": "block_out_channels", "resnets": "layers_per_block", "context": "cross_attention_dim",
        "heads": "attention_head_dim", "groups": "norm_num_groups", "image": "sample_size",
    }, {"widths": [16, 24, 32, 40], "resnets": 1, "context": 48, "heads": 4, "groups": 8, "image": 16}),
    "dit-xl-2": Diffuser("DiTTransformer2DModel", 749_826_464, {"out_channels": 8}, {
        "heads": "num_attention_heads", "head_dim": "attention_head_dim", "layers": "num_layers",
        "image": "sample_size", "patch": "patch_size", "classes": "num_embeds_ada_norm", "channels": "in_channels",
    }, {"heads": 4, "head_dim": 12, "layers": 2, "image": 16, "patch": 4, "classes": 30}),
    "llama3.1-8b-lora": Adapters("LlamaForCausalLM", 41_943_040, {**LLAMA_8B, "vocab_size": 128256}, {
        **LLAMA, "rank": "r"}, {**LLAMA_TINY, "rank": 8}),
    "openelm-270m": OpenElm("OpenELMForCausalLM", 271_527_168, {
        "model_type": "openelm", "model_dim": 1280, "head_dim": 64, "num_transformer_layers": 16, "vocab_size": 32000,
        "ffn_dim_divisor": 256, "num_query_heads": [12] * 5 + [16] * 7 + [20] * 4,
        "num_kv_heads": [3] * 5 + [4] * 7 + [5] * 4,
        "ffn_multipliers": [round(multiplier, 2) for multiplier in np.linspace(0.5, 4.0, 16).tolist()],
    }, {
        "d": "model_dim", "head_dim": "head_dim", "layers": "num_transformer_layers", "heads": "num_query_heads",
        "kv_heads": "num_kv_heads", "ff_multipliers": "ffn_multipliers", "ff_divisor": "ffn_dim_divisor",
        "vocab": "vocab_size",
    }, {"d": 96, "head_dim": 16, "layers": 3, "heads": [2, 4, 6], "kv_heads": [1, 2, 3],
        "ff_multipliers": [0.5, 1.4, 2.7], "ff_divisor": 64, "vocab": 256}),
    "bert-large": Model("BertForPreTraining", 336_226_108, {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    }, {
        "d": "hidden_size", "ff": "intermediate_size", "layers": "num_hidden_layers", "vocab": "vocab_size",
        "positions": "max_position_embeddings", "types": "type_vocab_size",
    }, {"d": 144, "ff": 192, "layers": 2, "vocab": 509, "positions": 64, "types": 3}),
}
# Tests of llama3.1-8b cover the shapes and values of these.
SAME_AS_ANOTHER = {"llama3.1-70b", "llama3.1-405b"}


def spec_of(name):
    return ROOT / f"configs/{name}.yaml"


def with_recipe(name, recipe, folder):
    """Writes a spec that takes its initializers from another recipe."""
    files = [os.path.relpath(path, folder) for path in (spec_of(name), ROOT / f"configs/recipes/{recipe}.yaml")]
    spec = folder / "with_recipe.yaml"
    spec.write_text(json.dumps({"shardinit": 1, "include": files}))
    return spec


def whole_one(spec):
    """Returns --mesh and its value for one rank that holds everything."""
    axes = run_json("plan", spec)["mesh"]["axes"]
    return "--mesh", f"{axes[0]}=1"


def sets_of(values):
    return itertools.chain.from_iterable(("--set", f"{name}={value}") for name, value in values.items())


def test_every_config_is_tested():
    assert {path.stem for path in CONFIGS} - set(MODELS) == {"dtypes", "expressions", "llama3-tiny"}


@pytest.mark.parametrize("name", MODELS)
def test_specs_have_the_names_and_shapes_of_models(name):
    model, spec = MODELS[name], spec_of(name)
    with torch.device("meta"):
        made = model.make()
    state, buffers = model.state(made), model.buffers(made)
    plan = run_json("plan", spec, "--rank", 0, *whole_one(spec))
    assert {box["path"]: box["global_shape"] for box in plan["boxes"]} == \
        {path: list(tensor.shape) for path, tensor in state.items()}
    assert plan["parameters"] == model.parameters == \
        sum(tensor.numel() for path, tensor in state.items() if path not in buffers)


@pytest.mark.parametrize("name", sorted(set(MODELS) - SAME_AS_ANOTHER))
def test_specs_have_the_values_of_constructors(name, tmp_path):
    """Compares a spec's values with three models from the constructor, with different seeds. Values that are equal in
    all three are not random, and must be equal here; random values must have the same distribution, tensor by
    tensor."""
    model, spec = MODELS[name], spec_of(name)
    if model.recipe:
        spec = with_recipe(name, model.recipe, tmp_path)
    sets = {"dtype": "f32", **{f"vars.{variable}": value for variable, value in model.tiny.items()}}
    out = tmp_path / "out"
    run_ok("gen", spec, "-o", out, *whole_one(spec), *sets_of(sets))
    checkpoint = shardinit.open(out)
    states = [model.make_tiny(seed) for seed in range(3)]
    assert set(checkpoint.tensors) == set(states[0])
    for path in checkpoint.tensors:
        made = checkpoint.read(path)
        eager = np.stack([state[path].numpy() for state in states])
        assert made.shape == eager.shape[1:], path
        fixed = (eager == eager[0]).all(axis=0)
        # Logarithms may differ in the last bit.
        np.testing.assert_array_max_ulp(made[fixed], eager[0][fixed], 1)
        if fixed.all():
            continue
        check_distribution(made[~fixed], eager[:, ~fixed], path)


def check_distribution(made, eager, path):
    made, eager = made.ravel().astype(np.float64), eager.ravel().astype(np.float64)
    assert len(np.unique(made)) > 0.95 * made.size, path  # draws have 24 bits, so a few are equal
    # Five standard errors of the difference, for tails at most as wide as a normal distribution's.
    error = eager.std() * math.sqrt(1 / made.size + 1 / eager.size)
    assert abs(made.mean() - eager.mean()) < 5 * error, path
    assert abs(made.std() - eager.std()) < 5 * error / math.sqrt(2), path
    assert scipy.stats.ks_2samp(made, eager).pvalue > 1e-6, path


# Settings for tiny models with so few experts; other models use the published ones.
TINY_CONFIG = {"deepseek-v3": {"n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}}


def assert_bits(state, spec, sets):
    """Asserts that every tensor has the spec's bits."""
    with shardinit.open_spec(spec, set=[f"{key}={value}" for key, value in sets.items()],
                             mesh=whole_one(spec)[1]) as opened:
        assert state.keys() == opened.tensors.keys()
        for path, tensor in state.items():
            words = tensor.contiguous().view(getattr(torch, f"uint{8 * tensor.element_size()}")).numpy()
            assert (words == bits_of(opened.generate(path))).all(), path


OTHERS = {name for name, model in MODELS.items() if type(model) is not Model}


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_frameworks_load_exports(name, tmp_path):
    model, spec, out = MODELS[name], spec_of(name), tmp_path / "export"
    sets = {f"vars.{variable}": value for variable, value in model.tiny.items()}
    size = "100KB" if isinstance(model, Diffuser) else "1GB"
    run_ok("export", spec, "--to", "safetensors", "-o", out, "--max-shard-size", size, *whole_one(spec), *sets_of(sets))
    assert_bits(model.load(out), spec, sets)


@pytest.mark.parametrize("name", sorted(set(MODELS) - SAME_AS_ANOTHER - OTHERS))
def test_from_pretrained(name, tmp_path):
    """Transformers loads an export without other files: config.json gives the model, all keys and bits match, and the
    loss equals the constructor's. A model that Transformers saves matches the spec."""
    model, spec, out = MODELS[name], spec_of(name), tmp_path / "export"
    sets = {f"vars.{variable}": value for variable, value in model.tiny.items()}
    sets |= {f"config.{field}": value for field, value in TINY_CONFIG.get(name, {}).items()}
    if model.recipe:
        spec = with_recipe(name, model.recipe, tmp_path)
    run_ok("export", spec, "--to", "safetensors", "-o", out, "--max-shard-size", "300KB", *whole_one(spec),
           *sets_of(sets))
    assert (out / "model.safetensors.index.json").exists()
    cls = getattr(transformers, model.of)
    made, info = cls.from_pretrained(out, dtype="auto", output_loading_info=True)
    assert not any(info.values()), info
    said = json.loads((out / "config.json").read_text())
    assert made.config.dtype == made.dtype == getattr(torch, said["dtype"])
    vocabulary = said.get("vocab_size", math.inf)
    assert all(id is None or id < vocabulary for key, id in said.items() if key.endswith("_token_id"))
    for field, value in {**model.config, **model.tiny_config(), "architectures": [model.of]}.items():
        assert operator.attrgetter(field)(made.config) == value, field
    assert_bits(state_of(made), spec, sets)
    if "LM" in model.of:
        torch.manual_seed(0)
        loss, eager = compute_loss(made.float()), compute_loss(cls(made.config).float())
        assert abs(loss / eager - 1) < 0.05
        # Mamba's embedding table, which is also its head, has a standard deviation of 0.1.
        assert "Mamba" in model.of or abs(loss - math.log(made.config.vocab_size)) < 0.2
    cls.from_pretrained(out, dtype="auto").save_pretrained(tmp_path / "saved")
    run_ok("verify", tmp_path / "saved", "--spec", spec, *whole_one(spec), *sets_of(sets))


def test_deepseek_adds_a_multi_token_prediction_layer():
    """With `vars.mtp=1` the spec adds layer 61, without its copies of the embedding and the head, which are the model's
    own."""
    plan = run_json("plan", spec_of("deepseek-v3"), "--set", "vars.mtp=1")
    # The routers of 59 layers have 256 biases each, which are buffers.
    assert plan["parameters"] == 684_489_845_504 - 2 * 129280 * 7168 - 59 * 256


# Expected initializers of recipes for decoders: for each name, the tensor in the second of three layers, written down
# from the sources that the recipes cite.
D, FF, HEAD, EXPERTS, EXPERT_FF, L, LAYER = 64, 96, 16, 4, 32, 3, 1
NAMES = {"linear": [FF, D], "embedding": [128, D], "positions": [32, D], "query": [80, D], "key": [48, D],
         "value": [48, D], "attention_out": [D, 80], "mlp_gate": [FF, D], "mlp_up": [FF, D], "mlp_down": [D, FF],
         "router": [EXPERTS, D], "expert_gate_up": [EXPERTS, 2 * EXPERT_FF, D], "expert_down": [EXPERTS, D, EXPERT_FF],
         "head": [128, D], "norm": [D], "bias": [D]}


def normal_init(std):
    return {"normal": {"mean": 0, "std": std}}


def truncated_init(std, cut=3):
    return {"truncated_normal": {"mean": 0, "std": std, "low": -cut, "high": cut}}


def fan_in_scaling(fan):
    """Returns variance_scaling with fan_in, truncated at two standard deviations."""
    return truncated_init(math.sqrt(1 / fan) / 0.87962566103423978, 2)


DEPTH, BY_LAYER = math.sqrt(2 * L), math.sqrt(2 * (LAYER + 1))
TITAN = truncated_init(0.02 / BY_LAYER, 2 / (0.02 / BY_LAYER))
DECODERS = {  # Missing names are like `linear`, but norms are 1 and biases 0.
    "huggingface": {"linear": normal_init(0.02)},
    "gpt2": {"linear": normal_init(0.02), "attention_out": normal_init(0.02 / DEPTH),
             "mlp_down": normal_init(0.02 / DEPTH)},
    "gpt2-openai": {"linear": normal_init(0.02), "positions": normal_init(0.01)},
    "gpt-neox": {"linear": normal_init(math.sqrt(2 / (5 * D))), "attention_out": normal_init(2 / L / math.sqrt(D)),
                 "mlp_down": normal_init(2 / L / math.sqrt(D))},
    "torchtitan": {
        "linear": truncated_init(0.02, 2 / 0.02), "embedding": normal_init(1), "attention_out": TITAN, "mlp_up": TITAN,
        "mlp_down": TITAN,
        "router": TITAN, "expert_gate_up": {"expr": {"text": "normal() * where(i1 < 32, 0.02, 0.01)"}},
        "expert_down": TITAN, "head": truncated_init(D**-0.5)},
    "maxtext": {
        "linear": fan_in_scaling(D), "embedding": normal_init(D**-0.5), "positions": normal_init(D**-0.5),
        "query": normal_init(D**-0.5 / HEAD**0.5),
        "key": normal_init(D**-0.5), "value": normal_init(D**-0.5), "attention_out": normal_init(80**-0.5),
        "mlp_down": fan_in_scaling(FF),
        "expert_gate_up": fan_in_scaling(EXPERTS * EXPERT_FF), "expert_down": fan_in_scaling(EXPERTS * D)},
    "megatron": {"linear": normal_init(0.02),
                 **dict.fromkeys(["attention_out", "mlp_down", "expert_down"], normal_init(0.02 / DEPTH))},
    "mup": {
        "linear": normal_init(0.02 / 2),
        **dict.fromkeys(["embedding", "positions", "router", "head"], normal_init(0.02))},
    "megatron-mup": {
        "linear": normal_init(0.02 / 2), "embedding": normal_init(0.02), "positions": normal_init(0.02),
        "head": normal_init(0.02),
        **dict.fromkeys(["attention_out", "mlp_down", "expert_down"], normal_init(0.02 / DEPTH / 2))},
    "olmo-mitchell": {
        "linear": truncated_init(D**-0.5), "attention_out": truncated_init(1 / math.sqrt(2 * D * (LAYER + 1))),
        "mlp_down": truncated_init(1 / math.sqrt(2 * FF * (LAYER + 1))),
        "expert_down": truncated_init(1 / math.sqrt(2 * EXPERT_FF * (LAYER + 1)))},
    "olmo-full-megatron": {
        "linear": truncated_init(0.02), "head": truncated_init(D**-0.5),
        **dict.fromkeys(["attention_out", "mlp_down", "expert_down"], truncated_init(0.02 / DEPTH))},
    "olmo-core": {"linear": truncated_init(0.02)},
    "olmo-core-llama": {
        "linear": truncated_init(0.02), "embedding": normal_init(1), "head": truncated_init(D**-0.5),
        **dict.fromkeys(["attention_out", "mlp_up", "mlp_down", "router", "expert_gate_up", "expert_down"],
                        truncated_init(0.02 / DEPTH))},
    "olmo-core-llama-depth": {
        "linear": truncated_init(0.02), "embedding": normal_init(1), "head": truncated_init(D**-0.5),
        **dict.fromkeys(["attention_out", "mlp_up", "mlp_down", "router", "expert_gate_up", "expert_down"],
                        truncated_init(0.02 / BY_LAYER))},
    "olmo-core-normalized": {
        "linear": truncated_init(0.02), "embedding": normal_init(D**-0.5),
        **dict.fromkeys(["query", "key", "value", "mlp_gate", "mlp_up", "head"], truncated_init(D**-0.5)),
        **dict.fromkeys(["attention_out", "mlp_down"], truncated_init(D**-0.5 / DEPTH))},
}


def test_every_recipe_is_tested():
    used = set(DECODERS) | {model.recipe for model in MODELS.values()}
    for path in CONFIGS:
        include = yaml.safe_load(path.read_text()).get("include", [])
        used |= {pathlib.Path(name).stem for name in ([include] if isinstance(include, str) else include)}
    of_models = "".join((ROOT / f"tests/python/test_recipes_of_{name}.py").read_text()
                        for name in ("models", "experts"))
    used |= {path.stem for path in RECIPES if f'"recipes/{path.stem}"' in of_models}
    assert {path.stem for path in RECIPES} <= used


@pytest.mark.parametrize("recipe", DECODERS)
def test_recipes_give_the_documented_distributions(recipe, tmp_path):
    variables = {"d": D, "ff": FF, "head_dim": HEAD, "experts": EXPERTS, "expert_ff": EXPERT_FF, "layers": L}
    if "mup" in recipe:
        variables["base_d"] = D // 4
    members = {name: {"shape": shape, "init": name, **({"batch_axis": 0} if len(shape) == 3 else {})}
               for name, shape in NAMES.items()}
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps({
        "shardinit": 1, "include": os.path.relpath(ROOT / f"configs/recipes/{recipe}.yaml", tmp_path),
        "name": "recipe", "dtype": "f32", "fans": "out_in", "vars": variables,
        "modules": {"layers": {"repeat": {"layer": "layers"}, **members}}}))
    run_ok("gen", spec, "-o", tmp_path / "out")
    found = {tensor["path"]: tensor["init"]
             for tensor in json.loads((tmp_path / "out/plan.json").read_text())["tensors"]}
    for name in NAMES:
        constant = {"norm": {"constant": {"value": 1}}, "bias": {"constant": {"value": 0}}}
        (kind, values), = {**constant, **DECODERS[recipe]}.get(name, DECODERS[recipe]["linear"]).items()
        if kind != "expr":
            values = pytest.approx(values, rel=1e-12)
        assert found[f"layers.{LAYER}.{name}"] == {kind: values}, name


def explained(spec, path, *arguments):
    """Returns the multipliers that `explain` reports for a tensor, by name, and all its facts."""
    facts = run_json("explain", spec, path, *arguments)
    return {each["name"]: float(each["value"]) for each in facts.get("multipliers", [])}, facts


def of_width(heads):
    """Returns variables of a decoder with the given number of heads, which have 16 dimensions at every width."""
    return {"d": 16 * heads, "ff": 40 * heads, "heads": heads, "kv_heads": heads // 2, "head_dim": 16, "layers": 2,
            "vocab": 512}


@pytest.mark.parametrize("name", ["llama3.1-8b", "qwen2.5-72b", "mixtral-8x7b"])
def test_mup_recipe_matches_the_mup_package(name, tmp_path, monkeypatch):
    """The recipe matches the package `mup` for every matrix, on Transformers models of three widths: values, and
    multipliers of the optimizer and the head."""
    mup, model = client_of("mup"), MODELS[name]
    drawn = []
    monkeypatch.setattr("mup.init._no_grad_normal_", lambda tensor, mean, std: drawn.append((mean, std)))

    def made(heads):
        with torch.device("meta"):
            made = model.make(**{model.variables[key]: value for key, value in of_width(heads).items()})
            made.lm_head = mup.MuReadout(16 * heads, 512, bias=False)
        return made

    wide = mup.set_base_shapes(made(16), made(4), delta=made(6))
    groups = mup.MuAdamW(wide.parameters(), lr=1.0, weight_decay=1.0).param_groups
    of_group = {id(parameter): group for group in groups for parameter in group["params"]}
    spec = with_recipe(name, "mup", tmp_path)
    sets = {f"vars.{key}": value for key, value in {**of_width(16), "base_d": 64}.items()}
    plan = {box["path"] for box in run_json("plan", spec, "--rank", 0, *whole_one(spec), *sets_of(sets))["boxes"]}
    parameters = dict(wide.named_parameters())
    assert plan == set(parameters)
    for path, parameter in parameters.items():
        if "layers.1." in path:
            continue
        multipliers, facts = explained(spec, path, *sets_of(sets))
        group = of_group[id(parameter)]
        assert multipliers.pop("learning_rate", 1) == group["lr"], path
        assert multipliers.pop("weight_decay", 1) == group["weight_decay"], path
        output = {"output": wide.lm_head.output_mult / wide.lm_head.width_mult()} if parameter.infshape.ninf() == 1 else {}
        assert multipliers == (output if path == "lm_head.weight" or "mlp.gate.weight" in path else {}), path
        if parameter.dim() > 1:
            mup.init.normal_(parameter, std=0.02)
            arguments = {each["name"]: float(each["value"]) for each in facts["arguments"]}
            assert arguments == {"mean": drawn[-1][0], "std": pytest.approx(drawn[-1][1], rel=1e-12)}, path


def test_megatron_mup_multipliers_match_megatron(tmp_path):
    """Multipliers match transformer_config.py and get_mup_config_overrides of Megatron-core, whose releases have no muP
    yet."""
    spec = with_recipe("llama3.1-8b", "megatron-mup", tmp_path)
    adam = {"learning_rate": 0.25, "adam_eps": 0.25}
    layer = "model.layers.0."
    for path, expected in {
            "model.embed_tokens.weight": {}, "lm_head.weight": {"output": 0.25, **adam},
            layer + "self_attn.q_proj.weight": adam, layer + "self_attn.k_proj.weight": adam,
            layer + "self_attn.o_proj.weight": adam, layer + "mlp.down_proj.weight": adam,
            layer + "input_layernorm.weight": {}}.items():
        assert explained(spec, path, "--set", "vars.base_d=1024")[0] == expected, path


@pytest.mark.parametrize("name, distribution, shape, in_axis, out_axis, divisor", [
    ("embedding", "normal", (128, D), -2, 0, 1),
    ("query", "normal", (D, 5, HEAD), (0,), (1, 2), math.sqrt(HEAD)),
    ("attention_out", "normal", (5, HEAD, D), (0, 1), (2,), 1),
    ("mlp_down", "truncated_normal", (FF, D), (0,), (1,), 1),
    ("expert_gate_up", "truncated_normal", (EXPERTS, D, EXPERT_FF), (0,), (1,), 1),
    ("expert_down", "truncated_normal", (EXPERTS, EXPERT_FF, D), (0,), (1,), 1),
])
def test_maxtext_recipe_matches_jax(name, distribution, shape, in_axis, out_axis, divisor):
    """The recipe's variance matches MaxText's own calls, with its shapes and axes."""
    jax = client_of("jax")
    draw = jax.nn.initializers.variance_scaling(1.0, "fan_in", distribution, in_axis, out_axis)
    drawn = np.stack([draw(jax.random.key(seed), shape) for seed in range(8)]) / divisor
    (kind, values), = DECODERS["maxtext"][name].items()
    std = values["std"] * (0.87962566103423978 if kind == "truncated_normal" else 1)
    assert abs(drawn.std() / std - 1) < 5 / math.sqrt(2 * drawn.size)


def compute_loss(model):
    tokens = torch.randint(0, model.config.vocab_size, (2, 128), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model.eval()(input_ids=tokens, labels=tokens).loss.item()


def test_initial_loss_equals_the_constructors(tmp_path):
    """The loss equals the loss with the constructor's weights; with all weights N(0, 1) it is about ten times
    higher."""
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=768, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=4, head_dim=32, vocab_size=8192)

    def constructor_loss(seed):
        torch.manual_seed(seed)
        return compute_loss(transformers.LlamaForCausalLM(config))

    def made_by(seed, **sets):
        folder = tmp_path / f"{seed}{len(sets)}"
        run_ok("gen", spec_of("llama3-tiny"), "-o", folder, *sets_of({"seed": seed, "dtype": "f32", **sets}))
        model = transformers.LlamaForCausalLM(config)
        shardinit.torch.load_into(model, folder)
        return compute_loss(model)

    eager = np.mean([constructor_loss(seed) for seed in range(3)])
    made = np.mean([made_by(seed) for seed in range(3)])
    normal = made_by(0, **{"init.linear": "{normal: {std: 1}}", "init.norm": "linear"})
    assert abs(made / eager - 1) < 0.01
    assert 5 < normal / eager < 20


# Mamba's own code ---------------------------------------------------------------
#
# PyTorch versions of mamba_ssm's constructors, since mamba_ssm cannot be installed without CUDA:
# modules/mamba_simple.py and mamba2.py, models/mixer_seq_simple.py (_init_weights).

MAMBA = {"d": 128, "d_inner": 256, "layers": 4, "state": 8, "conv_kernel": 4, "vocab": 512}
DT_MIN, DT_MAX = 0.001, 0.1


def dt_bias_of(size, floor):
    dt = torch.exp(torch.rand(size) * (math.log(DT_MAX) - math.log(DT_MIN)) + math.log(DT_MIN)).clamp(min=floor)
    return dt + torch.log(-torch.expm1(-dt))


def mamba_block(floor, dt_rank=12, dt_scale=1.0):
    d, inner, state, kernel = (MAMBA[name] for name in ("d", "d_inner", "state", "conv_kernel"))
    conv = torch.nn.Conv1d(inner, inner, kernel, groups=inner)
    dt_proj = torch.nn.Linear(dt_rank, inner)
    torch.nn.init.uniform_(dt_proj.weight, -dt_rank**-0.5 * dt_scale, dt_rank**-0.5 * dt_scale)
    return {
        "A_log": torch.log(torch.arange(1, state + 1, dtype=torch.float32)).repeat(inner, 1),
        "D": torch.ones(inner), "conv1d.weight": conv.weight, "conv1d.bias": conv.bias,
        "in_proj.weight": torch.nn.Linear(d, 2 * inner, bias=False).weight,
        "x_proj.weight": torch.nn.Linear(inner, dt_rank + 2 * state, bias=False).weight,
        "dt_proj.weight": dt_proj.weight, "dt_proj.bias": dt_bias_of(inner, floor), **out_projection(d, inner)}


def mamba2_block(floor, heads=64, groups=2):
    d, inner, state, kernel = (MAMBA[name] for name in ("d", "d_inner", "state", "conv_kernel"))
    channels = inner + 2 * groups * state
    conv = torch.nn.Conv1d(channels, channels, kernel, groups=channels)
    return {
        "A_log": torch.log(torch.empty(heads).uniform_(1, 16)), "D": torch.ones(heads),
        "dt_bias": dt_bias_of(heads, floor), "conv1d.weight": conv.weight, "conv1d.bias": conv.bias,
        "in_proj.weight": torch.nn.Linear(d, inner + channels + heads, bias=False).weight,
        "norm.weight": torch.ones(inner), **out_projection(d, inner)}


def out_projection(d, inner, residuals_per_layer=1):
    weight = torch.empty(d, inner)
    torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    return {"out_proj.weight": weight / math.sqrt(residuals_per_layer * MAMBA["layers"])}


BLOCKS = {  # spec → its block, its bias that is an inverse softplus, and variables in addition to MAMBA
    "mamba-2.8b": (mamba_block, "dt_proj.bias", {"dt_rank": 12}),
    "mamba2-2.7b": (mamba2_block, "dt_bias", {"head_dim": 4, "groups": 2})}


@pytest.mark.parametrize("floor", [1e-4, 0.01])
@pytest.mark.parametrize("name", BLOCKS)
def test_mamba_recipe_matches_mambas_code(name, floor):
    block, dt_bias, variables = BLOCKS[name]
    sets = {**MAMBA, **variables, "dt_init_floor": floor}
    torch.manual_seed(1)
    with torch.no_grad():
        blocks = [block(floor) for _ in range(3 * MAMBA["layers"])]
    eager = {path: np.stack([b[path].detach().numpy() for b in blocks]) for path in blocks[0]}
    with shardinit.open_spec(spec_of(name), set=[f"vars.{key}={value}" for key, value in sets.items()],
                             mesh=whole_one(spec_of(name))[1]) as spec:
        inside = [f"backbone.layers.{i}." for i in range(MAMBA["layers"])]
        paths = {path for path in spec.tensors if path.startswith(inside[0] + "mixer.")}
        assert paths == {inside[0] + "mixer." + path for path in eager}
        made = {path: np.stack([spec.generate(f"{i}mixer.{path}") for i in inside]) for path in eager}
        embedding = spec.generate("backbone.embeddings.weight")
        assert all((spec.generate(i + "norm.weight") == 1).all() for i in inside)
    check_distribution(embedding, np.random.default_rng(0).normal(0, 0.02, 100_000), "embedding")
    for path, values in made.items():
        assert values.dtype == np.float32 and values.shape[1:] == eager[path].shape[1:]
        if (eager[path] == eager[path][0]).all():
            assert all(np.testing.assert_array_max_ulp(layer, eager[path][0], 1) is not None for layer in values)
        elif path != dt_bias or floor < DT_MIN:
            check_distribution(values, eager[path], path)
    # The softplus of the bias is the step, which is log-uniform except at the floor.
    step = np.log1p(np.exp(made[dt_bias].astype(np.float64))).ravel()
    lowest = max(floor, DT_MIN)
    assert lowest * (1 - 1e-5) < step.min() and step.max() < DT_MAX * (1 + 1e-5)
    floored = step < floor * (1 + 1e-5)
    share = max(0, math.log(floor / DT_MIN) / math.log(DT_MAX / DT_MIN))
    assert abs(floored.mean() - share) <= 5 * math.sqrt(share * (1 - share) / step.size)
    log_uniform = scipy.stats.uniform(math.log(lowest), math.log(DT_MAX / lowest))
    assert scipy.stats.kstest(np.log(step[~floored]), log_uniform.cdf).pvalue > 1e-6
    # The largest weights are close to the bound.
    bound = 1 / math.sqrt(MAMBA["d_inner"] * MAMBA["layers"])
    assert 0.999 * bound < np.abs(made["out_proj.weight"]).max() <= bound * (1 + 1e-6)
