"""Each command prints and makes the same from a folder of tensors in a bucket as from a copy on disk. This holds
whoever wrote the folder and whatever the network does. No command mixes two states of an object."""

import json
import re
import shutil

import pytest
from bucket_tools import Faults, compare, files_of, ok, put, tool
from support import run_ok, tree_of
from test_every_fault import SOURCED
from test_full_disk import FOLDERS, KERAS, SPEC

URL = "s3://bucket/models/in"
DEVICES = ["gen", "spec.yaml", "--set", "mesh.devices=[5, 3]", "-o"]
WHOLE = {"gen": FOLDERS["gen"], "devices": DEVICES, "full": ["gen", "spec.yaml", "--replicas", "full", "-o"],
         **{form: ["export", "spec.yaml", "--to", form, "-o"] for form in ("safetensors", "dcp", "hf-dcp", "zarr")}}
# Commands that print something about a folder `in`, and commands that make a folder, named by their last word.
PRINTED = [["digest", "in"], ["stats", "in", "--json"], ["inspect", "in"], ["inspect", "in", "--json"],
           ["diff", "in", "in", "--values"], ["diff", "other", "in", "--values", "--json"],
           ["verify", "in", "--spec", "spec.yaml"]]
MADE = [["export", "in", "--to", "dcp", "-o"], ["convert", "in", "--to", "safetensors", "-o"],
        ["convert", "in", "--to", "hdf5", "--dtype", "bf16", "-o"],
        ["convert", "in", "--to", "hdf5", "--sharding", "fsdpv2", "--mesh", "fsdp=3", "-o"],
        ["reshard", "in", "--mesh", "a=4", "-o"]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folders")
    (folder / "spec.yaml").write_text(SPEC)
    (folder / "other.yaml").write_text(SPEC.replace("std: 0.5", "std: 0.25"))
    (folder / "sourced.yaml").write_text(SOURCED)
    (folder / "keras.yaml").write_text(KERAS)
    run_ok("gen", "other.yaml", "-o", "other", cwd=folder)
    for name, words in WHOLE.items():
        run_ok(*words, name, cwd=folder)
    return folder


@pytest.mark.parametrize("name", WHOLE)
def test_commands_treat_a_bucket_like_a_local_folder(name, folders, object_store, tmp_path):
    shutil.copytree(folders, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).rename(tmp_path / "in")
    put(object_store, tmp_path / "in")
    codes = [compare(object_store, words, tmp_path) for words in [*PRINTED, *MADE]]
    is_export = name not in ("gen", "devices", "full")  # An export has no mesh.
    assert codes == [0, 0, 0, 0, 0, 1, 0, *[0] * (len(MADE) - 1), 2 if is_export else 0]
    other = tool(object_store, "verify", URL, "--spec", "other.yaml", folder=folders)
    assert other.returncode == 1 and "w has other values" in other.stderr, other
    assert object_store.refused == [] and not [kind for kind,
                                               _ in object_store.log if kind not in ("get", "head", "list")]


@pytest.mark.parametrize("name", ["gen", "safetensors"])
def test_convert_copies_from_bucket_to_bucket(name, folders, object_store, tmp_path):
    shutil.copytree(folders / name, tmp_path / "in")
    put(object_store, tmp_path / "in")
    words = ["--to", "dcp", "--sharding", "fsdpv2", "--mesh", "fsdp=3"]
    run_ok("convert", tmp_path / "in", *words, "-o", tmp_path / "out")
    for part in range(3):
        ok(object_store, "convert", URL, *words, "-o", "s3://bucket/models/out", "--part", f"{part}/3")
    object_store.download("models/out", tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy/.shardinit-export")
    assert tree_of(tmp_path / "copy") == tree_of(tmp_path / "out")
    for out in (URL, URL + "/", URL + "/in/it"):
        done = tool(object_store, "convert", URL, *words, "-o", out)
        assert done.returncode == 2 and "is in `s3://bucket/models/in`" in done.stderr, done
    assert tool(object_store, "convert", URL, *words, "-o", URL + "-other").returncode == 0


def test_convert_reads_config_json_in_a_bucket(folders, object_store, tmp_path):
    """`convert` reads the config.json next to the weights, which identifies the model."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
              "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    run_ok("export", "config.json", "--to", "safetensors", "--layout", "hf", "-o", tmp_path / "in", cwd=tmp_path)
    (tmp_path / "in/config.json").unlink()
    put(object_store, tmp_path / "in")
    words = ["convert", "in", "--to", "dcp", "--layout", "torchtitan", "-o"]
    assert compare(object_store, words, tmp_path) == 2  # Nothing identifies the model.
    shutil.copy(tmp_path / "config.json", tmp_path / "in")
    put(object_store, tmp_path / "in")
    assert compare(object_store, words, tmp_path) == 0


def test_specs_read_sources_in_buckets(folders, object_store, tmp_path):
    put(object_store, folders / "safetensors")
    spec = tmp_path / "sourced.yaml"
    spec.write_text(SOURCED.replace("path: weights", f"path: {URL}"))
    run_ok("gen", "sourced.yaml", "--source", "old=safetensors", "-o", tmp_path / "local", cwd=folders)
    ok(object_store, "gen", spec, "-o", tmp_path / "out")
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "local")
    ok(object_store, "gen", "sourced.yaml", "--source", f"old={URL}", "-o", tmp_path / "again", folder=folders)
    assert tree_of(tmp_path / "again") == tree_of(tmp_path / "local")
    done = tool(object_store, "gen", "sourced.yaml", "--source", "old=s3://bucket/none", "-o", tmp_path / "none",
                folder=folders)
    assert done.returncode == 2 and "`s3://bucket/none` is not a checkpoint and contains no" in done.stderr, done
    done = tool(object_store, "gen", "sourced.yaml", "--source", "old=gs://bucket/x", "-o", tmp_path / "none",
                folder=folders)
    assert done.returncode == 2 and "shardinit supports only `s3://` stores" in done.stderr, done
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["gen", "safetensors", "dcp", "zarr"])
@pytest.mark.parametrize("seed", range(2))
def test_convert_from_a_bucket_survives_random_store_faults(name, seed, folders, object_store, tmp_path):
    put(object_store, folders / name)
    shutil.copytree(folders / name, tmp_path / "in")
    object_store.faults = Faults(seed, 0.4)
    words = ["convert", "in", "--to", "hdf5", "--sharding", "fsdpv2", "--mesh", "fsdp=3", "-o"]
    assert compare(object_store, words, tmp_path, AWS_MAX_ATTEMPTS="30") == 0 and object_store.faults.made


@pytest.mark.parametrize("name", ["gen", "safetensors", "zarr"])
def test_convert_fails_if_an_object_is_replaced_meanwhile(name, folders, object_store, tmp_path):
    """If a file is replaced or removed at any read, the command fails and leaves nothing."""
    run_ok("gen" if name == "gen" else "export", "other.yaml", *(["--to", name] if name != "gen" else []),
           "-o", tmp_path / "other", cwd=folders)
    file = {"gen": "ranks/rank-00000.h5", "safetensors": "model.safetensors", "zarr": "w/0.0"}[name]
    words = ["convert", URL, "--to", "dcp", "-j", "1", "-o", tmp_path / "out"]
    put(object_store, folders / name)
    ok(object_store, *words)
    (tmp_path / "out").rename(tmp_path / "whole")
    reads = sum(kind == "get" for kind, _ in object_store.log)
    changed = 0
    for at in range(1, reads + 1):
        for is_gone in (False, True):
            put(object_store, folders / name)
            count = 0

            def replace(request):
                nonlocal count
                count += request.kind == "get"
                if request.kind == "get" and count == at:
                    if is_gone:
                        object_store.remove(f"models/in/{file}")
                    else:
                        object_store.put(f"models/in/{file}", (tmp_path / "other" / file).read_bytes())

            object_store.faults = replace
            done = tool(object_store, *words)
            object_store.faults = None
            if done.returncode == 0:  # It had read the whole file.
                assert tree_of(tmp_path / "out") == tree_of(tmp_path / "whole")
                shutil.rmtree(tmp_path / "out")
            else:
                changed += 1
                lacks_rank = is_gone and done.returncode == 2 and "rank 0 is missing" in done.stderr
                assert lacks_rank or done.returncode == 3 and "changed while it was read" in done.stderr, done
                assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "whole"]
    assert changed > 1


def test_digest_detects_changes_if_the_store_ignores_if_match(folders, object_store, tmp_path):
    run_ok("export", "other.yaml", "--to", "safetensors", "-o", tmp_path / "other", cwd=folders)
    put(object_store, folders / "safetensors")
    object_store.ignores = ("if-match",)
    ok(object_store, "digest", URL)

    def replace(request):
        if request.kind == "get" and request.key.endswith("model.safetensors"):
            put(object_store, tmp_path / "other")

    object_store.faults = replace
    done = tool(object_store, "digest", URL)
    assert done.returncode == 3 and "model.safetensors` changed while it was read" in done.stderr, done


@pytest.mark.parametrize("form", ["safetensors", "dcp", "hf-dcp", "zarr"])
def test_commands_reject_an_unfinished_export_in_a_bucket(form, folders, object_store, tmp_path):
    """Commands reject an unfinished export, although its files have final names and may look like a smaller model."""
    words = ["export", "spec.yaml", "--to", form, "--max-shard-size", "3000"][:6 if form == "safetensors" else 4]
    ok(object_store, *words, "-o", URL, "--ranks", "0", folder=folders)
    object_store.download("models/in", tmp_path / "copy")
    spec = tmp_path / "sourced.yaml"
    spec.write_text(SOURCED.replace("path: weights", f"path: {URL}"))
    for place in (URL, tmp_path / "copy"):
        for words in (["convert", place, "--to", "dcp", "-o", tmp_path / "out"], ["inspect", place], ["digest", place],
                      ["verify", place, "--spec", "spec.yaml"],
                      ["gen", spec, "--source", f"old={place}", "-o", tmp_path / "out"]):
            done = tool(object_store, *words, folder=folders)
            assert done.returncode == 2 and f"`{place}` is an unfinished export" in done.stderr, done
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["gen", "devices", "safetensors", "dcp", "hf-dcp", "zarr"])
def test_convert_detects_damaged_objects(name, folders, object_store, tmp_path):
    put(object_store, folders / name)
    words = ["convert", URL, "--to", "dcp", "-o", tmp_path / "out"]
    file = {"gen": "ranks/rank-00001.h5", "devices": "ranks/rank-00000.h5", "safetensors": "model.safetensors",
            "dcp": "__0_0.distcp", "hf-dcp": "shard-00001-model-00001-of-00001.safetensors", "zarr": "w/0.0"}[name]
    data = bytearray((folders / name / file).read_bytes())
    if name in ("gen", "devices"):
        at = json.loads((folders / name / file).with_suffix(".json").read_text())["boxes"][0]["file_offset"]
    else:
        files = json.loads((folders / name / "shardinit-export.json").read_text())["files"]
        at = next(each["boxes"][0]["file_offset"] for each in files if each["file"] == file)
    data[at] ^= 1
    object_store.put(f"models/in/{file}", bytes(data))
    done = tool(object_store, *words)
    assert done.returncode == 1 and f"`{URL}` is damaged" in done.stderr and not (tmp_path / "out").exists(), done


def test_reshard_of_one_rank_reads_only_its_bytes_from_a_bucket(object_store, tmp_path):
    (tmp_path / "wide.yaml").write_text("""
shardinit: 1
name: wide
dtype: f32
mesh: {axes: {a: 4}}
modules: {w: {shape: [64, 4096], shard: [null, a], init: {normal: {std: 1}}}}
""")
    run_ok("gen", "wide.yaml", "-o", "in", cwd=tmp_path)
    put(object_store, tmp_path / "in")
    asked = []

    def note(request):
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
        if found and request.key.endswith(".h5"):
            asked.append(int(found[2]) - int(found[1]) + 1)

    object_store.faults = note
    ok(object_store, "reshard", URL, "--mesh", "a=16", "--ranks", "5", "-o", tmp_path / "out")
    assert sum(asked) < 4 * 64 * 1024 * 2


def test_convert_explains_what_is_wrong_in_a_bucket(folders, object_store, tmp_path):
    words = ["--to", "dcp", "-o", tmp_path / "out"]
    done = tool(object_store, "convert", "s3://bucket/nothing", *words)
    assert done.returncode == 2 and "`s3://bucket/nothing` is not a checkpoint and contains no safetensors files" in done.stderr
    put(object_store, folders / "gen")
    object_store.remove("models/in/ranks/rank-00001.json")
    done = tool(object_store, "convert", URL, *words)
    assert done.returncode == 2 and "is unfinished: rank 1 is missing" in done.stderr, done
    object_store.remove("models/in/ranks/rank-00000.json")
    done = tool(object_store, "convert", URL, *words)
    assert done.returncode == 2 and "is unfinished: rank 0 is missing" in done.stderr, done
    # A file of a checkpoint is not a source of other tensors.
    done = tool(object_store, "convert", f"{URL}/ranks/rank-00000.h5", *words)
    assert done.returncode == 2 and "is not a checkpoint and contains no" in done.stderr, done
    for words in (["validate", URL], ["gen", URL, "-o", "x"], ["explain", URL, "w"]):
        done = tool(object_store, *words)
        assert done.returncode == 2 and "can only name a folder of tensors" in done.stderr, done
    # Objects that represent folders, as stores' consoles create them, are ignored.
    object_store.reset()
    put(object_store, folders / "safetensors")
    object_store.put("models/in/", b"")
    object_store.put("models/in/empty/", b"")
    assert ok(object_store, "digest", URL).stdout == run_ok("digest", folders / "safetensors").stdout


def test_source_url_may_end_with_slashes(folders, object_store, tmp_path):
    shutil.copytree(folders, tmp_path, dirs_exist_ok=True)
    for name in ("gen", "dcp"):
        put(object_store, folders / name)
        for words in (["verify", "in"], *PRINTED[:5], PRINTED[-1]):
            given = [[url if word == "in" else word for word in words] for url in (URL, URL + "//")]
            plain, ends = (ok(object_store, *each, folder=tmp_path).stdout for each in given)
            assert plain == ends, words
        ok(object_store, "convert", URL + "/", "--to", "zarr", "-o", f"s3://bucket/made/{name}/")
        assert "intact" in ok(object_store, "verify", f"s3://bucket/made/{name}/").stdout
        object_store.reset()


def test_one_command_reads_two_buckets(folders, object_store, tmp_path):
    """If two buckets have objects of the same name, both are read from their own bucket."""
    run_ok("export", "other.yaml", "--to", "safetensors", "-o", tmp_path / "other", cwd=folders)
    object_store.make_bucket("second")
    put(object_store, folders / "safetensors")
    for name, data in files_of(tmp_path / "other").items():
        object_store.put(f"models/in/{name}", data, bucket="second")
    done = tool(object_store, "diff", URL, "s3://second/models/in", "--values")
    assert done.returncode == 1 and "elements differ" in done.stdout, done


def test_header_longer_than_one_request_is_read(object_store, tmp_path):
    """A header is read completely if it is longer than the first request."""
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"__metadata__": {"note": "x" * (17 << 20)}, "w": entry}).encode()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(range(8)))
    put(object_store, tmp_path / "in")
    assert compare(object_store, ["digest", "in"], tmp_path) == 0


def test_size_limit_of_small_files_applies_in_buckets(folders, object_store, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/latest_checkpointed_iteration.txt").write_text("1" * 65)
    put(object_store, tmp_path / "in")
    assert compare(object_store, ["digest", "in"], tmp_path) == 2
    assert "is larger than 64 bytes" in tool(object_store, "digest", URL).stderr


@pytest.mark.parametrize("form", ["hdf5", "dcp"])
def test_ranks_of_a_replaced_object_are_a_conflict(form, folders, object_store, tmp_path):
    """Ranks of a replaced object conflict with earlier ranks, even if the object has the old name and size."""
    source, out = folders / "safetensors/model.safetensors", "s3://bucket/models/out"
    object_store.put("models/in/model.safetensors", source.read_bytes())
    words = ["convert", URL, "--to", form, "--sharding", "fsdpv2", "--mesh", "fsdp=2", "-o", out, "--ranks"]
    ok(object_store, *words, "0")
    data = bytearray(source.read_bytes())
    data[-1] ^= 1
    object_store.put("models/in/model.safetensors", bytes(data))
    done = tool(object_store, *words, "1")
    assert done.returncode == 4 and "values from another source" in done.stderr, done
