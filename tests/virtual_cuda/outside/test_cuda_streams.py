"""Streams and events as values, on several devices, in backward passes, and while they sleep."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from virtual_cuda import VirtualGpu, virtual_cuda

MILLION = 1_000_000


@pytest.fixture(autouse=True)
def gpu() -> Iterator[VirtualGpu]:
    with virtual_cuda(devices=2) as opened:
        yield opened


def test_streams_come_from_pools_of_32() -> None:
    """The ids are those an H200 gave."""
    streams = [torch.cuda.Stream() for _ in range(33)]
    step = streams[1].stream_id - streams[0].stream_id
    assert step == 32 and len(set(streams)) == 32 and streams[32] == streams[0]  # noqa: PT018
    assert torch.cuda.Stream(priority=-9).priority == torch.cuda.Stream.priority_range()[1] == -3
    again = torch.cuda.Stream(stream_id=streams[5].stream_id, device_index=0, device_type=1)
    assert again == streams[5] and hash(again) == hash(streams[5])  # noqa: PT018
    assert torch.cuda.Stream(device=1) != streams[0]


def test_a_stream_of_another_device_makes_that_current() -> None:
    other = torch.cuda.Stream(device=1)
    here = torch.cuda.current_stream()
    with torch.cuda.stream(other):
        assert torch.cuda.current_device() == 1
        assert torch.cuda.current_stream() == other
        assert torch.cuda.current_stream(0) == here
        with here:
            assert torch.cuda.current_device() == 0
    assert (torch.cuda.current_device(), torch.cuda.current_stream()) == (0, here)
    assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1)


def test_each_thread_has_its_own_current_stream() -> None:
    found: list[Any] = []
    with torch.cuda.stream(torch.cuda.Stream()):
        thread = threading.Thread(target=lambda: found.append(torch.cuda.current_stream()))
        thread.start()
        thread.join()
    assert found == [torch.cuda.default_stream()]


def test_an_event_belongs_to_the_device_it_was_recorded_on() -> None:
    event = torch.cuda.Event(enable_timing=True)
    assert event.device is None
    assert event.event_id == event.cuda_event == 0
    other = torch.cuda.Stream(device=1).record_event(torch.cuda.Event(enable_timing=True))
    event.record()
    assert (event.device, other.device) == (torch.device("cuda:0"), torch.device("cuda:1"))
    with pytest.raises(
        RuntimeError, match="Event device 0 does not match recording stream's device 1"
    ):
        event.record(torch.cuda.Stream(device=1))
    with pytest.raises(RuntimeError, match="invalid resource handle"):
        event.elapsed_time(other)


def test_work_that_sleeps_is_waited_for() -> None:
    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    x = torch.ones(1, device="cuda")
    begin.record()
    torch.cuda._sleep(200 * MILLION)  # 0.1 s
    end.record()
    side = torch.cuda.Stream()
    assert not end.query()
    assert not torch.cuda.current_stream().query()
    assert side.query()
    with pytest.raises(RuntimeError, match="Both events must be completed"):
        begin.elapsed_time(end)
    side.wait_event(end)
    assert not side.query()
    x.item()  # waits for its stream
    assert end.query()
    assert side.query()
    assert 90 < begin.elapsed_time(end) < 5000


def test_memory_that_another_stream_uses_is_not_used_again() -> None:
    side = torch.cuda.Stream()
    x = torch.ones(100, device="cuda")
    address = x.data_ptr()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200 * MILLION)
        x.record_stream(side)
    del x
    assert torch.ones(100, device="cuda").data_ptr() != address
    side.synchronize()
    assert torch.ones(100, device="cuda").data_ptr() == address


def test_streams_of_other_libraries() -> None:
    handle = ctypes.c_ulonglong(0)
    runtime: Any = torch.cuda.cudart()
    assert runtime.cudaStreamCreate(ctypes.addressof(handle)) == 0
    stream = torch.cuda.ExternalStream(handle.value, device=1)
    assert (stream.cuda_stream, stream.device.index) == (handle.value, 1)
    assert torch.cuda.get_stream_from_external(handle.value, 1) == stream
    assert torch.cuda.ExternalStream(0) == torch.cuda.default_stream()
    assert runtime.cudaStreamDestroy(handle.value) == 0


class Remembering(torch.autograd.Function):
    """Doubles; its backward notes the stream, and the one of the forward pass."""

    seen: list[tuple[Any, Any]] = []  # noqa: RUF012

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.stream = torch.cuda.current_stream()
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        Remembering.seen.append((torch.cuda.current_stream(), ctx.stream))
        return gradient * 2


def test_a_backward_pass_runs_on_the_streams_of_the_forward_pass(gpu: VirtualGpu) -> None:
    Remembering.seen.clear()
    x = torch.ones(1, device="cuda", requires_grad=True)
    first = torch.cuda.Stream()
    second = torch.cuda.Stream()
    with torch.cuda.stream(first):
        y = Remembering.apply(x)
    with torch.cuda.stream(second):
        y = Remembering.apply(y)
    Remembering.apply(y).backward()  # type: ignore[no-untyped-call]
    assert [used for used, _ in Remembering.seen] == [torch.cuda.default_stream(), second, first]
    assert all(used == noted for used, noted in Remembering.seen)
    assert x.grad is not None
    assert x.grad.item() == 8
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_a_lost_device_records_no_event() -> None:
    torch.ones(3, device="cuda")[torch.tensor([5], device="cuda")]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="device-side assert triggered"):
            torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="device-side assert triggered"):
        torch.cuda.Event().record()


def test_the_modelled_clock_counts_what_sleeps(gpu: VirtualGpu) -> None:
    rows = len(gpu.ledger.rows)
    torch.cuda._sleep(198 * MILLION)
    assert gpu.times(rows).end == pytest.approx(0.1, rel=0.01)


def test_events_of_two_kinds_have_no_time_between_them() -> None:
    events: list[Any] = [
        torch.cuda.Event(enable_timing=True),
        torch.Event("cuda", enable_timing=True),
    ]
    for event in events:
        event.record()
    for event, other, kind in ((*events, r"torch\.cuda\.Event"), (*events[::-1], r"torch\.Event")):
        with pytest.raises(RuntimeError, match=f"expected other to be a {kind} object"):
            event.elapsed_time(other)
    for use in (events[0].record, events[0].wait):
        with pytest.raises(RuntimeError, match="expected stream to be"):
            use(events[1])


def test_events_have_handles_for_other_processes() -> None:
    event = torch.cuda.Event(interprocess=True)
    handle = event.ipc_handle()
    assert isinstance(handle, bytes)
    assert len(handle) == 64
    other = torch.cuda.Event.from_ipc_handle(
        torch.device("cuda:1"), (1).to_bytes(8, "little") + handle[8:]
    )
    assert other.query()
    assert other.device == torch.device("cuda:1")
    other.synchronize()
    other.wait()
    with pytest.raises(RuntimeError, match="invalid device context"):
        torch.cuda.Event.from_ipc_handle(torch.device("cuda:0"), handle)
    with pytest.raises(RuntimeError, match="byte-like object of size 64, but got 3"):
        torch.cuda.Event.from_ipc_handle(torch.device("cuda:0"), b"abc")
    with pytest.raises(RuntimeError, match="invalid resource handle"):
        torch.cuda.Event().ipc_handle()
    with pytest.raises(NotImplementedError, match="ipc is not supported"):
        torch.Event("cuda").ipc_handle()
