"""The Python package reads checkpoints and exports in buckets: same bits as from a folder, in few requests, and an
error for every fault of a store."""

import hashlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading
import traceback
import urllib.parse
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from clients import PACKAGE, bits_of, client_of, gen_ok, write_checkpoint
from lying_store import lying_store
from moto_server import moto_server
from recorded import file_of
from support import AWKWARD, ROOT, TINY, run_ok

import shardinit

fsspec = client_of("fsspec")
client_of("s3fs")

CASES = {
    "tiny": (TINY,),
    "tiny, another mesh": (TINY, "--mesh", "fsdp=4,tensor=3", "--set", "uneven=chunk"),
    "tiny, stacked": (TINY, "--layout", "stacked"),
    "tiny, replicas": (TINY, "--replicas", "full"),
    "dtypes": (ROOT / "configs/dtypes.yaml",),
    **{f"awkward, {mesh}": (AWKWARD, "--mesh", mesh) for mesh in ("a=1,b=1", "a=2,b=2", "a=3,b=1", "a=4,b=3")},
    **{name: (file_of(name.split("_")[0], name), *options) for name, options in {
        "plan_blocks": [], "plan_segments": [], "plan_padded": [], "plan_when": [], "plan_rules": [],
        "digest_sparse_normalized": [], "digest_orthogonal": [], "explain_sharding": [],
        "plan_layout": ["--layout", "fused"]}.items()},
}


def request_kinds(made):
    return [(method, path.rsplit("/", 1)[1]) for method, path in made]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with moto_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def options(server):
    return {"key": "any", "secret": "any", "endpoint_url": server.url}


@pytest.fixture(scope="module")
def tiny(server, tmp_path_factory):
    """Returns (folder, URL) of a checkpoint."""
    out = gen_ok(TINY, tmp_path_factory.mktemp("tiny"))
    return out, server.upload(out, "models", "llama/tiny")


@pytest.fixture
def environment(server, monkeypatch):
    """Sets a user's environment variables, so that `open` needs no options."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def random_region(shape, rng):
    """Returns a random region of a tensor as slices."""
    return tuple(slice(*sorted((rng.randint(0, n), rng.randint(0, n)))) if rng.random() < 0.7 else rng.randrange(n)
                 for n in shape)


# ---- The same bits.


@pytest.mark.parametrize("case", CASES)
def test_bucket_reads_equal_folder_reads(case, server, options, tmp_path):
    seed = int(os.environ.get("SHARDINIT_GENERATED_SEED", "0"))
    print("seed", seed)
    out = gen_ok(CASES[case][0], tmp_path, *CASES[case][1:])
    url = server.upload(out, "cases", hashlib.sha256(case.encode()).hexdigest()[:8])
    here, there = shardinit.open(out), shardinit.open(url, storage_options=options)
    rng = random.Random(seed)
    assert repr(there) == repr(here).replace(repr(str(out)), repr(url)) and there.tensors == here.tensors
    wanted, jobs = [], []
    for path, info in here.tensors.items():
        whole = bits_of(here.read(path))
        for part in (..., *(random_region(info.global_shape, rng) for _ in range(4))):
            array = np.zeros(whole[part].shape, whole.dtype)
            jobs += there.jobs(path, part, array, verify=rng.random() < 0.3)
            wanted.append((path, part, array, whole[part]))
        assert there.partition_spec(path) == here.partition_spec(path)
    there.run(jobs)
    for path, part, array, right in wanted:
        assert np.array_equal(array, right), (path, part)
    for path, part, _, right in rng.sample(wanted, 5):
        found = there.read(path, part, verify=rng.random() < 0.5)
        assert found.dtype == here.info(path).numpy_dtype and np.array_equal(bits_of(found), right), (path, part)
    rank = rng.randrange(here.world_size)
    for path in rng.sample(list(here.tensors), min(3, len(here.tensors))):
        locals_ = [each.read_local(path, rank) for each in (here, there)]
        assert (locals_[0] is None) == (locals_[1] is None)
        assert locals_[0] is None or np.array_equal(*map(bits_of, locals_)), path


def test_bucket_reads_into_memory_of_any_order(tiny, options):
    here, there = shardinit.open(tiny[0]), shardinit.open(tiny[1], storage_options=options)
    path = "model.layers.0.mlp.down_proj.weight"
    wanted = bits_of(here.read(path))
    for out in (np.zeros(wanted.shape[::-1], wanted.dtype).T,
                np.zeros([2 * n for n in wanted.shape], wanted.dtype)[::2, ::2]):
        assert there.read(path, out=out) is out and np.array_equal(out, wanted)


@pytest.mark.parametrize("to", ["safetensors", "dcp", "zarr"])
def test_exports_can_be_read_from_buckets(to, server, options, tmp_path):
    run_ok("export", TINY, "--to", to, "-o", tmp_path / "out")
    url = server.upload(tmp_path / "out", "exports", to)
    here, there = shardinit.open(tmp_path / "out"), shardinit.open(url, storage_options=options)
    assert type(there) is shardinit.Export and there.format == to
    arrays = {path: np.zeros(info.shape, bits_of(here.read(path)).dtype) for path, info in here.tensors.items()}
    there.run([job for path, array in arrays.items() for job in there.jobs(path, ..., array, verify=True)])
    assert all(np.array_equal(array, bits_of(here.read(path))) for path, array in arrays.items())
    there.check()
    with pytest.raises(shardinit.NotACheckpointError, match="is an export"):
        there.mesh  # noqa: B018


def test_open_reads_any_fsspec_store(tiny, tmp_path):
    """`open` reads a store in memory, an HTTP server with range requests, an archive in a file, and a folder by URL."""
    out, url = tiny[0], "memory://somewhere/tiny"
    memory = fsspec.filesystem("memory")
    memory.put(f"{out}/", "/somewhere/tiny/", recursive=True)
    archive = shutil.make_archive(tmp_path / "tiny", "zip", out)
    here = shardinit.open(out)
    with http_server(Ranges, out) as address:
        for there in (shardinit.open(url), shardinit.open(f"zip://::file://{archive}"), shardinit.open(f"file://{out}"),
                      shardinit.open(f"local://{out}"),
                      shardinit.open(f"{address}/", storage_options={"headers": {"X-Any": "1"}})):
            for path in here.tensors:
                assert np.array_equal(bits_of(there.read(path)), bits_of(here.read(path))), there
    assert {shardinit.open(f"{kind}://{out}").folder for kind in ("file", "local")} == {str(out)}


def test_check_reads_no_data(tiny, options, server):
    """`check` reads receipts and looks at all files without reading data."""
    with server.counted() as made, shardinit.open(tiny[1], storage_options=options) as checkpoint:
        checkpoint.check()
    assert len(made) == 1 + 2 * checkpoint.world_size and checkpoint.bytes_read == 0
    shardinit.open(tiny[0]).check()


# ---- Number of requests.


def test_loading_a_checkpoint_makes_few_requests(tiny, options, server):
    """PyTorch's loader requests the manifest and, for each rank, the receipt, two looks, and merged ranges."""
    torch = client_of("torch")
    out, url = tiny
    wanted = shardinit.torch.load_state_dict(out)
    with server.counted() as made:
        with shardinit.open(url, storage_options=options) as checkpoint:
            found = shardinit.torch.load_state_dict(checkpoint)
    assert all(torch.equal(found[path], wanted[path]) for path in wanted) and found.keys() == wanted.keys()
    asked, ranks = request_kinds(made), checkpoint.world_size
    boxes = sum(len(info.shards) for info in checkpoint.tensors.values())
    data = [name for method, name in asked if method == "GET" and name.endswith(".h5")]
    assert asked.count(("GET", "manifest.json")) == 1
    assert len([1 for method, name in asked if method == "HEAD"]) == 2 * ranks
    assert len([1 for method, name in asked if name.startswith("rank") and name.endswith("json")]) == ranks
    # Boxes are adjacent, so one range of each rank file contains all of them.
    assert len(data) == len(set(data)) == ranks < boxes / 10
    assert len(asked) == 1 + 4 * ranks


def test_reading_a_slice_fetches_only_its_bytes(tiny, options, server):
    """`read` fetches only the requested bytes, plus gaps that cost less than a request."""
    checkpoint = shardinit.open(tiny[1], storage_options=options)
    path, other = "lm_head.weight", "model.layers.1.mlp.up_proj.weight"
    checkpoint.read(path, 0)
    rows = checkpoint.info(path).shards[0].shape[1] * 2
    for slices in (slice(100, 200), slice(0, 1), (slice(5000, 5001), slice(0, 10))):
        before = checkpoint.bytes_read
        with server.counted() as made:
            part = checkpoint.read(path, slices)
        assert part.nbytes <= checkpoint.bytes_read - before <= part.nbytes + rows
        methods = [method for method, _ in made]
        assert methods.count("GET") == methods.count("HEAD") <= 2  # the look afterwards
    checkpoint.read(other)
    with server.counted() as made:
        checkpoint.read(other, verify=True)
    assert {method for method, _ in made} == {"GET"}  # a digest replaces the look
    with server.counted() as made:
        assert checkpoint.read(path, (slice(0, 0), 5)).size == 0
    assert not made


def test_large_and_strided_regions_are_split(monkeypatch, tmp_path):
    """With limits of a few bytes, regions are split into many pieces and batches, and only short gaps are read."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**16, (3, 40, 5, 7), dtype=np.uint16)
    cuts = [(0, (slice(0, 3), slice(0, 40), slice(0, 5), slice(0, 3))),
            (1, (slice(0, 3), slice(0, 40), slice(0, 5), slice(3, 7)))]
    out = write_checkpoint(tmp_path / "out", {"t": ("u16", words, cuts), "one": ("u16", words[0, 0, 0, 0], [(1, ())])},
                           2)
    memory = fsspec.filesystem("memory")
    memory.put(f"{out}/", "/pieces/out/", recursive=True)
    draw = random.Random(1)
    asked = []

    def counting(paths, starts, ends, **others):
        asked.append(list(zip(paths, starts, ends, strict=True)))
        return type(memory).cat_ranges(memory, paths, starts, ends, **others)

    for gap, block, batch in [(0, 64, 64), (8, 64, 200), (1 << 20, 1 << 20, 1 << 20), (30, 100, 1 << 20), (0, 2, 4)]:
        for name, value in (("_GAP", gap), ("_BLOCK", block), ("_BATCH", batch)):
            monkeypatch.setattr(shardinit._store, name, value)
        checkpoint = shardinit.open("memory://pieces/out")
        monkeypatch.setattr(checkpoint._files._fs, "cat_ranges", counting)
        for _ in range(20):
            part = random_region(words.shape, draw)
            asked.clear()
            found = checkpoint.read("t", part, verify=draw.random() < 0.3)
            assert np.array_equal(bits_of(found), words[part]), (gap, block, batch, part)
            for ranges in asked:
                if any(path.endswith("json") for path, _, _ in ranges):
                    continue
                assert all(0 < end - start <= max(block, 2) for _, start, end in ranges)
                assert len(ranges) == 1 or sum(end - start for _, start, end in ranges) <= max(batch, 2)
        assert checkpoint.read("one") == words[0, 0, 0, 0]
        # Overlapping parts in one run.
        targets = [random_region(words.shape, draw) for _ in range(10)]
        arrays = [np.zeros(words[part].shape, "<u2") for part in targets]
        checkpoint.run([job for part, array in zip(targets, arrays, strict=True)
                        for job in checkpoint.jobs("t", part, array)])
        assert all(np.array_equal(array, words[part]) for part, array in zip(targets, arrays, strict=True))


# ---- Loaders.


def test_pytorch_loads_from_a_bucket(tiny, environment, options):
    """Loaders accept a URL, with options from the environment, and an open checkpoint."""
    torch = client_of("torch")
    from torch import nn
    out, url = tiny
    wanted = shardinit.torch.load_state_dict(out)

    def model(device="meta", dtype=torch.bfloat16):
        root = nn.Module()
        for path, value in wanted.items():
            at = root
            *parents, name = path.split(".")
            for parent in parents:
                if not hasattr(at, parent):
                    at.add_module(parent, nn.Module())
                at = getattr(at, parent)
            at.register_parameter(name, nn.Parameter(torch.empty(value.shape, dtype=dtype, device=device)))
        return root

    filled = model()
    shardinit.torch.load_into(filled, url, verify=True)
    assert all(torch.equal(value, wanted[path]) for path, value in filled.state_dict().items())
    wide = model("cpu", torch.float32)  # converted through copies, several at a time
    shardinit.torch.load_into(wide, shardinit.open(url, storage_options=options), cast=True)
    assert all(torch.equal(value, wanted[path].float()) for path, value in wide.state_dict().items())

    import torch.distributed.checkpoint as dcp
    state = {path: torch.zeros_like(value) for path, value in wanted.items()}
    dcp.load(state, storage_reader=shardinit.torch.StorageReader(url))
    assert all(torch.equal(state[path], wanted[path]) for path in wanted)
    assert shardinit.torch.StorageReader.validate_checkpoint_id(url)
    assert not shardinit.torch.StorageReader.validate_checkpoint_id(url + "x")


def test_requests_of_copied_tensors_are_merged(tiny, options, server):
    """Requests of tensors that are filled through copies are merged too."""
    torch = client_of("torch")
    out, url = tiny
    checkpoint = shardinit.open(url, storage_options=options)
    layer = torch.nn.Linear(256, 8192, bias=False, dtype=torch.float32)
    both = torch.nn.ModuleDict({"lm_head": layer, "model": torch.nn.ModuleDict({"norm": torch.nn.Module()})})
    both["model"]["norm"].weight = torch.nn.Parameter(torch.zeros(256))
    with server.counted() as made:
        shardinit.torch.load_into(both, checkpoint, cast=True, strict=False)
    wanted = shardinit.torch.load_state_dict(out)
    assert torch.equal(layer.weight, wanted["lm_head.weight"].float())
    asked = [name for method, name in request_kinds(made) if method == "GET" and name.endswith(".h5")]
    assert len(asked) <= 8  # each rank's part of the matrix, and the vector; nothing between them


def test_jax_loads_from_a_bucket(tiny, options, server, tmp_path):
    """Another process loads onto four devices of another mesh, with few requests for all tensors."""
    client_of("jax")
    out, url = tiny
    code = f"""
import os
os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=4")
import jax, numpy, shardinit
there, here = shardinit.open({url!r}, storage_options={options!r}), shardinit.open({str(out)!r})
mesh = jax.sharding.Mesh(numpy.array(jax.devices()).reshape(4, 1), ("fsdp", "tensor"))
shardings = shardinit.jax.shardings_of(there, mesh)
assert shardings == shardinit.jax.shardings_of(here, mesh)
arrays = shardinit.jax.load(there, shardings)
for path, info in here.tensors.items():
    assert (numpy.asarray(arrays[path]).view("<u2") == here.read(path).view("<u2")).all(), path
    assert arrays[path].sharding == shardings[path]
tree = {{path: jax.ShapeDtypeStruct(info.shape, info.numpy_dtype) for path, info in here.tensors.items()}}
filled = shardinit.jax.fill(tree, there, verify=True)
for path in here.tensors:
    assert (numpy.asarray(filled[path]).view("<u2") == here.read(path).view("<u2")).all(), path
assert shardinit.jax.mesh_of(there).axis_names == ("fsdp", "tensor")
"""
    with server.counted() as made:
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": PACKAGE},
                              capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    data = [name for method, name in request_kinds(made) if method == "GET" and name.endswith(".h5")]
    assert len(data) <= 16  # `load` and `fill` each read everything once: 4 files of 2.9 MB.


# ---- Faults.


def upload_copy(tiny, server, name):
    return server.upload(tiny[0], "faults", name)


def path_in(url, name):
    return "/" + url.removeprefix("s3://") + "/" + name


def test_open_reports_a_url_without_checkpoint(server, options, tiny, tmp_path):
    server.put("/faults")
    for url, why in (("s3://faults/nothing", "it has no manifest.json"),
                     ("s3://no-such-bucket/x", "there is no such bucket")):
        with pytest.raises(shardinit.NotACheckpointError) as caught:
            shardinit.open(url, storage_options=options)
        assert str(caught.value).startswith(f"`{url}` is not a checkpoint: {why}")
    url = upload_copy(tiny, server, "unfinished")
    assert server.request("DELETE", path_in(url, "manifest.json"))[0] == 204
    with pytest.raises(shardinit.NotACheckpointError, match=r"it has no manifest.json \(which is written last"):
        shardinit.open(url, storage_options=options)
    with pytest.raises(shardinit.NotACheckpointError, match="a URL is given as text, since a pathlib.Path makes"):
        shardinit.open(pathlib.Path(url))
    with pytest.raises(ValueError, match="`storage_options` are for the URL of a store"):
        shardinit.open(tmp_path, storage_options=options)
    with pytest.raises(ValueError, match="Protocol not known"):
        shardinit.open("nonsense://x/y")


@pytest.mark.parametrize("name", ["ranks/rank-00001.h5", "ranks/rank-00002.json", "plan.json"])
def test_missing_objects_are_damage(name, tiny, server, options):
    url = upload_copy(tiny, server, "missing-" + name.replace("/", "-"))
    assert server.request("DELETE", path_in(url, name))[0] == 204
    checkpoint = shardinit.open(url, storage_options=options)
    with pytest.raises(shardinit.DamageError) as caught:
        checkpoint.read("lm_head.weight")
        checkpoint.partition_spec("lm_head.weight")
    assert str(caught.value) == f"`{url}/{name}` is missing"
    if name != "plan.json":  # only shardings need the plan
        with pytest.raises(shardinit.DamageError, match=f"{name}` is missing"):
            checkpoint.check()


def test_reads_fall_back_to_a_replica(server, options, tmp_path):
    out = gen_ok(TINY, tmp_path, "--replicas", "full")
    url = server.upload(out, "faults", "replicas")
    for name in ("ranks/rank-00000.h5", "ranks/rank-00001.json"):
        assert server.request("DELETE", path_in(url, name))[0] == 204
    found = shardinit.open(url, storage_options=options).read("model.norm.weight", verify=True)
    assert np.array_equal(bits_of(found), bits_of(shardinit.open(out).read("model.norm.weight")))
    with server.counted() as made:
        shardinit.open(url, storage_options=options, rank=3).read("model.norm.weight")
    assert {name for _, name in request_kinds(made)} == {"manifest.json", "rank-00003.json", "rank-00003.h5"}


def test_damaged_objects_are_reported(tiny, server, options):
    url = upload_copy(tiny, server, "damaged")
    path = "lm_head.weight"
    rank = bytearray((tiny[0] / "ranks/rank-00003.h5").read_bytes())
    receipt = json.loads((tiny[0] / "ranks/rank-00003.json").read_text())
    place = next(box["file_offset"] for box in receipt["boxes"] if box["path"] == path)
    rank[place] ^= 1
    server.put(path_in(url, "ranks/rank-00003.h5"), bytes(rank))
    checkpoint = shardinit.open(url, storage_options=options)
    checkpoint.read(path)  # digests are checked only on request
    for slices in (None, (slice(8000, 8001), slice(200, 201))):
        with pytest.raises(shardinit.DamageError,
                           match=rf"the box of `{path}` at \[4096, 128\] in `{url}/ranks/rank-00003.h5` does not"):
            checkpoint.read(path, slices, verify=True)
    server.put(path_in(url, "ranks/rank-00003.h5"), bytes(rank[:-1]))
    with pytest.raises(shardinit.DamageError, match=rf"has {len(rank) - 1} bytes instead of {len(rank)}"):
        shardinit.open(url, storage_options=options).read(path)


def test_a_restored_object_can_be_read_again(tiny, server, options):
    """An open checkpoint looks at the file again for each read, so a restored file is accepted."""
    url = upload_copy(tiny, server, "put-right")
    name = path_in(url, "ranks/rank-00003.h5")
    rank = (tiny[0] / "ranks/rank-00003.h5").read_bytes()
    checkpoint = shardinit.open(url, storage_options=options)
    server.put(name, rank + b"x")
    for _ in range(2):
        with pytest.raises(shardinit.DamageError, match=rf"has {len(rank) + 1} bytes instead of {len(rank)}"):
            checkpoint.read("lm_head.weight")
    server.put(name, rank)
    here = shardinit.open(tiny[0]).read("lm_head.weight")
    assert np.array_equal(bits_of(checkpoint.read("lm_head.weight")), bits_of(here))


def test_objects_of_another_plan_are_rejected(tiny, server, options, tmp_path):
    """Reading fails if another run has overwritten the manifest, a receipt or the plan."""
    other = gen_ok(TINY, tmp_path, "--set", "seed=1")
    for name, text in (
        ("manifest.json", "rank-0000..json` does not have the digest that manifest.json gives"),
        ("ranks/rank-00001.json", "rank-00001.json` does not have the digest"),
        ("plan.json", "plan.json` is not the plan of this checkpoint"),
    ):
        url = upload_copy(tiny, server, "plan-" + name.replace("/", "-"))
        server.put(path_in(url, name), (other / name).read_bytes())
        checkpoint = shardinit.open(url, storage_options=options)
        with pytest.raises(shardinit.DamageError, match=text):
            checkpoint.read("lm_head.weight")
            checkpoint.partition_spec("lm_head.weight")


def test_replaced_objects_are_noticed(tiny, server, options, tmp_path):
    """Objects of equal size from another plan are noticed between two reads and within one. Digests would reveal them
    only on request; the store's metadata always does."""
    other = gen_ok(TINY, tmp_path, "--set", "seed=1")
    url = upload_copy(tiny, server, "replaced")
    name, path = "ranks/rank-00001.h5", "lm_head.weight"
    checkpoint = shardinit.open(url, storage_options=options)
    checkpoint.read(path)
    server.put(path_in(url, name), (other / name).read_bytes())
    for _ in range(2):  # the error persists
        with pytest.raises(shardinit.DamageError, match="rank-00001.h5` was replaced while it was read: open"):
            checkpoint.read(path)
    with pytest.raises(shardinit.DamageError, match="does not have its digest"):
        checkpoint.read(path, verify=True)

    server.put(path_in(url, name), (tiny[0] / name).read_bytes())
    checkpoint = shardinit.open(url, storage_options=options)
    store = checkpoint._files._fs
    plain, done = store.cat_ranges, []

    def replacing(paths, *others, **more):
        found = plain(paths, *others, **more)
        if any(path.endswith(".h5") for path in paths) and not done:
            done.append(server.put(path_in(url, name), (other / name).read_bytes()))
        return found

    store.cat_ranges = replacing
    with pytest.raises(shardinit.DamageError, match="rank-00001.h5` was replaced while it was read: open"):
        checkpoint.read(path)
    assert done
    store.cat_ranges = plain
    assert server.request("DELETE", path_in(url, name))[0] == 204
    with pytest.raises(shardinit.DamageError, match="rank-00001.h5` is missing"):
        checkpoint.read(path)


class Ranges(SimpleHTTPRequestHandler):
    """Serves files over HTTP with range requests, and misbehaves as a test asks."""

    whole = False  # ignores the range and returns the whole file
    cut = 0  # number of bytes missing from a range
    status = 200  # HTTP status for objects with data
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = pathlib.Path(self.translate_path(self.path))
        if path.suffix == ".h5" and self.status != 200:
            return self.send_error(self.status)
        if not path.is_file():
            return self.send_error(404)
        data = path.read_bytes()
        size = len(data)
        if "Range" in self.headers and not self.whole:
            start, end = self.headers["Range"].removeprefix("bytes=").split("-")
            data = data[int(start):int(end) + 1 if end else None]
            if path.suffix == ".h5":
                data = data[:len(data) - self.cut]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{int(start) + len(data) - 1}/{size}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        return self.wfile.write(data)

    def do_HEAD(self):
        if self.path.endswith(".h5") and self.status != 200:
            return self.send_error(self.status)
        return super().do_HEAD()

    def log_message(self, *_):
        pass


class http_server:
    """Runs a server in a `with` block and returns its address."""

    def __init__(self, handler, folder):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *given: handler(*given, directory=str(folder)))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.mark.parametrize("wrong, error, text", [
    ({"cut": 1}, shardinit.DamageError, r"ends early: (\d+) bytes came of the (\d+) from byte \d+ on"),
    ({"cut": 10000}, shardinit.DamageError, "ends early"),
    ({"whole": True}, OSError, "it does not give parts of objects"),
    *(({"status": status}, PermissionError, f"the store refuses it: HTTP status {status}") for status in (401, 403)),
    *(({"status": status}, shardinit.DamageError, "ranks/rank-00000.h5` is missing") for status in (404, 410)),
    ({"status": 500}, OSError, "HTTP status 500|the store failed"),
], ids=str)
def test_wrong_server_responses_are_rejected(wrong, error, text, tiny):
    handler = type("Wrong", (Ranges,), wrong)
    with http_server(handler, tiny[0]) as address:
        checkpoint = shardinit.open(address)
        with pytest.raises(error, match=text) as caught:
            checkpoint.read("lm_head.weight", slice(0, 8))
        assert "rank-0000" in str(caught.value)


def test_refused_requests_are_reported(tiny, tmp_path):
    """A wrong key, a missing key and an unreachable server are reported."""
    url = tiny[1]

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self):
            body = (b'<?xml version="1.0"?><Error><Code>SignatureDoesNotMatch</Code>'
                    b"<Message>The signature does not match.</Message></Error>")
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        options = {"key": "wrong", "secret": "wrong", "endpoint_url": f"http://127.0.0.1:{server.server_port}"}
        with pytest.raises(OSError) as caught:
            shardinit.open(url, storage_options=options)
        assert "signature does not match" in str(caught.value) and f"{url}/manifest.json" in str(caught.value)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_wrong_key_is_reported(tiny, server, options):
    """moto checks signatures after this request, so a wrong key is answered as by S3."""
    status, _ = server.request("POST", "/moto-api/reset-auth", b"0")
    assert status == 200
    try:
        with pytest.raises(PermissionError, match="the store refuses it: .*/manifest.json"):
            shardinit.open(tiny[1], storage_options=options)
    finally:
        status, _ = server.request("POST", "/moto-api/reset-auth", b"inf")
    assert shardinit.open(tiny[1], storage_options=options).name == "llama3-tiny"


def test_check_notices_objects_deleted_later(server, options, tiny, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(tiny[0], copy)
    url = server.upload(copy, "seen", "a")
    for place, how in ((copy, {}), (url, {"storage_options": options})):
        checkpoint = shardinit.open(place, **how)
        checkpoint.check()
        checkpoint.read("model.norm.weight")
        if place == copy:
            (copy / "ranks/rank-00001.h5").unlink()
        else:
            server.request("DELETE", "/seen/a/ranks/rank-00001.h5")
        with pytest.raises(shardinit.DamageError, match="rank-00001.h5` is missing"):
            checkpoint.check()
    # Another object of the same size is noticed too.
    server.upload(tiny[0], "seen", "a")
    checkpoint = shardinit.open(url, storage_options=options)
    checkpoint.read("model.norm.weight")
    name = next(name for name in checkpoint._files._seen if name.endswith(".h5"))
    server.put(f"/seen/a/{name}", bytes((tiny[0] / name).stat().st_size))
    with pytest.raises(shardinit.DamageError, match="was replaced"):
        checkpoint.check()


def test_close_allows_replaced_files(server, options, tiny, tmp_path):
    """After `close`, files that others have replaced are read again; without `close`, a store's replaced file is an
    error."""
    other, copy, path = gen_ok(TINY, tmp_path / "other", "--set", "seed=1"), tmp_path / "copy", "lm_head.weight"
    shutil.copytree(tiny[0], copy)
    url = upload_copy(tiny, server, "closed")

    def replace(there, by):
        for file in sorted(by.glob("ranks/*.h5")):
            if there == url:
                server.put(path_in(url, f"ranks/{file.name}"), file.read_bytes())
            else:
                shutil.copy(file, tmp_path / file.name)
                (tmp_path / file.name).rename(copy / "ranks" / file.name)

    first, second = (bits_of(shardinit.open(folder).read(path)).tobytes() for folder in (tiny[0], other))
    assert first != second
    for there, how in ((copy, {}), (url, {"storage_options": options})):
        checkpoint = shardinit.open(there, **how)
        for by, wanted in ((tiny[0], first), (other, second), (tiny[0], first)):
            checkpoint.close()
            replace(there, by)
            assert bits_of(checkpoint.read(path)).tobytes() == wanted, there
        replace(there, other)
        if there == copy:  # an open file keeps its contents
            assert bits_of(checkpoint.read(path)).tobytes() == first
        else:
            with pytest.raises(shardinit.DamageError, match="was replaced while it was read: open"):
                checkpoint.read(path)


def test_check_reads_receipts_each_time(server, options, tiny, tmp_path):
    """Each `check` reads receipts again, and notices that one is missing, wrong, or right again."""
    copy, name = tmp_path / "copy", "ranks/rank-00002.json"
    shutil.copytree(tiny[0], copy)
    text, url = (copy / name).read_bytes(), upload_copy(tiny, server, "receipts")
    for there, how in ((copy, {}), (url, {"storage_options": options})):
        checkpoint = shardinit.open(there, **how)
        checkpoint.check()
        for found, error in ((None, "is missing"), (text, ""), (text.replace(b'"rank": 2', b'"rank": 1'), "rank"),
                             (text, ""), (b"{", "rank-00002.json"), (text, "")):
            if there == url:
                server.request("DELETE", path_in(url, name)) if found is None else server.put(path_in(url, name), found)
            else:
                (copy / name).unlink() if found is None else (copy / name).write_bytes(found)
            if not error:
                checkpoint.check()
                continue
            with pytest.raises((shardinit.DamageError, shardinit.FormatError), match=error):
                checkpoint.check()


def test_failures_of_fsspec_are_reported(tiny, options):
    """For example, in a forked process fsspec cannot use a file system that its parent opened."""
    checkpoint = shardinit.open(tiny[1], storage_options=options)
    checkpoint.check()

    def failing(*_, **__):
        raise RuntimeError("not fork-safe")

    checkpoint._files._fs.cat_ranges = failing
    with pytest.raises(OSError, match="the store failed: not fork-safe: '.*ranks/rank-0000.*json'"):
        checkpoint.check()


def test_threads_can_read_one_checkpoint(options, tiny):
    """Several threads can read at once, and a closed checkpoint can read again."""
    here, path = shardinit.open(tiny[0]), "model.layers.0.mlp.down_proj.weight"
    wanted = bits_of(here.read(path))
    with shardinit.open(tiny[1], storage_options=options) as checkpoint:
        found = []
        threads = [threading.Thread(target=lambda: found.append(checkpoint.read(path))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found.append(checkpoint.read(path))
    assert len(found) == 7 and all(np.array_equal(bits_of(each), wanted) for each in found)


HOSTILE = ["../manifest.json", "/manifest.json", "ranks//x", "%2e%2e/manifest.json", "a?versionId=1", "a#b", "a b", ""]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_a_store_misreads_are_rejected(name):
    """Exports can contain any names; names that a store might misinterpret are rejected."""
    fsspec.filesystem("memory").pipe("/names/manifest.json", b"{}")
    with pytest.raises(shardinit.FormatError, match="is not the name of a file in a store"):
        shardinit._store.StoreFiles("memory://names", None).read(name)


def test_invalid_manifests_in_a_store_are_rejected():
    memory = fsspec.filesystem("memory")
    for number, text in enumerate([b"", b"[]", b"{", b"\xff\xfe", b"{}"]):
        memory.pipe(f"/texts/{number}/manifest.json", text)
        with pytest.raises(shardinit.FormatError):
            shardinit.open(f"memory://texts/{number}")


def test_an_empty_manifest_is_rejected(server, options):
    server.put("/faults")
    server.put("/faults/empty/manifest.json", b"")
    with pytest.raises(shardinit.FormatError, match="manifest.json` is not valid JSON"):
        shardinit.open("s3://faults/empty", storage_options=options)


def test_credentials_in_urls_are_hidden(tiny):
    with http_server(Ranges, tiny[0]) as address:
        checkpoint = shardinit.open(address.replace("://", "://user:secret@"))
        assert checkpoint.folder == address and "secret" not in repr(checkpoint)


def test_folders_can_be_read_without_fsspec(tiny):
    """Reading a folder does not need fsspec; opening a URL reports which package to install."""
    code = (
        "import sys\n"
        "for name in ('fsspec', 's3fs'): sys.modules[name] = None\n"
        f"import shardinit; shardinit.open({str(tiny[0])!r}).read('lm_head.weight', 3)\n"
        "try: shardinit.open('s3://bucket/x')\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True,
                          text=True, timeout=100, check=True)
    assert done.stdout == 'reading `s3://bucket/x` needs fsspec: pip install "shardinit[s3]"\n'


@pytest.mark.parametrize("version, text", [("0.4.2", "there is s3fs 0.4.2, which is too old"), (None, "needs s3fs")])
def test_missing_or_old_s3fs_is_reported(version, text, monkeypatch):
    from importlib import metadata

    def found(name):
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", found)
    with pytest.raises(ImportError, match=text):
        shardinit.open("s3://bucket/x")


# ---- HDF5 without the package.


def dumped(url, path):
    """Returns a dataset's numbers, read with h5dump over HTTP."""
    program = shutil.which("h5dump")
    if program is None:
        pytest.skip("not tested: h5dump is not installed (hdf5-tools)")
    done = subprocess.run([program, "-f", "ros3", "-m", "%.9g", "-y", "-w", "1", "-d", path, url],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr + done.stdout
    text = done.stdout.split("DATA {", 1)[1].split("}", 1)[0]
    return np.array(text.replace(",", " ").split(), float)


F32 = """
shardinit: 1
name: ros3
dtype: f32
mesh: {axes: {a: 2, b: 2}}
modules:
  m.weight: {shape: [6, 4], shard: [a, b], init: {normal: {std: 1}}}
  m.bias: {shape: [4], init: ones}
"""


def test_h5dump_reads_rank_files_and_the_index(server, options, tmp_path):
    """h5dump reads public files over HTTP. A trap: for a missing or unreadable rank file it returns NaN and
    succeeds."""
    out = gen_ok(F32, tmp_path)
    url = server.upload(out, "hdf5", "f32")
    address = server.url + "/hdf5/f32"
    with shardinit.open(url, storage_options=options) as checkpoint:
        weight, shards = checkpoint.read("m.weight"), checkpoint.info("m.weight").shards
    for shard in shards:
        box = weight[tuple(slice(o, o + n) for o, n in zip(shard.offset, shard.shape, strict=True))]
        found = dumped(f"{address}/ranks/rank-{shard.rank:05d}.h5", "/m/weight")
        assert np.array_equal(found.astype("<f4"), box.reshape(-1))
    assert np.array_equal(dumped(f"{address}/index.h5", "/m/weight").astype("<f4"), weight.reshape(-1))
    assert np.array_equal(dumped(f"{address}/index.h5", "/m/bias"), np.ones(4))

    gone = "/hdf5/f32/ranks/rank-00003.h5"
    data, private = (out / "ranks/rank-00003.h5").read_bytes(), {"x-amz-acl": "private"}
    for method, body, headers in (("PUT", data, private), ("DELETE", b"", {})):
        assert server.request(method, gone, body, headers)[0] in (200, 204)
        found = dumped(f"{address}/index.h5", "/m/weight").reshape(6, 4)
        assert np.isnan(found[3:, 2:]).all() and np.array_equal(found[:3].astype("<f4"), weight[:3])
    # As shardinit-format(5) recommends, `check` first: it notices the missing file.
    with shardinit.open(url, storage_options=options) as checkpoint:
        with pytest.raises(shardinit.DamageError, match="rank-00003.h5` is missing"):
            checkpoint.check()


def test_a_public_bucket_needs_no_credentials(tiny, monkeypatch):
    """Without keys, requests are sent unsigned, and a bucket that is not public is an error with the reason."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with lying_store() as store:
        store.objects = {f"p/{path.relative_to(tiny[0])}": path.read_bytes()
                         for path in tiny[0].rglob("*") if path.is_file()}
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        checkpoint = shardinit.open("s3://bucket/p")
        checkpoint.check()
        np.testing.assert_array_equal(bits_of(checkpoint["lm_head.weight"]),
                                      bits_of(shardinit.open(tiny[0])["lm_head.weight"]))
        assert store.asked and not any("authorization" in request.headers for request in store.asked)
        store.services["GET", "/bucket/p/manifest.json"] = (403,
                                                            "<Error><Code>AccessDenied</Code><Message>no</Message></Error>")
        with pytest.raises(PermissionError, match="the bucket is not public, and credentials are missing"):
            shardinit.open("s3://bucket/p")


def test_error_messages_contain_no_secrets(monkeypatch):
    """Error messages contain no secret, even if a store repeats all or part of a request, with any status."""
    secrets = {"AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
               "AWS_SESSION_TOKEN": "FwoGZXIvYXdzEJr//////////wEaDKq+Long=="}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    with lying_store() as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        for secret in secrets.values():
            for echo in (secret, urllib.parse.quote(secret, safe=""), secret[:20], secret + secret):
                for status, code in ((403, "AccessDenied"), (400, "ExpiredToken"), (404, "NoSuchKey"), (400, "Odd")):
                    store.services["GET", "/bucket/p/manifest.json"] = (
                        status, f"<Error><Code>{code}</Code><Message>bad token {echo} here</Message></Error>")
                    try:
                        shardinit.open("s3://bucket/p")
                    except Exception as error:
                        text = "".join(traceback.format_exception(error))
                    else:
                        raise AssertionError("it was opened")
                    assert not any(piece in text for piece in (secret[i:i + 8] for i in range(len(secret) - 7))), text
