"""Commands print exactly what golden/*.txt records; see recorded.py."""

import pytest

from recorded import GOLDEN, check, parse, text_of

FILES = {path: parse(path.read_text()) for path in sorted(GOLDEN.glob("*.txt")) if path.name != "leaves.txt"}
CASES = [(path, title) for path, cases in FILES.items() for title in cases]


@pytest.mark.parametrize("path, title", CASES, ids=[f"{path.stem}-{title}" for path, title in CASES])
def test_output_is_as_recorded(path, title, tmp_path):
    check(path, title, FILES[path][title], tmp_path)


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_golden_files_survive_a_round_trip(path):
    text = path.read_text()
    assert text_of(parse(text)) == text


def test_every_golden_file_is_read():
    assert sorted(GOLDEN.iterdir()) == sorted([*FILES, GOLDEN / "leaves.txt"])
