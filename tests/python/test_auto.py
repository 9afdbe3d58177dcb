"""Tests the cost of a sharding by shardinit-auto(7), and the sharding with the lowest cost."""

import json
import time

import pytest

from support import ROOT, run_tool

SPEC_405B = ROOT / "configs/llama3.1-405b.yaml"


def planned_cost(*arguments, cwd=None):
    result = run_tool("plan", "--json", *arguments, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["cost"]


def exchanged_bytes(size, n):
    return size * (n - 1) / n


def test_plan_cost_of_405b_matches_the_documented_formulas():
    d, ff, layers, heads, vocab = 16384, 53248, 126, 16384, 128256
    kv, tokens = 1024, 8192
    of_layer = 2 * heads * d + 2 * kv * d + 3 * ff * d
    # The rules of the spec do not shard norms.
    fsdp = 3 * exchanged_bytes(2 * (layers * of_layer + 2 * vocab * d) / 4, 128)
    fsdp += 2 * exchanged_bytes(2 * (2 * layers + 1) * d, 128)
    # Activations are sent after attention and after the MLP, and once more to recompute the forward pass; after the
    # table, whose columns are sharded; and back into the head.
    tensor = (layers * 2 * 4 * 1.5 + 1 + 2) * exchanged_bytes(tokens * d * 2, 4)
    computation = (8 * layers * of_layer + 6 * vocab * d) * tokens / 4 / 400e12
    cost = planned_cost(SPEC_405B)
    assert cost["recompute"] and not cost["sequence_parallel"]
    assert cost["bytes"] == {"fsdp": round(fsdp), "tensor": round(tensor)}
    assert cost["communication_seconds"] == pytest.approx(fsdp / 50e9 + tensor / 450e9, rel=1e-12)
    assert cost["computation_seconds"] == pytest.approx(computation, rel=1e-12)
    assert cost["seconds"] == cost["communication_seconds"] + cost["computation_seconds"]
    # Memory holds the weights, gradients, Adam's two moments and an f32 copy; one layer, the table and the head, whole
    # and with gradients; the activations that layers keep; and the inputs and outputs of one layer's matrices.
    whole, norms = 2 * vocab * d + layers * of_layer, (2 * layers + 1) * d
    memory = (whole / 512 + norms) * 16
    memory += 2 * 2 * (2 * vocab * d + of_layer) / 4 * 127 / 128 + layers * tokens * d * 2
    matrices = 7 * d + (2 * d + 2 * kv + 3 * ff) / 4
    memory += tokens * 2 * (matrices + d / 4 + d + vocab / 4)
    assert cost["memory"] == round(memory)
    half = planned_cost(SPEC_405B, "--tokens", "4096", "--memory-per-rank", "50G")
    assert half["bytes"]["tensor"] == round(tensor / 2)


def test_bandwidth_defaults_to_the_slowest_link(tmp_path):
    (tmp_path / "spec.yaml").write_text(
        f"shardinit: 1\ninclude: {SPEC_405B}\nbandwidth: {{fsdp: 1e9, tensor: 2 * 1e9}}\n"
    )
    cost = planned_cost("spec.yaml", cwd=tmp_path)
    assert cost["communication_seconds"] == pytest.approx(
        cost["bytes"]["fsdp"] / 1e9 + cost["bytes"]["tensor"] / 2e9, rel=1e-12
    )
    for slices, fsdp in (("{fsdp: 2}", 12.5e9), ("{tensor: 2}", 100e9)):
        (tmp_path / "spec.yaml").write_text(
            f"shardinit: 1\ninclude: {SPEC_405B}\nmesh: {{slices: {slices}}}\n"
        )
        cost = planned_cost("spec.yaml", cwd=tmp_path)
        tensor = 112.5e9 - fsdp
        assert cost["communication_seconds"] == pytest.approx(
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


def test_training_section_sets_what_a_mesh_axis_divides(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    # Both axes divide the batch, so weights are gathered over x first, then over y.
    size = 4 * 16 * 32
    assert planned_cost(spec)["bytes"] == {"x": 3 * size / 4 / 2, "y": 3 * size * 3 / 4}
    # No name lets y shard this dimension: the weight is gathered over y, but ranks along y have the same gradients.
    spec.write_text(SPEC + "training: {computation: y, tokens: 10}\n")
    cost = planned_cost(spec)
    assert cost["bytes"] == {"x": 3 * size / 4 / 2, "y": 2 * size * 3 / 4}
    assert cost["cut_otherwise"] == 1
    spec.write_text(SPEC + "training: {computation: [x, y], batch: x, tokens: 10}\n")
    result = run_tool("plan", spec)
    assert result.returncode == 2
    assert "`training` names mesh axis `x` twice" in result.stderr


@pytest.mark.parametrize(
    "line, message",
    [
        ("bandwidth: {z: 1e9}", "unknown mesh axis `z`"),
        ("bandwidth: {x: 0}", "the bandwidth of `x` is 0 bytes a second"),
        ("training: {tokens: 0}", "`tokens` must be between 1"),
        ("training: {batch: z}", "unknown mesh axis `z`"),
        ("training: {expert: z}", "unknown mesh axis `z`"),
        ("training: {heads: 0}", "`heads` must be between 1"),
        ("training: {flops: 0}", "`flops` must be between 1"),
        ("training: {token: 4}", "unknown key `token` in `training`"),
    ],
)
def test_plan_rejects_invalid_bandwidth_and_training_values(tmp_path, line, message):
    (tmp_path / "spec.yaml").write_text(SPEC + line + "\n")
    result = run_tool("plan", tmp_path / "spec.yaml")
    assert result.returncode == 2
    assert message in result.stderr


def boxes_on_three_ranks(*arguments):
    """Returns the boxes of all tensors on up to three ranks, which show how the tensors are sharded."""
    result = run_tool("plan", "--json", *arguments)
    assert result.returncode == 0, result.stderr
    ranks = json.loads(result.stdout)["world_size"]
    boxes = []
    for rank in {1 % ranks, ranks // 2, ranks - 1}:
        plan = json.loads(run_tool("plan", "--json", "--rank", str(rank), *arguments).stdout)
        boxes += [(rank, b["path"], b["offset"], b["shape"]) for b in plan["boxes"]]
    return boxes


def test_auto_sharding_of_405b_takes_under_two_seconds():
    start = time.monotonic()
    planned_cost(SPEC_405B, "--sharding", "auto")
    assert time.monotonic() - start < 2


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
def test_sharding_written_by_plan_equals_auto(tmp_path, model, mesh):
    spec = ROOT / f"configs/{model}.yaml"
    written = tmp_path / "map.yaml"
    result = run_tool("plan", spec, "--mesh", mesh, "--sharding", "auto", "--write", written)
    assert result.returncode == 0, result.stderr
    auto = boxes_on_three_ranks(spec, "--mesh", mesh, "--sharding", "auto")
    assert boxes_on_three_ranks(spec, "--mesh", mesh, "--sharding", written) == auto
    of_auto = planned_cost(spec, "--mesh", mesh, "--sharding", "auto")
    assert of_auto == planned_cost(spec, "--mesh", mesh, "--sharding", written)


def test_memory_per_rank_accepts_numbers_and_sizes(tmp_path):
    plans = []
    for memory in ("59e9", "59GB"):
        plans.append(run_tool("plan", "--json", SPEC_405B, "--sharding", "auto", "--memory-per-rank", memory).stdout)
        spec = tmp_path / "spec.yaml"
        spec.write_text(f"shardinit: 1\ninclude: {SPEC_405B}\nsharding: auto\n"
                        f"training: {{memory_per_rank: {memory}}}\n")
        plans.append(run_tool("plan", "--json", spec).stdout)
    assert json.loads(plans[0]) and plans[1:] == plans[:1] * 3


def test_auto_respects_memory_per_rank():
    result = run_tool("plan", SPEC_405B, "--sharding", "auto", "--memory-per-rank", "1G")
    assert result.returncode == 2
    assert "`memory_per_rank` is 1.1 GB, but weights, gradients, the optimizer's state and activations are at least" \
        in result.stderr
    # All ranks hold the whole table and its gradients unless memory is scarce.
    free = planned_cost(SPEC_405B, "--sharding", "auto")
    scarce = planned_cost(SPEC_405B, "--sharding", "auto", "--memory-per-rank", "59GB")
    assert 59e9 < free["memory"] <= 80e9 and scarce["memory"] <= 59e9
    assert free["seconds"] < scarce["seconds"]
    # The default is the memory of the assumed device.
    result = run_tool("plan", SPEC_405B, "--sharding", "auto", "--mesh", "fsdp=8,tensor=8")
    assert "`memory_per_rank` is 80.0 GB by default, but" in result.stderr


def test_explain_lists_costs_of_alternative_shardings():
    result = run_tool("explain", "--json", SPEC_405B, "**.embed_tokens.weight", "--sharding", "auto")
    facts = json.loads(result.stdout)
    alternatives = facts["alternatives"]
    assert facts["block"] == "table"
    assert alternatives[0]["partition"] == facts["partition"]
    for fits in (True, False):
        seconds = [a["seconds"] for a in alternatives if a["fits"] == fits]
        assert seconds == sorted(seconds)
    assert alternatives[0]["seconds"] == planned_cost(SPEC_405B, "--sharding", "auto")["seconds"]
    assert alternatives[0]["seconds"] < alternatives[-1]["seconds"]
    # A matrix is sharded by rows, by columns or not at all; each of these is gathered or not.
    assert {a["partition"] for a in alternatives} == {
        "[-, -]", "[fsdp, -]", "[tensor, -]", "[tensor, fsdp]", "[-, tensor]", "[fsdp, tensor]"}


# The old search chose shardings that no trainer uses; the next tests reject them.
def explained_partition(*arguments):
    result = run_tool("explain", "--json", *arguments, "--sharding", "auto")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["partition"]


def test_auto_puts_experts_of_a_layer_on_the_same_ranks():
    spec, mesh = ROOT / "configs/deepseek-v3.yaml", ["--mesh", "fsdp=8,expert=32"]
    for name in ("gate_up_proj", "down_proj"):
        partition = explained_partition(spec, f"**.10.mlp.experts.{name}", *mesh)
        assert partition.startswith("[expert, ") and "expert" not in partition[8:]
    # Outside of experts, ranks along `expert` have different tokens and shard weights only to store them.
    assert planned_cost(spec, "--sharding", "auto", *mesh)["cut_otherwise"] == 0


@pytest.mark.parametrize("name", ["gate_up_proj", "down_proj"])
def test_auto_shards_mixtral_experts_only_by_expert(name):
    mixtral = ROOT / "configs/mixtral-8x7b.yaml"
    partition = explained_partition(mixtral, f"**.3.mlp.experts.{name}", "--mesh", "fsdp=4,tensor=8")
    assert partition in ("[tensor, -, -]", "[tensor, fsdp, -]", "[tensor, -, fsdp]")


def test_auto_does_not_split_attention_heads(tmp_path):
    # The model has 8 key heads.
    for tensor in (8, 16):
        arguments = ("**.3.self_attn.k_proj.weight", "--mesh", f"fsdp=16,tensor={tensor}")
        partition = explained_partition(ROOT / "configs/llama3.1-70b.yaml", *arguments)
        assert partition.startswith("[tensor, ") if tensor == 8 else "tensor" not in partition
    # In latent attention, all heads share the latent and the RoPE part.
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"shardinit: 1\ninclude: {ROOT}/configs/deepseek-v3.yaml\n"
                    "mesh: {axes: [{fsdp: 16}, {expert: 16}, {tensor: 4}]}\n"
                    'rules: [{experts: expert}, {"*": null}]\n')
    for name, is_split in (("q_a_proj", False), ("kv_a_proj_with_mqa", False), ("kv_b_proj", True)):
        assert ("tensor" in explained_partition(spec, f"**.3.self_attn.{name}.weight")) == is_split


def test_auto_does_not_split_kernels_or_contractions(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"""\
shardinit: 1
include: {ROOT}/configs/mamba-2.8b.yaml
mesh: {{axes: {{fsdp: 4, tensor: 2}}}}
""")
    result = run_tool("plan", spec, "--sharding", "auto")
    assert result.returncode == 2
    assert "`auto` cannot choose: no tensor names a dimension that ranks with the same tokens" in result.stderr
    spec.write_text(spec.read_text() + "training: {batch: tensor}\n")
    assert planned_cost(spec, "--sharding", "auto")["cut_otherwise"] == 0


MIXTURE = """\
shardinit: 1
name: m
dtype: bf16
mesh: {axes: {data: 2, expert: 4}}
init: {n: {normal: {std: 0.02}}}
modules:
  layers:
    repeat: {i: 2}
    experts.up: {shape: [8, 64, 32], axes: [experts, mlp, embed], init: n}
    experts.down: {shape: [8, 32, 64], axes: [experts, embed, mlp], init: n}
"""


def test_auto_requires_experts_per_token(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(MIXTURE)
    result = run_tool("plan", "--json", spec)
    assert result.returncode == 0 and "cost" not in json.loads(result.stdout)
    result = run_tool("plan", spec, "--sharding", "auto")
    assert result.returncode == 2
    assert "does not define how many experts process a token" in result.stderr
    assert "training: {experts_per_token: 2}" in result.stderr
    spec.write_text(MIXTURE + "training: {experts_per_token: 2, tokens: 4}\n")
    assert planned_cost(spec, "--sharding", "auto")["bytes"]["expert"] == 2 * 2 * 4 * 4 * 32 * 2 * 3 / 4
    spec.write_text(MIXTURE + "config: {num_experts_per_tok: 2}\ntraining: {tokens: 4}\n")
    assert planned_cost(spec, "--sharding", "auto")["bytes"]["expert"] == 2 * 2 * 4 * 4 * 32 * 2 * 3 / 4


def test_auto_sends_fewer_bytes_for_a_tiny_model(tmp_path):
    tiny = ROOT / "configs/llama3-tiny.yaml"
    for mesh in ("fsdp=4", "fsdp=2,tensor=2"):
        auto, own = planned_cost(tiny, "--mesh", mesh, "--sharding", "auto"), planned_cost(tiny, "--mesh", mesh)
        assert auto["bytes"]["fsdp"] < own["bytes"]["fsdp"]


FUSED = """\
shardinit: 1
name: m
dtype: bf16
mesh: {{axes: {{fsdp: 2, tensor: 4}}}}
init: {{n: {{normal: {{std: 0.02}}}}}}
training: {{tokens: 100000}}
modules:
  layers:
    repeat: {{i: 2}}
    gate_up: {{shape: [2048, 512], axes: [mlp, embed], init: n{of_gate_up}}}
    down: {{shape: [512, 1024], axes: [embed, mlp], init: n{of_down}}}
"""


def test_auto_cuts_fused_dimensions_in_segments(tmp_path):
    spec = tmp_path / "spec.yaml"
    costs = {}
    for segments in (1, 2):
        spec.write_text(FUSED.format(of_gate_up=f", shard: [{{axes: tensor, segments: {segments}}}, fsdp]",
                                     of_down=", shard: [fsdp, tensor]"))
        costs[segments] = planned_cost(spec)
    assert costs[1]["cut_otherwise"] == 4 and costs[2]["cut_otherwise"] == 0
    # Activations are sent after the second matrix, in both passes; the weights are not gathered.
    assert costs[2]["bytes"]["tensor"] == 2 * 4 * 100000 * 512 * 2 * 3 / 4
    assert costs[1]["bytes"]["tensor"] == 2 * 2 * 3 * 1024 * 512 * 2 * 3 / 4
    spec.write_text(FUSED.format(of_gate_up="", of_down=""))
    assert explained_partition(spec, "layers.1.gate_up").startswith("[tensor in 2 segments, ")
    assert planned_cost(spec, "--sharding", "auto")["seconds"] <= costs[2]["seconds"]
    # A map describes the segments by placements.
    written = tmp_path / "map.yaml"
    assert run_tool("plan", spec, "--sharding", "auto", "--write", written).returncode == 0
    assert "split_factor=2" in written.read_text()
    assert boxes_on_three_ranks(spec, "--sharding", written) == boxes_on_three_ranks(spec, "--sharding", "auto")
    assert planned_cost(spec, "--sharding", written) == planned_cost(spec, "--sharding", "auto")


LIST_OF_EXPERTS = """\
shardinit: 1
name: m
dtype: bf16
mesh: {axes: {fsdp: 2, expert: 4}}
init: {n: {normal: {std: 0.02}}}
training: {experts_per_token: 2, tokens: 4}
modules:
  layers:
    repeat: {i: 2}
    experts:
      repeat: {e: 8}
      up: {shape: [64, 32], axes: [mlp, embed], init: n}
      down: {shape: [32, 64], axes: [embed, mlp], init: n}
"""


def test_cost_counts_tokens_sent_to_pinned_experts(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(LIST_OF_EXPERTS + 'sharding: [{megatron: {expert: "**.experts.**", num_experts: 8}}]\n')
    hand = planned_cost(spec)
    # Tokens go to the experts and back in both passes; weights are replicated over fsdp.
    assert hand["bytes"] == {"fsdp": 2 * 2 * 2 * 8 / 4 * 64 * 32 * 2 / 2, "expert": 2 * 2 * 4 * 4 * 32 * 2 * 3 / 4}
    stacked = tmp_path / "stacked.yaml"
    stacked.write_text(MIXTURE.replace("data: 2", "fsdp: 2") + "training: {experts_per_token: 2, tokens: 4}\n"
                       "sharding: {rules: [{experts: expert}, {'*': null}]}\n")
    assert planned_cost(stacked) == hand
    # `stage` has the same cost, and so has `auto`, alone or after the language that places experts.
    spec.write_text(LIST_OF_EXPERTS.replace("repeat: {e: 8}", "repeat: {e: 8}\n      stage: {expert: floor(e / 2)}"))
    assert planned_cost(spec) == planned_cost(spec, "--sharding", "auto") == hand
    spec.write_text(LIST_OF_EXPERTS)
    assert planned_cost(spec, "--sharding", "auto") == hand
    assert explained_partition(spec, "layers.1.experts.5.up") == "[-, -] on expert 2"
    explained = json.loads(run_tool("explain", "--json", spec, "layers.1.experts.5.up", "--sharding", "auto").stdout)
    assert {a["partition"] for a in explained["alternatives"]} >= {"[-, -] on expert 2", "[-, -]", "[expert, -]"}
    result = run_tool("plan", spec, "--sharding", "auto", "--write", tmp_path / "map.yaml")
    assert result.returncode == 5 and "a map cannot express stages" in result.stderr
    spec.write_text(LIST_OF_EXPERTS + 'sharding: [{megatron: {expert: "**.experts.**", num_experts: 8}}, auto]\n')
    assert planned_cost(spec) == hand


def test_auto_shards_each_stage_of_a_pipeline(tmp_path):
    spec = tmp_path / "spec.yaml"
    text = f"shardinit: 1\ninclude: {ROOT}/configs/llama3.1-8b.yaml\n"
    spec.write_text(f"{text}mesh: {{axes: [{{fsdp: 8}}, {{tensor: 2}}]}}\nsharding: auto\n")
    one = planned_cost(spec)
    spec.write_text(f"{text}mesh: {{axes: [{{pipe: 4}}, {{fsdp: 8}}, {{tensor: 2}}]}}\n"
                    "sharding: [auto, {pipeline: {axis: pipe, layers: model.layers.*, count: layers}}]\n")
    four = planned_cost(spec)
    assert four["bytes"]["pipe"] == 0
    # A stage has a quarter of the layers and possibly the table or the head.
    assert one["seconds"] / 4 < four["seconds"] < one["seconds"] / 2
    explained = json.loads(run_tool("explain", "--json", spec, "model.layers.9.mlp.up_proj.weight").stdout)
    assert explained["partition"].endswith(" on pipe 1")
    # The slowest stage costs as much as a model with only its layers and the head.
    spec.write_text(f"{text}vars: {{layers: 8}}\nmesh: {{axes: [{{fsdp: 8}}, {{tensor: 2}}]}}\nsharding: auto\n"
                    "modules: {model: {embed_tokens.weight: {when: 0}}}\n")
    alone = planned_cost(spec)
    assert four["seconds"] == pytest.approx(alone["seconds"], rel=1e-12)
    assert four["bytes"] == {"pipe": 0, **alone["bytes"]}


REPEATED = """shardinit: 1
name: x
dtype: bf16
mesh: {axes: {fsdp: 2, tensor: 4, pipe: 3}}
training: {tokens: 4096}
"""


@pytest.mark.parametrize("head, keys", [
    ("sharding: {layers.0.w: [tensor, fsdp], layers.1.w: [null, fsdp], layers.2.w: [[fsdp, tensor], null]}\n", ""),
    ("rules: [{a: tensor}, {b: fsdp}]\n", ", axes: [a, b], stage: {pipe: LAYER}"),
    ("rules: [{a: tensor}, {b: fsdp}]\n", ", axes: [a, b], stage: {pipe: 'min(1, LAYER)'}"),
])
def test_repeat_costs_the_same_as_its_tensors_written_out(tmp_path, head, keys):
    """A repeat whose tensors differ in shape, sharding or stage costs the same as its tensors written out."""
    tensor = f"{{shape: [512 + 64 * (LAYER % 2), 256], init: zeros{keys}}}\n"
    (tmp_path / "repeat.yaml").write_text(f"{REPEATED}{head}modules:\n  layers:\n    repeat: {{layer: 3}}\n    w: "
                                          + tensor.replace("LAYER", "layer"))
    (tmp_path / "whole.yaml").write_text(f"{REPEATED}{head}modules:\n" + "".join(
        f"  layers.{i}.w: " + tensor.replace("LAYER", str(i)) for i in range(3)))
    cost = planned_cost(tmp_path / "repeat.yaml")
    assert cost == planned_cost(tmp_path / "whole.yaml") and cost["memory"] > 0
