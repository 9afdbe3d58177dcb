"""Imports random configuration files and compares them with the model that Transformers makes from the same file on the
meta device.

Fields are changed, omitted, null, of another type, nested, under their other name or misspelled. Files that
Transformers refuses must be refused. `--hypothesis-show-statistics` counts files that only import refuses."""

import dataclasses
import json
import pathlib
import tempfile

import pytest
import yaml
from clients import client_of
from generated import generated, given
from hypothesis import event
from hypothesis import strategies as st
from support import run_tool

torch = client_of("torch")
transformers = client_of("transformers")

import safetensors.torch
import shardinit
from test_import import FAMILIES, forms_of, forms_of_tensors

# These fields do not change tensors, or cannot be in a file.
OTHERS = {"transformers_version", "output_hidden_states", "return_dict", "chunk_size_feed_forward", "label2id",
          "problem_type", "rope_parameters", "architectures", "is_encoder_decoder", "is_decoder"}
SMALL = st.sampled_from([1, 2, 3, 4, 5, 8, 12, 16, 24, 48, 64, 96, 0, -1])
LISTS = st.sampled_from([[], [0], [0, 1], ["full_attention"], {}, {"0": "a", "1": "b", "2": "c"}])


def model_class(name):
    return getattr(transformers, FAMILIES[name][0])


def config_fields(name):
    config = model_class(name).config_class
    return sorted({field.name for field in dataclasses.fields(config)} - OTHERS | set(config.attribute_map))


def values_like(value):
    """Draws other values of the type of a field's default."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int):
        return SMALL
    if isinstance(value, float):
        return st.sampled_from([0.01, 0.5, 2.0, 0.0])
    if isinstance(value, str):
        return st.sampled_from(["gelu", "relu"])
    return st.one_of(SMALL, st.booleans(), LISTS)


WRONG_TYPES = [True, 3, 2.0, "2", "false", "gelu", [2], [2.0], ["a"], {"a": 1}, None, [], {}]
OF_ANOTHER_TYPE = st.sampled_from(WRONG_TYPES)


@st.composite
def files(draw):
    """Draws a file, and the names that the expected error must contain."""
    name = draw(st.sampled_from(sorted(FAMILIES)))
    of, tiny, _ = FAMILIES[name]
    config = model_class(name).config_class
    given = {"model_type": name, "architectures": [of], **tiny}
    default = config()
    for field in draw(st.lists(st.sampled_from(config_fields(name)), max_size=3, unique=True)):
        change = draw(st.sampled_from(["set", "set", "set", "retype", "nest", "null", "absent"]))
        if change == "absent" and "layers" not in field:
            given.pop(field, None)
        elif change == "null":
            given[field] = None
        elif change == "retype":
            given[field] = draw(OF_ANOTHER_TYPE)
        elif change == "nest" and field in given:
            given.setdefault("text_config", {})[field] = given.pop(field)
        elif change == "set" and field == "dtype":
            given[draw(st.sampled_from(["dtype", "torch_dtype"]))] = draw(st.sampled_from(["float32", "bfloat16",
                                                                                           "float16"]))
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
        # (No tensor of these models depends on the class names in `id2label`.)
        field = draw(st.sampled_from(sorted(set(given) & set(config_fields(name)) - {"id2label"})))
        if field in given and field not in config.attribute_map and field not in config.attribute_map.values():
            given[draw(misspelled(field, set(config_fields(name))))] = given.pop(field)
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
    """Returns the tensors' forms and the table's zero row; None if Transformers cannot make the model."""
    text = json.loads(path.read_text())
    cls = model_class(text["model_type"])
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


def is_type_sound(path):
    """Returns whether Transformers accepts the configuration, even if it cannot make the model."""
    try:
        model_class(json.loads(path.read_text())["model_type"]).config_class.from_json_file(path)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_import_rejects_field_types_that_transformers_rejects(name, tmp_path):
    """import refuses each field alone, with every wrong type, if Transformers does."""
    of, tiny, _ = FAMILIES[name]
    path = tmp_path / "config.json"
    for field in config_fields(name):
        for value in WRONG_TYPES:
            path.write_text(json.dumps({"model_type": name, "architectures": [of], **tiny, field: value}))
            try:
                shardinit.open_spec(path).close()
            except shardinit.SpecError:
                continue
            assert is_type_sound(path), (field, value)


ZERO_ROW = {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "phi3", "olmo2", "gemma2", "gemma3_text",
            "bert", "deepseek_v3", "smollm3", "granite", "ministral", "ministral3", "ernie4_5", "gemma"}
TABLE = {"bert": "bert.embeddings.word_embeddings.weight"}


@generated(220)
@given(case=files())
def test_random_configs_are_imported_like_transformers(case):
    name, given, due = case
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "config.json")
        path.write_text(json.dumps(given))
        try:
            spec = shardinit.open_spec(path)
        except shardinit.SpecError as error:
            assert error.code == 2 and f"{path}:" in str(error), error
            assert all(f"`{field}`" in str(error) for field in due), error
            event("both refuse" if made_by_transformers(path) is None else "only import refuses")
            return
        assert not due, due
        made = made_by_transformers(path)
        if made is None:  # Some classes reject fields that do not change tensors, such as a rotary table's head size.
            assert is_type_sound(path)
            event("only Transformers refuses, when it makes the model")
            return
        event("the same model")
        forms, row = made
        found = forms_of(spec)
        assert found == forms
        if name in ZERO_ROW:
            table = TABLE.get(name, "model.embed_tokens.weight")
            rows = found[table][0][0]
            for at in {0, 1, rows - 1, *(() if row is None else (row,))} & set(range(rows)):
                assert (spec.generate(table, at) == 0).all() == (at == row), at


@st.composite
def settings_of_exports(draw):
    """Draws a file of a family, and other values for variables of its spec."""
    name = draw(st.sampled_from(sorted(FAMILIES)))
    of, tiny, variations = FAMILIES[name]
    given = {"model_type": name, "architectures": [of], **tiny, **draw(st.sampled_from([{}, *variations]))}
    given.pop("rescale_prenorm_residual", None)  # Mamba's class also rescales loaded weights.
    layers = given.get("num_hidden_layers", 0)
    if layers and "layer_types" in config_fields(name) and draw(st.booleans()):
        given["layer_types"] = draw(st.lists(st.sampled_from(["full_attention", "sliding_attention"]),
                                             min_size=layers, max_size=layers))
    return name, given, draw(st.lists(st.tuples(st.integers(0, 30), SMALL), min_size=1, max_size=3))


@generated(40)
@given(case=settings_of_exports())
def test_from_pretrained_loads_exports_with_random_settings(case):
    """`from_pretrained` loads the tensors and config.json of `export --set` without changes, unless export refuses the
    values."""
    name, given, changes = case
    with tempfile.TemporaryDirectory() as folder:
        path, out = pathlib.Path(folder, "config.json"), pathlib.Path(folder, "out")
        path.write_text(json.dumps(given))
        made = run_tool("import", path)
        assert made.returncode == 0, made.stderr
        names = sorted(variable for variable, value in yaml.safe_load(made.stdout)["vars"].items()
                       if isinstance(value, int) and not isinstance(value, bool))
        sets = {names[at % len(names)]: value for at, value in changes}
        result = run_tool("export", path, "--to", "safetensors", "-o", out,
                          *(f"--set=vars.{variable}={value}" for variable, value in sets.items()))
        if result.returncode != 0:
            assert result.returncode == 2 and not out.exists(), result.stderr
            return event("refused")
        tensors = safetensors.torch.load_file(out / "model.safetensors")
        cls = getattr(transformers, json.loads((out / "config.json").read_text())["architectures"][0])
        try:
            cls.config_class.from_pretrained(out)
        except Exception:
            assert False, f"Transformers refuses this config.json: {(out / 'config.json').read_text()}"
        model, loading = cls.from_pretrained(out, dtype="auto", output_loading_info=True)
        assert not any(loading.values()), loading
        state = model.state_dict()
        for key, tensor in tensors.items():
            assert torch.equal(state[key].to(tensor.dtype), tensor), key
        event("the same model")
