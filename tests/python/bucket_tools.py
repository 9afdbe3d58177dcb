"""Shared by the bucket tests: runs the tool with a test store, and defines faults of stores."""

import os
import random
import re
import shutil
import subprocess

import numpy as np
import safetensors.numpy
from support import BINARY, tree_of


def tool(store, *words, folder=None, binary=BINARY, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return subprocess.run([binary, *words], env={**kept, **store.environment, **environment}, cwd=folder,
                          capture_output=True, text=True, timeout=300, check=False)


def ok(store, *words, **options):
    done = tool(store, *words, **options)
    assert done.returncode == 0, done
    return done


def begin(store, *words, folder):
    return subprocess.Popen([BINARY, *words], env={**os.environ, **store.environment}, cwd=folder,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def put(store, folder, prefix="models/in"):
    if folder.is_file():
        return store.put(prefix, folder.read_bytes())
    for name, data in files_of(folder).items():
        store.put(f"{prefix}/{name}", data)


def compare(store, words, folder, name="in", **environment):
    """Runs a command on a folder in the bucket and on its copy on disk, and checks that output and results are
    equal."""
    url = f"s3://bucket/models/{name}"
    out = [folder / "out"] if words[-1] == "-o" else []
    done, made = [], []
    for path in (url, name):
        given = [path if word == name else word for word in words]
        done.append(tool(store, *given, *out, folder=folder, **environment))
        made.append(tree_of(folder / "out") if (folder / "out").exists() else None)
        shutil.rmtree(folder / "out", ignore_errors=True)
    there, here = (re.sub(r"wrote .*|copied .*", "", each.stdout + each.stderr).replace(url, name) for each in done)
    assert (done[0].returncode, there) == (done[1].returncode, here), (words, there, here)
    assert made[0] == made[1] and (made[0] is None) == (not out or done[0].returncode != 0), words
    return done[0].returncode


class Faults:
    """Answers a random share of requests with faults that suit the operation."""

    def __init__(self, seed, share=0.3):
        self.random, self.share = random.Random(seed), share
        self.made = set()

    def __call__(self, request):
        if self.random.random() > self.share:
            return None
        kinds = [503, 500, 502, "drop", "lose", "slow"]
        if request.kind in ("put", "complete"):
            kinds += [409, 409]
        if request.kind in ("complete", "part", "begin"):
            kinds += ["error200", "blank200"]
        fault = self.random.choice(kinds)
        self.made.add((request.kind, fault))
        return fault


class Once:
    """Answers the first request of a kind for each object, or for each of its parts, with a fault."""

    def __init__(self, kind, fault):
        self.kind, self.fault = kind, fault
        self.met = set()

    def __call__(self, request):
        mark = (request.kind, request.key, request.query.get("partNumber"))
        if request.kind != self.kind or mark in self.met:
            return None
        self.met.add(mark)
        return self.fault


def make_two_models(folder):
    """Writes `first/model` and `second/model`: safetensors with different values and fixed times."""
    for name, value in (("first", 1), ("second", 2)):
        model = folder / name / "model"
        model.mkdir(parents=True)
        safetensors.numpy.save_file({"w": np.full((64, 64), value, np.float32), "v": np.full(9, value, np.float32)},
                                    model / "model.safetensors")
        os.utime(model / "model.safetensors", (value, value))
