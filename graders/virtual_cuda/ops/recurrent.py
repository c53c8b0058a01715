"""Recurrent cells and layers, as fused kernels and cuDNN run them.

A fused kernel does in one launch what would otherwise take several operators. The inner tensor of a
device tensor is the CPU tensor with its values.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.nn.functional
from torch.autograd import grad as _grad

from virtual_cuda.device.cuda_errors import (
    DTYPE_NAMES,
    label_of,
    type_name,
    warn,
)
from virtual_cuda.device.hidden import conceal, reveal
from virtual_cuda.device.state import Block, VirtualDevice
from virtual_cuda.device.tensor import VIRTUAL, update_shell, wrap
from virtual_cuda.internals import COMPOSITE, torch_functions
from virtual_cuda.ops import placement
from virtual_cuda.ops.autocast import cast
from virtual_cuda.ops.dispatch import (
    allocate,
    closed_device_error,
    record_operation,
    require_open_device,
    work_of,
)
from virtual_cuda.ops.elementwise import is_slow_on_host
from virtual_cuda.ops.placement import compare, on_host
from virtual_cuda.ops.registry import operator
from virtual_cuda.ops.whole_kernels import (
    are_on_several_devices,
    cast_by_autocast,
    hold_memory,
    is_recording_operators,
    refuse_second_gradients,
    wrap_each,
)

aten: Final = torch.ops.aten


def _lstm_gates(x: Any, h: Any, c: Any, *biases: Any) -> tuple[Any, ...]:
    """The new hidden state and the new cell of an LSTM, from its two products and the old cell."""
    i, f, g, o = sum(biases, x + h).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_gates(x: Any, h: Any, state: Any, *biases: Any) -> tuple[Any, ...]:
    """The new state of a GRU, in a tuple, from its two products and the old state."""
    if biases:
        x = x + biases[0]
        h = h + biases[1]
    (r, z, n), (hr, hz, hn) = x.chunk(3, 1), h.chunk(3, 1)
    n = (n + (r + hr).sigmoid() * hn).tanh()
    return (n + (z + hz).sigmoid() * (state - n),)


# The function of each cell, and how many times the size of a state is kept for backward.
_GATES: Final = {
    "lstm": (_lstm_gates, 4),
    "gru": (_gru_gates, 5),
}


class FusedCell(torch.autograd.Function):
    """The part of a recurrent cell after its two products, as one kernel each way."""

    @staticmethod
    def forward(ctx: Any, kind: str, *tensors: Any) -> Any:
        """Compute the new states on the host, put them on the device, and record the operation.

        If gradients are needed, the memory that CUDA keeps for backward is allocated.
        """
        gates, kept = _GATES[kind]
        device = tensors[0]._block.device
        inner = [t._inner for t in tensors]
        outs = gates(*inner)
        results = wrap_each(outs, device)
        nbytes = outs[0].nbytes * kept
        record_operation(
            f"aten._thnn_fused_{kind}_cell.default",
            device,
            nbytes + sum(o.nbytes for o in outs),
            work_of(outs, inner),
        )
        ctx.kind, ctx.device = kind, conceal(device)
        kept_too = (*results[1:], *hold_memory(device, nbytes)) if any(ctx.needs_input_grad) else ()
        ctx.given = len(tensors)
        ctx.save_for_backward(*tensors, *kept_too)
        return results[0] if len(results) == 1 else tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradients of the tensors that need one, on the device.

        The operation is recorded. With `create_graph` it is made of single operators, as on CUDA,
        which record themselves. Raises if the device is closed.
        """
        gates = _GATES[ctx.kind][0]
        tensors = ctx.saved_tensors[: ctx.given]
        device = reveal(ctx.device)
        if device.closed:
            raise closed_device_error(device)
        # Are the gradients to be differentiated? Then they are computed step by step, as on CUDA.
        twice = torch.is_grad_enabled()
        given = (
            tensors
            if twice
            else [t._inner.detach().requires_grad_(t.requires_grad) for t in tensors]
        )
        # Compute the cell again, with a graph, for its gradients.
        with torch.enable_grad():
            pairs = [
                (out, g) for out, g in zip(gates(*given), gradients, strict=True) if g is not None
            ]
        wanted = [t for t in given if t.requires_grad]
        found: Any = _grad(
            [out for out, _ in pairs],
            wanted,
            [g if twice else g._inner for _, g in pairs],
            create_graph=twice,
        )
        if not twice:
            found = wrap_each(found, device)
            name = f"aten._thnn_fused_{ctx.kind}_cell_backward_impl.default"
            record_operation(name, device, sum(f.nbytes for f in found), work_of(None, given))
        # None for those that need no gradient.
        each = iter(found)
        return (None, *(next(each) if t.requires_grad else None for t in given))


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
    `original` is torch's function; it runs where the fused kernel does not fit. Raises CUDA's
    RuntimeError for tensors on different devices.
    """
    states = [hidden] if isinstance(hidden, torch.Tensor) else list(hidden)
    biases = [b for b in weights[2:] if b is not None]
    operands = (input, *states, *weights[:2], *biases)
    # Compare devices in CUDA's order: first the two products, then the fused kernel.
    if type(input) in VIRTUAL and are_on_several_devices(*operands):
        for rows, weight in zip((input, states[0]), weights, strict=False):
            compare(
                "wrapper_CUDA_mm",
                [("self", "self"), ("mat2", "mat2")],
                {"self": rows, "mat2": weight},
            )
        given = {"input_gates": input, "hidden_gates": states[0], state: states[-1]}
        given |= dict(zip(("input_bias", "hidden_bias"), weights[2:], strict=False))
        compare(f"wrapper_CUDA___thnn_fused_{kind}_cell", [(name, name) for name in given], given)
    fits = (
        len(weights) == 4
        and len(biases) != 1
        and all(type(t) in VIRTUAL and t.dim() == 2 for t in operands[: -len(biases) or None])
    )
    if not fits or not input.numel() or not input.is_floating_point() or is_recording_operators():
        return original(input, hidden, *weights)
    # Under autocast: cast the operands, then begin again without it.
    if torch.is_autocast_enabled("cuda"):
        lower = functools.partial(cast_by_autocast, torch.get_autocast_dtype("cuda"))
        with torch.autocast("cuda", enabled=False):
            return run_cell(
                kind,
                state,
                original,
                lower(input),
                [lower(s) for s in states] if len(states) > 1 else lower(hidden),
                *map(lower, weights),
            )
    products = [
        rows @ weight.t() for rows, weight in zip((input, states[0]), weights, strict=False)
    ]
    return _CELLS[kind].apply(kind, *products, states[-1], *biases)


def _pack_padded_sequence(func: Any, args: Any, kwargs: Any) -> Any:
    """The packed data on the device, and the batch sizes on the host; it is recorded.

    The lengths are read on the host. Raises RuntimeError for lengths on the device.
    """
    data, lengths, *rest = args
    if not on_host(lengths):
        kind = type_name(lengths).rpartition(".")[2].removesuffix("Tensor")
        raise RuntimeError(
            "'lengths' argument should be a 1D CPU int64 tensor, "
            f"but got {lengths.dim()}D {label_of(lengths)} {kind} tensor"
        )
    device = require_open_device(data)
    packed, sizes = func(data._inner, lengths, *rest, **kwargs)
    record_operation(str(func), device, packed.nbytes, work_of(packed, (data._inner,)))
    return wrap(packed, Block(device, packed.untyped_storage().nbytes())), sizes


operator("_pack_padded_sequence", plan=_pack_padded_sequence)


_DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_CAST: Final = (torch.float16, torch.bfloat16, torch.float32)  # by autocast
# torch's list of cuDNN's dtypes lacks bfloat16.
_FLATTENED: Final = (
    torch.float16,
    torch.float32,
    torch.float64,
)
# Parts of the memory that cuDNN reserves for backward, per step and per hidden unit: the gates, and
# the cells.
RESERVED_PARTS: Final = {"lstm": (4, 1), "gru": (6,), "rnn_tanh": (1,), "rnn_relu": (1,)}
_SCATTERED: Final = (
    "RNN module weights are not part of single contiguous chunk of memory. This means they need to be compacted "
    "at every call, possibly greatly increasing memory usage. To compact weights again call flatten_parameters()."
)


_ONCE: Final = (
    "Double backwards is not supported for CuDNN RNNs due to limitations in the CuDNN API. To run double backwards, "
    "please disable the CuDNN backend temporarily while running the forward pass of your RNN. For example: \n"
    "with torch.backends.cudnn.flags(enabled=False):\n    output = model(inputs)"
)


def _common_device(tensors: list[Any], casting: bool = False) -> VirtualDevice | None:
    """The one device on which all of these are, with one dtype that cuDNN knows; else None.

    With `casting`, the dtypes count as they are after autocast has cast them to half precision.
    """
    first = tensors[0]
    if type(first) not in VIRTUAL or first.dtype not in _DTYPES:
        return None
    device: VirtualDevice = first._block.device
    same = all(type(t) in VIRTUAL and t._block.device is device for t in tensors)
    dtypes = {torch.float16 if casting and t.dtype in _CAST else t.dtype for t in tensors}
    return device if same and len(dtypes) == 1 else None


class CudnnRnn(torch.autograd.Function):
    """One call of cuDNN, for a whole layer or several.

    The CPU's own graph inside computes the gradients. Memory that CUDA would keep alive for them is
    kept here.
    """

    @staticmethod
    def forward(
        ctx: Any, kind: str, settings: Any, device: VirtualDevice, count: int, data: Any, *rest: Any
    ) -> Any:
        """Compute on the host, put the results on the device, and record the operation.

        The first `count` of `rest` are the states, the others the weights. In training, the memory
        that cuDNN keeps for backward is allocated, and with dropout the host waits.
        """
        layers, dropout, train, bidirectional, biases, sizes, batch_first = settings
        states = rest[:count]
        weights = rest[count:]
        tensors = (data, *rest)
        inner = [t._inner.detach().requires_grad_(t.requires_grad) for t in tensors]
        # Compute on the host.
        function = getattr(torch_functions, kind)
        with torch.enable_grad() if any(ctx.needs_input_grad) else torch.no_grad():
            given = [t.float() for t in inner] if is_slow_on_host(data.dtype) else inner
            state = tuple(given[1 : 1 + count]) if kind == "lstm" else given[1]
            tail = (given[1 + count :], biases, layers, dropout, train, bidirectional)
            if sizes is not None:
                outs = function(given[0], sizes, state, *tail)
            else:  # cuDNN itself has the steps first, and returns a view
                outs = _steps_first(
                    function(_steps_first(given, batch_first)[0], state, *tail, False), batch_first
                )
            outs = [out.to(data.dtype) for out in outs]
        # The memory that cuDNN keeps: a copy of scattered weights, and the reserve for backward.
        shared = all(w._block is weights[0]._block for w in weights)
        held = hold_memory(device, *([] if shared else [sum(w.nbytes for w in weights)]))
        if train:
            steps = data.shape[0] * data.shape[1] if sizes is None else len(sizes) * int(sizes[0])
            hidden = states[-1].shape[2]
            units = steps * hidden * data.element_size() * (2 if bidirectional else 1)
            # cuDNN keeps `units` bytes per layer for every part, each part rounded up to 32.
            parts = [count * layers * units for count in RESERVED_PARTS[kind]] + [
                (layers - 1) * units
            ]
            held += hold_memory(device, 256 + sum(-(-part // 32) * 32 for part in parts))
        # Put the results on the device, and record.
        wrapped = wrap_each([out.detach() for out in outs], device)
        work = work_of(_steps_first(outs, batch_first), _steps_first(inner, batch_first))
        record_operation("aten._cudnn_rnn.default", device, sum(out.nbytes for out in outs), work)
        if train and dropout > 0:
            placement.note("dropout state")
        ctx.train, ctx.held, ctx.weights = train, conceal((device, inner, outs, work)), len(weights)
        ctx.save_for_backward(*tensors, wrapped[0], *held)
        return tuple(wrapped)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradients of data, states and weights, on the device; the operation is recorded.

        Raises RuntimeError if forward did not run in training mode, if a saved tensor was changed
        since, or if the device has failed; DeviceClosed if it is closed. With `create_graph`, the
        gradients refuse to be differentiated again.
        """
        _ = ctx.saved_tensors  # refuses if one of them was written to since
        if not ctx.train:
            raise RuntimeError("cudnn RNN backward can only be called in training mode")
        device, inner, outs, work = reveal(ctx.held)
        if device.closed:
            raise closed_device_error(device)
        wanted = [t for t in inner if t.requires_grad]
        pairs = [
            (out, g._inner)
            for out, g in zip(outs, gradients, strict=True)
            if g is not None and out.requires_grad
        ]
        # The CPU's graph gives the gradients; those it does not reach are zeros.
        found = _grad(
            [out for out, _ in pairs],
            wanted,
            [g for _, g in pairs],
            retain_graph=True,
            allow_unused=True,
        )
        given = (
            torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True)
        )
        computed = [next(given) if t.requires_grad else None for t in inner]
        # Put them on the device, those of the weights in one block.
        count = len(computed) - ctx.weights
        results = [*wrap_each(computed[:count], device), *_in_one_block(computed[count:], device)]
        nbytes = sum(r.nbytes for r in results if r is not None)
        record_operation("aten._cudnn_rnn_backward.default", device, nbytes, work)
        return (None, None, None, None, *refuse_second_gradients(results, _ONCE))


def _steps_first(tensors: Sequence[Any], batch_first: bool) -> Sequence[Any]:
    """The tensors, the first of them with steps before batches.

    Its first two dimensions are exchanged if the batch comes first; otherwise nothing changes.
    """
    return [tensors[0].transpose(0, 1), *tensors[1:]] if batch_first else tensors


def _in_one_block(gradients: list[Any], device: VirtualDevice) -> list[Any]:
    """The gradients on the device, all in one new block; None stays None.

    cuDNN writes the gradients of all weights into one buffer, as the weights lie in one.
    """
    made = [g for g in gradients if g is not None]
    if not made:
        return gradients
    flat = torch.cat([g.reshape(-1) for g in made])
    block = allocate(device, flat.nbytes)
    pieces = iter(flat.split([g.numel() for g in made]))
    return [None if g is None else wrap(next(pieces).view(g.shape), block) for g in gradients]


_apply: Final[Any] = CudnnRnn.apply
CudnnRnn._backward_cls.__name__ = "CudnnRnnBackward0"  # as torch numbers its own


def _compare_dtypes(data: Any, states: Sequence[Any], weight: Any) -> None:
    """Raise CUDA's RuntimeError for a state whose dtype is not that of the data.

    Nothing is raised where the weight has another dtype than the data.
    """
    for state in states:
        if (
            data.dtype is weight.dtype
            and state.dtype is not data.dtype
            and {data.dtype, state.dtype} <= DTYPE_NAMES.keys()
        ):
            raise RuntimeError(
                "Input and hidden tensors are not the same dtype, found input tensor with "
                f"{DTYPE_NAMES[data.dtype]} and hidden tensor with {DTYPE_NAMES[state.dtype]}"
            )


def run_layer(kind: str, original: Any, data: Any, *args: Any) -> Any:
    """The result of `torch._VF.lstm` and its kin, for packed and for padded input.

    cuDNN runs it where it can, else `original`, torch's own function. Warns of weights that do not
    lie in one block. Raises RuntimeError, in CUDA's words, for different dtypes and for batch sizes
    on the device.
    """
    packed = isinstance(args[0] if kind == "lstm" else args[1], torch.Tensor)
    sizes = args[0] if packed else None
    state, weights, biases, layers, dropout, train, bidirectional = (
        args[1:8] if packed else args[:7]
    )
    states = tuple(state) if kind == "lstm" else (state,)
    given = [data, *states, *weights]
    # See whether cuDNN takes it.
    casting = torch.is_autocast_enabled("cuda")
    # Whatever autocast was asked for, cuDNN's layers are cast to half.
    device = _common_device(given, casting) if isinstance(data, torch.Tensor) else None
    if (
        device is None
        or not data.numel()
        or not torch.backends.cudnn.enabled
        or is_recording_operators()
    ):
        if device is None and not casting and all(type(t) in VIRTUAL for t in given):
            _compare_dtypes(data, states, weights[0])
        return original(data, *args)
    # cuDNN runs it.
    if packed and type(sizes) in VIRTUAL:
        raise RuntimeError(f"batch_sizes tensor should be on CPU, but got {label_of(sizes)}")
    if casting:
        data, *rest = (cast(t, torch.float16) for t in given)
        states, weights = tuple(rest[: len(states)]), rest[len(states) :]
    elif not all(w._block is weights[0]._block for w in weights):
        warn(_SCATTERED)
    settings = (layers, dropout, train, bidirectional, biases, sizes, not packed and args[7])
    return _apply(kind, settings, device, len(states), data, *states, *weights)


def _by_name(kind: str, op: Any, *args: Any) -> Any:
    # C++'s own composite; `decompose` takes one written in Python where torch has imported it.
    return run_layer(kind, functools.partial(op._op_dk, COMPOSITE), *args)


def register(library: Any) -> None:
    """Register recurrent layers that are called as `torch.gru` or `torch.ops.aten.gru`.

    `library` is the torch.library.Library of aten.
    """
    for kind in RESERVED_PARTS:
        for overload in ("data", "input"):
            kernel = functools.partial(_by_name, kind, getattr(getattr(aten, kind), overload))
            library.impl(f"{kind}.{overload}", kernel, "AutogradLazy")


def flatten_parameters(self: Any) -> None:
    """Make the parameters of an `RNNBase` views of one new block, matrices first.

    Nothing changes where cuDNN is off or would not run the layer, or parameters share memory.
    """
    weights = self._flat_weights
    if len(weights) != len(self._flat_weights_names) or not weights:
        return
    device = _common_device(weights) if all(isinstance(w, torch.Tensor) for w in weights) else None
    if device is None or weights[0].dtype not in _FLATTENED or not torch.backends.cudnn.enabled:
        return
    if len({w.data_ptr() for w in weights}) != len(weights):
        return
    flat = torch.empty(sum(w.numel() for w in weights), dtype=weights[0].dtype)
    block = allocate(device, flat.nbytes)
    matrices_first = sorted(weights, key=lambda w: w.dim() == 1)
    for weight, piece in zip(
        matrices_first, flat.split([w.numel() for w in matrices_first]), strict=True
    ):
        weight._inner = piece.view(weight.shape).copy_(weight._inner)
        weight._block = block
        update_shell(weight)
