"""Values, gradients, strides and dtypes that others' programs rely on, compared with the CPU's."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from virtual_cuda import virtual_cuda

from tests.virtual_cuda.releases import TORCH

Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with virtual_cuda():
        torch.manual_seed(0)
        yield


def gradients(function: Function, device: str, *inputs: torch.Tensor) -> list[torch.Tensor]:
    mine = [each.detach().clone().to(device).requires_grad_() for each in inputs]
    function(*mine).backward()
    return [each.grad.cpu() for each in mine if each.grad is not None]


def assert_same_gradients(function: Function, *inputs: torch.Tensor) -> None:
    here = gradients(function, "cpu", *inputs)
    there = gradients(function, "cuda", *inputs)
    assert len(here) == len(there) == len(inputs)
    for mine, theirs in zip(there, here, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def rotary(x: torch.Tensor) -> torch.Tensor:
    turn = torch.polar(torch.ones(4, 3), torch.arange(12.0).view(4, 3)).to(x.device)
    turned = torch.view_as_real(torch.view_as_complex(x.reshape(4, 3, 2)) * turn)
    return (turned.flatten() * torch.arange(24.0, device=x.device)).sum()


Z = torch.complex(
    torch.randn(4, 4, generator=torch.Generator().manual_seed(1)),
    torch.randn(4, 4, generator=torch.Generator().manual_seed(2)),
)

COMPLEX: dict[str, Function] = {
    "product": lambda a: (a * a).abs().sum(),
    "exp": lambda a: a.exp().abs().sum(),
    "log": lambda a: a.log().abs().sum(),
    "pow": lambda a: a.pow(3).abs().sum(),
    "einsum": lambda a: torch.einsum("ij,kj->ik", a, a.conj()).abs().sum(),
    "matmul": lambda a: (a @ a.mH).abs().sum(),
    "pinv": lambda a: torch.linalg.pinv(a).abs().sum(),
    "fft": lambda a: torch.fft.ifft(torch.fft.fft(a) * a).abs().sum(),
    "hfft": lambda a: torch.fft.hfft(a).abs().sum(),
    "imag": lambda a: a.conj().imag.pow(2).sum(),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_gradients_of_complex_numbers(name: str) -> None:
    assert_same_gradients(COMPLEX[name], Z)


REAL: dict[str, Function] = {
    "rotary embedding": rotary,
    "eigvals": lambda a: torch.linalg.eigvals(a[:, :4]).abs().sum(),
    "power spectrum": lambda a: torch.fft.rfft(a).abs().pow(2).sum(),
    "stft": lambda a: (
        torch.stft(a.flatten(), 8, window=torch.ones(8, device=a.device), return_complex=True)
        .abs()
        .sum()
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_gradients_of_real_numbers_by_way_of_complex_ones(name: str) -> None:
    assert_same_gradients(REAL[name], torch.randn(4, 6))


VIEWS: dict[str, Function] = {
    "conj": torch.Tensor.conj,
    "a row of conj": lambda a: a.conj()[1],
    "mH": lambda a: a.mH,
    "imag of conj": lambda a: a.conj().imag,
    "a row of imag of conj": lambda a: a.conj().imag[1],
    "detached": lambda a: a.conj().detach(),
    "data": lambda a: a.conj().data,
    "conj twice": lambda a: a.conj().conj(),
    "copied": lambda a: copy.deepcopy(a.conj()),
    "shallow copy": lambda a: copy.copy(a.conj()),
    "saved and loaded": lambda a: saved(a.conj()),
    "resolved": lambda a: a.conj().resolve_conj(),
}


def saved(tensor: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    loaded: torch.Tensor = torch.load(file)
    return loaded


@pytest.mark.parametrize("name", VIEWS)
def test_views_keep_the_conjugate_and_the_negative_bit(name: str) -> None:
    here = VIEWS[name](Z)
    there = VIEWS[name](Z.cuda())
    assert there.is_cuda
    assert (there.is_conj(), there.is_neg()) == (here.is_conj(), here.is_neg())
    assert torch.equal((there + 0).cpu(), here + 0)
    assert torch.equal(there.cpu(), here)
    assert there.tolist() == here.tolist()
    assert repr(there).partition("device=")[0].rstrip(", \n") == repr(here)[:-1]


def test_writing_through_a_conjugate() -> None:
    d = Z.cuda()
    d.conj().mul_(2j)
    assert torch.equal(d.cpu(), Z.clone().mul_(-2j))
    target = torch.zeros_like(d)
    target.copy_(Z.cuda().conj())
    assert torch.equal(target.cpu(), Z.conj())
    target.conj().copy_(Z.cuda())
    assert torch.equal(target.cpu(), Z.conj())


def test_autocast_casts_a_weight_again_for_a_graph() -> None:
    layer = torch.nn.Linear(4, 4).cuda()
    x = torch.ones(2, 4, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        with torch.no_grad():
            layer(x)
        made = layer(x)
        assert made.requires_grad
        made.sum().backward()
    assert layer.weight.grad is not None


MOVES: dict[str, Function] = {
    "cuda()": lambda x: x.cuda(),
    "to": lambda x: x.to("cuda"),
    "to, with a dtype": lambda x: x.to("cuda", torch.float64),
    "to, by keyword": lambda x: x.to(device="cuda", dtype=torch.float16),
    "to another tensor": lambda x: x.to(torch.ones((), device="cuda")),
    "in a graph": lambda x: x.clone().requires_grad_().to("cuda"),
    "in a module": lambda x: torch.nn.ParameterList([torch.nn.Parameter(x)]).cuda()[0],
}
SHAPES = {
    "transposed": torch.randn(3, 4).t(),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels last, 3d": torch.randn(2, 3, 2, 4, 5).to(memory_format=torch.channels_last_3d),
    "sizes of 1": torch.rand(10, 3, 1, 1).to(memory_format=torch.channels_last),
    "a slice": torch.randn(4, 6)[:, ::2],
    "expanded": torch.randn(3, 1).expand(3, 4),
    "permuted": torch.randn(2, 3, 4).permute(1, 2, 0),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_copy_to_the_device_keeps_the_strides(move: str, shape: str) -> None:
    x = SHAPES[shape]
    moved = MOVES[move](x)
    assert moved.is_cuda
    assert moved.stride() == x.to(moved.dtype, copy=True).stride()


def test_strides_of_results_with_sizes_of_1_and_0() -> None:
    w = torch.rand(10, 3, 1, 1, device="cuda").to(memory_format=torch.channels_last)
    assert (w + torch.rand(3, 1, 1, device="cuda")).stride() == (3, 1, 3, 3)
    empty = torch.empty(0, 4).t()
    assert (empty.cuda() + 1).stride() == (empty + 1).stride()


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag_leaves_padding_out(mode: str) -> None:
    indices = torch.tensor([[0, 1, 2], [2, 2, 3]])
    bag = lambda w: F.embedding_bag(indices.to(w.device), w, mode=mode, padding_idx=1).pow(2).sum()  # noqa: E731
    assert_same_gradients(bag, torch.randn(6, 3))


@pytest.mark.parametrize(
    ("indices", "offsets"), [(torch.int32, torch.int64), (torch.int64, torch.int32)]
)
def test_embedding_bag_takes_two_integer_types(indices: torch.dtype, offsets: torch.dtype) -> None:
    w = torch.randn(4, 2)
    i = torch.tensor([0, 1, 3])
    o = torch.tensor([0, 2])
    made = F.embedding_bag(i.to("cuda", indices), w.cuda(), o.to("cuda", offsets), mode="mean")
    torch.testing.assert_close(made.cpu(), F.embedding_bag(i, w, o, mode="mean"))


def test_a_number_is_copied_into_a_tensor() -> None:
    assert torch.zeros(3, device="cuda").copy_(2.5).tolist() == [2.5, 2.5, 2.5]  # type: ignore[arg-type]


def test_a_tensor_of_device_scalars_has_their_dtype() -> None:
    one = torch.tensor(1.0, dtype=torch.float64, device="cuda")
    half = torch.tensor(2.0, dtype=torch.float16, device="cuda")
    assert torch.tensor([one]).dtype is torch.float64
    assert torch.tensor([[half, half]]).dtype is torch.float16
    assert torch.tensor([half, 1]).dtype is torch.float16
    assert torch.tensor([one, half], device="cuda").dtype is torch.float64
    assert torch.tensor([one], dtype=torch.float32).dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("places", [(1, 4, 4, 2), (1, 3, 3, 3, 3)], ids=["2d", "3d"])
def test_grid_sample_of_half_precision_rounds_once(
    places: tuple[int, ...], dtype: torch.dtype
) -> None:
    image = torch.randn(1, 4, *[6] * (len(places) - 2)).to("cuda", dtype).requires_grad_()
    grid = (torch.rand(places) * 2 - 1).to("cuda", dtype).requires_grad_()
    sampled = F.grid_sample(image, grid, align_corners=True)
    exact = F.grid_sample(image.double(), grid.double(), align_corners=True)
    assert torch.equal(sampled, exact.to(dtype))
    found = torch.autograd.grad(sampled.sum(), (image, grid))
    wanted = torch.autograd.grad(exact.sum(), (image, grid))
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.02, atol=0.02)


def test_gradients_of_an_embedding_in_half_precision_are_summed_in_single() -> None:
    layer = torch.nn.Embedding(2, 1).half().cuda()
    layer(torch.zeros(4000, dtype=torch.int64, device="cuda")).backward(
        torch.ones(4000, 1).half().cuda()
    )
    assert layer.weight.grad is not None
    assert layer.weight.grad[0].item() == 4000  # in half precision, 2048 + 1 is 2048


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_gradients_of_a_bag_in_half_precision_are_summed_in_single(mode: str) -> None:
    weight = torch.ones(2, 1, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    F.embedding_bag(
        torch.zeros(600, 2, dtype=torch.int64, device="cuda"), weight, mode=mode
    ).sum().backward()
    assert weight.grad is not None
    assert weight.grad[0].item() == {"sum": 1200, "mean": 600}[mode]  # in bfloat16, 256 + 1 is 256


@pytest.mark.parametrize("way", ["accumulate", "deterministic"])
def test_values_that_do_not_fit_sorted_indices_are_refused_in_cuda_words(way: str) -> None:
    def put() -> None:
        index = (torch.tensor([0, 1], device="cuda"),)
        torch.zeros(2, 3, 4, device="cuda").index_put_(
            index, torch.ones(6, 2, device="cuda"), way == "accumulate"
        )

    torch.use_deterministic_algorithms(way == "deterministic")
    try:
        with pytest.raises(RuntimeError, match="must match the existing size"):
            put()
    finally:
        torch.use_deterministic_algorithms(False)


def second_gradients(function: Function, device: str, *inputs: torch.Tensor) -> list[torch.Tensor]:
    mine = [each.detach().clone().to(device).requires_grad_() for each in inputs]
    first = torch.autograd.grad(function(*mine).sum(), mine, create_graph=True)
    return [each.cpu() for each in torch.autograd.grad(sum(g.pow(2).sum() for g in first), mine)]


def test_second_gradients_of_rms_norm() -> None:
    given = torch.randn(3, 4), torch.randn(4)
    here, there = (
        second_gradients(lambda x, w: F.rms_norm(x, (4,), w).exp(), at, *given)
        for at in ("cpu", "cuda")
    )
    torch.testing.assert_close(there, here)


REFUSED: dict[str, tuple[str, Function]] = {
    "LSTM": (
        "disable the CuDNN backend temporarily",
        lambda x: torch.nn.LSTM(8, 4).cuda()(x[0, 0])[0],
    ),
    "GRU": (
        "disable the CuDNN backend temporarily",
        lambda x: torch.nn.GRU(8, 4).cuda()(x[0, 0])[0],
    ),
    "cudnn": (
        "_cudnn_attention_backward is not",
        lambda x: F.scaled_dot_product_attention(*[x.half()] * 3),
    ),
    "flash": (
        "_flash_attention_backward is not",
        lambda x: F.scaled_dot_product_attention(*[x[..., :4].half()] * 3),
    ),
    "efficient": (
        "_efficient_attention_backward is not",
        lambda x: F.scaled_dot_product_attention(x, x, x),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_kernel_without_second_gradients_says_so(name: str) -> None:
    words, function = REFUSED[name]
    x = torch.randn(1, 2, 8, 8, device="cuda", requires_grad=True)
    (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    assert gradient.requires_grad
    with pytest.raises(RuntimeError, match=words):
        gradient.sum().backward()
    assert not torch.autograd.grad(function(x).sum(), x)[0].requires_grad


def test_weights_of_a_bag_have_gradients_in_bfloat16() -> None:
    if TORCH < (2, 13):
        pytest.skip("refused by CUDA before 2.13")
    weights = torch.ones(4, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    table = torch.ones(5, 2, device="cuda", dtype=torch.bfloat16)
    starts = torch.tensor([0, 2], device="cuda")
    bags = F.embedding_bag(
        torch.arange(4, device="cuda"), table, starts, mode="sum", per_sample_weights=weights
    )
    bags.sum().backward()
    assert weights.grad is not None
    assert weights.grad.tolist() == [2] * 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_half_precision_are_rounded_once(dtype: torch.dtype) -> None:
    image = torch.randn(1, 64, 6, 6).to(dtype)
    weight = torch.randn(4, 64, 3, 3).to(dtype)
    on_device = weight.cuda().requires_grad_()
    wide = weight.float().requires_grad_()
    found = F.conv2d(image.cuda(), on_device)
    exact = F.conv2d(image.float(), wide)
    assert torch.equal(found.cpu(), exact.to(dtype))
    mine = torch.autograd.grad(found.sum(), on_device)
    theirs = torch.autograd.grad(exact.sum(), wide)
    assert torch.equal(mine[0].cpu(), theirs[0].to(dtype))
    factors = torch.full((2000,), 1 + torch.finfo(dtype).eps, dtype=dtype, device="cuda")
    assert factors.prod().item() == factors.double().prod().to(dtype).item()


@pytest.mark.parametrize("lasting", ["image", "weight"])
def test_a_convolution_of_volumes_keeps_channels_last(lasting: str) -> None:
    last = torch.channels_last_3d
    given = {"image": torch.randn(1, 2, 3, 3, 3), "weight": torch.randn(4, 2, 2, 2, 2)}
    expected = F.conv3d(given["image"], given["weight"])
    found = F.conv3d(
        *(t.cuda().to(memory_format=last) if k == lasting else t.cuda() for k, t in given.items())
    )
    assert found.is_contiguous(memory_format=last)
    torch.testing.assert_close(found.cpu(), expected)


def test_functions_of_cudnn_convolve() -> None:
    image, weight, ones = torch.randn(2, 4, 6, 6), torch.randn(4, 3, 3, 3), (1, 1)
    there = torch.cudnn_convolution(
        image.cuda(), weight[:, :2].cuda(), ones, (2, 2), ones, 2, False, False, True
    )
    torch.testing.assert_close(there.cpu(), F.conv2d(image, weight[:, :2], None, 2, 1, 1, 2))
    there = torch.cudnn_convolution_transpose(
        image.cuda(), weight.cuda(), ones, ones, (2, 2), ones, 2, False, False, True
    )
    torch.testing.assert_close(there.cpu(), F.conv_transpose2d(image, weight, None, 2, 1, 1, 2))
    with torch.autocast("cuda", torch.float16):
        cast = torch.cudnn_convolution(
            image.cuda(), weight[:, :2].cuda(), ones, ones, ones, 2, False, False, True
        )
    assert cast.dtype is torch.float16
    settings, bias = ((2, 2), ones, ones, 2), torch.randn(4)
    here = F.conv2d(image, weight[:, :2], bias, *settings)
    moved = (image.cuda(), weight[:, :2].cuda())
    torch.testing.assert_close(
        torch.cudnn_convolution_relu(*moved, bias.cuda(), *settings).cpu(), here.relu()
    )
    there = torch.cudnn_convolution_add_relu(*moved, here.cuda(), 0.5, bias.cuda(), *settings)
    torch.testing.assert_close(there.cpu(), (here * 1.5).relu())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("lasting", ["image", "weight"])
def test_gradients_of_a_convolution_lie_as_the_tensors_and_its_result_not_in_double(
    lasting: str, dtype: torch.dtype
) -> None:
    last = torch.channels_last
    given = {
        "image": torch.randn(2, 4, 6, 6, dtype=dtype),
        "weight": torch.randn(4, 4, 3, 3, dtype=dtype),
    }
    for name, each in given.items():
        moved = each.cuda().to(memory_format=last) if name == lasting else each.cuda()
        given[name] = moved.requires_grad_()
    out = F.conv2d(given["image"], given["weight"])
    out.sum().backward()
    assert out.is_contiguous(memory_format=last) is (dtype is not torch.float64)
    for name, each in given.items():
        assert each.grad is not None
        assert each.grad.is_contiguous(memory_format=last) is (name == lasting)


def test_the_number_inside_a_tensor_that_has_none_or_several() -> None:
    first = torch.ops.aten._local_scalar_dense
    assert first(torch.tensor([3, 4], device="cuda")) == 3
    with pytest.raises(RuntimeError, match="Empty tensor not supported"):
        first(torch.tensor([], device="cuda"))
    with pytest.raises(RuntimeError, match="2 elements cannot be converted"):
        torch.tensor([3, 4], device="cuda").item()


def test_addcmul_takes_a_host_number_as_its_last_factor_alone() -> None:
    two = torch.ones(2, device="cuda")
    number = torch.tensor(3.0)
    assert torch.addcmul(two, two, number).tolist() == [4, 4]
    for name, given in {"self": (number, two, two), "tensor1": (two, number, two)}.items():
        with pytest.raises(RuntimeError, match=f"CPU Scalar support for {name} argument"):
            torch.addcmul(*given)


@pytest.mark.parametrize(("held", "casts"), [(True, 2), (False, 1)])
def test_autocast_keeps_a_cast_unless_another_cache_holds_the_tensor(
    held: bool, casts: int
) -> None:
    weight = torch.nn.Parameter(torch.ones(4, 3, device="cuda"))
    torch._C._set_cached_tensors_enabled(held)
    if held:
        torch._C._add_cached_tensor(weight)
    try:
        with torch.autocast("cuda"):
            outs = [F.linear(torch.ones(2, 3, device="cuda"), weight) for _ in range(2)]
    finally:
        torch._C._set_cached_tensors_enabled(False)
    nodes = [out.grad_fn for out in outs]
    while all(node is not None and node.name() != "ToCopyBackward0" for node in nodes):
        nodes = [node.next_functions[-1][0] for node in nodes if node is not None]
    assert len(set(nodes)) == casts


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("order", [1, -1])
def test_a_deep_copy_shares_what_the_original_shared(order: int) -> None:
    original = torch.zeros(3, device="cuda")
    parts = {"whole": original, "part": original[1:], "storage": original.storage()}
    copied = copy.deepcopy(dict(list(parts.items())[::order]))
    copied["whole"].add_(1)
    assert copied["part"].tolist() == [1, 1]
    assert list(copied["storage"]) == [1, 1, 1]
    assert original.tolist() == [0, 0, 0]
    assert (
        copied["whole"].const_data_ptr()
        == copied["whole"].data_ptr()
        == copied["storage"].data_ptr()
    )


def backward_of(function: Function, *size: int) -> Callable[[], None]:
    out = function(torch.rand(size, device="cuda", requires_grad=True))
    return lambda: out.sum().backward()


INDEX = torch.zeros(2, dtype=torch.int64)
UNORDERED: dict[str, Callable[[], Callable[[], object]]] = {
    "replication_pad1d_backward_cuda": lambda: backward_of(
        lambda x: F.pad(x, (1, 1), mode="replicate"), 1, 2, 3
    ),
    "replication_pad3d_backward_cuda": lambda: backward_of(
        lambda x: F.pad(x, (1,) * 6, mode="replicate"), 1, 2, 3, 3, 3
    ),
    "max_pool3d_with_indices_backward_cuda": lambda: backward_of(
        lambda x: F.max_pool3d(x, 2), 1, 2, 4, 4, 4
    ),
    "upsample_bilinear2d_aa_backward_out_cuda": lambda: backward_of(
        lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True), 1, 2, 4, 4
    ),
    "embedding_bag_backward_cuda_max": lambda: backward_of(
        lambda x: F.embedding_bag(INDEX.cuda().view(1, 2), x, mode="max"), 3, 2
    ),
    "put_": lambda: (
        lambda: torch.zeros(3).cuda().put_(INDEX.cuda(), torch.ones(2).cuda(), accumulate=True)
    ),
    "index_reduce_cuda": lambda: (
        lambda: torch.zeros(3).cuda().index_reduce_(0, INDEX.cuda(), torch.ones(2).cuda(), "prod")
    ),
    "scatter_reduce_cuda_prod_": lambda: (
        lambda: torch.zeros(3).cuda().scatter_reduce(0, INDEX.cuda(), torch.ones(2).cuda(), "prod")
    ),
    "scatter_reduce_cuda_kernel": lambda: (
        lambda: torch.zeros(3).cuda().scatter(0, INDEX.cuda(), torch.ones(2).cuda(), reduce="add")
    ),
    "_histc_cuda with floating point input": lambda: lambda: torch.rand(9).cuda().histc(4, 0, 1),
}
ORDERED: dict[str, Callable[[], Callable[[], object]]] = {
    "whole numbers": lambda: lambda: torch.ones(9, dtype=torch.int32).cuda().histc(4, 0, 1),
    "sums by index": lambda: (
        lambda: torch.zeros(3).cuda().scatter_reduce(0, INDEX.cuda(), torch.ones(2).cuda(), "sum")
    ),
    "bags of sums": lambda: backward_of(
        lambda x: F.embedding_bag(INDEX.cuda().view(1, 2), x, mode="sum"), 3, 2
    ),
}


@pytest.mark.parametrize("caller", UNORDERED)
def test_an_operator_without_a_fixed_order_alerts(caller: str) -> None:
    run = UNORDERED[caller]()
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(
            RuntimeError, match=f"^{caller} does not have a deterministic implementation"
        ):
            run()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ORDERED)
def test_an_operator_with_a_fixed_order_does_not_alert(name: str) -> None:
    run = ORDERED[name]()
    torch.use_deterministic_algorithms(True)
    try:
        run()
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_cuda_has_no_kernel_for_is_refused() -> None:
    ones = torch.ones(2, dtype=torch.complex64, device="cuda")
    index = INDEX.cuda()
    for source, kernel in (
        (ones, "gather_base_kernel_func"),
        (2, "fill_base_kernel_reduce_multiply"),
    ):
        with pytest.raises(
            NotImplementedError, match=f'"cuda_scatter_{kernel}" not implemented for'
        ):
            ones.clone().scatter_(0, index, source, reduce="multiply")
    with pytest.raises(RuntimeError, match="only available on CUDA"):
        torch.ones(2).untyped_storage()._share_cuda_()


def test_a_module_without_values_tells_the_shape_of_its_result() -> None:
    assert (torch.ones(5, 10, device="cuda") @ torch.ones(10, 1, device="meta")).shape == (5, 1)
    assert (torch.ones(5, 10, device="meta") @ torch.ones(10, 1, device="cuda")).is_meta
    with pytest.raises(RuntimeError, match="device meta is not on the expected device cuda:0"):
        torch.ones(2, device="cuda") + torch.ones(2, device="meta")


def test_pixels_of_bytes_are_not_interpolated() -> None:
    image = torch.zeros(1, 3, 4, 4, dtype=torch.uint8, device="cuda")
    for mode in ("bilinear", "bicubic"):
        with pytest.raises(
            NotImplementedError,
            match="\"upsample_bilinear2d_out_frame\" not implemented for 'Byte'",
        ):
            F.interpolate(image, (8, 8), mode=mode, antialias=True)


@pytest.mark.parametrize("driver", ["gesvd", "gesvdj", "gesvda"])
def test_singular_values_by_every_driver_of_cuda(driver: str) -> None:
    x = torch.randn(3, 4, 2)
    right = torch.linalg.svdvals(x)
    there = x.cuda()
    assert torch.equal(torch.linalg.svd(there, driver=driver).S.cpu(), torch.linalg.svd(x).S)
    torch.testing.assert_close(torch.linalg.svdvals(there, driver=driver).cpu(), right)
    with pytest.raises(
        RuntimeError, match=r"^torch.linalg.svd: unknown svd driver foo in svd_cusolver"
    ):
        torch.linalg.svd(there, driver="foo")


@pytest.mark.parametrize(
    ("cell", "name", "kept"), [("LSTMCell", "Lstm", 30720), ("GRUCell", "Gru", 26624)]
)
def test_a_recurrent_cell_is_the_node_of_its_kernel(cell: str, name: str, kept: int) -> None:
    """What an H200 keeps for the backward pass: also an LSTM's new cell state, used or not."""
    layer = getattr(torch.nn, cell)(64, 32).cuda()
    x = torch.ones(16, 64, device="cuda")
    layer(x)  # cuBLAS has its workspace now
    before = torch.cuda.memory_allocated()
    made = layer(x)
    out = made[0] if isinstance(made, tuple) else made
    del made
    assert out.grad_fn.name() == f"ThnnFused{name}CellBackward0"
    assert torch.cuda.memory_allocated() - before == kept
    out.sum().backward()


def test_istft_names_the_device() -> None:
    spectrum = torch.stft(
        torch.ones(16, device="cuda"), 8, window=torch.ones(8, device="cuda"), return_complex=True
    )
    for function in (torch.istft, torch.Tensor.istft):
        with pytest.raises(RuntimeError, match="got self on cuda:0 and window on cpu"):
            function(spectrum, 8, window=torch.ones(8))


def test_a_matrix_of_nan_has_no_cholesky_factor() -> None:
    nan = torch.full((2, 2), float("nan"), device="cuda")
    later = torch.tensor([[1.0, 0.0], [0.0, float("nan")]], device="cuda")
    assert torch.linalg.cholesky_ex(
        torch.stack([nan, later, torch.eye(2, device="cuda")])
    ).info.tolist() == [1, 2, 0]
    with pytest.raises(
        torch.linalg.LinAlgError, match=r"leading minor of order 1 is not positive-definite"
    ):
        torch.linalg.cholesky(nan)


RANDOM: dict[str, Any] = {
    "rand": lambda **options: torch.rand(5, **options),
    "randint": lambda **options: torch.randint(9, (5,), **options),
    "randperm": lambda **options: torch.randperm(5, **options),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_the_same_with_out(name: str) -> None:
    torch.manual_seed(3)
    host_state = torch.get_rng_state()
    wanted = RANDOM[name](device="cuda")
    out = torch.empty_like(wanted)
    torch.cuda.manual_seed(3)
    RANDOM[name](out=out)
    assert torch.equal(out, wanted)
    assert torch.equal(torch.get_rng_state(), host_state)


def test_the_inverse_from_a_singular_factor_is_infinite() -> None:
    factor = torch.tensor([[1.0, 0.0], [2.0, 0.0]], device="cuda")
    assert torch.cholesky_inverse(factor).isfinite().logical_not().any()
    with pytest.raises(RuntimeError, match="at least 2 dimensions"):
        torch.cholesky_inverse(factor[0])


@pytest.mark.filterwarnings("ignore:torch.asarray:UserWarning")
def test_asarray_keeps_history_where_the_host_does() -> None:
    x = torch.ones(2, device="cuda", requires_grad=True).clone()
    host = torch.ones(2, requires_grad=True).clone()
    options: list[dict[str, bool]] = [{}, {"requires_grad": True}, {"requires_grad": False}]
    for option in options:
        wanted = torch.asarray(host, **option).grad_fn is None
        assert (torch.asarray(x, **option).grad_fn is None) == wanted
        assert (torch.asarray(x, copy=True, **option).grad_fn is None) == wanted
    assert torch.as_tensor(x).grad_fn is not None


def test_asarray_refuses_a_copy_where_an_alias_was_asked_for() -> None:
    x = torch.ones(2, device="cuda")
    assert torch.asarray(x, copy=False).data_ptr() == x.data_ptr()
    with pytest.raises(ValueError, match="from device 'cuda:0' to 'cpu'"):
        torch.asarray(x, device="cpu", copy=False)
    with pytest.raises(ValueError, match="into dtype"):
        torch.asarray(x, dtype=torch.float64, copy=False)
