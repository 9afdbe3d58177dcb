"""Runs the programs of tests/device/prepare.py on a device, and compares the results bit for bit with `gen`:

    python tests/device/program.py FOLDER [--platform cuda] [--seconds 170] [--options xla_gpu_ftz=true ...]

Needs JAX, NumPy and the folder `tests`. Then it measures the time to compile the kinds of Llama 3.1 405B, and how many
normal numbers the device makes each second, compared with jax.random. The exit status is 1 if a module fails or
a bit differs, except in elements that cases.json lists."""

import argparse
import concurrent.futures
import dataclasses
import gzip
import hashlib
import json
import os
import pathlib
import statistics
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import xla_modules

# Other modules no longer wait for one that compiles longer than this.
PATIENCE = 60
SLOW = f"not done after {PATIENCE} seconds or more"
LATE = "not begun for want of time"


def say(text=""):
    print(text, flush=True)


# Comparing ----------------------------------------------------------------------

def ordered(word, size):
    """Returns the place of a float among all floats: neighbours differ by 1."""
    sign = 1 << (8 * size - 1)
    return -(word & (sign - 1)) if word & sign else word


def shown(word, dtype):
    """Returns a word in hexadecimal digits, and as a number."""
    with np.errstate(all="ignore"):
        number = np.array([word], f"u{dtype.itemsize}").view(dtype)[0]
    text = repr(float(number)) if dtype.kind in "fV" else str(number)
    return f"0x{word:0{2 * dtype.itemsize}x} = {text}"


@dataclasses.dataclass
class Difference:
    """A result with other bits: its name, the number of different elements (None if unknown), and a description.

    `is_listed` holds if cases.json lists all of them; otherwise listed elements do not count."""

    name: str
    count: int | None
    text: str
    is_listed: bool = False


def find_difference(result, made, expected, listed):
    """Compares an array with a described result; returns None if the bits are equal."""
    shape, size = tuple(result["shape"]), result["size"]
    if made.shape != shape or made.dtype.itemsize != size:
        text = f"it is {made.dtype}{list(made.shape)} instead of {list(shape)} of {size} bytes each"
        return Difference(result["name"], None, text)
    words = np.ascontiguousarray(made).reshape(-1).view(f"u{size}")
    if hashlib.sha256(words).hexdigest() == result["sha256"]:
        return None
    places = np.flatnonzero(words[:len(expected)] != expected)
    if len(places) == 0:
        return Difference(result["name"], None, f"elements after the first {len(expected)} of {words.size} differ")
    unlisted = [place for place in places.tolist() if place not in set(listed)]
    first = (unlisted or places.tolist())[0]
    wanted, word = int(expected[first]), int(words[first])
    place = [int(index) for index in np.unravel_index(first, shape)]
    text = f"first at {place}: expected {shown(wanted, made.dtype)}, made {shown(word, made.dtype)}"
    if made.dtype.kind in "fV":
        text += f", {ordered(word, size) - ordered(wanted, size):+} ULP"
    is_whole = len(expected) == words.size
    among = f"{len(unlisted or places)} of {'' if is_whole else f'the first {len(expected)} of '}{words.size}"
    text = f"{among} elements differ, {text}"
    return Difference(result["name"], len(unlisted or places), text, is_whole and not unlisted)


# Cases --------------------------------------------------------------------------

@dataclasses.dataclass
class Outcome:
    """The outcome of a case: its differences or the error, and the seconds that it took."""

    compiling: float = 0.0
    running: float = 0.0
    equal: int = 0
    differences: list = dataclasses.field(default_factory=list)
    error: str = ""

    @property
    def is_good(self):
        return not self.error and all(difference.is_listed for difference in self.differences)


class Session:
    """The folder, the device, and the outcomes of cases so far."""

    def __init__(self, folder, device, options):
        self.folder, self.device, self.options = folder, device, options
        with np.load(folder / "expected.npz") as archive:  # Threads cannot read one archive at once.
            self.expected = dict(archive)
        self.outcomes, self.left_out, self.unfinished = {}, {}, {}

    def compiled(self, case):
        text = gzip.decompress((self.folder / case["file"]).read_bytes()).decode()
        return xla_modules.compiled(text, [self.device], overrides=self.options)

    def arguments(self, case, module):
        """Places the module's arguments on the device: its zero, if it takes one, and its tables."""
        tables = [np.array(table, np.uint32) for table in case.get("tables", [])]
        return module.placed([np.uint32(0)] * (module.arguments - len(tables)) + tables)

    def compare(self, case, results, outcome, names):
        """Notes which arrays have other bits than expected."""
        words, start = self.expected[case["name"]], 0
        made = dict(zip(names, results, strict=True))
        if case.get("tables") is not None:  # A kind's module does not name the tensors of its values.
            made = {case["results"][0]["name"]: results[0]}
        if made.keys() != {result["name"] for result in case["results"]}:
            outcome.error = f"its results are {sorted(made)}"
            return
        for result in case["results"]:
            end = start + result["words"] * result["size"]
            expected, start = words[start:end].view(f"u{result['size']}"), end
            listed = case["may_differ"].get(result["name"], [])
            found = find_difference(result, np.asarray(made[result["name"]]), expected, listed)
            if found:
                outcome.differences.append(found)
            else:
                outcome.equal += 1

    def run(self, case):
        """Compiles and runs a case, and compares its results; an error is one of its outcomes."""
        outcome = Outcome()
        try:
            module = self.compiled(case)
            outcome.compiling = module.seconds
            if case["results"]:
                begin = time.monotonic()
                results = [np.asarray(part) for part, in module.run(self.arguments(case, module))]
                outcome.running = time.monotonic() - begin
                self.compare(case, results, outcome, module.names)
        except Exception as error:
            outcome.error = f"{type(error).__name__}: {str(error)[:1500]}"
        return outcome

    def note(self, case, outcome):
        """Prints the outcome of a case."""
        if outcome.error == LATE:
            self.left_out[case["name"]] = LATE
            return
        self.outcomes[case["name"]] = outcome
        state = ("ERROR" if outcome.error else "equal" if not outcome.differences
                 else "listed" if outcome.is_good else "DIFFERS")
        say(f"{state:8}{outcome.equal:4} of {len(case['results'] or []):3} results, "
            f"compiled in {outcome.compiling:6.2f} s, run in {outcome.running:5.2f} s: {case['name']}")
        if outcome.error:
            say(f"        {outcome.error}")
        for difference in outcome.differences:
            say(f"        {difference.name}: {difference.text}{' (listed)' if difference.is_listed else ''}")

    def run_all(self, cases, jobs, deadline):
        """Runs cases, `jobs` at once, and starts none after the deadline."""
        begun = {}

        def begin(case):
            if time.monotonic() > deadline:
                return Outcome(error=LATE)
            begun[case["name"]] = time.monotonic()
            return self.run(case)

        pool = concurrent.futures.ThreadPoolExecutor(jobs)
        futures = {pool.submit(begin, case): case for case in cases}
        waiting = set(futures)
        while waiting:
            done, waiting = concurrent.futures.wait(waiting, timeout=1, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                self.note(futures[future], future.result())
            now = time.monotonic()
            slow = {f for f in waiting if now - begun.get(futures[f]["name"], now) > PATIENCE}
            if waiting and len(slow) == min(jobs, len(waiting)):
                self.unfinished |= {future: futures[future] for future in slow}
                rest = [futures[future] for future in futures if future in waiting - slow and future.cancel()]
                self.run_all(rest, jobs, deadline)
                break
        pool.shutdown(wait=False)

    def finish(self):
        """Notes which slow cases have finished by now."""
        for future, case in self.unfinished.items():
            if future.done():
                self.note(case, future.result())
            else:
                self.left_out[case["name"]] = SLOW


# Speed --------------------------------------------------------------------------

def median_seconds(make, runs):
    """Returns the median of the seconds from calling `make` until its arrays are computed."""
    import jax

    jax.block_until_ready(make())
    times = []
    for _ in range(runs):
        begin = time.monotonic()
        jax.block_until_ready(make())
        times.append(time.monotonic() - begin)
    return statistics.median(times)


def measure(session, cases, runs, deadline):
    """Returns lines with the numbers that large modules and jax.random.normal make each second."""
    import jax

    lines = []
    for case in cases:
        if time.monotonic() > deadline:
            session.note(case, Outcome(error=LATE))
            continue
        outcome = Outcome()
        shape = tuple(case["results"][0]["shape"])
        try:
            module = session.compiled(case)
            outcome.compiling = module.seconds
            begin = time.monotonic()
            arguments = session.arguments(case, module)
            session.compare(case, [part for part, in module.run(arguments)], outcome, module.names)
            outcome.running = time.monotonic() - begin
            seconds = median_seconds(lambda: module.run(arguments), runs)
            dtype = {"bf16": "bfloat16", "f32": "float32"}[case["dtype"]]
            normal = jax.jit(lambda key: jax.random.normal(key, shape, dtype))
            key = jax.random.key(0)
            by_jax = median_seconds(lambda: normal(key), runs)
            count = int(np.prod(shape))
            lines.append(f"{count / seconds / 1e9:9.2f} {count / by_jax / 1e9:14.2f} {by_jax / seconds:7.2f}  "
                         f"{case['name']}")
        except Exception as error:
            outcome.error = f"{type(error).__name__}: {str(error)[:1500]}"
        session.note(case, outcome)
    return lines


# All of it ----------------------------------------------------------------------

def summarize(session, described, lines):
    """Prints equal and different results, and the time; returns whether everything is good."""
    say()
    for case in described["kinds"]:
        if outcome := session.outcomes.get(case["name"]):
            state = outcome.error or (f"compiled in {outcome.compiling:6.2f} s" + (
                "" if not case["results"] else ", its bits equal" if outcome.is_good else ", its bits DIFFER"))
            say(f"{state}: {case['name']} {case['dtype']}{case['shape']}")
    for prefix in dict.fromkeys(case["name"].partition(": ")[0] for case in described["kinds"]):
        compiled = [o.compiling for name, o in session.outcomes.items() if name.startswith(prefix + ": ")]
        say(f"{prefix}: {len(compiled)} kinds compiled in {sum(compiled):.2f} s")
    say()
    say("10^9/s    jax.random     times  (normal numbers; the median of runs)")
    for line in lines:
        say(line)
    say()
    compared = {case["name"] for kind in ("cases", "kinds", "large") for case in described[kind] if case["results"]}
    outcomes = {name: outcome for name, outcome in session.outcomes.items() if name in compared}
    for name, outcome in session.outcomes.items():
        if outcome.error:
            say(f"ERROR   {name}: {' '.join(outcome.error.split())[:300]}")
        for state, is_listed in (("DIFFERS", False), ("listed", True)):
            found = [d for d in outcome.differences if d.is_listed == is_listed]
            if found:
                names = ", ".join(f"{d.name} ({'?' if d.count is None else d.count})" for d in found)
                say(f"{state:8}{name}: {names}")
            for difference in found[:0 if is_listed else 3]:
                say(f"        {difference.name}: {difference.text}")
    for text in described["left_out"]:
        say(f"not tested: {text}")
    for why in dict.fromkeys(session.left_out.values()):
        names = [name for name, reason in session.left_out.items() if reason == why]
        say(f"{why}, {len(names)}: {'; '.join(names)}")
    equal = sum(not outcome.differences and not outcome.error for outcome in outcomes.values())
    listed = sum(bool(outcome.differences) and outcome.is_good for outcome in outcomes.values())
    results = sum(outcome.equal for outcome in outcomes.values())
    other = sum(len(outcome.differences) for outcome in outcomes.values())
    say(f"{equal} of {len(compared)} cases equal, {listed} but for listed elements, "
        f"{len(outcomes) - equal - listed} not, {len(compared) - len(outcomes)} not run; "
        f"{results} results equal, {other} not")
    return all(outcome.is_good for outcome in session.outcomes.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--platform", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no case after this time")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count()), help="modules that are compiled at once")
    parser.add_argument("--runs", type=int, default=20, help="runs of which the median is taken")
    parser.add_argument("--options", nargs="*", default=[], metavar="KEY=VALUE", help="debug options of XLA")
    arguments = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = arguments.platform
    import jax

    begin = time.monotonic()
    deadline = begin + arguments.seconds
    described = json.loads((arguments.folder / "cases.json").read_text())
    for kind in ("cases", "kinds", "large"):
        described[kind] = [case for case in described[kind] if arguments.only in case["name"]]
    device = jax.devices()[0]
    given = " ".join(arguments.options) or "default options"
    where = f"{device.device_kind} ({device.platform}), jax {jax.__version__}, {given}"
    say(where)
    options = [(key, {"true": True, "false": False}.get(value, value))
               for key, _, value in (option.partition("=") for option in arguments.options)]
    session = Session(arguments.folder, device, options)
    turns = [[case for case in described["cases"] if case["turn"] == turn] for turn in range(3)]
    session.run_all(turns[0], arguments.jobs, deadline)
    session.run_all(described["kinds"], 1, deadline)  # Their times are reported, so each runs alone.
    lines = measure(session, described["large"], arguments.runs, deadline)
    for cases in turns[1:]:
        session.run_all(cases, arguments.jobs, deadline)
    session.finish()
    is_good = summarize(session, described, lines)
    say(f"{where}: {time.monotonic() - begin:.0f} seconds")
    sys.stdout.flush()
    os._exit(0 if is_good else 1)  # Threads of unfinished modules would continue.


if __name__ == "__main__":
    main()
