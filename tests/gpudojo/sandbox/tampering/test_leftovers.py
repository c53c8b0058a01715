"""What a call leaves in place is gone after it; what was there before stays."""

from __future__ import annotations

import gc
import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from gpudojo.sandbox.tampering.leftovers import Leftovers
from torch.nn.modules import module as torch_module
from virtual_cuda.hooks import operator_hooks

# torch.optim has no attribute of this name.
OPTIMIZERS = importlib.import_module("torch.optim.optimizer")


def do_nothing(*args: Any) -> None:
    return None


@pytest.fixture(autouse=True)
def everything_as_before() -> Iterator[None]:
    """Whatever a test does, the next one finds everything as it was."""
    tracer = sys.gettrace()
    profiler = sys.getprofile()
    handler = signal.getsignal(signal.SIGUSR1)
    yield
    sys.settrace(tracer)
    sys.setprofile(profiler)
    signal.signal(signal.SIGUSR1, handler)
    for held in (gc.callbacks, operator_hooks):
        held[:] = [each for each in held if each is not do_nothing]


def hooks_of_modules() -> list[Any]:
    return list(torch_module._global_forward_hooks.values())


# How something is left in place, and how one sees it.
LEFT: dict[str, tuple[Callable[[], object], Callable[[], bool]]] = {
    "tracer": (lambda: sys.settrace(do_nothing), lambda: sys.gettrace() is do_nothing),
    "profiler": (lambda: sys.setprofile(do_nothing), lambda: sys.getprofile() is do_nothing),
    "signal handler": (
        lambda: signal.signal(signal.SIGUSR1, do_nothing),
        lambda: signal.getsignal(signal.SIGUSR1) is do_nothing,
    ),
    "callback of the collector": (
        lambda: gc.callbacks.append(do_nothing),
        lambda: do_nothing in gc.callbacks,
    ),
    "hook for all modules": (
        lambda: torch.nn.modules.module.register_module_forward_hook(do_nothing),
        lambda: do_nothing in hooks_of_modules(),
    ),
    "hook for all optimizers": (
        lambda: OPTIMIZERS.register_optimizer_step_post_hook(do_nothing),
        lambda: do_nothing in OPTIMIZERS._global_optimizer_post_hooks.values(),
    ),
    "hook for all operators": (
        lambda: operator_hooks.append(do_nothing),  # type: ignore[arg-type]
        lambda: do_nothing in operator_hooks,
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_it_is_gone_after_the_call(name: str) -> None:
    leave, is_there = LEFT[name]
    put_back = Leftovers().remember()
    leave()
    assert is_there()
    put_back()
    assert not is_there()


@pytest.mark.parametrize("name", LEFT)
def test_what_was_there_before_stays(name: str) -> None:
    leave, is_there = LEFT[name]
    put_back_all = Leftovers().remember()
    leave()
    Leftovers().remember()()
    assert is_there()
    put_back_all()


def test_a_hook_in_the_place_of_another_is_removed() -> None:
    first = torch.nn.modules.module.register_module_forward_hook(len)  # type: ignore[arg-type]
    try:
        put_back = Leftovers().remember()
        hooks = torch_module._global_forward_hooks
        hooks[first.id] = do_nothing
        put_back()
        assert hooks_of_modules() == [len]
    finally:
        first.remove()


def test_a_tracer_of_the_graders_that_was_removed_is_not_set_again() -> None:
    """What it counts would have a gap: without it there is no count."""
    before = sys.gettrace()
    sys.settrace(do_nothing)
    try:
        put_back = Leftovers().remember()
        sys.settrace(None)
        put_back()
        assert sys.gettrace() is None
    finally:
        sys.settrace(before)
