"""Uses the program for hours as a busy cluster would, on a disk that is nearly full:

    build/venv/bin/python tests/soak.py SECONDS [SEED]      SEED: default is the time

Workers run at once. They make models of random seeds and meshes, verify them, copy them to another mesh, export and
remove them. Half of the commands that write are killed at a random time, possibly before they start, and run again.
Every exit status must be a documented one. A command that succeeds must have made the complete result, values must
equal the spec's, and nothing of a killed run may be left. One worker uses the Python package in a single process all
the time: its memory and its open files must not grow.

As root, the folder is a tmpfs of 2 MB, which the workers fill now and then; otherwise a folder without a limit."""

import collections
import contextlib
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent / "python"))

from clients import PACKAGE  # noqa: E402
from support import AWKWARD, BINARY, OF_ANY  # noqa: E402

sys.path.insert(0, str(PACKAGE))

import shardinit  # noqa: E402

WORKERS = 4
MESHES = ["a=1,b=1", "a=2,b=1", "a=1,b=3", "a=2,b=2", "a=4,b=1"]


class Full(Exception):
    """The disk is full, and the command reported it."""


class Worker:
    """Does one cycle after another in its own folder."""

    def __init__(self, folder, seed):
        self.folder, self.random, self.counts = folder, random.Random(seed), collections.Counter()
        self.folder.mkdir()

    def run(self, *words):
        """Runs a command until it succeeds, and sometimes kills it."""
        command = [BINARY, *map(str, words), "--jobs", str(self.random.choice([1, 2, 3]))]
        for _ in range(20):
            process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True)
            if words[0] != "verify" and self.random.random() < 0.5:
                time.sleep(self.random.random() * 0.08)
                process.send_signal(signal.SIGKILL)
            out, _ = process.communicate(timeout=300)
            self.counts["commands"] += 1
            if process.returncode == -signal.SIGKILL:
                self.counts["killed"] += 1
                continue
            if process.returncode == 3 and ("No space left on device" in out or "its file system has" in out):
                raise Full(words[0])
            assert process.returncode == 0, f"{command}: exit {process.returncode}\n{out}"
            return
        raise AssertionError(f"{command} was killed 20 times")

    def cycle(self):
        """Makes a model, a copy and an export of it, and checks all three."""
        seed = f"seed={self.random.randrange(1 << 63)}"
        spec = [self.folder.parent / "spec.yaml", "--set", seed]
        made, copied, exported = (self.folder / name for name in ("made", "copied", "exported"))
        try:
            self.run("gen", *spec, "--mesh", self.random.choice(MESHES), "-o", made)
            self.run("verify", made, "--spec", *spec)
            self.run("reshard", made, "--mesh", self.random.choice(MESHES), "--uneven", "chunk", "-o", copied)
            self.run("verify", copied, "--spec", *spec)
            self.run("export", *self.random.choice([[copied], spec]), "--to", self.random.choice(OF_ANY), "-o",
                     exported)
            self.run("verify", exported)
            self.run("verify", exported, "--spec", *spec)
            left = {path.name for path in self.folder.iterdir()} - {"made", "copied", "exported"}
            assert left == set(), f"left: {left}"
            self.counts["cycles"] += 1
        except Full as full:  # The remaining files are for the command's next run, which does not happen.
            self.counts[f"full in {full}"] += 1
        for path in self.folder.iterdir():
            shutil.rmtree(path)


def use_the_package(path, end):
    """Plans, generates and reads without a pause in its own process, whose memory and open files must not grow."""
    drawn, models, begin, first = random.Random(0), 0, time.time(), None
    while True:
        with shardinit.open_spec(path, set={"seed": drawn.randrange(1000)}) as model:
            for name in model:
                model.generate(name)
        models += 1
        time.sleep(0.01)
        now = time.time()
        if now < end and (first or now < begin + (end - begin) / 4):
            continue
        status = pathlib.Path("/proc/self/status").read_text()
        last = (int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]),
                len(os.listdir("/proc/self/fd")))
        first = first or last
        if now >= end:
            break
    print(f"package: {models} models; after a quarter of the time {first[0]} KiB and {first[1]} open files, "
          f"in the end {last[0]} KiB and {last[1]}", flush=True)
    assert last[0] < first[0] * 1.02 and last[1] == first[1], "memory or open files grow"


def main(seconds, seed):
    """Runs all workers for this time. The first error ends the process."""
    print(f"seed {seed}, {seconds} s")
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if os.geteuid() == 0:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", folder], check=True)
        else:
            print("not root: the disk does not become full")
        (folder / "spec.yaml").write_text(AWKWARD)
        end, failures = time.time() + seconds, []
        package = multiprocessing.Process(target=use_the_package, args=[folder / "spec.yaml", end])
        package.start()
        workers = [Worker(folder / str(i), seed + i) for i in range(WORKERS)]

        def work(worker):
            try:
                while time.time() < end and not failures:
                    worker.cycle()
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work, args=[worker]) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        package.join()
        counts = sum((worker.counts for worker in workers), collections.Counter())
        print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
        if failures:
            raise failures[0]
        assert package.exitcode == 0
        assert counts["cycles"] > 0 and counts["killed"] > 0


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time()))
