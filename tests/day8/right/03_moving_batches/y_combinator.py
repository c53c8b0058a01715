import torch
from torch import nn

move_batch = lambda batch, device, non_blocking=False: (lambda f: f(f, batch))(
    lambda f, x: (
        x.to(device=device, non_blocking=non_blocking)
        if isinstance(x, torch.Tensor)
        else type(x)((k, f(f, v)) for k, v in x.items())
        if isinstance(x, dict)
        else type(x)(*[f(f, v) for v in x])
        if isinstance(x, tuple) and type(x) is not tuple
        else type(x)([f(f, v) for v in x])
        if isinstance(x, (tuple, list))
        else x
    )
)
on_same_device = lambda *things: (lambda g: len({*g(g, things)}) <= 1)(
    lambda g, x: (
        [x.device]
        if isinstance(x, torch.Tensor)
        else g(g, [*x.parameters(), *x.buffers()])
        if isinstance(x, nn.Module)
        else sum((g(g, v) for v in (x.values() if isinstance(x, dict) else x)), [])
        if isinstance(x, (dict, list, tuple))
        else []
    )
)
