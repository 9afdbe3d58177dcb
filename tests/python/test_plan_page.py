"""Reads `plan --html` as a parser does, and as a browser does."""

import json
import re
import shutil
import struct
import subprocess
import zlib
from html.parser import HTMLParser

import pytest

from support import ROOT, TINY, run_json, run_ok, run_tool

BIG = ROOT / "configs/llama3.1-405b.yaml"
VOID = {"meta"}

# These would end a tag, a quote, a title or a line's direction.
HOSTILE = """</title><script>alert(1)</script>"'&amp;<img src=x onerror=alert(2)>"""


class Page(HTMLParser):
    """The text of rectangles by the id of their picture, rows of tables by id, and all tags, which
    must nest."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open = [], [], []
        self.boxes, self.tables, self.text, self.title = {}, {}, "", ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attributes.items()]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "svg":
            self.boxes[attributes["id"]] = self.picture = []
        elif tag == "rect":
            self.picture.append({**attributes, "title": ""})
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
        if "rect" in self.open:
            self.picture[-1]["title"] += data
        elif "td" in self.open or "th" in self.open:
            self.table[-1][-1] += data
        elif "title" in self.open:
            self.title += data
        elif "style" not in self.open:
            self.text += data

    def titles(self, picture):
        return [box["title"] for box in self.boxes[picture] if box["title"]]


def write(folder, *arguments):
    path = folder / "page.html"
    run_ok("plan", "--html", path, *arguments)
    return path


def spec_of(folder, text):
    path = folder / "spec.yaml"
    path.write_text("shardinit: 1\n" + text)
    return path


def number(text):
    return int(text.replace(",", ""))


def test_numbers_are_those_of_the_plan(tmp_path):
    page = Page(write(tmp_path, TINY).read_text())
    plan = run_json("plan", TINY, "--devices")
    rows = dict(row for row in page.tables["plan"])
    assert page.title == plan["name"]
    assert number(rows["parameters"]) == plan["parameters"] and number(rows["tensors"]) == plan["tensors"]
    tensors = page.tables["tensors"][1:]
    assert sum(number(row[1]) for row in tensors) == plan["tensors"]
    # A tensor's boxes, times the tensors of its group.
    assert sum(number(row[1]) * number(row[6]) for row in tensors) == plan["box_count"]
    for device, title in zip(plan["devices"], page.titles("mesh"), strict=True):
        assert title.startswith("rank {rank} at {coordinate}: device {id} in slice {slice}; ".format(**device))
    for rank, title in enumerate(page.titles("mesh")):
        held, stored = map(number, re.search(r"holds ([\d,]+) bytes, ([\d,]+) of them", title).groups())
        assert stored == run_json("plan", TINY, "--rank", rank)["rank_bytes"]
        assert plan["min_rank_bytes"] <= held <= plan["max_rank_bytes"]


def test_boxes_are_those_of_the_ranks(tmp_path):
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


def test_boxes_fill_the_picture_once(tmp_path):
    page = Page(write(tmp_path, TINY).read_text())
    for name, boxes in page.boxes.items():
        if re.fullmatch(r"t\d+", name):
            area = sum(float(box["width"]) * float(box["height"]) for box in boxes)
            right = max(float(box["x"]) + float(box["width"]) for box in boxes)
            below = max(float(box["y"]) + float(box["height"]) for box in boxes)
            assert area == pytest.approx(right * below, rel=1e-3)
            assert len({box["fill"] for box in boxes}) == len(boxes)


def test_slices_and_devices(tmp_path):
    spec = spec_of(tmp_path, "name: m\ndtype: f32\nmesh: {axes: {fsdp: 4, tensor: 2}, slices: {fsdp: 2}, "
                "slice_order: inner}\nrules: [{a: fsdp}, {b: tensor}]\n"
                "modules: {w: {shape: [8, 8], axes: [a, b], init: zeros}}\n")
    page = Page(write(tmp_path, spec).read_text())
    devices = run_json("plan", spec, "--devices")["devices"]
    found = [tuple(map(int, re.search(r"device (\d+) in slice (\d+)", title).groups()))
             for title in page.titles("mesh")]
    assert found == [(d["id"], d["slice"]) for d in devices]
    bars = [box["fill"] for box in page.boxes["mesh"] if not box["title"]]
    assert len(bars) == 8 and len(set(bars)) == 2
    assert [bar == bars[0] for bar in bars] == [d["slice"] == devices[0]["slice"] for d in devices]


@pytest.mark.parametrize("name, key, axis", [
    (HOSTILE, "w", "a"), ("m", HOSTILE.replace(".", "_"), "a"), ("m", "w", HOSTILE)], ids=["model", "tensor", "axis"])
def test_no_name_breaks_out(tmp_path, name, key, axis):
    """Specs refuse such names, or the page escapes them (tests/unit/report_html_test.cc)."""
    spec = spec_of(tmp_path, f"name: {json.dumps(name)}\ndtype: f32\nmesh: {{axes: {{{json.dumps(axis)}: 2}}}}\n"
                f"rules: [{{r: {json.dumps(axis)}}}]\n"
                f"modules: {{{json.dumps(key)}: {{shape: [2], axes: [r], init: zeros}}}}\n")
    result = run_tool("plan", "--html", tmp_path / "page.html", spec)
    if result.returncode:
        assert result.returncode == 2 and "spec.yaml:" in result.stderr
        assert not (tmp_path / "page.html").exists()
        return
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert {"script", "img"} & set(page.tags) == set()
    assert page.tags.count("title") == 1 + text.count("</title></rect>")
    assert not [a for a in page.attributes if a[1].startswith("on")]


@pytest.mark.parametrize("spec", [TINY, BIG], ids=lambda path: path.stem)
def test_stands_alone(tmp_path, spec):
    text = write(tmp_path, spec).read_text()
    page = Page(text)
    assert "script" not in page.tags and "link" not in page.tags and "@import" not in text
    for tag, name, value in page.attributes:
        assert name not in ("src", "srcset", "xlink:href") and (name != "href" or value.startswith("#t"))
    assert "url(" not in text and "default-src 'none'" in text
    assert re.findall(r"https?://[^\"' ]*", text) == ["http://www.w3.org/2000/svg"] * text.count("<svg ")
    assert len(text) < 2_000_000
    targets = {value for tag, name, value in page.attributes if name == "href"}
    assert targets <= {"#" + name for name in page.boxes}


def test_size_is_bounded(tmp_path):
    """All ranks that may be, tensors of many kinds with a long name, and more boxes than pixels."""
    spec = spec_of(tmp_path, "name: big\ndtype: f32\nuneven: chunk\nmesh: {axes: {fsdp: 4096, tensor: 4096}}\n"
                "rules: [{a: fsdp}, {b: tensor}]\nmodules:\n"
                + "".join(f"  {'x' * 240}.{'y' * 240}{n}: {{shape: [{n + 70000}, 65536], axes: [a, b], init: zeros}}\n"
                          for n in range(1100)))
    page = Page(write(tmp_path, spec).read_text())
    assert (tmp_path / "page.html").stat().st_size < 2_000_000
    for sentence in ("The first 1,024 of 16,777,216 ranks are drawn.", "The first 400 groups are shown.",
                     "1,024 of them are drawn.", "Not drawn: there are too many different tensors.",
                     "are left out, to keep this page small"):
        assert sentence in page.text
    assert run_json("plan", spec)["min_rank_bytes"] is None


def test_least_mean_and_padding(tmp_path):
    """Counted by hand: 5 rows over 4 ranks are 2, 2, 1, 0; a scale on every rank."""
    spec = spec_of(tmp_path, "name: m\ndtype: f32\nuneven: chunk\nmesh: {axes: {fsdp: 4, data: 2}}\nrules: [{a: fsdp}]\n"
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


@pytest.mark.parametrize("case", ["plan_segments", "plan_llama3_tiny_uneven"])
def test_balance_is_that_of_all_ranks(case):
    folder = ROOT / "golden" / case
    words = (folder / "cmd").read_text().split()
    spec = [word for word in words[1:] if word.endswith(".yaml")]
    rest = [w for pair in zip(words, words[1:]) if pair[0] in ("--set", "--mesh") for w in pair]
    plan = run_json("plan", *spec, *rest, "--replicas", "full", cwd=folder)
    ranks = [run_json("plan", *spec, *rest, "--replicas", "full", "--rank", rank, cwd=folder)["rank_bytes"]
             for rank in range(plan["world_size"])]
    assert (plan["min_rank_bytes"], plan["max_rank_bytes"]) == (min(ranks), max(ranks))
    assert plan["held_bytes"] == plan["file_bytes"] == sum(ranks)
    assert plan["imbalance"] == pytest.approx(max(ranks) * len(ranks) / sum(ranks))


def test_standard_output_is_refused(tmp_path):
    result = run_tool("plan", "--html", "-", TINY, cwd=tmp_path)
    assert result.returncode == 2 and "`--html` needs the name of a file" in result.stderr
    assert not (tmp_path / "-").exists()


# In a browser.

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
def test_browser_reads_the_numbers(tmp_path):
    spec = spec_of(tmp_path, "name: m\ndtype: f32\nmesh: {axes: {fsdp: 4}}\nrules: [{a: fsdp}]\n"
                "modules:\n  u: {shape: [7], init: ones}\n  w: {shape: [8], axes: [a], init: zeros}\n")
    path = write(tmp_path, spec)
    seen = chromium(tmp_path, "--dump-dom", f"{path.as_uri()}#t1")
    page, written = Page(seen), Page(path.read_text())
    assert page.title == "m" and "script" not in page.tags
    assert page.tables == written.tables and page.boxes == written.boxes
    assert page.titles("t1") == [f"rank {rank}: [{2 * rank}:{2 * rank + 2}]" for rank in range(4)]
    # The link to a tensor's boxes shows them, and closes those that were shown.
    assert [' open=""' in tag for tag in re.findall("<details[^>]*>", seen)] == [False, True]


def pixel(png):
    """The first of a PNG, which no filter changes."""
    data, at = b"", 8
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at:at + 8])
        data += png[at + 8:at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    return tuple(zlib.decompress(data)[1:4])


@browser
@pytest.mark.parametrize("scheme, colour", [(0, (0x16, 0x18, 0x1b)), (1, (255, 255, 255))], ids=["dark", "light"])
def test_browser_follows_the_reader(tmp_path, scheme, colour):
    chromium(tmp_path, f"--screenshot={tmp_path}/page.png", f"--blink-settings=preferredColorScheme={scheme}",
             write(tmp_path, TINY).as_uri())
    assert pixel((tmp_path / "page.png").read_bytes()) == colour
