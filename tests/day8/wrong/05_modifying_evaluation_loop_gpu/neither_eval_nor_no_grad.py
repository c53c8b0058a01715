# fails: evaluate::evaluates_in_evaluation_mode as batch-norm-changed


def evaluate(model, loader, loss_fn, device):
    model.to(device)
    total, correct, count = 0.0, 0, 0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        outputs = model(inputs)
        total += loss_fn(outputs, targets).item() * len(targets)
        correct += (outputs.argmax(dim=1) == targets).sum().item()
        count += len(targets)
    return (total / count, correct / count) if count else (0.0, 0.0)
