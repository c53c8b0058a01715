"""A device without values: the same memory, the same ledger, no arithmetic."""

from __future__ import annotations

import copy
import io
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from virtual_cuda import VirtualGpu, virtual_cuda
from virtual_cuda.errors import NeedsValues

GIB = 1 << 30


@pytest.fixture
def gpu() -> Iterator[VirtualGpu]:
    """An H200 without values."""
    with virtual_cuda(gpu="H200", values=False) as opened:
        yield opened


def train_transformer(gpu: VirtualGpu) -> None:
    """Two steps of a small model with attention, a mask, autocast, a scaler and clipping."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler()
    for _ in range(2):
        batch = torch.rand(8, 32, 64).cuda()
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def train_convolutions(gpu: VirtualGpu) -> None:
    """A step of a network of convolutions whose channels lie last, and its evaluation."""
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(True), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 15 * 15, 10)).cuda()
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.rand(8, 3, 32, 32).cuda().to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (8,)).cuda()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        model(images).argmax(1)


def train_recurrent(gpu: VirtualGpu) -> None:
    """A step of an LSTM on token numbers."""
    embedding = nn.Embedding(100, 32).cuda()
    lstm = nn.LSTM(32, 48, 2, batch_first=True, dropout=0.1).cuda()
    output, _ = lstm(embedding(torch.randint(0, 100, (4, 10)).cuda()))
    output.sum().backward()


def infer(gpu: VirtualGpu) -> None:
    """A forward pass in inference mode, in half precision, with a cache that grows."""
    model = nn.Linear(64, 64).cuda().half()
    with torch.inference_mode():
        cache = torch.empty(0, 64, device="cuda", dtype=torch.half)
        for _ in range(4):
            cache = torch.cat([cache, model(torch.rand(1, 64, device="cuda").half())])


PROGRAMS = (train_transformer, train_convolutions, train_recurrent, infer)


def rows_and_peak(program: Callable[[VirtualGpu], None], values: bool) -> tuple[list[Any], int]:
    """What a program writes into the ledger, without times and lines, and its peak in bytes."""
    with virtual_cuda(gpu="H200", values=values) as gpu:
        torch.manual_seed(0)
        program(gpu)
        rows = []
        for row in gpu.ledger.rows:
            fields = {name: getattr(row, name) for name in row.__struct_fields__}
            for name in ("at", "code", "offset"):
                fields.pop(name, None)
            rows.append((type(row).__name__, fields))
        return rows, torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_ledger_and_the_peak_are_those_of_a_run_with_values(
    program: Callable[[VirtualGpu], None],
) -> None:
    """All that the clock and the reports know is the same, row by row."""
    rows, peak = rows_and_peak(program, values=True)
    rows_without, peak_without = rows_and_peak(program, values=False)
    assert peak_without == peak
    assert rows_without == rows


def test_a_model_of_32_gigabytes_is_made_on_the_host_and_moved(gpu: VirtualGpu) -> None:
    model = nn.Sequential(*[nn.Linear(16384, 16384) for _ in range(30)])
    weight = model[0].weight
    assert weight.device.type == "cpu"
    nn.init.trunc_normal_(weight, std=0.02)
    nn.init.orthogonal_(weight[:64, :64])
    scaled = weight.detach() * 2
    assert scaled.shape == weight.shape
    model.half().to("cuda")
    assert torch.cuda.memory_allocated() == pytest.approx(15 * GIB, rel=0.01)
    if sys.platform == "linux":
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 3 * 1024 * 1024


def test_an_allocation_beyond_the_memory_is_refused() -> None:
    with virtual_cuda(gpu="T4", values=False), pytest.raises(torch.OutOfMemoryError):
        torch.empty(20 * GIB, device="cuda", dtype=torch.uint8)


def test_what_is_read_is_zero_and_its_line_is_known(gpu: VirtualGpu) -> None:
    values = torch.rand(4, device="cuda")
    assert values.sum().item() == 0.0  # this line
    assert values.tolist() == [0.0] * 4
    assert values.cpu().numpy().sum() == 0
    assert not values.sum() < 0
    assert repr(values) == "tensor([0., 0., 0., 0.], device='cuda:0')"
    whats = [assumption.what for assumption in gpu.assumptions]
    assert whats == [
        *["read a value that is not known, and got 0"] * 4,
        "printed a tensor that has no values, as zeros",
    ]
    assert all(assumption.code.co_filename == __file__ for assumption in gpu.assumptions)


def test_small_tensors_of_the_host_keep_their_values(gpu: VirtualGpu) -> None:
    numbers = torch.arange(10) * 2
    assert numbers.tolist() == list(range(0, 20, 2))
    assert torch.zeros(3).add(1).sum().item() == 3
    table = torch.tensor([[1, 2], [3, 4]])
    assert table[[1, 0]].tolist() == [[3, 4], [1, 2]]
    assert gpu.assumptions == []


def test_what_is_computed_from_a_tensor_without_values_has_none(gpu: VirtualGpu) -> None:
    """Also if it is small, and if a tensor that had values is written to."""
    total = torch.rand(4096, 1024).sum()
    assert total.item() == 0
    counts = torch.ones(1024)
    counts += torch.rand(4096, 1024).sum(0)
    assert counts[0].item() == 1
    assert len(gpu.assumptions) == 2


def test_shapes_that_depend_on_values_are_the_largest(gpu: VirtualGpu) -> None:
    values = torch.rand(4, 8, device="cuda")
    numbers = torch.randint(0, 5, (6,), device="cuda")
    assert values[values > 0.5].shape == (32,)
    assert values.nonzero().shape == (32, 2)
    assert torch.where(values > 0.5)[1].shape == (32,)
    assert values.masked_select(values > 0.5).shape == (32,)
    assert values[values.sum(1) > 0].shape == (4, 8)
    assert numbers.unique().shape == (6,)
    found, inverse, counts = numbers.unique(return_inverse=True, return_counts=True)
    assert found.shape == inverse.shape == counts.shape == (6,)
    assert torch.unique_consecutive(numbers).shape == (6,)
    assert torch.bincount(numbers, minlength=5).shape == (5,)
    said = {assumption.what for assumption in gpu.assumptions}
    assert "took all 32 elements to be non-zero" in said
    assert "took a mask to be true for all 32 elements" in said
    assert "took all 6 values to differ" in said


def test_small_tensors_keep_the_values_that_are_known(gpu: VirtualGpu) -> None:
    """Lengths, masks and numbers of steps are no results of arithmetic on weights."""
    lengths = torch.tensor([3, 5, 2]).cuda()
    assert lengths.max().item() == 5
    mask = torch.arange(6, device="cuda") < lengths[:, None]
    assert mask.sum(1).tolist() == [3, 5, 2]
    assert mask.nonzero().shape == (10, 2)
    values = torch.rand(3, 6, 4096, device="cuda")
    assert values[mask].shape == (10, 4096)
    assert values.masked_select(mask[..., None]).shape == (10 * 4096,)
    assert torch.repeat_interleave(lengths).shape == (10,)
    steps = torch.zeros((), device="cuda")
    torch._foreach_add_([steps], 1)
    steps += 1
    steps[()] = steps * 2
    assert steps.item() == 4
    assert torch.full((2,), 7, device="cuda").cpu().tolist() == [7, 7]
    back = torch.empty(2, dtype=torch.int64)
    back.copy_(lengths[1:])
    assert back.tolist() == [5, 2]
    assert torch.ones(2, 3, device="cuda").expand(4, 2, 3)[2].flatten().tolist() == [1.0] * 6
    scaler = torch.amp.GradScaler(init_scale=256.0)
    assert scaler.scale(torch.ones((), device="cuda")).item() == 256
    assert gpu.assumptions == []


def test_what_is_written_from_unknown_values_is_unknown(gpu: VirtualGpu) -> None:
    unknown = torch.rand(4096, 1024, device="cuda")
    known = torch.ones(2048, dtype=torch.int64, device="cuda")
    known.view(2, 1024)[0].copy_(unknown[0])
    assert known[-1].item() == 1
    known.copy_(unknown[:2].flatten())
    assert known[-1].item() == 0
    drawn = torch.ones(8, device="cuda").normal_()
    assert drawn.sum().item() == 0
    counts = torch.ones(4, device="cuda")
    counts += unknown.sum()
    counts[0].item()
    host = torch.ones(4)
    host.copy_(counts)
    assert host.add(1)[0].item() == 2
    assert len(gpu.assumptions) == 5
    counts.fill_(3)
    assert counts.sum().item() == 12
    assert len(gpu.assumptions) == 5


def test_an_unknown_value_is_finite_and_equals_no_other(gpu: VirtualGpu) -> None:
    """So that a script which checks its loss goes on, and a text does not end by itself."""
    loss = torch.rand(4096, 1024, device="cuda").mean()
    assert torch.isfinite(loss)
    assert not torch.isnan(loss)
    assert not loss.isinf()
    assert not (torch.rand(1, 5000, device="cuda").argmax(-1) == 0).any()
    assert loss < 1
    assert torch.isfinite(loss.cpu())
    unfinished = torch.ones(3, dtype=torch.long, device="cuda")
    token = torch.rand(3, 5000, device="cuda").argmax(-1)
    ends = torch.isin(token, torch.tensor([0, 2], device="cuda"))
    assert (unfinished & ~ends).max() == 1
    assert len(gpu.assumptions) == 7


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda x: torch.bincount(x), "minlength"),
        (lambda x: torch.repeat_interleave(x), "output_size"),
        (lambda x: torch.unique(x.view(2, 3), dim=0), "with values"),
    ],
    ids=["bincount", "repeat_interleave", "unique_dim"],
)
def test_a_shape_without_a_largest_is_refused(
    gpu: VirtualGpu, call: Callable[[torch.Tensor], object], remedy: str
) -> None:
    with pytest.raises(NeedsValues, match=remedy):
        call(torch.randint(0, 5, (6,), device="cuda"))


def test_indices_may_be_lists_and_tensors_of_the_host(gpu: VirtualGpu) -> None:
    values = torch.rand(4, 8, device="cuda")
    assert values[[0, 2]].shape == (2, 8)
    assert values[:, [1, 2, 3]].shape == (4, 3)
    assert values[torch.tensor([0, 1, 1])].shape == (3, 8)


def test_a_data_loader_gives_batches(gpu: VirtualGpu) -> None:
    data = TensorDataset(torch.rand(2048, 3, 32, 32), torch.randint(0, 10, (2048,)))
    images, labels = next(iter(DataLoader(data, batch_size=64, shuffle=True)))
    assert images.cuda().shape == (64, 3, 32, 32)
    assert labels.cuda().shape == (64,)


def test_copies_keep_shapes_and_nothing_is_saved(gpu: VirtualGpu) -> None:
    model = nn.Linear(4, 4).cuda()
    twin = copy.deepcopy(model)
    assert twin.weight.shape == (4, 4)
    norm = copy.deepcopy(nn.BatchNorm2d(64).cuda())
    assert norm.running_var.shape == (64,)
    assert norm.running_var.sum().item() == 64
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    assert not file.getvalue()
    assert gpu.assumptions[-1].what.startswith("did not save")


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this torch has no grouped products")
@pytest.mark.parametrize(
    ("left", "right"), [((64, 32), (4, 32, 16)), ((4, 32, 8), (8, 64)), ((32, 64), (64, 16))]
)
def test_products_of_groups_in_single_precision_have_their_shape_and_time(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    def multiply() -> tuple[torch.Size, int]:
        groups = torch.tensor([16, 32, 48, 64], dtype=torch.int32, device="cuda")
        product = F.grouped_mm(torch.rand(left).cuda(), torch.rand(right).cuda(), offs=groups)
        return product.shape, torch.cuda.max_memory_allocated()

    with virtual_cuda(gpu="A100"):
        with_values = multiply()
    with virtual_cuda(gpu="A100", values=False) as gpu:
        assert multiply() == with_values
        with pytest.raises(RuntimeError, match="contraction dimension"):
            F.grouped_mm(torch.rand(5, 3).cuda(), torch.rand(2, 4, 5).cuda())
        products = [row for row in gpu.ledger.rows if "grouped" in getattr(row, "name", "")]
    assert len(products) == 1


@pytest.fixture
def shop() -> Iterator[torch.library.Library]:
    """A library with operators of a package: one with a shape function, one without."""
    library = torch.library.Library("shop", "DEF")
    library.define("keep(Tensor boxes, float threshold) -> Tensor")
    library.define("plain(Tensor boxes) -> Tensor")
    library.impl("keep", lambda boxes, threshold: torch.arange(len(boxes) // 2), "CPU")
    library.impl("plain", lambda boxes: boxes + 1, "CPU")

    @torch.library.register_fake("shop::keep", lib=library)
    def _(boxes: torch.Tensor, threshold: float) -> torch.Tensor:
        size = torch.library.get_ctx().new_dynamic_size()
        return boxes.new_empty(size, dtype=torch.int64)

    yield library
    library._destroy()


def test_operators_of_packages_give_as_many_rows_as_they_are_given(
    shop: torch.library.Library, gpu: VirtualGpu
) -> None:
    boxes = torch.rand(10_000, 4).cuda()
    kept = torch.ops.shop.keep(boxes, 0.5)
    assert boxes[kept].shape == (10_000, 4)
    said = [each.what for each in gpu.assumptions]
    assert said == ["took shop::keep to give 10,000 rows, the most it is expected to"]
    with pytest.raises(NeedsValues, match=r'register_fake\("shop::plain", function\)'):
        torch.ops.shop.plain(boxes)


def test_values_are_back_afterwards() -> None:
    with virtual_cuda(values=False):
        torch.rand(3, device="cuda")
    assert torch.ones(2048, 1024).sum().item() == 2048 * 1024
    with virtual_cuda():
        assert torch.ones(2048, 1024, device="cuda").sum().item() == 2048 * 1024
        assert torch.ones(3, device="cuda")[[0, 1]].sum().item() == 2
