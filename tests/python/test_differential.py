"""Runs tests/differential.py, a manual tool for any number of elements, on a few elements."""

import os
import re
import subprocess
import sys

import pytest

from clients import client_of
from generated import SEED
from support import ROOT, run_ok

client_of("jax")
client_of("torch")


def differential(*arguments):
    return subprocess.run([sys.executable, ROOT / "tests/differential.py", *map(str, arguments)], text=True,
                          capture_output=True, timeout=540, check=False)


@pytest.mark.parametrize("pair", ["reference", "xla", "torch", "jax"])
def test_differential_py_finds_a_few_elements_equal(pair):
    done = differential("--elements", 300_000, "--seed", SEED, pair)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(rf"seed {SEED}\n{pair}: [\d,]+ elements of \d+ cases are equal, in \d+ s\n", done.stdout)


def test_differential_py_rejects_an_unknown_pair():
    done = differential("numpy")
    assert done.returncode == 2 and "no pair has the name numpy" in done.stderr


def test_reference_command_prints_digests(tmp_path):
    """`python -m reference` prints digests that other implementations can be compared with."""
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: few\ndtype: bf16\nmodules:\n"
                    "  a: {shape: [7, 5], init: {normal: {std: 0.02}}}\n  b: {shape: [3], init: ones}\n")
    run_ok("gen", spec, "-o", tmp_path / "out")
    *tensors, (model, _) = [line.split() for line in run_ok("digest", tmp_path / "out").stdout.splitlines()]
    made = subprocess.run([sys.executable, "-m", "reference", tmp_path / "out/plan.json"], check=True, text=True,
                          capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT / "tests/python")}).stdout
    assert made.splitlines() == [f"{digest} {path}" for digest, path in sorted(tensors, key=lambda t: t[1])] + [model]
