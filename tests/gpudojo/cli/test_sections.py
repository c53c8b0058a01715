"""Tables of sections: one worksheet of Moodle for each, exported apart or together."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from gpudojo.classes.store import FOLDER
from gpudojo.cli import main
from gpudojo.model.results import (
    ExerciseRow,
    Grade,
    Override,
    RosterRow,
    SubmissionRow,
    SubmissionStatus,
)
from gpudojo.model.results_file import write
from gpudojo.platforms._texts import lines_for_student

from tests.gpudojo.report.classes import header, submission

HEADINGS = "Identifier,Full name,Email address,Grade,Maximum Grade,Feedback comments\n"


def student(number: int, name: str, grade: Grade | None = None) -> SubmissionRow:
    """Somebody who is known by Moodle's number on the roster alone."""
    row = submission(3, name, "no")
    return msgspec.structs.replace(
        row,
        student=name,
        identifier=None,
        naming=None,
        grade=grade,
        roster=RosterRow(str(number), name, f"{number}@x.org", participant=str(number)),
    )


def absent(number: int, name: str) -> SubmissionRow:
    row = student(number, name)
    return SubmissionRow(name, SubmissionStatus.ABSENT, 0.0, row.max_score, roster=row.roster)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A class of three sections, with a worksheet for each."""
    (tmp_path / FOLDER).mkdir()
    rows = [student(1, "Ada"), student(2, "Bo"), student(3, "Cy"), absent(4, "Di")]
    publish(tmp_path, *rows)
    maximum = rows[0].max_score
    for section, people in {
        "A": [(1, "Ada")],
        "B": [(2, "Bo")],
        "C": [(3, "Cy"), (4, "Di")],
    }.items():
        lines = [f"Participant {id_},{name},{id_}@x.org,,{maximum:g},\n" for id_, name in people]
        (tmp_path / f"{section}.csv").write_text(HEADINGS + "".join(lines), encoding="utf-8")
    return tmp_path


def publish(folder: Path, *rows: SubmissionRow) -> None:
    write(folder / "results.json", header(), list(rows))


def dojo(*words: str | Path, fails: bool = False) -> str:
    result = CliRunner().invoke(main, list(map(str, words)))
    assert (result.exit_code != 0) == fails, result.output
    return result.output


def export(folder: Path, section: str, out: str) -> str:
    sheet = folder / f"{section}.csv"
    return dojo("export", folder, "--to", "moodle", "--worksheet", sheet, "--out", folder / out)


def status_of(folder: Path) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = json.loads(dojo("status", folder, "--json"))["written"]
    return written


def test_each_section_is_compared_with_its_own_students(folder: Path) -> None:
    for section in "ABC":
        export(folder, section, f"exported-{section}")
    publish(
        folder, student(1, "Ada"), student(2, "Bo"), student(3, "Cy", Grade(1, 12)), absent(4, "Di")
    )
    export(folder, "A", "exported-A")
    changed = {
        each["folder"]: [row["name"] for row in each["changed"]] for each in status_of(folder)
    }
    assert changed == {"exported-A": [], "exported-B": [], "exported-C": ["Cy"]}
    said = dojo("status", folder)
    assert "0 changed since the export moodle of" in said
    assert f"--out {folder / 'exported-C'} --worksheet {folder / 'C.csv'}" in said
    assert f"again: dojo export {folder} --to moodle --out {folder / 'exported-A'}" not in said


def test_who_hands_in_later_is_new_in_the_own_section_alone(folder: Path) -> None:
    for section in "BC":
        export(folder, section, f"exported-{section}")
    publish(folder, student(1, "Ada"), student(2, "Bo"), student(3, "Cy"), student(4, "Di"))
    changed = {
        each["folder"]: [row["name"] for row in each["changed"]] for each in status_of(folder)
    }
    assert changed == {"exported-B": [], "exported-C": ["Di"]}


def test_sections_in_one_folder_stay_beside_each_other(folder: Path) -> None:
    for section in "ABCA":
        assert "deleted" not in export(folder, section, "out")
    assert sorted(path.name for path in (folder / "out").glob("*.csv")) == [
        "A.csv",
        "B.csv",
        "C.csv",
    ]
    assert len(status_of(folder)) == 3


def test_a_table_that_was_written_over_is_not_in_use(folder: Path) -> None:
    (folder / "again").mkdir()
    (folder / "again" / "A.csv").write_bytes((folder / "A.csv").read_bytes())
    export(folder, "A", "out")
    export(folder, "again/A", "out")
    assert len(status_of(folder)) == 1


def test_several_worksheets_are_filled_in_at_once(folder: Path) -> None:
    words = ["export", folder, "--to", "moodle", "--out", folder / "out"]
    for section in "AC":
        words += ["--worksheet", folder / f"{section}.csv"]
    said = dojo(*words)
    assert "1 student left out, in no line of the table: Bo." in said
    assert "1 on the roster handed in nothing" in said
    assert sorted(path.name for path in (folder / "out").glob("*.csv")) == ["A.csv", "C.csv"]
    (output,) = status_of(folder)
    assert output["again"].count("--worksheet") == 2


def test_worksheets_of_one_name_are_refused(folder: Path) -> None:
    (folder / "again").mkdir()
    (folder / "again" / "A.csv").write_bytes((folder / "A.csv").read_bytes())
    words = ["--worksheet", folder / "A.csv", "--worksheet", folder / "again" / "A.csv"]
    said = dojo("export", folder, "--to", "moodle", "--out", folder / "out", *words, fails=True)
    assert "two worksheets are called A.csv; give one of them another name" in said


def test_an_error_is_all_that_is_said(folder: Path) -> None:
    sheet = folder / "B.csv"
    sheet.write_text(sheet.read_text(encoding="utf-8").replace(",20,", ",10,"), encoding="utf-8")
    words = ["--to", "moodle", "--out", folder / "out", "--worksheet", sheet]
    said = dojo("export", folder, *words, fails=True)
    assert "the maximum is 10" in said
    assert "left out" not in said


def test_a_namesake_in_another_section_is_somebody_else(folder: Path) -> None:
    """Neither has a file that Moodle named."""
    publish(folder, student(1, "Ada"), msgspec.structs.replace(student(9, "Bo"), submission="Bo 2"))
    assert "2 students left out, in no line of the table: Ada" in export(folder, "B", "out")
    assert "Participant 2,Bo,2@x.org,," in (folder / "out" / "B.csv").read_text(encoding="utf-8")


def test_feedback_finds_moodles_numbers_on_the_roster(folder: Path) -> None:
    dojo("feedback", folder, "--out", folder / "pages")
    with zipfile.ZipFile(folder / "pages" / "moodle.zip") as archive:
        names = archive.namelist()
    assert [name.partition("/")[0] for name in names] == [
        "Ada_1_assignfeedback_file_",
        "Bo_2_assignfeedback_file_",
        "Cy_3_assignfeedback_file_",
    ]
    words = ["--worksheet", folder / "A.csv", "--worksheet", folder / "B.csv"]
    said = dojo("feedback", folder, "--out", folder / "pages", *words)
    assert "1 page not in the zip for Moodle, because these students are not in" in said


def test_changes_of_points_are_counted_as_the_history_counts_them(folder: Path) -> None:
    rows = [student(1, "Ada"), student(2, "Bo", Grade(1, 12)), student(3, "Cy")]
    publish(folder, *rows)
    dojo("export", folder, "--to", "gradescope", "--out", folder / "out")
    rows[0] = msgspec.structs.replace(rows[0], reason="Looked at.")
    rows[1] = msgspec.structs.replace(rows[1], grade=Grade(2, 12))
    publish(folder, *rows)
    said = dojo("status", folder)
    assert "2 changed since the export gradescope of" in said
    assert ", 1 with other points\n" in said


def test_who_handed_in_nothing_is_new_with_points_by_hand(folder: Path) -> None:
    """And nothing is still to be graded by hand."""
    oral = ExerciseRow("oral", "Oral exam", 0.0, 3.0, by_hand=True)
    talk = ExerciseRow("talk", "Talk", 2.0, 3.0, by_hand=True, override=Override(2.0))
    nothing = msgspec.structs.replace(absent(4, "Di"), exercises=[oral], max_score=3.0)
    publish(folder, nothing)
    dojo("export", folder, "--to", "gradescope", "--out", folder / "out")
    given = msgspec.structs.replace(nothing, exercises=[oral, talk], score=2.0, max_score=6.0)
    publish(folder, given)
    assert "Di (new: 2)" in dojo("status", folder)
    assert [line for line in lines_for_student(given, ()) if "Still" in line] == []
    dojo("feedback", folder, "--out", folder / "pages")
    (page,) = (folder / "pages" / "students").iterdir()
    assert "Still to be graded by hand" not in page.read_text(encoding="utf-8")
