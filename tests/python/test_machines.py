"""What file systems do that are not the disk of one machine."""

import errno
import os
import pathlib

import pytest

from interposed import interposed, rule
from support import run_ok, run_tool, tree_of

LARGE = "shardinit: 1\nname: large\ndtype: f32\nmodules:\n  w: {shape: [256, 256], init: {normal: {std: 1}}}\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "spec.yaml").write_text(LARGE)
    run_ok("gen", "spec.yaml", "-o", "wanted", cwd=tmp_path)
    return tmp_path


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("words", [["gen", "spec.yaml"], ["export", "spec.yaml", "--to", "dcp"]])
def test_what_a_close_says_of_writes_past_the_cache(words, error, folder):
    """In some file systems each descriptor has errors of its own, which its close tells, as in sshfs on a full disk. A
    rank's file had its name before that one was closed, without its bytes."""
    wanted = folder / "good"
    run_ok(*words, "-o", "good", cwd=folder)
    said = rule("close", "fail", getattr(errno, error), when=1, where=f"{folder}/out/ranks/.rank-00000.h5.tmp-")
    if words[0] == "export":
        said = rule("close", "fail", getattr(errno, error), when=1, where="__0_0.distcp")
    result = run_tool(*words, "-o", "out", cwd=folder, env=interposed(said))
    assert result.returncode == 3 and os.strerror(getattr(errno, error)) in result.stderr, result
    named = [path for path in folder.glob("out/**/*.h5") if not path.name.startswith(".")]
    assert named == [] and not pathlib.Path(folder, "out/.metadata").exists()
    run_ok(*words, "-o", "out", cwd=folder)
    assert tree_of(folder / "out") == tree_of(wanted)
