"""Every question about a ledger finds what it asks for, and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from virtual_cuda.errors import UnknownInLedger
from virtual_cuda.ledger import Ledger, questions
from virtual_cuda.ledger import questions as ask
from virtual_cuda.ledger.records import (
    Allocation,
    Backward,
    Forward,
    Operation,
    OptimizerStep,
    Record,
    ScalerCall,
    Site,
    Span,
    Sync,
    Transfer,
)

Records = tuple[Record, ...]


def at_line(line: int, function: str = "train_epoch") -> Site:
    return Site("loop.py", line, function)


def operation(name: str = "aten.add.Tensor", device: str = "cuda:0", **more: Any) -> Operation:
    fields: dict[str, Any] = {
        "site": None,
        "grad": True,
        "inference": False,
        "autocast": None,
        "bytes": 0,
        "live": 0,
    } | more
    return Operation(index=0, at=0.0, name=name, device=device, **fields)


def transfer(
    direction: Any = "to_device", size: int = 64, site: Site | None = None, **more: Any
) -> Transfer:
    fields: dict[str, Any] = {
        "pinned": False,
        "non_blocking": False,
        "source": "cpu",
        "target": "cuda:0",
    } | more
    return Transfer(index=0, at=0.0, site=site, direction=direction, bytes=size, **fields)


def sync(what: str = "item", explicit: bool = False, site: Site | None = None) -> Sync:
    return Sync(0, 0.0, site, what, explicit)


def forward(module: str = "Net", depth: int = 0, **more: Any) -> Forward:
    fields: dict[str, Any] = {
        "training": True,
        "grad": True,
        "inference": False,
        "devices": ("cuda:0",),
    } | more
    return Forward(index=0, at=0.0, site=None, module=module, depth=depth, **fields)


def backward() -> Backward:
    return Backward(0, 0.0, None)


def step() -> OptimizerStep:
    return OptimizerStep(0, 0.0, None, "SGD")


def scaler(call: str) -> ScalerCall:
    return ScalerCall(0, 0.0, None, call)


def written(*entries: Record | list[Record], first: int = 0) -> Records:
    """The entries as a ledger numbers them; a list is a span and what is inside it."""
    numbered: list[Record] = []
    for entry in entries:
        if isinstance(entry, list):
            span, *inside = written(*entry, first=first + len(numbered))
            assert isinstance(span, Span)
            numbered += [
                msgspec.structs.replace(span, end=span.index + len(entry), seconds=1.0),
                *inside,
            ]
        else:
            index = first + len(numbered)
            closed = {"end": index + 1, "seconds": 1.0} if isinstance(entry, Span) else {}
            numbered.append(msgspec.structs.replace(entry, index=index, at=float(index), **closed))
    return tuple(numbered)


def indices(records: tuple[Any, ...]) -> list[int]:
    return [record.index for record in records]


# Parts


def test_parts_are_cut_by_record_or_position_also_in_a_part() -> None:
    records = written(operation(), sync(), operation(), sync(), operation())
    assert indices(ask.between(records, records[0], records[3])) == [1, 2]
    assert indices(ask.between(records, 0, 3)) == [1, 2]
    assert indices(ask.between(records[2:], 2, 4)) == [3]
    assert indices(ask.before(records, records[2])) == [0, 1]
    assert indices(ask.after(records, records[2])) == [3, 4]
    assert ask.between(records, 3, 3) == ()


def test_within_is_the_inside_of_a_span() -> None:
    records = written(operation(), [forward(), operation(), sync()], operation())
    (span,) = questions.forwards(records)
    assert indices(ask.within(records, span)) == [2, 3]
    assert indices(ask.within(records, msgspec.structs.replace(span, end=None))) == [2, 3, 4]


def test_rounds_begin_where_they_are_told_to() -> None:
    records = written(operation(), forward(), operation(), forward(), sync(), operation())
    assert [indices(part) for part in ask.rounds(records, questions.forwards(records))] == [
        [1, 2],
        [3, 4, 5],
    ]
    assert ask.rounds(records, ()) == ()


def test_records_of_a_function_and_of_a_line() -> None:
    records = written(
        operation(site=at_line(3)),
        operation(site=at_line(4)),
        operation(site=at_line(3, "helper")),
        operation(),
    )
    assert indices(ask.in_function(records, "train_epoch")) == [0, 1]
    assert indices(ask.on_line(records, "loop.py", 3)) == [0, 2]
    assert ask.on_line(records, "other.py", 3) == ()


def test_lines_are_counted_the_busiest_first() -> None:
    records = written(sync(site=at_line(9)), sync(), *[sync(site=at_line(14)) for _ in range(3)])
    assert ask.per_line(records) == {("loop.py", 9): 1, ("loop.py", 14): 3}
    assert list(ask.hot_lines(records, at_least=1).items()) == [
        (("loop.py", 14), 3),
        (("loop.py", 9), 1),
    ]
    assert ask.hot_lines(records, at_least=2) == {("loop.py", 14): 3}


# Transfers


def test_transfers_by_direction_and_their_bytes() -> None:
    records = written(
        transfer(size=100),
        transfer("to_host", 10),
        transfer(size=50),
        transfer("between_devices", 1),
    )
    assert indices(ask.transfers((*records, *written(sync())))) == [0, 1, 2, 3]
    assert (
        indices(ask.transfers(records, "to_host")) == indices(ask.transfers_to_host(records)) == [1]
    )
    assert indices(ask.transfers_to_device(records)) == [0, 2]
    assert indices(ask.transfers_between_devices(records)) == [3]
    assert (ask.bytes_to_device(records), ask.bytes_to_host(records)) == (150, 10)


def test_pinned_and_non_blocking_transfers() -> None:
    records = written(transfer(), transfer(pinned=True), transfer(non_blocking=True))
    assert indices(ask.pinned_transfers(records)) == [1]
    assert indices(ask.non_blocking_transfers(records)) == [2]


def test_a_model_copied_in_every_round_is_a_repeated_transfer() -> None:
    weights = [transfer(size=4096, site=at_line(7)), transfer("to_host", 4096, site=at_line(7))]
    records = written(
        *weights, *weights, transfer(size=4096, site=at_line(8)), transfer(size=1, site=at_line(7))
    )
    assert [indices(group) for group in ask.repeated_transfers(records)] == [[0, 2], [1, 3]]
    assert ask.repeated_transfers(records, at_least=3) == ()
    assert (
        ask.repeated_transfers(written(transfer(), transfer())) == ()
    )  # no line, so perhaps not one place


# Synchronisations


def test_syncs_are_implicit_unless_asked_for() -> None:
    records = written(
        sync("item"), sync("synchronize", explicit=True), sync("nonzero"), operation(), sync("item")
    )
    assert indices(ask.syncs(records)) == [0, 2, 4]
    assert indices(ask.syncs(records, "nonzero")) == [2]
    assert indices(ask.syncs(records, besides=["nonzero"])) == [0, 4]
    assert indices(ask.explicit_syncs(records)) == [1]
    assert ask.sync_counts(records) == {"item": 2, "nonzero": 1}


def test_syncs_between_and_within() -> None:
    records = written(
        sync(), [forward(), sync(), sync("s", explicit=True)], sync(), backward(), sync()
    )
    span = questions.forwards(records)[0]
    after = questions.backward_passes(records)[0]
    assert indices(ask.syncs_between(records, span, after)) == [2, 4]
    assert indices(ask.syncs_within(records, span)) == [2]


def test_syncs_are_counted_per_batch() -> None:
    batch: list[Record] = [forward(), sync("copy"), sync("item")]
    records = written(sync(), *batch, *batch, forward())
    assert ask.syncs_per_round(records, questions.forwards(records)) == (2, 2, 0)
    assert ask.syncs_per_round(records, questions.forwards(records), besides=["copy"]) == (1, 1, 0)


# Operations


def test_operations_by_name_with_or_without_overload() -> None:
    records = written(
        operation("aten.add.Tensor"),
        operation("aten.add_.Tensor"),
        operation("aten.add.Scalar"),
        sync(),
    )
    assert indices(ask.operations(records)) == [0, 1, 2]
    assert indices(ask.operations(records, "aten.add.Scalar")) == [2]
    assert (
        indices(ask.operations(records, "aten.add"))
        == indices(ask.operations(records, "add"))
        == [0, 2]
    )
    assert ask.operations(records, "Tensor") == ()
    assert ask.operation_counts((*records, records[0]))["aten.add.Tensor"] == 2


def test_operations_by_device() -> None:
    records = written(
        operation(device="cuda:0"), operation(device="cuda:1"), operation(device="cpu")
    )
    assert indices(ask.operations_on(records, "cuda")) == [0, 1]
    assert indices(ask.operations_on(records, "cuda:1")) == [1]
    assert indices(ask.operations_on(records, "cpu")) == [2]


def test_operations_by_grad_mode() -> None:
    records = written(operation(), operation(grad=False), operation(inference=True))
    assert indices(ask.operations_building_graph(records)) == [0]


def test_operations_by_autocast() -> None:
    records = written(operation(), operation(autocast="float16"), operation(autocast="bfloat16"))
    assert indices(ask.operations_under_autocast(records)) == [1, 2]
    assert indices(ask.operations_under_autocast(records, "bfloat16")) == [2]
    assert ask.autocast_dtypes(records) == {"float16": 1, "bfloat16": 1}


def test_a_loop_over_pixels_grows_with_the_image() -> None:
    def image(pixels: int) -> Records:
        loop = [operation("aten.mul.Tensor", site=at_line(5)) for _ in range(pixels)]
        return written(operation("aten.stack.default", site=at_line(6)), *loop)

    assert ask.grown_operations(image(4), image(16)) == {"aten.mul.Tensor": (4, 16)}
    assert ask.grown_lines(image(4), image(16)) == {("loop.py", 5): (4, 16)}
    assert ask.grown_operations(image(4), image(4)) == {}
    assert ask.grown_lines(image(16), image(4)) == {}


# Passes and steps


def test_forwards_by_depth_and_module() -> None:
    records = written([forward("Net"), forward("Linear", 1)], forward("Loss"))
    assert indices(questions.forwards(records)) == [0, 2]
    assert indices(questions.forwards(records, top_level_only=False)) == [0, 1, 2]
    assert indices(questions.forwards(records, "Linear")) == []
    assert indices(questions.forwards(records, "Linear", top_level_only=False)) == [1]


def test_forwards_by_mode() -> None:
    quiet: dict[str, Any] = {"training": False, "grad": False}
    records = written(
        forward(**quiet),
        forward(),
        forward(inference=True, training=False),
        forward("BatchNorm", 1),
    )
    assert indices(questions.forwards_building_graph(records)) == [1]
    assert indices(questions.forwards_in_training_mode(records)) == [1, 3]


def test_forwards_by_device() -> None:
    places = [
        ("cuda:0",),
        ("cpu",),
        ("cuda:0", "cpu"),
        ("cuda:0", "cuda:1"),
        ("cuda:0", "cuda:0"),
        (),
    ]
    records = written(*[forward(devices=devices) for devices in places])
    assert indices(questions.forwards_on(records, "cuda")) == [0, 3, 4]
    assert indices(questions.forwards_on(records, "cpu")) == [1]
    assert indices(questions.forwards_across_devices(records)) == [2, 3]


def test_passes_under_autocast() -> None:
    half = operation(autocast="float16")
    records = written(
        [forward(), operation(), half],
        [forward(), operation()],
        half,
        [backward(), half],
        [backward()],
    )
    assert indices(questions.forwards_under_autocast(records)) == [0]
    assert indices(questions.backward_passes(records)) == [6, 8]
    assert indices(questions.backwards_under_autocast(records)) == [6]


def test_the_order_of_training_is_readable() -> None:
    records = written(
        [forward(), forward("Linear", 1)],
        operation(),
        scaler("scale"),
        backward(),
        scaler("step"),
        step(),
    )
    assert questions.training_order(records) == (
        "forward",
        "scaler.scale",
        "backward",
        "scaler.step",
        "step",
    )


def test_backward_passes_are_counted_per_step() -> None:
    records = written(backward(), backward(), step(), backward(), step(), step(), backward())
    assert indices(questions.optimizer_steps(records)) == [2, 4, 5]
    assert questions.backwards_per_step(records) == (2, 1, 0)
    assert indices(questions.steps_without_backward(records)) == [5]
    assert indices(questions.backwards_after_last_step(records)) == [6]


def test_a_backward_in_a_closure_belongs_to_its_step() -> None:
    records = written([step(), backward(), backward()], [step(), backward()])
    assert questions.backwards_per_step(records) == (2, 1)
    assert questions.steps_without_backward(records) == ()


def test_step_before_backward_is_found_in_the_first_round_and_its_backward_is_left_over() -> None:
    records = written(step(), backward(), step(), backward())
    assert indices(questions.steps_without_backward(records)) == [0]
    assert indices(questions.backwards_after_last_step(records)) == [3]


def test_backwards_without_any_step_are_all_left_over() -> None:
    assert indices(questions.backwards_after_last_step(written(backward(), backward()))) == [0, 1]


# Gradient scaling

NORM = "aten.linalg_vector_norm.default"


def right_step(clip: bool = True) -> list[Record | list[Record]]:
    clipping: list[Record] = (
        [scaler("unscale_"), operation("aten._foreach_norm.Scalar")] if clip else []
    )
    return [
        forward(),
        scaler("scale"),
        backward(),
        *clipping,
        scaler("step"),
        step(),
        scaler("update"),
    ]


def test_the_right_step_gives_no_cause_for_complaint() -> None:
    records = written(*right_step(), *right_step(clip=False))
    assert questions.backwards_without_scale(records) == ()
    assert questions.steps_outside_scaler(records) == ()
    assert questions.scaler_steps_without_update(records) == ()
    assert questions.norms_before_unscale(records) == ()
    assert questions.steps_without_backward(records) == ()
    assert questions.backwards_after_last_step(records) == ()


def test_scaler_calls_by_name() -> None:
    records = written(*right_step())
    assert [c.call for c in questions.scaler_calls(records)] == [
        "scale",
        "unscale_",
        "step",
        "update",
    ]
    assert indices(questions.scaler_calls(records, "unscale_")) == [3]


def test_an_unscaled_backward_is_found() -> None:
    assert indices(
        questions.backwards_without_scale(written(scaler("scale"), backward(), backward()))
    ) == [2]
    assert (
        questions.backwards_without_scale(
            written(scaler("scale"), scaler("scale"), backward(), backward())
        )
        == ()
    )


def test_a_step_before_a_scaled_backward_is_not_taken_for_an_unscaled_one() -> None:
    assert (
        questions.backwards_without_scale(
            written(scaler("scale"), scaler("step"), step(), backward())
        )
        == ()
    )


def test_a_step_outside_the_scaler_is_found() -> None:
    assert indices(questions.steps_outside_scaler(written(step()))) == [0]
    assert indices(questions.steps_outside_scaler(written(scaler("step"), step(), step()))) == [2]
    skipped = written(scaler("step"), scaler("update"), scaler("scale"), backward(), step())
    assert indices(questions.steps_outside_scaler(skipped)) == [4]


def test_a_scaler_step_without_update_is_found() -> None:
    twice = written(
        scaler("scale"), scaler("step"), scaler("scale"), scaler("step"), scaler("update")
    )
    assert indices(questions.scaler_steps_without_update(twice)) == [1]
    assert indices(questions.scaler_steps_without_update(twice[:-1])) == [1, 3]
    assert (
        questions.scaler_steps_without_update(
            written(scaler("step"), scaler("step"), scaler("update"))
        )
        == ()
    )


def test_norms_of_a_layer_or_of_the_optimizer_are_not_gradient_norms() -> None:
    records = written(
        [forward(), operation(NORM)], [step(), operation(NORM)], operation(NORM), operation()
    )
    assert indices(questions.gradient_norms(records)) == [4]


def test_clipping_before_unscale_is_found() -> None:
    early = written(
        scaler("scale"), backward(), operation(NORM), scaler("unscale_"), scaler("step"), step()
    )
    assert indices(questions.norms_before_unscale(early)) == [2]
    logged = written(
        operation(NORM),
        backward(),
        scaler("unscale_"),
        operation(NORM),
        scaler("step"),
        operation(NORM),
    )
    assert questions.norms_before_unscale(logged) == ()


# Memory


def test_memory_is_counted_from_operations_and_other_allocations() -> None:
    records = written(
        operation(bytes=512, live=512),
        Allocation(0, 0.0, None, "cuda:0", 1024, 1536),
        operation(bytes=0, live=1536),
        Allocation(0, 0.0, None, "cuda:0", -1024, 512),
        operation(device="cuda:1", bytes=4096, live=4096),
        operation(device="cpu", bytes=9999, live=9999),
    )
    assert indices(ask.allocations(records)) == [0, 1, 4]
    assert indices(ask.allocations(records, "cuda:0")) == [0, 1]
    assert ask.allocated_bytes(records, "cuda:0") == 1536
    assert ask.allocated_bytes(records) == 5632
    assert ask.live_bytes(records) == {"cuda:0": 512, "cuda:1": 4096}
    assert ask.peak_bytes(records, "cuda:0") == 1536
    assert ask.peak_bytes(records) == 4096
    assert ask.peak_bytes((), "cuda:0") == 0


@pytest.mark.parametrize(
    "question",
    [
        lambda ledger: ledger.transfers("to_gpu"),
        lambda ledger: ledger.operations_on("gpu"),
        lambda ledger: ledger.forwards_on("cuda:first"),
        lambda ledger: ledger.peak_bytes("GPU 0"),
        lambda ledger: ledger.allocated_bytes("gpu"),
        lambda ledger: ledger.operations_under_autocast("half"),
        lambda ledger: ledger.scaler_calls("unscale"),
    ],
)
def test_a_question_about_what_no_ledger_has_is_refused(question: Any) -> None:
    with pytest.raises(UnknownInLedger, match=r"no ledger has '.*'; choose one of "):
        question(Ledger())
