"""Which device does this machine have?

Run me: dojo run exercises/day8/01_checking_device.py
Check me: pytest exercises/day8/01_checking_device.py
Read me: dojo lesson 01
"""

import torch


def select_device(prefer=None):
    """The best device of this machine: CUDA, else MPS, else the CPU.

    With `prefer` (a string such as "cuda:1", or a torch.device): that device, with its index, if this machine has it;
    otherwise the best one, without an error. A name that is no device at all raises torch's own error.
    Returns a torch.device. Changes no setting of torch.

    About 10 lines. Read: https://pytorch.org/docs/stable/tensor_attributes.html
    """
    if torch.cuda.is_available():
        best = torch.device("cuda")
    elif torch.backends.mps.is_available():
        best = torch.device("mps")
    else:
        best = torch.device("cpu")
    if prefer is None:
        return best
    wanted = torch.device(prefer)
    if wanted.type == "cuda":
        there = torch.cuda.is_available() and (wanted.index or 0) < torch.cuda.device_count()
    elif wanted.type == "mps":
        there = torch.backends.mps.is_available()
    else:
        there = wanted.type == "cpu"
    return wanted if there else best


if __name__ == "__main__":
    from gpudojo.sprite_display import show

    chip = [
        "..#..#..",
        ".######.",
        "##oooo##",
        ".#oooo#.",
        ".#oooo#.",
        "##oooo##",
        ".######.",
        "..#..#..",
    ]
    wishes, answers = ("cpu", "cuda", "cuda:1", "mps"), {}
    try:
        print("This machine's best device:", select_device())
        answers = {wish: str(select_device(wish)) for wish in wishes}
    except NotImplementedError:
        print("select_device is still to do: open this file and fill it in.")
    chips = []
    for wish in wishes:
        heart = (
            (0.2, 0.9, 0.3) if answers.get(wish) == wish else (0.3, 0.3, 0.3)
        )  # lit if this machine has it
        colours = {".": (0.0, 0.0, 0.0), "#": (0.6, 0.6, 0.6), "o": heart}
        chips.append(
            [[[colours[pixel][channel] for pixel in row] for row in chip] for channel in range(3)]
        )
    show(chips, [f"{wish} -> {answers.get(wish, '?')}" for wish in wishes])
