"""Kernels, the operators that launch them, and the registry of rules that say which.

A rule, `@kernel_rule("clone", "copy_")`, yields the kernels that CUDA launches for one family of
operators. The rules are in `kernel_rules/`, with a module for each subject.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from virtual_cuda.sizes import ITEM_SIZES

Shape = tuple[int, ...]

HALF: Final = ("float16", "bfloat16")
COPY: Final = "copy on the device"  # done by a copy engine or the driver: not a kernel

# Views, and what only allocates: nothing is launched.
VIEWS: Final = frozenset(
    """
    t view permute unsqueeze squeeze expand select slice transpose reshape _unsafe_view unbind split
    split_with_sizes unsafe_split unsafe_split_with_sizes chunk
    as_strided alias detach diagonal unfold movedim view_as_real view_as_complex real imag
    narrow swapaxes flatten unflatten _reshape_alias squeeze_ unsqueeze_ t_ transpose_ set_ resize_
    lift_fresh empty empty_like empty_strided new_empty new_empty_strided
    indices values _indices _values
    """.split()
)

# How the names of operators on lists of tensors begin, which optimizers use.
LIST_OPERATORS: Final = ("_foreach_", "_fused_ada", "_fused_sgd")


def item_size_of(dtype: str) -> int:
    """Bytes of an element; 4 for a dtype that is not known."""
    return ITEM_SIZES.get(dtype, 4)


def ceil_div(whole: int, part: int) -> int:
    """How many parts of this size are needed for the whole; the last one need not be full."""
    return -(-whole // part)


class Kernel(NamedTuple):
    """One launch: what it reads and writes, what it computes, and what has to wait its turn.

    Bytes and FLOPs are counted as if the device were used in full.
    """

    kind: str  # which of a GPU's figures for kernels are meant
    bytes: float = 0.0
    flops: float = 0.0  # at the rate of `unit`
    unit: str = "float32"
    # How long steps take that follow one after the other, however large the GPU is.
    seconds: float = 0.0


class Chip(NamedTuple):
    """What the rules must know of a GPU."""

    sms: int  # multiprocessors
    flops: dict[str, float]  # by unit, per second
    bandwidth: float
    tf32: bool = False  # for products; convolutions may always use it where there is such a unit
    bfloat16: bool = True  # whether tensor cores know it

    def flops_per_second(self, unit: str) -> float:
        """The rate of a unit; that of "float32" where the GPU has no such unit."""
        return self.flops.get(unit, self.flops["float32"])


class KernelCall(NamedTuple):
    """One operator of the ledger, with its dtype and shapes."""

    name: str  # without "aten." and without the overload
    dtype: str
    out: Shape | None  # of the result; None where it makes none
    inputs: Sequence[Shape]  # of the tensors that it was called with
    bytes: int  # newly allocated by it
    dim: int | None = None  # what it works along, where that is not the last dimension

    @property
    def item_size(self) -> int:
        """Bytes of an element."""
        return item_size_of(self.dtype)

    @property
    def channels_last(self) -> bool:
        """True for a convolution, a norm or a pool of tensors whose channels lie last in memory."""
        return self.dim == 1

    @property
    def is_misaligned(self) -> bool:
        """True for a product in half precision whose rows begin where tensor cores cannot copy."""
        return self.dim == 1

    @property
    def is_packed(self) -> bool:
        """True for a recurrent network whose sequences are packed, each with its own length."""
        return self.dim == 1

    @property
    def is_causal(self) -> bool:
        """True for attention in which every element looks at those before it only."""
        return self.dim == 1

    @property
    def as_single_precision(self) -> float:
        """Times as many bytes in single precision: what counts where elements go one by one."""
        return item_size_of("float32") / self.item_size

    def input_elements(self, index: int) -> int:
        """Elements of one of the inputs. Raises IndexError where there are fewer."""
        return math.prod(self.inputs[index])

    def input_bytes(self, index: int) -> int:
        """Bytes of one of the inputs. Raises IndexError where there are fewer."""
        return self.input_elements(index) * self.item_size

    @property
    def first_shape(self) -> Shape:
        """The shape of the first input; () where there is none."""
        return self.inputs[0] if self.inputs else ()

    @property
    def first_elements(self) -> int:
        """Elements of the first input; 1 where there is none."""
        return math.prod(self.first_shape)

    @property
    def first_bytes(self) -> int:
        """Bytes of the first input; those of one element where there is none."""
        return self.first_elements * self.item_size

    @property
    def out_elements(self) -> int:
        """Elements of the result; 1 where there is none."""
        return math.prod(self.out or ())

    @property
    def out_bytes(self) -> int:
        """Bytes of the result; those of one element where there is none."""
        return self.out_elements * self.item_size

    @property
    def largest_elements(self) -> int:
        """Elements of the largest tensor among the inputs and the result."""
        shapes = (*self.inputs, self.out or ())
        return max(math.prod(shape) for shape in shapes)

    @property
    def largest_bytes(self) -> int:
        """Bytes of the largest tensor among the inputs and the result."""
        return self.largest_elements * self.item_size

    @property
    def rows(self) -> int:
        """How many times the first input's last dimension fits into the largest tensor."""
        length = self.first_shape[-1] if self.first_shape else 1
        return self.largest_elements // max(length, 1)

    @property
    def bytes_moved(self) -> float:
        """Bytes read and written when each tensor is touched once."""
        elements_read = self.out_elements
        if self.inputs:
            elements_read = sum(math.prod(shape) for shape in self.inputs)
        written = self.bytes or self.first_bytes
        return elements_read * self.item_size + written

    @property
    def length_along(self) -> int:
        """Elements of the dimension that it works along, at least 1."""
        shape = self._shape_worked_on()
        if not shape:
            return 1
        return max(shape[self._dim_in(shape)], 1)

    @property
    def elements_behind(self) -> int:
        """Elements of all dimensions behind the one that it works along, multiplied."""
        shape = self._shape_worked_on()
        if not shape:
            return 1
        return math.prod(shape[self._dim_in(shape) + 1 :])

    def _shape_worked_on(self) -> Shape:
        """The shape of the first input, or of the result where there is no input."""
        return self.inputs[0] if self.inputs else self.out or ()

    def _dim_in(self, shape: Shape) -> int:
        """The index of the dimension that it works along: by default the last one."""
        if self.dim is None:
            return len(shape) - 1
        return self.dim % len(shape)


# ---- the registry of rules -----------------------------------------------------------------------

Kernels = Iterator[Kernel]
Rule = Callable[[KernelCall, Chip], Kernels]
RULES: Final[dict[str, Rule]] = {}  # by the name of the operator


def kernel_rule(*names: str) -> Callable[[Rule], Rule]:
    """A decorator that registers a function as the rule of these operators.

    A rule is called with a KernelCall and a Chip, and yields the kernels of the call. An operator
    has one rule only: a second one raises AssertionError. A rule may raise IndexError or ValueError
    where the ledger has too few shapes: the operator then counts as one pass over its memory.
    """

    def register(rule: Rule) -> Rule:
        """Add a rule to RULES under these names, and return it.

        Raises AssertionError for an operator that has a rule.
        """
        for name in names:
            assert name not in RULES, f"two rules for {name}"
            RULES[name] = rule
        return rule

    return register
