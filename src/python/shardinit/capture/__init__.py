"""Specs from constructors of PyTorch and JAX, which run on tensors without memory.

    import shardinit.capture

    captured = shardinit.capture.torch(lambda: Model(layers=126), name="model")
    captured.write("model.yaml")

The spec has the tensors of the model's ``state_dict()``, or the arrays of its pytree, with the
distributions that the constructor draws them from. `torch` needs PyTorch, `jax` needs JAX, and `hf`
Transformers.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import tempfile
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .. import _torch_cpu
from .._dtypes import NAMES, called
from .._errors import CaptureError
from .._result_file import ResultFile, require_local
from .._spec import Spec

if TYPE_CHECKING:
    import torch as _torch

    from ._compare import Real
    from ._verify import Verified

__all__ = ["Captured", "hf", "jax", "torch"]

ENGINES = ("philox4x32", "torch_cpu")
_MARK = r"# .*, captured by shardinit-capture from "  # How `spec_text` begins.


@dataclasses.dataclass(frozen=True)
class Captured:
    """A spec that was captured.

    Attributes:
        text: the spec.
        tensors: path → (shape, dtype) of each tensor, in the model's order.
        drawn: the paths of those that random numbers are in.
        layout: the spec's layout whose tensors these are; None is its own tensors.
        tables: path → content of the files beside the spec that it takes elements from.
        seed: the spec's.
    """

    text: str
    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    drawn: frozenset[str] = frozenset()
    tables: Mapping[str, bytes] = dataclasses.field(default_factory=dict, repr=False)
    _real: Callable[[int], Mapping[str, Real]] | None = dataclasses.field(
        default=None, repr=False, compare=False
    )  # The tensors that the constructor makes, after a seed.
    _spread: Callable[[str], int] | None = dataclasses.field(
        default=None, repr=False, compare=False
    )  # Gives the units in the last place by which a tensor's elements may be off.
    _has_own_seed: bool = False  # If so, another seed of the spec shows constants alone.
    layout: str | None = None
    seed: int = 0
    _inputs: tuple[str, ...] = dataclasses.field(default=(), repr=False, compare=False)

    def write(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Writes the spec to a file, and its `tables` below the folder that it is in.

        Args:
            path: a file; one that is there is replaced if it begins as captured specs do.
            force: replace another file, too.

        Raises:
            FileExistsError: another file is there, and not `force`.
            ValueError: it is what was captured from, or no path of a file system.
            OSError: it cannot be written.
        """
        result = ResultFile(path, what="spec", mark=_MARK, inputs=self._inputs, force=force)
        for name, content in self.tables.items():
            file = pathlib.Path(path).parent / name
            file.parent.mkdir(exist_ok=True)
            # Another spec may use it, so it never is there in part.
            new = file.with_name(f".{file.name}.{os.getpid()}")
            try:
                new.write_bytes(content)
                new.replace(file)
            except OSError:
                new.unlink(missing_ok=True)
                raise
        result.write(self.text)

    def spec(self) -> Spec:
        """The spec, open: its tensors can be made in memory."""
        if not self.tables:
            return Spec(None, text=self.text, set=(), mesh=None, layout=self.layout, threads=0)
        folder = tempfile.TemporaryDirectory(prefix="shardinit-")
        self.write(os.path.join(folder.name, "spec.yaml"))
        spec = Spec(os.path.join(folder.name, "spec.yaml"), layout=self.layout)
        weakref.finalize(spec, folder.cleanup)  # The spec reads its tables when they are needed.
        return spec

    def verify(self, tensors: str = "all") -> Verified:
        """Compares what the spec gives with the model that the constructor makes.

        The constructor runs after ``torch.manual_seed(seed)``, or the function of JAX as it is,
        operation by operation on the CPU, with memory for all of its tensors; then again with
        another seed, which the spec then has, too. With the engine torch_cpu or jax_threefry
        tensors are compared bit for bit; with others those that are not drawn, and of the others
        the mean and the standard deviation.

        Args:
            tensors: ``"all"``, whole, which ``shardinit gen`` makes in a temporary folder, and for
                the other seed a sample; or ``"sample"`` for both: of layers that are alike a few,
                of large tensors parts. A model of more than 1 GiB is too large for a sample: what
                is returned then compares no tensor, and its `note` says so.

        Raises:
            ValueError: `torch`, `hf` or `jax` did not return it; or `tensors` is another word.
            CaptureError: the constructor fails when it is not captured.
            LibraryError: the program ``shardinit`` or libshardinit is not found.
            SpecError: the program refuses the spec.
        """
        from ._verify import verify

        return verify(self, tensors)


def torch(
    make: Callable[..., Any],
    /,
    *args: Any,
    name: str | None = None,
    seed: int = 0,
    dtype: str | _torch.dtype | None = None,
    engine: str = "philox4x32",
    buffers: str = "persistent",
    config: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Captured:
    """Captures what a constructor would put into the tensors of its model.

    Args:
        make: a class or function; it is called with `args` and `kwargs`, and returns the
            ``nn.Module``. Its tensors have no memory while it runs.
        name: the spec's; by default that of the model's class.
        seed: the spec's; one below 0 is that of ``torch.manual_seed``, which adds 2^64.
        dtype: PyTorch's default element type while `make` runs: ``"bf16"`` or a ``torch.dtype``.
        engine: the spec's. ``"torch_cpu"`` gives the values that the constructor gives after
            ``torch.manual_seed(seed)``, bit for bit.
        buffers: ``"persistent"``, those of the state dict, or ``"all"``.
        config: what the spec says of ``config.json``.

    Raises:
        CaptureError: some of its values cannot be said in a spec: all of them are named, with the
            operation and the line that made them.
        LibraryError: a buffer's values can only be checked with libshardinit, which is not there.
    """
    import torch as pytorch

    from ._capture import capture

    if engine == _torch_cpu.NAME:
        engine = "torch_cpu"
    if engine not in ENGINES:
        raise ValueError(f"unknown engine `{engine}`: `engine` is one of {', '.join(ENGINES)}")
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"a seed is in -2^63 … 2^64 - 1, and {seed} is not")
    if buffers not in ("persistent", "all"):
        raise ValueError(f'`buffers` is "persistent" or "all", not {buffers!r}')
    default = None if dtype is None else _dtype(dtype)
    if default is not None and default not in (
        pytorch.float32, pytorch.float64, pytorch.bfloat16, pytorch.float16
    ):  # fmt: skip
        raise ValueError(f"PyTorch's default element type cannot be {default}")
    return capture(
        lambda: make(*args, **kwargs),
        name=name,
        seed=seed % 2**64,
        dtype=default,
        engine=engine,
        all_buffers=buffers == "all",
        config=config,
    )


def jax(
    make: Callable[..., Any],
    /,
    *args: Any,
    name: str | None = None,
    seed: int = 0,
    engine: str = "philox4x32",
    **kwargs: Any,
) -> Captured:
    """Captures what a function of JAX would put into the arrays that it returns.

    Args:
        make: a class or function, called with `args` and `kwargs`; it returns any pytree: a model
            of Equinox or Flax NNX, the variables of Flax Linen or Haiku, or a tuple of such and
            the state of an optimizer. No array has memory while it runs. A parameter ``key`` or
            ``rng`` gets ``jax.random.key(seed)``, and ``rngs`` a ``flax.nnx.Rngs(seed)``, if
            neither `args` nor `kwargs` have it.
        name: the spec's; by default that of `make`.
        seed: the spec's.
        engine: ``"philox4x32"``, the same distributions, or ``"jax_threefry"``, JAX's own numbers.

    Raises:
        CaptureError: some of its values cannot be said in a spec: all of them are named, with the
            operation and the line that made them.
        LibraryError: an array's values can only be checked with libshardinit, which is not there.
    """
    from ._jax_capture import capture

    return capture(make, args, kwargs, name=name, seed=seed, engine=engine)


def hf(
    config: str | os.PathLike[str] | Any,
    *,
    name: str | None = None,
    seed: int = 0,
    dtype: str | _torch.dtype | None = None,
    engine: str = "philox4x32",
    buffers: str = "persistent",
) -> Captured:
    """Captures the model of a Hugging Face config, as its class in Transformers initializes it.

    Args:
        config: a ``config.json``, or a ``PretrainedConfig``. The class is the first of its
            ``architectures``, or else what ``AutoModel`` takes.
        name, seed, dtype, engine, buffers: as for `torch`; without `dtype` it is the config's.

    Raises:
        CaptureError: as `torch`; or Transformers does not know the config's ``model_type``.
    """
    import transformers

    inputs: tuple[str, ...] = ()
    if isinstance(config, (str, os.PathLike)):
        inputs = (os.fspath(config),)
        config = _load_config(pathlib.Path(config))
    architectures = getattr(config, "architectures", None) or []
    of = getattr(transformers, architectures[0], None) if architectures else None
    if architectures and of is None:
        raise CaptureError(
            f"Transformers {transformers.__version__} has no class `{architectures[0]}`, the"
            " config's architecture"
        )
    kept = dtype if dtype is not None else getattr(config, "dtype", None)
    build: Any = of._from_config if of else transformers.AutoModel.from_config
    options = {} if kept is None else {"dtype": _dtype(kept)}
    written = {
        key: value
        for key, value in json.loads(config.to_json_string(use_diff=True)).items()
        if key != "transformers_version"
    }
    if architectures:
        written["architectures"] = architectures
    captured = torch(
        lambda: build(config, **options),
        name=name or architectures[0] if architectures else name,
        seed=seed,
        dtype=None,
        engine=engine,
        buffers=buffers,
        config=written,
    )
    return dataclasses.replace(captured, _inputs=inputs)


def _load_config(path: pathlib.Path) -> Any:
    from transformers import AutoConfig

    require_local(str(path))
    try:
        numbers = json.loads(path.read_text())
    except OSError as error:
        raise CaptureError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise CaptureError(f"{path} is not JSON: {error}") from None
    if not isinstance(numbers, dict) or not isinstance(numbers.get("model_type"), str):
        raise CaptureError(f"{path} has no `model_type`: it is not a Hugging Face config")
    model_type = numbers.pop("model_type")
    try:
        return AutoConfig.for_model(model_type, **numbers)
    except ValueError:
        raise CaptureError(
            f"Transformers does not know the model type `{model_type}` of {path}"
        ) from None


def _dtype(dtype: str | _torch.dtype) -> _torch.dtype:
    import torch as pytorch

    if isinstance(dtype, pytorch.dtype):
        return dtype
    for name in NAMES:
        if dtype in (name, called(name)):
            found: _torch.dtype = getattr(pytorch, called(name))
            return found
    raise ValueError(f"unknown element type `{dtype}`: it is one of {', '.join(NAMES)}")
