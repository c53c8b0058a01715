"""A model on the GPU, all of it.

Run me: dojo run exercises/day8/02_moving_model_to_device.py
Check me: pytest exercises/day8/02_moving_model_to_device.py
Read me: dojo lesson 02
"""

import torch
from torch import nn


def move_model(model, device):
    """Move the model to `device` (a torch.device or a string such as "cuda:0") and return it.

    Returns the same module object, with every parameter and every buffer on the device. Its values and its training
    mode do not change, and an optimizer that was built before still updates it. Changes no setting of torch.

    About 1 line. Read: https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to
    """
    return model.to(device)


def parameter_devices(model):
    """The device of every parameter and every buffer of the model.

    Returns a dict from the qualified name, such as "encoder.0.weight", to the torch.device. Buffers are values that a
    model keeps but does not learn, such as the running mean of a batch norm; some are not in `state_dict()`, and belong
    here too. A model without parameters and buffers gives an empty dict. If a tensor has two names, use either or both.

    About 4 lines. Read: https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.named_buffers
    """
    devices = {name: parameter.device for name, parameter in model.named_parameters()}
    devices.update((name, buffer.device) for name, buffer in model.named_buffers())
    return devices


if __name__ == "__main__":
    from gpudojo.sprite_display import show

    torch.manual_seed(8)
    device = (
        "cuda"
        if torch.cuda.is_available()
        else "mps"
        if torch.backends.mps.is_available()
        else "cpu"
    )
    model = nn.Sequential(
        nn.Conv2d(3, 5, 4), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(125, 3)
    )

    def look(title):
        filters = (
            model[0].weight.detach().cpu() * 3 + 0.5
        )  # the weights of the first layer, as colours
        print(f"The sprite classifier {title}, and its filters:")
        show(filters)
        try:
            for name, where in parameter_devices(model).items():
                print(f"  {name:22} {where}")
        except NotImplementedError:
            print("  parameter_devices is still to do: open this file and fill it in.")

    look("before the move")
    try:
        model = move_model(model, device)
        look(f"after the move to {device!r}")
    except NotImplementedError:
        print("move_model is still to do: open this file and fill it in.")
