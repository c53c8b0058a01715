import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
labels = torch.randint(0, 2, (256,))
sprites = torch.rand(256, 1, 8, 8)
sprites[:, :, :4] += 2 * labels.view(-1, 1, 1, 1) - 1  # dark or bright
loader = DataLoader(TensorDataset(sprites, labels), 32, pin_memory=True)

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
layers = [nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2)]
model = nn.Sequential(*layers).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for sprite, label in loader:
    sprite = sprite.to(device, non_blocking=True)
    label = label.to(device, non_blocking=True)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(sprite), label)
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.3f}")
guesses = model(sprites.to(device)).argmax(1).cpu()
print(f"{(guesses == labels).sum()} of {len(labels)} right")
