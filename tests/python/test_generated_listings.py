"""Lists a bucket in random pages, with odd keys and the faults of a broken or lying store; `convert` must write exactly
the stored model, or nothing."""

import os
import pathlib
import subprocess
import tempfile

import numpy as np
import pytest
import safetensors.numpy
from generated import generated, given
from hypothesis import strategies as st
from lying_store import contents, listing, lying_store
from support import BINARY

# Other objects that may be next to a model, but do not belong to it.
ODD = ["..", "./x", "../x", "a//b", "/", "new\nline", "tab\t.txt", "x" * 950, "folder/", "part-0.safetensors/",
       "part-0.safetensors/x",
       "ü", "\u202etxt.x", "a%2Fb", "a+b", "$folder$", "-rf", "a\\b", "\x7f", "\x01", "<Key>", "&amp;", "'\"",
       "_SUCCESS", ".cache/huggingface/x.lock", "logs/events.out", "a b", "zz/\n/y"]
CUT, END = "<IsTruncated>true</IsTruncated>", "<IsTruncated>false</IsTruncated>"
# Ways in which a list can differ from a complete, ordered one.
FAULTS = ["no token", "same token", "first token", "again", "for ever", "back", "outside", "group", "both", "flag",
          "torn", "html", "no size", "encoding", "empty token"]


def token(number):
    return f"<NextContinuationToken>t{number}</NextContinuationToken>"


@st.composite
def lists(draw):
    models = draw(st.integers(1, 4))
    keys = [f"part-{number}.safetensors" for number in range(models)]
    keys = sorted({f"p/{key}" for key in keys + draw(st.lists(st.sampled_from(ODD), max_size=4))}, key=str.encode)
    cuts = sorted(draw(st.lists(st.integers(0, len(keys)), max_size=5)))  # Equal cuts make empty pages.
    pages = [keys[first:last] for first, last in zip([0, *cuts], [*cuts, len(keys)], strict=True)]
    return {"models": models, "pages": pages, "fault": draw(st.one_of(st.none(), st.sampled_from(FAULTS))),
            "at": draw(st.integers(0, len(pages) - 1)), "has_flag": draw(st.booleans())}


def answers(case, objects):
    """Returns the function that answers requests for a page."""
    pages, fault, at = case["pages"], case["fault"], case["at"]

    def page(query):
        asked = query.get("continuation-token", "t0")
        number = int(asked[1:])
        inside = [contents(key, objects[key]) for key in (pages[number] if number < len(pages) else [])]
        is_last = number >= len(pages) - 1
        end = END if is_last else CUT + token(number + 1)
        if is_last and not case["has_flag"]:
            end = ""  # Some stores omit it at the end.
        if fault == "for ever" and number >= at:
            return listing(CUT, token(number + 1))
        if fault == "again" and number > at:
            return listing(*[contents(key, objects[key]) for key in pages[at]], CUT, token(number + 1))
        if number == at:
            first = contents("p/a", b"1")
            change = {"no token": lambda: (inside, CUT), "same token": lambda: (inside, CUT + token(at)),
                      "first token": lambda: (inside, CUT + token(0)),
                      "back": lambda: ([contents("p/zzz", b"1"), first], end),
                      "outside": lambda: ([*inside, contents("q/zzz.safetensors", b"1")], end),
                      "group": lambda: (inside, end + "<CommonPrefixes><Prefix>p/more/</Prefix></CommonPrefixes>"),
                      "both": lambda: (inside, END + token(at + 1)),
                      "flag": lambda: (inside, "<IsTruncated>maybe</IsTruncated>" + token(at + 1)),
                      "no size": lambda: (["<Contents><Key>p/0</Key><ETag>e</ETag></Contents>"], end),
                      "encoding": lambda: (inside, "<EncodingType>url</EncodingType>" + end),
                      "empty token": lambda: (inside, CUT + "<NextContinuationToken></NextContinuationToken>")}
            if fault in change:
                inside, end = change[fault]()
            if fault == "torn":
                return listing(*inside, end)[:-20]
            if fault == "html":
                return "<html><body>Please log in</body></html>"
        return listing(*inside, end)

    return page


@pytest.fixture(scope="module")
def store():
    with lying_store() as running:
        yield running


@generated(40)
@given(case=lists())
def test_convert_handles_random_bucket_listings(store, case):
    keys = [key for page in case["pages"] for key in page]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        store.objects = dict.fromkeys(keys, b"junk")
        for number in range(case["models"]):
            file = folder / "file"
            safetensors.numpy.save_file({f"w{number}": np.full(3, number, np.float32)}, file)
            store.objects[f"p/part-{number}.safetensors"] = file.read_bytes()
        store.pages, store.asked = answers(case, store.objects), []
        done = subprocess.run([BINARY, "convert", "s3://bucket/p", "--to", "safetensors", "-o", folder / "out"],
                              cwd=folder,
                              env={**{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
                                   "AWS_ENDPOINT_URL": store.url, "AWS_ACCESS_KEY_ID": "AKID",
                                   "AWS_SECRET_ACCESS_KEY": "secret",
                                   "AWS_REGION": "eu-west-1", "AWS_MAX_ATTEMPTS": "1", "HOME": scratch},
                              capture_output=True, text=True, timeout=120, check=False)
        assert len(store.asked) < 200
        if case["fault"] is None or (case["fault"] == "again" and case["at"] == len(case["pages"]) - 1):
            assert done.returncode == 0, done
            made = {}
            for file in (folder / "out").glob("*.safetensors"):
                made.update(safetensors.numpy.load_file(file))
            assert {name: value.tolist() for name, value in made.items()} == {f"w{n}": [n] * 3
                                                                              for n in range(case["models"])}
        else:
            assert done.returncode in (2, 3) and "cannot list `s3://bucket/p/`: " in done.stderr, done
            assert not (folder / "out").exists()
