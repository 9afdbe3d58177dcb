"""Checks whether the installed PyTorch draws the numbers of the engine torch_cpu."""

from __future__ import annotations

import warnings

NAME = "torch_cpu/2.13/avx2"  # The engine reproduces this version and instruction set.
_ALIKE = ("AVX2", "AVX512")  # PyTorch draws the same numbers with either.


def difference() -> str:
    """Returns how the installed PyTorch differs from the engine's name; "" if it matches."""
    import torch

    _, version, _ = NAME.split("/")
    here = torch.__version__
    if here.split(".")[:2] != version.split("."):
        return f"this is PyTorch {here}, and `{NAME}` has the numbers of PyTorch {version}"
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in _ALIKE:
        return (
            f"PyTorch runs here with the instructions {capability}, and `{NAME}` has the numbers"
            f" that it draws with {' and '.join(_ALIKE)}"
        )
    return ""


def warn(engine: str, stacklevel: int) -> None:
    """Warns if PyTorch's own constructors would draw other numbers here than the spec's engine."""
    if engine.split("/")[0] != NAME.split("/")[0] or not (different := difference()):
        return
    warnings.warn(
        f"{different}: the model gets the engine's numbers, but its constructor would draw others"
        " here",
        stacklevel=stacklevel + 1,
    )
