"""Runs the script that `jobs mpi` prints with the mpirun of Open MPI and of MPICH. Several host names mean this
machine, and a replacement for ssh starts processes here."""

import os
import pathlib
import shutil
import subprocess

import pytest
from support import BINARY, CLEAN, run_ok, tree_of

NODES = ["127.0.1.1", "127.0.1.2", "127.0.1.3"]


@pytest.fixture(params=["openmpi", "mpich"])
def cluster(request, tmp_path):
    """Returns an environment with one library's mpirun and three nodes."""
    mpirun = shutil.which(f"mpirun.{request.param}")
    if not mpirun:
        pytest.skip(f"not tested: needs {request.param}")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "mpirun").write_text(f'#!/bin/sh\nexec {mpirun} "$@"\n')
    (programs / "mpirun").chmod(0o755)
    # Options, a host name, then the command.
    (programs / "here").write_text("""#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
shift
exec sh -c "$*"
""")
    (programs / "here").chmod(0o755)
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"{node}{' slots=2' if request.param == 'openmpi' else ':2'}\n" for node in NODES))
    env = {**CLEAN, "PATH": f"{programs}:{BINARY.parent}:{os.environ['PATH']}"}
    if request.param == "openmpi":
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "OMPI_MCA_orte_default_hostfile": str(hosts), "OMPI_MCA_plm_rsh_agent": str(programs / "here")}
    else:
        env |= {"HYDRA_HOST_FILE": str(hosts), "HYDRA_LAUNCHER_EXEC": str(programs / "here"), "HYDRA_LAUNCHER": "ssh"}
    return env


def write_job(tmp_path, *options):
    script = tmp_path / "job.sh"
    script.write_text(run_ok("jobs", "mpi", *options).stdout.replace("sleep 60", "sleep 1"))
    return script


def test_mpi_job_on_three_nodes_makes_the_folder(cluster, tmp_path):
    run_ok("gen", "llama3-tiny", "--mesh", "fsdp=8,tensor=2", "-o", tmp_path / "whole")
    out = tmp_path / 'out "$(x)" it\'s'
    script = write_job(tmp_path, "llama3-tiny", "--mesh", "fsdp=8,tensor=2", "-o", out, "--nodes", len(NODES))
    result = subprocess.run(["sh", script], env=cluster, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            timeout=120)
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("shardinit: wrote") == 3, result.stdout
    assert tree_of(out) == tree_of(tmp_path / "whole")


def test_mpi_job_on_three_nodes_fills_a_bucket(cluster, tmp_path, object_store):
    """A node has only the variables that mpirun passes on, as with ssh."""
    programs = pathlib.Path(cluster["PATH"].partition(":")[0])
    here = (programs / "here").read_text()
    assert 'exec sh -c "$*"' in here
    (programs / "here").write_text(here.replace("exec", 'exec env -i PATH="$PATH"'))
    run_ok("gen", "llama3-tiny", "--mesh", "fsdp=8,tensor=2", "-o", tmp_path / "whole")
    words = ["llama3-tiny", "--mesh", "fsdp=8,tensor=2", "-o", "s3://bucket/it's $x", "--nodes", len(NODES)]
    result = subprocess.run(["sh", write_job(tmp_path, *words)], env={**cluster, **object_store.environment}, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    assert result.returncode == 0 and result.stdout.count("shardinit: wrote") == 3, result.stdout
    object_store.download("it's $x", tmp_path / "made")
    assert tree_of(tmp_path / "made") == tree_of(tmp_path / "whole") and object_store.refused == []


def test_mpi_process_uses_all_cores(cluster, tmp_path):
    cores = tmp_path / "cores"
    cores.write_text(f"#!/bin/sh\n[ $1 = finalize ] || nproc >> {tmp_path / 'seen'}\n")
    cores.chmod(0o755)
    script = write_job(tmp_path, "llama3-tiny", "-o", tmp_path / "out", "--nodes", len(NODES))
    script.write_text(script.read_text().replace("shardinit=shardinit", f"shardinit={cores}"))
    subprocess.run(["sh", script], env=cluster, check=True, timeout=120)
    assert (tmp_path / "seen").read_text().split() == [str(len(os.sched_getaffinity(0)))] * 3


@pytest.mark.parametrize("status, runs", [(2, 1), (4, 1), (70, 1), (3, 3), (137, 3)])
def test_mpi_job_retries_only_transient_failures(cluster, tmp_path, status, runs):
    """Errors that would recur are not retried; others are retried twice."""
    script = write_job(tmp_path, "llama3-tiny", "-o", tmp_path / "out", "--nodes", 1)
    fails = tmp_path / "fails"
    end = "kill -9 $$" if status == 137 else f"exit {status}"
    fails.write_text(f"#!/bin/sh\necho >> {tmp_path / 'runs'}\n{end}\n")
    fails.chmod(0o755)
    script.write_text(script.read_text().replace("shardinit=shardinit", f"shardinit={fails}"))
    result = subprocess.run(["sh", script], env=cluster, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            timeout=120)
    # MPICH returns only the signal's number.
    assert result.returncode in (status, status - 128), result.stdout
    assert (tmp_path / "runs").read_text().count("\n") == runs


def test_unknown_mpirun_is_rejected(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "mpirun").write_text("#!/bin/sh\necho Something 1.0\n")
    (programs / "mpirun").chmod(0o755)
    script = write_job(tmp_path, "llama3-tiny", "-o", tmp_path / "out")
    result = subprocess.run(["sh", script], env={**CLEAN, "PATH": f"{programs}:{os.environ['PATH']}"}, text=True,
                            stderr=subprocess.PIPE)
    assert result.returncode == 127 and "neither" in result.stderr and not pathlib.Path(tmp_path / "out").exists()
