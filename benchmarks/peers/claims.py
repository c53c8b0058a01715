"""What may a grader without a device claim about the assignment? The claims every peer tests, as plain assertions.

They are what a careful instructor writes for a machine without a GPU: values, types, modes and times on CPU tensors,
and for `select_device` other machines, by patching what torch says it has. Each peer gets this very file, and tests
one claim after another; a claim's parameter is the student's function. Nothing here knows of gpudojo.
"""

import contextlib
import copy
import inspect
import math
import time
import warnings
from unittest import mock

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FASTER = 3.0  # times as fast as the loop, at least
warnings.simplefilter("ignore")  # nbgrader gives no points where anything is written to the error stream


@contextlib.contextmanager
def machine(cuda, mps):
    """A machine with so many CUDA devices, and an Apple GPU or none; torch was built with CUDA in any case."""
    best = torch.device("cuda") if cuda else torch.device("mps") if mps else None
    with contextlib.ExitStack() as stack:
        for where, name, answer in (
            (torch.cuda, "is_available", cuda > 0),
            (torch.cuda, "device_count", cuda),
            (torch.backends.cuda, "is_built", True),
            (torch.backends.mps, "is_available", mps),
            (torch.backends.mps, "is_built", mps),
            (torch.accelerator, "is_available", best is not None),
            (torch.accelerator, "device_count", cuda or int(mps)),
            (torch.accelerator, "current_accelerator", best),
        ):
            stack.enter_context(mock.patch.object(where, name, lambda *_, answer=answer, **__: answer))
        yield


def chosen(select_device, prefer=None):
    found = str(select_device(prefer) if prefer is not None else select_device())
    return "cuda" if found == "cuda:0" else "mps" if found == "mps:0" else found


def takes_the_gpu(select_device):
    for cuda, mps in ((1, False), (2, False), (1, True)):
        with machine(cuda, mps):
            assert chosen(select_device) == "cuda"


def takes_apples_gpu(select_device):
    with machine(0, True):
        assert chosen(select_device) == "mps"


def falls_back_to_the_cpu(select_device):
    with machine(0, False):
        assert chosen(select_device) == "cpu"


def returns_a_device(select_device):
    before = torch.get_default_device()
    for cuda, mps in ((1, False), (0, True), (0, False)):
        with machine(cuda, mps):
            assert isinstance(select_device(), torch.device)
            assert isinstance(select_device("cpu"), torch.device)
    assert torch.get_default_device() == before


def keeps_what_is_preferred(select_device):
    with machine(2, False):
        assert chosen(select_device, "cuda:1") == "cuda:1"
        assert chosen(select_device, torch.device("cpu")) == "cpu"
    with machine(0, True):
        assert chosen(select_device, "mps") == "mps"


def replaces_what_is_absent(select_device):
    with machine(1, False):
        assert chosen(select_device, "cuda:1") == "cuda"
        assert chosen(select_device, "mps") == "cuda"
    with machine(0, False):
        assert chosen(select_device, "cuda") == "cpu"
        assert chosen(select_device, "mps") == "cpu"


def lets_torch_refuse_nonsense(select_device):
    with machine(0, False):
        try:
            found = select_device("toaster")
        except RuntimeError:
            return
    raise AssertionError(f"it gave {found}, and raised no RuntimeError")


class Epoch:
    """One epoch by the student's function, and the same one written down plainly."""

    def __init__(self, train_epoch, seed):
        torch.manual_seed(seed)
        sprites, classes = torch.rand(9, 3, 4, 4), torch.randint(0, 3, (9,))
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
        self.model[1].weight.grad = torch.ones_like(self.model[1].weight)  # left by whoever trained before
        self.right = copy.deepcopy(self.model)
        loader = DataLoader(TensorDataset(sprites, classes), batch_size=4)
        loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.modes = []
        watch = self.model.register_forward_hook(lambda module, *_: self.modes.append(module.training))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)
        self.seed = torch.initial_seed()
        self.result = train_epoch(self.model, loader, loss_fn, optimizer, "cpu")
        watch.remove()
        optimizer, total = torch.optim.SGD(self.right.parameters(), lr=0.2), 0.0
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
    result = train_epoch(model, nothing, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), "cpu")
    assert isinstance(result, (int, float))
    assert result == 0.0


def seeds_nothing(train_epoch):
    before = Epoch(train_epoch, 6).seed
    assert torch.initial_seed() == before


def grayscale_loop(sprites):
    gray = torch.zeros(sprites.shape[0], *sprites.shape[2:])
    for n, y, x in every_pixel(sprites):
        red, green, blue = sprites[n, :, y, x]
        gray[n, y, x] = 0.299 * red + 0.587 * green + 0.114 * blue
    return gray


def recolor_loop(indices, palette):
    count, height, width = indices.shape
    sprites = torch.zeros(count, 3, height, width)
    for n, y, x in every_pixel(sprites):
        sprites[n, :, y, x] = palette[indices[n, y, x]]
    return sprites


def nearest_color_loop(sprites, palette):
    indices = torch.zeros(sprites.shape[0], *sprites.shape[2:], dtype=torch.int64)
    for n, y, x in every_pixel(sprites):
        indices[n, y, x] = ((sprites[n, :, y, x] - palette) ** 2).sum(1).argmin()
    return indices


def every_pixel(sprites):
    count, _, height, width = sprites.shape
    return [(n, y, x) for n in range(count) for y in range(height) for x in range(width)]


def pictures(name, count, height, width, colours, seed=5):
    """Arguments for one of the three functions."""
    dice = torch.Generator().manual_seed(seed)
    sprites, palette = torch.rand(count, 3, height, width, generator=dice), torch.rand(colours, 3, generator=dice)
    if name == "recolor":
        return torch.randint(0, colours, (count, height, width), generator=dice), palette
    return (sprites,) if name == "grayscale" else (sprites, palette)


LOOPS = {"grayscale": grayscale_loop, "recolor": recolor_loop, "nearest_color": nearest_color_loop}


def gives_the_values(name, function, *arguments):
    found, right = function(*arguments), LOOPS[name](*arguments)
    assert isinstance(found, torch.Tensor)
    assert found.shape == right.shape
    if right.dtype == torch.int64:
        assert found.dtype in (torch.int64, torch.int32)
        assert torch.equal(found.long(), right)
    else:
        assert found.is_floating_point()
        assert torch.allclose(found.float(), right, rtol=0, atol=1e-4)


def seconds(function, arguments):
    """The fastest of three calls."""
    found = []
    for _ in range(3):
        began = time.perf_counter()
        function(*arguments)
        found.append(time.perf_counter() - began)
    return min(found)


def right_values(name, function):
    gives_the_values(name, function, *pictures(name, 3, 5, 7, 6))
    gives_the_values(name, function, *pictures(name, 2, 8, 4, 3))


def right_on_the_smallest(name, function):
    for shape in ((1, 4, 4, 3), (2, 1, 1, 3), (2, 1, 5, 3), (2, 3, 3, 1)):
        gives_the_values(name, function, *pictures(name, *shape))


def leaves_its_inputs_alone(name, function):
    arguments = pictures(name, 2, 4, 4, 3)
    before = [argument.clone() for argument in arguments]
    function(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))


def faster_than_the_loop(name, function):
    arguments = pictures(name, 2, 12, 12, 8)
    function(*arguments)  # the first call of an operation pays for it
    fast, slow = seconds(function, arguments), seconds(LOOPS[name], arguments)
    assert slow >= FASTER * fast, f"only {slow / fast:.1f} times as fast as the loop"


def lowest_index_on_a_tie(nearest_color):
    sprites = torch.full((1, 3, 2, 2), 0.5)
    palette = torch.tensor([[0.0, 0.0, 0.0], [0.25, 0.5, 0.5], [0.75, 0.5, 0.5], [0.5, 0.25, 0.5]])
    assert nearest_color(sprites, palette).tolist() == [[[1, 1], [1, 1]]]


def _about(claim, name):
    """The claim about one of the three functions, with that function as its parameter."""

    def about(function):
        claim(name, function)

    about.__name__ = f"{name}_{claim.__name__}"
    about.__signature__ = inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)])
    return about


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
        *(
            _about(claim, name)
            for name in LOOPS
            for claim in (right_values, right_on_the_smallest, leaves_its_inputs_alone, faster_than_the_loop)
        ),
        lowest_index_on_a_tie,
    )
}


def about(claim):
    """The name of the student's function that a claim is about."""
    return next(iter(inspect.signature(claim).parameters))
