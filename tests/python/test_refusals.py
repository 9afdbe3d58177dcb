"""Commands reject input with the exact messages in tests/refusals/*.txt, case by case; see told.py."""

import pytest

from support import ROOT
from told import cases_of, check_case, text_of

FILES = sorted((ROOT / "tests/refusals").glob("*.txt"))
CASES = [(path, title) for path in FILES for title in cases_of(path)]


@pytest.mark.parametrize("path, title", CASES, ids=[f"{path.stem}-{title}" for path, title in CASES])
def test_refusal(path, title, tmp_path):
    found = check_case(path, title, tmp_path)
    assert "exit 0" not in found, "this is not refused"
    assert "prints" not in found, "a command that refuses has no result"


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_nothing_of_the_file_is_overlooked(path):
    assert text_of(cases_of(path)) == path.read_text()
