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
from gpudojo.platforms import Options, exporter, parts_of
from gpudojo.platforms._autograder import Graded
from gpudojo.platforms._entries import one_line, printable
from gpudojo.release.manifest import Change
from gpudojo.sandbox.layers import missing_layers

OUTPUT: Final = "GITHUB_OUTPUT"
SUMMARY: Final = "GITHUB_STEP_SUMMARY"
FILES: Final = (OUTPUT, SUMMARY, "GITHUB_ENV", "GITHUB_PATH", "GITHUB_STATE")
LARGEST_SUMMARY: Final = 1_000_000  # bytes; GitHub drops a longer one altogether
SHOWN: Final = 10  # annotations of a kind that GitHub shows for a step
LONGEST: Final = 500  # characters of a line of an annotation
LONGEST_TEXT: Final = 300  # characters of a text in the summary
MOST_OUTPUT: Final = 16_000  # characters of what a student printed
MOST: Final = 50  # changed files, and notes
SPECIAL: Final = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$@&:])")
RESULT: Final = "result.json"
WITHOUT_ACTIONS: Final = {OUTPUT: "github-outputs.txt", SUMMARY: "summary.md"}


@contextlib.contextmanager
def guarded(environment: Mapping[str, str]) -> Iterator[list[str]]:
    """While student code runs; afterwards the list names the files that were written to."""
    before = {name: _content(environment[name]) for name in FILES if environment.get(name)}
    touched: list[str] = []
    try:
        yield touched
    finally:
        for name, data in before.items():
            path = Path(environment[name])
            if _content(environment[name]) == data:
                continue
            touched.append(name)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                if data is not None:
                    path.write_bytes(data)


def _content(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except OSError:
        return None


def append(path: Path, text: str, most: int | None = None) -> None:
    data = text.encode("utf-8", "replace")
    if most is not None and len(data) > most:
        data = data[:most].decode("utf-8", "ignore").encode() + b"\n\n...\n"
    with path.open("ab") as file:
        file.write(data)


def replace(path: Path, data: bytes) -> None:
    """A file in a student's checkout: whole or not at all, and beside whatever a link of that name leads to."""
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


WHATS: Final = {
    "changed": "differs from the released file",
    "deleted": "was deleted",
    "added": "is not part of the release",
}


@dataclass(frozen=True)
class Annotation:
    """A remark on a line of a file."""

    level: str  # "error", "warning", "notice"
    title: str
    message: str
    file: str = ""
    line: int = 0

    def command(self) -> str:
        properties = {
            "file": self.file,
            "line": str(self.line) if self.line else "",
            "title": self.title,
        }
        given = ",".join(
            f"{name}={escaped(text, ':,')}" for name, text in properties.items() if text
        )
        return f"::{self.level} {given}::{escaped(self.message)}"


def escaped(text: str, more: str = "") -> str:
    """Text as the message of a command; with `more` characters replaced, as the value of one of its properties."""
    return "".join(f"%{ord(letter):02X}" if letter in f"%\r\n{more}" else letter for letter in text)


def _checks(row: SubmissionRow, outcome: Outcome) -> list[CheckRow]:
    return [
        check for exercise in row.exercises for check in exercise.checks if check.outcome is outcome
    ]


def on_lines(row: SubmissionRow, inside: str = "") -> list[Annotation]:
    """What failed, each on the student's own line; `inside` is where in the repository the checkout lies."""
    failed = [check for check in _checks(row, Outcome.FAILED) if check.file]
    first = {
        (check.function, check.file, check.cell, check.line): check for check in reversed(failed)
    }
    remarks = []
    for check in list(reversed(first.values()))[:SHOWN]:
        cell = f"Code cell {check.cell}, line {check.line}: " if check.cell else ""
        said = (f"{cell}{check.message}", check.why, f"Hint: {check.hint}" if check.hint else "")
        message = "\n".join(one_line(text)[:LONGEST] for text in said if text)
        title = f"{check.function}: {one_line(check.claim)}"
        file = "/".join(filter(None, (inside, check.file)))
        # GitHub counts the lines of a notebook's JSON.
        remarks.append(
            Annotation("error", title, message, file, 1 if check.cell else check.line or 1)
        )
    return remarks


def on_changes(changes: Iterable[Change], inside: str = "") -> list[Annotation]:
    """What was changed of the release."""
    remarks = []
    for change in changes:
        title = f"{one_line(change.path)} was {change.what}"
        file = "/".join(filter(None, (inside, change.path)))
        said = f"This file {WHATS[change.what]}. It does not change your points, and your teacher can see it."
        remarks.append(Annotation("warning", title, said, file, 1))
    return remarks[:SHOWN]


def quoted(text: str) -> Iterator[str]:
    """What a student has printed, line by line."""
    if not text.strip():
        return
    token = secrets.token_hex(32)
    yield f"::stop-commands::{token}"
    yield "What the submission printed:"
    if (more := len(text) - MOST_OUTPUT) > 0:
        text = f"{text[:MOST_OUTPUT]}\n… and {more:,} characters more"
    for line in printable(
        text
    ).splitlines():  # also at what only Python takes for the end of a line
        yield f"│ {line}".replace("##[", "# #[")
    yield f"::{token}::"


def escaped_markdown(text: str) -> str:
    """Text on one line that Markdown takes for nothing but text."""
    short = one_line(text)
    if len(short) > LONGEST_TEXT:
        short = f"{short[: LONGEST_TEXT - 1]}…"
    return (
        SPECIAL.sub(r"\\\1", short)
        .replace("\\<", "&lt;")
        .replace("\\>", "&gt;")
        .replace("\\&", "&amp;")
    )


def summary(graded: Graded, changes: Sequence[Change] | None, notes: Sequence[str] = ()) -> str:
    """The page in Markdown; `changes` is None where there was no release to compare with."""
    row = graded.row
    results = graded.results
    known = [*notes, *row.notes]
    if graded.seed is not None:
        known.append(
            f"To run the same scenarios yourself: pytest exercises/{results.day} --seed {graded.seed}"
        )
    known.append(f"gpudojo {results.gpudojo}, torch {results.torch}, bench {results.bench}")
    if lacking := missing_layers(results.layers):
        known.append(f"Isolation layers missing on this machine: {'; '.join(lacking)}")
    failed = _checks(row, Outcome.FAILED)
    errors = _checks(row, Outcome.ERROR)
    return _template().render(row=row, failed=failed, errors=errors, changes=changes, known=known)


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(number=format_points, text=escaped_markdown)
    environment.globals.update(whats=WHATS, most=MOST)
    return environment.from_string(
        Path(__file__).with_name("summary.md").read_text(encoding="utf-8")
    )


@dataclass(frozen=True)
class Report:
    """What a grading run prints and writes."""

    graded: Graded
    changes: tuple[Change, ...] | None  # None: there was no release to compare with
    notes: tuple[str, ...] = ()
    inside: str = ""  # where in the repository the checkout lies

    def log(self, actions: bool) -> Iterator[str]:
        """Line by line; in a workflow with commands that put remarks on the student's lines."""
        row = self.graded.row
        width = max(len(exercise.exercise) for exercise in row.exercises)
        lines = [(each.exercise, each.score, each.max_score) for each in row.exercises]
        for name, score, most in (*lines, ("total", row.score, row.max_score)):
            yield f"{name:{width}}  {format_points(score):>6} of {format_points(most):>4}"
        remarks = [
            *on_lines(row, self.inside),
            *on_changes(self.changes or (), self.inside),
            *(Annotation("warning", "gpudojo", note) for note in self.notes[:SHOWN]),
        ]
        printed = quoted(row.output)
        if actions:
            yield from printed
            yield from (remark.command() for remark in remarks)
            return
        yield from (line for line in printed if not line.startswith("::"))
        for remark in remarks:
            place = f"{remark.file}:{remark.line}: " if remark.line else ""
            yield f"{remark.level}: {place}{remark.title}: {' '.join(remark.message.split())}"


def write(
    report: Report, whom: Sequence[str], out: Path, environment: Mapping[str, str]
) -> list[Path]:
    """The files that each of `whom` ("github", "classroom50") reads; all of them are made before one is written."""
    outputs = _outputs(report.graded, environment) if "github" in whom else None
    # For both, it is Classroom 50 only where its runner says so.
    fifty = "classroom50" in whom and (len(whom) == 1 or bool(environment.get("CLASSROOM")))
    result = _result(report.graded, environment) if fifty else None
    page = summary(report.graded, report.changes, report.notes)
    written = []
    if result is not None:
        out.mkdir(parents=True, exist_ok=True)
        replace(out / RESULT, result)
        written.append(out / RESULT)
    if outputs is not None:
        written.append(_log_lines(OUTPUT, outputs, out, environment))
    if outputs is not None or environment.get(SUMMARY):
        written.append(_log_lines(SUMMARY, page, out, environment))
    return written


def _log_lines(name: str, text: str, out: Path, environment: Mapping[str, str]) -> Path:
    """To the file that GitHub has made for it, or where there is no workflow, to one that a person can look at."""
    if environment.get(name):
        append(Path(environment[name]), text, LARGEST_SUMMARY if name == SUMMARY else None)
        return Path(environment[name])
    out.mkdir(parents=True, exist_ok=True)
    replace(out / WITHOUT_ACTIONS[name], text.encode("utf-8", "replace"))
    return out / WITHOUT_ACTIONS[name]


def _outputs(graded: Graded, environment: Mapping[str, str]) -> str:
    """A line for each runner, and `result` for the whole submission where one variable can hold it."""
    made = _exported("github_classroom", graded.results, graded.row, environment)
    lines = made["outputs"].decode("ascii")
    own = {f"{line.partition('=')[0]}.base64" for line in lines.splitlines()}
    whole = [
        data.decode("ascii")
        for name, data in made.items()
        if name.endswith(".base64") and name not in own
    ]
    return lines + "".join(f"result={text}\n" for text in whole)


def _result(graded: Graded, environment: Mapping[str, str]) -> bytes:
    """Who was graded, the environment says; a repository's name may be misread."""
    known = {
        **environment,
        "REVIEW_URL": environment.get("REVIEW_URL") or environment.get("COMMIT_URL", ""),
    }
    row = graded.row
    if owner := known.get("OWNER") or known.get("USERNAME"):
        row = msgspec.structs.replace(row, identifier=owner, naming="classroom")
    return _exported("classroom50", graded.results, row, known)[RESULT]


def _exported(
    name: str, header: ClassResults, row: SubmissionRow, environment: Mapping[str, str]
) -> dict[str, bytes]:
    """The files of an exporter for one submission, by name."""
    options = Options(
        submission=row.submission, exercises=parts_of(header.day), environment=environment
    )
    with tempfile.TemporaryDirectory(prefix="dojo-classroom-") as folder:
        return {
            path.name: path.read_bytes()
            for path in exporter(name)(header, [row], Path(folder), options)
        }
