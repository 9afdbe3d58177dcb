"""mypy and ruff find nothing in the Python package, and ruff finds nothing in the tests."""

import subprocess
import sys

import pytest

from clients import client_of
from support import ROOT

SOURCES = ROOT / "src/python"


def check(*arguments):
    return subprocess.run([sys.executable, "-m", *map(str, arguments)], cwd=SOURCES, capture_output=True, text=True,
                          timeout=600)


@pytest.mark.quick
def test_ruff_accepts_the_package_and_the_tests():
    done = check("ruff", "check", "--no-cache", ".", ROOT / "tests")
    assert (done.returncode, done.stdout) == (0, "All checks passed!\n"), done.stdout + done.stderr


def test_mypy_accepts_the_package(tmp_path):
    """The frameworks must be installed, because mypy treats missing packages as `Any`."""
    for framework in ("torch", "jax"):
        client_of(framework)
    done = check("mypy", "--cache-dir", tmp_path, "shardinit")
    files = len(list((SOURCES / "shardinit").rglob("*.py")))
    assert done.stdout == f"Success: no issues found in {files} source files\n", done.stdout + done.stderr
