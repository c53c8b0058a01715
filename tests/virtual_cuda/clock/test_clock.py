"""The modelled clock agrees with the H200's record as far as it did, and behaves as a GPU does."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.utils.checkpoint
from virtual_cuda import gpu_named, gpus, virtual_cuda
from virtual_cuda.clock.advice import compare_with_cpu
from virtual_cuda.clock.gpu_models import _complete_figures
from virtual_cuda.clock.host_costs import HostCosts
from virtual_cuda.clock.kernel_rules import kernels_of
from virtual_cuda.clock.kernels import COPY, Kernel, KernelCall
from virtual_cuda.clock.lanes import times_of_rows
from virtual_cuda.errors import UnknownClock, UnknownGpu
from virtual_cuda.fitting import recording
from virtual_cuda.fitting.agreement import Agreement, agreement_of
from virtual_cuda.fitting.figures import _features_of, fit_gpu, main
from virtual_cuda.fitting.program_runs import ProgramRun, run_programs, without_arithmetic
from virtual_cuda.fitting.records import BadClockRecord, Program, read_record
from virtual_cuda.hooks import lanes_to_scale, what_limits
from virtual_cuda.ledger import duration, plain_lines
from virtual_cuda.ledger.rows import CollectiveRow, EndRow, OperationRow
from virtual_cuda.ledger.timeline_text import draw_to_scale

from tests.virtual_cuda.clock.__main__ import (
    MIXES,
    MODELS,
    PINNED,
    RECORD,
    RECORDS,
    STUDENTS,
    middle,
    modelled,
    noise,
    stored,
)

H200 = gpu_named("H200")


def _figures(reached: Agreement) -> list[float]:
    return [reached.programs, *reached.wall, *reached.kernel, reached.counted]


# What is wanted: median and 90th percentile of the factors of wall and kernel time, and the rank.
# The third record was made while the host was now and then half as fast: a second recording of the
# same programs agrees with it no better.
WANTED = {
    RECORDS[0]: ((1.15, 1.6), (1.25, 2.0), 0.98),
    RECORDS[1]: ((1.25, 2.0), (1.4, 2.5), 0.969),
    STUDENTS: ((1.255, 2.0), (1.25, 2.0), 0.945),
    MIXES: ((1.25, 2.0), (1.4, 2.5), 0.969),
    MODELS: ((1.12, 1.4), (1.1, 1.3), 0.96),
}


def _is_as_wanted(
    reached: Agreement, wall: tuple[float, float], kernel: tuple[float, float], rank: float
) -> bool:
    pairs = zip((*reached.wall, *reached.kernel), (*wall, *kernel), strict=True)
    return (
        all(factor <= most for factor, most in pairs)
        and reached.rank >= rank
        and reached.counted >= 0.85
    )


@pytest.mark.parametrize("path", WANTED, ids=lambda path: path.stem)
def test_the_programs_of_a_record_take_about_as_long_as_on_the_gpu(path: Path) -> None:
    reached = agreement_of(read_record(path).programs, modelled(stored(path), H200))
    pinned = msgspec.json.decode(PINNED.read_bytes(), type=dict[str, Agreement])[path.name]
    assert _figures(reached) == pytest.approx(_figures(pinned), rel=0.001)
    # Which of two programs that take almost the same comes first depends on the machine.
    assert reached.rank == pytest.approx(pinned.rank, abs=0.01)
    assert _is_as_wanted(reached, *WANTED[path]), reached


def test_the_model_agrees_with_recordings_as_well_as_they_do_with_each_other() -> None:
    times = modelled(stored(STUDENTS), H200)
    reached = agreement_of(middle(), times)
    assert _is_as_wanted(reached, (1.25, 2.0), (1.4, 2.5), 0.97), reached
    pairs = [found for _, found in noise()]
    assert len(pairs) == 6
    assert reached.rank > max(found.rank for found in pairs)
    assert reached.wall[1] < min(found.wall[1] for found in pairs)


def test_on_no_gpu_is_a_time_zero_negative_or_no_number() -> None:
    few = {name: ran for name, ran in stored(STUDENTS).items() if len(ran[0]) < 40}
    assert len(few) > 100
    for gpu in gpus().values():
        for name, times in modelled(few, gpu).items():
            assert 0 < times.end < math.inf, (gpu.name, name)
            assert all(0 <= i.start <= i.end < math.inf for i in times.intervals), (gpu.name, name)


def _are_stored(path: Path, programs: dict[str, Program]) -> None:
    fresh = modelled(run_programs(programs), H200)
    kept = modelled({n: stored(path)[n] for n in programs}, H200)
    for name, times in fresh.items():
        assert times.kernels == kept[name].kernels, name
        assert times.end == pytest.approx(kept[name].end, rel=0.02), name


def test_the_device_writes_the_ledgers_that_are_stored() -> None:
    for path in (RECORD, MIXES):
        programs = read_record(path).programs
        few = {
            n: p for n, p in programs.items() if p.kernel_s + p.copy_s < 3e-5 and p.wall_s < 4e-4
        }
        assert len(few) >= 10
        _are_stored(path, few)


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", WANTED, ids=lambda path: path.stem)
def test_the_device_writes_all_ledgers_that_are_stored(path: Path) -> None:
    _are_stored(path, dict(read_record(path).programs))


def test_a_fit_finds_the_figures_that_made_the_times() -> None:
    programs = read_record(STUDENTS).programs
    some = {n: p for n, p in programs.items() if n.startswith(("elementwise/", "reduce/", "sync/"))}
    ran = {name: stored(STUDENTS)[name] for name in some}
    made = {}
    for name, t in modelled(ran, H200).items():
        rows, first = ran[name]
        queue = times_of_rows(rows, H200, first, len(rows) - 1).issued  # before the wait at the end
        took = {
            "wall_s": t.end,
            "queue_s": queue,
            "event_s": t.end,
            "kernel_s": t.kernel_seconds,
            "kernels": t.kernels,
        }
        made[name] = msgspec.structs.replace(some[name], **took)
    record = msgspec.structs.replace(read_record(STUDENTS), programs=made)
    reached = agreement_of(made, modelled(ran, fit_gpu(record, ran, H200)))
    assert reached.wall[1] <= 1.1
    assert reached.kernel[1] <= 1.1
    assert reached.rank >= 0.99


def test_what_lies_apart_takes_longer_to_add_up_than_what_lies_side_by_side() -> None:
    def seconds(name: str, dim: int | None) -> float:
        call = KernelCall(name, "float32", (1000, 1000), ((1000, 1000),), 4_000_000, dim)
        return sum(map(H200.kernel_seconds, kernels_of(call, H200.chip())))

    for name in ("_softmax", "cumsum"):
        assert seconds(name, 0) > 10 * seconds(name, None)
    with virtual_cuda(gpu="H200") as gpu:
        x = torch.rand(1000, 1000, device="cuda")
        took = []
        for dim in (1, 0, -2, -1):
            mark = gpu.ledger.mark()
            x.softmax(dim), x.sum(dim)
            took.append(gpu.times(mark).kernel_seconds)
    assert took[0] == took[3] < 0.1 * took[1] == 0.1 * took[2]


def test_a_recurrent_cell_is_two_products_and_one_kernel() -> None:
    with virtual_cuda(gpu="H200") as gpu:
        for cell, fused in (
            (torch.nn.LSTMCell(4, 5), "lstm"),
            (torch.nn.GRUCell(4, 5, bias=False), "gru"),
        ):
            cell = cell.cuda()
            x = torch.rand(3, 4, device="cuda")
            state = torch.rand(3, 5, device="cuda")
            mark = gpu.ledger.mark()
            cell(x, (state, state) if fused == "lstm" else state)
            names = [i.name.split(".")[1] for i in gpu.times(mark).on_device if i.kernels]
            assert [n for n in names if n != "mm"] == [f"_thnn_fused_{fused}_cell"]


def test_the_gradients_of_a_recurrent_cell_are_those_of_the_cpu() -> None:
    for cell in (
        torch.nn.LSTMCell(4, 5),
        torch.nn.GRUCell(4, 5),
        torch.nn.GRUCell(4, 5, bias=False),
    ):
        x = torch.rand(3, 4, requires_grad=True)
        state = torch.rand(3, 5)
        lstm = isinstance(cell, torch.nn.LSTMCell)

        def gradients(cell: Any, x: Any, state: Any, lstm: bool = lstm) -> list[torch.Tensor]:
            out = cell(x, (state, state) if lstm else state)
            first = torch.autograd.grad(
                (out[1] if lstm else out).square().sum(), x, create_graph=True
            )[0]
            return [first, *torch.autograd.grad(first.square().sum(), [x, *cell.parameters()])]

        wanted = gradients(cell, x, state)
        with virtual_cuda():
            there = x.detach().cuda().requires_grad_()
            found = [g.cpu() for g in gradients(cell.cuda(), there, state.cuda())]
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, wanted, strict=True))


def test_memory_that_was_used_before_is_copied_to_faster() -> None:
    assert (
        H200.copy_seconds("to_host", 1 << 26, False, again=True)[0]
        < 0.2 * H200.copy_seconds("to_host", 1 << 26, False)[0]
    )


def test_tf32_counts_from_where_it_is_allowed() -> None:
    matmul: Any = torch.backends.cuda.matmul
    with without_arithmetic(), virtual_cuda(gpu="A100") as gpu:
        x = torch.ones(2048, 2048, device="cuda")
        mark = gpu.ledger.mark()
        took = []
        try:
            for allow in (lambda: None, lambda: torch.set_float32_matmul_precision("high")):
                allow()
                _ = x @ x
                took.append(gpu.times(mark).kernel_seconds - sum(took))
        finally:
            torch.set_float32_matmul_precision("highest")
        _ = x @ x
        took.append(gpu.times(mark).kernel_seconds - sum(took))
        if hasattr(matmul, "fp32_precision"):  # asked by its old name, torch may raise from here on
            try:
                matmul.fp32_precision = "tf32"
                _ = x @ x
                assert gpu.times(mark).kernel_seconds - sum(took) == pytest.approx(took[1])
            finally:
                matmul.fp32_precision = "ieee"
    assert took[1] < 0.3 * took[0] == pytest.approx(0.3 * took[2])


def test_a_sentence_says_what_limits_the_code() -> None:
    with without_arithmetic(), virtual_cuda(gpu="T4") as gpu:
        small = torch.ones(8, device="cuda")
        large = torch.ones(4096, 4096, device="cuda")
        pageable = torch.ones(1 << 20)
        pinned = pageable.pin_memory()

        def told(work: Callable[[], object], times: int) -> str:
            mark = gpu.ledger.mark()
            for _ in range(times):
                work()
            torch.cuda.synchronize()
            return what_limits(gpu.times(mark))

        assert re.match(
            r"The GPU is idle \d+% of the time: the CPU takes [\d.]+ µs for each of 300 kernels",
            told(lambda: small + 1, 300),
        )
        assert re.match(r"The GPU works (9\d|100)% of the time", told(lambda: large @ large, 3))
        assert re.match(
            r"Copies take \d+% of the time: pin the memory", told(lambda: pageable.to("cuda"), 3)
        )
        assert re.match(
            r"Copies take \d+% of the time: copy less",
            told(lambda: pinned.to("cuda", non_blocking=True), 9),
        )
        assert told(lambda: None, 1) == "Nothing ran on the GPU."

        def few_kernels() -> None:
            for tensor in [torch.ones(8)] * 5:
                tensor.to("cuda")
            _ = small + 1

        limited = r"The GPU is idle \d+% of the time: the CPU takes [\d.]+ µs for"
        assert re.match(f"{limited} 1 copy, the GPU", told(lambda: torch.ones(8).to("cuda"), 1))
        assert re.match(f"{limited} 5 copies and 1 kernel, the GPU", told(few_kernels, 1))


def test_the_cpu_is_faster_for_small_batches_and_the_gpu_for_large_ones() -> None:
    def told(batch: int) -> list[str]:
        with without_arithmetic(), virtual_cuda(gpu="T4") as gpu:
            model = torch.nn.Sequential(
                torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
            ).cuda()
            x = torch.ones(batch, 512, device="cuda")
            gpu.ledger.rows.clear()
            for _ in range(5):
                model(x).sum().backward()
            torch.cuda.synchronize()
            return compare_with_cpu(gpu.ledger.rows, gpu.times(), gpu_named("T4"))

    small, large = told(4), told(4096)
    assert "both modelled: a batch of 4 is too small for this GPU: the CPU is" in small[0]
    assert re.search(r"the GPU is faster from batches of about [\d,]+ on", small[1])
    assert re.search(r"the GPU is [\d.]+ times as fast", large[0])


def test_lanes_are_to_scale() -> None:
    with virtual_cuda(gpu="T4") as gpu:
        x = torch.ones(1 << 16).to("cuda")
        for _ in range(20):
            x = x + 1
        torch.cuda.synchronize()
        times = gpu.times()
    made = lanes_to_scale(times)
    assert [lane.name for lane in made.lanes] == ["host", "cuda:0 stream 0"]
    assert made.end == pytest.approx(times.end * 1e9, rel=1e-6)
    for lane in made.lanes:
        seconds = sum(percent for _, percent in lane.parts) / 100 / len(lane.parts) * times.end
        taken = sum(i.seconds for i in times.intervals if i.lane == lane.name)
        assert seconds == pytest.approx(taken, rel=0.2)
    drawn = plain_lines(draw_to_scale(made, 80))
    took = duration(made.end)
    heading = f"modelled on T4 (estimated), to scale: {took}, GPU idle {made.idle}% of the time"
    assert drawn[0] == heading
    assert all(len(line) <= 80 for line in drawn)
    assert [line.split()[0] for line in drawn[1:3]] == ["host", "GPU"]


def test_timing_without_synchronising_gives_the_time_to_issue() -> None:
    with virtual_cuda(gpu="T4", clock="modelled") as gpu:
        x = torch.rand(1 << 21, device="cuda")
        y = x * 2
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(20):
            y = x * 2
        issued = time.perf_counter() - begun
        torch.cuda.synchronize()
        run = time.perf_counter() - begun
        del y
        assert 0 < issued < 0.6 * run
        assert gpu.times().kernels == 22
    assert time.perf_counter() - begun < 3600  # the machine's own clock again


def test_the_same_program_takes_the_same_time_on_every_run() -> None:
    def once() -> float:
        with virtual_cuda(gpu="T4"):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            model = torch.nn.Linear(64, 64, device="cuda")
            x = torch.rand(32, 64, device="cuda")
            first.record()
            model(x).sum().backward()
            last.record()
            torch.cuda.synchronize()
            return float(first.elapsed_time(last))

    assert once() == once() > 0


def test_a_product_takes_as_long_as_its_flops_need_and_less_in_half_precision() -> None:
    def seconds(name: str, dtype: str, tf32: bool = False) -> float:
        gpu, square = gpu_named(name), (2048, 2048)
        kernels = kernels_of(KernelCall("mm", dtype, square, (square, square), 0), gpu.chip(tf32))
        return sum(map(gpu.kernel_seconds, kernels))

    for dtype in ("float32", "float16", "bfloat16"):
        assert seconds("T4", dtype) > seconds("A100", dtype) > seconds("H200", dtype)
    assert seconds("T4", "float16") < 0.3 * seconds("T4", "float32")
    assert seconds("T4", "bfloat16") > 0.9 * seconds("T4", "float32")  # no tensor cores for it
    assert seconds("A100", "float32", tf32=True) < 0.3 * seconds("A100", "float32")
    assert seconds("T4", "float32", tf32=True) == seconds("T4", "float32")


def test_a_pinned_copy_on_a_stream_of_its_own_runs_beside_compute() -> None:
    def seconds(beside: bool) -> float:
        with virtual_cuda(gpu="T4") as gpu:
            x = torch.rand(1 << 20, device="cuda")
            host = torch.empty(1 << 20).pin_memory()
            stream = torch.cuda.Stream()
            torch.cuda.synchronize()
            mark = gpu.ledger.mark()
            with torch.cuda.stream(stream if beside else torch.cuda.default_stream()):
                copy = host.to("cuda", non_blocking=True)
            for _ in range(20):
                _ = x + 1
            torch.cuda.synchronize()
            del copy
            return gpu.times(mark).end

    assert seconds(beside=True) < 0.8 * seconds(beside=False)


def test_pageable_memory_is_copied_more_slowly_and_keeps_the_host() -> None:
    on_host, there = H200.copy_seconds("to_device", 1 << 24, pinned=False)
    assert on_host > there > H200.copy_seconds("to_device", 1 << 24, pinned=True)[1]
    assert H200.copy_seconds("to_device", 1 << 24, pinned=True)[0] == 0
    sizes = [H200.copy_seconds("to_host", 1 << power, pinned=False)[1] for power in range(8, 32)]
    assert sizes == sorted(sizes)


def test_a_stream_waits_for_the_event_of_another() -> None:
    with virtual_cuda(gpu="H200") as gpu:
        x = torch.rand(128, 128, device="cuda")
        side = torch.cuda.Stream()
        mark = gpu.ledger.mark()
        y = x @ x
        done = torch.cuda.Event()
        done.record()
        with torch.cuda.stream(side):
            side.wait_event(done)
            _ = y + 1
        product, total = (
            next(i for i in gpu.times(mark).on_device if name in i.name)
            for name in ("aten.mm", "aten.add")
        )
    assert product.lane != total.lane
    assert total.start >= product.end


def test_reading_a_value_waits_for_the_work_before_it() -> None:
    with virtual_cuda(gpu="H200") as gpu:
        x = torch.rand(128, 128, device="cuda")
        mark = gpu.ledger.mark()
        (x @ x).sum().item()
        times = gpu.times(mark)
    assert times.issued >= max(i.end for i in times.on_device)
    assert 0 < times.idle_share < 1


def test_loops_are_slower_than_one_operation_on_the_modelled_gpu() -> None:
    with virtual_cuda(gpu="T4") as gpu:
        x = torch.rand(200, device="cuda")
        mark = gpu.ledger.mark()
        out = torch.empty_like(x)
        for i in range(len(x)):
            out[i] = 2 * x[i] + 1
        middle = gpu.ledger.mark()
        _ = 2 * x + 1
        assert gpu.times(mark, middle).end > 50 * gpu.times(middle).end


def test_the_profiler_shows_modelled_times(tmp_path: Path) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with virtual_cuda(gpu="T4") as gpu:
        x = torch.rand(256, 256, device="cuda")
        mark = gpu.ledger.mark()
        with torch.profiler.profile(activities=activities) as profile:
            _ = (x @ x).relu()
        wanted = {i.name.split(".")[1]: i.seconds * 1e6 for i in gpu.times(mark).on_device}
        shown = {e.key: e.self_device_time_total for e in profile.key_averages()}
        assert shown["aten::relu"] == pytest.approx(wanted["relu"], rel=1e-3)
        assert shown["aten::mm"] == pytest.approx(
            sum(i.seconds for i in gpu.times(mark).on_device if "mm" in i.name) * 1e6
        )
        profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert {e["args"]["time"] for e in kernels} == {"modelled"}
    assert sum(e["dur"] for e in kernels) == pytest.approx(sum(shown.values()), rel=1e-3)


@pytest.mark.parametrize("name", list(gpus()))
def test_the_device_has_the_properties_of_the_gpu_that_was_named(name: str) -> None:
    figures = gpu_named(name)
    with virtual_cuda(gpu=name.lower()):
        properties = torch.cuda.get_device_properties(0)
        assert (properties.name, properties.total_memory) == (figures.title, figures.memory)
        assert (
            torch.cuda.get_device_capability()
            == figures.capability
            == (properties.major, properties.minor)
        )
        assert properties.multi_processor_count == figures.sms
        assert torch.cuda.mem_get_info()[1] == figures.memory
        assert torch.cuda.is_bf16_supported(including_emulation=False) is (name != "T4")
    assert figures.source


def test_memory_and_name_can_be_told_apart_from_the_gpu() -> None:
    with virtual_cuda(gpu="A100", memory="1 GiB", name="mine"):
        assert torch.cuda.get_device_name() == "mine"
        assert torch.cuda.get_device_properties(0).total_memory == 1 << 30


def test_an_unknown_gpu_lists_those_there_are() -> None:
    with pytest.raises(UnknownGpu, match="no figures for a GPU 'RTX 9090'; choose one of RTX") as e:
        gpu_named("RTX 9090")
    assert all(name in str(e.value) for name in gpus()), "those with a similar name come first"
    with pytest.raises(UnknownGpu), virtual_cuda(gpu=""):
        pass
    with (
        pytest.raises(UnknownClock, match="choose one of measured, modelled"),
        virtual_cuda(clock="sundial"),
    ):  # type: ignore[arg-type]
        pass


def test_without_a_gpu_events_are_measured() -> None:
    with virtual_cuda() as gpu:
        assert gpu.clock() is None
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        time.sleep(0.01)
        last.record()
        assert first.elapsed_time(last) >= 10


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "missing required field"),
        ("nonsense", "malformed"),
        (
            '{"gpu": "X", "torch": "2", "programs": {}}',
            "0 programs that ran, at least 10 are needed",
        ),
        (
            (
                '{"gpu": "X", "torch": "2", "programs": {"a": {"setup": "", "step": "", "wall_s": '
                "-1}}}"
            ),
            "a: wall_s is no time",
        ),
        (
            (
                '{"gpu": "X", "torch": "2", "programs": {"a": {"setup": "", "step": "(", '
                '"wall_s": 1}}}'
            ),
            "a: .* never closed",
        ),
        (
            (
                '{"gpu": "X", "torch": "2", "programs": {"a": {"setup": "", "step": "", "wall_s": '
                '"1"}}}'
            ),
            "Expected `float`",
        ),
    ],
)
def test_a_record_that_does_not_fit_is_refused_with_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(BadClockRecord, match=reason):
        read_record(path)
    assert main([str(path)]) == 2
    assert "is no record of a GPU's times" in capsys.readouterr().err


def test_a_record_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadClockRecord, match="No such file"):
        read_record("nowhere.json")


def _count(
    name: str, dtype: str, out: tuple[int, ...] | None, *given: tuple[int, ...], size: int = 0
) -> int:
    kernels = kernels_of(KernelCall(name, dtype, out, given, size), H200.chip())
    return sum(kernel.kind != COPY for kernel in kernels)


def test_operators_are_counted_as_cuda_launches_them() -> None:
    assert _count("view", "float32", None, (8, 8)) == 0
    assert _count("add", "float32", (8, 8), (8, 8), (8, 8), size=256) == 1
    assert _count("clone", "float32", (8, 8), size=256) == 0  # a copy of the driver's
    assert _count("clone", "float32", (8, 8), (8, 8), size=256) == 1  # strided
    assert (
        _count("_foreach_add_", "float32", None, *[(1000,)] * 120) == 2
    )  # 110 tensors to a launch
    assert _count("_foreach_add_", "float32", None, (65536 * 321,)) == 2  # 320 pieces to a launch
    assert (
        200
        < _count(
            "_cudnn_rnn",
            "float32",
            None,
            (50, 1, 64),
            (1024, 64),
            (1024, 256),
            (1024, 256),
            (1024, 256),
        )
        < 230
    )
    assert _count("an operator of next year", "float32", (8,), (8,), size=32) == 1


def test_rows_without_shapes_are_understood() -> None:
    row = OperationRow(0.0, None, None, "aten.add.Tensor", "cuda:0", 0, None, 256, 512)
    assert times_of_rows([row], H200).kernels == 1


def test_a_tensor_of_a_long_list_costs_time_for_each_number() -> None:
    with virtual_cuda(gpu="H200") as gpu:

        def issued(make: Callable[[], Any]) -> float:
            mark = gpu.ledger.mark()
            make()
            return gpu.times(mark).issued

        short, long = ([0.5] * count for count in (10, 5000))
        few, many = (
            issued(lambda numbers=numbers: torch.tensor(numbers, device="cuda"))
            for numbers in (short, long)
        )
        assert many - few > 500e-6
        assert issued(lambda: torch.tensor([long, long]).cuda()) > 2 * (many - few)
        assert issued(lambda: torch.tensor(torch.rand(5000).numpy(), device="cuda")) < 2 * few


def test_a_program_that_needs_its_products_is_run_with_them() -> None:
    source = (
        "import torch\na = torch.eye(4, device='cuda') + 0.1; b = torch.ones(4, 1, device='cuda')"
    )
    rows, first = run_programs({"solve": Program(source, "z = torch.linalg.solve(a.T @ a, b)")})[
        "solve"
    ]
    assert any("solve" in str(getattr(row, "name", "")) for row in rows[first:])


def test_a_convolution_of_one_channel_takes_as_long_as_it_has_pixels() -> None:
    def seconds(side: int, channels: int) -> float:
        shapes = (8, channels, side, side), (16, channels, 3, 3)
        call = KernelCall(
            "convolution", "float32", (8, 16, side, side), shapes, 8 * 16 * side * side * 4
        )
        return H200.kernel_seconds(kernels_of(call, H200.chip())[0])

    assert seconds(512, 1) > 10 * seconds(64, 1)
    assert seconds(512, 1) > seconds(512, 3)


@pytest.mark.parametrize("suffix", ["", "_backward"])
def test_a_norm_by_the_root_mean_square_takes_as_long_as_a_layer_norm(suffix: str) -> None:
    def kernels(name: str) -> list[Kernel]:
        call = KernelCall(f"{name}{suffix}", "float32", (64, 64), ((64, 64), (64,)), 64 * 64 * 4)
        return kernels_of(call, H200.chip())

    assert kernels("_fused_rms_norm") == kernels("native_layer_norm")


def test_the_host_issues_a_norm_by_the_root_mean_square_like_any_operator() -> None:
    call = KernelCall("_fused_rms_norm", "float32", (64, 64), ((64, 64), (64,)), 64 * 64 * 4)
    row = OperationRow(0.0, None, None, "aten._fused_rms_norm.default", "cuda:0", 0, None, 0, 0)
    assert list(HostCosts().of_row(0, row, call, 1)) == [("operator", 1)]


@pytest.mark.parametrize("shape", [(4, 0), (0, 4), (0,)])
def test_a_reduction_of_nothing_takes_time(shape: tuple[int, ...]) -> None:
    with virtual_cuda(gpu="T4") as gpu:
        empty = torch.zeros(shape, device="cuda")
        empty.sum(), empty.sum(-1), empty.mean(0), (empty > 0).any()
        assert gpu.times()


def test_a_gpu_is_recorded_and_fitted_by_two_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"setup": "import torch; x = torch.ones(8, device='cuda')", "wall_s": 1.0}
    programs = {f"add/{count}": row | {"step": "x + 1\n" * count} for count in range(1, 11)}
    programs["wrong/name"] = row | {"step": "nothing_of_this_name"}
    source = tmp_path / "programs.json"
    source.write_text(json.dumps({"gpu": "X", "torch": "2", "programs": programs}))
    out = tmp_path / "out.json"
    with virtual_cuda(gpu="H200"):
        assert recording.main([str(out), "--programs", str(source), "--passes", "2"]) == 0
    assert "11 programs timed, 1 failed: wrong/name" in capsys.readouterr().out
    rows = json.loads(out.read_text())["programs"]
    assert len(rows["add/1"]["walls_s"]) == 2
    assert "NameError" in rows["wrong/name"]["error"]
    assert main([str(out)]) == 0
    fitted = json.loads(capsys.readouterr().out)
    assert "10 programs" in fitted["NVIDIA H200"]["source"]


def test_without_a_gpu_nothing_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert recording.main([str(tmp_path / "out.json")]) == 2
    assert "no GPU that torch can use" in capsys.readouterr().err


def test_a_collective_takes_as_long_as_its_bytes_need_over_the_link() -> None:
    def seconds(name: str, size: int, ranks: int, gpu: str = "H200") -> float:
        row = CollectiveRow(0.0, None, None, name, "cuda:0", size, ranks)
        return times_of_rows([row, EndRow(0.0, 0)], gpu_named(gpu)).end

    assert seconds("allreduce", 1 << 30, 2) == pytest.approx((1 << 30) / 450e9, rel=0.05)
    assert seconds("allreduce", 1 << 30, 8) > 1.7 * seconds("broadcast", 1 << 30, 8)
    assert seconds("allreduce", 1 << 30, 2, "T4") > 10 * seconds("allreduce", 1 << 30, 2)
    assert seconds("allreduce", 1 << 30, 1) < 1e-4


def test_a_gpu_that_is_like_another_is_estimated() -> None:
    alike = {"name": "X", "like": "H200", "slower": 1.0, "bus": 1e10}
    assert _complete_figures(alike, {"H200": gpu_named("H200")})["figures"] == "estimated"


def _costs_in_step(step: Callable[[], object]) -> dict[str, float]:
    """How often each cost of the host arises while `step` runs."""
    with virtual_cuda(gpu="H200") as gpu:
        first = len(gpu.ledger.rows)
        step()
        run = ProgramRun(list(gpu.ledger.rows), first)
    return _features_of(run, H200).host


def test_what_a_checkpoint_computes_again_costs_like_a_forward_pass_and_more() -> None:
    def step() -> None:
        layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).cuda()
        x = torch.rand(4, 8, device="cuda", requires_grad=True)
        torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sum().backward()

    costs = _costs_in_step(step)
    assert costs["computed again"] >= 1
    assert costs["product backward"] == 2


def test_each_channel_on_its_own_is_not_for_cudnn_in_single_precision() -> None:
    def costs_of(groups: int) -> dict[str, float]:
        def convolve() -> None:
            x = torch.rand(2, 8, 16, 16, device="cuda")
            torch.nn.Conv2d(8, 8, 3, groups=groups, device="cuda")(x)

        return _costs_in_step(convolve)

    assert costs_of(1)["cuDNN"] == 1
    assert "cuDNN" not in costs_of(8)


def test_gradients_of_indexing_are_sorted_by_their_places() -> None:
    shapes = (8192, 64), (8192, 64), (20000,), (20000, 64)
    assert _count("index_put", "float32", *shapes) > _count("index_put_", "float32", *shapes) + 4
