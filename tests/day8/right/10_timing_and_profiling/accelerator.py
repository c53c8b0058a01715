from time import perf_counter_ns as clock

import torch
import torch.autograd.profiler as profiler


def time_on_device(fn, device, repeats=5, warmup=1):
    wait = (lambda: torch.accelerator.synchronize(device)) if str(device) != "cpu" else (lambda: None)
    seconds = []
    for number in range(warmup + repeats):
        wait()
        start = clock()
        fn()
        wait()
        if number >= warmup:
            seconds.append((clock() - start) / 1e9)
    return sum(seconds) / len(seconds)


def compare_devices(make_work, devices, repeats=3):
    works = [make_work(torch.device(device)) for device in devices]
    return dict(zip(map(str, devices), (time_on_device(w, d, repeats, 2) for w, d in zip(works, devices))))


def top_operations(fn, count=5):
    with profiler.profile() as prof:
        fn()
    averages = list(prof.key_averages())
    averages.sort(key=lambda row: -row.self_cpu_time_total)
    names = []
    for row in averages:
        if len(names) < count:
            names.append(row.key)
    return names


def read_nvidia_smi(text):
    import csv
    import io

    def number(cell):
        try:
            return int(cell)
        except ValueError:
            return None

    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    return [dict(index=int(r[0]), name=r[1], used_mib=number(r[2]), total_mib=number(r[3])) for r in rows if r]
