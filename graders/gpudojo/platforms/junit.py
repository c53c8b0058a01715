"""JUnit XML: a file for each submission, for continuous integration and dashboards.

A check that failed or is still to do is a failure, a blocked one is skipped (what blocks it is
the failure), and one that gpudojo could not judge is an error. Points stand in the properties of
each test and of the whole suite.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from gpudojo.model.results import CheckRow, ClassResults, Outcome, SubmissionRow
from gpudojo.model.results_file import exact_points
from gpudojo.platforms import Options
from gpudojo.platforms._files import save_text
from gpudojo.platforms._rows import (
    SUBMISSION,
    Entry,
    costs_nothing,
    entries_to_export,
    exercise_of,
    outcome_or_status,
)
from gpudojo.platforms._texts import (
    full_text,
    join_texts,
    one_line,
    points_left_out,
    printable_lines,
    say_how_many_have_other_points,
)

TAG_OF: Final = {Outcome.BLOCKED: "skipped", Outcome.ERROR: "error"}  # of all others: "failure"
TAG_COUNTED_AS: Final = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    """Write an XML file for each submission, or the one asked for, and return the files.

    How many have other points in the course is told by `options.say`. Raises OSError.
    """
    say_how_many_have_other_points(rows, options)
    written = []
    for entry in entries_to_export(rows, target, options):
        written.append(save_text(target / f"{entry.name}.xml", _document_of(entry)))
    return written


def _document_of(entry: Entry) -> str:
    """Return the whole file: one suite, a test case for each check."""
    # The suite, which counts its test cases by what became of them.
    row = entry.row
    cases = [_test_case(check, row) for check in entry.checks]
    attributes = {
        "name": one_line(row.submission),
        "time": f"{row.seconds:.3f}",
        "tests": str(len(cases)),
    }
    for attribute, tag in TAG_COUNTED_AS.items():
        count = sum(case.find(tag) is not None for case in cases)
        attributes[attribute] = str(count)
    suites = ElementTree.Element("testsuites", {"name": "gpudojo"})
    suite = ElementTree.SubElement(suites, "testsuite", attributes)
    # What is in it: points, test cases, and what was printed.
    properties = {
        "status": row.status.value,
        "score": exact_points(row.score),
        "max_score": exact_points(row.max_score),
    }
    published = points_left_out(row)
    if published:
        properties["published"] = one_line(published)
    _add_properties(suite, properties)
    suite.extend(cases)
    if row.output:
        ElementTree.SubElement(suite, "system-out").text = printable_lines(row.output_for_student)
    ElementTree.indent(suites, " ")
    text = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _test_case(check: CheckRow, row: SubmissionRow) -> ElementTree.Element:
    """Return a check as a test case, with its points and what is wrong."""
    group = join_texts(".", exercise_of(check), check.function) or SUBMISSION
    attributes = {
        "classname": one_line(group),
        "name": one_line(check.claim.replace("`", "") or check.id.rpartition("::")[2]),
        "time": "0",
    }
    if check.file:
        attributes["file"] = one_line(check.file)
    if check.line:
        attributes["line"] = str(check.line)
    case = ElementTree.Element("testcase", attributes)
    properties = {
        "id": one_line(check.id),
        "points": exact_points(check.points),
        "max_points": exact_points(check.max_points),
    }
    _add_properties(case, properties)
    given = check.override is not None and costs_nothing(check)
    if check.outcome is not Outcome.PASSED and not given:
        tag = TAG_OF.get(check.outcome, "failure")
        about = {"message": one_line(check.message), "type": outcome_or_status(check, row)}
        ElementTree.SubElement(case, tag, about).text = full_text(check)
    return case


def _add_properties(parent: ElementTree.Element, values: dict[str, str]) -> None:
    """Add properties to a test case or suite."""
    properties = ElementTree.SubElement(parent, "properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": value})
