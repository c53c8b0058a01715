"""The workspaces of convolutions: memory that cuDNN gets for the length of one call.

The sizes are rules that were fitted to recorded calls, for torch 2.11 on an H200.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch

from virtual_cuda.device.state import VirtualDevice
from virtual_cuda.ops.workspaces import Workspaces

_NOTHING: Final = Workspaces()

# cuDNN computes by tensor cores, which want channels last in memory and rows of whole 16 bytes:
# images in another layout are copied into the workspace, with the weight, and the result is copied
# out of it. Which way it goes is its secret. The rules below were fitted to two thirds of 2,613
# single convolutions on an H200 (torch 2.11, cuDNN 9.19) and tried on the others, where 80 % of
# results, 83 % of gradients of images and half of those of weights were within 5 % of the memory
# of the call. They cannot know `torch.backends.cudnn.benchmark`, which tries all ways.
_ROW: Final = 16  # bytes; channels are padded to whole rows
_SHORT_SUM: Final = {4: 145, 2: 102}  # products in an element, by item size; no copies below
_SMALL_RESULT: Final = 400_000_000  # products in all; a single precision result is not copied below
_SMALL_GRADIENT: Final = 150_000_000  # and nothing is for a gradient of images
_SMALL_WEIGHT_GRADIENT: Final = {4: 20_000_000, 2: 6_000_000}  # nor for one of weights
_FEW_CHANNELS: Final = 16  # of images whose gradient in single precision needs no copies
_MANY_CHANNELS: Final = 128  # from here on a strided pointwise call in single precision copies
_PARTIAL_SUMS: Final = 4 << 20  # bytes of a weight's gradient, which many blocks of threads add up
_PIXELS_OF_SUM: Final = 2_048  # for each partial sum
_FEWER_SUMS: Final = 2 << 20  # bytes, with channels last
_PRODUCTS_FOR_SUMS: Final = 200_000_000  # with fewer, a call with channels last adds up none
_TILE: Final = 4  # pixels of Winograd's way for kernels of 3 · 3: a tile has 4 · 4 results …
_TILE_ITEMS: Final = 36  # … for which it needs 6 · 6 numbers of each channel
_WINOGRAD_CHANNELS: Final = 24  # it is taken for this many channels at least …
_WINOGRAD_PIXELS: Final = 12_000  # … fewer pixels …
_WINOGRAD_WEIGHT: Final = 1_000_000  # … and a weight of fewer elements than this
_FEWEST_PIXELS: Final = 200  # with fewer, a weight's gradient in single precision has no copies
_TINY_PRODUCTS: Final = 200_000  # of a pointwise call without partial sums
_TINY_WEIGHT: Final = 1_536  # elements of a pointwise weight …
_LARGE_IMAGE: Final = 2_000  # … and pixels of an image, whose gradient is computed with copies
_SINGLE: Final = 4  # bytes of an item in single precision, in which sums are kept
_HALF: Final = (torch.float16, torch.bfloat16)


class _Convolution(NamedTuple):
    """One convolution as cuDNN sees it.

    A transposed convolution is the gradient of a plain one: what it is given is the plain one's
    result, and what it gives is the plain one's image.
    """

    image: torch.Tensor
    weight: torch.Tensor
    result: torch.Tensor
    groups: int
    is_strided: bool
    is_by_tensor_cores: bool
    has_channels_last: bool

    # ---- sizes ----

    @property
    def item(self) -> int:
        """The bytes of one element."""
        return self.image.element_size()

    @property
    def image_channels(self) -> int:
        """The number of channels of the image."""
        return self.image.shape[1]

    @property
    def result_channels(self) -> int:
        """The number of channels of the result."""
        return self.result.shape[1]

    @property
    def taps(self) -> int:
        """The number of pixels under the kernel."""
        return math.prod(self.weight.shape[2:])

    @property
    def pixels(self) -> int:
        """The number of pixels of all results."""
        return len(self.result) * math.prod(self.result.shape[2:])

    @property
    def products(self) -> int:
        """The number of multiplications of the call."""
        return self.pixels * self.weight.numel()

    @property
    def is_depthwise(self) -> bool:
        """True if each channel has a kernel of its own; torch computes this without cuDNN."""
        return self.groups == self.image_channels

    def _pad_channels(self, channels: int) -> int:
        """This many channels, rounded up to whole rows."""
        in_row = _ROW // self.item
        return -(-channels // in_row) * in_row

    @property
    def image_copy(self) -> int:
        """The bytes of a copy of the image."""
        return self.image.nbytes // self.image_channels * self._pad_channels(self.image_channels)

    @property
    def result_copy(self) -> int:
        """The bytes of a copy of the result."""
        return self.result.nbytes // self.result_channels * self._pad_channels(self.result_channels)

    @property
    def weight_copy(self) -> int:
        """The bytes of a copy of the weight."""
        inputs = self._pad_channels(self.image_channels)
        outputs = self._pad_channels(self.result_channels)
        return inputs * outputs * self.taps * self.item

    @property
    def padded_copies(self) -> int:
        """The bytes of copies that only pad channels, with the weight; 0 if no rows are broken."""
        nbytes = 0
        if self.image_copy != self.image.nbytes:
            nbytes += self.image_copy
        if self.result_copy != self.result.nbytes:
            nbytes += self.result_copy
        return nbytes + self.weight_copy if nbytes else 0

    # ---- workspaces ----

    def bytes_for_result(self) -> int:
        """The bytes of the workspace for the result; 0 where cuDNN needs none."""
        if not self.is_by_tensor_cores:
            return 0
        if self.groups > 1:
            return self._bytes_with_groups()
        if self.taps == 1:
            return self._bytes_of_strided_pointwise()
        if self.image_channels * self.taps < _SHORT_SUM[self.item]:
            return 0
        if self.has_channels_last:
            return self.padded_copies
        if self.item != _SINGLE:
            return self.image_copy + self.weight_copy + self.result_copy
        # In single precision the image is copied without padding.
        copies = self.image.nbytes + self.weight_copy
        return copies if self.products < _SMALL_RESULT else copies + self.result_copy

    def bytes_for_image(self) -> int:
        """The bytes of the workspace for the gradient of the image; 0 where cuDNN needs none."""
        if not self.is_by_tensor_cores:
            return 0
        if self.groups > 1:
            return self._bytes_with_groups()
        if self.taps == 1:
            return self._bytes_of_strided_pointwise()
        if self.has_channels_last:
            return self.padded_copies
        is_small = self.products < _SMALL_GRADIENT or self.image_channels < _FEW_CHANNELS
        if self.item == _SINGLE and is_small:
            return 0
        return self.image_copy + self.weight_copy + self.result_copy

    def bytes_for_weight(self) -> int:
        """The bytes of the workspace for the gradient of the weight; 0 where cuDNN needs none."""
        if not self.is_by_tensor_cores:
            return 0
        if self.groups > 1:
            return self._bytes_with_groups()
        if self.taps == 1 and not self.has_channels_last:
            return self._bytes_for_pointwise_weight()
        if self.products < _SMALL_WEIGHT_GRADIENT[self.item]:
            return 0
        if self.has_channels_last:
            sums = _FEWER_SUMS if self.products >= _PRODUCTS_FOR_SUMS else 0
            return self.padded_copies + sums
        if self.item == _SINGLE and self.pixels < _FEWEST_PIXELS:
            return 0
        if self._is_by_winograd():
            return self._bytes_for_winograd()
        return self._bytes_of_copies_and_sums()

    def _bytes_of_copies_and_sums(self) -> int:
        """The bytes of copies of image and result, and of the weight or its partial sums."""
        sum_bytes = self.weight_copy // self.item * _SINGLE
        sums = min(self.pixels // _PIXELS_OF_SUM * sum_bytes, _PARTIAL_SUMS)
        return self.image_copy + self.result_copy + max(self.weight_copy, sums)

    def _is_by_winograd(self) -> bool:
        """True if the weight's gradient is computed by Winograd's way, with fewer products."""
        if self.item != _SINGLE or self.is_strided or self.weight.shape[2:] != (3, 3):
            return False
        if min(self.image_channels, self.result_channels) < _WINOGRAD_CHANNELS:
            return False
        return self.pixels < _WINOGRAD_PIXELS and self.weight.numel() < _WINOGRAD_WEIGHT

    def _bytes_for_winograd(self) -> int:
        """The bytes of image, result and weight in Winograd's form, tile by tile."""
        tiles = len(self.image)
        for pixels in self.result.shape[2:]:
            tiles *= -(-pixels // _TILE)
        channels = self.image_channels + self.result_channels
        weight = self.image_channels * self.result_channels
        return (channels * tiles + weight) * _TILE_ITEMS * _SINGLE

    def _bytes_with_groups(self) -> int:
        """The workspace of a call with groups, for any of its three results."""
        if self.is_depthwise or self.has_channels_last:
            return 0
        return self.image_copy + self.result_copy

    def _bytes_of_strided_pointwise(self) -> int:
        """The workspace of a call whose kernel has one pixel; 0 without a stride."""
        if not self.is_strided or self.has_channels_last:
            return 0
        fewest = min(self.image_channels, self.result_channels)
        if self.item == _SINGLE and fewest < _MANY_CHANNELS:
            return 0
        return self.image_copy + self.result_copy

    def _bytes_for_pointwise_weight(self) -> int:
        """The workspace of the weight's gradient where the kernel has one pixel.

        It is one product for each image, whose results are added up. Tensor cores read whole rows:
        images whose pixels do not fill them, such as 7 · 7, are copied.
        """
        if self.is_strided:
            return self._bytes_of_strided_pointwise()
        if self.products < _TINY_PRODUCTS:
            return 0
        pixels = math.prod(self.image.shape[2:])
        if pixels * self.item % _ROW:
            return self._bytes_of_copies_and_sums()
        is_large = pixels >= _LARGE_IMAGE
        if is_large and self.weight.numel() <= _TINY_WEIGHT:
            return self.image_copy + self.result_copy
        return len(self.image) * self.weight_copy // self.item * _SINGLE


def _uses_tensor_cores(device: VirtualDevice, dtype: torch.dtype) -> bool:
    """True if the GPU has tensor cores for the dtype; one that was not named is an H200."""
    model = device.gpu.model
    if dtype in _HALF:
        return model is None or model.capability >= (7, 0)
    if dtype is torch.float32:
        return model is None or model.capability >= (8, 0)
    return False


def _memory_format(image: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """The layout in which torch calls cuDNN: that of the image or of the weight."""
    channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(image.dim())
    if channels_last is not None:
        for tensor in (image, weight):
            is_plain = tensor.is_contiguous()
            if not is_plain and tensor.is_contiguous(memory_format=channels_last):
                return channels_last
    return torch.contiguous_format


def _bytes_of_copies(tensors: Sequence[torch.Tensor], layout: torch.memory_format) -> int:
    """The bytes that torch itself copies, where tensors are not in the layout of the call."""
    nbytes = 0
    for tensor in tensors:
        if not tensor.is_contiguous(memory_format=layout):
            nbytes += tensor.nbytes
    return nbytes


# ---- operators -----------------------------------------------------------------------------------


def _see_as_plain(
    given: torch.Tensor, weight: torch.Tensor, made: torch.Tensor, stride: Any, groups: int
) -> _Convolution:
    """The convolution that makes one tensor, `made`, of another, `given`, as cuDNN sees it.

    `given` is a device tensor.
    """
    device = given._virtual_block.device  # type: ignore[attr-defined]
    return _Convolution(
        image=given,
        weight=weight,
        result=made,
        groups=groups,
        is_strided=any(step > 1 for step in stride),
        is_by_tensor_cores=_uses_tensor_cores(device, given.dtype),
        has_channels_last=_memory_format(given, weight) is not torch.contiguous_format,
    )


def convolution_workspaces(args: Any, kwargs: Any, results: Any) -> Workspaces:
    """The workspace of one call of `convolution`; none without cuDNN.

    `args` are those of the operator, `results` is the tensor that it gave.
    """
    image, weight, _, stride, _, _, transposed, _, groups = args
    if image.dim() < 3 or not results.numel() or not torch.backends.cudnn.enabled:
        return _NOTHING
    copies = _bytes_of_copies((image, weight), _memory_format(image, weight))
    if transposed:
        passing = _see_as_plain(results, weight, image, stride, groups).bytes_for_image()
    else:
        passing = _see_as_plain(image, weight, results, stride, groups).bytes_for_result()
    return Workspaces(passing=copies + passing)


def convolution_gradient_workspaces(args: Any, kwargs: Any, results: Any) -> Workspaces:
    """The workspace of one call of `convolution_backward`; none without cuDNN.

    `args` are those of the operator. The image's gradient is computed first; there is no memory for
    the weight's at that time.
    """
    gradient, image, weight, _, stride, _, _, transposed, _, groups, wanted = args
    if image.dim() < 3 or not gradient.numel() or not torch.backends.cudnn.enabled:
        return _NOTHING
    copies = _bytes_of_copies((gradient, image, weight), _memory_format(image, weight))
    if transposed:
        call = _see_as_plain(gradient, weight, image, stride, groups)
    else:
        call = _see_as_plain(image, weight, gradient, stride, groups)
    for_image = 0
    for_weight = 0
    if wanted[0]:
        for_image = call.bytes_for_result() if transposed else call.bytes_for_image()
    if wanted[1]:
        for_weight = call.bytes_for_weight()
        for_image -= weight.nbytes
    return Workspaces(passing=copies + max(for_image, for_weight))
