"""Values from existing models: `sources`, and the initializers `source`, `rows_like` and `parts`."""

import hashlib
import json
import re
import shutil

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from changing import changing, counted
from support import reassemble, run_ok, run_tool

WORDS = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}
RNG = np.random.default_rng(7)
EMBED = RNG.normal(size=(20, 6)).astype(np.float32)
TENSORS = {
    "embed.weight": EMBED,
    "half.weight": RNG.normal(size=(8, 6)).astype(ml_dtypes.bfloat16),
    "double": np.array([1.0, np.pi, 1e-300, -0.0]),
    "ids": np.array([[1, 2, 3], [4, 5, 2**40 + 1]], np.int64),
    "large": np.array([1, 2**53 + 1], np.int64),
    "scalar": np.array(2.5, np.float32),
    "odd": np.array([0x7FC00001, 0xFF800001, 0x80000000, 0x7F800000, 1], "<u4").view(np.float32),
    **{f"layers.{i}.w": np.full((4, 6), i, np.float32) + np.arange(24, dtype=np.float32).reshape(4, 6) / 32
       for i in range(4)},
}


@pytest.fixture
def model(tmp_path):
    """Returns a model's folder as Hugging Face's tools write it."""
    folder = tmp_path / "model"
    folder.mkdir()
    safetensors.numpy.save_file(TENSORS, folder / "model.safetensors")
    return folder


def spec_of(tmp_path, modules, sources="base: {path: model}", head="", name="spec.yaml"):
    path = tmp_path / name
    path.write_text(f"shardinit: 1\nname: grown\ndtype: f32\nsources: {{{sources}}}\n{head}modules:\n"
                    + "".join(f"  {line}\n" for line in modules.strip().split("\n")))
    return path


def generated_values(spec, *options):
    """Returns path → words of a new checkpoint."""
    out = spec.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    run_ok("gen", spec, "-o", out, *options)
    return {path: words for path, (_, words) in reassemble(out).items()}


def words(array):
    return np.ascontiguousarray(array).view(WORDS[array.dtype.itemsize])


def test_source_tensors_of_the_same_path_are_copied_exactly(tmp_path, model):
    spec = spec_of(tmp_path, """
embed.weight: {shape: [20, 6], init: {source: base}, shard: [t]}
half.weight: {shape: [8, 6], init: {source: base}, dtype: bf16, shard: [null, t]}
ids: {shape: [2, 3], init: {source: base}, dtype: i64}
odd: {shape: [5], init: {source: base}}
double: {shape: [4], init: {source: base}, dtype: f64}
""", head="mesh: {axes: {t: 2}}\n")
    made = generated_values(spec)
    for path, found in made.items():
        assert np.array_equal(found, words(TENSORS[path])), path
    # Digests are taken over the source's own bytes, so a generated model compares like any other.
    text = run_ok("digest", spec).stdout
    assert run_ok("digest", spec, "--mesh", "t=1", "-j", "1").stdout == text
    run_ok("verify", tmp_path / "out")


def test_source_tensors_of_another_type_are_rounded_once(tmp_path, model):
    spec = spec_of(tmp_path, """
embed.weight: {shape: [20, 6], init: {source: base}, dtype: bf16}
half.weight: {shape: [8, 6], init: {source: base}, dtype: f32}
double: {shape: [4], init: {source: base}}
""")
    made = generated_values(spec)
    assert np.array_equal(made["embed.weight"], words(EMBED.astype(ml_dtypes.bfloat16)))
    assert np.array_equal(made["half.weight"], words(TENSORS["half.weight"].astype(np.float32)))
    assert np.array_equal(made["double"], words(TENSORS["double"].astype(np.float32)))


@pytest.mark.parametrize("line, message", [
    ("ids: {shape: [2, 3], init: {source: base}}", "element [1, 2] of `ids` is 1099511627777"),
    ("embed.weight: {shape: [20, 6], init: {source: base}, dtype: i8}", "which i8 cannot hold"),
    ("odd: {shape: [5], init: {source: base}, dtype: f8e4m3fn}", "element [3] of `odd` is inf"),
    ("w: {shape: [4, 6], init: {source: base, tensor: embed.weight, index: [i0 + 17, i1]}}",
     "element [3, 0] of `w` would be element [20, 0]"),
    ("w: {shape: [4, 6], init: {expr: \"source('base', 'embed.weight', i0 / 2, i1)\"}}",
     "element [1, 0] of `w` takes element [0.5, 0]"),
    ("large: {shape: [2], init: {expr: \"source('base')\"}, dtype: f64}",
     "element [1] of `large` of source `base` is a whole number beyond 2^53, which f64 rounds"),
])
def test_source_elements_out_of_range_are_rejected(tmp_path, model, line, message):
    result = run_tool("gen", spec_of(tmp_path, line), "-o", tmp_path / "out")
    assert result.returncode == 2 and message in result.stderr, result.stderr


NAME_FIRST = "takes the name of a source, and optionally the name of a tensor"
FORMS = {"source": "hint: write it as in `source('base')` or `source('base', 'w', i0, i1)`",
         "mean": "hint: write it as in `source_mean('base')` or `source_mean('base', 'w')`",
         "std": "hint: write it as in `source_std('base')` or `source_std('base', 'w')`"}


@pytest.mark.parametrize("call, message, hint", [
    ("source()", "`source` takes at least 1 argument, not 0", ""),
    ("source_mean()", "`source_mean` takes 1 to 2 arguments, not 0", ""),
    ("source_mean('base', 'odd', 1)", "`source_mean` takes 1 to 2 arguments, not 3", ""),
    ("source_std()", "`source_std` takes 1 to 2 arguments, not 0", ""),
    ("source_std('base', 'odd', 'w')", "`source_std` takes 1 to 2 arguments, not 3", ""),
    ("source(i0)", f"`source` {NAME_FIRST}", FORMS["source"]),
    ("source('base', 'odd', 'x')", f"`source` {NAME_FIRST}", FORMS["source"]),
    ("source(i0, 'base')", "`source(i0, 'base')` computes with text",
     "hint: text can only be compared, by `==` and `!=`"),
    ("source_mean(1)", f"`source_mean` {NAME_FIRST}", FORMS["mean"]),
    ("source_mean('base', 1)", f"`source_mean` {NAME_FIRST}", FORMS["mean"]),
    ("source_std('base', i0)", f"`source_std` {NAME_FIRST}", FORMS["std"]),
    ("source('base', 'ids', i0)", "`source` needs an index for each dimension of [2, 3], not 1",
     "hint: omit the indices to use the element's own"),
    ("source('base', 'odd', i0, i0)", "`source` needs an index for each dimension of [5], not 2",
     "hint: omit the indices to use the element's own"),
    ("source('base', 'odd')", "`odd` of source `base` has the shape [5], but the tensor has [4]",
     "hint: give an index for each dimension of the source, as in `source('base', i0 % 4096, i1)`"),
])
def test_wrong_arguments_of_source_functions_are_rejected(tmp_path, model, call, message, hint):
    result = run_tool("digest", spec_of(tmp_path, f'w: {{shape: [4], init: {{expr: "{call}"}}}}'))
    first, *_, last = result.stderr.splitlines()
    assert result.returncode == 2 and first.endswith(f" error: {message}"), result.stderr
    assert last.strip() == (hint or "^" * len(call)), result.stderr


def test_plan_with_a_scalar_source_can_be_read_again(tmp_path, model):
    """A plan whose only element comes from a scalar source, without an index, can be read again."""
    spec = spec_of(tmp_path, """w: {shape: [], init: {expr: "source('base', 'scalar') * 2"}}""")
    assert generated_values(spec)["w"].view(np.float32) == 5
    run_ok("verify", tmp_path / "out")
    run_ok("diff", spec, tmp_path / "out/plan.json")


def test_sources_can_be_one_part_of_a_file(tmp_path):
    (tmp_path / "model").mkdir()
    both = {f"{path}.w": np.full((2, 3), value, np.float32) for path, value in (("model", 0), ("ema", 1))}
    both |= {f"optimizer.state.w.{name}": np.zeros((2, 3), np.float32) for name in ("exp_avg", "exp_avg_sq")}
    safetensors.numpy.save_file(both, tmp_path / "model/model.safetensors")
    line = "w: {shape: [2, 3], init: {source: base}}"
    result = run_tool("gen", spec_of(tmp_path, line), "-o", tmp_path / "none")
    assert result.returncode == 2 and "2 parts that may be the model" in result.stderr, result.stderr
    assert "for a source, as in `part: ema`" in result.stderr and not (tmp_path / "none").exists()
    for part, value in ("model", 0), ("ema", 1):
        made = generated_values(spec_of(tmp_path, line, f"base: {{path: model, part: {part}}}"))
        assert (made["w"] == words(both[f"{part}.w"])).all() and (both[f"{part}.w"] == value).all()
    result = run_tool("gen", spec_of(tmp_path, line, "base: {path: model, part: emma}"), "-o", tmp_path / "none")
    assert result.returncode == 2 and "has no part `emma` with tensors" in result.stderr, result.stderr


def test_source_names_may_contain_expressions(tmp_path, model):
    spec = spec_of(tmp_path, """
layers:
  repeat: {layer: layers}
  w: {shape: [4, 6], init: {source: base, tensor: "layers.{floor(layer * 4 / layers)}.w"}}
""", head="vars: {layers: 8}\n")
    made = generated_values(spec)
    for layer in range(8):
        assert np.array_equal(made[f"layers.{layer}.w"], words(TENSORS[f"layers.{layer * 4 // 8}.w"]))


@pytest.mark.parametrize("name, of", [("x.**", "x.b.c.w"), ("x.y.**", "x.y.c.w"), ("x.b.y.**", "x.b.y.w"),
                                      ("y.**", "y.b.c.w")])
def test_source_name_patterns_follow_the_path(tmp_path, name, of):
    """A pattern drops as many parts of the tensor's own path as the name before `**` has, whatever they are."""
    names = ["x.b.c.w", "x.y.c.w", "x.b.y.w", "y.b.c.w", "x.w", "x.c.w", "x.y.w", "x.y.b.c.w", "x.a.b.c.w", "x.b.y.c.w"]
    (tmp_path / "model").mkdir()
    safetensors.numpy.save_file({each: np.full(3, number, np.float32) for number, each in enumerate(names)},
                                tmp_path / "model/model.safetensors")
    made = generated_values(spec_of(tmp_path, f"a.b.c.w: {{shape: [3], init: {{source: base, tensor: '{name}'}}}}"))
    assert made["a.b.c.w"].view(np.float32).tolist() == [names.index(of)] * 3


def test_source_indices_may_be_expressions(tmp_path, model):
    spec = spec_of(tmp_path, """
tiled: {shape: [40, 12], init: {source: base, tensor: embed.weight, index: [i0 % 20, i1 % 6]}, shard: [t, null]}
turned: {shape: [6, 20], init: {source: base, tensor: embed.weight, index: [i1, i0]}, shard: [null, t]}
row: {shape: [6], init: {source: base, tensor: embed.weight, index: [7, i0]}}
taken: {shape: [3, 6], init: {source: base, tensor: embed.weight, index: ["source('base', 'ids', 0, i0)", i1]}}
everywhere: {shape: [8, 3], init: {source: base, tensor: scalar, index: []}, shard: [t, null]}
""", head="mesh: {axes: {t: 4}}\n")
    made = generated_values(spec)
    assert np.array_equal(made["tiled"], words(np.tile(EMBED, (2, 2))))
    assert np.array_equal(made["turned"], words(EMBED.T))
    assert np.array_equal(made["row"], words(EMBED[7]))
    assert np.array_equal(made["taken"], words(EMBED[TENSORS["ids"][0]]))
    assert np.array_equal(made["everywhere"], words(np.full((8, 3), 2.5, np.float32)))
    read = json.loads((tmp_path / "out/ranks/rank-00000.json").read_text())["sources"]
    assert [each["tensor"] for each in read] == ["embed.weight", "ids", "scalar"]


def test_expressions_compute_with_source_elements(tmp_path, model):
    spec = spec_of(tmp_path, """
mean: {shape: [4, 6], init: {expr: "0.25 * source('base', 'layers.0.w') + 0.75 * source('base', 'layers.3.w')"}}
embed.weight: {shape: [20, 6], init: {expr: "source('base') + 0.01 * normal()"}}
noise: {shape: [20, 6], key: embed.weight, init: {expr: "0.01 * normal()"}, dtype: f64}
half.weight: {shape: [8, 6], init: {expr: "2 * source('base', 7 - i0, i1)"}, dtype: bf16}
""".replace("key: embed.weight, ", ""))
    made = generated_values(spec)
    a, b = (TENSORS[f"layers.{i}.w"].astype(np.float64) for i in (0, 3))
    assert np.array_equal(made["mean"], words((0.25 * a + 0.75 * b).astype(np.float32)))
    assert np.array_equal(made["half.weight"],
                          words((2 * TENSORS["half.weight"][::-1].astype(np.float32)).astype(ml_dtypes.bfloat16)))
    moved = made["embed.weight"].view(np.float32) - EMBED
    assert 0.005 < moved.std() < 0.02


def rows_like(table, rows, axis=0):
    """Returns the mean and the standard deviation of each column, summed row by row in f64."""
    first = np.moveaxis(table.astype(np.float64), axis, 0)[:rows]
    mean, square = np.zeros(first.shape[1:]), np.zeros(first.shape[1:])
    for row in first:
        mean += row
    mean /= rows
    for row in first:
        square += (row - mean) * (row - mean)
    return mean, np.sqrt(square / rows)


@pytest.mark.parametrize("share", [None, 0, 0.5])
def test_rows_like_extends_a_vocabulary(tmp_path, model, share):
    std = "" if share is None else f", std: {share}"
    spec = spec_of(tmp_path, f"""
embed.weight: {{shape: [24, 6], init: {{parts: {{of: [{{source: base}}, {{rows_like: {{source: base{std}}}}}]}}}}, shard: [t]}}
turned: {{shape: [20, 9], init: {{parts: {{axis: 1, of: [{{source: base, tensor: embed.weight}}, zeros]}}}}}}
""", head="mesh: {axes: {t: 1}}\n")
    made = generated_values(spec)
    found = made["embed.weight"].view(np.float32)
    assert np.array_equal(made["embed.weight"][:20], words(EMBED))
    mean, deviation = rows_like(EMBED, 20)
    share = np.sqrt(1e-9) if share is None else share
    apart = (found[20:] - mean) / np.maximum(deviation * share, 1e-30)
    if share == 0:
        assert np.array_equal(found[20:], np.broadcast_to(mean.astype(np.float32), (4, 6)))
    else:
        assert np.abs(found[20:] - mean).max() < 7 * share * deviation.max() + 1e-7
        assert len(np.unique(made["embed.weight"][20:])) > 10
    if share == 0.5:
        assert 0.5 < apart.std() < 1.6 and abs(apart.mean()) < 0.7
    assert np.array_equal(made["turned"].view(np.float32), np.pad(EMBED, ((0, 0), (0, 3))))
    for mesh in (2, 3, 4, 8):
        again = generated_values(spec, "--mesh", f"t={mesh}", "-j", "8")
        assert np.array_equal(again["embed.weight"], made["embed.weight"])


def test_padding_rows_of_a_source_are_ignored(tmp_path, model):
    spec = spec_of(tmp_path, """
embed.weight: {shape: [18, 6], init: {parts: {of: [{source: base, rows: 15}, {rows_like: {source: base, rows: 15, std: 0}}]}}}
""")
    found = generated_values(spec)["embed.weight"].view(np.float32)
    assert np.array_equal(found[:15], EMBED[:15])
    assert np.array_equal(found[15:], np.broadcast_to(rows_like(EMBED, 15)[0].astype(np.float32), (3, 6)))


@pytest.mark.parametrize("order", [1, -1])
def test_rows_like_of_different_rows_of_one_tensor(tmp_path, model, order):
    """Statistics of some rows or one axis are not reused for others within a run."""
    wanted = [(axis, rows) for axis, most in ((0, 20), (1, 6)) for rows in (1, 2, 5, most)][::order]
    lines = []
    for axis, rows in wanted:
        shape = [20, 6]
        shape[axis] += 2
        of = "source: base, tensor: embed.weight"
        parts = f"{{{of}}}, {{rows_like: {{{of}, rows: {rows}, std: 0}}}}"
        lines.append(f"w{axis}_{rows}: {{shape: {shape}, init: {{parts: {{axis: {axis}, of: [{parts}]}}}}}}")
    lines.insert(4, "all: {shape: [2], init: {expr: \"source_mean('base', 'embed.weight')\"}}")
    made = generated_values(spec_of(tmp_path, "\n".join(lines)))
    for axis, rows in wanted:
        found = np.moveaxis(made[f"w{axis}_{rows}"].view(np.float32), axis, 0)
        assert np.array_equal(found[-2:], [rows_like(EMBED, rows, axis)[0].astype(np.float32)] * 2), (axis, rows)
    assert made["all"].view(np.float32) == pytest.approx(EMBED.mean())


@pytest.mark.parametrize("line, message", [
    ("other.weight: {shape: [2], init: {source: base}}", "source `base` has no tensor `other.weight`"),
    ("embed.weight: {shape: [21, 6], init: {source: base}}",
     "`embed.weight` is [21, 6], but `embed.weight` of source `base` is [20, 6]"),
    ("w: {shape: [2], init: {source: bose}}", "unknown source `bose`"),
    ("w: {shape: [2], init: {source: base, tensor: embed.weight, index: [i0]}}", "`index` has 1 expression,"),
    ("w: {shape: [2], init: {source: base, tensor: embed.weight, index: [i0, uniform()]}}",
     "an index cannot be random"),
    ("embed.weight: {shape: [9, 6], init: {parts: {of: [{source: base}, zeros]}}}",
     "the parts of `embed.weight` are longer"),
    ("embed.weight: {shape: [9, 6], init: {parts: {of: [ones, zeros]}}}", "the length of the part `ones` is not known"),
])
def test_source_errors_name_spec_and_source(tmp_path, model, line, message):
    result = run_tool("validate", spec_of(tmp_path, line))
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert "spec.yaml:6:" in result.stderr
    if "base" in message and "`base`" in message:
        assert "the source is" in result.stderr


def test_a_pinned_digest_rejects_changed_sources(tmp_path, model):
    line = "embed.weight: {shape: [20, 6], init: {source: base}}"
    everything = spec_of(tmp_path, "\n".join(
        f"{name}: {{shape: {list(value.shape)}, init: {{source: base}}, dtype: {dtype}}}"
        for (name, value), dtype in zip(TENSORS.items(), ["f32", "bf16", "f64", "i64", "i64"] + 6 * ["f32"])),
                         name="all.yaml")
    run_ok("digest", everything, "--write", tmp_path / "pins.json")
    digest = run_ok("digest", everything).stdout.strip().split("\n")[-1].split()[0]
    pinned = spec_of(tmp_path, line, sources=f"base: {{path: model, digest: {digest}}}", name="pinned.yaml")
    of_file = spec_of(tmp_path, line, sources="base: {path: model, digest: pins.json}", name="of_file.yaml")
    result = run_tool("validate", spec_of(tmp_path, line))
    assert result.returncode == 0 and "source `base` has no `digest`" in result.stderr
    for spec in (pinned, of_file):
        assert run_tool("validate", spec).stderr == ""
        generated_values(spec)
        assert f'"sources": [{{"name": "base", "digest": "{digest}"}}]' in (tmp_path / "out/plan.json").read_text()
        assert "sources" not in (tmp_path / "out/ranks/rank-00000.json").read_text()
    changed = {**TENSORS, "ids": TENSORS["ids"] + 1}
    safetensors.numpy.save_file(changed, model / "model.safetensors")
    generated_values(of_file)  # needs no other tensor
    result = run_tool("gen", pinned, "-o", tmp_path / "new")
    assert result.returncode == 2 and f"not {digest}" in result.stderr, result.stderr
    safetensors.numpy.save_file({**TENSORS, "embed.weight": EMBED + 1}, model / "model.safetensors")
    result = run_tool("gen", of_file, "-o", tmp_path / "new2")
    assert result.returncode == 2 and "has the SHA-256" in result.stderr, result.stderr
    twice = json.loads((tmp_path / "pins.json").read_text())
    twice["tensors"] *= 2
    (tmp_path / "pins.json").write_text(json.dumps(twice))
    result = run_tool("digest", of_file)
    assert result.returncode == 2 and "twice" in result.stderr, result.stderr


def test_ranks_from_different_sources_conflict(tmp_path, model):
    spec = spec_of(tmp_path, "embed.weight: {shape: [20, 6], init: {source: base}, shard: [t]}",
                   head="mesh: {axes: {t: 2}}\n")
    out = tmp_path / "out"
    run_ok("gen", spec, "-o", out, "--ranks", "0")
    (read,) = json.loads((out / "ranks/rank-00000.json").read_text())["sources"]
    assert (read["source"], read["tensor"]) == ("base", "embed.weight") and len(read["sha256"]) == 64
    (tmp_path / "copy").mkdir()
    safetensors.numpy.save_file({"embed.weight": EMBED + 1}, tmp_path / "copy/model.safetensors")
    result = run_tool("gen", spec, "-o", out, "--ranks", "1", "--source", f"base={tmp_path / 'copy'}")
    other = json.loads((out / "ranks/rank-00001.json").read_text())["sources"][0]
    message = (f"error: `{out}` is not one checkpoint: rank 1 was made from `embed.weight` of source `base` with SHA-256 "
               f"{other['sha256'][:12]}, but rank 0 with {read['sha256'][:12]}\n"
               f"  hint: make all ranks from the same source, in "
               "a new folder, and give its `digest` in the spec\n")
    assert result.returncode == 4 and message in result.stderr, result.stderr
    assert not (out / "manifest.json").exists()
    result = run_tool("finalize", out)
    assert result.returncode == 4 and message in result.stderr, result.stderr
    result = run_tool("verify", out)
    assert result.returncode != 0
    (out / "ranks/rank-00001.json").unlink()
    run_ok("gen", spec, "-o", out)
    run_ok("verify", out)


@pytest.mark.parametrize("layout, wanted", [
    ({}, [["embed.weight", "layers.0.w"], ["layers.1.w", "layers.2.w", "layers.3.w"]]),
    ({"ab": {"from": {"concat": {"axis": 0, "of": ["n", "a"]}}},
      "cd": {"from": {"stack": {"axis": 0, "of": ["c", "d"]}}},
      "keep": ["e", "f"]}, [["embed.weight", "layers.0.w"], ["layers.1.w", "layers.2.w", "layers.3.w"]]),
    ({"keep": ["f", "n"], "omit": ["a", "c", "d", "e"]}, [["embed.weight"], []]),
    ({"keep": ["d", "n"], "omit": ["a", "c", "f", "e"]}, [[], ["layers.2.w"]]),
    ({"half": {"from": {"slice": {"axis": 0, "stop": 2, "of": "e"}}}, "keep": ["n", "f"], "omit": ["a", "c", "d", "e"]},
     [["embed.weight"], ["layers.3.w"]])])
def test_receipts_list_the_source_tensors_of_a_rank(tmp_path, model, layout, wanted):
    """A receipt lists the source tensors that provide this rank's elements, whatever a layout does with them."""
    spec = spec_of(tmp_path, """
n: {shape: [4, 6], init: {normal: {std: 1}}, stage: {t: 0}}
a: {shape: [4, 6], init: {source: base, tensor: layers.0.w}, stage: {t: 0}}
c: {shape: [4, 6], init: {source: base, tensor: layers.1.w}, stage: {t: 1}}
d: {shape: [4, 6], init: {source: base, tensor: layers.2.w}, stage: {t: 1}}
e: {shape: [4, 6], init: {source: base, tensor: layers.3.w}, stage: {t: 1}}
f: {shape: [20, 6], init: {source: base, tensor: embed.weight}, stage: {t: 0}}
""", head="mesh: {axes: {t: 2}}\n" + (f"layouts: {{l: {json.dumps(layout)}}}\n" if layout else ""))
    run_ok("gen", spec, "-o", tmp_path / "out", *(["--layout", "l"] if layout else []))
    for rank, names in enumerate(wanted):
        read = json.loads((tmp_path / f"out/ranks/rank-0000{rank}.json").read_text()).get("sources", [])
        assert [(each["source"], each["tensor"]) for each in read] == [("base", name) for name in names]
        assert all(each["sha256"] == hashlib.sha256(TENSORS[each["tensor"]].tobytes()).hexdigest() for each in read)
    run_ok("verify", tmp_path / "out")


def test_sources_may_have_equal_tensor_names(tmp_path, model):
    """Sources may contain the same names. A receipt omits sources with a digest."""
    values = {source: {f"layers.{i}.w": TENSORS[f"layers.{i}.w"] + 100 * n for i in (0, 1)}
              for n, source in enumerate(("base", "other", "pinned"))}
    for source, tensors in values.items():
        (tmp_path / source).mkdir()
        safetensors.numpy.save_file(tensors, tmp_path / source / "model.safetensors")
    digest = run_ok("digest", tmp_path / "pinned").stdout.split("\n")[-2].split()[0]
    taken = [("base", 0, 0), ("other", 0, 0), ("pinned", 0, 0), ("other", 1, 1), ("base", 0, 1), ("base", 1, 1)]
    spec = spec_of(tmp_path, "\n".join(
        f"w{n}: {{shape: [4, 6], init: {{source: {source}, tensor: layers.{i}.w}}, stage: {{t: {rank}}}}}"
        for n, (source, i, rank) in enumerate(taken)),
        sources=f"other: {{path: other}}, pinned: {{path: pinned, digest: {digest}}}, base: {{path: base}}",
        head="mesh: {axes: {t: 2}}\n")
    out = tmp_path / "out"
    for rank in (1, 0):
        run_ok("gen", spec, "-o", out, "--ranks", rank)
        read = json.loads((out / f"ranks/rank-0000{rank}.json").read_text())["sources"]
        assert read == [{"source": source, "tensor": f"layers.{i}.w",
                         "sha256": hashlib.sha256(values[source][f"layers.{i}.w"].tobytes()).hexdigest()}
                        for source, i, on in sorted(taken) if on == rank and source != "pinned"]
    run_ok("verify", out)
    made = reassemble(out)
    for n, (source, i, _) in enumerate(taken):
        assert np.array_equal(made[f"w{n}"][1], words(values[source][f"layers.{i}.w"]))
    (line,) = [line for line in run_ok("plan", spec).stdout.splitlines() if line.startswith("sources ")]
    assert line.split(None, 1)[1] == f"5 tensors of 3 sources, {5 * 96} B to be read"
    # Rank 0 did not read the tensor that changes first, but it read the second.
    (out / "ranks/rank-00001.json").unlink()
    for source, i, agrees in ("other", 1, True), ("base", 0, False):
        values[source][f"layers.{i}.w"] += 1
        safetensors.numpy.save_file(values[source], tmp_path / source / "model.safetensors")
        (out / "ranks/rank-00001.json").unlink(missing_ok=True)
        result = run_tool("gen", spec, "-o", out)
        assert result.returncode == (0 if agrees else 4), result.stderr
    assert "rank 1 was made from `layers.0.w` of source `base` with SHA-256 " in result.stderr, result.stderr


def test_ranks_with_norms_of_different_sources_conflict(tmp_path, model):
    """Ranks made from different bytes of a source conflict, even if one stores the tensor and the other only its
    norms."""
    spec = spec_of(tmp_path, """
embed.weight: {shape: [20, 6], init: {source: base}, stage: {t: 1}}
g: {shape: [20, 1], init: {norms: {of: embed.weight}}, stage: {t: 0}}
""", head="mesh: {axes: {t: 2}}\n")
    out = tmp_path / "out"
    run_ok("gen", spec, "-o", out, "--ranks", "0")
    (read,) = json.loads((out / "ranks/rank-00000.json").read_text())["sources"]
    assert (read["source"], read["tensor"]) == ("base", "embed.weight")
    safetensors.numpy.save_file({**TENSORS, "embed.weight": EMBED + 1}, model / "model.safetensors")
    result = run_tool("gen", spec, "-o", out, "--ranks", "1")
    assert result.returncode == 4 and "is not one checkpoint" in result.stderr, result.stderr


def test_truncated_sources_are_rejected(tmp_path, model):
    spec = spec_of(tmp_path, "embed.weight: {shape: [20, 6], init: {source: base}}")
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    result = run_tool("gen", spec, "-o", tmp_path / "out")
    assert result.returncode in (2, 5) and "model.safetensors" in result.stderr, result.stderr


def test_checkpoints_can_be_sources(tmp_path, model):
    spec = spec_of(tmp_path, "embed.weight: {shape: [20, 6], init: {source: base}, shard: [t]}",
                   head="mesh: {axes: {t: 4}}\n")
    generated_values(spec)
    shutil.move(tmp_path / "out", tmp_path / "first")
    again = spec_of(tmp_path, "embed.weight: {shape: [20, 6], init: {source: base}}", sources="base: {path: first}",
                    name="again.yaml")
    assert np.array_equal(generated_values(again)["embed.weight"], words(EMBED))
    dcp = tmp_path / "dcp"
    run_ok("export", spec, "--to", "dcp", "-o", dcp)
    again = spec_of(tmp_path, "embed.weight: {shape: [20, 6], init: {source: base}}", sources="base: {path: dcp}",
                    name="again.yaml")
    assert np.array_equal(generated_values(again)["embed.weight"], words(EMBED))


def test_errors_name_the_folder_of_a_source_checkpoint(tmp_path, model):
    """An error names a checkpoint's folder, not the rank file with the tensor's first box."""
    first = spec_of(tmp_path, "w: {shape: [4, 6], init: ones, shard: [t]}", sources="", head="mesh: {axes: {t: 2}}\n")
    run_ok("gen", first, "-o", tmp_path / "first")
    run_ok("digest", tmp_path / "first", "--write", tmp_path / "pins.json")
    pins = (tmp_path / "pins.json").read_text()
    pins = re.sub(r'"model_digest": "\w+"', '"model_digest": null', pins)
    (tmp_path / "pins.json").write_text(re.sub(r"\[\s*4,\s*6\s*\]", "[6, 4]", pins))
    spec = spec_of(tmp_path, "w: {shape: [4, 6], init: {source: base}}",
                   sources="base: {path: first, digest: pins.json}")
    result = run_tool("gen", spec, "-o", tmp_path / "out")
    said = f"error: `w` in `{tmp_path}/first` is f32 [4, 6], but f32 [6, 4] in `{tmp_path}/pins.json`\n"
    assert result.returncode == 2 and said in result.stderr, result.stderr


def test_digest_check_continues_after_empty_tensors(tmp_path):
    """A tensor without elements has no digest, but the tensors before and after it are still compared."""
    values = {name: np.full((4, 6), n, np.float32) for n, name in enumerate("acdf")}
    nothing = {"b": np.zeros((0, 3), np.float32), "e": np.zeros((2, 0), np.float32)}
    (tmp_path / "model").mkdir()
    safetensors.numpy.save_file(values | nothing, tmp_path / "model/model.safetensors")
    digest = run_ok("digest", tmp_path / "model").stdout.split("\n")[-2].split()[0]
    spec = spec_of(tmp_path, "a: {shape: [4, 6], init: {source: base}}",
                   sources=f"base: {{path: model, digest: {digest}}}")
    assert np.array_equal(generated_values(spec)["a"], words(values["a"]))
    for name in values:
        other = values | {name: values[name] + 1}
        safetensors.numpy.save_file(other | nothing, tmp_path / "model/model.safetensors")
        result = run_tool("gen", spec, "-o", tmp_path / "new")
        assert result.returncode == 2 and f", not {digest}\n" in result.stderr, result.stderr
    # Tensors without elements are not read, so the folder may lack them.
    safetensors.numpy.save_file(values, tmp_path / "model/model.safetensors")
    assert np.array_equal(generated_values(spec)["a"], words(values["a"]))


def test_resharded_and_generated_ranks_of_different_sources_conflict(tmp_path, model):
    spec = spec_of(tmp_path, "embed.weight: {shape: [20, 6], init: {source: base}, shard: [t]}",
                   head="mesh: {axes: {t: 2}}\n")
    run_ok("gen", spec, "-o", tmp_path / "first", "--mesh", "t=1")
    out = tmp_path / "out"
    run_ok("reshard", tmp_path / "first", "--mesh", "t=2", "-o", out)
    run_ok("verify", out)
    (out / "ranks/rank-00001.json").unlink()
    result = run_tool("gen", spec, "-o", out)
    assert result.returncode == 4 and "rank 0 was copied" in result.stderr, result.stderr


def test_plan_reports_bytes_read_from_sources(tmp_path, model):
    spec = spec_of(tmp_path, """
embed.weight: {shape: [24, 6], init: {parts: {of: [{source: base}, {rows_like: {source: base}}]}}}
w: {shape: [4, 6], init: {expr: "source('base', 'layers.1.w') + source('base', 'half.weight', i0, i1)"}}
""")
    (line,) = [line for line in run_ok("plan", spec).stdout.splitlines() if line.startswith("sources ")]
    assert line.split(None, 1)[1] == "3 tensors of 1 source, 672 B to be read"


@pytest.mark.parametrize("option, message", [
    ("bose=model", "the spec declares no source `bose`"), ("base", "a source has the form `name=folder`"),
    ("base=missing", "there is no folder `missing`")])
def test_source_option_names_the_folder(tmp_path, model, option, message):
    spec = spec_of(tmp_path, "embed.weight: {shape: [20, 6], init: {source: base}}", sources="base: {}")
    result = run_tool("validate", spec, "--source", option, cwd=tmp_path)
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert "source `base` has no folder" in run_tool("validate", spec).stderr
    run_ok("validate", spec, "--source", "base=model", cwd=tmp_path)


@pytest.mark.parametrize("change", ["xor", "cut"])
def test_source_changed_during_gen_is_never_mixed(tmp_path, model, change):
    safetensors.numpy.save_file({"w": RNG.normal(size=(300, 256)).astype(np.float32)}, model / "model.safetensors")
    file = model / "model.safetensors"
    old = file.read_bytes()
    spec = spec_of(tmp_path, "w: {shape: [301, 256], init: {parts: {of: [{source: base}, {rows_like: {source: "
                             "base}}]}}}")
    run = ["gen", spec, "-j", "1", "-o"]
    run_ok(*run, tmp_path / "first", env=changing(model, count=tmp_path / "reads"))
    reads = counted(tmp_path / "reads")[0]
    assert reads > 10
    at = len(old) - 5000 if change == "xor" else len(old) // 2
    outcomes = set()
    for read in range(2, reads + 1, max(1, reads // 12)):
        file.write_bytes(old)
        result = run_tool(*run, tmp_path / f"out{read}", env=changing(model, f"{read} {change} {file} {at}"))
        outcomes.add(result.returncode)
        if result.returncode:
            assert "model.safetensors" in result.stderr, result.stderr
            continue
        # The receipt has the digest of the data that the values come from.
        (kept,) = json.loads((tmp_path / f"out{read}/ranks/rank-00000.json").read_text())["sources"]
        made = reassemble(tmp_path / f"out{read}")["w"][1]
        assert hashlib.sha256(made[:300].tobytes()).hexdigest() == kept["sha256"]
    assert 3 in outcomes
