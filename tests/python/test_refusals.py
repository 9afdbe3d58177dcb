"""tests/refusals/*.txt: what a user reads when a command refuses, case by case, to the letter.

A case is a title, files, and a script for `sh -e`, whose last command refuses:

    == a_rule_is_no_mapping
    -- spec.yaml
    shardinit: 1
    …
    -- run
    shardinit validate spec.yaml
    -- exit 2
    error text, with $TMP for the case's folder

UPDATE_GOLDEN=1 records what the commands do now. The difference is read in review, as that of golden/ is.
"""

import os
import re
import subprocess

import pytest

from support import BINARY, CLEAN, ROOT

FILES = sorted((ROOT / "tests/refusals").glob("*.txt"))


def cases_of(path):
    """Title → {file name, "run" or "exit N": text}, in the order of the file."""
    cases = {}
    for title, body in re.findall(r"^== (\S+)\n(.*?)(?=^== |\Z)", path.read_text(), re.M | re.S):
        assert title not in cases, f"{path.name} has two cases `{title}`"
        cases[title] = dict(re.findall(r"^-- ([^\n]+)\n(.*?)(?=^-- |\Z)", body, re.M | re.S))
    return cases


def text_of(cases):
    parts = (f"== {title}\n" + "".join(f"-- {name}\n{text}" for name, text in case.items()) for title, case in cases.items())
    return "".join(parts)


def refused(case, folder):
    """The status and the standard error of a case's script, which prints no result."""
    for name, text in case.items():
        if name != "run" and not name.startswith("exit "):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    script = f'set -e\nshardinit() {{ "$SHARDINIT" "$@"; }}\n{case["run"]}'
    done = subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env={**CLEAN, "SHARDINIT": str(BINARY)}, timeout=120)
    assert done.stdout == "", "a command that refuses has no result"
    return {f"exit {done.returncode}": done.stderr.replace(str(folder), "$TMP")}


CASES = [(path, title) for path in FILES for title in cases_of(path)]


@pytest.mark.parametrize("path, title", CASES, ids=[f"{path.stem}-{title}" for path, title in CASES])
def test_refusal(path, title, tmp_path):
    cases = cases_of(path)
    case = cases[title]
    found = refused(case, tmp_path)
    if os.environ.get("UPDATE_GOLDEN"):
        cases[title] = {name: text for name, text in case.items() if not name.startswith("exit ")} | found
        path.write_text(text_of(cases))
    assert "exit 0" not in found, "this is not refused"
    assert found == {name: text for name, text in cases_of(path)[title].items() if name.startswith("exit ")}


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_nothing_of_the_file_is_overlooked(path):
    assert text_of(cases_of(path)) == path.read_text()
