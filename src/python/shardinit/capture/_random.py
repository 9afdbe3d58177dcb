"""Records the draws of PyTorch's random operations, by their names and arguments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ._expression import Origin
from ._generator import is_default, move
from ._values import Apply, Value

if TYPE_CHECKING:
    from ._record import Recorder

aten = torch.ops.aten

# Operation → kind of draw, names of its parameters, and their defaults. The number of words that
# any other random operation takes is unknown, unless `drawn` handles it.
_DRAWS = {
    "normal_": ("normal", ("mean", "std"), (0.0, 1.0)),
    "randn": ("normal", (), ()),
    "randn_like": ("normal", (), ()),
    "uniform_": ("uniform", ("from", "to"), (0.0, 1.0)),
    "rand": ("uniform", (), ()),
    "rand_like": ("uniform", (), ()),
    "log_normal_": ("log_normal", ("mean", "std"), (1.0, 2.0)),
    "exponential_": ("exponential", ("lambd",), (1.0,)),
    "cauchy_": ("cauchy", ("median", "sigma"), (0.0, 1.0)),
    "geometric_": ("geometric", ("p",), ()),
    "randperm": ("permutation", (), ()),
}

_WHOLE = ("random_", "randint", "randint_like")
_NAMES = {"from": "low", "to": "high"}


def held_by(low: int, high: int, dtype: torch.dtype) -> tuple[int, int]:
    """Returns the ends of the range from which PyTorch draws integers for an element type.

    For floats, they are the next numbers in the type, as computed by `update_from` and `update_to`
    of ATen/native/DistributionTemplates.h. Raises PyTorch's RuntimeError if the range is empty.
    """
    if not dtype.is_floating_point:
        return low, high
    digits = 1 - round(math.log2(torch.finfo(dtype).eps))

    def cast(value: int) -> int:
        with _disable_current_modes():
            return int(torch.tensor(value, dtype=torch.int64).to(dtype).to(torch.int64))

    def unit(value: int) -> int:
        return 1 << max(abs(value).bit_length() - digits, 0)

    after, before = cast(low + 1), cast(high - 1)
    low, high = (
        after + unit(low + 1) if after < low else low,
        before - unit(high - 1) if before >= high else high,
    )
    if low >= high:
        raise RuntimeError(f"random numbers from {low} to less than {high}, as {dtype} has these")
    return low, high


def own_generator(args: Any, kwargs: Any) -> torch.Generator | None:
    """Returns the operation's own CPU generator among its arguments; None if it has none."""
    generators = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Generator)]
    if not generators or is_default(generators[0]) or generators[0].device.type != "cpu":
        return None
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    return None if any(x.device.type != "cpu" for x in tensors) else generators[0]


def empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """Returns real memory for a fake tensor."""
    with _disable_current_modes():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def why_not_drawn(tensor: torch.Tensor, generator: Any) -> str:
    """Returns why a draw does not use PyTorch's CPU generator; "" if it does."""
    if not is_default(generator):
        move(generator)
        return "a generator of its own"
    if tensor.device.type != "cpu":
        return f"a draw on the device `{tensor.device}`, which has a generator of its own"
    return ""


def drawn(
    recorder: Recorder, name: str, a: dict[str, Any], tensor: torch.Tensor, origin: Origin
) -> Value:
    """Returns the value of a random operation by name and arguments; `tensor` is the result."""
    problem = why_not_drawn(tensor, a.get("generator"))

    def draw(kind: str, dtype: torch.dtype | None = None, **numbers: Any) -> Value:
        return recorder.draw(tensor, kind, numbers, origin, problem, dtype)

    def apply(function: Any, *args: Any, **kwargs: Any) -> Apply:
        dtype = torch.bool if function is aten.lt.Tensor else tensor.dtype
        return Apply(tuple(tensor.shape), dtype, origin, function, args, kwargs, 0)

    if name in ("bernoulli", "bernoulli_"):
        # The first argument of bernoulli is the probabilities; all other forms have them in `p`.
        p = a.get("p", 0.5 if name == "bernoulli_" else a["self"])
        if not isinstance(p, Value):
            return draw("bernoulli", p=p)
        wide = torch.float64 if p.dtype == torch.float64 else torch.float32
        chosen = apply(aten.lt.Tensor, draw("uniform", wide, low=0.0, high=1.0), p)
        return apply(aten._to_copy.default, chosen, dtype=tensor.dtype)
    if name == "normal":
        mean, std = a.get("mean", 0.0), a.get("std", 1.0)
        if not isinstance(mean, Value) and not isinstance(std, Value):
            return draw("normal", mean=mean, std=std)
        value: Value = draw("normal", std=1.0 if isinstance(std, Value) else std)
        if isinstance(std, Value):
            value = apply(aten.mul.Tensor, value, std)
        add = aten.add.Tensor if isinstance(mean, Value) else aten.add.Scalar
        return apply(add, value, mean)
    if name in _WHOLE and "from" not in a and "to" not in a and "high" not in a:
        return draw("bits")
    if name in _WHOLE and (high := a.get("to", a.get("high"))) is not None:
        low, high = held_by(a.get("from", a.get("low", 0)), high, tensor.dtype)
        return draw("integers", low=low, high=high)
    if name == "multinomial":
        weights, samples = a["self"], a["num_samples"]
        each = samples > 1 and a.get("replacement", False)
        return draw("choices", drawn=math.prod(tensor.shape if each else weights.shape))
    if name in _DRAWS:
        kind, names, defaults = _DRAWS[name]
        numbers: dict[str, Any] = dict(zip(names, defaults, strict=False))
        numbers |= {key: a[key] for key in names if key in a}
        return draw(kind, **{_NAMES.get(key, key): x for key, x in numbers.items()})
    return draw(name)
