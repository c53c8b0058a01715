"""`dojo report`: which pages it writes, anonymous names, and messages for bad input."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from gpudojo.classes.store import Store
from gpudojo.cli import main
from gpudojo.model.results import RosterRow
from gpudojo.model.results_file import read, write
from gpudojo.report.records import NO_PICTURES
from gpudojo.submissions.own_output import MARK

from tests.gpudojo.report.classes import HOSTILE, header, record, submission


def dojo(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "220"}).invoke(main, ["report", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_a_class_page_and_a_page_per_student(class_of_sixty: Path, tmp_path: Path) -> None:
    code, said = dojo(class_of_sixty.parent, "--out", tmp_path / "out")
    note = "note: 7 of 60 submissions need review; the reasons: dojo review --out "
    assert said.startswith(f"{note}{class_of_sixty.parent}\n")
    assert (code, said.splitlines()[1]) == (
        0,
        f"61 pages written; open {tmp_path / 'out' / 'index.html'}.",
    )
    assert len(list((tmp_path / "out" / "students").iterdir())) == 60
    assert list((tmp_path / "out").iterdir()) != []


def test_only_the_class(class_of_sixty: Path, tmp_path: Path) -> None:
    assert dojo(class_of_sixty, "--out", tmp_path, "--no-students")[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {MARK, "index.html"}
    assert "students/" not in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_only_one_student(class_of_sixty: Path, tmp_path: Path) -> None:
    assert dojo(class_of_sixty, "--out", tmp_path, "--only", "student-33")[0] == 0
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.html")] == [
        "students/student-33.html"
    ]
    page = (tmp_path / "students" / "student-33.html").read_text(encoding="utf-8")
    assert "index.html" not in page  # there is no class page to go back to
    one = read(class_of_sixty).submissions[20]
    assert (
        dojo(class_of_sixty, "--out", tmp_path / "more", "--only", str(one.student).upper())[0] == 0
    )
    assert [path.stem for path in (tmp_path / "more").rglob("*.html")] == [one.submission]
    code, said = dojo(class_of_sixty, "--out", tmp_path, "--only", "studnet-33")
    assert code == 1
    assert "has no submission 'studnet-33'; did you mean student-33" in said


def test_only_a_few_students(class_of_sixty: Path, tmp_path: Path) -> None:
    words = ("--only", "student-33", "--only", "student-34")
    assert dojo(class_of_sixty, "--out", tmp_path, *words)[0] == 0
    pages = {path.name for path in tmp_path.rglob("*.html")}
    assert pages == {"student-33.html", "student-34.html"}


def test_anonymous_pages_have_no_name_anywhere(class_of_sixty: Path, tmp_path: Path) -> None:
    assert dojo(class_of_sixty, "--out", tmp_path, "--anonymous")[0] == 0
    files = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.html"))
    assert len(files) == 61
    everything = "\n".join(
        (tmp_path / file).read_text(encoding="utf-8") for file in files
    ) + "\n".join(map(str, files))
    for row in read(class_of_sixty).submissions:
        assert row.student is not None
        assert row.identifier is not None
        assert row.student not in everything
        assert row.student.split()[1] not in everything
        assert row.identifier not in everything
        if row.submission not in HOSTILE:
            assert row.submission not in everything
    # The same names the next time, so that a teacher can say whom they mean.
    again = tmp_path / "again"
    assert dojo(class_of_sixty, "--out", again, "--anonymous")[0] == 0
    assert sorted(path.relative_to(again) for path in again.rglob("*.html")) == files


def test_anonymous_pages_do_not_name_other_students(tmp_path: Path) -> None:
    """A reason to review one submission may name another one, by whatever it is called."""
    listed = [
        RosterRow("991", "Ada Lovelace", "lovelace@example.org"),
        RosterRow("992", "Bo Sample", "", "", "bosam"),
    ]
    said = [
        "the same files as bo-files",
        "several on the roster match Ada: 991, 992",
        "Bo Sample or bosam",
    ]
    rows = [
        msgspec.structs.replace(
            submission(3, "ada-files", "no"), roster=listed[0], needs_human=said
        ),
        msgspec.structs.replace(submission(5, "bo-files", "no"), roster=listed[1]),
    ]
    write(tmp_path / "results.json", header(), rows)
    assert dojo(tmp_path, "--anonymous", "--out", tmp_path / "out")[0] == 0
    index = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    (other,) = {
        path.stem
        for path in (tmp_path / "out" / "students").iterdir()
        if f"the same files as {path.stem}" in index
    }
    assert f"{other} or {other}" in index
    for name in ("ada", "bo-files", "bo sample", "bosam", "991", "992", "lovelace"):
        assert not re.search(rf"\b{name}\b", index.casefold()), name


def test_examples_are_always_anonymous(class_of_sixty: Path, pages: Path) -> None:
    text = (pages / "index.html").read_text(encoding="utf-8")
    examples = text[text.index("An anonymous example of each") : text.index('id="checks"')]
    assert "total += loss.item()" in examples
    for row in read(class_of_sixty).submissions:
        if row.submission not in HOSTILE:
            assert row.submission not in examples


def test_an_empty_class_has_a_page_that_says_so(tmp_path: Path) -> None:
    write(tmp_path / "results.json", header(), [])
    assert dojo(tmp_path)[0] == 0
    assert "The results contain no submissions" in (tmp_path / "report" / "index.html").read_text(
        encoding="utf-8"
    )


def test_missing_evidence_is_reported_on_the_page_and_in_the_terminal(tmp_path: Path) -> None:
    rows = [submission(1, "ada", "no"), submission(2, "bob", "no", "f" * 40)]
    write(tmp_path / "results.json", header(reference="e" * 40), rows)
    code, said = dojo(tmp_path)
    assert code == 0
    assert (
        f"note: 2 of 2 pages have no timelines: the records of these runs are not in {tmp_path}"
        in said
    )
    for name in ("ada", "bob"):
        page = (tmp_path / "report" / "students" / f"{name}.html").read_text(encoding="utf-8")
        assert "the evidence of this run was not found beside the results" in page
        assert "line 10" in page or name == "bob"


def test_a_damaged_or_older_record_counts_as_missing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    good = "a" * 40
    torn = "b" * 40
    newer = "c" * 40
    for key in (good, torn, newer):
        store.keep_record(key, record(1, "code"))
    store.path_of(torn).write_bytes(store.path_of(torn).read_bytes()[:-50])
    store.keep_record(newer, msgspec.structs.replace(record(1, "code"), version=99))
    rows = [submission(n, name, "no", name[0] * 40) for n, name in enumerate(("ada", "bob", "cyd"))]
    write(tmp_path / "results.json", header(reference=newer), rows)
    code, said = dojo(tmp_path)
    assert code == 0
    assert "note: 2 of 3 pages have no timelines" in said
    folder = tmp_path / "report" / "students"
    pages = [(folder / f"{row.submission}.html").read_text(encoding="utf-8") for row in rows]
    assert ["There are no timelines" in page for page in pages] == [False, True, True]
    assert ['class="call"' in page for page in pages] == [True, False, False]
    assert NO_PICTURES.replace("'", "&#39;") in pages[0], (
        "the reference's record cannot be used either"
    )


def test_unreadable_results_get_a_page_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    for content, sentence in {
        "{": "it is not JSON",
        json.dumps(
            {"version": 2, "submissions": []}
        ): "it has version 2, and this gpudojo reads version 1",
        json.dumps([1]): "it is JSON, but not what `dojo grade` writes",
    }.items():
        path.write_text(content, encoding="utf-8")
        code, said = dojo(path)
        assert code == 1
        assert sentence in said
        page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
        assert sentence in page.replace("&#39;", "'")
    assert dojo(tmp_path / "none.json")[0] == 2
    code, said = dojo(tmp_path / "report")
    assert code == 1
    assert "report has no results.json; give the folder that `dojo grade --out` made" in said


def test_a_mistyped_argument_leaves_the_class_page(class_of_sixty: Path, tmp_path: Path) -> None:
    (graded := tmp_path / "graded").mkdir()
    (graded / "results.json").write_bytes(class_of_sixty.read_bytes())
    (graded / "results.csv").write_text("submission,score\n", encoding="utf-8")
    dojo(graded, "--no-students")
    page = (graded / "report" / "index.html").read_bytes()
    for wrong, told in {
        "results.csv": "give results.json or its folder",
        "resluts.json": "did you mean results.json?",
    }.items():
        code, said = dojo(graded / wrong)
        assert (code > 0, told in said) == (True, True), said
    code, said = dojo(tmp_path)
    assert (code, f"there are {graded}" in said) == (1, True), said
    assert (graded / "report" / "index.html").read_bytes() == page
    assert not (tmp_path / "report").exists()


@pytest.mark.slow
def test_the_order_of_anonymous_pages_says_nothing(class_of_sixty: Path, tmp_path: Path) -> None:
    assert dojo(class_of_sixty, "--out", tmp_path, "--anonymous")[0] == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    listed = re.findall(r"students/([\w-]+)\.html", page[page.index('id="students"') :])
    assert listed == sorted(path.stem for path in (tmp_path / "students").iterdir())
    second = (tmp_path / "students" / f"{listed[1]}.html").read_text(encoding="utf-8")
    assert re.findall(r'href="../students/([\w-]+)\.html" rel="(\w+)"', second) == [
        (listed[0], "prev"),
        (listed[2], "next"),
    ]


def test_truncated_results_get_a_page_with_the_reason(class_of_sixty: Path, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_bytes(class_of_sixty.read_bytes()[:-2000])
    code, said = dojo(tmp_path, "--no-students")
    assert code == 1
    assert "is not a file of results" in said
    assert "No report" in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")


@pytest.mark.skipif(
    not hasattr(os, "geteuid"), reason="a file in the way is told differently there"
)
def test_an_unwritable_target_gets_a_message(class_of_sixty: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    code, said = dojo(class_of_sixty, "--out", tmp_path / "file" / "out")
    assert code == 1
    assert "Error: cannot write" in said
    assert "Traceback" not in said


def test_only_and_no_students_exclude_each_other(class_of_sixty: Path, tmp_path: Path) -> None:
    code, said = dojo(class_of_sixty, "--out", tmp_path, "--only", "student-33", "--no-students")
    assert code == 2
    assert "choose one" in said


@pytest.mark.slow
def test_pages_are_the_same_each_time(class_of_sixty: Path, pages: Path, tmp_path: Path) -> None:
    assert dojo(class_of_sixty, "--out", tmp_path)[0] == 0
    for path in sorted(pages.rglob("*.html")):
        assert (tmp_path / path.relative_to(pages)).read_bytes() == path.read_bytes()
