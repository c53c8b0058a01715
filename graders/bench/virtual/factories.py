"""Where are new device tensors made? In the kernels C++ asks for when a device is named and no tensor is given."""

from __future__ import annotations

import functools
import warnings
from typing import Any, Final

import torch

from graders.bench.virtual import autocast
from graders.bench.virtual.dispatch import allocate, general, mood, write
from graders.bench.virtual.memory import SMALL
from graders.bench.virtual.places import CPU, now, place_of
from graders.bench.virtual.tensor import wrap
from graders.bench.virtual.transfers import copy_from
from graders.bench.virtual.wording import forked
from graders.errors import DeviceClosed

aten: Final = torch.ops.aten
EMPTY: Final = (aten.empty.memory_format, aten.empty_strided.default)


def _create(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The one kernel behind every factory."""
    if op is aten._copy_from.default:
        return copy_from(*args)
    if now.gpu is None:
        device = kwargs.get("device")
        if device is not None and device.type == "lazy":
            raise DeviceClosed(f"cuda:{device.index or 0}")  # asked for by a tensor that has outlived its device
        raise forked() if mood.forked else AssertionError("Torch not compiled with CUDA enabled")
    if op not in EMPTY:
        return general(op, args, kwargs)
    place = place_of(kwargs["device"])
    assert place is not None
    elements = 1
    for size in args[0]:
        elements *= size
    nbytes = elements * (kwargs.get("dtype") or torch.get_default_dtype()).itemsize
    if nbytes > SMALL and nbytes < 1 << 62 and nbytes > place.memory.allowed - place.memory.live:
        allocate(place, nbytes)  # refused, before the host tries to find it
    kwargs["device"] = CPU
    kwargs.pop("pin_memory", None)
    inner = op(*args, **kwargs)
    block = allocate(place, inner.untyped_storage().nbytes())
    write(str(op), place, inner.nbytes)
    return wrap(inner, block)


class Kernels:
    """The registrations that make C++ ask us. Made once: they are inert while no virtual device is open."""

    def __init__(self) -> None:
        self.libraries = [torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")]
        everything, aten_only = self.libraries
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "Overriding a previously registered kernel": that is what is meant
            for key in ("CUDA", "Lazy"):
                everything.fallback(_create, key)
            aten_only.impl("_copy_from", copy_from, "Lazy")
            if torch.version.cuda:
                # A CUDA build has kernels of its own for these, which would ask for a driver.
                for name in (
                    "empty.memory_format",
                    "empty_strided",
                    "_efficientzerotensor",
                    "tril_indices",
                    "triu_indices",
                ):
                    base, _, overload = name.partition(".")
                    op = getattr(getattr(aten, base), overload or "default")
                    aten_only.impl(name, functools.partial(_create, op), "CUDA", allow_override=True)
            autocast.register(aten_only)

    def destroy(self) -> None:
        for library in self.libraries:
            library._destroy()
