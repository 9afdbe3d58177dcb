"""An open export in any format: any part of any of its tensors as an array.

In every format, the bytes of a box are contiguous, and the export's record says where each box
begins. So one reader serves all formats, without reading the formats' own headers and without
unpickling.
"""

from __future__ import annotations

from typing import NoReturn

from ._boxes import Boxes
from ._errors import NotACheckpointError
from ._files import Files
from ._source import Box, Mesh

RECORD = "shardinit-export.json"


class Export(Boxes):
    """An export that is open for reading, returned by `shardinit.open`.

    Attributes:
        folder: its folder, or its URL in a store.
        format: the name that ``export --to`` takes.
        tensors: path → `StoredTensorInfo`, in the order of the files. A shard's `Shard.rank` is the
            number of the file that holds it.
        name, engine, seed: as in the spec.
        parameters, bytes: counts over all tensors.
        plan_sha256: digest of the plan that the export was made from.
        bytes_read: bytes of tensors read from files so far.
    """

    noun = "export"

    def __init__(self, files: Files) -> None:
        """See `shardinit.open`; raises DamageError if the record does not match its own digest."""
        super().__init__(files, RECORD, is_record=1)
        self.format: str = self._described.format.decode()

    def __repr__(self) -> str:
        return (
            f"<shardinit.Export {self.folder!r}: {self.name}, {self.parameters:,} parameters in "
            f"{len(self.tensors)} tensors, {self.format}, seed {self.seed}>"
        )

    def check(self) -> None:
        """See `Boxes.check`."""
        self._files.look_again([name for name, _ in self._sizes])
        for name, size in self._sizes:
            self._files.check(name, size)

    # An export has no plan.

    @property
    def mesh(self) -> Mesh:  # type: ignore[override]
        """Raises NotACheckpointError, since an export does not record its mesh."""
        self._refuse()

    def partition_spec(self, path: str) -> tuple[tuple[str, ...], ...]:
        """Raises NotACheckpointError, as `mesh` does."""
        self._refuse()

    def is_extended(self, path: str) -> bool:
        """Raises NotACheckpointError, as `mesh` does."""
        self._refuse()

    def boxes(self, path: str, rank: int) -> list[Box]:
        """Raises NotACheckpointError, as `mesh` does."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotACheckpointError(
            f"{self.where} is an export to {self.format}, which does not say over which mesh its "
            "tensors are sharded: use the spec, or a checkpoint that `shardinit gen` writes"
        )
