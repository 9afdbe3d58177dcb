"""Reads random files of `torch.save` and folders of DCP bit for bit as `torch.load` does.

Tensors have any strides, pickles use every protocol, and files also contain values that shardinit ignores."""

import argparse
import collections
import hashlib
import pathlib
import tempfile

from clients import client_of
from generated import generated, given
from hypothesis import strategies as st
from support import run_ok
from test_generated_folders import bytes_of, safetensors_torch

torch = client_of("torch")
dcp = client_of("torch.distributed.checkpoint")

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8, torch.int16,
          torch.int32, torch.int64, torch.uint8, torch.uint32, torch.bool]
# Values next to a model in trainers' files.
UNREAD = {
    "long": 1 << 80, "negative": -(1 << 64), "very_long": 1 << 3000, "int": -1, "float": 1.5, "none": None,
    "complex": 1j,
    "bytes": b"\x80" * 300, "bytearray": bytearray(b"\xff" * 10), "set": {1, 2}, "frozenset": frozenset([1, (2, 3)]),
    "args": argparse.Namespace(lr=1e-3, seed=1 << 70), "path": pathlib.PurePosixPath("/a"), "text": "é\n",
    "counter": collections.Counter("aab"), "default": collections.defaultdict(list, a=[1 << 65]),
    "ordered": collections.OrderedDict([("a", 1 << 66)]), "type": torch.float16, "device": torch.device("cpu"),
}


class OldTensor:
    """A tensor as the first versions of PyTorch pickled it."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce__(self):
        tensor = self.tensor
        return torch._utils._rebuild_tensor, (torch.storage.TypedStorage(
            wrap_storage=tensor.untyped_storage(), dtype=tensor.dtype, _internal=True), tensor.storage_offset(),
            tuple(tensor.shape), tensor.stride())


class Pairs(dict):
    """An OrderedDict as Python 2 pickled it."""

    def __reduce__(self):
        return collections.OrderedDict, ([[key, value] for key, value in self.items()],)


@st.composite
def strided(draw):
    """Draws a dtype, the size of a storage, and the shape, strides and offset of a tensor in it."""
    large = draw(st.integers(0, 9)) == 0
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 33, 300] if large else [1, 2, 3, 5, 8]), max_size=5))
    while torch.Size(shape).numel() > (1 << 18 if large else 1 << 10):
        shape.pop()
    kind = draw(st.sampled_from(["permuted", "permuted", "sliced", "expanded", "channels_last", "any"]))
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 2, 3])) if kind in ("sliced", "any") else 1 for _ in shape]
    strides, stride = [0] * len(shape), 1
    if kind == "channels_last":
        order = [d for d in (1, *range(len(shape) - 1, 1, -1), 0) if d < len(shape)]
    for d in order:
        strides[d] = stride * steps[d]
        stride *= shape[d] * steps[d] + (draw(st.integers(0, 2)) if kind in ("sliced", "any") else 0)
        if kind in ("expanded", "any") and draw(st.booleans()):
            strides[d] = 0 if kind == "expanded" else draw(st.integers(0, 4))
    offset = draw(st.sampled_from([0, 0, 1, 7]))
    end = offset + sum((n - 1) * s for n, s in zip(shape, strides)) + 1 + draw(st.sampled_from([0, 0, 5]))
    return draw(st.sampled_from(DTYPES)), end, shape, strides, offset


def make_tensor(form, bits):
    dtype, size, shape, strides, offset = form
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (size * dtype.itemsize,), dtype=torch.uint8,
                        generator=bits)
    return raw.view(dtype).as_strided(shape, strides, offset)


@st.composite
def cases(draw):
    forms = draw(st.lists(strided(), min_size=1, max_size=4))
    form = draw(st.sampled_from(["archive", "archive", "old", "dcp"]))
    return (forms, form, draw(st.sampled_from([1, 2, 3, 4, 5])),
            draw(st.sampled_from([dict, Pairs, collections.OrderedDict])),
            draw(st.sampled_from(["plain", "parameter", "shared", "first"])),
            draw(st.lists(st.sampled_from(sorted(UNREAD)), max_size=4, unique=True)),
            draw(st.sampled_from([".pt", ".pth", ".ckpt", ".bin", ".pth.tar", "", ".model"])),
            draw(st.sampled_from([["-j", 1], ["-j", 4], ["--memory", "1M", "-j", 1]])), draw(st.integers(0, 1 << 30)))


def read(path, out, *options):
    run_ok("inspect", path)
    digests = {name: digest for digest,
               name in (line.split("  ", 1) for line in run_ok("digest", path).stdout.splitlines())}
    run_ok("convert", path, "--to", "safetensors", "-o", out, *options)
    tensors = safetensors_torch.load_file(out / "model.safetensors")
    del digests["(model)"]
    assert {name: hashlib.sha256(bytes_of(t)).hexdigest() for name, t in tensors.items()} == digests
    return tensors


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert bytes_of(found[name]) == bytes_of(tensor), name


@generated(60)
@given(case=cases())
def test_generated_torch_files_are_read_exactly(case):
    forms, form, protocol, container, wrapping, unread, ending, options, seed = case
    bits = torch.Generator().manual_seed(seed)
    state = {f"w{i}.x": make_tensor(f, bits) for i, f in enumerate(forms)}
    if wrapping == "shared":
        first = state["w0.x"]
        state |= {"view": first[..., -1:] if first.dim() else first, "again": first}
    state = {name: t for name, t in state.items() if t.numel() > 0}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if form == "dcp":
            path = folder / "in"
            dcp.save(dict(state), checkpoint_id=path, no_dist=True)
            return assert_equal(read(path, folder / "out", *options), state)
        path = folder / f"in{ending}"
        wrapped = dict(state)
        # The legacy format lacks storages of some types.
        has_storage = all(t.dtype not in (torch.uint32, torch.float8_e4m3fn) for t in state.values())
        if wrapping == "parameter":
            wrapped = {n: torch.nn.Parameter(t, requires_grad=t.is_floating_point()) for n, t in state.items()}
        elif wrapping == "first" and has_storage:
            wrapped = {n: OldTensor(t) for n, t in state.items()}
        saved = container(wrapped)
        if unread:
            saved = {"state_dict": saved, **{key: UNREAD[key] for key in unread}}
        torch.save(saved, path, pickle_protocol=protocol, _use_new_zipfile_serialization=form == "archive")
        loaded = torch.load(path, weights_only=False)
        loaded = loaded["state_dict"] if unread else loaded
        assert_equal({n: t.detach() for n, t in loaded.items()}, state)
        assert_equal(read(path, folder / "out", *options), state)
