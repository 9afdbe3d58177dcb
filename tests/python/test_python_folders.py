"""The Python package reads folders that other tools wrote: the values that these tools load, from a folder or a store,
and an error for every damage."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import folder_makers
import numpy as np
import pytest

from clients import PACKAGE, bits_of, client_of, gen_ok
from support import AWKWARD, TINY, run_ok

import shardinit

fsspec = client_of("fsspec")
torch = client_of("torch")

RNG = np.random.default_rng(5)
VALUES = {name: RNG.standard_normal(shape).astype(dtype) for name, shape, dtype in [
    ("block.0.weight", (67, 130), "f4"), ("block.0.bias", (67,), "f8"), ("table", (5, 7, 11), "f2"),
    ("scalar", (), "f4")]}


def tensors():
    return {name: torch.from_numpy(np.array(value)) for name, value in VALUES.items()}


def write_safetensors(folder):
    folder_makers.safetensors_single(folder, tensors())


def write_bin(folder):
    folder_makers.torch_bin(folder, {**tensors(), "table": tensors()["table"].mT.contiguous().mT})


WRITERS = {
    "dcp": lambda folder: folder_makers.torch_dcp(folder, tensors()), "safetensors": write_safetensors,
    "torch_dist": lambda folder: folder_makers.megatron_torch_dist(folder, tensors()), "bin": write_bin,
    "zarr": lambda folder: folder_makers.orbax_zarr2_zstd(folder, tensors()),
    "ocdbt": lambda folder: folder_makers.orbax_ocdbt(folder, tensors()),
    "zarr3": lambda folder: folder_makers.orbax_zarr3(folder, tensors())}


def in_memory(folder, name):
    """Returns the URL of a copy in a store."""
    fsspec.filesystem("memory").put(f"{folder}/", f"/{name}/", recursive=True)
    return f"memory://{name}"


def require_equal(opened, wanted):
    assert list(opened) == sorted(wanted)
    for path, value in wanted.items():
        assert np.array_equal(bits_of(opened.read(path)), bits_of(value)), path
        assert opened.info(path).global_shape == value.shape
        box = tuple(slice(n // 3, n - n // 4) for n in value.shape)
        assert np.array_equal(bits_of(opened[path][box]), bits_of(value[box])), path
        into = np.zeros(value.shape[::-1], value.dtype).T
        assert opened.read(path, out=into) is into and np.array_equal(bits_of(into), bits_of(value)), path
        assert np.array_equal(bits_of(opened.read_local(path, 0)), bits_of(value)), path


@pytest.mark.parametrize("kind", WRITERS)
def test_open_reads_what_other_packages_write(kind, tmp_path):
    folder = tmp_path / "in"
    WRITERS[kind](folder)
    with shardinit.open(folder) as opened:
        assert type(opened) is shardinit.TensorFolder
        require_equal(opened, VALUES)
    with shardinit.open(in_memory(folder, f"packages/{kind}")) as opened:
        require_equal(opened, VALUES)
    found = shardinit.torch.load_state_dict(folder)
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors().items())


def test_open_reads_a_single_file(tmp_path):
    torch.save(tensors(), tmp_path / "model.pt")
    require_equal(shardinit.open(tmp_path / "model.pt"), VALUES)
    client_of("safetensors.numpy").save_file(VALUES, tmp_path / "any")
    require_equal(shardinit.open(tmp_path / "any"), VALUES)


@pytest.mark.parametrize("to", ["safetensors", "dcp", "hf-dcp", "zarr", "megatron"])
@pytest.mark.parametrize("mesh", ["a=1,b=1", "a=3,b=2"])
def test_export_without_its_record_reads_the_same(to, mesh, tmp_path):
    """Without its record, an export is another tool's folder with the same tensors."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(AWKWARD)
    what = (spec, "--mesh", mesh) if to != "megatron" else (TINY, "--layout", "torch_dist")
    run_ok("export", *what, "--to", to, "-o", tmp_path / "out")
    export = shardinit.open(tmp_path / "out")
    wanted = {path: bits_of(export.read(path, verify=True)) for path in export}
    (tmp_path / "out/shardinit-export.json").unlink()
    for folder in tmp_path / "out", in_memory(tmp_path / "out", f"exports/{to}/{mesh}"):
        opened = shardinit.open(folder)
        assert type(opened) is shardinit.TensorFolder
        assert {path: (info.dtype, info.shape) for path, info in opened.tensors.items()} == {
            path: (info.dtype, info.shape) for path, info in export.tensors.items()}
        for path, value in wanted.items():
            assert np.array_equal(bits_of(opened.read(path)), value), path


def test_reading_a_changed_file_is_damage(tmp_path):
    write_safetensors(tmp_path / "in")
    file = tmp_path / "in/model.safetensors"
    before = file.read_bytes()
    for change in (lambda: file.unlink(), lambda: os.truncate(file, len(before) // 2), lambda: os.truncate(file, 0),
                   lambda: file.write_bytes(before[:-1] + b"\0"), lambda: shutil.copy(tmp_path / "copy", file)):
        file.write_bytes(before)
        shutil.copy(file, tmp_path / "copy")
        opened = shardinit.open(tmp_path / "in")
        require_equal(opened, VALUES)
        change()
        with pytest.raises(shardinit.DamageError, match=r"model.safetensors` was changed(.|\n)*open the folder again"):
            opened.read("table")


def test_reading_a_replaced_object_is_damage(tmp_path):
    write_safetensors(tmp_path / "in")
    url = in_memory(tmp_path / "in", "changing")
    store = fsspec.filesystem("memory")
    opened = shardinit.open(url)
    opened.read("table")
    before = store.cat("/changing/model.safetensors")
    store.pipe("/changing/model.safetensors", before)
    with pytest.raises(shardinit.DamageError, match="memory://changing/model.safetensors` was replaced"):
        opened.read("table")
    opened = shardinit.open(url)
    store.pipe("/changing/model.safetensors", before[:1000])
    with pytest.raises(shardinit.DamageError, match="was replaced"):
        opened.read("table")
    store.rm("/changing/model.safetensors")
    with pytest.raises(shardinit.DamageError, match="is missing"):
        opened.read("table")


def test_open_reports_damaged_files(tmp_path):
    for kind in "dcp", "bin", "safetensors":
        folder = tmp_path / kind
        WRITERS[kind](folder)
        for file in folder.iterdir():
            file.write_bytes(b"\x80\x7d\xff" + file.read_bytes()[3:500])
        for where in folder, in_memory(folder, f"damaged/{kind}"):
            with pytest.raises(shardinit.FormatError) as caught:
                shardinit.open(where)
            assert str(where) in str(caught.value) and "_added" not in str(caught.value)


def test_open_rejects_folders_without_tensors(tmp_path):
    for where in tmp_path, in_memory(tmp_path, "empty"):
        with pytest.raises(shardinit.NotACheckpointError, match="has no manifest.json"):
            shardinit.open(where)
    unfinished = gen_ok(AWKWARD, tmp_path, "--ranks", "0")
    for where in unfinished, in_memory(unfinished, "unfinished"):
        with pytest.raises(shardinit.NotACheckpointError, match="has no manifest.json"):
            shardinit.open(where)


def test_foreign_folders_cannot_be_read_with_verify(tmp_path):
    write_safetensors(tmp_path / "in")
    opened = shardinit.open(tmp_path / "in")
    with pytest.raises(ValueError, match="records no digests"):
        opened.read("table", verify=True)
    opened.close()
    with pytest.raises(ValueError, match="is closed"):
        opened.read("table")


def test_open_warns_about_tensors_it_cannot_read(tmp_path):
    torch.save({"w": torch.ones(3), "c": torch.ones(3, dtype=torch.complex128)}, tmp_path / "model.pt")
    with pytest.warns(UserWarning, match="`c` has the type .*: it is not read"):
        assert list(shardinit.open(tmp_path / "model.pt")) == ["w"]


def test_threads_can_read_one_foreign_folder(tmp_path):
    folder_makers.torch_dcp(tmp_path / "in", tensors())
    for where in tmp_path / "in", in_memory(tmp_path / "in", "threads"):
        opened = shardinit.open(where)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda i: opened.read("block.0.weight", slice(i % 60, None)), range(200)))
        assert all(np.array_equal(each, VALUES["block.0.weight"][i % 60:]) for i, each in enumerate(found))


def test_opening_a_foreign_folder_needs_the_library(tmp_path):
    write_safetensors(tmp_path / "in")
    code = f"import shardinit\ntry: shardinit.open({str(tmp_path / 'in')!r})\nexcept shardinit.NotACheckpointError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(PACKAGE), "SHARDINIT_LIBRARY": "/none"})
    assert "cannot be loaded" in done.stdout, done
