"""Writes tests/locked*.txt: every package that tests/requirements*.txt need, at the version that pip takes today, with
the digests of the files that CPython 3.11 can take on Linux, on x86-64 and aarch64. tests/run.sh installs these files
and no others. After a change of a requirement:

    build/venv/bin/python tests/lock.py

The digests are those that the package index names. PyTorch's build for processors alone is not there: if pip takes it,
from a folder of wheels (`find-links`), say, that file is the one in locked-cpu.txt.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

TESTS = pathlib.Path(__file__).resolve().parent
# What is written, from which requirements, with which options of pip.
LOCKED = {
    "locked.txt": (["requirements.txt", "requirements-clients.txt"], []),
    "locked-no-deps.txt": (["requirements-no-deps.txt"], ["--no-deps", "--ignore-requires-python"]),
    "locked-moto.txt": (["requirements-moto.txt"], []),
}
PYTHON = (3, 11)
PLATFORMS = [f"manylinux_2_{minor}_{machine}" for minor in range(5, 37) for machine in ("x86_64", "aarch64")]
PLATFORMS += [f"{name}_{machine}" for name in ("manylinux1", "manylinux2010", "manylinux2014", "linux")
              for machine in ("x86_64", "aarch64")]
TAGS = frozenset([*cpython_tags(PYTHON, platforms=PLATFORMS),
                  *compatible_tags(PYTHON, interpreter="cp311", platforms=PLATFORMS)])


def chosen(requirements, options):
    """What pip would install where nothing is: {name: (version, its file's SHA-256)}."""
    with tempfile.NamedTemporaryFile() as report:
        files = [word for name in requirements for word in ("-r", TESTS / name)]
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed",
                        "--report", report.name, *options, *files], check=True)
        packages = json.load(report)["install"]
    return {package["metadata"]["name"].lower().replace("_", "-"):
            (package["metadata"]["version"], package["download_info"]["archive_info"]["hashes"]["sha256"])
            for package in packages}


def is_taken(file, version):
    """Does the file of this name hold that version, for a Python and a platform of ours?"""
    if file.endswith(".whl"):
        try:
            _, wheel_version, _, tags = parse_wheel_filename(file)
        except ValueError:
            return False  # Old files have names that are none any more.
        return str(wheel_version) == version and not TAGS.isdisjoint(tags)
    return file.endswith((f"-{version}.tar.gz", f"-{version}.zip"))


def digests(name, version):
    request = urllib.request.Request(f"https://pypi.org/simple/{name}/",
                                     headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = json.load(answer)["files"]
    fit = {file["filename"]: file["hashes"]["sha256"] for file in files if is_taken(file["filename"], version)}
    # Packages are built from their sources where there is no wheel.
    return {digest for file, digest in fit.items() if file.endswith(".whl")} or set(fit.values())


def write(name, source, packages):
    """A file of requirements: {name and version: digests}."""
    lines = [f"# Written by tests/lock.py, from {source}."]
    for package, allowed in sorted(packages.items()):
        lines += [" \\\n".join([package, *(f"  --hash=sha256:{digest}" for digest in sorted(allowed))])]
    (TESTS / name).write_text("\n".join(lines) + "\n")
    print(f"{name}: {len(packages)} packages")


for locked, (requirements, options) in LOCKED.items():
    found = chosen(requirements, options)
    source = " and ".join(f"tests/{name}" for name in requirements)
    versions = {name: version.partition("+")[0] for name, (version, _) in found.items()}
    write(locked, source, {f"{name}=={version}": digests(name, version) for name, version in versions.items()})
    if builds := {f"{name}=={version}": {own} for name, (version, own) in found.items() if "+" in version}:
        write("locked-cpu.txt", source, builds)
