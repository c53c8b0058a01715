"""`make_loader`: a DataLoader that pins memory exactly for CUDA."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from gpudojo.days.day8.minimizing_transfers.declaration import make_loader
from gpudojo.days.day8.sprites import seeded_generator
from gpudojo.grading.call import Call, call_and_restore_settings, torch, try_inputs
from gpudojo.grading.checks import check_scenarios, runs
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Failed, returned_other_type

SHUFFLED: Final = "batch_size=5, shuffle=True"  # the name of a scenario

# ---- scenarios ---------------------------------------------------------------------------------


class LoaderSetting(NamedTuple):
    """One scenario. Its name has the arguments that matter."""

    samples: int
    batch_size: int
    device: Any
    options: dict[str, Any]


class LoaderEpoch(Case, frozen=True):
    """A loader, and one pass over it; of one that shuffles, two."""

    kind: str
    is_loader: bool
    order: list[int]  # of the samples
    again: list[int]  # their order in the second pass
    sizes: list[int]  # of the batches
    pinned: list[bool]  # for each batch
    workers: int | None
    settings: list[str]  # of torch that were changed


def _call_make_loader(call: Call, setting: LoaderSetting) -> LoaderEpoch:
    """Call the student's function and fetch all batches.

    A loader that was to have workers is not started, but asked whether it would pin. Of anything
    other than a loader only the type is described. Settings of torch that were changed are
    restored. Raises StudentRaised, and what a loader of the student's own class raises.
    """
    pictures = torch.zeros(setting.samples, 3, 1, 1)
    sample_numbers = torch.arange(setting.samples)
    dataset = torch.utils.data.TensorDataset(pictures, sample_numbers)
    arguments = (dataset, setting.batch_size, setting.device)
    with seeded_generator(call.seed + (1 << 40)):  # no seed that a student sets
        loader, settings = call_and_restore_settings(call, *arguments, **setting.options)
    is_loader = isinstance(loader, torch.utils.data.DataLoader)
    order: list[int] = []
    again: list[int] = []
    sizes = []
    pinned = []
    if is_loader and setting.options.get("num_workers"):
        pinned.append(loader.pin_memory is True)
    elif is_loader:
        for batch, numbers in loader:
            order += map(int, numbers.tolist())
            sizes.append(len(batch))
            pinned.append(batch.is_pinned() and numbers.is_pinned())
        if setting.options.get("shuffle"):
            for _, numbers in loader:
                again += map(int, numbers.tolist())
    workers = None
    if is_loader:
        workers = loader.num_workers
    return LoaderEpoch(
        kind=type(loader).__name__,
        is_loader=is_loader,
        order=order,
        again=again,
        sizes=sizes,
        pinned=pinned,
        workers=workers,
        settings=settings,
    )


@make_loader.probe
def loaders(call: Call) -> Cases[LoaderEpoch]:
    """Loaders in all orders, for each way of naming a device, and with workers.

    The shuffled one comes first: only the first call shows whether a seed is set. Of 12! orders,
    the sorted one does not come up by chance. Without CUDA no host memory can be pinned. Raises
    StudentRaised for an error about a closed device or memory.
    """
    device = call.device
    unshuffled = {"shuffle": False, "num_workers": 0}
    settings = {
        SHUFFLED: LoaderSetting(12, 5, device, {"shuffle": True}),
        "batch_size=5, shuffle=False": LoaderSetting(12, 5, device, unshuffled),
        "batch_size=4": LoaderSetting(12, 4, device, {}),
        "batch_size=100": LoaderSetting(12, 100, device, {}),
    }
    devices: list[Any] = ["cpu", torch.device("cpu")]
    if device.type == "cuda":
        devices += ["cuda", "cuda:0", "cuda:1", "mps"]
        devices += [torch.device("cuda"), torch.device("cuda:0")]
    for each in devices:
        name = repr(each).replace("type=", "")
        settings[f"device={name}"] = LoaderSetting(3, 2, each, {})
    settings["num_workers=2"] = LoaderSetting(3, 2, device, {"num_workers": 2})
    return try_inputs(_call_make_loader, call, settings)


# ---- claims ------------------------------------------------------------------------------------

runs(make_loader)


@check_scenarios(make_loader, loaders, points=0.5)
def yields_every_sample_once(scenario: str, found: LoaderEpoch, right: LoaderEpoch) -> None:
    """It returns a DataLoader that yields every sample once, in batches of `batch_size`."""
    if not found.is_loader:
        raise returned_other_type(found.kind, "a DataLoader")
    if sorted(found.order) != sorted(right.order):
        happened = f"with {scenario} it yielded the samples {sorted(found.order)}"
        expected = f"each of {len(right.order)} samples once"
        raise Failed(happened, expected)
    if found.sizes != right.sizes:
        happened = f"with {scenario} the batches had sizes {found.sizes}"
        raise Failed(happened, str(right.sizes))


@check_scenarios(make_loader, loaders, points=0.25, needs=("runs", "yields_every_sample_once"))
def shuffles_when_asked(scenario: str, found: LoaderEpoch, right: LoaderEpoch) -> None:
    """The order is shuffled with `shuffle=True`, anew in each pass, and kept without it."""
    in_order = found.order == sorted(found.order)
    if in_order is (scenario == SHUFFLED):
        order = "in another order"
        if in_order:
            order = "in order"
        happened = f"with {scenario} the samples came {order}"
        raise Failed(happened, "shuffled with shuffle=True only")
    if scenario != SHUFFLED:
        return
    if found.again == found.order:
        happened = f"with {scenario} a second pass gave the samples in the order of the first"
        at = ("randperm(", "shuffle(", "sample(", "permutation(", "manual_seed(")
        raise Failed(happened, "another order in each pass, as DataLoader gives it", at=at)
    if found.settings:
        expected = "an order from torch's own random state, with no seed set"
        happened = f"it changed {found.settings[0]}"
        raise Failed(happened, expected)


@check_scenarios(make_loader, loaders, points=0.5, needs=("runs", "yields_every_sample_once"))
def pins_exactly_for_cuda(scenario: str, found: LoaderEpoch, right: LoaderEpoch) -> None:
    """Batches are pinned if the device is CUDA, however it is named, and not otherwise."""
    if not scenario.startswith(("device", "num_workers")):
        return
    if any(right.pinned) and not all(found.pinned):
        happened = f"with {scenario} the batches were not pinned"
        raise Failed(happened, "pinned batches", at=("skipped pin_memory=True", "pin_memory="))
    if any(found.pinned) and not any(right.pinned):
        happened = f"with {scenario} the batches were pinned"
        raise Failed(happened, "ordinary memory", misconception="pinned-for-cpu")


@check_scenarios(make_loader, loaders, points=0.25)
def passes_the_workers_on(scenario: str, found: LoaderEpoch, right: LoaderEpoch) -> None:
    """`num_workers` is passed on, and is 0 if not given."""
    if found.workers != right.workers:
        workers = "1 worker" if found.workers == 1 else f"{found.workers} workers"
        happened = f"with {scenario} the loader has {workers}"
        raise Failed(happened, str(right.workers))
