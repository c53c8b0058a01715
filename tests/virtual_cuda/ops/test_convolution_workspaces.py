"""Convolutions have the workspaces of cuDNN; the figures are an H200's, with torch 2.11."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from virtual_cuda import virtual_cuda
from virtual_cuda.fitting.program_runs import without_arithmetic

aten = torch.ops.aten
SMALL = 1024  # bytes; cuDNN keeps a few figures of its own in a workspace


class Call(NamedTuple):
    """A convolution of square images, and the workspace of one of its three results."""

    of: str  # "result", "image" or "weight"
    workspace: int
    images: int
    inputs: int
    outputs: int
    side: int
    kernel: int
    stride: int = 1
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    transposed: bool = False
    groups: int = 1


HALF = torch.bfloat16
RECORDED = {
    "half precision copies all three": Call("result", 677904, 8, 128, 24, 16, 3, dtype=HALF),
    "half precision, short sums": Call("result", 0, 1, 3, 64, 224, 5, dtype=HALF),
    "a small call copies no result": Call("result", 1671184, 8, 384, 64, 8, 3),
    "a large call copies the result": Call("result", 10683183, 32, 512, 512, 3, 3),
    "one pixel": Call("result", 0, 64, 64, 256, 56, 1),
    "one pixel, strided, half": Call("result", 35324051, 64, 256, 384, 28, 1, 2, HALF),
    "channels last": Call("result", 0, 4, 64, 192, 28, 3, channels_last=True),
    "channels last, broken rows": Call("result", 165904, 1, 128, 10, 48, 3, channels_last=True),
    "transposed": Call("result", 17367056, 64, 128, 128, 16, 3, transposed=True),
    "groups": Call("result", 3211328, 8, 64, 64, 28, 3, groups=4),
    "depthwise": Call("result", 0, 32, 144, 144, 28, 3, dtype=HALF, groups=144),
    "gradient of images, small": Call("image", 0, 2, 8, 96, 14, 7),
    "gradient of images": Call("image", 9928720, 4, 64, 128, 56, 3),
    "gradient of images, half": Call("image", 268304, 2, 16, 192, 16, 3, dtype=HALF),
    "gradient of weights": Call("weight", 18219024, 32, 384, 256, 16, 3, 2),
    "gradient of weights, Winograd's": Call("weight", 3345408, 1, 256, 48, 24, 3),
    "gradient of weights, half": Call("weight", 12189843, 4, 384, 384, 28, 5, dtype=HALF),
    "gradient of weights, few pixels": Call("weight", 6912, 4, 384, 256, 7, 3),
    "gradient of weights, one pixel": Call("weight", 2097152, 8, 256, 256, 28, 1, dtype=HALF),
    "gradient of weights, depthwise": Call("weight", 0, 8, 96, 96, 56, 3, 2, groups=96),
    "gradient of weights, channels last": Call(
        "weight", 2065047, 32, 64, 64, 24, 3, channels_last=True
    ),
}
FAR_OFF = {  # recorded calls that the rules do not meet, and how far they are off
    "a large call copies the result": 70_000,
    "gradient of weights, few pixels": 7_000,
    "gradient of weights, channels last": 33_000,
}


@pytest.fixture
def _h200() -> Iterator[None]:
    with virtual_cuda(gpu="H200"), without_arithmetic():
        # Blocks are cut off a large free one: a new segment may be up to 1 MiB larger than wanted.
        torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        yield


def workspace_of(call: Call) -> int:
    """The bytes at the peak of a call above those that it leaves."""
    steps = [call.stride] * 2
    padding = [call.kernel // 2] * 2
    first, second = call.outputs, call.inputs // call.groups
    if call.transposed:
        first, second = call.inputs, call.outputs // call.groups
    image = torch.zeros(
        call.images, call.inputs, call.side, call.side, device="cuda", dtype=call.dtype
    )
    weight = torch.zeros(first, second, call.kernel, call.kernel, device="cuda", dtype=call.dtype)
    if call.channels_last:
        image = image.to(memory_format=torch.channels_last)
        weight = weight.to(memory_format=torch.channels_last)
    settings = (steps, padding, [1, 1], call.transposed, [0, 0], call.groups)
    if call.of == "result":
        torch.cuda.reset_peak_memory_stats()
        kept = aten.convolution(image, weight, None, *settings)
    else:
        gradient = aten.convolution(image, weight, None, *settings)
        wanted = [call.of == "image", call.of == "weight", False]
        torch.cuda.reset_peak_memory_stats()
        kept = aten.convolution_backward(gradient, image, weight, None, *settings, wanted)
    passing = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    del kept
    return passing


@pytest.mark.usefixtures("_h200")
@pytest.mark.parametrize("name", RECORDED)
def test_the_workspace_of_a_recorded_call(name: str) -> None:
    call = RECORDED[name]
    assert workspace_of(call) == pytest.approx(call.workspace, abs=FAR_OFF.get(name, SMALL))


@pytest.mark.usefixtures("_h200")
def test_torch_copies_what_is_not_in_the_layout_of_the_call() -> None:
    image = torch.zeros(8, 64, 28, 56, device="cuda")[..., ::2]
    weight = torch.zeros(64, 64, 1, 1, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    result = torch.nn.functional.conv2d(image, weight)
    passing = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    assert passing == image.nbytes
    assert result.is_contiguous()


def test_a_gpu_without_tensor_cores_for_single_precision_has_none() -> None:
    call = RECORDED["a large call copies the result"]
    with virtual_cuda(gpu="T4"), without_arithmetic():
        assert workspace_of(call) == 0
