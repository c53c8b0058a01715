"""What the host does for each row of a ledger: pairs of a cost's name and how often it arises.

How long a cost takes is a figure of a GPU, `Gpu.host` in `gpu_models.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

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
    "cuDNN": ("convolution", "convolution_backward"),
    "cuDNN norm": ("native_batch_norm", "native_batch_norm_backward"),
    "cuDNN recurrent": ("_cudnn_rnn", "_cudnn_rnn_backward"),
    "norm": ("native_layer_norm", "native_layer_norm_backward", "native_group_norm"),
    "embedding bag": ("_embedding_bag",),
    "reduction": (
        "sum", "mean", "max", "min", "std", "var", "argmax", "argmin", "linalg_vector_norm",
    ),
    "indexing": ("index", "index_put_", "index_put", "nonzero", "index_add", "sort", "topk"),
    "attention": (
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_efficient_attention_backward",
    ),
}  # fmt: skip
_ALLOCATING: Final = (
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_",
)  # fmt: skip
# How autograd adds up gradients of a tensor that was used more than once. C++ calls them itself.
_GRADIENT_SUMS: Final = ("add", "add_")
_MULTI_TENSOR: Final = (*LIST_OPERATORS, "_amp_foreach_")
# What each kernel but the first costs, by the operator: where it has others inside, each is one.
_LAUNCHES: Final = {
    "multinomial": "inner operator",
    "binary_cross_entropy_with_logits": "inner operator",
    "logsumexp": "inner operator",
    "_cudnn_rnn": "recurrent launch",
    "_cudnn_rnn_backward": "recurrent launch backward",
}


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
            case BackwardRow():
                self._open[number] = row
                yield "backward", 1
            case StepRow():
                self._open[number] = row
                yield "step", 1
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
        graph.
        """
        in_backward = self._is_inside(BackwardRow)
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
        elif in_backward and call.name in _GRADIENT_SUMS:
            yield "gradient sum", 1
        elif in_backward:
            yield "operator backward", 1
        else:
            yield "operator", 1
            if builds_graph and self._is_inside(ForwardRow):
                yield "gradient", 1
        # What comes on top: a library, and each kernel but the first.
        library = _library_behind(call.name)
        if library is not None and not _is_norm_of_a_matrix(library, call):
            yield library, 1
        if kernels > 1:
            yield _LAUNCHES.get(call.name, "launch"), kernels - 1

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


def _library_behind(operator: str) -> str | None:
    """The library, or the checks, that make an operator cost the host more; None for most."""
    for library, names in _LIBRARIES.items():
        if operator in names:
            return library
    return None


def _is_norm_of_a_matrix(library: str, call: KernelCall) -> bool:
    """True for a batch norm without pixels, which cuDNN is not asked for."""
    return library == "cuDNN norm" and len(call.first_shape) <= 2


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
