"""Draws in the fork server what all its children would draw."""

from __future__ import annotations

import contextlib
import mmap

import msgspec

from gpudojo.model.catalogue import exercises_of
from gpudojo.model.exercise import Drawing
from gpudojo.sandbox import protocol


class SharedDrawings:
    """Draws what children with the same seeds would all draw: once, before they are forked.

    The process of one submission must not hold what belongs to another one: seeds are drawn from
    when they come a second time, as those of a class do, and what was drawn is dropped when others
    come. Of a job, which has a student's files in it, nothing but the seeds is copied.
    """

    def __init__(self) -> None:
        self._number = 0
        self._is_done = False
        self._made: list[Drawing] = []

    def prepare(self, number: int, job_end: int) -> bool:
        """Draw for the job in this file, whose seeds have this number, if they came before.

        `job_end` is the file's descriptor. What was drawn for other seeds is dropped. Returns True
        if something was drawn. An error while drawing is dropped: then each child draws for itself.
        """
        if number != self._number:
            self._number = number
            self._is_done = False
            self._drop()
            return False
        if self._is_done:
            return False
        self._is_done = True
        with contextlib.suppress(Exception):  # whatever it is: then each child draws for itself
            with mmap.mmap(job_end, 0, access=mmap.ACCESS_READ) as data:
                job = msgspec.msgpack.decode(data, type=protocol.Seeds)
            self._draw(job)
        return True

    def _drop(self) -> None:
        """Drop everything that was drawn."""
        while self._made:
            self._made.pop().draw.cache_clear()

    def _draw(self, job: protocol.Seeds) -> None:
        """Draw what the functions of a day draw from these seeds; the drawings remember it.

        Raises BadDay where the day cannot be imported, and what a drawing raises.
        """
        for exercise in exercises_of(job.day):
            for function in exercise.functions:
                keys = [
                    f"{exercise.stem}::{function.name}::{each.name}" for each in function.probes
                ]
                seeds = dict.fromkeys(job.seeds[key] for key in keys if key in job.seeds)
                for seed in seeds:
                    for drawing in function.drawings:
                        self._made.append(drawing)
                        drawing.draw_for(seed)
