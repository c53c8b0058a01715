"""What the fork server draws for children that have the same seeds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from gpudojo.grading.load import load_submission
from gpudojo.grading.observe import observe_function
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.exercise import Drawing, Exercise, Function
from gpudojo.sandbox.protocol import Job
from gpudojo.sandbox.shared_drawings import SharedDrawings

DRAWN = [(e, f, d) for e in exercises_of("day8") for f in e.functions for d in f.drawings]


def kept() -> int:
    """How many results are kept."""
    return sum(drawing.draw.cache_info().currsize for _, _, drawing in DRAWN)


@pytest.fixture
def nothing_kept() -> Iterator[None]:
    for _, _, drawing in DRAWN:
        drawing.draw.cache_clear()
    yield
    for _, _, drawing in DRAWN:
        drawing.draw.cache_clear()


def job(path: Path, seed: int) -> int:
    probes = [
        f"{e.stem}::{f.name}::{p.name}"
        for e in exercises_of("day8")
        for f in e.functions
        for p in f.probes
    ]
    made = Job(
        day="day8",
        bench="virtual",
        seeds=dict.fromkeys(probes, seed),
        known=frozenset(),
        token=b"",
        files={"a.py": b"a student's"},
        skip=frozenset(),
    )
    path.write_bytes(msgspec.msgpack.encode(made))
    return os.open(path, os.O_RDONLY)


@pytest.mark.usefixtures("nothing_kept")
def test_seeds_are_drawn_from_when_they_come_a_second_time_and_forgotten_when_others_come(
    tmp_path: Path,
) -> None:
    drawings = SharedDrawings()
    first = job(tmp_path / "first", 3)
    other = job(tmp_path / "other", 4)
    try:
        assert [drawings.prepare(1, first), kept()] == [False, 0]
        assert drawings.prepare(1, first)
        assert kept() >= len(DRAWN)
        assert not drawings.prepare(1, first)
        assert [drawings.prepare(2, other), kept()] == [False, 0]
        assert drawings.prepare(2, other)
    finally:
        os.close(first)
        os.close(other)


@pytest.mark.usefixtures("nothing_kept")
def test_a_job_that_cannot_be_read_is_left_to_the_children(tmp_path: Path) -> None:
    (tmp_path / "job").write_bytes(b"no job")
    end = os.open(tmp_path / "job", os.O_RDONLY)
    try:
        drawings = SharedDrawings()
        drawings.prepare(1, end)
        drawings.prepare(1, end)
        assert kept() == 0
    finally:
        os.close(end)


def tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return (
        [tensor for each in value for tensor in tensors(each)]
        if isinstance(value, (tuple, list))
        else []
    )


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize(
    "drawing", [pytest.param(d, id=f"{e.number} {f.name}") for e, f, d in DRAWN]
)
def test_drawing_again_gives_the_same_and_takes_nothing_from_the_callers_generator(
    drawing: Drawing,
) -> None:
    for arguments in drawing.every(5):
        before = torch.random.get_rng_state()
        first = tensors(drawing.draw(*arguments))
        assert torch.equal(torch.random.get_rng_state(), before)
        again = tensors(drawing.draw.__wrapped__(*arguments))
        assert first
        assert all(map(torch.equal, first, again))


SPOILS = """
import torch

def spoil(value, depth=0):
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            value.detach().zero_()
    elif isinstance(value, torch.nn.Module):
        for each in (*value.parameters(), *value.buffers()):
            spoil(each)
    elif isinstance(value, dict):
        spoil(list(value.values()))
    elif hasattr(value, "__iter__") and not isinstance(value, str) and depth < 4:
        for each in value:
            spoil(each, depth + 1)

def {name}(*args, **named):
    spoil([args, named])
    return args[0]
"""


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize("bench", ["virtual", "cpu"])
@pytest.mark.parametrize(
    ("exercise", "function"), [pytest.param(e, f, id=f"{e.number} {f.name}") for e, f, _ in DRAWN]
)
def test_what_was_drawn_is_not_in_reach_of_a_function_that_writes_into_its_arguments(
    exercise: Exercise, function: Function, bench: str, tmp_path: Path
) -> None:
    path = tmp_path / f"{exercise.stem}.py"
    path.write_text(SPOILS.format(name=function.name), encoding="utf-8")
    observe_function(exercise, function, load_submission(path), bench, 5)
    assert kept()
    for drawing in function.drawings:
        for arguments in drawing.every(5):
            drawn = drawing.draw(*arguments)
            again = drawing.draw.__wrapped__(*arguments)
            assert all(map(torch.equal, tensors(drawn), tensors(again)))
