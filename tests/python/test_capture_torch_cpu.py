"""Specs captured from PyTorch with engine torch_cpu have the bits of the constructor after torch.manual_seed."""

import dataclasses
import re
import sys

import pytest
from clients import client_of, like_torch_cpu
from support import ROOT, run_ok

torch = client_of("torch")

import shardinit.capture
import shardinit.torch
from shardinit.capture._verify import compare
from test_capture import MODELS, command
from torch import nn

sys.path.append(str(ROOT / "tests"))
import capture_models
import capture_zoo

pytestmark = like_torch_cpu()

SEEDS = [0, 1, 42, 2**63 + 5]


def capture_and_verify(make, **options):
    """Returns the spec of a constructor and the comparison of its values with the real values, which must be good."""
    captured = shardinit.capture.torch(make, engine="torch_cpu", **options)
    verified = captured.verify()
    assert verified.good, verified.table()
    return captured, verified


# These draw numbers and keep none; the next draw shows how many words they take.
BEFORE = {
    "normal_": lambda t: t(33).normal_(),
    "normal_, bf16": lambda t: t(33).bfloat16().normal_(),
    "normal_, f64": lambda t: t(35).double().normal_(),
    "normal_, whole groups": lambda t: t(64).normal_(1, 2),
    "normal_, transposed": lambda t: t(7, 5).t().normal_(),
    "normal_, of a part": lambda t: t(8, 9)[:, 1:6].normal_(),
    "one normal number": lambda t: t(1).normal_(),
    "nothing": lambda t: t(0).normal_(),
    "randn_like": lambda t: torch.randn_like(t(6, 7).t()),
    "uniform_": lambda t: t(33).uniform_(),
    "rand, f64": lambda t: torch.rand(7, dtype=torch.float64),
    "log_normal_": lambda t: t(21).log_normal_(),
    "exponential_": lambda t: t(21).exponential_(),
    "cauchy_": lambda t: t(21).cauchy_(),
    "geometric_": lambda t: t(21).geometric_(0.5),
    "bernoulli_": lambda t: t(21).bernoulli_(0.5),
    "bernoulli_ of probabilities": lambda t: t(21).bernoulli_(torch.full((21,), 0.5)),
    "bernoulli": lambda t: torch.bernoulli(torch.full((21,), 0.5, dtype=torch.float64)),
    "dropout": lambda t: nn.functional.dropout(torch.ones(21), 0.3),
    "randint": lambda t: torch.randint(3, 9, (21,)),
    "randint, a wide range": lambda t: torch.randint(0, 2**40, (21,)),
    "randint_like": lambda t: torch.randint_like(t(21), 9),
    "random_": lambda t: torch.empty(21, dtype=torch.int64).random_(),
    "random_ of i32": lambda t: torch.empty(21, dtype=torch.int32).random_(),
    "random_ to": lambda t: t(21).random_(7),
    "randperm": lambda t: torch.randperm(21),
    "torch.normal": lambda t: torch.normal(torch.zeros(21), 2.0),
    "torch.normal of two": lambda t: torch.normal(torch.zeros(5), torch.ones(5)),
    "torch.normal of numbers": lambda t: torch.normal(1.0, 2.0, (7, 3)),
    "multinomial": lambda t: torch.multinomial(torch.ones(21), 4),
    "multinomial, put back": lambda t: torch.multinomial(torch.ones(21), 40, replacement=True),
    "trunc_normal_": lambda t: nn.init.trunc_normal_(t(5, 7), std=0.02),
    "orthogonal_": lambda t: nn.init.orthogonal_(t(5, 7)),
    "sparse_": lambda t: nn.init.sparse_(t(5, 7), 0.3),
    "a generator of its own": lambda t: t(21).normal_(generator=torch.Generator()),
}


class After(nn.Module):
    def __init__(self, before):
        super().__init__()
        for n, size in enumerate((100, 3, 17, 4)):
            before(torch.empty)
            self.register_parameter(f"normal{n}", nn.Parameter(torch.randn(size)))
        before(torch.empty)
        self.uniform = nn.Parameter(torch.rand(19))


@pytest.mark.parametrize("name", BEFORE)
def test_discarded_draws_advance_the_captured_stream(name):
    capture_and_verify(lambda: After(BEFORE[name]), seed=3)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["llama", "mixtral", "lstm", "attention", "copied layers"])
def test_torch_cpu_capture_has_the_bits_of_constructors(name, seed, dtype):
    capture_and_verify(MODELS[name], seed=seed, dtype=dtype)


@pytest.mark.parametrize("name", [
    "llama in bf16", "llama, tied", "gpt2", "vit", "deepseek", "t5", "gpt neo", "swin", "resnet", "transformer", "gru"])
def test_torch_cpu_capture_has_the_bits_of_more_constructors(name):
    capture_and_verify(MODELS[name], seed=1)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name, inexact", [
    ("bert", r"$"), ("padding", r"$"), ("modernbert", r"$"), ("mamba", r".*dt_proj\.bias$"), ("mamba2", r".*dt_bias$")])
def test_captured_expressions_have_the_bits_of_pytorch(name, inexact, dtype):
    """Rows of zeros, and truncated numbers whose rounds depend on the seed, have the same bits; logarithms of random
    numbers may differ."""
    _, verified = capture_and_verify(MODELS[name], seed=42, dtype=dtype)
    assert all(t.result == "equal" or re.match(inexact, t.path) for t in verified.tensors), verified.table()


class Followed(nn.Module):
    """A module that changes numbers after it draws them; PyTorch rounds `rough_*` in its own way."""

    def __init__(self, dtype):
        super().__init__()
        both, places = torch.randn(60, 40), torch.arange(40.0)
        strided, turned = torch.ones(8, 30), torch.ones(30, 8)
        strided[:, ::2].normal_(0, 0.1)
        strided[0].mul_(2)
        turned.t()[2:7].normal_()
        half = torch.bfloat16 if dtype == torch.float32 else torch.float16
        for name, tensor in {
            "scaled": torch.randn(40, 50) * 0.1 + 0.5,
            "thirds": (torch.randn(40, 50) / 3 - 0.7) * (torch.rand(40, 50) + 0.3),
            "by_row": torch.randn(40, 50) * 0.1 + torch.rand(50),
            "transposed": torch.rand(50, 40).t().contiguous(),
            "joined": torch.cat([torch.randn(20, 30), torch.zeros(2, 30), torch.rand(10, 30)]),
            "upper": both[:20].clone(), "lower": both[20:].clone(),
            "twice": both * both, "crossed": both[3] + both[:, :1],
            "strided": strided, "turned": turned,
            "channels_last": torch.empty(4, 6, 5, 3).to(memory_format=torch.channels_last).normal_(),
            "channels_last_uniform": torch.empty(4, 6, 5, 3).to(memory_format=torch.channels_last).uniform_(1, 3),
            "clamped": torch.randn(1000).clamp(-1, 0.5).abs() - 1,
            "masked": torch.tril(torch.randn(40, 40)),
            "where": torch.where(torch.rand(50) < 0.5, torch.randn(50), 0.25),
            "counts": torch.randint(3, 9, (800,)), "wide_counts": torch.randint(-5, 2**40, (7, 10)).t(),
            "floats": torch.empty(30).random_(7),
            "ranges": torch.stack([torch.randint(low, high, (50,), dtype=half) for low, high in (
                (0, 1000), (-1000, 1000), (0, 257), (0, 258), (-1001, 1001), (-257, 5), (-259, -1), (0, 5000),
                (2047, 2060))]),
            "far": torch.empty(30, dtype=torch.float32).random_(2**33),
            "near": torch.randint(-(2**25) - 1, 3, (40,), dtype=torch.float32),
            "bits": torch.empty(30, dtype=torch.int32).random_(), "few_bits": torch.empty(30).random_(),
            "coins": torch.empty(900).bernoulli_(0.3), "by_chance": torch.bernoulli(torch.rand(900)),
            "by_wide_chance": torch.bernoulli(torch.rand(90, dtype=torch.float64)),
            "dropped": nn.functional.dropout(torch.full((40,), 3.0), 0.3),
            "halved": torch.randn(40, 40).to(half), "odd_half": torch.randn(41, 41).to(half),
            "uniform_half": torch.rand(41, 41).to(half), "from_half": torch.rand(41, dtype=half).double(),
            "order": torch.randperm(50), "part": torch.randperm(50).to(dtype) / 7,
            "means": torch.normal(places, 2.0), "both_given": torch.normal(places, torch.rand(40)),
            "stds": torch.normal(0.3, torch.rand(40)),
            "like": torch.randn_like(torch.empty(5, 9).t()),
            "odd": torch.randn(3) * 2, "pair": torch.randn(5),
            "wide": torch.empty(3, dtype=torch.float64).normal_(1, 2) * 3 + 1,
            "wide_uniform": torch.rand(30, dtype=torch.float64) * 3 + 0.1,
            "spread": torch.randn(4, 1).expand(4, 5).clone(),
            "outer": torch.randn(7)[:, None] * torch.randn(9),
            "square": torch.rand(50) ** 2, "cube": torch.rand(50) ** 3, "inverse": 1 / (torch.rand(50) + 1),
            "whole": (torch.rand(50) * 9).floor(), "left": 1 - torch.rand(50), "signs": (torch.rand(50) - 0.5).sign(),
            "steps": torch.rand(50) * torch.linspace(0, 1, 50),
            "few": torch.randn(7, 9) + torch.tensor([0.1, 0.7, -2.0, 5.5, 1, 9, 0.3, 0.2, 0.1]),
            "small": (torch.randn(100) * 20).to(torch.int8),
            "product": torch.addcmul(torch.rand(50), torch.rand(50), torch.rand(50), value=0.7),
            "rough_waits": torch.empty(900).exponential_(2.0), "rough_logs": torch.empty(900).log_normal_(0, 0.5),
            "rough_tries": torch.empty(900).geometric_(0.3), "rough_cauchy": torch.empty(900).cauchy_(1, 2),
            "rough_log": (torch.rand(900) + 0.1).log(), "rough_exp": torch.rand(900).exp(),
            "rough_root": torch.rand(900).sqrt(),
            "rough_normal": torch.empty(900).uniform_(-0.9, 0.9).erfinv_().mul_(0.02).add_(0.1).clamp_(-0.03, 0.13),
        }.items():
            self.register_buffer(name, tensor)
        if dtype == torch.float32:
            self.register_buffer("sum_of_parts", torch.rand(50).add(torch.rand(50), alpha=0.3))
            self.register_buffer("rough_growth", torch.rand(900).expm1())


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_operations_after_a_draw_have_the_bits_of_pytorch(dtype):
    captured, verified = capture_and_verify(lambda: Followed(torch.get_default_dtype()), seed=5, dtype=dtype)
    for tensor in verified.tensors:
        assert tensor.result == "equal" or (tensor.path.startswith("rough_") and tensor.ulps <= 1), verified.table()


def test_several_tensors_may_use_the_same_random_numbers():
    """Copies are tied; tensors of another type, shape or order use the same random numbers."""

    def make_it():
        model = nn.Module()
        first = torch.randn(4, 8)
        for name, tensor in {"first": first, "copy": first.clone(), "halves": first.half(), "shaped": first.view(2, 16),
                             "turned": first.t(), "filled": torch.empty(4, 6)}.items():
            model.register_parameter(name, nn.Parameter(tensor))
        with torch.no_grad():
            model.filled.view(-1).uniform_()
        return model

    captured, verified = capture_and_verify(make_it, seed=9)
    assert {t.result for t in verified.tensors} == {"equal"}
    assert "copy: {shape: [4, 8], init: normal_1, tie: first}" in captured.text.replace("{normal: {std: 1}}",
                                                                                        "normal_1")
    assert captured.text.count("{expr: ") == 3 and "key" not in captured.text


def first_loss(model, state):
    model.load_state_dict(state)
    tokens = torch.arange(2 * 24).reshape(2, 24) * 7 % 120
    with torch.no_grad():
        return model(input_ids=tokens, labels=tokens).loss


def test_step_0_loss_equals_the_constructors_loss():
    torch.manual_seed(42)
    model = MODELS["llama"]()
    eager = first_loss(model, {path: tensor.clone() for path, tensor in model.state_dict().items()})
    losses = {}
    for engine in ("torch_cpu", "philox4x32"):
        with shardinit.capture.torch(MODELS["llama"], engine=engine, seed=42).spec() as spec:
            losses[engine] = first_loss(model, shardinit.torch.load_state_dict(spec))
    assert torch.equal(losses["torch_cpu"], eager)
    assert losses["philox4x32"] != eager and abs(losses["philox4x32"] / eager - 1) < 0.01


@pytest.mark.parametrize("name", [
    "GemmaForCausalLM", "OPTForCausalLM", "DebertaV2Model", "XLNetLMHeadModel", "BartForConditionalGeneration",
    "BeitModel",
    "nn.RNN", "nn.Bilinear", "nn.BatchNorm", "nn.ConvTranspose", "nn.Conv", "nn.Linear, small",
    "nn.AdaptiveLogSoftmax"])
def test_captured_models_have_the_bits_of_pytorch_on_any_mesh(name, tmp_path):
    """Files of single ranks have the same bits, on meshes of 1, of 2 × 2 and of 3 ranks with uneven parts."""
    captured, _ = capture_and_verify(capture_zoo.ALL[name], seed=42, dtype="bf16")
    for axes in capture_models.MESHES.values():
        (place := tmp_path / "x".join(axes)).mkdir()
        verified = compare(captured, captured._real(captured.seed), capture_models.on_mesh(captured, axes, place))
        assert verified.good, verified.table()


def test_torch_capture_accepts_a_negative_seed():
    captured, _ = capture_and_verify(lambda: nn.Linear(7, 9), seed=-3)
    assert f"\nseed: {2**64 - 3}\n" in captured.text


def test_stream_positions_of_layers_are_one_expression():
    """A spec only has the places that do not follow from the tensor before, in one line for all layers."""

    class Layer(nn.Module):
        def __init__(self, dead):
            super().__init__()
            self.up, self.down = nn.Linear(6, 7), nn.Linear(7, 6)
            torch.rand(5 if dead else 9)
            self.experts = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(3))
            for expert in self.experts:
                torch.rand(2)
                nn.init.normal_(expert.weight)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer(layer < 2) for layer in range(5))
            self.odd = nn.ModuleList(nn.Linear(3, 4 if layer % 2 else 3).float() for layer in range(2))
            self.last = nn.Parameter(torch.randn(40))

    captured, _ = capture_and_verify(Model)
    lines = captured.text.splitlines()
    places = [re.search(r"(\w+\.\w+|\w+): {.*torch: {position: (.*?)}}", line) for line in lines]
    assert {m[1]: m[2].strip('"') for m in places if m} == {
        "last": "1060",
        "up.weight": "where(layer <= 2, 204 * layer, 208 * layer - 8)",
        "weight": "where(layer <= 1, 18 * expert + 204 * layer + 152, 18 * expert + 208 * layer + 148)"}
    assert len(lines) < 30


def test_torch_cpu_rejects_positions_that_depend_on_the_seed():
    def make_it():
        model = nn.Module()
        model.fine = nn.Parameter(nn.init.trunc_normal_(torch.empty(40)))
        model.here = nn.Parameter(torch.rand(4))
        model.shifted = nn.Parameter(torch.rand(4) + 1)
        nn.init.trunc_normal_(torch.empty(40))
        model.behind = nn.Parameter(torch.rand(4))
        return model

    def reseeds():
        model = nn.Linear(3, 4)
        torch.manual_seed(3)
        model.behind = nn.Linear(3, 4)
        return model

    def unknown():
        model = nn.Linear(3, 4)
        torch.poisson(torch.ones(3))
        model.behind = nn.Linear(3, 4)
        return model

    for make, paths, words in [
        (make_it, ["shifted", "behind"], "only the seed decides where in the stream its numbers are"),
        (reseeds, ["behind.weight", "behind.bias"],
         "the constructor seeds PyTorch's generator with 3, and the spec's seed is 0"),
        (unknown, ["behind.weight", "behind.bias"], f"`aten.poisson.default` at {__file__}:"),
    ]:
        with pytest.raises(shardinit.CaptureError) as caught:
            shardinit.capture.torch(make, engine="torch_cpu")
        assert list(caught.value.problems) == paths
        assert all(words in why and f" at {__file__}:" in why for why in caught.value.problems.values())
        shardinit.capture.torch(make)


def test_sparse_and_orthogonal_matrices_match_pytorch():
    """Sparse matrices are equal bit for bit, and orthogonal ones are equal up to LAPACK's rounding."""

    def make_it():
        model = nn.Module()
        for n, size in enumerate([(5, 7), (40, 30), (3, 2)]):
            model.register_parameter(f"orthogonal{n}", nn.Parameter(nn.init.orthogonal_(torch.empty(size), 2.0)))
            model.register_parameter(f"sparse{n}", nn.Parameter(nn.init.sparse_(torch.empty(size), 0.3)))
        model.wide = nn.Parameter(torch.randn(50, dtype=torch.float64))
        return model

    _, verified = capture_and_verify(make_it, seed=3)
    assert {t.result for t in verified.tensors if "sparse" in t.path} == {"equal"}


def turned(rows, columns, **gain):
    return nn.init.orthogonal_(torch.empty(rows, columns), **gain)


def gates():
    """Returns an LSTM whose recurrent weights are orthogonal for each gate."""
    model = nn.LSTM(5, 6)
    for rows in model.weight_hh_l0.data.chunk(4):
        nn.init.orthogonal_(rows, gain=0.5)
    nn.init.orthogonal_(model.weight_ih_l0.data.t())
    return model


def reduced():
    """Returns norms, sums, sorted and rounded numbers of tensors outside the model; `exact_*` have the same bits."""
    whole, parts = turned(7, 5), torch.randn(10, 8)
    plain = torch.empty(6, 8).normal_(0, 1)
    wide = torch.randn(5, 90)
    return {
        "upper": whole[:3], "lower": whole[3:, 1:4], "changed": (whole * 2 + 1).t(), "flat": turned(6, 4).view(4, 6),
        "stacked": torch.stack([turned(4, 4), turned(4, 4)]),
        "joined": torch.cat([turned(30, 20), turned(30, 20, gain=3.0)]),
        "rows": nn.functional.normalize(torch.randn(10, 16), dim=-1),
        "columns": nn.functional.normalize(torch.randn(10, 16), dim=0) * 0.5,
        "by_all": (x := torch.rand(5, 9)) / x.norm(),
        "of_xavier": nn.functional.normalize(nn.init.xavier_uniform_(torch.empty(12, 20))),
        "normc": plain * (1 / torch.sqrt(plain.pow(2).sum(1, keepdim=True))),
        "standard": (wide - wide.mean(1, keepdim=True)) / wide.std(1, keepdim=True),
        "norm_0": torch.randn(40, 6).norm(dim=0, keepdim=True), "norm_all": torch.rand(30, 3).mul(2).norm(),
        "norm_12": torch.randn(4, 3, 5).norm(dim=(1, 2)),
        "norm_part": parts[2:5].norm(dim=1), "norm_view": parts.view(2, 5, 8).norm(dim=2),
        "norm_turned": parts.t().norm(dim=0),
        "norm_left": parts[:, :3].norm(dim=1),
        "norm_cut": nn.init.trunc_normal_(torch.empty(6, 5), std=0.02, a=-9, b=9).norm(dim=1),
        "sum": torch.randn(20, 3).sum(0), "mean": torch.rand(50).mean(), "var": torch.rand(7, 50).var(1),
        "exact_sorted": torch.rand(50).sort().values, "exact_falling": torch.randn(4, 9).sort(descending=True).values,
        "exact_scaled": (torch.rand(20) * 3 + 1).sort().values, "exact_largest": torch.rand(50).topk(5).values,
        "exact_round": torch.randn(200).round(), "exact_halves": (torch.randint(0, 9, (200,)) / 2).round(),
        "exact_decimals": torch.round(torch.randn(60), decimals=2),
        "exact_tens": torch.round(torch.rand(60) * 1000, decimals=-1),
        "exact_whole": (torch.randn(40) * 3).round().long(), "exact_trunc": torch.randn(30).trunc(),
    }  # fmt: skip


def test_captured_norms_sums_and_sorts_match_pytorch():
    def make_it():
        model = nn.Module()
        for name, tensor in reduced().items():
            model.register_buffer(name, tensor)
        return model

    for seed in (3, 4, 5):
        _, verified = capture_and_verify(make_it, seed=seed)
        assert all(t.result == "equal" or (t.result == "inexact" and not t.path.startswith("exact"))
                   for t in verified.tensors), verified.table()
    _, verified = capture_and_verify(gates, seed=3)
    assert [t.result for t in verified.tensors] == ["inexact", "inexact", "equal", "equal"]


def test_capture_errors_suggest_alternatives():
    def make_it():
        model, w = nn.Module(), torch.randn(6, 5)
        w[w < 0] = 0
        for name, tensor in {
            "masked": w, "product": torch.randn(4, 5) @ torch.randn(5, 3),
            "complex": torch.randn(4, dtype=torch.complex64),
            "parts": torch.view_as_real(torch.polar(torch.rand(4), torch.rand(4))), "order": torch.rand(9).argsort(),
            "factor": torch.linalg.qr(torch.randn(4, 4))[0], "shuffled": torch.randn(20)[torch.randperm(20)],
        }.items():
            model.register_buffer(name, tensor)
        return model

    for engine in ("torch_cpu", "philox4x32"):
        with pytest.raises(shardinit.CaptureError) as caught:
            shardinit.capture.torch(make_it, engine=engine)
        problems = caught.value.problems
        assert all(f" at {__file__}:" in why for why in problems.values()), problems
        assert {path: re.sub(": `.*", "", why) for path, why in problems.items()} == {
            "masked": "random numbers choose the written elements: use `torch.where` or `masked_fill_`",
            "product": "products of matrices of random numbers: keep the factors, and multiply them in `forward`",
            "complex": "complex numbers: keep the real and the imaginary part as two tensors",
            "parts": "complex numbers: keep the real and the imaginary part as two tensors",
            "order": "the order of random numbers", "shuffled": "random numbers choose elements",
            "factor": "factors of a matrix of random numbers: capture the model without them, and compute them from its"
            " weights (in PEFT capture with `init_lora_weights=True` instead of OLoRA or PiSSA)"}


def test_dora_magnitudes_are_captured():
    """PEFT's DoRA is captured: its magnitudes are norms of W + 0, where 0 is a product with random numbers."""
    peft, transformers = client_of("peft"), client_of("transformers")

    def make_it(**options):
        config = transformers.LlamaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                                          num_attention_heads=2, num_key_value_heads=1, vocab_size=32)
        adapter = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], **options)
        return peft.get_peft_model(transformers.LlamaForCausalLM(config), adapter)

    for engine in ("torch_cpu", "philox4x32"):
        captured = shardinit.capture.torch(make_it, use_dora=True, engine=engine, seed=5)
        assert captured.verify().good
        assert captured.text.count("self_attn.q_proj.base_layer.weight") == 1, captured.text
    capture_and_verify(lambda: make_it(trainable_token_indices=[1, 2, 9]), seed=5)
    for method in ("olora", "pissa"):
        with pytest.raises(shardinit.CaptureError,
                           match="capture with `init_lora_weights=True` instead of OLoRA or PiSSA"):
            shardinit.capture.torch(make_it, init_lora_weights=method, engine="torch_cpu")


def test_torch_cpu_rejects_operations_on_special_draws():
    def make_it():
        model = nn.Module()
        model.sparse = nn.Parameter(nn.init.sparse_(torch.empty(5, 7), 0.3) + 1)
        model.narrow = nn.Parameter(nn.init.trunc_normal_(torch.empty(5, 7), a=1, b=1.1))
        return model

    with pytest.raises(shardinit.CaptureError) as caught:
        shardinit.capture.torch(make_it, engine="torch_cpu")
    assert {path: why.split(":")[0] for path, why in caught.value.problems.items()} == {
        "sparse": "such random values are changed",
        "narrow": "PyTorch draws in another way where the cut-offs leave less than 30 % of the numbers"}


def test_verify_reports_each_differing_tensor():
    captured = shardinit.capture.torch(lambda: nn.Linear(30, 40), engine="torch_cpu", seed=1)
    assert [t.result for t in captured.verify().tensors] == ["equal", "equal"]

    def compare_it(old, new):
        assert old in captured.text
        verified = dataclasses.replace(captured, text=captured.text.replace(old, new)).verify()
        return [(t.path, t.result) for t in verified.tensors], verified

    assert compare_it("seed: 1", "seed: 2")[0] == [("weight", "different"), ("bias", "different")]
    assert compare_it("shape: [40], init: {uniform: {low: -1 / sqrt(30), high: 1 / sqrt(30)}}",
                      "shape: [40], init: zeros")[0] == [
        ("weight", "equal"), ("bias", "different")]
    results, verified = compare_it("low: -1 / sqrt(30)", "low: -1 / sqrt(30) - 1e-8")
    assert results == [("weight", "equal"), ("bias", "different")] and not verified.good
    assert re.search(r"^bias +1  different: [\d]+ of 40 elements, by \d+ ulps?; \[\d+\] is .*, and .* in the model$",
                     verified.table(), re.MULTILINE), verified.table()
    assert verified.summary() == "2 tensors: 1 equal, 1 different"
    # Another engine draws other values, from the same distribution or from another one.
    assert compare_it("engine: torch_cpu\n", "")[0] == [("weight", "alike"), ("bias", "alike")]
    spread = compare_it("engine: torch_cpu\nfans: out_in", "fans: in_out")[0]
    assert spread == [("weight", "different"), ("bias", "alike")]


def test_verify_of_a_torch_capture_with_the_default_engine():
    verified = shardinit.capture.torch(MODELS["bert"]).verify()
    assert {t.result for t in verified.tensors} == {"equal", "alike"}
    assert all((t.result == "equal") == ("LayerNorm" in t.path or t.path.endswith("bias")) for t in verified.tensors)
    with pytest.raises(ValueError, match="only a model captured in this process"):
        shardinit.capture.Captured("", {}).verify()


def test_capture_command_verifies_with_torch_cpu(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Model(nn.Module):\n"
        "    made = 0\n"
        "    def __init__(self, changes=False):\n"
        "        super().__init__()\n"
        "        Model.made += 1\n"
        "        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))\n"
        "        self.norm = nn.LayerNorm(8 if not changes else Model.made + 8)\n")
    done = command("torch", "mine:Model", "--engine", "torch_cpu", "--seed", 7, "--verify", "all", "-o", "spec.yaml",
                   folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "spec.yaml: 8 tensors\n")
    assert done.stdout.splitlines() == [
        "tensor               tensors  result",
        "layers.{0…2}.weight        3  equal",
        "layers.{0…2}.bias          3  equal",
        "norm.weight                1  equal",
        "norm.bias                  1  equal",
        "",
        "8 tensors: 8 equal"]
    run_ok("validate", tmp_path / "spec.yaml")
    done = command("torch", "mine:Model", "--args", '{"changes": true}', "--verify", "all", "-o", "-", folder=tmp_path)
    assert done.returncode == 1 and done.stdout.startswith("# Model, captured")
    assert "norm.weight                1  different: f32 [10] in the model\n" in done.stderr
    assert "6 alike, 2 different" in done.stderr
