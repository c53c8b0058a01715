# fails: time_on_device::waits_for_the_device as timed-without-synchronising
from datetime import datetime


def time_on_device(fn, device, repeats=5, warmup=1):
    for _ in range(warmup):
        fn()
    t = datetime.now()
    for _ in range(repeats):
        fn()
    return (datetime.now() - t).total_seconds() / repeats
