"""Finds the examples in README.md and the guides, and runs them.

In README.md, a block marked `sh` followed by one marked `text` is a command and its output; `python` and `text`
likewise. Any text may be between them. Other blocks are not run.

In a guide (man/shardinit-guide-*.7, man/shardinit-models.7), each literal display is one of these:

- a console: a line that begins with `$ ` is a command, lines with `> ` continue it, and the lines up to
  the next command are its complete output;
- a file, whose first line is `# NAME`, or whose first two are `#!` and `# NAME`;
- lines of a trainer, which test_readme_trainers.py finds in the table of trainers.
"""

import os
import re
import subprocess
import sys
from typing import NamedTuple

from support import BINARY, CLEAN, ROOT

README = (ROOT / "README.md").read_text()
PAGES = sorted((ROOT / "man").glob("*.[1357]"))
GUIDES = [page for page in PAGES if page.match("shardinit-guide-*.7") or page.name == "shardinit-models.7"]
# (language, text) of every fenced block of README.md, in order.
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S)
# Each example of README.md as ((language, text), output), and the files that the examples read.
EXAMPLES = [(a, b[1]) for a, b in zip(BLOCKS, BLOCKS[1:]) if a[0] in ("sh", "python") and b[0] == "text"]
README_FILES = {re.match(r"# ([\w.]+\.yaml)\n", text)[1]: text for language, text in BLOCKS if language == "yaml"}

INSTALL = "sh src/install.sh && "  # The start of README's first command, omitted because the tests have a build.

ESCAPES = {r"\-": "-", r"\e": "\\", r"\&": "", r"\(dq": '"', r"\(aq": "'", r"\(mu": "×"}


class Command(NamedTuple):
    text: str
    output: str


def unescaped(text):
    """Returns a display of a manual page as its reader sees it."""
    def one(escape):
        return chr(int(escape[1], 16)) if escape[1] else ESCAPES[escape[0]]
    return re.sub(r"\\(?:\[u([0-9A-F]{4})\]|\((?:..)|.)", one, text)


def displays(page):
    """Returns the literal displays of a manual page, in order."""
    return [unescaped(text) for text in re.findall(r"^\.Bd -literal[^\n]*\n(.*?)^\.Ed$", page.read_text(), re.M | re.S)]


def name_of(display):
    """Returns the name of the file in a display, or None."""
    found = re.match(r"(?:#!.*\n)?# ([\w-]+\.\w+)\n", display)
    return found and found[1]


def files_of(page):
    return {name_of(text): text for text in displays(page) if name_of(text)}


def commands_of(page):
    """Returns the commands of a page's consoles."""
    found = []
    for text in displays(page):
        if text.startswith("$ "):
            for command, output in re.findall(r"^\$ (.*\n(?:> .*\n)*)((?:(?!\$ ).*\n)*)", text, re.M):
                found.append(Command(command.replace("\n> ", "\n"), output))
    return found


def others_of(page):
    """Returns the displays that are neither consoles nor files."""
    return [text for text in displays(page) if not text.startswith("$ ") and not name_of(text)]


def needs_frameworks(command):
    return re.match(r"(?:\w+=\S+ )*(?:python3|shardinit-capture) ", command.text) is not None


def steady(text):
    """Replaces the parts of an output that differ between runs and machines."""
    text = re.sub(r"in [\d.]+ s \([\d.]+ GB/s\)", "in TIME", text)
    return re.sub(r"(memory +)[\d.]+ MB", r"\1SIZE", text)


def make_place(folder, files):
    """Prepares a folder in which the commands of a document run; it replaces `/tmp`."""
    for name, text in files.items():
        (folder / name).write_text(text.replace("/tmp/", f"{folder}/"))
    programs = folder / ".bin"
    programs.mkdir()
    for name, words in {"python3": "", "shardinit-capture": "-m shardinit.capture "}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        (programs / name).chmod(0o755)
    return folder


def run_block(language, text, folder):
    """Runs a block and returns its standard output and standard error together."""
    text = text.replace(INSTALL, "").replace("/tmp/", f"{folder}/")
    command = ["bash", "-c", text] if language == "sh" else [sys.executable, "-c", text]
    path = f"{folder}/.bin:{BINARY.parent}:{os.environ['PATH']}"
    env = {**CLEAN, "PATH": path, "PYTHONPATH": ROOT / "src/python"}
    result = subprocess.run(command, cwd=folder, env=env, text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    return result.stdout.replace(f"{folder}/", "/tmp/")


def run_guide(page, folder, is_run):
    """Runs the commands of a guide in order and compares their outputs."""
    place = make_place(folder, files_of(page))
    for command in commands_of(page):
        if is_run(command):
            assert steady(run_block("sh", command.text, place)) == steady(command.output), command.text
