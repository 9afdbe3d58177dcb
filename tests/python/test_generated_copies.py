"""reshard and export of a checkpoint that is changed, cut, replaced, or whose copy is killed and tampered
with: what has the name that was asked for has the right bytes, and the same command goes on."""

import hashlib
import json
import pathlib
import shutil
import tempfile

from hypothesis import strategies as st

from changing import changing
from generated import generated, given
from support import ROOT, TINY, Ok, Run, Tree

AXES = "xyz"
LAYOUTS = f"""
shardinit: 1
include: [{TINY}, {ROOT}/configs/layouts/llama.yaml]
vars: {{d: 64, ff: 96, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, vocab: 512}}
"""


@st.composite
def meshes(draw):
    return {axis: draw(st.integers(1, 3)) for axis in AXES}


@st.composite
def tensors(draw):
    shape = draw(st.one_of(st.lists(st.integers(1, 40), max_size=3), st.just([260, 520])))
    axes = draw(st.lists(st.sampled_from([*AXES, None]), min_size=len(shape), max_size=len(shape),
                         unique_by=lambda axis: axis or object()))
    return {"shape": shape, "shard": axes, "init": {"normal": {"std": 1}},
            "dtype": draw(st.sampled_from(["f64", "f32", "bf16", "f8e5m2"]))}


@st.composite
def changes(draw):
    """What becomes of the source, at which part of all reads."""
    when = sorted(draw(st.lists(st.integers(0, 999), min_size=1, max_size=3)))
    kinds = ["flip", "flip", "flip", "flip and back", "flip and back", "cut", "another", "receipt", "manifest", "plan", "kill"]
    return {"when": when, "kind": draw(st.sampled_from(kinds)), "place": draw(st.integers(0, 1 << 40))}


@st.composite
def cases(draw):
    case = {"change": draw(changes()), "memory": draw(st.sampled_from(["1M", "160M"])),
            "tamper": draw(st.sampled_from(["", "values", "values and size", "foreign", "open"]))}
    if draw(st.integers(0, 7)) == 0:
        names = st.sampled_from(["", "torchtitan", "megatron", "maxtext"])
        return {**case, "layouts": [draw(names), draw(names)]}
    case["tensors"] = draw(st.lists(tensors(), min_size=1, max_size=4))
    case["mesh"] = draw(meshes())
    case["to"] = draw(st.one_of(st.sampled_from(["safetensors", "dcp", "hf-dcp", "zarr"]), meshes()))
    case["replicas"] = draw(st.sampled_from(["dedupe", "full"]))
    return case


def mesh_text(mesh):
    return ",".join(f"{axis}={size}" for axis, size in mesh.items())


def prepare(case, folder):
    """A checkpoint in `from`, what the copy must be in `wanted`; the command, without its folders."""
    spec = folder / "spec.yaml"
    if "layouts" in case:
        spec.write_text(LAYOUTS)
        before, after = (["--layout", name] if name else [] for name in case["layouts"])
        Ok("gen", spec, "--mesh", "fsdp=2", *before, "-o", folder / "from")
        Ok("gen", spec, "--mesh", "fsdp=1", *after, "-o", folder / "wanted")
        return ["reshard", "--spec", spec, "--mesh", "fsdp=1", *after]
    spec.write_text(json.dumps({
        "shardinit": 1, "name": "m", "uneven": "chunk", "mesh": {"axes": case["mesh"]},
        "modules": {f"t{n}": tensor for n, tensor in enumerate(case["tensors"])}}))
    Ok("gen", spec, "--replicas", case["replicas"], "-o", folder / "from")
    if isinstance(case["to"], str):
        Ok("export", spec, "--set", f"replicas={case['replicas']}", "--to", case["to"], "-o", folder / "wanted")
        return ["export", "--to", case["to"]]
    options = ["--mesh", mesh_text(case["to"])]
    Ok("gen", spec, "--replicas", case["replicas"], *options, "-o", folder / "wanted")
    return ["reshard", "--uneven", "chunk", *options]


def lines(change, source, other, reads):
    """The change as the library takes it. `other` is a checkpoint of the same plan with other values."""
    when = [1 + at * reads // 1000 for at in change["when"]]
    ranks = sorted(source.glob("ranks/*.h5"))
    file = ranks[change["place"] % len(ranks)]
    receipt = file.with_suffix(".json")
    boxes = json.loads(receipt.read_text())["boxes"]
    box = boxes[change["place"] // 7 % len(boxes)] if boxes else {"file_offset": 0, "bytes": 8}
    at = box["file_offset"] + change["place"] // 91 % box["bytes"]
    named = {"receipt": receipt, "manifest": source / "manifest.json", "plan": source / "plan.json"}
    kind = change["kind"]
    if kind == "kill":
        return [f"{when[0]} kill - -"]
    if kind == "cut":
        return [f"{when[0]} cut {file} {at}"]
    if kind == "another":
        return [f"{when[0]} move {path} {other / path.relative_to(source)}"
                for path in [*ranks, *(r.with_suffix(".json") for r in ranks), source / "manifest.json"]]
    if kind in named:
        return [f"{when[0]} xor {named[kind]} {change['place'] % named[kind].stat().st_size}"]
    return [f"{n} xor {file} {at}" for n in (when if kind == "flip and back" else when[:1])]


def other_values(folder, flip):
    """Other values in each rank's file, with receipts that fit."""
    for receipt in sorted(folder.glob("ranks/*.json")):
        text, file = receipt.read_text(), receipt.with_suffix(".h5")
        if not file.exists():
            continue
        data = bytearray(file.read_bytes())
        for box in json.loads(text)["boxes"]:
            data[box["file_offset"]] ^= flip
            values = bytes(data[box["file_offset"]:box["file_offset"] + box["bytes"]])
            text = text.replace(f'"file_offset": {box["file_offset"]}, "bytes": {box["bytes"]}, "sha256": "{box["sha256"]}"',
                                f'"file_offset": {box["file_offset"]}, "bytes": {box["bytes"]}, '
                                f'"sha256": "{hashlib.sha256(values).hexdigest()}"')
        file.write_bytes(data)
        receipt.write_text(text)


def tamper(how, folder):
    """What others do to the copy that was not finished."""
    for part in folder.glob(".to.part-*"):
        inside = part / "checkpoint"
        if how.startswith("values"):
            other_values(inside, 0x80)
        if how == "values and size":
            for file in inside.glob("ranks/*.h5"):
                file.write_bytes(file.read_bytes() + b"\0")
        if how == "foreign" and inside.exists():
            (inside / "notes").write_text("mine")
        if how == "open":
            part.chmod(0o777)


@generated(50)
@given(case=cases())
def test_generated_copies(case):
    with tempfile.TemporaryDirectory(prefix="shardinit-copies-") as name:
        folder = pathlib.Path(name).resolve()
        verb, *options = prepare(case, folder)
        source, target, wanted = folder / "from", folder / "to", Tree(folder / "wanted")
        pristine, other = folder / "pristine", folder / "other"
        shutil.copytree(source, pristine)
        shutil.copytree(source, other)
        other_values(other, 0x01)
        (other / "manifest.json").unlink()
        Ok("finalize", other)
        command = [verb, source, *options, "--jobs", "1", "--memory", case["memory"], "-o", target]
        Ok(*command, env=changing(source, count=folder / "reads"))
        assert Tree(target) == wanted
        shutil.rmtree(target)
        reads = int((folder / "reads").read_text())
        right = [wanted]
        another = case["change"]["kind"] == "another"
        if another:  # Before anything is read, the other checkpoint is what is copied.
            Ok(*[other if argument == source else argument for argument in command])
            right.append(Tree(target))
            shutil.rmtree(target)

        result = Run(*command, env=changing(source, *lines(case["change"], source, other, reads)))
        if result.returncode == 0:
            assert Tree(target) in right
            shutil.rmtree(target)
        else:
            assert not target.exists()
            killed = case["change"]["kind"] == "kill"
            assert result.returncode == (-9 if killed else result.returncode)
            assert killed or (0 < result.returncode < 6 and "shardinit: error: " in result.stderr), result.stderr
        tamper(case["tamper"], folder)
        shutil.rmtree(source)
        shutil.copytree(pristine, source)
        Ok(*command)
        assert Tree(target) == wanted
        left = [path.name for path in folder.glob(".*")]
        # What others had a hand in, and the copy of another checkpoint, is left as it is.
        if another or case["tamper"] in ("foreign", "open"):
            left = [name for name in left if not name.startswith(".to.part-")]
        assert not left
