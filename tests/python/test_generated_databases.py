"""Reads random arrays in OCDBT databases and zarr 3 that TensorStore and Orbax wrote.

Every element must be the one written, and unwritten chunks must have the fill value. A database with a changed byte
must give the same elements or be refused."""

import hashlib
import json
import os
import pathlib
import tempfile

import numpy as np
from clients import client_of
from generated import generated, given
from hypothesis import strategies as st
from support import run_ok, run_tool

ts = client_of("tensorstore")
ocp = client_of("orbax.checkpoint")

DTYPES = ["float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "int8", "int64", "uint32", "bool"]
DRIVERS = ["zarr", "zarr3", "sharded"]


@st.composite
def arrays(draw):
    """Draws names, types, shapes and chunks of arrays, and a seed for their bits."""
    names = draw(st.lists(st.sampled_from(["params.a", "params.layers.0.kernel", "b", "params.layers.10.kernel",
                                           "step_size"]),
                          min_size=1, max_size=5, unique=True))
    forms = {}
    for name in names:
        shape = draw(st.lists(st.sampled_from([1, 2, 3, 8, 33]), max_size=3))
        chunk = [draw(st.integers(1, extent)) for extent in shape]
        parts = [draw(st.integers(1, 3)) for _ in shape]
        forms[name] = (draw(st.sampled_from(DTYPES)), shape, chunk, parts)
    return forms, draw(st.integers(0, 1 << 30))


@st.composite
def databases(draw):
    """Draws a configuration of the database. Small nodes make deep trees; small values are stored in the nodes."""
    return {"max_decoded_node_bytes": draw(st.sampled_from([200, 400, 100_000])),
            "max_inline_value_bytes": draw(st.sampled_from([0, 40, 1024])),
            "version_tree_arity_log2": draw(st.sampled_from([1, 4])),
            "manifest_kind": draw(st.sampled_from(["single", "numbered"])),
            "compression": draw(st.sampled_from([None, {"id": "zstd", "level": 0}]))}


def description(driver, compressed, dtype, shape, chunk, parts, fill):
    """Returns an array's metadata for TensorStore."""
    if driver == "zarr":
        numpy_name = {"float8_e4m3fn": "float8_e4m3fn", "bfloat16": "bfloat16"}.get(dtype) or np.dtype(dtype).str
        return {"zarr_format": 2, "shape": shape, "chunks": chunk, "dtype": numpy_name, "order": "C", "filters": None,
                "fill_value": fill, "compressor": {"id": "zstd", "level": 1} if compressed else None}
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    codecs += [{"name": "zstd", "configuration": {"level": 3}}] if compressed else []
    grid = chunk
    if driver == "sharded":
        grid = [extent * count for extent, count in zip(chunk, parts)]
        codecs = [{"name": "sharding_indexed", "configuration": {
            "chunk_shape": chunk, "codecs": codecs,
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
            "index_location": "start" if sum(shape) % 2 else "end"}}]
    return {"shape": shape, "data_type": dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": grid}},
            "chunk_key_encoding": {"name": "default"}, "codecs": codecs, "fill_value": fill}


def random_values(dtype, shape, bits):
    numpy_type = ts.dtype(dtype).numpy_dtype
    size = numpy_type.itemsize * int(np.prod(shape))
    raw = bits.integers(0, 2 if dtype == "bool" else 256, size, dtype=np.uint8)
    return raw.view(numpy_type).reshape(shape)


def write(folder, driver, compressed, forms, seed, config, rows=None):
    """Writes the arrays, or only these rows, and returns the bytes of each."""
    bits = np.random.default_rng(seed)
    wanted = {}
    for name, (dtype, shape, chunk, parts) in forms.items():
        values = random_values(dtype, shape, bits)
        base = {"driver": "file", "path": f"{folder}/"}
        store = base if config is None else {
            "driver": "ocdbt", "base": base, "config": {k: v for k, v in config.items() if v is not None}}
        if config is None:
            store = {**base, "path": f"{folder}/{name}/"}
        spec = {"driver": "zarr" if driver == "zarr" else "zarr3", "kvstore": store,
                "metadata": description(driver, compressed, dtype, shape, chunk, parts,
                                        False if dtype == "bool" else 0),
                "store_data_equal_to_fill_value": rows is None}
        if config is not None:
            spec["path"] = f"{name}/"
        array = ts.open(spec, create=True).result()
        if rows is None or not shape:
            array[...].write(values).result()
        else:
            rows_here = min(rows, shape[0])
            values[rows_here:] = 0
            array[:rows_here].write(values[:rows_here]).result()
        wanted[name] = values.tobytes()
    return wanted


def tensor_digests(folder):
    lines = [line.split() for line in run_ok("digest", folder).stdout.splitlines()]
    return {path: digest for digest, path in lines if path != "(model)"}


@generated(25)
@given(case=st.tuples(arrays(), st.sampled_from(DRIVERS), st.booleans(), st.one_of(st.none(), databases()),
                      st.sampled_from([None, 1, 4])))
def test_random_ocdbt_and_zarr3_arrays_are_read(case):
    (forms, seed), driver, compressed, config, rows = case
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "in"
        wanted = write(folder, driver, compressed, forms, seed, config, rows)
        assert tensor_digests(folder) == {n: hashlib.sha256(data).hexdigest() for n, data in wanted.items()}


@generated(10)
@given(case=st.tuples(arrays(), st.sampled_from(DRIVERS), databases(), st.integers(0, 1 << 30), st.integers(1, 255)))
def test_damaged_ocdbt_manifests_are_detected(case):
    """A damaged manifest fails its checksum; of numbered manifests, only the newest is read."""
    (forms, seed), driver, config, at, change = case
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "in"
        write(folder, driver, True, forms, seed, config)
        wanted = tensor_digests(folder)
        manifests = sorted(folder.glob("manifest.*"))  # `manifest.ocdbt` is the last.
        file = manifests[at % len(manifests)]
        data = bytearray(file.read_bytes())
        data[at % len(data)] ^= change
        file.write_bytes(data)
        if file in manifests[-2:]:
            result = run_tool("digest", folder)
            assert result.returncode == 5 and "of an OCDBT database" in result.stderr, result
        else:
            assert tensor_digests(folder) == wanted


@generated(8)
@given(case=st.tuples(arrays(), st.booleans(), st.booleans(), st.booleans()))
def test_random_orbax_checkpoints_are_read(case):
    (forms, seed), use_ocdbt, use_zarr3, use_compression = case
    bits = np.random.default_rng(seed)
    tree = {name: random_values(dtype, shape, bits) for name, (dtype, shape, _, _) in forms.items()}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "in"
        ocp.PyTreeCheckpointer(use_ocdbt=use_ocdbt, use_zarr3=use_zarr3, use_compression=use_compression).save(folder,
                                                                                                               tree)
        wanted = {n: hashlib.sha256(values.tobytes()).hexdigest() for n, values in tree.items()}
        assert tensor_digests(folder) == wanted
        run_ok("convert", folder, "--to", "safetensors", "-o", pathlib.Path(name) / "out", "-q")
        assert tensor_digests(pathlib.Path(name) / "out") == wanted


def test_shards_with_too_many_chunks_are_rejected(tmp_path):
    """The index of a shard may be a hole in its file, so the number of chunks has a limit that does not depend on the
    disk."""
    (tmp_path / "w/c").mkdir(parents=True)
    (tmp_path / "w/zarr.json").write_text(json.dumps(
        {"zarr_format": 3, "node_type": "array",
         **description("sharded", True, "int8", [2**26], [1], [2**23], 0)}))
    for shard in range(8):
        with open(tmp_path / f"w/c/{shard}", "wb") as file:
            os.truncate(file.fileno(), 16 * 2**23 + 4)
    result = run_tool("inspect", tmp_path)
    assert result.returncode == 5 and "more than 4,194,304 chunks are missing or in shards" in result.stderr, result


def test_orbax_step_with_two_items_requires_a_choice(tmp_path):
    """A step with one item is read whatever its name is; of two items, the user must name one."""
    step = tmp_path / "100"
    ocp.PyTreeCheckpointer().save(step / "state", {"w": np.ones((2, 3), "f4")})
    assert tensor_digests(step) == tensor_digests(step / "state")
    ocp.PyTreeCheckpointer().save(step / "default", {"w": np.zeros((2, 3), "f4")})
    done = run_tool("digest", "100", cwd=tmp_path)
    assert done.returncode == 2 and "`100/default`, `100/state`" in done.stderr, done
