"""A library that tests load into a program, which counts calls of the C library and does what rules say at the
n-th of a kind: tests/support/interpose.c."""

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
    """At these calls, on files there, at the n-th (`5`), from it on (`5+`), or never (`0`): does `what`."""
    return "\t".join([calls, str(when), str(where), what, str(a), str(b)])


def interposed(*rules, count=None):
    """The environment of a program that these rules are for. `count` is a file for how many calls each has met."""
    return {"LD_PRELOAD": library(), "INTERPOSED": "\n".join(rules),
            **({"INTERPOSED_STATE": str(count)} if count else {})}


def met(count, rules):
    """How many calls each of so many rules has met, of all programs that had the file `count`."""
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
