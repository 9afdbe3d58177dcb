"""The Hub of Hugging Face for tests, and a second server that stores its large files.

The servers answer as the Hub does; test_hub.py checks that with the Hub's own client. They can also answer as busy,
broken or hostile servers would."""

import base64
import contextlib
import email.utils
import hashlib
import http.server
import json
import random
import re
import socket
import threading
import time
import urllib.parse

import pytest
from object_store import Server

TOKEN = "hf_TestsOnlyToken"
ENVIRONMENT = {"HOME": "/nonexistent", "NO_PROXY": "*"}


def blob_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Request:
    def __init__(self, server, handler):
        self.server, self.method, self.target = server, handler.command, handler.path
        self.headers = {name.lower(): value for name, value in handler.headers.items()}
        path, _, query = handler.path.partition("?")
        self.raw_path, self.path = path, urllib.parse.unquote(path)
        self.query = dict(urllib.parse.parse_qsl(query))


class Answer:
    def __init__(self, status, body=b"", **headers):
        self.status, self.body = status, body
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def part_of(request, data, **headers):
    """Answers a request for a file or for a range of it."""
    found = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
    if not found:
        return Answer(200, data, Accept_Ranges="bytes", **headers)
    begin, end = int(found[1]), min(int(found[2]) + 1, len(data))
    if begin >= len(data):
        return Answer(416, Content_Range=f"bytes */{len(data)}", **headers)
    return Answer(206, data[begin:end], Content_Range=f"bytes {begin}-{end - 1}/{len(data)}", **headers)


class Hub:
    """`repositories` maps a name to its commits, each a map of paths to bytes, and `branches` a name and a revision to
    a commit. `hidden` and `gated` repositories need the token. Files that `is_linked` accepts are on the second
    server. `faults`, called with each Request, returns a fault: a status, `drop`, `truncate`, `whole` (the range is
    ignored), `retry` (429), or a function that changes the Answer. `web` maps paths of a plain web server to bytes."""

    def __init__(self):
        self.lock = threading.Lock()
        self.repositories, self.branches, self.hidden, self.gated, self.web = {}, {}, set(), set(), {}
        self.is_linked = lambda path: path.endswith((".safetensors", ".bin"))
        self.page, self.faults, self.log, self.etag = 2, None, [], lambda data: f'"{hashlib.md5(data).hexdigest()}"'
        self.signature = 0
        self.servers = [self.start("hub"), self.start("store")]
        self.url, self.store = (f"http://127.0.0.1:{server.server_address[1]}" for server in self.servers)

    def start(self, name):
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.serve(name, self)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def stop(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def environment(self, token=None):
        return {**ENVIRONMENT, "HF_ENDPOINT": self.url, **({"HF_TOKEN": token} if token else {})}

    def put(self, name, folder, branch="main"):
        """Makes a commit of the files in a folder."""
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return self.commit(name, files, branch)

    def commit(self, name, files, branch="main"):
        commits = self.repositories.setdefault(name, {})
        sha = hashlib.sha1(f"{name} {len(commits)}".encode()).hexdigest()
        commits[sha] = dict(files)
        self.branches[name, branch] = sha
        return sha

    def serve(self, server, handler):
        request = Request(server, handler)
        with self.lock:
            self.log.append(request)
            fault = self.faults(request) if self.faults else None
        if fault == "drop":
            return self.close(handler)
        if fault == "retry":
            answer = Answer(429, b"slow down", Retry_After="1")
        elif isinstance(fault, int):
            answer = Answer(fault, b"injected")
        else:
            if fault == "whole":
                request.headers.pop("range", None)
            answer = self.answer_of_store(request) if server == "store" else self.answer_of_hub(request)
            if callable(fault):
                fault(answer)
        handler.send_response_only(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if request.method == "HEAD":
            return None
        with contextlib.suppress(OSError):
            handler.wfile.write(answer.body[:len(answer.body) // 2] if fault == "truncate" else answer.body)
        return self.close(handler) if fault == "truncate" else None

    @staticmethod
    def close(handler):
        handler.close_connection = True
        with contextlib.suppress(OSError):
            handler.connection.shutdown(socket.SHUT_RDWR)

    def answer_of_store(self, request):
        """A store of large files: its URLs are signed, and it never needs the token."""
        if "authorization" in request.headers:
            return Answer(400, b"two kinds of authorization")
        if int(request.query.get("X-Signature", "/-1")[1:]) < self.signature:
            return Answer(403, b"expired")
        for commits in self.repositories.values():
            for files in commits.values():
                for data in files.values():
                    if hashlib.sha256(data).hexdigest() == request.path.rpartition("/")[2]:
                        return part_of(request, data, ETag=self.etag(data))
        return Answer(404)

    def answer_of_hub(self, request):
        if request.path.startswith("/web/"):
            return self.answer_of_web(request)
        found = (re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)/?", request.raw_path)
                 or re.fullmatch(r"/([^/]+/[^/]+)/(resolve)/([^/]+)/(.+)", request.raw_path)
                 or re.fullmatch(r"/api/resolve-cache/models/([^/]+/[^/]+)/(cached)/([^/]+)/(.+)", request.raw_path))
        if not found:
            return Answer(404, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        name, kind, revision = found[1], found[2], urllib.parse.unquote(found[3])
        is_known = request.headers.get("authorization") == f"Bearer {TOKEN}"
        if name not in self.repositories or name in self.hidden and not is_known:
            return Answer(404 if is_known else 401, X_Error_Code="RepoNotFound",
                          X_Error_Message="Repository not found" if is_known else "Invalid username or password.")
        if name in self.gated and not is_known and kind in ("resolve", "cached"):
            return Answer(401, X_Error_Code="GatedRepo", X_Error_Message=f"Access to model {name} is restricted.")
        commits = self.repositories[name]
        sha = self.branches.get((name, revision), revision)
        if sha not in commits:
            return Answer(404, X_Error_Code="RevisionNotFound", X_Error_Message=f"Invalid rev id: {revision}")
        if kind == "revision":
            return self.in_json({"id": name, "modelId": name, "sha": sha, "private": name in self.hidden, "tags": [],
                                 "downloads": 0, "likes": 0})
        if kind == "tree":
            return self.tree(request, name, sha)
        return self.file(request, name, sha, urllib.parse.unquote(found[4]), kind == "cached")

    @staticmethod
    def in_json(value, **headers):
        return Answer(200, json.dumps(value).encode(), Content_Type="application/json", **headers)

    def entry(self, path, data):
        entry = {"type": "file", "oid": blob_id(data), "size": len(data), "path": path}
        if self.is_linked(path):
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            entry["oid"] = blob_id(json.dumps(entry["lfs"]).encode())
        return entry

    def tree(self, request, name, sha):
        files = self.repositories[name][sha]
        folders = {path[:at] for path in files for at, c in enumerate(path) if c == "/"}
        entries = [{"type": "directory", "oid": blob_id(path.encode()), "size": 0, "path": path}
                   for path in sorted(folders)] + [self.entry(path, data) for path, data in files.items()]
        begin = int(base64.b64decode(request.query.get("cursor", "MA==")))
        headers = {}
        if begin + self.page < len(entries):
            cursor = urllib.parse.quote(base64.b64encode(str(begin + self.page).encode()).decode())
            headers["Link"] = f'<{self.url}{request.raw_path}?recursive=true&cursor={cursor}>; rel="next"'
        return self.in_json(entries[begin:begin + self.page], **headers)

    def file(self, request, name, sha, path, is_cached):
        data = self.repositories[name][sha].get(path)
        if data is None:
            return Answer(404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found", X_Repo_Commit=sha)
        if self.is_linked(path):
            digest = hashlib.sha256(data).hexdigest()
            where = (f"{self.store}/repos/a%2Fb/{digest}?response-content-disposition=inline%3B+filename%3D%22x%22"
                     f"&X-Signature=%2F{self.signature}")
            return Answer(302, f"Found. Redirecting to {where}".encode(), Location=where, X_Repo_Commit=sha,
                          X_Linked_ETag=f'"{digest}"', X_Linked_Size=str(len(data)), ETag='"of the redirect"')
        if not is_cached:
            where = f"/api/resolve-cache/models/{name}/cached/{sha}/{urllib.parse.quote(path)}"
            return Answer(307, b"Temporary Redirect", Location=where, X_Repo_Commit=sha, ETag=f'"{blob_id(data)}"')
        return part_of(request, data, X_Repo_Commit=sha, ETag=f'W/"{blob_id(data)}"')

    def answer_of_web(self, request):
        """A plain web server, whose files have an ETag unless `etag` returns None."""
        data = self.web.get(request.path.removeprefix("/web/"))
        if data is None:
            return Answer(404, b"<html>not found</html>")
        headers = {"Last_Modified": email.utils.formatdate(1_700_000_000, usegmt=True)}
        etag = self.etag(data)
        return part_of(request, data, **headers, **({"ETag": etag} if etag else {}))

    def put_web(self, folder, prefix="model"):
        for path in folder.rglob("*"):
            if path.is_file():
                self.web[f"{prefix}/{path.relative_to(folder)}"] = path.read_bytes()


class Faults:
    """Answers a random share of requests with faults."""

    def __init__(self, seed, share):
        self.random, self.share, self.made = random.Random(seed), share, []

    def __call__(self, request):
        if self.random.random() > self.share:
            return None
        fault = self.random.choice([500, 502, 503, "drop", "truncate", "slow"])
        self.made.append(fault)
        if fault == "slow":
            time.sleep(0.2)
            return None
        return fault


@contextlib.contextmanager
def serve():
    hub = Hub()
    try:
        yield hub
    finally:
        hub.stop()


@pytest.fixture
def hub():
    with serve() as server:
        yield server
