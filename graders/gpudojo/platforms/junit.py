"""JUnit XML: a file for each submission, for continuous integration and dashboards.

A check that failed or is still to do is a failure, a blocked one is skipped (what blocks it is the failure), and one
that gpudojo could not judge is an error. Points stand in the properties of each test and of the whole suite.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from gpudojo.model.results import CheckRow, Outcome, SubmissionRow
from gpudojo.model.results_file import number
from gpudojo.platforms import Options, Results
from gpudojo.platforms._entries import exercise_of, kind, named, of_submission, one_line, printable, save, text_of


def export(results: Results, target: Path, options: Options) -> list[Path]:
    return [save(target / f"{name}.xml", _document(row, options)) for name, row in named(results, options)]


def _document(row: SubmissionRow, options: Options) -> str:
    cases = [_case(check, row) for check in of_submission(row, options.exercises)]
    counts = {
        "tests": len(cases),
        "failures": sum(case.find("failure") is not None for case in cases),
        "errors": sum(case.find("error") is not None for case in cases),
        "skipped": sum(case.find("skipped") is not None for case in cases),
    }
    name = one_line(row.submission)
    suite = ElementTree.Element("testsuite", {"name": name, "time": f"{row.seconds:.3f}"})
    suite.attrib.update({key: str(count) for key, count in counts.items()})
    _properties(suite, {"status": row.status.value, "score": number(row.score), "max_score": number(row.max_score)})
    suite.extend(cases)
    if row.output:
        ElementTree.SubElement(suite, "system-out").text = printable(row.output)
    suites = ElementTree.Element("testsuites", {"name": "gpudojo"})
    suites.append(suite)
    ElementTree.indent(suites, " ")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suites, encoding="unicode")}\n'


def _case(check: CheckRow, row: SubmissionRow) -> ElementTree.Element:
    group = ".".join(part for part in (exercise_of(check), check.function) if part) or "submission"
    case = ElementTree.Element(
        "testcase", {"classname": one_line(group), "name": one_line(check.id.rpartition("::")[2])}
    )
    case.set("time", "0")
    if check.file:
        case.set("file", one_line(check.file))
    if check.line:
        case.set("line", str(check.line))
    _properties(case, {"points": number(check.points), "max_points": number(check.max_points)})
    if check.outcome is not Outcome.PASSED:
        tag = {Outcome.BLOCKED: "skipped", Outcome.ERROR: "error"}.get(check.outcome, "failure")
        told = ElementTree.SubElement(case, tag, {"message": one_line(check.message), "type": kind(check, row)})
        told.text = printable(text_of(check))
    return case


def _properties(parent: ElementTree.Element, values: dict[str, str]) -> None:
    properties = ElementTree.SubElement(parent, "properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": value})
