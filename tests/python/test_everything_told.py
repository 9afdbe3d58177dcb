"""Compares the exact output of all commands for each spec in tests/leaves with tests/leaves/NAME.told.

A line with `$` is a command. Its output follows, then its messages with `! `, and its status unless that is 0. Each
file that it wrote to the folder `o` is listed with its length and digest, except HDF5 files, whose bytes depend on the
version of HDF5. UPDATE_GOLDEN=1 records the present output. Review the difference as for golden/."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess

import pytest

from support import BINARY, CLEAN, ROOT, run_ok
from test_every_leaf import SPECS, folder  # noqa: F401

FOLDER = ROOT / "tests/leaves"
LAYOUTS = {"laid_out": ["one", "two", "three"], "experts": ["torch_dist", "maxtext", "hub"], "stream": ["joined"]}
# Facts in a checkpoint's text files about its HDF5 files and, through these, its other text files.
OF_HDF5 = re.compile(rb'"(size|receipt_sha256|metadata_sha256)": ("[0-9a-f]{64}"|[0-9]+)|"index": \{[^{}]*\}')
LONG = 8000  # characters; of longer output, the first tenth and a digest are recorded
MESHES = {"sharded": "pipe=2,fsdp=2,tensor=2", "laid_out": "a=4,b=1", "languages": "data=4,fsdp=1,tensor=2", "training": "data=1,expert=4,tensor=2", "keras": "", "kinds": "fsdp=3,tensor=2",
          "experts": "fsdp=1,expert=3,tensor=2"}  # the mesh for resharding each


def commands(name, layout, paths):
    """Yields the commands for a spec or one of its layouts, and for `paths` of its tensors. They write `o` and `r`."""
    spec, mesh = f"{name}.yaml", MESHES.get(name, "fsdp=3")
    if not layout:
        yield from (f"validate {spec}", f"validate {spec} --json", f"jobs slurm {spec} -o /mnt/models/out --nodes 2",
                    f"jobs kubernetes {spec} -o /mnt/models/out --mount /mnt/models --nodes 2 --image i --volume v")
    for more in ("", " --json", " --dot", " --depth 1"):
        yield f"graph {spec}{layout}{more}"
    for more in ("", " --json", " --rank 1", " --part 1/3", " --devices", " --tokens 9000", " --replicas full", " --replicas dedupe --json"):
        yield f"plan {spec}{layout}{more} --jobs 2"  # The printed memory depends on the number of threads.
    for more in ("", " --json"):
        yield f"digest {spec}{layout}{more}"
        yield f"stats {spec}{layout}{more}"
        yield f"diff {spec} {spec}{layout} --set seed=4{more}"
        for path in paths:
            yield f"explain {spec} {path}{layout}{more}"
    yield f"explain {spec} {paths[-1]}{layout} --rank 1"
    if mesh:
        yield f"program {spec}{layout} --mesh {re.sub('=[0-9]+', '=1', mesh)} --stack"
    for more in ("", " --stack", " --rank 1 --arith f64"):
        yield f"program {spec}{layout}{more}"
    for to in ("safetensors --max-shard-size 200", "dcp", "dcp --optimizer adamw", "hf-dcp", "megatron", "zarr", "keras"):
        yield f"export {spec}{layout} --to {to} -o o"
        yield "inspect o --json"
    yield f"gen {spec}{layout} -o o"
    yield from ("status o", "status o --json", "verify o", "inspect o", "inspect o --json", "stats o --json", "digest o --json")
    yield f"verify o --spec {spec}{layout} --json"
    yield f"diff {spec} o{layout}"
    yield from (f"reshard o {'--mesh ' + mesh if mesh else ''} --uneven chunk -o r", "status r --json", "digest r", "diff o r --values", "diff o r")
    yield from ("convert o --to safetensors -o r", "digest r", "inspect r --json", f"stats r --spec {spec}{layout} --json")


def said_by(command, folder):
    words = shlex.split(command)
    made = words[words.index("-o") + 1] if "-o" in words and words[0] != "jobs" else None
    if made:
        shutil.rmtree(folder / made, ignore_errors=True)
    done = subprocess.run([BINARY, *words], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=CLEAN, timeout=120)
    printed = done.stdout
    if len(printed) > LONG:
        printed = f"{printed[:LONG // 10]}\n… {len(printed)} characters, {hashlib.sha256(printed.encode()).hexdigest()}\n"
    text = f"$ {command}\n" + printed + re.sub(r"^", "! ", done.stderr, flags=re.M).removesuffix("! ")
    if done.returncode != 0:
        text += f"exit {done.returncode}\n"
    if made and (folder / made).is_dir():
        for path in sorted((folder / made).rglob("*")):
            if path.is_file():
                content = OF_HDF5.sub(b"", path.read_bytes())
                what = "HDF5" if path.suffix in (".h5", ".keras") else f"{len(content)} {hashlib.sha256(content).hexdigest()}"
                text += f"{path.relative_to(folder)} {what}\n"
    # Times differ between runs.
    return re.sub(r" in [0-9.]+ s \([0-9.]+ [A-Z]*B/s\)", " in T", re.sub(r'"seconds": [0-9.e-]+', '"seconds": T', text))


@pytest.mark.parametrize("name", SPECS)
def test_told(name, folder):  # noqa: F811
    spec = f"{name}.yaml"
    (folder / spec).write_text(SPECS[name].replace("BASE", run_ok("digest", "base", cwd=folder).stdout.split()[-2]))
    told = ""
    for layout in ["", *(f" --layout {layout}" for layout in LAYOUTS.get(name, []))]:
        lines = run_ok("digest", spec, *layout.split(), cwd=folder).stdout.splitlines()
        paths = [line.split()[1] for line in lines if not line.endswith("(model)")]
        told += "".join(said_by(command, folder) for command in commands(name, layout, paths)).replace(str(folder), "$TMP")
    path = FOLDER / f"{name}.told"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(told)
    assert told == path.read_text()
