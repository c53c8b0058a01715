"""Settings of torch that a student's function may change: how each is read, restored and set.

One table, `SETTINGS`, is for probes, which restore what a call has changed, and for checks, which
show the line that changed it. A setting is known by its name, which students read and which is
stored in evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from virtual_cuda import hooks

from gpudojo.grading.lazy_torch import torch


class Setting(NamedTuple):
    """One setting of torch."""

    name: str  # as students read it: "it changed the default dtype"
    setters: tuple[str, ...]  # source patterns that set it, for the line to show
    read: Callable[[], Any]
    restore: Callable[[Any], Any]  # gets what `read` returned before


@dataclass(frozen=True)
class _RandomNumbers:
    """Torch's generator on the CPU. Two are equal if their seeds are, whatever was drawn."""

    seed: int
    state: Any = field(compare=False)


def _default_device() -> Any:
    """The default device, or None for none.

    `torch.get_default_device()` makes a tensor to find out, which a virtual Mac cannot hold. Where
    a release of torch lacks the private name, the setting counts as never changed.
    """
    context = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    mode = getattr(context, "device_context", None)
    if mode is None:
        return None
    return mode.device


def _set_default_device(device: Any) -> None:
    """Set the default device of torch; None for none.

    Raises TorchUnsupported if this release of torch cannot forget one.
    """
    if device is None:
        hooks.forget_default_device()
    else:
        torch.set_default_device(device)


def _current_gpu() -> int:
    """The index of the current GPU. It is 0 where CUDA has not been used."""
    if not torch.cuda.is_initialized():
        return 0
    return torch.cuda.current_device()


def _random_numbers() -> _RandomNumbers:
    return _RandomNumbers(torch.initial_seed(), torch.default_generator.get_state())


# Some are read from `torch._C`: the public getters take longer than most calls of students do.
SETTINGS: Final = (
    Setting(
        "the default device",
        ("set_default_device(",),
        _default_device,
        _set_default_device,
    ),
    Setting(
        "the default dtype",
        ("set_default_dtype(",),
        lambda: torch.get_default_dtype(),
        lambda dtype: torch.set_default_dtype(dtype),
    ),
    Setting(
        "the gradient mode",
        ("set_grad_enabled(",),
        lambda: torch.is_grad_enabled(),
        lambda enabled: torch.set_grad_enabled(enabled),
    ),
    Setting(
        "the current GPU",
        ("set_device(",),
        _current_gpu,
        lambda index: torch.cuda.set_device(index),
    ),
    Setting(
        "the precision of matrix products",
        ("set_float32_matmul_precision(", ".allow_tf32"),
        lambda: torch._C._get_float32_matmul_precision(),
        lambda precision: torch._C._set_float32_matmul_precision(precision),
    ),
    Setting(
        "the detection of anomalies",
        ("set_detect_anomaly(",),
        lambda: torch.is_anomaly_enabled(),
        lambda enabled: torch.autograd.set_detect_anomaly(enabled),
    ),
    Setting(
        "the use of deterministic algorithms",
        ("use_deterministic_algorithms(",),
        lambda: torch._C._get_deterministic_algorithms(),
        lambda enabled: torch.use_deterministic_algorithms(enabled),
    ),
    Setting(
        "the search for the fastest convolution",
        (".benchmark",),
        lambda: torch._C._get_cudnn_benchmark(),
        lambda enabled: torch._C._set_cudnn_benchmark(enabled),
    ),
    Setting(
        "the choice of deterministic convolutions",
        (".deterministic",),
        lambda: torch._C._get_cudnn_deterministic(),
        lambda enabled: torch._C._set_cudnn_deterministic(enabled),
    ),
    Setting(
        "the seed of the random numbers",
        ("manual_seed(", "seed(", "manual_seed_all("),
        _random_numbers,
        lambda before: torch.default_generator.set_state(before.state),
    ),
)


def setters_of(name: str) -> tuple[str, ...]:
    """The source patterns that set the setting of this name; none for an unknown name."""
    for setting in SETTINGS:
        if setting.name == name:
            return setting.setters
    return ()


def read_settings() -> list[Any]:
    """The values of all settings, in the order of `SETTINGS`."""
    return [setting.read() for setting in SETTINGS]


def restore_settings(before: list[Any]) -> list[str]:
    """Restore the settings of torch that differ from these values, and return their names.

    `before` is what `read_settings` returned. Raises what torch raises if one cannot be set.
    """
    changed = []
    for setting, value in zip(SETTINGS, before, strict=True):
        if setting.read() != value:
            changed.append(setting.name)
            setting.restore(value)
    return changed


class SettingsByFile:
    """Settings that students' files make when they are loaded, each for its own functions alone.

    Somebody who turns gradients off in one file does so for that file: the functions of the others
    are called with the settings that were there before.
    """

    def __init__(self) -> None:
        self._usual = read_settings()
        self._by_file: dict[str, list[Any]] = {}
        self._current: str | None = None  # the file whose settings are in place

    def begin_loading(self) -> None:
        """Restore the settings from before any file was loaded."""
        restore_settings(self._usual)
        self._current = None

    def end_loading(self, file: str) -> None:
        """Remember the settings as this file has left them."""
        self._by_file[file] = read_settings()
        self._current = file

    def are_of(self, file: str) -> bool:
        """True if this file was the last one whose settings were put in place."""
        return self._current == file

    def put_in_place(self, file: str) -> None:
        """Restore the settings that this file had left when it was loaded.

        Raises KeyError before that.
        """
        restore_settings(self._by_file[file])
        self._current = file
