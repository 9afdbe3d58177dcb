"""Writes the bill of materials of a wheel to standard output, in CycloneDX 1.6: the libraries that src/wheel.sh links in.

    python3 src/bill_of_materials.py ORIGINS

ORIGINS has a line for each library: its name, and the first line of the changelog of its source package in
Debian, `SOURCE (VERSION) …`. Packages have the names of https://github.com/package-url/purl-spec. The output
has no times and no random numbers, so that rebuilding a wheel gives the same bytes.
"""

import json
import pathlib
import re
import sys
import urllib.parse

HERE = pathlib.Path(__file__).parent


def component(name: str, version: str, purl: str) -> dict[str, str]:
    """Returns the entry of a library that is linked in."""
    return {"type": "library", "bom-ref": name, "name": name, "version": version, "purl": purl}


def of_debian(line: str) -> dict[str, str]:
    """Returns the entry of a library, from its line `NAME SOURCE (VERSION) …`."""
    found = re.match(r"(\S+) (\S+) \(([^)]+)\)", line)
    if found is None:
        sys.exit(f"bill_of_materials.py: this is no first line of a changelog: {line}")
    name, source, version = found.groups()
    quoted = urllib.parse.quote(version, safe=".-~")
    return component(name, version, f"pkg:deb/debian/{source}@{quoted}?arch=source&distro=bookworm")


def version_in(file: str, pattern: str) -> str:
    """Returns the text that the group of `pattern` matches in `file`, which is next to this script."""
    found = re.search(pattern, (HERE / file).read_text(), re.M)
    if found is None:
        sys.exit(f"bill_of_materials.py: {file} has no `{pattern}`")
    return found[1]


def main(origins: str) -> None:
    """Prints the bill of materials of the libraries that are listed in the file `origins`."""
    zig = version_in("wheel-requirements.txt", r"^ziglang==(\S+)")
    libraries = [of_debian(line) for line in pathlib.Path(origins).read_text().splitlines()]
    libraries += [component(name, zig, f"pkg:pypi/ziglang@{zig}#lib/{folder}")
                  for name, folder in (("libc++", "libcxx"), ("libunwind", "libunwind"), ("compiler-rt", "compiler_rt"))]
    libraries.sort(key=lambda library: library["name"])
    version = version_in("python/shardinit/__init__.py", r'^__version__ = "(.+)"')
    program = {"type": "application", "bom-ref": "shardinit", "name": "shardinit", "version": version,
               "purl": f"pkg:pypi/shardinit@{version}"}
    bill = {"$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX",
            "specVersion": "1.6", "version": 1, "metadata": {"component": program}, "components": libraries,
            "dependencies": [{"ref": "shardinit", "dependsOn": [library["bom-ref"] for library in libraries]}]}
    print(json.dumps(bill, indent=1))


if len(sys.argv) != 2:
    sys.exit(__doc__)
main(sys.argv[1])
