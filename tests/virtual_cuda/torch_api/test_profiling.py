"""torch.profiler shows every operator once, device time where the work was, nothing of ours."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from virtual_cuda import virtual_cuda

BOTH = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
pytestmark = pytest.mark.filterwarnings(
    "ignore:Warning. Profiler clears events", "ignore:.*is deprecated:FutureWarning"
)


def rows(profiler):
    return {row.key: row for row in profiler.key_averages()}


def test_each_operator_once_with_its_time_on_the_device():
    with virtual_cuda():
        layer = nn.Linear(64, 64).to("cuda")
        x = torch.ones(256, 64, device="cuda")
        with profile(activities=BOTH) as profiler:
            with record_function("forward"):
                for _ in range(3):
                    layer(x).relu()
            torch.cuda.synchronize()
        found = rows(profiler)
        assert found["aten::addmm"].count == 3
        assert found["aten::relu"].count == 3
        assert found["aten::addmm"].self_device_time_total > 0
        assert found["aten::t"].self_device_time_total == 0  # a view launches nothing
        assert found["aten::linear"].device_time_total >= found["aten::addmm"].device_time_total
        assert found["forward"].device_time_total == pytest.approx(
            sum(r.self_device_time_total for r in found.values())
        )
        assert not [key for key in found if "PythonSubclass" in key or "virtual" in key]
        table = profiler.key_averages().table(sort_by="cuda_time_total")
        assert "CUDA total" in table
        assert "Self CUDA time total" in table


def test_operators_after_a_captured_graph_have_their_time_on_the_device():
    with virtual_cuda():
        x = torch.ones(256, 256, device="cuda")
        with profile(activities=BOTH) as profiler:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                x.relu()
            x @ x
        found = rows(profiler)
        assert found["aten::mm"].self_device_time_total > 0
        assert found["aten::relu"].self_device_time_total > 0


def test_without_the_cuda_activity_there_is_no_device_time():
    with virtual_cuda():
        x = torch.ones(8, 8, device="cuda")
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            x @ x
        assert rows(profiler)["aten::mm"].count == 1
        assert rows(profiler)["aten::mm"].device_time_total == 0
        assert "CUDA" not in profiler.key_averages().table()


@pytest.mark.parametrize("key", ["self_cpu_time_total", "cpu_time_total", "self_device_time_total"])
def test_the_longest_operator_is_the_longest(key):
    with virtual_cuda():
        big = torch.ones(600, 600, device="cuda")
        small = torch.ones(8, device="cuda")
        with profile(activities=BOTH) as profiler:
            for _ in range(3):
                big @ big
            for _ in range(20):
                small.add(1)
        operators = sorted(profiler.key_averages(), key=lambda row: getattr(row, key), reverse=True)
        names = [row.key for row in operators if row.key in ("aten::mm", "aten::add")]
        assert names == ["aten::mm", "aten::add"]


def test_shapes_stacks_and_memory():
    with virtual_cuda():
        layer = nn.Linear(4, 4).to("cuda")
        x = torch.ones(2, 4, device="cuda")
        with profile(
            activities=BOTH, record_shapes=True, with_stack=True, profile_memory=True
        ) as profiler:
            layer(x).sum().backward()
        (addmm,) = [event for event in profiler.events() if event.name == "aten::addmm"]
        assert [4, 4] in addmm.input_shapes
        assert addmm.device_memory_usage > 0
        assert addmm.cpu_memory_usage == 0
        assert not [event for event in profiler.events() if "virtual_cuda/" in event.name]


def test_a_model_can_be_moved_while_shapes_are_recorded():
    """The profiler then holds the tensors, and torch cannot exchange what is in a parameter."""
    with virtual_cuda():
        layer = nn.Linear(4, 4)
        with profile(activities=BOTH, record_shapes=True):
            layer.to("cuda")
        assert layer.weight.is_cuda
        layer(torch.ones(2, 4, device="cuda")).sum().backward()
        assert layer.weight.grad.is_cuda


def test_schedule_trace_and_the_older_profiler(tmp_path):
    seen = []
    with virtual_cuda():
        x = torch.ones(4, 4, device="cuda")
        turns = schedule(wait=1, warmup=1, active=2, repeat=1)
        with profile(
            activities=BOTH, schedule=turns, on_trace_ready=lambda p: seen.append(rows(p))
        ) as profiler:
            for _ in range(5):
                x @ x
                profiler.step()
        assert [found["aten::mm"].count for found in seen] == [2]
        path = tmp_path / "trace.json"
        with profile(activities=BOTH) as profiler:
            x @ x
        profiler.export_chrome_trace(str(path))
        kinds = [
            (event.get("cat"), event["name"])
            for event in json.loads(path.read_text())["traceEvents"]
        ]
        assert kinds.count(("cpu_op", "aten::mm")) == 1
        assert kinds.count(("kernel", "aten::mm")) == 1
        with torch.autograd.profiler.profile(use_device="cuda") as older:
            x @ x
        assert rows(older)["aten::mm"].device_time_total > 0


def test_values_and_gradients_are_the_same_and_nothing_stays():
    from virtual_cuda.device.tensor import Tensor

    before = Tensor.__torch_dispatch__
    with virtual_cuda():
        x = torch.ones(3, device="cuda", requires_grad=True)

        def fail():
            with profile(activities=BOTH):
                x.square().sum().backward()
                raise ValueError("on purpose")

        with pytest.raises(ValueError, match="on purpose"):
            fail()
        assert x.grad.tolist() == [2, 2, 2]
    assert Tensor.__torch_dispatch__ is before


@pytest.mark.parametrize("gpu", [None, "T4"], ids=["measured", "modelled"])
def test_operators_that_cuda_has_and_the_cpu_has_not(gpu):
    with virtual_cuda(gpu=gpu) as device:
        q = torch.rand(2, 4, 16, 32, device="cuda", requires_grad=True)
        layer = nn.LSTM(16, 32).cuda()
        cell = nn.GRUCell(16, 32).cuda()
        norm = nn.RMSNorm(16).cuda()
        x = torch.rand(10, 4, 16, device="cuda")
        first = device.ledger.mark()
        with profile(activities=BOTH) as profiler:
            nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
            layer(norm(x))[0].sum().backward()
            cell(x[0]).sum().backward()
        found = rows(profiler)
        attention = "aten::_scaled_dot_product_efficient_attention"
        rnn = "aten::_cudnn_rnn"
        gates = "_thnn_fused_gru_cell"
        for name in (attention, f"{attention}_backward", rnn, f"{rnn}_backward", f"aten::{gates}"):
            assert found[name].count == 1, name
            assert found[name].self_device_time_total > 0, name
        assert not {
            "FusedAttention",
            "CudnnRnn",
            "FusedCell",
            "FusedGruCell",
            "aten::lstm",
            "aten::mkldnn_rnn_layer",
        } & set(found)
        if gpu is not None:
            on_device = sum(interval.seconds for interval in device.times(first).on_device)
            told = sum(row.self_device_time_total for row in found.values())
            assert told == pytest.approx(on_device * 1e6, rel=0.05)
