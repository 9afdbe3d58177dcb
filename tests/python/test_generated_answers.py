"""`shardinit conformance` accepts random answers about tensors made from other tensors, computed by the reference of
shardinit-values(7)."""

import json

import numpy as np
from hypothesis import strategies as st

import conformance
import reference
from generated import generated, given
from support import run_tool

KNOWN = json.loads(conformance.PATH.read_text())
WHOLE = {"i16": -300, "u8": 0, "i64": -2**40}
SPECIAL = {"f32": ["7fa00001", "ffc12345", "7f800000", "ff800000", "80000000", "00000001"],
           "bf16": ["7f81", "ffff", "7f80", "ff80", "8000", "0001"],
           "f16": ["7d01", "fe03", "7c00", "fc00", "8000", "0001"]}
extents = st.integers(1, 4)
shapes = st.lists(extents, max_size=3)


@st.composite
def sources(draw, least=0, special=True):
    """Draws a tensor of a source, with small numbers."""
    dtype = draw(st.sampled_from(["f32", "f64", "bf16", "f16", *WHOLE]))
    shape = draw(st.lists(extents, min_size=least, max_size=3))
    count = int(np.prod(shape, dtype=int))
    numbers = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if dtype in WHOLE:
        words = reference.encode_exactly(np.float64(numbers.integers(WHOLE[dtype], 200, count)), dtype)
    else:
        words = reference.encode_exactly(np.float64(np.float32(numbers.standard_normal(count) * 3)), dtype)
    digits = 2 * reference.SIZES[dtype]
    bits = [f"{int(word):0{digits}x}" for word in words]
    if special and dtype in SPECIAL:
        for at in draw(st.lists(st.integers(0, count - 1), max_size=3)):
            bits[at] = draw(st.sampled_from(SPECIAL[dtype]))
    name = draw(st.sampled_from(["table", "layers.0.w", "ß"]))
    return {"source": draw(st.sampled_from(["base", "other"])), "tensor": name, "dtype": dtype, "shape": shape,
            "bits": " ".join(bits)}


def source_tensor(source, **more):
    return {"source": source["source"], "tensor": source["tensor"]} | more


@st.composite
def indices(draw, source, rank):
    """Draws an index expression for each dimension of the source, in plan.json's form: without sums of constants."""
    texts = []
    for extent in source["shape"]:
        begin = draw(st.integers(0, 9))
        terms = [f"{draw(st.integers(2, 5))} * i{d}" for d in range(rank) if draw(st.booleans())]
        texts.append(f"mod({' + '.join([*terms, str(begin)])}, {extent})" if terms else str(begin % extent))
    return texts


def result_dtypes(source):
    return ["f64", source["dtype"]] if source["dtype"] in WHOLE else ["f32", "f64", "bf16", "f16", "f8e5m2",
                                                                      source["dtype"]]


@st.composite
def source_answers(draw):
    source = draw(sources())
    dtype = draw(st.sampled_from(result_dtypes(source)))
    if source["shape"] and draw(st.booleans()):
        shape = draw(shapes)
        index = draw(indices(source, len(shape)))
    else:
        shape, index = source["shape"] or draw(shapes), []
    return dtype, shape, {"source": source_tensor(source, index=index)}, [source]


@st.composite
def expressions(draw, shape):
    """Draws an expression and the source that it uses."""
    source = draw(sources(least=1, special=False))
    names = f"'{source['source']}', '{source['tensor']}'"
    element = f"source({', '.join([names, *draw(indices(source, len(shape)))])})"
    return draw(st.sampled_from([
        f"{element} * 0.3 + normal()", f"uniform() - {element} / 7", f"where({element} < 0, {element}, bits())",
        f"{element} - source_mean({names})", f"source_std({names}) * normal() + index",
        f"max({element}, 0) * 0.001"])), source


@st.composite
def expression_answers(draw):
    shape = draw(shapes)
    text, source = draw(expressions(shape))
    return draw(st.sampled_from(["f32", "f64", "bf16"])), shape, {"expr": {"text": text}}, [source]


@st.composite
def like(draw, source, axis):
    rows = draw(st.integers(1, source["shape"][axis]))
    return {"rows_like": source_tensor(source, axis=axis, rows=rows, std=draw(st.sampled_from([0, 0.5, 1, 1e-9])))}


@st.composite
def row_answers(draw):
    source = draw(sources(least=2, special=False).filter(lambda source: source["dtype"] not in WHOLE))
    axis = draw(st.integers(0, len(source["shape"]) - 1))
    shape = [draw(st.integers(1, 6)) if d == axis else n for d, n in enumerate(source["shape"])]
    return draw(st.sampled_from(["f32", "f64", "bf16"])), shape, draw(like(source, axis)), [source]


DRAWN = [{"normal": {"mean": 0, "std": 2}}, {"uniform": {"low": -1, "high": 3}}, {"constant": {"value": -0.0}},
         {"truncated_normal": {"mean": 1, "std": 0.5, "low": -2, "high": 2}},
         {"expr": {"text": "normal() + i0 + 10 * uniform()"}}]


@st.composite
def part_answers(draw):
    source = draw(sources(least=1, special=False).filter(lambda source: source["dtype"] not in WHOLE))
    axis = draw(st.integers(0, len(source["shape"]) - 1))
    parts = [{"length": source["shape"][axis], "init": {"source": source_tensor(source, index=[])}}]
    for init in draw(st.lists(st.sampled_from([*DRAWN, "like"]), min_size=1, max_size=3)):
        if init == "like" and len(source["shape"]) < 2:
            continue
        init = draw(like(source, axis)) if init == "like" else init
        parts.insert(draw(st.integers(0, len(parts))), {"length": draw(extents), "init": init})
    shape = [sum(part["length"] for part in parts) if d == axis else n for d, n in enumerate(source["shape"])]
    return draw(st.sampled_from(["f32", "f64"])), shape, {"parts": {"axis": axis, "of": parts}}, [source]


@st.composite
def norm_answers(draw):
    """Draws norms of a drawn tensor or of a tensor made from others."""
    if draw(st.booleans()):
        dtype, shape, init, others = "f32", draw(shapes), draw(st.sampled_from(DRAWN[:2])), []
    else:
        made_from_others = st.one_of(source_answers(), expression_answers(), row_answers(), part_answers())
        dtype, shape, init, others = draw(made_from_others.filter(
            lambda made: made[0] not in WHOLE and not any(
                word in SPECIAL.get(source["dtype"], []) for source in made[3] for word in source["bits"].split())))
    norms = draw(st.sampled_from([[], [n if draw(st.booleans()) else 1 for n in shape]]))
    return draw(st.sampled_from(["f32", "f64"])), norms, {"norms": {"of": "v"}}, [
        *others, {"path": "v", "dtype": dtype, "global_shape": shape, "init": init}]


@st.composite
def answers(draw):
    dtype, shape, init, tensors = draw(
        st.one_of(source_answers(), expression_answers(), row_answers(), part_answers(), norm_answers()))
    offset = [draw(st.integers(0, n - 1)) for n in shape]
    box = [draw(st.integers(1, n - o)) for n, o in zip(shape, offset)]
    return {"engine": "philox4x32", "seed": draw(st.integers(0, 2**63 - 1)),
            "path": draw(st.sampled_from(["w", "a.b.c", "a_0"])),
            "dtype": dtype, "global_shape": shape, "init": init, "offset": offset, "shape": box, "tensors": tensors}


@generated(150)
@given(made=st.lists(answers(), min_size=1, max_size=5))
def test_conformance_accepts_random_answers_of_the_reference(made, tmp_path_factory):
    vectors = [{"name": f"{number}"} | answer | {"bits": conformance.bits_of(answer)} for number,
               answer in enumerate(made)]
    path = tmp_path_factory.getbasetemp() / "answers.json"
    path.write_text(json.dumps(KNOWN | {"vectors": [], "vectors_of_tensors": vectors}))
    result = run_tool("conformance", path)
    assert result.returncode == 0 and "all as expected" in result.stdout, (result.stderr, vectors)
    # A changed bit is reported with the answer's name.
    last = vectors[-1]["bits"]
    vectors[-1]["bits"] = last[:-1] + ("0" if last[-1] != "0" else "1")
    path.write_text(json.dumps(KNOWN | {"vectors": [], "vectors_of_tensors": vectors}))
    result = run_tool("conformance", path)
    assert result.returncode == 1 and f"`{len(vectors) - 1}`: element " in result.stderr, result.stderr
