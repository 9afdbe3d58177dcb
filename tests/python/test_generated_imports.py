"""Random files of configurations: fields changed, left out, null, under their other name, misspelled; against the
model that Transformers makes of the same file on the meta device."""

import dataclasses
import json
import pathlib
import tempfile

import pytest
from clients import client_of
from generated import generated, given
from hypothesis import strategies as st
from support import ROOT

torch = client_of("torch")
transformers = client_of("transformers")

import shardinit
from test_import import FAMILIES, forms_of, forms_of_tensors

# These change no tensor, however they are set, or are no fields of a file.
OTHERS = {"transformers_version", "output_hidden_states", "return_dict", "chunk_size_feed_forward", "label2id",
          "problem_type", "rope_parameters", "architectures", "is_encoder_decoder", "is_decoder"}
SMALL = st.sampled_from([1, 2, 3, 4, 5, 8, 12, 16, 24, 48, 64, 96, 0, -1])
LISTS = st.sampled_from([[], [0], [0, 1], ["full_attention"], {}, {"0": "a", "1": "b", "2": "c"}])


def class_of(name):
    return getattr(transformers, FAMILIES[name][0])


def fields_of(name):
    config = class_of(name).config_class
    return sorted({field.name for field in dataclasses.fields(config)} - OTHERS | set(config.attribute_map))


def values_like(value):
    """Other values of the type of a field's default."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int):
        return SMALL
    if isinstance(value, float):
        return st.sampled_from([0.01, 0.5, 2.0, 0.0])
    if isinstance(value, str):
        return st.sampled_from(["gelu", "relu", "gated-gelu", "auto", "constant", "random"])
    return st.one_of(SMALL, st.booleans(), LISTS)


@st.composite
def files(draw):
    """A file, and the names that have to be in the error that is due."""
    name = draw(st.sampled_from(sorted(FAMILIES)))
    of, tiny, _ = FAMILIES[name]
    config = class_of(name).config_class
    given = {"model_type": name, "architectures": [of], **tiny}
    default = config()
    for field in draw(st.lists(st.sampled_from(fields_of(name)), max_size=3, unique=True)):
        change = draw(st.sampled_from(["set", "set", "set", "null", "absent"]))
        if change == "absent" and "layers" not in field:
            given.pop(field, None)
        elif change == "null":
            given[field] = None
        elif change == "set" and field == "dtype":
            given[draw(st.sampled_from(["dtype", "torch_dtype"]))] = draw(st.sampled_from(["float32", "bfloat16", "float16"]))
        else:
            like = given.get(field) if given.get(field) is not None else getattr(default, field, None)
            given[field] = draw(values_like(like))
    due = set()
    aliases = {field: alias for alias, field in config.attribute_map.items() if field in tiny or alias in tiny}
    if aliases and draw(st.integers(0, 3)) == 0:
        field = draw(st.sampled_from(sorted(aliases)))
        alias = aliases[field]
        value = given.pop(field, None) or given.get(alias) or 8
        if draw(st.booleans()):
            given.pop(alias, None)
            given[draw(st.sampled_from([field, alias]))] = value
        else:
            given |= {field: value, alias: value + draw(st.integers(0, 1))}
            due = {field, alias} if given[field] != given[alias] else set()
    elif draw(st.integers(0, 3)) == 0:
        field = draw(st.sampled_from(sorted(set(given) & set(fields_of(name)))))
        if field in given and field not in config.attribute_map and field not in config.attribute_map.values():
            given[draw(misspelled(field, set(fields_of(name))))] = given.pop(field)
            due = {field}
    keys = draw(st.permutations(sorted(given)))
    return name, {key: given[key] for key in keys}, due


@st.composite
def misspelled(draw, field, known):
    at = draw(st.integers(1, len(field) - 2))
    found = draw(st.sampled_from([
        field[:at] + field[at + 1:], field[:at] + field[at] + field[at:], field.replace("_", ""), field.upper(),
        field[:at] + field[at + 1] + field[at] + field[at + 2:], field[:at] + "q" + field[at + 1:], field + "s"]))
    return found if found != field and found not in known else field + "_"


def made_by_transformers(path):
    """Forms of the tensors and the row of the table that is zero; None: there is no such model."""
    text = json.loads(path.read_text())
    cls = class_of(text["model_type"])
    try:
        config = cls.config_class.from_json_file(path)
        with torch.device("meta"):
            model = cls._from_config(config)
    except Exception:
        return None
    kept = model._keep_in_fp32_modules_strict or ()
    state = {key: tensor.float() if any(part in key for part in kept) else tensor
             for key, tensor in model.state_dict().items()}
    tied = model.all_tied_weights_keys if hasattr(model, "all_tied_weights_keys") else {}
    table = model.get_input_embeddings() if text["model_type"] != "vit" else None
    return forms_of_tensors({key: state[key] for key in state if key not in tied}), getattr(table, "padding_idx", None)


ZERO_ROW = {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "phi3", "olmo2", "gemma2", "gemma3_text",
            "bert", "deepseek_v3"}
TABLE = {"bert": "bert.embeddings.word_embeddings.weight"}


@generated(220)
@given(case=files())
def test_generated_imports(case):
    name, given, due = case
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "config.json")
        path.write_text(json.dumps(given))
        try:
            spec = shardinit.open_spec(path)
        except shardinit.SpecError as error:
            assert error.code == 2 and f"{path}:" in str(error), error
            assert all(f"`{field}`" in str(error) for field in due), error
            return
        assert not due, due
        made = made_by_transformers(path)
        if made is None:
            return
        forms, row = made
        found = forms_of(spec)
        assert found == forms
        if name in ZERO_ROW:
            table = TABLE.get(name, "model.embed_tokens.weight")
            rows = found[table][0][0]
            for at in {0, 1, rows - 1, *(() if row is None else (row,))} & set(range(rows)):
                assert (spec.generate(table, at) == 0).all() == (at == row), at
