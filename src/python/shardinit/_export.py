"""An open export in any format: any part of any of its tensors as an array.

In every format, the bytes of a box are contiguous, and the export's record says where each box
begins. So one reader serves all formats, without reading the formats' own headers and without
unpickling.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, NoReturn

from . import _dtypes
from ._boxes import Boxes
from ._errors import DamageError, FormatError, NotACheckpointError
from ._files import Files, StoredBox
from ._json import as_digest, as_int, as_list, as_object, as_path, as_shape, as_text, parse_json
from ._manifest import CONTRACT_VERSION, Shard, StoredTensorInfo
from ._source import Box, Mesh, Shape
from ._view import Infos

RECORD = "shardinit-export.json"

_VERSION = 2


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
        super().__init__(files)
        path = files.path(RECORD)
        text = files.read(RECORD)
        of = parse_json(text, path)
        found = (of.get("export_version"), of.get("contract_version"))
        if found != (_VERSION, CONTRACT_VERSION) or any(type(each) is not int for each in found):
            raise FormatError(
                f"`{path}` has export version {found[0]!r} and contract version {found[1]!r}, but "
                f"this package knows {_VERSION} and {CONTRACT_VERSION}: export again, or use a "
                "release that does"
            )
        lines = text[: text.rfind(b'\n "sha256": ') + 1]
        digest = hashlib.sha256(lines).hexdigest()
        if not lines or text != lines + f' "sha256": "{digest}"\n}}\n'.encode():
            raise DamageError(f"`{path}` does not have the digest that its last line gives")
        self.format = as_text(of.get("format"), f"{RECORD}: format")
        self.name = as_text(of.get("name"), f"{RECORD}: name")
        self.engine = as_text(of.get("engine"), f"{RECORD}: engine")
        self.seed = as_int(of.get("seed"), f"{RECORD}: seed", high=2**64 - 1)
        self.plan_sha256 = as_digest(of.get("plan_sha256"), f"{RECORD}: plan_sha256")
        self._sizes: list[tuple[str, int]] = []
        self._places: dict[tuple[str, int, Shape], int] = {}
        shards: dict[str, list[dict[str, Any]]] = {}
        kinds: dict[str, tuple[str, Shape]] = {}
        for number, each in enumerate(as_list(of.get("files"), f"{RECORD}: files")):
            file = as_object(each, f"{RECORD}: a file")
            name = _as_file(file.get("file"))
            size = as_int(file.get("size"), f"{RECORD}: size of `{name}`")
            self._sizes.append((name, size))
            for one in as_list(file.get("boxes"), f"{RECORD}: boxes of `{name}`"):
                box = as_object(one, f"{RECORD}: a box")
                tensor, kind = self._add(box, number, size)
                if kinds.setdefault(tensor, kind) != kind:
                    raise FormatError(f"{RECORD}: boxes of `{tensor}` are not of one tensor")
                shards.setdefault(tensor, []).append({**box, "rank": number})
        infos = {t: StoredTensorInfo(t, *kinds[t], parts, RECORD) for t, parts in shards.items()}
        self.tensors = Infos(infos)
        self.parameters = sum(info.size for info in self.tensors.values())
        self.bytes = sum(info.nbytes for info in self.tensors.values())

    def __repr__(self) -> str:
        return (
            f"<shardinit.Export {self.folder!r}: {self.name}, {self.parameters:,} parameters in "
            f"{len(self.tensors)} tensors, {self.format}, seed {self.seed}>"
        )

    def _add(self, box: dict[str, Any], number: int, size: int) -> tuple[str, tuple[str, Shape]]:
        """Stores a box's place, and returns its tensor, with the tensor's dtype and shape."""
        path = as_path(box.get("path"), f"{RECORD}: a tensor's path")
        what = f"{RECORD}: box of `{path}`"
        dtype = as_text(box.get("dtype"), f"{what}: dtype")
        if dtype not in _dtypes.NAMES:
            raise FormatError(f"{what} has the unknown dtype {dtype!r}")
        shape = as_shape(box.get("shape"), f"{what}: shape")
        at = as_int(box.get("file_offset"), f"{what}: file_offset", high=size)
        if at + _dtypes.item_size(dtype) * math.prod(shape) > size:
            raise FormatError(f"{what} ends past the end of the file")
        key = (path, number, as_shape(box.get("offset"), f"{what}: offset", low=0))
        if key in self._places:
            raise FormatError(f"{what} is there twice")
        self._places[key] = at
        return path, (dtype, as_shape(box.get("global_shape"), f"{what}: global_shape"))

    def check(self) -> None:
        """See `Boxes.check`."""
        self._files.look_again([name for name, _ in self._sizes])
        for name, size in self._sizes:
            self._files.check(name, size)

    def _expect(self, touched: list[list[Shard]]) -> None:
        self._files.expect((), {self._sizes[replicas[0].rank][0] for replicas in touched})

    def _locate(self, info: StoredTensorInfo, replicas: list[Shard]) -> StoredBox:
        shard = replicas[0]
        name, size = self._sizes[shard.rank]
        self._files.check(name, size)
        at = self._places[info.path, shard.rank, shard.offset]
        return StoredBox(info.path, shard.offset, shard.shape, shard.sha256, name, size, at)

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


def _as_file(value: Any) -> str:
    """Returns `value`, the name of a file, after checking that it stays within the folder."""
    name = as_text(value, f"{RECORD}: a file")
    if not {"", ".", ".."}.isdisjoint(name.split("/")):
        raise FormatError(f"{RECORD}: {name!r} is not a file in the folder")
    return name
