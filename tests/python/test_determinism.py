"""Values and files depend only on the spec.

SHARDINIT_OTHERS lists binaries from other compilers and optimization levels, separated by
spaces. tests/run.sh builds them.
"""

import json
import os
import pathlib
import shutil

import pytest

from recorded import case_named
from support import BINARY, CONFIGS, ROOT, TINY, run_json, run_ok, tree_of

OTHERS = os.environ.get("SHARDINIT_OTHERS", "").split()
TARGETS = run_json("--version")["targets"]


def model_digest(*arguments, **options):
    return run_json("digest", TINY, *arguments, **options)["model_digest"]


@pytest.fixture(scope="module")
def digest():
    return model_digest()


def test_model_digest_equals_the_recorded_one(digest):
    assert digest == json.loads(case_named("digest", "digest_llama3_tiny").outputs[0])["model_digest"]


def test_build_has_several_instruction_sets():
    assert len(TARGETS) == len(set(TARGETS)) >= 2


@pytest.mark.parametrize("target", TARGETS)
def test_every_instruction_set_gives_the_same_digest(target, digest):
    assert run_json("--version", env={"SHARDINIT_TARGET": target})["target"] == target
    assert model_digest(env={"SHARDINIT_TARGET": target}) == digest


of_all_kinds = pytest.mark.parametrize(
    "config", [TINY, ROOT / "configs/dtypes.yaml", ROOT / "configs/expressions.yaml", ROOT / "tests/python/kinds.yaml"],
    ids=lambda config: config.stem)


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: pathlib.Path(other).parts[-3])
@of_all_kinds
def test_other_compilers_give_the_same_digest(other, config):
    """Other compilers' binaries give the same digest with every instruction set that can
    run here, also under emulation."""
    mine = run_json("digest", config)
    for target in run_json("--version", binary=ROOT / other)["targets"]:
        env = {"SHARDINIT_TARGET": target}
        assert run_json("--version", binary=ROOT / other, env=env)["target"] == target
        assert run_json("digest", config, binary=ROOT / other, env=env) == mine, target


def test_every_sve_vector_length_gives_the_same_digest(digest):
    """Values do not depend on the vector length of SVE, which differs between
    processors."""
    other = ROOT / "build/aarch64/run/shardinit"
    if str(other.relative_to(ROOT)) not in OTHERS:
        pytest.skip("the program for aarch64 is not among SHARDINIT_OTHERS")
    for bytes in (16, 32, 64, 128, 256):
        env = {"QEMU_CPU": f"max,sve-default-vector-length={bytes}", "SHARDINIT_TARGET": "SVE2"}
        assert model_digest(binary=other, env=env) == digest, bytes


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: pathlib.Path(other).parts[-3])
def test_compilers_write_the_same_files(other, tmp_path):
    for binary, folder in [(BINARY, "a"), (ROOT / other, "b")]:
        run_ok("gen", TINY, "-o", tmp_path / folder, binary=binary)
    assert tree_of(tmp_path / "a") == tree_of(tmp_path / "b")


@pytest.mark.parametrize("jobs", [1, 2, 7])
def test_any_number_of_threads_gives_the_same_files(jobs, digest, tmp_path):
    assert model_digest("--jobs", jobs) == digest
    for count, folder in [(1, "a"), (jobs, "b")]:
        run_ok("gen", TINY, "-o", tmp_path / folder, "--jobs", count)
    assert tree_of(tmp_path / "a") == tree_of(tmp_path / "b")


@pytest.mark.parametrize("mesh", ["fsdp=1,tensor=1", "fsdp=2,tensor=2", "fsdp=8,tensor=1",
                                  "fsdp=4,tensor=2", "fsdp=3,tensor=1"])
def test_every_mesh_gives_the_same_digest(mesh, digest):
    assert model_digest("--mesh", mesh) == digest  # test_reassembly.py tests their files.


# None of these may affect the output: other versions of C library functions, another
# locale, clock or terminal.
ENVIRONMENTS = {
    "libm without AVX2 and FMA": {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4"},
    "libm without AVX-512": {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL"},
    "C": {"LC_ALL": "C"},
    "C.UTF-8": {"LC_ALL": "C.UTF-8"},
    "German": {"LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8"},
    "Turkish": {"LC_ALL": "tr_TR.UTF-8"},
    "no such locale": {"LC_ALL": "xx_XX"},
    "time zone": {"TZ": "Pacific/Kiritimati"},
    "HDF5's own variables": {"HDF5_USE_FILE_LOCKING": "FALSE", "HDF5_PLUGIN_PRELOAD": "::",
                             "HDF5_VDS_PREFIX": "/nowhere", "HDF5_EXTFILE_PREFIX": "/nowhere"},
    "malloc that fills": {"MALLOC_PERTURB_": "165"},
    "nothing": {"PATH": "", "HOME": ""},
}


@pytest.mark.parametrize("env", ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_every_environment_gives_the_same_files(env, digest, tmp_path):
    assert model_digest(env=env) == digest
    run_ok("gen", TINY, "-o", tmp_path / "a")
    run_ok("gen", TINY, "-o", tmp_path / "b", env=env)
    assert tree_of(tmp_path / "a") == tree_of(tmp_path / "b")


def test_working_directory_and_umask_do_not_affect_files(tmp_path):
    """The working directory, the form of paths and the umask do not affect files."""
    run_ok("gen", TINY, "-o", tmp_path / "a")
    (tmp_path / "deep/er").mkdir(parents=True)
    shutil.copytree(TINY.parent, tmp_path / "deep/copy")
    run_ok("gen", f"../copy/{TINY.name}", "-o", "./b/", cwd=tmp_path / "deep/er", umask=0o077)
    assert tree_of(tmp_path / "a") == tree_of(tmp_path / "deep/er/b")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)
def test_plans_do_not_depend_on_the_locale(config):
    first = run_ok("plan", config, "--json").stdout
    assert first == run_ok("plan", config, "--json", env={"LC_ALL": "de_DE.UTF-8"}).stdout


def test_values_do_not_depend_on_other_tensors(tmp_path):
    """Renaming, adding and reordering tensors changes only the values of the renamed
    ones."""
    head = "shardinit: 1\nname: m\ndtype: f32\ninit: {n: {normal: {std: 1}}}\nmodules:\n"
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(head + "  a: {shape: [64], init: n}\n  b: {shape: [64], init: n}\n")
    second.write_text(head + "  new: {shape: [3], init: n}\n  c: {shape: [64], init: n}\n"
                      "  a: {shape: [64], init: n}\n  d: {shape: [8, 8], init: n, key: b}\n")
    old = {t["path"]: t["sha256"] for t in run_json("digest", first)["tensors"]}
    new = {t["path"]: t["sha256"] for t in run_json("digest", second)["tensors"]}
    assert new["a"] == old["a"]
    assert new["d"] == old["b"]  # An explicit key gives the same values in another shape.
    assert len(set(new.values())) == 4


def test_different_seeds_give_different_digests(digest):
    assert model_digest("--set", "seed=1") != digest
    assert model_digest("--set", "seed=0") == digest
