"""Is the array the tensor's equal, and are the sprites made where they are needed, evenly and as seeded?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graders.checks.common import diagnosis, runs
from graders.curriculum import Failed
from graders.curriculum.exercise import Seen
from graders.curriculum.wording import called
from graders.day8.minimizing_transfers.functions import random_sprites, to_numpy

runs(to_numpy, points=0.5, diagnose=lambda _, said: diagnosis(said))


@to_numpy.check(points=0.5)
def keeps_values_and_dtype(seen: Seen, wanted: Seen) -> None:
    """The array has the tensor's values, dtype and shape, whatever these are."""
    for scenario, tensors in wanted["arrays"].facts.items():
        for name, right in tensors.items():
            given = seen["arrays"].facts[scenario][name]
            value, correct = given["value"], right["value"]
            if value is None:
                raise Failed(f"{_named(name)} gave {called(given['class'])}", "a numpy.ndarray")
            if value.dtype != correct.dtype:
                raise Failed(f"{_named(name)} gave an array of {value.dtype}", correct.dtype)
            if value.shape != correct.shape:
                raise Failed(f"{_named(name)} gave shape {value.shape}", f"{correct.shape}")
            if value.data != correct.data:
                raise Failed(f"{_named(name)} gave other values", "the values of the tensor")


@to_numpy.check(points=0.5)
def leaves_the_tensor_alone(seen: Seen, wanted: Seen) -> None:
    """The tensor is left as it was: where it is, what is in it, and whether it requires a gradient."""
    for scenario, tensors in wanted["arrays"].facts.items():
        for name, right in tensors.items():
            facts = seen["arrays"].facts[scenario][name]
            if facts["switched"]:
                raise Failed(
                    f"{_named(name)} was changed: its requires_grad",
                    "the tensor as it was",
                    misconception="requires-grad-left-off",
                )
            if facts["moved"] or facts["left"] != right["left"]:
                raise Failed(f"{_named(name)} was changed: its values, device or graph", "the tensor as it was")


def _named(name: str) -> str:
    return f"a tensor {name}" if " " in name or name == "transposed" else f"a {name} tensor"


runs(random_sprites)


def _places(seen: Seen, wanted: Seen) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """For every device its name, what the student's function gave there, and what the reference's did."""
    for scenario, right in wanted["draws"].facts.items():
        yield right["wanted_device"], seen["draws"].facts[scenario], right


def _draws(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: draw for name, draw in facts.items() if isinstance(draw, dict) and "value" in draw}


@random_sprites.check(points=0.5)
def made_on_the_device(seen: Seen, wanted: Seen) -> None:
    """The sprites are made on the device: nothing is transferred."""
    for place, facts, _ in _places(seen, wanted):
        draws = _draws(facts)
        for draw in draws.values():
            if draw["moved"]:
                stayed = place != "cpu" and draw["device"] == "cpu"
                raise Failed(
                    f"{draw['moved']} bytes were copied between host and device",
                    "none: values made where they are needed",
                    draw["line"],
                    "result-thrown-away" if stayed else "made-on-cpu-then-moved",
                )
        refused = facts.get("refused")
        if refused is not None:
            # Without a generator the device was the right one: with it, the values came from the CPU.
            elsewhere = any(draw["device"] != place for draw in draws.values())
            key = "hard-coded-cuda" if place == "cpu" else None if elsewhere else "made-on-cpu-then-moved"
            raise Failed(
                f"a generator of {place} was refused: {refused['message']}",
                "values made on the device, where its generator is",
                refused["line"],
                key,
            )


@random_sprites.check(points=0.25)
def returns_sprites_there(seen: Seen, wanted: Seen) -> None:
    """It returns float32 of shape (count, 3, size, size), on the device passed in."""
    for place, facts, expected in _places(seen, wanted):
        for name, right in _draws(expected).items():
            draw = facts.get(name)
            if draw is None:  # a generator was refused, which another check says
                continue
            if draw["value"] is None:
                raise Failed(f"it returned {called(draw['class'])}", "a tensor")
            if draw["device"] != place:
                key = "hard-coded-cuda" if place == "cpu" else None
                raise Failed(f"told to use {place}, it made them on {draw['device']}", place, misconception=key)
            if draw["default_device"] != right["default_device"]:
                happened = f"{draw['default_device']} was left behind as the default device of the whole program"
                raise Failed(happened, "`device=` for these sprites alone")
            if draw["dtype"] != "float32" or draw["value"].dtype != "float32":
                raise Failed(f"their dtype is {draw['dtype']}", "float32")
            if draw["value"].shape != right["value"].shape:
                raise Failed(f"their shape is {draw['value'].shape}", f"{right['value'].shape}")


@random_sprites.check(points=0.25, needs=("runs", "returns_sprites_there"))
def spreads_evenly(seen: Seen, wanted: Seen) -> None:
    """The values are spread evenly over [0, 1], each of them drawn anew."""
    import numpy as np

    for _, facts, _ in _places(seen, wanted):
        for draw in _draws(facts).values():
            values = np.frombuffer(draw["value"].data, "float32")
            low, high = float(values.min()), float(values.max())
            if not (low >= 0 and high <= 1):
                raise Failed(f"the values run from {low:.2f} to {high:.2f}", "values in [0, 1]")
            # Of 3000 values a tenth of the range holds 10 % with a standard deviation of 0.55 %.
            tenths = np.minimum((values * 10).astype("uint8"), 9)
            share = np.bincount(tenths, minlength=10) / len(values)
            if abs(share - 0.1).max() > 0.04:
                worst = int(abs(share - 0.1).argmax())
                happened = f"{share[worst]:.0%} of the values lie between {worst / 10} and {(worst + 1) / 10}"
                raise Failed(happened, "about 10 % in every tenth")
            # Of 3000 floats with 24 bits hardly any two are alike.
            if (distinct := len(np.unique(values))) < 0.98 * len(values):
                raise Failed(f"only {distinct} of {len(values)} values differ", "a value of its own for each")


@random_sprites.check(points=0.5)
def follows_its_seed(seen: Seen, wanted: Seen) -> None:
    """The same seed gives the same sprites and another seed others, and a second draw is not the first again."""
    for _, facts, _ in _places(seen, wanted):
        for prefix, what in (("", "torch's own random state"), ("generator ", "a generator")):
            draws = {draw: facts.get(prefix + draw) for draw in ("first", "next", "again", "other")}
            value = {}
            for draw, found in draws.items():
                if found is None:
                    raise Failed(f"{what} was refused", "sprites drawn from it")
                if found["value"] is None:
                    raise Failed(f"it returned {called(found['class'])}", "a tensor")
                value[draw] = found["value"].data
            if value["first"] == value["next"]:
                raise Failed(f"with {what}, two draws in a row were the same", "new sprites: nothing is seeded inside")
            if value["first"] != value["again"]:
                raise Failed(f"with {what} seeded alike twice, the sprites differed", "the same sprites")
            if value["first"] == value["other"]:
                raise Failed(f"with {what} seeded differently, the sprites were the same", "other sprites")
