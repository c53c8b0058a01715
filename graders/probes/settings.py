"""Which settings of torch did a call leave changed? They are put back, so that what comes next finds them unchanged."""

from __future__ import annotations

from typing import Any

from graders.probes.calling import Call
from graders.probes.late import torch


def settled(call: Call, *args: Any, **kwargs: Any) -> tuple[Any, list[str]]:
    """What the student's function returned, and the names of the settings that are no longer what they were."""
    before = _now()
    after = before
    try:
        value = call(*args, **kwargs)
    finally:
        after = _now()
        if after != before:
            _restore(before)
    return value, [name for name, setting in after.items() if setting != before[name]]


def _now() -> dict[str, Any]:
    # Not `torch.get_default_device()`, which makes a tensor to find out: there are devices that hold none.
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return {
        "the default device": None if context is None else context.device,
        "the default dtype": torch.get_default_dtype(),
        "the gradient mode": torch.is_grad_enabled(),
        "the seed of the random numbers": torch.initial_seed(),
    }


def _restore(before: dict[str, Any]) -> None:
    torch.set_default_device(before["the default device"])
    torch.set_default_dtype(before["the default dtype"])
    torch.set_grad_enabled(before["the gradient mode"])
