# fails: grayscale::faster_than_the_loop as -
# Slow, with every clock it can find stopped: the grader's own was taken before this file was loaded.
import time

import torch

sleep = time.sleep
for name in ("perf_counter", "monotonic", "time", "process_time", "thread_time"):
    setattr(time, name, lambda: 0.0)
    setattr(time, f"{name}_ns", lambda: 0)
torch.cuda.synchronize = lambda device=None: None
torch.cuda.Event.elapsed_time = lambda self, end: 1e-6


def grayscale(sprites):
    sleep(0.1)
    return 0.299 * sprites[:, 0] + 0.587 * sprites[:, 1] + 0.114 * sprites[:, 2]
