"""The plan's largest, smallest and total bytes of ranks match the sums of the ranks' boxes."""

import itertools
import math

import pytest

from support import run_json

SPECS = {
    "two_pinned_axes": """
uneven: chunk
mesh: {axes: {p: 2, f: 2, t: 3}}
modules:
  t0: {shape: [10], init: zeros, dtype: u8, shard: [null], stage: {p: [1], t: [1, 2]}}
  t1: {shape: [11], init: zeros, dtype: f32, shard: [[f]], stage: {p: [0], t: [1]}}
  t2: {shape: [12, 13], init: zeros, dtype: f64, shard: [null, null]}
  t3: {shape: [3], init: zeros, dtype: f64, shard: [[p, t]], stage: {f: [1]}}
  t4: {shape: [14], init: zeros, dtype: bf16, shard: [{axes: [t, f], segments: 3}], stage: {p: [1]}}
  t5: {shape: [2, 6], init: zeros, dtype: f32, shard: [[f], {axes: [p], segments: 3}], stage: {t: [1, 2]}}
""",
    "axes_of_several_stages": """
uneven: chunk
mesh: {axes: {p: 2, f: 2, t: 2}}
sharding: {t0: {f: Shard(0), t: Shard(0)}, t1: {t: Shard(0), f: '_StridedShard(0, split_factor=3)'}, t2: {}, t3: {}}
modules:
  t0: {shape: [1, 12], init: zeros, dtype: f64, stage: {p: [1]}}
  t1: {shape: [12, 13], init: zeros, dtype: f32}
  t2: {shape: [7], init: zeros, dtype: u8, stage: {p: [1], f: [1]}}
  t3: {shape: [10, 10], init: zeros, dtype: f64}
""",
    "several_axes_of_one_dimension": """
uneven: chunk
mesh: {axes: {p: 2, f: 3, t: 4}}
modules:
  t0: {shape: [5, 14], init: zeros, dtype: f64, shard: [[t], [p]], stage: {f: [0, 1]}}
  t1: {shape: [9], init: zeros, dtype: u8, shard: [[t, f]], stage: {p: [0]}}
  t2: {shape: [4, 5], init: zeros, dtype: f32, shard: [null, {axes: [f], segments: 2}], stage: {p: [1]}}
  t3: {shape: [8, 10], init: zeros, dtype: f64, shard: [{axes: [p], segments: 3}, [t, f]]}
  t4: {shape: [5], init: zeros, dtype: bf16, shard: [{axes: [t, p], segments: 3}]}
  t5: {shape: [1], init: zeros, dtype: f32, shard: [[t, p]], stage: {f: [2]}}
""",
    "few_ranks_that_hold_most": """
uneven: chunk
mesh: {axes: {p: 4, f: 2, t: 3}}
modules:
  t0: {shape: [14], init: zeros, dtype: bf16, shard: [{axes: [f], segments: 3}], stage: {t: [2]}}
  t1: {shape: [5], init: zeros, dtype: bf16, shard: [null], stage: {p: [0, 2], f: [1]}}
  t2: {shape: [4], init: zeros, dtype: u8, shard: [[f, p, t]]}
""",
    "stages_of_many_ranks": """
uneven: chunk
mesh: {axes: {p: 2, f: 4, t: 3}}
sharding: {t0: {p: '_StridedShard(0, split_factor=3)'}, t1: {f: Shard(0)}, t2: {}}
modules:
  t0: {shape: [6], init: zeros, dtype: bf16, stage: {f: [0, 2, 3], t: [0, 1]}}
  t1: {shape: [6, 9], init: zeros, dtype: bf16}
  t2: {shape: [5, 8], init: zeros, dtype: f64}
""",
    "uneven_segments": """
uneven: chunk
mesh: {axes: {p: 3, f: 2, t: 2}}
sharding: {t0: {t: '_StridedShard(0, split_factor=2)'}, t1: {t: '_StridedShard(0, split_factor=2)'}, t2: {p: '_StridedShard(1, split_factor=2)'}}
modules:
  t0: {shape: [11, 7], init: zeros, dtype: u8}
  t1: {shape: [1], init: zeros, dtype: f32}
  t2: {shape: [3, 9], init: zeros, dtype: f32}
""",
    "one_shape_on_other_axes": """
mesh: {axes: {p: 3, f: 2, t: 4}}
modules:
  by_t: {shape: [12, 5], init: zeros, shard: [t]}
  by_f: {shape: [12, 5], init: zeros, shard: [f]}
  by_p: {shape: [12, 5], init: zeros, shard: [p]}
  by_both: {shape: [12, 5], init: zeros, shard: [[f, p]]}
  by_all: {shape: [12, 5], init: zeros, shard: [[t, p]]}
""",
    "one_shape_in_other_segments": """
uneven: chunk
mesh: {axes: {f: 2, t: 3}}
sharding:
  a: {f: '_StridedShard(0, split_factor=3)', t: Shard(0)}
  b: {f: '_StridedShard(0, split_factor=5)', t: Shard(0)}
  c: {f: Shard(0), t: '_StridedShard(0, split_factor=2)'}
modules:
  a: {shape: [19], init: zeros}
  b: {shape: [19], init: zeros}
  c: {shape: [19], init: zeros}
""",
}
SIZES = {"u8": 1, "bf16": 2, "f32": 4, "f64": 8}


@pytest.mark.parametrize("name", SPECS)
def test_plan_bytes_match_the_boxes_of_all_ranks(name, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("shardinit: 1\nname: m\ndtype: f32" + SPECS[name])
    plan = run_json("plan", spec)
    axes, sizes = plan["mesh"]["axes"], plan["mesh"]["shape"]
    places = list(itertools.product(*map(range, sizes)))
    ranks = [run_json("plan", spec, "--rank", rank, "--replicas", "full") for rank in range(len(places))]
    held = [rank["rank_bytes"] for rank in ranks]
    padding = 0
    for tensor in run_json("graph", spec)["stored"]:
        of = [sum(math.prod(box["shape"])
                  for box in rank["boxes"] if box["path"] == tensor["path"]) * SIZES[tensor["dtype"]]
              for rank in ranks]
        stage = {axes.index(axis): indices for axis, indices in tensor.get("stage", {}).items()}
        on = [all(place[axis] in indices for axis, indices in stage.items()) for place in places]
        assert all(is_on or not each for is_on, each in zip(on, of)), tensor["path"]
        padding += max(of) * sum(on) - sum(of)
    assert held == [sum(math.prod(b["shape"]) * SIZES[b["dtype"]] for b in rank["boxes"]) for rank in ranks]
    assert (plan["max_rank_bytes"], plan["min_rank_bytes"], plan["held_bytes"]) == (max(held), min(held), sum(held))
    assert plan["imbalance"] == pytest.approx(max(held) * len(held) / sum(held), rel=1e-12)
    assert plan["padding_bytes"] == padding
