"""Tests that `shardinit-capture` compares its spec with the constructor, by default and on request."""

import collections
import json
import os
import re
import subprocess
import sys

import pytest
from clients import LIBRARY, PACKAGE, client_of, like_torch_cpu

torch = client_of("torch")

import shardinit
import shardinit.capture
from shardinit import _torch_cpu
from shardinit.capture import _verify
from shardinit.capture._command import main
from torch import nn

MODELS = """
import numpy, torch
from torch import nn

class Model(nn.Module):
    def __init__(self, of="", layers=5):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))
        self.table = nn.Embedding(900, 100)
        if of == "chance":
            self.chance = nn.Parameter(torch.full((3,), numpy.random.default_rng().random()))
        if of == "seeded otherwise":  # The recorder's class, so only a constructor that is recorded does so.
            modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
            if not any(type(mode).__name__ == "Recorder" for mode in modes):
                self.layers[4].weight.data[7, 7] += 1
        if of == "captured alone":
            torch.utils._python_dispatch._get_current_dispatch_mode_stack()[0]
"""


Done = collections.namedtuple("Done", "returncode stdout stderr")


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Returns a function that runs the program in this process, since PyTorch takes seconds to load."""
    (tmp_path / "models_to_verify.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "models_to_verify", raising=False)

    def run(of, *arguments, model="models_to_verify:Model"):
        given = json.dumps({"of": of} if isinstance(of, str) else of)
        status = main(["torch", model, "--args", given, "-o", "x.yaml", *arguments])
        return Done(status, *capsys.readouterr())

    return run


@like_torch_cpu()
def test_capture_compares_a_sample_by_default(command):
    done = command("", "--engine", "torch_cpu")
    assert (done.returncode, done.stdout) == (0, "")
    # Three of five layers are compared.
    assert done.stderr == "x.yaml: 11 tensors\nx.yaml: compared with the constructor: 7 tensors: 7 equal\n"
    done = command("chance")
    assert done.returncode == 1 and re.search(r"^chance +1 +different: ", done.stdout, re.M)
    assert command("chance", "--verify", "none").returncode == 0
    for words in (("--verify", "all"), ()):
        done = command("seeded otherwise", "--engine", "torch_cpu", *words)
        assert done.returncode == 1 and re.search(r"^layers.4.weight +1 +different: .*1 of 64 elements", done.stdout,
                                                  re.M)
        assert "[7, 7] is" in done.stdout


def test_quiet_capture_prints_only_errors_and_verbose_prints_more(command):
    words = {"model": "torch.nn:Linear"}
    assert command([2, 3], **words).stderr == "x.yaml: 2 tensors\nx.yaml: compared with the constructor: 2 tensors: 0 equal, 2 alike\n"
    for quiet in ("-q", "--quiet"):
        assert command([2, 3], quiet, **words) == (0, "", "")
    for verbose in ("-v", "--verbose"):
        done = command([2, 3], verbose, **words)
        assert (done.returncode, done.stderr) == (0, "x.yaml: 2 tensors\n")
        assert re.search(r"^weight +1 +alike", done.stdout, re.M) and re.search(r"^bias +1 +alike", done.stdout, re.M)
    # Errors and differences are printed even with `-q`.
    done = command("chance", "-q")
    assert done.returncode == 1 and re.search(r"^chance +1 +different: ", done.stdout,
                                              re.M) and "warning: the constructor drew" in done.stderr
    done = command([2], "-q", **words)
    assert done.returncode == 2 and done.stderr.startswith("shardinit-capture: error: ")
    with pytest.raises(SystemExit) as status:
        command([2, 3], "-q", "-v", **words)
    assert status.value.code == 2


def test_capture_reports_what_it_cannot_verify(command, monkeypatch):
    done = command([100000, 100000], model="torch.nn:Linear")
    assert (done.returncode, done.stdout) == (0, "")
    assert "x.yaml: not verified: its tensors have 37.3 GiB, and for a sample a constructor makes 1 GiB at most" in done.stderr
    assert "hint: verify all of it (`--verify all`)" in done.stderr
    done = command("captured alone")
    assert done.returncode == 0
    assert "not verified: the constructor fails when it is not captured: IndexError: list index out of range" in done.stderr
    done = command("captured alone", "--verify", "all")
    assert done.returncode == 2 and "error: the constructor fails when it is not captured: IndexError" in done.stderr
    monkeypatch.setenv("SHARDINIT_LIBRARY", "/nowhere/libshardinit.so.1")  # The program is not found, either.
    monkeypatch.setenv("PATH", "/nowhere")
    done = command("")
    assert done.returncode == 0 and "x.yaml: not verified: the program `shardinit` is not in PATH" in done.stderr
    assert command("", "--verify", "all").returncode == 3


def test_verified_samples_are_limited_to_1_gib():
    assert _verify.LARGEST_SAMPLED == 1 << 30
    with pytest.raises(ValueError, match='`tensors` is "all" or "sample"'):
        shardinit.capture.torch(nn.Linear, 2, 3).verify("some")


@like_torch_cpu()
def test_verify_locates_differences_in_large_tensors():
    """A sample finds and locates a difference at the beginning, in the middle or at the end of a large tensor; a full
    comparison finds any difference."""
    for index, seen in (((0, 0, 0), True), ((20, 100, 20), True), ((39, 199, 39), True), ((3, 0, 0), False)):
        def make():
            module = nn.Module()
            module.weight = nn.Parameter(torch.randn(40, 200, 40))
            modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
            if not any(type(mode).__name__ == "Recorder" for mode in modes):
                module.weight.data[index] += 1
            return module

        verified = shardinit.capture.torch(make, engine="torch_cpu").verify("sample")
        assert verified.good is not seen
        assert not seen or f"[{', '.join(map(str, index))}] is" in verified.tensors[0].note
        assert not shardinit.capture.torch(make, engine="torch_cpu").verify().good


def other_pytorch(folder, code):
    """Returns the output of a process in which PyTorch does not use the engine's instructions."""
    done = subprocess.run(
        [sys.executable, "-c", "import torch, shardinit, shardinit.capture\n" + code], capture_output=True, text=True,
        timeout=300, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PACKAGE), "SHARDINIT_LIBRARY": str(LIBRARY),
             "ATEN_CPU_CAPABILITY": "default"})
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


WARNING = "PyTorch runs here with the instructions DEFAULT, and `torch_cpu/2.13/avx2` has the numbers that it draws with"


@like_torch_cpu()
def test_capture_warns_about_other_cpu_instructions(tmp_path):
    (tmp_path / "spec.yaml").write_text(shardinit.capture.torch(nn.Linear, 20, 20, engine="torch_cpu").text)
    torch.manual_seed(0)
    real = nn.Linear(20, 20).weight.detach().numpy().tobytes().hex()
    (tmp_path / "other.yaml").write_text(shardinit.capture.torch(nn.Linear, 20, 20).text)
    (out, warned) = other_pytorch(tmp_path, """
model = torch.nn.Linear(20, 20)
shardinit.torch.init_(model, "spec.yaml")
print(model.weight.detach().numpy().tobytes().hex())
with shardinit.torch.from_spec("spec.yaml"):
    model = torch.nn.Linear(20, 20)
print(model.weight.detach().numpy().tobytes().hex())
captured = shardinit.capture.torch(torch.nn.Linear, 20, 20, engine="torch_cpu")
verified = captured.verify("sample")
print(verified.good, verified.table().splitlines()[-1])
shardinit.torch.init_(model, "other.yaml")
shardinit.capture.torch(torch.nn.Linear, 20, 20)
""")
    first, second, verified = out.splitlines()
    assert first == second == real
    assert verified == f"False {WARNING} AVX2 and AVX512: this alone may explain the differences"
    assert warned.count(WARNING) == 3 and "CaptureWarning: " + WARNING in warned
    lines = [int(line) for line in re.findall(r"<string>:(\d+): UserWarning: " + WARNING[:30], warned)]
    assert lines == [4, 6] and "the model gets the engine" in warned


def test_capture_warns_about_another_pytorch_version(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.14.0+cpu")
    assert _torch_cpu.difference() == ("this is PyTorch 2.14.0+cpu, and `torch_cpu/2.13/avx2` has the numbers of"
                                       " PyTorch 2.13")


class Magnified(nn.Module):
    """Recurrent models initialize rates like this, where one ulp of `exp` becomes a hundred ulps of the result."""

    def __init__(self, bias=0.0):
        super().__init__()
        rate = torch.empty(4000).uniform_(0.9**2 + 1e-8, 0.999**2 + 1e-8)
        rate.log_().mul_(0.5).neg_().exp_().sub_(1.0).log_()
        self.rate = nn.Parameter(rate)
        self.plain = nn.Parameter(torch.empty(4000).uniform_(1.5, 2).log_())
        if bias and type(self.rate.data) is torch.Tensor:  # This is skipped while the constructor is recorded.
            self.rate.data[7] *= 1 + bias
            self.plain.data[7] *= 1 + bias


@like_torch_cpu()
def test_verify_tolerates_magnified_rounding_differences():
    found = {t.path: t for t in shardinit.capture.torch(Magnified, engine="torch_cpu").verify().tensors}
    assert found["rate"].result == "inexact" and found["rate"].ulps > 4
    assert found["plain"].result in ("equal", "inexact") and found["plain"].ulps <= 4
    # A thousand ulps are too many for both; the plain logarithm may only differ by a few.
    for bias, different in ((2e-6, {"plain"}), (1e-3, {"rate", "plain"})):
        tensors = shardinit.capture.torch(Magnified, bias, engine="torch_cpu").verify().tensors
        assert {t.path for t in tensors if t.result == "different"} == different


@like_torch_cpu()
@pytest.mark.parametrize("shape, square", [((60, 60), True), ((40, 90), False), ((90, 4, 10), False)])
def test_verify_tolerates_nearly_singular_orthogonal_matrices(shape, square):
    def make(place=None, by=0.0):
        module = nn.Module()
        module.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(shape)))
        if place is not None and type(module.weight.data) is torch.Tensor:
            module.weight.data[place] += by
        return module

    for place, by, good in ((None, 0, True), ((0,) * len(shape), 1e-4, False),
                            ((-1,) * len(shape), 1e-4, square), ((-1,) * len(shape), 1e-1, False)):
        verified = shardinit.capture.torch(make, place, by, engine="torch_cpu").verify("sample")
        assert verified.good is good, (place, by, verified.table())
