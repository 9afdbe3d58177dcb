"""Tests each tensor of configs/expressions.yaml against its formula, computed with mpmath (50 digits) or NumPy integers
and rounded once, and against the libraries that define the formulas."""

import mpmath
import numpy as np
import pytest

import clients  # noqa: F401 (The package is the checkout's.)
from support import DTYPES, ROOT, reassemble, run_ok, run_tool

import shardinit

SPEC = ROOT / "configs/expressions.yaml"
mpmath.mp.dps = 50


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    out = tmp_path_factory.mktemp("expressions") / "out"
    run_ok("gen", SPEC, "-o", out)
    return {path: words.view(DTYPES[dtype]) for path, (dtype, words) in reassemble(out).items()}


def nearest(x):
    """Returns the f32 nearest to an mpmath number, rounded once, ties to even."""
    x = mpmath.mpf(x)
    if x == 0:
        return np.float32(0)
    ulp = mpmath.mpf(2) ** (max(mpmath.frexp(x)[1], -125) - 24)
    return np.float32(float(mpmath.nint(x / ulp) * ulp))


def ulp_distance(a, b):
    """Returns the distance in units of the last place between positive f32 arrays."""
    return np.abs(a.view(np.int32).astype(np.int64) - b.view(np.int32).astype(np.int64))


THETA, DIM, FACTOR, LOW, HIGH, OLD = 500000, 128, 8, 1, 4, 8192


def exact_inv_freq(i):
    return mpmath.power(THETA, mpmath.mpf(-2 * int(i)) / DIM)


def exact_llama3(i):
    f = exact_inv_freq(i)
    wavelength = 2 * mpmath.pi / f
    if wavelength > mpmath.mpf(OLD) / LOW:
        return f / FACTOR
    if wavelength < mpmath.mpf(OLD) / HIGH:
        return f
    smooth = (OLD / wavelength - LOW) / (HIGH - LOW)
    return (1 - smooth) * f / FACTOR + smooth * f


# Output of `_compute_llama3_parameters` of Transformers 5.23.0 with PyTorch 2.13.0 on a CPU, before and after scaling,
# in little-endian f32.
UNSCALED = np.frombuffer(bytes.fromhex(
    "0000803fc18a503fc6e1293f84630a3fbc77e13e7dabb73ee39e953e61c4733eb093463ea0c3213ea0c6033e"
    "9cb1d63dade4ae3d98788e3d671e683d84163d3dc8081a3d3ff5fa3c496fcc3c3989a63cc3a9873cec065d3c"
    "6d0d343c7fac123c4ff7ee3b76aac23b02949e3b352e813b2077523bdc722b3b41aa0b3b108ce33a215db93a"
    "2300973aea03763a8668483a8d41233abffd043a81acd8399981b039f8c88f396f426a39f4d43e3975741b39"
    "c345fd38f551ce386b12a8380fea8838c4105f3887b63538cb061438802bf1371076c437690aa037345f8237"
    "08685437a7072d3700f40c374da5e536c712bb36a7649836c2487836b0414a36ffc22436"), "<f4")
SCALED = np.frombuffer(bytes.fromhex(
    "0000803fc18a503fc6e1293f84630a3fbc77e13e7dabb73ee39e953e61c4733eb093463ea0c3213ea0c6033e"
    "9cb1d63dade4ae3d98788e3d671e683d84163d3dc8081a3d3ff5fa3c496fcc3c3989a63cc3a9873cec065d3c"
    "6d0d343c7fac123c4ff7ee3b76aac23b02949e3b352e813b2077523b06fd0d3b1dd1b33a9e97603ad295093a"
    "08f1a339d22d3b398668c8388d41a338bffd843881ac583899813038f8c80f386f42ea37f4d4be3775749b37"
    "c3457d37f5514e376b1228370fea0837c410df3687b6b536cb069436802b713610764436690a2036345f0236"
    "0868d435a707ad3500f48c354da56535c7123b35a7641835c248f834b041ca34ffc2a434"), "<f4")


@pytest.mark.parametrize("path, exact, theirs, differing, largest",
                         [("rope.inv_freq", exact_inv_freq, UNSCALED, 18, 1),
                          ("rope.inv_freq_llama3", exact_llama3, SCALED, 21, 3)])
def test_rope_is_correctly_rounded(tensors, path, exact, theirs, differing, largest):
    ours = tensors[path]
    assert np.array_equal(ours, [nearest(exact(i)) for i in range(DIM // 2)])
    # Transformers rounds at each step: a power, a division, and four more to interpolate. Where the results differ, its
    # result is farther from the exact value.
    ulps = ulp_distance(ours, theirs)
    assert (np.count_nonzero(ulps), ulps.max()) == (differing, largest)
    assert np.count_nonzero(ulps > 1) <= 2
    for i in np.flatnonzero(ulps):
        errors = [abs(mpmath.mpf(float(x[i])) - exact(i)) for x in (ours, theirs)]
        assert errors[0] < errors[1]


def test_rope_linear_scaling_is_correctly_rounded(tensors):
    want = [nearest(exact_inv_freq(i) / FACTOR) for i in range(DIM // 2)]
    assert np.array_equal(tensors["rope.inv_freq_linear"], want)


def test_rope_yarn_scaling_is_correctly_rounded(tensors):
    """YaRN frequencies are correctly rounded, and within 4 ulps of Transformers' `_compute_yarn_parameters`, which
    computes in f32."""
    ours, theta, dim, factor, old = tensors["rope.inv_freq_yarn"], 10000, 64, 40, 4096

    def dimension(turns):
        return dim * mpmath.log(old / (turns * 2 * mpmath.pi)) / (2 * mpmath.log(theta))

    low, high = max(mpmath.floor(dimension(32)), 0), min(mpmath.ceil(dimension(1)), dim - 1)
    assert (low, high) == (10, 23)
    for i in range(dim // 2):
        ramp = min(max((i - low) / (high - low), 0), 1)
        f = mpmath.power(theta, mpmath.mpf(-2 * i) / dim)
        assert ours[i] == nearest(f / factor * ramp + f * (1 - ramp)), i
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=64, num_attention_heads=1, max_position_embeddings=old * factor, rope_parameters={
        "rope_type": "yarn", "rope_theta": theta, "factor": factor, "original_max_position_embeddings": old,
        "beta_fast": 32, "beta_slow": 1})
    theirs, _ = rope._compute_yarn_parameters(config, "cpu")
    assert ulp_distance(ours, theirs.numpy()).max() <= 4


def test_sinusoidal_positions_are_correctly_rounded(tensors):
    ours = tensors["positions.sinusoidal"]
    rows, columns = ours.shape
    for row in range(0, rows, 7):
        for column in range(columns):
            angle = row * mpmath.power(10000, mpmath.mpf(-int(column - column % 2)) / columns)
            want = nearest(mpmath.cos(angle) if column % 2 else mpmath.sin(angle))
            assert ours[row, column] == want, (row, column)


def test_alibi_slopes_match_their_formula(tensors):
    # Press et al.'s code: start = 2^-(2^-(log2 n - 3)), start * start^i.
    assert np.array_equal(tensors["positions.alibi_slopes"],
                          [np.float32(2.0 ** (-0.5 * (i + 1))) for i in range(16)])


def test_relative_position_index_matches_swin(tensors):
    # As in Swin's WindowAttention.__init__.
    w = 7
    coordinates = np.stack(np.meshgrid(np.arange(w), np.arange(w), indexing="ij")).reshape(2, -1)
    relative = (coordinates[:, :, None] - coordinates[:, None, :]).transpose(1, 2, 0)
    relative = relative + (w - 1)
    relative[:, :, 0] *= 2 * w - 1
    assert np.array_equal(tensors["positions.relative_index"], relative.sum(-1))


def test_mamba_a_log_is_correctly_rounded(tensors):
    want = np.array([nearest(mpmath.log(n + 1)) for n in range(16)])
    assert np.array_equal(tensors["mamba.A_log"], np.tile(want, (256, 1)))


def test_mamba_dt_bias_has_its_distribution(tensors):
    bias = tensors["mamba.dt_bias"].astype(np.float64)
    dt = np.log1p(np.exp(bias))  # This is softplus.
    assert dt.min() >= 1e-3 * (1 - 1e-5) and dt.max() <= 0.1 * (1 + 1e-5)
    place = (np.log(dt) - np.log(1e-3)) / (np.log(0.1) - np.log(1e-3))
    # The places are the tensor's own uniform draws.
    assert abs(place.mean() - 0.5) < 4 / np.sqrt(12 * place.size)
    assert place.std() == pytest.approx(1 / np.sqrt(12), rel=0.15)


def test_mamba_dt_bias_matches_the_formula_of_its_draw(tensors, tmp_path):
    spec = tmp_path / "draw.yaml"
    spec.write_text("shardinit: 1\nname: x\ndtype: f32\n"
                    'modules: {mamba.dt_bias: {shape: [256], init: {expr: "uniform()"}}}\n')
    run_ok("gen", spec, "-o", tmp_path / "out")
    dtype, words = reassemble(tmp_path / "out")["mamba.dt_bias"]
    for u, got in zip(words.view(DTYPES[dtype]), tensors["mamba.dt_bias"]):
        log_dt = mpmath.mpf(float(u)) * (mpmath.log(0.1) - mpmath.log(0.001)) + mpmath.log(0.001)
        dt = max(mpmath.exp(log_dt), mpmath.mpf(1e-4))
        assert got == nearest(dt + mpmath.log(-mpmath.expm1(-dt)))


def test_hippo_legs_matrix_is_correctly_rounded(tensors):
    ours = tensors["mamba.hippo_legs"]
    n = ours.shape[0]
    want = np.zeros((n, n), np.float32)
    for i in range(n):
        for j in range(i):
            want[i, j] = -nearest(mpmath.sqrt((2 * i + 1) * (2 * j + 1)))
        want[i, i] = -(i + 1)
    assert np.array_equal(ours, want)


def test_lower_triangular_normal_matrix_is_zero_above(tensors):
    ours = tensors["matrices.lower_triangular_normal"]
    assert not np.triu(ours, 1).any()
    below = ours[np.tril_indices_from(ours)]
    assert (below != 0).all()
    assert abs(below.mean()) < 4 * 0.02 / np.sqrt(below.size)
    assert below.std() == pytest.approx(0.02, rel=0.06)


def test_band_and_block_diagonal_matrices_have_their_shape(tensors):
    band = tensors["matrices.band"]
    offset = np.abs(np.subtract.outer(np.arange(64), np.arange(64)))
    assert np.array_equal(band, offset <= 2)
    blocks = tensors["matrices.block_diagonal"]
    inside = np.kron(np.eye(4), np.ones((16, 16))).astype(bool)
    assert not blocks[~inside].any()
    # The two draws that are subtracted differ.
    assert np.count_nonzero(blocks[inside]) > 1020
    assert blocks[inside].std() == pytest.approx(1 / np.sqrt(6), rel=0.08)


def test_identity_count_and_dirac_match_their_definition(tensors):
    assert np.array_equal(tensors["matrices.identity"], 0.5 * np.eye(48, 64))
    assert np.array_equal(tensors["matrices.count"], 0.5 * np.arange(10))
    # torch.nn.init.dirac_(w, groups=2).
    want = np.zeros((8, 4, 3, 3))
    for group in range(2):
        for d in range(4):
            want[group * 4 + d, d, 1, 1] = 1
    assert np.array_equal(tensors["matrices.dirac"], want)


@pytest.mark.parametrize("mesh", ["data=1,tensor=1", "data=3,tensor=1", "data=2,tensor=5"])
def test_expressions_have_the_same_values_on_every_mesh(tensors, mesh, tmp_path):
    run_ok("gen", SPEC, "--mesh", mesh, "-o", tmp_path / "out")
    again = reassemble(tmp_path / "out")
    assert again.keys() == tensors.keys()
    for path, (dtype, words) in again.items():
        assert np.array_equal(words, tensors[path].view(words.dtype)), path


def test_gen_rejects_an_expression_that_is_nan(tmp_path):
    spec = tmp_path / "bad.yaml"
    spec.write_text("shardinit: 1\nname: x\ndtype: f32\n"
                    'modules: {w: {shape: [4, 3], init: {expr: "log(row * 3 + col - 4)"}}}\n')
    result = run_tool("gen", spec, "-o", tmp_path / "out")
    assert result.returncode == 2
    assert "element [0, 0] of `w` is nan, which f32 cannot hold" in result.stderr
    assert 'its initializer is {expr: "log(i0 * 3 + i1 - 4)"}' in result.stderr
    assert not (tmp_path / "out/manifest.json").exists()


def shapes(text):
    with shardinit.open_spec(text=text) as spec:
        return {path: tensor.global_shape for path, tensor in spec.tensors.items()}


def evaluate_as_extents(names, expressions):
    """Evaluates expressions of whole numbers as extents of tensors."""
    lines = [f"  t{i}: {{shape: ['{expression}'], init: zeros}}" for i, expression in enumerate(expressions)]
    found = shapes("shardinit: 1\nname: sized\ndtype: bool\nvars: {" + names + "}\nmodules:\n" + "\n".join(lines) + "\n")
    return [size for size, in found.values()]


@pytest.mark.parametrize("large", [2**53, 2**62, 2**63 - 2])
def test_integers_above_2_to_53_are_computed_exactly(large):
    """Comparisons and functions distinguish neighbouring whole numbers that round to one f64."""
    a, b = large, large + 1
    compared = {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "==": a == b, "!=": a != b}
    turned = {"<": b < a, "<=": b <= a, ">": b > a, ">=": b >= a, "==": b == a, "!=": b != a}
    expressions = [f"1 + (a {sign} b)" for sign in compared] + [f"1 + (b {sign} a)" for sign in turned]
    wanted = [1 + holds for holds in [*compared.values(), *turned.values()]]
    # Below 0 the order is reversed.
    expressions += [f"1 + (-a {sign} -b)" for sign in turned]
    wanted += [1 + holds for holds in turned.values()]
    for expression, value in [("max(a, b) - a", 1), ("max(b, a) - a", 1), ("b - min(a, b)", 1), ("b - min(b, a)", 1),
                              ("abs(-b) - a", 1), ("clip(b, a, b) - a", 1), ("clip(a, b, b) - a", 1),
                              ("floor(b) - a", 1), ("where(a == b, 2, 3)", 3), ("mod(b, a)", 1), ("ceil_div(b, a)", 2),
                              ("round_up(a, 1) - a + 1", 1), ("b / 1 - a", 1)]:
        expressions.append(expression)
        wanted.append(value)
    assert evaluate_as_extents(f"a: {a}, b: {b}", expressions) == wanted


def test_when_compares_integers_above_2_to_53_exactly():
    assert shapes("shardinit: 1\nname: when\ndtype: f32\nvars: {a: 9007199254740993}\nmodules:\n"
                   "  here: {shape: [1], init: zeros, when: a > 9007199254740992}\n"
                   "  gone: {shape: [1], init: zeros, when: a == 9007199254740992}\n") == {"here": (1,)}
