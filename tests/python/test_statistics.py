"""Distributions match their definitions. Seeds are fixed, so a test that passes once always passes; bounds are five
standard errors of n samples."""

import ml_dtypes
import numpy as np
import pytest
import scipy.special
import scipy.stats

from support import DTYPES, FLOATS, reassemble, run_ok

ROWS = COLUMNS = 4096
N = ROWS * COLUMNS

SPEC = f"""
shardinit: 1
name: statistics
dtype: f32
mesh: {{axes: {{x: 2}}}}
rules:
  - {{rows: x}}
  - {{columns: null}}
modules:
  normal: {{shape: [{ROWS}, {COLUMNS}], axes: [rows, columns], init: {{normal: {{std: 0.02}}}}}}
  shifted: {{shape: [{ROWS}, {COLUMNS}], axes: [rows, columns], init: {{normal: {{mean: 3, std: 0.5}}}}}}
  uniform: {{shape: [{ROWS}, {COLUMNS}], axes: [rows, columns], init: {{uniform: {{low: -0.25, high: 0.75}}}}}}
  truncated: {{shape: [{ROWS}, {COLUMNS}], axes: [rows, columns], init: {{truncated_normal: {{std: 0.02}}}}}}
  lopsided: {{shape: [{ROWS}, {COLUMNS}], axes: [rows, columns], init: {{truncated_normal: {{mean: 1, std: 2, low: -0.5, high: 3}}}}}}
  torch: {{shape: [{ROWS}, {COLUMNS}], axes: [rows, columns], init: {{trunc_normal: {{std: 1, a: -1.5, b: 2.5}}}}}}
  tail: {{shape: [{COLUMNS}, 256], axes: [rows, null], init: {{truncated_normal: {{std: 1, low: 4, high: 6}}}}}}
"""

# Each dtype is generated once. The path is the same, and therefore the random stream.
STORAGE = """
shardinit: 1
name: storage
dtype: f32
modules:
  normal: {shape: [2048, 2048], init: {normal: {std: 0.02}}}
  subnormal: {shape: [65536], init: {normal: {std: 1e-6}}}  # In f16.
  uniform: {shape: [65536], init: {uniform: {low: -1, high: 1}}}
  truncated: {shape: [65536], init: {truncated_normal: {std: 0.02}}}
"""

class Truncated:
    """scipy.stats.truncnorm with a cdf that is fast enough for millions of values."""

    def __init__(self, low, high, mean, std):
        self.exact = scipy.stats.truncnorm(low, high, mean, std)
        self.low, self.high, self.mean, self.std = low, high, mean, std

    def stats(self, moments):
        return self.exact.stats(moments)

    def cdf(self, x):
        z, above = (x - self.mean) / self.std, self.low > 0  # above the mean, the other tail is exact
        a, b = scipy.special.ndtr([-self.low, -self.high] if above else [self.low, self.high])
        return (scipy.special.ndtr(-z if above else z) - a) / (b - a)


CONTINUOUS = {
    "normal": scipy.stats.norm(0, 0.02),
    "shifted": scipy.stats.norm(3, 0.5),
    "uniform": scipy.stats.uniform(-0.25, 1),
    "truncated": Truncated(-2, 2, 0, 0.02),
    "lopsided": Truncated(-0.5, 3, 1, 2),
    "torch": Truncated(-1.5, 2.5, 0, 1),
    "tail": Truncated(4, 6, 0, 1),
}


def generate(spec, folder, *arguments):
    """Returns path → flat array of every tensor of a spec."""
    (folder / "spec.yaml").write_text(spec)
    run_ok("gen", folder / "spec.yaml", "-o", folder / "out", *arguments)
    return {path: words.view(DTYPES[dtype]).reshape(-1)
            for path, (dtype, words) in reassemble(folder / "out").items()}


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    return generate(SPEC, tmp_path_factory.mktemp("statistics"))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return {dtype: generate(STORAGE, tmp_path_factory.mktemp(dtype), "--set", f"dtype={dtype}")
            for dtype in FLOATS}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_moments_match_the_distribution(name, tensors):
    x = tensors[name].astype(np.float64)
    n = x.size
    mean, variance, skew, kurtosis = (float(m) for m in CONTINUOUS[name].stats("mvsk"))
    std = variance ** 0.5
    z = (x - mean) / std
    assert np.isfinite(x).all()
    assert abs(z.mean()) < 5 / n ** 0.5
    # Standard errors of the second to fourth powers are taken from the sample.
    for power, expected in [(2, 1), (3, skew), (4, kurtosis + 3)]:
        powers = z ** power
        assert abs(powers.mean() - expected) < 5 * powers.std() / n ** 0.5, power


@pytest.mark.parametrize("name", CONTINUOUS)
def test_values_pass_kolmogorov_smirnov(name, tensors):
    x = np.sort(tensors[name]).astype(np.float64)
    n = x.size
    cdf = CONTINUOUS[name].cdf(x)
    ranks = np.arange(n + 1) / n
    distance = max((ranks[1:] - cdf).max(), (cdf - ranks[:-1]).max())
    assert scipy.stats.kstwobign.sf(distance * n ** 0.5) > 1e-3


def test_normal_tails_match(tensors):
    z = tensors["normal"].astype(np.float64) / 0.02
    for cut in [3, 4, 4.5]:
        p = 2 * scipy.stats.norm.sf(cut)
        assert abs((np.abs(z) > cut).sum() - N * p) < 5 * (N * p) ** 0.5
    assert 4.8 < np.abs(z).max() < 7


def test_values_are_within_their_bounds(tensors):
    def between(name, low, high):
        assert low <= tensors[name].min() and tensors[name].max() <= high

    between("uniform", -0.25, np.nextafter(np.float32(0.75), np.float32(0)))
    between("truncated", np.float32(-0.04), np.float32(0.04))
    between("lopsided", 0, 7)
    between("torch", -1.5, 2.5)
    between("tail", 4, 6)


# A wrong sign in one quadrant would pass every test of single values, so the pairs from one block of four words must be
# independent too.
@pytest.mark.parametrize("name", ["normal", "uniform", "truncated"])
def test_words_of_a_block_are_independent(name, tensors):
    mean, variance = (float(m) for m in CONTINUOUS[name].stats("mv"))
    z = ((tensors[name].astype(np.float64) - mean) / variance ** 0.5).reshape(-1, 4)
    bound = 5 / (N / 4) ** 0.5
    for i in range(4):
        for j in range(i):
            assert abs((z[:, i] * z[:, j]).mean()) < bound
            product = z[:, i] ** 2 * z[:, j]
            assert abs(product.mean()) < 5 * product.std() / (N / 4) ** 0.5


@pytest.mark.parametrize("pair", [(0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2)])
def test_angles_of_normal_pairs_are_uniform(pair, tensors):
    z = tensors["normal"].astype(np.float64).reshape(-1, 4)
    angle = np.arctan2(z[:, pair[1]], z[:, pair[0]]) / (2 * np.pi) + 0.5
    counts = np.histogram(angle, 360, (0, 1))[0]
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("lag", [1, 2, 4, 8, COLUMNS])
def test_values_are_not_correlated_at_a_distance(lag, tensors):
    z = tensors["normal"].astype(np.float64) / 0.02
    assert abs((z[:-lag] * z[lag:]).mean()) < 5 / N ** 0.5


def test_tensors_are_independent(tensors):
    a = tensors["normal"].astype(np.float64) / 0.02
    b = (tensors["shifted"].astype(np.float64) - 3) / 0.5
    assert abs((a * b).mean()) < 5 / N ** 0.5


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float64], ids=lambda t: t.__name__)
@pytest.mark.parametrize("name", ["normal", "subnormal", "uniform", "truncated"])
def test_storage_rounds_f32_once(name, dtype, stored):
    expected = stored["f32"][name].astype(dtype)
    actual = stored[{"bfloat16": "bf16", "float16": "f16", "float64": "f64"}[dtype.__name__]][name]
    assert actual.dtype == expected.dtype
    assert actual.tobytes() == expected.tobytes()


def test_f16_stores_subnormals(stored):
    small = np.abs(stored["f16"]["subnormal"].astype(np.float32))
    assert ((small > 0) & (small < 2.0 ** -14)).any()
