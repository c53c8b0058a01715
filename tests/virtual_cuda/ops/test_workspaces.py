"""Libraries take memory for their work as on a GPU; the figures are an H200's, with torch 2.11."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from virtual_cuda import virtual_cuda

MIB = 1 << 20
PRODUCTS = 32 * MIB  # the workspace of cuBLAS
FUSED = MIB  # that of cuBLASLt


@pytest.fixture
def _h200() -> Iterator[None]:
    with virtual_cuda(gpu="H200"):
        yield


def added_by(function: object) -> int:
    """The bytes that a call leaves allocated, besides its result."""
    before = torch.cuda.memory_allocated()
    result = function()  # type: ignore[operator]
    size = result.untyped_storage().nbytes() if isinstance(result, torch.Tensor) else 0
    return torch.cuda.memory_allocated() - before - (-size // 512 * -512)


@pytest.mark.usefixtures("_h200")
def test_the_first_product_of_each_kind_as_recorded() -> None:
    figures = []
    x = torch.rand(64, 64, device="cuda")
    figures.append(torch.cuda.memory_allocated())
    y = x @ x
    figures.append(torch.cuda.memory_allocated())
    layer = nn.Linear(64, 64).cuda()
    figures.append(torch.cuda.memory_allocated())
    z = layer(x)
    figures.append(torch.cuda.memory_allocated())
    z.sum().backward()
    figures.append(torch.cuda.memory_allocated())
    assert figures == [16_384, 33_587_200, 33_604_096, 34_669_056, 68_240_384]
    assert y.shape == x.shape


@pytest.mark.usefixtures("_h200")
def test_distances_by_a_product_copy_both_sides_as_recorded() -> None:
    points = torch.rand(20_000, 32, device="cuda")
    centres = points[:64].clone()
    torch.cdist(points, centres)  # cuBLAS has its workspace now
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.cdist(points, centres)
    assert torch.cuda.max_memory_allocated() - before == 7_848_960


@pytest.mark.usefixtures("_h200")
def test_a_workspace_belongs_to_a_thread_and_a_stream() -> None:
    x = torch.rand(64, 64, device="cuda")
    added = []

    def work() -> None:
        added.append(added_by(lambda: x @ x))

    work()
    work()
    with torch.cuda.stream(torch.cuda.Stream()):
        work()
    # The handle of a thread that has ended goes to the next one.
    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert added == [PRODUCTS, 0, PRODUCTS, PRODUCTS, 0]


@pytest.mark.usefixtures("_h200")
def test_workspaces_can_be_cleared() -> None:
    x = torch.rand(64, 64, device="cuda")
    assert added_by(lambda: x @ x) == PRODUCTS
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() == 16_384
    assert added_by(lambda: x @ x) == PRODUCTS


@pytest.mark.usefixtures("_h200")
def test_a_bias_is_added_by_cublaslt_where_it_can() -> None:
    x = torch.rand(64, 64, device="cuda")
    bias = torch.rand(64, device="cuda")
    assert added_by(lambda: x @ x) == PRODUCTS
    assert added_by(lambda: torch.addmm(bias, x, x, beta=2)) == 0
    assert added_by(lambda: torch.addmm(x, x, x)) == 0
    assert added_by(lambda: nn.functional.linear(x, x[:1], bias[:1])) == 0  # one column
    assert added_by(lambda: torch.addmm(bias, x, x)) == FUSED


@pytest.mark.parametrize(
    ("gpu", "size"), [("H200", 32 * MIB), ("A100", 8 * MIB + (128 << 10)), ("T4", 8_519_680)]
)
def test_the_size_depends_on_the_capability(gpu: str, size: int) -> None:
    with virtual_cuda(gpu=gpu):
        x = torch.rand(64, 64, device="cuda")
        assert added_by(lambda: x @ x) == size


SETTINGS = [
    ({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, 32 * MIB, MIB),
    ({"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, 128 << 10, 128 << 10),
    ({"CUBLASLT_WORKSPACE_SIZE": "8192"}, 32 * MIB, 8 * MIB),
    ({"CUBLASLT_WORKSPACE_SIZE": "65536"}, 32 * MIB, 32 * MIB),
    ({"DISABLE_ADDMM_CUDA_LT": "1"}, 32 * MIB, 0),
    ({"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "1"}, 32 * MIB, 0),
    ({"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0"}, 32 * MIB, MIB),
]


@pytest.mark.usefixtures("_h200")
@pytest.mark.parametrize(("environment", "product", "fused"), SETTINGS)
def test_settings(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], product: int, fused: int
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    x = torch.rand(64, 64, device="cuda")
    assert added_by(lambda: x @ x) == product
    assert added_by(lambda: torch.addmm(x[0], x, x)) == fused


@pytest.mark.usefixtures("_h200")
def test_a_setting_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "large")
    x = torch.rand(64, 64, device="cuda")
    with pytest.warns(UserWarning, match="Could not parse CUBLAS_WORKSPACE_CONFIG"):
        assert added_by(lambda: x @ x) == PRODUCTS


# ---- convolutions --------------------------------------------------------------------------------


def extra_at_peak(function: object) -> int:
    """The bytes at the peak of a call, above what was there before and the result."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = function()  # type: ignore[operator]
    peak = torch.cuda.max_memory_allocated()
    size: int = result.untyped_storage().nbytes()
    return peak - before - size


@pytest.mark.usefixtures("_h200")
def test_a_convolution_copies_into_another_layout() -> None:
    x = torch.rand(16, 3, 224, 224, device="cuda")
    layer = nn.Conv2d(3, 64, 7, 2, 3, bias=False).cuda()
    with torch.no_grad():
        assert extra_at_peak(lambda: layer(x)) == pytest.approx(61_051_664, rel=0.02)


@pytest.mark.usefixtures("_h200")
def test_a_convolution_with_channels_last_copies_nothing() -> None:
    x = torch.rand(32, 64, 24, 24, device="cuda").to(memory_format=torch.channels_last)
    layer = nn.Conv2d(64, 64, 3, padding=1).cuda().to(memory_format=torch.channels_last)
    with torch.no_grad():
        assert extra_at_peak(lambda: layer(x)) == 0


def test_a_convolution_without_room_for_its_workspace_still_runs() -> None:
    with virtual_cuda(memory="64 MiB"):
        layer = nn.Conv2d(16, 16, 3, padding=1).cuda()
        x = torch.rand(128, 16, 64, 64, device="cuda")[:90]
        assert layer(x[:64]).shape == (64, 16, 64, 64)


def test_the_rules_record_no_operations() -> None:
    with virtual_cuda(gpu="H200") as gpu:
        layer = nn.Conv2d(3, 16, 3).cuda()
        x = torch.rand(2, 3, 8, 8, device="cuda")
        mark = gpu.ledger.mark()
        nn.functional.conv2d(x, layer.weight)
        names = [row.name for row in gpu.ledger.since(mark).records]
    assert names == ["aten.convolution.default"]


# ---- other products, and solvers -----------------------------------------------------------------

PRODUCTS_OF_OTHERS = {
    "addmv": lambda x: torch.addmv(x[0], x, x[0]),
    "addbmm": lambda x: torch.addbmm(x, x[None], x[None]),
    "addmm_": lambda x: x.clone().addmm_(x, x),
    "cdist": lambda x: torch.cdist(x, x),
    "inv": lambda x: torch.linalg.inv(x),
    "solve_triangular": lambda x: torch.linalg.solve_triangular(x, x, upper=True),
    "det of a batch": lambda x: torch.linalg.det(x[None]),
    "matrix_exp": lambda x: torch.linalg.matrix_exp(x),
    "pinv": lambda x: torch.linalg.pinv(x),
}


@pytest.mark.usefixtures("_h200")
@pytest.mark.parametrize("name", PRODUCTS_OF_OTHERS)
def test_other_operators_that_use_cublas(name: str) -> None:
    x = torch.eye(64).cuda()
    assert added_by(lambda: PRODUCTS_OF_OTHERS[name](x)) == PRODUCTS


@pytest.mark.usefixtures("_h200")
def test_solvers_that_do_not_use_cublas() -> None:
    x = torch.eye(64).cuda()
    assert added_by(lambda: torch.linalg.det(x)) == 0
    assert added_by(lambda: torch.linalg.cholesky(x)) == 0
    assert added_by(lambda: torch.linalg.eigvalsh(x)) == 0
    torch.cuda.reset_peak_memory_stats()
    torch.linalg.qr(x)
    assert torch.cuda.max_memory_allocated() == pytest.approx(3 * MIB, rel=0.05)


# ---- recurrent layers ----------------------------------------------------------------------------


@pytest.mark.usefixtures("_h200")
def test_a_recurrent_layer_has_a_workspace_and_the_state_of_its_dropout() -> None:
    layer = nn.LSTM(128, 256, 2, batch_first=True, dropout=0.2).cuda()
    x = torch.rand(64, 100, 128, device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = layer(x)
    kept = torch.cuda.memory_allocated()
    # A workspace of 64,357,120 bytes, and a copy of the data with its steps first.
    passing = torch.cuda.max_memory_allocated() - kept
    assert passing == pytest.approx(64_357_120 + x.nbytes, rel=0.05)
    del out
    # 24 bytes for each of the 132 · 2048 threads of the GPU.
    assert torch.cuda.memory_allocated() - before == pytest.approx(6_488_064, abs=MIB)


LSTMS = [  # hidden size, layers, both directions, dtype, steps, batch; the peak of forward
    (64, 1, False, torch.float32, 32, 16, 12_370_944),
    (128, 2, True, torch.float32, 50, 32, 83_362_816),
    (64, 1, False, torch.bfloat16, 32, 16, 9_404_416),
    (128, 2, False, torch.float16, 50, 32, 32_270_336),
]


@pytest.mark.usefixtures("_h200")
@pytest.mark.filterwarnings("ignore:RNN module weights")
@pytest.mark.parametrize(("hidden", "layers", "both", "dtype", "steps", "batch", "peak"), LSTMS)
def test_the_peak_of_a_recurrent_layer(
    hidden: int, layers: int, both: bool, dtype: torch.dtype, steps: int, batch: int, peak: int
) -> None:
    torch.empty(1 << 28, dtype=torch.uint8, device="cuda")  # blocks are cut off it
    layer = nn.LSTM(hidden, hidden, layers, batch_first=True, bidirectional=both).to("cuda", dtype)
    x = torch.rand(batch, steps, hidden, device="cuda").to(dtype).requires_grad_()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    layer(x)
    assert torch.cuda.max_memory_allocated() - before == pytest.approx(peak, rel=0.06)


# ---- attention -----------------------------------------------------------------------------------

ATTENTION = [  # dtype, length, head size; the peak of forward and backward
    (torch.float32, 64, 32, 463_360),
    (torch.float32, 64, 128, 1_839_616),
    (torch.float32, 1000, 32, 7_284_224),
    (torch.bfloat16, 64, 64, 398_848),
    (torch.float16, 1000, 32, 3_137_536),
]


@pytest.mark.usefixtures("_h200")
@pytest.mark.parametrize(("dtype", "length", "size", "peak"), ATTENTION)
def test_the_peak_of_attention(dtype: torch.dtype, length: int, size: int, peak: int) -> None:
    shape = (2, 4, length, size)
    query = torch.rand(shape, device="cuda").to(dtype).requires_grad_()
    gradient = torch.rand(shape, device="cuda").to(dtype)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    torch.autograd.grad(out, query, gradient)
    assert torch.cuda.max_memory_allocated() - before == pytest.approx(peak, rel=0.002)


# ---- the ledger ----------------------------------------------------------------------------------


def test_the_ledger_tells_what_tensors_take() -> None:
    with virtual_cuda(gpu="H200") as gpu:
        layer = nn.Linear(64, 64).cuda()
        layer(torch.rand(64, 64, device="cuda")).sum().backward()
        assert torch.cuda.max_memory_allocated() > 64 * MIB
    assert gpu.ledger.peak_bytes() < MIB


class Answering(torch.Tensor):
    """A tensor of a program's own class, which answers every operator with sevens."""

    @staticmethod
    def __new__(cls) -> Answering:
        return torch.Tensor._make_wrapper_subclass(cls, (2, 2))

    @classmethod
    def __torch_dispatch__(
        cls, func: object, types: object, args: object, kwargs: object = None
    ) -> torch.Tensor:
        return torch.full((2, 2), 7.0)


@pytest.mark.usefixtures("_h200")
def test_a_product_with_a_tensor_of_another_class_asks_that_class() -> None:
    x = torch.ones(2, 2, device="cuda")
    assert torch.mm(x, Answering()).tolist() == [[7, 7], [7, 7]]
