"""Reads random folders from a bucket that fails at times; commands must print and write the same as for the folder on
disk.

The packages that own the formats write the folders."""

import pathlib
import tempfile

import pytest
from bucket_tools import Faults, compare, put
from generated import generated, given
from hypothesis import strategies as st
from object_store import serve
from test_generated_folders import WRITERS, made, tensors, write


def folders_in_buckets():
    return st.fixed_dictionaries({"forms": tensors(), "writer": st.sampled_from(list(WRITERS)), "bits": st.integers(0, 99),
                                  "faults": st.one_of(st.none(), st.integers(0, 99)),
                                  "words": st.sampled_from([["digest", "in"], ["inspect", "in", "--json"],
                                                            ["stats", "in"],
                                                            ["convert", "in", "--to", "safetensors", "-o"],
                                                            ["convert", "in", "--to", "hdf5", "-o"]])})


@pytest.fixture(scope="module")
def running_store():
    with serve() as store:
        yield store


@generated(20)
@given(case=folders_in_buckets())
def test_random_folders_in_buckets_are_read_like_local_ones(running_store, case):
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        path = write(case["writer"], made(case["forms"], case["bits"]), folder)
        running_store.reset()
        put(running_store, path, f"models/{path.name}")
        if case["faults"] is not None:
            running_store.faults = Faults(case["faults"], 0.1)
        words = [path.name if word == "in" else word for word in case["words"]]
        compare(running_store, words, folder, path.name, AWS_MAX_ATTEMPTS="30")
