"""A folder that is converted to safetensors keeps the files that Transformers needs in addition to the tensors."""

import os
import shutil

import pytest
from clients import client_of
from support import run_ok, run_tool

transformers = client_of("transformers")
tokenizers = client_of("tokenizers")
torch = client_of("torch")

CODE = "configuration_mine.py"


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if not path.is_dir()}


def make_model(folder):
    """Saves a tiny model with all files that Transformers writes for it, and files of its owner."""
    words = {"<s>": 0, "</s>": 1, "<unk>": 2, **{word: i + 3 for i, word in enumerate("the cat sat on a mat".split())}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    fast.save_pretrained(folder)
    config = transformers.LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                      num_attention_heads=2, bos_token_id=0, eos_token_id=1)
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(config)
    model.generation_config.max_new_tokens = 17
    model.save_pretrained(folder)
    (folder / CODE).write_text("# code of the model\n")
    (folder / "LICENSE.txt").write_text("Do what you like.\n")
    (folder / "README.md").write_text("A card of other values.\n")
    (folder / "training_args.bin").write_bytes(b"\x80\x02}q\x00.")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/tools.jinja").write_text("{{ tools }}")
    return sorted(["LICENSE.txt", "additional_chat_templates/tools.jinja", CODE, "generation_config.json",
                   *(name for name in files_of(folder) if name.startswith(("tokenizer", "special", "chat_template")))])


def test_transformers_loads_tokenizer_and_generation_config_of_a_conversion(tmp_path):
    extras = make_model(tmp_path / "in")
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} < set(extras)
    said = run_ok("convert", tmp_path / "in", "--to", "safetensors", "--dtype", "bf16", "-o", tmp_path / "out").stderr
    assert f"also copies {', '.join(f'`{name}`' for name in extras)}; `--no-extras` leaves them out" in said
    before, after = files_of(tmp_path / "in"), files_of(tmp_path / "out")
    assert sorted(after) == sorted([*extras, "config.json", "model.safetensors", "shardinit-export.json"])
    assert {name: after[name] for name in extras} == {name: before[name] for name in extras}
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("the cat sat")["input_ids"] == [3, 4, 5]
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.generation_config.max_new_tokens == 17
    run_ok("verify", tmp_path / "out")
    (tmp_path / "out" / CODE).write_text("# other code\n")
    assert run_tool("verify", tmp_path / "out").returncode == 1


def test_extras_can_be_left_out_and_are_not_for_other_formats(tmp_path):
    make_model(tmp_path / "in")
    run_ok("convert", tmp_path / "in", "--to", "safetensors", "--no-extras", "-o", tmp_path / "out")
    assert sorted(files_of(tmp_path / "out")) == ["config.json", "model.safetensors", "shardinit-export.json"]
    run_ok("convert", tmp_path / "in", "--to", "dcp", "-o", tmp_path / "dcp")
    assert not any(name.startswith("tokenizer") for name in files_of(tmp_path / "dcp"))
    # A single file has no folder of Hugging Face.
    run_ok("convert", tmp_path / "in/model.safetensors", "--to", "safetensors", "-o", tmp_path / "file")
    assert not any(name.startswith("tokenizer") for name in files_of(tmp_path / "file"))


def test_extras_are_the_same_in_parts_and_by_links(tmp_path):
    """The Hub's cache has links to files elsewhere."""
    make_model(tmp_path / "in")
    shutil.copytree(tmp_path / "in", tmp_path / "blobs")
    for name in files_of(tmp_path / "in"):
        (tmp_path / "in" / name).unlink()
        (tmp_path / "in" / name).symlink_to(tmp_path / "blobs" / name)
    run_ok("convert", tmp_path / "in", "--to", "safetensors", "-o", tmp_path / "out")
    for part in ("0/2", "1/2"):
        run_ok("convert", tmp_path / "in", "--to", "safetensors", "--part", part, "-o", tmp_path / "parts")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "parts")
    run_ok("convert", tmp_path / "in", "--to", "safetensors", "--part", "0/2", "-o", tmp_path / "mixed")
    found = run_tool("convert", tmp_path / "in", "--to", "safetensors", "--no-extras", "--part", "1/2",
                     "-o", tmp_path / "mixed")
    assert found.returncode == 4, found


@pytest.mark.parametrize("kind", ["fifo", "dangling", "changed"])
def test_an_extra_that_cannot_be_read_is_an_error(kind, tmp_path):
    make_model(tmp_path / "in")
    vocab = tmp_path / "in/vocab.txt"
    if kind == "fifo":
        os.mkfifo(vocab)
    elif kind == "dangling":
        vocab.symlink_to(tmp_path / "missing")
    else:
        run_ok("convert", tmp_path / "in", "--to", "safetensors", "-o", tmp_path / "out")
        vocab.write_text("another\n")
    found = run_tool("convert", tmp_path / "in", "--to", "safetensors", "-o", tmp_path / "out")
    assert found.returncode in (2, 3, 4) and (kind == "changed" or "vocab.txt" in found.stderr), found
    assert kind == "changed" or not (tmp_path / "out").exists()
    run_ok("convert", tmp_path / "in", "--to", "safetensors", "--no-extras", "-o", tmp_path / "none")


def test_extras_that_are_too_large_together_are_an_error(tmp_path):
    make_model(tmp_path / "in")
    for name in ("a.model", "b.model"):
        with open(tmp_path / "in" / name, "wb") as file:
            file.truncate(200 << 20)
    found = run_tool("convert", tmp_path / "in", "--to", "safetensors", "-o", tmp_path / "out")
    assert found.returncode == 2 and "at most 256 MiB together" in found.stderr, found
    assert "--no-extras" in found.stderr and not (tmp_path / "out").exists(), found
    run_ok("convert", tmp_path / "in", "--to", "safetensors", "--no-extras", "-o", tmp_path / "out")
