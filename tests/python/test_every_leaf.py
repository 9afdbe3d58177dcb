"""Every change of a spec is rejected or changes the output of a command.

tests/leaves has a spec for each part of the language. The test changes one leaf at a time to other numbers and words of
its kind. In lists and mappings it adds, removes or swaps items. Changes that may have no effect are listed with a
reason."""

import collections
import json
import re
import shutil

import pytest
import yaml

from support import ROOT, run_ok, run_tool

SPECS = {path.stem: path.read_text() for path in sorted((ROOT / "tests/leaves").glob("*.yaml"))}

# Commands that distinguish specs, the fastest first.
LOOKS = [["graph", "--json"], ["plan", "--json"], ["digest"]]
# `@` is the spec, which otherwise comes last. `one` and `two` are exports of these layouts. `o` is removed before each
# command.
MORE = {
    "laid_out": [
        *([command, *more, "--layout", layout] for layout in ("one", "two", "three") for command,
          *more in (["graph", "--json"], ["digest"])),
        *(["convert", one, "--spec", "@", "--from-layout", one, "--layout", other, "--inexact", "--to", "safetensors",
           "-o", "o"]
          for one, other in (("one", "two"), ("two", "one"))),
    ],
    "modules": [["explain", "@", "layers.0.proj", "--json"], ["export", "@", "--to", "safetensors", "-o", "o"]],
    "stream": [["graph", "--json", "--layout", "joined"]],
    "sharded": [["gen", "@", "-o", "o"]],
}

# Changes that may have no effect: place, new value and reason.
DEFAULT = "it is the default, or follows from the other axis"
ORDER = "the order does not matter"
LABEL = "a name without a meaning here"
SAME = {
    "draws": {
        r"modules\.geometric\..*\.distribution normal": "another name of untruncated_normal",
        r"modules\.(several|named|batched) without (in|out)_axis": DEFAULT,
        r"modules\.(several|named)\.in_axis 1 before 0": ORDER,
        r"modules\.named\.axes 2 before 1": "both are inputs",
        r"modules\.batched\.out_axis 1": "the same axis, counted from the beginning",
        r"modules\.orthogonal\..* without column_axis": DEFAULT,
    },
    "keys": {
        r"modules\.seed\.key\.jax\.1\.split\.0 \d+": "each of JAX's keys follows from its own index",
    },
    "laid_out": {
        r"layouts\.one\.norm\.\{i\}\.repeat\.i \d+": "the layout leaves out other layers",
        r"layouts\.one\..*\.shard one less": "trailing dimensions are unsharded by default",
        r"layouts\.(two\.keep|three\.omit) one more": ORDER,
    },
    "languages": {
        r"sharding\.1\.megatron without axis": DEFAULT,
        r"sharding\.1\.megatron without num_experts": "the size of the expert dimension is the default",
        r"modules\.both\.axes\.2 \"nullx\"": LABEL,
    },
    "modules": {
        r"vars\.sizes one more": "no layer has that index",
        r"assert\.1.*message.*": "the message of a true assertion is not printed",
        r"blocks\.feed\.args 1 before 0": "arguments are given by name",
        r"modules\.layers\.gate without when": "its condition is true",
    },
    "sharded": {
        r"sharding\.0\.rules (one more|2 before 1)": "the rules of one logical axis stay in their order",
        r"sharding\.\d\..* without axis": DEFAULT,
    },
    "stream": {
        r"engine torch_cpu/2\.13/avx2": "`torch_cpu` is short for this engine",
        r"layouts\.joined\.keep (one more|\d before \d)": ORDER,
    },
    "training": {
        r"training\.batch one less": "no other axis remains",
        r".*\.axes\.\d \"embedx\"": LABEL,
    },
    "weights": {
        r"sources\.base\.must_have.*|sources\.base without .*": "it only rejects sources",
        r"sources\.base\.quantized widened": "no tensor there is quantized",
        r"modules\.rows\.init\.parts without axis": DEFAULT,
    },
}


def words():
    """Returns the words that the schema allows for each key, and all keys."""
    found, keys = collections.defaultdict(set), set()

    def walk(node, key):
        if isinstance(node, list):
            for item in node:
                walk(item, key)
        elif isinstance(node, dict):
            found[key].update(word for word in node.get("enum", []) if isinstance(word, str))
            if "$ref" in node:
                name = node["$ref"].rpartition("/")[2]
                found[key].update(word for word in schema["definitions"][name].get("enum", []) if isinstance(word, str))
            for name, item in node.items():
                if name in ("properties", "definitions"):
                    keys.update(item if name == "properties" else [])
                    for inner, value in item.items():
                        walk(value, inner)
                else:
                    walk(item, key)

    schema = json.loads((ROOT / "schemas/spec.schema.json").read_text())
    walk(schema, None)
    return found, keys


WORDS, KEYS = words()


def changes(text):
    """Yields for each change of a spec its place, a description, and the changed spec."""

    def of_leaf(value, key):
        if re.fullmatch(r"[-+]?\d+", value):
            return [str(int(value) + 1), str(2 * int(value) + 5)]
        if re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", value):
            return [repr(2 * float(value) + 0.125)]
        if value in ("true", "false"):
            return [{"true": "false", "false": "true"}[value]]
        return [*sorted(WORDS[key] - {value} if value in WORDS[key] else []), json.dumps(value + "x")]

    def of_node(node, path, key):
        start, end = node.start_mark.index, node.end_mark.index
        if isinstance(node, yaml.ScalarNode):
            for value in of_leaf(node.value, key):
                yield path, value, text[:start] + value + text[end:]
            return
        pairs = node.value if isinstance(node, yaml.MappingNode) else [(item, item) for item in node.value]
        for i, (name, item) in enumerate(pairs):
            yield from of_node(item, [*path, name.value if name is not item else str(i)],
                               name.value if name is not item else key)
        if not node.flow_style or not pairs:
            return
        items = [text[first.start_mark.index:last.end_mark.index] for first, last in pairs]
        if isinstance(node, yaml.MappingNode):
            others = {f"without {name.value}": items[:i] + items[i + 1:] for i, (name, _) in enumerate(pairs)}
        else:
            others = {"one more": [*items, items[-1]], "one less": items[:-1]}
            others.update({f"{i} before {i - 1}": [*items[:i - 1], items[i], items[i - 1], *items[i + 1:]]
                           for i in range(1, len(items)) if items[i] != items[i - 1]})
        for what, rest in others.items():
            yield path, what, text[:start] + text[start] + ", ".join(rest) + text[end - 1] + text[end:]

    yield from of_node(yaml.compose(text), [], None)


def names_in(node):
    """Returns the names and words of a spec."""
    if isinstance(node, yaml.ScalarNode):
        return {node.value}
    return {name for item in node.value for part in (item if isinstance(item, tuple) else (item,))
            for name in names_in(part)}


def test_leaf_specs_use_every_key_of_the_schema():
    """The specs use every key of the schema except `config_json`, which only family files have."""
    assert KEYS - {"config_json"} == KEYS & {name for text in SPECS.values() for name in names_in(yaml.compose(text))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the specs and the outputs of laid_out.yaml that weights.yaml reads."""
    folder = tmp_path_factory.mktemp("leaves")
    for name, text in SPECS.items():
        (folder / f"{name}.yaml").write_text(text)
    (folder / "draws.bin").write_bytes(bytes([1, 2, 3]))
    run_ok("gen", "laid_out.yaml", "-o", "base", cwd=folder)
    for layout in ("one", "two"):
        run_ok("export", "laid_out.yaml", "--layout", layout, "--to", "safetensors", "-o", layout, cwd=folder)
    return folder


def outputs(name, text, folder):
    """Yields the output of each command for the spec, or None as soon as one rejects it."""
    spec = folder / "spec.yaml"
    spec.write_text(text)
    for command in LOOKS + MORE.get(name, []):
        shutil.rmtree(folder / "o", ignore_errors=True)
        command = [spec.name if word == "@" else word for word in command] if "@" in command else [*command, spec.name]
        run = run_tool(*command, cwd=folder)
        if run.returncode != 0:
            assert run.returncode in (1, 2), (command, run.stderr)
            yield None
            return
        said = [run.stdout]
        if (folder / "o").is_dir():
            said += [path.read_bytes() for path in sorted((folder / "o").rglob("*")) if path.is_file()]
        yield said


@pytest.mark.parametrize("name", SPECS)
def test_every_change_of_a_spec_changes_an_output(name, folder):
    digest = run_ok("digest", "base", cwd=folder).stdout.split()[-2]
    text = SPECS[name].replace("BASE", digest)
    before = list(outputs(name, text, folder))
    assert None not in before
    same, excused = [], set()
    for path, what, changed in changes(text):
        if all(look == now for look, now in zip(before, outputs(name, changed, folder))):
            label = f"{'.'.join(path)} {what}"
            reasons = [pattern for pattern in SAME.get(name, {}) if re.fullmatch(pattern, label)]
            excused.update(reasons)
            if not reasons:
                same.append(label)
    assert not same, "\n".join(same)
    assert excused == SAME.get(name, {}).keys()
