"""Reads random trees of files from a model on the Hub and from a web server that fail at times; commands must print and
write the same as for the folder on disk, or report the reason.

The packages that own the formats write the folders."""

import pathlib
import shutil
import tempfile

import pytest
from generated import generated, given
from hub_server import TOKEN, Faults, serve
from hub_tools import compare, run_on
from hypothesis import strategies as st
from test_generated_folders import WRITERS, made, tensors, write

# What a file of another version, or another server, would change in an answer; and in the list of the Hub.
LIES = {"etag": {"ETag": '"lie"', "X-Linked-ETag": '"lie"'}, "commit": {"X-Repo-Commit": "0" * 40},
        "range": {"Content-Range": "bytes 0-1/2"}, "encoding": {"Content-Encoding": "gzip"},
        "away": {"Location": "http://example.com/x"}}
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=8)


def trees():
    return st.fixed_dictionaries({
        "forms": tensors(), "writer": st.sampled_from(sorted(WRITERS)), "bits": st.integers(0, 99),
        "below": st.sampled_from(["", "deep", "a b/ü%41+"]), "others": st.lists(NAMES, max_size=4),
        "revision": st.sampled_from(["", "@main", "@refs/pr/3", "@v1.0", "@a%2Fb"]), "page": st.integers(1, 7),
        "linked": st.integers(0, 2), "hidden": st.booleans(), "faults": st.one_of(st.none(), st.integers(0, 99)),
        "lie": st.one_of(st.none(), st.sampled_from(sorted(LIES))), "at": st.integers(1, 12),
        "words": st.sampled_from([["digest", "in"], ["inspect", "in", "--json"], ["stats", "in"],
                                  ["convert", "in", "--to", "safetensors", "-o"]])})


@pytest.fixture(scope="module")
def server():
    with serve() as hub:
        yield hub


def prepare(server, case):
    server.repositories, server.branches, server.hidden, server.web, server.log = {}, {}, set(), {}, []
    server.page, server.faults, server.signature = case["page"], None, 0
    server.is_linked = [lambda path: True, lambda path: False, lambda path: "." in path][case["linked"]]
    if case["hidden"]:
        server.hidden.add("org/model")


def put(server, case, path):
    """Makes a commit with the folder or file and other files. Returns its URL and whether a name is hostile."""
    below = case["below"] + "/" if case["below"] else ""
    paths = {path.name: path} if path.is_file() else {f"{path.name}/{p.relative_to(path)}": p
                                                      for p in path.rglob("*") if p.is_file()}
    files = {**{f"other/{name}": b"x" for name in case["others"]},
             **{below + name: p.read_bytes() for name, p in paths.items()}}
    branch = (case["revision"][1:] or "main").replace("%2F", "/")
    server.commit("org/model", files, branch)
    return f"hf://org/model{case['revision']}/{below}{path.name}"


@generated(16)
@given(case=trees())
def test_random_models_are_read_like_local_ones(server, case):
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        path = write(case["writer"], made(case["forms"], case["bits"]), folder)
        prepare(server, case)
        url = put(server, case, path)
        words = [path.name if word == "in" else word for word in case["words"]]
        if case["faults"] is not None:
            server.faults = Faults(case["faults"], 0.1)
        there, text, result = run_on(server, words, url, path.name, folder, HF_TOKEN=TOKEN)
        if there.returncode == 5 and "which no file of a model has" in text:
            assert any(not name.isprintable() or name in (".", "..") or not name.isascii() for name in case["others"])
            return
        shutil.rmtree(folder / "out", ignore_errors=True)
        server.faults = None
        here = run_on(server, words, path.name, path.name, folder)
        assert (there.returncode, text, result) == (here[0].returncode, *here[1:]), (there, here)
        assert not any(r.server == "store" and "authorization" in r.headers for r in server.log)


@generated(16)
@given(case=trees())
def test_random_lies_of_servers_are_noticed_or_change_nothing(server, case):
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        path = write(case["writer"], made(case["forms"], case["bits"]), folder)
        prepare(server, case)
        url = put(server, {**case, "others": []}, path)
        words = [path.name if word == "in" else word for word in case["words"]]
        lie, count = case["lie"], 0

        def spoil(answer):
            if lie == "away":
                answer.status = 302
            answer.headers.update(LIES[lie] if lie else {})
            if lie is None:
                answer.body = answer.body[:-1]

        def faults(request):
            nonlocal count
            count += "/api/" not in request.path
            return spoil if "/api/" not in request.path and count >= case["at"] else None

        server.faults = faults
        there, text, result = run_on(server, words, url, path.name, folder, HF_TOKEN=TOKEN)
        server.faults = None
        here = run_on(server, words, path.name, path.name, folder)
        if (there.returncode, text, result) == (here[0].returncode, *here[1:]):
            return
        assert there.returncode in (2, 3, 5) and "error: " in there.stderr and result is None, there
        assert any(mark in there.stderr for mark in ("cannot read", "is not the file that was listed", "redirect")), there


@generated(8)
@given(case=trees())
def test_random_folders_on_web_servers_are_read_like_local_ones(server, case):
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        path = write("safetensors", made(case["forms"], case["bits"]), folder)
        prepare(server, case)
        if path.is_file():
            server.web[path.name] = path.read_bytes()
        else:
            server.put_web(path, path.name)
        words = [path.name if word == "in" else word for word in case["words"]]
        if case["faults"] is not None:
            server.faults = Faults(case["faults"], 0.1)
        compare(server, words, folder, f"{server.url}/web/{path.name}", path.name)
