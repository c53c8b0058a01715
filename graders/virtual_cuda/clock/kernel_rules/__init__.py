"""The rules, and the kernels of an operator by them.

Operators without a rule are one pass over their tensors.
"""

from __future__ import annotations

import math

# To import a module of rules is to register them.
from virtual_cuda.clock.kernel_rules import attention as attention
from virtual_cuda.clock.kernel_rules import convolutions as convolutions
from virtual_cuda.clock.kernel_rules import copies as copies
from virtual_cuda.clock.kernel_rules import indexing as indexing
from virtual_cuda.clock.kernel_rules import linear_algebra as linear_algebra
from virtual_cuda.clock.kernel_rules import losses as losses
from virtual_cuda.clock.kernel_rules import multi_tensor as multi_tensor
from virtual_cuda.clock.kernel_rules import norms as norms
from virtual_cuda.clock.kernel_rules import pooling as pooling
from virtual_cuda.clock.kernel_rules import products as products
from virtual_cuda.clock.kernel_rules import random_numbers as random_numbers
from virtual_cuda.clock.kernel_rules import recurrent as recurrent
from virtual_cuda.clock.kernel_rules import reductions as reductions
from virtual_cuda.clock.kernel_rules import sorting as sorting
from virtual_cuda.clock.kernels import LIST_OPERATORS, RULES, VIEWS, Chip, Kernel, KernelCall


def kernels_of(call: KernelCall, chip: Chip) -> list[Kernel]:
    """The kernels that are launched for one operator; none for views and empty results."""
    if call.name in VIEWS:
        return []
    if call.out is not None and 0 in call.out:
        return []
    if call.name.startswith(LIST_OPERATORS):
        return list(multi_tensor.kernels_for_lists(call, chip))
    rule = RULES.get(call.name)
    if rule is None:
        return [_kernel_of_one_pass(call)]
    try:
        return list(rule(call, chip))
    except (IndexError, ValueError):  # of sparse and nested tensors the ledger has no shapes
        return [_kernel_of_one_pass(call)]


def _kernel_of_one_pass(call: KernelCall) -> Kernel:
    """The kernel of one pass over the tensors.

    Where a tensor is stretched to the shape of another, its elements are found one by one.
    """
    whole = call.out or call.first_shape
    for shape in call.inputs:
        if shape != whole and math.prod(shape) > 1:
            return Kernel("stretched", call.bytes_moved)
    return Kernel("pointwise", call.bytes_moved)
