"""Sources in trainers' layouts: a source's `layout` and `spec`, and the tensors that it must have."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from changing import changing, counted
from support import ROOT, reassemble, run_json, run_ok, run_tool

SIZES = {"d": 32, "ff": 48, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocab": 300}
LAYOUTS = ["torchtitan", "megatron", "torch_dist", "kerashub", "stacked"]


def rewrite(file, tensors):
    """Replaces the tensors in a file of an export as a trainer would, and removes the outdated record."""
    safetensors.numpy.save_file(tensors, file)
    (file.parent / "shardinit-export.json").unlink()


def write(folder, name, **more):
    """Writes a spec of a tiny Llama; `more` has lines of it by key."""
    path = folder / f"{name}.yaml"
    lines = {"include": ROOT / "configs/llama3.1-8b.yaml", "name": name, "dtype": "f32", "uneven": "chunk",
             "mesh": "{axes: {fsdp: 1, tensor: 2}}", "vars": json.dumps(SIZES).replace('"', ""), **more}
    path.write_text("shardinit: 1\n" + "".join(f"{key}: {value}\n" for key, value in lines.items()))
    return path


def generated_values(spec, *options):
    out = spec.parent / f"{spec.stem}-out"
    run_ok("gen", spec, "-o", out, *options)
    return {path: words for path, (_, words) in reassemble(out).items()}


ALL = "{" + ", ".join(f"{name}: {{source: base}}" for name in (
    "linear", "embedding", "query", "key", "value", "attention_out", "mlp_gate", "mlp_up", "mlp_down", "head",
    "norm")) + "}"


@pytest.fixture
def base(tmp_path):
    """Returns a model whose norms are not constant, and its values."""
    spec = write(tmp_path, "base", init="{norm: {normal: {mean: 1, std: 0.1}}}")
    return spec, generated_values(spec)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sources_can_be_in_a_trainers_layout(tmp_path, base, layout):
    spec, values = base
    run_ok("export", spec, "--to", "safetensors", "--layout", layout, "-o", tmp_path / "stored")
    stored = safetensors.numpy.load_file(tmp_path / "stored/model.safetensors")
    assert stored.keys() != values.keys()
    new = write(tmp_path, "new", init=ALL, sources=f"{{base: {{path: stored, layout: {layout}, spec: base.yaml}}}}")
    made = generated_values(new)
    assert made.keys() == values.keys() and all(np.array_equal(made[path], values[path]) for path in made)
    # Values are the same on any mesh, in any layout of the new spec, and with any number of jobs.
    text = run_ok("digest", new).stdout
    for mesh in ("fsdp=2,tensor=2", "fsdp=1,tensor=1"):
        assert run_ok("digest", new, "--mesh", mesh, "-j", "1").stdout == text
    assert text == run_ok("digest", spec).stdout
    # Receipts have digests of the model's tensors, which are the same in every layout.
    read = json.loads((tmp_path / "new-out/ranks/rank-00000.json").read_text())["sources"]
    wanted = {tensor["path"]: tensor["sha256"] for tensor in run_json("digest", spec)["tensors"]}
    assert {each["tensor"]: each["sha256"] for each in read} == wanted


@pytest.mark.parametrize("format", ["dcp", "zarr"])
def test_laid_out_sources_can_have_other_formats(tmp_path, base, format):
    spec, values = base
    layout = {"dcp": "torchtitan", "zarr": "kerashub"}[format]
    run_ok("export", spec, "--to", format, "--layout", layout, "-o", tmp_path / "stored")
    made = generated_values(write(tmp_path, "new", init=ALL,
                                  sources=f"{{base: {{path: stored, layout: {layout}, spec: base.yaml}}}}"))
    assert all(np.array_equal(made[path], values[path]) for path in values)


def test_vocabulary_padding_of_megatron_is_ignored(tmp_path, base):
    """Megatron's vocabulary is longer than the model's; the values of its extra rows are ignored."""
    spec, values = base
    run_ok("export", spec, "--to", "safetensors", "--layout", "megatron", "-o", tmp_path / "stored")
    file = tmp_path / "stored/model.safetensors"
    stored = safetensors.numpy.load_file(file)
    name = next(name for name in stored if "word_embeddings" in name)
    assert stored[name].shape[0] > 300
    for table in (name, "output_layer.weight"):
        stored[table][300:] = np.nan
    rewrite(file, stored)
    longer = "{parts: {axis: 0, of: [{source: base}, {rows_like: {source: base, std: 0}}]}}"
    init = ALL.replace("embedding: {source: base}", f"embedding: {longer}").replace("head: {source: base}",
                                                                                    f"head: {longer}")
    new = write(tmp_path, "new", init=init, vars=json.dumps({**SIZES, "vocab": 310}).replace('"', ""),
                sources="{base: {path: stored, layout: megatron, spec: base.yaml}}")
    made = generated_values(new)
    for path in ("model.embed_tokens.weight", "lm_head.weight"):
        assert np.array_equal(made[path][:300], values[path])
        rows = values[path].view(np.float32).astype(np.float64)
        mean = np.zeros(32)
        for row in rows:
            mean += row
        assert np.array_equal(made[path][300:].view(np.float32),
                              np.broadcast_to((mean / 300).astype(np.float32), (10, 32)))


def test_sources_can_have_the_names_of_the_hub(tmp_path):
    """On the Hub, Mixtral's experts are separate matrices. A Llama has the same names there as in the spec."""
    sizes = json.dumps({**SIZES, "experts": 4}).replace('"', "")
    spec = write(tmp_path, "base", include=ROOT / "configs/mixtral-8x7b.yaml", vars=sizes,
                 mesh="{axes: {fsdp: 1, expert: 1, tensor: 1}}")
    values = generated_values(spec)
    run_ok("export", spec, "--to", "safetensors", "--layout", "hub", "-o", tmp_path / "stored")
    assert "model.layers.0.block_sparse_moe.experts.3.w2.weight" in safetensors.numpy.load_file(
        tmp_path / "stored/model.safetensors")
    assert (tmp_path / "stored/config.json").exists()
    init = ALL[:-1] + ", router: {source: base}, expert_gate_up: {source: base}, expert_down: {source: base}}"
    of_spec = "{base: {path: stored, layout: hub, spec: base.yaml}}"
    for sources in (of_spec, "{base: {path: stored, layout: hub}}"):  # The second form reads the folder's config.json.
        new = write(tmp_path, "new", include=ROOT / "configs/mixtral-8x7b.yaml", vars=sizes, init=init, sources=sources,
                    mesh="{axes: {fsdp: 1, expert: 2, tensor: 1}}")
        assert run_ok("digest", new).stdout == run_ok("digest", spec).stdout
    assert all(np.array_equal(value, values[path]) for path, value in generated_values(new).items())
    dense = write(tmp_path, "dense")
    run_ok("export", dense, "--to", "safetensors", "-o", tmp_path / "plain")
    for more in ("", ", spec: dense.yaml"):
        again = write(tmp_path, "again", init=ALL, sources=f"{{base: {{path: plain, layout: hub{more}}}}}")
        assert run_ok("digest", again).stdout == run_ok("digest", dense).stdout
    (tmp_path / "plain/config.json").unlink()
    again = write(tmp_path, "again", init=ALL, sources="{base: {path: plain, layout: hub}}")
    assert run_ok("digest", again).stdout == run_ok("digest", dense).stdout


def test_laid_out_sources_are_rounded_and_pinned_as_stored(tmp_path, base):
    spec, values = base
    run_ok("export", spec, "--to", "safetensors", "--layout", "torch_dist", "-o", tmp_path / "stored")
    digest = run_ok("digest", tmp_path / "stored").stdout.strip().split("\n")[-1].split()[0]
    source = f"path: stored, layout: torch_dist, spec: base.yaml, digest: {digest}"
    made = generated_values(write(tmp_path, "new", init=ALL, dtype="bf16", sources=f"{{base: {{{source}}}}}"))
    for path, value in made.items():
        assert np.array_equal(value, values[path].view(np.float32).astype(ml_dtypes.bfloat16).view("u2")), path
    wrong = write(tmp_path, "wrong", init=ALL, sources=f"{{base: {{{source.replace(digest, 'a' * 64)}}}}}")
    result = run_tool("gen", wrong, "-o", tmp_path / "x")
    assert result.returncode == 2 and f"has the digest {digest}, not aaa" in result.stderr, result.stderr
    run_ok("digest", tmp_path / "stored", "--write", tmp_path / "pins.json")
    file = tmp_path / "stored/model.safetensors"
    stored = safetensors.numpy.load_file(file)
    stored["decoder.final_layernorm.weight"][3] += 1
    rewrite(file, stored)
    of_file = write(tmp_path, "of_file", init=ALL, sources=f"{{base: {{{source.replace(digest, 'pins.json')}}}}}")
    result = run_tool("gen", of_file, "-o", tmp_path / "y")
    assert result.returncode == 2 and "`decoder.final_layernorm.weight` of source `base`" in result.stderr, result.stderr


@pytest.mark.parametrize("source, change, message", [
    ("layout: torchtitan, spec: base.yaml", None,
     "has no `tok_embeddings.weight`, which the layout `torchtitan` of `base` has"),
    ("layout: megatron, spec: wide.yaml", None,
     "stored/model.safetensors` is [512, 32], but [512, 64] in the layout `megatron` of `wide`"),
    ("layout: megatron, spec: deep.yaml", None, "has no `decoder.layers.3."),
    ("layout: megatrom, spec: base.yaml", None, "base.yaml`, the spec of source `base`, has no layout `megatrom`"),
    ("layout: torchtitan", None, "so its layout `torchtitan` is unknown"),
    ("layout: megatron, spec: new.yaml", None, "the spec of source `base` has its own source, `base`"),
    ("layout: megatron, spec: none.yaml", None, "none.yaml"),
    ("layout: megatron, spec: base.yaml", "output_layer.weight", "has no `output_layer.weight`"),
])
def test_folders_that_do_not_match_the_layout_are_rejected(tmp_path, base, source, change, message):
    spec, _ = base
    run_ok("export", spec, "--to", "safetensors", "--layout", "megatron", "-o", tmp_path / "stored")
    (tmp_path / "stored/config.json").unlink()
    write(tmp_path, "wide", vars=json.dumps({**SIZES, "d": 64}).replace('"', ""))
    write(tmp_path, "deep", vars=json.dumps({**SIZES, "layers": 4}).replace('"', ""))
    if change:
        file = tmp_path / "stored/model.safetensors"
        stored = safetensors.numpy.load_file(file)
        del stored[change]
        rewrite(file, stored)
    new = write(tmp_path, "new", init=ALL, sources=f"{{base: {{path: stored, {source}}}}}")
    result = run_tool("validate", new)
    assert result.returncode == 2 and message in result.stderr, result.stderr


def test_source_layouts_with_scaled_values_are_rejected(tmp_path, base):
    """A source in MaxText's layout is rejected: its queries are divided by the root of the head size, which moving
    elements cannot undo."""
    run_ok("export", base[0], "--to", "safetensors", "--layout", "maxtext", "-o", tmp_path / "stored")
    new = write(tmp_path, "new", init=ALL, sources="{base: {path: stored, layout: maxtext, spec: base.yaml}}")
    result = run_tool("validate", new)
    assert result.returncode == 2 and "multiplies or adds to values, such as those of `model.layers.0.self_attn.q_proj.weight`" in \
        result.stderr and "new.yaml:" in result.stderr and "--inexact" in result.stderr, result.stderr


def test_checkpoint_sources_reject_a_layout(tmp_path, base):
    new = write(tmp_path, "new", init=ALL, sources="{base: {path: base-out, layout: megatron, spec: base.yaml}}")
    result = run_tool("validate", new)
    assert result.returncode == 2 and "is a checkpoint" in result.stderr and "new.yaml:" in result.stderr


@pytest.mark.parametrize("change", ["xor", "cut"])
def test_laid_out_source_changed_during_gen_is_rejected(tmp_path, base, change):
    spec, _ = base
    run_ok("export", spec, "--to", "safetensors", "--layout", "kerashub", "-o", tmp_path / "stored")
    new = write(tmp_path, "new", init=ALL, sources="{base: {path: stored, layout: kerashub, spec: base.yaml}}",
                mesh="{axes: {fsdp: 1, tensor: 1}}")
    file = tmp_path / "stored/model.safetensors"
    old = file.read_bytes()
    run = ["gen", new, "-j", "1", "-o"]
    run_ok(*run, tmp_path / "first", env=changing(file.parent, count=tmp_path / "reads"))
    reads = counted(tmp_path / "reads")[0]
    at = len(old) - 5000 if change == "xor" else len(old) // 2
    outcomes = set()
    for read in range(2, reads + 1, max(1, reads // 12)):
        file.write_bytes(old)
        result = run_tool(*run, tmp_path / f"out{read}", env=changing(file.parent, f"{read} {change} {file} {at}"))
        outcomes.add(result.returncode)
        if result.returncode:
            assert "model.safetensors" in result.stderr, result.stderr
            continue
        # The receipt lists digests of the values that were written.
        kept = json.loads((tmp_path / f"out{read}/ranks/rank-00000.json").read_text())["sources"]
        text = run_ok("digest", tmp_path / f"out{read}", "--json").stdout
        assert {each["sha256"] for each in kept} == {each["sha256"] for each in json.loads(text)["tensors"]}
    assert 3 in outcomes


MODEL = {"layers.0.w": np.zeros((4, 6), np.float32), "layers.1.w": np.zeros((4, 6), np.float32),
         "x": np.zeros(3, np.float32)}


@pytest.mark.parametrize("wanted, message", [
    ("{tensor: layers.*.w, shape: [d, 6], count: 2}", None),
    ("{tensor: layers.*.w}", None),
    ("{tensor: y, count: 0}", None),
    ("{tensor: layers.*.w, shape: [d, 5]}", "source `base` has `layers.0.w` as [4, 6], not [4, 5]"),
    ("{tensor: layers.*.w, shape: [d]}", "source `base` has `layers.0.w` as [4, 6], not [4]"),
    ("{tensor: layers.*.w, count: d}", "source `base` has 2 tensors `layers.*.w`, not 4"),
    ("{tensor: layer.*.w, shape: [d, 6]}", "source `base` has no tensor `layer.*.w`"),
    ("{tensor: layers.*.w, shape: [e]}", "unknown name `e`"),
    ("{shape: [4]}", "has no `tensor`"),
    ("{tensor: x, shapes: [3]}", "unknown key `shapes`"),
    ("layers.*.w", "is a mapping, not"),
])
def test_must_have_requires_source_tensors(tmp_path, wanted, message):
    safetensors.numpy.save_file(MODEL, tmp_path / "model.safetensors")
    (tmp_path / "spec.yaml").write_text(
        f"shardinit: 1\nname: x\ndtype: f32\nvars: {{d: 4}}\nsources:\n  base:\n    path: model.safetensors\n"
        f"    must_have: [{wanted}]\n"
        "modules: {x: {shape: [3], init: {source: base}}, v: {shape: [d], init: zeros}}\n")
    result = run_tool("validate", tmp_path / "spec.yaml")
    if message is None:
        assert result.returncode == 0, result.stderr
        return
    assert result.returncode == 2 and message in result.stderr and "spec.yaml:" in result.stderr, result.stderr
    if "as [" in message or "tensors `" in message:
        assert "the source is" in result.stderr and "`d` is 4" in result.stderr


def test_double_star_takes_the_rest_of_the_path(tmp_path):
    safetensors.numpy.save_file({f"layers.{i}.a.w": np.full(3, i, np.float32) for i in range(4)},
                                tmp_path / "model.safetensors")
    spec = tmp_path / "spec.yaml"
    text = ("shardinit: 1\nname: x\ndtype: f32\nsources: {base: {path: model.safetensors}}\nmodules:\n  layers:\n"
            "    repeat: {i: 4}\n    a.w: {shape: [3], init: {source: base, tensor: \"layers.{3 - i}.**\"}}\n"
            "    b.w: {shape: [3], init: {expr: \"2 * source('base', 'layers.{i}.a.**')\"}}\n")
    spec.write_text(text)
    made = generated_values(spec)
    assert [made[f"layers.{i}.a.w"].view(np.float32)[0] for i in range(4)] == [3, 2, 1, 0]
    assert [made[f"layers.{i}.b.w"].view(np.float32)[0] for i in range(4)] == [0, 2, 4, 6]
    spec.write_text(text.replace(".a.**", ".a.w.x.**"))
    result = run_tool("validate", spec)
    assert result.returncode == 2 and "`layers.0.b.w` does not have more parts than `layers.{i}.a.w.x.**`" in result.stderr, result.stderr


@pytest.mark.parametrize("command", ["gen", "export", "digest"])
def test_only_convert_scales_values_for_a_layout(tmp_path, base, command):
    """`gen`, `export` and `digest` reject the layout `maxtext` for values from a source: MaxText stores other numbers,
    and only `convert` changes values."""
    run_ok("export", base[0], "--to", "safetensors", "-o", tmp_path / "stored")
    new = write(tmp_path, "new", init=ALL, sources="{base: {path: stored}}")
    output = {"gen": ["-o", tmp_path / "x"], "export": ["--to", "safetensors", "-o", tmp_path / "x"],
              "digest": []}[command]
    result = run_tool(command, new, "--layout", "maxtext", *output)
    assert result.returncode == 2 and "shardinit convert … --inexact" in result.stderr, result
    assert not (tmp_path / "x").exists()
    run_ok(command, new, "--layout", "torchtitan", *output)
