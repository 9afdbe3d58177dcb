"""Tests that start a real cluster: not part of CI, since they need slurm-wlm, munge, openmpi-bin and mpich of
Debian, root, and some minutes:

    apt-get install slurm-wlm munge openmpi-bin mpich
    build/venv/bin/python -m pytest tests/engines
"""

import os
import pathlib
import shutil
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from object_store import object_store, object_store_server  # noqa: E402, F401
from slurm import Slurm, wait_for  # noqa: E402


@pytest.fixture(scope="session")
def slurm():
    if not shutil.which("slurmctld") or not shutil.which("munged") or os.geteuid() != 0:
        pytest.skip("not tested: needs slurm-wlm and munge, and root")
    # Not in pytest's own folder: each run of pytest closes that to other users, and munged is one.
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        cluster = Slurm(pathlib.Path(folder))
        try:
            wait_for(cluster.is_idle)
            yield cluster
        finally:
            cluster.stop()
