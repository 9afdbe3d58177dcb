import pytest

from support import BINARY


def pytest_sessionstart(session):
    if not BINARY.is_file():
        pytest.exit(f"there is no {BINARY}; build it, or set SHARDINIT", returncode=2)
