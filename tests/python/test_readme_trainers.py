"""Checks the table of trainers in the Python package's README.

A row contains a trainer, packages with their versions, a command, lines of Python, and the test that runs them, or the
word `untested`. To add a row:

- If its lines link to a heading, test_python_readme.py runs the lines under the heading unchanged; add a case there.
- If its lines call one function of the trainer, `test_row` runs them unchanged; add a case here.
- Otherwise add a test, `test_FILE.py::test_NAME`, which imports the package with the version in
  tests/requirements*.txt and makes the same calls."""

import ast
import importlib.util
import os
import pathlib
import re
import shlex
import subprocess
import sys
from typing import NamedTuple

import pytest
from clients import PACKAGE, client_of, gen_ok
from documents import GUIDES, others_of
from support import ROOT, TINY, run_ok

HERE = pathlib.Path(__file__).parent
README = (PACKAGE / "README.md").read_text()


class Row(NamedTuple):
    trainer: str
    version: str  # version of each import as `name version`, separated by `, `
    command: str
    lines: str
    run_by: str


(SECTION,) = re.findall(r"^## Trainers\n(.*?)^## ", README, re.M | re.S)
ROWS = [Row(*line.strip("| ").split(" | ")) for line in SECTION.splitlines() if line.startswith("| ")][1:]
PINS = dict(
    re.match(r"([\w-]+)(?:\[.*\])?==(\S+)", line).groups()
    for file in sorted((ROOT / "tests").glob("requirements*.txt"))
    for line in file.read_text().splitlines() if line and not line.startswith("#")
)


def packages(row):
    return [version.split() for version in row.version.split(", ")]


def module(package):
    """Returns the name under which a package is imported."""
    names = {"megatron-core": "megatron.core", "orbax-checkpoint": "orbax.checkpoint"}
    return names.get(package, package.replace("-", "_"))


def code_spans(text):
    """Returns the texts between backticks."""
    return re.findall(r"`([^`]*)`", text)


def read_test_source(file):
    """Returns the text of a test file and of the modules in this folder that it imports."""
    text = (HERE / file).read_text()
    names = re.findall(r"\b(?:from|import) (\w+)", text)
    return text + "".join((HERE / f"{name}.py").read_text() for name in names if (HERE / f"{name}.py").is_file())


def mistake(row):
    """Returns why a row is invalid, or None."""
    if not row.trainer or not code_spans(row.lines) and row.run_by != "untested":
        return "says nothing"
    if row.run_by == "untested":
        return None
    if not re.fullmatch(r"test_\w+\.py::test_\w+", row.run_by):
        return f"is neither run by a test nor `untested`, but {row.run_by!r}"
    file, name = row.run_by.split("::")
    if not (HERE / file).is_file():
        return f"names {file}, which is not there"
    tests = {node.name: node for node in ast.parse((HERE / file).read_text()).body if isinstance(node, ast.FunctionDef)}
    if name not in tests:
        return f"names {row.run_by}, which is not there"
    if "mark.skip" in "".join(map(ast.unparse, tests[name].decorator_list)):
        return f"names {row.run_by}, which is skipped"
    source = read_test_source(file)
    for package, *version in packages(row):
        if version != [PINS.get(package)]:
            return f"has {package} {version}, and the requirements {PINS.get(package)}"
        if not re.search(rf"(?:import |from |[\"']){re.escape(module(package))}\b", source):
            return f"names {row.run_by}, which does not import {package}"
    if name in ("test_row", "test_example"):  # these tests run the line unchanged
        return None
    for called in re.findall(r"(\w+)\(", "".join(code_spans(row.lines))):
        if called + "(" not in source:
            return f"names {row.run_by}, which does not call {called}"
    for value in re.findall(r"--(?:to|layout) ([\w-]+)", row.command):
        if not re.search(rf"[\"']{value}[\"']", source):
            return f"names {row.run_by}, which has no `{value}`"
    return None


@pytest.mark.parametrize("row", ROWS, ids=[row.trainer for row in ROWS])
def test_row_names_a_test_or_untested(row):
    assert mistake(row) is None


def test_invalid_rows_are_found():
    good = next(row for row in ROWS if row.run_by == "test_python_jax.py::test_flax_scans_over_stacked_layers")
    for change, words in [
        ({"run_by": "-"}, "is neither"),
        ({"run_by": "tested"}, "is neither"),
        ({"run_by": "test_nowhere.py::test_it"}, "is not there"),
        ({"run_by": "test_python_jax.py::test_nothing"}, "is not there"),
        ({"run_by": "test_python_jax.py::Scanned"}, "is neither"),
        ({"version": "flax 0.0.1"}, "requirements"),
        ({"version": "another 1.0"}, "requirements"),
        ({"version": "-"}, "requirements"),
        ({"version": "tensorstore " + PINS["tensorstore"]}, "does not import"),
        ({"lines": "`shardinit.jax.fill_all(skeleton)`"}, "does not call"),
        ({"command": "`shardinit gen SPEC --layout unheard_of -o DIR`"}, "has no `unheard_of`"),
        ({"lines": "-"}, "says nothing"),
    ]:
        assert words in (mistake(good._replace(**change)) or "")
    assert mistake(good._replace(run_by="untested", version="-")) is None


def installed(package):
    try:
        return importlib.util.find_spec(module(package)) is not None
    except ImportError:  # the namespace before the dot is missing
        return False


def test_tests_of_rows_are_collected():
    """pytest collects the test of each row whose packages are installed."""
    named = {row.run_by for row in ROWS if row.run_by != "untested"
             and all(installed(p) for p, _ in packages(row))}
    files = sorted({run_by.split("::")[0] for run_by in named})
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-W", "ignore", *files],
        cwd=HERE, capture_output=True, text=True, timeout=300)
    assert named <= set(re.findall(r"\w+\.py::\w+", result.stdout)), result.stdout + result.stderr


def test_rows_link_to_headings():
    """Rows link to headings of the README; test_python_readme.py runs the lines there."""
    titles = re.findall(r"^#+ (.*)", README, re.M)
    anchors = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}
    linked = {row: re.search(r"\(#([^)]*)\)", row.lines) for row in ROWS}
    for row, link in linked.items():
        assert not link or link[1] in anchors, row
        assert (row.run_by == "test_python_readme.py::test_example") <= bool(link), row


LINES_IN_GUIDES = [(page, line) for page in GUIDES for text in others_of(page) for line in text.splitlines()]


def test_guides_use_lines_of_tested_rows():
    """Guides use lines of tested rows, except for the folder's name."""
    assert {page.stem.removeprefix("shardinit-guide-") for page, _ in LINES_IN_GUIDES} == {
        "maxtext", "megatron", "torchtitan"}
    tested = {line for row in ROWS if row.run_by != "untested" for line in code_spans(row.lines)}
    for page, line in LINES_IN_GUIDES:
        assert re.sub(r"/tmp/\w+", "DIR", line) in tested, (page.name, line)


AS_THEY_STAND = [row for row in ROWS if row.run_by == "test_readme_trainers.py::test_row"]

LLAMA = "from transformers import LlamaForCausalLM, LlamaConfig\n"
JAX = """
os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=4")
import jax
mesh = jax.sharding.Mesh(numpy.array(jax.devices()).reshape(2, 2), ("fsdp", "tensor"))
"""
# trainer → lines before, and the state dict of `result`
CASES = {
    "Transformers": (LLAMA, "result.state_dict()"),
    "safetensors, your own": ("import safetensors.torch\n", "result"),
    "`torch.distributed.checkpoint`": (
        "import torch, torch.distributed.checkpoint as dcp\n"
        "state = {p: torch.zeros(w.shape, dtype=torch.bfloat16) for p, (_, w) in expected.items()}\n",
        "state",
    ),
    "Megatron-core, its GPTModel": (
        "import os, tempfile, torch, megatron_model, test_layouts\n"
        "megatron_model.start(0, 1, tempfile.mkdtemp(), {})\n"
        "from megatron.core import dist_checkpointing\n"
        "model, = megatron_model.make_models({}, d=256, ff=768, layers=2, heads=8, kv_heads=4, head_dim=32, "
        "vocab=8192)\n",
        "test_layouts.megatron({p: w.view(torch.int16).numpy() for p, w in result.items() if hasattr(w, 'view')}, 1)",
    ),
    "MLX": (
        "import mlx.core\n",
        "{path: numpy.array(array.view(mlx.core.uint16)) for path, array in result.items()}",
    ),
    "Orbax": (
        JAX + "import orbax.checkpoint\nabstract = {}\n"
        "for path, (_, w) in expected.items():\n"
        "    at = abstract\n"
        "    for key in path.split('.')[:-1]: at = at.setdefault(key, {})\n"
        "    at[path.split('.')[-1]] = jax.ShapeDtypeStruct(w.shape, 'bfloat16', sharding="
        "jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('tensor')))\n",
        "{'.'.join(k.key for k in path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(result)[0]}",
    ),
    "TensorStore": (
        "import tensorstore\nexpected = {'lm_head.weight': expected['lm_head.weight']}\n",
        "{'lm_head.weight': result.read().result()}",
    ),
}


def test_every_row_has_a_case():
    assert [row.trainer for row in AS_THEY_STAND] == list(CASES)


@pytest.fixture(scope="module")
def gen(tmp_path_factory):
    return gen_ok(TINY, tmp_path_factory.mktemp("gen"))


@pytest.mark.parametrize("row", AS_THEY_STAND, ids=[row.trainer for row in AS_THEY_STAND])
def test_row(row, gen, tmp_path):
    before, state = CASES[row.trainer]
    for package, _ in packages(row):
        client_of(module(package))
    (command,), (line,) = code_spans(row.command), code_spans(row.lines)
    out = str(tmp_path / "out")
    run_ok(*[{"SPEC": TINY, "DIR": out}.get(word, word) for word in shlex.split(command)[1:]])
    code = f"""
import os, sys, numpy
from support import reassemble
DIR = {out!r}
expected = reassemble({str(gen)!r})
{before}
result = {line}
held = {state}
assert held.keys() == expected.keys()
for path, (_, words) in expected.items():
    array = held[path]
    if hasattr(array, "detach"):
        array = array.detach().view(sys.modules["torch"].int16).numpy()
    assert (numpy.asarray(array).view("<u2") == words).all(), path
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": f"{PACKAGE}:{HERE}"},
    )
    assert result.returncode == 0, result.stderr
