"""Tables from learning platforms are filled in for the right people, and refused when they do not
fit.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest
from gpudojo.model.errors import CannotExport
from gpudojo.model.results import (
    ClassResults,
    ExerciseRow,
    Grade,
    Override,
    RosterRow,
    SubmissionRow,
    SubmissionStatus,
)
from gpudojo.platforms import Options, exporter_of
from gpudojo.platforms._tables import spellings_of

from tests.gpudojo.platforms.export import readers
from tests.gpudojo.platforms.export.classes import CLASS, OPTIONS
from tests.gpudojo.platforms.export.golden import TABLES

GRADEBOOK = (TABLES / "gradebook.csv").read_text(encoding="utf-8")
WORKSHEET = (TABLES / "worksheet.csv").read_bytes().decode("utf-8")


def export(
    format_: str, folder: Path, text: str, results: ClassResults = CLASS, **more: object
) -> list[list[str]]:
    given = folder / "given.csv"
    given.write_bytes(text.encode("utf-8"))
    options = dataclasses.replace(OPTIONS, title="Day 0", worksheet=(given,), gradebook=given)
    options: Options = dataclasses.replace(options, **more)  # type: ignore[arg-type,no-redef]
    (written,) = exporter_of(format_)(results, results.submissions, folder / "out", options)
    return readers.read_csv(written, ";" if ";" in text else ",")


def refused(format_: str, folder: Path, text: str, **more: object) -> str:
    with pytest.raises(CannotExport) as caught:
        export(format_, folder, text, **more)  # type: ignore[arg-type]
    assert not (folder / "out").exists()
    return str(caught.value).removeprefix(f"cannot export to {format_}: ")


def test_canvas_changes_one_column_and_only_for_those_who_submitted(tmp_path: Path) -> None:
    lines = export("canvas", tmp_path, GRADEBOOK)
    assert lines[0] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "Day 0 (42)"]
    assert lines[1] == ["    Points Possible", "", "", "", "", "3"]
    assert [line[0::5] for line in lines[2:]] == [
        ["Lovelace, Ada", "1.9"],
        ["Ray, Bob", "3"],  # by name: his id is Moodle's
        ["Nobody, Here", "2"],
        ["Student, Test", ""],
    ]


def test_canvas_never_takes_another_platform_s_number_for_an_id(tmp_path: Path) -> None:
    row = msgspec.structs.replace(CLASS.submissions[1], identifier="103", student="Ray, Bob")
    lines = export("canvas", tmp_path, GRADEBOOK, msgspec.structs.replace(CLASS, submissions=[row]))
    assert [line[5] for line in lines[2:]] == ["", "3", "2", ""]


def test_canvas_says_what_fits_nobody_or_several(tmp_path: Path) -> None:
    said: list[str] = []
    twins = GRADEBOOK + '"Ray, Bob",105,s105,bob2,GPU 1,,,\n'
    rows = [
        *CLASS.submissions[:2],
        msgspec.structs.replace(CLASS.submissions[0], submission="ada again"),
    ]
    export(
        "canvas", tmp_path, twins, msgspec.structs.replace(CLASS, submissions=rows), say=said.append
    )
    assert said == [
        "1 student left out, in lines of several people: Bob Ray.",
        "1 student left out, the same person as 'ada': ada again.",
    ]


def test_two_of_one_name_are_told_apart_by_the_id_on_the_roster(tmp_path: Path) -> None:
    """The roster is often the same table.

    What was handed in has no id of Canvas, as from GitHub.
    """
    said: list[str] = []
    twins = GRADEBOOK + '"Ray, Bob",105,s105,bob2,GPU 1,,,\n'
    bob = msgspec.structs.replace(
        CLASS.submissions[1], identifier=None, roster=RosterRow("105", "Bob Ray")
    )
    for id_, there in (("105", ["1.5", "2", "", "3"]), ("999", ["1.5", "2", "", ""])):
        row = msgspec.structs.replace(bob, roster=RosterRow(id_, "Bob Ray"))
        lines = export(
            "canvas",
            tmp_path,
            twins,
            msgspec.structs.replace(CLASS, submissions=[row]),
            say=said.append,
        )
        assert [line[5] for line in lines[3:]] == there
    assert said == ["1 student left out, in lines of several people: Bob Ray."]


@pytest.mark.parametrize(
    "on_roster",
    [
        RosterRow("s105", "Bob Ray"),
        RosterRow("7", "Bob Ray", login="bob2"),
        RosterRow("7", "Bob Ray", email="Bob2"),
        RosterRow("7", "Bob Ray", more_ids=["s105"]),
    ],
    ids=["SIS user id", "login", "e-mail as login", "another id"],
)
def test_two_of_one_name_are_told_apart_by_what_the_gradebook_and_the_roster_share(
    tmp_path: Path, on_roster: RosterRow
) -> None:
    twins = GRADEBOOK + '"Ray, Bob",105,s105,bob2,GPU 1,,,\n'
    row = msgspec.structs.replace(CLASS.submissions[1], identifier=None, roster=on_roster)
    lines = export("canvas", tmp_path, twins, msgspec.structs.replace(CLASS, submissions=[row]))
    (bob,) = [line for line in lines if line[1] == "105"]
    assert bob[5] == "3"


def test_a_new_table_for_canvas_says_who_cannot_be_told_apart(tmp_path: Path) -> None:
    said: list[str] = []
    row = msgspec.structs.replace(CLASS.submissions[1], identifier=None, student="Bob Ray")
    rows = [row, msgspec.structs.replace(row, submission="bob-2")]
    results = msgspec.structs.replace(CLASS, submissions=rows)
    export("canvas", tmp_path, "", results, gradebook=None, say=said.append)
    assert [text for text in said if "Bob Ray" in text] == [
        "2 students are called 'Bob Ray', and nothing in their lines tells Canvas which is which; "
        "download the gradebook and give --gradebook FILE."
    ]


def test_a_new_table_for_canvas_has_ids_of_the_absent_where_the_roster_is_canvas_s(
    tmp_path: Path,
) -> None:
    """They are where one of them is in the name of a file that Canvas named."""
    ada = msgspec.structs.replace(CLASS.submissions[0], naming="canvas", identifier="101")
    eve = SubmissionRow(
        "Eve", SubmissionStatus.ABSENT, 0.0, 3.0, identifier="102", roster=RosterRow("102", "Eve")
    )
    for own, shown in (("101", "102"), ("s101", "")):
        rows = [msgspec.structs.replace(ada, roster=RosterRow(own, "Ada")), eve]
        results = msgspec.structs.replace(CLASS, submissions=rows)
        lines = export("canvas", tmp_path, "", results, gradebook=None)
        assert [line[1] for line in lines[2:]] == ["101", shown]


def test_what_was_given_to_the_absent_is_filled_in(tmp_path: Path) -> None:
    oral = ExerciseRow("oral", "Oral exam", 2.0, 3.0, by_hand=True, override=Override(2.0))
    eve = SubmissionRow("x", SubmissionStatus.ABSENT, 2.0, 3.0, [oral], student="Ada Lovelace")
    for row, there in ((eve, "2"), (msgspec.structs.replace(eve, exercises=[], score=0.0), "")):
        lines = export(
            "canvas", tmp_path, GRADEBOOK, msgspec.structs.replace(CLASS, submissions=[row])
        )
        assert next(line for line in lines if line[0] == "Lovelace, Ada")[5] == there


def test_canvas_is_told_of_a_new_assignment(tmp_path: Path) -> None:
    said: list[str] = []
    lines = export("canvas", tmp_path, GRADEBOOK, title="Day 9", say=said.append)
    assert lines[0][5] == "Day 9"
    assert said[
        0
    ] == "the gradebook has no assignment 'Day 9': Canvas will offer to create it. " + (
        "For one that is there, give --title: 'Day 7', 'Day 0'."
    )


def test_canvas_refuses_what_does_not_fit(tmp_path: Path) -> None:
    assert "has 10 points there and 3 here" in refused("canvas", tmp_path, GRADEBOOK, title="Day 7")
    assert "has no column 'Student'" in refused(
        "canvas", tmp_path, GRADEBOOK.replace("Student,", "Name,", 1)
    )
    assert "several assignments 'Day 0'" in refused(
        "canvas", tmp_path, GRADEBOOK.replace("Day 7", "Day 0")
    )
    assert refused("canvas", tmp_path, "").endswith("is empty")
    assert "not as a workbook" in refused("canvas", tmp_path, "PK\0\0")


def test_moodle_s_worksheet_is_filled_in_in_its_own_language(tmp_path: Path) -> None:
    lines = export("moodle", tmp_path, WORKSHEET)
    assert [line[4] for line in lines[1:]] == [
        "1,9",
        "3",
        "",
    ]  # Ada by name, Bob by id, the third has none
    assert [line[5] for line in lines[1:]] == ["3,00"] * 3
    assert lines[1][8].startswith(
        "1.9 of 3 points<br>01 f: no step; expected one (line 7) [-0.5 points]<br>"
    )
    written = (tmp_path / "out" / "given.csv").read_bytes()
    assert written.startswith(b"\xef\xbb\xbfIdentifier;")
    untouched = next(line for line in WORKSHEET.splitlines() if "2000103" in line)
    assert untouched in written.decode("utf-8")


def test_moodle_finds_its_columns_in_a_language_nobody_knows(tmp_path: Path) -> None:
    headings, _, rest = WORKSHEET.partition("\r\n")
    strange = ";".join(f"Q{number}" for number in range(headings.count(";") + 1))
    said: list[str] = []
    lines = export("moodle", tmp_path, f"{strange}\r\n{rest}", say=said.append)
    assert [line[4] for line in lines[1:]] == ["1,9", "3", ""]
    assert [line[8] for line in lines[1:]] == ["", "alt", ""]
    assert (
        f"{tmp_path / 'given.csv'} has no column for feedback; only grades are filled in." in said
    )


def test_moodle_s_feedback_is_text_and_never_markup(tmp_path: Path) -> None:
    row = msgspec.structs.replace(CLASS.submissions[4], naming="moodle", identifier="2000101")
    lines = export("moodle", tmp_path, WORKSHEET, msgspec.structs.replace(CLASS, submissions=[row]))
    assert lines[1][4] == "0"
    assert lines[1][8] == "0 of 3 points: =the file is &lt;b&gt;no&lt;/b&gt; Python: line 3"


def test_moodle_gets_no_more_than_its_maximum(tmp_path: Path) -> None:
    """It would refuse the line, and the student would have no grade."""
    row = msgspec.structs.replace(
        CLASS.submissions[0], naming="moodle", identifier="2000101", grade=Grade(3.5, 3.0)
    )
    said: list[str] = []
    results = msgspec.structs.replace(CLASS, submissions=[row])
    lines = export("moodle", tmp_path, WORKSHEET, results, say=said.append)
    assert lines[1][4] == "3"
    assert lines[1][8].startswith("3.5 of 3 points")
    assert said[0].startswith("students with more points than the maximum, for extra credit: 1;")


def test_moodle_refuses_what_does_not_fit(tmp_path: Path) -> None:
    assert "the maximum is 10,00" in refused("moodle", tmp_path, WORKSHEET.replace("3,00", "10,00"))
    assert "was not found" in refused("moodle", tmp_path, WORKSHEET.replace("3,00", "Gut"))
    assert "does not hold Moodle's identifiers" in refused("moodle", tmp_path, GRADEBOOK)
    assert "--worksheet" in refused("moodle", tmp_path, WORKSHEET, worksheet=())
    assert "cannot be read" in refused(
        "moodle", tmp_path, WORKSHEET, worksheet=(tmp_path / "none.csv",)
    )
    given = tmp_path / "given.csv"
    with pytest.raises(CannotExport, match="would be overwritten"):
        exporter_of("moodle")(
            CLASS, CLASS.submissions, tmp_path, dataclasses.replace(OPTIONS, worksheet=(given,))
        )


def test_spellings_of_a_name() -> None:
    assert {"lovelaceada", "adalovelace"} <= spellings_of("Lovelace, Ada") & spellings_of(
        "Ada Lovelace"
    )
    assert "mullerzoe" in spellings_of("Müller, Zoë")
    assert spellings_of(" ,") == set()


def test_a_new_table_for_canvas_gives_nothing_to_who_handed_in_nothing(tmp_path: Path) -> None:
    """Canvas takes an empty cell for no change, as in a table that is filled in."""
    said: list[str] = []
    absent = SubmissionRow("Eve", SubmissionStatus.ABSENT, 0.0, 3.0)
    oral = ExerciseRow("oral", "Oral", 2.0, 3.0, by_hand=True, override=Override(2.0))
    given = msgspec.structs.replace(absent, submission="Fay", score=2.0, exercises=[oral])
    results = msgspec.structs.replace(CLASS, submissions=[CLASS.submissions[0], absent, given])
    lines = export("canvas", tmp_path, "", results, gradebook=None, say=said.append)
    assert [line[-1] for line in lines[2:]] == ["1.9", "", "2"]
    assert said == [
        "1 on the roster handed in nothing; their cell is empty, and Canvas keeps what it has."
    ]


def test_prairielearn_says_that_extra_credit_is_cut(tmp_path: Path) -> None:
    said: list[str] = []
    rows = [msgspec.structs.replace(row, grade=Grade(12.0, 10.0)) for row in CLASS.submissions[:2]]
    options = dataclasses.replace(OPTIONS, say=said.append)
    exporter_of("prairielearn")(CLASS, rows, tmp_path, options)
    assert [line.partition(";")[0] for line in said] == [
        "students with more points than the maximum, for extra credit: 2"
    ]
    exporter_of("prairielearn")(
        CLASS, rows, tmp_path, dataclasses.replace(options, submission=rows[0].submission)
    )
    assert "extra credit: 1;" in said[1]
