"""Tests the wheels for both kinds of machine as users install them: on Debian 12 with only python3 and pip, on Debian
11, and with PyTorch. `sh tests/run.sh wheel` makes them in build/wheels, and the bare systems in build/bare."""

import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import zipfile

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from documents import EXAMPLES, INSTALL, README, README_FILES, steady
from recorded import parse
from support import BINARY, CLEAN, ROOT, TINY, run_json, run_ok, tree_of
from test_determinism import of_all_kinds

BARE = ROOT / "build/bare"
HERE = platform.machine()
KINDS = ("x86_64", "aarch64")
FUNCTIONS = set(re.findall(r"\b(shardinit_\w+)\(", re.sub(
    r"/\*.*?\*/", "", (ROOT / "src/library/shardinit.h").read_text(), flags=re.S)))


def find_wheel(kind):
    wheels = sorted((ROOT / "build/wheels").glob(f"*{kind}.whl"))
    if not wheels:
        pytest.skip(f"there is no wheel for {kind} in build/wheels: `sh tests/run.sh wheel` makes it")
    wheel, = wheels
    return wheel


class Wheel:
    """An unpacked wheel, and a command that runs its program here."""

    def __init__(self, kind, folder):
        self.kind, self.path = kind, find_wheel(kind)
        with zipfile.ZipFile(self.path) as file:
            file.extractall(folder)
        self.data, = folder.glob("shardinit-*.data")
        self.info, = folder.glob("shardinit-*.dist-info")
        self.share = self.data / "data/share"
        self.files = self.data / "scripts/shardinit", folder / "shardinit/libshardinit.so.1"
        self.program = self.files[0]
        self.program.chmod(0o755)
        if kind != HERE:  # as CMake runs it for the completions
            self.program = folder / "run"
            self.program.write_text(f"#!/bin/sh\nexec qemu-{kind}-static -L "
                                    f"'{ROOT}/build/wheel/{kind}/libc' '{self.files[0]}' \"$@\"\n")
            self.program.chmod(0o755)


@pytest.fixture(scope="module", params=KINDS)
def wheel(request, tmp_path_factory):
    return Wheel(request.param, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """Returns the wheel for this kind of machine."""
    return Wheel(HERE, tmp_path_factory.mktemp("mine"))


def readelf(file, *options):
    return subprocess.run(["readelf", "-W", *options, file], check=True, capture_output=True,
                          text=True).stdout


# Files ----------------------------------------------------------------------------------------------

def test_wheel_needs_only_an_old_glibc(wheel):
    for file in wheel.files:
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", readelf(file, "-d"))
        assert needed and set(needed) <= {
            "libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1",
            "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
        assert "RPATH" not in readelf(file, "-d") and "RUNPATH" not in readelf(file, "-d")
        wanted = re.findall(r"Name: (\w+?)_([\d.]+) ", readelf(file, "--version-info"))
        assert {name for name, _ in wanted} == {"GLIBC"}
        assert max(tuple(map(int, number.split("."))) for _, number in wanted) <= (2, 17)
    tags = (wheel.info / "WHEEL").read_text()
    assert f"Tag: py3-none-manylinux_2_17_{wheel.kind}\n" in tags
    assert f"-py3-none-manylinux2014_{wheel.kind}.manylinux_2_17_{wheel.kind}.whl" in wheel.path.name


def test_wheel_exports_only_its_functions(wheel):
    symbols = [line.split() for line in readelf(wheel.files[1], "--dyn-syms").splitlines()
               if re.match(r" *\d+:", line)]
    names = {words[7].partition("@@")[0] for words in symbols if words[3] != "OBJECT" and words[6] != "UND"
             and len(words) > 7}
    assert len(names) == 14 and names == FUNCTIONS


def test_wheel_has_the_cuda_kernels(wheel):
    library = wheel.files[1].read_bytes()
    for kernel in (BINARY.parent / "cuda").glob("*.ptx"):
        assert f".visible .entry {kernel.stem}(".encode() in library
    assert library.count(b"\n.target sm_80\n") == 6


def test_wheel_is_hardened(wheel):
    for file in wheel.files:
        segments = readelf(file, "-l")
        assert re.search(r"Type: +DYN", readelf(file, "-h"))
        assert "GNU_RELRO" in segments and "NOW" in readelf(file, "-d")
        flags, = re.findall(r"GNU_STACK .* (\S+) +0\w*$", segments, re.M)
        assert flags == "RW"
        imports = set(re.findall(r" UND (\w+)", readelf(file, "--dyn-syms")))
        assert any(name.endswith("_chk") for name in imports)
        # zig has its own copy of this function, visible before stripping.
        built = ROOT / f"build/wheel/{wheel.kind}/build/shardinit/src" / file.name
        assert re.search(r" FUNC .* __stack_chk_fail$", readelf(built, "-s"), re.M)
    commands = json.loads((ROOT / f"build/wheel/{wheel.kind}/build/shardinit/compile_commands.json").read_text())
    for each in commands:
        assert "-D_FORTIFY_SOURCE=3" in each["command"]
        assert "-D_LIBCPP_HARDENING_MODE=_LIBCPP_HARDENING_MODE_FAST" in each["command"]
        assert "-DSHARDINIT_STATIC" in each["command"]


def test_wheel_contains_no_build_paths(wheel):
    for file in wheel.files:
        assert os.fsencode(ROOT) not in file.read_bytes()


def test_wheel_files_have_one_timestamp(wheel):
    """All files have the time of the commit, so a wheel that is made again has the same bytes."""
    with zipfile.ZipFile(wheel.path) as file:
        assert len({each.date_time for each in file.infolist()}) == 1


def test_wheel_has_pages_configs_and_completions(wheel):
    pages = {page.name: page.read_bytes() for page in (wheel.share / "man").glob("man?/*")}
    assert pages == {page.name: page.read_bytes() for page in (ROOT / "man").iterdir()}
    for folder in ("configs", "schemas"):
        assert tree_of(wheel.share / "shardinit" / folder) == tree_of(ROOT / folder)
    for shell, place in [("bash", "bash-completion/completions/shardinit"),
                         ("zsh", "zsh/site-functions/_shardinit"),
                         ("fish", "fish/vendor_completions.d/shardinit.fish")]:
        assert (wheel.share / place).read_text() == run_ok("completion", shell).stdout


def test_wheel_has_licences_of_linked_libraries(wheel):
    folder = wheel.info / "licenses/licenses"
    notice = (folder / "NOTICE").read_text()
    linked = re.findall(r"[\w+-]+", re.search(r"^  (HDF5.*?)\n  (GMP and MPFR),", notice, re.M | re.S)[1])
    names = {*linked, "GMP", "MPFR"}
    assert {file.name for file in folder.iterdir()} == {*names, "LICENSE", "NOTICE", "LGPL-3", "GPL-3"}
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert "GNU LESSER GENERAL PUBLIC LICENSE" in (folder / "LGPL-3").read_text()
    for name in names:
        assert re.search("copyright", (folder / name).read_text(), re.I), name
    # Libraries that were linked, by the archives' names.
    archives = {"hdf5_serial": "HDF5", "sz": "libaec", "aec": "libaec", "z": "zlib", "yaml-cpp": "yaml-cpp",
                "hwy": "Highway", "deflate": "libdeflate", "zstd": "zstd", "mpfr": "MPFR", "gmp": "GMP",
                "crypto": "OpenSSL"}
    taken = set(re.findall(r"/lib([\w-]+)\.a\b", (
        ROOT / f"build/wheel/{wheel.kind}/build/shardinit/build.ninja").read_text())) - {"shardinit_core"}
    assert taken == set(archives) and set(archives.values()) <= names


HEADERS_WITH_VERSIONS = [
    ("OpenSSL", "debian/usr/include/openssl/opensslv.h", r'OPENSSL_FULL_VERSION_STR "(.+)"'),
    ("HDF5", "debian/usr/include/hdf5/serial/H5public.h", r'H5_VERS_INFO\s+"HDF5 library version: (.+?)"'),
    ("zlib", "debian/usr/include/zlib.h", r'ZLIB_VERSION "(.+)"'),
    ("libdeflate", "debian/usr/include/libdeflate.h", r'LIBDEFLATE_VERSION_STRING\s+"(.+)"'),
    ("CLI11", "debian/usr/include/CLI/Version.hpp", r'CLI11_VERSION "(.+)"'),
    ("MPFR", "built/include/mpfr.h", r'MPFR_VERSION_STRING "(.+)"')]


def test_wheel_bill_of_materials_lists_linked_libraries(wheel):
    """CycloneDX's own package accepts the bill; it has the versions that were unpacked, at the path of PEP 770."""
    text = (wheel.info / "sboms/shardinit.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    versions = {library["name"]: library["version"] for library in bill["components"]}
    named = {file.name for file in (wheel.info / "licenses/licenses").iterdir()} - {"LICENSE", "NOTICE", "LGPL-3",
                                                                                    "GPL-3"}
    assert versions.keys() == named | {"compiler-rt", "libunwind"}
    assert bill["dependencies"] == [{"ref": "shardinit", "dependsOn": sorted(versions)}]
    unpacked = ROOT / f"build/wheel/{wheel.kind}"
    for name, header, pattern in HEADERS_WITH_VERSIONS:
        version = re.search(pattern, (unpacked / header).read_text())[1]
        assert re.search(rf"(^|:){re.escape(version)}\b", versions[name]), (name, version, versions[name])
    assert f"ziglang=={versions['libc++']} " in (ROOT / "src/wheel-requirements.txt").read_text()
    purls = [PackageURL.from_string(library["purl"]) for library in bill["components"]]
    assert {purl.type for purl in purls} == {"deb", "pypi"} and all(purl.version for purl in purls)


def test_wheel_has_one_version(wheel):
    version = run_json("--version")["version"]
    assert wheel.path.name.startswith(f"shardinit-{version}-py3-none-")
    assert wheel.info.name == f"shardinit-{version}.dist-info"
    metadata = (wheel.info / "METADATA").read_text()
    assert f"\nVersion: {version}\n" in metadata
    # Without a lower bound, pip may choose an s3fs of 2020 for compatibility with other packages.
    assert re.search(r"^Requires-Dist: s3fs>=2024\.6; extra == [\"']s3[\"']$", metadata, re.M)
    assert set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.M)) == {"bf16", "jax", "s3", "torch"}
    assert run_json("--version", binary=wheel.program)["version"] == version
    # The version that `pip install ./src/python` would install, without building it.
    report = subprocess.run(
        [ROOT / "build/wheel/tools/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "--dry-run", "--no-deps", "--no-build-isolation", "--report", "-", ROOT / "src/python"],
        check=True, capture_output=True, text=True, timeout=120).stdout
    assert json.loads(report)["install"][0]["metadata"]["version"] == version


# The program ------------------------------------------------------------------------------------------

@of_all_kinds
def test_wheel_computes_the_same_values(wheel, config):
    wanted = run_json("digest", config)
    for target in run_json("--version", binary=wheel.program)["targets"]:
        found = run_json("digest", config, binary=wheel.program, env={"SHARDINIT_TARGET": target})
        assert found == wanted, target


@pytest.mark.parametrize("config", [TINY, ROOT / "configs/dtypes.yaml"], ids=lambda c: c.stem)
def test_wheel_writes_the_same_programs(wheel, config):
    """Programs are identical for the engine philox4x32 without expressions. In others, the lines of an operation's two
    operands may be swapped, since a compiler may evaluate either first."""
    asked = "program", config, "--rank", 0
    assert run_ok(*asked, binary=wheel.program).stdout == run_ok(*asked).stdout


def test_wheel_writes_the_same_files(wheel, tmp_path):
    for binary, folder in [(BINARY, "a"), (wheel.program, "b")]:
        run_ok("gen", TINY, "-o", tmp_path / folder, binary=binary)
    assert tree_of(tmp_path / "a") == tree_of(tmp_path / "b")


def test_wheel_uses_the_fast_kernels(mine):
    """The wheel contains the fast kernels, which a compiler or linker could omit silently without changing values."""
    wanted, found = run_json("--version"), run_json("--version", binary=mine.program)
    assert (found["target"], found["targets"]) == (wanted["target"], wanted["targets"])


def test_wheel_uses_sha256_instructions(wheel):
    """The program uses SHA-256 instructions: it reports the flag that OpenSSL's code checks, which a variable of
    OpenSSL changes."""
    if wheel.kind == HERE and not run_json("--version")["sha256_instructions"]:
        pytest.skip("this processor has none; those that qemu knows have")
    name, without = {"x86_64": ("OPENSSL_ia32cap", ":~0x20000000"), "aarch64": ("OPENSSL_armcap", "0")}[wheel.kind]
    for env, takes in [({}, True), ({name: without}, False)]:
        assert run_json("--version", binary=wheel.program, env=env)["sha256_instructions"] is takes


def test_wheel_prints_the_recorded_output(mine):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / "tests/python/test_recorded.py", "-k",
         "validate or plan or digest"],
        capture_output=True, text=True, timeout=300,
        env={**CLEAN, "SHARDINIT": str(mine.program), "LC_ALL": "C"})
    assert done.returncode == 0, done.stdout
    passed, = re.findall(r"^(\d+) passed", done.stdout, re.M)
    cases = sum(len(parse((ROOT / f"golden/{name}.txt").read_text())) for name in ("validate", "plan", "digest"))
    assert int(passed) >= cases


# Installations ----------------------------------------------------------------------------------------

class System:
    """A bare Debian system with an overlay folder for changes."""

    def __init__(self, release, folder):
        if os.geteuid() != 0:
            pytest.skip("only root can work in another root")
        self.lower, self.folder = BARE / release, folder
        if not self.lower.with_suffix(".complete").exists():
            pytest.skip(f"there is no {self.lower.relative_to(ROOT)}: debootstrap did not make it")
        for name in ("changes", "work", "root"):
            (folder / name).mkdir()
        tried = self.within("exit")
        if tried.returncode != 0:  # as in most containers
            pytest.skip(f"a root cannot be put together here: {tried.stderr.strip()}")

    def within(self, script, *binds, **options):
        """Runs a shell script on this machine, with the system mounted only for the script."""
        root = self.folder / "root"
        mounts = [f"mount -t overlay overlay -o lowerdir={self.lower},upperdir={self.folder}/changes,"
                  f"workdir={self.folder}/work {root}", f"mount -t proc proc {root}/proc"]
        for host, guest in binds:
            mounts.append(f"mkdir -p {root}{guest}; mount --bind {host} {root}{guest}")
        return subprocess.run(["unshare", "--mount", "--net", "sh", "-ec", "\n".join([*mounts, script])],
                              capture_output=True, text=True, timeout=300, **options)

    def run(self, script, *binds, **env):
        """Runs a script in that system, without a network, and returns its output."""
        variables = " ".join(f"{name}={value}" for name, value in env.items())
        done = self.within(f"exec env -i PATH=/usr/local/bin:/usr/bin:/bin {variables} /usr/sbin/chroot "
                           f'{self.folder}/root sh -ec "$SCRIPT"', *binds, env={**os.environ, "SCRIPT": script})
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def made(self, path):
        """Returns the path of a file that a script wrote."""
        return self.folder / "changes" / path.lstrip("/")


READ = """
import shardinit
spec = "/usr/local/share/shardinit/configs/llama3-tiny.yaml"
with shardinit.open("/out/tiny") as checkpoint, shardinit.open_spec(spec) as made:
    assert len(checkpoint.tensors) > 10
    for path in checkpoint.tensors:
        assert checkpoint.read(path, verify=True).tobytes() == made.generate(path).tobytes(), path
import h5py
with h5py.File("/out/tiny/index.h5") as index:
    print("in HDF5:", sum(1 for _ in index.keys()) > 0)
print(shardinit.open_spec(spec).library_version)
"""


def install_lines():
    """Returns the commands that src/Containerfile runs after installing python3 and pip."""
    text = (ROOT / "src/Containerfile").read_text().replace("\\\n", " ")
    line, = [line for line in text.splitlines() if "pip install" in line]
    return re.sub(r"^RUN (--\S+ +)*", "", line)


@pytest.fixture(scope="module")
def debian12(mine, tmp_path_factory):
    system = System("bookworm", tmp_path_factory.mktemp("debian12"))
    others = BARE / "wheels"  # NumPy and h5py, as the system has no network
    system.run(f"{install_lines()}\npip install h5py", (mine.path.parent, "/wheels"), (others, "/others"),
               PIP_NO_INDEX=1, PIP_FIND_LINKS="/others", PIP_BREAK_SYSTEM_PACKAGES=1)
    return system


def test_wheel_works_on_bare_debian_12(debian12, tmp_path):
    out = debian12.run("""
        if command -v cc || command -v cmake; then exit 1; fi
        shardinit --version
        shardinit gen /usr/local/share/shardinit/configs/llama3-tiny.yaml -o /out/tiny
        shardinit verify /out/tiny
        shardinit digest /usr/local/share/shardinit/configs/llama3-tiny.yaml --json > /out/digest.json
        python3 -m shardinit --version
        shardinit-capture --help
        """)
    assert out.count(run_ok("--version").stdout) == 2 and "usage: shardinit-capture" in out
    assert json.loads(debian12.made("/out/digest.json").read_text()) == run_json("digest", TINY)
    run_ok("gen", TINY, "-o", tmp_path / "tiny")
    assert tree_of(debian12.made("/out/tiny")) == tree_of(tmp_path / "tiny")
    # The library needs neither PATH nor a variable.
    debian12.made("/out/read.py").write_text(READ)
    said = debian12.run("exec /usr/bin/env -i /usr/bin/python3 /out/read.py")
    assert said == f"in HDF5: True\n{run_json('--version')['version']}\n"


def test_readme_steps_work_with_only_the_wheel(debian12):
    """A new user's first hour: every step of README after the installation, in order, using only the wheel."""
    folder = debian12.made("/new")
    folder.mkdir()
    for name, text in README_FILES.items():
        (folder / name).write_text(text)
    debian12.run("test -s /new/model.yaml && test ! -e /new/configs")
    for (language, text), expected in EXAMPLES:
        assert language == "sh"
        said = debian12.run(f"cd /new\n{{ {text.replace(INSTALL, '')} }} 2>&1 || :")
        assert steady(said) == steady(expected), text
    shown = re.findall(r"`(shardinit [^`]+)`", README)  # in sentences
    assert len(shown) >= 3
    for command in shown:
        debian12.run(f"cd /new && {command}")


LOAD = """
import ctypes
library = ctypes.CDLL("/wheel/shardinit/libshardinit.so.1")
library.shardinit_version.restype = ctypes.c_char_p
handle, message = ctypes.c_void_p(), ctypes.c_void_p()
class Source(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("path", ctypes.c_char_p), ("rest", ctypes.c_void_p * 6)]
source = Source(ctypes.sizeof(Source), b"/wheel/spec.yaml")
status = library.shardinit_open(ctypes.byref(source), ctypes.byref(handle), ctypes.byref(message))
assert status == 0, ctypes.string_at(message.value)
values = (ctypes.c_float * 1000)()
assert library.shardinit_fill(handle, 0, None, None, values, ctypes.c_size_t(4000), 1, None) == 0
print(bytes(values).hex(), library.shardinit_version().decode())
"""
ONE = "shardinit: 1\nname: one\ndtype: f32\nmodules: {w: {shape: [1000], init: {normal: {std: 1}}}}\n"


def test_wheel_works_on_debian_11(tmp_path, mine):
    system = System("bullseye", tmp_path)
    folder = mine.data.parent
    (folder / "spec.yaml").write_text(ONE)
    (folder / "load.py").write_text(LOAD)
    out = system.run(f"""
        cd /wheel/{mine.data.name}
        scripts/shardinit digest data/share/shardinit/configs/llama3-tiny.yaml --json > /digest.json
        scripts/shardinit gen /wheel/spec.yaml -o /one
        python3 --version
        python3 /wheel/load.py
        """, (folder, "/wheel"))
    assert json.loads(system.made("/digest.json").read_text()) == run_json("digest", TINY)
    run_ok("gen", folder / "spec.yaml", "-o", tmp_path / "one")
    assert tree_of(system.made("/one")) == tree_of(tmp_path / "one")
    *_, python, values = out.splitlines()
    assert python.startswith("Python 3.9.")
    wanted = subprocess.run([sys.executable, "-c", LOAD.replace("/wheel", str(folder))], check=True,
                            capture_output=True, text=True).stdout
    assert values + "\n" == wanted and len(values) > 8000


BESIDE_TORCH = """
import sys
import torch
import shardinit, shardinit.torch
assert shardinit.__file__.startswith(sys.prefix), shardinit.__file__
with torch.device("meta"):
    model = torch.nn.Linear(64, 32)
shardinit.torch.init_(model, sys.argv[1])
with shardinit.open_spec(sys.argv[1]) as spec:
    for path in ("weight", "bias"):
        assert model.state_dict()[path].numpy().tobytes() == spec.generate(path).tobytes()
assert torch.equal(torch.ones(3).exp(), torch.ones(3).exp())
print(shardinit._native.program())
"""


def test_wheel_works_next_to_torch(mine, tmp_path):
    """The wheel works in an environment that sees this one's packages, but no checkout and no PATH."""
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    site, = (tmp_path / "venv/lib").glob("python3*/site-packages")
    import torch  # imported only if the test is not skipped
    (site / "others.pth").write_text(f"{pathlib.Path(torch.__file__).parents[1]}\n")
    subprocess.run([sys.executable, "-m", "pip", "--python", tmp_path / "venv/bin/python", "install", "--quiet",
                    "--disable-pip-version-check", "--no-index", "--no-deps", mine.path], check=True)
    (tmp_path / "spec.yaml").write_text(
        "shardinit: 1\nname: linear\ndtype: f32\nmodules:\n"
        "  weight: {shape: [32, 64], init: {normal: {std: 1}}}\n  bias: {shape: [32], init: zeros}\n")
    done = subprocess.run([tmp_path / "venv/bin/python", "-c", BESIDE_TORCH, tmp_path / "spec.yaml"],
                          cwd=tmp_path, capture_output=True, text=True, timeout=120, env={"HOME": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path}/venv/bin/shardinit\n"


def test_pip_install_of_a_clone_works(tmp_path):
    """`pip install` of a clone uses this system's libraries; `sh tests/run.sh pip` runs it."""
    site = ROOT / "build/clone"
    if not site.is_dir():
        pytest.skip("there is no build/clone: `sh tests/run.sh pip` makes it")
    assert (site / "shardinit/py.typed").is_file()
    run_ok("gen", TINY, "-o", tmp_path / "tiny", binary=site / "bin/shardinit")
    assert run_json("digest", TINY, binary=site / "bin/shardinit") == run_json("digest", TINY)
    code = f"""
import shardinit
checkpoint, made = shardinit.open({str(tmp_path / "tiny")!r}), shardinit.open_spec({str(TINY)!r})
name = "model.norm.weight"
assert checkpoint.read(name).tobytes() == made.generate(name).tobytes()
print(shardinit.__file__, shardinit._native.library()._name, checkpoint.seed)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                           env={"PYTHONPATH": str(site)}).stdout
    package = site / "shardinit"
    assert found == f"{package}/__init__.py {package}/libshardinit.so.1 0\n"


def test_uvx_runs_the_wheel(mine, tmp_path):
    """uvx runs the wheel without installing it; without a network it takes NumPy from a folder."""
    uvx = pathlib.Path(sys.executable).with_name("uvx")
    assert uvx.exists(), f"there is no {uvx}: `sh tests/run.sh packages` installs uv"
    if not (BARE / "wheels").is_dir():
        pytest.skip("there is no build/bare/wheels: `sh tests/run.sh wheel` makes it")
    for command, wanted in [("shardinit --version", run_ok("--version").stdout),
                            ("shardinit digest llama3-tiny --json", run_ok("digest", "llama3-tiny", "--json").stdout),
                            ("shardinit-capture --version",
                             f"shardinit-capture {run_json('--version')['version']}\n")]:
        done = subprocess.run([uvx, "--no-config", "--offline", "--no-index", "--find-links", BARE / "wheels",
                               "--python", sys.executable, "--from", mine.path.name, *command.split()],
                              cwd=mine.path.parent, capture_output=True, text=True, timeout=120,
                              env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
        assert (done.returncode, done.stdout) == (0, wanted), done.stderr


# The image --------------------------------------------------------------------------------------------

def test_containerfile_installs_the_wheel(mine):
    """Checks only the text of the file; the fixture debian12 runs its installation line."""
    text = (ROOT / "src/Containerfile").read_text()
    assert re.findall(r"^FROM (\S+)$", text, re.M) == ["docker.io/library/debian:12-slim"]
    source, = re.findall(r"source=(\S+?),target=/wheels\b", text)
    assert ROOT / source == mine.path.parent
    assert re.findall(r"^ENTRYPOINT (.*)$", text, re.M) == ['["shardinit"]']
