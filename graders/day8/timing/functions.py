"""Which functions does exercise 10 ask for, and what may be said to help?"""

from __future__ import annotations

from graders.curriculum import Exercise

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
