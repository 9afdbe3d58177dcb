"""All Python code in the package's README runs, each example in its own process. So does every guide that needs
frameworks, from its first command to its last."""

import os
import re
import subprocess
import sys

import pytest

from clients import PACKAGE, client_of, gen_ok
from documents import GUIDES, commands_of, files_of, needs_frameworks, run_guide
from support import TINY

BLOCKS = re.findall(
    r"^#+ ([^\n]*)\n(.*?)(?=^#|\Z)", (PACKAGE / "README.md").read_text(), re.M | re.S
)
EXAMPLES = [
    (title, code)
    for title, text in BLOCKS
    for code in re.findall(r"```python\n(.*?)```", text, re.S)
]

TORCH = """
import os, torch
from torch import nn
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(16, 32)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lm_head = nn.Linear(16, 64, bias=False)
        self.layers = nn.ModuleList([Layer(), Layer()])
"""
GLOO = """
os.environ.update(GLOO_SOCKET_IFNAME="lo")
torch.distributed.init_process_group("gloo", init_method=f"file://{DIR}.rendezvous", rank=0, world_size=1)
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
"""
JAX = """
import os
os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=4")
import jax, numpy, shardinit
devices = numpy.array(jax.devices()).reshape(2, 2)
mesh = jax.sharding.Mesh(devices, ("fsdp", "tensor"))
shardings = shardinit.jax.shardings_of(DIR, mesh)
"""
LOADED = (
    "for path, (_, words) in __import__('support').reassemble(DIR).items():\n"
    "    held = model.state_dict()[path]\n"
    "    held = held.full_tensor() if hasattr(held, 'full_tensor') else held\n"
    "    bits = torch.int32 if words.itemsize == 4 else torch.int16\n"
    "    assert (held.view(bits).numpy().view(words.dtype) == words).all(), path\n"
)
ARRAYS = (
    "for path, (_, words) in __import__('support').reassemble(DIR).items():\n"
    "    assert (numpy.asarray(arrays[path]).view(words.dtype) == words).all(), path\n"
)
MODEL = """
shardinit: 1
name: model
dtype: f32
mesh: {axes: {fsdp: 2, tensor: 2}}
init: {n: {normal: {std: 0.1}}}
modules:
  lm_head.weight: {shape: [64, 16], shard: [fsdp, tensor], init: n}
  layers:
    repeat: {layer: 2}
    up.weight: {shape: [32, 16], shard: [tensor], init: n}
    up.bias: {shape: [32], init: zeros}
"""
DENSE = """
shardinit: 1
name: dense
dtype: f32
mesh: {axes: {fsdp: 2, tensor: 2}}
modules:
  kernel: {shape: [16, 32], shard: [fsdp, tensor], init: {normal: {std: 1}}}
  bias: {shape: [32], init: zeros}
"""
LINEAR = DENSE.replace("kernel: {shape: [16, 32]", "weight: {shape: [32, 16]")

# A bucket on a server that runs until the example ends.
BUCKET = """
import atexit, moto_server, pathlib
running = moto_server.moto_server(pathlib.Path(DIR).parent)
server = running.__enter__()
atexit.register(running.__exit__, None, None, None)
URL, ENDPOINT = server.upload(pathlib.Path(DIR), "models", "llama"), server.url
"""

# title in the README → packages, spec, lines before, lines after
CASES = {
    "NumPy": ([], TINY, "", "assert rows.shape == (1024, 256) and (checked == 1).all()\n"
              "assert first.shape == (16, 256) and sum(sizes.values()) == checkpoint.bytes"),
    "Buckets": (
        ["s3fs"],
        TINY,
        BUCKET,
        "assert (rows.view('<u2') == __import__('support').reassemble(DIR)['lm_head.weight'][1][1024:2048]).all()\n"
        "assert checkpoint.folder == 's3://models/llama'",
    ),
    "PyTorch": (["torch"], MODEL, TORCH + "model = Model()\n", LOADED),
    "A model on `meta`": (["torch"], MODEL, TORCH, LOADED),
    "Transformers": (
        ["torch", "transformers"],
        TINY,
        "from transformers import LlamaConfig\nconfig = LlamaConfig(hidden_size=256, "
        "intermediate_size=768, num_hidden_layers=2, num_attention_heads=8, head_dim=32, "
        "num_key_value_heads=4, vocab_size=8192, tie_word_embeddings=False)\n",
        LOADED,
    ),
    "FSDP2 and DTensor": (
        ["torch"],
        MODEL,
        TORCH + GLOO,
        LOADED + "assert torch.equal(weight.full_tensor(), model.lm_head.weight.full_tensor())",
    ),
    "torch.distributed.checkpoint": (["torch"], MODEL, TORCH + GLOO + "model = Model()\n", LOADED),
    "JAX": (["jax"], TINY, JAX, ARRAYS),
    "Flax": (
        ["jax", "flax"],
        DENSE,
        JAX + "from flax import linen\nx = jax.numpy.ones(16)\nmodel = linen.Dense(32)\n",
        "assert numpy.allclose(logits, numpy.asarray(params['kernel']).sum(0), atol=1e-4)",
    ),
    "Flax NNX": (
        ["jax", "flax"],
        DENSE,
        JAX + "from flax import nnx\nModel = lambda rngs: nnx.Linear(16, 32, rngs=rngs)\n",
        "assert model.kernel.get_value().sharding.mesh == mesh and model(numpy.ones(16)).shape == (32,)",
    ),
    "Equinox": (
        ["jax", "equinox"],
        LINEAR,
        JAX + "import equinox\nModel = lambda key: equinox.nn.Linear(16, 32, key=key)\n",
        "assert model.weight.sharding.mesh == mesh and model.weight.shape == (32, 16)",
    ),
    "Without files": (
        [],
        TINY,
        "",
        "assert (rows.view('<u2') == __import__('support').reassemble(DIR)['lm_head.weight'][1][1024:2048]).all()\n"
        "assert spec.seed == 1 and table.shape == (8192, 256)",
    ),
    "A model from a spec": (["torch"], MODEL, TORCH + GLOO, LOADED),
    "Two lines in a trainer": (["torch"], MODEL, TORCH + GLOO, LOADED),
    "One call": (
        ["torch"],
        MODEL,
        TORCH + GLOO,
        LOADED + "torch.manual_seed(7)\nreal = Model()\n"
        "assert all(torch.equal(a.full_tensor(), b) for a, b in zip(same.parameters(), real.parameters(), "
        "strict=True))",
    ),
    "JAX from a spec": (
        ["jax"],
        TINY,
        JAX,
        ARRAYS,
    ),
    "JAX on the devices": (["jax"], TINY, JAX, ARRAYS),
    "A model on the devices": (
        ["jax", "equinox"],
        LINEAR,
        JAX + "import equinox\nModel = lambda key: equinox.nn.Linear(16, 32, key=key)\n",
        "arrays = {'weight': model.weight, 'bias': model.bias}\n" + ARRAYS +
        "assert model.weight.sharding.mesh == mesh",
    ),
    "One call for JAX": (
        ["jax", "equinox"],
        LINEAR,
        JAX + "import equinox\nModel = lambda key: equinox.nn.Linear(16, 32, key=key)\n",
        "real = Model(jax.random.key(7))\n"
        "assert (same.weight == real.weight).all() and (same.bias == real.bias).all()\n"
        "assert model.weight.sharding.spec == shardings['weight'] and model.weight.sharding.mesh == mesh",
    ),
    "Capture": (
        ["torch"],
        MODEL,
        TORCH + "import tempfile\nos.chdir(tempfile.mkdtemp())\n",
        "assert open('model.yaml').read() == captured.text and 'seed: 7' in captured.text\n"
        "assert {path: shape for path, (shape, _) in captured.tensors.items()} == {\n"
        "    path: tuple(tensor.shape) for path, tensor in Model().state_dict().items()}\n"
        "assert str(table.dtype) in ('bfloat16', 'uint16') and table.shape == (64, 16)",
    ),
    "Capture from JAX": (
        ["jax", "equinox"],
        LINEAR,
        "",
        "real = Model(jax.random.key(7))\n"
        "assert all((a == b).all() for a, b in zip(*map(jax.tree.leaves, (model, real))) if hasattr(a, 'shape'))\n"
        "assert captured.layout is None and len(captured.tensors) == 18",
    ),
}


def test_every_example_has_a_case():
    assert list(CASES) == list(dict.fromkeys(title for title, _ in EXAMPLES))


@pytest.mark.parametrize("title", CASES)
def test_example(title, tmp_path):
    packages, spec, before, after = CASES[title]
    for package in packages:
        client_of(package)
    out = gen_ok(spec, tmp_path)
    examples = "\n".join(code for t, code in EXAMPLES if t == title)
    path = spec if isinstance(spec, os.PathLike) else tmp_path / "spec.yaml"
    code = f"DIR, SPEC = {str(out)!r}, {str(path)!r}\n{before}\n{examples}\n{after}\n"
    here = os.path.dirname(os.path.abspath(__file__))
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": f"{PACKAGE}:{here}"},
    )
    assert result.returncode == 0, result.stderr


def required_packages(page):
    """Returns the packages that a guide's Python code imports and its captures need."""
    texts = [text for name, text in files_of(page).items() if name.endswith(".py")]
    commands = [command.text for command in commands_of(page)]
    names = re.findall(r"^(?:import|from) (jax|numpy|torch|transformers)\b", "".join(texts), re.M)
    names += re.findall(r"^shardinit-capture (torch|jax)\b", "\n".join(commands), re.M)
    return {*names, *(name for text in commands for name in re.findall(r"\b(equinox)\.", text))}


WITH_FRAMEWORKS = [page for page in GUIDES if any(map(needs_frameworks, commands_of(page)))]


def test_guides_with_frameworks_are_found():
    assert {page.stem.removeprefix("shardinit-guide-") for page in WITH_FRAMEWORKS} == {
        "initializer", "maxtext", "transformers"}
    assert required_packages(next(page for page in GUIDES if page.stem.endswith("-transformers"))) == {
        "equinox", "jax", "torch", "transformers"}


@pytest.mark.parametrize("page", WITH_FRAMEWORKS, ids=lambda page: page.stem)
def test_guide(page, tmp_path):
    for package in required_packages(page):
        client_of(package)
    run_guide(page, tmp_path, lambda command: True)
