"""tests/vectors/conformance.json, which is installed: known answers for other programs that compute
what shardinit-values(7) defines. They are made by the reference of that page, not by shardinit:

    python tests/python/conformance.py
"""

import hashlib
import json
import pathlib

import numpy as np

import reference

PATH = pathlib.Path(__file__).resolve().parents[1] / "vectors/conformance.json"

FLOATS = ["f32", "f64", "bf16", "f16", "f8e4m3fn", "f8e5m2"]

vectors = []


def Add(name, dtype, global_shape, init, offset=None, shape=None, seed=0, key=None, engine="philox4x32",
        **more):
    """A box of the tensor `name`; all of it if no box is given."""
    vector = {"name": name, "engine": engine, "seed": seed, "path": name.replace(" ", "_").replace("^", "-")}
    if key:
        vector["key"] = key
    vectors.append(vector | {
        "dtype": dtype, "global_shape": global_shape, "init": init,
        "offset": offset or [0] * len(global_shape), "shape": shape or global_shape} | more)


def Expr(text):
    return {"expr": {"text": text}}


def Choose(values, index="i0"):
    """The text that is the values in turn."""
    *first, last = values
    return "".join(f"where({index} == {n}, {value}, " for n, value in enumerate(first)) + last + ")" * len(first)


def AddSamplers():
    samplers = {
        "uniform": [(-0.1, 0.1), (0, 1), (-3.5, -1.25), (-1, -0.0), (0.0, 8.271806125530277e-25),
                    (-1e30, 2e29), (1, 1.0000005)],  # Of the last, a quarter is cut off below `high`.
        "normal": [(0, 1), (0.5, 0.02), (-0.0, 1e-20), (1e30, 1e28), (3, 0)],
        "truncated_normal": [(0, 1, -2, 2), (0.25, 0.02, -100, 100), (0, 1, -1, 3), (0, 1, 5, 6), (0, 1, 0, 0.5),
                             (0, 1, -7, -0.0), (-2, 1, -100, -3), (0, 1, 2, 1e300), (0, 1, -0.0005, 0.0005),
                             (0, 1, 8, 8.0011), (0, 1, -8.5, -8), (7, 0, -2, 2)],
    }
    names = {"uniform": ("low", "high"), "normal": ("mean", "std"),
             "truncated_normal": ("mean", "std", "low", "high")}
    for kind, list_of in samplers.items():
        for number, values in enumerate(list_of):
            Add(f"{kind} {number}", "f32", [41], {kind: dict(zip(names[kind], values))})
        init = {kind: dict(zip(names[kind], list_of[0]))}
        # The last two words of a block of 2^32 or more, and the first of the next; the last of all.
        Add(f"{kind} at 2^34", "f32", [2**36, 2**24], init, [2**10 - 1, 2**24 - 5], [2, 5])
        Add(f"{kind} at 2^50", "bf16", [2**61], init, [2**50 - 3], [19])
        Add(f"{kind} at the end", "f32", [3, 2**30, 2**29], init, [2, 2**30 - 2, 2**29 - 5], [1, 2, 5])
        for seed in (1, 1234567890123, 2**63 - 1):
            Add(f"{kind} seed {seed}", "f32", [9], init, seed=seed)
        Add(f"{kind} key", "f32", [9], init, key=f"model.layers.0.wörd.{kind}")
    standard = {"normal": {"mean": 0, "std": 1}}
    Add("normal.tail", "f32", [2**30], standard, [24284690], [14])
    Add("truncated_normal.tail", "f32", [2**30],
        {"truncated_normal": {"mean": 0, "std": 1, "low": -100, "high": 100}}, [740930], [16])


def AddTypes():
    # The smallest subnormal number, bits of the mantissa, and the largest number that rounds to a finite one.
    floats = {"f32": (149, 23, "3.4028235677973362e+38"), "bf16": (133, 7, repr(float.fromhex("0x1.fefffep127"))),
              "f16": (24, 10, "65519.99609375"), "f8e4m3fn": (9, 3, "464"), "f8e5m2": (16, 2, "61439.99609375")}
    for dtype, (smallest, mantissa, largest) in floats.items():
        half = repr(2.0 ** -(smallest + 1))
        Add(f"{dtype} subnormal ties", dtype, [64], Expr(f"(i0 - 32) * {half}"))
        Add(f"{dtype} by subnormal ties", dtype, [2, 16],
            Expr(f"(i1 - 7) * {half} * (1 + (2 * i0 - 1) * {repr(2.0**-22)})"))
        Add(f"{dtype} ties", dtype, [32], Expr(f"(1 + (i0 - 16) * {repr(2.0**-(mantissa + 1))}) * 3"))
        Add(f"{dtype} carries", dtype, [8], Expr(f"2 - (i0 + 1) * {repr(2.0**-(mantissa + 2))}"))
        # Above the middle, but not in f32, where it is a tie.
        Add(f"{dtype} rounded twice", dtype, [2, 4],
            Expr(f"(i1 - 2 + {repr(2.0**-(mantissa + 1))} + (i0 - 0.5) * 1e-15) * 4"))
        Add(f"{dtype} largest", dtype, [4], Expr(Choose([largest, "-" + largest, "-0", "0"])))
        values = ["3.14159", "-0", "1e-45", "5e-324", "0.1", "-400"]
        for number, value in enumerate(values):
            Add(f"{dtype} constant {number}", dtype, [1], {"constant": {"value": float(value)}})
    Add("f64 constant", "f64", [2], {"constant": {"value": 0.1}})
    Add("f64 constant -0", "f64", [2], {"constant": {"value": -0.0}})
    for dtype in FLOATS:
        Add(f"{dtype} normal", dtype, [40], {"normal": {"mean": 0, "std": 0.5}})
    for dtype, std in {"f16": 1e-7, "f8e4m3fn": 0.002, "f8e5m2": 2e-5}.items():
        Add(f"{dtype} normal subnormal", dtype, [64], {"normal": {"mean": 0, "std": std}})
    Add("f8e4m3fn normal large", "f8e4m3fn", [64], {"normal": {"mean": 0, "std": 64}})

    for bits in (8, 16, 32, 64):
        low, high = (-(2**53) + 1, 2**53 - 1) if bits == 64 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        Add(f"i{bits}", f"i{bits}", [4], Expr(Choose([str(low), str(high), "-0", "-1"])))
        Add(f"i{bits} constant", f"i{bits}", [2], {"constant": {"value": low}})
        high = min(2**bits, 2**53) - 1
        Add(f"u{bits}", f"u{bits}", [3], Expr(Choose([str(high), "1", "-0"])))
        Add(f"u{bits} constant", f"u{bits}", [2], {"constant": {"value": high}})
        Add(f"u{bits} bits", f"u{bits}", [3, 7], Expr(f"floor(bits() / {2 ** max(0, 32 - bits)})"
                                                      if bits < 32 else "bits()"))
    Add("bool", "bool", [5, 5], Expr("i0 >= i1"))
    Add("bool constant", "bool", [2], {"constant": {"value": 1}})


SPECIAL = ["0", "-0", "1 / i0", "-1 / i0", "i0 / i0", "1", "-1", "0.5", "-0.5", "2", "-3", "5e-324",
           "-2.2250738585072014e-308", "1.7976931348623157e+308", "-1.7976931348623157e+308", "67108864",
           "67108864.00000001", "1e+22", "0.49999999999999994", "-0.9999999999999999", "3.725290298461914e-09", "-9.5"]


FEW = [*SPECIAL[:11], "4.5", "1e+22"]  # Of two arguments.


def Special(values, index):
    """The values in turn; with i0, which is 0 then, infinite, -infinite and no number."""
    return Choose([value.replace("i0", f"({index} - {n})") for n, value in enumerate(values)], index)


def Stored(text):
    """As what an element can be: 1e300 for infinite, 12345 for what is no number."""
    return f"where({text} == {text}, min(1e+300, max(-1e+300, {text})), 12345)"


ORDINARY = {
    "abs": "i0 - 7.5", "floor": "(i0 - 7) * 0.5", "sqrt": "i0 * 0.37", "exp": "(i0 - 16) * 22.25 - 31",
    "expm1": "(i0 - 12) * 3.5", "log": "(i0 + 1) * 0.0625", "log1p": "i0 * 0.0625 - 0.9375",
    "sin": "(i0 - 12) * 1234567.89", "cos": "(i0 - 12) * 0.7853981633974483", "tanh": "(i0 - 12) * 0.3",
    "erf_inv": "(i0 - 16) * 0.0624999", "exp subnormal": "-708 - i0 * 1.6",
    "erf_inv tail": "1 - 1 / (1 + i0 * i0 * i0 * i0 * i0 * i0)", "log subnormal": "i0 * 5e-324 * 1048579 + 5e-324",
}


def AddExpressions():
    for name, argument in ORDINARY.items():
        function = name.split()[0]
        Add(f"{function} {name.split()[-1]}", "f64", [25], Expr(f"{function}({argument})"))
    for function in ("abs", "floor", "sqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf_inv"):
        Add(f"{function} special", "f64", [len(SPECIAL)], Expr(Stored(f"{function}({Special(SPECIAL, 'i0')})")))
    n = len(FEW)
    for name, text in {
        "add": "{x} + {y}", "subtract": "{x} - {y}", "multiply": "{x} * {y}", "divide": "{x} / {y}",
        "less": "({x} < {y}) + 2 * ({x} <= {y})", "greater": "({x} > {y}) + 2 * ({x} >= {y})",
        "equal": "({x} == {y}) + 2 * ({x} != {y})", "negate": "-{x} + -{y}",
        "pow": "pow({x}, {y})", "min": "min({x}, {y})", "max": "max({x}, {y})", "where": "where({x}, {y}, 3)",
        "clip": "clip({x}, {y}, 1)", "mod": "mod({x}, {y})", "ceil_div": "ceil_div({x}, {y})",
        "round_up": "round_up({x}, {y})",
    }.items():
        text = text.replace("{x}", Special(FEW, "i0")).replace("{y}", Special(FEW, "i1"))
        Add(f"{name} special", "f64", [n, n], Expr(text if name in ("less", "greater", "equal") else Stored(text)))
    Add("pow ordinary", "f64", [9, 9], Expr("pow((i0 + 1) * 0.375, (i1 - 4) * 1.5)"))
    Add("pow whole", "f64", [9, 9], Expr("pow(i0 - 4.5, (i1 - 4) * 3)"))
    Add("pow subnormal", "f64", [20], Expr("pow(0.5, 1020 + i0 * 2.75)"))
    Add("mod ordinary", "f64", [12, 3], Expr("mod((i0 - 6) * 1.25, i1 - 0.5)"))
    Add("ceil_div ordinary", "f64", [12, 3], Expr("ceil_div(i0 - 6, i1 + 2) * 100 + round_up(i0 - 6, i1 + 2)"))
    Add("min and max of many", "f64", [9], Expr("min(i0, 3, 7 - i0) + 10 * max(i0, 4, 7 - i0) + 100 * max(i0)"))

    Add("ranks", "f64", [9, 5], Expr("1 - i0 - 2 * i1 / 3 * 7 < -i0 * 2 + 5 / (i1 + 7)"))
    Add("ranks of signs", "f64", [9, 5], Expr("--i0 * -i1 - -2 + -(i0 + i1) * 3"))
    Add("ranks kept", "f64", [9, 5], Expr("i0 - (i1 - 2) + i0 / (i1 * 2 + 1) / (3 / (i0 + 1))"))
    Add("comparisons of comparisons", "f64", [5, 5], Expr("((i0 < i1) == (i1 < 3)) - (i0 != i1) * 2"))
    Add("indices", "f64", [3, 4, 5], Expr("index * 1000000 + i0 * 10000 + i1 * 100 + i2"))
    Add("a scalar", "f64", [], Expr("index + normal()"))
    huge = {"global_shape": [2**22, 2**10, 2**21], "offset": [2**22 - 2, 2**10 - 2, 2**21 - 3], "shape": [2, 2, 3]}
    Add("indices up to 2^53", "f64", init=Expr("index - i0 - i1 - i2"), **huge)
    Add("draws at 2^53", "f64", init=Expr("normal() + uniform() * 100 + floor(bits() / 65536) * 1000"), **huge)
    Add("draws", "f64", [21], Expr("normal() - normal() * 100 + uniform() * 10000 + bits()"))
    Add("draws not chosen", "f64", [21], Expr("where(0, normal(), uniform()) + 0 * bits() - bits() * 2"))
    Add("draws in another order", "f64", [21], Expr("bits() * uniform() / (2 + normal()) + min(normal(), normal())"))
    Add("masked normal", "bf16", [8, 8], Expr("where(i0 >= i1, normal() * 0.02, 0)"))


ROUNDED = ("65519.99", "-65520", "2049", "2051.0001", "-1.00048828125", "0.1", "3.0517578125e-05", "-8.9e-08", "2.9e-08",
           "3.4028235677973366e+38", "3.4028234e+38", "-3.3961775292304e+38", "3.3895313892515355e+38", "1e-45",
           "-7e-46", "1.2e-38", "1.01171875", "1.0039062649011612", "1.0000000596046448")


def AddRounding():
    for function in ("f32", "bf16", "f16"):
        Add(f"{function} special", "f64", [len(SPECIAL)], Expr(Stored(f"{function}({Special(SPECIAL, 'i0')})")))
        Add(f"{function} rounded", "f64", [len(ROUNDED)], Expr(Stored(f"{function}({Choose(ROUNDED)})")))


def AddMatrices():
    def Orthogonal(name, dtype, global_shape, rows, columns, gain=1, **box):
        init = {"orthogonal": {"gain": gain, "rows": rows, "columns": columns}}
        Add(f"orthogonal {name}", dtype, global_shape, init, **box)

    Orthogonal("1 x 1", "f32", [1, 1], [0], [1])
    Orthogonal("8 x 8", "f32", [8, 8], [0], [1])
    Orthogonal("19 x 19", "f64", [19, 19], [0], [1], offset=[0, 3], shape=[19, 4])
    Orthogonal("40 x 13", "f32", [40, 13], [0], [1], 2.5, offset=[7, 0], shape=[9, 13])
    Orthogonal("13 x 40", "bf16", [13, 40], [0], [1], -0.3, offset=[0, 30], shape=[13, 10])
    Orthogonal("40 x 16", "f16", [40, 16], [0], [1], 1e-6, offset=[0, 0], shape=[5, 16])
    Orthogonal("of a convolution", "f32", [6, 5, 3], [0], [1, 2], 1.4142135623730951)
    Orthogonal("of outputs at the end", "f32", [3, 5, 6], [0, 1], [2])
    Orthogonal("delta", "f32", [6, 5, 4, 3], [0], [1])

    for name, shape, std, zeros in (("sparse", [12, 7], 0.01, 3), ("sparse dense", [9, 4], 1, 0),
                                    ("sparse empty", [9, 4], 1, 9), ("sparse row", [1, 5], 2.5, 1)):
        Add(name, "f32", shape, {"sparse": {"std": std, "zeros": zeros}})
    Add("sparse at 2^34", "bf16", [11, 2**34], {"sparse": {"std": 0.5, "zeros": 5}}, [0, 2**34 - 5], [11, 5])
    # Two equal words, of which one is zero: that in the lower row.
    rows = 200000
    words = reference.Words(reference.Key(0, "sparse_tie_0"), 1, np.arange(rows))
    order = np.argsort(words, kind="stable")
    place = int(np.flatnonzero(words[order[1:]] == words[order[:-1]])[0])
    for number, row in enumerate(order[place:place + 2]):
        Add(f"sparse tie {number}", "f32", [rows, 1], {"sparse": {"std": 1, "zeros": place + 1}},
            [int(row), 0], [1, 1], key="sparse_tie_0" if number else None)

    def Normalized(name, dtype, global_shape, axis, length=1, **box):
        Add(f"normalized {name}", dtype, global_shape, {"normalized": {"axis": axis, "length": length}}, **box)

    Normalized("rows", "f32", [5, 20], 1)
    Normalized("columns", "bf16", [20, 5], 0, 0.25)
    Normalized("short", "f32", [4, 3], 1)
    Normalized("of one", "f64", [6, 1], 1, 3)
    Normalized("long", "f32", [3, 1500], 1, 10, offset=[1, 1490], shape=[2, 10])
    Normalized("in the middle", "f16", [3, 9, 4], 1)
    Normalized("rows at 2^34", "f32", [2**33 + 5, 4, 3], 1, offset=[2**33 + 3, 0, 0], shape=[2, 4, 3])
    Normalized("columns at 2^34", "f32", [5, 2**34], 0, offset=[1, 2**34 - 5], shape=[3, 5])
    Normalized("one row at 2^40", "f8e4m3fn", [2**40, 9], 1, 100, offset=[2**40 - 2, 2], shape=[2, 5])


def AddFiles():
    def File(name, dtype, global_shape, words, **box):
        content = np.array(words, f"<u{reference.SIZES[dtype]}").tobytes()
        Add(f"file {name}", dtype, global_shape, {"file": {"sha256": hashlib.sha256(content).hexdigest()}},
            file=content.hex(), **box)

    File("f32", "f32", [2, 4], [0x7FA00001, 0xFFC00000, 0x80000000, 1, 0x7F800000, 0x3F800000, 0xFF800000, 0x7F7FFFFF])
    File("bf16", "bf16", [6], [0x7F81, 0x8000, 1, 0xFF80, 0x3F80, 0xFFFF])
    File("f8e4m3fn", "f8e4m3fn", [4], [0x7F, 0xFF, 0x80, 0x7E])
    File("u64", "u64", [3, 2], [2**64 - 1, 0, 2**53 + 1, 1, 2**63, 2], offset=[1, 0], shape=[2, 1])
    File("i16", "i16", [3], [0x8000, 0x7FFF, 0xFFFF])
    File("bool", "bool", [2, 3], [0, 1, 1, 0, 0, 1])
    File("a scalar", "f64", [], [0x7FF0000000000001])


def AddJax():
    def Jax(name, dtype, global_shape, init, **more):
        Add(f"jax {name}", dtype, global_shape, init, engine="jax_threefry", **more)

    samplers = {
        "uniform": [(-0.1, 0.1), (0, 1), (-3.5, -1.25), (-1, -0.0), (0.0, 8.271806125530277e-25), (-1e30, 2e29),
                    (1, 1.0000005), (1e-9, 1), (-5000, -4999.9)],
        "normal": [(0, 1), (0.5, 0.02), (-0.0, 1e-20), (1e30, 1e28), (3, 0)],
        "truncated_normal": [(0, 1, -2, 2), (0.25, 0.02, -100, 100), (0, 1, -1, 3), (0, 1, 5, 6), (0, 1, 0, 0.5),
                             (0, 1, -7, -0.0), (-2, 1, -100, -3), (0, 1, 2, 1e300), (0, 1, -0.0005, 0.0005),
                             (0, 1, 1e-20, 0.25), (0, 1e-18, -2, 2), (7, 0, -2, 2)],
    }
    names = {"uniform": ("low", "high"), "normal": ("mean", "std"),
             "truncated_normal": ("mean", "std", "low", "high")}
    for kind, list_of in samplers.items():
        for number, values in enumerate(list_of):
            Jax(f"{kind} {number}", "f32", [41], {kind: dict(zip(names[kind], values))})
        init = {kind: dict(zip(names[kind], list_of[0]))}
        Jax(f"{kind} at 2^32", "f32", [2**36, 2**24], init, offset=[2**8 - 1, 2**24 - 5], shape=[2, 5])
        Jax(f"{kind} at 2^50", "bf16", [2**61], init, offset=[2**50 - 3], shape=[19])
        Jax(f"{kind} at the end", "f32", [3, 2**30, 2**29], init, offset=[2, 2**30 - 2, 2**29 - 5], shape=[1, 2, 5])
        Jax(f"{kind} seed", "f32", [9], init, seed=1234567890123)
        Jax(f"{kind} key", "f32", [9], init, key=f"model.layers.0.wörd.{kind}")
        Jax(f"{kind} words", "f32", [9], init, key={"words": [2**32 - len(kind), 42]})
    # In the tail, near the ends of the 2^23 numbers that there are.
    standard = {"normal": {"mean": 0, "std": 1}}
    for name, word in ("lowest", 0), ("highest", 2**23 - 1):
        words = reference.Words(reference.JaxKey(42), 0, np.arange(2**24)) >> np.uint32(9)
        place = int(np.flatnonzero(words == word)[0])
        Jax(f"normal {name}", "f32", [2**30], standard, offset=[place], shape=[3], key={"words": [42, 0]})
        # u is -1, and z not the cut-off.
        Jax(f"truncated_normal {name}", "f32", [2**30],
            {"truncated_normal": {"mean": 0, "std": 1, "low": -100, "high": 100}}, offset=[place], shape=[1],
            key={"words": [42, 0]})
    Jax("draws", "f64", [21], Expr("normal() - normal() * 100 + uniform() * 10000 + bits()"))
    Jax("draws not chosen", "f64", [21], Expr("where(0, normal(), uniform()) + 0 * bits() - bits() * 2"))
    Jax("masked normal", "bf16", [8, 8], Expr("where(i0 >= i1, normal() * 0.02, 0)"))
    Jax("bits of a key", "u32", [5, 7], Expr("jax_bits(4294967295, 7, 5 * i1 + i0)"))
    Jax("numbers of keys", "f64", [6, 5], Expr(
        "jax_normal(1, 2, i0) - 100 * jax_normal(1, 2, 4 - i1) + 10000 * jax_uniform(3, 0, 1099511627776 + index, -0.3, 0.7)"))
    Jax("truncated numbers of a key", "f32", [23], Expr("jax_truncated_normal(0, 42, 3 * i0, -1, 2.5)"))
    Jax("numbers that are not there", "f32", [2, 9],
        Expr("where(i1 < 3, jax_uniform(8, 9, i1 / 2 - i0, 0, 1) >= 0, jax_uniform(8, 9, i1 - 3, 0, 1) + normal())"))
    Jax("orthogonal", "f32", [19, 12], {"orthogonal": {"gain": 1.5, "rows": [0], "columns": [1]}})
    Jax("sparse", "f32", [12, 7], {"sparse": {"std": 0.01, "zeros": 3}})
    Jax("normalized", "bf16", [20, 5], {"normalized": {"axis": 0, "length": 0.25}})
    for dtype in FLOATS:
        Jax(f"normal {dtype}", dtype, [33], {"normal": {"mean": 0, "std": 0.02}})


def Bits(vector):
    words = reference.Elements(
        vector["engine"], vector["seed"], vector.get("key", vector["path"]), vector["dtype"], vector["global_shape"], vector["init"],
        reference.IndicesOf(vector["global_shape"], vector["offset"], vector["shape"]),
        [bytes.fromhex(vector["file"])] if "file" in vector else [])
    return " ".join(f"{int(word):0{2 * reference.SIZES[vector['dtype']]}x}" for word in words)


def Vectors():
    vectors.clear()
    AddSamplers()
    AddTypes()
    AddExpressions()
    AddMatrices()
    AddFiles()
    AddJax()
    AddRounding()
    assert len({vector["name"] for vector in vectors}) == len(vectors)
    return [vector | {"bits": Bits(vector)} for vector in vectors]


def Text():
    lines = ",\n".join("  " + json.dumps(vector, ensure_ascii=False) for vector in Vectors())
    return f'{{\n "contract_version": {reference.CONTRACT_VERSION},\n "vectors": [\n{lines}\n ]\n}}\n'


if __name__ == "__main__":
    PATH.write_text(Text())
