"""Reads, runs and records the cases of golden/*.txt.

A case has a title, files, and shell commands, each followed by its output:

    == title
    -- spec.yaml
    shardinit: 1
    …
    -- base.yaml: as in other_title
    $ shardinit plan spec.yaml |
    > head -n 1
    a line of standard output
    ! a line of standard error
    exit 2

A file may be the one of another case in the same golden file. All commands of a case run in one shell and one folder.
In the output, `$TMP` is the case's folder, `$CONFIGS` the repository's configs/, and `T` a time that was measured. Long
output is recorded as its first lines and a digest. Its full text is in build/recorded/ after each test that passes.

`sh tests/run.sh record` records the present output (UPDATE_GOLDEN=1). Review the difference: users will see it.
"""

import dataclasses
import difflib
import fcntl
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from support import BINARY, CLEAN, ROOT

GOLDEN = ROOT / "golden"
FULL = ROOT / "build/recorded"
MANY, FIRST = 10, 4  # lines: of output with more than MANY lines, the first ones are recorded
OF_DIGESTS = 40      # lines: as MANY, but of `digest`, whose output never changes
WIDE = 1000          # characters: of a longer line, only the beginning is recorded
UNPACKED = tempfile.TemporaryDirectory()
MARK = "<end of the command>"
# `plan` prints its memory, which depends on the number of threads. Python is the one that runs the tests.
PRELUDE = """shardinit() {
  case "$1 $*" in "plan "*" -j"* | "plan "*" --jobs"*) ;; "plan "*) shift; set -- plan --jobs 2 "$@" ;; esac
  "$SHARDINIT" "$@"
}
"""


@dataclasses.dataclass
class Case:
    files: dict = dataclasses.field(default_factory=dict)  # name → text
    shared: dict = dataclasses.field(default_factory=dict)  # name → title of the case that has its text
    commands: list = dataclasses.field(default_factory=list)
    outputs: list = dataclasses.field(default_factory=list)  # of each command, as recorded

    def unpack(self, folder):
        """Writes the case's files to a folder."""
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)


def parse(text):
    """Returns the cases of a file by title."""
    cases, case, name = {}, None, None
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("== "):
            assert line[3:] not in cases, f"two cases are called {line[3:]}"
            case = cases[line[3:]] = Case()
            name = None
        elif line.startswith("-- ") and not case.commands:
            name, _, other = line[3:].partition(": as in ")
            case.files[name] = cases[other].files[name] if other else ""
            if other:
                case.shared[name] = other
        elif line.startswith("$ "):
            case.commands.append(line[2:])
            case.outputs.append("")
        elif line.startswith(">") and not case.outputs[-1]:
            case.commands[-1] += "\n" + line[2:]
        elif case.commands:
            case.outputs[-1] += line + "\n"
        else:
            case.files[name] += line + "\n"
    return cases


def text_of(cases):
    text = ""
    for title, case in cases.items():
        text += f"== {title}\n"
        for name, content in case.files.items():
            text += f"-- {name}: as in {case.shared[name]}\n" if name in case.shared else f"-- {name}\n{content}"
        for command, output in zip(case.commands, case.outputs, strict=True):
            text += "$ " + command.replace("\n", "\n> ").replace("\n> \n", "\n>\n") + "\n" + output
    return text


def case_named(file, title):
    """Returns a case of golden/FILE.txt, for tests that use its files or commands."""
    return parse((GOLDEN / f"{file}.txt").read_text())[title]


def file_of(file, title, name="spec.yaml"):
    """Returns the path of a case's file, below a folder with all its files that lives as long as this process."""
    folder = pathlib.Path(UNPACKED.name) / file / title
    case_named(file, title).unpack(folder)
    return folder / name


def lines_of(output, mark):
    """Returns output as it is recorded: each line begins with `mark`, or with a backslash if it would look like a mark."""
    if not output:
        return ""
    if not output.endswith("\n"):
        output += "\n(no newline at the end)\n"
    escape = r"^(?=== |-- |\$ |>|! |exit |… |\\)"
    return re.sub(r"^", mark, output.removesuffix("\n"), flags=re.M) + "\n" if mark else re.sub(escape, r"\\", output,
                                                                                                flags=re.M)


def folded(text, many=MANY):
    """Returns recorded lines, or the first ones with a digest of all if there are many."""
    lines = text.split("\n")[:-1]
    if len(lines) <= many and all(len(line) <= WIDE for line in lines):
        return text
    first = "".join(f"{line[:WIDE]}\n" for line in lines[:FIRST if len(lines) > many else many])
    return f"{first}… {summary(text)}\n"


def summary(text):
    """Returns the number of lines of a text, and the beginning of its digest."""
    lines = text.count("\n")
    return f"{lines} lines, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def without_times(text):
    return re.sub(r" in [0-9.]+ s \([0-9.]+ [A-Z]*B/s\)", " in T",
                  re.sub(r'"seconds": [0-9.e-]+', '"seconds": T', text))


def run(commands, folder):
    """Runs commands one after another in a folder. Returns the whole output of each, in the form of a case."""
    script = PRELUDE
    for command in commands:
        script += f"{command}\nprintf '\\n{MARK}%s\\n' $?; printf '\\n{MARK}\\n' >&2\n"
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**CLEAN, "PATH": path, "SHARDINIT": str(BINARY), "TMP": str(folder), "CONFIGS": str(ROOT / "configs")}
    done = subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env=env, timeout=240)

    def parts(text):
        text = without_times(text.replace(str(folder), "$TMP").replace(str(ROOT / "configs"), "$CONFIGS"))
        found = re.split(rf"\n{MARK}(.*)\n", text)
        assert len(found) == 2 * len(commands) + 1 and not found[-1], done.stderr
        return found

    outputs = []
    printed, errors = parts(done.stdout), parts(done.stderr)
    for output, status, error in zip(printed[0::2], printed[1::2], errors[0::2]):
        outputs.append((lines_of(output, ""), lines_of(error, "! "), "" if status == "0" else f"exit {status}\n"))
    return outputs


def record(path, change):
    """Changes a file that other processes may be changing."""
    with open(path, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = change(file.read())
        file.seek(0)
        file.truncate()
        file.write(text)


def check(path, title, case, folder):
    """Compares the output of a case with the recorded one, or records it."""
    case.unpack(folder)
    found = run(case.commands, folder)
    outputs = [folded(printed, OF_DIGESTS if command.startswith("shardinit digest ") else MANY) + folded(error) + status
               for command, (printed, error, status) in zip(case.commands, found)]
    full = text_of({title: dataclasses.replace(case, outputs=list(map("".join, found)))})
    if os.environ.get("UPDATE_GOLDEN"):
        def put(text):
            cases = parse(text)
            cases[title].outputs = outputs
            return text_of(cases)

        record(path, put)
    elif outputs != case.outputs:
        difference(full, f"{path.stem}/{title}")
        assert text_of({title: dataclasses.replace(case, outputs=outputs)}) == text_of({title: case})
    keep(full, f"{path.stem}/{title}")


def keep(full, name):
    """Keeps the full text of output that is recorded as a digest."""
    (FULL / name).parent.mkdir(parents=True, exist_ok=True)
    (FULL / name).write_text(full)


def difference(full, name):
    """Prints how output that is recorded as a digest differs from the last one that passed in this checkout."""
    if (FULL / name).exists():
        before = (FULL / name).read_text().split("\n")
        print("\n".join(difflib.unified_diff(before, full.split("\n"), "before", "now", lineterm="", n=1)))
