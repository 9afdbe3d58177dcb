"""`convert --quantize-like DIR --fresh-scales` quantizes random matrices to the bytes that the owner's package writes."""

import pathlib
import tempfile

import test_generated_quantizers as quantizers
from clients import client_of
from generated import generated, given
from hypothesis import strategies as st
from support import run_ok, run_tool
from test_generated_quantized import config_json, write
from test_generated_requantized import assert_bytes_equal, load

torch = client_of("torch")
safetensors_torch = client_of("safetensors.torch")

OWNERS = [quantizers.compressed_tensors, quantizers.deepseek]
HINT = "cannot compute new scales"


class Replayed:
    """Gives an owner's second call the draws of its first one."""

    def __init__(self, draw):
        self.draw, self.drawn, self.at = draw, [], 0

    def __call__(self, strategy):
        if self.at == len(self.drawn):
            self.drawn.append(self.draw(strategy))
        self.at += 1
        return self.drawn[self.at - 1]


def draw_weight(draw, rows, columns, dtype):
    bits = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    spread = torch.exp2(
        torch.randint(*draw(st.sampled_from([(-6, 4), (-60, 60), (0, 1)])), (rows, 1), generator=bits).float()
    )
    weight = (torch.randn(rows, columns, generator=bits) * spread).to(dtype)
    weight[torch.rand(rows, columns, generator=bits) < 0.02] = draw(st.sampled_from([0.0, -0.0]))
    if draw(st.booleans()):
        weight[:16, :32] = 0  # blocks without a largest number
    if draw(st.booleans()):  # powers of two, and numbers next to them
        weight[0, :8] = torch.tensor([448, 1, 0.5, 2, 7.5, 127.5, 6, 3]).to(dtype) * draw(
            st.sampled_from([1, 1.0078125])
        )
    return weight


@st.composite
def cases(draw, owner):
    rows, columns = 16 * draw(st.integers(1, 4)), 32 * draw(st.integers(1, 4))
    dtype = draw(st.sampled_from([torch.bfloat16, torch.float32]))
    weight, other = (draw_weight(draw, rows, columns, dtype) for _ in range(2))
    replayed = Replayed(draw)
    wanted, config, _ = owner(replayed, weight)
    replayed.at = 0
    like, _, _ = owner(replayed, other)
    return (
        weight,
        *({name: t.contiguous() for name, t in state.items()} for state in (wanted, like)),
        config,
        draw(st.sampled_from([[], ["-j", 1], ["--mesh", "fsdp=3", "--sharding", "fully_shard", "--to", "dcp"]])),
    )


def check(case):
    weight, wanted, like, config, options = case
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write(root / "like", like, config_json(config))
        (root / "wide").mkdir()
        safetensors_torch.save_file(
            {"model.x.weight": weight, "model.norm.weight": torch.ones(3)}, root / "wide/model.safetensors"
        )
        form = [] if "--to" in options else ["--to", "safetensors"]
        done = run_tool(
            "convert",
            root / "wide",
            "--quantize-like",
            root / "like",
            "--fresh-scales",
            "-o",
            root / "made",
            *form,
            *options,
        )
        if "weight_zero_point" in wanted or "weight_global_scale" in wanted:
            assert done.returncode == 2 and HINT in done.stderr, done
            return
        assert done.returncode == 0 and "the scales are new" in done.stderr, done
        if not form:
            run_ok("convert", root / "made", "--to", "safetensors", "-o", root / "whole")
        made = load(root / ("made" if form else "whole"))
        for key, tensor in wanted.items():
            (found,) = (t for path, t in made.items() if path == f"model.x.{key}")
            assert_bytes_equal(found, tensor)


def make_test(owner):
    @generated(25)
    @given(case=cases(owner))
    def test(case):
        check(case)

    return test


for owner in OWNERS:
    globals()[f"test_fresh_scales_are_those_of_{owner.__name__}"] = make_test(owner)
