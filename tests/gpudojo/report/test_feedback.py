"""`dojo feedback`: pages that stand alone, zips for Moodle and Canvas, a table for mail merge, PDF
where there is a browser.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
import zipfile
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from gpudojo.cli import main
from gpudojo.model.results import (
    ExerciseRow,
    Override,
    RosterRow,
    SubmissionRow,
    SubmissionStatus,
    Timing,
    Visibility,
)
from gpudojo.model.results_file import write
from gpudojo.report import pdf_printing

from tests.gpudojo.report.classes import header, submission


def rows() -> list[SubmissionRow]:
    ada = msgspec.structs.replace(
        submission(3, "Ada_Lovelace_2000101_assignsubmission_file_", "no"),
        student="Ada_Love/lace", naming="moodle", identifier="2000101",
        roster=RosterRow("101", "Lovelace, Ada", "ada@example.org", "A"),
        timing=Timing(late=True, late_seconds=7200, penalty=1.5),
    )  # fmt: skip
    bob = msgspec.structs.replace(
        submission(5, "＝cmd", "no"), student="＝cmd|calc", identifier=None
    )
    eve = SubmissionRow("eve", SubmissionStatus.ABSENT, 0.0, 20.0, roster=RosterRow("103", "Eve"))
    return [ada, bob, eve]


def dojo(folder: Path, *arguments: str, **of_header: object) -> tuple[int, str]:
    write(folder / "results.json", header(**of_header), rows())
    result = CliRunner().invoke(
        main, ["feedback", str(folder), "--out", str(folder / "out"), *arguments]
    )
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_pages_stand_alone_and_the_table_says_whom_to_send_them(tmp_path: Path) -> None:
    code, said = dojo(tmp_path)
    assert (code, "2 pages in" in said) == (0, True)
    text = (tmp_path / "out" / "feedback.csv").read_bytes().decode("utf-8-sig")
    lines = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [line["name"] for line in lines] == ["Ada_Love/lace", "'＝cmd|calc", "Eve"]
    assert (lines[0]["email"], lines[0]["id"], lines[0]["section"]) == (
        "ada@example.org",
        "101",
        "A",
    )
    assert lines[0]["late"] == "submitted late by 2.0 hours: 1.5 points off"
    assert [bool(line["file"]) for line in lines] == [True, True, False], (
        "who handed in nothing gets no page"
    )
    for line in lines[:2]:
        page = (tmp_path / "out" / line["file"]).read_text(encoding="utf-8")
        assert not re.search(r'href="(?!#)', page), "a mailed page leads nowhere but into itself"
        assert f"{line['points']} of {line['max_points']} points" in line["feedback"]


def test_who_gets_no_page_is_said(tmp_path: Path) -> None:
    for words in ((), ("--only", "Eve")):
        code, said = dojo(tmp_path, *words)
        assert code == 0
        assert "note: no page for 1 on the roster, of whom nothing was handed in: Eve" in said
    assert "0 pages in" in said
    assert "note: no page" not in dojo(tmp_path, "--only", "＝cmd")[1]


def test_who_handed_in_nothing_and_was_given_points_gets_a_page(tmp_path: Path) -> None:
    *others, eve = rows()
    oral = ExerciseRow(
        "oral",
        "Oral exam",
        8.0,
        20.0,
        by_hand=True,
        override=Override(8.0, comment="Well prepared."),
    )
    due = Timing(deadline="2026-11-23T23:59:00+01:00", extended=True)
    write(
        tmp_path / "results.json",
        header(),
        [*others, msgspec.structs.replace(eve, score=8.0, exercises=[oral], timing=due)],
    )
    result = CliRunner().invoke(
        main, ["feedback", str(tmp_path), "--out", str(tmp_path / "out"), "--only", "eve"]
    )
    assert result.exit_code == 0, result.output
    page = (tmp_path / "out" / "students" / "eve.html").read_text(encoding="utf-8")
    assert "Well prepared." in page
    assert "Extended to 2026-11-23 23:59" in page
    assert "no timelines" not in page  # nothing ran
    assert re.search(r'<th scope="row">\s*Oral exam', page), "an item has no number"


def test_moodle_finds_whose_feedback_it_is(tmp_path: Path) -> None:
    code, said = dojo(tmp_path)
    assert code == 0
    # Of whom Moodle handed out nothing, such as members of a group, it is said.
    assert "1 page not in the zip for Moodle, which handed out no files of these" in said
    assert "--worksheet FILE: ＝cmd" in " ".join(said.split())
    with zipfile.ZipFile(tmp_path / "out" / "moodle.zip") as archive:
        (name,) = archive.namelist()
        page = archive.read(name)
    # As Moodle does: the name of the folder in five parts, of which the second is the participant.
    folder, _, file = name.partition("/")
    assert folder.split("_", 4)[1:] == ["2000101", "assignfeedback", "file", ""]
    assert file == "feedback.html"
    assert page.startswith(b"<!doctype html>")
    sheet = tmp_path / "sheet.csv"
    sheet.write_text(
        "Identifier,Full name,Grade,Maximum Grade\nParticipant 7,＝cmd|calc,,20\n", encoding="utf-8"
    )
    code, said = dojo(tmp_path, "--worksheet", str(sheet))
    assert code == 0
    assert f"because these students are not in {sheet}: Ada_Lovelace" in " ".join(said.split())
    assert "what the table has for them" not in said, "no grades are filled in here"
    with zipfile.ZipFile(tmp_path / "out" / "moodle.zip") as archive:
        assert archive.namelist() == ["＝cmd calc_7_assignfeedback_file_/feedback.html"]


def owner_on_canvas(name: str) -> tuple[str, str]:
    """Whose file this is, and the number of the file handed in, as Canvas reads its name.

    Of a student it takes the first two parts that are numbers, of an anonymous one those after
    "anon".
    """
    parts = [part for part in name.split("_") if part != "LATE"]
    assert not parts[-1].startswith("link"), "Canvas takes that for an address"
    if parts[0] == "anon":
        student, file = parts[1:3]
    else:
        student, file = [part for part in parts if re.fullmatch("[0-9]+", part)][:2]
    return student, file


def write_class_from_canvas(folder: Path) -> list[str]:
    """Write results of four students of Canvas and one other; returns the rows' submissions."""
    files = {
        "adalovelace": ("101", "adalovelace_101_90001_day8.py"),
        "bob": ("102", "bob_LATE_102_90002_day8-1_3.ipynb"),
        "anon_x7Yz2": ("x7Yz2", "anon_x7Yz2_90003_day8.zip"),
        "cy": ("104", "adalovelace_101_90001_day8.py"),  # of Ada's group
        "fay": (None, ""),
    }
    made = []
    for number, (name, (identifier, file)) in enumerate(files.items()):
        row = submission(number, name, "no")
        naming = "canvas" if identifier else "plain"
        made.append(
            msgspec.structs.replace(row, naming=naming, identifier=identifier, canvas_file=file)
        )
    write(folder / "results.json", header(), made)
    return [row.submission for row in made]


def test_canvas_finds_whose_feedback_it_is(tmp_path: Path) -> None:
    names = write_class_from_canvas(tmp_path)
    out = tmp_path / "out"
    words = ["feedback", str(tmp_path), "--out", str(out)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert (
        "note: 2 pages not in the zip for Canvas, which handed out no file of these students: "
        "cy, fay\n"
    ) in done.output
    assert f"{out / 'canvas.zip'}\n" in done.output
    assert not (out / "moodle.zip").exists()
    with zipfile.ZipFile(out / "canvas.zip") as archive:
        found = {owner_on_canvas(name): archive.read(name) for name in archive.namelist()}
    expected = [("101", "90001"), ("102", "90002"), ("x7Yz2", "90003")]
    assert found == {
        owner: (out / "students" / f"{name}.html").read_bytes()
        for owner, name in zip(expected, names, strict=False)
    }
    # of one student alone
    done = CliRunner().invoke(main, [*words, "--only", "bob"])
    assert "Canvas" not in done.output
    with zipfile.ZipFile(out / "canvas-bob.zip") as archive:
        assert archive.namelist() == ["bob_LATE_102_90002_feedback.html"]
    done = CliRunner().invoke(main, [*words, "--only", "fay"])
    assert "note: 1 page not in the zip for Canvas" in done.output
    assert not (out / "canvas-fay.zip").exists()


def test_a_class_that_is_not_from_canvas_hears_nothing_of_it(tmp_path: Path) -> None:
    _, said = dojo(tmp_path)
    assert "anvas" not in said
    assert not (tmp_path / "out" / "canvas.zip").exists()


def test_the_course_decides_when_results_and_hints_are_shown(tmp_path: Path) -> None:
    later = {
        "deadline": "2999-01-01T00:00:00+00:00",
        "visibility": Visibility("after deadline", "after deadline"),
    }
    code, said = dojo(tmp_path, **later)
    assert (code, "the course shows results after the deadline; use --early" in said) == (1, True)
    assert not (tmp_path / "out").exists()
    assert dojo(tmp_path, "--early", **later)[0] == 0
    pages = sorted((tmp_path / "out" / "students").iterdir())
    assert not any(
        "Keep the sum on the device." in page.read_text(encoding="utf-8") for page in pages
    )
    assert dojo(tmp_path)[0] == 0
    assert any("Keep the sum on the device." in page.read_text(encoding="utf-8") for page in pages)


def test_who_has_an_extension_sees_results_and_hints_after_it(tmp_path: Path) -> None:
    past = {
        "deadline": "2020-01-01T00:00:00+00:00",
        "visibility": Visibility("after deadline", "after deadline"),
    }
    first, *others = rows()
    still = msgspec.structs.replace(
        first, timing=Timing(deadline="2999-01-01T00:00:00+00:00", extended=True)
    )
    write(tmp_path / "results.json", header(**past), [still, *others])
    words = ["feedback", str(tmp_path), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(main, words)
    assert "1 of 3 students still have time and get no feedback now" in done.output
    assert [path.stem for path in (tmp_path / "out" / "students").iterdir()] == ["＝cmd"]
    assert CliRunner().invoke(main, [*words, "--early"]).exit_code == 0
    pages = {
        path.stem: path.read_text(encoding="utf-8")
        for path in (tmp_path / "out" / "students").iterdir()
    }
    assert {stem for stem, page in pages.items() if "Keep the sum on the device." in page} == {
        "＝cmd"
    }
    exported = CliRunner().invoke(
        main, ["export", str(tmp_path), "--to", "junit", "--out", str(tmp_path / "junit")]
    )
    assert (
        "the course shows results after the deadline; 1 of 3 students still have time"
        in exported.output
    )


def test_without_a_browser_there_is_a_sentence_and_no_pdf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, said = dojo(tmp_path, "--pdf")
    assert (code, "PDF needs Chromium, Chrome or Edge, and none is installed" in said) == (1, True)
    assert "Traceback" not in said


@pytest.mark.skipif(
    not any(map(shutil.which, pdf_printing.BROWSERS)),
    reason="there is no browser on this machine",
)
def test_a_pdf_of_one_student(tmp_path: Path) -> None:
    code, said = dojo(tmp_path, "--pdf", "--only", "＝cmd")
    assert (code, "1 PDF in" in said) == (0, True)
    (made,) = (tmp_path / "out" / "students").iterdir()
    assert made.read_bytes().startswith(b"%PDF-")
    assert b"/MediaBox [0 0 595" in made.read_bytes()
    code, said = dojo(tmp_path, "--pdf", "--only", "＝cmd", "--paper", "letter")
    assert b"/MediaBox [0 0 612 792]" in made.read_bytes()
    code, said = dojo(tmp_path, "--only", "nobody")
    assert (code, "has no submission 'nobody'" in said) == (1, True)


def test_one_student_s_feedback_leaves_the_tables_of_the_class(tmp_path: Path) -> None:
    dojo(tmp_path)
    tables = [tmp_path / "out" / name for name in ("feedback.csv", "moodle.zip")]
    before = [table.read_bytes() for table in tables]
    name = rows()[0].submission
    _, said = dojo(tmp_path, "--only", "ada@example.org")
    assert [table.read_bytes() for table in tables] == before
    assert f"note: {tables[0]} is as it was; to write it again, leave out --only" in said
    with (tmp_path / "out" / f"feedback-{name}.csv").open(encoding="utf-8-sig", newline="") as file:
        assert [line["submission"] for line in csv.DictReader(file)] == [name]
    with zipfile.ZipFile(tmp_path / "out" / f"moodle-{name}.zip") as archive:
        assert len(archive.namelist()) == 1


def test_several_students_may_be_named(tmp_path: Path) -> None:
    code, said = dojo(tmp_path, "--only", "ada@example.org", "--only", "＝cmd", "--only", "＝cmd")
    assert (code, "2 pages in" in said) == (0, True)
    chosen = [row.submission for row in rows()[:2]]
    name = f"{chosen[0]}-and-1-more"
    with (tmp_path / "out" / f"feedback-{name}.csv").open(encoding="utf-8-sig", newline="") as file:
        written = [line["submission"].removeprefix("'") for line in csv.DictReader(file)]
    assert written == chosen
    with zipfile.ZipFile(tmp_path / "out" / f"moodle-{name}.zip") as archive:
        assert len(archive.namelist()) >= 1
    code, said = dojo(tmp_path, "--only", "ada@example.org", "--only", "nobody")
    assert (code, "has no submission 'nobody'" in said) == (1, True)
