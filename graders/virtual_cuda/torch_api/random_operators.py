"""Operators that draw random numbers: from the device's generators, not the host's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from virtual_cuda.device.hidden import hidden_attribute
from virtual_cuda.device.state import VirtualDevice, now
from virtual_cuda.device.tensor import PLANS
from virtual_cuda.ops.dispatch import run_any
from virtual_cuda.ops.plans import make_plan, plan_by_hand
from virtual_cuda.ops.registry import call_of, facts_of, operator
from virtual_cuda.recorder import tensors_in
from virtual_cuda.torch_api.generators import (
    Generator,
    generator_of,
    is_device_generator,
    open_generators,
)
from virtual_cuda.torch_api.streams import capture

_HostGenerator: Final = torch.Generator
# Random numbers that an H200 draws while its offset grows by 4.
_DRAWN_AT_ONCE: Final = 132 * 2048 * 4


def _position_of_generator(func: Any) -> int | None:
    """The position of an operator's argument `generator`, or None if it has none."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == "generator":
            return position
    return None


def is_random(func: Any) -> bool:
    """True if an operator draws random numbers.

    Dropout does so without a generator among its arguments.
    """
    if _position_of_generator(func) is not None:
        return True
    return facts_of(func).plan in _BORROWING


def _generator_to_use(given: Any, device: VirtualDevice | None) -> Generator:
    """The generator to draw from: the one given, or the device's default.

    Raises RuntimeError, as CUDA does, for one of the host or one that a captured graph does not
    know.
    """
    assert now.gpu is not None
    defaults = open_generators[0].generators
    if given is None:
        if device is None:
            index = now.gpu.current
        else:
            index = device.index
        return defaults[index].core
    if not is_device_generator(given):
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    generator = generator_of(given).core
    graph = capture.graph
    if graph is None:
        return generator
    if not any(generator is known.core for known in (*defaults, *graph.generators)):
        raise RuntimeError(
            "RNG op during graph capture but generator is not registered with the capturing graph. "
            "Call graph.register_generator_state() before capture_begin()."
        )
    return generator


def _advance_generator(generator: Generator, results: Any) -> None:
    """Let a generator's offset grow as on a GPU, by the size of the first result."""
    first = next(iter(tensors_in(results)), None)
    if first is None:
        numel = 0
    else:
        numel = first.numel()
    steps = -(-numel // _DRAWN_AT_ONCE)
    generator.offset += 4 * steps


class _RandomCall(NamedTuple):
    """The arguments of a random operator, with the generator to draw from among them."""

    args: Any
    kwargs: Any
    generator: Generator | None  # None where no device is open


def _with_generator(func: Any, args: Any, kwargs: Any, device: VirtualDevice | None) -> _RandomCall:
    """The call of a random operator with a generator: the one given, or the device's default one.

    `device` is that of its tensors, None for the current one. Raises RuntimeError for a generator
    of the host, or one that a captured graph does not know.
    """
    if not open_generators or now.gpu is None:
        return _RandomCall(args, kwargs, None)
    position = _position_of_generator(func)
    assert position is not None
    if position < len(args):
        generator = _generator_to_use(args[position], device)
        new_args = list(args)
        new_args[position] = generator
        return _RandomCall(tuple(new_args), kwargs, generator)
    generator = _generator_to_use(kwargs.get("generator"), device)
    new_kwargs = {**kwargs, "generator": generator}
    return _RandomCall(args, new_kwargs, generator)


def _run_random(func: Any, args: Any, kwargs: Any) -> Any:
    """Run a random operator with the device's generator, or the one that was passed; record it.

    Gives its results; the generator moves on. Raises RuntimeError for a generator of the host, or
    one that a captured graph does not know, what CUDA raises, and DeviceClosed or the error of what
    ended the device.
    """
    device = None
    for argument in args:
        block = hidden_attribute(argument, "_virtual_block")
        if block is not None:
            device = block.device
            break
    call = _with_generator(func, args, kwargs, device)
    results = run_any(func, call.args, call.kwargs)
    if call.generator is not None:
        _advance_generator(call.generator, results)
    return results


def _run_dropout(func: Any, args: Any, kwargs: Any) -> Any:
    """Run dropout, which has no generator argument, and record it; gives its results.

    The host's generator borrows the device's state where the two differ; the state that is drawn
    from moves on. Raises what CUDA raises, and DeviceClosed or the error of what ended the device.
    """
    device = args[0]._virtual_block.device
    return _call_with_borrowed_state(device, lambda: run_any(func, args, kwargs), follows=True)


def _run_random_like(func: Any, args: Any, kwargs: Any) -> Any:
    """Run `rand_like` or its kin, which have no generator argument either, and record it.

    Gives its results. They draw what `rand` would: the device's default generator moves on. Raises
    what CUDA raises, and DeviceClosed or the error of what ended the device.
    """
    device = args[0]._virtual_block.device
    return _call_with_borrowed_state(device, lambda: run_any(func, args, kwargs))


def _run_random_into(func: Any, args: Any, kwargs: Any) -> Any:
    """Run `rand` or its kin with `out=` and no generator argument, and record it.

    Gives its results. They draw what they would draw without `out`: the device's default generator
    moves on. Raises what CUDA raises, and DeviceClosed or the error of what ended the device.
    """
    device = kwargs["out"]._virtual_block.device
    return _call_with_borrowed_state(device, lambda: run_any(func, args, kwargs))


def _call_with_borrowed_state(
    device: VirtualDevice, call: Callable[[], Any], follows: bool = False
) -> Any:
    """The result of `call`, during which the host's generator has the device's state.

    Afterwards each has its own state again, and the device's has moved on. With `follows`, nothing
    is borrowed as long as the device was seeded together with the host and no graph is captured.
    Raises what `call` raises.
    """
    if not open_generators:
        return call()
    if follows and open_generators[0].following_host and capture.graph is None:
        return call()
    generator = open_generators[0].generators[device.index].core
    host_generator = torch.default_generator
    host_state = host_generator.get_state()
    host_generator.set_state(_HostGenerator.get_state(generator))
    try:
        results = call()
        _advance_generator(generator, results)
        return results
    finally:
        _HostGenerator.set_state(generator, host_generator.get_state())
        host_generator.set_state(host_state)


def repeatable_call(func: Any, inner: Any, kwargs: Any, device: VirtualDevice) -> Callable[[], Any]:
    """The call of a random operator that a CUDA graph repeats, as a function without arguments.

    It works on the inner tensors among `inner` and `kwargs`, and draws from the generator that is
    chosen now. Raises RuntimeError for a generator of the host, or one that the graph does not
    know.
    """
    plan = facts_of(func).plan
    if plan in _BORROWING:
        plain_call = functools.partial(call_of(func), *inner, **kwargs)
        follows = plan is _run_dropout
        return lambda: _call_with_borrowed_state(device, plain_call, follows)
    call = _with_generator(func, tuple(inner), kwargs, device)
    generator = call.generator
    run = functools.partial(call_of(func), *call.args, **call.kwargs)
    if generator is None:
        return run

    def run_and_advance() -> Any:
        """Run the operator, and move the generator on by what it drew."""
        results = run()
        _advance_generator(generator, results)
        return results

    return run_and_advance


def _make_plan_or_random(func: Any) -> Any:
    """The plan of an operator: a function(args, kwargs) that runs it.

    One that draws random numbers, which its schema tells, draws them from the device's generator.
    """
    if _position_of_generator(func) is not None and facts_of(func).plan is None:
        return plan_by_hand(_run_random, func)
    return make_plan(func)


_BORROWING: Final = (_run_dropout, _run_random_like, _run_random_into)
operator("native_dropout", "_fused_dropout", plan=_run_dropout)
operator("rand_like", "randn_like", "randint_like", "randint_like.low_dtype", plan=_run_random_like)
operator("rand.out", "randint.out", "randint.low_out", "randperm.out", plan=_run_random_into)
PLANS.maker = _make_plan_or_random
