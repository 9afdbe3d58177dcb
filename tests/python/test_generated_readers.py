"""The Python package reads untrusted folders: whatever their text files contain, it returns the original elements or
raises its own error, and needs no more memory than the folder's size."""

import copy
import functools
import hashlib
import json
import pathlib
import shutil
import tempfile

import numpy as np
from clients import bits_of, gen_ok
from generated import generated, given
from hypothesis import strategies as st
from support import AWKWARD, run_ok
from test_full_disk import SPEC

import shardinit

SCRATCH = tempfile.TemporaryDirectory()
NASTY = [None, True, False, 0, -1, 1, 2, 7, 2**31, 2**40, 2**63 - 1, 2**64, 1.5, 1e300, "", "x", "/etc/passwd", "../x",
         "a/b", "\x00",
         "f32", "f64", "bool", "ranks/rank-00000.h5", [], {}, [[]], [0], [-1], [2**62, 2**62], [1] * 70, {"": 0},
         "0" * 64]


@st.composite
def changes(draw):
    """Draws a change of a text: of its bytes, or of a place in its JSON that the numbers select."""
    if draw(st.booleans()):
        return {"at": draw(st.floats(0, 1)), "cut": draw(st.integers(0, 9)),
                "put": draw(st.sampled_from([b"", b"0", b"-", b"\xff", b"\x00", b"}", b"[", b'"', b"9" * 30,
                                             b"[" * 3000]))}
    return {"steps": draw(st.lists(st.integers(0, 40), min_size=1, max_size=7)), "put": draw(st.sampled_from(NASTY)),
            "drops": draw(st.sampled_from([False, False, True]))}


def changed(text, change):
    if "at" in change:
        at = int(change["at"] * len(text))
        return text[:at] + change["put"] + text[at + change["cut"]:]
    try:
        root = json.loads(text)
    except ValueError:
        return text + b"x"
    place, parent, key = root, None, None
    for step in change["steps"]:
        if not isinstance(place, (dict, list)) or not place:
            break
        parent, key = place, (list(place)[step % len(place)] if isinstance(place, dict) else step % len(place))
        place = parent[key]
    if parent is None:
        return json.dumps(change["put"]).encode()
    if change["drops"]:
        del parent[key]
    else:
        parent[key] = copy.deepcopy(change["put"])
    return json.dumps(root).encode()


def signed(record):
    """Returns the record with its digest on the last line."""
    try:
        of = json.loads(record)
        of.pop("sha256", None)
        lines = json.dumps(of)[:-1].encode() + b",\n"
    except (ValueError, AttributeError, RecursionError):
        lines = record[:record.rfind(b'\n "sha256": ') + 1]
    return lines + f' "sha256": "{hashlib.sha256(lines).hexdigest()}"\n}}\n'.encode()


@functools.cache
def folders():
    """Makes folders; returns their paths and elements by name."""
    folder = pathlib.Path(SCRATCH.name)
    for name in ("gen", "devices"):
        (folder / name).mkdir()
    (folder / "spec.yaml").write_text(SPEC)
    made = {"gen": gen_ok(AWKWARD, folder / "gen", "--mesh", "a=2,b=2")}
    made["devices"] = gen_ok(SPEC, folder / "devices", "--set", "mesh.devices=[5, 3]")
    for form in ("safetensors", "dcp", "zarr"):
        run_ok("export", "spec.yaml", "--to", form, "-o", form, cwd=folder)
        made[form] = folder / form
    elements = {}
    for name, path in made.items():
        with shardinit.open(path) as source:
            elements[name] = {tensor: bits_of(source.read(tensor)).copy() for tensor in source.tensors}
    return made, elements


def metadata_files(folder):
    """Returns the files that describe the elements' places."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")
                  if path.is_file() and (path.suffix in (".json", ".metadata")
                                             or path.name.startswith((".z", ".meta"))))


def cases():
    return st.fixed_dictionaries({"folder": st.sampled_from(["gen", "devices", "safetensors", "dcp", "zarr"]),
                                  "file": st.integers(0, 99), "change": changes(), "vouched": st.booleans()})


@generated(400)
@given(case=cases())
def test_readers_survive_generated_damage_of_metadata(case):
    made, elements = folders()
    source, wanted = made[case["folder"]], elements[case["folder"]]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "in"
        shutil.copytree(source, folder)
        names = metadata_files(folder)
        path = folder / names[case["file"] % len(names)]
        before = path.read_bytes()
        after = changed(before, case["change"])
        path.write_bytes(after)
        manifest = folder / "manifest.json"
        is_root = path.name in ("manifest.json", "shardinit-export.json")
        if case["vouched"] and not is_root and manifest.exists():
            # The manifest vouches for the changed text, as it can if the attacker can write the folder.
            old, new = (hashlib.sha256(text).hexdigest().encode() for text in (before, after))
            manifest.write_bytes(manifest.read_bytes().replace(old, new))
        elif case["vouched"] and path.name == "shardinit-export.json":
            path.write_bytes(signed(after))
        size = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
        try:
            with shardinit.open(folder) as opened:
                for tensor in list(opened.tensors):
                    info = opened.tensors[tensor]
                    bits = bits_of(opened.read(tensor, verify=True))
                    held = wanted.get(tensor)
                    same = held is not None and bits.dtype == held.dtype and np.array_equal(bits, held)
                    # The folder's owner may choose any elements that its files contain.
                    assert same or is_root or case["vouched"], (tensor, info)
                    assert same or bits.nbytes <= size, (tensor, info)
        except shardinit.ShardinitError as error:
            assert str(error) and "\x00" not in str(error)
