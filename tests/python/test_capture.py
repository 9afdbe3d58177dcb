"""Compares specs captured from PyTorch with their constructors: names, shapes, element types; the bits of values that
are not random; and the distributions of random values."""

import io
import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
from clients import LIBRARY, PACKAGE, client_of
from support import CLEAN, ROOT, run_json, run_ok, run_tool

torch = client_of("torch")
transformers = client_of("transformers")

import shardinit
import shardinit.capture
from shardinit._dtypes import name_of
from shardinit.capture._command import main
from torch import nn

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
TEXT = {**SIZES, "vocab_size": 120}


def class_of(name, config, **values):
    return lambda: getattr(transformers, name)(getattr(transformers, config)(**values))


class Followed(nn.Module):
    """A module that changes numbers after it draws them, as constructors do."""

    def __init__(self):
        super().__init__()
        self.scaled = nn.Parameter(torch.randn(40, 50) * 0.1 + 0.5)
        self.transposed = nn.Parameter(torch.rand(50, 40).t().contiguous())
        self.joined = nn.Parameter(torch.cat([torch.randn(20, 30), torch.zeros(2, 30), torch.rand(10, 30)]))
        both = torch.randn(60, 40)
        self.upper, self.lower = nn.Parameter(both[:20].clone()), nn.Parameter(both[20:].clone())
        self.cut = nn.Parameter(torch.empty(30, 40))
        nn.init.trunc_normal_(self.cut, std=0.02, a=-0.03, b=0.03)
        self.patched = nn.Parameter(torch.empty(30, 40))
        nn.init.trunc_normal_(self.patched, std=0.5)
        self.strided = nn.Parameter(torch.ones(8, 30))
        with torch.no_grad():
            self.patched[2:5].zero_()
            self.patched[:, 1] = 7
            self.strided[:, ::2].normal_(0, 0.1)
            self.strided[0].mul_(2)
        self.clamped = nn.Parameter(torch.randn(1000).clamp(-1, 0.5).abs() - 1)
        self.masked = nn.Parameter(torch.tril(torch.randn(40, 40)))
        self.counts = nn.Parameter(torch.randint(3, 9, (800,)), requires_grad=False)
        self.coins = nn.Parameter(torch.empty(900).bernoulli_(0.3))
        self.waits = nn.Parameter(torch.empty(900).exponential_(2.0))
        self.logs = nn.Parameter(torch.empty(900).log_normal_(0, 0.5))
        self.halves = nn.Parameter(torch.randn(40, 40).to(torch.float16))
        rates = [rate.item() for rate in torch.linspace(0, 0.1, 4)]
        self.rate = nn.Parameter(torch.full((3,), rates[2]))
        self.register_buffer("causal", torch.tril(torch.ones(9, 9, dtype=torch.bool)))
        self.register_buffer("places", torch.arange(10)[None])
        self.register_buffer("signs", torch.tensor([1.0, -1.5, 2.0]))
        self.register_buffer("negative_zero", torch.tensor([-0.0, 1.0])[1:])
        self.register_buffer("slopes", 2.0 ** -(torch.arange(1, 9) * 0.5))
        self.register_buffer("grid", torch.stack([torch.arange(6), torch.arange(6).flip(0)]))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(16, 16, 3), nn.GroupNorm(4, 16)) for _ in range(5))
        self.up = nn.ConvTranspose2d(16, 8, 3)
        self.prelu, self.bilinear = nn.PReLU(), nn.Bilinear(5, 6, 7)
        self.identity, self.dirac = nn.Parameter(torch.eye(5)), nn.Parameter(torch.empty(6, 6, 3))
        nn.init.dirac_(self.dirac)
        self.sparse, self.orthogonal = nn.Parameter(torch.empty(40, 30)), nn.Parameter(torch.empty(30, 40))
        nn.init.sparse_(self.sparse, 0.25, std=0.5)
        nn.init.orthogonal_(self.orthogonal, 2.0)
        for name in ("xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_"):
            parameter = nn.Parameter(torch.empty(30, 20))
            getattr(nn.init, name)(parameter)
            self.register_parameter(name, parameter)


class Normed(nn.Module):
    """A module with weight norms over all dimensions or all but one, of equal layers, and of a bias."""

    def __init__(self):
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.layers = nn.ModuleList(norm(nn.Conv1d(8, 24, 3), dim=2) for _ in range(4))
        self.out = norm(nn.Linear(40, 30))
        self.whole = nn.utils.weight_norm(nn.utils.weight_norm(nn.Linear(50, 7), dim=None), "bias", dim=0)


MODELS = {
    "llama": class_of("LlamaForCausalLM", "LlamaConfig", **TEXT, num_key_value_heads=2),
    "llama in bf16": lambda: MODELS["llama"]().to(torch.bfloat16),
    "llama, tied": class_of("LlamaForCausalLM", "LlamaConfig", **TEXT, tie_word_embeddings=True),
    "gpt2": class_of("GPT2LMHeadModel", "GPT2Config", n_embd=64, n_layer=3, n_head=4, vocab_size=120, n_positions=70),
    "bert": class_of("BertForPreTraining", "BertConfig", **TEXT, max_position_embeddings=70),
    "vit": class_of("ViTForImageClassification", "ViTConfig", **SIZES, image_size=32, patch_size=8),
    "mixtral": class_of("MixtralForCausalLM", "MixtralConfig", **TEXT, num_key_value_heads=2, num_local_experts=4),
    "deepseek": class_of("DeepseekV3ForCausalLM", "DeepseekV3Config", **{**TEXT, "num_hidden_layers": 5},
                      moe_intermediate_size=32, n_routed_experts=8, q_lora_rank=16, kv_lora_rank=16,
                      num_key_value_heads=4),
    "t5": class_of("T5ForConditionalGeneration", "T5Config", d_model=64, d_kv=16, d_ff=96, num_layers=3, num_heads=4,
                vocab_size=120),
    "mamba": class_of("MambaForCausalLM", "MambaConfig", hidden_size=64, num_hidden_layers=3, vocab_size=120),
    "mamba2": class_of("Mamba2ForCausalLM", "Mamba2Config", hidden_size=64, num_hidden_layers=3, vocab_size=120,
                    num_heads=8, head_dim=16, state_size=16, n_groups=2),
    "gpt neo": class_of("GPTNeoForCausalLM", "GPTNeoConfig", hidden_size=64, num_layers=4, num_heads=4,
                     attention_types=[[["global", "local"], 2]], vocab_size=120, max_position_embeddings=64),
    "swin": class_of("SwinModel", "SwinConfig", image_size=32, patch_size=2, embed_dim=16, depths=[2, 2],
                  num_heads=[2, 4], window_size=4),
    "modernbert": class_of("ModernBertModel", "ModernBertConfig", **TEXT, pad_token_id=0),
    "resnet": class_of("ResNetModel", "ResNetConfig", embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2]),
    "transformer": lambda: nn.Transformer(32, 2, 3, 2, 64, batch_first=True),
    "copied layers": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), 3),
    "lstm": lambda: nn.LSTM(40, 30, 2, bidirectional=True),
    "gru": lambda: nn.GRU(40, 30),
    "attention": lambda: nn.MultiheadAttention(48, 4, kdim=32, vdim=40, add_bias_kv=True),
    "padding": lambda: nn.Embedding(50, 40, padding_idx=3),
    "norms of weights": lambda: Normed(),
    "net": Net,
    "followed": Followed,
}


def float64_arrays(state):
    """Returns path → elements, with floats as f64."""
    return {path: tensor.detach().double().numpy() if tensor.is_floating_point() else tensor.detach().numpy()
            for path, tensor in state.items()}


def state_tensors(model):
    return {path: tensor for path, tensor in model.state_dict().items() if isinstance(tensor, torch.Tensor)}


@pytest.fixture(scope="module", params=MODELS)
def pair(request, tmp_path_factory):
    """Returns (a spec's file, two states of the real constructor with different seeds)."""
    captured = shardinit.capture.torch(MODELS[request.param])
    spec = tmp_path_factory.mktemp("capture") / "spec.yaml"
    captured.write(spec)
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        states.append(state_tensors(MODELS[request.param]()))
    return spec, *states


def logical_tensors(spec):
    return {t["path"]: t for t in run_json("graph", spec)["logical"]}


def test_captured_names_shapes_and_dtypes_match_the_model(pair):
    spec, state, _ = pair
    run_ok("plan", spec)
    planned = {path: (t["global_shape"], t["dtype"]) for path, t in logical_tensors(spec).items()}
    assert planned == {path: (list(t.shape), name_of(t.dtype)) for path, t in state.items()}


@pytest.mark.parametrize("name", ["resnet", "deepseek", "bert", "net", "followed"])
def test_capture_marks_untrained_tensors_as_buffers(name):
    model = MODELS[name]()
    assert any(True for _ in model.buffers())
    with shardinit.capture.torch(MODELS[name]).spec() as spec:
        assert spec.parameters == sum(p.numel() for _, p in model.named_parameters(remove_duplicate=False))


# Random numbers that may be equal by chance.
DISCRETE = {"sparse", "clamped", "coins", "waits"}


def test_captured_weight_norms_are_norms_of_the_weights():
    captured = shardinit.capture.torch(Normed)
    line = '{shape: [1, 1, 3], init: {norms: {of: "layers.{layer}.parametrizations.weight.original1"}}}'
    assert f"    parametrizations.weight.original0: {line}\n" in captured.text
    with captured.spec() as spec:
        made = shardinit.torch.load_state_dict(spec)
    real = Normed()
    real.load_state_dict(made)
    for layer in real.layers:
        v = layer.parametrizations.weight.original1
        torch.testing.assert_close(layer.weight, v, rtol=3e-7, atol=0)
    torch.testing.assert_close(made["whole.weight_g"], made["whole.weight_v"].norm(), rtol=3e-7, atol=0)
    torch.testing.assert_close(made["whole.bias_g"], made["whole.bias_v"].abs(), rtol=0, atol=0)


@pytest.mark.parametrize("norm, then", [
    (lambda v: v.norm(dim=1), lambda v: v * 2), (lambda v: v.norm(dim=1, keepdim=True), lambda v: v.mul_(2)),
    (lambda v: torch.relu(v).norm(dim=1, keepdim=True), lambda v: v),
    (lambda v: v.norm(dim=1, keepdim=True) * torch.sign(v.sum(1, keepdim=True)), lambda v: v),
    (lambda v: v.clamp(-100, 3).norm(dim=1, keepdim=True), lambda v: v),
    (lambda v: v.norm(dim=1, keepdim=True) + 1e-3, lambda v: v),
    (lambda v: v.norm(1, dim=1, keepdim=True), lambda v: v),
    (lambda v: v[:10].norm(dim=1, keepdim=True), lambda v: v),
    (lambda v: v.norm(dim=1, keepdim=True).flip(0), lambda v: v),
])
def test_norms_of_a_tensor_outside_the_model_are_an_error(norm, then):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            weight = torch.randn(30, 20)
            self.scale = nn.Parameter(norm(weight))
            self.weight = nn.Parameter(then(weight))

    with pytest.raises(shardinit.CaptureError) as error:
        shardinit.capture.torch(Scaled)
    (path, why), = error.value.problems.items()  # The engine draws the numbers of only one of the two.
    other = {"scale": "weight", "weight": "scale"}[path]
    assert f" at {__file__}:" in why and (path == "scale" or f"are also in `{other}`" in why)


def test_captured_constants_have_the_models_bits(pair):
    """Tensors, or parts of them, that are equal for two seeds have the same bits in the spec."""
    spec, first, second = pair
    with shardinit.open_spec(spec) as opened:
        made = shardinit.torch.load_state_dict(opened)
    compared = 0
    for path, tensor in first.items():
        fixed = tensor == second[path]
        if fixed.all():
            assert torch.equal(made[path], tensor), path
            assert not tensor.is_floating_point() or torch.equal(torch.signbit(made[path]), torch.signbit(tensor))
        elif tensor.dtype == torch.float32 and path not in DISCRETE:
            assert torch.equal(made[path][fixed], tensor[fixed]), path
        compared += int(fixed.sum())
    assert compared or not any("norm" in path for path in first)


def test_captured_distributions_match_the_constructor(pair):
    spec, first, second = pair
    with shardinit.open_spec(spec) as opened:
        made = float64_arrays(shardinit.torch.load_state_dict(opened))
    for path, one in float64_arrays(first).items():
        two = float64_arrays({path: second[path]})[path]
        if one.size < 30 or np.array_equal(one, two):
            continue
        real = np.concatenate([one.ravel(), two.ravel()]).astype(float)
        mine = made[path].ravel().astype(float)
        assert scipy.stats.ks_2samp(mine, real).pvalue > 1e-6, path
        assert math.isclose(mine.std(), real.std(), rel_tol=6 / math.sqrt(one.size) + 1e-3), path
        # A wrong fan or a missing slice would show in some row or column.
        for axis in range(one.ndim):
            others = tuple(d for d in range(one.ndim) if d != axis)
            zero_here, zero_there = ((x == 0).all(axis=others) for x in (made[path], one))
            if one.shape[axis] > 1 and one.size // one.shape[axis] > 8:
                assert np.array_equal(zero_here, zero_there), path


def test_tied_and_copied_tensors_stay_equal_in_the_spec(pair):
    spec, first, second = pair

    def groups_of(state):
        groups = {}
        for path, tensor in state.items():
            groups.setdefault((tensor.shape, tensor.dtype, tensor.double().numpy().tobytes()), set()).add(path)
        return {frozenset(group) for group in groups.values()}

    with shardinit.open_spec(spec) as opened:
        made = shardinit.torch.load_state_dict(opened)
    large = {path for path, t in first.items() if t.numel() > 20}
    assert {g & large for g in groups_of(made)} == {g & large for g in groups_of(first)}


# These specs of the same models were written by hand.
@pytest.mark.parametrize("config, of, changes", [
    ("llama3.1-8b", "LlamaForCausalLM", {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256}),
    ("mixtral-8x7b", "MixtralForCausalLM", {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8}),
    ("gemma-2-9b", "Gemma2ForCausalLM", {
        "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 256}),
    ("vit-l-16", "ViTForImageClassification", {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
        "num_labels": 1000}),
])
def test_captured_specs_match_handwritten_specs(config, of, changes, tmp_path):
    made = getattr(transformers, of)
    captured = shardinit.capture.torch(lambda: made(made.config_class(**changes)))
    captured.write(tmp_path / "spec.yaml")
    assert len(captured.text.splitlines()) < 60
    mine, theirs = logical_tensors(tmp_path / "spec.yaml"), logical_tensors(ROOT / f"configs/{config}.yaml")
    for path in set(mine) - set(theirs):  # Specs written by hand omit tied tensors.
        assert path == "lm_head.weight"
        del mine[path]
    assert {path: (t["global_shape"], t["init"]) for path, t in mine.items()} == {
        path: (t["global_shape"], t["init"]) for path, t in theirs.items()}


def test_capture_error_names_every_unsupported_tensor(tmp_path):
    def make_it():
        model = nn.Module()
        x = torch.randn(10, 10)
        model.first = nn.Parameter(x)
        model.square = nn.Parameter(x * x)
        model.row = nn.Parameter(x[:1].clone())
        model.spread = nn.Parameter(torch.randn(4, 1).expand(4, 5).clone())
        model.normed = nn.Parameter((y := torch.randn(4, 5)) / y.norm())
        model.product = nn.Parameter(torch.randn(3, 3) @ torch.randn(3, 3))
        model.order = nn.Parameter(torch.randperm(9).float())
        model.unwritten = nn.Parameter(torch.empty(3))
        model.register_buffer("complex", torch.zeros(3, dtype=torch.complex64))
        model.none = nn.Parameter(torch.empty(0, 3))
        model.fine = nn.Linear(3, 4)
        return model

    with pytest.raises(shardinit.CaptureError) as caught:
        shardinit.capture.torch(make_it)
    problems = caught.value.problems
    assert list(problems) == ["square", "row", "spread", "normed", "product", "order", "unwritten", "none", "complex"]
    none = "its shape is [0, 3], and a spec has no tensor without elements"
    assert problems.pop("none") == none and f"  none: {none}" in str(caught.value)
    lines = {path: int(why.rsplit(":", 1)[1]) for path, why in problems.items()}
    first = make_it.__code__.co_firstlineno
    assert all(f" at {__file__}:" in why for why in problems.values())
    assert {path: line - first for path, line in lines.items()} == {
        "square": 2, "row": 2, "spread": 6, "normed": 7, "product": 8, "order": 9, "unwritten": 10, "complex": 11}
    for path, words in {
        "square": "one random number is used twice: `aten.randn.default`",
        "row": "some of its random numbers are also in `first`",
        "spread": "one random number is in several elements: `aten.randn.default`",
        "product": "products of matrices of random numbers: keep the factors, and multiply them in `forward`: `aten.mm",
        "order": "`aten.randperm",
        "unwritten": "nothing was written to",
        "complex": "complex numbers: keep the real and the imaginary part as two tensors: `aten.zeros",
    }.items():
        assert words in problems[path]
        assert f"  {path}: {problems[path]}" in str(caught.value)


@pytest.mark.parametrize("make, words", [
    (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
     "`aten.allclose.default` asks for the value of random"),
    (lambda: nn.Linear(3, int(torch.rand(1).item() * 5) + 1),
     "`aten._local_scalar_dense.default` asks for the value of random"),
    (lambda: nn.LazyLinear(4), "`UninitializedParameter`, as of lazy modules, has no shape before the model has seen "
                               "an input"),
    (lambda: nn.Linear("a", 3), "the constructor failed: TypeError"),
    (lambda: 3, "returned int, not a `torch.nn.Module`"),
    (lambda: nn.ReLU(), "has no tensors"),
])
def test_capture_of_unsupported_constructors_gives_a_reason(make, words):
    with pytest.raises(shardinit.CaptureError) as caught:
        shardinit.capture.torch(make)
    assert words in str(caught.value)
    if "random" in words or "failed" in words:
        assert f" at {__file__}:{make.__code__.co_firstlineno}" in str(caught.value)


def test_capture_restores_the_global_state_of_pytorch():
    before = torch.get_default_dtype(), torch.get_rng_state(), torch.nn.init.orthogonal_, torch.utils.swap_tensors
    shardinit.capture.torch(nn.Linear, 3, 4, dtype="bf16")
    with pytest.raises(shardinit.CaptureError):
        shardinit.capture.torch(nn.Linear, "a", dtype="bf16")
    after = torch.get_default_dtype(), torch.get_rng_state(), torch.nn.init.orthogonal_, torch.utils.swap_tensors
    assert all(a is b if callable(a) else (a == b if isinstance(a, torch.dtype) else torch.equal(a, b))
               for a, b in zip(before, after))
    assert type(nn.Linear(2, 2).weight.data) is torch.Tensor


def test_capture_options_set_seed_dtype_name_and_buffers():
    make = MODELS["llama"]
    captured = shardinit.capture.torch(make, seed=7, dtype="bf16", name="my model", buffers="all")
    assert "\nname: my-model\nseed: 7\ndtype: bf16\n" in captured.text
    with captured.spec() as spec:
        assert "model.rotary_emb.inv_freq" in spec.tensors
        made = shardinit.torch.load_state_dict(spec)
    real = make()
    for path, buffer in real.named_buffers():
        assert made[path].dtype == buffer.dtype
        assert torch.equal(made[path], buffer), path
    assert "model.rotary_emb.inv_freq" not in shardinit.capture.torch(make).tensors
    for wrong in ({"engine": "none"}, {"dtype": "f12"}, {"dtype": "i8"}, {"buffers": "none"}):
        with pytest.raises(ValueError):
            shardinit.capture.torch(make, **wrong)


def command(*arguments, folder, **options):
    return subprocess.run([sys.executable, "-W", "ignore", "-m", "shardinit.capture", *map(str, arguments)],
                          capture_output=True, text=True, timeout=300, cwd=folder,
                          env={**CLEAN, "PYTHONPATH": str(PACKAGE), "SHARDINIT_LIBRARY": str(LIBRARY)}, **options)


CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **TEXT, "dtype": "bfloat16",
          "rms_norm_eps": 1e-5}


COMPARED = "spec.yaml: compared with the constructor: 6 tensors: 0 equal, 6 alike\n"


def test_capture_command_writes_a_spec(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Model(nn.Module):\n"
        "    def __init__(self, width, layers=2):\n"
        "        super().__init__()\n"
        "        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))\n")
    done = command("torch", "mine:Model", "--args", '{"width": 8, "layers": 3}', "--seed", 5, "-o", "spec.yaml",
                   folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "spec.yaml: 6 tensors\n" + COMPARED)
    assert "repeat: {layer: 3}" in (tmp_path / "spec.yaml").read_text()
    run_ok("validate", tmp_path / "spec.yaml")
    same = command("torch", "mine:Model", "--args", "[8, 3]", "--seed", 5, "-o", "-", folder=tmp_path)
    assert same.stdout == (tmp_path / "spec.yaml").read_text()

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    done = command("hf", ".", "-o", "llama.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    piped = command("hf", "-", input=json.dumps(CONFIG), folder=tmp_path)
    assert piped.returncode == 0 and piped.stdout == (tmp_path / "llama.yaml").read_text(), piped.stderr
    run_ok("gen", tmp_path / "llama.yaml", "-o", tmp_path / "out")
    run_ok("export", tmp_path / "out", "-o", tmp_path / "hf", "--to", "safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert model.dtype == torch.bfloat16 and model.config.rms_norm_eps == 1e-5
    with shardinit.open_spec(tmp_path / "llama.yaml") as spec:
        assert torch.equal(model.lm_head.weight, shardinit.torch.load_state_dict(spec)["lm_head.weight"])
    # With `--set dtype`, config.json names that type, and no value is rounded on the way.
    run_ok("export", tmp_path / "llama.yaml", "-o", tmp_path / "wide", "--to", "safetensors", "--set", "dtype=f32")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "wide")
    with shardinit.open_spec(tmp_path / "llama.yaml", set={"dtype": "f32"}) as spec:
        for path, tensor in shardinit.torch.load_state_dict(spec).items():
            assert tensor.dtype == torch.float32 and torch.equal(model.state_dict()[path], tensor), path


BASE = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 8}


@pytest.mark.parametrize("changes, words", [
    ({}, None), ({"torch_dtype": "torch.bfloat16"}, None), ({"dtype": "half"}, None),
    ({"dtype": {"": "bfloat16"}}, None),
    ({"torch_dtype": None}, None), ({"architectures": "LlamaForCausalLM"}, None), ({"architectures": []}, None),
    ({"architectures": None}, None), ({"architectures": ["LlamaForCausalLM", "LlamaModel"]}, None),
    ({"dtype": ["bfloat16"]}, "`dtype`"), ({"dtype": "auto"}, "`dtype`"), ({"dtype": 5}, "`dtype`"),
    ({"dtype": "bfloat16", "torch_dtype": "float16"}, "`torch_dtype`"),
    ({"architectures": {"a": 1}}, "`architectures`"),
    ({"architectures": ["LlamaConfig"]}, "`LlamaConfig`"), ({"intermediate_size": [8, 8]}, "intermediate_size"),
    ({"hidden_size": None}, "hidden_size"), ({"layer_types": ["full"]}, "`layer_types`"),
    ({"tie_word_embeddings": "false"}, "tie_word_embeddings"),
], ids=str)
def test_capture_and_import_read_config_json_alike(changes, words, tmp_path, capsys):
    """Capturing and importing a config.json give the same tensors and types, or both reject it and name the key."""
    path, captured, imported = tmp_path / "config.json", tmp_path / "captured.yaml", tmp_path / "imported.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(BASE | changes).encode())
    status = main(["hf", str(path), "-o", str(captured), "--verify", "none"])
    error, result = capsys.readouterr().err, run_tool("import", path, "-o", imported)
    if words is not None:
        assert (status, result.returncode) == (2, 2) and words in error and words.strip("`") in result.stderr, error
        return
    assert (status, result.returncode) == (0, 0), error + result.stderr
    with shardinit.open_spec(captured) as one, shardinit.open_spec(imported) as other:
        assert {path: (tensor.global_shape, tensor.dtype) for path, tensor in one.tensors.items()} == {
            path: (tensor.global_shape, tensor.dtype) for path, tensor in other.tensors.items()}


def test_capture_reads_infinities_in_config_json(tmp_path):
    config = transformers.FalconH1Config(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        head_dim=8, vocab_size=16, mamba_d_ssm=16, mamba_n_heads=2, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=4)
    config.save_pretrained(tmp_path)
    assert '"__float__": "Infinity"' in (tmp_path / "config.json").read_text()
    assert main(["hf", str(tmp_path), "-o", str(tmp_path / "x.yaml"), "--verify", "none"]) == 0


def test_capture_command_explains_mistakes(tmp_path, monkeypatch, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "lama"}')
    (tmp_path / "none.json").write_text("[1")
    (tmp_path / "my.py").write_text("class Up: pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    for arguments, status, words in [
        (("torch", "my.py:Up", "-o", "x"), 2, "hint: name the module, not its file: `my:Up`"),
        (("torch", "../sub/my.py:Up", "-o", "x"), 2, "cannot import `../sub/my.py`"),
        (("torch", "./my.py:Up", "-o", "x"), 2, "hint: name the module, not its file: `my:Up`"),
        (("torch", "./:Up", "-o", "x"), 2, "`./:Up` is not MODULE:CALLABLE"),
        (("torch", "torch.nn.Linear", "-o", "x"), 2, "`torch.nn.Linear` is not MODULE:CALLABLE"),
        (("torch", "no.such:Model", "-o", "x"), 2, "cannot import `no.such`"),
        (("torch", "torch.nn:Linea", "-o", "x"), 2, "`torch.nn` has no `Linea`"),
        (("torch", "torch.nn:Linear", "--args", "{", "-o", "x"), 2, "--args is not JSON"),
        (("torch", "torch.nn:Linear", "--args", '{"width": 3}', "-o", "x"), 2, "cannot be called with --args"),
        (("torch", "torch.nn:Linear", "--args", "[2, 3]", "--engine", "x", "-o", "x"), 2, "unknown engine `x`"),
        (("torch", "torch.nn:Linear", "--args", "[2, 3]", "-o", "no/x"), 3, "cannot write no/x: No such file"),
        (("hf", "config.json", "-o", "x"), 2, "does not know the model type `lama`"),
        (("hf", "none.json", "-o", "x"), 2, "is not JSON"),
        (("hf", "nothing.json", "-o", "x"), 2, "cannot read nothing.json: No such file"),
        (("hf", "./-", "-o", "x"), 2, "cannot read ./-: No such file"),
        (("hf", "-", "-o", "x"), 2, "standard input has no `model_type`: it is not a Hugging Face config"),
    ]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("{}"))
        assert main(list(arguments)) == status, arguments
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("shardinit-capture: error: ") and words in err, (arguments, err)
        assert not (tmp_path / "x").exists()
        if words == "hint: name the module, not its file: `my:Up`":  # The process prints the same.
            done = command(*arguments, folder=tmp_path)
            assert (done.returncode, done.stdout, done.stderr) == (status, "", err)


def test_capture_man_page_lists_the_options_of_help(tmp_path):
    page = (ROOT / "man/shardinit-capture.1").read_text()
    options = set(re.findall(r"--[a-z]+", "".join(
        command(*words, "--help", folder=tmp_path).stdout for words in ((), ("torch",), ("hf",)))))
    assert options == {f"--{name}" for name in re.findall(r"Fl Fl (\w+)", page)}
    for operation in shardinit.capture.ENGINES:
        assert operation in page


def test_capture_warns_about_other_random_generators(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import random, numpy, torch\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self, of=None):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(2, 3)\n"
        "        self.w = torch.nn.Parameter(torch.full((3,), {'p': random.random, 'n': numpy.random.rand}[of]() if of "
        "else 1.0))\n")
    for of, module in {"p": "`random`", "n": "`numpy.random`"}.items():
        result = command("torch", "mine:Model", "--args", json.dumps({"of": of}), "--verify", "none", "-o", "x.yaml",
                         folder=tmp_path)
        assert result.returncode == 0 and result.stderr.count("warning: ") == 1, result.stderr
        assert f"shardinit-capture: warning: the constructor drew from {module}, which no seed" in result.stderr
    assert "warning" not in command("torch", "mine:Model", "-o", "x.yaml", folder=tmp_path).stderr
