"""A planted mistake gives a warning, and the same spec without it does not warn."""

import json

import yaml
from hypothesis import strategies as st

from generated import generated, given
from support import run_ok


@st.composite
def models(draw):
    """Draws a spec without unused parts: layers of matrices with a norm, sharded over all axes."""
    heads, kv_heads = draw(st.sampled_from([(8, 8), (8, 2), (12, 4), (6, 1)]))
    axes = draw(st.lists(st.sampled_from(["fsdp", "tensor", "expert"]), min_size=1, max_size=2, unique=True))
    names = ["embed", "hidden"][:len(axes)]
    spec = {
        "shardinit": 1, "name": "m", "fans": draw(st.sampled_from(["out_in", "in_out"])),
        "dtype": draw(st.sampled_from(["f32", "bf16", "f16"])),
        "vars": {"d": draw(st.sampled_from([64, 256, 1024])), "ff": "4 * d", "heads": heads, "kv_heads": kv_heads,
                 "layers": draw(st.integers(1, 3))},
        "init": {"linear": draw(st.sampled_from([
            "xavier_normal", "kaiming_uniform", "lecun_normal", {"normal": {"std": 0.02}}, "orthogonal",
            {"truncated_normal": {"std": "0.02 / sqrt(2 * layers)", "low": -2, "high": 2}}]))},
        "mesh": {"axes": {axis: draw(st.sampled_from([2, 4])) for axis in axes}},
        "rules": [{name: axis} for name, axis in zip(names, axes)] + [{n: None}
                                                                      for n in ["embed", "hidden"][len(axes):]],
        "modules": {
            "layers": {"repeat": {"layer": "layers"},
                       "q": {"shape": ["heads * 32", "d"], "axes": ["hidden", "embed"], "init": "linear"},
                       "k": {"shape": ["kv_heads * 32", "d"], "axes": ["hidden", "embed"], "init": "linear"},
                       "up": {"shape": ["ff", "d"], "axes": ["hidden", "embed"], "init": "linear"}},
            "norm": {"shape": ["d"], "axes": ["embed"], "init": "ones"}}}
    return spec


def spoil_variable(spec):
    spec["vars"]["hedas"] = 8
    return "nothing uses the variable `hedas`"


def spoil_initializer(spec):
    spec["init"]["lineer"] = "zeros"
    return "nothing uses the initializer `lineer`"


def spoil_axis(spec):
    spec["sharding"] = {"haliax": {name: axis for rule in spec.pop("rules") for name, axis in rule.items()}}
    spec["modules"]["extra"] = {"shape": ["d"], "axes": ["embbed"], "init": "ones"}
    return "the logical axis `embbed` is only used here"


def spoil_mesh(spec):
    spec["mesh"]["axes"]["data"] = 2
    return "mesh axis `data` shards nothing: the 2 ranks"


def spoil_ranks(spec):
    spec["mesh"]["axes"]["pipe"] = 2
    for tensor in [*spec["modules"]["layers"].values(), spec["modules"]["norm"]]:
        if "shape" in tensor:
            tensor["stage"] = {"pipe": 1}
    return "ranks hold nothing: rank 0, at pipe 0, has no part of any tensor"


def spoil_deviation(spec):
    spec["modules"]["layers"]["up"]["init"] = {"normal": {"std": 30}}
    return "have the standard deviation 30"


def spoil_small_deviation(spec):
    spec["modules"]["layers"]["up"]["init"] = {"uniform": {"low": -1e-4, "high": 1e-4}}
    return "smaller than the smallest that rules give"


def spoil_rounding(spec):
    spec["modules"]["norm"].update(dtype="f16", init={"normal": {"mean": 0, "std": 1e-9}})
    return "% of them become 0"


def spoil_heads(spec):
    spec["vars"]["kv_heads"] = 5
    return "which `kv_heads`, 5, does not divide"


SPOILERS = [spoil_variable, spoil_initializer, spoil_axis, spoil_mesh, spoil_ranks, spoil_deviation,
            spoil_small_deviation, spoil_rounding, spoil_heads]


def find_warnings(spec, folder):
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False, width=10_000))
    [report] = json.loads(run_ok("validate", "--json", path).stdout)
    assert {each["severity"] for each in report["diagnostics"]} <= {"warning"}
    assert all(each["line"] > 0 and each["hint"] for each in report["diagnostics"])
    return [each["message"] for each in report["diagnostics"]]


@generated(60)
@given(spec=models(), spoil=st.sampled_from(SPOILERS))
def test_validate_warns_of_each_generated_mistake(spec, spoil, tmp_path_factory):
    folder = tmp_path_factory.mktemp("spec")
    assert find_warnings(spec, folder) == []
    message = spoil(spec)
    found = find_warnings(spec, folder)
    assert len(found) == 1 and message in found[0], (found, spec)
