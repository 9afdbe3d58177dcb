"""Reads a Hugging Face config.json as `shardinit import` does, and finds its class."""

from __future__ import annotations

import json
import pathlib
import sys
import warnings
from typing import Any

from .._errors import CaptureError, CaptureWarning
from .._result_file import require_local

# In this order, the first class for a family is the default of `shardinit import`.
_CLASSES = (
    "MODEL_FOR_PRETRAINING_MAPPING",
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "MODEL_MAPPING",
)


def load(path: str) -> Any:
    """Returns the Transformers configuration; raises CaptureError, which names the key."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    require_local(path)
    source = "standard input" if path == "-" else path
    fields = _read(path, source)
    if not isinstance(fields, dict) or not isinstance(fields.get("model_type"), str):
        raise CaptureError(f"{source} has no `model_type`: it is not a Hugging Face config")
    model_type = fields.pop("model_type")
    if model_type not in CONFIG_MAPPING:
        why = f"Transformers does not know the model type `{model_type}` of {source}"
        raise CaptureError(why)
    dtype = _agreed_dtype(fields, source)
    if dtype is not None:
        fields["dtype"] = dtype
    try:
        return CONFIG_MAPPING[model_type](**fields)
    except Exception as error:  # Each class checks its fields in its own way.
        why = " ".join(str(error).split())
        raise CaptureError(f"Transformers refuses {source}: {why}") from None


def class_of(config: Any) -> Any:
    """Returns the class of the model: the first of `architectures`, or the one with a head."""
    import transformers

    names = getattr(config, "architectures", None) or []
    names = [names] if isinstance(names, str) else names
    if not names:
        for name in _CLASSES:
            mapping = getattr(transformers, name)
            if type(config) in mapping:
                found = mapping[type(config)]
                return found[0] if isinstance(found, tuple) else found
        raise CaptureError(f"Transformers has no class of a model for {type(config).__name__}")
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise CaptureError(f"`architectures` must be a list of names, but is {names!r}")
    if len(names) > 1:
        warnings.warn(
            f"`architectures` names {len(names)} classes; the first one,"
            f" `{names[0]}`, is used",
            CaptureWarning,
            stacklevel=3,
        )
    found = getattr(transformers, names[0], None)
    if found is None:
        wanted = f"`{names[0]}`, the config's architecture"
        raise CaptureError(f"Transformers {transformers.__version__} has no class {wanted}")
    if not hasattr(found, "_from_config"):
        raise CaptureError(f"`{names[0]}`, the config's architecture, is not a class of a model")
    return found


def _read(path: str, source: str) -> Any:
    try:
        text = sys.stdin.read() if path == "-" else pathlib.Path(path).read_text("utf-8")
    except OSError as error:
        raise CaptureError(f"cannot read {source}: {error.strerror}") from None
    except ValueError as error:
        raise CaptureError(f"{source} is not JSON: {error}") from None
    if text.startswith("version https://git-lfs.github.com/spec/"):
        raise CaptureError(
            f"{source} is a pointer of Git LFS, not the file itself, which was not downloaded\n"
            "  hint: run `git lfs pull` in its folder"
        )
    try:
        return json.loads(text.removeprefix("\ufeff"), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise CaptureError(f"{source} is not JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> Any:
    """Returns a JSON object, or the float that Transformers 5 writes as `{"__float__": …}`."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key `{twice}` is given twice")
    tag = fields.get("__float__")
    if len(fields) == 1 and tag in ("NaN", "Infinity", "-Infinity"):
        return float(tag)
    return fields


def _agreed_dtype(fields: dict[str, Any], source: str) -> str | None:
    """Removes both names of the element type, which must agree, and returns the type."""
    import torch

    found: dict[str, str] = {}
    for key in ("dtype", "torch_dtype"):
        value = fields.pop(key, None)
        if isinstance(value, dict) and list(value) == [""]:
            value = value[""]  # Composite models write this.
        if value is None:
            continue
        name = value.removeprefix("torch.") if isinstance(value, str) else ""
        if not isinstance(getattr(torch, name, None), torch.dtype):
            raise CaptureError(f"`{key}` of {source} must name a type, but is {value!r}")
        found[key] = name
    if len({getattr(torch, name) for name in found.values()}) > 1:
        said = ", but ".join(f"`{key}` is `{name}`" for key, name in found.items())
        raise CaptureError(f"{said} in {source}: remove the one that is wrong")
    return next(iter(found.values()), None)
