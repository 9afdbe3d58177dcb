"""Checkpoints, exports and specs as mappings of tensors; specs from mappings; how objects are displayed; and which
objects can be sent to other processes."""

import collections
import html
import multiprocessing
import pickle
import re

import numpy as np
import pytest
import yaml
from hypothesis import given, settings, strategies as st

from clients import bits_of, client_of, gen_ok
from support import AWKWARD, ROOT, TINY, run_ok

import shardinit

SMALL = """
shardinit: 1
name: small
dtype: f32
modules:
  layers: {repeat: {layer: 12}, weight: {shape: [6, 4], init: {normal: {std: 0.1}}}}
  scale: {shape: [], init: ones}
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    out = gen_ok(SMALL, folder)
    run_ok("export", out, "--to", "safetensors", "-o", folder / "export")
    return {"checkpoint": out, "export": folder / "export", "spec": folder / "spec.yaml"}


@pytest.fixture(params=["checkpoint", "export", "spec"])
def source(request, folders):
    path = folders[request.param]
    return shardinit.open_spec(path) if request.param == "spec" else shardinit.open(path)


def raised(error, call, *arguments, **options):
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    return str(caught.value)


# ---- Mappings of tensors.


def test_sources_are_mappings(source):
    paths = list(source.tensors)
    assert isinstance(source, collections.abc.Mapping) and len(source) == 13 and bool(source)
    assert list(source) == list(source.keys()) == paths == [path for path, _ in source.items()]
    assert "scale" in source and "nope" not in source and 3 not in source and "scale" in source.keys()
    assert source.keys() & {"scale", "nope"} == {"scale"}
    assert source.get("nope") is None and source.get("scale").path == "scale"
    assert [view.path for view in source.values()] == paths
    assert source == source and source != shardinit.open_spec(text=SMALL) and len({source, source}) == 1
    assert "did you mean `scale`?" in raised(KeyError, lambda: source["scales"])
    with pytest.raises(TypeError):
        source["scale"] = 1
    with pytest.raises(TypeError):
        del source["scale"]


def test_tensor_view_reads_the_requested_slice(source):
    view = source["layers.3.weight"]
    whole = source.read("layers.3.weight")
    assert (view.shape, view.dtype, view.ndim, view.size, view.nbytes, len(view)) == ((6, 4), np.float32, 2, 24, 96, 6)
    assert (view.source, view.path, view.info) == (source, "layers.3.weight", source.info("layers.3.weight"))
    for part in (slice(1, 3), (2, 3), (..., 0), -1, (slice(None), slice(2)), ()):
        assert np.array_equal(bits_of(view[part]), bits_of(whole[part]))
    assert np.array_equal(view, whole) and np.array_equal(np.stack(list(view)), whole)
    assert np.asarray(view, np.float64).dtype == np.float64 and source["scale"][()] == 1
    assert repr(view) == "<shardinit.TensorView 'layers.3.weight': f32 [6, 4]>"
    assert raised(TypeError, len, source["scale"]) == "`scale` is a scalar, which has no length"
    assert "neither true nor false" in raised(TypeError, bool, view)
    assert "always a copy" in raised(ValueError, np.asarray, view, copy=False)
    assert "has step 2" in raised(ValueError, lambda: view[::2])
    assert view.info.shape == view.info.global_shape == (6, 4)


def test_tensor_views_are_lazy(folders):
    checkpoint = shardinit.open(folders["checkpoint"])
    views = dict(checkpoint)
    assert sorted(views) == sorted(checkpoint) and list(checkpoint.items()) and checkpoint.bytes_read == 0
    assert views["layers.0.weight"][2:4].nbytes == checkpoint.bytes_read == 32


def test_reprs_are_short(source):
    with shardinit.open_spec(TINY) as tiny:
        assert len(repr(tiny)) < 100 and repr(tiny.tensors).splitlines()[-2:] == ["  … and 13 more", "}"]
    assert len(repr(source)) < 300 and "in 13 tensors" in repr(source)
    assert len(repr(source.tensors).splitlines()) == 11 and "  … and 5 more\n" in repr(source.tensors)
    assert source.tensors == dict(source.tensors) and list(reversed(source.tensors)) == list(source)[::-1]
    shown = source._repr_html_()
    assert shown.count("<tr>") == 10 and "… and 5 more" in shown and "<td>[6, 4]</td><td>96</td>" in shown


def test_html_is_escaped(folders, tmp_path):
    """HTML is escaped, because a manifest may come from anyone."""
    out = tmp_path / "<b>&'\"<script>"
    out.symlink_to(folders["checkpoint"])
    manifest = (folders["checkpoint"] / "manifest.json").read_text()
    (tmp_path / "made").mkdir()
    (tmp_path / "made/manifest.json").write_text(manifest.replace('"small"', '"<script>alert(1)</script>"', 1))
    for folder in (out, tmp_path / "made"):
        opened = shardinit.open(folder)
        shown = opened._repr_html_()
        assert "<script>" in repr(opened) and "<script>" not in shown and html.escape("<script>") in shown
    assert not re.sub(r"</?(div|p|table|tr|th|td|code)( colspan=\"4\")?>", "", shown).count("<")


# ---- Names.


@pytest.mark.parametrize("name", ["", "torch", "jax", "capture"])
def test_dir_lists_public_names(name):
    if name in ("torch", "jax"):
        client_of(name)
    module = getattr(shardinit, name) if name else shardinit
    assert dir(module) == sorted(module.__all__)
    for each in module.__all__:
        assert getattr(module, each) is not None
        assert getattr(module, each).__doc__ or each == "__version__"
    assert not {"annotations", "importlib", "np", "os", "Any"} & set(dir(module))


# ---- Specs from mappings.


@pytest.mark.parametrize("text", [SMALL, AWKWARD], ids=["small", "awkward"])
def test_open_spec_accepts_a_mapping(text):
    given, wanted = shardinit.open_spec(yaml.safe_load(text)), shardinit.open_spec(text=text)
    assert given.tensors == wanted.tensors and given.mesh == wanted.mesh
    for path in wanted:
        assert np.array_equal(bits_of(given[path][...]), bits_of(wanted[path][...]))


def test_every_config_can_be_a_mapping():
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        spec = yaml.safe_load(path.read_text())
        if included := spec.get("include"):
            every = [included] if isinstance(included, str) else included
            spec["include"] = [str(path.parent / each) for each in every]
        with shardinit.open_spec(spec, set={"uneven": "chunk"}) as given:
            with shardinit.open_spec(path, set={"uneven": "chunk"}) as wanted:
                assert given.tensors == wanted.tensors and (given.name, given.seed) == (wanted.name, wanted.seed)


def test_mappings_keep_numbers_and_strings():
    made = {"shardinit": 1, "name": "numbers", "dtype": "f64", "seed": 2**64 - 1, "vars": {"d": np.int64(3)},
            "modules": {
        "a": {"shape": ("max(d, 2)", "d"), "init": {"constant": {"value": np.float64(0.1)}}},
        "b": {"shape": [2], "init": {"constant": {"value": "1e-5"}}},  # PyYAML makes a string of this number
        "c": {"shape": [2], "init": {"constant": {"value": 1e-300}}},
        "yes": {"shape": [2], "init": "ones", "dtype": "bool"}, "null": {"shape": [], "init": "zeros"}}}
    for spec in (shardinit.open_spec(made), shardinit.open_spec(made, set={"seed": 2**64 - 1})):
        assert spec.seed == 2**64 - 1 and list(spec) == ["a", "b", "c", "yes", "null"]
        assert [spec[path][...].ravel()[0] for path in spec] == [0.1, 1e-5, 1e-300, True, 0]
        assert spec["a"].shape == (3, 3)
    assert shardinit.generate(made, "c", 0) == 1e-300


def test_all_functions_accept_a_mapping_as_spec():
    torch = client_of("torch")
    jax = client_of("jax")
    spec = yaml.safe_load(SMALL.replace("layers: {repeat: {layer: 12}, weight:", "weight:").replace("}}}}", "}}}"))
    model = torch.nn.Linear(4, 6, bias=False)
    model.scale = torch.nn.Parameter(torch.zeros(()))
    shardinit.torch.init_(model, spec)
    assert np.array_equal(model.weight.detach(), shardinit.generate(spec, "weight")) and model.scale == 1
    assert np.array_equal(jax.numpy.asarray(shardinit.jax.init_sharded(spec)["weight"]), model.weight.detach())


# Includes characters with special meaning in YAML, its quotes, or Python.
TEXTS = st.text(st.one_of(st.characters(exclude_categories=("Cs",)),
                          st.sampled_from("\"\\'#:{}[],&*!|>%@`?-~ \t\n\r\0\x85\u2028\ufeff😀")))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS,
              st.sampled_from(["true", "No", "null", "~", "0x1", "1_0", "12", "1.5", "-", ".5", "<<", "=",
                               "2020-01-01"])),
    lambda each: st.one_of(st.lists(each, max_size=3), st.dictionaries(TEXTS, each, max_size=3)), max_leaves=8)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)  # examples include text of this file
@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_mapping_survives_yaml_round_trip(spec):
    from shardinit._mapping import text_of

    class Loader(yaml.SafeLoader):
        """PyYAML with the numbers of YAML 1.2; PyYAML's own YAML 1.1 parses `1e-05` as a string."""

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]+)?[eE][-+]?[0-9]+$"),
                                 list("-+0123456789"))
    assert yaml.load(text_of(spec), Loader) == (with_numbers(spec) or None)


def with_numbers(value):
    """Returns the value with strings such as `1e-5` as numbers: PyYAML parses such numbers as strings, so they are
    written as numbers."""
    if isinstance(value, dict):
        return {key: with_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [with_numbers(each) for each in value]
    is_number = isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]+[eE][-+]?[0-9]+", value)
    return float(value) if is_number else value


@pytest.mark.parametrize("number", ["0E0", "1e-5", "-2E+30", "+1e5"])
def test_mapping_writes_exponents_as_numbers(number):
    from shardinit._mapping import text_of

    assert text_of({number: number, "a": [number]}) == f'"{number}": {number}\na: [{number}]\n'


def test_mappings_that_yaml_cannot_represent_are_rejected():
    circle = []
    circle.append(circle)
    deep = {}
    for _ in range(200):
        deep = {"a": deep}
    open_spec = shardinit.open_spec
    for error, spec, why in (
        (TypeError, {"a": {1, 2}}, "`a`: a value of type set is nothing that YAML has: give a string, number, bool, "
         "None, list or dict (of an array, `tolist()`)"),
        (TypeError, {"modules": [{"w": np.zeros(3)}]},
         "`modules[0].w`: a value of type numpy.ndarray is nothing that "),
        (TypeError, {"a": b"x"}, "`a`: a value of type bytes is nothing that YAML has"),
        (TypeError, {"a": {0: 1}}, "`a`: the key 0 is int: keys are strings"),
        (TypeError, {"a": np.longdouble(1) / 3}, "more digits than 64 bits hold"),
        (ValueError, {"a": "\ud800"}, "`a`: half of a surrogate pair, U+D800, is not a character"),
        (ValueError, {"a": {"b": circle}}, "`a.b[0]`: the value contains itself"),
        (ValueError, deep, "it is more than 100 levels deep"),
    ):
        message = raised(error, open_spec, spec)
        assert message.startswith("cannot write the spec as YAML: ") and why in message
    made = {**yaml.safe_load(SMALL), "modules": {"w": {"shape": [2], "init": {"constant": {"value": float("nan")}}}}}
    assert "expected a finite number, but found `.nan`" in raised(shardinit.SpecError, open_spec, made)
    assert "not both: each is a spec" in raised(TypeError, open_spec, made, text=SMALL)
    opened = open_spec(text=SMALL)
    assert "is open already" in raised(TypeError, open_spec, opened)


# ---- Other processes.


def test_errors_survive_pickling():
    made = shardinit.MismatchError("x", ["a"], ["b"], {"c": "why"}, "do this", "spec")
    unknown = shardinit.UnknownTensorError("wait", ["weight"], "spec")
    for error in (made, unknown, shardinit.SpecError("bad", 3), shardinit.CaptureError("no", {"p": "why"}),
                  shardinit.DamageError("gone")):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            loaded = pickle.loads(pickle.dumps(error, protocol))
            assert type(loaded) is type(error) and str(loaded) == str(error) and loaded.__dict__ == error.__dict__
    assert pickle.loads(pickle.dumps(made)).mismatching == {"c": "why"}


def fails(spec):
    return shardinit.open_spec(spec).generate("nope")


class Rows:
    """A data set that opens its folder in the process that reads it."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 6

    def __getitem__(self, row):
        return shardinit.open(self.folder)["layers.0.weight"][row]


class Held(Rows):
    def __init__(self, folder):
        super().__init__(folder)
        self.opened = shardinit.open(folder)


def test_spawned_processes_can_use_sources(folders):
    torch = client_of("torch")
    from torch.utils.data import DataLoader

    infos = shardinit.open_spec(folders["spec"]).info("scale"), shardinit.open(folders["checkpoint"]).info("scale")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert "the spec has no tensor `nope`" in raised(shardinit.UnknownTensorError, pool.apply, fails,
                                                         (folders["spec"],))
        assert pool.map(type, infos) == [shardinit.SpecTensorInfo, shardinit.StoredTensorInfo]
    loader = DataLoader(Rows(folders["checkpoint"]), batch_size=6, num_workers=1, multiprocessing_context="spawn")
    (rows,) = list(loader)
    assert torch.equal(rows, torch.from_numpy(shardinit.open(folders["checkpoint"]).read("layers.0.weight")))
    held = DataLoader(Held(folders["checkpoint"]), num_workers=1, multiprocessing_context="spawn")
    assert "a checkpoint that is open cannot be pickled" in raised(TypeError, list, held)
    assert "pickle its path, and open it there" in raised(TypeError, pickle.dumps,
                                                          shardinit.open(folders["export"])["scale"])


def test_captured_spec_has_a_short_repr_and_is_not_pickled():
    torch = client_of("torch")
    captured = shardinit.capture.torch(torch.nn.Linear, 3, 4, seed=5)
    assert repr(captured) == "<shardinit.capture.Captured: Linear, 2 tensors, seed 5>"
    assert "write() it, and open the file there" in raised(TypeError, pickle.dumps, captured)
