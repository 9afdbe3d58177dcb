"""`init: {norms: {of: …}}` computes another tensor's norms as the manual says, on any mesh and for any type."""

import json
import os

import numpy as np
import pytest

from clients import gen_ok
from support import DTYPES, reassemble, run_json, run_ok, run_tool

SHAPES = {  # The shapes of v and its norms determine the dimensions that are summed over.
    "first kept": ([70, 5, 9], [70, 1, 1]), "last kept": ([9, 50, 700], [1, 1, 700]),
    "middle kept": ([6, 80, 11], [1, 80, 1]), "two kept": ([6, 40, 7], [6, 1, 7]),
          "outer over": ([6, 40, 7], [1, 40, 7]),
    "short rows": ([3000, 2], [3000, 1]), "all": ([30, 40], []), "all, in its rank": ([30, 40], [1, 1]),
          "none": ([5, 7], [5, 7]),
    "vector": ([1000], [1]), "of one": ([1, 9], [1, 1]), "scalar": ([], []),
          "ones between": ([4, 1, 6, 1], [4, 1, 1, 1]),
    "rows": ([50, 7], [50]), "rows of a square": ([30, 30], [30]), "two of three": ([6, 40, 7], [6, 40]),
          "rows of a kernel": ([8, 3, 3], [8]),
}
INITS = ["{normal: {std: 0.5}}", "{uniform: {low: -2, high: 1}}", "{trunc_normal: {std: 0.02}}",
         "{constant: {value: 3}}",
         '{expr: "normal() * i0 - 1"}', "{normalized: {axis: 0}}", "{sparse: {sparsity: 0.3}}", "orthogonal"]


def spec_text(tensors, mesh="a: 1, b: 1"):
    return f"shardinit: 1\nname: norms\nseed: 3\nfans: out_in\nuneven: chunk\nmesh: {{axes: {{{mesh}}}}}\nmodules:\n" + "".join(
        f"  {name}: {{{body}}}\n" for name, body in tensors)


def norms(v, shape):
    """Computes the norm as defined in shardinit-values(7)."""
    whole = [*shape, *[1] * (v.ndim - len(shape))]
    over = [d for d in range(v.ndim) if whole[d] != v.shape[d]]
    kept = [d for d in range(v.ndim) if d not in over]
    x = v.astype(np.float64).transpose(over + kept).reshape(-1, *(v.shape[d] for d in kept))
    p = [np.add.accumulate(part)[-1] if len(part := x[m::8] ** 2) else np.zeros(x.shape[1:]) for m in range(8)]
    return np.sqrt(((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]))).reshape(shape)


def stored(values, dtype):
    return values if dtype == "f64" else values.astype(np.float32).astype(DTYPES[dtype])


def check(read, path, of, dtype):
    name, words = read[path]
    v = read[of][1].view(DTYPES[read[of][0]])
    assert name == dtype and words.tobytes() == stored(norms(v, list(words.shape)), dtype).tobytes(), path


@pytest.mark.parametrize("mesh", ["a: 1, b: 1", "a: 2, b: 3", "a: 7, b: 1"])
def test_norms_match_the_manual(mesh, tmp_path):
    tensors = []
    for number, (name, (v, g)) in enumerate(SHAPES.items()):
        cut = lambda shape: "shard: [%s]" % ", ".join((["a", "b"] + ["null"] * 9)[:len(shape)])
        dtype = ["f32", "bf16", "f64", "f16"][number % 4]
        tensors += [(f"g{number}", f"shape: {g}, dtype: {dtype}, {cut(g)}, init: {{norms: {{of: v{number}}}}}"),
                    (f"v{number}", f"shape: {v}, dtype: {dtype}, {cut(v)}, init: {INITS[number % 2]}")]
    read = reassemble(gen_ok(spec_text(tensors, mesh), tmp_path))
    for number in range(len(SHAPES)):
        check(read, f"g{number}", f"v{number}", read[f"v{number}"][0])
    run_ok("verify", tmp_path / "out")


def test_norms_of_every_distribution_and_type(tmp_path):
    words = np.random.default_rng(0).normal(size=(20, 30)).astype("<f4")
    (tmp_path / "table.bin").write_bytes(words.tobytes())
    import hashlib
    inits = [*INITS, f"{{file: {{path: table.bin, sha256: {hashlib.sha256(words.tobytes()).hexdigest()}}}}}"]
    tensors = []
    for number, init in enumerate(inits):
        tensors += [(f"v{number}", f"shape: [20, 30], dtype: f32, init: {init}"),
                    (f"g{number}", f"shape: [20, 1], dtype: f32, init: {{norms: {{of: v{number}}}}}"),
                    (f"h{number}", f"shape: [1, 30], dtype: f64, init: {{norms: {{of: v{number}}}}}")]
    for dtype in ("f64", "f16", "bf16", "f8e4m3fn", "f8e5m2"):
        tensors += [(f"v_{dtype}", f"shape: [20, 30], dtype: {dtype}, init: {{normal: {{std: 0.3}}}}"),
                    (f"g_{dtype}", f"shape: [20, 1], dtype: {dtype}, init: {{norms: {{of: v_{dtype}}}}}")]
    read = reassemble(gen_ok(spec_text(tensors), tmp_path))
    for path in read:
        if path[0] in "gh":
            check(read, path, "v" + path[1:], read[path][0])


def test_norms_follow_the_tensor_they_measure(tmp_path):
    """Norms use v's seed and key, also in repeats. The plan records v's path, so reading it needs no spec."""
    text = spec_text([]).rstrip() + """
  layers:
    repeat: {layer: 3}
    g: {shape: [6, 1], dtype: f32, init: {norms: {of: "layers.{layer}.v"}}}
    v: {shape: [6, 40], dtype: f32, init: {normal: {std: 1}}, key: "draw.{layer}"}
layouts:
  stacked:
    g: {from: {stack: {axis: 0, for: {i: 3}, of: "layers.{i}.g"}}}
    v: {from: {stack: {axis: 0, for: {i: 3}, of: "layers.{i}.v"}}}
"""
    read = reassemble(gen_ok(text, tmp_path))
    for layer in range(3):
        check(read, f"layers.{layer}.g", f"layers.{layer}.v", "f32")
    spec = tmp_path / "spec.yaml"
    run_ok("gen", spec, "-o", tmp_path / "seed", "--set", "seed=9")
    other = reassemble(tmp_path / "seed")
    check(other, "layers.1.g", "layers.1.v", "f32")
    assert not np.array_equal(other["layers.1.g"][1], read["layers.1.g"][1])
    run_ok("gen", spec, "-o", tmp_path / "stacked", "--layout", "stacked")
    stacked = reassemble(tmp_path / "stacked")
    assert np.array_equal(stacked["g"][1], np.stack([read[f"layers.{i}.g"][1] for i in range(3)]))
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    assert plan["tensors"][2]["init"] == {"norms": {"of": "layers.1.v"}}
    os.remove(spec)
    run_ok("verify", tmp_path / "out")
    run_ok("reshard", tmp_path / "out", "-o", tmp_path / "reshard", "--replicas", "full")
    assert run_json("stats", tmp_path / "out")["tensors"][0]["as_declared"]
    plan["tensors"][2]["init"]["norms"]["of"] = "layers.1.w"
    (tmp_path / "changed.json").write_text(json.dumps(plan, indent=1))
    result = run_tool("diff", tmp_path / "changed.json", tmp_path / "out/plan.json")
    assert result.returncode == 5 and "no tensor is `layers.1.w`" in result.stderr


def test_norms_of_torch_cpu_numbers_are_inexact(tmp_path):
    """Only norms of numbers that were not drawn are exact."""
    spec = tmp_path / "spec.yaml"
    spec.write_text("engine: torch_cpu\n" + spec_text([
        ("v", "shape: [90, 4], dtype: f32, init: {normal: {std: 1}}"),
        ("g", "shape: [90, 1], dtype: f32, init: {norms: {of: v}}"),
        ("e", 'shape: [5], dtype: f32, init: {expr: "torch_normal(720, -1, 16, index, 0, 1) * 2"}'),
        ("h", "shape: [], dtype: f32, init: {norms: {of: e}}"),
        ("w", "shape: [5], dtype: f32, init: ones"), ("f", "shape: [1], dtype: f32, init: {norms: {of: w}}")]))
    run_ok("gen", spec, "-o", tmp_path / "out")
    read = reassemble(tmp_path / "out")
    for path, of in (("g", "v"), ("h", "e"), ("f", "w")):
        check(read, path, of, "f32")
    for file in ("plan.json", "manifest.json"):
        tensors = json.loads((tmp_path / "out" / file).read_text())["tensors"]
        assert [t["path"] for t in tensors if t.get("inexact")] == ["g", "h"], file
    assert "norms of v, inexact:" in run_ok("explain", spec, "g").stdout
    run_ok("verify", tmp_path / "out")


def test_norms_that_overflow_their_type_are_rejected(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(spec_text([("v", "shape: [900], dtype: f8e4m3fn, init: {constant: {value: 400}}"),
                          ("g", "shape: [1], dtype: f8e4m3fn, init: {norms: {of: v}}")]))
    result = run_tool("digest", spec)
    assert result.returncode == 2 and "element [0] of `g` is 11520, which f8e4m3fn cannot hold" in result.stderr


def test_program_rejects_norms_of_sparse_matrices(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(spec_text([("v", "shape: [90, 5], dtype: f32, init: {sparse: {sparsity: 0.3}}"),
                          ("g", "shape: [90, 1], dtype: f32, init: {norms: {of: v}}")]))
    result = run_tool("program", spec)
    assert result.returncode == 2 and "`g` has norms of the sparse `v`, which programs cannot make" in result.stderr
    run_ok("program", spec, "--only", "v")
