import torch

COUNTS = {
    "cuda": lambda: torch.cuda.device_count() if torch.cuda.is_available() else 0,
    "mps": lambda: int(torch.backends.mps.is_available()),
    "cpu": lambda: 1,
}


def select_device(prefer=None):
    order = list(COUNTS)
    if prefer is not None:
        asked = torch.device(prefer)
        count = COUNTS.get(asked.type, lambda: 0)()
        if count and (asked.index is None or asked.index < count):
            return asked
    while not COUNTS[order[0]]():
        order.pop(0)
    return torch.device(order[0])
