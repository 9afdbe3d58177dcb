"""The tree and the drawing of `shardinit graph` contain every tensor, and Graphviz can read the drawing."""

import itertools
import json
import re

import pytest

from support import CONFIGS, TINY, run_json, run_ok

LLAMA = TINY.parent / "llama3.1-8b.yaml"
LAYOUTS = ["hf", "torchtitan", "megatron", "maxtext"]
# Layouts of single tensors, slices of one tensor, and ties.
APART = """shardinit: 1
name: apart
dtype: f32
vars: {n: 5}
mesh: {axes: {a: 2}}
modules:
  l:
    repeat: {i: n}
    experts: {shape: [4, 6, 2], init: ones, shard: [null, a]}
    w: {shape: [6], init: {normal: {std: "1 / (i + 1)"}}}
layouts:
  apart:
    keep: ["l.0.w"]
    m:
      repeat: {i: n}
      e:
        repeat: {j: 4}
        w: {from: {transpose: {axes: [1, 0], of: {reshape: {shape: [6, 2], of: {slice: {axis: 0, start: j, stop: j + 1, of: "l.{i}.experts"}}}}}}}
      w: "l.{i}.w"
    both: {from: {stack: {axis: 0, for: {i: n}, of: ["l.{i}.w", "l.{n - 1 - i}.w"]}}}
"""


@pytest.fixture
def apart(tmp_path):
    path = tmp_path / "apart.yaml"
    path.write_text(APART)
    return path


# The tree ---------------------------------------------------------------------

def numbers(braces):
    """Expands `0…2, 5` or `0, 2, …, 8` to numbers."""
    steps = re.fullmatch(r"(\d+), (\d+), …, (\d+)", braces)
    if steps:
        first, second, last = map(int, steps.groups())
        return range(first, last + 1, second - first)
    ranges = [part.split("…") for part in braces.split(", ")]
    return [n for part in ranges for n in range(int(part[0]), int(part[-1]) + 1)]


def expanded(name):
    """Expands a folded name."""
    parts = re.split(r"\{(.*?)\}", name)
    choices = [numbers(p) if i % 2 else [p] for i, p in enumerate(parts)]
    return ["".join(map(str, choice)) for choice in itertools.product(*choices)]


def complete(names):
    """Yields abbreviated lists among sibling rows, with their omitted numbers: all in the range that no other row
    has."""
    def is_short(name):
        return re.fullmatch(r"\{\d+(?:…\d+)?, [^{}]*, …, \d+\}", name) and not re.fullmatch(r"\{\d+, \d+, …, \d+\}",
                                                                                            name)
    others = {n for name in names if re.fullmatch(r"\{[^{}]*\}", name) and not is_short(name)
              for n in numbers(name[1:-1])}
    for name in filter(is_short, names):
        first, *_, last = map(int, re.findall(r"\d+", name))
        yield name, "{" + ", ".join(str(n) for n in range(first, last + 1) if n not in others) + "}"


def parse_trees(text):
    """Returns path → (dtype, shape) for each table of `graph`."""
    trees = []
    for table in text.split("\n\n")[1:]:
        found, above, beside = {}, [], {}
        rows = [re.match(r"( *)((?:\{.*?\}|\S)+)", line).groups() for line in table.splitlines()[1:]]
        for indent, name in rows:
            above[len(indent) // 2:] = [name]
            beside.setdefault(tuple(above[:-1]), []).append(name)
        above = []
        for line, (indent, name) in zip(table.splitlines()[1:], rows, strict=True):
            above[len(indent) // 2:] = [name]
            tensor = re.search(r"  (\w+) +(\[[\d, ]*\])  ", line)
            if not tensor:
                continue
            whole = [dict(complete(beside[tuple(above[:i])])).get(part, part) for i, part in enumerate(above)]
            for path in expanded(".".join(whole)):
                assert path not in found
                found[path] = (tensor[1], json.loads(tensor[2]))
        trees.append(found)
    return trees


def in_json(tensors):
    return {t["path"]: (t["dtype"], t["global_shape"]) for t in tensors}


@pytest.mark.parametrize("spec", CONFIGS, ids=lambda p: p.stem)
def test_graph_tree_lists_every_tensor(spec):
    tree, = parse_trees(run_ok("graph", spec).stdout)
    graph = run_json("graph", spec)
    assert tree == in_json(graph["logical"]) == in_json(graph["stored"])
    assert all(t["view"] == t["path"] for t in graph["stored"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_graph_tree_of_a_layout_lists_every_tensor(layout):
    text, graph = run_ok("graph", LLAMA, "--layout", layout).stdout, run_json("graph", LLAMA, "--layout", layout)
    assert parse_trees(text) == [in_json(graph["logical"]), in_json(graph["stored"])]
    assert len(text.splitlines()) < 50


def test_graph_folds_numbered_tensors_that_are_not_adjacent(apart):
    text, graph = run_ok("graph", apart, "--layout", "apart").stdout, run_json("graph", apart, "--layout", "apart")
    assert parse_trees(text) == [in_json(graph["logical"]), in_json(graph["stored"])]
    assert "slice axis=0 start={0…3} stop={1…4} of l.{0…4}.experts" in text
    assert "normal mean 0 std {1…0.2}" in text
    assert re.search(r"^  w .* l\.\{0…4\}\.w \(tied\)$", text, re.M)


FORMS = [{}, {"shape": "[4, 9]"}, {"dtype": "bf16"}, {"init": "{uniform: {low: 0, high: 1}}"}, {"shard": "[b]"},
         {"shard": "[null, a]"},
         {"shard": "[a, b]"}, {"shard": "[[a, b]]"}, {"shard": "[[b, a]]"}, {"shard": "[{axes: [a], segments: 2}]"},
         {"shard": "[{axes: [a], segments: 3}]"}, {"map": "{a: Shard(0), b: Shard(0)}"}, {"stage": "{c: 0}"},
         {"stage": "{c: 1}"},
         {"stage": "{b: 0}"}, {"stage": "{b: 0, c: 1}"}]


@pytest.mark.parametrize("number", range(len(FORMS)))
def test_graph_folds_only_modules_equal_in_everything(tmp_path, number):
    """Modules share a row only if they are equal in everything, even if their forms use the same slot of the pool of
    forms."""
    base = {"shape": "[9, 4]", "dtype": "f32", "init": "{normal: {std: 1}}", "shard": "[a]"}
    modules, of_map, wanted = "", "", []
    for other in range(len(FORMS)):
        for place, form in enumerate([FORMS[number], FORMS[other], FORMS[number]]):
            members = {**base, **form}
            if "map" in form:
                of_map += f"    m{other}.{place}.w: {members.pop('map')}\n"
                del members["shard"]
            modules += f"  m{other}.{place}.w: {{{', '.join(f'{key}: {value}' for key, value in members.items())}}}\n"
        wanted += [f"m{other}.{{0…2}}.w"] if other == number else ["{0, 2}.w", "1.w"]
    (tmp_path / "spec.yaml").write_text("shardinit: 1\nname: forms\nuneven: chunk\nmesh: {axes: {a: 2, b: 2, c: 2}}\n"
                                        + (f"sharding:\n  map:\n{of_map}" if of_map else "") + f"modules:\n{modules}")
    text = run_ok("graph", tmp_path / "spec.yaml").stdout
    assert re.findall(r"^ *(\S.*\.w) ", text, re.M) == wanted


def test_graph_only_selects_tensors_and_their_inputs(apart):
    graph = run_json("graph", apart, "--layout", "apart", "--only", "l.3.w")
    assert {t["path"] for t in graph["stored"]} == {"m.3.w", "both"}
    assert {t["path"] for t in graph["logical"]} == {f"l.{i}.w" for i in range(5)}
    graph = run_json("graph", apart, "--layout", "apart", "--only", "m.*.e.2.*")
    assert {t["path"] for t in graph["stored"]} == {f"m.{i}.e.2.w" for i in range(5)}
    assert {t["path"] for t in graph["logical"]} == {f"l.{i}.experts" for i in range(5)}


def test_explain_names_each_drawn_tensor_once(tmp_path):
    """explain lists each drawn tensor once, in the view's order, even if the view has several slices of it."""
    spec = tmp_path / "spec.yaml"
    part = "{{slice: {{axis: 0, start: {}, stop: {}, of: {}}}}}".format
    of = [part(2, 4, "w"), "v", part(0, 2, "w"), part(4, 6, "w"), part(0, 1, "u")]
    spec.write_text(f"""shardinit: 1
name: m
dtype: f32
modules: {{u: {{shape: [2], init: ones}}, v: {{shape: [3], init: zeros}}, w: {{shape: [6], init: {{normal: {{std: 2}}}}}}}}
layouts:
  l:
    a: {{from: {{concat: {{axis: 0, of: [{', '.join(of)}]}}}}}}
    b: {{from: {part(1, 2, 'u')}}}
""")
    logical = run_json("explain", spec, "a", "--layout", "l")["logical"]
    assert [(each["path"], each["shape"]) for each in logical] == [("w", [6]), ("v", [3]), ("u", [2])]
    assert [each["key"] is None for each in logical] == [False, True, True]


def test_explain_names_each_layout_once(tmp_path):
    """explain prints each layout once, before the first tensor that receives elements."""
    spec = tmp_path / "spec.yaml"
    spec.write_text("""shardinit: 1
name: m
dtype: f32
modules: {w: {shape: [6], init: ones}, x: {shape: [2], init: ones}}
layouts:
  l:
    a: {from: {slice: {axis: 0, start: 0, stop: 2, of: w}}}
    b: {from: {slice: {axis: 0, start: 2, stop: 6, of: w}}}
    omit: [x]
  k: {w: w, t: w, keep: [x]}
""")
    text = run_ok("explain", spec, "w").stdout
    rows = re.findall(r"^(in layout \w+ |) +(\S.*?)  +spec.yaml:\d+:\d+$", text.replace(str(spec), "spec.yaml"), re.M)
    assert rows[-4:] == [
        ("in layout l ", "a: slice, 2 elements"), ("", "b: slice, 4 elements"), ("in layout k ", "w"), ("", "t")]
    text = run_ok("explain", spec, "x").stdout
    assert re.findall(r"^in layout (\w+) +(\S+)", text, re.M) == [("l", "(omitted)"), ("k", "x")]


def test_graph_json_equals_the_plan(apart, tmp_path):
    graph = run_json("graph", apart, "--layout", "apart")
    run_ok("gen", apart, "--layout", "apart", "-o", tmp_path / "out")
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    assert graph["logical"] == plan["logical"] and graph["mesh"] == plan["mesh"]
    assert graph["stored"] == [{**t, "bytes": t_bytes} for t, t_bytes in
                               zip(plan["tensors"], (t["bytes"] for t in graph["stored"]))]


# The drawing ------------------------------------------------------------------

TOKEN = re.compile(r'\s*(?:(?P<id>"(?:[^"\\]|\\.)*"|[A-Za-z_]\w*|\d+)|(?P<sign>->|[{}\[\];,=]))')


class Dot:
    """Parses the nodes, edges, attributes and clusters that `graph --dot` may write, and rejects all other syntax."""

    def __init__(self, text):
        self.tokens, at = [], 0
        while text[at:].strip():
            found = TOKEN.match(text, at)
            assert found, text[at:at + 40]
            self.tokens.append(found[0].strip())
            at = found.end()
        self.nodes, self.edges, self.clusters = {}, [], set()
        assert self.take() == "digraph"
        self.read_id()
        self.body()
        assert not self.tokens

    def take(self, expected=None):
        token = self.tokens.pop(0)
        assert expected in (None, token), (expected, token)
        return token

    def read_id(self):
        token = self.take()
        assert re.match(r'["\w]', token), token
        return json.loads(token) if token.startswith('"') else token

    def attributes(self):
        attributes = {}
        if self.tokens[0] == "[":
            self.take()
            while self.tokens[0] != "]":
                name = self.read_id()
                self.take("=")
                attributes[name] = self.read_id()
                if self.tokens[0] == ",":
                    self.take()
            self.take()
        self.take(";")
        return attributes

    def body(self):
        self.take("{")
        while self.tokens[0] != "}":
            name = self.read_id()
            if name == "subgraph":
                cluster = self.read_id()
                assert cluster.startswith("cluster_") and cluster not in self.clusters
                self.clusters.add(cluster)
                self.body()
            elif self.tokens[0] == "->":
                self.take()
                self.edges.append((name, self.read_id(), self.attributes().get("label", "")))
            elif self.tokens[0] == "=":
                self.take()
                self.read_id()
                self.take(";")
            elif name in ("graph", "node", "edge"):
                self.attributes()
            else:
                assert name not in self.nodes
                self.nodes[name] = self.attributes()
        self.take("}")
        assert all(a in self.nodes and b in self.nodes for a, b, _ in self.edges)


def parse_drawing(*arguments):
    text = run_ok("graph", *arguments, "--dot").stdout
    assert run_ok("graph", *arguments, "--dot").stdout == text
    return Dot(text)


@pytest.mark.parametrize("spec", CONFIGS, ids=lambda p: p.stem)
def test_dot_drawings_have_one_node_for_each_row(spec):
    drawing = parse_drawing(spec)
    rows = re.findall(r"  \w+ +\[[\d, ]*\]  ", run_ok("graph", spec).stdout)
    assert not drawing.edges and len(drawing.nodes) == len(rows)
    # All layers of these models differ.
    assert len(drawing.nodes) < 100 or spec.stem in ("openelm-270m", "stable-diffusion-1.5-unet")
    assert all(node["label"] and "shape" not in node for node in drawing.nodes.values())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_dot_node_of_a_layout_has_edges(layout):
    drawing = parse_drawing(LLAMA, "--layout", layout)
    # The drawing for 32 layers is as large as the one for 3.
    few = parse_drawing(LLAMA, "--layout", layout, "--set", "vars.layers=3")
    assert (len(few.nodes), len(few.edges)) == (len(drawing.nodes), len(drawing.edges))
    assert len(drawing.nodes) < 100
    sources, targets = {a for a, _, _ in drawing.edges}, {b for _, b, _ in drawing.edges}
    operations = {n for n, a in drawing.nodes.items() if a.get("shape") == "ellipse"}
    assert sources | targets == set(drawing.nodes) and sources & targets == operations
    labels = {label for _, _, label in drawing.edges}
    assert labels == ({"", "× 32"} if layout == "maxtext" else {""})


def test_dot_draws_ties_and_repeated_operands(apart):
    drawing = parse_drawing(apart, "--layout", "apart")
    assert {label for _, _, label in drawing.edges} == {"", "tie", "× 10"}
    folded = parse_drawing(apart, "--layout", "apart", "--depth", "1")
    shapes = [node.get("shape") for node in folded.nodes.values()]
    assert sorted(map(str, shapes)) == ["None", "None", "ellipse", "folder", "folder"]
    assert {label for _, _, label in folded.edges} == {"", "tie", "× 10"}
