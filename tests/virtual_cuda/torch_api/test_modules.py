"""Modules move whole, with parameters, buffers, ties, hooks and copies, and stay themselves."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads
from virtual_cuda import VirtualGpu

pytestmark = pytest.mark.usefixtures("gpu")


class Tied(nn.Module):
    """A language model in miniature: one table for both ends, a mask that is not saved, a count
    that is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.tensor([1.0, 1, 1, 0, 1, 1, 1]), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("nothing", None)
        self.register_parameter("absent", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.head(self.embed(x)) * self.mask


def devices(model: nn.Module) -> set[str]:
    return {str(t.device) for t in [*model.parameters(), *model.buffers()]}


@pytest.mark.parametrize(
    "move", [lambda m: m.to("cuda"), lambda m: m.cuda(), lambda m: m.to(torch.device("cuda", 0))]
)
def test_everything_moves_and_comes_back(move: Any) -> None:
    model = Tied()
    before = copy.deepcopy(model)
    parameters = list(model.parameters())
    assert move(model) is model
    assert devices(model) == {"cuda:0"}
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert all(type(p).__name__ == "Parameter" and isinstance(p, nn.Parameter) for p in parameters)
    assert model.cpu() is model
    assert devices(model) == {"cpu"}
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True)
    )
    assert all(type(p) is nn.Parameter for p in model.parameters())


def test_tied_weights_stay_one_tensor() -> None:
    model = Tied().cuda()
    assert model.head.weight is model.embed.weight
    assert len(list(model.parameters())) == 1
    model(torch.tensor([1, 2], device="cuda")).sum().backward()
    assert model.head.weight.grad is model.embed.weight.grad
    with torch.no_grad():
        model.embed.weight.zero_()
    assert model.head.weight.abs().sum().item() == 0


def test_buffers_count_on_the_device_and_the_mask_is_not_saved() -> None:
    model = Tied().cuda()
    model(torch.tensor([1], device="cuda"))
    assert (model.count.is_cuda, model.count.item(), model.mask.is_cuda) == (True, 1, True)
    assert set(model.state_dict()) == {"embed.weight", "head.weight", "count"}
    norm = nn.BatchNorm1d(3).cuda()
    norm(torch.randn(4, 3, device="cuda"))
    assert norm.num_batches_tracked.item() == 1
    assert norm.running_mean.abs().sum().item() > 0


def test_gradients_move_with_their_parameters() -> None:
    layer = nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    gradient = layer.weight.grad.clone()
    layer.cuda()
    assert layer.weight.grad.is_cuda
    assert torch.equal(layer.weight.grad.cpu(), gradient)
    layer.cpu()
    assert torch.equal(layer.weight.grad, gradient)


def test_dtypes_and_memory_formats_within_the_device() -> None:
    model = nn.Conv2d(3, 4, 3).cuda()
    weight = model.weight
    model.half()
    assert (model.weight.dtype, model.weight is weight) == (torch.float16, True)
    model.to(torch.bfloat16).float()
    assert model.weight.dtype is torch.float32
    model.to(memory_format=torch.channels_last)
    assert model.weight.is_contiguous(memory_format=torch.channels_last)
    assert nn.Linear(2, 2).to("cuda", torch.float64).weight.dtype is torch.float64
    assert nn.Linear(2, 2, device="cuda").weight.is_cuda


def test_a_module_made_on_the_device_or_nowhere() -> None:
    with torch.device("cuda"):
        assert devices(nn.Linear(2, 2)) == {"cuda:0"}
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    model.to_empty(device="cuda")
    model.reset_parameters()
    assert devices(model) == {"cuda:0"}
    lazy = nn.LazyLinear(3).cuda()
    lazy(torch.ones(1, 5, device="cuda"))
    assert (devices(lazy), tuple(lazy.weight.shape)) == ({"cuda:0"}, (3, 5))


def test_a_tensor_that_is_neither_parameter_nor_buffer_is_forgotten() -> None:
    class Forgetful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.ones(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    with pytest.raises(
        RuntimeError, match="same device, but found at least two devices, cuda:0 and cpu!"
    ):
        Forgetful().cuda()(torch.ones(3, device="cuda"))


def test_deepcopy_is_independent_and_keeps_ties() -> None:
    model = Tied().cuda()
    model(torch.tensor([1], device="cuda")).sum().backward()
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.embed.weight
    assert twin.head.weight is not model.head.weight
    assert twin.head.weight.grad.is_cuda
    assert (devices(twin), isinstance(twin.head.weight, nn.Parameter)) == ({"cuda:0"}, True)
    with torch.no_grad():
        twin.head.weight.zero_()
    assert model.head.weight.abs().sum().item() > 0


def test_state_dicts_cross_between_host_and_device() -> None:
    host = nn.Linear(3, 2)
    device = nn.Linear(3, 2).cuda()
    device.load_state_dict(host.state_dict())
    assert device.weight.is_cuda
    assert torch.equal(device.weight.cpu(), host.weight)
    with torch.no_grad():
        device.weight.add_(1)
    host.load_state_dict(device.state_dict())
    assert not host.weight.is_cuda
    assert torch.equal(device.weight.cpu(), host.weight)
    other = nn.Linear(3, 2)
    other.load_state_dict(device.state_dict(), assign=True)
    assert other.weight.is_cuda


def test_a_whole_module_is_saved_and_loaded() -> None:
    model = Tied().cuda()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert devices(loaded) == {"cuda:0"}
    assert loaded.head.weight is loaded.embed.weight
    assert loaded.mask.sum().item() == model.mask.sum().item()
    file.seek(0)
    assert devices(torch.load(file, weights_only=False, map_location="cpu")) == {"cpu"}


def test_hooks_see_device_tensors() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU()).cuda()
    seen: list[tuple[str, str]] = []
    model[0].register_forward_pre_hook(lambda m, args: seen.append(("before", str(args[0].device))))
    model[0].register_forward_hook(lambda m, args, out: seen.append(("after", str(out.device))))
    model[0].register_full_backward_hook(
        lambda m, into, out: seen.append(("backward", str(out[0].device)))
    )
    handle = model[1].register_forward_hook(lambda m, args, out: out * 0)
    model[0].weight.register_hook(lambda gradient: seen.append(("gradient", str(gradient.device))))
    model[0].bias.register_post_accumulate_grad_hook(
        lambda p: seen.append(("accumulated", str(p.grad.device)))
    )
    out = model(torch.ones(1, 2, device="cuda", requires_grad=True))
    assert out.sum().item() == 0
    out.sum().backward()
    assert {where for _, where in seen} == {"cuda:0"}
    assert {what for what, _ in seen} == {"before", "after", "backward", "gradient", "accumulated"}
    handle.remove()


def test_parametrizations_pruning_and_functional_calls() -> None:
    x = torch.randn(5, 4, device="cuda")
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)).cuda()
    normed(x).sum().backward()
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3).cuda())
    assert spectral(x).is_cuda
    import torch.nn.utils.prune as prune

    pruned = prune.l1_unstructured(nn.Linear(4, 3).cuda(), "weight", 0.5)
    assert (pruned(x).is_cuda, int((pruned.weight == 0).sum())) == (True, 6)
    layer = nn.Linear(4, 3).cuda()
    weights = {name: torch.zeros_like(p) for name, p in layer.named_parameters()}
    assert torch.func.functional_call(layer, weights, (x,)).abs().sum().item() == 0
    vector = nn.utils.parameters_to_vector(layer.parameters())
    nn.utils.vector_to_parameters(vector * 0, layer.parameters())
    assert layer.weight.abs().sum().item() == 0
    nn.init.xavier_uniform_(layer.weight)
    assert layer.weight.abs().sum().item() > 0


def test_moving_a_model_is_written_down_tensor_by_tensor(gpu: VirtualGpu) -> None:
    model = nn.Linear(16, 4)
    model.to("cuda")
    model.to("cuda")  # already there
    assert [t.bytes for t in gpu.ledger.transfers_to_device()] == [16 * 4 * 4, 4 * 4]
    model.cpu()
    assert [t.bytes for t in gpu.ledger.transfers_to_host()] == [16 * 4 * 4, 4 * 4]


@pytest.mark.parametrize("way", ["to_empty", "to meta"])
def test_parameters_that_leave_or_enter_meta_are_new_ones(way: str) -> None:
    """An optimizer that was made before holds the old ones, and tied weights are tied no more."""
    model = Tied()
    if way == "to_empty":
        model = model.to("meta")
    else:
        model.cuda()
    old = list(model.parameters())
    optimizer = torch.optim.Adagrad(old)
    moved = model.to_empty(device="cuda") if way == "to_empty" else model.to("meta")
    assert moved is model
    assert devices(model) == {"cuda:0" if way == "to_empty" else "meta"}
    assert {str(p.device) for p in old} == {"meta" if way == "to_empty" else "cuda:0"}
    assert model.head.weight is not model.embed.weight
    assert not any(a is b for a in model.parameters() for b in optimizer.param_groups[0]["params"])


@pytest.mark.parametrize("graded", [False, True])
def test_parameters_are_overwritten_where_asked(graded: bool) -> None:
    layer = nn.Linear(2, 2)
    if graded:
        layer(torch.ones(1, 2)).sum().backward()
    old = layer.weight
    gradient = layer.weight.grad
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        layer.to("cuda")
        assert layer.weight is not old
        assert (old.is_cuda, layer.weight.is_cuda, layer.weight.requires_grad) == (
            False,
            True,
            True,
        )
        if graded:
            assert layer.weight.grad is not gradient
            assert layer.weight.grad.is_cuda
        again = layer.weight
        layer.double()
        assert layer.weight is not again
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    kept = layer.weight
    assert layer.cpu().weight is kept


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_modules_without_shapes_make_their_parameters_and_buffers_where_they_were_moved_to(
    gpu: VirtualGpu,
) -> None:
    norm = nn.LazyBatchNorm1d().cuda()
    assert norm(torch.rand(3, 2, device="cuda")).is_cuda
    assert norm.running_mean.is_cuda
    layer = nn.LazyLinear(2).cuda().half()
    assert layer(torch.ones(1, 3, device="cuda", dtype=torch.float16)).dtype is torch.float16
    assert nn.LazyLinear(2).cuda().cpu()(torch.ones(1, 3)).device.type == "cpu"


@pytest.mark.parametrize(
    "how", [((0,), {}), ((), {"device": 0}), ((0, torch.float64), {})], ids=str
)
def test_a_number_is_a_gpu_for_whatever_moves(how: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    args, kwargs = how
    module = nn.Linear(2, 2).to(*args, **kwargs)
    packed = nn.utils.rnn.pack_sequence([torch.ones(2)]).to(*args, **kwargs)
    moved = [module.weight, packed.data, torch.ones(2).to(*args, **kwargs)]
    assert {each.device for each in moved} == {torch.device("cuda:0")}
    assert {each.dtype for each in moved} == {args[1] if len(args) == 2 else torch.float32}


def test_per_sample_gradients_of_a_recurrent_layer() -> None:
    layer = nn.RNN(2, 3, batch_first=True).cuda()
    result, _ = call_for_per_sample_grads(layer)(torch.rand(4, 5, 2, device="cuda"))
    result.sum().backward()
    weight: Any = layer.weight_ih_l0
    assert weight.grad_sample.shape == (4, 3, 2)
