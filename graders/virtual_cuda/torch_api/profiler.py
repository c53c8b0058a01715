"""`torch.profiler` on the virtual device.

torch's own profiler records. Around the work of the device this package adds events, called marks
(`profiler_marks.py`), and afterwards turns what is inside them into work of the device
(`profiled_events.py`, `profiled_trace.py`). Where a GPU was chosen, the times of the device are
modelled ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.profiler

from virtual_cuda.device.tensor import operator_hooks
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.torch_api.profiled_events import events_as_on_gpu
from virtual_cuda.torch_api.profiled_trace import TracedResults
from virtual_cuda.torch_api.profiler_marks import MarkingHook

_profile: Final[Any] = torch.autograd.profiler.profile
_Activity: Final = torch.profiler.ProfilerActivity
_recording: Final[list[Any]] = []  # the profilers that record now
_marking: Final = MarkingHook()  # among the hooks for operators while a profiler records


def _init_profiler(
    original: Any,
    profiler: Any,
    enabled: bool = True,
    *,
    use_cuda: bool = False,
    use_device: Any = None,
    **kwargs: Any,
) -> None:
    """Call `torch.autograd.profiler.profile.__init__`, the `original`.

    A profiler for "cuda" records the host, too, because the device's work is done there; it notes
    whether the host is to be shown. Raises what `original` raises.
    """
    if not use_cuda and use_device != "cuda":
        original(profiler, enabled, use_device=use_device, **kwargs)
        return
    profiler._host_shown = kwargs.get("use_cpu", True)
    kwargs["use_cpu"] = True
    original(profiler, enabled, **kwargs)
    profiler.use_device = "cuda"
    profiler.use_cuda = use_cuda


def _start_recording(original: Any, profiler: Any) -> Any:
    """Start a profiler by `original`; with the first one, operators are marked.

    Gives and raises what `original` does.
    """
    if not _recording:
        operator_hooks.append(_marking)
    _recording.append(profiler)
    return original(profiler)


def _stop_recording(original: Any, profiler: Any, *error: Any) -> Any:
    """Stop a profiler by `original`, and wrap what it has recorded.

    After the last one, operators are no longer marked. `error` is what `__exit__` gets; its answer
    is given.
    """
    if profiler in _recording:
        _recording.remove(profiler)
        if not _recording:
            operator_hooks.remove(_marking)
    suppresses = original(profiler, *error)
    results = getattr(profiler, "kineto_results", None)
    if results is not None:
        profiler.kineto_results = TracedResults(results, profiler.use_device is not None)
    return suppresses


def _parse_results(original: Any, profiler: Any, *args: Any, **kwargs: Any) -> Any:
    """The events of a profiler that has stopped, as a GPU would have them.

    `original` reads them; they are changed in place.
    """
    events = original(profiler, *args, **kwargs)
    with_host = getattr(profiler, "_host_shown", True)
    return events_as_on_gpu(events, profiler.use_device, with_host)


@torch_patches()
def _profiler_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of torch's profiler; what a release lacks is left out."""
    yield around(_profile, "__init__", _init_profiler)
    yield around(_profile, "_start_trace", _start_recording)
    yield around(_profile, "__exit__", _stop_recording)
    yield around(_profile, "_parse_kineto_results", _parse_results)
    for module in (torch.profiler, torch.profiler.profiler):
        yield module, "supported_activities", lambda: {_Activity.CPU, _Activity.CUDA}
