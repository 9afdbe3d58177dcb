"""schemas/spec.schema.json, which editors use and `shardinit schema` prints, and `shardinit validate` agree on every
rule that a JSON Schema can express."""

import copy
import json
import random
import re
import tempfile

import jsonschema
import pytest
import yaml

from support import CONFIGS, FAMILIES, LAYOUTS, RECIPES, ROOT, run_ok, run_tool, table_file

FILES = tempfile.TemporaryDirectory()
FILE = ROOT / "schemas/spec.schema.json"
SCHEMA = json.loads(FILE.read_text())


class Yaml12(yaml.SafeLoader):
    """PyYAML with the scalars of YAML 1.2, as in editors and shardinit: `no` is text, `1e-5` is a number."""

    yaml_implicit_resolvers = {}


for tag, pattern, first in [
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+0123456789.")),
]:
    Yaml12.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), first)

HEAD = "shardinit: 1\nname: x\ndtype: f32\n"
BODY = HEAD + "mesh: {axes: {data: 1, tensor: 1}}\nmodules:\n  w: "

LAYOUT = HEAD + ("mesh: {axes: {data: 1}}\nmodules: {w: {shape: [4, 6], init: ones}, v: {shape: [4, 6], init: ones}}\n"
                 "layouts:\n  x: ")

VALID = {
    "when is boolean": BODY + "{shape: [4], init: zeros, when: true}\n",
    "smallest": HEAD + "modules: {w: {shape: [], init: zeros}}\n",
    "top level": HEAD + "seed: 5\nengine: philox4x32\nuneven: chunk\nreplicas: full\n"
                        "vars: {d: 4, e: 2 * d, f: 0x10, g: 1e-5}\n"
                        "modules: {w: {shape: [d, e], init: ones}}\n",
    "rules": HEAD + "mesh: {axes: {data: 1, tensor: 1}}\n"
                    "rules: [{a: data}, {b: [data, tensor]}, {c: null}, {a: tensor}]\n"
                    "modules: {w: {shape: [2, 2, 2], init: ones, axes: [a, b, c]}}\n",
    "sharding by a word": BODY.replace("modules", "sharding: first_divisible\nmodules").replace(
        "data: 1", "fsdp: 1") + "{shape: [2], init: ones}\n",
    "sharding by a map": BODY.replace("modules", "sharding: {uneven: {pad: 1 / 2}, w: [[data, tensor], null]}\nmodules")
                         + "{shape: [2, 2], init: ones}\n",
    "sharding by placements": BODY.replace("modules", "sharding: {w: {data: Shard(0)}}\nmodules")
                              + "{shape: [2, 2], init: ones}\n",
    "sharding by languages": BODY.replace(
        "modules", "sharding: [{map: {w: [data]}, uneven: error}, {fully_shard: {axes: tensor}}]\nmodules")
        + "{shape: [2, 2], init: ones}\n",
    "axes in a list": HEAD + "mesh: {axes: [{data: 1}, {tensor: 2}]}\nrules: null\n"
                             "modules: {w: {shape: [2], init: ones}}\n",
    "no mesh": HEAD + "modules: {w: {shape: [3], init: ones}}\n",
    "mesh without axes": HEAD + "mesh: {axes: {}}\nmodules: {w: {shape: [3], init: ones}}\n",
    "named initializers": HEAD + "init: {a: {normal: {std: 0.02}}, b: a}\n"
                                 "modules: {w: {shape: [3], init: b}}\n",
    "multipliers": HEAD + "init: {a: ones}\nmultipliers: {a: {output: 1 / 8, learning_rate: 2}}\n"
                          "modules: {w: {shape: [3], init: a}}\n",
    "multipliers that are dropped": HEAD + "multipliers: null\nmodules: {w: {shape: [3], init: ones}}\n",
    "modules": HEAD + "modules:\n  m.n:\n    repeat: {i: 2}\n    o: {w: {shape: [i + 1], init: ones}}\n"
                      "    0: {shape: [], init: ones}\n",
    "names with numbers": HEAD + "modules:\n  m_{i}:\n    repeat: {i: 2}\n    '{j + 1}.{2 * j}':\n"
                                 "      repeat: {j: 2}\n"
                               "      w: {shape: [i + 1], init: ones}\n",
    "a module that is called init": HEAD + "modules: {init: {w: {shape: [1], init: ones}}}\n",
    "a module that is called block": HEAD + "modules: {block: {w: {shape: [1], init: ones}}}\n",
    "lists and texts": HEAD + "vars: {d: [1, 2], k: {text: [a, b]}, l: {text: a}}\n"
                              "modules: {w: {shape: ['d[0] + len(k)'], when: \"k[1] == 'b'\", init: ones}}\n",
    "variables and defaults of a module": HEAD + "modules: {vars: {n: 2}, init: ones, dtype: f32, w: {shape: [n]}}\n",
    "a repeat over a list": HEAD + "modules: {m: {repeat: {n: [1, 2]}, w: {shape: [n], init: ones}}}\n",
    "blocks": HEAD + "blocks: {b: {args: [n], w: {shape: [n], init: ones}}}\n"
                     "modules: {m: {block: b, args: {n: 2}}}\n",
    "key of JAX": BODY.replace("mesh", "engine: jax_threefry\nmesh")
                  + "{shape: [4], init: {normal: {std: 1}}, key: {jax: {seed: 2 * 3, split: [3, 1], fold_in: 7}}}\n",
    "names in a key": BODY.replace("mesh", "engine: jax_threefry\nmesh")
                      + "{shape: [4], init: ones, key: {jax: {seed: 2, fold_in: [Dense_0, '7{2 + 1}', 1]}}}\n",
    "steps of a key": BODY.replace("mesh", "engine: jax_threefry\nmesh")
                      + "{shape: [4], init: {normal: {std: 1}}, key: {jax: [{words: [0, 1]}, {split: [3, 1]}]}}\n",
    "tensor": BODY + "{shape: [4, 4], init: ones, shard: [data, [tensor]], dtype: bf16, uneven: pad, key: v}\n",
    "null in axes": BODY + "{shape: [4, 4], init: ones, axes: [null, null]}\n",
    "quoted expression": BODY + "{shape: ['max(2, 3)', 4], init: ones}\n",
    "constant": BODY + "{shape: [4], init: {constant: {value: -0.5}}}\n",
    "uniform": BODY + "{shape: [4], init: {uniform: {low: -1, high: 1}}}\n",
    "normal": BODY + "{shape: [4], init: {normal: {mean: 1, std: 2}}}\n",
    "truncated_normal": BODY + "{shape: [4], init: {truncated_normal: {std: 2, low: -3, high: 3}}}\n",
    "trunc_normal": BODY + "{shape: [4], init: {trunc_normal: {std: 1, a: -2, b: 2}}}\n",
    "fans": HEAD + "fans: in_out\nmodules:\n  fans: out_in\n  w: {shape: [2, 3], init: he_normal, fans: out_in}\n"
                   "  v: {shape: [2, 3, 4], init: lecun_uniform, batch_axis: 0}\n",
    "fans by axes": BODY + "{shape: [2, 3, 4], init: glorot_normal, axes: [l, i, o], in_axis: i, out_axis: [-1], "
                           "batch_axis: 0}\n",
    "words": BODY + "{shape: [3, 3], init: {kaiming_normal: {mode: fan_out, nonlinearity: relu}}}\n",
    "words of variance_scaling": BODY + "{shape: [3, 3], init: {variance_scaling: "
                                        "{scale: 2, mode: fan_geo_avg, distribution: uniform}}}\n",
    "gain by number": BODY + "{shape: [3, 3], init: {xavier_normal: {gain: 2 / 3}}}\n",
    "gain by nonlinearity": BODY + "{shape: [3, 3], init: {xavier_normal: {gain: tanh}}}\n",
    "orthogonal": BODY + "{shape: [3, 3], init: {orthogonal: {gain: relu, column_axis: out}}}\n",
    "orthogonal by axis": BODY + "{shape: [3, 3], init: {orthogonal: {column_axis: b}}, axes: [a, b]}\n",
    "sparse": BODY + "{shape: [3, 3], init: {sparse: {sparsity: 0.5}}}\n",
    "normalized": BODY + "{shape: [3, 3], init: {normalized: {axis: -1, length: 2}}}\n",
    "file": BODY + "{shape: [64], init: {file: %s}}\n" % table_file(FILES.name, bytes(256)),
    "norm": HEAD + "modules:\n  w: {shape: [2, 1], init: {norms: {of: v}}}\n  v: {shape: [2, 3], init: ones}\n",
    "file and digest": BODY + "{shape: [64], init: {file: {path: %s, sha256: %s}}}\n" % (
        table_file(FILES.name, bytes(256)), table_file(FILES.name, bytes(256)).stem),
    "stft": BODY + "{shape: [8, 1, 5], init: {stft: {side: imag, window: hamming, scaling: none, periodic: 1}}}\n",
    "zeros without arguments": BODY + "{shape: [4], init: {zeros: {}}}\n",
    "when": HEAD + "modules:\n  m: {repeat: {i: 3}, w: {shape: [1], init: ones, when: i < 2}}\n"
                   "  n: {when: 2 - 2, v: {shape: [1], init: ones}}\n",
    "layouts": LAYOUT + "\n    keep: ['*']\n    omit: []\n",
    "a renamed tensor": LAYOUT + "{keep: [v], a.b: w, c: {from: v, shard: [data], uneven: chunk}}\n",
    "operations": LAYOUT + """
    a: {axes: [null, null, null], from: {stack: {axis: -1, of: [w, v]}}}
    b:
      repeat: {i: 2}
      c: {from: {concat: {axis: i, for: {j: 2}, of: {transpose: {of: w}}}}}
      d: {from: {interleave: {axis: 0, groups: 2, of: [w, {slice: {axis: 1, stop: 6, of: v}}]}}}
    e: {from: {reshape: {shape: [2 * 12], of: {pad: {axis: 0, to: 4, value: -0.5, of: w}}}}}
""",
    "text that YAML 1.1 takes for a boolean": HEAD.replace("name: x",
                                                           "name: no") + "modules: {w: {shape: [], init: ones}}\n",
}

INVALID = {
    "dtype that no tensor has": HEAD.replace("f32", "ones") + "modules: {w: {shape: [4], init: zeros, dtype: f32}}\n",
    "unknown step of a key": BODY + "{shape: [4], init: zeros, key: {jax: {seed: 0, fold: 1}}}\n",
    "split without an index": BODY + "{shape: [4], init: zeros, key: {jax: {seed: 0, split: [3]}}}\n",
    "key of no steps": BODY + "{shape: [4], init: zeros, key: {jax: 0}}\n",
    "key of others than JAX": BODY + "{shape: [4], init: zeros, key: {torch: {seed: 0}}}\n",
    "no version": "name: x\ndtype: f32\nmodules: {w: {shape: [], init: zeros}}\n",
    "another version": "shardinit: 2\nname: x\ndtype: f32\nmodules: {w: {shape: [], init: zeros}}\n",
    "version as text": "shardinit: '1'\nname: x\ndtype: f32\nmodules: {w: {shape: [], init: zeros}}\n",
    "no name": "shardinit: 1\nmodules: {w: {shape: [], init: zeros}}\n",
    "name is a number": "shardinit: 1\nname: 7\ndtype: f32\nmodules: {w: {shape: [], init: zeros}}\n",
    "name with a slash": "shardinit: 1\nname: a/b\ndtype: f32\nmodules: {w: {shape: [], init: zeros}}\n",
    "name is hidden": "shardinit: 1\nname: .a\ndtype: f32\nmodules: {w: {shape: [], init: zeros}}\n",
    "name is an option": "shardinit: 1\nname: -a\ndtype: f32\nmodules: {w: {shape: [], init: zeros}}\n",
    "no modules": HEAD,
    "modules are empty": HEAD + "modules: {}\n",
    "modules are a list": HEAD + "modules: []\n",
    "a module is empty": HEAD + "modules: {m: {}}\n",
    "a module has only repeat": HEAD + "modules: {m: {repeat: {i: 2}}}\n",
    "unknown key": HEAD + "sed: 1\nmodules: {w: {shape: [], init: zeros}}\n",
    "unknown tensor key": BODY + "{shape: [], inti: zeros, init: zeros}\n",
    "unknown mesh key": HEAD + "mesh: {axes: {a: 1}, order: x}\nmodules: {w: {shape: [], init: zeros}}\n",
    "mesh without the word axes": HEAD + "mesh: {a: 1}\nmodules: {w: {shape: [], init: zeros}}\n",
    "bad axis name": HEAD + "mesh: {axes: {a-b: 1}}\nmodules: {w: {shape: [], init: zeros}}\n",
    "bad variable name": HEAD + "vars: {2d: 1}\nmodules: {w: {shape: [], init: zeros}}\n",
    "variable without value": HEAD + "vars: {d: }\nmodules: {w: {shape: [], init: zeros}}\n",
    "seed is boolean": HEAD + "seed: true\nmodules: {w: {shape: [], init: zeros}}\n",
    "seed is quoted": HEAD + "seed: '5'\nmodules: {w: {shape: [], init: zeros}}\n",
    "seed with a stray character": HEAD + "seed: 2 ^ 3\nmodules: {w: {shape: [], init: zeros}}\n",
    "seed is a list": HEAD + "seed: [1]\nmodules: {w: {shape: [], init: zeros}}\n",
    "unknown dtype": "shardinit: 1\nname: x\ndtype: float32\nmodules: {w: {shape: [], init: zeros}}\n",
    "unknown engine": HEAD + "engine: mt19937\nmodules: {w: {shape: [], init: zeros}}\n",
    "unknown uneven": HEAD + "uneven: chunks\nmodules: {w: {shape: [], init: zeros}}\n",
    "padding by nothing": HEAD + "uneven: {pad: null}\nmodules: {w: {shape: [], init: zeros}}\n",
    "padding and more": HEAD + "uneven: {pad: 1, to: 2}\nmodules: {w: {shape: [], init: zeros}}\n",
    "unknown replicas": HEAD + "replicas: none\nmodules: {w: {shape: [], init: zeros}}\n",
    "sharding by a number": BODY.replace("modules", "sharding: 1\nmodules") + "{shape: [2], init: ones}\n",
    "sharding by an unknown word": BODY.replace("modules", "sharding: fdsp\nmodules") + "{shape: [2], init: ones}\n",
    "sharding by a language and a pattern": BODY.replace("modules", "sharding: {haliax: {}, w: [data]}\nmodules")
                                            + "{shape: [2], init: ones}\n",
    "a policy that there is not": BODY.replace("modules", "sharding: {uneven: round, w: [data]}\nmodules")
                                  + "{shape: [2], init: ones}\n",
    "an axis of two in a list": HEAD + "mesh: {axes: [{data: 1, tensor: 2}]}\nmodules: {w: {shape: [2], init: ones}}\n",
    "rules are a map": HEAD + "rules: {a: x}\nmodules: {w: {shape: [], init: zeros}}\n",
    "rule of two": HEAD + "rules: [{a: x, b: y}]\nmodules: {w: {shape: [], init: zeros}}\n",
    "rule of none": HEAD + "rules: [{}]\nmodules: {w: {shape: [], init: zeros}}\n",
    "rule to a number": HEAD + "rules: [{a: 1}]\nmodules: {w: {shape: [], init: zeros}}\n",
    "tensor is a number": BODY + "4\n",
    "tensor without shape": BODY + "{init: zeros}\n",
    "shape is a number": BODY + "{shape: 4, init: zeros}\n",
    "shape with null": BODY + "{shape: [null], init: zeros}\n",
    "shape with a quoted number": BODY + "{shape: ['4'], init: zeros}\n",
    "axes are a name": BODY + "{shape: [4], init: zeros, axes: a}\n",
    "shard of a map": BODY + "{shape: [4], init: zeros, shard: [{a: b}]}\n",
    "init is a number": BODY + "{shape: [4], init: 0}\n",
    "init is a list": BODY + "{shape: [4], init: [zeros]}\n",
    "two initializers": BODY + "{shape: [4], init: {zeros: {}, ones: {}}}\n",
    "unknown initializer": BODY + "{shape: [4], init: {gaussian: {std: 1}}}\n",
    "unknown parameter": BODY + "{shape: [4], init: {normal: {std: 1, sigma: 2}}}\n",
    "missing parameter": BODY + "{shape: [4], init: {normal: {mean: 1}}}\n",
    "arguments are a number": BODY + "{shape: [4], init: {constant: 1}}\n",
    "zeros with an argument": BODY + "{shape: [4], init: {zeros: {value: 1}}}\n",
    "unknown fans": HEAD + "fans: out-in\nmodules: {w: {shape: [], init: zeros}}\n",
    "fans twice": BODY + "{shape: [2, 3], init: he_normal, fans: out_in, in_axis: 0}\n",
    "arguments of a block by name": HEAD + "blocks: {b: {args: {n: 2}, w: {shape: [2], init: ones}}}\n"
                                          "modules: {m: {block: b}}\n",
    "a block is a list": HEAD + "blocks: {b: {w: {shape: [2], init: ones}}}\nmodules: {m: {block: [b]}}\n",
    "an empty list": HEAD + "vars: {n: []}\nmodules: {w: {shape: [2], init: ones}}\n",
    "fans are a map": HEAD + "modules: {fans: {w: {shape: [], init: zeros}}, w: {shape: [], init: zeros}}\n",
    "a module has only fans": HEAD + "modules: {m: {repeat: {i: 2}, fans: out_in}}\n",
    "dimension is a fraction": BODY + "{shape: [2, 3], init: he_normal, in_axis: 0.5}\n",
    "dimension is boolean": BODY + "{shape: [2, 3], init: he_normal, in_axis: true}\n",
    "unknown mode": BODY + "{shape: [3, 3], init: {kaiming_normal: {mode: fan_avg}}}\n",
    "distribution is a number": BODY + "{shape: [3, 3], init: {variance_scaling: {distribution: 1}}}\n",
    "orthogonal with a list": BODY + "{shape: [3, 3], init: {orthogonal: {column_axis: [0]}}}\n",
    "sparse without sparsity": BODY + "{shape: [3, 3], init: sparse}\n".replace("sparse}", "{sparse: {}}}"),
    "norm without a tensor": BODY + "{shape: [1], init: {norms: {}}}\n",
    "norm of a number": BODY + "{shape: [1], init: {norms: {of: 5}}}\n",
    "norm with a dimension": BODY + "{shape: [1], init: {norms: {of: w, axis: 0}}}\n",
    "norm by name": BODY + "{shape: [1], init: {norms: w}}\n",
    "file without a digest": BODY + "{shape: [1], init: {file: a.bin}}\n",
    "file of a number": BODY + "{shape: [1], init: {file: 5}}\n",
    "file without a path": BODY + "{shape: [1], init: {file: {sha256: %s}}}\n" % (64 * "a"),
    "file of another key": BODY + "{shape: [1], init: {file: {path: a, sha256: %s, dtype: f32}}}\n" % (64 * "a"),
    "file of a short digest": BODY + "{shape: [1], init: {file: {path: a, sha256: %s}}}\n" % (63 * "a"),
    "normalized without axis": BODY + "{shape: [3, 3], init: {normalized: {length: 1}}}\n",
    "unknown side": BODY + "{shape: [8, 1, 5], init: {stft: {side: left}}}\n",
    "path with an empty part": HEAD + "modules: {a..b: {shape: [], init: zeros}}\n",
    "path with a slash": HEAD + "modules: {a/b: {shape: [], init: zeros}}\n",
    "path with a space": HEAD + "modules: {a b: {shape: [], init: zeros}}\n",
    "path with a long part": HEAD + "modules: {" + "a" * 256 + ": {shape: [], init: zeros}}\n",
    "repeat of two": HEAD + "modules: {repeat: {i: 1, j: 2}, w: {shape: [], init: zeros}}\n",
    "repeat is a number": HEAD + "modules: {repeat: 2, w: {shape: [], init: zeros}}\n",
    "empty key": BODY + "{shape: [4], init: zeros, key: ''}\n",
    "size is boolean": BODY + "{shape: [true], init: zeros}\n",
    "when is a map": HEAD + "modules: {when: {w: {shape: [], init: zeros}}, v: {shape: [], init: zeros}}\n",
    "a module has only when": HEAD + "modules: {m: {when: 1}}\n",
    "a layout is empty": LAYOUT + "{}\n",
    "a layout only omits": LAYOUT + "{omit: ['*']}\n",
    "keep is a name": LAYOUT + "{keep: w}\n",
    "a stored tensor is a number": LAYOUT + "{keep: ['*'], a: 4}\n",
    "a stored tensor is a list": LAYOUT + "{keep: ['*'], a: [w]}\n",
    "a stored tensor with a shape": LAYOUT + "{keep: ['*'], a: {from: w, shape: [4, 6]}}\n",
    "two operations": LAYOUT + "{keep: ['*'], a: {from: {stack: {axis: 0, of: [w]}, pad: {axis: 0, to: 4, of: w}}}}\n",
    "unknown operation": LAYOUT + "{keep: ['*'], a: {from: {fuse: {axis: 0, of: [w]}}}}\n",
    "unknown argument": LAYOUT + "{keep: ['*'], a: {from: {stack: {dim: 0, axis: 0, of: [w]}}}}\n",
    "missing argument": LAYOUT + "{keep: ['*'], a: {from: {stack: {of: [w]}}}}\n",
    "an operation of nothing": LAYOUT + "{keep: ['*'], a: {from: {stack: {axis: 0}}}}\n",
    "an operation of an empty list": LAYOUT + "{keep: ['*'], a: {from: {stack: {axis: 0, of: []}}}}\n",
    "a list for one": LAYOUT + "{keep: ['*'], a: {from: {transpose: {of: [w]}}}}\n",
    "for two": LAYOUT + "{keep: ['*'], a: {from: {stack: {axis: 0, for: {i: 1, j: 2}, of: w}}}}\n",
    "axis is a list": LAYOUT + "{keep: ['*'], a: {from: {stack: {axis: [0], of: [w]}}}}\n",
    "include is a map": HEAD + "include: {a: b}\nmodules: {w: {shape: [], init: zeros}}\n",
}


def schema_errors(text):
    validator = jsonschema.Draft7Validator(SCHEMA)
    # A number as a mapping key, as in `0: {…}`, is a name in a spec.
    document = json.loads(json.dumps(yaml.load(text, Loader=Yaml12)))
    return [error.message for error in validator.iter_errors(document)]


def validate(tmp_path, text):
    spec = tmp_path / "spec.yaml"
    spec.write_text(text)
    return run_tool("validate", spec)


def test_schema_file_is_up_to_date():
    # Recorded with `shardinit schema > schemas/spec.schema.json`.
    assert run_ok("schema").stdout == FILE.read_text()


def test_schema_is_valid_draft_7():
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", VALID)
def test_schema_and_validate_accept_valid_specs(name, tmp_path):
    assert schema_errors(VALID[name]) == []
    result = validate(tmp_path, VALID[name])
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", INVALID)
def test_schema_and_validate_reject_invalid_specs(name, tmp_path):
    assert schema_errors(INVALID[name]) != []
    result = validate(tmp_path, INVALID[name])
    assert result.returncode == 2, result.stdout + result.stderr


@pytest.mark.parametrize("path", CONFIGS + RECIPES + LAYOUTS + FAMILIES, ids=lambda path: path.name)
def test_schema_accepts_shipped_configs(path):
    assert schema_errors(path.read_text()) == []


def described(schema):
    """Yields every key that an editor can complete."""
    for name, child in schema.get("properties", {}).items():
        yield name, child
        yield from described(child)


def test_schema_describes_every_key():
    for schema in [SCHEMA, *SCHEMA["definitions"].values()]:
        for name, child in described(schema):
            target = SCHEMA["definitions"][child["$ref"].rpartition("/")[2]] if "$ref" in child else child
            assert target.get("description") or "const" in target, name


def test_schema_has_the_view_operations(tmp_path):
    result = validate(tmp_path, LAYOUT + "{a: {from: {q: {of: w}}}}\n")
    known = re.findall(r"`(\w+)`", result.stderr.partition("hint: ")[2])
    manual = (ROOT / "man/shardinit-spec.5").read_text()
    assert known == list(SCHEMA["definitions"]["view"]["anyOf"][1]["properties"])
    assert [name for name in known if f".It Cm {name}\n" not in manual] == []


def test_schema_has_defaults_and_enumerations():
    assert SCHEMA["properties"]["replicas"]["enum"] == ["dedupe", "full"]
    assert SCHEMA["properties"]["engine"]["default"] in SCHEMA["properties"]["engine"]["enum"]
    initializers = SCHEMA["definitions"]["initializer"]["anyOf"][1]["properties"]
    assert initializers["truncated_normal"]["properties"]["low"]["default"] == -2
    assert initializers["kaiming_normal"]["properties"]["mode"]["default"] == "fan_in"
    assert initializers["constant"]["required"] == ["value"]
    view = SCHEMA["definitions"]["view"]["anyOf"][1]["properties"]
    assert view["slice"]["properties"]["start"]["default"] == 0
    assert "for" in view["stack"]["properties"] and "for" not in view["slice"]["properties"]


def node_paths(node, path=()):
    yield path
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else []
    for key, child in children:
        yield from node_paths(child, (*path, key))


def mutate(document, rng):
    document = copy.deepcopy(document)
    path = rng.choice([path for path in node_paths(document) if path])
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    value = rng.choice([0, -1, 0.5, None, [], {}, ["a"], "ones", "2 * 2", "chunk", "f32", {"normal": {"std": 1}},
                        {"stack": {"axis": 0, "of": ["w"]}}])
    if rng.random() < 0.2:
        del parent[path[-1]]
    elif isinstance(parent, dict) and rng.random() < 0.3:
        parent[rng.choice(["uneven", "fans", "when", "dtype", "shard", "axes", "vars", "omit"])] = value
    else:
        parent[path[-1]] = value
    return document


def test_schema_accepts_mutated_specs_that_are_valid(tmp_path):
    """The schema accepts every spec that `validate` accepts, for valid specs with one random change."""
    rng = random.Random(5)
    documents = [yaml.load(text, Loader=Yaml12) for text in VALID.values()]
    mutated = [json.loads(json.dumps(mutate(rng.choice(documents), rng))) for _ in range(600)]
    paths = []
    for i, document in enumerate(mutated):
        paths.append(tmp_path / f"{i}.yaml")
        paths[-1].write_text(json.dumps(document))
    verdicts = json.loads(run_tool("validate", "--json", *paths).stdout)
    accepts = jsonschema.Draft7Validator(SCHEMA).is_valid
    assert [d for d, verdict in zip(mutated, verdicts, strict=True) if verdict["valid"] and not accepts(d)] == []
    assert 50 < sum(verdict["valid"] for verdict in verdicts) < 550
