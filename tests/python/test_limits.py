"""Small specs that ask for a lot of work end soon, use little memory, and report the reason."""

import resource

import pytest

from support import run_ok, run_tool

HEAD = "shardinit: 1\nname: x\ndtype: f32\n"
ONE = HEAD + "modules:\n  e: {shape: [4], init: zeros}\n"
CUBE = "{concat: {axis: 0, for: {a: 110}, of: {concat: {axis: 0, for: {b: 110}, of: {concat: {axis: 0, for: {c: 110}, of: e}}}}}}"

SPECS = {
    # Each layout has 1.3 million adjacent tensors, which need too many pieces.
    "layouts together": (ONE + "layouts:\n" + "".join(f"  l{i}: {{all: {{from: {CUBE}}}}}\n" for i in range(20)),
                         "other layouts fall into more than 8388608 pieces, too many to check this one in the same run"),
    "a long `for`": (ONE + "layouts: {l: {all: {from: {stack: {axis: 0, for: {i: 4000000}, of: e}}}}}\n",
                     "the count of `i` must be between 1 and 1000000, but it is 4000000"),
    "rules": (HEAD + "rules:\n" + "".join(f"  - {{r{i}: null}}\n" for i in range(100_000)) +
              "modules:\n  e: {shape: [4], axes: [r0], init: zeros}\n",
              "`rules` has 100000 entries, but may have at most 1000"),
    "patterns": (ONE + "layouts:\n  l:\n    keep:\n" + "".join(f"      - \"*{i}\"\n" for i in range(100_000)),
                 "`keep` has 100000 entries, but may have at most 1000"),
    "repeats of repeats": (HEAD + "modules:\n  a:\n    repeat: {i: 3000}\n    b:\n      repeat: {j: 3000}\n"
                           "      w: {shape: [1], init: zeros}\n",
                           "this makes 3000 × 3000 × 1 tensors, but a spec may have at most 4000000"),
    "a huge pad": (ONE + "layouts: {l: {all: {from: {pad: {axis: 0, to: 4611686018427387904, of: e}}}}}\n",
                   "with this tensor the layout has more than 2^63 - 1 bytes"),
    "a mesh": (HEAD + "mesh: {axes: {a: 1000000000000000000}}\nmodules:\n  e: {shape: [4], init: zeros}\n",
               "axis `a` must be between 1 and 16777216, but it is 1000000000000000000"),
    "axes of a mesh": (HEAD + "mesh: {axes: {a: 16777216, b: 16777216, c: 16777216}}\nmodules:\n"
                       "  e: {shape: [4], init: zeros, shard: [[a, b, c]]}\n", "the mesh has more than 16777216 ranks"),
    "a long expression": (HEAD + f"vars: {{n: '{'(' * 4000}1'}}\nmodules:\n  e: {{shape: [n], init: zeros}}\n",
                          "nested more than"),
    "a long number": (HEAD + f"seed: {'9' * 4000}\nmodules:\n  e: {{shape: [4], init: zeros}}\n",
                      "does not fit in 64 bits"),
}


@pytest.mark.parametrize("name", SPECS)
def test_oversized_specs_are_rejected(name, tmp_path):
    text, message = SPECS[name]
    (tmp_path / "spec.yaml").write_text(text)

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

    result = run_tool("validate", "spec.yaml", cwd=tmp_path, timeout=60, preexec_fn=limit)
    assert result.returncode == 2 and message in result.stderr, result.stderr[:1000]
    assert len(result.stderr) < 100_000


def test_layouts_are_checked_only_if_chosen(tmp_path):
    wrong = "".join(f"        w{i}: nothing.{{i}}\n" for i in range(250))
    (tmp_path / "spec.yaml").write_text(
        ONE + "layouts:\n  bad:\n    m:\n      repeat: {i: 2}\n      fans: in_out\n      n:\n" + wrong +
        "  good:\n    m:\n      repeat: {i: 2}\n      a: e\n")
    run_ok("plan", tmp_path / "spec.yaml")
    assert "m.1.a" in run_ok("plan", tmp_path / "spec.yaml", "--layout", "good", "--rank", "0").stdout
    for command in [["validate"], ["plan", "--layout", "bad"]]:
        result = run_tool(*command, tmp_path / "spec.yaml")
        assert result.returncode == 2 and "`modules` has no tensor `nothing.0`" in result.stderr
