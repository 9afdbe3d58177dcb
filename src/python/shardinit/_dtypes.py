"""Element types of checkpoints: their names and sizes, and the NumPy types that hold them.

NumPy's own types are used where it has them. ``bf16`` and the fp8 types are those of
ml_dtypes where that is installed, and else unsigned integers with the same bits
(``bf16`` → ``uint16``, fp8 → ``uint8``). No value is ever converted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

try:
    import ml_dtypes
except ImportError:  # The package is optional.
    ml_dtypes = None  # type: ignore[assignment, unused-ignore]


class _Type(NamedTuple):
    """An element type.

    Attributes:
        size: bytes of an element.
        called: its name in NumPy or ml_dtypes, in PyTorch and in JAX, which agree on all names.
        digits: binary digits of a float's significand, the implicit one included; 0 for no float.
    """

    size: int
    called: str
    digits: int = 0


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
}
_BY_CALLED = {row.called: name for name, row in _TYPES.items()}

_OF_ML_DTYPES = ("bf16", "f8e4m3fn", "f8e5m2")
NAMES = tuple(_TYPES)
ROUNDINGS = ("f32", "bf16", "f16")  # Floats that expressions have functions for, to round to them.


def item_size(name: str) -> int:
    """Bytes of one element of the dtype `name`."""
    return _TYPES[name].size


def digits(name: str) -> int:
    """Binary digits of a float's significand, the implicit one included; 0 for no float."""
    return _TYPES[name].digits


def called(name: str) -> str:
    """The name that NumPy or ml_dtypes, PyTorch and JAX have for the dtype `name`."""
    return _TYPES[name].called


def name_of(dtype: Any) -> str:
    """The name of a type of NumPy, PyTorch or JAX; "" if specs have no such type."""
    return _BY_CALLED.get(str(dtype).removeprefix("torch."), "")


def rounding_of(dtype: Any) -> str:
    """The function of expressions that rounds to a type; "" if there is none."""
    name = name_of(dtype)
    return name if name in ROUNDINGS else ""


def words_of(name: str) -> np.dtype[Any]:
    """The unsigned integer type that holds the bits of one element."""
    return np.dtype(f"<u{item_size(name)}")


def is_bits(name: str) -> bool:
    """Whether arrays hold bits as unsigned integers, for want of ml_dtypes."""
    return name in _OF_ML_DTYPES and ml_dtypes is None


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of arrays of the dtype `name`: see the module's docstring."""
    if is_bits(name):
        return words_of(name)
    called = _TYPES[name].called
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, called) if name in _OF_ML_DTYPES else called)
    return dtype
