"""An export holds one submission at a time, whatever the size of the class, and reads each only a
few times.
"""

from __future__ import annotations

import dataclasses
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from gpudojo.classes.store import Store
from gpudojo.model.results_file import StoredRows, header, write
from gpudojo.platforms import Options, _tables, exporter_of, format_names

from tests.gpudojo.platforms.export.classes import CLASS, OPTIONS, F, P, one, submission, two

FEW = 20
MANY = 400
DIGEST = "d" * 64  # of what everybody handed in
LONG = (
    "x" * 20_000
)  # what a row weighs, where a class of a bearable size must tell one row from all of them


def results(path: Path, count: int) -> Path:
    rows = (
        submission(
            f"s{i:04}",
            one(P, F, P),
            two(P, P, F, P),
            output=LONG + str(i),
            digest=DIGEST,
            public_scenarios=True,
        )
        for i in range(count)
    )
    write(path, msgspec.structs.replace(CLASS, submissions=[]), rows)
    return path


def peak(path: Path, format_: str, target: Path) -> int:
    options = OPTIONS
    if format_ == "moodle":
        sheet = path.with_suffix(".csv")
        lines = [f"Participant {i},s{i:04},,3,comment" for i in range(MANY)]
        sheet.write_text(
            "\n".join(["Identifier,Full name,Grade,Maximum Grade,Feedback comments", *lines])
        )
        options = dataclasses.replace(OPTIONS, worksheet=(sheet,))
    if format_ == "jplag":
        options = dataclasses.replace(OPTIONS, results=path.parent)
        Store(path.parent).keep_sources(DIGEST, {"01_checking_device.py": b"import torch\n"})
    tracemalloc.start()
    try:
        exporter_of(format_)(header(path), StoredRows(path), target, options)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("format_", format_names())
def test_twenty_times_the_class_takes_little_more_memory(tmp_path: Path, format_: str) -> None:
    peak(results(tmp_path / "warm.json", 2), format_, tmp_path / "warm")
    few = peak(results(tmp_path / "few.json", FEW), format_, tmp_path / "few")
    many = results(tmp_path / "many.json", MANY)
    # A second time only if need be: once in a while Python enlarges its table of names, by
    # megabytes at a stroke.
    more = (peak(many, format_, tmp_path / "many") - few for _ in range(2))
    assert any(each < (MANY - FEW) * len(LONG) / 4 for each in more)


def test_names_of_a_table_are_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[str]()
    spellings = _tables.spellings_of
    monkeypatch.setattr(_tables, "spellings_of", lambda name: taken.append(name) or spellings(name))
    table = {place: _tables.ListedPerson(str(place), f"s{place:04}") for place in range(MANY)}
    rows = [submission(f"s{i:04}", one(P, F, P)) for i in range(MANY)]
    found = dict(_tables.match_lines(table, rows, "moodle", Options()))
    assert [row.submission for row in found.values()] == [person.name for person in table.values()]
    assert len(taken) == MANY
