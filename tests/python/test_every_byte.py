"""`verify` detects a change of any byte that the tool wrote, in each kind of folder.

CI changes other bytes each day and prints the day. SHARDINIT_EVERY_BYTE=all changes every byte, which took 83 minutes
next to other work on two cores.
"""

import datetime
import json
import os
import random
import shutil

import pytest

from support import FORMATS, run_ok, run_tool, tree_of
from test_copies import killed

DAY = os.environ.get("SHARDINIT_EVERY_BYTE", datetime.date.today().isoformat())
BYTES = 40  # for each kind of folder, unless all are changed

SPEC = """
shardinit: 1
name: tiny
dtype: f32
mesh: {axes: {a: 2}%s}
modules:
  model.norm.weight: {shape: [6], shard: [null], init: ones}
  model.w.weight: {shape: [8, 3], shard: [%s], init: {normal: {std: 1}}}
"""
SPECS = {
    "1": SPEC % ("", "a"),
    "2": SPEC % ("", "{axes: a, segments: 2}"),  # Segments need format version 2.
    "devices": SPEC % (", devices: [1, 0]", "a"),
}
# Formats that require names of their own → names for the two tensors.
NAMES = {
    "keras": ("layers.norm.vars.0", "layers.dense.vars.0"),
    "megatron": ("decoder.final_layernorm.weight", "decoder.layers.self_attention.linear_qkv.weight"),
}


def made(kind, folder):
    """Makes a folder of this kind: a checkpoint of a spec above, or an export to a format."""
    text = SPECS.get(kind, SPECS["1"])
    for name, there in zip(("model.norm.weight", "model.w.weight"), NAMES.get(kind, ())):
        text = text.replace(name, there)
    (folder / "spec.yaml").write_text(text)
    if kind in SPECS:
        run_ok("gen", folder / "spec.yaml", "-o", folder / "made")
    else:
        run_ok("export", folder / "spec.yaml", "--to", kind, "-o", folder / "made")
    return folder / "made"


def choose_bytes(folder):
    """Returns the bytes to change as (file, offset), and the number of all bytes."""
    every = [(name, at) for name, data in sorted(tree_of(folder).items()) if data is not None
             for at in range(len(data))]
    if DAY == "all":
        return every, len(every)
    return random.Random(f"{DAY} {folder}").sample(every, min(BYTES, len(every))), len(every)


def flip_bits(path, at, bits):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ bits]))


@pytest.mark.faults
@pytest.mark.parametrize("kind", [*SPECS, *FORMATS])
def test_verify_detects_a_change_of_any_byte(kind, tmp_path):
    folder = made(kind, tmp_path)
    chosen, number = choose_bytes(folder)
    print(f"SHARDINIT_EVERY_BYTE={DAY}: {len(chosen)} of {number} bytes")
    for name, at in chosen:
        bits = 1 << random.Random(f"{name} {at}").randrange(8)
        flip_bits(folder / name, at, bits)
        result = run_tool("verify", folder)
        assert result.returncode in (1, 2, 5) and result.stderr, f"{name}, byte {at}, bits {bits:#x}: unnoticed"
        assert result.returncode != 2 or name in ("shardinit-export.json", "manifest.json", "plan.json"), result.stderr
        flip_bits(folder / name, at, bits)
    run_ok("verify", folder)


def test_byte_changes_cover_both_format_versions(tmp_path):
    versions = {}
    for kind in SPECS:
        (tmp_path / kind).mkdir()
        folder = made(kind, tmp_path / kind)
        versions[kind] = json.loads((folder / "manifest.json").read_text())["format_version"]
        assert (folder / "devices.json").exists() == (kind == "devices")
    assert versions == {"1": 1, "2": 2, "devices": 1}


@pytest.fixture
def source(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC % ("", "a"))
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "from")
    return tmp_path / "from"


@pytest.mark.faults
def test_reshard_detects_changed_bytes_of_an_unfinished_copy(source, tmp_path):
    """reshard gives the right result even if any byte left by a killed run has changed."""
    mesh = ["--mesh", "a=4"]
    run_ok("reshard", source, *mesh, "-o", tmp_path / "wanted")
    wanted = tree_of(tmp_path / "wanted")
    part = killed(source, tmp_path, *mesh)
    kept = shutil.copytree(part, tmp_path / "kept")
    chosen, number = choose_bytes(part)
    print(f"SHARDINIT_EVERY_BYTE={DAY}: {len(chosen)} of {number} bytes")
    for name, at in chosen:
        flip_bits(part / name, at, 1 << random.Random(f"{name} {at}").randrange(8))
        run_ok("reshard", source, *mesh, "-o", tmp_path / "to")
        assert tree_of(tmp_path / "to") == wanted, f"{name}, byte {at}"
        for left in [tmp_path / "to", *tmp_path.glob(".to*")]:
            shutil.rmtree(left)
        shutil.copytree(kept, part)
