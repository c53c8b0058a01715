"""Which device does this machine have?

Run me: python exercises/day8/01_checking_device.py
Check me: pytest exercises/day8/01_checking_device.py
"""

import torch


def select_device(prefer=None):
    """The best device of this machine: CUDA, else MPS, else the CPU.

    With `prefer` (a string such as "cuda:1", or a torch.device): that device, its index kept, if this machine has
    it; otherwise the best one, without an error. A name that is no device at all raises torch's own error.
    Returns a torch.device.

    About 10 lines. Read: https://pytorch.org/docs/stable/tensor_attributes.html
    """
    raise NotImplementedError


if __name__ == "__main__":
    try:
        print("This machine's best device:", select_device())
        for wish in ("cpu", "cuda", "cuda:1", "mps"):
            print(f"  prefer={wish!r:9} gives {select_device(wish)}")
    except NotImplementedError:
        print("select_device is still to do: open this file and fill it in.")
