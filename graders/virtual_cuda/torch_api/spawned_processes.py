"""Patches of `torch.multiprocessing.spawn`: its processes open the device, too."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch.multiprocessing  # noqa: F401 (its module `spawn` is found by name)

from virtual_cuda.device.state import now
from virtual_cuda.internals import find_internal
from virtual_cuda.patching import Opening, Patch, torch_patches

OpenInChild = Callable[[int, int, str | None], None]

# Not `torch.multiprocessing.spawn`: the package has a function of that name.
_spawn_module: Final[Any] = sys.modules["torch.multiprocessing.spawn"]
# What a process of `torch.multiprocessing.spawn` runs.
_run_process: Final = find_internal(
    "torch.multiprocessing.spawn._wrap", "torch.multiprocessing.spawn"
)


def _open_and_call(
    open_in_child: OpenInChild, devices: int, memory: int, gpu: str | None, *args: Any
) -> None:
    """Open the device in a new process, and run there what torch runs.

    `memory` is that of each device in bytes, `args` are those of torch's function. Raises
    DeviceError where it cannot be opened.
    """
    open_in_child(devices, memory, gpu)
    _run_process(*args)


class _ProcessStart:
    """Stands for the function that torch runs in a new process.

    For that process it is pickled as a function that opens the devices that are open here. Nothing
    in it leads to them.
    """

    def __init__(self, open_in_child: OpenInChild) -> None:
        self._open_in_child = open_in_child

    def __call__(self, *args: Any) -> None:
        """Run what torch runs, in a process that was forked: no device can be used there."""
        _run_process(*args)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """For pickle: a call of `_open_and_call` with what is open here.

        Raises AssertionError where no device is open.
        """
        gpu = now.gpu
        assert gpu is not None
        arguments = (
            _open_and_call,
            self._open_in_child,
            len(gpu.devices),
            gpu.devices[0].memory.total,
            None if gpu.model is None else gpu.model.name,
        )
        return functools.partial, arguments


@torch_patches()
def _spawn_patches(opening: Opening) -> Iterator[Patch]:
    """The patch of what a process of `torch.multiprocessing.spawn` runs."""
    yield _spawn_module, "_wrap", _ProcessStart(opening.open_in_child)
