"""Folders unlike those written by this tool: damaged, missing, unread tensors and tensors inside classes are never
silently skipped."""

import collections
import dataclasses
import hashlib
import io
import json
import os
import pickle
import re
import shutil

import numpy
import pytest
from clients import client_of
from support import run_ok, run_tool
from test_folders import STATE, hub, refused, rewritten

torch = client_of("torch")
safetensors_numpy = client_of("safetensors.numpy")


class Held(dict):
    """A dictionary whose items only its class can restore."""


def test_tensors_in_lists_are_read_and_in_classes_rejected(tmp_path):
    """List items are named as in torch.distributed.checkpoint; objects that contain tensors but cannot be read are
    refused."""
    state = {"w": torch.ones(1), "a": [torch.ones(2), {"b": torch.zeros(2)}, 3], "d": collections.defaultdict(dict)}
    state["d"]["x"] = torch.ones(5)
    torch.save(state, tmp_path / "in.pt")
    names = [line.split()[1] for line in run_ok("digest", tmp_path / "in.pt").stdout.splitlines()]
    assert names == ["a.0", "a.1.b", "d.x", "w", "(model)"]
    for value in collections.Counter({"x": torch.ones(2)}), Held(x=torch.ones(2)):
        torch.save({"w": torch.ones(1), "o": value}, tmp_path / "class.pt")
        assert f".{type(value).__name__}` with tensors" in refused("digest", tmp_path / "class.pt", code=5)
    torch.save({"w": torch.ones(1), (1, 2): torch.ones(1)}, tmp_path / "key.pt")
    assert "neither text nor a whole number" in refused("digest", tmp_path / "key.pt", code=5)


def test_exponential_and_cyclic_pickles_are_rejected(tmp_path):
    """Dictionaries that contain one another 30 times on 14 levels (30^14 entries) or form a cycle are refused."""
    inner = {}
    for _ in range(14):
        inner = {str(i): inner for i in range(30)}
    torch.save({"w": torch.ones(1), "d": inner}, tmp_path / "in.pt")
    assert "entries" in refused("digest", tmp_path / "in.pt", code=5)
    items = [torch.ones(1)]
    items.append(items)
    torch.save({"w": torch.ones(1), "l": items}, tmp_path / "cycle.pt")
    assert "nested over 16 levels" in refused("digest", tmp_path / "cycle.pt", code=5)


def test_zarr_arrays_that_are_missing_or_in_groups_are_rejected(tmp_path):
    hub(tmp_path / "in")
    out = tmp_path / "zarr"
    run_ok("convert", tmp_path / "in", "--to", "zarr", "-o", out)
    (out / "group").mkdir()
    shutil.copytree(out / "lm_head.weight", out / "group/w")
    assert "the array `group/w` in a group" in refused("digest", out, code=5)
    shutil.rmtree(out / "group")
    shutil.rmtree(out / "lm_head.weight")
    assert "_METADATA lists `lm_head.weight`, which is not there" in refused("digest", out, code=5)
    tree = (out / "_METADATA").read_text()
    for kind in ("jax.Array", "scalar"):  # Orbax's types for arrays on devices and for Python numbers.
        (out / "_METADATA").write_text(tree.replace('"np.ndarray"', json.dumps(kind)))
        assert "_METADATA lists `lm_head.weight`, which is not there" in refused("digest", out, code=5)


@pytest.mark.parametrize("form", ["safetensors", "dcp", "hf-dcp", "zarr"])
def test_convert_detects_a_damaged_export(tmp_path, form):
    """Damaged bytes are detected by the export's record, whether tensors are copied whole or in parts."""
    folder = hub(tmp_path / "in")
    export = tmp_path / "export"
    run_ok("convert", folder, "--to", form, "-o", export)
    parts = ["--to", "hdf5", "--mesh", "fsdp=3", "--sharding", "fsdpv2"]
    run_ok("convert", export, *parts, "-o", tmp_path / "whole")
    assert "no difference" in run_ok("diff", folder, tmp_path / "whole", "--values").stdout
    wanted = STATE["model.embed_tokens.weight"].numpy().tobytes()
    file, data = next((f, f.read_bytes()) for f in export.rglob("*") if f.is_file() and wanted in f.read_bytes())
    at = data.find(wanted) + 5
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])
    out = tmp_path / "out"
    for arguments in ["convert", export, "--to", "dcp"], ["convert", export, *parts], ["reshard", export]:
        assert "has other data than was written" in refused(*arguments, "-o", out, code=1)
        assert not out.exists()
    record = export / "shardinit-export.json"
    record.write_text(record.read_text().replace('"seed": 0', '"seed": 1'))
    assert "none of its bytes are compared" in run_ok("convert", export, "--to", "dcp", "-o", out).stderr


def test_step_and_scaler_are_tensors_without_an_optimizer(tmp_path):
    """Without an optimizer, `step` and `scaler.w` belong to the model; next to one, they are only counted."""
    state = {"scaler.w": torch.ones(3), "step": torch.ones(1), "w": torch.ones(2)}
    folder = hub(tmp_path / "in", state)
    run_ok("convert", folder, "--to", "dcp", "-o", tmp_path / "dcp")
    assert run_ok("digest", tmp_path / "dcp").stdout == run_ok("digest", folder).stdout
    nested = {"scaler": {"w": torch.ones(3)}, "step": torch.ones(1), "w": torch.ones(2)}
    dcp = client_of("torch.distributed.checkpoint")
    dcp.save(nested, checkpoint_id=tmp_path / "alone", no_dist=True)
    assert run_ok("digest", tmp_path / "alone").stdout == run_ok("digest", folder).stdout
    dcp.save(nested | {"optimizer": {"state": {"w": torch.zeros(2)}}}, checkpoint_id=tmp_path / "run", no_dist=True)
    result = run_ok("digest", tmp_path / "run")
    assert [line.split()[1] for line in result.stdout.splitlines()] == ["w", "(model)"]
    assert "1 entry of `optimizer`, 1 entry of `scaler`, 1 entry of `step`" in result.stderr


def test_convert_reports_padding_that_it_leaves_out(tmp_path):
    (tmp_path / "spec.yaml").write_text("""
shardinit: 1
name: padded
dtype: f32
modules: {w: {shape: [10, 4], init: zeros}, v: {shape: [3], init: zeros}, u: {shape: [2], init: zeros}}
layouts:
  padded: {keep: [v, u], w: {from: {pad: {axis: 0, to: 16, of: w}}}}
  both: {keep: [v], w: {from: {pad: {axis: 0, to: 16, of: w}}}, u: {from: {pad: {axis: 0, to: 3, of: u}}}}
""")
    whole, v, u = torch.randn(16, 4), torch.randn(3), torch.randn(3)
    rows = hub(tmp_path / "rows", {"w": whole[:10].clone(), "v": v, "u": u[:2].clone()})
    for layout, of_u, said in ("padded", 2, "24 elements of 1 tensor"), ("both", 3, "25 elements of 2 tensors"):
        folder, out = hub(tmp_path / layout, {"w": whole, "v": v, "u": u[:of_u].clone()}), tmp_path / f"{layout}-out"
        result = run_ok("convert", folder, "--to", "safetensors", "--spec", tmp_path / "spec.yaml", "--from-layout",
                        layout, "-o", out)
        assert f"`: {said} that its layout only pads with are left out\n" in result.stderr
        assert "no difference" in run_ok("diff", out, rows, "--values").stdout


def test_tensor_stored_only_in_part_counts_as_missing(tmp_path):
    """A missing tensor is an error, even if another tensor holds the only part that the layout needs."""
    write = {"a": {"shape": [2], "init": "ones"}, "b": {"shape": [3], "init": "ones"}}
    for order in ("a", "b"), ("b", "a"):
        layouts = {"have": {"ab": {"from": {"concat": {"axis": 0, "of": list(order)}}}, "b2": {"from": "b"}},
                   "want": {"keep": ["b"], "omit": ["a"]}}
        (tmp_path / "spec.yaml").write_text(json.dumps(
            {"shardinit": 1, "name": "x", "dtype": "f32", "modules": write, "layouts": layouts}))
        hub(tmp_path / "in", {"b2": torch.ones(3)})
        assert "the folder has no `ab`" in refused(
            "convert", tmp_path / "in", "--spec", tmp_path / "spec.yaml", "--from-layout", "have", "--layout", "want",
            "--to", "dcp", "-o", tmp_path / "out", code=2)
        shutil.rmtree(tmp_path / "in")


def test_convert_rejects_a_name_inside_another_name(tmp_path):
    folder = hub(tmp_path / "in", {"w": torch.ones(1), "w.0": torch.ones(2)})
    for arguments in ["convert", folder, "--to", "hdf5"], ["reshard", folder]:
        assert "`w` is a tensor, so a checkpoint cannot have `w.0` inside it" in refused(*arguments, "-o", tmp_path / "out", code=2)
    run_ok("convert", folder, "--to", "dcp", "-o", tmp_path / "out")


def test_diff_does_not_call_unread_tensors_equal(tmp_path):
    state = {"w": torch.ones(2), "c": torch.ones(2, dtype=torch.complex128)}
    one, two = tmp_path / "one", hub(tmp_path / "two", {"w": state["w"]})
    one.mkdir()
    torch.save(state, one / "pytorch_model.bin")
    for other in one, two:
        result = run_tool("diff", one, other, "--values")
        assert result.returncode == 1 and "~ c\n  form: not compared" in result.stdout, result
    assert run_ok("diff", one, two, "--values", "--only", "w").stdout == "no difference: 1 tensor\n"
    empty = hub(tmp_path / "empty", {"w": state["w"], "z": torch.zeros(0)})
    assert run_ok("diff", empty, empty, "--values").stdout == "no difference: 1 tensor\n"
    # Tensors without elements, but of another type or shape; read in only one folder; or in neither.
    for n, z in enumerate([torch.zeros(0, 2), torch.zeros(0).half(), torch.zeros(2, 0), torch.zeros(3), None]):
        other = hub(tmp_path / f"other{n}", {"w": state["w"]} | ({} if z is None else {"z": z}))
        for pair in (empty, other), (other, empty):
            for values in [], ["--values"]:
                result = run_tool("diff", *pair, *values)
                assert result.returncode == 1 and "~ z\n  form: not compared: in " in result.stdout, (z, result)
                assert "1 tensor differs, 1 equal" in result.stdout
    assert "has no readable tensor" in refused("digest", hub(tmp_path / "none", {}), code=2)


def test_named_pipe_is_reported_as_a_device(tmp_path):
    """A named pipe with a model file's name is reported as a device, and not opened."""
    for name in "model.safetensors", "pytorch_model.bin":
        folder = tmp_path / name
        folder.mkdir()
        os.mkfifo(folder / name)
        for path in folder, folder / name:
            assert f"{name}` is a device, not a file" in refused("digest", path, code=2)


# Names by which readers recognize a folder or a part of a model, in any case.
SIGNS = ["manifest.json", "plan.json", "Plan.JSON", "config.json", "model.safetensors", "a.b.safetensors", "zarr.json",
         "pytorch_model.bin", "consolidated.00.pth", "m.pt", "latest_checkpointed_iteration.txt", "zero_to_fp32.py",
         "model.weights.h5", "_sharding", "manifest.ocdbt", "latest"]


@pytest.mark.parametrize("name", ["_METADATA", "_CHECKPOINT_METADATA", "shardinit-export.json", "_metadata", *SIGNS])
def test_zarr_rejects_tensors_named_like_its_own_files(tmp_path, name):
    folder = hub(tmp_path / "in", {name: torch.ones(1), "w": torch.ones(2)})
    message = refused("convert", folder, "--to", "zarr", "-o", tmp_path / "out", code=2)
    what = "that readers of such a folder look for" if name in SIGNS else "of the format"
    assert f"`{name}` is the name of both a tensor and a file {what}" in message
    assert not (tmp_path / "out").exists()
    run_ok("convert", folder, "--to", "zarr", "--drop", name, "-o", tmp_path / "out")
    run_ok("convert", folder, "--to", "dcp", "-o", tmp_path / "dcp")
    assert run_ok("digest", tmp_path / "dcp").stdout == run_ok("digest", folder).stdout


def test_error_prints_rejected_integers_exactly(tmp_path):
    folder = hub(tmp_path / "in", {"w": torch.tensor([1, 2**62 + 1])})
    (tmp_path / "spec.yaml").write_text("""
shardinit: 1
name: exact
dtype: f64
sources: {base: {path: in}}
modules: {w: {shape: [2], init: {source: base}}}
""")
    message = refused("digest", tmp_path / "spec.yaml", code=2)
    assert f"element [1] of `w` is {2**62 + 1} in" in message and folder.exists()


WHOLE = [0, 1, -1, 255, 256, 2**31 - 1, 2**31, -2**31, -2**31 - 1, 2**53 - 1, 2**53, 2**53 + 2, -2**53, 2**62 + 1,
         2**63 - 1, 2**63, -2**63, 2**64 - 2**11]


@pytest.mark.parametrize("to", ["u8", "i8", "i32", "i64", "u64"])
@pytest.mark.parametrize("of", ["int64", "uint64", "float64"])
def test_integers_of_64_bits_are_copied_exactly_or_rejected(of, to, tmp_path):
    """A number that both types can hold is copied exactly, also beyond 2^53; any other is refused and printed."""
    type_of = numpy.dtype({"u": "uint", "i": "int"}[to[0]] + to[1:])
    for number in WHOLE:
        held = numpy.iinfo(of) if of != "float64" else None
        if held is not None and not held.min <= number <= held.max:
            continue
        value = numpy.array([number], of)
        if int(value[0]) != number:
            continue  # float64 rounds this number
        safetensors_numpy.save_file({"w": value}, tmp_path / "model.safetensors")
        (tmp_path / "spec.yaml").write_text(f"""
shardinit: 1
name: exact
dtype: {to}
sources: {{base: {{path: model.safetensors}}}}
modules: {{w: {{shape: [1], kind: buffer, init: {{source: base}}}}}}
""")
        done = run_tool("digest", tmp_path / "spec.yaml")
        if numpy.iinfo(type_of).min <= number <= numpy.iinfo(type_of).max:
            wanted = hashlib.sha256(numpy.array([number], type_of).tobytes()).hexdigest()
            assert done.returncode == 0 and done.stdout.startswith(f"{wanted}  w"), (number, done)
        else:
            assert done.returncode == 2 and f"which {to} cannot hold" in done.stderr, (number, done)
            if of != "float64":
                assert f"element [0] of `w` is {number} in" in done.stderr


# Maps each stored tensor of a layout to the drawn tensors that are concatenated in it.
HELD_TWICE = {
    "ends": {"p": ["a", "b"], "q": ["b", "c"]},
    "earlier-name": {"p": ["a", "b"], "d": ["b", "c"]},
    "inside": {"p": ["a", "b", "c"], "k": ["b"]},
    "of-two": {"p": ["a", "b"], "q": ["c", "large"], "d": ["large", "b"]},
    "padded": {"p": ["a", "b"], "q": ["c", "b"]},
}
ROWS = {"a": 2, "b": 4, "c": 3, "large": 700}
OF_TORCH = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}


@pytest.mark.parametrize("case, dtype",
                         [*((case, "f32") for case in HELD_TWICE), ("of-two", "bf16"), ("of-two", "f64")])
def test_stored_tensors_that_share_a_part_must_agree(tmp_path, case, dtype):
    """If two stored tensors differ in a shared part, the message names both tensors and the place."""
    width = 801  # `large` has more than 1 MiB in each type.
    drawn = {name: torch.arange(rows * width).remainder(251).reshape(rows, width).to(OF_TORCH[dtype])
             for name, rows in ROWS.items()}
    names = HELD_TWICE[case]
    used = sorted({part for parts in names.values() for part in parts})
    layout, state = {}, {}
    for name, parts in names.items():
        layout[name] = {"from": {"concat": {"axis": 0, "of": parts}} if len(parts) > 1 else parts[0]}
        state[name] = torch.cat([drawn[part] for part in parts])
    if case == "padded":  # Only padding rows may differ.
        layout["q"] = {"from": {"pad": {"axis": 0, "to": 9, "of": layout["q"]["from"]}}}
        state["q"] = torch.cat([state["q"], torch.full((2, width), 7, dtype=OF_TORCH[dtype])])
    (tmp_path / "spec.yaml").write_text(json.dumps({
        "shardinit": 1, "name": "x", "dtype": dtype,
        "modules": {name: {"shape": [rows, width], "init": "ones"} for name, rows in ROWS.items() if name in used},
        "layouts": {"have": layout}}))
    words = ["convert", tmp_path / "in", "--spec", tmp_path / "spec.yaml", "--from-layout", "have", "--to", "dcp", "-o",
             tmp_path / "out"]
    hub(tmp_path / "in", state)
    run_ok(*words)
    shutil.rmtree(tmp_path / "out")
    begins = {name: {part: sum(ROWS[p] for p in parts[:i]) for i, part in enumerate(parts)} for name,
              parts in names.items()}
    for name, parts in names.items():
        for part in parts:
            others = [other for other in names if other != name and part in names[other]]
            for row, column in (0, 0), (ROWS[part] // 2, 5), (ROWS[part] - 1, width - 1):
                if not others:
                    continue
                changed = {n: tensor.clone() for n, tensor in state.items()}
                row_of = {n: begins[n][part] + row for n in [name, *others]}
                changed[name][row_of[name], column] += 1
                hub(tmp_path / "in", changed)
                values = {n: changed[n][row_of[n], column].item() for n in row_of}
                wanted = [f"error: `{n}` of `{tmp_path}/in` should be equal to `{other}`, but differs at "
                          f"[{row_of[n]}, {column}]: {values[n]:g} instead of {values[other]:g}, which would be lost\n"
                          for n in row_of for other in row_of if n != other]
                told = refused(*words, code=2)
                assert any(line in told for line in wanted), (told, wanted)
                assert not (tmp_path / "out").exists()


def test_source_needs_only_one_of_two_equal_tensors(tmp_path):
    """If the source has only one of two equal stored tensors, the layout still gets both."""
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: x\ndtype: f32\n"
                                        "modules: {w: {shape: [4, 3], init: ones}, v: {shape: [3], init: ones}}\n"
                                        "layouts: {have: {e: w, head: w, v: v}}\n")
    w, v = torch.randn(4, 3), torch.randn(3)
    whole = run_ok("digest", hub(tmp_path / "whole", {"e": w, "head": w.clone(), "v": v})).stdout
    for name in "e", "head":
        out = tmp_path / f"of-{name}"
        run_ok("convert", hub(tmp_path / name, {name: w, "v": v}), "--spec", tmp_path / "spec.yaml", "--from-layout",
               "have", "--layout", "have", "--to", "safetensors", "-o", out)
        assert run_ok("digest", out).stdout == whole


def test_convert_rejects_fusing_tensors_of_different_dtypes(tmp_path):
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: x\ndtype: f32\nmodules:\n"
                                        "  {q: {shape: [4, 3], init: ones}, k: {shape: [4, 3], init: ones}}\n"
                                        "layouts: {fused: {qk: {from: {concat: {axis: 0, of: [q, k]}}}}}\n")
    folder = hub(tmp_path / "in", {"q": torch.ones(4, 3), "k": torch.ones(4, 3).bfloat16()})
    assert "layout `fused` puts `q` (f32) and `k` (bf16) together in `qk`" in refused(
        "convert", folder, "--spec", tmp_path / "spec.yaml", "--layout", "fused", "--to", "dcp", "-o", tmp_path / "out",
        code=2)


def test_gen_does_not_apply_the_convention_of_a_layout(tmp_path):
    """`gen` reports that it does not apply a layout's convention to values, and refuses such a layout for elements of a
    source."""
    numbers = torch.arange(6.0).reshape(2, 3)
    hub(tmp_path / "base", {"w": numbers})
    for key, is_said in [("plus: 1", True), ("plus: -1", True), ("times: 2", False)]:
        spec = tmp_path / "spec.yaml"
        spec.write_text("shardinit: 1\nname: x\ndtype: f32\nsources: {base: {path: base}}\nmodules:\n"
                        "  w: {shape: [2, 3], init: ones}\n  v: {shape: [3], init: ones}\n"
                        f"layouts: {{theirs: {{s: {{{key}, from: {{transpose: {{of: w}}}}}}, t: v}}}}\n")
        result = run_ok("gen", spec, "--layout", "theirs", "-o", tmp_path / key.replace(": ", ""))
        assert ("shardinit: the trainer of this layout has another convention for 1 tensor, such as `s`: values are "
                "written unchanged, in the spec's convention\n" in result.stderr) == is_said
        of_source = ["--set", "modules.w.init={source: base}", "--layout", "theirs"]
        error = refused("gen", spec, *of_source, "-o", tmp_path / "none", code=2)
        assert ("`w` takes elements of a source, but the trainer of this layout multiplies or adds to those of `s`"
                in error), error
        run_ok("gen", spec, "--set", "modules.v.init={source: base, tensor: w, index: [0, i0]}", "--layout", "theirs",
               "-o", tmp_path / f"other-{key.replace(': ', '')}")


def test_nested_torch_files_are_read_to_16_levels(tmp_path):
    """Sixteen nested dictionaries or lists are read, one more level is refused."""
    for what, wrap in (("dictionaries", lambda inner: {"a": inner}), ("lists", lambda inner: [inner])):
        for levels in range(13, 19):
            inner = torch.arange(3.0)
            for _ in range(levels):
                inner = wrap(inner)
            torch.save({"w": torch.ones(1), "d": inner}, tmp_path / "in.pt")
            done = run_tool("digest", tmp_path / "in.pt")
            name = "d" + (".a" if what == "dictionaries" else ".0") * levels
            if levels < (16 if what == "dictionaries" else 17):
                assert [line.split()[1] for line in done.stdout.splitlines()] == [name, "w", "(model)"], (what, levels,
                                                                                                          done)
            else:
                assert done.returncode == 5 and f"its {what} are nested over 16 levels" in done.stderr, (levels, done)


def test_strided_tensors_of_65536_runs_are_read(tmp_path):
    """A tensor of 65,536 or more runs is read with PyTorch's values."""
    base = torch.arange(3.0 * (2**16 + 2))
    for rows in 2**16 - 1, 2**16, 2**16 + 1:
        view = base.as_strided((rows, 2), (3, 1), 1)
        torch.save({"w": view}, tmp_path / "in.pt")
        torch.save({"w": view.clone(memory_format=torch.contiguous_format)}, tmp_path / "as.pt")
        assert run_ok("diff", tmp_path / "in.pt", tmp_path / "as.pt", "--values").stdout == "no difference: 1 tensor\n"


@pytest.mark.parametrize("is_legacy", [False, True])
def test_tensors_larger_than_their_storage_are_rejected(tmp_path, is_legacy):
    """A tensor whose shape needs five or six elements of a storage with four is refused."""
    torch.save({"w": torch.arange(4.0)}, tmp_path / "in.pt", _use_new_zipfile_serialization=not is_legacy)
    for elements in 4, 5, 6:
        old, new = b"K\x04\x85", b"K%c\x85" % elements
        if is_legacy:
            data = (tmp_path / "in.pt").read_bytes()
            assert data.count(old) == 1
            (tmp_path / "to.pt").write_bytes(data.replace(old, new))
        else:
            rewritten(tmp_path / "in.pt", tmp_path / "to.pt",
                      lambda name, data: data.replace(old, new) if name.endswith("data.pkl") else data)
        if elements == 4:
            assert run_ok("digest", tmp_path / "to.pt").stdout == run_ok("digest", tmp_path / "in.pt").stdout
        else:
            refused("digest", tmp_path / "to.pt", code=5)


@pytest.mark.parametrize("count", [0, 3, 5, 2**30, 2**61, 2**62, 2**62 + 4, 2**63, 2**64 - 1])
def test_legacy_storage_count_must_match_the_file(tmp_path, count):
    torch.save({"w": torch.arange(4.0)}, tmp_path / "in.pt", _use_new_zipfile_serialization=False)
    data = (tmp_path / "in.pt").read_bytes()
    at = len(data) - 24
    assert data[at:at + 8] == (4).to_bytes(8, "little")
    (tmp_path / "in.pt").write_bytes(data[:at] + count.to_bytes(8, "little") + data[at + 8:])
    said = refused("digest", tmp_path / "in.pt", code=5)
    if count > 4:
        assert f"the storage `0` has {count} elements of 4 bytes, but 16 bytes are left" in re.sub(r"storage `\d+`",
                                                                                                   "storage `0`", said)


def test_dcp_items_must_match_their_metadata(tmp_path):
    """A DCP item must be an archive with a tensor of the shape in .metadata and with all of its bytes."""
    folder = tmp_path / "in"
    checkpoint = client_of("torch.distributed.checkpoint")
    checkpoint.save({"w": torch.arange(32.0).reshape(4, 8)}, checkpoint_id=folder, no_dist=True)
    meta = pickle.loads((folder / ".metadata").read_bytes())
    (index, info), = meta.storage_data.items()
    file = folder / info.relative_path
    for item, is_read in ((torch.arange(32.0).reshape(4, 8), True), (torch.arange(32.0).reshape(8, 4), False),
                          (torch.arange(32.0), False), (torch.arange(32.0).reshape(1, 4, 8), False),
                          (torch.arange(32.0).reshape(8, 4).t(), True),
                          (torch.arange(32, dtype=torch.int32).reshape(4, 8), False),
                          ("short", False), ("none", False)):
        data = io.BytesIO()
        if isinstance(item, str):
            torch.save(torch.arange(32.0).reshape(4, 8), tmp_path / "item")
            rewritten(tmp_path / "item", tmp_path / "cut",
                      lambda name, data: data[:124 if item == "short" else 0] if name.endswith("data/0") else data)
            data.write((tmp_path / "cut").read_bytes())
        else:
            torch.save(item, data)
        file.write_bytes(data.getvalue())
        changed = dataclasses.replace(info, offset=0, length=len(data.getvalue()))
        (folder / ".metadata").write_bytes(pickle.dumps(dataclasses.replace(meta, storage_data={index: changed})))
        if is_read:
            assert run_ok("digest", folder).stdout.startswith(hashlib.sha256(item.contiguous().numpy().tobytes()).hexdigest())
        else:
            said = refused("digest", folder, code=5)
            assert info.relative_path in said, said


def test_zarr_arrays_must_have_all_required_keys(tmp_path):
    """Arrays need all keys that zarr 2 requires; without `dimension_separator`, dots separate the names of chunks."""
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {a: 2, b: 2}}\n"
                                        "modules: {w: {shape: [4, 6], shard: [a, b], init: {normal: {std: 1}}}}\n")
    out = tmp_path / "out"
    run_ok("export", tmp_path / "spec.yaml", "--to", "zarr", "-o", out)
    (out / "shardinit-export.json").unlink()
    good = run_ok("digest", out).stdout
    text = json.loads((out / "w/.zarray").read_text())
    for key in "zarr_format", "order", "dtype", "shape", "chunks":
        (out / "w/.zarray").write_text(json.dumps({name: value for name, value in text.items() if name != key}))
        assert key in refused("digest", out, code=5)
    (out / "w/.zarray").write_text(json.dumps({name: value for name, value in text.items() if name in (
        "zarr_format", "order", "dtype", "shape", "chunks", "fill_value", "compressor", "filters")}))
    for path in (out / "w").glob("*[./]*"):
        if path.name != ".zarray":
            path.rename(path.with_name(path.name.replace("/", ".")))
    assert run_ok("digest", out).stdout == good
    (out / "w/.zarray").write_text(json.dumps({**text, "dimension_separator": "/"}))
    for path in [path for path in (out / "w").iterdir() if path.name != ".zarray"]:
        row, column = path.name.split(".")
        (out / "w" / row).mkdir(exist_ok=True)
        path.rename(out / "w" / row / column)
    assert run_ok("digest", out).stdout == good
    del text["dimension_separator"]
    (out / "w/.zarray").write_text(json.dumps(text))
    assert "its chunk `0.0` is missing" in refused("digest", out, code=5)
