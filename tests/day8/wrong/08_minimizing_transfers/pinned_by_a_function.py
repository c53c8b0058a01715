# fails: make_loader::pins_exactly_for_cuda as -
from torch.utils import data


def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):
    def is_gpu(name):
        return name == "cuda"

    options = {"batch_size": batch_size, "shuffle": shuffle, "num_workers": num_workers}
    options.update({"pin_memory": is_gpu(device)})
    return data.DataLoader(dataset, **options)
