"""Tests that start a real cluster. They are not part of CI, since they need root, some minutes, and Debian's slurm-wlm,
munge, openmpi-bin and mpich:

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
    # Not in pytest's own folder, which each run closes to other users; munged is another user.
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        cluster = Slurm(pathlib.Path(folder))
        try:
            wait_for(cluster.is_idle)
            yield cluster
        finally:
            cluster.stop()
