"""Sends what was seen out of the process before student code runs again.

A probe calls a student's function many times, and describes each call in plain data. Until the
probe is done, that would lie in the student's process, where code of a later call could change it.
So the sandbox has it sent at once. What stays is a number, by which the grader puts it in its place
(`gpudojo.sandbox.sealed_facts`). In a student's own run nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from gpudojo.grading.limits import probe_running
from gpudojo.model.evidence import LARGEST_OBSERVATION, SEALED, Case, plain_facts

T = TypeVar("T")


class LeavingFacts(NamedTuple):
    """Facts that leave the process."""

    number: int
    probe: str
    run: int  # of the probe, which may begin again
    facts: bytes  # encoded


@dataclass
class _State:
    """How facts leave this process, and how many have."""

    send: Callable[[LeavingFacts], None] | None = None  # None: they stay
    count: int = 0
    run: int = 0


_state: Final = _State()


def send_facts_by(send: Callable[[LeavingFacts], None]) -> None:
    """Have facts sent from now on. For the sandbox, once in a process."""
    _state.send = send


def begin_run() -> None:
    """Note that a probe begins, perhaps again: what was sealed before is of no use."""
    _state.run += 1


def seal(facts: T) -> T:
    """Send facts out of the process, and return what stands for them in evidence.

    In a student's own run nothing is sent, and the facts themselves are returned. So they are if
    they cannot be encoded or are too large: whoever records the evidence says so. What is sent is
    counted. Raises what the sending function raises.
    """
    if _state.send is None:
        return facts
    try:
        encoded = msgspec.msgpack.encode(plain_facts(facts))
    except Exception:  # of a value of the student's, whatever its methods raise
        return facts
    if len(encoded) > LARGEST_OBSERVATION:
        return facts
    number = _state.count
    _state.count += 1
    _state.send(LeavingFacts(number, probe_running(), _state.run, encoded))
    place: Any = msgspec.msgpack.Ext(SEALED, number.to_bytes(4, "little"))
    return place  # type: ignore[no-any-return]


def seal_cases(found: T) -> T:
    """Send what a scenario returned out of the process, if that is facts: a case, or cases by name.

    Returns what stands for it in evidence, and anything else as it is. Raises what sending raises.
    """
    if _are_cases(found):
        return seal(found)
    return found


def _are_cases(found: object) -> bool:
    """True for a case, and for a dict of nothing but cases."""
    if isinstance(found, Case):
        return True
    if type(found) is not dict or not found:
        return False
    return all(isinstance(each, Case) for each in found.values())
