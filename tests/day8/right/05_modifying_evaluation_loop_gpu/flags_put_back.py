def evaluate(model, loader, loss_fn, device):
    """Without no_grad: the flags are switched off, and back to what each of them was."""
    model.to(device)
    for module in model.modules():
        module.training = False
    flags = [p.requires_grad for p in model.parameters()]
    for p in model.parameters():
        p.requires_grad = False
    loss = right = seen = 0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        outputs = model(inputs)
        loss += loss_fn(outputs, targets).item() * len(inputs)
        right += sum(int(a == b) for a, b in zip(outputs.argmax(1).tolist(), targets.tolist()))
        seen += len(inputs)
    for p, flag in zip(model.parameters(), flags):
        p.requires_grad = flag
    return (loss / seen, right / seen) if seen else (0.0, 0.0)
