"""Functions of torch.cuda, pinning and errors that programs of others rely on.

What is expected, an H200 did.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch._prims.context import TorchRefsMode
from torch.overrides import TorchFunctionMode
from virtual_cuda import virtual_cuda


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with virtual_cuda():
        yield


def test_facts_about_the_device() -> None:
    assert torch.cuda.get_allocator_backend() == "native"
    assert len(torch.cuda.get_device_properties(0).uuid.bytes) == 16
    least, greatest = torch.cuda.Stream.priority_range()
    assert greatest < least == 0
    with pytest.raises(RuntimeError, match=r"Device index value 1 is out of index range \[0, 1\)"):
        torch.accelerator.current_stream(1)


def test_clocks_of_the_device() -> None:
    told = torch.cuda.get_device_properties(0)
    assert (told.clock_rate, told.memory_clock_rate, told.memory_bus_width) == (
        1_980_000,
        3_201_000,
        6144,
    )


@pytest.mark.skipif(
    not hasattr(torch.accelerator, "get_device_capability"), reason="this torch does not tell"
)
def test_dtypes_that_the_device_holds() -> None:
    held = torch.accelerator.get_device_capability("cuda:0")["supported_dtypes"]
    assert {
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.complex64,
        torch.float8_e4m3fn,
    } < held
    assert torch.accelerator.get_device_capability() == {"supported_dtypes": held}
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.accelerator.get_device_capability(1)


def test_names_in_a_tensor_are_those_of_a_gpu() -> None:
    x = torch.ones(2, device="cuda")
    assert set(dir(x)) - set(dir(torch.ones(2))) == {"__cuda_array_interface__"}
    x.remark = "mine"  # type: ignore[attr-defined]
    assert "remark" in dir(x)
    assert "__cuda_array_interface__" not in dir(x.to_sparse())
    assert set(dir(nn.Parameter(x))) - set(dir(nn.Parameter(torch.ones(2)))) == {
        "__cuda_array_interface__"
    }


def test_sensors_are_those_of_an_idle_gpu() -> None:
    assert torch.cuda.utilization() == 0
    assert 0 < torch.cuda.temperature() < 100
    assert torch.cuda.power_draw(0) > 0
    assert torch.cuda.clock_rate("cuda") > 0
    before = torch.cuda.device_memory_used()
    kept = torch.empty(32 << 20, device="cuda", dtype=torch.uint8)
    assert torch.cuda.device_memory_used() - before == kept.nbytes
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.temperature(1)


MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rand_like": lambda x: torch.rand_like(x, pin_memory=True),
    "zeros_like": lambda x: torch.zeros_like(x, pin_memory=True),
    "new_zeros": lambda x: x.new_zeros(2, pin_memory=True),
    "empty": lambda x: torch.empty(2, pin_memory=True),
    "pin_memory": lambda x: x.pin_memory(),
    "read without waiting": lambda x: x.cuda().to("cpu", non_blocking=True),
}


@pytest.mark.parametrize("name", MADE)
def test_memory_is_pinned(name: str) -> None:
    made = MADE[name](torch.ones(2))
    assert made.is_pinned()
    assert made.device.type == "cpu"


def test_memory_is_not_pinned_by_a_read_that_waits() -> None:
    assert not torch.ones(2, device="cuda").to("cpu").is_pinned()


def test_a_pinned_copy_belongs_to_the_graph() -> None:
    x = torch.ones(2, requires_grad=True)
    (x.pin_memory() * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3]


def test_an_index_into_nothing_is_refused_by_the_host() -> None:
    with pytest.raises(IndexError, match="index is out of bounds for dimension with size 0"):
        torch.empty(3, 0, device="cuda")[:, [0]]
    assert torch.ones(1, device="cuda").item() == 1  # the device goes on


def test_values_that_do_not_fit_a_scalar_are_refused() -> None:
    with pytest.raises(RuntimeError):
        torch.rand([], device="cuda").index_put([], torch.ones(1, device="cuda"), accumulate=True)


@pytest.mark.parametrize("write_to_clone", [True, False])
def test_a_lazy_clone_shares_memory_until_one_is_written_to(write_to_clone: bool) -> None:
    x = torch.arange(4, device="cuda")
    clone = x._lazy_clone()
    assert torch._C._is_cow_tensor(x)
    assert torch._C._is_cow_tensor(clone[1:])
    assert clone[1:].const_data_ptr() == x[1:].const_data_ptr() != x.const_data_ptr()
    written, other = (clone, x) if write_to_clone else (x, clone)
    written += 1
    assert not torch._C._is_cow_tensor(written)
    assert (written.tolist(), other.tolist()) == ([1, 2, 3, 4], [0, 1, 2, 3])
    assert x.data_ptr() != clone.data_ptr()


# image, weight, stride, dilation, transposed, groups: with cuDNN, without it
CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, bool, int, str, str]] = {
    "1d": ((2, 6, 7), (12, 2, 3), 1, False, 3, "Cudnn", "Slow2d"),
    "2d": ((2, 6, 7, 8), (12, 2, 3, 3), 1, False, 3, "Cudnn", "Slow2d"),
    "3d": ((2, 6, 7, 8, 9), (12, 2, 3, 3, 3), 1, False, 3, "Cudnn", "SlowDilated3d"),
    "dilated": ((2, 6, 7, 8), (12, 2, 3, 3), 2, False, 3, "Cudnn", "SlowDilated2d"),
    "transposed": ((2, 6, 7, 8), (6, 4, 3, 3), 1, True, 3, "CudnnTranspose", "SlowTranspose2d"),
    "by channel": ((2, 6, 7), (12, 1, 3), 1, False, 6, "CudaDepthwise2d", "CudaDepthwise2d"),
    "empty": ((2, 0, 7, 8), (12, 0, 3, 3), 1, False, 3, "Empty", "Empty"),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_library_of_a_convolution(name: str) -> None:
    image, weight, dilation, transposed, groups, *expected = CONVOLUTIONS[name]
    x, w = (torch.zeros(shape, device="cuda") for shape in (image, weight))
    ones = (1,) * (x.dim() - 2)
    settings = (
        ones,
        (0,) * len(ones),
        (dilation,) * len(ones),
        transposed,
        (0,) * len(ones),
        groups,
    )
    found = []
    for enabled in (True, False):
        with torch.backends.cudnn.flags(enabled=enabled):
            found.append(torch._C._select_conv_backend(x, w, None, *settings).name)
            assert torch.backends.cudnn.is_acceptable(x) is enabled
    assert found == expected
    with pytest.raises(RuntimeError, match="Only zero batch or zero channel"):
        torch._C._select_conv_backend(x.new_empty(2, 3, 0, 4), w, None, *settings)
    host = torch._C._select_conv_backend(x.cpu(), w.cpu(), None, *settings)
    assert "Cud" not in host.name


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.out = nn.Embedding(9, 4), nn.LSTM(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.words((x * 8).long().flatten(1)))
        if hidden.sum() > 1e9:
            hidden = torch.zeros_like(hidden)
        return nn.functional.softmax(self.out(nn.functional.gelu(hidden)), dim=2)


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(6, 3),
        nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)),
        nn.Sequential(nn.Conv1d(3, 2, 3), nn.BatchNorm1d(2), nn.Flatten()),
        nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True),
        _Recurrent(),
    ],
    ids=["linear", "layers", "convolution", "transformer", "recurrent"],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_modules_run_on_the_device(module: nn.Module) -> None:
    x = torch.rand(2, 3, 6)
    scripted = torch.jit.script(copy.deepcopy(module).cuda())(x.cuda())
    assert scripted.device.type == "cuda"
    torch.testing.assert_close(scripted.cpu(), module(x))


def test_the_window_of_kaiser_is_made_on_the_device() -> None:
    for given in ({}, {"periodic": False}, {"periodic": True, "beta": 5.0, "dtype": torch.float64}):
        made = torch.kaiser_window(5, device="cuda", **given)
        assert made.is_cuda
        torch.testing.assert_close(made.cpu(), torch.kaiser_window(5, **given), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_are_made_on_the_default_device() -> None:
    with torch.device("cuda"):
        made = [
            torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2)),
            torch.sparse_coo_tensor(
                torch.zeros(1, 1, dtype=torch.long, device="cpu"), torch.ones(1, device="cpu"), (2,)
            ),
            torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1)),
        ]
    assert all(each.is_cuda for each in made)


def test_a_value_that_cannot_be_assigned_is_refused_by_the_name_of_the_type() -> None:
    with pytest.raises(
        TypeError, match=r"can't assign a numpy.float32 to a torch.cuda.FloatTensor"
    ):
        torch.ones(2, device="cuda")[0] = numpy.float32(1)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_traced_graph_names_the_device() -> None:
    traced = torch.jit.trace(lambda x: x * 2, torch.ones(2, device="cuda"))
    assert "device=cuda:0" in str(traced.graph)
    assert "lazy" not in str(traced.graph)


def test_a_function_mode_sees_one_call_where_a_device_tensor_is_converted() -> None:
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(torch.overrides.resolve_name(func))
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, device="cuda")
    with Mode():
        x.to(torch.float64)
    assert seen == ["torch.Tensor.to"]


class Calls(TorchFunctionMode):
    """Lists the functions of torch that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_a_function_mode_sees_the_functions_that_a_program_calls() -> None:
    host = torch.ones(2)
    with Calls() as calls:
        x = torch.zeros(2, device="cuda")
        torch.tensor([1.0], device="cuda")
        host.to("cuda")
        x.new_zeros(2)
        torch.full_like(x, 2)
    expected = [torch.zeros, torch.tensor, torch.Tensor.to, torch.Tensor.new_zeros, torch.full_like]
    assert all(seen is function for seen, function in zip(calls.seen, expected, strict=True))


def test_each_of_two_function_modes_sees_a_call() -> None:
    with torch.device("cuda"), Calls() as outer, Calls() as inner:
        x = torch.tensor([1.0])
    assert x.is_cuda
    assert outer.seen == inner.seen == [torch.tensor]


def test_references_in_python_replace_the_functions_of_torch() -> None:
    x = torch.rand(3, 3, device="cuda")
    with TorchRefsMode(strict=True):
        product = torch.cumprod(x, 0)
        between = torch.lerp(x, x + 1, 0.5)
    assert torch.allclose(product, torch.cumprod(x, 0))
    assert torch.allclose(between, x + 0.5)
