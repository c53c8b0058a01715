"""`unwrap`: the model inside a wrapper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gpudojo.days.day8.multiple_gpus.declaration import unwrap
from gpudojo.days.day8.multiple_gpus.small_model import make_model
from gpudojo.grading.call import Call, nn, try_inputs
from gpudojo.grading.checks import check_scenarios, expect_mode_kept, runs, scenario_pairs
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Failed, Seen, returned_other_type, with_article

# ---- scenarios ---------------------------------------------------------------------------------


class Inside(Case, frozen=True):
    """The result for one model."""

    kind: str
    inside: str  # the type of the model inside
    same: bool
    training: bool
    parameters: list[str]  # the dtypes and devices of the model's, and whether they need gradients


def _own_module() -> Any:
    """A model that is not wrapped, with a part called `module`."""
    model = nn.Module()
    model.module = nn.Linear(2, 2)
    return model


class Wrapping(NamedTuple):
    """A model, and how it is wrapped."""

    model: Any
    wrap: Callable[[Any], Any]


def _call_unwrap(call: Call, wrapping: Wrapping) -> Inside:
    """Wrap a model, call the student's function and describe the result.

    Moves the setting's model to the device, and puts it into training mode. Raises StudentRaised.
    """
    model = wrapping.model
    model.to(call.device).train()
    found = call(wrapping.wrap(model))
    parameters = set()
    for parameter in model.parameters():
        frozen = ", frozen"
        if parameter.requires_grad:
            frozen = ""
        parameters.add(f"{parameter.dtype} on {parameter.device}{frozen}")
    return Inside(
        kind=type(found).__name__,
        inside=type(model).__name__,
        same=found is model,
        training=model.training,
        parameters=sorted(parameters),
    )


def _without_wrapper(model: Any) -> Any:
    return model


def _make_distributed_wrapper(model: Any) -> Any:
    """A DistributedDataParallel around a model.

    It is made without the process group that its constructor needs.
    """
    distributed = nn.parallel.DistributedDataParallel
    wrapper = distributed.__new__(distributed)
    nn.Module.__init__(wrapper)
    wrapper.module = model
    return wrapper


@unwrap.probe(machine="one gpu")
def wrappers(call: Call) -> Cases[Inside]:
    """Models inside of torch's two wrappers.

    Raises StudentRaised for an error about a closed device or memory.
    """
    around_module = "DataParallel around a model with a `module`"
    wrappings = {
        "DataParallel": Wrapping(make_model(), nn.DataParallel),
        "DistributedDataParallel": Wrapping(make_model(), _make_distributed_wrapper),
        around_module: Wrapping(_own_module(), nn.DataParallel),
    }
    return try_inputs(_call_unwrap, call, wrappings)


@unwrap.probe(machine="one gpu", edge=True)
def plain_models(call: Call) -> Cases[Inside]:
    """Models without a wrapper, of which some look like one.

    Raises StudentRaised for an error about a closed device or memory.
    """
    # The name of a class says nothing about it.
    branches = type("ParallelBranches", (nn.Sequential,), {})(make_model())
    wrappings = {
        "a Sequential called `ParallelBranches`": Wrapping(branches, _without_wrapper),
        "a Linear": Wrapping(nn.Linear(2, 2), _without_wrapper),
        "a model with a part called `module`": Wrapping(_own_module(), _without_wrapper),
    }
    return try_inputs(_call_unwrap, call, wrappings)


# ---- claims ------------------------------------------------------------------------------------

COPIED: Final = "copied-instead-of-returned"
COPYING: Final = ("deepcopy(", "copy(", "__class__(", "type(")  # where another model is made

runs(unwrap)


def _expect_same_state(found: Inside, right: Inside, which: str) -> None:
    """Raises Failed where the call changed the model.

    Judged are its mode, and device, dtype and `requires_grad` of its parameters.
    """
    expect_mode_kept(which, True, found.training)
    if found.parameters != right.parameters:
        found_parameters = ", ".join(found.parameters)
        right_parameters = ", ".join(right.parameters)
        happened = f"after the call the parameters of {which} are {found_parameters}"
        at = ("cpu(", "to(", "cuda(", "half(", "requires_grad_(", "return")
        expected = f"{right_parameters}, as before"
        raise Failed(happened, expected, at=at)


def _mistake_in(name: str) -> str | None:
    """The mistake behind a wrong answer in a scenario whose model has a `module`; else None."""
    if "`module`" in name:
        return "wrapper-guessed-by-attribute"
    return None


@check_scenarios(unwrap, wrappers, points=0.25)
def finds_the_model_inside(scenario: str, found: Inside, right: Inside) -> None:
    """It returns the model inside `DataParallel` and `DistributedDataParallel`."""
    if not found.same:
        returned = with_article(found.kind)
        if found.kind == found.inside:
            returned = f"another {found.kind}"
        is_wrapper = found.kind in ("DataParallel", "DistributedDataParallel")
        at = () if is_wrapper else (*COPYING, "return")
        if _mistake_in(scenario) and not is_wrapper:
            at = ("hasattr(", "getattr(", *at)
        happened = f"for {scenario} it returned {returned}"
        expected = "the same model that was wrapped"
        key = _mistake_in(scenario)
        if found.kind == found.inside and key is None:
            key = COPIED
        raise Failed(happened, expected, None, key, at)
    _expect_same_state(found, right, f"the model inside {scenario}")


def _other_model(name: str, found: Inside) -> Failed:
    """The failure of a model without a wrapper that did not come back itself; returned, not raised.

    `name` is the scenario.
    """
    key = _mistake_in(name)
    if found.kind == found.inside and key is None:
        happened = f"for {name} it returned another {found.kind}, not the model itself"
        return Failed(happened, "the model that was passed in", None, COPIED, COPYING)
    return returned_other_type(found.kind, "the model itself", f"for {name} ", key)


@unwrap.check(points=0.25)
def leaves_other_models_whole(seen: Seen, wanted: Seen) -> None:
    """A model that is not wrapped is returned unchanged; of one that is, the model inside."""
    if not any(found.same for found in seen[wrappers].values()):
        happened = "no wrapper was taken off, so it is not known which models have one"
        kinds = [(found.kind, found.inside) for found in seen[wrappers].values()]
        if kinds and all(kind == inside for kind, inside in kinds):
            happened = "never did the model inside a wrapper come back itself, but another one"
            raise Failed(happened, "the model inside a wrapper", None, COPIED, COPYING)
        raise Failed(happened, "the model inside a wrapper")
    for name, error in seen[plain_models].errors.items():
        seen.about(plain_models.name, name)
        at = () if "`module`" in name else ("== .__name__", ".__name__")
        happened = f"for {name} it raised {error.short}"
        raise Failed(happened, "the model itself", error.line, at=at)
    for name, found, right in scenario_pairs(seen[plain_models], wanted[plain_models]):
        if not found.same:
            raise _other_model(name, found)
        _expect_same_state(found, right, name)
