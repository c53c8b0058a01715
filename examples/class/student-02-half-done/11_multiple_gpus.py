"""One model on several GPUs.

Run me: dojo run exercises/day8/11_multiple_gpus.py
Check me: pytest exercises/day8/11_multiple_gpus.py
Read me: dojo lesson 11
"""

import torch
import torch.distributed as dist
from torch import nn


def parallelize(model, device):
    """The model on `device`, spread over all GPUs if there are several.

    If `device` is a CUDA device ("cuda", "cuda:0") and this machine has more than one GPU: the model wrapped in
    nn.DataParallel, which uses all of them. Otherwise the model itself, on `device`. Move the model you are given and
    wrap that object itself, not a copy of it: an optimizer may already have its parameters.

    About 5 lines. Read: https://pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
    """
    raise NotImplementedError


def unwrap(model):
    """The model inside nn.DataParallel or nn.parallel.DistributedDataParallel; any other model unchanged.

    This is what you save: the names in its state_dict do not begin with "module.". A model that is not wrapped may
    have a part that is called `module`; it is returned whole.

    About 3 lines. Read: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    raise NotImplementedError


def average_gradients(model):
    """Make every parameter's gradient the mean over all processes of the torch.distributed group.

    Every process calls it after backward(), with its own copy of the model and the gradients of its own batch; then
    all of them have the same gradients and take the same step. The group has been initialised already and may have
    any number of processes. Parameters without a gradient (None) still have none. Weights do not change.

    About 5 lines. Read: https://pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce
    """
    raise NotImplementedError


if __name__ == "__main__":
    from gpudojo.sprite_display import show

    torch.manual_seed(8)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    nn.init.zeros_(model[1].weight)
    sprites, targets = 0.1 * torch.rand(8, 3, 8, 8), torch.arange(8) % 2
    coin = torch.tensor([1.0, 0.8, 0.1]).view(3, 1, 1).expand(3, 4, 4)
    sprites[[0, 2], :, 2:6, :4], sprites[[4, 6], :, 2:6, 4:] = (
        coin,
        coin,
    )  # left in one half, right in the other

    def wanted(batch, labels):
        """The negative gradient of the first class: where brighter pixels would help."""
        model.zero_grad()
        nn.functional.cross_entropy(model(batch), labels).backward()
        return -4 * model[1].weight.grad[0].reshape(3, 8, 8)

    pictures = [
        wanted(sprites[:4], targets[:4]),
        wanted(sprites[4:], targets[4:]),
        wanted(sprites, targets),
    ]
    print(
        "What does a coin look like? The gradient of each process's half of the batch, and their mean:"
    )
    show(torch.stack(pictures), ["rank 0", "rank 1", "mean"])

    def show_average():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        before = model[1].weight.grad.clone()
        average_gradients(model)
        print("one process alone keeps its gradients:", torch.equal(before, model[1].weight.grad))

    def show_parallel():
        spread = parallelize(model, device)
        print(f"{torch.cuda.device_count()} GPU(s) here, so on {device}: {type(spread).__name__}")

    def show_unwrapped():
        print("what would be saved:", ", ".join(unwrap(nn.DataParallel(model)).state_dict()))

    for shown, name in (
        (show_average, "average_gradients"),
        (show_parallel, "parallelize"),
        (show_unwrapped, "unwrap"),
    ):
        try:
            shown()
        except NotImplementedError:
            print(f"{name} is still to do: open this file and fill it in.")
    if dist.is_initialized():
        dist.destroy_process_group()
