"""What a spec says briefly equals what it says at length: random expressions against Python's values."""

import ast
import re

import yaml
from hypothesis import strategies as st

from generated import generated, given
from support import run_ok

NAMES = {"a": 0, "b": 1, "c": 2, "d": 7}


@st.composite
def expressions(draw, depth=4):
    """An expression that Python reads with the same precedence; no divisor of `%` is 0."""
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


def value_of(text, names):
    """Python's value, in which `and` and `or` give 1 or 0, too."""

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
def test_generated_logic(text, tmp_path_factory):
    """As a variable, of each element, and in Python, an expression is the same number."""
    folder = tmp_path_factory.mktemp("logic")
    brief = digests({"vars": {**NAMES, "x": f"({text})"}, "modules": {
        "x": {"shape": [2], "init": {"constant": {"value": "x"}}},
        "y": {"shape": [2], "init": {"expr": f"({text})"}},
        "z": {"shape": [2], "init": {"expr": "(" + re.sub(r"\ba\b", "i0", text) + ")"}},
    }}, folder)
    number, of_second = value_of(text, NAMES), value_of(text, {**NAMES, "a": 1})
    flat = digests({"modules": {
        "x": {"shape": [2], "init": {"expr": f"where(1, {number}, 0)"}},
        "y": {"shape": [2], "init": {"constant": {"value": number}}},
        "z": {"shape": [2], "init": {"expr": f"where(i0 == 0, {number}, {of_second})"}},
    }}, folder)
    assert brief == flat


def test_what_is_settled_is_not_computed(tmp_path):
    """`and` and `or` leave out their second operand; names in it are read all the same."""
    spec = {"vars": {"n": 0, "x": "n > 0 and 8 / n > 2", "y": "n == 0 or 8 % n == 0"},
            "modules": {"w": {"shape": ["1 + x + 2 * y"], "init": "zeros"}}}
    assert digests(spec, tmp_path) == digests({"modules": {"w": {"shape": [3], "init": "zeros"}}}, tmp_path)
