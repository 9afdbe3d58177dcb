"""Tensors of which a rank holds several boxes or none work in all files and readers."""

import itertools
import json
import random
import re

import h5py
import numpy as np
import pytest

from clients import bits_of, client_of
from recorded import file_of
from support import DTYPES, OF_ANY, read_raw, reassemble, run_json, run_ok, run_tool, sha256_of, text_of, tree_of

import shardinit

SPEC = file_of("plan", "plan_segments")
MESHES = ["pipe=2,fsdp=2,tensor=2", "pipe=1,fsdp=1,tensor=1", "pipe=4,fsdp=1,tensor=2",
          "pipe=2,fsdp=4,tensor=1", "pipe=3,fsdp=2,tensor=1"]


@pytest.fixture(scope="module")
def digests():
    return {t["path"]: t["sha256"] for t in run_json("digest", SPEC)["tensors"]}


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("replicas", ["dedupe", "full"])
def test_segments_and_stages_do_not_change_the_model(mesh, replicas, digests, tmp_path):
    out = tmp_path / "out"
    run_ok("gen", SPEC, "-o", out, "--mesh", mesh, "--replicas", replicas)
    run_ok("verify", out)
    plan = json.loads((out / "plan.json").read_text())
    # Older readers can read checkpoints without segments and stages.
    extended = any("segments" in t or "stage" in t for t in plan["tensors"])
    assert extended == (mesh != MESHES[1])
    for name in ["plan.json", "manifest.json", "ranks/rank-00000.json"]:
        assert json.loads((out / name).read_text())["format_version"] == 1 + extended, name
    for path, (_, words) in reassemble(out).items():
        assert sha256_of(words) == digests[path], path
    checkpoint = shardinit.open(out)
    with h5py.File(out / "index.h5") as index:
        assert index.attrs["format_version"] == 1 + extended
        for path, digest in digests.items():
            assert sha256_of(read_raw(index[path.replace(".", "/")])) == digest, path
            assert sha256_of(bits_of(checkpoint.read(path, verify=True))) == digest, path


def test_each_box_has_its_own_dataset(tmp_path):
    out = tmp_path / "out"
    run_ok("gen", SPEC, "-o", out)
    with h5py.File(out / "ranks/rank-00005.h5") as file:
        group = file["layers/2/mlp/gate_up"]
        assert list(group) == ["weight", "weight@1"]
        assert [list(group[n].attrs["offset"]) for n in group] == [[4, 0], [12, 0]]
        assert {text_of(group[n].attrs["path"]) for n in group} == {"layers.2.mlp.gate_up.weight"}
    assert not any(name.startswith("layers/0") for name in _names(out / "ranks/rank-00005.h5"))
    names = [b["dataset"] for b in json.loads((out / "ranks/rank-00001.json").read_text())["boxes"]
             if b["path"] == "rest.weight"]
    assert names == ["/rest/weight", "/rest/weight@1", "/rest/weight@2", "/rest/weight@3"]


def _names(file):
    names = []
    with h5py.File(file) as opened:
        opened.visit(names.append)
    return names


@pytest.mark.parametrize("source", ["checkpoint", "spec"])
def test_ranks_hold_their_segments_and_stages(source, tmp_path):
    out = tmp_path / "out"
    run_ok("gen", SPEC, "-o", out)
    whole = {p: w.view(DTYPES[d]) for p, (d, w) in reassemble(out).items()}
    with shardinit.open(out) if source == "checkpoint" else shardinit.open_spec(SPEC) as opened:
        gate_up = whole["layers.2.mlp.gate_up.weight"]
        # Rank 5, at (pipe 1, fsdp 0, tensor 1), holds rows 4 and 5 of both halves.
        local = opened.read_local("layers.2.mlp.gate_up.weight", 5, verify=True)
        assert np.array_equal(local, np.concatenate([gate_up[4:6], gate_up[12:14]]))
        assert opened.boxes("layers.2.mlp.gate_up.weight", 5) == [((4, 0), (2, 6)), ((12, 0), (2, 6))]
        assert opened.read_local("layers.2.mlp.gate_up.weight", 1) is None
        assert opened.boxes("layers.2.norm.weight", 0) == []
        for rank in range(8):  # on both stages
            rows = slice(0, 16) if rank % 2 == 0 else slice(16, 32)
            assert np.array_equal(opened.read_local("embed.weight", rank), whole["embed.weight"][rows])
        rest = whole["rest.weight"]
        out_array = np.empty((5, 2), np.float32)
        assert opened.read_local("rest.weight", 0, out=out_array) is out_array
        assert np.array_equal(out_array, rest[np.ix_([0, 1, 2, 5, 6], [0, 2])])
        assert np.array_equal(opened.read_local("rest.weight", 7), rest[np.ix_([3, 4, 7, 8], [1, 3])])
        for rank in (-1, 8):
            with pytest.raises(IndexError, match="rank"):
                opened.boxes("rest.weight", rank)
        with pytest.raises(ValueError, match="`out`"):
            opened.read_local("rest.weight", 0, out=np.empty((9, 4), np.float32))


def test_explain_lists_stages_and_boxes(tmp_path):
    """`explain` lists a rank's boxes as `plan` does, with their file, and stages of several axes."""
    spec = tmp_path / "spec.yaml"
    spec.write_text("""shardinit: 1
name: m
dtype: f32
mesh: {axes: {pipe: 3, x: 2, ep: 4}}
modules:
  a: {shape: [24, 6], shard: [{axes: [x], segments: 6}, null], init: ones, stage: {ep: [3, 0], pipe: [2, 1]}}
  b: {shape: [24], init: ones, stage: {pipe: 0, ep: 2}}
  c: {shape: [24], init: ones, stage: {ep: [0, 1, 2, 3]}}
  d: {shape: [24], shard: [x], init: ones}
  e: {shape: [24], shard: [{axes: [x], segments: 4}], init: ones, stage: {pipe: 2}}
""")
    held, stored = ([run_json("plan", spec, "--replicas", replicas, "--rank", rank)["boxes"] for rank in range(24)]
                    for replicas in ("full", "dedupe"))
    stages = {"a": "pipe 1 and 2, ep 0 and 3", "b": "pipe 0, ep 2", "c": "all ranks", "d": None, "e": "pipe 2"}
    for name, stage in stages.items():
        file_of = {tuple(box["offset"]): box["file"] for boxes in stored for box in boxes if box["path"] == name}
        for rank in (0, 7, 11, 13, 20, 23):
            boxes = [(box["offset"], box["shape"]) for box in held[rank] if box["path"] == name]
            is_stored = any(box["path"] == name for box in stored[rank])
            box = run_json("explain", spec, name, "--rank", rank)["box"]
            told = [(box["offset"], box["shape"]), *((each["offset"], each["shape"]) for each in box.get("more", []))]
            assert told == boxes or (not boxes and not any(box["shape"]) and "more" not in box)
            assert box["file"] == (file_of[tuple(boxes[0][0])] if is_stored else None)
            slices = ["[" + ", ".join(f"{o}:{o + n}" for o, n in zip(*each)) + "]" for each in boxes]
            more = [f"{len(boxes) - 4} more"] if len(boxes) > 4 else []
            size = sum(4 * int(np.prod(shape)) for _, shape in boxes)
            where = f"{size} B, {'' if is_stored else 'stored '}in {file_of[tuple(boxes[0][0])]}" if boxes else ""
            printed = run_ok("explain", spec, name, "--rank", rank).stdout
            lines = [line.split(None, 1) for line in printed.splitlines() if line]
            text = ", ".join([*slices[:4], *more, where]) if boxes else "nothing of it"
            assert [re.sub(r"^\d+ +", "", rest[0]) for key, *rest in lines if key == "rank"] == [text]
            assert [rest[0].split("  ")[0] for key, *rest in lines if key == "stage"] == ([stage] if stage else [])


def test_verify_checks_each_box(tmp_path):
    out = tmp_path / "out"
    run_ok("gen", SPEC, "-o", out)
    file = out / "ranks/rank-00005.h5"
    good = file.read_bytes()
    boxes = json.loads((out / "ranks/rank-00005.json").read_text())["boxes"]
    assert len({b["file_offset"] for b in boxes}) == len(boxes) == 6
    for box in boxes:
        bad = bytearray(good)
        bad[box["file_offset"] + box["bytes"] - 1] ^= 1
        file.write_bytes(bad)
        result = run_tool("verify", out)
        assert result.returncode == 1
        first = box["file_offset"]
        assert f"bytes {first} to {first + box['bytes'] - 1} of the file" in result.stderr + result.stdout
        offset = tuple(box["offset"])
        with pytest.raises(shardinit.DamageError,
                           match=rf"at \[{offset[0]}, {offset[1]}\] in `.*/ranks/rank-00005\.h5`"):
            shardinit.open(out).read_local(box["path"], 5, verify=True)
    file.write_bytes(good)
    run_ok("verify", out)
    # Only the missing file is made again.
    file.unlink()
    run_ok("gen", SPEC, "-o", out)
    assert file.read_bytes() == good


@pytest.mark.parametrize("to", OF_ANY)
@pytest.mark.parametrize("of", ["spec", "checkpoint"])
def test_exports_of_segments_equal_the_spec(to, of, tmp_path):
    source = SPEC
    if of == "checkpoint":
        source = tmp_path / "gen"
        run_ok("gen", SPEC, "-o", source)
    run_ok("export", source, "--to", to, "-o", tmp_path / "out")
    run_ok("verify", tmp_path / "out")
    run_ok("verify", tmp_path / "out", "--spec", SPEC)


def test_hf_dcp_loads_ranks_of_several_files(tmp_path):
    torch = client_of("torch")
    import torch.distributed.checkpoint as dcp
    run_ok("export", SPEC, "--to", "hf-dcp", "-o", tmp_path / "out")
    assert (tmp_path / "out/shard-00001-model-00001-of-00004.safetensors").is_file()
    with shardinit.open_spec(SPEC) as spec:
        state = {p: torch.empty(t.global_shape) for p, t in spec.tensors.items()}
        dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(tmp_path / "out")), no_dist=True)
        for path, tensor in state.items():
            assert np.array_equal(tensor.numpy(), spec.generate(path)), path


def _random_tensors(rng, sizes, count):
    """Yields (shape, spec's `shard`, placements on mesh axes a and b), with each axis on its own dimension."""
    for _ in range(count):
        shape = [rng.randint(1, 23) for _ in range(rng.randint(1, 3))]
        free = list(range(len(shape)))
        shard, placements = ["null"] * len(shape), []
        for axis, _ in zip("ab", sizes):
            if not free or rng.random() < 0.2:
                placements.append(None)
                continue
            d = free.pop(rng.randrange(len(free)))
            segments = rng.randint(1, min(5, shape[d]))
            placements.append((d, segments))
            shard[d] = f"{{axes: {axis}, segments: {segments}}}" if segments > 1 else axis
        yield shape, f"[{', '.join(shard)}]", placements


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2), (4, 1), (1, 5), (4, 3), (7, 2)], ids=str)
def test_local_tensors_match_dtensor(sizes, tmp_path):
    """Local parts match PyTorch's own placements, for tensors whose elements are their indices."""
    torch = client_of("torch")
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
    from torch.distributed.tensor.placement_types import _StridedShard

    cases = list(_random_tensors(random.Random(str(sizes)), sizes, 60))
    # FSDP2 after tensor parallelism on one dimension that both divide: b shards first.
    a, b = sizes
    cases.append(([4 * a * b, 3], "[[b, a]]", "fsdp2"))
    spec = "shardinit: 1\nname: x\ndtype: i32\nuneven: chunk\n"
    spec += f"mesh: {{axes: {{a: {a}, b: {b}}}}}\nmodules:\n"
    for i, (shape, shard, _) in enumerate(cases):
        spec += f"  t{i}: {{shape: {shape}, shard: {shard}, init: {{expr: index}}}}\n"
    (tmp_path / "x.yaml").write_text(spec)
    run_ok("gen", tmp_path / "x.yaml", "-o", tmp_path / "out")
    several = 0
    with shardinit.open(tmp_path / "out") as checkpoint, shardinit.open_spec(text=spec) as opened:
        for i, (shape, _, placed) in enumerate(cases):
            if placed == "fsdp2":
                placements = [_StridedShard(0, split_factor=b), Shard(0)]
            else:
                placements = [Replicate() if p is None else Shard(p[0]) if p[1] == 1 else
                              _StridedShard(p[0], split_factor=p[1]) for p in placed]
            for rank, coordinate in enumerate(itertools.product(range(a), range(b))):
                local = torch.arange(np.prod(shape), dtype=torch.int32).reshape(shape)
                for size, at, placement in zip(sizes, coordinate, placements):
                    if not isinstance(placement, Replicate):
                        local = placement._split_tensor(local, size, with_padding=False)[0][at]
                where = _compute_local_shape_and_global_offset(shape, sizes, list(coordinate), placements)
                boxes = checkpoint.boxes(f"t{i}", rank)
                assert boxes == opened.boxes(f"t{i}", rank)
                several += len(boxes) > 1
                found = checkpoint.read_local(f"t{i}", rank)
                if local.numel() == 0:
                    assert found is None
                    continue
                assert np.array_equal(found, local.numpy()), (shape, placements, coordinate)
                assert (tuple(found.shape), boxes[0][0]) == where
    assert several > 20


NESTED = """shardinit: 1
name: nested
dtype: f32
uneven: chunk
mesh: {axes: {a: 2, b: 2}}
sharding:
  both: {a: Shard(0), b: Shard(0)}
  even: {a: Shard(0), b: Shard(0)}
  behind: {a: Shard(1), b: '_StridedShard(1, split_factor=3)'}
  front: {a: '_StridedShard(0, split_factor=3)', b: Shard(0)}
modules:
  both: {shape: [10, 3], init: {normal: {std: 1}}}
  even: {shape: [8, 3], init: {normal: {std: 1}}}
  behind: {shape: [2, 7], init: {normal: {std: 1}}}
  front: {shape: [11], dtype: bf16, init: {normal: {std: 1}}}
"""


@pytest.mark.parametrize("replicas", ["dedupe", "full"])
def test_nested_axes_work_in_all_files_and_readers(replicas, tmp_path):
    """Nested axes work in all files and readers, as segments do."""
    spec = tmp_path / "x.yaml"
    spec.write_text(NESTED)
    run_ok("gen", spec, "-o", tmp_path / "out", "--replicas", replicas)
    run_ok("verify", tmp_path / "out")
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    assert {t["path"]: t.get("nested") for t in plan["tensors"]} == {
        "both": [[1, 1], []], "even": None, "behind": [[], [1, 3]], "front": [[3, 1]]}
    assert plan["format_version"] == 2
    digests = {t["path"]: t["sha256"] for t in run_json("digest", spec)["tensors"]}
    for path, (_, words) in reassemble(tmp_path / "out").items():
        assert sha256_of(words) == digests[path], path
    with shardinit.open(tmp_path / "out") as checkpoint, shardinit.open_spec(spec) as opened:
        rows = [[(o[0], n[0]) for o, n in checkpoint.boxes("both", rank)] for rank in range(4)]
        assert rows == [[(0, 3)], [(3, 2)], [(5, 3)], [(8, 2)]]
        for path in digests:
            for rank in range(4):
                assert checkpoint.boxes(path, rank) == opened.boxes(path, rank)
                local = checkpoint.read_local(path, rank, verify=True)
                other = opened.read_local(path, rank)
                assert (local is None and other is None) or np.array_equal(bits_of(local), bits_of(other))
    # The rank with the most bytes is not the first.
    held = [run_json("plan", spec, "--rank", rank, "--replicas", "full")["rank_bytes"] for rank in range(4)]
    summary = run_json("plan", spec)
    assert [summary["max_rank_bytes"], summary["min_rank_bytes"]] == [max(held), min(held)]
    assert run_json("explain", spec, "both")["partition"] == "[a then b, -]"
    assert run_json("explain", spec, "behind")["partition"] == "[-, a then b in 3 segments]"
    assert run_json("explain", spec, "front")["partition"] == "[a in 3 segments then b]"
    for to in OF_ANY:
        run_ok("export", tmp_path / "out", "--to", to, "-o", tmp_path / to)
        run_ok("verify", tmp_path / to, "--spec", spec)
    refused = run_tool("plan", spec, "--write", tmp_path / "map.yaml")
    assert refused.returncode == 5
    assert "`both` is sharded as [a then b, -], but a map cannot express" in refused.stderr


def test_reshard_of_nested_axes(tmp_path):
    spec = tmp_path / "x.yaml"
    spec.write_text(NESTED)
    run_ok("gen", spec, "-o", tmp_path / "a")
    for mesh in ["a=3,b=2", "a=1,b=4", "a=1,b=1"]:
        to = tmp_path / mesh
        run_ok("gen", spec, "-o", to / "gen", "--mesh", mesh)
        run_ok("reshard", tmp_path / "a", "--spec", spec, "--mesh", mesh, "-o", to / "reshard")
        assert tree_of(to / "reshard") == tree_of(to / "gen")
        run_ok("reshard", to / "gen", "--spec", spec, "-o", to / "back")
        assert tree_of(to / "back") == tree_of(tmp_path / "a")
        version = json.loads((to / "gen/manifest.json").read_text())["format_version"]
        assert version == (1 if mesh == "a=1,b=1" else 2)
        # With only the plan, the result is the same except for `even`.
        run_ok("reshard", tmp_path / "a", "--mesh", mesh, "--uneven", "chunk", "-o", to / "alone")
        alone, anew = (json.loads((to / f / "plan.json").read_text())["tensors"] for f in ("alone", "gen"))
        assert [t for t in alone if t["path"] != "even"] == [t for t in anew if t["path"] != "even"]


def test_stages_have_the_layers_of_megatron(tmp_path):
    """As in Megatron, 8 layers on 2 stages with 2 virtual stages each: layers 0-1 and 4-5 are on the first stage."""
    (tmp_path / "x.yaml").write_text(
        "shardinit: 1\nname: x\ndtype: f32\nvars: {pp: 2, vp: 2, layers: 8}\nmesh: {axes: {pipe: pp}}\n"
        "modules:\n  layers:\n    repeat: {i: layers}\n"
        "    stage: {pipe: floor(i / (layers / vp / pp)) - pp * floor(i / (layers / vp))}\n"
        "    w: {shape: [4], init: {normal: {std: 1}}}\n")
    held = [{b["path"] for b in run_json("plan", tmp_path / "x.yaml", "--rank", r)["boxes"]} for r in (0, 1)]
    assert held == [{f"layers.{i}.w" for i in stage} for stage in ([0, 1, 4, 5], [2, 3, 6, 7])]


@pytest.mark.parametrize("mesh", ["pipe=1,fsdp=2,tensor=4", "pipe=4,fsdp=1,tensor=2"])
def test_reshard_of_segments_equals_gen(mesh, tmp_path):
    """Resharding to one box for each rank and back, and between two ways to have several, equals generating."""
    run_ok("gen", SPEC, "-o", tmp_path / "a")
    run_ok("gen", SPEC, "-o", tmp_path / "b", "--mesh", mesh)
    run_ok("reshard", tmp_path / "a", "--spec", SPEC, "--mesh", mesh, "-o", tmp_path / "ab")
    assert tree_of(tmp_path / "ab") == tree_of(tmp_path / "b")
    run_ok("reshard", tmp_path / "b", "--spec", SPEC, "-o", tmp_path / "ba")
    assert tree_of(tmp_path / "ba") == tree_of(tmp_path / "a")
    # Without the spec, stages and segments stay unchanged.
    other = "pipe=2,fsdp=4,tensor=2"
    run_ok("gen", SPEC, "-o", tmp_path / "c", "--mesh", other)
    run_ok("reshard", tmp_path / "a", "--mesh", other, "--uneven", "chunk", "-o", tmp_path / "ac")
    assert tree_of(tmp_path / "ac") == tree_of(tmp_path / "c")
