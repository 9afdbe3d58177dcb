"""Element types of checkpoints, and the NumPy types that hold them.

Types that NumPy has itself are those. ``bf16`` and the fp8 types are the ones of
ml_dtypes where that is installed, and else unsigned integers with the same bits
(``bf16`` → ``uint16``, fp8 → ``uint8``). No value is ever converted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    import ml_dtypes
except ImportError:  # Optional.
    ml_dtypes = None  # type: ignore[assignment, unused-ignore]

# Name → bytes per element, NumPy's own type (little-endian) or that of ml_dtypes.
_NATIVE = {
    "f64": "<f8",
    "f32": "<f4",
    "f16": "<f2",
    "i64": "<i8",
    "i32": "<i4",
    "i16": "<i2",
    "i8": "i1",
    "u64": "<u8",
    "u32": "<u4",
    "u16": "<u2",
    "u8": "u1",
    "bool": "?",
}
_EXTENDED = {
    "bf16": (2, "bfloat16"),
    "f8e4m3fn": (1, "float8_e4m3fn"),
    "f8e5m2": (1, "float8_e5m2"),
}

NAMES = frozenset(_NATIVE) | frozenset(_EXTENDED)


def item_size(name: str) -> int:
    """Bytes of one element of the dtype `name`."""
    return _EXTENDED[name][0] if name in _EXTENDED else np.dtype(_NATIVE[name]).itemsize


def words_of(name: str) -> np.dtype[Any]:
    """The unsigned integer type that holds the bits of one element."""
    return np.dtype(f"<u{item_size(name)}")


def is_bits(name: str) -> bool:
    """Whether arrays hold bits as unsigned integers, for want of ml_dtypes."""
    return name in _EXTENDED and ml_dtypes is None


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of arrays that are read: see the module's docstring."""
    if name in _NATIVE:
        return np.dtype(_NATIVE[name])
    if ml_dtypes is None:
        return words_of(name)
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _EXTENDED[name][1]))
    return dtype
