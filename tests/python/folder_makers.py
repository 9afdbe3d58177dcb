"""Writes folders of tensors with the packages that own the formats. Each function gets a path that does not exist and a
dictionary of PyTorch's tensors, and returns the path to read."""

import json
import subprocess
import sys

import ml_dtypes
import numpy as np
from clients import client_of
from support import ROOT, reassemble, run_ok

torch = client_of("torch")
safetensors_torch = client_of("safetensors.torch")
dcp = client_of("torch.distributed.checkpoint")
ocp = client_of("orbax.checkpoint")

# NumPy's types, for Orbax.
OF_NUMPY = {torch.bfloat16: ml_dtypes.bfloat16, torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
            torch.float8_e5m2: ml_dtypes.float8_e5m2, torch.float8_e8m0fnu: ml_dtypes.float8_e8m0fnu,
            torch.float8_e4m3fnuz: ml_dtypes.float8_e4m3fnuz, torch.float8_e5m2fnuz: ml_dtypes.float8_e5m2fnuz}

MEGATRON = """
import sys, megatron_model, torch
from megatron.core import dist_checkpointing
megatron_model.start(0, 1, sys.argv[1], {})
for saved in sys.argv[2:]:
    state = {name: dist_checkpointing.ShardedTensor.from_rank_offsets(name, t) for name, t in torch.load(saved).items()}
    dist_checkpointing.save(state, saved.removesuffix(".pt"))
"""


def bytes_of(tensor):
    """Returns the bytes of the elements, whatever NaN payloads they have."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def arrays_of(state):
    """Returns the tensors as arrays of NumPy."""
    return {name: np.frombuffer(bytes_of(t), OF_NUMPY.get(t.dtype) or torch.empty(0, dtype=t.dtype).numpy().dtype)
            .reshape(t.shape) for name, t in state.items()}


def safetensors_single(path, state):
    path.mkdir()
    safetensors_torch.save_file(state, path / "model.safetensors")
    return path


def safetensors_sharded(path, state):
    path.mkdir()
    weight_map = {}
    for i, name in enumerate(state):
        file = f"model-{i + 1:05}-of-{len(state):05}.safetensors"
        safetensors_torch.save_file({name: state[name]}, path / file)
        weight_map[name] = file
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


def torch_bin(path, state):
    path.mkdir()
    torch.save(state, path / "pytorch_model.bin")
    return path


def torch_file(path, state, is_zip=True):
    """Saves a training state with strided parameters."""
    path = path.with_suffix(".pt")
    strided = {name: torch.nn.Parameter(t, requires_grad=False) if t.dim() != 2 else t.t().contiguous().t()
               for name, t in state.items()}
    torch.save({"state_dict": strided, "optimizer": {"state": {}}, "epoch": 3}, path,
               _use_new_zipfile_serialization=is_zip)
    return path


def torch_legacy(path, state):
    return torch_file(path, state, is_zip=False)


def torch_dcp(path, state):
    dcp.save(dict(state), checkpoint_id=path, no_dist=True)
    return path


def torch_dcp_run(path, state):
    dcp.save({"model": state, "optim": {"state": {"w": {"exp_avg": torch.zeros(3)}}}, "step": 5}, checkpoint_id=path,
             no_dist=True)
    return path


def torch_dcp_safetensors(path, state):
    dcp.save(dict(state), storage_writer=dcp.HuggingFaceStorageWriter(str(path)), no_dist=True)
    return path


def megatron_torch_dist(path, state, **others):
    """Saves with megatron-core in another process, because it sets up process groups. The process takes long to start,
    so it can save `others` next to the path, {name: state}."""
    client_of("megatron.core")
    states = {path: state, **{path.with_name(name): other for name, other in others.items()}}
    for folder, tensors in states.items():
        torch.save(tensors, f"{folder}.pt")
        folder.mkdir()
    (path.parent / "rendezvous").unlink(missing_ok=True)
    done = subprocess.run([sys.executable, "-c", MEGATRON, path.parent, *(f"{folder}.pt" for folder in states)],
                          capture_output=True, text=True, timeout=300, cwd=ROOT / "tests/python")
    assert done.returncode == 0, done.stderr
    return path


def orbax_zarr2_raw(path, state):
    ocp.PyTreeCheckpointer(use_ocdbt=False, use_compression=False).save(path, arrays_of(state))
    return path


def orbax_zarr2_zstd(path, state):
    ocp.PyTreeCheckpointer(use_ocdbt=False).save(path, arrays_of(state))
    return path


def orbax_zarr3(path, state):
    ocp.PyTreeCheckpointer(use_ocdbt=False, use_zarr3=True).save(path, arrays_of(state))
    return path


def orbax_ocdbt(path, state):
    ocp.PyTreeCheckpointer().save(path, arrays_of(state))
    return path


def orbax_v1(path, state):
    ocp.v1.save_pytree(path, arrays_of(state))
    return path


def orbax_manager(path, state):
    """Returns a step of the manager's folder."""
    with ocp.CheckpointManager(path) as manager:
        manager.save(3, args=ocp.args.StandardSave(arrays_of(state)))
        manager.wait_until_finished()
    return path / "3"


def keras_h5(path, state):
    """Saves a model of Keras whose kernel and bias are the tensors."""
    keras = client_of("keras")
    kernel, bias = arrays_of(state).values()
    dense = keras.layers.Dense(bias.shape[0])
    model = keras.Sequential([keras.layers.Input(kernel.shape[:1]), dense])
    dense.set_weights([kernel, bias])
    model.save_weights(path.with_suffix(".weights.h5"))
    return path.with_suffix(".weights.h5")


def shardinit_hdf5(path, state, *options):
    """Makes a checkpoint of shardinit, whose HDF5 files h5py can read."""
    source = safetensors_single(path.parent / f"{path.name}-source", state)
    run_ok("convert", source, "--to", "hdf5", "-o", path, "-q", *options)
    found = {name: words.tobytes() for name, (_, words) in reassemble(path).items()}
    assert found == {name: bytes_of(t) for name, t in state.items()}
    return path


def shardinit_hdf5_ranks(path, state):
    return shardinit_hdf5(path, state, "--sharding", "fsdpv2", "--mesh", "fsdp=2")
