"""Random numbers, permutations and draws."""

from __future__ import annotations

from virtual_cuda.clock.kernel_rules.sorting import radix_sort
from virtual_cuda.clock.kernels import Chip, Kernel, KernelCall, Kernels, kernel_rule


@kernel_rule(
    *"rand randn rand_like randn_like randint randint_like normal normal_ uniform_".split(),
    *"bernoulli bernoulli_ exponential_ random_ native_dropout".split(),
)
def _drawing_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """One pass that draws numbers."""
    yield Kernel("random", call.bytes_moved)


@kernel_rule("randperm")
def _permutation_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Kernels that draw random keys and sort them."""
    elements = call.out_elements
    for _ in range(3):
        yield Kernel("random", elements * 8)
    yield from radix_sort(elements, 5)
    yield Kernel("pointwise", 0)


@kernel_rule("multinomial")
def _multinomial_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Kernels that check the weights, divide them by random numbers, and find the largest."""
    size = call.largest_bytes
    for _ in range(2):
        yield Kernel("reduction", size)
    for _ in range(7):
        yield Kernel("pointwise", 0)
    yield Kernel("random", size)
    yield Kernel("pointwise", 3 * size)
    yield Kernel("arg reduction", size)
