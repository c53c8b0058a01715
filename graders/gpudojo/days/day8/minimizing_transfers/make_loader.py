"""`make_loader`: a DataLoader that pins memory exactly for CUDA."""

from __future__ import annotations

from typing import Any

from gpudojo.days.day8.minimizing_transfers.declaration import make_loader
from gpudojo.days.day8.sprites import seeded_generator
from gpudojo.grading.call import Call, call_and_restore_settings, run_scenarios, torch
from gpudojo.grading.checks import runs, scenario_pairs
from gpudojo.model.evidence import Case
from gpudojo.model.exercise import Failed, Seen, returned_other_type

# ---- scenarios ---------------------------------------------------------------------------------


class LoaderEpoch(Case, frozen=True):
    """One pass over a loader.

    It has the samples in order, the batch sizes, and which batches were pinned.
    """

    kind: str
    is_loader: bool
    order: list[int]
    sizes: list[int]
    pinned: list[bool]
    workers: int
    settings: list[str]  # of torch that were changed


class Loaders(Case, frozen=True):
    """Loaders for every order and every device, and one with workers, which is not started."""

    samples: dict[str, LoaderEpoch]
    devices: dict[str, LoaderEpoch]
    workers: int | None
    pins_with_workers: bool


def _describe_epoch(loader: Any, settings: tuple[str, ...] = ()) -> LoaderEpoch:
    """Fetch all batches of a loader and describe them; of anything else, only its type."""
    is_loader = isinstance(loader, torch.utils.data.DataLoader)
    order: list[int] = []
    sizes = []
    pinned = []
    for pictures, numbers in loader if is_loader else ():
        order += map(int, numbers.tolist())
        sizes.append(len(pictures))
        pinned.append(pictures.is_pinned() and numbers.is_pinned())
    return LoaderEpoch(
        kind=type(loader).__name__,
        is_loader=is_loader,
        order=order,
        sizes=sizes,
        pinned=pinned,
        workers=loader.num_workers if is_loader else 0,
        settings=list(settings),
    )


def _numbered_dataset(count: int) -> Any:
    """Black pictures with the numbers 0 to `count - 1`."""
    pictures = torch.zeros(count, 3, 1, 1)
    return torch.utils.data.TensorDataset(pictures, torch.arange(count))


def _for_devices(call: Call) -> dict[str, LoaderEpoch]:
    """One epoch for each way of naming a device. Raises StudentRaised.

    Without CUDA no host memory can be pinned.
    """
    devices: list[Any] = ["cpu", torch.device("cpu")]
    if call.device.type == "cuda":
        devices += ["cuda", "cuda:0", "cuda:1", "mps"]
        devices += [torch.device("cuda"), torch.device("cuda:0")]
    dataset = _numbered_dataset(3)
    epochs = {}
    for device in devices:
        name = repr(device).replace("type=", "")
        epochs[name] = _describe_epoch(call(dataset, 2, device))
    return epochs


def _in_orders(call: Call) -> dict[str, LoaderEpoch]:
    """Epochs in order, shuffled, and in one batch. Raises StudentRaised.

    Of 12! orders, the sorted one does not come up by chance.
    """
    dataset = _numbered_dataset(12)
    device = call.device
    with seeded_generator(call.seed + (1 << 40)):  # no seed that a student sets
        shuffled, settings = call_and_restore_settings(call, dataset, 5, device, shuffle=True)
    return {
        "in order": _describe_epoch(call(dataset, 4, device)),
        "shuffle=False": _describe_epoch(call(dataset, 5, device, shuffle=False, num_workers=0)),
        "shuffle=True": _describe_epoch(shuffled, tuple(settings)),
        "a batch larger than all": _describe_epoch(call(dataset, 100, device)),
    }


@make_loader.probe
def loaders(call: Call) -> Loaders:
    """Loaders in all orders, for all devices, and with workers.

    Orders come first: only the first call shows whether a seed is set.
    """
    found = run_scenarios(
        {
            "samples": lambda: _in_orders(call),
            "devices": lambda: _for_devices(call),
            "workers": lambda: _make_with_workers(call),
        }
    )
    loader = found["workers"]
    workers = getattr(loader, "num_workers", None)
    return Loaders(
        samples=found["samples"],
        devices=found["devices"],
        workers=workers if isinstance(workers, int) else None,
        pins_with_workers=getattr(loader, "pin_memory", None) is True,
    )


def _make_with_workers(call: Call) -> Any:
    """What the student's function returns for two workers. Raises StudentRaised."""
    return call(_numbered_dataset(3), 2, call.device, num_workers=2)


# ---- claims ------------------------------------------------------------------------------------

runs(make_loader)


def _all_epochs(seen: Seen) -> dict[str, LoaderEpoch]:
    """Every epoch, by how the loader was asked for; those of the devices come first."""
    return seen[loaders].devices | seen[loaders].samples


def _arguments_in_words(name: str) -> str:
    """How a loader was asked for: with an argument, for a device in quotes, or in words."""
    if "'" in name:
        return f"with device={name}"
    if "=" in name:
        return f"with {name}"
    return f"({name})"


@make_loader.check(points=0.5)
def yields_every_sample_once(seen: Seen, wanted: Seen) -> None:
    """It returns a DataLoader that yields every sample once, in batches of `batch_size`."""
    for name, epoch, right in scenario_pairs(_all_epochs(seen), _all_epochs(wanted)):
        asked = _arguments_in_words(name)
        if not epoch.is_loader:
            raise returned_other_type(epoch.kind, "a DataLoader")
        count = len(right.order)
        missing = set(right.order) - set(epoch.order)
        if missing:
            happened = f"{asked} {len(missing)} of {count} samples were left out"
            raise Failed(happened, "every sample")
        if len(epoch.order) != count:
            yielded = f"of {count} samples {len(epoch.order)} were yielded"
            raise Failed(f"{asked} {yielded}, some of them twice", "each of them once")
        if epoch.sizes != right.sizes:
            happened = f"{asked} the batches had sizes {epoch.sizes}"
            raise Failed(happened, str(right.sizes))


@make_loader.check(points=0.25, needs=("runs", "yields_every_sample_once"))
def shuffles_when_asked(seen: Seen, wanted: Seen) -> None:
    """The order is shuffled with `shuffle=True`, and kept without it."""
    for name, epoch in _all_epochs(seen).items():
        in_order = epoch.order == sorted(epoch.order)
        if in_order is (name == "shuffle=True"):
            order = "in order" if in_order else "in another order"
            happened = f"{_arguments_in_words(name)} the samples came {order}"
            raise Failed(happened, "shuffled with shuffle=True only")
    for setting in seen[loaders].samples["shuffle=True"].settings:
        expected = "an order from torch's own random state, with no seed set"
        raise Failed(f"it changed {setting}", expected)


@make_loader.check(points=0.5, needs=("runs", "yields_every_sample_once"))
def pins_exactly_for_cuda(seen: Seen, wanted: Seen) -> None:
    """Batches are pinned if the device is CUDA, however it is named, and not otherwise."""
    found = seen[loaders]
    reference = wanted[loaders]
    for name, epoch, right in scenario_pairs(found.devices, reference.devices):
        if epoch.pinned == right.pinned:
            continue
        if any(right.pinned):
            raise Failed(f"for device={name} the batches were not pinned", "pinned batches")
        happened = f"for device={name} the batches were pinned"
        raise Failed(happened, "ordinary memory", misconception="pinned-for-cpu")
    if found.pins_with_workers is not reference.pins_with_workers:
        happened = "with num_workers=2 memory is not pinned as it is without workers"
        raise Failed(happened, "pinned for CUDA as well")


@make_loader.check(points=0.25)
def passes_the_workers_on(seen: Seen, wanted: Seen) -> None:
    """`num_workers` is passed on, and is 0 if not given."""
    workers = seen[loaders].workers
    if workers != wanted[loaders].workers:
        raise Failed(f"num_workers=2 made a loader with {workers}", "2")
    for name, epoch in _all_epochs(seen).items():
        if epoch.workers != 0:
            asked = _arguments_in_words(name)
            raise Failed(f"{asked} the loader has {epoch.workers} workers", "0")
