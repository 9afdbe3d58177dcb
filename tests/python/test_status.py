"""`status` while a checkpoint is made: progress, stuck ranks, and metrics."""

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support import BINARY, CLEAN, run_json, run_ok, run_tool
from terminal import Terminal

SPEC = """
shardinit: 1
name: status
dtype: f32
mesh: {axes: {a: 4}}
rules: [{rows: a}]
modules:
  w: {shape: [4096, 64], axes: [rows, null], init: {normal: {std: 1}}}
  v: {shape: [8, 8], axes: [null, null], init: zeros}
"""
LARGE = SPEC.replace("4096", "4194304")  # a gigabyte: no run finishes it before it is stopped
BYTES = 4096 * 64 * 4 + 8 * 8 * 4


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path / "spec.yaml"


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)
    return found


@pytest.fixture
def stopped(tmp_path):
    """A run that is stopped while it makes rank 2, after rank 0 is complete."""
    (tmp_path / "large.yaml").write_text(LARGE)
    out = tmp_path / "out"
    run_ok("gen", tmp_path / "large.yaml", "-o", out, "--ranks", "0")
    run = subprocess.Popen([BINARY, "gen", tmp_path / "large.yaml", "-o", out, "--ranks", "2", "-j", "1"], env=CLEAN,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: [f for f in os.listdir(out / "ranks") if "rank-00002.h5" in f])
    run.send_signal(signal.SIGSTOP)
    yield out
    run.kill()
    run.wait()


def test_status_counts_no_bytes_without_receipts(spec, tmp_path):
    out = tmp_path / "out"
    run_ok("gen", spec, "-o", out, "--ranks", "1")
    (out / "ranks/rank-00001.json").unlink()
    status = run_json("status", out)
    assert (status["ranks_done"], status["bytes_done"], status["missing_ranks"]) == (0, 0, "0-3")


def test_status_counts_bytes(spec, tmp_path):
    run_ok("gen", spec, "-o", tmp_path / "out", "--ranks", "1-2")
    status = run_json("status", tmp_path / "out")
    assert (status["bytes"], status["bytes_done"]) == (BYTES,
                                                       BYTES // 2 - 128) and status["unfinished"] == status["stuck"] == []
    assert "bytes_per_second" not in status
    run_ok("gen", spec, "-o", tmp_path / "out")
    status = run_json("status", tmp_path / "out")
    assert status["bytes"] == status["bytes_done"] == BYTES


def test_status_reports_a_stuck_rank(stopped):
    out = stopped
    status = run_json("status", out, "--stuck", "0.5")
    assert [each["rank"] for each in status["unfinished"]] == [2] and 0 <= status["unfinished"][0]["age"] < 60
    wait_for(lambda: run_json("status", out, "--stuck", "0.5")["stuck"] == [2])
    assert run_json("status", out)["stuck"] == []  # the default is five minutes
    before = time.time()
    partial = next(out.glob("ranks/*rank-00002.h5*"))
    os.utime(partial, (before - 723, before - 723))
    assert "1 rank is stuck: 2 since 12:0" in run_ok("status", out).stdout
    assert 722 < run_json("status", out)["unfinished"][0]["age"] < 800
    # Files with similar names are not temporary files of a rank.
    for name in ("rank-00002.json", "rank-2.h5", "rank-000002.h5", "rank-00002.h5.json", "share-00002",
                 "trunk-00002.h5"):
        (out / f"ranks/.{name}.tmp-{'0' * 16}-{'1' * 16}").touch()
    (out / "ranks/rank-00002.h5.old").touch()
    assert 722 < run_json("status", out)["unfinished"][0]["age"] < 800
    # If a clock is ahead, the age is 0, not negative.
    os.utime(partial, (before + 1000, before + 1000))
    assert run_json("status", out)["unfinished"] == [{"rank": 2, "age": 0}]
    # Another run makes the rank, and the first run's temporary file no longer counts.
    run_ok("gen", out.parent / "large.yaml", "-o", out, "--ranks", "2")
    assert run_json("status", out)["unfinished"] == []


def test_status_sorts_stuck_ranks_by_age(stopped, spec, tmp_path):
    """Ranks are sorted with the oldest first, and text output lists five."""
    name = next(stopped.glob("ranks/*rank-00002.h5*")).name
    out = tmp_path / "many"
    run_ok("gen", spec, "--mesh", "a=64", "-o", out, "--ranks", "0")
    now = time.time()
    for rank in range(1, 10):
        left_over = out / "ranks" / name.replace("00002", f"{rank:05}")
        left_over.touch()
        os.utime(left_over, (now - 3600 * rank, now - 3600 * rank))
    # If several runs made one rank, the latest counts, wherever the folder lists it.
    for number in range(10):
        another = out / "ranks" / (name.replace("00002", "00009")[:-4] + f"000{number}")
        another.touch()
        if number != 4:
            os.utime(another, (now - 3600 * number, now - 3600 * number - 400))
    # The first file belongs to a complete rank, the second to no rank.
    (out / "ranks" / name.replace("00002", "00000")).touch()
    (out / "ranks/.rank-00011.h5.tmp").touch()
    status = run_json("status", out)
    assert status["stuck"] == list(range(8, 0, -1)) and [each["rank"]
                                                         for each in status["unfinished"]] == list(range(1, 10))
    assert "8 ranks are stuck: 8 since 8:00 h, 7 since 7:00 h, 6 since 6:00 h, 5 since 5:00 h, 4 since 4:00 h, …\n" in run_ok("status", out).stdout
    for rank in 8, 7, 6:
        next(out.glob(f"ranks/*rank-{rank:05}.h5*")).unlink()
    assert run_ok("status", out).stdout.endswith(
        "\n5 ranks are stuck: 5 since 5:00 h, 4 since 4:00 h, 3 since 3:00 h, 2 since 2:00 h, 1 since 1:00 h\n")


def first_line(*words):
    """Returns the first line that `status --watch` prints."""
    with subprocess.Popen([BINARY, "status", *words, "--watch"], env=CLEAN, text=True, stdout=subprocess.PIPE) as watch:
        line = watch.stdout.readline()
        watch.kill()
    return line


@pytest.mark.parametrize("words, stuck", [((), [3, 1]), (("--stuck", "700"), [3]), (("--stuck", "1e4"), [])])
def test_all_formats_report_the_same_stuck_ranks(spec, tmp_path, words, stuck):
    out = tmp_path / "out"
    run_ok("gen", spec, "-o", out, "--ranks", "0")
    now = time.time()
    for rank, age in ((1, 430), (2, 5), (3, 910)):
        left_over = out / f"ranks/.rank-0000{rank}.h5.tmp-0123456789abcdef-000000000000000{rank}"
        left_over.touch()
        os.utime(left_over, (now - age, now - age))
    status, watched = run_json("status", out, *words), json.loads(first_line(out, *words, "--json"))
    for look in status, watched:
        assert look["stuck"] == stuck and [each["rank"] for each in look["unfinished"]] == [1, 2, 3]
        assert all(age <= each["age"] < age + 60 for each, age in zip(look["unfinished"], (430, 5, 910), strict=True))
    text, line = run_ok("status", out, *words).stdout, first_line(out, *words)
    said = (
        "" if not stuck else "2 ranks are stuck: 3 since 15:1" if len(stuck) == 2 else "1 rank is stuck: 3 since 15:1"
    )
    assert ("stuck" in text) == ("stuck" in line) == bool(stuck)
    assert f"missing: 1-3\n{said}" in text and line.startswith(
        "1 of 4 ranks, 262.4 kB of 1.0 MB" + ("; " * bool(stuck) + said)
    ), (text, line)
    assert (", 1 since 7:1" in text) == (", 1 since 7:1" in line) == (1 in stuck)
    metrics = parse_metrics(run_ok("status", out, *words, "--prometheus").stdout)
    assert list(metrics["shardinit_ranks_stuck"].values()) == [len(stuck)]
    written = {
        dict(labels)["rank"]: value for labels, value in metrics["shardinit_rank_written_timestamp_seconds"].items()
    }
    assert written == {str(rank): pytest.approx(now - age, abs=0.01) for rank, age in ((1, 430), (2, 5), (3, 910))}


def test_watch_lists_missing_parts(spec, tmp_path):
    """`--watch --missing-parts` lists the parts that are missing at each look."""
    out = tmp_path / "out"
    run_ok("gen", spec, "-o", out, "--ranks", "0-2")
    with subprocess.Popen(
        [BINARY, "status", out, "--watch", "--every", "0.1", "--json", "--missing-parts", "3"],
        env=CLEAN,
        text=True,
        stdout=subprocess.PIPE,
    ) as watch:
        looks = [json.loads(watch.stdout.readline())]
        run_ok("gen", spec, "-o", out)
        looks += map(json.loads, watch.stdout)
    expected = run_json("status", out, "--missing-parts", "3")
    assert looks[0]["missing_parts"] == "2" and looks[-1]["missing_parts"] == "" and looks[-1]["complete"]
    assert looks[0].keys() == looks[-1].keys() == expected.keys() | {"bytes_per_second", "seconds_left"}
    assert {name: looks[-1][name] for name in expected} == expected


def test_text_output_shortens_long_rank_lists(spec, tmp_path):
    """`finalize` lists the first twenty ranges of missing ranks, and `status` prints numbers with commas."""
    out = tmp_path / "out"
    run_ok("gen", spec, "--mesh", "a=4096", "-o", out, "--ranks", ",".join(map(str, range(1, 44, 2))))
    ranges = ",".join(map(str, range(0, 40, 2)))
    result = run_tool("finalize", out)
    assert result.returncode == 3, result
    assert f"4074 of 4096 ranks have no valid receipt: {ranges},…\n" in result.stderr, result
    said = run_ok("status", out).stdout
    assert f": 22 of 4,096 ranks are there, unfinished\nmissing: {ranges},40,42,44-4095\n" in said, said
    assert first_line(out).startswith("22 of 4,096 ranks, ")
    lacking = [rank for rank in range(4096) if rank > 43 or rank % 2 == 0]
    run_ok("gen", spec, "--mesh", "a=4096", "-o", out, "--ranks", ",".join(map(str, lacking[:1100])))
    assert first_line(out).startswith("1,122 of 4,096 ranks, ")


def test_watch_prints_json_until_complete(spec, tmp_path):
    run_ok("gen", spec, "-o", tmp_path / "out", "--ranks", "0")
    begin = time.monotonic()
    watch = subprocess.Popen([BINARY, "status", tmp_path / "out", "--watch", "--every", "0.1", "--json"], env=CLEAN,
                             text=True, stdout=subprocess.PIPE)
    looks, ends = [], []

    def read():
        if line := watch.stdout.readline():
            looks.append(json.loads(line))
            ends.append(time.monotonic() - begin)
        return line

    read()
    for rank in (1, 2, 3):
        run_ok("gen", spec, "-o", tmp_path / "out", "--ranks", rank)
        while looks[-1]["ranks_done"] < rank + 1:
            read()
    while read():
        pass
    assert watch.wait(60) == 0
    assert looks[0]["bytes_per_second"] is None and looks[0]["seconds_left"] is None
    assert [look["complete"] for look in looks] == [False] * (len(looks) - 1) + [True]
    assert [look["ranks_done"] for look in looks] == sorted(look["ranks_done"] for look in looks)
    for i, look in enumerate(looks):
        assert (look["bytes_per_second"] is None) == (look["seconds_left"] is None) == (look["ranks_done"] == 1)
        if look["bytes_per_second"] is not None:
            left, made = look["bytes"] - look["bytes_done"], look["bytes_done"] - looks[0]["bytes_done"]
            assert look["seconds_left"] == pytest.approx(left / look["bytes_per_second"])
            # Looks are at least 0.1 s apart, and the first is after the command began.
            assert 0.1 * i <= made / look["bytes_per_second"] <= ends[i]
    assert looks[-1]["bytes_done"] == BYTES and looks[-1]["seconds_left"] == 0


def test_watch_prints_text_until_complete(spec, tmp_path):
    run_ok("gen", spec, "-o", tmp_path / "out", "--ranks", "0-2")
    watch = subprocess.Popen([BINARY, "status", tmp_path / "out", "--watch", "--every", "0.1"], env=CLEAN, text=True,
                             stdout=subprocess.PIPE)
    assert watch.stdout.readline() == "3 of 4 ranks, 786.7 kB of 1.0 MB\n"
    run_ok("gen", spec, "-o", tmp_path / "out")
    lines = watch.stdout.read().splitlines()
    assert watch.wait(60) == 0
    assert lines[-1].startswith("4 of 4 ranks, 1.0 MB of 1.0 MB, ") and lines[-1].endswith(" GB/s, 0 s left, complete")


def test_watch_waits_for_the_manifest(spec, tmp_path):
    run_ok("gen", spec, "-o", tmp_path / "out")
    (tmp_path / "out/manifest.json").unlink()
    watch = subprocess.Popen([BINARY, "status", tmp_path / "out", "--watch", "--every", "0.1"], env=CLEAN, text=True,
                             stdout=subprocess.PIPE)
    assert watch.stdout.readline().endswith("not finalized\n")
    run_ok("finalize", tmp_path / "out")
    assert watch.stdout.read().endswith("complete\n") and watch.wait(60) == 0


def test_watch_ends_on_sigint(spec, tmp_path):
    run_ok("gen", spec, "-o", tmp_path / "out", "--ranks", "0")
    watch = subprocess.Popen([BINARY, "status", tmp_path / "out", "--watch"], env=CLEAN, text=True,
                             stdout=subprocess.PIPE)
    watch.stdout.readline()
    watch.send_signal(signal.SIGINT)
    assert watch.wait(5) == -signal.SIGINT


def test_watch_repaints_its_line_in_a_terminal(spec, tmp_path):
    """The line is repainted, and the last one stays."""
    run_ok("gen", spec, "-o", tmp_path / "out")
    with Terminal(BINARY, "status", tmp_path / "out", "--watch") as terminal:
        text = terminal.read()
    assert "\r4 of 4 ranks, 1.0 MB of 1.0 MB, complete\x1b[K" in text and text.endswith("\n")


def test_watch_repaints_one_line_until_complete(spec, tmp_path):
    run_ok("gen", spec, "-o", tmp_path / "out", "--ranks", "0")
    with Terminal(BINARY, "status", tmp_path / "out", "--watch", "--every", "0.1") as terminal:
        for _ in range(3):
            terminal.read("\x1b[K")
        run_ok("gen", spec, "-o", tmp_path / "out")
        terminal.read()
    looks = terminal.text.split("\x1b[K")
    assert set(looks[:3]) == {"\r1 of 4 ranks, 262.4 kB of 1.0 MB"} and looks[-1].strip() == ""
    assert (
        "\n" not in "".join(looks[:-1]) and looks[-2].startswith("\r4 of 4 ranks") and looks[-2].endswith(", complete")
    )


NAME = 'a "b" \\n \\\\ ü\n{x="1"} 1'


def parse_metrics(text):
    """Parses metrics as Prometheus does: each family is declared once, before its samples."""
    assert text.endswith("\n")
    families = list(text_string_to_metric_families(text))
    assert len({f.name for f in families}) == len(families)
    assert all(f.documentation and f.type == "gauge" for f in families)
    return {f.name: {tuple(sorted(s.labels.items())): s.value for s in f.samples} for f in families}


def test_status_prints_prometheus_metrics(spec, tmp_path):
    out = tmp_path / NAME
    run_ok("gen", spec, "-o", out, "--ranks", "1-2")
    metrics = parse_metrics(run_ok("status", out, "--prometheus").stdout)
    labels = (("folder", str(out)), ("name", "status"))
    assert metrics["shardinit_rank_written_timestamp_seconds"] == {}
    del metrics["shardinit_rank_written_timestamp_seconds"]
    assert metrics == {f"shardinit_{name}": {labels: value} for name, value in {
        "ranks": 4, "ranks_done": 2, "bytes": BYTES, "bytes_done": BYTES // 2 - 128, "complete": 0,
        "ranks_stuck": 0}.items()}
    # For a textfile collector, the file is replaced atomically.
    file = tmp_path / "shardinit.prom"
    for _ in range(2):
        run_ok("status", out, "--prometheus", "--force", "-o", file)
        assert parse_metrics(file.read_text())["shardinit_complete"] == {labels: 0}
    run_ok("gen", spec, "-o", out)
    run_ok("status", out, "--prometheus", "--force", "-o", file)
    assert parse_metrics(file.read_text())["shardinit_complete"] == {labels: 1}
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([NAME, "shardinit.prom", "spec.yaml"])


def test_prometheus_metrics_count_stuck_ranks(stopped):
    out = stopped
    partial = next(out.glob("ranks/*rank-00002.h5*"))
    os.utime(partial, (1.5e9, 1.5e9 + 0.25))
    metrics = parse_metrics(run_ok("status", out, "--prometheus").stdout)
    assert list(metrics["shardinit_ranks_stuck"].values()) == [1]
    assert metrics["shardinit_rank_written_timestamp_seconds"] == {
        (("folder", str(out)), ("name", "status"), ("rank", "2")): 1.5e9 + 0.25}


def test_prometheus_escapes_folders_that_are_not_utf8(spec, tmp_path):
    out = pathlib.Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xffb"))
    run_ok("gen", spec, "-o", out)
    metrics = parse_metrics(run_ok("status", out, "--prometheus").stdout)
    assert list(metrics["shardinit_complete"]) == [(("folder", f"{tmp_path}/a\\xffb"), ("name", "status"))]


@pytest.mark.parametrize("words, message", [
    (["--prometheus", "--json"], "exclude each other"), (["--prometheus", "--watch"], "excludes `--watch`"),
    (["--watch", "--missing-parts", "4"], "nothing but the parts"),
    (["--prometheus", "--missing-parts", "4"], "nothing but the parts"),
    (["--every", "0"], "seconds above 0"), (["--every", "nan"], "seconds above 0"),
    (["--stuck", "-1"], "seconds above 0"),
    (["--stuck", "1e300"], "seconds above 0"), (["--stuck", "1x"], "seconds above 0")])
def test_status_rejects_wrong_options(spec, tmp_path, words, message):
    run_ok("gen", spec, "-o", tmp_path / "out")
    result = run_tool("status", tmp_path / "out", *words)
    told, _, hint = result.stderr.partition("\n")
    assert result.returncode == 2 and told.startswith("shardinit: error: ") and message in told + hint.splitlines()[0]
    assert message in told or not message.startswith(("are two", "prints", "nothing"))
    assert run_tool("status", tmp_path, "--watch").returncode == 2  # no plan
