"""A server that speaks S3, moto's, on a free port of this machine, for the tests that read from buckets.

It takes any key and checks no signature; what it answers to ranges, conditions and missing objects is what S3
answers. The tests' own packages are not to be changed by what it needs, so it has an environment of its own:
build/moto, which the phase `packages` of tests/run.sh makes.
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
# Any signature will do.
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, "
                           "Signature=0"}


class Server:
    """A server that runs, and what it was asked."""

    def __init__(self, port, log):
        self.address, self.url, self._log = ("127.0.0.1", port), f"http://127.0.0.1:{port}", log

    def request(self, method, path, body=b"", headers=None):
        """What the server answers: status and body."""
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
        """Puts all files of a folder below bucket/prefix, the manifest last."""
        self.put(f"/{bucket}")
        files = sorted((file for file in folder.rglob("*") if file.is_file()), key=lambda file: file.name == "manifest.json")
        for file in files:
            self.put(f"/{bucket}/{prefix}/{file.relative_to(folder)}", file.read_bytes())
        return f"s3://{bucket}/{prefix}"

    def requests(self):
        """(method, path) of all requests so far."""
        return re.findall(r"([A-Z]+) (\S+) HTTP/1", self._log.read_text())

    @contextlib.contextmanager
    def counted(self):
        """The requests that were made in the block, as a list that is filled when it ends."""
        before, made = len(self.requests()), []
        yield made
        made += self.requests()[before:]


@contextlib.contextmanager
def moto_server(folder):
    """A server, with its log in `folder`; it ends with the block."""
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
