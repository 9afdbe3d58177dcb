"""The notebooks of src/python/examples run as stored: their code cells in order, each notebook in its own process."""

import json
import os
import subprocess
import sys

import pytest

from clients import PACKAGE, client_of, like_torch_cpu

NOTEBOOKS = {"equinox": ["jax", "equinox"], "fsdp2": ["torch"]}
CELLS = """
import json, sys
names = {}
for number, cell in enumerate(json.load(open(sys.argv[1]))["cells"]):
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
print("all cells ran")
"""


def notebook(name):
    return json.loads((PACKAGE / f"examples/{name}.ipynb").read_text())


def test_every_notebook_has_a_case():
    assert sorted(path.stem for path in (PACKAGE / "examples").iterdir()) == sorted(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_stored_without_outputs(name):
    stored = notebook(name)
    assert (stored["nbformat"], stored["nbformat_minor"]) == (4, 5) and len(stored["cells"]) > 5
    assert len({cell["id"] for cell in stored["cells"]}) == len(stored["cells"])
    for cell in stored["cells"]:
        assert cell["metadata"] == {} and all(line.endswith("\n") for line in cell["source"][:-1])
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            assert all(len(line) <= 121 for line in cell["source"])


@pytest.mark.parametrize("name", ["equinox", pytest.param("fsdp2", marks=like_torch_cpu())])
def test_notebooks_run(name):
    for package in NOTEBOOKS[name]:
        client_of(package)
    result = subprocess.run(
        [sys.executable, "-c", CELLS, str(PACKAGE / f"examples/{name}.ipynb")], capture_output=True, text=True,
        timeout=300, env={**os.environ, "PYTHONPATH": str(PACKAGE)})
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("all cells ran\n")
