"""`convert --quantize-like` restores quantized tensors from the numbers that they represent, byte by byte, and gives
changed numbers the nearest code. The expected codes come from widening tensors in which all codes are equal."""

import json
import pathlib
import tempfile

import numpy as np
from clients import client_of
from generated import generated, given
from hypothesis import assume
from hypothesis import strategies as st
from support import run_tool
from test_generated_quantized import KINDS, OF_NUMBERS, cases, write

torch = client_of("torch")
safetensors_torch = client_of("safetensors.torch")

MADE, KEY = "model.x.weight", "quantization_config"


def load(folder):
    return safetensors_torch.load_file(folder / "model.safetensors")


def of_text(config):
    return config.get("text_config", {}).get(KEY)


def width_of(numbers, config, elements):
    """Returns the bits of a code."""
    for group in config.get("config_groups", {}).values():
        return group["weights"]["num_bits"]
    return 8 * numbers.numel() * numbers.element_size() // elements


def filled(numbers, width, code):
    """Returns numbers whose codes are all `code`."""
    row_bytes = numbers[0].numel() * numbers.element_size()
    bits = np.unpackbits(np.array([code], np.uint8), bitorder="little")[:width]
    row = np.packbits(np.resize(bits, 8 * row_bytes // width * width), bitorder="little")
    rows = np.tile(np.resize(np.append(row, [0] * (row_bytes - len(row))), row_bytes), len(numbers))
    return torch.from_numpy(rows.astype(np.uint8)).view(numbers.dtype).reshape(numbers.shape)


def widen(folder, out, dtype):
    done = run_tool("convert", folder, "--to", "safetensors", "--dtype", dtype, "-o", out)
    return load(out)[MADE] if done.returncode == 0 else None


def spoil(wide, seed):
    """Changes some numbers to others of about the same size. Returns which."""
    generator = np.random.default_rng(seed)
    flat = wide.reshape(-1)
    at = torch.from_numpy(generator.choice(len(flat), max(1, len(flat) // 50), replace=False))
    factors = torch.from_numpy(generator.choice([-1.5, 0.3, 0.9, 1.02, 2.5], len(at))).to(flat.dtype)
    others = flat[torch.from_numpy(generator.integers(0, len(flat), len(at)))]
    flat[at] = torch.where(torch.from_numpy(generator.random(len(at)) < 0.3), others, flat[at] * factors)
    return at


def requantize(folder, like, out, *options):
    return run_tool("convert", folder, "--to", "safetensors", "--quantize-like", like, "-o", out, *options)


def check(case, seed):
    state, config, exact, dtype, _ = case
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write(root / "in", state, config)
        wide = widen(root / "in", root / "wide", dtype)
        assume(wide is not None and wide.numel() > 1)
        done = requantize(root / "wide", root / "in", root / "back", "-j", 2)
        assert done.returncode == 0 and "0 elements changed" in done.stderr, done
        old, back = load(root / "in"), load(root / "back")
        assert old.keys() == back.keys()
        for key in old:
            assert_bytes_equal(old[key], back[key])
        made = json.loads((root / "back/config.json").read_text())
        assert [made.get(KEY), made.get("text_config", {}).get(KEY)] == [config.get(KEY), of_text(config)]

        changed = spoil(wide, seed)
        assume(wide.isfinite().all())
        (root / "changed").mkdir()
        safetensors_torch.save_file(load(root / "wide") | {MADE: wide.contiguous()},
                                    root / "changed/model.safetensors")
        done = requantize(root / "changed", root / "in", root / "codes")
        if done.returncode != 0:
            assert "cannot hold the number of each code" in done.stderr or "has no code" in done.stderr, done
            return
        found = widen(root / "codes", root / "found", dtype)
        numbers, = OF_NUMBERS & state.keys()
        width = width_of(state[numbers], config.get(KEY) or of_text(config), wide.numel())
        codes = range(2**width) if width < 6 else sorted(set(np.random.default_rng(seed).integers(0, 2**width, 12)))
        known = widen(root / "in", root / "known", dtype).reshape(-1).double()
        best = (found.reshape(-1).double() - wide.reshape(-1).double()).abs()
        for code in codes:
            write(root / f"in{code}", {**state, numbers: filled(state[numbers], width, code)}, config)
            each = widen(root / f"in{code}", root / f"out{code}", dtype)
            if each is None:
                continue
            distance = (each.reshape(-1).double() - wide.reshape(-1).double()).abs()
            worse = (best > distance)[changed] & distance[changed].isfinite()
            assert not worse.any(), (code, changed[worse][:3], best[changed][worse][:3], distance[changed][worse][:3])
        kept = torch.ones(wide.numel(), dtype=torch.bool)
        kept[changed] = False
        assert torch.equal(found.reshape(-1).double()[kept], known[kept])


def assert_bytes_equal(one, other):
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert bytes(one.contiguous().reshape(-1).view(torch.uint8)) == bytes(
        other.contiguous().reshape(-1).view(torch.uint8))


def make_test(kind):
    @generated(5)
    @given(case=cases(kind), seed=st.integers(0, 1 << 30))
    def test(case, seed):
        check(case, seed)
    return test


for kind in KINDS:
    globals()[f"test_random_{kind.__name__}_tensors_are_restored_and_requantized"] = make_test(kind)
