"""Tests initializers of whole matrices by their definitions in shardinit-values(7), with any sharding, and their
distributions."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from support import DTYPES, reassemble, run_json, run_ok

HEAD = "shardinit: 1\nname: x\ndtype: f32\nmesh: {axes: {a: 1, b: 1}}\n"


def generate(tmp_path, text, *arguments):
    """Returns path → array, for a spec given without its first lines."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(HEAD + text)
    out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
    run_ok("gen", spec, "-o", out, *arguments)
    return {path: words.view(DTYPES[dtype]) for path, (dtype, words) in reassemble(out).items()}


def orthogonal(normals, rows, columns, gain):
    """Follows the manual's steps with Python's floats, operation by operation."""
    x = [[float(normals[j * rows + i]) if i >= j else 0.0 for i in range(rows)] for j in range(columns)]
    count = -(-columns // 8) * 8
    v, negative = [[0.0] * rows for _ in range(count)], []
    for j in range(columns):
        n = 0.0
        for number in x[j]:
            n += number * number
        n = math.sqrt(n)
        v[j] = x[j][:]
        negative.append(x[j][j] < 0)
        v[j][j] = float(np.float32(x[j][j] - n if negative[j] else x[j][j] + n))

    def product(a, b):
        total = 0.0
        for p, q in zip(a, b):
            total += p * q
        return total

    squares = [product(w, w) for w in v]
    t = [2 / g if g else 0.0 for g in squares]
    result = np.zeros((rows, columns), np.float32)
    for c in range(columns):
        q = [0.0] * rows
        q[c] = 1.0 if negative[c] else -1.0
        for b in range(c // 8, -1, -1):
            block = range(8 * b, 8 * b + 8)
            y = {j: product(v[j], q) for j in block}
            s = {}
            for j in reversed(block):
                for k in range(8 * b + 7, j, -1):
                    y[j] -= product(v[j], v[k]) * s[k]
                s[j] = y[j] * t[j]
            for i in range(rows):
                for j in reversed(block):
                    q[i] -= v[j][i] * s[j]
        result[:, c] = [np.float32(number * gain) for number in q]
    return result


@pytest.mark.parametrize("rows, columns", [(1, 1), (19, 11), (8, 8), (13, 20)])
def test_orthogonal_matches_the_manual(rows, columns, tmp_path):
    long, short = max(rows, columns), min(rows, columns)
    normals = generate(tmp_path, f"modules: {{w: {{shape: [{long * short}], init: {{normal: {{std: 1}}}}}}}}\n")["w"]
    ours = generate(tmp_path, f"modules: {{w: {{shape: [{rows}, {columns}], init: {{orthogonal: {{gain: 3}}}}}}}}\n")["w"]
    want = orthogonal(normals, long, short, 3)
    assert np.array_equal(ours, want if rows >= columns else want.T)


def test_plan_reports_the_cost_of_whole_matrices(tmp_path):
    """A plan reports the total cost and the matrix that needs most memory, in whatever order they are listed."""
    def told(*inits):
        lines = "".join(f"  w{n}: {init}\n" for n, init in enumerate(inits))
        (tmp_path / "plan.yaml").write_text(
            f"shardinit: 1\nname: m\ndtype: f32\nmodules:\n  v: {{shape: [9], init: ones}}\n{lines}")
        return run_json("plan", tmp_path / "plan.yaml")["orthogonal"]

    inits = ["{shape: [300, 40], init: orthogonal}", "{shape: [8, 8], init: orthogonal}",
             "{shape: [6, 700, 3], init: delta_orthogonal, in_axis: 0, out_axis: 1}"]
    alone = [told(init) for init in inits]
    largest = max(alone, key=lambda of: of["largest_memory"])
    assert len({of["largest_memory"] for of in alone}) == 3
    for order in itertools.permutations(inits):
        both = told(*order)
        assert both["tensors"] == 3 and both["operations"] == pytest.approx(sum(of["operations"] for of in alone))
        assert {key: both[key] for key in both if key.startswith("largest")} == {
            key: largest[key] for key in largest if key.startswith("largest")}


CUT = """modules:
  orthogonal: {shape: [512, 256], init: orthogonal, SHARD}
  wide: {shape: [256, 512], init: {orthogonal: {gain: relu}}, SHARD, dtype: bf16}
  delta: {shape: [512, 256, 3], init: delta_orthogonal, in_axis: 1, out_axis: 0, SHARD}
  sparse: {shape: [512, 256], init: {sparse: {sparsity: 0.3}}, SHARD}
  rows: {shape: [512, 256], init: {normalized: {axis: -1, length: 2}}, SHARD}
  columns: {shape: [512, 256], init: {normalized: {axis: 0}}, SHARD, dtype: bf16}
  middle: {shape: [6, 50, 70], init: {normalized: {axis: heads}}, axes: [x, heads, y], SHARD}
  eye: {shape: [512, 256], init: eye, SHARD}
  dirac: {shape: [512, 256, 3], init: dirac, SHARD}
  triangular: {shape: [512, 256], init: {expr: "where(row >= col, normal(), 0)"}, SHARD}
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("whole"), CUT.replace("SHARD", "shard: [a, b]"))


@pytest.mark.parametrize("mesh", ["a=4,b=1", "a=1,b=8", "a=3,b=5"])
def test_shards_of_whole_matrices_match(whole, mesh, tmp_path):
    cut = generate(tmp_path, CUT.replace("SHARD", "shard: [a, b], uneven: chunk"), "--mesh", mesh)
    assert cut.keys() == whole.keys()
    for path, values in cut.items():
        assert np.array_equal(values, whole[path]), path


def test_orthogonal_rows_or_columns_are_orthonormal(whole):
    q = whole["orthogonal"].astype(np.float64)
    assert np.abs(q.T @ q - np.eye(256)).max() < 3e-7
    q = whole["wide"].astype(np.float64)  # bf16 has 8 bits
    assert np.abs(q @ q.T - 2 * np.eye(256)).max() < 5e-3
    q = whole["delta"].astype(np.float64)
    assert np.abs(q[:, :, 1].T @ q[:, :, 1] - np.eye(256)).max() < 3e-7
    assert not q[:, :, ::2].any()


def test_sparse_matches_the_manual(whole, tmp_path):
    """Sparse matrices match the manual: a normal draw 0, and zeros at the smallest words of draw 1 in each column."""
    # The `where` takes draw 0, so `bits` is draw 1.
    drawn = generate(tmp_path, 'modules: {sparse: {shape: [512, 256], dtype: f64, init: {expr: '
                               '"where(normal() < 9, bits(), 0)"}}}\n')["sparse"]
    normal = generate(tmp_path, "modules: {sparse: {shape: [512, 256], init: {normal: {std: 0.01}}}}\n")["sparse"]
    zeros = math.ceil(0.3 * 512)
    keep = np.ones((512, 256), bool)
    np.put_along_axis(keep, np.argsort(drawn, axis=0, kind="stable")[:zeros], False, axis=0)
    assert np.array_equal(whole["sparse"], np.where(keep, normal, 0))
    # Every position is equally likely.
    counts = (whole["sparse"] == 0).sum(1)
    expected = scipy.stats.binom(256, zeros / 512).rvs(5000, random_state=1)
    assert scipy.stats.ks_2samp(counts, expected).pvalue > 1e-3
    assert abs(counts - 256 * zeros / 512).max() < 6 * math.sqrt(256 * 0.3 * 0.7)


@pytest.mark.parametrize("sparsity, zeros", [(0, 0), (1, 7), (1e-9, 1)])
def test_sparsity_at_its_limits(sparsity, zeros, tmp_path):
    drawn = generate(tmp_path, f"modules: {{w: {{shape: [7, 5], init: {{sparse: {{sparsity: {sparsity}}}}}}}}}\n")["w"]
    assert ((drawn == 0).sum(0) == zeros).all()


def test_normalized_matches_the_manual(whole, tmp_path):
    """Normalized matrices match the manual: normal draws, and sums of squares in eight parts."""
    for name, axis, length in [("rows", 1, 2), ("columns", 0, 1), ("middle", 1, 1)]:
        values = whole[name]
        normal = generate(tmp_path, f"modules: {{{name}: {{shape: {list(values.shape)}, init: {{normal: {{std: "
                                    f"1}}}}}}}}\n")
        x = np.moveaxis(normal[name].astype(np.float64), axis, 0)
        p = [np.add.accumulate(x[m::8] ** 2)[-1] for m in range(8)]
        n = ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]))
        want = np.moveaxis((x * (length / np.sqrt(n))).astype(np.float32), 0, axis)
        assert np.array_equal(values, want.astype(values.dtype)), name
    lengths = np.linalg.norm(whole["rows"].astype(np.float64), axis=1)
    assert np.abs(lengths - 2).max() < 1e-6
    # Each value is a coordinate of a point on a sphere, so its square has a beta distribution.
    for name, n in [("rows", 256), ("middle", 50)]:
        squares = (whole[name].astype(np.float64) / (2 if name == "rows" else 1)) ** 2
        assert scipy.stats.kstest(squares.ravel()[:20000], scipy.stats.beta(0.5, (n - 1) / 2).cdf).pvalue > 1e-3


def test_values_do_not_depend_on_memory(whole, tmp_path):
    """Little memory gives the same values. Each matrix needs more than 1M, so matrices are made one at a time, and
    again for each part."""
    text = CUT.replace("SHARD", "shard: [a, b], uneven: chunk")
    cut = generate(tmp_path, text, "--mesh", "a=16,b=2", "--memory", "1M", "--jobs", "3")
    for path, values in cut.items():
        assert np.array_equal(values, whole[path]), path


def alike(ours, theirs):
    """Traces are rounded, since every reflection of a plane has the trace 0."""
    return scipy.stats.ks_2samp(ours.round(5), theirs.round(5)).pvalue > 1e-3


# Haar's measure on matrices of size n, from which SciPy's ortho_group draws too.
@pytest.mark.parametrize("n", [2, 5])
def test_orthogonal_matrices_are_uniform(n, tmp_path):
    count = 1500
    drawn = generate(tmp_path, f"modules: {{m: {{repeat: {{i: {count}}}, w: {{shape: [{n}, {n}], init: "
                               f"orthogonal}}}}}}\n")
    ours = np.stack([drawn[f"m.{i}.w"] for i in range(count)]).astype(np.float64)
    theirs = scipy.stats.ortho_group.rvs(n, size=count, random_state=3)
    # Both signs of the determinant are equally likely.
    assert abs(np.linalg.det(ours).mean()) < 4 / math.sqrt(count)
    assert np.abs(np.abs(np.linalg.det(ours)) - 1).max() < 1e-6
    statistics = {"trace": lambda q: np.trace(q, axis1=1, axis2=2),
                  "trace of the square": lambda q: np.einsum("kij,kji->k", q, q),
                  "sum": lambda q: q.sum((1, 2))}
    for i, j in [(0, 0), (0, n - 1), (n - 1, 0), (n - 1, n - 1), (n // 2, 0)]:
        statistics[f"element {i}, {j}"] = lambda q, i=i, j=j: q[:, i, j]
    for name, statistic in statistics.items():
        assert alike(statistic(ours), statistic(theirs)), name
    # A rotation does not change the distribution.
    fixed = scipy.stats.ortho_group.rvs(n, random_state=5)
    for turned in (ours @ fixed, fixed @ ours):
        assert alike(statistics["trace"](turned), statistics["trace"](ours))
