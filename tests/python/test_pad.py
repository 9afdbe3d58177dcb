"""`uneven: pad` stores tensors with padding, so that all parts have the same size."""

import json
import math

import h5py
import numpy as np
import pytest
import yaml

from clients import bits_of
from support import DTYPES, OF_ANY, read_raw, reassemble, run_json, run_ok, run_tool, sha256_of, tree_of

import shardinit

MODULES = {
    "w": {"shape": [10, 3], "shard": [["a", "b"]], "init": {"normal": {"std": 1}}},
    "even": {"shape": [12, 3], "shard": ["a"], "init": {"normal": {"std": 1}}},
    "both": {"shape": [5, 7], "dtype": "bf16", "shard": ["a", "b"], "uneven": {"pad": "half / 2"},
             "init": {"normal": {"std": 1}}},
    "whole": {"shape": [7], "init": {"uniform": {"low": 0, "high": 1}}},
    "count": {"shape": [1, 5, 2], "dtype": "i32", "shard": [None, "b"], "uneven": {"pad": -1},
              "init": {"expr": "index"}},
    "chunk": {"shape": [5], "shard": ["a"], "uneven": "chunk", "init": "ones"},
}
PADS = {"w": 0.0, "even": 0.0, "both": 0.25, "count": -1}


def write(path, modules=MODULES, uneven="pad", mesh=(2, 2), **keys):
    spec = {"shardinit": 1, "name": "x", "dtype": "f32", "vars": {"half": 0.5}, "uneven": uneven,
            "mesh": {"axes": dict(zip("ab", mesh))}, **keys, "modules": modules}
    path.write_text(yaml.safe_dump(spec, sort_keys=False, width=10**6))
    return path


def expected(mesh):
    """Returns path → stored shape."""
    sizes, shapes = dict(zip("ab", mesh)), {}
    for path, tensor in MODULES.items():
        shapes[path] = list(tensor["shape"])
        for d, axes in enumerate(tensor.get("shard", [])):
            parts = math.prod(sizes[axis] for axis in axes or [])
            if path != "chunk":
                shapes[path][d] = -(-shapes[path][d] // parts) * parts
    return shapes


def logical(stored, path):
    """Returns the part of a stored array without padding."""
    return stored[tuple(slice(0, n) for n in MODULES[path]["shape"])]


def values(words, dtype):
    return words.astype(np.uint32) << 16 if dtype == "bf16" else words.view(DTYPES[dtype])


@pytest.mark.parametrize("mesh", [(2, 2), (3, 4), (7, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("replicas", ["dedupe", "full"])
def test_padding_changes_no_values(mesh, replicas, tmp_path):
    spec = write(tmp_path / "x.yaml", mesh=mesh)
    chunk = write(tmp_path / "chunk.yaml", {p: {**t, "uneven": "chunk"} for p, t in MODULES.items()}, mesh=mesh)
    digests = run_json("digest", spec)
    assert digests == run_json("digest", chunk)
    of = {t["path"]: t["sha256"] for t in digests["tensors"]}
    run_ok("gen", spec, "-o", tmp_path / "out", "--replicas", replicas)
    run_ok("verify", tmp_path / "out")
    shapes = expected(mesh)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    is_padded = any(shapes[p] != list(t["shape"]) for p, t in MODULES.items())
    assert (manifest["format_version"], manifest.get("layout")) == (1, "padded" if is_padded else None)
    assert {t["path"]: t["global_shape"] for t in manifest["tensors"]} == shapes
    for tensor in manifest["tensors"]:
        assert tensor["path"] == "chunk" or len({tuple(s["shape"]) for s in tensor["shards"]}) == 1
    stored = reassemble(tmp_path / "out")
    with (h5py.File(tmp_path / "out/index.h5") as index, shardinit.open(tmp_path / "out") as checkpoint,
          shardinit.open_spec(spec) as opened):
        for path, (dtype, words) in stored.items():
            assert list(words.shape) == shapes[path]
            assert sha256_of(np.ascontiguousarray(logical(words, path))) == of[path], path
            assert np.array_equal(read_raw(index[path]), words)
            assert np.array_equal(bits_of(checkpoint.read(path, verify=True)), words)
            assert np.array_equal(bits_of(opened.generate(path)), words)
            padding = np.ones(words.shape, bool)
            logical(padding, path)[...] = False
            if padding.any():
                found = values(words[padding], dtype)
                assert np.all((found.view(np.float32) if dtype == "bf16" else found) == PADS[path]), path


LANGUAGES = {
    "map": {"w": ["a", "b"]},
    "partition_spec": {"map": {"w": "P(('a', 'b'),)"}},
    "placements": {"map": {"w": {"a": "Shard(0)", "b": "Shard(0)"}}},
    "strided": {"map": {"w": {"a": "_StridedShard(0, split_factor=mesh_b)", "b": "Shard(0)"}}},
    "rules": {"rules": [["rows", "a"], ["columns", "b"]]},
    "haliax": {"haliax": {"rows": ["a", "b"]}},
    "fsdp": {"fsdp": {"axis": "a"}},
    "first": {"first_divisible": {"axis": "a", "replicate_unshardable": True}},
    "megatron": {"megatron": {"row": "w", "axis": "b"}},
    "fully_shard": [{"megatron": {"column": "w", "axis": "b"}}, {"fully_shard": {"axes": "a"}}],
    "auto": "auto",
}
STORED = {"map": [12, 8], "partition_spec": [12, 7], "placements": [12, 7], "strided": [12, 7], "rules": [12, 8],
          "haliax": [12, 7], "fsdp": [12, 7], "first": [10, 7], "megatron": [10, 8], "fully_shard": [12, 7]}


@pytest.mark.parametrize("language", LANGUAGES)
def test_padding_works_in_every_sharding_language(language, tmp_path):
    modules = {"w": {"shape": [10, 7], "axes": ["rows", "columns"], "init": {"normal": {"std": 1}}}}
    sharding = LANGUAGES[language]
    plain = write(tmp_path / "plain.yaml", modules, sharding=sharding, mesh=(3, 2))
    run_ok("gen", plain, "-o", tmp_path / "out")
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    tensor, = plan["tensors"]
    shape, spec = tensor["global_shape"], tensor["partition_spec"]
    assert shape == STORED.get(language, shape)
    assert "nested" not in tensor and plan["format_version"] == 1
    sizes = {"a": 3, "b": 2}
    for d, axes in enumerate(spec):
        parts = math.prod(sizes[axis] for axis in axes)
        assert shape[d] == -(-[10, 7][d] // parts) * parts
    # The key `uneven` works the same next to the sharding language and in a file passed on the command line.
    if isinstance(sharding, dict):
        alone = write(tmp_path / "alone.yaml", modules, "error", mesh=(3, 2))
        (tmp_path / "sharding.yaml").write_text(yaml.safe_dump({"uneven": "pad", **sharding}))
        run_ok("gen", alone, "-o", tmp_path / "again", "--sharding", tmp_path / "sharding.yaml")
        assert tree_of(tmp_path / "again") == tree_of(tmp_path / "out")


def test_written_map_keeps_padding(tmp_path):
    modules = {p: {k: v for k, v in t.items() if k != "uneven"} for p, t in MODULES.items() if p != "count"}
    spec = write(tmp_path / "x.yaml", modules, {"pad": 0.125})
    run_ok("plan", spec, "--write", tmp_path / "map.yaml")
    assert "uneven: {pad: 0.125}" in (tmp_path / "map.yaml").read_text()
    bare = {p: {k: v for k, v in t.items() if k != "shard"} for p, t in modules.items()}
    other = write(tmp_path / "bare.yaml", bare, "error")
    run_ok("gen", spec, "-o", tmp_path / "a")
    run_ok("gen", other, "--sharding", tmp_path / "map.yaml", "-o", tmp_path / "b")
    assert tree_of(tmp_path / "a") == tree_of(tmp_path / "b")


def test_layouts_are_padded(tmp_path):
    """Layouts are padded too: kept tensors, and concatenations, which may be even although their parts are uneven."""
    modules = {"q": {"shape": [5, 2], "shard": ["a"], "init": {"normal": {"std": 1}}},
               "k": {"shape": [3, 2], "shard": ["a"], "init": {"normal": {"std": 1}}},
               "o": {"shape": [2, 5], "shard": [None, "a"], "init": {"normal": {"std": 1}}}}
    layouts = {"fused": {"keep": ["o"], "qk": {"from": {"concat": {"axis": 0, "of": ["q", "k"]}}},
                         "kk": {"from": {"concat": {"axis": 0, "of": ["k", "k", "k"]}}, "uneven": {"pad": 2}}}}
    spec = write(tmp_path / "x.yaml", modules, mesh=(2, 1), layouts=layouts)
    run_ok("gen", spec, "--layout", "fused", "-o", tmp_path / "out")
    run_ok("verify", tmp_path / "out")
    stored = {p: w.view(np.float32) for p, (_, w) in reassemble(tmp_path / "out").items()}
    assert {p: w.shape for p, w in stored.items()} == {"o": (2, 6), "qk": (8, 2), "kk": (10, 2)}
    with shardinit.open_spec(spec) as drawn:
        q, k, o = (drawn.generate(p)[tuple(slice(0, n) for n in modules[p]["shape"])] for p in "qko")
    assert np.array_equal(stored["o"], np.pad(o, ((0, 0), (0, 1))))
    assert np.array_equal(stored["qk"], np.concatenate([q, k]))
    assert np.array_equal(stored["kk"], np.pad(np.concatenate([k, k, k]), ((0, 1), (0, 0)), constant_values=2))


def test_stacks_are_padded_like_their_members(tmp_path):
    modules = {"e": {"shape": [6], "init": "ones"}}
    for n in range(2):
        modules[f"h.{n}.w"] = {"shape": [5], "shard": ["a"], "uneven": {"pad": "half"}, "init": {"normal": {"std": 1}}}
    spec = write(tmp_path / "x.yaml", modules, mesh=(2, 1), layouts={"s": {"stack": ["h"], "keep": ["e"]}})
    run_ok("gen", spec, "--layout", "s", "-o", tmp_path / "out")
    stored = {p: w.view(np.float32) for p, (_, w) in reassemble(tmp_path / "out").items()}
    assert {p: w.shape for p, w in stored.items()} == {"h.w": (2, 6), "e": (6,)}
    with shardinit.open_spec(spec) as drawn:
        for n in range(2):
            assert np.array_equal(stored["h.w"][n], np.append(drawn.generate(f"h.{n}.w")[:5], np.float32(0.5)))


def test_reshard_recomputes_padding(tmp_path):
    spec = write(tmp_path / "x.yaml")
    chunk = write(tmp_path / "chunk.yaml", {p: {**t, "uneven": "chunk"} for p, t in MODULES.items()})
    run_ok("gen", spec, "-o", tmp_path / "a")
    run_ok("gen", chunk, "-o", tmp_path / "c")
    for mesh in ["a=3,b=2", "a=1,b=1", "a=5,b=4"]:
        to = tmp_path / mesh
        run_ok("gen", spec, "--mesh", mesh, "-o", to / "gen")
        for source in ("a", "c"):
            run_ok("reshard", tmp_path / source, "--spec", spec, "--mesh", mesh, "-o", to / source)
            assert tree_of(to / source) == tree_of(to / "gen")
        run_ok("reshard", to / "gen", "--spec", chunk, "-o", to / "back")
        assert tree_of(to / "back") == tree_of(tmp_path / "c")
    # The plan does not determine the length of a tensor on another mesh.
    result = run_tool("reshard", tmp_path / "a", "--mesh", "a=5", "-o", tmp_path / "x")
    assert result.returncode == 2 and "dimension 0 of `w` (12) in 5 parts" in result.stderr
    (tmp_path / "s.yaml").write_text("uneven: pad\nmap:\n  w: [[a, b]]\n")
    result = run_tool("reshard", tmp_path / "c", "--sharding", tmp_path / "s.yaml", "-o", tmp_path / "x")
    assert result.returncode == 2 and "`uneven: pad` changes shapes" in result.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("to", OF_ANY)
def test_exports_have_padded_shapes(to, tmp_path):
    spec = write(tmp_path / "x.yaml")
    run_ok("gen", spec, "-o", tmp_path / "gen")
    run_ok("export", tmp_path / "gen", "--to", to, "-o", tmp_path / "a")
    run_ok("export", spec, "--to", to, "-o", tmp_path / "b")
    assert tree_of(tmp_path / "a") == tree_of(tmp_path / "b")
    run_ok("verify", tmp_path / "a", "--spec", spec)
    shapes = expected((2, 2))
    if to == "zarr":
        assert {p: json.loads((tmp_path / f"a/{p}/.zarray").read_text())["shape"] for p in shapes} == shapes
    else:
        found = {}
        for file in (tmp_path / "a").glob("*.safetensors"):
            data = file.read_bytes()
            header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
            if to == "safetensors":
                found |= {p: t["shape"] for p, t in header.items() if p != "__metadata__"}
        assert found == (shapes if to == "safetensors" else {})
    # A checkpoint without padding belongs to another spec.
    run_ok("export", spec, "--to", to, "-o", tmp_path / "c", "--mesh", "a=1,b=1")
    run_ok("verify", tmp_path / "c", "--spec", spec, "--mesh", "a=1,b=1")


def test_plan_reports_padding(tmp_path):
    spec = write(tmp_path / "x.yaml")
    plan = run_json("plan", spec)
    extra = {p: math.prod(s) - math.prod(MODULES[p]["shape"]) for p, s in expected((2, 2)).items()}
    padding = sum(n * MODULES[p].get("dtype", "f32").endswith("32") * 4 for p, n in extra.items()) + 2 * extra["both"]
    assert plan["stored_padding_bytes"] == padding == 58
    assert f"of which {padding} ({padding} B) are padding" in run_ok("plan", spec).stdout
    assert "stored_padding_bytes" not in run_json("plan", spec, "--mesh", "a=1,b=1")
    explained = run_json("explain", spec, "both")
    assert (explained["shape"], explained["stored_shape"]) == ([5, 7], [6, 8])
    assert explained["box"]["shape"] == [3, 4] and explained["partition"] == "[a, b]"
    view = explained["layouts"][0]
    assert view["view"] == "pad axis=1 to=8 value=0.25 of pad axis=0 to=6 value=0.25 of both"
    even = run_json("explain", spec, "even")
    assert "stored_shape" not in even and "layouts" not in even
    assert "[6, 8], 26 B of padding" in run_ok("explain", spec, "both").stdout
    page = tmp_path / "page.html"
    run_ok("plan", spec, "--html", page)
    assert "are padding" in page.read_text()


def test_explain_reports_an_unknown_path_once(tmp_path):
    """Drawn and stored tensors share their paths, so an unknown path is reported once."""
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: x\ndtype: f32\nuneven: pad\nmesh: {axes: {a: 2}}\n"
                                        "modules:\n"
                                        "  even: {shape: [8], init: zeros, shard: [a]}\n"
                                        "  odd: {shape: [7], init: zeros, shard: [a]}\n")
    result = run_tool("explain", tmp_path / "spec.yaml", "nope")
    assert (result.returncode, result.stderr) == (2, "shardinit: error: no tensor has the path `nope`\n"
                                                     "  hint: one of `even`, `odd`\n")


@pytest.mark.parametrize("tensor, message", [
    ({"shape": [6], "shard": [{"axes": "a", "segments": 2}]},
     "dimension 0 of `w` (6) has segments, which padding at its end does not make equal"),
    ({"shape": [5], "dtype": "i32", "shard": ["a"], "uneven": {"pad": 0.5}},
     "the padding is 0.5, but i32 holds whole numbers"),
    ({"shape": [5], "dtype": "f16", "shard": ["a"], "uneven": {"pad": 70000}},
     "the padding is 70000, but f16 ends at 65504"),
    ({"shape": [5], "shard": ["a"], "uneven": {"pad": "what"}}, "unknown name `what`"),
    ({"shape": [5], "shard": ["a"], "uneven": {"pad": None}}, "`pad` must be a number or an expression, not nothing"),
    ({"shape": [5], "shard": ["a"], "uneven": {"pads": 1}},
     "`uneven` must be `error`, `chunk` or `pad`, not a mapping"),
    ({"shape": [5], "shard": ["a"], "uneven": "pads"}, "`uneven` must be `error`, `chunk` or `pad`, not `pads`"),
])
def test_wrong_padding_is_rejected(tensor, message, tmp_path):
    spec = write(tmp_path / "x.yaml", {"w": {**tensor, "init": "zeros"}}, mesh=(2, 1))
    result = run_tool("plan", spec)
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert result.stderr.count("error:") == 1


def test_map_patterns_match_only_tensors_sharded_alike(tmp_path):
    """No pattern of a written map matches tensors with another sharding: `layers.*.w` would cover the first two
    tensors, but it also matches the third."""
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: x\ndtype: f32\nmesh: {axes: {a: 2}}\nmodules:\n"
                                        "  layers:\n    repeat: {i: 2}\n"
                                        "    w: {shape: [8, 4], init: ones, shard: [a]}\n"
                                        "  layers.x.w: {shape: [8, 4], init: ones, shard: [null, a]}\n"
                                        "  blocks:\n    repeat: {i: 2}\n"
                                        "    w: {shape: [8, 4], init: ones, shard: [a]}\n")
    run_ok("plan", tmp_path / "spec.yaml", "--write", tmp_path / "map.yaml")
    text = (tmp_path / "map.yaml").read_text()
    assert "layers.*.w" not in text and "blocks.*.w" in text
    bare = tmp_path / "bare.yaml"
    bare.write_text((tmp_path / "spec.yaml").read_text().replace(", shard: [a]", "").replace(", shard: [null, a]", ""))
    run_ok("gen", bare, "--sharding", tmp_path / "map.yaml", "-o", tmp_path / "out")
    run_ok("diff", tmp_path / "spec.yaml", tmp_path / "out")
