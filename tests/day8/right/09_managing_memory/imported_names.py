from functools import partial, reduce
from itertools import islice

from torch import OutOfMemoryError, device as Device
from torch.cuda import empty_cache, max_memory_allocated, reset_peak_memory_stats, synchronize
from torch.utils.checkpoint import checkpoint


def peak_memory(fn, device) -> int:
    if Device(device).type != "cuda":
        fn()
        return 0
    synchronize(device)
    reset_peak_memory_stats(device)
    fn()
    synchronize(device)
    return max_memory_allocated(device)


def largest_batch(try_batch, start: int) -> int:
    try:
        try_batch(start)
    except OutOfMemoryError:
        if start == 1:
            raise
    else:
        return start
    empty_cache()
    return largest_batch(try_batch, start // 2)


def accumulate_gradients(model, loader, loss_fn, optimizer, device, steps) -> int:
    model.to(device)
    batches, taken = iter(loader), 0
    while group := list(islice(batches, steps)):
        model.zero_grad(set_to_none=False)
        for inputs, targets in group:
            loss = loss_fn(model(inputs.to(device)), targets.to(device))
            loss.backward(gradient=loss.new_full((), 1 / steps))
        optimizer.step()
        taken += 1
    return taken


again = partial(checkpoint, use_reentrant=False)


def checkpointed(blocks, x):
    return reduce(lambda out, block: again(block.forward, out), blocks, x)
