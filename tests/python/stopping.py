"""Stops a run of shardinit before a call on a file, until the test lets it go: so two processes meet where one would
have to wait long for it to happen."""

import pathlib
import subprocess
import tempfile
import time

from interposed import interposed, rule
from support import BINARY, CLEAN


class Stopped:
    """A run that has come to `call` (`rename`: to the name; `fsync`) on a file of this name, and waits there. What
    `rules` say of that call is done when it is let go."""

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
        """Lets it go to its end, and returns its status and its outputs."""
        pathlib.Path(f"{self.gate}.open").touch()
        stdout, stderr = self.run.communicate(timeout=60)
        return self.run.returncode, stdout, stderr
