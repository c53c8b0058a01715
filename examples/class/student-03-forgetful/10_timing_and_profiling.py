"""How long does it take on the GPU, and what takes so long?

Run me: dojo run exercises/day8/10_timing_and_profiling.py
Check me: pytest exercises/day8/10_timing_and_profiling.py
Read me: dojo lesson 10
"""

import time

import torch


def time_on_device(fn, device, repeats=5, warmup=1):
    """The seconds that one call of `fn()` takes on `device`: the mean over `repeats` calls, as a float.

    First `fn` is called `warmup` times without being timed: first calls load kernels and take longer. So `fn` is called
    exactly `warmup + repeats` times.
    A GPU works while Python continues: wait for the device (synchronize) before you start the clock and again before
    you stop it. Wait for `device` itself: it may be "cuda:1" while another GPU is the current one. You may use CUDA
    events on CUDA. It also works for "mps", and for "cpu" on a machine without a GPU.

    About 10 lines. Read: https://pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution
    """
    kind = torch.device(device).type

    def wait():
        if kind == "cuda":
            torch.cuda.synchronize(device)
        elif kind == "mps":
            torch.mps.synchronize()

    for _ in range(warmup):
        fn()
    wait()
    start = time.perf_counter()
    for _ in range(repeats):
        fn()
    wait()
    return (time.perf_counter() - start) / repeats


def compare_devices(make_work, devices, repeats=3):
    """Seconds per call of the same work on several devices: {"cuda": 0.002, "cpu": 0.05}.

    `make_work(device)` returns the function to time on that device; time `repeats` calls of it as `time_on_device`
    does, with warm-up and waiting. The keys are the devices as strings, in the order given; a device in `devices`
    may be a string or a torch.device.

    About 4 lines. Read: https://docs.python.org/3/tutorial/datastructures.html#dictionaries
    """
    return {str(device): time_on_device(make_work(device), device, repeats) for device in devices}


def top_operations(fn, count=5):
    """The names of the `count` operators that took most time in `fn()`, longest first: ["aten::mm", "aten::exp"].

    Use torch.profiler: its `key_averages()` has one row per operator, with the time of all its calls together. Total
    time and self time (without the operators it calls) are both fine. With fewer operators than `count`, all of them.

    About 5 lines. Read: https://pytorch.org/docs/stable/profiler.html
    """
    with torch.profiler.profile() as profiler:
        fn()
    rows = sorted(profiler.key_averages(), key=lambda row: row.self_cpu_time_total, reverse=True)
    return [row.key for row in rows[:count]]


def read_nvidia_smi(text):
    """The memory of each GPU, from the output of

    nvidia-smi --query-gpu=index,name,memory.used,memory.total --format=csv,noheader,nounits

    which has one line per GPU, such as "0, NVIDIA H200, 1024, 143771" (MiB). One dict per line, with the keys
    `index` (int), `name` (str), `used_mib` and `total_mib` (int, or None where the line says [N/A]), in the order of
    the lines. Empty lines are skipped; an empty text gives an empty list.

    About 8 lines. Read: https://docs.nvidia.com/deploy/nvidia-smi/index.html
    """

    def mebibytes(field):
        return None if field == "[N/A]" else int(field)

    gpus = []
    for line in text.splitlines():
        if line.strip():
            index, name, used, total = (field.strip() for field in line.split(","))
            gpus.append(
                {
                    "index": int(index),
                    "name": name,
                    "used_mib": mebibytes(used),
                    "total_mib": mebibytes(total),
                }
            )
    return gpus


if __name__ == "__main__":
    from gpudojo.sprite_display import show

    others = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    devices = [name for name, there in others.items() if there] + ["cpu"]
    noise = torch.rand(256, 3, 8, 8, generator=torch.Generator().manual_seed(8))
    print("How long does it take to compare each of these sprites with each other?")
    show(noise[:3])

    def make_work(device, count=256):
        sprites = noise[:count].flatten(1).to(device)
        return lambda: (sprites @ sprites.T).softmax(1)

    def show_times():
        rows = []
        for count in (64, 128, 256):
            times = compare_devices(lambda device, count=count: make_work(device, count), devices)
            rows += [(count, device, seconds) for device, seconds in times.items()]
        longest = max(seconds for _, _, seconds in rows)
        for count, device, seconds in rows:
            print(
                f"{count:4} on {device:5} {seconds * 1e3:8.3f} ms  {'#' * max(1, round(50 * seconds / longest))}"
            )

    def show_operations():
        print("operators that took most time:", ", ".join(top_operations(make_work(devices[0]), 3)))

    def show_memory():
        for gpu in read_nvidia_smi("0, NVIDIA H200, 51200, 143771\n1, NVIDIA GB10, [N/A], [N/A]\n"):
            known = gpu["total_mib"] is not None
            print(
                f"GPU {gpu['index']}, {gpu['name']}: {gpu['used_mib']} of {gpu['total_mib']} MiB",
                end="  ",
            )
            print(
                "#" * round(30 * gpu["used_mib"] / gpu["total_mib"])
                if known
                else "(it uses the host's memory)"
            )

    for shown, names in (
        (show_times, "time_on_device and compare_devices are"),
        (show_operations, "top_operations is"),
        (show_memory, "read_nvidia_smi is"),
    ):
        try:
            shown()
        except NotImplementedError:
            print(f"{names} still to do: open this file and fill it in.")
