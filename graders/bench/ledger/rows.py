"""The raw rows a bench appends while student code runs: plain tuples, because one is written per operation.

A row is cheap to write and is given its meaning later, by `records_of` in `ledger.py`. Every row starts
with its kind and the moment (`time.perf_counter()`), followed by the two halves of a site: the code object
of the student's frame and the byte offset of its current instruction. Turning those into a line number
costs more than an operation does, so it is left to the reader. Both are None when no student frame was
found.
"""

from __future__ import annotations

from typing import Any, Final

Row = tuple[Any, ...]

# (kind, at, code, offset, name, device, mode, autocast, bytes, live)
#   name: "aten.add.Tensor"; device: "cuda:0"; mode: GRAD | INFERENCE bits; autocast: None or a dtype;
#   bytes: what its outputs newly occupy on the device; live: what is allocated there afterwards
OPERATION: Final = 0
# (kind, at, code, offset, direction, bytes, pinned, non_blocking, source, target)
TRANSFER: Final = 1
# (kind, at, code, offset, what, explicit)
SYNC: Final = 2
# (kind, at, code, offset, module, training, mode, devices)   closed by an END row
FORWARD: Final = 3
# (kind, at, code, offset)                                    closed by an END row
BACKWARD: Final = 4
# (kind, at, code, offset, optimizer)                         closed by an END row
OPTIMIZER_STEP: Final = 5
# (kind, at, code, offset, call)                              call: "scale", "unscale_", "step", "update"
SCALER_CALL: Final = 6
# (kind, at, code, offset, device, bytes, live)               an allocation outside any operation; bytes < 0 is a free
ALLOCATION: Final = 7
# (kind, at, None, None, index of the row it closes)
END: Final = 8

GRAD: Final = 1
INFERENCE: Final = 2
