"""Changes, cuts or replaces a checkpoint at any read of a reshard or export, or kills and tampers with the copy.

A file under the final name must have the right bytes, and the same command must be able to continue."""

import hashlib
import json
import pathlib
import shutil
import tempfile

from hypothesis import strategies as st

from changing import changing, counted
from generated import generated, given
from support import OF_ANY, ROOT, TINY, run_ok, run_tool, tree_of

AXES = "xyz"
LAYOUTS = f"""
shardinit: 1
include: [{TINY}, {ROOT}/configs/layouts/llama.yaml]
vars: {{d: 64, ff: 96, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, vocab: 512}}
"""
# A position in a list or a file, in thousandths, since Hypothesis draws unbounded numbers near 0.
PART = st.integers(0, 999)


@st.composite
def meshes(draw):
    return {axis: draw(st.integers(1, 3)) for axis in AXES}


@st.composite
def tensors(draw):
    shape = draw(st.one_of(st.lists(st.integers(1, 40), max_size=3), st.sampled_from([[260, 520], [3000, 7], [40000]])))
    axes = draw(st.lists(st.sampled_from([*AXES, None]), min_size=len(shape), max_size=len(shape),
                         unique_by=lambda axis: axis or object()))
    return {"shape": shape, "shard": axes, "init": {"normal": {"std": 1}},
            "dtype": draw(st.sampled_from(["f64", "f32", "bf16", "f8e5m2"]))}


@st.composite
def changes(draw):
    """Draws a change of the source between two reads of a byte, or of an unfinished copy."""
    kinds = ["flip", "flip", "flip and back", "flip and back", "flip and back", "cut", "rank and receipt", "swap",
             "another", "receipt", "manifest", "plan", "kill", "kill", "kill at a step", "kill at a step"]
    return {"kind": draw(st.sampled_from(kinds)), "gap": draw(st.integers(0, 3)), "within": draw(PART),
            "rank": draw(PART), "box": draw(PART), "place": draw(PART),
            "tamper": draw(st.sampled_from(["", "", "values", "values and size", "foreign", "open"]))}


@st.composite
def cases(draw):
    case = {"changes": draw(st.lists(changes(), min_size=1, max_size=8)),
            "memory": draw(st.sampled_from(["1M", "160M"]))}
    if draw(st.integers(0, 7)) == 7:
        names = st.sampled_from(["", "torchtitan", "megatron", "maxtext"])
        return {**case, "layouts": [draw(names), draw(names)]}
    case["tensors"] = draw(st.lists(tensors(), min_size=1, max_size=4))
    case["mesh"] = draw(meshes())
    case["to"] = draw(st.one_of(st.sampled_from(OF_ANY), meshes()))
    case["replicas"] = draw(st.sampled_from(["dedupe", "full"]))
    return case


def mesh_text(mesh):
    return ",".join(f"{axis}={size}" for axis, size in mesh.items())


def prepare(case, folder):
    """Makes a checkpoint in `from` and the expected copy in `wanted`; returns the command without its folders."""
    spec = folder / "spec.yaml"
    if "layouts" in case:
        spec.write_text(LAYOUTS)
        before, after = (["--layout", name] if name else [] for name in case["layouts"])
        run_ok("gen", spec, "--mesh", "fsdp=2", *before, "-o", folder / "from")
        run_ok("gen", spec, "--mesh", "fsdp=1", *after, "-o", folder / "wanted")
        return ["reshard", "--spec", spec, "--mesh", "fsdp=1", *after]
    spec.write_text(json.dumps({
        "shardinit": 1, "name": "m", "uneven": "chunk", "mesh": {"axes": case["mesh"]},
        "modules": {f"t{n}": tensor for n, tensor in enumerate(case["tensors"])}}))
    run_ok("gen", spec, "--replicas", case["replicas"], "-o", folder / "from")
    if isinstance(case["to"], str):
        run_ok("export", spec, "--set", f"replicas={case['replicas']}", "--to", case["to"], "-o", folder / "wanted")
        return ["export", "--to", case["to"]]
    options = ["--mesh", mesh_text(case["to"])]
    run_ok("gen", spec, "--replicas", case["replicas"], *options, "-o", folder / "wanted")
    return ["reshard", "--uneven", "chunk", *options]


def item_at(items, part):
    return items[part * len(items) // 1000]


class Reads:
    """The reads of an undisturbed copy in order, and its number of steps that change the disk."""

    def __init__(self, folder):
        lines = [line.rsplit(" ", 2) for line in (folder / "log").read_text().splitlines()]
        self.all = [(path, int(offset), int(size)) for path, offset, size in lines]
        count, self.steps = counted(folder / "count")
        assert count == len(self.all)

    def when(self, path, at, gap, within):
        """Returns the number of a read after the `gap`-th read of this byte and no later than the next read of it."""
        of_it = [n for n, (name, offset, size) in enumerate(self.all, 1) if name == str(path)
                     and offset <= at < offset + size]
        gap %= len(of_it) + 1
        first = of_it[gap - 1] + 1 if gap else 1
        last = of_it[gap] if gap < len(of_it) else len(self.all)
        return min(last, first + within * (last - first + 1) // 1000)


def environment(change, source, other, reads):
    """Returns the environment that makes the change. `other` is a checkpoint of the same plan with other values."""
    kind = change["kind"]
    if kind == "kill at a step":
        return changing(source, kill=1 + change["within"] * reads.steps // 1000)
    if kind == "kill":
        return changing(source, f"{1 + change['within'] * len(reads.all) // 1000} kill - -")
    ranks = sorted(source.glob("ranks/*.h5"))
    file = item_at(ranks, change["rank"])
    receipt = file.with_suffix(".json")
    boxes = json.loads(receipt.read_text())["boxes"]
    box = item_at(boxes, change["box"]) if boxes else {"file_offset": 0, "bytes": 8}
    at = box["file_offset"] + change["place"] * box["bytes"] // 1000
    named = {"receipt": receipt, "manifest": source / "manifest.json", "plan": source / "plan.json"}
    if kind in named:
        at = change["place"] * named[kind].stat().st_size // 1000
        return changing(source, f"{reads.when(named[kind], at, change['gap'], change['within'])} xor {named[kind]} "
                                f"{at}")
    when = reads.when(file, at, change["gap"], change["within"])
    if kind == "cut":
        return changing(source, f"{when} cut {file} {at}")
    if kind == "swap":
        return changing(source, f"{when} swap {file} {item_at(ranks, 999 - change['rank'])}")
    if kind in ("another", "rank and receipt"):
        moved = [file, receipt] if kind == "rank and receipt" else [
            *ranks, *(rank.with_suffix(".json") for rank in ranks), source / "manifest.json"]
        return changing(source, *(f"{when} move {path} {other / path.relative_to(source)}" for path in moved))
    lines = [f"{when} xor {file} {at}"]
    if kind == "flip and back":  # One or a few reads of the byte give another value.
        later = [n for n, (name, offset, size) in enumerate(reads.all, 1)
                 if n >= when and name == str(file) and offset <= at < offset + size]
        if later:
            lines.append(f"{later[0] + 1} xor {file} {at}")
    return changing(source, *lines)


def other_values(folder, flip):
    """Changes the values in each rank's file and updates the receipts."""
    for receipt in sorted(folder.glob("ranks/*.json")):
        text, file = receipt.read_text(), receipt.with_suffix(".h5")
        if not file.exists():
            continue
        data = bytearray(file.read_bytes())
        for box in json.loads(text)["boxes"]:
            data[box["file_offset"]] ^= flip
            values = bytes(data[box["file_offset"]:box["file_offset"] + box["bytes"]])
            text = text.replace(f'"file_offset": {box["file_offset"]}, "bytes": {box["bytes"]}, "sha256": '
                                f'"{box["sha256"]}"', f'"file_offset": {box["file_offset"]}, "bytes": {box["bytes"]}, '
                                f'"sha256": "{hashlib.sha256(values).hexdigest()}"')
        file.write_bytes(data)
        receipt.write_text(text)


def tamper(how, folder):
    """Changes the unfinished copy as another program might."""
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


@generated(30)
@given(case=cases())
def test_random_copies_survive_changes_and_kills(case):
    with tempfile.TemporaryDirectory(prefix="shardinit-copies-") as name:
        folder = pathlib.Path(name).resolve()
        verb, *options = prepare(case, folder)
        source, target, wanted = folder / "from", folder / "to", tree_of(folder / "wanted")
        pristine, other = folder / "pristine", folder / "other"
        shutil.copytree(source, pristine)
        shutil.copytree(source, other)
        other_values(other, 0x01)
        (other / "manifest.json").unlink()
        run_ok("finalize", other)
        shutil.copytree(other, folder / "another")
        command = [verb, source, *options, "--jobs", "1", "--memory", case["memory"], "-o", target]
        run_ok(*[other if argument == source else argument for argument in command])
        others = tree_of(target)
        shutil.rmtree(target)
        run_ok(*command, env=changing(source, count=folder / "count", log=folder / "log"))
        assert tree_of(target) == wanted
        shutil.rmtree(target)
        reads = Reads(folder)
        for change in case["changes"]:
            check(change, folder, command, wanted, others, reads)
            shutil.rmtree(target)


def check(change, folder, command, wanted, others, reads):
    source, target = folder / "from", folder / "to"
    kind = change["kind"]
    result = run_tool(*command, env=environment(change, source, folder / "other", reads))
    if result.returncode == 0:
        # Before the first read, a replaced checkpoint is copied as if it had always been there.
        assert tree_of(target) == wanted or kind == "another" and tree_of(target) == others, change
        shutil.rmtree(target)
    else:
        # A kill may come after the last rename and before the sync.
        assert not target.exists() or kind == "kill at a step" and tree_of(target) == wanted, change
        if kind.startswith("kill"):
            assert result.returncode == -9, result
        else:
            assert result.returncode in (1, 2, 3, 5) and "shardinit: error: " in result.stderr, result
            assert str(source) in result.stderr and "bug" not in result.stderr, result.stderr
    tamper(change["tamper"], folder)
    for used, kept in (("from", "pristine"), ("other", "another")):
        shutil.rmtree(folder / used)
        shutil.copytree(folder / kept, folder / used)
    run_ok(*command)
    assert tree_of(target) == wanted, change
    # These are left alone: files touched by others, the copy of another checkpoint, and a copy whose maker was killed
    # before it wrote the token.
    left = list(folder.glob(".*"))
    foreign = kind == "another" or change["tamper"] in ("foreign", "open")
    for path in left:
        assert path.name.startswith(".to.part-"), (change, left)
        assert foreign or kind == "kill at a step" and not (path / "checkpoint").exists(), (change, left)
        shutil.rmtree(path)
