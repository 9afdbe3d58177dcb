"""Runs the command of each golden/<case>/ and compares its exact output.

    cmd       the arguments, one line; runs in the case's folder; `$TMP` is an
              empty folder
    stdout stderr exit     the expected output; an absent file means empty and 0

UPDATE_GOLDEN=1 records the present output. Review the difference: users will see it.
"""

import os
import shlex

import pytest

from support import ROOT, run_tool

CASES = sorted(p.parent for p in (ROOT / "golden").glob("*/cmd"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden(case, tmp_path):
    arguments = [a.replace("$TMP", str(tmp_path)) for a in shlex.split((case / "cmd").read_text())]
    result = run_tool(*arguments, cwd=case)
    actual = {
        "stdout": result.stdout.replace(str(tmp_path), "$TMP"),
        "stderr": result.stderr.replace(str(tmp_path), "$TMP"),
        "exit": f"{result.returncode}\n" if result.returncode else "",
    }
    if os.environ.get("UPDATE_GOLDEN"):
        for name, text in actual.items():
            if text:
                (case / name).write_text(text)
            else:
                (case / name).unlink(missing_ok=True)
    expected = {name: (case / name).read_text() if (case / name).exists() else "" for name in actual}
    assert actual == expected


def test_every_folder_is_a_case():
    assert [p.name for p in sorted((ROOT / "golden").iterdir())] == [case.name for case in CASES]
