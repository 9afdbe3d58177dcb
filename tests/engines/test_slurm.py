"""Runs the scripts that `jobs slurm` prints in a real Slurm with four nodes on this machine. Whatever happens, they
make the same bytes as a single run."""

import os
import signal
import subprocess
import time

import pytest
from slurm import wait_for
from support import BINARY, run_ok, run_tool, tree_of

SPEC = """
shardinit: 1
name: slurm
dtype: f32
mesh: {axes: {a: 16}}
rules: [{rows: a}]
modules:
  l:
    repeat: {i: 8}
    w: {shape: [1024, 1024], axes: [rows, null], init: {normal: {std: 1}}}
"""


@pytest.fixture
def made(tmp_path):
    """Returns a function that writes a spec and a job script, and returns the script and its output folder. Each run of
    `gen` first waits for the seconds given to `set_delay`."""
    def make(*options, out=tmp_path / 'out "$(x)"'):
        (tmp_path / "a folder").mkdir()
        spec = tmp_path / "a folder/it's $HOME.yaml"
        spec.write_text(SPEC)
        run_ok("gen", spec, "-o", tmp_path / "whole")
        wrapper = tmp_path / "shardinit"
        wrapper.write_text(f'#!/bin/sh\n[ "$1" != gen ] || sleep $(cat {tmp_path}/delay)\nexec {BINARY} "$@"\n')
        wrapper.chmod(0o755)
        set_delay(tmp_path, 0)
        script = tmp_path / "job.sh"
        text = run_ok("jobs", "slurm", spec, "-o", out, *options).stdout
        script.write_text(text.replace("shardinit=shardinit", f"shardinit={wrapper}"))
        return script, out
    return make


def set_delay(tmp_path, seconds):
    (tmp_path / "delay").write_text(str(seconds))


def job_log(tmp_path, job):
    return "\n".join(f.read_text() for f in sorted(tmp_path.glob(f"slurm-{job}*.out")))


def running_processes(folder):
    """Returns the runs of shardinit that write to the folder."""
    found = subprocess.run(["ps", "-eww", "-o", "pid=,comm=,args="], text=True, stdout=subprocess.PIPE).stdout
    return [int(line.split()[0]) for line in found.splitlines() if line.split()[1] == "shardinit"
                and str(folder) in line]


def test_slurm_job_on_four_nodes_makes_the_folder(slurm, made, tmp_path):
    script, out = made("--nodes", 4)
    job = slurm.submit("--wait", script, cwd=tmp_path)
    assert slurm.job(job)["ExitCode"] == "0:0", job_log(tmp_path, job)
    assert tree_of(out) == tree_of(tmp_path / "whole")
    assert job_log(tmp_path, job).count("shardinit: wrote 8.4 MB") == 4
    # Another number of nodes makes the same folder, and finds it complete.
    job = slurm.submit("--wait", "--nodes=3", script, cwd=tmp_path)
    assert slurm.job(job)["NumNodes"] == "3" and tree_of(out) == tree_of(tmp_path / "whole")


def test_slurm_task_uses_all_cores(slurm, tmp_path):
    """Tests srun in the script: a node has two cores, and a one-core task would see only one."""
    (tmp_path / "cores").write_text("#!/bin/sh\nnproc >> " + str(tmp_path / "seen") + "\n")
    (tmp_path / "cores").chmod(0o755)
    text = run_ok("jobs", "slurm", "llama3-tiny", "-o", tmp_path / "out", "--nodes", 2).stdout
    (tmp_path / "job.sh").write_text(text.replace("shardinit=shardinit", f"shardinit={tmp_path / 'cores'}"))
    slurm.submit("--wait", tmp_path / "job.sh", cwd=tmp_path)
    assert (tmp_path / "seen").read_text().split() == [str(os.cpu_count())] * 3


def test_slurm_job_requeues_itself_after_sigkill(slurm, made, tmp_path):
    """The job requeues itself after a killed task, at most three times."""
    script, out = made("--nodes", 2)
    set_delay(tmp_path, 20)
    job = slurm.submit(script, cwd=tmp_path)
    for restart in range(4):
        os.kill(wait_for(lambda: running_processes(out))[0], signal.SIGKILL)
        if restart < 3:
            wait_for(lambda: f"Restarts={restart + 1}" in slurm.run("scontrol", "show", "job", job))
            wait_for(lambda: not running_processes(out))
            slurm.begin_now(job)
    ended = slurm.end_of(job)
    assert ended["JobState"] == "FAILED" and ended["ExitCode"] == "137:0", job_log(tmp_path, job)
    set_delay(tmp_path, 0)
    job = slurm.submit("--wait", script, cwd=tmp_path)
    assert slurm.job(job)["ExitCode"] == "0:0" and tree_of(out) == tree_of(tmp_path / "whole")


def test_slurm_job_does_not_retry_mistakes(slurm, made, tmp_path):
    script, out = made("--nodes", 2)
    run_ok("gen", "llama3-tiny", "-o", out)  # another plan
    job = slurm.submit(script, cwd=tmp_path)
    ended = slurm.end_of(job)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "4:0", "0"), job_log(tmp_path, job)


def test_slurm_job_requeues_itself_before_the_time_limit(slurm, made, tmp_path):
    """The job requeues itself a minute before the limit, and completed ranks stay."""
    script, out = made("--nodes", 1)
    set_delay(tmp_path, 300)
    # Slurm signals the job a minute before its limit: here at once.
    job = slurm.submit("--time=1", script, cwd=tmp_path)
    wait_for(lambda: slurm.job(job)["Restarts"] == "1", 100)
    wait_for(lambda: not running_processes(out))
    set_delay(tmp_path, 0)
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=30")
    slurm.begin_now(job)
    assert slurm.end_of(job, 300)["ExitCode"] == "0:0", job_log(tmp_path, job)
    assert tree_of(out) == tree_of(tmp_path / "whole")


def test_slurm_job_resumes_after_a_lost_node(slurm, made, tmp_path):
    """Slurm requeues the job, and other nodes make the lost node's ranks."""
    script, out = made("--nodes", 3)
    set_delay(tmp_path, 30)
    wait_for(slurm.is_idle)
    job = slurm.submit(script, cwd=tmp_path)
    wait_for(lambda: len(running_processes(out)) == 3)
    assert slurm.job(job)["NodeList"] == "n[1-3]"
    slurm.kill_node(2)
    try:
        wait_for(lambda: slurm.job(job)["Restarts"] == "1", 120)
        set_delay(tmp_path, 0)
        slurm.begin_now(job)
        ended = slurm.end_of(job)
        assert (ended["ExitCode"], ended["NodeList"]) == ("0:0", "n[1,3-4]"), job_log(tmp_path, job)
    finally:
        slurm.start_node(2)
    assert tree_of(out) == tree_of(tmp_path / "whole")
    wait_for(slurm.is_idle)


def test_two_slurm_jobs_can_share_a_folder(slurm, made, tmp_path):
    script, out = made("--nodes", 2)
    set_delay(tmp_path, 2)
    jobs = [slurm.submit(script, cwd=tmp_path), slurm.submit("--nodes=1", script, cwd=tmp_path)]
    for job in jobs:
        assert slurm.end_of(job)["ExitCode"] == "0:0", job_log(tmp_path, job)
    assert tree_of(out) == tree_of(tmp_path / "whole")


def queued(slurm):
    return slurm.run("squeue", "-h", "-o", "%j")


def test_slurm_array_makes_the_folder(slurm, made, tmp_path):
    script, out = made("--array", "--nodes", 16)
    subprocess.run(["sh", script], env=slurm.env, cwd=tmp_path, check=True, stdout=subprocess.PIPE)
    wait_for(lambda: not queued(slurm), 120)
    assert tree_of(out) == tree_of(tmp_path / "whole")


def test_slurm_array_requeues_only_missing_parts(slurm, made, tmp_path):
    """Only missing parts are requeued."""
    script, out = made("--array", "--nodes", 8)
    said = subprocess.run(["sh", script, "--begin=now+5"], env=slurm.env, cwd=tmp_path, check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    array = said.split("array ")[1].split(":")[0]
    slurm.run("scancel", f"{array}_3", f"{array}_5")

    def second_array():
        tasks = [each.split("_") for each in slurm.run("squeue", "-h", "-r", "-o", "%i").split() if "_" in each]
        return sorted(int(task) for job, task in tasks if job != array)
    assert wait_for(second_array) == [3, 5]
    wait_for(lambda: not queued(slurm), 120)
    assert tree_of(out) == tree_of(tmp_path / "whole")


def test_slurm_array_ends_after_a_mistake(slurm, made, tmp_path):
    script, out = made("--array", "--nodes", 16)
    run_ok("gen", "llama3-tiny", "-o", out)
    before = tree_of(out)
    begin = time.monotonic()
    subprocess.run(["sh", script], env=slurm.env, cwd=tmp_path, check=True, stdout=subprocess.PIPE)
    wait_for(lambda: not queued(slurm), 120)
    logs = [f.read_text() for f in tmp_path.glob("slurm-*.out")]
    assert all("another plan" in log for log in logs) and 1 <= len(logs) < 16, logs
    assert tree_of(out) == before and time.monotonic() - begin < 60


@pytest.mark.parametrize("options", [[], ["--array"]])
def test_slurm_jobs_fill_a_bucket(slurm, made, tmp_path, object_store, options):
    """Jobs have the variables of the user who submits them."""
    script, url = made("--nodes", 4, *options, out="s3://bucket/it's $x")
    env = {**slurm.env, **object_store.environment}
    submit = ["sh", script] if options else ["sbatch", "--wait", script]
    subprocess.run(submit, env=env, cwd=tmp_path, check=True, stdout=subprocess.PIPE)
    wait_for(lambda: not queued(slurm), 120)
    logs = "\n".join(f.read_text() for f in tmp_path.glob("slurm-*.out"))
    assert logs.count("shardinit: wrote 8.4 MB") == 4 and f"{url}: complete" in logs, logs
    object_store.download("it's $x", tmp_path / "made")
    assert tree_of(tmp_path / "made") == tree_of(tmp_path / "whole") and object_store.refused == []


def test_slurm_arrays_above_the_limit_are_rejected(slurm, tmp_path):
    """Slurm here has its default limit: 1,001 tasks are accepted, and `jobs` rejects more before Slurm does."""
    assert "MaxArraySize            = 1001" in slurm.run("scontrol", "show", "config")
    text = run_ok("jobs", "slurm", "llama3.1-405b", "-o", tmp_path / "out", "--array", "--nodes", 1001).stdout
    (tmp_path / "job.sh").write_text(text)
    subprocess.run(["sh", tmp_path / "job.sh", "--begin=now+3600"], env=slurm.env, cwd=tmp_path, check=True,
                   stdout=subprocess.PIPE)
    assert len(slurm.run("squeue", "-h", "-r", "-o", "%A").split()) == 1002
    slurm.run("scancel", "--user=root")
    wait_for(lambda: not queued(slurm))
    result = run_tool("jobs", "slurm", "llama3.1-405b", "-o", tmp_path / "out", "--array", "--nodes", 1002)
    assert result.returncode == 2 and "1,001 tasks" in result.stderr
