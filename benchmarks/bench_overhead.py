"""What does the virtual device cost, next to the plain CPU?

Rounds of the two are interleaved and the fastest of each, in CPU time, is compared: a busy machine
disturbs both alike.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from virtual_cuda import virtual_cuda

from benchmarks.bare_tensor import make_parameters_bare, wrap_bare
from benchmarks.tables import Table, benchmark_parser, format_ratio

# glibc gives memory back to the system and asks for it again, or not, as it happens to lie:
# thousands of page faults in an epoch of one of the two, and none in the other.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}


def small_cnn() -> nn.Module:
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


def small_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )


class LanguageModel(nn.Module):
    """Words in, logits of the next word out.

    An LSTM or a Transformer is in between, without dropout.
    """

    def __init__(self, words: int = 200, width: int = 64, recurrent: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.body: nn.Module
        if recurrent:
            self.body = nn.LSTM(width, width, 2, batch_first=True)
        else:
            layer = nn.TransformerEncoderLayer(width, 2, width, dropout=0.0, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 2)
        self.decode = nn.Linear(width, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.body(self.embed(words))
        if isinstance(hidden, tuple):  # an LSTM returns its states, too
            hidden = hidden[0]
        logits: torch.Tensor = self.decode(hidden)
        return logits.flatten(0, 1)


class LanguageTraining:
    """Steps of plain gradient descent on clipped gradients.

    A batch is 20 texts of 35 words.
    """

    def __init__(self, recurrent: bool, device: str, steps: int = 2) -> None:
        torch.manual_seed(0)
        self.model = LanguageModel(recurrent=recurrent).to(device)
        self.texts = torch.randint(0, 200, (20, 36)).to(device)
        self.steps = steps

    def run_epoch(self) -> list[float]:
        """Train for an epoch, and return the loss of each step."""
        losses = []
        for _ in range(self.steps):
            self.model.zero_grad()
            logits = self.model(self.texts[:, :-1])
            next_words = self.texts[:, 1:].flatten()
            loss = nn.functional.cross_entropy(logits, next_words)
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
        self.batches = []
        for _ in range(batches):
            inputs = torch.rand(64, *shape, generator=dice)
            targets = torch.randint(0, 10, (64,), generator=dice)
            self.batches.append((inputs, targets))

    def run_epoch(self) -> list[float]:
        """Train for an epoch, and return the loss of each step."""
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


class Fastest:
    """The least CPU seconds that something took in any round."""

    def __init__(self) -> None:
        self.seconds = float("inf")

    def time_call(self, function: Callable[[], object], repeats: int = 1) -> None:
        """Call a function, and keep its time if it is the least so far."""
        start = time.process_time()
        for _ in range(repeats):
            function()
        seconds = time.process_time() - start
        self.seconds = min(self.seconds, seconds / repeats)


class Comparison(NamedTuple):
    """The fastest of two ways, in seconds."""

    plain: float
    virtual: float

    @property
    def ratio(self) -> str:
        return format_ratio(self.virtual / self.plain)


def compare_training(start: Callable[[str], Any], rounds: int) -> tuple[Comparison, bool]:
    """An epoch on the plain CPU and one on the virtual device, and whether losses are equal.

    `start` makes a training on a device. The plain one runs outside any context.
    """
    training = start("cpu")
    expected = training.run_epoch()
    plain = Fastest()
    virtual = Fastest()
    same = True
    for _ in range(rounds):
        plain.time_call(training.run_epoch)
        with virtual_cuda():
            on_device = start("cuda")
            same = same and on_device.run_epoch() == expected
            virtual.time_call(on_device.run_epoch)
            virtual.time_call(on_device.run_epoch)
        plain.time_call(training.run_epoch)
    return Comparison(plain.seconds, virtual.seconds), same


def compare_bare_tensors(rounds: int) -> Comparison:
    """An epoch of the MLP on the plain CPU, and one on tensors that only reach Python."""
    training = Training(small_mlp, (64,), "cpu")
    bare = Training(small_mlp, (64,), "cpu")
    make_parameters_bare(bare.model)
    bare.optimizer = torch.optim.Adam(bare.model.parameters(), foreach=True)  # as on a GPU
    bare.batches = [(wrap_bare(inputs), wrap_bare(targets)) for inputs, targets in bare.batches]
    assert training.run_epoch() == bare.run_epoch()
    plain = Fastest()
    in_python = Fastest()
    for _ in range(rounds):
        plain.time_call(training.run_epoch)
        in_python.time_call(bare.run_epoch)
    return Comparison(plain.seconds, in_python.seconds)


def compare_small_add(rounds: int) -> Comparison:
    """A small addition on the CPU, and one on the virtual device."""
    x = torch.ones(4)
    plain = Fastest()
    virtual = Fastest()
    with virtual_cuda() as gpu:
        y = x.to("cuda")
        for _ in range(rounds):
            plain.time_call(lambda: x + x, 300)
            virtual.time_call(lambda: y + y, 300)
            gpu.ledger.rows.clear()
    return Comparison(plain.seconds, virtual.seconds)


def time_entering(rounds: int) -> tuple[float, float]:
    """The seconds of entering the context, and of leaving it."""
    entering = Fastest()
    leaving = Fastest()
    for _ in range(rounds * 5):
        context = virtual_cuda()
        entering.time_call(context.__enter__)
        leaving.time_call(partial(context.__exit__, None, None, None))
    return entering.seconds, leaving.seconds


def compare_inside(function: Callable[[], object], rounds: int, repeats: int = 1) -> Comparison:
    """A function that only uses the CPU, outside and inside the context."""
    outside = Fastest()
    inside = Fastest()
    for _ in range(rounds):
        outside.time_call(function, repeats)
        with virtual_cuda():
            inside.time_call(function, repeats)
    return Comparison(outside.seconds, inside.seconds)


def bytes_kept_alive(steps: int = 300) -> int:
    """Bytes that training steps leave behind with the garbage collector switched off."""
    with virtual_cuda() as gpu:
        training = Training(small_mlp, (64,), "cuda", batches=1)
        training.run_epoch()
        gc.collect()
        gc.disable()
        before = torch.cuda.memory_allocated()
        for _ in range(steps):
            training.run_epoch()
        after = torch.cuda.memory_allocated()
        gc.enable()
        gpu.ledger.rows.clear()
    return after - before


class TrainingToCompare(NamedTuple):
    """A training, and the most that it may take on the virtual device."""

    name: str
    start: Callable[[str], Any]
    wanted: str


TRAININGS = (
    TrainingToCompare("CNN epoch", partial(Training, small_cnn, (3, 16, 16)), "≤ 1.35 ×"),
    TrainingToCompare("MLP epoch", partial(Training, small_mlp, (64,)), "≤ 2.6 ×"),
    TrainingToCompare("LSTM steps", partial(LanguageTraining, True), "≤ 2.2 ×"),
    TrainingToCompare("Transformer steps", partial(LanguageTraining, False), "≤ 2.4 ×"),
)


def measure_all(rounds: int) -> Table:
    """Every comparison, a row each."""
    table = Table(
        "The virtual device next to the plain CPU",
        ("what", "plain CPU", "virtual device", "cost", "wanted"),
    )
    for name, start, wanted in TRAININGS:
        found, same = compare_training(start, rounds)
        losses = "LOSSES DIFFER"
        if same:
            losses = "losses identical"
        what = f"{name}, {losses}"
        table.add(what, _in_ms(found.plain), _in_ms(found.virtual), found.ratio, wanted)
    found = compare_bare_tensors(rounds)
    what = "MLP epoch on a subclass that only computes"
    table.add(what, _in_ms(found.plain), _in_ms(found.virtual), found.ratio, "")
    found = compare_small_add(rounds)
    microseconds = (found.virtual - found.plain) * 1e6
    more = f"+{microseconds:.1f} µs"
    table.add("one small add", _in_us(found.plain), _in_us(found.virtual), more, "≤ 30 µs more")
    entering, leaving = time_entering(rounds)
    table.add("entering", "", _in_ms(entering), "", "≤ 1 ms")
    table.add("leaving", "", _in_ms(leaving), "", "")
    # What the context costs code that does not use the device.
    x = torch.ones(4)
    found = compare_inside(lambda: x + x, rounds, 300)
    what = "a small add on the CPU inside"
    table.add(what, _in_us(found.plain), _in_us(found.virtual), found.ratio, "1.00 ×")
    training = Training(small_mlp, (64,), "cpu")
    found = compare_inside(training.run_epoch, rounds)
    what = "MLP epoch on the CPU inside"
    table.add(what, _in_ms(found.plain), _in_ms(found.virtual), found.ratio, "1.00 ×")
    table.add("kept alive after 300 steps", "", f"{bytes_kept_alive()} bytes", "", "0 bytes")
    how = f"the fastest of {rounds} interleaved rounds of each"
    table.notes = [f"CPU time, one thread, batches of 64; {how}."]
    return table


def _in_ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _in_us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"


def main() -> None:
    """Measure with one thread, and print the table; starts itself anew for that."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="how often each is timed (40)")
    asked = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        # torch.set_num_threads comes too late for the BLAS library's own threads.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "benchmarks.bench_overhead", *sys.argv[1:]],
            os.environ | {"OMP_NUM_THREADS": "1", **KEEP_MEMORY},
        )
    torch.set_num_threads(1)
    measure_all(asked.rounds).show(asked.markdown)


if __name__ == "__main__":
    main()
