"""An evaluation loop that runs on the GPU.

Run me: python exercises/day8/05_modifying_evaluation_loop_gpu.py
Check me: pytest exercises/day8/05_modifying_evaluation_loop_gpu.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def evaluate(model, loader, loss_fn, device):
    """Mean loss per sample and accuracy of a classifier over `loader`, which yields (inputs, targets) on the CPU.

    The model's outputs are logits, one per class; the targets are class indices. The model may still be on the CPU.
    Evaluation mode, and no autograd graph in any forward pass. Weights, gradients, batch-norm statistics and
    requires_grad are afterwards what they were before.
    Returns (loss, accuracy) as two Python floats, accuracy in [0, 1]; the last batch may be smaller, and loss_fn
    averages over its batch. An empty loader returns (0.0, 0.0).

    About 12 lines. Read: https://pytorch.org/docs/stable/generated/torch.no_grad.html
    """
    # BEGIN SOLUTION
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
    # END SOLUTION


def draw(sprite):
    """Two rows of pixels per line of the terminal: the upper one in front, the lower one behind."""
    rows = (255 * sprite).int().permute(1, 2, 0).tolist()
    for upper, lower in zip(rows[0::2], rows[1::2], strict=True):
        cells = [(*above, *below) for above, below in zip(upper, lower, strict=True)]
        print("   ", "".join("\033[38;2;{};{};{};48;2;{};{};{}m▀".format(*cell) for cell in cells) + "\033[0m")


if __name__ == "__main__":
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    classes = torch.randint(0, 3, (100,))
    sprites = torch.rand(100, 3, 8, 8) * 0.5
    sprites[torch.arange(100), classes] += 0.5
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)
    )
    batches = DataLoader(TensorDataset(sprites, classes), batch_size=32)
    print("Which channel is the brightest? Three of the sprites:")
    for sprite in sprites[:3]:
        draw(sprite)
        print()
    try:
        for attempt in ("first", "second"):
            loss, accuracy = evaluate(model, batches, nn.CrossEntropyLoss(), device)
            print(f"{attempt} time on {device}: loss {loss:.4f}, accuracy {accuracy:.0%}")
        print("The model is untrained, so expect little. Evaluating changes nothing: both lines are the same.")
    except NotImplementedError:
        print("evaluate is still to do: open this file and fill it in.")
