"""Training on the virtual device gives the losses of the CPU, bit for bit, with every optimizer."""

from __future__ import annotations

import copy
import gc
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from virtual_cuda import virtual_cuda

Make = Callable[[Any], torch.optim.Optimizer]


def a_cnn() -> nn.Module:
    """A model with state, randomness and several kinds of layers."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(36, 5),
    )


def batches(size: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(24, 1, 8, 8, generator=generator),
        torch.randint(0, 5, (24,), generator=generator),
    )
    return list(DataLoader(data, batch_size=size))


def losses(make: Make, device: str, before: bool = False, epochs: int = 2) -> list[float]:
    """A training loop as everybody writes it."""
    torch.manual_seed(0)
    model = a_cnn()
    optimizer = make(model.parameters()) if before else None
    model = model.to(device)
    optimizer = optimizer or make(model.parameters())
    found = []
    for _ in range(epochs):
        for x, y in batches():
            x = x.to(device)
            y = y.to(device)

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            found.append(optimizer.step(closure).item())
    return found


def optimizers() -> dict[str, Any]:
    """Every optimizer of this torch, by name."""
    found = {
        n: c
        for n, c in vars(torch.optim).items()
        if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)
    }
    del found["Optimizer"]
    del found["SparseAdam"]  # takes sparse gradients only: below
    found.pop("Muon", None)  # takes matrices only: below
    return found


def takes(cls: Any, option: str) -> bool:
    return option in inspect.signature(cls).parameters


OPTIMIZERS = optimizers()
VARIANTS = [
    (name, option, value)
    for name, cls in OPTIMIZERS.items()
    for option, value in (
        ("foreach", True),
        ("foreach", False),
        ("fused", True),
        ("maximize", True),
    )
    if takes(cls, option)
]


# Without a word about `foreach` CUDA runs the foreach algorithm and the CPU does not; these round
# differently then.
ROUNDED_DIFFERENTLY = {"ASGD", "NAdam", "RAdam"}


# torch 2.8's LBFGS, of itself and on any device
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_as_it_comes(name: str) -> None:
    options = {"foreach": True} if name in ROUNDED_DIFFERENTLY else {}
    expected = losses(lambda parameters: OPTIMIZERS[name](parameters, lr=0.01, **options), "cpu")
    assert len(set(expected)) == len(expected)
    with virtual_cuda():
        assert losses(lambda parameters: OPTIMIZERS[name](parameters, lr=0.01), "cuda") == expected


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_built_before_the_move(name: str) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = OPTIMIZERS[name](parameters, lr=0.01)
        return made

    with virtual_cuda():
        if (
            name == "Adagrad"
        ):  # makes its state when it is built, on the host: as on CUDA, the first step fails
            with pytest.raises(
                RuntimeError, match="same device, but found at least two devices, cuda:0 and cpu"
            ):
                losses(make, "cuda", before=True)
            return
        assert losses(make, "cuda", before=True) == losses(make, "cuda")


@pytest.mark.parametrize(("name", "option", "value"), VARIANTS, ids=lambda v: str(v))
def test_every_variant(name: str, option: str, value: bool) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = OPTIMIZERS[name](parameters, lr=0.01, **{option: value})
        return made

    if name == "Adagrad" and option == "fused" and torch.__version__ < "2.13":
        pytest.skip("this torch has no fused Adagrad for CUDA")
    default = (
        {"foreach": True} if option == "maximize" and name in ROUNDED_DIFFERENTLY else {}
    )  # CUDA's default
    expected = losses(
        lambda p: OPTIMIZERS[name](p, lr=0.01, **{option: value}, **default), "cpu", epochs=1
    )
    with virtual_cuda() as gpu:
        assert losses(make, "cuda", epochs=1) == expected
    if option == "fused":
        assert any("_fused_" in operation.name for operation in gpu.ledger.operations())
    if option == "foreach" and value:
        assert any("_foreach_" in operation.name for operation in gpu.ledger.operations())


@pytest.mark.parametrize("name", [n for n, cls in OPTIMIZERS.items() if takes(cls, "capturable")])
def test_capturable_keeps_its_steps_on_the_device(name: str) -> None:
    """The CPU refuses `capturable`, so the comparison is with the algorithm that reads its step on
    the host.
    """
    cls = OPTIMIZERS[name]
    expected = losses(lambda parameters: cls(parameters, lr=0.01, foreach=False), "cpu", epochs=1)
    with virtual_cuda():
        made: list[Any] = []

        def make(parameters: Any) -> torch.optim.Optimizer:
            made.append(cls(parameters, lr=0.01, capturable=True))
            optimizer: torch.optim.Optimizer = made[0]
            return optimizer

        assert losses(make, "cuda", epochs=1) == pytest.approx(expected, rel=1e-4)
        assert all(state["step"].is_cuda for state in made[0].state.values())


@pytest.mark.parametrize(
    "cls", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop]
)
@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_a_learning_rate_that_is_a_tensor(cls: Any, place: str) -> None:
    def make(device: str) -> Make:
        return lambda parameters: cls(
            parameters, lr=torch.tensor(0.01, device=device), foreach=False
        )

    expected = losses(make("cpu"), "cpu", epochs=1)
    with virtual_cuda():
        if place == "cuda" and cls is torch.optim.RMSprop:
            pytest.skip("RMSprop takes a number, on any device")
        assert losses(make(place), "cuda", epochs=1) == pytest.approx(expected, rel=1e-5)


def test_adam_for_sparse_gradients() -> None:
    def run(device: str) -> list[float]:
        torch.manual_seed(0)
        table = nn.Embedding(10, 4, sparse=True).to(device)
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
        found = []
        for i in range(4):
            optimizer.zero_grad()
            loss = table(torch.tensor([i, i + 1, 7], device=device)).square().sum()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    expected = run("cpu")
    with virtual_cuda():
        assert run("cuda") == expected


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon() -> None:
    def run(device: str) -> list[float]:
        torch.manual_seed(0)
        layer = nn.Linear(6, 4, bias=False).to(device)
        optimizer = torch.optim.Muon(layer.parameters(), lr=0.05)
        x = torch.randn(8, 6).to(device)
        found = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = layer(x).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    expected = run("cpu")
    with virtual_cuda():
        assert run("cuda") == expected


def test_schedulers_clipping_accumulation_and_averages() -> None:
    def run(device: str) -> tuple[list[float], float]:
        torch.manual_seed(0)
        model = a_cnn().to(device)
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
        )
        optimizer = torch.optim.AdamW(
            [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[6].parameters()}],
            lr=0.02,
            foreach=False,
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.01, 0.02], total_steps=6)
        found = []
        for step, (x, y) in enumerate(batches(4)):
            loss = F.cross_entropy(model(x.to(device)), y.to(device)) / 2
            loss.backward()
            found.append(loss.item())
            if step % 2:
                norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=False)
                nn.utils.clip_grad_value_(model.parameters(), 0.1, foreach=False)
                found.append(norm.item())
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                average.update_parameters(model)
        average.eval()
        return found, average(batches()[0][0].to(device)).sum().item()

    expected = run("cpu")
    with virtual_cuda():
        assert run("cuda") == expected


def test_default_clipping_is_bit_identical_too() -> None:
    def run(device: str) -> list[float]:
        torch.manual_seed(0)
        model = a_cnn().to(device)
        found = []
        for x, y in batches():
            model.zero_grad()
            F.cross_entropy(model(x.to(device)), y.to(device)).backward()
            found.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        return found

    expected = run("cpu")
    with virtual_cuda():
        assert run("cuda") == expected


def test_an_optimizers_state_moves_with_a_checkpoint() -> None:
    with virtual_cuda():
        model = nn.Linear(3, 2).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 3, device="cuda")).sum().backward()
        optimizer.step()
        at_home = nn.Linear(3, 2)
        resumed = torch.optim.Adam(at_home.parameters())
        resumed.load_state_dict(optimizer.state_dict())
        assert resumed.state[at_home.weight]["exp_avg"].device.type == "cpu"
        again = nn.Linear(3, 2).cuda()
        resumed = torch.optim.Adam(again.parameters())
        resumed.load_state_dict(optimizer.state_dict())
        assert resumed.state[again.weight]["exp_avg"].is_cuda
        assert not resumed.state[again.weight]["step"].is_cuda  # as on CUDA: counted on the host


def test_an_optimizer_of_a_host_model_fails_on_device_gradients_of_another_model() -> None:
    """The classic: a model moved by assignment of new parameters leaves the optimizer with the old
    ones.
    """
    with virtual_cuda():
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model.weight = nn.Parameter(model.weight.detach().cuda())
        model.bias = nn.Parameter(model.bias.detach().cuda())
        before = model.weight.clone()
        model(torch.ones(1, 3, device="cuda")).sum().backward()
        optimizer.step()
        assert torch.equal(model.weight, before)


@pytest.mark.parametrize("steps", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_nothing_stays_alive_after_many_steps_without_the_garbage_collector(steps: int) -> None:
    gc.collect()
    gc.disable()
    try:
        with virtual_cuda() as gpu:
            model = nn.Sequential(
                nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3)
            ).cuda()
            optimizer = torch.optim.Adam(model.parameters())
            scaler = torch.amp.GradScaler("cuda")
            figures = []
            for step in range(steps):
                x, y = torch.randn(4, 8).cuda(), torch.tensor([0, 1, 2, 1], device="cuda")
                optimizer.zero_grad()
                with torch.autocast("cuda", enabled=step % 2 == 0):
                    loss = F.cross_entropy(model(x), y)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                loss.item()
                figures.append((torch.cuda.memory_allocated(), gpu.devices[0].memory.blocks))
            assert len(set(figures[10:])) == 1
            del model, optimizer, scaler, x, y, loss
            torch._C._cuda_clearCublasWorkspaces()
            assert torch.cuda.memory_allocated() == 0
    finally:
        gc.enable()


class _Residual(nn.Module):
    """Two convolutions with norms, added to what came in, as in ResNet-18."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out_channels, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(out_channels)
        self.second = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride > 1:
            smaller = nn.Conv2d(channels, out_channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(smaller, nn.BatchNorm2d(out_channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.first_norm(self.first(x)))
        out = self.second_norm(self.second(out))
        added: torch.Tensor = self.relu(out + self.shortcut(x))
        return added


def test_a_residual_network_learns_what_it_learns_on_the_cpu() -> None:
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    body = [_Residual(8, 8, 1), _Residual(8, 8, 1), _Residual(8, 16, 2), _Residual(16, 16, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    host = nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1), *body, *head)
    images = torch.rand(4, 3, 32, 32)
    labels = torch.randint(0, 10, (4,))
    losses: dict[str, list[float]] = {"cpu": [], "cuda": []}
    with virtual_cuda():
        for device in losses:
            model = copy.deepcopy(host).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for _ in range(3):
                optimizer.zero_grad()
                logits = model(images.to(device))
                loss = nn.functional.cross_entropy(logits, labels.to(device))
                loss.backward()
                optimizer.step()
                losses[device].append(loss.item())
    assert losses["cuda"] == pytest.approx(losses["cpu"])
