"""Exports into buckets, in every format, have the files of a local export as objects, whatever the store, the network,
kills and other writers do. The store checks every signature and body (object_store.py)."""

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import time
import zlib

import numpy as np
import pytest
import safetensors.numpy
from bucket_tools import Faults, Once, begin, files_of, make_two_models, ok, tool
from support import BINARY, run_ok, run_tool

URL = "s3://bucket/models/a"
NOTES = ".shardinit-export/"
RECORD = "shardinit-export.json"

# Files of several parts: boxes that end within parts, small boxes between, and values that need the whole tensor.
# `{begin}` and `{end}` enclose tensors, as some formats need.
SPEC = """
shardinit: 1
name: parts
dtype: f32
seed: {seed}
mesh: {{axes: {{a: 2}}}}
rules: [{{x: a}}]
init: {{n: {{normal: {{std: 0.02}}}}}}
modules:
  large: {{{begin}shape: [6000, 1000], axes: [x, null], init: n{end}}}
  small: {{{begin}shape: [7], axes: [x], init: n, dtype: bf16{end}}}
  square: {{{begin}shape: [600, 600], axes: [x, null], init: {{orthogonal: {{}}}}{end}}}
  wide: {{{begin}shape: [2, 1500000], axes: [x, null], init: n, dtype: f64{end}}}
  tail: {{{begin}shape: [1000], axes: [null], init: zeros{end}}}
uneven: chunk
"""
MEGATRON = """
shardinit: 1
name: parts
dtype: bf16
mesh: {axes: {a: 2}}
rules: [{x: a}]
modules:
  decoder: {layers: {self_attention: {linear_qkv: {weight: {shape: [2, 3000, 1500], axes: [null, x, null], init: {normal: {std: 1}}}}}}}
"""

# The spec of each format and its options.
FORMATS = {
    "safetensors": ("one", ["--max-shard-size", "30MB"]),
    "dcp": ("one", ["--optimizer", "adamw"]),
    "hf-dcp": ("one", []),
    "megatron": ("megatron", []),
    "zarr": ("one", ["--optimizer", "adamw"]),
    "keras": ("keras", ["--max-shard-size", "30MB"]),
}
# The object that readers of each format open first.
OPENED_FIRST = {"safetensors": "model.safetensors.index.json", "dcp": ".metadata", "megatron": ".metadata",
                "zarr": "_CHECKPOINT_METADATA", "keras": "model.weights.json"}


def command(name):
    spec, words = FORMATS[name]
    return ["export", f"{spec}.yaml", "--to", name, *words]


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Returns a folder with the specs and a local export in each format."""
    folder = tmp_path_factory.mktemp("exports")
    for name, seed in (("one", 1), ("two", 2)):
        (folder / f"{name}.yaml").write_text(SPEC.format(seed=seed, begin="", end=""))
    (folder / "keras.yaml").write_text(SPEC.format(seed=1, begin="vars: {'0': {", end="}}"))
    (folder / "megatron.yaml").write_text(MEGATRON)
    for name in FORMATS:
        run_ok(*command(name), "-o", name, cwd=folder)
    return folder


def stored(store, prefix="models/a"):
    return {key[len(prefix) + 1:]: store.get(key) for key in store.names(prefix + "/")}


def assert_is(store, folder, prefix="models/a"):
    """Asserts that the objects are the files of the local export, with only notes next to them."""
    objects, files = stored(store, prefix), files_of(folder)
    assert sorted(name for name in objects if not name.startswith(NOTES)) == sorted(files)
    assert [name for name in files if objects[name] != files[name]] == []
    assert store.uploads() == [] and store.refused == []


def written(store):
    """Returns the names of the written objects, in order."""
    return [key for kind, key in store.log if kind in ("put", "complete")]


@pytest.mark.parametrize("name", FORMATS)
def test_bucket_objects_equal_the_files_of_a_local_export(name, exports, object_store, tmp_path):
    done = ok(object_store, *command(name), "-o", URL, folder=exports)
    assert f"{URL}: " in done.stdout
    assert_is(object_store, exports / name)
    assert {"begin", "part", "complete"} <= {kind for kind, _ in object_store.log}
    # Readers find nothing that looks complete too early: the record is last, after the object that readers open first.
    names = [key[len("models/a/"):] for key in written(object_store)]
    assert names[-1] == RECORD and (name not in OPENED_FIRST or names[-2] == OPENED_FIRST[name])
    object_store.log.clear()
    assert "was there already" in ok(object_store, *command(name), "-o", URL + "/", folder=exports).stderr
    assert written(object_store) == []
    assert "intact: " in ok(object_store, "verify", URL).stdout
    # A copy of all objects is an export without foreign files.
    object_store.download("models/a", tmp_path / "copy")
    assert "intact: " in run_ok("verify", "--strict", tmp_path / "copy").stdout
    if name not in ("keras", "megatron"):
        run_ok("verify", "--spec", exports / "one.yaml", tmp_path / "copy")
    assert json.loads(ok(object_store, *command(name), "-o", URL, "--json", folder=exports).stdout)["was_there"]


def test_export_writes_single_ranks_and_parts_into_a_bucket(exports, object_store):
    for name in ("dcp", "zarr"):
        url = f"s3://bucket/{name}"
        done = ok(object_store, *command(name), "-o", url, "--ranks", "1", folder=exports)
        assert f"{url}: unfinished: 1 rank is missing, the first is 0" in done.stdout
        assert RECORD not in stored(object_store,
                                    name) and not set(OPENED_FIRST.values()) & set(stored(object_store, name))
        early = tool(object_store, "verify", url)
        assert early.returncode == 2 and "is an unfinished export" in early.stderr
        done = json.loads(ok(object_store, *command(name), "-o", url, "--part", "0/3", "--json", folder=exports).stdout)
        for part in ("1/3", "2/3"):
            done = json.loads(ok(object_store, *command(name), "-o", url, "--part", part, "--json",
                                 folder=exports).stdout)
        assert done["missing_ranks"] == []
        assert_is(object_store, exports / name, name)
        object_store.log.clear()
        assert "was there already" in ok(object_store, *command(name), "-o", url, "--ranks", "0", folder=exports).stderr
        assert written(object_store) == []


def test_simultaneous_jobs_make_one_export_in_a_bucket(exports, object_store):
    running = [begin(object_store, *command("zarr"), "-o", URL, *words, folder=exports)
               for words in ([], ["--part", "0/2"], ["--part", "1/2"], ["--ranks", "0"])]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert_is(object_store, exports / "zarr")


def test_later_of_two_simultaneous_runs_completes_the_export(exports, object_store):
    """The later of two simultaneous runs completes the export."""
    ok(object_store, *command("dcp"), "-o", URL, "--ranks", "1", folder=exports)
    others = stored(object_store)
    object_store.reset()
    ok(object_store, *command("dcp"), "-o", URL, "--ranks", "1", folder=exports)
    assert stored(object_store) == others
    for name in others:
        if not name.endswith("claim.json"):
            object_store.remove("models/a/" + name)

    def put_others(request):
        if request.kind == "begin" or (request.kind == "put" and request.key.endswith(".distcp")):
            object_store.faults = None
            for name, data in others.items():
                object_store.put("models/a/" + name, data)

    object_store.faults = put_others
    ok(object_store, *command("dcp"), "-o", URL, "--ranks", "0", folder=exports)
    assert object_store.faults is None
    assert_is(object_store, exports / "dcp")


def test_export_accepts_an_equal_claim_that_appears_meanwhile(exports, object_store):
    ok(object_store, *command("dcp"), "-o", URL, folder=exports)
    claim = object_store.get("models/a/.shardinit-export/claim.json")
    object_store.reset()

    def make_it(request):
        if request.kind == "list" and not object_store.names("models/a/"):
            object_store.put("models/a/.shardinit-export/claim.json", claim)

    object_store.faults = make_it
    ok(object_store, *command("dcp"), "-o", URL, folder=exports)
    assert_is(object_store, exports / "dcp")


def test_another_export_conflicts_and_changes_no_object(exports, object_store):
    ok(object_store, *command("dcp"), "-o", URL, "--ranks", "0", folder=exports)
    before = stored(object_store)
    for words in (["two.yaml", "--to", "dcp", "--optimizer", "adamw"], ["one.yaml", "--to", "dcp"],
                  ["one.yaml", "--to", "hf-dcp"], ["one.yaml", "--to", "zarr", "--ranks", "1"]):
        done = tool(object_store, "export", *words, "-o", URL, folder=exports)
        assert done.returncode == 4 and f"`{URL}` holds another export" in done.stderr, done
    done = tool(object_store, "gen", "one.yaml", "-o", URL, folder=exports)
    assert done.returncode == 4 and ".shardinit-export/claim.json` exists without the plan.json" in done.stderr
    assert stored(object_store) == before
    # Any other content is left alone, too.
    object_store.put("models/b/notes.txt", b"mine")
    done = tool(object_store, *command("dcp"), "-o", "s3://bucket/models/b", folder=exports)
    assert done.returncode == 4 and "is not empty, and contains something else" in done.stderr
    assert stored(object_store, "models/b") == {"notes.txt": b"mine"}
    ok(object_store, "gen", "one.yaml", "-o", "s3://bucket/models/c", "--ranks", "0", folder=exports)
    before = stored(object_store, "models/c")
    assert tool(object_store, *command("dcp"), "-o", "s3://bucket/models/c", folder=exports).returncode == 4
    assert stored(object_store, "models/c") == before


@pytest.mark.parametrize("layout", ["plain", "turned"])
def test_convert_conflicts_with_a_copy_of_other_values(layout, object_store, tmp_path):
    """The same command finds its copy and compares it, since a folder may get other values with the old times."""
    (tmp_path / "spec.yaml").write_text("""
shardinit: 1
name: copied
dtype: f32
mesh: {axes: {a: 2}}
modules:
  w: {shape: [6, 4], shard: [a], init: {normal: {std: 1}}}
  v: {shape: [5], init: {normal: {std: 1}}}
layouts:
  plain: {keep: ["*"]}
  turned: {w: {from: {transpose: {of: w}}}, keep: [v]}
""")
    for name, seed in (("in", 0), ("other", 1)):
        run_ok("export", "spec.yaml", "--to", "safetensors", "--set", f"seed={seed}", "-o", name, cwd=tmp_path)
        (tmp_path / name / RECORD).unlink()  # The record has digests of the file's contents.
    words = ["convert", "in", "--spec", "spec.yaml", "--from-layout", "plain", "--layout", layout]
    for form in ("safetensors", "dcp", "zarr"):
        ok(object_store, *words, "--to", form, "-o", f"s3://bucket/models/{form}", folder=tmp_path)
    before = {form: stored(object_store, f"models/{form}") for form in ("safetensors", "dcp", "zarr")}
    for form in before:
        done = tool(object_store, *words, "--to", form, "-o", f"s3://bucket/models/{form}", folder=tmp_path)
        assert done.returncode == 0 and "was there already" in done.stderr, done
    file = tmp_path / "in/model.safetensors"
    times = file.stat()
    file.write_bytes((tmp_path / "other/model.safetensors").read_bytes())
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    for form in before:
        done = tool(object_store, *words, "--to", form, "-o", f"s3://bucket/models/{form}", folder=tmp_path)
        assert done.returncode == 4 and f"`s3://bucket/models/{form}` exists and has other values" in done.stderr, done
        assert stored(object_store, f"models/{form}") == before[form]


def test_export_neither_uses_nor_overwrites_foreign_objects(exports, object_store):
    """An object with an expected name, even of the right size, is only used if its metadata identifies this export."""
    ok(object_store, *command("dcp"), "-o", URL, "--ranks", "0", folder=exports)
    size = len((exports / "dcp/__1_0.distcp").read_bytes())
    for body in (b"x", bytes(size)):
        object_store.put("models/a/__1_0.distcp", body)
        done = tool(object_store, *command("dcp"), "-o", URL, folder=exports)
        assert done.returncode == 4 and "__1_0.distcp` exists, and no run of this export wrote it" in done.stderr
        assert object_store.get("models/a/__1_0.distcp") == body
    object_store.remove("models/a/__1_0.distcp")
    object_store.put("models/a/.metadata", b"x")
    done = tool(object_store, *command("dcp"), "-o", URL, folder=exports)
    assert done.returncode == 4 and ".metadata` already exists with different content" in done.stderr
    assert RECORD not in stored(object_store)
    object_store.remove("models/a/.metadata")
    ok(object_store, *command("dcp"), "-o", URL, folder=exports)
    assert_is(object_store, exports / "dcp")


@pytest.mark.parametrize("name", ["plan.json", "manifest.json"])
def test_export_detects_a_simultaneous_gen(name, exports, object_store):
    """An export and a simultaneous `gen` make claims before they look for each other, so one finds the other."""
    plan = {}

    def faults(request):
        if request.kind == "put" and request.key.endswith("claim.json") and not plan:
            plan["made"] = object_store.forward("PUT", f"/bucket/models/a/{name}", {}, b"{}")

    object_store.faults = faults
    done = tool(object_store, *command("dcp"), "-o", URL, folder=exports)
    assert done.returncode == 4 and f"{name}`, of a checkpoint, is already there" in done.stderr
    assert sorted(stored(object_store)) == [NOTES + "claim.json", name]


def test_export_rewrites_a_missing_object(exports, object_store):
    ok(object_store, *command("dcp"), "-o", URL, folder=exports)
    for lost in ("__1_0.distcp", ".metadata", RECORD, NOTES + "share-00000"):
        object_store.remove("models/a/" + lost)
        if lost == "__1_0.distcp":
            done = tool(object_store, "verify", URL)
            assert done.returncode == 1 and "__1_0.distcp: is missing" in done.stderr
        object_store.log.clear()
        ok(object_store, *command("dcp"), "-o", URL, folder=exports)
        assert ("complete", "models/a/__0_0.distcp") not in object_store.log
        assert_is(object_store, exports / "dcp")


def test_verify_reports_damaged_and_foreign_objects(exports, object_store):
    ok(object_store, *command("zarr"), "-o", URL, folder=exports)
    chunk = bytearray(object_store.get("models/a/params.square/0.0"))
    chunk[7] ^= 1
    object_store.put("models/a/params.square/0.0", bytes(chunk))
    object_store.put("models/a/params.square/9.9", b"")
    object_store.put("models/a/README", b"")
    object_store.put("models/a/_METADATA", b"{}")
    done = tool(object_store, "verify", URL)
    assert done.returncode == 1
    for words in ("params.square/0.0: square has other data than was written (bytes 0 to 719999 of the file)",
                  "params.square/9.9: does not belong to the export", "_METADATA: has 2 bytes, but the record lists",
                  "README: is foreign: does not belong to the export"):
        assert words in done.stderr, (words, done.stderr)
    assert "rerun the command that wrote them" in done.stderr


def test_export_conflicts_with_objects_of_another_size(object_store, tmp_path):
    """If an object has another length, the export is not complete despite its record, and the object is kept."""
    (tmp_path / "small.yaml").write_text(SMALL)
    words = ["export", "small.yaml", "--to", "dcp", "-o", URL]
    ok(object_store, *words, folder=tmp_path)
    whole = stored(object_store)
    for name in ("__1_0.distcp", ".metadata"):
        for body in (whole[name][:-1], whole[name] + b"x", b""):
            object_store.put("models/a/" + name, body)
            done = tool(object_store, *words, folder=tmp_path)
            assert done.returncode == 4 and re.search(f"`{URL}/{name}` (already )?exists", done.stderr), (name,
                len(body), done)
            there = {key: data for key, data in stored(object_store).items() if not key.startswith(NOTES)}
            assert there == {key: data for key, data in whole.items() if not key.startswith(NOTES)} | {name: body}
        object_store.put("models/a/" + name, whole[name])
    assert "was there already" in ok(object_store, *words, folder=tmp_path).stderr


SMALL = """
shardinit: 1
name: small
dtype: f32
mesh: {axes: {a: 4}}
init: {n: {normal: {std: 1}}}
modules:
  params.first: {shape: [4, 6], shard: [a], init: n}
  params.second: {shape: [6], init: n, dtype: f64}
  params.third: {shape: [2, 4], shard: [null, a], init: n, dtype: bf16}
"""
# Names to put next to an export: names that its readers would treat as parts of it, and others.
NAMES_NEXT_TO_EXPORT = {  # names that a reader would treat as a part, others
    "safetensors": (["x.safetensors", "y.safetensors.index.json"], ["deep/x.safetensors", "x.safetensors.bak", ".x"]),
    "hf-dcp": (["x.safetensors", "y.safetensors.index.json"], ["deep/x.safetensors", "__0_0.distcp"]),
    "dcp": (["__9_0.distcp"], ["deep/__9_0.distcp", "_metadata", ".metadata.bak"]),
    "zarr": (["deep/x/0.9", "deeper/x/y/.zarray", "params.first/0.9", "params.first/9", "params.first/1x", "x/.zarray",
              "x/.zgroup", "x/zarr.json", ".zgroup", "zarr.json", "x.ocdbt"],
             ["params.first/note", "other/x.ocdbt", "a/0/note", "a/9b/c/note", "params.first.0"]),
}


@pytest.mark.parametrize("name", NAMES_NEXT_TO_EXPORT)
def test_verify_reports_the_same_damage_in_bucket_and_folder(name, object_store, tmp_path):
    """`verify` reports the same in a bucket and a folder for damaged, cut, longer, missing and additional files."""
    (tmp_path / "spec.yaml").write_text(SMALL)
    run_ok("export", "spec.yaml", "--to", name, "-o", "out", cwd=tmp_path,
           *{"safetensors": ["--max-shard-size", "150"], "dcp": ["--optimizer", "adamw"],
             "zarr": ["--optimizer", "adamw"]}.get(name, []))
    files = files_of(tmp_path / "out")
    record = json.loads(files[RECORD])
    parts = []  # (file, tensor, first byte, byte after the last one)
    for file in record["files"]:
        begins = [(0, "")]
        for box in file["boxes"]:
            begins.append((box["file_offset"], box["path"]))
            begins += [(box["tail_offset"], box["path"])] if "tail_offset" in box else []
        ends = [at for at, _ in begins[1:]] + [file["size"]]
        parts += [(file["file"], tensor, at, end) for (at, tensor), end in zip(begins, ends, strict=True) if at < end]
    assert max(len(file["boxes"]) for file in record["files"]) == {"safetensors": 2, "zarr": 1}.get(name, 3)

    def told(changed):
        for key in object_store.names("models/a/"):
            object_store.remove(key)
        for key, data in changed.items():
            object_store.put("models/a/" + key, data)
        done = tool(object_store, "verify", URL, "--json")
        said = json.loads(done.stdout)
        folder = tmp_path / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        for key, data in changed.items():
            (folder / key).parent.mkdir(parents=True, exist_ok=True)
            (folder / key).write_bytes(data)
        of_folder = {**json.loads(run_tool("verify", folder, "--json").stdout), "folder": URL}
        if "deep/x/0.9" in changed:  # A folder's listing is complete, so it shows that this chunk is in no array.
            of_folder["foreign"].remove("deep")
            of_folder["findings"] = sorted(
                [*of_folder["findings"], {"file": "deep", "tensor": "", "message": "does not belong to the export"}],
                key=lambda finding: finding["file"])
        assert of_folder == said
        assert (done.returncode == 0) == said["intact"] == (not said["findings"])
        return said, [(f["file"], f["tensor"], f["message"]) for f in said["findings"]]

    for odd in range(2):
        changed = {key: bytearray(data) for key, data in files.items()}
        for file, _, _, end in parts[odd::2]:
            changed[file][end - 1] ^= 1
        said, found = told(changed)
        assert found == sorted((file, tensor, f"has other data than was written (bytes {at} to {end - 1} of the file)")
                               for file, tensor, at, end in parts[odd::2])
        sizes = [(file["size"], len(file["boxes"])) for file in record["files"]]
        assert (said["bytes"], said["boxes"], said["files"]) == (*map(sum, zip(*sizes, strict=True)), len(sizes))
    cut, longer, gone = (file["file"] for file in record["files"][:3])
    _, found = told({key: data[:-1] if key == cut else data + b"x" * (key == longer) for key, data in files.items()
                     if key != gone})
    assert found == sorted([
        (cut, "", f"has {len(files[cut]) - 1} bytes, but the record lists {len(files[cut])}"),
        (longer, "", f"has {len(files[longer]) + 1} bytes, but the record lists {len(files[longer])}"),
        (gone, "", "is missing")])
    taken, foreign = NAMES_NEXT_TO_EXPORT[name]
    notes = {NOTES + "share-00009": b"", RECORD + ".sig": b""}
    said, found = told({**files, **notes, **dict.fromkeys([*taken, *foreign, NOTES[:-1] + "s"], b"")})
    # A folder of other things is listed once.
    own = {file.split("/")[0] for file in files}
    names = [{key if key.split("/")[0] in own else key.split("/")[0] for key in keys} for keys in (taken, foreign)]
    assert found == sorted((key, "", "does not belong to the export") for key in names[0])
    assert said["foreign"] == sorted({*names[1], NOTES[:-1] + "s"})


@pytest.mark.parametrize("name", ["safetensors", "dcp", "zarr"])
@pytest.mark.parametrize("seed", range(2))
def test_export_survives_random_store_faults(name, seed, exports, object_store):
    object_store.faults = Faults(seed)
    ok(object_store, *command(name), "-o", URL, folder=exports)
    ok(object_store, "verify", URL)
    assert len(object_store.faults.made) >= 4
    object_store.faults = None
    ok(object_store, *command(name), "-o", URL, folder=exports)
    # If the answer that names an upload was lost, the upload stays until a run writes the record.
    object_store.remove("models/a/" + RECORD)
    ok(object_store, *command(name), "-o", URL, folder=exports)
    assert_is(object_store, exports / name)


@pytest.mark.parametrize("kind, fault", [
    ("put", "lose"), ("put", 409), ("put", 412), ("begin", "lose"), ("part", "lose"), ("part", "drop"), ("part", 404),
    ("complete", "lose"), ("complete", "error200"), ("complete", "blank200"), ("complete", "empty200"),
    ("complete", 404),
    ("complete", 409), ("complete", 412), ("complete", 500), ("head", 500), ("get", "drop"), ("list", 503),
    ("uploads", 503), ("end", 503)])
def test_export_survives_each_kind_of_store_fault(kind, fault, exports, object_store):
    """The export is correct even if every request of one kind fails once for each object."""
    once = Once(kind, fault)
    object_store.faults = once
    done = tool(object_store, *command("dcp"), "-o", URL, folder=exports)
    object_store.faults = None
    assert once.met
    if done.returncode != 0:  # A store that answers 412 without an object is broken, so the tool does not trust it.
        assert fault == 412 and done.returncode in (2, 3, 4), done
    else:
        object_store.remove("models/a/" + RECORD)
    ok(object_store, *command("dcp"), "-o", URL, folder=exports)
    assert_is(object_store, exports / "dcp")


def kill_at(store, number, last, *words, folder):
    """Runs the tool and kills it at request `number`, which the store answers by `last`."""
    count = 0

    def faults(_):
        nonlocal count
        count += 1
        if count != number:
            return None
        process.kill()
        return last

    store.faults = faults
    process = begin(store, *words, folder=folder)
    process.communicate(timeout=60)
    store.faults = None


@pytest.mark.parametrize("name", ["safetensors", "dcp", "zarr"])
@pytest.mark.parametrize("seed", range(3))
def test_killed_export_leaves_nothing_that_looks_complete(name, seed, exports, object_store):
    """A run that is killed at a request leaves nothing that looks complete, and the next run finishes it. The store may
    have done the request or not."""
    chance = random.Random(f"{name} {seed}")
    ok(object_store, *command(name), "-o", "s3://bucket/count", folder=exports)
    requests = len(object_store.log)
    for _ in range(4):
        kill_at(object_store, chance.randrange(1, requests), chance.choice(["drop", "lose"]), *command(name), "-o", URL,
                folder=exports)
        there = set(stored(object_store))
        whole = set(files_of(exports / name)) - {RECORD}
        if RECORD in there:
            assert there >= whole
        if OPENED_FIRST[name] in there:  # All objects that this first object of readers names are there.
            assert there >= {file for file in whole if file != OPENED_FIRST[name]}
        for array in {file.rpartition("/")[0] for file in there if file.endswith("/.zarray")}:
            assert there >= {file for file in whole if file.startswith(array + "/")}
    ok(object_store, *command(name), "-o", URL, folder=exports)
    for upload in object_store.uploads():  # A run that is killed after it wrote the record aborts no uploads.
        assert upload.startswith("models/a/")
    if object_store.uploads():
        object_store.remove("models/a/" + RECORD)
        ok(object_store, *command(name), "-o", URL, folder=exports)
    assert_is(object_store, exports / name)


@pytest.mark.parametrize("seed", range(3))
def test_killed_writers_of_two_exports_leave_one_complete_export(seed, exports, object_store):
    """Whichever writers are killed, the first export is finished and the writers of the other one report a conflict."""
    chance = random.Random(seed)
    run_ok("export", "two.yaml", "--to", "dcp", "--optimizer", "adamw", "-o", f"two-{seed}", cwd=exports)
    object_store.faults = Faults(seed, 0.05)
    running, kills = {}, 0
    ends = {"one": [], "two": []}
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        for number in range(3):
            if number in running:
                continue
            plan = ("one", "one", "two")[number] if seed % 2 else ("one", "two", "two")[number]
            ranks = [[], ["--ranks", "0"], ["--part", "1/2"]][chance.randrange(3)]
            running[number] = plan, begin(object_store, "export", f"{plan}.yaml", "--to", "dcp", "--optimizer", "adamw",
                                          "-o", URL, *ranks, folder=exports)
        time.sleep(chance.random() * 0.4)
        for number, (plan, process) in list(running.items()):
            if process.poll() is None and kills < 8 and chance.random() < 0.4:
                process.kill()
                kills += 1
            if process.poll() is not None:
                process.communicate()
                ends[plan].append(process.returncode)
                del running[number]
        # Some writers of both exports have exited without a kill, and one export is complete.
        if kills >= 8 and object_store.names("models/a/" + RECORD) and all(
                any(code >= 0 for code in codes) for codes in ends.values()):
            break
    for _, process in running.values():
        process.communicate()
    object_store.faults = None
    first = "one" if json.loads(object_store.get("models/a/" + NOTES + "claim.json"))["seed"] == 1 else "two"
    other = "two" if first == "one" else "one"
    assert 0 not in ends[other] and 4 in ends[other], ends
    assert set(ends[first]) <= {0, -9}, ends
    object_store.remove("models/a/" + RECORD)
    ok(object_store, "export", f"{first}.yaml", "--to", "dcp", "--optimizer", "adamw", "-o", URL, folder=exports)
    assert_is(object_store, exports / ("dcp" if first == "one" else f"two-{seed}"))


def test_export_rejects_a_store_that_ignores_conditions(exports, object_store):
    object_store.ignores = ("if-none-match",)
    done = tool(object_store, *command("zarr"), "-o", URL, folder=exports)
    assert done.returncode == 2 and "ignores the condition" in done.stderr and "two runs could mix" in done.stderr
    assert sorted(stored(object_store)) == [NOTES + "claim.json"]
    object_store.ignores = ()
    object_store.faults = lambda request: 501 if "if-none-match" in {name.lower() for name in request.headers} else None
    done = tool(object_store, *command("zarr"), "-o", URL + "/b", folder=exports)
    assert done.returncode == 2 and "no conditional writes" in done.stderr


def test_export_rejects_a_store_that_completes_unconditionally(exports, object_store):
    forward = object_store.forward

    def without(method, target, headers=None, body=b""):
        headers = {name: value for name, value in (headers or {}).items()
                   if name.lower() != "if-none-match" or method != "POST" or "uploadId" not in target}
        return forward(method, target, headers, body)

    object_store.forward = without
    try:
        done = tool(object_store, *command("safetensors"), "-o", URL, folder=exports)
    finally:
        del object_store.forward
    assert done.returncode == 2 and "when an upload of parts is completed" in done.stderr
    assert sorted(stored(object_store)) == [NOTES + "claim.json"]


def test_export_into_a_bucket_reports_an_interrupt_and_resumes(exports, object_store):
    signals = []

    def faults(request):
        if request.kind != "part" or "claim" in request.key:
            return None
        if not signals:  # A second signal would end the run at once.
            signals.append(process.terminate())
        return "slow"

    object_store.faults = faults
    process = begin(object_store, *command("dcp"), "-o", URL, folder=exports)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -15 and "interrupted; finished files are kept" in errors
    object_store.faults = None
    ok(object_store, *command("dcp"), "-o", URL, folder=exports)
    assert_is(object_store, exports / "dcp")


def test_export_does_not_resend_finished_files(exports, object_store):
    ok(object_store, *command("dcp"), "-o", URL, "--ranks", "0", folder=exports)
    object_store.remove("models/a/" + NOTES + "share-00000")
    object_store.log.clear()
    ok(object_store, *command("dcp"), "-o", URL, folder=exports)
    assert ("begin", "models/a/__0_0.distcp") not in object_store.log
    assert ("begin", "models/a/__1_0.distcp") in object_store.log
    assert_is(object_store, exports / "dcp")


def test_export_accepts_a_copy_made_by_another_tool(exports, object_store):
    for name, body in files_of(exports / "zarr").items():
        object_store.put("models/a/" + name, body)
    assert "was there already" in ok(object_store, *command("zarr"), "-o", URL, folder=exports).stderr
    assert_is(object_store, exports / "zarr")
    object_store.put("models/a/_METADATA", b"")
    assert tool(object_store, *command("zarr"), "-o", URL, folder=exports).returncode == 4


@pytest.mark.parametrize("name", ["safetensors", "dcp", "hf-dcp", "zarr"])
def test_checkpoint_copies_in_a_bucket_equal_local_copies(name, exports, object_store, tmp_path):
    """Copies of a checkpoint on two ranks equal local copies. On a mesh of three, boxes are cut and joined in passes
    over both ranks."""
    spec = (exports / "one.yaml").read_text().replace("[7]", "[6]").replace("[2, 1500000]", "[6, 500000]")
    (tmp_path / "spec.yaml").write_text(spec)
    run_ok("gen", "spec.yaml", "-o", "from", cwd=tmp_path)
    for words in (["export", "from"], ["convert", "from", "--mesh", "a=3"]):
        local, url = f"{words[0]}-local", f"{URL}/{words[0]}"
        run_ok(*words, "--to", name, "-o", local, cwd=tmp_path)
        ok(object_store, *words, "--to", name, "-o", url, folder=tmp_path)
        assert_is(object_store, tmp_path / local, "models/a/" + words[0])
        assert "was there already" in ok(object_store, *words, "--to", name, "-o", url, folder=tmp_path).stderr


def test_convert_to_dcp_in_a_bucket_rejects_another_source(object_store, tmp_path):
    make_two_models(tmp_path)
    words = ["--to", "dcp"]
    run_ok("convert", "first/model", "-o", "local", *words, cwd=tmp_path)
    ok(object_store, "convert", "first/model", "-o", URL, *words, folder=tmp_path)
    assert_is(object_store, tmp_path / "local")
    assert "was there already" in ok(object_store, "convert", "first/model", "-o", URL, *words, folder=tmp_path).stderr
    done = tool(object_store, "convert", "second/model", "-o", URL, *words, folder=tmp_path)
    assert done.returncode == 4 and "this export with values from another source" in done.stderr
    # A file without its receipt is compared, since it could come from other elements.
    object_store.remove("models/a/" + RECORD)
    object_store.remove("models/a/" + NOTES + "share-00000")
    model = tmp_path / "first/model/model.safetensors"
    before = model.stat()
    kept = model.read_bytes()
    model.write_bytes(kept.replace(np.float32(1).tobytes(), np.float32(3).tobytes()))
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    done = tool(object_store, "convert", "first/model", "-o", URL, *words, folder=tmp_path)
    assert done.returncode == 4 and ("different elements" in done.stderr or "from another source" in done.stderr), done
    model.write_bytes(kept)
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    ok(object_store, "convert", "first/model", "-o", URL, *words, folder=tmp_path)
    assert_is(object_store, tmp_path / "local")


def test_parts_from_a_changed_source_are_a_conflict(object_store, tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "spec.yaml").write_text(
        "shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {x: 2}}\nrules: [{r: x}]\nsources: {base: {path: base}}\n"
        "modules: {w: {shape: [8, 4], axes: [r, null], init: {expr: \"source('base', 'w') + 1\"}}}\n")
    words = ["export", "spec.yaml", "--to", "dcp", "-o", URL]
    for value, ranks in ((1, "0"), (2, "1")):
        safetensors.numpy.save_file({"w": np.full((8, 4), value, np.float32)}, tmp_path / "base/model.safetensors")
        done = tool(object_store, *words, "--ranks", ranks, folder=tmp_path)
        assert done.returncode == (4 if value == 2 else 0), done
    assert "was made from `w` of source `base` with SHA-256" in done.stderr
    assert RECORD not in stored(object_store) and ".metadata" not in stored(object_store)


@pytest.mark.parametrize("name", ["safetensors", "dcp"])
def test_export_into_a_bucket_needs_little_memory_and_no_disk(name, object_store, tmp_path):
    """Exporting to a bucket needs no disk and the memory of a few parts, for 40 parts with larger and smaller boxes."""
    (tmp_path / "spec.yaml").write_text(
        "shardinit: 1\nname: m\ndtype: f32\nmodules:\n  a: {shape: [20000, 1000], init: {normal: {std: 1}}}\n"
        "  l: {repeat: {i: 200}, w: {shape: [500, 500], init: {normal: {std: 1}}}, b: {shape: [3], init: zeros}}\n"
        "  z: {shape: [20000, 1000], init: {normal: {std: 1}}}\n")
    measure = ("import resource,subprocess,sys\nsubprocess.run(sys.argv[1:], check=True)\n"
               "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    done = subprocess.run(["/usr/bin/env", "python3", "-c", measure, BINARY, "export", "spec.yaml", "--to", name, "-o",
                           URL,
                           "--jobs", "2", "--memory", "16M"], env={**os.environ, **object_store.environment},
                          cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert int(done.stdout.splitlines()[-1]) < 256 * 1024, done.stdout
    assert sum(kind == "part" for kind, _ in object_store.log) > 40
    assert list(tmp_path.iterdir()) == [tmp_path / "spec.yaml"]
    ok(object_store, "verify", URL)


def test_checksum_may_span_two_upload_parts(object_store, tmp_path):
    border, size = 8 << 20, (8 << 20) - 8192
    for _ in range(20):
        (tmp_path / "spec.yaml").write_text(
            "shardinit: 1\nname: m\ndtype: f32\nmodules:\n"
            f"  a: {{shape: [{size}], dtype: i8, init: {{constant: {{value: 3}}}}}}\n"
            f"  b: {{shape: [500000], init: {{normal: {{std: 1}}}}}}\n")
        shutil.rmtree(tmp_path / "local", ignore_errors=True)
        run_ok("export", "spec.yaml", "--to", "dcp", "-o", "local", cwd=tmp_path)
        body = (tmp_path / "local/__0_0.distcp").read_bytes()
        checksum = zlib.crc32(b"\x03" * size).to_bytes(4, "little")
        places = [match.start() for match in re.finditer(re.escape(checksum), body)]
        assert len(places) == 2  # One is before the elements, the other in the directory after them.
        if border - 4 < places[1] < border:
            break
        size += border - 2 - places[1]
    assert border - 4 < places[1] < border < len(body)
    ok(object_store, "export", "spec.yaml", "--to", "dcp", "-o", URL, folder=tmp_path)
    assert_is(object_store, tmp_path / "local")


def test_export_rejects_object_names_over_1024_bytes(exports, object_store, tmp_path):
    name = "n" * 200
    (tmp_path / "spec.yaml").write_text(f"shardinit: 1\nname: m\ndtype: f32\n"
                                        f"modules: {{{name}: {{shape: [4], init: zeros}}}}\n")
    done = tool(object_store, "export", "spec.yaml", "--to", "zarr", "-o", "s3://bucket/" + "p" * 850, folder=tmp_path)
    assert done.returncode == 2 and "has more than 1024 bytes with its prefix" in done.stderr
    assert object_store.names() == []


def test_unsupported_urls_are_rejected_without_a_request(exports, object_store):
    for words in (["gen", URL, "-o", "x"], ["program", URL, "-o", "x"]):
        done = tool(object_store, *words, folder=exports)
        assert done.returncode == 2 and "can only name a folder of tensors" in done.stderr, done
    done = tool(object_store, *command("dcp"), "-o", "gs://bucket/x", folder=exports)
    assert done.returncode == 2 and "shardinit supports only `s3://` stores" in done.stderr
    assert object_store.log == [] and not (exports / "x").exists()


@pytest.mark.parametrize("of_spec", [False, True])
@pytest.mark.parametrize("differs", ["nothing", "head", "v", "w", "tail"])
def test_object_completed_first_by_another_writer_is_compared(differs, of_spec, object_store, tmp_path):
    """An object that another writer completes first is compared, even if this run has made it as well: the other
    writer's source may have had other bytes."""
    make_two_models(tmp_path)
    (tmp_path / "spec.yaml").write_text(
        "shardinit: 1\nname: m\ndtype: f32\nsources: {s: {path: first/model}}\nmodules:\n"
        "  v: {shape: [9], init: {source: s}}\n  w: {shape: [64, 64], init: {source: s}}\n")
    words = ["export", "spec.yaml"] if of_spec else ["convert", "first/model"]
    met = []

    def other(body):
        """Returns the body of another run, with one byte of this kind changed."""
        places = [match.start() for match in re.finditer(re.escape(np.float32(1).tobytes() * 9), body)]
        at = {"nothing": None, "head": 9, "v": places[0], "w": places[-1], "tail": len(body) - 1}[differs]
        return body if at is None else body[:at] + bytes([body[at] ^ 1]) + body[at + 1:]

    def faults(request):
        if request.kind == "put" and request.key.endswith("__0_0.distcp") and not met:
            met.append(request)
            claim = hashlib.sha256(object_store.get("models/a/" + NOTES + "claim.json")).hexdigest()
            assert object_store.forward("PUT", "/bucket/" + request.key, {"x-amz-meta-export-sha256": claim},
                                        other(request.body))[0] == 200

    object_store.faults = faults
    done = tool(object_store, *words, "--to", "dcp", "-o", URL, folder=tmp_path)
    if differs == "nothing":
        assert met and done.returncode == 0 and RECORD in stored(object_store), done
        return
    assert met and done.returncode == 4 and "was made from sources with different elements" in done.stderr, done
    assert RECORD not in stored(object_store)


def test_export_writes_no_record_after_its_claim_is_lost(exports, object_store):
    """The record, which marks an export as complete, is written only if the claim still exists."""
    def faults(request):
        if request.kind == "put" and request.key.endswith("/.metadata"):
            object_store.remove("models/a/" + NOTES + "claim.json")

    object_store.faults = faults
    done = tool(object_store, *command("dcp"), "-o", URL, folder=exports)
    assert done.returncode == 4 and "has lost its" in done.stderr, done
    assert ".metadata" in stored(object_store) and RECORD not in stored(object_store)


def test_export_checks_its_claim_before_completing_each_upload(exports, object_store):
    ok(object_store, *command("dcp"), "-o", URL, folder=exports)
    claim = "models/a/" + NOTES + "claim.json"
    looks = completed = 0
    for kind, key in object_store.log:
        looks += (kind, key) == ("head", claim)
        if kind == "complete" and key != claim:
            completed += 1
            assert looks > completed, object_store.log  # one more, since the first was when it was claimed
    assert completed > 1


def test_checksum_is_right_in_an_upload_part_without_elements(object_store, tmp_path):
    """Checksums are right even if the last elements end with a part, so the next part only has the bytes after them."""
    (tmp_path / "spec.yaml").write_text(f"shardinit: 1\nname: m\ndtype: i8\nmodules:\n"
                                        f"  a: {{shape: [{(8 << 20) - 4096}], init: {{constant: {{value: 3}}}}}}\n")
    run_ok("export", "spec.yaml", "--to", "dcp", "-o", "local", cwd=tmp_path)
    body = (tmp_path / "local/__0_0.distcp").read_bytes()
    assert body[4095:4097] == b"\x00\x03" or body[4096:4098] == b"\x03\x03"
    assert body[(8 << 20) - 1] == 3 and body[8 << 20:].startswith(b"PK")
    ok(object_store, "export", "spec.yaml", "--to", "dcp", "-o", URL, folder=tmp_path)
    assert_is(object_store, tmp_path / "local")


@pytest.mark.parametrize("to", ["dcp", "zarr"])
@pytest.mark.parametrize("changed", ["a", "c", "e"])
def test_error_names_the_tensor_and_ranks_that_disagree(to, changed, object_store, tmp_path):
    """If a tensor of two sources has other values for one rank, the error names the tensor and both ranks."""
    names = "abcde"
    source = {name: "t" if name > "b" else "s" for name in names}
    (tmp_path / "spec.yaml").write_text(
        "shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {x: 2}}\nrules: [{r: x}]\n"
        "sources: {s: {path: one}, t: {path: two}}\nmodules:\n"
        + "".join(
            f"  {n}: {{shape: [8, 4], axes: [r, null], init: {{expr: \"source('{source[n]}', '{n}') + 1\"}}}}\n"
            for n in names
        )
    )

    def make(value):
        for folder in ("one", "two"):
            (tmp_path / folder).mkdir(exist_ok=True)
            values = {n: np.full((8, 4), value if n == changed else 7, np.float32) for n in names}
            safetensors.numpy.save_file(values, tmp_path / folder / "model.safetensors")

    words = ["export", "spec.yaml", "--to", to, "-o", URL]
    for value, ranks, code in ((1, "0", 0), (2, "1", 4)):
        make(value)
        done = tool(object_store, *words, "--ranks", ranks, folder=tmp_path)
        assert done.returncode == code, done
    found = re.search(
        r"`: rank (\d) was made from `(\w)` of source `(\w)` with SHA-256 (\w{12}), but rank (\d) with (\w{12})\n",
        done.stderr,
    )
    assert found and (found[2], found[3]) == (changed, source[changed]), done
    shares = {
        name: json.loads(object_store.get("models/a/" + name))
        for name in stored(object_store)
        if name.startswith(NOTES + "share-")
    }
    ranks = {}
    for name, receipt in shares.items():
        for _, tensor, sha256 in receipt["sources"]:
            if tensor == changed:
                ranks.setdefault(sha256[:12], set()).add(int(name.rpartition("-")[2]) % 2)
    assert ranks == {found[4]: {int(found[1])}, found[6]: {int(found[5])}} and found[1] != found[5], (found, ranks)


def test_completion_aborts_only_uploads_of_the_export(exports, object_store):
    ok(object_store, *command("zarr"), "-o", URL, "--ranks", "0", folder=exports)
    files = sorted(files_of(exports / "zarr"))
    for name in (files[0], files[-1], RECORD, NOTES + "claim.json"):
        assert object_store.forward("POST", f"/bucket/models/a/{name}?uploads")[0] == 200
    others = [
        f"models/a/{files[0]}x",
        "models/a/x/" + files[0],
        "models/" + files[0],
        "models/ab/" + RECORD,
        "models/a/plan.json",
    ]
    for name in others:
        assert object_store.forward("POST", f"/bucket/{name}?uploads")[0] == 200
    ok(object_store, *command("zarr"), "-o", URL, folder=exports)
    assert sorted(object_store.uploads()) == sorted(others)


def test_rank_with_a_receipt_but_no_file_counts_as_missing(exports, object_store):
    """A rank whose receipt exists but whose file is lost counts as missing, whatever the number of its share."""
    ok(object_store, *command("zarr"), "-o", URL, folder=exports)
    whole = stored(object_store)
    receipts = {name: json.loads(body) for name, body in whole.items() if name.startswith(NOTES + "share-")}
    assert len(receipts) > 2
    record = json.loads(whole[RECORD])
    with_elements = {f"models/a/{file['file']}" for file in record["files"] if file["boxes"]}
    for name, receipt in receipts.items():
        share = int(name.rpartition("-")[2])
        if not 2 <= share < 6:
            continue  # The first shares have the numbers of their ranks.
        lost = record["files"][receipt["files"][0]["file"]]["file"]
        for gone in (lost, RECORD):
            object_store.remove("models/a/" + gone)
        done = json.loads(
            ok(
                object_store, *command("zarr"), "-o", URL, "--ranks", str(1 - share % 2), "--json", folder=exports
            ).stdout
        )
        assert done["missing_ranks"] == [share % 2], (share, done)
        object_store.log.clear()
        ok(object_store, *command("zarr"), "-o", URL, "--ranks", str(share % 2), folder=exports)
        assert with_elements & set(written(object_store)) == {f"models/a/{lost}"}
    assert stored(object_store) == whole


@pytest.mark.parametrize("last", [1, 3])
def test_export_resends_only_the_lost_files_of_a_rank(last, exports, object_store):
    """Without receipts, only a rank's lost files are sent again, whichever of its files are lost."""
    ok(object_store, *command("zarr"), "-o", URL, folder=exports)
    whole = stored(object_store)
    for name in whole:
        if name.startswith(NOTES + "share-"):
            files = [entry["file"] for entry in json.loads(whole[name])["files"]]
            share = int(name.rpartition("-")[2])
            object_store.remove("models/a/" + name)
            if share % 4 == last:
                for file in files:
                    object_store.remove("models/a/" + json.loads(whole[RECORD])["files"][file]["file"])
    object_store.remove("models/a/" + RECORD)
    lost = set(whole) - set(stored(object_store))
    object_store.log.clear()
    ok(object_store, *command("zarr"), "-o", URL, "--ranks", "1", folder=exports)
    others = {name for name in lost if name.startswith(NOTES + "share-") and int(name.rpartition("-")[2]) % 2 == 0}
    of_rank = lost - others - {RECORD}
    assert {key.removeprefix("models/a/") for key in written(object_store)} - {NOTES + "claim.json"} == of_rank
    ok(object_store, *command("zarr"), "-o", URL, folder=exports)
    assert stored(object_store) == whole


@pytest.mark.parametrize("name", ["dcp", "zarr"])
def test_json_report_of_a_part_is_the_same_in_bucket_and_folder(name, exports, object_store, tmp_path):
    for words in (["--ranks", "1"], ["--ranks", "1"], ["--part", "1/3"], ["--part", "0/3"], ["--part", "2/3"], []):
        there = json.loads(ok(object_store, *command(name), "-o", URL, *words, "--json", folder=exports).stdout)
        here = json.loads(run_ok(*command(name), "-o", tmp_path / "out", *words, "--json", cwd=exports).stdout)
        for each in (there, here):
            for changes in ("folder", "seconds", "bytes_per_second"):
                each.pop(changes, None)
        assert there == here, words


def test_export_recognizes_objects_of_another_export(exports, object_store):
    """Objects of another export are recognized by their metadata and their size; so are receipts."""
    ok(object_store, *command("dcp"), "-o", URL, folder=exports)
    whole = stored(object_store)
    claim = hashlib.sha256(whole[NOTES + "claim.json"]).hexdigest()
    body = whole["__1_0.distcp"]
    for name in (RECORD, NOTES + "share-00001"):
        object_store.remove("models/a/" + name)
    for given, metadata, said in (
        (body, {}, "no run of this export wrote it"),
        (body, {"export-sha256": "0" * 64}, "belongs to another export"),
        (body[1:], {"export-sha256": claim}, f"has {len(body) - 1} bytes instead of {len(body)}"),
        (body, {"export-sha256": claim}, ""),
    ):
        headers = {f"x-amz-meta-{key}": value for key, value in metadata.items()}
        assert object_store.forward("PUT", "/bucket/models/a/__1_0.distcp", headers, given)[0] == 200
        done = tool(object_store, *command("dcp"), "-o", URL, folder=exports)
        assert done.returncode == (4 if said else 0), (metadata, done)
        assert not said or f"__1_0.distcp` exists, and {said}\n" in done.stderr, (metadata, done)
    assert stored(object_store) == whole
    receipt = json.loads(whole[NOTES + "share-00001"])
    receipt["export_sha256"] = "0" * 64
    receipt["files"][0]["digests"].reverse()
    object_store.put("models/a/" + NOTES + "share-00001", json.dumps(receipt).encode())
    object_store.remove("models/a/" + RECORD)
    done = tool(object_store, *command("dcp"), "-o", URL, folder=exports)
    assert done.returncode == 4 and "share-00001` already exists with different content" in done.stderr, done
    object_store.remove("models/a/" + NOTES + "share-00001")
    ok(object_store, *command("dcp"), "-o", URL, folder=exports)
    assert stored(object_store) == whole
    # Only the record identifies the export of all other files: without the optimizer, it is another export.
    object_store.remove("models/a/" + NOTES + "claim.json")
    done = tool(object_store, "export", "one.yaml", "--to", "dcp", "-o", URL, folder=exports)
    assert done.returncode == 4 and "holds another export" in done.stderr, done
    assert "was there already" in ok(object_store, *command("dcp"), "-o", URL, folder=exports).stderr


@pytest.mark.parametrize("changed", [["two.yaml"], ["one.yaml", "--only", "**"], ["one.yaml", "--set", "name=other"]])
def test_export_conflicts_with_a_copy_of_another_export(changed, exports, object_store):
    """A copy of another export, even one with files of the same sizes, is a conflict. Another tool copied its files
    without the notes of a run."""
    for name, data in files_of(exports / "hf-dcp").items():
        object_store.put(f"models/a/{name}", data)
    before = stored(object_store)
    ok(object_store, "export", "one.yaml", "--to", "hf-dcp", "-o", URL, folder=exports)
    assert stored(object_store) == before
    done = tool(object_store, "export", *changed, "--to", "hf-dcp", "-o", URL, folder=exports)
    assert done.returncode == 4 and "another export" in done.stderr, done
    assert stored(object_store) == before
