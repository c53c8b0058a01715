"""What may a grader without a device claim about the assignment?

The claims every peer tests, as plain assertions.

They are what a careful instructor writes for a machine without a GPU: values, types, modes and
times on CPU tensors, and for `select_device` other machines, by patching what torch says it has.
Each peer gets this very file, and tests one claim after another; a claim's parameter is the
student's function. Nothing here knows of gpudojo.
"""

import contextlib
import copy
import inspect
import math
import warnings
from unittest import mock

import torch
from claims_pictures import PICTURE_CLAIMS
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter(
    "ignore"
)  # nbgrader gives no points where anything is written to the error stream


@contextlib.contextmanager
def machine_with(cuda, mps):
    """A machine with so many CUDA devices, and an Apple GPU or none.

    Torch was built with CUDA in any case.
    """
    best = None
    if cuda:
        best = torch.device("cuda")
    elif mps:
        best = torch.device("mps")
    built = best or torch.device("cuda")
    with contextlib.ExitStack() as stack:
        for where, name, answer in (
            (torch.cuda, "is_available", lambda: cuda > 0),
            (torch.cuda, "device_count", lambda: cuda),
            (torch.backends.cuda, "is_built", lambda: True),
            (torch.backends.mps, "is_available", lambda: mps),
            (torch.backends.mps, "is_built", lambda: mps),
            (torch.accelerator, "is_available", lambda: best is not None),
            (torch.accelerator, "device_count", lambda: cuda or int(mps)),
            (
                torch.accelerator,
                "current_accelerator",
                lambda check_available=False: best if check_available else built,
            ),
            (torch.version, "cuda", "12.8"),
        ):
            stack.enter_context(mock.patch.object(where, name, answer))
        yield


def name_of_choice(select_device, prefer=None):
    """The name of the device that a student's function chooses; a GPU's without the number 0."""
    if prefer is None:
        device = select_device()
    else:
        device = select_device(prefer)
    name = str(device)
    if name in ("cuda:0", "mps:0"):
        return name.removesuffix(":0")
    return name


def takes_the_gpu(select_device):
    for cuda, mps in ((1, False), (2, False), (1, True)):
        with machine_with(cuda, mps):
            assert name_of_choice(select_device) == "cuda"


def takes_apples_gpu(select_device):
    with machine_with(0, True):
        assert name_of_choice(select_device) == "mps"


def falls_back_to_the_cpu(select_device):
    with machine_with(0, False):
        assert name_of_choice(select_device) == "cpu"


def returns_a_device(select_device):
    try:
        for cuda, mps in ((1, False), (0, True), (0, False)):
            with machine_with(cuda, mps):
                assert isinstance(select_device(), torch.device)
                assert torch.get_default_device() == torch.device("cpu")
                assert isinstance(select_device("cpu"), torch.device)
    finally:
        torch.set_default_device(None)  # whatever the student has set it to


def keeps_what_is_preferred(select_device):
    with machine_with(2, False):
        assert name_of_choice(select_device, "cuda:1") == "cuda:1"
        assert name_of_choice(select_device, torch.device("cpu")) == "cpu"
    with machine_with(0, True):
        assert name_of_choice(select_device, "mps") == "mps"


def replaces_what_is_absent(select_device):
    with machine_with(1, False):
        assert name_of_choice(select_device, "cuda:1") == "cuda"
        assert name_of_choice(select_device, "mps") == "cuda"
    with machine_with(0, False):
        assert name_of_choice(select_device, "cuda") == "cpu"
        assert name_of_choice(select_device, "mps") == "cpu"


def lets_torch_refuse_nonsense(select_device):
    with machine_with(0, False):
        try:
            found = select_device("toaster")
        except RuntimeError:
            return
    raise AssertionError(f"it gave {found}, and raised no RuntimeError")


class Epoch:
    """One epoch by the student's function, and the same one written down plainly."""

    def __init__(self, train_epoch, seed):
        torch.manual_seed(seed)
        sprites = torch.rand(9, 3, 4, 4)
        classes = torch.randint(0, 3, (9,))
        self.model = nn.Sequential(
            nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 3)
        ).eval()
        self.model[1].weight.grad = torch.ones_like(
            self.model[1].weight
        )  # left by whoever trained before
        self.right = copy.deepcopy(self.model)
        loader = DataLoader(TensorDataset(sprites, classes), batch_size=4)
        loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.modes = []
        # Of a layer inside: a hook of the model itself would miss `model.forward(…)`.
        watch = self.model[1].register_forward_hook(
            lambda module, *_: self.modes.append(module.training)
        )
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)
        self.seed = torch.initial_seed()
        self.result = train_epoch(self.model, loader, loss_fn, optimizer, "cpu")
        watch.remove()
        optimizer = torch.optim.SGD(self.right.parameters(), lr=0.2)
        total = 0.0
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = loss_fn(self.right(inputs), targets)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(targets)
        self.mean = total / len(sprites)


def learns_as_it_should(train_epoch):
    epoch = Epoch(train_epoch, 1)
    for found, right in zip(epoch.model.parameters(), epoch.right.parameters(), strict=True):
        assert torch.allclose(found, right, rtol=1e-3, atol=1e-5)


def trains_in_training_mode(train_epoch):
    modes = Epoch(train_epoch, 2).modes
    assert modes
    assert all(modes)


def returns_the_mean_loss_per_sample(train_epoch):
    for seed in (3, 4):  # twice: what one call leaves behind shows in the next
        epoch = Epoch(train_epoch, seed)
        assert isinstance(epoch.result, float)
        assert math.isclose(epoch.result, epoch.mean, rel_tol=1e-4)


def copes_with_nothing(train_epoch):
    model = nn.Linear(2, 2)
    nothing = DataLoader(TensorDataset(torch.ones(0, 2), torch.ones(0, dtype=torch.int64)))
    result = train_epoch(
        model, nothing, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), "cpu"
    )
    assert isinstance(result, (int, float))
    assert result == 0.0


def seeds_nothing(train_epoch):
    before = Epoch(train_epoch, 6).seed
    assert torch.initial_seed() == before


CLAIMS = {
    claim.__name__: claim
    for claim in (
        takes_the_gpu,
        takes_apples_gpu,
        falls_back_to_the_cpu,
        returns_a_device,
        keeps_what_is_preferred,
        replaces_what_is_absent,
        lets_torch_refuse_nonsense,
        learns_as_it_should,
        trains_in_training_mode,
        returns_the_mean_loss_per_sample,
        copes_with_nothing,
        seeds_nothing,
        *PICTURE_CLAIMS,
    )
}


def about(claim):
    """The name of the student's function that a claim is about."""
    return next(iter(inspect.signature(claim).parameters))
