import timeit, torch


def time_on_device(fn, device, repeats=5, warmup=1):
    kind = torch.device(device).type

    def sync():
        if kind == "cuda":
            torch.cuda.synchronize(device)
        elif kind == "mps":
            torch.mps.synchronize()

    def job():
        fn()
        sync()

    times = timeit.repeat(job, setup=sync, number=1, repeat=warmup + repeats)
    return sum(times[warmup:]) / repeats
