"""Runs moto, a server that speaks S3, on a free port of this machine for tests that read from buckets.

It accepts any key and does not check signatures. Its answers about ranges, conditions and missing objects are S3's. It
has an environment of its own, build/moto, so that its dependencies do not change the tests' packages. The phase
`packages` of tests/run.sh makes it.
"""

import contextlib
import http.client
import re
import subprocess
import time

import pytest

from support import CLEAN, ROOT

PROGRAM = ROOT / "build/moto/bin/moto_server"
KEYS = {"AWS_ACCESS_KEY_ID": "shardinit", "AWS_SECRET_ACCESS_KEY": "shardinit", "AWS_DEFAULT_REGION": "us-east-1"}
# moto accepts any signature.
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, "
                           "Signature=0"}


class Server:
    """A running server and the requests it received."""

    def __init__(self, port, log):
        self.address, self.url, self._log = ("127.0.0.1", port), f"http://127.0.0.1:{port}", log

    def request(self, method, path, body=b"", headers=None):
        """Sends a request and returns status and body of the answer."""
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.request(method, path, body, {**SIGNED, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def put(self, path, body=b""):
        headers = {"Content-Length": str(len(body)), "x-amz-acl": "public-read"}  # For h5dump, which has no key.
        status, answer = self.request("PUT", path, body, headers)
        assert status == 200, answer

    def upload(self, folder, bucket, prefix):
        """Uploads all files of a folder below bucket/prefix, the manifest last."""
        self.put(f"/{bucket}")
        files = sorted((file for file in folder.rglob("*") if file.is_file()),
                       key=lambda file: file.name == "manifest.json")
        for file in files:
            self.put(f"/{bucket}/{prefix}/{file.relative_to(folder)}", file.read_bytes())
        return f"s3://{bucket}/{prefix}"

    def requests(self):
        """Returns (method, path) of all requests so far."""
        return re.findall(r"([A-Z]+) (\S+) HTTP/1", self._log.read_text())

    @contextlib.contextmanager
    def counted(self):
        """Yields a list that, when the block ends, receives the requests made in it."""
        before, made = len(self.requests()), []
        yield made
        made += self.requests()[before:]


@contextlib.contextmanager
def moto_server(folder):
    """Runs a server with its log in `folder` until the block ends."""
    if not PROGRAM.exists():
        pytest.skip(f"not tested: there is no {PROGRAM.relative_to(ROOT)} (sh tests/run.sh packages)")
    log = folder / "moto.log"
    with log.open("w") as output:
        process = subprocess.Popen([PROGRAM, "-H", "127.0.0.1", "-p", "0"], stdout=output, stderr=output,
                                   stdin=subprocess.DEVNULL, env={**CLEAN, **KEYS}, cwd=folder)
    try:
        for _ in range(600):
            found = re.search(r"Running on http://127.0.0.1:(\d+)", log.read_text())
            if found or process.poll() is not None:
                break
            time.sleep(0.1)
        assert found, log.read_text()
        yield Server(int(found[1]), log)
    finally:
        process.terminate()
        process.wait(60)
