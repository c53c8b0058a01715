"""What is told about a graded checkout, and to whom? The log, the job summary, and what each program reads."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from graders.classroom import action_files, workflow_log
from graders.classroom.checkout import Graded
from graders.classroom.summary import summary
from graders.curriculum import day as exercises_of
from graders.export import Options, Part, exporter
from graders.release.manifest import Change
from graders.results import ClassResults
from graders.results.spreadsheet import number

RESULT: Final = "result.json"
WITHOUT_ACTIONS: Final = {action_files.OUTPUT: "github-outputs.txt", action_files.SUMMARY: "summary.md"}


@dataclass(frozen=True)
class Report:
    """Everything there is to tell."""

    graded: Graded
    changes: tuple[Change, ...] | None  # None: there was no release to compare with
    notes: tuple[str, ...] = ()
    inside: str = ""  # where in the repository the checkout lies

    def log(self, actions: bool) -> Iterator[str]:
        """Line by line; in a workflow with commands that put remarks on the student's lines."""
        row = self.graded.row
        width = max(len(exercise.exercise) for exercise in row.exercises)
        for exercise in row.exercises:
            yield f"{exercise.exercise:{width}}  {number(exercise.score):>6} of {number(exercise.max_score):>4}"
        yield f"{'in all':{width}}  {number(row.score):>6} of {number(row.max_score):>4}"
        remarks = [
            *workflow_log.on_lines(row, self.inside),
            *workflow_log.on_changes(self.changes or (), self.inside),
            *(workflow_log.Annotation("warning", "gpudojo", note) for note in self.notes[: workflow_log.SHOWN]),
        ]
        printed = workflow_log.quoted(row.output)
        if actions:
            yield from printed
            yield from (remark.command() for remark in remarks)
            return
        yield from (line for line in printed if not line.startswith("::"))
        for remark in remarks:
            place = f"{remark.file}:{remark.line}: " if remark.line else ""
            yield f"{remark.level}: {place}{remark.title}: {' '.join(remark.message.split())}"

    def page(self) -> str:
        return summary(self.graded, self.changes, self.notes)


def write(report: Report, whom: Sequence[str], out: Path, environment: Mapping[str, str]) -> list[Path]:
    """The files that each of `whom` ("github", "classroom50") reads; all of them are made before one is written."""
    with tempfile.TemporaryDirectory(prefix="dojo-classroom-") as folder:
        outputs = _outputs(report.graded, Path(folder), environment) if "github" in whom else None
        result = _result(report.graded, Path(folder), environment) if "classroom50" in whom else None
    page = report.page()
    written = []
    if result is not None:
        out.mkdir(parents=True, exist_ok=True)
        action_files.replace(out / RESULT, result)
        written.append(out / RESULT)
    if outputs is not None:
        written.append(_told(action_files.OUTPUT, outputs, out, environment))
    if outputs is not None or environment.get(action_files.SUMMARY):
        written.append(_told(action_files.SUMMARY, page, out, environment))
    return written


def _told(name: str, text: str, out: Path, environment: Mapping[str, str]) -> Path:
    """To the file that GitHub has made for it, or where there is no workflow, to one that a person can look at."""
    most = action_files.LARGEST_SUMMARY if name == action_files.SUMMARY else None
    if environment.get(name):
        path = Path(environment[name])
        action_files.append(path, text, most)
    else:
        path = out / WITHOUT_ACTIONS[name]
        out.mkdir(parents=True, exist_ok=True)
        action_files.replace(path, text.encode("utf-8", "replace"))
    return path


def _outputs(graded: Graded, folder: Path, environment: Mapping[str, str]) -> str:
    """A line for each runner, and `result` for the whole submission where one variable can hold it."""
    options = _options(graded.results, environment)
    exporter("github_classroom")(graded.results, folder, options)
    lines = (folder / "outputs").read_text(encoding="ascii")
    whole = list(folder.glob("*.base64"))
    own = {line.partition("=")[0] for line in lines.splitlines()}
    rest = [path for path in whole if path.stem not in own]
    return lines + "".join(f"result={path.read_text(encoding='ascii')}\n" for path in rest)


def _result(graded: Graded, folder: Path, environment: Mapping[str, str]) -> bytes:
    """Who was graded, the environment says; a repository's name may be misread."""
    known = dict(environment)
    known["REVIEW_URL"] = known.get("REVIEW_URL") or known.get("COMMIT_URL", "")
    owner = known.get("OWNER") or known.get("USERNAME")
    row = graded.row
    if owner:
        row = msgspec.structs.replace(row, identifier=owner, naming="classroom")
    results = msgspec.structs.replace(graded.results, submissions=[row])
    exporter("classroom50")(results, folder, _options(results, known))
    return (folder / RESULT).read_bytes()


def _options(results: ClassResults, environment: Mapping[str, str]) -> Options:
    parts = tuple(Part(each.stem, each.title, float(each.points)) for each in exercises_of(results.day))
    return Options(submission=results.submissions[0].submission, exercises=parts, environment=environment)
