"""Runs every writing command on a file system that becomes full at different points.

The command must report it, leave only complete files under their final names, and keep earlier files. With space, the
same command must succeed."""

import pathlib
import shutil
import subprocess
import sys

import pytest

from full_disk import BLOCK, KINDS, Full, mounted, used
from support import FORMATS, ROOT, run_ok, run_tool, tree_of
from test_outputs import CONFIG, OUTPUTS, PYTHON, is_whole, write

SPEC = """
shardinit: 1
name: small
dtype: f32
mesh: {axes: {a: 2}}
modules:
  w: {shape: [200, 60], shard: [a], init: {normal: {std: 0.5}}}
  decoder.layers.linear_fc1.weight: {shape: [2, 10, 30], init: zeros}
"""
KERAS = SPEC.split("mesh")[0] + 'modules: {layers.dense.vars: {"0": {shape: [200, 60], init: {normal: {std: 0.5}}}}}\n'
# Each makes the folder that its last argument names; the working directory contains `spec.yaml`, `source` and
# `keras.yaml`.
FOLDERS = {
    "gen": ["gen", "spec.yaml", "-o"],
    "gen with devices": ["gen", "spec.yaml", "--set", "mesh.devices=[5, 3]", "-o"],
    "gen --index always": ["gen", "spec.yaml", "--index", "always", "-o"],
    **{f"export --to {format}": ["export", "keras.yaml" if format == "keras" else "spec.yaml", "--to", format, "-o"]
       for format in FORMATS},
    "export of a checkpoint": ["export", "source", "--to", "dcp", "-o"],
    "export --optimizer": ["export", "spec.yaml", "--to", "dcp", "--optimizer", "adamw", "-o"],
    "convert": ["convert", "source", "--to", "safetensors", "-o"],
    "convert --to hdf5": ["convert", "source", "--to", "hdf5", "-o"],
    "reshard": ["reshard", "source", "--mesh", "a=4", "-o"],
    "program --kinds": ["program", "spec.yaml", "--kinds", "-o"],
}


@pytest.fixture(params=KINDS)
def disk(request, tmp_path):
    with mounted(tmp_path, request.param) as disk:
        (tmp_path / "spec.yaml").write_text(SPEC)
        (tmp_path / "keras.yaml").write_text(KERAS)
        (tmp_path / "config.json").write_text(CONFIG)
        yield disk


def assert_reports_full_disk(result, path):
    assert result.returncode == 3, result
    assert "No space left on device" in result.stderr or " free\n" in result.stderr, result.stderr
    assert str(path) in result.stderr and "Traceback" not in result.stderr and "bug" not in result.stderr, result.stderr


def names(disk):
    return sorted(path.name for path in disk.iterdir() if path.name not in ("lost+found", "ballast"))


def free_block_counts(bytes_):
    """Returns numbers of free blocks: 0, 1, half, and one less than the result needs."""
    blocks = bytes_ // BLOCK
    return sorted({0, 1, blocks // 2, blocks - 1} & set(range(blocks)))


@pytest.mark.parametrize("name", FOLDERS)
def test_commands_that_write_folders_resume_after_a_full_disk(name, disk, tmp_path):
    words, out = FOLDERS[name], disk / "out"
    if "source" in words:
        run_ok("gen", "spec.yaml", "-o", "source", cwd=tmp_path)
    before = used(disk)
    run_ok(*words, out, cwd=tmp_path)
    wanted, bytes_ = tree_of(out), used(disk) - before
    shutil.rmtree(out)
    failed = 0
    for left in free_block_counts(bytes_):
        with Full(disk, left * BLOCK):
            result = run_tool(*words, out, cwd=tmp_path)
            if result.returncode:
                failed += 1
                assert_reports_full_disk(result, disk)
                there = tree_of(out) if out.exists() else {}
                assert all(wanted[path] == content for path, content in there.items()), there.keys()
                assert "manifest.json" not in there and not any(".tmp-" in path for path in there)
                assert words[0] == "gen" or not there  # An export is complete or absent.
            else:
                assert tree_of(out) == wanted
        run_ok(*words, out, cwd=tmp_path)
        assert tree_of(out) == wanted and names(disk) == ["out"]
        shutil.rmtree(out)
    assert failed >= 2


@pytest.mark.parametrize("name", FOLDERS)
def test_commands_that_write_folders_resume_without_inodes(name, tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "keras.yaml").write_text(KERAS)
    with mounted(tmp_path) as disk:
        words, out = FOLDERS[name], disk / "out"
        if "source" in words:
            run_ok("gen", "spec.yaml", "-o", "source", cwd=tmp_path)
        run_ok(*words, out, cwd=tmp_path)
        wanted = tree_of(out)
        shutil.rmtree(out)
        for inodes in range(len(wanted) + 1):
            with Full(disk, inodes=inodes):
                result = run_tool(*words, out, cwd=tmp_path)
                assert_reports_full_disk(result, disk)
                there = tree_of(out) if out.exists() else {}
                assert all(wanted[path] == content for path, content in there.items()), there.keys()
                assert "manifest.json" not in there and (words[0] == "gen" or not there)
            run_ok(*words, out, cwd=tmp_path)
            assert tree_of(out) == wanted and names(disk) == ["out"]
            shutil.rmtree(out)


@pytest.mark.parametrize("name", OUTPUTS)
def test_commands_that_write_files_keep_the_old_one_on_a_full_disk(name, disk, tmp_path):
    """An old file keeps its content, and no new file appears."""
    out = disk / "out"
    other = [] if name.startswith(("import", "capture")) else ["--set", "name=other"]
    assert write(name, out, *other, folder=tmp_path).returncode == 0
    old = out.read_text()
    out.unlink()
    before = used(disk)
    assert write(name, out, folder=tmp_path).returncode == 0
    new, bytes_ = out.read_text(), used(disk) - before
    assert is_whole(name, new) and bytes_ >= BLOCK and (old != new) == bool(other)
    out.unlink()
    for left in free_block_counts(bytes_):
        for had in ("nothing", "a file", "a file of mine", "nothing in it"):
            text = {"nothing": None, "a file": old, "a file of mine": "mine\n", "nothing in it": ""}[had]
            if text is not None:
                out.write_text(text)
            options = ["--force"] if had == "a file of mine" else []
            with Full(disk, left * BLOCK):
                result = write(name, out, *options, folder=tmp_path)
                if result.returncode:
                    assert_reports_full_disk(result, out)
                    assert (out.read_text() if out.exists() else None) == text
                    assert names(disk) == (["out"] if text is not None else [])
            assert write(name, out, *options, folder=tmp_path).returncode == 0
            assert out.read_text() == new and names(disk) == ["out"]
            out.unlink()
            if left == 0:
                assert result.returncode == 3


UNPRIVILEGED = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@pytest.mark.parametrize("name", [name for name in OUTPUTS if not name.startswith("capture")])
def test_output_is_overwritten_in_place_only_if_it_fits(name, disk, tmp_path):
    """If no file can be made next to the output, it is overwritten in place only if the new text fits."""
    out = disk / "out"
    for above in (*tmp_path.parents, tmp_path):
        if above.stat().st_uid == 0 and str(above).startswith("/tmp/"):
            above.chmod(above.stat().st_mode | 0o755)
    if run_tool("plan", tmp_path / "spec.yaml", wrap=UNPRIVILEGED).returncode:
        pytest.skip("not tested: another user cannot run the program here")
    disk.chmod(0o755)
    out.write_text("mine\n")
    out.chmod(0o666)
    assert write(name, out, "--force", folder=tmp_path, wrap=UNPRIVILEGED).returncode == 0
    new = out.read_text()
    assert len(new) > 50
    out.write_text("")
    with Full(disk):
        result = write(name, out, "--force", folder=tmp_path, wrap=UNPRIVILEGED)
        if result.returncode:
            assert_reports_full_disk(result, out)
            assert out.read_text() == ""
    assert write(name, out, "--force", folder=tmp_path, wrap=UNPRIVILEGED).returncode == 0
    assert out.read_text() == new


def test_python_overwrites_in_place_only_what_fits(disk, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "src/python")
    from shardinit._result_file import _write_into

    out = disk / "out"
    for text in (b"", b"mine\n", 5000 * b"m"):
        out.write_bytes(text)
        with Full(disk):
            with pytest.raises(OSError, match="No space left on device"):
                _write_into(str(out), 50_000 * b"x")
            assert out.read_bytes() == text
            _write_into(str(out), text[::-1])  # This text fits.
            assert out.read_bytes() == text[::-1]
        _write_into(str(out), 50_000 * b"x")
        assert out.read_bytes() == 50_000 * b"x"


def test_failed_finalize_and_repair_on_a_full_disk_change_nothing(disk, tmp_path):
    """The old manifest stays valid until a new one is complete, and a failed repair leaves the file unchanged."""
    out = disk / "out"
    run_ok("gen", "spec.yaml", "-o", out, cwd=tmp_path)
    wanted = tree_of(out)
    with Full(disk):
        assert_reports_full_disk(run_tool("finalize", out), disk)
        assert tree_of(out) == wanted
    (out / "manifest.json").unlink()
    with Full(disk):
        result = run_tool("finalize", out)
        if result.returncode:
            assert_reports_full_disk(result, disk)
            assert not (out / "manifest.json").exists() and not [p for p in tree_of(out) if ".tmp-" in p]
    run_ok("finalize", out)
    assert tree_of(out) == wanted
    rank = out / "ranks/rank-00001.h5"
    damaged = bytearray(rank.read_bytes())
    damaged[-1] ^= 1
    rank.write_bytes(damaged)
    with Full(disk):
        assert_reports_full_disk(run_tool("gen", "spec.yaml", "--repair", "-o", out, cwd=tmp_path), disk)
        assert rank.read_bytes() == damaged
    run_ok("gen", "spec.yaml", "--repair", "-o", out, cwd=tmp_path)
    assert tree_of(out) == wanted


def test_captured_tables_are_complete_or_absent_on_a_full_disk(disk, tmp_path):
    """If the disk fills up while a captured spec and its tables are written, only complete tables remain."""
    code = ("import sys, shardinit.capture as c\n"
            "tables = {'tables/' + letter * 64 + '.bin': bytes(20000) for letter in 'ab'}\n"
            "c.Captured('# X, captured by shardinit-capture from PyTorch.\\nshardinit: 1\\n', {}, "
            "tables=tables).write(sys.argv[1])\n")
    run = [sys.executable, "-c", code, disk / "spec.yaml"]
    for left in (0, 3, 6, 9):
        with Full(disk, left * BLOCK):
            result = subprocess.run(run, env=PYTHON, text=True, capture_output=True)
            assert result.returncode and "No space left on device" in result.stderr, (left, result.stderr)
            there = {path: content for path,
                     content in tree_of(disk).items() if content is not None and "ballast" not in path}
            assert all(content == bytes(20000) and path.endswith(".bin") for path,
                       content in there.items()), there.keys()
        subprocess.run(run, env=PYTHON, check=True)
        assert [path.name for path in sorted((disk / "tables").iterdir())] == [f"{c * 64}.bin" for c in "ab"]
        shutil.rmtree(disk / "tables")
        (disk / "spec.yaml").unlink()


def test_full_disk_cases_cover_every_command_with_output():
    """Every command with `-o` is tested: FOLDERS lists the commands that make a folder, and OUTPUTS the commands that
    make a file."""
    makes = {path.stem for path in pathlib.Path(ROOT, "src/commands").glob("*.cc")
                 if '"-o,--output"' in path.read_text()}
    # options.cc has the option for printed output, and job_engines.cc the one for job scripts. exporting.cc shares its
    # option between two commands.
    makes = makes - {"options", "job_engines", "exporting"} | {"export", "convert"}
    assert makes == {words[0] for words in [*FOLDERS.values(), *(words for words, _ in OUTPUTS.values())]} & makes
