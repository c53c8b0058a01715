import statistics
import timeit

import torch


def time_on_device(fn, device, repeats=5, warmup=1):
    device = torch.device(device)
    for _ in range(warmup):
        fn()
    if device.type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.device(device):
            start.record()
            for _ in range(repeats):
                fn()
            end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000 / repeats
    module = getattr(torch, device.type)

    def once():
        begin = timeit.default_timer()
        fn()
        if hasattr(module, "synchronize"):
            module.synchronize()
        return timeit.default_timer() - begin

    if hasattr(module, "synchronize"):
        module.synchronize()
    return statistics.mean(once() for _ in range(repeats))


def compare_devices(make_work, devices, repeats=3):
    return {f"{device}": time_on_device(make_work(device), device, repeats, warmup=1) for device in devices}


def top_operations(fn, count=5):
    on_gpu = torch.cuda.is_available()
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu:
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as prof:
        fn()
    key = "device_time_total" if on_gpu else "cpu_time_total"
    return [e.key for e in sorted(prof.key_averages(), key=lambda e: getattr(e, key), reverse=True)][:count]


def read_nvidia_smi(text):
    keys = ("index", "name", "used_mib", "total_mib")
    found = []
    for line in filter(None, text.splitlines()):
        cells = [cell.strip() for cell in line.split(",")]
        gpu = dict(zip(keys, cells))
        gpu["index"] = int(gpu["index"])
        for key in keys[2:]:
            gpu[key] = None if "N/A" in gpu[key] else int(gpu[key])
        found.append(gpu)
    return found
