"""The program does what README.md, the manual pages and the guides say.

documents.py describes which blocks are run. test_python_readme.py runs commands of guides that need frameworks."""

import copy
import hashlib
import json
import re
import shutil
import subprocess

import jsonschema
import ml_dtypes
import numpy as np
import pytest
import yaml

from documents import (BLOCKS, EXAMPLES, GUIDES, INSTALL, PAGES, README, README_FILES, commands_of, displays, files_of,
                       make_place, needs_frameworks, others_of, run_block, run_guide, steady)
from support import CONFIGS, FORMATS, LAYOUTS, RECIPES, ROOT, TINY, run_json, run_ok, run_tool

MODELS = (ROOT / "man/shardinit-models.7").read_text()
GITHUB = ROOT / ".github"
HELP = run_ok("--help").stdout


def help_section(text, title):
    """Returns the indented lines below `title:` in the output of `--help`."""
    found = re.search(rf"^{title}:\n((?: .*\n)+)", text, re.M)
    return found[1].splitlines() if found else []


COMMANDS = {line.split()[0]: line.split(None, 1)[1] for line in help_section(HELP, "Subcommands")}


def mandoc(*arguments):
    assert shutil.which("mandoc"), "mandoc is missing; tests/run.sh installs it"
    return subprocess.run(["mandoc", *map(str, arguments)], capture_output=True, text=True)


def manual(page):
    """Returns the page as a reader sees it, without the overstriking of bold and underlined text."""
    text = mandoc("-T", "utf8", "-O", "width=1000", page)
    assert text.returncode == 0, text.stderr
    return re.sub(r".\x08", "", text.stdout)


def uniform_head(head):
    """Returns an option's head such as `-o, --output DIR` with uniform spaces and dashes."""
    head = head.replace("‐", "-").replace("−", "-").strip()
    return re.sub(r"\s*([,|])\s*", r"\1", head)


# Manual pages -----------------------------------------------------------------

def test_every_command_has_a_man_page():
    pages = {p.name for p in PAGES if p.name.startswith("shardinit-") and p.suffix == ".1"}
    assert pages == {f"shardinit-{name}.1" for name in COMMANDS}
    for name in ["shardinit.1", "shardinit-spec.5", "shardinit-format.5", "shardinit-values.7"]:
        assert (ROOT / "man" / name).is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_man_pages_have_no_mandoc_warnings(page):
    lines = mandoc("-T", "lint", page).stdout.splitlines()
    assert [line for line in lines if re.search(r": (WARNING|ERROR|UNSUPP|SYSERR)\b", line)] == []


def help_options(help_text):
    lines = help_section(help_text, "Options") + help_section(help_text, "Positionals")
    return sorted(uniform_head(re.split(r"\s{2,}", line.strip())[0]) for line in lines)


def page_options(page):
    body = re.search(r"^OPTIONS\n((?:(?: .*)?\n)+)", manual(page), re.M)[1]
    # Heads are indented by five columns and their texts by more. A text may follow a short head on its line.
    heads = [re.split(r"\s{2,}", line.strip())[0] for line in body.splitlines() if re.match(r" {5}\S", line)]
    return sorted(uniform_head(re.sub(r" \.\.\.$", "...", head)) for head in heads)


# `capture` is a program of the Python package; test_capture.py tests its page.
@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"capture"}))
def test_man_pages_list_the_options_of_help(command):
    help_text = run_ok(command, "--help").stdout
    assert page_options(ROOT / f"man/shardinit-{command}.1") == help_options(help_text)
    assert f"See shardinit-{command}(1)." in help_text


def test_export_man_page_lists_the_formats_of_help():
    listed = (ROOT / "man/shardinit-export.1").read_text().split(".Ss Formats")[1].split("\n.El")[0]
    assert sorted(FORMATS) == sorted(name.replace("\\-", "-") for name in re.findall(r"^\.It Cm (\S+)$", listed, re.M))
    assert len(FORMATS) == len(set(FORMATS)) >= 6


def test_main_man_page_lists_the_options_of_help():
    assert page_options(ROOT / "man/shardinit.1") == help_options(HELP)


@pytest.mark.parametrize("command", COMMANDS)
def test_man_pages_have_the_summaries_of_help(command):
    summary = COMMANDS[command]
    page = (ROOT / f"man/shardinit-{command}.1").read_text()
    assert f".Nd {summary[0].lower()}{summary[1:]}\n" in page
    main = manual(ROOT / "man/shardinit.1")
    assert re.search(rf"^ +{command} +{re.escape(summary)}\.", main, re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_man_pages_refer_to_man_pages_that_exist(page):
    for name, section in re.findall(r"^\.Xr (\S+) (\d)", page.read_text(), re.M):
        if name.startswith("shardinit"):
            assert (ROOT / f"man/{name}.{section}").is_file(), name


def test_main_man_page_refers_to_all_others():
    end = (ROOT / "man/shardinit.1").read_text().split(".Sh SEE ALSO")[1]
    assert {f"{name}.{section}" for name, section in re.findall(r"^\.Xr (\S+) (\d)", end, re.M)} == \
        {page.name for page in PAGES} - {"shardinit.1"}


SMALL = """
shardinit: 1
name: small
dtype: f32
fans: out_in
mesh: {axes: {x: 2}}
modules:
  constant: {shape: [4], shard: [x], init: ones}
  uniform: {shape: [4, 6], init: xavier_uniform, key: old}
  normal: {shape: [4], init: {normal: {std: 1}}}
  cut: {shape: [4], init: {trunc_normal: {std: 1}}}
  orthogonal: {shape: [4, 4], init: orthogonal, when: 1}
  sparse: {shape: [4, 4], init: {sparse: {sparsity: 0.5}}}
  normalized: {shape: [4, 4], init: {normalized: {axis: 0}}}
  expr: {shape: [4], init: {expr: uniform() * 2}}
layouts:
  other: {stored: orthogonal, keep: ["[!o]*"]}
"""


@pytest.mark.parametrize("command", [
    "gen SPEC -o OUT", "gen SPEC -o OUT --dry-run --stats", "plan SPEC --rank 1", "validate SPEC",
    "explain SPEC constant", "explain SPEC uniform", "explain SPEC orthogonal", "explain SPEC stored --layout other",
    "graph SPEC --layout other", "diff SPEC SPEC", "digest SPEC", "stats SPEC", "export SPEC --to zarr -o OUT",
    "inspect GOOD", "inspect GOOD/ranks/rank-00001.h5", "finalize GOOD", "status GOOD", "verify GOOD",
    "verify GOOD --spec SPEC"])
def test_man_pages_document_every_json_member(command, tmp_path):
    paths = {name: tmp_path / name.lower() for name in ["SPEC", "GOOD", "OUT"]}
    paths["SPEC"].write_text(SMALL)
    if "GOOD" in command:
        run_ok("gen", paths["SPEC"], "-o", paths["GOOD"])
    words = [re.sub("SPEC|GOOD|OUT", lambda m: str(paths[m[0]]), word) for word in command.split()]
    value = run_json(*words)
    members = [value, *(item for part in value.values() if isinstance(part, list) for item in part)] \
        if isinstance(value, dict) else value
    page = re.sub(r"\\[-&]?", "", (ROOT / f"man/shardinit-{words[0]}.1").read_text())
    known = set(re.findall(r"\w+", page))
    if words[0] == "inspect":  # The attributes of a file are documented in another page.
        known |= set(re.findall(r"\w+", (ROOT / "man/shardinit-format.5").read_text()))
    assert {key for member in members if isinstance(member, dict) for key in member} - known == set()


def test_man_pages_list_every_exit_status():
    declared = re.search(r"enum class ExitCode \{(.*?)\};", (ROOT / "src/base/error.h").read_text(), re.S)[1]
    codes = set(re.findall(r"= (\d+),", declared)) | {"128+N"}
    body = re.search(r"^EXIT STATUS\n((?:(?: .*)?\n)+)", manual(ROOT / "man/shardinit.1"), re.M)[1]
    assert set(re.findall(r"^ {5}(\S+)", body, re.M)) == codes
    guide = (ROOT / "man/shardinit-guide-cluster.7").read_text()
    assert set(re.findall(r"^\.It (\d+|128\+N) Ta ", guide, re.M)) == codes


# README -----------------------------------------------------------------------

@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder in which README's commands run; it replaces `/tmp`."""
    folder = make_place(tmp_path_factory.mktemp("readme"), README_FILES)
    run_ok("gen", TINY, "-o", folder / "tiny")
    return folder


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e[0][1].splitlines()[0][:40])
def test_readme_examples_print_what_readme_shows(example, place):
    (language, text), expected = example
    if INSTALL in text:
        shutil.rmtree(place / "tiny")
    assert steady(run_block(language, text, place)) == steady(expected)


def test_readme_and_guides_have_examples():
    languages = [language for (language, _), _ in EXAMPLES]
    assert languages.count("sh") >= 5
    assert all(len(commands_of(page)) >= 3 for page in GUIDES)
    assert len(GUIDES) == 10


def test_readme_is_short():
    """Longer text belongs in a manual page or a guide."""
    assert len(README.splitlines()) < 200


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.stem)
def test_guide_commands_print_what_the_guide_shows(page, tmp_path):
    run_guide(page, tmp_path, lambda command: not needs_frameworks(command))


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.stem)
def test_files_in_guides_are_used_by_a_command(page):
    """Each file in a guide is named by a command or another file; otherwise it would not be tested."""
    files, commands = files_of(page), "".join(command.text for command in commands_of(page))
    for name in files:
        assert name in commands + "".join(text for other, text in files.items() if other != name), name
    assert all(re.match(r"\S", text) for text in others_of(page))


def snippet(text, place):
    """Runs a Python snippet and returns its variables."""
    names = {}
    exec(text.replace("/tmp/", f"{place}/"), names)
    return names


def tensor_digest(path):
    return run_json("digest", TINY, "--only", path)["tensors"][0]["sha256"]


def test_format_page_snippet_reads_the_right_values(place, capsys):
    """The snippet prints the display that follows it, and reads the values that `digest` and NumPy confirm."""
    shown = displays(ROOT / "man/shardinit-format.5")
    number, = (number for number, text in enumerate(shown) if text.startswith("import "))
    names = snippet(shown[number], place)
    assert capsys.readouterr().out == shown[number + 1]
    weight, part, (row, column) = names["weight"], names["part"], names["offset"]
    assert weight.dtype == ml_dtypes.bfloat16
    assert hashlib.sha256(weight.tobytes()).hexdigest() == tensor_digest("model.embed_tokens.weight")
    rows, columns = part.shape
    box = weight[row:row + rows, column:column + columns]
    assert np.array_equal(box.view("<u2"), part.view("<u2"))
    # The values are plausible numbers, not only the right bits.
    values = weight.astype(np.float64)
    assert abs(values.mean()) < 1e-4 and abs(values.std() - 0.02) < 1e-4


SHELL = [text for language, text in BLOCKS if language == "sh"] + [
    text for page in GUIDES for text in [*(command.text for command in commands_of(page)),
                                         *(text for name, text in files_of(page).items() if name.endswith(".sh"))]]


@pytest.mark.parametrize("text", SHELL, ids=lambda text: text.splitlines()[0][:40])
def test_commands_in_documents_exist(text):
    subprocess.run(["bash", "-n", "-c", text], check=True)
    for command, arguments in re.findall(r"\bshardinit ([a-z]+)((?:\\\n|[^\n])*)", text):
        options = set(re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", re.split(r"[#|>;]", arguments)[0]))
        assert command in COMMANDS
        help_text = run_ok(command, "--help").stdout
        heads = help_options(help_text) + [line.strip() for line in help_section(help_text, "Options of every command")]
        known = {name for head in heads for name in head.split()[0].split(",")}
        assert options <= known


DOCUMENTS = [ROOT / "README.md", ROOT / "tests/bench/README.md", *sorted(GITHUB.glob("*.md"))]


def section_links(document):
    """Returns the link names of a document's headings, in order."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", text, re.M)]


def test_readme_begins_with_its_table_of_contents():
    """The table of contents comes before the comparison table and lists the sections in order."""
    listed = re.findall(r"\]\(#([^)]*)\)", README.split("\n| ")[0])
    assert len(listed) > 3 and listed == section_links(ROOT / "README.md")[1:]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_link_to_files_that_exist(document):
    text = document.read_text()
    for link, section in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
        assert (document.parent / link).is_file() or not link, link
        assert not section or section in section_links(document.parent / link if link else document), section
    for image in re.findall(r'<img src="([^"]*)"', text):
        assert (document.parent / image).is_file(), image
    for path in re.findall(r"\b((?:configs|src|tests|schemas|man)/[\w./-]+\.\w+)", text):
        assert (ROOT / path).is_file(), path


def test_readme_links_to_every_document():
    for page in PAGES:
        assert f"(man/{page.name})" in README
    for document in [*DOCUMENTS[1:], GITHUB / "CITATION.cff", ROOT / "LICENSE", ROOT / "src/python/README.md"]:
        assert f"({document.relative_to(ROOT)}" in README, document


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_man_pages_name_files_that_exist(page):
    for path in re.findall(r"\b((?:configs|src|tests|schemas)/[\w./-]+\.\w+)", page.read_text().replace("\\-", "-")):
        assert (ROOT / path).is_file(), path


def test_models_page_has_the_parameter_counts():
    rows = re.findall(r"^\.It Pa ([\w.-]+\.yaml) Ta ([\d,]+) Ta ([\d,]+)$", MODELS, re.M)
    assert len(rows) == len(CONFIGS) - 3  # The tiny Llama, expressions and dtypes are not in the table.
    assert {path.name for path in CONFIGS} <= set(re.findall(r"([\w.-]+\.yaml)", MODELS))
    recipes = " , ".join(re.findall(r"^\.It Pa (.*)$", MODELS.split(".Ss Recipes")[1].split(".Ss ")[0], re.M))
    assert {path.stem for path in RECIPES} == set(recipes.split(" , "))
    for name, parameters, ranks in rows:
        plan = run_json("plan", ROOT / "configs" / name)
        assert (f"{plan['parameters']:,}", f"{plan['world_size']:,}") == (parameters, ranks), name


def test_models_page_lists_every_layout():
    rows = re.findall(r"^\.It Pa ([\w-]+)\.yaml Ta ([a-z_, ]+)$", MODELS, re.M)
    assert dict(rows).keys() == {path.stem for path in LAYOUTS}
    for name, layouts in rows:
        text = (ROOT / f"configs/layouts/{name}.yaml").read_text().split("\nlayouts:\n")[1]
        assert layouts.split(", ") == re.findall(r"^  (\w+):(?! null)", text, re.M), name


def test_changelog_and_citation_have_the_versions(tmp_path):
    versions = json.loads(run_ok("--version", "--json").stdout)
    run_ok("export", TINY, "--to", "safetensors", "-o", tmp_path / "out")
    versions |= json.loads((tmp_path / "out/shardinit-export.json").read_text())
    abi = re.search(r"^#define (SHARDINIT_ABI_VERSION) (\d+)$", (ROOT / "src/library/shardinit.h").read_text(), re.M)
    changes = (GITHUB / "CHANGELOG.md").read_text()
    assert re.search(r"^## (\S+)", changes, re.M)[1] == versions["version"]
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+)", changes, re.M))
    assert rows == {abi[1]: abi[2], **{name: str(versions[name]) for name in (
        "contract_version", "format_version", "export_version")}}
    citation = yaml.safe_load((GITHUB / "CITATION.cff").read_text())
    assert citation["version"] == versions["version"]
    assert citation.keys() >= {"cff-version", "message", "title", "authors"}


def test_contributing_lists_every_preset_and_phase():
    text = (GITHUB / "CONTRIBUTING.md").read_text()
    presets = {preset["name"] for preset in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.M)) == presets
    named = set(re.findall(r"--preset (\w+)", text))
    assert named and named <= presets
    phases = subprocess.run(["sh", ROOT / "tests/run.sh", "--list"], capture_output=True, text=True, check=True).stdout
    words = {word for line in re.findall(r"^sh tests/run\.sh([ a-z]*)(?:#|$)", text, re.M) for word in line.split()}
    assert len(words) >= 4 and words <= {line.split()[0] for line in phases.splitlines()}
    for block in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S):
        subprocess.run(["bash", "-n", "-c", block], check=True)


@pytest.mark.parametrize("document", ["README.md", "src/README.md", ".github/CONTRIBUTING.md"])
def test_documents_name_source_files_that_exist(document):
    text = (ROOT / document).read_text()
    for path in re.findall(r"`((?:[a-z0-9_]+/)+[a-z0-9_-]+\.(?:cc|h|def))`", text):
        assert (ROOT / "src" / path).is_file(), path
    for folder in re.findall(r"`([a-z0-9]+)/`", text):
        assert (ROOT / "src" / folder).is_dir() or (ROOT / folder).is_dir(), folder


# The checkpoint's format ------------------------------------------------------

MANIFEST = json.loads((ROOT / "schemas/manifest.schema.json").read_text())


def is_manifest(document):
    return jsonschema.Draft7Validator(MANIFEST).is_valid(document)


ODD = """
shardinit: 1
name: odd
dtype: f32
mesh: {axes: {data: 2, tensor: 4}, slices: {data: 2}}
uneven: chunk
modules:
  scalar: {shape: [], init: zeros}
  five: {shape: [5], init: {uniform: {low: -1, high: 1}}, shard: [tensor], dtype: f16}
  both: {shape: [10, 3], init: {normal: {std: 1}}, shard: [[tensor, data]], dtype: f64, key: other.name}
  a.b: {shape: [3], init: {truncated_normal: {std: 1}}, dtype: bf16}
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    (folder / "spec.yaml").write_text(ODD)
    run_ok("gen", folder / "spec.yaml", "-o", folder / "out")
    return folder


def test_manifest_schema_accepts_manifests(odd, place):
    jsonschema.Draft7Validator.check_schema(MANIFEST)
    manifest = json.loads((odd / "out/manifest.json").read_text())
    jsonschema.Draft7Validator(MANIFEST).validate(manifest)
    jsonschema.Draft7Validator(MANIFEST).validate(json.loads((place / "tiny/manifest.json").read_text()))
    no_mesh = ODD.replace("mesh: {axes: {data: 2, tensor: 4}, slices: {data: 2}}\n", "").replace("shard: [tensor]",
                                                                                                 "shard: []") \
        .replace("shard: [[tensor, data]]", "shard: []")
    (odd / "no_mesh.yaml").write_text(no_mesh)
    for number, options in enumerate([["--index", "never"], ["--replicas", "full"],
                                      ["--mesh", "data=1,tensor=1", "--set", "mesh.slices={}"]]):
        spec = odd / ("spec.yaml" if number else "no_mesh.yaml")
        run_ok("gen", spec, "-o", odd / f"out{number}", *options)
        manifest = json.loads((odd / f"out{number}/manifest.json").read_text())
        jsonschema.Draft7Validator(MANIFEST).validate(manifest)
        assert (manifest["index"] is None) == (number == 0)


def mutations_in(value, path=()):
    """Yields every way to drop a member, add one, or change the type of one."""
    if isinstance(value, dict):
        for key in value:
            yield path + (key,), "lost"
            yield from mutations_in(value[key], path + (key,))
        yield path + ("surplus",), 1
    elif isinstance(value, list):
        for i, item in enumerate(value[:1]):
            yield from mutations_in(item, path + (i,))
        yield path, {}
    elif isinstance(value, str):
        yield path, 1
        yield path, "/../x y"
    else:
        yield path, "1"
        yield path, -1 if value is not None else 0


def mutated(document, path, value):
    document = copy.deepcopy(document)
    at = document
    for key in path[:-1]:
        at = at[key]
    if value == "lost":
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return document


def test_manifest_schema_rejects_mutations(odd):
    manifest = json.loads((odd / "out/manifest.json").read_text())
    mutations = list(mutations_in(manifest))
    assert len(mutations) > 80
    accepted = [(path, value) for path, value in mutations if is_manifest(mutated(manifest, path, value))]
    assert accepted == [(("devices",), "lost")]  # `devices` is optional.


def json_keys(value):
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from json_keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from json_keys(item)


@pytest.mark.parametrize("name", ["plan.json", "devices.json", "manifest.json", "ranks/rank-00000.json"])
def test_format_page_documents_every_json_key(name, odd):
    page = set(re.findall(r"\w+", (ROOT / "man/shardinit-format.5").read_text()))
    assert set(json_keys(json.loads((odd / "out" / name).read_text()))) - page == set()


def test_format_page_partition_formula_gives_the_shards(odd):
    """The page's partition formula, implemented here again, gives the shards of the manifest."""
    plan = json.loads((odd / "out/plan.json").read_text())
    axes, sizes = plan["mesh"]["axes"], plan["mesh"]["shape"]
    boxes = {}
    for rank in range(int(np.prod(sizes))):
        c = {a: rank // int(np.prod(sizes[i + 1:])) % sizes[i] for i, a in enumerate(axes)}
        m = dict(zip(axes, sizes))
        for tensor in plan["tensors"]:
            offset, shape = [], []
            for n, cut in zip(tensor["global_shape"], tensor["partition_spec"]):
                k, p = 1, 0
                for x in cut:
                    k, p = k * m[x], p * m[x] + c[x]
                w = -(-n // k)
                offset.append(min(n, p * w))
                shape.append(min(n, (p + 1) * w) - offset[-1])
            used = {x for cut in tensor["partition_spec"] for x in cut}
            if 0 not in shape and all(c[x] == 0 for x in axes if x not in used):
                boxes.setdefault(tensor["path"], []).append((rank, offset, shape))
    manifest = json.loads((odd / "out/manifest.json").read_text())
    assert boxes == {t["path"]: [(s["rank"], s["offset"], s["shape"]) for s in t["shards"]]
                     for t in manifest["tensors"]}


def test_format_page_documents_every_distribution(tmp_path):
    (tmp_path / "spec.yaml").write_text(SMALL)
    page = (ROOT / "man/shardinit-format.5").read_text()
    inits = [tensor["init"] for tensor in run_json("graph", tmp_path / "spec.yaml")["logical"]]
    assert len({*map(tuple, inits)}) == 8
    for [[name, parameters]] in map(dict.items, inits):
        assert re.search(rf"^\.It Ic {name} Ta Ic {' , '.join(parameters)}( No .*)?$", page, re.M), name


def test_format_page_example_of_the_model_digest_is_right():
    lines = re.findall(r"^(\S+) bf16 \[.*\] ([0-9a-f]+)\.\.\.$", (ROOT / "man/shardinit-format.5").read_text(), re.M)
    assert [path for path, _ in lines] == ["lm_head.weight", "model.norm.weight"]
    for path, digest in lines:
        assert tensor_digest(path).startswith(digest)


def test_digests_are_computed_as_the_format_page_defines(odd):
    folder = odd / "out"

    def sha256_of(data):
        return hashlib.sha256(data).hexdigest()

    manifest = json.loads((folder / "manifest.json").read_text())
    assert sha256_of((folder / "plan.json").read_bytes()) == manifest["plan_sha256"]
    assert sha256_of((folder / "index.h5").read_bytes()) == manifest["index"]["sha256"]
    for rank in manifest["ranks"]:
        text, data = (folder / rank["receipt"]).read_bytes(), (folder / rank["file"]).read_bytes()
        assert sha256_of(text) == rank["receipt_sha256"]
        receipt = json.loads(text)
        assert len(data) == rank["size"] == receipt["size"]
        rest, at = b"", 0
        for box in sorted(receipt["boxes"], key=lambda box: box["file_offset"]):
            end = box["file_offset"] + box["bytes"]
            assert sha256_of(data[box["file_offset"]:end]) == box["sha256"]
            rest, at = rest + data[at:box["file_offset"]], end
        assert sha256_of(rest + data[at:]) == receipt["metadata_sha256"]


# Names in the schemas ---------------------------------------------------------

SPEC = json.loads((ROOT / "schemas/spec.schema.json").read_text())
NONSENSE = "qqqqqqqqqq"


@pytest.fixture(scope="module")
def offered(tmp_path_factory):
    """Returns the names that the program suggests for a spec with an unknown name."""

    def offered_one(top="", tensor="init: ones"):
        path = tmp_path_factory.mktemp("names") / "spec.yaml"
        if "dtype:" not in top:
            top += "dtype: f32\n"
        path.write_text(f"shardinit: 1\nname: x\n{top}modules: {{w: {{shape: [1, 1], {tensor}}}}}\n")
        result = run_tool("validate", path, "--json")
        assert result.returncode == 2
        diagnostic, = json.loads(result.stdout)[0]["diagnostics"]
        text = diagnostic.get("hint") or diagnostic["message"].partition(" must be ")[2]
        names = set(re.findall(r"`([\w/.]+)`", text)) - {NONSENSE}
        assert names, diagnostic
        return names

    return offered_one


def enumeration(schema):
    if "$ref" in schema:
        return enumeration(SPEC["definitions"][schema["$ref"].rpartition("/")[2]])
    parts = [part for part in [*schema.get("allOf", []), *schema.get("anyOf", [])] if "properties" not in part]
    return set().union(schema.get("enum", []), *map(enumeration, parts))


def in_spec_page(names):
    page = (ROOT / "man/shardinit-spec.5").read_text()
    return all(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", page) for name in names)


def test_every_dtype_is_documented(offered):
    names = offered(tensor=f"init: ones, dtype: {NONSENSE}")
    rows = re.findall(r'^SHARDINIT_DTYPE\(\w+, "(\w+)", k(?!Carried)', (ROOT / "src/tensor/dtype.def").read_text(), re.M)
    assert names == set(rows) == enumeration(SPEC["definitions"]["dtype"])
    assert names == set(MANIFEST["properties"]["tensors"]["items"]["properties"]["dtype"]["enum"])
    assert in_spec_page(names)
    format_page = (ROOT / "man/shardinit-format.5").read_text()
    assert set(re.findall(r"^\.It (\w+) Ta \d", format_page, re.M)) == names


def test_every_initializer_is_documented(offered):
    # A message does not list all initializers, so read them from the source.
    names = {name for path in (ROOT / "src/init").glob("*.cc")
             for name in re.findall(r'^    {\.name = "(\w+)"', path.read_text(), re.M)}
    object_form, = [s for s in SPEC["definitions"]["initializer"]["anyOf"] if "properties" in s]
    assert names == set(object_form["properties"])
    guide = (ROOT / "man/shardinit-guide-initializer.7").read_text()
    listed = guide.split(".Ss Built-in initializers")[1].split(".Ss ")[0]
    assert in_spec_page(names) and names == set(re.findall(r"(?<!\w)[a-z]+(?:_[a-z]+)*(?!\w)", "".join(
        re.findall(r"^\.Ic (.*\n)", listed, re.M))))
    for name, schema in object_form["properties"].items():
        if schema.get("properties") and name not in ("rows_like", "parts"):  # These take names, not numbers.
            given = "".join(f"{p}: 1, " for p in schema.get("required", []))
            parameters = offered(tensor=f"init: {{{name}: {{{given}{NONSENSE}: 1}}}}")
            assert parameters == set(schema["properties"]) and in_spec_page(parameters)
            for parameter, value in schema["properties"].items():
                options = [value, *value.get("anyOf", [])]
                words = {word for option in options for word in option.get("enum", [])}
                if words:
                    assert offered(tensor=f"init: {{{name}: {{{parameter}: {NONSENSE}}}}}") == words
                    assert in_spec_page(words)


@pytest.mark.parametrize("key", ["engine", "uneven", "replicas", "fans"])
def test_every_choice_of_a_spec_key_is_documented(key, offered):
    names = offered(top=f"{key}: {NONSENSE}\n")
    assert names == enumeration(SPEC["properties"][key])
    assert in_spec_page(names)
    if key in MANIFEST["properties"]:  # The manifest has only full names.
        short = {name for name in names if any(other.startswith(name + "/") for other in names)}
        assert names - short == set(MANIFEST["properties"][key]["enum"])


def test_spec_page_documents_functions_and_tensor_keys(offered):
    keys = offered(tensor=f"init: ones, {NONSENSE}: 1")
    assert keys == set(SPEC["definitions"]["tensor"]["properties"]) and in_spec_page(keys)
    functions = offered(tensor=f"init: {{constant: {{value: '{NONSENSE}(1)'}}}}")
    assert in_spec_page(functions)
    of_torch = offered(tensor=f"init: {{constant: {{value: 'torch_{NONSENSE}(1)'}}}}")
    assert {name for name in of_torch if re.search("_(bf16|f16|f64)$", name)} == {
        f"torch_{kind}_{dtype}" for kind in ("normal", "pairs", "trunc_normal", "uniform")
        for dtype in ("bf16", "f16", "f64")}
    of_jax = {name for name in of_torch if name.startswith("jax_")}
    assert of_jax == {"jax_bits", "jax_normal", "jax_truncated_normal", "jax_uniform"}
    assert in_spec_page({re.sub("_(bf16|f16|f64)$", "", name) for name in of_torch})
