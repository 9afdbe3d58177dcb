"""Preloads a library (tests/support/interpose.c) that counts a program's C library calls and acts on the n-th call of a
kind as rules say."""

import functools
import os
import pathlib
import struct
import subprocess
import tempfile

from support import ROOT


@functools.cache
def scratch():
    return pathlib.Path(tempfile.mkdtemp(prefix="shardinit-interposed-"))


@functools.cache
def library():
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", scratch() / "interpose.so",
                    ROOT / "tests/support/interpose.c", "-ldl"], check=True)
    return str(scratch() / "interpose.so")


def rule(calls, what, a="", b="", when="1+", where="*"):
    """Returns a rule: does `what` at these calls on files in `where`. `when` is the n-th call (`5`), all from the n-th
    on (`5+`), or never (`0`)."""
    return "\t".join([calls, str(when), str(where), what, str(a), str(b)])


def interposed(*rules, count=None):
    """Returns the environment that applies these rules to a program. `count` is a file for the number of calls that
    match each rule."""
    return {"LD_PRELOAD": library(), "INTERPOSED": "\n".join(rules),
            **({"INTERPOSED_STATE": str(count)} if count else {})}


def met(count, rules):
    """Returns for each of `rules` rules the number of matching calls in all programs that used the file `count`."""
    return struct.unpack_from(f"{rules}l", pathlib.Path(count).read_bytes())


class Counted:
    """An environment with a file for its counts, which `met` removes."""

    def __init__(self, *rules):
        handle, self.count = tempfile.mkstemp(dir=scratch())
        os.close(handle)
        self.env, self.rules = interposed(*rules, count=self.count), len(rules)

    def met(self):
        counts = met(self.count, self.rules)
        os.unlink(self.count)
        return counts
