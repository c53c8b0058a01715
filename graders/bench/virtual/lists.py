"""What does `_foreach_*` do with lists that mix devices? It takes them element by element, as CUDA's slow path does."""

from __future__ import annotations

from typing import Any, Final

import torch

from graders.bench.virtual import wording
from graders.bench.virtual.placement import on_host, tensors_in
from graders.bench.virtual.wording import label_of

aten: Final = torch.ops.aten
_SINGLE: Final = {
    "clamp_max": ("clamp_max", "Tensor", "Tensor"),
    "clamp_min": ("clamp_min", "Tensor", "Tensor"),
    "copy": ("copy", "default", "default"),
    "maximum": ("clamp_min", "Tensor", "Tensor"),
    "minimum": ("clamp_max", "Tensor", "Tensor"),
    "pow": ("pow", "Tensor_Tensor", "Tensor"),
}


def _single(packet: str, overload: str) -> Any:
    """The operator that `_foreach_*` calls for each element when the fast path is closed."""
    name = packet.removeprefix("_foreach_")
    in_place = name.endswith("_")
    base = name.rstrip("_")
    if base in ("addcdiv", "addcmul"):
        target, kind = base, "default"
    elif base == "lerp":
        target, kind = base, "Tensor" if overload == "List" else "Scalar"
    else:
        target, *kinds = _SINGLE.get(base, (base, "Tensor", "Tensor"))
        kind = kinds[in_place]
    return getattr(getattr(aten, target + ("_" if in_place else "")), kind)


def one_by_one(func: Any, args: Any, kwargs: Any) -> Any:
    """The slow path of `_foreach_*`: lists that mix devices are taken element by element."""
    packet, overload = func._schema.name.partition("::")[2], func._overloadname
    first = next(value for value in args if isinstance(value, (list, tuple)))
    other = args[1] if overload == "Tensor" and len(args) > 1 else None
    if isinstance(other, torch.Tensor) and len({label_of(t) for t in first}) == 1:
        where = label_of(first[0])
        if not on_host(other) and label_of(other) != where:
            raise wording.scalar_elsewhere(where, label_of(other))
    results = []
    for position in range(len(first)):
        element = [[value[position]] if isinstance(value, (list, tuple)) else value for value in args]
        labels = {label_of(tensor) for tensor in tensors_in(element)}
        if len(labels) == 1:
            out = func(*element, **kwargs)
            results.append(out[0] if out else None)
            continue
        alone = [value[0] if isinstance(value, list) else value for value in element]
        single = _single(packet, overload)
        if packet.startswith("_foreach_addc"):  # the factor is named there
            results.append(single(*alone[:3], value=alone[3] if len(alone) > 3 else kwargs.get("value", 1)))
        else:
            results.append(single(*alone, **kwargs))
    return None if packet.endswith("_") else results
