"""What had a call copied to the device when it raised? What was copied and not used was thrown away."""

from __future__ import annotations

from typing import Any

from graders.probes.calling import Call


def copied(call: Call, **tensors: Any) -> dict[str, int | None]:
    """The line that copied each of these tensors of the CPU, known by its size; none where it was not copied."""
    found: dict[str, int | None] = {}
    for transfer in call.ledger.transfers_to_device():
        for name, tensor in tensors.items():
            if transfer.bytes == tensor.nbytes:
                found.setdefault(name, call.line_of(transfer))
    return found
