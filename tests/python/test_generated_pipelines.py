"""For random pipeline settings, the stages equal those from Megatron-core's and torchtitan's own functions, or both
sides refuse."""

import json

from hypothesis import example, strategies

from clients import PACKAGE  # noqa: F401 (adds the package to the path)
from generated import generated, given
from pipeline_clients import megatron, torchtitan

import shardinit


def held_layers(folder, layers, pipe, **keys):
    """Returns the layers of each rank in the form of pipeline_clients.py, or None if the tool refuses."""
    pipeline = {"layers": "layers.*", "count": layers, **keys}
    path = folder / "spec.yaml"
    path.write_text(
        f"shardinit: 1\nname: x\ndtype: f32\nmesh: {{axes: {{pipe: {pipe}}}}}\n"
        f"sharding: {{pipeline: {json.dumps(pipeline)}}}\nmodules:\n  first: {{shape: [], init: zeros}}\n"
        f"  layers: {{repeat: {{i: {layers}}}, w: {{shape: [], init: zeros}}}}\n  last: {{shape: [], init: zeros}}\n")
    tensors = {"first": "first", **{i: f"layers.{i}.w" for i in range(layers)}, "last": "last"}
    try:
        with shardinit.open_spec(path) as spec:
            return [{name for name, tensor in tensors.items() if spec.boxes(tensor, rank)} for rank in range(pipe)]
    except shardinit.SpecError as error:
        assert "spec.yaml:5:" in str(error), error
        return None


def off_by_little(draw, number):
    return max(0, number + draw(strategies.sampled_from([0, 0, 0, 0, 0, 0, 1, -1, 2])))


@strategies.composite
def megatron_settings(draw):
    """Draws settings, most of them almost valid."""
    pipe = draw(strategies.integers(1, 6))
    virtual = draw(strategies.integers(1, 4)) if pipe > 1 else 1
    small = strategies.integers(0, 3)
    ends, middle = [draw(small), draw(small)], draw(small)
    said = {name: draw(strategies.booleans()) for name in ("first", "last", "embedding", "loss")}
    way = draw(strategies.sampled_from(["even", "ranks", "ranks", "ranks", "parts", "layout", "any"]))
    is_said = {name: said[name] and way in ways for name, ways in
               {"first": ["ranks", "any"], "last": ["ranks", "any"], "embedding": ["parts", "any"],
                "loss": ["parts", "any"]}.items()}
    sizes = [middle] * pipe
    for end, name in (0, "first"), (-1, "last"):
        if is_said[name]:
            sizes[end] = ends[end]
    layers = sum(sizes) * virtual - is_said["embedding"] - is_said["loss"]
    setting = {"layers": max(1, off_by_little(draw, layers)), "pipe": pipe, "virtual": virtual}
    for end, name in (0, "first"), (-1, "last"):
        if is_said[name]:
            setting[name] = off_by_little(draw, ends[end] * virtual)
    for name in "embedding", "loss":
        if is_said[name]:
            setting[name] = True
    if way == "layout" or (way == "any" and draw(strategies.booleans())):
        counts = draw(strategies.lists(small, min_size=pipe * virtual, max_size=pipe * virtual))
        if way == "layout":
            setting["layers"] = max(1, off_by_little(draw, sum(counts)))
        setting["layout"] = counts
    return setting


@generated(2500)
@example({"layers": 18, "pipe": 2, "virtual": 2, "last": 6})  # Ranks of 12 and 6 layers, not stages of 6.
@example({"layers": 8, "pipe": 2, "virtual": 2, "first": 4, "last": 4})  # Megatron-core divides by zero.
@given(setting=megatron_settings())
def test_generated_pipelines_match_megatron(tmp_path_factory, setting):
    layout = setting.get("layout")
    words = {"first": "layers_in_first", "last": "layers_in_last", "embedding": "first_counts_as",
             "loss": "last_counts_as", "layout": "stages", "virtual": "virtual"}
    keys = {words[name]: int(value) if value is True else value for name, value in setting.items() if name in words}
    # `Ettt|tt|tL`: layers of each stage, and the ends.
    asked = dict(setting, layout="|".join("t" * n for n in layout)) if layout else setting
    if layout:
        asked["layout"] = f"E{asked['layout']}L"
    made = held_layers(tmp_path_factory.getbasetemp(), setting["layers"], setting["pipe"], **keys)
    assert made == megatron(**asked)


@generated(2500)
@example({"layers": 3, "pipe": 4, "virtual": 1, "before": 0, "behind": 0, "style": "loop"})  # An empty stage.
@example({"layers": 16, "pipe": 2, "virtual": 4, "before": 0, "behind": 0, "style": "v"})
@given(setting=strategies.fixed_dictionaries({
    "layers": strategies.integers(1, 40), "pipe": strategies.integers(1, 5), "virtual": strategies.integers(1, 5),
    "before": strategies.integers(0, 3), "behind": strategies.integers(0, 3),
    "style": strategies.sampled_from(["loop", "v"])}))
def test_generated_pipelines_match_torchtitan(tmp_path_factory, setting):
    made = held_layers(tmp_path_factory.getbasetemp(), setting["layers"], setting["pipe"], virtual=setting["virtual"],
                   style=setting["style"], first_counts_as=setting["before"], last_counts_as=setting["behind"],
                   remainder="first")
    assert made == torchtitan(**setting)
