"""Compares values made by kernels on a CUDA device with the processor's.

    python fills.py [--seed N] [--cases N] [PART …]

The parts are `words`, `bits`, `billions`, `models`, `speed` and `fsdp2`; the default is all of them. Needs PyTorch with
CUDA, and the package `shardinit` with its library. For a difference it prints the spec, and exits with status 1. With
`--driver FILE`, the part `bits` uses a library that replaces CUDA's driver (tests/support/fake_cuda.cc)."""

import argparse
import ctypes
import functools
import itertools
import math
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import warnings

import torch

import shardinit
import shardinit.torch

ENGINES = ("philox4x32", "jax_threefry")
DTYPES = ("f32", "f64", "bf16", "f16", "f8e4m3fn", "f8e5m2")
INITS = (
    "{normal: {std: 0.02}}", "{normal: {mean: 0.75, std: 3}}", "{normal: {std: 0}}", "{normal: {std: 1.0e-5}}",
    "{uniform: {low: -1, high: 1}}", "{uniform: {low: 0.25, high: 0.250001}}",
    "{truncated_normal: {std: 0.02}}", "{truncated_normal: {mean: 1, std: 2, low: -1, high: 3.5}}",
    "{truncated_normal: {std: 1, low: 2, high: 5}}", "{truncated_normal: {std: 1, low: 0, high: 2}}",
    "zeros", "ones", "{constant: {value: -1.7}}",
    # Numbers that small types cannot represent, the largest and smallest scales, and the farthest tails.
    "{normal: {std: 1.0e+5}}", "{normal: {std: 1.0e+30}}", "{normal: {std: 1.0e-24}}",
    "{uniform: {low: -1.0e+6, high: 3}}",
    "{truncated_normal: {std: 1, low: 4.5, high: 8}}", "{truncated_normal: {std: 1, low: -0.001, high: 0.002}}",
)  # fmt: skip
# The processor makes these values.
OTHERS = (
    "orthogonal", "{expr: 'normal() * 0.1 + i0 / 3'}", "{sparse: {sparsity: 0.3}}", "{normalized: {axis: 0}}", "eye",
)  # fmt: skip
GUARD = 0xA5

failed = []


def say(*words):
    print(*words, flush=True)


def spec_of(tensors, engine="philox4x32", seed=1):
    """Opens a spec of tensors, given as name → (shape, dtype, init)."""
    text = f"shardinit: 1\nname: device\nengine: {engine}\nseed: {seed}\nfans: out_in\ndtype: f32\nmodules:\n"
    for name, (shape, dtype, init) in tensors.items():
        text += f"  {name}: {{shape: {list(shape)}, dtype: {dtype}, init: {init}}}\n"
    return shardinit.open_spec(text=text)


# Bits ---------------------------------------------------------------------------


class Card:
    """Memory on the device that PyTorch uses."""

    def take(self, size):
        self.memory = torch.full((size,), GUARD, dtype=torch.uint8, device="cuda")
        return self.memory.data_ptr()

    def give_back(self):
        return self.memory.cpu()


class FakeCard:
    """Memory that a stand-in for CUDA's driver treats as the device's."""

    def __init__(self, driver):
        self.driver = ctypes.CDLL(driver)
        self.driver.fake_cuda_allocate.restype = ctypes.c_void_p

    def take(self, size):
        self.size, self.memory = size, self.driver.fake_cuda_allocate(ctypes.c_size_t(size))
        ctypes.memset(self.memory, GUARD, size)
        return self.memory

    def give_back(self):
        held = torch.frombuffer(bytearray(ctypes.string_at(self.memory, self.size)), dtype=torch.uint8)
        self.driver.fake_cuda_free(ctypes.c_void_p(self.memory))
        return held


def is_accepted(engine, dtype, init):
    """Returns whether the type can represent all numbers; a spec must not request others."""
    try:
        spec_of({"w": ((8,), dtype, init)}, engine).close()
    except shardinit.SpecError as error:
        assert "choose a larger dtype" in str(error), error
        return False
    return True


def random_case(draw):
    """Draws a shape, and a box in it of about 200,000 elements or fewer."""
    dimensions = draw.choice([0, 1, 1, 2, 2, 2, 3, 4, 5])
    shape, start, extent, room = [], [], [], draw.choice([1, 40, 3000, 200_000])
    for place in range(dimensions):
        most = max(1, min(room, draw.choice([1, 2, 3, 7, 8, 64, 1000, 200_000])))
        size = draw.randint(1, most)
        whole = draw.random() < 0.4
        larger = 1 << draw.choice([20, 30, 33])  # A tensor has less than 2^63 bytes.
        total = size if whole else size + draw.choice([0, 1, 3, 4, 5, 8, 300, larger if place == 0 else 8])
        at = draw.choice([0, total - size, draw.randint(0, total - size)])
        if draw.random() < 0.5:
            at = at // 8 * 8
        shape.append(total), start.append(at), extent.append(size)
        room //= size
    return shape, start, extent


def check_case(card, engine, seed, shape, start, extent, dtype, init, shift):
    """Returns why a part made by a kernel is wrong, or None if it is right."""
    with spec_of({"w": (shape, dtype, init)}, engine, seed) as spec:
        slices = tuple(slice(o, o + n) for o, n in zip(start, extent, strict=True))
        wanted = torch.frombuffer(bytearray(spec.generate("w", slices).tobytes()), dtype=torch.uint8)
        item, size = spec.info("w").nbytes // spec.info("w").size, wanted.numel()
        address = card.take(size + 64 * item)
        made = spec.fill_cuda("w", slices, address + shift * item, size, 0)
        memory = card.give_back()
    if not made:
        return "no kernel made it"
    begin, end = shift * item, shift * item + size
    if not (memory[:begin] == GUARD).all() or not (memory[end:] == GUARD).all():
        return "memory beside it was written to"
    different = (memory[begin:end] != wanted).nonzero()[:, 0]
    if len(different):
        element = int(different[0]) // item
        made, right = (bytes(each[element * item : (element + 1) * item].tolist()[::-1]).hex()
                       for each in (memory[begin:end], wanted))
        count = len({int(byte) // item for byte in different})
        return f"{count} of {size // item} elements differ, the first is element {element}: {made}, not {right}"
    return None


def smaller(case):
    """Yields slightly smaller cases."""
    engine, seed, shape, start, extent, dtype, init, shift = case
    for d in range(len(shape)):
        for n in {extent[d] // 2, extent[d] - 1} - {0}:
            yield engine, seed, shape, start, [*extent[:d], n, *extent[d + 1 :]], dtype, init, shift
        if start[d]:
            yield engine, seed, shape, [*start[:d], start[d] // 2, *start[d + 1 :]], extent, dtype, init, shift
    if shift:
        yield engine, seed, shape, start, extent, dtype, init, 0


def report(card, case, why):
    """Shrinks a failing case and prints it."""
    tried = 0
    while tried < 200:
        for each in smaller(case):
            tried += 1
            if now := check_case(card, *each):
                case, why = each, now
                break
        else:
            break
    names = ("engine", "seed", "shape", "start", "extent", "dtype", "init", "shift")
    say("WRONG:", ", ".join(f"{name}={value!r}" for name, value in zip(names, case, strict=True)), "->", why)
    failed.append(case)


def bits(options):
    draw = random.Random(options.seed)
    card = FakeCard(options.driver) if options.driver else Card()
    kinds = [kind for kind in itertools.product(ENGINES, DTYPES, INITS) if is_accepted(*kind)]
    begin = time.monotonic()
    count = 0
    for number in range(max(options.cases, len(kinds))):
        engine, dtype, init = kinds[number % len(kinds)]
        case = (engine, draw.randrange(1 << 64), *random_case(draw), dtype, init, draw.randrange(17))
        why = check_case(card, *case)
        count += 1
        if why:
            report(card, case, why)
            if len(failed) >= 10:
                break
    say(f"bits: {count} parts, {len(failed)} wrong, seed {options.seed}, {time.monotonic() - begin:.1f} s")


def words(options):
    """Checks all 2^32 words, by a kernel that compares them on the device (tests/device/words.cu)."""
    path = os.path.join(options.prepared or "", "words.ptx")
    if not os.path.exists(path):
        say("words: NOT TESTED, since there is no words.ptx of tests/device/prepare.py (--prepared FOLDER)")
        return
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        if result := getattr(driver, name)(*arguments):
            raise RuntimeError(f"{name} fails: CUDA error {result}")

    floats = lambda *numbers: struct.pack(f"<{len(numbers)}f", *numbers)  # noqa: E731
    std, tail = 0.02, 0.022750132
    uniform = floats(-1, 2, 1 - 2**-24)
    normal = floats(0, std * math.sqrt(2 * math.log(2)), std)
    step = (0.5 - tail) / 2**31
    truncated = (floats(0.5, std, tail, tail, step, step) + struct.pack("<II", 1 << 31, 0)
                 + floats(-2, 2, -0.9544997, 1.9089994, -1.9999999, 1.9999999))  # fmt: skip
    parameters = ctypes.create_string_buffer(uniform + normal + truncated)
    blocks, threads = 16 * torch.cuda.get_device_properties(0).multi_processor_count, 256
    counts = torch.zeros(8, dtype=torch.int64, device="cuda")
    worst = torch.zeros(blocks * threads, device="cuda")
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    with open(path, "rb") as file:
        call("cuModuleLoadData", ctypes.byref(module), file.read() + b"\0")
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"look_at_words")
    values = [parameters, ctypes.c_uint64(counts.data_ptr()), ctypes.c_uint64(worst.data_ptr())]
    arguments = (ctypes.c_void_p * 3)(*(ctypes.addressof(each) for each in values))
    call("cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, None, arguments, None)
    torch.cuda.synchronize()
    *different, exactly = counts.tolist()
    names = ("uniform", "normal", "truncated normal", "JAX uniform", "JAX normal", "JAX truncated normal",
             "bf16 normal")  # fmt: skip
    for name, count in zip(names, different, strict=True):
        say(f"words: {name}: {count} of 2^32 differ from the formula for plain numbers")
    say(f"words: bf16 normal: largest error of fast numbers {worst.max().item():.3f} of the bound; "
        f"{exactly / 2**32:.2%} of pairs are made exactly")
    if any(different) or not worst.max().item() < 1:
        failed.append("words")


def billions(options):
    """Compares whole tensors of 2^30 elements and more with the processor's."""
    rows = 1 << 15
    for engine, dtype, init, columns in (
        ("philox4x32", "bf16", INITS[0], 1 << 17), ("philox4x32", "f32", INITS[0], 1 << 15),
        ("philox4x32", "f32", INITS[6], 1 << 15), ("jax_threefry", "f32", INITS[0], 1 << 14),
        ("jax_threefry", "bf16", INITS[6], 1 << 14),
    ):  # fmt: skip
        wrong = 0
        with spec_of({"w": ((rows, columns), dtype, init)}, engine, options.seed) as spec:
            made = shardinit.torch.load_state_dict(spec, device="cuda")["w"].view(torch.uint8)
            step = max(1, rows // 32)
            for row in range(0, rows, step):
                right = torch.from_numpy(spec.generate("w", slice(row, row + step)).view("u1")).cuda()
                wrong += not torch.equal(made[row : row + step], right)
        say(f"billions: {engine} {dtype} {init}: {rows * columns:,} elements, {wrong} of 32 parts wrong")
        if wrong:
            failed.append("billions")


# Models -------------------------------------------------------------------------


def models(options):
    """Checks PyTorch tensors on the device: strided ones, casts, streams, and initializers without a kernel."""
    tensors = {f"t{i}": ((64, 24), dtype, init)
               for i, (dtype, init) in enumerate(itertools.product(("f32", "bf16"), INITS + OTHERS))}
    wrong = 0
    for engine in ENGINES:
        with spec_of(tensors, engine) as spec:
            here = shardinit.torch.load_state_dict(spec)
            for name, value in shardinit.torch.load_state_dict(spec, device="cuda").items():
                wrong += not torch.equal(value.cpu().view(torch.uint8), here[name].view(torch.uint8))
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                there = shardinit.torch.load_state_dict(spec, ["t0", "t20"], device="cuda")
            stream.synchronize()
            wrong += any(not torch.equal(there[name].cpu(), here[name]) for name in there)
            module = torch.nn.ParameterDict({name: torch.empty(24, 64, dtype=value.dtype, device="cuda").t()
                                             for name, value in here.items()})
            shardinit.torch.init_(module, spec)
            wrong += sum(not torch.equal(module[name].cpu(), here[name]) for name in here)
            cast = torch.nn.ParameterDict({name: torch.empty(64, 24, dtype=torch.float64, device="cuda")
                                           for name in here})
            shardinit.torch.init_(cast, spec, cast=True)
            wrong += sum(not torch.equal(cast[name].cpu(), here[name].double()) for name in here)
    if wrong:
        failed.append("models")
    say(f"models: {2 * (3 * len(tensors) + 1)} tensors, {wrong} wrong")
    with spec_of({"w": ((8,), "f32", "{normal: {std: 1}}")}) as spec:
        host = torch.empty(8)
        for address, size in ((host.data_ptr(), 32), (torch.empty(8, device="cuda").data_ptr(), 28)):
            try:
                spec.fill_cuda("w", None, address, size, 0)
                failed.append("a mistake was not refused")
            except shardinit.SpecError as error:
                say("refused, as it should be:", error)


# Speed --------------------------------------------------------------------------


def seconds(call, repeats=12):
    """Returns the median time of `count` calls, by the device's own events."""
    call()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return statistics.median(times)


MEASURED = {"normal": INITS[0], "normal with a mean": INITS[1], "uniform": INITS[4], "truncated": INITS[6],
            "zeros": "zeros"}  # fmt: skip
# A matrix, and parts of it: name → columns.
SIDE = 1 << 15
COLUMNS = {"": slice(None), ", half of the columns": slice(1 << 14, None), ", columns from 1": slice(1, None)}


def speed(options):
    say(f"speed of one tensor of [{SIDE}, {SIDE}], GB/s written; torch: the same by torch.Tensor's own method")
    for name, dtype in {"bf16": torch.bfloat16, "f32": torch.float32, "f16": torch.float16,
                        "f8e4m3fn": torch.float8_e4m3fn}.items():  # fmt: skip
        measure_speed(name, torch.empty(SIDE, SIDE, dtype=dtype, device="cuda"))
        torch.cuda.empty_cache()


def measure_speed(name, memory):
    size, plain, stream = memory.element_size(), memory.view(torch.uint8), torch.cuda.current_stream().cuda_stream
    took = {"write (fill_)": seconds(lambda: plain.fill_(3)) / SIDE}  # seconds of a column
    if size > 1:
        took["torch normal_"] = seconds(lambda: memory.normal_(0, 0.02)) / SIDE
        took["torch uniform_"] = seconds(lambda: memory.uniform_(-1, 1)) / SIDE
    for engine, (drawn, init) in itertools.product(ENGINES, MEASURED.items()):
        with spec_of({"w": ((SIDE, SIDE), name, init)}, engine) as spec:
            for part, columns in COLUMNS.items() if init == INITS[0] else [("", slice(None))]:
                count = len(range(SIDE)[columns])
                fill = functools.partial(spec.fill_cuda, "w", (slice(None), columns), memory.data_ptr(),
                                         SIDE * count * size, stream)
                took[f"{engine} {drawn}{part}"] = seconds(fill) / count
    for key, each in took.items():
        rate = SIDE / each / 1e9
        say(f"  {name:9} {key:40} {rate * size:7.0f} GB/s  {took['write (fill_)'] / each:5.2f} of writing  "
            f"{rate:7.1f} G elements/s")


# FSDP2 --------------------------------------------------------------------------


def load_config(spec_path):
    """Returns the shipped spec of Mistral 7B."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../configs", spec_path)


def fsdp2(options):
    try:
        import transformers
    except ImportError:
        say("fsdp2: NOT TESTED, since transformers is not installed")
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("nccl", rank=0, world_size=1, store=torch.distributed.HashStore())
    mesh = init_device_mesh("cuda", (1,), mesh_dim_names=("fsdp",))
    path = load_config("mistral-7b-v0.3.yaml")
    config = transformers.MistralConfig(
        vocab_size=32768, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=32768, rope_theta=1e6, sliding_window=None,
        tie_word_embeddings=False, dtype=torch.bfloat16)  # fmt: skip

    def model_of():
        model = transformers.MistralForCausalLM(config).to(torch.bfloat16)
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def built():
        torch.cuda.synchronize()
        begin = time.monotonic()
        with shardinit.torch.from_spec(spec, device="cuda"):
            model = model_of()
            made = time.monotonic()
        torch.cuda.synchronize()
        return model, made - begin, time.monotonic() - made

    tokens = torch.arange(512, device="cuda").reshape(1, 512) * 61 % 32768

    def compute_loss(model):
        with torch.no_grad():
            return model(input_ids=tokens, labels=tokens, use_cache=False).loss.float().item()

    begin = time.monotonic()
    spec = shardinit.open_spec(path)
    say(f"fsdp2: opening the spec of {spec.parameters:,} parameters {time.monotonic() - begin:.2f} s")
    for turn in ("first", "second", "third"):
        model, making, filling = built()
        say(f"fsdp2: {turn} model: constructor and fully_shard {making:.2f} s, filling {filling:.3f} s")
        if turn != "third":
            del model
            torch.cuda.empty_cache()
    by_spec = compute_loss(model)
    del model
    torch.cuda.empty_cache()
    with shardinit.torch.from_spec(path, set={"seed": 1}, device="cuda"):
        model = model_of()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        made = os.path.join(folder, "made")
        begin = time.monotonic()
        program = shardinit._native.program()
        subprocess.run([program, "gen", path, "--mesh", "fsdp=1", "-o", made, "--quiet"], check=True)
        say(f"fsdp2: gen on the processor {time.monotonic() - begin:.1f} s")
        begin = time.monotonic()
        shardinit.torch.load_into(model, made)
        torch.cuda.synchronize()
        say(f"fsdp2: load_into from the files {time.monotonic() - begin:.1f} s")
        by_files = compute_loss(model)
    say(f"fsdp2: loss at step 0 by from_spec {by_spec!r}, by the processor's files {by_files!r}; "
        f"ln(vocabulary) is {math.log(32768):.4f}")
    if by_spec != by_files or not abs(by_spec - math.log(32768)) < 2:
        failed.append("fsdp2")
    # For comparison, the constructor draws on the device.
    del model
    torch.cuda.empty_cache()
    begin = time.monotonic()
    with torch.device("cuda"):
        transformers.MistralForCausalLM(config)
    torch.cuda.synchronize()
    say(f"fsdp2: transformers' constructor on the device, with its own numbers {time.monotonic() - begin:.2f} s")
    torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["words", "bits", "billions", "models", "speed", "fsdp2"])
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--cases", type=int, default=600)
    parser.add_argument("--prepared", help="the folder that tests/device/prepare.py made")
    parser.add_argument("--driver", help="a stand-in for CUDA's driver")
    parser.add_argument("--folder", help="folder for files of about 15 GB")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.driver:
        options.parts = ["bits"]
    elif torch.cuda.is_available():
        say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}, "
            f"shardinit {shardinit.__version__}")
    else:
        say("NOT TESTED: PyTorch sees no CUDA device")
        return 1
    for part in options.parts:
        begin = time.monotonic()
        try:
            globals()[part](options)
        except Exception as error:  # The other parts still report their results.
            say(f"{part}: {type(error).__name__}: {error}")
            if os.environ.get("DEBUG"):
                raise
            failed.append(part)
        say(f"-- {part} took {time.monotonic() - begin:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
