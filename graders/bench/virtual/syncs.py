"""Which operators make the host wait for the device, and how often?"""

from __future__ import annotations

import warnings
from time import perf_counter
from typing import Any, Final

from graders.bench.ledger.rows import SYNC
from graders.bench.virtual import asserts
from graders.bench.virtual.places import now
from graders.bench.sites import site

_WARNING: Final = "called a synchronizing CUDA operation"

# Operator (without overload) -> what the ledger calls the wait. The count per call is in COUNTS where it is not one.
KINDS: Final = {
    "_local_scalar_dense": "item",
    "equal": "equal",
    "nonzero": "nonzero",
    "masked_select": "masked_select",
    "_unique2": "unique",
    "unique_dim": "unique",
    "unique_consecutive": "unique",
    "unique_dim_consecutive": "unique",
    "_unique": "unique",
}


def of(func: Any) -> Any:
    """A function(args, kwargs, out) that writes down the waits this operator causes, or None."""
    kind = KINDS.get(func._schema.name.partition("::")[2])
    if kind is None:
        return None

    def tick(args: Any, kwargs: Any, out: Any) -> None:
        note(kind)

    return tick


def note(kind: str, times: int = 1, explicit: bool = False) -> None:
    """Write down that the host waited, and warn or raise as `torch.cuda.set_sync_debug_mode` asks."""
    gpu = now.gpu
    if gpu is None:
        return
    code, offset = site(2)
    for _ in range(times):
        gpu.ledger.rows.append((SYNC, perf_counter(), code, offset, kind, explicit))
        if gpu.sync_debug and not explicit:
            if gpu.sync_debug == 2:
                raise RuntimeError(_WARNING)
            warnings.warn(_WARNING, UserWarning, stacklevel=2)
    asserts.report(gpu)
