"""Writes a spec's text."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._alike import Leaf, Module, and_
from ._fold import leaves
from ._tensor import Initializer, Key, Linear, Tensor, Text, plain

_DEFAULT_ENGINE = "philox4x32"
# A member with such a name is written with its module's name: `a.shape`.
_KEYS = {"shape", "repeat", "vars", "dtype", "init", "fans", "when", "stage", "block", "args"}


def spec_text(
    root: Module,
    tensors: Sequence[Tensor],
    *,
    name: str,
    seed: int,
    engine: str,
    comment: str,
    config: Mapping[str, Any] | None,
    layouts: Sequence[str] = (),
) -> str:
    """Returns the text of a spec of a tree, in which equal initializers have names.

    `layouts` are its last lines.
    """
    elements: collections.Counter[str] = collections.Counter()
    for tensor in tensors:
        elements[tensor.dtype] += max(math.prod(tensor.shape), 1)
    dtype = elements.most_common(1)[0][0]
    names = _names(list(leaves(root)))
    lines = [*(f"# {line}" for line in comment.splitlines()), "shardinit: 1", f"name: {name}"]
    lines += [f"seed: {seed}", f"dtype: {dtype}"]
    if engine != _DEFAULT_ENGINE:
        lines.append(f"engine: {engine}")
    lines += sorted({f"fans: {tensor.fans}" for tensor in tensors if tensor.fans})
    if names:
        lines += ["", "init:"]
        for text, (short, _) in names.items():
            lines.append(f"  {short}: {text}")
    if config:
        lines += ["", "config:"]
        lines += [f"  {_word(key)}: {_config(value)}" for key, value in config.items()]
    lines += ["", "modules:"]
    if root.count:
        lines.append(f"  repeat: {{{root.variable}: {root.count}}}")
    lines += _module(root, "  ", dtype, names)
    if layouts:
        lines += ["", *layouts]
    return "\n".join(lines) + "\n"


def _names(tensors: Sequence[Leaf]) -> dict[str, tuple[str, int]]:
    """Returns initializers with numbers that several tensors share: text → (name, uses)."""
    counts: collections.Counter[str] = collections.Counter()
    inits: dict[str, Initializer] = {}
    for leaf in tensors:
        text = _init(leaf.init)
        if isinstance(leaf.init, dict) and "{" in text and not re.search("[a-z]{2,} <", text):
            counts[text] += 1
            inits[text] = leaf.init
    names: dict[str, tuple[str, int]] = {}
    taken: set[str] = set()
    for text, count in counts.most_common():
        if count < 2:
            continue
        base = name = _base(inits[text])
        n = 2
        while name in taken:
            name, n = f"{base}_{n}", n + 1
        taken.add(name)
        names[text] = (name, count)
    return names


def _base(init: Initializer) -> str:
    assert isinstance(init, dict)
    ((kind, numbers),) = init.items()
    if kind in ("expr", "file"):
        return "values" if kind == "expr" else "table"
    last = list(numbers.values())[-1]
    text = last.text if isinstance(last, Text) else f"{last:.6g}"
    root = re.fullmatch(r"1 / sqrt\((\d+)\)", text)
    text = f"fan_{root[1]}" if root else re.sub(r"\W+", "_", text).strip("_")
    return f"{kind}_{text}"


def _module(module: Module, indent: str, dtype: str, names: Mapping[str, Any]) -> Iterator[str]:
    for name, member in _joined(module):
        if isinstance(member, Leaf):
            yield f"{indent}{name}: {_leaf(member, dtype, names)}"
            continue
        yield f'{indent}"{name}":' if name.startswith("{") else f"{indent}{name}:"
        if member.when:
            yield f"{indent}  when: {_scalar(Text(member.when))}"
        if member.count:
            yield f"{indent}  repeat: {{{member.variable}: {member.count}}}"
        yield from _module(member, indent + "  ", dtype, names)


def _joined(module: Module) -> Iterator[tuple[str, Leaf | Module]]:
    """Yields members; members of an unrepeated module of tensors only get its name in front."""
    for name, member in module.members.items():
        if isinstance(member, Module) and not member.count:
            inner = list(_joined(member))
            only = all(isinstance(x, Leaf) for _, x in inner)
            if (only and len(inner) <= (2 if member.when else 4)) or _KEYS & set(member.members):
                for last, x in inner:
                    yield f"{name}.{last}", dataclasses.replace(x, when=and_(x.when, member.when))
                continue
        yield name, member


def _leaf(leaf: Leaf, dtype: str, names: Mapping[str, Any]) -> str:
    init = _init(leaf.init)
    parts = [
        f"shape: [{', '.join(_scalar(n) for n in leaf.shape)}]",
        f"init: {names[init][0] if init in names else init}",
    ]
    if leaf.dtype != dtype:
        parts.append(f"dtype: {leaf.dtype}")
    if leaf.is_buffer:
        parts.append("kind: buffer")
    parts += [f"{name}: {_config(positions)}" for name, positions in leaf.axes]
    if leaf.key != leaf.path:
        parts.append(f"tie: {_path(leaf.key)}")
    if leaf.place:
        place = ", ".join(f"{name}: {_scalar(at)}" for name, at in leaf.place.items())
        parts.append(f"key: {{torch: {{{place}}}}}")
    elif leaf.given is not None and (leaf.key == leaf.path or leaf.copies):
        parts.append(f"key: {{{leaf.given.engine}: {_steps(leaf.given)}}}")
    if leaf.when:
        parts.append(f"when: {_scalar(Text(leaf.when))}")
    return f"{{{', '.join(parts)}}}"


def _steps(key: Key) -> str:
    """Returns the text of a key's steps: a mapping, or a list of mappings if a step is repeated."""
    texts: list[dict[str, str]] = [{}]
    for name, numbers in key.steps:
        if name in texts[-1]:
            texts.append({})
        scalars = [_statics(n) if isinstance(n, tuple) else _scalar(n) for n in numbers]
        texts[-1][name] = scalars[0] if len(scalars) == 1 else f"[{', '.join(scalars)}]"
    maps = ["{" + ", ".join(f"{name}: {n}" for name, n in text.items()) + "}" for text in texts]
    return maps[0] if len(maps) == 1 else f"[{', '.join(maps)}]"


# Some YAML readers do not treat these words as text.
_NO_TEXT = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def _statics(items: Sequence[Any]) -> str:
    """Returns the text of a list of names and numbers, which keep their types when read."""
    texts = [_quoted(item) if isinstance(item, str) else _scalar(item) for item in items]
    return f"[{', '.join(texts)}]"


def _quoted(text: str) -> str:
    """Returns a text, in quotes if YAML would treat it as something else."""
    return json.dumps(text) if text.lower() in _NO_TEXT else _word(text)


def _path(text: str) -> str:
    """Returns a path, in quotes if YAML would treat it as a number or another value."""
    other = re.fullmatch(r"[-+.\d_]+(e[-+]?\d+)?|0[xo]\w+|[-+]?\.(inf|nan)", text, re.I)
    is_word = text.lower() in _NO_TEXT or not re.fullmatch(r"[\w.-]+", text)
    return json.dumps(text) if other or is_word else text


def _init(init: Initializer) -> str:
    if isinstance(init, str):
        return init
    ((kind, numbers),) = init.items()
    if kind == "expr":
        text = numbers[""].text
        for mark, place in numbers.items():
            text = text.replace(mark, place.text) if mark else text
        return f'{{expr: "{text}"}}'
    if kind == "file":
        return f"{{file: {numbers[''].text}}}"
    if kind == "norms":
        return f"{{norms: {{of: {_path(numbers['of'].text)}}}}}"
    return f"{{{kind}: {{{', '.join(f'{key}: {_scalar(n)}' for key, n in numbers.items())}}}}}"


def _scalar(value: Any) -> str:
    if isinstance(value, (Text, Linear)):
        return f'"{value.text}"' if re.search(r"[,\[\]{}#]|: ", value.text) else value.text
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return str(int(value)) if is_whole and str(value) != "-0.0" else plain(value)


def _word(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z_][\w.-]*", text) else json.dumps(text)


def _config(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_word(str(k))}: {_config(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_config, value)) + "]"
    if isinstance(value, float):
        return repr(value) if "e" not in repr(value) else _scalar(value)
    return json.dumps(value)
