"""The Python package reads every slice of shardinit's files bit for bit, and rejects anything else."""

import concurrent.futures
import contextlib
import copy
import json
import os
import random
import shutil
import socket
import threading
import resource
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

from clients import PACKAGE, bits_of, digest_of, gen_ok, write_checkpoint
from support import AWKWARD, DTYPES, TINY, read_raw, reassemble, run_ok

import shardinit

MESHES = ["a=1,b=1", "a=2,b=2", "a=3,b=1", "a=1,b=7", "a=4,b=3"]


def random_slices(shape, rng):
    parts = []
    for size in shape:
        low, high = sorted((rng.randint(0, size), rng.randint(0, size)))
        parts.append(
            rng.choice(
                [
                    slice(None),
                    slice(low, high),
                    slice(-high, None),
                    slice(low, None),
                    rng.randrange(-size, size),
                ]
            )
        )
    if rng.random() < 0.3:
        parts[rng.randint(0, len(parts)) :] = [...]
    return tuple(parts)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return gen_ok(TINY, tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def awkward(tmp_path_factory):
    return gen_ok(AWKWARD, tmp_path_factory.mktemp("awkward"))


# ---- Reading.


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("replicas", ["dedupe", "full"])
def test_reader_reads_every_slice_of_every_dtype(mesh, replicas, tmp_path):
    out = gen_ok(AWKWARD, tmp_path, "--mesh", mesh, "--replicas", replicas)
    wanted = reassemble(out)  # reads with h5py, using only attributes
    rng = random.Random(0)
    with shardinit.open(out) as checkpoint:
        assert set(checkpoint.tensors) == set(wanted)
        for path, (dtype, words) in wanted.items():
            info = checkpoint.tensors[path]
            assert (info.dtype, info.global_shape) == (dtype, words.shape)
            assert info.nbytes == words.nbytes and not info.is_bits
            whole = checkpoint.read(path, verify=True)
            assert whole.dtype == DTYPES[dtype] and whole.flags.c_contiguous
            assert np.array_equal(bits_of(whole), words)
            for _ in range(60):
                slices = random_slices(words.shape, rng)
                part = checkpoint.read(path, slices, verify=rng.random() < 0.2)
                assert part.dtype == DTYPES[dtype] and part.shape == words[slices].shape
                assert np.array_equal(bits_of(part), words[slices]), (path, slices)


def test_reader_agrees_with_the_index(tiny):
    checkpoint = shardinit.open(tiny)
    with h5py.File(tiny / "index.h5") as file:
        for path, info in checkpoint.tensors.items():
            dataset = file[path.replace(".", "/")]
            assert dataset.shape == info.global_shape
            assert np.array_equal(bits_of(checkpoint.read(path)), read_raw(dataset))


def test_reader_shows_shards_and_mesh_of_the_manifest(tiny):
    checkpoint = shardinit.open(tiny)
    manifest = json.loads((tiny / "manifest.json").read_text())
    plan = json.loads((tiny / "plan.json").read_text())
    assert (checkpoint.mesh.axes, checkpoint.mesh.shape) == (("fsdp", "tensor"), (2, 2))
    for key in ("name", "engine", "seed", "parameters", "bytes", "world_size", "replicas"):
        assert getattr(checkpoint, key) == manifest[key]
    for tensor, planned in zip(manifest["tensors"], plan["tensors"], strict=True):
        info = checkpoint.info(tensor["path"])
        assert [(s.rank, list(s.offset), list(s.shape), s.sha256) for s in info.shards] == [
            (s["rank"], s["offset"], s["shape"], s["sha256"]) for s in tensor["shards"]
        ]
        assert [list(a) for a in checkpoint.partition_spec(info.path)] == planned["partition_spec"]
    assert "5,768,448 parameters" in repr(checkpoint)


def test_reader_fills_memory_of_any_order(awkward):
    checkpoint = shardinit.open(awkward)
    for path, (_, words) in reassemble(awkward).items():
        for out in (
            np.zeros(words.shape, words.dtype),
            np.zeros(words.shape[::-1], words.dtype).T,
            np.zeros([2 * n for n in words.shape], words.dtype)[
                tuple(slice(None, None, 2) for _ in words.shape)
            ],
        ):
            assert checkpoint.read(path, out=out) is out
            assert np.array_equal(out, words)


def test_reader_reads_scalars(tmp_path):
    out = gen_ok(
        """
shardinit: 1
name: scalar
modules:
  s: {shape: [], dtype: f32, init: {constant: {value: 2.5}}}
""",
        tmp_path,
    )
    checkpoint = shardinit.open(out)
    for slices in (None, (), ...):
        array = checkpoint.read("s", slices, verify=True)
        assert array.shape == () and array == 2.5
    with pytest.raises(IndexError):
        checkpoint.read("s", 0)


def test_reader_reads_several_boxes_of_a_rank(tmp_path):
    rng = np.random.default_rng(0)
    bytes_ = rng.integers(0, 256, (12, 8), dtype=np.uint8)
    halves = rng.integers(0, 2, (4, 6), dtype=np.uint8)
    ranks = [0, 1, 2, 0, 1, 2]
    cuts = [(rank, (slice(2 * i, 2 * i + 2), slice(0, 8))) for i, rank in enumerate(ranks)]
    both = [
        (r, (slice(2 * (r // 2), 2 * (r // 2) + 2), slice(3 * (r % 2), 3 * (r % 2) + 3)))
        for r in range(4)
    ]
    out = write_checkpoint(
        tmp_path / "out",
        {
            "f8.strided": ("f8e4m3fn", bytes_, cuts),
            "f8.other": ("f8e5m2", bytes_, cuts),
            "flags": ("bool", halves, both),
            "count": ("i64", np.full((), 7, "<u8"), [(3, ())]),
            "small": ("i8", bytes_, cuts),
        },
        4,
    )
    checkpoint = shardinit.open(out)
    for path, words, name in (
        ("f8.strided", bytes_, "float8_e4m3fn"),
        ("flags", halves, "bool"),
        ("f8.other", bytes_, "float8_e5m2"),
        ("small", bytes_, "int8"),
    ):
        array = checkpoint.read(path, verify=True)
        assert array.dtype.name == name and np.array_equal(bits_of(array), words)
        assert np.array_equal(bits_of(checkpoint.read(path, (slice(1, 4), 5))), words[1:4, 5])
    assert checkpoint.read("count") == 7 and checkpoint.read("count").dtype == np.int64


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": PACKAGE},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_bf16_is_returned_as_bits_without_ml_dtypes(tiny):
    code = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import shardinit\n"
        f"c = shardinit.open({str(tiny)!r}); a = c.read('lm_head.weight')\n"
        "assert c.tensors['lm_head.weight'].is_bits\n"
        "import hashlib; print(a.dtype, hashlib.sha256(a.tobytes()).hexdigest())"
    )
    found = run_python(code).split()
    assert found == ["uint16", digest_of(reassemble(tiny)["lm_head.weight"][1].tobytes())]


def test_reader_needs_only_numpy(tiny):
    code = (
        "import sys\n"
        "for name in ('h5py', 'torch', 'jax', 'ml_dtypes'): sys.modules[name] = None\n"
        f"import shardinit; shardinit.open({str(tiny)!r}).read('lm_head.weight', 3)\n"
        "for name in ('torch', 'jax'):\n"
        "    try: getattr(shardinit, name)\n"
        "    except ImportError as error: print(error)\n"
    )
    found = run_python(code)
    assert found == (
        "shardinit.torch needs PyTorch: pip install torch\n"
        'shardinit.jax needs JAX: pip install "jax[cpu]"\n'
    )


# ---- Bytes read.


def test_reader_reads_only_the_requested_bytes(tmp_path, monkeypatch):
    out = gen_ok(
        """
shardinit: 1
name: count
dtype: bf16
mesh: {axes: {a: 2, b: 2}}
modules:
  t: {shape: [64, 16384], shard: [a, b], init: {normal: {std: 1}}}
""",
        tmp_path,
    )
    plain, read = os.preadv, []

    def counting(fd, buffers, offset):
        count = plain(fd, buffers, offset)
        read.append(count)
        return count

    monkeypatch.setattr(os, "preadv", counting)
    for slices in (
        None,
        5,
        slice(10, 50),
        (slice(0, 32), slice(0, 8192)),
        (slice(None), slice(4000, 12000)),
        (slice(30, 34), slice(8000, 8400)),
        (3, 4),
    ):
        checkpoint = shardinit.open(out)
        read.clear()
        part = checkpoint.read("t", slices)
        assert sum(read) == part.nbytes == checkpoint.bytes_read, slices
    # Gaps of less than a page between rows of a box are read too; no page without bytes of the slice is touched.
    checkpoint = shardinit.open(out)
    checkpoint.read("t", (slice(0, 32), slice(500, 8192)))
    assert checkpoint.bytes_read == 32 * 8192 * 2 - 500 * 2


def test_reader_prefers_the_given_rank(tmp_path):
    out = gen_ok(TINY, tmp_path, "--replicas", "full")
    for rank in range(4):
        for name in ("h5", "json"):
            (out / f"ranks/rank-{rank:05d}.{name}").rename(out / f"ranks/{rank}.{name}")
    for name in ("h5", "json"):
        (out / f"ranks/3.{name}").rename(out / f"ranks/rank-00003.{name}")
    checkpoint = shardinit.open(out, rank=3)  # only rank 3's files are here
    assert checkpoint.read("model.norm.weight", verify=True).astype(float).sum() == 256
    assert shardinit.open(out).read("model.norm.weight").shape == (256,)
    checkpoint.read("lm_head.weight", (slice(4096, 8192), slice(128, 256)))
    with pytest.raises(shardinit.DamageError, match="rank-0000.*missing"):
        checkpoint.read("lm_head.weight")


def test_threads_read_with_few_file_descriptors(tmp_path):
    out = gen_ok(TINY, tmp_path, "--mesh", "fsdp=32,tensor=8")
    wanted = {path: words for path, (_, words) in reassemble(out).items()}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))  # fewer than the 256 rank files
    try:
        with shardinit.open(out) as checkpoint, concurrent.futures.ThreadPoolExecutor(4) as pool:
            for path, array in pool.map(lambda p: (p, checkpoint.read(p)), list(wanted) * 3):
                assert np.array_equal(bits_of(array), wanted[path])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_reader_is_as_fast_as_plain_reads(tmp_path, record_property, capsys):
    out = gen_ok(
        """
shardinit: 1
name: speed
dtype: bf16
modules:
  t: {shape: [8192, 8192], init: {normal: {std: 1}}}
""",
        tmp_path,
    )
    checkpoint = shardinit.open(out)
    size = checkpoint.bytes
    place = json.loads((out / "ranks/rank-00000.json").read_text())["boxes"][0]["file_offset"]
    fd = os.open(out / "ranks/rank-00000.h5", os.O_RDONLY)

    def read_plainly():
        os.preadv(fd, [np.empty(size, np.uint8)], place)

    def timed(f):
        start = time.perf_counter()
        f()
        return time.perf_counter() - start

    plain, ours = [], []
    for _ in range(12):  # alternating, since the machine has other work too
        plain.append(timed(read_plainly))
        ours.append(timed(lambda: checkpoint.read("t")))
    os.close(fd)
    with h5py.File(out / "ranks/rank-00000.h5") as file:
        rows = 256
        theirs = min(timed(lambda: file["t"][:rows]) for _ in range(3)) * 8192 / rows
    rates = {
        "read": size / min(ours) / 1e9,
        "read(2)": size / min(plain) / 1e9,
        "h5py's conversion": size / theirs / 1e9,
    }
    with capsys.disabled():
        print("\nbf16, GB/s: " + ", ".join(f"{k} {v:.2f}" for k, v in rates.items()))
    record_property("rates", str(rates))
    assert rates["read"] >= 0.5 * rates["read(2)"]
    assert rates["read"] >= 20 * rates["h5py's conversion"]


def test_large_regions_are_read_by_many_threads(awkward, monkeypatch):
    """Large regions are divided among threads; here all regions are, down to a few elements each."""
    monkeypatch.setattr(shardinit._read, "SLAB", 64)
    monkeypatch.setattr(shardinit._boxes, "SLAB", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(5))
    names, plain = set(), shardinit._read.BoxFile.read

    def reading(self, *arguments):
        names.add(threading.current_thread().name)
        return plain(self, *arguments)

    monkeypatch.setattr(shardinit._read.BoxFile, "read", reading)
    checkpoint = shardinit.open(awkward)
    for path, (_, words) in reassemble(awkward).items():
        assert np.array_equal(bits_of(checkpoint.read(path)), words), path
        assert np.array_equal(bits_of(checkpoint.read(path, verify=True)), words), path
        part = tuple(slice(n // 3, n) for n in words.shape)
        assert np.array_equal(bits_of(checkpoint.read(path, part)), words[part]), path
        out = np.zeros(words.shape, words.dtype, order="F")
        assert np.array_equal(checkpoint.read(path, out=out), words), path
    assert len(names - {threading.main_thread().name}) > 1


def test_damage_found_by_a_thread_is_reported(awkward, tmp_path, monkeypatch):
    """The error names the first damaged box; other reads are cancelled, and all threads end."""
    monkeypatch.setattr(shardinit._boxes, "SLAB", 0)
    out = shutil.copytree(awkward, tmp_path / "out")
    checkpoint = shardinit.open(out)
    for shard in checkpoint.info("matrix").shards[1:]:
        receipt = json.loads((out / f"ranks/rank-{shard.rank:05d}.json").read_text())
        place = next(b["file_offset"] for b in receipt["boxes"] if b["path"] == "matrix")
        with open(out / f"ranks/rank-{shard.rank:05d}.h5", "r+b") as file:
            file.seek(place)
            file.write(b"\x55")
    before = threading.active_count()
    with pytest.raises(shardinit.DamageError, match=r"`matrix` at \[0, 9\] in .*rank-00001.h5`"):
        checkpoint.read("matrix", verify=True)
    assert threading.active_count() == before


# ---- Rejected input.


def test_open_rejects_folders_that_are_not_checkpoints(tmp_path):
    with pytest.raises(
        shardinit.NotACheckpointError, match=r"is not a checkpoint: it has no manifest.json"
    ):
        shardinit.open(tmp_path)
    run_ok("gen", TINY, "-o", tmp_path / "part", "--ranks", "1")
    with pytest.raises(shardinit.NotACheckpointError):
        shardinit.open(tmp_path / "part")


@pytest.mark.parametrize(
    "slices, error, text",
    [
        (slice(0, 8, 2), ValueError, "step 2"),
        (slice(8, 0, -1), ValueError, "step -1"),
        (8192, IndexError, "outside dimension 0 .* has 8192"),
        (-8193, IndexError, "outside"),
        ((0, 0, 0), IndexError, "3 slices .* 2 dimensions"),
        ((..., ...), IndexError, "one"),
        ((None, 0), TypeError, "not NoneType"),
        (True, TypeError, "not bool"),
        ([0, 1], TypeError, "not list"),
        (1.0, TypeError, "not float"),
        ((slice(None), np.array([1, 2])), TypeError, "not ndarray"),
    ],
)
def test_reader_rejects_invalid_slices(tiny, slices, error, text):
    with pytest.raises(error, match=text):
        shardinit.open(tiny).read("lm_head.weight", slices)


def test_unknown_tensor_suggests_a_name(tiny):
    for get in (shardinit.open(tiny).read, shardinit.open(tiny).info):
        with pytest.raises(KeyError) as caught:
            get("lm_head.wieght")
        assert (
            str(caught.value)
            == "the checkpoint has no tensor `lm_head.wieght`; did you mean `lm_head.weight`?"
        )


def test_reader_rejects_unsuitable_out(tiny):
    checkpoint = shardinit.open(tiny)
    frozen = np.zeros(256, "<u2")
    frozen.flags.writeable = False
    for out in (np.zeros(255, "<u2"), np.zeros(256, "<f4"), np.zeros((1, 256), "<u2"), frozen):
        with pytest.raises(ValueError, match="out"):
            checkpoint.read("model.norm.weight", out=out)


def test_reader_reports_damage(tmp_path):
    out = gen_ok(AWKWARD, tmp_path)
    place = next(
        b
        for b in json.loads((out / "ranks/rank-00003.json").read_text())["boxes"]
        if b["path"] == "matrix"
    )
    with open(out / "ranks/rank-00003.h5", "r+b") as file:
        file.seek(place["file_offset"])
        byte = file.read(1)[0]
        file.seek(place["file_offset"])
        file.write(bytes([byte ^ 1]))
    shardinit.open(out).read("matrix")  # digests are checked only on request
    shardinit.open(out).read("matrix", slice(0, 4), verify=True)
    for slices in (None, (20, 10), (slice(30, 33), slice(16, 17))):
        with pytest.raises(shardinit.DamageError, match=r"`matrix` at \[17, 9\] in .*rank-00003.h5`"):
            shardinit.open(out).read("matrix", slices, verify=True)
    os.truncate(out / "ranks/rank-00003.h5", 100)
    with pytest.raises(shardinit.DamageError, match="100 bytes instead of"):
        shardinit.open(out).read("matrix")
    (out / "ranks/rank-00003.h5").unlink()
    with pytest.raises(shardinit.DamageError, match="rank-00003.h5` is missing"):
        shardinit.open(out).read("matrix")
    receipt = out / "ranks/rank-00002.json"
    receipt.write_text(receipt.read_text().replace('"rank": 2', '"rank":  2'))
    with pytest.raises(shardinit.DamageError, match="digest that manifest.json gives"):
        shardinit.open(out).read("matrix")


def edit_manifest(manifest, *keys_and_value):
    *keys, last, value = keys_and_value
    for key in keys:
        manifest = manifest[key]
    manifest[last] = value


SHARD = ("tensors", 4, "shards")  # a shard of `wide`, which is sharded in both dimensions
HOSTILE = [
    ("format_version", 3),
    ("format_version", True),
    ("contract_version", 2),
    ("format_version", None),
    ("ranks", 0, "file", "../../etc/passwd"),
    ("ranks", 0, "file", "/etc/passwd"),
    ("ranks", 0, "file", "ranks/rank-00001.h5"),
    ("ranks", 1, "receipt", "ranks/../ranks/rank-00001.json"),
    ("ranks", 2, "rank", 1),
    ("ranks", 3, "size", -1),
    ("ranks", 3, "size", 2**63),
    ("ranks", []),
    ("ranks", {}),
    ("world_size", 5),
    ("world_size", 2**40),
    ("mesh", {"axes": ["a"], "shape": [2, 2]}),
    ("mesh", None),
    ("mesh", "shape", [-2, -2]),
    ("mesh", "axes", ["a", "a"]),
    ("tensors", "x"),
    ("tensors", 0, []),
    ("tensors", 4, "path", "../x"),
    ("tensors", 4, "path", "matrix"),
    ("tensors", 4, "path", "a/b"),
    ("tensors", 4, "path", 3),
    ("tensors", 4, "dtype", "f7"),
    ("tensors", 4, "dtype", "f64"),
    ("tensors", 4, "dtype", ["f32"]),
    ("tensors", 4, "global_shape", [5, 20001]),
    ("tensors", 4, "global_shape", [2**40, 2**40]),
    ("tensors", 4, "global_shape", [2**40, 20000]),
    ("tensors", 4, "global_shape", [5]),
    ("tensors", 4, "global_shape", [5.0, 20000]),
    ("tensors", 4, "global_shape", [1] * 33),
    (*SHARD, []),
    (*SHARD, None),
    (*SHARD, 0, {}),
    (*SHARD, 1, "rank", 4),
    (*SHARD, 1, "rank", -1),
    (*SHARD, 1, "rank", 2**80),
    (*SHARD, 0, "offset", [1, 0]),
    (*SHARD, 1, "offset", [0, -10000]),
    (*SHARD, 1, "offset", [0]),
    (*SHARD, 2, "shape", [3, 10000]),
    (*SHARD, 2, "shape", [2, 10000, 1]),
    (*SHARD, 3, "shape", [0, 10000]),
    (*SHARD, 3, "sha256", "0" * 64),
    (*SHARD, 3, "sha256", "0" * 63),
    (*SHARD, 0, "rank", 1),
    ("seed", "0"),
    ("name", 7),
    ("name", "a\ud800"),
    ("engine", "a\x1b[31m"),
    ("plan_sha256", "x"),
]


@pytest.mark.parametrize("edit", HOSTILE, ids=str)
def test_reader_rejects_malicious_manifests(awkward, tmp_path, edit):
    manifest = json.loads((awkward / "manifest.json").read_text())
    assert manifest["tensors"][4]["path"] == "wide"
    edit_manifest(manifest, *edit)
    shutil.copytree(awkward / "ranks", tmp_path / "ranks", copy_function=os.link)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises((shardinit.FormatError, shardinit.DamageError)) as caught:
        checkpoint = shardinit.open(tmp_path)
        for path in checkpoint.tensors:
            checkpoint.read(path)
    assert str(caught.value).replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b"\xff\xfe",
        b"[" * 100000,
        b'{"format_version": 1' + b"1" * 5000,
        b"null",
        b'{"format_version": NaN}',
        b"{}",
    ],
    ids=lambda t: str(t[:20]),
)
def test_reader_rejects_manifest_that_is_not_json(tmp_path, text):
    (tmp_path / "manifest.json").write_bytes(text)
    with pytest.raises(shardinit.FormatError):
        shardinit.open(tmp_path)


def test_reader_rejects_manifest_that_is_not_a_file(tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(shardinit.FormatError, match="is not a regular file"):
        shardinit.open(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "manifest.json").mkdir()
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(shardinit.FormatError, match="manifest.json` is not a regular file"):
        shardinit.open(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == opened
    (tmp_path / "manifest.json").rmdir()
    with socket.socket(socket.AF_UNIX) as listens, contextlib.chdir(tmp_path):
        listens.bind("manifest.json")  # a socket's absolute path can be too long
    with pytest.raises(shardinit.FormatError, match="manifest.json` is not a regular file"):
        shardinit.open(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "manifest.json").symlink_to("/dev/zero")
    with pytest.raises(shardinit.FormatError, match="manifest.json` is a symbolic link"):
        shardinit.open(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["manifest.json", "plan.json", "index.h5", "ranks", "ranks/rank-00001.h5", "ranks/rank-00001.json"],
)
def test_reader_rejects_links_out_of_the_folder(awkward, tmp_path, name):
    """Links out of the folder are rejected, even if they lead to the same bytes."""
    out = tmp_path / "out"
    shutil.copytree(awkward, out)
    (out / name).rename(tmp_path / "elsewhere")
    (out / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(shardinit.FormatError) as caught:
        checkpoint = shardinit.open(out)
        for path in checkpoint.tensors:
            checkpoint.read(path, verify=True)
    assert str(caught.value) == (
        f"`{out / name}` is a symbolic link: a checkpoint has its files in its folder"
    )
    (tmp_path / "link").symlink_to(awkward)  # the folder itself may be a link
    assert len(shardinit.open(tmp_path / "link").read("vector")) == 5


@pytest.mark.parametrize(
    "edit",
    [
        ("boxes", 0, "file_offset", -1),
        ("boxes", 0, "file_offset", 2**62),
        ("boxes", 0, "bytes", 1),
        ("boxes", 0, "bytes", 2**70),
        ("boxes", 0, "shape", [3]),
        ("boxes", 0, "sha256", "1" * 64),
        ("boxes", 0, "path", "other"),
        ("boxes", 0, {"path": "a\x1b[31m"}),
        ("boxes", 0, "offset", [1, 0]),
        ("boxes", []),
        ("boxes", 3),
        ("file", "../x.h5"),
        ("size", 1),
        ("rank", 2),
        ("plan_sha256", "0" * 64),
        ("format_version", 9),
    ],
    ids=str,
)
def test_reader_rejects_malicious_receipts(tmp_path, edit):
    """An invalid receipt is rejected, even if it has the digest in the manifest."""
    words = np.arange(12, dtype="<u4").reshape(3, 4)
    out = write_checkpoint(
        tmp_path / "out", {"t": ("f32", words, [(0, (slice(0, 3), slice(0, 4)))])}, 1
    )
    assert np.array_equal(bits_of(shardinit.open(out).read("t")), words)
    receipt = json.loads((out / "ranks/rank-00000.json").read_text())
    manifest = json.loads((out / "manifest.json").read_text())
    edit_manifest(receipt, *edit)
    text = json.dumps(receipt).encode()
    (out / "ranks/rank-00000.json").write_bytes(text)
    edit_manifest(manifest, "ranks", 0, "receipt_sha256", digest_of(text))
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(shardinit.FormatError) as caught:
        shardinit.open(out).read("t")
    assert str(caught.value).replace("\n", "").isprintable()


def test_reader_survives_mutated_manifests(awkward, tmp_path):
    """A damaged manifest gives the right values or one of the package's errors."""
    manifest = json.loads((awkward / "manifest.json").read_text())
    wanted = reassemble(awkward)
    shutil.copytree(awkward / "ranks", tmp_path / "ranks", copy_function=os.link)
    rng = random.Random(7)
    values = [
        0,
        1,
        -1,
        2,
        7,
        2**31,
        2**63 - 1,
        2**64,
        1.5,
        None,
        True,
        "",
        "x",
        "../y",
        [],
        [0],
        {},
        "f32",
    ]
    refused = 0
    for _ in range(400):
        mutant = copy.deepcopy(manifest)
        node, key = mutant, None
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = rng.choice(keys)
            if not isinstance(node[key], (dict, list)) or not node[key] or rng.random() < 0.1:
                break
            node = node[key]
        if rng.random() < 0.2:
            del node[key]
        else:
            node[key] = rng.choice(values)
        (tmp_path / "manifest.json").write_text(json.dumps(mutant))
        try:
            checkpoint = shardinit.open(tmp_path)
            for path in checkpoint.tensors:
                array = checkpoint.read(path, verify=True)
                assert path not in wanted or np.array_equal(bits_of(array), wanted[path][1])
        except shardinit.ShardinitError:
            refused += 1
    assert refused > 200
