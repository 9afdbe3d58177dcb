"""Stops a run of shardinit before a call on a file until the test releases it, so that two processes meet at a moment
that would otherwise be rare."""

import pathlib
import subprocess
import tempfile
import time

from interposed import interposed, rule
from support import BINARY, CLEAN


class Stopped:
    """A run that has reached `call` on a file of this name and waits there.

    For `rename`, the name is the new one; `fsync` is also possible. If `rules` affect the same call, they apply when
    the run continues."""

    def __init__(self, folder, call, name, *words, when="1+", rules=(), **options):
        self.gate = pathlib.Path(tempfile.mkdtemp(dir=folder)) / "gate"
        self.run = subprocess.Popen([BINARY, *map(str, words)], text=True, stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    env={**CLEAN, **interposed(rule(call, "wait", self.gate, when=when, where=name),
                                                               *rules)}, **options)
        while not pathlib.Path(f"{self.gate}.reached").exists():
            assert self.run.poll() is None, self.run.communicate()
            time.sleep(0.002)

    def go(self):
        """Lets the run finish; returns its status and outputs."""
        pathlib.Path(f"{self.gate}.open").touch()
        stdout, stderr = self.run.communicate(timeout=60)
        return self.run.returncode, stdout, stderr
