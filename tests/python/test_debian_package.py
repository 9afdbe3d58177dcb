"""Checks the Debian package that CPack makes from the program and the library."""

import gzip
import pathlib
import re
import shutil
import subprocess

import pytest

from support import BINARY, ROOT, TINY, run_json, run_ok

BUILD = BINARY.parents[1]
FILES = ["src/shardinit", "src/libshardinit.so.1", "completion.bash", "completion.fish", "completion.zsh"]


def output(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=200, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    missing = [name for name in ("dpkg-deb", "dpkg-shlibdeps", "cpack") if shutil.which(name) is None]
    missing += [name for name in FILES if not (BUILD / name).exists()]
    if missing:
        pytest.skip(f"the package cannot be made without {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("package")
    # Object files do not depend on the prefix, so nothing is compiled again.
    output("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_INSTALL_PREFIX=/usr", "-DBUILD_TESTING=OFF",
           "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_UNITY_BUILD=ON")
    for name in FILES:
        shutil.copy(BUILD / name, folder / name)
    (folder / "src/libshardinit.so").symlink_to("libshardinit.so.1")
    output("cpack", "-G", "DEB", cwd=folder)
    made, = folder.glob("*.deb")
    return made


@pytest.fixture(scope="module")
def usr(package, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    output("dpkg-deb", "-x", package, folder)
    return folder / "usr"


def test_debian_package_has_its_fields_and_dependencies(package):
    version, machine = run_json("--version")["version"], output("dpkg", "--print-architecture").strip()
    assert package.name == f"shardinit_{version}_{machine}.deb"

    def field(name):
        return output("dpkg-deb", "--field", package, name).strip()

    assert (field("Package"), field("Version"), field("Architecture")) == ("shardinit", version, machine)
    needed = re.findall(r"([\w.+-]+)(?: \(.*?\))?(?:, |$)", field("Depends"))
    # Expected from the dependencies that the linker recorded and from Debian's package
    # names.
    assert {"libc6", "libhdf5-103-1", "libfmt9", "libmpfr6", "libyaml-cpp0.7"} <= set(needed)
    listed = output("dpkg-deb", "--contents", package).splitlines()
    assert all(" root/root " in line for line in listed)
    assert all(line.startswith("drwxr-xr-x") for line in listed if line.startswith("d"))


def test_apt_can_install_the_debian_package(package):
    """The dependencies of the package are installed here, since the program was built with
    them."""
    said = output("apt-get", "install", "--simulate", package)
    assert re.search(r"^Inst shardinit ", said, re.M)


def test_debian_package_has_files_in_debians_folders(usr):
    triplet = output("cc", "-dumpmachine").strip()
    library = usr / "lib" / triplet / "libshardinit.so"
    assert library.resolve().name == "libshardinit.so.1"
    assert "Apache-2.0" in (usr / "share/doc/shardinit/copyright").read_text()
    folder = output("pkg-config", "--variable=libdir", "shardinit", env={
        "PATH": "/usr/bin:/bin", "PKG_CONFIG_PATH": str(library.parent / "pkgconfig")}).strip()
    assert pathlib.Path(folder).resolve() == library.parent
    pages = {page.name: gzip.decompress(page.read_bytes()) for page in (usr / "share/man").glob("man?/*")}
    assert pages == {f"{page.name}.gz": page.read_bytes() for page in (ROOT / "man").iterdir()}


def test_program_of_the_debian_package_runs(usr):
    assert run_ok("--version", binary=usr / "bin/shardinit").stdout == run_ok("--version").stdout
    config = usr / "share/shardinit/configs/llama3-tiny.yaml"
    assert run_json("digest", config, binary=usr / "bin/shardinit") == run_json("digest", TINY)
