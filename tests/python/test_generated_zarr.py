"""`convert` reads random zarr 2 arrays with absent chunks, plain or as Orbax describes
them, as TensorStore does, or refuses undefined cases."""

import itertools
import json
import pathlib
import tempfile

import ml_dtypes
import numpy as np
from clients import client_of
from generated import generated, given
from hypothesis import strategies as st
from support import run_ok, run_tool
from test_generated_folders import bytes_of, safetensors_torch

tensorstore = client_of("tensorstore")

DTYPES = ["<f4", "<f8", "<f2", "bfloat16", "float8_e4m3fn", "float8_e5m2", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2",
          "<u4", "<u8", "|b1"]
FLOATS = [None, 0, 0.0, -0.0, 1, 1.5, -2, 0.1, "NaN", "Infinity", "-Infinity"]
NUMBERS = {"f": FLOATS, "b": FLOATS, "i": [None, 0, 1, -1, -128, 127], "u": [None, 0, 1, 255]}
LARGEST = {"<i8": [2**63 - 1, -2**63], "<u8": [2**64 - 1]}
METADATA = {"plain": None, "all": {"store_array_data_equal_to_fill_value": True},
            "some": {"store_array_data_equal_to_fill_value": False}, "old": {}}


def numpy_dtype(dtype):
    return np.dtype(dtype if dtype[0] in "<|" else getattr(ml_dtypes, dtype))


@st.composite
def arrays(draw):
    dtype = draw(st.sampled_from(DTYPES))
    kind = dtype.lstrip("<|")[0]
    fills = [None, False, True] if dtype == "|b1" else NUMBERS[kind] + LARGEST.get(dtype, [])
    if dtype == "float8_e4m3fn":
        fills = [fill for fill in fills if fill not in ("Infinity", "-Infinity")]
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 7]), max_size=3))
    chunks = [draw(st.integers(1, n + 1)) for n in shape]
    places = list(itertools.product(*(range(-(-n // c)) for n, c in zip(shape, chunks))))
    absent = draw(st.sets(st.sampled_from(places))) if draw(st.booleans()) else set()
    fill, separator = draw(st.sampled_from(fills)), draw(st.sampled_from([".", "/"]))
    return dtype, shape, chunks, fill, separator, places, absent


@generated(60)
@given(case=st.tuples(st.lists(arrays(), min_size=1, max_size=3), st.sampled_from(sorted(METADATA)),
                      st.integers(0, 1 << 30)))
def test_generated_zarr_arrays_are_read_exactly(case):
    forms, described, seed = case
    bits = np.random.default_rng(seed)
    wanted, is_defined = {}, True
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for number, (dtype, shape, chunks, fill, separator, places, absent) in enumerate(forms):
            array = folder / "in" / f"w{number}"
            array.mkdir(parents=True)
            (array / ".zarray").write_text(json.dumps(
                {"zarr_format": 2, "order": "C", "filters": None, "compressor": None, "dtype": dtype, "shape": shape,
                 "chunks": chunks, "fill_value": fill, "dimension_separator": separator}))
            size = int(np.prod(chunks)) * numpy_dtype(dtype).itemsize
            for place in places:
                file = array / (separator.join(map(str, place)) or "0")
                file.parent.mkdir(parents=True, exist_ok=True)
                if place not in absent:
                    file.write_bytes(bits.integers(0, 2 if dtype == "|b1" else 256, size, dtype=np.uint8).tobytes())
            store = tensorstore.open({"driver": "zarr", "kvstore": {"driver": "file", "path": str(array)}}).result()
            wanted[f"w{number}"] = store.read().result().tobytes()
            is_defined &= not absent or not (described == "all" or described == "plain" and fill is None)
        if METADATA[described] is not None:
            (folder / "in/_METADATA").write_text(json.dumps({"tree_metadata": {}, **METADATA[described]}))
        result = run_tool("convert", folder / "in", "--to", "safetensors", "-o", folder / "out")
        if not is_defined:
            assert result.returncode == 5 and "is missing" in result.stderr and not (folder / "out").exists(), result
            return
        assert result.returncode == 0, result
        found = safetensors_torch.load_file(folder / "out/model.safetensors")
        assert {tensor: bytes_of(t) for tensor, t in found.items()} == wanted
        assert ("fill value" in result.stderr) == any(form[-1] for form in forms), result
        run_ok("verify", folder / "out", "-q")
