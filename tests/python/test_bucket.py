"""Checkpoints in buckets have the files of a local checkpoint as objects, whatever the store, the network, kills and
other writers do. The store checks every signature and body (object_store.py)."""

import hashlib
import http.server
import json
import os
import random
import re
import shutil
import ssl
import subprocess
import threading
import time
import urllib.parse

import pytest
from bucket_tools import Faults, Once, begin, compare, files_of, make_two_models, ok, put, tool
from lying_store import lying_store
from object_store import KEY, REGION, SECRET
from support import AWKWARD, BINARY, ROOT, TINY, run_ok, run_tool

URL = "s3://bucket/models/a"

# Ranks of several parts: boxes that end within parts, small boxes between, and values that need the whole tensor.
SPEC = """
shardinit: 1
name: parts
dtype: f32
seed: {seed}
mesh: {{axes: {{a: 2}}}}
rules: [{{x: a}}]
init: {{n: {{normal: {{std: 0.02}}}}}}
modules:
  large: {{shape: [6000, 1000], axes: [x, null], init: n}}
  small: {{shape: [7], axes: [x], init: n, dtype: bf16}}
  square: {{shape: [600, 600], axes: [x, null], init: {{orthogonal: {{}}}}}}
  wide: {{shape: [2, 1500000], axes: [x, null], init: n, dtype: f64}}
  tail: {{shape: [1000], axes: [null], init: zeros}}
uneven: chunk
"""


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    """Returns a folder with two specs of different values and the local checkpoint of each."""
    folder = tmp_path_factory.mktemp("specs")
    for name, seed in (("one", 1), ("two", 2)):
        (folder / f"{name}.yaml").write_text(SPEC.format(seed=seed))
        run_ok("gen", f"{name}.yaml", "-o", name, cwd=folder)
    (folder / "awkward.yaml").write_text(AWKWARD)
    return folder


def assert_is(store, folder, prefix="models/a"):
    """Asserts that the objects are the files of the local checkpoint, without any others."""
    objects = {key[len(prefix) + 1:]: store.get(key) for key in store.names(prefix + "/")}
    files = files_of(folder)
    assert sorted(objects) == sorted(files)
    assert [name for name in files if objects[name] != files[name]] == []
    assert store.uploads() == [] and store.refused == []


def test_bucket_objects_equal_the_files_of_a_local_checkpoint(specs, object_store):
    done = ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    assert f"{URL}: " in done.stdout and "complete" in done.stdout
    assert {"begin", "part", "complete"} <= {kind for kind, _ in object_store.log}
    assert_is(object_store, specs / "one")
    assert "intact: 2 ranks" in ok(object_store, "verify", URL).stdout
    assert "2 of 2 ranks are there, complete" in ok(object_store, "status", URL).stdout
    object_store.log.clear()
    assert "already" in ok(object_store, "gen", "one.yaml", "-o", URL + "/", folder=specs).stderr
    assert not {"begin", "part", "complete"} & {kind for kind, _ in object_store.log}
    assert_is(object_store, specs / "one")


@pytest.mark.parametrize("prefix", ["a", "", "x y/é+&=%'()*!~:@?#$,;", "a.b/c-d_e"])
def test_bucket_prefixes_are_encoded_and_signed(prefix, specs, object_store, tmp_path):
    run_ok("gen", "awkward.yaml", "-o", tmp_path / "local", cwd=specs)
    url = "s3://bucket" + (prefix and "/" + prefix)
    ok(object_store, "gen", "awkward.yaml", "-o", url, folder=specs)
    objects = {key[len(prefix) + 1 if prefix else 0:]: object_store.get(key) for key in object_store.names()}
    assert objects == files_of(tmp_path / "local") and object_store.refused == []
    ok(object_store, "verify", url)


def test_gen_writes_single_ranks_into_a_bucket(specs, object_store):
    ok(object_store, "gen", "one.yaml", "-o", URL, "--ranks", "1", folder=specs)
    assert "1 of 2 ranks is there, unfinished\nmissing: 0" in ok(object_store, "status", URL).stdout.replace(" are ",
                                                                                                             " is ")
    assert json.loads(ok(object_store, "status", URL, "--json").stdout)["missing_ranks"] == "0"
    early = tool(object_store, "finalize", URL)
    assert early.returncode == 3 and "1 of 2 ranks have no valid receipt: 0" in early.stderr
    assert tool(object_store, "verify", URL).returncode == 2
    dry = ok(object_store, "gen", "one.yaml", "-o", URL, "--dry-run", folder=specs)
    assert "1 of 2 ranks" in dry.stdout and "1 rank there already" in dry.stdout
    ok(object_store, "gen", "one.yaml", "-o", URL, "--part", "0/2", folder=specs)
    assert_is(object_store, specs / "one")
    for name in ("manifest.json", "index.h5"):
        object_store.remove("models/a/" + name)
    assert "not finalized" in ok(object_store, "status", URL).stdout
    ok(object_store, "finalize", URL)
    assert_is(object_store, specs / "one")


def test_gen_of_another_plan_conflicts_and_changes_no_object(specs, object_store):
    ok(object_store, "gen", "one.yaml", "-o", URL, "--ranks", "0", folder=specs)
    before = {name: object_store.get(name) for name in object_store.names()}
    for words in ([], ["--dry-run"], ["--ranks", "1"]):
        done = tool(object_store, "gen", "two.yaml", "-o", URL, *words, folder=specs)
        assert done.returncode == 4 and "holds another plan: `seed` is `1` there, but `2` here" in done.stderr
    assert {name: object_store.get(name) for name in object_store.names()} == before
    object_store.remove("models/a/plan.json")
    object_store.put("models/a/manifest.json", b"{}")
    done = tool(object_store, "gen", "two.yaml", "-o", URL, folder=specs)
    assert done.returncode == 4 and "exists without the plan.json" in done.stderr


@pytest.mark.parametrize("index", ["always", "never"])
def test_bucket_checkpoint_has_index_and_devices(index, specs, object_store, tmp_path):
    text = (specs / "awkward.yaml").read_text().replace("{axes: {a: 2, b: 2}}",
                                                        "{axes: {a: 2, b: 2}, devices: [3, 1, 2, 0]}")
    (tmp_path / "spec.yaml").write_text(text)
    run_ok("gen", "spec.yaml", "-o", "local", "--index", index, cwd=tmp_path)
    ok(object_store, "gen", "spec.yaml", "-o", URL, "--index", index, folder=tmp_path)
    assert "equal to" in ok(object_store, "verify", URL, "--spec", "spec.yaml", folder=tmp_path).stdout
    assert ("devices.json" in files_of(tmp_path / "local")) and ("index.h5" in files_of(tmp_path / "local")) == (index == "always")
    assert_is(object_store, tmp_path / "local")
    ok(object_store, "verify", URL)
    other = tool(object_store, "gen", specs / "awkward.yaml", "-o", URL)
    assert other.returncode == 4 and "devices.json" in other.stderr
    object_store.remove("models/a/devices.json")
    done = tool(object_store, "verify", URL)
    assert done.returncode == 1 and "devices.json: is missing" in done.stderr


@pytest.mark.parametrize("seed", range(3))
def test_gen_survives_random_store_faults(seed, specs, object_store):
    object_store.faults = Faults(seed)
    ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    ok(object_store, "verify", URL)
    ok(object_store, "status", URL)
    assert len(object_store.faults.made) >= 4
    object_store.faults = None
    ok(object_store, "finalize", URL)
    assert_is(object_store, specs / "one")


@pytest.mark.parametrize("kind, fault", [
    ("put", "lose"), ("put", 409), ("put", 412), ("begin", "lose"), ("part", "lose"), ("part", "drop"),
    ("complete", "lose"),
    ("complete", "error200"), ("complete", "blank200"), ("complete", "empty200"), ("begin", "empty200"),
    ("complete", 409), ("complete", 412), ("complete", 500), ("complete", "drop"), ("head", 500),
    ("get", "drop"), ("list", 503), ("uploads", 503), ("end", 503)])
def test_gen_survives_each_kind_of_store_fault(kind, fault, specs, object_store):
    """The checkpoint is correct even if every request of one kind fails once for each object."""
    once = Once(kind, fault)
    object_store.faults = once
    done = tool(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    object_store.faults = None
    if done.returncode != 0:  # A store that answers 412 without an object is broken, so the tool does not trust it.
        assert fault == 412 and done.returncode in (2, 3, 4), done
        ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    assert once.met or kind in ("list",)
    ok(object_store, "finalize", URL)
    assert_is(object_store, specs / "one")


def test_store_that_never_answers_is_an_error(specs, object_store):
    object_store.faults = lambda request: 503
    done = tool(object_store, "gen", "one.yaml", "-o", URL, folder=specs, AWS_MAX_ATTEMPTS="3")
    assert done.returncode == 3 and "503 SlowDown: injected" in done.stderr and len(object_store.log) == 3
    object_store.faults = lambda request: "drop"
    done = tool(object_store, "status", URL, AWS_MAX_ATTEMPTS="2")
    assert done.returncode == 3 and "cannot read `s3://bucket/models/a/plan.json`: " in done.stderr
    done = tool(object_store, "status", URL, AWS_MAX_ATTEMPTS="1", AWS_ENDPOINT_URL="http://127.0.0.1:1")
    assert done.returncode == 3 and "onnect" in done.stderr


@pytest.mark.parametrize("seed", range(4))
def test_killed_writers_of_two_plans_leave_one_complete_plan(seed, specs, object_store):
    """Whichever writers are killed, the first plan is finished and the writers of the other plan report a conflict."""
    chance = random.Random(seed)
    object_store.faults = Faults(seed, 0.05)
    running, kills = {}, 0
    ends = {"one": [], "two": []}
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        for number in range(3):
            if number in running:
                continue
            plan = ("one", "one", "two")[number] if seed % 2 else ("one", "two", "two")[number]
            ranks = [[], ["--ranks", "0"], ["--ranks", "1"]][chance.randrange(3)]
            running[number] = plan, begin(object_store, "gen", f"{plan}.yaml", "-o", URL, *ranks, folder=specs)
        time.sleep(chance.random() * 0.4)
        for number, (plan, process) in list(running.items()):
            if process.poll() is None and kills < 12 and chance.random() < 0.4:
                process.kill()
                kills += 1
            if process.poll() is not None:
                process.communicate()
                ends[plan].append(process.returncode)
                del running[number]
        # Some writers of both plans have exited without a kill, and one plan is complete.
        if kills >= 12 and object_store.names("models/a/manifest.json") and all(
                any(code >= 0 for code in codes) for codes in ends.values()):
            break
    for _, process in running.values():
        process.communicate()
    object_store.faults = None
    first = "one" if json.loads(object_store.get("models/a/plan.json"))["seed"] == 1 else "two"
    other = "two" if first == "one" else "one"
    assert 0 not in ends[other] and 4 in ends[other], ends
    assert set(ends[first]) <= {0, -9}, ends
    ok(object_store, "finalize", URL)
    assert_is(object_store, specs / first)


def test_sigkill_loses_no_finished_rank_in_a_bucket(specs, object_store):
    ended = []

    def faults(request):
        if request.kind != "complete" or "/ranks/" not in request.key:
            return None
        ended.append(request.key)
        if len(ended) == 1:
            return None
        process.kill()
        return "drop"

    object_store.faults = faults
    process = begin(object_store, "gen", "one.yaml", "-o", URL, "--jobs", "1", folder=specs)
    process.communicate()
    assert len(ended) == 2 and process.returncode == -9
    done, killed = ended
    for _ in range(100):  # The store may finish the first upload after its client is gone.
        if object_store.uploads() == [killed]:
            break
        time.sleep(0.1)
    assert object_store.uploads() == [killed]
    object_store.faults = None
    object_store.log.clear()
    ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    # The finished rank may have no receipt, but its file is not sent again.
    assert ("complete", killed) in object_store.log and ("complete", done) not in object_store.log
    assert_is(object_store, specs / "one")  # The killed run's upload is gone.


def test_gen_into_a_bucket_reports_an_interrupt_and_resumes(specs, object_store):
    def faults(request):
        if request.kind == "part":
            process.terminate()
            return "slow"
        return None

    object_store.faults = faults
    process = begin(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -15 and "interrupted" in errors
    object_store.faults = None
    ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    assert_is(object_store, specs / "one")


def test_gen_ignores_object_metadata_of_other_tools(specs, object_store):
    """Metadata that other tools add to objects, such as times when they copy, is ignored."""
    headers = {"x-amz-meta-mtime": "1700000000"}
    assert object_store.forward("PUT", "/bucket/models/a/plan.json", headers,
                                (specs / "one/plan.json").read_bytes())[0] == 200
    ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    assert_is(object_store, specs / "one")


def test_gen_does_not_resend_a_rank_without_a_receipt(specs, object_store):
    ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    for name in ("manifest.json", "ranks/rank-00000.json"):
        object_store.remove("models/a/" + name)
    object_store.log.clear()
    ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    assert ("begin", "models/a/ranks/rank-00000.h5") not in object_store.log
    assert_is(object_store, specs / "one")
    # An object that no run of this plan wrote belongs to somebody else.
    for name in ("manifest.json", "ranks/rank-00000.json"):
        object_store.remove("models/a/" + name)
    object_store.put("models/a/ranks/rank-00000.h5", b"x")
    done = tool(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    assert done.returncode == 4 and "rank-00000.h5` exists, and no run of this plan wrote it" in done.stderr
    assert object_store.get("models/a/ranks/rank-00000.h5") == b"x"


@pytest.mark.parametrize("ignores, words", [(("if-none-match",), "ignores the condition")])
def test_gen_rejects_a_store_that_ignores_conditions(ignores, words, specs, object_store):
    object_store.ignores = ignores
    done = tool(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    assert done.returncode == 2 and words in done.stderr and "two runs could mix" in done.stderr
    assert object_store.names() == ["models/a/plan.json"]
    object_store.ignores = ()
    object_store.faults = lambda request: 501 if "If-None-Match" in request.headers or "if-none-match" in request.headers else None
    done = tool(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    assert done.returncode == 2 and "no conditional writes" in done.stderr


def test_gen_rejects_a_store_that_completes_unconditionally(specs, object_store):
    forward = object_store.forward

    def without(method, target, headers={}, body=b""):
        if method == "POST" and "uploadId" in target:
            headers = {name: value for name, value in headers.items() if name.lower() != "if-none-match"}
        return forward(method, target, headers, body)

    object_store.forward = without
    try:
        # If an answer was lost and the completion is retried, a missing upload proves nothing.
        lost = []

        def lose_first(request):
            if request.kind != "complete":
                return None
            lost.append(request)
            return ["lose", 404, None][len(lost) - 1]

        object_store.faults = lose_first
        done = tool(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
        assert len(lost) == 3
    finally:
        del object_store.forward
    assert done.returncode == 2 and "when an upload of parts is completed" in done.stderr
    assert object_store.names() == ["models/a/plan.json"]
    assert object_store.get("models/a/plan.json") == (specs / "one/plan.json").read_bytes()


def damaged(bytes_, at):
    return bytes_[:at] + bytes([bytes_[at] ^ 1]) + bytes_[at + 1:]


def test_verify_finds_every_kind_of_damage_in_a_bucket(specs, object_store):
    ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    receipt = json.loads((specs / "one/ranks/rank-00001.json").read_text())
    box = next(box for box in receipt["boxes"] if box["path"] == "wide")
    cases = [("ranks/rank-00001.h5", box["file_offset"] + box["bytes"] - 1,
              "wide has other data than was written (rank 1, "
              f"bytes {box['file_offset']} to {box['file_offset'] + box['bytes'] - 1} of the file)"),
             ("ranks/rank-00001.h5", 9, "has damaged metadata"),
             ("ranks/rank-00000.json", 100, "rank-00000.json: is damaged"),
             ("index.h5", 300, "index.h5: is damaged"), ("manifest.json", 500, "manifest.json: is damaged"),
             ("plan.json", 20, "plan.json")]
    for name, at, words in cases:
        key = "models/a/" + name
        whole = object_store.get(key)
        object_store.put(key, damaged(whole, at))
        done = tool(object_store, "verify", URL)
        assert done.returncode == 1 and words in done.stderr, (name, done)
        assert "is damaged: 1 finding\n" in done.stderr or name == "plan.json", done  # Nothing else is wrong.
        assert "--repair" not in done.stderr
        object_store.remove(key)
        done = tool(object_store, "verify", URL)
        assert done.returncode == (2 if name == "manifest.json" else 1) and name in done.stderr, (name, done)
        object_store.put(key, whole)
    for name, code in (("ranks/rank-00002.h5", 1), ("notes.txt", 0)):
        object_store.put("models/a/" + name, b"x")
        done = tool(object_store, "verify", URL, "--json")
        assert done.returncode == code and name in done.stdout
        assert tool(object_store, "verify", URL, "--strict").returncode == 1
        object_store.remove("models/a/" + name)
    # A file with the name of a checkpoint's part is a finding; all other files are foreign.
    odd = {"findings": {"ranks/rank-00002.h5", "ranks/x.h5", "ranks/rank-x.json"},
           "foreign": {"notes.txt", "rank-00002.h5", "rank-00000.json", "ranks/notes.json", "ranks/rank-notes.txt"}}
    for name in sorted(odd["findings"] | odd["foreign"]):
        object_store.put("models/a/" + name, b"x")
    found = json.loads(tool(object_store, "verify", URL, "--json").stdout)
    assert {"findings": {each["file"] for each in found["findings"]}, "foreign": set(found["foreign"])} == odd, found
    for name in odd["findings"] | odd["foreign"]:
        object_store.remove("models/a/" + name)
    assert "intact" in ok(object_store, "verify", URL).stdout


def test_verify_reports_objects_of_another_length(object_store, tmp_path):
    """`verify` reports objects of another length as damaged, even longer ones that have all written bytes."""
    (tmp_path / "one.yaml").write_text(SPEC.format(seed=1).replace("000", "").replace("600", "6"))
    ok(object_store, "gen", "one.yaml", "-o", URL, folder=tmp_path)
    for name, told in (("ranks/rank-00000.h5", "has {} bytes, but its receipt lists {}"),
                       ("index.h5", "is damaged: its digest is not the one in the manifest"),
                       ("ranks/rank-00001.json", "is damaged"), ("manifest.json", "is damaged")):
        key = "models/a/" + name
        whole = object_store.get(key)
        for data in (whole + b"x", whole[:-1]):
            object_store.put(key, data)
            done = tool(object_store, "verify", URL)
            assert done.returncode == 1 and f"{name}: {told.format(len(data), len(whole))}" in done.stderr, done
        object_store.put(key, whole)
    # Every byte of the index matters, even if the size is unchanged.
    whole = object_store.get("models/a/index.h5")
    for at in (8, len(whole) // 2, len(whole) - 1):
        object_store.put("models/a/index.h5", damaged(whole, at))
        done = tool(object_store, "verify", URL)
        assert done.returncode == 1 and "index.h5: is damaged: its digest" in done.stderr, (at, done)
    object_store.put("models/a/index.h5", whole)
    ok(object_store, "verify", URL)


def test_verify_compares_a_bucket_checkpoint_with_a_spec(specs, object_store):
    ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    asked = len(object_store.log)
    done = ok(object_store, "verify", URL, "--spec", "one.yaml", "--json", folder=specs)
    tensors = json.loads((specs / "one/plan.json").read_text())["tensors"]
    same = json.loads(done.stdout)
    assert same["equal"] and same["tensors"] == len(tensors) and same["findings"] == []
    assert same["bytes"] == json.loads(run_ok("verify", specs / "one", "--spec", specs / "one.yaml",
                                              "--json").stdout)["bytes"]
    assert {kind for kind, _ in object_store.log[asked:]} <= {"get", "head", "list"}, object_store.log[asked:]
    # Values do not depend on the mesh.
    assert "equal to" in ok(object_store, "verify", URL, "--spec", "one.yaml", "--mesh", "a=1", folder=specs).stdout
    done = tool(object_store, "verify", URL, "--spec", "two.yaml", "--json", folder=specs)
    local = json.loads(run_tool("verify", specs / "one", "--spec", specs / "two.yaml", "--json").stdout)
    found = json.loads(done.stdout)
    assert done.returncode == 1 and not found["equal"]
    named = {(finding["tensor"], finding["message"].split(":")[0]) for finding in local["findings"]}
    assert {(finding["tensor"], finding["message"].split(":")[0]) for finding in found["findings"]} == named and named
    # A damaged checkpoint is not compared.
    key = "models/a/ranks/rank-00001.h5"
    object_store.put(key, damaged(object_store.get(key), 9))
    done = tool(object_store, "verify", URL, "--spec", "one.yaml", folder=specs)
    assert done.returncode == 1 and "has damaged metadata" in done.stderr and "equal" not in done.stdout


@pytest.mark.parametrize("config", ["configs/dtypes.yaml", "configs/expressions.yaml", "tests/python/kinds.yaml"])
@pytest.mark.parametrize("replicas", ["dedupe", "full"])
def test_verify_spec_reports_the_same_for_bucket_and_folder(config, replicas, object_store, tmp_path):
    run_ok("gen", ROOT / config, "-o", tmp_path / "local", "--set", f"replicas={replicas}")
    ok(object_store, "gen", ROOT / config, "-o", URL, "--set", f"replicas={replicas}")
    for seed, code in (([], 0), (["--set", "seed=77"], 1)):
        local, there = (tool(object_store, "verify", folder, "--spec", ROOT / config, "--json", *seed)
                        for folder in (tmp_path / "local", URL))
        assert local.returncode == there.returncode == code, (local, there)
        expected, found = (json.loads(done.stdout) for done in (local, there))
        assert ({finding["tensor"] for finding in found["findings"]} == {finding["tensor"]
                                                                         for finding in expected["findings"]})
        assert found["tensors"] == expected["tensors"] and found["bytes"] == expected["bytes"]


def test_verify_spec_compares_bucket_exports_and_rejects_others(specs, object_store):
    done = tool(object_store, "verify", URL, "--spec", "one.yaml", folder=specs)
    assert done.returncode == 2 and "is not a checkpoint" in done.stderr
    object_store.log.clear()
    done = tool(object_store, "verify", URL, "--spec", "one.yaml", "--mesh", "t=1", folder=specs)
    assert done.returncode == 2 and "no mesh axis `t`" in done.stderr and object_store.log == []
    ok(object_store, "export", "one.yaml", "--to", "dcp", "-o", URL, folder=specs)
    assert "equal to parts: 5 tensors" in ok(object_store, "verify", URL, "--spec", "one.yaml", folder=specs).stdout
    done = tool(object_store, "verify", URL, "--spec", "two.yaml", folder=specs)
    assert done.returncode == 1 and "large has other values" in done.stderr


def test_gen_rewrites_a_removed_rank_file_in_a_bucket(specs, object_store):
    ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    object_store.remove("models/a/ranks/rank-00001.h5")
    assert "damaged" in ok(object_store, "status", URL).stdout
    # A run for another part does not trust the manifest.
    done = ok(object_store, "gen", "one.yaml", "-o", URL, "--part", "0/2", "--json", folder=specs)
    assert json.loads(done.stdout)["complete"] is False
    done = tool(object_store, "gen", "one.yaml", "-o", URL, "--repair", folder=specs)
    assert done.returncode == 2 and "never replaced" in done.stderr
    ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    assert_is(object_store, specs / "one")


def test_gen_of_one_rank_reads_no_other_ranks_receipt(specs, object_store):
    """Writing a rank of a complete checkpoint again reads no other rank's receipt: for the others, the names are
    enough, so rerunning an array job is not quadratic."""
    ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    object_store.log.clear()
    done = ok(object_store, "gen", "one.yaml", "-o", URL, "--ranks", "1", "--json", folder=specs)
    assert json.loads(done.stdout)["complete"] is True
    read = {key for kind, key in object_store.log if kind == "get" and "/ranks/" in key}
    assert read == {"models/a/ranks/rank-00001.json"}


@pytest.mark.parametrize("name", ["devices.json", "manifest.json"])
def test_gen_accepts_a_checkpoint_that_appears_meanwhile(name, specs, object_store):
    words = ["gen", "one.yaml", "--set", "mesh.devices=[5, 3]", "-o", URL]
    ok(object_store, *words, folder=specs)
    objects = {key: object_store.get(key) for key in object_store.names("models/a/")}
    object_store.reset()

    def make_it(request):
        if request.kind == "head" and request.key == f"models/a/{name}" and not object_store.names("models/a/"):
            for key, data in objects.items():
                object_store.put(key, data)

    object_store.faults = make_it
    assert "already" in ok(object_store, *words, folder=specs).stderr


def test_rank_from_a_changed_source_is_a_conflict(object_store, tmp_path):
    """A rank file from another process is read back if its bytes do not follow from the plan alone."""
    (tmp_path / "source.yaml").write_text("shardinit: 1\nname: s\ndtype: f32\n"
                                          "modules: {w: {shape: [64, 64], init: {normal: {std: 1}}}}\n")
    run_ok("gen", "source.yaml", "-o", "source", cwd=tmp_path)
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: m\ndtype: f32\nsources: {s: {path: source}}\n"
                                        "modules: {w: {shape: [64, 64], "
                                        "init: {source: s}}}\n")
    ok(object_store, "gen", "spec.yaml", "-o", URL, folder=tmp_path)
    for name in ("manifest.json", "ranks/rank-00000.json"):
        object_store.remove("models/a/" + name)
    ok(object_store, "gen", "spec.yaml", "-o", URL, folder=tmp_path)
    for name in ("manifest.json", "ranks/rank-00000.json"):
        object_store.remove("models/a/" + name)
    run_ok("gen", "source.yaml", "-o", "other", "--set", "seed=5", cwd=tmp_path)
    (tmp_path / "source").rename(tmp_path / "old"), (tmp_path / "other").rename(tmp_path / "source")
    done = tool(object_store, "gen", "spec.yaml", "-o", URL, folder=tmp_path)
    assert done.returncode == 4 and "made from sources with different elements" in done.stderr


def test_reshard_into_a_bucket_equals_a_local_copy(specs, object_store, tmp_path):
    """`reshard` into a bucket makes a local copy's files, despite faults; later runs copy only missing ranks."""
    run_ok("reshard", "one", "-o", tmp_path / "local", "--mesh", "a=3", "--uneven", "chunk", cwd=specs)
    words = ["reshard", "one", "-o", URL, "--mesh", "a=3", "--uneven", "chunk"]
    object_store.faults = Faults(5, 0.1)
    ok(object_store, *words, folder=specs)
    object_store.faults = None
    assert_is(object_store, tmp_path / "local")
    ok(object_store, "verify", URL)
    assert "nothing was left to copy" in ok(object_store, *words, folder=specs).stderr
    for name in ("manifest.json", "ranks/rank-00001.json", "ranks/rank-00002.json", "ranks/rank-00002.h5"):
        object_store.remove("models/a/" + name)
    object_store.log.clear()
    ok(object_store, *words, folder=specs)
    assert ("complete", "models/a/ranks/rank-00001.h5") not in object_store.log
    assert ("complete", "models/a/ranks/rank-00002.h5") in object_store.log
    assert_is(object_store, tmp_path / "local")


@pytest.mark.parametrize("words", [["reshard", "{}", "--mesh", "a=1"], ["convert", "{}", "--to", "safetensors"],
                                   ["export", "{}", "--to", "dcp"]], ids=lambda words: words[0])
def test_copy_inside_its_source_in_a_bucket_is_rejected(words, object_store, tmp_path):
    """A copy cannot be inside its source; a name that extends the source's name, or is its prefix, is outside."""
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {a: 1}}\n"
                                        "modules: {w: {shape: [4], init: {normal: {std: 1}}}}\n")
    ok(object_store, "gen", "spec.yaml", "-o", URL, folder=tmp_path)
    words = [word.format(URL) for word in words]
    for inside in (URL + "/x", URL + "/ranks/x", URL + "/2/"):
        done = tool(object_store, *words, "-o", inside, folder=tmp_path)
        assert done.returncode == 2 and f"is in `{URL}`, the checkpoint that is copied" in done.stderr, (inside, done)
    for beside in (URL + "2", URL + "-x/y", URL + ".b", "s3://bucket/models2", "s3://bucket/a", "s3://bucket/models/A"):
        ok(object_store, *words, "-o", beside, folder=tmp_path)


def test_convert_into_a_bucket_rejects_another_source(object_store, tmp_path):
    make_two_models(tmp_path)
    words = ["--to", "hdf5"]
    run_ok("convert", "first/model", "-o", "local", *words, cwd=tmp_path)
    ok(object_store, "convert", "first/model", "-o", URL, *words, folder=tmp_path)
    assert_is(object_store, tmp_path / "local")
    assert "was there already" in ok(object_store, "convert", "first/model", "-o", URL, *words, folder=tmp_path).stderr
    done = tool(object_store, "convert", "second/model", "-o", URL, *words, folder=tmp_path)
    assert done.returncode == 4 and "other values" in done.stderr
    # Only plan.json is there, and it identifies the source.
    for name in object_store.names():
        if not name.endswith("plan.json"):
            object_store.remove(name)
    done = tool(object_store, "convert", "second/model", "-o", URL, *words, folder=tmp_path)
    assert done.returncode == 4 and "but values from another source" in done.stderr
    ok(object_store, "convert", "first/model", "-o", URL, *words, folder=tmp_path)
    assert_is(object_store, tmp_path / "local")


def test_finalize_detached_needs_only_plan_and_receipts(specs, object_store, tmp_path):
    """`finalize --detached` makes manifest.json and index.h5 from plan and receipts, locally and in a bucket."""
    whole = files_of(specs / "one")
    (tmp_path / "d/ranks").mkdir(parents=True)
    for name, data in whole.items():
        if name == "plan.json" or name.startswith("ranks/") and name.endswith(".json"):
            (tmp_path / "d" / name).write_bytes(data)
            object_store.put("models/a/" + name, data)
    assert tool(object_store, "finalize", tmp_path / "d").returncode == 3
    assert tool(object_store, "finalize", URL).returncode == 3
    run_ok("finalize", "--detached", tmp_path / "d")
    ok(object_store, "finalize", "--detached", URL)
    for name in ("manifest.json", "index.h5"):
        assert (tmp_path / "d" / name).read_bytes() == object_store.get("models/a/" + name) == whole[name]
    (tmp_path / "d/ranks/rank-00001.json").unlink()
    (tmp_path / "d/manifest.json").unlink()
    done = tool(object_store, "finalize", "--detached", tmp_path / "d")
    assert done.returncode == 3 and not (tmp_path / "d/manifest.json").exists()


def test_ranks_on_several_listing_pages_are_all_found(object_store, tmp_path):
    """Ranks are listed completely even if the list has several pages: 60 ranks are 120 objects, 100 on a page."""
    object_store.page = 100
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {x: 60}}\nrules: [{r: x}]\n"
                                        "modules: {w: {shape: [120], axes: [r], init: {normal: {std: 1}}}}\n")
    run_ok("gen", "spec.yaml", "-o", "local", cwd=tmp_path)
    ok(object_store, "gen", "spec.yaml", "-o", URL, "--ranks", "0-56,58-59", folder=tmp_path)
    # A rank that is in no list takes three requests: its file, a look at plan.json, and its receipt.
    kinds = [kind for kind, key in object_store.log if "/ranks/" in key]
    assert kinds.count("put") == 2 * 59 and len(kinds) == 2 * 59 + 2  # It first looks at its last rank's neighbors.
    assert len(object_store.log) < 3 * 59 + 30
    assert "missing: 57" in ok(object_store, "status", URL).stdout
    ok(object_store, "gen", "spec.yaml", "-o", URL, "--ranks", "57", folder=tmp_path)
    files = files_of(tmp_path / "local")
    for name in ("manifest.json", "index.h5", "plan.json", "ranks/rank-00000.h5", "ranks/rank-00057.json",
                 "ranks/rank-00059.h5"):
        assert object_store.get("models/a/" + name) == files[name]
    assert "intact: 60 ranks" in ok(object_store, "verify", URL).stdout
    object_store.log.clear()
    assert "60 of 60 ranks were there already" in ok(object_store, "gen", "spec.yaml", "-o", URL,
                                                     folder=tmp_path).stderr
    assert len(object_store.log) < 60 + 20 and object_store.log.count(("list", "")) == 2
    assert object_store.refused == []


def test_region_is_learned_from_the_store(object_store, specs):
    ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs, AWS_REGION="")
    assert {wrong for wrong, *_ in object_store.refused} == {"another region"} and len(object_store.refused) == 1
    object_store.refused.clear()
    assert_is(object_store, specs / "one")


def test_missing_bucket_is_an_error(object_store, specs):
    for words in (["gen", "one.yaml", "-o"], ["status"], ["verify"], ["finalize"]):
        done = tool(object_store, *words, "s3://nowhere/x", folder=specs)
        assert done.returncode == 2 and "404 NoSuchBucket" in done.stderr and "create the bucket first" in done.stderr


def test_gen_into_a_bucket_needs_little_memory_and_no_disk(object_store, tmp_path):
    """`gen` into a bucket needs no disk and the memory of a few parts, for 40 parts with larger and smaller boxes."""
    (tmp_path / "spec.yaml").write_text(
        "shardinit: 1\nname: m\ndtype: f32\nmodules:\n  a: {shape: [20000, 1000], init: {normal: {std: 1}}}\n"
        "  l: {repeat: {i: 200}, w: {shape: [500, 500], init: {normal: {std: 1}}}, b: {shape: [3], init: zeros}}\n"
        "  z: {shape: [20000, 1000], init: {normal: {std: 1}}}\n")
    done = subprocess.run(["/usr/bin/env", "python3", "-c", "import resource,subprocess,sys\n"
                           "subprocess.run(sys.argv[1:], check=True)\n"
                           "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)", BINARY, "gen", "spec.yaml",
                           "-o", URL,
                           "--jobs", "2", "--memory", "16M"], env={**os.environ, **object_store.environment},
                          cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done
    assert int(done.stdout.splitlines()[-1]) < 256 * 1024, done.stdout
    assert len({key for kind, key in object_store.log if kind == "part"}) == 2  # The rank and the probe.
    assert sum(kind == "part" for kind, _ in object_store.log) > 30
    ok(object_store, "verify", URL)
    assert list(tmp_path.iterdir()) == [tmp_path / "spec.yaml"]


def test_verify_keeps_one_range_in_memory_per_job(tmp_path):
    """`verify` keeps a range in memory for each job; for ranks of 24 MB it kept 16 ranges of 8 MiB at any `--jobs`."""
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {x: 4}}\nrules: [{r: x}]\n"
                                        "modules: {w: {shape: [24, 1000000], axes: [r, null], init: zeros}}\n")
    run_ok("gen", "spec.yaml", "-o", "local", cwd=tmp_path)
    with lying_store() as store:
        store.objects = {f"a/{name}": data for name, data in files_of(tmp_path / "local").items()}
        peaks = []
        for jobs in ("1", "4", "16"):
            done = subprocess.run(["/usr/bin/env", "python3", "-c", "import resource,subprocess,sys\n"
                                   "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
                                   "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)", BINARY, "verify",
                                   "s3://bucket/a",
                                   "--jobs", jobs], env={**os.environ, "AWS_ENDPOINT_URL": store.url,
                                                         "AWS_ACCESS_KEY_ID": KEY,
                                                         "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION},
                                  capture_output=True, text=True, check=True)
            peaks.append(int(done.stdout) // 1024)
    assert peaks[0] < 56 and peaks[1] < 120, peaks


def credentials(store, token=None):
    store.secrets["AKIDROLE"] = ("role/secret", token)
    return {"AccessKeyId": "AKIDROLE", "SecretAccessKey": "role/secret"}


def test_credentials_are_read_from_profiles(object_store, tmp_path):
    home = tmp_path / "home"
    (home / ".aws").mkdir(parents=True)
    process = tmp_path / "process"
    process.write_text(f"#!/bin/sh\necho '{json.dumps({'Version': 1, **credentials(object_store)})}'\n")
    process.chmod(0o755)
    (home / ".aws/credentials").write_text(f"[default]\naws_access_key_id = {KEY}\n# a note\n"
                                           f"aws_secret_access_key={SECRET}\n")
    (home / ".aws/config").write_text(
        f"[default]\nregion = {REGION}\n[profile p]\ncredential_process = {process}\n"
        f"endpoint_url = {object_store.url}\n"
        f"region = {REGION}\ns3 =\n    addressing_style = path\n[profile sso]\nsso_session = x\nregion = {REGION}\n")
    with (home / ".aws/config").open("a") as config:
        config.write(f"[profile bare]\nregion = {REGION}\n[profile keys]  # of somebody else\n"
                     f"aws_access_key_id = {KEY}\n"
                     f"aws_secret_access_key = {SECRET}\nregion = {REGION}\n[profile role]\nrole_arn = arn:x\n"
                     f"source_profile = keys\n"
                     f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\nregion = {REGION}\n")
    none = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": str(home), "AWS_REGION": ""}
    ok(object_store, "gen", TINY, "-o", URL, "--ranks", "1", **none, AWS_PROFILE="keys")
    # The keys of the next profile are not this profile's, and keys next to a role are not the role's.
    for profile, code, words in (("bare", 2, "no credentials"), ("role", 2, "the profile has `source_profile`")):
        done = tool(object_store, "status", URL, **none, AWS_PROFILE=profile)
        assert done.returncode == code and words in done.stderr, done
    # Without credentials a bucket may still be public, so the request is sent unsigned.
    assert [wrong for wrong, *_ in object_store.refused] == ["no authorization"]
    object_store.refused.clear()
    ok(object_store, "gen", TINY, "-o", URL, "--ranks", "0", **none)
    ok(object_store, "gen", TINY, "-o", URL, **none, AWS_PROFILE="p", AWS_ENDPOINT_URL="")
    assert object_store.refused == []
    for profile, words in (("sso", "credential_process = aws configure export-credentials"), ("absent", "neither")):
        done = tool(object_store, "status", URL, **none, AWS_PROFILE=profile)
        assert done.returncode == 2 and words in done.stderr
    process.write_text("#!/bin/sh\nexit 7\n")
    done = tool(object_store, "status", URL, **none, AWS_PROFILE="p")
    assert done.returncode == 3 and "failed with status 7" in done.stderr
    done = tool(object_store, "status", URL, **{**none, "HOME": str(tmp_path)})
    assert done.returncode == 2 and "no credentials" in done.stderr and "AWS_ACCESS_KEY_ID" in done.stderr
    done = tool(object_store, "status", URL, AWS_SECRET_ACCESS_KEY="wrong")
    assert done.returncode == 2 and "403 SignatureDoesNotMatch" in done.stderr


@pytest.mark.parametrize("subtype, words",
                         [("rclone", "is in a mount of an object store"), ("gcsfuse", "own tool"), ("bindfs", "")])
def test_mounted_buckets_are_rejected(subtype, words, specs, tmp_path):
    """Commands reject mounts that FUSE identifies as buckets; other mounts work like any folder."""
    if not shutil.which("bindfs") or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("not tested: there is no FUSE here")
    (tmp_path / "back").mkdir(), (tmp_path / "mount point").mkdir()
    if subprocess.run(["bindfs", "--no-allow-other", "-o", f"subtype={subtype}", tmp_path / "back",
                       tmp_path / "mount point"],
                      check=False).returncode:
        pytest.skip("not tested: FUSE cannot mount here")
    try:
        for words_of in (["gen", "one.yaml"], ["reshard", "one"], ["export", "one", "--to", "safetensors"]):
            done = run_tool(*words_of, "-o", tmp_path / "mount point/new/folder", cwd=specs)
            assert done.returncode == (2 if words else 0) and words in done.stderr, done
            assert list((tmp_path / "back").iterdir()) == [] or not words
            shutil.rmtree(tmp_path / "back/new", ignore_errors=True)
            if words:
                assert f"on `{tmp_path}/mount point`" in done.stderr
    finally:
        subprocess.run(["fusermount", "-u", tmp_path / "mount point"], check=True)


@pytest.fixture
def services():
    """Serves credentials as a container, an EC2 machine and STS do. `answers` maps method and path to a function of the
    request's headers and body."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            found = server.answers.get((self.command, self.path), lambda headers, body: None)(self.headers, body)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write((found or "nothing").encode())

        do_GET = do_PUT = do_POST = answer

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.answers = {}
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def later(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))


NO_KEYS = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}


def test_credentials_come_from_a_container_service(object_store, services, tmp_path):
    (tmp_path / "token").write_text("let me in\n")
    given = {**credentials(object_store, "session"), "Token": "session", "Expiration": later(3600)}
    services.answers["GET", "/v1/keys?id=1"] = lambda headers, _: headers["authorization"] == "let me in" and json.dumps(given) or None
    container = {**NO_KEYS, "AWS_CONTAINER_CREDENTIALS_FULL_URI": services.url + "/v1/keys?id=1"}
    # The token is not sent to a proxy; `no_proxy` names only the store.
    proxy = {"http_proxy": "http://127.0.0.1:1", "no_proxy": object_store.url.partition("//")[2].partition(":")[0]}
    ok(object_store, "gen", TINY, "-o", URL, **container,
       AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(tmp_path / "token"))
    assert object_store.refused == []
    local = services.url.replace("127.0.0.1", "localhost") + "/v1/keys?id=1"
    ok(object_store, "status", URL, **{**container, **proxy, "AWS_CONTAINER_CREDENTIALS_FULL_URI": local},
       AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(tmp_path / "token"))
    done = tool(object_store, "status", URL, **container)
    assert done.returncode == 3 and "the container's service: it answered 404" in done.stderr
    for host in ("example.com", "127.example.com", "127.0.0.1.example.com:80", "[2001:db8::1]"):
        done = tool(object_store, "status", URL, **NO_KEYS, AWS_CONTAINER_CREDENTIALS_FULL_URI=f"http://{host}/keys")
        assert done.returncode == 2 and "neither https nor" in done.stderr


def test_ec2_credentials_are_renewed(object_store, services):
    """Keys that the store reports as expired, and keys that expire soon, are requested again."""
    asked = []
    path = "/latest/meta-data/iam/security-credentials/"
    tokens = iter(f"session-{i}" for i in range(100))

    def give(headers, _):
        if headers["x-aws-ec2-metadata-token"] != "t":
            return None
        asked.append(next(tokens))
        return json.dumps({**credentials(object_store, asked[-1]), "Token": asked[-1], "Expiration": later(life)})

    services.answers["PUT", "/latest/api/token"] = lambda headers, _: headers["x-aws-ec2-metadata-token-ttl-seconds"] and "t"
    services.answers["GET", path] = lambda headers, _: headers["x-aws-ec2-metadata-token"] == "t" and "role" or None
    services.answers["GET", path + "role"] = give
    machine = {**NO_KEYS, "AWS_EC2_METADATA_DISABLED": "", "AWS_EC2_METADATA_SERVICE_ENDPOINT": services.url}
    life = 3600
    ok(object_store, "gen", TINY, "-o", URL, "--ranks", "0", **machine)
    assert len(asked) == 1

    def change(request):
        """Changes the keys when the first rank is written."""
        if request.kind == "put" and request.key.endswith(".h5") and len(asked) == 2:
            object_store.secrets["AKIDROLE"] = ("role/secret", "another")
        return None

    object_store.faults = change
    ok(object_store, "gen", TINY, "-o", URL, "--ranks", "1", **machine)
    assert len(asked) == 3 and {wrong for wrong, *_ in object_store.refused} == {"another session token"}
    object_store.faults, life = None, 200
    before = len(asked)
    ok(object_store, "status", URL, **machine)
    assert len(asked) - before <= 2  # Keys that expire within five minutes are not requested for each request.


def test_credentials_come_from_a_web_identity(object_store, services, tmp_path):
    (tmp_path / "token").write_text("header.payload.signature")
    keys = credentials(object_store, "session")

    def assume(_, body):
        form = dict(part.split("=") for part in body.split("&"))
        if form["Action"] != "AssumeRoleWithWebIdentity" or form["WebIdentityToken"] != "header.payload.signature":
            return None
        assert form["RoleArn"] == "arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr"
        return ("<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
                f"<AccessKeyId>{keys['AccessKeyId']}</AccessKeyId><SecretAccessKey>{keys['SecretAccessKey']}</SecretAccessKey>"
                f"<SessionToken>session</SessionToken><Expiration>{later(3600)}</Expiration></Credentials>"
                "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>")

    services.answers["POST", "/"] = assume
    role = {**NO_KEYS, "AWS_ROLE_ARN": "arn:aws:iam::1:role/r", "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
            "AWS_ENDPOINT_URL_STS": services.url}
    ok(object_store, "gen", TINY, "-o", URL, **role)
    assert object_store.refused == []
    (tmp_path / "token").write_text("another")
    done = tool(object_store, "status", URL, **role)
    assert done.returncode == 3 and "STS for the role `arn:aws:iam::1:role/r`: it answered 404" in done.stderr


# Connects to this machine if a program asks for an address of the services that machines on a cloud have.
LINK_LOCAL = """
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>
int connect(int fd, const struct sockaddr* to, socklen_t size) {
  int (*real)(int, const struct sockaddr*, socklen_t) = (int (*)(int, const struct sockaddr*, socklen_t))dlsym(RTLD_NEXT, "connect");
  struct sockaddr_in in = *(const struct sockaddr_in*)to;
  if (to->sa_family != AF_INET || (ntohl(in.sin_addr.s_addr) >> 16) != 0xa9fe) return real(fd, to, size);
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  in.sin_port = htons(atoi(getenv("SERVICES_PORT")));
  return real(fd, (const struct sockaddr*)&in, sizeof(in));
}
"""


def test_credential_services_default_to_cloud_addresses(object_store, services, tmp_path):
    """A container whose URI is only a path asks 169.254.170.2 for credentials, and a machine asks 169.254.169.254."""
    (tmp_path / "connect.c").write_text(LINK_LOCAL)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "connect.so", tmp_path / "connect.c", "-ldl"],
                   check=True)
    hosts = []
    keys = json.dumps({**credentials(object_store, "session"), "Token": "session"})
    path = "/latest/meta-data/iam/security-credentials/"
    for method, target, text in (("GET", "/v2/keys", keys), ("PUT", "/latest/api/token", "t"), ("GET", path, "role"),
                                 ("GET", path + "role", keys)):
        services.answers[method, target] = lambda headers, _, text=text: hosts.append(headers["host"]) or text
    given = {**NO_KEYS, "LD_PRELOAD": str(tmp_path / "connect.so"), "SERVICES_PORT": services.url.rpartition(":")[2]}
    ok(object_store, "gen", TINY, "-o", URL, "--ranks", "0", **given, AWS_CONTAINER_CREDENTIALS_RELATIVE_URI="/v2/keys",
       AWS_CONTAINER_CREDENTIALS_FULL_URI="http://example.com/no")
    assert hosts == ["169.254.170.2"]
    hosts.clear()
    ok(object_store, "gen", TINY, "-o", URL, "--ranks", "1", **given, AWS_EC2_METADATA_DISABLED="")
    assert hosts == ["169.254.169.254"] * 3 and object_store.refused == []


def test_sts_host_follows_the_region(tmp_path):
    """The STS host is of the environment's region, or else of the region of the role's profile. A proxy records it."""
    hosts = {}

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_CONNECT(self):
            hosts.setdefault(self.server.server_address[1], []).append(self.path)
            self.send_error(403)

        def log_message(self, *_):
            pass

    (tmp_path / "token").write_text("token")
    role = {"AWS_ROLE_ARN": "arn:r", "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token")}
    (tmp_path / "config").write_text(f"[default]\nregion = of-profile\nrole_arn = arn:r\n"
                                     f"web_identity_token_file = {tmp_path}/token\n")
    cases = [({**role, "AWS_REGION": "one", "AWS_DEFAULT_REGION": "two"}, "sts.one.amazonaws.com:443"),
             ({**role, "AWS_DEFAULT_REGION": "two"}, "sts.two.amazonaws.com:443"), (role, "sts.amazonaws.com:443"),
             ({"AWS_CONFIG_FILE": str(tmp_path / "config")}, "sts.of-profile.amazonaws.com:443"),
             ({"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_REGION": "one"}, "sts.one.amazonaws.com:443")]
    running = []
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")
                and not name.lower().endswith("_proxy")}
    for given, host in cases:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {**kept, "HOME": "/nonexistent", "https_proxy": f"http://127.0.0.1:{server.server_address[1]}",
                       **given}
        process = subprocess.Popen([BINARY, "status", URL], env=environment, stderr=subprocess.PIPE, text=True)
        running.append((process, server, host))
    for process, server, host in running:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 3 and "cannot get credentials from STS for the role `arn:r`: " in errors, errors
        assert hosts[server.server_address[1]] == [host] * 4  # Each request is tried four times.
        server.shutdown()


def test_ca_bundle_makes_a_certificate_trusted(tmp_path):
    """A store with an unknown certificate is asked only once; AWS_CA_BUNDLE makes the certificate known."""
    for name in ("known", "other"):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                        "-nodes", "-keyout", tmp_path / f"{name}.key",
                        "-out", tmp_path / f"{name}.pem", "-days", "2", "-subj", "/CN=tests", "-addext",
                        "subjectAltName=IP:127.0.0.1"],
                       check=True, stderr=subprocess.DEVNULL)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "known.pem", tmp_path / "known.key")
    connections = []

    class Server(http.server.ThreadingHTTPServer):
        def get_request(self):
            connection, address = super().get_request()
            connections.append(address)
            return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

        def handle_error(self, *_):
            pass

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

        def log_message(self, *_):
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        given = {**os.environ, "AWS_ENDPOINT_URL": f"https://127.0.0.1:{server.server_address[1]}",
                 "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        def status(bundle):
            connections.clear()
            return subprocess.run([BINARY, "status", URL], env={**given, "AWS_CA_BUNDLE": str(tmp_path / bundle)},
                                  capture_output=True, text=True, timeout=60)
        done = status("known.pem")
        assert done.returncode == 2 and "is not a checkpoint: it has no plan.json" in done.stderr, done
        for bundle in ("other.pem", "none.pem"):
            done = status(bundle)
            assert done.returncode == 3 and "certificate" in done.stderr and len(connections) == 1, (done, connections)
        server.shutdown()


NO_LIBCURL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
void* dlopen(const char* name, int flags) {
  void* (*real)(const char*, int) = (void* (*)(const char*, int))dlsym(RTLD_NEXT, "dlopen");
  return real(name && strstr(name, "libcurl") ? "/nonexistent/libcurl.so.4" : name, flags);
}
"""


def test_commands_on_urls_report_a_missing_libcurl(object_store, tmp_path):
    """Without libcurl, commands on URLs print an error. Debian's HDF5 loads libcurl, so a preload hides it."""
    (tmp_path / "hide.c").write_text(NO_LIBCURL)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "hide.so", tmp_path / "hide.c", "-ldl"], check=True)
    for words in (["status", URL], ["gen", TINY, "-o", URL]):
        done = tool(object_store, *words, LD_PRELOAD=str(tmp_path / "hide.so"))
        assert done.returncode == 2 and "cannot load libcurl, which URLs need: " in done.stderr and "libcurl4" in done.stderr
    assert object_store.log == []
    ok(object_store, "gen", TINY, "-o", tmp_path / "local", LD_PRELOAD=str(tmp_path / "hide.so"))


def test_invalid_bucket_urls_are_rejected(object_store, specs):
    for url, words in (("s3://", "a bucket has a name of 3 to 63"), ("s3://a/b", "3 to 63"),
                       ("s3://bucket//x", "a part of its prefix"),
                       ("s3://bucket/a/../x", "a part of its prefix is `..`"),
                       ("s3://bucket/a\nb", "control character"),
                       ("s3://bucket/" + "x" * 901, "901 bytes"), ("s3://buck et/x", "3 to 63")):
        done = tool(object_store, "gen", "one.yaml", "-o", url, folder=specs)
        assert done.returncode == 2 and words in done.stderr, (url, done)
    assert object_store.log == []
    for words in (["gen", URL, "-o", "new"], ["plan", URL], ["validate", URL],
                  ["convert", "gs://bucket/x", "--to", "dcp", "-o", "new"], ["gen", "one.yaml", "-o", "gs://bucket/x"]):
        done = tool(object_store, *words, folder=specs)
        assert done.returncode == 2 and "hint: " in done.stderr, (words, done)
    assert object_store.log == [] and sorted(path.name for path in specs.iterdir()) == [
        "awkward.yaml", "one", "one.yaml", "two", "two.yaml"]


def test_credentials_file_takes_precedence_over_config_file(object_store, tmp_path):
    """The credentials file takes precedence if both files have a profile's keys, as in AWS's own tools."""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(f"[p]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    (tmp_path / ".aws/config").write_text(f"[profile p]\naws_access_key_id = AKIDOLD\naws_secret_access_key = old\n"
                                          f"region = {REGION}\n")
    ok(object_store, "gen", TINY, "-o", URL, "--ranks", "0", AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="",
       HOME=str(tmp_path), AWS_REGION="", AWS_PROFILE="p")
    assert object_store.refused == []


def test_verify_spec_fails_if_a_receipt_changes_meanwhile(specs, object_store):
    """`verify --spec` fails if a receipt changes after its check: values are compared with the manifest's receipts."""
    ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    name, met = "models/a/ranks/rank-00001.json", []
    receipt = object_store.get(name)
    digest = json.loads(receipt)["boxes"][0]["sha256"].encode()

    def faults(request):
        if (request.kind, request.key) == ("get", name):
            met.append(request)
            if len(met) == 2:  # The first read is for the check of every byte.
                object_store.put(name, receipt.replace(digest, bytes(reversed(digest))))

    object_store.faults = faults
    done = tool(object_store, "verify", URL, "--spec", "one.yaml", folder=specs)
    assert len(met) == 2 and done.returncode == 3 and "was changed while it was read" in done.stderr, done


FORTY = ("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {x: 40}}\nrules: [{r: x}]\n"
         "modules: {w: {shape: [80], axes: [r], init: {normal: {std: 1}}}}\n")


def test_status_counts_a_rank_of_another_size_as_missing(object_store, tmp_path):
    (tmp_path / "spec.yaml").write_text(FORTY)
    ok(object_store, "gen", "spec.yaml", "-o", URL, folder=tmp_path)
    object_store.put("models/a/ranks/rank-00007.h5", b"x")
    found = json.loads(ok(object_store, "status", URL, "--json").stdout)
    assert found["missing_ranks"] == "7" and not found["complete"], found


def test_finalize_finds_receipts_that_a_store_lists_late(object_store, tmp_path):
    (tmp_path / "spec.yaml").write_text(FORTY)
    ok(object_store, "gen", "spec.yaml", "-o", URL, folder=tmp_path)
    object_store.remove("models/a/manifest.json")
    forward = object_store.forward

    def late(method, target, headers={}, body=b""):
        status, headers, body = forward(method, target, headers, body)
        if "list-type" in target:
            body = re.sub(rb"<Contents><Key>[^<]*rank-00007\.json</Key>.*?</Contents>", b"", body, flags=re.S)
        return status, headers, body

    object_store.forward = late
    try:
        assert "models/a/ranks/rank-00007.json" not in object_store.names()
        ok(object_store, "finalize", URL)
    finally:
        del object_store.forward
    assert "intact: 40 ranks" in ok(object_store, "verify", URL).stdout


@pytest.mark.parametrize("other", [False, True])
def test_gen_writes_no_receipt_after_its_plan_is_lost(other, specs, object_store):
    """A run whose plan.json is lost or replaced writes no receipt, even for an existing rank that is not sent again."""
    ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    for name in ("manifest.json", "ranks/rank-00000.json"):
        object_store.remove("models/a/" + name)
    met = []

    def faults(request):
        if (request.kind, request.key) == ("head", "models/a/ranks/rank-00000.h5"):
            met.append(request)
            if len(met) == 2:  # The second look is after the values were made.
                object_store.remove("models/a/plan.json")
                if other:
                    object_store.put("models/a/plan.json", (specs / "two/plan.json").read_bytes())

    object_store.faults = faults
    done = tool(object_store, "gen", "one.yaml", "-o", URL, "--ranks", "0", folder=specs)
    assert len(met) >= 2 and done.returncode == 4, (len(met), done)
    assert "has lost its plan.json, or another process has given it another plan" in done.stderr, done
    assert "models/a/ranks/rank-00000.json" not in object_store.names()


def test_gen_reports_a_receipt_that_disappears(specs, object_store):
    name, met = "models/a/ranks/rank-00000.json", []

    def faults(request):
        if (request.kind, request.key) == ("get", name):
            met.append(request)
            if len(met) == 2:  # The first read is to find the missing ranks.
                object_store.remove(name)

    object_store.faults = faults
    done = tool(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    assert done.returncode == 3 and "1 of 2 ranks were complete, but their files are gone" in done.stderr, done
    object_store.faults = None
    ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    assert_is(object_store, specs / "one")


@pytest.mark.parametrize("words, what", [(["gen"], "2 of 2 ranks"), (["export", "--to", "hf-dcp"], "2 of 2 files")])
def test_uploads_aborted_by_others_are_not_retried_forever(words, what, specs, object_store):
    def end(request):
        is_claim = request.key.endswith(".json")
        return 404 if request.kind == "complete" and not is_claim else None

    object_store.faults = end
    done = tool(object_store, words[0], "one.yaml", *words[1:], "-o", URL, folder=specs)
    assert done.returncode == 3 and f"another process keeps aborting the uploads of {what}" in done.stderr, done
    object_store.faults = None
    ok(object_store, words[0], "one.yaml", *words[1:], "-o", URL, folder=specs)


def test_verify_reports_receipts_of_unknown_ranks(specs, object_store):
    ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    for name in ("rank-00002.json", "rank-1.json"):
        object_store.put("models/a/ranks/" + name, b"{}")
        done = tool(object_store, "verify", URL)
        assert done.returncode == 1 and f"{name}: does not belong to the checkpoint" in done.stderr, done
        object_store.remove("models/a/ranks/" + name)


def test_uploads_on_several_listing_pages_are_all_found(specs, object_store):
    """Uploads of one name are all found, even if a page of the list begins in the middle of them."""
    for _ in range(3):
        assert object_store.forward("POST", "/bucket/models/a/ranks/rank-00000.h5?uploads")[0] == 200
    forward = object_store.forward

    def paged(method, target, headers={}, body=b""):
        status, headers, body = forward(method, target.split("&key-marker=")[0].replace("key-marker=", "x="), headers,
                                        body)
        path, _, text = target.partition("?")
        query = dict(urllib.parse.parse_qsl(text, keep_blank_values=True))
        if method != "GET" or "uploads" not in query or not body:
            return status, headers, body
        marker = query.get("key-marker", ""), query.get("upload-id-marker")
        found = sorted((key.decode(), upload.decode(), each)
                       for each in re.findall(rb"<Upload>.*?</Upload>", body, re.S)
                       for key in re.findall(rb"<Key>(.*?)</Key>", each)
                       for upload in re.findall(rb"<UploadId>(.*?)</UploadId>", each))
        rest = [one for one in found if one[0] > marker[0]
                    or (marker[1] and one[0] == marker[0] and one[1] > marker[1])]
        text = b"".join(each for *_, each in rest[:1])
        more = (b"<IsTruncated>true</IsTruncated><NextKeyMarker>%s</NextKeyMarker><NextUploadIdMarker>%s</NextUploadIdMarker>"
                % (rest[0][0].encode(), rest[0][1].encode())) if len(rest) > 1 else b"<IsTruncated>false</IsTruncated>"
        return status, headers, b"<ListMultipartUploadsResult>" + more + text + b"</ListMultipartUploadsResult>"

    object_store.forward = paged
    try:
        ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    finally:
        del object_store.forward
    assert object_store.uploads() == []


def test_headers_of_1xx_answers_are_ignored(specs, object_store):
    reply = object_store.reply

    def with_hints(handler, *words):
        handler.wfile.write(b"HTTP/1.1 103 Early Hints\r\nX-Amz-Meta-Claim: another\r\nX-Amz-Meta-Plan-Sha256: 0\r\n"
                            b"\r\n")
        reply(handler, *words)

    object_store.reply = with_hints
    try:
        ok(object_store, "gen", "one.yaml", "-o", URL, folder=specs)
    finally:
        del object_store.reply
    assert_is(object_store, specs / "one")


@pytest.mark.parametrize(
    "name", ["shardinit-export.json", ".shardinit-export/claim.json", "manifest.json", "index.h5", "devices.json"]
)
def test_gen_rejects_files_of_a_checkpoint_without_plan_json(name, specs, object_store):
    object_store.put("models/a/" + name, b"x")
    done = tool(object_store, "gen", "awkward.yaml", "-o", URL, folder=specs)
    assert (
        done.returncode == 4 and f"`{URL}/{name}` exists without the plan.json that identifies its plan" in done.stderr
    ), done
    assert object_store.names() == ["models/a/" + name]
    object_store.remove("models/a/" + name)
    object_store.put("models/a/notes.txt", b"x")
    ok(object_store, "gen", "awkward.yaml", "-o", URL, "--ranks", "0", folder=specs)


def begin_uploads(store, *names):
    """Begins uploads of these names without completing them."""
    for name in names:
        assert store.forward("POST", f"/bucket/{name}?uploads")[0] == 200
    return sorted(names)


@pytest.mark.parametrize("words", [["gen", "awkward.yaml"], ["finalize"]])
def test_completion_aborts_only_uploads_of_the_checkpoint(words, specs, object_store):
    """A run that completes a checkpoint aborts the checkpoint's other uploads, which are not needed, and no others."""
    ok(object_store, "gen", "awkward.yaml", "-o", URL, folder=specs)
    for name in ("manifest.json", "index.h5"):
        object_store.remove("models/a/" + name)
    ours = ["index.h5", "manifest.json", "plan.json", "devices.json", "ranks/rank-00000.h5", "ranks/rank-00003.h5",
            "ranks/rank-00003.json"]
    begin_uploads(object_store, *(f"models/a/{name}" for name in ours))
    others = begin_uploads(
        object_store,
        "models/ab/index.h5",
        "models/index.h5",
        "index.h5",
        "models/a/notes.h5",
        "models/a/rank-00000.h5",
        "models/a/ranks/rank-00004.h5",
        "models/a/ranks/index.h5",
        "models/a/x/ranks/rank-00000.h5",
        "models/a/shardinit-export.json",
    )
    ok(object_store, *words, *(["-o"] if words[0] == "gen" else []), URL, folder=specs)
    assert sorted(object_store.uploads()) == others


def put_with_metadata(store, name, body, **metadata):
    headers = {f"x-amz-meta-{key.replace('_', '-')}": value for key, value in metadata.items()}
    assert store.forward("PUT", f"/bucket/models/a/{name}", headers, body)[0] == 200


def test_existing_index_in_a_bucket_is_compared(specs, object_store, tmp_path):
    """An existing index is compared by its metadata, or by its bytes if another tool wrote it."""
    run_ok("gen", "awkward.yaml", "-o", tmp_path / "local", "--index", "always", cwd=specs)
    index = (tmp_path / "local/index.h5").read_bytes()
    words = ["gen", "awkward.yaml", "-o", URL, "--index", "always"]
    ok(object_store, *words, folder=specs)
    sha256 = hashlib.sha256(index).hexdigest()
    for body, metadata, is_same in (
        (index, {}, True),
        (index, {"sha256": "0" * 64}, True),
        (index, {"sha256": sha256}, True),
        (damaged(index, 99), {}, False),
        (damaged(index, 99), {"sha256": "0" * 64}, False),
        (index[:-1], {"sha256": sha256}, False),
        (index + b"x", {}, False),
        (b"", {}, False),
    ):
        object_store.remove("models/a/manifest.json")
        put_with_metadata(object_store, "index.h5", body, **metadata)
        done = tool(object_store, *words, folder=specs)
        if is_same:
            assert done.returncode == 0, (metadata, done)
        else:
            assert done.returncode == 4 and "index.h5` already exists with different content" in done.stderr, (
                len(body),
                metadata,
                done,
            )
            assert "models/a/manifest.json" not in object_store.names()
            object_store.put("models/a/manifest.json", (tmp_path / "local/manifest.json").read_bytes())
            if len(body) != len(index):  # If its size differs, it is compared even if the manifest is there.
                assert "different content" in tool(object_store, *words, folder=specs).stderr
        assert object_store.get("models/a/index.h5") == body
    put_with_metadata(object_store, "index.h5", index)
    ok(object_store, *words, folder=specs)
    assert_is(object_store, tmp_path / "local")


@pytest.mark.parametrize("first, then", [("always", "never"), ("never", "always")])
def test_other_index_option_in_a_bucket_is_a_conflict(first, then, specs, object_store):
    ok(object_store, "gen", "awkward.yaml", "-o", URL, "--index", first, folder=specs)
    manifest = object_store.get("models/a/manifest.json")
    for words in (["gen", "awkward.yaml", "-o", URL], ["finalize", URL]):
        done = tool(object_store, *words, "--index", then, folder=specs)
        assert done.returncode == 4 and "manifest.json` already exists with different content" in done.stderr, done
        ok(object_store, *words, "--index", first, folder=specs)
    assert object_store.get("models/a/manifest.json") == manifest


def test_error_names_the_run_that_owns_a_rank(specs, object_store, tmp_path):
    """A rank file without a receipt is used if it is whole and of this plan; otherwise the error describes it."""
    run_ok("gen", "awkward.yaml", "-o", tmp_path / "local", "--set", "seed=3", cwd=specs)
    ok(object_store, "gen", "awkward.yaml", "-o", URL, "--ranks", "0", "--set", "seed=3", folder=specs)
    body = (tmp_path / "local/ranks/rank-00001.h5").read_bytes()
    plan = hashlib.sha256((tmp_path / "local/plan.json").read_bytes()).hexdigest()
    for given, metadata, said in (
        (body, {}, "no run of this plan wrote it"),
        (body, {"plan": plan}, "no run of this plan wrote it"),
        (body, {"plan_sha256": "0" * 64}, "belongs to another plan"),
        (body[1:], {"plan_sha256": plan}, f"has {len(body) - 1} bytes instead of {len(body)}"),
        (body, {"plan_sha256": plan}, ""),
    ):
        put_with_metadata(object_store, "ranks/rank-00001.h5", given, **metadata)
        done = tool(object_store, "gen", "awkward.yaml", "-o", URL, "--ranks", "1", "--set", "seed=3", folder=specs)
        assert done.returncode == (4 if said else 0), (metadata, done)
        assert not said or f"ranks/rank-00001.h5` exists, and {said}\n" in done.stderr, (
            metadata,
            done,
        )
    ok(object_store, "gen", "awkward.yaml", "-o", URL, "--set", "seed=3", folder=specs)
    assert_is(object_store, tmp_path / "local")


def test_finalize_hint_names_the_command_for_missing_ranks(specs, object_store, tmp_path):
    """The hint of `finalize` depends on whether a spec or other tensors have the values of missing ranks."""
    make_two_models(tmp_path)
    (tmp_path / "awkward.yaml").write_text(AWKWARD)
    for words, hint in (
        (["gen", "awkward.yaml"], "generate them with `shardinit gen SPEC -o DIR --ranks …`"),
        (
            ["convert", "first/model", "--to", "hdf5", "--sharding", "fsdpv2", "--mesh", "fsdp=2"],
            "write them with the command that copies the tensors, with `--ranks …`",
        ),
    ):
        object_store.reset()
        ok(object_store, *words, "-o", URL, "--ranks", "1", folder=tmp_path)
        done = tool(object_store, "finalize", URL)
        assert done.returncode == 3 and "no valid receipt: 0" in done.stderr and f"  hint: {hint}\n" in done.stderr, (
            done
        )


def test_status_prints_the_same_for_bucket_and_folder(specs, object_store, tmp_path):
    """`status` prints the same for a bucket and a folder, in each form and at each state."""
    run_ok("gen", "awkward.yaml", "-o", tmp_path / "in", "--index", "always", cwd=specs)
    forms = [
        ["status", "in"],
        ["status", "in", "--json"],
        ["status", "in", "--prometheus"],
        ["status", "in", "--missing-parts", "2"],
        ["status", "in", "--missing-parts", "3", "--json"],
    ]
    states = [
        [],
        ["manifest.json"],
        ["ranks/rank-00002.json"],
        ["ranks/rank-00001.h5"],
        ["ranks/rank-00000.json", "ranks/rank-00003.json"],
        ["index.h5"],
    ]
    put(object_store, tmp_path / "in")
    for lost in states:
        for name in lost:
            (tmp_path / "in" / name).unlink()
            object_store.remove("models/in/" + name)
        assert [compare(object_store, words, tmp_path) for words in forms] == [0] * len(forms)
        watched = compare(object_store, ["status", "in", "--watch", "--json"], tmp_path) if not lost else 0
        assert watched == 0


def test_verify_reports_the_same_for_bucket_and_folder(specs, object_store, tmp_path):
    """`verify` finds the same in a bucket and a folder, also if a rank is damaged or made of another source."""
    for seed in (1, 2):
        (tmp_path / "spec.yaml").write_text(
            "shardinit: 1\nname: s\ndtype: f32\nmodules:\n"
            + "".join(f"  {name}: {{shape: [8, 5], init: {{normal: {{std: {seed}}}}}}}\n" for name in "vw")
        )
        run_ok("gen", "spec.yaml", "-o", f"base-{seed}", cwd=tmp_path)
        (tmp_path / "of-source.yaml").write_text(
            "shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {x: 3}}\nuneven: chunk\nrules: [{r: x}]\n"
            "sources: {s: {path: none}}\nmodules:\n"
            + "".join(f"  {name}: {{shape: [8, 5], axes: [r, null], init: {{source: s}}}}\n" for name in "vw")
        )
        run_ok("gen", "of-source.yaml", "--source", f"s=base-{seed}", "-o", f"made-{seed}", cwd=tmp_path)
    (tmp_path / "made-1").rename(tmp_path / "in")
    put(object_store, tmp_path / "in")

    def found():
        """Returns the findings, which must be equal in both places; the hints on how to fix them may differ."""
        there, here = (
            tool(object_store, "verify", folder, "--json", folder=tmp_path)
            for folder in ("s3://bucket/models/in", "in")
        )
        counted = [{**json.loads(done.stdout), "folder": ""} for done in (there, here)]
        for each in counted[0]["findings"] + counted[1]["findings"]:
            # Only a folder's message describes the damage of a receipt.
            each["message"] = (
                re.sub("is damaged.*", "is damaged", each["message"])
                if each["file"].endswith(".json")
                else each["message"]
            )
        assert counted[0] == counted[1] and there.returncode == here.returncode == (not counted[0]["intact"]), (
            there,
            here,
        )
        return counted[0]["findings"]

    assert found() == []

    def change(name, data):
        (tmp_path / "in" / name).write_bytes(data)
        object_store.put("models/in/" + name, data)

    for name in ("ranks/rank-00000.json", "ranks/rank-00001.json", "ranks/rank-00002.json", "ranks/rank-00001.h5"):
        whole = (tmp_path / "in" / name).read_bytes()
        for change_to in (damaged(whole, len(whole) // 2), whole + b"x"):
            change(name, change_to)
            assert found() != []
        change(name, whole)
    for rank in (2, 1):
        for end in ("h5", "json"):
            change(f"ranks/rank-0000{rank}.{end}", (tmp_path / f"made-2/ranks/rank-0000{rank}.{end}").read_bytes())
        assert any("of source `s`" in each["message"] for each in found())


@pytest.mark.parametrize(
    "words, statement",
    [(["gen", "spec.yaml"], "manifest.json"), (["export", "spec.yaml", "--to", "dcp"], "shardinit-export.json")],
)
def test_signature_must_be_of_the_manifest_or_record(words, statement, object_store, tmp_path):
    """Only signatures of the bucket's manifest or record are valid; a signature next to it is not a finding."""
    (tmp_path / "spec.yaml").write_text(
        "shardinit: 1\nname: s\ndtype: f32\nmodules: {w: {shape: [8, 5], init: {normal: {std: 1}}}}\n"
    )
    ok(object_store, *words, "-o", URL, folder=tmp_path)
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-C", "", "-t", "ed25519", "-f", tmp_path / "key"], check=True)
    (tmp_path / "signers").write_text(f"me@example.org {(tmp_path / 'key.pub').read_text()}")
    trusted = ["--signers", tmp_path / "signers", "--signature"]
    for name in object_store.names("models/a/"):
        file = tmp_path / "file"
        file.write_bytes(object_store.get(name))
        (tmp_path / "file.sig").unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-n", "shardinit", "-f", tmp_path / "key", file], check=True)
        done = tool(object_store, "verify", URL, "--strict", "--json", *trusted, tmp_path / "file.sig")
        is_it = name == "models/a/" + statement
        assert done.returncode == (0 if is_it else 1), (name, done)
        assert json.loads(done.stdout)["signer"] == ("me@example.org" if is_it else ""), (name, done)
        if is_it:
            (tmp_path / "kept.sig").write_bytes((tmp_path / "file.sig").read_bytes())
    object_store.put(f"models/a/{statement}.sig", (tmp_path / "kept.sig").read_bytes())
    ok(object_store, "verify", URL, "--strict", *trusted, tmp_path / "kept.sig")


def test_verify_spec_reports_a_tensor_in_several_boxes_once(object_store, tmp_path):
    (tmp_path / "spec.yaml").write_text("""
shardinit: 1
name: boxes
dtype: f32
mesh: {axes: {a: 4, b: 2}}
modules:
  x: {shape: [8, 4], shard: [a, b], init: {normal: {std: 1}}}
  cut: {shape: [16], shard: [{axes: a, segments: 2}], init: {normal: {std: 1}}}
  same: {shape: [8], shard: [a], init: ones}
  whole: {shape: [3], init: {normal: {std: 1}}}
""")
    ok(object_store, "gen", "spec.yaml", "-o", URL, folder=tmp_path)
    done = tool(object_store, "verify", URL, "--spec", "spec.yaml", "--set", "seed=1", "--json", folder=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == 1 and sorted(each["tensor"] for each in found["findings"]) == ["cut", "whole", "x"], done
    assert found["tensors"] == 4 and found["more_findings"] == 0


def test_trailing_slashes_of_bucket_urls_are_ignored(object_store, tmp_path):
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: m\ndtype: f32\nmodules: {x: {shape: [4], init: ones}}\n")
    for end, command in (("//", "gen"), ("///", "gen"), ("/", "gen")):
        ok(object_store, command, "spec.yaml", "-o", URL + end, folder=tmp_path)
    names = object_store.names("models/")
    assert names and all("//" not in name for name in names)
    for command in (["status"], ["verify"], ["inspect"], ["digest"], ["stats"], ["finalize"], ["diff", "spec.yaml"]):
        said = [tool(object_store, *command, URL + end, folder=tmp_path) for end in ("", "/", "//", "////")]
        assert said[0].returncode == 0, said[0]
        assert len({(each.returncode, each.stdout, each.stderr) for each in said}) == 1, said
