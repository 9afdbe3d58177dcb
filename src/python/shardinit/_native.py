"""Calls libshardinit through ctypes: finds it, declares its functions, and raises its errors.

The interface is described in ``shardinit.h`` and libshardinit(3). ctypes releases the GIL while a
function runs.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.metadata
import os
import shutil
import subprocess
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from ._errors import LibraryError, SpecError

ABI_VERSION = 1
NAME = f"libshardinit.so.{ABI_VERSION}"

_lock = threading.Lock()
_library: ctypes.CDLL | None = None

_Strings = ctypes.POINTER(ctypes.c_char_p)
_Numbers = ctypes.POINTER(ctypes.c_int64)


ReadRange = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_char),
)


class Files(ctypes.Structure):
    """``shardinit_files``."""

    _fields_ = (
        ("names", _Strings),
        ("sizes", _Numbers),
        ("count", ctypes.c_size_t),
        ("read_range", ReadRange),
        ("context", ctypes.c_void_p),
    )


class Source(ctypes.Structure):
    """``shardinit_source``."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("path", ctypes.c_char_p),
        ("text", ctypes.c_char_p),
        ("text_size", ctypes.c_size_t),
        ("sets", _Strings),
        ("set_count", ctypes.c_size_t),
        ("mesh", ctypes.c_char_p),
        ("layout", ctypes.c_char_p),
        ("is_plan", ctypes.c_int32),
        ("is_folder", ctypes.c_int32),
        ("files", ctypes.POINTER(Files)),
        ("is_manifest", ctypes.c_int32),
        ("is_record", ctypes.c_int32),
    )


class Info(ctypes.Structure):
    """``shardinit_info``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("engine", ctypes.c_char_p),
        ("seed", ctypes.c_uint64),
        ("parameters", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("tensor_count", ctypes.c_int64),
        ("mesh_dimensions", ctypes.c_int32),
        ("mesh_axes", _Strings),
        ("mesh_shape", _Numbers),
        ("warnings", ctypes.c_char_p),
        ("plan_sha256", ctypes.c_char_p),
        ("replicas", ctypes.c_char_p),
        ("format", ctypes.c_char_p),
        ("file_count", ctypes.c_int64),
        ("file_names", _Strings),
        ("file_sizes", _Numbers),
        ("device_ids", _Numbers),
        ("device_slices", _Numbers),
    )


class Tensor(ctypes.Structure):
    """``shardinit_tensor``."""

    _fields_ = (
        ("path", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("element_bytes", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("shape", _Numbers),
        ("elements", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("partition", _Strings),
        ("extended", ctypes.c_int32),
    )


class Listed(ctypes.Structure):
    """``shardinit_listed``."""

    _fields_ = (
        ("offset", _Numbers),
        ("shape", _Numbers),
        ("file", ctypes.c_int64),
        ("place", ctypes.c_int64),
        ("sha256", ctypes.c_void_p),
    )


_Handle, _Int = ctypes.c_void_p, ctypes.c_int64
_Message = ctypes.POINTER(ctypes.c_void_p)
_FUNCTIONS = {
    "open": (ctypes.c_int, ctypes.POINTER(Source), ctypes.POINTER(_Handle), _Message),
    "close": (None, _Handle),
    "describe": (ctypes.POINTER(Info), _Handle),
    "tensor_at": (ctypes.POINTER(Tensor), _Handle, ctypes.c_int64),
    "fill": (ctypes.c_int, _Handle, _Int, _Numbers, _Numbers, ctypes.c_void_p, ctypes.c_size_t,
             ctypes.c_int32, _Message),
    "fill_cuda": (ctypes.c_int, _Handle, _Int, _Numbers, _Numbers, ctypes.c_void_p,
                  ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32), _Message),
    "boxes": (ctypes.c_int, _Handle, _Int, _Int, _Numbers, _Numbers, _Int, _Numbers, _Message),
    "listed_at": (ctypes.c_int32, _Handle, _Int, _Int, ctypes.POINTER(Listed)),
    "add_receipt": (ctypes.c_int, _Handle, _Int, ctypes.c_char_p, ctypes.c_size_t, _Message),
    "free": (None, ctypes.c_void_p),
    "version": (ctypes.c_char_p,),
    "abi_version": (ctypes.c_int32,),
}  # fmt: skip


def library() -> ctypes.CDLL:
    """Returns the library, loaded on first use; raises LibraryError if no suitable one is found.

    The order is: the library that ``SHARDINIT_LIBRARY`` names, the one in this package's wheel, one
    next to the program `shardinit` in ``PATH``, one that the system's loader finds.
    """
    global _library
    with _lock:
        if _library is None:
            _library = _load()
        return _library


def _load() -> ctypes.CDLL:
    tried = []
    for path in _candidates():
        try:
            loaded = ctypes.CDLL(path)
        except OSError as error:
            tried.append(f"  {error}")
            continue
        _declare(loaded, path)
        return loaded
    raise LibraryError(
        f"{NAME} cannot be loaded:\n"
        + "\n".join(tried)
        + "\n  hint: install shardinit's wheel, or build it (`sh src/install.sh`), or name "
        "the library's file in SHARDINIT_LIBRARY"
    )


def _candidates() -> Iterator[str]:
    named = os.environ.get("SHARDINIT_LIBRARY")
    if named:  # A user who names a library does not want another one.
        yield os.path.abspath(named)
        return
    yield from glob.glob(os.path.join(glob.escape(os.path.dirname(__file__)), NAME))
    program = shutil.which("shardinit")
    if program:
        folder = os.path.dirname(os.path.realpath(program))
        for pattern in ("../lib", "../lib64", "../lib/*-linux-gnu", "."):
            yield from sorted(glob.glob(os.path.join(glob.escape(folder), pattern, NAME)))
    yield NAME


def program() -> str:
    """Returns the program ``shardinit``, from the library's installation if possible.

    The order is: next to the library that ``SHARDINIT_LIBRARY`` names, in this package's wheel, in
    PATH.
    """
    named = os.environ.get("SHARDINIT_LIBRARY")
    if named:
        folder = os.path.dirname(os.path.realpath(named))
        places = [os.path.join(folder, place) for place in (".", "../bin", "../../bin")]
        if found := shutil.which("shardinit", path=os.pathsep.join(places)):
            return found
    if found := _installed_program() or shutil.which("shardinit"):
        return found
    raise LibraryError(
        "the program `shardinit` is not in PATH\n"
        "  hint: install shardinit's wheel, or build it (`sh src/install.sh`), or add its folder "
        "to PATH"
    )


def _installed_program() -> str | None:
    """Returns the program that was installed with this package; it need not be in PATH."""
    if not os.path.exists(os.path.join(os.path.dirname(__file__), NAME)):
        return None  # A checkout on PYTHONPATH is unrelated to an installed wheel.
    files = importlib.metadata.files("shardinit") or ()
    programs = (os.path.realpath(file.locate()) for file in files if file.name == "shardinit")
    return next((path for path in programs if os.access(path, os.X_OK)), None)


def run(*arguments: str) -> str:
    """Runs ``shardinit`` and returns its output; raises SpecError with its message."""
    done = subprocess.run(
        [program(), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode != 0:
        text = done.stderr.removeprefix("shardinit: error: ").rstrip("\n")
        raise SpecError(text or f"`shardinit {arguments[0]}` failed", done.returncode)
    if done.stderr:
        warnings.warn(done.stderr.rstrip("\n"), stacklevel=5)
    return done.stdout


def _declare(loaded: ctypes.CDLL, path: str) -> None:
    for name, (result, *arguments) in _FUNCTIONS.items():
        try:
            function = getattr(loaded, f"shardinit_{name}")
        except AttributeError:
            raise LibraryError(f"`{path}` is not {NAME}: it has no shardinit_{name}") from None
        function.restype, function.argtypes = result, arguments
    version = loaded.shardinit_abi_version()
    if version != ABI_VERSION:
        raise LibraryError(
            f"`{path}` has interface version {version}; this package needs {ABI_VERSION}\n"
            "  hint: install the library and the package from the same source"
        )


def call(name: str, *arguments: Any) -> None:
    """Calls a function of the library; raises SpecError with its message."""
    message, text = ctypes.c_void_p(), ""
    status = getattr(library(), f"shardinit_{name}")(*arguments, ctypes.byref(message))
    if message.value is not None:
        text = ctypes.string_at(message.value).decode(errors="replace")
        library().shardinit_free(message)
    if status != 0:
        text = text.removeprefix("shardinit: error: ").rstrip("\n")
        raise SpecError(text or "out of memory", status)
