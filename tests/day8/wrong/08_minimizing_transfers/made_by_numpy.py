# fails: random_sprites::made_on_the_device as made-on-cpu-then-moved

import numpy as np
import torch


def random_sprites(count, size, device, generator=None):
    seed = (generator or torch.default_generator).initial_seed()
    dice = np.random.default_rng(seed)
    return torch.tensor(dice.random((count, 3, size, size)), dtype=torch.float32, device=device)
