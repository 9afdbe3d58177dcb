"""Trainers' own packages read exports; every element must have the bits that `gen` writes."""

import os
import subprocess
import sys

import numpy as np
import pytest
from clients import bits_of, client_of, gen_ok
from support import AWKWARD, DTYPES, FLOATS, reassemble, run_ok

TORCH_WORDS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    path = tmp_path_factory.mktemp("clients") / "spec.yaml"
    path.write_text(AWKWARD)
    return path


@pytest.fixture(scope="module")
def expected(spec):
    return {p: words for p, (_, words) in reassemble(gen_ok(spec, spec.parent)).items()}


@pytest.fixture(scope="module")
def export(spec):
    """Returns a function that exports the awkward spec and returns the folder."""

    def export_it(to, *arguments):
        out = spec.parent / "-".join([to, *map(str, arguments)]).replace("/", "-")
        run_ok("export", spec, "--to", to, "-o", out, *arguments)
        return out

    return export_it


def torch_bits(tensor):
    import torch

    words = tensor.contiguous().view(getattr(torch, TORCH_WORDS[tensor.element_size()])).numpy()
    return words.view(f"<u{words.itemsize}")


def equal(tensors, expected, bits):
    assert tensors.keys() == expected.keys()
    for path, tensor in tensors.items():
        words = bits(tensor)
        assert words.shape == expected[path].shape and words.dtype == expected[path].dtype, path
        assert (words == expected[path]).all(), path


# safetensors -------------------------------------------------------------------


def test_torch_reads_exported_safetensors(export, expected):
    client_of("torch")
    load_file = client_of("safetensors.torch").load_file
    tensors = {}
    for file in export("safetensors", "--max-shard-size", 20_000).glob("*.safetensors"):
        tensors.update(load_file(file))
    equal(tensors, expected, torch_bits)


def test_numpy_reads_slices_of_exported_safetensors(export, expected):
    safe_open = client_of("safetensors").safe_open
    with safe_open(export("safetensors") / "model.safetensors", "numpy") as file:
        assert set(file.keys()) == set(expected)
        for path in ["vector", "matrix", "cube"]:  # NumPy has these types.
            assert (bits_of(file.get_tensor(path)) == expected[path]).all()
        assert (bits_of(file.get_slice("matrix")[3:9, 5:]) == expected["matrix"][3:9, 5:]).all()


# torch.distributed.checkpoint of Hugging Face's files --------------------------------------------------


def distributed_one(rank, world, folder, export, expected):
    """A process of a job that loads DTensors on meshes unrelated to the export."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world
    )
    try:
        types = torch_types()
        whole = {
            path: torch.from_numpy(words.view(f"<i{words.itemsize}")).view(types[path])
            for path, words in expected.items()
        }
        mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "y"))
        wanted = {
            path: distribute_tensor(
                tensor,
                mesh,
                [Shard(0), Replicate() if path == "whole" else Shard(tensor.ndim - 1)],
                src_data_rank=None,
            )
            for path, tensor in whole.items()
        }
        state = {path: torch.full_like(tensor, 7) for path, tensor in wanted.items()}
        dcp.load(state, storage_reader=HuggingFaceStorageReader(str(export)))
        for path, dtensor in state.items():
            held = torch_bits(dtensor.to_local())
            assert (held == torch_bits(wanted[path].to_local())).all(), path
    finally:
        dist.destroy_process_group()


def torch_types():
    import torch

    return {"vector": torch.float32, "short": torch.bfloat16, "matrix": torch.float64,
            "columns": torch.bfloat16, "wide": torch.bfloat16, "cube": torch.float16,
            "deep": torch.float32, "whole": torch.bfloat16, "one": torch.float16,
            "zeros": torch.float32, "constant": torch.float16}


def test_torch_loads_exported_hf_dcp_onto_another_mesh(export, expected, tmp_path):
    client_of("torch")
    from torch_processes import start

    out = export("hf-dcp", "--mesh", "a=3,b=2")
    start(4, distributed_one, 4, str(tmp_path), str(out), expected)


def test_torch_loads_exported_hf_dcp_in_one_process(export, expected):
    torch = client_of("torch")
    dcp = client_of("torch.distributed.checkpoint")
    state = {p: torch.zeros(w.shape, dtype=torch_types()[p]) for p, w in expected.items()}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(export("hf-dcp"))), no_dist=True)
    equal(state, expected, torch_bits)


# zarr --------------------------------------------------------------------------


def test_tensorstore_reads_exported_zarr(export, expected):
    ts = client_of("tensorstore")
    arrays = {}
    out = export("zarr")
    for path in expected:
        spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{out / path}/"}}
        arrays[path] = ts.open(spec, read=True).result()
    equal(arrays, expected, lambda array: bits_of(np.asarray(array.read().result())))
    assert arrays["cube"].chunk_layout.read_chunk.shape == (5, 6, 7)  # 5 and 7 are prime.
    assert arrays["wide"].chunk_layout.read_chunk.shape == (5, 10000)
    assert arrays["deep"].chunk_layout.read_chunk.shape == (2, 3, 2, 3, 2)


ORBAX = """
import os, sys
os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=8")
import jax, numpy as np, orbax.checkpoint as ocp
from clients import bits_of
from support import reassemble
out, gen = sys.argv[1:]
expected = {p: words for p, (_, words) in reassemble(gen).items()}
jax.config.update("jax_enable_x64", True)

def equal(tree):
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    leaves = {".".join(key.key for key in path): leaf for path, leaf in leaves}
    assert leaves.keys() == expected.keys()
    for path, leaf in leaves.items():
        assert (bits_of(leaf) == expected[path]).all(), path
    return leaves

# As NumPy's arrays.
arrays = ocp.PyTreeCheckpointer().restore(out)
assert all(isinstance(leaf, np.ndarray) for leaf in equal(arrays).values())

# Sharded over 8 devices.
mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
def abstract_of(array):
    cut = [("x" if n % 4 == 0 else "y" if n % 2 == 0 else None) for n in array.shape]
    cut = [axis if axis not in cut[:d] else None for d, axis in enumerate(cut)]
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*cut))
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
abstract = jax.tree.map(abstract_of, arrays)
for checkpointer in ocp.StandardCheckpointer(), ocp.PyTreeCheckpointer():
    if isinstance(checkpointer, ocp.StandardCheckpointer):
        restored = checkpointer.restore(out, abstract)
    else:
        args = ocp.checkpoint_utils.construct_restore_args(abstract)
        restored = checkpointer.restore(out, restore_args=args)
    equal(restored)
    for leaf, wanted in zip(jax.tree.leaves(restored), jax.tree.leaves(abstract)):
        assert isinstance(leaf, jax.Array) and leaf.sharding == wanted.sharding
"""


def script(code, *arguments):
    here = os.path.dirname(os.path.abspath(__file__))
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": here},
    )
    assert result.returncode == 0, result.stderr


def test_orbax_reads_exported_zarr(export, spec, expected):
    client_of("orbax.checkpoint")
    script(ORBAX, export("zarr"), spec.parent / "out")


INDEX = "{expr: 'mod(index, 2)'}"


def test_orbax_restores_nested_paths_and_scalars(tmp_path):
    """Orbax restores paths as nested dictionaries, scalars as one chunk, even shards as chunks, and every dtype."""
    client_of("orbax.checkpoint")
    (tmp_path / "nested.yaml").write_text(
        "shardinit: 1\nname: nested\ndtype: f32\nmesh: {axes: {a: 2, b: 2}}\n"
        "init: {n: {normal: {std: 1}}}\nmodules:\n  step: {shape: [], init: zeros}\n  model:\n"
        "    layers:\n      repeat: {layer: 2}\n      w: {shape: [8, 6], shard: [a, b], init: n}\n"
        "  types:\n"
        + "".join(
            f"    {d}: {{shape: [8, 6], shard: [a, b], dtype: {d}, init: {'n' if d in FLOATS else INDEX}}}\n"
            for d in DTYPES
        )
    )
    run_ok("export", tmp_path / "nested.yaml", "--to", "zarr", "-o", tmp_path / "zarr")
    names = sorted(p.name for p in (tmp_path / "zarr/model.layers.1.w").iterdir())
    assert names == [".zarray", "0.0", "0.1", "1.0", "1.1"]
    assert sorted(p.name for p in (tmp_path / "zarr/step").iterdir()) == [".zarray", "0"]
    script(ORBAX, tmp_path / "zarr", gen_ok(tmp_path / "nested.yaml", tmp_path))
