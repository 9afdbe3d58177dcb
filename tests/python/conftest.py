import signal

import pytest

from support import BINARY


def pytest_sessionstart(session):
    if not BINARY.is_file():
        pytest.exit(f"there is no {BINARY}; build it, or set SHARDINIT", returncode=2)
    # `nohup` and a shell's `&` start programs that ignore these, and so would those of the tests.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


# pytest-xdist puts another worker in the place of one that crashed, and counts as failed what it
# was testing. Where that was nothing, the run must fail all the same.
crashed = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    if error:
        crashed.append(node.gateway.id)


def pytest_sessionfinish(session):
    if crashed and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
