"""The names of attributes of device tensors and CUDA graphs that programs must not find.

A sandbox loads the device's modules with other names for these. It runs this file by itself, before
it imports anything else of the package, so nothing is imported here.
"""

from __future__ import annotations

from typing import Final

# Of a tensor: the CPU tensor with its values, its memory,
# and the blocks of a sparse tensor's parts.
HIDDEN_IN_TENSORS: Final = ("_inner", "_block", "_parts")
# Of a captured graph: everything that it keeps of the inside of tensors.
HIDDEN_IN_GRAPHS: Final = ("_inside",)
