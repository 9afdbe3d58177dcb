"""Output has colour only in terminals, for each stream separately, and is otherwise the same text."""

import re

import pytest

from recorded import file_of
from support import BINARY, TINY, run_tool
from terminal import shown

BAD = file_of("validate", "bad_uneven")
CODE = re.compile(r"\x1b\[[0-9;]*m")
COMMANDS = {
    "error": ["validate", BAD],
    "usage": ["gne"],
    "plan": ["plan", TINY],
    "explain": ["explain", TINY, "model.norm.weight"],
    "graph": ["graph", TINY],
    "diff": ["diff", TINY, "--set", "vars.vocab=64"],
    "stats": ["stats", TINY, "--only", "model.layers.0.*.weight", "--progress", "never"],
}


def plain(command):
    result = run_tool(*command)
    return result.stdout + result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_terminals_show_the_same_text_in_colour(name):
    coloured = shown(BINARY, *COMMANDS[name])
    assert CODE.search(coloured)
    assert CODE.sub("", coloured) == plain(COMMANDS[name])  # So tables have equal widths.


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("env, options", [
    ({"NO_COLOR": "1"}, []), ({"TERM": "dumb"}, []), ({"TERM": ""}, []), ({}, ["--color", "never"]),
    ({}, ["--color=never"])], ids=str)
def test_colour_can_be_turned_off(name, env, options):
    if name == "usage" and options:
        pytest.skip("no command, so no options")
    assert shown(BINARY, *COMMANDS[name], *options, env=env) == plain(COMMANDS[name])


def test_color_option_overrides_the_environment():
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert CODE.search(run_tool("plan", TINY, "--color", "always", env=env).stdout)
    assert CODE.search(run_tool("plan", TINY, "--no-such-option", "--color=always").stderr)
    assert not CODE.search(shown(BINARY, "plan", TINY, env={"NO_COLOR": "1"}))
    assert CODE.search(shown(BINARY, "plan", TINY, env={"NO_COLOR": ""}))  # An empty variable has no effect.


def test_colour_is_decided_for_each_stream():
    assert not CODE.search(run_tool("plan", TINY).stdout)
    assert shown(BINARY, "plan", TINY, streams=[2]) == ""
    assert CODE.search(shown(BINARY, "validate", BAD, streams=[2]))
    assert shown(BINARY, "validate", BAD, streams=[1]) == ""
    with_pipe = shown("sh", "-c", f"{BINARY} graph {TINY} | cat; {BINARY} validate {BAD}")
    graph, error = with_pipe[:with_pipe.index("\x1b")], with_pipe[with_pipe.index("\x1b"):]
    assert graph == run_tool("graph", TINY).stdout and "error:" in error


@pytest.mark.parametrize("name", ["plan", "explain", "graph", "diff", "stats"])
def test_json_and_files_have_no_colour(name, tmp_path):
    out = tmp_path / "out"
    assert not CODE.search(shown(BINARY, *COMMANDS[name], "--json", "--color", "always"))
    assert not CODE.search(shown(BINARY, *COMMANDS[name], "-o", out, "--color", "always"))
    assert out.read_text() == run_tool(*COMMANDS[name]).stdout


def test_color_option_rejects_unknown_words():
    result = run_tool("plan", TINY, "--color", "red")
    assert result.returncode == 2 and "`--color red`: use `auto`, `always` or `never`" in result.stderr


def test_user_text_stays_escaped_in_coloured_output(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: x\nmodules: {w: {shape: [\x1b[31m], init: zeros}}\n")
    text = shown(BINARY, "validate", spec)
    assert "\x1b[31m]" not in text and "error:" in text
    name = shown(BINARY, "plan", "\x1b[35mx")
    assert "\x1b[35m" not in name and "\\x1b[35mx" in name
