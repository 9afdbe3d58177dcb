"""Shipped files cause no warnings, and every command that loads a spec reports warnings."""

import json
import re

import pytest
import yaml

from support import ROOT, run_ok, run_tool

MODELS = sorted(p.stem for p in (ROOT / "configs").glob("*.yaml"))
# Recipes with sources need an existing model: test_recipes_of_models.py.
RECIPES = sorted(p.stem for p in (ROOT / "configs/recipes").glob("*.yaml") if "\nsources:" not in p.read_text())
SHARDINGS = sorted(p.stem for p in (ROOT / "configs/sharding").glob("*.yaml"))
ODD = "shardinit: 1\nname: m\ndtype: f32\nvars: {unused: 1}\nmodules: {w: {shape: [4], init: zeros}}\n"


def diagnostics(*arguments):
    reports = json.loads(run_tool("validate", "--json", *arguments).stdout)
    return [(report["spec"], each) for report in reports for each in report["diagnostics"]]


def test_shipped_specs_cause_no_warnings():
    assert diagnostics(*MODELS) == []


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_cause_no_warnings(recipe, tmp_path):
    """Each recipe is quiet for each model that it supports."""
    paths = []
    for model in MODELS:
        path = tmp_path / f"{model}.yaml"
        path.write_text(f"shardinit: 1\ninclude: [{model}, <shardinit>/recipes/{recipe}.yaml]\nname: {model}\n"
                        + ("vars: {base_d: 256}\n" if "mup" in recipe else ""))
        paths.append(path)
    reports = json.loads(run_tool("validate", "--json", *paths).stdout)
    assert any(report["valid"] for report in reports)
    assert [report for report in reports if report["valid"] and report["diagnostics"]] == []


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_shardings_cause_no_warnings(sharding):
    reports = json.loads(run_tool("validate", "--json", "--sharding", sharding, *MODELS).stdout)
    assert any(report["valid"] for report in reports)
    assert [report for report in reports if report["valid"] and report["diagnostics"]] == []


def test_imported_configs_cause_no_warnings(tmp_path):
    for family in sorted(p.stem for p in (ROOT / "configs/huggingface").glob("[a-z]*.yaml")):
        config = tmp_path / f"{family}.json"
        layers = {"gpt2": "n_layer", "t5": "num_layers"}.get(family, "num_hidden_layers")
        needed = {"head_dim": 128} if family == "ministral" else {}
        config.write_text(json.dumps({"model_type": family, layers: 4, **needed}))
        assert diagnostics(config) == [], family


# `a: [1, 2]`, or a list of lines that begin with a dash.
ASSERTIONS = re.compile(r"^assert:.*\n(?:  - .*\n)*", re.M)


@pytest.mark.parametrize("model", [m for m in MODELS if ASSERTIONS.search((ROOT / f"configs/{m}.yaml").read_text())])
def test_assertions_do_not_change_plans(model, tmp_path):
    for folder in ("recipes", "layouts"):
        (tmp_path / folder).symlink_to(ROOT / "configs" / folder)
    for path in (ROOT / "configs").glob("*.yaml"):
        (tmp_path / path.name).write_text(ASSERTIONS.sub("", path.read_text()))
    plans = []
    for spec in (ROOT / f"configs/{model}.yaml", tmp_path / f"{model}.yaml"):
        run_ok("plan", spec, "--write", tmp_path / f"{len(plans)}.json")
        plans.append((tmp_path / f"{len(plans)}.json").read_bytes())
    assert plans[0] == plans[1]


@pytest.mark.parametrize("model, change", [
    ("llama3.1-8b", "kv_heads=5"), ("gpt2-xl", "d=1601"), ("gpt-neox-20b", "d=6145"), ("mamba-2.8b", "d_inner=2561"),
    ("t5-11b", "buckets=31"), ("deepseek-v3", "rope_dim=63"), ("bert-large", "heads=15"), ("vit-l-16", "image=225"),
    ("mamba2-2.7b", "groups=3")])
def test_assertions_reject_wrong_variables(model, change):
    result = run_tool("validate", model, "--set", f"vars.{change}")
    name, value = change.split("=")
    assert result.returncode == 2 and f"`{name}` is {value}" in result.stderr


@pytest.fixture
def odd(tmp_path):
    path = tmp_path / "odd.yaml"
    path.write_text(ODD)
    return path


@pytest.mark.parametrize("command", ["plan", "validate", "explain", "graph", "digest", "stats", "gen"])
def test_commands_print_warnings_or_deny_them(command, odd, tmp_path):
    more = {"explain": ["w"], "gen": ["-o", tmp_path / "out"]}.get(command, [])
    result = run_tool(command, odd, *more)
    assert result.returncode == 0
    assert "odd.yaml:4:8: warning: nothing uses the variable `unused`" in result.stderr
    assert "warning" not in run_tool(command, odd, "-q", *(["w"] if command == "explain" else []),
                                     *(["-o", tmp_path / "out2"] if command == "gen" else [])).stderr
    denied = run_tool(command, odd, "--deny", "warnings", *more)
    assert denied.returncode == 2 and "odd.yaml:4:8: error: nothing uses the variable `unused`" in denied.stderr


def test_diff_prints_no_warnings_unless_denied(odd):
    arguments = ("diff", odd, "--set", "seed=1")
    assert run_tool(*arguments).stderr == ""
    assert run_tool(*arguments, "--deny", "warnings").returncode == 2


def test_warning_hints_silence_the_warning(tmp_path):
    """A hint for a deviation contains an expression that silences the warning."""
    spec = {"shardinit": 1, "name": "m", "dtype": "f32", "fans": "out_in", "modules": {
        "a": {"shape": [64, 64], "init": {"normal": {"std": 30}}, "key": "k"},
        "b": {"shape": [64, 64], "init": {"uniform": {"low": -96, "high": 160}}, "key": "l"}}}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    assert len(diagnostics(path)) == 2
    for (_, each), tensor in zip(diagnostics(path), ("a", "b"), strict=True):
        spec["modules"][tensor]["init"] = yaml.safe_load(re.search(r"`(\{expr: .*\})`", each["hint"])[1])
    path.write_text(yaml.safe_dump(spec))
    assert diagnostics(path) == []


@pytest.mark.parametrize("shapes, ranks",
                         [([2, 8], None), ([8, 2], None), ([3, 2], "1 of 4 ranks holds nothing: rank 3"),
                                           ([2, 3], "1 of 4 ranks holds nothing: rank 3"), ([2, 2], "2 of 4 ranks")])
def test_rank_is_empty_only_if_no_tensor_has_a_box(shapes, ranks, tmp_path):
    """A rank is reported as empty only if all tensors leave it empty; tensors with the same sharding may end on
    different ranks."""
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: x\ndtype: f32\nuneven: chunk\nmesh: {axes: {a: 4}}\n"
                                        "modules:\n"
                                        + "".join(f"  t{i}: {{shape: [{n}], init: zeros, shard: [a]}}\n"
                                                  for i, n in enumerate(shapes)))
    told = run_ok("validate", tmp_path / "spec.yaml").stderr
    assert (ranks in told) if ranks else told == "", told


def test_each_shape_of_a_repeat_is_checked(tmp_path):
    """A verdict about the first tensor of a repeat is not reused for another shape, whichever of them is odd."""
    for shapes, odd, fans in (("[64, 65536]", "l.1.x", 65536), ("[65536, 64]", "l.0.x", 65536)):
        (tmp_path / "spec.yaml").write_text(f"shardinit: 1\nname: x\ndtype: f32\nmodules:\n  l:\n"
                                            f"    repeat: {{w: {shapes}}}\n"
                                            "    x: {shape: [w, w], init: {normal: {std: 0.5}}}\n")
        told = run_ok("validate", tmp_path / "spec.yaml").stderr
        assert told.count("warning: ") == 1 and (f"warning: values of `{odd}` have the standard deviation 0.5, 25 "
                                                 f"times the "
                                                 f"largest that rules give for fans of {fans} and {fans}, 0.02\n") in told, told
