"""All kinds of layers run, forward and backward, with the numbers of the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from virtual_cuda import virtual_cuda

Layer = tuple[Callable[[], nn.Module], tuple[Any, ...]]


def floats(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(7))


class Packed(nn.Module):
    """Sequences of different lengths through an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, batch_first=True, bidirectional=True, num_layers=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = torch.tensor([3, 1, 2])
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        out, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return out


class Causal(nn.Module):
    """Attention by hand, as a course writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("mask", torch.ones(5, 5).tril().bool())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.transpose(-2, -1)) / 8**0.5
        scores = scores.masked_fill(~self.mask, float("-inf"))
        return scores.softmax(-1) @ v


class Flash(Causal):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


LAYERS: dict[str, Layer] = {
    "linear": (lambda: nn.Linear(4, 3), (floats(2, 4),)),
    "bilinear": (lambda: nn.Bilinear(4, 3, 2), (floats(2, 4), floats(2, 3))),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, padding=1, groups=1), (floats(2, 2, 6),)),
    "conv2d strided": (
        lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2),
        (floats(2, 2, 7, 7),),
    ),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2), (floats(1, 1, 3, 3, 3),)),
    "conv transposed": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), (floats(1, 2, 4, 4),)),
    "batch norm": (lambda: nn.BatchNorm2d(3), (floats(2, 3, 4, 4),)),
    "batch norm in eval": (lambda: nn.BatchNorm2d(3).eval(), (floats(2, 3, 4, 4),)),
    "layer norm": (lambda: nn.LayerNorm(4), (floats(2, 4),)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (floats(2, 4, 3),)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True), (floats(2, 3, 4, 4),)),
    "pools": (
        lambda: nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)),
        (floats(1, 2, 8, 8),),
    ),
    "activations": (
        lambda: nn.Sequential(
            nn.GELU(), nn.SiLU(), nn.ELU(), nn.LeakyReLU(), nn.Mish(), nn.Softplus(), nn.PReLU()
        ),
        (floats(3, 4),),
    ),
    "upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (floats(1, 2, 3, 3),)),
    "pixel shuffle and pad": (
        lambda: nn.Sequential(nn.PixelShuffle(2), nn.ReflectionPad2d(1)),
        (floats(1, 4, 3, 3),),
    ),
    "dropout": (lambda: nn.Dropout(0.5), (floats(8, 8),)),
    "rnn": (lambda: nn.RNN(4, 5), (floats(3, 2, 4),)),
    "gru": (lambda: nn.GRU(4, 5, num_layers=2, dropout=0.5), (floats(3, 2, 4),)),
    "lstm": (lambda: nn.LSTM(4, 5, batch_first=True), (floats(2, 3, 4),)),
    "lstm packed": (Packed, (floats(3, 3, 4),)),
    "lstm cell": (lambda: nn.LSTMCell(4, 5), (floats(3, 4),)),
    "attention": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.1),
        (floats(2, 3, 8),) * 3,
    ),
    "attention by hand": (Causal, (floats(2, 5, 8),)),
    "attention in one": (Flash, (floats(2, 5, 8),)),
    "encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
        ),
        (floats(2, 3, 8),),
    ),
    "encoder in eval": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
        (floats(2, 3, 8),),
    ),
    "transformer": (
        lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
        (floats(2, 3, 8), floats(2, 4, 8)),
    ),
}


def first(value: Any) -> torch.Tensor:
    while isinstance(value, tuple):
        value = value[0]
    return value


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage:UserWarning")
@pytest.mark.parametrize("name", LAYERS)
def test_forward_and_backward_as_on_the_cpu(name: str) -> None:
    make, inputs = LAYERS[name]
    torch.manual_seed(3)
    layer = make()

    def run(layer: nn.Module, device: str) -> tuple[Any, ...]:
        given = [x.detach().clone().to(device).requires_grad_() for x in inputs]
        torch.manual_seed(4)
        out = first(layer(*given))
        out.square().sum().backward()
        gradients = [t.grad for t in [*given, *layer.parameters()]]
        assert {t.device.type for t in [out, *gradients]} == {device}
        return out.detach().cpu(), *(t.cpu() for t in gradients)

    expected = run(copy.deepcopy(layer), "cpu")
    with virtual_cuda():
        found = run(layer.cuda(), "cuda")
        if layer.training:
            layer.eval()
            with torch.no_grad():
                assert first(layer(*(x.cuda() for x in inputs))).is_cuda
    # CUDA's kernels for RNNs and attention are one operator where the CPU has several, so that
    # rounding may differ.
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "cross_entropy": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "nll_loss": lambda x, y: F.nll_loss(x.log_softmax(1), y, ignore_index=1),
    "mse_loss": lambda x, y: F.mse_loss(x[:, 0], y.float()),
    "l1_loss": lambda x, y: F.l1_loss(x[:, 0], y.float(), reduction="sum"),
    "huber_loss": lambda x, y: F.huber_loss(x[:, 0], y.float()),
    "bce": lambda x, y: F.binary_cross_entropy(x[:, 0].sigmoid(), (y > 0).float()),
    "bce_with_logits": lambda x, y: F.binary_cross_entropy_with_logits(x[:, 0], (y > 0).float()),
    "kl_div": lambda x, y: F.kl_div(x.log_softmax(1), x.detach().softmax(1), reduction="batchmean"),
    "triplet": lambda x, y: F.triplet_margin_loss(x, x.roll(1), x.roll(2)),
    "multi_margin": lambda x, y: F.multi_margin_loss(x, y),
    "cosine": lambda x, y: F.cosine_embedding_loss(x, x.roll(1, 0), torch.ones_like(y)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_the_cpus(name: str) -> None:
    x = floats(6, 3)
    y = torch.tensor([0, 1, 2, 0, 1, 2])

    def run(device: str) -> tuple[float, Any]:
        given = x.clone().to(device).requires_grad_()
        loss = LOSSES[name](given, y.to(device))
        loss.backward()
        return loss.item(), given.grad.tolist()

    expected = run("cpu")
    with virtual_cuda():
        assert run("cuda") == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_products_are_rounded_once(dtype: torch.dtype) -> None:
    rows, columns, more = (
        floats(*size).to(dtype) for size in ((3, 4, 300), (3, 300, 5), (3, 4, 5))
    )
    expected = [0.5 * more.float() + 2 * torch.bmm(rows.float(), columns.float())]
    expected += [torch.bmm(rows.float(), columns.float()), expected[0][1], expected[0][1]]
    with virtual_cuda():
        a = rows.cuda()
        b = columns.cuda()
        c = more.cuda()
        products = [torch.baddbmm(c, a, b, beta=0.5, alpha=2), torch.bmm(a, b)]
        products += [
            torch.addmm(c[1], a[1], b[1], beta=0.5, alpha=2),
            2 * torch.mm(a[1], b[1]) + 0.5 * c[1],
        ]
        for product, wide in zip(products, expected, strict=True):
            assert product.dtype is dtype
            torch.testing.assert_close(
                product.cpu().float(), wide, rtol=2 * torch.finfo(dtype).eps, atol=0.1
            )
        with pytest.raises(RuntimeError, match="same dtype"):
            torch.mm(a[0], b[0].float())


@pytest.mark.parametrize("mask", [None, torch.bool, torch.bfloat16])
def test_attention_in_bfloat16_is_rounded_once(mask: torch.dtype | None) -> None:
    query, key, value = (floats(2, 2, 8, 16).roll(i, 2).bfloat16() for i in range(3))
    bias = None if mask is None else torch.ones(8, 8, dtype=mask).tril()
    outs = []
    for convert in (torch.Tensor.float, lambda t: t.to("cuda")):
        with virtual_cuda():
            q, k, v = (convert(t).requires_grad_() for t in (query, key, value))
            given = (
                None
                if bias is None
                else bias.to(q.device)
                if bias.dtype is torch.bool
                else convert(bias)
            )
            F.scaled_dot_product_attention(q, k, v, attn_mask=given).square().sum().backward()
            outs.append([g.grad.cpu().float() for g in (q, k, v) if g.grad is not None])
    assert len(outs[0]) == len(outs[1]) == 3
    for wide, narrow in zip(*outs, strict=True):
        torch.testing.assert_close(narrow, wide, rtol=0.05, atol=0.1)


def test_what_students_do_with_tensors() -> None:
    with virtual_cuda():
        scores = torch.tensor([[0.1, 0.9], [0.8, 0.2]], device="cuda")
        labels = torch.tensor([1, 1], device="cuda")
        assert (scores.argmax(1) == labels).float().mean().item() == 0.5
        assert torch.topk(scores, 1).indices.flatten().tolist() == [1, 0]
        assert F.one_hot(labels, 3).sum().item() == 2
        assert torch.bincount(labels).tolist() == [0, 2]
        assert torch.unique(labels).tolist() == [1]
        assert torch.where(scores > 0.5, 1.0, 0.0).sum().item() == 2
        assert scores[scores > 0.5].numel() == 2
        assert [len(part) for part in scores.split(1)] == [1, 1]
        assert sum(row.sum() for row in scores).item() == pytest.approx(2.0)
        assert (f"{scores.mean():.2f}", int(labels.sum()), bool(labels.all())) == ("0.50", 2, True)
        scores[0, 0] = 5
        scores[:, 1] += 1
        scores.view(-1)[2] = -1
        assert scores.cpu().numpy().ravel().tolist() == pytest.approx([5.0, 1.9, -1.0, 1.2])
        assert repr(torch.ones(2, device="cuda")) == "tensor([1., 1.], device='cuda:0')"
        torch.testing.assert_close(scores, scores.clone())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_products_in_half_precision_are_added_up_in_single(dtype: torch.dtype) -> None:
    a, b, bias = (floats(*size).to(dtype) for size in ((3, 40, 500), (3, 500, 30), (30,)))
    wide = a.float() @ b.float()
    expected = [wide, wide[0], wide[0] + bias.float()]
    with virtual_cuda():
        x = a.cuda()
        y = b.cuda()
        found = [each.cpu() for each in (x @ y, x[0] @ y[0], torch.addmm(bias.cuda(), x[0], y[0]))]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is dtype
        torch.testing.assert_close(
            one.float(), other.to(dtype).float(), rtol=torch.finfo(dtype).eps, atol=1e-4
        )
