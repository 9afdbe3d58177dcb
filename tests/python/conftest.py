"""Settings of all command tests: the start and end of a run, and the kind of each test file."""

import functools
import re
import signal

import pytest

from hub_server import hub  # noqa: F401
from object_store import object_store, object_store_server  # noqa: F401
from support import BINARY

# Kinds of test files, for `-m`. A file without a kind is quick and needs no framework.
KINDS = {
    "clients": "with packages of frameworks and trainers, or the Python package",
    "faults": "with kills, injected errors, full disks and damage",
    "slow": "takes long, but rarely finds a fault",
}
# Tests in such files that the fast set includes: they take seconds, and cover earlier bugs.
QUICK = "quick"
FAULTS = {"test_bucket", "test_copies", "test_copies_read_once", "test_every_fault", "test_faults", "test_full_disk",
          "test_json_numbers", "test_outputs", "test_power_loss"}
SLOW = {"test_auto_presets", "test_bucket", "test_builds", "test_debian_package", "test_determinism", "test_statistics",
        "test_wheel"}


@functools.cache
def kinds_of(path):
    name, text = path.stem, path.read_text()
    is_kind = {"clients": re.search(r"\bclient_of\(|like_torch_cpu|^ *import (shardinit|torch|jax)\b", text,
                                    re.M) is not None,
               "faults": name in FAULTS, "slow": name in SLOW or name.startswith("test_generated_")}
    return [kind for kind, holds in is_kind.items() if holds]


def pytest_configure(config):
    for kind, what in {**KINDS, QUICK: "in the fast set, whatever kind its file has"}.items():
        config.addinivalue_line("markers", f"{kind}: {what}")


def pytest_ignore_collect(collection_path, config):
    """Skips the import of files whose kind is not selected, since frameworks take long to load."""
    if collection_path.suffix == ".py" and collection_path.name.startswith("test_"):
        if QUICK in config.option.markexpr and f"pytest.mark.{QUICK}" in collection_path.read_text():
            return None
        return any(f"not {kind}" in config.option.markexpr for kind in kinds_of(collection_path)) or None
    return None


def pytest_collection_modifyitems(items):
    for item in items:
        for kind in kinds_of(item.path):
            item.add_marker(kind)


def pytest_sessionstart(session):
    if not BINARY.is_file():
        pytest.exit(f"there is no {BINARY}; build it, or set SHARDINIT", returncode=2)
    # Programs started with `nohup` or a shell's `&` ignore these signals, and so would the tests' programs.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


# pytest-xdist replaces a worker that crashed and counts its test as failed. If the worker had no test, the run must
# still fail.
crashed = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    if error:
        crashed.append(node.gateway.id)


def pytest_sessionfinish(session):
    if crashed and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
