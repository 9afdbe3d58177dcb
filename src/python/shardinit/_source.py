"""The interface that checkpoints, exports and specs share: tensors that can be read in parts."""

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
Box = tuple[Shape, Shape]  # Offset and shape.
Index = SupportsIndex | slice | EllipsisType
Slices = Index | tuple[Index, ...] | None
Array = np.ndarray[Any, Any]
Words = Array  # Unsigned integers with the bits of elements.
Job = Callable[[], object]
Self = TypeVar("Self", bound="Source")
T = TypeVar("T")

TOGETHER = 64 << 20  # Bytes of small tensors that are read together: a store answers all at once.


@dataclass(frozen=True)
class Mesh:
    """The grid of ranks: names and sizes of its axes; the last axis varies fastest."""

    axes: tuple[str, ...]
    shape: Shape


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: its path, dtype and shape.

    Attributes:
        path: the tensor's name, such as ``model.norm.weight``.
        dtype: element type in the notation of specs: ``f32 f64 bf16 f16`` …
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
        """Number of elements of the whole tensor."""
        return math.prod(self.global_shape)

    @property
    def nbytes(self) -> int:
        """Size of the whole tensor in bytes."""
        return self.size * _dtypes.item_size(self.dtype)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Type of the arrays that are returned for this tensor."""
        return _dtypes.numpy_dtype(self.dtype)

    @property
    def is_bits(self) -> bool:
        """Whether arrays are unsigned integers with the same bits, because ml_dtypes is missing."""
        return _dtypes.is_bits(self.dtype)


class Source(Mapping[str, TensorView], ABC):
    """A source of parts of tensors: a `Checkpoint`, an `Export` or a `Spec`.

    A source is an immutable mapping from the path of a tensor to a `TensorView`, which reads
    nothing until it is indexed. Two sources are equal only if they are the same object.

    Attributes:
        tensors: path → `TensorInfo`, in the order of the spec.
        mesh: the grid of ranks that the tensors are sharded over.
        noun: the kind of source, for messages.
        where: the name of this source, for messages.
    """

    tensors: Mapping[str, Any]
    mesh: Mesh
    noun: ClassVar[str]
    where: str

    def __getitem__(self, path: str) -> TensorView:
        """Returns the tensor of a path, unread; raises UnknownTensorError for an unknown path."""
        return TensorView(self, path)

    def __contains__(self, path: object) -> bool:
        return path in self.tensors

    def __len__(self) -> int:
        """Returns the number of tensors."""
        return len(self.tensors)

    def __iter__(self) -> Iterator[str]:
        """Iterates over the paths of the tensors, in the order of `tensors`."""
        return iter(self.tensors)

    def __bool__(self) -> bool:
        return True  # A source without tensors is true, too.

    # Mapping's own comparison would read all elements.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def _repr_html_(self) -> str:
        """Returns an HTML table of the first tensors, for notebooks."""
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
        """Closes the files, or releases the memory, of this source."""

    def __copy__(self: Self) -> Self:
        """Returns a copy that stays open when this source is closed; neither ever changes."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self: Self, memo: object) -> Self:
        """Returns a copy, as ``copy.copy`` does."""
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        """Rejects pickling.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"a {self.noun} that is open cannot be pickled, since what it stands for may be "
            "another where it is loaded: pickle its path, and open it there"
        )

    def info(self, path: str) -> TensorInfo:
        """Returns the `TensorInfo` of a path.

        Raises:
            UnknownTensorError: the source has no such tensor.
        """
        if path not in self.tensors:
            raise UnknownTensorError(path, self.tensors, self.noun)
        return cast("TensorInfo", self.tensors[path])

    @abstractmethod
    def partition_spec(self, path: str) -> tuple[tuple[str, ...], ...]:
        """Returns the mesh axes that shard each dimension of a tensor, the major one first.

        The result does not describe segments, nested axes or stages; `boxes` does.

        Raises:
            UnknownTensorError: the source has no such tensor.
        """

    @abstractmethod
    def is_extended(self, path: str) -> bool:
        """Returns whether a tensor has segments, nested axes or a stage.

        If so, `partition_spec` does not describe its sharding completely.

        Raises:
            UnknownTensorError: the source has no such tensor.
        """

    @abstractmethod
    def boxes(self, path: str, rank: int) -> list[Box]:
        """Returns the boxes of a tensor that a rank of the mesh holds, whichever rank stores them.

        Returns:
            Offset and shape of each box, none of them empty. The list is empty if the rank holds
            nothing of the tensor, and has several boxes if the tensor has segments. Concatenated
            along each dimension, in this order, the boxes are the rank's local tensor.

        Raises:
            UnknownTensorError: the source has no such tensor.
            IndexError: the mesh has no such rank.
        """

    def read_local(
        self,
        path: str,
        rank: int,
        *,
        verify: bool = False,
        out: Array | None = None,
    ) -> Array | None:
        """Reads the part of a tensor that a rank holds, its boxes concatenated as in a DTensor.

        Args:
            path: the tensor.
            rank: the rank whose part to read.
            verify: check the digests of these boxes, for a checkpoint.
            out: an array to fill instead of a new one, as for `read`.

        Returns:
            The local tensor; None if the rank holds nothing of it.

        Raises:
            IndexError: the mesh has no such rank.
            UnknownTensorError, ValueError, DamageError, FormatError: as for `read`.
        """
        info = self.info(path)
        boxes = self.boxes(path, rank)
        if not boxes:
            return None
        # For each dimension, where each interval of the tensor begins in the local tensor.
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
        """Returns the jobs of a `read` into `out`; `run` may mix them with others, in any order."""

    def run(self, jobs: list[Job]) -> None:
        """Runs `jobs` on as many threads as pay off, and raises the first failed job's error."""
        self._run([job for job in jobs if not isinstance(job, Staged)])
        staged = [job for job in jobs if isinstance(job, Staged)]
        for group in grouped(staged, lambda each: each.size):
            self._run([job for each in group for job in each.start()])
            while group:
                group.pop(0).finish()

    @abstractmethod
    def _run(self, jobs: list[Job]) -> None:
        """Runs jobs, none of which is `Staged`."""


class Staged(ABC):
    """A job with its own memory, which is allocated when the job starts and freed when it ends.

    Attributes:
        size: the size of this memory in bytes.
    """

    size: int

    @abstractmethod
    def start(self) -> list[Job]:
        """Allocates the memory; returns the jobs that fill it."""

    @abstractmethod
    def finish(self) -> None:
        """Uses the memory, which the jobs have filled."""

    def __call__(self) -> None:
        for job in self.start():
            job()
        self.finish()


def grouped(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Groups neighbours to run together: up to `TOGETHER` bytes a group, but at least one item."""
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
    """Returns memory for a part of a tensor, as unsigned integers: `out`'s memory, or new memory.

    Raises:
        TypeError: `out` is not a NumPy array.
        ValueError: `out` has another shape or type, is read-only, or may have elements that overlap
            in memory.
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
    end = out.itemsize  # Bytes spanned by the dimensions with smaller strides.
    for stride, size in sorted((abs(each), n) for each, n in zip(out.strides, shape, strict=True)):
        if size > 1 and stride < end and out.size:
            raise ValueError(
                f"elements of `out` may lie in the same memory: its strides are {out.strides}, its "
                f"shape {list(shape)}"
            )
        end += stride * (size - 1)
    return out.view(np.ndarray).view(words)


def region(info: TensorInfo, slices: Slices) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
    """Returns start and extent of a part in every dimension, and the dimensions that it keeps."""
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
    """Returns the same memory, with the dimensions restored that integers in the slices dropped."""
    dimensions = (slice(None) if d in kept else np.newaxis for d in range(len(extent)))
    return array[(*dimensions, ...)]
