"""Notes in the ledger from where on products of float32 may use tensor cores (TF32).

The modelled clock reads that: with TF32 a product takes less time.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any, Final

import torch

from virtual_cuda.device.state import VirtualGpu
from virtual_cuda.ledger.rows import StreamRow
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.torch_api.compatibility import allows_tf32
from virtual_cuda.torch_api.streams import note_in_ledger

# The functions of C++ that set it; those that a release lacks are left out.
_SETTERS: Final = (
    "_set_cublas_allow_tf32",
    "_set_float32_matmul_precision",
    "_set_fp32_precision_setter",
)


def _set_and_note(setter: Any, *args: Any) -> Any:
    """Call a setter of torch, and note in the ledger if that has turned TF32 on or off.

    Gives and raises what the setter does; raises CUDA's error after an assertion on the device has
    failed.
    """
    before = allows_tf32()
    result = setter(*args)
    after = allows_tf32()
    if after is not before:
        note_in_ledger("tf32", argument=int(after))
    return result


def _note_if_allowed_before(gpu: VirtualGpu) -> None:
    """Note in a new device's ledger that TF32 was allowed before it opened."""
    if allows_tf32():
        row = StreamRow(
            at=perf_counter(),
            code=None,
            offset=None,
            device="cuda:0",
            stream=0,
            what="tf32",
            other=1,
        )
        gpu.ledger.rows.append(row)


@torch_patches()
def _tf32_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of the functions in C++ that allow or forbid TF32.

    What holds now is noted in the ledger, and `opening` is told to note it for each later device.
    """
    opening.on_next_device.append(_note_if_allowed_before)
    _note_if_allowed_before(opening.gpu)
    for name in _SETTERS:
        yield around(torch._C, name, _set_and_note)
