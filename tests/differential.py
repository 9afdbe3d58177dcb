"""Compares values with other implementations on random specs, at the size of large models, by hand:

    build/venv/bin/python tests/differential.py [--elements N] [--seed S] [--case K] [PAIR ...]

A PAIR is one of

    reference   the NumPy reference of shardinit-values(7): all of its engines, element types and initializers, and
                layouts, in boxes around elements 2^31, 2^32, … of tensors of up to 2^59 elements
    xla         the output of `shardinit program`, compiled by XLA: on eight devices, and for single ranks of tensors
                of up to 2^50 elements
    torch       the engine torch_cpu against PyTorch: sequences of tensors in one stream; for N = 1e9 and more, the
                first case has a tensor of more than 2^31 elements, and numbers after word 2^32
    jax         the engine jax_threefry against jax.random: whole arrays, and stretches of larger ones, which JAX's own
                samplers compute from their words; normal numbers may differ by 4 units in the last place

The default is all pairs. Each is compared on N elements (default 1e6) or a few more. The default of S is the time. For
a difference, the script prints a spec of one tensor and the command that repeats its case, and exits with status 1."""

import argparse
import itertools
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent / "python"))

import reference  # noqa: E402
import test_reference  # noqa: E402
from clients import bits_of  # noqa: E402
from support import DTYPES, FLOATS, run_ok  # noqa: E402

import shardinit  # noqa: E402

# A block of Philox has four words, so its block numbers pass 2^32 at element 2^34.
BORDERS = [2**31, 2**32, 2**33, 2**34, 2**36]
BOX = 1 << 17  # The number of elements that the reference makes at a time
BOXES = {"sparse": 1 << 12, "normalized": 1 << 13}  # fewer if each element needs a whole column or vector
# torch_cpu draws numbers in sequence, so it has no far elements and no programs. The pair `torch` tests it.
ENGINES = [engine for engine in reference.ENGINES if engine != reference.TORCH]
SEEDS = [0, 1, 2**32 - 1, 2**63 - 1]


class Difference(Exception):
    """Another implementation computes a different value."""


def compare(made, wanted, spec, path, offset, same=np.array_equal, how=""):
    """Compares a box of two arrays with one type. An error shows `spec`, with the tensors that `path` needs, and
    `how`."""
    made, wanted = np.ascontiguousarray(made), np.ascontiguousarray(wanted)
    assert (made.dtype, made.shape) == (wanted.dtype, wanted.shape), path
    if same(bits_of(made), bits_of(wanted)):
        return made.size
    (at, *_), count = (places := np.argwhere(bits_of(made) != bits_of(wanted))), len(places)
    here = tuple(int(i) for i in at)
    element = [int(o) + i for o, i in zip(offset, here)]
    both = [f"{bits_of(array)[here]:x} ({array[here]})" for array in (made, wanted)]
    raise Difference(f"{count} of {made.size} elements of `{path}` differ; the first is {element}: shardinit makes "
                     f"{both[0]}, the other one {both[1]}\n{json.dumps(spec)}{how}")


def only_tensors(spec, *paths):
    """Returns the spec with only these drawn tensors."""
    return spec | {"modules": {path: spec["modules"][path] for path in paths}}


# Boxes of large tensors -----------------------------------------------------------


def draw_sizes(rng, rank, least, most):
    """Draws a shape of 2^least to 2^most elements, hardly ever of round numbers."""
    weights = [rng.expovariate(1) for _ in range(rank)]
    bits = rng.uniform(least, most)
    return [max(1, int(2 ** (bits * weight / sum(weights)))) for weight in weights]


def draw_box(rng, shape, most):
    """Draws offset and shape of a box of at most `most` elements: around a border, at an end, or anywhere."""
    total = math.prod(shape)
    element = rng.choice([b for b in BORDERS if b < total] + [0, total - 1, rng.randrange(total), rng.randrange(total)])
    offset, extent = [], []
    for size in reversed(shape):
        element, at = divmod(element, size)
        length = rng.choice([min(size, most), rng.randint(1, min(size, most))])
        offset.append(min(max(0, at - rng.randrange(length)), size - length))
        extent.append(length)
        most //= length
    return offset[::-1], extent[::-1]


def box_slices(offset, extent):
    return tuple(slice(o, o + n) for o, n in zip(offset, extent))


# The reference --------------------------------------------------------------------


class Large(test_reference.Random):
    """Draws the tensors of test_reference.py, most of them as large as tensors can be."""

    bits = 59

    def draw_shape(self, low, high, most=3000):
        rank = self.randint(low, high)
        if rank == 0 or self.random() < 0.2:
            return super().draw_shape(low, high, most)
        return draw_sizes(self, rank, 20, self.bits)

    def draw_initializer(self, kind, dtype):
        self.bits = 52 if kind == "expr" else 59  # Expressions know their index up to 2^53.
        init, shape, more = super().draw_initializer(kind, dtype)
        if kind == "sparse":  # Each column is sorted.
            shape = [self.randint(1, 600), self.choice([7, 2**33 + 5])]
        if kind == "normalized":  # The norm of each vector is computed.
            axis = init[kind]["axis"]
            shape[axis] = min(shape[axis], self.choice([3, 64, 500]))
        return init, shape, more


def draw_views(rng, shape):
    """Draws stored tensors that contain each element of the drawn tensors `a` and `b`, both of this shape, once.

    Returns for each its `from`, its shape, and a function from an element's coordinates to the path and the coordinates
    of the drawn element."""
    rank, axis = len(shape), rng.randrange(len(shape))
    kind = rng.choice(["transpose", "reshape", "slice", "stack", "concat"])
    if kind == "transpose":
        order = rng.sample(range(rank), rank)
        back = [order.index(d) for d in range(rank)]
        return {path: ({kind: {"axes": order, "of": path}}, [shape[d] for d in order],
                       lambda at, path=path: (path, [at[d] for d in back])) for path in "ab"}
    if kind == "reshape":
        flat = math.prod(shape)
        return {path: ({kind: {"shape": [flat], "of": path}}, [flat],
                       lambda at, path=path: (path, reference.samplers.coordinates(shape, at[0]))) for path in "ab"}
    if kind == "slice" and shape[axis] > 1:
        cut = rng.randrange(1, shape[axis])
        views = {}
        for path, (start, stop) in itertools.product("ab", [(0, cut), (cut, shape[axis])]):
            size = [*shape[:axis], stop - start, *shape[axis + 1:]]
            views[f"{path}{start}"] = (
                {kind: {"axis": axis, "start": start, "stop": stop, "of": path}}, size,
                lambda at, path=path, start=start: (path, [c + start * (d == axis) for d, c in enumerate(at)]))
        return views
    if kind == "stack":
        return {"both": ({kind: {"axis": axis, "of": ["a", "b"]}}, [*shape[:axis], 2, *shape[axis:]],
                         lambda at: (np.where(at[axis] == 0, "a", "b"), [c for d, c in enumerate(at) if d != axis]))}
    longer = [n * (1 + (d == axis)) for d, n in enumerate(shape)]
    return {"both": ({"concat": {"axis": axis, "of": ["a", "b"]}}, longer,
                     lambda at: (np.where(at[axis] < shape[axis], "a", "b"),
                                 [c % shape[axis] if d == axis else c for d, c in enumerate(at)]))}


def planned(spec):
    """Returns path → a drawn tensor in the form of plan.json, for one spec at a time."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(json.dumps(spec))
        file.flush()
        return {t["path"]: t for t in json.loads(run_ok("graph", "--json", file.name).stdout)["logical"]}


def elements_at_a_time(tensor):
    """Returns how many elements of a planned tensor to compute at a time."""
    return BOXES.get(next(iter(tensor["init"])), BOX)


def elements_of(spec, tensor, indices):
    return reference.elements_of(spec["engine"], spec["seed"], tensor.get("key", tensor["path"]), tensor["dtype"],
                                 tensor["global_shape"], tensor["init"], indices)


def draw_tensor(rng, spec):
    """Draws a tensor that the spec's engine supports."""
    while True:
        tensor = rng.draw_tensor()
        try:
            shardinit.open_spec(text=json.dumps(spec | {"modules": {"t": tensor}})).close()
            return tensor
        except shardinit.SpecError as error:
            if f"engine `{spec['engine']}` cannot draw `t`" not in str(error):
                raise


def compare_views(rng, spec):
    tensor = draw_tensor(rng, spec)
    while not tensor["shape"] or math.prod(tensor["shape"]) > 2**58:
        tensor = draw_tensor(rng, spec)
    spec["modules"] = {"a": tensor, "b": tensor}
    views = draw_views(rng, tensor["shape"])
    spec["layouts"] = {"other": {f"v{path}": {"from": view} for path, (view, _, _) in views.items()}}
    plan = planned(spec)
    with shardinit.open_spec(text=json.dumps(spec), layout="other") as opened:
        for path, (_, shape, place_of) in views.items():
            for _ in range(2):
                offset, extent = draw_box(rng, shape, elements_at_a_time(plan["a"]))
                made = opened.generate(f"v{path}", box_slices(offset, extent))
                at = np.meshgrid(*[np.arange(o, o + n) for o, n in zip(offset, extent)], indexing="ij")
                drawn, there = place_of([c.ravel() for c in at])
                indices = np.zeros(made.size, np.int64)
                for size, c in zip(tensor["shape"], there):
                    indices = indices * size + c
                wanted = np.empty(made.size, f"u{made.itemsize}")
                for each in "ab":
                    mine = np.broadcast_to(drawn == each, made.size)
                    # The reference computes neighbours together, so it gets them in order.
                    some, back = np.unique(indices[mine], return_inverse=True)
                    wanted[mine] = elements_of(spec, plan[each], some)[back]
                yield compare(bits_of(made).ravel(), wanted, spec, f"v{path}", [0])


def compare_reference(rng, case, elements):
    rng = Large(rng.random())
    spec = {"shardinit": 1, "name": "differential", "seed": rng.choice([*SEEDS, rng.randrange(2**63)]),
            "engine": rng.choice(ENGINES)}
    if case % 3 == 2:
        yield from compare_views(rng, spec)
        return
    spec["modules"] = {f"t{number}": draw_tensor(rng, spec) for number in range(6)}
    plan = planned(spec)
    with shardinit.open_spec(text=json.dumps(spec)) as opened:
        for path, tensor in plan.items():
            for _ in range(3):
                offset, extent = draw_box(rng, tensor["global_shape"], elements_at_a_time(tensor))
                made = bits_of(opened.generate(path, box_slices(offset, extent)))
                wanted = elements_of(spec, tensor, reference.indices_of(tensor["global_shape"], offset, extent))
                yield compare(made, wanted.reshape(extent), only_tensors(spec, path), path, offset)


# XLA ------------------------------------------------------------------------------


class Xla:
    """Draws specs whose programs JAX's compiler runs, in a process with eight devices."""

    def __init__(self):
        from test_generated_programs import FORMS, LEAVES, MESHES
        self.forms, self.leaves, self.meshes = FORMS, LEAVES, MESHES
        script = pathlib.Path(__file__).parent / "python/program_clients.py"
        self.process = subprocess.Popen([sys.executable, script, "serve"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def run(self, devices, module, folder):
        """Returns name → the devices' parts."""
        out = f"{folder}/parts.npz"
        self.process.stdin.write(json.dumps({"devices": devices, "cases": [[str(module), out]]}) + "\n")
        self.process.stdin.flush()
        facts, = json.loads(self.process.stdout.readline())
        with np.load(out) as parts:
            return {name: [parts[f"{number}/{device}"] for device in range(devices)]
                    for number, name in enumerate(facts["names"])}

    def draw_expression(self, rng, depth=0):
        if depth == 3 or rng.random() < 0.25:
            return rng.choice(self.leaves)
        form = rng.choice(self.forms)
        return form.format(*[self.draw_expression(rng, depth + 1) for _ in range(form.count("{}"))])

    def draw_tensor(self, rng, mesh, bits):
        dtype = rng.choice(list(reference.SIZES))
        shape = draw_sizes(rng, rng.randint(1, 3), 18, min(bits, 52))
        scale = rng.choice([1, 0.02, 10 ** rng.uniform(-3, 2)])
        low, high = sorted([rng.uniform(-4, 4), rng.uniform(-4, 4)])
        inits = [{"normal": {"mean": rng.choice([0, scale]), "std": scale}},
                 {"uniform": {"low": -scale, "high": rng.choice([0, scale, 2 * scale])}},
                 {"truncated_normal": {"mean": 0, "std": scale, "low": low, "high": high + 0.01}},
                 {"expr": f"clip({self.draw_expression(rng)} + 0 * i0, -100, 100)"}]
        init = rng.choice(inits)
        if dtype not in FLOATS:
            init = {"expr": f"({self.draw_expression(rng)} + 0 * i0) > 0.5" if dtype == "bool"
                    else f"floor(bits() / {2 ** (33 - 8 * min(4, reference.SIZES[dtype]))})"}
        elif rng.random() < 0.15:
            axis = rng.randrange(len(shape))
            shape[axis], init = min(shape[axis], 100), {"normalized": {"axis": axis}}
        shard = [[] for _ in shape]
        for axis in rng.sample(list(mesh), len(mesh)):
            fits = [d for d, n in enumerate(shape) if n >= 4 * mesh[axis] * math.prod(mesh[a] for a in shard[d])]
            if fits:
                shard[rng.choice(fits)].append(axis)
        return {"shape": shape, "dtype": dtype, "init": init, "uneven": "pad", "shard": shard}

    def compare(self, rng, case, elements):
        most = 22  # at most 2^22 elements on a device
        far = case % 2 == 1
        mesh = {"x": 2 ** rng.randint(8, 11), "y": 2 ** rng.randint(6, 11)} if far else rng.choice(self.meshes)
        size = math.prod(mesh.values())
        spec = {"shardinit": 1, "name": "differential", "seed": rng.choice([*SEEDS, rng.randrange(2**63)]),
                "engine": rng.choice(ENGINES), "mesh": {"axes": mesh}, "modules": {}}
        while len(spec["modules"]) < 4:
            tensor = self.draw_tensor(rng, mesh, 50 if far else most)
            parts = math.prod(mesh[axis] for axes in tensor["shard"] for axis in axes)
            if math.prod(tensor["shape"]) <= parts << most:
                spec["modules"][f"t{len(spec['modules'])}"] = tensor
        options = ["--arith", rng.choice(["f32", "f64"])]
        with tempfile.TemporaryDirectory() as folder, shardinit.open_spec(text=json.dumps(spec)) as opened:
            path = pathlib.Path(folder) / "spec.yaml"
            path.write_text(json.dumps(spec))
            ranks = list(range(size))
            if far:
                ranks = [rng.choice([rng.randrange(size), size - 1] + 3 * [self.at_border(rng, spec)])]
                options += ["--rank", str(ranks[0])]
            run_ok("program", path, "-o", path.with_suffix(".mlir"), *options)
            results = self.run(len(ranks), path.with_suffix(".mlir"), folder)
            for name, (rank, words) in ((name, part) for name, parts in results.items() for part in zip(ranks, parts)):
                boxes = opened.boxes(name, rank)
                if not boxes:
                    continue
                (offset, extent), = boxes
                made = bits_of(opened.generate(name, box_slices(offset, extent)))
                words = words[box_slices([0] * len(extent), extent)]  # Other ranks' boxes are padded.
                how = f"\nshardinit program {' '.join(options)}"
                yield compare(made, words, only_tensors(spec, name), name, offset, how=how)

    @staticmethod
    def at_border(rng, spec):
        """Returns the rank that holds the element at a border of a random tensor."""
        mesh, tensor = spec["mesh"]["axes"], rng.choice(list(spec["modules"].values()))
        shape, place = tensor["shape"], dict.fromkeys(mesh, 0)
        element = rng.choice([border for border in BORDERS if border < math.prod(shape)] or [math.prod(shape) - 1])
        for size, axes, at in zip(shape, tensor["shard"], reference.samplers.coordinates(shape, element)):
            index = at // -(-size // math.prod(mesh[axis] for axis in axes))
            for axis in reversed(axes):
                index, place[axis] = divmod(index, mesh[axis])
        return int(np.ravel_multi_index(list(place.values()), list(mesh.values())))


# PyTorch --------------------------------------------------------------------------


class Torch:
    """Draws sequences of tensors that PyTorch fills with the same calls."""

    part = 1 << 24  # elements that the tool generates at a time

    def __init__(self):
        import torch
        from test_torch_cpu import TYPES, words_of
        self.torch, self.types, self.words_of = torch, TYPES, words_of

    def draw_call(self, rng, shape, dtype):
        """Draws an initializer and the function that fills PyTorch's tensor."""
        scale = rng.choice([1, 0.02, 10 ** rng.uniform(-3, 2)])
        kinds = ["uniform"] if dtype == "f64" else ["uniform", "normal"] + ["trunc_normal"] * (math.prod(shape) < 2**25)
        kind = rng.choice(kinds)
        if kind == "uniform":
            low, high = rng.choice([-scale, 0, -scale / 3]), scale
            return {kind: {"low": low, "high": high}}, lambda t: t.uniform_(low, high)
        mean = rng.choice([0, 0.25, scale])
        if kind == "normal":
            return {kind: {"mean": mean, "std": scale}}, lambda t: t.normal_(mean, scale)
        a, b = mean - rng.uniform(0.5, 3) * scale, mean + rng.uniform(0.5, 3) * scale
        return ({kind: {"mean": mean, "std": scale, "a": a, "b": b}},
                lambda t: self.torch.nn.init.trunc_normal_(t, mean, scale, a, b))

    def compare_whole(self, opened, path, tensor, spec):
        flat = self.words_of(tensor).reshape(-1)
        rows = max(1, self.part // max(1, math.prod(tensor.shape[1:])))
        inner = math.prod(tensor.shape[1:])
        for begin in range(0, tensor.shape[0], rows):
            made = opened.generate(path, slice(begin, begin + rows))
            wanted = flat[begin * inner:begin * inner + made.size].reshape(made.shape)
            yield compare(bits_of(made), bits_of(wanted), spec, path, [begin] + [0] * (made.ndim - 1))

    def compare(self, rng, case, elements):
        seed = rng.choice([*SEEDS, rng.randrange(2**63)])
        head = {"shardinit": 1, "name": "differential", "engine": "torch_cpu", "seed": seed}
        if case == 0 and elements >= 1e9:
            yield from self.compare_huge(rng, head)
            return
        drawn = {}
        for number in range(rng.randint(2, 8)):
            dtype = rng.choice(list(self.types))
            shape = draw_sizes(rng, rng.randint(1, 3), 0, rng.choice([6, 14, 20, 25]))
            drawn[f"t{number}"] = (shape, dtype, *self.draw_call(rng, shape, dtype))
        spec = head | {"modules": {path: {"shape": shape, "dtype": dtype, "init": init}
                                   for path, (shape, dtype, init, _) in drawn.items()}}
        self.torch.manual_seed(seed)
        with shardinit.open_spec(text=json.dumps(spec)) as opened:
            for path, (shape, dtype, _, fill) in drawn.items():
                tensor = self.torch.empty(shape, dtype=self.types[dtype])
                fill(tensor)
                yield from self.compare_whole(opened, path, tensor, spec)

    def compare_huge(self, rng, head):
        """Compares one stream: more than 2^31 elements of two bytes, one-byte numbers whose words pass 2^32, and
        tensors after them."""
        torch, n, m = self.torch, 2**31 + rng.randrange(10**6), 2**31 + rng.randrange(10**7)
        normal = {"normal": {"mean": 0.5, "std": 0.02}}
        place = n + 16 * (n % 16 > 0)  # PyTorch redraws the last elements of such a tensor.
        drawn = {
            "normal": ([n], "bf16", normal, lambda t: t.normal_(0.5, 0.02)),
            "whole": ([m], "u8", {"expr": f"torch_randint({place}, i0, 251)"}, lambda t: t.random_(0, 251)),
        }
        after = {"a": ([2**20 + 5], "f32", normal, lambda t: t.normal_(0.5, 0.02)),
                 "b": ([3, 1001], "bf16", {"uniform": {"low": -1, "high": 3}}, lambda t: t.uniform_(-1, 3)),
                 "c": ([5], "f32", normal, lambda t: t.normal_(0.5, 0.02)),
                 "d": ([3], "f32", normal, lambda t: t.normal_(0.5, 0.02))}
        spec = head | {"modules": {path: {"shape": shape, "dtype": dtype, "init": init}
                                   for path, (shape, dtype, init, _) in {**drawn, **after}.items()}}
        spec["modules"]["a"]["key"] = {"torch": {"position": place + m}}
        torch.manual_seed(head["seed"])
        with shardinit.open_spec(text=json.dumps(spec)) as opened:
            for path, (shape, dtype, _, fill) in {**drawn, **after}.items():
                tensor = torch.empty(shape, dtype={**self.types, "u8": torch.uint8}[dtype])
                fill(tensor)
                yield from self.compare_whole(opened, path, tensor, spec)
                del tensor  # Frees memory for the next one.


# JAX ------------------------------------------------------------------------------


class Jax:
    """Draws arrays of jax.random, and stretches of arrays that are too large for memory."""

    def __init__(self):
        import jax
        from jax.extend.random import define_prng_impl, threefry_2x32
        from test_jax_threefry import key_of, ulps_of
        self.jax, self.key_of, self.ulps_of = jax, key_of, ulps_of

        def words(key, width, shape):
            """Returns the words of a stretch; the key's second half has the number of its first element."""
            assert width == 32
            count = jax.numpy.arange(math.prod(shape), dtype="uint32")
            low = key[3] + count
            high = key[2] + (low < count).astype("uint32")
            first, second = jax.numpy.split(threefry_2x32(key[:2], jax.numpy.concatenate([high, low])), 2)
            return (first ^ second).reshape(shape)

        def refuse(*_):
            raise AssertionError("samplers take words alone")

        self.stretch = define_prng_impl(key_shape=(4,), seed=refuse, split=refuse, random_bits=words, fold_in=refuse)

    def key_at(self, key, element):
        data = [*np.asarray(self.jax.random.key_data(key)), element >> 32, element & 0xFFFFFFFF]
        return self.jax.random.wrap_key_data(np.array(data, np.uint32), impl=self.stretch)

    def draw_sampler(self, rng):
        """Draws an initializer, JAX's own function, and by how many units they may differ."""
        draw = self.jax.random
        kind = rng.choice(["bits", "uniform", "uniform", "normal", "truncated_normal"])
        if kind == "bits":
            return {"expr": "bits()"}, lambda key, shape: draw.bits(key, shape, "uint32"), 0
        if kind == "uniform":
            low = rng.choice([0, -1, -rng.random(), rng.uniform(-100, 100)])
            high = low + rng.choice([1, 2, rng.random() + 1e-3])
            return ({kind: {"low": low, "high": high}},
                    lambda key, shape: draw.uniform(key, shape, "float32", low, high), 0)
        if kind == "normal":
            std = rng.choice([1, 0.02, rng.random() + 1e-3])
            return {kind: {"mean": 0, "std": std}}, lambda key, shape: draw.normal(key, shape) * np.float32(std), 4
        # For these cut-offs, XLA rounds erf as the manual page says.
        low, high = rng.choice([(-2, 2), (-3, 3), (-1, 1), (-1, 3), (0, 1), (0.5, 2), (-2.5, 2.5), (2, 3)])
        return ({kind: {"mean": 0, "std": 1, "low": low, "high": high}},
                lambda key, shape: draw.truncated_normal(key, low, high, shape), 3)

    def compare(self, rng, case, elements):
        seed = rng.choice([*SEEDS, rng.randrange(2**63)])
        init, sampler, units = self.draw_sampler(rng)
        far = case % 2 == 1
        shape = draw_sizes(rng, rng.randint(1, 4), 34, 52) if far else draw_sizes(rng, rng.randint(1, 4), 10, 23)
        # Units of a small type differ from f32's.
        dtype = "u32" if "expr" in init else rng.choice(FLOATS[:-2]) if units == 0 else "f32"
        spec = {"shardinit": 1, "name": "differential", "engine": "jax_threefry", "seed": seed,
                "modules": {"w": {"shape": shape, "dtype": dtype, "init": init}}}
        key = self.key_of(seed, "w")
        self.jax.clear_caches()  # Almost every case has its own shapes, and their programs would fill the memory.
        same = np.array_equal if units == 0 else lambda a, b: self.ulps_of(a, b).max() <= units
        with shardinit.open_spec(text=json.dumps(spec)) as opened:
            if not far:
                wanted = np.asarray(sampler(key, tuple(shape))).astype(DTYPES[dtype])
                yield compare(opened.generate("w"), wanted, spec, "w", [0] * len(shape), same)
                return
            for _ in range(3):
                offset, extent = draw_box(rng, shape, 1 << 20)
                extent[:-1] = [1] * (len(shape) - 1)
                if rng.random() < 0.8:  # fewer lengths that JAX must compile for
                    extent[-1] = 1 << extent[-1].bit_length() - 1
                first = 0
                for size, start in zip(shape, offset):
                    first = first * size + start
                wanted = np.asarray(sampler(self.key_at(key, first), (extent[-1],))).astype(DTYPES[dtype])
                made = opened.generate("w", box_slices(offset, extent))
                yield compare(made, wanted.reshape(extent), spec, "w", offset, same)


# ----------------------------------------------------------------------------------

PAIRS = {"reference": lambda: compare_reference, "xla": lambda: Xla().compare, "torch": lambda: Torch().compare,
         "jax": lambda: Jax().compare}


def run_pair(name, elements, seed, only):
    """Returns whether all were equal."""
    compare_case, done, cases, begin = PAIRS[name](), 0, 0, time.monotonic()
    said = begin
    for case in itertools.count() if only is None else [only]:
        if done >= elements:
            break
        try:
            done += sum(compare_case(random.Random(f"{seed} {name} {case}"), case, elements))
        except Difference as difference:
            print(f"{name}: {difference}\ntests/differential.py --seed {seed} --case {case} "
                  f"--elements {elements:.0f} {name}", flush=True)
            return False
        cases += 1
        if time.monotonic() > said + 60:
            said = time.monotonic()
            print(f"{name}: {done:,} elements of {cases} cases so far", flush=True)
    print(f"{name}: {done:,} elements of {cases} cases are equal, in {time.monotonic() - begin:.0f} s", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("pairs", nargs="*")
    parser.add_argument("--elements", type=float, default=1e6)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--case", type=int)
    given = parser.parse_args()
    if unknown := set(given.pairs) - set(PAIRS):
        parser.error(f"no pair has the name {min(unknown)}")
    warnings.simplefilter("ignore")  # Random specs cause warnings.
    print(f"seed {given.seed}", flush=True)
    return int(not all([*(run_pair(name, given.elements, given.seed, given.case) for name in given.pairs or PAIRS)]))


if __name__ == "__main__":
    sys.exit(main())
