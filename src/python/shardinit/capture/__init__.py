"""Captures specs from PyTorch and JAX constructors, which run on tensors without memory.

    import shardinit.capture

    captured = shardinit.capture.torch(lambda: Model(layers=126), name="model")
    captured.write("model.yaml")

The spec has the tensors of the model's ``state_dict()``, or the arrays of its pytree, with the
distributions from which the constructor draws them. `torch` needs PyTorch, `jax` needs JAX, and
`hf` needs Transformers.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import tempfile
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from .. import _torch_cpu
from .._dtypes import NAMES, called
from .._errors import CaptureError as CaptureError
from .._result_file import ResultFile
from .._spec import Spec
from . import _hf_config

if TYPE_CHECKING:
    import torch as _torch

    from ._compare import Real, Ulps
    from ._verify import Verified

__all__ = ["Captured", "hf", "jax", "torch"]

ENGINES = ("philox4x32", "torch_cpu")
_MARK = r"# .*, captured by shardinit-capture from "  # The beginning of the texts of `spec_text`.


@dataclasses.dataclass(frozen=True)
class Captured:
    """A captured spec.

    Attributes:
        text: the text of the spec.
        tensors: path → (shape, dtype) of each tensor, in the model's order.
        drawn: the paths of tensors that contain random numbers.
        layout: the layout that has these tensors; None means that the spec itself has them.
        tables: path → content of the files next to the spec from which it reads elements.
        seed: the seed of the spec.
    """

    text: str
    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    drawn: frozenset[str] = frozenset()
    tables: Mapping[str, bytes] = dataclasses.field(default_factory=dict, repr=False)
    _real: Callable[[int], Mapping[str, Real]] | None = dataclasses.field(
        default=None, repr=False, compare=False
    )  # Returns the constructor's tensors for a seed.
    _spread: Callable[[str], Ulps] | None = dataclasses.field(
        default=None, repr=False, compare=False
    )  # Returns the allowed error of a tensor's elements in ulps.
    _has_own_seed: bool = False  # If so, the spec's seed does not change random numbers.
    layout: str | None = None
    seed: int = 0
    _inputs: tuple[str, ...] = dataclasses.field(default=(), repr=False, compare=False)

    def __repr__(self) -> str:
        name = re.search("^name: (.*)$", self.text, re.M)
        return (
            f"<shardinit.capture.Captured{f': {name[1]}' if name else ''}, "
            f"{len(self.tensors)} tensors, seed {self.seed}>"
        )

    def __reduce__(self) -> NoReturn:
        """Rejects pickling.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "a captured spec cannot be pickled, since it keeps its constructor: write() it, and "
            "open the file there"
        )

    def write(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Writes the spec to a file, and its `tables` below the folder of that file.

        Args:
            path: a file. An existing file is replaced if it begins like a captured spec.
            force: also replace other files.

        Raises:
            FileExistsError: another file exists, and `force` is false.
            ValueError: the spec was captured from this file, or this is not a file system path.
            OSError: the file cannot be written.
        """
        result = ResultFile(path, what="spec", mark=_MARK, inputs=self._inputs, force=force)
        for name, content in self.tables.items():
            file = pathlib.Path(path).parent / name
            file.parent.mkdir(exist_ok=True)
            # Another spec may use the table, so it must never exist partially.
            new = file.with_name(f".{file.name}.{os.getpid()}")
            try:
                new.write_bytes(content)
                new.replace(file)
            except OSError:
                new.unlink(missing_ok=True)
                raise
        result.write(self.text)

    def spec(self) -> Spec:
        """Opens the spec, whose tensors can then be generated in memory."""
        if not self.tables:
            return Spec(None, text=self.text, set=(), mesh=None, layout=self.layout, threads=0)
        folder = tempfile.TemporaryDirectory(prefix="shardinit-")
        self.write(os.path.join(folder.name, "spec.yaml"))
        spec = Spec(os.path.join(folder.name, "spec.yaml"), layout=self.layout)
        weakref.finalize(spec, folder.cleanup)  # The spec reads its tables only when needed.
        return spec

    def verify(self, tensors: str = "all") -> Verified:
        """Compares the spec's tensors with the tensors of the model that the constructor returns.

        The constructor runs after ``torch.manual_seed(seed)``, or JAX's function unchanged,
        operation by operation on the CPU, with memory for all of its tensors. It runs again with
        another seed, which the spec then also gets. With the engines torch_cpu and jax_threefry,
        tensors are compared bit for bit. With other engines, so are tensors that are not drawn; for
        drawn tensors, mean and standard deviation are compared.

        Args:
            tensors: ``"all"`` compares whole tensors, which ``shardinit gen`` generates in a
                temporary folder, and a sample for the other seed. ``"sample"`` compares a sample
                for both: a few layers of those that are alike, and parts of large tensors. A sample
                of a model of more than 1 GiB compares no tensor; see `note`.

        Raises:
            ValueError: `torch`, `hf` or `jax` did not return this object; or `tensors` is another
                word.
            CaptureError: the constructor fails when it is not captured.
            LibraryError: the program ``shardinit`` or libshardinit is not found.
            SpecError: the program rejects the spec.
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
    """Captures the values that a constructor would give the tensors of its model.

    Args:
        make: a class or function; it is called with `args` and `kwargs`, and returns the
            ``nn.Module``. Its tensors have no memory while it runs.
        name: the spec's name; the default is the name of the model's class.
        seed: the spec's seed; 2^64 is added to a negative seed, as ``torch.manual_seed`` does.
        dtype: PyTorch's default element type while `make` runs: ``"bf16"`` or a ``torch.dtype``.
        engine: the spec's engine. ``"torch_cpu"`` reproduces the constructor's values after
            ``torch.manual_seed(seed)``, bit for bit.
        buffers: ``"persistent"`` for buffers of the state dict, or ``"all"``.
        config: the contents of ``config.json`` in the spec.

    Raises:
        CaptureError: a spec cannot express some of the values; the message names all of them, with
            the operation and the line that made them.
        LibraryError: a buffer's values can only be checked with libshardinit, which is not found.
    """
    import torch as pytorch

    from ._capture import capture
    from ._finish import only_capture_errors

    if engine == _torch_cpu.NAME:
        engine = "torch_cpu"
    check_engine(engine, ENGINES)
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"a seed is in -2^63 … 2^64 - 1, and {seed} is not")
    if buffers not in ("persistent", "all"):
        raise ValueError(f'`buffers` is "persistent" or "all", not {buffers!r}')
    default = None if dtype is None else _dtype(dtype)
    if default is not None and default not in (
        pytorch.float32, pytorch.float64, pytorch.bfloat16, pytorch.float16
    ):  # fmt: skip
        raise ValueError(f"PyTorch's default element type cannot be {default}")
    with only_capture_errors():
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
    """Captures the values that a JAX function would give the arrays that it returns.

    Args:
        make: a class or function, called with `args` and `kwargs`. It returns any pytree: a model
            of Equinox or Flax NNX, the variables of Flax Linen or Haiku, or a tuple of these and
            the state of an optimizer. Arrays have no memory while it runs. A parameter ``key`` or
            ``rng`` gets ``jax.random.key(seed)``, and ``rngs`` a ``flax.nnx.Rngs(seed)``, if
            neither `args` nor `kwargs` contain it.
        name: the spec's name; the default is the name of `make`.
        seed: the spec's seed.
        engine: ``"philox4x32"`` for the same distributions, ``"jax_threefry"`` for JAX's numbers.

    Raises:
        CaptureError: a spec cannot express some of the values; the message names all of them, with
            the operation and the line that made them.
        LibraryError: an array's values can only be checked with libshardinit, which is not found.
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
            ``architectures``, or else the class with the head that ``shardinit import`` chooses.
        name, seed, dtype, engine, buffers: as for `torch`, but the default of `dtype` is the
            config's.

    Raises:
        CaptureError: as for `torch`; also if Transformers does not know the config's
            ``model_type``.
    """
    inputs: tuple[str, ...] = ()
    if isinstance(config, (str, os.PathLike)):
        inputs = () if config == "-" else (os.fspath(config),)
        config = _hf_config.load(os.fspath(config))
    of = _hf_config.class_of(config)
    kept = dtype if dtype is not None else getattr(config, "dtype", None)
    options = {} if kept is None else {"dtype": _dtype(kept)}
    written = json.loads(config.to_json_string(use_diff=True))
    written.pop("transformers_version", None)
    if getattr(config, "architectures", None):
        written["architectures"] = [of.__name__]
    captured = torch(
        lambda: of._from_config(config, **options),
        name=name or of.__name__,
        seed=seed,
        dtype=None,
        engine=engine,
        buffers=buffers,
        config=written,
    )
    return dataclasses.replace(captured, _inputs=inputs)


def check_engine(engine: str, engines: tuple[str, ...]) -> None:
    """Raises ValueError if the engine is not one of `engines`."""
    if engine not in engines:
        raise ValueError(f"unknown engine `{engine}`: `engine` is one of {', '.join(engines)}")


def _dtype(dtype: str | _torch.dtype) -> _torch.dtype:
    import torch as pytorch

    if isinstance(dtype, pytorch.dtype):
        return dtype
    for name in NAMES:
        if dtype in (name, called(name)):
            found: _torch.dtype = getattr(pytorch, called(name))
            return found
    raise ValueError(f"unknown element type `{dtype}`: it is one of {', '.join(NAMES)}")


def __dir__() -> list[str]:
    return sorted(__all__)
