"""Commands read `hf://` like a folder on disk, whatever the network does. They never send the token elsewhere, and never
mix two commits."""

import os
import re
import shutil
import signal
import subprocess
import time

import huggingface_hub
import numpy as np
import pytest
import safetensors.numpy
from hub_server import TOKEN
from hub_tools import compare, ok, refused, tool
from support import BINARY, run_ok, tree_of
from test_every_fault import SOURCED
from test_full_disk import SPEC

URL = "hf://org/in"
COMMANDS = [["digest", "in"], ["stats", "in", "--json"], ["inspect", "in"], ["inspect", "in", "--json"],
            ["diff", "in", "in", "--values"], ["diff", "other", "in", "--values"],
            ["convert", "in", "--to", "dcp", "-o"], ["convert", "in", "--to", "hdf5", "--dtype", "bf16", "-o"]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folders")
    (folder / "spec.yaml").write_text(SPEC)
    (folder / "other.yaml").write_text(SPEC.replace("std: 0.5", "std: 0.25"))
    for name, form in (("spec", "in"), ("other", "other")):
        run_ok("export", f"{name}.yaml", "--to", "safetensors", "--max-shard-size", "3000", "-o", form, cwd=folder)
    run_ok("export", "spec.yaml", "--to", "dcp", "-o", "dcp", cwd=folder)
    assert len(list((folder / "in").glob("*.safetensors"))) > 1
    return folder


@pytest.fixture
def model(hub, folders, tmp_path):
    """A server with the model `org/in`, and its copy `in` in the temporary folder."""
    shutil.copytree(folders, tmp_path, dirs_exist_ok=True)
    hub.sha = hub.put("org/in", folders / "in")
    return hub


def leaked(hub):
    return [request.target for request in hub.log if request.server == "store" and "authorization" in request.headers]


def test_commands_treat_a_model_like_a_local_folder(model, tmp_path):
    assert [compare(model, words, tmp_path, URL, HF_TOKEN=TOKEN) for words in COMMANDS] == [0, 0, 0, 0, 0, 1, 0, 0]
    assert ok(model, "digest", URL + "//").stdout == ok(model, "digest", URL).stdout
    assert not leaked(model) and any(request.headers.get("authorization") for request in model.log)
    assert {request.method for request in model.log} == {"GET"}


def test_single_files_folders_and_other_formats_are_read(model, folders, tmp_path):
    files = {f"deep/in/{path.relative_to(folders / 'dcp')}": path.read_bytes()
             for path in (folders / "dcp").rglob("*") if path.is_file()}
    files["one two/ü+%41.safetensors"] = safetensors.numpy.save({"w": np.arange(6, dtype=np.float32)})
    model.commit("org/many", files)
    shutil.rmtree(tmp_path / "in")
    shutil.copytree(folders / "dcp", tmp_path / "in")
    assert compare(model, ["digest", "in"], tmp_path, "hf://org/many/deep/in") == 0
    (tmp_path / "ü+%41.safetensors").write_bytes(files["one two/ü+%41.safetensors"])
    there = ok(model, "digest", "hf://org/many/one two/ü+%41.safetensors").stdout
    assert there == ok(model, "digest", tmp_path / "ü+%41.safetensors").stdout


def test_revisions_are_resolved_to_a_commit(model, folders, tmp_path):
    model.put("org/in", folders / "other", "refs/pr/1")
    other = run_ok("digest", folders / "other").stdout
    for revision in ("refs/pr/1", "refs%2Fpr%2F1", model.branches["org/in", "refs/pr/1"]):
        given = ok(model, "digest", f"hf://org/in@{revision}").stdout
        assert given == other
    assert compare(model, ["digest", "in"], tmp_path, f"hf://org/in@{model.sha}") == 0
    refused(model, 2, "Invalid rev id: v9", "digest", "hf://org/in@v9")
    assert tool(model, "diff", URL, "hf://org/in@refs/pr/1", "--values").returncode == 1


@pytest.mark.parametrize("name", ["hidden", "gated"])
def test_hidden_models_need_a_token(name, model, tmp_path):
    getattr(model, name).add("org/in")
    refused(model, 2, "Invalid username or password" if name == "hidden" else "accept its licence", "digest", URL)
    refused(model, 2, "set HF_TOKEN", "digest", URL, token="hf_wrong")
    (tmp_path / "token").write_text(f" {TOKEN}\n")
    (tmp_path / "home/.cache/huggingface").mkdir(parents=True)
    (tmp_path / "home/.cache/huggingface/token").write_text(TOKEN)
    for environment in ({"HF_TOKEN": TOKEN}, {"HF_TOKEN_PATH": str(tmp_path / "token")}, {"HF_HOME": str(tmp_path)},
                        {"HOME": str(tmp_path / "home")}, {"HF_HOME": "~/.cache/huggingface",
                                                           "HOME": str(tmp_path / "home")}):
        ok(model, "digest", URL, **environment)
        refused(model, 2, "set HF_TOKEN", "digest", URL, HF_HUB_DISABLE_IMPLICIT_TOKEN="1", **environment)
    assert not leaked(model)


def test_token_is_only_sent_to_the_hub(model, tmp_path):
    """Redirects to other servers, and lists that continue there, do not get the token."""
    port = model.store.rpartition(":")[2]
    for target in (f"http://localhost:{port}/x", f"//localhost:{port}/x", f"{model.store}/x"):
        def elsewhere(answer, target=target):
            answer.status, answer.headers["Location"] = 302, target

        model.faults = lambda request: elsewhere if request.server == "hub" and "/resolve/" in request.path else None
        refused(model, 2, "cannot read", "digest", URL, token=TOKEN)

    def next_page(answer):
        answer.headers["Link"] = f'<{model.store}/list>; rel="next"'

    model.faults = lambda request: next_page if "/tree/" in request.path else None
    refused(model, 5, "continues on another server", "digest", URL, token=TOKEN)
    assert not leaked(model)
    model.faults = None
    for bad in ("hf_a\nX-Evil: 1", "hf_\x01"):
        refused(model, 2, "the token in HF_TOKEN has characters", "digest", URL, token=bad)

    def echo(answer):
        answer.status, answer.headers = 403, {"X-Error-Message": f"no access with {TOKEN}"}

    model.faults = lambda request: echo
    assert TOKEN not in refused(model, 2, "no access with ***", "digest", URL, token=TOKEN).stderr

    def redirect(answer):
        answer.status, answer.headers = 302, {"Location": f"http://example.com/{TOKEN}"}

    model.faults = lambda request: redirect
    assert TOKEN not in refused(model, 2, "neither https nor on this machine", "digest", URL, token=TOKEN).stderr


@pytest.mark.parametrize("server", ["hub", "store"])
@pytest.mark.parametrize("fault", ["retry", 503, "drop", "truncate"])
def test_passing_faults_are_retried(server, fault, model, tmp_path):
    seen = set()

    def once(request):
        mark = (request.server, request.raw_path)
        if request.server != server or mark in seen or len(seen) == 2:
            return None
        seen.add(mark)
        return fault

    model.faults = once
    begin = time.monotonic()
    ok(model, "digest", URL)
    assert seen and (fault != "retry" or time.monotonic() - begin > 1)


def test_lasting_faults_end_with_their_reason(model, tmp_path):
    model.faults = lambda request: 501 if request.server == "store" else None
    refused(model, 3, "the server answered 501", "digest", URL)
    model.faults = lambda request: "whole" if request.server == "store" else None
    (tmp_path / "long").mkdir()
    safetensors.numpy.save_file({"w": np.zeros(1 << 20, np.float32)}, tmp_path / "long/model.safetensors")
    model.put("org/long", tmp_path / "long")
    refused(model, 2, "the server sends whole files instead of ranges", "digest", "hf://org/long")
    model.faults = None
    refused(model, 2, "Invalid username or password.\n  hint: check the name", "digest", "hf://org/none")
    refused(model, 2, "HF_HUB_OFFLINE", "digest", URL, HF_HUB_OFFLINE="1")
    refused(model, 2, "neither https nor on this machine", "digest", URL, HF_ENDPOINT="http://example.com")
    refused(model, 2, "not a URL of a web server", "digest", URL, HF_ENDPOINT="http://127.0.0.1@example.com")
    for url in ("hf://in", "hf://org/in@", "hf://datasets/org/in", "hf://spaces/org/in", "hf://", "hf://@", "hf:///in"):
        refused(model, 2, "does not name a model on the Hub", "digest", url)
    for url in ("hf://../in", "hf://org/..", "hf://org/in@..", "hf://org/i\tn"):
        refused(model, 5, "which no file of a model has", "digest", url)
    refused(model, 2, "Repository not found", "digest", "hf://org/in?x", token=TOKEN)
    for revision in ("main?x", "main#", "%2e%2e", "main%20"):
        refused(model, 2, f"Invalid rev id: {revision}", "digest", f"hf://org/in@{revision}")


def test_signal_ends_the_wait_for_a_busy_server(model):
    def busy(answer):
        answer.status, answer.headers["Retry-After"] = 429, "200"

    model.faults = lambda request: busy
    process = subprocess.Popen([BINARY, "digest", URL], env={**os.environ, **model.environment()},
                               stderr=subprocess.PIPE)
    while not model.log:
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == -signal.SIGTERM


@pytest.mark.parametrize("change", ["etag", "commit", "linked", "size", "encoded", "short", "store"])
def test_changed_files_are_an_error(change, model, tmp_path):
    """If an answer differs from the list at any read, the command fails and leaves nothing."""
    count = 0

    def spoil(answer):
        if change == "etag":
            answer.headers["ETag"] = '"other"'
        elif change == "commit":
            answer.headers["X-Repo-Commit"] = "0" * 40
        elif change == "linked":
            answer.headers["X-Linked-ETag"] = '"' + "0" * 64 + '"'
        elif change == "size":
            answer.headers["Content-Range"] = answer.headers.get("Content-Range", "").replace("/", "/9")
        elif change == "encoded":
            answer.headers["Content-Encoding"] = "gzip"
        elif change == "short":
            answer.body = answer.body[:-1]
        else:
            answer.headers["ETag"] = f'"{count}"'

    kinds = {"etag": ("hub", "/resolve-cache/"), "commit": ("hub", "/resolve/"), "linked": ("hub", ".safetensors")}
    server, mark = kinds.get(change, ("store", ""))

    def faults(request):
        nonlocal count
        count += request.server == server and mark in request.path
        return spoil if request.server == server and mark in request.path and (count > 2 or mark) else None

    model.faults = faults
    done = tool(model, "convert", URL, "--to", "dcp", "-j", "1", "-o", tmp_path / "out")
    assert done.returncode == 3 and re.search("is not the file that was listed|cannot read", done.stderr), done
    assert not (tmp_path / "out").exists()


def test_new_commits_do_not_matter_while_a_model_is_read(model, folders, tmp_path):
    expected = ok(model, "digest", URL).stdout

    def replace(request):
        if "/resolve/" in request.path:
            model.put("org/in", folders / "other")

    model.faults = replace
    assert ok(model, "digest", URL).stdout == expected
    model.faults = None
    assert ok(model, "digest", URL).stdout != expected


def test_places_that_expire_are_asked_for_again(model, tmp_path):
    (tmp_path / "in/model.safetensors.index.json").unlink()
    for path in (tmp_path / "in").glob("*"):
        path.unlink()
    safetensors.numpy.save_file({"w": np.arange(10 << 20, dtype=np.float32)}, tmp_path / "in/model.safetensors")
    model.put("org/in", tmp_path / "in")
    reads, used = 0, set()

    def expire(request):
        nonlocal reads
        if request.server == "store":
            reads += 1
            model.signature += request.target in used and reads % 3 == 0
            used.add(request.target)

    model.faults = expire
    assert compare(model, ["digest", "in", "-j", "1"], tmp_path, URL) == 0
    resolved = sum("/resolve/" in request.path for request in model.log)
    assert 1 < resolved < reads, (resolved, reads)


HOSTILE = ["../x.safetensors", "/etc/x.safetensors", "a/../x", "a//x", "./x", "a/", "x\x1b[31m", "x\n", "", "a\u202eb"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused(name, model):
    model.commit("org/in", {name: b"x", "model.safetensors": b"x"})
    done = refused(model, 5, "which no file of a model has", "digest", URL)
    assert "\x1b" not in done.stderr and "\u202e" not in done.stderr


@pytest.mark.parametrize("entry", [{"size": -1}, {"size": "9"}, {"size": 1 << 63}, {"oid": "x"}, {"oid": 9}, {"lfs": {}},
                                   {"lfs": {"oid": "0" * 64, "size": 5}}, {"path": ["x"]}, {"path": None}])
def test_wrong_lists_are_refused(entry, model):
    make = model.entry
    model.entry = lambda path, data: {**make(path, data), **entry}
    model.is_linked = lambda path: False
    refused(model, 5, "the list of `hf://org/in` has", "digest", URL)


@pytest.mark.parametrize("page", [b"[", b"{}", b"null", b"[1]", b"[[]]", b'[{"path":"x","path":"y"}]', b"[" * 100, b"\xff"])
def test_broken_pages_are_refused(page, model):
    def spoil(answer):
        answer.body = page
        answer.headers.pop("Content-Length", None)

    model.faults = lambda request: spoil if "/tree/" in request.path else None
    assert tool(model, "digest", URL).returncode == 5
    model.faults = lambda request: spoil if "/revision/" in request.path else None
    assert tool(model, "digest", URL).returncode == 5


def test_lists_that_lead_back_are_refused(model):
    def back(answer):
        answer.headers["Link"] = f'<{model.url}/api/models/org/in/tree/{model.sha}?recursive=true>; rel="next"'

    model.faults = lambda request: back if "/tree/" in request.path else None
    refused(model, 5, "twice", "digest", URL)


@pytest.mark.parametrize("form", [lambda link: {"link": '</x>; rel="preload"'},
                                  lambda link: {"Link": link.replace('"', "")}])
def test_lists_continue_despite_other_links(form, model):
    """A proxy may add a second header, and relations need no quotes."""
    expected = ok(model, "digest", URL).stdout

    def other(answer):
        if "Link" in answer.headers:
            answer.headers.update(form(answer.headers["Link"]))

    model.faults = lambda request: other if "/tree/" in request.path else None
    assert ok(model, "digest", URL).stdout == expected


def test_redirects_that_never_end_are_refused(model):
    def again(answer):
        answer.status, answer.headers["Location"] = 302, "again"

    model.faults = lambda request: again
    refused(model, 3, "more than 10 redirects", "digest", URL)


def test_urls_to_read_are_never_written(model, folders, tmp_path):
    for words in (["gen", "spec.yaml", "-o"], ["export", "spec.yaml", "--to", "dcp", "-o"],
                  ["convert", "in", "--to", "dcp", "-o"], ["reshard", "in", "-o"], ["status"], ["finalize"], ["verify"]):
        for url in (URL, "https://localhost/x", "http://localhost/x"):
            refused(model, 2, f"`{url}` is not a local folder or a bucket", *words, url, folder=tmp_path)
    for words in (["validate", URL], ["gen", URL, "-o", "x"], ["explain", "https://localhost/x", "w"]):
        refused(model, 2, "can only name a folder of tensors", *words, folder=tmp_path)
    assert not model.log


def test_checkpoints_on_the_hub_are_refused(model, tmp_path):
    run_ok("gen", "spec.yaml", "-o", "made", cwd=tmp_path)
    model.put("org/made", tmp_path / "made")
    for words in (["digest"], ["inspect"], ["convert", "--to", "dcp", "-o", "x"], ["reshard", "-o", "x"]):
        refused(model, 2, "has a checkpoint of shardinit", words[0], "hf://org/made", *words[1:], folder=tmp_path)


def test_hdf5_files_are_only_read_from_disk(model, folders, tmp_path):
    run_ok("gen", "spec.yaml", "-o", "made", cwd=tmp_path)
    (tmp_path / "h5").mkdir()
    shutil.copy(tmp_path / "made/ranks/rank-00000.h5", tmp_path / "h5/weights.h5")
    model.put("org/h5", tmp_path / "h5")
    for url in ("hf://org/h5", "hf://org/h5/weights.h5"):
        for command in ("digest", "inspect"):
            refused(model, 2, "is not a checkpoint and contains no safetensors files", command, url)


def test_specs_and_import_read_models(model, folders, tmp_path):
    (tmp_path / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, '
        '"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128, '
        '"max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false}')
    run_ok("export", "config.json", "--to", "safetensors", "--layout", "hf", "-o", tmp_path / "llama", cwd=tmp_path)
    shutil.copy(tmp_path / "config.json", tmp_path / "llama")
    model.put("org/llama", tmp_path / "llama")
    for url in ("hf://org/llama", "hf://org/llama/config.json"):
        there = ok(model, "import", url).stdout
        assert there.splitlines()[1:] == run_ok("import", "llama", cwd=tmp_path).stdout.splitlines()[1:]
    assert compare(model, ["convert", "llama", "--to", "dcp", "--layout", "torchtitan", "-o"], tmp_path,
                   "hf://org/llama", "llama") == 0
    model.put_web(tmp_path / "llama")
    assert ok(model, "import", f"{model.url}/web/model").stdout.splitlines()[1:] == there.splitlines()[1:]
    assert ok(model, "import", f"{model.url}/web/model/config.json").stdout.splitlines()[1:] == there.splitlines()[1:]
    (tmp_path / "sourced.yaml").write_text(SOURCED)
    ok(model, "gen", "sourced.yaml", "--source", f"old={URL}", "-o", tmp_path / "there", folder=tmp_path)
    ok(model, "gen", "sourced.yaml", "--source", "old=in", "-o", tmp_path / "here", folder=tmp_path)
    assert tree_of(tmp_path / "there") == tree_of(tmp_path / "here")


def test_huggingface_hub_reads_the_test_server(model, tmp_path):
    """The Hub's own client accepts the answers of the server that these tests use."""
    api = huggingface_hub.HfApi(endpoint=model.url, token=TOKEN)
    model.hidden.add("org/in")
    files = {path.name: path for path in (tmp_path / "in").iterdir() if path.is_file()}
    listed = {entry.path: entry for entry in api.list_repo_tree("org/in", recursive=True)
              if isinstance(entry, huggingface_hub.hf_api.RepoFile)}
    assert {name: entry.size for name, entry in listed.items()} == {n: p.stat().st_size for n, p in files.items()}
    assert api.model_info("org/in", revision="main").sha == model.sha
    for name, path in files.items():
        got = huggingface_hub.hf_hub_download("org/in", name, endpoint=model.url, token=TOKEN,
                                              cache_dir=tmp_path / "cache")
        assert open(got, "rb").read() == path.read_bytes() and model.sha in got
    with pytest.raises(huggingface_hub.errors.RevisionNotFoundError):
        api.model_info("org/in", revision="none")
    with pytest.raises(huggingface_hub.errors.RepositoryNotFoundError):
        api.model_info("org/none")
    with pytest.raises(huggingface_hub.errors.RepositoryNotFoundError):
        huggingface_hub.HfApi(endpoint=model.url, token=False).model_info("org/in")
    model.hidden.clear()
    model.gated.add("org/in")
    with pytest.raises(huggingface_hub.errors.GatedRepoError):
        huggingface_hub.hf_hub_download("org/in", "config.json" if "config.json" in files else next(iter(files)),
                                        endpoint=model.url, token=False, cache_dir=tmp_path / "cache2")
    assert not leaked(model)
