"""What CUDA launches for an operator: the kernels, and what each of them has to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

Shape = tuple[int, ...]

ITEM: Final = {
    "float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int32": 4,
    "float16": 2, "bfloat16": 2, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
HALF: Final = ("float16", "bfloat16")
COPY: Final = "copy on the device"  # done by a copy engine or the driver: not a kernel


class Kernel(NamedTuple):
    """One launch: what it reads and writes, and what it computes, both as if the device were used in full."""

    kind: str
    bytes: float = 0.0
    flops: float = 0.0  # at the rate of `unit`
    unit: str = "float32"


class KernelCall(NamedTuple):
    """One operator of the ledger."""

    name: str  # without "aten." and without the overload
    dtype: str
    out: Shape | None
    given: Sequence[Shape]
    bytes: int  # newly allocated by it
    dim: int | None = None  # what it works along, where that is not the last dimension

    @property
    def item(self) -> int:
        return ITEM.get(self.dtype, 4)

    @property
    def largest(self) -> int:
        """Elements of the largest tensor in sight."""
        return max(map(math.prod, (*self.given, self.out or ())), default=1)

    @property
    def moved(self) -> float:
        """Bytes read and written when each tensor is touched once."""
        read = sum(map(math.prod, self.given)) if self.given else math.prod(self.out or ())
        return read * self.item + (
            self.bytes or math.prod(self.given[0] if self.given else ()) * self.item
        )

    @property
    def along(self) -> tuple[int, int, int]:
        """Elements before the dimension that it works along, in it, and behind it."""
        shape = self.given[0] if self.given else self.out or ()
        if not shape:
            return 1, 1, 1
        dim = (len(shape) - 1 if self.dim is None else self.dim) % len(shape)
        return math.prod(shape[:dim]), max(shape[dim], 1), math.prod(shape[dim + 1 :])


class Chip(NamedTuple):
    """What the rules must know of a GPU."""

    sms: int
    flops: dict[str, float]  # by unit, per second
    bandwidth: float
    tf32: bool = False  # for products; convolutions may always use it where there is such a unit
    bfloat16: bool = True  # whether tensor cores know it


Rule = Callable[[KernelCall, Chip], Iterator[Kernel]]
_RULES: Final[dict[str, Rule]] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
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
    """What is launched for one operator; those that no rule knows are one pass over their tensors."""
    if call.name in VIEWS or (call.out is not None and 0 in call.out):
        return []
    if call.name.startswith("_foreach_") or call.name.startswith("_fused_"):
        return list(_lists(call, chip))
    rule = _RULES.get(call.name)
    try:
        return list(rule(call, chip) if rule else _pointwise(call))
    except (IndexError, ValueError):  # of sparse and nested tensors the ledger has no shapes
        return list(_pointwise(call))


def _pointwise(call: KernelCall) -> Iterator[Kernel]:
    """One pass; where a tensor is stretched to the shape of another, elements are found one by one."""
    whole = call.out or (call.given[0] if call.given else ())
    stretched = any(shape != whole and math.prod(shape) > 1 for shape in call.given)
    yield Kernel("stretched" if stretched else "pointwise", call.moved)


def _seconds(kind: str, seconds: float, chip: Chip, size: float = 0.0) -> Kernel:
    """A kernel that is bound by what follows one after the other, so long on a GPU like the H200."""
    return Kernel(kind, size, seconds * chip.flops["float32"])


# ---- copies, reductions, indexing ------------------------------------------------------------------------------------


@_rule("clone", "copy_", "_to_copy")
def _copies(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    if call.out is not None and not call.given:
        yield Kernel(COPY, 2 * math.prod(call.out) * call.item)
    elif (
        call.out is not None or len(call.given) > 1
    ):  # another dtype or other strides; to the host, the copy follows
        strided = call.name == "clone" or call.out is None
        yield Kernel("strided copy" if strided else "pointwise", call.moved)


@_rule("_local_scalar_dense")
def _item(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    yield Kernel(COPY)


@_rule("select_backward", "slice_backward", "diagonal_backward")
def _view_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    yield Kernel("pointwise", call.bytes)
    yield Kernel(COPY, 2 * math.prod(call.given[0]) * call.item)


@_rule("zeros_like", "zero_", "zeros", "new_zeros")
def _filled(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    yield Kernel(
        "pointwise", math.prod(call.out or (call.given[0] if call.given else ())) * call.item
    )


_OTHER_RESULT: Final = (
    "argmin",
    "argmax",
    "any",
    "all",
    "count_nonzero",
)  # of another dtype than what is read
_ONE_BLOCK: Final = 8192  # elements that one block adds up for one result
_REDUCTIONS: Final = (
    "sum mean argmin argmax max min any all prod amax amin norm linalg_vector_norm std var"
)


@_rule(*_REDUCTIONS.split(), "std_mean", "var_mean", "aminmax", "nansum", "count_nonzero")
def _reduction(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    elements = math.prod(call.given[0]) if call.given else 1
    item = 4 if call.name in _OTHER_RESULT else call.item
    results = max(math.prod(call.out or ()), 1)
    if call.dtype == "bool" and call.name == "sum":  # as integers first
        yield Kernel("pointwise", elements * 9)
    kept = call.out or ()
    while kept and kept[-1] == 1:
        kept = kept[:-1]
    shape, length = (
        call.given[0] if call.given else (),
        max(elements // results, 1),
    )  # also where nothing is added up
    size = elements * item + call.bytes
    if call.dim is None and shape[: len(kept)] == kept:  # what is added up lies side by side
        if length > _ONE_BLOCK:  # several blocks share the work for one result
            yield Kernel("shared reduction", size)
        else:  # a warp, or what is needed of one, for each result
            lanes = min(1 << (length.bit_length() - 1), _WARP)
            placed = call.name.startswith("arg") or (
                call.name in ("max", "min") and kept
            )  # finds the place as well
            yield Kernel(
                "arg reduction" if placed else "reduction",
                size + _WARP_BYTES * results * lanes / _WARP,
            )
    elif len(kept) == 1 < len(shape) - 1 and shape[1:2] == kept:  # all but the channels
        yield Kernel("channel reduction", size)
    else:  # a thread adds up what lies apart, one after the other; if that is much, several blocks share it
        each = length / max(_COLUMN_THREADS // max(min(results // 4, _WARP), 1), 1)
        each = _SHARE if each >= _MUCH or length > _ONE_BLOCK else each
        # Where the place is asked for as well, loads do not run ahead.
        slow = 3.5 if call.name in ("max", "min", "argmax", "argmin", "var", "std") else 1.0
        yield _seconds("column reduction", each * 50e-9 * slow, chip, size)


_WARP: Final = 32
_WARP_BYTES: Final = 1000  # what memory could move in the time that a warp takes for one result
_COLUMN_THREADS: Final = 128
_MUCH: Final = 256
_SHARE: Final = 100


@_rule("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")
def _scan(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    moved = 2 * call.largest * call.item
    if call.dim is not None:  # a thread goes down a column
        yield _seconds("column scan", call.along[1] * 0.15e-6, chip)
        return
    if len(call.given[0] if call.given else ()) > 1:  # row by row
        yield Kernel("row scan", moved)
        return
    yield Kernel("scan", 0)
    yield Kernel("scan", moved)


@_rule("sort", "argsort", "kthvalue", "median", "mode", "msort", "nanmedian")
def _sort(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    elements = call.largest
    last = call.along[1]
    if (
        call.name in ("kthvalue", "median", "nanmedian") and last < elements
    ):  # a block finds one value of each row
        yield _one_of_each_row(elements // last, last, chip)
        return
    if last <= 4096:  # one block sorts a row in shared memory; keys and places are copied beside it
        for _ in range(3):
            yield Kernel(COPY, elements * 8)
        for _ in range(2):
            yield Kernel("pointwise", elements * 8)
        room = next(size for size in (128, 1024, 4096) if last <= size)
        yield Kernel("block sort", elements // last * room * 90)
        return
    yield Kernel(COPY, elements * 8)
    yield Kernel("pointwise", elements * 8)
    yield from _radix(elements, ITEM.get(call.dtype, 4) + (3 if elements > last else 0))
    if call.name not in ("sort", "argsort", "msort"):
        for _ in range(2):
            yield Kernel("pointwise", 0)


def _radix(elements: int, passes: int) -> Iterator[Kernel]:
    """A radix sort: a histogram and its sums, then a pass for each byte of a key."""
    if elements <= _ONE_TILE:
        yield Kernel("radix sort", elements * 24)
        return
    yield Kernel("radix sort", elements * 16)
    yield Kernel("pointwise", 0)
    for _ in range(passes):
        yield Kernel("radix sort", elements * 24)


def _one_of_each_row(rows: int, length: int, chip: Chip) -> Kernel:
    """A block for each row counts digits and goes over the row again and again."""
    return _seconds("row selection", -(-rows // chip.sms) * (2e-6 + length * 9e-9), chip)


@_rule("topk")
def _selection(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    elements = call.largest
    last = call.along[1]
    if last <= 1024:
        yield _one_of_each_row(elements // last, last, chip)
    else:  # several blocks for a row count digits, a byte at a time
        for _ in range(4):
            yield Kernel("selection", elements * call.item)
            for _ in range(3):
                yield Kernel("selection", 0)
        for _ in range(3):
            yield Kernel("selection", elements * call.item)
    yield Kernel("selection", 0)


@_rule("_unique2", "unique_consecutive", "unique_dim", "_unique")
def _unique(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    elements = math.prod(call.given[0]) if call.given else 1
    if call.name != "unique_consecutive":
        yield from _radix(elements, call.item)
    yield Kernel("scan", 0)
    yield Kernel("scan", elements * call.item)
    yield Kernel(COPY)  # how many there are


_ONE_TILE: Final = 2048  # elements that one block sorts by itself


@_rule("randperm")
def _permutation(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    elements = math.prod(call.out or ())
    for _ in range(3):
        yield Kernel("random", elements * 8)
    yield from _radix(elements, 5)
    yield Kernel("pointwise", 0)


@_rule("multinomial")
def _draws(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    for _ in range(4):
        yield Kernel("scan", 2 * call.largest * call.item)


@_rule("histc")
def _histogram_between(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    yield Kernel("pointwise", call.bytes)
    yield Kernel("scatter", math.prod(call.given[0]) * call.item if call.given else 0)


@_rule("bincount")
def _histogram(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    elements = math.prod(call.given[0]) if call.given else 1
    for _ in range(2):
        yield Kernel("shared reduction", elements * call.item)
        yield Kernel(COPY)
    yield Kernel("pointwise", call.bytes)
    yield Kernel("scatter", elements * call.item)


@_rule(
    *"rand randn rand_like randn_like randint randint_like normal normal_ uniform_ bernoulli bernoulli_".split(),
    *"exponential_ random_ native_dropout".split(),
)
def _random(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    yield Kernel("random", call.moved)


@_rule("embedding", "take")
def _gather(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    yield Kernel("gather", 2 * math.prod(call.out or ()) * call.item)


@_rule("gather", "index_select")
def _select_rows(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    yield Kernel("index", 2 * math.prod(call.out or ()) * call.item)


@_rule("index", "_unsafe_index")
def _index(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    masked = (
        len(call.given) > 1
        and len(call.given[0]) > 0
        and call.given[1] == call.given[0][: len(call.given[1])]
    )
    if masked and call.out is not None and math.prod(call.out) != math.prod(call.given[0]):
        yield from _nonzero(call, chip)
        yield Kernel("gather", 2 * math.prod(call.out) * call.item)
    else:  # whole rows are copied as they lie
        rows = (
            len(call.given) == 2
            and len(call.given[0]) > 1
            and len(call.out or ()) > len(call.given[1])
        )
        rows = rows and math.prod(call.out or ()) < _MANY
        yield Kernel("gather" if rows else "index", 2 * math.prod(call.out or ()) * call.item)


_MANY: Final = 1 << 20


@_rule("nonzero", "masked_select")
def _nonzero(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    elements = math.prod(call.given[0]) if call.given else 1
    for _ in range(2):
        yield Kernel("scan", elements)
    yield Kernel(COPY)  # how many there are
    yield Kernel("scan", elements * 8)
    yield Kernel("pointwise", elements * 8)


@_rule(
    "index_add",
    "index_add_",
    "scatter_add",
    "scatter_add_",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "scatter",
)
def _scatter(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    if not call.name.endswith("_"):
        yield Kernel(COPY, 2 * call.bytes)
    # Where many are added to few places, they wait for each other.
    added = math.prod(call.given[-1]) if call.given else 1
    places = math.prod(call.given[0]) if call.given else 1
    crowded = "_add" in call.name and added > _CROWD * places
    yield (
        _seconds("atomic scatter", added * 85e-12, chip)
        if crowded
        else Kernel(
            "row scatter" if call.name.startswith("index_add") else "scatter",
            2 * call.largest * call.item,
        )
    )


_CROWD: Final = 100


@_rule("embedding_dense_backward")
def _embedding_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    indices = math.prod(call.given[1]) if len(call.given) > 1 else 1
    if indices > 3072:  # sorted first, so that rows of the same index are added up together
        yield from _radix(indices, 8)
        for _ in range(6):
            yield Kernel("scan", indices * 8)
    yield Kernel("pointwise", call.bytes)
    yield Kernel("embedding gradient", 2 * math.prod(call.given[0]) * call.item)


# ---- losses and normalisation ----------------------------------------------------------------------------------------


@_rule("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data")
def _softmax(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    if call.dim is None:
        yield Kernel("softmax", call.moved)
        return
    _, length, inner = (
        call.along
    )  # a thread goes along the dimension, three times; with few of them, several do
    threads = 1
    while (
        min(inner, 64) == inner
        and length >= 64
        and inner * threads * 2 <= 1024
        and threads * 2 <= length
    ):
        threads *= 2
    each = 0.21e-6 if "backward" in call.name else 0.55e-6
    yield _seconds("softmax", length / threads * each, chip, call.moved)


@_rule("logsumexp")
def _log_of_sum(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    sizes = (
        math.prod(call.given[0] if call.given else ()) * call.item,
        math.prod(call.out or ()) * call.item,
    )
    for size in sizes:
        yield Kernel("reduction", sizes[0])
        for _ in range(2):
            yield Kernel("pointwise", 2 * size)
    for _ in range(3):
        yield Kernel("pointwise", 2 * sizes[1])


# Losses whose mean or sum is a kernel of its own; the number of passes before it.
_LOSSES: Final = {
    "mse_loss": 1, "l1_loss": 1, "smooth_l1_loss": 1, "huber_loss": 1, "binary_cross_entropy": 1, "kl_div": 1,
    "soft_margin_loss": 1, "binary_cross_entropy_with_logits": 5,
}  # fmt: skip


@_rule(*_LOSSES)
def _mean_loss(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    for _ in range(_LOSSES[call.name]):
        yield Kernel("pointwise", call.moved)
    if not call.out:
        yield from _reduction(call._replace(name="mean", given=call.given[:1], out=()), chip)


@_rule("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")
def _mean_loss_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    yield Kernel("pointwise", call.bytes)
    yield Kernel("stretched", call.moved)


@_rule("allclose", "equal")
def _compared(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    for _ in range(13 if call.name == "allclose" else 1):
        yield Kernel("pointwise", call.moved)
    yield Kernel("shared reduction", call.largest)
    yield Kernel(COPY)  # the answer


@_rule("nll_loss_forward", "nll_loss2d_forward")
def _loss(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    yield Kernel(
        "loss",
        call.largest // max(call.given[0][-1] if call.given and call.given[0] else 1, 1) * 64,
    )


@_rule("nll_loss_backward", "nll_loss2d_backward")
def _loss_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    # The gradient is cleared, then written where the targets are.
    yield Kernel("pointwise", call.bytes)
    yield from _loss(call, chip)


@_rule("native_layer_norm", "_fused_rms_norm")
def _layer_norm(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    rows = call.largest // max(call.given[0][-1] if call.given and call.given[0] else 1, 1)
    yield _seconds(
        "norm", rows * 2.1e-9, chip, 2 * call.largest * call.item
    )  # a block for each row


@_rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def _layer_norm_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    moved = 3 * call.largest * call.item
    yield Kernel("norm", moved)
    yield Kernel("norm gradient", moved)  # of weight and bias, in two passes
    yield Kernel("reduction", 0)


@_rule("native_group_norm")
def _group_norm(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    size = call.largest * call.item
    yield Kernel("reduction", size)
    yield Kernel("pointwise", 0)
    yield Kernel("pointwise", 2 * size)


@_rule("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit")
def _batch_norm(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    size = math.prod(call.out or ()) * call.item
    if call.out is not None and call.bytes < size + 8 * (call.out[1] if len(call.out) > 1 else 1):
        yield Kernel("stretched", 2 * size)  # nothing is kept for backward: evaluation
        return
    if call.given and len(call.given[0]) == 2:  # not by cuDNN
        yield Kernel("column reduction", call.largest * call.item)
        yield Kernel("pointwise", 0)
        yield Kernel("stretched", 2 * call.largest * call.item)
        return
    yield Kernel("batch norm", 2 * call.largest * call.item * _few_channels(call, chip))


def _few_channels(call: KernelCall, chip: Chip) -> float:
    """One block sees to one channel: with few of them, not all multiprocessors have work."""
    return max(chip.sms / max(call.given[0][1] if len(call.given[0]) > 1 else 1, 1), 1.0)


@_rule(
    *"avg_pool2d max_pool2d_with_indices max_pool3d_with_indices avg_pool3d".split(),
    *"upsample_bilinear2d upsample_nearest2d upsample_bicubic2d grid_sampler_2d".split(),
)
def _pool(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    yield Kernel(
        "pool",
        math.prod(call.given[0]) * call.item
        + (call.bytes or math.prod(call.out or ()) * call.item),
    )


@_rule("constant_pad_nd")
def _pad(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    yield Kernel("pointwise", call.bytes)
    yield Kernel("strided copy", 2 * math.prod(call.given[0]) * call.item)


@_rule("im2col", "col2im")
def _columns(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    count = call.given[0][0] if call.given and len(call.given[0]) > 2 else 1
    for _ in range(count):  # picture by picture
        yield Kernel("pool", call.moved / count)


@_rule("max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward")
def _pool_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    if call.name.startswith("max"):
        yield Kernel("pointwise", call.bytes)
    yield Kernel("pool gradient", call.moved)


@_rule("native_batch_norm_backward", "cudnn_batch_norm_backward", "native_group_norm_backward")
def _batch_norm_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    yield Kernel("batch norm gradient", 3 * call.largest * call.item * _few_channels(call, chip))


# ---- optimizers ------------------------------------------------------------------------------------------------------

_CHUNK: Final = 65536  # elements that one block of a multi-tensor kernel handles
_BLOCKS: Final = 320  # of one launch
_TENSORS: Final = (110, 64, 48, 36, 30)  # of one launch, by the number of lists
_LISTS: Final = {
    "lerp": 2,
    "addcmul": 3,
    "addcdiv": 3,
    "sqrt": 2,
    "copy": 2,
    "add.List": 2,
    "neg": 2,
    "mul.List": 2,
}


def _lists(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    """Multi-tensor kernels: a launch takes so many tensors, and so many pieces of them."""
    stem = call.name.removeprefix("_foreach_").removeprefix("_fused_").rstrip("_")
    depth = 5 if call.name.startswith("_fused_") else _LISTS.get(stem, 1 + (call.bytes > 0))
    passes = depth + (0 if call.bytes else 1)
    tensors = blocks = elements = longest = 0
    for shape in call.given:
        count = math.prod(shape)
        tensors += 1
        for start in range(0, count, _CHUNK):
            blocks += 1
            piece = min(_CHUNK, count - start)
            elements += piece
            longest = max(longest, piece)
            if blocks == _BLOCKS or (tensors == _TENSORS[depth - 1] and start + _CHUNK >= count):
                yield _multi(stem, elements, longest, passes, call.item, chip)
                tensors = 0 if start + _CHUNK >= count else 1
                blocks = elements = longest = 0
    if blocks:
        yield _multi(stem, elements, longest, passes, call.item, chip)


def _multi(stem: str, elements: int, longest: int, passes: int, item: int, chip: Chip) -> Kernel:
    # A multiprocessor has its share of the bandwidth: few blocks take as long as all of them would.
    kind = "multi-tensor" if stem in ("add", "mul", "sub") else "multi-tensor function"
    return Kernel(kind, max(elements, longest * chip.sms / 4) * passes * item)


@_rule("_amp_foreach_non_finite_check_and_unscale_")
def _unscale(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    yield from _lists(call._replace(name="_foreach_mul_", given=call.given[:-2]), chip)


# ---- products --------------------------------------------------------------------------------------------------------


def _unit(dtype: str, chip: Chip, tf32: bool) -> str:
    """What computes products of this dtype."""
    if dtype in HALF:
        return "float16" if dtype == "float16" or chip.bfloat16 else "float32"
    return "tf32" if tf32 and dtype == "float32" and "tf32" in chip.flops else dtype


def product(
    m: int, n: int, k: int, batch: int, dtype: str, chip: Chip, tf32: bool = False
) -> list[Kernel]:
    """A matrix product: tiles of the result, in waves over the multiprocessors; few rows are read like vectors."""
    item = ITEM.get(dtype, 4)
    moved = batch * (m * k + k * n + m * n) * item
    if min(m, n) == 1:
        return [Kernel("vector product", moved)]
    unit = _unit(dtype, chip, tf32)
    rate = chip.flops.get(unit, chip.flops["float32"])
    tiles = (
        ((128, 256, 1.0), (128, 128, 0.9), (128, 64, 0.8), (64, 64, 0.7))
        if unit in ("float16", "tf32")
        else _SIMT
    )
    best = math.inf
    splits = 1
    for rows, columns, efficiency in tiles:
        count = batch * -(-m // rows) * -(-n // columns)
        split = 1
        while count * split * _FREE <= chip.sms and k // (split * 2) >= _SHORTEST:
            split *= 2
        waves = -(-count * split // chip.sms)
        flops = waves * chip.sms * rows * columns * -(-k // split) * 2 / efficiency
        if waves < 3:  # too few tiles to hide that they wait for memory
            flops *= 1.2
        if flops < best:
            best = flops
            splits = split
    kind = "half product" if unit == "float16" else "product"
    found = [Kernel(kind, 0.0, max(best, moved * rate / chip.bandwidth), unit)]
    # Of small products in single precision cuBLAS adds up parts in another kernel, unless there are few rows.
    few = -(-m // 64) * -(-n // 64) * 2 <= chip.sms and batch == 1
    if unit == "float32" and (splits > 1 or (few and min(m, k) > 16 and max(n, k) < 4096)):
        found.append(Kernel("split product", m * n * batch * item * splits))
    return found


_SIMT: Final = ((64, 64, 1.0),)
_SHORTEST: Final = 128  # the least depth of a part when a product is split along it
_FREE: Final = 2  # tiles are doubled by splits while so many times more would fit


@_rule(
    "mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "_addmm_activation", "linear", "matmul"
)
def _products(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
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
    made = product(m, n, k, batch, call.dtype, chip, chip.tf32)
    if (
        call.name == "addmm" and len(made) > 1 and max(m, n // 8) >= 64
    ):  # with a bias to add, the depth is not split
        deep = k * _DEEP >= m * n
        made = [Kernel("linear product", 0.0, chip.sms * 32 * 64 * k * 2.0) if deep else made[0]]
        if m >= 64 and deep:  # the result is cleared before, and the bias added behind
            made = [Kernel("pointwise"), *made, Kernel("pointwise", 2 * m * n * call.item)]
    yield from made


_DEEP: Final = (
    128  # elements of the result for each one of the depth: with fewer, there are not enough tiles
)


@_rule("convolution", "cudnn_convolution", "_convolution")
def _convolution(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    source = call.given[0]
    weight = call.given[1]
    assert call.out is not None
    inside = math.prod(source) * call.item
    outside = math.prod(call.out) * call.item
    if (
        weight[1] == 1 and len(source) > 1 and source[1] > 1 and weight[0] >= source[1]
    ):  # one channel each: no product at all
        yield Kernel("depthwise", inside + outside)
        return
    if source[1] == 1:  # pixel by pixel, without tensor cores
        pixels = math.prod(call.out) / weight[0]
        each = 64e-12 + 0.34e-12 * math.prod(weight)
        yield _seconds("direct convolution", pixels * each, chip)
    else:
        yield from _as_product(call.out, weight, source, call.dtype, chip)
    if len(call.given) > 2:
        yield Kernel("stretched", 2 * outside)
    if _relaid(source, weight, call.dtype):
        for size in (inside, outside):
            yield Kernel("layout", 2 * size)
        yield Kernel("layout", 2 * math.prod(weight) * call.item)


def _relaid(source: Shape, weight: Shape, dtype: str) -> bool:
    """Whether cuDNN changes the layout for tensor cores, which want the channels last."""
    deep = source[1] >= 16 or math.prod(weight[1:]) >= 128
    return deep and math.prod(source) >= 3 << 17 and math.prod(weight[2:]) > 1


def _as_product(out: Shape, weight: Shape, source: Shape, dtype: str, chip: Chip) -> list[Kernel]:
    item = ITEM.get(dtype, 4)
    turned = (
        len(out) > 1 and out[1] != weight[0]
    )  # a transposed one goes from its result to its input
    flops = 2.0 * math.prod(source if turned else out) * math.prod(weight[1:])
    moved = (math.prod(out) + math.prod(source)) * item
    return [
        Kernel(
            "half convolution" if dtype in HALF else "convolution",
            moved,
            flops,
            _unit(dtype, chip, True),
        )
    ]


@_rule("convolution_backward", "cudnn_convolution_backward")
def _convolution_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    gradient, source, weight = call.given[:3]
    dtype = call.dtype if call.dtype in ITEM else "float32"
    item = ITEM[dtype]
    relaid = math.prod(gradient) >= 1 << 18
    kernel = _as_product(gradient, weight, source, dtype, chip)[0]
    sizes = []
    if call.out is not None:  # of the input
        yield kernel._replace(kind=f"{kernel.kind} gradient")
        yield Kernel("layout", 2 * math.prod(weight) * item)
        sizes += [source]
    yield kernel._replace(
        kind=f"{kernel.kind} gradient"
    )  # of the weights, in parts that are added up
    yield Kernel("reduction", 2 * math.prod(weight) * item)
    yield Kernel("layout", 2 * math.prod(weight) * item)
    for shape in [*sizes, source, gradient] if relaid else ():
        yield Kernel("layout", 2 * math.prod(shape) * item)
    yield Kernel("channel reduction", math.prod(gradient) * item)


# ---- attention and recurrent layers ----------------------------------------------------------------------------------


@_rule("_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention")
def _attention(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    query = call.given[0]
    key = call.given[1]
    flops = 4.0 * math.prod(query[:-1]) * max(query[-1], _HEAD) * key[-2]
    half = call.dtype in HALF
    if len(call.given) > 3:  # a mask is made into what is added
        yield Kernel("stretched", math.prod(call.given[3]) * 5)
    yield Kernel(
        "half attention" if half else "attention",
        call.moved,
        flops,
        "float16" if half else "float32",
    )


_HEAD: Final = 64  # shorter heads leave threads without work


@_rule(
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention_backward",
)
def _attention_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    query = call.given[0]
    key = call.given[1]
    flops = 10.0 * math.prod(query[:-1]) * max(query[-1], _HEAD) * key[-2]
    half = call.dtype in HALF
    unit = "float16" if half else "float32"
    yield Kernel("pointwise", 3 * math.prod(query) * call.item)
    yield Kernel("reduction", math.prod(query) * call.item)
    yield Kernel("half attention" if half else "attention", call.moved, flops, unit)


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
    heads = (*source[:-1], width)
    flops = 4.0 * rows * width * heads[-2]
    half = call.dtype in HALF
    yield Kernel(
        "half attention" if half else "attention", 4 * size, flops, "float16" if half else "float32"
    )
    for shape in weights[1:]:
        yield from product(rows, shape[0], shape[1], 1, call.dtype, chip, chip.tf32)
    yield Kernel("pointwise", 3 * size)
    yield Kernel("norm", 2 * size)
    yield Kernel("norm", 2 * size)


@_rule(
    *(f"_thnn_fused_{kind}_cell{way}" for kind in ("lstm", "gru") for way in ("", "_backward_impl"))
)
def _cell(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    yield Kernel("gates", call.moved)
    if call.name.endswith("impl"):
        yield Kernel("column reduction", math.prod(call.given[0]) * call.item)  # for the biases


@_rule("_cudnn_rnn")
def _recurrent(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    yield from _rnn(call, chip, backward=False)


@_rule("_cudnn_rnn_backward")
def _recurrent_backward(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    yield from _rnn(call, chip, backward=True)


_PERSISTENT: Final = 1 << 17  # weights that multiprocessors keep while they make all steps


def _rnn(call: KernelCall, chip: Chip, backward: bool) -> Iterator[Kernel]:
    """For each layer a product over all steps; for each step a product with the state, and the gates."""
    data = call.given[0]
    steps, batch = (data[0], data[1]) if len(data) == 3 else (1, data[0])
    weights = [shape for shape in call.given[1:] if len(shape) == 2]
    for inner, state in zip(weights[::2], weights[1::2], strict=False):
        gates, hidden = state
        if gates * hidden <= _PERSISTENT:  # one kernel keeps the weights and makes all steps
            if gates == 3 * hidden:  # a GRU adds its biases apart
                yield Kernel("pointwise", steps * batch * gates * call.item)
            for _ in range(3 if backward else 1):
                yield from product(steps * batch, inner[0], inner[1], 1, call.dtype, chip)[:1]
            yield _seconds("persistent steps", steps * (0.25e-6 + 35e-12 * gates * hidden), chip)
            if backward:
                for _ in range(2):
                    yield Kernel("gates", steps * batch * gates * call.item)
                yield Kernel("reduction", steps * batch * gates * call.item)
            continue
        for _ in range(2 if backward else 1):
            for kernel in product(steps * batch, inner[0], inner[1], 1, call.dtype, chip):
                yield kernel
        for kernel in product(batch, gates, hidden, 1, call.dtype, chip)[:1]:
            for _ in range(steps):
                yield kernel._replace(kind="step product")
        for _ in range(steps):
            yield Kernel("gates", batch * gates * call.item * 2)
        if backward:
            yield from product(gates, hidden, steps * batch, 1, call.dtype, chip)


# ---- linear algebra --------------------------------------------------------------------------------------------------

# Factorisations go column by column: seconds for each, on a GPU like the H200, and how many columns a kernel handles.
_BY_COLUMN: Final = {
    "linalg_inv_ex": (1.9e-6, 14), "linalg_lu_factor_ex": (1.4e-6, 30), "_linalg_solve_ex": (2.1e-6, 26),
    "linalg_cholesky_ex": (0.34e-6, 100), "linalg_qr": (2.8e-6, 8), "geqrf": (2.4e-6, 16), "_linalg_svd": (16e-6, 0.5),
    "_linalg_eigh": (10.5e-6, 0.5), "linalg_eig": (30e-6, 0.5), "linalg_lstsq": (5e-6, 8), "_linalg_det": (1.4e-6, 30),
    "_linalg_slogdet": (1.4e-6, 30), "linalg_pinv": (16e-6, 0.5), "triangular_solve": (0.5e-6, 100),
    "linalg_solve_triangular": (0.5e-6, 100), "cholesky_solve": (1e-6, 50), "linalg_ldl_factor_ex": (1.4e-6, 30),
}  # fmt: skip


@_rule(*_BY_COLUMN)
def _factorisation(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
    shape = call.given[0] if call.given and len(call.given[0]) > 1 else (1, 1)
    columns = min(shape[-2:])
    batch = math.prod(shape[:-2])
    seconds, together = _BY_COLUMN[call.name]
    launches = max(round(columns / together), 3)
    # Matrices of a batch are handled beside each other, as many as there are multiprocessors.
    total = (
        seconds
        * columns
        * max(batch / chip.sms, 1)
        * _H200_CLOCK_RATE
        / max(chip.flops["float32"], 1)
        * chip.sms
    )
    for _ in range(launches):
        yield Kernel("factorisation", 0.0, total / launches * chip.flops["float32"])


_H200_CLOCK_RATE: Final = (
    51e12 / 132
)  # FLOPs of one multiprocessor: one column after the other is its work


@_rule("_fft_r2c", "_fft_c2c", "_fft_c2r")
def _fourier(call: KernelCall, chip: Chip) -> Iterator[Kernel]:
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
        yield Kernel("pointwise", 2 * math.prod(call.out or ()) * call.item)
