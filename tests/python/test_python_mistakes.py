"""Tests the exact error messages of the Python package for wrong kinds of input, and its version."""

import copy
import gc
import pickle
import re

import numpy as np
import pytest

from clients import client_of, gen_ok
from support import run_json

import shardinit

SPEC = """
shardinit: 1
name: small
dtype: f32
modules:
  weight: {shape: [4, 4], init: ones}
  bias: {shape: [4], init: zeros}
"""


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "x.yaml").write_text(SPEC)
    return tmp_path / "x.yaml"


def raised(error, call, *arguments, **options):
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    return str(caught.value)


def test_error_explains_a_spec_given_instead_of_a_checkpoint(spec):
    client_of("torch")
    client_of("jax")
    import torch

    no = shardinit.NotACheckpointError
    for call, instead in (
        (lambda: shardinit.open(spec), "shardinit.open_spec"),
        (lambda: shardinit.torch.load_into(torch.nn.Linear(4, 4), spec), "shardinit.torch.init_"),
        (lambda: shardinit.torch.load_state_dict(spec), "shardinit.torch.init_"),
        (lambda: shardinit.torch.StorageReader(spec), "shardinit.open_spec"),
        (lambda: shardinit.jax.load(spec), "shardinit.jax.init_sharded"),
        (lambda: shardinit.jax.fill({}, spec), "shardinit.jax.init_sharded"),
    ):
        assert raised(no, call) == (
            f"`{spec}` is a spec, not a checkpoint: {instead}() takes it; or write a checkpoint "
            f"with `shardinit gen {spec} -o DIR`"
        )
    for path in (spec.parent / "no.yaml", spec.parent / "no"):
        assert raised(no, shardinit.open, path) == (
            f"`{path}` is not a checkpoint: there is no such folder"
        )
    (spec.parent / "notes").write_text("")
    assert raised(no, shardinit.open, spec.parent / "notes").startswith(
        f"`{spec.parent / 'notes'}` is not a checkpoint, which is the folder that "
        "`shardinit gen` writes\n  note: "
    )
    (spec.parent / "model.bin").write_text("")
    assert raised(shardinit.FormatError, shardinit.open, spec.parent / "model.bin") == (
        f"cannot read `{spec.parent / 'model.bin'}` as a file of PyTorch: it is too short"
    )
    (spec.parent / "model.bin").unlink()
    assert "it has no manifest.json (which is written last" in raised(no, shardinit.open, spec.parent)
    assert raised(TypeError, shardinit.torch.load_state_dict, {"a": 1}) == (
        "a checkpoint is a folder, or an open checkpoint or spec, not dict"
    )


def test_error_explains_a_checkpoint_given_instead_of_a_spec(spec):
    client_of("torch")
    client_of("jax")
    import torch

    model = torch.nn.Linear(4, 4)
    out = gen_ok(SPEC, spec.parent)
    opened = shardinit.open(out)
    for call, instead in (
        (lambda it: shardinit.torch.init_(model, it), "shardinit.torch.load_into"),
        (shardinit.jax.init_sharded, "shardinit.jax.load"),
        (lambda it: shardinit.generate(it, "weight"), "shardinit.open"),
    ):
        wanted = f"`{out}` is a checkpoint, not a spec: {instead}() takes it"
        assert raised(shardinit.SpecError, call, out) == wanted
        assert raised(TypeError, call, opened) == wanted
    assert raised(shardinit.SpecError, shardinit.open_spec, out) == (
        f"`{out}` is a checkpoint, not a spec: shardinit.open() takes it"
    )
    assert raised(shardinit.SpecError, shardinit.open_spec, spec.parent) == (
        f"`{spec.parent}` is a folder, not a spec, which is a YAML file"
    )
    assert raised(TypeError, shardinit.generate, 7, "weight") == (
        "a spec is a YAML file or an open spec, not int"
    )
    # If `text` is given, the path only names the spec and the folder for includes.
    assert shardinit.open_spec(out, text=SPEC).name == "small"


def test_torch_functions_reject_what_is_not_a_model(spec):
    client_of("torch")
    import torch

    assert raised(TypeError, shardinit.torch.init_, "x", spec) == (
        "init_() fills a torch.nn.Module, its first argument, not str; the spec is the second: "
        "init_(model, SPEC)"
    )
    assert raised(TypeError, shardinit.torch.load_into, {}, spec) == (
        "load_into() fills a torch.nn.Module, its first argument, not dict"
    )
    lazy = torch.nn.LazyLinear(4)
    error = shardinit.MismatchError
    assert "  mismatching (2):\n    weight: is not initialized: run the model once" in raised(
        error, shardinit.torch.init_, lazy, spec
    )


def test_tensors_left_on_meta_are_reported(spec):
    client_of("torch")
    import torch

    model = torch.nn.Linear(4, 4, device="meta")
    model.register_buffer("table", torch.empty(3, device="meta"), persistent=False)
    model.more = torch.nn.Linear(4, 4, device="meta")
    result = shardinit.torch.init_(model, spec, strict=False)
    missing, unexpected = result  # unpacks as a pair, like PyTorch's result
    assert (missing, unexpected) == (["more.weight", "more.bias", "table"], [])
    assert result.on_meta == ["table", "more.weight", "more.bias"]
    assert repr(result) == (
        "LoadResult(missing_keys=['more.weight', 'more.bias', 'table'], unexpected_keys=[], "
        "on_meta=['table', 'more.weight', 'more.bias'])"
    )


def test_out_of_another_dtype_is_rejected(spec):
    """`out` with the right size but another type is rejected, since it would hold wrong values."""
    torch, jax = client_of("torch"), client_of("jax")
    for opened in (shardinit.open_spec(spec), shardinit.open(gen_ok(SPEC, spec.parent))):
        for dtype in (">f4", "i4", ">u4", "S4", "V4", "U1"):
            assert "part of `weight` is f32 [4, 4]: `out` is float32 or, for the bits, uint32" in raised(
                ValueError, opened.read, "weight", out=np.zeros((4, 4), dtype))
        assert "elements of `out` may lie in the same memory: its strides are (0, 4)" in raised(
            ValueError, opened.read, "weight", out=np.lib.stride_tricks.as_strided(np.zeros(4, "f4"), (4, 4), (0, 4)))
        for out, kind in ((torch.zeros(4, 4), "torch.Tensor"), (jax.numpy.zeros((4, 4)), "ArrayImpl"), ([], "list")):
            message = raised(TypeError, opened.read, "weight", out=out)
            assert message.startswith("`out` is a numpy.ndarray, not ") and f"{kind}: read" in message
        tensor = torch.zeros(4, 4)
        assert opened.read("weight", out=tensor.numpy()).all() and tensor.bool().all()


def test_copies_are_independent_of_their_original(spec, capfd):
    """Closing a copy leaves the original usable, and a copy outlives its original; neither can be pickled."""
    for made in (shardinit.open_spec(spec), shardinit.open(gen_ok(SPEC, spec.parent))):
        for copied in (copy.copy(made), copy.deepcopy({"spec": made})["spec"]):
            assert type(copied) is type(made) and copied is not made
            copied.close()
            assert made.read("weight").all()
        made.close()
        assert made.read("weight").all() if made.noun == "checkpoint" else True
        for protocol in (0, 2, pickle.HIGHEST_PROTOCOL):
            assert raised(TypeError, pickle.dumps, made, protocol) == (
                f"a {made.noun} that is open cannot be pickled, since what it stands for may be another where it is "
                "loaded: pickle its path, and open it there")
        copied = copy.copy(shardinit.open_spec(spec))
        gc.collect()
        assert copied.read("weight").all()
    assert capfd.readouterr().err == ""


# ---- The version.


def test_program_library_and_package_have_one_version():
    """Program, library and package have one version. test_wheel.py checks installed versions."""
    version = run_json("--version")["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert shardinit.__version__ == version
    assert shardinit.open_spec(text=SPEC).library_version == version
