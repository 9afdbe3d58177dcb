"""Reads the files of a checkpoint or export from an object store, or another store of fsspec.

Receipts and records list where each box is, so only ranges of bytes are read. A request costs as
much time as a few hundred kilobytes: ranges near each other are merged, and all ranges are
requested at once. Answers may be too short, and objects may be replaced while they are read; both
are detected, and are errors.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ._errors import DamageError, FormatError
from ._files import Files, StoredBox, taken_from, wrong_digest
from ._regular import MAX_BYTES
from ._source import Job, Shape, Words

_GAP = 256 << 10  # Smaller gaps between ranges are read, too: another request takes longer.
_BLOCK = 16 << 20  # The maximum size of a request, since several at once are faster.
_BATCH = 256 << 20  # The maximum number of bytes in memory, not counting the arrays to fill.
_AT_ONCE = 32  # The maximum number of objects to look at simultaneously.

_S3 = ("s3", "s3a")
_URL = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*::)*([A-Za-z][A-Za-z0-9+.-]*)://")
_SQUEEZED = re.compile(r"(s3|s3a|gs|gcs|az|abfs|https?):/(?=[^/])")
_NAME = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*", re.ASCII)
_RUN = 8  # The shortest part of a secret that is hidden: a store may repeat a part of it.
_SECRET = re.compile(".*(secret|token|password|key|credential|sas).*", re.IGNORECASE)
_IDENTITY = re.compile("etag|generation|versionid|content-?md5|digest|.*modified|mtime|created")


def local_path(name: str) -> str | None:
    """Returns the path of a local folder that `name` denotes; None if it is the URL of a store."""
    found = _URL.match(name)
    if found is None:
        return name
    return name[found.end() :] if found[0] in ("file://", "local://") else None


def is_squeezed(name: str) -> bool:
    """Returns whether this may be a URL that ``pathlib`` has turned into a path."""
    return _SQUEEZED.match(name) is not None


class StoreFiles(Files):
    """Files below the URL of a store, read by fsspec; see `Files`.

    The first look at an object records what identifies it, such as its ETag. After reading ranges
    of the object, another look compares, unless digests prove that the bytes are right.
    """

    far = True

    def __init__(self, url: str, options: Mapping[str, Any] | None) -> None:
        """Makes no connection yet.

        Raises:
            ImportError: fsspec, or its package for this kind of store, is not installed.
            ValueError: fsspec does not know this kind of store.
        """
        shown = re.sub(r"(?<=://)[^/@]*@", "", url)  # Hides the user's name and password.
        name = shown.rstrip("/")
        super().__init__(shown if name.endswith(":") else name)
        kind = _URL.match(url)
        assert kind is not None
        try:
            import fsspec  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            package = '"shardinit[s3]"' if kind[1] in _S3 else "fsspec"
            raise ImportError(f"reading `{shown}` needs fsspec: pip install {package}") from error
        _require_version(kind[1])
        # An instance of its own: listings that other instances cached may be stale.
        self._url, self._options = url, {**(options or {}), "skip_instance_cache": True}
        made = fsspec.core.url_to_fs(url, **self._options)
        self._fs: Any = made[0]
        self._unsigned = False  # True once no credentials were found, as for a public bucket.
        self._root = str(made[1])
        self._texts: dict[str, bytes] = {}
        self._seen: dict[str, _Look] = {}
        self._bucket = True  # False once the store has reported that the bucket does not exist.

    def path(self, name: str) -> str:
        """See `Files.path`."""
        return self.name + ("" if self.name.endswith("/") else "/") + name

    def why_no_folder(self) -> str:
        """See `Files.why_no_folder`; a store has no folders, but may have buckets."""
        return "" if self._bucket else "there is no such bucket"

    def holds(self, name: str) -> bool:
        """See `Files.holds`; the next `read` uses the bytes that this call read."""
        try:
            self._texts[name] = self.read(name)
        except FileNotFoundError:
            return False
        return True

    def read(self, name: str) -> bytes:
        """See `Files.read`."""
        kept = self._texts.pop(name, None)
        found = self._text([name])[0] if kept is None else kept
        if isinstance(found, Exception):
            _redact(found, self._secrets())
        if isinstance(found, FileNotFoundError):
            code = getattr(found.__cause__, "response", {}).get("Error", {}).get("Code")
            self._bucket = code != "NoSuchBucket"
            raise found
        if isinstance(found, FormatError):
            raise found
        if isinstance(found, BaseException):
            raise self._error_about(found, name) from found
        return found

    def refuse_link(self, name: str) -> None:
        """Does nothing, since a store has no links."""

    def check(self, name: str, size: int) -> None:
        """See `Files.check`."""
        look = self._seen.get(name) or self._looked_at(name)
        if isinstance(look, BaseException):
            raise self._error_about(look, name) from look
        if look.size != size:
            self._seen.pop(name, None)  # Another run may repair it.
            raise DamageError(f"`{self.path(name)}` has {look.size} bytes instead of {size}")
        self._seen[name] = look

    def expect(self, texts: Iterable[str], boxes: Iterable[str]) -> None:
        """Reads small files and looks at large ones, all at once."""
        names = [name for name in texts if name not in self._texts]
        for name, text in zip(names, self._text(names), strict=True):
            if isinstance(text, bytes):  # In other cases, `read` tries again and raises the error.
                self._texts[name] = text
        names = [name for name in boxes if name not in self._seen]
        for name, look in zip(names, self._looks(names), strict=True):
            if isinstance(look, _Look):
                self._seen[name] = look

    def look_again(self, names: list[str]) -> None:
        """See `Files.look_again`; the looks that concurrent readers compare with are kept."""
        for name, look in zip(names, self._looks(names), strict=True):
            if isinstance(look, BaseException):
                raise self._error_about(look, name) from look
            if self._seen.setdefault(name, look) != look:
                self._throw_replaced(name)

    def jobs(self, box: StoredBox, within: Shape, into: Words, verify: bool) -> list[Job]:
        """Returns one job; see `Files.jobs`."""
        return [_Part(self, box, within, into, verify)]

    def run(self, jobs: list[Job], threads: int) -> None:
        """Runs jobs, all ranges of all boxes together, on fsspec's threads, not on `threads`."""
        parts: list[_Part] = []
        for job in jobs:
            if isinstance(job, _Part) and job.files is self:
                parts.append(job)
            else:
                job()
        self._fill(parts)

    def close(self) -> None:
        """Forgets all looks at objects."""
        self._seen.clear()
        self._texts.clear()

    def _fill(self, parts: list[_Part]) -> None:
        pieces = sorted(
            ((part.box.file, piece.start, piece.end), number, piece)
            for number, part in enumerate(parts)
            for piece in part.pieces()
        )
        left = [0] * len(parts)
        for _, number, _ in pieces:
            left[number] += 1
        at = 0
        for blocks in _batches(_merged([place for place, _, _ in pieces])):
            for block, data in zip(blocks, self._exactly(blocks), strict=True):
                while at < len(pieces) and _holds(block, pieces[at][0]):
                    _, number, piece = pieces[at]
                    parts[number].take(piece, data, piece.start - block[1])
                    left[number] -= 1
                    if left[number] == 0:
                        parts[number].finish()
                    at += 1
        assert at == len(pieces)
        self.require_unchanged({part.box.file for part in parts if not part.verify})

    def _exactly(self, blocks: list[_Range]) -> list[bytes]:
        """Returns all bytes of ranges of objects."""
        found = self._ranges(blocks)
        for (name, start, end), data in zip(blocks, found, strict=True):
            path = self.path(name)
            if isinstance(data, BaseException):
                self.require_unchanged([name])
                raise self._error_about(data, name) from data
            if len(data) > end - start:
                raise OSError(
                    errno.EIO,
                    f"the store gives {len(data)} bytes for a range of {end - start}: it does not "
                    "give parts of objects",
                    path,
                )
            if len(data) < end - start:
                self.require_unchanged([name])
                raise DamageError(
                    f"`{path}` ends early: {len(data)} bytes came of the {end - start} from byte "
                    f"{start} on"
                )
        with self._lock:
            self.bytes_read += sum(map(len, found))
        return found

    def _ranges(self, ranges: Sequence[_Range]) -> list[Any]:
        """Returns the bytes of each range, or an error in their place."""
        if not ranges:
            return []
        paths = [self._path_of(name) for name, _, _ in ranges]
        starts, ends = [start for _, start, _ in ranges], [end for _, _, end in ranges]
        found: list[Any]
        try:
            found = self._fs.cat_ranges(paths, starts, ends, on_error="return")
        except Exception as error:  # An error of fsspec itself, for example in a forked process.
            found = [error] * len(paths)
        if any(map(self._has_no_credentials, found)):
            return self._ranges(ranges)
        return [_corrected(each, path) for each, path in zip(found, paths, strict=True)]

    def _text(self, names: list[str]) -> list[bytes | Exception]:
        """Returns all bytes of small files, with one request for each."""
        found = self._ranges([(name, 0, MAX_BYTES + 1) for name in names])
        for number, (name, text) in enumerate(zip(names, found, strict=True)):
            if isinstance(text, OSError) and not isinstance(text, FileNotFoundError):
                look = self._looks([name])[0]  # Stores reject a range of an empty object.
                found[number] = b"" if isinstance(look, _Look) and look.size == 0 else text
            elif isinstance(text, bytes) and len(text) > MAX_BYTES:
                found[number] = FormatError(
                    f"`{self.path(name)}` has more than the {MAX_BYTES} bytes that it may have"
                )
        return found

    def sizes(self) -> dict[str, int]:
        """Returns the size of each object of the folder, by its name."""
        try:
            found = self._fs.find(self._root, detail=True)
        except Exception as error:
            if self._has_no_credentials(error):
                return self.sizes()
            return {}  # For example, an HTTP server that lists nothing.
        begin = len(self._path_of("x")) - 1
        sizes = {path[begin:]: info.get("size") for path, info in found.items()}
        return {name: size for name, size in sizes.items() if name and type(size) is int}

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Returns bytes of an object; `require_unchanged` compares it with the first look."""
        if name not in self._seen:
            self.expect((), [name])
        return self._exactly([(name, start, end)])[0]

    def require_unchanged(self, names: Iterable[str]) -> None:
        """Looks at objects again; raises DamageError if one has changed since the first look."""
        names = list(names)
        for name, look in zip(names, self._looks(names), strict=True):
            before = self._seen.get(name)
            if isinstance(look, BaseException):
                raise self._error_about(look, name) from look
            if before is not None and look != before:
                self._throw_replaced(name)

    def _throw_replaced(self, name: str) -> NoReturn:
        raise DamageError(
            f"`{self.path(name)}` was replaced while it was read: open the checkpoint again"
        )

    def _looks(self, names: list[str]) -> list[_Look | Exception]:
        if len(names) < 2 or not getattr(self._fs, "async_impl", False):
            return [self._looked_at(name) for name in names]
        with ThreadPoolExecutor(min(_AT_ONCE, len(names))) as pool:
            return list(pool.map(self._looked_at, names))

    def _looked_at(self, name: str) -> _Look | Exception:
        path = self._path_of(name)
        try:
            info = self._fs.info(path)
        except Exception as error:
            if self._has_no_credentials(error):
                return self._looked_at(name)
            return _corrected(error, path)  # type: ignore[no-any-return]
        if info.get("type", "file") != "file":
            return FileNotFoundError(errno.ENOENT, "it is a folder", path)
        if type(info.get("size")) is not int:
            return OSError(errno.EIO, "the store does not report its size", path)
        same = {key: value for key, value in info.items() if _IDENTITY.fullmatch(key.lower())}
        return _Look(info["size"], same)

    def _has_no_credentials(self, found: Any) -> bool:
        """Returns whether the request had no credentials; if so, later requests are unsigned."""
        if type(found).__name__ != "NoCredentialsError":
            return False
        with self._lock:
            if not self._unsigned:
                import fsspec

                made = fsspec.core.url_to_fs(self._url, **{**self._options, "anon": True})
                self._fs, self._unsigned = made[0], True
        return True

    def _path_of(self, name: str) -> str:
        if not _NAME.fullmatch(name) or not {".", ".."}.isdisjoint(name.split("/")):
            raise FormatError(f"{name!r} is not the name of a file in a store")
        return f"{self._root.rstrip('/')}/{name}" if self._root else name

    def _error_about(self, error: BaseException, name: str) -> Exception:
        """Returns the error to raise: this package's own, or an OSError that names the object."""
        path = self.path(name)
        _redact(error, self._secrets())
        if isinstance(error, FileNotFoundError):
            return DamageError(f"`{path}` is missing")
        text = " ".join(str(getattr(error, "strerror", None) or error).split())
        text = text or type(error).__name__
        if isinstance(error, PermissionError):
            why = "stores answer so, too, where nothing is and the key may not list"
            if self._unsigned:
                why = "the bucket is not public, and credentials are missing"
            return PermissionError(errno.EACCES, f"the store refuses it: {text} ({why})", path)
        kinds = (TimeoutError, ConnectionError)
        kind = next((kind for kind in kinds if isinstance(error, kind)), OSError)
        return kind(errno.EIO, f"the store failed: {text}", path)


    def _secrets(self) -> list[str]:
        """Returns the strings that no message may contain."""
        signer = getattr(getattr(self._fs, "_s3", None), "_request_signer", None)
        named = [
            *self._options.items(),
            *getattr(getattr(signer, "_credentials", None), "__dict__", {}).items(),
            *((name, os.environ.get(name)) for name in _VARIABLES),
        ]
        return [
            value
            for key, value in named
            if _SECRET.match(key) and key != "access_key"
            if isinstance(value, str) and len(value) >= _RUN
        ]


_VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN")
_Range = tuple[str, int, int]  # The name of an object, the first byte, and the byte after the last.


class _Look(NamedTuple):
    """The metadata that identifies an object in its store."""

    size: int
    same: Mapping[str, Any]


class _Piece(NamedTuple):
    """Bytes of an object, and the elements of an array that they hold.

    Attributes:
        start, end: the range of bytes.
        first: where these elements begin in the array.
        shape: the shape of these elements.
    """

    start: int
    end: int
    first: Shape
    shape: Shape


class _Part:
    """A job that fills an array from a region of a box."""

    def __init__(
        self, files: StoreFiles, box: StoredBox, within: Shape, into: Words, verify: bool
    ) -> None:
        self.files, self.box, self.within, self.into = files, box, within, into
        self.verify = verify
        size = into.itemsize
        self._strides = tuple(size * math.prod(box.shape[d + 1 :]) for d in range(into.ndim))
        self._whole: Words | None = None  # The whole box, if its digest is checked.

    def __call__(self) -> None:
        self.files.run([self], 1)

    def pieces(self) -> Iterator[_Piece]:
        """Yields the ranges of bytes to read; gaps in them are small."""
        shape = self.box.shape if self.verify else self.into.shape
        first = (0,) * len(shape) if self.verify else self.within
        at = self.box.at + sum(n * s for n, s in zip(first, self._strides, strict=True))
        if 0 not in shape:
            yield from _cut(at, (0,) * len(shape), shape, self._strides, self.into.itemsize)

    def take(self, piece: _Piece, data: bytes, offset: int) -> None:
        """Copies the elements of a piece, which begin at byte `offset` of `data`."""
        words = self.into.dtype
        there = np.ndarray(piece.shape, words, data, offset, self._strides)
        ends = zip(piece.first, piece.shape, strict=True)
        here: Any = tuple(slice(first, first + n) for first, n in ends)
        self._target()[(*here, ...)] = there

    def finish(self) -> None:
        """Checks the digest of the box, after all its pieces have been taken."""
        if not self.verify:
            return
        whole = self._target()
        if sha256(whole.reshape(-1).view(np.uint8)).hexdigest() != self.box.sha256:
            raise wrong_digest(self.box, self.files.path(self.box.file))
        if whole is not self.into:
            taken_from(whole, self.within, self.into)
        self._whole = None

    def _target(self) -> Words:
        if not self.verify or (
            self.into.shape == self.box.shape and self.into.flags.c_contiguous
        ):
            return self.into
        if self._whole is None:
            self._whole = np.empty(self.box.shape, self.into.dtype)
        return self._whole


def _cut(
    at: int, first: Shape, shape: Shape, strides: Shape, item: int
) -> Iterator[_Piece]:
    """Divides a region into pieces of at most `_BLOCK` bytes that contain no large gap.

    `at` is the byte where the region begins; `strides` are the strides of its box.
    """
    spans = [item]  # Bytes from first to last element of the last 0, 1, … dimensions.
    small = [True]  # True if the last 0, 1, … dimensions have only small gaps.
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        small.append(small[-1] and (n == 1 or stride - spans[-1] <= _GAP))
        spans.append(spans[-1] + (n - 1) * stride)
    if small[-1] and spans[-1] <= _BLOCK:
        yield _Piece(at, at + spans[-1], first, shape)
        return
    cut = next(d for d, n in enumerate(shape) if n > 1)
    inner, stride = spans[-2 - cut], strides[cut]
    near = small[-2 - cut] and stride - inner <= _GAP
    rows = max(1, (_BLOCK - inner) // stride + 1) if near else 1
    for row in range(0, shape[cut], rows):
        count = min(rows, shape[cut] - row)
        begin = (*first[:cut], first[cut] + row, *first[cut + 1 :])
        part = (*shape[:cut], count, *shape[cut + 1 :])
        yield from _cut(at + row * stride, begin, part, strides, item)


def _merged(ranges: list[_Range]) -> list[_Range]:
    """Merges `ranges`, which are sorted, into few ranges that cover them all."""
    from fsspec.utils import (  # type: ignore[import-untyped, unused-ignore]
        merge_offset_ranges,
    )

    if not ranges:
        return []
    ends: list[int] = []
    for number, (name, _, end) in enumerate(ranges):
        # fsspec before 2026 forgets the end of a range that contains other ranges.
        same = number > 0 and ranges[number - 1][0] == name
        ends.append(max(end, ends[-1]) if same else end)
    names, starts = [name for name, _, _ in ranges], [start for _, start, _ in ranges]
    merged = merge_offset_ranges(names, starts, ends, max_gap=_GAP, max_block=_BLOCK, sort=False)
    return list(zip(*merged, strict=True))


def _batches(blocks: list[_Range]) -> Iterator[list[_Range]]:
    batch: list[_Range] = []
    size = 0
    for block in blocks:
        length = block[2] - block[1]
        if batch and size + length > _BATCH:
            yield batch
            batch, size = [], 0
        batch.append(block)
        size += length
    if batch:
        yield batch


def _holds(block: _Range, place: _Range) -> bool:
    return block[0] == place[0] and block[1] <= place[1] and place[2] <= block[2]


def _redact(error: BaseException | None, secrets: list[str]) -> None:
    """Removes secrets from an error and its causes: a store may repeat a request."""
    while error is not None and secrets:
        error.args = tuple(
            _hide_secrets(each, secrets) if isinstance(each, str) else each for each in error.args
        )
        if isinstance(error, OSError) and isinstance(error.strerror, str):
            error.strerror = _hide_secrets(error.strerror, secrets)
        error = error.__cause__ or error.__context__


def _hide_secrets(text: str, secrets: list[str]) -> str:
    shown, at = "", 0
    while at < len(text):
        end = at + _RUN
        while end <= len(text) and any(text[at:end] in secret for secret in secrets):
            end += 1
        if end == at + _RUN:
            shown, at = shown + text[at], at + 1
        else:
            shown, at = shown.removesuffix("***") + "***", end - 1
    return shown


def _corrected(found: Any, path: str) -> Any:
    """Returns the store's answer; corrects HTTP errors that fsspec reports as missing files."""
    if isinstance(found, FileNotFoundError):
        status = getattr(found.__cause__, "status", None)
        if status in (401, 403):
            return PermissionError(errno.EACCES, f"HTTP status {status}", path)
        if status is not None and status not in (404, 410):
            return OSError(errno.EIO, f"HTTP status {status}", path)
    return bytes(found) if isinstance(found, bytearray | memoryview) else found


def _require_version(kind: str) -> None:
    """Rejects very old versions of s3fs, which pip chooses if boto3 is requested, too."""
    if kind not in _S3:
        return
    from importlib import metadata

    try:
        found = metadata.version("s3fs")
    except metadata.PackageNotFoundError:
        raise ImportError('reading from S3 needs s3fs: pip install "shardinit[s3]"') from None
    if int(found.split(".")[0]) < 2024:
        raise ImportError(f'there is s3fs {found}, which is too old: pip install "s3fs>=2024.6"')
