import torch


def select_device(prefer=None):
    names = ["cpu"]
    try:
        if (torch.ones(1).to("mps") + 1).item() == 2:
            names.insert(0, "mps")
    except (RuntimeError, AssertionError, NotImplementedError):
        pass
    if torch.cuda.is_available():
        names = [f"cuda:{index}" for index in range(torch.cuda.device_count())] + names
    if prefer is not None:
        wanted = torch.device(prefer)
        same = str(wanted) in names or wanted.type in (names[0].partition(":")[0], "cpu") and not wanted.index
        if same:
            return wanted
    return torch.device(names[0])
