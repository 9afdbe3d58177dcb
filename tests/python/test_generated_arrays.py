"""Reads random slices of tensors as NumPy arrays, also into random `out=` arrays, from checkpoints, exports and specs,
and compares them with NumPy's indexing of the whole tensor."""

import numpy as np
import pytest
from clients import bits_of
from generated import generated, given
from hypothesis import strategies as st
from support import DTYPES, OF_ANY, reassemble, run_ok

import shardinit

# The shapes for each type: a scalar, an empty box, a vector, and more dimensions.
SHAPES = [[], [1], [7], [5, 1], [3, 9], [3, 4200], [4, 3, 5], [1, 6, 1, 2], [2, 3, 2, 3, 2]]
VALUES = {"b": "normal() > 0", "i": "floor(normal() * 20)", "u": "floor(bits() / 16777216)", "f": "normal()"}


def spec_text():
    lines = ["shardinit: 1", "name: arrays", "uneven: chunk", "mesh: {axes: {a: 2, b: 2}}", "modules:"]
    for dtype in DTYPES:
        for number, shape in enumerate(SHAPES):
            cuts = ["null"] * len(shape)
            for axis, dimension in zip(["a", "b"], {(number + 1) % len(shape), number % len(shape)} if shape else []):
                cuts[dimension] = axis
            lines.append(f"  t{number}.{dtype}: {{shape: {shape}, shard: [{', '.join(cuts)}], dtype: {dtype}, "
                         f"init: {{expr: '{VALUES[dtype[0]]}'}}}}")
    return "\n".join(lines) + "\n"


class Sources:
    def __init__(self, opened, whole):
        self.opened, self.whole = opened, whole


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Opens every kind of source, and reads the expected tensors directly from the rank files."""
    folder = tmp_path_factory.mktemp("arrays")
    path = folder / "spec.yaml"
    path.write_text(spec_text())
    run_ok("gen", path, "-o", folder / "checkpoint")
    for to in OF_ANY:
        run_ok("export", path, "--to", to, "-o", folder / to)
    opened = {"spec": shardinit.open_spec(path), "checkpoint": shardinit.open(folder / "checkpoint")}
    opened |= {to: shardinit.open(folder / to) for to in OF_ANY}
    whole = {name: words.view(DTYPES[dtype]) for name, (dtype, words) in reassemble(folder / "checkpoint").items()}
    assert all(set(source.tensors) == set(whole) for source in opened.values())
    return Sources(opened, whole)


# ---- What is asked for.


@st.composite
def indices(draw, shape):
    """Draws an index that is valid for a shape, or nearly valid."""
    if draw(st.integers(0, 9)) == 0:
        return None
    parts = []
    for size in shape[:draw(st.integers(0, len(shape)))]:
        near = st.integers(-size - 2, size + 2)
        end = st.none() | near
        step = st.sampled_from([None, None, None, 1, 1, np.int64(1), 2, -1, 0])
        parts.append(draw(st.one_of(
            st.builds(slice, end, end, step), st.builds(slice, near, near), near, near.map(np.int32))))
    for odd in draw(st.lists(st.sampled_from([..., ..., ..., 0, slice(None), True, None, 1.5, "x", [0]]), max_size=1)):
        parts.insert(draw(st.integers(0, len(parts))), odd)
    return parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)


def expected(whole, slices):
    """Returns the part that NumPy selects, and the errors that are allowed instead."""
    parts = slices if isinstance(slices, tuple) else (... if slices is None else slices,)
    known = (int, np.integer, slice, type(...))
    errors = {TypeError} if any(isinstance(p, bool) or not isinstance(p, known) for p in parts) else set()
    if any(isinstance(part, slice) and part.step not in (None, 1) for part in parts):
        errors.add(ValueError)
    if sum(part is not ... for part in parts) > whole.ndim:
        errors.add(IndexError)
    part = None
    try:
        part = np.asarray(whole[parts])
    except (IndexError, ValueError):  # NumPy raises ValueError for step 0.
        errors.add(IndexError)
    return part, tuple(errors)


# ---- Where it goes.


@st.composite
def memories(draw, shape, dtype):
    """Draws an array of some type and memory layout, its memory as bytes, and whether it is a valid `out`."""
    right = draw(st.integers(0, 3)) > 0
    if not right:
        of = draw(st.sampled_from(OTHER_DTYPES[dtype.itemsize] + [dtype.newbyteorder(), np.dtype("V3"),
                                                                  np.dtype("f8")]))
    else:
        of = draw(st.sampled_from([dtype, np.dtype(f"u{dtype.itemsize}")]))
    good = of in (dtype, np.dtype(f"<u{dtype.itemsize}"))
    if draw(st.integers(0, 9)) == 0:
        shape = draw(st.sampled_from([(*shape, 1), shape[1:], tuple(n + 1 for n in shape), shape[::-1], (2, *shape)]))
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, 3, -1, -2])) for _ in shape]
    starts = [draw(st.integers(0, 2)) for _ in shape]
    base_shape = [starts[d] + max(1, shape[d] * abs(steps[d])) for d in order]
    shift = draw(st.sampled_from([0, 0, 0, 1, 4]))
    memory = np.full(shift + int(np.prod(base_shape)) * of.itemsize, 0x5A, np.uint8)
    base = memory[shift:].view(of).reshape(base_shape).transpose(np.argsort(order) if order else None)
    forward = [slice(start, start + size * abs(step), abs(step)) for start, step, size in zip(starts, steps, shape)]
    out = base[(*forward, ...)][(*[slice(None, None, -1 if step < 0 else 1) for step in steps], ...)]
    assert out.shape == shape
    kind = draw(st.sampled_from(["plain"] * 6 + ["shared", "fixed", "list", "memoryview", "torch", "recarray"]))
    if kind == "shared" and out.size > 1:
        wide = next(d for d in range(out.ndim) if shape[d] > 1)
        strides = list(out.strides)
        strides[wide] = draw(st.sampled_from([0, of.itemsize // 2]))
        raw = np.lib.stride_tricks.as_strided(out.view(f"V{of.itemsize}"), shape, strides)  # It lacks bfloat16.
        out, good = raw.view(of), False
    elif kind == "fixed":
        out.flags.writeable, good = False, False
    elif kind == "list":
        out, good = [out], False
    elif kind == "memoryview":
        out, good = memoryview(memory), False
    elif kind == "torch":
        torch = pytest.importorskip("torch")
        out, good = torch.zeros(shape, dtype={1: torch.uint8, 2: torch.float16, 4: torch.float32}.get(
            of.itemsize, torch.float64)), False
    elif kind == "recarray":
        out = out.view(np.recarray)
    return out, memory, good


OTHER_DTYPES = {
    1: [np.dtype(name) for name in ["i1", "u1", "?", "S1", "V1"]] + [DTYPES["f8e4m3fn"], DTYPES["f8e5m2"]],
    2: [np.dtype(name) for name in ["<i2", ">u2", ">i2", "<f2", ">f2", "S2", "V2"]] + [DTYPES["bf16"]],
    4: [np.dtype(name) for name in ["<i4", ">i4", ">u4", "<f4", ">f4", "S4", "V4", "<U1"]],
    8: [np.dtype(name) for name in ["<i8", ">i8", ">u8", "<f8", ">f8", "S8", "V8", "<c8", "<M8[s]"]],
}


def bits(array):
    return np.asarray(array).tobytes()


@generated(700)
@given(data=st.data())
def test_random_slices_equal_numpys_indexing(sources, data):
    """A part equals NumPy's indexing, into any memory; an invalid `out` is an error and stays unchanged."""
    opened, whole = sources.opened, sources.whole
    source = opened[data.draw(st.sampled_from(sorted(opened)), "source")]
    path = data.draw(st.sampled_from(sorted(whole)), "path")
    slices = data.draw(indices(whole[path].shape), "slices")
    options = {"verify": data.draw(st.booleans(), "verify")}
    part, errors = expected(whole[path], slices)
    if errors:
        with pytest.raises(errors):
            source.read(path, slices, **options)
        return
    made = source.read(path, slices, **options)
    assert (made.shape, made.dtype, bits(made)) == (part.shape, whole[path].dtype, bits(part))
    out, memory, good = data.draw(memories(part.shape, whole[path].dtype), "out")
    before = memory.copy()
    if not good or out.shape != part.shape:
        with pytest.raises((TypeError, ValueError), match="`out`|out"):
            source.read(path, slices, out=out, **options)
        assert np.array_equal(memory, before)
        return
    assert source.read(path, slices, out=out, **options) is out
    assert bits(out) == bits(part)
    bits_of(out.view(np.ndarray))[...] = 0x5A5A5A5A5A5A5A5A >> (64 - 8 * out.itemsize)
    assert np.array_equal(memory, before)  # The memory around it is unchanged.


@generated(60)
@given(data=st.data())
def test_random_local_parts_are_equal_in_spec_and_checkpoint(sources, data):
    """A rank's part from a spec equals the one from a checkpoint, into any memory."""
    opened, whole = sources.opened, sources.whole
    path = data.draw(st.sampled_from(sorted(whole)), "path")
    rank = data.draw(st.integers(0, 3), "rank")
    made = {name: opened[name].read_local(path, rank) for name in ["spec", "checkpoint"]}
    if made["spec"] is None:
        assert made["checkpoint"] is None
        return
    [(offset, shape)] = opened["spec"].boxes(path, rank)
    part = whole[path][tuple(slice(o, o + n) for o, n in zip(offset, shape))]
    assert bits(made["spec"]) == bits(made["checkpoint"]) == bits(part)
    out, _, good = data.draw(memories(part.shape, whole[path].dtype), "out")
    for name in made:
        if good and out.shape == part.shape:
            assert opened[name].read_local(path, rank, out=out) is out and bits(out) == bits(part)
        else:
            with pytest.raises((TypeError, ValueError)):
                opened[name].read_local(path, rank, out=out)
