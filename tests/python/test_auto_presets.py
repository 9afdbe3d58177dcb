"""No sharding of `configs/sharding/` costs less than the one that `auto` chooses, by the model of shardinit-auto(7)."""

import json

import pytest

from support import CONFIGS, ROOT, Run

PRESETS = ROOT / "configs/sharding"
# Of each preset the degrees of ten meshes.
DEGREES = {
    "fsdpv2": ("data fsdp", "1 2, 1 8, 2 4, 4 8, 1 64, 8 8, 2 64, 1 256, 16 16, 4 128"),
    "torchtitan": (
        "replicate fsdp context tensor",
        "1 8 1 1, 2 4 1 1, 1 4 1 2, 1 8 1 8, 2 4 2 2, 4 16 1 1, 1 32 2 4, 2 16 1 8, 8 8 2 2, 1 128 1 4"),
    "torchtitan-experts": (
        "replicate fsdp expert context tensor",
        "1 8 1 1 1, 1 2 4 1 1, 2 2 2 1 1, 1 4 8 1 1, 1 2 4 1 2, 1 4 2 2 2, 1 32 8 1 1, 2 8 8 1 2, 1 64 4 1 1, 1 16 8 1 4"),
    "megatron": (
        "data context tensor", "8 1 1, 4 1 2, 2 2 2, 1 1 8, 8 1 8, 16 2 4, 32 1 4, 4 4 4, 64 1 8, 16 4 8"),
    "megatron-experts": (
        "data expert context tensor",
        "8 1 1 1, 2 4 1 1, 2 2 1 2, 4 8 1 1, 2 4 2 1, 1 8 1 4, 32 8 1 1, 16 4 1 2, 4 8 1 8, 64 4 1 1"),
    "maxtext": (
        "data fsdp fsdp_transpose context tensor tensor_sequence",
        "1 8 1 1 1 1, 2 4 1 1 1 1, 1 4 1 1 2 1, 1 8 1 1 8 1, 1 4 2 1 2 1, 2 8 1 2 4 1, 1 16 1 1 2 2, 1 64 1 1 4 1, "
        "4 32 1 1 2 1, 1 128 1 2 1 1"),
    "maxtext-experts": (
        "data fsdp context tensor expert",
        "1 8 1 1 1, 1 2 1 1 4, 2 2 1 1 2, 1 4 1 2 2, 1 8 1 1 8, 1 4 2 1 4, 1 32 1 2 4, 2 16 1 1 8, 1 64 1 1 4, 1 16 1 4 8"),
    "t5x": ("data model", "8 1, 4 2, 2 4, 1 8, 8 8, 16 4, 32 2, 64 1, 64 4, 32 8"),
    "torchprime-405b": ("fsdp tensor", "8 1, 4 2, 2 4, 8 8, 16 4, 64 1, 32 8, 64 4, 128 4, 128 8"),
}
MODELS = [path.stem for path in CONFIGS if path.stem not in ("dtypes", "expressions")]  # These are no models.
WITH_EXPERTS = {"mixtral-8x7b", "deepseek-v3"}


def presets_of(model):
    """Those for models with experts, or without; `fsdpv2` is for all."""
    return [name for name in DEGREES
            if name == "fsdpv2" or name.endswith("-experts") == (model in WITH_EXPERTS)]


def meshes_of(preset):
    names, meshes = DEGREES[preset]
    return [dict(zip(names.split(), map(int, mesh.split()), strict=True)) for mesh in meshes.split(", ")]


def test_all_presets_are_here():
    assert sorted(DEGREES) == sorted(path.stem for path in PRESETS.glob("*.yaml"))
    assert all(len(meshes_of(preset)) == 10 for preset in DEGREES)


@pytest.mark.parametrize("model", MODELS)
def test_no_preset_is_below_auto(tmp_path, model):
    """What a preset needs of a rank is what `auto` has. A preset is none that `auto` could choose where the model
    lacks what it names, and where it cuts through heads or what is fused: Megatron refuses these degrees."""
    compared = 0
    for preset in presets_of(model):
        for degrees in meshes_of(preset):
            spec = tmp_path / "spec.yaml"
            text = (f"shardinit: 1\ninclude: [{ROOT}/configs/{model}.yaml, {PRESETS}/{preset}.yaml]\n"
                    f"uneven: chunk\nvars: {json.dumps(degrees)}\n")
            spec.write_text(text)
            result = Run("plan", "--json", spec)
            if result.returncode != 0:
                assert "no tensor has the logical axis" in result.stderr or "no tensor matches" in result.stderr
                break
            hand = json.loads(result.stdout)["cost"]
            if hand["cut_otherwise"] > 0:
                continue
            spec.write_text(f"{text}sharding: auto\ntraining: {{memory_per_rank: {hand['memory'] + 1}}}\n")
            result = Run("plan", "--json", spec)
            if result.returncode != 0:  # Where ranks would all compute the same.
                assert "`auto` cannot choose: no tensor says what ranks" in result.stderr, (preset, degrees)
                continue
            auto = json.loads(result.stdout)["cost"]
            assert auto["memory"] <= hand["memory"] + 1, (preset, degrees)
            assert auto["seconds"] <= hand["seconds"] * (1 + 1e-9), (preset, degrees, hand, auto)
            assert auto["cut_otherwise"] == 0, (preset, degrees)
            compared += 1
    assert compared >= 10
