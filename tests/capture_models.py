#!/usr/bin/env python3
"""Compares models of Transformers, torchvision, timm, diffusers and PyTorch, constructed after torch.manual_seed, with
`shardinit gen` of the spec that shardinit-capture writes for them: every parameter and buffer, bit for bit, for
several seeds and default types. Meshes have 1 rank, 2 × 2 ranks, and 3 ranks with uneven parts; each rank's file is
made separately. Prints a table.

    python tests/capture_models.py [--only PATTERN] [--quick] [-o TABLE]

Not in CI, except for the part in tests/python/test_capture_torch_cpu.py. Needs tests/requirements-clients.txt, and
torchvision, timm and diffusers for all models; models whose package is missing are skipped. SHARDINIT_LIBRARY names
libshardinit."""

import argparse
import json
import math
import pathlib
import re
import sys
import tempfile
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src/python"), str(ROOT / "tests/python")]
warnings.filterwarnings("ignore")

import capture_zoo
import shardinit
import shardinit.capture
import torch
from shardinit import _native
from shardinit.capture._verify import compare

SEEDS = (0, 1, 42, 2**63 + 5)
DTYPES = ("f32", "bf16")
MESHES = {"2×2": {"a": 2, "b": 2}, "3": {"a": 3}}


def on_mesh(captured, axes, place):
    """Makes a checkpoint, one call for each rank, on a mesh that shards every tensor by as many axes as it has
    dimensions."""
    captured.write(place / "spec.yaml")
    cut = {path: [*axes, *[None] * 8][:len(shape)] for path, (shape, _) in captured.tensors.items() if shape}
    (place / "cluster.yaml").write_text(json.dumps(
        {"shardinit": 1, "include": ["spec.yaml"], "mesh": {"axes": axes}, "uneven": "chunk", "sharding": cut}))
    for rank in range(math.prod(axes.values())):
        _native.run("gen", str(place / "cluster.yaml"), "-o", str(place / "out"), "--json", f"--ranks={rank}")
    return str(place / "out")


class Row:
    def __init__(self, name):
        self.name, self.tensors, self.elements, self.lines = name, 0, 0, 0
        self.compared = self.inexact = self.ulps = self.different = 0
        self.problem, self.seconds = "", 0.0

    def add(self, verified):
        for tensor in verified.tensors:
            self.compared += 1
            self.inexact += tensor.result == "inexact"
            self.ulps = max(self.ulps, tensor.ulps if tensor.result == "inexact" else 0)
            self.different += tensor.result == "different"
        if not verified.good:
            print(verified.table(), file=sys.stderr)

    def result(self):
        if self.problem:
            return self.problem
        if self.different:
            return f"{self.different} DIFFERENT"
        return "equal" if not self.inexact else f"equal, {self.inexact} inexact by {self.ulps:.0f} ulps at most"


def run_model(name, seeds, dtypes):
    row = Row(name)
    began = time.monotonic()
    make = capture_zoo.ALL[name]
    try:
        make()
    except Exception as error:
        row.problem = f"not made: {type(error).__name__}: {str(error).splitlines()[0][:60] if str(error) else ''}"
        return row
    try:
        for dtype in dtypes:
            for seed in seeds:
                captured = shardinit.capture.torch(make, engine="torch_cpu", seed=seed, dtype=dtype, buffers="all")
                verified = captured.verify()
                row.add(verified)
        row.tensors, row.lines = len(captured.tensors), len(captured.text.splitlines())
        row.elements = sum(torch.Size(shape).numel() for shape, _ in captured.tensors.values())
        real = captured._real(captured.seed)
        for axes in MESHES.values():
            with tempfile.TemporaryDirectory() as place:
                row.add(compare(captured, real, on_mesh(captured, axes, pathlib.Path(place))))
    except shardinit.ShardinitError as error:
        problems = getattr(error, "problems", {}) or {"": str(error)}
        row.problem = "; ".join(sorted({re.sub(r": `.*| at /.*", "", why.splitlines()[0])
                                        for why in problems.values()}))
    row.seconds = time.monotonic() - began
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="models whose names match this")
    parser.add_argument("--quick", action="store_true", help="one seed and type, but all meshes")
    parser.add_argument("-o", "--output", help="where the table goes, too")
    options = parser.parse_args()
    names = [name for name in capture_zoo.ALL if re.search(options.only, name)]
    head = "| model | tensors | elements | spec's lines | compared | result | s |\n|---|---|---|---|---|---|---|"
    print(head, flush=True)
    lines, rows = [head], []
    for name in names:
        row = run_model(name, SEEDS[2:3] if options.quick else SEEDS, DTYPES[:1] if options.quick else DTYPES)
        lines.append(f"| {row.name} | {row.tensors} | {row.elements:,} | {row.lines} | {row.compared:,} | "
                     f"{row.result()} |"
                     f" {row.seconds:.0f} |")
        print(lines[-1], flush=True)
        rows.append(row)
    good = [row for row in rows if not row.problem and not row.different]
    lines.append(f"\n{len(good)} of {len(rows)} models: {sum(r.compared for r in good):,} tensors compared,"
                 f" {sum(r.inexact for r in good):,} of them inexact, {sum(r.different for r in rows)} different")
    print(lines[-1])
    if options.output:
        pathlib.Path(options.output).write_text("\n".join(lines) + "\n")
    return 0 if all(not row.different for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
