"""Reading a spec's sources: recorded digests are checked, only needed data is read, and a source that is changed,
replaced or truncated meanwhile gives its first values or an error."""

import hashlib
import json
import os
import shutil

import numpy as np
import pytest
import safetensors.numpy
from changing import changing, counted
from support import reassemble, run_json, run_ok, run_tool, sha256_of

RNG = np.random.default_rng(11)


def source(folder, **tensors):
    folder.mkdir(exist_ok=True)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


def write_spec(tmp_path, modules, path="model"):
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"shardinit: 1\nname: grown\ndtype: f32\nsources: {{base: {{path: {path}}}}}\nmodules: {modules}\n")
    return spec


@pytest.mark.parametrize("form", ["safetensors", "dcp", "zarr", "hdf5"])
@pytest.mark.parametrize("mesh", [1, 3])
def test_sources_are_checked_against_their_digests(tmp_path, form, mesh):
    """The record of an export or the receipts of a checkpoint are checked, for whole tensors and for shards by rows or
    columns."""
    table = RNG.normal(size=(30, 300)).astype(np.float32)
    folder = source(tmp_path / "in", w=table, v=np.ascontiguousarray(table.T))
    out = tmp_path / "model"
    run_ok("convert", folder, "--to", form, "--mesh", f"fsdp={mesh}", "--sharding", "fsdpv2", "-o", out)
    spec = write_spec(tmp_path, "{v: {shape: [300, 30], init: {source: base}}, "
                             "w: {shape: [300, 30], init: {source: base, index: [i1, i0]}}}")
    lines = run_ok("digest", spec).stdout.splitlines()
    assert [line.split()[0] for line in lines[:2]] == [hashlib.sha256(table.T.tobytes()).hexdigest()] * 2
    wanted = table[7, 40:60].tobytes()
    file, data = next((f, f.read_bytes()) for f in out.rglob("*") if f.is_file() and wanted in f.read_bytes())
    at = data.find(wanted) + 5
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])
    result = run_tool("gen", spec, "-o", tmp_path / "out")
    assert result.returncode == 1 and "`w` of source `base` has other data" in result.stderr, result
    assert file.name in result.stderr if mesh > 1 and form != "hdf5" else True
    assert not (tmp_path / "out/manifest.json").exists()
    # Without the record, the folder's data is accepted.
    if form != "hdf5":
        (out / "shardinit-export.json").unlink()
        run_ok("digest", spec)


@pytest.mark.parametrize("init, of", [
    ("{source: base, index: [i1, i0]}", lambda w: w.T), ("{expr: \"source('base', 'w', i1, i0)\"}", lambda w: w.T),
    # One source determines the positions of elements in the other.
    ("{expr: \"source('base', 'w', source('base', 'rows', i1), 2047 - i0) - source('base', 'w', i1, i0)\"}",
     lambda w: w[::-1, ::-1].T - w.T),
    # Here the element also needs values that are computed before the source's element is read.
    ("{expr: \"source('base', 'w', i1, i0) + index % 7\"}",
     lambda w: w.T + np.arange(w.size, dtype=np.float32).reshape(w.T.shape) % 7),
])
def test_permuted_sources_are_read_about_once(tmp_path, init, of):
    table = RNG.integers(-1000, 1000, size=(1024, 2048)).astype(np.float32)
    folder = source(tmp_path / "model", w=table, rows=np.arange(1024, dtype=np.float32)[::-1].copy())
    spec = write_spec(tmp_path, f"{{w: {{shape: [2048, 1024], init: {init}}}}}")
    log = tmp_path / "log"
    result = run_ok("digest", spec, "-j", "2", env=changing(folder, log=log))
    assert result.stdout.split()[0] == hashlib.sha256(np.ascontiguousarray(of(table)).tobytes()).hexdigest()
    # The tensor is read once for its digest, and once or twice for its values; two calls read it twice.
    times = 1 + 2.1 * init.count("'w'") if "expr" in init else 3.1
    assert sum(int(line.split()[2]) for line in log.read_text().splitlines()) < times * table.nbytes


@pytest.mark.parametrize("index", ["[6 - i0, i1]", "[i0, 4098 - i1]", "[i0, i1 ^ 1]",
                                   "[(i0 * 5) % 7, (i1 * 1021) % 4099]",
                                   "[(i0 * 5) % 7, ((i1 - i1 % 3) * 1021) % 4099]"])
def test_sources_can_be_read_in_any_order(tmp_path, index):
    """Elements are right in any order, also in orders that repeat cells, for more elements than one batch and a size
    that no power of two divides."""
    table = RNG.integers(0, 1 << 16, size=(7, 4099)).astype(np.float32)
    source(tmp_path / "model", w=table)
    index = index.replace("i1 ^ 1", "(i1 + 1 - 2 * (i1 % 2)) % 4099")
    within = index.replace("i1", "i2").replace("i0", "i1")
    spec = write_spec(tmp_path, f"{{w: {{shape: [301, 7, 4099], init: {{source: base, index: {within}}}}}, "
                             f"e: {{shape: [301, 7, 4099], init: {{expr: \"source('base', 'w', {within[1:-1]}) + "
                             f"i0\"}}}}}}")
    i, j = np.meshgrid(np.arange(7), np.arange(4099), indexing="ij")
    rows, columns = eval(index, {"i0": i, "i1": j})
    wanted = np.broadcast_to(table[rows, columns], (301, 7, 4099))
    made = {tensor["path"]: tensor["sha256"] for tensor in run_json("digest", spec)["tensors"]}
    assert made == {"w": sha256_of(wanted), "e": sha256_of(wanted + np.arange(301, dtype=np.float32)[:, None, None])}


# A block has 600 rows, and 256 are looked up at once. Each order is scattered in the rows that its condition selects.
ORDERS = {"i0 % 2 == 0": lambda i0: i0 % 2 == 0, "i0 < 200": lambda i0: i0 < 200, "i0 >= 200": lambda i0: i0 >= 200,
          "i0 >= 256 and i0 < 512": lambda i0: (i0 >= 256) & (i0 < 512)}


@pytest.mark.parametrize("order", ORDERS)
def test_source_lookups_are_not_reused_wrongly(tmp_path, order):
    """Lookups for earlier elements are not reused for later ones, nor lookups of one call for the other."""
    a, b = (RNG.integers(0, 100, size=600 * 4096).astype(np.uint8) for _ in range(2))
    source(tmp_path / "model", a=a, b=b)
    place = f"where({order}, index * 65521 % 2457600, index)"
    inits = {"w": f'{{source: base, tensor: a, index: ["{place}"]}}',
             "x": f"{{expr: \"source('base', 'a', {place}) + source('base', 'b', index)\"}}",
             "y": f"{{expr: \"source('base', 'a', index) + source('base', 'b', {place})\"}}"}
    spec = write_spec(tmp_path, "{" + ", ".join(f"{path}: {{shape: [600, 4096], dtype: u8, init: {init}}}"
                                             for path, init in inits.items()) + "}")
    near = np.arange(600 * 4096).reshape(600, 4096)
    places = np.where(ORDERS[order](np.arange(600)[:, None]), near * 65521 % near.size, near)
    made = {tensor["path"]: tensor["sha256"] for tensor in run_json("digest", spec)["tensors"]}
    assert made == {"w": sha256_of(a[places]), "x": sha256_of(a[places] + b[near]), "y": sha256_of(a[near] + b[places])}


SPEC = ("{a: {shape: [600, 500], init: {source: base}}, b: {shape: [500, 600], init: {source: base, tensor: a, index: "
        "[i1, i0]}}, "
        "c: {shape: [610, 500], init: {parts: {of: [{source: base, tensor: a}, {rows_like: {source: base, tensor: "
        "a}}]}}}}")


@pytest.mark.faults
@pytest.mark.parametrize("change", ["xor", "cut", "swap"])
def test_sources_changed_or_replaced_during_gen(tmp_path, change):
    folder = source(tmp_path / "model", a=RNG.normal(size=(600, 500)).astype(np.float32))
    file, other = folder / "model.safetensors", tmp_path / "other"
    old = file.read_bytes()
    spec = write_spec(tmp_path, SPEC)
    run = ["gen", spec, "-j", "1", "--memory", "4M", "-o"]
    run_ok(*run, tmp_path / "first", env=changing(folder, count=tmp_path / "reads"))
    reads = counted(tmp_path / "reads")[0]
    assert reads > 10
    at = len(old) // 2 + 2000
    outcomes = set()
    for read in sorted({2, 3, 4, reads - 1, reads, *range(5, reads, max(1, reads // 12))}):
        file.write_bytes(old)
        other.write_bytes(old[:at] + bytes([old[at] ^ 1]) + old[at + 1:])
        result = run_tool(*run, tmp_path / f"out{read}",
                          env=changing(folder, f"{read} {change} {file} {at if change != 'swap' else other}"))
        outcomes.add(result.returncode)
        if result.returncode:
            assert result.returncode in (3, 5) and "model.safetensors" in result.stderr, result.stderr
            assert not (tmp_path / f"out{read}/manifest.json").exists()
            continue
        # The receipt has the digest of the data that all values come from.
        (kept,) = json.loads((tmp_path / f"out{read}/ranks/rank-00000.json").read_text())["sources"]
        made = {path: words for path, (_, words) in reassemble(tmp_path / f"out{read}").items()}
        for of in made["a"], made["b"].T, made["c"][:600]:
            assert hashlib.sha256(np.ascontiguousarray(of).tobytes()).hexdigest() == kept["sha256"]
    assert outcomes <= {0, 3, 5} and (3 in outcomes or change == "swap")


@pytest.mark.faults
def test_gen_with_a_source_resumes_after_sigkill(tmp_path):
    """After a run is killed anywhere, the same command completes it with the same bytes."""
    folder = source(tmp_path / "model", a=RNG.normal(size=(600, 500)).astype(np.float32))
    spec = write_spec(tmp_path, SPEC)
    run = ["gen", spec, "-j", "2", "-o"]
    count = tmp_path / "count"
    run_ok(*run, tmp_path / "whole", env=changing(folder, count=count))
    wanted = {f.relative_to(tmp_path / "whole"): f.read_bytes() for f in (tmp_path / "whole").rglob("*") if f.is_file()}
    reads, steps = counted(count)
    kills = [("step", k) for k in sorted({1, 2, steps // 2, steps - 1, steps})]
    kills += [("read", k) for k in sorted({1, 2, reads // 2, reads})]
    for kind, kill in kills:
        out = tmp_path / f"out-{kind}-{kill}"
        how = changing(folder, kill=kill) if kind == "step" else changing(folder, f"{kill} kill - -")
        killed = run_tool(*run, out, env=how)
        assert killed.returncode < 0 or kind == "read", killed
        run_ok(*run, out)
        assert wanted == {f.relative_to(out): f.read_bytes() for f in out.rglob("*") if f.is_file()}, (kind, kill)
        shutil.rmtree(out)


@pytest.mark.faults
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("change", ["xor", "cut", "swap"])
def test_convert_rejects_sources_changed_meanwhile(tmp_path, change, recorded):
    """Transposed and joined tensors, with recorded digests and without."""
    folder = source(tmp_path / "in", a=RNG.normal(size=(600, 500)).astype(np.float32),
                    b=RNG.normal(size=(70, 500)).astype(np.float32))
    if recorded:
        run_ok("convert", folder, "--to", "safetensors", "-o", tmp_path / "export")
        folder = tmp_path / "export"
    spec = tmp_path / "spec.yaml"
    spec.write_text("""
shardinit: 1
name: turned
dtype: f32
modules: {a: {shape: [600, 500], init: zeros}, b: {shape: [70, 500], init: zeros}}
layouts:
  turned:
    t: {from: {transpose: {axes: [1, 0], of: a}}}
    j: {from: {concat: {axis: 0, of: [a, b]}}}
""")
    file, other = folder / "model.safetensors", tmp_path / "other"
    old = file.read_bytes()
    run = ["convert", folder, "--to", "dcp", "--spec", spec, "--layout", "turned", "-j", 1, "--memory", "4M"]
    run_ok(*run, "-o", tmp_path / "whole", env=changing(folder, count=tmp_path / "count"))
    wanted = run_ok("digest", tmp_path / "whole").stdout
    reads = counted(tmp_path / "count")[0]
    at = len(old) // 2
    for read in sorted({1, 2, 3, reads // 3, reads // 2, reads - 1, reads}):
        file.unlink()
        file.write_bytes(old)
        os.utime(file, (1_700_000_000, 1_700_000_000))
        other.write_bytes(old[:at] + bytes([old[at] ^ 1]) + old[at + 1:])
        os.utime(other, (1_700_000_000, 1_700_000_000))
        out = tmp_path / f"out-{read}"
        result = run_tool(*run, "-o", out,
                          env=changing(folder, f"{read} {change} {file} {at if change != 'swap' else other}"))
        if result.returncode == 0:
            assert run_ok("digest", out).stdout == wanted, read
        else:
            assert result.returncode in (1, 3, 5) and file.name in result.stderr, result
            assert not out.exists()
