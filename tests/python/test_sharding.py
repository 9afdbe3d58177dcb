"""Compares sharding languages with the systems that they come from: JAX and PyTorch make the same boxes, and each
preset shards like its trainer."""

import itertools
import json
import math
import pathlib
import random
import subprocess
import sys

import numpy as np
import pytest
import yaml

from clients import client_of
from support import ROOT, TINY, reassemble, run_json, run_ok, run_tool, sha256_of, tree_of

import shardinit

PRESETS = sorted((ROOT / "configs/sharding").glob("*.yaml"))


def ask(function, *arguments):
    """Calls a function of sharding_clients.py in another process."""
    script = pathlib.Path(__file__).with_name("sharding_clients.py")
    result = subprocess.run([sys.executable, script, function], input=json.dumps(arguments),
                            capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def write(path, mesh, tensors, sharding, **keys):
    """Writes a spec with tensors of zeros, each given by a shape, or by a shape and axis names."""
    def tensor_entry(shape, axes=None):
        return {"shape": shape, "init": "zeros", **({"axes": axes} if axes else {})}

    spec = {"shardinit": 1, "name": "x", "dtype": "f32", "replicas": "full", "mesh": {"axes": mesh},
            "sharding": sharding, **keys,
            "modules": {name: tensor_entry(*tensor) if isinstance(tensor, tuple) else tensor_entry(tensor)
                        for name, tensor in tensors.items()}}
    path.write_text(yaml.safe_dump(spec, sort_keys=False, width=10**6))
    return path


def rank_boxes(spec, rank, *arguments):
    """Returns path → [offset, shape] of each box that a rank holds."""
    boxes = {}
    for box in run_json("plan", spec, "--rank", rank, "--replicas", "full", *arguments)["boxes"]:
        boxes.setdefault(box["path"], []).append([box["offset"], box["shape"]])
    return boxes


def element_indices(shape, boxes):
    """Returns the sorted indices of a tensor's elements in boxes."""
    index = np.arange(math.prod(shape)).reshape(shape)
    parts = [index[tuple(slice(o, o + n) for o, n in zip(*box))].ravel() for box in boxes]
    return sorted(np.concatenate(parts).tolist()) if parts else []


# JAX --------------------------------------------------------------------------

def random_spec(rng, mesh, rank):
    """Returns a PartitionSpec over some of the axes, and a shape that it divides."""
    axes, spec, shape = rng.sample(list(mesh), rng.randint(0, len(mesh))), [], []
    for _ in range(rank):
        take = [axes.pop() for _ in range(rng.choice([0, 1, 1, 2])) if axes]
        spec.append(None if not take else take[0] if len(take) == 1 and rng.random() < 0.7 else take)
        shape.append(math.prod(mesh[a] for a in take) * rng.randint(1, 3))
    while spec and spec[-1] is None and rng.random() < 0.5:
        spec.pop()  # shorter than the rank
    return spec, shape


@pytest.mark.parametrize("devices, meshes, tensors", [
    (8, [{"x": 8}, {"x": 2, "y": 4}, {"x": 4, "y": 1, "z": 2}, {"x": 2, "y": 2, "z": 2}], 60),
    (512, [{"fsdp": 128, "tensor": 4}, {"data": 2, "fsdp": 64, "tensor": 4}], 60),
])
def test_boxes_match_named_sharding(tmp_path, devices, meshes, tensors):
    client_of("jax")
    rng = random.Random(devices)
    cases = [[list(mesh), list(mesh.values()), shape, spec]
             for mesh in meshes for _ in range(tensors)
             for spec, shape in [random_spec(rng, mesh, rng.randint(1, 4))]]
    answers = ask("named_sharding_boxes", devices, cases)
    for m, mesh in enumerate(meshes):
        mine = slice(m * tensors, (m + 1) * tensors)
        shapes = {f"w{i}": case[2] for i, case in enumerate(cases[mine])}
        as_python = {f"w{i}": text for i, (text, _) in enumerate(answers[mine])}
        as_lists = {f"w{i}": case[3] for i, case in enumerate(cases[mine])}
        spec = write(tmp_path / f"{m}.yaml", mesh, shapes, as_python)
        lists = write(tmp_path / f"{m}-lists.yaml", mesh, shapes, {"map": as_lists})
        ranks = range(devices) if devices <= 8 else [0, devices - 1, *rng.sample(range(devices), 6)]
        for rank in ranks:
            boxes = rank_boxes(spec, rank)
            for i, (text, expected) in enumerate(answers[mine]):
                assert boxes[f"w{i}"] == [expected[rank]], (mesh, shapes[f"w{i}"], text, rank)
            assert rank_boxes(lists, rank) == boxes


def test_rules_match_flax(tmp_path):
    flax = client_of("flax.linen")
    rng = random.Random(3)
    mesh, names = {"x": 2, "y": 2, "z": 2}, ["a", "b", "c", "d", "e"]
    for turn in range(20):
        rules = [(rng.choice(names), rng.choice([None, "x", "y", "z", ("x", "z"), ("y", "x")]))
                 for _ in range(rng.randint(3, 9))]
        known = sorted({name for name, _ in rules})
        tensors = {f"w{i}": rng.sample(known, rng.randint(1, len(known))) for i in range(8)}
        twice = rng.choices(known, k=rng.randint(2, 3)) + known[:1]
        tensors["all"] = known
        written = [[name, list(axes) if isinstance(axes, tuple) else axes] for name, axes in rules]
        spec = write(tmp_path / f"{turn}.yaml", mesh, {n: ([8] * len(a), a) for n, a in tensors.items()},
                     {"rules": written})
        for name, axes in tensors.items():
            expected = [None if not entry else entry if isinstance(entry, tuple) else (entry,)
                        for entry in flax.logical_to_mesh_axes(axes, rules)]
            text = ", ".join("-" if entry is None else "+".join(entry) for entry in expected)
            assert run_json("explain", spec, name)["partition"] == f"[{text}]", (rules, axes)
        # Both Flax and shardinit reject two axes with one name.
        spec = write(tmp_path / f"{turn}.yaml", mesh,
                     {"all": ([8] * len(known), known), "w": ([8] * len(twice), twice)},
                     {"rules": written})
        result = run_tool("plan", spec)
        if len(set(twice)) == len(twice):
            assert flax.logical_to_mesh_axes(twice, rules) and result.returncode == 0
            continue
        with pytest.raises(ValueError, match="occur more than once"):
            flax.logical_to_mesh_axes(twice, rules)
        assert result.returncode == 2 and "is the name of two axes" in result.stderr


# PyTorch ----------------------------------------------------------------------

def random_placements(rng, mesh):
    """Returns for each mesh axis one of three dimensions and a split factor, or None; and a shape."""
    cuts = [rng.choice([None, 0, 1, 2, 0, 1]) for _ in mesh]
    shape, placements = [], [None] * len(mesh)
    for d in range(3):
        axes = [a for a, cut in enumerate(cuts) if cut == d]
        for a in axes:
            placements[a] = [d, None]
        strided = rng.random() < 0.5 and axes
        if strided and len(axes) > 1 and rng.random() < 0.5:
            # As fully_shard leaves it: this axis shards after all later axes.
            placements[axes[0]] = [d, math.prod(mesh[a] for a in axes[1:])]
        elif strided:  # any axes, sharding before or after others
            for a in rng.sample(axes, rng.randint(1, len(axes))):
                placements[a] = [d, rng.randint(1, 4)]
        even = math.prod(mesh[a] for a in axes)
        shape.append(even * rng.randint(1, 3) if rng.random() < 0.3 else rng.randint(1, 23))
    return placements, shape


def test_boxes_match_dtensor(tmp_path):
    client_of("torch")
    rng = random.Random(7)
    meshes = [{"a": 8}, {"a": 2, "b": 2}, {"a": 4, "b": 2}, {"a": 2, "b": 2, "c": 2}, {"a": 2, "b": 3},
              {"a": 3, "b": 1, "c": 4}]
    tensors, nested, segments = 100, 0, 0
    cases = [[list(mesh.values()), shape, cuts] for mesh in meshes for _ in range(tensors)
             for cuts, shape in [random_placements(rng, list(mesh.values()))]]
    answers = ask("placement_boxes", cases)
    for m, mesh in enumerate(meshes):
        mine = slice(m * tensors, (m + 1) * tensors)
        shapes = {f"w{i}": case[1] for i, case in enumerate(cases[mine])}
        spec = write(tmp_path / f"{m}.yaml", mesh, shapes,
                     {"uneven": "chunk", **{f"w{i}": text for i, (text, _) in enumerate(answers[mine])}})
        run_ok("gen", spec, "-o", tmp_path / f"{m}")
        plan = json.loads((tmp_path / f"{m}/plan.json").read_text())
        nested += sum("nested" in tensor for tensor in plan["tensors"])
        with shardinit.open(tmp_path / f"{m}") as checkpoint:
            for rank in range(math.prod(mesh.values())):
                boxes = rank_boxes(spec, rank)
                for i, (text, elements) in enumerate(answers[mine]):
                    shape, held = shapes[f"w{i}"], boxes.get(f"w{i}", [])
                    assert element_indices(shape, held) == sorted(elements[rank]), (mesh, shape, text, rank)
                    # They are in order, as in DTensor.
                    segments += len(held) > 1
                    assert checkpoint.boxes(f"w{i}", rank) == [(tuple(o), tuple(n)) for o, n in held]
    assert nested > 60 and segments > 300


@pytest.mark.parametrize("mesh, width, hidden, vocab", [
    ([2, 2], 8, 16, 24), ([3, 2], 7, 10, 23), ([2, 3], 10, 20, 13)], ids=str)
def test_boxes_match_fully_shard_after_parallelize_module(mesh, width, hidden, vocab, tmp_path):
    """Boxes follow from the sharding languages and from the placements that PyTorch leaves over gloo, even if the parts
    of tensor parallelism or fully_shard are unequal."""
    client_of("torch")
    ranks = ask("fully_shard_boxes", mesh, 2, width, hidden, vocab)
    tensors = {"embed.weight": ([vocab, width], ["vocab", "embed"])}
    for i in range(2):
        tensors |= {
            f"layers.{i}.up.weight": ([hidden, width], ["mlp", "embed"]),
            f"layers.{i}.up.bias": ([hidden], ["mlp"]),
            f"layers.{i}.down.weight": ([width, hidden], ["embed", "mlp"]),
            f"layers.{i}.down.bias": ([width], ["embed"]),
            f"layers.{i}.norm.weight": ([width], ["norm"]),
            f"layers.{i}.norm.bias": ([width], ["norm"]),
        }
    assert set(ranks[0]) == set(tensors)
    mesh = dict(zip(["fsdp", "tensor"], mesh))
    specs = [
        write(tmp_path / "languages.yaml", mesh, tensors,
              [{"haliax": {"vocab": "tensor", "mlp": "tensor"}}, "fully_shard"]),
        write(tmp_path / "roles.yaml", mesh, tensors,
              [{"megatron": {"vocab": "embed.weight", "column": "layers.*.up.*", "row": "layers.*.down.*"}},
               {"fully_shard": {"axes": "fsdp"}}]),
        write(tmp_path / "placements.yaml", mesh, tensors,
              {"uneven": "chunk", **{path: placements for path, (placements, _) in ranks[0].items()}}),
    ]
    strided = ranks[0]["layers.0.up.weight"][0]
    assert strided["fsdp"].startswith("_StridedShard(dim=0") and strided["tensor"] == "Shard(dim=0)"
    for spec in specs:
        for rank, parameters in enumerate(ranks):
            boxes = rank_boxes(spec, rank)
            for path, (_, elements) in parameters.items():
                held = element_indices(tensors[path][0], boxes.get(path, []))
                assert held == sorted(elements), (spec.name, path, rank)


def test_torchtitan_preset_matches_torchtitan(tmp_path):
    """configs/sharding/torchtitan.yaml shards torchtitan's model like torchtitan's own functions, with context
    parallelism and replicas (HSDP)."""
    client_of("torchtitan")
    names = {"dp_replicate": "replicate", "dp_shard": "fsdp", "cp": "context", "tp": "tensor"}
    cases = [[dict(zip(names, degrees)), rank] for degrees, ranks in [
        ((1, 2, 2, 2), [3, 6]), ((2, 2, 1, 4), [7, 9]), ((1, 4, 1, 1), [3])] for rank in ranks]
    answers = ask("torchtitan_boxes", cases, [256, 768, 2, 8, 4, 8192])
    for (degrees, rank), boxes in zip(cases, answers):
        spec = preset_of(tmp_path / "spec.yaml", "torchtitan", **{names[d]: n for d, n in degrees.items()})
        expected = {path: [box] for path, box in boxes.items()}
        assert len(expected) == 21 and rank_boxes(spec, rank, "--layout", "torchtitan") == expected


def test_megatron_preset_matches_megatron(tmp_path):
    """configs/sharding/megatron.yaml shards Megatron-core's model like Megatron-core, with virtual stages and context
    parallelism. Megatron's two halves of [gate; up] are one box of the layout's fused rows."""
    client_of("megatron")
    degrees = ["tensor", "pipe", "virtual", "context", "data"]
    cases = [[dict(zip(degrees, numbers)), rank] for numbers, ranks in [
        ((2, 2, 2, 1, 1), [0, 3]), ((4, 1, 1, 2, 1), [3, 6]), ((2, 4, 1, 1, 2), [5, 14])] for rank in ranks]
    answers = ask("megatron_boxes", cases, [256, 768, 8, 8, 4, 8192])
    for (numbers, rank), parameters in zip(cases, answers):
        spec = preset_of(tmp_path / "spec.yaml", "megatron", layers=8, **numbers)
        boxes, whole = rank_boxes(spec, rank, "--layout", "megatron"), rank_boxes(spec, rank)
        assert boxes.keys() == parameters.keys()
        for name, (parts, shape) in parameters.items():
            assert [boxes[name][0][1]] == [shape]
            if "linear_fc1" not in name:
                assert boxes[name] == parts, (numbers, rank, name)
                continue
            gate, up = ([[box[0][0] - offset, box[0][1]], box[1]] for box, offset in zip(parts, (0, 768)))
            layer = f"model.layers.{name.split('.')[2]}.mlp."
            assert [whole[layer + "gate_proj.weight"], whole[layer + "up_proj.weight"]] == [[gate], [up]]


def test_experts_match_megatron(tmp_path):
    """Each rank has the same experts as with Megatron-core's SequentialMLP, also if ranks of context parallelism have
    different experts, and with stages."""
    client_of("megatron")
    degrees = ["tensor", "pipe", "context", "expert", "data"]
    cases = [[dict(zip(degrees, numbers)), rank] for numbers, ranks in [
        ((2, 1, 1, 4, 1), [0, 5, 7]), ((1, 2, 1, 2, 2), [3, 6]), ((2, 1, 2, 2, 2), [3, 7, 12])] for rank in ranks]
    # Experts with their own degree of tensor parallelism.
    cases += [[dict(zip([*degrees, "expert_tensor"], numbers)), rank] for numbers, ranks in [
        ((2, 1, 1, 2, 1, 1), [0, 1, 2, 3]), ((4, 1, 1, 1, 2, 2), [0, 3, 6]), ((4, 2, 1, 2, 1, 1), [5, 11]),
        ((4, 1, 2, 1, 1, 2), [1, 2, 7])] for rank in ranks]
    answers = ask("megatron_boxes", [
        [dict(of, virtual=1, data=of["data"] * of["expert"],
              expert_parallel=of["expert"] * of["context"] * of["tensor"] // of.get("expert_tensor", of["tensor"])),
         rank]
        for of, rank in cases], [64, 128, 2, 8, 4, 512], 8)
    for (of, rank), parameters in zip(cases, answers):
        spec = preset_of(tmp_path / "spec.yaml", "megatron-experts", ROOT / "configs/mixtral-8x7b.yaml",
                      **SMALL | {"layers": 2, "head_dim": 8}, **of)
        boxes = rank_boxes(spec, rank, "--layout", "megatron")
        assert boxes.keys() == parameters.keys()
        experts = [name for name in boxes if "local_experts" in name]
        fold = of["tensor"] // of.get("expert_tensor", of["tensor"])
        assert len(experts) == 2 * 8 * 2 // of["pipe"] // (of["expert"] * of["context"] * fold)
        for name, (parts, shape) in parameters.items():
            if "linear_fc1" in name:  # halves of [gate; up], which form the layout's rows
                assert [box[0] for box in parts] == [[parts[0][0][0] + half, 0] for half in (0, 128)]
                parts = [[[2 * parts[0][0][0], 0], shape]]
            assert boxes[name] == parts, (of, rank, name)


def test_experts_match_torchtitan(tmp_path):
    """`fully_shard` shards experts by number or by rows, for each combination of axes."""
    client_of("torchtitan")
    axes = ["replicate", "fsdp", "expert", "context", "tensor"]
    cases = [dict(zip(axes, degrees)) for degrees in itertools.product((1, 2, 8), (2, 4, 8), (1, 2), (1, 2), (1, 2))]
    ranks = [[of["replicate"], math.prod(of.values()) // of["replicate"], of["expert"] * of["context"] * of["tensor"]]
             for of in cases]
    expected = ask("titan_expert_dimensions", ranks, 8)
    assert set(expected) == {0, 1}
    for of, dimension in zip(cases, expected):
        spec = preset_of(tmp_path / "spec.yaml", "torchtitan-experts", ROOT / "configs/mixtral-8x7b.yaml",
                         **SMALL | {"layers": 1}, **of)
        ((_, shape),) = rank_boxes(spec, 0)["model.layers.0.mlp.experts.gate_up_proj"]
        assert (shape[1] < 2 * SMALL["ff"]) == (dimension == 1), (of, shape)


def test_stages_match_torchtitan(tmp_path):
    pipeline = client_of("torchtitan.distributed.pipeline_parallel")
    for layers, ranks, virtual in [(8, 2, 1), (8, 2, 2), (32, 4, 2), (10, 3, 1), (80, 4, 1), (126, 16, 1)]:
        stages = pipeline._generate_llm_fqn_per_model_part(ranks * virtual, layers, 1, 1)
        of = {name: i % ranks for i, names in enumerate(stages) for name in names}
        spec = tmp_path / "spec.yaml"
        spec.write_text(f"""
shardinit: 1
include: {ROOT}/configs/sharding/torchtitan.yaml
name: x
dtype: f32
vars: {{layers: {layers}, pipe: {ranks}, virtual: {virtual}, fsdp: 1}}
modules:
  tok_embeddings: {{shape: [4], axes: [table_rows], init: zeros}}
  layers: {{repeat: {{i: layers}}, a: {{shape: [4], axes: [heads], init: zeros}}, b: {{shape: [4], axes: [mlp], init: zeros}}}}
  norm: {{shape: [4], init: zeros}}
  lm_head: {{shape: [4], axes: [vocab], init: zeros}}
""")
        for rank in range(ranks):
            held = {path.removesuffix(".a").removesuffix(".b") for path in rank_boxes(spec, rank)}
            assert held == {name for name, stage in of.items() if stage == rank and name != "rotary_emb"}


# Presets ----------------------------------------------------------------------

def preset_of(path, preset, model=TINY, **variables):
    path.write_text(f"shardinit: 1\ninclude: [{model}, {ROOT}/configs/sharding/{preset}.yaml]\n"
                    f"vars: {json.dumps(variables)}\n")
    return path


def test_torchtitan_preset_shards_by_columns_and_rows(tmp_path):
    spec = preset_of(tmp_path / "spec.yaml", "torchtitan", pipe=2, replicate=2, fsdp=2, context=2, tensor=4)
    assert run_json("plan", spec)["mesh"] == {"axes": ["pipe", "replicate", "fsdp", "context", "tensor"],
                                              "shape": [2, 2, 2, 2, 4]}
    expected = {
        "model.embed_tokens.weight": "[tensor+fsdp+context, -] on pipe 0",
        "model.layers.0.self_attn.q_proj.weight": "[tensor+fsdp+context, -] on pipe 0",
        "model.layers.0.self_attn.o_proj.weight": "[fsdp+context, tensor] on pipe 0",
        "model.layers.1.mlp.gate_proj.weight": "[tensor+fsdp+context, -] on pipe 1",
        "model.layers.1.mlp.down_proj.weight": "[fsdp+context, tensor] on pipe 1",
        "model.layers.1.input_layernorm.weight": "[fsdp+context] on pipe 1",
        "model.norm.weight": "[fsdp+context] on pipe 1",
        "lm_head.weight": "[tensor+fsdp+context, -] on pipe 1",
    }
    for path, partition in expected.items():
        assert run_json("explain", spec, path)["partition"] == partition
    stored = {"layers.1.attention.qkv_linear.wq.weight": "[tensor+fsdp+context, -] on pipe 1",
              "tok_embeddings.weight": "[tensor+fsdp+context, -] on pipe 0"}
    for path, partition in stored.items():
        assert run_json("explain", spec, path, "--layout", "torchtitan")["partition"] == partition


def test_expert_presets_shard_experts(tmp_path):
    model = ROOT / "configs/mixtral-8x7b.yaml"
    expert, gate = "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.gate.weight"
    titan = preset_of(tmp_path / "titan.yaml", "torchtitan-experts", model, fsdp=2, expert=2, tensor=2)
    assert run_json("explain", titan, expert)["partition"] == "[expert+context+tensor+fsdp, -, -]"
    assert run_json("explain", titan, gate)["partition"] == "[fsdp+expert+context, -]"
    # With more ranks than experts, the second dimension is sharded.
    titan = preset_of(tmp_path / "titan.yaml", "torchtitan-experts", model, fsdp=4, expert=2, tensor=2)
    assert run_json("explain", titan, expert)["partition"] == "[expert+context+tensor, fsdp, -]"
    maxtext = preset_of(tmp_path / "maxtext.yaml", "maxtext-experts", model, fsdp=2, expert=2, tensor=2)
    assert run_json("explain", maxtext,
                    expert)["partition"] == "[expert, fsdp_transpose+tensor+tensor_sequence, fsdp+context]"


def test_torchprime_405b_preset_matches_its_guide(tmp_path):
    """Field guide 2.2: each matrix is one box on each of 128 × 4 ranks."""
    spec = preset_of(tmp_path / "spec.yaml", "torchprime-405b", ROOT / "configs/llama3.1-405b.yaml")
    plan = run_json("plan", spec, "--rank", 511)
    assert plan["mesh"] == {"axes": ["fsdp", "tensor"], "shape": [128, 4]}
    boxes = {box["path"]: box for box in plan["boxes"]}
    assert boxes["model.embed_tokens.weight"]["shape"] == [1002, 4096]
    assert boxes["model.layers.125.self_attn.q_proj.weight"]["shape"] == [4096, 128]
    assert boxes["model.layers.125.mlp.down_proj.weight"]["offset"] == [16256, 39936]


@pytest.mark.parametrize("tensor, vocab, padded", [
    (1, 128256, 128256), (2, 128256, 128256), (4, 128256, 128512), (8, 128256, 129024), (16, 128256, 129024),
    (1, 50257, 50304), (2, 50257, 50432), (4, 50257, 50688), (8, 50257, 51200)])
def test_megatron_preset_pads_the_vocabulary(tmp_path, tensor, vocab, padded):
    spec = preset_of(tmp_path / "spec.yaml", "megatron", tensor=tensor, vocab=vocab, heads=16, kv_heads=16,
                  head_dim=16)
    boxes = rank_boxes(spec, tensor - 1, "--layout", "megatron")
    part = padded // tensor
    assert boxes["embedding.word_embeddings.weight"] == [[[padded - part, 0], [part, 256]]]
    assert boxes["output_layer.weight"] == [[[padded - part, 0], [part, 256]]]
    assert boxes["decoder.layers.1.mlp.linear_fc2.weight"][0][1] == [256, 768 // tensor]
    assert boxes["decoder.final_layernorm.weight"] == [[[0], [256]]]


def test_megatron_layout_fuses_by_groups_and_ranks(tmp_path):
    """Field guide 3.4, for 405B: a group of heads is 2304 rows of linear_qkv, and ranks hold whole groups. A rank's
    rows of linear_fc1 are its gate and up projections."""
    spec = preset_of(tmp_path / "spec.yaml", "megatron", ROOT / "configs/llama3.1-405b.yaml", tensor=8, pipe=2,
                  virtual=9)
    layer = "decoder.layers.{}.self_attention.linear_qkv.weight"
    boxes = rank_boxes(spec, 15, "--layout", "megatron")  # tensor 7, pipe 1
    assert boxes[layer.format(7)] == [[[7 * 2304, 0], [2304, 16384]]]
    # 126 layers in 18 stages of 7, alternating between the two ranks.
    held = [i for i in range(126) if layer.format(i) in boxes]
    assert held == [i for i in range(126) if i // 7 % 2 == 1]
    assert boxes["decoder.layers.7.mlp.linear_fc1.weight"] == [[[7 * 13312, 0], [13312, 16384]]]
    assert boxes["output_layer.weight"][0][1] == [129024 // 8, 16384]
    assert "embedding.word_embeddings.weight" not in boxes


def test_maxtext_preset_shards_stacked_layers(tmp_path):
    """Field guide 3.6: MaxText stacks layers on axis 1, and its rules shard the dimensions that they shard without
    stacking."""
    spec = preset_of(tmp_path / "spec.yaml", "maxtext", fsdp=4, tensor=2)
    query = run_json("explain", spec, "params.params.decoder.layers.self_attention.query.kernel", "--layout", "maxtext")
    assert query["shape"] == [256, 2, 8, 32]
    assert query["partition"] == "[fsdp+fsdp_transpose+context+expert, -, tensor+tensor_sequence, -]"
    wo = run_json("explain", spec, "params.params.decoder.layers.mlp.wo.kernel", "--layout", "maxtext")
    assert wo["shape"] == [768, 2, 256]
    assert wo["partition"] == "[fsdp_transpose+tensor+tensor_sequence, -, fsdp+context+expert]"


def test_uneven_parts_match_torch_chunk(tmp_path):
    """Field guide 3.1: 10 over 4 are 3, 3, 3, 1; 128256 over 512 are 251 each, at the end 246 and 0."""
    tensors = {"a": [10], "b": [6], "c": [5]}
    spec = write(tmp_path / "small.yaml", {"fsdp": 4}, tensors, "fsdp")
    sizes = {name: [rank_boxes(spec, rank).get(name, [[[0], [0]]])[0][1][0] for rank in range(4)] for name in tensors}
    assert sizes == {"a": [3, 3, 3, 1], "b": [2, 2, 2, 0], "c": [2, 2, 1, 0]}
    spec = write(tmp_path / "large.yaml", {"fsdp": 512}, {"w": [128256, 4]}, "fsdp")
    assert [rank_boxes(spec, rank).get("w", [[[], [0, 4]]])[0][1] for rank in (0, 509, 510, 511)] == [
        [251, 4], [251, 4], [246, 4], [0, 4]]


def test_sharding_map_of_the_first_405b_run(tmp_path):
    """Field guide 2.3: lm_head is sharded in its first dimension by both axes, with tensor as the major one."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"""
shardinit: 1
include: {ROOT}/configs/llama3.1-405b.yaml
sharding:
  model.embed_tokens.weight: ('fsdp', 'tensor')
  model.layers.*.self_attn.[qkv]_proj.weight: ('tensor', 'fsdp')
  model.layers.*.self_attn.o_proj.weight: ('fsdp', 'tensor')
  model.layers.*.mlp.gate_proj.weight: ('tensor', 'fsdp')
  model.layers.*.mlp.up_proj.weight: ('tensor', 'fsdp')
  model.layers.*.mlp.down_proj.weight: ('fsdp', 'tensor')
  lm_head.weight: (('tensor', 'fsdp'), None)
uneven: chunk
""")
    boxes = rank_boxes(spec, 4 * 3 + 2)  # fsdp 3, tensor 2
    assert boxes["lm_head.weight"] == [[[(2 * 128 + 3) * 251, 0], [251, 16384]]]
    assert boxes["model.norm.weight"] == [[[0], [16384]]]


def test_fsdpv2_and_t5x_presets(tmp_path):
    fsdp = preset_of(tmp_path / "fsdp.yaml", "fsdpv2", data=2, fsdp=4)
    assert run_json("explain", fsdp, "model.layers.0.mlp.down_proj.weight")["partition"] == "[-, fsdp]"
    assert run_json("explain", fsdp, "model.layers.0.self_attn.q_proj.weight")["partition"] == "[fsdp, -]"
    t5x = preset_of(tmp_path / "t5x.yaml", "t5x", ROOT / "configs/t5-11b.yaml")
    wi, bias = "encoder.block.0.layer.1.DenseReluDense.wi.weight", "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    assert run_json("explain", t5x, wi)["partition"] == "[model, data]"
    assert run_json("explain", t5x, bias)["partition"] == "[-, model]"


@pytest.mark.parametrize("preset", PRESETS, ids=lambda p: p.stem)
def test_presets_do_not_change_values(preset, tmp_path):
    model = {"t5x": "t5-11b", "torchprime-405b": "llama3.1-405b"}.get(
        preset.stem, "mixtral-8x7b" if "experts" in preset.stem else "llama3.1-70b")
    spec = preset_of(tmp_path / "spec.yaml", preset.stem, ROOT / f"configs/{model}.yaml")
    run_ok("validate", spec)
    alone = tmp_path / "alone.yaml"
    alone.write_text(f"shardinit: 1\ninclude: {ROOT}/configs/{model}.yaml\n")
    names = run_json("plan", alone)["tensors"], run_json("plan", spec)["tensors"]
    assert names[0] == names[1]
    assert [line for line in preset.read_text().splitlines()[1:] if line.startswith("# ")], "no source"


# Places for a sharding -----------------------------------------------------------

def test_sharding_accepts_a_torchprime_map_unchanged(tmp_path):
    """PyTorch/XLA's map for Llama, including activations, works as a key and as an option."""
    lines = (ROOT / "configs/sharding/torchprime-405b.yaml").read_text().partition("sharding:\n")[2]
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps/llama.yaml").write_text("# Weights\n" + "".join(line[2:] for line in lines.splitlines(True)) + """
# Activations
model.layers.*.self_attn.q_proj: [[data, fsdp], context, tensor]
model.layers.*.mlp.up_proj: [[data, fsdp], null, tensor]
model.layers.*: [[data, fsdp], null, tensor]
model.layers.*[0]: [[fsdp, data], null, null]
lm_head: [[fsdp, data], null, null]
""")
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"shardinit: 1\ninclude: {TINY}\nsharding: maps/llama.yaml\n")
    by_key = rank_boxes(spec, 3)
    by_option = json.loads(run_ok("plan", TINY, "--rank", "3", "--json", "--replicas", "full", "--sharding",
                                  "maps/llama.yaml", cwd=tmp_path).stdout)["boxes"]
    assert by_key == {box["path"]: [[box["offset"], box["shape"]]] for box in by_option}
    assert by_key["model.embed_tokens.weight"] == [[[4096, 128], [4096, 128]]]
    assert by_key["model.norm.weight"] == [[[128], [128]]]
    # A file that includes the spec can use rules again.
    again = tmp_path / "again.yaml"
    again.write_text("shardinit: 1\ninclude: spec.yaml\nrules: [{heads: null}, {mlp: null}, {vocab: null}, {embed: "
                     "null}, "
                     "{table_rows: null}, {table_columns: null}, {norm: null}]\n")
    assert rank_boxes(again, 3)["model.norm.weight"] == [[[0], [256]]]


SMALL = {"d": 64, "ff": 128, "layers": 4, "heads": 8, "kv_heads": 4, "head_dim": 16, "vocab": 512}
RINGS = "slice_order: {}, devices: hybrid_ring_64x4"


@pytest.mark.parametrize("model, preset, variables, mesh, world", [
    ("llama3-tiny", None, {}, "{axes: {fsdp: 1, tensor: 1}}", 1),
    ("llama3-tiny", None, {}, "{axes: {fsdp: 2, tensor: 2}}", 4),
    ("llama3-tiny", None, {}, "{axes: {fsdp: 64, tensor: 4}}", 256),
    ("llama3-tiny", None, {}, f"{{axes: {{fsdp: 128, tensor: 4}}, slices: {{fsdp: 2}}, {RINGS.format('outer')}}}", 512),
    ("llama3-tiny", None, {}, f"{{axes: {{fsdp: 128, tensor: 4}}, slices: {{fsdp: 2}}, {RINGS.format('inner')}}}", 512),
    ("llama3-tiny", None, {}, "{axes: {fsdp: 32, tensor: 8}, devices: hybrid_ring_32x8}", 256),
    ("llama3-tiny", "torchtitan", {"fsdp": 2, "tensor": 2}, None, 4),  # _StridedShard
    ("llama3-tiny", "torchtitan", {"fsdp": 7, "tensor": 1}, None, 7),
    ("llama3-tiny", "megatron", {"pipe": 2, "virtual": 2, "tensor": 2}, None, 4),
    ("mixtral-8x7b", "torchtitan-experts", {"expert": 4, "fsdp": 1, "tensor": 1}, None, 4),
    ("mixtral-8x7b", "megatron-experts", {"expert": 4, "pipe": 2, "tensor": 2}, None, 16),
])
def test_rank_files_of_any_sharding_hold_the_model(model, preset, variables, mesh, world, tmp_path):
    """h5py assembles all rank files to tensors with the digests of whole tensors."""
    spec = tmp_path / "spec.yaml"
    presets = [ROOT / f"configs/sharding/{preset}.yaml"] if preset else []
    spec.write_text(f"shardinit: 1\ninclude: [{', '.join(map(str, [ROOT / f'configs/{model}.yaml', *presets]))}]\n"
                    f"uneven: chunk\nvars: {json.dumps(SMALL | variables)}\n" + (f"mesh: {mesh}\n" if mesh else ""))
    alone = tmp_path / "alone.yaml"
    alone.write_text(f"shardinit: 1\ninclude: {ROOT}/configs/{model}.yaml\nvars: {json.dumps(SMALL)}\n")
    expected = {t["path"]: t["sha256"] for t in run_json("digest", alone)["tensors"]}
    run_ok("gen", spec, "-o", tmp_path / "out")
    assert run_json("plan", spec)["world_size"] == world
    assert {path: sha256_of(words) for path, (_, words) in reassemble(tmp_path / "out").items()} == expected


@pytest.mark.parametrize("variables", [{"expert": 4, "tensor": 1}, {"expert": 2, "context": 2, "pipe": 2, "tensor": 2},
                                       {"expert": 1, "tensor": 1}])
def test_rank_files_of_single_experts_hold_the_model(tmp_path, variables):
    """Each expert is one tensor, stored only by its ranks; together they have the layout's digests."""
    spec = preset_of(tmp_path / "spec.yaml", "megatron-experts", ROOT / "configs/mixtral-8x7b.yaml",
                     **SMALL | variables)
    alone = preset_of(tmp_path / "alone.yaml", "megatron-experts", ROOT / "configs/mixtral-8x7b.yaml",
                   **SMALL | {"tensor": variables["tensor"]})
    layout = ["--layout", "megatron"]
    run_ok("gen", spec, "-o", tmp_path / "out", *layout)
    run_ok("verify", tmp_path / "out")
    stored = reassemble(tmp_path / "out")
    experts = [path for path in stored if "local_experts" in path]
    assert len(experts) == 8 * 2 * SMALL["layers"]
    run_ok("gen", alone, "-o", tmp_path / "drawn")
    drawn = reassemble(tmp_path / "drawn")
    for path in experts:
        if path.endswith("linear_fc2.weight"):
            layer, expert = int(path.split(".")[2]), int(path.split(".")[6])
            whole = drawn[f"model.layers.{layer}.mlp.experts.down_proj"][1]
            assert np.array_equal(stored[path][1], whole[expert])
    run_ok("gen", alone, "-o", tmp_path / "one", *layout)
    one = reassemble(tmp_path / "one")
    assert stored.keys() == one.keys() and all(np.array_equal(stored[p][1], one[p][1]) for p in one)
    run_ok("reshard", tmp_path / "out", "--spec", alone, *layout, "-o", tmp_path / "again")
    assert tree_of(tmp_path / "again") == tree_of(tmp_path / "one")


def test_rank_files_hold_their_pipeline_stage(tmp_path):
    """Ranks hold the tensors of their stage, and together all tensors."""
    spec = preset_of(tmp_path / "spec.yaml", "torchtitan", fsdp=2, pipe=2, tensor=1)
    run_ok("gen", spec, "-o", tmp_path / "out")
    run_ok("verify", tmp_path / "out")
    whole = reassemble(tmp_path / "out")
    for tensor in run_json("digest", TINY)["tensors"]:
        assert sha256_of(whole[tensor["path"]][1]) == tensor["sha256"]


def test_errors_in_a_sharding_file_name_their_position(tmp_path):
    (tmp_path / "map.yaml").write_text("model.norm.weight: [fdsp]\nmodel.nrm.weight: [fsdp]\n")
    result = run_tool("plan", TINY, "--sharding", "map.yaml", cwd=tmp_path)
    assert result.returncode == 2
    assert "map.yaml:1:21: error: unknown mesh axis `fdsp`" in result.stderr
    assert "map.yaml:2:1: error: no tensor matches `model.nrm.weight`" in result.stderr
    assert "did you mean `model.norm.weight`?" in result.stderr
    result = run_tool("plan", TINY, "--sharding", "absent.yaml", cwd=tmp_path)
    assert result.returncode == 2 and "--sharding:1:1: error: there is no file `absent.yaml`" in result.stderr


def test_sharding_files_cannot_refer_to_files(tmp_path):
    (tmp_path / "a.yaml").write_text("b.yaml\n")
    result = run_tool("plan", TINY, "--sharding", tmp_path / "a.yaml")
    assert result.returncode == 2
    assert "a.yaml:1:1: error: a file with a sharding names another one, `b.yaml`" in result.stderr
