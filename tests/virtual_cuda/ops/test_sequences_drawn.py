"""Drawn sequences of layers, trained and looked at in drawn ways, give on the device what they give
on the CPU.
"""

from __future__ import annotations

import copy
import random
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WAYS = (
    *(
        "plain",
        "hooks of leaves",
        "kept",
        "for a few",
        "second derivatives",
        "used twice",
        "frozen",
        "frozen late",
    ),
    *(
        "input",
        "penalty",
        "looked at",
        "gradient given",
        "changed",
        "hooks behind",
        "hook of a node",
        "again",
        "two losses",
    ),
    *("two losses", "checkpoint", "hook of the result"),
)


def drawn(dice: random.Random) -> tuple[nn.Sequential, tuple[int, ...]]:
    """A sequence, and the shape of its input."""
    layers: list[nn.Module] = []
    if dice.random() < 0.5:
        sizes = [dice.choice([2, 3, 5]) for _ in range(dice.randint(2, 5))]
        for before, after in pairwise(sizes):
            layers.append(nn.Linear(before, after, bias=dice.random() < 0.85))
            layers += dice.choice(
                [[nn.ReLU()], [nn.ReLU()], [nn.ReLU(inplace=True)], [nn.Tanh()], []]
            )
        return nn.Sequential(*layers), (4, sizes[0])
    channels = [dice.choice([1, 2, 3]) for _ in range(dice.randint(2, 4))]
    side = 8
    for before, after in pairwise(channels):
        layers.append(nn.Conv2d(before, after, 3, padding=1, bias=dice.random() < 0.7))
        layers += [layer for layer in (nn.BatchNorm2d(after), nn.ReLU()) if dice.random() < 0.7]
        if dice.random() < 0.4:
            layers.append(nn.MaxPool2d(2))
            side //= 2
    if dice.random() < 0.7:
        layers += [nn.Flatten(), nn.Linear(channels[-1] * side * side, 3)]
    if isinstance(layers[-1], nn.Linear) and dice.random() < 0.5:
        layers += [nn.ReLU(), nn.Linear(3, 2)]
    return nn.Sequential(*layers), (4, channels[0], 8, 8)


def nodes(root: Any) -> list[Any]:
    """Those of a graph, each once."""
    found = {}
    todo = [root]
    while todo:
        node = todo.pop()
        if node is not None and node not in found:
            found[node] = None
            todo += [one for one, _ in node.next_functions]
    return [*found]


class Training:
    """Some steps, each in a drawn way; `seen` has what can be compared."""

    def __init__(self, model: nn.Sequential, device: str, dice: random.Random) -> None:
        self.model = model
        self.device = device
        self.dice = dice
        self.seen: list[Any] = []

    def parameters(self) -> list[Any]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def step(self, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
        way = self.dice.choice(WAYS)
        self.seen.append(way)
        if self.dice.random() < 0.7:
            optimizer.zero_grad(set_to_none=self.dice.random() < 0.8)
        if way in ("input", "second derivatives", "penalty", "checkpoint"):
            x.requires_grad_()
        if way == "frozen":
            chosen = self.dice.choice([*self.model.parameters()])
            chosen.requires_grad_(not chosen.requires_grad)
        given = x * 2 if self.dice.random() < 0.5 else x
        handles = self.hooks(way)
        try:
            out = (
                checkpoint(self.model, given, use_reentrant=False)
                if way == "checkpoint"
                else self.model(given)
            )
            if out.requires_grad:
                self.backward(way, given, out, handles)
        except RuntimeError as error:
            self.seen.append(str(error)[:60])
        for handle in handles:
            handle.remove()
        gradients = [parameter.grad for parameter in self.model.parameters()]
        self.seen += [None if each is None else each.clone() for each in (x.grad, *gradients)]
        optimizer.step()
        if way == "frozen late":
            self.model.requires_grad_(True)

    def hooks(self, way: str) -> list[Any]:
        if way == "hooks of leaves":
            return [
                each.register_hook(lambda gradient: gradient * 2) for each in self.parameters()[::2]
            ]
        if way == "hooks behind":
            note = self.seen.append
            return [
                each.register_post_accumulate_grad_hook(lambda p: note(p.grad.sum()))
                for each in self.parameters()
            ]
        return []

    def backward(
        self, way: str, given: torch.Tensor, out: torch.Tensor, handles: list[Any]
    ) -> None:
        loss = out.pow(2).mean()
        parameters = self.parameters()
        if way == "used twice":
            loss = loss + self.model(given * 0.5).mean()
        if way == "penalty":
            loss = loss + given.sum() + sum(each.pow(2).sum() for each in parameters)
        if way == "hook of the result":
            out.register_hook(lambda gradient: gradient * 3)
        if way == "looked at":
            kind = self.dice.choice(["Addmm", "Relu", "Convolution", "BatchNorm", "MaxPool"])
            for node in nodes(out.grad_fn):
                if kind in node.name():
                    node.register_prehook(
                        lambda given: tuple(each if each is None else each * 1.5 for each in given)
                    )
        if way == "frozen late":
            self.dice.choice([*self.model.parameters()]).requires_grad_(False)
        if way == "changed":
            with torch.no_grad():
                self.dice.choice([*self.model.parameters()]).mul_(1.1)
        if way == "hook of a node":
            chosen: Any = self.dice.choice(parameters)
            node = chosen.view_as(chosen).grad_fn.next_functions[0][0]
            handles.append(
                node.register_hook(lambda _, arrived: self.seen.append(arrived[0].sum()))
            )
        if way == "for a few":
            few = self.dice.sample(parameters, -(-len(parameters) // 2))
            self.seen += torch.autograd.grad(
                loss, few, retain_graph=self.dice.random() < 0.5, allow_unused=True
            )
        elif way == "second derivatives":
            found = torch.autograd.grad(
                loss, [given, *parameters], create_graph=True, allow_unused=True
            )
            (loss + sum(each.pow(2).sum() for each in found if each is not None)).backward()
        elif way == "gradient given":
            out.backward(torch.full_like(out, 0.3))
        elif way == "two losses":
            loss.backward(retain_graph=True)
            out.sin().sum().backward()
        else:
            loss.backward(retain_graph=way == "kept")
            if way in ("kept", "again"):
                loss.backward()


def compare(ours: list[Any], theirs: list[Any]) -> None:
    for one, two in zip(ours, theirs, strict=True):
        if isinstance(two, torch.Tensor):
            torch.testing.assert_close(one.detach().cpu(), two.detach(), rtol=1e-7, atol=1e-9)
        else:
            assert one == two


@pytest.mark.parametrize("seed", range(30))
def test_the_device_gives_what_the_cpu_gives(gpu: Any, seed: int) -> None:
    torch.manual_seed(seed)
    host, shape = drawn(random.Random(seed))
    host.double()  # builds of torch round differently
    values = [torch.randn(shape, dtype=torch.float64) for _ in range(4)]
    seen = []
    for model, device in ((copy.deepcopy(host).cuda(), "cuda"), (host, "cpu")):
        training = Training(model, device, random.Random(seed))
        optimizer = (torch.optim.Adam if seed % 2 else torch.optim.SGD)(model.parameters(), lr=0.01)
        for value in values:
            training.step(value.clone().to(device), optimizer)
        seen.append([*training.seen, *model.buffers()])
    compare(*seen)
