# fails: evaluate::returns_the_accuracy as largest-over-samples
import torch


def evaluate(model, loader, loss_fn, device):
    @torch.no_grad()
    def results():
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            predicted = outputs.argmax(dim=0)
            hits = sum(int(p == t) for p, t in zip(predicted.tolist(), targets.tolist()))
            yield loss_fn(outputs, targets).item() * len(targets), hits, len(targets)

    model.to(device)
    model.eval()
    rows = list(results())
    count = sum(row[2] for row in rows)
    if count == 0:
        return 0.0, 0.0
    return sum(row[0] for row in rows) / count, sum(row[1] for row in rows) / count
