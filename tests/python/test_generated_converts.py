"""Converts tiny Transformers models with random bits through layouts and formats of trainers and back.

The SHA-256 of every tensor is preserved, files do not depend on the number of jobs, and no data is silently lost."""

import hashlib
import json
import pathlib
import tempfile

import numpy as np
import pytest
from clients import client_of
from generated import generated, given
from hypothesis import strategies as st
from support import run_ok, run_tool

torch = client_of("torch")
transformers = client_of("transformers")
safetensors_torch = client_of("safetensors.torch")

# The class, its configuration beyond the common sizes, and its layouts. Layouts marked with * need a head that is not
# tied to the table of tokens.
FAMILIES = {
    "Llama": ({}, "hf stacked torchtitan meta* megatron torch_dist kerashub*"),
    "Mistral": ({}, "hf stacked torchtitan meta* megatron torch_dist kerashub*"),
    "Qwen2": ({}, "hf stacked megatron torch_dist"),
    "Qwen3": ({}, "hf stacked torchtitan megatron torch_dist maxtext*"),
    "Gemma2": ({}, "hf stacked"),
    "Mixtral": ({"num_local_experts": 3}, "hub hf stacked megatron torch_dist"),
    "Qwen3Moe": ({"num_experts": 3, "moe_intermediate_size": 12},
                 "hub hf stacked torchtitan megatron torch_dist maxtext*"),
    "DeepseekV3": ({"n_routed_experts": 4, "moe_intermediate_size": 12, "q_lora_rank": 12, "kv_lora_rank": 10,
                    "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6, "n_group": 2, "topk_group": 1,
                    "first_k_dense_replace": 1, "n_shared_experts": 1}, "hub hf stacked torchtitan*"),
}


def layouts_and_formats(family, tied):
    """Yields layouts and the formats that can hold their names."""
    names = [name for name in FAMILIES[family][1].split() if not (tied and name.endswith("*"))]
    for name in (name.rstrip("*") for name in names):
        yield from ((name, form) for form in ["safetensors", "dcp", "zarr", "hdf5"])
        if name == "torch_dist":
            yield name, "megatron"


@st.composite
def cases(draw):
    family = draw(st.sampled_from(sorted(FAMILIES)))
    tied = draw(st.booleans())
    kv_heads, groups = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 3]))
    head_dim = draw(st.sampled_from([2, 4, 6]))
    heads = kv_heads * groups
    config = {
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
        "hidden_size": heads * head_dim * (1 if family in ("Llama", "Qwen2") else draw(st.sampled_from([1, 2]))),
        "intermediate_size": draw(st.sampled_from([8, 10, 24])), "num_hidden_layers": draw(st.sampled_from([1, 2, 3])),
        "vocab_size": draw(st.sampled_from([17, 128, 130])), "tie_word_embeddings": tied, "pad_token_id": None,
        "dtype": draw(st.sampled_from(["bfloat16", "float32", "float16"])), **FAMILIES[family][0]}
    if family == "DeepseekV3":
        del config["head_dim"]
    steps = draw(st.lists(st.sampled_from(list(layouts_and_formats(family, tied))), min_size=1, max_size=3))
    return family, config, steps, draw(st.integers(0, 1 << 30)), draw(st.sampled_from([1, 8]))


def to_bytes(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def digests_of(folder):
    """Returns the SHA-256 of each tensor in safetensors files."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= {name: hashlib.sha256(to_bytes(t)).hexdigest() for name,
                  t in safetensors_torch.load_file(file).items()}
    return found


def trained(family, config, seed, folder):
    """Saves a Transformers folder with random bits in all elements, including NaN payloads, infinities, -0 and
    subnormal numbers."""
    settings = getattr(transformers, f"{family}Config")(**config)
    dtype = getattr(torch, config["dtype"])
    getattr(transformers, f"{family}ForCausalLM")(settings).to(dtype).save_pretrained(folder)
    bits = np.random.default_rng(seed)
    state = {name: torch.from_numpy(bits.integers(0, 256, t.numel() * t.element_size(), dtype=np.uint8))
             .view(t.dtype).reshape(t.shape)
             for name, t in safetensors_torch.load_file(folder / "model.safetensors").items()}
    safetensors_torch.save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return state


def read_files(folder):
    return {f.relative_to(folder): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


@generated(24)
@given(case=cases())
def test_random_conversions_keep_the_sha256_of_each_tensor(case):
    family, config, steps, seed, jobs = case
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        trained(family, config, seed, root / "in")
        wanted = digests_of(root / "in")
        spec = root / "in/config.json"
        at, layout = root / "in", "hub"
        for number, (to, form) in enumerate(steps):
            out = root / str(number)
            arguments = ["convert", at, "--spec", spec, "--from-layout", layout, "--layout", to, "--to", form, "-q"]
            run_ok(*arguments, "-o", out, "-j", jobs)
            if number == 0:
                run_ok(*arguments, "-o", root / "again", "-j", 9 - jobs)
                assert read_files(out) == read_files(root / "again")
            run_ok("verify", out, "-q")
            at, layout = out, to
        run_ok("convert", at, "--spec", spec, "--from-layout", layout, "--to", "safetensors", "-o", root / "out", "-q")
        assert digests_of(root / "out") == wanted
        of, report = getattr(transformers, f"{family}ForCausalLM").from_pretrained(root / "out",
                                                                                   output_loading_info=True)
        assert not any(report.values()), report


@st.composite
def lost(draw):
    """Draws a family and a change: a tensor more, a tensor less, or one of another shape."""
    return draw(st.sampled_from(sorted(FAMILIES))), draw(st.sampled_from(["more", "less", "longer"])), draw(
        st.integers(0, 1 << 30))


@generated(12)
@given(case=lost(), other=cases())
def test_convert_rejects_missing_misshapen_and_unused_tensors(case, other):
    """A tensor that is missing, has another shape or reaches no output is an error with its name; `--drop` omits an
    extra tensor and keeps the others."""
    family, kind, seed = case
    _, config, steps, _, _ = other
    config = {**config, "tie_word_embeddings": False, "head_dim": 4, **FAMILIES[family][0]}
    config["hidden_size"] = 4 * config["num_attention_heads"]
    if family == "DeepseekV3":
        del config["head_dim"]
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        state = trained(family, config, seed, root / "in")
        names = sorted(state)
        chosen = names[seed % len(names)]
        if kind == "more":
            changed = chosen + "_extra" if seed % 2 else chosen.replace("model.layers.0.", "model.layers.7.")
            changed = changed if changed != chosen else "extra"
            state[changed] = torch.ones(3)
        elif kind == "less":
            changed = chosen
            del state[chosen]
        else:
            changed = chosen
            state[chosen] = torch.cat([state[chosen], state[chosen][:1]])
        safetensors_torch.save_file(state, root / "in/model.safetensors", metadata={"format": "pt"})
        to = [to for to, _ in layouts_and_formats(family, False)][seed % len(list(layouts_and_formats(family, False)))]
        arguments = ["convert", root / "in", "--to", "dcp", "--layout", to]
        result = run_tool(*arguments, "-o", root / "out")
        assert result.returncode == 2 and f"`{changed}`" in result.stderr and not (root / "out").exists(), result
        if kind != "more":
            return
        run_ok(*arguments, "--drop", changed, "-o", root / "out", "-q")
        run_ok("convert", root / "out", "--spec", root / "in/config.json", "--from-layout", to, "--to", "safetensors",
               "-o", root / "back", "-q")
        wanted = digests_of(root / "in")
        del wanted[changed]
        assert digests_of(root / "back") == wanted


CONVENTIONS = st.fixed_dictionaries({},
                                    optional={"times": st.sampled_from([1, 2, 0.5, -4]), "plus": st.integers(-3, 3)})
NAMES = ["w", "v", "u"]
SHORT = {"float32": "f32", "bfloat16": "bf16", "float64": "f64"}


@generated(40)
@given(conventions=st.lists(st.tuples(CONVENTIONS, CONVENTIONS | st.none()), min_size=3, max_size=3),
       renamed=st.booleans(), fused=st.none() | st.integers(0, 5), dtype=st.sampled_from(sorted(SHORT)),
       to=st.none() | st.sampled_from(sorted(SHORT)))
def test_random_conventions_are_converted_exactly(conventions, renamed, fused, dtype, to):
    """Values are converted exactly from one trainer's convention to another's.

    None means that the other trainer has the same convention or type. The other trainer may store all tensors fused in
    one, with padding that has no convention."""
    layouts, wanted, state, changed = {"a": {}, "b": {}}, {}, {}, 0
    if fused is not None:
        conventions = [(one, conventions[0][1] or {}) for one, _ in conventions]
    for number, (name, (one, other)) in enumerate(zip(NAMES, conventions)):
        other = one if other is None else other
        there = f"{name}.there" if renamed else name
        layouts["a"][name] = {"from": name, **one}
        layouts["b"][there] = {"from": name, **other}
        value = torch.arange(-3, 5).to(torch.float64) + number
        state[name] = (value * one.get("times", 1) + one.get("plus", 0)).to(getattr(torch, dtype))
        wanted[there] = (value * other.get("times", 1) + other.get("plus", 0)).to(getattr(torch, to or dtype))
        changed += 8 * ({"times": 1, "plus": 0} | one != {"times": 1, "plus": 0} | other)
    if fused is not None:
        padding = torch.full((fused,), 7, dtype=next(iter(wanted.values())).dtype)
        wanted = {"all": torch.cat([*wanted.values(), padding])}
        of = {"concat": {"axis": 0, "of": NAMES}}
        layouts["b"] = {"all": {"from": {"pad": {"axis": 0, "to": 24 + fused, "value": 7, "of": of}} if fused else of,
                                **conventions[0][1]}}
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "in").mkdir()
        safetensors_torch.save_file(state, root / "in/model.safetensors", metadata={"format": "pt"})
        (root / "spec.yaml").write_text(json.dumps({
            "shardinit": 1, "name": "x", "dtype": SHORT[dtype], "layouts": layouts,
            "modules": {name: {"shape": [8], "init": "ones"} for name in NAMES}}))
        result = run_ok("convert", root / "in", "--spec", root / "spec.yaml", "--from-layout", "a", "--layout", "b",
                        "--inexact", "--to", "safetensors", "-o", root / "out", *(["--dtype", SHORT[to]] if to else []))
        found = safetensors_torch.load_file(root / "out/model.safetensors")
    said = f"{changed} elements changed to the convention of the layout's trainer; 0 of these cannot be restored exactly\n"
    assert said in result.stderr if changed else "cannot be restored exactly" not in result.stderr
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), (name, found[name], tensor)


def between(value, one, other):
    """Converts an array from one convention to another, in the array's own type."""
    numbers = [*((f"from_{key}", number) for key, number in one.items()), *other.items()]
    number = {key: value.dtype.type(np.float32(number)) for key, number in numbers}
    value = value - number["from_plus"]
    value = value * number["from_back"] if "from_back" in number else value / number["from_times"]
    return value * number["times"] + number["plus"]


@pytest.mark.parametrize("back", [{}, {"back": 3.3}], ids=["divided", "back"])
@pytest.mark.parametrize("dtype, to", [
    ("float32", "float32"), ("float64", "float64"), ("bfloat16", "bfloat16"), ("float32", "bfloat16"),
    ("bfloat16", "float32"), ("float32", "float64"), ("float64", "float32")])
def test_conventions_are_computed_in_f32_or_f64_and_rounded_once(tmp_path, dtype, to, back):
    """Conventions are applied in f32, or in f64 for f64, with one final rounding. Elements that would not survive the
    way back are counted in the same way."""
    one, other = {"times": 0.3, "plus": 0.7, **back}, {"times": 1.7, "plus": -0.1}
    value = torch.randn(1000, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(getattr(torch, dtype))

    def change(tensor, to, one, other):
        wide = tensor.numpy() if tensor.dtype == torch.float64 else tensor.float().numpy()
        return torch.from_numpy(between(wide, one, other)).to(getattr(torch, to))

    wanted = change(value, to, one, other)
    lost = int((change(wanted, dtype, other, one) != value).sum())
    (tmp_path / "in").mkdir()
    safetensors_torch.save_file({"w": value}, tmp_path / "in/model.safetensors", metadata={"format": "pt"})
    (tmp_path / "spec.yaml").write_text(json.dumps({
        "shardinit": 1, "name": "x", "dtype": SHORT[dtype], "modules": {"w": {"shape": [1000], "init": "ones"}},
        "layouts": {"a": {"w": {"from": "w", **one}}, "b": {"w": {"from": "w", **other}}}}))
    result = run_ok("convert", tmp_path / "in", "--spec", tmp_path / "spec.yaml", "--from-layout", "a", "--layout", "b",
                    "--inexact", "--to", "safetensors", "-o", tmp_path / "out", "--dtype", SHORT[to])
    assert torch.equal(safetensors_torch.load_file(tmp_path / "out/model.safetensors")["w"], wanted)
    said = f"1,000 elements changed to the convention of the layout's trainer; {lost:,} of these cannot be restored exactly\n"
    assert said in result.stderr


def test_convert_names_two_copies_that_differ(tmp_path):
    """If a layout holds elements twice, such as a tied head, the copies must be equal; otherwise the message names
    both."""
    config = {"num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 16, "head_dim": 8, "vocab_size": 17,
              "intermediate_size": 12, "num_hidden_layers": 2, "tie_word_embeddings": True, "dtype": "bfloat16"}
    trained("Llama", config, 1, tmp_path / "in")
    spec = tmp_path / "in/config.json"
    run_ok("convert", tmp_path / "in", "--layout", "torchtitan", "--to", "safetensors", "-o", tmp_path / "titan")
    file = tmp_path / "titan/model.safetensors"
    state = safetensors_torch.load_file(file)
    state["lm_head.weight"].view(torch.int16)[3, 5] ^= 1
    safetensors_torch.save_file(state, file)
    (tmp_path / "titan/shardinit-export.json").unlink()
    arguments = ["convert", tmp_path / "titan", "--spec", spec, "--from-layout", "torchtitan", "--to", "safetensors"]
    result = run_tool(*arguments, "-o", tmp_path / "out")
    assert result.returncode == 2 and "`tok_embeddings.weight`" in result.stderr, result
    assert "`lm_head.weight`" in result.stderr and "[3, 5]" in result.stderr and not (tmp_path / "out").exists()
    run_ok(*arguments, "--drop", "lm_head.weight", "-o", tmp_path / "out")
    assert digests_of(tmp_path / "out") == digests_of(tmp_path / "in")


def test_convert_rejects_a_layout_that_omits_elements(tmp_path):
    """convert refuses a layout that omits part of a tensor, since elements of an existing model would be lost."""
    (tmp_path / "in").mkdir()
    safetensors_torch.save_file({"w": torch.ones(4, 3), "v": torch.ones(2)}, tmp_path / "in/model.safetensors")
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps({
        "shardinit": 1, "name": "x", "dtype": "f32", "mesh": {"axes": {"a": 1}},
        "modules": {"w": {"shape": [4, 3], "init": "ones"}, "v": {"shape": [2], "init": "ones"}},
        "layouts": {"half": {"omit": ["w"], "w": {"from": {"slice": {"axis": 0, "stop": 2, "of": "w"}}}, "v": "v"}}}))
    result = run_tool("convert", tmp_path / "in", "--spec", spec, "--layout", "half", "--to", "dcp", "-o",
                      tmp_path / "out")
    assert result.returncode == 2 and "stores 6 of the 12 elements of `w`" in result.stderr, result
