"""Operators that differ from the CPU's: kernels that only CUDA has, strides, names of nodes, words
of refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from virtual_cuda import virtual_cuda

from tests.virtual_cuda.releases import TORCH


@pytest.fixture(autouse=True)
def gpu() -> Iterator[Any]:
    with virtual_cuda() as gpu:
        yield gpu


@pytest.mark.parametrize("function", [F.silu, F.mish])
def test_backward_is_one_operation(gpu: Any, function: Any) -> None:
    x = torch.ones(4, device="cuda", requires_grad=True)
    made = function(x)
    before = len(gpu.ledger)
    made.backward(torch.ones(4, device="cuda"))
    written = [str(getattr(row, "name", "")) for row in gpu.ledger.rows[before:]]
    names = [name for name in written if "backward" in name]
    assert names == [f"aten.{function.__name__}_backward.default"]


@pytest.mark.parametrize("name", ["mm", "bmm", "addmm", "baddbmm"])
def test_products_in_single_precision(name: str) -> None:
    shape = (2, 3, 3) if "bmm" in name else (3, 3)
    operands = [torch.randn(shape).bfloat16() for _ in range(3 if "add" in name else 2)]
    function = getattr(torch, name)
    made = function(*(each.cuda() for each in operands), out_dtype=torch.float32)
    assert made.dtype is torch.float32
    torch.testing.assert_close(made.cpu(), function(*(each.float() for each in operands)))
    with pytest.raises(RuntimeError, match="out_dtype"):
        function(*(each.cuda() for each in operands), out_dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_transforms_in_half_precision() -> None:
    x = torch.randn(4, 8).half()
    made = torch.fft.rfft(x.cuda())
    assert made.dtype is torch.complex32
    torch.testing.assert_close(
        made.cpu().to(torch.complex64), torch.fft.rfft(x.float()), rtol=1e-2, atol=1e-2
    )
    assert torch.fft.irfft(made).dtype is torch.float16
    by_operator = torch.ops.aten._fft_r2c(x.cuda(), [1], 0, True)
    torch.testing.assert_close(by_operator.cpu(), made.cpu())
    for refused in (
        lambda: torch.fft.rfft(x[:, :6].cuda()),
        lambda: torch.fft.fftn(x.cuda(), (4, 5)),
        lambda: torch.ops.aten._fft_r2c(x[:, :6].cuda(), [1], 0, True),
        lambda: torch.ops.aten._fft_c2r(made, [1], 0, 6),
        lambda: torch.ops.prims.fft_r2c(x[:, :6].cuda(), dim=[1], onesided=True),
    ):
        with pytest.raises(RuntimeError, match="powers of two"):
            refused()


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
@pytest.mark.parametrize("name", ["sin", "tanh", "acosh", "exp", "sqrt", "sigmoid"])
def test_functions_of_complex_numbers_in_half_precision(name: str) -> None:
    x = torch.randn(5, dtype=torch.complex64)
    wanted = getattr(torch, name)(x)
    narrow = x.cuda().to(torch.complex32)
    made = getattr(torch, name)(narrow)
    assert made.dtype is torch.complex32
    close = {"rtol": 1e-2, "atol": 1e-2}
    torch.testing.assert_close(made.cpu().to(torch.complex64), wanted, **close)
    assert getattr(narrow, f"{name}_")() is narrow
    torch.testing.assert_close(narrow.cpu(), made.cpu())


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_reductions_of_complex_numbers_in_half_precision() -> None:
    x = torch.tensor([[1 + 2j, 3], [4j, -1]], device="cuda").to(torch.complex32)
    assert x.sum().item() == 3 + 6j
    assert x.sum(0, dtype=torch.complex32).dtype is torch.complex32
    assert x.nansum().item() == 3 + 6j
    assert x.prod(1).tolist() == [3 + 6j, -4j]
    assert torch.angle(x).dtype is torch.float16
    assert (x / x).real.tolist() == [[1, 1], [1, 1]]
    with pytest.raises(NotImplementedError, match="log2_cuda"):
        x.log2()


# Recorded on an H200: the input's shape, the order of its dimensions in memory, the transform, the
# result's strides.
TRANSFORMED: list[
    tuple[tuple[int, ...], tuple[int, ...], Callable[[Any], Any], tuple[int, ...]]
] = [
    ((2, 8, 6, 6), (0, 1, 2, 3), torch.fft.fft, (288, 36, 6, 1)),
    ((2, 8, 6, 6), (0, 2, 3, 1), torch.fft.fft, (288, 6, 48, 1)),
    ((2, 8, 6, 6), (0, 2, 3, 1), torch.fft.rfft2, (192, 24, 4, 1)),
    ((5, 6, 7), (0, 1, 2), lambda x: torch.fft.fft(x, n=10, dim=1), (70, 1, 10)),
    ((5, 6, 7), (2, 1, 0), lambda x: torch.fft.fftn(x.cfloat()), (1, 5, 30)),
    ((5, 6, 7), (2, 1, 0), lambda x: torch.fft.rfftn(x, dim=(-1,)), (4, 20, 1)),
    ((5, 6, 7), (0, 1, 2), lambda x: torch.fft.irfft(x.cfloat(), n=10, dim=1), (70, 1, 10)),
    ((5, 6, 7), (2, 1, 0), torch.fft.irfftn, (12, 60, 1)),
    ((5, 6, 7), (2, 1, 0), lambda x: torch.fft.irfft2(x, dim=(0,)), (1, 56, 8)),
    ((5, 6, 7), (2, 1, 0), lambda x: torch.fft.hfft(x, n=10, dim=1), (70, 1, 10)),
    ((5, 6, 7), (0, 1, 2), lambda x: torch.fft.ihfft2(x, s=(3, 10), dim=(1, 2)), (18, 1, 3)),
]


@pytest.mark.parametrize(("shape", "order", "transform", "strides"), TRANSFORMED)
def test_strides_of_transforms(shape: Any, order: Any, transform: Any, strides: Any) -> None:
    x = torch.randn([shape[dim] for dim in order]).permute(
        [order.index(dim) for dim in range(len(order))]
    )
    made = transform(x.cuda())
    assert made.stride() == strides
    torch.testing.assert_close(made.cpu(), transform(x))


def test_a_batch_that_is_one_line_in_memory_is_transformed_with_it() -> None:
    x = torch.randn(1, 8, 6, 6, device="cuda").expand(4, 8, 6, 6)
    assert torch.fft.fft(x).stride() == (6, 144, 24, 1)
    assert torch.fft.rfft2(x).stride() == (24, 96, 4, 1)


HALF_KERNELS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "instance norm": F.instance_norm,
    "bicubic": lambda x: F.interpolate(x, size=5, mode="bicubic", align_corners=False),
    "linear": lambda x: F.interpolate(x[0], size=5, mode="linear", align_corners=False),
    "trilinear": lambda x: F.interpolate(
        x[None], size=(2, 5, 5), mode="trilinear", align_corners=False
    ),
    "pooled": lambda x: F.adaptive_avg_pool3d(x, (2, 3, 3)),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", HALF_KERNELS)
def test_half_precision_is_rounded_once(name: str, dtype: torch.dtype) -> None:
    x = (torch.randn(3, 4, 7, 7, generator=torch.Generator().manual_seed(0)) * 5).to(dtype)
    exact = HALF_KERNELS[name](x.float())
    error = (HALF_KERNELS[name](x.cuda()).cpu().float() - exact).abs()
    assert bool((error <= exact.abs() * torch.finfo(dtype).eps * 0.51 + 1e-5).all())


def test_running_statistics_in_half_precision_are_kept() -> None:
    x = torch.randn(4, 3, 5).half()
    mean = torch.zeros(3).half()
    var = torch.ones(3).half()
    mine = mean.cuda(), var.cuda()
    F.batch_norm(x.cuda(), *mine, training=True)
    F.batch_norm(x.float(), wide := mean.float(), wider := var.float(), training=True)
    torch.testing.assert_close(
        [each.cpu() for each in mine], [wide.half(), wider.half()], rtol=1e-3, atol=1e-3
    )


def test_batch_norm_asked_directly_keeps_its_statistics() -> None:
    x = torch.randn(3, 2, 4, device="cuda").transpose(0, 2)
    given = [torch.ones(2, device="cuda") for _ in range(4)]
    made = torch._native_batch_norm_legit(x, *given, training=False, momentum=0.1, eps=1e-5)
    assert (made[0].stride(), made[1].tolist(), made[2].shape) == (x.stride(), [1, 1], (2,))
    with pytest.raises(RuntimeError, match="suggest_memory_format"):
        torch.ops.aten._batch_norm_with_update(x, *given, 0.1, 1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_a_mask_that_is_trained(causal: bool) -> None:
    operands = [torch.randn(2, 4, 5, 8).requires_grad_() for _ in range(3)]
    mask = torch.randn(5, 5, requires_grad=True)
    past = mask.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf")) if causal else mask
    wanted = torch.autograd.grad(
        F.scaled_dot_product_attention(*operands, past).sum(), (*operands, mask)
    )
    there = [each.detach().cuda().requires_grad_() for each in (*operands, mask)]
    made = F.scaled_dot_product_attention(*there, is_causal=causal)
    assert type(made.grad_fn).__name__ == "ScaledDotProductEfficientAttentionBackward0"
    gradients = torch.autograd.grad(made.sum(), there)
    torch.testing.assert_close([each.cpu() for each in gradients], list(wanted))
    assert [each.stride() for each in gradients] == [*[(160, 8, 32, 1)] * 3, (5, 1)]


def test_the_sampler_of_cudnn() -> None:
    image = torch.randn(2, 3, 4, 4, requires_grad=True)
    grid = torch.rand(2, 5, 5, 2, requires_grad=True)
    wanted = F.grid_sample(image, grid, align_corners=True)
    there = [each.detach().cuda().requires_grad_() for each in (image, grid)]
    made = torch.cudnn_grid_sampler(*there)
    torch.testing.assert_close(made.cpu(), wanted)
    gradients = (
        torch.autograd.grad(made.sum(), there),
        torch.autograd.grad(wanted.sum(), (image, grid)),
    )
    torch.testing.assert_close([each.cpu() for each in gradients[0]], list(gradients[1]))
    with pytest.raises(RuntimeError, match="expected grid and input to have same batch size"):
        torch.cudnn_grid_sampler(there[0], there[1][:1])


def test_the_gradient_of_dropout_is_contiguous_or_has_channels_last() -> None:
    x = torch.ones(2, 3, 4, 4, device="cuda")
    for given, wanted in (
        (x.transpose(0, 3), (24, 8, 2, 1)),
        (x.to(memory_format=torch.channels_last), (48, 1, 12, 3)),
    ):
        given = given.detach().clone().requires_grad_()
        made = F.dropout(given, 0.5)
        (gradient,) = torch.autograd.grad(made, given, torch.ones_like(made))
        assert gradient.stride() == wanted


def test_strides_where_a_size_is_0_or_1() -> None:
    last = torch.randn(1, 9, 2, 2, device="cuda").contiguous(memory_format=torch.channels_last)
    assert F.pixel_shuffle(last, 3).stride() == (36, 36, 6, 1)
    assert torch.linalg.svd(torch.empty(0, 3, device="cuda"), full_matrices=False).Vh.stride() == (
        3,
        1,
    )
    assert torch.linalg.eig(torch.empty(0, 5, 5, device="cuda")).eigenvectors.stride() == (25, 5, 1)


def test_complex_numbers_are_summed_without_those_missing() -> None:
    z = torch.tensor([[1 + 2j, float("nan")], [3j, 4]], device="cuda")
    assert torch.nansum(z).item() == 5 + 5j
    assert torch.nansum(z, 0).tolist() == [1 + 5j, 4]


def test_a_conjugate_result_knows_that_it_is_one() -> None:
    a, b = (torch.randn(3, dtype=torch.complex64) for _ in range(2))
    made = torch.vdot(a.cuda(), b.cuda().conj())
    assert made.is_conj() == torch.vdot(a, b.conj()).is_conj()
    torch.testing.assert_close(made.cpu(), a.conj() @ b.conj())


# ---- what an H200 gave for inputs that lie in another order in memory, and for mistakes ----------

CONTIGUOUS: dict[str, Callable[[Any], Any]] = {
    "pixel_shuffle": lambda t: F.pixel_shuffle(t, 2),
    "pixel_unshuffle": lambda t: F.pixel_unshuffle(t, 2),
    "channel_shuffle": lambda t: F.channel_shuffle(t, 2),
    "roll": lambda t: t.roll(1, 1),
    "reflect": lambda t: F.pad(t, (1, 1, 1, 1), mode="reflect"),
    "replicate": lambda t: F.pad(t, (1, 1, 1, 1), mode="replicate"),
    "output padded by the stride": lambda t: F.conv_transpose2d(
        t, torch.ones(8, 3, 3, 3, device=t.device), output_padding=1, dilation=2
    ),
}


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_kernels_that_do_not_keep_channels_last(name: str) -> None:
    host = torch.rand(2, 8, 6, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    x = host.detach().cuda().requires_grad_()
    out = CONTIGUOUS[name](x)
    (gradient,) = torch.autograd.grad(out.square().sum(), x)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert (out.is_contiguous(), gradient.is_contiguous()) == (True, True)
    wanted = CONTIGUOUS[name](host)
    torch.testing.assert_close(out.cpu(), wanted)
    torch.testing.assert_close(gradient.cpu(), torch.autograd.grad(wanted.square().sum(), host)[0])


def test_strides_of_indices_and_of_sorted_values() -> None:
    assert torch.ones(2, 3, device="cuda").nonzero().stride() == (1, 6)
    assert torch.zeros(2, 3, device="cuda").nonzero().stride() == (1, 1)
    assert torch.nonzero_static(torch.ones(2, 3, device="cuda"), size=4).stride() == (1, 4)
    turned = torch.tensor([[True, False, True], [False, False, True]], device="cuda").t()
    assert [found.stride() for found in turned.sort(0)] == [turned.stride()] * 2
    volume = (
        torch.ones(1, 2, 3, 3, 3, device="cuda")
        .to(memory_format=torch.channels_last_3d)
        .requires_grad_()
    )
    out = F.conv_transpose3d(volume, torch.ones(2, 2, 2, 2, 2, device="cuda"))
    assert torch.autograd.grad(out.sum(), volume)[0].stride() == volume.stride()


def test_batch_norm_keeps_the_order_of_dimensions_without_cudnn() -> None:
    x = torch.rand(2, 6, 4, 5).cuda().permute(0, 2, 3, 1)
    parts = torch.ones(4).cuda(), torch.zeros(4).cuda()
    assert F.batch_norm(x, None, None, training=True).stride() == x.stride()
    assert F.batch_norm(x, None, None, *parts, training=True).is_contiguous()
    torch.testing.assert_close(
        F.batch_norm(x, None, None, training=True).cpu(),
        F.batch_norm(x.cpu(), None, None, training=True),
    )


def test_names_of_fused_nodes() -> None:
    x = torch.ones(1, 2, 8, 8, device="cuda", requires_grad=True)
    half = x.half()
    results = [F.scaled_dot_product_attention(t, t, t) for t in (x, half)]
    names = [
        "ScaledDotProductEfficientAttentionBackward0",
        "ScaledDotProductCudnnAttentionBackward0",
    ]
    if TORCH >= (2, 9):
        results.append(F.rms_norm(x, (8,)))
        names.append("FusedRmsNormBackward0")
    assert [result.grad_fn.name() for result in results if result.grad_fn] == names


MIXED = (
    "Expected all tensors to be on the same device, but got {} is on {}, different from other "
    "tensors on {} "
)
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "mask": (
        lambda: EYE.cuda().masked_scatter(EYE.cuda(), EYE.cuda()),
        "got mask with dtype float$",
    ),
    "mask of integers": (
        lambda: EYE.cuda().masked_scatter_(EYE.cuda().long(), EYE.cuda()),
        "with dtype long int$",
    ),
    "mask to fill": (
        lambda: EYE.cuda().masked_fill(EYE.cuda().long(), 0),
        "^masked_fill only .*, but got dtype Long$",
    ),
    "source": (
        lambda: EYE.cuda().masked_scatter(EYE.cuda().bool(), EYE.cuda().half()),
        "^masked_scatter_: expected self and source to have same dtypes but got Float and Half$",
    ),
    "bags of floats": (
        lambda: F.embedding_bag(EYE.cuda(), EYE.cuda()),
        (
            r"but got torch.cuda.FloatTensor instead \(while checking arguments for "
            r"embedding_bag_cuda\)$"
        ),
    ),
    "weights of bags": (
        lambda: F.embedding_bag(
            ZERO[0].cuda(),
            EYE.cuda(),
            ZERO[0].cuda(),
            mode="sum",
            per_sample_weights=ONE.cuda().half(),
        ),
        "^expected scalar type Float but found Half$",
    ),
    "index of floats": (
        lambda: EYE.cuda().index_select(0, ONE.cuda()),
        "^\"index_select_out_cuda_impl\" not implemented for 'Float'$",
    ),
    "grid": (
        lambda: F.grid_sample(
            torch.ones(1, 1, 2, 2, device="cuda").half(),
            torch.zeros(1, 1, 1, 2, device="cuda"),
            align_corners=False,
        ),
        "^expected scalar type Half but found Float$",
    ),
    "batches of products": (
        lambda: torch.bmm(EYE.cuda()[None].half(), EYE.cuda()[None]),
        "^expected scalar type Half but found Float$",
    ),
    "product with a vector": (
        lambda: torch.mv(EYE.cuda(), EYE.cuda()[0].half()),
        "^expected scalar type Float but found Half$",
    ),
    "cross product": (
        lambda: torch.linalg.cross(
            torch.ones(3, device="cuda"), torch.ones(3, device="cuda").half()
        ),
        "^Found dtype Half but expected Float$",
    ),
    "hidden state": (
        lambda: torch.nn.GRU(2, 2).cuda()(
            EYE.cuda()[None], torch.ones(1, 2, 2, device="cuda").half()
        ),
        (
            "^Input and hidden tensors are not the same dtype, found input tensor with Float and "
            "hidden tensor with Half$"
        ),
    ),
    "jiterator": (
        lambda: torch.cuda.jiterator._create_jit_fn(
            "template <typename T> T same(T x) { return x; }"
        )(ONE.cuda()),
        "the virtual GPU cannot run kernels of the jiterator",
    ),
    "kernel": (
        lambda: torch.cuda._compile_kernel('extern "C" __global__ void nothing() {}', "nothing"),  # type: ignore[no-untyped-call]
        "the virtual GPU cannot run kernels of CUDA C",
    ),
    "scattered": (
        lambda: torch.as_strided_scatter(
            torch.ones(2, 3, device="cuda").t().requires_grad_(), ONE.cuda(), (1,), (1,)
        ),
        "as_strided_scatter is currently only supported for contiguous inputs",
    ),
    "sparse result": (
        lambda: torch.smm(EYE.cuda().to_sparse(), EYE.cuda()),
        "NYI: CUDA sspaddmm is not implemented",
    ),
    "type": (lambda: EYE.cuda().to_sparse_csr().type(), "Unimplemented backend SparseCsrCUDA"),
    "nested": (
        lambda: torch.nested.nested_tensor([ONE.cuda(), ONE]),
        MIXED.format("tensors", "cpu", "cuda:0"),
    ),
    "coo": (
        lambda: torch.sparse_coo_tensor(ZERO, ONE.cuda()),
        MIXED.format("values", "cuda:0", "cpu"),
    ),
    "coo indices": (
        lambda: torch.sparse_coo_tensor(ZERO.cuda(), ONE),
        MIXED.format("values", "cpu", "cuda:0"),
    ),
    "csr": (
        lambda: torch.sparse_csr_tensor(torch.tensor([0, 1]), ZERO[0], ONE.cuda()),
        "Values and crow_indices need to be on the same device.",
    ),
    "sparse product": (lambda: EYE.cuda().to_sparse() @ EYE, "wrapper_SparseCUDA__mm"),
    "trace": (lambda: torch.trace(torch.ones(2, 2, 2, device="cuda")), "^expected a matrix$"),
    "index_select": (
        lambda: EYE.cuda().index_select(0, EYE.cuda()),
        "Index is supposed to be an empty tensor or a vec",
    ),
    "max_pool3d": (
        lambda: F.max_pool3d(torch.ones(0, 1, 2, 9, device="cuda"), 1),
        "_out_cuda_template",
    ),
    "max_unpool2d": (
        lambda: F.max_unpool2d(
            torch.ones(1, 1, 4, 4, device="cuda"), torch.zeros(1, 1, 4, 1, device="cuda").long(), 2
        ),
        r"Expected shape of indices to be: \[1, 1, 4, 4\] but got: \[1, 1, 4, 1\]",
    ),
    "narrow_copy": (
        lambda: torch.narrow_copy(EYE.cuda(), 5, 0, 1),
        r"Dimension out of range \(expected",
    ),
    "current_stream": (
        lambda: torch.cuda.current_stream(9),
        r"Device index value 9 is out of index range \[0, 1\)",
    ),
    "channel_shuffle": (
        lambda: F.channel_shuffle(torch.ones(2, 4, 3, 5, device="cuda").transpose(0, 3), 2),
        "view size is not compatible",
    ),
    "ldl_solve": (
        lambda: torch.linalg.ldl_solve(
            (EYE * 1j).cuda(),
            torch.tensor([1, 2], dtype=torch.int32).cuda(),
            (EYE * 1j).cuda(),
            hermitian=True,
        ),
        "complex tensors with hermitian=True flag are not supported on CUDA",
    ),
}
ONE = torch.ones(1)
ZERO = torch.tensor([[0]])
EYE = torch.eye(2)


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_in_cudas_words(name: str) -> None:
    call, words = MISTAKES[name]
    with pytest.raises((RuntimeError, IndexError), match=words):
        call()


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested tensors")
def test_a_named_device_moves_the_parts() -> None:
    assert torch.sparse_coo_tensor(ZERO, ONE, device="cuda").is_cuda
    assert torch.sparse_coo_tensor([[0]], ONE.cuda()).is_cuda
    assert torch.sparse_csr_tensor(torch.tensor([0, 1]), ZERO[0], ONE, device="cuda").is_cuda
    assert torch.nested.nested_tensor([ONE.cuda(), ONE], device="cuda").is_cuda


def scaled_product(left: Any, left_kind: Any, right: Any, right_kind: Any) -> torch.Tensor:
    """The product of a matrix of ones and twos with one of ones, each with scales of a kind."""
    a = torch.ones(128, 256, device="cuda")
    a[:, :128] = 2
    b = torch.ones(256, 256, device="cuda")
    fp8 = torch.float8_e4m3fn
    scaled_mm = F.scaled_mm  # type: ignore[attr-defined]
    made: torch.Tensor = scaled_mm(
        *(a.to(fp8), b.to(fp8).t(), left, left_kind, right, right_kind),
        output_dtype=torch.bfloat16,
    )
    assert made.dtype is torch.bfloat16
    return made.float().cpu()


@pytest.mark.skipif(not hasattr(F, "scaled_mm"), reason="new in torch 2.10")
def test_products_of_float8_with_scales() -> None:
    kinds = F.ScalingType  # type: ignore[attr-defined]
    one = torch.ones((), device="cuda")
    rows = torch.arange(128.0, device="cuda").reshape(128, 1)
    columns = torch.ones(1, 256, device="cuda")
    whole = scaled_product(one * 0.5, kinds.TensorWise, one, kinds.TensorWise)
    assert (whole == 192).all()
    by_row = scaled_product(rows / 32, kinds.RowWise, columns, kinds.RowWise)
    wanted = torch.arange(128.0) * 12
    assert (by_row[:, 0] == wanted.bfloat16()).all()
    # The first 128 columns of the left matrix count three times, the others twice.
    parts = torch.tensor([3.0, 2.0], device="cuda").expand(128, 2).t().contiguous().t()
    blocks = torch.ones(2, 4, device="cuda").t()
    by_part = scaled_product(parts, kinds.BlockWise1x128, blocks, kinds.BlockWise128x128)
    assert (by_part == 128 * 2 * 3 + 128 * 2).all()
