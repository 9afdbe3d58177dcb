"""Checks untrusted JSON: each value must have the expected type and range."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from ._errors import FormatError
from ._source import Shape

_MAX_INT64 = 2**63 - 1
_MAX_DIMENSIONS = 32
_PATH = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


def is_path(text: str) -> bool:
    """Returns whether a tensor may have this path."""
    return _PATH.fullmatch(text) is not None


def as_int(value: Any, what: str, low: int = 0, high: int = _MAX_INT64) -> int:
    """Returns `value`, which must be an integer in a range."""
    if type(value) is not int or not low <= value <= high:
        raise FormatError(f"{what} is not a whole number from {low} to {high}")
    return value


def as_text(value: Any, what: str) -> str:
    """Returns `value`, which must be a string of printable characters."""
    if type(value) is not str:
        raise FormatError(f"{what} is not text")
    if not value.isprintable():
        raise FormatError(f"{what} is {value!r}, which cannot be printed")
    return value


def as_path(value: Any, what: str) -> str:
    """Returns `value`, which must be the path of a tensor."""
    if not is_path(as_text(value, what)):
        raise FormatError(f"{what} is {value!r}, which is not a path")
    return str(value)


def as_list(value: Any, what: str) -> list[Any]:
    """Returns `value`, which must be a list."""
    if type(value) is not list:
        raise FormatError(f"{what} is not a list")
    return value


def as_object(value: Any, what: str) -> dict[str, Any]:
    """Returns `value`, which must be a JSON object."""
    if type(value) is not dict:
        raise FormatError(f"{what} is not an object")
    return value


def as_digest(value: Any, what: str) -> str:
    """Returns `value`, which must be a SHA-256 in hexadecimal."""
    if not _DIGEST.fullmatch(as_text(value, what)):
        raise FormatError(f"{what} is not a SHA-256 in lower-case hexadecimal")
    return str(value)


def as_shape(value: Any, what: str, low: int = 1) -> Shape:
    """Returns `value`, which must be a list of sizes whose product is a valid size."""
    shape = tuple(as_int(extent, what, low) for extent in as_list(value, what))
    if len(shape) > _MAX_DIMENSIONS or math.prod(shape) > _MAX_INT64:
        raise FormatError(f"{what} is too large for a shape")
    return shape


def parse_json(text: bytes, path: str) -> dict[str, Any]:
    """Parses JSON that must be an object; every failure is a FormatError."""
    try:
        return as_object(json.loads(text), f"`{path}`")
    except (ValueError, RecursionError) as error:
        raise FormatError(f"`{path}` is not JSON: {error}") from None
