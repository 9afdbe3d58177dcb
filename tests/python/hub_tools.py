"""Shared by the tests of `hf://` and `https://`: runs the tool with a test server."""

import os
import re
import shutil
import subprocess

from support import BINARY, tree_of


def tool(hub, *words, token=None, folder=None, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HF_"))}
    return subprocess.run([BINARY, *words], env={**kept, **hub.environment(token), **environment}, cwd=folder,
                          capture_output=True, text=True, timeout=300, check=False)


def ok(hub, *words, **options):
    done = tool(hub, *words, **options)
    assert done.returncode == 0, done
    return done


def refused(hub, code, message, *words, **options):
    """Checks the exit status and that the error contains a text."""
    done = tool(hub, *words, **options)
    assert done.returncode == code and message in done.stderr, done
    return done


def shown(text, url, name):
    """Removes what may differ: the time, and the place of the folder."""
    return re.sub(r"wrote .*|copied .*", "", text).replace(url, name)


def run_on(hub, words, path, name, folder, **environment):
    """Runs a command on `path` in place of the word `name`. Returns the result, its text and the files it made."""
    out = [folder / "out"] if words[-1] == "-o" else []
    done = tool(hub, *(path if word == name else word for word in words), *out, folder=folder, **environment)
    made = tree_of(folder / "out") if (folder / "out").exists() else None
    shutil.rmtree(folder / "out", ignore_errors=True)
    return done, shown(done.stdout + done.stderr, str(path), name), made


def compare(hub, words, folder, url, name="in", **environment):
    """Runs a command on a URL and on its copy on disk, and checks that output and results are equal."""
    there, here = (run_on(hub, words, path, name, folder, **environment) for path in (url, name))
    assert (there[0].returncode, *there[1:]) == (here[0].returncode, *here[1:]), (words, there, here)
    return there[0].returncode
