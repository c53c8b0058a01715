"""The names of attributes of device tensors and CUDA graphs that a tensor on a GPU does not have.

What lists or copies the attributes of a tensor leaves them out.
"""

from __future__ import annotations

from typing import Final

# Of a tensor: the CPU tensor with its values, its memory,
# and the blocks of a sparse tensor's parts.
HIDDEN_IN_TENSORS: Final = ("_virtual_inner", "_virtual_block", "_virtual_parts")
# Of a captured graph: everything that it keeps of the inside of tensors.
HIDDEN_IN_GRAPHS: Final = ("_inside",)
