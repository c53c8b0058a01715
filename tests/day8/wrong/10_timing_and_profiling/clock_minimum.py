# fails: time_on_device::gives_the_mean_per_call as -
import timeit, torch


def time_on_device(fn, device, repeats=5, warmup=1):
    def sync():
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
        elif torch.device(device).type == "mps":
            torch.mps.synchronize()

    def job():
        fn()
        sync()

    for _ in range(warmup):
        fn()
    sync()
    return min(timeit.repeat(job, number=1, repeat=repeats))
