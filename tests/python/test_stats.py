"""Compares `shardinit stats` with NumPy and SciPy on the same elements."""

import json

import h5py
import numpy as np
import pytest
import safetensors.numpy
import scipy.stats

from support import DTYPES, datasets_in, read_raw, run_json, run_ok, run_tool, table_file

SPEC = """\
shardinit: 1
name: measured
mesh: {axes: {a: 3, b: 2}}
uneven: chunk
vars: {rows: 700, columns: 901}
modules:
"""
INITS = {
    "normal": ("{normal: {mean: 0.5, std: 0.25}}", scipy.stats.norm(0.5, 0.25)),
    "uniform": ("{uniform: {low: -1, high: 3}}", scipy.stats.uniform(-1, 4)),
    "truncated": ("{truncated_normal: {std: 2, low: -1, high: 2}}", scipy.stats.truncnorm(-1, 2, scale=2)),
    "constant": ("{constant: {value: 0.1}}", None),
    "ramp": ("{expr: 'row - col / 3'}", None),
}
FLOATS = ["f32", "f64", "f16", "bf16", "f8e5m2"]
for name, (init, _) in INITS.items():
    for dtype in FLOATS:
        SPEC += f"  {name}.{dtype}: {{shape: [rows, columns], init: {init}, dtype: {dtype}, shard: [b, a]}}\n"
INTEGERS = ["i8", "i16", "i64", "u8", "u32", "bool"]
for dtype in INTEGERS:
    low = -100 if dtype[0] == "i" else 0
    top = 2 if dtype == "bool" else 100
    SPEC += f"  digits.{dtype}: {{shape: [rows, 99], dtype: {dtype}, init: {{expr: 'mod(row * col, {top}) + {low}'}}}}\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stats")
    (folder / "spec.yaml").write_text(SPEC)
    run_ok("gen", folder / "spec.yaml", "-o", folder / "out")
    return folder


@pytest.fixture(scope="module")
def stats(made):
    return {t["path"]: t for t in run_json("stats", made / "spec.yaml")["tensors"]}


@pytest.mark.parametrize("name, dtype", [(name, dtype) for name in INITS for dtype in FLOATS] +
                         [("digits", dtype) for dtype in INTEGERS])
def test_stats_reports_moments_and_quantiles(name, dtype, made, stats):
    with h5py.File(made / "out/index.h5") as file:
        values = read_raw(file[f"{name}/{dtype}"]).view(DTYPES[dtype]).astype(np.float64).ravel()
    found = stats[f"{name}.{dtype}"]
    assert found["mean"] == pytest.approx(values.mean(), rel=1e-12, abs=1e-15)
    assert found["std"] == pytest.approx(0 if name == "constant" else values.std(), rel=1e-12)
    assert (found["min"], found["max"]) == (values.min(), values.max())
    assert found["not_finite"] == 0 and found["as_declared"]
    for part, value in found["quantiles"]:
        exact = np.quantile(values, part, method="inverted_cdf")
        assert value == exact if DTYPES[dtype].itemsize <= 2 else abs(value - exact) <= abs(exact) / 500
    heights, _ = np.histogram(values, bins=20, range=(found["min"], found["max"]))
    assert sum(found["histogram"]) == values.size
    if name != "constant" and dtype != "f8e5m2":  # bins cross the ends of bars
        assert np.abs(np.subtract(found["histogram"], heights)).max() < 0.02 * values.size


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["normal", "uniform", "truncated"])
def test_stats_fits_the_declared_distribution(name, dtype, made, stats):
    declared, found = INITS[name][1], stats[f"{name}.{dtype}"]
    assert found["declared"]["mean"] == pytest.approx(declared.mean(), rel=1e-12, abs=1e-15)
    assert found["declared"]["std"] == pytest.approx(declared.std(), rel=1e-12)
    if dtype in ("f32", "f64"):  # SciPy's test does not consider rounding
        with h5py.File(made / "out/index.h5") as file:
            values = read_raw(file[f"{name}/{dtype}"]).view(DTYPES[dtype]).astype(np.float64).ravel()
        exact = scipy.stats.kstest(values, declared.cdf)
        assert exact.statistic - 1e-3 < found["ks"]["distance"] <= exact.statistic + 1e-6
        assert found["ks"]["probability"] >= exact.pvalue - 0.01
    assert 1e-4 < found["ks"]["probability"] <= 1


def test_stats_of_a_checkpoint_equal_its_specs(made, stats):
    read = {t["path"]: t for t in run_json("stats", made / "out")["tensors"]}
    assert read.keys() == stats.keys()
    for path, found in read.items():
        # Boxes are read one by one, so sums are added in another order.
        for key in ["mean", "std"]:
            assert found.pop(key) == pytest.approx(stats[path][key], rel=1e-12, abs=1e-15)
        assert found == {k: v for k, v in stats[path].items() if k not in ("mean", "std")}


def test_stats_do_not_depend_on_threads(made):
    command = ["stats", made / "spec.yaml", "--set", "vars.rows=5000", "--json", "--only", "*.f32"]
    assert run_ok(*command, "--jobs", 1).stdout == run_ok(*command, "--jobs", 5).stdout


def test_stats_ignore_padding(tmp_path):
    """`stats` of a spec measures tensors as drawn, without the padding of `uneven: pad`."""
    (tmp_path / "spec.yaml").write_text(
        "shardinit: 1\nname: padded\nmesh: {axes: {data: 4}}\nuneven: pad\nmodules:\n"
        "  u: {shape: [5, 1000], dtype: f32, init: {uniform: {low: 1, high: 2}}, shard: [data, null]}\n")
    drawn, = run_json("stats", tmp_path / "spec.yaml")["tensors"]
    assert drawn["shape"] == [5, 1000] and drawn["min"] >= 1 and drawn["ks"]["probability"] > 1e-9 and drawn["as_declared"]
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "out")
    stored, = run_json("stats", tmp_path / "out")["tensors"]
    assert stored["shape"] == [8, 1000] and stored["min"] == 0 and stored["ks"] is stored["declared"] is None


def test_stats_finds_values_not_as_declared(made, tmp_path):
    run_ok("gen", made / "spec.yaml", "-o", tmp_path / "out", "--set", "mesh.axes.a=1", "--set", "mesh.axes.b=1")
    path = tmp_path / "out/ranks/rank-00000.h5"
    with h5py.File(path) as file:
        places = {name: (file[name.replace(".", "/")].id.get_offset(), DTYPES[name.split(".")[1]].itemsize)
                  for name in ["normal.bf16", "uniform.f32", "constant.f16", "truncated.f64"]}
    count = 700 * 901
    with open(path, "r+b") as file:
        for name, change in {"normal.bf16": lambda x: (x.view(np.uint16) + 1).astype("<u2"),  # one ulp
                             "uniform.f32": lambda x: np.where(np.arange(count) == 7, np.nan, x).astype("<f4"),
                             "constant.f16": lambda x: np.where(np.arange(count) == 7, 0, x).astype("<f2"),
                             "truncated.f64": lambda x: x}.items():
            offset, size = places[name]
            file.seek(offset)
            values = np.frombuffer(file.read(count * size), f"<{'u' if 'bf16' in name else 'f'}{size}")
            file.seek(offset)
            file.write(change(values).tobytes())
    result = run_tool("stats", tmp_path / "out")
    assert result.returncode == 1
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == [
        "normal.bf16", "uniform.f32", "constant.f16", "shardinit"]
    assert "1 element is NaN or infinite" in result.stderr
    assert "its values go from 0 to 0.0999755859375" in result.stderr


STORED = {  # stored tensors in which such elements are as declared
    "file_t": "{transpose: {of: file}}", "source_p": "{pad: {axis: 0, to: 6, of: source}}",
    "drawn_file": "{concat: {axis: 0, of: [drawn, file]}}", "parts_drawn": "{concat: {axis: 0, of: [parts, drawn]}}",
}
DRAWN = {
    "drawn_t": "{transpose: {of: drawn}}", "drawn_p": "{pad: {axis: 0, to: 6, of: drawn}}", "zeros": "zeros",
    "drawn_zeros": "{concat: {axis: 0, of: [drawn, zeros]}}", "zeros_drawn": "{concat: {axis: 0, of: [zeros, drawn]}}",
}


@pytest.mark.parametrize("layout", [[], ["--layout", "all"]], ids=["drawn", "stored"])
def test_stats_accepts_nonfinite_values_only_from_files(layout, tmp_path):
    numbers = np.arange(16, dtype="<f4").reshape(4, 4)
    numbers[2, 1] = np.inf
    (tmp_path / "base").mkdir()
    safetensors.numpy.save_file({"w": numbers}, tmp_path / "base/model.safetensors")
    modules = {"file": f"{{file: {table_file(tmp_path, numbers)}}}", "zeros": "zeros",
               "source": "{source: base, tensor: w}",
               "parts": "{parts: {of: [{source: base, tensor: w}]}}", "drawn": "{normal: {std: 1}}"}
    (tmp_path / "spec.yaml").write_text(
        "shardinit: 1\nname: x\ndtype: f32\nsources: {base: {path: base}}\nmodules:\n"
        + "".join(f"  {path}: {{shape: [4, 4], init: {init}}}\n" for path, init in modules.items())
        + "layouts:\n  all:\n" + "".join(f"    {path}: {{from: {view}}}\n" for path, view in (STORED | DRAWN).items()))
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "out", *layout)
    assert all(t["as_declared"] for t in run_json("stats", tmp_path / "out")["tensors"])
    assert all(t["as_declared"] for t in run_json("stats", tmp_path / "spec.yaml", *layout)["tensors"])
    with h5py.File(tmp_path / "out/ranks/rank-00000.h5", "r+") as file:
        for dataset in datasets_in(file):
            dataset[0, 0] = np.nan
    result = run_tool("stats", tmp_path / "out", "--json")
    tensors = json.loads(result.stdout)["tensors"]
    assert result.returncode == 1 and all(t["nan"] == 1 for t in tensors)
    assert {t["path"] for t in tensors if not t["as_declared"]} == (DRAWN.keys() if layout else {"drawn", "zeros"})


def test_stats_reports_a_missing_rank(made, tmp_path):
    run_ok("gen", made / "spec.yaml", "-o", tmp_path / "out", "--ranks", "0-4")
    result = run_tool("stats", tmp_path / "out")
    assert result.returncode == 2
    assert "rank 5" in result.stderr


@pytest.mark.parametrize("locale, bar", [({}, "#"), ({"LANG": "en_US.UTF-8"}, "█"),
                                         ({"LANG": "en_US.UTF-8", "LC_ALL": "C"}, "#")])
def test_stats_prints_a_histogram(locale, bar, made):
    text = run_ok("stats", made / "spec.yaml", "--only", "normal.bf16", env=locale).stdout
    lines = [line for line in text.splitlines() if bar in line]
    assert len(lines) >= 12 and max(map(len, lines)) == 80
