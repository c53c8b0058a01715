# fails: make_loader::pins_exactly_for_cuda as -
from torch.utils import data


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    options = {"shuffle": shuffle, "num_workers": num_workers}
    if str(device) == "cuda":
        options["pin_memory"] = True
    return data.DataLoader(dataset, batch_size=batch_size, **options)
