"""Helpers for the tests of the Python package."""

import hashlib
import importlib
import json
import os
import pathlib
import sys

import numpy as np
import pytest
from support import BINARY, ROOT, run_ok

PACKAGE = ROOT / "src/python"
sys.path.insert(0, str(PACKAGE))
# The library from the program's build.
LIBRARY = pathlib.Path(os.environ.setdefault("SHARDINIT_LIBRARY", str(BINARY.parent / "libshardinit.so.1")))


os.environ.setdefault("KERAS_BACKEND", "jax")  # The default is TensorFlow.


def client_of(name):
    """Imports this package, or skips the test with a reason."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"not tested: {name} ({error})", allow_module_level=True)


def like_torch_cpu():
    """Returns a mark for tests that need PyTorch to draw the numbers of the engine
    torch_cpu."""
    torch = client_of("torch")
    assert torch.__version__.startswith("2.13"), torch.__version__
    capability = torch.backends.cpu.get_cpu_capability()
    return pytest.mark.skipif(capability not in ("AVX2", "AVX512"),
                              reason=f"PyTorch draws other numbers on {capability} than with AVX2")


# A spec with the nested names of JAX libraries.
FLAX = """
shardinit: 1
name: flax
dtype: f32
mesh: {axes: {a: 2}}
init: {n: {normal: {std: 0.1}}}
modules:
  up.kernel: {shape: [16, 32], shard: [null, a], init: n}
  up.bias: {shape: [32], init: zeros}
  down.kernel: {shape: [32, 16], shard: [a], init: n}
  down.bias: {shape: [16], init: zeros}
"""


def gen_ok(spec, folder, *arguments):
    """Makes a checkpoint from a spec's text or file in `folder`/out."""
    if isinstance(spec, str):
        path = pathlib.Path(folder) / "spec.yaml"
        path.write_text(spec)
        spec = path
    out = pathlib.Path(folder) / "out"
    run_ok("gen", spec, "-o", out, *arguments)
    return out


def bits_of(array):
    array = np.asarray(array)
    return array.view(f"<u{array.dtype.itemsize}")


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


def write_checkpoint(folder, tensors, ranks):
    """Makes a checkpoint by hand, in a form that shardinit does not write (yet).

    `tensors`: path → (dtype name, array of words, [(rank, slices)]). The rank files contain
    only the boxes, since receipts are enough for readers."""
    folder = pathlib.Path(folder)
    (folder / "ranks").mkdir(parents=True)
    plan = json.dumps(
        {
            "tensors": [
                {"path": p, "partition_spec": [[] for _ in words.shape]}
                for p, (_, words, _) in tensors.items()
            ]
        }
    ).encode()
    (folder / "plan.json").write_bytes(plan)
    files, boxes = [b"\x89HDF" for _ in range(ranks)], [[] for _ in range(ranks)]
    listed = []
    for path, (dtype, words, cuts) in tensors.items():
        shards = []
        for rank, slices in cuts:
            data = np.array(words[slices])
            offset = [s.start or 0 for s in slices]
            shard = {
                "rank": rank,
                "offset": offset,
                "shape": list(data.shape),
                "sha256": digest_of(data.tobytes()),
            }
            shards.append(shard)
            boxes[rank].append(
                {
                    "path": path,
                    "offset": offset,
                    "shape": list(data.shape),
                    "dataset": "/" + path.replace(".", "/"),
                    "file_offset": len(files[rank]),
                    "bytes": data.nbytes,
                    "sha256": shard["sha256"],
                }
            )
            files[rank] += data.tobytes()
        listed.append(
            {
                "path": path,
                "dtype": dtype,
                "global_shape": list(words.shape),
                "dataset": "/" + path.replace(".", "/"),
                "shards": shards,
            }
        )
    entries = []
    for rank in range(ranks):
        name = f"ranks/rank-{rank:05d}"
        (folder / f"{name}.h5").write_bytes(files[rank])
        receipt = json.dumps(
            {
                "format_version": 1,
                "rank": rank,
                "coordinate": [rank],
                "file": f"{name}.h5",
                "size": len(files[rank]),
                "plan_sha256": digest_of(plan),
                "metadata_sha256": "0" * 64,
                "boxes": boxes[rank],
            }
        ).encode()
        (folder / f"{name}.json").write_bytes(receipt)
        entries.append(
            {
                "rank": rank,
                "file": f"{name}.h5",
                "size": len(files[rank]),
                "receipt": f"{name}.json",
                "receipt_sha256": digest_of(receipt),
            }
        )
    (folder / "manifest.json").write_text(
        json.dumps(
            {
                "format_version": 1,
                "contract_version": 1,
                "name": "handmade",
                "engine": "philox4x32",
                "seed": 0,
                "mesh": {"axes": ["r"], "shape": [ranks]},
                "world_size": ranks,
                "replicas": "dedupe",
                "parameters": sum(w.size for _, w, _ in tensors.values()),
                "bytes": sum(w.nbytes for _, w, _ in tensors.values()),
                "plan_sha256": digest_of(plan),
                "index": None,
                "ranks": entries,
                "tensors": listed,
            }
        )
    )
    return folder
