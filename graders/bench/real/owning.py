"""Does this process still have its GPU? How it is taken before student code runs, and how its loss is noticed.

A kernel that asserts or reads where nothing is takes the whole CUDA context with it: whatever the process does from
then on fails with the same error. Other processes have contexts of their own and notice nothing.
"""

from __future__ import annotations

import torch

from graders.bench.real.opening import available
from graders.bench.virtual.opening import withdraw
from graders.errors import NoSuchDevice


def take(memory: int) -> None:
    """Make this process's context, in which torch's allocator takes so many bytes of each GPU and no more."""
    withdraw()  # a process that has opened the virtual device may still have its kernels
    count = available("cuda")
    if not count:
        raise NoSuchDevice("cuda")
    for index in range(count):
        whole = torch.cuda.get_device_properties(index).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, memory / whole), index)
    torch.cuda.synchronize()


def lost() -> Exception | None:
    """What a kernel has done to the context, once the device has come to an end with all it was given."""
    if not torch.cuda.is_initialized():
        return None
    try:
        torch._C._cuda_synchronize()
    except RuntimeError as error:
        return error
    return None
