"""Compares the report of `digest SPEC --check FILE` on two random models with a comparison in Python."""

import json
import re

import pytest
from generated import generated, given
from hypothesis import strategies
from support import run_json, run_ok, run_tool

PATHS = ["w", "v", "a.w", "a.v", "a.b.w", "c.0.w", "c.1.w"]
SHAPES, DTYPES = ["[6]", "[2, 3]", "[]"], ["f32", "bf16"]
INITS = ["zeros", "{constant: {value: 2}}", "{normal: {std: 1}}"]
# Each pattern of --only → the equivalent regular expression.
ONLY = {"": ".*", "**": ".*", "a.**": r"a\..+", "*.w": r"[^.]+\.w", "**.w": r"(.+\.)?w", "w": "w",
        "c.?.w": r"c\.[^.]\.w"}


@strategies.composite
def cases(draw):
    """Draws two models, path → shape, type and initializer. Some tensors of the second are copied from the first."""
    of = strategies.sampled_from
    one = strategies.tuples(of(SHAPES), of(DTYPES), of(INITS))
    before, after = (draw(strategies.dictionaries(of(PATHS), one, min_size=1)) for _ in range(2))
    after |= {path: before[path] for path in draw(strategies.sets(of(PATHS))) if path in before}
    return before, after, draw(of(sorted(ONLY))), draw(strategies.booleans())


def write_spec(path, model):
    lines = [f"  {name}: {{shape: {shape}, dtype: {dtype}, init: {init}}}"
             for name, (shape, dtype, init) in model.items()]
    path.write_text("\n".join(["shardinit: 1", "name: m", "modules:", *lines, ""]))


def differences(there, here, only):
    """Returns the expected report on the tensors `here`, compared with the tensors `there` in the file `there`."""
    lines = []
    for path in sorted(set(here) - set(there)):
        lines.append(f"{path}: is not in there")
    for path in sorted(set(there) - set(here)):
        if re.fullmatch(ONLY[only], path):
            lines.append(f"{path}: is in there, but not in the spec")
    for path in set(here) & set(there):
        old, new = there[path], here[path]
        if (old["dtype"], old["shape"]) != (new["dtype"], new["shape"]):
            lines.append(f"{path}: is {new['dtype']} {new['shape']}, but there has {old['dtype']} {old['shape']}")
        elif old["sha256"] != new["sha256"]:
            lines.append(f"{path}: has other values: sha256 {new['sha256'][:12]} instead of {old['sha256'][:12]}")
    return sorted(lines)


@pytest.mark.parametrize("key, value, said", [
    ("seed", 1, "seed: is 0 here, but 1 in there"),
    ("engine", "jax_threefry", "engine: is philox4x32 here, but jax_threefry in there"),
    ("model_digest", "0" * 64, "`there` is not a list of digests: its model_digest is `000"),
    ("seed", None, ""), ("engine", None, "")])
def test_digest_check_compares_seed_and_engine(key, value, said, tmp_path):
    """Seed and engine are compared even if all values are constants; a list without them is accepted."""
    write_spec(tmp_path / "spec.yaml", {"w": ("[6]", "f32", "zeros")})
    listed = run_json("digest", "spec.yaml", cwd=tmp_path)
    (tmp_path / "there").write_text(json.dumps({**listed, key: value}))
    done = run_tool("digest", "spec.yaml", "--check", "there", cwd=tmp_path)
    assert done.returncode == (0 if value is None else 5 if key == "model_digest" else 1), done.stderr
    assert said in done.stderr and (done.stderr == "" or said)


def test_digest_records_seed_and_engine_only_of_own_checkpoints(tmp_path):
    """Only this tool's own checkpoints record the seed and engine of their values, not copies of other files."""
    write_spec(tmp_path / "spec.yaml", {"w": ("[6]", "f32", "{normal: {std: 1}}")})
    listed = run_json("digest", "spec.yaml", "--write", "there", cwd=tmp_path)
    run_ok("gen", "spec.yaml", "-o", "made", cwd=tmp_path)
    run_ok("export", "spec.yaml", "--to", "safetensors", "-o", "foreign", cwd=tmp_path)
    run_ok("convert", "foreign", "--to", "hdf5", "-o", "copy", cwd=tmp_path)
    for folder, is_known in ("made", True), ("foreign", False), ("copy", False):
        found = run_json("digest", folder, cwd=tmp_path)
        assert (found["engine"], found["seed"]) == (("philox4x32", 0) if is_known else (None, None)), folder
        assert found["model_digest"] == listed["model_digest"]
        run_ok("digest", folder, "--check", "there", cwd=tmp_path)


@generated(80)
@given(case=cases())
def test_digest_check_reports_random_differences(case, tmp_path_factory):
    before, after, only, is_json = case
    folder = tmp_path_factory.mktemp("check")
    write_spec(folder / "before.yaml", before)
    write_spec(folder / "after.yaml", after)
    run_ok("digest", "before.yaml", "--write", "there", cwd=folder)
    there = {tensor["path"]: tensor for tensor in json.loads((folder / "there").read_text())["tensors"]}
    assert there.keys() == before.keys()
    whole = run_json("digest", "after.yaml", cwd=folder)
    here = {tensor["path"]: tensor for tensor in whole["tensors"] if re.fullmatch(ONLY[only], tensor["path"])}
    options = [*(["--only", only] if only else []), *(["--json"] if is_json else [])]
    done = run_tool("digest", "after.yaml", "--check", "there", *options, cwd=folder)
    if not here:
        assert done.returncode == 2 and f"no tensor matches `--only {only}`" in done.stderr
        return
    wanted = differences(there, here, only)
    if wanted:
        some = "1 tensor is" if len(wanted) == 1 else f"{len(wanted)} tensors are"
        *lines, last = done.stderr.splitlines()
        assert (sorted(lines), last, done.returncode) == (wanted, f"shardinit: {some} not equal to there", 1)
    else:
        assert (done.stderr, done.returncode) == ("", 0)
    if is_json:
        digest = whole["model_digest"] if len(here) == len(after) else None
        assert json.loads(done.stdout) == {**whole, "tensors": list(here.values()), "model_digest": digest}
    else:
        equal = "" if wanted else "1 tensor is" if len(here) == 1 else f"{len(here)} tensors are"
        assert done.stdout == (equal and f"{equal} equal to there\n")
