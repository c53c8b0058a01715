import torch
def select_device(prefer=None):
    def usable(d):
        if d.type == "cpu":
            return True
        if d.type not in ("cuda", "mps"):
            return False
        m = torch.get_device_module(d)
        return m.is_available() and (d.index or 0) < m.device_count()
    order = ["cuda", "mps", "cpu"]
    if prefer is not None:
        order.insert(0, prefer)
    for d in map(torch.device, order):
        if usable(d):
            return d
