"""Several runs of `convert --ranks` make one folder with the bytes of a single run. The folder has no name before all
ranks are there."""

import concurrent.futures
import json
import os
import re
import shutil

import pytest
from changing import changing, counted
from clients import client_of
from support import TINY, run_json, run_ok, run_tool, tree_of

torch = client_of("torch")
safetensors_torch = client_of("safetensors.torch")

FORMATS = {"safetensors": ["--max-shard-size", "3000"], "dcp": [], "zarr": [], "hdf5": []}
SPLIT = ["--sharding", "fsdpv2", "--mesh", "fsdp=8"]


def source(folder):
    folder.mkdir()
    bits = torch.Generator().manual_seed(7)
    state = {f"layers.{i}.w": torch.randint(0, 256, (24, 10 + i), generator=bits, dtype=torch.int32) for i in range(7)}
    safetensors_torch.save_file({**state, "b": torch.arange(5.0)}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("form", FORMATS)
def test_convert_in_eight_runs_equals_one_run(tmp_path, form):
    folder = source(tmp_path / "in")
    arguments = ["convert", folder, "--to", form, *FORMATS[form], *SPLIT]
    run_ok(*arguments, "-o", tmp_path / "one")
    out, parts = tmp_path / "out", tmp_path / "out.parts"
    for rank in [3, 0, 7, 1, 2, 6, 5]:
        result = run_ok(*arguments, "-o", out, "--ranks", rank)
        assert "unfinished" in result.stdout and not out.exists() and parts.is_dir()
    # A rank that is there is not made again.
    before = {f: f.stat().st_mtime_ns for f in (parts / "files").rglob("*") if f.is_file()}
    assert "unfinished" in run_ok(*arguments, "-o", out, "--ranks", "0-3").stdout
    assert before == {f: f.stat().st_mtime_ns for f in before}
    # Nothing treats it as a checkpoint or an export.
    assert run_tool("verify", parts / "files").returncode != 0
    run_ok(*arguments, "-o", out, "--ranks", "4")
    assert tree_of(out) == tree_of(tmp_path / "one") and not parts.exists()
    assert "was there already" in run_tool(*arguments, "-o", out, "--ranks", "2").stderr
    assert tree_of(out) == tree_of(tmp_path / "one") and not parts.exists()
    run_ok("verify", out)


def test_thousands_of_tensors_get_a_sharding(tmp_path):
    (tmp_path / "in").mkdir()
    safetensors_torch.save_file({f"layers.{i}.mlp.experts.weight": torch.full((2, 4), i) for i in range(3000)},
                                tmp_path / "in/model.safetensors")
    run_ok("convert", tmp_path / "in", "--to", "dcp", *SPLIT[:2], "--mesh", "fsdp=2", "-o", tmp_path / "out")
    assert run_tool("diff", tmp_path / "in", tmp_path / "out", "--values").returncode == 0


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("count", [3, 11])
def test_convert_by_parts_equals_one_run(tmp_path, form, count):
    """Parts make the folder of a single run, even if some of eleven parts of eight ranks have nothing to do."""
    arguments = ["convert", source(tmp_path / "in"), "--to", form, *FORMATS[form], *SPLIT]
    run_ok(*arguments, "-o", tmp_path / "one")
    for part in range(count):
        said = run_ok(*arguments, "-o", tmp_path / "out", "--part", f"{part}/{count}").stderr
        assert (tmp_path / "out").exists() or "was there already" not in said
        assert part > 0 or not (tmp_path / "out").exists()
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "one")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "one", "out"]


WIDE = """
shardinit: 1
name: wide
dtype: f32
mesh: {axes: {fsdp: 16}}
modules: {w: {shape: [16, 32, 12288], shard: [null, null, null], init: zeros}}
layouts: {halves: {low: {from: {slice: {axis: 1, start: 0, stop: 16, of: w}}},
                   high: {from: {slice: {axis: 1, start: 16, stop: 32, of: w}}}}}
"""


@pytest.mark.parametrize("layout", [[], ["--layout", "halves"]], ids=["same", "halves"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_convert_of_one_rank_reads_only_its_bytes(tmp_path, axis, layout):
    """One of 16 ranks reads only its rows or columns, in runs of 3 KiB or more."""
    folder, log = tmp_path / "in", tmp_path / "log"
    folder.mkdir()
    state = {"w": torch.arange(16 * 32 * 12288, dtype=torch.int32).view(16, 32, 12288)}
    safetensors_torch.save_file(state, folder / "model.safetensors")
    shard = ", ".join("fsdp" if d == axis else "null" for d in range(3))
    (tmp_path / "wide.yaml").write_text(WIDE.replace("null, null, null", shard))
    arguments = ["convert", folder, "--to", "hdf5", "--spec", tmp_path / "wide.yaml", "--from-layout", "hub", *layout]
    run_ok(*arguments, "-o", tmp_path / "one")
    run_ok(*arguments, "-o", tmp_path / "out", "--ranks", "11",
           wrap=["strace", "-f", "-y", "-qq", "-s", "0", "-e", "trace=pread64", "-o", log])
    (rank,) = (tmp_path / "out.parts").rglob("rank-*11.h5")
    (same,) = (tmp_path / "one").rglob(rank.name)
    assert rank.read_bytes() == same.read_bytes()
    sizes = [int(size) for size in re.findall(r"model\.safetensors>.*\) += (\d+)$", log.read_text(), re.M)]
    head = 4096  # and the header is read once or twice
    assert 0 <= sum(sizes) - 16 * 32 * 12288 * 4 // 16 <= head


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("is_there", [False, True], ids=["new", "empty"])
def test_eight_simultaneous_convert_runs_equal_one_run(tmp_path, form, is_there):
    """Eight simultaneous runs make the folder of a single run, also if an empty folder is already there."""
    folder = source(tmp_path / "in")
    if is_there:
        (tmp_path / "out").mkdir()
    arguments = ["convert", folder, "--to", form, *FORMATS[form], *SPLIT]
    run_ok(*arguments, "-o", tmp_path / "one")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(run_tool, *arguments, "-o", tmp_path / "out", "--ranks", rank, "-j", 1)
                for rank in range(8)]
        assert [run.result().returncode for run in runs] == [0] * 8, [run.result().stderr for run in runs]
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "one")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "one", "out"]


@pytest.mark.parametrize("form", FORMATS)
def test_convert_of_ranks_from_another_source_is_a_conflict(tmp_path, form):
    folder = source(tmp_path / "in")
    arguments = ["--to", form, *FORMATS[form], *SPLIT, "-o", tmp_path / "out"]
    run_ok("convert", folder, *arguments, "--ranks", "0-3")
    before = tree_of(tmp_path / "out.parts")
    # A copy with the same times is the same source.
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    result = run_tool("convert", other, *arguments, "--ranks", "4-7")
    assert result.returncode == 4 and "was started from another source" in result.stderr, result
    result = run_tool("convert", folder, *arguments, "--dtype", "bf16", "--ranks", "4-7")
    assert result.returncode == 4 and "with other options" in result.stderr, result
    assert tree_of(tmp_path / "out.parts") == before
    stat = (folder / "model.safetensors").stat()
    os.utime(other / "model.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.rename(tmp_path / "elsewhere")
    folder.rename(tmp_path / "gone")
    (tmp_path / "elsewhere").rename(folder)
    run_ok("convert", folder, *arguments, "--ranks", "4-7")
    run_ok("verify", tmp_path / "out")


@pytest.mark.parametrize("form", ["safetensors", "hdf5"])
def test_convert_detects_another_source_by_name_size_or_time(tmp_path, form):
    """A source counts as another if the name, the size or the time to the nanosecond of a file differs."""
    folder = source(tmp_path / "in")
    file = folder / "model.safetensors"
    time = 1_700_000_000 * 10**9 + 500_000_000
    os.utime(file, ns=(time, time))
    arguments = ["convert", folder, "--to", form, *FORMATS[form], *SPLIT, "-o", tmp_path / "out"]
    run_ok(*arguments, "--ranks", "0-3")
    data, other = file.read_bytes(), folder / "other.safetensors"
    header = int.from_bytes(data[:8], "little")
    longer = (header + 8).to_bytes(8, "little") + data[8:8 + header] + b" " * 8 + data[8 + header:]
    changes = (longer, time, file), (data, time + 1, file), (data, time + 10**9, file), (data, time, other)
    for content, at, name in changes:
        file.unlink()
        name.write_bytes(content)
        os.utime(name, ns=(time, at))
        result = run_tool(*arguments, "--ranks", "4-7")
        assert result.returncode == 4 and "was started from another source" in result.stderr, (name, at, result)
        name.rename(file)
    file.write_bytes(data)
    os.utime(file, ns=(time, time))
    run_ok(*arguments, "--ranks", "4-7")
    run_ok("verify", tmp_path / "out")


@pytest.mark.faults
def test_convert_does_not_resume_from_a_changed_source(tmp_path):
    """A killed run is not resumed from a changed source, even if the file changed in place and within a second."""
    folder = source(tmp_path / "in")
    file = folder / "model.safetensors"
    os.utime(file, ns=(10**18, 10**18))
    arguments = ["convert", folder, "--to", "hdf5", *SPLIT, "-o", tmp_path / "out"]
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e",
              "inject=fdatasync:signal=KILL:when=3"]

    def killed():
        assert run_tool(*arguments, wrap=strace).returncode != 0 and not (tmp_path / "out").exists()
        return {path.name for path in tmp_path.glob(".out.part-*")}

    first = killed()
    assert len(first) == 1 and killed() == first
    for time in (10**18 + 1, 10**18 + 999_999_999, 10**18 + 10**9):
        with open(file, "r+b") as out:
            out.seek(-1, os.SEEK_END)
            out.write(bytes([time % 251]))
        os.utime(file, ns=(10**18, time))
        assert killed() - first, time
        for path in tmp_path.glob(".out.part-*"):
            if path.name not in first:
                shutil.rmtree(path)
    run_ok(*arguments)
    run_ok("diff", folder, tmp_path / "out", "--values")


@pytest.mark.faults
@pytest.mark.parametrize("form", FORMATS)
def test_convert_of_ranks_resumes_after_sigkill(tmp_path, form):
    """The same command finishes the work of a killed run, wherever that was killed."""
    folder = source(tmp_path / "in")
    arguments = ["convert", folder, "--to", form, *FORMATS[form], *SPLIT, "-j", 1]
    run_ok(*arguments, "-o", tmp_path / "one")
    run_ok(*arguments, "-o", tmp_path / "two", "--ranks", "0-3")
    count = tmp_path / "count"
    run_ok(*arguments, "-o", tmp_path / "two", "--ranks", "4-7", env=changing(folder, count=count))
    steps = counted(count)[1]
    for kill in sorted({1, 2, 3, steps // 2, steps - 2, steps - 1, steps}):
        out = tmp_path / f"out-{kill}"
        run_ok(*arguments, "-o", out, "--ranks", "0-3")
        assert run_tool(*arguments, "-o", out, "--ranks", "4-7", env=changing(folder, kill=kill)).returncode < 0
        run_ok(*arguments, "-o", out, "--ranks", "4-7")
        assert tree_of(out) == tree_of(tmp_path / "one"), kill
        assert not (tmp_path / f"out-{kill}.parts").exists(), kill


def test_convert_counts_ranks_without_files_as_missing(tmp_path):
    folder = source(tmp_path / "in")
    arguments = ["convert", folder, "--to", "dcp", *SPLIT, "-o", tmp_path / "out"]
    assert run_tool(*arguments, "--ranks", "8").returncode == 2
    report = json.loads(run_ok(*arguments, "--ranks", "1,3", "--json").stdout)
    assert report["missing_ranks"] == [0, 2, 4, 5, 6, 7]
    # A receipt counts only if its files exist.
    run_ok(*arguments, "--ranks", "0,2,4-6")
    next(f for f in sorted((tmp_path / "out.parts/files").iterdir())).unlink()
    assert "unfinished: 1 rank is missing" in run_ok(*arguments, "--ranks", "7").stdout
    assert not (tmp_path / "out").exists()
    run_ok(*arguments, "--ranks", "0-7")
    run_ok("verify", tmp_path / "out")


@pytest.mark.parametrize("form", FORMATS)
def test_convert_json_reports_missing_ranks(tmp_path, form):
    """In JSON reports of all or some ranks, `was_there` is true only if nothing at all was left to do."""
    folder = source(tmp_path / "in")
    arguments = ["convert", folder, "--to", form, *FORMATS[form], *SPLIT, "-o"]
    report = run_json(*arguments, tmp_path / "one")
    assert report.pop("seconds") > 0 and report.pop("name") == "in" and report.pop("folder") == str(tmp_path / "one")
    bytes_of_all = 7 * 24 * 4 * 13 + 5 * 4
    assert report.pop("files") >= 1
    assert report == {"format": form, "tensors": 8, "bytes": bytes_of_all, "was_there": False}
    assert run_json(*arguments, tmp_path / "one")["was_there"]
    some = [*arguments, tmp_path / "out", "--ranks"]
    is_own = form == "hdf5"
    missing = {"complete": False} if is_own else {"missing_ranks": [0, 2, 4, 5, 6, 7]}
    for _ in range(2):  # The second run has nothing to do, but the folder is not there.
        report = run_json(*some, "1,3")
        assert not report["was_there"] and report.items() >= missing.items(), report
    last = run_json(*some, "0,2,4-7")
    there = {"complete": True} if is_own else {"missing_ranks": []}
    assert not last["was_there"] and last.items() >= there.items(), last
    again = run_json(*some, "0")
    assert again["was_there"] and again["bytes"] == bytes_of_all and again.items() >= there.items(), again


def test_convert_and_reshard_write_files_for_empty_ranks(tmp_path):
    """Ranks whose elements are all stored elsewhere still get files, and a run reports that."""
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {t: 2}}\n"
                                        "modules: {w: {shape: [6], init: ones}}\n")
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "in")
    for command in ["convert", "--to", "hdf5"], ["reshard"]:
        run = [command[0], tmp_path / "in", *command[1:], "-o", tmp_path / command[0], "--ranks"]
        assert "unfinished" in run_ok(*run, "0").stdout
        done = run_ok(*run, "1")
        assert "unfinished" not in done.stdout and "was there already" not in done.stderr, done
        assert "nothing was left" not in done.stderr and " 0 B in " in done.stderr, done
        again = run_ok(*run, "1").stderr
        assert "was there already" in again or "nothing was left" in again
    report = run_json("convert", tmp_path / "in", "--to", "hdf5", "-o", tmp_path / "out", "--ranks", "0")
    assert (report["was_there"], report["complete"]) == (False, False)
    report = run_json("convert", tmp_path / "in", "--to", "hdf5", "-o", tmp_path / "out", "--ranks", "1")
    assert (report["was_there"], report["complete"]) == (False, True)


@pytest.mark.parametrize("form", FORMATS)
def test_convert_leaves_a_foreign_parts_folder_alone(tmp_path, form):
    arguments = ["convert", source(tmp_path / "in"), "--to", form, *FORMATS[form], *SPLIT, "-o", tmp_path / "out",
                 "--ranks"]
    parts = tmp_path / "out.parts"
    for name in ("mine", "files/other"):
        (parts / name).parent.mkdir(parents=True, exist_ok=True)
        (parts / name).write_text("hi\n")
        result = run_tool(*arguments, "0-7")
        assert result.returncode == 4 and "does not come from a run that makes parts" in result.stderr, result
        assert (parts / name).read_text() == "hi\n" and not (tmp_path / "out").exists()
        shutil.rmtree(parts)
    (tmp_path / "elsewhere").mkdir()
    parts.symlink_to("elsewhere")
    result = run_tool(*arguments, "0-7")
    assert result.returncode == 4 and parts.is_symlink() and not list((tmp_path / "elsewhere").iterdir()), result
    # A run that has nothing to do does not touch it, either.
    parts.unlink()
    run_ok(*arguments, "0-7")
    parts.symlink_to("elsewhere")
    assert "was there already" in run_ok(*arguments, "0-7").stderr and parts.is_symlink()


def test_mesh_of_a_shipped_spec_cuts_only_if_asked(tmp_path):
    run_ok("export", "llama3-tiny", "--to", "safetensors", "-o", tmp_path / "in")
    for number, (options, ranks) in enumerate([([], 1), (["--mesh", "fsdp=2"], 2), (["--sharding", "fsdpv2"], 8),
                                               (["--set", "mesh.axes.fsdp=4"], 8)]):
        out = tmp_path / f"out{number}"
        run_ok("convert", tmp_path / "in", "--to", "dcp", "--spec", "llama3-tiny", "-o", out, *options)
        assert len(list(out.glob("*.distcp"))) == ranks
    run_ok("convert", tmp_path / "in", "--to", "dcp", "--spec", TINY, "-o", tmp_path / "file")
    assert len(list((tmp_path / "file").glob("*.distcp"))) == 4
