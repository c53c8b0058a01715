"""What the host does for each row of a ledger: pairs of a cost's name and how often it arises.

How long a cost takes is a figure of a GPU, `Gpu.host` in `gpu_models.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from virtual_cuda.clock.kernel_rules.convolutions import is_depthwise_in_single_precision
from virtual_cuda.clock.kernels import LIST_OPERATORS, VIEWS, KernelCall
from virtual_cuda.ledger.rows import (
    BackwardRow,
    CollectiveRow,
    EndRow,
    ForwardRow,
    OperationRow,
    Row,
    ScalerRow,
    StepRow,
    StreamRow,
    SyncRow,
    TransferRow,
)

Cost = tuple[str, float]

# Operators whose functions do more on the host than to launch a kernel, by the library or the
# checks behind them.
_LIBRARIES: Final = {
    "cuBLAS": ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot"),
    "cuDNN": ("convolution",),
    "cuDNN backward": ("convolution_backward",),
    "cuDNN norm": ("native_batch_norm", "native_batch_norm_backward"),
    "cuDNN recurrent": ("_cudnn_rnn",),
    "cuDNN recurrent backward": ("_cudnn_rnn_backward",),
    "norm": ("native_layer_norm", "native_layer_norm_backward", "native_group_norm"),
    "embedding bag": ("_embedding_bag",),
    "reduction": (
        "sum", "mean", "max", "min", "std", "var", "argmax", "argmin", "linalg_vector_norm",
    ),
    "indexing": ("index", "index_put_", "index_put", "nonzero", "index_add", "sort", "topk"),
    "attention": ("_scaled_dot_product_efficient_attention",),
    "attention backward": ("_scaled_dot_product_efficient_attention_backward",),
    "norms of a list": ("_foreach_norm",),
}  # fmt: skip
_PRODUCTS: Final = _LIBRARIES["cuBLAS"]
# Modules whose calls are much Python around their operators, by the name of its cost.
_LONG_MODULES: Final = {
    "MultiheadAttention": "attention module",
    "TransformerEncoderLayer": "layer module",
    "TransformerDecoderLayer": "layer module",
    "RNN": "recurrent module",
    "LSTM": "recurrent module",
    "GRU": "recurrent module",
}
_PLAIN_OPTIMIZER: Final = "SGD"  # all others keep more for each parameter than a sum of gradients
_ALLOCATING: Final = (
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_",
)  # fmt: skip
# How autograd adds up gradients of a tensor that was used more than once. C++ calls them itself.
_GRADIENT_SUMS: Final = ("add", "add_")
_MULTI_TENSOR: Final = (*LIST_OPERATORS, "_amp_foreach_")
# What each kernel but the first costs, by the operator: where it has others inside, each is one.
_LAUNCHES: Final = {
    "index_put": "inner operator",
    "binary_cross_entropy_with_logits": "inner operator",
    "logsumexp": "inner operator",
    "_cudnn_rnn": "recurrent launch",
    "_cudnn_rnn_backward": "recurrent launch backward",
}
# Libraries that launch all their kernels themselves.
_LAUNCHING_LIBRARIES: Final = ("cuBLAS", "cuDNN", "cuDNN backward")


class HostCosts:
    """Tells the costs of rows that are given in order, and knows the passes they are in."""

    def __init__(self) -> None:
        self._open: dict[int, Row] = {}  # the passes and steps that have not ended, by row number
        self._replays_graph = False

    def of_row(
        self, number: int, row: Row, call: KernelCall | None, kernels: int
    ) -> Iterator[Cost]:
        """The costs of row `number`: names of costs, each with how often it arises.

        An operation needs `call` and the number of its kernels. Remembers which passes, steps and
        replays begin and end here.
        """
        match row:
            # A CUDA graph is launched as a whole: its operators cost the host nothing more.
            case StreamRow(what="replay"):
                self._replays_graph = bool(row.other)
                yield "graph", row.other
            case OperationRow() if self._replays_graph:
                yield "graph kernel", kernels
            case OperationRow() if call is not None:
                yield from self._of_operator(call, kernels, row.builds_graph)
            # What lasts stays open until its EndRow.
            case ForwardRow():
                self._open[number] = row
                yield "module", 1
                if row.module in _LONG_MODULES:
                    yield _LONG_MODULES[row.module], 1
            case BackwardRow():
                self._open[number] = row
                yield "backward", 1
            case StepRow():
                self._open[number] = row
                yield "step", 1
                if row.optimizer != _PLAIN_OPTIMIZER:
                    yield "adaptive step", 1
            case EndRow():
                self._open.pop(row.opened, None)
            # What happens at one moment.
            case SyncRow():
                yield ("synchronize" if row.explicit else "wait"), 1
            case TransferRow():
                yield "transfer", 1
            case ScalerRow():
                yield "scaler", 1
            case CollectiveRow():
                yield "operator", 1
            case StreamRow():
                yield from _of_stream(row)

    def _of_operator(self, call: KernelCall, kernels: int, builds_graph: bool) -> Iterator[Cost]:
        """The costs of one operator: names of costs, each with how often it arises.

        Autograd runs its own operators. In a forward pass with gradients, operators also build the
        graph. A module that is called in a backward pass computes again what was not kept.
        """
        in_module = self._is_inside(ForwardRow)
        during_backward = self._is_inside(BackwardRow)
        is_computed_again = in_module and during_backward
        in_backward = during_backward and not in_module
        # Operators that launch nothing.
        if call.name in _ALLOCATING:
            yield "allocation", 1
            return
        if call.name in VIEWS:
            yield ("view backward" if in_backward else "view"), 1
            return
        # The operator itself, by where it is called.
        if call.name == "_local_scalar_dense":
            yield "item", 1
        elif call.name.startswith(_MULTI_TENSOR):
            yield "list", 1
            yield "list tensor", len(call.inputs)
        elif in_backward:
            yield _cost_in_backward(call.name), 1
        else:
            yield "operator", 1
            if builds_graph and in_module:
                yield "gradient", 1
            if is_computed_again:
                yield "computed again", 1
        yield from _costs_on_top(call, kernels, in_backward)

    def _is_inside(self, kind: type[Row]) -> bool:
        """True if a pass or step of this kind has begun and not ended."""
        return any(isinstance(row, kind) for row in self._open.values())


def _of_stream(row: StreamRow) -> Iterator[Cost]:
    """The costs of what a program does with a stream or an event."""
    if row.what == "record":
        yield "event", 1
    elif row.what == "list":
        yield "list number", row.other
    elif row.what != "tf32":
        yield "stream", 1


def _cost_in_backward(operator: str) -> str:
    """The name of the cost of an operator that autograd runs.

    Gradients of an operator have their names from it. What else there is belongs to a step of the
    backward pass that has several operators, or is simple.
    """
    if operator in _GRADIENT_SUMS:
        return "gradient sum"
    if operator in _PRODUCTS:
        return "product backward"
    if operator.endswith(("_backward", "_backward_data")):
        return "operator backward"
    return "simple operator backward"


def _costs_on_top(call: KernelCall, kernels: int, in_backward: bool) -> Iterator[Cost]:
    """What an operator costs on top: a library, and each kernel but the first.

    The cost of a product in a backward pass has its library in it.
    """
    library = _library_behind(call)
    is_product_in_backward = in_backward and call.name in _PRODUCTS
    if library is not None and not is_product_in_backward:
        yield library, 1
    if kernels > 1:
        yield _name_of_launch(call.name, library), kernels - 1


def _name_of_launch(operator: str, library: str | None) -> str:
    """The name of the cost of each kernel of an operator but the first."""
    if library in _LAUNCHING_LIBRARIES:
        return "library launch"
    return _LAUNCHES.get(operator, "launch")


def _library_behind(call: KernelCall) -> str | None:
    """The library, or the checks, that make an operator cost the host more; None for most."""
    for library, names in _LIBRARIES.items():
        if call.name in names and not _goes_without_cudnn(call):
            return library
    return None


def _goes_without_cudnn(call: KernelCall) -> bool:
    """True for a batch norm without pixels, and for a convolution that torch has a kernel for."""
    if call.name in _LIBRARIES["cuDNN norm"]:
        return len(call.first_shape) <= 2
    return is_depthwise_in_single_precision(call)


def kernel_call_of(row: OperationRow) -> KernelCall:
    """The operator of a row, with its dtype and shapes as plain data."""
    dtype: object = None
    out = None
    inputs: list[Any] = []
    if row.work:
        dtype, out, *inputs = row.work
    dim = None
    if inputs and isinstance(inputs[-1], int):
        dim = inputs.pop()
    return KernelCall(
        name=bare_name(row.name),
        dtype="float32" if dtype is None else str(dtype).removeprefix("torch."),
        out=out,
        inputs=tuple(inputs),
        bytes=row.bytes,
        dim=dim,
    )


def bare_name(operator: str) -> str:
    """ "add" for "aten.add.Tensor"."""
    return operator.split(".", 2)[1] if "." in operator else operator


def is_transfer(rows: Sequence[Row], number: int) -> bool:
    """True if the operator of this row is the copy that the next row tells of."""
    following = number + 1
    if following >= len(rows):
        return False
    return isinstance(rows[following], TransferRow)


def is_copy_into_old_tensor(rows: Sequence[Row], number: int) -> bool:
    """True if the copy of this row goes into a tensor that was there before."""
    if number == 0:
        return False
    before = rows[number - 1]
    return isinstance(before, OperationRow) and before.name.startswith("aten.copy_")
