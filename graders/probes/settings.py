"""Which settings of torch did a call leave changed? They are put back, so that what comes next finds them unchanged."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from graders.probes.calling import Call
from graders.probes.late import torch


def settled(call: Call, *args: Any, **kwargs: Any) -> tuple[Any, list[str]]:
    """What the student's function returned, and the names of the settings that are no longer what they were."""
    settings, seed, dice = _settings(), torch.initial_seed(), torch.default_generator.get_state()
    before = [read() for read, _ in settings.values()]
    changed: list[str] = []
    try:
        value = call(*args, **kwargs)
    finally:
        for (name, (read, restore)), setting in zip(settings.items(), before, strict=True):
            if read() != setting:
                changed.append(name)
                restore(setting)
        if torch.initial_seed() != seed:
            changed.append("the seed of the random numbers")
            torch.default_generator.set_state(dice)
    return value, changed


@lru_cache(maxsize=1)
def _settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """How each is read and put back; torch's own ways to ask for some of them take longer than the calls do."""
    c, cuda = torch._C, torch.cuda

    def current_gpu() -> int:
        return cuda.current_device() if cuda.is_initialized() else 0

    return {
        "the default device": (_default_device, torch.set_default_device),
        "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "the gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
        "the current GPU": (current_gpu, lambda index: cuda.set_device(index)),
        "the precision of matrix products": (c._get_float32_matmul_precision, c._set_float32_matmul_precision),
        "the detection of anomalies": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        "the use of deterministic algorithms": (c._get_deterministic_algorithms, torch.use_deterministic_algorithms),
        "the search for the fastest convolution": (c._get_cudnn_benchmark, c._set_cudnn_benchmark),
        "the choice of deterministic convolutions": (c._get_cudnn_deterministic, c._set_cudnn_deterministic),
    }


def _default_device() -> Any:
    # Not `torch.get_default_device()`, which makes a tensor to find out: there are devices that hold none.
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device
