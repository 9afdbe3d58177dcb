"""The Python package's own functions read exports in every format."""

import hashlib
import json
import os
import random
import shutil

import numpy as np
import pytest
from clients import bits_of, client_of, gen_ok
from support import AWKWARD, OF_ANY, TINY, reassemble, run_ok
from test_export_keras import REPEATED
from test_python_reader import random_slices

import shardinit

RECORD = "shardinit-export.json"


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Returns format → export, and the tensors that `gen` writes for the same spec."""
    folder = tmp_path_factory.mktemp("exports")
    wanted = reassemble(gen_ok(AWKWARD, folder))
    for format in OF_ANY:
        run_ok("export", folder / "spec.yaml", "--to", format, "-o", folder / format)
    return {format: folder / format for format in OF_ANY}, wanted


@pytest.mark.parametrize("format", OF_ANY)
def test_python_reads_every_export_and_slice(exports, format):
    folders, wanted = exports
    with shardinit.open(folders[format]) as export:
        assert isinstance(export, shardinit.Export) and export.format == format
        assert (export.name, export.seed) == ("awkward", 0)
        assert set(export.tensors) == set(wanted)
        assert export.bytes == sum(words.nbytes for _, words in wanted.values())
        rng = random.Random(0)
        for path, (dtype, words) in wanted.items():
            info = export.tensors[path]
            assert (info.dtype, info.global_shape) == (dtype, words.shape)
            assert np.array_equal(bits_of(export.read(path, verify=True)), words)
            for _ in range(10):
                slices = random_slices(words.shape, rng)
                assert np.array_equal(bits_of(export.read(path, slices)), words[slices])


def test_python_reads_megatron_and_keras_exports(tmp_path):
    for format, spec, arguments in (
        ("megatron", TINY, ["--layout", "torch_dist"]),
        ("keras", REPEATED, []),
    ):
        (tmp_path / format).mkdir()
        wanted = reassemble(gen_ok(spec, tmp_path / format, *arguments))
        if isinstance(spec, str):
            spec = tmp_path / format / "spec.yaml"
        run_ok("export", spec, "--to", format, *arguments, "-o", tmp_path / format / "export")
        export = shardinit.open(tmp_path / format / "export")
        assert set(export.tensors) == set(wanted)
        for path, (_, words) in wanted.items():
            assert np.array_equal(bits_of(export.read(path, verify=True)), words), path


def test_export_reads_only_the_requested_bytes(exports, tmp_path):
    _, wanted = exports
    run_ok("export", TINY, "--to", "safetensors", "--max-shard-size", "1M", "-o", tmp_path / "out")
    assert (tmp_path / "out/model.safetensors.index.json").is_file()
    export = shardinit.open(tmp_path / "out")
    rows = export.read("lm_head.weight", slice(1024, 2048))
    assert np.array_equal(bits_of(rows), bits_of(shardinit.generate(TINY, "lm_head.weight", slice(1024, 2048))))
    assert export.bytes_read == rows.nbytes


@pytest.mark.parametrize("format", OF_ANY)
def test_exports_load_into_models(tmp_path, format):
    torch = client_of("torch")
    from test_python_torch import MODEL, Toy

    checkpoint = gen_ok(MODEL, tmp_path)
    out = tmp_path / "export"
    run_ok("export", tmp_path / "spec.yaml", "--to", format, "-o", out)
    wanted = shardinit.torch.load_state_dict(checkpoint)
    with torch.device("meta"):
        model = Toy()
    assert shardinit.torch.load_into(model, out, verify=True) == ([], [])
    assert all(torch.equal(model.state_dict()[path], each) for path, each in wanted.items())
    state = {path: torch.zeros_like(each) for path, each in wanted.items()}
    torch.distributed.checkpoint.load(
        state, storage_reader=shardinit.torch.StorageReader(out), no_dist=True)
    assert all(torch.equal(state[path], each) for path, each in wanted.items())
    assert shardinit.torch.StorageReader.validate_checkpoint_id(out)
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(shardinit.MismatchError, match=r"missing from the export \(2\)"):
        shardinit.torch.load_into(model, out)


def test_exports_load_into_jax(exports):
    client_of("jax")
    folders, wanted = exports
    for folder in folders.values():
        (array,) = shardinit.jax.load(folder, keys=["wide"]).values()
        assert np.array_equal(bits_of(array), wanted["wide"][1])
        for call in (shardinit.jax.mesh_of, lambda it: shardinit.jax.shardings_of(it, None)):
            with pytest.raises(shardinit.NotACheckpointError, match="does not say over which mesh"):
                call(folder)


def changed(folder, out, change):
    """Returns a copy with a changed record that has a valid digest."""
    shutil.copytree(folder, out)
    text = (out / RECORD).read_text()
    lines = text[: text.rindex('\n "sha256": ') + 1]
    lines = change(lines)
    digest = hashlib.sha256(lines.encode()).hexdigest()
    (out / RECORD).write_text(f'{lines} "sha256": "{digest}"\n}}\n')
    json.loads((out / RECORD).read_text())
    return out


def reads_all(folder, **options):
    with shardinit.open(folder) as export:
        return {path: export.read(path, **options) for path in export.tensors}


def test_malicious_export_records_are_rejected(exports, tmp_path):
    folder = exports[0]["dcp"]
    (tmp_path / "secret").write_bytes(bytes(1 << 20))
    size = (folder / "__0_0.distcp").stat().st_size
    assert reads_all(changed(folder, tmp_path / "same", lambda text: text))
    for number, (old, new, what) in enumerate([
        ('"file": "__0_0.distcp"', '"file": "../secret"', "its file `../secret` is not in the folder"),
        ('"file": "__0_0.distcp"', f'"file": "{tmp_path}/secret"', "its file `/.*/secret` is not in the folder"),
        ('"file": "__0_0.distcp"', '"file": "a//b"', "its file `a//b` is not in the folder"),
        ('"file": "__0_0.distcp"', '"file": 7', "must be string"),
        ('"file": "__0_0.distcp"', r'"file": "a\ud800"', "is not valid JSON"),
        ('"file": "__0_0.distcp"', r'"file": "a\nb\u001b[31m"', r"`a\\nb\\x1b\[31m` cannot be printed"),
        ('"file": "__0_0.distcp"', f'"file": "{"a" * 256}"', "is missing"),
        ('"file": "__0_0.distcp"', f'"file": "{"a/" * 2500}a"', "is missing"),
        ('"format": "dcp"', r'"format": "\u001b[2J"', r'cannot read format "\\u001b\[2J"'),
        (f'"size": {size}', f'"size": {size + 1}', f"has {size} bytes instead of {size + 1}"),
        (f'"size": {size}', '"size": 10', "a box of .* is outside the tensor or its file"),
        (f'"size": {size}', '"size": 1e9', "must be a whole number"),
        ('"export_version": 2', '"export_version": 3', "has version 3 instead of 2"),
        ('"export_version": 2', '"export_version": true', "has version true instead of 2"),
        ('"path": "wide"', '"path": "../wide"', "no spec has the tensor path"),
        ('"dtype": "f64"', '"dtype": "f65"', "unknown dtype"),
        ('"global_shape": [33, 17]', '"global_shape": [33, 18]', "is there twice|is not whole"),
        ('"global_shape": [33, 17]', '"global_shape": [4611686018427387904, 17]', "cannot have the shape"),
        ('"offset": [0, 0]', '"offset": [0, -1]', "a box of .* is outside the tensor"),
        ('"offset": [0, 0]', '"offset": [0, 0, 0]', "a box of .* is outside the tensor"),
        ('"file_offset": ', '"file_offset": -', "a number is negative"),
        ('"file_offset": ', f'"file_offset": {size}', "outside the tensor or its file"),
    ]):
        out = changed(folder, tmp_path / str(number), lambda text: text.replace(old, new, 1))
        with pytest.raises((shardinit.FormatError, shardinit.DamageError), match=what):
            reads_all(out)
    loop = changed(folder, tmp_path / "loop", lambda text: text.replace("__0_0", "loop/__0_0", 1))
    (loop / "loop").symlink_to("loop")
    with pytest.raises(shardinit.FormatError, match="loop/loop` is a symbolic link"):
        reads_all(loop)
    text = (folder / RECORD).read_text()
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    for new in (text.replace("awkward", "awkwarD"), text[:-2], text + "\n", "{}", "[]", "{", "[" * 9999):
        (other / RECORD).write_text(new)
        with pytest.raises((shardinit.FormatError, shardinit.DamageError)):
            shardinit.open(other)
    (other / RECORD).unlink()
    (other / RECORD).mkdir()
    with pytest.raises(shardinit.FormatError, match=f"{RECORD}` is not a regular file"):
        shardinit.open(other)


def test_damaged_exports_are_rejected(exports, tmp_path):
    for format, name in (("dcp", "__1_0.distcp"), ("zarr", "matrix/1.0")):
        out = tmp_path / format
        shutil.copytree(exports[0][format], out)
        data = bytearray((out / name).read_bytes())
        record = json.loads((out / RECORD).read_text())
        (at,) = [box["file_offset"] for file in record["files"] if file["file"] == name
                 for box in file["boxes"] if box["path"] == "matrix"]
        data[at] ^= 1
        (out / name).write_bytes(data)
        reads_all(out)
        with pytest.raises(shardinit.DamageError, match="box of `matrix` .* does not have its digest"):
            reads_all(out, verify=True)
        (out / name).write_bytes(data[:-1])
        with pytest.raises(shardinit.DamageError, match=f"has {len(data) - 1} bytes instead of {len(data)}"):
            reads_all(out)
        (out / name).unlink()
        with pytest.raises(shardinit.DamageError, match=f"{name}` is missing"):
            reads_all(out)
        os.symlink(exports[0][format] / name, out / name)
        with pytest.raises(shardinit.FormatError, match="is a symbolic link"):
            reads_all(out)
        (out / name).unlink()
        shutil.copy(exports[0][format] / name, out / name)
        (out / RECORD).unlink()
        assert type(shardinit.open(out)) is shardinit.TensorFolder
