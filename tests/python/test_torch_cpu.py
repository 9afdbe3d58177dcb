"""The engine torch_cpu makes the bits of torch.manual_seed and torch.nn.init, called in the order of the spec, for any
mesh and any part."""

import json
import math

import h5py
import numpy as np
import pytest
import torch

from clients import gen_ok, like_torch_cpu
from support import datasets_in, rank_files, read_raw, reassemble, run_ok, run_tool

pytestmark = like_torch_cpu()

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
SIZES = [1, 2, 3, 5, 7, 8, 15, 16, 17, 18, 23, 24, 31, 32, 33, 40, 100, 1000, 4097]
SEEDS = [0, 1, 42, 2**63 + 5]
HEAD = "shardinit: 1\nname: x\nengine: torch_cpu\ndtype: f32\nuneven: chunk\nfans: out_in\n"


def spec_text(seed, mesh, lines):
    mesh = ", ".join(f"{axis}: {size}" for axis, size in mesh.items())
    return HEAD + f"seed: {seed}\nmesh: {{axes: {{{mesh}}}}}\nmodules:\n" + "".join(f"  {line}\n" for line in lines)


def tensor_line(path, shape, init, dtype, shard):
    return f"{path}: {{shape: {list(shape)}, init: {init}, dtype: {dtype}, shard: {shard}}}".replace("'", "")


class Case:
    """Lines of a spec, and the tensors that torch makes with the same calls."""

    def __init__(self, seed, axes):
        torch.manual_seed(seed)
        self.axes, self.lines, self.expected = axes, [], {}

    def add(self, shape, init, dtype, call):
        path = f"t{len(self.lines)}"
        shard = "[" + ", ".join((self.axes + ["null"] * len(shape))[:len(shape)]) + "]"
        self.lines.append(tensor_line(path, shape, init, dtype, shard))
        tensor = torch.empty(shape, dtype=TYPES[dtype])
        call(tensor)
        self.expected[path] = tensor

    def check(self, folder):
        made = {path: words for path, (_, words) in reassemble(folder).items()}
        assert made.keys() == self.expected.keys()
        for path, tensor in self.expected.items():
            words = tensor.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize])
            expected = words.numpy().view(made[path].dtype)
            different = np.flatnonzero(expected.ravel() != made[path].ravel())
            assert different.size == 0, (self.lines[int(path[1:])], different[:10], different.size)


def calls(case):
    """Adds calls of every size and type, in an order that sometimes leaves the second number of a pair over."""
    init = torch.nn.init
    for size in SIZES:
        for dtype in ["f32", "bf16", "f16"]:
            case.add([size], "{normal: {mean: 0.5, std: 0.02}}", dtype, lambda t: t.normal_(0.5, 0.02))
            case.add([size], "{uniform: {low: -0.1, high: 0.3}}", dtype, lambda t: t.uniform_(-0.1, 0.3))
        case.add([size], "{uniform: {low: 0.1, high: 3}}", "f64", lambda t: t.uniform_(0.1, 3))
        case.add([size], "{normal: {std: 1}}", "f32", lambda t: t.normal_())
        case.add([size], "{trunc_normal: {std: 0.02, a: -0.04, b: 0.04}}", "f32",
                 lambda t: init.trunc_normal_(t, 0, 0.02, -0.04, 0.04))
        case.add([size], "{trunc_normal: {mean: 0.25, std: 1, a: -1, b: 2}}", "bf16",
                 lambda t: init.trunc_normal_(t, 0.25, 1, -1, 2))
        case.add([size], "{trunc_normal: {std: 0.02, a: -2, b: 2}}", "f16", lambda t: init.trunc_normal_(t, std=0.02))
    for shape in [(16, 33), (100, 7), (3, 5, 7), (64, 32, 3, 3)]:
        for dtype in ["f32", "bf16", "f16"]:
            case.add(shape, "kaiming_uniform", dtype, lambda t: init.kaiming_uniform_(t))
            case.add(shape, f"{{kaiming_uniform: {{a: {math.sqrt(5)!r}}}}}", dtype,
                     lambda t: init.kaiming_uniform_(t, a=math.sqrt(5)))
            case.add(shape, "{kaiming_normal: {mode: fan_out, nonlinearity: relu}}", dtype,
                     lambda t: init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"))
            case.add(shape, "{xavier_uniform: {gain: 1.5}}", dtype, lambda t: init.xavier_uniform_(t, 1.5))
            case.add(shape, "xavier_normal", dtype, lambda t: init.xavier_normal_(t))
            case.add(shape, "ones", dtype, lambda t: t.fill_(1))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mesh", [{"x": 1}, {"x": 2, "y": 2}, {"x": 3}])
def test_torch_cpu_matches_random_calls(seed, mesh, tmp_path):
    case = Case(seed, list(mesh))
    calls(case)
    case.check(gen_ok(spec_text(seed, mesh, case.lines), tmp_path))


def test_torch_cpu_matches_for_large_tensors(tmp_path):
    case = Case(3, ["null", "x"])
    normal = "{normal: {std: 0.02}}"
    case.add([2**20 + 3], normal, "f32", lambda t: t.normal_(0, 0.02))
    case.add([2**20 + 3], normal, "bf16", lambda t: t.normal_(0, 0.02))
    case.add([1500, 1501], "{uniform: {low: 0, high: 1}}", "f32", lambda t: t.uniform_())
    case.add([1024, 1030], "{trunc_normal: {std: 1, a: -2, b: 2}}", "f32",
             lambda t: torch.nn.init.trunc_normal_(t, 0, 1, -2, 2))
    case.add([1024, 4096], normal, "f16", lambda t: t.normal_(0, 0.02))
    case.check(gen_ok(spec_text(3, {"x": 3}, case.lines), tmp_path, "--jobs=2"))


class Constructed(torch.nn.Module):
    """Layers with PyTorch's default initializers."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(33, 20)
        self.conv = torch.nn.Conv1d(20, 5, 3)
        self.embed = torch.nn.Embedding(11, 7)
        self.norm = torch.nn.LayerNorm(7)
        self.last = torch.nn.Linear(7, 3, bias=False)


MODULES = """\
  first:
    weight: {shape: [20, 33], init: {kaiming_uniform: {a: sqrt(5)}}}
    bias: {shape: [20], init: {uniform: {low: -1 / sqrt(33), high: 1 / sqrt(33)}}}
  conv:
    weight: {shape: [5, 20, 3], init: {kaiming_uniform: {a: sqrt(5)}}}
    bias: {shape: [5], init: {uniform: {low: -1 / sqrt(60), high: 1 / sqrt(60)}}}
  embed.weight: {shape: [11, 7], init: {normal: {std: 1}}}
  norm:
    weight: {shape: [7], init: ones}
    bias: {shape: [7], init: zeros}
  last.weight: {shape: [3, 7], init: {kaiming_uniform: {a: sqrt(5)}}}
"""


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("seed", SEEDS)
def test_torch_cpu_matches_a_constructor(seed, dtype, tmp_path):
    torch.set_default_dtype(TYPES[dtype])
    try:
        torch.manual_seed(seed)
        state = Constructed().state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    made = reassemble(gen_ok(HEAD.replace("dtype: f32", f"dtype: {dtype}") + f"seed: {seed}\nmodules:\n" + MODULES,
                             tmp_path))
    assert made.keys() == state.keys()
    for path, tensor in state.items():
        expected = tensor.contiguous().view(torch.int32 if dtype == "f32" else torch.int16).numpy()
        assert np.array_equal(made[path][1].view(expected.dtype).ravel(), expected.ravel()), path


def test_keys_can_skip_numbers(tmp_path):
    """A key can name a position in the stream, with the second number of a pair if one is left over."""
    torch.manual_seed(5)
    torch.empty(1000).normal_()
    torch.empty(3).normal_()
    first = torch.empty(100).uniform_(-1, 2)
    second = torch.empty(2).normal_(1, 2)
    spec = HEAD + """seed: 5
modules:
  first: {shape: [100], init: {uniform: {low: -1, high: 2}}, key: {torch: {position: 1000 + 16 + 8, spare: 1016 + 4}}}
  second: {shape: [2], init: {normal: {mean: 1, std: 2}}}
"""
    made = reassemble(gen_ok(spec, tmp_path))
    for path, tensor in {"first": first, "second": second}.items():
        assert np.array_equal(made[path][1].view(np.float32), tensor.numpy()), path


def test_a_rank_far_into_the_stream_is_right(tmp_path):
    """One of many ranks is right, for a tensor 50 million words into the stream; PyTorch draws all words."""
    torch.manual_seed(11)
    torch.empty(50_000_000).uniform_()
    whole = torch.empty(64, 10_000).normal_(0, 0.02)
    spec = HEAD + """seed: 11
mesh: {axes: {x: 8, y: 8}}
modules:
  whole: {shape: [64, 10000], shard: [x, y], init: {normal: {std: 0.02}}, key: {torch: {position: 50000000}}}
"""
    out = gen_ok(spec, tmp_path, "--ranks=27")
    with h5py.File(rank_files(out)[0]) as file:
        part, = datasets_in(file)
        assert np.array_equal(read_raw(part).view(np.float32), whole[24:32, 3750:5000].numpy())


def test_plan_stores_stream_positions(tmp_path):
    """The plan stores positions, so the pass over a truncated distribution happens once."""
    lines = ["a: {shape: [100000], init: {trunc_normal: {std: 1, a: -2, b: 2}}}",
             "b: {shape: [3], init: {normal: {std: 1}}}", "c: {shape: [2], init: {normal: {std: 1}}}"]
    folder = gen_ok(spec_text(0, {"x": 1}, lines), tmp_path)
    torch.manual_seed(0)
    torch.nn.init.trunc_normal_(torch.empty(100000), 0, 1, -2, 2)
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["engine"] == "torch_cpu/2.13/avx2"
    a, b, c = (tensor["key"] for tensor in plan["tensors"])
    rounds = b["position"] // 100000
    assert a == {"position": 0} and b == {"position": rounds * 100000} and rounds in (4, 5, 6)
    assert c == {"position": b["position"] + 8, "spare": b["position"] + 4}
    run_ok("verify", folder)


def test_torch_cpu_is_short_for_its_full_name(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(spec_text(0, {"x": 1}, ["a: {shape: [20], init: {normal: {std: 1}}}"])
                    .replace("torch_cpu", "torch_cpu/2.13/avx2"))
    full = run_ok("digest", spec).stdout
    spec.write_text(spec.read_text().replace("/2.13/avx2", ""))
    assert run_ok("digest", spec).stdout == full
    done = run_tool("program", spec)
    assert done.returncode != 0 and "programs do not have the engine `torch_cpu/2.13/avx2`" in done.stderr


def test_tied_tensors_take_no_numbers(tmp_path):
    (tmp_path / "spec.yaml").write_text(HEAD + """modules:
  head: {shape: [5, 7], init: {normal: {std: 1}}, tie: table}
  first: {shape: [40], init: {normal: {std: 1}}}
  table: {shape: [5, 7], init: {normal: {std: 1}}}
  last: {shape: [3], init: {normal: {std: 1}}}
""")
    torch.manual_seed(0)
    first, table, last = torch.randn(40), torch.randn(5, 7), torch.randn(3)
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "out")
    run_ok("verify", tmp_path / "out", "--spec", tmp_path / "spec.yaml")
    made = {path: words.view(np.float32) for path, (_, words) in reassemble(tmp_path / "out").items()}
    for path, tensor in {"head": table, "first": first, "table": table, "last": last}.items():
        assert np.array_equal(made[path].reshape(tensor.shape), tensor.numpy()), path


# Functions of expressions ---------------------------------------------------------


def words_of(tensor):
    return tensor.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32,
                                     8: torch.int64}[tensor.itemsize]).numpy()


class Elements:
    """Tensors of expressions, and torch's tensors, at positions after 1001 words."""

    def __init__(self, seed):
        self.seed, self.lines, self.expected, self.inexact = seed, [], {}, set()
        torch.manual_seed(seed)
        torch.rand(1001)
        self.before = torch.get_rng_state()

    def add(self, expression, make, dtype="f32", inexact=False):
        torch.set_rng_state(self.before)
        tensor = make()
        path = f"t{len(self.lines)}"
        shape = list(tensor.shape)
        self.lines.append(f'{path}: {{shape: {shape}, dtype: {dtype}, init: {{expr: "{expression}"}}, shard: [a]}}')
        self.expected[path] = tensor
        if inexact:
            self.inexact.add(path)

    def check(self, folder, ranks):
        (folder / "spec.yaml").write_text(spec_text(self.seed, {"a": ranks}, self.lines))
        run_ok("gen", folder / "spec.yaml", "-o", folder / "out")
        run_ok("verify", folder / "out", "--spec", folder / "spec.yaml")
        made = {path: words for path, (_, words) in reassemble(folder / "out").items()}
        plan = {t["path"]: t for t in json.loads((folder / "out/plan.json").read_text())["tensors"]}
        manifest = {t["path"]: t for t in json.loads((folder / "out/manifest.json").read_text())["tensors"]}
        for path, tensor in self.expected.items():
            expected = words_of(tensor).ravel()
            inexact = path in self.inexact
            if inexact:  # within two units in the last place of a number near the largest
                numbers = tensor.numpy().ravel()
                distance = np.abs(made[path].ravel().view(numbers.dtype) - numbers).max()
                assert distance <= 2 * np.spacing(np.abs(numbers).max()), (self.lines[int(path[1:])], distance)
            else:
                assert np.array_equal(made[path].ravel().view(expected.dtype), expected), self.lines[int(path[1:])]
            assert plan[path].get("inexact", False) is inexact and manifest[path].get("inexact", False) is inexact
        for path in [*sorted(self.inexact)[:3], *sorted(self.expected.keys() - self.inexact)[:1]]:  # reported once
            told = run_ok("explain", folder / "spec.yaml", path).stdout
            assert told.count(", inexact: PyTorch may round some of these numbers otherwise") == (path in self.inexact), told


FLOATS = {"f32": "", "bf16": "_bf16", "f16": "_f16", "f64": "_f64"}


@pytest.mark.parametrize("seed, ranks", [(0, 1), (42, 3), (2**63 + 5, 2)])
def test_expressions_draw_by_position(tmp_path, seed, ranks):
    elements = Elements(seed)
    for dtype, suffix in FLOATS.items():
        kind, wide = TYPES[dtype], dtype == "f64"
        for n in (3, 16, 100, 5000):
            elements.add(f"torch_normal{suffix}(1001, -1, {n}, i0, 0.25, 0.02)",
                         lambda: torch.empty(n, dtype=kind).normal_(0.25, 0.02), dtype, wide)
            elements.add(f"torch_trunc_normal{suffix}(1001, -1, {n}, i0, 0.25, 2, -3, 3)",
                         lambda: torch.nn.init.trunc_normal_(torch.empty(n, dtype=kind), 0.25, 2, -3, 3), dtype, wide)
        elements.add(f"torch_uniform{suffix}(1001, i0, -0.1, 0.3)",
                     lambda: torch.empty(5000, dtype=kind).uniform_(-0.1, 0.3), dtype)
        # PyTorch fills non-contiguous memory two numbers at a time.
        elements.add(f"torch_pairs{suffix}(1001, -1, i0 * 40 + i1, 1, 3)",
                     lambda: torch.empty(50, 80, dtype=kind)[:, ::2].normal_(1, 3), dtype, wide)
    elements.add("torch_normal(1001, -1, 6000, i1 * 100 + i0, 0, 1)", lambda: torch.empty(60, 100).normal_().t())
    elements.add("torch_normal(1001, -1, 6000, 5999 - index, 0, 1)",
                 lambda: torch.empty(60, 100).normal_().flatten().flip(0))
    elements.add("where(i0 == 7, 0, torch_normal(1001, -1, 6000, index, 0, 0.02))",
                 lambda: torch.nn.Embedding(60, 100, padding_idx=7, _weight=torch.empty(60, 100).normal_(0, 0.02)
                                            .index_fill_(0, torch.tensor([7]), 0)).weight.detach())
    elements.add("torch_normal(1001, -1, 100, i1, 0, 1)", lambda: torch.empty(100).normal_().expand(9, 100))
    elements.add("mod(torch_word(1001 + i0), 2147483648)",
                 lambda: torch.empty(3000, dtype=torch.int32).random_().long(), "i64")
    for high in (37, 2**28 - 1, 2**28, 3 * 10**9, 2**32 + 1, 2**53):
        elements.add(f"torch_randint(1001, i0, {high}) + 5", lambda: torch.randint(5, high + 5, (3000,)), "i64")
    elements.add("torch_randint(1001, 2999 - i0, 1e12)",
                 lambda: torch.randint(10**12, (3000,)).flip(0), "i64")
    elements.add("torch_uniform_f64(1001, i0, 0, 1) < 0.3", lambda: torch.empty(3000).bernoulli_(0.3))
    elements.add("mod(torch_word(1001 + i0), 16777216) / 16777216 < 0.3",
                 lambda: torch.bernoulli(torch.full((3000,), 0.3)))
    elements.add("torch_permutation(1001, 3000, i0)", lambda: torch.randperm(3000), "i64")
    elements.add("torch_normal_sorted(1001, -1, 3000, 30, index, 1, 2)",
                 lambda: torch.empty(100, 30).normal_(1, 2).sort().values)
    elements.add("torch_uniform_sorted(1001, 3000, 3000, 2999 - i0, -1, 2)",
                 lambda: torch.empty(3000).uniform_(-1, 2).sort(descending=True).values)
    elements.add("sqrt(torch_normal_sums(1001, -1, 3000, 30, 1, i0, 2, 1, 2))",
                 lambda: torch.empty(100, 30).normal_(1, 2).norm(dim=1), "f32", True)
    elements.add("sqrt(torch_normal_sums(1001, -1, 3000, 10, 15, 15 * i0 + i1, 2, 0, 1))",
                 lambda: torch.empty(20, 10, 15).normal_().norm(dim=1), "f32", True)
    elements.add("torch_uniform_sums(1001, 3000, 20, 1, i0, 1, 1, 2)",
                 lambda: torch.empty(150, 20).uniform_(1, 2).sum(1), "f32", True)
    # Numbers are rounded to the tensor's type.
    elements.add("f32(f32(torch_normal(1001, -1, 3000, i0, 0, 1) * f32(0.1)) + f32(0.3)) / 3",
                 lambda: (torch.randn(3000) * 0.1 + 0.3) / 3)
    elements.add("bf16(torch_normal_bf16(1001, -1, 3000, i0, 0, 1) * f32(0.1)) + 3",
                 lambda: torch.randn(3000, dtype=torch.bfloat16) * 0.1 + 3, "bf16")
    elements.add("-log1p(-torch_uniform_f64(1001, i0, 0, 1)) / 1.5", lambda: torch.empty(3000).exponential_(1.5), "f32",
                 True)
    elements.add("exp(torch_pairs_f64(1001, -1, i0, 0.5, 0.25))", lambda: torch.empty(3000).log_normal_(0.5, 0.25),
                 "f32", True)
    elements.add("exp(torch_uniform(1001, i0, -3, 0))", lambda: torch.empty(3000).uniform_(-3, 0).exp_(), "f32", True)
    elements.check(tmp_path, ranks)


def test_expressions_use_the_left_over_normal(tmp_path):
    elements = Elements(5)

    def left(n, of):
        torch.empty(of).normal_()
        return torch.empty(n).normal_(2, 3)

    elements.add("torch_normal(1009, 1005, 4, i0, 2, 3)", lambda: left(4, 3))
    elements.add("torch_pairs(1009, 1005, i0, 2, 3)", lambda: left(4, 3))
    elements.check(tmp_path, 1)


def test_keys_can_skip_words_after_a_tensor(tmp_path):
    (tmp_path / "spec.yaml").write_text(HEAD + """modules:
  cut: {shape: [1000], init: {trunc_normal: {std: 1, a: -1, b: 1}}}
  first: {shape: [40], init: {normal: {std: 1}}, key: {torch: {skip: 32}}}
  layers:
    repeat: {layer: 3}
    weight: {shape: [3], init: {normal: {std: 1}}, key: {torch: {skip: 2 * layer}}}
""")
    torch.manual_seed(0)
    cut = torch.nn.init.trunc_normal_(torch.empty(1000), 0, 1, -1, 1)
    torch.rand(32)
    expected = {"cut": cut, "first": torch.randn(40)}
    for layer in range(3):
        torch.rand(2 * layer)
        expected[f"layers.{layer}.weight"] = torch.randn(3)
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "out")
    made = {path: words for path, (_, words) in reassemble(tmp_path / "out").items()}
    for path, tensor in expected.items():
        assert np.array_equal(made[path].ravel(), words_of(tensor).view(np.uint32)), path


@pytest.mark.parametrize("ranks", [1, 3])
def test_matrices_match_a_constructor(tmp_path, ranks):
    lines = ["sparse: {shape: [40, 30], init: {sparse: {sparsity: 0.33, std: 0.5}}, shard: [a]}",
             "half: {shape: [3, 4], dtype: bf16, init: {sparse: {sparsity: 0.5, std: 1}}, shard: [a]}",
             "high: {shape: [50, 2, 10], init: {orthogonal: {gain: 1.5}}, shard: [a]}",
             "wide: {shape: [20, 60], init: orthogonal, shard: [a]}",
             "last: {shape: [7], init: {normal: {std: 1}}, shard: [a]}"]
    torch.manual_seed(42)
    init = torch.nn.init
    expected = {"sparse": init.sparse_(torch.empty(40, 30), 0.33, 0.5),
                "half": init.sparse_(torch.empty(3, 4, dtype=torch.bfloat16), 0.5, 1),
                "high": init.orthogonal_(torch.empty(50, 2, 10), 1.5), "wide": init.orthogonal_(torch.empty(20, 60)),
                "last": torch.randn(7)}
    (tmp_path / "spec.yaml").write_text(spec_text(42, {"a": ranks}, lines))
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "out")
    made = {path: words for path, (_, words) in reassemble(tmp_path / "out").items()}
    inexact = {t["path"] for t in json.loads((tmp_path / "out/manifest.json").read_text())["tensors"] if "inexact" in t}
    assert inexact == {"high", "wide"}
    for path, tensor in expected.items():
        if path in inexact:
            assert np.abs(made[path].ravel().view(np.float32) - tensor.numpy().ravel()).max() < 2e-6, path
        else:
            assert np.array_equal(made[path].ravel().view(words_of(tensor).dtype), words_of(tensor).ravel()), path


@pytest.mark.parametrize("gain", ["0", "-0.0"])
def test_matrix_with_gain_0_takes_its_numbers(gain, tmp_path):
    """PyTorch draws the matrix even with gain 0, and zeros keep the signs of its elements."""
    lines = [f"none: {{shape: [6, 5], init: {{orthogonal: {{gain: {gain}}}}}}}",
             "after: {shape: [7], init: {normal: {std: 1}}}"]
    torch.manual_seed(5)
    expected = {"none": torch.nn.init.orthogonal_(torch.empty(6, 5), float(gain)), "after": torch.randn(7)}
    (tmp_path / "spec.yaml").write_text(spec_text(5, {"a": 1}, lines))
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "out")
    made = {path: words for path, (_, words) in reassemble(tmp_path / "out").items()}
    for path, tensor in expected.items():
        assert np.array_equal(made[path].ravel().view(words_of(tensor).dtype), words_of(tensor).ravel()), path
    (tmp_path / "spec.yaml").write_text(spec_text(5, {"a": 1},
                                                  ["w: {shape: [2, 2], fans: out_in, init: {xavier_uniform: {gain: "
                                                   "0}}}"]))
    done = run_tool("plan", tmp_path / "spec.yaml")
    assert done.returncode == 2 and "PyTorch draws numbers even for zeros" in done.stderr, done


@pytest.mark.parametrize("expression, message", [
    ("torch_normal(i0, -1, 40, i0, 0, 1)", "argument 1 of `torch_normal`, the place in the stream, is not the same"),
    ("torch_normal(0, -2, 40, i0, 0, 1)", "is -2, but must be a whole number from -1 to 2^53"),
    ("torch_normal(0.5, -1, 40, i0, 0, 1)", "is 0.5, but must be a whole number from 0 to 2^53"),
    ("torch_normal(0, -1, 40, i0 + 1, 0, 1)", "element [39] of `t` is nan"),
    ("torch_uniform(0, i0, 1, 0)", "`low` 1 is above `high` 0"),
    ("torch_trunc_normal(0, -1, 40, i0, 0, 1, 1, 2)", "must leave at least 30 %"),
    ("torch_permutation(0, 268435456, i0)", "a permutation of 268435456 is too large; it may have less than 268435456"),
    ("torch_normal_sums(0, -1, 40, 7, 1, i0, 2, 0, 1)", "40 elements are not a multiple of 7 * 1"),
    ("torch_uniform_sums(0, 40, 1, 3, i0, 2, 0, 1)", "40 elements are not a multiple of 1 * 3"),
    ("torch_uniform_sums(0, 40, 1, 1, i0, 3, 0, 1)", "the power is 3, but must be 1 or 2"),
    ("torch_uniform_sorted(0, 268435456, 1, i0, 0, 1)",
     "268435456 numbers are too many; there may be less than 268435456"),
    ("torch_uniform_sorted(0, 40, 40, i0, 1, 0)", "`low` 1 is above `high` 0"),
    ("torch_normal_sorted(0, -1, 40, 0, i0, 0, 1)", "is 0, but must be a whole number from 1 to 2^53"),
    ("torch_normal_sorted(0, -1, 40, 9e15, i0, 0, 1)", "40 elements are not a multiple of 9000000000000000 * 1"),
    ("torch_normal_sums(0, -1, 40, 40, 1, i0, 2, 0, -1)", "`std` is -1, but must be at least 0"),
    ("torch_orthogonal(0, -1, 1000000, 1000000, i0, 1)", "an orthogonal matrix of 1000000 x 1000000 is too large"),
    ("torch_randint(0, i0, 1e16)", "is 1e+16, but must be a whole number from 1 to 2^53"),
    ("torch_randint(0, i0, 0)", "is 0, but must be a whole number from 1 to 2^53"),
    ("torch_trunc_normal(0, -1, 40, i0, 0, -1, 2, -2)", "`std` is -1, but must be above 0"),
    ("torch_trunc_normal(0, -1, 40, i0, 0, 1, 2, -2)", "`a` 2 is not below `b` -2"),
    ("torch_normal(0, -1, 40, i0, 0, -1)", "`std` is -1, but must be at least 0"),
    ("torch_normal(0, -1, 40, i0)", "takes 6 arguments"),
])
def test_wrong_stream_positions_are_rejected(tmp_path, expression, message):
    (tmp_path / "spec.yaml").write_text(HEAD + f'modules:\n  t: {{shape: [40], init: {{expr: "{expression}"}}}}\n')
    result = run_tool("digest", tmp_path / "spec.yaml")
    assert result.returncode == 2 and message in result.stderr, result.stderr


@pytest.mark.parametrize("init, of_rows", [("{sparse: {sparsity: 0.5, std: 1}}", True),
                                           ("{expr: 'torch_permutation(0, ROWS, i0)'}", False)])
def test_permutations_have_a_limit(tmp_path, init, of_rows):
    """A permutation may have up to 2^28 - 1 rows; 2^28 rows are rejected."""
    for rows in (2**28 - 1, 2**28):
        (tmp_path / "spec.yaml").write_text(f"{HEAD}modules:\n  t: {{shape: [{rows}, 3], "
                                            f"init: {init.replace('ROWS', str(rows))}}}\n")
        result = run_tool("plan", tmp_path / "spec.yaml")
        assert result.returncode == (0 if rows < 2**28 else 2), result.stderr
    message = "it has 268435456 rows, but may have less than 268435456" if of_rows else \
        "a permutation of 268435456 is too large; it may have less than 268435456"
    assert message in result.stderr


ROWS_FIRST = "PyTorch uses the first dimension as rows and all others as columns"


@pytest.mark.parametrize("tensor, message", [
    ("{shape: [8, 8, 3], init: delta_orthogonal}", ROWS_FIRST),
    ("{shape: [8, 8], dtype: bf16, init: orthogonal}", "of bf16, but PyTorch generates them in f32"),
    ("{shape: [8, 8], init: {normalized: {axis: 0}}}", "PyTorch has no such initializer"),
    ("{shape: [8], dtype: f8e5m2, init: {normal: {std: 1}}}", "PyTorch draws no f8e5m2 numbers"),
    ("{shape: [8], dtype: f8e5m2, init: {uniform: {low: 0, high: 1}}}", "PyTorch draws no f8e5m2 numbers"),
    ("{shape: [8], dtype: f8e5m2, init: {trunc_normal: {std: 1}}}", "PyTorch draws no f8e5m2 numbers"),
    ("{shape: [8, 8], dtype: f8e5m2, init: {sparse: {sparsity: 0.5}}}", "PyTorch draws no f8e5m2 numbers"),
    ("{shape: [8], init: {truncated_normal: {std: 1, low: 0.6, high: 1}}}",
     "must leave at least 30 % of the numbers, but leave 11.6 %"),
    ("{shape: [8], init: {expr: 'normal()'}}",
     "PyTorch has no such draws; write `torch_normal(…)` or another of its functions"),
])
def test_tensors_that_pytorch_cannot_draw_are_rejected(tmp_path, tensor, message):
    (tmp_path / "spec.yaml").write_text(f"{HEAD}modules:\n  t: {tensor}\n")
    result = run_tool("validate", tmp_path / "spec.yaml")
    assert result.returncode == 2 and "engine `torch_cpu/2.13/avx2` cannot draw `t`" in result.stderr, result.stderr
    assert message in result.stderr, result.stderr


@pytest.mark.parametrize("init, was, wrong", [
    ("orthogonal", '"dtype": "f32"', '"dtype": "bf16"'),
    ("{normal: {std: 1}}", '"dtype": "f32"', '"dtype": "f8e5m2"'),
    ("{trunc_normal: {std: 1}}", '"low": -2', '"low": 1.9'),
    ("{normal: {std: 1}}", '"position": 0', f'"position": {2**62 + 1}'),
])
def test_plans_that_pytorch_cannot_draw_are_rejected(tmp_path, init, was, wrong):
    (tmp_path / "spec.yaml").write_text(f"{HEAD}modules:\n  t: {{shape: [8, 8], init: {init}}}\n")
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "out")
    plan = tmp_path / "out/plan.json"
    assert plan.read_text().count(was) == 1
    plan.write_text(plan.read_text().replace(was, wrong))
    result = run_tool("diff", plan, plan)
    assert result.returncode == 5 and "the engine cannot draw `t` with this key" in result.stderr, result.stderr


def test_plan_names_the_engine_version(tmp_path):
    """A plan names the engine's version, because `torch_cpu` means another engine in the next version."""
    (tmp_path / "spec.yaml").write_text(f"{HEAD}modules:\n  t: {{shape: [8], init: {{normal: {{std: 1}}}}}}\n")
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "out")
    plan = tmp_path / "out/plan.json"
    plan.write_text(plan.read_text().replace("torch_cpu/2.13/avx2", "torch_cpu"))
    result = run_tool("diff", plan, plan)
    assert result.returncode == 5 and "unknown engine `torch_cpu`" in result.stderr, result.stderr


def test_torch_functions_need_the_torch_cpu_engine(tmp_path):
    (tmp_path / "spec.yaml").write_text(HEAD.replace("torch_cpu", "philox4x32")
                                        + 'modules:\n  t: {shape: [4], init: {expr: "torch_word(i0)"}}\n')
    result = run_tool("plan", tmp_path / "spec.yaml")
    assert result.returncode == 2 and "engine `philox4x32` cannot draw" in result.stderr


def test_stream_positions_have_a_limit(tmp_path):
    last = 2**62
    spec = tmp_path / "spec.yaml"
    text = HEAD + """modules:
  a: {shape: [5], init: {normal: {std: 1}}, key: {torch: {position: PLACE}}}
  b: {shape: [3], init: {normal: {std: 1}}}
"""
    spec.write_text(text.replace("PLACE", str(last - 100)))
    run_ok("digest", spec)
    run_ok("gen", spec, "-o", tmp_path / "out")
    spec.write_text(text.replace("PLACE", str(last)))
    result = run_tool("digest", spec)
    assert result.returncode == 2 and f"places end at {last}" in result.stderr
    spec.write_text(text.replace("PLACE", str(last + 1)))
    assert run_tool("digest", spec).returncode == 2
    plan = tmp_path / "out/plan.json"
    plan.write_text(plan.read_text().replace(str(last - 100), str(2**64 - 20)))
    result = run_tool("verify", tmp_path / "out")
    assert result.returncode == 1 and "cannot draw `a` with this key" in result.stderr, result.stderr
