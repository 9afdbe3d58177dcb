"""Makes tests/vectors/conformance.json, known answers for other programs that implement shardinit-values(7).

The file is installed. The reference of that page computes the answers, not shardinit:

    python tests/python/conformance.py
"""

import hashlib
import json
import pathlib

import numpy as np

import reference

PATH = pathlib.Path(__file__).resolve().parents[1] / "vectors/conformance.json"

FLOATS = ["f32", "f64", "bf16", "f16", "f8e4m3fn", "f8e5m2"]

TORCH = "torch_cpu/2.13/avx2"

vectors = []


def add(name, dtype, global_shape, init, offset=None, shape=None, seed=0, key=None, engine="philox4x32",
        **more):
    """Adds the values of a box of the tensor `name`, or of the whole tensor without `offset` and `shape`."""
    vector = {"name": name, "engine": engine, "seed": seed, "path": name.replace(" ", "_").replace("^", "-")}
    if key:
        vector["key"] = key
    vectors.append(vector | {
        "dtype": dtype, "global_shape": global_shape, "init": init,
        "offset": offset or [0] * len(global_shape), "shape": shape or global_shape} | more)


def expression(text):
    return {"expr": {"text": text}}


def choose(values, index="i0"):
    """Returns an expression that gives the values in turn."""
    *first, last = values
    return "".join(f"where({index} == {n}, {value}, " for n, value in enumerate(first)) + last + ")" * len(first)


def add_samplers():
    samplers = {
        "uniform": [(-0.1, 0.1), (0, 1), (-3.5, -1.25), (-1, -0.0), (0.0, 8.271806125530277e-25),
                    (-1e30, 2e29), (1, 1.0000005)],  # The last one loses a quarter below `high`.
        "normal": [(0, 1), (0.5, 0.02), (-0.0, 1e-20), (1e30, 1e28), (3, 0)],
        "truncated_normal": [(0, 1, -2, 2), (0.25, 0.02, -100, 100), (0, 1, -1, 3), (0, 1, 5, 6), (0, 1, 0, 0.5),
                             (0, 1, -7, -0.0), (-2, 1, -100, -3), (0, 1, 2, 1e300), (0, 1, -0.0005, 0.0005),
                             (0, 1, 8, 8.0011), (0, 1, -8.5, -8), (7, 0, -2, 2)],
    }
    names = {"uniform": ("low", "high"), "normal": ("mean", "std"),
             "truncated_normal": ("mean", "std", "low", "high")}
    for kind, list_of in samplers.items():
        for number, values in enumerate(list_of):
            add(f"{kind} {number}", "f32", [41], {kind: dict(zip(names[kind], values))})
        init = {kind: dict(zip(names[kind], list_of[0]))}
        # The last two words of a block of 2^32 or more, the first of the next, and the last of all.
        add(f"{kind} at 2^34", "f32", [2**36, 2**24], init, [2**10 - 1, 2**24 - 5], [2, 5])
        add(f"{kind} at 2^50", "bf16", [2**61], init, [2**50 - 3], [19])
        add(f"{kind} at the end", "f32", [3, 2**30, 2**29], init, [2, 2**30 - 2, 2**29 - 5], [1, 2, 5])
        for seed in (1, 1234567890123, 2**63 - 1):
            add(f"{kind} seed {seed}", "f32", [9], init, seed=seed)
        add(f"{kind} key", "f32", [9], init, key=f"model.layers.0.wörd.{kind}")
    standard = {"normal": {"mean": 0, "std": 1}}
    add("normal.tail", "f32", [2**30], standard, [24284690], [14])
    add("truncated_normal.tail", "f32", [2**30],
        {"truncated_normal": {"mean": 0, "std": 1, "low": -100, "high": 100}}, [740930], [16])


def add_types():
    # The smallest subnormal number, bits of the mantissa, and the largest number that rounds to a finite one.
    floats = {"f32": (149, 23, "3.4028235677973362e+38"), "bf16": (133, 7, repr(float.fromhex("0x1.fefffep127"))),
              "f16": (24, 10, "65519.99609375"), "f8e4m3fn": (9, 3, "464"), "f8e5m2": (16, 2, "61439.99609375")}
    for dtype, (smallest, mantissa, largest) in floats.items():
        half = repr(2.0 ** -(smallest + 1))
        add(f"{dtype} subnormal ties", dtype, [64], expression(f"(i0 - 32) * {half}"))
        add(f"{dtype} by subnormal ties", dtype, [2, 16],
            expression(f"(i1 - 7) * {half} * (1 + (2 * i0 - 1) * {repr(2.0**-22)})"))
        add(f"{dtype} ties", dtype, [32], expression(f"(1 + (i0 - 16) * {repr(2.0**-(mantissa + 1))}) * 3"))
        add(f"{dtype} carries", dtype, [8], expression(f"2 - (i0 + 1) * {repr(2.0**-(mantissa + 2))}"))
        # Above the midpoint of two numbers; rounding to f32 first gives exactly the midpoint.
        add(f"{dtype} rounded twice", dtype, [2, 4],
            expression(f"(i1 - 2 + {repr(2.0**-(mantissa + 1))} + (i0 - 0.5) * 1e-15) * 4"))
        add(f"{dtype} largest", dtype, [4], expression(choose([largest, "-" + largest, "-0", "0"])))
        values = ["3.14159", "-0", "1e-45", "5e-324", "0.1", "-400"]
        for number, value in enumerate(values):
            add(f"{dtype} constant {number}", dtype, [1], {"constant": {"value": float(value)}})
    add("f64 constant", "f64", [2], {"constant": {"value": 0.1}})
    add("f64 constant -0", "f64", [2], {"constant": {"value": -0.0}})
    for dtype in FLOATS:
        add(f"{dtype} normal", dtype, [40], {"normal": {"mean": 0, "std": 0.5}})
    for dtype, std in {"f16": 1e-7, "f8e4m3fn": 0.002, "f8e5m2": 2e-5}.items():
        add(f"{dtype} normal subnormal", dtype, [64], {"normal": {"mean": 0, "std": std}})
    add("f8e4m3fn normal large", "f8e4m3fn", [64], {"normal": {"mean": 0, "std": 64}})

    for bits in (8, 16, 32, 64):
        low, high = (-(2**53) + 1, 2**53 - 1) if bits == 64 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        add(f"i{bits}", f"i{bits}", [4], expression(choose([str(low), str(high), "-0", "-1"])))
        add(f"i{bits} constant", f"i{bits}", [2], {"constant": {"value": low}})
        high = min(2**bits, 2**53) - 1
        add(f"u{bits}", f"u{bits}", [3], expression(choose([str(high), "1", "-0"])))
        add(f"u{bits} constant", f"u{bits}", [2], {"constant": {"value": high}})
        add(f"u{bits} bits", f"u{bits}", [3, 7], expression(f"floor(bits() / {2 ** max(0, 32 - bits)})"
                                                            if bits < 32 else "bits()"))
    add("bool", "bool", [5, 5], expression("i0 >= i1"))
    add("bool constant", "bool", [2], {"constant": {"value": 1}})


SPECIAL = ["0", "-0", "1 / i0", "-1 / i0", "i0 / i0", "1", "-1", "0.5", "-0.5", "2", "-3", "5e-324",
           "-2.2250738585072014e-308", "1.7976931348623157e+308", "-1.7976931348623157e+308", "67108864",
           "67108864.00000001", "1e+22", "0.49999999999999994", "-0.9999999999999999", "3.725290298461914e-09", "-9.5"]


FEW = [*SPECIAL[:11], "4.5", "1e+22"]  # The numbers for functions of two arguments.


def special(values, index):
    """Returns an expression that gives the values in turn; i0 becomes 0 in each, which gives infinities and NaN."""
    return choose([value.replace("i0", f"({index} - {n})") for n, value in enumerate(values)], index)


def stored(text):
    """Returns the result as a finite number: 1e300 for infinity, 12345 for NaN."""
    return f"where({text} == {text}, min(1e+300, max(-1e+300, {text})), 12345)"


ORDINARY = {
    "abs": "i0 - 7.5", "floor": "(i0 - 7) * 0.5", "sqrt": "i0 * 0.37", "exp": "(i0 - 16) * 22.25 - 31",
    "expm1": "(i0 - 12) * 3.5", "log": "(i0 + 1) * 0.0625", "log1p": "i0 * 0.0625 - 0.9375",
    "sin": "(i0 - 12) * 1234567.89", "cos": "(i0 - 12) * 0.7853981633974483", "tanh": "(i0 - 12) * 0.3",
    "erf_inv": "(i0 - 16) * 0.0624999", "exp subnormal": "-708 - i0 * 1.6",
    "erf_inv tail": "1 - 1 / (1 + i0 * i0 * i0 * i0 * i0 * i0)", "log subnormal": "i0 * 5e-324 * 1048579 + 5e-324",
}


def add_expressions():
    for name, argument in ORDINARY.items():
        function = name.split()[0]
        add(f"{function} {name.split()[-1]}", "f64", [25], expression(f"{function}({argument})"))
    for function in ("abs", "floor", "sqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf_inv"):
        add(f"{function} special", "f64", [len(SPECIAL)], expression(stored(f"{function}({special(SPECIAL, 'i0')})")))
    n = len(FEW)
    for name, text in {
        "add": "{x} + {y}", "subtract": "{x} - {y}", "multiply": "{x} * {y}", "divide": "{x} / {y}",
        "less": "({x} < {y}) + 2 * ({x} <= {y})", "greater": "({x} > {y}) + 2 * ({x} >= {y})",
        "equal": "({x} == {y}) + 2 * ({x} != {y})", "negate": "-{x} + -{y}",
        "pow": "pow({x}, {y})", "min": "min({x}, {y})", "max": "max({x}, {y})", "where": "where({x}, {y}, 3)",
        "clip": "clip({x}, {y}, 1)", "mod": "mod({x}, {y})", "ceil_div": "ceil_div({x}, {y})",
        "round_up": "round_up({x}, {y})",
    }.items():
        text = text.replace("{x}", special(FEW, "i0")).replace("{y}", special(FEW, "i1"))
        add(f"{name} special", "f64", [n, n],
            expression(text if name in ("less", "greater", "equal") else stored(text)))
    add("pow ordinary", "f64", [9, 9], expression("pow((i0 + 1) * 0.375, (i1 - 4) * 1.5)"))
    add("pow whole", "f64", [9, 9], expression("pow(i0 - 4.5, (i1 - 4) * 3)"))
    add("pow subnormal", "f64", [20], expression("pow(0.5, 1020 + i0 * 2.75)"))
    add("mod ordinary", "f64", [12, 3], expression("mod((i0 - 6) * 1.25, i1 - 0.5)"))
    add("ceil_div ordinary", "f64", [12, 3], expression("ceil_div(i0 - 6, i1 + 2) * 100 + round_up(i0 - 6, i1 + 2)"))
    add("min and max of many", "f64", [9], expression("min(i0, 3, 7 - i0) + 10 * max(i0, 4, 7 - i0) + 100 * max(i0)"))

    add("ranks", "f64", [9, 5], expression("1 - i0 - 2 * i1 / 3 * 7 < -i0 * 2 + 5 / (i1 + 7)"))
    add("ranks of signs", "f64", [9, 5], expression("--i0 * -i1 - -2 + -(i0 + i1) * 3"))
    add("ranks kept", "f64", [9, 5], expression("i0 - (i1 - 2) + i0 / (i1 * 2 + 1) / (3 / (i0 + 1))"))
    add("comparisons of comparisons", "f64", [5, 5], expression("((i0 < i1) == (i1 < 3)) - (i0 != i1) * 2"))
    add("indices", "f64", [3, 4, 5], expression("index * 1000000 + i0 * 10000 + i1 * 100 + i2"))
    add("a scalar", "f64", [], expression("index + normal()"))
    huge = {"global_shape": [2**22, 2**10, 2**21], "offset": [2**22 - 2, 2**10 - 2, 2**21 - 3], "shape": [2, 2, 3]}
    add("indices up to 2^53", "f64", init=expression("index - i0 - i1 - i2"), **huge)
    add("draws at 2^53", "f64", init=expression("normal() + uniform() * 100 + floor(bits() / 65536) * 1000"), **huge)
    add("draws", "f64", [21], expression("normal() - normal() * 100 + uniform() * 10000 + bits()"))
    add("draws not chosen", "f64", [21], expression("where(0, normal(), uniform()) + 0 * bits() - bits() * 2"))
    add("draws in another order", "f64", [21],
        expression("bits() * uniform() / (2 + normal()) + min(normal(), normal())"))
    add("masked normal", "bf16", [8, 8], expression("where(i0 >= i1, normal() * 0.02, 0)"))


ROUNDED = ("65519.99", "-65520", "2049", "2051.0001", "-1.00048828125", "0.1", "3.0517578125e-05", "-8.9e-08",
           "2.9e-08",
           "3.4028235677973366e+38", "3.4028234e+38", "-3.3961775292304e+38", "3.3895313892515355e+38", "1e-45",
           "-7e-46", "1.2e-38", "1.01171875", "1.0039062649011612", "1.0000000596046448")


def add_rounding():
    for function in ("f32", "bf16", "f16"):
        add(f"{function} special", "f64", [len(SPECIAL)], expression(stored(f"{function}({special(SPECIAL, 'i0')})")))
        add(f"{function} rounded", "f64", [len(ROUNDED)], expression(stored(f"{function}({choose(ROUNDED)})")))


def add_matrices():
    def orthogonal(name, dtype, global_shape, rows, columns, gain=1, **box):
        init = {"orthogonal": {"gain": gain, "rows": rows, "columns": columns}}
        add(f"orthogonal {name}", dtype, global_shape, init, **box)

    orthogonal("1 x 1", "f32", [1, 1], [0], [1])
    orthogonal("8 x 8", "f32", [8, 8], [0], [1])
    orthogonal("19 x 19", "f64", [19, 19], [0], [1], offset=[0, 3], shape=[19, 4])
    orthogonal("40 x 13", "f32", [40, 13], [0], [1], 2.5, offset=[7, 0], shape=[9, 13])
    orthogonal("13 x 40", "bf16", [13, 40], [0], [1], -0.3, offset=[0, 30], shape=[13, 10])
    orthogonal("40 x 16", "f16", [40, 16], [0], [1], 1e-6, offset=[0, 0], shape=[5, 16])
    orthogonal("of a convolution", "f32", [6, 5, 3], [0], [1, 2], 1.4142135623730951)
    orthogonal("of outputs at the end", "f32", [3, 5, 6], [0, 1], [2])
    orthogonal("delta", "f32", [6, 5, 4, 3], [0], [1])

    for name, shape, std, zeros in (("sparse", [12, 7], 0.01, 3), ("sparse dense", [9, 4], 1, 0),
                                    ("sparse empty", [9, 4], 1, 9), ("sparse row", [1, 5], 2.5, 1)):
        add(name, "f32", shape, {"sparse": {"std": std, "zeros": zeros}})
    add("sparse at 2^34", "bf16", [11, 2**34], {"sparse": {"std": 0.5, "zeros": 5}}, [0, 2**34 - 5], [11, 5])
    # If two words are equal, the one in the lower row becomes zero.
    rows = 200000
    words = reference.words_of(reference.key_of(0, "sparse_tie_0"), 1, np.arange(rows))
    order = np.argsort(words, kind="stable")
    place = int(np.flatnonzero(words[order[1:]] == words[order[:-1]])[0])
    for number, row in enumerate(order[place:place + 2]):
        add(f"sparse tie {number}", "f32", [rows, 1], {"sparse": {"std": 1, "zeros": place + 1}},
            [int(row), 0], [1, 1], key="sparse_tie_0" if number else None)

    def normalized(name, dtype, global_shape, axis, length=1, **box):
        add(f"normalized {name}", dtype, global_shape, {"normalized": {"axis": axis, "length": length}}, **box)

    normalized("rows", "f32", [5, 20], 1)
    normalized("columns", "bf16", [20, 5], 0, 0.25)
    normalized("short", "f32", [4, 3], 1)
    normalized("of one", "f64", [6, 1], 1, 3)
    normalized("long", "f32", [3, 1500], 1, 10, offset=[1, 1490], shape=[2, 10])
    normalized("in the middle", "f16", [3, 9, 4], 1)
    normalized("rows at 2^34", "f32", [2**33 + 5, 4, 3], 1, offset=[2**33 + 3, 0, 0], shape=[2, 4, 3])
    normalized("columns at 2^34", "f32", [5, 2**34], 0, offset=[1, 2**34 - 5], shape=[3, 5])
    normalized("one row at 2^40", "f8e4m3fn", [2**40, 9], 1, 100, offset=[2**40 - 2, 2], shape=[2, 5])


def add_files():
    def add_file(name, dtype, global_shape, words, **box):
        content = np.array(words, f"<u{reference.SIZES[dtype]}").tobytes()
        add(f"file {name}", dtype, global_shape, {"file": {"sha256": hashlib.sha256(content).hexdigest()}},
            file=content.hex(), **box)

    add_file("f32", "f32", [2, 4],
             [0x7FA00001, 0xFFC00000, 0x80000000, 1, 0x7F800000, 0x3F800000, 0xFF800000, 0x7F7FFFFF])
    add_file("bf16", "bf16", [6], [0x7F81, 0x8000, 1, 0xFF80, 0x3F80, 0xFFFF])
    add_file("f8e4m3fn", "f8e4m3fn", [4], [0x7F, 0xFF, 0x80, 0x7E])
    add_file("u64", "u64", [3, 2], [2**64 - 1, 0, 2**53 + 1, 1, 2**63, 2], offset=[1, 0], shape=[2, 1])
    add_file("i16", "i16", [3], [0x8000, 0x7FFF, 0xFFFF])
    add_file("bool", "bool", [2, 3], [0, 1, 1, 0, 0, 1])
    add_file("a scalar", "f64", [], [0x7FF0000000000001])


def add_jax():
    def jax(name, dtype, global_shape, init, **more):
        add(f"jax {name}", dtype, global_shape, init, engine="jax_threefry", **more)

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
            jax(f"{kind} {number}", "f32", [41], {kind: dict(zip(names[kind], values))})
        init = {kind: dict(zip(names[kind], list_of[0]))}
        jax(f"{kind} at 2^32", "f32", [2**36, 2**24], init, offset=[2**8 - 1, 2**24 - 5], shape=[2, 5])
        jax(f"{kind} at 2^50", "bf16", [2**61], init, offset=[2**50 - 3], shape=[19])
        jax(f"{kind} at the end", "f32", [3, 2**30, 2**29], init, offset=[2, 2**30 - 2, 2**29 - 5], shape=[1, 2, 5])
        jax(f"{kind} seed", "f32", [9], init, seed=1234567890123)
        jax(f"{kind} key", "f32", [9], init, key=f"model.layers.0.wörd.{kind}")
        jax(f"{kind} words", "f32", [9], init, key={"words": [2**32 - len(kind), 42]})
    # These words are near both ends of the 2^23 possible ones, in the tails.
    standard = {"normal": {"mean": 0, "std": 1}}
    for name, word in ("lowest", 0), ("highest", 2**23 - 1):
        words = reference.words_of(reference.JaxKey(42), 0, np.arange(2**24)) >> np.uint32(9)
        place = int(np.flatnonzero(words == word)[0])
        jax(f"normal {name}", "f32", [2**30], standard, offset=[place], shape=[3], key={"words": [42, 0]})
        # Here u is -1, and z is not the cut-off.
        jax(f"truncated_normal {name}", "f32", [2**30],
            {"truncated_normal": {"mean": 0, "std": 1, "low": -100, "high": 100}}, offset=[place], shape=[1],
            key={"words": [42, 0]})
    jax("draws", "f64", [21], expression("normal() - normal() * 100 + uniform() * 10000 + bits()"))
    jax("draws not chosen", "f64", [21], expression("where(0, normal(), uniform()) + 0 * bits() - bits() * 2"))
    jax("masked normal", "bf16", [8, 8], expression("where(i0 >= i1, normal() * 0.02, 0)"))
    jax("bits of a key", "u32", [5, 7], expression("jax_bits(4294967295, 7, 5 * i1 + i0)"))
    jax("numbers of keys", "f64", [6, 5], expression(
        "jax_normal(1, 2, i0) - 100 * jax_normal(1, 2, 4 - i1) + 10000 * jax_uniform(3, 0, 1099511627776 + index, -0.3,"
        " 0.7)"))
    jax("truncated numbers of a key", "f32", [23], expression("jax_truncated_normal(0, 42, 3 * i0, -1, 2.5)"))
    jax("numbers that are not there", "f32", [2, 9],
        expression("where(i1 < 3, jax_uniform(8, 9, i1 / 2 - i0, 0, 1) >= 0, jax_uniform(8, 9, i1 - 3, 0, 1) + "
                   "normal())"))
    jax("orthogonal", "f32", [19, 12], {"orthogonal": {"gain": 1.5, "rows": [0], "columns": [1]}})
    jax("sparse", "f32", [12, 7], {"sparse": {"std": 0.01, "zeros": 3}})
    jax("normalized", "bf16", [20, 5], {"normalized": {"axis": 0, "length": 0.25}})
    for dtype in FLOATS:
        jax(f"normal {dtype}", dtype, [33], {"normal": {"mean": 0, "std": 0.02}})


# Places that reveal programs with one wrong operation, most of which give all other known answers.

# Arguments at which a C library, the nearest number, or fused operations give another last bit.
LAST_BITS = {"exp": ["-261.63", "-186.66000000000003"], "expm1": ["-2.4112", "3.8634"],
             "log": ["96.54390000000001", "121.8889"], "log1p": ["0.2", "0.23"],
             "sin": ["-13.32", "321.15999999999997"], "cos": ["-68.45", "-54.019999999999996"],
             "tanh": ["-0.1378", "-0.25479999999999997"], "erf_inv": ["-0.9457", "-0.8281"]}


def cut_off(low, high, mean=0, std=1):
    return {"truncated_normal": {"mean": mean, "std": std, "low": low, "high": high}}


def add_operations():
    """Adds answers that show whether each operation is rounded once, in the page's order."""
    # The mean is added to a rounded product, the square root is multiplied by f32(std * c), z by f32(std).
    add("normal with mean", "f32", [64], {"normal": {"mean": 1, "std": 1}})
    add("normal std rounded", "f32", [64], {"normal": {"mean": 0, "std": 0.3}})
    add("truncated_normal std rounded", "f32", [64], cut_off(-2, 2, mean=1, std=0.3))
    # Reveal a fused operation in P8 or P9, and another order in x^8.
    for place in (855, 30906, 940):
        add(f"truncated_normal far {place}", "f32", [200000], cut_off(3, 8), [place], [1], key="truncated_normal_far")
    # The probability between the cut-offs is near the midpoint of two f32 numbers and depends on the order of the sum.
    for number, high in enumerate([1.2000000276501528, 1.2040002297846328]):
        add(f"truncated_normal between {number}", "f32", [9], cut_off(-2, high))
    # The word is 0xffffffd2, and z is -0 before the mean is added.
    add("truncated_normal of 0", "f32", [2**30], cut_off(-2, 2), [212893017], [1], key="q")
    # The sample is beyond its cut-off before it is clipped.
    add("truncated_normal cut", "f32", [200000], cut_off(-0.001, 0.0001), [76970], [8])
    # It is rounded to `high`, which f32 numbers never reach.
    add("bf16 uniform of high", "bf16", [4096], {"uniform": {"low": 0, "high": 1}}, [90], [4],
        key="bf16_uniform_up_to_high")
    for kind, init in (("normal", {"mean": -0.0, "std": 0}),
                       ("truncated_normal", {"mean": -0.0, "std": 0, "low": -2, "high": 2})):
        add(f"{kind} -0 std 0", "f32", [5], {kind: init})
        add(f"jax {kind} -0 std 0", "f32", [5], {kind: init}, engine="jax_threefry")
    for seed in (2**63, 2**64 - 1):
        add(f"uniform seed {seed}", "f32", [9], {"uniform": {"low": -0.1, "high": 0.1}}, seed=seed)
    for engine in ("philox4x32", "jax_threefry"):
        add(f"{engine} the last element", "f8e5m2", [2**63 - 1], {"uniform": {"low": -0.1, "high": 0.1}},
            [2**63 - 10], [9], engine=engine)
    # Above the midpoint of two numbers; rounding to f32 first gives exactly the midpoint.
    for dtype, mantissa in {"bf16": 7, "f16": 10, "f8e4m3fn": 3, "f8e5m2": 2}.items():
        value = 1 + 2.0 ** -(mantissa + 1) + 2.0**-40
        add(f"{dtype} constant rounded twice", dtype, [1], {"constant": {"value": value}})
    # With these factors an element is so close to the midpoint of two f32 numbers that the last bit of f64 decides.
    add("orthogonal order", "f32", [43, 27], {"orthogonal": {"gain": 0.9999999559828788, "rows": [0], "columns": [1]}},
        [0, 18], [1, 1])
    add("normalized order of one sum", "f32", [20, 101], {"normalized": {"axis": 1, "length": 0.9999999270509062}},
        [2, 8], [1, 1])
    add("normalized length not rounded", "f32", [5, 20], {"normalized": {"axis": 1, "length": 0.1}})
    for function, arguments in LAST_BITS.items():
        add(f"{function} to the last bit", "f64", [len(arguments)], expression(f"{function}({choose(arguments)})"))
    add("pow to the last bit", "f64", [2],
        expression(f"pow({choose(['7.03', '1.85'])}, {choose(['-58.11', '-54.730000000000004'])})"))


def add_jax_operations():
    def jax(name, global_shape, init, place=None, key=None):
        add(f"jax {name}", "f32", global_shape, init, engine="jax_threefry", key=key,
            **({} if place is None else {"offset": [place], "shape": [1]}))

    jax("normal with mean", [64], {"normal": {"mean": 1, "std": 0.7}})
    # A product and a sum in f64, rounded to f32, differ from fma.
    jax("uniform fused", [2**30], {"uniform": {"low": 1e-18, "high": 0.3}}, 13084070, {"words": [42, 0]})
    # The quotient before erf is rounded to f32.
    jax("truncated_normal of a quotient", [41], cut_off(-1.5, 1.5))
    # Here erf of a cut-off is below 2^-40, and the number next to a cut-off is subnormal.
    jax("truncated_normal below 0", [2**30], cut_off(-1e-20, 0.25), 15402248, {"words": [42, 0]})
    jax("truncated_normal from 0", [2**30], cut_off(0, 0.5), 15402248, {"words": [42, 0]})
    add("jax numbers of large places", "f64", [4], expression(
        "where(i0 < 2, jax_bits(5, 6, 9007199254740991 - i0), jax_bits(5, 6, 9007199254740992 + i0 * 2) >= 0)"),
        engine="jax_threefry")


def add_torch():
    places = iter(range(0, 1000, 3))  # Each tensor of a spec begins at another position.

    def torch(name, dtype, global_shape, init, has_spare=False, **more):
        position = next(places)
        key = {"position": position} | ({"spare": position - 4} if has_spare else {})
        add(f"torch {name}", dtype, global_shape, init, engine=TORCH, key=key, **more)

    uniform, normal = {"uniform": {"low": -0.1, "high": 0.1}}, {"normal": {"mean": 0.5, "std": 0.02}}
    truncated = {"truncated_normal": {"mean": 0.5, "std": 0.02, "low": -1, "high": 2}}
    for dtype in ("f32", "bf16", "f16", "f64"):
        torch(f"uniform {dtype}", dtype, [21], uniform)
        torch(f"normal {dtype} of 32", dtype, [2, 16], normal)
        torch(f"normal {dtype} of 37", dtype, [37], normal)
        torch(f"normal {dtype} of 15", dtype, [3, 5], normal)
        torch(f"normal {dtype} with a spare", dtype, [6], normal, has_spare=True)
        torch(f"truncated_normal {dtype} of 40", dtype, [40], truncated)
        # With an odd count, the second round of draws begins with the number left over from the first.
        torch(f"truncated_normal {dtype} of 7", dtype, [7], truncated)
        suffix = "" if dtype == "f32" else f"_{dtype}"
        add(f"torch functions {dtype}", "f64", [21], expression(
            f"torch_uniform{suffix}(5, i0, -0.1, 0.3) + 10 * torch_normal{suffix}(3, -1, 21, i0, 0.5, 0.02) + "
            f"100 * torch_pairs{suffix}(9, 1, i0, 0.5, 0.02) + "
            f"1000 * torch_trunc_normal{suffix}(0, -1, 21, i0, 0, 1, -1, 2)"),
            engine=TORCH)
    torch("seed of 33 bits", "f32", [21], uniform, seed=2**32 + 5)
    # `low` is rounded to f32 before bf16; elements 245 and 250 are `high` before they become `low`.
    torch("uniform low", "bf16", [400], {"uniform": {"low": 1 + 2.0**-8 + 2.0**-40, "high": 2}},
          offset=[243], shape=[9])
    # A mean of -0 stays -0 in a sum with a product of -0.
    torch("normal -0 std 0", "f32", [20], {"normal": {"mean": -0.0, "std": 0}})
    torch("normal -0 std 0 of 6", "f32", [6], {"normal": {"mean": -0.0, "std": 0}})
    for rows, columns in ((9, 5), (5, 9), (21, 13)):
        torch(f"orthogonal {rows} x {columns}", "f32", [rows, columns],
              {"orthogonal": {"gain": 1.5, "rows": [0], "columns": [1]}})
    torch("orthogonal of a convolution", "f32", [6, 2, 5],
          {"orthogonal": {"gain": 0.3, "rows": [0], "columns": [1, 2]}})
    for rows, columns, zeros in ((9, 5, 4), (4, 3, 2), (1, 5, 1)):
        torch(f"sparse {rows} x {columns}", "f32", [rows, columns], {"sparse": {"std": 0.01, "zeros": zeros}})
    torch("sparse f64", "f64", [9, 5], {"sparse": {"std": 0.01, "zeros": 4}})
    for name, size, text in (
            ("words", 8, "torch_word(620 + index)"),
            ("integers", 8, "torch_randint(3, i0, 10) + 100 * torch_randint(3, i0, 268435455) + "
             "torch_randint(3, i0, 268435456)"),
            ("large integers", 8, "torch_randint(3, i0, 9007199254740991)"),
            ("permutation", 13, "torch_permutation(5, 13, i0)"),
            ("parts of a matrix", 9, "torch_orthogonal(5, -1, 5, 3, i0 + 3, 2) + torch_orthogonal(5, 1, 2, 6, i0, 1)"),
            ("sums", 6, "torch_normal_sums(5, -1, 36, 3, 2, i0, 2, 0.5, 2) + torch_normal_sums(5, 1, 12, 2, 1, i0, 1, "
                        "0, 1) + "
             "torch_uniform_sums(5, 36, 3, 2, i0, 1, -1, 2) + torch_uniform_sums(5, 24, 4, 1, i0, 2, 0, 1)"),
            ("sorted", 12, "torch_normal_sorted(5, -1, 24, 6, i0, 0.5, 2) + torch_uniform_sorted(5, 12, 12, i0, -1, 2)"),
            ("numbers that are not there", 5, "where(torch_permutation(5, 3, i0) >= 0, 1, 0) + "
             "2 * (torch_normal(0, -1, 2, i0 / 2, 0, 1) < 9) + 4 * (torch_word(i0 - 1) >= 0)")):
        add(f"torch {name}", "f64", [size], expression(text), engine=TORCH)


def add_source_answers():
    """Adds elements computed from other tensors, which are in the key `tensors`."""
    def source(tensor, dtype, shape, words):
        digits = 2 * reference.SIZES[dtype]
        return {"source": "base", "tensor": tensor, "dtype": dtype, "shape": shape,
                "bits": " ".join(f"{int(word):0{digits}x}" for word in words)}

    def of(tensor, **more):
        return {"source": "base", "tensor": tensor["tensor"]} | more

    def like(tensor, rows, std, axis=0):
        return {"rows_like": of(tensor, axis=axis, rows=rows, std=std)}

    # Numbers whose sums in f64 depend on their order, and special ones.
    wide = np.exp(np.arange(1.0, 61.0) % 7) * np.sin(np.arange(60.0))
    table = source("table", "f64", [20, 3], reference.encode_exactly(wide, "f64"))
    special = source("special", "f32", [8], [0x7FA00001, 0xFFC12345, 0xFF812345, 0x7F800000, 0xFF800000, 0x3F808000,
                                             0x80000000, 1])
    halves = source("halves", "f16", [4], [0x7D01, 0xFE03, 0x7C00, 0x83FF])
    wholes = source("wholes", "i64", [2, 2], [2**53, 2**64 - 5, 127, 0])
    scalar = source("scalar", "f32", [], [0x40490FDB])
    everywhere = {"source": of(special, index=[])}
    for dtype in ("f32", "f64", "bf16", "f16", "f8e5m2"):
        add(f"source as {dtype}", dtype, [8], everywhere, tensors=[special])
    for dtype in ("f32", "f64", "bf16"):
        add(f"source of f16 as {dtype}", dtype, [4], {"source": of(halves, index=[])}, tensors=[halves])
    for dtype in ("f64", "f32", "i64"):
        add(f"source of i64 as {dtype}", dtype, [2, 2], {"source": of(wholes, index=[])}, tensors=[wholes])
    add("source turned", "f32", [2, 5], {"source": of(table, index=["19 - i1 * 4", "i0 + 1"])}, tensors=[table])
    add("source of a scalar", "bf16", [2, 3], {"source": of(scalar, index=[])}, tensors=[scalar])
    add("source in an expression", "f64", [20, 3],
        expression("source('base', 'table', i0, 2 - i1) * 0.3 + normal()"), tensors=[table])
    add("mean and deviation", "f64", [2], expression(
        "where(i0 == 0, source_mean('base', 'table'), source_std('base', 'table'))"), tensors=[table])
    for dtype, rows, std in (("f64", 20, 0.5), ("bf16", 20, 2), ("f64", 7, 1e-9), ("f32", 20, 0)):
        add(f"rows_like {dtype} {rows} {std}", dtype, [5, 3], like(table, rows, std), tensors=[table])
    for name, dtype, axis, last in (("normal", "f64", 0, {"normal": {"mean": 0, "std": 2}}),
                                    ("constant", "bf16", 0, {"constant": {"value": -0.0}}),
                                    ("expr", "f64", 0, expression("normal() + i0 + 10 * uniform()")),
                                    ("rows_like", "f64", 1, like(table, 3, 0.5, 1))):
        longer = [n + 4 * (d == axis) for d, n in enumerate(table["shape"])]
        parts = [{"length": table["shape"][axis], "init": {"source": of(table, index=[])}}, {"length": 4, "init": last}]
        offset = [n - 6 if n > 6 else 0 for n in longer]
        add(f"parts and {name}", dtype, longer, {"parts": {"axis": axis, "of": parts}}, offset,
            [n - o for n, o in zip(longer, offset)], tensors=[table])
    for engine in reference.ENGINES:
        measured = {"path": "v", "dtype": "f32", "global_shape": [3, 19, 5], "init": {"normal": {"mean": 0, "std": 1}}}
        if engine == TORCH:
            measured["key"] = {"position": 0}
        for shape in ([3, 1, 5], [1, 19, 1], [1, 1, 1], []):
            name = f"norms {engine.split('/')[0]} {'x'.join(map(str, shape)) or 'all'}"
            add(name, "f64", shape, {"norms": {"of": "v"}}, engine=engine, tensors=[measured])
    add("norms as they are stored", "f32", [1], {"norms": {"of": "v"}}, tensors=[
        {"path": "v", "dtype": "bf16", "global_shape": [23], "init": {"uniform": {"low": -2, "high": 1}}}])


def source_tensors(vector):
    """Returns the tensors from which the reference takes elements."""
    tensors = {}
    for tensor in vector.get("tensors", []):
        dtype, shape, bits = tensor["dtype"], tensor.get("shape", tensor.get("global_shape")), tensor.get("bits")
        if bits is None:
            others = [other for other in vector["tensors"] if "path" not in other]
            bits = bits_of(vector | tensor | {"offset": [0] * len(shape), "shape": shape, "tensors": others})
        words = np.array([int(word, 16) for word in bits.split()], f"u{reference.SIZES[dtype]}")
        name = tensor["path"] if "path" in tensor else (tensor["source"], tensor["tensor"])
        tensors[name] = reference.SourceTensor(dtype, shape, words)
    return tensors


def bits_of(vector):
    words = reference.elements_of(
        vector["engine"], vector["seed"], vector.get("key", vector["path"]), vector["dtype"], vector["global_shape"],
        vector["init"], reference.indices_of(vector["global_shape"], vector["offset"], vector["shape"]),
        [bytes.fromhex(vector["file"])] if "file" in vector else [], source_tensors(vector))
    return " ".join(f"{int(word):0{2 * reference.SIZES[vector['dtype']]}x}" for word in words)


def all_vectors():
    """Returns the vectors that need no other tensors, and the vectors made from other tensors."""
    vectors.clear()
    add_samplers()
    add_types()
    add_expressions()
    add_matrices()
    add_files()
    add_jax()
    add_operations()
    add_jax_operations()
    add_torch()
    add_rounding()
    alone = len(vectors)
    add_source_answers()
    assert len({vector["name"] for vector in vectors}) == len(vectors)
    made = [vector | {"bits": bits_of(vector)} for vector in vectors]
    return made[:alone], made[alone:]


def text_of_vectors():
    lines = [",\n".join("  " + json.dumps(vector, ensure_ascii=False) for vector in some) for some in all_vectors()]
    return (f'{{\n "contract_version": {reference.CONTRACT_VERSION},\n "vectors_of_tensors": [\n{lines[1]}\n ],\n'
            f' "vectors": [\n{lines[0]}\n ]\n}}\n')


if __name__ == "__main__":
    PATH.write_text(text_of_vectors())
