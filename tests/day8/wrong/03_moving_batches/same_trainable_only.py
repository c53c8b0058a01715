# fails: on_same_device::searches_modules as -

import torch
def on_same_device(*things):
    ds = set()
    def v(t):
        if isinstance(t, torch.nn.Module): [v(p) for p in [*(p for p in t.parameters() if p.requires_grad), *t.buffers()]]
        elif torch.is_tensor(t): ds.add(t.device)
        elif isinstance(t, dict): [v(x) for x in t.values()]
        elif isinstance(t, (list, tuple)): [v(x) for x in t]
    v(things)
    return len(ds) <= 1
