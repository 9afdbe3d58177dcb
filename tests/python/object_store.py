"""An S3 object store for tests: moto with a proxy in front.

For each request, the proxy recomputes the signature from the bytes received and checks the digest of the body. It can
answer as a busy, broken or careless store would."""

import contextlib
import datetime
import hashlib
import hmac
import html
import http.client
import http.server
import pathlib
import re
import socket
import tempfile
import threading
import time
import urllib.parse

import pytest
from moto_server import moto_server

KEY, SECRET = "AKIDTESTS", "secret/of+the=tests"
REGION = "eu-test-1"


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, *_):
        pass  # Killed clients break connections.


class Request:
    """A request and its kind of operation."""

    def __init__(self, method, target, headers, body):
        self.method, self.target, self.headers, self.body = method, target, headers, body
        self.path, _, self.raw_query = target.partition("?")
        self.query = dict(urllib.parse.parse_qsl(self.raw_query, keep_blank_values=True))
        self.key = urllib.parse.unquote(self.path).partition("/")[2].partition("/")[2]

    @property
    def kind(self):
        if "uploads" in self.query:
            return "begin" if self.method == "POST" else "uploads"
        if "uploadId" in self.query:
            return {"PUT": "part", "POST": "complete", "DELETE": "end"}[self.method]
        return "list" if "list-type" in self.query else self.method.lower()


def error_of_signature(request, secrets, region=REGION, now=None):
    """Returns the error in a request's signature, or None. The signature is recomputed from the received bytes."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    match = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, "
                         r"SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})", headers.get("authorization", ""))
    if not match:
        return "no authorization"
    key, date, scope_region, names, signature = match.groups()
    if key not in secrets:
        return f"unknown key {key}"
    secret, token = secrets[key]
    if scope_region != region:
        return "another region"
    if headers.get("x-amz-security-token") != token:
        return "another session token"
    stamp = datetime.datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
    if abs((stamp - (now or datetime.datetime.now(datetime.UTC))).total_seconds()) > 900:
        return "another time"
    if not headers["x-amz-date"].startswith(date):
        return "another date"
    if hashlib.sha256(request.body).hexdigest() != headers.get("x-amz-content-sha256"):
        return "another body"
    signed = names.split(";")
    must = {name for name in headers if name.startswith(("x-amz-", "if-")) or name in ("host", "range")}
    if signed != sorted(signed) or not must <= set(signed):
        return f"headers that are not signed: {must - set(signed)}"
    if request.path != urllib.parse.quote(urllib.parse.unquote_to_bytes(request.path), safe="/-._~"):
        return f"a path that is not canonical: {request.path}"
    members = [member if "=" in member else member + "=" for member in request.raw_query.split("&") if member]
    canonical = "\n".join([request.method, request.path, "&".join(sorted(members)),
                           *(f"{name}:{' '.join(headers[name].split())}" for name in signed), "", names,
                           headers["x-amz-content-sha256"]])
    scope = f"{date}/{scope_region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest()])
    k = ("AWS4" + secret).encode()
    for part in (date, scope_region, "s3", "aws4_request", text):
        k = hmac.new(k, part.encode(), hashlib.sha256).digest()
    return None if k.hex() == signature else "another signature"


class Store:
    """A store with injected faults.

    `faults`, called with each Request, returns a fault: a status, `drop` (the request does not reach the store), `lose`
    (the answer is lost), `slow`, `error200`, `blank200` or `empty200`; None for a normal answer. The store ignores the
    headers in `ignores` and lists `page` objects at a time. `refused` records errors of requests, `log` the kind and
    key of each."""

    def __init__(self, port):
        self.backend = ("127.0.0.1", port)
        self.lock = threading.Lock()
        self.reset()
        store = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                store.answer(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer

            def log_message(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def reset(self):
        """Empties the store and makes the bucket `bucket`."""
        self.faults, self.ignores, self.page, self.log, self.refused = None, (), 1000, [], []
        self.secrets = {KEY: (SECRET, None)}
        self.forward("POST", "/moto-api/reset")
        self.make_bucket("bucket")

    def make_bucket(self, name):
        assert self.forward("PUT", f"/{name}")[0] == 200

    @property
    def environment(self):
        return {"AWS_ENDPOINT_URL": self.url, "AWS_REGION": REGION, "AWS_ACCESS_KEY_ID": KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent"}

    def forward(self, method, target, headers={}, body=b""):
        connection = http.client.HTTPConnection(*self.backend, timeout=60)
        with contextlib.closing(connection):
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            # moto takes a host's first label for a bucket, and trusts any key.
            authorization = {"authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/s3/aws4_request, "
                             "SignedHeaders=host, Signature=0"}
            named = any(name.lower() == "authorization" for name in headers)
            for name, value in {**({} if named else authorization), **headers, "host": "s3.amazonaws.com",
                                "content-length": str(len(body))}.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()

    def answer(self, handler):
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        if len(body) < int(handler.headers.get("content-length", 0)):
            return self.drop(handler)  # The client was killed.
        request = Request(handler.command, handler.path, dict(handler.headers.items()), body)
        wrong = error_of_signature(request, self.secrets)
        with self.lock:
            self.log.append((request.kind, request.key))
            if wrong:
                self.refused.append((wrong, request.method, request.target))
            fault = None if wrong or self.faults is None else self.faults(request)
        if wrong:
            codes = {"another session token": (400, "ExpiredToken"),
                     "another region": (400, "AuthorizationHeaderMalformed")}
            status, code = codes.get(wrong, (403, "SignatureDoesNotMatch"))
            return self.reply(handler, status, self.error(code, wrong), {"x-amz-bucket-region": REGION})
        if fault == "drop":
            return self.drop(handler)
        if fault == "slow":
            time.sleep(0.5)
        if isinstance(fault, int):
            codes = {404: "NoSuchUpload", 409: "ConditionalRequestConflict", 412: "PreconditionFailed",
                     501: "NotImplemented", 503: "SlowDown"}
            return self.reply(handler, fault, self.error(codes.get(fault, "InternalError"), "injected"))
        if fault == "error200":
            return self.reply(handler, 200, self.error("InternalError", "injected"))
        if fault == "blank200":  # S3 sends white space before a slow answer.
            return self.reply(handler, 200, b" " * 400 + self.error("InternalError", "injected"))
        if fault == "empty200":
            return self.reply(handler, 200, b"")
        headers = {name: value for name, value in request.headers.items()
                   if name.lower() not in self.ignores and name.lower() not in ("host", "content-length")}
        with self.lock:  # moto checks and writes in two steps.
            target = request.target + f"&max-keys={self.page}" * (request.kind == "list")
            status, headers, body = self.forward(request.method, target, headers, request.body)
        if fault == "lose":
            return self.drop(handler)
        self.reply(handler, status, body, headers)

    @staticmethod
    def error(code, message):
        return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()

    @staticmethod
    def drop(handler):
        handler.close_connection = True
        with contextlib.suppress(OSError):
            handler.connection.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def reply(handler, status, body, headers={}):
        handler.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                handler.send_header(name, value)
        length = next((v for n, v in headers.items() if n.lower() == "content-length"), len(body))
        handler.send_header("Content-Length", length if handler.command == "HEAD" else len(body))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    # Tests access the store directly, without the proxy.
    def names(self, prefix="", bucket="bucket"):
        _, _, body = self.forward("GET", f"/{bucket}?list-type=2&prefix={urllib.parse.quote(prefix)}")
        return [html.unescape(key) for key in re.findall(r"<Key>([^<]*)</Key>", body.decode())]

    def get(self, key, bucket="bucket"):
        status, _, body = self.forward("GET", f"/{bucket}/{urllib.parse.quote(key)}")
        assert status == 200, (key, status)
        return body

    def put(self, key, body, bucket="bucket"):
        assert self.forward("PUT", f"/{bucket}/{urllib.parse.quote(key)}", body=body)[0] == 200

    def remove(self, key, bucket="bucket"):
        assert self.forward("DELETE", f"/{bucket}/{urllib.parse.quote(key)}")[0] == 204

    def uploads(self, bucket="bucket"):
        _, _, body = self.forward("GET", f"/{bucket}?uploads")
        return [html.unescape(key) for key in re.findall(r"<Key>([^<]*)</Key>", body.decode())]

    def download(self, prefix, folder, bucket="bucket"):
        """Writes all objects below a prefix into a folder."""
        for key in self.names(prefix + "/", bucket):
            path = pathlib.Path(folder) / key[len(prefix) + 1:]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.get(key, bucket))


@contextlib.contextmanager
def serve():
    """Runs moto with a proxy in front."""
    with tempfile.TemporaryDirectory() as folder, moto_server(pathlib.Path(folder)) as backend:
        store = Store(backend.address[1])
        yield store
        store.server.shutdown()


@pytest.fixture(scope="module")
def object_store_server():
    with serve() as store:
        yield store


@pytest.fixture
def object_store(object_store_server):
    """An empty store with a bucket `bucket`."""
    object_store_server.reset()
    return object_store_server
