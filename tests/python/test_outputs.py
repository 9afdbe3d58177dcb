"""Options that name an output file never lose a user's data and never write elsewhere.

`OUTPUTS` lists every option that names a file. test_generated_outputs.py tries every command with every kind of file
that a path can lead to."""

import errno
import json
import os
import pathlib
import socket
import stat
import subprocess
import sys

import pytest

from interposed import interposed, rule
from recorded import file_of
from support import BINARY, CLEAN, OF_ANY, ROOT, run_json, run_ok, run_tool, tree_of

SPEC = """
shardinit: 1
name: small
dtype: f32
mesh: {axes: {a: 2}}
modules:
  w: {shape: [4, 6], shard: [a], init: {normal: {std: 0.5}}}
  b: {shape: [6], init: zeros}
"""
CONFIG = file_of("import", "import_config", "config.json").read_text()
CAPTURE = [sys.executable, "-m", "shardinit.capture"]
# The command with a spec that is captured instantly.
CAPTURED = [sys.executable, "-c", '''import sys
from shardinit.capture import Captured, _command
_command._capture = lambda options: Captured("# Linear, captured by shardinit-capture from PyTorch.\\nshardinit: 1\\n", {})
sys.exit(_command.main(sys.argv[1:]))''']
PYTHON = {**CLEAN, "PYTHONPATH": str(ROOT / "src/python"), "SHARDINIT": str(BINARY),
          "SHARDINIT_LIBRARY": str(BINARY.parent / "libshardinit.so.1")}

# option → the words before its path, in a folder with `spec.yaml` and `config.json`, and the first bytes of the output
OUTPUTS = {
    "program -o": (["program", "spec.yaml", "-o"], "module @\"small\" "),
    "plan --write": (["plan", "spec.yaml", "--write"], "# The sharding of small over the mesh "),
    "plan --html": (["plan", "spec.yaml", "--html"], "<!DOCTYPE html>\n"),
    "graph --html": (["graph", "spec.yaml", "--html"], "<!DOCTYPE html>\n"),
    "stats --html": (["stats", "spec.yaml", "--html"], "<!DOCTYPE html>\n"),
    "digest --write": (["digest", "spec.yaml", "--write"], '{\n "contract_version": '),
    "import -o": (["import", "config.json", "-o"], "# shardinit import config.json\n"),
    "capture -o": (["torch", "torch.nn:Linear", "--args", "[3, 2]", "--verify", "none", "-o"],
                   "# Linear, captured by shardinit-capture "),
}
PROGRAM = [name for name in OUTPUTS if not name.startswith("capture")]


def write(name, path, *options, folder, **more):
    """Runs the command of `OUTPUTS` and returns its result."""
    words = [*OUTPUTS[name][0], path, *options]
    if not name.startswith("capture"):
        return run_tool(*words, cwd=folder, **more)
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **more}
    return subprocess.run([*CAPTURED, *map(str, words)], cwd=folder, text=True, timeout=300, env=PYTHON, **more)


def is_whole(name, text):
    """Returns whether the text is the complete output of the option."""
    end = "</html>\n" if name.endswith("--html") else "}\n" if name in ("program -o", "digest --write") else "\n"
    return text.startswith(OUTPUTS[name][1]) and text.endswith(end)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "config.json").write_text(CONFIG)
    return tmp_path


@pytest.mark.quick
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_replace_only_files_of_the_same_option(name, folder):
    out = folder / "out"
    done = write(name, "out", folder=folder)
    assert done.returncode == 0, done.stderr
    first = out.read_text()
    assert is_whole(name, first)
    out.chmod(0o640)
    before = out.stat().st_ino
    assert write(name, "out", folder=folder).returncode == 0
    assert out.read_text() == first and out.stat().st_ino != before and stat.S_IMODE(out.stat().st_mode) == 0o640
    out.write_text("")  # `mktemp` creates such a file.
    assert write(name, "out", folder=folder).returncode == 0 and out.read_text() == first
    for mine in ("my notes\n", "# shardinit\nshardinit: 1\n", SPEC, "{}\n", "<!DOCTYPE html>\n<p>mine\n",
                 "module @mine {\n}\n"):
        out.write_text(mine)
        done = write(name, "out", folder=folder)
        assert done.returncode == 4 and "--force" in done.stderr and "`out`" in done.stderr, done.stderr
        assert out.read_text() == mine
    assert write(name, "out", "--force", folder=folder).returncode == 0 and out.read_text() == first
    assert sorted(p.name for p in folder.iterdir() if p.name[0] == ".") == []


def test_outputs_of_other_options_are_not_replaced(folder):
    for name in PROGRAM:
        assert write(name, f"of {name}", folder=folder).returncode == 0
    for name in PROGRAM:
        for other in PROGRAM:
            assert write(name, f"of {other}", folder=folder).returncode == (0 if name == other else 4), (name, other)


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
def test_outputs_follow_links_and_keep_node_types(name, force, folder):
    """Links are followed and kept; files that are not regular keep their type."""
    (folder / "sub").mkdir()
    (folder / "link").symlink_to("sub/next")
    (folder / "sub/next").symlink_to("target")
    for _ in range(2):  # The link first leads to nothing, then to the output.
        done = write(name, "link", *force, folder=folder)
        assert done.returncode == 0, done.stderr
        assert is_whole(name, (folder / "sub/target").read_text())
        assert (folder / "link").is_symlink() and (folder / "sub/next").is_symlink()
    (folder / "sub/target").write_text("mine")
    if not force:
        assert write(name, "link", folder=folder).returncode == 4
        assert (folder / "sub/target").read_text() == "mine"
    (folder / "a").symlink_to("b"), (folder / "b").symlink_to("a")
    done = write(name, "a", *force, folder=folder)
    assert done.returncode == 2 and "leads to itself" in done.stderr and "Traceback" not in done.stderr
    for path in (".", "sub", "sub/", "new/"):
        done = write(name, path, *force, folder=folder)
        assert done.returncode in (2, 3) and "folder" in done.stderr, done.stderr
    for path in ("none/out", "spec.yaml/out"):
        done = write(name, path, *force, folder=folder)
        assert done.returncode in (2, 3) and "Traceback" not in done.stderr, done.stderr
    os.mkfifo(folder / "pipe")
    with subprocess.Popen(["cat", folder / "pipe"], stdout=subprocess.PIPE, text=True) as cat:
        done = write(name, "pipe", *force, folder=folder)
        assert done.returncode == 0 and is_whole(name, cat.stdout.read()), done.stderr
    assert stat.S_ISFIFO((folder / "pipe").lstat().st_mode)
    assert set(os.listdir(folder)) == {"spec.yaml", "config.json", "sub", "link", "a", "b", "pipe"}


root = pytest.mark.skipif(os.geteuid() != 0, reason="not tested: only root makes devices")


def make_device(path, major, minor, kind=stat.S_IFCHR):
    try:
        os.mknod(path, kind | 0o666, os.makedev(major, minor))
        os.close(os.open(path, os.O_WRONLY))
    except OSError as error:
        pytest.skip(f"not tested: no devices can be made here ({error})")


@root
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_to_devices_keep_them(name, folder):
    """Devices stay devices. The test never uses /dev/null itself: a tool that replaced it would break the machine."""
    make_device(folder / "null", 1, 3)
    make_device(folder / "full", 1, 7)
    before = (folder / "null").stat().st_ino
    done = write(name, "null", folder=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "null").stat().st_ino == before and stat.S_ISCHR((folder / "null").stat().st_mode)
    done = write(name, "full", folder=folder)
    assert done.returncode == 3 and "No space left" in done.stderr, done.stderr
    assert stat.S_ISCHR((folder / "full").stat().st_mode)


@root
def test_block_devices_are_not_written(folder):
    try:
        os.mknod(folder / "disk", stat.S_IFBLK | 0o666, os.makedev(7, 4095))  # a loop device that does not exist
    except OSError as error:
        pytest.skip(f"not tested: no devices can be made here ({error})")
    for name in PROGRAM:
        done = write(name, "disk", folder=folder)
        assert done.returncode in (3, 4) and stat.S_ISBLK((folder / "disk").stat().st_mode), done.stderr


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_may_be_standard_output(name, folder):
    """Standard output may be a pipe, a file made by the shell, or the end of a file; `/dev/stdout` can be any of
    them."""
    done = write(name, "/dev/stdout", folder=folder)
    assert done.returncode == 0 and done.stdout.startswith(OUTPUTS[name][1]), done.stderr
    with open(folder / "log", "w") as log:
        log.write("before\n")
        log.flush()
        assert write(name, "/dev/stdout", folder=folder, stdout=log).returncode == 0
    assert (folder / "log").read_text() == "before\n" + done.stdout
    assert stat.S_ISLNK(pathlib.Path("/dev/stdout").lstat().st_mode)
    with open(folder / "named", "w") as named:  # like `-o named > named`
        assert write(name, "named", folder=folder, stdout=named).returncode == 0
    assert (folder / "named").read_text() == done.stdout
    here, there = socket.socketpair()
    with here, there:
        assert write(name, "/dev/stdout", folder=folder, stdout=there).returncode == 0
        there.close()
        assert b"".join(iter(lambda: here.recv(1 << 16), b"")).decode() == done.stdout
    if name.startswith(("import", "program", "capture")):
        assert is_whole(name, done.stdout)  # no summary follows
        assert write(name, "-", folder=folder).stdout == done.stdout
    else:
        done = write(name, "-", folder=folder)
        assert done.returncode == 2 and "needs the name of a file, not `-`" in done.stderr
    assert not (folder / "-").exists()


def test_outputs_may_be_open_descriptors(folder):
    with open(folder / "third", "w") as third:
        fd = third.fileno()
        for name in PROGRAM:
            os.ftruncate(fd, 0)
            done = write(name, f"/dev/fd/{fd}", folder=folder, pass_fds=(fd,))
            assert done.returncode == 0 and is_whole(name, (folder / "third").read_text()), done.stderr


# Inputs: the words of a command that writes to `PATH`, and the files that it reads and must not replace.
READ = {
    "program": (["program", "main.yaml", "-o", "PATH"], ["main.yaml", "base.yaml", "map.yaml", "ids.txt", "table.bin"]),
    "plan --write": (["plan", "main.yaml", "--write", "PATH"],
                     ["main.yaml", "base.yaml", "map.yaml", "ids.txt", "table.bin"]),
    "plan --html": (["plan", "main.yaml", "--html", "PATH"], ["main.yaml", "base.yaml", "map.yaml", "table.bin"]),
    "graph --html": (["graph", "main.yaml", "--html", "PATH"], ["main.yaml", "base.yaml", "map.yaml", "table.bin"]),
    "stats --html": (["stats", "main.yaml", "--html", "PATH"], ["main.yaml", "base.yaml", "map.yaml", "table.bin"]),
    "--sharding": (["plan", "spec.yaml", "--sharding", "./own.yaml", "--write", "PATH"], ["spec.yaml", "own.yaml"]),
    "digest": (["digest", "main.yaml", "--write", "PATH"], ["main.yaml", "base.yaml", "table.bin"]),
    "digest --check": (["digest", "spec.yaml", "--check", "list.json", "--write", "PATH"], ["spec.yaml", "list.json"]),
    "import": (["import", "config.json", "-o", "PATH"], ["config.json"]),
    "plan of a config": (["plan", "config.json", "--write", "PATH"], ["config.json"]),
    "standard input": (["program", "-", "-o", "PATH"], ["stdin.yaml"]),
}


@pytest.mark.quick
@pytest.mark.parametrize("case", READ)
def test_inputs_are_never_replaced(case, folder):
    """No name of an input file can be used to replace it, even with --force."""
    (folder / "table.bin").write_bytes(bytes(24))
    (folder / "base.yaml").write_text(SPEC)
    (folder / "stdin.yaml").write_text(SPEC)
    (folder / "ids.txt").write_text("1 0\n")
    sha256 = "9d908ecfb6b256def8b49a7c504e6c889c4b0e41fe6ce3e01863dd7b61a20aa0"
    (folder / "main.yaml").write_text(
        "include: base.yaml\nsharding: ./map.yaml\nmesh: {devices: ids.txt}\n"
        f"modules: {{t: {{shape: [6], init: {{file: {{path: table.bin, sha256: {sha256}}}}}}}}}\n")
    run_ok("plan", "spec.yaml", "--write", "map.yaml", cwd=folder)
    run_ok("plan", "spec.yaml", "--write", "own.yaml", cwd=folder)
    (folder / "map.yaml").write_text((folder / "map.yaml").read_text() + '  "t": null\n')
    run_ok("digest", "spec.yaml", "--write", "list.json", cwd=folder)
    words, inputs = READ[case]
    for name in inputs:
        before = (folder / name).read_bytes()
        (folder / "link").symlink_to(name)
        os.link(folder / name, folder / "hard")
        (folder / "sub").mkdir()
        for path in (name, f"./{name}", f"sub/../{name}", folder / name, "link", "hard"):
            for force in ([], ["--force"]):
                with open(folder / "stdin.yaml") as stdin:
                    done = run_tool(*[path if word == "PATH" else word for word in words], *force, cwd=folder,
                                    stdin=stdin)
                assert done.returncode == 2 and "this command reads" in done.stderr, (name, path, done)
                assert (folder / name).read_bytes() == before
        (folder / "link").unlink(), (folder / "hard").unlink(), (folder / "sub").rmdir()
    with open(folder / "stdin.yaml") as stdin:
        done = run_tool(*["new" if word == "PATH" else word for word in words], cwd=folder, stdin=stdin)
    assert done.returncode == 0, done.stderr


def test_capture_never_replaces_its_inputs(folder):
    (folder / "mine.py").write_text("from torch.nn import Linear\n")
    for words, path in ((["hf", "config.json"], "config.json"),
                        (["torch", "mine:Linear", "--args", "[2, 3]"], "mine.py")):
        before = (folder / path).read_text()
        done = subprocess.run([*CAPTURE, *words, "-o", path, "--force"], cwd=folder, env=PYTHON, text=True,
                              capture_output=True, timeout=300)
        assert done.returncode == 2 and "it would be lost" in done.stderr, done.stderr
        assert (folder / path).read_text() == before


def test_digest_checks_before_it_replaces_the_list(folder):
    """The check happens before the list is replaced; otherwise it would compare the list with itself."""
    run_ok("digest", "spec.yaml", "--write", "list.json", cwd=folder)
    done = run_tool("digest", "spec.yaml", "--set", "seed=1", "--check", "list.json", "--write", "new.json", cwd=folder)
    assert done.returncode == 1 and "w: has other values" in done.stderr
    assert (folder / "new.json").read_text() != (folder / "list.json").read_text()


UNPRIVILEGED = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@root
def test_outputs_in_read_only_folders(folder):
    """A writable file in a read-only folder is written in place; a read-only file is not replaced."""
    folder.chmod(0o755)
    for above in folder.parents:
        if above.stat().st_uid == os.geteuid() and str(above).startswith("/tmp/"):
            above.chmod(above.stat().st_mode | 0o755)
    if subprocess.run([*UNPRIVILEGED, BINARY, "plan", folder / "spec.yaml"], capture_output=True).returncode:
        pytest.skip("not tested: another user cannot run the program here")
    for name in PROGRAM:
        out = folder / "out"
        out.write_text(OUTPUTS[name][1] + 100_000 * "x")
        out.chmod(0o666)
        inode = out.stat().st_ino
        done = write(name, "out", "--force", folder=folder, wrap=UNPRIVILEGED)
        assert done.returncode == 0 and is_whole(name, out.read_text()) and out.stat().st_ino == inode, done.stderr
        out.chmod(0o644)
        before = out.read_text()
        done = write(name, "out", "--force", folder=folder, wrap=UNPRIVILEGED)
        assert done.returncode == 2 and out.read_text() == before, done.stderr
        done = write(name, "new", folder=folder, wrap=UNPRIVILEGED)
        assert done.returncode == 2 and "Permission denied" in done.stderr and not (folder / "new").exists()
        (folder / "open").mkdir()
        (folder / "open").chmod(0o777)
        (folder / "open/out").write_text("")
        (folder / "open/out").chmod(0o666)  # Another user may rename it; it stays root's.
        assert write(name, "open/out", folder=folder, wrap=UNPRIVILEGED).returncode == 0
        assert (folder / "open/out").stat().st_uid == 0 and is_whole(name, (folder / "open/out").read_text())
        (folder / "open/out").unlink(), (folder / "open").rmdir(), out.unlink()


def test_replacing_an_output_keeps_other_hard_links(folder):
    for name in PROGRAM:
        assert write(name, "out", folder=folder).returncode == 0
        os.link(folder / "out", folder / "other")
        before = (folder / "other").stat()
        assert write(name, "out", folder=folder).returncode == 0
        assert (folder / "other").stat().st_ino == before.st_ino != (folder / "out").stat().st_ino
        (folder / "out").unlink(), (folder / "other").unlink()


STORES = ["s3://bucket/x", "gs://bucket/x", "hf://org/model", "file:///tmp/x", "S3+a.b-c://x"]


@pytest.mark.quick
@pytest.mark.parametrize("store", STORES)
def test_commands_reject_urls_that_they_cannot_use(store, folder):
    run_ok("gen", "spec.yaml", "-o", "ckpt", cwd=folder)
    before = tree_of(folder)
    for words in (["gen", "spec.yaml", "-o"], ["export", "spec.yaml", "--to", "dcp", "-o"], ["reshard", "ckpt", "-o"],
                  ["export", "ckpt", "--to", "safetensors", "-o"], ["program", "spec.yaml", "--kinds", "-o"],
                  ["program", "spec.yaml", "-o"], ["plan", "spec.yaml", "--write"], ["plan", "spec.yaml", "--html"],
                  ["digest", "spec.yaml", "--write"], ["import", "config.json", "-o"], ["plan"], ["gen", "-o", "new"],
                  ["validate"], ["verify"], ["inspect"], ["status"], ["finalize"], ["stats"], ["graph"], ["import"],
                  ["digest", "spec.yaml", "--check"], ["plan", "spec.yaml", "--sharding"], ["diff", "spec.yaml"],
                  ["verify", "ckpt", "--spec"], ["reshard", "ckpt", "-o", "new", "--spec"],
                  ["export", "spec.yaml", "--to", "dcp", "-o", "new", "--optimizer"]):
        # These accept URLs: test_bucket.py, test_bucket_exports.py, test_bucket_sources.py, test_hub.py.
        takes_bucket = words in (["gen", "spec.yaml", "-o"], ["reshard", "ckpt", "-o"], ["verify"], ["status"],
                                 ["export", "spec.yaml", "--to", "dcp", "-o"], ["finalize"],
                                 ["export", "ckpt", "--to", "safetensors", "-o"])
        reads = words in (["inspect"], ["stats"], ["diff", "spec.yaml"], ["import"])
        if reads and store.startswith(("s3://", "hf://")) or takes_bucket and store.startswith("s3://"):
            continue
        done = run_tool(*words, store, cwd=folder)
        is_hub = takes_bucket and store.startswith("hf://")
        why = "is not a local folder or a bucket" if is_hub else "not a path of a file system"
        assert done.returncode == 2 and store in done.stderr and why in done.stderr, (words, done)
        assert "hint: " in done.stderr and (store.startswith("file") or "local folder" in done.stderr)
    for key in (f"include: {store}", f"sharding: {store}", f"mesh: {{axes: {{a: 2}}, devices: '{store}'}}",
                f"modules: {{t: {{shape: [6], init: {{file: {{path: '{store}', sha256: '{'0' * 64}'}}}}}}}}"):
        (folder / "sub").mkdir()
        (folder / "sub/x.yaml").write_text(SPEC.split("modules")[0].replace("mesh: {axes: {a: 2}}\n", "") + key + "\n")
        done = run_tool("plan", "sub/x.yaml", cwd=folder)
        assert done.returncode == 2 and "not a path of a file system" in done.stderr, (key, done)
        (folder / "sub/x.yaml").unlink(), (folder / "sub").rmdir()
    assert tree_of(folder) == before


def test_python_rejects_urls_that_it_cannot_use(folder, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "src/python")
    monkeypatch.setenv("SHARDINIT_LIBRARY", str(BINARY.parent / "libshardinit.so.1"))
    import shardinit
    import shardinit.capture

    monkeypatch.chdir(folder)
    with pytest.raises(shardinit.SpecError, match="not a path of a file system"):
        shardinit.open_spec("s3://bucket/x")
    with pytest.raises(ValueError, match="not a path of a file system"):
        shardinit.capture.Captured(SPEC, {}).write("s3://bucket/x")
    assert sorted(os.listdir()) == ["config.json", "spec.yaml"]


def test_local_folders_may_look_like_urls(folder):
    run_ok("gen", "spec.yaml", "-o", "./s3://x", cwd=folder)
    run_ok("verify", "./s3://x", cwd=folder)


@pytest.mark.quick
@pytest.mark.parametrize("name, options", [("digest", []), ("digest", ["--only", "*"]), ("digest", ["--only", "w*"])])
def test_digest_check_reports_tensors_the_spec_lacks(name, options, folder):
    """A list may contain tensors that `--only` leaves out, but no other unknown tensors."""
    run_ok("digest", "spec.yaml", "--write", "list.json", cwd=folder)
    listed = {**json.loads((folder / "list.json").read_text()), "model_digest": None}
    for path, differs in (("w2", True), ("zz", options != ["--only", "w*"])):
        more = {**listed, "tensors": [*listed["tensors"], {**listed["tensors"][1], "path": path}]}
        (folder / "more.json").write_text(json.dumps(more))
        done = run_tool("digest", "spec.yaml", *options, "--check", "more.json", cwd=folder)
        assert done.returncode == differs and (f"{path}: is in more.json, but not in the spec" in done.stderr) == differs
    (folder / "more.json").write_text(json.dumps({**listed, "tensors": listed["tensors"][:1]}))
    done = run_tool("digest", "spec.yaml", *options, "--check", "more.json", cwd=folder)
    assert ("is not in more.json" in done.stderr) == (done.returncode == 1) == ("w" not in str(listed["tensors"][:1])
        or not options[1:] or options[1] == "*")
    twice = {**listed, "tensors": [*listed["tensors"], listed["tensors"][0]]}
    (folder / "more.json").write_text(json.dumps(twice))
    done = run_tool("digest", "spec.yaml", *options, "--check", "more.json", cwd=folder)
    assert done.returncode == 5 and "twice" in done.stderr


FOREIGN = ["tokenizer.json", "notes.txt", ".gitattributes", "model.bin.txt", "README.md"]


@pytest.mark.parametrize("format", ["checkpoint", *OF_ANY, "keras"])
def test_verify_lists_foreign_files_without_failing(format, folder):
    layout = "modules:\n  layers.dense.vars:\n    \"0\": {shape: [4, 6], init: zeros}\n"
    spec = SPEC if format != "keras" else SPEC.split("modules")[0].replace("mesh: {axes: {a: 2}}\n", "") + layout
    (folder / "spec.yaml").write_text(spec)
    out = folder / "out"
    words = ["gen", "spec.yaml", "-o", "out"] if format == "checkpoint" else ["export", "spec.yaml", "--to", format,
                                                                              "-o", "out"]
    run_ok(*words, cwd=folder)
    assert run_json("verify", "out", cwd=folder)["foreign"] == []
    run_ok("verify", "out", "--strict", cwd=folder)
    for name in FOREIGN:
        (out / name).write_text("mine")
    (out / "mine/deep").mkdir(parents=True)
    (out / "mine/0.0").write_text("")
    (out / "link").symlink_to("/etc")
    foreign = sorted([*FOREIGN, "mine", "link"])
    found = run_json("verify", "out", cwd=folder)
    assert found["intact"] and found["foreign"] == foreign and found["findings"] == [] and not found["more_foreign"]
    done = run_ok("verify", "out", cwd=folder)
    assert all(f"{name}: is foreign: " in done.stderr for name in foreign) and "7 foreign names" in done.stdout
    done = run_tool("verify", "out", "--strict", cwd=folder)
    assert done.returncode == 1 and "7 names in it are foreign" in done.stderr
    before = tree_of(out)
    run_ok(*words, cwd=folder)  # The output is complete already.
    if format == "checkpoint":
        run_ok("verify", "out", "--spec", "spec.yaml", cwd=folder)
        assert run_tool("verify", "out", "--spec", "spec.yaml", "--strict", cwd=folder).returncode == 1
        run_ok("export", "out", "--to", "safetensors", "-o", "copy", cwd=folder)
        assert sorted(os.listdir(folder / "copy")) == ["model.safetensors", "shardinit-export.json"]
        for _ in range(2):
            run_ok("reshard", "out", "--mesh", "a=1", "-o", "copy2", cwd=folder)
            (folder / "copy2/tokenizer.json").write_text("mine")
        run_ok("gen", "spec.yaml", "-o", "out", "--repair", cwd=folder)
        run_ok("finalize", "out", cwd=folder)
    assert tree_of(out) == before


def test_verify_works_without_file_types_in_readdir(folder):
    """If the file system does not report types of names, each name is checked."""
    run_ok("gen", "spec.yaml", "-o", "checkpoint", cwd=folder)
    run_ok("export", "spec.yaml", "--to", "zarr", "-o", "zarr", cwd=folder)
    there = interposed(rule("readdir", "untyped"))
    for name in ("checkpoint", "zarr"):
        (folder / name / "link").symlink_to("/etc")
        found = [run_json("verify", name, cwd=folder, env=env) for env in (there, {})]
        assert found[0] == found[1] and found[0]["intact"] and found[0]["foreign"] == ["link"]
        run_ok("convert", name, "--to", "dcp", "-o", f"{name}-dcp", cwd=folder, env=there)


# Readers find parts by names like these, whatever the metadata lists.
LIKE_PARTS = {
    "checkpoint": ["ranks/rank-00002.h5", "ranks/rank-00002.json", "ranks/copy.h5", "ranks/rank-0.json"],
    "safetensors": ["model-00002-of-00002.safetensors", "adapter.safetensors", "model.safetensors.index.json"],
    "hf-dcp": ["shard-00009-model-00001-of-00001.safetensors"],
    "dcp": ["__7_0.distcp"],
    "zarr": ["w/9.9", "more/.zarray", "zarr.json", "manifest.ocdbt"],
}


@pytest.mark.parametrize("format", LIKE_PARTS)
def test_verify_rejects_files_that_readers_would_load(format, folder):
    words = ["gen", "spec.yaml", "-o", "out"] if format == "checkpoint" else ["export", "spec.yaml", "--to", format,
                                                                              "-o", "out"]
    run_ok(*words, cwd=folder)
    for name in LIKE_PARTS[format]:
        path = folder / "out" / name
        new = not path.parent.exists()
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
        shown = name if not new else path.parent.name
        done = run_tool("verify", "out", "--json", cwd=folder)
        assert done.returncode == 1, name
        assert [f["file"] for f in json.loads(done.stdout)["findings"]] == [shown] and not json.loads(done.stdout)["foreign"]
        path.unlink()
        if new:
            path.parent.rmdir()
    run_ok("verify", "out", "--strict", cwd=folder)


def test_a_folder_is_one_checkpoint_or_one_export(folder):
    """A folder is one checkpoint or one export of one plan, and `gen` never replaces a user's file that has one of its
    names."""
    run_ok("gen", "spec.yaml", "-o", "ckpt", cwd=folder)
    run_ok("export", "spec.yaml", "--to", "safetensors", "-o", "export", cwd=folder)
    for words, out in ((["gen", "spec.yaml"], "export"), (["gen", "spec.yaml", "--ranks", "0"], "export"),
                       (["gen", "spec.yaml", "--dry-run"], "export"), (["gen", "spec.yaml", "--repair"], "export"),
                       (["export", "spec.yaml", "--to", "dcp"], "ckpt"), (["reshard", "ckpt"], "export")):
        before = tree_of(folder)
        done = run_tool(*words, "-o", out, cwd=folder)
        assert done.returncode == 4, (words, done)
        assert tree_of(folder) == before
    before = tree_of(folder)
    done = run_tool("export", "ckpt", "--to", "safetensors", "-o", "ckpt", cwd=folder)
    assert done.returncode == 2 and "`ckpt` contains the tensors that are copied, so `-o` cannot name it" in done.stderr, done
    assert tree_of(folder) == before
    for name in ("manifest.json", "index.h5", "devices.json"):
        (folder / "web").mkdir()
        (folder / "web" / name).write_text("mine")
        done = run_tool("gen", "spec.yaml", "-o", "web", cwd=folder)
        assert done.returncode == 4 and name in done.stderr and tree_of(folder / "web") == {name: b"mine"}
        (folder / "web" / name).unlink(), (folder / "web").rmdir()
    (folder / "ckpt/plan.json").unlink()  # The manifest identifies the plan.
    run_ok("gen", "spec.yaml", "-o", "ckpt", cwd=folder)
    run_ok("verify", "ckpt", cwd=folder)


LONG = "x" * 300


@pytest.mark.parametrize("words", [["reshard", "ckpt"], ["convert", "ckpt", "--to", "dcp"]], ids=lambda words: words[0])
def test_impossible_output_folders_are_reported_first(folder, words):
    """`reshard` and `convert` check the output path first, also against the copied checkpoint, and report the usual
    errors."""
    run_ok("gen", "spec.yaml", "-o", "ckpt", cwd=folder)
    (folder / "f").touch(), (folder / "a").symlink_to("b"), (folder / "b").symlink_to("a"), (folder / "dangling").symlink_to("none")
    for out, code, message in (
            ("f/out", 4, "`f` exists and is not a folder\n  hint: choose another output folder with `-o`"),
            ("f/deep/out", 4, "cannot create the folder `f/deep`: Not a directory"),
            ("a", 2, "cannot read `a`: Too many levels of symbolic links"),
            ("a/out", 2, "cannot read `a/out`: Too many levels of symbolic links"),
            ("dangling", 4, "`dangling` exists and holds something else\n  hint: choose another folder with `-o`"),
            ("dangling/out", 3, "cannot create the folder `dangling`: File exists"),
            (LONG, 2, f"cannot read `{LONG}`: File name too long"),
            ("ckpt/new", 2, "`ckpt/new` is in `ckpt`, the checkpoint that is copied\n"
                            "  hint: choose another folder with `-o`"),
            ("ckpt/../ckpt/ranks/new", 2, "`ckpt/../ckpt/ranks/new` is in `ckpt`, the checkpoint that is copied")):
        before = sorted(folder.iterdir())
        done = run_tool(*words, "-o", out, cwd=folder)
        assert done.returncode == code and f"shardinit: error: {message}" in done.stderr, (out, done)
        assert sorted(folder.iterdir()) == before
    result = run_tool(*words, "-o", f"new/{LONG}/out", cwd=folder)
    assert result.returncode == 2 and ": File name too long\n" in result.stderr, result
    for fails, name, told in ((f"{folder}/ckpt", "out", "ckpt"), (f"{folder}/there", "there/out", "there/out")):
        (folder / "there").mkdir(exist_ok=True)
        done = run_tool(*words, "-o", name, cwd=folder,
                        env=interposed(rule("readlink,stat", "fail", errno.EIO, when="1+", where=fails)))
        assert done.returncode == 3 and f"cannot read `{told}`: Input/output error\n" in done.stderr, done
