"""What is a student's repository? Stubs, the grader with the references' evidence, pages, and what other parts add."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from graders.curriculum import day
from graders.errors import BadMarkers, CannotRelease
from graders.release import leaks, parts, recording, seals, tree
from graders.release.pages import pages
from graders.release.stubs import stubs
from graders.release.wheel import wheel

SHOWN = 3  # how many leaks a refusal names


def release(root: Path, name: str, target: Path, seeds: Sequence[int] = recording.SEEDS) -> dict[str, bytes]:
    """Write the repository for a day into a new folder; gives its files by path."""
    tree.refuse_if_taken(target)  # before the minutes that the rest may take
    reference = root / "reference" / name
    exercises = open_stubs(reference, name)
    evidence = recording.recorded(reference, name, seeds)
    files = repository(root, name, exercises, evidence)
    refuse_leaks(files, reference)
    tree.write(files, target)
    return files


def repository(root: Path, name: str, exercises: dict[str, bytes], evidence: bytes) -> dict[str, bytes]:
    """Every file by its path, relative to the student's repository."""
    wheel_name, wheel_data = wheel({name: evidence})
    files = {f"vendor/{wheel_name}": wheel_data} | exercises
    for part in parts():
        _add(files, part(root, name), part.__module__)
    _add(files, pages(name, wheel_name, files), pages.__module__)
    for seal in seals():
        files |= seal(files, name)
    return files


def _add(files: dict[str, bytes], added: dict[str, bytes], by: str) -> None:
    twice = sorted(added.keys() & files.keys())
    if twice:
        raise CannotRelease(f"{twice[0]} would be written twice, by {by} and by another part")
    files |= added


def open_stubs(reference: Path, name: str) -> dict[str, bytes]:
    """The stubs of a day by path; a sentence where one is missing or already solved."""
    from graders.probes.loading import bindings, parse

    if not reference.is_dir():
        raise CannotRelease(f"there is no folder {reference} to make stubs from")
    try:
        made = stubs(reference)
    except BadMarkers as error:
        raise CannotRelease(f"the markers of a solution do not match: {error}") from None
    for exercise in day(name):
        file = f"{exercise.stem}.py"
        if file not in made:
            raise CannotRelease(f"{reference / file} is missing")
        if made[file] == (reference / file).read_text(encoding="utf-8"):
            raise CannotRelease(f"{reference / file} has no solution markers: students would get the solution")
        todo = {function: stub for function, _, stub in bindings(parse(made[file], reference / file))}
        for function in exercise.functions:
            valued = any(probe.machine == "value" for probe in function.probes)
            if not valued and not todo.get(function.name):
                raise CannotRelease(
                    f"{reference / file}: no solution markers stand around the solution of `{function.name}`"
                )
    return {f"exercises/{name}/{file}": text.encode() for file, text in made.items()}


def refuse_leaks(files: dict[str, bytes], reference: Path) -> None:
    found = leaks.leaks(files, reference)
    if found:
        shown = "; ".join(map(str, found[:SHOWN]))
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise CannotRelease(f"nothing was written, because students would get a solution: {shown}{more}")
