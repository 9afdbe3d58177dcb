"""Each device gets the same place as in JAX, MaxText and torchprime, also when folders are changed later."""

import itertools
import json
import math
import random
from dataclasses import dataclass

import numpy as np
import pytest

from stopping import Stopped
from support import run_json, run_ok, run_tool, tree_of

SPEC = """shardinit: 1
name: m
dtype: f32
uneven: chunk
mesh: {}
rules: [{{e: fsdp}}]
modules: {{w: {{shape: [1024], axes: [e], init: {{normal: {{std: 1}}}}}}}}
"""


def write(folder, mesh, name="spec.yaml"):
    path = folder / name
    path.write_text(SPEC.format(mesh))
    return path


def planned_devices(folder, mesh):
    """Returns the list of `plan --devices` and checks that coordinates are in row-major order."""
    plan = run_json("plan", write(folder, mesh), "--devices")
    devices, shape = plan["devices"], plan["mesh"]["shape"]
    assert [d["coordinate"] for d in devices] == [list(c) for c in np.ndindex(*shape)]
    assert [d["rank"] for d in devices] == list(range(math.prod(shape)))
    return devices


def device_ids(folder, mesh):
    return np.array([d["id"] for d in planned_devices(folder, mesh)])


def device_rows(folder, width, mesh):
    return device_ids(folder, mesh).reshape(-1, width).tolist()


# Rings with known rows.


def test_hybrid_ring_64x4_orders_devices_in_rings_of_four(tmp_path):
    rows = device_rows(tmp_path, 4, "{axes: {fsdp: 64, tensor: 4}, devices: hybrid_ring_64x4}")
    assert len(rows) == 64
    assert [rows[r] for r in (0, 1, 2, 8, 63)] == [
        [0, 1, 17, 16], [2, 3, 19, 18], [4, 5, 21, 20], [32, 33, 49, 48], [238, 239, 255, 254]]


def test_hybrid_ring_32x8_orders_devices_in_rings_of_eight(tmp_path):
    rows = device_rows(tmp_path, 8, "{axes: {fsdp: 32, tensor: 8}, devices: hybrid_ring_32x8}")
    assert len(rows) == 32
    assert [rows[r] for r in (0, 1, 4, 31)] == [
        [0, 1, 2, 3, 19, 18, 17, 16], [4, 5, 6, 7, 23, 22, 21, 20],
        [32, 33, 34, 35, 51, 50, 49, 48], [236, 237, 238, 239, 255, 254, 253, 252]]


TWO = "{{axes: {{fsdp: 128, tensor: 4}}, slices: {{fsdp: 2}}, devices: hybrid_ring_64x4{}}}"


@pytest.mark.parametrize("order", ["", ", slice_order: outer"])
def test_outer_slices_match_maxtext(tmp_path, order):
    devices = planned_devices(tmp_path, TWO.format(order))
    rows = np.array([d["id"] for d in devices]).reshape(128, 4).tolist()
    assert rows[:2] == [[0, 1, 17, 16], [2, 3, 19, 18]]
    assert rows[64:66] == [[256, 257, 273, 272], [258, 259, 275, 274]]
    assert [d["slice"] for d in devices] == [0] * 256 + [1] * 256
    assert devices[5] == {"id": 3, "slice": 0, "coordinate": [1, 1], "rank": 5}


def test_inner_slices_match_torchprime(tmp_path):
    devices = planned_devices(tmp_path, TWO.format(", slice_order: inner"))
    rows = np.array([d["id"] for d in devices]).reshape(128, 4).tolist()
    assert rows[:4] == [
        [0, 1, 17, 16], [256, 257, 273, 272], [2, 3, 19, 18], [258, 259, 275, 274]]
    assert [d["slice"] for d in devices] == [0, 0, 0, 0, 1, 1, 1, 1] * 64


@pytest.mark.parametrize("axes", ["{fsdp: 8}", "{fsdp: 2, tensor: 4}", "{fsdp: 1, tensor: 8}"])
def test_tray_ring_goes_around_the_tray(tmp_path, axes):
    ids = device_ids(tmp_path, f"{{axes: {axes}, devices: tray_ring}}")
    assert ids.tolist() == [0, 1, 2, 3, 7, 6, 5, 4]


def test_devices_default_to_rank_numbers(tmp_path):
    devices = planned_devices(tmp_path, "{axes: {fsdp: 4, tensor: 2}}")
    assert [(d["id"], d["slice"]) for d in devices] == [(i, 0) for i in range(8)]


# Comparisons with the functions that trainers call.


@dataclass(frozen=True)
class Tpu:
    """A device in a slice of `grid` chips, with the attributes that JAX reads."""

    id: int
    slice_index: int
    coords: tuple
    device_kind: str = "TPU v6 lite"
    platform: str = "tpu"
    core_on_chip: int = 0
    process_index: int = 0


def fake_devices(count, columns, rows, **kind):
    """Yields devices with row-major ids in each slice; x is the column."""
    for s, y, x in itertools.product(range(count), range(rows), range(columns)):
        yield Tpu((s * rows + y) * columns + x, s, (x, y, 0), **kind)


def inner(ids, places, parts):
    """Reorders `ids` of consecutive slices so that slices are innermost within each axis."""
    split = ids.reshape([n for s, m in zip(parts, places) for n in (s, m)])
    order = [d for a in range(len(parts)) for d in (2 * a + 1, 2 * a)]
    return split.transpose(order).reshape(ids.shape)


def factors(rng, number, count):
    sizes = [1] * count
    for prime in (2, 3, 5, 7):
        while number % prime == 0:
            number //= prime
            sizes[rng.randrange(count)] *= prime
    return sizes


def mesh_text(names, places, parts, order, devices):
    axes = ", ".join(f"{n}: {s * m}" for n, s, m in zip(names, parts, places))
    slices = ", ".join(f"{n}: {s}" for n, s in zip(names, parts) if s > 1)
    return (f"{{axes: {{{axes}}}, slices: {{{slices}}}, slice_order: {order}, "
            f"devices: {devices}}}")


def test_random_meshes_match_jax(tmp_path):
    mesh_utils = pytest.importorskip("jax.experimental.mesh_utils")
    rng = random.Random(7)
    for _ in range(40):
        count, slices, size = rng.randint(1, 4), rng.choice([1, 2, 3, 4, 6]), rng.choice([1, 4, 6, 8, 30])
        places, parts = factors(rng, size, count), factors(rng, slices, count)
        devices = list(fake_devices(slices, size, 1, platform="gpu", device_kind="H100"))
        rng.shuffle(devices)
        wanted = mesh_utils.create_hybrid_device_mesh(places, parts, devices)
        ids = np.vectorize(lambda d: d.id)(wanted)
        names = ["fsdp", "tensor", "expert", "context"][:count]
        for order, expected in [("outer", ids), ("inner", inner(ids, places, parts))]:
            found = planned_devices(tmp_path, mesh_text(names, places, parts, order, "row_major"))
            assert [d["id"] for d in found] == expected.ravel().tolist()
            assert [d["slice"] for d in found] == (expected // size).ravel().tolist()


@pytest.mark.parametrize("kind", ["TPU v5 lite", "TPU v6 lite"])
def test_tray_rings_match_jax(tmp_path, kind):
    mesh_utils = pytest.importorskip("jax.experimental.mesh_utils")
    rng = random.Random(8)
    for _ in range(12):
        slices = rng.choice([1, 2, 4])
        places, parts = factors(rng, 8, 2), factors(rng, slices, 2)
        devices = list(fake_devices(slices, 4, 2, device_kind=kind))
        wanted = mesh_utils.create_hybrid_device_mesh(places, parts, devices)
        found = device_ids(tmp_path, mesh_text(["fsdp", "tensor"], places, parts, "outer", "tray_ring"))
        assert found.tolist() == [d.id for d in wanted.ravel()]


def make_rings(grid, width):
    """Returns the rings of MaxText's reshape_mesh_to_rings for 64x4 (width 2) and 32x8 (width 4)."""
    rings = []
    for i, j in itertools.product(range(0, 16, 2), range(0, 16, width)):
        rings.append([*grid[i, j : j + width], *grid[i + 1, j : j + width][::-1]])
    return np.array(rings)


@pytest.mark.parametrize(("width", "sizes"), [(2, (64, 4)), (4, (32, 8))])
def test_hybrid_rings_match_maxtext_and_torchprime(tmp_path, width, sizes):
    """Rings equal those built on JAX's own 16 x 16 mesh of a slice: joined by np.block, or hierarchical by swapping
    axes."""
    mesh_utils = pytest.importorskip("jax.experimental.mesh_utils")
    rng = random.Random(9)
    names = ["data", "fsdp", "tensor"]
    for _ in range(8):
        slices = rng.choice([1, 2, 4])
        places, parts = [1, *sizes], factors(rng, slices, 3)
        if rng.random() < 0.3:
            places = [sizes[0], 1, sizes[1]]
        devices = list(fake_devices(slices, 16, 16, device_kind="TPU v4"))
        blocks = np.empty(slices, object)
        for s in range(slices):
            grid = mesh_utils.create_device_mesh([16, 16], devices[s * 256 : (s + 1) * 256])
            ids = np.vectorize(lambda d: d.id)(grid)
            blocks[s] = make_rings(ids, width).reshape(places)
        ids = np.block(blocks.reshape(parts).tolist())
        name = f"hybrid_ring_{sizes[0]}x{sizes[1]}"
        for order, expected in [("outer", ids), ("inner", inner(ids, places, parts))]:
            found = device_ids(tmp_path, mesh_text(names, places, parts, order, name))
            assert found.tolist() == expected.ravel().tolist()


# Lists.


@pytest.mark.parametrize("text", [
    "5 3\n9 131072\n", "[[5, 3], [9, 131072]]", "# by hand\r\n5,3, # first\r\n\n9,\t131072"])
def test_devices_may_be_listed_in_a_file(tmp_path, text):
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/ids.txt").write_bytes(text.encode())
    mesh = "{axes: {fsdp: 2, tensor: 2}, devices: lists/ids.txt}"
    assert device_ids(tmp_path, mesh).tolist() == [5, 3, 9, 131072]
    assert device_ids(tmp_path, mesh.replace("lists/ids.txt", "[[5, 3], [9, 131072]]")).tolist() == [
        5, 3, 9, 131072]
    # The path is relative to the file that contains it, also if another file includes that file.
    write(tmp_path, mesh, "base.yaml")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/spec.yaml").write_text("shardinit: 1\ninclude: ../base.yaml\n")
    plan = run_json("plan", tmp_path / "sub/spec.yaml", "--devices")
    assert [d["id"] for d in plan["devices"]] == [5, 3, 9, 131072]


def test_slice_of_a_listed_device_follows_its_position(tmp_path):
    mesh = "{axes: {fsdp: 4}, slices: {fsdp: 2}, slice_order: inner, devices: [3, 1, 2, 0]}"
    assert [(d["id"], d["slice"]) for d in planned_devices(tmp_path, mesh)] == [
        (3, 0), (1, 1), (2, 0), (0, 1)]


def test_set_overrides_mesh_devices(tmp_path):
    spec = write(tmp_path, "{axes: {fsdp: 8}, devices: tray_ring}")
    plain = run_json("plan", spec, "--devices", "--set", "mesh.devices=row_major")
    assert [d["id"] for d in plain["devices"]] == list(range(8))
    plan = run_json("plan", spec, "--devices", "--mesh", "fsdp=2", "--set", "mesh.devices=[7, 4]")
    assert [d["id"] for d in plan["devices"]] == [7, 4]


# Mistakes.


# A `^` marks the reported position in the spec, if there is one.
@pytest.mark.parametrize(("mesh", "place", "message", "hint"), [
    ("{axes: {fsdp: 8}, slices: {^fsdp: 3}}", "",
     "3 slices do not divide mesh axis `fsdp` (8)", "each slice has the same number"),
    ("{axes: {fsdp: 8}, slices: {^fsd: 2}}", "",
     "unknown mesh axis `fsd`", "did you mean `fsdp`?"),
    ("{axes: {fsdp: 8}, slices: {fsdp: ^0}}", "",
     "slices of `fsdp` must be between 1 and", ""),
    ("{axes: {fsdp: 8}, slices: ^2}", "",
     "`slices` must be a mapping, not `2`", ""),
    ("{axes: {fsdp: 8}, slice_order: ^dcn}", "",
     "`slice_order` must be `outer` or `inner`, not `dcn`", ""),
    ("{axes: {fsdp: 32, tensor: 4}, devices: ^hybrid_ring_64x4}", "",
     "`hybrid_ring_64x4` needs slices of 256 devices, 64 x 4, but this mesh has slices of 128 "
     "(fsdp=32, tensor=4)", "`slices` is the number"),
    ("{axes: {fsdp: 32, tensor: 8}, devices: ^hybrid_ring_64x4}", "",
     "64 x 4, but this mesh has slices of 256 (fsdp=32, tensor=8)", "must be these two"),
    ("{axes: {fsdp: 64, tensor: 8}, slices: {tensor: 2}, devices: ^hybrid_ring_32x8}", "",
     "32 x 8, but this mesh has slices of 256 (fsdp=64, tensor=4)", "must be these two"),
    ("{axes: {fsdp: 16}, devices: ^tray_ring}", "",
     "`tray_ring` needs slices of 8 devices, but this mesh has slices of 16 (fsdp=16)", "`slices`"),
    ("{axes: {fsdp: 8}, devices: ^tray}", "",
     "unknown order of devices `tray`",
     "did you mean `tray_ring`?"),
    ("{axes: {fsdp: 8}, devices: ^circle}", "",
     "unknown order of devices `circle`",
     "the name of a file has a `.` or a `/`"),
    ("{axes: {fsdp: 8}, devices: ^3}", "",
     "`devices` must be an order, a list of ids or a file", ""),
    ("{axes: {fsdp: 4}, devices: ^[0, 1, 2]}", "",
     "`devices` lists 3 devices, but the mesh has 4 ranks", "row-major order"),
    ("{axes: {fsdp: 2}, devices: [0, 1, ^2]}", "",
     "`devices` lists 3 devices, but the mesh has 2 ranks", "row-major order"),
    ("{axes: {fsdp: 4}, devices: [0, 1, ^1, 2]}", "",
     "device 1 is at two places", ""),
    ("{axes: {fsdp: 2}, devices: [0, ^-1]}", "",
     "a device is a number, not `-1`",
     "from 0 to 2147483647"),
    ("{axes: {fsdp: 2}, devices: [0, ^2147483648]}", "",
     "a device is a number, not `2147483648`", "from 0 to 2147483647"),
    ("{axes: {fsdp: 2}, devices: ^[]}", "",
     "`devices` is empty", ""),
    ("{axes: {fsdp: 2}, devices: ^no.txt}", "",
     "there is no file", "relative to the file"),
    ("{axes: {fsdp: 2}, devices: bad.txt}", "bad.txt:2:4", "`1x` is not the id of a device", "from 0 to"),
    ("{axes: {fsdp: 2}, devices: twice.txt}", "twice.txt:2:1", "device 4 is at two places", ""),
    ("{axes: {fsdp: 2}, devices: empty.txt}", "empty.txt", "the file lists no devices", ""),
    ("{axes: {fsdp: 2}, devices: ^binary.bin}", "",
     "is not text", ""),
])
def test_mesh_errors_name_their_position(tmp_path, mesh, place, message, hint):
    (tmp_path / "bad.txt").write_text("# two\n0, 1x\n")
    (tmp_path / "twice.txt").write_text("4\n4\n")
    (tmp_path / "empty.txt").write_text("# none\n")
    (tmp_path / "binary.bin").write_bytes(b"\x00\xff")
    if not place:
        place = f"spec.yaml:5:{len('mesh: ') + mesh.index('^') + 1}"
    result = run_tool("plan", write(tmp_path, mesh.replace("^", "")))
    assert result.returncode == 2
    first = result.stderr.splitlines()[0]
    assert f"{place}: error: " in first and message in first
    assert hint in result.stderr and result.stderr.count("error: ") == 1


# Devices in a folder.

RING = "{axes: {fsdp: 8, tensor: 1}, devices: tray_ring}"
PLAIN = "{axes: {fsdp: 8, tensor: 1}}"
OTHER = "{axes: {fsdp: 8, tensor: 1}, devices: [7, 6, 5, 4, 3, 2, 1, 0]}"


def changed(a, b):
    a, b = tree_of(a), tree_of(b)
    return {name for name in a.keys() | b.keys() if a.get(name) != b.get(name)}


def test_devices_change_only_devices_json_and_manifest(tmp_path):
    """Only devices.json and the manifest depend on devices, and specs may omit them."""
    run_ok("gen", write(tmp_path, RING), "-o", tmp_path / "ring")
    run_ok("gen", write(tmp_path, PLAIN), "-o", tmp_path / "plain")
    run_ok("gen", write(tmp_path, PLAIN[:-1] + ", slices: {fsdp: 1}, devices: row_major}"),
           "-o", tmp_path / "said")
    assert changed(tmp_path / "ring", tmp_path / "plain") == {"devices.json", "manifest.json"}
    assert not changed(tmp_path / "said", tmp_path / "plain")
    manifest = json.loads((tmp_path / "ring/manifest.json").read_text())
    assert manifest["devices"] == planned_devices(tmp_path, RING)
    del manifest["devices"]
    assert manifest == json.loads((tmp_path / "plain/manifest.json").read_text())
    run_ok("verify", tmp_path / "ring")


def test_set_adds_slices_and_devices_to_a_mesh(tmp_path):
    spec = write(tmp_path, "{axes: {fsdp: 4}}")
    plan = run_json("plan", spec, "--devices", "--set", "mesh.slices={fsdp: 2}", "--set", "mesh.devices=[3, 1, 2, 0]")
    assert [(d["id"], d["slice"]) for d in plan["devices"]] == [(3, 0), (1, 0), (2, 1), (0, 1)]
    result = run_tool("plan", spec, "--set", "mesh.slice={fsdp: 2}")
    assert result.returncode == 2 and "`mesh` has no key `slice`" in result.stderr


def test_gen_by_devices_and_finalize_without_the_spec(tmp_path):
    spec = write(tmp_path, RING)
    run_ok("gen", spec, "-o", tmp_path / "whole")
    run_ok("gen", spec, "-o", tmp_path / "parts", "--devices", "5,0-2")
    made = sorted(p.name for p in (tmp_path / "parts/ranks").glob("*.h5"))
    assert made == [f"rank-0000{r}.h5" for r in (0, 1, 2, 6)]
    run_ok("gen", spec, "-o", tmp_path / "parts", "--devices", "3-4,6-7")
    (tmp_path / "parts/manifest.json").unlink()
    run_ok("finalize", tmp_path / "parts")
    assert not changed(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.parametrize("asked", [
    "0-5,2-3", "3,0-5", "5,5", "2-3,0-5,4", "0-1,2-3", "4-7,0-4", "2-5,0,1-3", "6,4,2", "0-7,7"])
def test_overlapping_ranks_or_devices_count_once(tmp_path, asked):
    """Overlapping parts of a list count once, in any order, for ranks and for devices."""
    ends = [list(map(int, part.split("-"))) for part in asked.split(",")]
    numbers = sorted({number for end in ends for number in range(end[0], end[-1] + 1)})
    spec, ids = write(tmp_path, "{axes: {fsdp: 8}, devices: [3, 0, 7, 5, 1, 6, 2, 4]}"), [3, 0, 7, 5, 1, 6, 2, 4]
    for option, ranks in ("--ranks", numbers), ("--devices", [rank for rank in range(8) if ids[rank] in numbers]):
        folder = tmp_path / option[2:]
        assert run_json("gen", spec, "-o", folder, option, asked)["ranks_written"] == len(ranks)
        assert sorted(p.name for p in (folder / "ranks").glob("*.h5")) == [f"rank-{rank:05}.h5" for rank in ranks]


def test_changed_devices_rewrite_no_rank(tmp_path):
    folder = tmp_path / "folder"
    run_ok("gen", write(tmp_path, RING), "-o", folder)
    run_ok("gen", write(tmp_path, PLAIN), "-o", tmp_path / "plain")
    files = {p: p.stat().st_mtime_ns for p in (folder / "ranks").iterdir()}
    assert run_json("gen", write(tmp_path, PLAIN), "-o", folder)["ranks_written"] == 0
    assert not changed(folder, tmp_path / "plain")
    assert run_json("gen", write(tmp_path, RING), "-o", folder)["complete"]
    run_ok("verify", folder)
    assert files == {p: p.stat().st_mtime_ns for p in (folder / "ranks").iterdir()}


@pytest.mark.parametrize(("first", "second"), [(RING, PLAIN), (PLAIN, RING), (OTHER, RING)],
                         ids=["no devices", "devices", "other devices"])
def test_concurrent_runs_with_different_devices_leave_a_valid_checkpoint(first, second, tmp_path):
    """The first run has read devices.json and is about to rename its manifest. The second has no ranks to write; it
    writes devices.json, sees no manifest with other devices, and then finds one."""
    folder, wanted = tmp_path / "folder", tmp_path / "wanted"
    specs = []
    for name, mesh in (("first", first), ("second", second)):
        (tmp_path / name).mkdir()
        specs.append(write(tmp_path / name, mesh))
    run_ok("gen", specs[1], "-o", wanted)
    run_ok("gen", specs[0], "-o", folder)
    (folder / "manifest.json").unlink()
    late = Stopped(tmp_path, "rename", "manifest.json", "gen", specs[0], "-o", folder)
    early = Stopped(tmp_path, "fsync", "ranks", "gen", specs[1], "-o", folder)
    status, _, stderr = late.go()
    assert status == 4 and "another devices.json" in stderr
    status, _, stderr = early.go()
    assert status == 0, stderr
    run_ok("verify", folder)
    assert not changed(folder, wanted)


@pytest.mark.parametrize(("text", "message"), [
    (None, "devices.json: is missing, but the manifest lists devices"),
    ("{}", "devices.json: is damaged"),
    ("", "devices.json: is damaged"),
    ('{\n "format_version": 1,\n "slices": [3, 1],\n "slice_order": "outer",\n "devices": '
     '"row_major"\n}\n', "its slices do not divide the mesh axes"),
    ('{\n "format_version": 1,\n "slices": [1, 1],\n "slice_order": "outer",\n "devices": '
     '[0, 0, 1, 2, 3, 4, 5, 6]\n}\n', "it lists a device twice"),
    ('{\n "format_version": 1,\n "slices": [1, 1],\n "slice_order": "outer",\n "devices": '
     '"hybrid_ring_64x4"\n}\n', "needs slices of 256 devices"),
    ('{\n "format_version": 1,\n "slices": [2, 1],\n "slice_order": "outer",\n "devices": '
     '"row_major"\n}\n', "manifest.json: is damaged"),
])
def test_gen_repairs_a_damaged_devices_file(tmp_path, text, message):
    folder, spec = tmp_path / "folder", write(tmp_path, RING)
    run_ok("gen", spec, "-o", folder)
    before = tree_of(folder)
    (folder / "devices.json").unlink()
    if text is not None:
        (folder / "devices.json").write_text(text)
    found = run_tool("verify", folder)
    assert found.returncode == 1 and message in found.stderr
    damaged = tree_of(folder)
    finalized = run_tool("finalize", folder)
    assert finalized.returncode == 5 and "devices.json`" in finalized.stderr
    assert tree_of(folder) == damaged
    run_ok("gen", spec, "-o", folder, "--repair")
    assert tree_of(folder) == before


def test_finalize_keeps_devices(tmp_path):
    folder, spec = tmp_path / "folder", write(tmp_path, RING)
    run_ok("gen", spec, "-o", folder)
    manifest = (folder / "manifest.json").read_text()
    run_ok("finalize", folder, "--index", "never")
    assert json.loads((folder / "manifest.json").read_text())["devices"] == planned_devices(tmp_path, RING)
    (folder / "devices.json").unlink()
    result = run_tool("finalize", folder)
    assert result.returncode == 5 and "is missing, but the manifest lists devices" in result.stderr
    # Without a manifest nothing records that there were devices.
    (folder / "manifest.json").unlink()
    run_ok("finalize", folder)
    run_ok("gen", spec, "-o", folder)
    assert (folder / "manifest.json").read_text() == manifest
    # Here the manifest's devices are damaged, not the file's, but the tool cannot know which.
    (folder / "manifest.json").write_text(manifest.replace('"id": 5', '"id": 4'))
    result = run_tool("finalize", folder)
    assert result.returncode == 5 and "list different devices" in result.stderr
    run_ok("gen", spec, "-o", folder, "--repair")
    assert (folder / "manifest.json").read_text() == manifest


@pytest.mark.parametrize("command", ["finalize", "reshard"])
@pytest.mark.parametrize("make", [lambda p: p.mkdir(), lambda p: p.symlink_to("plan.json")])
def test_devices_json_must_be_a_regular_file(tmp_path, command, make):
    folder, spec = tmp_path / "folder", write(tmp_path, RING)
    run_ok("gen", spec, "-o", folder)
    (folder / "devices.json").unlink()
    make(folder / "devices.json")
    options = ["-o", tmp_path / "to"] if command == "reshard" else []
    result = run_tool(command, folder, *options)
    assert result.returncode == 5 and "devices.json` is not a file" in result.stderr
    assert not (tmp_path / "to").exists()


def test_devices_option_rejects_unknown_devices(tmp_path):
    spec = write(tmp_path, RING)
    for arguments, message in [
        (("--devices", "8"), "the mesh has no device 8"),
        (("--devices", "0-9"), "the mesh has no device 8"),
        (("--devices", "0,2-8"), "the mesh has no device 8"),
        (("--devices", "1,x"), "`1,x` is not a list of devices"),
        (("--devices", "4-2"), "`--devices 4-2`: 4 comes after 2"),
        (("--devices", "1", "--ranks", "1"), "`--ranks` and `--devices` both select"),
    ]:
        result = run_tool("gen", spec, "-o", tmp_path / "none", *arguments)
        assert result.returncode == 2 and message in result.stderr
    listed = write(tmp_path, "{axes: {fsdp: 2}, devices: [7, 100]}")
    for asked, missing in ("7-100", 8), ("7-8", 8), ("6-7", 6), ("7,99-100", 99), ("100,7,50", 50), ("101,7", 101):
        result = run_tool("gen", listed, "-o", tmp_path / "none", "--devices", asked)
        assert result.returncode == 2 and f"the mesh has no device {missing}\n" in result.stderr
    assert not (tmp_path / "none").exists()
    assert run_json("gen", listed, "-o", tmp_path / "one", "--devices", "100")["ranks_written"] == 1
    assert (tmp_path / "one/ranks/rank-00001.h5").exists()


def test_plan_prints_slices_and_coordinates(tmp_path):
    spec = write(tmp_path, "{axes: {fsdp: 4}, slices: {fsdp: 2}, devices: [3, 1, 2, 0]}")
    lines = [line.split() for line in run_ok("plan", spec, "--devices").stdout.splitlines()]
    assert lines[-7:] == [
        ["2", "slices", "of", "2", "devices"], [], ["device", "slice", "coordinate", "rank"],
        ["3", "0", "[0]", "0"], ["1", "0", "[1]", "1"], ["2", "1", "[2]", "2"], ["0", "1", "[3]", "3"]]
