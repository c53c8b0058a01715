"""CUDA graphs: a capture runs nothing, a replay runs it all on the same tensors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from virtual_cuda import virtual_cuda


def test_nothing_happens_until_replay():
    with virtual_cuda():
        total = torch.zeros(2, device="cuda")
        one = torch.ones(2, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            assert torch.cuda.is_current_stream_capturing()
            total.add_(one)
            double = total * 2
        assert not torch.cuda.is_current_stream_capturing()
        assert total.tolist() == [0, 0]
        for _ in range(3):
            graph.replay()
        assert total.tolist() == [3, 3]
        assert double.tolist() == [6, 6]
        one.fill_(10)
        graph.replay()
        assert total.tolist() == [13, 13]


def test_a_training_step_replayed_is_the_step():
    def step(model, optimizer, x):
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    with virtual_cuda():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("cuda")
        plain = copy.deepcopy(model)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, plain)]
        x = torch.randn(3, 4, device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            step(model, optimizers[0], x)
        step(plain, optimizers[1], x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step(model, optimizers[0], x)
        for _ in range(3):
            x.copy_(torch.randn(3, 4))
            graph.replay()
            assert loss.item() == step(plain, optimizers[1], x).item()
        assert torch.equal(model[0].weight, plain[0].weight)


def test_the_host_cannot_wait_during_a_capture():
    with virtual_cuda():
        x = torch.ones(2, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with (
            pytest.raises(RuntimeError, match="previous error during capture") as caught,
            torch.cuda.graph(graph),
        ):
            x.sum().item()
        assert "not permitted when stream is capturing" in str(caught.value.__context__)
        assert x.sum().item() == 2
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            graph.replay()


def test_callables():
    with virtual_cuda():
        layer = nn.Linear(3, 2).to("cuda")
        x = torch.randn(4, 3, device="cuda", requires_grad=True)
        expected = layer(x).detach().clone()
        graphed = torch.cuda.make_graphed_callables(
            layer, (torch.randn(4, 3, device="cuda", requires_grad=True),)
        )
        out = graphed(x)
        assert torch.equal(out, expected)
        out.sum().backward()
        assert torch.equal(layer.bias.grad, torch.full((2,), 4.0, device="cuda"))


def test_adam_must_be_capturable():
    with virtual_cuda():
        layer = nn.Linear(2, 2).to("cuda")
        optimizer = torch.optim.Adam(layer.parameters())
        layer(torch.ones(1, 2, device="cuda")).sum().backward()
        with (
            pytest.raises(RuntimeError, match="capturable is False"),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            optimizer.step()
