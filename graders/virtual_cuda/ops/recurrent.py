"""Recurrent cells and layers, as fused kernels and cuDNN run them.

A fused kernel does in one launch what would otherwise take several operators. The inner tensor of a
device tensor is the CPU tensor with its values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional

from virtual_cuda.device.cuda_errors import DTYPE_NAMES, label_of, type_name, warn
from virtual_cuda.device.hidden import conceal, reveal
from virtual_cuda.device.state import Block, VirtualDevice
from virtual_cuda.device.tensor import VIRTUAL, update_shell, wrap
from virtual_cuda.internals import COMPOSITE, torch_functions
from virtual_cuda.ops import placement
from virtual_cuda.ops.autocast import cast_argument
from virtual_cuda.ops.dispatch import (
    allocate,
    closed_device_error,
    record_operation,
    require_open_device,
    work_of,
)
from virtual_cuda.ops.elementwise import is_slow_on_host
from virtual_cuda.ops.placement import compare_devices, compare_devices_by_name, on_host
from virtual_cuda.ops.registry import operator
from virtual_cuda.ops.whole_kernels import (
    WholeKernel,
    are_on_several_devices,
    bytes_of_all,
    cast_by_autocast,
    gradients_by_host,
    graph_on_host,
    hold_memory,
    inner_leaf_of,
    is_recording_operators,
    refuse_second_gradients,
    wrap_each,
)
from virtual_cuda.ops.workspaces import (
    RecurrentSizes,
    Workspaces,
    hold_dropout_state,
    recurrent_workspaces,
    use_workspaces,
)

aten: Final = torch.ops.aten


# ---- cells ---------------------------------------------------------------------------------------


def _lstm_states(
    input_product: Any, hidden_product: Any, cell: Any, *biases: Any
) -> tuple[Any, ...]:
    """The new hidden state and the new cell of an LSTM, from its two products and the old cell.

    The products are those of the input and of the hidden state with their weights. Raises
    RuntimeError for shapes that do not fit.
    """
    gates = input_product + hidden_product
    for bias in biases:
        gates = gates + bias
    i, f, g, o = gates.chunk(4, 1)
    remembered = f.sigmoid() * cell
    new_cell = remembered + i.sigmoid() * g.tanh()
    state = o.sigmoid() * new_cell.tanh()
    return state, new_cell


def _gru_states(
    input_product: Any, hidden_product: Any, state: Any, *biases: Any
) -> tuple[Any, ...]:
    """The new state of a GRU, in a tuple, from its two products and the old state.

    The products are those of the input and of the state with their weights; `biases` are two or
    none. Raises RuntimeError for shapes that do not fit.
    """
    if biases:
        input_product = input_product + biases[0]
        hidden_product = hidden_product + biases[1]
    r, z, n = input_product.chunk(3, 1)
    hr, hz, hn = hidden_product.chunk(3, 1)
    reset = torch.sigmoid(r + hr)
    update = torch.sigmoid(z + hz)
    candidate = torch.tanh(n + reset * hn)
    new_state = candidate + update * (state - candidate)
    return (new_state,)


class _CellKind(NamedTuple):
    """What tells one kind of recurrent cell from another."""

    new_states: Callable[..., tuple[Any, ...]]  # of its two products, its state and its biases
    kept_parts: int  # how many times the size of a state is kept for backward


_KINDS: Final = {"lstm": _CellKind(_lstm_states, 4), "gru": _CellKind(_gru_states, 5)}


class FusedCell(WholeKernel):
    """The part of a recurrent cell after its two products, as one kernel each way."""

    @staticmethod
    def forward(ctx: Any, kind: str, *tensors: Any) -> Any:
        """Compute the new states on the host, put them on the device, and record the operation.

        `kind` is "lstm" or "gru"; `tensors` are the two products, the old state and the biases.
        Gives the new state, of an LSTM with the new cell. If gradients are needed, the memory that
        CUDA keeps for backward is allocated and saved in `ctx`. Raises DeviceClosed or the error of
        what ended the device, and torch's OutOfMemoryError.
        """
        cell = _KINDS[kind]
        device = require_open_device(tensors[0])
        inner = [tensor._virtual_inner for tensor in tensors]
        states = cell.new_states(*inner)
        results = wrap_each(states, device)
        kept_bytes = states[0].nbytes * cell.kept_parts
        nbytes = kept_bytes + bytes_of_all(states)
        name = f"aten._thnn_fused_{kind}_cell.default"
        record_operation(name, device, nbytes, work_of(states, inner))
        # Keep for backward what CUDA keeps.
        kept: list[Any] = [*tensors]
        if any(ctx.needs_input_grad):
            kept += results[1:]
            kept += hold_memory(device, kept_bytes)
        ctx.kind = kind
        ctx.device = conceal(device)
        ctx.tensor_count = len(tensors)
        ctx.save_for_backward(*kept)
        if len(results) == 1:
            return results[0]
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradients of the tensors that need one, on the device; None first, for the kind.

        The operation is recorded. With `create_graph` it is made of single operators, as on CUDA,
        which record themselves. Raises DeviceClosed or the error of what ended the device,
        RuntimeError if a saved tensor was changed since, and torch's OutOfMemoryError.
        """
        new_states = _KINDS[ctx.kind].new_states
        tensors = ctx.saved_tensors[: ctx.tensor_count]
        device = reveal(ctx.device)
        if device.closed:
            raise closed_device_error(device)
        # Are the gradients to be differentiated? Then they are computed step by step, as on CUDA.
        if torch.is_grad_enabled():
            states = new_states(*tensors)
            return None, *gradients_by_host(states, gradients, tensors, create_graph=True)
        # Compute the cell again, with a graph, for its gradients.
        inner = [inner_leaf_of(tensor) for tensor in tensors]
        with graph_on_host(True):
            states = new_states(*inner)
        computed = gradients_by_host(states, _inner_or_none(gradients), inner)
        results = wrap_each(computed, device)
        name = f"aten._thnn_fused_{ctx.kind}_cell_backward_impl.default"
        nbytes = bytes_of_all(results)
        record_operation(name, device, nbytes, work_of(None, inner))
        return None, *results


def _inner_or_none(gradients: Sequence[Any]) -> list[Any]:
    """The inner tensors of gradients on the device; None stays None."""
    return [None if gradient is None else gradient._virtual_inner for gradient in gradients]


class FusedLstmCell(FusedCell):
    """The kernel of an LSTM's cell: a class of its own, for the name in autograd's graph."""


class FusedGruCell(FusedCell):
    """The kernel of a GRU's cell: a class of its own, for the name in autograd's graph."""


_CELLS: Final[dict[str, Any]] = {"lstm": FusedLstmCell, "gru": FusedGruCell}
for _kind, _cell_class in _CELLS.items():
    _cell_class._backward_cls.__name__ = f"ThnnFused{_kind.title()}CellBackward0"


def run_cell(kind: str, state: str, original: Any, input: Any, hidden: Any, *weights: Any) -> Any:
    """The result of a recurrent cell: two plain products, then one fused kernel.

    `kind` is "lstm" or "gru"; `state` is the name that CUDA's message has for the last state.
    `original` is torch's function; it runs where the fused kernel does not fit. The ledger records
    what runs. Raises CUDA's RuntimeError for tensors on different devices, torch's
    OutOfMemoryError, and what `original` raises.
    """
    states = [hidden] if isinstance(hidden, torch.Tensor) else list(hidden)
    biases = [bias for bias in weights[2:] if bias is not None]
    matrices = [input, *states, *weights[:2]]
    operands = [*matrices, *biases]
    if type(input) in VIRTUAL and are_on_several_devices(*operands):
        _compare_devices_of_cell(kind, state, input, states, weights)
    has_all_weights = len(weights) == 4 and len(biases) != 1
    if not has_all_weights or not _fused_cell_takes(matrices):
        return original(input, hidden, *weights)
    if not torch.is_autocast_enabled("cuda"):
        return _run_fused_cell(kind, len(states), *operands)
    dtype = torch.get_autocast_dtype("cuda")
    with torch.autocast("cuda", enabled=False):
        operands = [cast_by_autocast(dtype, operand) for operand in operands]
        return _run_fused_cell(kind, len(states), *operands)


def _compare_devices_of_cell(
    kind: str, state: str, input: Any, states: Sequence[Any], weights: Sequence[Any]
) -> None:
    """Raise CUDA's RuntimeError for tensors on different devices.

    `state` is the name that the message has for the last state; `weights` are two matrices, then
    biases. CUDA compares those of the two products first, then those of the fused kernel.
    """
    names_of_product = [("self", "self"), ("mat2", "mat2")]
    rows = (input, states[0])
    for row, weight in zip(rows, weights, strict=False):
        compare_devices("wrapper_CUDA_mm", names_of_product, {"self": row, "mat2": weight})
    operands = {
        "input_gates": input,
        "hidden_gates": states[0],
        state: states[-1],
    }
    bias_names = ("input_bias", "hidden_bias")
    operands.update(zip(bias_names, weights[2:], strict=False))
    compare_devices_by_name(f"wrapper_CUDA___thnn_fused_{kind}_cell", operands, operands)


def _fused_cell_takes(matrices: Sequence[Any]) -> bool:
    """True if the fused kernel runs on an input, states and weights, and now."""
    for matrix in matrices:
        if type(matrix) not in VIRTUAL or matrix.dim() != 2:
            return False
    input = matrices[0]
    if not input.numel() or not input.is_floating_point():
        return False
    return not is_recording_operators()


def _run_fused_cell(kind: str, state_count: int, input: Any, *rest: Any) -> Any:
    """The result of a cell by two products and the fused kernel.

    `rest` are the states, the two weights and the biases. All three are recorded. Raises torch's
    OutOfMemoryError, and RuntimeError for shapes that do not fit.
    """
    states = rest[:state_count]
    input_weight, hidden_weight, *biases = rest[state_count:]
    input_product = input @ input_weight.t()
    hidden_product = states[0] @ hidden_weight.t()
    last_state = states[-1]
    return _CELLS[kind].apply(kind, input_product, hidden_product, last_state, *biases)


def _pack_padded_sequence(func: Any, args: Any, kwargs: Any) -> Any:
    """The packed data on the device, and the batch sizes on the host; it is recorded.

    The lengths are read on the host. Raises RuntimeError for lengths on the device or wrong ones,
    DeviceClosed or the error of what ended the device, and torch's OutOfMemoryError.
    """
    data, lengths, *rest = args
    if not on_host(lengths):
        dtype = type_name(lengths).rpartition(".")[2].removesuffix("Tensor")
        raise RuntimeError(
            "'lengths' argument should be a 1D CPU int64 tensor, "
            f"but got {lengths.dim()}D {label_of(lengths)} {dtype} tensor"
        )
    device = require_open_device(data)
    inner = data._virtual_inner
    packed, batch_sizes = func(inner, lengths, *rest, **kwargs)
    work = work_of(packed, (inner,))
    record_operation(str(func), device, packed.nbytes, work)
    block = Block(device, packed.untyped_storage().nbytes())
    return wrap(packed, block), batch_sizes


operator("_pack_padded_sequence", plan=_pack_padded_sequence)


# ---- layers --------------------------------------------------------------------------------------

_DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_CAST: Final = (torch.float16, torch.bfloat16, torch.float32)  # by autocast
# torch's list of cuDNN's dtypes lacks bfloat16.
_FLATTENED: Final = (torch.float16, torch.float32, torch.float64)
# Parts of the memory that cuDNN reserves for backward, per step and per hidden unit: the gates, and
# the cells.
RESERVED_PARTS: Final = {"lstm": (4, 1), "gru": (6,), "rnn_tanh": (1,), "rnn_relu": (1,)}
_SCATTERED: Final = (
    "RNN module weights are not part of single contiguous chunk of memory. This means they need "
    "to be compacted at every call, possibly greatly increasing memory usage. "
    "To compact weights again call flatten_parameters()."
)
_ONCE: Final = (
    "Double backwards is not supported for CuDNN RNNs due to limitations in the CuDNN API. "
    "To run double backwards, please disable the CuDNN backend temporarily while running "
    "the forward pass of your RNN. For example: \n"
    "with torch.backends.cudnn.flags(enabled=False):\n    output = model(inputs)"
)


class _LayerSettings(NamedTuple):
    """How a recurrent layer runs, as torch passes it besides the data, states and weights."""

    kind: str  # a key of RESERVED_PARTS
    batch_sizes: Any  # a tensor, for packed input; None for padded input
    batch_first: bool
    biases: bool
    layers: int
    dropout: float
    train: bool
    bidirectional: bool


class _KeptByLayer(NamedTuple):
    """What the forward pass of a layer keeps for its backward pass."""

    device: VirtualDevice
    inner: list[Any]  # data, states and weights on the host
    results: list[Any]  # on the host, with their graph
    work: tuple[Any, ...]
    workspaces: Workspaces  # of backward


def _common_device(tensors: Sequence[Any], casting: bool = False) -> VirtualDevice | None:
    """The one device on which all of these are, with one dtype that cuDNN knows; else None.

    Also None where one is of a class with functions of its own, which run the layer themselves.
    With `casting`, the dtypes count as they are after autocast has cast them to half precision.
    """
    first = tensors[0]
    if type(first) not in VIRTUAL or first.dtype not in _DTYPES:
        return None
    if torch.overrides.has_torch_function(tensors):
        return None
    device: VirtualDevice = first._virtual_block.device
    dtypes = set()
    for tensor in tensors:
        if type(tensor) not in VIRTUAL:
            return None
        if tensor._virtual_block.device is not device:
            return None
        is_cast = casting and tensor.dtype in _CAST
        dtypes.add(torch.float16 if is_cast else tensor.dtype)
    if len(dtypes) == 1:
        return device
    return None


def _share_block(tensors: Sequence[Any]) -> bool:
    """True if these device tensors lie in one block of memory."""
    blocks = [tensor._virtual_block for tensor in tensors]
    return all(block is blocks[0] for block in blocks)


def _steps_first(tensor: Any, batch_first: bool) -> Any:
    """A view of data with steps before batches; without `batch_first`, the data itself."""
    if batch_first:
        return tensor.transpose(0, 1)
    return tensor


def _compute_layer(settings: _LayerSettings, inner: Sequence[Any], state_count: int) -> list[Any]:
    """The results of a layer on the host: the output, then the new states.

    `inner` are the data, `state_count` states and the weights. Half precision is computed in single
    where the CPU is slow in it. Raises what the CPU's layer raises.
    """
    dtype = inner[0].dtype
    if is_slow_on_host(dtype):
        inner = [tensor.float() for tensor in inner]
    data = inner[0]
    states = inner[1 : 1 + state_count]
    weights = inner[1 + state_count :]
    if settings.kind == "lstm":
        state = tuple(states)
    else:
        state = states[0]
    flags = (
        weights,
        settings.biases,
        settings.layers,
        settings.dropout,
        settings.train,
        settings.bidirectional,
    )
    compute = getattr(torch_functions, settings.kind)
    if settings.batch_sizes is not None:
        results = compute(data, settings.batch_sizes, state, *flags)
    else:  # cuDNN itself has the steps first, and returns a view
        data = _steps_first(data, settings.batch_first)
        output, *new_states = compute(data, state, *flags, False)
        results = [_steps_first(output, settings.batch_first), *new_states]
    return [result.to(dtype) for result in results]


def _bytes_of_layer(settings: _LayerSettings, data: Any, hidden: int) -> int:
    """How many bytes the output of one layer has, for a hidden size."""
    rows = data.shape[0]
    if settings.batch_sizes is None:
        rows *= data.shape[1]
    per_layer: int = rows * hidden * data.element_size()
    if settings.bidirectional:
        per_layer *= 2
    return per_layer


def _work_of_packed(work: tuple[Any, ...], batch_sizes: Any) -> tuple[Any, ...]:
    """The work of a layer whose sequences are packed, for the clock.

    `work` has the shape of the data as they are packed. It becomes that of as many steps with as
    many sequences each, on average. A number at the end says that they are packed.
    """
    dtype, out, data, *others = work
    steps = len(batch_sizes)
    sequences = math.ceil(data[0] / steps)
    return dtype, out, (steps, sequences, data[1]), *others, 1


def _size_of_reserve(settings: _LayerSettings, per_layer: int) -> int:
    """How many bytes cuDNN keeps for backward; `per_layer` are those of one layer's output."""
    layers = settings.layers
    counts = RESERVED_PARTS[settings.kind]
    sizes = [count * layers * per_layer for count in counts]
    between_layers = (layers - 1) * per_layer
    sizes.append(between_layers)
    return 256 + sum(_round_up_to_32(size) for size in sizes)


def _round_up_to_32(size: int) -> int:
    """The next multiple of 32."""
    return -(-size // 32) * 32


class CudnnRnn(WholeKernel):
    """One call of cuDNN, for a whole layer or several.

    The CPU's own graph inside computes the gradients. Memory that CUDA would keep alive for them is
    kept here.
    """

    @staticmethod
    def forward(
        ctx: Any,
        settings: _LayerSettings,
        device: VirtualDevice,
        state_count: int,
        data: Any,
        *rest: Any,
    ) -> Any:
        """Compute on the host, put the results on the device, and record the operation.

        The first `state_count` of `rest` are the states, the others the weights. Gives the output
        and the new states. In training, the memory that cuDNN keeps for backward is allocated. The
        host waits once, when the first layer with dropout needs its random numbers. Raises
        DeviceClosed or the error of what ended the device, torch's OutOfMemoryError, what the CPU's
        layer raises, and RuntimeError at a wait that is refused or tells of a failed kernel.
        """
        require_open_device(data)
        states = rest[:state_count]
        weights = rest[state_count:]
        inner = [inner_leaf_of(tensor) for tensor in (data, *rest)]
        with graph_on_host(any(ctx.needs_input_grad)):
            results = _compute_layer(settings, inner, state_count)
        # The memory that cuDNN keeps: a copy of scattered weights, and the reserve for backward.
        sizes = []
        if not _share_block(weights):
            sizes.append(bytes_of_all(weights))
        hidden = states[-1].shape[2]
        per_layer = _bytes_of_layer(settings, data, hidden)
        directions = 2 if settings.bidirectional else 1
        is_packed = settings.batch_sizes is not None
        recurrent_sizes = RecurrentSizes(
            per_layer, hidden, settings.layers, directions, data.dtype, is_packed
        )
        if settings.train:
            sizes.append(_size_of_reserve(settings, per_layer))
        held = hold_memory(device, *sizes)
        # Put the results on the device, and record.
        detached = [result.detach() for result in results]
        wrapped = wrap_each(detached, device)
        output = _steps_first(results[0], settings.batch_first)
        steps = _steps_first(inner[0], settings.batch_first)
        work = work_of(output, (steps, *inner[1:]))
        if settings.batch_sizes is not None:
            work = _work_of_packed(work, settings.batch_sizes)
        record_operation("aten._cudnn_rnn.default", device, bytes_of_all(results), work)
        if settings.train:
            if settings.dropout > 0 and hold_dropout_state(device):
                placement.record_waits("dropout state")
            copied = data.nbytes if settings.batch_first else 0
            use_workspaces(device, recurrent_workspaces(recurrent_sizes, copied))
        # Keep for backward what it needs.
        ctx.train = settings.train
        ctx.weight_count = len(weights)
        copied = data.nbytes + results[0].nbytes if settings.batch_first else 0
        workspaces = recurrent_workspaces(recurrent_sizes, copied)
        ctx.held = conceal(_KeptByLayer(device, inner, results, work, workspaces))
        ctx.save_for_backward(data, *rest, wrapped[0], *held)
        return tuple(wrapped)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradients of data, states and weights, on the device; the operation is recorded.

        None comes first, for the three other arguments. Raises RuntimeError if forward did not run
        in training mode, if a saved tensor was changed since, or if the device has failed;
        DeviceClosed if it is closed; torch's OutOfMemoryError. With `create_graph`, the gradients
        refuse to be differentiated again.
        """
        _ = ctx.saved_tensors  # refuses if one of them was written to since
        if not ctx.train:
            raise RuntimeError("cudnn RNN backward can only be called in training mode")
        kept: _KeptByLayer = reveal(ctx.held)
        device = kept.device
        if device.closed:
            raise closed_device_error(device)
        computed = gradients_by_host(kept.results, _inner_or_none(gradients), kept.inner)
        # Put them on the device, those of the weights in one block.
        first_weight = len(computed) - ctx.weight_count
        results = wrap_each(computed[:first_weight], device)
        results += _wrap_in_one_block(computed[first_weight:], device)
        nbytes = bytes_of_all(results)
        record_operation("aten._cudnn_rnn_backward.default", device, nbytes, kept.work)
        use_workspaces(device, kept.workspaces)
        return None, None, None, *refuse_second_gradients(results, _ONCE)


def _wrap_in_one_block(gradients: list[Any], device: VirtualDevice) -> list[Any]:
    """The gradients on the device, all in one new block; None stays None.

    cuDNN writes the gradients of all weights into one buffer, as the weights lie in one. Raises
    torch's OutOfMemoryError.
    """
    tensors = [gradient for gradient in gradients if gradient is not None]
    if not tensors:
        return gradients
    rows = [tensor.reshape(-1) for tensor in tensors]
    flat = torch.cat(rows)
    block = allocate(device, flat.nbytes)
    sizes = [tensor.numel() for tensor in tensors]
    pieces = iter(flat.split(sizes))
    wrapped: list[Any] = []
    for gradient in gradients:
        if gradient is None:
            wrapped.append(None)
            continue
        piece = next(pieces).view(gradient.shape)
        wrapped.append(wrap(piece, block))
    return wrapped


_apply: Final[Any] = CudnnRnn.apply
CudnnRnn._backward_cls.__name__ = "CudnnRnnBackward0"  # as torch numbers its own


def _compare_dtypes(data: Any, states: Sequence[Any], weight: Any) -> None:
    """Raise CUDA's RuntimeError for a state whose dtype is not that of the data.

    Nothing is raised where the weight has another dtype than the data.
    """
    if data.dtype is not weight.dtype or data.dtype not in DTYPE_NAMES:
        return
    for state in states:
        if state.dtype is not data.dtype and state.dtype in DTYPE_NAMES:
            raise RuntimeError(
                "Input and hidden tensors are not the same dtype, found input tensor with "
                f"{DTYPE_NAMES[data.dtype]} and hidden tensor with {DTYPE_NAMES[state.dtype]}"
            )


def run_layer(kind: str, original: Any, data: Any, *args: Any) -> Any:
    """The result of `torch._VF.lstm` and its kin, for packed and for padded input.

    `args` are those of that function after the data. cuDNN runs it where it can, else `original`,
    torch's own function. What cuDNN runs is recorded; the host waits for its first dropout. Warns
    of weights that do not lie in one block. Raises RuntimeError, in CUDA's words, for different
    dtypes and for batch sizes on the device, torch's OutOfMemoryError, RuntimeError at a wait that
    is refused or tells of a failed kernel, and what `original` raises.
    """
    # Packed input comes with its batch sizes before the state, padded input with a flag at the end.
    # The state of an LSTM is a list, the second argument of others, if padded, is one of weights.
    if kind == "lstm":
        distinctive = args[0]
    else:
        distinctive = args[1]
    if isinstance(distinctive, torch.Tensor):
        batch_sizes, state, weights, *flags = args
        batch_first = False
    else:
        state, weights, *flags, batch_first = args
        batch_sizes = None
    states = tuple(state) if kind == "lstm" else (state,)
    tensors = [data, *states, *weights]
    # See whether cuDNN takes it. Whatever autocast was asked for, its layers are cast to half.
    is_casting = torch.is_autocast_enabled("cuda")
    device = _common_device(tensors, is_casting)
    if device is None:
        are_virtual = all(type(each) in VIRTUAL for each in tensors)
        if are_virtual and not is_casting:
            _compare_dtypes(data, states, weights[0])
        return original(data, *args)
    is_off = not torch.backends.cudnn.enabled
    if is_off or is_recording_operators() or not data.numel():
        return original(data, *args)
    # cuDNN runs it.
    if type(batch_sizes) in VIRTUAL:
        raise RuntimeError(f"batch_sizes tensor should be on CPU, but got {label_of(batch_sizes)}")
    if is_casting:
        tensors = [cast_argument(tensor, torch.float16) for tensor in tensors]
    elif not _share_block(weights):
        warn(_SCATTERED)
    settings = _LayerSettings(kind, batch_sizes, batch_first, *flags)
    return _apply(settings, device, len(states), *tensors)


def _run_layer_by_name(kind: str, overload: Any, *args: Any) -> Any:
    """The result of a layer that was called as an operator.

    Where cuDNN does not run it, C++'s own composite does: `decompose` would take one written in
    Python where torch has imported it. What cuDNN runs is recorded; it warns of weights that do not
    lie in one block. Raises RuntimeError, in CUDA's words, and at a wait that is refused or tells
    of a failed kernel, and torch's OutOfMemoryError.
    """
    return run_layer(kind, functools.partial(overload._op_dk, COMPOSITE), *args)


def register_layers(library: Any) -> None:
    """Register recurrent layers that are called as `torch.gru` or `torch.ops.aten.gru`.

    `library` is the torch.library.Library of aten.
    """
    for kind in RESERVED_PARTS:
        packet = getattr(aten, kind)
        for name in ("data", "input"):
            overload = getattr(packet, name)
            kernel = functools.partial(_run_layer_by_name, kind, overload)
            library.impl(f"{kind}.{name}", kernel, "AutogradLazy")


def flatten_parameters(self: Any) -> None:
    """Make the parameters of an `RNNBase` views of one new block, matrices first.

    Nothing changes where cuDNN is off or would not run the layer, or parameters share memory or are
    of a class with functions of its own. Raises torch's OutOfMemoryError.
    """
    weights = self._flat_weights
    if len(weights) != len(self._flat_weights_names) or not weights:
        return
    device = _common_device(weights)
    if device is None or not torch.backends.cudnn.enabled:
        return
    dtype = weights[0].dtype
    addresses = {weight.data_ptr() for weight in weights}
    if dtype not in _FLATTENED or len(addresses) < len(weights):
        return
    # Copy them into one buffer.
    matrices_first = sorted(weights, key=lambda weight: weight.dim() == 1)
    sizes = [weight.numel() for weight in matrices_first]
    flat = torch.empty(sum(sizes), dtype=dtype, device=device.inside)
    block = allocate(device, flat.nbytes)
    for weight, piece in zip(matrices_first, flat.split(sizes), strict=True):
        weight._virtual_inner = piece.view(weight.shape).copy_(weight._virtual_inner)
        weight._virtual_block = block
        update_shell(weight)
