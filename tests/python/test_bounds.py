"""A few words of a spec can describe millions of tensors, ranks or elements. Tests the time, memory and output of
commands on such specs, and that a signal ends the commands at once."""

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import time

import pytest

from support import BINARY, CLEAN, run_json, run_ok, run_tool, tree_of

HEAD = "shardinit: 1\nname: x\ndtype: f32\n"


def write(path, text):
    path.write_text(text)
    return path


@pytest.fixture
def spec(tmp_path):
    return lambda text, name="spec.yaml": write(tmp_path / name, HEAD + text)


def timed(*arguments, **options):
    """Returns the result and the seconds of processor time, which do not depend on other processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = run_tool(*arguments, **options)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return result, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# Random numbers that depend on earlier ones -----------------------------------------------------

TRUNCATED = ("engine: torch_cpu\nmodules:\n"
             "  before: {shape: [1000], init: {normal: {std: 1}}}\n"
             "  large: {shape: [100000, 1000000], init: {trunc_normal: {std: 1, a: -2, b: 2}}}\n"
             "  after: {shape: [7], init: {normal: {std: 1}}}\n"
             "  tied: {shape: [7], init: {normal: {std: 1}}, tie: after}\n"
             "  given: {shape: [8], init: {normal: {std: 1}}, key: {torch: {position: 5}}}\n"
             "  last: {shape: [7], init: {normal: {std: 1}}}\n")
LEAST = 1008 + 10**11 + 8  # A tensor of 1000 elements draws its last 8 numbers again, in 16 words.


@pytest.mark.parametrize("command", ["validate", "plan", "plan --json", "graph", "graph --json", "explain"])
def test_planning_commands_draw_no_values(command, spec):
    """Commands that need no values draw none, even if only 1e11 draws would show where later numbers begin."""
    name, *options = command.split()
    result, seconds = timed(name, spec(TRUNCATED), *(["after"] if name == "explain" else []), *options)
    assert result.returncode == 0, result.stderr
    assert seconds < 5


def test_explain_and_graph_print_a_least_stream_position(spec):
    path = spec(TRUNCATED)
    text = run_ok("explain", path, "after").stdout
    assert f"{LEAST:,} words of the stream before at least; truncated normal numbers" in text
    assert run_json("explain", path, "after")["key"] == {"least_position": LEAST, "place": None}
    keys = {tensor["path"]: tensor["key"] for tensor in run_json("graph", path)["logical"]}
    assert keys == {"before": {"position": 0}, "large": {"position": 1016}, "after": {"least_position": LEAST},
                    "tied": {"least_position": LEAST}, "given": {"position": 5}, "last": {"position": 21}}


def test_gen_finds_exact_stream_positions(tmp_path, spec):
    """With fewer numbers, the plan of `gen` has the exact place of later numbers, after the least place in `graph`."""
    path = spec(TRUNCATED.replace("100000, 1000000", "100, 1000"))
    run_ok("gen", path, "-o", tmp_path / "out")
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    place = next(t for t in plan["tensors"] if t["path"] == "after")["key"]["position"]
    assert (place - 1016) % 100000 == 0 and place > 101016
    assert run_json("graph", path)["logical"][2]["key"] == {"least_position": 101016}
    assert run_tool("diff", path, tmp_path / "out").returncode == 0


# Signals ----------------------------------------------------------------------------------------

MANY = ("mesh: {axes: {p: 16, q: 16}}\nmodules:\n  layers:\n    repeat: {i: 500000}\n"
        "    w: {shape: [i + 16, 64], init: {normal: {std: 1}}, shard: [null, q], stage: {p: i % 16}}\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
@pytest.mark.parametrize("command",
                         ["validate", "plan", "plan --html page.html", "graph --html page.html",
                          "plan --write map.yaml", "graph",
                                     "graph --json", "explain", "diff", "digest", "gen -o out",
                          "export --to dcp -o out",
                                     "program", "program --kinds -o out"])
def test_signals_end_planning_commands(command, number, spec, tmp_path):
    name, *options = command.split()
    path = spec(MANY)
    more = {"explain": ["layers.7.w"], "diff": [path]}.get(name, [])
    before = set(os.listdir(tmp_path))
    run = subprocess.Popen([BINARY, name, path, *more, *options], env=CLEAN, cwd=tmp_path, stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True)
    time.sleep(0.3)
    assert run.poll() is None, f"the run ended before the signal: {run.stderr.read()}"
    start = time.monotonic()
    run.send_signal(number)
    _, stderr = run.communicate(timeout=20)
    assert run.returncode == -number, stderr
    assert time.monotonic() - start < 1
    assert stderr == ""
    assert set(os.listdir(tmp_path)) == before


def test_sigterm_ends_status_and_finalize_of_many_ranks(tmp_path, spec):
    folder = unfinished_checkpoint(spec, tmp_path)
    for command in (["finalize", folder], ["status", folder]):
        run = subprocess.Popen([BINARY, *command], env=CLEAN, stdout=subprocess.DEVNULL)
        run.send_signal(signal.SIGTERM)
        start = time.monotonic()
        assert run.wait(timeout=20) in (-signal.SIGTERM, 0, 3)  # The command may have finished before the signal.
        assert time.monotonic() - start < 1


# Time -------------------------------------------------------------------------------------------

def timed_plan(path, status):
    result, seconds = timed("plan", path)
    assert result.returncode == status, result.stderr
    return result, seconds


def test_stages_of_many_tensors_take_linear_time(spec):
    """Planning as many stages as tensors takes linear time; it was quadratic and took minutes."""
    text = ("mesh: {{axes: {{p: {0}}}}}\nmodules:\n  layers:\n    repeat: {{i: {0}}}\n"
            "    w: {{shape: [8], init: zeros, stage: {{p: i}}}}\n")
    few, many = (timed_plan(spec(text.format(count)), 0)[1] for count in (100_000, 400_000))
    assert many < 8 * few + 1


def test_cost_of_tensors_with_distinct_shapes_takes_linear_time(spec):
    """The cost of tensors with different shapes takes linear time; comparing each shape with all earlier ones took ten
    minutes for 131,072 tensors."""
    text = "modules:\n  layers:\n    repeat: {{i: {}}}\n    w: {{shape: [i + 1], init: zeros}}\n"
    few, many = (timed_plan(spec(text.format(count)), 0)[1] for count in (30_000, 120_000))
    assert many < 8 * few + 1


def test_suggestions_for_wrong_ties_take_linear_time(spec):
    """Suggestions for wrong ties take linear time; searching names for each tie took a minute for 16,000 tensors."""
    text = ("modules:\n  layers:\n    repeat: {{i: {}}}\n    v: {{shape: [2], init: zeros}}\n"
            "    w: {{shape: [2], init: zeros, tie: 'layer.{{i}}.v'}}\n")
    seconds = []
    for count in (4_000, 32_000):
        result, taken = timed_plan(spec(text.format(count)), 2)
        assert (f"no tensor is `layer.0.v`; {count} tensors of the repeat have this mistake" in result.stderr
                and "hint: did you mean `layers.0.v`?" in result.stderr)
        seconds.append(taken)
    assert seconds[1] < 16 * seconds[0] + 1


@pytest.mark.parametrize("pattern", ["layers.{}.*", "*.{}.a.w", "*.{}.*"])
def test_many_layout_patterns_take_no_longer_than_a_few(pattern, spec):
    patterns = ", ".join(f"'{pattern.format(i)}'" for i in range(900))
    text = ("modules:\n  layers:\n    repeat: {{i: 900}}\n    a.w: {{shape: [2], init: zeros}}\n"
            "    n: {{repeat: {{j: 100}}, w: {{shape: [2], init: zeros}}}}\n"
            "layouts:\n  l: {{keep: [{}], omit: ['*n*']}}\n")
    few, seconds_of_few = timed("validate", spec(text.format("'*a.w'")))
    many, seconds_of_many = timed("validate",
                                  spec(text.format(patterns).replace(", omit: ['*n*']", "") if pattern[-1] == "*"
                                                   else text.format(patterns)))
    assert few.returncode == many.returncode == 0, few.stderr + many.stderr
    assert seconds_of_many < 10 * seconds_of_few + 1


# Output -----------------------------------------------------------------------------------------

SEGMENTS = ("mesh: {axes: {p: 2}}\nmodules:\n  layers:\n    repeat: {i: 20}\n"
            "    w: {shape: [4096], init: zeros, shard: [{axes: p, segments: 1024}]}\n")


@pytest.mark.parametrize("command", ["plan --rank 0", "plan --devices", "graph"])
def test_text_output_for_many_tensors_or_ranks_is_cut(command, spec):
    text = {"plan --rank 0": SEGMENTS, "plan --devices": "mesh: {axes: {p: 20480}}\nmodules:\n"
            "  w: {shape: [20480], init: zeros, shard: [p]}\n",
            "graph": "modules:\n  layers: {repeat: {i: 20480}, w: {shape: [i + 1], init: zeros}}\n"}[command]
    name, *options = command.split()
    out = run_ok(name, spec(text), *options).stdout
    assert out.endswith("rows more; `--json` has all\n")
    assert "… and 10,4" in out.splitlines()[-1] or "… and 30," in out.splitlines()[-1]
    assert len(out.splitlines()) < 10_100
    full = run_json(name, spec(text), *options)
    assert max(len(value) for value in full.values() if isinstance(value, list)) == 20480


def test_diff_output_for_many_tensors_is_cut(spec):
    text = "modules:\n  layers: {{repeat: {{i: 12000}}, w: {{shape: [i + {}], init: zeros}}}}\n"
    result = run_tool("diff", spec(text.format(1), "a.yaml"), spec(text.format(2), "b.yaml"))
    assert result.returncode == 1
    assert "… and 2,000 lines more; `--json` has all\n" in result.stdout


def test_program_of_too_many_shapes_is_rejected(spec, tmp_path):
    """A program of 10,000 shapes, which would have a gigabyte, is rejected; `--only` makes a part of it."""
    path = spec("modules:\n  w: {repeat: {i: 10000}, v: {shape: [i + 1], init: {normal: {std: 1}}}}\n")
    result = run_tool("program", path)
    assert result.returncode == 2 and result.stdout == ""
    assert "a program may have 268435456 bytes, but " in result.stderr
    assert " of 10000 tensors take " in result.stderr and "`--only`" in result.stderr
    assert run_ok("program", path, "--only", "w.1?.v").stdout.count("jax.result_info") == 10


def unfinished_checkpoint(spec, tmp_path, count=1 << 24):
    """Returns the folder of an unfinished checkpoint of `count` ranks that only has rank 0."""
    path = spec("mesh: {axes: {a: %d}}\nmodules:\n  w: {shape: [%d], init: zeros, shard: [a]}\n" % (count, count))
    run_ok("gen", path, "-o", tmp_path / "out", "--ranks", "0")
    return tmp_path / "out"


def test_status_and_finalize_of_16_million_ranks_are_fast(tmp_path, spec):
    folder = unfinished_checkpoint(spec, tmp_path)
    status, seconds = timed("status", folder)
    assert status.stdout.endswith(": 1 of 16,777,216 ranks are there, unfinished\nmissing: 1-16777215\n")
    finalize, more = timed("finalize", folder)
    assert finalize.returncode == 3 and "16777215 of 16777216 ranks have no valid receipt: 1-16777215" in finalize.stderr
    assert seconds < 5 and more < 5


def test_text_list_of_missing_ranks_is_cut(tmp_path, spec):
    """The text list of missing ranks ends after a thousand ranges; the JSON list is complete."""
    folder = unfinished_checkpoint(spec, tmp_path, 4096)
    run_ok("gen", tmp_path / "spec.yaml", "-o", folder, "--ranks", ",".join(map(str, range(0, 4096, 2))), timeout=900)
    shutil.copy(folder / "ranks/rank-00000.json", folder / "ranks/rank-1.json")  # This is not the name of a receipt.
    (folder / "ranks/rank-99999999999999999999.json").touch()
    text = run_ok("status", folder).stdout
    assert text.endswith(",1999,… (`--json` has all)\n") and "2,048 of 4,096" in text
    assert run_json("status", folder)["missing_ranks"] == ",".join(map(str, range(1, 4096, 2)))


# Existing files and folders ---------------------------------------------------------------------

def strace_injecting(calls, what, path=None):
    return ["strace", "-f", "-qq", "-o", "/dev/null", *(["-P", str(path)] if path else []), "-e", f"trace={calls}",
            "-e", f"inject={calls}:{what}"]


@pytest.mark.parametrize("error", ["EIO", "ESTALE", "EMFILE", "ENFILE", "EACCES", "ENOMEM"])
@pytest.mark.parametrize("key", ["include", "sharding", "main"])
def test_unreadable_spec_files_exit_with_status_3_or_2(key, error, spec, tmp_path):
    """A read error exits with status 3, so that a job tries again; a lack of permission exits with status 2."""
    other = write(tmp_path / "other.yaml", "'**': [a]\n" if key == "sharding" else "seed: 3\n")
    named = "" if key == "main" else f"{key}: other.yaml\n"
    path = spec(named + "mesh: {axes: {a: 2}}\nmodules:\n  w: {shape: [8], init: zeros}\n")
    file = path if key == "main" else other
    for command in ("validate", "plan"):
        result = run_tool(command, path, wrap=strace_injecting("openat", f"error={error}", file), cwd=tmp_path)
        assert result.returncode == (2 if error == "EACCES" else 3), result.stderr
        assert f"cannot read `{file}`" in result.stderr or "cannot read `other.yaml`" in result.stderr
        assert key == "main" or f"{path}:4:" in result.stderr
    if key == "include":
        missing = run_tool("validate", spec("include: missing.yaml\nmodules: {}\n", "missing_one.yaml"))
        long = run_tool("validate", spec(f"include: {300 * 'x'}.yaml\nmodules: {{}}\n", "long.yaml"))
        assert missing.returncode == long.returncode == 2


SMALL = ("mesh: {axes: {a: 2}}\nmodules:\n  w: {shape: [8, 4], init: {normal: {std: 1}}, shard: [a, null]}\n"
         "  v: {shape: [8], init: zeros}\n")


@pytest.mark.parametrize("command",
                         ["program --kinds -o out", "export --to safetensors -o out", "export --to dcp -o out",
                                     "gen -o out"])
def test_same_command_recovers_from_any_failed_fsync(command, spec, tmp_path):
    """Whichever sync fails, the same command then succeeds and makes the same files as without the error."""
    name, *options = command.split()
    path = spec(SMALL)
    run_ok(name, path, *options, cwd=tmp_path)
    expected = tree_of(tmp_path / "out")
    failures = 0
    for k in range(1, 60):
        shutil.rmtree(tmp_path / "out")
        result = run_tool(name, path, *options, wrap=strace_injecting("fsync", f"error=EIO:when={k}"), cwd=tmp_path)
        failures += result.returncode == 3
        assert result.returncode in (0, 3), result.stderr
        again = run_tool(name, path, *options, cwd=tmp_path)
        assert again.returncode == 0, (k, again.stderr)
        assert tree_of(tmp_path / "out") == expected, k
        if result.returncode == 0:
            break
    assert failures >= 1 and result.returncode == 0


@pytest.mark.parametrize("command",
                         ["program --kinds -o out", "export --to safetensors -o out", "export --to dcp -o out",
                                     "gen -o out"])
def test_simultaneous_equal_runs_all_succeed(command, spec, tmp_path):
    name, *options = command.split()
    path = spec(SMALL)
    run_ok(name, path, *options, cwd=tmp_path)
    expected = tree_of(tmp_path / "out")
    for _ in range(6):
        shutil.rmtree(tmp_path / "out")
        runs = [subprocess.Popen([BINARY, name, path, *options], env=CLEAN, cwd=tmp_path, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
        for run in runs:
            _, stderr = run.communicate(timeout=60)
            assert run.returncode == 0, stderr
        assert tree_of(tmp_path / "out") == expected
    assert not [entry for entry in os.listdir(tmp_path) if ".tmp-" in entry]


def test_another_program_in_the_folder_is_a_conflict(spec, tmp_path):
    path, out = spec(SMALL), tmp_path / "out"
    run_ok("program", path, "--kinds", "-o", out)
    before = tree_of(out)
    times = {entry.name: entry.stat().st_mtime_ns for entry in out.iterdir()}
    run_ok("program", path, "--kinds", "-o", out)  # The program exists already.
    assert times == {entry.name: entry.stat().st_mtime_ns for entry in out.iterdir()}
    other = run_tool("program", path, "--set", "seed=1", "--kinds", "-o", out)
    assert other.returncode == 4 and f"`{out}` exists and holds something else" in other.stderr
    assert tree_of(out) == before
    (out / "kind-000.mlir").write_text("damaged")
    assert run_tool("program", path, "--kinds", "-o", out).returncode == 4
    assert stat.S_ISDIR(os.stat(out).st_mode)


# Mistakes and warnings --------------------------------------------------------------------------

PLACES = ["modules", "modules.w", "mesh", "training", "vars", "init", "layouts"]


@pytest.mark.parametrize("place", PLACES)
def test_set_with_a_path_of_20000_parts_is_fast(place, spec):
    """Suggestions for a path of many parts take linear time; they took 5 s, now 0.05 s."""
    path = spec("modules: {w: {shape: [2], init: ones}}\n")
    _, least = timed("validate", path, "--set", "nothing=1")
    result, seconds = timed("validate", path, "--set", f"{place}.{'.'.join(['bc'] * 20000)}=1")
    assert result.returncode == 2
    assert seconds - least < 0.5


def test_ten_thousand_warnings_are_printed_fast(spec):
    """Thousands of warnings, all printed here, do not count the lines of the spec again for each warning."""
    path = spec("vars:\n" + "".join(f"  v{i}: {i}\n"
                                    for i in range(10_000)) + "modules: {w: {shape: [2], init: ones}}\n")
    _, quiet = timed("validate", path, "-q", "--json")
    result, seconds = timed("validate", path)
    assert result.returncode == 0 and result.stderr.count("warning: nothing uses") == 10_000
    assert seconds - quiet < 0.8
