"""On which machine is a probe run? The bench that was chosen, or one that the exercise is about."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from graders import bench as benches
from graders.bench import Bench
from graders.bench.ledger import Ledger
from graders.probes.late import torch


@contextlib.contextmanager
def open_machine(machine: str, kind: str) -> Iterator[Bench]:
    """`bench` is the chosen one; `a gpu` is it too, if it is one, and else virtual; `unwatched` is for clocks.

    A clock would time the virtual device's bookkeeping instead of the student's work: there `unwatched` is the CPU.
    `one gpu`, `two gpus`, `mac` and `laptop` are machines to choose a device on.
    """
    if machine == "bench":
        with benches.open(kind) as bench:  # type: ignore[arg-type]
            yield bench
    elif machine == "a gpu":
        with benches.open("virtual" if kind in ("cpu", "mps") else kind) as bench:  # type: ignore[arg-type]
            yield bench
    elif machine in ("one gpu", "two gpus"):
        with benches.open("virtual", devices=1 if machine == "one gpu" else 2) as bench:
            yield bench
    elif machine == "unwatched" and kind not in ("virtual", "cpu"):
        with benches.open(kind) as bench:  # type: ignore[arg-type]
            yield bench
    else:
        around = benches.virtual_mps() if machine == "mac" else benches.no_accelerator(built=True)
        with around:
            yield Bench(machine, torch.device("cpu"), Ledger(), f"the exercise is about a {machine}")
