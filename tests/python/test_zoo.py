"""configs/ against Transformers' own classes, made here from the published
configurations: all names, shapes and buffers; of tiny models, every tensor's values
against those that the class's constructor draws; and the loss before the first step."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import scipy.stats

from clients import Client
from support import CONFIGS, Json, Ok, ROOT

torch = Client("torch")
transformers = Client("transformers")

import shardinit


@dataclasses.dataclass
class Model:
    """A spec of configs/ and what it must equal."""

    of: str  # A class of Transformers.
    parameters: int  # As published, or counted from the published configuration.
    config: dict  # The published configuration, where it differs from the defaults.
    variables: dict  # The spec's variables → fields of the configuration.
    tiny: dict  # Values of these variables in a tiny model.

    def Make(self, **changes):
        model = getattr(transformers, self.of)
        return model(model.config_class(**{**self.config, **changes}))

    def Tiny(self, seed):
        torch.manual_seed(seed)
        return State(self.Make(**{self.variables[name]: value for name, value in self.tiny.items()}))


def State(model):
    """path → tensor of what a checkpoint holds: a tied one once."""
    tied = set(model._tied_weights_keys or ()) if model.config.tie_word_embeddings else set()
    return {path: tensor for path, tensor in model.state_dict().items() if path not in tied}


LLAMA = {"d": "hidden_size", "ff": "intermediate_size", "layers": "num_hidden_layers",
         "heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim",
         "vocab": "vocab_size"}
LLAMA_TINY = {"d": 128, "ff": 192, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 32, "vocab": 512}


def Llama(of, parameters, config, variables={}, tiny={}):
    config = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
              "num_attention_heads": 32, "num_key_value_heads": 8, **config}
    return Model(of, parameters, config, {**LLAMA, **variables}, {**LLAMA_TINY, **tiny})


MODELS = {
    "llama3.1-8b": Llama("LlamaForCausalLM", 8_030_261_248, {"vocab_size": 128256}),
    "llama3.1-70b": Llama("LlamaForCausalLM", 70_553_706_496, {
        "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672,
        "num_hidden_layers": 80, "num_attention_heads": 64}),
    "llama3.1-405b": Llama("LlamaForCausalLM", 405_853_388_800, {
        "vocab_size": 128256, "hidden_size": 16384, "intermediate_size": 53248,
        "num_hidden_layers": 126, "num_attention_heads": 128}),
    "mistral-7b-v0.3": Llama("MistralForCausalLM", 7_248_023_552, {"vocab_size": 32768}),
    "qwen2.5-72b": Llama("Qwen2ForCausalLM", 72_706_203_648, {
        "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568,
        "num_hidden_layers": 80, "num_attention_heads": 64}),
    "mixtral-8x7b": Llama("MixtralForCausalLM", 46_702_792_704, {}, {"experts": "num_local_experts"}, {"experts": 4}),
}
# Of these shape and values are tested as those of llama3.1-8b are.
SAME_AS_ANOTHER = {"llama3.1-70b", "llama3.1-405b"}


def Spec(name):
    return ROOT / f"configs/{name}.yaml"


def Whole(spec):
    """--mesh and its value, for one rank that holds everything."""
    axes = Json("plan", spec)["mesh"]["axes"]
    return "--mesh", f"{axes[0]}=1"


def Sets(values):
    return itertools.chain.from_iterable(("--set", f"{name}={value}") for name, value in values.items())


def test_every_config_is_tested():
    assert {path.stem for path in CONFIGS} - set(MODELS) == {"expressions", "llama3-tiny"}


@pytest.mark.parametrize("name", MODELS)
def test_names_and_shapes(name):
    model, spec = MODELS[name], Spec(name)
    with torch.device("meta"):
        state = State(model.Make())
    plan = Json("plan", spec, "--rank", 0, *Whole(spec))
    assert {box["path"]: box["global_shape"] for box in plan["boxes"]} == \
        {path: list(tensor.shape) for path, tensor in state.items()}
    assert plan["parameters"] == sum(tensor.numel() for tensor in state.values()) == model.parameters


@pytest.mark.parametrize("name", set(MODELS) - SAME_AS_ANOTHER)
def test_values(name, tmp_path):
    """Three models from the constructor, with seeds of their own, and one from the spec.
    What is equal in the three is not random, and is equal here; what is random has the
    same distribution, tensor by tensor."""
    model = MODELS[name]
    sets = {"dtype": "f32", **{f"vars.{variable}": value for variable, value in model.tiny.items()}}
    out = tmp_path / "out"
    Ok("gen", Spec(name), "-o", out, *Whole(Spec(name)), *Sets(sets))
    checkpoint = shardinit.open(out)
    states = [model.Tiny(seed) for seed in range(3)]
    assert set(checkpoint.tensors) == set(states[0])
    for path in checkpoint.tensors:
        made = checkpoint.read(path)
        eager = np.stack([state[path].numpy() for state in states])
        assert made.shape == eager.shape[1:], path
        fixed = (eager == eager[0]).all(axis=0)
        # A logarithm may differ in its last bit.
        np.testing.assert_array_max_ulp(made[fixed], eager[0][fixed], 1)
        if fixed.all():
            continue
        made, eager = made[~fixed].astype(np.float64), eager[:, ~fixed].ravel().astype(np.float64)
        assert len(np.unique(made)) > 0.99 * made.size, path
        # Five standard errors of the difference, for what is as wide-tailed as a normal
        # distribution or less.
        error = eager.std() * math.sqrt(1 / made.size + 1 / eager.size)
        assert abs(made.mean() - eager.mean()) < 5 * error, path
        assert abs(made.std() - eager.std()) < 5 * error / math.sqrt(2), path
        assert scipy.stats.ks_2samp(made, eager).pvalue > 1e-6, path


def Loss(model):
    tokens = torch.randint(0, model.config.vocab_size, (4, 128), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model.eval()(input_ids=tokens, labels=tokens).loss.item()


def test_loss_before_the_first_step(tmp_path):
    """As that of the constructor's weights; of weights that are all N(0, 1) it is about ten times it."""
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=768, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=4, head_dim=32, vocab_size=8192)

    def Eager(seed):
        torch.manual_seed(seed)
        return Loss(transformers.LlamaForCausalLM(config))

    def Made(seed, **sets):
        folder = tmp_path / f"{seed}{len(sets)}"
        Ok("gen", Spec("llama3-tiny"), "-o", folder, *Sets({"seed": seed, "dtype": "f32", **sets}))
        model = transformers.LlamaForCausalLM(config)
        shardinit.torch.load_into(model, folder)
        return Loss(model)

    eager = np.mean([Eager(seed) for seed in range(4)])
    made = np.mean([Made(seed) for seed in range(4)])
    normal = Made(0, **{"init.linear": "{normal: {std: 1}}", "init.norm": "linear"})
    assert abs(made / eager - 1) < 0.01
    assert 5 < normal / eager < 20
