"""Puts hostile names at every place of a folder that has names.

No command may print characters that move a terminal's cursor, reverse its text, hide, or begin a line that looks like
the tool's own."""

import json
import os
import pickle
import re
import struct

from clients import client_of
from generated import generated, given
from hypothesis import strategies
from support import run_ok, run_tool

torch = client_of("torch")
dcp = client_of("torch.distributed.checkpoint")

FORGED = "shardinit: `s` is whole"
HOSTILE = ["\x1b]0;owned\x07", "\x1b[2J", "\x1b[31m", "\x9b2J", "\x7f", "\r", "\b\b", "\u202e", "\u2066", "\u200b",
           "\u2028", "\ufeff", "\u00ad", "\U000e0041", f"\n{FORGED}\n", "\t", "\0"]
# Characters that the tool never prints, apart from its colours, which are off here. Tab and newline are allowed.
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
                    "\U000e0000-\U000e007f]")


@strategies.composite
def names(draw):
    parts = draw(strategies.lists(strategies.sampled_from([*HOSTILE, "w", ".", "é", "layers.0", "`", "\\", "}"]),
                                  min_size=1, max_size=5))
    return "".join(parts)


def safetensors(path, entries, metadata=None):
    """Writes a safetensors file of one-element tensors with these names and types."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, dtype in entries:
        header[name] = {"dtype": dtype, "shape": [1], "data_offsets": [len(data), len(data) + 4]}
        data += struct.pack("<f", 1)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def file_name(name):
    return name.replace("/", "").replace("\0", "")[:60] or "x"


def tensor_name(folder, name):
    safetensors(folder / "model.safetensors", [(name, "F32"), ("ok.w", "F32")])


def type_name(folder, name):
    safetensors(folder / "model.safetensors", [("a", name), ("ok.w", "F32")])


def metadata(folder, name):
    safetensors(folder / "model.safetensors", [("ok.w", "F32")], {name: name})


def index(folder, name):
    tensor_name(folder, name)
    map_ = {name: "model.safetensors", "ok.w": file_name(name) + ".safetensors", "gone": name}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": map_}))


def shard(folder, name):
    safetensors(folder / (file_name(name) + ".safetensors"), [("ok.w", "F32"), (name, "F32")])


def config(folder, name):
    tensor_name(folder, "v")
    (folder / "config.json").write_text(json.dumps({"model_type": name, name: name, "tie_word_embeddings": True}))


def record(folder, name):
    tensor_name(folder, "v")
    (folder / "shardinit-export.json").write_text(json.dumps({"export_version": name, "files": [{"file": name}]}))


def pytorch(folder, name):
    torch.save({name: torch.ones(1), "ok.w": torch.ones(1)}, folder / "pytorch_model.bin")


def pytorch_class(folder, name):
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({name: name, "w": {name: 1}}, protocol=2))


def distributed(folder, name):
    dcp.save({"model": {name: torch.ones(1), "ok.w": torch.ones(1)}, name: {name: 1}}, checkpoint_id=folder,
             no_dist=True)


def zarr(folder, name):
    array = folder / file_name(name)
    array.mkdir()
    (array / ".zarray").write_text(json.dumps({
        "chunks": [1], "compressor": None, "dtype": name, "fill_value": None, "filters": None, "order": "C",
        "shape": [1], "zarr_format": 2}))
    (folder / "_METADATA").write_text(json.dumps({"tree_metadata": {name: {}}}))


def parent(folder, name):
    inner = folder / file_name(name)
    inner.mkdir()
    safetensors(inner / "model.safetensors", [("ok.w", "F32")])


def plan(folder, name):
    (folder / "plan.json").write_text(json.dumps({"format_version": 1, "contract_version": 1, "name": name,
                                                  "engine": name}))
    (folder / "manifest.json").write_text(json.dumps({name: name}))


PLACES = [tensor_name, type_name, metadata, index, shard, config, record, pytorch, pytorch_class, distributed, zarr,
          parent, plan]
COMMANDS = [["inspect", "s"], ["digest", "s"], ["stats", "s"], ["diff", "s", "whole"],
            ["diff", "whole", "s", "--values"],
            ["verify", "s"], ["verify", "s", "--spec", "spec.yaml"], ["convert", "s", "--to", "dcp", "-o", "out"],
            ["convert", "s", "--to", "zarr", "-o", "out"], ["status", "s"], ["import", "s/config.json"],
            ["stats", "s", "--spec", "spec.yaml"],
            ["convert", "s", "--to", "safetensors", "-o", "out", "--from-layout", "hub"]]


@generated(40)
@given(name=names(), place=strategies.sampled_from(PLACES), start=strategies.integers(0, len(COMMANDS) - 1))
def test_commands_escape_random_hostile_names(name, place, start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    (folder / "s").mkdir(), (folder / "whole").mkdir()
    safetensors(folder / "whole/model.safetensors", [("ok.w", "F32")])
    (folder / "spec.yaml").write_text("shardinit: 1\nname: m\ndtype: f32\n"
                                      "modules: {ok: {w: {shape: [1], init: ones}}}\n")
    try:
        place(folder / "s", name)
    except (ValueError, UnicodeEncodeError, OSError):
        return  # Such a file cannot exist.
    for command in (COMMANDS[start:] + COMMANDS[:start])[:4]:
        done = run_tool(*command, cwd=folder)
        assert done.returncode in (0, 1, 2, 4, 5), (command, done)
        for text in done.stdout, done.stderr:
            found = UNSAFE.search(text)
            assert found is None, (command, text)
            assert not any(line.startswith(FORGED) for line in text.splitlines()), (command, text)


def test_escaping_of_names_keeps_the_tools_colours(tmp_path):
    """Escaping applies to names, not to the tool's own colours."""
    tensor_name(tmp_path, "a\x1b[31m")
    done = run_tool("inspect", tmp_path, "--color", "always")
    assert "\\x1b[31m" in done.stderr and "\x1b[31m" not in done.stderr + done.stdout, done
    os.mkdir(tmp_path / "none")
    assert "\x1b[1;31merror:\x1b[0m" in run_tool("inspect", tmp_path / "none", "--color", "always").stderr
    run_ok("inspect", tmp_path)
