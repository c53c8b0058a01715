"""10: timing and profiling."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final

from gpudojo.days.day8.late_work import Queue, Work, operators_taking, working_later
from gpudojo.grading.call import Call, StudentRaised, torch
from gpudojo.grading.clock import Clock, Skipping, Sleeping, running
from gpudojo.grading.judge import runs
from gpudojo.model.exercise import Exercise, Failed, Seen, called

exercise = Exercise(
    "10_timing_and_profiling",
    "How long does it take, and what takes so long?",
    points=4,
    reading=("notes/cuda.html#asynchronous-execution", "profiler.html", "generated/torch.cuda.synchronize.html"),
)
clock = exercise.function(
    "time_on_device",
    "Call, wait, start the clock, call, wait, stop the clock: the two waits are `torch.cuda.synchronize()`.",
    "Waiting is for GPUs only: look at `torch.device(device).type` first. A Mac has `torch.mps.synchronize()`.",
    "`time.perf_counter()` is the clock; divide what passed by `repeats`, not by all calls.",
    "`warmup` calls before the clock is started, `repeats` calls while it runs, and no others.",
)
compare = exercise.function(
    "compare_devices",
    "For each device: `time_on_device(make_work(device), device, repeats)`.",
    "`str(device)` turns a device into its key; a dict keeps the order in which keys are put in.",
)
top = exercise.function(
    "top_operations",
    "`with torch.profiler.profile() as profiler: fn()`, and then `profiler.key_averages()`.",
    "A row has `.key`, its name, and `.self_cpu_time_total`, the time of all its calls: sort by it, longest first.",
    "Of the first `count` rows give the `.key`, in a list.",
)
smi = exercise.function(
    "read_nvidia_smi",
    "`text.splitlines()`, and for each line that is not empty `line.split(', ')`.",
    "`[N/A]` is no number: look for it before you call `int`.",
    "Index and memory are ints, the name stays as it is, and the GPUs stay in the order of the lines.",
)
# What nvidia-smi may print; the last GPU of `several` comes first, as with `nvidia-smi -i`.
TEXTS = {
    "one": "0, NVIDIA H200, 1024, 143771\n",
    "several": "10, NVIDIA A100-SXM4-80GB, 0, 81920\n0, Tesla T4, 3, 15360\n1, NVIDIA GeForce RTX 4090, 24000, 24564",
    "unknown": "0, NVIDIA GB10, [N/A], [N/A]\n1, NVIDIA H200, [N/A], 143771\n",
    "blank": "\n0, Tesla T4, 3, 15360\n\n\n1, Tesla T4, 5, 15360\n\n",
    "nothing": "",
}
CLOCKS = ("perf_counter(", "time(", "monotonic(", "now(", "record(")
LAST = (*(f"last {name}" for name in CLOCKS), *CLOCKS)  # where it is stopped
clock.when("runs", "waits_for_the_device", hint=1, at=("return", "last return"))
clock.when("waits_for_an_apple_gpu", hint=2, at=("synchronize(", *CLOCKS))
clock.when("works_without_a_gpu", "hard-coded-cuda", hint=2)
clock.when("gives_the_mean_per_call", "returned-tensor", hint=3, at=("return", "last return"))
clock.when("calls_it_as_often_as_asked", hint=4, at=("for",))
clock.when("leaves_the_warm_up_out", "timed-the-warm-up", hint=4, at=CLOCKS)
compare.when("times_each_as_it_should", hint=1, at=("make_work(", "time_on_device(", "return"))
compare.when("names_every_device_in_order", hint=2, at=("sorted(", "return", "last return"))
top.when("gives_as_many_names_as_asked", hint=3, at=("return", "last return"))
top.when("puts_the_longest_first", hint=2, at=("sort(", "sorted(", "return", "last return"))
smi.when("reads_every_gpu", hint=3, at=("append(", "split(", "return"))
smi.when("knows_what_is_not_known", hint=2, at=("append(", "split(", "return"))


MILLISECOND: Final = 1e-3


def _durations(call: Call, name: str, *milliseconds: float) -> list[float]:
    """About these durations, in seconds: other ones for every seed, so that no answer is known beforehand."""
    dice = random.Random(f"{call.seed} {name}")
    return [value * dice.uniform(0.9, 1.1) * MILLISECOND for value in milliseconds]


def _bounds(right: float, repeats: int, watch: Clock) -> dict[str, float]:
    """What may be said of work that took `right` seconds per call."""
    if not watch.really:
        return {"right": right, "least": right * 0.98, "most": right * 1.02}
    # What the host overslept is not the student's fault, and neither is a busy machine's odd millisecond.
    return {"right": right, "least": right * 0.9, "most": right * 1.25 + MILLISECOND + watch.late / repeats}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _fits(row: dict[str, Any]) -> bool:
    return row["value"] is None or bool(row["least"] <= row["value"] <= row["most"])


def _timed(call: Call, durations: list[float], device: Any, later: bool = False, **options: int) -> dict[str, Any]:
    """What it says of such work; if it looked at no clock of ours, it is asked once more, in real time."""
    watch = Skipping()
    found = _timed_by(watch, call, durations, device, later, options)
    if not _fits(found) and not watch.was_read():
        with contextlib.suppress(StudentRaised):
            found["really"] = _timed_by(Sleeping(), call, durations, device, later, options)
    return found


def _timed_by(
    watch: Clock, call: Call, durations: list[float], device: Any, later: bool, options: dict[str, int]
) -> dict[str, Any]:
    with running(watch), _working(call, watch) if later else contextlib.nullcontext() as queue:
        work = Work(durations, watch, queue)
        value = call(work, device, **options)
    repeats = options.get("repeats", 5)
    return {
        "class": type(value).__name__,
        "value": _number(value),
        "took": work.took[:50],
        "calls": len(work.took),
        "repeats": repeats,
        "clocks": sorted(watch.read),
        **_bounds(math.fsum(work.took[-repeats:]) / repeats, repeats, watch),
    }


@contextlib.contextmanager
def _working(call: Call, watch: Clock) -> Any:
    from virtual_cuda import patch_imported_names

    with working_later(watch) as queue, patch_imported_names(getattr(call.function, "__globals__", {})):
        yield queue


@clock.probe(machine="one gpu")
def uneven_calls(call: Call) -> dict[str, Any]:
    """On the CPU and without warm-up: three short calls and a long one."""
    return _timed(call, _durations(call, "uneven", 8, 8, 8, 40), "cpu", repeats=4, warmup=0)


@clock.probe(machine="one gpu")
def slow_first_calls(call: Call) -> dict[str, Any]:
    """On the CPU, where nothing has to be waited for: two slow calls to warm up."""
    return _timed(call, _durations(call, "slow", 50, 50, 10), torch.device("cpu"), repeats=3, warmup=2)


@clock.probe(machine="one gpu")
def as_it_comes(call: Call) -> dict[str, Any]:
    """With the defaults: one warm-up, five calls."""
    return _timed(call, _durations(call, "defaults", 4), "cpu")


@clock.probe(machine="one gpu")
def a_device_that_works_later(call: Call) -> dict[str, Any]:
    return _timed(call, _durations(call, "later", 60, 60, 10), call.device, later=True, repeats=4, warmup=2)


@clock.probe(machine="mac")
def an_apple_gpu_that_works_later(call: Call) -> dict[str, Any]:
    try:
        return _timed(call, _durations(call, "mac", 60, 10), "mps", later=True, repeats=4, warmup=1)
    except StudentRaised as error:
        return error_of(error)


@clock.probe(machine="laptop")
def a_machine_without_a_gpu(call: Call) -> dict[str, Any]:
    try:
        return _timed(call, _durations(call, "laptop", 4), "cpu", repeats=3, warmup=1)
    except StudentRaised as error:
        return error_of(error)


def error_of(error: StudentRaised) -> dict[str, Any]:
    return {"raised": error.evidence.type, "text": error.evidence.message[:120], "line": error.evidence.line}


class _Makers:
    """Work for several devices: what `make_work` was asked for, and how long each device's calls took."""

    def __init__(self, call: Call, watch: Clock, queue: Queue) -> None:
        self.call, self.watch, self.queue = call, watch, queue
        self.made: dict[str, Work] = {}

    def make_work(self, device: Any) -> Work:
        key = str(device)
        self.watch.work(15 * MILLISECOND)  # making it takes its time too, which is none of the work's
        if key not in self.made:
            on_cpu = torch.device(device).type == "cpu"
            durations = _durations(self.call, key, *((40, 4) if on_cpu else (60, 10)))
            self.made[key] = Work(durations, self.watch, None if on_cpu else self.queue)
        return self.made[key]


def _compared(call: Call, devices: list[Any], **options: int) -> dict[str, Any]:
    watch = Skipping()
    found = _compared_by(watch, call, devices, options)
    if not all(map(_fits, found["rows"])) and not watch.was_read():
        with contextlib.suppress(StudentRaised):
            found["really"] = _compared_by(Sleeping(), call, devices, options)
    return found


def _compared_by(watch: Clock, call: Call, devices: list[Any], options: dict[str, int]) -> dict[str, Any]:
    with running(watch), _working(call, watch) as queue:
        makers = _Makers(call, watch, queue)
        found = call(makers.make_work, devices, **options)
    repeats = options.get("repeats", 3)
    rows = []
    for key, value in dict.items(found) if isinstance(found, dict) else ():
        asked = str(key) in makers.made
        took = makers.made[str(key)].took if asked else []
        warm = took[1:]  # the first call of each device's work is the slow one
        right = math.fsum(warm) / len(warm) if warm else 0.0
        row = {"key": str(key), "is_text": isinstance(key, str), "value": _number(value), "asked": asked}
        rows.append({**row, "took": took[:50], **_bounds(right, repeats, watch)})
    return {
        "class": type(found).__name__,
        "is_dict": isinstance(found, dict),
        "rows": rows,
        "repeats": repeats,
        "calls": {key: len(work.took) for key, work in makers.made.items()},
    }


@compare.probe(machine="one gpu")
def gpu_first(call: Call) -> dict[str, Any]:
    return _compared(call, ["cuda", "cpu"])


@compare.probe(machine="one gpu")
def cpu_first(call: Call) -> dict[str, Any]:
    """The other way round, as devices, and with other repeats."""
    return _compared(call, [torch.device("cpu"), torch.device("cuda:0")], repeats=5)


RIGHT: Final = ["aten::exp", "aten::mm", "aten::add"]
# Microseconds per call. With 9, 1 and 20 calls: `exp` takes longest in all, `mm` longest per call, and `add` is called
# most often and comes first.
TAKING: Final = {"aten::exp": 700.0, "aten::mm": 2000.0, "aten::add": 10.0}
MOST: Final = 8  # times that it is tried
UNNOTICED: Final = 0.0003  # seconds that this process did not run: less than what would change the order


def _tiny(device: Any) -> Any:
    return _work(device, calls=(20, 1, 9), size=2, pixels=2)


def _busy(device: Any) -> Any:
    """In real time: of neighbours in the order of all calls together, one takes about eight times the other's."""
    return _work(device, calls=(60, 1, 64), size=256, pixels=32_768)


def _work(device: Any, calls: tuple[int, int, int], size: int, pixels: int) -> Any:
    matrix, product = torch.ones(size, size).to(device), torch.empty(size, size, device=device)
    image, brighter = torch.ones(pixels).to(device), torch.empty(pixels, device=device)
    few, more = torch.ones(2).to(device), torch.empty(2, device=device)

    add, mm, exp = torch.add, torch.mm, torch.exp  # looked up here: a profiler that writes down stacks would see it

    def work() -> None:
        for _ in range(calls[0]):
            add(few, few, out=more)
        for _ in range(calls[1]):
            mm(matrix, matrix, out=product)
        for _ in range(calls[2]):
            exp(image, out=brighter)

    return work


def _answer(call: Call, work: Any, **options: int) -> dict[str, Any]:
    value = call(work, **options)
    names = value if isinstance(value, (list, tuple)) else []
    return {
        "class": type(value).__name__,
        "texts": all(isinstance(name, str) for name in names),
        "names": [str(name) for name in names][:20],
    }


def _ranked(call: Call, device: Any, **options: dict[str, int]) -> dict[str, Any]:
    with operators_taking(TAKING):
        work = _tiny(device)
        found: dict[str, Any] = {name: _answer(call, work, **given) for name, given in options.items()}
    first = found["some"]["names"]
    if first[:3] != RIGHT[: len(first)]:
        # It may read the profiler's records in a way of its own.
        work = _busy(device)
        work()
        found["really"] = _undisturbed(lambda: _answer(call, work, **options["some"])["names"])
    return found


def _undisturbed(look: Callable[[], list[str]]) -> list[str]:
    """What was seen when least time was lost: another process on this machine may take a moment from any operator."""
    found: list[tuple[float, list[str]]] = []
    while len(found) < MOST and not any(lost < UNNOTICED for lost, _ in found):
        began, own = time.perf_counter(), time.thread_time()
        names = look()
        found.append((time.perf_counter() - began - (time.thread_time() - own), names))
    return min(found, key=itemgetter(0))[1]


@top.probe(machine="laptop")
def work_on_the_cpu(call: Call) -> dict[str, Any]:
    return _ranked(call, "cpu", some={"count": 3}, default={})


@top.probe(machine="one gpu")
def work_on_the_gpu(call: Call) -> dict[str, Any]:
    return _ranked(call, call.device, some={"count": 2})


def _read(call: Call, text: str) -> dict[str, Any]:
    try:
        answer = call(text)
    except StudentRaised as error:
        if text in (TEXTS["one"], TEXTS["several"]):
            raise
        return error_of(error)
    gpus = answer if isinstance(answer, list) else []
    return {
        "class": type(answer).__name__,
        "gpus": [_row(gpu) if isinstance(gpu, dict) else {"a": type(gpu).__name__} for gpu in gpus],
    }


def _row(gpu: dict[Any, Any]) -> dict[str, Any]:
    """Each value with its class, because 3 and "3" print alike."""
    return {str(k): [type(v).__name__, None if v is None else str(v)] for k, v in gpu.items()}


for _name in TEXTS:

    def _look(call: Call, text: str = TEXTS[_name]) -> dict[str, Any]:
        return _read(call, text)

    _look.__name__ = f"text_{_name}"
    smi.probe(machine="laptop")(_look)


def _unfinished(_: str, said: str) -> str | None:
    """An event that was asked for its time before the device had come to it."""
    early = "device not ready" in said or "must be completed" in said
    return "timed-without-synchronising" if early else None


runs(clock, points=0.25, diagnose=_unfinished)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _right(row: dict[str, Any]) -> bool:
    return row["value"] is not None and bool(row["least"] <= row["value"] <= row["most"])


def _told(facts: dict[str, Any]) -> dict[str, Any]:
    """By the clock that tells more: the made one, if it was looked at, and else the real one."""
    return facts if facts["clocks"] or "really" not in facts else facts["really"]


def _holds(facts: dict[str, Any]) -> bool:
    return _right(facts) or ("really" in facts and _right(facts["really"]))


def _near(value: float, wished: float) -> bool:
    return math.isclose(value, wished, rel_tol=0.05)


def _slip(value: float, right: float, repeats: int) -> str | None:
    """What an answer is that is right but for its unit or its division."""
    if _near(value, right * repeats):
        return "that is all timed calls together, not one of them"
    if _near(value, right * 1e3) or _near(value, right * 1e3 * repeats):
        return "those are milliseconds"
    return "those are nanoseconds" if _near(value, right * 1e9) else None


@clock.check(points=0.25)
def calls_it_as_often_as_asked(seen: Seen, wanted: Seen) -> None:
    """`fn` is called exactly `warmup + repeats` times."""
    asked = {
        "as_it_comes": "the defaults",
        "slow_first_calls": "repeats=3, warmup=2",
        "uneven_calls": "repeats=4, warmup=0",
    }
    for name, options in asked.items():
        calls, right = seen[name].facts["calls"], wanted[name].facts["calls"]
        if calls != right:
            raise Failed(f"with {options} `fn` was called {calls} times", f"{right} calls")


@clock.check(points=0.25)
def gives_the_mean_per_call(seen: Seen, wanted: Seen) -> None:
    """It returns the mean number of seconds per call, as a float."""
    facts = seen["uneven_calls"].facts
    if facts["value"] is None:
        misconception = "returned-tensor" if facts["class"] in ("Tensor", "Parameter") else None
        raise Failed(f"it returned {called(facts['class'])}", "a Python float", misconception=misconception)
    if _holds(facts):
        return
    facts = _told(facts)
    calls = ", ".join(f"{took * 1e3:.1f}" for took in facts["took"])
    happened = f"{len(facts['took'])} calls of {calls} ms gave {facts['value']:.6f}"
    slip = _slip(facts["value"], facts["right"], facts["repeats"])
    if slip:
        happened += f": {slip}"
    elif facts["clocks"] and all(name.startswith(("process_time", "thread_time")) for name in facts["clocks"]):
        happened += f": {facts['clocks'][0]}() counts the processor's time only, and not what has to be waited for"
    raise Failed(happened, f"their mean in seconds: {facts['right']:.4f}")


@clock.check(points=0.25, needs=("runs", "gives_the_mean_per_call"))
def leaves_the_warm_up_out(seen: Seen, wanted: Seen) -> None:
    """The warm-up calls are not timed."""
    facts = seen["slow_first_calls"].facts
    if _holds(facts):
        return
    facts = _told(facts)
    value, right = facts["value"] or 0.0, facts["right"]
    raise Failed(
        f"two warm-up calls of about 50 ms, then three of 10 ms, gave {_ms(value)} per call" + _spread(facts),
        f"{_ms(right)}: the clock starts after the warm-up",
        misconception="timed-the-warm-up" if value > right else None,
    )


def _spread(facts: dict[str, Any]) -> str:
    """Words for a time that was right until it was divided by all calls."""
    right = facts["right"] * facts["repeats"] / max(facts["calls"], 1)
    return ": divided by all calls, those of the warm-up included" if _near(facts["value"] or 0.0, right) else ""


@clock.check(points=0.5, needs=("runs", "gives_the_mean_per_call"))
def waits_for_the_device(seen: Seen, wanted: Seen) -> None:
    """The device is synchronised before the clock is started and before it is stopped."""
    facts = seen["a_device_that_works_later"].facts
    if not _holds(facts):
        raise _not_waited(_told(facts), "the GPU")


@clock.check(points=0.25, needs=("runs", "waits_for_the_device"))
def waits_for_an_apple_gpu(seen: Seen, wanted: Seen) -> None:
    """For "mps" it waits for the Mac's GPU, and asks nothing of CUDA."""
    facts = seen["an_apple_gpu_that_works_later"].facts
    _no_error(facts, 'device="mps" on a Mac')
    if not _holds(facts):
        raise _not_waited(_told(facts), "the Mac's GPU")


def _not_waited(facts: dict[str, Any], device: str) -> Failed:
    value, right = facts["value"] or 0.0, facts["right"]
    said = f"{device} needed {_ms(right)} per call and the clock says {_ms(value)}"
    if slip := _slip(value, right, facts["repeats"]):
        return Failed(f"{said}: {slip}", "seconds per call; an event's elapsed_time() is in milliseconds")
    if spread := _spread(facts):
        return Failed(said + spread, "the time of the timed calls, divided by their number")
    if value < right:
        happened = f"{said}: it stopped before the work did"
        expected, where = "a synchronize() before the clock is stopped", LAST
    else:
        happened = f"{said}: it ran while the warm-up's work was still being done"
        expected, where = "a synchronize() between the warm-up and the start of the clock", CLOCKS
    return Failed(happened, expected, None, "timed-without-synchronising", where)


def _no_error(facts: dict[str, Any], what: str) -> None:
    if "raised" in facts:
        raise Failed(
            f"{what} raised {facts['raised']}: {facts['text'].partition(chr(10))[0]}",
            "no error",
            facts["line"],
            "hard-coded-cuda",
        )


@clock.check(points=0.25)
def works_without_a_gpu(seen: Seen, wanted: Seen) -> None:
    """With "cpu" it also works on a machine that has no GPU."""
    _no_error(seen["a_machine_without_a_gpu"].facts, 'device="cpu" on a machine without a GPU')


runs(compare)
PLACES = ("gpu_first", "cpu_first")


@compare.check(points=0.25)
def names_every_device_in_order(seen: Seen, wanted: Seen) -> None:
    """The keys are the devices as strings, in the order given."""
    for name in PLACES:
        facts, right = seen[name].facts, wanted[name].facts
        if not facts["is_dict"]:
            raise Failed(f"it returned {called(facts['class'])}", "a dict")
        keys, wished = [row["key"] for row in facts["rows"]], [row["key"] for row in right["rows"]]
        if not all(row["is_text"] for row in facts["rows"]):
            raise Failed("for devices given as torch.device the keys are devices too", "strings: str(device)")
        if keys != wished:
            raise Failed(f"the keys are {keys}", f"{wished}")


@compare.check(points=0.25, needs=("runs", "names_every_device_in_order"))
def times_each_as_it_should(seen: Seen, wanted: Seen) -> None:
    """Each value is that device's own seconds per call: warmed up, waited for, over `repeats` calls."""
    for row, repeats in _rows(seen):
        if row["value"] is None:
            raise Failed(f"the value for {row['key']} is no number", "seconds as a float")
        if not row["asked"]:
            raise Failed(f"`make_work` was never called for {row['key']}", "work made for every device")
        if not row["took"]:
            raise Failed(
                f"the function that `make_work({row['key']!r})` returned was never called", "that function, timed"
            )
        if not _right(row):
            raise _mistimed(row, repeats)
    few, many = seen["gpu_first"].facts["calls"], seen["cpu_first"].facts["calls"]
    if many["cpu"] - few["cpu"] != 2:
        raise Failed(
            f"with repeats=3 the CPU's work was called {few['cpu']} times, with repeats=5 {many['cpu']} times",
            "2 calls more: `repeats` is passed on",
        )


def _rows(seen: Seen) -> Iterator[tuple[dict[str, Any], int]]:
    """Every device's row; the CPU's first, where nothing has to be waited for and a mistake has one cause less."""
    for name in PLACES:
        facts = seen[name].facts
        really = facts.get("really", facts)
        best = facts if not all(map(_right, really["rows"])) else really
        for row in sorted(best["rows"], key=lambda row: row["key"] != "cpu"):
            yield row, best["repeats"]


def _mistimed(row: dict[str, Any], repeats: int) -> Failed:
    value, right, took = row["value"], row["right"], row["took"]
    said = f"{row['key']} needed {_ms(right)} per call, and its value says {_ms(value)}"
    expected = "the work that `make_work(device)` returns, timed on that device as `time_on_device` does"
    if slip := _slip(value, right, repeats):
        return Failed(f"{said}: {slip}", expected)
    all_in = [math.fsum(took) / repeats, math.fsum(took) / len(took)]  # with the slow first call
    misconception = None
    if row["key"] == "cpu":
        misconception = "timed-the-warm-up" if any(_near(value, mean) for mean in all_in) else None
    elif value < right or any(_near(value, mean) for mean in all_in):
        misconception = "timed-the-warm-up" if len(took) <= repeats else "timed-without-synchronising"
    return Failed(said, expected, misconception=misconception)


runs(top, points=0.25)
PROFILE_PLACES = {"work_on_the_cpu": ("the CPU", 3), "work_on_the_gpu": ("the GPU", 2)}


@top.check(points=0.25)
def gives_as_many_names_as_asked(seen: Seen, wanted: Seen) -> None:
    """It returns a list of `count` names such as "aten::mm"."""
    for name, (_, count) in PROFILE_PLACES.items():
        answer = seen[name].facts["some"]
        if answer["class"] != "list":
            raise Failed(f"it returned {called(answer['class'])}", "a list of strings")
        if not answer["texts"]:
            raise Failed(f"it returned a list of other things: {answer['names'][:1]}", "a list of strings")
        if len(answer["names"]) != count:
            raise Failed(f"count={count} gave {len(answer['names'])} names", f"{count}")
        strange = [operator for operator in answer["names"] if "::" not in operator]
        if strange:
            raise Failed(f"one of the names is {strange[0]!r}", "an operator's name as the profiler has it: aten::mm")
    unasked = seen["work_on_the_cpu"].facts["default"]["names"]
    if not 3 <= len(unasked) <= 5:
        raise Failed(f"without `count` it gave {len(unasked)} names", "at most 5, and all there are")


@top.check(points=0.25, needs=("runs", "gives_as_many_names_as_asked"))
def puts_the_longest_first(seen: Seen, wanted: Seen) -> None:
    """The operator that took most time in all comes first."""
    for name, (place, _) in PROFILE_PLACES.items():
        facts, right = seen[name].facts, wanted[name].facts["some"]["names"]
        if right not in (facts["some"]["names"], facts.get("really")):
            raise Failed(
                f"20 short `add`, one long `mm` and 9 `exp` on {place} gave {', '.join(facts['some']['names'])}",
                f"{', '.join(right)}: by the time of all calls together",
            )


runs(smi)


def _same_gpus(seen: Seen, wanted: Seen, *names: str) -> None:
    for name in names:
        facts, right = seen[f"text_{name}"].facts, wanted[f"text_{name}"].facts
        if "raised" in facts:
            raise Failed(f"{TEXTS[name]!r} raised {facts['raised']}: {facts['text']}", "no error", facts["line"])
        if facts["class"] != "list":
            raise Failed(f"it returned {called(facts['class'])}", "a list of dicts")
        if len(facts["gpus"]) != len(right["gpus"]):
            count = len(facts["gpus"])
            raise Failed(f"{TEXTS[name]!r} gave {count} dict{'s' * (count != 1)}", f"{len(right['gpus'])}")
        for found, wished in zip(facts["gpus"], right["gpus"], strict=True):
            if found != wished:
                raise Failed(f"{TEXTS[name]!r} gave {_shown(found)}", _shown(wished))


def _shown(row: dict[str, Any]) -> str:
    if "a" in row:
        return called(row["a"])
    return "{" + ", ".join(f"{key}: {_value(kind, text)}" for key, (kind, text) in row.items()) + "}"


def _value(kind: str, text: Any) -> str:
    if kind == "NoneType":
        return "None"
    return f"{repr(text) if kind == 'str' else text} ({kind})"


@smi.check(points=0.25)
def reads_every_gpu(seen: Seen, wanted: Seen) -> None:
    """One dict per GPU, in the order of the lines, with its name as it is and its numbers as ints."""
    _same_gpus(seen, wanted, "one", "several")


@smi.check(points=0.25)
def knows_what_is_not_known(seen: Seen, wanted: Seen) -> None:
    """`[N/A]` becomes None."""
    _same_gpus(seen, wanted, "unknown")


@smi.check(points=0.25)
def skips_blank_lines(seen: Seen, wanted: Seen) -> None:
    """Empty lines are skipped; an empty text gives an empty list."""
    _same_gpus(seen, wanted, "blank", "nothing")
