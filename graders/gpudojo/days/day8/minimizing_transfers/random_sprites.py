"""`random_sprites`: random numbers made on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from virtual_cuda import hooks

from gpudojo.days.day8.minimizing_transfers.declaration import random_sprites
from gpudojo.days.day8.sprites import restored_generators
from gpudojo.days.day8.tensor_values import ReturnedTensor, describe_returned
from gpudojo.grading.call import Call, StudentRaised, device_name, torch, try_scenarios
from gpudojo.grading.checks import check_scenarios, expect_device_used, runs
from gpudojo.grading.comparing import numpy_values
from gpudojo.model.evidence import Case, Cases, Raised
from gpudojo.model.exercise import Failed, returned_other_type

COUNT = 40  # with this size, 3000 values
SIZE = 5
GENERATOR = "generator "  # the beginning of the name of a draw from a generator

# ---- scenarios ---------------------------------------------------------------------------------


class Draw(Case, frozen=True):
    """The result of one call."""

    sprites: ReturnedTensor
    moved: int  # bytes copied between host and device
    line: int | None
    default_device: str
    written: bool = False  # whether the device's memory was written to by no operator


class Draws(Case, frozen=True):
    """The calls on one device."""

    draws: dict[str, Draw]
    refused: Raised | None  # torch's error about a generator of another device
    wanted_device: str


def _call_random_sprites(call: Call, writes: hooks.WriteWatch, device: Any, **options: Any) -> Draw:
    """Call the student's function, with these further arguments, and describe the result.

    `writes` watches this call and those before it, whose result it may return again. Resets torch's
    default device, if it was changed. Raises StudentRaised.
    """
    value = call(COUNT, SIZE, device, **options)
    was_made = writes.was_made_here(value)
    type_of_default = hooks.default_device().type
    # Reset even if it is the CPU: a default that was set is passed to every factory, even together
    # with `out`.
    hooks.forget_default_device()
    copies = call.ledger.transfers()
    return Draw(
        sprites=describe_returned(value),
        moved=sum(copy.bytes for copy in copies),
        line=call.first_line(copies),
        default_device=type_of_default,
        written=writes.has_found or not was_made,
    )


def _draw_on(call: Call, device: Any, spelled: str) -> Draws:
    """Draw several times on one device, and with its name `spelled` out. Raises StudentRaised.

    The draws are from torch's own random state, which is restored, from a generator of the device,
    and one with the device as a string. Where torch refuses the generator, that error is noted.
    """
    refused = None
    with hooks.watch_writes() as writes:
        with restored_generators(device):
            found = _draw_by_seeds(call, writes, device, torch.manual_seed)
        generator = torch.Generator(device=device)
        set_seed = generator.manual_seed
        try:
            drawn = _draw_by_seeds(call, writes, device, set_seed, generator=generator)
            for name, draw in drawn.items():
                found[GENERATOR + name] = draw
        except StudentRaised as error:
            # torch refuses a generator of another device than the one on which the values are made.
            if "device type for generator" not in error.evidence.message:
                raise
            refused = error.evidence
        found[f"device={spelled!r}"] = _call_random_sprites(call, writes, spelled)
    return Draws(found, refused, device_name(device))


def _draw_by_seeds(
    call: Call,
    writes: hooks.WriteWatch,
    device: Any,
    set_seed: Callable[[int], Any],
    **options: Any,
) -> dict[str, Draw]:
    """Draw twice with one seed, once more with the same, and once with another.

    `set_seed` seeds what is drawn from; `options` go to the student's function. The draws are by
    name: first, next, again, other. Raises StudentRaised.
    """
    draws = {}
    set_seed(call.seed)
    draws["first"] = _call_random_sprites(call, writes, device, **options)
    draws["next"] = _call_random_sprites(call, writes, device, **options)
    set_seed(call.seed)
    draws["again"] = _call_random_sprites(call, writes, device, **options)
    set_seed(call.seed + 1)
    draws["other"] = _call_random_sprites(call, writes, device, **options)
    return draws


@random_sprites.probe
def draws(call: Call) -> Cases[Draws]:
    """Sprites drawn on the device, and on the CPU.

    Raises StudentRaised for an error about a closed device or memory.
    """
    device = call.device
    return try_scenarios(
        {
            "on_the_device": lambda: _draw_on(call, device, device.type),
            "on_the_cpu": lambda: _draw_on(call, torch.device("cpu"), "cpu"),
        }
    )


@random_sprites.probe(machine="two gpus", edge=True)
def draws_on_the_second_gpu(call: Call) -> Cases[Draws]:
    """The second GPU, while the first one is current."""
    return try_scenarios({"on_the_second_gpu": lambda: _draw_on_the_second_gpu(call)})


def _draw_on_the_second_gpu(call: Call) -> Draws:
    """Draw with a device, and with a string and a generator, on "cuda:1". Raises StudentRaised."""
    generator = torch.Generator(device="cuda:1").manual_seed(call.seed)
    with hooks.watch_writes() as writes:
        found = {
            "a device": _call_random_sprites(call, writes, torch.device("cuda:1")),
            "a string": _call_random_sprites(call, writes, "cuda:1", generator=generator),
        }
    return Draws(found, None, "cuda:1")


# ---- claims ------------------------------------------------------------------------------------

runs(random_sprites)


@check_scenarios(random_sprites, draws, points=0.5)
def made_on_the_device(scenario: str, found: Draws, right: Draws) -> None:
    """The sprites are made on the device passed in: nothing is transferred."""
    device = right.wanted_device
    for draw in found.draws.values():
        if draw.moved:
            happened = f"{draw.moved} bytes were copied between host and device"
            expected = "none: values made where they are needed"
            key = "made-on-cpu-then-moved"
            if device != "cpu" and draw.sprites.device == "cpu":
                key = "result-thrown-away"
            raise Failed(happened, expected, draw.line, key)
        if draw.written:
            happened = "numbers came into the device's memory that nothing copied or computed there"
            raise Failed(happened, "values made where they are needed", at=("return",))
    if found.refused is not None:
        raise _failure_with_generator(found, found.refused, device)
    _expect_made_on(found, device)


def _failure_with_generator(found: Draws, refused: Raised, device: str) -> Failed:
    """The failure where torch refused a generator of the device. It is returned, not raised."""
    key = None
    if device == "cpu":
        key = "hard-coded-cuda"
    elif all(draw.sprites.device == device for draw in found.draws.values()):
        # Without a generator the device was right: with it, the values came from the CPU.
        key = "made-on-cpu-then-moved"
    happened = f"with a generator of {device} it raised: {refused.message}"
    return Failed(happened, "values made on the device of the generator", refused.line, key)


def _expect_made_on(found: Draws, device: str) -> None:
    """Raises Failed unless all sprites are on this device, and have values."""
    for draw in found.draws.values():
        value = draw.sprites.value
        if value is None or not value.data:
            raise returned_other_type(draw.sprites.kind, "a tensor with values")
        expect_device_used(device, [draw.sprites.device], "they were made on")


@check_scenarios(random_sprites, draws_on_the_second_gpu, points=0.25)
def finds_the_second_gpu(scenario: str, found: Draws, right: Draws) -> None:
    """With "cuda:1" they are made on the second GPU, even if the first one is current."""
    _expect_made_on(found, right.wanted_device)


@check_scenarios(random_sprites, draws, points=0.25)
def returns_sprites_there(scenario: str, found: Draws, right: Draws) -> None:
    """It returns float32 of shape (count, 3, size, size), and leaves torch's default device
    alone."""
    for name, draw in right.draws.items():
        if found.refused is None or name in found.draws:  # a refusal is another check's
            _expect_sprites(found.draws[name], draw)


def _expect_sprites(draw: Draw, right: Draw) -> None:
    """Raises Failed for another type, dtype or shape, and for another default device."""
    value = draw.sprites.value
    right_value = right.sprites.value
    assert right_value is not None
    if value is None:
        raise returned_other_type(draw.sprites.kind, "a tensor")
    if draw.default_device != right.default_device:
        default = draw.default_device
        happened = f"{default} is the default device of the whole program afterwards"
        raise Failed(happened, "`device=` for these sprites only")
    if draw.sprites.dtype != "float32" or value.dtype != "float32":
        raise Failed(f"their dtype is {draw.sprites.dtype}", "float32")
    if value.shape != right_value.shape:
        happened = f"their shape is {value.shape}"
        raise Failed(happened, str(right_value.shape))


@check_scenarios(random_sprites, draws, points=0.25, needs=("runs", "returns_sprites_there"))
def spreads_evenly(scenario: str, found: Draws, right: Draws) -> None:
    """The values are uniform in [0, 1), each of them drawn anew."""
    for draw in found.draws.values():
        assert draw.sprites.value is not None
        values = numpy_values(draw.sprites.value)
        _expect_uniform(values.reshape(-1))


def _expect_uniform(values: Any) -> None:
    """Raises Failed for values that are not uniform in [0, 1].

    That is: values outside of it, too many or too few in one tenth of it, and equal values.
    """
    import numpy as np

    low = float(values.min())
    high = float(values.max())
    if not (low >= 0 and high <= 1):
        happened = f"the values run from {low:.2f} to {high:.2f}"
        raise Failed(happened, "values in [0, 1)")
    # Of 3000 values a tenth of the range holds 10 % with a standard deviation of 0.55 %.
    tenths = (values * 10).astype("uint8")
    tenths = np.minimum(tenths, 9)
    shares = np.bincount(tenths, minlength=10) / len(values)
    deviations = abs(shares - 0.1)
    worst = int(deviations.argmax())
    if deviations[worst] > 0.04:
        low = worst / 10
        high = (worst + 1) / 10
        happened = f"{shares[worst]:.0%} of the values lie between {low} and {high}"
        raise Failed(happened, "about 10 % in every tenth")
    # Of 3000 floats with 24 bits hardly any two are equal.
    distinct = len(set(values.tolist()))
    if distinct < 0.98 * len(values):
        happened = f"only {distinct} of {len(values)} values are different"
        raise Failed(happened, "a new value for each pixel")


@check_scenarios(random_sprites, draws, points=0.25)
def follows_its_seed(scenario: str, found: Draws, right: Draws) -> None:
    """The same seed gives the same sprites, another seed others, and a second draw is not the first
    again."""
    _expect_equal_by_seed(found, "", "torch's own random state")
    _expect_equal_by_seed(found, GENERATOR, "a generator")


def _expect_equal_by_seed(found: Draws, prefix: str, what: str) -> None:
    """Raises Failed unless draws are equal exactly where their seeds are.

    Judged are the draws whose names have this prefix. `what` says in the failure where they are
    drawn from.
    """
    values = []
    for name in ("first", "next", "again", "other"):
        draw = found.draws.get(prefix + name)
        if draw is None:
            message = "nothing was recorded"
            if found.refused:
                message = found.refused.message
            raise Failed(f"with {what} it raised: {message}", "sprites drawn from it")
        if draw.sprites.value is None:
            raise returned_other_type(draw.sprites.kind, "a tensor")
        values.append(draw.sprites.value.data)
    first, next_one, again, other = values
    if first == next_one:
        happened = f"with {what}, two draws in a row were the same"
        raise Failed(happened, "new sprites: set no seed inside")
    if first != again:
        happened = f"with {what} and the same seed twice, the sprites differed"
        raise Failed(happened, "the same sprites")
    if first == other:
        happened = f"with {what} and different seeds, the sprites were the same"
        raise Failed(happened, "different sprites")
