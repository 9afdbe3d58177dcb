"""Compares a captured spec with the model itself, in any framework."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _native, _torch_cpu
from .. import open as open_checkpoint
from .._dtypes import digits, item_size
from .._spec import Spec
from . import Captured
from ._compare import (
    ULPS,
    Compared,
    Real,
    Ulps,
    compare_bits,
    compare_nearly,
    error_of_sum,
    in_ulps,
    ulps_of_orthogonal,
)
from ._finish import only_capture_errors


@dataclasses.dataclass(frozen=True)
class Verified:
    """The results of a comparison, for each tensor that was compared, in the spec's order.

    Attributes:
        note: why nothing was compared, or another remark; "" for none.
        good: whether no tensor is different.
    """

    tensors: tuple[Compared, ...]
    note: str = ""

    @property
    def good(self) -> bool:
        return all(tensor.result != "different" for tensor in self.tensors)

    def table(self) -> str:
        """Returns a text for people, in which layers that are alike appear once."""
        lines = [*_groups([t for t in self.tensors if t.result != "different"])]
        different = [t for t in self.tensors if t.result == "different"]
        lines += [(t.path, "1", f"different: {t.note}") for t in different]
        wide = [max(len(line[i]) for line in [*lines, ("tensor", "tensors")]) for i in (0, 1)]
        head = f"{'tensor':{wide[0]}}  {'tensors':>{wide[1]}}  result"
        body = [f"{a:{wide[0]}}  {b:>{wide[1]}}  {c}" for a, b, c in lines]
        notes = [self.note] if self.note else []
        return "\n".join([head, *body, "", self.summary(), *notes]) + "\n"

    def summary(self) -> str:
        """Returns the result in one line."""
        parts = []
        for result in ("equal", "inexact", "alike", "different"):
            some = [t for t in self.tensors if t.result == result]
            if not some and result != "equal":
                continue
            most = max((t.ulps for t in some), default=0)
            near = f" (by {in_ulps(most)} at most)" if result == "inexact" else ""
            parts.append(f"{len(some):,} {result}{near}")
        return f"{len(self.tensors):,} tensors: {', '.join(parts)}"


_NUMBER = re.compile(r"(?<![^._])\d+(?![^.])")  # Matches in `layers.0` and `layers_0`.


def _groups(tensors: Iterable[Compared]) -> list[tuple[str, str, str]]:
    groups: dict[tuple[str, str], list[Compared]] = {}
    for t in tensors:
        name = _NUMBER.sub("*", t.path)
        groups.setdefault((name, t.result), []).append(t)
    rows = []
    for (name, result), some in groups.items():
        by = f", by {in_ulps(max(t.ulps for t in some))}" if result == "inexact" else ""
        rows.append((_span(name, some), f"{len(some):,}", result + by))
    return rows


def _span(name: str, some: Sequence[Compared]) -> str:
    """Returns the name with its numbers, such as `layers.{0…3}.weight` for `layers.*.weight`."""
    numbers = zip(*(map(int, _NUMBER.findall(t.path)) for t in some), strict=True)
    for column in numbers:
        low, high = min(column), max(column)
        name = name.replace("*", str(low) if low == high else f"{{{low}…{high}}}", 1)
    return name


# Larger models, in bytes, are not constructed for a sample.
LARGEST_SAMPLED = 1 << 30
_WHOLE, _PART = 1 << 16, 1 << 14  # Elements of a small tensor; of each part of a larger one.


def verify(captured: Captured, tensors: str) -> Verified:
    """See `Captured.verify`."""
    if tensors not in ("all", "sample"):
        raise ValueError(f'`tensors` is "all" or "sample", not {tensors!r}')
    if captured._real is None:
        raise ValueError("only a model captured in this process can be compared")
    with only_capture_errors():
        return _verified(captured, tensors)


def _verified(captured: Captured, tensors: str) -> Verified:
    size = sum(math.prod(shape) * item_size(dtype) for shape, dtype in captured.tensors.values())
    if tensors == "sample" and size > LARGEST_SAMPLED:
        gib = 1 << 30
        return Verified(
            (),
            f"not verified: its tensors have {size / gib:,.1f} GiB, and for a sample a constructor"
            f" makes {LARGEST_SAMPLED / gib:.0f} GiB at most\n  hint: verify all of it"
            " (`--verify all`), or a model of fewer layers and smaller sizes",
        )
    first = _whole(captured) if tensors == "all" else _sample(captured, captured.seed)
    compared = [first, _sample(captured, captured.seed ^ 1)]
    note = ""
    if engine_of(captured) == "torch_cpu" and (different := _torch_cpu.difference()):
        note = f"{different}: this alone may explain the differences"
    return Verified(_worst(captured, *compared), note)


def _worst(captured: Captured, *compared: Sequence[Compared]) -> tuple[Compared, ...]:
    """Returns, for each tensor, the comparison with the worst result."""
    found: dict[str, Compared] = {}
    for tensor in itertools.chain(*compared):
        before = found.setdefault(tensor.path, tensor)
        order = ("equal", "inexact", "alike", "different")
        if (order.index(tensor.result), tensor.ulps) > (order.index(before.result), before.ulps):
            found[tensor.path] = tensor
    return tuple(found[path] for path in captured.tensors if path in found)


def engine_of(captured: Captured) -> str:
    """Returns the spec's engine, if it reproduces a framework's numbers; "" for others."""
    found = re.search(r"^engine: (torch_cpu|jax_threefry)", captured.text, re.MULTILINE)
    return found[1] if found else ""


def _whole(captured: Captured) -> list[Compared]:
    assert captured._real is not None
    real = captured._real(captured.seed)
    with tempfile.TemporaryDirectory(prefix="shardinit-") as folder:
        spec, out = os.path.join(folder, "spec.yaml"), os.path.join(folder, "out")
        captured.write(spec)
        layout = [] if captured.layout is None else ["--layout", captured.layout]
        _native.run("gen", spec, "-o", out, "--json", *layout)
        return list(compare(captured, real, out).tensors)


def compare(captured: Captured, real: Mapping[str, Real], folder: str) -> Verified:
    """Compares the tensors of a model with a checkpoint of its spec."""
    with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
        allowed = _allowed(captured, json.load(file)["tensors"])
    with open_checkpoint(folder) as opened:
        return Verified(tuple(
            _compared(captured, path, real.get(path), opened.read(path), allowed, ...)
            for path in captured.tensors
        ))  # fmt: skip


def _sample(captured: Captured, seed: int) -> list[Compared]:
    """Compares the first, middle and last of tensors that are alike, large ones in parts.

    If random numbers do not follow the spec's seed, only constants are compared with a seed other
    than the capture's own.
    """
    assert captured._real is not None
    real = captured._real(seed)
    text = re.sub(r"^seed: .*$", f"seed: {seed}", captured.text, count=1, flags=re.MULTILINE)
    again = dataclasses.replace(captured, text=text)
    compared = []
    with tempfile.TemporaryDirectory(prefix="shardinit-") as folder:
        file = os.path.join(folder, "spec.yaml")
        again.write(file)
        allowed = _allowed(captured, json.loads(_native.run("graph", file, "--json"))["logical"])
        with Spec(file, layout=captured.layout) as spec:
            paths = _sampled(captured)
            if captured._has_own_seed and seed != captured.seed:
                paths = [path for path in paths if path not in captured.drawn]
            for path in paths:
                for box in _parts(captured.tensors[path][0]):
                    made = spec.generate(path, box)
                    compared.append(_compared(captured, path, real.get(path), made, allowed, box))
    if seed == captured.seed:
        return compared
    return [
        dataclasses.replace(tensor, note=tensor.note and f"with seed {seed}: {tensor.note}")
        for tensor in compared
    ]


def _sampled(captured: Captured) -> list[str]:
    kinds: dict[Any, list[str]] = {}
    for path, kind in captured.tensors.items():
        kinds.setdefault((_NUMBER.sub("*", path), kind), []).append(path)
    some = ((paths[0], paths[len(paths) // 2], paths[-1]) for paths in kinds.values())
    return list(dict.fromkeys(itertools.chain.from_iterable(some)))


Box = tuple[slice, ...]


def _parts(shape: tuple[int, ...]) -> list[Box]:
    """Returns the whole of a tensor if it is small, else its beginning, middle and end."""
    if math.prod(shape) <= _WHOLE:
        return [tuple(slice(0, n) for n in shape)]
    left = _PART
    extent: list[int] = []
    for n in reversed(shape):
        extent.insert(0, min(n, max(left, 1)))
        left //= extent[0]
    sides = list(zip(shape, extent, strict=True))
    return [
        tuple(slice(int(at * (n - some)), int(at * (n - some)) + some) for n, some in sides)
        for at in (0, 0.5, 1)
    ]


def _compared(
    captured: Captured,
    path: str,
    real: Real | None,
    made: np.ndarray[Any, Any],
    allowed: Mapping[str, Callable[[], Ulps]],
    box: Any,
) -> Compared:
    """Compares a tensor, or the box of it in `made`."""
    shape, dtype = captured.tensors[path]
    exact = bool(engine_of(captured)) or path not in captured.drawn
    found = compare_bits(Compared(path, dtype, shape, "different"), real, made, exact, box)
    if found.result == "different" and path in allowed and real is not None:
        return compare_nearly(found, made, real, allowed[path], box)
    return found


def _allowed(
    captured: Captured, planned: Sequence[Mapping[str, Any]]
) -> dict[str, Callable[[], Ulps]]:
    """Returns the ulps by which tensors that the plan calls inexact may differ."""
    if engine_of(captured) == "jax_threefry":
        return dict.fromkeys(captured.drawn, lambda: np.array(ULPS))
    if engine_of(captured) != "torch_cpu":
        return {}
    return {
        t["path"]: functools.partial(_allowed_of, captured, t["path"], t.get("init", {}))
        for t in planned
        if t.get("inexact")
    }


def _allowed_of(captured: Captured, path: str, init: Any) -> Ulps:
    shape, dtype = captured.tensors[path]
    if "orthogonal" in init:
        return ulps_of_orthogonal(shape)
    spread = captured._spread(path) if captured._spread is not None else 0
    allowed = np.maximum(ULPS, spread)
    if "norms" in init:
        terms = math.prod(captured.tensors[init["norms"]["of"]][0]) // math.prod(shape)
        allowed += math.ceil(error_of_sum(terms) * 2 ** digits(dtype))
    return allowed
