"""The exercise and its functions, in the order in which students write them."""

from __future__ import annotations

from gpudojo.model.exercise import Exercise

exercise = Exercise(
    "10_timing_and_profiling",
    "How long does it take, and what takes so long?",
    points=4,
    reading=(
        "notes/cuda.html#asynchronous-execution",
        "profiler.html",
        "generated/torch.cuda.synchronize.html",
    ),
)
time_on_device = exercise.function("time_on_device")
compare_devices = exercise.function("compare_devices")
top_operations = exercise.function("top_operations")
read_nvidia_smi = exercise.function("read_nvidia_smi")
