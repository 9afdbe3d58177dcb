"""Compares the output of all commands for each spec in tests/leaves with golden/leaves.txt.

A line of that file has a spec and its layout, a command, and the digest of all that the command printed and wrote, with
any options. The files that it wrote count, except HDF5 files, whose bytes depend on the version of HDF5. The full text
is in build/recorded/leaves/ after a test that passes. `sh tests/run.sh record` records the present output."""

import collections
import hashlib
import os
import re
import shlex
import shutil
import subprocess

import pytest

from recorded import GOLDEN, difference, keep, record, summary, without_times
from support import BINARY, CLEAN, run_ok
from test_every_leaf import SPECS, folder  # noqa: F401

LAYOUTS = {"laid_out": ["one", "two", "three"], "experts": ["torch_dist", "maxtext", "hub"], "stream": ["joined"]}
# Facts in a checkpoint's text files about its HDF5 files and, through these, its other text files.
OF_HDF5 = re.compile(rb'"(size|receipt_sha256|metadata_sha256)": ("[0-9a-f]{64}"|[0-9]+)|"index": \{[^{}]*\}')
MESHES = {"sharded": "pipe=2,fsdp=2,tensor=2", "laid_out": "a=4,b=1", "languages": "data=4,fsdp=1,tensor=2",
          "training": "data=1,expert=4,tensor=2", "keras": "", "kinds": "fsdp=3,tensor=2",
          "experts": "fsdp=1,expert=3,tensor=2"}  # the mesh for resharding each


def commands(name, layout, paths):
    """Yields the commands for a spec or one of its layouts, and for `paths` of its tensors. They write `o` and `r`."""
    spec, mesh = f"{name}.yaml", MESHES.get(name, "fsdp=3")
    if not layout:
        yield from (f"validate {spec}", f"validate {spec} --json", f"jobs slurm {spec} -o /mnt/models/out --nodes 2",
                    f"jobs kubernetes {spec} -o /mnt/models/out --mount /mnt/models --nodes 2 --image i --volume v")
    for more in ("", " --json", " --dot", " --depth 1"):
        yield f"graph {spec}{layout}{more}"
    for more in ("", " --json", " --rank 1", " --part 1/3", " --devices", " --tokens 9000", " --replicas full",
                 " --replicas dedupe --json"):
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
    for to in ("safetensors --max-shard-size 200", "dcp", "dcp --optimizer adamw", "hf-dcp", "megatron", "zarr",
               "keras"):
        yield f"export {spec}{layout} --to {to} -o o"
        yield "inspect o --json"
    yield f"gen {spec}{layout} -o o"
    yield from ("status o", "status o --json", "verify o", "inspect o", "inspect o --json", "stats o --json",
                "digest o --json")
    yield f"verify o --spec {spec}{layout} --json"
    yield f"diff {spec} o{layout}"
    yield from (f"reshard o {'--mesh ' + mesh if mesh else ''} --uneven chunk -o r", "status r --json", "digest r",
                "diff o r --values", "diff o r")
    yield from ("convert o --to safetensors -o r", "digest r", "inspect r --json",
                f"stats r --spec {spec}{layout} --json")


def run_command(command, where):
    words = shlex.split(command)
    made = words[words.index("-o") + 1] if "-o" in words and words[0] != "jobs" else None
    if made:
        shutil.rmtree(where / made, ignore_errors=True)
    done = subprocess.run([BINARY, *words], cwd=where, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env=CLEAN, timeout=120)
    text = f"$ {command}\n" + done.stdout + re.sub(r"^", "! ", done.stderr, flags=re.M).removesuffix("! ")
    if done.returncode != 0:
        text += f"exit {done.returncode}\n"
    if made and (where / made).is_dir():
        for path in sorted((where / made).rglob("*")):
            if path.is_file():
                content = OF_HDF5.sub(b"", path.read_bytes())
                what = "HDF5" if path.suffix in (".h5",
                                                 ".keras") else f"{len(content)} {hashlib.sha256(content).hexdigest()}"
                text += f"{path.relative_to(where)} {what}\n"
    return without_times(text)


@pytest.mark.parametrize("name, layout", [(name, layout) for name in SPECS for layout in ["", *LAYOUTS.get(name, [])]])
def test_output_for_leaves_is_as_recorded(name, layout, folder, tmp_path):  # noqa: F811
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    spec = f"{name}.yaml"
    (tmp_path / spec).write_text(SPECS[name].replace("BASE", run_ok("digest", "base", cwd=tmp_path).stdout.split()[-2]))
    option = f" --layout {layout}" if layout else ""
    lines = run_ok("digest", spec, *option.split(), cwd=tmp_path).stdout.splitlines()
    paths = [line.split()[1] for line in lines if not line.endswith("(model)")]
    said = collections.defaultdict(str)
    for command in commands(name, option, paths):
        said[command.split()[0]] += run_command(command, tmp_path).replace(str(tmp_path), "$TMP")
    rows = {f"{name} {layout or '-'} {command}": summary(text) for command, text in said.items()}
    path = GOLDEN / "leaves.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        record(path, lambda text: "".join(sorted(f"{key}: {row}\n" for key, row in (parse_rows(text) | rows).items())))
    recorded = {key: row for key, row in parse_rows(path.read_text()).items()
                    if key.startswith(f"{name} {layout or '-'} ")}
    full = "".join(said.values())
    if rows != recorded:
        difference(full, f"leaves/{name} {layout}")
    assert rows == recorded
    keep(full, f"leaves/{name} {layout}")


def parse_rows(text):
    return dict(line.split(": ", 1) for line in text.splitlines())
