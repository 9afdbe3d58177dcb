"""`verify --spec` compares folders of safetensors files, DCP files and zarr arrays, written by shardinit and others,
with a spec, and rejects malicious files."""

import json
import pickle
import random
import shutil
import struct

import pytest
from clients import client_of
from support import AWKWARD, reassemble, run_json, run_ok, run_tool
from test_export import read_safetensors

NAMES = {"f32": "F32", "f64": "F64", "f16": "F16", "bf16": "BF16"}


def write_safetensors(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_tensors(path, tensors):
    """Writes a file as other tools do: unaligned and in another order."""
    header, data = {}, b""
    for name, (dtype, words) in sorted(tensors.items(), reverse=True):
        header[name] = {"dtype": NAMES[dtype], "shape": list(words.shape),
                        "data_offsets": [len(data), len(data) + words.nbytes]}
        data += words.tobytes()
    write_safetensors(path, header, data)


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    path = tmp_path_factory.mktemp("verify") / "spec.yaml"
    path.write_text(AWKWARD)
    return path


@pytest.fixture(scope="module")
def tensors(spec):
    run_ok("export", spec, "--to", "safetensors", "-o", spec.parent / "out")
    return read_safetensors(spec.parent / "out/model.safetensors")[0]


def verify(folder, spec, *arguments):
    return run_tool("verify", folder, "--spec", spec, *arguments)


@pytest.mark.parametrize("make", [
    ["export", "--to", "safetensors"],
    ["export", "--to", "safetensors", "--max-shard-size", "20KB"],
    ["export", "--to", "hf-dcp", "--mesh", "a=3,b=5"],
    ["export", "--to", "dcp", "--mesh", "a=3,b=5"],
    ["export", "--to", "zarr"],
    ["export", "--to", "zarr", "--mesh", "a=5,b=17"],
    ["gen"],
    ["gen", "--mesh", "a=3,b=5", "--replicas", "full"],
], ids=" ".join)
def test_verify_finds_own_folders_equal(make, spec, tensors, tmp_path):
    run_ok(make[0], spec, "-o", tmp_path / "out", *make[1:])
    result = run_json("verify", tmp_path / "out", "--spec", spec)
    assert result["equal"] and result["findings"] == []
    assert result["tensors"] == len(tensors)
    assert result["bytes"] == sum(words.nbytes for _, words in tensors.values())
    result = verify(tmp_path / "out", spec, "--set", "seed=1")
    assert result.returncode == 1
    for path in tensors:
        drawn = path not in ("zeros", "constant")
        assert (f"{path} has other values: sha256 " in result.stderr) == drawn


def test_verify_accepts_safetensors_of_other_tools(spec, tensors, tmp_path):
    write_tensors(tmp_path / "weights.safetensors", tensors)
    assert f"{tmp_path}: equal to awkward: 11 tensors" in run_ok("verify", tmp_path, "--spec", spec).stdout
    torch, library = client_of("torch"), client_of("safetensors.torch")
    whole = library.load_file(tmp_path / "weights.safetensors")
    library.save_file({k: v + 0 for k, v in whole.items()}, tmp_path / "weights.safetensors")
    run_ok("verify", tmp_path, "--spec", spec)
    whole["deep"].flatten()[70] += torch.finfo(torch.float32).eps
    library.save_file(whole, tmp_path / "weights.safetensors")
    result = verify(tmp_path, spec)
    assert result.returncode == 1
    assert "weights.safetensors: deep has other values" in result.stderr and "1 finding\n" in result.stderr


def test_verify_names_all_differences(spec, tensors, tmp_path):
    changed = dict(tensors)
    del changed["short"]
    changed["extra.\u202eweight"] = tensors["vector"]
    changed["cube"] = ("bf16", tensors["cube"][1])
    changed["matrix"] = ("f64", tensors["matrix"][1].T.copy())
    changed["wide"] = ("bf16", tensors["wide"][1] ^ 1)
    write_tensors(tmp_path / "a.safetensors", changed)
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {k: "a.safetensors" for k in changed if k != "deep"}}))
    result = json.loads(verify(tmp_path, spec, "--json").stdout)
    found = {f["tensor"]: f["message"] for f in result["findings"]}
    assert found.pop("wide").startswith("has other values: sha256 ")
    assert found == {
        "short": "is missing",
        "extra.\\u202eweight": "is not in the spec",
        "cube": "is BF16 [5, 6, 7], but the spec has F16 [5, 6, 7]",
        "matrix": "is F64 [17, 33], but the spec has F64 [33, 17]",
        "deep": "is not listed",
    }


def test_verify_rejects_strict_and_signers_without_a_plan(spec, tensors, tmp_path):
    """`--strict` and `--signers` are rejected for a folder without a plan, which has no list of names and nothing that
    could be signed."""
    write_tensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "signers").touch()
    for options, message in (
            (["--strict"], "`--strict` checks the names of files, and `--spec` checks tensors: give one of them\n"
                           "  hint: without `--spec` an export is compared with its own list\n"),
            (["--signers", tmp_path / "signers"],
             "`--signers` checks the manifest of a checkpoint, but there is none\n"
             "  hint: without `--spec` the record of an export is compared with its signature\n")):
        done = run_tool("verify", tmp_path, "--spec", spec, *options)
        assert done.returncode == 2 and done.stdout == "" and done.stderr.endswith(f"shardinit: error: {message}"), done


def test_verify_rejects_unfinished_checkpoint_with_a_record(spec, tmp_path):
    """A folder with a plan is an unfinished checkpoint, even if it contains an export's record."""
    folder = tmp_path / "out"
    run_ok("gen", spec, "-o", folder, "--ranks", "0")
    alone = run_tool("verify", folder)
    (folder / "shardinit-export.json").write_text("{}")
    done = run_tool("verify", folder)
    assert alone.returncode == done.returncode and alone.returncode != 0, (alone, done)
    assert "manifest.json" in done.stderr and "manifest.json" in alone.stderr and "shardinit-export.json` " not in done.stderr, done


def test_verify_with_a_spec_finds_damage(spec, tmp_path):
    run_ok("gen", spec, "-o", tmp_path / "gen")
    with open(tmp_path / "gen/ranks/rank-00001.h5", "r+b") as file:
        file.write(b"x")
    result = verify(tmp_path / "gen", spec)
    assert result.returncode == 1 and "is damaged: 1 finding" in result.stderr


def test_verify_rejects_folders_without_tensors(spec, tmp_path):
    result = verify(tmp_path, spec)
    assert result.returncode == 2 and "contains no safetensors files" in result.stderr
    assert verify(tmp_path / "missing", spec).returncode in (2, 3)
    result = run_tool("verify", tmp_path, "--set", "seed=1")
    assert result.returncode == 2 and "add `--spec SPEC`" in result.stderr


# Hostile files -----------------------------------------------------------------

ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
EIGHT = bytes(8)
HOSTILE = {
    "empty": b"",
    "seven bytes": bytes(7),
    "no header": bytes(8),
    "length 2^63": struct.pack("<Q", 1 << 63) + b"{}",
    "length 2^64 - 1": struct.pack("<Q", (1 << 64) - 1) + b"{}",
    "length past the end": struct.pack("<Q", 3) + b"{}",
    "not JSON": b"{]",
    "not an object": b"[1]",
    "bad UTF-8": b'{"\xff": 1}',
    "deep": b'{"a": ' + b"[" * 9999 + b"]" * 9999 + b"}",
    "same name twice": b'{"a": %s, "a": %s}' % ((json.dumps(ONE).encode(),) * 2),
    "entry is a number": {"a": 1},
    "no shape": {"a": {"dtype": "F32", "data_offsets": [0, 8]}},
    "dtype is a number": {"a": {**ONE, "dtype": 1}},
    "shape is negative": {"a": {**ONE, "shape": [-2]}},
    "shape is a fraction": {"a": {**ONE, "shape": [2.0]}},
    "shape is 2^64": {"a": {**ONE, "shape": [1 << 64]}},
    "product is 2^64": {"a": {**ONE, "shape": [1 << 32, 1 << 32]}},
    "product is 2^62": {"a": {**ONE, "shape": [1 << 31, 1 << 31]}},
    "product is 2^122 times 0": {"a": {**ONE, "shape": [1 << 61, 1 << 61, 0]}},
    "99 dimensions": {"a": {**ONE, "shape": [1] * 99}},
    "other size": {"a": {**ONE, "shape": [3]}},
    "offsets backwards": {"a": {**ONE, "data_offsets": [8, 0]}},
    "offsets negative": {"a": {**ONE, "data_offsets": [-8, 0]}},
    "offsets past the end": {"a": {**ONE, "data_offsets": [8, 16]}},
    "offsets huge": {"a": {**ONE, "data_offsets": [(1 << 64) - 8, (1 << 64) - 1]}},
    "three offsets": {"a": {**ONE, "data_offsets": [0, 4, 8]}},
    "overlap": {"a": ONE, "b": ONE},
    "gap": {"a": {**ONE, "shape": [1], "data_offsets": [4, 8]}},
    "bytes left over": {"a": {**ONE, "shape": [1], "data_offsets": [0, 4]}},
    "metadata is text": {"__metadata__": "x", "a": ONE},
    "sharding info is no JSON": {"__metadata__": {"DCP_SHARDING_INFO": "{"}, "a": ONE},
    "sharding info lacks it": {"__metadata__": {"DCP_SHARDING_INFO": "{}"}, "a": ONE},
    "sharding info of another rank":
        {"__metadata__": {"DCP_SHARDING_INFO": '{"a": {"saved_offsets": [0, 0]}}'}, "a": ONE},
    "sharding info out of range":
        {"__metadata__": {"DCP_SHARDING_INFO": '{"a": {"saved_offsets": [4611686018427387903]}}'}, "a": ONE},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_verify_rejects_malicious_safetensors(name, spec, tmp_path):
    header, path = HOSTILE[name], tmp_path / "bad.safetensors"
    if isinstance(header, bytes) and header[:1] not in (b"{", b"["):
        path.write_bytes(header)
    else:
        write_safetensors(path, header, EIGHT)
    result = verify(tmp_path, spec)
    assert result.returncode == 5, result.stdout + result.stderr
    assert result.stderr.startswith("shardinit: error: ") and "bug" not in result.stderr


def test_verify_rejects_ambiguous_folders(spec, tensors, tmp_path):
    write_tensors(tmp_path / "a.safetensors", tensors)
    write_tensors(tmp_path / "b.safetensors", {"vector": tensors["vector"]})
    result = verify(tmp_path, spec)
    assert result.returncode == 2 and "contains 2 sets of tensors" in result.stderr
    for name in "ab":
        (tmp_path / f"{name}.safetensors").rename(tmp_path / f"model-0000{'ab'.index(name) + 1}-of-00002.safetensors")
    result = verify(tmp_path, spec)
    assert result.returncode == 5 and "`vector` is in `" in result.stderr
    for number in (1, 2):
        (tmp_path / f"model-0000{number}-of-00002.safetensors").unlink()
    write_tensors(tmp_path / "a.safetensors", tensors)
    for text in ["[]", "{", '{"weight_map": 1}']:
        (tmp_path / "model.safetensors.index.json").write_text(text)
        assert verify(tmp_path, spec).returncode == 5
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "b.safetensors").mkdir()
    result = verify(tmp_path, spec)
    assert result.returncode == 2 and "contains 2 sets of tensors" in result.stderr


def damaged(good, generator, ends, signs):
    """Changes a few places, most of them before one of `ends`. A byte may become one of `signs`."""
    data = bytearray(good)
    for _ in range(generator.choice([1, 1, 2, 5])):
        at = generator.randrange(generator.choice([*ends, len(data)]))
        kind = generator.randrange(4)
        if kind == 0:
            data[at] ^= 1 << generator.randrange(8)
        elif kind == 1:
            data[at] = generator.choice(signs)
        elif kind == 2:
            del data[at : at + generator.randrange(1, 9)]
        else:
            data[at:at] = data[at : at + generator.randrange(1, 40)]
    return data


def test_mutated_safetensors_never_crash(spec, tensors, tmp_path):
    generator = random.Random(6)
    write_tensors(tmp_path / "good", {k: tensors[k] for k in ["vector", "short", "deep"]})
    good = (tmp_path / "good").read_bytes()
    header = 8 + struct.unpack_from("<Q", good)[0]
    seen = set()
    for _ in range(150):
        data = damaged(good, generator, [8, header, header], b'0123456789"[]{},:-e.\\\x00\xff')
        (tmp_path / "x.safetensors").write_bytes(data)
        result = verify(tmp_path, spec, "--jobs", 1)
        assert result.returncode in (0, 1, 5), result.stderr
        seen.add(result.returncode)
    assert seen >= {1, 5}


# zarr ---------------------------------------------------------------------------

DESCRIPTION = {"zarr_format": 2, "shape": [3], "chunks": [2], "dtype": "<f4", "order": "C",
               "compressor": None, "filters": None, "fill_value": None}


def test_verify_accepts_zarr_arrays_of_tensorstore(spec, tensors, tmp_path):
    """TensorStore's arrays are accepted, with chunks that extend beyond the arrays, and differences are found."""
    ts = client_of("tensorstore")
    for path, (dtype, words) in tensors.items():
        chunks = [min(n, 1 + 2 * d + n // 3) for d, n in enumerate(words.shape)]
        array = ts.open({
            "driver": "zarr", "kvstore": {"driver": "file", "path": f"{tmp_path}/{path}/"},
            "metadata": {"compressor": None, "shape": words.shape, "chunks": chunks, "dtype":
                         {"f32": "<f4", "f64": "<f8", "f16": "<f2", "bf16": "bfloat16"}[dtype],
                         "dimension_separator": "./"[len(path) % 2]}}, create=True).result()
        array.write(words.view(array.dtype.numpy_dtype)).result()
    result = run_json("verify", tmp_path, "--spec", spec)
    assert result["equal"] and result["tensors"] == len(tensors)
    (tmp_path / "cube").rename(tmp_path / "extra.\u202ecube")
    place = tmp_path / "whole/2"
    place.write_bytes(bytes(1) + place.read_bytes()[1:])
    text = (tmp_path / "short/.zarray").read_text()
    (tmp_path / "short/.zarray").write_text(text.replace("bfloat16", "<i2"))
    found = {f["tensor"]: f["message"] for f in json.loads(verify(tmp_path, spec, "--json").stdout)["findings"]}
    assert found.pop("whole").startswith("has other values: sha256 ")
    assert found == {"cube": "is missing", "extra.\\u202ecube": "is not in the spec",
                     "short": "is <i2 [3], but the spec has bfloat16 [3]"}


@pytest.mark.parametrize("change, message", [
    ("[", "JSON"),
    ([], "its `zarr_format` is not 2"),
    ({"zarr_format": 3}, "its `zarr_format` is not 2"),
    ({"compressor": {"id": "blosc"}}, "shardinit reads the compressor zstd, but its `compressor` is"),
    ({"filters": [{}]}, "shardinit does not read its `filters`"),
    ({"order": "F"}, "its `order` is not C"),
    ({"dimension_separator": "/../"}, "its `dimension_separator` is neither `.` nor `/`"),
    ({"dtype": 4}, "its `dtype` is not text"),
    ({"shape": [-3]}, "its `shape` must be a list of sizes"),
    ({"shape": 3}, "its `shape` must be a list of sizes"),
    ({"shape": [1] * 33, "chunks": [1] * 33}, "its `shape` must be a list of sizes"),
    ({"shape": [1 << 40, 1 << 40]}, "its `shape` must be a list of sizes"),
    ({"shape": [(1 << 64) - 1]}, "its `shape` must be a list of sizes"),
    ({"chunks": [0]}, "its `chunks` must be a list of sizes"),
    ({"chunks": [2.5]}, "its `chunks` must be a list of sizes"),
    ({"chunks": [1 << 47, 1 << 47]}, "its `chunks` must be a list of sizes"),
    ({"chunks": [2, 2]}, "do not have as many dimensions"),
    ({"chunks": [3]}, "its chunk `0` has 8 bytes instead of 12"),
    ({"dtype": "<f8"}, "its chunk `0` has 8 bytes instead of 16"),
    ({"shape": [1 << 40]}, "its chunk `2` is missing"),
], ids=str)
def test_verify_rejects_malicious_zarr_arrays(change, message, spec, tmp_path):
    (tmp_path / "vector").mkdir()
    for name in "01":
        (tmp_path / "vector" / name).write_bytes(EIGHT)
    text = change if change == "[" else json.dumps({**DESCRIPTION, **change} if change else change)
    (tmp_path / "vector/.zarray").write_text(text)
    result = verify(tmp_path, spec)
    assert result.returncode == 5 and message in result.stderr, result.stderr
    assert result.stderr.startswith("shardinit: error: ")


# torch.distributed.checkpoint -----------------------------------------------------


@pytest.fixture(scope="module")
def stock(spec, tmp_path_factory):
    """Returns a checkpoint written by PyTorch, with objects and with bytes that two names share."""
    torch, dcp = client_of("torch"), client_of("torch.distributed.checkpoint")
    folder = tmp_path_factory.mktemp("stock")
    run_ok("gen", spec, "-o", folder / "gen")
    types = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
    state = {path: torch.from_numpy(words.view(f"<i{words.itemsize}")).view(types[dtype])
             for path, (dtype, words) in reassemble(folder / "gen").items()}
    dcp.save({**state, "optimizer": {"lr": 0.1, "betas": (0.9, 0.95), "set": {1, 2}, "list": [None, b"x"]}},
             checkpoint_id=str(folder / "dcp"), no_dist=True)
    return folder / "dcp"


def read_metadata(folder):
    return pickle.loads((folder / ".metadata").read_bytes())


def test_verify_accepts_dcp_of_pytorch(spec, stock, tensors):
    result = run_json("verify", stock, "--spec", spec)
    assert result["equal"] and result["tensors"] == len(tensors)
    result = verify(stock, spec, "--set", "modules.cube.dtype=f32", "--set", "modules.matrix.shape=[33,18]", "--set",
                    "seed=1")
    found = result.stderr
    assert "cube is float16 [5, 6, 7], but the spec has float32 [5, 6, 7]" in found
    assert "matrix is float64 [33, 17], but the spec has float64 [33, 18]" in found
    assert "__0_0.distcp: vector has other values" in found


def first(metadata, name):
    return next(info for index, info in metadata.storage_data.items() if index.fqn == name)


def remove(metadata):
    metadata.storage_data = {k: v for k, v in metadata.storage_data.items() if k.fqn != "matrix"}


def resize(metadata, *chunks):
    entry = metadata.state_dict_metadata["matrix"]
    entry.chunks = [type(entry.chunks[0])(offsets=o, sizes=n) for o, n in chunks]


@pytest.mark.parametrize("change, message", [
    (remove, "it lists no file for a chunk of `matrix`"),
    (lambda m: resize(m), "is not whole: its boxes have 0 of the 561 elements"),
    (lambda m: resize(m, ((0, 0), (17, 33))), "lies outside the tensor's shape"),
    (lambda m: resize(m, ((0, 0), (33, 16))), "another shape than its chunk"),
    (lambda m: resize(m, ((0,), (33,))), "does not have as many dimensions as the tensor"),
    (lambda m: resize(m, ((0, 0), (33, 17)), ((0, 0), (33, 17))), "`matrix` is in `"),
    (lambda m: resize(m, ((0, 0), (-1, 17))), "its `sizes` must be a"),
    (lambda m: resize(m, ((0, 0), (1 << 40, 1 << 40))), "its `sizes` must be a"),
    (lambda m: setattr(m.state_dict_metadata["matrix"], "size", (1 << 70, 1)), "must be a whole number from 0 to 2^48"),
    (lambda m: setattr(m.state_dict_metadata["matrix"], "size", 7), "its `size` must be a tuple"),
    (lambda m: setattr(first(m, "matrix"), "relative_path", "../dcp/__0_0.distcp"), "is not in the folder"),
    (lambda m: setattr(first(m, "matrix"), "relative_path", "/etc/passwd"), "is not in the folder"),
    (lambda m: setattr(first(m, "matrix"), "length", 1 << 40), "an item is outside it"),
    (lambda m: setattr(first(m, "matrix"), "length", 100), "an item is not a zip archive"),
    (lambda m: setattr(first(m, "matrix"), "offset", first(m, "cube").offset), "must be of the type float64"),
    (lambda m: setattr(first(m, "matrix"), "transform_descriptors", ["zstd"]), "is transformed"),
    (lambda m: setattr(m, "storage_data", None), "its `storage_data` is not a dictionary"),
    (lambda m: setattr(m, "state_dict_metadata", 3), "its `state_dict_metadata` is not a dictionary"),
])
def test_verify_rejects_unsupported_dcp(change, message, spec, stock, tmp_path):
    folder = shutil.copytree(stock, tmp_path / "dcp")
    metadata = read_metadata(folder)
    change(metadata)
    if "type" in message:  # the other tensor's item, whole
        first(metadata, "matrix").length = first(metadata, "cube").length
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    result = verify(folder, spec)
    assert result.returncode == 5 and message in result.stderr, result.stderr


def lose(metadata, place):
    kept = metadata.storage_data.items()
    metadata.storage_data = {k: v for k, v in kept if (k.fqn, tuple(k.offset)) != ("w", place)}


def transform(metadata, place):
    info, = [v for k, v in metadata.storage_data.items() if (k.fqn, tuple(k.offset)) == ("w", place)]
    info.transform_descriptors = ["zstd"]


@pytest.mark.parametrize("place", [(0, 0), (0, 3), (3, 0), (3, 3)])
@pytest.mark.parametrize("change, told", [
    (lose, "it lists no file for a chunk of `w`, at {}"), (transform, "a chunk of `w` is transformed")])
def test_verify_checks_each_chunk_of_a_dcp_tensor(change, told, place, tmp_path):
    """`verify` reports any chunk of a tensor that is not listed or is transformed."""
    client_of("torch.distributed.checkpoint")  # its classes are in the metadata
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {a: 2, b: 2}}\nmodules:\n"
                    "  w: {shape: [6, 6], shard: [a, b], init: {normal: {std: 1}}}\n")
    folder = tmp_path / "dcp"
    run_ok("export", spec, "--to", "dcp", "-o", folder)
    (folder / "shardinit-export.json").unlink()
    metadata = read_metadata(folder)
    change(metadata, place)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    for command in (["verify", folder, "--spec", spec], ["inspect", folder], ["reshard", folder, "-o", tmp_path / "to"],
                    ["convert", folder, "--to", "safetensors", "-o", tmp_path / "to"]):
        result = run_tool(*command)
        assert (result.returncode, result.stderr.splitlines()[0]) == (
            5, f"shardinit: error: cannot read `{folder}/.metadata` as a file of PyTorch: {told.format(list(place))}"), result
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("data", [
    b"", b".", b"\x80\x07.", b"\x80\x02}(.", b"(t.", b"0.", b"\x80\x02h\x07.", b"\x80\x02]q\x00h\x00a.",
    b"K\x01K\x02b.",
    b"X\xff\xff\xff\xff.", b"\x8d" + b"\xff" * 8, b"cos\nsystem\n(X\x02\x00\x00\x00lstR.",
    b"(" * 5000 + b"t" * 5000 + b".", b"\x8a\xffx.", b"coss", b"\x93.", b"}K\x01a.", b"](K\x01u.", b"\x85" * 99,
])
def test_verify_rejects_malicious_pickles(data, spec, tmp_path):
    (tmp_path / ".metadata").write_bytes(data)
    result = verify(tmp_path, spec)
    assert result.returncode == 5 and result.stderr.startswith("shardinit: error: "), result.stderr


def test_verify_rejects_a_pickle_that_repeats_a_long_name(spec, tmp_path):
    """A pickle is rejected if its names would be longer than the file: each six bytes would need two megabytes."""
    text = b"X" + (10**6).to_bytes(4, "little") + b"a" * 10**6
    (tmp_path / ".metadata").write_bytes(b"\x80\x04" + text + b"q\x000" + b"h\x00h\x00\x930" * 1000 + b"N.")
    result = verify(tmp_path, spec)
    assert result.returncode == 5 and "its names are longer than the file" in result.stderr, result.stderr


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_mutated_dcp_files_never_crash(name, spec, stock, tmp_path):
    generator = random.Random(8)
    folder = shutil.copytree(stock, tmp_path / "dcp")
    good, seen = (folder / name).read_bytes(), set()
    for _ in range(100):
        data = damaged(good, generator, [2000], b"(.)]}XcNRQKMJ\x80\x81\x85\x8a\x94PK\0\xff")
        (folder / name).write_bytes(data)
        result = verify(folder, spec, "--jobs", 1)
        assert result.returncode in (0, 1, 5), result.stderr
        seen.add(result.returncode)
    assert seen >= ({5} if name == ".metadata" else {1, 5})


def test_verify_rejects_big_endian_items(spec, stock, tmp_path):
    folder = shutil.copytree(stock, tmp_path / "dcp")
    file = folder / "__0_0.distcp"
    file.write_bytes(file.read_bytes().replace(b"little", b"bigend"))
    result = verify(folder, spec)
    assert result.returncode == 5 and "its numbers are big-endian" in result.stderr, result
