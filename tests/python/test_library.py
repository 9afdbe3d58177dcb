"""libshardinit as C programs use it: installed, linked with pkg-config, and without side effects on the process."""

import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from clients import LIBRARY, PACKAGE, gen_ok
from support import BINARY, CLEAN, ROOT, TINY, reassemble, run_json, run_tool

HEADER = (ROOT / "src/library/shardinit.h").read_text()
PAGE = (ROOT / "man/libshardinit.3").read_text()
FUNCTIONS = set(re.findall(r"\b(shardinit_\w+)\(", re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)))


def output(*command, **options):
    return subprocess.run([*map(str, command)], check=True, capture_output=True, timeout=120,
                          **options).stdout


# The file ---------------------------------------------------------------------

def test_library_exports_only_its_functions():
    symbols = output("nm", "-D", "--defined-only", LIBRARY, text=True).splitlines()
    names = {line.split()[-1].partition("@@")[0] for line in symbols if " A " not in line}
    assert len(names) == 14 and names == FUNCTIONS
    assert set(re.findall(r"^\.F[no] (\w+)", PAGE, re.M)) == FUNCTIONS


def test_library_links_only_what_it_uses():
    dynamic = output("readelf", "-d", LIBRARY, text=True)
    version, = re.findall(r"#define SHARDINIT_ABI_VERSION (\d+)", HEADER)
    assert f"Library soname: [libshardinit.so.{version}]" in dynamic
    # In particular not HDF5, which has process-wide state; h5py loads another copy.
    needed = set(re.findall(r"Shared library: \[lib([\w+-]+?)\.so", dynamic))
    assert needed <= {"c", "crypto", "deflate", "fmt", "gcc_s", "hwy", "m", "mpfr", "stdc++", "yaml-cpp", "zstd"}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prefix")
    output("cmake", "--install", BINARY.parents[1], "--prefix", folder)
    return folder


def test_known_answers_are_installed(prefix):
    wanted = (ROOT / "tests/vectors/conformance.json").read_bytes()
    assert (prefix / "share/shardinit/conformance.json").read_bytes() == wanted


def write_the_example_of_the_page(folder):
    source, = re.findall(r"^\.Bd -literal\n(#include.*?)^\.Ed$", PAGE, re.M | re.S)
    (folder / "rows.c").write_text(source.replace("\\e", "\\"))


def test_manual_example_compiles_and_runs(prefix, tmp_path):
    write_the_example_of_the_page(tmp_path)
    config, = prefix.rglob("shardinit.pc")
    flags = output("pkg-config", "--cflags", "--libs", "shardinit", text=True,
                   env={**CLEAN, "PKG_CONFIG_PATH": config.parent}).split()
    folder, = [flag[2:] for flag in flags if flag.startswith("-L")]
    output("cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "rows.c", "-o", "rows",
           *flags, f"-Wl,-rpath,{folder}", cwd=tmp_path)
    words = reassemble(gen_ok(TINY, tmp_path))["lm_head.weight"][1]

    def rows(*arguments):
        return subprocess.run([tmp_path / "rows", *map(str, arguments)], capture_output=True)

    assert rows(TINY, "lm_head.weight", 1000, 24).stdout == words[1000:1024].tobytes()
    beyond = rows(TINY, "lm_head.weight", 8000, 200)
    assert beyond.returncode == 2 and beyond.stdout == b""
    assert b"200 elements from 8000 on are outside dimension 0 of `lm_head.weight`, which has 8192" \
        in beyond.stderr
    (tmp_path / "bad.yaml").write_text("shardinit: 1\nname: x\nmodules: {a: {shape: [b]}}\n")
    bad = rows(tmp_path / "bad.yaml", "a", 0, 1)
    program = run_tool("validate", tmp_path / "bad.yaml")
    assert bad.returncode == 2 and bad.stderr.decode() == program.stderr != ""
    assert rows(TINY, "model.norm.weight", 0, 1).returncode == 2


PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(rows VERSION 1.0 LANGUAGES C)
find_package(shardinit {version} REQUIRED)
add_executable(rows rows.c)
target_link_libraries(rows shardinit::shardinit)
"""


def test_cmake_finds_a_moved_installation(prefix, tmp_path):
    """CMake finds a moved installation too."""
    shutil.copytree(prefix, tmp_path / "moved", symlinks=True)
    write_the_example_of_the_page(tmp_path)
    version = run_json("--version")["version"]
    configure = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja",
                 f"-DCMAKE_PREFIX_PATH={tmp_path / 'moved'}", "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror"]
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(version=version))
    output(*configure)
    output("cmake", "--build", tmp_path / "build")
    words = reassemble(gen_ok(TINY, tmp_path))["lm_head.weight"][1]
    made = output(tmp_path / "build/rows", TINY, "lm_head.weight", 1000, 24, env=CLEAN)
    assert made == words[1000:1024].tobytes()
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(version=f"{int(version.split('.')[0]) + 1}.0"))
    refused = subprocess.run([*map(str, configure)], capture_output=True, text=True, timeout=120)
    assert refused.returncode != 0 and 'compatible with requested version "' in " ".join(refused.stderr.split())


@pytest.mark.parametrize("compiler", [["cc", "-std=c99"], ["c++", "-std=c++11"]], ids=" ".join)
def test_header_compiles_by_itself(compiler, tmp_path):
    source = tmp_path / ("h.c" if compiler[0] == "cc" else "h.cc")
    source.write_text('#include "shardinit.h"\n')
    output(*compiler, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only",
           "-I", ROOT / "src/library", source)


# A program for the first header, with SHARDINIT_ABI_VERSION 1.
OLD_PROGRAM = """
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "shardinit-abi-1.h"
int main(int argc, char** argv) {
  const char* sets[] = {"seed=7"};
  shardinit_source source = {.struct_size = sizeof source, .path = argv[1], .sets = sets,
                             .set_count = 1, .mesh = "fsdp=2,tensor=1"};
  shardinit_spec* spec = NULL;
  char* message = NULL;
  if (argc != 2 || shardinit_open(&source, &spec, &message) != SHARDINIT_OK) {
    fputs(message, stderr);
    return 1;
  }
  const shardinit_info* info = shardinit_describe(spec);
  fprintf(stderr, "%s %s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %d %s %" PRId64 " %s\\n",
          info->name, info->engine, info->seed, info->parameters, info->bytes, info->tensor_count,
          info->mesh_dimensions, info->mesh_axes[0], info->mesh_shape[0], info->warnings);
  const shardinit_tensor* t = shardinit_tensor_at(spec, shardinit_find(spec, "lm_head.weight"));
  fprintf(stderr, "%s %s %d %d %" PRId64 " %" PRId64 " %" PRId64 " %s\\n", t->path, t->dtype,
          t->element_bytes, t->dimensions, t->shape[0], t->elements, t->bytes, t->partition[1]);
  void* out = malloc((size_t)t->bytes);
  const int64_t index = shardinit_find(spec, "lm_head.weight");
  if (shardinit_fill(spec, index, NULL, NULL, out, (size_t)t->bytes, 1, &message)) return 2;
  fwrite(out, 1, (size_t)t->bytes, stdout);
  free(out);
  shardinit_close(spec);
  return 0;
}
"""


@pytest.fixture(scope="module")
def old_program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    (folder / "old.c").write_text(OLD_PROGRAM)
    output("cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "tests/vectors", "old.c",
           LIBRARY, "-o", "old", cwd=folder)
    return folder / "old"


def loaded(program, folder):
    return subprocess.run([program, TINY], capture_output=True, timeout=120,
                          env={**CLEAN, "LD_LIBRARY_PATH": str(folder)})


def test_program_of_the_first_header_still_works(old_program, tmp_path):
    ran = loaded(old_program, os.path.dirname(LIBRARY))
    dtype, words = reassemble(gen_ok(TINY, tmp_path, "--set", "seed=7"))["lm_head.weight"]
    plan = run_json("plan", TINY, "--mesh", "fsdp=2,tensor=1")
    assert ran.returncode == 0 and ran.stdout == words.tobytes()
    assert ran.stderr.decode().splitlines() == [
        f"llama3-tiny philox4x32 7 {plan['parameters']} {plan['bytes']} {plan['tensors']} 2 fsdp 2 ",
        f"lm_head.weight {dtype} {words.itemsize} 2 {words.shape[0]} {words.size} {words.nbytes} fsdp"]


def test_new_struct_members_do_not_break_old_programs(old_program, tmp_path):
    """Old programs work with a library built from a header whose structs have one more member each."""
    member = re.compile(r"^(} shardinit_(source|info|tensor);)", re.M)
    header, count = member.subn(r"  const char* future;\n\1", HEADER)
    assert count == 3
    (tmp_path / "library").mkdir()
    (tmp_path / "library/shardinit.h").write_text(header)
    core = BINARY.parent / "libshardinit_core.a"
    output("c++", "-std=c++20", "-shared", "-fPIC", "-O0", f"-I{tmp_path}", f"-I{ROOT / 'src'}",
           '-DSHARDINIT_VERSION="0"', ROOT / "src/library/library.cc", ROOT / "src/library/no_hdf5.cc", core,
           "-Wl,--as-needed",
           f"-Wl,--version-script={ROOT / 'src/library/shardinit.map'}", "-Wl,-soname,libshardinit.so.1", "-lfmt",
           "-lhwy", "-lmpfr", "-lcrypto", "-ldeflate", "-lyaml-cpp", "-lzstd",
           "-o", tmp_path / "libshardinit.so.1")
    now, then = (loaded(old_program, folder) for folder in (tmp_path, os.path.dirname(LIBRARY)))
    assert now.returncode == 0, now.stderr.decode()
    assert (now.stdout, now.stderr) == (then.stdout, then.stderr)


# The functions ----------------------------------------------------------------

sys.path.insert(0, str(PACKAGE))
from shardinit import _native


class Api:
    """Calls the C functions directly."""

    def __init__(self):
        self.c = _native.library()

    def open(self, path=None, text=None, sets=(), mesh=None, layout=None, size=None, extra=b""):
        """Returns (status, handle, message)."""
        source = _native.Source(ctypes.sizeof(_native.Source), path, text, len(text or b""),
                                (ctypes.c_char_p * len(sets))(*sets), len(sets), mesh, layout)
        memory = ctypes.create_string_buffer(bytes(source) + extra, ctypes.sizeof(source) + len(extra))
        given = _native.Source.from_buffer(memory)
        given.struct_size += len(extra)
        if size is not None:
            given.struct_size = size
        handle, message = ctypes.c_void_p(), ctypes.c_void_p()
        status = self.c.shardinit_open(ctypes.byref(given), ctypes.byref(handle), ctypes.byref(message))
        return status, handle, self.text_of(message)

    def text_of(self, message):
        text = ctypes.string_at(message.value).decode() if message.value else None
        self.c.shardinit_free(message)
        return text

    def fill(self, handle, index, offset, shape, out, size=None, threads=1):
        message = ctypes.c_void_p()
        Numbers = lambda n: None if n is None else (ctypes.c_int64 * len(n))(*n)
        address = out.ctypes.data if isinstance(out, np.ndarray) else out
        size = out.nbytes if size is None else size
        status = self.c.shardinit_fill(handle, index, Numbers(offset), Numbers(shape), address, size,
                                       threads, ctypes.byref(message))
        return status, self.text_of(message)


SMALL = b"shardinit: 1\nname: s\ndtype: f32\nmesh: {axes: {x: 2, y: 3}}\nmodules:\n" \
    b"  m: {shape: [12, 6], shard: [[y, x], null], init: {normal: {std: 1}}, dtype: f64}\n" \
    b"  s: {shape: [], init: ones}\n"


@pytest.fixture(scope="module")
def api():
    return Api()


@pytest.fixture(scope="module")
def small(api):
    status, handle, message = api.open(text=SMALL)
    assert (status, message) == (0, None)
    yield handle
    api.c.shardinit_close(handle)


def test_library_describes_spec_and_tensors(api, small):
    info = api.c.shardinit_describe(small).contents
    assert (info.name, info.engine, info.seed, info.parameters, info.bytes, info.tensor_count) == \
        (b"s", b"philox4x32", 0, 73, 12 * 6 * 8 + 4, 2)
    assert (info.mesh_axes[:info.mesh_dimensions], info.mesh_shape[:2], info.warnings) == \
        ([b"x", b"y"], [2, 3], b"")
    m, s = (api.c.shardinit_tensor_at(small, i).contents for i in range(2))
    assert (m.path, m.dtype, m.element_bytes, m.shape[:m.dimensions], m.elements, m.bytes) == \
        (b"m", b"f64", 8, [12, 6], 72, 576)
    assert m.partition[:2] == [b"y,x", b""]
    assert (s.path, s.dimensions, s.elements, s.bytes) == (b"s", 0, 1, 4)
    api.c.shardinit_find.restype = ctypes.c_int64
    assert [api.c.shardinit_find(small, p) for p in (b"m", b"s", b"t", b"")] == [0, 1, -1, -1]
    assert [bool(api.c.shardinit_tensor_at(small, i)) for i in (-1, 0, 1, 2, 1 << 40)] == \
        [False, True, True, False, False]
    version = run_json("--version")
    assert api.c.shardinit_version().decode() == version["version"]
    assert api.c.shardinit_contract_version() == version["contract_version"]


def test_library_lists_the_boxes_of_a_rank(api):
    status, handle, _ = api.open(text=b"shardinit: 1\nname: s\ndtype: f32\nmesh: {axes: {x: 2, y: 2}}\nmodules:\n"
                                      b"  w: {shape: [8, 3], stage: {x: 1}, init: ones,\n"
                                      b"      shard: [{axes: y, segments: 2}]}\n")
    assert status == 0

    def boxes(index, rank, capacity, count=True, memory=True):
        offsets, shapes = ((ctypes.c_int64 * 8)(*[-7] * 8) for _ in range(2))
        found, message = ctypes.c_int64(-7), ctypes.c_void_p()
        status = api.c.shardinit_boxes(
            handle, index, rank, offsets if memory else None, shapes if memory else None, capacity,
            ctypes.byref(found) if count else None, ctypes.byref(message))
        return status, api.text_of(message) or [found.value, offsets[:4], shapes[:4]]

    assert boxes(0, 3, 2) == (0, [2, [2, 0, 6, 0], [2, 3, 2, 3]])
    assert boxes(0, 3, 1) == (0, [2, [2, 0, -7, -7], [2, 3, -7, -7]])
    assert boxes(0, 3, 0, memory=False) == (0, [2, [-7] * 4, [-7] * 4])
    assert boxes(0, 1, 2) == (0, [0, [-7] * 4, [-7] * 4])
    for arguments, said in [((1, 0, 2), "tensor 1 does not exist: the spec has 1"),
                            ((0, 4, 2), "rank 4 does not exist: the mesh has 4"),
                            ((0, -1, 2), "rank -1 does not exist: the mesh has 4"),
                            ((0, 3, 2, False), "`count` is NULL"),
                            ((0, 3, 1, True, False), "`offsets` or `shapes` is NULL")]:
        status, message = boxes(*arguments)
        assert (status, message) == (2, f"shardinit: error: {said}\n")
    api.c.shardinit_close(handle)


def test_fill_rejects_misuse_and_writes_nothing(api, small):
    out, large = np.full((3, 6), 7.5), np.full((6, 6), 7.5)
    for arguments, said in [
        ((2, (0, 0), (3, 6), out), "tensor 2 does not exist: the spec has 2"),
        ((-1, (0, 0), (3, 6), out), "tensor -1 does not exist: the spec has 2"),
        ((0, (10, 0), (3, 6), out), "3 elements from 10 on are outside dimension 0 of `m`, which has 12"),
        ((0, (0, -1), (3, 6), out), "6 elements from -1 on are outside dimension 1 of `m`, which has 6"),
        ((0, (0, 0), (-1, 6), out), "-1 elements from 0 on are outside dimension 0 of `m`, which has 12"),
        ((0, (2**63 - 1, 0), (3, 6), out), "outside dimension 0"),
        ((0, (0, 0), (2**63 - 1, 6), out), "outside dimension 0"),
        ((0, (0, 0), None, out), "one of `offset` and `shape` is NULL"),
        ((0, (0, 0), (3, 6), out, 143), "this part of `m` has 144 bytes, and `out_size` is 143"),
        ((0, (0, 0), (3, 6), large, 145), "this part of `m` has 144 bytes, and `out_size` is 145"),
        ((0, (0, 0), (3, 6), large), "this part of `m` has 144 bytes, and `out_size` is 288"),
        ((0, (12, 0), (0, 6), large, 8), "this part of `m` has 0 bytes, and `out_size` is 8"),
        ((0, None, None, out), "this part of `m` has 576 bytes, and `out_size` is 144"),
        ((0, (0, 0), (3, 6), None, 144), "`out` is NULL"),
        ((0, (0, 0), (2, 6), out.ctypes.data + 4, 96), "`out` is not aligned to the 8 bytes of an element"),
        ((0, (0, 0), (3, 6), out, None, -1), "`threads` is -1: use a number from 1 to 4096"),
        ((0, (0, 0), (3, 6), out, None, 4097), "`threads` is 4097: use a number from 1 to 4096, or 0 for all cores"),
    ]:
        status, message = api.fill(small, *arguments)
        assert status == 2 and said in message and message.startswith("shardinit: error: "), said
    assert (out == 7.5).all() and (large == 7.5).all()
    # An empty part is valid, and a caller may pass no pointer for the message.
    assert api.fill(small, 0, (12, 0), (0, 6), None, 0) == (0, None)
    assert api.c.shardinit_fill(small, 9, None, None, None, 0, 0, None) == 2
    scalar = np.zeros((), "f4")
    assert api.fill(small, 1, None, None, scalar) == (0, None) and scalar == 1
    assert api.fill(small, 1, None, None, scalar, threads=4096) == (0, None)


def test_open_rejects_misuse(api):
    for arguments, said in [
        ({}, "neither `path` nor `text` is given"),
        ({"text": SMALL, "size": 8}, f"`struct_size` is 8, not sizeof(shardinit_source), "
                                     f"{ctypes.sizeof(_native.Source)}"),
        ({"text": SMALL, "extra": b"\0" * 8 + b"\1"}, "has members that this library does not know"),
        ({"text": SMALL, "sets": [b"seed=1", None]}, "`sets` has no string 1"),
        ({"text": SMALL, "sets": [b"sead=1"]}, "--set:1:1: error: the spec has no key `sead`"),
        ({"text": SMALL, "mesh": b"z=2"}, "--mesh:1:1: error: the spec declares no mesh axis `z`"),
        ({"text": SMALL, "layout": b"z"}, "the spec has no layout `z`"),
        ({"text": b"#" * (9 << 20)}, "`<text>` is larger than 8388608 bytes"),
        ({"text": b"name: \x01"}, "<text>:1:7: error: "),
        ({"text": b"", "path": b"name.yaml"}, "name.yaml:"),
        ({"path": b"-"}, "there is no file `./-`"),
    ]:
        status, handle, message = api.open(**arguments)
        assert status == 2 and not handle and said in message, (arguments, message)
    status, handle, message = api.open(text=SMALL, extra=b"\0" * 16)  # a newer header, without use of its new members
    assert (status, message) == (0, None)
    api.c.shardinit_close(handle)
    api.c.shardinit_close(None)
    api.c.shardinit_free(None)
    assert api.c.shardinit_open(None, None, None) == 2


@pytest.mark.parametrize("mesh", [None, b"x=3,y=1"])
@pytest.mark.parametrize("layout", [None, b"l"])
@pytest.mark.parametrize("sets", [[], [b"seed=3"], [b"seed=3", b"name=other", b"seed=5"]])
@pytest.mark.parametrize("path", [None, b"there.yaml"])
def test_source_members_work_in_any_combination(api, mesh, layout, sets, path):
    """Each member of `shardinit_source` works the same whichever others are set."""
    text = (b"shardinit: 1\nname: s\ndtype: f32\nmesh: {axes: {x: 2, y: 3}}\nmodules:\n"
            b"  w: {shape: [12, 6], shard: [{axes: x, segments: 2}], init: ones}\n"
            b"  v: {shape: [12], shard: [[x, y]], init: ones}\n"
            b"layouts: {l: {t: {from: {transpose: {of: w}}}, keep: [v]}}\n")
    status, handle, message = api.open(text=text, mesh=mesh, layout=layout, sets=sets, path=path)
    assert (status, message) == (0, None)
    info = api.c.shardinit_describe(handle).contents
    tensors = [api.c.shardinit_tensor_at(handle, i).contents for i in range(info.tensor_count)]
    assert (info.name, info.seed) == ((b"other", 5) if len(sets) == 3 else (b"s", 3 if sets else 0))
    assert info.mesh_shape[:2] == ([3, 1] if mesh else [2, 3])
    found = {t.path: (t.shape[:t.dimensions], t.partition[:t.dimensions], bool(t.extended)) for t in tensors}
    shape, name = ([6, 12], b"t") if layout else ([12, 6], b"w")
    by = [b"", b"x"] if layout else [b"x", b""]
    assert found == {name: (shape, by, True), b"v": ([12], [b"x,y"], False)}
    api.c.shardinit_close(handle)


def test_extended_marks_tensors_beyond_plain_axes(api):
    """`extended` marks tensors with segments, nested axes or stages: programs that only know axes must ask for
    boxes."""
    status, handle, message = api.open(text=b"""shardinit: 1
name: s
dtype: f32
uneven: chunk
mesh: {axes: {x: 2, y: 2, z: 2}}
sharding: {map: {"nested*": {x: Shard(0), y: Shard(0)}, inner: {x: Shard(1), y: Shard(1)}}}
modules:
  nested: {shape: [9, 2], init: ones}
  nested_even: {shape: [8, 2], init: ones}
  inner: {shape: [2, 9], init: ones}
  uneven: {shape: [9, 2], shard: [[x, y]], init: ones}
  segments: {shape: [2, 8], shard: [null, {axes: y, segments: 2}], init: ones}
  staged: {shape: [8], shard: [x], stage: {z: 1}, init: ones}
  whole: {shape: [9], init: ones}
""")
    assert (status, message) == (0, None)
    tensors = [api.c.shardinit_tensor_at(handle, i).contents for i in range(7)]
    assert {t.path: (t.partition[:t.dimensions], bool(t.extended)) for t in tensors} == {
        b"nested": ([b"x,y", b""], True), b"nested_even": ([b"x,y", b""], False), b"inner": ([b"", b"x,y"], True),
        b"uneven": ([b"x,y", b""], False), b"segments": ([b"", b"y"], True), b"staged": ([b"x"], True),
        b"whole": ([b""], False)}
    api.c.shardinit_close(handle)


def test_open_rejects_null_pointers(api):
    source = _native.Source(ctypes.sizeof(_native.Source), None, SMALL, len(SMALL))
    handle, message = ctypes.c_void_p(), ctypes.c_void_p()
    for arguments, said in [((None, ctypes.byref(handle)), "`source` is NULL"),
                            ((ctypes.byref(source), None), "`spec` is NULL")]:
        assert api.c.shardinit_open(*arguments, ctypes.byref(message)) == 2 and not handle
        assert api.text_of(message) == f"shardinit: error: shardinit_open: {said}\n"
    first = _native.Source.layout.offset + _native.Source.layout.size  # size in the first header
    for size, wanted in ((first - 1, 2), (first, 0)):
        status, handle, message = api.open(text=SMALL, size=size)
        assert status == wanted, message
    api.c.shardinit_close(handle)
    message = api.open(text=SMALL, extra=b"\1")[2]
    assert message.endswith("  hint: install a libshardinit as new as the header of the program\n"), message


def opened(api, **members):
    """Returns (status, handle, message) for these members of `shardinit_source`."""
    source = _native.Source(struct_size=ctypes.sizeof(_native.Source), **members)
    handle, message = ctypes.c_void_p(), ctypes.c_void_p()
    status = api.c.shardinit_open(ctypes.byref(source), ctypes.byref(handle), ctypes.byref(message))
    return status, handle, api.text_of(message)


def test_opens_the_plan_of_a_checkpoint(api, tmp_path):
    text = (gen_ok(SMALL.decode(), tmp_path) / "plan.json").read_bytes()
    status, handle, message = opened(api, text=text, text_size=len(text), is_plan=1)
    assert (status, message) == (0, None)
    info, tensor = (api.c.shardinit_describe(handle).contents, api.c.shardinit_tensor_at(handle, 0).contents)
    assert (info.name, info.tensor_count, tensor.path, tensor.partition[:2]) == (b"s", 2, b"m", [b"y,x", b""])
    api.c.shardinit_close(handle)
    for members, wanted, said in [({"text": b"{}", "text_size": 2}, 5, "`plan.json` is not a plan of this tool"),
                                  ({"path": b"plan.json"}, 2, "`is_plan` needs a `text`")]:
        status, handle, message = opened(api, is_plan=1, **members)
        assert status == wanted and said in message and not handle, message


def test_lists_the_boxes_of_a_manifest_and_a_record(api, tmp_path):
    out = gen_ok(SMALL.decode(), tmp_path)
    run_tool("export", tmp_path / "spec.yaml", "--to", "safetensors", "-o", tmp_path / "export")

    def boxes(handle):
        found, box = [], _native.Listed()
        while api.c.shardinit_listed_at(handle, 0, len(found), ctypes.byref(box)):
            found.append((box.file, box.place, box.offset[:2], box.shape[:2], ctypes.string_at(box.sha256, 32).hex()))
        return found

    def add(handle, rank, text):
        message = ctypes.c_void_p()
        status = api.c.shardinit_add_receipt(handle, rank, text, len(text), ctypes.byref(message))
        return status, api.text_of(message)

    text = (out / "manifest.json").read_bytes()
    manifest, path = json.loads(text), os.fsencode(out / "manifest.json")
    status, handle, message = opened(api, path=path, text=text, text_size=len(text), is_manifest=1)
    assert (status, message) == (0, None)
    info = api.c.shardinit_describe(handle).contents
    assert (info.replicas, info.format, info.plan_sha256) == (b"dedupe", b"", manifest["plan_sha256"].encode())
    assert info.file_sizes[: info.file_count] == [rank["size"] for rank in manifest["ranks"]]
    wanted = [(s["rank"], -1, s["offset"], s["shape"], s["sha256"]) for s in manifest["tensors"][0]["shards"]]
    assert boxes(handle) == wanted
    receipt = (out / "ranks/rank-00004.json").read_bytes()
    status, message = add(handle, 3, receipt)
    assert status == 1 and "rank-00003.json` does not have the digest that manifest.json gives" in message
    assert add(handle, 4, receipt) == (0, None) and add(handle, 6, receipt)[0] == 2
    places = [box["file_offset"] for box in json.loads(receipt)["boxes"] if box["path"] == "m"]
    assert [place for rank, place, *_ in boxes(handle) if rank == 4] == places
    assert api.fill(handle, 1, None, None, np.zeros((), "f4"))[0] == 2  # Only the folder has values.
    assert not api.c.shardinit_listed_at(handle, 2, 0, ctypes.byref(_native.Listed()))
    api.c.shardinit_close(handle)

    text = (tmp_path / "export/shardinit-export.json").read_bytes()
    status, handle, message = opened(api, text=text, text_size=len(text), is_record=1)
    assert (status, message) == (0, None)
    info, record = api.c.shardinit_describe(handle).contents, json.loads(text)
    assert (info.format, info.file_names[: info.file_count]) == (b"safetensors", [b"model.safetensors"])
    assert boxes(handle) == [(0, box["file_offset"], box["offset"], box["shape"], box["sha256"])
                             for box in record["files"][0]["boxes"] if box["path"] == "m"]
    assert add(handle, 0, receipt)[0] == 2 and (info.parameters, info.bytes) == (73, 580)
    api.c.shardinit_close(handle)
    for changed, wanted in ((text.replace(b'"seed": 0', b'"seed": 1'), 1), (b"{}", 5)):
        status, handle, message = opened(api, text=changed, text_size=len(changed), is_record=1)
        assert status == wanted and not handle, message


def test_reads_a_folder_from_disk_or_by_calls(api, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_bytes(SMALL)
    run_tool("export", spec, "--to", "safetensors", "-o", tmp_path / "out")
    wanted = reassemble(gen_ok(SMALL.decode(), tmp_path / "out"))["m"][1]
    data = (tmp_path / "out/model.safetensors").read_bytes()

    def read(_, name, offset, size, out):
        ctypes.memmove(out, data[offset:offset + size], size)
        return 0 if name == b"model.safetensors" else 1

    def files(name, call):
        return ctypes.pointer(_native.Files((ctypes.c_char_p * 1)(name), (ctypes.c_int64 * 1)(len(data)), 1,
                                            _native.ReadRange(call)))

    path = os.fsencode(tmp_path / "out")
    for of, by in [(path, None), (b"store://there", files(b"model.safetensors", read))]:
        status, handle, message = opened(api, path=of, is_folder=1, files=by)
        assert (status, message) == (0, None)
        assert [api.c.shardinit_tensor_at(handle, i).contents.path for i in range(2)] == [b"m", b"s"]
        part, made = np.zeros((3, 4), "f8"), ctypes.c_int32(7)
        assert api.fill(handle, 0, (5, 1), (3, 4), part) == (0, None)
        assert np.array_equal(part.view("u8"), wanted[5:8, 1:5])
        assert api.c.shardinit_fill_cuda(handle, 0, None, None, part.ctypes.data, 12 * 6 * 8, None, ctypes.byref(made),
                                         None) == 0 and made.value == 0
        api.c.shardinit_close(handle)
    for of, by, wanted, said in [
        (None, None, 2, "`is_folder` needs a `path`"),
        (b"store://there", ctypes.pointer(_native.Files(count=1)), 2, "`read_range` is NULL"),
        (b"store://there", ctypes.pointer(_native.Files(count=1, read_range=_native.ReadRange(read))), 2,
         "`names` or `sizes` is NULL"),
        (b"store://there", files(b"model.safetensors", lambda *_: 1), 3, "cannot read `model.safetensors`"),
        (b"store://there", files(b"plan.json", read), 2, "a checkpoint, which has a plan.json, must be on disk"),
        (b"store://there", files(b"other", read), 2, "`store://there` is not a checkpoint and contains no"),
    ]:
        status, handle, message = opened(api, path=of, is_folder=1, files=by)
        assert status == wanted and said in message and not handle, message


def test_spec_text_may_include_files(api, tmp_path):
    (tmp_path / "base.yaml").write_bytes(SMALL)
    text = b"include: base.yaml\nshardinit: 1\nname: over\nseed: 5\n"
    status, handle, _ = api.open(text=text, path=os.fsencode(tmp_path / "unwritten.yaml"), sets=[b"seed=6"])
    assert status == 0
    info = api.c.shardinit_describe(handle).contents
    assert (info.name, info.seed, info.tensor_count) == (b"over", 6, 2)
    api.c.shardinit_close(handle)


# Inside another program -------------------------------------------------------

GUEST = """
import ctypes, os, re, sys
import numpy as np
import shardinit
libm, libc = ctypes.CDLL("libm.so.6"), ctypes.CDLL("libc.so.6")
TEXT = sys.stdin.read()
UPWARD, TRAPS, FLUSH = 0x800, 1 | 4 | 8, 0x8040

def mxcsr(set=0):
    env = (ctypes.c_uint32 * 8)()
    libm.fegetenv(env)
    if set:
        env[7] |= set
        libm.fesetenv(env)
    return env[7] & ~0x3f  # Without the sticky flags.

def state():
    status = open("/proc/self/status").read()
    return (re.findall(r"^(Sig\\w+|Shd\\w+|Threads):\\s*(\\S+)", status, re.M),
            sorted(os.listdir("/proc/self/fd")), libm.fegetround(), mxcsr(), libc.setlocale(6, None))

def values():
    with shardinit.open_spec(text=TEXT, threads=2) as spec:
        return {path: spec.generate(path).view("u1").tobytes() for path in spec.tensors}

before = state()
wanted = values()
assert state() == before
libm.fesetround(UPWARD)
mxcsr(FLUSH)
libm.feenableexcept(TRAPS)
hostile = state()
assert hostile != before
again = values()
for text in ("shardinit: 1", "{", TEXT.replace("i0", "i0 +")):
    try:
        shardinit.open_spec(text=text)
    except shardinit.SpecError:
        pass
    else:
        raise AssertionError(text)
assert state() == hostile
libm.fesetenv(ctypes.c_void_p(-1))
assert state() == before
assert wanted == again
sub = np.frombuffer(wanted["tiny"], "f4")
assert 0 < sub[1] < 1e-41 and len(set(sub)) == 1000
"""
TEXT = """
shardinit: 1
name: guest
dtype: f32
modules:
  n: {shape: [1000, 1000], init: {normal: {mean: 0.1, std: 1 / 3}}}
  t: {shape: [1000, 1000], init: {truncated_normal: {std: 0.02}}, dtype: bf16}
  e: {shape: [100, 100], init: {expr: "exp(row / 7) / (1 + col)"}, dtype: f64}
  tiny: {shape: [1000], init: {expr: "i0 * 3e-42"}}
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sets MXCSR")
def test_library_changes_and_needs_no_process_state():
    """Calls leave signals, threads, files, locale and arithmetic flags unchanged, and values do not depend on them."""
    result = subprocess.run([sys.executable, "-c", GUEST], input=TEXT, capture_output=True, text=True,
                            timeout=120, env={**CLEAN, "PYTHONPATH": PACKAGE, "SHARDINIT_LIBRARY": LIBRARY})
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
