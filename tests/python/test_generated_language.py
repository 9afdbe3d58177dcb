"""Compares random expressions with Python's values, and short forms of specs with the same tensors written out."""

import ast
import json
import re

import yaml
from hypothesis import strategies as st

from generated import generated, given
from support import run_ok

NAMES = {"a": 0, "b": 1, "c": 2, "d": 7}


@st.composite
def expressions(draw, depth=4):
    """Draws an expression that Python parses with the same precedence; the divisor of `%` is never 0."""
    kind = draw(st.sampled_from(["leaf", "and", "or", "not", "%", "<", "==", "+", "*", "()"]) if depth else
                st.just("leaf"))
    if kind == "leaf":
        return draw(st.sampled_from([*NAMES, "0", "1", "3", "true", "false"]))
    left = draw(expressions(depth - 1))
    if kind == "()":
        return f"({left})"
    if kind == "not":
        return f"(not {left})"
    if kind == "%":
        return f"({left}) % 5"
    right = draw(expressions(depth - 1))
    return f"(({left}) {kind} ({right}))" if kind in ("<", "==") else f"{left} {kind} {right}"


def evaluate(text, names):
    """Returns Python's value, but with 1 or 0 for `and` and `or`."""

    def value(node):
        if isinstance(node, ast.BoolOp):
            truths = [value(each) != 0 for each in node.values]
            return int(all(truths) if isinstance(node.op, ast.And) else any(truths))
        if isinstance(node, ast.UnaryOp):
            return int(value(node.operand) == 0)
        if isinstance(node, ast.Compare):
            left, right = value(node.left), value(node.comparators[0])
            return int(left < right if isinstance(node.ops[0], ast.Lt) else left == right)
        if isinstance(node, ast.BinOp):
            left, right = value(node.left), value(node.right)
            return {ast.Add: left + right, ast.Mult: left * right, ast.Mod: left % (right or 1)}[type(node.op)]
        return names[node.id] if isinstance(node, ast.Name) else int(node.value)

    return value(ast.parse(text.replace("true", "True").replace("false", "False"), mode="eval").body)


def digests(spec, folder):
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump({"shardinit": 1, "name": "m", "dtype": "f64", **spec}, sort_keys=False,
                                   width=10_000))
    return run_ok("digest", path).stdout


@generated(150)
@given(text=expressions())
def test_random_expressions_have_the_values_of_python(text, tmp_path_factory):
    """An expression has the same value as a variable, for each element, and in Python."""
    folder = tmp_path_factory.mktemp("logic")
    brief = digests({"vars": {**NAMES, "x": f"({text})"}, "modules": {
        "x": {"shape": [2], "init": {"constant": {"value": "x"}}},
        "y": {"shape": [2], "init": {"expr": f"({text})"}},
        "z": {"shape": [2], "init": {"expr": "(" + re.sub(r"\ba\b", "i0", text) + ")"}},
    }}, folder)
    number, of_second = evaluate(text, NAMES), evaluate(text, {**NAMES, "a": 1})
    flat = digests({"modules": {
        "x": {"shape": [2], "init": {"expr": f"where(1, {number}, 0)"}},
        "y": {"shape": [2], "init": {"constant": {"value": number}}},
        "z": {"shape": [2], "init": {"expr": f"where(i0 == 0, {number}, {of_second})"}},
    }}, folder)
    assert brief == flat


def test_and_or_skip_a_second_operand_that_cannot_matter(tmp_path):
    """`and` and `or` skip their second operand if the first decides; names in it are still checked."""
    spec = {"vars": {"n": 0, "x": "n > 0 and 8 / n > 2", "y": "n == 0 or 8 % n == 0"},
            "modules": {"w": {"shape": ["1 + x + 2 * y"], "init": "zeros"}}}
    assert digests(spec, tmp_path) == digests({"modules": {"w": {"shape": [3], "init": "zeros"}}}, tmp_path)


class Names:
    """Names that a module's expressions may use, by kind; `taken` also has the names around the module."""

    def __init__(self, numbers=(), lists=(), texts=(), text_lists=(), taken=(), in_block=False):
        self.numbers, self.lists, self.texts, self.text_lists = map(list, (numbers, lists, texts, text_lists))
        self.taken, self.in_block = set(taken), in_block

    def copy(self):
        return Names(self.numbers, self.lists, self.texts, self.text_lists, self.taken, self.in_block)

    def add(self, kind):
        name = next(f"v{n}" for n in range(100) if f"v{n}" not in self.taken)
        self.taken.add(name)
        getattr(self, kind).append(name)
        return name


@st.composite
def positive_numbers(draw, names):
    """Draws an expression of a whole number, at least 1."""
    kind = draw(st.sampled_from(["literal", "name", "item", "len", "sum", "compare"]))
    if kind == "name" and names.numbers:
        return f"1 + {draw(st.sampled_from(names.numbers))}"
    if kind == "item" and names.lists:
        name = draw(st.sampled_from(names.lists))
        index = f"{draw(st.sampled_from(names.numbers))} % len({name})" if names.numbers else "0"
        return f"{name}[{index}]"
    if kind == "len" and names.lists + names.text_lists:
        return f"len({draw(st.sampled_from(names.lists + names.text_lists))})"
    if kind == "sum" and names.numbers:
        return f"2 + {draw(st.sampled_from(names.numbers))}"
    if kind == "compare" and names.texts:
        return f"1 + ({draw(st.sampled_from(names.texts))} {draw(st.sampled_from(['==', '!=']))} 'b')"
    return str(draw(st.integers(1, 3)))


@st.composite
def variables(draw, names, kind):
    """Draws the YAML value of a variable of this kind."""
    if kind == "numbers":
        return draw(positive_numbers(names))
    if kind == "lists":
        if names.lists and draw(st.booleans()):
            return draw(st.sampled_from(names.lists))
        return [draw(positive_numbers(names)) for _ in range(draw(st.integers(1, 3)))]
    words = st.sampled_from(["a", "b", "c d"])
    if kind == "texts":
        if names.texts and draw(st.booleans()):
            return draw(st.sampled_from(names.texts))
        return f"'{draw(words)}'" if draw(st.booleans()) else {"text": draw(words)}
    return {"text": draw(st.lists(words, min_size=1, max_size=3))}


KINDS = ["numbers", "lists", "texts", "text_lists"]


@st.composite
def modules(draw, names, blocks, depth):
    """Draws a module that uses these names and blocks: {name: (kinds of its arguments, …)}."""
    names = names.copy()
    module = {}
    repeat = draw(st.sampled_from(["none", "none", "count", "items", "list"]))
    if repeat == "count":
        count = draw(positive_numbers(names))
        module["repeat"] = {names.add("numbers"): count}
    elif repeat == "items" or (repeat == "list" and not names.lists):
        items = [draw(positive_numbers(names)) for _ in range(draw(st.integers(1, 3)))]
        module["repeat"] = {names.add("numbers"): items}
    elif repeat == "list":
        over = draw(st.sampled_from(names.lists))
        module["repeat"] = {names.add("numbers"): over}
    if draw(st.booleans()):
        module["vars"] = {}
        for _ in range(draw(st.integers(1, 2))):
            kind = draw(st.sampled_from(KINDS))
            value = draw(variables(names, kind))
            module["vars"][names.add(kind)] = value
    if draw(st.booleans()):
        module["dtype"] = draw(st.sampled_from(["f32", "bf16"]))
    if draw(st.booleans()):
        module["init"] = "ones" if draw(st.booleans()) else {"constant": {"value": draw(positive_numbers(names))}}
    if blocks and draw(st.booleans()):
        block = draw(st.sampled_from(sorted(blocks)))
        module |= {"block": block, "args": {arg: draw(variables(names, kind)) for arg, kind in blocks[block].items()}}
    for i in range(draw(st.integers(1, 2))):
        if depth and draw(st.booleans()):
            module[f"m{i}"] = draw(modules(names, blocks, depth - 1))
            continue
        module[f"t{i}"] = {"shape": [draw(positive_numbers(names)), 2]}
        if draw(st.booleans()):
            module[f"t{i}"]["init"] = {"constant": {"value": draw(positive_numbers(names))}}
        if names.texts and draw(st.booleans()):
            text, number = draw(st.sampled_from(names.texts)), draw(positive_numbers(names))
            module[f"t{i}"]["when"] = f"{text} == 'a' or {number} > 1"
    return module


@st.composite
def short_specs(draw):
    spec_names = Names()
    spec = {"vars": {}, "blocks": {}}
    for kind in KINDS:
        value = draw(variables(spec_names, kind))
        spec["vars"][spec_names.add(kind)] = value
    blocks = {}
    for b in range(draw(st.integers(0, 2))):
        names = spec_names.copy()
        kinds = draw(st.lists(st.sampled_from(KINDS), max_size=3))
        args = {names.add(kind): kind for kind in kinds}
        body = {"inner": draw(modules(names, blocks, 1)), "t": {"shape": [draw(positive_numbers(names))]}}
        spec["blocks"][f"b{b}"] = {"args": list(args), **body} if args else body
        blocks[f"b{b}"] = args
    spec["modules"] = {"init": "ones", "dtype": "f64", "top": draw(modules(spec_names, blocks, 2)),
                       "w": {"shape": [2]}}
    return spec


def python_value(value, env):
    if isinstance(value, dict):
        return value["text"]
    if isinstance(value, list):
        return [python_value(item, env) for item in value]
    return eval(str(value), {"__builtins__": {}, "len": len}, env)


def initializer(init, env):
    """Returns the initializer (or dtype) with expressions replaced by numbers."""
    if isinstance(init, str):
        return init
    return {kind: {key: python_value(value, env) for key, value in arguments.items()}
            for kind, arguments in init.items()}


def flattened(spec):
    """Returns the tensors of a short spec written out, by Python's own evaluation."""
    spec_env = {}
    for name, value in spec["vars"].items():
        spec_env[name] = python_value(value, spec_env)
    tensors = {}

    def visit(module, path, env, defaults):
        steps = [(path, {})]
        if "repeat" in module:
            ((name, over),) = module["repeat"].items()
            over = python_value(over, env)
            items = over if isinstance(over, list) else range(over)
            steps = [(f"{path}.{i}", {name: item}) for i, item in enumerate(items)]
        for inner, own in steps:
            here = env | own
            for name, value in module.get("vars", {}).items():
                here[name] = python_value(value, here)
            given = defaults | {key: initializer(module[key], here) for key in ("dtype", "init") if key in module}
            if "block" in module:
                values = {arg: python_value(value, here) for arg, value in module["args"].items()}
                visit(spec["blocks"][module["block"]], inner, spec_env | values, given)
            for name, member in module.items():
                if not isinstance(member, dict) or name in ("repeat", "vars", "init", "args"):
                    continue
                if "shape" not in member:
                    visit(member, f"{inner}.{name}".strip("."), here, given)
                elif python_value(member.get("when", "1"), here):
                    tensors[f"{inner}.{name}".strip(".")] = {
                        "shape": [python_value(extent, here) for extent in member["shape"]],
                        "dtype": given["dtype"], "init": initializer(member.get("init", given["init"]), here)}

    visit(spec["modules"], "", spec_env, {})
    return {"modules": tensors}


def numbers_plain(value):
    """Removes quotes around numbers, which would make them text."""
    if isinstance(value, dict):
        return {key: numbers_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers_plain(item) for item in value]
    return int(value) if str(value).isdigit() else value


def planned(spec, folder):
    path = folder / "spec.yaml"
    path.write_text(json.dumps(numbers_plain({"shardinit": 1, "name": "m", **spec})))
    return run_ok("plan", path, "--rank", "0", "--json").stdout


@generated(100)
@given(spec=short_specs())
def test_random_short_specs_equal_specs_written_out(spec, tmp_path_factory):
    """Blocks, lists, texts, variables and defaults give the same tensors as a spec that is written out."""
    folder = tmp_path_factory.mktemp("language")
    assert planned(spec, folder) == planned(flattened(spec), folder)
