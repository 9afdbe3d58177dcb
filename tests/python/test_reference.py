"""Compares the tool with the contract's manual page: with tests/python/reference.py, which was written from
shardinit-values(7) only, and with its known answers."""

import json
import pathlib
import random
import re
import sys
import tempfile

import h5py
import numpy as np
import pytest
import safetensors.numpy

import conformance
import reference
from clients import PACKAGE, bits_of
from support import ROOT, TINY, datasets_in, rank_files, read_raw, reassemble, run_json, run_ok, table_file

sys.path.insert(0, str(PACKAGE))
import shardinit

FILES = tempfile.TemporaryDirectory()  # contains the files of the known answers
KNOWN = json.loads(conformance.PATH.read_text())
VECTORS, OF_TENSORS = KNOWN["vectors"], KNOWN["vectors_of_tensors"]


# The known answers ------------------------------------------------------------

def test_conformance_file_is_up_to_date():
    assert conformance.PATH.read_text() == conformance.text_of_vectors(), "python tests/python/conformance.py"


def init_kinds(vectors):
    return {next(iter(v["init"])) for v in vectors}


def test_conformance_file_covers_all_initializers():
    listed = re.search(r"^The distributions and their parameters(.*?)^\.El$",
                       (ROOT / "man/shardinit-format.5").read_text(), re.M | re.S)[1]
    of_tensors = {"norms", "source", "rows_like", "parts"}
    listed = set(re.findall(r"^\.It Ic (\w+) Ta", listed, re.M))
    assert init_kinds(VECTORS) == listed - of_tensors and init_kinds(OF_TENSORS) == of_tensors | {"expr"}
    assert {v["dtype"] for v in VECTORS} == set(reference.SIZES)
    assert {v["engine"] for v in VECTORS} == {v["engine"] for v in OF_TENSORS} == set(reference.ENGINES)
    texts = [v["init"]["expr"]["text"] for v in VECTORS + OF_TENSORS if "expr" in v["init"]]
    # The manual describes `torch_normal` for all types at once; the file has one function for each type.
    page = (ROOT / "man/shardinit-spec.5").read_text()
    functions = set(re.findall(r"\bFn (\w+)", page)) | {f"torch_{name}_{dtype}" for dtype in ("bf16", "f16", "f64")
                                                       for name in ("uniform", "normal", "pairs", "trunc_normal")}
    assert functions >= {*reference.FUNCTIONS, *reference.DRAWS}
    assert [name for name in sorted(functions) if not any(f"{name}(" in text for text in texts)] == []


def test_reference_matches_the_manual():
    page = (ROOT / "man/shardinit-values.7").read_text().replace("\\-", "-")
    key, = re.findall(r"seed 0 is\n\.Li 0x(\w+)", page)
    assert reference.key_of(0, "w") == int(key, 16)
    threefry, philox = re.findall(r"counter and key all zeros gives ([0-9a-f\s]+)(?:, and| \()", page)
    assert [f"{word:08x}" for word in reference.blocks_of(0, 0, np.zeros(1, np.uint64))[0]] == philox.split()
    zero = np.zeros(1, np.uint32)
    assert [f"{int(word[0]):08x}" for word in reference.threefry(0, [zero, zero])] == threefry.split()
    jax = page.index("Under the engine", page.index(".Sh KNOWN ANSWERS"))
    answers = list(re.finditer(r"^(\w+) ([-\d. ]+)\n((?:    [0-9a-f ]+\n){2})", page, re.M))
    assert len(answers) == 14
    for answer in answers:
        kind, parameters, bits = answer.groups()
        key = reference.key_of_tensor("jax_threefry" if answer.start() > jax else "philox4x32", 0, "w")
        sampler = {"uniform": reference.uniform, "normal": reference.normal,
                   "truncated_normal": reference.truncated_normal}[kind]
        values = sampler(key, 0, np.arange(8), *map(float, parameters.split()))
        assert [f"{word:08x}" for word in values.view(np.uint32)] == bits.split()


def spec_of(vector):
    """Returns a spec whose plan contains the tensor."""
    (kind, p), = vector["init"].items()
    fans = ""
    if kind == "expr":
        init = json.dumps({kind: p["text"]})
    elif kind == "file":
        path = table_file(FILES.name, bytes.fromhex(vector["file"]))
        init = json.dumps({kind: str(path)})
    elif kind == "sparse":  # this share of the rows rounds up to `zeros`
        init = json.dumps({kind: {"std": p["std"], "sparsity": max(0, p["zeros"] - 0.5) / vector["global_shape"][0]}})
    elif kind == "orthogonal":
        inner = len(vector["global_shape"]) != len(p["rows"] + p["columns"])
        one = p["rows"] if len(p["rows"]) == 1 else p["columns"]
        fans = "fans: out_in, " if inner else ""
        kind = "delta_orthogonal" if inner else kind
        init = json.dumps({kind: {"gain": p["gain"], **({} if inner else {"column_axis": one[0]})}})
    else:
        init = json.dumps(spec_initializer(vector["init"], vector))
    key = vector.get("key")
    if isinstance(key, dict):
        key = {"jax" if "words" in key else "torch": key}
    key = f", key: {json.dumps(key, ensure_ascii=False)}" if key else ""
    return (f"shardinit: 1\nname: conformance\nseed: {vector['seed']}\nengine: {vector['engine']}\nmodules:\n"
            f"  {vector['path']}: "
            f"{{shape: {vector['global_shape']}, dtype: {vector['dtype']}, {fans}init: {init}{key}}}\n")


def vector_box(vector):
    return tuple(slice(o, o + n) for o, n in zip(vector["offset"], vector["shape"]))


def spec_initializer(init, vector):
    """Returns a spec's initializer for a plan's distribution."""
    (kind, p), = init.items()
    if kind == "parts":
        return {kind: p | {"of": [spec_initializer(part["init"], vector) for part in p["of"]]}}
    if kind == "rows_like":  # rows are along the axis of `parts`, or the first axis
        return {kind: {name: value for name, value in p.items() if name != "axis"}}
    if kind == "source":
        is_scalar = vector["tensors"][0]["shape"] == []
        return {name: value for name, value in p.items() if name != "index" or value or is_scalar}
    return {kind: p["text"] if kind == "expr" else p}


SAFETENSORS_NAMES = {"f16": "F16", "f32": "F32", "f64": "F64", "i64": "I64"}


def spec_with_tensors(vector):
    """Returns the spec together with the tensors that provide its elements."""
    head, line = spec_of(vector).split("modules:\n")
    for tensor in vector["tensors"]:
        if "path" in tensor:
            line += spec_of(vector | tensor).split("modules:\n")[1]
            continue
        words = np.array([int(word, 16) for word in tensor["bits"].split()], f"<u{reference.SIZES[tensor['dtype']]}")
        facts = {tensor["tensor"]: {"dtype": SAFETENSORS_NAMES[tensor["dtype"]], "shape": tensor["shape"],
                                    "data_offsets": [0, words.nbytes]}}
        folder = pathlib.Path(tempfile.mkdtemp(dir=FILES.name))
        facts = json.dumps(facts).encode()
        (folder / "model.safetensors").write_bytes(len(facts).to_bytes(8, "little") + facts + words.tobytes())
        head += f"sources: {{{tensor['source']}: {{path: {folder}}}}}\n"
    return f"{head}modules:\n{line}"


def hex_digits(words, dtype):
    return [f"{word:0{2 * reference.SIZES[dtype]}x}" for word in words.ravel().tolist()]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_library_computes_the_known_answers(vector):
    with shardinit.open_spec(text=spec_of(vector)) as spec:
        words = bits_of(spec.generate(vector["path"], vector_box(vector)))
    assert hex_digits(words, vector["dtype"]) == vector["bits"].split()


@pytest.mark.parametrize("engine", reference.ENGINES)
def test_plans_of_known_answers_match(engine, tmp_path):
    """Plans and values match the known answers, for all tensors that are small enough to be written."""
    small = [v for v in VECTORS if np.prod(v["global_shape"], dtype=object) < 10000 and v["seed"] == 0
             and v["engine"] == engine]
    head, _, _ = spec_of(small[0]).rpartition("  ")
    tensors = ["  " + spec_of(v).rpartition("\n  ")[2] for v in small]
    (tmp_path / "spec.yaml").write_text(spec_of(small[0]).partition("  ")[0] + "".join(tensors))
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "out")
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    assert plan["engine"] == engine
    planned = {t["path"]: (t["init"], t.get("key"), t["dtype"], t["global_shape"]) for t in plan["tensors"]}
    assert planned == {v["path"]: (v["init"], v.get("key"), v["dtype"], v["global_shape"]) for v in small}


@pytest.mark.parametrize("vector", OF_TENSORS, ids=lambda vector: vector["name"])
def test_known_answers_derived_from_tensors(vector, tmp_path):
    (tmp_path / "spec.yaml").write_text(spec_with_tensors(vector))
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "out")
    planned = {t["path"]: t for t in json.loads((tmp_path / "out/plan.json").read_text())["tensors"]}
    for tensor in [vector, *(tensor for tensor in vector["tensors"] if "path" in tensor)]:
        members = {"path", "dtype", "global_shape", "init", "key"} & tensor.keys()
        assert {name: planned[tensor["path"]].get(name) for name in members} == {name: tensor[name] for name in members}
    words = reassemble(tmp_path / "out")[vector["path"]][1]
    assert hex_digits(words[vector_box(vector)], vector["dtype"]) == vector["bits"].split()


# Initializers in a spec → distributions in plan.json, as INITIALIZERS defines. Formulas use f64, with parameters and
# fans by name.

FORMULAS = {
    ("xavier_normal", "gain: 0.7"): ("normal", "0.7 * sqrt(1 / ((30 + 7) / 2))"),
    ("xavier_uniform", "gain: tanh"): ("uniform", "sqrt(3) * (5 / 3 * sqrt(1 / ((30 + 7) / 2)))"),
    ("kaiming_normal", "nonlinearity: relu"): ("normal", "sqrt(2) / sqrt(30)"),
    ("kaiming_uniform", "a: 0.3, mode: fan_out"): ("uniform", "sqrt(3) * (sqrt(2 / (1 + 0.3 * 0.3)) / sqrt(7))"),
    ("kaiming_normal", "nonlinearity: selu"): ("normal", "3 / 4 / sqrt(30)"),
    ("variance_scaling", "scale: 0.3"): ("truncated_normal", "sqrt(0.3 / 30) / 0.87962566103423978"),
    ("variance_scaling", "mode: fan_geo_avg, distribution: normal"): ("normal", "sqrt(1 / sqrt(30 * 7))"),
    ("variance_scaling", "mode: fan_out, distribution: uniform"): ("uniform", "sqrt(3 * (1 / 7))"),
    ("glorot_normal", ""): ("truncated_normal", "sqrt(1 / ((30 + 7) / 2)) / 0.87962566103423978"),
    ("glorot_uniform", ""): ("uniform", "sqrt(3 * (1 / ((30 + 7) / 2)))"),
    ("he_normal", ""): ("truncated_normal", "sqrt(2 / 30) / 0.87962566103423978"),
    ("he_uniform", ""): ("uniform", "sqrt(3 * (2 / 30))"),
    ("lecun_normal", ""): ("truncated_normal", "sqrt(1 / 30) / 0.87962566103423978"),
    ("lecun_uniform", ""): ("uniform", "sqrt(3 * (1 / 30))"),
}


def stft(n0, n2, side, window, scaling, periodic):
    T = 2 * (n2 - 1)
    part = f"{side}(6.283185307179586 * mod(i0 * i2, {T}) / {T})"
    if window is None:
        return part
    b = 1 - window
    p = max(1, n0) if periodic else max(1, n0 - 1)
    S = window - b if p == 1 else window * p
    Q = S * S if p == 1 else (window * window + b * b * (1 if p == 2 else 0.5)) * p
    if not periodic:
        S, Q = S + (window - b), Q + (window - b) * (window - b)
    text = f"({window} - {b} * cos(6.283185307179586 * i0 / {p}))"
    if n0 == 1:
        text, S, Q = "1", 1, 1
    return f"{part} * {text} / {np.sqrt(Q) if scaling == 'density' else S if scaling == 'spectrum' else 1}"


def test_initializers_match_the_formulas_of_the_manual(tmp_path):
    lines, wanted = [], {}
    for number, ((name, parameters), (kind, formula)) in enumerate(FORMULAS.items()):
        x = float(eval(formula, {"sqrt": np.sqrt}))
        wanted[f"f{number}"] = {"normal": {"mean": 0, "std": x}, "uniform": {"low": -x, "high": x},
                                "truncated_normal": {"mean": 0, "std": x, "low": -2, "high": 2}}[kind]
        lines.append(f"f{number}: {{shape: [7, 30], fans: out_in, init: {{{name}: {{{parameters}}}}}}}")
    wanted["trunc"] = {"mean": 0.1, "std": 0.3, "low": (-1 - 0.1) / 0.3, "high": (0.7 - 0.1) / 0.3}
    lines.append("trunc: {shape: [2], init: {trunc_normal: {mean: 0.1, std: 0.3, a: -1, b: 0.7}}}")
    wanted["sparse"] = {"std": 0.01, "zeros": 3}
    lines.append("sparse: {shape: [7, 2], init: {sparse: {sparsity: 0.3}}}")
    for name in "uniform", "normalized", "orthogonal":
        wanted[name] = {"value": 0}
    lines += ["uniform: {shape: [2, 2], init: {xavier_uniform: {gain: 0}}}",
              "normalized: {shape: [2, 2], init: {normalized: {axis: 0, length: 0}}}",
              "orthogonal: {shape: [2, 2], init: {orthogonal: {gain: 0}}}"]

    pairs = [("[4, 5]", "{eye: {gain: 0.3}}", "where(row == col, 0.3, 0)"),
             ("[8, 3, 5, 4]", "{dirac: {groups: 2}}",
              "(mod(i0, 8 / 2) == i1) * (i2 == floor(5 / 2)) * (i3 == floor(4 / 2))"),
             ("[9]", "{arange: {start: 0.1, step: 0.3}}", "0.1 + 0.3 * index")]
    for n0 in (1, 2, 3, 10):
        for word, window in {"hann": 0.5, "hamming": 0.54, "none": None}.items():
            for scaling in ("density", "spectrum", "none"):
                for periodic in (0, 1):
                    if n0 == 2 - periodic and n0 > 1 and word == "hann" and scaling != "none":
                        continue  # a window of zeros is rejected
                    side, f = [("real", "cos"), ("imag", "-sin")][n0 % 2]
                    pairs.append((f"[{n0}, 1, 6]", f"{{stft: {{side: {side}, window: {word}, scaling: {scaling}, "
                                  f"periodic: {periodic}}}}}", stft(n0, 6, f, window, scaling, periodic)))
    for number, (shape, init, formula) in enumerate(pairs):
        lines.append(f"a{number}: {{shape: {shape}, init: {init}}}")
        lines.append(f"b{number}: {{shape: {shape}, init: {{expr: \"{formula}\"}}}}")
    (tmp_path / "spec.yaml").write_text(
        "shardinit: 1\nname: x\ndtype: f32\nmodules:\n" + "".join(f"  {line}\n" for line in lines))
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "out")
    tensors = json.loads((tmp_path / "out/plan.json").read_text())["tensors"]
    inits = {tensor["path"]: next(iter(tensor["init"].values())) for tensor in tensors}
    assert {path: inits[path] for path in wanted} == wanted
    for number, pair in enumerate(pairs):
        assert inits[f"a{number}"] == inits[f"b{number}"], pair


# Whole plans ------------------------------------------------------------------

def reproduce(folder, *arguments, sources=None):
    """Compares the tool's digests of a spec with digests that the reference computes from plan.json."""
    run_ok("gen", *arguments, "-o", folder)
    wanted = run_json("digest", *arguments)
    plan = json.loads((pathlib.Path(folder) / "plan.json").read_text())
    model, digests = reference.digests_of(plan, sources=sources)
    inits = {t["path"]: (t["dtype"], t["global_shape"], t["init"]) for t in plan.get("logical", plan["tensors"])}
    for tensor in wanted["tensors"]:
        assert digests.pop(tensor["path"]) == tensor["sha256"], inits[tensor["path"]]
    assert not digests and model == wanted["model_digest"]


@pytest.mark.parametrize("config", ["llama3-tiny", "dtypes", "expressions"])
def test_reference_reproduces_shipped_configs(config, tmp_path):
    reproduce(tmp_path / "out", ROOT / f"configs/{config}.yaml")


def test_reference_reproduces_a_layout(tmp_path):
    (tmp_path / "spec.yaml").write_text(f"include: [{TINY}, {ROOT}/configs/layouts/llama.yaml]\n")
    reproduce(tmp_path / "out", tmp_path / "spec.yaml", "--layout", "megatron")


LIMITS = {"f32": 1e30, "f64": 1e30, "bf16": 1e30, "f16": 60000, "f8e4m3fn": 400, "f8e5m2": 50000}


class Random(random.Random):
    def draw_shape(self, low, high, most=3000):
        while True:
            shape = [self.choice([1, 2, 3, 5, 8, 17, 64, 600]) for _ in range(self.randint(low, high))]
            if np.prod(shape) <= most:
                return shape

    def draw_scale(self, dtype):
        return float(f"{10 ** self.uniform(-9, np.log10(LIMITS[dtype] / 8)):.3g}")

    def draw_initializer(self, kind, dtype):
        """Returns (initializer, shape, more keys)."""
        scale, shape = self.draw_scale(dtype), self.draw_shape(0, 4)
        mean = self.choice([0, -0.0, 1, scale])
        if kind == "constant":
            return {kind: {"value": self.choice([0, -0.0, 1, scale, -scale])}}, shape, {}
        if kind == "uniform":
            return {kind: {"low": -scale, "high": self.choice([0.0, -scale / 3, scale])}}, shape, {}
        if kind == "normal":
            return {kind: {"mean": mean, "std": min(scale, LIMITS[dtype] / 10)}}, shape, {}
        if kind == "truncated_normal":
            low, high = sorted([self.uniform(-9, 8), self.uniform(-8, 9)])
            return {kind: {"mean": mean, "std": scale, "low": low, "high": max(high, low + 0.001)}}, shape, {}
        if kind == "trunc_normal":
            return {kind: {"mean": 1, "std": 0.3, "a": self.uniform(-1, 0), "b": self.uniform(0.1, 3)}}, shape, {}
        if kind == "sparse":
            return {kind: {"std": scale, "sparsity": self.random()}}, self.draw_shape(2, 2), {}
        if kind == "normalized":
            shape = self.draw_shape(1, 4)
            return {kind: {"axis": self.randrange(len(shape)), "length": scale}}, shape, {}
        if kind == "orthogonal":
            shape = [self.randint(1, 30) for _ in range(self.randint(2, 3))]
            axis = self.randrange(len(shape))
            return {kind: {"gain": self.choice([1, -0.5]), "column_axis": axis}}, shape, {}
        if kind == "delta_orthogonal":
            return kind, [self.randint(6, 20), self.randint(1, 6), self.randint(1, 4), 3], {"fans": "out_in"}
        if kind == "expr":
            shape = self.draw_shape(0, 4)
            text = self.draw_expression(len(shape), 6)
            bound = LIMITS.get(dtype, 1)
            low, high = ("0" if dtype == "bool" or dtype[0] == "u" else str(-bound), str(bound))
            text = f"min({high}, max({low}, {text}))"  # NaN becomes `low`
            return {kind: text if dtype in LIMITS else f"floor({text})"}, shape, {}
        return kind, self.draw_shape(2, 4), {"fans": self.choice(["out_in", "in_out"])}

    def draw_tensor(self):
        """Returns a tensor in the form of a spec."""
        dtype = self.choice(list(reference.SIZES))
        kind = self.choice(FLOAT_KINDS + ["trunc_normal"] + FAN_KINDS if dtype in LIMITS else ["constant", "expr"])
        if dtype in ("f8e4m3fn", "f8e5m2", "f16") and kind == "trunc_normal":
            dtype = "f64"
        init, shape, more = self.draw_initializer(kind, dtype if dtype in LIMITS else "f32")
        if dtype not in LIMITS:
            init = self.choice(["zeros", "ones"]) if kind == "constant" else {"expr": f"({init['expr']}) > 0.5"}
        return {"shape": shape, "dtype": dtype, "init": init, **more}

    def draw_expression(self, rank, depth):
        """Returns the text of an expression that is not constant, and may be infinite or NaN."""
        if depth == 0 or self.random() < 0.1:
            return self.choice([f"i{d}" for d in range(rank)] * 3 + ["index", "normal()", "uniform()", "bits()"])
        of = lambda: self.draw_expression(rank, depth - 1)
        other = lambda: of() if self.random() < 0.5 else self.choice(
            ["0", "-0", "1", "-1", "0.5", "3", "1e-320", "1e300", "-7.25", "0.1", "1e9"])
        kind = self.randrange(10)
        if kind < 3:
            operator = self.choice("+-*/")
            return f"({of()} {operator} {of() if operator == '/' else other()})"
        if kind == 3:
            return f"({other()} {self.choice(['<', '<=', '>', '>=', '==', '!='])} {of()})"
        if kind == 4:
            return f"-{of()}"
        if kind == 5:
            return f"where({of()}, {other()}, {other()})"
        if kind == 6:
            return f"{self.choice(['min', 'max'])}({of()}, {other()}, {other()})"
        if kind == 7:
            name = self.choice(["pow", "mod", "ceil_div", "round_up"])
            return f"{name}({of()}, {other()})"
        if kind == 8:
            return f"clip({other()}, {of()}, {other()})"
        name = self.choice(["abs", "floor", "sqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf_inv",
                            "f32", "bf16", "f16"])
        return f"{name}({of()})"


FLOAT_KINDS = ["uniform", "normal", "truncated_normal", "sparse", "normalized", "orthogonal", "delta_orthogonal",
               "constant", "expr", "expr"]
FAN_KINDS = ["xavier_uniform", "xavier_normal", "kaiming_uniform", "he_normal", "lecun_uniform", "variance_scaling"]


@pytest.mark.parametrize("seed", range(4))
def test_reference_reproduces_random_plans(seed, tmp_path):
    rng = Random(seed)
    tensors = {}
    for number in range(60):
        tensors[f"t{number}"] = rng.draw_tensor()
    spec = {"shardinit": 1, "name": "random", "seed": rng.choice([0, 7, 2**63 - 1]), "modules": tensors}
    (tmp_path / "spec.yaml").write_text(json.dumps(spec, indent=1))
    reproduce(tmp_path / "out", tmp_path / "spec.yaml")


def test_parts_of_wide_sparse_matrices(tmp_path):
    """A rank that has the end of a row and the beginning of the next sorts only these columns, not whole rows."""
    columns, ranks = 2**33 + 5, 2**20
    (tmp_path / "spec.yaml").write_text(
        f"shardinit: 1\nname: x\ndtype: f32\nuneven: chunk\nmesh: {{axes: {{a: {ranks}}}}}\nmodules:\n"
        f"  w: {{shape: [3, {columns}], init: {{sparse: {{sparsity: 0.5}}}}}}\nlayouts:\n"
        f"  flat: {{w: {{from: {{reshape: {{shape: [{3 * columns}], of: w}}}}, shard: [a]}}}}\n")
    part = -(-3 * columns // ranks)
    rank = columns // part
    run_ok("gen", tmp_path / "spec.yaml", "--layout", "flat", "--ranks", rank, "-o", tmp_path / "out", timeout=60)
    name, = rank_files(tmp_path / "out")
    with h5py.File(name) as file:
        dataset, = datasets_in(file)
        made = read_raw(dataset)
    begin = rank * part
    assert begin < columns < begin + part == begin + len(made)
    init = {"sparse": {"std": 0.01, "zeros": 2}}
    wanted = reference.elements_of("philox4x32", 0, "w", "f32", [3, columns], init, np.arange(begin, begin + part))
    assert np.array_equal(made, wanted)


# Sources ----------------------------------------------------------------------

SOURCE_TYPES = {"f32": "<f4", "f64": "<f8", "f16": "<f2", "i8": "i1", "u16": "<u2"}


def draw_source(rng, number):
    """Returns a model's tensor for NumPy and for the reference."""
    dtype = rng.choice(list(SOURCE_TYPES))
    shape = [rng.choice([1, 2, 5, 9]) for _ in range(rng.choice([1, 2, 2, 3]))]
    values = np.random.default_rng(number).normal(1, 20, size=shape)
    values = (np.abs(values) if dtype[0] == "u" else values).astype(SOURCE_TYPES[dtype])
    return values, reference.SourceTensor(dtype, shape, values.view(f"<u{values.itemsize}"))


def draw_of_source(rng, name, tensor):
    """Returns the spec text of a tensor that takes elements from the source's tensor."""
    axis, more = rng.randrange(len(tensor.shape)), rng.randint(1, 6)
    longer = [n + more * (d == axis) for d, n in enumerate(tensor.shape)]
    turned = ", ".join(f"{n - 1} - i{d}" for d, n in enumerate(tensor.shape))
    share = rng.choice(["", ", std: 0", ", std: 0.5", ", std: 3"])
    rows = rng.choice(["", f", rows: {rng.randint(1, tensor.shape[axis])}"])
    dtype = rng.choice(["f32", "f64", "bf16", "f16"])
    part = rng.choice([f"{{rows_like: {{source: base, tensor: {name}{share}{rows}}}}}", "{normal: {std: 2}}",
                       "{expr: \"normal() + i0 + 10 * uniform()\"}"])
    return rng.choice([
        (tensor.shape, tensor.dtype, f"{{source: base, tensor: {name}}}"),
        (tensor.shape, dtype, f"{{source: base, tensor: {name}, index: [{turned}]}}"),
        (tensor.shape, dtype, f"{{expr: \"source('base', '{name}', {turned}) * 0.3 + normal()\"}}"),
        (tensor.shape, dtype, f"{{rows_like: {{source: base, tensor: {name}{share}}}}}"),
        ([3, 70], dtype, f"{{expr: \"source_mean('base', '{name}') + i0 * source_std('base', '{name}') * normal()\"}}"),
        *2 * [(longer, dtype, f"{{parts: {{axis: {axis}, of: [{{source: base, tensor: {name}}}, {part}]}}}}")]])


@pytest.mark.parametrize("seed", range(6))
def test_reference_reproduces_tensors_of_sources(seed, tmp_path):
    rng = Random(seed)
    drawn = {f"w{number}": draw_source(rng, 100 * seed + number) for number in range(6)}
    safetensors.numpy.save_file({name: values for name, (values, _) in drawn.items()}, tmp_path / "model.safetensors")
    lines = []
    for number in range(30):
        name = rng.choice(list(drawn))
        shape, dtype, init = draw_of_source(rng, name, drawn[name][1])
        lines.append(f"  t{number}: {{shape: {shape}, dtype: {dtype}, init: {init}}}\n")
    (tmp_path / "spec.yaml").write_text(f"shardinit: 1\nname: x\nseed: {seed}\n"
                                        f"sources: {{base: {{path: model.safetensors}}}}\n"
                                        "modules:\n" + "".join(lines))
    reproduce(tmp_path / "out", tmp_path / "spec.yaml", sources={("base", name): of for name, (_, of) in drawn.items()})


def test_rows_like_matches_the_manual(tmp_path):
    page = (ROOT / "man/shardinit-values.7").read_text().replace("\\-", "-")
    rows, share, bits = re.search(r"^rows_like of((?: \[[-\d ]+\])+), std ([\d.]+)\n((?:    [0-9a-f ]+\n){2})", page,
                                  re.M).groups()
    table = np.array([row.split() for row in re.findall(r"\[(.*?)\]", rows)], np.float32)
    tensor = reference.SourceTensor("f32", table.shape, table.view("<u4"))
    init = {"rows_like": {"source": "base", "tensor": "w", "axis": 0, "rows": len(table), "std": float(share)}}
    words = reference.elements_of("philox4x32", 0, "w", "f32", [4, table.shape[1]], init, np.arange(8),
                                  sources={("base", "w"): tensor})
    assert [f"{word:08x}" for word in words] == bits.split()
    safetensors.numpy.save_file({"w": table}, tmp_path / "model.safetensors")
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: x\nsources: {base: {path: model.safetensors}}\nmodules:\n"
                                        f"  w: {{shape: [4, 2], dtype: f32, init: {{rows_like: {{source: base, std: "
                                        f"{share}}}}}}}\n")
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "out")
    assert [f"{word:08x}" for word in reassemble(tmp_path / "out")["w"][1].ravel()] == bits.split()
