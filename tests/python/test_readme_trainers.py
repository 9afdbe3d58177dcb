"""The README's table of trainers: every command and every line of Python runs, and
what is loaded has the bits of the checkpoint."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from clients import PACKAGE, Client, Gen
from support import ROOT, TINY, Ok

ROWS = [
    re.findall(r"`([^`]*)`", command)[0:1] + re.findall(r"`([^`]*)`", line)[0:1] + [trainer]
    for trainer, command, line in re.findall(
        r"^\| ([^|]*) \| (`shardinit (?:gen|export) [^|]*`) \| (`[^|]*`) \|$", (ROOT / "README.md").read_text(), re.M
    )
]

LLAMA = "from transformers import LlamaForCausalLM, LlamaConfig\n"
JAX = """
os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=4")
import jax
mesh = jax.sharding.Mesh(numpy.array(jax.devices()).reshape(2, 2), ("fsdp", "tensor"))
"""
# The line's beginning → packages, lines before, the state that `result` stands for.
CASES = {
    "LlamaForCausalLM.from_pretrained": (["torch", "transformers"], LLAMA, "result.state_dict()"),
    "safetensors.torch": (["safetensors.torch"], "import safetensors.torch\n", "result"),
    "dcp.load": (
        ["torch"],
        "import torch, torch.distributed.checkpoint as dcp\n"
        "state = {p: torch.zeros(w.shape, dtype=torch.bfloat16) for p, (_, w) in expected.items()}\n",
        "state",
    ),
    "dist_checkpointing.load": (
        ["torch", "megatron.core"],
        "import os, tempfile, torch, megatron_model, test_layouts\n"
        "megatron_model.Start(0, 1, tempfile.mkdtemp(), {})\n"
        "from megatron.core import dist_checkpointing\n"
        "model, = megatron_model.Models({}, d=256, ff=768, layers=2, heads=8, kv_heads=4, head_dim=32, vocab=8192)\n",
        "test_layouts.Megatron({p: w.view(torch.int16).numpy() for p, w in result.items() if hasattr(w, 'view')}, 1)",
    ),
    "orbax.checkpoint": (
        ["jax", "orbax.checkpoint"],
        JAX + "import orbax.checkpoint\nabstract = {}\n"
        "for path, (_, w) in expected.items():\n"
        "    at = abstract\n"
        "    for key in path.split('.')[:-1]: at = at.setdefault(key, {})\n"
        "    at[path.split('.')[-1]] = jax.ShapeDtypeStruct(w.shape, 'bfloat16', sharding="
        "jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('tensor')))\n",
        "{'.'.join(k.key for k in path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(result)[0]}",
    ),
    "tensorstore.open": (
        ["tensorstore"],
        "import tensorstore\nexpected = {'lm_head.weight': expected['lm_head.weight']}\n",
        "{'lm_head.weight': result.read().result()}",
    ),
    "model.load_weights": (
        ["keras"],
        "import keras, keras_backbone, test_layouts\n"
        "model = keras_backbone.Llama(keras, layers=2, d=256, ff=768, heads=8, kv_heads=4, vocab=8192)\n",
        "test_layouts.KerasHub(keras_backbone.Variables(model), 1)",
    ),
    "shardinit.torch": (
        ["torch", "transformers"],
        LLAMA + "import shardinit\nmodel = LlamaForCausalLM(LlamaConfig(hidden_size=256, "
        "intermediate_size=768, num_hidden_layers=2, num_attention_heads=8, head_dim=32, "
        "num_key_value_heads=4, vocab_size=8192)).bfloat16()\n",
        "model.state_dict()",
    ),
    "shardinit.jax": (
        ["jax"],
        JAX + "import shardinit\nshardings = shardinit.jax.shardings_of(DIR, mesh)\n",
        "result",
    ),
}


def test_every_row_has_a_case():
    assert [re.match(r"\w+(\.\w+)?", line)[0] for _, line, _ in ROWS] == list(CASES)


@pytest.fixture(scope="module")
def gen(tmp_path_factory):
    return Gen(TINY, tmp_path_factory.mktemp("gen"))


@pytest.mark.parametrize("command, line, trainer", ROWS, ids=[row[2] for row in ROWS])
def test_row(command, line, trainer, gen, tmp_path):
    packages, before, state = CASES[re.match(r"\w+(\.\w+)?", line)[0]]
    for package in packages:
        Client(package)
    out = str(tmp_path / "out")
    Ok(*[{"SPEC": TINY, "DIR": out}.get(word, word) for word in shlex.split(command)[1:]])
    code = f"""
import os, sys, numpy
from support import Reassemble
DIR = {out!r}
expected = Reassemble({str(gen)!r})
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
    here = os.path.dirname(os.path.abspath(__file__))
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": f"{PACKAGE}:{here}"},
    )
    assert result.returncode == 0, result.stderr
