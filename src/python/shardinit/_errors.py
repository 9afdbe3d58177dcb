"""The exceptions of this package, for folders, bytes in them, specs and requests."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class ShardinitError(Exception):
    """Base class of every error that this package itself raises.

    Errors can be pickled, so they arrive complete from another process.
    """

    def __reduce__(self) -> Any:  # Constructors of subclasses do not take the message.
        return _loaded, (type(self), self.args, dict(self.__dict__))


def _loaded(kind: type[ShardinitError], args: tuple[Any, ...], state: Any) -> ShardinitError:
    made = kind.__new__(kind, *args)
    made.__dict__.update(state)
    return made


class NotACheckpointError(ShardinitError):
    """The folder is not a complete checkpoint or export, or an export lacks requested facts."""


class FormatError(ShardinitError):
    """A file breaks its format's rules, has another version, or is not a program of shardinit."""


class DamageError(ShardinitError):
    """A file is missing, has another size, was replaced, or its bytes do not match their digest."""


class LibraryError(ShardinitError):
    """libshardinit, which reads and generates values, is missing or does not fit this package.

    Also raised if the program ``shardinit`` is not found, which `shardinit.jax.run` and
    `Captured.verify` need.
    """


class SpecError(ShardinitError):
    """A spec is invalid, or cannot be opened; the text is what ``shardinit validate`` prints.

    Attributes:
        code: the exit status of the program for this error: 2 for an invalid spec, 3 if another
            attempt may succeed, 70 for a bug in shardinit.
    """

    def __init__(self, text: str, code: int) -> None:
        self.code = code
        super().__init__(text)


class UnknownTensorError(ShardinitError, KeyError):
    """The checkpoint or spec has no tensor with this path; also a ``KeyError``."""

    def __init__(self, path: object, known: Iterable[str], noun: str = "checkpoint") -> None:
        close = difflib.get_close_matches(path, known, n=1) if isinstance(path, str) else []
        hint = f"; did you mean `{close[0]}`?" if close else ""
        super().__init__(f"the {noun} has no tensor `{path}`{hint}")

    def __str__(self) -> str:  # A KeyError would show the message's repr.
        return str(self.args[0])


class MismatchError(ShardinitError):
    """The model or tree to fill and the checkpoint or spec do not have the same tensors.

    Attributes:
        missing: requested paths that the checkpoint does not have.
        unexpected: paths of the checkpoint that were not requested.
        mismatching: path → what differs, as text.
    """

    def __init__(
        self,
        what: str,
        missing: Iterable[str] = (),
        unexpected: Iterable[str] = (),
        mismatching: dict[str, str] | None = None,
        hint: str = "",
        noun: str = "checkpoint",
    ) -> None:
        self.missing = list(missing)
        self.unexpected = list(unexpected)
        self.mismatching = dict(mismatching or {})
        lines = [what]
        for title, paths in (
            (f"missing from the {noun}", self.missing),
            (f"unexpected in the {noun}", self.unexpected),
        ):
            if paths:
                lines.append(f"  {title} ({len(paths)}):")
                lines += [f"    {path}" for path in paths]
        if self.mismatching:
            lines.append(f"  mismatching ({len(self.mismatching)}):")
            lines += [f"    {path}: {why}" for path, why in self.mismatching.items()]
        if hint:
            lines.append(f"  hint: {hint}")
        super().__init__("\n".join(lines))

    def with_hint(self, hint: str) -> MismatchError:
        """Returns the same error, adding `hint` if it has none."""
        text = str(self)
        made = MismatchError(text if "\n  hint: " in text else f"{text}\n  hint: {hint}")
        made.__dict__.update(self.__dict__)
        return made


class CaptureError(ShardinitError):
    """A constructor cannot be represented by a spec.

    Attributes:
        problems: path → why a spec cannot express its values, with operation and line.
        is_fault: whether shardinit failed, rather than the constructor.
    """

    def __init__(
        self, what: str, problems: dict[str, str] | None = None, *, is_fault: bool = False
    ) -> None:
        self.problems = dict(problems or {})
        self.is_fault = is_fault
        lines = [f"  {path}: {why}" for path, why in self.problems.items()]
        super().__init__("\n".join([what, *lines]))


class CaptureWarning(UserWarning):
    """A constructor does something that a spec cannot express."""
