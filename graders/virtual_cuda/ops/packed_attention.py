"""Attention over packed sequences: several of different lengths, one behind the other in a tensor.

`torch.nn.attention.varlen` runs it by the operators of flash attention, which only CUDA has. Inner
tensors are the CPU tensors inside the device's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch

from virtual_cuda.ops.registry import operator

_HALF: Final = (torch.float16, torch.bfloat16)


class _PackedSettings(NamedTuple):
    """Which keys a query sees, and the factor of its scores."""

    is_causal: bool
    scale: float | None  # None for the usual factor
    left: int | None  # how many keys before its own a query sees; None or -1 for all
    right: int | None  # how many after it


class _Sequence(NamedTuple):
    """One sequence of a batch."""

    place: Any  # indexes the packed queries, and their gradients
    key_place: Any  # indexes the packed keys and values; None where they lie in pages
    query: torch.Tensor  # (length, heads, size of a head)
    key: torch.Tensor
    value: torch.Tensor


class _Scored(NamedTuple):
    """What the queries of a sequence have seen; heads come first, in single precision."""

    query: torch.Tensor
    key: torch.Tensor  # one for each head of the query
    value: torch.Tensor
    weights: torch.Tensor  # (heads, queries, keys)
    log_sums: torch.Tensor  # (heads, queries): of the exponentials of the scores
    scale: float


# ---- one sequence --------------------------------------------------------------------------------


def _visible_keys(queries: int, keys: int, settings: _PackedSettings) -> torch.Tensor:
    """A mask of (queries, keys): True where a query sees a key.

    The last query stands beside the last key.
    """
    positions = torch.arange(queries)[:, None] + (keys - queries)
    distances = torch.arange(keys) - positions
    visible = torch.ones(queries, keys, dtype=torch.bool)
    left = settings.left
    right = settings.right
    if settings.is_causal:
        right = 0
    if left is not None and left >= 0:
        visible &= distances >= -left
    if right is not None and right >= 0:
        visible &= distances <= right
    return visible


def _score_sequence(sequence: _Sequence, settings: _PackedSettings) -> _Scored:
    """The weights with which the queries of a sequence see its keys, and what else it takes.

    All is in single precision, heads first.
    """
    heads = sequence.query.shape[1]
    queries_of_a_key = heads // sequence.key.shape[1]
    query = sequence.query.float().transpose(0, 1)
    key = _one_for_each_query(sequence.key, queries_of_a_key)
    value = _one_for_each_query(sequence.value, queries_of_a_key)
    scale = settings.scale
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    visible = _visible_keys(query.shape[1], key.shape[1], settings)
    scores = query @ key.transpose(1, 2) * scale
    scores = scores.masked_fill(~visible, torch.finfo(torch.float32).min)
    weights = scores.softmax(-1) * visible  # nothing, for a query that sees no key
    log_sums = scores.logsumexp(-1).masked_fill(~visible.any(-1), math.inf)
    return _Scored(query, key, value, weights, log_sums, scale)


def _one_for_each_query(tensor: torch.Tensor, queries_of_a_key: int) -> torch.Tensor:
    """Keys or values in single precision, heads first, repeated for the heads that share them."""
    repeated = tensor.float().repeat_interleave(queries_of_a_key, 1)
    return repeated.transpose(0, 1)


def _sum_over_shared(gradient: torch.Tensor, heads: int) -> torch.Tensor:
    """A gradient of repeated keys or values as that of the `heads` there were before."""
    _, length, size = gradient.shape
    return gradient.view(heads, -1, length, size).sum(1).transpose(0, 1)


# ---- a batch -------------------------------------------------------------------------------------


def _sequences_of(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: torch.Tensor | None,
    key_ends: torch.Tensor | None,
    used_keys: torch.Tensor | None = None,
    pages: torch.Tensor | None = None,
) -> Iterator[_Sequence]:
    """The sequences of a batch, in their order.

    `query_ends` and `key_ends` tell where sequences end, after a zero; without them the first
    dimension counts the sequences. `used_keys` limits how many keys of each there are; `pages` has
    the numbers of the pieces of memory in which they lie.
    """
    if query_ends is None or (key_ends is None and pages is None):
        for index in range(query.shape[0]):
            yield _Sequence(index, index, query[index], key[index], value[index])
        return
    ends = query_ends.tolist()
    for index in range(len(ends) - 1):
        place = slice(ends[index], ends[index + 1])
        key_place = None
        if pages is not None:
            numbers = pages[index].long()
            keys = key[numbers].flatten(0, 1)
            values = value[numbers].flatten(0, 1)
        else:
            assert key_ends is not None
            key_place = slice(int(key_ends[index]), int(key_ends[index + 1]))
            keys = key[key_place]
            values = value[key_place]
        if used_keys is not None:
            count = int(used_keys[index])
            keys = keys[:count]
            values = values[:count]
        yield _Sequence(place, key_place, query[place], keys, values)


def _attend_to_batch(
    out: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query: torch.Tensor,
    ends: tuple[torch.Tensor | None, torch.Tensor | None],
    settings: _PackedSettings,
    used_keys: torch.Tensor | None,
    pages: torch.Tensor | None,
) -> torch.Tensor:
    """Write the result of attention into `out`, and return the log-sums of exponentials.

    `ends` tell where the sequences of queries and of keys end, after a zero; without them the first
    dimension counts the sequences. `used_keys` limits how many keys of each there are, and `pages`
    has the numbers of the pieces of memory in which they lie. Raises RuntimeError for shapes that
    do not fit.
    """
    log_sums = []
    for sequence in _sequences_of(query, key, value, *ends, used_keys, pages):
        scored = _score_sequence(sequence, settings)
        result = scored.weights @ scored.value
        out[sequence.place] = result.transpose(0, 1).to(out.dtype)
        log_sums.append(scored.log_sums)
    if query.dim() == 4:
        return torch.stack(log_sums)
    return torch.cat(log_sums, dim=1)


# ---- the operators -------------------------------------------------------------------------------


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: torch.Tensor | None,
    key_ends: torch.Tensor | None,
    longest_query: int,
    longest_key: int,
    dropout: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """The results of `_flash_attention_forward` on inner tensors.

    They are: the result, the log-sums of exponentials, and three that matter only with dropout. The
    arguments are those of the operator, some by shorter names. Raises RuntimeError for shapes that
    do not fit.
    """
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    settings = _PackedSettings(is_causal, scale, window_size_left, window_size_right)
    ends = (query_ends, key_ends)
    log_sums = _attend_to_batch(out, key, value, query, ends, settings, seqused_k, block_table)
    random_state = torch.zeros(2, dtype=torch.uint64)
    return out, log_sums, random_state, torch.empty((), dtype=torch.uint64), query.new_empty(0)


def _attend_into(out: torch.Tensor, query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Write the result of `_flash_attention_forward` into `out`, and return the log-sums.

    Further arguments are those of that operator. Raises RuntimeError for shapes that do not fit.
    """
    result, log_sums, *_ = _attend(query, *args, **kwargs)
    out.copy_(result)
    return log_sums


def _attend_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    log_sums: torch.Tensor,
    query_ends: torch.Tensor | None,
    key_ends: torch.Tensor | None,
    longest_query: int,
    longest_key: int,
    dropout: float,
    is_causal: bool,
    random_state: torch.Tensor,
    unused: torch.Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of query, key and value, on inner tensors.

    `gradient` is that of the result; the arguments are those of `_flash_attention_backward`, some
    by shorter names. Raises RuntimeError for shapes that do not fit.
    """
    of_query = torch.zeros_like(query)
    of_key = torch.zeros_like(key)
    of_value = torch.zeros_like(value)
    settings = _PackedSettings(is_causal, scale, window_size_left, window_size_right)
    for sequence in _sequences_of(query, key, value, query_ends, key_ends):
        scored = _score_sequence(sequence, settings)
        of_result = gradient[sequence.place].float().transpose(0, 1)
        # Back through the product with the values, the softmax and the product with the keys.
        of_weights = of_result @ scored.value.transpose(1, 2)
        expected = (of_weights * scored.weights).sum(-1, keepdim=True)
        of_scores = scored.weights * (of_weights - expected) * scored.scale
        heads = sequence.key.shape[1]
        keys = _sum_over_shared(of_scores.transpose(1, 2) @ scored.query, heads)
        values = _sum_over_shared(scored.weights.transpose(1, 2) @ of_result, heads)
        queries = (of_scores @ scored.key).transpose(0, 1)
        of_query[sequence.place] = queries.to(query.dtype)
        of_key[sequence.key_place] = keys.to(key.dtype)
        of_value[sequence.key_place] = values.to(value.dtype)
    return of_query, of_key, of_value


def _refuse_forward(args: Any, kwargs: Any) -> None:
    """Raise RuntimeError for a dtype that flash attention does not take, as CUDA does.

    Raises NotImplementedError for dropout, whose random numbers backward would need.
    """
    query, dropout = args[0], args[7]
    _refuse(query, dropout)


def _refuse_forward_into(args: Any, kwargs: Any) -> None:
    """Refuse what flash attention does not take, of an operator that has `out` in front.

    Raises RuntimeError for another dtype than half, and NotImplementedError for dropout.
    """
    _refuse_forward(args[1:], kwargs)


def _refuse_backward(args: Any, kwargs: Any) -> None:
    """Refuse what flash attention does not take, of the backward operator.

    Raises RuntimeError for another dtype than half, and NotImplementedError for dropout.
    """
    query, dropout = args[1], args[10]
    _refuse(query, dropout)


def _refuse(query: torch.Tensor, dropout: float) -> None:
    """Raise RuntimeError for another dtype than half, and NotImplementedError for dropout."""
    if query.dtype not in _HALF:
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if dropout:
        raise NotImplementedError(
            "the virtual GPU cannot run torch.ops.aten._flash_attention_forward with dropout; "
            "use torch.nn.functional.scaled_dot_product_attention there"
        )


operator("_flash_attention_forward", kernel=_attend, refuse=_refuse_forward)
operator(
    "_flash_attention_forward_no_dropout_inplace",
    kernel=_attend_into,
    refuse=_refuse_forward_into,
)
operator("_flash_attention_backward", kernel=_attend_backward, refuse=_refuse_backward)
