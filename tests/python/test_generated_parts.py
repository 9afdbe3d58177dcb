"""Folders of other tools, without digests, are converted in parts to other meshes and layouts. Each rank reads only the
elements that it needs, and the parts together equal the output of `gen` and of a single run."""

import json
import pathlib
import tempfile

import numpy as np
from hypothesis import strategies as st

from generated import generated, given
from support import reassemble, run_ok, tree_of

AXES = "xyz"
NAMED = ["safetensors", "dcp", "zarr"]


@st.composite
def tensors(draw):
    shape = draw(st.one_of(st.lists(st.integers(1, 40), min_size=1, max_size=3),
                           st.sampled_from([[260, 520], [40, 9000], [3, 40, 700], [70000]])))
    axes = draw(st.lists(st.sampled_from([*AXES, None]), min_size=len(shape), max_size=len(shape),
                         unique_by=lambda axis: axis or object()))
    return {"shape": shape, "shard": axes, "init": {"normal": {"std": 1}},
            "dtype": draw(st.sampled_from(["f32", "bf16", "f64"]))}


@st.composite
def cases(draw):
    count = draw(st.integers(1, 4))
    made = [draw(tensors()) for _ in range(count)]
    return {"tensors": made, "views": [draw(st.sampled_from(["", "", "turned", "cut"])) for _ in made],
            "layout": draw(st.booleans()), "mesh": {axis: draw(st.integers(1, 4)) for axis in AXES},
            "from": draw(st.sampled_from(NAMED)), "to": draw(st.sampled_from(["hdf5", *NAMED])),
            "shard_size": draw(st.sampled_from(["2KB", "100KB", "5GB"])), "parts": draw(st.integers(2, 9)),
            "replicas": draw(st.sampled_from(["dedupe", "dedupe", "full"])),
            "memory": draw(st.sampled_from(["1M", "160M"])), "jobs": draw(st.integers(1, 3))}


def layout_views(case):
    """Returns a layout that transposes some tensors, cuts some in two, and keeps the others."""
    views = {}
    for n, (tensor, kind) in enumerate(zip(case["tensors"], case["views"])):
        shape, name = tensor["shape"], f"t{n}"
        if kind == "turned" and len(shape) > 1:
            views[f"{name}_turned"] = {"from": {"transpose": {"axes": list(range(len(shape)))[::-1], "of": name}}}
        elif kind == "cut" and shape[-1] > 1:
            half, axis = shape[-1] // 2, len(shape) - 1
            for part, start, stop in (("low", 0, half), ("high", half, shape[-1])):
                views[f"{name}_{part}"] = {"from": {"slice": {"axis": axis, "start": start, "stop": stop, "of": name}}}
        else:
            views[name] = {"from": name}
    return views


@generated(60)
@given(case=cases())
def test_convert_in_parts_equals_one_run(case):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        spec = folder / "spec.yaml"
        spec.write_text(json.dumps({
            "shardinit": 1, "name": "m", "uneven": "chunk", "replicas": case["replicas"],
            "mesh": {"axes": case["mesh"]},
            "modules": {f"t{n}": tensor for n, tensor in enumerate(case["tensors"])},
            "layouts": {"other": layout_views(case)}}))
        size = ["--max-shard-size", case["shard_size"]] if case["from"] == "safetensors" else []
        run_ok("export", spec, "--to", case["from"], *size, "-o", folder / "from")
        (folder / "from/shardinit-export.json").unlink()
        layout = ["--layout", "other"] if case["layout"] else []
        size = ["--max-shard-size", case["shard_size"]] if case["to"] == "safetensors" else []
        command = ["convert", folder / "from", "--to", case["to"], "--spec", spec, *layout, *size, "--memory",
                   case["memory"], "--jobs", case["jobs"]]
        run_ok(*command, "-o", folder / "one")
        for part in range(case["parts"]):
            run_ok(*command, "-o", folder / "to", "--part", f"{part}/{case['parts']}")
        assert tree_of(folder / "to") == tree_of(folder / "one")
        if case["to"] == "hdf5":
            run_ok("gen", spec, *layout, "-o", folder / "wanted")
            wanted, made = reassemble(folder / "wanted"), reassemble(folder / "one")
            assert made.keys() == wanted.keys()
            for path, (dtype, words) in wanted.items():
                assert made[path][0] == dtype and np.array_equal(made[path][1], words), path
        else:
            run_ok("verify", folder / "one", "--spec", spec, *layout)
