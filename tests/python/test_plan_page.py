"""Reads the pages of `plan --html`, `graph --html` and `stats --html` with an HTML parser and in a browser."""

import base64
import hashlib
import html
import json
import math
import random
import re
import shutil
import struct
import subprocess
import zlib
from html.parser import HTMLParser

import pytest

from recorded import file_of
from support import ROOT, TINY, run_json, run_ok, run_tool

BIG = ROOT / "configs/llama3.1-405b.yaml"
VOID = {"meta", "wbr", "input"}

# Text that would end a tag, a quote or a title.
HOSTILE = """</title><script>alert(1)</script>"'&amp;<img src=x onerror=alert(2)>"""


class Page(HTMLParser):
    """Collects the boxes of pictures and the rows of tables by id, and all tags, and checks that tags nest."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open = [], [], []
        self.boxes, self.tables, self.text, self.title = {}, {}, "", ""
        self.picture = None
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attributes.items()]
        if tag not in VOID:
            self.open.append(tag)
        if attributes.get("class") in ("tiles", "mesh"):
            self.boxes[attributes["id"]] = self.picture = []
        elif tag in ("i", "a") and "title" in attributes:
            self.picture.append(attributes)
        elif tag == "table":
            self.tables[attributes["id"]] = self.table = []
        elif tag == "tr":
            self.table.append([])
        elif tag in ("td", "th"):
            self.table[-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open or "th" in self.open:
            self.table[-1][-1] += data
        elif "title" in self.open and "svg" not in self.open:
            self.title += data
        elif not {"style", "script"} & set(self.open):
            self.text += data

    def titles(self, picture):
        return [box["title"] for box in self.boxes[picture]]

    def areas(self, picture):
        """Yields left, top, width and height of each box in per cent."""
        for box in self.boxes[picture]:
            top, right, bottom, left = map(float,
                                           re.match(r"inset:(\S+)% (\S+)% (\S+)% (\S+)%;", box["style"]).groups())
            yield left, top, 100 - left - right, 100 - top - bottom


def write(folder, *arguments, command="plan"):
    path = folder / ("page.html" if command == "plan" else f"{command}.html")
    run_ok(command, "--html", path, *arguments)
    return path


def spec_of(folder, text):
    path = folder / "spec.yaml"
    path.write_text("shardinit: 1\n" + text)
    return path


def number(text):
    return int(text.replace(",", ""))


def test_page_numbers_match_the_plan(tmp_path):
    page = Page(write(tmp_path, TINY).read_text())
    plan = run_json("plan", TINY, "--devices")
    rows = dict(row for row in page.tables["plan"])
    assert page.title == plan["name"]
    assert number(rows["parameters"]) == plan["parameters"] and number(rows["tensors"]) == plan["tensors"]
    tensors = page.tables["tensors"][1:]
    assert sum(number(row[1]) for row in tensors) == plan["tensors"]
    # The boxes of one tensor, times the tensors in its group.
    assert sum(number(row[1]) * number(row[6]) for row in tensors) == plan["box_count"]
    for device, title in zip(plan["devices"], page.titles("mesh"), strict=True):
        assert title.startswith("rank {rank} at {coordinate}: device {id} in slice {slice}; ".format(**device))
    shown = {g[0]: g[2] for g in tensors}
    for name, size in re.findall(r"(\S+(?: 1\}\S*)?): \d+ tensors?, ([\d.]+ \w+), ",
                                 "\n".join(page.titles("treemap0"))):
        assert shown[name] == size
    for rank, title in enumerate(page.titles("mesh")):
        held, stored = map(number, re.search(r"holds ([\d,]+) bytes, ([\d,]+) of them", title).groups())
        assert stored == run_json("plan", TINY, "--rank", rank)["rank_bytes"]
        assert plan["min_rank_bytes"] <= held <= plan["max_rank_bytes"]


def test_page_boxes_match_the_ranks(tmp_path):
    page = Page(write(tmp_path, TINY).read_text())
    paths = re.findall(r"^(\S+) \[[\d, ]+\] \[", page.text, re.MULTILINE)
    assert len(paths) == len(page.tables["tensors"]) - 1
    of_page = {path: set(page.titles(f"t{n}")) for n, path in enumerate(paths)}
    seen = {path: set() for path in paths}
    for rank in range(4):
        for box in run_json("plan", TINY, "--rank", rank)["boxes"]:
            if box["path"] in seen:
                slices = ", ".join(f"{o}:{o + n}" for o, n in zip(box["offset"], box["shape"]))
                seen[box["path"]].add(f"rank {rank}: [{slices}]")
    plain = {path: {re.sub(r" and \d+ replicas?", "", title) for title in titles}
             for path, titles in of_page.items()}
    assert plain == seen


def test_page_boxes_cover_the_picture_once(tmp_path):
    page = Page(write(tmp_path, TINY).read_text())
    for name, boxes in page.boxes.items():
        if re.fullmatch(r"t\d+", name):
            assert sum(width * height for _, _, width, height in page.areas(name)) == pytest.approx(1e4, rel=1e-3)
            assert len({re.search("--i:([^;]*)", box["style"])[1] for box in boxes}) == len(boxes)


def test_page_shows_slices_and_devices(tmp_path):
    spec = spec_of(tmp_path, "name: m\ndtype: f32\nmesh: {axes: {fsdp: 4, tensor: 2}, slices: {fsdp: 2}, "
                "slice_order: inner}\nrules: [{a: fsdp}, {b: tensor}]\n"
                "modules: {w: {shape: [8, 8], axes: [a, b], init: zeros}}\n")
    page = Page(write(tmp_path, spec).read_text())
    devices = run_json("plan", spec, "--devices")["devices"]
    found = [tuple(map(int, re.search(r"device (\d+) in slice (\d+)", title).groups()))
             for title in page.titles("mesh")]
    assert found == [(d["id"], d["slice"]) for d in devices]
    bars = [re.search("--c:([^;]*)", box["style"])[1] for box in page.boxes["mesh"]]
    assert len(bars) == 8 and len(set(bars)) == 2
    assert [bar == bars[0] for bar in bars] == [d["slice"] == devices[0]["slice"] for d in devices]


@pytest.mark.parametrize("name, key, axis", [
    (HOSTILE, "w", "a"), ("m", HOSTILE.replace(".", "_"), "a"), ("m", "w", HOSTILE)], ids=["model", "tensor", "axis"])
def test_page_escapes_names(tmp_path, name, key, axis):
    """Specs reject such names, or the page escapes them (tests/unit/report_html_test.cc)."""
    spec = spec_of(tmp_path, f"name: {json.dumps(name)}\ndtype: f32\nmesh: {{axes: {{{json.dumps(axis)}: 2}}}}\n"
                f"rules: [{{r: {json.dumps(axis)}}}]\n"
                f"modules: {{{json.dumps(key)}: {{shape: [2], axes: [r], init: zeros}}}}\n")
    result = run_tool("plan", "--html", tmp_path / "page.html", spec)
    if result.returncode:
        assert result.returncode == 2 and "spec.yaml:" in result.stderr
        assert not (tmp_path / "page.html").exists()
        return
    for command in COMMANDS:
        text = write(tmp_path, spec, command=command).read_text()
        page = Page(text)
        assert page.tags.count("script") == 1 and "img" not in page.tags and "alert" not in page.text.replace(HOSTILE,
                                                                                                              "")
        assert page.title == name
        assert not [a for a in page.attributes if a[1].startswith("on")]


COMMANDS = ["plan", "graph", "stats"]


@pytest.mark.parametrize("command, spec",
                         [("plan", TINY), ("plan", BIG), ("graph", TINY), ("graph", BIG), ("stats", TINY)],
                         ids=lambda value: value if isinstance(value, str) else value.stem)
def test_page_needs_no_other_files(tmp_path, command, spec):
    path = write(tmp_path, spec, command=command)
    text = path.read_text()
    page = Page(text)
    assert "link" not in page.tags and "@import" not in text and "url(" not in text
    for tag, name, value in page.attributes:
        assert name not in ("src", "srcset", "xlink:href") and (name != "href" or value.startswith("#"))
    assert re.findall(r"https?://[^\"' ]*", text) == ["http://www.w3.org/2000/svg"] * text.count("<svg ")
    assert len(text) < 1_500_000
    ids = {value for tag, name, value in page.attributes if name == "id"}
    assert {value[1:] for tag, name, value in page.attributes if name == "href"} <= ids
    again = path.read_bytes()
    assert write(tmp_path, spec, command=command).read_bytes() == again


def test_page_policy_allows_only_its_script(tmp_path):
    """The page's policy allows only its own script, by hash; report/templates/page.html has both."""
    text = write(tmp_path, TINY).read_text()
    [script] = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.search('http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hash}'"


def test_page_size_is_bounded(tmp_path):
    """A page stays small with the most ranks allowed, many kinds of tensors with long names, and more boxes than
    pixels."""
    spec = spec_of(tmp_path, "name: big\ndtype: f32\nuneven: chunk\nmesh: {axes: {fsdp: 4096, tensor: 4096}}\n"
                "rules: [{a: fsdp}, {b: tensor}]\nmodules:\n"
                + "".join(f"  {'x' * 240}.{'y' * 240}{n}: {{shape: [{n + 70000}, 65536], axes: [a, b], init: zeros}}\n"
                          for n in range(1100)))
    page = Page(write(tmp_path, spec).read_text())
    assert (tmp_path / "page.html").stat().st_size < 2_000_000
    assert len(page.titles("mesh")) == 64
    for sentence in ("each place represents 262,144 ranks.", "The first 400 groups of 1,100 are shown.",
                     "1,024 of them are drawn.", "Not drawn: there are too many different tensors and ranks.",
                     "are left out, to keep this page small"):
        assert sentence in page.text
    assert run_json("plan", spec)["min_rank_bytes"] is None
    assert write(tmp_path, spec, command="graph").stat().st_size < 2_500_000


@pytest.mark.parametrize("mesh, places, second", [
    ("fsdp: 1024", 1024, "rank 1 at [1]"), ("fsdp: 3000", 60, "ranks 50–99 at [50–99]"),
    ("fsdp: 1031", 61, "ranks 17–33 at [17–33]"), ("data: 4, fsdp: 512", 64, "ranks 32–63 at [0, 32–63]"),
    ("data: 128, fsdp: 3, tensor: 4", 64, "ranks 24–47 at [2–3, 0–2, 0–3]")])
def test_page_summarizes_many_ranks(tmp_path, mesh, places, second):
    """The places cover all ranks in order, and show the fewest and the most bytes that one of their ranks holds."""
    axis = mesh.split(":")[0]
    spec = spec_of(tmp_path, f"name: m\ndtype: f32\nuneven: chunk\nmesh: {{axes: {{{mesh}}}}}\nrules: [{{a: {axis}}}]\n"
                "modules: {w: {shape: [2000, 2], axes: [a, null], init: zeros}}\n")
    page, plan = Page(write(tmp_path, spec).read_text()), run_json("plan", spec)
    titles = page.titles("mesh")
    assert len(titles) == places and titles[1].startswith(second)
    ranks = [tuple(map(int, (m[1], m[2] or m[1])))
             for m in (re.match(r"ranks? (\d+)(?:–(\d+))? at", t) for t in titles)]
    assert ranks[0][0] == 0 and ranks[-1][1] == plan["world_size"] - 1
    assert all(before[1] + 1 == next[0] for before, next in zip(ranks, ranks[1:]))
    held = [re.search(r"holds? ([\d,]+)(?: to ([\d,]+))? bytes", title).groups() for title in titles]
    assert min(number(low) for low, _ in held) == plan["min_rank_bytes"]
    assert max(number(high or low) for low, high in held) == plan["max_rank_bytes"]


def test_page_cells_show_fewest_and_most_bytes(tmp_path):
    """A place shows the extremes wherever they are: first, middle or last rank, or all ranks but one."""
    more = [0, 75, 149, *range(200, 224), *range(225, 250), 2999]
    spec = spec_of(tmp_path, "name: m\ndtype: f32\nmesh: {axes: {fsdp: 3000}}\nrules: [{a: fsdp}]\nmodules:\n"
                   "  w: {shape: [3000], axes: [a], init: zeros}\n"
                   f"  v: {{shape: [10], init: ones, stage: {{fsdp: {more}}}}}\n")
    titles = Page(write(tmp_path, spec).read_text()).titles("mesh")
    held = [re.search(r"holds? ([\d,]+(?: to [\d,]+)?) bytes", title)[1] for title in titles]
    assert held == ["4 to 44" if {*range(50 * n, 50 * n + 50)} & {*more} else "4" for n in range(60)]


def tree_sizes(page):
    """Returns names and sizes in the tree of `graph --html`, in the order of the text."""
    return re.findall(r'<div class="leaf f">.*?</i>(.*?)</span>.*?<span class="n">(.*?)</span>',
                      page.replace("<wbr>", ""))


def test_graph_page_lists_tensors_in_order(tmp_path):
    text = write(tmp_path, "deepseek-v3", command="graph").read_text()
    leaves = tree_sizes(text)
    printed = run_ok("graph", "deepseek-v3").stdout
    rows = re.findall(r"^ *(\S+) +[\d,]+ +([\d.]+ \w+)  (?:bf16|f32) ", printed, re.MULTILINE)
    assert leaves == rows and leaves[0][0] == "embed_tokens.weight" and leaves[-1][0] == "lm_head.weight"
    # Each bar begins at the end of the previous one, and together they are 100 %.
    bars = [tuple(map(float, pair)) for pair in re.findall(
        r'<div class="leaf f">.*?<span class="bar"><i class="k" style="left:([\d.]+)%;width:([\d.]+)%', text)]
    assert len(bars) == len(leaves) and sum(width for _, width in bars) == pytest.approx(100, abs=0.1)
    for (left, width), (next, _) in zip(bars, bars[1:]):
        assert next == pytest.approx(left + width, abs=0.01)
    # Areas are proportional to bytes. Tensors that are too small are in the next treemap.
    page, plan = Page(text), run_json("plan", "deepseek-v3")
    areas = [width * height / 1e4 for _, _, width, height in page.areas("drawn0")]
    assert sum(areas) == pytest.approx(1, abs=1e-3)
    experts = 58 * 256 * 4096 * 7168 * 2 / plan["bytes"]
    assert areas[0] == pytest.approx(experts, abs=1e-3) and "experts.gate_up_proj" in page.titles("drawn0")[0]
    assert page.titles("drawn1")[0].startswith("model.embed_tokens.weight: ") and "lm_head" in page.titles("drawn1")[-2]


def test_graph_page_of_a_layout_and_a_selection(tmp_path):
    text = write(tmp_path, TINY, "--layout", "maxtext", "--only", "**.q_proj.*", "--depth", "1",
                 command="graph").read_text()
    page = Page(text)
    assert {"drawn0", "stored0"} <= page.boxes.keys() and "Stored by layout maxtext" in page.text
    assert [name for name, _ in tree_sizes(text)][0].endswith("q_proj.weight") and "stack" in text
    assert "k_proj" not in text and '<details class="branch" open>' not in text


def test_stats_page_shows_measured_values(tmp_path):
    page = Page(write(tmp_path, TINY, "--only", "model.layers.*.self_attn.q_proj.weight", command="stats").read_text())
    measured = run_json("stats", TINY, "--only", "model.layers.*.self_attn.q_proj.weight")["tensors"]
    [row] = page.tables["groups"][1:]
    assert row[0] == "model.layers.{0, 1}.self_attn.q_proj.weight" and row[1] == "2" and row[-1] == "yes"
    assert float(row[5]) == pytest.approx(min(m["min"] for m in measured), rel=5e-3)
    assert float(row[6]) == pytest.approx(max(m["max"] for m in measured), rel=5e-3)
    text = html.unescape((tmp_path / "stats.html").read_text())
    for m in measured:
        part = 100 * max(m["histogram"]) / sum(m["histogram"])
        assert m["path"] in text and f"<span>{part:.3g} %</span>" in text
        for count in m["histogram"]:
            assert not count or f"<title>{count:,} element" in text


def test_stats_page_groups_numbered_tensors(tmp_path):
    """Tensors with equal shape and type whose paths differ only in numbers form a group, and its row covers all of
    them."""
    spec = spec_of(tmp_path, """name: m
dtype: f32
modules:
  l:
    repeat: {i: 3}
    w: {shape: [40, 30], init: {normal: {std: 1 / (i + 1)}}}
    b: {shape: [4], init: {constant: {value: i}}}
  x.0: {shape: [50], init: {uniform: {low: 1, high: 2}}, dtype: bf16}
  x.1: {shape: [50], init: {uniform: {low: 3, high: 5}}}
  x.2: {shape: [50], init: {uniform: {low: -1, high: 2}}, dtype: bf16}
  x.3: {shape: [60], init: {uniform: {low: 3, high: 5}}}
""")
    page = Page(write(tmp_path, spec, command="stats").read_text())
    by_path = {m["path"]: m for m in run_json("stats", spec)["tensors"]}
    groups = {"l.{0…2}.w": ["l.0.w", "l.1.w", "l.2.w"], "l.{0…2}.b": ["l.0.b", "l.1.b", "l.2.b"],
              "x.{0, 2}": ["x.0", "x.2"], "x.1": ["x.1"], "x.3": ["x.3"]}

    def from_to(numbers):
        ends = [f"{end:.3g}" for end in (min(numbers), max(numbers))]
        return ends[0] if ends[0] == ends[1] else " … ".join(ends)

    wanted = []
    for name, paths in groups.items():
        of = [by_path[path] for path in paths]
        fits = [m["ks"]["probability"] for m in of if m["ks"]]
        wanted.append([name, str(len(of)), *(from_to([m[key] for m in of]) for key in ("mean", "std")),
                       from_to([m["declared"]["std"] for m in of]), f"{min(m['min'] for m in of):.3g}",
                       f"{max(m['max'] for m in of):.3g}", f"{min(fits):.3g}" if fits else "-", "yes"])
    assert sorted(page.tables["groups"][1:]) == sorted(wanted)
    for line in ("f32 [40, 30], normal mean 0 std {1…0.3333333333333333}", "f32 [4], constant {0…2}",
                 "bf16 [50], uniform {-1, 1} to 2", "f32 [50], uniform 3 to 5", "f32 [60], uniform 3 to 5"):
        assert page.text.count(f"{line}\n") == 1, page.text


def test_stats_page_marks_tensors_not_as_declared(tmp_path):
    spec = spec_of(tmp_path, "name: m\ndtype: f32\nmodules: {w: {shape: [1000], init: ones}}\n")
    run_ok("gen", spec, "-o", tmp_path / "c")
    [path] = (tmp_path / "c/ranks").glob("*.h5")
    data = path.read_bytes()
    path.write_bytes(data.replace(struct.pack("<f", 1.0) * 8, struct.pack("<ff", 1.5, float("nan")) * 4, 1))
    result = run_tool("stats", tmp_path / "c", "--html", tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text())
    assert result.returncode == 1 and "1 tensor is not as declared." in page.text and page.tables["groups"][1][-1] == "no: 1"


@pytest.mark.parametrize("values, said",
                         [([1.5] * 6, "All elements are 1.5."), ([float("nan")] * 6, "No element is finite."),
                                          ([-1.7e308, 1.7e308] * 3, "<svg")], ids=["equal", "none", "largest"])
def test_stats_page_handles_values_without_a_range(tmp_path, values, said):
    data = struct.pack("<6d", *values)
    (tmp_path / "values.bin").write_bytes(data)
    spec = spec_of(tmp_path, "name: m\ndtype: f64\nmodules: {w: {shape: [6], init: {file: {path: values.bin, sha256: "
                   + hashlib.sha256(data).hexdigest() + "}}}}\n")
    text = write(tmp_path, spec, command="stats").read_text()
    page = Page(text)
    assert page.tables["groups"][1][0] == "w" and said in text and not re.search(r"\b(inf|nan)\b",
                                                                                 text.split("<main>")[1])


def test_plan_balance_matches_numbers_counted_by_hand(tmp_path):
    """Numbers counted by hand: 4 ranks hold 2, 2, 1 and 0 of 5 rows, and every rank holds a scale."""
    spec = spec_of(tmp_path, "name: m\ndtype: f32\nuneven: chunk\nmesh: {axes: {fsdp: 4, data: 2}}\n"
                             "rules: [{a: fsdp}]\n"
                "modules:\n  w: {shape: [5, 10], axes: [a, null], init: zeros}\n"
                "  s: {shape: [10], axes: [null], init: ones}\n")
    plan = run_json("plan", spec)
    assert plan["max_rank_bytes"] == 120 and plan["min_rank_bytes"] == 40
    assert plan["held_bytes"] == 2 * 200 + 8 * 40 and plan["file_bytes"] == plan["bytes"] == 240
    assert plan["imbalance"] == pytest.approx(120 / (720 / 8)) and plan["padding_bytes"] == 8 * 80 - 400
    full = run_json("plan", spec, "--replicas", "full")
    assert full["file_bytes"] == full["held_bytes"] == 720
    amounts = Page(write(tmp_path, spec).read_text()).tables["amounts"]
    assert [(number(row[0]), number(row[2])) for row in amounts[1:]] == [(40, 2), (80, 2), (120, 4)]


@pytest.mark.parametrize("spec, options", [(file_of("plan", "plan_segments"), []),
                                           (TINY, ["--mesh", "fsdp=3,tensor=1"])])
def test_plan_balance_covers_all_ranks(spec, options):
    plan = run_json("plan", spec, *options, "--replicas", "full")
    ranks = [run_json("plan", spec, *options, "--replicas", "full", "--rank", rank)["rank_bytes"]
             for rank in range(plan["world_size"])]
    assert (plan["min_rank_bytes"], plan["max_rank_bytes"]) == (min(ranks), max(ranks))
    assert plan["held_bytes"] == plan["file_bytes"] == sum(ranks)
    assert plan["imbalance"] == pytest.approx(max(ranks) * len(ranks) / sum(ranks))


# Ways to shard, in a spec and by stages. Neighbours are similar but must be kept apart.
SIZES = {"a": 2, "b": 3, "c": 2}
WAYS = [("[a]", {}), ("[b]", {}), ("[null, a]", {}), ("[null, b]", {}), ("[a, b]", {}), ("[b, a]", {}),
        ("[[b, a]]", {}), ("[[a, b]]", {}), ("{a: Shard(0), b: Shard(0)}", {}),
        ("{a: Shard(0), b: _StridedShard(0, split_factor=2)}", {}),
        ("[{axes: [a], segments: 2}]", {}), ("[{axes: [a], segments: 4}]", {}), ("[a]", {}), ("[a]", {"c": [0]}),
        ("[a]", {"c": [1]}), ("[a]", {"b": [1]}), ("[a]", {"b": [0]}), ("[a]", {"b": [0, 1]}), ("[a]", {"b": [1, 2]}),
        ("[a]", {"b": [1], "c": [0]}), ("[a]", {"b": [0], "c": [1]})]


@pytest.mark.parametrize("first", range(0, len(WAYS) - 1, 3))
def test_plan_balance_of_similar_tensors(tmp_path, first):
    draw = random.Random(first)
    some = WAYS[first:first + 4]
    modules, placements, could_hold, of_element = "", "", {}, {}
    for number, (shard, stage) in enumerate(draw.sample(2 * some, 2 * len(some))):
        dtype, shape = draw.choice(["f32", "f32", "u32", "f64"]), draw.choice([[9, 7], [9, 7], [9, 7], [7, 9]])
        modules += (f"  w{number}: {{shape: {shape}, dtype: {dtype}, init: zeros, "
                    f"stage: {stage or 'null'}"
                    + ("" if "Shard(" in shard else f", shard: {shard}") + "}\n")
        placements += f"    w{number}: {shard}\n" if "Shard(" in shard else ""
        of_element[f"w{number}"] = 8 if dtype == "f64" else 4
        could_hold[f"w{number}"] = math.prod(len(stage.get(axis, range(size))) for axis, size in SIZES.items())
    spec = spec_of(tmp_path, f"name: m\nuneven: chunk\nmesh: {{axes: {json.dumps(SIZES)}}}\n"
                   + (f"sharding:\n  map:\n{placements}" if placements else "") + f"modules:\n{modules}")
    for replicas in "dedupe", "full":
        plan = run_json("plan", spec, "--replicas", replicas)
        ranks = [run_json("plan", spec, "--replicas", replicas, "--rank", rank) for rank in range(12)]
        stored = [rank["rank_bytes"] for rank in ranks]
        assert plan["file_bytes"] == sum(stored)
        count, at = draw.randint(2, 7), 0
        for part in range(count):
            part = run_json("plan", spec, "--replicas", replicas, "--part", f"{part}/{count}")["part"]
            assert part["bytes"] == sum(stored[at:at + part["rank_count"]])
            at += part["rank_count"]
    assert (plan["min_rank_bytes"], plan["max_rank_bytes"]) == (min(stored), max(stored))
    assert plan["held_bytes"] == sum(stored)
    assert plan["imbalance"] == pytest.approx(max(stored) * 12 / sum(stored))
    padding = 0
    for path, size in of_element.items():
        held = [size * sum(math.prod(box["shape"]) for box in rank["boxes"] if box["path"] == path) for rank in ranks]
        padding += max(held) * could_hold[path] - sum(held)
    assert plan["padding_bytes"] == padding


@pytest.mark.parametrize("command", COMMANDS)
def test_html_to_standard_output_is_rejected(tmp_path, command):
    result = run_tool(command, "--html", "-", TINY, cwd=tmp_path)
    assert result.returncode == 2 and "`--html` needs the name of a file" in result.stderr
    assert not (tmp_path / "-").exists()


# Tests in a browser.

CHROMIUM = shutil.which("chromium")
browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: no page was seen in a browser")


def chromium(tmp_path, *arguments):
    result = subprocess.run(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         f"--user-data-dir={tmp_path}/browser", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


@browser
def test_browser_renders_the_numbers(tmp_path):
    spec = spec_of(tmp_path, "name: m\ndtype: f32\nmesh: {axes: {fsdp: 4}}\nrules: [{a: fsdp}]\n"
                "modules:\n  u: {shape: [7], init: ones}\n  w: {shape: [8], axes: [a], init: zeros}\n")
    path = write(tmp_path, spec)
    seen = chromium(tmp_path, "--dump-dom", f"{path.as_uri()}#t1")
    page, written = Page(seen), Page(path.read_text())
    assert page.title == "m" and page.tables == written.tables
    assert {name: page.titles(name) for name in page.boxes} == {name: written.titles(name) for name in written.boxes}
    assert page.titles("t1") == [f"rank {rank}: [{2 * rank}:{2 * rank + 2}]" for rank in range(4)]
    # The link to a tensor's boxes opens them and closes the ones opened before.
    assert [' open=""' in tag for tag in re.findall("<details[^>]*>", seen)] == [False, True]


def pixel(png):
    """Returns the first pixel of a PNG, which no filter changes."""
    data, at = b"", 8
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at:at + 8])
        data += png[at + 8:at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    return tuple(zlib.decompress(data)[1:4])


@browser
@pytest.mark.parametrize("scheme, colour", [(0, (0x16, 0x18, 0x1b)), (1, (255, 255, 255))], ids=["dark", "light"])
def test_browser_applies_the_colour_scheme(tmp_path, scheme, colour):
    chromium(tmp_path, f"--screenshot={tmp_path}/page.png", f"--blink-settings=preferredColorScheme={scheme}",
             write(tmp_path, TINY).as_uri())
    assert pixel((tmp_path / "page.png").read_bytes()) == colour


# Measures a page in a frame as wide as a phone: elements that are too wide, and the lowest contrast of text. Chromium's
# own window cannot be narrower than 500 pixels. The page's script runs under its policy.
MEASURE = """<!DOCTYPE html><body><iframe id="page" style="border:0;width:WIDTHpx;height:800px"></iframe><script>
const frame = document.getElementById('page'), found = {};
const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const light = colour => {
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(v => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const backOf = e => {
  for (; e; e = e.parentElement) {
    const back = getComputedStyle(e).backgroundColor;
    if (back !== 'rgba(0, 0, 0, 0)') return back;
  }
};
frame.onload = () => {
  const page = frame.contentDocument, box = page.getElementById('filter');
  found.width = page.documentElement.scrollWidth;
  found.dark = frame.contentWindow.matchMedia('(prefers-color-scheme: dark)').matches;
  found.contrast = 99, found.texts = 0;
  const texts = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  for (let node; node = texts.nextNode();) {
    const e = node.parentElement;
    if (!node.data.trim() || e.closest('script, svg, option')) continue;
    const a = light(frame.contentWindow.getComputedStyle(e).color), b = light(backOf(e));
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    ++found.texts;
    if (contrast < found.contrast) { found.contrast = contrast; found.least = node.data; }
  }
  const shown = () => [...page.querySelectorAll('tr.f, .leaf.f')].filter(e => e.getClientRects().length).length;
  found.before = shown();
  box.value = 'NORM wei';
  box.dispatchEvent(new Event('input'));
  found.after = shown();
  box.value = 'nothing has this name';
  box.dispatchEvent(new Event('input'));
  found.none = shown(), found.said = page.getElementById('found').textContent;
  document.body.dataset.found = JSON.stringify(found);
};
frame.srcdoc = PAGE;
</script></body>"""


@browser
@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
@pytest.mark.parametrize("command, spec", [("plan", "deepseek-v3"), ("graph", "deepseek-v3"), ("stats", "llama3-tiny"),
                                           ("plan", "many"), ("plan", "one")])
def test_page_fits_phone_and_desktop_widths(tmp_path, command, spec, scheme):
    if spec in ("many", "one"):
        spec = spec_of(tmp_path, {"many": "name: many\ndtype: f32\nuneven: chunk\nmesh: {axes: {fsdp: 3000}}\n"
                                          "rules: [{a: fsdp}]\nmodules: {norm.weight: {shape: [8000], axes: [a], init: "
                                          "ones}}\n",
                                  "one": "name: one\ndtype: f32\nmodules: {norm.weight: {shape: [4], init: zeros}}\n"}[spec])
    text = write(tmp_path, spec, command=command).read_text()
    for width in (390, 1600):
        frame = MEASURE.replace("WIDTH", str(width)).replace("PAGE", json.dumps(text).replace("</", "<\\/"))
        (tmp_path / "frame.html").write_text(frame)
        dom = chromium(tmp_path, "--dump-dom", f"--blink-settings=preferredColorScheme={scheme}",
                       "--window-size=1700,900", (tmp_path / "frame.html").as_uri())
        found = json.loads(html.unescape(re.search('data-found="([^"]*)"', dom)[1]))
        assert found["width"] <= width and found["dark"] == (scheme == 0)
        assert found["texts"] > 10 and found["contrast"] >= 4.5, found
        assert found["before"] >= found["after"] > 0 == found["none"] and found["said"]
        assert found["before"] > found["after"] or found["before"] == 1
