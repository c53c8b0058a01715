"""The ledger names the student's line for transfers, waits, operations and passes."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from virtual_cuda import VirtualGpu

SOURCE = Path(__file__).read_text().splitlines()


def line(mark: str) -> int:
    """The number of the line that ends in `# mark`."""
    (found,) = [number for number, text in enumerate(SOURCE, 1) if text.endswith(f"# {mark}")]
    return found


def lines(records: Any) -> set[int]:
    assert all(record.site is not None and record.site.file == __file__ for record in records)
    return {record.site.line for record in records}


def test_one_loop_line_by_line(gpu: VirtualGpu) -> None:
    data = TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model.to("cuda")  # moves
    optimizer = torch.optim.Adam(model.parameters())
    criterion = nn.CrossEntropyLoss()
    for x, y in DataLoader(data, batch_size=4):
        x = x.to("cuda")  # copies x
        y = y.cuda()  # copies y
        optimizer.zero_grad()
        output = model(x)  # forward
        loss = criterion(output, y)  # criterion
        loss.backward()  # backward
        optimizer.step()  # step
        print(loss.item())  # reads
    ledger = gpu.ledger
    moved = [t for t in ledger.transfers_to_device() if t.site.line == line("moves")]
    assert len(moved) == 4
    assert lines(ledger.transfers_to_device()) == {
        line("moves"),
        line("copies x"),
        line("copies y"),
    }
    assert [s.what for s in ledger.syncs() if s.site.line == line("reads")] == ["item", "item"]
    assert lines(ledger.forwards("Sequential")) == {line("forward")}
    assert lines(ledger.forwards("Linear", top_level_only=False)) == {line("forward")}
    assert lines(ledger.forwards("CrossEntropyLoss")) == {line("criterion")}
    assert lines(ledger.backward_passes()) == {line("backward")}
    assert lines(ledger.optimizer_steps()) == {line("step")}
    for span, mark in (
        (ledger.backward_passes()[0], "backward"),
        (ledger.optimizer_steps()[0], "step"),
    ):
        inside = [r for r in ledger.within(span) if type(r).__name__ == "Operation"]
        assert len(inside) > 3
        assert lines(inside) == {line(mark)}
    assert lines(ledger.operations("aten.addmm")) == {line("forward")}
    assert all(
        record.site is None or record.site.function == "test_one_loop_line_by_line"
        for record in ledger
    )


def test_lambdas_comprehensions_and_generators(gpu: VirtualGpu) -> None:
    x = torch.arange(3.0).to("cuda")
    double = lambda v: v * 2  # noqa: E731  # lambda
    double(x)
    listed = [v.item() for v in x]  # comprehension
    total = sum(
        v.sum().cpu()  # generator
        for v in (x, x)
    )
    sorted(x, key=float)  # key
    assert (listed, float(total)) == ([0.0, 1.0, 2.0], 6.0)
    ledger = gpu.ledger
    assert lines(ledger.operations("aten.mul")) == {line("lambda")}
    assert {s.site.line for s in ledger.syncs() if s.what == "item"} == {
        line("comprehension"),
        line("key"),
    }
    assert lines(ledger.transfers_to_host()) == {line("generator")}


def test_a_call_over_several_lines_and_a_chain(gpu: VirtualGpu) -> None:
    x = torch.ones(2, 2, device="cuda")
    start = gpu.ledger.mark()
    found = (
        x.mul(2)  # first
        .add(1)  # second
        .sum()
        .item()  # last
    )
    assert found == 12
    part = gpu.ledger.since(start)
    assert lines(part.operations("aten.mul")) == {line("first")}
    assert lines(part.operations("aten.add")) == {line("second")}
    assert lines(part.syncs()) == {line("last")}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)  # inside
        if x.sum() > 0:  # branch
            x = x.relu()
        return x


def test_the_line_is_inside_the_students_forward(gpu: VirtualGpu) -> None:
    model = Net().cuda()
    model(torch.ones(1, 2, device="cuda"))  # call
    ledger = gpu.ledger
    assert lines(ledger.forwards("Net")) == {line("call")}
    assert lines(ledger.forwards("Linear", top_level_only=False)) == {line("inside")}
    assert lines(ledger.operations("aten.addmm")) == {line("inside")}
    assert lines([s for s in ledger.syncs() if s.what == "item"]) == {line("branch")}
    assert ledger.forwards("Net")[0].site.function == inspect.currentframe().f_code.co_qualname  # type: ignore[union-attr]


def test_own_backwards_hooks_and_collate_functions(gpu: VirtualGpu) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient.mul(2)  # own backward

    def collate(samples: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(samples).to("cuda")  # collate

    weight = torch.ones(2, device="cuda", requires_grad=True)
    weight.register_hook(lambda gradient: print(gradient.sum().item()))  # hook
    for batch in DataLoader(torch.ones(2, 2), batch_size=2, collate_fn=collate):
        Twice.apply(weight * batch).sum().backward()
    ledger = gpu.ledger
    assert lines(ledger.transfers_to_device()) == {line("collate")}
    assert line("own backward") in lines(ledger.operations("aten.mul"))
    assert lines([s for s in ledger.syncs() if s.what == "item"]) == {line("hook")}


def test_scalers_and_clipping(gpu: VirtualGpu) -> None:
    weight = nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)  # unscale
    nn.utils.clip_grad_norm_([weight], 1.0)  # clip
    scaler.step(optimizer)  # scaled step
    scaler.update()  # update
    ledger = gpu.ledger
    assert lines(ledger.scaler_calls("unscale_")) == {line("unscale")}
    assert lines(ledger.optimizer_steps()) == {line("scaled step")}
    assert lines(ledger.gradient_norms()) == {line("clip")}
    assert lines(ledger.syncs()) == {
        line("scaled step")
    }  # whether a gradient was infinite is read here
