"""`init: {file: …}`: a tensor's elements are the bytes of a file, in every command."""

import hashlib
import json
import os
import random
import shutil

import numpy as np
import pytest

from clients import gen_ok
from support import DTYPES, reassemble, run_json, run_ok, run_tool, table_file, tree_of

SEED = 5


def random_words(dtype, shape, rng=None):
    """Returns arbitrary bits, including NaN of all kinds, -0, and whole numbers that f64 cannot
    represent."""
    rng = rng or np.random.default_rng(SEED)
    size = DTYPES[dtype].itemsize
    if dtype == "bool":
        return rng.integers(0, 2, shape, np.uint8)
    return np.frombuffer(rng.bytes(size * int(np.prod(shape, dtype=int))), f"<u{size}").reshape(shape)


def add_table(folder, words):
    """Writes a file to `folder`/tables and returns its path relative to `folder`."""
    (folder / "tables").mkdir(exist_ok=True)
    return f"tables/{table_file(folder / 'tables', words).name}"


def write_spec(folder, tensors, more="", name="spec.yaml"):
    """Writes a spec of tensors name → (dtype, words, other keys)."""
    lines = [f"  {path}: {{shape: {list(words.shape)}, dtype: {dtype}, "
             f"init: {{file: {add_table(folder, words)}}}{keys}}}\n"
             for path, (dtype, words, keys) in tensors.items()]
    path = folder / name
    path.write_text(f"shardinit: 1\nname: files\nuneven: chunk\nmesh: {{axes: {{a: 2, b: 3}}}}\nmodules:\n"
                    f"{''.join(lines)}{more}")
    return path


def equal(folder, tensors):
    read = reassemble(folder)
    for path, (dtype, words, _) in tensors.items():
        assert read[path][0] == dtype and np.array_equal(read[path][1], words), path


@pytest.fixture
def all_types(tmp_path):
    cuts = ["[a, b]", "[b, a]", "[[a, b], null]", "[null, a]", "[null, [b, a]]"]
    tensors = {}
    for number, dtype in enumerate(DTYPES):
        tensors[dtype] = dtype, random_words(dtype, (13, 37)), f", shard: {cuts[number % len(cuts)]}"
    tensors["scalar"] = "f32", np.array(0x7FA00001, "<u4"), ""
    tensors["minus_zero"] = "bf16", np.full([5], 0x8000, "<u2"), ", shard: [a]"
    return tensors, write_spec(tmp_path, tensors)


@pytest.mark.parametrize("mesh", ["a=1,b=1", "a=2,b=3", "a=1,b=7"])
def test_file_tensors_have_the_same_bits_on_every_mesh(all_types, mesh, tmp_path):
    tensors, spec = all_types
    run_ok("gen", spec, "-o", tmp_path / "out", "--mesh", mesh)
    equal(tmp_path / "out", tensors)
    run_ok("verify", tmp_path / "out")
    run_ok("verify", tmp_path / "out", "--spec", spec, "--mesh", mesh)
    assert run_json("digest", spec) == run_json("digest", spec, "--mesh", mesh)
    wanted = {path: hashlib.sha256(words.tobytes()).hexdigest() for path, (_, words, _) in tensors.items()}
    assert {t["path"]: t["sha256"] for t in run_json("digest", spec)["tensors"]} == wanted


def test_file_tensors_in_single_ranks_equal_one_run(all_types, tmp_path):
    tensors, spec = all_types
    run_ok("gen", spec, "-o", tmp_path / "whole")
    for rank in (4, 1, 0, 5, 2, 3):
        run_ok("gen", spec, "-o", tmp_path / "parts", "--ranks", rank)
    assert tree_of(tmp_path / "parts") == tree_of(tmp_path / "whole")
    (tmp_path / "whole/ranks/rank-00002.h5").write_bytes(b"")
    assert run_tool("verify", tmp_path / "whole").returncode == 1
    run_ok("gen", spec, "-o", tmp_path / "whole", "--repair")
    assert tree_of(tmp_path / "parts") == tree_of(tmp_path / "whole")


def test_plan_records_the_digest_of_a_file_but_no_path(all_types, tmp_path):
    """Checkpoints contain only the digests of files, so moving files or writing their digests into
    the spec changes nothing."""
    tensors, spec = all_types
    run_ok("gen", spec, "-o", tmp_path / "out")
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    assert {t["path"]: t["init"] for t in plan["tensors"]} == {
        path: {"file": {"sha256": hashlib.sha256(words.tobytes()).hexdigest()}} for path,
        (_, words, _) in tensors.items()}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    text = spec.read_text()
    for number, (path, (_, words, _)) in enumerate(tensors.items()):
        digest = hashlib.sha256(words.tobytes()).hexdigest()
        (elsewhere / f"{number}.raw").write_bytes(words.tobytes())
        text = text.replace(f"{{file: tables/{digest}.bin}}", f"{{file: {{path: {number}.raw, sha256: {digest}}}}}")
    (elsewhere / "other.yaml").write_text(text)
    run_ok("gen", elsewhere / "other.yaml", "-o", elsewhere / "out")
    assert tree_of(elsewhere / "out") == tree_of(tmp_path / "out")
    run_ok("diff", elsewhere / "other.yaml", spec)
    run_ok("diff", elsewhere / "other.yaml", tmp_path / "out/plan.json")


def test_checkpoint_is_read_without_the_files_of_its_spec(all_types, tmp_path):
    tensors, spec = all_types
    run_ok("gen", spec, "-o", tmp_path / "out")
    shutil.rmtree(tmp_path / "tables")
    os.remove(spec)
    run_ok("verify", tmp_path / "out")
    assert not {p for p in tree_of(tmp_path / "out") if "tables" in p or ".bin" in p}
    stats = run_json("stats", tmp_path / "out")
    assert all(t["as_declared"] for t in stats["tensors"])  # NaN is among the declared values, too.
    assert sum(t["not_finite"] for t in stats["tensors"]) > 0
    run_ok("reshard", tmp_path / "out", "-o", tmp_path / "reshard", "--mesh", "a=3,b=1", "--uneven", "chunk")
    equal(tmp_path / "reshard", tensors)


def test_file_tensors_work_with_layouts_ties_and_padding(tmp_path):
    words = random_words("bf16", (12, 10))
    tensors = {"w": ("bf16", words, ", shard: [a, b]"), "v": ("bf16", words, ", tie: w")}
    more = """  drawn: {shape: [12, 10], dtype: bf16, init: {normal: {std: 1}}}
layouts:
  other:
    moved: {from: {transpose: {of: w}}, shard: [b]}
    stacked: {from: {stack: {axis: 1, of: [w, drawn, v]}}, shard: [null, a, b]}
    padded: {from: {pad: {axis: 1, to: 16, value: 1, of: {slice: {axis: 0, start: 3, stop: 9, of: w}}}}, shard: [b, a]}
"""
    spec = write_spec(tmp_path, tensors, more)
    drawn = reassemble(gen_ok(spec, tmp_path))
    equal(tmp_path / "out", tensors)
    run_ok("gen", spec, "-o", tmp_path / "other", "--layout", "other")
    read = {path: words for path, (_, words) in reassemble(tmp_path / "other").items()}
    assert np.array_equal(read["moved"], words.T)
    assert np.array_equal(read["stacked"], np.stack([words, drawn["drawn"][1], words], 1))
    assert np.array_equal(read["padded"], np.pad(words[3:9], ((0, 0), (0, 6)), constant_values=0x3F80))
    assert run_json("stats", tmp_path / "other")["tensors"][0]["as_declared"]
    run_ok("gen", spec, "-o", tmp_path / "longer", "--set", "uneven=pad", "--mesh", "a=5,b=3")
    longer = {path: words for path, (_, words) in reassemble(tmp_path / "longer").items()}
    assert np.array_equal(longer["w"], np.pad(words, ((0, 3), (0, 2))))


def test_file_paths_are_relative_to_their_spec(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "here").mkdir()
    one, other = random_words("f32", (4, 6)), np.arange(24, dtype="<u4").reshape(4, 6)
    write_spec(tmp_path / "base", {"w": ("f32", one, "")})
    (tmp_path / "spec.yaml").write_text("shardinit: 1\ninclude: base/spec.yaml\nname: above\n")
    assert np.array_equal(reassemble(gen_ok(tmp_path / "spec.yaml", tmp_path))["w"][1], one)
    # Paths in command-line options are relative to the working directory.
    init = f"modules.w.init={{file: {add_table(tmp_path / 'here', other)}}}"
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "other", "--set", init, cwd=tmp_path / "here")
    assert np.array_equal(reassemble(tmp_path / "other")["w"][1], other)
    result = run_tool("validate", "spec.yaml", "--set", "modules.w.dtype=bf16", cwd=tmp_path)
    assert result.returncode == 2
    assert "has 96 bytes, but the elements of [4, 6] in bf16 need 48" in result.stderr
    text = (tmp_path / "base/spec.yaml").read_text()
    run_ok("gen", "-", "-o", tmp_path / "stdin", input=text, stdin=None, cwd=tmp_path / "base")
    assert np.array_equal(reassemble(tmp_path / "stdin")["w"][1], one)


def test_export_of_file_tensors_has_their_bits(tmp_path):
    from safetensors.numpy import load_file
    words = random_words("f32", (30, 8))
    spec = write_spec(tmp_path, {"w": ("f32", words, "")})
    run_ok("export", spec, "--to", "safetensors", "-o", tmp_path / "out")
    file, = (tmp_path / "out").glob("*.safetensors")
    assert np.array_equal(load_file(file)["w"].view("<u4"), words)


def test_changed_content_of_a_file_is_found_before_use(tmp_path):
    words = random_words("f32", (300, 8))
    spec = write_spec(tmp_path, {"w": ("f32", words, "")})
    table, = (tmp_path / "tables").iterdir()
    digest = table.stem
    damaged = bytearray(table.read_bytes())
    damaged[-1] ^= 1
    table.write_bytes(damaged)
    found = hashlib.sha256(damaged).hexdigest()
    for command in (["gen", spec, "-o", tmp_path / "out"], ["digest", spec], ["stats", spec], ["validate", spec],
                    ["program", spec], ["export", spec, "--to", "zarr", "-o", tmp_path / "zarr"]):
        result = run_tool(*command)
        assert result.returncode == 2, command
        assert f"`{table}` has the SHA-256 {found}, but {spec}:6:49 asks for {digest}" in result.stderr
    assert not (tmp_path / "out/manifest.json").exists()
    run_ok("plan", spec)  # plan generates no values, so it does not hash files.
    table.write_bytes(damaged[:-1])
    result = run_tool("plan", spec)
    assert result.returncode == 2 and "has 9599 bytes, but the elements of [300, 8] in f32 need 9600" in result.stderr
    table.unlink()
    result = run_tool("plan", spec)
    assert result.returncode == 2 and f"there is no file `{table}`" in result.stderr
    os.mkfifo(table)
    assert run_tool("plan", spec).returncode == 2


def test_bool_file_with_a_byte_2_is_rejected(tmp_path):
    spec = write_spec(tmp_path, {"w": ("bool", np.array([0, 1, 2, 1], np.uint8), "")})
    result = run_tool("digest", spec)
    assert result.returncode == 2 and "has a byte 2, but bool holds 0 and 1" in result.stderr
    result = run_tool("validate", spec)
    assert result.returncode == 2 and "spec.yaml" in result.stdout + result.stderr


@pytest.mark.parametrize("first, second", [("bool", "u8"), ("u8", "bool")])
def test_file_of_two_dtypes_is_checked_for_each(tmp_path, first, second):
    words = np.array([0, 1, 2, 1], np.uint8)
    result = run_tool("digest", write_spec(tmp_path, {"v": (first, words, ""), "w": (second, words, "")}))
    assert result.returncode == 2 and "has a byte 2, but bool holds 0 and 1" in result.stderr
    run_ok("digest", write_spec(tmp_path, {"v": (first, words % 2, ""), "w": (second, words % 2, "")}))


def test_gen_from_300_files_needs_few_descriptors(tmp_path):
    tensors = {f"w{i}": ("i32", np.arange(i, i + 20, dtype="<u4"), ", shard: [b]") for i in range(300)}
    spec = write_spec(tmp_path, tensors)
    run_ok("gen", spec, "-o", tmp_path / "out", wrap=["prlimit", "--nofile=64"])
    equal(tmp_path / "out", tensors)


def test_library_reads_random_boxes_of_files(tmp_path):
    import shardinit
    rng = random.Random(SEED)
    tensors = {"w": ("f64", random_words("f64", (40, 50)), ""), "v": ("i8", random_words("i8", (3, 4, 5, 6)), "")}
    spec = write_spec(tmp_path, tensors)
    with shardinit.open_spec(spec) as opened:
        for _ in range(50):
            path = rng.choice(list(tensors))
            words = tensors[path][1]
            box = []
            for size in words.shape:
                start = rng.randrange(size)
                box.append(slice(start, rng.randrange(start, size) + 1))
            made = opened.generate(path, tuple(box))
            assert np.array_equal(made.view(words.dtype), words[tuple(box)])
    with shardinit.open_spec(text=spec.read_text(), path=spec) as opened:
        assert np.array_equal(opened.generate("w").view("<u8"), tensors["w"][1])
    # A change of a file in use is detected.
    with shardinit.open_spec(spec) as opened:
        opened.generate("w")
        table = tmp_path / add_table(tmp_path, tensors["w"][1])
        table.write_bytes(bytes(table.stat().st_size))
        with pytest.raises(shardinit.ShardinitError, match="was changed while it was read"):
            opened.generate("w")


def bytes_read(folder, table, *arguments):
    """Returns the number of bytes of the table that `gen` reads on one thread."""
    folder.mkdir()
    # One log for each thread, so that lines do not mix.
    run_ok("gen", *arguments, "-o", folder / "out", "--jobs", 1,
           wrap=["strace", "-ff", "-y", "-e", "trace=pread64", "-o", folder / "log"])
    return sum(int(line.rsplit("= ", 1)[1]) for log in folder.glob("log.*") for line in log.read_text().splitlines()
               if table.name in line)


def test_gen_hashes_a_file_once_and_reads_only_its_parts(tmp_path):
    words = random_words("f32", (4096, 256))
    spec = write_spec(tmp_path, {"w": ("f32", words, ", shard: [b]"), "v": ("f32", words, "")})
    table, = (tmp_path / "tables").iterdir()
    assert bytes_read(tmp_path / "all", table, spec) == 3 * words.nbytes
    assert bytes_read(tmp_path / "one", table, spec, "--ranks", 1) == words.nbytes + 1366 * 1024
