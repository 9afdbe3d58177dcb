"""Exports hold the same bits as a checkpoint, are complete or absent, and record their digests. test_export_clients.py
reads them with trainers' packages."""

import hashlib
import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import time

import numpy as np
import pytest
from support import AWKWARD, BINARY, CLEAN, DTYPES, FORMATS, OF_ANY, reassemble, run_json, run_ok, run_tool, tree_of
from test_faults import BIG, small_disk  # noqa: F401

NAMES = {"F32": "f32", "F64": "f64", "F16": "f16", "BF16": "bf16"}


def read_safetensors(path):
    """Reads a file by the definition of its format: path → (dtype name, words), and the metadata."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        assert first == end, "tensors leave a gap or overlap"
        end = last
        dtype = NAMES[entry["dtype"]]
        count = int(np.prod(entry["shape"], dtype=int))
        size = (last - first) // count
        assert (8 + length + first) % size == 0, "a tensor is not aligned to its elements"
        words = np.frombuffer(data, f"<u{size}", count, 8 + length + first)
        tensors[name] = dtype, words.reshape(entry["shape"])
    assert len(data) == 8 + length + end
    assert (8 + length) % 4096 == 0
    return tensors, metadata


def equal(tensors, expected):
    assert tensors.keys() == expected.keys()
    for path, (dtype, words) in tensors.items():
        assert dtype == expected[path][0], path
        assert np.array_equal(words, expected[path][1]), path


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "spec.yaml"
    path.write_text(AWKWARD)
    return path


@pytest.fixture(scope="module")
def expected(spec):
    run_ok("gen", spec, "-o", spec.parent / "gen")
    return reassemble(spec.parent / "gen")


def export(spec, to, out, *arguments):
    result = run_json("export", spec, "--to", to, "-o", out, *arguments)
    check_record(out)
    return result


def check_record(out):
    """Checks that the record covers every file and every byte."""
    record = json.loads((out / "shardinit-export.json").read_text())
    files = {entry["file"]: entry for entry in record["files"]}
    assert files.keys() == {k for k, v in tree_of(out).items() if v is not None} - {"shardinit-export.json"}
    for name, entry in files.items():
        data = (out / name).read_bytes()
        assert len(data) == entry["size"]
        at = entry["boxes"][0]["file_offset"] if entry["boxes"] else len(data)
        assert hashlib.sha256(data[:at]).hexdigest() == entry["head_sha256"]
        for box in entry["boxes"]:
            assert box["file_offset"] == at
            end = at + DTYPES[box["dtype"]].itemsize * int(np.prod(box["shape"], dtype=int))
            assert hashlib.sha256(data[at:end]).hexdigest() == box["sha256"]
            at = end
            if "tail_sha256" in box:
                assert box["tail_offset"] == at
                at = next((b["file_offset"] for b in entry["boxes"] if b["file_offset"] > at), len(data))
                assert hashlib.sha256(data[end:at]).hexdigest() == box["tail_sha256"]
        assert at == len(data)
    return record


# safetensors -------------------------------------------------------------------


def test_export_writes_one_safetensors_file(spec, expected, tmp_path):
    result = export(spec, "safetensors", tmp_path / "out")
    assert result["files"] == 1 and result["tensors"] == len(expected) and not result["was_there"]
    tensors, metadata = read_safetensors(tmp_path / "out/model.safetensors")
    assert metadata == {"format": "pt"}
    equal(tensors, expected)


@pytest.mark.parametrize("size", [1, 20_000, 200_000])
def test_export_splits_safetensors_by_max_shard_size(size, spec, expected, tmp_path):
    out = tmp_path / "out"
    export(spec, "safetensors", out, "--max-shard-size", size)
    names = sorted(p.name for p in out.glob("*.safetensors"))
    count = len(names)
    assert count > 1
    assert names == [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    index = json.loads((out / "model.safetensors.index.json").read_text())
    tensors, weight_map = {}, {}
    for name in names:
        part, _ = read_safetensors(out / name)
        assert len(part) == 1 or sum(w.nbytes for _, w in part.values()) <= size
        tensors.update(part)
        weight_map.update(dict.fromkeys(part, name))
    equal(tensors, expected)
    assert index["weight_map"] == weight_map
    words = [w for _, w in expected.values()]
    assert index["metadata"] == {
        "total_parameters": sum(w.size for w in words),
        "total_size": sum(w.nbytes for w in words),
    }


def test_export_only_writes_matching_tensors(spec, expected, tmp_path):
    export(spec, "safetensors", tmp_path / "out", "--only", "w*")
    tensors, _ = read_safetensors(tmp_path / "out/model.safetensors")
    equal(tensors, {path: expected[path] for path in ["wide", "whole"]})
    result = run_tool("export", spec, "--to", "safetensors", "-o", tmp_path / "none", "--only", "x")
    assert result.returncode == 2 and "no tensor matches `--only x`" in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["out"]


# The folder --------------------------------------------------------------------


def test_exported_bytes_do_not_depend_on_mesh_or_threads(spec, tmp_path):
    """The exported bytes do not depend on mesh or threads; the record contains the plan's digest and so depends on the
    mesh."""
    files = []
    for i, arguments in enumerate([[], ["--jobs", 1, "--memory", "1M"], ["--mesh", "a=3,b=1"]]):
        export(spec, "safetensors", tmp_path / str(i), *arguments)
        files.append((tmp_path / str(i) / "model.safetensors").read_bytes())
    assert files[0] == files[1] == files[2]
    assert tree_of(tmp_path / "0") == tree_of(tmp_path / "1")


def test_export_does_not_rewrite_a_finished_export(spec, tmp_path):
    out = tmp_path / "out"
    export(spec, "safetensors", out)
    before = {p: p.stat().st_mtime_ns for p in out.iterdir()}
    assert export(spec, "safetensors", out)["was_there"]
    assert {p: p.stat().st_mtime_ns for p in out.iterdir()} == before


@pytest.mark.parametrize("arguments", [["--set", "seed=1"], ["--max-shard-size", "1"], ["--only", "w*"]])
def test_export_conflicts_with_another_export(arguments, spec, tmp_path):
    out = tmp_path / "out"
    export(spec, "safetensors", out)
    before = tree_of(out)
    result = run_tool("export", spec, "--to", "safetensors", "-o", out, *arguments)
    assert result.returncode == 4 and "holds another export" in result.stderr
    assert tree_of(out) == before


def test_export_never_changes_existing_files(spec, tmp_path):
    out = tmp_path / "out"
    export(spec, "safetensors", out)
    with open(out / "model.safetensors", "ab") as file:
        file.write(b"x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/notes").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    before = tree_of(tmp_path)
    for name, message in [
        ("out", "`model.safetensors` is missing or has another size"),
        ("folder", "holds something else"),
        ("file", "holds something else"),
        ("link", "holds something else"),
        ("file/below", "is not a folder"),
    ]:
        result = run_tool("export", spec, "--to", "safetensors", "-o", tmp_path / name)
        assert result.returncode == 4 and message in result.stderr, name
        assert tree_of(tmp_path) == before


def test_export_accepts_an_empty_folder(spec, tmp_path):
    (tmp_path / "out").mkdir()
    export(spec, "safetensors", tmp_path / "out")
    export(spec, "safetensors", tmp_path / "new/folders/out/")
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "new/folders/out")


@pytest.mark.parametrize("to, files", [("safetensors", "*.safetensors"), ("dcp", "*.distcp")])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_signals_end_an_export_without_leftovers(number, to, files, tmp_path):
    """After SIGINT or SIGTERM no files remain; after SIGKILL, the next run removes them."""
    (tmp_path / "big.yaml").write_text(BIG)
    folder = tmp_path / "folder"
    arguments = ["export", tmp_path / "big.yaml", "--to", to, "-o", folder / "out"]
    run = subprocess.Popen([BINARY, *arguments], env=CLEAN, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not list(folder.glob(f".out.tmp-*/{files}")):
        assert run.poll() is None and time.monotonic() < deadline, "the run ended before the signal"
        time.sleep(0.005)
    run.send_signal(number)
    _, stderr = run.communicate(timeout=20)
    assert run.returncode in (-number, 128 + number), stderr
    assert len(list(folder.iterdir())) == (number == signal.SIGKILL)
    run_ok(*arguments, "--set", "modules.w.shape=[3]")
    assert os.listdir(folder) == ["out"]


@pytest.mark.parametrize("to", ["safetensors", "dcp"])
@pytest.mark.parametrize("size", ["16k", "224k", "600k"])
def test_export_to_a_full_disk_leaves_nothing(size, to, spec, small_disk):  # noqa: F811
    disk = small_disk(size)
    result = run_tool("export", spec, "--to", to, "-o", disk / "out")
    assert result.returncode == (0 if size == "600k" else 3)
    if result.returncode:
        assert "cannot write" in result.stderr
        assert " free\n" in result.stderr or "No space left on device" in result.stderr
        assert os.listdir(disk) == []


# hf-dcp and zarr ---------------------------------------------------------------


def test_hf_dcp_export_stores_each_box_once(spec, expected, tmp_path):
    """hf-dcp stores each box once, without files for empty ranks; `replicas: full` changes nothing."""
    out = tmp_path / "out"
    export(spec, "hf-dcp", out, "--mesh", "a=5,b=4")
    held = {path: np.zeros(words.shape, int) for path, (_, words) in expected.items()}
    names = sorted(p.name for p in out.glob("*.safetensors"))
    assert len(names) == 20
    for name in names:
        assert name.startswith("shard-") and name.endswith("-model-00001-of-00001.safetensors")
        tensors, metadata = read_safetensors(out / name)
        assert metadata["format"] == "pt" and metadata["DCP_VERSION"] == "1.0"
        info = json.loads(metadata["DCP_SHARDING_INFO"])
        assert info.keys() == tensors.keys()
        for path, (dtype, words) in tensors.items():
            box = tuple(slice(o, o + n) for o, n in zip(info[path]["saved_offsets"], words.shape))
            assert dtype == expected[path][0]
            assert np.array_equal(words, expected[path][1][box])
            held[path][box] += 1
    assert all((count == 1).all() for count in held.values())
    export(spec, "hf-dcp", tmp_path / "full", "--mesh", "a=5,b=4", "--set", "replicas=full")
    tree = tree_of(tmp_path / "full")
    assert {n for n in tree if n.endswith("tensors")} == set(names)
    assert all(tree[name] == (out / name).read_bytes() for name in names)
    few = export(spec, "hf-dcp", tmp_path / "few", "--mesh", "a=5,b=4", "--only", "vector")
    assert few["files"] == 5  # Each has one element.


@pytest.mark.parametrize("mesh", ["a=1,b=1", "a=2,b=2", "a=5,b=3", "a=7,b=17"])
def test_zarr_export_chunks_cover_the_tensors(mesh, spec, expected, tmp_path):
    """The chunks, read by the format's definition without a library, give the tensors."""
    export(spec, "zarr", tmp_path / "out", "--mesh", mesh)
    for path, (_, words) in expected.items():
        folder = tmp_path / "out" / path
        info = json.loads((folder / ".zarray").read_text())
        assert info["shape"] == list(words.shape) and info["compressor"] is None
        array = np.zeros_like(words)
        places = [p.name for p in folder.iterdir() if p.name != ".zarray"]
        for place in places:
            box = tuple(slice(int(i) * n, int(i) * n + n) for i, n in zip(place.split("."), info["chunks"]))
            array[box] = np.frombuffer((folder / place).read_bytes(), words.dtype).reshape(info["chunks"])
        assert len(places) == np.prod([-(-n // c) for n, c in zip(info["shape"], info["chunks"])])
        assert np.array_equal(array, words)


# From a checkpoint -------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["--replicas", "full"], ["--mesh", "a=7,b=5"]],
                         ids=["4 ranks", "replicas", "35 ranks"])
def test_export_of_a_checkpoint_equals_export_of_its_spec(arguments, spec, tmp_path):
    run_ok("gen", spec, "-o", tmp_path / "gen", *arguments)
    if "--replicas" in arguments:
        arguments = ["--set", "replicas=full"]
    for to in OF_ANY:
        export(spec, to, tmp_path / f"spec-{to}", *arguments)
        export(tmp_path / "gen", to, tmp_path / f"folder-{to}", "--memory", "1M")
        assert tree_of(tmp_path / f"spec-{to}") == tree_of(tmp_path / f"folder-{to}")


def test_export_copies_the_values_of_the_checkpoint(spec, expected, tmp_path):
    """Export copies the values that the checkpoint holds, even if they are not the plan's, and fails if they are
    damaged."""
    run_ok("gen", spec, "-o", tmp_path / "gen")
    receipt = tmp_path / "gen/ranks/rank-00000.json"
    box, = [b for b in json.loads(receipt.read_text())["boxes"] if b["path"] == "matrix"]
    with open(tmp_path / "gen/ranks/rank-00000.h5", "r+b") as file:
        file.seek(box["file_offset"])
        file.write(b"\x55" * 8)
        file.seek(box["file_offset"])
        data = file.read(box["bytes"])
    result = run_tool("export", tmp_path / "gen", "--to", "safetensors", "-o", tmp_path / "out")
    assert result.returncode == 1 and "is damaged" in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["gen"]
    # With a changed digest, the changed values form another valid checkpoint.
    other = receipt.read_text().replace(box["sha256"], hashlib.sha256(data).hexdigest())
    receipt.write_text(other)
    os.remove(tmp_path / "gen/manifest.json")
    run_ok("finalize", tmp_path / "gen")
    export(tmp_path / "gen", "safetensors", tmp_path / "out")
    tensors, _ = read_safetensors(tmp_path / "out/model.safetensors")
    assert tensors["matrix"][1][0, 0] == 0x5555555555555555
    changed = tensors["matrix"][1].copy()
    changed[0, 0] = expected["matrix"][1][0, 0]
    equal({**tensors, "matrix": ("f64", changed)}, expected)


def test_export_rejects_folders_that_are_not_checkpoints(spec, tmp_path):
    run_ok("gen", spec, "-o", tmp_path / "gen", "--ranks", "0,1")
    result = run_tool("export", tmp_path / "gen", "--to", "dcp", "-o", tmp_path / "out")
    assert result.returncode == 2 and "unfinished" in result.stderr
    result = run_tool("export", tmp_path, "--to", "dcp", "-o", tmp_path / "out")
    assert result.returncode == 2 and "is not a checkpoint" in result.stderr
    run_ok("gen", spec, "-o", tmp_path / "gen")
    for option in ["--mesh=a=1", "--set=seed=1"]:
        result = run_tool("export", tmp_path / "gen", "--to", "dcp", "-o", tmp_path / "out", option)
        assert result.returncode == 2 and "need a spec" in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["gen"]


# verify of an export ------------------------------------------------------------

LAYERS = """
shardinit: 1
name: layers
dtype: f32
modules:
  layers.dense.vars:
    "0": {shape: [300, 40], init: {normal: {std: 1}}}
    "1": {shape: [40], init: ones}
  layers.dense_1.vars:
    "0": {shape: [40, 3], init: {normal: {std: 1}}}
"""


@pytest.fixture(scope="module", params=[name for name in FORMATS if name != "megatron"])
def layers(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("layers")
    (folder / "spec.yaml").write_text(LAYERS)
    sizes = ["--max-shard-size", "1KB"] if request.param in ("safetensors", "keras") else []
    run_ok("export", folder / "spec.yaml", "--to", request.param, "-o", folder / "out", *sizes)
    return folder / "out"


def test_verify_names_the_damaged_file_and_tensor_of_an_export(layers):
    """`verify` names the damaged file and tensor after a bit flip, a truncation or the loss of a file."""
    record = json.loads((layers / "shardinit-export.json").read_text())
    boxes = sum(len(file["boxes"]) for file in record["files"])
    assert run_json("verify", layers) == {
        "folder": str(layers), "intact": True, "files": len(record["files"]), "boxes": boxes,
        "bytes": sum(file["size"] for file in record["files"]), "findings": [], "more_findings": 0,
        "foreign": [], "more_foreign": 0}

    def findings():
        done = run_tool("verify", layers, "--json")
        assert done.returncode == 1, done.stderr
        return [(f["file"], f["tensor"], f["message"]) for f in json.loads(done.stdout)["findings"]]

    for entry in record["files"]:
        path = layers / entry["file"]
        data = path.read_bytes()
        places = [(0, "")] if not entry["boxes"] or entry["boxes"][0]["file_offset"] else []
        places += [(box["file_offset"] + 1, box["path"]) for box in entry["boxes"]]
        for at, tensor in [*places, (len(data) - 1, places[-1][1])]:
            path.write_bytes(data[:at] + bytes([data[at] ^ 64]) + data[at + 1:])
            (file, found, message), = findings()
            assert (file, found) == (entry["file"], tensor)
            first, last = (int(word) for word in message.split("bytes ")[1].split(" of ")[0].split(" to "))
            assert first <= at <= last
        path.write_bytes(data[:-1])
        assert findings() == [(entry["file"], "", f"has {len(data) - 1} bytes, but the record lists {len(data)}")]
        path.unlink()
        assert findings() == [(entry["file"], "", "is missing")]
        path.write_bytes(data)
    run_ok("verify", layers)


def test_verify_reports_foreign_names_and_links_in_an_export(layers, tmp_path):
    """`verify` reports extra files and folders, and links that replace parts of the export or its record."""
    def findings():
        done = run_tool("verify", layers, "--json")
        assert done.returncode == 1, done.stderr
        return {(f["file"], f["message"]) for f in json.loads(done.stdout)["findings"]}

    def foreign():
        return json.loads(run_tool("verify", layers, "--json").stdout)["foreign"]

    inner = next((p for p in layers.iterdir() if p.is_dir()), layers)
    (inner / "0.9").write_text("")
    (layers / "more").mkdir()
    (layers / "more/secret").write_text("")
    (layers / "link").symlink_to("/etc")
    if inner != layers:  # Only the export itself may have files in its folders.
        assert findings() == {(str((inner / "0.9").relative_to(layers)), "does not belong to the export")}
    assert foreign() == [*(["0.9"] if inner == layers else []), "link", "more"]
    (inner / "0.9").unlink(), shutil.rmtree(layers / "more"), (layers / "link").unlink()
    record = json.loads((layers / "shardinit-export.json").read_text())
    for name in [record["files"][0]["file"], inner.name if inner != layers else record["files"][-1]["file"],
                 "shardinit-export.json"]:
        (layers / name).rename(tmp_path / "elsewhere")
        (layers / name).symlink_to(tmp_path / "elsewhere")
        assert (name, "is a link to elsewhere") in findings()
        (layers / name).unlink()
        (tmp_path / "elsewhere").rename(layers / name)
    run_ok("verify", layers)


def digested(lines):
    """Completes a record as man/shardinit-export.1 defines it: the last member is the digest of all text before it."""
    return f'{lines} "sha256": "{hashlib.sha256(lines.encode()).hexdigest()}"\n}}\n'


def test_export_record_has_its_own_digest(layers):
    text = (layers / "shardinit-export.json").read_text()
    lines = "".join(text.splitlines(keepends=True)[:-2])
    assert text == digested(lines)
    record = layers / "shardinit-export.json"
    for bad in [text.replace("layers", "Layers", 1), text + " ", text.replace('"name": ', '"name":  '), lines + "}"]:
        record.write_text(bad)
        done = run_tool("verify", layers)
        assert done.returncode == 5 and "shardinit-export.json" in done.stderr, done.stderr
    record.write_text(digested(lines.replace('"export_version": 2', '"export_version": 1')))
    assert "it has version 1 instead of 2" in run_tool("verify", layers).stderr
    record.write_text(text)
    run_ok("verify", layers)


@pytest.mark.parametrize("change", [
    lambda r: r.update(export_version=3), lambda r: r.pop("files"), lambda r: r.update(files=3),
    lambda r: r["files"][0].update(file="../x"), lambda r: r["files"][0].update(file="/etc/passwd"),
    lambda r: r["files"][0].update(file=7), lambda r: r["files"][0].update(size=-1),
    lambda r: r["files"][0].update(size=2**64 - 1), lambda r: r["files"][0].update(head_sha256="00"),
    lambda r: r["files"][0]["boxes"][0].update(file_offset=2**62),
    lambda r: r["files"][0]["boxes"][0].update(file_offset=1.5), lambda r: r["files"][0]["boxes"][0].pop("sha256"),
    lambda r: r["files"][0]["boxes"].reverse(),
])
def test_verify_rejects_a_malformed_export_record(change, spec, tmp_path):
    run_ok("export", spec, "--to", "dcp", "-o", tmp_path / "out")
    record = tmp_path / "out/shardinit-export.json"
    content = json.loads(record.read_text())
    change(content)
    del content["sha256"]
    record.write_text(digested(json.dumps(content)[:-1] + ",\n"))
    done = run_tool("verify", tmp_path / "out")
    assert done.returncode == 5 and "is not the record of an export" in done.stderr, done.stderr


# config.json -------------------------------------------------------------------


CONFIG = """
shardinit: 1
name: c
dtype: f32
vars: {d: 8, eps: 1 / 3}
config:
  text: llama
  quoted: "5"
  number: =2 * d
  fraction: "=max(eps, 0.25)"
  small: 1e-5
  whole: 500000.0
  negative: -3
  yes: true
  none: null
  list: [1, two, {three: =d + 1}]
modules:
  w: {shape: [d], init: ones}
"""


def test_export_writes_the_config_json_of_the_spec(tmp_path):
    """config.json is written as the spec gives it, also from a checkpoint of the spec."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    wanted = {"text": "llama", "quoted": "5", "number": 16, "fraction": 1 / 3, "small": 1e-5,
              "whole": 500000.0, "negative": -3, "yes": True, "none": None, "list": [1, "two", {"three": 9}],
              "dtype": "float32"}
    export(tmp_path / "c.yaml", "safetensors", tmp_path / "out")
    text = (tmp_path / "out/config.json").read_text()
    assert json.loads(text) == wanted
    assert text == json.dumps(wanted, indent=2, sort_keys=True) + "\n"
    run_ok("gen", tmp_path / "c.yaml", "-o", tmp_path / "gen")
    run_ok("verify", tmp_path / "gen")
    export(tmp_path / "gen", "safetensors", tmp_path / "again")
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "again")
    export(tmp_path / "c.yaml", "safetensors", tmp_path / "other", "--set", "vars.d=9")
    assert json.loads((tmp_path / "other/config.json").read_text())["number"] == 18


def test_config_json_has_a_dtype_that_rounds_no_tensor(tmp_path):
    """The dtype in config.json is the most common one that a whole model can have, or one that rounds no tensor. The
    spec's own value does not matter."""
    def config_of(config, *tensors):
        (tmp_path / "c.yaml").write_text(
            "shardinit: 1\nname: c\ndtype: f32\nconfig: " + config + "\nmodules:\n" + "".join(
                f"  t{i}: {{shape: [{size}], dtype: {dtype}, init: {init[0] if init else 'zeros'}}}\n"
                for i, (dtype, size, *init) in enumerate(tensors)))
        export(tmp_path / "c.yaml", "safetensors", tmp_path / "out", "--only", "t0")
        found = json.loads((tmp_path / "out/config.json").read_text())
        shutil.rmtree(tmp_path / "out")
        return found

    def dtype_of(config, *tensors):
        found = config_of(config, *tensors)
        return found.get("dtype") if "text" not in found else [found["dtype"], found["text"]["dtype"]]

    for name, wanted in (("f32", "float32"), ("f64", "float64"), ("bf16", "bfloat16"), ("f16", "float16")):
        assert dtype_of("{}", (name, 3), ("f8e4m3fn", 9), ("i64", 9)) == wanted
        assert dtype_of("{dtype: other}", (name, 3)) == "other"
        assert dtype_of("{torch_dtype: other}", (name, 3)) is None
        for said in ("float32", "float64", "bfloat16", "float16"):
            assert dtype_of(f"{{dtype: {said}}}", (name, 3), ("i64", 9)) == wanted
            assert dtype_of(f"{{dtype: {said}, text: {{model_type: x, dtype: {said}}}}}", (name, 3)) == [wanted] * 2
            assert dtype_of(f"{{dtype: {said}, text: {{dtype: {said}}}}}", (name, 3)) == [wanted, said]
            # The field's name before version 5 of Transformers.
            old = f"torch_dtype: {said}, text: {{model_type: x, torch_dtype: {said}}}, more: {{torch_dtype: {said}}}"
            assert config_of(f"{{{old}}}", (name, 3), ("i64", 9)) == {
                "torch_dtype": wanted, "text": {"model_type": "x", "torch_dtype": wanted},
                "more": {"torch_dtype": said}}
    assert dtype_of("{}", ("f32", 4), ("bf16", 3), ("bf16", 2)) == "bfloat16"
    assert dtype_of("{}", ("i64", 4), ("f8e5m2", 3)) is None
    # from_pretrained converts all tensors to one type, so it would round these.
    drawn, third = "{normal: {std: 1}}", "{constant: {value: 1 / 3}}"
    for config in ("{}", "{dtype: bfloat16}"):
        assert dtype_of(config, ("f32", 1, "ones"), ("bf16", 9, drawn), ("f64", 1, "ones")) == "bfloat16"
        assert dtype_of(config, ("f32", 1, third), ("bf16", 9, drawn)) == "float32"
        assert dtype_of(config, ("f32", 1, drawn), ("bf16", 9)) == "float32"
        assert dtype_of(config, ("f16", 1, drawn), ("bf16", 9)) == "float32"
        assert dtype_of(config, ("f16", 9), ("bf16", 1, drawn)) == "float32"
        assert dtype_of(config, ("f8e4m3fn", 1, drawn), ("bf16", 9), ("i64", 99, "arange")) == "bfloat16"
        assert dtype_of(config, ("f64", 1, drawn), ("bf16", 9), ("f32", 99)) == "float64"
        assert dtype_of(config, ("f64", 1, third), ("bf16", 9)) == "float64"


def test_config_json_dtype_in_a_layout_rounds_no_drawn_element(tmp_path):
    """In a layout, the dtype is chosen so that drawn elements inside stored tensors are not rounded."""
    (tmp_path / "c.yaml").write_text("""
shardinit: 1
name: c
dtype: bf16
config: {dtype: float16}
modules:
  w: {shape: [9], init: {normal: {std: 1}}}
  a: {shape: [2], dtype: f32, init: zeros}
  b: {shape: [2], dtype: f32, init: {normal: {std: 1}}}
layouts:
  constants: {w: w, omit: [b], a: {from: {stack: {of: [a, a], axis: 0}}}}
  padded: {w: w, omit: [b], a: {from: {pad: {of: a, axis: 0, to: 4, value: 0.1}}}}
  drawn: {w: w, a: {from: {concat: {of: [a, b], axis: 0}}}}
""")
    for layout, wanted in (("constants", "bfloat16"), ("padded", "float32"), ("drawn", "float32")):
        export(tmp_path / "c.yaml", "safetensors", tmp_path / layout, "--layout", layout)
        assert json.loads((tmp_path / layout / "config.json").read_text())["dtype"] == wanted


def test_config_json_omits_token_ids_outside_the_vocabulary(tmp_path):
    (tmp_path / "c.yaml").write_text("""
shardinit: 1
name: c
dtype: f32
vars: {vocab: 100}
config:
  vocab_size: =vocab
  bos_token_id: 99
  eos_token_id: [98, 100, 5]
  pad_token_id: 100
  sep_token_id: [100, 101]
  unk_token_id: null
  num_token_ids: 500
  text: {vocab_size: 7, eos_token_id: 7, pad_token_id: 6, inner: {eos_token_id: 9}}
  vision: {image_token_id: 100, size: 1000, begin_token_id: -1}
modules:
  w: {shape: [4], init: ones}
""")
    export(tmp_path / "c.yaml", "safetensors", tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text()) == {
        "dtype": "float32", "vocab_size": 100, "bos_token_id": 99, "eos_token_id": [98, 5],
        "pad_token_id": None, "sep_token_id": None, "unk_token_id": None, "num_token_ids": 500,
        "text": {"vocab_size": 7, "eos_token_id": None, "pad_token_id": 6, "inner": {"eos_token_id": None}},
        "vision": {"image_token_id": None, "size": 1000, "begin_token_id": -1}}
    export(tmp_path / "c.yaml", "safetensors", tmp_path / "more", "--set", "vars.vocab=200")
    assert json.loads((tmp_path / "more/config.json").read_text())["pad_token_id"] == 100


def test_config_json_keeps_token_ids_that_clip_searches_for(tmp_path):
    """CLIP searches its input for the end token, so an id outside the vocabulary stays; for other models it becomes
    null."""
    text = """
shardinit: 1
name: c
dtype: f32
config:
  architectures: [%s]
  text_config: {vocab_size: 96, eos_token_id: 49407, bos_token_id: [1, 99], pad_token_id: 96}
modules:
  w: {shape: [4], init: ones}
"""
    (tmp_path / "c.yaml").write_text(text % "CLIPModel")
    (tmp_path / "g.yaml").write_text(text % "XForCausalLM")
    for name, wanted in (("c", [49407, [1, 99], None]), ("g", [None, [1], None])):
        export(tmp_path / f"{name}.yaml", "safetensors", tmp_path / name)
        found = json.loads((tmp_path / name / "config.json").read_text())["text_config"]
        assert [found[f"{token}_token_id"] for token in ("eos", "bos", "pad")] == wanted


# Each tensor of the spec → its zarr type, shape and chunk shape. `nine` has unequal shards, and chunks that are close
# to them. `five` would get much smaller chunks, so it has one.
ARRAYS = {"layer.w": ("<f4", [4, 6], [4, 3]), "layer.five": ("bfloat16", [5], [5]), "nine": ("<f2", [9], [3]),
          "flag": ("|b1", [3], [3]), "one": ("|i1", [], [])}
ZARR = """
shardinit: 1
name: arrays
dtype: f32
uneven: chunk
mesh: {axes: {a: 2, b: 1}}
modules:
  PREFIXlayer.w: {shape: [4, 6], shard: [b, a], init: {normal: {std: 1}}}
  PREFIXlayer.five: {shape: [5], shard: [a], dtype: bf16, init: ones}
  PREFIXnine: {shape: [9], shard: [a], dtype: f16, init: ones}
  PREFIXflag: {shape: [3], dtype: bool, init: zeros}
  PREFIXone: {shape: [], dtype: i8, init: ones}
  batch_stats.mean: {shape: [2], init: zeros}
"""


@pytest.mark.parametrize("prefix", ["", "params."])
@pytest.mark.parametrize(("optimizer", "held"), [(None, []), ("adamw", list(ARRAYS)), (
    "{adamw: {params: ['*layer.*', '*flag'], schedule: true}}", ["layer.w", "layer.five", "flag"])], ids=str)
def test_zarr_export_has_the_metadata_tree_of_orbax(optimizer, held, prefix, tmp_path):
    """The zarr export has exactly the metadata tree that Orbax expects, and the arrays and chunks that match it."""
    (tmp_path / "spec.yaml").write_text(ZARR.replace("PREFIX", prefix))
    export(tmp_path / "spec.yaml", "zarr", tmp_path / "out", *(["--optimizer", optimizer] if optimizer else []))
    below = [] if prefix or not optimizer else ["params"]
    mean = ("<f4", [2], [2])
    leaves = [([*below, *(prefix + path).split(".")], array, None) for path, array in ARRAYS.items()]
    leaves.append(([*below, "batch_stats", "mean"], mean, None))
    # Collections other than `params` have no optimizer state. Without `params`, all tensors form one collection.
    moments = {**ARRAYS, **({} if prefix else {"batch_stats.mean": mean})}
    moments = {path: array for path, array in moments.items() if optimizer == "adamw" or path in held}
    if optimizer:
        leaves += [(["opt_state", 0, "count"], ("<i4", [], []), 0)]
        leaves += [(["opt_state", 0, moment, *path.split(".")], array, 0 if array[0] != "|b1" else False)
                   for moment in ("mu", "nu") for path, array in moments.items()]
        leaves += [(["opt_state", 1], None, None)]
        leaves += [(["opt_state", 2, "count"], ("<i4", [], []), 0) if "schedule" in optimizer else
                   (["opt_state", 2], None, None), (["step"], ("<i8", [], []), 0)]
    tree = json.loads((tmp_path / "out/_METADATA").read_text())
    assert tree == {
        "tree_metadata": {
            str(tuple(map(str, keys))): {
                "key_metadata": [{"key": str(key), "key_type": 1 if isinstance(key, int) else 2} for key in keys],
                "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": False, "write_shape": array[2]}
                if array else {"value_type": "None", "skip_deserialize": True}}
            for keys, array, _ in leaves},
        "use_ocdbt": False, "use_zarr3": False, "store_array_data_equal_to_fill_value": not optimizer,
        "custom_metadata": None}
    assert [json.loads(key.replace("(", "[").replace(",)", "]").replace(")", "]").replace("'", '"'))
            for key in tree["tree_metadata"]] == [list(map(str, keys)) for keys, _, _ in leaves]
    found = {path.parent.name: json.loads(path.read_text()) for path in (tmp_path / "out").glob("*/.zarray")}
    assert found == {
        ".".join(map(str, keys)): {
            "chunks": array[2], "compressor": None, "dimension_separator": ".", "dtype": array[0], "fill_value": fill,
            "filters": None, "order": "C", "shape": array[1], "zarr_format": 2}
        for keys, array, fill in leaves if array}
    kinds = {name: type(array["fill_value"]) for name, array in found.items()}  # In Python, False equals 0.
    assert kinds == {".".join(map(str, keys)): type(fill) for keys, array, fill in leaves if array}
    for keys, array, fill in leaves:  # Arrays filled with zeros have no chunks.
        if array:
            chunks = {path.name for path in (tmp_path / "out" / ".".join(map(str, keys))).iterdir()} - {".zarray"}
            counts = [range(n // c) for n, c in zip(array[1], array[2], strict=True)]
            wanted = {".".join(map(str, place)) or "0" for place in itertools.product(*counts)}
            assert chunks == (wanted if fill is None else set())
