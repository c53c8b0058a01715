"""10: how long does it take? Clocks on a device that works later, operators by their time, and nvidia-smi's lines."""

from __future__ import annotations

from typing import Any

from graders.checks.common import runs
from graders.curriculum import Exercise, Failed
from graders.curriculum.exercise import Seen
from graders.probes.calling import Call, StudentRaised
from graders.probes.late import torch
from graders.probes.late_work import Queue, Work, working_later

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
)
smi = exercise.function(
    "read_nvidia_smi",
    "`text.splitlines()`, and for each line that is not empty `line.split(', ')`.",
    "`[N/A]` is no number: look for it before you call `int`.",
)
MILLISECOND = 1e-3


def _timed(call: Call, work: Work, device: Any, queue: Queue | None = None, **options: int) -> dict[str, Any]:
    value = call(work, device, **options)
    repeats = options.get("repeats", 5)
    right = sum(work.took[-repeats:]) / repeats
    return {
        "class": type(value).__name__,
        "value": float(value) if isinstance(value, (int, float)) else None,
        "calls": len(work.took),
        "right": right,
        # What the host overslept is not the student's fault, and neither is a busy machine's odd millisecond.
        "most": right * 1.25 + MILLISECOND + (queue.late if queue else 0.0) / repeats,
        "least": right * 0.9,
    }


@clock.probe(machine="one gpu")
def uneven_calls(call: Call) -> dict[str, Any]:
    """On the CPU and without warm-up: three short calls and a long one."""
    work = Work([0.008, 0.008, 0.008, 0.040])
    return _timed(call, work, "cpu", repeats=4, warmup=0)


@clock.probe(machine="one gpu")
def slow_first_calls(call: Call) -> dict[str, Any]:
    """On the CPU, where nothing has to be waited for: two slow calls to warm up."""
    work = Work([0.050, 0.050, 0.010])
    return _timed(call, work, torch.device("cpu"), repeats=3, warmup=2)


@clock.probe(machine="one gpu")
def as_it_comes(call: Call) -> dict[str, Any]:
    """With the defaults: one warm-up, five calls."""
    return _timed(call, Work([0.001]), "cpu")


@clock.probe(machine="one gpu")
def a_device_that_works_later(call: Call) -> dict[str, Any]:
    with working_later() as queue:
        work = Work([0.060, 0.060, 0.010], queue)
        return _timed(call, work, call.device, queue, repeats=4, warmup=2)


@clock.probe(machine="mac")
def an_apple_gpu_that_works_later(call: Call) -> dict[str, Any]:
    with working_later() as queue:
        work = Work([0.060, 0.010], queue)
        try:
            return _timed(call, work, "mps", queue, repeats=4, warmup=1)
        except StudentRaised as error:
            return _error(error)


@clock.probe(machine="laptop")
def a_machine_without_a_gpu(call: Call) -> dict[str, Any]:
    try:
        return _timed(call, Work([0.004]), "cpu", repeats=3, warmup=1)
    except StudentRaised as error:
        return _error(error)


def _error(error: StudentRaised) -> dict[str, Any]:
    return {"raised": error.evidence.type, "text": error.evidence.message[:120], "line": error.evidence.line}


runs(clock, points=0.25)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


@clock.check(points=0.25)
def calls_it_as_often_as_asked(seen: Seen, wanted: Seen) -> None:
    """`fn` is called exactly `warmup + repeats` times."""
    for name, options in (("as_it_comes", "the defaults"), ("slow_first_calls", "repeats=3, warmup=2")):
        calls, right = seen[name].facts["calls"], wanted[name].facts["calls"]
        if calls != right:
            raise Failed(f"with {options} `fn` was called {calls} times", f"{right} calls")


@clock.check(points=0.25)
def gives_the_mean_per_call(seen: Seen, wanted: Seen) -> None:
    """It returns the mean number of seconds per call, as a float."""
    facts = seen["uneven_calls"].facts
    if facts["value"] is None:
        misconception = "returned-tensor" if facts["class"] in ("Tensor", "Parameter") else None
        raise Failed(f"it returned a {facts['class']}", "a Python float", misconception=misconception)
    if not facts["least"] <= facts["value"] <= facts["most"]:
        raise Failed(
            f"four calls of 8, 8, 8 and 40 ms gave {facts['value']:.6f}", f"their mean in seconds: {facts['right']:.4f}"
        )


@clock.check(points=0.25, needs=("runs", "gives_the_mean_per_call"))
def leaves_the_warm_up_out(seen: Seen, wanted: Seen) -> None:
    """The warm-up calls are not timed."""
    facts = seen["slow_first_calls"].facts
    if not facts["least"] <= facts["value"] <= facts["most"]:
        raise Failed(
            f"two warm-up calls of 50 ms, then three of 10 ms, gave {_ms(facts['value'])} per call",
            f"{_ms(facts['right'])}: the clock starts after the warm-up",
            misconception="timed-the-warm-up",
        )


@clock.check(points=0.5, needs=("runs", "gives_the_mean_per_call"))
def waits_for_the_device(seen: Seen, wanted: Seen) -> None:
    """The device is synchronised before the clock is started and before it is stopped."""
    facts = seen["a_device_that_works_later"].facts
    if facts["value"] is None or not facts["least"] <= facts["value"] <= facts["most"]:
        _not_waited(facts["value"] or 0.0, facts["right"], "the GPU")


@clock.check(points=0.25, needs=("runs", "waits_for_the_device"))
def waits_for_an_apple_gpu(seen: Seen, wanted: Seen) -> None:
    """For "mps" it waits for the Mac's GPU, and asks nothing of CUDA."""
    facts = seen["an_apple_gpu_that_works_later"].facts
    _no_error(facts, 'device="mps" on a Mac')
    if facts["value"] is None or not facts["least"] <= facts["value"] <= facts["most"]:
        _not_waited(facts["value"] or 0.0, facts["right"], "the Mac's GPU")


def _not_waited(value: float, right: float, device: str) -> None:
    if value < right:
        happened = (
            f"{device} needed {_ms(right)} per call and the clock says {_ms(value)}: it stopped before the work did"
        )
        expected = "a synchronize() before the clock is stopped"
    else:
        happened = (
            f"{device} needed {_ms(right)} per call and the clock says {_ms(value)}: it ran while the warm-up's work "
            "was still being done"
        )
        expected = "a synchronize() between the warm-up and the start of the clock"
    raise Failed(happened, expected, misconception="timed-without-synchronising")


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


class _Bench:
    """Work for several devices: what `make_work` was asked for, and how long each device's calls took."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.made: dict[str, Work] = {}
        self.asked: list[str] = []

    def make_work(self, device: Any) -> Work:
        key = str(device)
        self.asked.append(key)
        if key not in self.made:
            on_cpu = torch.device(device).type == "cpu"
            self.made[key] = Work([0.040, 0.004], None) if on_cpu else Work([0.060, 0.010], self.queue)
        return self.made[key]


def _compared(call: Call, devices: list[Any], repeats: int | None = None) -> dict[str, Any]:
    with working_later() as queue:
        bench = _Bench(queue)
        options = {} if repeats is None else {"repeats": repeats}
        found = call(bench.make_work, devices, **options)
    timed = repeats or 3
    rows = []
    for key, value in found.items() if isinstance(found, dict) else ():
        took = bench.made[str(key)].took if str(key) in bench.made else []
        warm = took[1:]  # the first call of each device's work is the slow one
        right = sum(warm) / len(warm) if warm else 0.0
        rows.append(
            {
                "key": str(key),
                "is_text": isinstance(key, str),
                "value": float(value) if isinstance(value, (int, float)) else None,
                "right": right,
                "least": right * 0.9,
                "most": right * 1.25 + MILLISECOND + queue.late / timed,
                "warmed_up": len(took) > timed,
            }
        )
    return {
        "class": type(found).__name__,
        "rows": rows,
        "asked": sorted(set(bench.asked)),
        "calls": {key: len(work.took) for key, work in bench.made.items()},
    }


@compare.probe(machine="one gpu")
def gpu_first(call: Call) -> dict[str, Any]:
    return _compared(call, ["cuda", "cpu"])


@compare.probe(machine="one gpu")
def cpu_first(call: Call) -> dict[str, Any]:
    """The other way round, as devices, and with other repeats."""
    return _compared(call, [torch.device("cpu"), torch.device("cuda:0")], repeats=5)


runs(compare)


@compare.check(points=0.25)
def names_every_device_in_order(seen: Seen, wanted: Seen) -> None:
    """The keys are the devices as strings, in the order given."""
    for name in ("gpu_first", "cpu_first"):
        facts, right = seen[name].facts, wanted[name].facts
        if facts["class"] != "dict":
            raise Failed(f"it returned a {facts['class']}", "a dict")
        keys, wished = [row["key"] for row in facts["rows"]], [row["key"] for row in right["rows"]]
        if not all(row["is_text"] for row in facts["rows"]):
            raise Failed("for devices given as torch.device the keys are devices too", "strings: str(device)")
        if keys != wished:
            raise Failed(f"the keys are {keys}", f"{wished}")


@compare.check(points=0.25, needs=("runs", "names_every_device_in_order"))
def times_each_as_it_should(seen: Seen, wanted: Seen) -> None:
    """Each value is that device's own seconds per call: warmed up, waited for, over `repeats` calls."""
    for name in ("gpu_first", "cpu_first"):
        for row in seen[name].facts["rows"]:
            value, right = row["value"], row["right"]
            if value is None:
                raise Failed(f"the value for {row['key']} is no number", "seconds as a float")
            if row["least"] <= value <= row["most"]:
                continue
            raise Failed(
                f"{row['key']} needed {_ms(right)} per call, and its value says {_ms(value)}",
                "the work that `make_work(device)` returns, timed on that device as `time_on_device` does",
                misconception="timed-without-synchronising" if row["warmed_up"] else "timed-the-warm-up",
            )
    few, many = seen["gpu_first"].facts["calls"], seen["cpu_first"].facts["calls"]
    if many["cpu"] - few["cpu"] != 2:
        raise Failed(
            f"with repeats=3 the CPU's work was called {few['cpu']} times, with repeats=5 {many['cpu']} times",
            "2 calls more: `repeats` is passed on",
        )


def _busy(device: Any) -> Any:
    """`exp` takes longest in all, `mm` longest per call, and `add` is called most often and comes first."""
    dice = torch.Generator().manual_seed(8)
    matrix, product = torch.rand(320, 320, generator=dice).to(device), torch.empty(320, 320, device=device)
    pixels = torch.rand(400_000, generator=dice).to(device)
    brighter, few = torch.empty_like(pixels), torch.rand(64, generator=dice).to(device)
    more = torch.empty_like(few)

    def work() -> None:
        with torch.no_grad():
            for _ in range(60):
                torch.add(few, few, out=more)
            torch.mm(matrix, matrix, out=product)
            for _ in range(20):
                torch.exp(pixels, out=brighter)

    return work


def _ranked(call: Call, device: Any) -> dict[str, Any]:
    work = _busy(device)
    work()
    # More than once: another process on this machine may take a moment away from any operator.
    found: dict[str, Any] = {}
    for key, options in (("three", {"count": 3}), ("one", {"count": 1}), ("default", {})):
        answers = [call(work, **options) for _ in range(3 if key == "three" else 1)]
        found["class"] = type(answers[0]).__name__
        found[key] = [[str(n) for n in a] if isinstance(a, (list, tuple)) else [] for a in answers]
        found[f"{key} texts"] = all(isinstance(n, str) for a in answers if isinstance(a, (list, tuple)) for n in a)
    return found


@top.probe(machine="laptop")
def work_on_the_cpu(call: Call) -> dict[str, Any]:
    return _ranked(call, "cpu")


@top.probe(machine="one gpu")
def work_on_the_gpu(call: Call) -> dict[str, Any]:
    return _ranked(call, call.device)


runs(top, points=0.25)
PLACES = {"work_on_the_cpu": "the CPU", "work_on_the_gpu": "the GPU"}


@top.check(points=0.25)
def gives_as_many_names_as_asked(seen: Seen, wanted: Seen) -> None:
    """It returns a list of `count` names such as "aten::mm"."""
    for name in PLACES:
        facts = seen[name].facts
        if facts["class"] != "list" or not facts["three texts"]:
            what = (
                f"a {facts['class']}"
                if facts["class"] != "list"
                else f"a list of other things: {facts['three'][0][:1]}"
            )
            raise Failed(f"it returned {what}", "a list of strings")
        for key, count in (("three", 3), ("one", 1)):
            lengths = {len(answer) for answer in facts[key]}
            if lengths != {count}:
                raise Failed(f"count={count} gave {max(lengths)} names", f"{count}")
        if any(not 3 <= len(answer) <= 5 for answer in facts["default"]):
            raise Failed(f"without `count` it gave {len(facts['default'][0])} names", "at most 5, and all there are")
        strange = [n for answer in facts["three"] for n in answer if "::" not in n]
        if strange:
            raise Failed(f"one of the names is {strange[0]!r}", "an operator's name as the profiler has it: aten::mm")


@top.check(points=0.25, needs=("runs", "gives_as_many_names_as_asked"))
def puts_the_longest_first(seen: Seen, wanted: Seen) -> None:
    """The operator that took most time in all comes first."""
    right = ["aten::exp", "aten::mm", "aten::add"]
    for name, place in PLACES.items():
        facts = seen[name].facts
        if not any(answer == right for answer in facts["three"]) and facts["default"][0][:3] != right:
            raise Failed(
                f"60 short `add`, one longer `mm` and 20 `exp` on {place} gave {', '.join(facts['three'][-1])}",
                f"{', '.join(right)}: by the time of all calls together",
            )


TEXTS = {
    "one": "0, NVIDIA H200, 1024, 143771\n",
    "several": "0, Tesla T4, 3, 15360\n1, NVIDIA GeForce RTX 4090, 24000, 24564\n10, NVIDIA A100-SXM4-80GB, 0, 81920",
    "unknown": "0, NVIDIA GB10, [N/A], [N/A]\n1, NVIDIA H200, [N/A], 143771\n",
    "blank": "\n0, Tesla T4, 3, 15360\n\n\n1, Tesla T4, 5, 15360\n\n",
    "nothing": "",
}


def _read(call: Call, text: str) -> dict[str, Any]:
    try:
        answer = call(text)
    except StudentRaised as error:
        if text in (TEXTS["one"], TEXTS["several"]):
            raise
        return _error(error)
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

runs(smi)


def _same_gpus(seen: Seen, wanted: Seen, *names: str) -> None:
    for name in names:
        facts, right = seen[f"text_{name}"].facts, wanted[f"text_{name}"].facts
        if "raised" in facts:
            raise Failed(f"{TEXTS[name]!r} raised {facts['raised']}: {facts['text']}", "no error", facts["line"])
        if facts["class"] != "list":
            raise Failed(f"it returned a {facts['class']}", "a list of dicts")
        if len(facts["gpus"]) != len(right["gpus"]):
            raise Failed(f"{TEXTS[name]!r} gave {len(facts['gpus'])} dicts", f"{len(right['gpus'])}")
        for found, wished in zip(facts["gpus"], right["gpus"], strict=True):
            if found != wished:
                raise Failed(f"{TEXTS[name]!r} gave {_shown(found)}", _shown(wished))


def _shown(row: dict[str, Any]) -> str:
    if "a" in row:
        return f"a {row['a']}"
    return "{" + ", ".join(f"{k}: {repr(t) if c == 'str' else t} ({c})" for k, (c, t) in row.items()) + "}"


@smi.check(points=0.25)
def reads_every_gpu(seen: Seen, wanted: Seen) -> None:
    """One dict per GPU, with its name as it is and its numbers as ints."""
    _same_gpus(seen, wanted, "one", "several")


@smi.check(points=0.25)
def knows_what_is_not_known(seen: Seen, wanted: Seen) -> None:
    """`[N/A]` becomes None."""
    _same_gpus(seen, wanted, "unknown")


@smi.check(points=0.25)
def skips_blank_lines(seen: Seen, wanted: Seen) -> None:
    """Empty lines are skipped; an empty text gives an empty list."""
    _same_gpus(seen, wanted, "blank", "nothing")
