"""What is slow the first time? Done once in the nursery, so that no child has to: imports, caches, first calls."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pkgutil
import warnings
from typing import Final

from graders.curriculum.catalogue import DAYS

# What probes and students' files import late; each costs milliseconds to seconds.
LATE: Final = (
    *("torch.optim", "torch._dynamo", "torch.utils.checkpoint", "torch.utils.data", "torch.profiler", "torch.amp"),
    *("torch.distributed", "torch.nn.parallel", "torch.utils.benchmark", "torch.testing", "torch.func", "torch.fx"),
    *("numpy", "nbformat", "json", "math", "statistics", "collections", "contextlib", "functools", "itertools"),
    *("dataclasses", "typing", "time", "timeit", "copy", "random", "csv", "io", "re", "gc", "warnings", "inspect"),
    *(
        "multiprocessing.connection",
        "tempfile",
        "difflib",
        "unittest.mock",
        "rich.console",
        "graders.sprites_on_screen",
    ),
)


def warm_up(for_gpu: bool = False) -> None:
    """With one thread and no parallel operation: a process with threads cannot be forked safely.

    Where children are to use a real GPU, nothing is trained either. Torch asks how many there are at the first
    backward pass, keeps the answer for the process and all that are forked from it, and begins CUDA to find out.
    """
    import torch

    torch.set_num_threads(1)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for name in LATE:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        # All of ours: what is loaded after student code has run might be somebody else's.
        for package in ("bench", "probes", "checks", "intake", *DAYS):
            _whole(f"graders.{package}")
        _train(learns=not for_gpu)


def _whole(name: str) -> None:
    """A package with every module in it."""
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)


def _train(learns: bool) -> None:
    """A little of everything the exercises do, on the virtual device; no solution of any of them."""
    import torch
    from torch import nn

    from graders.bench import virtual_cuda

    for _ in range(2):
        with virtual_cuda(devices=2):
            model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout(0.1))
            model.to("cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            data = torch.utils.data.TensorDataset(torch.rand(4, 3, 4, 4), torch.tensor([0, 1, 2, 3]))
            for pictures, classes in torch.utils.data.DataLoader(data, 2):
                with torch.autocast("cuda"):
                    loss = nn.functional.cross_entropy(model(pictures.to("cuda")), classes.to("cuda"))
                if learns:
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                loss.item()
            torch.rand(2, device="cuda").argmax().cpu().numpy()
            torch.cuda.synchronize()
    with open(os.devnull, "w"):
        pass
