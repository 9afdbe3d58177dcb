"""Builds for another machine or with other flags must keep all values or be rejected; binaries are hardened."""

import json
import re
import subprocess

import pytest

from support import BINARY, ROOT, run_json

SUBNORMALS = """
shardinit: 1
name: subnormals
dtype: f32
modules:
  tiny: {shape: [300000], init: {expr: "i0 * 3e-45"}}
  sum: {shape: [300000], init: {expr: "(i0 + 1 / 3) / 7 + n0 * 1e-310"}, dtype: f64}
  small: {shape: [1000, 300], init: {normal: {std: 1e-6}}, dtype: f16}
  free: {shape: [300, 1000], init: {truncated_normal: {std: 0.02}}}
  matrix: {shape: [64, 64], init: orthogonal}
"""


def compile_it(folder, name, source, *flags, compiler="cc"):
    """Compiles `source` to a library or an object, and returns the compiler's result and messages."""
    (folder / name).write_text(source)
    return subprocess.run([compiler, *flags, name], cwd=folder, capture_output=True, text=True,
                          timeout=120)


# A linker adds such code with -ffast-math or -Ofast, and a batch system's wrapper may do so.
HOSTILE = """
#include <fenv.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif
__attribute__((constructor)) static void SetUp(void) {
#if defined(__SSE2__)
  _mm_setcsr(_mm_getcsr() | 0x8040);  /* Flush to zero, denormals are zero. */
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" ::"r"(1ull << 24));
#endif
  fesetround(FE_UPWARD);
}
"""


@pytest.mark.parametrize("jobs", [1, 3])
def test_startup_code_that_changes_fp_mode_changes_no_values(jobs, tmp_path):
    (tmp_path / "spec.yaml").write_text(SUBNORMALS)
    made = compile_it(tmp_path, "hostile.c", HOSTILE, "-shared", "-fPIC", "-O2", "-o", "hostile.so", "-lm")
    assert (made.returncode, made.stderr) == (0, "")
    before, after = (run_json("digest", tmp_path / "spec.yaml", "--jobs", jobs, env=env)
                     for env in ({}, {"LD_PRELOAD": str(tmp_path / "hostile.so")}))
    assert before == after


def test_build_without_clang_embeds_no_cuda_kernels(tmp_path):
    """Without clang, the list of embedded CUDA files is empty, but still compiles."""
    (tmp_path / "empty").mkdir()
    subprocess.run(["cmake", f"-DFOLDER={tmp_path}/empty", "-DPATTERN=*.ptx", "-DFUNCTION=CudaFiles",
                    f"-DOUTPUT={tmp_path}/made.cc", "-P", ROOT / "src/embed.cmake"], check=True, timeout=60)
    source = (tmp_path / "made.cc").read_text() + "\nint main() { return static_cast<int>(shardinit::CudaFiles().size()); }\n"
    made = compile_it(tmp_path, "main.cc", source, "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/src", "-o",
                      "made", compiler="c++")
    assert (made.returncode, made.stderr) == (0, "")
    assert subprocess.run([tmp_path / "made"], timeout=60).returncode == 0


def test_build_rejects_big_endian_machines(tmp_path):
    made = compile_it(tmp_path, "big.cc", '#include "tensor/encode.h"\n', "-std=c++20", "-fsyntax-only",
                   f"-I{ROOT / 'src'}", "-U__BYTE_ORDER__", "-D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__",
                   compiler="c++")
    assert made.returncode != 0
    assert "shardinit runs on little-endian machines only" in made.stderr
    as_it_is = compile_it(tmp_path, "big.cc", '#include "tensor/encode.h"\n', "-std=c++20",
                       "-fsyntax-only", f"-I{ROOT / 'src'}", compiler="c++")
    assert (as_it_is.returncode, as_it_is.stderr) == (0, "")


BENCH = BINARY.parents[1] / "tests/bench_kernels"


@pytest.mark.skipif(not BENCH.exists(), reason=f"there is no {BENCH}")
def test_benchmark_lists_more_than_ten_cases():
    listed = subprocess.run([BENCH, "--benchmark_list_tests"], check=True, capture_output=True, text=True)
    assert len(listed.stdout.splitlines()) > 10


CACHE = BINARY.parents[1] / "CMakeCache.txt"


@pytest.mark.skipif(not CACHE.exists() or "CMAKE_BUILD_TYPE:STRING=Release" not in CACHE.read_text(),
                    reason="only Release builds are installed")
@pytest.mark.parametrize("name", ["shardinit", "libshardinit.so.1"])
def test_installed_binaries_are_hardened(name):
    def read(*options):
        return subprocess.run(["readelf", "-W", *options, BINARY.parent / name], check=True,
                              capture_output=True, text=True).stdout

    assert re.search(r"Type: +DYN", read("-h"))  # It runs at any address.
    segments = read("-l")
    assert "GNU_RELRO" in segments and "NOW" in read("-d")  # Its tables are read-only.
    flags, = re.findall(r"GNU_STACK .* (\S+) +0x\w+$", segments, re.M)
    assert flags == "RW"
    imports = set(re.findall(r" UND (\w+)", read("--dyn-syms")))
    assert "__stack_chk_fail" in imports
    assert any("glibcxx_assert_fail" in symbol for symbol in imports)
    # In every file, the compiler decides which functions are fortified.
    commands = json.loads((BINARY.parents[1] / "compile_commands.json").read_text())
    assert all("-D_FORTIFY_SOURCE=3" in each["command"] for each in commands)


@pytest.mark.parametrize("place", [
    "init/distribution.cc", "stats/fit.cc", "generate/fill.cc", "plan/read_draw.cc", "program/drawn.cc",
    "graph/engines/jax_threefry.cc", "graph/engines/torch_cpu.cc", "graph/warnings/values.cc"])
def test_code_that_misses_a_distribution_does_not_compile(place, tmp_path):
    """Code that handles each distribution does not compile if one is missing; otherwise its values would be zeros, or
    it would have no plan."""
    header = (ROOT / "src/init/distribution.h").read_text()
    forgotten = header.replace("FromFile, FromSource, RowsLike, Parts, Norm>;",
                               "FromFile, FromSource, RowsLike, Parts, Norm, Forgotten>;")
    forgotten = forgotten.replace("\nusing Distribution =", """
struct Forgotten {
  double value;
  static constexpr std::string_view kName = "forgotten";
  static constexpr auto kMembers = std::tuple(Member{"value", &Forgotten::value, ""});
};
using Distribution =""")
    assert forgotten.count("Forgotten") == 3
    errors = []
    for text in (header, forgotten):
        (tmp_path / "init").mkdir(exist_ok=True)
        (tmp_path / "init/distribution.h").write_text(text)
        made = subprocess.run(["c++", "-std=c++20", "-fsyntax-only", f"-I{tmp_path}", f"-I{ROOT / 'src'}",
                               ROOT / "src" / place], capture_output=True, text=True, timeout=300)
        errors.append(made.stderr)
    assert errors[0] == "" and "error:" in errors[1]
