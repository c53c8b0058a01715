"""Attention takes the kernel that an H200 takes: its node, strides, memory and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from virtual_cuda import virtual_cuda

CUDNN = SDPBackend.CUDNN_ATTENTION
FLASH = SDPBackend.FLASH_ATTENTION
EFFICIENT = SDPBackend.EFFICIENT_ATTENTION
MATH = SDPBackend.MATH
PLAIN, INSIDE = (384, 128, 16, 1), (384, 16, 48, 1)
HALF = torch.float16
SINGLE = torch.float32


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    with virtual_cuda(gpu=getattr(request, "param", None)) as gpu:
        yield gpu


def heads(*size: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.ones(size, device="cuda", dtype=dtype, requires_grad=True)


def node(out: torch.Tensor) -> str:
    assert out.grad_fn is not None
    return out.grad_fn.name().removeprefix("ScaledDotProduct").removesuffix("AttentionBackward0")


# dtype, backends, what else is given, then the node and the strides that an H200 gave (torch 2.11)
CHOICES: dict[
    str, tuple[torch.dtype, list[SDPBackend] | None, dict[str, Any], str, tuple[int, ...]]
] = {
    "half precision": (HALF, None, {}, "Cudnn", PLAIN),
    "causal": (HALF, None, {"is_causal": True}, "Cudnn", PLAIN),
    "a mask": (HALF, None, {"attn_mask": "bool"}, "Cudnn", PLAIN),
    "a mask that is trained": (HALF, None, {"attn_mask": "trained"}, "Efficient", INSIDE),
    "single precision": (SINGLE, None, {}, "Efficient", INSIDE),
    "flash alone": (HALF, [FLASH], {}, "Flash", PLAIN),
    "flash or efficient": (HALF, [FLASH, EFFICIENT], {}, "Flash", PLAIN),
    "flash takes no mask": (
        HALF,
        [FLASH, EFFICIENT, MATH],
        {"attn_mask": "bool"},
        "Efficient",
        INSIDE,
    ),
    "efficient alone": (HALF, [EFFICIENT], {}, "Efficient", INSIDE),
    "efficient alone, single": (SINGLE, [EFFICIENT], {}, "Efficient", INSIDE),
    "cuDNN alone": (HALF, [CUDNN], {}, "Cudnn", PLAIN),
    "cuDNN or by parts": (HALF, [CUDNN, MATH], {}, "Cudnn", PLAIN),
    "by parts": (HALF, [MATH], {}, "ToCopyBackward0", PLAIN),
    "by parts, single": (SINGLE, [CUDNN, MATH], {}, "UnsafeViewBackward0", PLAIN),
}


def masks(kind: str | None, dtype: torch.dtype) -> torch.Tensor | None:
    if kind is None:
        return None
    if kind == "bool":
        return torch.ones(8, 8, dtype=torch.bool, device="cuda")
    return torch.zeros(8, 8, dtype=dtype, device="cuda", requires_grad=True)


@pytest.mark.parametrize("case", CHOICES)
def test_the_kernel_is_chosen_as_on_an_h200(case: str) -> None:
    dtype, backends, given, name, strides = CHOICES[case]
    given = {**given, "attn_mask": masks(given.get("attn_mask"), dtype)}
    q, k, v = (heads(2, 3, 8, 16, dtype=dtype) for _ in range(3))
    with sdpa_kernel(backends or [CUDNN, FLASH, EFFICIENT, MATH]):
        out = F.scaled_dot_product_attention(q, k, v, **given)
    assert (node(out), out.stride()) == (name, strides)
    if "Backward0" not in name:
        grads = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
        assert [g.stride() for g in grads] == [strides] * 3


@pytest.mark.parametrize("dtype", [HALF, SINGLE])
def test_none_of_the_chosen_kernels_fits(dtype: torch.dtype) -> None:
    odd = heads(2, 3, 8, 5, dtype=dtype)
    mask = masks("bool", dtype)
    flat = heads(3, 8, 16, dtype=dtype)
    for backend in (EFFICIENT, CUDNN):
        with (
            sdpa_kernel(backend),
            pytest.raises(RuntimeError, match=r"^No available kernel. Aborting execution.$"),
        ):
            F.scaled_dot_product_attention(odd, odd, odd)
    for backend in (FLASH, EFFICIENT, CUDNN):
        with sdpa_kernel(backend), pytest.raises(RuntimeError, match=r"^No available kernel"):
            F.scaled_dot_product_attention(flat, flat, flat)
    x = heads(2, 3, 8, 16, dtype=dtype)
    with sdpa_kernel(FLASH), pytest.raises(RuntimeError, match=r"^No available kernel"):
        F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def test_all_kernels_are_off() -> None:
    x = heads(2, 3, 8, 16)
    cuda = torch.backends.cuda
    switches = (
        cuda.enable_cudnn_sdp,
        cuda.enable_flash_sdp,
        cuda.enable_mem_efficient_sdp,
        cuda.enable_math_sdp,
    )
    try:
        for off, left in zip(switches, ("Flash", "Efficient", "ToCopyBackward0"), strict=False):
            off(False)
            assert node(F.scaled_dot_product_attention(x, x, x)) == left
        switches[-1](False)
        with pytest.raises(
            RuntimeError, match=r"^No viable backend for scaled_dot_product_attention"
        ):
            F.scaled_dot_product_attention(x, x, x)
    finally:
        for on in switches:
            on(True)


def test_the_layout_is_the_query_s() -> None:
    """Only the memory-efficient kernel has its own, also where a dimension has one element."""
    inside = heads(2, 8, 3, 16).transpose(1, 2)
    assert F.scaled_dot_product_attention(inside, inside, inside).stride() == INSIDE
    x = heads(2, 3, 8, 16)
    keys = heads(2, 3, 11, 16)
    assert F.scaled_dot_product_attention(x[:, :, :1], keys, keys).stride() == (48, 16, 16, 1)
    assert node(F.scaled_dot_product_attention(x, keys[:, :, :1], keys[:, :, :1])) == "Flash"
    values = heads(2, 3, 8, 32)
    out = F.scaled_dot_product_attention(x, x, values)
    assert (node(out), out.stride()) == ("Cudnn", (768, 256, 32, 1))
    assert torch.autograd.grad(out.sum(), (x, values))[1].stride() == (768, 256, 32, 1)
    x = x.float()
    keys = keys.float()
    assert F.scaled_dot_product_attention(x[:, :, :1], keys, keys).stride() == (48, 16, 48, 1)
    assert F.scaled_dot_product_attention(x[:, :1], x[:, :1], x[:, :1]).stride() == (128, 16, 16, 1)


def test_heads_are_padded_to_eights_for_flash() -> None:
    x = heads(2, 3, 7, 5)
    out = F.scaled_dot_product_attention(x, x, x)
    assert (node(out), out.stride()) == ("SliceBackward0", (168, 56, 8, 1))
    assert torch.autograd.grad(out.sum(), x)[0].stride() == (105, 35, 5, 1)
    wide = heads(2, 3, 7, 264)
    assert node(F.scaled_dot_product_attention(wide, wide, wide)) == "Efficient"


@pytest.mark.parametrize(("kind", "kept"), [(None, 3072), ("bool", 3584), ("trained", 2560)])
def test_memory_with_a_mask(kind: str | None, kept: int) -> None:
    x = heads(2, 3, 8, 16)
    mask = masks(kind, HALF)
    before = torch.cuda.memory_allocated()
    out = F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
    assert torch.cuda.memory_allocated() - before == kept
    del out


def test_queries_share_keys() -> None:
    torch.manual_seed(0)
    host = [torch.randn(2, n, 8, 16, dtype=HALF) for n in (6, 3, 3)]
    wide = [t.float().requires_grad_() for t in host]
    wanted = F.scaled_dot_product_attention(wide[0], wide[1], wide[2], enable_gqa=True)
    q, k, v = (t.cuda().requires_grad_() for t in host)
    before = torch.cuda.memory_allocated()
    out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert torch.cuda.memory_allocated() - before == 4608
    assert (node(out), out.stride()) == ("Cudnn", (768, 128, 16, 1))
    torch.testing.assert_close(out.cpu().float(), wanted, atol=0.01, rtol=0.01)
    for given, right in zip(
        torch.autograd.grad(out.sum(), (q, k, v)),
        torch.autograd.grad(wanted.sum(), wide),
        strict=True,
    ):
        torch.testing.assert_close(given.cpu().float(), right, atol=0.02, rtol=0.02)
    with sdpa_kernel(EFFICIENT), pytest.raises(RuntimeError, match=r"^No available kernel"):
        F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def test_kernels_say_what_they_take() -> None:
    x = heads(2, 3, 8, 16)
    single = x.float()
    assert torch.backends.cuda.is_flash_attention_available()
    for t, right in (
        (x, (True, True, True)),
        (single, (False, True, False)),
        (x.double(), (False, False, False)),
    ):
        params = torch.backends.cuda.SDPAParams(t, t, t, None, 0.0, False, False)
        assert right == (
            torch.backends.cuda.can_use_flash_attention(params),
            torch.backends.cuda.can_use_efficient_attention(params),
            torch.backends.cuda.can_use_cudnn_attention(params),
        )
    assert [torch._fused_sdp_choice(t, t, t) for t in (x, single, x.double())] == [3, 2, 0]


@pytest.mark.parametrize(
    ("device", "name"), [("A100", "Flash"), ("T4", "Efficient")], indirect=["device"]
)
def test_other_gpus_take_other_kernels(name: str) -> None:
    """cuDNN's comes first on a GPU of the H200's kind alone, and flash needs an A100's."""
    x = heads(2, 3, 8, 16)
    assert node(F.scaled_dot_product_attention(x, x, x)) == name


# window to the left and to the right of a query, and whether it sees no later key
@pytest.mark.parametrize(
    ("left", "right", "is_causal"), [(None, None, False), (-1, 0, True), (1, 1, False)]
)
def test_packed_sequences_attend_each_to_itself(
    left: int | None, right: int | None, is_causal: bool
) -> None:
    ends = torch.tensor([0, 3, 8], dtype=torch.int32, device="cuda")
    query = torch.randn(8, 4, 16, device="cuda", dtype=HALF)
    key = torch.randn(8, 2, 16, device="cuda", dtype=HALF)
    value = torch.randn(8, 2, 16, device="cuda", dtype=HALF)
    window = {"window_size_left": left, "window_size_right": right}
    packed = (query, key, value)
    places = (ends, ends, 5, 5, 0.0, is_causal)
    out, sums, state, unused, _ = torch.ops.aten._flash_attention_forward(
        *packed, *places, False, **window
    )
    gradient = torch.randn_like(out)
    gradients = torch.ops.aten._flash_attention_backward(
        gradient, *packed, out, sums, *places, state, unused, **window
    )
    assert sums.shape == (4, 8)
    for piece in (slice(0, 3), slice(3, 8)):
        alone = [each[piece].cpu().float().transpose(0, 1).requires_grad_() for each in packed]
        length = piece.stop - piece.start
        mask = torch.ones(length, length).bool()
        if is_causal:
            mask = mask.tril()
        elif left == 1:
            mask = mask.tril(1).triu(-1)
        wanted = F.scaled_dot_product_attention(*alone, attn_mask=mask, enable_gqa=True)
        wanted.backward(gradient[piece].cpu().float().transpose(0, 1))
        pairs = [(out, wanted.detach())]
        for found, each in zip(gradients, alone, strict=True):
            assert each.grad is not None
            pairs.append((found, each.grad))
        for found, expected in pairs:
            close = {"rtol": 1e-2, "atol": 1e-2}
            torch.testing.assert_close(
                found[piece].cpu().float(), expected.transpose(0, 1), **close
            )
    singles = [each.float() for each in packed]
    with pytest.raises(RuntimeError, match="only support fp16 and bf16"):
        torch.ops.aten._flash_attention_forward(*singles, *places, False)


def test_packed_sequences_train() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    ends = torch.tensor([0, 3, 8], dtype=torch.int32, device="cuda")
    query = torch.ones(8, 2, 16, device="cuda", dtype=HALF, requires_grad=True)
    varlen.varlen_attn(query, query, query, ends, ends, 5, 5).sum().backward()
    assert query.grad is not None
    assert query.grad.sum() == query.numel()


@pytest.mark.parametrize("kernel", [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION])
@pytest.mark.parametrize("batched", [(0, 0, 0), (0, None, None), (None, 0, 0)])
def test_attention_inside_vmap(kernel: SDPBackend, batched: tuple[int | None, ...]) -> None:
    operands = []
    alone = []
    for dim in batched:
        size = (3, 2, 4, 8, 16) if dim == 0 else (2, 4, 8, 16)
        operand = torch.rand(size, device="cuda", dtype=torch.float16)
        operands.append(operand)
        alone.append(operand if dim == 0 else operand.expand(3, *size))
    with sdpa_kernel([kernel]):
        result = torch.vmap(F.scaled_dot_product_attention, in_dims=batched)(*operands)
        expected = [F.scaled_dot_product_attention(*each) for each in zip(*alone, strict=True)]
    assert torch.allclose(result, torch.stack(expected), atol=1e-3)


def _nested(lengths: list[int], heads: int) -> torch.Tensor:
    pieces = [torch.rand(length, heads, 8, device="cuda", dtype=HALF) for length in lengths]
    return torch.nested.nested_tensor(pieces).transpose(1, 2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kernel", [FLASH, EFFICIENT])
@pytest.mark.parametrize(
    "sizes", [((2, 3), 2, (4, 1), 2), ((2, 3), 2, (4,), 2), ((3,), 1, (4, 1), 2)]
)
def test_nested_tensors_attend_by_fused_kernels(kernel: SDPBackend, sizes: Any) -> None:
    query_lengths, query_heads, key_lengths, key_heads = sizes
    query = _nested(query_lengths, query_heads)
    key = _nested(key_lengths, key_heads)
    with sdpa_kernel([kernel]):
        result = F.scaled_dot_product_attention(query, key, key)
    assert (result.is_nested, result.device.type, result.size(0)) == (True, "cuda", 2)
    queries = list(query.unbind()) * (2 // len(query_lengths))
    keys = list(key.unbind()) * (2 // len(key_lengths))
    for piece, one_query, one_key in zip(result.unbind(), queries, keys, strict=True):
        one_query = one_query.expand(2, -1, -1)
        expected = F.scaled_dot_product_attention(one_query, one_key, one_key)
        assert torch.allclose(piece, expected, atol=1e-3)


def test_cudnn_takes_no_more_images_than_its_grid_has_rows() -> None:
    for size in ((65536, 1, 2, 8), (1, 65536, 2, 8)):
        many = heads(*size)
        with sdpa_kernel([CUDNN]), pytest.raises(RuntimeError, match="No available kernel"):
            F.scaled_dot_product_attention(many, many, many)
