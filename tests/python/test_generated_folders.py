"""Packages that own the formats write random folders of tensors and read the result after `convert` carried it through
several formats. The SHA-256 of every tensor is preserved, and the Python package reads the same bytes."""

import hashlib
import pathlib
import re
import tempfile

import folder_makers
import numpy as np
import pytest
from clients import client_of
from folder_makers import bytes_of
from generated import generated, given
from hypothesis import example
from hypothesis import strategies as st
from support import run_ok, run_tool

import shardinit

torch = client_of("torch")
safetensors_torch = client_of("safetensors.torch")
dcp = client_of("torch.distributed.checkpoint")

DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16,
          "f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2, "i8": torch.int8, "i16": torch.int16,
          "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "u16": torch.uint16, "u32": torch.uint32,
          "u64": torch.uint64, "bool": torch.bool, "f8e8m0": torch.float8_e8m0fnu,
          "f8e4m3fnuz": torch.float8_e4m3fnuz, "f8e5m2fnuz": torch.float8_e5m2fnuz,
          "f4e2m1fn": torch.float4_e2m1fn_x2, "c64": torch.complex64}
OF_FILES_ALONE = {"f8e8m0", "f8e4m3fnuz", "f8e5m2fnuz", "f4e2m1fn", "c64"}  # types that checkpoints do not have
WRITERS = {"safetensors": folder_makers.safetensors_single, "sharded": folder_makers.safetensors_sharded,
           "bin": folder_makers.torch_bin, "pt": folder_makers.torch_file, "legacy": folder_makers.torch_legacy,
           "dcp": folder_makers.torch_dcp, "run": folder_makers.torch_dcp_run, "zarr": folder_makers.orbax_zarr2_raw}
FORMATS = ["safetensors", "dcp", "hf-dcp", "zarr", "hdf5"]
# Names that specs cannot have, and the names that each format can hold.
ODD = ["a b", "x<y>.w", "µ.gewicht", "层.0.重み", "a:b#c", "enc/dec.w", "100%25", "q?*[x].w", "it's \"so\"", "back\\slash",
       "é.w..x", "-o", " ", "~", "__metadata", "$HOME.`w`"]
CARRIED = {"hdf5": re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII), "zarr": re.compile("[^/]+")}


@st.composite
def tensors(draw):
    """Draws names, types and shapes, and a seed for random bits, which include NaN payloads, -0 and subnormal
    numbers."""
    names = draw(st.lists(st.sampled_from(
        ["model.embed_tokens.weight", "model.layers.0.mlp.up.weight", "model.layers.0.mlp.up.bias",
         "model.layers.10.norm.weight", "model.layers.2.norm.weight", "lm_head.weight", "a", "b.c", "step_size",
         *ODD]),
        min_size=1, max_size=5, unique=True))
    forms = {name: (draw(st.sampled_from(sorted(DTYPES))),
                    tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 33]), max_size=3)))) for name in names}
    # safetensors cannot hold a single number of 4 bits.
    return {name: (dtype, shape or (1,) if dtype == "f4e2m1fn" else shape) for name, (dtype, shape) in forms.items()}


def made(forms, seed):
    bits = np.random.default_rng(seed)
    state = {}
    for name, (dtype, shape) in forms.items():
        size = DTYPES[dtype].itemsize * int(np.prod(shape))
        raw = bits.integers(0, 2 if dtype == "bool" else 256, size, dtype=np.uint8)
        state[name] = torch.from_numpy(raw).view(DTYPES[dtype]).reshape(shape)
    return state


def write(writer, state, folder):
    """Writes the tensors and returns the path for `convert`."""
    return WRITERS[writer](folder / "in", state)


def read(form, folder, forms):
    """Returns each tensor's bytes as the package that owns the format reads them."""
    if form == "safetensors":
        return {n: bytes_of(t) for n, t in safetensors_torch.load_file(folder / "model.safetensors").items()}
    state = {name: torch.zeros(shape, dtype=DTYPES[dtype]) for name, (dtype, shape) in forms.items()}
    if form == "dcp":
        dcp.load(state, checkpoint_id=folder)
    else:
        dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(folder)))
    return {name: bytes_of(t) for name, t in state.items()}


@st.composite
def cases(draw):
    return (draw(st.sampled_from(list(WRITERS))), draw(tensors()), draw(st.integers(0, 1 << 30)),
            draw(st.lists(st.sampled_from(FORMATS), max_size=2)), draw(st.sampled_from(["safetensors", "dcp"])),
            draw(st.sampled_from([1, 8])))


@generated(40)
@given(case=cases())
@example(case=("pt", {"lm_head.weight": ("u8", (3,))}, 0, [], "dcp", 1))  # not the state of a generator
def test_random_folders_survive_a_chain_of_conversions(case):
    writer, forms, seed, through, last, jobs = case
    if writer == "zarr":  # Orbax makes nested folders of names with a slash or a backslash.
        forms = {tensor: form for tensor, form in forms.items()
                 if not set(tensor) & {"/", "\\"} and form[0] != "f4e2m1fn"} or {"a": ("f32", (3,))}
    state = made(forms, seed)
    wanted = {name: bytes_of(t) for name, t in state.items()}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        at = write(writer, state, folder)
        lines = [line.split("  ", 1) for line in run_ok("digest", at).stdout.splitlines()]
        digests = {tensor: digest for digest, tensor in lines}
        for tensor, data in wanted.items():
            assert digests[tensor] == hashlib.sha256(data).hexdigest(), tensor
        opened = shardinit.open(at)
        assert opened.tensors.keys() == digests.keys() - {"(model)"}
        for tensor, data in wanted.items():
            found = opened.read(tensor)
            assert found.tobytes() == data and opened.info(tensor).global_shape == forms[tensor][1], tensor
            if found.ndim:
                assert opened[tensor][1:].tobytes() == found[1:].tobytes(), tensor
        for step, form in enumerate([*through, last]):
            to = folder / f"{step}-{form}"
            has_names = form not in CARRIED or all(CARRIED[form].fullmatch(tensor) for tensor in state)
            lacking = {"hdf5": OF_FILES_ALONE, "zarr": {"f4e2m1fn"}}.get(form, set())
            has_types = not lacking & {dtype for dtype, _ in forms.values()}
            if not has_names or not has_types:
                result = run_tool("convert", at, "--to", form, "-o", to)
                assert (result.returncode, to.exists()) == (2, False), result
                assert any(part in result.stderr for part in (
                    " cannot be ", ", which no checkpoint has", ", a type that zarr does not have")), result
                continue
            run_ok("convert", at, "--to", form, "-o", to, "-j", jobs, "-q")
            run_ok("verify", to, "-q")
            at = to
        assert read(last, at, forms) == wanted
        assert run_tool("diff", folder / f"{len(through)}-{last}", at, "--values").returncode == 0


def damage(path, kind):
    """Damages the largest file that `write` made, except JSON files. A folder of safetensors files is readable without
    its index."""
    files = sorted(f for f in ([path] if path.is_file() else path.rglob("*"))
                   if f.is_file() and f.name[0] != "." and f.suffix != ".json")
    largest = max(files, key=lambda f: (f.stat().st_size, str(f)))
    data = largest.read_bytes()
    if kind == "truncated":
        largest.write_bytes(data[:-1])
    elif kind == "empty":
        largest.write_bytes(b"")
    else:
        largest.unlink()


@generated(20)
@given(case=st.tuples(st.sampled_from([w for w in WRITERS if w != "zarr"]), tensors(), st.integers(0, 1 << 30),
                      st.sampled_from(["truncated", "empty", "lost"])))
def test_convert_rejects_random_damage_of_folders(case):
    """A damaged folder gives an error and no output, also if the Python package opened it before the damage."""
    writer, forms, seed, kind = case
    if (writer, kind) == ("run", "truncated"):
        kind = "lost"  # the end of the file may not belong to the model
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path = write(writer, made(forms, seed), folder)
        opened = shardinit.open(path)
        damage(path, kind)
        with pytest.raises((shardinit.DamageError, shardinit.FormatError)):
            for tensor in forms:
                opened.read(tensor)
        result = run_tool("convert", path, "--to", "dcp", "-o", folder / "out")
        assert result.returncode in (2, 3, 4, 5), result
        assert "error:" in result.stderr and not (folder / "out").exists(), result
