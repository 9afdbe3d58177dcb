"""Writes tests/locked*.txt: every package that tests/requirements*.txt needs, at the version that pip chooses today,
with the digests of the files that CPython 3.11 can use on Linux, on x86-64 and aarch64. tests/run.sh installs only
these files. After a change of a requirement:

    build/venv/bin/python tests/lock.py

The package index provides the digests. It lacks PyTorch's CPU-only build: if pip uses that build, for example from a
folder of wheels (`find-links`), its file is the one in locked-cpu.txt."""

import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

TESTS = pathlib.Path(__file__).resolve().parent
# Output file, requirements, and pip's options.
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
    """Returns what pip would install into an empty environment: {name: (version, its file's SHA-256)}."""
    with tempfile.NamedTemporaryFile() as report:
        files = [word for name in requirements for word in ("-r", TESTS / name)]
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed",
                        "--report", report.name, *options, *files], check=True)
        packages = json.load(report)["install"]
    return {package["metadata"]["name"].lower().replace("_", "-"):
            (package["metadata"]["version"], package["download_info"]["archive_info"]["hashes"]["sha256"])
            for package in packages}


def is_taken(file, version):
    """Returns whether the file of this name has that version and suits our Python and platforms."""
    if file.endswith(".whl"):
        try:
            _, wheel_version, _, tags = parse_wheel_filename(file)
        except ValueError:
            return False  # Names of old files may be invalid today.
        return str(wheel_version) == version and not TAGS.isdisjoint(tags)
    return file.endswith((f"-{version}.tar.gz", f"-{version}.zip"))


def digests(name, version):
    request = urllib.request.Request(f"https://pypi.org/simple/{name}/",
                                     headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = json.load(answer)["files"]
    fit = {file["filename"]: file["hashes"]["sha256"] for file in files if is_taken(file["filename"], version)}
    # Packages without a wheel are built from source.
    return {digest for file, digest in fit.items() if file.endswith(".whl")} or set(fit.values())


def write(name, source, packages):
    """Returns a file of requirements: {name and version: digests}."""
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
