"""Runs programs in a terminal of their own."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

from support import CLEAN


class Terminal:
    """A program that has a terminal for some of its standard streams."""

    def __init__(self, *command, env=None, streams=(0, 1, 2)):
        self.fd, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 150, 0, 0))
        names = {0: "stdin", 1: "stdout", 2: "stderr"}
        self.process = subprocess.Popen(
            list(map(str, command)), env={**CLEAN, "TERM": "xterm", **(env or {})}, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(terminal, termios.TIOCSCTTY, 0), pass_fds=[terminal],
            **{name: terminal if stream in streams else subprocess.DEVNULL for stream, name in names.items()})
        os.close(terminal)
        self.text = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.fd)

    def read(self, until=None, seconds=60):
        """Returns the text shown from now on, up to `until` or to the end."""
        begin, deadline = len(self.text), time.monotonic() + seconds
        while until is None or until not in self.text[begin:]:
            left = deadline - time.monotonic()
            assert left > 0, f"no {until!r} in {self.text[begin:]!r}"
            if not select.select([self.fd], [], [], left)[0]:
                continue
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # The program has ended.
                data = b""
            if not data:
                assert until is None, f"no {until!r} in {self.text[begin:]!r}"
                break
            self.text += data.decode(errors="replace")
        return self.text[begin:]

    def type(self, keys):
        os.write(self.fd, keys.encode())


def shown(*command, **options):
    """Returns all that a program shows in its terminal."""
    with Terminal(*command, **options) as terminal:
        return terminal.read().replace("\r\n", "\n")
