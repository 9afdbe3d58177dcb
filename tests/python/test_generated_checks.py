"""What `digest SPEC --check FILE` reports of two random models, against a comparison of their two lists in Python."""

import json
import re

from generated import generated, given
from hypothesis import strategies
from support import run_json, run_ok, run_tool

PATHS = ["w", "v", "a.w", "a.v", "a.b.w", "c.0.w", "c.1.w"]
SHAPES, DTYPES = ["[6]", "[2, 3]", "[]"], ["f32", "bf16"]
INITS = ["zeros", "{constant: {value: 2}}", "{normal: {std: 1}}"]
# What each pattern of --only is as a regular expression.
ONLY = {"": ".*", "**": ".*", "a.**": r"a\..+", "*.w": r"[^.]+\.w", "**.w": r"(.+\.)?w", "w": "w",
        "c.?.w": r"c\.[^.]\.w"}


@strategies.composite
def cases(draw):
    """Two models, path → shape, type and initializer: of the second's tensors some are those of the first."""
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
    """The lines of the report on `here`, tensors by their paths, compared with `there`, those of the file `there`."""
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


@generated(80)
@given(case=cases())
def test_generated_checks_of_digests(case, tmp_path_factory):
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
