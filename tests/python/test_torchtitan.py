"""The layouts `torchtitan` match torchtitan's models and its converters from and to Hugging Face's names, bit for
bit."""

import pytest

from clients import client_of
from titan_models import SPECS, deepseek_config, llama_config, titan

torch = client_of("torch")
client_of("torchtitan")

import shardinit


def stored_tensors(model, layout):
    """Returns path → stored tensor."""
    spec, sets = SPECS[model]
    with shardinit.open_spec(spec, set=["dtype=f32", *sets], layout=layout, mesh="fsdp=1") as opened:
        return {path: torch.from_numpy(opened.generate(path)) for path in opened.tensors}


def same_forms(stored, model):
    state = model.state_dict()
    assert {path: (tuple(tensor.shape), tensor.dtype) for path, tensor in stored.items()} == \
        {path: (tuple(tensor.shape), tensor.dtype) for path, tensor in state.items()}


def assert_equal(made, wanted):
    assert made.keys() == wanted.keys()
    for path, tensor in wanted.items():
        assert torch.equal(made[path], tensor), path


@pytest.mark.parametrize("kind", [None, "fused"])
def test_torchtitan_llama_matches_the_layout(kind):
    llama3 = titan("torchtitan.models.llama3")
    config = llama_config(llama3, kind)
    stored, drawn = stored_tensors("llama", "torchtitan"), stored_tensors("llama", "")
    with torch.device("meta"):
        model = config.build()
    same_forms(stored, model)
    model.to_empty(device="cpu").load_state_dict(stored)
    assert all(torch.equal(tensor, stored[path]) for path, tensor in model.state_dict().items())
    assert_equal(llama3.Llama3StateDictAdapter(config, None).to_hf(stored), drawn)
    assert_equal(llama3.Llama3StateDictAdapter(config, None).from_hf(drawn), stored)


def test_torchtitan_deepseek_matches_the_layout():
    deepseek = titan("torchtitan.models.deepseek_v3")
    config = deepseek_config(deepseek)
    stored, drawn, hub = (stored_tensors("deepseek", layout) for layout in ("torchtitan", "", "hub"))
    with torch.device("meta"):
        model = config.build()
    same_forms(stored, model)
    # Files on the Hub, which the converter reads and writes, have one matrix for each expert.
    wanted = {}
    for path, tensor in drawn.items():
        if "mlp.experts" not in path:
            wanted[path] = tensor
            continue
        for j, matrix in enumerate(tensor):
            here = path.rpartition(".")[0] + f".{j}."
            if path.endswith("gate_up_proj"):
                wanted[here + "gate_proj.weight"], wanted[here + "up_proj.weight"] = matrix.chunk(2)
            else:
                wanted[here + "down_proj.weight"] = matrix
    assert_equal(hub, wanted)
    assert_equal(deepseek.DeepSeekV3StateDictAdapter(config, None).to_hf(stored), hub)
    assert_equal(deepseek.DeepSeekV3StateDictAdapter(config, None).from_hf(hub), stored)
