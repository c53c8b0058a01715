import torch
def select_device(prefer=None):
    if prefer is not None:
        device = torch.device(prefer)
        if device.type == "cuda":
            try:
                torch.cuda.get_device_properties(device)
                return device
            except (AssertionError, RuntimeError):
                pass
        elif device.type == "mps":
            if torch.backends.mps.is_available():
                return device
        elif device.type == "cpu":
            return device
    return torch.device("cuda") if torch.cuda.is_available() else torch.device("mps") if torch.backends.mps.is_available() else torch.device("cpu")
