"""Addresses, history and snapshots of device memory, pools, and pinned memory."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz
from virtual_cuda import VirtualGpu, virtual_cuda
from virtual_cuda.torch_api.cuda_module import Devices

cuda: Any = torch.cuda
memory: Any = torch.cuda.memory


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with virtual_cuda(devices=2):
        yield


def made_here(*shape: int) -> torch.Tensor:
    return torch.rand(shape, device="cuda")


# ---- addresses -----------------------------------------------------------------------------------


def test_freed_memory_is_used_again() -> None:
    x = made_here(5000)
    address = x.data_ptr()
    assert address % 512 == 0
    assert (x[3:].data_ptr(), x.untyped_storage().data_ptr()) == (address + 12, address)
    del x
    assert made_here(5000).data_ptr() == address
    assert made_here(0).data_ptr() == 0


def test_blocks_do_not_overlap() -> None:
    sizes = [1, 200, 300_000, 5, 3_000_000, 4_000_000, 600]
    tensors = [made_here(size) for size in sizes]
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


# ---- history and snapshots -----------------------------------------------------------------------


def test_a_snapshot_adds_up() -> None:
    kept = [made_here(300), made_here(3_000_000), made_here(400, 400)]
    made_here(9_000_000)
    segments = cuda.memory_snapshot()
    assert sum(s["total_size"] for s in segments) == cuda.memory_reserved()
    assert sum(s["allocated_size"] for s in segments) == cuda.memory_allocated()
    for segment in segments:
        assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
    active = {
        b["address"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated"
    }
    assert active == {t.data_ptr() for t in kept}


@pytest.mark.skipif(not hasattr(memory, "_allocation_traceback"), reason="this torch does not tell")
def test_history_tells_what_was_allocated_where_and_freed() -> None:
    memory._record_memory_history()
    x = made_here(311, 411)
    address = x.data_ptr()
    found = memory._allocation_traceback(address)
    assert found[0]["name"] == "made_here"
    assert found[0]["filename"] == __file__
    del x
    cuda.empty_cache()
    assert memory._allocation_traceback(address) is None
    snapshot = memory._snapshot()
    events = [event for event in snapshot["device_traces"][0] if event.get("addr") == address]
    assert [e["action"] for e in events] == [
        "segment_alloc", "alloc", "free_requested", "free_completed", "segment_free",
    ]  # fmt: skip
    assert events[1]["size"] == 311 * 411 * 4
    assert [frame["name"] for frame in events[-1]["frames"][:2]] == [
        "empty_cache",
        "test_history_tells_what_was_allocated_where_and_freed",
    ]
    memory._record_memory_history(None)
    made_here(3)
    assert memory._snapshot()["device_traces"][0] == []


@pytest.mark.parametrize(
    ("context", "allocated", "freed"),
    [("all", True, True), ("alloc", True, False), (None, False, False)],
)
def test_the_context_says_whose_frames_are_kept(
    context: str | None, allocated: bool, freed: bool
) -> None:
    memory._record_memory_history(context=context)
    x = made_here(3)

    def given_back() -> None:
        nonlocal x
        del x

    given_back()
    text = json.dumps(memory._snapshot())
    assert ("made_here" in text, "given_back" in text) == (allocated, freed)


@pytest.mark.skipif(
    "skip_actions" not in inspect.signature(memory._record_memory_history_impl).parameters,
    reason="this torch leaves nothing out",
)
def test_history_is_as_long_as_asked_for_and_leaves_out_what_is_not_wanted() -> None:
    memory._record_memory_history(max_entries=4, skip_actions=["free_requested"])
    for _ in range(5):
        made_here(3)
    events = memory._snapshot()["device_traces"][0]
    assert [e["action"] for e in events] == ["alloc", "free_completed"] * 2


def test_torchs_own_viewer_reads_a_snapshot(tmp_path: Path) -> None:
    memory._record_memory_history()
    kept = made_here(128, 128)
    kept * kept + kept
    memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    viewer: Any = _memory_viz
    assert "Active Memory Timeline" in viewer.trace_plot(snapshot)
    assert "Allocator State History" in viewer.segment_plot(snapshot)
    assert "total_allocated: 64.0KiB" in viewer.segsum(snapshot)
    assert "= a[0:64.0KiB]" in viewer.trace(snapshot)


def test_what_did_not_fit_is_in_the_history() -> None:
    memory._record_memory_history()
    told: list[tuple[int, ...]] = []
    attach: Any = torch._C._cuda_attach_out_of_memory_observer  # type: ignore[attr-defined]
    attach(lambda *figures: told.append(figures))
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 40, device="cuda")
    assert told == [(0, 1 << 42, 0, 8 << 30)]
    event = memory._snapshot()["device_traces"][0][-1]
    assert (event["action"], event["size"]) == ("oom", 1 << 42)


# ---- pools and memory without tensors ------------------------------------------------------------


def test_a_pool_has_segments_of_its_own() -> None:
    pool = cuda.MemPool()
    outside = made_here(10)
    with cuda.use_mem_pool(pool):
        inside = made_here(10)
        assert pool.use_count() == 2
    assert pool.use_count() == 1
    assert cuda.graph_pool_handle() != pool.id != cuda.MemPool().id
    (segment,) = pool.snapshot()
    assert segment["segment_pool_id"] == pool.id
    assert segment["blocks"][0]["address"] == inside.data_ptr()
    assert outside.data_ptr() not in [b["address"] for b in segment["blocks"]]


def test_memory_without_a_tensor() -> None:
    before = cuda.memory_allocated()
    address = cuda.caching_allocator_alloc(1000)
    assert cuda.memory_allocated() == before + 1024
    cuda.caching_allocator_delete(address)
    assert cuda.memory_allocated() == before
    with pytest.raises(ValueError, match="Invalid memory size"):
        cuda.caching_allocator_alloc(-1)


# ---- the host's ----------------------------------------------------------------------------------


def test_pinned_memory_is_counted_in_powers_of_two() -> None:
    kept = torch.ones(10 * 1024, pin_memory=True)
    figures = cuda.host_memory_stats()
    assert figures["active_bytes.current"] == figures["allocated_bytes.current"] == 64 << 10
    del kept
    figures = cuda.host_memory_stats()
    assert (
        figures["active_requests.current"],
        figures["allocations.current"],
        figures["num_host_alloc"],
    ) == (0, 1, 1)
    again = torch.ones(9 * 1024).pin_memory()
    assert cuda.host_memory_stats()["num_host_alloc"] == 1
    del again
    torch._C._host_emptyCache()  # type: ignore[attr-defined]
    cuda.reset_peak_host_memory_stats()
    assert not any(
        v for k, v in cuda.host_memory_stats().items() if k.endswith((".current", ".peak"))
    )


def test_memory_can_be_pinned_where_it_is() -> None:
    x = torch.ones(20)
    runtime = cuda.cudart()
    assert runtime.cudaHostRegister(x.data_ptr(), x.nbytes, 0) == runtime.cudaError.success
    assert x.is_pinned()
    assert x[3:].is_pinned()
    cuda.check_error(runtime.cudaHostUnregister(x.data_ptr()))
    assert not x.is_pinned()
    with pytest.raises(cuda.CudaError, match=r"out of memory \(2\)"):
        cuda.check_error(2)


def test_functions_take_a_device_context() -> None:
    x = torch.ones(10, device="cuda:1")
    assert cuda.memory_allocated(cuda.device(1)) == cuda.memory_allocated(x.device) == 512


def test_a_product_of_batches_takes_the_memory_of_its_result() -> None:
    a = torch.rand(24, 32, 32, device="cuda")
    b = torch.rand(24, 32, 1, device="cuda")
    torch.bmm(a, b)  # cuBLAS has its workspace now
    peaks = []
    for product in (torch.bmm, torch.matmul):
        cuda.reset_peak_memory_stats()
        before = cuda.memory_allocated()
        product(a, b)
        peaks.append(cuda.max_memory_allocated() - before)
    assert peaks == [24 * 32 * 4] * 2


def test_what_no_gpu_could_hold_is_refused() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate more than 1EB memory"):
        torch.empty(1 << 60, dtype=torch.int8, device="cuda")


def test_checkpoints_of_cuda_s_own_allocator_are_refused() -> None:
    for name, given in {
        "_cuda_getCheckpointState": (0, (0, 1)),
        "_cuda_checkPoolLiveAllocations": (0, (0, 1), set()),
        "_free_And_Remove_DeleterFn": (0,),
    }.items():
        with pytest.raises(NotImplementedError, match=f"{name} needs CUDA's own allocator"):
            getattr(torch._C, name)(*given)


def test_pools_in_pools_and_in_other_threads() -> None:
    outer = cuda.MemPool()
    inner = cuda.MemPool()
    kept = []
    with cuda.use_mem_pool(outer):
        kept.append(made_here(5 << 20))
        with cuda.use_mem_pool(inner):
            kept.append(made_here(5 << 20))
        kept.append(made_here(5 << 20))
        other = threading.Thread(target=lambda: kept.append(made_here(5 << 20)))
        other.start()
        other.join()
    assert [len(cuda.memory_snapshot(pool.id)) for pool in (outer, inner)] == [2, 1]
    assert len(cuda.memory_snapshot()) == 4


def test_a_pool_keeps_its_segments_and_may_have_one_for_each_block() -> None:
    pools = [cuda.MemPool(), cuda.MemPool(no_split=True)]
    for pool in pools:
        with cuda.use_mem_pool(pool):
            kept = [made_here(1 << 20), made_here(1 << 20)]
            del kept
            cuda.empty_cache()
    assert [len(pool.snapshot()) for pool in pools] == [1, 2]
    pools.clear()
    del pool
    cuda.empty_cache()
    assert cuda.memory_snapshot() == []


def test_the_environment_sets_how_much_memory_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:native,per_process_memory_fraction:0.25")
    assert cuda.get_allocator_backend() == "native"
    devices = Devices(VirtualGpu(1, 1 << 20, "one"))
    assert devices.gpu.devices[0].memory.allowed == 1 << 18
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "per_process_memory_fraction:-0.1")
    with pytest.raises(RuntimeError, match="per_process_memory_fraction is invalid"):
        devices.use_device(devices.gpu)


def test_a_refused_allocation_and_an_empty_tensor_are_no_blocks() -> None:
    held = made_here(3)
    before = cuda.memory_stats()
    empty = torch.empty(0, device="cuda") + 1
    for _ in range(2):
        with pytest.raises(cuda.OutOfMemoryError):
            torch.empty(
                cuda.get_device_properties(0).total_memory * 2, dtype=torch.int8, device="cuda"
            )
    after = cuda.memory_stats()
    figures = (
        "active.all.current",
        "allocation.all.current",
        "allocation.all.allocated",
        "allocated_bytes.all.current",
    )
    assert [after[key] for key in figures] == [before[key] for key in figures]
    assert (before["active.all.current"], len(held), len(empty)) == (1, 3, 0)


def test_the_processes_that_use_the_gpu() -> None:
    held = made_here(3)
    lines = cuda.list_gpu_processes().splitlines()
    assert (lines[0], lines[1].split()[1:], len(held)) == (
        "GPU:0",
        [str(os.getpid()), "uses", "2.000", *"MB GPU memory".split()],
        3,
    )
