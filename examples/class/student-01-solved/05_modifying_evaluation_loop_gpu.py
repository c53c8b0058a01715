"""An evaluation loop that runs on the GPU.

Run me: dojo run exercises/day8/05_modifying_evaluation_loop_gpu.py
Check me: pytest exercises/day8/05_modifying_evaluation_loop_gpu.py
Read me: dojo lesson 05
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def evaluate(model, loader, loss_fn, device):
    """Mean loss per sample and accuracy of a classifier over `loader`, which yields (inputs, targets) on the CPU.

    The model's outputs are logits, one per class; the targets are class indices. The model may still be on the CPU.
    Use evaluation mode, and build no autograd graph in any forward pass. Weights, gradients, batch-norm statistics,
    requires_grad and the settings of torch must be the same afterwards.
    Returns (loss, accuracy) as two Python floats, accuracy in [0, 1]; the last batch may be smaller, and loss_fn gives
    the mean over its batch. An empty loader returns (0.0, 0.0).

    About 12 lines. Read: https://pytorch.org/docs/stable/generated/torch.no_grad.html
    """
    model.to(device)
    model.eval()
    total, correct, count = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            total += loss_fn(outputs, targets).item() * len(targets)
            correct += (outputs.argmax(dim=1) == targets).sum().item()
            count += len(targets)
    if count == 0:
        return 0.0, 0.0
    return total / count, correct / count


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
    heart, ring = (0, 102, 255, 255, 126, 60, 24, 0), (60, 126, 231, 195, 195, 231, 126, 60)
    cross = ring[4:] + ring[:4]
    shapes = torch.tensor(
        [[[int(bit) for bit in f"{row:08b}"] for row in shape] for shape in (heart, ring, cross)]
    )
    colours = torch.tensor([[0.9, 0.2, 0.4], [0.2, 0.7, 0.9], [0.9, 0.8, 0.2]])
    clean = colours[:, :, None, None] * shapes[:, None]
    # A classifier that compares with the three shapes; some of its layers behave differently in training.
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 3))
    model[3].weight.data = clean.flatten(1) - clean.flatten(1).mean(0)
    classes = torch.randint(0, 3, (256,))
    first, titles = [], []
    for noise in (0.0, 0.5, 1.0, 2.0):
        sprites = clean[classes] + noise * torch.randn(256, 3, 8, 8)
        first.append(sprites[0])
        batches = DataLoader(TensorDataset(sprites, classes), batch_size=100)
        try:
            once, again = (
                evaluate(model, batches, nn.CrossEntropyLoss(), device) for _ in range(2)
            )
            same = (
                "twice the same"
                if once == again
                else "but not the same twice: evaluating has changed something"
            )
            print(
                f"noise {noise:.1f} on {device}: loss {once[0]:.3f}, accuracy {once[1]:.0%}, {same}"
            )
            titles.append(f"{once[1]:.0%} right")
        except NotImplementedError:
            titles.append(f"noise {noise:.1f}")
    show(torch.stack(first), titles)
    if titles[0].startswith("noise"):
        print(
            "How many of these does the model recognise? evaluate is still to do: open this file and fill it in."
        )
