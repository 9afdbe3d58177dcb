"""The packages of the tests are the files whose digests tests/locked*.txt lists; tests/lock.py writes these lists."""

import importlib.metadata
import re

import pytest

from support import ROOT

TESTS = ROOT / "tests"
LOCKED = {
    "locked.txt": ["requirements.txt", "requirements-clients.txt"],
    "locked-no-deps.txt": ["requirements-no-deps.txt"],
    "locked-moto.txt": ["requirements-moto.txt"],
}
pytestmark = pytest.mark.quick


def named(name):
    return re.sub(r"[-_.]+", "-", name.lower())


def locked(file):
    """Returns the versions in a file, and checks that each has a digest."""
    packages = re.sub(r"^#.*\n", "", (TESTS / file).read_text()).replace(" \\\n", " ").splitlines()
    rows = [re.fullmatch(r"([\w.-]+)==(\S+)((?:  +--hash=sha256:[0-9a-f]{64})+)", line) for line in packages]
    assert packages and all(rows), [line for line, row in zip(packages, rows, strict=True) if not row]
    return {named(row[1]): row[2] for row in rows}


@pytest.mark.parametrize("file", LOCKED)
def test_lock_files_pin_the_required_versions(file):
    lines = [line for name in LOCKED[file] for line in (TESTS / name).read_text().splitlines() if line[:1] != "#"]
    required = {named(name): version for name, version in
                (re.fullmatch(r"([\w.-]+)(?:\[.*\])?==(\S+)", line).groups() for line in lines)}
    versions = locked(file)
    assert required == {name: versions.get(name) for name in required}, "run tests/lock.py"


def test_installed_versions_match_the_lock_files():
    versions = locked("locked.txt") | locked("locked-no-deps.txt")
    for_processors = locked("locked-cpu.txt")["torch"]  # the same version, built without CUDA
    assert for_processors == versions["torch"] + "+cpu", "run tests/lock.py"
    installed = {name: importlib.metadata.version(name) for name in versions}
    assert installed in (versions, versions | {"torch": for_processors})
