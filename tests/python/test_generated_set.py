"""`--set` is equivalent to editing the file: random values, set or added, give the same plan.json both ways."""

import copy
import json

import yaml
from hypothesis import strategies as st

from generated import generated, given
from support import run_ok, run_tool

SPEC = {
    "shardinit": 1, "name": "m", "dtype": "f32", "vars": {"d": 4, "layers": 2},
    "init": {"n": {"normal": {"std": 0.5}}},
    "modules": {
        "w": {"shape": ["d", 8], "init": "n"},
        "model.blocks": {"repeat": {"l": "layers"}, "attn.weight": {"shape": ["d"], "init": "zeros"}},
    },
}
TENSOR = {"shape": [2, "d"], "init": {"uniform": {"low": 0, "high": 1}}}
# Each entry is a path of keys and the values allowed there. A spec may have or lack it; the settings in `needs` are
# added with it.
SETTINGS = [
    (["seed"], [1, 7]),
    (["dtype"], ["bf16", "f64"]),
    (["vars", "d"], [3, "2 * layers"]),
    (["vars", "heads"], [2, "d * 2"]),
    (["init", "n", "normal", "std"], [0.25]),
    (["init", "n", "normal", "mean"], [0.125]),
    (["init", "base"], ["ones", {"constant": {"value": 2}}]),
    (["init", "other", "normal", "std"], [0.75]),
    (["mesh", "axes", "data"], [1, 2]),
    (["mesh", "axes", "stages"], [3]),
    (["assert", "+"], ["d > 0", {"that": "layers == 2", "message": "two"}]),
    (["config", "model_type"], ["llama"]),
    (["config", "sub", "size"], [4]),
    (["modules", "w", "shape", "1"], [16]),
    (["modules", "w", "shape", "2"], [3]),
    (["modules", "w", "dtype"], ["f16"]),
    (["modules", "w", "key"], ["elsewhere"]),
    (["modules", "q"], [TENSOR]),
    (["modules", "model.blocks", "mlp.weight"], [TENSOR]),
    (["modules", "model.blocks", "when"], ["layers > 1"]),
    (["modules", "model.blocks", "attn.weight", "init"], ["n"]),
    (["layouts", "all"], [{"keep": ["*"]}]),
    (["training", "tokens"], [64]),
    (["fans"], ["in_out"]),
]


def edited(spec, path, value):
    """Returns the spec with the value at this path, as a user would edit the file."""
    *way, last = path
    node = spec
    for key, below in zip(way, path[1:]):
        if isinstance(node, list):
            node = node[int(key)]
        else:
            node = node.setdefault(key, [] if below == "+" else {})
    if not isinstance(node, list):
        node[last] = value
    elif last == "+" or int(last) == len(node):
        node.append(value)
    else:
        node[int(last)] = value


@st.composite
def cases(draw):
    """Draws a spec and, in any order, settings for keys that it has or lacks."""
    spec = copy.deepcopy(SPEC)
    for path, values in draw(st.lists(st.sampled_from(SETTINGS), max_size=4)):
        if path != ["modules", "w", "shape", "2"]:
            edited(spec, path, copy.deepcopy(draw(st.sampled_from(values))))
    chosen = draw(st.lists(st.sampled_from(SETTINGS), min_size=1, max_size=8))
    return spec, [(path, draw(st.sampled_from(values))) for path, values in chosen]


@generated(60)
@given(case=cases())
def test_generated_set_options_equal_edited_specs(case, tmp_path_factory):
    spec, settings = case
    folder = tmp_path_factory.mktemp("set")

    def plan_bytes(name, of, *options):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(of, sort_keys=False, width=10_000))
        run_ok("gen", folder / f"{name}.yaml", "-o", folder / name, *options)
        return (folder / name / "plan.json").read_bytes()

    by_hand = copy.deepcopy(spec)
    options = []
    for path, value in settings:
        edited(by_hand, path, copy.deepcopy(value))
        text = value if isinstance(value, str) else json.dumps(value)
        options += ["--set", f"{'.'.join(path)}={text}"]
    assert plan_bytes("set", spec, *options) == plan_bytes("edited", by_hand)


@generated(60)
@given(name=st.sampled_from(["hidden", "layers", "vocabulary"]), at=st.integers(0, 9), letter=st.sampled_from("xqz"))
def test_set_rejects_generated_misspellings(name, at, letter, tmp_path_factory):
    """A name with one wrong letter is only added with `+`."""
    folder = tmp_path_factory.mktemp("misspelt")
    (folder / "spec.yaml").write_text(yaml.safe_dump({**SPEC, "vars": {"d": 1, "layers": 1, name: 1}}))
    wrong = name[:at % len(name)] + letter + name[at % len(name) + 1:]
    result = run_tool("validate", "spec.yaml", "--set", f"vars.{wrong}=1", cwd=folder)
    assert result.returncode == 2 and f"did you mean `{name}`? `+vars.{wrong}=…` adds it" in result.stderr
    run_ok("validate", "spec.yaml", "--set", f"+vars.{wrong}=1", cwd=folder)
