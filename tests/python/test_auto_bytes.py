"""Compares the bytes that a rank sends in a step by shardinit-auto(7) with the bytes that PyTorch's collectives send in
8 processes (training_bytes.py)."""

import json
import os
import subprocess
import sys

import pytest

from clients import client_of
from support import ROOT, run_tool

client_of("torch")
client_of("transformers")

TOKENS = 64
LLAMA = {"d": 64, "layers": 2, "heads": 8, "kv_heads": 4, "head_dim": 8, "vocab": 512}
LLAMA_CONFIG = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
                "head_dim": 8, "vocab_size": 512}
# Each case: a config, its variables, its sharding, and the same model for training_bytes.py.
RUNS = {
    "columns and rows, and FSDP": (
        "llama3.1-8b", {**LLAMA, "ff": 192},
        "sharding: [{haliax: {table_rows: tensor, heads: tensor, mlp: tensor, vocab: tensor}}, fully_shard]\n",
        {"model": "llama", "mesh": {"fsdp": 4, "tensor": 2}, "settings": {**LLAMA_CONFIG, "intermediate_size": 192}}),
    "hybrid sharding": (
        "gpt2-xl", {"d": 64, "layers": 2, "head_dim": 16, "vocab": 512, "positions": 64},
        "sharding: fully_shard\n",
        {"model": "gpt2", "mesh": {"replicate": 2, "fsdp": 4},
         "settings": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512, "n_positions": 64}}),
    "experts": (
        "mixtral-8x7b", {**LLAMA, "ff": 96, "experts": 8},
        'sharding: [{rules: [{experts: expert}, {"*": null}]}, {fully_shard: {dimensions: {"**.experts.*": 1}}}]\n',
        {"model": "mixture", "mesh": {"expert": 4, "fsdp": 2},
         "settings": {"experts": 8, "per_token": 2, "llama": {**LLAMA_CONFIG, "intermediate_size": 96}}}),
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "runs.json").write_text(json.dumps([{**run, "tokens": TOKENS} for *_, run in RUNS.values()]))
    result = subprocess.run(
        [sys.executable, "-c", "import sys, training_bytes; training_bytes.main(*sys.argv[1:])",
         folder / "runs.json", folder / "sent.json"], cwd=ROOT / "tests/python",
        capture_output=True, text=True, errors="replace", timeout=500, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr[-10000:]
    return dict(zip(RUNS, json.loads((folder / "sent.json").read_text()), strict=True))


@pytest.mark.parametrize("name", RUNS)
def test_predicted_bytes_match_pytorchs_collectives(tmp_path, measured, name):
    config, variables, sharding, run = RUNS[name]
    axes = [{axis: size} for axis, size in run["mesh"].items()]
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"shardinit: 1\ninclude: {ROOT}/configs/{config}.yaml\ndtype: f32\nvars: {json.dumps(variables)}\n"
                    f"mesh: {{axes: {json.dumps(axes)}}}\n{sharding}")
    result = run_tool("plan", "--json", "--tokens", str(TOKENS), spec)
    assert result.returncode == 0, result.stderr
    predicted = json.loads(result.stdout)["cost"]["bytes"]
    sent = measured[name]
    if "tensor" in sent:
        # For each token, the loss takes the largest logit, the sum and the token's own logit from all ranks.
        sent["tensor"] -= 3 * 2 * TOKENS * 4 * 1 // 2
    assert sent == predicted
