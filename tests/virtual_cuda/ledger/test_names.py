"""A question about what a ledger cannot have raises; it is never answered with nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from virtual_cuda import Ledger, VirtualGpu, gpu_named, real_device, virtual_cuda
from virtual_cuda.device import torch_names
from virtual_cuda.errors import (
    BadLimit,
    BadLine,
    BadMark,
    BadMoment,
    NoRecords,
    NoSpan,
    UnknownGpu,
    UnknownInLedger,
)
from virtual_cuda.ledger import Forward, questions
from virtual_cuda.ledger.names import EXPLICIT_WAITS, IMPLICIT_WAITS

from tests.virtual_cuda.releases import TORCH


class Net(torch.nn.Linear):
    pass


def read_total(x: torch.Tensor) -> float:
    return x.sum().item()


@functools.wraps(len)
def count(x: torch.Tensor) -> int:
    return len(x)


@pytest.fixture
def gpu() -> Iterator[VirtualGpu]:
    with virtual_cuda() as opened:
        x = torch.ones(1000).cuda()
        Net(2, 3).cuda()(torch.ones(4, 2).cuda())
        read_total(x)
        yield opened


Question = Callable[[Ledger], Any]


@pytest.mark.parametrize(
    ("question", "nearest"),
    [
        (lambda ledger: ledger.syncs("itme"), "item"),
        (lambda ledger: ledger.syncs(".item()"), "item"),
        (lambda ledger: ledger.syncs("cpu"), "item"),
        (lambda ledger: ledger.syncs(besides=("copys",)), "copy"),
        (lambda ledger: ledger.syncs(besides="copys"), "copy"),
        (lambda ledger: ledger.syncs_per_round((), besides=("itme",)), None),
        (lambda ledger: ledger.explicit_syncs("synchronise"), "synchronize"),
        (lambda ledger: ledger.sync_counts()["itme"], "item"),
        (lambda ledger: ledger.sync_counts().get("itme", 0), "item"),
        (lambda ledger: "itme" in ledger.sync_counts(), "item"),
        (lambda ledger: ledger.live_bytes()["cuda:1"], "cuda:0"),
        (lambda ledger: ledger.live_bytes().get(0, 0), "cuda:0"),
        (lambda ledger: ledger.transfers("to_gpu"), "to_device"),
        (lambda ledger: ledger.peak_bytes(1), "cuda:0"),
        (lambda ledger: ledger.peak_bytes(-1), "cuda:0"),
        (lambda ledger: ledger.peak_bytes(True), "cuda:0"),
        (lambda ledger: ledger.peak_bytes("cuda:7"), "cuda:0"),
        (lambda ledger: ledger.peak_bytes("gpu"), "cuda:0"),
        (lambda ledger: ledger.since(3).peak_bytes("cuda:7"), "cuda:0"),
        (lambda ledger: ledger.peak_bytes(torch.device("cuda:7")), "cuda:0"),
        (lambda ledger: ledger.live_bytes("cuda:1"), "cuda:0"),
        (lambda ledger: ledger.allocated_bytes("cuda:1"), "cuda:0"),
        (lambda ledger: ledger.allocations("cuda:1"), "cuda:0"),
        (lambda ledger: ledger.operations_on("cuda:1"), "cuda:0"),
        # What runs on the CPU is in no ledger of a GPU.
        (lambda ledger: ledger.operations_on("cpu"), "cuda:0"),
        (lambda ledger: ledger.forwards_on("cuda:1"), "cuda:0"),
        (lambda ledger: ledger.operations("ad"), "add"),
        (lambda ledger: ledger.operations("aten.ad"), "aten.add"),
        (lambda ledger: ledger.operations("aten.add.Tenso"), "aten.add.Tensor"),
        # Its keys are full names: the short one would always be 0.
        (lambda ledger: ledger.operation_counts()["add"], "aten.add.Tensor"),
        (lambda ledger: ledger.operations_under_autocast("half"), "float16"),
        (lambda ledger: ledger.operations_under_autocast(torch.int8), "float16"),
        (lambda ledger: ledger.autocast_dtypes()["float61"], "float16"),
        (lambda ledger: ledger.forwards("Liner"), "Linear"),
        (lambda ledger: ledger.scaler_calls("unscale"), "unscale_"),
        (lambda ledger: ledger.operations(0), None),
        (lambda ledger: ledger.operations(torch.add), "add"),
        (lambda ledger: ledger.collectives("all_reduced"), "all_reduce"),
        (lambda ledger: ledger.collectives(""), None),
        (lambda ledger: ledger.collectives(0), None),
        (lambda ledger: ledger.in_function("read_totla"), "read_total"),
        (lambda ledger: ledger.on_line("test_nams.py", 3), "test_names.py"),
        (lambda ledger: ledger.per_line()["test_names.py", 3], "test_names.py"),
        (lambda ledger: questions.syncs(ledger.within(ledger.forwards()[0]), "itme"), "item"),
        (lambda ledger: questions.peak_bytes(ledger.before(3), "cuda:1"), "cuda:0"),
        (lambda ledger: questions.peak_bytes(ledger.in_function(read_total), 1), "cuda:0"),
    ],
)
def test_what_no_ledger_can_have_is_refused(
    gpu: VirtualGpu, question: Question, nearest: str | None
) -> None:
    with pytest.raises(UnknownInLedger, match=r"^no ledger has .*; choose one of ") as raised:
        question(gpu.ledger)
    if nearest is not None:
        assert nearest in str(raised.value)


@pytest.mark.parametrize(
    "question",
    [
        lambda ledger: ledger.syncs("nonzero"),
        lambda ledger: ledger.explicit_syncs("synchronize"),
        lambda ledger: ledger.sync_counts()["nonzero"],
        lambda ledger: ledger.operations("sort"),
        lambda ledger: ledger.operations("aten.sort"),
        lambda ledger: ledger.operations("aten.sort.stable"),
        lambda ledger: ledger.operation_counts()["aten.mm.default"],
        lambda ledger: ledger.operations_under_autocast(torch.float16),
        lambda ledger: ledger.forwards("Conv2d"),
        lambda ledger: ledger.forwards_on("cpu"),
        lambda ledger: ledger.collectives("all_reduce"),
        lambda ledger: ledger.in_function("test_what_exists_and_did_not_happen_is_none"),
        lambda ledger: ledger.on_line(__file__, 1),
    ],
)
def test_what_exists_and_did_not_happen_is_none(gpu: VirtualGpu, question: Question) -> None:
    assert not question(gpu.ledger)


@pytest.mark.parametrize("moment", [-1, 10**6, 1.5, True, None, "start"])
def test_a_moment_is_one_of_this_ledger(gpu: VirtualGpu, moment: Any) -> None:
    ledger = gpu.ledger
    questions_about_it: list[Callable[[], object]] = [
        lambda: ledger.before(moment),
        lambda: ledger.after(moment),
        lambda: ledger.between(moment, len(ledger)),
        lambda: ledger.between(0, moment),
        lambda: ledger.syncs_between(moment, len(ledger)),
        lambda: questions.after(ledger.before(3), moment),
    ]
    for question in questions_about_it:
        with pytest.raises(BadMoment, match=r"is no moment of this ledger here; .* from \d to \d+"):
            question()


def test_two_moments_are_in_order(gpu: VirtualGpu) -> None:
    first, *_, last = gpu.ledger
    assert len(gpu.ledger.between(first, last)) == len(gpu.ledger) - 2
    assert gpu.ledger.between(last, last) == ()
    assert len(gpu.ledger.after(first)) + 1 == len(gpu.ledger.before(len(gpu.ledger)))
    with pytest.raises(BadMoment):
        gpu.ledger.syncs_between(last, first)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("matmul", ["mm", "bmm", "mv", "dot"]),
        ("linear", ["addmm", "mm"]),
        ("aten.linear", ["aten.addmm", "aten.mm"]),
        ("aten.linear.default", ["aten.addmm", "aten.mm"]),
        ("reshape", ["view", "_unsafe_view", "clone"]),
        ("to", ["_to_copy"]),
        ("conv2d", ["convolution"]),
        ("cross_entropy_loss", ["_log_softmax", "nll_loss_forward"]),
        ("item", ["_local_scalar_dense"]),
        ("softmax", ["_softmax"]),
        ("dropout", ["native_dropout"]),
        ("layer_norm", ["native_layer_norm"]),
    ],
)
def test_what_torch_makes_of_other_operators_is_refused_with_those(
    gpu: VirtualGpu, name: str, parts: list[str]
) -> None:
    x = torch.rand(4, 4).cuda()
    functional = torch.nn.functional
    for call in (
        lambda: torch.matmul(x, x).matmul(x[0]).dot(x[0]),
        lambda: functional.linear(x, x, x[0]).t().reshape(16).to(torch.float64),
        lambda: functional.conv2d(x[None, None], x[None, None]),
        lambda: functional.cross_entropy(functional.dropout(x), x.softmax(1).argmax(1)),
        lambda: functional.layer_norm(x @ x[None], (4,)).sum().item(),
    ):
        call()
    base = name.removeprefix("aten.").removesuffix(".default")
    why = rf"\(torch makes {base} of other operators, and the ledger has those\)$"
    with pytest.raises(UnknownInLedger, match=why) as refused:
        gpu.ledger.operations(name)
    assert set(parts) <= set(refused.value.known)
    assert any(gpu.ledger.operations(part) for part in parts)
    assert not any(base in each for each in gpu.ledger.operation_counts() if f".{base}." in each)


def test_where_nothing_is_called_like_it_only_the_reason_is_told(gpu: VirtualGpu) -> None:
    why = r"^no ledger has 'moveaxis' \(torch makes moveaxis of other operators, and the ledger has"
    with pytest.raises(UnknownInLedger, match=why):
        gpu.ledger.operations("moveaxis")


def test_a_module_is_no_operator_and_the_right_question_is_told(gpu: VirtualGpu) -> None:
    with pytest.raises(
        UnknownInLedger, match=r"\(Linear is a class of modules: ask forwards\('Lin"
    ):
        gpu.ledger.operations("nn.Linear")


def test_counts_of_what_torch_makes_of_others_are_refused(gpu: VirtualGpu) -> None:
    with pytest.raises(UnknownInLedger, match="torch makes matmul of other operators"):
        gpu.ledger.operation_counts()["aten.matmul.default"]


def test_every_operator_that_was_recorded_can_be_asked_for_where_it_was_not(
    gpu: VirtualGpu,
) -> None:
    x = torch.rand(4, 4, requires_grad=True, device="cuda")
    torch.nn.RMSNorm(4).cuda()(torch.nn.functional.silu(x)).sum().backward()
    recorded = set(gpu.ledger.operation_counts())
    assert "aten.silu_backward.default" in recorded
    if TORCH >= (2, 9):
        assert "aten._fused_rms_norm.default" in recorded
    nothing = gpu.ledger.before(0)
    for name in recorded:
        for spelling in (name, name.rpartition(".")[0], name.split(".")[1]):
            assert questions.operations(nothing, spelling) == ()


def test_rounds_begin_in_order_each_once_and_in_this_ledger(gpu: VirtualGpu) -> None:
    model = Net(2, 3).cuda()
    for _ in range(3):
        model(torch.ones(4, 2).cuda()).sum().item()
    ledger = gpu.ledger
    starts = ledger.forwards()
    assert len(starts) == 4
    assert ledger.syncs_per_round(starts[1:], besides="copy") == (1, 1, 1)
    for wrong in (starts[::-1], starts + starts, starts[:1] * 2):
        for question in (ledger.rounds, ledger.syncs_per_round):
            with pytest.raises(BadMoment):
                question(wrong)


def test_a_record_of_another_ledger_is_no_moment_of_this_one() -> None:
    def passes() -> Ledger:
        with virtual_cuda() as opened:
            model = Net(2, 3).cuda()
            for _ in range(2):
                model(torch.ones(4, 2).cuda())
        return opened.ledger

    ledger, other = passes(), passes()
    first, second = other.forwards()
    part = ledger.after(0)
    questions_about_it: list[Callable[[], object]] = [
        lambda: ledger.rounds(other.forwards()),
        lambda: ledger.syncs_per_round(other.forwards()),
        lambda: ledger.within(first),
        lambda: ledger.between(first, second),
        lambda: questions.rounds(part, other.forwards()),
        lambda: questions.before(part, second),
    ]
    for question in questions_about_it:
        with pytest.raises(BadMoment, match="is no moment of this ledger here"):
            question()
    assert len(questions.rounds(part, ledger.forwards())) == 2


def test_a_pass_that_had_not_ended_is_a_moment_also_afterwards() -> None:
    with virtual_cuda() as opened:
        model = Net(2, 3).cuda()
        seen = list[Forward]()
        model.register_forward_hook(lambda *_: seen.append(opened.ledger.forwards()[0]))
        model(torch.ones(4, 2).cuda())
    (span,) = seen
    assert span.end is None
    assert len(opened.ledger.rounds([span])) == 1
    assert opened.ledger.after(span)


@pytest.mark.parametrize("line", [0, -1, 10**6, "14", 1.5, True, None])
def test_a_line_is_one_of_its_file(gpu: VirtualGpu, line: Any) -> None:
    path = read_total.__code__.co_filename
    for question in (
        lambda: gpu.ledger.on_line("test_names.py", line),
        lambda: gpu.ledger.on_line(Path(path), line),
        lambda: gpu.ledger.per_line()[path, line],
    ):
        with pytest.raises(BadLine, match=r"test_names.py has no line .*; give .* from 1 to \d+"):
            question()


@pytest.mark.parametrize("limit", [0, -1, 1.5, float("nan"), float("inf"), "3", True, None])
def test_a_limit_is_one_that_can_be_reached(gpu: VirtualGpu, limit: Any) -> None:
    for question in (gpu.ledger.hot_lines, gpu.ledger.repeated_transfers):
        with pytest.raises(BadLimit, match=r"is no number of records; give a whole number from 1"):
            question(limit)


def test_what_is_no_part_of_a_ledger_is_refused(gpu: VirtualGpu) -> None:
    ledger = gpu.ledger
    for given in (None, 3, "forwards", [3]):
        for question in (ledger.rounds, ledger.grown_lines, ledger.grown_operations):
            with pytest.raises(NoRecords, match="is no ledger and no part of one"):
                question(given)
    for span in (None, 3, "forward", ledger.operations()[0]):
        with pytest.raises(NoSpan, match="has no inside; give a record of"):
            ledger.within(span)


@pytest.mark.parametrize("device", [0, "cuda:0", "cuda", torch.device("cuda"), None])
def test_a_device_has_several_spellings(gpu: VirtualGpu, device: Any) -> None:
    ledger = gpu.ledger
    assert ledger.peak_bytes(device) == ledger.peak_bytes("cuda:0") >= 4096
    assert ledger.live_bytes(device) == ledger.live_bytes("cuda:0")
    assert ledger.allocated_bytes(device) == ledger.allocated_bytes("cuda:0")
    assert ledger.allocations(device) == ledger.allocations("cuda:0")


def test_a_function_may_be_given_itself_and_a_file_by_its_end(gpu: VirtualGpu) -> None:
    reads = gpu.ledger.in_function(read_total)
    assert reads == gpu.ledger.in_function("read_total") != ()
    line = read_total.__code__.co_firstlineno + 1
    assert gpu.ledger.on_line("test_names.py", line) == reads
    assert gpu.ledger.on_line("ledger/test_names.py", line) == reads


def test_a_function_around_a_built_in_one_is_known_by_its_names(gpu: VirtualGpu) -> None:
    assert gpu.ledger.in_function("count") == gpu.ledger.in_function(count) == ()


def test_classes_of_ones_own_are_modules(gpu: VirtualGpu) -> None:
    assert len(gpu.ledger.forwards("Net")) == 1


def test_operators_of_libraries_are_operators(gpu: VirtualGpu) -> None:
    library = torch.library.Library("ledger_names", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    assert gpu.ledger.operations("ledger_names.twice") == ()


def test_an_explicit_wait_is_asked_for_elsewhere(gpu: VirtualGpu) -> None:
    with pytest.raises(UnknownInLedger, match=r"ask explicit_syncs\(\) for that kind"):
        gpu.ledger.syncs("synchronize")
    with pytest.raises(UnknownInLedger, match=r"ask syncs\(\) for that kind"):
        gpu.ledger.explicit_syncs("item")


def test_marks_are_those_of_the_ledger(gpu: VirtualGpu) -> None:
    rows = gpu.ledger.mark()
    assert gpu.times(0, rows, "T4").seconds == gpu.times(gpu=gpu_named("T4")).seconds > 0
    for marks in (("T4",), (-1,), (rows + 1,), (3, 2), (0, rows + 1), (True,), (0, "end")):
        with pytest.raises(BadMark, match="is no mark of this ledger"):
            gpu.times(*marks)  # type: ignore[arg-type]
        with pytest.raises(BadMark):
            gpu.ledger.since(*marks)  # type: ignore[arg-type]
    with pytest.raises(UnknownGpu, match=r"T5.*choose one of"):
        gpu.times(gpu="T5")


def test_a_ledger_of_the_cpu_knows_the_cpu() -> None:
    with real_device("cpu") as real:
        torch.ones(1000)
        assert real.ledger.peak_bytes() == real.ledger.peak_bytes("cpu") >= 4000
        with pytest.raises(UnknownInLedger, match="choose one of cpu"):
            real.ledger.peak_bytes("cuda")
        with pytest.raises(UnknownInLedger):
            real.ledger.syncs("itme")


def test_every_kind_of_wait_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "virtual-cuda.md").read_text(encoding="utf-8")
    for kind in (*IMPLICIT_WAITS, *EXPLICIT_WAITS):
        assert f'`"{kind}"`' in page


def test_a_torch_that_does_not_tell_what_is_made_of_others_answers_with_nothing(
    gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_names, "has_kernel", lambda name, key: key == "CPU")
    assert gpu.ledger.operations("matmul") == ()
