# fails: select_device::replaces_what_is_absent as -
import torch


def select_device(prefer=None):
    def best():
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")

    if prefer is None:
        return best()
    d = torch.device(prefer)
    match d.type:
        case "cpu":
            ok = True
        case "mps":
            ok = torch.backends.mps.is_available()
        case "cuda":
            ok = (d.index or 0) < torch.cuda.device_count()
    return d if ok else best()
