"""One entry per operator: duplicates are refused, names exist, and the facts can be made anew."""

from __future__ import annotations

import json
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from virtual_cuda import virtual_cuda
from virtual_cuda.ops import registry
from virtual_cuda.ops.registry import DuplicateOperator, declared_operators, facts_of, operator

from tools import make_facts, placement_facts, probe, refusal_facts

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def own_entries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Entries made here are gone afterwards."""
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    facts_of.cache_clear()
    yield
    facts_of.cache_clear()


def test_a_second_declaration_of_an_operator_is_refused() -> None:
    with pytest.raises(DuplicateOperator) as caught:
        operator("index_put_", waits=("boolean index", 1))
    assert str(caught.value) == (
        "Operator 'index_put_' is declared twice: in virtual_cuda.ops.elementwise and in "
        f"{__name__}. "
        "Everything known about an operator stands in one entry."
    )


def test_a_fact_that_was_measured_cannot_be_declared_as_well() -> None:
    operator("logical_or.default", strict=("other",))
    with pytest.raises(
        DuplicateOperator, match=r"'logical_or.default' is declared twice \(strict\).*facts"
    ):
        facts_of(aten.logical_or.default)


def test_a_fact_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="wait"):
        operator("sinc", wait=("item", 1))


def test_an_overload_has_the_facts_of_its_operator_and_its_own_go_first() -> None:
    by_tensor = facts_of(aten.masked_fill.Tensor)
    by_number = facts_of(aten.masked_fill.Scalar)
    assert by_tensor.waits is not None
    assert by_number.waits is None
    assert by_number.placement is by_tensor.placement is not None
    assert facts_of(aten.add.Tensor).binding
    assert not facts_of(aten.add.Scalar).binding


def test_a_kernel_belongs_to_the_default_overload_only() -> None:
    assert facts_of(aten.bincount.default).kernel is not None
    assert facts_of(aten.bincount.out).kernel is None
    assert facts_of(aten.bincount.out).nondeterministic == "_bincount_cuda"


def test_operators_of_other_libraries_have_no_facts() -> None:
    assert facts_of(torch.ops.prims.where.default) == registry.Operator()


# Operators that some release of torch lacks.
SOMETIMES = {
    "_flash_attention_forward_no_dropout_inplace",
    "_scaled_mm_v2",
    "_use_miopen_ctc_loss",
    "cholesky",
}


def test_every_entry_is_of_an_operator_that_exists_and_repeats_no_measured_fact() -> None:
    for name in declared_operators().keys() - SOMETIMES:
        packet, _, overload = name.partition(".")
        found = getattr(aten, packet).overloads()
        assert not overload or overload in found, name
        for each in [overload] if overload else found:
            facts_of(getattr(getattr(aten, packet), each))


on_the_torch_of_the_tables = pytest.mark.skipif(
    torch.__version__.partition("+")[0] != registry.measured_table("operators")["torch"],
    reason="torch's own tables were read from another release",
)


@on_the_torch_of_the_tables
@pytest.mark.parametrize("name", ["operators", "placement", "refusals"])
def test_every_measured_fact_is_of_an_operator_that_exists(name: str) -> None:
    tables = registry.measured_table(name)
    for title in {"checks", "delegated", "strict", "forbidden", "spoken"} & tables.keys():
        for key in tables[title]:
            _, packet, overload = key.split(".")
            assert overload in getattr(aten, packet).overloads()


@on_the_torch_of_the_tables
def test_the_tables_of_torch_are_those_that_are_shipped(tmp_path: pathlib.Path) -> None:
    make_facts.main(["--out", str(tmp_path)])
    assert json.loads((tmp_path / "operators.json").read_text()) == registry.measured_table(
        "operators"
    )


class Samples:
    """A stand-in for an entry of torch's operator database, which takes long to import."""

    inplace_variant = None

    def __init__(self, op: Any, *arguments: Any) -> None:
        """`arguments` are given as they are, but for tensors of floats, which get the dtype that is
        asked for.
        """
        self.op = op
        self.arguments = arguments

    def sample_inputs(self, device: str, dtype: torch.dtype, requires_grad: bool) -> Iterator[Any]:
        given = [
            a.to(device, dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a
            for a in self.arguments
        ]
        yield types.SimpleNamespace(input=given[0], args=tuple(given[1:]), kwargs={})


PROBED = [
    Samples(torch.mm, torch.rand(3, 3), torch.rand(3, 3)),
    Samples(torch.logical_or, torch.tensor(1.0), torch.rand(3)),
    Samples(torch.angle, torch.rand(3)),
    Samples(torch.histogram, torch.rand(3), 4),
    Samples(torch.histogram, torch.rand(3), torch.rand(4).sort().values),
    Samples(torch.embedding, torch.rand(4, 3), torch.tensor([1, 2])),
    Samples(torch.Tensor.put, torch.rand(3), torch.tensor([0, 2]), torch.rand(2)),
]


def record_of(entries: list[Any]) -> dict[str, Any]:
    """What the probe records of these entries on the virtual device, as make_facts reads it."""
    records = []
    with virtual_cuda():
        for entry in entries:
            recorded = probe.GpuProbe()
            recorded.probe_operator(entry)
            records.append(json.loads(json.dumps(recorded.record())))
    tables: dict[str, Any] = json.loads(json.dumps(probe.merge_records(records)))
    return tables


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return record_of(PROBED)


@pytest.mark.slow
# torch makes some of its samples with what newer NumPys deprecate
@pytest.mark.filterwarnings("ignore:The 'generic' unit for NumPy timedelta:DeprecationWarning")
def test_torchs_own_samples_can_be_probed() -> None:
    entries = probe.operator_database()
    record = record_of(
        [entries[name] for name in ("addmm", "angle", "index_fill", "nn.functional.embedding")]
    )
    made = refusal_facts.refusal_tables(record)["forbidden"]
    shipped = registry.measured_table("refusals")["forbidden"]
    assert {
        name: made[name] for name in ("aten.addmm.default", "aten.angle.default")
    }.items() <= shipped.items()
    placed = placement_facts.placement_tables(
        record, registry.measured_table("operators")["checks"]
    )
    assert placed["strict"]["aten.index_fill.int_Scalar"] == ["self"]


def test_refusals_made_from_a_probe_are_those_that_are_shipped(record: dict[str, Any]) -> None:
    made = refusal_facts.refusal_tables(record)
    shipped = registry.measured_table("refusals")
    for overload in ("aten.mm.default", "aten.angle.default"):
        assert made["forbidden"][overload] == shipped["forbidden"][overload]
    assert made["kernels"]["addmm_impl_cpu_"] == shipped["kernels"]["addmm_impl_cpu_"]
    assert (
        set(made["absent"])
        == {"aten.histogram.bin_ct", "aten.histogram.bins_tensor"}
        < set(shipped["absent"])
    )


def test_placement_made_from_a_probe_is_that_which_is_shipped(record: dict[str, Any]) -> None:
    made = placement_facts.placement_tables(record, registry.measured_table("operators")["checks"])
    shipped = registry.measured_table("placement")
    for overload in ("aten.embedding.default", "aten.put.default"):
        assert made["delegated"][overload] == shipped["delegated"][overload]
    assert made["strict"]["aten.logical_or.default"] == shipped["strict"]["aten.logical_or.default"]
    assert "aten.mm.default" not in made["delegated"]  # torch's own tables have it


def test_an_operator_that_ends_its_process_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def worker(command: list[str], **options: Any) -> None:
        """Dies at "b"."""
        names = command[command.index("--worker") + 1 :]
        started.append(names)
        with open(command[3], "w") as file:
            for name in names:
                print(json.dumps({"began": name}), file=file)
                if name == "b":
                    return
                print(json.dumps({"name": name, "record": {"of": name}}), file=file)

    monkeypatch.setattr(probe.subprocess, "run", worker)
    assert probe.probe_in_children(["a", "b", "c"], "cuda") == ([{"of": "a"}, {"of": "c"}], ["b"])
    assert started == [["a", "b", "c"], ["c"]]


def test_a_worker_that_does_not_even_start_is_not_tried_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe.subprocess, "run", lambda *args, **options: None)
    assert probe.probe_in_children(["a", "b"], "cuda") == ([], ["a", "b"])
