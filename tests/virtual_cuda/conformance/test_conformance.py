"""The virtual device agrees with the real GPU at least as far as it did."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import cache

import pytest
import torch

from tests.sharing import once
from tests.virtual_cuda.conformance import corpus as corpora
from tests.virtual_cuda.conformance import pins
from tests.virtual_cuda.conformance.compare import Difference, differences, tallies
from tests.virtual_cuda.conformance.corpus import Corpus, Record
from tests.virtual_cuda.conformance.run import run

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the runner forks"),
]
each_corpus = pytest.mark.parametrize("name", corpora.names())
on_pinned_torch = pytest.mark.skipif(
    torch.__version__.partition("+")[0] != pins.read_agreement()["torch"],
    reason=f"exact counts were pinned on torch {pins.read_agreement()['torch']}",
)


Tried = Callable[[str], tuple[Corpus, dict[str, Record]]]


@pytest.fixture(scope="session")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    """A whole corpus and what came of it; all are run once, however many tests and workers ask."""

    @cache
    def every() -> dict[str, tuple[Corpus, dict[str, Record]]]:
        loaded = corpora.load_all()
        records = once(tmp_path_factory, "conformance", lambda _: run(*loaded))
        return {
            corpus.name: (corpus, {id_: records[id_] for id_ in corpus.snippets})
            for corpus in loaded
        }

    return lambda name: every()[name]


@pytest.mark.slow
@each_corpus
def test_no_snippet_kills_its_process(tried: Tried, name: str) -> None:
    _, records = tried(name)
    assert {id_: r["message"] for id_, r in records.items() if r["outcome"] == "crash"} == {}


@pytest.mark.slow
@each_corpus
def test_agreement_is_high_enough_on_any_torch(tried: Tried, name: str) -> None:
    corpus, records = tried(name)
    reached = {aspect: tally.percent for aspect, tally in tallies(corpus.golden, records).items()}
    wanted = pins.read_agreement()["at_least_percent"]
    assert {
        aspect: percent for aspect, percent in reached.items() if percent < wanted[aspect]
    } == {}


@pytest.mark.slow
@each_corpus
@on_pinned_torch
def test_agreement_is_the_pinned_one(tried: Tried, name: str) -> None:
    corpus, records = tried(name)
    changes = pins.describe_changes(pins.pinned_tallies(name), tallies(corpus.golden, records))
    assert not changes, "\n".join(
        [*changes, "(raise pins with: python -m tests.virtual_cuda.conformance --pin)"]
    )


@pytest.mark.slow
@on_pinned_torch
def test_every_difference_has_a_reason_and_every_reason_a_difference(tried: Tried) -> None:
    known = pins.known_differences()
    real: list[Difference] = []
    for corpus, records in map(tried, corpora.names()):
        real += differences(corpus.golden, records)
    assert pins.differences_without_reason(real, known) == []
    assert pins.reasons_without_difference(real, known) == []


@on_pinned_torch
def test_a_sample_differs_only_as_listed(tried: Tried, request: pytest.FixtureRequest) -> None:
    sample = [
        dataclasses.replace(
            corpus, snippets={id_: corpus.snippets[id_] for id_ in sorted(corpus.snippets)[::10]}
        )
        for corpus in corpora.load_all()
    ]
    if request.config.option.markexpr == "not slow":
        records = run(*sample)
    else:  # all of it is run anyway
        records = {id_: tried(corpus.name)[1][id_] for corpus in sample for id_ in corpus.snippets}
    real: list[Difference] = []
    for corpus in sample:
        golden = {id_: corpus.golden[id_] for id_ in corpus.snippets}
        real += differences(golden, {id_: records[id_] for id_ in golden})
    assert len(records) > 140
    assert pins.differences_without_reason(real, pins.known_differences()) == []
