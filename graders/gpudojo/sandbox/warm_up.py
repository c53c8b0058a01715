"""Loads into the fork server what its children would otherwise each load for themselves.

Two things must hold when the fork server forks its first child:

- It has one thread. A fork copies only the thread that forks; a lock that another thread holds
  at that moment stays locked in the child for ever.
- It has not touched CUDA. A process that has started CUDA cannot be forked, and torch keeps the
  number of GPUs it once counted. On a build of torch with CUDA every backward pass counts them.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pkgutil
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from gpudojo.model.catalogue import exercises_of, registered_days
from gpudojo.model.errors import BadDay

if TYPE_CHECKING:
    from torch import Tensor

# Imported by probes and by students' files; each costs milliseconds to seconds.
LATE_IMPORTS: Final = """
    torch.optim torch.utils.checkpoint torch.utils.data torch.profiler torch.amp torch.distributed
    torch.distributed.nn torch.nn.parallel torch.testing torch.func torch.fx numpy
    collections contextlib copy csv dataclasses difflib functools gc inspect io itertools json math
    operator random re statistics tempfile time timeit typing warnings
    multiprocessing.connection multiprocessing.popen_fork
    gpudojo.sprite_display
""".split()
# Needed by few submissions: imported when the first child has ended, for those that follow.
RARE_IMPORTS: Final = ("nbformat", "rich.console", "unittest.mock", "torch.utils.benchmark")
# Versions 4.x of the notebook format: as Colab, VS Code, and older and newer Jupyter write them.
NOTEBOOK_MINORS: Final = (0, 2, 4, 5)
# Packages of ours of which children use every module.
PACKAGES: Final = ("virtual_cuda", "gpudojo.grading", "gpudojo.submissions")


def warm_up(for_gpu: bool = False) -> None:
    """Import everything a child needs, and run a little of it.

    Torch is left with one thread. With `for_gpu`, children are to use a real GPU: then there is no
    backward pass here, so that this process does not touch CUDA. A day that cannot be loaded is
    passed over: `exercises_of` raises its BadDay again in the child that is to grade it. Raises
    what torch or the virtual device raises.
    """
    import torch
    from virtual_cuda import gpu_named
    from virtual_cuda.hooks import USUAL_GPU

    torch.set_num_threads(1)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        import_available(LATE_IMPORTS)
        # All of our modules: one that is first loaded after student code has run might be the
        # student's.
        for package in PACKAGES:
            _import_modules_of(package)
        for each in registered_days().values():
            with contextlib.suppress(BadDay):
                exercises_of(each.name)
            _import_helpers_of_day(each.package)
        _train(backward=not for_gpu)
        gpu_named(USUAL_GPU)  # read from a file


def warm_up_rare() -> None:
    """Import what few submissions need, and read one empty notebook of each version."""
    import_available(RARE_IMPORTS)
    # What fails here fails again in a child that reads a notebook, and is told there.
    with contextlib.suppress(Exception):
        read_notebooks()


def import_available(names: Iterable[str]) -> None:
    """Import modules by name, and pass over those that are not installed."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _import_modules_of(package_name: str) -> None:
    """Import a package with every module in it that a child may use."""
    package = importlib.import_module(package_name)
    modules = pkgutil.walk_packages(package.__path__, f"{package_name}.")
    import_available(module.name for module in modules if _is_for_children(module.name))


def _is_for_children(module_name: str) -> bool:
    """False for scripts, and for pytest's plugins, which import pytest."""
    return not module_name.endswith(("__main__", ".pytest_plugin"))


def _import_helpers_of_day(package_name: str) -> None:
    """Import the modules of a day that are no exercises.

    Errors of an author's module are dropped.
    """
    # An author's module may raise anything. If an exercise needs it, `day` tells that.
    with contextlib.suppress(Exception):
        package = importlib.import_module(package_name)
        for module in pkgutil.walk_packages(package.__path__, f"{package_name}."):
            if _is_for_children(module.name):
                with contextlib.suppress(Exception):
                    importlib.import_module(module.name)


def _train(backward: bool) -> None:
    """Do a little of everything the exercises do, on the virtual device.

    It solves none of them. `backward` tells whether gradients are computed, too. Raises what torch
    or the virtual device raises.
    """
    import torch
    from torch import nn
    from virtual_cuda import virtual_cuda

    pictures = torch.rand(4, 3, 4, 4)
    dataset = torch.utils.data.TensorDataset(pictures, torch.tensor([0, 1, 2, 3]))
    # Model, optimizer and scaler, then an epoch over two batches.
    for _ in range(2):
        with virtual_cuda(devices=2):
            layers = [nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, 4)]
            model = nn.Sequential(*layers, nn.BatchNorm1d(4), nn.Dropout(0.1))
            model.to("cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for batch, classes in torch.utils.data.DataLoader(dataset, 2):
                with torch.autocast("cuda"):
                    scores = model(batch.to("cuda"))
                    loss = nn.functional.cross_entropy(scores, classes.to("cuda"))
                if backward:
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                loss.item()
            torch.rand(2, device="cuda").argmax().cpu().numpy()
            torch.cuda.synchronize()
            _call_common_operators(torch.rand(4, 4, device="cuda"), backward)


def _call_common_operators(x: Tensor, backward: bool) -> None:
    """Call operators once: the virtual device finds out at an operator's first call how to run it.

    Changes `x`. With `backward`, there is a backward pass, too.
    """
    import torch

    # Views.
    _ = x[:, 1:]
    _ = x[0]
    _ = x.T
    x.unsqueeze(0).expand(2, 4, 4)
    x.transpose(0, 1)
    x.permute(1, 0)
    x.unbind()
    # Arithmetic and reductions.
    _ = x**2 - x
    _ = -x
    _ = x / 2
    _ = x / (x + 1)
    _ = x * 2
    x.argmin()
    x.amax()
    x.sum()
    x.mean(0)
    torch.cat([x, x])
    x.clone().zero_().copy_(x)
    # Comparisons and masks.
    is_zero = x == 0
    _ = x == x
    _ = ~is_zero
    _ = x != 0
    (x < x).any()
    _ = x[x.long()]
    torch.full_like(x, 1)
    x.masked_fill_(is_zero, 1)
    if backward:
        x.detach().requires_grad_().tanh().relu().sum().backward()


def read_notebooks() -> None:
    """Read an empty notebook of each version.

    nbformat compiles a validator when it meets a version for the first time. Raises NotANotebook if
    that fails.
    """
    from gpudojo.grading.notebooks import parse_notebook

    for minor in NOTEBOOK_MINORS:
        parse_notebook(
            b'{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": %d}' % minor
        )
