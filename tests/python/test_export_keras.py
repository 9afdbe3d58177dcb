"""Keras's load_weights reads `export --to keras` with the bits that `gen` writes, and files
have the same form as Keras's own."""

import contextlib
import hashlib
import io
import json
import os
import re

import h5py
import numpy as np
import pytest
from clients import client_of, gen_ok
from support import ROOT, reassemble, run_json, run_ok, run_tool, tree_of
from test_export import check_record

REPEATED = """
shardinit: 1
name: repeated
dtype: f32
mesh: {axes: {a: 2}}
rules: [{x: a}]
init: {n: {normal: {std: 0.5}}}
modules:
  layers.dense:
    repeat: {i: 3}
    vars:
      "0": {shape: [4, 4], init: n, axes: [x, null]}
      "1": {shape: [4], init: zeros}
  layers.embedding.vars.0: {shape: [64, 4096], init: n, axes: [null, x], dtype: bf16}
  layers.mask.vars.0: {shape: [3, 5], init: {expr: "row >= col"}, dtype: bool}
"""


@pytest.fixture(scope="module")
def repeated(tmp_path_factory):
    path = tmp_path_factory.mktemp("repeated") / "spec.yaml"
    path.write_text(REPEATED)
    return path


def export(spec, out, *arguments):
    run_ok("export", spec, "--to", "keras", "-o", out, *arguments)
    check_record(out)
    run_ok("verify", out)
    return out


def read_variables(path):
    """Maps each path to (type in the file, attributes, words) of its dataset."""
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            words = np.empty(item.shape, f"<u{item.dtype.itemsize}")
            item.id.read(h5py.h5s.ALL, h5py.h5s.ALL, words, mtype=item.id.get_type())
            found[name] = dict(item.attrs), words

    with h5py.File(path) as file:
        file.visititems(visit)
        types = {name: file[name].id.get_type() for name in found}
    return {name: (types[name], attributes, words) for name, (attributes, words) in found.items()}


def expected_words(folder):
    """Maps paths in Keras to words, for a checkpoint whose paths are Keras's."""
    return {path.replace(".", "/"): words for path, (_, words) in reassemble(folder).items()}


def assert_same_words(variables, expected):
    assert variables.keys() == expected.keys()
    for path, (_, _, words) in variables.items():
        assert words.shape == expected[path].shape and (words == expected[path]).all(), path


# Keras --------------------------------------------------------------------------


def make_model(keras):
    """Returns a model with many kinds of layers: attributes, lists, nested lists, variables
    of the model itself."""
    layers = keras.layers

    class Counters(layers.Layer):
        def build(self, shape):
            for i, dtype in enumerate(["int32", "uint8", "bool", "int8", "uint32"]):
                self.add_weight(shape=(3, 5), dtype=dtype, initializer="zeros", trainable=False, name=f"v{i}")

        def call(self, x):
            return x

    class Block(layers.Layer):
        def __init__(self, width, dtype):
            super().__init__(dtype=dtype)
            self.attention = layers.MultiHeadAttention(2, 8, dtype=dtype)
            self.norms = [layers.LayerNormalization(dtype=dtype), layers.RMSNormalization(dtype=dtype)]
            self.experts = [[layers.EinsumDense("abc,cd->abd", (None, width), dtype=dtype)] for _ in range(2)]
            self._out = layers.Dense(16, dtype=dtype)

        def build(self, shape):
            self.gate = self.add_weight(shape=(), name="gate")

        def call(self, x):
            x = self.norms[0](x + self.attention(x, x))
            return self.norms[1](x + self._out(self.experts[0][0](x) + self.experts[1][0](x))) * self.gate

    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(50, 16)(inputs)
    x = layers.Dropout(0.1)(x)
    x = Block(24, "bfloat16")(x)
    x = Block(32, "float32")(x)
    x = layers.BatchNormalization(dtype="float16")(Counters()(x))
    x = layers.Conv1D(8, 3)(x)
    return keras.Model(inputs, keras.Sequential([layers.Dense(8), layers.Dense(50)])(x))


def skeleton(model):
    """Returns the output of the snippet in the manual page."""
    page = (ROOT / "man/shardinit-export.1").read_text()
    (lines,) = re.findall(r"^\.Bd -literal -offset indent\n(import re.*?)^\.Ed", page, re.M | re.S)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(lines.replace("\\\\", "\\").replace("\\-", "-"), {"model": model})
    return out.getvalue()


@pytest.mark.filterwarnings("ignore")
def test_keras_loads_exported_weights(tmp_path, monkeypatch):
    keras = client_of("keras")
    # The constructors' values do not matter, and JAX takes long to compile them.
    for initializer in [keras.initializers.VarianceScaling, keras.initializers.RandomUniform]:
        monkeypatch.setattr(initializer, "__call__", lambda _, shape, dtype=None: keras.ops.zeros(shape, dtype))
    model = make_model(keras)
    text = skeleton(model)
    text = re.sub(r"(dtype: b?f\d+, init: )zeros", r"\1{normal: {std: 0.5}}", text)
    text = text.replace("init: zeros", "init: {expr: 'mod(row * 7 + col, 2)'}")
    (tmp_path / "spec.yaml").write_text(text)
    expected = expected_words(gen_ok(tmp_path / "spec.yaml", tmp_path))
    export(tmp_path / "spec.yaml", tmp_path / "one")
    export(tmp_path / "spec.yaml", tmp_path / "many", "--max-shard-size", "2KB")
    assert len(list((tmp_path / "many").glob("model_*.weights.h5"))) > 5
    ours = read_variables(tmp_path / "one/model.weights.h5")
    assert_same_words(ours, expected)
    for name in ["one/model.weights.h5", "many/model.weights.json"]:
        for variable in model.variables:
            variable.assign(np.full(variable.shape, 7))
        model.load_weights(tmp_path / name)
        model.save_weights(tmp_path / "saved.weights.h5")
        theirs = read_variables(tmp_path / "saved.weights.h5")
        assert_same_words(theirs, expected)
    for path, (datatype, attributes, _) in theirs.items():
        assert ours[path][0].equal(datatype) and ours[path][1] == attributes, path
    types = {str(keras.backend.standardize_dtype(v.dtype)) for v in model.variables}
    assert types >= {"float32", "float16", "bfloat16", "int32", "uint8", "bool", "int8", "uint32"}
    # Keras reports a missing layer.
    export(tmp_path / "spec.yaml", tmp_path / "few", "--only", "layers.embedding.**")
    with pytest.raises(ValueError, match="could not be loaded"):
        model.load_weights(tmp_path / "few/model.weights.h5")


def test_repeat_numbers_layers_like_keras(repeated, tmp_path):
    keras = client_of("keras")
    model = keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(4) for _ in range(3))])
    model.load_weights(export(repeated, tmp_path / "out", "--only", "layers.dense*.**") / "model.weights.h5")
    expected = {path: words for path, (_, words) in reassemble(gen_ok(repeated, tmp_path / "gen")).items()}
    for i, layer in enumerate(model.layers):
        for j, variable in enumerate(layer.variables):
            assert (np.asarray(variable.value).view("<u4") == expected[f"layers.dense.{i}.vars.{j}"]).all()


DTYPES = ["f32", "f64", "bf16", "f16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool"]


def test_keras_reads_every_exported_dtype(tmp_path):
    """Keras's own store reads every dtype; no backend has variables of all of them."""
    client_of("keras")
    from keras.src.saving.saving_lib import H5IOStore

    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: d\nmodules:\n" + "".join(
        f"  layers.x.vars.{i}: {{shape: [3, 7], dtype: {dtype}, init: {{expr: 'mod(index, 2)'}}}}\n"
        for i, dtype in enumerate(DTYPES)
    ) + "  vars.0: {shape: [], dtype: bf16, init: ones}\n")
    store = H5IOStore(export(tmp_path / "spec.yaml", tmp_path / "out") / "model.weights.h5")
    entry = store.get("layers/x")
    for i, dtype in enumerate(DTYPES):
        array = entry[str(i)]
        name = {"f": "float", "b": "bfloat", "i": "int", "u": "uint"}[dtype[0]] + re.sub("[a-z]", "", dtype)
        assert str(array.dtype) == ("bool" if dtype == "bool" else name)
        assert (array.astype(int) == np.arange(21).reshape(3, 7) % 2).all()
    root = store.get("")["0"]
    assert root.shape == () and str(root.dtype) == "bfloat16" and float(root) == 1
    store.close()


# Files --------------------------------------------------------------------------


def test_keras_export_bytes_do_not_depend_on_mesh_or_threads(repeated, tmp_path):
    """The bytes do not depend on mesh, threads, source or version of HDF5."""
    export(repeated, tmp_path / "spec")
    digest = hashlib.sha256((tmp_path / "spec/model.weights.h5").read_bytes()).hexdigest()
    assert digest == "87bb2311d0dfa3b3c52b69edd61a6f5d8fc651971df6719de99fb139155398c4"
    export(repeated, tmp_path / "mesh", "--mesh", "a=3", "--set", "uneven=chunk", "--jobs", "1", "--memory", "1M")
    assert (tmp_path / "mesh/model.weights.h5").read_bytes() == (tmp_path / "spec/model.weights.h5").read_bytes()
    export(gen_ok(repeated, tmp_path / "gen"), tmp_path / "folder")
    assert tree_of(tmp_path / "folder") == tree_of(tmp_path / "spec")
    assert run_json("export", repeated, "--to", "keras", "-o", tmp_path / "spec")["was_there"]
    names = {"spec", "mesh", "gen", "folder"}
    assert set(os.listdir(tmp_path)) == names, "a temporary folder was left"


def test_keras_export_does_not_cut_layers(repeated, tmp_path):
    out = export(repeated, tmp_path / "out", "--max-shard-size", "200")
    files = {p.name: read_variables(p) for p in out.glob("*.h5")}
    assert sorted(files) == [f"model_{i:05}.weights.h5" for i in range(4)]
    index = json.loads((out / "model.weights.json").read_text())
    assert index["weight_map"] == {
        "/" + path.rpartition("/")[0]: name for name, variables in files.items() for path in variables
    }
    assert index["metadata"]["total_size"] == sum(
        words.nbytes for variables in files.values() for _, _, words in variables.values()
    )
    one = read_variables(export(repeated, tmp_path / "one") / "model.weights.h5")
    assert_same_words({path: v for variables in files.values() for path, v in variables.items()},
          {path: words for path, (_, _, words) in one.items()})


@pytest.mark.parametrize("order", ["a0 b0 a1 b1 c0", "c0 b1 a1 b0 a0", "b0 a0 a1 c0 b1", "a1 c0 b0 b1 a0"])
@pytest.mark.parametrize("size", ["1", "40", "60", "80", "1G"])
def test_keras_export_keeps_scattered_variables_in_one_file(order, size, tmp_path):
    """All variables of a layer are in one file, in any order of the spec, and the map names
    that file."""
    lines = [f"  layers.{name[0]}.vars.{name[1]}: {{shape: [5], init: {{constant: {{value: {n}}}}}}}\n"
             for n, name in enumerate(order.split())]
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: x\ndtype: f32\nmodules:\n" + "".join(lines))
    out = export(tmp_path / "spec.yaml", tmp_path / "out", "--max-shard-size", size)
    found, files_of = {}, {}
    for file in sorted(out.glob("*.h5")):
        for path, (_, _, words) in read_variables(file).items():
            assert path not in found
            found[path] = words.view("<f4").tolist()
            files_of.setdefault(path.rpartition("/")[0], set()).add(file.name)
    assert found == {f"layers/{name[0]}/vars/{name[1]}": [n] * 5 for n, name in enumerate(order.split())}
    assert files_of.keys() == {f"layers/{layer}/vars" for layer in "abc"}
    assert all(len(files) == 1 for files in files_of.values())
    if size == "1G":
        assert os.listdir(out) and not (out / "model.weights.json").exists()
        return
    index = json.loads((out / "model.weights.json").read_text())
    assert index == {"metadata": {"total_size": 100},
                     "weight_map": {f"/{group}": min(files) for group, files in files_of.items()}}


def test_keras_export_numbers_paths_like_keras(tmp_path):
    """Path parts become Keras's numbers, unless they have leading zeros or come first."""
    names = {"layers.a.0.vars.0": "layers/a/vars/0", "layers.a.10.vars.0": "layers/a_10/vars/0",
             "layers.b.01.vars.0": "layers/b/01/vars/0", "layers.b.00.vars.0": "layers/b/00/vars/0",
             "layers.b.1.2.vars.0": "layers/b_1_2/vars/0", "layers.b.1.0.vars.0": "layers/b_1/vars/0",
             "0.c.vars.0": "0/c/vars/0", "layers.9999999999.vars.0": "layers_9999999999/vars/0"}
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: x\ndtype: f32\nmodules:\n" + "".join(
        f"  {path}: {{shape: [], init: {{constant: {{value: {n}}}}}}}\n" for n, path in enumerate(names)))
    found = read_variables(export(tmp_path / "spec.yaml", tmp_path / "out") / "model.weights.h5")
    assert {path: words.view("<f4").item() for path, (_, _, words) in found.items()} == {
        name: n for n, name in enumerate(names.values())}


@pytest.mark.parametrize("paths, message", [
    (["layers.dense.kernel"], "is not the path of a variable of Keras"),
    (["vars"], "is not the path of a variable of Keras"),
    (["layers.a.vars.1"], "is given without variable 0 of its layer"),
    (["layers.a.vars.0", "layers.a.vars.2"], "is given without variable 1 of its layer"),
    (["layers.a.0.vars.0", "layers.a.vars.0"], "are both `layers/a/vars/0` in Keras"),
    (["layers.a.1.vars.0", "layers.a_1.vars.0"], "are both `layers/a_1/vars/0` in Keras"),
    (["x.vars.a_1", "x.vars.a.1.vars.0"], "would be inside `x.vars.a_1` in Keras"),
])
def test_keras_export_rejects_paths_that_do_not_fit(paths, message, tmp_path):
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: x\ndtype: f32\nmodules:\n" + "".join(
        f"  {path}: {{shape: [2], init: zeros}}\n" for path in paths))
    result = run_tool("export", tmp_path / "spec.yaml", "--to", "keras", "-o", tmp_path / "out")
    assert result.returncode == 2 and message in result.stderr
    assert os.listdir(tmp_path) == ["spec.yaml"]


@pytest.mark.parametrize("dtype", ["f8e4m3fn", "f8e5m2"])
def test_keras_export_rejects_fp8(dtype, tmp_path):
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: x\ndtype: f32\nmodules:\n"
                                        "  layers.a.vars.0: {shape: [2], init: zeros}\n"
                                        f"  layers.b.vars.0: {{shape: [2], init: zeros, dtype: {dtype}}}\n")
    result = run_tool("export", tmp_path / "spec.yaml", "--to", "keras", "-o", tmp_path / "out")
    assert result.returncode == 2 and f"`layers.b.vars.0` is {dtype}, which Keras does not load\n" in result.stderr
