"""A captured spec against the model itself."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _native
from .. import open as open_checkpoint
from . import Captured

# As much as functions that PyTorch rounds otherwise may differ by: each by an ulp or two, and few
# follow one another. The largest that was seen in a hundred models is 3.
_ULPS = 4
_ERRORS = 6  # Standard errors by which means of the same distribution do not differ.


@dataclasses.dataclass(frozen=True)
class Compared:
    """A tensor of a spec and of the model.

    Attributes:
        result: `equal`, bit for bit; `inexact`, which the spec says of it, and it is near;
            `alike`, as drawn from the same distribution; or `different`.
        ulps: the largest difference, in units of the last place of each element or, where that is
            less, of the largest one; infinity where there are none.
        note: what is different.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    result: str
    ulps: float = 0
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Verified:
    """What a comparison found, for each tensor in the spec's order.

    Attributes:
        good: no tensor is different.
    """

    tensors: tuple[Compared, ...]

    @property
    def good(self) -> bool:
        return all(tensor.result != "different" for tensor in self.tensors)

    def table(self) -> str:
        """For people: layers that are alike stand once."""
        lines = [*_groups([t for t in self.tensors if t.result != "different"])]
        lines += [
            (f"{t.path}", "1", f"different: {t.note}")
            for t in self.tensors
            if t.result == "different"
        ]
        wide = [max(len(line[i]) for line in [*lines, ("tensor", "tensors")]) for i in (0, 1)]
        head = f"{'tensor':{wide[0]}}  {'tensors':>{wide[1]}}  result"
        body = [f"{a:{wide[0]}}  {b:>{wide[1]}}  {c}" for a, b, c in lines]
        return "\n".join([head, *body, "", self.summary()]) + "\n"

    def summary(self) -> str:
        """One line."""
        parts = []
        for result in ("equal", "inexact", "alike", "different"):
            some = [t for t in self.tensors if t.result == result]
            if not some and result != "equal":
                continue
            most = max((t.ulps for t in some), default=0)
            near = f" (by {_ulps(most)} at most)" if result == "inexact" else ""
            parts.append(f"{len(some):,} {result}{near}")
        return f"{len(self.tensors):,} tensors: {', '.join(parts)}"


def _ulps(count: float) -> str:
    return "1 ulp" if count == 1 else f"{count:,.0f} ulps"


def _groups(tensors: Iterable[Compared]) -> list[tuple[str, str, str]]:
    groups: dict[tuple[str, str], list[Compared]] = {}
    for t in tensors:
        name = re.sub(r"(?<![^.])\d+(?![^.])", "*", t.path)
        groups.setdefault((name, t.result), []).append(t)
    return [
        (
            _span(name, some),
            f"{len(some):,}",
            result if result != "inexact" else f"inexact, by {_ulps(max(t.ulps for t in some))}",
        )
        for (name, result), some in groups.items()
    ]


def _span(name: str, some: Sequence[Compared]) -> str:
    """`layers.{0…3}.weight` for `layers.*.weight`."""
    numbers = zip(*([int(x) for x in t.path.split(".") if x.isdigit()] for t in some), strict=True)
    for column in numbers:
        low, high = min(column), max(column)
        name = name.replace("*", str(low) if low == high else f"{{{low}…{high}}}", 1)
    return name


def verify(captured: Captured) -> Verified:
    """See `Captured.verify`."""
    if captured._real is None:
        raise ValueError("only what was captured from PyTorch can be compared with its model")
    real = captured._real()
    with tempfile.TemporaryDirectory(prefix="shardinit-") as folder:
        spec, out = os.path.join(folder, "spec.yaml"), os.path.join(folder, "out")
        captured.write(spec)
        _native.run("gen", spec, "-o", out, "--json")
        return compare(captured, real, out)


def compare(captured: Captured, real: Mapping[str, Any], folder: str) -> Verified:
    """The tensors of a model and of a checkpoint of its spec."""
    exact = re.search(r"^engine: torch_cpu", captured.text, re.MULTILINE) is not None
    with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
        inexact = {t["path"]: t for t in json.load(file)["tensors"] if t.get("inexact")}
    compared = []
    with open_checkpoint(folder) as checkpoint:
        for path, (shape, dtype) in captured.tensors.items():
            made, bitwise = checkpoint.read(path), exact or path not in captured.drawn
            found = _compare(path, real.get(path), made, dtype, shape, bitwise)
            if found.result == "different" and path in inexact:
                # LAPACK's error in orthogonal matrices grows with their columns.
                rank = min(shape[0], made.size // shape[0]) if _is_orthogonal(inexact[path]) else 0
                found = _near(found, made, real[path], max(rank, _ULPS))
            compared.append(found)
    return Verified(tuple(compared))


def _is_orthogonal(plan: Mapping[str, Any]) -> bool:
    return "orthogonal" in plan.get("init", {})


def _near(found: Compared, made: np.ndarray[Any, Any], real: Any, most: int) -> Compared:
    """The same as `inexact`, if no element differs by more than a few units in the last place, of
    itself or of the largest one."""
    apart = np.abs(_numbers(made, real) - (wanted := real.detach().double().numpy()))
    unit = np.abs(wanted).max() * _EPSILON[found.dtype]
    of_largest = (
        math.ceil(float(apart.max()) / unit) if np.isfinite(apart).all() and unit else math.inf
    )
    ulps = min(found.ulps, of_largest)
    return dataclasses.replace(found, result="inexact", ulps=ulps) if ulps <= most else found


_EPSILON = {"f64": 2.0**-53, "f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}


def _compare(
    path: str,
    real: Any,
    made: np.ndarray[Any, Any],
    dtype: str,
    shape: tuple[int, ...],
    exact: bool,
) -> Compared:
    from ._initializer import DTYPES

    def result(word: str, ulps: float = math.inf, note: str = "") -> Compared:
        return Compared(path, dtype, shape, word, ulps, note)

    if real is None:
        return result("different", note="the model has no such tensor")
    real = real.detach()
    if tuple(real.shape) != shape or DTYPES.get(real.dtype) != dtype:
        return result(
            "different",
            note=f"{DTYPES.get(real.dtype, real.dtype)} {list(real.shape)} in the model",
        )
    bits = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}[real.element_size()]
    wanted = _bits_of(real, bits)
    got = np.ascontiguousarray(made).view(bits)
    apart = np.flatnonzero(wanted.ravel() != got.ravel())
    if not apart.size:
        return result("equal", 0)
    numbers = _numbers(got, real)
    if not exact:
        return _moments(result, numbers, real.double().numpy())
    ulps = math.inf
    if real.dtype.is_floating_point:
        ulps = float(np.abs(_ordered(wanted).ravel()[apart] - _ordered(got).ravel()[apart]).max())
    first = np.unravel_index(apart[0], shape)
    place = ", ".join(str(int(i)) for i in first)
    values = f"{numbers[first]:.9g}, and {real[tuple(map(int, first))].item():.9g} in the model"
    by = f", by {_ulps(ulps)}" if ulps < math.inf else ""
    some = f"{apart.size:,} of {wanted.size:,} elements{by}; [{place}] is {values}"
    return result("different", ulps, some)


def _bits_of(tensor: Any, bits: Any) -> np.ndarray[Any, Any]:
    import torch

    of = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    words: np.ndarray[Any, Any] = tensor.contiguous().view(of).numpy().view(bits)
    return words


def _numbers(words: np.ndarray[Any, Any], like: Any) -> np.ndarray[Any, Any]:
    """The elements as f64."""
    import torch

    bits = np.dtype(f"i{words.itemsize}")
    of: Any = torch.from_numpy(words.view(bits).copy()).view(like.dtype)
    numbers: np.ndarray[Any, Any] = of.double().numpy()
    return numbers


def _ordered(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Floats as whole numbers, of which neighbours are neighbours."""
    wide = words.astype(np.int64)
    lowest = int(np.iinfo(words.dtype).min) if words.dtype != np.uint8 else -128
    if words.dtype == np.uint8:
        wide = wide.astype(np.int8).astype(np.int64)
    return np.where(wide < 0, lowest - wide, wide)


def _moments(result: Any, made: np.ndarray[Any, Any], real: np.ndarray[Any, Any]) -> Compared:
    """Whether both may be drawn from one distribution, by mean and standard deviation."""
    size = made.size
    if size < 30:
        return result("alike")  # type: ignore[no-any-return]
    both = np.concatenate([made.ravel(), real.ravel()])
    centred = both - both.mean()
    spread = float(centred.std())
    kurtosis = float((centred**4).mean()) / spread**4 if spread else 3.0
    allowed = _ERRORS * spread * math.sqrt(2 / size)
    means = float(made.mean()), float(real.mean())
    deviations = float(made.std()), float(real.std())
    for name, pair, most in (
        ("mean", means, allowed),
        ("standard deviation", deviations, allowed * math.sqrt(max(kurtosis - 1, 0.1) / 4)),
    ):
        if abs(pair[0] - pair[1]) > most + 1e-3 * spread:
            words = f"{name} {pair[0]:.6g}, and {pair[1]:.6g} in the model"
            return result("different", note=words)  # type: ignore[no-any-return]
    return result("alike")  # type: ignore[no-any-return]
