"""Commands read `https://` like a folder on disk. The tests use http, which is allowed on this machine."""

import json
import re
import shutil

import numpy as np
import pytest
import safetensors.numpy
from hub_tools import compare, ok, refused, tool


@pytest.fixture
def web(hub, tmp_path):
    """A server with a model in two files, and its copy `in`."""
    folder = tmp_path / "in"
    folder.mkdir()
    parts = {"model-00001-of-00002.safetensors": {"a": np.arange(6, dtype=np.float32)},
             "model-00002-of-00002.safetensors": {"b": np.ones((3, 4), np.float16)}}
    for file, tensors in parts.items():
        safetensors.numpy.save_file(tensors, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map": {name: file for file, tensors in parts.items() for name in tensors}}))
    (folder / "config.json").write_text("{}")
    hub.put_web(folder, "in")
    return hub


def test_folders_indexes_and_files_are_read(web, tmp_path):
    url = f"{web.url}/web/in"
    for words in (["digest", "in"], ["inspect", "in", "--json"], ["convert", "in", "--to", "dcp", "-o"]):
        assert compare(web, words, tmp_path, url) == 0
    assert ok(web, "digest", url + "/").stdout == ok(web, "digest", url).stdout
    for file in ("model.safetensors.index.json", "model-00001-of-00002.safetensors"):
        there, here = (ok(web, "digest", f"{place}/{file}") for place in (url, tmp_path / "in"))
        assert there.stdout == here.stdout and there.stderr.replace(url, "") == here.stderr.replace(f"{tmp_path}/in", "")
    safetensors.numpy.save_file({"w": np.zeros(3, np.float32)}, tmp_path / "x y.safetensors")
    web.web["x y.safetensors"] = (tmp_path / "x y.safetensors").read_bytes()
    ok(web, "digest", f"{web.url}/web/x%20y.safetensors")
    assert tool(web, "diff", url, f"{url}/model.safetensors.index.json", "--values").returncode == 0
    assert not any("authorization" in request.headers for request in web.log)


def test_redirects_are_followed(web, tmp_path):
    def moved(answer):
        answer.status, answer.headers["Location"] = 302, "../moved" + moved.path

    def faults(request):
        moved.path = request.raw_path.removeprefix("/web")
        return moved if "/moved/" not in request.path else None

    web.web.update({f"moved/{name}": data for name, data in web.web.items()})
    web.faults = faults
    assert compare(web, ["digest", "in"], tmp_path, f"{web.url}/web/in") == 0


@pytest.mark.parametrize("etag", [lambda data: None, lambda data: 'W/"weak"', lambda data: '"strong"'])
def test_replaced_files_are_an_error(etag, web, tmp_path):
    """The time of a file identifies it if its ETag cannot."""
    web.etag = etag
    url = f"{web.url}/web/in"
    ok(web, "digest", url)

    def change(answer):
        answer.headers.update({"ETag": '"new"'} if etag(b"") == '"strong"' else {"Last-Modified": "later"})

    web.faults = lambda request: change if "00002" in request.path and request.headers["range"] != "bytes=0-0" else None
    refused(web, 3, "changed while it was read", "digest", url)

    def forget(answer):
        answer.headers = {name: value for name, value in answer.headers.items() if name == "Content-Range"}

    web.faults = lambda request: forget
    refused(web, 2, "neither a strong ETag nor Last-Modified", "digest", url)


def test_servers_that_cannot_be_followed_are_refused(web, tmp_path):
    url = f"{web.url}/web/in"
    web.faults = lambda request: "whole"
    refused(web, 2, "sends whole files instead of ranges", "digest", url)
    web.faults = lambda request: 403
    refused(web, 2, "use `hf://ORG/MODEL`", "digest", url)
    web.faults = None
    refused(web, 2, "is not a checkpoint and contains no safetensors files", "digest", f"{web.url}/web/none")
    refused(web, 2, "has a query or a fragment", "digest", f"{url}?x=1")
    refused(web, 2, "neither https nor on this machine", "digest", "http://example.com/x")
    refused(web, 2, "not a URL of a web server", "digest", "https://")
    refused(web, 2, "not a URL of a web server", "digest", "https://user@example.com/x")
    refused(web, 2, "not a URL of a web server", "digest", "https://example.com\\@localhost/x")
    del web.web["in/model-00002-of-00002.safetensors"]
    shutil.copytree(tmp_path / "in", tmp_path / "less")
    (tmp_path / "less/model-00002-of-00002.safetensors").unlink()
    assert compare(web, ["digest", "less"], tmp_path, url, "less") != 0


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a\nb.safetensors", "", "\x1b.safetensors"])
def test_hostile_names_in_an_index_are_refused(name, web):
    web.web["in/model.safetensors.index.json"] = json.dumps({"weight_map": {"a": name}}).encode()
    assert "\x1b" not in refused(web, 5, "which no file of a model has", "digest", f"{web.url}/web/in").stderr
    assert not any("passwd" in request.path for request in web.log)


def test_long_indexes_are_refused(web):
    web.web["in/model.safetensors.index.json"] = json.dumps(
        {"weight_map": {str(i): f"{i}.safetensors" for i in range(10_001)}}).encode()
    refused(web, 5, "names 10001 files, but at most 10000 are allowed", "digest", f"{web.url}/web/in")


def test_inspect_shows_single_files(web, tmp_path):
    name = "model-00001-of-00002.safetensors"
    assert compare(web, ["inspect", name, "--json"], tmp_path / "in", f"{web.url}/web/in/{name}", name) == 0


@pytest.mark.parametrize("first", ["", "/model.safetensors.index.json", "/a.safetensors.index.json"])
@pytest.mark.parametrize("second", ["/more.safetensors", "/b.safetensors.index.json"])
def test_files_next_to_a_listed_folder_are_found(first, second, web):
    web.web["in/more.safetensors"] = safetensors.numpy.save({"a": np.zeros(6, np.float32)})
    for name in "ab":
        web.web[f"in/{name}.safetensors.index.json"] = json.dumps({"weight_map": {"a": "more.safetensors"}}).encode()
    url = f"{web.url}/web/in"
    code = 0 if first == "/a.safetensors.index.json" else 1
    for words in ([url + first, url + second], [url + second, url + first]):
        assert tool(web, "diff", *words, "--values").returncode == code, words


def test_sizes_that_no_file_has_are_refused(web):
    def grow(answer):
        answer.headers["Content-Range"] = re.sub("/.*", f"/{(1 << 63) - 1}", answer.headers["Content-Range"])

    web.faults = lambda request: grow
    refused(web, 3, "1 bytes from 0 on were requested", "digest", f"{web.url}/web/in/model-00001-of-00002.safetensors")
