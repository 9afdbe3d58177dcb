"""Specs captured from PyTorch with the engine torch_cpu: the bits of torch.manual_seed and the very
constructor."""

import re

import pytest
from clients import Client
from support import Ok

torch = Client("torch")

import shardinit.capture
from test_capture import MODELS, Command
from torch import nn

pytestmark = pytest.mark.skipif(
    not torch.__version__.startswith("2.13")
    or torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
    reason="the engine has the numbers of torch 2.13 with AVX2")

SEEDS = [0, 1, 42, 2**63 + 5]


def Verified(make, **options):
    """The spec of a constructor, whose values are compared with those of the real one."""
    captured = shardinit.capture.torch(make, engine="torch_cpu", **options)
    verified = captured.verify()
    assert verified.good, verified.table()
    return captured, verified


# What draws, and keeps nothing: the words that it takes show in what is drawn next.
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
def test_what_is_not_kept_takes_its_words(name):
    Verified(lambda: After(BEFORE[name]), seed=3)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["llama", "mixtral", "lstm", "attention", "copied layers"])
def test_bits_of_constructors(name, seed, dtype):
    Verified(MODELS[name], seed=seed, dtype=dtype)


@pytest.mark.parametrize("name", [
    "llama in bf16", "llama, tied", "gpt2", "vit", "deepseek", "t5", "gpt neo", "swin", "resnet", "transformer", "gru"])
def test_bits_of_more_constructors(name):
    Verified(MODELS[name], seed=1)


def test_a_seed_below_zero():
    captured, _ = Verified(lambda: nn.Linear(7, 9), seed=-3)
    assert f"\nseed: {2**64 - 3}\n" in captured.text


def test_places_are_lines_of_the_layers():
    """Only those are said that do not follow from the tensor before."""

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

    captured, _ = Verified(Model)
    lines = captured.text.splitlines()
    places = [re.search(r"(\w+\.\w+|\w+): {.*torch: {position: (.*?)}}", line) for line in lines]
    assert {m[1]: m[2].strip('"') for m in places if m} == {
        "last": "1060",
        "up.weight": "where(layer <= 2, 204 * layer, 208 * layer - 8)",
        "weight": "where(layer <= 1, 18 * expert + 204 * layer + 152, 18 * expert + 208 * layer + 148)"}
    assert len(lines) < 30


def test_the_seed_alone_decides():
    def Make():
        model = nn.Module()
        model.fine = nn.Parameter(torch.rand(4))
        nn.init.trunc_normal_(torch.empty(40))
        model.behind = nn.Parameter(torch.rand(4))
        return model

    def Reseeds():
        model = nn.Linear(3, 4)
        torch.manual_seed(3)
        model.behind = nn.Linear(3, 4)
        return model

    def Unknown():
        model = nn.Linear(3, 4)
        torch.poisson(torch.ones(3))
        model.behind = nn.Linear(3, 4)
        return model

    for make, paths, words in [
        (Make, ["behind"], "only the seed decides where in the stream its numbers are"),
        (Reseeds, ["behind.weight", "behind.bias"], f"`torch.manual_seed` at {__file__}:"),
        (Unknown, ["behind.weight", "behind.bias"], f"`aten.poisson.default` at {__file__}:"),
    ]:
        with pytest.raises(shardinit.CaptureError) as caught:
            shardinit.capture.torch(make, engine="torch_cpu")
        assert list(caught.value.problems) == paths
        assert all(words in why and f" at {__file__}:" in why for why in caught.value.problems.values())
        shardinit.capture.torch(make)


def test_what_the_engine_has_not():
    def Make():
        model = nn.Module()
        model.orthogonal = nn.Parameter(nn.init.orthogonal_(torch.empty(5, 7)))
        model.sparse = nn.Parameter(nn.init.sparse_(torch.empty(5, 7), 0.3))
        model.wide = nn.Parameter(torch.randn(50, dtype=torch.float64))
        return model

    with pytest.raises(shardinit.CaptureError) as caught:
        shardinit.capture.torch(Make, engine="torch_cpu")
    assert {path: why.split(":")[0] for path, why in caught.value.problems.items()} == {
        "orthogonal": "PyTorch's orthogonal matrices depend on its LAPACK",
        "sparse": "sparse matrices come from other engines alone",
        "wide": "in f64 they depend on the C library that PyTorch runs with"}


def test_verify_sees_each_difference():
    captured = shardinit.capture.torch(lambda: nn.Linear(30, 40), engine="torch_cpu", seed=1)
    assert [t.result for t in captured.verify().tensors] == ["equal", "equal"]

    def Compare(old, new):
        assert old in captured.text
        verified = shardinit.capture.Captured(
            captured.text.replace(old, new), captured.tensors, captured.drawn, captured._real).verify()
        return [(t.path, t.result) for t in verified.tensors], verified

    assert Compare("seed: 1", "seed: 2")[0] == [("weight", "different"), ("bias", "different")]
    assert Compare("shape: [40], init: {uniform: {low: -1 / sqrt(30), high: 1 / sqrt(30)}}", "shape: [40], init: zeros")[0] == [
        ("weight", "equal"), ("bias", "different")]
    results, verified = Compare("low: -1 / sqrt(30)", "low: -1 / sqrt(30) - 1e-8")
    assert results == [("weight", "equal"), ("bias", "different")] and not verified.good
    assert re.search(r"^bias +1  different: [\d]+ of 40 elements, by \d+ ulps?; \[\d+\] is .*, and .* in the model$",
                     verified.table(), re.MULTILINE), verified.table()
    assert verified.summary() == "2 tensors: 1 equal, 1 different"
    # With another engine values are drawn anew, from the same distribution or not.
    assert Compare("engine: torch_cpu\n", "")[0] == [("weight", "alike"), ("bias", "alike")]
    spread = Compare("engine: torch_cpu\nfans: out_in", "fans: in_out")[0]
    assert spread == [("weight", "different"), ("bias", "alike")]


def test_verify_with_the_default_engine():
    verified = shardinit.capture.torch(MODELS["bert"]).verify()
    assert {t.result for t in verified.tensors} == {"equal", "alike"}
    assert all((t.result == "equal") == ("LayerNorm" in t.path or t.path.endswith("bias")) for t in verified.tensors)
    with pytest.raises(ValueError, match="only what was captured from PyTorch"):
        shardinit.capture.Captured("", {}).verify()


def test_command(tmp_path):
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
    done = Command("torch", "mine:Model", "--engine", "torch_cpu", "--seed", 7, "--verify", "-o", "spec.yaml", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "spec.yaml: 8 tensors\n")
    assert done.stdout.splitlines() == [
        "tensor               tensors  result",
        "layers.{0…2}.weight        3  equal",
        "layers.{0…2}.bias          3  equal",
        "norm.weight                1  equal",
        "norm.bias                  1  equal",
        "",
        "8 tensors: 8 equal"]
    Ok("validate", tmp_path / "spec.yaml")
    done = Command("torch", "mine:Model", "--args", '{"changes": true}', "--verify", "-o", "-", folder=tmp_path)
    assert done.returncode == 1 and done.stdout.startswith("# Model, captured")
    assert "norm.weight                1  different: f32 [10] in the model\n" in done.stderr
    assert "6 alike, 2 different" in done.stderr
