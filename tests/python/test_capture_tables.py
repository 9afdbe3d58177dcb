"""Tables that no expression describes: a captured spec reads their elements from files next to it, and they have the
bits of the model's tables."""

import hashlib

import numpy as np
import pytest
from clients import client_of
from support import reassemble, run_ok
from test_capture import TEXT, class_of

torch = client_of("torch")
transformers = client_of("transformers")

import shardinit.capture
from shardinit._dtypes import name_of
from shardinit.capture._command import main
from torch import nn

TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
SPEECH = dict(d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
              encoder_ffn_dim=96, decoder_ffn_dim=96, vocab_size=100, **TOKENS)


def angles():
    return torch.arange(150.0)[:, None] * torch.exp(torch.arange(0, 64, 2) * (-np.log(1e4) / 64))


def noise():
    return torch.tensor(np.random.default_rng(1).normal(size=(50, 30)).tolist())


class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        turns = angles()
        self.embed = nn.Embedding.from_pretrained(torch.cat([turns.sin(), turns.cos()], 1))
        self.layers = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))
        for number, layer in enumerate(self.layers):
            layer.register_buffer("same", noise().half())
            layer.register_buffer("other", (turns * (number + 1)).tan())
        self.register_buffer("mask", torch.full((9, 9), -torch.inf).triu(1))
        self.register_buffer("lowest", torch.full((4,), -torch.inf, dtype=torch.float16))
        self.register_buffer("large", torch.tensor([2**63 - 1, 2**53 + 1, -2**63]))
        self.register_buffer("hidden", turns.cos(), persistent=False)


MODELS = {
    "tables": (Tables, 8),
    "whisper": (class_of("WhisperForConditionalGeneration", "WhisperConfig", **SPEECH), 1),
    "marian": (class_of("MarianModel", "MarianConfig", **SPEECH), 1),
    "roformer": (class_of("RoFormerModel", "RoFormerConfig", **TEXT), 1),
    "gpt neo": (class_of("GPTNeoModel", "GPTNeoConfig", hidden_size=64, num_layers=4, num_heads=4, vocab_size=120,
                      attention_types=[[["global", "local"], 2]], max_position_embeddings=1024, window_size=37), 0),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", [None, "bf16"])
def test_captured_table_files_have_the_models_bits(model, dtype, tmp_path):
    make, files = MODELS[model]
    captured = shardinit.capture.torch(make, dtype=dtype)
    assert dtype or len(captured.tables) == files
    captured.write(tmp_path / "spec.yaml")
    written = {f"tables/{file.name}": file.read_bytes() for file in (tmp_path / "tables").glob("*")}
    assert written == captured.tables
    assert all(name == f"tables/{hashlib.sha256(content).hexdigest()}.bin" for name, content in written.items())
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "out")
    read = reassemble(tmp_path / "out")
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype({None: torch.float32, "bf16": torch.bfloat16}[dtype])
        real = make().state_dict()
    finally:
        torch.set_default_dtype(before)
    assert set(read) == set(real) == set(captured.tensors)
    for path in set(real) - captured.drawn:
        tensor = real[path].contiguous()
        assert read[path][0] == name_of(tensor.dtype) and read[path][1].shape == tensor.shape
        assert read[path][1].tobytes() == tensor.flatten().view(torch.uint8).numpy().tobytes(), path


def test_equal_tables_share_one_file_and_their_layers_are_folded(tmp_path):
    captured = shardinit.capture.torch(Tables)
    same = f"file: {table_name(captured, noise().half())}"
    assert captured.text.count(same) == 1
    other = shardinit.capture.torch(Tables, buffers="all")
    assert set(captured.tables) < set(other.tables)
    captured.write(tmp_path / "a.yaml")
    other.write(tmp_path / "b.yaml")  # In the same folder, with the same files and one more.
    assert len(list((tmp_path / "tables").iterdir())) == len(other.tables)


def table_name(captured, tensor):
    content = tensor.flatten().view(torch.uint8).numpy().tobytes()
    name, = (name for name, found in captured.tables.items() if found == content)
    return name


def test_captured_spec_in_memory_has_its_tables():
    captured = shardinit.capture.torch(Tables)
    with captured.spec() as spec:
        made = spec.generate("mask")
    assert made.tobytes() == Tables().mask.numpy().tobytes()


def test_verify_compares_captured_tables():
    verified = shardinit.capture.torch(Tables).verify()
    assert verified.good and {t.path: t.result for t in verified.tensors}["layers.1.other"] == "equal"


def test_capture_command_writes_table_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["torch", f"{__name__}:Tables", "-o", "model.yaml"]) == 0
    assert len(list((tmp_path / "tables").iterdir())) == 8
    capsys.readouterr()
    assert main(["torch", f"{__name__}:Tables", "-o", "-"]) == 2
    written = capsys.readouterr()
    assert written.out == "" and "takes elements from files beside it" in written.err


def test_capture_rejects_a_buffer_that_was_never_written():
    class Empty(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("empty", torch.empty(1000))

    with pytest.raises(shardinit.CaptureError, match="nothing was written to"):
        shardinit.capture.torch(Empty)
