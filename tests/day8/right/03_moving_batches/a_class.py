import torch
class Mover:
    def __init__(self, device, **kwargs):
        self.device, self.kwargs = device, kwargs
    def __call__(self, x):
        if isinstance(x, torch.Tensor): return x.to(self.device, **self.kwargs)
        if isinstance(x, tuple) and getattr(type(x), "_fields", None) is not None: return type(x)(*map(self, x))
        if isinstance(x, (tuple, list)): return type(x)([self(v) for v in x])
        if isinstance(x, dict): return {k: self(v) for k, v in x.items()}
        return x
def move_batch(batch, device, non_blocking: bool = False):
    return Mover(device, non_blocking=non_blocking)(batch)
def on_same_device(*things) -> bool:
    import itertools
    def walk(x):
        if isinstance(x, torch.Tensor): return (x,)
        if isinstance(x, torch.nn.Module): return itertools.chain(x.parameters(), x.buffers())
        if isinstance(x, dict): return itertools.chain.from_iterable(walk(v) for v in x.values())
        if isinstance(x, (list, tuple)): return itertools.chain.from_iterable(walk(v) for v in x)
        return ()
    it = (t.device for t in walk(things))
    first = next(it, None)
    return all(d == first for d in it)
