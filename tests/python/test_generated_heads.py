"""For random heads and degrees of tensor parallelism, the sharding files of Megatron and torchtitan refuse exactly the
cases that the trainers' own checks refuse."""

import pathlib
import tempfile

from clients import client_of
from generated import generated, given
from hypothesis import strategies as st
from support import run_tool
from test_sharding import ask, preset_of

CASES = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12), st.sampled_from([1, 2, 4, 8, 16])), min_size=12,
                 max_size=12)


@generated(1)  # The packages take a minute to import.
@given(cases=CASES)
def test_sharding_presets_reject_heads_that_trainers_reject(cases):
    client_of("torchtitan")
    client_of("megatron")
    cases = [(kv_heads * groups, kv_heads, tensor) for kv_heads, groups, tensor in cases]
    with tempfile.TemporaryDirectory() as folder:
        for (heads, kv_heads, tensor), refused in zip(cases, ask("heads_refused", cases)):
            for trainer, is_refused in zip(["megatron", "torchtitan"], refused):
                spec = preset_of(
                    pathlib.Path(folder, "spec.yaml"), trainer, tensor=tensor, heads=heads, kv_heads=kv_heads, layers=1,
                    d=64, ff=64, head_dim=64, vocab=64, **({"fsdp": 1} if trainer == "torchtitan" else {}))
                result = run_tool("plan", spec)
                assert (result.returncode == 2) == is_refused, (trainer, heads, kv_heads, tensor, result.stderr)
                assert not is_refused or "needs" in result.stderr, result.stderr
