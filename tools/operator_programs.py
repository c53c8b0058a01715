"""Writes programs of single operators and of large models, to be timed on a GPU.

`python -m tools.operator_programs OPERATORS.json LARGE.json` writes them without times.
`python -m virtual_cuda record OUT.json --programs OPERATORS.json` times them. The operators are of
the sizes that large models have, so that the GPU is busy for longer than a launch takes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_HEAD: Final = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
_DTYPES: Final = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}


class SourceOfProgram(NamedTuple):
    """One program: what is done once, and the step that is timed."""

    name: str
    setup: str
    step: str


def _tensor(*sizes: int, dtype: str = "bf16", gradient: bool = False) -> str:
    """Python that makes a tensor of random numbers on the device."""
    shape = ", ".join(map(str, sizes))
    ending = ", requires_grad=True" if gradient else ""
    return f"torch.randn({shape}, device='cuda', dtype={_DTYPES[dtype]}{ending})"


# ---- single operators ----------------------------------------------------------------------------

_PRODUCTS: Final = (  # rows, columns, depth
    (8192, 2304, 768), (8192, 768, 3072), (8192, 50304, 768), (768, 3072, 8192),
    (2304, 768, 16384), (2048, 4096, 4096), (2048, 11008, 4096), (4096, 11008, 2048),
    (1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192), (12608, 1024, 4096),
    (512, 512, 512), (256, 1024, 256), (1024, 256, 4096), (16, 4096, 4096), (64, 32000, 2048),
    (50304, 768, 8192),
)  # fmt: skip
_BATCHED_PRODUCTS: Final = ((96, 1024, 1024, 64), (96, 1024, 64, 1024), (512, 128, 128, 64))


def _products() -> Iterator[SourceOfProgram]:
    """Matrix products of plain and of half precision, and by TF32."""
    for m, n, k in _PRODUCTS:
        for precision in ("fp32", "tf32", "bf16"):
            dtype = "bf16" if precision == "bf16" else "fp32"
            a = _tensor(m, k, dtype=dtype)
            b = _tensor(k, n, dtype=dtype)
            allowed = precision == "tf32"
            setup = f"torch.backends.cuda.matmul.allow_tf32 = {allowed}\na = {a}\nb = {b}"
            yield SourceOfProgram(f"product/{precision}_{m}x{n}x{k}", setup, "c = a @ b")
    for batch, m, n, k in _BATCHED_PRODUCTS:
        for dtype in ("fp32", "bf16"):
            a = _tensor(batch, m, k, dtype=dtype)
            b = _tensor(batch, k, n, dtype=dtype)
            name = f"product/{dtype}_{batch}x{m}x{n}x{k}"
            yield SourceOfProgram(name, f"a = {a}\nb = {b}", "c = a @ b")
    for m, n, k in ((8192, 2304, 768), (12608, 4096, 1024), (2048, 1000, 2048)):
        for dtype in ("fp32", "bf16"):
            layer = f"m = nn.Linear({k}, {n}, device='cuda', dtype={_DTYPES[dtype]})"
            setup = f"{layer}\nx = {_tensor(m, k, dtype=dtype)}"
            yield SourceOfProgram(f"product/linear_{dtype}_{m}x{n}x{k}", setup, "y = m(x)")


_ATTENTIONS: Final = (  # batch, heads, length, head
    (8, 12, 1024, 64), (1, 32, 2048, 128), (2, 16, 2048, 128), (64, 16, 197, 64),
    (32, 12, 128, 64), (2, 8, 4096, 64), (4, 16, 512, 128),
)  # fmt: skip


def _attentions() -> Iterator[SourceOfProgram]:
    """Attention, forward and with its gradients, with and without the causal mask."""
    for batch, heads, length, head in _ATTENTIONS:
        for dtype in ("fp32", "bf16"):
            for causal in (False, True):
                query = _tensor(batch, heads, length, head, dtype=dtype, gradient=True)
                setup = f"q, k, v = ({query} for _ in range(3))\ng = torch.randn_like(q)"
                call = f"F.scaled_dot_product_attention(q, k, v, is_causal={causal})"
                kind = "causal" if causal else "full"
                name = f"{kind}_{dtype}_{batch}x{heads}x{length}x{head}"
                step = f"with torch.no_grad(): y = {call}"
                yield SourceOfProgram(f"attention/{name}", setup, step)
                step = f"{call}.backward(g); q.grad = k.grad = v.grad = None"
                yield SourceOfProgram(f"attention/gradient_{name}", setup, step)


_ROWS: Final = ((8192, 768), (4096, 2048), (2048, 4096), (12608, 1024), (1024, 256))
_LAYERS: Final = {  # by name: a layer for rows of n elements
    "layer_norm": "nn.LayerNorm({n}, device='cuda', dtype={dtype})",
    "rms_norm": "nn.RMSNorm({n}, device='cuda', dtype={dtype})",
    "gelu": "nn.GELU()",
    "silu": "nn.SiLU()",
    "dropout": "nn.Dropout(0.1)",
    "softmax": "nn.Softmax(-1)",
}


def _layers_of_rows() -> Iterator[SourceOfProgram]:
    """Norms, activations and softmax over rows, forward and with their gradients."""
    for rows, n in _ROWS:
        for dtype in ("fp32", "bf16"):
            for kind, layer in _LAYERS.items():
                module = layer.format(n=n, dtype=_DTYPES[dtype])
                x = _tensor(rows, n, dtype=dtype, gradient=True)
                setup = f"m = {module}\nx = {x}\ng = torch.randn_like(x)"
                name = f"{kind}/{dtype}_{rows}x{n}"
                yield SourceOfProgram(name, setup, "with torch.no_grad(): y = m(x)")
                if rows != 2048:
                    step = "m(x).backward(g); x.grad = None"
                    yield SourceOfProgram(f"{kind}/gradient_{dtype}_{rows}x{n}", setup, step)


def _passes_over_memory() -> Iterator[SourceOfProgram]:
    """Copies, casts, sums and what else is limited by the memory."""
    steps = {
        "add": "y = x + x",
        "scale": "y = x * 0.5",
        "bias": "y = x + b",
        "cast": "y = x.float() if x.dtype != torch.float32 else x.bfloat16()",
        "transpose": "y = x.t().contiguous()",
        "heads": "y = x.view(8, -1, 16, x.shape[1] // 16).transpose(1, 2).contiguous()",
        "cat": "y = torch.cat([x, x], -1)",
        "halves": "y = x.chunk(2, -1)[0] * x.chunk(2, -1)[1]",
        "sum": "y = x.sum()",
        "row_sum": "y = x.sum(-1)",
        "column_sum": "y = x.sum(0)",
        "largest": "y = x.argmax(-1)",
        "zero": "y = torch.zeros_like(x)",
    }
    for rows, n in ((8192, 768), (8192, 8192)):
        for dtype in ("fp32", "bf16"):
            setup = f"x = {_tensor(rows, n, dtype=dtype)}\nb = {_tensor(n, dtype=dtype)}"
            for kind, step in steps.items():
                yield SourceOfProgram(f"memory/{kind}_{dtype}_{rows}x{n}", setup, step)


def _losses_and_embeddings() -> Iterator[SourceOfProgram]:
    """Cross entropy over words, embeddings and bags of them, with gradients."""
    for rows, words in ((8192, 50304), (4096, 32000), (512, 1000)):
        for dtype in ("fp32", "bf16"):
            x = _tensor(rows, words, dtype=dtype, gradient=True)
            setup = f"x = {x}\nt = torch.randint(0, {words}, ({rows},), device='cuda')"
            name = f"loss/cross_entropy_{dtype}_{rows}x{words}"
            step = "F.cross_entropy(x, t).backward(); x.grad = None"
            yield SourceOfProgram(name, setup, step)
    for indices, words, n in ((8192, 50304, 768), (4096, 32000, 2048), (1024, 50304, 768)):
        table = f"m = nn.Embedding({words}, {n}, device='cuda')"
        setup = f"{table}\ni = torch.randint(0, {words}, ({indices},), device='cuda')"
        name = f"embedding/rows_{indices}x{words}x{n}"
        yield SourceOfProgram(name, setup, "with torch.no_grad(): y = m(i)")
        step = "m(i).sum().backward(); m.weight.grad = None"
        yield SourceOfProgram(f"{name}_gradient", setup, step)
    for bags, size, words, n in ((2048, 20, 100000, 64), (8192, 50, 1000000, 64)):
        table = f"m = nn.EmbeddingBag({words}, {n}, mode='sum', device='cuda')"
        setup = f"{table}\ni = torch.randint(0, {words}, ({bags}, {size}), device='cuda')"
        name = f"embedding/bags_{bags}x{size}x{n}"
        yield SourceOfProgram(name, setup, "with torch.no_grad(): y = m(i)")
        step = "m(i).sum().backward(); m.weight.grad = None"
        yield SourceOfProgram(f"{name}_gradient", setup, step)


_PARAMETERS: Final = {  # shapes, and how many of each
    "gpt": (((50304, 768), 1), ((2304, 768), 12), ((3072, 768), 24), ((768,), 96)),
    "large": (((32000, 2048), 2), ((2048, 2048), 40), ((5632, 2048), 30)),
    "small": (((64, 64, 3, 3), 40), ((64,), 120)),
}
_OPTIMIZERS: Final = {
    "adamw": "torch.optim.AdamW(ps)",
    "adamw_fused": "torch.optim.AdamW(ps, fused=True)",
    "sgd": "torch.optim.SGD(ps, lr=0.1)",
    "sgd_momentum": "torch.optim.SGD(ps, lr=0.1, momentum=0.9)",
}


def _optimizers() -> Iterator[SourceOfProgram]:
    """Steps of optimizers, and the norm of all gradients."""
    for kind, shapes in _PARAMETERS.items():
        for dtype in ("fp32", "bf16"):
            if kind == "small" and dtype == "bf16":
                continue
            makes = f"torch.randn(s, device='cuda', dtype={_DTYPES[dtype]})"
            listed = f"ps = [nn.Parameter({makes}) for s, n in {shapes!r} for _ in range(n)]"
            setup = f"{listed}\nfor p in ps: p.grad = torch.randn_like(p)"
            for name, optimizer in _OPTIMIZERS.items():
                whole = f"{setup}\no = {optimizer}"
                yield SourceOfProgram(f"optimizer/{name}_{kind}_{dtype}", whole, "o.step()")
            step = "nn.utils.clip_grad_norm_(ps, 1.0)"
            yield SourceOfProgram(f"optimizer/clip_{kind}_{dtype}", setup, step)


class _Convolution(NamedTuple):
    """Sizes of a convolution of squares."""

    batch: int
    channels: int
    out: int
    pixels: int  # of a side
    window: int
    stride: int
    groups: int = 1


_CONVOLUTIONS: Final = (
    _Convolution(64, 3, 64, 224, 7, 2), _Convolution(64, 64, 64, 56, 1, 1),
    _Convolution(64, 64, 64, 56, 3, 1), _Convolution(64, 64, 256, 56, 1, 1),
    _Convolution(64, 256, 64, 56, 1, 1), _Convolution(64, 128, 128, 56, 3, 2),
    _Convolution(64, 128, 512, 28, 1, 1), _Convolution(64, 256, 512, 56, 1, 2),
    _Convolution(64, 256, 256, 14, 3, 1), _Convolution(64, 1024, 256, 14, 1, 1),
    _Convolution(64, 512, 512, 7, 3, 1), _Convolution(64, 512, 2048, 7, 1, 1),
    _Convolution(16, 320, 320, 64, 3, 1), _Convolution(8, 64, 64, 16, 3, 1),
    _Convolution(32, 96, 96, 56, 7, 1, 96), _Convolution(32, 256, 256, 28, 3, 1, 256),
)  # fmt: skip


def _convolutions() -> Iterator[SourceOfProgram]:
    """Convolutions of a ResNet and others, forward and with gradients, in both layouts."""
    for each in _CONVOLUTIONS:
        layer = (
            f"m = nn.Conv2d({each.channels}, {each.out}, {each.window}, {each.stride}, "
            f"{each.window // 2}, groups={each.groups}, bias=False)"
        )
        shape = (each.batch, each.channels, each.pixels, each.pixels)
        sizes = f"{each.batch}x{each.channels}to{each.out}x{each.pixels}"
        for dtype in ("fp32", "bf16"):
            for layout in ("contiguous_format", "channels_last"):
                made = f"{layer}.to('cuda', {_DTYPES[dtype]}, memory_format=torch.{layout})"
                x = f"x = {_tensor(*shape, dtype=dtype)}.to(memory_format=torch.{layout})"
                setup = f"{made}\n{x}.requires_grad_()\ng = torch.randn_like(m(x))"
                layout_name = "last" if layout == "channels_last" else "first"
                name = f"{layout_name}_{dtype}_{sizes}_{each.window}s{each.stride}g{each.groups}"
                step = "with torch.no_grad(): y = m(x)"
                yield SourceOfProgram(f"convolution/{name}", setup, step)
                step = "m(x).backward(g); x.grad = m.weight.grad = None"
                yield SourceOfProgram(f"convolution/gradient_{name}", setup, step)


_PICTURES: Final = {
    "batch_norm": "nn.BatchNorm2d({c}).cuda()",
    "group_norm": "nn.GroupNorm(32, {c}).cuda()",
    "relu": "nn.ReLU()",
    "max_pool": "nn.MaxPool2d(3, 2, 1)",
    "average_pool": "nn.AdaptiveAvgPool2d(1)",
    "upsample": "nn.Upsample(scale_factor=2)",
}


def _layers_of_pictures() -> Iterator[SourceOfProgram]:
    """Norms and pools of pictures with gradients, in both layouts and precisions."""
    for batch, channels, pixels in ((64, 64, 56), (64, 256, 56), (64, 512, 14), (16, 320, 64)):
        for dtype in ("fp32", "bf16"):
            for layout in ("contiguous_format", "channels_last"):
                x = _tensor(batch, channels, pixels, pixels, dtype=dtype)
                for kind, layer in _PICTURES.items():
                    module = layer.format(c=channels)
                    if kind == "group_norm":
                        module = f"{module}.to({_DTYPES[dtype]})"
                    source = f"x = {x}.to(memory_format=torch.{layout}).requires_grad_()"
                    setup = f"m = {module}\n{source}\ng = torch.randn_like(m(x))"
                    layout_name = "last" if layout == "channels_last" else "first"
                    name = f"{kind}/{layout_name}_{dtype}_{batch}x{channels}x{pixels}"
                    step = "m(x).backward(g); x.grad = None"
                    yield SourceOfProgram(name, setup, step)


def operator_programs() -> Iterator[SourceOfProgram]:
    """All programs of single operators."""
    yield from _products()
    yield from _attentions()
    yield from _layers_of_rows()
    yield from _passes_over_memory()
    yield from _losses_and_embeddings()
    yield from _optimizers()
    yield from _convolutions()
    yield from _layers_of_pictures()


# ---- large models --------------------------------------------------------------------------------

_DECODER: Final = """
class Block(nn.Module):
    def __init__(self, c, heads, causal=True):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.n1, self.n2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.qkv, self.out = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.up, self.down = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
    def forward(self, x):
        b, t, c = x.shape
        qkv = self.qkv(self.n1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv.unbind(0), is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.n2(x))))
class Words(nn.Module):
    def __init__(self, c, heads, layers, words, length):
        super().__init__()
        self.e, self.p = nn.Embedding(words, c), nn.Embedding(length, c)
        self.blocks = nn.ModuleList(Block(c, heads) for _ in range(layers))
        self.n, self.head = nn.LayerNorm(c), nn.Linear(c, words, bias=False)
    def forward(self, i):
        x = self.e(i) + self.p.weight[:i.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.n(x))
"""
_PLAIN_ATTENTION: Final = """
class Layer(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.RMSNorm(c), nn.RMSNorm(c)
        self.q, self.k, self.v, self.out = (nn.Linear(c, c, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(c, 3 * c, bias=False), nn.Linear(c, 3 * c, bias=False)
        self.down = nn.Linear(3 * c, c, bias=False)
    def forward(self, x, bias):
        b, t, c = x.shape
        z = self.n1(x)
        ways = (self.q, self.k, self.v)
        q, k, v = (w(z).view(b, t, self.heads, -1).transpose(1, 2) for w in ways)
        scores = F.dropout((q @ k.transpose(2, 3) + bias).softmax(-1), 0.1, self.training)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(b, t, c))
        z = self.n2(x)
        return x + self.down(F.gelu(self.gate(z)) * self.up(z))
"""
_RESNET: Final = """
class Neck(nn.Module):
    def __init__(self, i, w, stride=1):
        super().__init__()
        o = 4 * w
        self.f = nn.Sequential(
            nn.Conv2d(i, w, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU(True),
            nn.Conv2d(w, w, 3, stride, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU(True),
            nn.Conv2d(w, o, 1, bias=False), nn.BatchNorm2d(o))
        self.d = nn.Identity()
        if stride > 1 or i != o:
            self.d = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))
    def forward(self, x):
        return F.relu(self.f(x) + self.d(x))
def resnet(depths=(3, 4, 6, 3)):
    i = 64
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for number, depth in enumerate(depths):
        for k in range(depth):
            layers.append(Neck(i, 64 << number, 2 if number and k == 0 else 1))
            i = 256 << number
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
"""
_CONVNEXT: Final = """
class Next(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.d, self.n = nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c)
        self.up, self.down = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
    def forward(self, x):
        y = self.n(self.d(x).permute(0, 2, 3, 1))
        return x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)
layers, last = [nn.Conv2d(3, 96, 4, 4)], 96
for c, depth in ((96, 3), (192, 3), (384, 9), (768, 3)):
    if c != last:
        layers += [nn.GroupNorm(1, last), nn.Conv2d(last, c, 2, 2)]
    layers += [Next(c) for _ in range(depth)]
    last = c
m = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(768, 1000)).cuda()
"""
_UNET: Final = """
class Res(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.f = nn.Sequential(
            nn.GroupNorm(32, i), nn.SiLU(), nn.Conv2d(i, o, 3, padding=1),
            nn.GroupNorm(32, o), nn.SiLU(), nn.Conv2d(o, o, 3, padding=1))
        self.s = nn.Conv2d(i, o, 1) if i != o else nn.Identity()
    def forward(self, x):
        return self.s(x) + self.f(x)
class Look(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n, self.qkv, self.o = nn.GroupNorm(32, c), nn.Linear(c, 3 * c), nn.Linear(c, c)
    def forward(self, x):
        b, c, h, w = x.shape
        qkv = self.qkv(self.n(x).flatten(2).transpose(1, 2))
        q, k, v = qkv.view(b, h * w, 3, c // 64, 64).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h * w, c)
        return x + self.o(y).transpose(1, 2).view(b, c, h, w)
class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.d1, self.d2 = nn.Conv2d(4, 320, 3, padding=1), Res(320, 320), Res(320, 640)
        self.l, self.d3, self.l3, self.u2 = Look(640), Res(640, 1280), Look(1280), Res(1920, 640)
        self.u1, self.o = Res(960, 320), nn.Conv2d(320, 4, 3, padding=1)
    def forward(self, x):
        a = self.d1(self.a(x))
        b = self.l(self.d2(F.avg_pool2d(a, 2)))
        c = self.l3(self.d3(F.avg_pool2d(b, 2)))
        b = self.u2(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        return self.o(self.u1(torch.cat([F.interpolate(b, scale_factor=2.0), a], 1)))
"""


def large_programs() -> Iterator[SourceOfProgram]:
    """Steps of large models, in which the GPU is busy nearly all of the time."""
    words = "i = torch.randint(0, {words}, ({batch}, {length}), device='cuda')"
    train_words = (
        "o.zero_grad()\n{context}:\n"
        "    loss = F.cross_entropy(m(i).flatten(0, 1), i.flatten())\nloss.backward()\no.step()"
    )
    autocast = "with torch.autocast('cuda', torch.{})".format
    source = words.format(words=50257, batch=16, length=512)
    made = f"{_DECODER}m = Words(1024, 16, 12, 50257, 512).cuda()\n{source}\n"
    fused = "o = torch.optim.AdamW(m.parameters(), fused=True)"
    step = train_words.format(context=autocast("float16"))
    yield SourceOfProgram("words/fp16_fused_16x512", made + fused, step)
    source = words.format(words=32000, batch=8, length=1024)
    made = f"{_DECODER}m = Words(768, 12, 12, 32000, 1024).cuda()\n{source}\n"
    tf32 = "torch.backends.cuda.matmul.allow_tf32 = True\n"
    adam = "o = torch.optim.AdamW(m.parameters())"
    step = train_words.format(context="with torch.enable_grad()")
    yield SourceOfProgram("words/tf32_8x1024", tf32 + made + adam, step)
    yield SourceOfProgram("words/eval_fp32_8x1024", made, "with torch.no_grad(): y = m(i)")
    half = f"{_DECODER}m = Words(2048, 32, 16, 32000, 2048).cuda().bfloat16()\n"
    source = words.format(words=32000, batch=2, length=2048)
    clip = "\nnn.utils.clip_grad_norm_(m.parameters(), 1.0)\no.step()"
    step = train_words.format(context="with torch.enable_grad()").replace("\no.step()", clip)
    momentum = "\no = torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9)"
    yield SourceOfProgram("words/bf16_clip_2x2048", half + source + momentum, step)
    made = (
        f"{_PLAIN_ATTENTION}m = nn.ModuleList(Layer(1024, 16) for _ in range(12)).cuda()\n"
        f"x = {_tensor(8, 512, 1024, dtype='fp32')}\nb = {_tensor(16, 512, 512, dtype='fp32')}\n"
        "o = torch.optim.AdamW(m.parameters())"
    )
    run = "y = x\n{indent}for layer in m: y = layer(y, b)\n{indent}loss = y.float().square().mean()"
    step = f"o.zero_grad()\n{run.format(indent='')}\nloss.backward()\no.step()"
    yield SourceOfProgram("t5/fp32_8x512", made, step)
    body = run.format(indent="    ")
    step = f"o.zero_grad()\n{autocast('bfloat16')}:\n    {body}\nloss.backward()\no.step()"
    yield SourceOfProgram("t5/bf16_8x512", made, step)
    # Pictures.
    train = (
        "o.zero_grad()\n{context}:\n    loss = F.cross_entropy(m(x), t)\nloss.backward()\no.step()"
    )
    targets = "t = torch.randint(0, 1000, ({},), device='cuda')\n".format
    pictures = "x = torch.rand({}, 3, 224, 224, device='cuda')".format
    sgd = "o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)"
    last = ".to(memory_format=torch.channels_last)\n"
    plain = train.format(context="with torch.enable_grad()")
    mixed = train.format(context=autocast("bfloat16"))
    made = f"{_RESNET}m = resnet().cuda(){last}{pictures(128)}{last}{targets(128)}{sgd}"
    yield SourceOfProgram("resnet/last_amp_128", made, mixed)
    yield SourceOfProgram("resnet/last_fp32_128", made, plain)
    made = f"{_RESNET}m = resnet((3, 4, 23, 3)).cuda()\n{pictures(48)}\n{targets(48)}{sgd}"
    yield SourceOfProgram("resnet/101_amp_48", made, mixed)
    made = f"{_RESNET}m = resnet().cuda().half().eval(){last}{pictures(256)}.half(){last}"
    yield SourceOfProgram("resnet/eval_fp16_256", made, "with torch.no_grad(): y = m(x)")
    made = f"{_CONVNEXT}{pictures(64)}\n{targets(64)}{adam}"
    yield SourceOfProgram("convnext/amp_64", made, mixed)
    yield SourceOfProgram("convnext/fp32_64", made, plain)
    made = (
        f"{_UNET}m = Unet().cuda()\nx = {_tensor(8, 4, 64, 64, dtype='fp32')}\n"
        "z = torch.randn_like(x)\no = torch.optim.AdamW(m.parameters(), fused=True)"
    )
    step = f"o.zero_grad()\n{autocast('bfloat16')}:\n    loss = F.mse_loss(m(x), z)\n"
    yield SourceOfProgram("unet/amp_8", made, f"{step}loss.backward()\no.step()")
    step = f"with torch.no_grad(), {autocast('float16').removeprefix('with ')}: y = m(x)"
    yield SourceOfProgram("unet/sample_8", made, step)


def write_programs(programs: Iterator[SourceOfProgram], path: Path) -> None:
    """Write programs as a record has them, without times."""
    sources = {}
    for program in programs:
        assert program.name not in sources, f"two programs of the name {program.name}"
        sources[program.name] = {"setup": _HEAD + program.setup, "step": program.step}
    path.write_text(json.dumps({"programs": sources}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_programs(operator_programs(), Path(sys.argv[1]))
    write_programs(large_programs(), Path(sys.argv[2]))
