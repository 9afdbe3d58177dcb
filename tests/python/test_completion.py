"""Tests completion: the candidates that the program offers, and each shell at its prompt."""

import os
import shutil
import subprocess
import time

import pytest

from support import BINARY, run_ok, run_tool
from terminal import Terminal

SPEC = """
shardinit: 1
name: first
dtype: f32
mesh: {axes: {data: 2, model: 2}}
vars: {width: 8, depth: 2}
modules:
  embed: {shape: [width], init: zeros}
  layers: {repeat: {i: depth}, up: {shape: [width], init: zeros}, down: {shape: [width], init: zeros}}
layouts:
  stacked: {stack: [layers], keep: [embed]}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "first.yaml").write_text(SPEC)
    return tmp_path


def offered(*words, **options):
    """Returns the candidates, and whether names of files are possible, too."""
    result = run_ok("__complete", *words, **options)
    assert not result.stderr
    lines = result.stdout.splitlines()
    files = ":files" in lines
    return [line.split("\t")[0] for line in lines if line != ":files"], files


# The program ------------------------------------------------------------------

def test_completion_offers_commands_and_options():
    assert offered("val") == (["validate"], False)
    commands = run_ok("--help").stdout.split("Subcommands:")[1].split("See ")[0]
    assert set(offered("")[0]) == {line.split()[0] for line in commands.splitlines() if line.strip()}
    assert offered("gen", "--dry") == (["--dry-run"], False)
    assert "-j" in offered("gen", "-")[0] and "--help" in offered("--h")[0]
    assert "--json" in offered("plan", "llama3-tiny", "")[0]  # No more arguments are possible.


@pytest.mark.parametrize("line, words", {
    "export x --to": "safetensors dcp hf-dcp megatron zarr keras",
    "gen x --replicas": "dedupe full",
    "gen x --index": "auto always never",
    "gen x --color": "auto always never",
    "program x --annotate": "mhlo sdy both",
    "completion": "bash zsh fish",
    "list": "models recipes shardings layouts languages initializers functions operations engines formats",
}.items())
def test_completion_offers_the_values_of_options(line, words):
    assert offered(*line.split(), "") == (words.split(), False)
    option = line.split()[-1]
    if option.startswith("--"):
        assert offered(*line.split()[:-1], option + "=")[0] == [f"{option}={word}" for word in words.split()]


def names(kind):
    return [line.split()[0] for line in run_ok("list", kind).stdout.splitlines()[1:]]


def test_completion_offers_shipped_names_and_files():
    assert offered("plan", "") == (names("models"), True)
    assert offered("verify", "x", "--spec", "llama3.1-8")[0] == ["llama3.1-8b-lora", "llama3.1-8b"]
    assert offered("verify", "x", "--spec", "llama3.1-4")[0] == ["llama3.1-405b"]
    assert offered("diff", "x", "gpt2") == (["gpt2-xl"], True)
    shardings, files = offered("plan", "llama3.1-8b", "--sharding", "")
    assert shardings == names("shardings") + ["fsdp", "first_divisible", "fully_shard", "auto"] and files
    assert offered("export", "x", "--optimizer", "") == (["adamw"], True)  # And not `FILE WORD`.
    assert offered("gen", "x", "-o", "") == ([], True)
    assert offered("gen", "x", "-j", "") == ([], False)


def test_completion_offers_names_of_the_spec(folder):
    def of(*words):
        return offered(*words, cwd=folder)[0]

    assert of("gen", "first.yaml", "--layout", "") == ["stacked"]
    assert of("plan", "first.yaml", "--mesh", "") == ["data=", "model="]
    assert of("plan", "first.yaml", "--mesh=model=2,") == ["--mesh=model=2,data="]
    assert of("plan", "--mesh", "data=4", "first.yaml", "--set", "mesh.") == ["mesh.axes.data=", "mesh.axes.model="]
    assert of("plan", "first.yaml", "--set", "") == ["seed=", "dtype=", "engine=", "uneven=", "replicas=", "fans=",
                                                     "vars.", "mesh."]
    assert of("plan", "first.yaml", "--set", "va") == ["vars.width=", "vars.depth="]
    assert of("plan", "first.yaml", "--set", "engine=p") == ["engine=philox4x32"]
    assert of("plan", "llama3.1-70b", "--sharding", "torchtitan", "--mesh", "t") == ["tensor="]


def test_completion_offers_tensor_paths_part_by_part(folder):
    def of(*words):
        return offered(*words, cwd=folder)[0]

    assert of("explain", "first.yaml", "") == ["embed", "layers."]
    assert of("explain", "first.yaml", "l") == ["layers.0.", "layers.1."]  # Skips `layers.`, the only match.
    assert of("explain", "first.yaml", "layers.1.") == ["layers.1.up", "layers.1.down"]
    assert of("digest", "first.yaml", "--only", "layers.*.d") == ["layers.*.down"]
    assert of("digest", "first.yaml", "--only", "layers.*.") == ["layers.*.up", "layers.*.down"]
    assert of("explain", "first.yaml", "--layout", "stacked", "layers.u") == ["layers.up"]
    assert of("explain", "first.yaml", "--set", "vars.depth=3", "layers.2.u") == ["layers.2.up"]
    assert of("explain", "llama3.1-405b", "model.layers.") == [f"model.layers.{i}." for i in range(126)]
    assert of("explain", "llama3.1-405b", "lm") == ["lm_head.weight"]
    run_ok("gen", "first.yaml", "-o", "out", cwd=folder)
    assert of("inspect", "out", "--only", "layers.0.") == ["layers.0.up", "layers.0.down"]
    assert of("explain", "~/first.yaml", "e") == []
    assert offered("explain", "~/first.yaml", "e", env={"HOME": str(folder)})[0] == ["embed"]


def test_completion_offers_nothing_for_an_invalid_spec(folder):
    (folder / "wrong.yaml").write_text(SPEC.replace("[width]", "[wide]"))
    (folder / "large.yaml").write_text(SPEC.replace("layers: {repeat: {i: depth}", "layers: {repeat: {i: 100000}"))
    for spec in ["wrong.yaml", "missing.yaml", "-", ".", "/dev/null"]:
        assert offered("explain", spec, "", cwd=folder)[0] == []
    os.mkfifo(folder / "fifo")
    assert offered("explain", "fifo", "", cwd=folder)[0] == []
    assert offered("plan", "wrong.yaml", "--set", "vars.w", cwd=folder)[0] == ["vars.width="]  # To fix the spec.
    assert offered("nonsense", "") == ([], False)
    assert run_tool("__complete").stdout == ""
    assert len(offered("explain", "large.yaml", "layers.", cwd=folder)[0]) <= 1000


def test_completion_of_a_huge_spec_ends_soon(folder):
    repeats = "".join(f"m{i}: {{repeat: {{l{i}: 100}}, " for i in range(3)) + "w: {shape: [1], init: zeros}" + "}" * 3
    (folder / "slow.yaml").write_text(f"shardinit: 1\nname: x\ndtype: f32\nmodules: {{{repeats}}}\n")
    start = time.monotonic()
    run_ok("__complete", "explain", "slow.yaml", "", cwd=folder)
    assert time.monotonic() - start < 10


# The shells -------------------------------------------------------------------

@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_valid_in_their_shell(shell):
    script = run_ok("completion", shell).stdout
    subprocess.run([shell, "-n", "/dev/stdin"], input=script, text=True, check=True)


class Prompt:
    """An interactive shell that completes `shardinit`."""
    START = {
        "bash": (["--norc", "--noprofile", "-i"], 'eval "$(shardinit completion bash)"'),
        "zsh": (["-f", "-i"], 'bindkey -e; autoload -U compinit; compinit -D -u; eval "$(shardinit completion zsh)"'),
        "fish": (["--no-config", "-i"], "set -g fish_autosuggestion_enabled 0; shardinit completion fish | source"),
    }

    def __init__(self, shell, folder):
        (folder / "bin").mkdir()
        (folder / "bin/shardinit").symlink_to(BINARY)
        options, start = self.START[shell]
        self.terminal = Terminal("env", "-C", folder, shutil.which(shell), *options, env={
            "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder), "PS1": "$ ",
            "PATH": f"{folder}/bin:{os.environ['PATH']}"})
        self.run(start)

    def run(self, line):
        self.terminal.type(line + "; echo do''ne\r")
        return self.terminal.read("done\r\n")

    def complete(self, typed):
        """Returns the line after the tab key and an X. To get it, makes the shell print the line."""
        self.terminal.type(typed + "\t")
        time.sleep(0.3)  # fish treats keys that come at once as pasted text.
        self.terminal.type("X\x05\x01echo 'li''ne:' '\x05'; echo do''ne\r")
        return self.terminal.read("done\r\n").rsplit("line: ", 1)[1].split("\r\n")[0]


@pytest.fixture(params=["bash", "zsh", "fish"])
def prompt(request, folder):
    made = Prompt(request.param, folder)
    with made.terminal:
        yield made


def test_shells_complete_at_their_prompt(prompt):
    for typed, line in {
        "shardinit vali": "shardinit validate ",
        "shardinit gen --dry": "shardinit gen --dry-run ",
        "shardinit export x --to saf": "shardinit export x --to safetensors ",
        "shardinit plan llama3.1-40": "shardinit plan llama3.1-405b ",
        "shardinit plan fir": "shardinit plan first.yaml ",
        "shardinit explain first.yaml e": "shardinit explain first.yaml embed ",
        "shardinit explain first.yaml layers.1.u": "shardinit explain first.yaml layers.1.up ",
        "shardinit explain llama3.1-405b model.n": "shardinit explain llama3.1-405b model.norm.weight ",
        "shardinit plan first.yaml --mesh mo": "shardinit plan first.yaml --mesh model=",
        "shardinit plan first.yaml --mesh data=2,m": "shardinit plan first.yaml --mesh data=2,model=",
        "shardinit plan first.yaml --mesh=data=2,m": "shardinit plan first.yaml --mesh=data=2,model=",
        "shardinit plan first.yaml --set vars.w": "shardinit plan first.yaml --set vars.width=",
        "shardinit plan first.yaml --sharding=torchp": "shardinit plan first.yaml --sharding=torchprime-405b ",
        "shardinit plan first.yaml --sharding=first.": "shardinit plan first.yaml --sharding=first.yaml ",
        'shardinit digest first.yaml --only "layers.1.u': 'shardinit digest first.yaml --only "layers.1.up" ',
        "shardinit explain wrong.yaml e": "shardinit explain wrong.yaml e",
    }.items():
        assert prompt.complete(typed) == line + "X"
