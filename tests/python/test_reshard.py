"""A copy made by `reshard` has the same bytes as `gen` would write, or the checkpoint's bytes if those differ."""

import glob
import hashlib
import itertools
import json
import random
import re
import subprocess

import numpy as np
import pytest

from support import AWKWARD, BINARY, CLEAN, ROOT, TINY, reassemble, run_json, run_ok, run_tool, tree_of

LAYOUTS = ROOT / "configs/layouts/llama.yaml"


def gen(folder, spec, *options):
    run_ok("gen", spec, "-o", folder, *options)
    return folder


@pytest.fixture(scope="module")
def awkward(tmp_path_factory):
    folder = tmp_path_factory.mktemp("awkward")
    (folder / "spec.yaml").write_text(AWKWARD)
    return folder / "spec.yaml"


@pytest.fixture(scope="module")
def tiny_layouts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layouts")
    spec = folder / "spec.yaml"
    spec.write_text(f"shardinit: 1\ninclude: [{TINY}, {LAYOUTS}]\n")
    return spec


# A copy equals a newly generated checkpoint, byte for byte.


@pytest.mark.parametrize("given", ["plan", "spec"])
@pytest.mark.parametrize(("before", "after"), [
    (["--mesh", "a=2,b=2"], ["--mesh", "a=1,b=1"]),
    (["--mesh", "a=1,b=1"], ["--mesh", "b=3,a=2"]),
    (["--mesh", "a=3,b=1"], ["--mesh", "a=2,b=5"]),
    (["--mesh", "b=2,a=7", "--replicas", "full"], ["--mesh", "b=4", "--replicas", "dedupe"]),
    ([], ["--replicas", "full"]),
    ([], ["--mesh", "a=2,b=3", "--index", "never"]),
])
def test_reshard_to_another_mesh_equals_gen(tmp_path, awkward, before, after, given):
    source = gen(tmp_path / "from", awkward, *before)
    wanted = gen(tmp_path / "wanted", awkward, *after)
    before = tree_of(source)
    by = ["--spec", awkward] if given == "spec" else ["--uneven", "chunk"]
    replicas = [] if "--replicas" in after or given == "spec" else ["--replicas", "dedupe"]
    run_ok("reshard", source, *by, *after, *replicas, "-o", tmp_path / "to")
    assert tree_of(tmp_path / "to") == tree_of(wanted)
    assert tree_of(source) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["from", "to", "wanted"]


def test_reshard_between_random_meshes(tmp_path):
    rng = random.Random(11)
    for n in range(6):
        axes = {a: rng.randint(1, 4) for a in "xyz"}
        tensors = {}
        for t in range(rng.randint(1, 5)):
            shape = [rng.randint(1, 40) for _ in range(rng.randint(0, 4))]
            free = list("xyz")
            rng.shuffle(free)
            shard = [[free.pop() for _ in range(rng.randint(0, min(2, len(free))))] for _ in shape]
            tensors[f"t{t}"] = {"shape": shape, "shard": [s or None for s in shard],
                                "init": {"normal": {"std": 1}},
                                "dtype": rng.choice(["f64", "f32", "bf16", "f8e5m2"])}
        spec = tmp_path / f"{n}.yaml"
        spec.write_text(json.dumps({"shardinit": 1, "name": "m", "uneven": "chunk",
                                    "mesh": {"axes": axes}, "modules": tensors}))
        source = gen(tmp_path / f"from{n}", spec)
        mesh = ",".join(f"{a}={rng.randint(1, 5)}" for a in rng.sample("xyz", 3))
        wanted = gen(tmp_path / f"wanted{n}", spec, "--mesh", mesh)
        run_ok("reshard", source, "--mesh", mesh, "--uneven", "chunk", "-o", tmp_path / f"to{n}")
        assert tree_of(tmp_path / f"to{n}") == tree_of(wanted), mesh


def test_reshard_of_segments_and_stages(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {pipe: 2, tensor: 2}}\nmodules:\n"
                    "  gate_up: {shape: [24, 5], shard: [{axes: tensor, segments: 2}], stage: {pipe: 1}, "
                    "init: {normal: {std: 1}}}\n"
                    "  whole: {shape: [9], init: {normal: {std: 1}}, stage: {pipe: 0}}\n")
    source = gen(tmp_path / "from", spec)
    for mesh in ("tensor=3,pipe=2", "pipe=2,tensor=6", "pipe=2"):
        wanted = gen(tmp_path / f"wanted-{mesh}", spec, "--mesh", mesh)
        run_ok("reshard", source, "--mesh", mesh, "-o", tmp_path / f"to-{mesh}")
        run_ok("reshard", wanted, "--spec", spec, "-o", tmp_path / f"back-{mesh}")
        assert tree_of(tmp_path / f"to-{mesh}") == tree_of(wanted)
        assert tree_of(tmp_path / f"back-{mesh}") == tree_of(source)
    result = run_tool("reshard", source, "--mesh", "pipe=1", "-o", tmp_path / "to")
    assert result.returncode == 2 and "give the spec, with `--spec SPEC`" in result.stderr


def test_reshard_of_stages_of_several_axes(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {p: 2, q: 2, r: 2}}\nmodules:\n"
                    "  two: {shape: [8], stage: {p: 0, q: 1}, shard: [r], init: {normal: {std: 1}}}\n"
                    "  three: {shape: [9], stage: {r: 1, p: 1, q: 0}, init: {normal: {std: 1}}}\n"
                    "  all: {shape: [8], shard: [p], init: {normal: {std: 1}}}\n")
    source = gen(tmp_path / "from", spec)
    for axes in itertools.permutations(("p=2", "q=2", "r=2")):
        wanted = gen(tmp_path / ("wanted-" + "".join(axes)), spec, "--mesh", ",".join(axes))
        out = tmp_path / ("to-" + "".join(axes))
        run_ok("reshard", source, "--mesh", ",".join(axes), "-o", out)
        assert tree_of(out) == tree_of(wanted)
        run_ok("verify", out)


def test_reshard_to_another_sharding_equals_gen(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {fsdp: 4}}\nmodules:\n"
                    "  w: {shape: [8, 12], shard: [fsdp], init: {normal: {std: 1}}}\n"
                    "  v: {shape: [4, 16], init: {normal: {std: 1}}}\n")
    other = ["--sharding", "fsdp", "--set", "modules.w.shard=[]"]
    source, wanted = gen(tmp_path / "from", spec), gen(tmp_path / "wanted", spec, *other)
    run_ok("reshard", source, "--spec", spec, *other, "-o", tmp_path / "to")
    assert tree_of(tmp_path / "to") == tree_of(wanted)
    assert tree_of(source) != tree_of(wanted)


@pytest.mark.parametrize("layout", ["", "torchtitan", "megatron"])
def test_reshard_to_another_sharding_without_the_spec(tmp_path, tiny_layouts, layout):
    for sharding in ("map.yaml", "fsdp"):
        where = {"cwd": tmp_path}
        to = tmp_path / f"to-{sharding.partition('.')[0]}"
        source = gen(tmp_path / f"from-{sharding.partition('.')[0]}", tiny_layouts, "--mesh", "fsdp=2",
                     *layout_option(layout))
        before = reassemble(source)
        (tmp_path / "map.yaml").write_text(json.dumps({
            path: [None, "fsdp"] for path, (_, words) in before.items() if words.ndim == 2}))
        run_ok("reshard", source, "--sharding", sharding, "--mesh", "fsdp=4", "-o", to, **where)
        run_ok("verify", to)
        after = reassemble(to)
        assert {p: (d, w.tobytes()) for p, (d, w) in after.items()} == {
            p: (d, w.tobytes()) for p, (d, w) in before.items()}
        for path, shards in manifest_shards(to).items():
            if sharding == "map.yaml" and len(before[path][1].shape) == 2:
                assert [s["offset"][0] for s in shards] == [0] * 4, path
    if not layout:  # without `shard` in the spec, as `gen` with the same option
        wanted = gen(tmp_path / "wanted", tiny_layouts, "--mesh", "fsdp=4", "--sharding", "fsdp")
        assert tree_of(tmp_path / "to-fsdp") == tree_of(wanted)


@pytest.mark.parametrize("axes", ["a=2,b=2", "b=2,a=2", "a=4,b=1", "b=4,a=1", "b=1,a=4"])
def test_reshard_distinguishes_axes_of_equal_size(tmp_path, axes):
    """Axes of equal size are not interchangeable."""
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {a: 2, b: 2}}\nmodules:\n"
                    "  w: {shape: [8, 12], init: {normal: {std: 1}}}\n"
                    "  v: {shape: [8], init: {normal: {std: 1}}, shard: [b]}\n")
    source = gen(tmp_path / "from", spec)
    (tmp_path / "map.yaml").write_text("map: {w: [a, b], v: [a]}\n")
    run_ok("reshard", source, "--mesh", axes, "--sharding", tmp_path / "map.yaml", "-o", tmp_path / "to")
    text = spec.read_text().replace(", shard: [b]", "") + "sharding: {map: {w: [a, b], v: [a]}}\n"
    spec.write_text(text)
    assert tree_of(tmp_path / "to") == tree_of(gen(tmp_path / "wanted", spec, "--mesh", axes))


def test_reshard_can_declare_a_mesh(tmp_path):
    """A checkpoint has no logical axes. If it has no mesh, the command can declare one, and a sharding that uses it."""
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: m\ndtype: f32\nmodules: {w: {shape: [8, 12], init: {normal: {std: 1}}}}\n")
    source = gen(tmp_path / "from", spec)
    result = run_tool("reshard", source, "--sharding", "torchtitan", "-o", tmp_path / "to")
    assert result.returncode == 2 and result.stderr.endswith(
        "error: `--sharding torchtitan` shards by logical axes, which a checkpoint does not record\n"
        "  hint: give the spec that the checkpoint was made from, with `--spec SPEC`\n")
    result = run_tool("reshard", source, "--mesh", "fsdp=2", "-o", tmp_path / "to")
    assert result.returncode == 2 and result.stderr.endswith(
        "error: the checkpoint has no mesh, so the dimensions that `fsdp` shards are unknown\n"
        "  hint: add `--sharding`, such as `--sharding fsdpv2`, or give the spec, with `--spec SPEC`\n")
    for number, options in enumerate([["--mesh", "fsdp=2"], []]):
        options += ["--sharding", "fsdpv2"]
        run_ok("reshard", source, *options, "-o", tmp_path / f"to-{number}")
        assert tree_of(tmp_path / f"to-{number}") == tree_of(gen(tmp_path / f"wanted-{number}", spec, *options))


LAYOUT_NAMES = ["", "torchtitan", "megatron", "maxtext", "kerashub"]


def manifest_shards(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    return {tensor["path"]: tensor["shards"] for tensor in manifest["tensors"]}


def layout_option(name):
    return ["--layout", name] if name else []


@pytest.mark.parametrize(("before", "after"), [
    *[("", name) for name in LAYOUT_NAMES[1:]], *[(name, "") for name in LAYOUT_NAMES[1:]],
    *itertools.pairwise(LAYOUT_NAMES[1:])])
def test_reshard_to_another_layout_equals_gen(tmp_path, tiny_layouts, before, after):
    source = gen(tmp_path / "from", tiny_layouts, "--mesh", "fsdp=2,tensor=2", *layout_option(before))
    wanted = gen(tmp_path / "wanted", tiny_layouts, "--mesh", "fsdp=3,tensor=1",
                 "--set", "uneven=chunk", *layout_option(after))
    run_ok("reshard", source, "--spec", tiny_layouts, "--mesh", "fsdp=3,tensor=1", "--set",
           "uneven=chunk", *layout_option(after), "-o", tmp_path / "to")
    assert tree_of(tmp_path / "to") == tree_of(wanted)


SQUARE = """shardinit: 1
name: x
dtype: f32
mesh: {axes: {a: 2}}
modules:
  w: {shape: [6, 6], init: {normal: {std: 1}}, shard: [a]}
  v: {shape: [6, 6], init: {normal: {std: 1}}, shard: [a]}
layouts:
  same: {w: w, v: v}
  turned: {w: {from: {transpose: {of: w}}}, v: v}
  swapped: {w: v, v: w}
  blocks: {w: {from: {interleave: {axis: 0, groups: 3, of: [{slice: {axis: 0, start: 0, stop: 3, of: w}},
                                                     {slice: {axis: 0, start: 3, stop: 6, of: w}}]}}}, v: v}
  both: {w: {from: {transpose: {of: v}}}, v: {from: {transpose: {of: w}}}}
"""


@pytest.mark.parametrize(("before", "after"),
                         list(itertools.permutations(["", "same", "turned", "swapped", "blocks", "both"], 2)))
def test_reshard_between_layouts_of_equal_shapes(tmp_path, before, after):
    """All of these layouts store the same names, shapes and types."""
    (tmp_path / "spec.yaml").write_text(SQUARE)
    source = gen(tmp_path / "from", tmp_path / "spec.yaml", *layout_option(before))
    wanted = gen(tmp_path / "wanted", tmp_path / "spec.yaml", *layout_option(after))
    run_ok("reshard", source, "--spec", tmp_path / "spec.yaml", *layout_option(after), "-o", tmp_path / "to")
    assert tree_of(tmp_path / "to") == tree_of(wanted)


@pytest.mark.parametrize("name", LAYOUT_NAMES[1:])
def test_reshard_of_a_layout_without_the_spec(tmp_path, tiny_layouts, name):
    source = gen(tmp_path / "from", tiny_layouts, "--mesh", "fsdp=2", *layout_option(name))
    wanted = gen(tmp_path / "wanted", tiny_layouts, "--mesh", "fsdp=4", *layout_option(name))
    run_ok("reshard", source, "--mesh", "fsdp=4", "-o", tmp_path / "to")
    assert tree_of(tmp_path / "to") == tree_of(wanted)


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("ranks", ["0", "1-2", "0-3"])
def test_reshard_of_some_ranks_checks_whole_boxes(tmp_path, place, ranks):
    """A whole box is compared, however little of it these ranks need."""
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {x: 1}}\n"
                    "modules: {w: {shape: [64, 3], shard: [x], init: {normal: {std: 1}}}}\n")
    source = gen(tmp_path / "from", spec)
    (box,) = json.loads((source / "ranks/rank-00000.json").read_text())["boxes"]
    data = bytearray((source / "ranks/rank-00000.h5").read_bytes())
    data[box["file_offset"] + (0 if place == "first" else box["bytes"] - 1)] ^= 1
    (source / "ranks/rank-00000.h5").write_bytes(data)
    result = run_tool("reshard", source, "--mesh", "x=4", "-o", tmp_path / "to", "--ranks", ranks)
    assert result.returncode == 1 and "the box of `w` at [0, 0] has other data than was written" in result.stderr, result
    assert not (tmp_path / "to").exists()


def test_reshard_records_slices_and_devices(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {x: 8}, devices: tray_ring}\n"
                    "modules: {w: {shape: [64], shard: [x], init: {normal: {std: 1}}}}\n")
    plain = ["--mesh", "x=4", "--set", "mesh.devices=row_major"]
    ring, rows = gen(tmp_path / "ring", spec), gen(tmp_path / "rows", spec, *plain)
    run_ok("reshard", rows, "--spec", spec, "-o", tmp_path / "a")
    run_ok("reshard", ring, "--mesh", "x=4", "-o", tmp_path / "b")
    run_ok("reshard", ring, "-o", tmp_path / "c")
    assert tree_of(tmp_path / "a") == tree_of(ring) == tree_of(tmp_path / "c")
    assert tree_of(tmp_path / "b") == tree_of(rows)
    (tmp_path / "cut.yaml").write_text("{w: [x]}")
    for name, options in [("d", ["--mesh", "x=8"]), ("e", ["--sharding", tmp_path / "cut.yaml"]),
                          ("f", ["--sharding", tmp_path / "cut.yaml", "--mesh", "x=8"])]:
        result = run_ok("reshard", ring, *options, "-o", tmp_path / name)  # the same mesh
        assert tree_of(tmp_path / name) == tree_of(ring) and "not known" not in result.stderr
    said = run_ok("reshard", ring, "--mesh", "x=2", "-o", tmp_path / "g").stderr
    assert "the devices of the new mesh are not known" in said
    assert "not known" not in run_ok("reshard", rows, "--mesh", "x=2", "-o", tmp_path / "h").stderr
    # Swapping two axes of equal size gives another mesh.
    spec.write_text(spec.read_text().replace("x: 8}", "x: 2, y: 2}").replace("tray_ring", "[1, 0, 3, 2]"))
    pair = gen(tmp_path / "pair", spec)
    for name, axes in ("i", "y=2,x=2"), ("j", "x=2,y=2"):
        said = run_ok("reshard", pair, "--mesh", axes, "-o", tmp_path / name).stderr
        assert ("not known" in said) == (name == "i") and (tree_of(tmp_path / name) == tree_of(pair)) == (name == "j")
    spec.write_text(spec.read_text().replace("x: 2, y: 2}", "x: 8}").replace("[1, 0, 3, 2]", "tray_ring"))
    # The spec sets the default order of devices.
    two = ["--mesh", "x=2", "--set", "mesh.devices=row_major"]
    assert "not known" not in run_ok("reshard", ring, "--spec", spec, *two, "-o", tmp_path / "k").stderr
    # The same plan with other devices is a different copy.
    devices = ["--set", "mesh.devices=[1, 0, 3, 2]"]
    other = run_tool("reshard", ring, "--spec", spec, *plain[:2], *devices, "-o", tmp_path / "b")
    assert other.returncode == 4 and "has other slices or devices" in other.stderr, other


# Values that do not come from a spec.


def edit(folder, change):
    """Changes the values in each box, with matching receipts and manifest, as if a trainer had written them."""
    manifest = json.loads((folder / "manifest.json").read_text())
    text = (folder / "manifest.json").read_text()
    for entry in manifest["ranks"]:
        receipt_path, file = folder / entry["receipt"], folder / entry["file"]
        receipt = receipt_path.read_text()
        data = bytearray(file.read_bytes())
        for box in json.loads(receipt)["boxes"]:
            part = slice(box["file_offset"], box["file_offset"] + box["bytes"])
            data[part] = change(bytes(data[part]))
            digest = hashlib.sha256(data[part]).hexdigest()
            receipt = receipt.replace(
                f'"file_offset": {box["file_offset"]}, "bytes": {box["bytes"]}, "sha256": "{box["sha256"]}"',
                f'"file_offset": {box["file_offset"]}, "bytes": {box["bytes"]}, "sha256": "{digest}"')
            text = re.sub(
                rf'("rank": {entry["rank"]}, "offset": {re.escape(json.dumps(box["offset"]))}, '
                rf'"shape": {re.escape(json.dumps(box["shape"]))}, "sha256": )"{box["sha256"]}"',
                rf'\1"{digest}"', text)
        file.write_bytes(data)
        receipt_path.write_text(receipt)
        text = text.replace(entry["receipt_sha256"], hashlib.sha256(receipt.encode()).hexdigest())
    (folder / "manifest.json").write_text(text)
    run_ok("verify", folder)


@pytest.mark.parametrize("layout", ["", "megatron"])
def test_reshard_copies_trained_values(tmp_path, tiny_layouts, layout):
    source = gen(tmp_path / "from", tiny_layouts, "--mesh", "fsdp=2,tensor=2", *layout_option(layout))
    before = reassemble(source)
    edit(source, lambda data: bytes(b ^ 0x55 for b in data))
    run_ok("reshard", source, "--mesh", "fsdp=4", "-o", tmp_path / "to")
    run_ok("verify", tmp_path / "to")
    after = reassemble(tmp_path / "to")
    assert set(after) == set(before)
    for path, (_, words) in before.items():
        mask = np.frombuffer(b"\x55" * words.itemsize, words.dtype)[0]
        assert np.array_equal(after[path][1], words ^ mask), path
    # Copying to another layout and back keeps the values.
    run_ok("reshard", source, "--spec", tiny_layouts, *layout_option("maxtext"), "--mesh", "fsdp=2",
           "-o", tmp_path / "other")
    run_ok("reshard", tmp_path / "other", "--spec", tiny_layouts, *layout_option(layout), "--mesh", "fsdp=4",
           "-o", tmp_path / "back")
    if layout == "":  # Megatron's padding is made again.
        assert tree_of(tmp_path / "back") == tree_of(tmp_path / "to")


# Errors.


def test_reshard_of_a_damaged_checkpoint_leaves_nothing(tmp_path, awkward):
    source = gen(tmp_path / "from", awkward)
    receipt = json.loads((source / "ranks/rank-00001.json").read_text())
    for box in receipt["boxes"][::3]:
        file = source / "ranks/rank-00001.h5"
        whole = file.read_bytes()
        at = box["file_offset"] + box["bytes"] - 1
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        for mesh in ("a=1,b=1", "a=2,b=2", "a=5,b=1"):
            result = run_tool("reshard", source, "--mesh", mesh, "--uneven", "chunk", "-o", tmp_path / "to")
            assert result.returncode == 1, mesh
            assert "is damaged" in result.stderr and f"`{box['path']}`" in result.stderr
            assert [p.name for p in tmp_path.iterdir()] == ["from"]
        file.write_bytes(whole)
    run_ok("reshard", source, "--mesh", "a=1", "--uneven", "chunk", "-o", tmp_path / "to")


def test_reshard_rejects_a_changed_manifest(tmp_path, awkward):
    source = gen(tmp_path / "from", awkward)
    text = (source / "manifest.json").read_text()
    (source / "manifest.json").write_text(text.replace('"sha256": "', '"sha256": "0', 1))
    result = run_tool("reshard", source, "-o", tmp_path / "to")
    assert result.returncode == 1 and "is damaged: manifest.json" in result.stderr
    (source / "manifest.json").unlink()
    result = run_tool("reshard", source, "-o", tmp_path / "to")
    assert result.returncode == 2 and "is unfinished" in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["from"]


@pytest.mark.parametrize(("options", "code", "message"), [
    (["--mesh", "a=3"], 2, "in 3 parts, which do not divide it"),
    (["--mesh", "c=3"], 2, "the checkpoint's mesh has no axis `c`"),
    (["--mesh", "a=2,a=2"], 2, "mesh axis `a` is given twice"),
    (["--mesh", "a=x"], 2, "`a=x` is not of the form `axis=size`"),
    (["--mesh", "a=0"], 2, "`a=0` is not of the form `axis=size`"),
    (["--mesh", "a=16777216,b=2"], 2, "more than 16777216 ranks"),
    (["--set", "seed=1"], 2, "need a spec, but none is given"),
    (["--sharding", "nothing"], 2, "nothing"),
    (["--sharding", "none.yaml"], 2, "none.yaml"),
    (["--layout", "x"], 2, "need a spec, but none is given"),
    (["--uneven", "pad"], 2, "`--uneven pad`: use `error` or `chunk`"),
    (["--spec", "SPEC", "--set", "seed=1"], 2, "are different models"),
    (["--spec", "SPEC", "--set", "modules.vector.shape=[7]"], 2, "shape of `vector`"),
    (["--spec", "SPEC", "--uneven", "chunk"], 2, "`--uneven` only applies without a spec"),
])
def test_reshard_rejects_wrong_options(tmp_path, awkward, options, code, message):
    source = gen(tmp_path / "from", awkward)
    result = run_tool("reshard", source, *[awkward if o == "SPEC" else o for o in options],
                      "-o", tmp_path / "to")
    assert result.returncode == code and message in result.stderr, result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["from"]


def test_reshard_keeps_existing_folders(tmp_path, awkward):
    source = gen(tmp_path / "from", awkward)
    other = gen(tmp_path / "other", awkward, "--mesh", "a=1")
    before = tree_of(other)
    for target in (other, tmp_path):
        result = run_tool("reshard", source, "-o", target)
        assert result.returncode == 4 and "exists" in result.stderr
    assert tree_of(other) == before
    unequal = tmp_path / "unequal"
    run_ok("gen", awkward, "--mesh", "a=1", "-o", unequal)
    edit(unequal, lambda data: bytes(b ^ 1 for b in data))
    for target, why in [(other, ""), (unequal, "has other values")]:
        result = run_tool("reshard", source, "--mesh", "a=1", "--uneven", "chunk", "-o", target)
        assert result.returncode == (4 if why else 0) and why in result.stderr, result.stderr
    assert tree_of(other) == before
    (tmp_path / "empty").mkdir()
    run_ok("reshard", source, "-o", tmp_path / "empty")
    assert tree_of(tmp_path / "empty") == tree_of(source)


def test_reshard_checks_an_existing_copy(tmp_path, awkward):
    source, target = gen(tmp_path / "from", awkward), tmp_path / "to"
    again = ["reshard", source, "--mesh", "a=2,b=2", "--uneven", "chunk", "-o", target]
    run_ok(*again)
    before = tree_of(target)
    run_ok(*again)
    for name in sorted(p.relative_to(target) for p in target.rglob("*") if p.is_file()):
        whole = (target / name).read_bytes()
        for at in (0, len(whole) // 2, len(whole) - 1):
            (target / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            damaged = tree_of(target)
            result = run_tool(*again)
            assert result.returncode == 4, (name, at, result.stderr)
            assert "holds something else" in result.stderr or "exists and is damaged: " in result.stderr
            assert tree_of(target) == damaged
        (target / name).write_bytes(whole)
    assert tree_of(target) == before
    run_ok(*again)


def test_reshard_rejects_impossible_output_names(tmp_path, awkward):
    source = gen(tmp_path / "from", awkward)
    before = tree_of(source)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    for target, code, why in [("from/to", 2, "is in"), ("from/ranks/to", 2, "is in"),
                              ("empty/../from/to", 2, "is in"), ("link", 4, "is a link"),
                              ("empty/.", 2, "is not the name of a new folder")]:
        for command in (["reshard"], ["export", "--to", "safetensors"]):
            result = run_tool(*command, source, "-o", f"{tmp_path}/{target}")
            assert result.returncode == code and why in result.stderr, result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "from", "link"]
    assert not list((tmp_path / "empty").iterdir())
    assert tree_of(source) == before


# Interruptions.


def test_ranks_get_their_names_only_after_the_check(tmp_path):
    """A rank gets its name only after its boxes are checked. Here the first rank with part of the damaged box takes
    long."""
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {x: 2}}\nmodules:\n"
                    "  long: {shape: [40000000], shard: [null], init: zeros}\n"
                    "  cut: {shape: [4096], shard: [x], init: zeros}\n")
    source = gen(tmp_path / "from", spec, "--mesh", "x=1")
    receipt = json.loads((source / "ranks/rank-00000.json").read_text())
    box = next(box for box in receipt["boxes"] if box["path"] == "cut")
    with open(source / "ranks/rank-00000.h5", "r+b") as file:
        file.seek(box["file_offset"] + box["bytes"] - 1)  # in the second rank's half
        file.write(b"\x01")
    process = subprocess.Popen([str(BINARY), "reshard", source, "--mesh", "x=2", "-o", tmp_path / "to"],
                               env=CLEAN, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        # The glob module tolerates that the folder disappears meanwhile.
        assert not glob.glob(f"{tmp_path}/.to.part-*/checkpoint/ranks/rank-00001.*")
    assert process.returncode == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["from", "spec.yaml"]


def test_reshard_resumes_after_sigkill(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {x: 2}}\nmodules: {w: "
                    "{repeat: {i: 40}, v: {shape: [64, 8192], shard: [x], init: zeros}}}\n")
    source = gen(tmp_path / "from", spec)
    wanted = gen(tmp_path / "wanted", spec, "--mesh", "x=64")
    command = ["reshard", source, "--mesh", "x=64", "-o", tmp_path / "to"]
    skipped = 0
    for kill in ("KILL", "INT", "TERM"):  # At a thread's third call: by then it has completed a rank.
        result = run_tool(*command, wrap=["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync",
                                          "-e", f"inject=fdatasync:signal={kill}:when=3"])
        assert result.returncode != 0 and not (tmp_path / "to").exists(), result.stderr
        done = len(list(tmp_path.glob(".to.part-*/checkpoint/ranks/*.json")))
        assert 64 > done > skipped
        skipped = done
    assert run_json(*command)["ranks_skipped"] >= skipped > 0
    assert tree_of(tmp_path / "to") == tree_of(wanted)
    assert not list(tmp_path.glob(".to*"))
