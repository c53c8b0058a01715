"""What happens when gradients are accumulated, and when activations are made again in backward?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graders.day8.managing_memory.functions import accumulate, checkpointed
from graders.probes.calling import Call, StudentRaised, array, several
from graders.probes.curves import memory_curve
from graders.probes.late import nn, torch
from graders.probes.sprites import CLASSES, SIZE, sprites
from graders.probes.watched_batches import WatchedBatches


def _classifier(seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, CLASSES))


def _accumulated(
    call: Call, device: Any, data: Any, steps: int, dirty: bool = False, mode: bool = True, moved: bool = False
) -> dict[str, Any]:
    from graders.bench.ledger import Backward, OptimizerStep, training

    model = _classifier(call.seed)
    if moved:
        model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if dirty:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
    model.train(mode)
    model[0].train(not mode)  # one part apart, as batch norm may be for fine-tuning
    modes: list[bool] = []
    model[0].register_forward_pre_hook(lambda module, inputs: modes.append(not module.training))
    model[1].register_forward_pre_hook(lambda module, inputs: modes.append(module.training))
    scales: list[Any] = []
    clean: list[bool] = []
    bias = model[1].bias  # as clean as the weights, and smaller

    def backward_begins(gradient: Any) -> None:
        scales.append(gradient.detach())  # 1 / steps where the loss was divided
        clean.append(bias.grad is None or not bias.grad.any())

    def loss_fn(outputs: Any, targets: Any) -> Any:
        loss = nn.functional.cross_entropy(outputs, targets)
        if loss.requires_grad:
            loss.register_hook(backward_begins)
        return loss

    batches = WatchedBatches(call, torch.utils.data.DataLoader(data, batch_size=2))
    with batches.followed():
        value = call(model, batches, loss_fn, optimizer, device, steps)
    records = tuple(r for r in call.ledger if isinstance(r, Backward | OptimizerStep))
    taken, passes = training.optimizer_steps(records), training.backward_passes(records)
    return {
        "class": type(value).__name__,
        "value": int(value) if isinstance(value, int) and not isinstance(value, bool) else None,
        "shown": f"{value!r:.60}",
        "devices": sorted({str(p.device) for p in model.parameters()}),
        "wanted_device": str(torch.empty(0, device=device).device),
        "after": [array(p) for p in model.parameters()],
        "taken": len(taken),
        "step_line": call.line_of(taken[0]) if taken else None,
        "backward_line": call.line_of(passes[0]) if passes else None,
        "per_step": list(training.backwards_per_step(records)),
        "unused": len(training.backwards_after_last_step(records)),
        "scales": [round(scale, 4) for scale in torch.stack(scales).tolist()] if scales else [],
        "clean": clean,
        "batches": batches.handed_out,
        "steps": steps,
        "training": mode,
        "modes": modes,
        "mode_after": model.training is model[1].training is not model[0].training and model.training,
    }


@accumulate.probe
def accumulations(call: Call) -> dict[str, Any]:
    """In batches of two. What the device matters for is tried there, the counting where it costs less."""
    device = call.device
    pictures, classes = sprites(9, call.seed + 1)

    def first(count: int) -> Any:
        return torch.utils.data.TensorDataset(pictures[:count], classes[:count])

    return several(
        {
            "model_on_the_cpu": lambda: {"2 batches by 2": _accumulated(call, device, first(4), 2)},
            "model_already_there": lambda: {"1 batch by 2": _accumulated(call, str(device), first(1), 2, moved=True)},
            "dirty_gradients": lambda: {"1 batch by 1": _accumulated(call, device, first(2), 1, dirty=True)},
            "told_to_use_the_cpu": lambda: {
                "4 batches by 2": _accumulated(call, "cpu", first(8), 2),
                "2 batches by 1": _accumulated(call, "cpu", first(4), 1, mode=False),
                "5 batches by 3": _accumulated(call, "cpu", first(9), 3),
            },
        }
    )


COUNT, ROWS, WIDTH = 4, 256, 8


def _blocks(seed: int, device: Any) -> tuple[list[Any], Any]:
    """Blocks that count their runs, and need several times as much memory inside as between them."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(4, 1, WIDTH))
            self.runs = 0

        def forward(self, x: Any) -> Any:
            self.runs += 1
            return nn.functional.dropout((x * self.scale).tanh(), 0.3, self.training).mean(0)

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return [Block().to(device) for _ in range(COUNT)], torch.rand(ROWS, WIDTH).to(device)


def _through(
    call: Call,
    blocks: Any,
    x: Any,
    gradient: bool,
    backward: bool = True,
    go: Callable[..., Any] | None = None,
    drawn: bool = False,
) -> dict[str, Any]:
    """Forward and backward through some blocks; what came out, and how much memory it took, when `drawn` as a curve."""
    device, gpu = call.device, call.device.type == "cuda"
    x = x.detach().clone().requires_grad_(gradient)
    tensors = [p for block in blocks for p in block.parameters()]
    for block in blocks:
        block.runs = 0
    for tensor in tensors:
        tensor.grad = None
    with torch.random.fork_rng(devices=[device.index or 0] if gpu else []):
        torch.manual_seed(call.seed)
        base = 0
        if gpu:
            torch.cuda.manual_seed(call.seed)  # its own dice, which a student may want to put back for the second run
            torch.cuda.reset_peak_memory_stats(device)
            base = torch.cuda.memory_allocated(device)
        ledger = call.bench.ledger
        start = ledger.mark()
        out = (go or call)(blocks, x)
        forward = ledger.since(start, ledger.mark())
        found: dict[str, Any] = {"class": type(out).__name__, "out": None, "device": "", "error": ""}
        if isinstance(out, torch.Tensor):
            found["out"], found["device"] = array(out), str(out.device)
            start = ledger.mark()  # without what has just been read for the evidence
            try:
                if backward:
                    out.sum().backward()
            except Exception as error:  # what a student's own code does in backward is the student's
                found["error"] = f"{type(error).__name__}: {str(error)[:200]}"
        found["peak"] = torch.cuda.max_memory_allocated(device) - base if gpu else None
        if gpu and drawn:
            found["curve"] = memory_curve(forward, ledger.since(start), base, found["peak"])
    gradients = [t.grad.flatten() for t in [*tensors, x] if t.grad is not None]
    found["missing"] = sum(t.grad is None for t in [*tensors, x][: None if gradient else -1])
    found["gradients"] = array(torch.cat(gradients)) if gradients else None
    found["switched"] = x.requires_grad is not gradient
    found["recomputed"] = sum(block.runs > 1 for block in blocks)
    return found


def _stored(call: Call, blocks: list[Any], x: Any) -> tuple[int | None, dict[str, Any] | None]:
    """The memory that the plain loop takes up to its last block, when every activation is there, and its curve."""
    if x.device.type != "cuda":
        return None, None
    with torch.random.fork_rng(devices=[x.device.index or 0]):
        if call.bench.kind == "cuda":  # whose libraries take memory of their own at the first call
            blocks[0](x).sum().backward()
        x = x.detach().clone().requires_grad_()  # as the student's is
        torch.cuda.reset_peak_memory_stats(x.device)
        base, ledger = torch.cuda.memory_allocated(x.device), call.bench.ledger
        start = ledger.mark()
        x = _plainly(blocks, x)
        stored, turn = torch.cuda.max_memory_allocated(x.device) - base, ledger.mark()
        x.sum().backward()
    peak = torch.cuda.max_memory_allocated(x.device) - base
    return stored, memory_curve(ledger.since(start, turn), ledger.since(turn), base, peak)


def _without_blocks(call: Call, x: Any) -> dict[str, Any]:
    try:
        out = call([], x)
    except StudentRaised as error:
        return {"raised": f"{error.evidence.type}: {error.evidence.message}", "line": error.evidence.line}
    return {"class": type(out).__name__, "out": array(out) if isinstance(out, torch.Tensor) else None}


@checkpointed.probe
def passes(call: Call) -> dict[str, Any]:
    """A list of blocks, a ModuleList of two with data that requires no gradient, one block, and none."""
    blocks, x = _blocks(call.seed, call.device)
    stored, curve = _stored(call, blocks, x)
    found = several(
        {
            "a list": lambda: _through(call, blocks, x, gradient=True, drawn=True),
            "two blocks": lambda: _through(call, nn.ModuleList(blocks[:2]), x, gradient=False),
            "one block": lambda: _through(call, blocks[:1], x, gradient=True, backward=False),
            "no blocks": lambda: _without_blocks(call, x),
        }
    )
    if call.bench.kind == "cuda":  # whose dice fall otherwise than those of the virtual device
        found["plain"] = {
            "a list": _through(call, blocks, x, gradient=True, go=_plainly),
            "two blocks": _through(call, blocks[:2], x, gradient=False, go=_plainly),
            "one block": _through(call, blocks[:1], x, gradient=True, backward=False, go=_plainly),
        }
    return {**found, "stored": stored, "stored_curve": curve, "blocks": COUNT}


def _plainly(blocks: list[Any], x: Any) -> Any:
    for block in blocks:
        x = block(x)
    return x
