"""What a workflow prints and writes for GitHub: log, annotations, job summary, output files."""

from __future__ import annotations

import contextlib
import errno
import functools
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import jinja2
import msgspec

from gpudojo.model.results import CheckRow, ClassResults, Outcome, SubmissionRow
from gpudojo.model.results_file import format_points
from gpudojo.platforms import Options, exercises_of_day, exporter_of
from gpudojo.platforms._autograder import GradedCheckout
from gpudojo.platforms._texts import join_texts, one_line, printable_lines
from gpudojo.release.manifest import Change
from gpudojo.sandbox.layers import missing_layers

OUTPUT: Final = "GITHUB_OUTPUT"
SUMMARY: Final = "GITHUB_STEP_SUMMARY"
WORKFLOW_FILES: Final = (OUTPUT, SUMMARY, "GITHUB_ENV", "GITHUB_PATH", "GITHUB_STATE")
LARGEST_SUMMARY: Final = 1_000_000  # bytes; GitHub drops a longer one altogether
MOST_ANNOTATIONS: Final = 10  # of a kind, that GitHub shows for a step
LONGEST_LINE: Final = 500  # characters of a line of an annotation
LONGEST_TEXT: Final = 300  # characters of a text in the summary
LONGEST_OUTPUT: Final = 16_000  # characters of what a student printed
MOST_NOTES: Final = 50  # and changed files, in the summary
MARKDOWN_SIGNS: Final = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$@&:])")
ENTITIES: Final = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
# What workflow commands want to have encoded.
IN_MESSAGE: Final = "%\r\n"
IN_PROPERTY: Final = IN_MESSAGE + ":,"
RESULT: Final = "result.json"
WITHOUT_ACTIONS: Final = {OUTPUT: "github-outputs.txt", SUMMARY: "summary.md"}
CHANGES: Final = {
    "changed": "differs from the released file",
    "deleted": "was deleted",
    "added": "is not part of the release",
}


@contextlib.contextmanager
def guard_workflow_files(environment: Mapping[str, str]) -> Iterator[list[str]]:
    """Undo what student code writes to the workflow's own files during the block.

    Gives a list, which afterwards names the variables of the files that were written to. A file
    that cannot be put back stays as it is.
    """
    before = {}
    for name in WORKFLOW_FILES:
        if environment.get(name):
            before[name] = _content_of(environment[name])
    touched: list[str] = []
    try:
        yield touched
    finally:
        for name, data in before.items():
            if _content_of(environment[name]) == data:
                continue
            touched.append(name)
            path = Path(environment[name])
            with contextlib.suppress(OSError):  # then GitHub finds what is there
                path.unlink(missing_ok=True)
                if data is not None:
                    path.write_bytes(data)


def _content_of(path: str) -> bytes | None:
    """Return the content of a file; None where it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return None


def append_text(path: Path, text: str, most: int | None = None) -> None:
    """Append to a file; a text of more than `most` bytes is cut, and ends with three dots.

    Raises OSError.
    """
    data = text.encode("utf-8", "replace")
    if most is not None and len(data) > most:
        beginning = data[:most].decode("utf-8", "ignore")
        data = f"{beginning}\n\n...\n".encode()
    with path.open("ab") as file:
        file.write(data)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file in a student's checkout, whole or not at all.

    A link of that name is replaced; what it leads to is left alone. Raises OSError, and
    IsADirectoryError for a folder.
    """
    if path.is_dir() and not path.is_symlink():
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".dojo-", delete=False) as file:
            part = Path(file.name)
    except OSError as error:  # which has a name that nobody gave
        raise type(error)(error.errno, error.strerror, str(path)) from None
    try:
        part.write_bytes(data)
        part.chmod(0o644)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@dataclass(frozen=True)
class Annotation:
    """A remark on a line of a file."""

    level: str  # "error", "warning", "notice"
    title: str
    message: str
    file: str = ""
    line: int = 0

    def as_command(self) -> str:
        """Return the workflow command that puts it on the line."""
        properties = {"file": self.file, "line": self.line, "title": self.title}
        settings = []
        for name, value in properties.items():
            if value:
                text = percent_encode(str(value), IN_PROPERTY)
                settings.append(f"{name}={text}")
        message = percent_encode(self.message, IN_MESSAGE)
        return f"::{self.level} {','.join(settings)}::{message}"

    def as_sentence(self) -> str:
        """Return it as a line for people."""
        place = ""
        if self.line:
            place = f"{self.file}:{self.line}: "
        message = " ".join(self.message.split())
        return f"{self.level}: {place}{self.title}: {message}"


def percent_encode(text: str, letters: str) -> str:
    """Return the text with these letters as `%0A`, as workflow commands want it."""
    encoded = ""
    for letter in text:
        if letter in letters:
            encoded += f"%{ord(letter):02X}"
        else:
            encoded += letter
    return encoded


def _checks_with(row: SubmissionRow, outcome: Outcome) -> list[CheckRow]:
    """Return the checks of a submission that have this outcome."""
    checks = []
    for exercise in row.exercises:
        checks += [check for check in exercise.checks if check.outcome is outcome]
    return checks


def annotations_of_failures(row: SubmissionRow, inside: str = "") -> list[Annotation]:
    """Return what failed, each on the student's own line, one for each line of a function.

    `inside` is where in the repository the checkout lies. There are none where no check was
    judged, and at most MOST_ANNOTATIONS.
    """
    if not row.was_judged:
        return []
    annotations: list[Annotation] = []
    places = set()
    for check in _checks_with(row, Outcome.FAILED):
        place = (check.function, check.file, check.cell, check.line)
        if check.file and place not in places:
            places.add(place)
            annotations.append(_annotation_of_failure(check, inside))
    return annotations[:MOST_ANNOTATIONS]


def _annotation_of_failure(check: CheckRow, inside: str) -> Annotation:
    """Return what happened, why, and a hint, on the student's line."""
    happened = check.message
    line = check.line or 1
    if check.cell:
        happened = f"Code cell {check.cell}, line {check.line}: {check.message}"
        line = 1  # GitHub counts the lines of a notebook's JSON
    hint = ""
    if check.hint:
        hint = f"Hint: {check.hint}"
    lines = []
    for text in (happened, check.why, hint):
        if text:
            lines.append(one_line(text)[:LONGEST_LINE])
    return Annotation(
        "error",
        title=f"{check.function}: {one_line(check.claim)}",
        message="\n".join(lines),
        file=join_texts("/", inside, check.file or ""),
        line=line,
    )


def annotations_of_changes(changes: Iterable[Change], inside: str = "") -> list[Annotation]:
    """Return a remark on each file that is not as it was released, but only the first ones.

    `inside` is where in the repository the checkout lies.
    """
    annotations = []
    for change in changes:
        message = (
            f"This file {CHANGES[change.what]}. "
            "It does not change your points, and your teacher can see it."
        )
        annotation = Annotation(
            "warning",
            title=f"{one_line(change.path)} was {change.what}",
            message=message,
            file=join_texts("/", inside, change.path),
            line=1,
        )
        annotations.append(annotation)
    return annotations[:MOST_ANNOTATIONS]


def log_of_output(text: str) -> Iterator[str]:
    """Yield what a student has printed, line by line, so that no line can be a command."""
    if not text.strip():
        return
    token = secrets.token_hex(32)
    yield f"::stop-commands::{token}"
    yield "What the submission printed:"
    surplus = len(text) - LONGEST_OUTPUT
    if surplus > 0:
        text = f"{text[:LONGEST_OUTPUT]}\n… and {surplus:,} characters more"
    # `splitlines` also splits at what only Python takes for the end of a line.
    for line in printable_lines(text).splitlines():
        yield f"│ {line}".replace("##[", "# #[")
    yield f"::{token}::"


def escaped_markdown(text: str) -> str:
    """Return text on one line that Markdown takes for nothing but text."""
    short = one_line(text)
    if len(short) > LONGEST_TEXT:
        short = f"{short[: LONGEST_TEXT - 1]}…"
    escaped = MARKDOWN_SIGNS.sub(r"\\\1", short)
    for sign, entity in ENTITIES.items():
        escaped = escaped.replace(f"\\{sign}", entity)
    return escaped


def summary_page(
    checkout: GradedCheckout, changes: Sequence[Change] | None, notes: Sequence[str] = ()
) -> str:
    """Return the page in Markdown.

    `changes` is None where there was no release to compare with. Raises OSError where the template
    of ours cannot be read.
    """
    row = checkout.row
    results = checkout.results
    facts = [*notes, *row.notes]
    if checkout.seed is not None:
        command = f"pytest exercises/{results.day} --seed {checkout.seed}"
        facts.append(f"To run the same scenarios yourself: {command}")
    facts.append(f"gpudojo {results.gpudojo}, torch {results.torch}, bench {results.bench}")
    lacking = missing_layers(results.layers)
    if lacking:
        facts.append(f"Isolation layers missing on this machine: {'; '.join(lacking)}")
    return _summary_template().render(
        row=row,
        failed=_checks_with(row, Outcome.FAILED),
        errors=_checks_with(row, Outcome.ERROR),
        changes=changes,
        known=facts,
    )


@functools.cache
def _summary_template() -> jinja2.Template:
    """Return the template of the page, read once. Raises OSError."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(number=format_points, text=escaped_markdown)
    environment.globals.update(whats=CHANGES, most=MOST_NOTES)
    path = Path(__file__).with_name("summary.md")
    return environment.from_string(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Report:
    """What a grading run prints and writes."""

    checkout: GradedCheckout
    changes: tuple[Change, ...] | None  # None: there was no release to compare with
    notes: tuple[str, ...] = ()
    inside: str = ""  # where in the repository the checkout lies

    def log_lines(self, in_workflow: bool) -> Iterator[str]:
        """Yield the log line by line.

        In a workflow it has commands that put remarks on the student's lines.
        """
        row = self.checkout.row
        yield from self._table_of_points()
        if in_workflow:
            yield from log_of_output(row.output_for_student)
            for annotation in self._all_annotations():
                yield annotation.as_command()
            return
        for line in log_of_output(row.output_for_student):
            if not line.startswith("::"):
                yield line
        for annotation in self._all_annotations():
            yield annotation.as_sentence()

    def _table_of_points(self) -> Iterator[str]:
        """Yield a line for each exercise, and one for the total.

        Raises ValueError without exercises.
        """
        row = self.checkout.row
        names = [exercise.exercise for exercise in row.exercises]
        width = max(map(len, names))
        for exercise in row.exercises:
            yield _line_of_table(exercise.exercise, exercise.score, exercise.max_score, width)
        yield _line_of_table("total", row.score, row.max_score, width)

    def _all_annotations(self) -> list[Annotation]:
        """Return remarks on failures and changes, and the notes."""
        failures = annotations_of_failures(self.checkout.row, self.inside)
        changes = annotations_of_changes(self.changes or (), self.inside)
        notes = [Annotation("warning", "gpudojo", note) for note in self.notes]
        return failures + changes + notes[:MOST_ANNOTATIONS]


def _line_of_table(name: str, score: float, maximum: float, width: int) -> str:
    """Return a line of the table of points."""
    points = format_points(score)
    out_of = format_points(maximum)
    return f"{name:{width}}  {points:>6} of {out_of:>4}"


def write_report(
    report: Report, readers: Sequence[str], out: Path, environment: Mapping[str, str]
) -> list[Path]:
    """Write the files that each of `readers` ("github", "classroom50") reads, and return them.

    All of them are made before one is written. `environment` are the runner's variables. Raises
    CannotExport where some of them are missing, BadDay where the day cannot be imported, and
    OSError.
    """
    # The contents.
    outputs = None
    if "github" in readers:
        outputs = _github_outputs(report.checkout, environment)
    # For both readers, it is Classroom 50 only where its runner says so.
    runs_there = len(readers) == 1 or bool(environment.get("CLASSROOM"))
    result = None
    if "classroom50" in readers and runs_there:
        result = _classroom50_result(report.checkout, environment)
    page = summary_page(report.checkout, report.changes, report.notes)
    # The files.
    written = []
    if result is not None:
        out.mkdir(parents=True, exist_ok=True)
        replace_file(out / RESULT, result)
        written.append(out / RESULT)
    if outputs is not None:
        written.append(_write_for_workflow(OUTPUT, outputs, out, environment))
    if outputs is not None or environment.get(SUMMARY):
        written.append(_write_for_workflow(SUMMARY, page, out, environment))
    return written


def _write_for_workflow(name: str, text: str, out: Path, environment: Mapping[str, str]) -> Path:
    """Append to the file that GitHub has made for it, by the variable `name`.

    Where there is no workflow, write one to `out` that a person can look at. Returns the file.
    Raises OSError.
    """
    if environment.get(name):
        path = Path(environment[name])
        most = None
        if name == SUMMARY:
            most = LARGEST_SUMMARY
        append_text(path, text, most)
        return path
    out.mkdir(parents=True, exist_ok=True)
    path = out / WITHOUT_ACTIONS[name]
    replace_file(path, text.encode("utf-8", "replace"))
    return path


def _github_outputs(checkout: GradedCheckout, environment: Mapping[str, str]) -> str:
    """Return a line for each runner, and `result` for the whole submission.

    The latter is there only if one variable can hold it. Raises BadDay where the day cannot be
    imported, and OSError.
    """
    files = _export_one("github_classroom", checkout.results, checkout.row, environment)
    outputs = files["outputs"].decode("ascii")
    of_exercises = set()
    for line in outputs.splitlines():
        runner_id = line.partition("=")[0]
        of_exercises.add(f"{runner_id}.base64")
    for name, data in files.items():
        if name.endswith(".base64") and name not in of_exercises:
            outputs += f"result={data.decode('ascii')}\n"
    return outputs


def _classroom50_result(checkout: GradedCheckout, environment: Mapping[str, str]) -> bytes:
    """Return the content of result.json. Who was graded, the environment says, not the name.

    Raises CannotExport where variables are missing, BadDay where the day cannot be imported, and
    OSError.
    """
    variables = dict(environment)
    if not variables.get("REVIEW_URL"):
        variables["REVIEW_URL"] = variables.get("COMMIT_URL", "")
    row = checkout.row
    owner = variables.get("OWNER") or variables.get("USERNAME")
    if owner:
        row = msgspec.structs.replace(row, identifier=owner, naming="classroom")
    files = _export_one("classroom50", checkout.results, row, variables)
    return files[RESULT]


def _export_one(
    name: str, header: ClassResults, row: SubmissionRow, environment: Mapping[str, str]
) -> dict[str, bytes]:
    """Return the files of an exporter for one submission, by name.

    Raises what the exporter raises, BadDay where the day cannot be imported, and OSError.
    """
    options = Options(
        submission=row.submission,
        exercises=exercises_of_day(header.day),
        environment=environment,
    )
    with tempfile.TemporaryDirectory(prefix="dojo-classroom-") as folder:
        paths = exporter_of(name)(header, [row], Path(folder), options)
        return {path.name: path.read_bytes() for path in paths}
