"""The program does what the documents say.

In README.md, a block marked `sh` that is followed by one marked `text` is a
command and what it prints; `python` and `text` likewise. Text between the two
may be anything. Other blocks are not run.
"""

import copy
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

import jsonschema
import ml_dtypes
import numpy as np
import pytest

from support import BINARY, CLEAN, CONFIGS, RECIPES, ROOT, TINY, run_json, run_ok, run_tool

README = (ROOT / "README.md").read_text()
PAGES = sorted((ROOT / "man").glob("*.[1357]"))
HELP = run_ok("--help").stdout


def section_of(text, title):
    """The indented lines below `title:` of a `--help`."""
    found = re.search(rf"^{title}:\n((?: .*\n)+)", text, re.M)
    return found[1].splitlines() if found else []


COMMANDS = {line.split()[0]: line.split(None, 1)[1] for line in section_of(HELP, "Subcommands")}


def mandoc(*arguments):
    assert shutil.which("mandoc"), "mandoc is missing; tests/run.sh installs it"
    return subprocess.run(["mandoc", *map(str, arguments)], capture_output=True, text=True)


def manual(page):
    """The page as a reader sees it, without the overstriking of bold and underline."""
    text = mandoc("-T", "utf8", "-O", "width=1000", page)
    assert text.returncode == 0, text.stderr
    return re.sub(r".\x08", "", text.stdout)


def plain(head):
    """`-o, --output DIR`, however it is spaced and dashed."""
    head = head.replace("‐", "-").replace("−", "-").strip()
    return re.sub(r"\s*([,|])\s*", r"\1", head)


# Manual pages -----------------------------------------------------------------

def test_every_command_has_a_page():
    pages = {p.name for p in PAGES if p.name.startswith("shardinit-") and p.suffix == ".1"}
    # This program is the Python package's own.
    assert pages == {f"shardinit-{name}.1" for name in (*COMMANDS, "capture")}
    for name in ["shardinit.1", "shardinit-spec.5", "shardinit-format.5", "shardinit-values.7"]:
        assert (ROOT / "man" / name).is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_pages_are_well_formed(page):
    lines = mandoc("-T", "lint", page).stdout.splitlines()
    assert [line for line in lines if re.search(r": (WARNING|ERROR|UNSUPP|SYSERR)\b", line)] == []


def options_of(help_text):
    lines = section_of(help_text, "Options") + section_of(help_text, "Positionals")
    return sorted(plain(re.split(r"\s{2,}", line.strip())[0]) for line in lines)


def options_of_page(page):
    body = re.search(r"^OPTIONS\n((?:(?: .*)?\n)+)", manual(page), re.M)[1]
    # Heads stand five columns in, their texts further, sometimes behind a short head.
    heads = [re.split(r"\s{2,}", line.strip())[0] for line in body.splitlines() if re.match(r" {5}\S", line)]
    return sorted(plain(re.sub(r" \.\.\.$", "...", head)) for head in heads)


@pytest.mark.parametrize("command", COMMANDS)
def test_pages_have_the_options_of_help(command):
    help_text = run_ok(command, "--help").stdout
    assert options_of_page(ROOT / f"man/shardinit-{command}.1") == options_of(help_text)
    assert f"See shardinit-{command}(1)." in help_text


def test_the_main_page_has_the_options_of_help():
    assert options_of_page(ROOT / "man/shardinit.1") == options_of(HELP)


@pytest.mark.parametrize("command", COMMANDS)
def test_pages_have_the_summaries_of_help(command):
    summary = COMMANDS[command]
    page = (ROOT / f"man/shardinit-{command}.1").read_text()
    assert f".Nd {summary[0].lower()}{summary[1:]}\n" in page
    main = manual(ROOT / "man/shardinit.1")
    assert re.search(rf"^ +{command} +{re.escape(summary)}\.", main, re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_pages_refer_to_pages_that_exist(page):
    for name, section in re.findall(r"^\.Xr (\S+) (\d)", page.read_text(), re.M):
        if name.startswith("shardinit"):
            assert (ROOT / f"man/{name}.{section}").is_file(), name


def test_the_main_page_refers_to_all_others():
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
def test_pages_name_the_members_of_json(command, tmp_path):
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
    if words[0] == "inspect":  # The attributes of a file have a page.
        known |= set(re.findall(r"\w+", (ROOT / "man/shardinit-format.5").read_text()))
    assert {key for member in members if isinstance(member, dict) for key in member} - known == set()


def test_exit_statuses():
    declared = re.search(r"enum class ExitCode \{(.*?)\};", (ROOT / "src/base/error.h").read_text(), re.S)[1]
    codes = set(re.findall(r"= (\d+),", declared)) | {"128+N"}
    body = re.search(r"^EXIT STATUS\n((?:(?: .*)?\n)+)", manual(ROOT / "man/shardinit.1"), re.M)[1]
    assert set(re.findall(r"^ {5}(\S+)", body, re.M)) == codes
    assert set(re.findall(r"^\| (\d+|128\+N) \|", README, re.M)) == codes


# README -----------------------------------------------------------------------

# (language, text) of every fenced block, in order.
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S)
EXAMPLES = [(a, b[1]) for a, b in zip(BLOCKS, BLOCKS[1:]) if a[0] in ("sh", "python") and b[0] == "text"]


def steady(text):
    """Output without the parts that differ between runs and machines."""
    text = re.sub(r"in [\d.]+ s \([\d.]+ GB/s\)", "in TIME", text)
    return re.sub(r"(memory +)[\d.]+ MB", r"\1SIZE", text)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where the README's commands run: `/tmp` of the text is this folder."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "configs").symlink_to(ROOT / "configs")
    for language, text in BLOCKS:
        if language == "yaml":
            (folder / re.match(r"# ([\w.]+\.yaml)\n", text)[1]).write_text(text)
    run_ok("gen", TINY, "-o", folder / "tiny")
    return folder


def run_block(language, text, folder):
    text = text.replace("sh src/install.sh && ", "").replace("/tmp/", f"{folder}/")
    command = ["bash", "-c", text] if language == "sh" else [sys.executable, "-c", text]
    env = {**CLEAN, "PATH": f"{BINARY.parent}:{os.environ['PATH']}", "PYTHONPATH": ROOT / "src/python"}
    result = subprocess.run(command, cwd=folder, env=env, text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    return result.stdout.replace(f"{folder}/", "/tmp/")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e[0][1].splitlines()[0][:40])
def test_readme_examples(example, place):
    (language, text), expected = example
    if "install.sh" in text:
        shutil.rmtree(place / "tiny")
    assert steady(run_block(language, text, place)) == steady(expected)


def test_readme_has_examples_of_both_kinds():
    languages = [language for (language, _), _ in EXAMPLES]
    assert languages.count("sh") >= 3 and languages.count("python") == 2


def snippet(text, place):
    """The variables after a Python snippet."""
    names = {}
    exec(text.replace("/tmp/", f"{place}/"), names)
    return names


def digest_of(path):
    return run_json("digest", TINY, "--only", path)["tensors"][0]["sha256"]


def test_readme_snippet_reads_the_right_values(place):
    text = next(text for language, text in BLOCKS if language == "python")
    names = snippet(text, place)
    weight, part, (row, column) = names["weight"], names["part"], names["offset"]
    assert weight.dtype == ml_dtypes.bfloat16
    assert hashlib.sha256(weight.tobytes()).hexdigest() == digest_of("model.embed_tokens.weight")
    rows, columns = part.shape
    box = weight[row:row + rows, column:column + columns]
    assert np.array_equal(box.view("<u2"), part.view("<u2"))
    # They are numbers, not only bits.
    values = weight.astype(np.float64)
    assert abs(values.mean()) < 1e-4 and abs(values.std() - 0.02) < 1e-4


def test_snippet_of_the_format_page_reads_the_right_values(place):
    page = (ROOT / "man/shardinit-format.5").read_text()
    text, = re.findall(r"^\.Bd -literal\n(import .*?)^\.Ed$", page, re.M | re.S)
    weight = snippet(text, place)["weight"]
    assert hashlib.sha256(weight.tobytes()).hexdigest() == digest_of("model.embed_tokens.weight")


@pytest.mark.parametrize("block", [b for b in BLOCKS if b[0] == "sh"], ids=lambda b: b[1].splitlines()[0][:40])
def test_readme_commands_exist(block):
    subprocess.run(["sh", "-n", "-c", block[1]], check=True)
    for command, arguments in re.findall(r"\bshardinit ([a-z]+)([^\n]*)", block[1]):
        options = set(re.findall(r"(?<!\S)(--?[a-z]+)", arguments.split("#")[0]))
        assert command in COMMANDS
        known = {name for head in options_of(run_ok(command, "--help").stdout) for name in head.split()[0].split(",")}
        assert options <= known


def test_readme_names_files_that_exist():
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).is_file(), link
    assert {path.name for path in CONFIGS} <= set(re.findall(r"`([\w.-]+\.yaml)`", README))
    for path in re.findall(r"\b((?:configs|src|tests|schemas)/[\w./-]+\.\w+)", README):
        assert (ROOT / path).is_file(), path
    for page in PAGES:
        assert f"(man/{page.name})" in README


def test_readme_has_the_numbers_of_the_models():
    rows = re.findall(r"^\| `([\w.-]+\.yaml)` \| ([\d,]+) \| ([\d,]+) \|$", README, re.M)
    assert len(rows) == len(CONFIGS) - 3  # Without the tiny Llama, expressions and dtypes.
    assert {path.stem for path in RECIPES} <= set(re.findall(r"`([\w-]+)`", README))
    for name, parameters, ranks in rows:
        plan = run_json("plan", ROOT / "configs" / name)
        assert (f"{plan['parameters']:,}", f"{plan['world_size']:,}") == (parameters, ranks), name


@pytest.mark.parametrize("document", ["README.md", "src/README.md"])
def test_documents_name_files_of_the_source(document):
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
    no_mesh = ODD.replace("mesh: {axes: {data: 2, tensor: 4}, slices: {data: 2}}\n", "").replace("shard: [tensor]", "shard: []") \
        .replace("shard: [[tensor, data]]", "shard: []")
    (odd / "no_mesh.yaml").write_text(no_mesh)
    for number, options in enumerate([["--index", "never"], ["--replicas", "full"], ["--mesh", "data=1,tensor=1", "--set", "mesh.slices={}"]]):
        spec = odd / ("spec.yaml" if number else "no_mesh.yaml")
        run_ok("gen", spec, "-o", odd / f"out{number}", *options)
        manifest = json.loads((odd / f"out{number}/manifest.json").read_text())
        jsonschema.Draft7Validator(MANIFEST).validate(manifest)
        assert (manifest["index"] is None) == (number == 0)


def mutations_of(value, path=()):
    """Every way to lose one member, to have one too many, or one of another type."""
    if isinstance(value, dict):
        for key in value:
            yield path + (key,), "lost"
            yield from mutations_of(value[key], path + (key,))
        yield path + ("surplus",), 1
    elif isinstance(value, list):
        for i, item in enumerate(value[:1]):
            yield from mutations_of(item, path + (i,))
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


def test_manifest_schema_refuses_mutations(odd):
    manifest = json.loads((odd / "out/manifest.json").read_text())
    mutations = list(mutations_of(manifest))
    assert len(mutations) > 80
    accepted = [(path, value) for path, value in mutations if is_manifest(mutated(manifest, path, value))]
    assert accepted == [(("devices",), "lost")]  # It may be absent.


def keys_of(value):
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from keys_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from keys_of(item)


@pytest.mark.parametrize("name", ["plan.json", "devices.json", "manifest.json", "ranks/rank-00000.json"])
def test_the_format_page_knows_every_key(name, odd):
    page = set(re.findall(r"\w+", (ROOT / "man/shardinit-format.5").read_text()))
    assert set(keys_of(json.loads((odd / "out" / name).read_text()))) - page == set()


def test_partition_formula_of_the_format_page(odd):
    """The page's rule, written down once more, gives the boxes that are there."""
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


def test_the_format_page_knows_every_distribution(tmp_path):
    (tmp_path / "spec.yaml").write_text(SMALL)
    page = (ROOT / "man/shardinit-format.5").read_text()
    inits = [tensor["init"] for tensor in run_json("graph", tmp_path / "spec.yaml")["logical"]]
    assert len({*map(tuple, inits)}) == 8
    for [[name, parameters]] in map(dict.items, inits):
        assert re.search(rf"^\.Ic {name}\n\.Pq Ic {' , '.join(parameters)}( ,)?$", page, re.M), name


def test_example_of_the_model_digest():
    lines = re.findall(r"^(\S+) bf16 \[.*\] ([0-9a-f]+)\.\.\.$", (ROOT / "man/shardinit-format.5").read_text(), re.M)
    assert [path for path, _ in lines] == ["lm_head.weight", "model.norm.weight"]
    for path, digest in lines:
        assert digest_of(path).startswith(digest)


def test_digests_of_the_format_page(odd):
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
    """What the program itself lists, when a spec names something that does not exist."""

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


def test_dtypes(offered):
    names = offered(tensor=f"init: ones, dtype: {NONSENSE}")
    rows = re.findall(r'^SHARDINIT_DTYPE\(\w+, "(\w+)"', (ROOT / "src/tensor/dtype.def").read_text(), re.M)
    assert names == set(rows) == enumeration(SPEC["definitions"]["dtype"])
    assert names == set(MANIFEST["properties"]["tensors"]["items"]["properties"]["dtype"]["enum"])
    assert in_spec_page(names)
    format_page = (ROOT / "man/shardinit-format.5").read_text()
    assert set(re.findall(r"^\.It (\w+) Ta \d", format_page, re.M)) == names


def test_initializers(offered):
    # There are more than a message lists.
    names = {name for path in (ROOT / "src/init").glob("*.cc")
             for name in re.findall(r'^(?:    |extern const Initializer \w+ = {)\.name = "(\w+)"', path.read_text(), re.M)}
    object_form, = [s for s in SPEC["definitions"]["initializer"]["anyOf"] if "properties" in s]
    assert names == set(object_form["properties"])
    assert in_spec_page(names) and all(f"`{name}`" in README for name in names)
    for name, schema in object_form["properties"].items():
        if schema.get("properties"):
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
def test_choices(key, offered):
    names = offered(top=f"{key}: {NONSENSE}\n")
    assert names == enumeration(SPEC["properties"][key])
    assert in_spec_page(names)
    if key in MANIFEST["properties"]:  # The manifest has whole names alone.
        short = {name for name in names if any(other.startswith(name + "/") for other in names)}
        assert names - short == set(MANIFEST["properties"][key]["enum"])


def test_functions_and_tensor_keys_are_in_the_page(offered):
    keys = offered(tensor=f"init: ones, {NONSENSE}: 1")
    assert keys == set(SPEC["definitions"]["tensor"]["properties"]) and in_spec_page(keys)
    functions = offered(tensor=f"init: {{constant: {{value: '{NONSENSE}(1)'}}}}")
    assert in_spec_page(functions)
    of_torch = offered(tensor=f"init: {{constant: {{value: 'torch_{NONSENSE}(1)'}}}}")
    assert {name for name in of_torch if re.search("_(bf16|f16|f64)$", name)} == {
        f"torch_{kind}_{dtype}" for kind in ("normal", "pairs", "trunc_normal", "uniform") for dtype in ("bf16", "f16", "f64")}
    of_jax = {name for name in of_torch if name.startswith("jax_")}
    assert of_jax == {"jax_bits", "jax_normal", "jax_truncated_normal", "jax_uniform"}
    assert in_spec_page({re.sub("_(bf16|f16|f64)$", "", name) for name in of_torch})
