"""Tests kernels for CUDA without a device: their source, with a stand-in for CUDA's driver
(tests/support/fake_cuda.cc); the text of the kernels; and how the library handles failures of the driver.
tests/device/run.sh has the tests that need a device."""

import json
import os
import re
import subprocess
import sys

import pytest

from clients import LIBRARY, PACKAGE
from support import BINARY, ROOT

DRIVER = BINARY.parents[1] / "tests/fake_cuda/libcuda.so.1"
KERNELS = sorted((BINARY.parent / "cuda").glob("*.ptx"))
FILLS = ROOT / "tests/device/fills.py"


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGE), "SHARDINIT_LIBRARY": str(LIBRARY)}


def answer(script, with_driver=True):
    """Runs a script with `card`, the stand-in's device memory, and `fill`, which fills it; returns its JSON output."""
    head = (f"import ctypes, json, os, sys, warnings\nwarnings.simplefilter('ignore')\n"
            f"sys.path.insert(0, {str(FILLS.parent)!r})\nimport fills, shardinit\n"
            + (f"card = fills.FakeCard({str(DRIVER)!r})\n" if with_driver else "card = None\n") + """
def fill(init, shape=(6, 8), dtype="f32", engine="philox4x32", slices=None, size=None):
    with fills.spec_of({"w": (shape, dtype, init)}, engine) as spec:
        whole = spec.info("w").nbytes if size is None else size
        address = card.take(whole) if card else 4096
        try:
            made = spec.fill_cuda("w", slices, address, whole, 0)
        except shardinit.SpecError as error:
            made = [error.code, str(error)]
        held = bytes(card.give_back().tolist()) if card else b""
        right = spec.generate("w", slices).tobytes()
        state = "right" if held == right else "untouched" if set(held) <= {fills.GUARD} else "wrong"
        return [made, state, card.driver.fake_cuda_current() if card else 0]
""")
    done = subprocess.run([sys.executable, "-c", head + script], env=ENVIRONMENT, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_cuda_kernels_fill_parts_of_tensors_correctly():
    done = subprocess.run([sys.executable, FILLS, "--driver", DRIVER, "--cases", "1000"], env=ENVIRONMENT,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "bits: 1000 parts, 0 wrong, seed 2026" in done.stdout, done.stdout + done.stderr


def test_each_engine_and_distribution_has_a_cuda_kernel():
    assert [path.stem for path in KERNELS] == [f"{engine}_{drawn}" for engine in ("philox", "threefry")
                                               for drawn in ("normal", "truncated_normal", "uniform")]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda path: path.stem)
def test_ptx_fixes_the_rounding_of_each_operation(kernel):
    """PTX names the rounding of each operation, so that no compiler fuses a multiplication and an addition."""
    text = kernel.read_text()
    operations = set(re.findall(r"^\s+(?:@%p\d+ )?([a-z][\w.]*)\s", text, re.MULTILINE))
    arithmetic = {each for each in operations if re.match(r"(add|sub|mul|fma|mad|div|sqrt|rcp|rsqrt|lg2)\.", each)
                  and re.search(r"\.f(32|64)$", each)}
    assert {"add.rn.f32", "mul.rn.f32"} <= arithmetic
    approximate = {"lg2.approx.ftz.f32", "rsqrt.approx.ftz.f32", "rcp.approx.ftz.f32"}
    assert arithmetic - approximate <= {"add.rn.f32", "sub.rn.f32", "mul.rn.f32", "fma.rn.f32"}
    assert not [each for each in operations if ".ftz" in each and each not in approximate]
    # A thread's own memory is slow, and calls need it. clang writes variables, unlike constants, in any order.
    assert not operations & {"call.uni", "call"} and ".local" not in text and ".global .align" not in text


def test_cuda_fill_declines_initializers_without_a_kernel():
    made = answer("""
print(json.dumps([fill(init) for init in fills.OTHERS] + [
    fill("{normal: {std: 1}}", engine="torch_cpu"), fill("zeros", engine="torch_cpu")]))""")
    assert made == [[False, "untouched", 0]] * (len(made) - 1) + [[True, "right", 0]] and len(made) == 7


def test_cuda_fill_declines_views_of_a_layout():
    made = answer("""
text = '''
shardinit: 1
name: x
dtype: f32
modules: {a: {shape: [4, 4], init: {normal: {std: 1}}}}
layouts: {turned: {b: {from: {transpose: {of: a}}}}}
'''
with shardinit.open_spec(text=text, layout="turned") as spec:
    print(json.dumps(spec.fill_cuda("b", None, card.take(64), 64, 0)))""")
    assert made is False


def test_cuda_fill_declines_devices_before_compute_8():
    made = answer("""
answers = []
for major in "6", "7", "8", "12":
    os.environ["FAKE_CUDA_MAJOR"] = major
    answers.append(fill("{normal: {std: 1}}"))
print(json.dumps(answers))""")
    assert made == [[False, "untouched", 0]] * 2 + [[True, "right", 0]] * 2


def test_cuda_fill_declines_drivers_that_compile_no_ptx():
    """If the driver cannot compile PTX (CUDA_DISABLE_PTX_JIT, or a container without the driver's compiler), the
    processor makes the values."""
    made = answer("""
answers = []
for refusal, init in ("221", "{normal: {std: 1}}"), ("223", "{uniform: {low: 0, high: 1}}"):
    os.environ["FAKE_CUDA_NO_PTX"] = refusal
    answers.append(fill(init))
del os.environ["FAKE_CUDA_NO_PTX"]
# A driver that refused a kernel is not asked for it again.
print(json.dumps([*answers, fill("{normal: {std: 1}}"), fill("{normal: {std: 1}}", engine="jax_threefry")]))""")
    assert made == [[False, "untouched", 0]] * 3 + [[True, "right", 0]]


def test_cuda_driver_errors_name_the_step_and_the_reason():
    """A driver's error names the failed step and the driver's reason, and the thread's context does not change."""
    messages = {
        "cuInit": "cannot start CUDA", "cuPointerGetAttribute": "cannot tell whose memory `out` is",
        "cuDevicePrimaryCtxRetain": "cannot use the device of `out`",
        "cuModuleLoadDataEx": "cannot load the kernels for CUDA: what the compiler says",
        "cuLaunchKernel": "cannot start a kernel for CUDA", "cuMemsetD8Async": "cannot fill memory of a CUDA device",
    }
    made = answer(f"""
answers = []
for function in {list(messages)}:
    os.environ["FAKE_CUDA_FAILS"] = function
    answers.append(fill("zeros" if "Memset" in function else "{{normal: {{std: 1}}}}", dtype="f8e5m2"))
os.environ["FAKE_CUDA_FAILS"] = ""
print(json.dumps([*answers, fill("{{normal: {{std: 1}}}}")]))""")
    assert made == [[[3, f"{message}: a failure that a test asked for (CUDA error 999)"], "untouched", 0]
                    for message in messages.values()] + [[True, "right", 0]]


def test_cuda_fill_rejects_memory_that_does_not_fit():
    made = answer("""
host = ctypes.create_string_buffer(64)
with fills.spec_of({"w": ((8,), "f32", "{normal: {std: 1}}")}) as spec:
    answers = [spec.fill_cuda("w", slice(3, 3), 0, 0, 0)]
    for address, size in ((ctypes.addressof(host), 32), (card.take(32), 31), (card.take(64) + 2, 32), (0, 32)):
        try:
            answers.append(spec.fill_cuda("w", None, address, size, 0))
        except shardinit.SpecError as error:
            answers.append([error.code, str(error)])
    print(json.dumps(answers))""")
    assert made == [True, [2, "`out` is not memory of a CUDA device"],
                    [2, "this part of `w` has 32 bytes, and `out_size` is 31"],
                    [2, "`out` is not aligned to the 4 bytes of an element of `w`"], [2, "`out` is NULL"]]


def test_cuda_fill_reports_a_missing_driver():
    made, _, _ = answer('print(json.dumps(fill("{normal: {std: 1}}")))', with_driver=False)
    assert made[0] == 3 and made[1].startswith("cannot load CUDA's driver: libcuda.so.1: cannot open shared object")
