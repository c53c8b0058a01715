"""What happens while a model predicts, and what does a loader that was made yield?"""

from __future__ import annotations

from typing import Any

from graders.day8.minimizing_transfers.functions import make_loader, predict
from graders.probes.calling import Call, array, several
from graders.probes.late import nn, torch
from graders.probes.settings import settled
from graders.probes.sprites import sprites
from graders.probes.watched_batches import WatchedBatches


def _watched_model(seed: int, log: list[dict[str, Any]]) -> Any:
    """A model whose outputs are pictures; `model.forward(...)` and copies of the model write into its log as well."""

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Dropout(0.5))

        def forward(self, x: Any) -> Any:
            out = self.body(x)
            log.append({"training": self.training, "graph": out.requires_grad, "device": out.device.type})
            return out

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return Watched()


def _batches(call: Call, count: int) -> WatchedBatches:
    """The targets are larger than they need be, so that a transfer of theirs is known by its size."""
    pictures = sprites(count, call.seed + 1)[0]
    dataset = torch.utils.data.TensorDataset(pictures, torch.zeros(count, 11, dtype=torch.int64))
    return WatchedBatches(call, torch.utils.data.DataLoader(dataset, batch_size=4))


def _predictions(call: Call, device: Any, count: int, moved: bool = False) -> dict[str, Any]:
    log: list[dict[str, Any]] = []
    model = _watched_model(call.seed, log)
    if moved:
        model.to(device)
    batches = _batches(call, count)
    with torch.enable_grad(), batches.followed():  # whatever the student's function leaves behind ends here
        value = call(model, batches, device)
        grad_mode = torch.is_grad_enabled()
    ledger = call.ledger
    back = ledger.transfers_to_host()
    reads = ledger.syncs(besides=("copy", "tolist"))
    moved_targets = [t for t in ledger.transfers_to_device() if t.bytes in batches.target_sizes]
    building = ledger.forwards_building_graph()
    is_tensor = isinstance(value, torch.Tensor)
    return {
        "class": type(value).__name__,
        "device": value.device.type if is_tensor else None,
        "requires_grad": value.requires_grad if is_tensor else None,
        "value": array(value) if is_tensor else None,
        "forwards": log,
        "forward_line": next((call.line_of(f) for f in ledger.forwards()), None),
        "graph_line": call.line_of(building[0]) if building else None,
        "trainable": all(p.requires_grad for p in model.parameters()),
        "grad_mode": grad_mode,
        "batches": batches.handed_out,
        "copies_back": len(back),
        "copy_line": call.line_of(back[0]) if back else None,
        "reads": len(reads),
        "read_line": call.line_of(reads[0]) if reads else None,
        "targets_moved": len(moved_targets),
        "targets_line": call.line_of(moved_targets[0]) if moved_targets else None,
    }


@predict.probe
def loops(call: Call) -> dict[str, Any]:
    """With a smaller last batch, with one of a single sprite and the device as a string, and with one batch in all."""
    device = call.device
    return several(
        {
            "model_on_the_cpu": lambda: _predictions(call, device, count=10),
            "model_already_there": lambda: _predictions(call, str(device), count=5, moved=True),
            "told_to_use_the_cpu": lambda: _predictions(call, "cpu", count=3),
        }
    )


def _epoch(loader: Any) -> dict[str, Any]:
    """What one pass over a loader yields: the samples in order, the sizes of batches, and whether each was pinned."""
    found: dict[str, Any] = {
        "class": type(loader).__name__,
        "is_loader": isinstance(loader, torch.utils.data.DataLoader),
    }
    if not found["is_loader"]:
        return found
    order: list[int] = []
    sizes: list[int] = []
    pinned: list[bool] = []
    for pictures, numbers in loader:
        sizes.append(len(pictures))
        order += map(int, numbers.tolist())
        pinned.append(pictures.is_pinned() and numbers.is_pinned())
    return {**found, "order": order, "sizes": sizes, "pinned": pinned, "workers": loader.num_workers}


def _numbered(count: int) -> Any:
    return torch.utils.data.TensorDataset(torch.zeros(count, 3, 1, 1), torch.arange(count))


def _devices(call: Call) -> dict[str, Any]:
    """One epoch for each way of naming a device; where there is no CUDA, no host memory can be pinned for it."""
    spelled: dict[str, Any] = {"'cpu'": "cpu", "device('cpu')": torch.device("cpu")}
    if call.device.type == "cuda":
        spelled |= {"'cuda'": "cuda", "'cuda:0'": "cuda:0", "'mps'": "mps"}
        spelled |= {"device('cuda')": torch.device("cuda"), "device('cuda:0')": torch.device("cuda:0")}
    data = _numbered(3)
    return {name: _epoch(call(data, 2, device)) for name, device in spelled.items()}


def _samples(call: Call) -> dict[str, Any]:
    """In order, shuffled (12! orders: the first is not met by chance), and all in one batch."""
    data, device = _numbered(12), call.device
    shuffled, settings = settled(call, data, 5, device, shuffle=True)
    return {
        "in order": _epoch(call(data, 4, device)),
        "shuffle=False": _epoch(call(data, 5, device, shuffle=False, num_workers=0)),
        "shuffle=True": _epoch(shuffled) | {"settings": settings},
        "a batch larger than all": _epoch(call(data, 100, device)),
    }


@make_loader.probe
def epochs(call: Call) -> dict[str, Any]:
    """Every order, every device, and a loader told to use workers, which is not started.

    Orders first: who seeds the dice is noticed by the first call only.
    """
    return several(
        {
            "samples": lambda: _samples(call),
            "devices": lambda: _devices(call),
            "workers": lambda: getattr(call(_numbered(3), 2, call.device, num_workers=2), "num_workers", None),
        }
    )
