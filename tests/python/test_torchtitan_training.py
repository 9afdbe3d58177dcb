"""torchtitan's Trainer loads exports in each way of its CheckpointManager. Its first losses equal, bit for bit, the
losses with the same values copied by hand: in one process, and in four with FSDP2, HSDP, tensor and expert
parallelism."""

import json
import os
import subprocess
import sys

import pytest

from clients import client_of
from support import ROOT, reassemble, run_ok
from titan_models import LLAMA, SPECS

torch = client_of("torch")
client_of("torchtitan")
client_of("torchdata")

TYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
# torchtitan's converter reads the names on the Hub.
EXPORTS = {"llama": [], "tied": [], "deepseek": ["--layout", "hub"]}
MODELS = {"llama": "llama", "llama_fused": "llama", "llama_tied": "tied", "deepseek": "deepseek"}
# Processes and options; FSDP2 uses the remaining processes.
MESHES = {
    "one": (1, []),
    "fsdp": (4, []),
    "hsdp": (4, ["--parallelism.data_parallel_replicate_degree", "2"]),
    "tensor": (4, ["--parallelism.tensor_parallel_degree", "2"]),
    "expert": (4, ["--parallelism.expert_parallel_degree", "2", "--parallelism.tensor_parallel_degree", "2"]),
}
CASES = [(model, mesh) for model in MODELS for mesh in ("one", "fsdp")] + [
    ("llama", "hsdp"), ("llama", "tensor"), ("llama_fused", "tensor"), ("deepseek", "expert")]


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """Returns (model, mesh, how) → the losses of three steps."""
    folder, ways = tmp_path_factory.mktemp("titan"), {}
    specs = {**SPECS, "tied": (tied_llama(folder), [])}
    for name, (path, sets) in specs.items():
        here = folder / name
        here.mkdir()
        arguments = [path, *(word for each in sets for word in ("--set", each))]
        run_ok("gen", *arguments, "--layout", "torchtitan", "--mesh", "fsdp=1", "-o", here / "gen")
        torch.save({p: torch.from_numpy(words.view(f"<i{words.itemsize}")).view(TYPES[dtype])
                    for p, (dtype, words) in reassemble(here / "gen").items()}, here / "values.pt")
        run_ok("export", *arguments, "--layout", "torchtitan", "--mesh", "fsdp=2", "--to", "dcp", "-o", here / "dcp")
        run_ok("export", *arguments, *EXPORTS[name], "--mesh", "fsdp=1", "--to", "safetensors", "--max-shard-size",
               "100K", "-o", here / "safetensors")
        assert len(list((here / "dcp").glob("*.distcp"))) == 2
        assert len(list((here / "safetensors").glob("*.safetensors"))) > 1
        dcp = ["--checkpoint.enable", "--checkpoint.initial_load_path", str(here / "dcp")]
        safetensors = ["--checkpoint.enable", "--checkpoint.initial_load_in_hf",
                       "--checkpoint.initial_load_path", str(here / "safetensors")]
        ways[name] = {"fresh": (None, []), "by hand": (str(here / "values.pt"), []),
                      "dcp": (None, dcp), "safetensors": (None, safetensors)}
    names = [(*case, how) for case in CASES for how in ("by hand", "dcp", "safetensors")]
    names += [(model, "one", "fresh") for model in MODELS]
    runs = [{"model": model, "ranks": MESHES[mesh][0], "values": values, "arguments": arguments + MESHES[mesh][1]}
            for model, mesh, how in names for values, arguments in [ways[MODELS[model]][how]]]
    (folder / "runs.json").write_text(json.dumps(runs))
    result = subprocess.run(
        [sys.executable, "-c", "import sys, titan_trainer; titan_trainer.main(*sys.argv[1:])",
         folder / "runs.json", folder / "losses.json"], cwd=ROOT / "tests/python",
        capture_output=True, text=True, errors="replace", timeout=500, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr[-10000:]
    return dict(zip(names, json.loads((folder / "losses.json").read_text()), strict=True))


def tied_llama(folder):
    """Returns the spec imported from a config.json."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True,
              "dtype": "bfloat16", "hidden_size": LLAMA["d"], "intermediate_size": LLAMA["ff"],
              "num_hidden_layers": LLAMA["layers"], "num_attention_heads": LLAMA["heads"],
              "num_key_value_heads": LLAMA["kv_heads"], "vocab_size": LLAMA["vocab"]}
    (folder / "config.json").write_text(json.dumps(config))
    run_ok("import", folder / "config.json", "-o", folder / "tied.yaml")
    return folder / "tied.yaml"


# One test covers all cases; otherwise each worker of pytest-xdist would train.
def cases(losses, how):
    return {(model, mesh): losses[model, mesh, how] for model, mesh in CASES}


def test_first_losses_after_initial_load_path(losses):
    wanted = cases(losses, "by hand")
    for (model, _), three in wanted.items():
        assert len(set(three)) == 3 and three != losses[model, "one", "fresh"]
    assert cases(losses, "dcp") == wanted


def test_first_losses_after_initial_load_in_hf(losses):
    assert cases(losses, "safetensors") == cases(losses, "by hand")
