"""JUnit XML: a file for each submission, for continuous integration and dashboards.

A check that failed or is still to do is a failure, a blocked one is skipped (what blocks it is the failure), and one
that gpudojo could not judge is an error. Points stand in the properties of each test and of the whole suite.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from gpudojo.model.results import Outcome, SubmissionRow
from gpudojo.model.results_file import number
from gpudojo.platforms import Options, Results
from gpudojo.platforms._entries import Entry, named, of_submission, one_line, points, printable, save


def export(results: Results, target: Path, options: Options) -> list[Path]:
    return [save(target / f"{name}.xml", _document(row, options)) for name, row in named(results, options)]


def _document(row: SubmissionRow, options: Options) -> str:
    entries = of_submission(row, options.exercises)
    cases = [_case(entry) for entry in entries]
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


def _case(entry: Entry) -> ElementTree.Element:
    group = ".".join(part for part in (entry.exercise, entry.function) if part) or "submission"
    case = ElementTree.Element("testcase", {"classname": one_line(group), "name": one_line(_last(entry.name))})
    case.set("time", "0")
    if entry.file:
        case.set("file", one_line(entry.file))
    if entry.line:
        case.set("line", str(entry.line))
    _properties(case, {"points": number(points(entry.parts)), "max_points": number(points(entry.max_parts))})
    if entry.kind != Outcome.PASSED:
        tag = {Outcome.BLOCKED.value: "skipped", Outcome.ERROR.value: "error"}.get(entry.kind, "failure")
        told = ElementTree.SubElement(case, tag, {"message": one_line(entry.message), "type": entry.kind})
        told.text = printable(entry.text)
    return case


def _last(name: str) -> str:
    return name.rpartition("::")[2]


def _properties(parent: ElementTree.Element, values: dict[str, str]) -> None:
    properties = ElementTree.SubElement(parent, "properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": value})
