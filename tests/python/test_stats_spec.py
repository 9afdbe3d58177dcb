"""`stats DIR --spec` finds the tensors of trained weights that still equal their initialization."""

import html

import pytest

from clients import client_of
from support import run_json, run_ok, run_tool

torch = client_of("torch")
safetensors_torch = client_of("safetensors.torch")
checkpoint = client_of("torch.distributed.checkpoint")

SPEC = """\
shardinit: 1
name: small
dtype: bf16
layouts: {both: {a.up_still: {from: {concat: {axis: 0, of: [a.up, a.still]}}}, keep: [a.norm, a.bias]}}
modules:
  a.up: {shape: [64, 32], init: {normal: {std: 0.02}}}
  a.still: {shape: [64, 32], init: {normal: {std: 0.02}}}
  a.norm: {shape: [32], init: ones}
  a.bias: {shape: [32], init: zeros}
"""


@pytest.fixture
def trained(tmp_path):
    """Returns a folder as Hugging Face's tools write it, in which an optimizer has changed some tensors."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    run_ok("export", tmp_path / "spec.yaml", "--to", "safetensors", "-o", tmp_path / "in")
    state = {name: torch.nn.Parameter(t) for name,
             t in safetensors_torch.load_file(tmp_path / "in/model.safetensors").items()}
    optimizer = torch.optim.AdamW([state["a.up"], state["a.bias"]], lr=0.1)
    (state["a.up"].float().square().sum() + (state["a.bias"] - 1).float().square().sum()).backward()
    optimizer.step()
    (tmp_path / "trained").mkdir()
    return tmp_path, {name: t.detach() for name, t in state.items()}


def measured(folder, state, *options, prefix=""):
    safetensors_torch.save_file({prefix + name: t for name, t in state.items()}, folder / "trained/model.safetensors")
    result = run_json("stats", folder / "trained", "--spec", folder / "spec.yaml", *options)
    return {t["path"]: t for t in result.pop("tensors")}, result


def test_stats_marks_tensors_that_are_still_initial(trained):
    folder, state = trained
    found, rest = measured(folder, state)
    assert {name: t["is_initial"] for name, t in found.items()} == {
        "a.bias": False, "a.norm": True, "a.still": True, "a.up": False}
    assert not any(rest.values()) and found["a.still"]["as_declared"] and not found["a.up"]["as_declared"]
    assert found["a.still"]["declared"] == {"mean": 0, "std": 0.02} and found["a.still"]["ks"]["probability"] > 1e-9
    own = {t["path"]: t for t in run_json("stats", folder / "spec.yaml")["tensors"]}
    assert {**own["a.still"], "zero_rows": 0, "is_initial": True} == found["a.still"]
    text = run_ok("stats", folder / "trained", "--spec", folder / "spec.yaml").stdout
    assert "\n2 tensors are exactly as small initializes them: a.norm, a.still\n" in text
    # Another seed gives other random values, but ones stay ones.
    found, _ = measured(folder, state, "--set", "seed=5")
    assert [name for name, t in found.items() if t["is_initial"]] == ["a.norm"]


def test_stats_notices_one_changed_bit(trained):
    folder, state = trained
    state["a.still"].view(torch.int16)[63, 31] ^= 1
    state["a.bias"] = -torch.zeros(32, dtype=torch.bfloat16)
    found, _ = measured(folder, state)
    assert [name for name, t in found.items() if t["is_initial"]] == ["a.norm"]
    text = run_ok("stats", folder / "trained", "--spec", folder / "spec.yaml", "--only", "a.bias").stdout
    assert "no tensor is exactly as small initializes it\n1 tensor has one number in all its elements: a.bias (0)\n" in text


def test_stats_reports_nan_as_not_declared(trained):
    folder, state = trained
    state["a.still"][3, 5] = state["a.norm"][3] = float("nan")
    state |= {"scalar": torch.tensor(2.0), "one": torch.ones(1, 1)}  # not reported as constants
    found, _ = measured(folder, state)
    for name in "a.still", "a.norm":
        assert found[name]["nan"] == 1 and found[name]["as_declared"] is found[name]["is_initial"] is False
    own = {t["path"]: t for t in run_json("stats", folder / "trained")["tensors"]}
    assert own["a.still"]["nan"] == 1 and own["a.still"]["as_declared"]
    text = run_ok("stats", folder / "trained").stdout
    assert text.count("-, 1 NaN\n") == 2 and "\n1 tensor has one number in all its elements: a.bias" in text


def test_stats_lists_tensors_it_cannot_compare(trained):
    folder, state = trained
    del state["a.up"]
    state.update({"a.still": state["a.still"].float(), "b": torch.arange(3.0)})
    found, rest = measured(folder, state)
    assert rest == {"missing": ["a.up"], "other_form": ["a.still"], "not_in_spec": ["b"]}
    assert found["a.still"]["is_initial"] is found["b"]["is_initial"] is found["b"]["declared"] is None
    text = run_ok("stats", folder / "trained", "--spec", folder / "spec.yaml").stdout
    for line in ["is of another type or shape in small: a.still", "is not in small: b",
                 "of small is not in the folder: a.up"]:
        assert f"\n1 tensor {line}\n" in text
    nothing = {"missing": [], "other_form": [], "not_in_spec": []}
    for only, of in {"a.n*": {}, "a.*": {"missing": ["a.up"], "other_form": ["a.still"]}, "b": {"not_in_spec": ["b"]},
                     "?.[un]*": {"missing": ["a.up"]}, "a.still": {"other_form": ["a.still"]}}.items():
        assert measured(folder, state, "--only", only)[1] == {**nothing, **of}, only


def test_stats_compares_layouts_and_checkpoints(trained):
    folder, state = trained
    state["a.up_still"] = torch.cat([state.pop("a.up"), state.pop("a.still")])
    found, rest = measured(folder, state, "--layout", "both")
    assert not any(rest.values()) and found["a.up_still"]["is_initial"] is False and found["a.norm"]["is_initial"]
    run_ok("gen", folder / "spec.yaml", "-o", folder / "own")
    own = run_json("stats", folder / "own", "--spec", folder / "spec.yaml")["tensors"]
    assert len(own) == 4 and all(t["is_initial"] for t in own)


def test_stats_finds_the_model_under_a_prefix(trained):
    """PyTorch's checkpoints may contain the model under `model`, whether or not the spec does."""
    folder, state = trained
    checkpoint.save({"model": state, "optim": {"x": torch.ones(2)}}, checkpoint_id=folder / "dcp", no_dist=True)
    bare = "".join(line for line in SPEC.splitlines(True) if "layouts" not in line)
    for spec in [bare, bare.replace("  a.", "  model.a.")]:
        (folder / "spec.yaml").write_text(spec)
        found = run_json("stats", folder / "dcp", "--spec", folder / "spec.yaml")
        assert not (found["missing"] or found["not_in_spec"] or found["other_form"])
        assert {t["path"]: t["is_initial"] for t in found["tensors"]}["a.norm"]


@pytest.mark.parametrize("is_wrong", [True, False])
def test_stats_page_has_the_printed_counts(trained, is_wrong):
    folder, state = trained
    state["a.norm"] = state["a.norm"].float()
    state |= {f"u.{n}.w": torch.arange(3.0) for n in range(11)}
    state["u.0.w"][1] = float("nan")
    if not is_wrong:
        del state["a.up"], state["a.bias"]
    found, rest = measured(folder, state, "--html", folder / "page.html")
    text = html.unescape((folder / "page.html").read_text())
    wrong = sum(not t["as_declared"] for t in found.values())
    untested = sum(t["as_declared"] and t["declared"] is None for t in found.values())
    assert (wrong > 0) == is_wrong and untested == 12 and rest["other_form"] == ["a.norm"]
    elements = sum(t.numel() for t in state.values())
    assert f"{len(found)} tensors, {elements:,} elements; tensors that differ only in numbers are one group." in text
    assert "1 tensor is exactly as the spec initializes it." in text and found["a.still"]["is_initial"]
    verdict = (f"{wrong} tensor{'s are' if wrong > 1 else ' is'} not as declared." if wrong else
               f"No tensor deviates from its declaration; {untested} cannot be tested.")
    assert verdict in text
    printed = run_ok("stats", folder / "trained", "--spec", folder / "spec.yaml").stdout
    names = sorted(name for name in found if name.startswith("u."))
    assert f"11 tensors are not in small: {', '.join(names[:8])} and 3 more\n" in printed


def test_stats_rejects_wrong_arguments(trained):
    folder, state = trained
    measured(folder, state)
    for arguments, message in [
            (["spec.yaml", "--spec", "spec.yaml"], "`--spec` needs a folder of tensors"),
            (["trained", "--set", "seed=1"], "hint: add `--spec SPEC`"),
            (["trained", "--spec", "spec.yaml", "--only", "c"], "no tensor matches `--only c`")]:
        result = run_tool("stats", *arguments, cwd=folder)
        assert result.returncode == 2 and message in result.stderr, result.stderr
