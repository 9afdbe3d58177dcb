"""Converts a spec that is a Python mapping into the YAML that the program reads.

The conversion is exact: strings keep their text, and numbers their values. A value that YAML cannot
represent is rejected, with its place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_NUMBER = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+")  # PyYAML reads these as strings.
_OTHER = {"true", "false", "null", "yes", "no", "on", "off"}  # YAML does not read these as text.
_DEPTH = 100


def text_of(spec: Mapping[str, Any]) -> str:
    """Returns the text of a spec: keys and values of `spec`, in their order.

    Raises:
        TypeError: a key is not text, or YAML has no such type of value.
        ValueError: a value contains itself, is nested too deeply, or has text that is not Unicode.
    """
    lines: list[str] = []
    _members(spec, "", "", lines, ())
    return "\n".join(lines) + "\n"


def _members(
    of: Mapping[str, Any], place: str, indent: str, lines: list[str], around: tuple[int, ...]
) -> None:
    around = _entered(of, place, around)
    for key, value in of.items():
        within = _child(place, key)
        name = _key(key, place)
        if isinstance(value, Mapping) and value:
            lines.append(f"{indent}{name}:")
            _members(value, within, f"{indent}  ", lines, around)
        else:
            lines.append(f"{indent}{name}: {_flow(value, within, around)}")


def _flow(value: Any, place: str, around: tuple[int, ...]) -> str:
    """Returns a value as one line."""
    if isinstance(value, Mapping):
        around = _entered(value, place, around)
        each = (f"{_key(k, place)}: {_flow(v, _child(place, k), around)}" for k, v in value.items())
        return "{" + ", ".join(each) + "}"
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        around = _entered(value, place, around)
        each = (_flow(v, f"{place}[{n}]", around) for n, v in enumerate(value))
        return "[" + ", ".join(each) + "]"
    return _scalar(value, place)


def _scalar(value: Any, place: str) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return str(value) if _NUMBER.fullmatch(value) else _text(value, place)
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        number = float(value)
        if math.isnan(number):
            return ".nan"
        if number != value:
            _refuse(TypeError, place, f"the number {value!r} has more digits than 64 bits hold")
        # The program itself reports where a number must be finite.
        return repr(number) if math.isfinite(number) else (".inf" if number > 0 else "-.inf")
    what = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    _refuse(
        TypeError,
        place,
        f"a value of type {what} is nothing that YAML has: give a string, number, bool, None, list "
        "or dict (of an array, `tolist()`)",
    )


def _key(key: Any, place: str) -> str:
    if not isinstance(key, str):
        _refuse(TypeError, place, f"the key {key!r} is {type(key).__name__}: keys are strings")
    return _text(key, _child(place, key))


def _text(text: str, place: str) -> str:
    if _WORD.fullmatch(text) and text.lower() not in _OTHER:
        return str(text)
    return '"' + "".join(_character(c, place) for c in text) + '"'


def _character(c: str, place: str) -> str:
    if c in '"\\':
        return f"\\{c}"
    code = ord(c)
    if 0xD800 <= code < 0xE000:
        _refuse(ValueError, place, f"half of a surrogate pair, U+{code:04X}, is not a character")
    if c.isprintable() and code != 0xFEFF:
        return c
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _entered(value: object, place: str, around: tuple[int, ...]) -> tuple[int, ...]:
    if id(value) in around:
        _refuse(ValueError, place, "the value contains itself")
    if len(around) == _DEPTH:
        _refuse(ValueError, "", f"it is more than {_DEPTH} levels deep")
    return (*around, id(value))


def _child(place: str, key: object) -> str:
    return f"{place}.{key}" if place else str(key)


def _refuse(error: type[Exception], place: str, why: str) -> NoReturn:
    raise error(f"cannot write the spec as YAML: {f'`{place}`: ' if place else ''}{why}")
