"""CUDA graphs with generators, fused layers and copies; what is expected, an H200 did."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from virtual_cuda import virtual_cuda


def new_graph(**kwargs: Any) -> Any:
    return torch.cuda.CUDAGraph(**kwargs)


@pytest.fixture(autouse=True)
def _device() -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Functions that close the device, and open another."""
    with contextlib.ExitStack() as stack:

        def opens() -> None:
            stack.enter_context(virtual_cuda())

        opens()
        yield stack.close, opens


def captured(function: Callable[[], Any], **kwargs: Any) -> tuple[Any, Any]:
    graph = new_graph(**kwargs)
    with torch.cuda.graph(graph):
        out = function()
    return graph, out


LAYERS: dict[str, Callable[[], Any]] = {
    "lstm": lambda: nn.LSTM(8, 8, 2, batch_first=True),
    "attention": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
    "rms norm": lambda: nn.RMSNorm(8),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_replay_computes_fused_layers_anew(name: str) -> None:
    layer = LAYERS[name]().cuda()
    x = torch.randn(2, 3, 8, device="cuda")

    def step() -> torch.Tensor:
        out = layer(x)
        out = out[0] if isinstance(out, tuple) else out
        out.square().sum().backward()
        return out.detach()

    graph, out = captured(step)
    x.copy_(torch.randn(2, 3, 8))
    graph.replay()
    got = [out.clone(), *(p.grad.clone() for p in layer.parameters())]
    layer.zero_grad()
    expected = [step(), *(p.grad for p in layer.parameters())]
    for mine, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)


RANDOM: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rand_like": torch.rand_like,
    "bernoulli": torch.bernoulli,
    "randint_like": lambda x: torch.randint_like(x, 3, 1000),
    "dropout": lambda x: F.dropout(x, 0.5),
    "rrelu": lambda x: F.rrelu(x - 1, training=True),
    "exponential_": lambda x: x.clone().exponential_(),
}


@pytest.mark.parametrize("name", RANDOM)
def test_replays_draw_what_eager_code_would(name: str) -> None:
    x = torch.full((50,), 0.5, device="cuda")
    torch.cuda.manual_seed(5)
    eager = [RANDOM[name](x) for _ in range(4)]
    graph, out = captured(lambda: [RANDOM[name](x) for _ in range(2)])
    assert not torch.equal(out[0], eager[0])  # a capture computes nothing
    torch.cuda.manual_seed(5)
    for pair in (eager[:2], eager[2:]):
        graph.replay()
        assert all(map(torch.equal, out, pair))


@pytest.mark.parametrize("name", RANDOM)
def test_the_devices_seed_decides_and_the_hosts_generator_is_left_alone(name: str) -> None:
    x = torch.full((50,), 0.5, device="cuda")
    torch.cuda.manual_seed(5)
    host = torch.get_rng_state()
    first = RANDOM[name](x)
    torch.cuda.manual_seed(5)
    assert torch.equal(first, RANDOM[name](x))
    assert not torch.equal(first, RANDOM[name](x))
    assert torch.equal(host, torch.get_rng_state())


def test_a_state_restored_in_the_capture_is_restored_in_replays() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x * torch.randn(1, device="cuda").sigmoid()

    def gradient() -> torch.Tensor:
        x = torch.ones(1, device="cuda", requires_grad=True)
        out = checkpoint(noisy, x, use_reentrant=False)
        return torch.autograd.grad(out, x)[0]

    torch.cuda.manual_seed(42)
    expected = gradient()
    graph, got = captured(gradient)
    torch.cuda.manual_seed(42)
    graph.replay()
    assert torch.equal(got, expected)


def test_a_capture_draws_from_registered_generators_only() -> None:
    own: Any = torch.Generator("cuda")
    with pytest.raises(RuntimeError, match="generator is not registered with the capturing graph"):
        captured(lambda: torch.rand(2, device="cuda", generator=own))
    graph = new_graph()
    graph.register_generator_state(own)
    with torch.cuda.graph(graph):
        got = torch.rand(2, device="cuda", generator=own)
    own.manual_seed(3)
    graph.replay()
    assert torch.equal(got, torch.rand(2, device="cuda", generator=own.manual_seed(3)))
    with pytest.raises(RuntimeError, match="only if new seed is the same as the original seed"):
        captured(lambda: torch.cuda.manual_seed(7))
    with pytest.raises(
        RuntimeError, match="Cannot construct a new CUDAGeneratorImpl during CUDA graph capture"
    ):
        captured(lambda: torch.Generator("cuda"))


def test_generators_count_and_share_their_state() -> None:
    generator: Any = torch.cuda.default_generators[0]
    torch.cuda.manual_seed(3)
    assert generator.get_offset() == 0
    torch.rand(5, device="cuda")
    assert generator.get_offset() == 4
    first = torch.rand(3, device="cuda")
    generator.set_offset(4)
    assert torch.equal(first, torch.rand(3, device="cuda"))
    state = torch.cuda.get_rng_state()
    torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state)
    assert generator.get_offset() == 8
    own = generator.graphsafe_get_state()
    other = generator.clone_state()
    generator.graphsafe_set_state(other)
    torch.rand(3, device="cuda")
    assert (generator.get_offset(), other.get_offset(), own.get_offset()) == (12, 12, 8)
    generator.graphsafe_set_state(own)
    assert generator.get_offset() == 8
    with pytest.raises(RuntimeError, match="offset must be a multiple of 4"):
        generator.set_offset(3)


@pytest.mark.parametrize("direction", ["to the device", "to the host"])
def test_a_capture_refuses_copies_of_memory_that_is_not_pinned(direction: str) -> None:
    def copy(host: torch.Tensor) -> torch.Tensor:
        device = torch.zeros(3, device="cuda")
        source, target = (host, device) if direction == "to the device" else (device, host)
        return target.copy_(source, non_blocking=True)

    with pytest.raises(RuntimeError, match="unless the CPU tensor is pinned"):
        captured(lambda: copy(torch.ones(3)))
    pinned = torch.ones(3).pin_memory()
    captured(lambda: copy(pinned))[0].replay()
    assert torch.randn(3, device="cuda").numel() == 3  # nothing is captured any more


def test_what_a_graph_says_of_itself() -> None:
    kept, _ = captured(lambda: torch.ones(2, device="cuda") + 1, keep_graph=True)
    assert kept.raw_cuda_graph()
    with pytest.raises(RuntimeError, match=r"until instantiate\(\) has been called"):
        kept.raw_cuda_graph_exec()
    kept.instantiate()
    assert kept.raw_cuda_graph_exec()
    usual, _ = captured(lambda: torch.ones(2, device="cuda") + 1)
    for function, text in (
        (usual.instantiate, "only when keep_graph=true"),
        (usual.raw_cuda_graph, "keep_graph=true"),
    ):
        with pytest.raises(RuntimeError, match=text):
            function()
    with (
        pytest.raises(RuntimeError, match="already owns a captured graph"),
        torch.cuda.graph(usual),
    ):
        pass
    with pytest.raises(RuntimeError, match=r"pool\(\) without a preceding successful capture"):
        new_graph().pool()
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        captured(lambda: None)


def test_an_operation_that_waits_ends_the_capture() -> None:
    x = torch.ones(1, device="cuda")
    graph = new_graph()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        with pytest.raises(RuntimeError, match="operation not permitted when stream is capturing"):
            x.item()
        with pytest.raises(RuntimeError, match="failed due to a previous error during capture"):
            graph.capture_end()
    assert x.item() == 1


def test_a_capture_that_was_never_ended_ends_with_its_device(
    request: pytest.FixtureRequest,
) -> None:
    closes, opens = request.getfixturevalue("_device")
    with torch.cuda.stream(torch.cuda.Stream()):
        new_graph().capture_begin()
    closes()
    opens()
    assert torch.ones(2, device="cuda").sum().item() == 2


def test_tensors_alike_are_drawn_as_new_ones_are() -> None:
    torch.manual_seed(3)
    x = torch.randn(5, device="cuda")
    torch.manual_seed(3)
    assert torch.equal(x, torch.randn_like(x))
