"""Tests the command line as people and programs use it."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from documents import GUIDES, others_of
from recorded import file_of
from support import BINARY, CLEAN, CONFIGS, FAMILIES, RECIPES, ROOT, TINY, run_json, run_ok, run_tool, tree_of

COMMANDS = ["gen", "plan", "validate", "explain", "graph", "diff", "digest", "stats", "export", "program", "reshard",
            "convert", "inspect", "verify", "finalize", "status", "jobs", "help", "new", "conformance"]


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "good"
    run_ok("gen", TINY, "-o", folder)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "weights"
    run_ok("export", TINY, "--to", "safetensors", "-o", folder)
    return folder


# JSON -------------------------------------------------------------------------

def test_plan_json_reports_the_sizes_of_a_model():
    plan = run_json("plan", TINY)
    assert plan["name"] == "llama3-tiny"
    assert plan["parameters"] == 5_768_448
    assert plan["bytes"] == 2 * plan["parameters"]
    assert plan["world_size"] == 4
    assert plan["tensors"] == 21
    assert plan["max_rank_bytes"] >= plan["bytes"] // 4


@pytest.mark.parametrize("config, parameters, world_size", [
    ("llama3.1-8b", 8_030_261_248, 8), ("llama3.1-70b", 70_553_706_496, 64),
    ("llama3.1-405b", 405_853_388_800, 512)])
def test_plan_counts_parameters_of_large_models(config, parameters, world_size):
    plan = run_json("plan", ROOT / f"configs/{config}.yaml")
    assert (plan["parameters"], plan["world_size"]) == (parameters, world_size)
    assert plan["bytes"] == 2 * parameters


@pytest.mark.parametrize("mesh", ["fsdp=2,tensor=2", "fsdp=3,tensor=1", "fsdp=5,tensor=3"])
def test_boxes_of_all_ranks_cover_every_tensor(mesh):
    seen, tensors = {}, {}
    world_size = run_json("plan", TINY, "--mesh", mesh)["world_size"]
    largest = 0
    for rank in range(world_size):
        size = 0
        for box in run_json("plan", TINY, "--mesh", mesh, "--rank", rank)["boxes"]:
            assert set(box) >= {"path", "dtype", "global_shape", "offset", "shape", "file"}
            assert box["file"] == f"ranks/rank-{rank:05}.h5"
            tensors[box["path"]] = box["global_shape"]
            assert tuple(box["offset"]) not in seen.setdefault(box["path"], {})
            seen[box["path"]][tuple(box["offset"])] = element_count(box["shape"])
            size += 2 * element_count(box["shape"])
        largest = max(largest, size)
    assert {p: sum(b.values()) for p, b in seen.items()} == {p: element_count(s) for p, s in tensors.items()}
    assert largest == run_json("plan", TINY, "--mesh", mesh)["max_rank_bytes"]


def element_count(extents):
    product = 1
    for n in extents:
        product *= n
    return product


def test_every_command_prints_valid_json(good, tmp_path):
    assert run_json("validate", TINY) is not None
    assert run_json("gen", TINY, "-o", tmp_path / "out") is not None
    assert run_json("gen", TINY, "-o", tmp_path / "none", "--dry-run") is not None
    for command in ["inspect", "verify", "status", "finalize"]:
        assert run_json(command, good) is not None
    assert run_json("inspect", good / "ranks/rank-00000.h5") is not None


EXPORTED = "name folder format tensors files bytes was_there"
COPIED = "name from folder world_size ranks_written ranks_skipped bytes"
GENERATED = "name folder world_size ranks_written ranks_skipped bytes complete dry_run"
LOOK = "folder name complete world_size ranks_done missing_ranks bytes bytes_done unfinished stuck"


@pytest.mark.parametrize("command, members", [
    ("gen TINY -o OUT", f"{GENERATED} seconds"), ("gen TINY -o OUT --ranks 1", f"{GENERATED} seconds"),
    ("gen TINY -o OUT --stats", f"{GENERATED} stages seconds"), ("gen TINY -o OUT --dry-run", f"{GENERATED} seconds"),
    ("export TINY --to dcp -o OUT", f"{EXPORTED} seconds"),
    ("export TINY --to dcp -o OUT --ranks 1", f"{EXPORTED} missing_ranks seconds"),
    ("export TINY --to dcp -o OUT --part 0/2", f"{EXPORTED} missing_ranks seconds"),
    ("convert WEIGHTS --to dcp -o OUT", f"{EXPORTED} seconds"),
    ("convert WEIGHTS --to dcp --spec TINY -o OUT --ranks 1", f"{EXPORTED} missing_ranks seconds"),
    ("convert WEIGHTS --to hdf5 -o OUT", f"{EXPORTED} seconds"),
    ("convert WEIGHTS --to hdf5 --spec TINY -o OUT --ranks 1", f"{EXPORTED} complete seconds"),
    ("reshard GOOD --mesh fsdp=4,tensor=1 -o OUT", f"{COPIED} seconds"),
    ("reshard GOOD --mesh fsdp=4,tensor=1 -o OUT --ranks 1", f"{COPIED} complete seconds"),
    ("finalize GOOD", "folder complete index"), ("status GOOD", LOOK),
    ("status GOOD --missing-parts 3", f"{LOOK} missing_parts"),
    ("status GOOD --watch", f"{LOOK} bytes_per_second seconds_left"),
    ("verify GOOD", "folder intact ranks boxes bytes findings more_findings foreign more_foreign"),
    ("verify WEIGHTS", "folder intact files boxes bytes findings more_findings foreign more_foreign"),
    ("verify GOOD --spec TINY", "folder equal tensors bytes optimizer_entries findings more_findings"),
    ("verify WEIGHTS --spec TINY", "folder equal tensors bytes optimizer_entries findings more_findings"),
    ("digest TINY", "contract_version name engine seed model_digest tensors"),
    ("digest WEIGHTS", "contract_version name engine seed model_digest tensors"),
    ("diff TINY GOOD", "equal equal_tensors changes tensors stored"),
    ("diff WEIGHTS GOOD", "equal values_compared equal_tensors tensors"),
    ("inspect GOOD", "folder complete name seed engine parameters bytes world_size plan_sha256 tensors"),
    ("inspect WEIGHTS", "folder files bytes warnings others unread tensors"),
    ("graph TINY", "name layout seed engine mesh logical stored"),
    ("stats WEIGHTS", "tensors"), ("stats WEIGHTS --spec TINY", "tensors missing other_form not_in_spec")])
def test_json_output_has_the_documented_members(good, weights, tmp_path, command, members):
    """JSON output has all members that the man page lists, including members that depend on an option."""
    words = [{"TINY": TINY, "OUT": tmp_path / "out", "GOOD": good, "WEIGHTS": weights}.get(word, word)
             for word in command.split()]
    found = run_json(*words)
    assert set(found) == set(members.split())
    name, folder = (found.get(member) for member in ("name", "folder"))
    assert name in (None, "llama3-tiny", "weights") and folder in (None, str(tmp_path / "out"), str(good), str(weights))
    if "-o" in words and "--dry-run" not in words:  # A second run has nothing to do and reports that.
        again = run_json(*words)
        assert set(again) == set(members.split())
        if "was_there" in found:  # An export of some ranks is not complete.
            assert (found["was_there"], again["was_there"]) == (False, not {"--part", "--ranks"} & set(words)), again
        if "ranks_written" in found:
            assert (again["ranks_written"], again["ranks_skipped"], again["bytes"]) == (0, found["ranks_written"], 0)


@pytest.mark.parametrize("arguments", [["digest", "missing.yaml"], ["verify", "missing"],
                                       ["plan", TINY, "--mesh", "fsdp=0,tensor=1"]], ids=range(3))
def test_failed_commands_print_no_json(arguments):
    result = run_tool(*arguments, "--json")
    assert result.returncode in (2, 3, 5)
    assert result.stderr and not result.stdout  # A program that parses the output must not find any.


def test_digest_only_prints_the_same_hashes():
    whole = {t["path"]: t for t in run_json("digest", TINY)["tensors"]}
    some = {t["path"]: t for t in run_json("digest", TINY, "--only", "**.norm.weight")["tensors"]}
    assert some == {"model.norm.weight": whole["model.norm.weight"]}


def test_digest_check_detects_changed_values(tmp_path):
    run_ok("digest", TINY, "--write", tmp_path / "golden")
    run_ok("digest", TINY, "--check", tmp_path / "golden")
    run_ok("digest", TINY, "--check", tmp_path / "golden", "--mesh", "fsdp=7,tensor=1")
    result = run_tool("digest", TINY, "--check", tmp_path / "golden", "--set", "init.linear.normal.std=0.03")
    assert result.returncode == 1
    assert "lm_head.weight" in result.stdout + result.stderr
    (tmp_path / "golden").write_text("nonsense")
    assert run_tool("digest", TINY, "--check", tmp_path / "golden").returncode in (2, 5)
    assert run_tool("digest", TINY, "--check", tmp_path / "missing").returncode == 2


def test_status_reports_unfinished_checkpoints(good, tmp_path):
    run_ok("gen", TINY, "-o", tmp_path / "out", "--ranks", "0,2")
    assert run_json("status", good)["complete"] and not run_json("status", tmp_path / "out")["complete"]
    text = run_ok("status", tmp_path / "out").stdout
    assert re.search(r"\b2\b.*\b4\b", text)
    assert run_tool("finalize", tmp_path / "out").returncode in (1, 3)
    assert not (tmp_path / "out/manifest.json").exists()
    run_ok("gen", TINY, "-o", tmp_path / "out", "--ranks", "1,3")
    run_ok("finalize", tmp_path / "out")
    assert run_json("status", tmp_path / "out")["complete"]


def test_spec_is_read_from_standard_input():
    digest = run_json("digest", TINY)["model_digest"]
    # Includes are relative to the working directory.
    assert run_json("digest", "-", stdin=open(TINY), cwd=TINY.parent)["model_digest"] == digest


def test_names_without_a_file_resolve_to_shipped_specs(tmp_path):
    """If a name is a folder, a link to nothing or to itself, or leads through a file, the shipped spec is used."""
    for name, make in {"llama3-tiny": lambda path: path.symlink_to(path.name), "gpt2-xl": pathlib.Path.mkdir,
                       "bert-large": lambda path: path.symlink_to("nowhere"),
                       "recipes": lambda path: path.write_text("a file")}.items():
        make(tmp_path / name)
    for name in ["llama3-tiny", "gpt2-xl", "bert-large", "vit-l-16"]:
        assert run_ok("validate", name, cwd=tmp_path).stdout.startswith(f"{name}: valid: {name}, ")
    (tmp_path / "spec.yaml").write_text("shardinit: 1\ninclude: recipes/gpt2\nname: x\ndtype: f32\n"
                                        "modules: {w: {shape: [2], init: ones}}\n")
    assert "valid: x, 1 tensor" in run_ok("validate", "spec.yaml", cwd=tmp_path).stdout
    (tmp_path / "loop").symlink_to("loop")
    for name in ["loop", "recipes/x", "nothing"]:
        result = run_tool("validate", name, cwd=tmp_path)
        assert (result.returncode, result.stderr.splitlines()[0]) == (
            2, f"shardinit: error: there is no file `{name}`"), result.stderr


def test_set_option_overrides_the_spec(tmp_path):
    assert run_json("plan", TINY, "--set", "vars.layers=3")["parameters"] > 5_768_448
    assert run_json("plan", TINY, "--set", "mesh.axes.fsdp=4")["world_size"] == 8
    assert run_json("plan", TINY, "--set", "vars.layers=3", "--set", "vars.layers=2")["parameters"] == 5_768_448


def test_included_specs_can_be_overridden(tmp_path):
    shutil.copytree(TINY.parent, tmp_path / "models")
    (tmp_path / "spec.yaml").write_text(f"include: models/{TINY.name}\nname: mine\nvars: {{layers: 3}}\n")
    plan = run_json("plan", tmp_path / "spec.yaml")
    assert plan["name"] == "mine" and plan["parameters"] == run_json("plan", TINY, "--set",
                                                                     "vars.layers=3")["parameters"]


# Output -----------------------------------------------------------------------

@pytest.mark.parametrize("arguments", [
    "--version", "--help", "gen --help", "completion bash", "validate SPEC", "plan SPEC", "plan SPEC --json",
    "digest SPEC",
    "explain SPEC lm_head.weight", "graph SPEC", "diff SPEC GOOD", "stats SPEC", "verify GOOD",
    "verify GOOD --spec SPEC",
    "inspect GOOD", "inspect GOOD/ranks/rank-00000.h5", "status GOOD", "finalize GOOD", "gen SPEC -o GOOD",
    "gen SPEC -o GOOD --dry-run", "export SPEC --to dcp -o OUT"])
def test_unwritable_standard_output_is_an_error(arguments, good, tmp_path):
    for name, path in {"SPEC": TINY, "GOOD": good, "OUT": tmp_path / "out"}.items():
        arguments = arguments.replace(name, str(path))
    arguments = arguments.split()
    with open("/dev/full", "w") as full:
        result = run_tool(*arguments, stdout=full)
    assert result.returncode == 3 and result.stderr
    closed = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", BINARY, *map(str, arguments)], env=CLEAN,
                            stderr=subprocess.PIPE, text=True)
    assert closed.returncode == 3, closed.stderr


def test_gen_works_with_closed_standard_streams(tmp_path):
    # Files that are opened then get descriptor 0, 1 or 2, and no message may be written to them.
    for streams in [">&-", "2>&-", "<&- >&- 2>&-"]:
        out = tmp_path / streams.replace(" ", "")
        subprocess.run(["sh", "-c", f'exec "$@" {streams}', "sh", BINARY, "gen", TINY, "-o", out], env=CLEAN)
        run_ok("gen", TINY, "-o", out)
        run_ok("verify", out)


@pytest.mark.parametrize("streams", ["2>/dev/full", "2>&-"])
def test_unwritable_standard_error_is_not_a_failure(streams, tmp_path):
    for arguments, status in [(["gen", TINY, "-o", tmp_path / "out"], 0), (["plan", tmp_path / "missing"], 2),
                              (["gne"], 2), (["validate", file_of("validate", "bad_uneven")], 2)]:
        run = subprocess.run(["sh", "-c", f'exec "$@" {streams}', "sh", BINARY, *arguments], env=CLEAN,
                             stdout=subprocess.DEVNULL)
        assert run.returncode == status


def test_closed_pipe_ends_a_command_quietly():
    shell = f"'{BINARY}' plan '{ROOT}/configs/llama3.1-405b.yaml' --rank 0 --json | head -c 10 >/dev/null; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, env=CLEAN)
    assert result.stdout.strip() in ("0", "3", "141") and result.stderr == ""


def test_messages_go_to_standard_error(tmp_path):
    result = run_ok("gen", TINY, "-o", tmp_path / "out")
    assert "GB/s" in result.stderr and "GB/s" not in result.stdout
    assert run_ok("gen", TINY, "-o", tmp_path / "out2", "--json").stderr == ""


def test_no_colour_without_a_terminal():
    for env in [{}, {"NO_COLOR": "1"}, {"TERM": "xterm-256color"}]:
        result = run_tool("plan", TINY, "--mesh", "nonsense", env=env)
        assert "\x1b" not in result.stdout + result.stderr


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": ""}, {"TERM": "xterm"}], ids=str)
def test_colour_in_a_terminal_follows_term_and_no_color(env, tmp_path):
    import pty
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(BINARY, [str(BINARY), "gen", str(TINY), "-o", str(tmp_path / "out")], {**CLEAN, **env})
    text = b""
    while True:
        try:
            data = os.read(fd, 4096)
        except OSError:
            break
        if not data:
            break
        text += data
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, text
    if "TERM" in env and env["TERM"] != "xterm":
        assert b"\x1b" not in text
    elif "NO_COLOR" in env:
        assert not re.search(rb"\x1b\[[0-9;]*[1-9][0-9;]*m", text)


# Usage ------------------------------------------------------------------------

def test_version_prints_numbers_and_targets():
    text = run_ok("--version").stdout
    assert re.match(r"shardinit \d+\.\d+\.\d+", text)
    assert run_json("--version")["targets"]


@pytest.mark.parametrize("arguments", [[], ["--nonsense"], ["nonsense"], ["gen"], ["plan"], ["gen", TINY],
                                       ["gen", TINY, "-o"], ["plan", TINY, TINY], ["plan", TINY, "--rank", "x"],
                                       ["plan", TINY, "--rank", "-1"], ["gen", TINY, "-o", "x", "--jobs", "-1"],
                                       ["gen", TINY, "-o", "x", "--ranks", ""],
                                       ["gen", TINY, "-o", "x", "--ranks", "0-"],
                                       ["gen", TINY, "-o", "x", "--ranks", "4"],
                                       ["gen", TINY, "-o", "x", "--progress", "maybe"],
                                       ["gen", TINY, "-o", "x", "--replicas", "none"],
                                       ["plan", TINY, "--set", "="], ["plan", TINY, "--mesh", ""],
                                       ["plan", TINY, "--mesh", "fsdp=2,fsdp=2"],
                                       ["plan", TINY, "--mesh", "fsdp=99999999999999999999,tensor=1"]],
                         ids=lambda a: " ".join(map(str, a[:1] + a[2:])) or "none")
def test_bad_usage_exits_with_status_2(arguments, tmp_path):
    result = run_tool(*arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert result.stdout == "" and result.stderr.startswith(("shardinit", "--", "<"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("typed, meant", [("gne", "gen"), ("plna", "plan"), ("verfy", "verify"), ("digset", "digest"),
                                          ("finalise", "finalize"), ("sttaus", "status"), ("inspct", "inspect"),
                                          ("generate", "gen"), ("info", None)])
def test_misspelled_command_gets_a_suggestion(typed, meant):
    result = run_tool(typed)
    assert result.returncode == 2
    assert f"`{typed}`" in result.stderr
    assert (f"did you mean `{meant}`" if meant else "see `shardinit --help`") in result.stderr


def test_messages_escape_control_characters_in_names(tmp_path):
    """Messages contain no control characters, whatever names of files and folders the user gives."""
    spec = tmp_path / "sp\x1b[31mec\n.yaml"
    spec.write_text("shardinit: 1\nname: m\ndtype: f32\nmesh: {axes: {x: 2}}\n"
                    "modules:\n  w: {shape: [8], shard: [x], init: {normal: {std: 1}}}\n")
    out = "out\x1b]0;title\x07\r\n"
    for command in [["validate", spec], ["validate", out], ["gen", spec, "-o", out, "--dry-run"],
                    ["gen", spec, "-o", out, "--ranks", 0], ["verify", out], ["finalize", out], ["status", out],
                    ["plan", out], ["gen", spec, "-o", out], ["gen", spec, "-o", out, "--set", "seed=1"],
                    ["verify", out], ["verify", out, "--spec", spec],
                    ["verify", out, "--spec", spec, "--set", "seed=1"],
                    ["finalize", out, "--index", "never"], ["finalize", out], ["status", out], ["inspect", out],
                    ["inspect", f"{out}/ranks/rank-00000.h5"], ["stats", out], ["stats", out, "--set", "seed=1"],
                    ["diff", out, spec], ["explain", spec, "w"], ["export", spec, "--to", "dcp", "-o", f"{out}.dcp"],
                    ["export", spec, "--to", "dcp", "-o", f"{out}.dcp"], ["export", spec, "--to", "zarr", "-o", out],
                    ["verify", f"{out}.dcp"], ["digest", spec, "--write", f"{out}.json"],
                    ["digest", spec, "--check", f"{out}.json"],
                    ["digest", spec, "--check", f"{out}.json", "--set", "seed=1"]]:
        result = run_tool(*command, cwd=tmp_path)
        assert result.returncode in (0, 1, 2, 3, 4), result.stderr
        assert not re.search(r"[^\n\x20-\x7e\u00a0-\uffff]", result.stdout + result.stderr), (command, result)
        assert out not in result.stdout + result.stderr
    path = tmp_path / out / "ranks" / "rank-00001.h5"
    path.write_bytes(path.read_bytes() + b"x")
    result = run_tool("verify", out, cwd=tmp_path)
    assert result.returncode == 1 and not re.search(r"[\x1b\x07\r]", result.stderr)


def test_index_option_adds_or_removes_the_index(tmp_path):
    out = tmp_path / "out"
    run_ok("gen", TINY, "-o", out)
    whole = (out / "index.h5").read_bytes()
    for command in [["finalize", out], ["gen", TINY, "-o", out]]:
        for index in ["never", "always", "never", "auto"]:
            run_ok(*command, "--index", index)
            assert (out / "index.h5").exists() == (index != "never"), (command, index)
            run_ok("verify", out)
        assert (out / "index.h5").read_bytes() == whole


def test_checkpoint_given_as_a_spec_is_rejected(tmp_path):
    run_ok("gen", TINY, "-o", tmp_path / "out")
    for command in [["plan"], ["graph"], ["explain", "model.norm.weight"], ["gen", "-o", tmp_path / "other"]]:
        result = run_tool(command[0], tmp_path / "out", *command[1:])
        assert result.returncode == 2 and f"`shardinit inspect {tmp_path / 'out'}`" in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_every_command_has_options_output_and_quiet(good, tmp_path):
    for command in [["plan", TINY], ["graph", TINY], ["explain", TINY, "lm_head.weight"],
                    ["diff", TINY, good, "--json"], ["list"],
                    ["schema"], ["help", "gen"], ["new"], ["new", "--from", "llama3-tiny"], ["status", good, "--json"],
                    ["inspect", good], ["digest", TINY, "--only", "**.norm.weight"]]:
        printed = run_tool(*command)
        written = run_tool(*command, "-o", tmp_path / "out", "-q")
        assert (written.returncode, written.stdout) == (printed.returncode, "")
        assert (tmp_path / "out").read_text() == printed.stdout == run_tool(*command, "-o", "-").stdout != ""
        (tmp_path / "out").write_text("mine\n")
        refused = run_tool(*command, "-o", tmp_path / "out")
        assert refused.returncode == 4 and "--force" in refused.stderr and (tmp_path / "out").read_text() == "mine\n"
        run_tool(*command, "--output", tmp_path / "out", "--force")
        assert (tmp_path / "out").read_text() == printed.stdout
        (tmp_path / "out").unlink()
    spec = tmp_path / "spec.yaml"
    spec.write_text(TINY.read_text().replace("include: ", f"include: {TINY.parent}/"))
    refused = run_tool("plan", spec, "-o", spec, "--force")
    assert refused.returncode == 2 and "would be lost" in refused.stderr and spec.read_text().startswith("#")


def test_findings_are_written_to_the_report_file(good, tmp_path):
    out, report = tmp_path / "out", tmp_path / "report"
    shutil.copytree(good, out)
    os.truncate(out / "ranks/rank-00001.h5", 5)
    run_ok("digest", TINY, "--write", tmp_path / "digests")
    for command in [["verify", out], ["digest", TINY, "--set", "seed=1", "--check", tmp_path / "digests"]]:
        printed = run_tool(*command)
        written = run_tool(*command, "-o", report)
        assert printed.returncode == written.returncode == 1 and written.stdout == ""
        assert report.read_text() == written.stderr == printed.stderr != ""
        json_ = run_tool(*command, "--json", "-o", report, "--force")
        assert json.loads(report.read_text()) == json.loads(run_tool(*command,
            "--json").stdout) and json_.stderr == printed.stderr
        report.unlink()
    missing = run_tool("verify", tmp_path / "missing", "-o", report)
    assert missing.returncode == 2 and not report.exists()
    (tmp_path / "bad.yaml").write_text("shardinit: 1\nname: m\nmodules: {w: {shape: [3], inti: zeros, dtype: f32}}\n")
    for specs in [["bad.yaml"], [TINY, "bad.yaml", "missing.yaml"]]:
        alone = [run_tool("validate", each, cwd=tmp_path) for each in specs]
        written = run_tool("validate", *specs, "-o", report, "--color", "always", cwd=tmp_path)
        assert (written.returncode, written.stdout) == (2, "") and "\x1b[" in written.stderr
        assert report.read_text() == "".join(each.stdout + each.stderr for each in alone)
        report.unlink()


def test_conflict_names_the_first_difference_of_plans(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: m\ndtype: f32\nvars: {d: 8}\nmodules:\n  a.b: {shape: [d, 2], init: zeros}\n")
    run_ok("gen", spec, "-o", tmp_path / "out")
    for changed, difference in [("seed=1", "`seed` is `0` there, but `1` here"),
                                ("name=other", "`name` is `m` there, but `other` here"),
                                ("vars.d=9", "`global_shape` of `a.b` is `[8, 2]` there, but `[9, 2]` here"),
                                ("dtype=bf16", "`dtype` of `a.b` is `f32` there, but `bf16` here"),
                                ("+modules.c={shape: [3], init: zeros}", "it has 1 tensor there, but 2 tensors here")]:
        result = run_tool("gen", spec, "-o", tmp_path / "out", "--set", changed)
        assert result.returncode == 4 and f"holds another plan: {difference}\n" in result.stderr, result.stderr


def test_quiet_and_verbose_control_messages(good, tmp_path):
    out = tmp_path / "out"
    for command in [["gen", TINY, "-o", out], ["gen", TINY, "-o", out],
                    ["export", TINY, "--to", "zarr", "-o", tmp_path / "zarr"],
                    ["reshard", out, "-o", tmp_path / "one", "--mesh", "fsdp=1,tensor=1"], ["verify", out],
                    ["validate", TINY], ["verify", out, "--spec", TINY], ["finalize", out]]:
        result = run_ok(*command, "-q")
        assert result.stdout + result.stderr == "", command
        result = run_ok(*command, "-v")
        assert re.fullmatch(r"shardinit: [\d.]+ s, [\d.]+ s of processors, at most [\d.]+ [MG]B of memory, \w+",
                            result.stderr.splitlines()[-1])
    (out / "ranks/rank-00001.h5").write_bytes(b"")
    assert "damaged" in run_tool("verify", out, "--quiet").stderr
    assert run_tool("validate", TINY, "--quiet", "--set", "seed=x").returncode == 2
    assert run_tool("plan", TINY, "-q", "-v").returncode == 2


ALL = "5,768,448 parameters, 4 ranks, complete"
EXPECTED_MESSAGES = [  # One after the other in one folder: the command, its standard output, its standard error.
    ("gen TINY -o out --ranks 1", "out: unfinished: other ranks are missing; see `shardinit status out`",
     "wrote 2.9 MB"),
    ("status out", "out: llama3-tiny: 1 of 4 ranks are there, unfinished\nmissing: 0,2-3", ""),
    ("gen TINY -o out", f"out: {ALL}", "wrote 8.7 MB\n1 of 4 ranks was there already"),
    ("gen TINY -o out", f"out: {ALL}", "4 of 4 ranks were there already"),
    ("gen TINY -o out --dry-run", "would write 0 B of llama3-tiny for 0 of 4 ranks to out; 4 ranks there already", ""),
    ("finalize out", "out: complete", ""), ("status out", "out: llama3-tiny: 4 of 4 ranks are there, complete", ""),
    ("export TINY --to dcp -o e --ranks 1", "e: unfinished: 3 ranks are missing, the first is 0", "wrote 2.9 MB"),
    ("export TINY --to dcp -o e --part 0/2", "e: unfinished: 2 ranks are missing, the first is 2", "wrote 2.9 MB"),
    ("export TINY --to dcp -o e --ranks 0-2", "e: unfinished: 1 rank is missing, the first is 3", "wrote 2.9 MB"),
    ("export TINY --to dcp -o e", "e: 21 tensors of llama3-tiny in 5 files, dcp", "wrote 11.5 MB"),
    ("export TINY --to dcp -o e", "e: 21 tensors of llama3-tiny in 5 files, dcp", "`e` was there already"),
    ("export TINY --to safetensors -o w", "w: 21 tensors of llama3-tiny in 2 files, safetensors", "wrote 11.5 MB"),
    ("convert w --to dcp -o c", "c: 21 tensors of w in 2 files, dcp", "wrote 11.5 MB"),
    ("convert w --to dcp -o c", "c: 21 tensors of w in 2 files, dcp", "`c` was there already"),
    ("convert w --to hdf5 -o h --spec TINY --ranks 1", "h: unfinished: other ranks are missing", "wrote 2.9 MB"),
    ("convert w --to hdf5 -o h --spec TINY", "h: 21 tensors of llama3-tiny in 4 files, hdf5", "wrote 11.5 MB"),
    ("convert w --to hdf5 -o h --spec TINY", "h: 21 tensors of llama3-tiny in 4 files, hdf5", "`h` was there already"),
    ("reshard out --mesh fsdp=4,tensor=1 -o r --ranks 1", "r: unfinished: other ranks are missing", "copied 2.9 MB"),
    ("reshard out --mesh fsdp=4,tensor=1 -o r", f"r: {ALL}", "copied 11.5 MB"),
    ("reshard out --mesh fsdp=4,tensor=1 -o r", f"r: {ALL}", "nothing was left to copy to `r`"),
    ("verify out", "out: intact: 4 ranks, 69 boxes, 11.5 MB", ""),
                     ("verify w", "w: intact: 2 files, 21 boxes, 11.5 MB", ""),
    ("verify out --spec TINY", "out: equal to llama3-tiny: 21 tensors, 11.5 MB", ""),
    ("verify w --spec TINY", "w: equal to llama3-tiny: 21 tensors, 11.5 MB", ""),
]


def test_commands_print_results_and_messages(tmp_path):
    for command, printed, said in EXPECTED_MESSAGES:
        result = run_ok(*[TINY if word == "TINY" else word for word in command.split()], cwd=tmp_path)
        assert result.stdout == printed + "\n", command
        talk = re.sub(r" in \d+\.\d\d s \(\d+\.\d\d GB/s\)\n", "\n", result.stderr)
        assert talk == "".join(f"shardinit: {line}\n" for line in said.split("\n") if line), command
        assert run_ok(*[TINY if word == "TINY" else word for word in command.split()], "-q", cwd=tmp_path).stderr == ""


def test_dry_run_counts_the_remaining_ranks(tmp_path):
    out = tmp_path / "out"
    whole = run_json("gen", TINY, "-o", out, "--dry-run")
    assert not out.exists() and (whole["ranks_written"], whole["ranks_skipped"], whole["dry_run"]) == (4, 0, True)
    for ranks, left, asked in [("1", 3, 4), ("2-3", 1, 4), ("0", 0, 4)]:
        made = run_json("gen", TINY, "-o", out, "--ranks", ranks)
        before = tree_of(out)
        dry = run_json("gen", TINY, "-o", out, "--dry-run")
        assert (dry["ranks_written"], dry["ranks_skipped"]) == (left, asked - left)
        whole["bytes"] -= made["bytes"]
        assert dry["bytes"] == whole["bytes"] and tree_of(out) == before
    assert dry["bytes"] == 0
    text = run_ok("gen", TINY, "-o", out, "--dry-run", "--ranks", "0,2").stdout
    assert text == f"would write 0 B of llama3-tiny for 0 of 4 ranks to {out}; 2 ranks there already\n"


def test_diff_with_set_compares_a_spec_with_its_change(good, tmp_path):
    (tmp_path / "changed.yaml").write_text(f"include: {TINY}\nvars: {{layers: 3}}\n")
    alone = run_tool("diff", TINY, "--set", "vars.layers=3")
    assert alone.returncode == 1 and alone.stdout == run_tool("diff", TINY, tmp_path / "changed.yaml").stdout
    assert run_json("diff", TINY, tmp_path / "changed.yaml", "--set", "vars.layers=5")["equal"]
    assert run_tool("diff", TINY, good, "--set", "seed=1").stdout.startswith("seed: 1 → 0\n")
    some = json.loads(run_tool("diff", TINY, "--set", "vars.layers=3", "--only", "**.layers.2.**", "--json").stdout)
    assert {t["path"].split(".")[2] for t in some["tensors"]} == {"2"} and some["equal_tensors"] == 0
    for arguments in [[TINY], [good, "--set", "seed=1"], [good, good, "--set", "seed=1"], ["-", "--set", "seed=1"],
                      [TINY, TINY, "--only", "nothing"]]:
        result = run_tool("diff", *arguments)
        assert result.returncode == 2 and "hint: " in result.stderr and result.stdout == ""


def test_stats_of_a_layout_equal_stats_of_its_checkpoint(tmp_path):
    """`stats` of a spec with a layout prints the same as `stats` of a checkpoint with that layout."""
    run_ok("gen", TINY, "-o", tmp_path / "out", "--layout", "stacked")
    assert run_ok("stats", TINY, "--layout", "stacked").stdout == run_ok("stats", tmp_path / "out").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_rejects_an_unknown_option(command):
    result = run_tool(command, "--jsno")
    assert result.returncode == 2 and "--jsno" in result.stderr


# Documents --------------------------------------------------------------------

def options(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def rendered_page(page):
    """Returns the page as a reader sees it, without the overstriking of bold and underline."""
    text = subprocess.run(["mandoc", "-T", "utf8", page], capture_output=True, text=True, check=True).stdout
    return re.sub(r".\x08", "", text)


PAGES = sorted((ROOT / "man").glob("*.[157]"))


def test_main_man_page_exists():
    assert "shardinit.1" in [p.name for p in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_man_pages_pass_mandoc_lint(page):
    result = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", page], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_man_page_and_help_list_the_same_options(command):
    page = ROOT / f"man/shardinit-{command}.1"
    help_text, common = run_ok(command, "--help").stdout.split("Options of every command:")
    assert options(common) <= options(rendered_page(ROOT / "man/shardinit.1"))
    manual = rendered_page(page if page.exists() else ROOT / "man/shardinit.1")
    if page.exists():
        # An example may show another command.
        manual = re.sub(rf"^ *shardinit (?!{command}\b)[a-z]+ .*$", "", manual, flags=re.MULTILINE)
        assert options(manual) - {"--version", "--help"} == options(help_text) - {"--version", "--help"}
    else:
        assert options(help_text) - options(manual) == set()


def test_man_pages_name_no_unknown_option():
    known = options(run_ok("--help").stdout)
    for command in COMMANDS:
        known |= options(run_ok(command, "--help").stdout)
    for of in ("torch", "hf"):  # Commands of the Python package.
        known |= options(subprocess.run([sys.executable, "-m", "shardinit.capture", of, "--help"], check=True,
                                        text=True,
                                        stdout=subprocess.PIPE, env={**CLEAN,
                                                                     "PYTHONPATH": ROOT / "src/python"}).stdout)
    for page in PAGES:
        text = rendered_page(page)
        for line in "".join(others_of(page) if page in GUIDES else []).splitlines():
            assert line in text  # A trainer's line, which test_readme_trainers.py compares with the trainer's row.
            text = text.replace(line, "")
        assert options(text) - known == set(), page.name


def test_help_lists_every_command():
    text = run_ok("--help").stdout
    for command in COMMANDS:
        assert re.search(rf"^\s+{command}\b", text, re.M)


@pytest.mark.parametrize("path", CONFIGS + RECIPES + FAMILIES, ids=lambda path: path.name)
def test_configs_name_the_schema(path):
    schema = os.path.relpath(ROOT / "schemas/spec.schema.json", path.parent)
    assert path.read_text().startswith(f"# yaml-language-server: $schema={schema}\n")


def test_readme_has_the_install_and_test_commands():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert "sh src/install.sh && shardinit gen llama3-tiny -o /tmp/tiny" in lines
    assert "sh tests/run.sh" in lines


@pytest.mark.parametrize("size, of_bytes", {
    "123": 123, "100K": 102_400, "100KiB": 102_400, "100KB": 100_000, "160M": 160 << 20, "160MiB": 160 << 20,
    "160MB": 160_000_000, "5G": 5 << 30, "5GiB": 5 << 30, "5GB": 5_000_000_000, "2T": 2 << 40, "2TiB": 2 << 40,
    "2TB": 2_000_000_000_000, "9223372036854775807": 2**63 - 1, "8388607T": 8388607 << 40}.items())
def test_size_options_accept_every_unit(size, of_bytes, tmp_path):
    out = tmp_path / "out"
    (tmp_path / "x.yaml").write_text("shardinit: 1\nname: x\ndtype: f32\nmodules: {w: {shape: [2], init: zeros}}\n")
    run_ok("export", tmp_path / "x.yaml", "--to", "safetensors", "-o", out, "--max-shard-size", size)
    assert json.loads((out / "shardinit-export.json").read_text())["max_shard_size"] == of_bytes
    memory = ["plan", tmp_path / "x.yaml", "--json", "--jobs", "1", "--memory"]
    if of_bytes < 1 << 20:
        assert f"`--memory {size}` is too little: 1,048,576 bytes at least" in run_tool(*memory, size).stderr
    else:
        assert run_ok(*memory, size).stdout == run_ok(*memory, of_bytes).stdout


@pytest.mark.parametrize("option", ["--max-shard-size", "--memory"])
@pytest.mark.parametrize("size",
                         ["K", "MB", "-1", "-1M", "1.5G", "5 GB", "5g", "5gb", "5Gi", "5GBs", "5X", "0x10", "1e6",
                                  "8388608T", "9223372036854775808", "10000000TB", "99999999999999999999"])
def test_size_options_reject_malformed_sizes(option, size, tmp_path):
    result = run_tool("export", ROOT / "configs/llama3-tiny.yaml", "--to", "safetensors", "-o", tmp_path / "out",
                      f"{option}={size}")
    assert result.returncode == 2
    assert f"`{option} {size}` is not a size\n" in result.stderr and f"`{option} 160MiB`" in result.stderr
