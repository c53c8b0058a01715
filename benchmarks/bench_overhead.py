"""What does the virtual device cost? `python -m benchmarks.bench_overhead` prints a table of ratios to the plain CPU.

Rounds of the two are interleaved and the fastest of each, in CPU time, is compared: a busy machine disturbs both alike.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from virtual_cuda import virtual_cuda

from benchmarks.tables import Table, benchmark_parser, format_ratio

# glibc gives memory back to the system and asks for it again, or not, as it happens to lie: thousands of page faults in
# an epoch of one of the two, and none in the other.
KEEPING = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 10),
    )


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )


class LanguageModel(nn.Module):
    """Words in, logits of the next word out: an LSTM or a Transformer in between, without dropout."""

    def __init__(self, words: int = 200, width: int = 64, recurrent: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 2, width, dropout=0.0, batch_first=True)
        self.body = (
            nn.LSTM(width, width, 2, batch_first=True)
            if recurrent
            else nn.TransformerEncoder(layer, 2)
        )
        self.decode = nn.Linear(width, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.body(self.embed(words))
        logits: torch.Tensor = self.decode(hidden[0] if isinstance(hidden, tuple) else hidden)
        return logits.flatten(0, 1)


class LanguageTraining:
    """Steps of plain gradient descent on clipped gradients, over batches of 20 texts of 35 words."""

    def __init__(self, recurrent: bool, device: str, steps: int = 2) -> None:
        torch.manual_seed(0)
        self.model = LanguageModel(recurrent=recurrent).to(device)
        self.texts = torch.randint(0, 200, (20, 36)).to(device)
        self.steps = steps

    def epoch(self) -> list[float]:
        losses = []
        for _ in range(self.steps):
            self.model.zero_grad()
            loss = nn.functional.cross_entropy(
                self.model(self.texts[:, :-1]), self.texts[:, 1:].flatten()
            )
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.25)
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                parameter.data.add_(parameter.grad, alpha=-1.0)
            losses.append(loss.item())
        return losses


class Training:
    """An epoch of Adam over batches of 64, as a student writes it."""

    def __init__(
        self, make: Callable[[], nn.Module], shape: tuple[int, ...], device: str, batches: int = 8
    ) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = make().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.loss = nn.CrossEntropyLoss()
        dice = torch.Generator().manual_seed(1)
        self.batches = [
            (torch.rand(64, *shape, generator=dice), torch.randint(0, 10, (64,), generator=dice))
            for _ in range(batches)
        ]

    def epoch(self) -> list[float]:
        losses = []
        for inputs, targets in self.batches:
            inputs = inputs.to(self.device)
            targets = targets.to(self.device)
            self.optimizer.zero_grad()
            loss = self.loss(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses


def seconds(function: Callable[[], object], repeats: int = 1) -> float:
    start = time.process_time()
    for _ in range(repeats):
        function()
    return (time.process_time() - start) / repeats


def compare_training(start: Callable[[str], Any], rounds: int) -> tuple[float, float, bool]:
    """Fastest epoch on the plain CPU, outside any context, and on the virtual device; and whether losses are equal."""
    plain = start("cpu")
    expected = plain.epoch()
    best = [float("inf"), float("inf")]
    same = True
    for _ in range(rounds):
        best[0] = min(best[0], seconds(plain.epoch))
        with virtual_cuda():
            virtual = start("cuda")
            same = same and virtual.epoch() == expected
            best[1] = min(best[1], seconds(virtual.epoch), seconds(virtual.epoch))
        best[0] = min(best[0], seconds(plain.epoch))
    return best[0], best[1], same


def small_add(rounds: int) -> tuple[float, float]:
    x = torch.ones(4)
    with virtual_cuda() as gpu:
        y = x.to("cuda")
        best = [float("inf"), float("inf")]
        for _ in range(rounds):
            best[0] = min(best[0], seconds(lambda: x + x, 300))
            best[1] = min(best[1], seconds(lambda: y + y, 300))
            gpu.ledger.rows.clear()
    return best[0], best[1]


def entering(rounds: int) -> tuple[float, float]:
    """Fastest entering, and fastest leaving."""
    best = [float("inf"), float("inf")]
    for _ in range(rounds * 5):
        context = virtual_cuda()
        best[0] = min(best[0], seconds(context.__enter__))
        best[1] = min(best[1], seconds(lambda: context.__exit__(None, None, None)))  # noqa: B023 - called at once
    return best[0], best[1]


def plain_add_inside(rounds: int) -> tuple[float, float]:
    x = torch.ones(4)
    out = float("inf")
    inside = float("inf")
    for _ in range(rounds):
        out = min(out, seconds(lambda: x + x, 300))
        with virtual_cuda():
            inside = min(inside, seconds(lambda: x + x, 300))
    return out, inside


def plain_inside(rounds: int) -> tuple[float, float]:
    """An epoch on the CPU, outside and inside the context."""
    training = Training(mlp, (64,), "cpu")
    out = float("inf")
    inside = float("inf")
    for _ in range(rounds):
        out = min(out, seconds(training.epoch))
        with virtual_cuda():
            inside = min(inside, seconds(training.epoch))
    return out, inside


def kept_alive(steps: int = 300) -> int:
    """Bytes that 300 training steps leave behind with the garbage collector switched off."""
    with virtual_cuda() as gpu:
        training = Training(mlp, (64,), "cuda", batches=1)
        training.epoch()
        gc.collect()
        gc.disable()
        before = torch.cuda.memory_allocated()
        for _ in range(steps):
            training.epoch()
        after = torch.cuda.memory_allocated()
        gc.enable()
        gpu.ledger.rows.clear()
    return after - before


def measured(rounds: int) -> Table:
    """Every comparison, a row each."""
    table = Table(
        "The virtual device next to the plain CPU",
        ("what", "plain CPU", "virtual device", "cost", "wanted"),
    )
    trainings: tuple[tuple[str, Callable[[str], Any], str], ...] = (
        ("CNN epoch", partial(Training, cnn, (3, 16, 16)), "1.35"),
        ("MLP epoch", partial(Training, mlp, (64,)), "2.6"),
        ("LSTM steps", partial(LanguageTraining, True), "2.2"),
        ("Transformer steps", partial(LanguageTraining, False), "2.4"),
    )
    for name, start, wanted in trainings:
        plain, virtual, same = compare_training(start, rounds)
        losses = "losses identical" if same else "LOSSES DIFFER"
        table.add(
            f"{name}, {losses}",
            _ms(plain),
            _ms(virtual),
            format_ratio(virtual / plain),
            f"≤ {wanted} ×",
        )
    plain, virtual = small_add(rounds)
    more = f"+{(virtual - plain) * 1e6:.1f} µs"
    table.add("one small add", _us(plain), _us(virtual), more, "≤ 30 µs more")
    entered, left = entering(rounds)
    table.add("entering", "", _ms(entered), "", "≤ 1 ms")
    table.add("leaving", "", _ms(left), "", "")
    plain, inside = plain_add_inside(rounds)
    table.add(
        "a small add on the CPU inside",
        _us(plain),
        _us(inside),
        format_ratio(inside / plain),
        "1.00 ×",
    )
    plain, inside = plain_inside(rounds)
    table.add(
        "MLP epoch on the CPU inside",
        _ms(plain),
        _ms(inside),
        format_ratio(inside / plain),
        "1.00 ×",
    )
    table.add("kept alive after 300 steps", "", f"{kept_alive()} bytes", "", "0 bytes")
    table.notes = [
        f"CPU time, one thread, batches of 64; the fastest of {rounds} interleaved rounds of each."
    ]
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="how often each is timed (40)")
    asked = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        # torch.set_num_threads comes too late for the BLAS library's own threads.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "benchmarks.bench_overhead", *sys.argv[1:]],
            os.environ | {"OMP_NUM_THREADS": "1", **KEEPING},
        )
    torch.set_num_threads(1)
    measured(asked.rounds).show(asked.markdown)


if __name__ == "__main__":
    main()
