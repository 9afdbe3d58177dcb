"""Shipped names work wherever a spec or a sharding can be named; and the command line can set the mesh."""

import json

import pytest

import clients  # noqa: F401  (where the package is)
import shardinit
from support import CONFIGS, FORMATS, ROOT, TINY, run_json, run_ok, run_tool

MODELS = [config.stem for config in CONFIGS]
SHARDINGS = sorted(path.stem for path in (ROOT / "configs/sharding").glob("*.yaml"))
ALONE = """
shardinit: 1
name: alone
dtype: f32
modules:
  embed: {shape: [64, 16], axes: [vocab, embed], init: {normal: {std: 0.02}}}
  layers: {repeat: {l: 4}, up: {shape: [32, 16], axes: [mlp, embed], init: {normal: {std: 0.02}}}}
"""


def run_plan(*arguments, **options):
    """Returns the status and the plan as JSON, or the error."""
    result = run_tool("plan", *arguments, "--json", **options)
    return result.returncode, result.stdout


@pytest.mark.parametrize("name", MODELS)
def test_shipped_models_are_found_by_name(name, tmp_path):
    assert run_plan(name, cwd=tmp_path) == run_plan(ROOT / f"configs/{name}.yaml")
    (tmp_path / "x.yaml").write_text(f"shardinit: 1\ninclude: [{name}]\n")
    assert run_plan("x.yaml", cwd=tmp_path) == run_plan(name)


def test_commands_accept_the_name_of_a_shipped_model(tmp_path):
    assert run_ok("digest", "llama3-tiny").stdout == run_ok("digest", TINY).stdout
    run_ok("gen", "llama3-tiny", "-o", "llama3-tiny", cwd=tmp_path)  # A folder is not a spec.
    run_ok("gen", "llama3-tiny", "-o", "llama3-tiny", cwd=tmp_path)
    assert "equal to llama3-tiny" in run_ok("verify", "llama3-tiny", "--spec", "llama3-tiny", cwd=tmp_path).stdout
    assert run_json("inspect", tmp_path / "llama3-tiny")["name"] == "llama3-tiny"


def test_a_local_file_overrides_a_shipped_model_with_a_note(tmp_path):
    (tmp_path / "llama3-tiny").write_text(ALONE)
    result = run_ok("validate", "llama3-tiny", cwd=tmp_path)
    assert "alone, 5 tensors" in result.stdout
    assert "`llama3-tiny` is a file here, which hides the shipped spec `<shardinit>/llama3-tiny.yaml`" in result.stderr
    other = run_ok("validate", "<shardinit>/llama3-tiny.yaml", cwd=tmp_path)
    assert "5,768,448 parameters" in other.stdout and other.stderr == ""


def test_note_on_a_local_sharding_is_not_an_error(tmp_path):
    """With `--sharding`, including a file with a shipped name only prints a note. It used to be reported as "a bug in
    shardinit"."""
    (tmp_path / "part").mkdir()
    (tmp_path / "part/sharding").mkdir()
    (tmp_path / "part/sharding/megatron").write_text("shardinit: 1\nvars: {rows: 2}\n")
    (tmp_path / "part/mine.yaml").write_text("shardinit: 1\ninclude: sharding/megatron\nmesh: {axes: {fsdp: 4}}\n"
                                             "sharding: fsdp\n")
    result = run_ok("validate", "llama3-tiny", "--sharding", "part/mine.yaml", cwd=tmp_path)
    assert "`sharding/megatron` is a file here, which hides the shipped spec" in result.stderr and ", 8 ranks" in result.stdout


@pytest.mark.parametrize("name, hint", [
    ("llama3-tny", "did you mean `llama3-tiny`?"), ("bloom-176b", "`shardinit list models`"),
    ("org/model", "download the model's config.json"), ("<shardinit>/lama3-tiny.yaml", "did you mean")])
def test_unknown_model_names_are_rejected_with_a_hint(name, hint, tmp_path):
    result = run_tool("plan", name, cwd=tmp_path)
    assert result.returncode == 2 and hint in result.stderr and name in result.stderr


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_sharding_option_declares_its_axes(sharding, tmp_path):
    """`--sharding` works like a spec that includes the sharding after the model."""
    (tmp_path / "copy.yaml").write_text((ROOT / f"configs/sharding/{sharding}.yaml").read_text().replace(
        "include: ", "include: <shardinit>/sharding/"))
    done = 0
    for model in ["llama3-tiny", "llama3.1-70b", "mixtral-8x7b", "gpt2-xl"]:
        (tmp_path / "both.yaml").write_text(f"shardinit: 1\ninclude: [{model}, sharding/{sharding}]\n")
        status, wanted = run_plan("both.yaml", cwd=tmp_path)
        for named in (sharding, "copy.yaml"):
            found = run_plan(model, "--sharding", named, cwd=tmp_path)
            assert found[0] == status, (model, named)
            # The torchprime sharding is not a spec, so it cannot be included.
            assert found[1] == wanted or sharding == "torchprime-405b", (model, named)
        done += status == 0
    assert done or sharding == "torchprime-405b"


def test_mesh_and_set_resize_axes_of_a_sharding():
    asked = ("llama3.1-70b", "--sharding", "torchtitan")
    by_mesh = run_json("plan", *asked, "--mesh", "fsdp=32,tensor=8")
    assert by_mesh["world_size"] == 256
    by_set = run_json("plan", *asked, "--set", "vars.fsdp=32", "--set", "vars.tensor=8")
    for plan in (by_set, by_mesh):  # The file or the option determines the order of the axes.
        plan["mesh"] = sorted(zip(plan["mesh"]["axes"], plan["mesh"]["shape"]))
    assert by_set == by_mesh


@pytest.mark.parametrize("sharding, message", [
    (ROOT / "configs/gpt2-xl.yaml", "is the spec of a model, not a sharding"),
    ("torchtitn", "unknown sharding `torchtitn`"), ("llama3-tiny", "unknown sharding `llama3-tiny`")])
def test_invalid_shardings_are_rejected(sharding, message):
    result = run_tool("plan", "llama3-tiny", "--sharding", sharding)
    assert result.returncode == 2 and message in result.stderr


def test_sharding_by_name_in_a_spec_suggests_an_include(tmp_path):
    for value in ("torchtitan", "<shardinit>/sharding/torchtitan.yaml"):
        (tmp_path / "x.yaml").write_text(f"shardinit: 1\ninclude: llama3-tiny\nsharding: {value}\n")
        result = run_tool("plan", "x.yaml", cwd=tmp_path)
        assert result.returncode == 2 and "include: [" in result.stderr and "x.yaml:3:11" in result.stderr


def test_mesh_option_declares_a_mesh(tmp_path):
    (tmp_path / "x.yaml").write_text(ALONE)
    plan = run_json("plan", tmp_path / "x.yaml", "--mesh", "fsdp=4,tensor=2", "--sharding", "fsdp")
    assert plan["world_size"] == 8
    with_mesh = ALONE + "mesh: {axes: {fsdp: 4, tensor: 2}}\nsharding: fsdp\n"
    (tmp_path / "y.yaml").write_text(with_mesh)
    assert run_json("plan", tmp_path / "y.yaml") == plan
    wrong = run_tool("plan", tmp_path / "x.yaml", "--mesh", "fsdp=4,fsdp=2,3x=2,b=0")
    assert wrong.returncode == 2 and "given twice" in wrong.stderr and "`3x`" in wrong.stderr


def test_python_opens_shipped_models_by_name():
    with shardinit.open_spec("llama3-tiny") as named, shardinit.open_spec(TINY) as file:
        assert list(named.tensors) == list(file.tensors)


def test_list_names_everything_that_is_shipped():
    listed = run_json("list")
    names = {kind: [entry["name"] for entry in entries] for kind, entries in listed.items()}
    assert sorted(names["models"]) == sorted(MODELS) and sorted(names["shardings"]) == SHARDINGS
    assert sorted(names["formats"]) == sorted(FORMATS)
    schema = json.loads((ROOT / "schemas/spec.schema.json").read_text())
    assert all(f'"{name}"' in json.dumps(schema) for name in names["initializers"] + names["languages"])
    assert all(entry["description"] for kind, entries in listed.items() if kind != "functions" for entry in entries)
    for kind in names:
        assert run_json("list", kind) == {kind: listed[kind]}
        text = run_ok("list", kind).stdout
        assert all(f"  {name}" in text for name in names[kind])
    wrong = run_tool("list", "model")
    assert wrong.returncode == 2 and "`models`" in wrong.stderr


@pytest.mark.parametrize("text, message", [
    ("seed: 5\n", "has `seed`, which does not belong in a sharding"),
    ("init: {norm: zeros}\n", "has `init`, which does not belong in a sharding"),
    ("include: llama3.1-8b\n", "which does not belong in a sharding"),
    ("vars: {d: 64}\n", "both have a variable `d`")])
def test_sharding_files_must_not_change_values(text, message, tmp_path):
    (tmp_path / "x.yaml").write_text("shardinit: 1\nmesh: {axes: {a: 1}}\nsharding: {'**': [a]}\n" + text)
    result = run_tool("digest", "llama3-tiny", "--sharding", "x.yaml", cwd=tmp_path)
    assert result.returncode == 2 and message in result.stderr and "--sharding:1:1" in result.stderr


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_digests_do_not_depend_on_the_sharding(sharding):
    result = run_tool("digest", "llama3-tiny", "--sharding", sharding)
    assert result.returncode == 2 or result.stdout == run_ok("digest", TINY).stdout
