"""Tests `shardinit conformance` with the known answers and with answers of other programs."""

import json
import re

import numpy as np
import pytest

import conformance
from clients import like_torch_cpu
from support import BINARY, run_json, run_ok, run_tool

KNOWN = json.loads(conformance.PATH.read_text())
VECTORS = {vector["name"]: vector for vector in KNOWN["vectors"]}
OF_TENSORS = {vector["name"]: vector for vector in KNOWN["vectors_of_tensors"]}
PARTS = {"axis": 0, "of": [{"length": 3, "init": {"source": {"source": "a", "tensor": "b", "index": []}}}]}


PART = {"length": 3, "init": {"normal": {"mean": 0, "std": 1}}}
SIX = {"global_shape": [6, 2], "offset": [0, 0], "shape": [6, 2], "bits": " ".join(12 * ["0000"])}
THREE = {"global_shape": [3], "offset": [0], "shape": [3], "bits": "0000 0000 0000"}


def check(folder, vectors, of_tensors=()):
    """Runs the command on these vectors, as another program would write them."""
    answers = KNOWN | {"vectors": vectors, "vectors_of_tensors": of_tensors}
    (folder / "answers.json").write_text(json.dumps(answers))
    return run_tool("conformance", "answers.json", cwd=folder)


def test_conformance_prints_the_recorded_vectors():
    assert run_ok("conformance", "--vectors").stdout == conformance.PATH.read_text()


def test_build_passes_all_conformance_vectors():
    vectors = [*VECTORS.values(), *OF_TENSORS.values()]
    elements = sum(len(vector["bits"].split()) for vector in vectors)
    targets = ", ".join(run_json("--version")["targets"])
    said = f"{len(vectors)} vectors, {elements:,} elements: all as expected with {targets}\n"
    assert run_ok("conformance").stdout == said
    assert run_ok("conformance", "-q").stdout == ""


def test_build_with_other_values_fails_conformance(tmp_path):
    """A build reports values that differ from the known answers; here, an answer in the program is changed."""
    other = tmp_path / "shardinit"
    right = VECTORS["normal 0"]["bits"][:8]
    text, wrong = (f'"init": {{"normal": {{"mean": 0, "std": 1}}}}, "offset": [0], "shape": [41], "bits": "{word}'
                   .encode() for word in (right, "00000001"))
    program = BINARY.read_bytes()
    assert program.count(text) == 1
    other.write_bytes(program.replace(text, wrong))
    other.chmod(0o755)
    result = run_tool("conformance", binary=other)
    targets = run_json("--version")["targets"]
    assert result.returncode == 1 and result.stdout == ""
    *lines, error, hint = result.stderr.splitlines()
    assert lines == [f"`normal 0`: element 0 of `bits` is {right} instead of 00000001; wrong elements: 1 of 41 with "
                     f"{target}" for target in targets]
    assert error == "shardinit: this build, or this processor, generates wrong values" and "hint" in hint


@pytest.mark.parametrize("target", run_json("--version")["targets"])
def test_conformance_accepts_answers_of_another_program(target, tmp_path):
    (tmp_path / "answers.json").write_text(json.dumps(KNOWN))  # The format differs from the format of the file.
    result = run_ok("conformance", "answers.json", cwd=tmp_path, env={"SHARDINIT_TARGET": target})
    assert re.fullmatch(rf"431 vectors, 12,753 elements: all as expected with {target}\n", result.stdout)


def test_conformance_compares_every_vector(tmp_path):
    """Every vector is compared, with one changed element in each, and in every third also a changed last element."""
    vectors, wanted = [], []
    for number, (name, vector) in enumerate((OF_TENSORS | VECTORS).items()):
        words = vector["bits"].split()
        at = number % len(words)
        wrong = {at, len(words) - 1} if number % 3 == 0 else {at}
        for place in wrong:
            words[place] = words[place][:-1] + f"{int(words[place][-1], 16) ^ 1:x}"
        vectors.append(vector | {"bits": " ".join(words)})
        wanted.append(f"`{name}`: element {at} of `bits` is {words[at]} instead of {vector['bits'].split()[at]}; wrong "
                      f"elements: {len(wrong)} of {len(words)}")
    result = check(tmp_path, vectors[len(OF_TENSORS):], vectors[:len(OF_TENSORS)])
    assert result.returncode == 1
    *lines, error, hint = result.stderr.splitlines()
    assert lines == wanted
    assert error == "shardinit: 431 of 431 vectors in `answers.json` have other bits than they should"
    assert "shardinit-values(7)" in hint


@pytest.mark.parametrize("digits", [2, 4, 8, 16])
def test_conformance_compares_every_digit_of_an_element(digits, tmp_path):
    name, vector = next((name, vector) for name, vector in VECTORS.items()
                        if vector["dtype"] != "bool" and re.match(r"[0-9a-f]{%d}( |$)" % digits, vector["bits"])
                        and vector["bits"].count(" ") >= digits)
    words = vector["bits"].split()
    for at in range(digits):
        words[at] = words[at][:at] + f"{int(words[at][at], 16) ^ 1:x}" + words[at][at + 1:]
    result = check(tmp_path, [vector | {"bits": " ".join(words)}])
    assert f"wrong elements: {digits} of {len(words)}" in result.stderr and f"`{name}`: element 0" in result.stderr, result


def test_conformance_reads_standard_input():
    result = run_tool("conformance", "-", stdin=None, input=conformance.PATH.read_text())
    assert result.returncode == 0 and "all as expected" in result.stdout


@like_torch_cpu()
def test_conformance_checks_an_engine_without_known_answers(tmp_path):
    """Vectors from PyTorch are checked, although their engine has no known answers."""
    import torch
    torch.manual_seed(7)
    torch.rand(100)
    tensors = torch.empty(3, 40).uniform_(-1, 2), torch.empty(50).normal_(0, 0.5)
    inits = {"uniform": {"low": -1, "high": 2}}, {"normal": {"mean": 0, "std": 0.5}}
    vectors = []
    for number, (tensor, init) in enumerate(zip(tensors, inits)):
        words = tensor.numpy().view(np.uint32).ravel()
        shape = list(tensor.shape)
        vectors.append({"name": f"torch {number}", "engine": "torch_cpu/2.13/avx2", "seed": 7, "path": "w",
                        "key": {"position": 100 + 120 * number}, "dtype": "f32", "global_shape": shape, "init": init,
                        "offset": [0] * len(shape), "shape": shape, "bits": " ".join(f"{word:08x}" for word in words)})
    assert check(tmp_path, vectors).stdout.startswith("2 vectors, 170 elements: all as expected")


def changed(**members):
    return [VECTORS["normal 0"], VECTORS["f16 normal"] | members]


@pytest.mark.parametrize("vectors, message", [
    (changed(engine="mt19937"), "number 2 of `vectors`, `f16 normal`: unknown engine `mt19937`"),
    (changed(engine="torch_cpu/2.13/avx2"), "the engine cannot draw `f16_normal` with this key"),
    (changed(init={"gamma": {"a": 1}}), "unknown initializer `gamma`"),
    (changed(init={"normal": {"mean": 0, "std": -1}}), "the `init` of `f16_normal`: "),
    (changed(init={"normal": {"mean": 0}}), "key 'std' not found"),
    (changed(init={"expr": {"text": "i0 +"}}), "its expression is wrong, or is not written as this tool writes it"),
    (changed(init={"source": {"source": "a", "tensor": "b", "index": []}}), "its elements come from other tensors"),
    (changed(init={"expr": {"text": "source(\"a\", \"b\", i0)"}}), "expr"),
    (changed(init={"norms": {"of": "a"}}), "no tensor is `a`"),
    (changed(init={"norms": {"of": "a"}}, tensors=[{"path": "a", "dtype": "f32", "global_shape": [40],
                                                    "init": {"normal": {"mean": 0, "std": 1}}}]),
     "its elements come from other tensors; such answers belong in the list `vectors_of_tensors`"),
    (changed(**THREE, init={"parts": PARTS}), "its elements come from other"),
    (changed(**THREE, init={"parts": PARTS | {"of": [{"length": 3, "init": {"file": {"sha256": "0" * 64}}}]}}),
     "a part has the elements of a file, or norms, which only whole tensors have"),
    (changed(**SIX, init={"parts": {"axis": 0,
                                    "of": [PART, {"length": 3, "init": {"sparse": {"std": 1, "zeros": 4}}}]}}),
     "the `init` of `f16_normal`"),
    (changed(dtype="f4"), "unknown dtype \"f4\""),
    (changed(seed=-1), "`seed` must be a whole number from 0 on, not -1"),
    (changed(path="a..b"), "no spec has the tensor path `a..b`"),
    (changed(shape=[41]), "`shape` [41] at `offset` [0] is not a box of `global_shape` [40]"),
    (changed(offset=[1]), "`shape` [40] at `offset` [1] is not a box of `global_shape` [40]"),
    (changed(offset=[-1]), "`shape` [40] at `offset` [-1] is not a box"),
    (changed(offset=[0, 0], shape=[1, 1]), "`shape` [1, 1] at `offset` [0, 0] is not a box"),
    (changed(global_shape=[2**62, 2**62]), "cannot have the shape"),
    (changed(bits="3c00 bc00"), "`bits` has 2 elements, but `shape` [40] has 40"),
    (changed(bits="3c00  bc00"), "element 1 of `bits` is ``, but f16 has 4 hexadecimal digits"),
    (changed(bits="3c00 0xbc"), "element 1 of `bits` is `0xbc`, but f16 has 4 hexadecimal digits"),
    (changed(bits=""), "`bits` has 0 elements, but `shape` [40] has 40"),
    (changed(bits="3c00g"), "element 0 of `bits` is `3c00g`, but f16 has 4 hexadecimal digits"),
    (changed(bits="3c0"), "element 0 of `bits` is `3c0`, but f16 has 4 hexadecimal digits"),
    (changed(bits="3c0-"), "element 0 of `bits` is `3c0-`, but f16 has 4 hexadecimal digits"),
    (changed(bits="3c000"), "element 0 of `bits` is `3c000`, but f16 has 4 hexadecimal digits"),
    (changed(bits=7), "type must be string"),
    (changed(name=None), "number 2 of `vectors`: "),
    (["normal"], "number 1 of `vectors`: "),
    ([VECTORS["file f32"] | {"file": "00"}], "`file` has 1 byte with the SHA-256"),
    ([VECTORS["file f32"] | {"file": "0g"}], "`file` has no hexadecimal digits"),
    ([VECTORS["file f32"] | {"file": "000"}], "`file` ends with half a byte"),
    ([{k: v for k, v in VECTORS["file f32"].items() if k != "file"}], "key 'file' not found"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_conformance_rejects_invalid_vectors(vectors, message, tmp_path):
    result = check(tmp_path, vectors, [OF_TENSORS["source as f32"]])  # Each list is numbered separately.
    assert result.returncode == 5 and message in result.stderr, result.stderr
    assert "`answers.json` has no answers of this form: " in result.stderr
    assert "hint: write it like `shardinit conformance --vectors`" in result.stderr


def of_tensors(name, **members):
    """Returns two answers, the second with other members."""
    return [OF_TENSORS["source as f32"], OF_TENSORS[name] | members]


TABLE, = OF_TENSORS["rows_like f64 20 0.5"]["tensors"]
MEASURED, = OF_TENSORS["norms philox4x32 3x1x5"]["tensors"]
FLAT = {"global_shape": [60], "offset": [0], "shape": [60], "bits": " ".join(60 * ["0" * 16]), "tensors": [TABLE]}


def like(*tables, **members):
    """Returns answers of rows that are like the rows of a table."""
    init = {"rows_like": {"source": "base", "tensor": "table", "axis": 0, "rows": 20, "std": 0.5} | members}
    return of_tensors("rows_like f64 20 0.5", init=init, tensors=[TABLE | table for table in tables])


def norms(*measured, **members):
    """Returns answers of a tensor's norms."""
    return of_tensors("norms philox4x32 3x1x5", tensors=[MEASURED | each for each in measured], **members)


def answer_in_parts(init):
    return {"parts": {"axis": 0, "of": [{"length": 3, "init": init}]}}


def source(tensor, *index):
    return {"source": {"source": "base", "tensor": tensor, "index": index}}


FILE = {"file": {"sha256": "0" * 64}}


@pytest.mark.parametrize("vectors, message", [
    (like(), "`tensors` has no `table` of the source `base`"),
    (like({}, {}), "`table` of the source `base` is given twice"),
    (like({"dtype": "f4"}), "no `dtype` is \"f4\""),
    (like({"shape": [20, 4]}), "`bits` has 60 elements, but `shape` [20, 4] has 80"),
    (like({"shape": [60]}), "is [60], which does not fit [5, 3]"),
    (like({"shape": [3, 20]}), "is [3, 20], which does not fit [5, 3]"),
    (like({"shape": [0, 3]}), "no tensor has the shape [0, 3]"),
    (like({"shape": [2**62, 2**62]}), "no tensor has the shape"),
    (like({}, rows=21), "`rows` is 21, but `table` of the source"),
    (like({}, rows=0), "the `init` of"),
    (like({}, axis=2), "the `init` of"),
    (like({}, axis=-1), "the `init` of"),
    (of_tensors("source in an expression", init={"expr": {"text": "source('base', 'table', i0)"}}),
     "is [20, 3], but its index has 1 expression"),
    (of_tensors("source in an expression", **FLAT, init=source("table")),
     "`table` of the source `base` is [20, 3], which does not fit [60]"),
    (of_tensors("source in an expression", **FLAT, init=source("table", "i0")),
     "`table` of the source `base` is [20, 3], but its index has 1 expression"),
    (norms(), "no tensor is `v`"),
    (norms({}, {}), "two tensors have the path `v`"),
    (norms({"global_shape": [3, 19, 6]}), "the shape [3, 1, 5]"),
    (norms({"init": FILE}), "`v`, whose norms are taken, has the elements of a file"),
    (norms({"init": answer_in_parts(FILE)}), "a part has the elements of a file, or norms"),
    (norms({}, init=answer_in_parts({"norms": {"of": "v"}})), "a part has the elements of a file, or norms"),
    (norms({"init": {"norms": {"of": "w"}}}), "`v`"),
    (norms({"init": source("b")}), "`tensors` has no `b` of the source `base`"),
    (of_tensors("source as f32", tensors=7), "number 2 of `vectors_of_tensors`, `source as f32`: "),
    (of_tensors("source as f32", tensors=[7]), "number 2 of `vectors_of_tensors`, `source as f32`: "),
    ([{k: v for k, v in OF_TENSORS["source as f32"].items() if k != "tensors"}], "key 'tensors' not found"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_conformance_rejects_invalid_source_tensors(vectors, message, tmp_path):
    result = check(tmp_path, [VECTORS["normal 0"]], vectors)
    assert result.returncode == 5 and message in result.stderr, result.stderr
    assert "`answers.json` has no answers of this form: number" in result.stderr
    assert "hint: write it like `shardinit conformance --vectors`" in result.stderr


def test_conformance_rejects_an_index_out_of_range(tmp_path):
    result = check(tmp_path, [], of_tensors("source in an expression", init=source("table", "i0", "i1 + 1")))
    assert result.returncode == 2 and "would be element [0, 3] of `table` of the source `base`" in result.stderr


@pytest.mark.parametrize("missing", ["vectors", "vectors_of_tensors"])
def test_conformance_accepts_a_file_with_one_list(missing, tmp_path):
    answers = KNOWN | {"vectors": [VECTORS["normal 0"]], "vectors_of_tensors": [OF_TENSORS["source as f32"]]}
    (tmp_path / "answers.json").write_text(json.dumps({key: value for key, value in answers.items() if key != missing}))
    assert run_ok("conformance", "answers.json", cwd=tmp_path).stdout.startswith("1 vector, ")


@pytest.mark.parametrize("text, message", [
    ("", "`answers.json` is not valid JSON: it ends at byte 0"),
    ("[]", "it does not begin with `contract_version`"),
    ("{\"vectors\": []}", "it does not begin with `contract_version`"),
    ("{\"vectors\": [{}], \"contract_version\": 1}", "it does not begin with `contract_version`"),
    ("{\"contract_version\": 2, \"vectors\": [{}]}", "its `contract_version` is 2, but this tool makes 1"),
    ("{\"contract_version\": 1}", "it has no list `vectors`"),
    ("{\"contract_version\": 1, \"vectors\": {}}", "it has no list `vectors`"),
    ("{\"contract_version\": 1, \"vectors_of_tensors\": {}}", "it has no list `vectors`"),
    ("{\"contract_version\": 1, \"vectors_of_tensors\": []}", "its list `vectors` is empty"),
    ("{\"contract_version\": 1, \"vectors\": []}", "its list `vectors` is empty"),
    ("{\"contract_version\": 1, \"vectors\": [", "`answers.json` is not valid JSON: it ends at byte 36"),
])
def test_conformance_rejects_files_without_vectors(text, message, tmp_path):
    (tmp_path / "answers.json").write_text(text)
    result = run_tool("conformance", "answers.json", cwd=tmp_path)
    assert result.returncode == 5 and message in result.stderr


def test_conformance_rejects_values_out_of_range(tmp_path):
    result = check(tmp_path, changed(init={"expr": {"text": "i0 * 10000000000"}}))
    assert result.returncode == 2 and "element [1] of `f16_normal` is 10000000000" in result.stderr, result.stderr


def test_conformance_rejects_invalid_command_lines(tmp_path):
    assert run_tool("conformance", "no.json", cwd=tmp_path).returncode == 2
    assert run_tool("conformance", "--vectors", "no.json", cwd=tmp_path).returncode == 2
    assert run_tool("conformance", "").returncode == 2


def test_drawn_parts_use_consecutive_numbers(tmp_path):
    """Each part draws the numbers that follow the numbers of the parts before it."""
    parts = [{"length": 3, "init": {"normal": {"mean": 0, "std": 1}}},
             {"length": 1, "init": {"constant": {"value": 0}}},
             {"length": 3, "init": {"expr": {"text": "normal() + 10 * uniform()"}}},
             {"length": 3, "init": {"normal": {"mean": 0, "std": 1}}}]
    answer = {"name": "parts", "engine": "philox4x32", "seed": 3, "path": "w", "dtype": "f32", "global_shape": [10],
              "init": {"parts": {"axis": 0, "of": parts}}, "offset": [0], "shape": [10], "tensors": []}
    bits = conformance.bits_of(answer)
    assert len(set(bits.split())) == 10
    assert check(tmp_path, [], [answer | {"bits": bits}]).stdout.startswith("1 vector, 10 elements: all as expected")
