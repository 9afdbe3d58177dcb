"""Runs multithreaded commands under ThreadSanitizer, which exits with status 66 for a data race, and compares results
with the usual build. `sh tests/run.sh tsan` builds the program for it."""

import subprocess

import pytest

from bucket_tools import tool
from object_store import object_store, object_store_server  # noqa: F401
from support import BINARY, FORMATS, ROOT, run_ok, tree_of

WATCHED = ROOT / "build/tsan/src/shardinit"
pytestmark = pytest.mark.skipif(not WATCHED.exists(),
                                reason="the program with ThreadSanitizer is not built: run.sh tsan")

TINY, KINDS = "llama3-tiny", ROOT / "tests/python/kinds.yaml"
MESH = ["--sharding", "fsdpv2", "--mesh", "fsdp=3"]
# The folder has `model`, a checkpoint, and `weights`, an export. Commands that end in `-o` get an output folder.
COMMANDS = {
    "gen": ["gen", TINY, "--mesh", "fsdp=4,tensor=2", "-o"],
    "gen of every kind": ["gen", KINDS, "-o"],
    "gen of PyTorch's numbers": ["gen", TINY, "--set", "engine=torch_cpu", "-o"],
    "gen of a source": ["gen", "grown.yaml", "-o"],
    "digest": ["digest", TINY],
    "digest of a folder": ["digest", "weights"],
    "verify": ["verify", "model"],
    "verify --spec": ["verify", "weights", "--spec", TINY],
    "stats": ["stats", "model"],
    "stats of a spec": ["stats", KINDS],
    "diff --values": ["diff", "model", "weights", "--values"],
    "reshard": ["reshard", "model", "--mesh", "fsdp=3,tensor=1", "--uneven", "chunk", "-o"],
    "convert of boxes": ["convert", "model", "--to", "dcp", *MESH, "-o"],
    "convert of types": ["convert", "weights", "--to", "hdf5", "--dtype", "f32", "-o"],
    "convert of ranks": ["convert", "weights", "--to", "zarr", *MESH, "--ranks", "0-2", "-o"],
    **{f"export --to {form}": ["export", TINY, "--to", form, *(["--layout", "megatron"] if form == "megatron" else []),
                               "-o"]
       for form in FORMATS if form != "keras"},
}
GROWN = """
shardinit: 1
name: grown
dtype: f32
sources: {old: {path: weights}}
modules:
  model.embed_tokens.weight:
    shape: [8300, 256]
    init: {parts: {axis: 0, of: [{source: old}, {rows_like: {source: old, std: 0.02}}]}}
  model.norm.weight: {shape: [256], init: {source: old}}
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    run_ok("gen", TINY, "-o", "model", cwd=folder)
    run_ok("export", TINY, "--to", "safetensors", "-o", "weights", cwd=folder)
    (folder / "grown.yaml").write_text(GROWN)
    return folder


def run(binary, words, folder):
    return subprocess.run([binary, words[0], "--jobs", "4", *words[1:]], cwd=folder, capture_output=True, text=True,
                          timeout=300, check=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_have_no_data_race(name, inputs, tmp_path):
    words, made = COMMANDS[name], []
    for binary in (WATCHED, BINARY):
        out = tmp_path / binary.parents[1].name
        done = run(binary, [*words, *([out] if words[-1] == "-o" else [])], inputs)
        assert done.returncode == 0, done
        made.append(tree_of(out) if out.exists() else done.stdout)
    assert made[0] == made[1]


def test_bucket_commands_have_no_data_race(inputs, object_store):  # noqa: F811
    """Threads upload parts and read ranges of several files."""
    for words in (["gen", TINY, "-o", "s3://bucket/models/tiny"],
                  ["verify", "s3://bucket/models/tiny"],
                  ["convert", "s3://bucket/models/tiny", "--to", "safetensors", *MESH, "-o",
                   "s3://bucket/models/weights"],
                  ["digest", "s3://bucket/models/weights"]):
        done = tool(object_store, words[0], "--jobs", "4", *words[1:], folder=inputs, binary=WATCHED)
        assert done.returncode == 0, done
