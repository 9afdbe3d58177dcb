"""Among random names, each clash of names and each shared stream is reported at its place, and nothing else is
reported."""

import re

from hypothesis import strategies as st

from generated import generated, given
from support import run_tool

MOST = 20  # errors that are printed
# Some are prefixes of others, and one has a character that sorts before the dot.
PARTS = st.sampled_from(["h", "h1", "h10", "h-1"])
PATHS = st.lists(PARTS, min_size=1, max_size=3).map(".".join)


def put(tree, path, tensor, draw):
    """Adds the tensor to nested modules, some with dots in their names. Returns False if the path is taken."""
    parts = path.split(".")
    for length in draw(st.permutations(range(1, len(parts) + 1))):
        name, rest = ".".join(parts[:length]), ".".join(parts[length:])
        there = tree.get(name)
        if not rest and there is None:
            tree[name] = tensor
            return True
        if rest and (there is None or isinstance(there, dict)):
            inner = {} if there is None else there
            if put(inner, rest, tensor, draw):
                tree[name] = inner
                return True
    return False


def lines_of(tree, indent, before, tensors):
    """Yields YAML lines of nested modules. Appends each tensor to `tensors` in order as (path, column, key, is
    random)."""
    for name, value in tree.items():
        path = f"{before}{name}"
        if isinstance(value, dict):
            yield f"{indent}{name}:"
            yield from lines_of(value, indent + "  ", path + ".", tensors)
        else:
            key, is_random = value
            tensors.append((path, len(indent) + 1, key or path, is_random))
            yield (f"{indent}{name}: {{shape: [2], init: {'{normal: {std: 1}}' if is_random else 'ones'}"
                   f"{f', key: {key}' if key else ''}}}")


@st.composite
def specs(draw, paths=PATHS):
    """Draws a spec's text, and its tensors as (path, place, key, is random); a place is `LINE:COLUMN`."""
    tree = {}
    for path in draw(st.lists(paths, min_size=draw(st.integers(2, 40)), max_size=40)):
        put(tree, path, (draw(st.none() | st.sampled_from(["k", "h", "h.w"])), draw(st.booleans())), draw)
    head = ["shardinit: 1", "name: x", "dtype: f32", "modules:"]
    found = []
    lines = head + list(lines_of(tree, "  ", "", found))
    leaves = [number for number, line in enumerate(lines, 1) if "shape:" in line]
    return "\n".join(lines) + "\n", [(path, f"{line}:{column}", key, is_random)
                                     for line, (path, column, key, is_random) in zip(leaves, found)]


def clashes(tensors):
    """Yields (place, message, place of the note) of each mistake by comparing all pairs."""
    firsts = {}
    for path, place, *_ in tensors:
        if path in firsts:
            yield place, f"two tensors have the path `{path}`", firsts[path]
        firsts.setdefault(path, place)
    for path, place in firsts.items():
        inner = next(((other, at) for other, at, *_ in tensors if other.startswith(path + ".")), None)
        if inner:
            yield place, f"`{path}` is a tensor and also the group of `{inner[0]}`", inner[1]


def shared(tensors):
    lasts = {}
    for path, place, key, is_random in tensors:
        if not is_random:
            continue
        if key in lasts:
            other, at = lasts[key]
            yield place, f"`{other}` and `{path}` would be drawn from the same random stream", at
        lasts[key] = path, place


def said(text):
    """Parses the program's messages into the same form."""
    found = re.findall(r"^spec.yaml:(\d+:\d+): (error|note): (.*)$", text, re.MULTILINE)
    assert len(found) % 2 == 0 and [kind for _, kind, _ in found] == ["error", "note"] * (len(found) // 2), text
    return [(place, message, note) for (place, _, message), (note, _, _) in zip(found[::2], found[1::2])]


def check(text, tensors, tmp_path):
    (tmp_path / "spec.yaml").write_text(text)
    result = run_tool("validate", "spec.yaml", cwd=tmp_path)
    wanted = sorted(list(clashes(tensors)) or list(shared(tensors)))
    assert result.returncode == (2 if wanted else 0), result.stderr
    found = said(result.stderr)
    if len(wanted) <= MOST:
        assert sorted(found) == wanted
    else:
        assert len(found) == MOST and set(found) < set(wanted), result.stderr


@generated(150)
@given(case=specs())
def test_validate_reports_random_name_clashes(case, tmp_path_factory):
    check(*case, tmp_path_factory.mktemp("names"))


@generated(100)
@given(case=specs(st.integers(0, 60).map(lambda number: f"h{number}.w")))
def test_validate_reports_random_shared_streams(case, tmp_path_factory):
    """Shared streams are reported for names that do not clash."""
    check(*case, tmp_path_factory.mktemp("keys"))
