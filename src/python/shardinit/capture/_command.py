"""Implements the command `shardinit-capture`."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import sys
import warnings
from typing import Any

from .. import __version__
from .._errors import CaptureError, CaptureWarning, LibraryError, ShardinitError
from . import Captured
from ._verify import Verified

_DIFFERENT = 1
_WRONG = 2  # As for `shardinit`: the command line or an input is wrong.
_CONFLICT = 4
_FAULT = 70


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    options = _parser().parse_args(arguments)
    show = warnings.showwarning

    def warn(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if issubclass(category, CaptureWarning):
            print(f"shardinit-capture: warning: {message}", file=sys.stderr)
        else:
            show(message, category, *place)

    with warnings.catch_warnings():  # Also restores the function that shows warnings.
        warnings.simplefilter("always", CaptureWarning)
        warnings.showwarning = warn  # type: ignore[assignment]
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    try:
        captured = _capture(options)
        if options.output == "-":
            if captured.tables:
                raise CaptureError(
                    "the spec takes elements from files beside it, and standard output has no place"
                    " for them: give -o a name"
                )
            sys.stdout.write(captured.text)
        else:
            captured.write(options.output, force=options.force)
            _print_note(options, f"{options.output}: {len(captured.tensors):,} tensors")
        return 0 if options.verify == "none" else _verify(captured, options)
    except CaptureError as error:
        return _complain(str(error), _FAULT if error.is_fault else _WRONG)
    except (ShardinitError, ValueError) as error:
        return _complain(str(error), _WRONG if not isinstance(error, LibraryError) else 3)
    except FileExistsError:
        return _complain(
            f"`{options.output}` exists and is not a spec that this command wrote\n"
            "  hint: choose another name for `-o`, or replace it with `--force`",
            _CONFLICT,
        )
    except OSError as error:
        # Trying again does not help a user without permission to write there.
        is_lasting = isinstance(error, (PermissionError, NotADirectoryError))
        return _complain(
            f"cannot write {options.output}: {error.strerror}", _WRONG if is_lasting else 3
        )


def _verify(captured: Captured, options: argparse.Namespace) -> int:
    try:
        verified = captured.verify(options.verify)
    except (CaptureError, LibraryError) as error:
        if options.verify == "all":
            raise
        verified = Verified((), f"not verified: {error}")
    if not verified.tensors:
        _print_note(options, f"{options.output}: {verified.note}")
    elif options.verify == "all" or options.verbose or not verified.good:
        print(verified.table(), end="", file=sys.stderr if options.output == "-" else sys.stdout)
    else:
        summary = f"compared with the constructor: {verified.summary()}"
        _print_note(options, f"{options.output}: {summary}")
    return 0 if verified.good else _DIFFERENT


def _print_note(options: argparse.Namespace, text: str) -> None:
    if not options.quiet:
        print(text, file=sys.stderr)


def _complain(text: str, status: int) -> int:
    print(f"shardinit-capture: error: {text}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shardinit-capture", description="Makes a spec from a constructor of PyTorch or JAX."
    )
    parser.add_argument("--version", action="version", version=f"shardinit-capture {__version__}")
    sources = parser.add_subparsers(dest="source", required=True, metavar="torch|hf|jax")
    torch = sources.add_parser("torch", help="a class or function that makes an nn.Module")
    jax = sources.add_parser("jax", help="a class or function that makes a pytree of arrays")
    for called in (torch, jax):
        called.add_argument("callable", metavar="MODULE:CALLABLE", help="as in `my.models:Llama`")
        called.add_argument(
            "--args",
            default="{}",
            metavar="JSON",
            help="an object of keyword arguments, or a list of positional ones",
        )
    hf = sources.add_parser("hf", help="a config.json of Hugging Face's Transformers")
    hf.add_argument("config", metavar="CONFIG",
                    help="the config.json, its folder, or `-` for standard input")  # fmt: skip
    for source in (torch, hf, jax):
        source.add_argument("-o", "--output", default="-", metavar="FILE",
                            help="where the spec goes; default: standard output, `-`")  # fmt: skip
        source.add_argument("--force", action="store_true",
                            help="replace a file, whoever wrote it")  # fmt: skip
        loudness = source.add_mutually_exclusive_group()
        loudness.add_argument("-q", "--quiet", action="store_true",
                              help="say nothing of what went well")  # fmt: skip
        loudness.add_argument("-v", "--verbose", action="store_true",
                              help="show each tensor that was compared")  # fmt: skip
        source.add_argument("--name", help="name of the spec (default: the class's name)")
        source.add_argument("--seed", type=_seed, default=0, help="of the spec (default: 0)")
        source.add_argument("--engine", default="philox4x32",
                            help="of the spec; torch_cpu has PyTorch's bits, jax_threefry"
                            " JAX's numbers")  # fmt: skip
        source.add_argument("--verify", choices=["sample", "all", "none"], default="sample",
                            help="make the model and compare its tensors with the spec's:"
                            " some of each kind if it is not large, all, or none"
                            " (default: sample)")  # fmt: skip
    for source in (torch, hf):
        source.add_argument("--dtype", help="PyTorch's default while the constructor runs: bf16 …")
        source.add_argument(
            "--buffers",
            choices=["persistent", "all"],
            default="persistent",
            help="buffers of the state dict, or all (default: persistent)",
        )
    return parser


def _seed(text: str) -> int:
    seed = int(text)
    if not -(2**63) <= seed < 2**64:
        raise argparse.ArgumentTypeError(f"{text} is not in -2^63 … 2^64 - 1")
    return seed


def _capture(options: argparse.Namespace) -> Any:
    from . import hf, torch

    names = ("name", "seed", "engine", *(() if options.source == "jax" else ("dtype", "buffers")))
    common = {name: getattr(options, name) for name in names}
    if options.source == "hf":
        path = options.config
        return hf(os.path.join(path, "config.json") if os.path.isdir(path) else path, **common)
    try:
        given = json.loads(options.args)
    except ValueError as error:
        raise CaptureError(f"--args is not JSON: {error}") from None
    if not isinstance(given, (dict, list)):
        raise CaptureError("--args is neither an object nor a list")
    make = _find(options.callable)
    positional = given if isinstance(given, list) else []
    named = given if isinstance(given, dict) else {}
    if options.source == "jax":
        from ._jax_capture import capture

        return capture(make, positional, named, **common)
    try:
        inspect.signature(make).bind(*positional, **named)
    except TypeError as error:
        raise CaptureError(f"`{options.callable}` cannot be called with --args: {error}") from None
    except ValueError:
        pass  # Some callables have no signature.
    return torch(lambda: make(*positional, **named), **common)


def _find(text: str) -> Any:
    written, colon, names = text.partition(":")
    module = written.lstrip("./")  # Importing a relative name needs a package.
    if not colon or not module or not names:
        raise CaptureError(f"`{text}` is not MODULE:CALLABLE, as in `my.models:Llama`")
    if "" not in sys.path:
        sys.path.insert(0, "")  # Find modules as `python -m` does.
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        hint = ""
        if module.endswith(".py"):
            name = module.removesuffix(".py").replace("/", ".")
            hint = f"\n  hint: name the module, not its file: `{name}:{names}`"
        raise CaptureError(f"cannot import `{written}`: {error}{hint}") from None
    for name in names.split("."):
        if not hasattr(found, name):
            raise CaptureError(f"`{module}` has no `{names}`")
        found = getattr(found, name)
    if not callable(found):
        raise CaptureError(f"`{text}` cannot be called")
    return found
