"""JUnit XML: a file for each submission, for continuous integration and dashboards.

A check that failed or is still to do is a failure, a blocked one is skipped (what blocks it is the failure), and one
that gpudojo could not judge is an error. Points stand in the properties of each test and of the whole suite.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from gpudojo.model.results import CheckRow, ClassResults, Outcome, SubmissionRow
from gpudojo.model.results_file import format_points
from gpudojo.platforms import Options
from gpudojo.platforms._entries import (
    Entry,
    apart,
    entries,
    exercise_of,
    kind,
    one_line,
    printable,
    save,
    say_apart,
    text_of,
)


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    say_apart(rows, options)
    return [
        save(target / f"{each.name}.xml", _document(each))
        for each in entries(rows, target, options)
    ]


def _document(entry: Entry) -> str:
    row = entry.row
    cases = [_case(check, entry.row) for check in entry.checks]
    suites = ElementTree.Element("testsuites", {"name": "gpudojo"})
    about = {
        "name": one_line(row.submission),
        "time": f"{row.seconds:.3f}",
        "tests": str(len(cases)),
    }
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        about[key] = str(sum(case.find(tag) is not None for case in cases))
    suite = ElementTree.SubElement(suites, "testsuite", about)
    values = {
        "status": row.status.value,
        "score": format_points(row.score),
        "max_score": format_points(row.max_score),
    }
    if published := apart(row):
        values["published"] = one_line(published)
    _properties(suite, values)
    suite.extend(cases)
    if row.output:
        ElementTree.SubElement(suite, "system-out").text = printable(row.output)
    ElementTree.indent(suites, " ")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suites, encoding="unicode")}\n'


def _case(check: CheckRow, row: SubmissionRow) -> ElementTree.Element:
    group = ".".join(part for part in (exercise_of(check), check.function) if part) or "submission"
    about = {
        "classname": one_line(group),
        "name": one_line(check.claim.replace("`", "") or check.id.rpartition("::")[2]),
        "time": "0",
    }
    place = {"file": one_line(check.file or ""), "line": str(check.line or "")}
    case = ElementTree.Element(
        "testcase", about | {key: text for key, text in place.items() if text}
    )
    _properties(
        case,
        {
            "id": one_line(check.id),
            "points": format_points(check.points),
            "max_points": format_points(check.max_points),
        },
    )
    if check.outcome is not Outcome.PASSED:
        tag = {Outcome.BLOCKED: "skipped", Outcome.ERROR: "error"}.get(check.outcome, "failure")
        told = ElementTree.SubElement(
            case, tag, {"message": one_line(check.message), "type": kind(check, row)}
        )
        told.text = text_of(check)
    return case


def _properties(parent: ElementTree.Element, values: dict[str, str]) -> None:
    properties = ElementTree.SubElement(parent, "properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": value})
