"""How do LSTM, GRU and RNN layers run on CUDA? As one cuDNN call, with one block of weights and one of reserve."""

from __future__ import annotations

import warnings
from typing import Any, Final

import torch
from torch import nn
from torch.autograd import grad as _grad  # the unwatched one: its pass is part of the student's

from graders.bench.virtual import syncs
from graders.bench.virtual.dispatch import allocate, shut, write
from graders.bench.virtual.places import Place
from graders.bench.virtual.tensor import VIRTUAL, refresh, wrap

_DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_FLATTENED: Final = (torch.float16, torch.float32, torch.float64)  # torch's list of cuDNN's dtypes lacks bfloat16
# Parts of the reserve that hold, per step and per hidden unit, what backward needs: the gates, and the cells.
_PARTS: Final = {"lstm": (4, 1), "gru": (6,), "rnn_tanh": (1,), "rnn_relu": (1,)}
_SCATTERED: Final = (
    "RNN module weights are not part of single contiguous chunk of memory. This means they need to be compacted "
    "at every call, possibly greatly increasing memory usage. To compact weights again call flatten_parameters()."
)


def _place(tensors: list[Any]) -> Place | None:
    """The one device all of these are on with one dtype cuDNN knows, if it is so."""
    first = tensors[0]
    if type(first) not in VIRTUAL or first.dtype not in _DTYPES:
        return None
    place: Place = first._block.place
    same = all(type(t) in VIRTUAL and t._block.place is place and t.dtype is first.dtype for t in tensors)
    return place if same else None


def reserve_bytes(kind: str, units: int, layers: int) -> int:
    """What cuDNN keeps from a forward pass: `units` bytes per layer for every part, each part rounded up to 32."""
    parts = [count * layers * units for count in _PARTS[kind]] + [(layers - 1) * units]
    return 256 + sum(-(-part // 32) * 32 for part in parts)


class CudnnRnn(torch.autograd.Function):
    """One cuDNN call: the CPU's own graph inside computes the gradients; what CUDA would keep alive is kept here."""

    @staticmethod
    def forward(ctx: Any, kind: str, settings: Any, place: Place, count: int, data: Any, *rest: Any) -> Any:
        layers, dropout, train, bidirectional, biases, sizes = settings
        states, weights = rest[:count], rest[count:]
        tensors = (data, *rest)
        inner = [t._inner.detach().requires_grad_(t.requires_grad) for t in tensors]
        host_states, host_weights = inner[1 : 1 + count], inner[1 + count :]
        state = tuple(host_states) if kind == "lstm" else host_states[0]
        function = getattr(torch._C._VariableFunctions, kind)
        tail = (host_weights, biases, layers, dropout, train, bidirectional)
        with torch.enable_grad() if any(ctx.needs_input_grad) else torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the CPU's libraries
            outs = function(inner[0], state, *tail, False) if sizes is None else function(inner[0], sizes, state, *tail)
        shared = all(w._block is weights[0]._block for w in weights)
        ctx.buffer = None if shared else allocate(place, sum(w.nbytes for w in weights))
        ctx.reserve = None
        if train:
            steps = data.shape[0] * data.shape[1] if sizes is None else len(sizes) * int(sizes[0])
            hidden = states[-1].shape[2]
            units = steps * hidden * data.element_size() * (2 if bidirectional else 1)
            ctx.reserve = allocate(place, reserve_bytes(kind, units, layers))
        wrapped = [wrap(out.detach(), allocate(place, out.nbytes)) for out in outs]
        write("aten._cudnn_rnn.default", place, sum(out.nbytes for out in outs))
        if train and dropout > 0:
            syncs.note("dropout state")
        ctx.train, ctx.place, ctx.inner, ctx.outs, ctx.weights = train, place, inner, outs, len(weights)
        ctx.save_for_backward(*tensors, wrapped[0])
        return tuple(wrapped)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        _ = ctx.saved_tensors  # refuses if one of them was written to since
        if not ctx.train:
            raise RuntimeError("cudnn RNN backward can only be called in training mode")
        place = ctx.place
        if place.shut:
            raise shut(place)
        wanted = [t for t in ctx.inner if t.requires_grad]
        pairs = [
            (out, g._inner) for out, g in zip(ctx.outs, gradients, strict=True) if g is not None and out.requires_grad
        ]
        found = _grad([out for out, _ in pairs], wanted, [g for _, g in pairs], retain_graph=True, allow_unused=True)
        given = iter(found)
        computed: list[Any] = []
        for tensor in ctx.inner:
            gradient = next(given) if tensor.requires_grad else None
            computed.append(torch.zeros_like(tensor) if gradient is None and tensor.requires_grad else gradient)
        count = len(computed) - ctx.weights
        results = [None if g is None else wrap(g, allocate(place, g.nbytes)) for g in computed[:count]]
        results += _in_one_block(computed[count:], place)
        write("aten._cudnn_rnn_backward.default", place, sum(r.nbytes for r in results if r is not None))
        return (None, None, None, None, *results)


def _in_one_block(gradients: list[Any], place: Place) -> list[Any]:
    """cuDNN writes the gradients of all weights into one buffer, as the weights lie in one."""
    made = [g for g in gradients if g is not None]
    if not made:
        return gradients
    flat = torch.cat([g.reshape(-1) for g in made])
    block = allocate(place, flat.nbytes)
    pieces = iter(flat.split([g.numel() for g in made]))
    return [None if g is None else wrap(next(pieces).view(g.shape), block) for g in gradients]


_apply: Final[Any] = CudnnRnn.apply
CudnnRnn._backward_cls.__name__ = "CudnnRnnBackward0"  # as torch numbers its own


def layer(kind: str, original: Any) -> Any:
    """`torch._VF.lstm` and its kin, for packed and for padded input."""

    def run(data: Any, *args: Any) -> Any:
        packed = isinstance(args[0] if kind == "lstm" else args[1], torch.Tensor)
        sizes = args[0] if packed else None
        state, weights, biases, layers, dropout, train, bidirectional = args[1:8] if packed else args[:7]
        states = tuple(state) if kind == "lstm" else (state,)
        place = _place([data, *states, *weights]) if isinstance(data, torch.Tensor) else None
        if place is None or not data.numel() or not torch.backends.cudnn.enabled:
            return original(data, *args)
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.float16  # whatever autocast was asked for: cuDNN's layers are cast to half
            data, states, weights = data.to(dtype), tuple(s.to(dtype) for s in states), [w.to(dtype) for w in weights]
        elif not all(w._block is weights[0]._block for w in weights):
            warnings.warn(_SCATTERED, UserWarning, stacklevel=2)
        batch_first = not packed and args[7]
        if batch_first:
            data = data.transpose(0, 1)
        settings = (layers, dropout, train, bidirectional, biases, sizes)
        output, *last = _apply(kind, settings, place, len(states), data, *states, *weights)
        if batch_first:
            output = output.transpose(0, 1)
        return (output, *last)

    return run


def flatten_parameters(original: Any) -> Any:
    """`RNNBase.flatten_parameters`: the parameters become views of one block, matrices first."""

    def flatten(self: Any) -> None:
        weights = self._flat_weights
        if len(weights) != len(self._flat_weights_names) or not weights or not isinstance(weights[0], torch.Tensor):
            return
        if any(not isinstance(w, torch.Tensor) for w in weights):
            return
        place = _place(weights)
        if place is None or weights[0].dtype not in _FLATTENED or not torch.backends.cudnn.enabled:
            return
        if len({w.data_ptr() for w in weights}) != len(weights):
            return
        flat = torch.empty(sum(w.numel() for w in weights), dtype=weights[0].dtype)
        block = allocate(place, flat.nbytes)
        start = 0
        for weight in sorted(weights, key=lambda w: w.dim() == 1):
            old = weight._inner
            view = flat[start : start + old.numel()].view(old.shape)
            view.copy_(old)
            start += old.numel()
            weight._inner, weight._block = view, block
            refresh(weight)

    return flatten


def patches() -> list[tuple[Any, str, Any]]:
    functions = torch._C._VariableFunctions
    made: list[tuple[Any, str, Any]] = [(torch._VF, kind, layer(kind, getattr(functions, kind))) for kind in _PARTS]
    return [*made, (nn.RNNBase, "flatten_parameters", flatten_parameters(nn.RNNBase.flatten_parameters))]
