"""A reader that knows only the format gets the same tensors with every mesh."""

import hashlib
import json

import h5py
import numpy as np
import pytest

from support import AWKWARD, DTYPES, TINY, datasets_in, rank_files, read_raw, reassemble, run_json, run_ok, sha256_of, text_of

MESHES = {
    "1": "fsdp=1,tensor=1",
    "2x2": "fsdp=2,tensor=2",
    "8": "fsdp=8,tensor=1",
    "4x2": "fsdp=4,tensor=2",
    "1x4": "fsdp=1,tensor=4",
    "3": "fsdp=3,tensor=1",
    "3x5": "fsdp=3,tensor=5",
}

AWKWARD_MESHES = ["a=1,b=1", "a=2,b=2", "a=3,b=1", "a=1,b=7", "a=4,b=3", "a=2,b=8"]


@pytest.fixture(scope="module")
def digests():
    return {t["path"]: t for t in run_json("digest", TINY)["tensors"]}


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES.keys())
@pytest.mark.parametrize("replicas", ["dedupe", "full"])
def test_rank_files_reassemble_to_the_model(mesh, replicas, digests, tmp_path):
    run_ok("gen", TINY, "-o", tmp_path / "out", "--mesh", mesh, "--replicas", replicas)
    tensors = reassemble(tmp_path / "out")
    assert set(tensors) == set(digests)
    for path, (dtype, words) in tensors.items():
        assert dtype == digests[path]["dtype"]
        assert list(words.shape) == digests[path]["shape"]
        assert sha256_of(words) == digests[path]["sha256"], path


@pytest.fixture(scope="module")
def awkward(tmp_path_factory):
    spec = tmp_path_factory.mktemp("awkward") / "spec.yaml"
    spec.write_text(AWKWARD)
    return spec, {t["path"]: t["sha256"] for t in run_json("digest", spec)["tensors"]}


@pytest.mark.parametrize("mesh", AWKWARD_MESHES)
def test_rank_files_reassemble_awkward_shapes(mesh, awkward, tmp_path):
    spec, expected = awkward
    run_ok("gen", spec, "-o", tmp_path / "out", "--mesh", mesh)
    tensors = reassemble(tmp_path / "out")
    assert {path: sha256_of(words) for path, (_, words) in tensors.items()} == expected
    assert json.loads(run_ok("verify", tmp_path / "out", "--json").stdout) is not None


@pytest.mark.parametrize("mesh", ["a=1,b=1", "a=2,b=2", "a=4,b=3", "a=2,b=8"])
def test_index_reads_whole_tensors(mesh, awkward, tmp_path):
    spec, expected = awkward
    run_ok("gen", spec, "-o", tmp_path / "out", "--mesh", mesh)
    (tmp_path / "out").rename(tmp_path / "moved")  # the index names its sources relative to itself
    with h5py.File(tmp_path / "moved/index.h5", "r") as index:
        found = {text_of(d.attrs["path"]): sha256_of(read_raw(d)) for d in datasets_in(index)}
    assert found == expected


def test_ranks_can_be_made_separately_in_any_order(tmp_path):
    run_ok("gen", TINY, "-o", tmp_path / "all")
    for ranks in ["3", "1-2", "0"]:
        run_ok("gen", TINY, "-o", tmp_path / "parts", "--ranks", ranks)
    run_ok("finalize", tmp_path / "parts")
    for name in rank_files(tmp_path / "all"):
        assert name.read_bytes() == (tmp_path / "parts/ranks" / name.name).read_bytes()
    for name in ["plan.json", "manifest.json", "index.h5"]:
        assert (tmp_path / "all" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def test_rank_file_has_the_documented_structure(tmp_path):
    run_ok("gen", TINY, "-o", tmp_path / "out")
    plan = hashlib.sha256((tmp_path / "out/plan.json").read_bytes()).hexdigest()
    for rank, name in enumerate(rank_files(tmp_path / "out")):
        assert name.name == f"rank-{rank:05}.h5"
        with h5py.File(name, "r") as file:
            attributes = dict(file.attrs.items())
            assert int(attributes["format_version"]) == 1
            assert int(attributes["contract_version"]) == 1
            assert text_of(attributes["engine"]) == "philox4x32"
            assert int(attributes["seed"]) == 0
            assert int(attributes["rank"]) == rank
            assert int(attributes["world_size"]) == 4
            assert [text_of(a) for a in attributes["mesh_axes"]] == ["fsdp", "tensor"]
            assert list(attributes["mesh_shape"]) == [2, 2]
            assert list(attributes["coordinate"]) == [rank // 2, rank % 2]
            assert text_of(attributes["plan_sha256"]) == plan
            assert isinstance(file["model/layers/0/self_attn/q_proj/weight"], h5py.Dataset)
            for dataset in datasets_in(file):
                assert dataset.name == "/" + text_of(dataset.attrs["path"]).replace(".", "/")
                assert dataset.chunks is None and dataset.compression is None
                assert dataset.id.get_create_plist().get_external_count() == 0
                nbytes = dataset.size * DTYPES[text_of(dataset.attrs["dtype"])].itemsize
                if nbytes >= 1 << 16:
                    assert dataset.id.get_offset() % 4096 == 0


@pytest.mark.parametrize("mesh, axes", [("x: 2, tensor_parallel: 3", ["x", "tensor_parallel"]), ("", []),
                                        ("long_name: 2, b: 1, cc: 2", ["long_name", "b", "cc"])])
@pytest.mark.parametrize("seed", [0, 2**63 - 1, 2**63, 2**64 - 1])
def test_every_hdf5_file_has_all_attributes(tmp_path, seed, mesh, axes):
    """Every rank file and the index have all attributes, with equal values in h5py and `inspect`."""
    (tmp_path / "spec.yaml").write_text(f"""shardinit: 1
name: m
dtype: f32
seed: {seed}
{f'mesh: {{axes: {{{mesh}}}}}' if mesh else ''}
modules:
  w: {{shape: [12, 5], init: ones{', shard: [' + axes[0] + ']' if axes else ''}}}
  s: {{shape: [], init: zeros}}
""")
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "out")
    plan = run_json("plan", tmp_path / "spec.yaml")
    shape = plan["mesh"]["shape"]
    digest = hashlib.sha256((tmp_path / "out/plan.json").read_bytes()).hexdigest()
    common = {"format_version": 1, "contract_version": 1, "engine": "philox4x32", "seed": seed, "plan_sha256": digest,
              "world_size": plan["world_size"], "mesh_axes": axes, "mesh_shape": shape}
    files = [(name, common | {"rank": rank, "coordinate": [int(i) for i in np.unravel_index(rank, shape)]})
             for rank, name in enumerate(rank_files(tmp_path / "out"))]
    for name, wanted in [*files, (tmp_path / "out/index.h5", common)]:
        with h5py.File(name, "r") as file:
            found = dict(file.attrs.items())
            shapes = {dataset.name: list(dataset.shape) for dataset in datasets_in(file)}
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            if value == []:
                assert isinstance(found[key], h5py.Empty)
            elif key == "mesh_axes":
                assert [text_of(axis) for axis in found[key]] == value
            else:
                read = text_of(found[key]) if isinstance(value, str) else np.asarray(found[key]).tolist()
                assert read == value, key
        shown = run_json("inspect", name)
        datasets = shown.pop("datasets")
        assert shown == wanted
        assert {each["dataset"]: each["shape"] for each in datasets} == shapes


def test_file_offsets_locate_the_bytes(tmp_path):
    run_ok("gen", TINY, "-o", tmp_path / "out")
    for name in rank_files(tmp_path / "out"):
        raw = name.read_bytes()
        with h5py.File(name, "r") as file:
            for dataset in datasets_in(file):
                words, start = read_raw(dataset), dataset.id.get_offset()
                assert raw[start:start + words.nbytes] == words.tobytes()


def test_hdf5_reads_bf16_exactly(tmp_path):
    # Users who just open the file see the same values, but reading is slower.
    run_ok("gen", TINY, "-o", tmp_path / "out", "--mesh", "fsdp=1,tensor=1")
    with h5py.File(rank_files(tmp_path / "out")[0], "r") as file:
        dataset = file["model/layers/1/mlp/down_proj/weight"]
        exact = read_raw(dataset).view(DTYPES["bf16"]).astype(np.float32)
        assert dataset.dtype == np.float32
        assert np.array_equal(dataset[()], exact)


def test_receipt_digests_match_the_bytes(tmp_path):
    """Each box's SHA-256 in a receipt is a plain hash of the box's bytes."""
    run_ok("gen", TINY, "-o", tmp_path / "out")
    manifest = (tmp_path / "out/manifest.json").read_text()
    json.loads(manifest)
    for name in rank_files(tmp_path / "out"):
        receipt = name.with_suffix(".json").read_text()
        json.loads(receipt)
        with h5py.File(name, "r") as file:
            for dataset in datasets_in(file):
                assert sha256_of(read_raw(dataset)) in receipt


def test_model_digest_matches_the_manual(digests):
    lines = sorted(f"{t['path']} {t['dtype']} {shape_text(t['shape'])} {t['sha256']}\n"
                   for t in digests.values())
    whole = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert whole == run_json("digest", TINY)["model_digest"]


def shape_text(extents):
    return "[" + ",".join(map(str, extents)) + "]"


@pytest.mark.parametrize("order", [sorted(DTYPES), sorted(DTYPES, reverse=True)], ids=["forwards", "backwards"])
def test_missing_boxes_read_as_fill_values(order, tmp_path):
    """A missing box reads as NaN or as the smallest or largest number of its type, whatever tensor precedes it in the
    index."""
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: m\nmodules:\n" + "".join(
        f"  t{i:02}: {{shape: [4], dtype: {dtype}, init: zeros}}\n" for i, dtype in enumerate(order)))
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "out")
    for path in rank_files(tmp_path / "out"):
        path.unlink()
    with h5py.File(tmp_path / "out/index.h5") as index:
        for i, dtype in enumerate(order):
            dataset = index[f"t{i:02}"]
            words = read_raw(dataset)
            assert words.shape == (4,) and len(set(words.tolist())) == 1
            numbers = words.view(DTYPES[dtype])
            if dtype == "bool":
                assert words[0] not in (0, 1)
            elif dtype[0] in "iu":
                limits = np.iinfo(DTYPES[dtype])
                assert numbers[0] == (limits.max if dtype[0] == "u" else limits.min), dtype
            else:
                assert np.isnan(numbers.astype(np.float64)).all(), dtype


def test_index_has_boxes_of_every_type(tmp_path):
    """The index has scalars, segments and mixed types; floating-point boxes of missing ranks read as NaN."""
    (tmp_path / "spec.yaml").write_text("""
shardinit: 1
name: indexed
dtype: bf16
mesh: {axes: {a: 2, b: 2}}
modules:
  cut: {shape: [12, 3], dtype: f32, shard: [{axes: a, segments: 3}], init: {normal: {std: 1}}}
  both: {shape: [8, 4], shard: [{axes: a, segments: 2}, b], init: {normal: {std: 1}}}
  wide: {shape: [4, 2], dtype: f64, shard: [a], init: {normal: {std: 1}}}
  half: {shape: [4, 2], dtype: f16, shard: [null, b], init: {normal: {std: 1}}}
  eight: {shape: [4], dtype: f8e5m2, shard: [a], init: ones}
  scalar: {shape: [], dtype: f32, init: ones}
  steps: {shape: [], dtype: i64, init: zeros}
""")
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "out")
    whole = reassemble(tmp_path / "out")
    with h5py.File(tmp_path / "out/index.h5") as index:
        found = {}
        for dataset in datasets_in(index):
            shape = dataset.attrs["global_shape"]
            found[text_of(dataset.attrs["path"])] = ([] if isinstance(shape, h5py.Empty) else list(shape),
                                                     read_raw(dataset))
    assert found.keys() == whole.keys()
    for path, (shape, words) in found.items():
        assert shape == list(whole[path][1].shape) == list(words.shape), path
        assert words.tobytes() == whole[path][1].tobytes(), path
    for rank in range(4):
        (tmp_path / f"out/ranks/rank-0000{rank}.h5").unlink()
    with h5py.File(tmp_path / "out/index.h5") as index:
        for dataset in datasets_in(index):
            path, words = text_of(dataset.attrs["path"]), read_raw(dataset)
            if path != "steps":
                bits = words.dtype.itemsize * 8
                exponent = {"f32": 8, "bf16": 8, "f64": 11, "f16": 5, "f8e5m2": 5}[text_of(dataset.attrs["dtype"])]
                fields = np.array(words).view(f"u{bits // 8}").astype("u8") >> np.uint64(bits - 1 - exponent)
                assert (fields & np.uint64(2**exponent - 1) == 2**exponent - 1).all(), path  # NaN
