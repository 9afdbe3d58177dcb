"""The result of indexing a checkpoint, export or spec by path: a tensor that is not yet read.

This file also prints tensors: in a line, and as a table in a notebook.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from ._source import Slices, Source, TensorInfo

T = TypeVar("T")

_SHOWN = 8  # The maximum number of tensors to show.


class Infos(Mapping[str, T]):
    """An immutable mapping from path to facts about the tensor, printed in a few lines."""

    def __init__(self, infos: dict[str, T]) -> None:
        self._infos = infos

    def __getitem__(self, path: str) -> T:
        return self._infos[path]

    def __contains__(self, path: object) -> bool:
        return path in self._infos

    def __len__(self) -> int:
        return len(self._infos)

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._infos)

    def __repr__(self) -> str:
        lines = [f"  {path!r}: {info!r}," for path, info in list(self._infos.items())[:_SHOWN]]
        if left := len(self) - len(lines):
            lines.append(f"  … and {left:,} more")
        return "\n".join(["{", *lines, "}"]) if lines else "{}"


class TensorView:
    """A tensor of a checkpoint, export or spec, as ``checkpoint[path]`` returns it.

    A view holds no elements. Indexing reads or generates a part of them, ``numpy.asarray`` all:

        weight = checkpoint["lm_head.weight"]
        weight.shape, weight.dtype                # ((128256, 16384), dtype(bfloat16))
        rows = weight[1024:2048]                  # a NumPy array; no other bytes are read

    Attributes:
        source: the checkpoint, export or spec of the tensor.
        path: the tensor's path there.
        info: the tensor's `TensorInfo`.
    """

    __slots__ = ("info", "path", "source")

    def __init__(self, source: Source, path: str) -> None:
        """See ``Source.__getitem__``; raises UnknownTensorError for an unknown path."""
        self.source, self.path, self.info = source, path, source.info(path)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor; ``()`` for a scalar."""
        return self.info.global_shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the arrays that are read: `TensorInfo.numpy_dtype`."""
        return self.info.numpy_dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements of the whole tensor."""
        return self.info.size

    @property
    def nbytes(self) -> int:
        """Size of the whole tensor in bytes."""
        return self.info.nbytes

    def __getitem__(self, slices: Slices) -> np.ndarray[Any, Any]:
        """Reads or generates a part; see `Checkpoint.read` and `Spec.generate` for the errors.

        Args:
            slices: integers, slices of step 1 and one ``...``, as for NumPy's arrays.

        Returns:
            An array of the part's shape and of `dtype`, even for a single element.
        """
        return self.source.read(self.path, slices)

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> np.ndarray[Any, Any]:
        """Returns the whole tensor, for ``numpy.asarray``.

        Raises:
            ValueError: ``copy=False``, since the view has no array to return.
        """
        if copy is False:
            raise ValueError(f"`{self.path}` is not an array yet, so reading it is always a copy")
        array = self.source.read(self.path)
        return array if dtype is None else array.astype(dtype, copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"`{self.path}` is a scalar, which has no length")
        return self.shape[0]

    def __bool__(self) -> bool:
        raise TypeError(f"`{self.path}` is neither true nor false: compare what `[...]` reads")

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        """Reads one row after another."""
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"<shardinit.TensorView {self.path!r}: {self.info.dtype} {list(self.shape)}>"


def table_of(title: str, tensors: Mapping[str, TensorInfo]) -> str:
    """Returns an HTML table of the first few tensors, under a title."""
    rows = [
        f"<tr><td><code>{html.escape(path)}</code></td><td>{html.escape(info.dtype)}</td>"
        f"<td>{html.escape(str(list(info.global_shape)))}</td><td>{info.nbytes:,}</td></tr>"
        for path, info in list(tensors.items())[:_SHOWN]
    ]
    if left := len(tensors) - len(rows):
        rows.append(f'<tr><td colspan="4">… and {left:,} more</td></tr>')
    head = "<tr><th>tensor</th><th>dtype</th><th>shape</th><th>bytes</th></tr>"
    return f"<div><p>{html.escape(title)}</p><table>{head}{''.join(rows)}</table></div>"
