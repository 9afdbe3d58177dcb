"""Tests `shardinit help`, `shardinit new` and `shardinit capture`, the first commands of a new user."""

import json
import random
import re
import subprocess

import pytest
import yaml

from support import BINARY, CLEAN, ROOT, run_json, run_ok, run_tool

SCHEMA = json.loads((ROOT / "schemas/spec.schema.json").read_text())
LISTED = run_json("list")
MAPPINGS = {"": SCHEMA, **{f"{place}.": SCHEMA["definitions"][name] for place, name in {
    "assert": "assertion", "mesh": "mesh", "training": "training", "tensor": "tensor", "shard": "cut",
    "module": "module", "layout": "layout", "stored_module": "storedModule", "stored_tensor": "storedTensor"}.items()}}


def flat(text):
    """Returns the text with each line break and run of spaces replaced by one space."""
    return " ".join(text.split())


def initializers():
    objects, = [s for s in SCHEMA["definitions"]["initializer"]["anyOf"] if "properties" in s]
    return objects["properties"]


# help -------------------------------------------------------------------------

@pytest.mark.quick
def test_help_lists_all_names():
    text = run_ok("help").stdout
    words = set(re.findall(r"[\w./-]+", text))
    assert {entry["name"] for kind in LISTED.values() for entry in kind} | LISTED.keys() <= words
    assert {place + key for place, schema in MAPPINGS.items() for key in schema["properties"]} <= words
    for line in re.findall(r"^  (\w.*)$", run_ok("--help").stdout.split("Subcommands:")[1], re.M):
        assert flat(line) in flat(text)


@pytest.mark.parametrize("place", MAPPINGS)
def test_help_of_keys_matches_the_schema(place):
    for key, schema in MAPPINGS[place]["properties"].items():
        page = flat(run_ok("help", place + key).stdout)
        assert page.startswith(f"{key}: a key of ") and flat(schema["description"]) in page, key
        if "default" in schema:
            shown, default = re.search(r" default (\S+) ", page)[1], schema["default"]
            assert shown == default or float(shown) == default, key
        assert all(word in page for word in schema.get("enum", [])), key
        assert re.search(r"page shardinit-[a-z-]+\([157]\)", page)


def test_help_of_initializers_lists_their_parameters():
    for name, schema in initializers().items():
        page = flat(run_ok("help", f"init.{name}").stdout)
        assert page.startswith(f"{name}: an initializer ") and flat(schema["description"]) in page
        assert "a function" not in page
        if name in ("file", "norms", "expr", "source", "rows_like", "parts"):
            continue
        for parameter, value in schema.get("properties", {}).items():
            assert f" {parameter} {value['description']}" in page, (name, parameter)
            words = [word for option in [value, *value.get("anyOf", [])] for word in option.get("enum", [])]
            assert all(word in page for word in words)
        required = schema.get("required", [])
        assert (f"{{{name}: {{" in page) == bool(required) and all(f"{r}: …" in page for r in required)


def test_help_has_a_page_for_every_listed_name():
    for kind, entries in LISTED.items():
        assert flat(run_ok("list", kind).stdout) in flat(run_ok("help", kind).stdout)
        for entry in random.Random(kind).sample(entries, min(len(entries), 6)):
            assert entry["description"], entry
            assert flat(entry["description"]) in flat(run_ok("help", entry["name"]).stdout)


def test_schema_describes_every_function():
    description = SCHEMA["definitions"]["expression"]["description"]
    for entry in LISTED["functions"]:
        own = not entry["name"].startswith(("jax_", "torch_"))
        assert (f"), {entry['description']}" in description) == own, entry
        page = run_ok("help", entry["name"]).stdout
        assert f"{entry['name']}(" in page


@pytest.mark.parametrize("command", ["gen", "help", "capture", "completion"])
def test_help_of_a_command_equals_its_help_option(command, tmp_path):
    assert run_ok("help", command, env={"PATH": ""}).stdout == run_ok(command, "--help", env={"PATH": ""}).stdout


@pytest.mark.parametrize("typed, hint", [
    ("xavier_unifrom", "did you mean `xavier_uniform`?"), ("shardng", "did you mean `sharding`?"),
    ("mesh.axis", "did you mean `mesh.axes`?"), ("generate", "did you mean `gen`?"),
    ("init.nomral", "did you mean `init.normal`?"), ("qqqqqqqq", "`shardinit help` shows all topics")])
def test_help_suggests_a_name_for_a_misspelled_word(typed, hint):
    result = run_tool("help", typed)
    assert result.returncode == 2 and f"no help topic matches `{typed}`" in result.stderr and hint in result.stderr


def test_help_resolves_aliases_and_ambiguous_names():
    assert run_ok("help", "dedupe").stdout == run_ok("help", "replicas").stdout
    assert [line.split(":")[0] for line in run_ok("help", "axes").stdout.splitlines()
                if re.match(r"\w", line)] == ["axes"] * 3
    text = run_ok("help", "normal").stdout
    assert "normal: an initializer" in text and "normal: a function" in text
    assert run_ok("help", "init.normal.std").stdout == run_ok("help", "init.normal").stdout


# new --------------------------------------------------------------------------

def count_parameters(vocab, d, ff, layers, heads, kv_heads, head_dim):
    return 2 * vocab * d + layers * (2 * heads * head_dim * d + 2 * kv_heads * head_dim * d + 3 * ff * d + 2 * d) + d


RECIPES = ["huggingface", "megatron", "torchtitan", "maxtext"]


@pytest.mark.parametrize("seed", range(12))
def test_new_writes_a_valid_spec_for_random_flags(seed, tmp_path):
    """The printed spec is valid and has the number of parameters given by the formula in the manual page."""
    draw = random.Random(seed)
    kv_heads = draw.randint(1, 4)
    heads, head_dim = kv_heads * draw.randint(1, 3), draw.choice([8, 16, 24])
    has_head_dim = draw.random() < 0.5
    sizes = {"width": heads * head_dim if not has_head_dim else draw.randint(8, 100), "layers": draw.randint(1, 5),
             "vocab": draw.randint(10, 500), "heads": heads, "kv-heads": kv_heads}
    ff = draw.choice([None, draw.randint(5, 200)])
    flags = [f"--{name}={value}" for name, value in sizes.items()]
    flags += [f"--head-dim={head_dim}"] * has_head_dim + [f"--ff={ff}"] * (ff is not None)
    mesh = draw.choice([None, "fsdp=3,tensor=2", "tensor=4", "a=2,b=3,model=2", "dp=5"])
    sharding = draw.choice([None, None, "torchtitan", "maxtext"]) if mesh in (None, "fsdp=3,tensor=2") else None
    dtype, recipe = draw.choice([None, "f32", "f16"]), draw.choice([None, *RECIPES])
    flags += [f"--{name}={value}" for name,
              value in [("mesh", mesh), ("sharding", sharding), ("dtype", dtype), ("init", recipe)] if value]
    draw.shuffle(flags)
    spec = tmp_path / "spec.yaml"
    run_ok("new", "mine", *flags, "-o", spec)
    first = spec.read_text()
    assert first.startswith("# yaml-language-server: $schema=spec.schema.json\n") and yaml.safe_load(first)["name"] == "mine"
    expected = count_parameters(sizes["vocab"], sizes["width"], ff or -(-(-(-8 * sizes["width"] // 3)) // 256) * 256,
                             sizes["layers"], heads, kv_heads, head_dim)
    assert f"{expected:,} parameters" in first
    assert f"valid: mine, {3 + 9 * sizes['layers']} tensors, {expected:,} parameters" in run_ok("validate", spec).stdout
    plan = run_json("plan", spec)
    assert plan["parameters"] == expected
    assert plan["bytes"] == expected * {"f32": 4, "f16": 2, None: 2}[dtype]
    if mesh:
        axes = dict(axis.split("=") for axis in mesh.split(","))
        assert {a: n for a, n in zip(plan["mesh"]["axes"], plan["mesh"]["shape"]) if n > 1 or a in axes} == \
            {a: int(n) for a, n in axes.items()}
    elif not sharding:
        assert plan["world_size"] == 1
    run_ok("gen", spec, "-o", tmp_path / "out")
    run_ok("verify", tmp_path / "out")
    refused = run_tool("new", *flags, "-o", spec)
    assert refused.returncode == 4 and "--force" in refused.stderr and spec.read_text() == first


@pytest.mark.parametrize("model", [entry["name"] for entry in LISTED["models"]])
def test_new_from_a_shipped_model_equals_the_model(model, tmp_path):
    """Apart from its name, the spec equals the model; its comments list the model's variables and their values."""
    text = run_ok("new", "mine", "--from", model).stdout
    (tmp_path / "x.yaml").write_text(text)
    whole, plan = run_json("plan", model), run_json("plan", tmp_path / "x.yaml")
    assert {**plan, "name": whole["name"]} == whole and plan["name"] == "mine"
    assert f"{whole['parameters']:,} parameters" in text
    (tmp_path / "x.yaml").write_text(re.sub(r"^# (vars:|  \w+: |mesh: )", r"\1", text, flags=re.M))
    assert run_json("plan", tmp_path / "x.yaml") == plan


def test_new_from_a_model_applies_flags(tmp_path):
    spec = tmp_path / "x.yaml"
    run_ok("new", "mine", "--from", "llama3-tiny", "--layers", 3, "--hidden", 64, "--mesh", "tensor=2", "--init",
           "megatron", "--dtype", "f32", "-o", spec)
    sets = ["--set", "vars.layers=3", "--set", "vars.d=64", "--set", "dtype=f32", "--mesh", "tensor=2"]
    whole, plan = run_json("plan", "llama3-tiny", *sets), run_json("plan", spec)
    assert {**plan, "name": whole["name"]} == whole
    facts = run_ok("explain", spec, "model.layers.0.mlp.down_proj.weight").stdout
    assert "init_method_std / sqrt(2 * layers)" in facts
    run_ok("new", "mine", "--from", "llama3-tiny", "--sharding", "torchtitan", "--mesh", "fsdp=2,tensor=2", "-o", spec,
           "--force")
    asked = run_json("plan", "llama3-tiny", "--sharding", "torchtitan", "--mesh", "fsdp=2,tensor=2")
    assert {**run_json("plan", spec), "name": asked["name"]} == asked
    run_ok("new", "mine", "--from", "llama3-tiny", "--sharding", "first_divisible", "--mesh", "fsdp=4", "-o", spec,
           "--force")
    assert "sharding: first_divisible" in spec.read_text()
    run_ok("validate", spec)


@pytest.mark.parametrize("arguments, words", [
    (["--from", "llama3-tny"], "did you mean `llama3-tiny`?"),
    (["--from", "gpt2-xl", "--kv-heads", "4"], "no variable `kv_heads`"),
    (["--init", "mamba"], "no recipe `mamba` for decoders"),
    (["--width", "100", "--heads", "7"], "not a multiple of the number of heads, 7"),
    (["--width", "96", "--heads", "6", "--kv-heads", "4"], "`--heads 6` is not a multiple of `--kv-heads 4`"),
    (["--layers", "0"], "use a whole number from 1"),
    (["--layers", "4k"], "use a whole number from 1"), (["--mesh", "fsdp"], "axis=size"),
    (["--dtype", "float99"], "float99"), (["--sharding", "torchtitn"], "torchtitn"), (["a/b"], "a/b")])
def test_new_rejects_wrong_arguments(arguments, words, tmp_path):
    result = run_tool("new", *arguments, "-o", tmp_path / "x.yaml")
    assert result.returncode == 2 and words in result.stderr and result.stdout == "" and not list(tmp_path.iterdir()), result


# capture ----------------------------------------------------------------------

@pytest.fixture
def programs(tmp_path):
    """Returns a folder for PATH that contains a fake shardinit-capture."""
    folder = tmp_path / "programs"
    folder.mkdir()
    program = folder / "shardinit-capture"
    program.write_text('#!/bin/sh\nprintf "<%s>" "$@"\nexit $STATUS\n')
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize("status", [0, 2, 3])
def test_capture_passes_arguments_output_and_status_through(status, programs):
    words = ["torch", "my:Up", "--args", '[3, "a b"]', "-o", "-", "-o", "x", "--", "--help", "-q"]
    env = {"PATH": f"{programs}:/bin", "STATUS": str(status)}
    result = run_tool("capture", *words, env=env)
    assert (result.returncode, result.stdout, result.stderr) == (status, "".join(f"<{w}>" for w in words), "")
    assert run_tool("capture", "--help", env=env).stdout == "<--help>"


def test_capture_reports_that_it_is_not_installed(programs):
    result = run_tool("capture", "torch", "my:Up", "-o", "x", env={"PATH": "/nowhere"})
    assert result.returncode == 2 and result.stdout == "" and "`shardinit-capture` is not installed" in result.stderr
    assert "pip install shardinit-*.whl" in result.stderr and "pip install ./src/python" in result.stderr
    assert "shardinit-capture(1)" in run_ok("capture", "--help", env={"PATH": "/nowhere"}).stdout
    (programs / "shardinit-capture").write_text("#!/nowhere/python\n")
    result = run_tool("capture", "torch", env={"PATH": str(programs)})
    assert result.returncode == 2 and "is not installed" in result.stderr


def test_capture_reports_that_it_cannot_be_run(programs):
    (programs / "shardinit-capture").chmod(0o644)
    result = subprocess.run([BINARY, "capture", "torch"], env={**CLEAN, "PATH": str(programs)}, capture_output=True,
                            text=True)
    assert result.returncode == 2 and "shardinit-capture" in result.stderr
