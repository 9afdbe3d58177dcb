"""Replaces whole numbers in every JSON file that we read by invalid or out-of-range values, one at a time. Each reader
reports an error that names the file, or does not need the number; it never returns another value."""

import json
import pathlib
import re
import shutil

import numpy as np
import pytest

from support import BINARY, OF_ANY, ROOT, run_ok, run_tool, tree_of

SPEC = """
shardinit: 1
name: x
dtype: f32
mesh: {axes: {a: 2}, slices: {a: 2}, devices: [5, 3]}
modules:
  w: {shape: [8, 4], init: {normal: {std: 1}}, shard: [a]}
  decoder.layers.linear_fc1.weight: {shape: [6], init: ones}
"""
NUMBERS = ["-1", "2147483648", "9007199254740993", "9223372036854775808", "18446744073709551615",
           "18446744073709551616",
           "99999999999999999999999", "-99999999999999999999", "1e400", "1e300", "0.5", "5.0", '"1"', "null", "true",
           "[1]", "{}"]


def places(text, begin=0, end=None, quote='"'):
    """Yields where whole numbers are in JSON, also in JSON inside a string: (begin, end, how `"` is written)."""
    string = re.compile(r'"(?:[^"\\]|\\.)*"' if quote == '"' else r'\\"(?:[^"\\]|\\[^"])*\\"')
    at, end = begin, len(text) if end is None else end
    while at < end:
        if found := string.match(text, at, end):
            if found[0].startswith('"{'):
                yield from places(text, at + 1, found.end() - 1, r'\"')
            at = found.end()
        elif found := re.compile(r"\d+").match(text, at, end):
            yield found.start(), found.end(), quote
            at = found.end()
        else:
            at += 1


def changed(text, each=3):
    """Yields the text with one number replaced, for each number and `each` of NUMBERS in turn, with a description.
    test_generated_bounds.py tries all of NUMBERS."""
    for at, (begin, end, quote) in enumerate(places(text)):
        for number in (NUMBERS[(each * at + i) % len(NUMBERS)] for i in range(each)):
            yield (text[:begin] + number.replace('"', quote) + text[end:],
                   f"{text[max(0, begin - 40):begin]}>>{number}<<{text[end:end + 10]}")


def test_places_finds_every_number():
    text = '{"a1": [1, {"b": 23}], "m": {"i": "{\\"w2\\":{\\"o\\":[4,0]}}", "s": "5"}}'
    assert [text[begin:end] for begin, end, _ in places(text)] == ["1", "23", "4", "0"]
    for begin, end, quote in places(text):
        for number in NUMBERS:
            json.loads(json.loads(text[:begin] + number.replace('"', quote) + text[end:])["m"]["i"])


def read_header(path):
    data = path.read_bytes()
    return data[8:8 + int.from_bytes(data[:8], "little")].decode()


def write_header(path, text):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    path.write_bytes(len(text.encode()).to_bytes(8, "little") + text.encode() + data[8 + size:])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    (folder / "spec.yaml").write_text(SPEC)
    run_ok("gen", "spec.yaml", "-o", "checkpoint", cwd=folder)
    for format in (*OF_ANY, "megatron"):
        run_ok("export", "spec.yaml", "--to", format, "-o", format, cwd=folder)
    run_ok("export", "spec.yaml", "--to", "safetensors", "--max-shard-size", "100", "-o", "many", cwd=folder)
    run_ok("digest", "spec.yaml", "--write", "digest.json", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def python():
    """Returns a function that reads a folder with the Python package: path → bytes, or the error."""
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(ROOT / "src/python")
    patch.setenv("SHARDINIT_LIBRARY", str(BINARY.parent / "libshardinit.so.1"))
    import shardinit

    def read(folder):
        try:
            with shardinit.open(folder) as source:
                said = {path: (info.dtype, info.global_shape) for path, info in source.tensors.items()}
                return {path: (said[path], np.asarray(source.read(path)).tobytes()) for path in said}, source.seed
        except shardinit.ShardinitError as error:
            return error

    yield read
    patch.undo()


def json_files(folder):
    """Returns every JSON file below the folder, and every file with a JSON header."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")
                  if path.suffix in (".json", ".safetensors") or path.name in (".zarray", ".zattrs", ".zgroup"))


# Commands for each kind of folder, on a part of `FOLDER` or all of it. The test lists their other exit statuses, and
# checks that with status 0 they make or print the same as for an unchanged folder.
CHECKPOINT = [["status", "FOLDER"], ["inspect", "FOLDER"], ["finalize", "FOLDER"],
              ["export", "FOLDER", "--to", "dcp", "-o", "new"],
              ["reshard", "FOLDER", "--mesh", "a=1", "-o", "new"], ["stats", "FOLDER"],
              ["gen", "spec.yaml", "-o", "FOLDER"],
              ["diff", "FOLDER", "spec.yaml"], ["verify", "FOLDER", "--spec", "spec.yaml"]]
EXPORT = [["verify", "FOLDER", "--spec", "spec.yaml"]]


def cases():
    yield from (("checkpoint", name)
                for name in ("plan.json", "devices.json", "manifest.json", "ranks/rank-00001.json"))
    yield from ((format, "shardinit-export.json") for format in ("dcp", "zarr"))
    yield "safetensors", "model.safetensors"
    yield "many", "model-00001-of-00002.safetensors"
    yield "many", "model.safetensors.index.json"
    yield "hf-dcp", "shard-00001-model-00001-of-00001.safetensors"
    yield "hf-dcp", "shard-00002-model-00001-of-00001.safetensors"
    yield "zarr", "w/.zarray"
    yield "zarr", "decoder.layers.linear_fc1.weight/.zarray"
    yield "megatron", "metadata.json"


@pytest.mark.parametrize(("folder", "name"), [pytest.param(*case, id="/".join(case)) for case in cases()])
def test_readers_reject_wrong_numbers_in_json(folder, name, made, tmp_path, python):
    copy = pathlib.Path(shutil.copytree(made / folder, tmp_path / folder))
    shutil.copy(made / "spec.yaml", tmp_path)
    path, tree, values = copy / name, tree_of(made / folder), python(copy)
    read, write = (read_header, write_header) if name.endswith(".safetensors") else (pathlib.Path.read_text,
                                                                                     pathlib.Path.write_text)
    text = read(path)
    commands = CHECKPOINT if folder == "checkpoint" else EXPORT
    wanted = {}
    for number, words in enumerate(commands):
        words = [copy if word == "FOLDER" else word for word in words]
        result = run_ok(*words, cwd=tmp_path)
        wanted[number] = (words, result.stdout, tree_of(tmp_path / "new") if "new" in words else None)
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
    assert tree_of(copy) == tree
    count = 0
    for turn, (other, what) in enumerate(changed(text)):
        count += 1
        if json.loads(other) == json.loads(text):
            continue
        write(path, other)
        result = run_tool("verify", copy)
        # A valid plan may belong to other receipts, and nothing shows which of the two is wrong.
        assert result.returncode in (1,
                                     5) and (path.name in result.stderr
                                                 or re.search("(of this|to another) plan", result.stderr)), (what,
                                                                                                             result)
        assert "bug" not in result.stderr, (what, result)
        found = python(copy)
        assert isinstance(found, Exception) or found == values, (what, found)
        words, stdout, new = wanted[turn % len(commands)]
        result = run_tool(*words, cwd=tmp_path)
        assert result.returncode in (0, 1, 2, 3, 4, 5) and "bug" not in result.stderr, (what, words, result)
        if result.returncode == 0:
            if new is not None:
                assert tree_of(tmp_path / "new") == new, (what, words)
            elif words[0] == "finalize":
                assert tree_of(copy) == tree, (what, words)
            elif words[0] == "gen":  # Finished files are left unchanged without --repair.
                assert tree_of(copy) in (tree, {**tree, name: other.encode()}), (what, words)
            elif words[0] != "status":  # `status` counts receipts, and a wrong one does not count.
                assert result.stdout == stdout, (what, words, result)
        else:
            assert not (tmp_path / "new").exists() and result.stderr, (what, words)
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        write(path, text)
        if words[0] in ("finalize", "gen"):
            shutil.rmtree(copy)
            shutil.copytree(made / folder, copy)
    assert count or not re.search(r"\d", text)


def test_digest_check_rejects_wrong_numbers_in_its_list(made, tmp_path):
    text = (made / "digest.json").read_text()
    for other, what in changed(text):
        (tmp_path / "list.json").write_text(other)
        result = run_tool("digest", made / "spec.yaml", "--check", tmp_path / "list.json")
        assert result.returncode in (1, 5) and "list.json" in result.stderr and "bug" not in result.stderr, (what,
                                                                                                             result)


def test_every_json_file_is_tested(made):
    """All JSON files are tested. Files of one format with the same name or kind are read alike, so one of each
    suffices."""
    kinds = {re.sub(r"\d+", "0", pathlib.Path(name).name) for _, name in cases()}
    for folder in made.iterdir():
        if folder.is_dir():
            assert {re.sub(r"\d+", "0", pathlib.Path(name).name) for name in json_files(folder)} <= kinds, folder


def test_every_reader_of_json_has_checked_numbers():
    """Every file that uses the JSON library includes base/json.h; otherwise its own number conversion could be
    linked."""
    sources = [*(ROOT / "src").rglob("*.cc"), *(ROOT / "src").rglob("*.h"), *(ROOT / "tests").rglob("*.cc")]
    readers = [path for path in sources if "#include <nlohmann/json.hpp>" in path.read_text()]
    assert len(readers) > 10
    assert [path for path in readers if '#include "base/json.h"' not in path.read_text()] == []
