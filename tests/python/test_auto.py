"""What a sharding costs, by shardinit-auto(7), and the sharding that costs least."""

import json
import time

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


# ../field-guide 2.3: PyTorch/XLA's 405B on two pods, by hand.
BY_HAND = """\
uneven: chunk  # 512 do not divide 128256.
"model.embed_tokens.weight": [fsdp, tensor]
"model.layers.*.self_attn.[qkv]_proj.weight": [tensor, fsdp]
"model.layers.*.self_attn.o_proj.weight": [fsdp, tensor]
"model.layers.*.mlp.gate_proj.weight": [tensor, fsdp]
"model.layers.*.mlp.up_proj.weight": [tensor, fsdp]
"model.layers.*.mlp.down_proj.weight": [fsdp, tensor]
"model.layers.*.*layernorm.weight": null
"model.norm.weight": null
"lm_head.weight": [[tensor, fsdp], null]
"""


def Partitions(*arguments):
    """Of each tensor its box on the last rank, which says how it is cut."""
    result = Run("plan", "--json", *arguments)
    assert result.returncode == 0, result.stderr
    ranks = json.loads(result.stdout)["world_size"]
    boxes = []
    for rank in {1 % ranks, ranks // 2, ranks - 1}:
        plan = json.loads(Run("plan", "--json", "--rank", str(rank), *arguments).stdout)
        boxes += [(rank, b["path"], b["offset"], b["shape"]) for b in plan["boxes"]]
    return boxes


def test_auto_of_405b_is_not_above_the_one_by_hand(tmp_path):
    (tmp_path / "hand.yaml").write_text(BY_HAND)
    hand = CostOf(SPEC_405B, "--sharding", tmp_path / "hand.yaml")
    start = time.monotonic()
    auto = CostOf(SPEC_405B, "--shard", "auto")
    assert time.monotonic() - start < 2
    assert auto["seconds"] <= hand["seconds"]
    assert auto == CostOf(SPEC_405B)


@pytest.mark.parametrize(
    "model, mesh",
    [
        ("llama3.1-405b", "fsdp=128,tensor=4"),
        ("mixtral-8x7b", "fsdp=4,expert=4,tensor=2"),
        ("gpt2-xl", "fsdp=8"),
        ("deepseek-v3", "fsdp=8,expert=32"),
        ("t5-11b", "fsdp=4,tensor=8"),
        ("vit-l-16", "fsdp=8"),
    ],
)
def test_what_plan_writes_is_the_same_sharding(tmp_path, model, mesh):
    spec = ROOT / f"configs/{model}.yaml"
    written = tmp_path / "map.yaml"
    result = Run("plan", spec, "--mesh", mesh, "--shard", "auto", "--write", written)
    assert result.returncode == 0, result.stderr
    auto = Partitions(spec, "--mesh", mesh, "--sharding", "auto")
    assert Partitions(spec, "--mesh", mesh, "--sharding", written) == auto
    of_auto = CostOf(spec, "--mesh", mesh, "--sharding", "auto")
    assert of_auto == CostOf(spec, "--mesh", mesh, "--sharding", written)


def test_memory_is_a_number_or_a_size_in_both_places(tmp_path):
    plans = []
    for memory in ("1590e6", "1590MB"):
        plans.append(Run("plan", "--json", SPEC_405B, "--shard", "auto", "--memory-per-rank", memory).stdout)
        spec = tmp_path / "spec.yaml"
        spec.write_text(f"shardinit: 1\ninclude: {SPEC_405B}\nsharding: auto\ntraining: {{memory_per_rank: {memory}}}\n")
        plans.append(Run("plan", "--json", spec).stdout)
    assert json.loads(plans[0]) and plans[1:] == plans[:1] * 3


def test_memory_per_rank(tmp_path):
    result = Run("plan", SPEC_405B, "--shard", "auto", "--memory-per-rank", "1G")
    assert result.returncode == 2
    assert "each way to cut the tensors gives some rank at least 1.6 GB" in result.stderr
    # Norms are whole until memory is scarce.
    result = Run("plan", "--json", SPEC_405B, "--shard", "auto", "--memory-per-rank", "1590MB")
    assert json.loads(result.stdout)["max_rank_bytes"] <= 1590 * 10**6


def test_explain_has_what_others_would_cost():
    result = Run("explain", "--json", SPEC_405B, "*embed_tokens.weight", "--sharding", "auto")
    alternatives = json.loads(result.stdout)["alternatives"]
    assert alternatives[0]["partition"] == json.loads(result.stdout)["partition"] == "[fsdp, tensor]"
    seconds = [a["seconds"] for a in alternatives]
    assert seconds == sorted(seconds) and seconds[0] == CostOf(SPEC_405B)["seconds"]
    assert seconds[0] < seconds[-1]
