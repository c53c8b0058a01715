"""What CUDA launches for an operator: the kernels, and what each of them has to do.

A rule, `@_rule("clone", "copy_")`, yields the kernels of one family of operators. Operators without
a rule are one pass over their tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from virtual_cuda.sizes import ITEM_SIZES

Shape = tuple[int, ...]

HALF: Final = ("float16", "bfloat16")
COPY: Final = "copy on the device"  # done by a copy engine or the driver: not a kernel


def item_size(dtype: str) -> int:
    """Bytes of an element; 4 for a dtype that is not known."""
    return ITEM_SIZES.get(dtype, 4)


class Kernel(NamedTuple):
    """One launch: what it reads and writes, and what it computes.

    Both are counted as if the device were used in full.
    """

    kind: str
    bytes: float = 0.0
    flops: float = 0.0  # at the rate of `unit`
    unit: str = "float32"


class KernelCall(NamedTuple):
    """One operator of the ledger."""

    name: str  # without "aten." and without the overload
    dtype: str
    out: Shape | None  # of the result; None where it makes none
    given: Sequence[Shape]  # of the tensors it was given
    bytes: int  # newly allocated by it
    dim: int | None = None  # what it works along, where that is not the last dimension

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return item_size(self.dtype)

    @property
    def first(self) -> Shape:
        """The shape of the first tensor given; () where there is none."""
        return self.given[0] if self.given else ()

    @property
    def first_elements(self) -> int:
        """Elements of the first tensor given; 1 where there is none."""
        return math.prod(self.first)

    @property
    def out_elements(self) -> int:
        """Elements of the result; 1 where there is none."""
        return math.prod(self.out or ())

    @property
    def largest(self) -> int:
        """Elements of the largest tensor in sight."""
        return max(map(math.prod, (*self.given, self.out or ())), default=1)

    @property
    def rows(self) -> int:
        """The number of times that the first tensor's last dimension fits into the largest one."""
        length = self.first[-1] if self.first else 1
        return self.largest // max(length, 1)

    @property
    def moved(self) -> float:
        """Bytes read and written when each tensor is touched once."""
        read = sum(map(math.prod, self.given)) if self.given else self.out_elements
        written = self.bytes or self.first_elements * self.item
        return read * self.item + written

    @property
    def along(self) -> tuple[int, int, int]:
        """Elements before the dimension that it works along, in it, and behind it."""
        shape = self.given[0] if self.given else self.out or ()
        if not shape:
            return 1, 1, 1
        dim = len(shape) - 1 if self.dim is None else self.dim % len(shape)
        return math.prod(shape[:dim]), max(shape[dim], 1), math.prod(shape[dim + 1 :])


class Chip(NamedTuple):
    """What the rules must know of a GPU."""

    sms: int  # multiprocessors
    flops: dict[str, float]  # by unit, per second
    bandwidth: float
    tf32: bool = False  # for products; convolutions may always use it where there is such a unit
    bfloat16: bool = True  # whether tensor cores know it


Rule = Callable[[KernelCall, Chip], Iterator[Kernel]]
_RULES: Final[dict[str, Rule]] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of these operators.

    An operator has one rule only: a second one fails an assertion.
    """

    def register(rule: Rule) -> Rule:
        for name in names:
            assert name not in _RULES, f"two rules for {name}"
            _RULES[name] = rule
        return rule

    return register


# Views, and what only allocates: nothing is launched.
VIEWS: Final = frozenset(
    """
    t view permute unsqueeze squeeze expand select slice transpose reshape _unsafe_view unbind split
    split_with_sizes unsafe_split unsafe_split_with_sizes chunk
    as_strided alias detach diagonal unfold movedim view_as_real view_as_complex real imag
    narrow swapaxes flatten unflatten _reshape_alias squeeze_ unsqueeze_ t_ transpose_ set_ resize_ lift_fresh
    empty empty_like empty_strided new_empty new_empty_strided
    """.split()
)


def kernels_of(call: KernelCall, chip: Chip) -> list[Kernel]:
    """The kernels that are launched for one operator; none for views and empty results."""
    if call.name in VIEWS:
        return []
    if call.out is not None and 0 in call.out:
        return []
    if call.name.startswith(("_foreach_", "_fused_")):
        return list(_multi_tensor_kernels(call, chip))
    rule = _RULES.get(call.name)
    if rule is None:
        return [_pointwise(call)]
    try:
        return list(rule(call, chip))
    except (IndexError, ValueError):  # of sparse and nested tensors the ledger has no shapes
        return [_pointwise(call)]


def _pointwise(call: KernelCall) -> Kernel:
    """The kernel of one pass over the tensors.

    Where a tensor is stretched to the shape of another, its elements are found one by one.
    """
    whole = call.out or call.first
    for shape in call.given:
        if shape != whole and math.prod(shape) > 1:
            return Kernel("stretched", call.moved)
    return Kernel("pointwise", call.moved)


def _kernel_of_seconds(kind: str, seconds: float, chip: Chip, size: float = 0.0) -> Kernel:
    """A kernel that takes so many seconds on a GPU like the H200.

    It takes long because its steps follow one after the other.
    """
    return Kernel(kind, size, seconds * chip.flops["float32"])


# ---- copies, reductions, indexing ----------------------------------------------------------------


@_rule("clone", "copy_", "_to_copy")
def _copies(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """A copy as it lies, or a kernel for another dtype or other strides.

    A copy to the host has no kernel here: it is a row of its own.
    """
    if call.out is not None and not call.given:
        yield Kernel(COPY, 2 * call.out_elements * call.item)
    elif call.name == "clone" and call.out is not None:
        yield Kernel("strided copy", call.moved)
    elif call.out is not None:
        yield Kernel("pointwise", call.moved)
    elif len(call.given) > 1:
        yield Kernel("strided copy", call.moved)


@_rule("_local_scalar_dense")
def _item(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """One number is copied to the host."""
    yield Kernel(COPY)


@_rule("select_backward", "slice_backward", "diagonal_backward")
def _view_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """The gradient is cleared, then the part that the view showed is copied into it."""
    yield Kernel("pointwise", call.bytes)
    yield Kernel(COPY, 2 * math.prod(call.given[0]) * call.item)


@_rule("zeros_like", "zero_", "zeros", "new_zeros")
def _zeros(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """One pass that only writes."""
    shape = call.out or call.first
    yield Kernel("pointwise", math.prod(shape) * call.item)


# Reductions whose result is of another dtype than what is read.
_OTHER_RESULT: Final = ("argmin", "argmax", "any", "all", "count_nonzero")
# Reductions that tell a place as well, or two figures: loads do not run ahead.
_SLOW_COLUMNS: Final = ("max", "min", "argmax", "argmin", "var", "std")
_ONE_BLOCK: Final = 8192  # elements that one block adds up for one result
_WARP: Final = 32
_WARP_BYTES: Final = 1000  # what memory could move in the time that a warp takes for one result
_COLUMN_THREADS: Final = 128
_MANY_STEPS: Final = 256  # of one thread, from which several blocks share a column
_SHARED_STEPS: Final = 100


@_rule(
    *"sum mean argmin argmax max min any all prod amax amin norm linalg_vector_norm std var".split(),
    *"std_mean var_mean aminmax nansum count_nonzero".split(),
)
def _reduction(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """A kernel that depends on how what is added up lies in memory: side by side, or apart."""
    elements = call.first_elements
    item = 4 if call.name in _OTHER_RESULT else call.item
    results = max(call.out_elements, 1)
    length = max(elements // results, 1)  # of what makes one result
    size = elements * item + call.bytes
    if call.dtype == "bool" and call.name == "sum":  # as integers first
        yield Kernel("pointwise", elements * 9)
    shape = call.first
    kept = _without_trailing_ones(call.out or ())
    if call.dim is None and shape[: len(kept)] == kept:
        yield _reduction_of_neighbours(call, kept, results, length, size)
    elif len(kept) == 1 < len(shape) - 1 and shape[1:2] == kept:  # all but the channels
        yield Kernel("channel reduction", size)
    else:
        yield _reduction_of_columns(call, chip, results, length, size)


def _without_trailing_ones(shape: Shape) -> Shape:
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def _reduction_of_neighbours(
    call: KernelCall, kept: Shape, results: int, length: int, size: float
) -> Kernel:
    """The kernel that adds up what lies side by side in memory.

    Several blocks share a long result; a warp or less makes a short one.
    """
    if length > _ONE_BLOCK:
        return Kernel("shared reduction", size)
    lanes = min(1 << (length.bit_length() - 1), _WARP)
    finds_place = call.name.startswith("arg") or (call.name in ("max", "min") and bool(kept))
    kind = "arg reduction" if finds_place else "reduction"
    return Kernel(kind, size + _WARP_BYTES * results * lanes / _WARP)


def _reduction_of_columns(
    call: KernelCall, chip: Chip, results: int, length: int, size: float
) -> Kernel:
    """The kernel that adds up what lies apart in memory.

    A thread adds up one element after the other; several blocks share a long column.
    """
    lanes = max(min(results // 4, _WARP), 1)
    steps: float = length / max(_COLUMN_THREADS // lanes, 1)
    if steps >= _MANY_STEPS or length > _ONE_BLOCK:
        steps = _SHARED_STEPS
    slower = 3.5 if call.name in _SLOW_COLUMNS else 1.0
    return _kernel_of_seconds("column reduction", steps * 50e-9 * slower, chip, size)


@_rule("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")
def _scan(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """Running sums: down a column, row by row, or over all in two kernels."""
    moved = 2 * call.largest * call.item
    if call.dim is not None:  # a thread goes down a column
        _, length, _ = call.along
        yield _kernel_of_seconds("column scan", length * 0.15e-6, chip)
    elif len(call.first) > 1:
        yield Kernel("row scan", moved)
    else:
        yield Kernel("scan", 0)
        yield Kernel("scan", moved)


_BLOCK_SORTS: Final = (128, 1024, 4096)  # elements for which one block has room


@_rule("sort", "argsort", "kthvalue", "median", "mode", "msort", "nanmedian")
def _sort(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """One value of each row, a sort of each row by one block, or a radix sort of everything."""
    elements = call.largest
    _, length, _ = call.along
    if call.name in ("kthvalue", "median", "nanmedian") and length < elements:
        yield _one_of_each_row(elements // length, length, chip)
        return
    if length <= _BLOCK_SORTS[-1]:
        # One block sorts a row in shared memory; keys and places are copied beside it.
        for _ in range(3):
            yield Kernel(COPY, elements * 8)
        for _ in range(2):
            yield Kernel("pointwise", elements * 8)
        room = next(size for size in _BLOCK_SORTS if length <= size)
        yield Kernel("block sort", elements // length * room * 90)
        return
    yield Kernel(COPY, elements * 8)
    yield Kernel("pointwise", elements * 8)
    passes = call.item + (3 if elements > length else 0)
    yield from _radix_sort(elements, passes)
    if call.name not in ("sort", "argsort", "msort"):
        for _ in range(2):
            yield Kernel("pointwise", 0)


_ONE_TILE: Final = 2048  # elements that one block sorts by itself


def _radix_sort(elements: int, passes: int) -> Iterator[Kernel]:
    """A histogram and its sums, then a pass for each byte of a key."""
    if elements <= _ONE_TILE:
        yield Kernel("radix sort", elements * 24)
        return
    yield Kernel("radix sort", elements * 16)
    yield Kernel("pointwise", 0)
    for _ in range(passes):
        yield Kernel("radix sort", elements * 24)


def _one_of_each_row(rows: int, length: int, chip: Chip) -> Kernel:
    """A block for each row counts digits and goes over the row again and again."""
    waves = -(-rows // chip.sms)
    return _kernel_of_seconds("row selection", waves * (2e-6 + length * 9e-9), chip)


@_rule("topk")
def _selection(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """Short rows by a block each; of long ones several blocks count digits, a byte at a time."""
    elements = call.largest
    _, length, _ = call.along
    if length <= 1024:
        yield _one_of_each_row(elements // length, length, chip)
    else:
        for _ in range(4):
            yield Kernel("selection", elements * call.item)
            for _ in range(3):
                yield Kernel("selection", 0)
        for _ in range(3):
            yield Kernel("selection", elements * call.item)
    yield Kernel("selection", 0)


@_rule("_unique2", "unique_consecutive", "unique_dim", "_unique")
def _unique(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """A sort, then neighbours are compared; the host is told how many there are."""
    elements = call.first_elements
    if call.name != "unique_consecutive":
        yield from _radix_sort(elements, call.item)
    yield Kernel("scan", 0)
    yield Kernel("scan", elements * call.item)
    yield Kernel(COPY)


@_rule("randperm")
def _permutation(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """Random keys are sorted."""
    elements = call.out_elements
    for _ in range(3):
        yield Kernel("random", elements * 8)
    yield from _radix_sort(elements, 5)
    yield Kernel("pointwise", 0)


@_rule("multinomial")
def _multinomial(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """Sums of the weights, and draws among them."""
    for _ in range(4):
        yield Kernel("scan", 2 * call.largest * call.item)


@_rule("histc")
def _histogram_between(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """The counts are cleared, then each element is counted."""
    yield Kernel("pointwise", call.bytes)
    yield Kernel("scatter", call.first_elements * call.item if call.given else 0)


@_rule("bincount")
def _histogram(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """The host reads the least and the largest element; then each element is counted."""
    size = call.first_elements * call.item
    for _ in range(2):
        yield Kernel("shared reduction", size)
        yield Kernel(COPY)
    yield Kernel("pointwise", call.bytes)
    yield Kernel("scatter", size)


@_rule(
    *"rand randn rand_like randn_like randint randint_like normal normal_ uniform_ bernoulli bernoulli_".split(),
    *"exponential_ random_ native_dropout".split(),
)
def _random(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """One pass that draws numbers."""
    yield Kernel("random", call.moved)


@_rule("embedding", "take")
def _gather(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """Rows are copied as they lie."""
    yield Kernel("gather", 2 * call.out_elements * call.item)


@_rule("gather", "index_select")
def _select_rows(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """Elements are found one by one."""
    yield Kernel("index", 2 * call.out_elements * call.item)


_MANY_ELEMENTS: Final = 1 << 20


@_rule("index", "_unsafe_index")
def _index(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """By a mask, which is counted first; or by numbers, where whole rows are copied as they lie."""
    size = 2 * call.out_elements * call.item
    if _is_by_mask(call):
        yield from _nonzero(call, chip)
        yield Kernel("gather", size)
    elif _takes_few_rows(call):
        yield Kernel("gather", size)
    else:
        yield Kernel("index", size)


def _is_by_mask(call: KernelCall) -> bool:
    """True if a mask selects a part of the tensor.

    A mask has the shape of the tensor, or of its first dimensions.
    """
    if len(call.given) < 2 or not call.first or call.out is None:
        return False
    index = call.given[1]
    return index == call.first[: len(index)] and call.out_elements != call.first_elements


def _takes_few_rows(call: KernelCall) -> bool:
    if len(call.given) != 2 or len(call.first) < 2:
        return False
    return len(call.out or ()) > len(call.given[1]) and call.out_elements < _MANY_ELEMENTS


@_rule("nonzero", "masked_select")
def _nonzero(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """Those that count are counted, the host is told how many, and their places are written."""
    elements = call.first_elements
    for _ in range(2):
        yield Kernel("scan", elements)
    yield Kernel(COPY)
    yield Kernel("scan", elements * 8)
    yield Kernel("pointwise", elements * 8)


_CROWD: Final = 100  # elements that are added to one place, from which they wait for each other


@_rule(
    *"index_add index_add_ scatter_add scatter_add_ index_put index_put_ _index_put_impl_ scatter".split()
)
def _scatter(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """A copy, unless it is in place; then elements are written or added where the index says."""
    if not call.name.endswith("_"):
        yield Kernel(COPY, 2 * call.bytes)
    added = math.prod(call.given[-1]) if call.given else 1
    if "_add" in call.name and added > _CROWD * call.first_elements:
        yield _kernel_of_seconds("atomic scatter", added * 85e-12, chip)
        return
    kind = "row scatter" if call.name.startswith("index_add") else "scatter"
    yield Kernel(kind, 2 * call.largest * call.item)


@_rule("embedding_dense_backward")
def _embedding_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """Many indices are sorted first, so that rows of the same index are added up together."""
    indices = math.prod(call.given[1]) if len(call.given) > 1 else 1
    if indices > 3072:
        yield from _radix_sort(indices, 8)
        for _ in range(6):
            yield Kernel("scan", indices * 8)
    yield Kernel("pointwise", call.bytes)
    yield Kernel("embedding gradient", 2 * math.prod(call.given[0]) * call.item)


# ---- losses and normalisation --------------------------------------------------------------------


@_rule("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data")
def _softmax(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """One pass along the last dimension; along another one, threads go down it, three times."""
    if call.dim is None:
        yield Kernel("softmax", call.moved)
        return
    _, length, inner = call.along
    threads = 1  # for each column; with few columns, several
    if inner <= 64 <= length:
        while inner * threads * 2 <= 1024 and threads * 2 <= length:
            threads *= 2
    seconds_a_step = 0.21e-6 if "backward" in call.name else 0.55e-6
    yield _kernel_of_seconds("softmax", length / threads * seconds_a_step, chip, call.moved)


@_rule("logsumexp")
def _log_of_sum(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """The largest is found and taken off, then exponentials are added up."""
    whole = call.first_elements * call.item
    result = call.out_elements * call.item
    for size in (whole, result):
        yield Kernel("reduction", whole)
        for _ in range(2):
            yield Kernel("pointwise", 2 * size)
    for _ in range(3):
        yield Kernel("pointwise", 2 * result)


# Losses whose mean or sum is a kernel of its own; the number of passes before it.
_LOSSES: Final = {
    "mse_loss": 1, "l1_loss": 1, "smooth_l1_loss": 1, "huber_loss": 1, "binary_cross_entropy": 1, "kl_div": 1,
    "soft_margin_loss": 1, "binary_cross_entropy_with_logits": 5,
}  # fmt: skip


@_rule(*_LOSSES)
def _mean_loss(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """Passes over all elements, then their mean, if one is asked for."""
    for _ in range(_LOSSES[call.name]):
        yield Kernel("pointwise", call.moved)
    if not call.out:
        yield from _reduction(call._replace(name="mean", given=call.given[:1], out=()), chip)


@_rule("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")
def _mean_loss_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """The gradient is cleared, then written."""
    yield Kernel("pointwise", call.bytes)
    yield Kernel("stretched", call.moved)


@_rule("allclose", "equal")
def _comparison(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """Elements are compared, and the host is told the answer."""
    for _ in range(13 if call.name == "allclose" else 1):
        yield Kernel("pointwise", call.moved)
    yield Kernel("shared reduction", call.largest)
    yield Kernel(COPY)


@_rule("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """One block picks the figure of each target."""
    yield Kernel("loss", call.rows * 64)


@_rule("nll_loss_backward", "nll_loss2d_backward")
def _nll_loss_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """The gradient is cleared, then written where the targets are."""
    yield Kernel("pointwise", call.bytes)
    yield from _nll_loss(call, chip)


@_rule("native_layer_norm", "_fused_rms_norm")
def _layer_norm(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """A block for each row."""
    moved = 2 * call.largest * call.item
    yield _kernel_of_seconds("norm", call.rows * 2.1e-9, chip, moved)


@_rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def _layer_norm_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """The gradient of the input, and those of weight and bias, in two passes."""
    moved = 3 * call.largest * call.item
    yield Kernel("norm", moved)
    yield Kernel("norm gradient", moved)
    yield Kernel("reduction", 0)


@_rule("native_group_norm")
def _group_norm(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """Means of the groups, factors of the channels, one pass."""
    size = call.largest * call.item
    yield Kernel("reduction", size)
    yield Kernel("pointwise", 0)
    yield Kernel("pointwise", 2 * size)


@_rule("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit")
def _batch_norm(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """One pass in evaluation; in training by cuDNN, or without pixels by kernels of torch's own."""
    size = call.out_elements * call.item
    moved = call.largest * call.item
    if call.out is not None:
        channels = call.out[1] if len(call.out) > 1 else 1
        if call.bytes < size + 8 * channels:  # nothing is kept for backward: evaluation
            yield Kernel("stretched", 2 * size)
            return
    if call.given and len(call.given[0]) == 2:
        yield Kernel("column reduction", moved)
        yield Kernel("pointwise", 0)
        yield Kernel("stretched", 2 * moved)
        return
    yield Kernel("batch norm", 2 * moved * _few_channels(call, chip))


def _few_channels(call: KernelCall, chip: Chip) -> float:
    """The factor by which few channels are slower.

    One block works on one channel, so that the other multiprocessors have no work.
    """
    channels = call.given[0][1] if len(call.given[0]) > 1 else 1
    return max(chip.sms / max(channels, 1), 1.0)


@_rule(
    *"avg_pool2d max_pool2d_with_indices max_pool3d_with_indices avg_pool3d".split(),
    *"upsample_bilinear2d upsample_nearest2d upsample_bicubic2d grid_sampler_2d".split(),
)
def _pool(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """One pass over windows of the input."""
    written = call.bytes or call.out_elements * call.item
    yield Kernel("pool", math.prod(call.given[0]) * call.item + written)


@_rule("constant_pad_nd")
def _pad(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """The result is filled, then the input is copied into it."""
    yield Kernel("pointwise", call.bytes)
    yield Kernel("strided copy", 2 * math.prod(call.given[0]) * call.item)


@_rule("im2col", "col2im")
def _columns(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """A kernel for each picture."""
    count = call.first[0] if len(call.first) > 2 else 1
    for _ in range(count):
        yield Kernel("pool", call.moved / count)


@_rule("max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward")
def _pool_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """A pass over the gradient, which is cleared before for a maximum."""
    if call.name.startswith("max"):
        yield Kernel("pointwise", call.bytes)
    yield Kernel("pool gradient", call.moved)


@_rule("native_batch_norm_backward", "cudnn_batch_norm_backward", "native_group_norm_backward")
def _batch_norm_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """One kernel, with a block for each channel."""
    moved = 3 * call.largest * call.item
    yield Kernel("batch norm gradient", moved * _few_channels(call, chip))


# ---- optimizers ----------------------------------------------------------------------------------

_CHUNK: Final = 65536  # elements that one block of a multi-tensor kernel handles
_BLOCKS: Final = 320  # of one launch
_TENSORS: Final = (110, 64, 48, 36, 30)  # of one launch, by the number of lists
_LISTS: Final = {
    "lerp": 2, "addcmul": 3, "addcdiv": 3, "sqrt": 2, "copy": 2, "add.List": 2, "neg": 2, "mul.List": 2,
}  # fmt: skip


def _multi_tensor_kernels(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """Launches for lists of tensors: each takes so many tensors, and so many pieces of them."""
    stem = call.name.removeprefix("_foreach_").removeprefix("_fused_").rstrip("_")
    lists = _LISTS.get(stem, 2 if call.bytes > 0 else 1)
    if call.name.startswith("_fused_"):
        lists = 5
    passes = lists if call.bytes else lists + 1
    most_tensors = _TENSORS[lists - 1]
    # What is in the launch that is being filled.
    tensors = 0
    pieces: list[int] = []
    for shape in call.given:
        count = math.prod(shape)
        tensors += 1
        for start in range(0, count, _CHUNK):
            pieces.append(min(_CHUNK, count - start))
            is_last_piece = start + _CHUNK >= count
            if len(pieces) == _BLOCKS or (tensors == most_tensors and is_last_piece):
                yield _multi_tensor_kernel(stem, pieces, passes * call.item, chip)
                tensors = 0 if is_last_piece else 1
                pieces = []
    if pieces:
        yield _multi_tensor_kernel(stem, pieces, passes * call.item, chip)


def _multi_tensor_kernel(stem: str, pieces: list[int], item: int, chip: Chip) -> Kernel:
    """One launch over pieces of so many elements, with so many bytes moved for each of them.

    A multiprocessor has its share of the bandwidth: few blocks take as long as all of them would.
    """
    kind = "multi-tensor" if stem in ("add", "mul", "sub") else "multi-tensor function"
    return Kernel(kind, max(sum(pieces), max(pieces) * chip.sms / 4) * item)


@_rule("_amp_foreach_non_finite_check_and_unscale_")
def _unscale(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """A multi-tensor product; the last two tensors are the scale and what is found."""
    listed = call._replace(name="_foreach_mul_", given=call.given[:-2])
    yield from _multi_tensor_kernels(listed, chip)


# ---- products ------------------------------------------------------------------------------------


def _unit(dtype: str, chip: Chip, tf32: bool) -> str:
    """The unit of `Chip.flops` that computes products of this dtype."""
    if dtype == "float16" or (dtype == "bfloat16" and chip.bfloat16):
        return "float16"
    if dtype == "bfloat16":
        return "float32"
    if tf32 and dtype == "float32" and "tf32" in chip.flops:
        return "tf32"
    return dtype


class Tile(NamedTuple):
    """A part of the result of a product that one block makes."""

    rows: int
    columns: int
    efficiency: float


_TENSOR_CORE_TILES: Final = (
    Tile(128, 256, 1.0),
    Tile(128, 128, 0.9),
    Tile(128, 64, 0.8),
    Tile(64, 64, 0.7),
)
_PLAIN_TILES: Final = (Tile(64, 64, 1.0),)
_SHORTEST: Final = 128  # the least depth of a part when a product is split along it
_FREE: Final = 2  # tiles are doubled by splits while so many times more would fit


def product(
    m: int, n: int, k: int, batch: int, dtype: str, chip: Chip, tf32: bool = False
) -> list[Kernel]:
    """The kernels of `batch` products of an m × k with a k × n matrix; the first one multiplies.

    Tiles of the result are made in waves over the multiprocessors; few rows are read like vectors.
    """
    item = item_size(dtype)
    moved = batch * (m * k + k * n + m * n) * item
    if min(m, n) == 1:
        return [Kernel("vector product", moved)]
    # The tile with which the multiplication is fastest.
    unit = _unit(dtype, chip, tf32)
    best = math.inf
    splits = 1
    for tile in _TENSOR_CORE_TILES if unit in ("float16", "tf32") else _PLAIN_TILES:
        split, flops = _tiled(m, n, k, batch, tile, chip)
        if flops < best:
            best = flops
            splits = split
    # The memory may be slower than the arithmetic.
    rate = chip.flops.get(unit, chip.flops["float32"])
    kind = "half product" if unit == "float16" else "product"
    kernels = [Kernel(kind, 0.0, max(best, moved * rate / chip.bandwidth), unit)]
    # Of small products in single precision cuBLAS adds up parts in another kernel, unless there are
    # few rows.
    few_tiles = -(-m // 64) * -(-n // 64) * 2 <= chip.sms and batch == 1
    is_small = few_tiles and min(m, k) > 16 and max(n, k) < 4096
    if unit == "float32" and (splits > 1 or is_small):
        kernels.append(Kernel("split product", m * n * batch * item * splits))
    return kernels


def _tiled(m: int, n: int, k: int, batch: int, tile: Tile, chip: Chip) -> tuple[int, float]:
    """The number of parts that the depth is split into, and the FLOPs that whole waves compute.

    The depth of a product is the dimension that is added up; a wave is one tile for each
    multiprocessor.
    """
    tiles = batch * -(-m // tile.rows) * -(-n // tile.columns)
    split = 1
    while tiles * split * _FREE <= chip.sms and k // (split * 2) >= _SHORTEST:
        split *= 2
    waves = -(-tiles * split // chip.sms)
    depth = -(-k // split)
    flops = waves * chip.sms * tile.rows * tile.columns * depth * 2 / tile.efficiency
    if waves < 3:  # too few tiles to hide that they wait for memory
        flops *= 1.2
    return split, flops


# Elements of the result for each one of the depth: with fewer, there are not enough tiles.
_DEEP: Final = 128


@_rule(
    "mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "_addmm_activation", "linear", "matmul"
)
def _products(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """The product of the last two tensors given; with a bias to add, the depth is not split."""
    # The sizes of an m × k and a k × n matrix; a vector is a matrix with one row or column.
    left = call.given[-2]
    right = call.given[-1]
    m = math.prod(left[-2:-1]) if len(left) > 1 else 1
    k = left[-1] if left else 1
    n = right[-1] if len(right) > 1 else 1
    batch = math.prod(left[:-2])
    if call.name == "dot":
        yield Kernel("reduction", 2 * k * call.item)
        yield Kernel("reduction", 0)
        return
    # Only `addmm`, with its bias, may have other kernels than a plain product.
    kernels = product(m, n, k, batch, call.dtype, chip, chip.tf32)
    if call.name != "addmm" or len(kernels) == 1 or max(m, n // 8) < 64:
        yield from kernels
    elif k * _DEEP < m * n:
        yield kernels[0]
    else:
        linear = Kernel("linear product", 0.0, chip.sms * 32 * 64 * k * 2.0)
        if m < 64:
            yield linear
            return
        # The result is cleared before, and the bias added behind.
        yield Kernel("pointwise")
        yield linear
        yield Kernel("pointwise", 2 * m * n * call.item)


@_rule("convolution", "cudnn_convolution", "_convolution")
def _convolution(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """A product, or a kernel of its own for one channel.

    Then come the bias, and changes of the layout around it.
    """
    source = call.given[0]
    weight = call.given[1]
    assert call.out is not None
    size_in = math.prod(source) * call.item
    size_out = math.prod(call.out) * call.item
    is_depthwise = weight[1] == 1 and len(source) > 1 and source[1] > 1 and weight[0] >= source[1]
    if is_depthwise:  # one channel each: no product at all
        yield Kernel("depthwise", size_in + size_out)
        return
    if source[1] == 1:  # pixel by pixel, without tensor cores
        pixels = math.prod(call.out) / weight[0]
        seconds_a_pixel = 64e-12 + 0.34e-12 * math.prod(weight)
        yield _kernel_of_seconds("direct convolution", pixels * seconds_a_pixel, chip)
    else:
        yield _convolution_as_product(call.out, weight, source, call.dtype, chip)
    if len(call.given) > 2:
        yield Kernel("stretched", 2 * size_out)
    if _is_layout_changed(source, weight):
        yield Kernel("layout", 2 * size_in)
        yield Kernel("layout", 2 * size_out)
        yield Kernel("layout", 2 * math.prod(weight) * call.item)


def _is_layout_changed(source: Shape, weight: Shape) -> bool:
    """True if cuDNN changes the layout for tensor cores, which want the channels last."""
    is_deep = source[1] >= 16 or math.prod(weight[1:]) >= 128
    has_window = math.prod(weight[2:]) > 1
    return is_deep and math.prod(source) >= 3 << 17 and has_window


def _convolution_as_product(
    out: Shape, weight: Shape, source: Shape, dtype: str, chip: Chip
) -> Kernel:
    """One kernel with the FLOPs of all windows.

    A transposed convolution goes from its result to its input.
    """
    is_transposed = len(out) > 1 and out[1] != weight[0]
    pixels = math.prod(source if is_transposed else out)
    flops = 2.0 * pixels * math.prod(weight[1:])
    moved = (math.prod(out) + math.prod(source)) * item_size(dtype)
    kind = "half convolution" if dtype in HALF else "convolution"
    return Kernel(kind, moved, flops, _unit(dtype, chip, tf32=True))


@_rule("convolution_backward", "cudnn_convolution_backward")
def _convolution_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """The gradients of the input, if it is wanted, of the weights, and of the bias.

    The gradient of the weights is made in parts that are added up.
    """
    gradient, source, weight = call.given[:3]
    dtype = call.dtype if call.dtype in ITEM_SIZES else "float32"
    item = ITEM_SIZES[dtype]
    weight_size = 2 * math.prod(weight) * item
    kernel = _convolution_as_product(gradient, weight, source, dtype, chip)
    kernel = kernel._replace(kind=f"{kernel.kind} gradient")
    laid_out_anew = [source, gradient]
    if call.out is not None:  # of the input
        yield kernel
        yield Kernel("layout", weight_size)
        laid_out_anew.insert(0, source)
    yield kernel
    yield Kernel("reduction", weight_size)
    yield Kernel("layout", weight_size)
    if math.prod(gradient) >= 1 << 18:
        for shape in laid_out_anew:
            yield Kernel("layout", 2 * math.prod(shape) * item)
    yield Kernel("channel reduction", math.prod(gradient) * item)


# ---- attention and recurrent layers --------------------------------------------------------------

_SHORTEST_HEAD: Final = 64  # shorter heads leave threads without work


def _attention_kernel(call: KernelCall, moved: float, flops: float) -> Kernel:
    """The kernel of attention, on tensor cores for half precision."""
    if call.dtype in HALF:
        return Kernel("half attention", moved, flops, "float16")
    return Kernel("attention", moved, flops, "float32")


def _attention_products(query: Shape, key: Shape) -> float:
    """Multiplications and additions of one of the two products of attention, counted once each."""
    return math.prod(query[:-1]) * max(query[-1], _SHORTEST_HEAD) * key[-2]


@_rule("_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention")
def _attention(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """One kernel; a mask is made into what is added before."""
    flops = 4.0 * _attention_products(call.given[0], call.given[1])
    if len(call.given) > 3:
        yield Kernel("stretched", math.prod(call.given[3]) * 5)
    yield _attention_kernel(call, call.moved, flops)


@_rule(
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention_backward",
)
def _attention_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """Sums of the gradient for each row, then one kernel."""
    query = call.given[0]
    flops = 10.0 * _attention_products(query, call.given[1])
    yield Kernel("pointwise", 3 * math.prod(query) * call.item)
    yield Kernel("reduction", math.prod(query) * call.item)
    yield _attention_kernel(call, call.moved, flops)


@_rule("_transformer_encoder_layer_fwd")
def _encoder_layer(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """The fast path of a layer in evaluation: four products, attention, and what lies between."""
    source = call.given[0]
    weights = [shape for shape in call.given[1:] if len(shape) == 2]
    rows = math.prod(source[:-1])
    width = source[-1]
    size = rows * width * call.item
    for shape in weights[:1]:
        yield from product(rows, shape[0], shape[1], 1, call.dtype, chip, chip.tf32)
    yield Kernel("pointwise", 6 * size)
    yield _attention_kernel(call, 4 * size, 4.0 * rows * width * source[-2])
    for shape in weights[1:]:
        yield from product(rows, shape[0], shape[1], 1, call.dtype, chip, chip.tf32)
    yield Kernel("pointwise", 3 * size)
    yield Kernel("norm", 2 * size)
    yield Kernel("norm", 2 * size)


@_rule(
    "_thnn_fused_lstm_cell",
    "_thnn_fused_lstm_cell_backward_impl",
    "_thnn_fused_gru_cell",
    "_thnn_fused_gru_cell_backward_impl",
)
def _cell(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """The gates of one step; backward also sums for the biases."""
    yield Kernel("gates", call.moved)
    if call.name.endswith("impl"):
        yield Kernel("column reduction", math.prod(call.given[0]) * call.item)


@_rule("_cudnn_rnn")
def _recurrent(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """All layers and steps of a recurrent network."""
    yield from _recurrent_layers(call, chip, backward=False)


@_rule("_cudnn_rnn_backward")
def _recurrent_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """All layers and steps of a recurrent network, backwards."""
    yield from _recurrent_layers(call, chip, backward=True)


_PERSISTENT: Final = 1 << 17  # weights that multiprocessors keep while they make all steps


def _recurrent_layers(call: KernelCall, chip: Chip, backward: bool) -> Iterator[Kernel]:
    """Layer by layer; a layer with few weights is one kernel that makes all steps."""
    data = call.given[0]
    steps, batch = (data[0], data[1]) if len(data) == 3 else (1, data[0])
    weights = [shape for shape in call.given[1:] if len(shape) == 2]
    for of_input, of_state in zip(weights[::2], weights[1::2], strict=False):
        gates, hidden = of_state
        if gates * hidden <= _PERSISTENT:
            yield from _persistent_layer(call, chip, steps, batch, of_input, of_state, backward)
        else:
            yield from _stepwise_layer(call, chip, steps, batch, of_input, of_state, backward)


def _persistent_layer(
    call: KernelCall,
    chip: Chip,
    steps: int,
    batch: int,
    of_input: Shape,
    of_state: Shape,
    backward: bool,
) -> Iterator[Kernel]:
    """A product over all steps, and one kernel that keeps the weights and makes all steps."""
    gates, hidden = of_state
    size = steps * batch * gates * call.item
    if gates == 3 * hidden:  # a GRU adds its biases apart
        yield Kernel("pointwise", size)
    for _ in range(3 if backward else 1):
        yield product(steps * batch, of_input[0], of_input[1], 1, call.dtype, chip)[0]
    seconds_a_step = 0.25e-6 + 35e-12 * gates * hidden
    yield _kernel_of_seconds("persistent steps", steps * seconds_a_step, chip)
    if backward:
        yield Kernel("gates", size)
        yield Kernel("gates", size)
        yield Kernel("reduction", size)


def _stepwise_layer(
    call: KernelCall,
    chip: Chip,
    steps: int,
    batch: int,
    of_input: Shape,
    of_state: Shape,
    backward: bool,
) -> Iterator[Kernel]:
    """A product over all steps; for each step a product with the state, and the gates."""
    gates, hidden = of_state
    for _ in range(2 if backward else 1):
        yield from product(steps * batch, of_input[0], of_input[1], 1, call.dtype, chip)
    step = product(batch, gates, hidden, 1, call.dtype, chip)[0]
    for _ in range(steps):
        yield step._replace(kind="step product")
    for _ in range(steps):
        yield Kernel("gates", batch * gates * call.item * 2)
    if backward:
        yield from product(gates, hidden, steps * batch, 1, call.dtype, chip)


# ---- linear algebra ------------------------------------------------------------------------------

# Factorisations go column by column: seconds for each, on a GPU like the H200, and how many columns
# a kernel handles.
_BY_COLUMN: Final = {
    "linalg_inv_ex": (1.9e-6, 14), "linalg_lu_factor_ex": (1.4e-6, 30), "_linalg_solve_ex": (2.1e-6, 26),
    "linalg_cholesky_ex": (0.34e-6, 100), "linalg_qr": (2.8e-6, 8), "geqrf": (2.4e-6, 16), "_linalg_svd": (16e-6, 0.5),
    "_linalg_eigh": (10.5e-6, 0.5), "linalg_eig": (30e-6, 0.5), "linalg_lstsq": (5e-6, 8), "_linalg_det": (1.4e-6, 30),
    "_linalg_slogdet": (1.4e-6, 30), "linalg_pinv": (16e-6, 0.5), "triangular_solve": (0.5e-6, 100),
    "linalg_solve_triangular": (0.5e-6, 100), "cholesky_solve": (1e-6, 50), "linalg_ldl_factor_ex": (1.4e-6, 30),
}  # fmt: skip


@_rule(*_BY_COLUMN)
def _factorisation(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """Kernels that go column by column; matrices of a batch are handled beside each other."""
    shape = call.first if len(call.first) > 1 else (1, 1)
    columns = min(shape[-2:])
    batch = math.prod(shape[:-2])
    seconds, together = _BY_COLUMN[call.name]
    launches = max(round(columns / together), 3)
    waves = max(batch / chip.sms, 1)  # as many matrices at a time as there are multiprocessors
    slower = _H200_FLOPS_OF_ONE / max(chip.flops["float32"], 1) * chip.sms
    total = seconds * columns * waves * slower
    for _ in range(launches):
        yield Kernel("factorisation", 0.0, total / launches * chip.flops["float32"])


# FLOPs of one multiprocessor: one column after the other is its work.
_H200_FLOPS_OF_ONE: Final = 51e12 / 132


@_rule("_fft_r2c", "_fft_c2c", "_fft_c2r")
def _fourier(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """One pass, or three where it does not fit into shared memory."""
    for _ in range(3 if call.largest > 1 << 14 else 1):
        yield Kernel("pointwise", 2 * call.largest * call.item)


@_rule("_cdist_forward", "_euclidean_dist")
def _distances(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """By a product: squares, sums and ones beside each side, then a root."""
    left = call.given[0]
    right = call.given[1]
    for shape in (left, right):
        size = math.prod(shape) * call.item
        yield Kernel("pointwise", 2 * size)
        yield Kernel("reduction", size)
        yield Kernel("pointwise", 0)
        yield Kernel("pointwise", 2 * size)
    yield Kernel("pointwise", 2 * math.prod(left) * call.item)
    yield from product(
        left[-2], right[-2], left[-1] + 2, math.prod(left[:-2]), call.dtype, chip, chip.tf32
    )[:1]
    for _ in range(2):
        yield Kernel("pointwise", 2 * call.out_elements * call.item)
