"""Puts facts that a child has sent early in their places in the evidence of a function."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from gpudojo.model.errors import BadEvidence
from gpudojo.model.evidence import (
    DEEPEST,
    MOST_FACTS,
    SEALED,
    CallStatus,
    Evidence,
    decode_untrusted_bytes,
)


class _Fact(NamedTuple):
    """Facts that have arrived before the evidence that they belong to."""

    probe: str
    run: int
    facts: bytes


class SealedFacts:
    """The facts of one function that have left the child, by their numbers."""

    def __init__(self) -> None:
        self._facts: dict[int, _Fact] = {}

    def clear(self) -> None:
        """Forget all facts: another function begins."""
        self._facts.clear()

    def add(self, number: int, probe: str, run: int, facts: bytes) -> None:
        """Keep facts. Raises BadEvidence for a number that is there already."""
        if number in self._facts:
            raise BadEvidence("facts were sent twice")
        self._facts[number] = _Fact(probe, run, facts)

    def put_into(self, evidence: Evidence) -> None:
        """Put all facts in their places in the evidence of their function, which is changed.

        Raises BadEvidence where facts that were sent are missing in what their probe returned, or
        have more than one place: then something has changed it after they were sent. Of a probe
        that has begun again, those of the last time count. Raises it also for more lists and
        mappings than evidence may have: to look at millions of them would take too long.
        """
        count_down = itertools.count(MOST_FACTS, -1).__next__
        for probe, observation in evidence.observations.items():
            numbers: list[int] = []
            _replace_places(observation.facts, self._facts, numbers, 0, count_down)
            if observation.status is CallStatus.RETURNED:
                self._require_all_used(probe, numbers)

    def _require_all_used(self, probe: str, numbers: list[int]) -> None:
        """Raise BadEvidence unless all facts of a probe's last run have exactly one place.

        `numbers` are those of the places that were found.
        """
        last_run = max(
            (fact.run for fact in self._facts.values() if fact.probe == probe), default=0
        )
        sent = []
        for number, fact in self._facts.items():
            if fact.probe == probe and fact.run == last_run:
                sent.append(number)
        if sorted(numbers) != sorted(sent):
            raise BadEvidence(f"facts of `{probe}` were changed after they had been sent")


def _replace_places(
    facts: Any,
    sealed: dict[int, _Fact],
    numbers: list[int],
    depth: int,
    count_down: Callable[[], int],
) -> None:
    """Replace every place in a list or mapping by its facts, and add its number to `numbers`.

    Changes `facts`, which lies `depth` levels deep. `count_down` tells how many more lists and
    mappings there may be. Raises BadEvidence for a place without facts, for facts that cannot be
    decoded, and for lists and mappings that are too many or nested too deeply.
    """
    if depth > DEEPEST:
        raise BadEvidence("it is nested too deeply")
    if count_down() < 0:
        raise BadEvidence(f"it has more than {MOST_FACTS:,} lists and mappings")
    items: Iterable[tuple[Any, Any]]
    if type(facts) is dict:
        items = facts.items()
    else:
        items = enumerate(facts)
    for key, value in items:  # no key is added or removed
        kind = type(value)
        if kind is msgspec.msgpack.Ext and value.code == SEALED:
            number = int.from_bytes(value.data, "little")
            fact = sealed.get(number)
            if fact is None:
                raise BadEvidence("facts were never sent")
            numbers.append(number)
            facts[key] = decode_untrusted_bytes(msgspec.msgpack.decode, fact.facts)
            # Facts of a scenario may hold those of its calls.
            value = facts[key]
            kind = type(value)
        if kind is dict or kind is list:
            _replace_places(value, sealed, numbers, depth + 1, count_down)
