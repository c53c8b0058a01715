"""Which composite functions meet a device check in a fused kernel that only CUDA has? They are checked here."""

from __future__ import annotations

import functools
from typing import Any, Final

import torch

from graders.bench.virtual.dispatch import shut, special, write
from graders.bench.virtual.placement import compare, on_host
from graders.bench.virtual.places import Block
from graders.bench.virtual.tensor import VIRTUAL, wrap
from graders.bench.virtual.wording import argument_elsewhere, label_of, lengths_elsewhere, without_lazy

# Composites whose own complaints name the device as C++ knows it.
_NAMING_DEVICES: Final = ("cdist", "gru", "istft", "lstm", "rnn_relu", "rnn_tanh", "stft")


def _mixed(*tensors: Any) -> bool:
    given = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return any(type(t) in VIRTUAL for t in given) and len({t.device for t in given}) > 1


def _rms_norm(original: Any) -> Any:
    def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
        if weight is not None and _mixed(input, weight):
            raise argument_elsewhere("weight", label_of(weight), label_of(input), "wrapper_CUDA___fused_rms_norm")
        return original(input, normalized_shape, weight, eps)

    return rms_norm


def _attention(original: Any) -> Any:
    """With a mask, CUDA takes the memory-efficient kernel, whose wrapper compares devices."""

    def scaled_dot_product_attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        together = not _mixed(query, key, value)
        if together and type(query) in VIRTUAL and query.dim() == 4 and _mixed(query, attn_mask):
            method = "wrapper_CUDA___scaled_dot_product_efficient_attention"
            raise argument_elsewhere("attn_bias", label_of(attn_mask), label_of(query), method)
        return original(query, key, value, attn_mask, *args, **kwargs)

    return scaled_dot_product_attention


def _cell(original: Any, fused: str, state: str) -> Any:
    """A recurrent cell on CUDA: two plain products, then one fused kernel."""

    def cell(input: Any, hidden: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        states = [hidden] if isinstance(hidden, torch.Tensor) else list(hidden)
        if type(input) in VIRTUAL and _mixed(input, *states, w_ih, w_hh, b_ih, b_hh):
            for rows, weight in ((input, w_ih), (states[0], w_hh)):
                compare("wrapper_CUDA_mm", [("self", "self"), ("mat2", "mat2")], {"self": rows, "mat2": weight})
            given = {
                "input_gates": input,
                "hidden_gates": states[0],
                state: states[-1],
                "input_bias": b_ih,
                "hidden_bias": b_hh,
            }
            compare(f"wrapper_CUDA__{fused}", [(name, name) for name in given], given)
        return original(input, hidden, w_ih, w_hh, b_ih, b_hh)

    return cell


def _in_cuda_words(original: Any) -> Any:
    """A function that compares devices in C++, which calls the virtual one by another name."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except RuntimeError as error:
            worded = without_lazy(error)
            if worded is None:
                raise
            raise worded from None

    return call


def _ctc_loss(original: Any) -> Any:
    """The mean divides by the lengths of the targets, which CUDA takes to where the losses are."""

    def ctc_loss(
        log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if type(log_probs) in VIRTUAL and isinstance(target_lengths, torch.Tensor):
            target_lengths = target_lengths.to(log_probs.device)
        return original(log_probs, targets, input_lengths, target_lengths, *args, **kwargs)

    return ctc_loss


def _pack_padded_sequence(func: Any, args: Any, kwargs: Any) -> Any:
    """The lengths are read on the host and the batch sizes stay there, whatever device the data are on."""
    data, lengths, *rest = args
    if not on_host(lengths):
        raise lengths_elsewhere(lengths)
    place = data._block.place
    if place.shut:
        raise shut(place)
    packed, sizes = func(data._inner, lengths, *rest, **kwargs)
    write(str(func), place, packed.nbytes)
    return wrap(packed, Block(place, packed.untyped_storage().nbytes())), sizes


special(torch.ops.aten._pack_padded_sequence.default)(_pack_padded_sequence)


def patches() -> list[tuple[Any, str, Any]]:
    functional, plain = torch.nn.functional, torch._VF
    attention = _attention(_in_cuda_words(functional.scaled_dot_product_attention))
    spoken = [(plain, name, _in_cuda_words(getattr(plain, name))) for name in _NAMING_DEVICES]
    methods = [
        (owner, name, _in_cuda_words(getattr(owner, name)))
        for owner in (torch, torch.Tensor)
        for name in ("take_along_dim", "tensor_split")
    ]
    return [
        *spoken,
        *methods,
        (torch, "ctc_loss", _ctc_loss(torch.ctc_loss)),
        (torch, "rms_norm", _rms_norm(torch.rms_norm)),
        (functional, "scaled_dot_product_attention", attention),
        (plain, "gru_cell", _cell(plain.gru_cell, "_thnn_fused_gru_cell", "hx")),
        (plain, "lstm_cell", _cell(plain.lstm_cell, "_thnn_fused_lstm_cell", "cx")),
    ]
