"""What a sharding costs, by shardinit-auto(7), and the sharding that costs least."""

import json

import pytest

from support import ROOT, Run

SPEC_405B = ROOT / "configs/llama3.1-405b.yaml"


def CostOf(*arguments, cwd=None):
    result = Run("plan", "--json", *arguments, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["cost"]


def Exchange(size, n):
    return size * (n - 1) / n


def test_cost_of_405b_is_that_of_the_formulas():
    d, ff, layers, heads, vocab = 16384, 53248, 126, 16384, 128256
    kv, tokens = 1024, 8192
    of_layer = 2 * heads * d + 2 * kv * d + 3 * ff * d
    # The rules of the spec: norms are whole.
    fsdp = 3 * Exchange(2 * (layers * of_layer + 2 * vocab * d) / 4, 128)
    fsdp += 2 * Exchange(2 * (2 * layers + 1) * d, 128)
    tensor = layers * 2 * 4 * Exchange(tokens * d * 2, 4)  # Out of attention, out of the mlp.
    cost = CostOf(SPEC_405B)
    assert cost["bytes"] == {"fsdp": round(fsdp), "tensor": round(tensor)}
    assert cost["seconds"] == pytest.approx(fsdp / 50e9 + tensor / 450e9, rel=1e-12)
    assert CostOf(SPEC_405B, "--tokens", "16384")["bytes"]["tensor"] == round(2 * tensor)


def test_bandwidth_is_that_of_the_spec_or_of_the_slowest_link(tmp_path):
    (tmp_path / "spec.yaml").write_text(
        f"shardinit: 1\ninclude: {SPEC_405B}\nbandwidth: {{fsdp: 1e9, tensor: 2 * 1e9}}\n"
    )
    cost = CostOf("spec.yaml", cwd=tmp_path)
    assert cost["seconds"] == pytest.approx(
        cost["bytes"]["fsdp"] / 1e9 + cost["bytes"]["tensor"] / 2e9, rel=1e-12
    )
    for slices, fsdp in (("{fsdp: 2}", 12.5e9), ("{tensor: 2}", 100e9)):
        (tmp_path / "spec.yaml").write_text(
            f"shardinit: 1\ninclude: {SPEC_405B}\nmesh: {{slices: {slices}}}\n"
        )
        cost = CostOf("spec.yaml", cwd=tmp_path)
        tensor = 112.5e9 - fsdp
        assert cost["seconds"] == pytest.approx(
            cost["bytes"]["fsdp"] / fsdp + cost["bytes"]["tensor"] / tensor, rel=1e-12
        )


SPEC = """\
shardinit: 1
name: m
dtype: f32
mesh: {axes: {x: 2, y: 4}}
rules: [{a: x}, {b: y}]
modules:
  w: {shape: [16, 32], axes: [a, b], init: zeros}
"""


def test_kinds_of_axes_may_be_said(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    # Both divide the batch: gathered over x, then over y.
    size = 4 * 16 * 32
    assert CostOf(spec)["bytes"] == {"x": 3 * size / 4 / 2, "y": 3 * size * 3 / 4}
    # y cuts what w contracts: 4 t w e (n-1)/n with w = 16.
    spec.write_text(SPEC + "training: {computation: y, tokens: 10}\n")
    assert CostOf(spec)["bytes"] == {"x": 3 * size / 4 / 2, "y": 4 * 10 * 16 * 4 * 3 / 4}
    spec.write_text(SPEC + "training: {computation: [x, y], batch: x, tokens: 10}\n")
    result = Run("plan", spec)
    assert result.returncode == 2
    assert "`training` names mesh axis `x` twice" in result.stderr


@pytest.mark.parametrize(
    "line, message",
    [
        ("bandwidth: {z: 1e9}", "unknown mesh axis `z`"),
        ("bandwidth: {x: 0}", "the bandwidth of `x` is 0 bytes a second"),
        ("training: {tokens: 0}", "`tokens` must be between 1"),
        ("training: {batch: z}", "unknown mesh axis `z`"),
        ("training: {token: 4}", "unknown key `token` in `training`"),
    ],
)
def test_mistakes(tmp_path, line, message):
    (tmp_path / "spec.yaml").write_text(SPEC + line + "\n")
    result = Run("plan", tmp_path / "spec.yaml")
    assert result.returncode == 2
    assert message in result.stderr
