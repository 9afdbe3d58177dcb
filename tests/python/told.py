"""What commands say, to the letter: files of cases, for test_refusals.py and test_answers.py.

A case is a title, files, a script for `sh -e`, and what it prints, with $TMP for the case's folder:

    == a_rule_is_no_mapping
    -- spec.yaml
    shardinit: 1
    …
    -- run
    shardinit validate spec.yaml
    -- prints
    standard output, if there is any
    -- exit 2
    standard error

UPDATE_GOLDEN=1 records what the commands do now. The difference is read in review, as that of golden/ is.
"""

import os
import pathlib
import re
import subprocess
import sys

from support import BINARY, CLEAN

# `plan` says what its threads would need, of which there are as many as cores if it is not told.
# `timeless` leaves out what a run took, which differs each time.
COMMANDS = r"""set -e
shardinit() {
  case "$1 $*" in "plan "*" -j"* | "plan "*" --jobs"*) ;; "plan "*) shift; set -- plan --jobs 2 "$@" ;; esac
  "$SHARDINIT" "$@"
}
timeless() { sed -E 's/ in [0-9.]+ s \([0-9.]+ [A-Z]*B\/s\)$/ in T/; s/"seconds": .*/"seconds": T/'; }
"""


def cases_of(path):
    """Title → {file name, "run", "prints" or "exit N": text}, in the order of the file."""
    cases = {}
    for title, body in re.findall(r"^== (\S+)\n(.*?)(?=^== |\Z)", path.read_text(), re.M | re.S):
        assert title not in cases, f"{path.name} has two cases `{title}`"
        cases[title] = dict(re.findall(r"^-- ([^\n]+)\n(.*?)(?=^-- |\Z)", body, re.M | re.S))
    return cases


def text_of(cases):
    parts = (f"== {title}\n" + "".join(f"-- {name}\n{text}" for name, text in case.items()) for title, case in cases.items())
    return "".join(parts)


def is_told(name):
    return name == "prints" or name.startswith("exit ")


def run_case(case, folder):
    """What a case's script prints, its status and its standard error, as a case has them."""
    for name, text in case.items():
        if name != "run" and not is_told(name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    script = COMMANDS + case["run"]
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"  # python3 is the one that runs the tests
    done = subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env={**CLEAN, "PATH": path, "SHARDINIT": str(BINARY)}, timeout=120)
    printed = {"prints": done.stdout.replace(str(folder), "$TMP")} if done.stdout else {}
    return printed | {f"exit {done.returncode}": done.stderr.replace(str(folder), "$TMP")}


def check_case(path, title, folder):
    """Runs a case, and returns what it told, which is what the file says."""
    cases = cases_of(path)
    found = run_case(cases[title], folder)
    if os.environ.get("UPDATE_GOLDEN"):
        cases[title] = {name: text for name, text in cases[title].items() if not is_told(name)} | found
        path.write_text(text_of(cases))
    assert found == {name: text for name, text in cases_of(path)[title].items() if is_told(name)}
    return found
