"""The distributions are what they are called. Seeds are fixed, so a test that
passes once passes always; bounds are five standard errors of n samples."""

import ml_dtypes
import numpy as np
import pytest
import scipy.stats

from support import DTYPES, Ok, Reassemble

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
  normal_bf16: {{shape: [{ROWS}, {COLUMNS}], axes: [rows, columns], dtype: bf16, key: normal, init: {{normal: {{std: 0.02}}}}}}
  normal_f16: {{shape: [{ROWS}, {COLUMNS}], axes: [rows, columns], dtype: f16, key: normal, init: {{normal: {{std: 0.02}}}}}}
  normal_f64: {{shape: [{ROWS}, {COLUMNS}], axes: [rows, columns], dtype: f64, key: normal, init: {{normal: {{std: 0.02}}}}}}
  small_f16: {{shape: [{COLUMNS}], axes: [columns], dtype: f16, init: {{normal: {{std: 1e-6}}}}}}
  small: {{shape: [{COLUMNS}], axes: [columns], key: small_f16, init: {{normal: {{std: 1e-6}}}}}}
  large_f16: {{shape: [{COLUMNS}], axes: [columns], dtype: f16, init: {{normal: {{std: 40000}}}}}}
  large: {{shape: [{COLUMNS}], axes: [columns], key: large_f16, init: {{normal: {{std: 40000}}}}}}
  shifted: {{shape: [{ROWS}, {COLUMNS}], axes: [rows, columns], init: {{normal: {{mean: 3, std: 0.5}}}}}}
  uniform: {{shape: [{ROWS}, {COLUMNS}], axes: [rows, columns], init: {{uniform: {{low: -0.25, high: 0.75}}}}}}
  truncated: {{shape: [{ROWS}, {COLUMNS}], axes: [rows, columns], init: {{truncated_normal: {{std: 0.02}}}}}}
  lopsided: {{shape: [{ROWS}, {COLUMNS}], axes: [rows, columns], init: {{truncated_normal: {{mean: 1, std: 2, low: -0.5, high: 3}}}}}}
  torch: {{shape: [{ROWS}, {COLUMNS}], axes: [rows, columns], init: {{trunc_normal: {{std: 1, a: -1.5, b: 2.5}}}}}}
  tail: {{shape: [{COLUMNS}, 256], axes: [rows, null], init: {{truncated_normal: {{std: 1, low: 4, high: 6}}}}}}
"""

CONTINUOUS = {
    "normal": scipy.stats.norm(0, 0.02),
    "shifted": scipy.stats.norm(3, 0.5),
    "uniform": scipy.stats.uniform(-0.25, 1),
    "truncated": scipy.stats.truncnorm(-2, 2, 0, 0.02),
    "lopsided": scipy.stats.truncnorm(-0.5, 3, 1, 2),
    "torch": scipy.stats.truncnorm(-1.5, 2.5, 0, 1),
    "tail": scipy.stats.truncnorm(4, 6, 0, 1),
}


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("statistics")
    (folder / "spec.yaml").write_text(SPEC)
    Ok("gen", folder / "spec.yaml", "-o", folder / "out")
    return {path: words.view(DTYPES[dtype]).reshape(-1)
            for path, (dtype, words) in Reassemble(folder / "out").items()}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_moments(name, tensors):
    x = tensors[name].astype(np.float64)
    n = x.size
    mean, variance, skew, kurtosis = (float(m) for m in CONTINUOUS[name].stats("mvsk"))
    std = variance ** 0.5
    z = (x - mean) / std
    assert np.isfinite(x).all()
    assert abs(z.mean()) < 5 / n ** 0.5
    # Standard errors of the second to fourth powers, from the sample itself.
    for power, expected in [(2, 1), (3, skew), (4, kurtosis + 3)]:
        powers = z ** power
        assert abs(powers.mean() - expected) < 5 * powers.std() / n ** 0.5, power


@pytest.mark.parametrize("name", CONTINUOUS)
def test_kolmogorov_smirnov(name, tensors):
    x = np.sort(tensors[name]).astype(np.float64)
    n = x.size
    cdf = CONTINUOUS[name].cdf(x)
    ranks = np.arange(n + 1) / n
    distance = max((ranks[1:] - cdf).max(), (cdf - ranks[:-1]).max())
    assert scipy.stats.kstwobign.sf(distance * n ** 0.5) > 1e-3


def test_tails_of_the_normal(tensors):
    z = tensors["normal"].astype(np.float64) / 0.02
    for cut in [3, 4, 4.5]:
        p = 2 * scipy.stats.norm.sf(cut)
        assert abs((np.abs(z) > cut).sum() - N * p) < 5 * (N * p) ** 0.5
    assert 4.8 < np.abs(z).max() < 7


def test_bounds(tensors):
    def Between(name, low, high):
        assert low <= tensors[name].min() and tensors[name].max() <= high

    Between("uniform", -0.25, np.nextafter(np.float32(0.75), np.float32(0)))
    Between("truncated", np.float32(-0.04), np.float32(0.04))
    Between("lopsided", 0, 7)
    Between("torch", -1.5, 2.5)
    Between("tail", 4, 6)


# A wrong sign in one quadrant passes every test of single values: the pairs
# that one block of four words makes must be independent too.
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
def test_no_correlation_at_a_distance(lag, tensors):
    z = tensors["normal"].astype(np.float64) / 0.02
    assert abs((z[:-lag] * z[lag:]).mean()) < 5 / N ** 0.5


def test_tensors_are_independent(tensors):
    a = tensors["normal"].astype(np.float64) / 0.02
    b = (tensors["shifted"].astype(np.float64) - 3) / 0.5
    assert abs((a * b).mean()) < 5 / N ** 0.5


@pytest.mark.parametrize("name, source, dtype", [
    ("normal_bf16", "normal", ml_dtypes.bfloat16),
    ("normal_f16", "normal", np.float16),
    ("normal_f64", "normal", np.float64),
    ("small_f16", "small", np.float16),   # Subnormals of f16.
    ("large_f16", "large", np.float16),   # Overflow to infinity.
])
def test_storage_is_one_rounding_of_f32(name, source, dtype, tensors):
    with np.errstate(over="ignore"):
        expected = tensors[source].astype(dtype)
    assert tensors[name].dtype == expected.dtype
    assert tensors[name].tobytes() == expected.tobytes()


def test_overflow_and_subnormals_were_there(tensors):
    assert np.isinf(tensors["large_f16"]).any()
    small = np.abs(tensors["small_f16"].astype(np.float32))
    assert ((small > 0) & (small < 2.0 ** -14)).any()
