"""Runs Slurm's daemons for the tests in this folder."""

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import time

from support import BINARY, CLEAN

NODES = 4
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=16817
AuthType=auth/munge
AuthInfo=socket={folder}/munge/munge.sock
CredType=cred/munge
SlurmUser=slurm
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=10
SlurmctldTimeout=10
InactiveLimit=0
KillWait=5
MinJobAge=300
SchedulerParameters=sched_interval=2,bf_interval=2
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[17001-1700{nodes}] CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def wait_for(condition, seconds=60, pause=0.3):
    """Returns the condition's result as soon as it is true."""
    end = time.monotonic() + seconds
    while True:
        if found := condition():
            return found
        assert time.monotonic() < end, "nothing happened"
        time.sleep(pause)


class Slurm:
    """Slurm's daemons on this machine, with several nodes, none of which is this machine."""

    def __init__(self, folder):
        self.folder = folder
        folder.chmod(0o755)
        for name, owner in (("munge", "munge"), ("state", "slurm"), ("run", "slurm"), ("log", "slurm")):
            (folder / name).mkdir()
            os.chown(folder / name, pwd.getpwnam(owner).pw_uid, -1)
            (folder / name).chmod(0o755)
        self.configuration = folder / "slurm.conf"
        self.configuration.write_text(CONFIGURATION.format(host=socket.gethostname(), folder=folder, nodes=NODES))
        self.env = {**CLEAN, "SLURM_CONF": str(self.configuration), "PATH": f"{BINARY.parent}:{os.environ['PATH']}"}
        self.daemons = {}
        munge = folder / "munge"
        self._run("runuser", "-u", "munge", "--", "munged", "--force", f"--socket={munge}/munge.sock",
                  f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed")
        self._start("slurmctld", "slurmctld", "-D", "-c")
        for node in range(1, NODES + 1):
            self.start_node(node)

    def is_idle(self):
        with contextlib.suppress(subprocess.CalledProcessError):
            return self.run("sinfo", "-h", "-o", "%T %D").split() == ["idle", str(NODES)]

    def _run(self, *command):
        return subprocess.run(command, env=self.env, check=True, text=True, stdout=subprocess.PIPE).stdout

    def _start(self, name, *command):
        with open(self.folder / f"log/{name}.out", "ab") as out:
            self.daemons[name] = subprocess.Popen(command, env=self.env, stdout=out, stderr=out)

    def start_node(self, node):
        self._start(f"n{node}", "slurmd", "-D", "-N", f"n{node}")

    def kill_node(self, node):
        """Kills the daemon and everything that it started, as if the machine were gone."""
        if daemon := self.daemons.pop(f"n{node}", None):
            kill_tree(daemon.pid)
            daemon.wait()
        # The processes that run a job's step are not children of the daemon, but write to its log.
        for step in processes_using(self.folder / f"log/slurmd-n{node}.log"):
            kill_tree(step)

    def run(self, *command):
        return self._run(*map(str, command)).strip()

    def submit(self, *arguments, cwd):
        return subprocess.run(["sbatch", "--parsable", *map(str, arguments)], env=self.env, cwd=cwd, check=True,
                              text=True, stdout=subprocess.PIPE).stdout.strip()

    def job(self, number):
        """Returns Slurm's description of a job, or of the first task of an array."""
        words = self.run("scontrol", "show", "job", "-o", number).splitlines()[0].split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def end_of(self, number, seconds=120):
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        return wait_for(lambda: (job := self.job(number))["JobState"] in ended and job, seconds)

    def begin_now(self, number):
        """Starts a requeued job now: Slurm would delay it for two minutes, and sets its start time late."""
        def begins():
            if self.job(number)["JobState"] != "PENDING":
                return True
            self.run("scontrol", "update", f"JobId={number}", "StartTime=now")
            return False
        wait_for(lambda: self.job(number)["JobState"] == "PENDING")
        wait_for(begins, pause=2)

    def stop(self):
        for node in range(1, NODES + 1):
            self.kill_node(node)
        for daemon in self.daemons.values():
            kill_tree(daemon.pid)
            daemon.wait()
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(int((self.folder / "munge/pid").read_text()), signal.SIGTERM)


def processes_using(path):
    """Returns the processes that have a file open."""
    found = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # The process has ended meanwhile.
            if any(os.readlink(f"/proc/{process}/fd/{fd}") == str(path) for fd in os.listdir(f"/proc/{process}/fd")):
                found.add(int(process))
    return found


def kill_tree(pid):
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], text=True,
                              stdout=subprocess.PIPE).stdout.split()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for child in children:
        kill_tree(int(child))
