"""A results file is complete or absent, is read as it was written, and is refused with a sentence
otherwise.
"""

from __future__ import annotations

import contextlib
import csv
import json
import tempfile
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path

import jsonschema
import msgspec
import pytest
from gpudojo.model.errors import BadResults
from gpudojo.model.results import ClassResults, SubmissionRow, SubmissionStatus
from gpudojo.model.results_csv import LAST_COLUMNS, open_table, spreadsheet_safe
from gpudojo.model.results_file import (
    SCHEMA_PATH,
    encode_json,
    exact_points,
    format_points,
    header,
    iterate,
    read,
    replacing_file,
    results_schema,
    schema_text,
    write,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.gpudojo.platforms.export.classes import CLASS


def write_table(path: Path, rows: Iterable[SubmissionRow], exercises: list[str]) -> None:
    with open_table(path, exercises) as write_row:
        for row in rows:
            write_row(row)


def saved(path: Path) -> Path:
    write(path, msgspec.structs.replace(CLASS, submissions=[]), CLASS.submissions)
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = saved(tmp_path / "results.json")
    assert read(path) == CLASS
    assert list(iterate(path)) == CLASS.submissions
    assert header(path) == msgspec.structs.replace(CLASS, submissions=[])
    before = path.read_bytes()
    saved(path)
    assert path.read_bytes() == before
    lines = before.decode().splitlines()
    assert len(lines) == len(CLASS.submissions) + 2  # a submission is a line, whatever is in it
    assert next(iter(json.loads(before))) == "version"


def test_another_layout_of_the_same_json_is_read(tmp_path: Path) -> None:
    path = saved(tmp_path / "results.json")
    path.write_text(
        "\ufeff" + json.dumps(json.loads(path.read_bytes()), indent=2), encoding="utf-8"
    )
    assert read(path) == CLASS
    assert list(iterate(path)) == CLASS.submissions
    assert header(path).submissions == []


def test_a_class_without_submissions(tmp_path: Path) -> None:
    write(tmp_path / "results.json", CLASS, [])
    assert read(tmp_path / "results.json").submissions == []
    assert list(iterate(tmp_path / "results.json")) == []


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    path = saved(tmp_path / "results.json")
    before = path.read_bytes()

    def broken() -> Iterator[SubmissionRow]:
        yield CLASS.submissions[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(path, CLASS, broken())
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["results.json"]


def test_rows_are_not_held(tmp_path: Path) -> None:
    row = msgspec.structs.replace(CLASS.submissions[0], output="x" * 100_000)
    path = tmp_path / "results.json"
    tracemalloc.start()
    try:
        write(path, CLASS, (row for _ in range(200)))
        assert sum(1 for _ in iterate(path)) == 200
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 20_000_000
    assert peak < 3_000_000


def test_halves_of_characters_do_not_stop_a_class(tmp_path: Path) -> None:
    row = SubmissionRow(
        "b\udcff", SubmissionStatus.CRASHED, 0.0, 10.0, reason="\ud83d", output="\udc00"
    )
    assert b"b\\\\udcff" in encode_json(row)
    write(tmp_path / "results.json", CLASS, [row])
    assert read(tmp_path / "results.json").submissions[0].submission == "b\\udcff"
    write_table(tmp_path / "results.csv", [row], [])
    assert "b\\udcff" in (tmp_path / "results.csv").read_text(encoding="utf-8")


def test_no_name_reaches_a_table_as_it_is(tmp_path: Path) -> None:
    name = "a\x1b[2J\u202egp.exe\r\n=1"
    row = SubmissionRow(name, SubmissionStatus.CRASHED, 0.0, 10.0, student=name, needs_human=[name])
    write_table(tmp_path / "results.csv", [row], [])
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as file:
        _, line = csv.reader(file)
    assert line[:2] == ["a⟨U+001B⟩[2J⟨U+202E⟩gp.exe⟨U+000D⟩⟨U+000A⟩=1"] * 2
    assert line[-2] == "a⟨U+001B⟩[2J⟨U+202E⟩gp.exe⟨U+000D⟩\n=1"


@given(
    at=st.integers(0, 100_000),
    by=st.integers(1, 255),
    cut=st.integers(0, 3),
    more=st.binary(max_size=20),
)
def test_a_file_with_other_bytes_is_results_or_refused_with_a_sentence(
    at: int, by: int, cut: int, more: bytes
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = saved(Path(folder) / "results.json")
        data = bytearray(path.read_bytes())
        data[at % len(data)] ^= by
        path.write_bytes(data[: len(data) - cut] + more)
        for reading in (read, lambda path: list(iterate(path)), header):
            with contextlib.suppress(BadResults):
                reading(path)


def test_the_schema_is_fresh_and_a_real_file_fits_it(tmp_path: Path) -> None:
    assert SCHEMA_PATH.read_text(encoding="utf-8") == schema_text(), (
        "run: python -m gpudojo.model.results_file"
    )
    validator = jsonschema.Draft202012Validator(results_schema())
    validator.check_schema(results_schema())
    real = json.loads(saved(tmp_path / "results.json").read_bytes())
    validator.validate(real)
    real["submissions"][0]["status"] = "fine"
    assert not validator.is_valid(real)
    assert not validator.is_valid({key: value for key, value in real.items() if key != "version"})


def changed(path: Path, **fields: object) -> Path:
    data = json.loads(saved(path).read_bytes())
    for field, value in fields.items():
        if field in ClassResults.__struct_fields__:
            data[field] = value
        else:
            data["submissions"][0][field] = value
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"version": 2}, "it has version 2, and this gpudojo reads version 1"),
        ({"version": "1"}, "it is JSON, but not what `dojo grade` writes"),
        ({"torch": None}, r"Expected `str`, got `null` - at `\$.torch`"),
        ({"status": "fine"}, r"Invalid enum value 'fine' - at `\$.submissions\[0\].status`"),
        ({"score": -1}, "Expected `float` >= 0"),
        (
            {"score": 2.75},
            (
                r"in the submission 'ada': the score of the submission is 2.75, but its parts add "
                r"up to 1.9"
            ),
        ),
        ({"max_score": 1e400}, "out of range"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_a_sentence(
    tmp_path: Path, fields: dict[str, object], sentence: str
) -> None:
    path = changed(tmp_path / "results.json", **fields)
    path.write_text(path.read_text().replace("Infinity", "1e400"))
    for reading in (read, lambda path: list(iterate(path))):
        with pytest.raises(BadResults, match=sentence) as caught:
            reading(path)
        assert str(caught.value).startswith(f"{path} is not a file of results: ")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"{}", b"[]", b"null", b'{"version":1}']
)
def test_what_is_no_file_of_results_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(content)
    for reading in (read, header, lambda path: list(iterate(path))):
        with pytest.raises(BadResults, match=r"it is not JSON|it is JSON, but not"):
            reading(path)


def test_a_file_that_was_cut_off_or_is_not_there(tmp_path: Path) -> None:
    path = saved(tmp_path / "results.json")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))
    with pytest.raises(BadResults, match="it ends in the middle"):
        list(iterate(path))
    with pytest.raises(BadResults, match="it cannot be read: No such file"):
        read(tmp_path / "none.json")


def test_points_that_exceed_the_maximum_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write(path, CLASS, [msgspec.structs.replace(CLASS.submissions[0], max_score=2.0)])
    with pytest.raises(BadResults, match=r"has 1\.9 of 2 points, and parts worth 3"):
        read(path)


def test_the_table_has_a_line_for_each_submission(tmp_path: Path) -> None:
    write_table(tmp_path / "results.csv", CLASS.submissions, ["01_one", "02_two"])
    with (tmp_path / "results.csv").open(encoding="utf-8-sig", newline="") as file:
        headings, *lines = csv.reader(file)
    who = ["submission", "student", "id", "email", "section"]
    first = [*who, "status", "score", "max_score", "01_one", "02_two"]
    assert headings == [*first, *(column.heading for column in LAST_COLUMNS)]
    assert {"reason", "late", "notes"} < set(headings)
    assert len(lines) == len(CLASS.submissions)
    assert lines[0][:2] == ["ada", "Lovelace, Ada"]
    assert lines[0][5:10] == ["graded", "1.9", "3", "1.5", "0.4"]
    more = dict(zip(headings, lines[0], strict=True))
    assert (more["points"], more["out_of"], more["late"], more["needs_human"]) == (
        "1.9",
        "3",
        "",
        "",
    )
    assert [line[8:10] for line in lines if line[5] == "unreadable"] == [["", ""]]
    assert not [cell for line in lines for cell in line if cell.startswith(("=", "+", "-", "@"))]


def test_a_cell_is_never_a_formula() -> None:
    for cell in ("=1+1", "+a", "-x", "@SUM(A1)", "\t=1", "\r=1", "-"):
        assert spreadsheet_safe(cell) == "'" + cell
    for cell in ("-1.5", "+3", "ada", "", "1-2"):
        assert spreadsheet_safe(cell) == cell


def test_people_read_two_decimals_and_programs_all_of_them() -> None:
    points = (14.0, 0.25, 67.547619, 4.825, 0.000001, 100.0)
    assert [format_points(each) for each in points] == ["14", "0.25", "67.55", "4.83", "0", "100"]
    assert [exact_points(each) for each in points] == [
        "14",
        "0.25",
        "67.547619",
        "4.825",
        "0.000001",
        "100",
    ]


def test_what_cannot_be_written_has_the_name_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken.csv").mkdir()
    for path in (
        tmp_path / "file" / "gradebook.csv",
        tmp_path / "gone" / "gradebook.csv",
        tmp_path / "taken.csv",
    ):
        with pytest.raises(OSError, match=f"{path.name}'") as caught, replacing_file(path):
            pass
        assert caught.value.filename == str(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "taken.csv"]
