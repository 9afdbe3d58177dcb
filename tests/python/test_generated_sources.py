"""Random tensors made from random models equal NumPy's results, with the same bytes on any mesh and for any number of
jobs."""

import functools

import ml_dtypes
import numpy as np
import safetensors.numpy
from generated import generated, given
from hypothesis import strategies
from support import reassemble, run_ok

WORDS = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}
TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "f64": np.float64}
EXACT = {**TYPES, "i8": np.int8, "u8": np.uint8, "i64": np.int64}


def words(array):
    return np.ascontiguousarray(array).view(WORDS[array.dtype.itemsize])


def rounded(values, dtype):
    """Rounds f64 numbers as stored expressions do: directly to f64, or through f32 to other types."""
    return values if dtype == "f64" else values.astype(np.float32).astype(TYPES[dtype])


def added(numbers):
    """Returns the sum from left to right; Python's own sum() is more exact."""
    return functools.reduce(lambda total, number: total + number, numbers, 0.0)


class Drawn:
    """A model, and tensors of a spec with their expected values."""

    def __init__(self, draw):
        self.draw, self.rng = draw, np.random.default_rng(draw.randrange(2**32))
        self.model, self.lines, self.wanted = {}, [], {}
        for i in range(draw.randint(3, 8)):
            shape = [draw.randint(1, draw.choice([3, 9, 40])) for _ in range(draw.randint(1, 3))]
            dtype = draw.choice(list(EXACT))
            if dtype in TYPES:
                values = self.rng.normal(size=shape).astype(TYPES[dtype])
            else:
                values = self.rng.integers(0, 100, shape).astype(EXACT[dtype])
            self.model[f"layers.{i}.w"] = dtype, values
        for i in range(draw.randint(3, 8)):
            draw.choice([self.same, self.converted, self.indexed, self.sum, self.parts, self.rows,
                         self.moments])(f"t{i}")

    def any(self, floats=False):
        return self.draw.choice([(name, *held) for name, held in self.model.items() if not floats or held[0] in TYPES]
                                or [self.one_float()])

    def one_float(self):
        self.model["x.w"] = "f32", self.rng.normal(size=(4, 5)).astype(np.float32)
        return "x.w", *self.model["x.w"]

    def add(self, path, dtype, value, init):
        shard = self.draw.choice(["", ", shard: [t]"] + ([", shard: [null, t]"] if value.ndim > 1 else []))
        self.lines.append(f"{path}: {{shape: {list(value.shape)}, dtype: {dtype}, init: {init}{shard}}}")
        self.wanted[path] = words(value)

    def tensor(self, name):
        """Returns the name unchanged, or with its number as an expression."""
        if name.startswith("layers.") and self.draw.random() < 0.5:
            return f"\"layers.{{floor({name.split('.')[1]} * two / 2)}}.w\""
        return name

    def same(self, path):
        name, dtype, value = self.any()
        if dtype in TYPES and self.draw.random() < 0.5:  # any bits, including NaN
            bits = words(value).copy()
            bits.flat[0] = self.rng.integers(0, 2 ** min(63, 8 * value.itemsize), dtype=np.uint64)
            if np.isnan(bits.view(value.dtype).flat[0]) and not any(name in line for line in self.lines):
                value = bits.view(value.dtype).reshape(value.shape)
                self.model["nan." + path] = dtype, value
                return self.add(path, dtype, value, f"{{source: base, tensor: nan.{path}}}")
        self.add(path, dtype, value, f"{{source: base, tensor: {self.tensor(name)}}}")

    def converted(self, path):
        name, dtype, value = self.any()
        to = self.draw.choice(list(TYPES))
        self.add(path, to, rounded(value.astype(np.float64), to), f"{{source: base, tensor: {self.tensor(name)}}}")

    def indexed(self, path):
        name, dtype, value = self.any()
        repeats = [self.draw.randint(1, 3) for _ in value.shape]
        order = self.draw.sample(range(value.ndim), value.ndim)  # dimension d of the source is order[d] here
        made = np.transpose(np.tile(value, repeats), np.argsort(order))
        index = [f"i{order[d]} % {n}" for d, n in enumerate(value.shape)]
        self.add(path, dtype, made, f"{{source: base, tensor: {name}, index: [{', '.join(index)}]}}")

    def sum(self, path):
        name, _, value = self.any(floats=True)
        a, b = self.draw.choice([0.5, 0.3, 2]), self.draw.choice([0.5, -1, 0.7])
        turned = ", ".join(f"{n - 1} - i{d}" for d, n in enumerate(value.shape))
        to = self.draw.choice(list(TYPES))
        made = a * value.astype(np.float64) + b * np.flip(value).astype(np.float64)
        self.add(path, to, rounded(made, to),
                 f"{{expr: \"{a} * source('base', '{name}') + {b} * source('base', '{name}', {turned})\"}}")

    def moments(self, path):
        name, _, value = self.any(floats=True)
        shape, a, to = [self.draw.randint(1, 9),
                        self.draw.randint(1, 400)], self.draw.choice([0, 0.3, 2]), self.draw.choice(list(TYPES))
        elements = value.astype(np.float64).ravel().tolist()
        mean = added(elements) / len(elements)
        deviation = np.sqrt(added([(each - mean) * (each - mean) for each in elements]) / len(elements))
        made = mean + deviation * (a * np.arange(shape[0])[:, None]) + np.zeros(shape)
        self.add(path, to, rounded(made, to),
                 f"{{expr: \"source_mean('base', '{name}') + source_std('base', '{name}') * ({a} * i0)\"}}")

    def parts(self, path):
        name, dtype, value = self.any()
        axis, more = self.draw.randrange(value.ndim), self.draw.randint(0, 7)
        rows = self.draw.randint(0, value.shape[axis])
        last = list(value.shape)
        last[axis] = more
        made = np.concatenate([value, np.take(value, range(rows), axis), np.ones(last, value.dtype)], axis)
        init = (f"{{parts: {{axis: {axis}, of: [{{source: base, tensor: {name}}}, "
                f"{{source: base, tensor: {name}, rows: {rows}}}, ones]}}}}")
        self.add(path, dtype, made, init)

    def rows(self, path):
        name, _, value = self.any(floats=True)
        axis, more, to = self.draw.randrange(value.ndim), self.draw.randint(1, 9), self.draw.choice(list(TYPES))
        rows = self.draw.randint(1, value.shape[axis])
        mean = np.zeros([n for d, n in enumerate(value.shape) if d != axis])
        for row in np.moveaxis(value.astype(np.float64), axis, 0)[:rows]:
            mean = mean + row
        new = np.repeat(np.expand_dims(rounded(mean / rows, to), axis), more, axis)
        made = np.concatenate([rounded(value.astype(np.float64), to), new], axis)
        init = (f"{{parts: {{axis: {axis}, of: [{{source: base, tensor: {name}}}, "
                f"{{rows_like: {{source: base, tensor: {name}, rows: {rows}, std: 0}}}}]}}}}")
        self.add(path, to, made, init)


@generated(12)
@given(draw=strategies.randoms(use_true_random=False))
def test_generated_source_expressions_match_numpy(draw, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("sources")
    drawn = Drawn(draw)
    (tmp_path / "model").mkdir()
    safetensors.numpy.save_file({name: value for name, (_, value) in drawn.model.items()},
                                tmp_path / "model/model.safetensors")
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: x\nuneven: chunk\nvars: {two: 2}\nmesh: {axes: {t: 1}}\n"
                    "sources: {base: {path: model}}\nmodules:\n"
                    + "".join(f"  {line}\n" for line in drawn.lines))
    for mesh, jobs in ((1, 1), (draw.randint(2, 8), 8)):
        out = tmp_path / f"{mesh}-{jobs}"
        run_ok("gen", spec, "-o", out, "--mesh", f"t={mesh}", "-j", jobs)
        found = reassemble(out)
        for path, wanted in drawn.wanted.items():
            assert np.array_equal(found[path][1], wanted), (path, spec.read_text())
        run_ok("verify", out)
