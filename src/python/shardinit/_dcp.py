"""The reader with which torch.distributed.checkpoint loads shardinit checkpoints."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader as _StorageReader
from torch.futures import Future

from ._checkpoint import as_source, is_checkpoint
from ._source import Source
from ._torch_tensors import dtype_of, fill


class StorageReader(_StorageReader):
    """Reads a shardinit checkpoint for ``torch.distributed.checkpoint.load``.

        dcp.load(state_dict, storage_reader=shardinit.torch.StorageReader("DIR"))

    Tensors and DTensors of any mesh and placements are filled in place, whatever mesh the
    checkpoint was sharded over. Every process reads only the bytes of its own shards. Nothing is
    unpickled.

    Args:
        checkpoint: a folder or URL, or an open checkpoint.
        prefix: the text before the checkpoint's paths in the flattened names of the state dict,
            such as ``model.`` for ``{"model": model.state_dict()}``.
        verify: check the digests of all boxes that are read.

    Raises:
        NotACheckpointError, FormatError: as for `shardinit.open`.
        DamageError: while loading, if a file is missing, truncated or (with `verify`)
            altered. ``dcp.load`` wraps it in a ``CheckpointException``.
    """

    def __init__(
        self,
        checkpoint: str | os.PathLike[str] | Source,
        *,
        prefix: str = "",
        verify: bool = False,
    ) -> None:
        self._checkpoint = as_source(checkpoint)
        self._prefix = prefix
        self._verify = verify

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Starts another load, of the checkpoint `checkpoint_id` if one is given."""
        if checkpoint_id is not None:
            self._checkpoint = as_source(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Returns the tensors of the checkpoint, each as one chunk.

        Only `Checkpoint.read` knows how a tensor is sharded into boxes: the plan has one item for
        each local shard, on however many ranks its boxes are.
        """
        return Metadata(
            state_dict_metadata={
                self._prefix + path: TensorStorageMetadata(
                    properties=TensorProperties(dtype=dtype_of(info)),
                    size=torch.Size(info.global_shape),
                    chunks=[
                        ChunkStorageMetadata(
                            offsets=torch.Size([0] * len(info.global_shape)),
                            sizes=torch.Size(info.global_shape),
                        )
                    ],
                )
                for path, info in self._checkpoint.tensors.items()
            }
        )

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Does nothing: there is nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Returns the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Returns the plans unchanged: no process reads for another."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fills the tensors of the plan, directly in their memory for CPU tensors."""
        jobs, filled = [], []
        for item in plan.items:
            name = item.storage_index.fqn
            if item.type is not LoadItemType.TENSOR:
                raise ValueError(
                    f"`{name}` is not a tensor, and a shardinit checkpoint holds nothing else"
                )
            target = planner.resolve_tensor(item).detach()
            slices = tuple(
                slice(offset, offset + length)
                for offset, length in zip(item.storage_offsets, item.lengths, strict=True)
            )
            path = name.removeprefix(self._prefix)
            jobs += fill(self._checkpoint, path, slices, target, verify=self._verify)
            filled.append((item, target))
        self._checkpoint.run(jobs)
        for item, target in filled:
            planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Returns whether the folder or URL is a checkpoint or an export of shardinit."""
        return is_checkpoint(checkpoint_id)
