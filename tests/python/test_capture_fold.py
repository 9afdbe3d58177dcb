"""Captured specs describe equal layers once: tests the lines of layers, and that all values are the constructor's."""

import random
import re

import pytest
from clients import client_of, like_torch_cpu

torch = client_of("torch")

import shardinit.capture
from shardinit.capture import _alike
from torch import nn

bits = like_torch_cpu()


def block(width=8, inner=16):
    return nn.Sequential(nn.Linear(width, inner), nn.LayerNorm(inner), nn.Linear(inner, width))


class Hybrid(nn.Module):
    """Some layers have a part that they share and a part of their own, as in Zamba."""

    def __init__(self, there=(2, 7, 13, 19, 25), count=27):
        super().__init__()
        shared = block()
        self.layers = nn.ModuleList(nn.ModuleDict({"mixer": block()}) for _ in range(count))
        for layer in there:
            self.layers[layer]["shared"], self.layers[layer]["adapter"] = shared, nn.Linear(8, 8)


class Attributes(nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(6):
            setattr(self, f"h_{i}", block())
        self.norm_1, self.norm_2 = nn.LayerNorm(3), nn.LayerNorm(3)


class Truncated(nn.Module):
    """Only the seed decides the place of a number in the stream, unless the number follows another one."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) if i % 2 else nn.Conv1d(8, 8, 1) for i in range(8))
        for layer in self.layers:
            nn.init.trunc_normal_(layer.weight, std=0.5, a=-0.6, b=0.6)
            nn.init.uniform_(layer.bias)


# Name → (the constructor to capture, lines of its modules, the maximum number of lines of the spec).
MODELS = {
    "some layers share a module": (Hybrid, ["    repeat: {layer: 27}"], 40),
    "numbers in names": (Attributes,
                         ["  h_{layer}:", "    repeat: {layer: 6}", "  norm_1.weight: {shape: [3], init: ones}"], 28),
    "gaps": (lambda: nn.Sequential(*[layer for _ in range(5) for layer in (nn.Linear(8, 8), nn.ReLU())]),
             ['  "{2 * layer}":', "    repeat: {layer: 5}"], 16),
    "the model is a list": (lambda: nn.Sequential(*[nn.Linear(8, 8) for _ in range(5)]), ["  repeat: {layer: 5}"], 14),
    "the first is another one": (lambda: nn.Sequential(nn.Conv1d(3, 8, 2), *[nn.Linear(8, 8) for _ in range(5)]),
                                 ['  "{layer + 1}":', "    repeat: {layer: 5}"], 20),
    "two kinds in turn": (lambda: nn.Sequential(*[nn.Linear(3, 4) if i % 2 else nn.Conv1d(3, 5, 2) for i in range(8)]),
                          ['  "{2 * layer}":', '  "{2 * layer + 1}":'], 20),
    "copies": (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 5, enable_nested_tensor=False),
               ["    repeat: {layer: 5}"], 28),
    "truncated": (Truncated, [], 50),
}


@bits
@pytest.mark.parametrize("model", MODELS)
def test_equal_layers_are_captured_once(model):
    make, lines, most = MODELS[model]
    for engine in ("torch_cpu", "philox4x32"):
        captured = shardinit.capture.torch(make, engine=engine, seed=3)
        text = captured.text.splitlines()
        assert len(text) <= most and set(lines) <= set(text), captured.text
        verified = captured.verify()
        assert verified.good, verified.table()
        if engine == "torch_cpu":
            assert {t.result for t in verified.tensors} == {"equal"}


@bits
def test_tied_copies_have_the_stream_position_of_the_first():
    text = shardinit.capture.torch(MODELS["copies"][0], engine="torch_cpu").text
    assert re.search(r"linear1.bias: \{shape: \[16\], init: uniform_fan_8, tie: layers.0.linear1.bias,"
                     r" key: \{torch: \{position: \d+\}\}\}|linear1.bias: \{.*, tie: layers.0.linear1.bias\}",
                     text), text


def test_folded_conditions_select_the_right_layers():
    def value(text, layer):
        return bool(eval(text, {"mod": lambda a, b: a % b, "layer": layer}))

    rng = random.Random(7)
    sets = [(list(range(76)), [2, *range(7, 76, 6)]), (list(range(54)), [6, 12, 18, 24, 30, 36, 42, 47, 51])]
    for _ in range(300):
        at = sorted(rng.sample(range(40), rng.randrange(3, 40)))
        sets.append((at, sorted(rng.sample(at, rng.randrange(1, len(at))))))
    said = 0
    for at, layers in sets:
        try:
            text = _alike._condition(layers, at, "layer")
        except _alike.Unlike:
            continue
        said += 1
        assert [layer for layer in at if value(text, layer)] == layers, text
    assert said > 100
    assert _alike._condition([2, *range(7, 76, 6)], list(range(76)), "layer") == (
        "(mod(layer, 5) == 2) * (layer <= 7) + (mod(layer, 6) == 1) * (layer >= 13)")
