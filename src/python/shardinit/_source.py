"""The interface that checkpoints and specs share: tensors, any part of which can be read."""

from __future__ import annotations

import itertools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import EllipsisType, TracebackType
from typing import Any, ClassVar, NoReturn, SupportsIndex, TypeVar, cast

import numpy as np

from . import _dtypes
from ._errors import UnknownTensorError
from ._view import TensorView, table_of

Shape = tuple[int, ...]
Box = tuple[Shape, Shape]  # A box is its offset and its shape.
Index = SupportsIndex | slice | EllipsisType
Slices = Index | tuple[Index, ...] | None
Array = np.ndarray[Any, Any]
Words = Array  # These are unsigned integers with the bits of elements.
Job = Callable[[], object]
Self = TypeVar("Self", bound="Source")
T = TypeVar("T")

TOGETHER = 64 << 20  # Small tensors are read so many bytes at a time: a store answers all at once.


@dataclass(frozen=True)
class Mesh:
    """The grid of ranks: names and sizes of its axes; the last one varies fastest."""

    axes: tuple[str, ...]
    shape: Shape


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: its path, dtype and shape.

    Attributes:
        path: its name, such as ``model.norm.weight``.
        dtype: element type as specs and checkpoints write it: ``f32 f64 bf16 f16`` …
        global_shape: shape of the whole tensor; ``()`` for a scalar.
    """

    path: str
    dtype: str
    global_shape: Shape

    @property
    def shape(self) -> Shape:
        """Shape of the whole tensor: `global_shape`."""
        return self.global_shape

    @property
    def size(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.global_shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.size * _dtypes.item_size(self.dtype)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Type of the arrays that are returned."""
        return _dtypes.numpy_dtype(self.dtype)

    @property
    def is_bits(self) -> bool:
        """Whether arrays hold bits as unsigned integers, for want of ml_dtypes."""
        return _dtypes.is_bits(self.dtype)


class Source(Mapping[str, TensorView], ABC):
    """A source of parts of tensors: a `Checkpoint`, an `Export` or a `Spec`.

    It is a mapping that cannot be changed, from the path of a tensor to a `TensorView`, which reads
    nothing until it is indexed. Two sources are equal only if they are the same object.

    Attributes:
        tensors: path → `TensorInfo`, in the order of the spec.
        mesh: the grid of ranks that the tensors are sharded over.
        noun: the word for its kind, for messages.
        where: the name of this one, for messages.
    """

    tensors: Mapping[str, Any]
    mesh: Mesh
    noun: ClassVar[str]
    where: str

    def __getitem__(self, path: str) -> TensorView:
        """The tensor of a path, of which nothing is read yet; UnknownTensorError if none has it."""
        return TensorView(self, path)

    def __contains__(self, path: object) -> bool:
        return path in self.tensors

    def __len__(self) -> int:
        """How many tensors there are."""
        return len(self.tensors)

    def __iter__(self) -> Iterator[str]:
        """The paths of the tensors, in the order of `tensors`."""
        return iter(self.tensors)

    def __bool__(self) -> bool:
        return True  # One without tensors is there all the same.

    # A mapping would compare all elements.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def _repr_html_(self) -> str:
        """A table of the first tensors, for notebooks."""
        return table_of(repr(self).strip("<>"), self.tensors)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Closes the files, or releases the memory, that it holds."""

    def __copy__(self: Self) -> Self:
        """Returns another one, which stays open when this one is closed; neither ever changes."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self: Self, memo: object) -> Self:
        """Returns another one, as ``copy.copy`` does."""
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        """Refuses to be pickled.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"a {self.noun} that is open cannot be pickled, since what it stands for may be "
            "another where it is loaded: pickle its path, and open it there"
        )

    def info(self, path: str) -> TensorInfo:
        """The `TensorInfo` of a path.

        Raises:
            UnknownTensorError: there is no such tensor.
        """
        if path not in self.tensors:
            raise UnknownTensorError(path, self.tensors, self.noun)
        return cast("TensorInfo", self.tensors[path])

    @abstractmethod
    def partition_spec(self, path: str) -> tuple[tuple[str, ...], ...]:
        """For each dimension of a tensor the mesh axes that shard it, the major one first.

        It does not have segments, axes that shard one after the other, or stages: `boxes` has them.

        Raises:
            UnknownTensorError: there is no such tensor.
        """

    @abstractmethod
    def is_extended(self, path: str) -> bool:
        """Whether a tensor has segments, axes that shard one after the other, or a stage.

        If so, `partition_spec` does not say all.

        Raises:
            UnknownTensorError: there is no such tensor.
        """

    @abstractmethod
    def boxes(self, path: str, rank: int) -> list[Box]:
        """The boxes that a rank of the mesh holds of a tensor, whichever rank stores them.

        Returns:
            Offset and shape of each box, none of them empty. There is no box where the rank has
            nothing of the tensor, and several where the tensor has segments. Side by side along
            each dimension, in this order, they are the rank's local tensor.

        Raises:
            UnknownTensorError: there is no such tensor.
            IndexError: there is no such rank.
        """

    def read_local(
        self,
        path: str,
        rank: int,
        *,
        verify: bool = False,
        out: Array | None = None,
    ) -> Array | None:
        """Reads what a rank of the mesh holds of a tensor, its boxes side by side as in a DTensor.

        Args:
            path: the tensor.
            rank: the rank whose part is read.
            verify: check the digests of these boxes, if this is a checkpoint.
            out: an array to fill instead of a new one, as for `read`.

        Returns:
            The local tensor; None where the rank holds nothing of it.

        Raises:
            IndexError: there is no such rank.
            UnknownTensorError, ValueError, DamageError, FormatError: as `read`.
        """
        info = self.info(path)
        boxes = self.boxes(path, rank)
        if not boxes:
            return None
        # For each dimension: where an interval of the tensor begins in the local one.
        places: list[dict[int, int]] = []
        extent = []
        for dimension in range(len(info.global_shape)):
            lengths = {offset[dimension]: shape[dimension] for offset, shape in boxes}
            starts = sorted(lengths)
            ends = list(itertools.accumulate(lengths[start] for start in starts))
            places.append(dict(zip(starts, [0, *ends], strict=False)))
            extent.append(ends[-1])
        array = words_for(info, tuple(extent), out)
        jobs: list[Job] = []
        for offset, shape in boxes:
            there = tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))
            sides = zip(places, offset, shape, strict=True)
            here: Any = [slice(place[o], place[o] + n) for place, o, n in sides]
            jobs += self.jobs(path, there, array[(*here, ...)], verify=verify)
        self.run(jobs)
        return array.view(info.numpy_dtype) if out is None else out

    def _check_rank(self, rank: int) -> None:
        count = math.prod(self.mesh.shape)
        if not 0 <= rank < count:
            raise IndexError(f"there is no rank {rank}: the mesh of {self.where} has {count}")

    @abstractmethod
    def read(
        self, path: str, slices: Slices = None, *, verify: bool = False, out: Array | None = None
    ) -> Array:
        """Reads a tensor, or a part of it; see `Checkpoint.read` and `Spec.generate`."""

    @abstractmethod
    def jobs(self, path: str, slices: Slices, out: Array, *, verify: bool = False) -> list[Job]:
        """The jobs of a `read` into `out`, for `run`, in any order and together with others."""

    def run(self, jobs: list[Job]) -> None:
        """Does `jobs` on as many threads as pay, and raises the error of the first that fails."""
        self._run([job for job in jobs if not isinstance(job, Staged)])
        staged = [job for job in jobs if isinstance(job, Staged)]
        for group in grouped(staged, lambda each: each.size):
            self._run([job for each in group for job in each.start()])
            while group:
                group.pop(0).finish()

    @abstractmethod
    def _run(self, jobs: list[Job]) -> None:
        """Does jobs, none of which is `Staged`."""


class Staged(ABC):
    """A job by way of memory that is taken no sooner than it begins, and freed when it ends.

    Attributes:
        size: bytes of this memory.
    """

    size: int

    @abstractmethod
    def start(self) -> list[Job]:
        """Takes the memory; returns the jobs that fill it."""

    @abstractmethod
    def finish(self) -> None:
        """Uses what the jobs have filled it with."""

    def __call__(self) -> None:
        for job in self.start():
            job()
        self.finish()


def grouped(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Neighbours that are done together: as many as have `TOGETHER` bytes, and at least one."""
    group: list[T] = []
    total = 0
    for item in items:
        if group and total + size(item) > TOGETHER:
            yield group
            group, total = [], 0
        group.append(item)
        total += size(item)
    if group:
        yield group


def words_for(info: TensorInfo, shape: Shape, out: Words | None) -> Words:
    """Memory for a part of a tensor, as unsigned integers: that of `out`, or new memory.

    Raises:
        TypeError: `out` is not an array of NumPy.
        ValueError: `out` has another shape or type, cannot be written to, or may have elements in
            the same memory.
    """
    words = _dtypes.words_of(info.dtype)
    if out is None:
        return np.empty(shape, words)
    if not isinstance(out, np.ndarray):
        raise TypeError(
            f"`out` is a numpy.ndarray, not {type(out).__module__}.{type(out).__name__}: read "
            "into the array of its memory, as tensor.numpy(), or convert what is returned"
        )
    if out.shape != shape or out.dtype not in (info.numpy_dtype, words):
        raise ValueError(
            f"`out` is {out.dtype} {list(out.shape)}, but this part of `{info.path}` is "
            f"{info.dtype} {list(shape)}: `out` is {info.numpy_dtype} or, for the bits, {words}"
        )
    if not out.flags.writeable:
        raise ValueError("`out` cannot be written to")
    end = out.itemsize  # So many bytes are spanned by the dimensions with smaller strides.
    for stride, size in sorted((abs(each), n) for each, n in zip(out.strides, shape, strict=True)):
        if size > 1 and stride < end and out.size:
            raise ValueError(
                f"elements of `out` may lie in the same memory: its strides are {out.strides}, its "
                f"shape {list(shape)}"
            )
        end += stride * (size - 1)
    return out.view(np.ndarray).view(words)


def region(info: TensorInfo, slices: Slices) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
    """Start and extent of a part in every dimension, and the dimensions that it keeps."""
    shape = info.global_shape
    parts = list(slices) if isinstance(slices, tuple) else [... if slices is None else slices]
    given = sum(part is not ... for part in parts)
    if len(parts) - given > 1:
        raise IndexError("slices can have one `...`")
    if given > len(shape):
        raise IndexError(
            f"{given} slices for `{info.path}`, which has {len(shape)} dimensions: {list(shape)}"
        )
    if given == len(parts):
        parts.append(...)
    gap = next(i for i, part in enumerate(parts) if part is ...)
    parts[gap : gap + 1] = [slice(None)] * (len(shape) - given)
    start, extent, kept = [], [], []
    at: int | None
    for dimension, (part, size) in enumerate(zip(parts, shape, strict=True)):
        if isinstance(part, slice):
            low, high, step = part.indices(size)
            if step != 1:
                raise ValueError(f"a slice of `{info.path}` has step {step}; only 1 is possible")
            start.append(low)
            extent.append(max(0, high - low))
            kept.append(dimension)
            continue
        try:
            at = operator.index(cast("SupportsIndex", part))
        except TypeError:
            at = None
        if at is None or isinstance(part, (bool, np.bool_)):
            raise TypeError(f"slices are numbers, slices and `...`, not {type(part).__name__}")
        if not -size <= at < size:
            raise IndexError(
                f"index {at} is outside dimension {dimension} of `{info.path}`, which has {size}"
            )
        start.append(at % size)
        extent.append(1)
    return tuple(start), tuple(extent), kept


def expanded(array: Words, extent: tuple[int, ...], kept: list[int]) -> Words:
    """The same memory, with the dimensions that whole numbers among the slices dropped."""
    dimensions = (slice(None) if d in kept else np.newaxis for d in range(len(extent)))
    return array[(*dimensions, ...)]
