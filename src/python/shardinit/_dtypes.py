"""Element types of checkpoints: their names, their sizes, and the NumPy types for them.

NumPy's own types are used where they exist. ``bf16`` and the fp8 types are types of ml_dtypes. If
ml_dtypes is not installed, they are unsigned integers with the same bits (``bf16`` → ``uint16``,
fp8 → ``uint8``). No value is ever converted.

Numbers of 4 or 6 bits share bytes, so an element of an array has two numbers of 4 bits (``uint8``,
as in ``torch.float4_e2m1fn_x2``) or four of 6 bits (``V3``, three bytes).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

try:
    import ml_dtypes
except ImportError:  # ml_dtypes is optional.
    ml_dtypes = None  # type: ignore[assignment, unused-ignore]


class _Type(NamedTuple):
    """An element type.

    Attributes:
        size: bytes of an element.
        called: the name in NumPy or ml_dtypes, PyTorch and JAX, which all agree; "" if they lack
            the type.
        digits: binary digits of a float's significand, including the implicit one; 0 for other
            types.
    """

    size: int
    called: str
    digits: int = 0


_FNUZ = ("f8e4m3fnuz", "f8e5m2fnuz")
_SHARED = {"f4e2m1fn": "u1", "f6e2m3fn": "V3", "f6e3m2fn": "V3"}  # Several numbers in an element.
_CARRIED = ("f8e8m0", *_FNUZ, *_SHARED, "c64")  # Types of folders, but not of specs.
_TYPES = {
    "f32": _Type(4, "float32", 24),
    "f64": _Type(8, "float64", 53),
    "bf16": _Type(2, "bfloat16", 8),
    "f16": _Type(2, "float16", 11),
    "f8e4m3fn": _Type(1, "float8_e4m3fn", 4),
    "f8e5m2": _Type(1, "float8_e5m2", 3),
    **{f"i{8 * size}": _Type(size, f"int{8 * size}") for size in (1, 2, 4, 8)},
    **{f"u{8 * size}": _Type(size, f"uint{8 * size}") for size in (1, 2, 4, 8)},
    "bool": _Type(1, "bool"),
    "f8e8m0": _Type(1, "float8_e8m0fnu"),
    "f8e4m3fnuz": _Type(1, "float8_e4m3fnuz"),
    "f8e5m2fnuz": _Type(1, "float8_e5m2fnuz"),
    "f6e2m3fn": _Type(3, ""),
    "f6e3m2fn": _Type(3, ""),
    "f4e2m1fn": _Type(1, "float4_e2m1fn_x2"),
    "c64": _Type(8, "complex64"),
}
_BY_CALLED = {row.called: name for name, row in _TYPES.items() if name not in _CARRIED}

_OF_ML_DTYPES = ("bf16", "f8e4m3fn", "f8e5m2", "f8e8m0", *_FNUZ)
NAMES = tuple(name for name in _TYPES if name not in _CARRIED)
ROUNDINGS = ("f32", "bf16", "f16")  # Floats that have a rounding function in expressions.


def item_size(name: str) -> int:
    """Returns the size of one element of the dtype `name` in bytes."""
    return _TYPES[name].size


def digits(name: str) -> int:
    """Returns the binary digits of a float's significand, with the implicit one; else 0."""
    return _TYPES[name].digits


def called(name: str) -> str:
    """Returns the name in NumPy or ml_dtypes, PyTorch and JAX of the dtype `name`."""
    return _TYPES[name].called


def name_of(dtype: Any) -> str:
    """Returns the name of a type of NumPy, PyTorch or JAX; "" if specs do not have this type."""
    return _BY_CALLED.get(str(dtype).removeprefix("torch."), "")


def rounding_of(dtype: Any) -> str:
    """Returns the function of expressions that rounds to a type; "" if expressions lack one."""
    name = name_of(dtype)
    return name if name in ROUNDINGS else ""


def words_of(name: str) -> np.dtype[Any]:
    """Returns the unsigned integer type that holds the bits of one element; else three bytes."""
    return np.dtype(_SHARED[name]) if name in _SHARED else np.dtype(f"<u{item_size(name)}")


def is_bits(name: str) -> bool:
    """Returns whether arrays hold bits as unsigned integers, because ml_dtypes is missing."""
    return name in _OF_ML_DTYPES and ml_dtypes is None


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Returns the NumPy type of arrays of the dtype `name`; see the module's docstring."""
    if is_bits(name) or name in _SHARED:
        return words_of(name)
    called = _TYPES[name].called
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, called) if name in _OF_ML_DTYPES else called)
    return dtype
