"""Tests the exact output of successive commands against tests/answers/*.txt; see told.py."""

import pytest

from support import ROOT
from told import cases_of, check_case, text_of

FILES = sorted((ROOT / "tests/answers").glob("*.txt"))
CASES = [(path, title) for path in FILES for title in cases_of(path)]


@pytest.mark.parametrize("path, title", CASES, ids=[f"{path.stem}-{title}" for path, title in CASES])
def test_answer(path, title, tmp_path):
    assert check_case(path, title, tmp_path).get("prints"), "this answers nothing"


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_nothing_of_the_file_is_overlooked(path):
    assert text_of(cases_of(path)) == path.read_text()
