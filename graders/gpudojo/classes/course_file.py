"""The course file and the roster."""

from __future__ import annotations

import codecs
import contextlib
import csv
import datetime
import io
import math
import re
import tomllib
import typing
import unicodedata
import zoneinfo
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from gpudojo.model.catalogue import days
from gpudojo.model.errors import BadFile, suggestion
from gpudojo.model.exercise import Exercise
from gpudojo.model.results import (
    AttemptRule,
    ExerciseRow,
    Grade,
    HandItem,
    RosterRow,
    SubmissionRow,
    Timing,
    Visibility,
    When,
    rounded,
    total,
)
from gpudojo.model.results_file import COLUMNS, replacing
from gpudojo.submissions.entries import Submitter

# By field, the headings of Canvas, Moodle, Gradescope, GitHub Classroom and plain tables; the first one found is used.
# Below are Moodle's in German, French, Spanish, Italian, Dutch and Portuguese.
HEADINGS: Final = {
    "id": (
        *(
            "id",
            "student id",
            "identifier",
            "sid",
            "sis user id",
            "id number",
            "number",
            "matriculation number",
        ),
        *(
            "id-nummer",
            "matrikelnummer",
            "identifiant",
            "numéro d'identification",
            "identificador",
            "número de id",
        ),
        *(
            "identificativo",
            "codice identificativo",
            "identificatie",
            "id-nummer",
            "número de identificação",
        ),
    ),
    "name": (
        *("name", "student", "full name", "student name"),
        *(
            "vollständiger name",
            "nom complet",
            "nombre completo",
            "nome completo",
            "volledige naam",
        ),
    ),
    "first": (
        *("first name", "given name", "firstname"),
        *("vorname", "prénom", "nombre", "nome", "voornaam"),
    ),
    "last": (
        *("last name", "surname", "family name", "lastname"),
        *(
            "nachname",
            "nom de famille",
            "nom",
            "apellido(s)",
            "apellidos",
            "cognome",
            "achternaam",
            "sobrenome",
            "apelido",
        ),
    ),
    "email": (
        *("email", "e-mail", "email address", "e-mail address", "mail"),
        *(
            "e-mail-adresse",
            "adresse de courriel",
            "dirección de correo",
            "dirección email",
            "indirizzo email",
        ),
        *("e-mailadres", "endereço de e-mail", "endereço de email"),
    ),
    "section": (
        *("section", "sections", "section name", "group", "groups", "course section", "tutorial"),
        *(
            "gruppe",
            "gruppen",
            "groupe",
            "groupes",
            "grupo",
            "grupos",
            "gruppo",
            "gruppi",
            "groep",
            "groepen",
        ),
    ),
    "github": ("github", "github username", "github name", "github login", "github account"),
    "login": ("sis login id", "login", "login id", "username", "user name", "netid", "account"),
}
IDS: Final = frozenset(HEADINGS["id"]) | {"github id", "integration id"}
_SUBMITTED: Final = re.compile(
    r"last modified \((submission|abgabe)\)|zuletzt geändert \(abgabe\)|submitted( at)?"
)
_LAST_MODIFIED: Final = r"(.+?)\s*[(\uff08]\D+[)\uff09]"
# Of Moodle in the languages above, by the day or, in American English, by the month.
_MONTHS: Final = {
    month: number
    for months in (
        "january february march april may june july august september october november december",
        "januar februar märz april mai juni juli august september oktober november dezember",
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
        "januari februari maart april mei juni juli augustus september oktober november december",
        "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    )
    for number, month in enumerate(months.split(), 1)
}
_DAY_FIRST: Final = r"(?P<day>\d\d?)\.?\s+(?:de\s+)?(?P<month>[^\W\d_]+)\s+(?:de\s+)?"
_MONTH_FIRST: Final = r"(?P<month>[^\W\d_]+)\s+(?P<day>\d\d?),\s*"
_CLOCK: Final = (
    r"(?P<year>\d{4})\D+(?P<hour>\d\d?)[:.h](?P<minute>\d\d)(?:\s*(?P<half>[ap])\.?\s?m\.?)?"
)
_DATES: Final = tuple(rf".*?\b{first}{_CLOCK}" for first in (_DAY_FIRST, _MONTH_FIRST))
_DATES_IN_FIGURES: Final = (
    "%d.%m.%Y, %H:%M",
    "%d.%m.%Y %H:%M",
    "%d/%m/%Y, %H:%M",
    "%d/%m/%Y %H:%M",
    "%Y-%m-%d %H:%M",
)


@dataclass
class Roster:
    """The students of a class."""

    rows: list[RosterRow] = field(default_factory=list)
    submitted: dict[int, str] = field(
        default_factory=dict
    )  # by row: when, where the platform's table says so
    notes: list[str] = field(default_factory=list)
    _ids: dict[str, set[int]] = field(default_factory=dict)
    _names: dict[str, set[int]] = field(default_factory=dict)

    def add(self, row: RosterRow, more_ids: Iterable[str] = ()) -> int:
        number = len(self.rows)
        self.rows.append(row)
        for one in (row.id, row.email, row.github, row.login, *more_ids):
            if one:
                self._ids.setdefault(key(one), set()).add(number)
        for spelled in spellings(row.name):
            self._names.setdefault(spelled, set()).add(number)
        return number

    def match(self, identifier: str | None, *names: str) -> set[int]:
        """The rows of a student: by an id, then by a name, then by an id in a name; several where they are alike."""
        given = [name for name in names if name]
        for one in (identifier, *given):
            if one and (found := self._ids.get(key(one))):
                return found
        for one in given:
            for spelled in spellings(one):
                if found := self._names.get(spelled):
                    return found
        parts = {
            key(part)
            for one in given
            for part in re.split(r"[\s_]+|(?<=\d)-|-(?=\d)", one)
            if len(part) >= 4
        }
        return set().union(*(self._ids.get(part, set()) for part in parts))

    def people(
        self, identifier: str | None, names: Sequence[str], people: Sequence[Submitter]
    ) -> tuple[list[int], str]:
        """The rows of those who handed in one submission; and a sentence where one of them is not known."""
        found: list[int] = []
        said = ""
        for who in people or [Submitter("")]:
            rows = (
                self.match(who.sid or who.email or None, who.email, who.name) if who.name else set()
            )
            rows = rows or (self.match(identifier, *names) if len(people) < 2 else set())
            if len(rows) == 1:
                found += [row for row in rows if row not in found]
            elif rows:
                alike = ", ".join(sorted(self.rows[row].id or self.rows[row].name for row in rows))
                said = f"several on the roster match {who.name or names[0]}: {alike}"
            else:
                said = f"nobody on the roster matches {who.name or names[0]}"
        return found, said


def spellings(name: str) -> list[str]:
    """A name as letters alone, in the orders in which platforms write it: Ada Example, Example, Ada, examplead."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    first, comma, last = plain.partition(",")
    if comma:
        plain = f"{last} {first}"
    words = ["".join(c for c in word if c.isalnum()) for word in re.split(r"[\s_.-]+", plain)]
    words = [word for word in words if word]
    turned = ["".join([*words[n:], *words[:n]]) for n in range(len(words))]
    return list(dict.fromkeys(turned))


def read_roster(path: Path, zone: datetime.tzinfo = datetime.UTC) -> Roster:
    """The roster in a CSV file; raises BadFile with the line. Dates without a time zone are in `zone`."""
    lines = table(path)
    headings = [key(cell.replace("_", " ")) for cell in lines[0][1]]
    columns = {
        name: next((headings.index(heading) for heading in known if heading in headings), None)
        for name, known in HEADINGS.items()
    }
    if all(columns[name] is None for name in ("id", "name", "first", "last", "email", "github")):
        every = [heading for known in HEADINGS.values() for heading in known]
        near = next((hint for one in headings if (hint := suggestion(one, every, ""))), "")
        said = (
            "the first line has to name the columns, one of them id, name, email or github; it has "
        )
        said += ", ".join(cell[:40] for cell in lines[0][1][:8]) + near
        raise BadFile(str(path), lines[0][0], said)
    dates = _handed_in(headings)
    more = [n for n, heading in enumerate(headings) if heading in IDS]
    roster = Roster()
    seen: dict[str, int] = {}
    for line, cells in lines[1:]:
        if key(cells[0]) in ("points possible", "test student") or _posting(cells):
            continue  # of Canvas: the maximum, a student that does not exist, and which assignments are posted by hand

        def cell(name: str, cells: list[str] = cells) -> str:
            at = columns[name]
            return " ".join(cells[at].split()) if at is not None and at < len(cells) else ""

        used = [cells[n] for n in (*more, *columns.values()) if n is not None and n < len(cells)]
        if any("\n" in text.strip() for text in used):
            raise BadFile(str(path), line, f"a name or id has several lines; {_UNCLOSED}")
        first, comma, last = cell("name").partition(",")
        family = first.strip() if comma else "" if first else cell("last")
        name = (
            f"{last.strip()} {first}".strip()
            if comma
            else first or f"{cell('first')} {family}".strip()
        )
        id_ = _number(cell("id")) or cell("email") or cell("github") or name
        if not id_:
            raise BadFile(
                str(path),
                line,
                "neither an id, a name, an e-mail address nor a GitHub name is given",
            )
        if key(id_) in seen:
            said = f"{id_!r} is {'the id of' if cell('id') else 'in'} line {seen[key(id_)]}, too"
            raise BadFile(str(path), line, said + "; give both an id" * (id_ == name))
        seen[key(id_)] = line
        # The tables of Canvas and GitHub Classroom have no addresses, but logins or identifiers that often are.
        email = cell("email") or next((each for each in (cell("login"), id_) if "@" in each), "")
        row = RosterRow(id_, name, email, cell("section"), cell("github"), cell("login"), family)
        others = [_number(" ".join(cells[n].split())) for n in more if n < len(cells)]
        number = roster.add(row, others)
        if dates is not None and dates < len(cells) and cells[dates].strip(" -"):
            if at := _moment(cells[dates], zone):
                roster.submitted[number] = at
            else:
                roster.notes.append(
                    f"{path}, line {line}: the date {cells[dates]!r} cannot be read and is not used"
                )
    if not roster.rows:
        raise BadFile(str(path), None, "there is nobody in it")
    return roster


def _posting(cells: list[str]) -> bool:
    return not cells[0].strip() and {cell.strip() for cell in cells} <= {"", "Manual Posting"}


_WORKBOOKS: Final = (b"PK\3\4", b"\xd0\xcf\x11\xe0")  # .xlsx and .ods; .xls
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # Excel's "Unicode text"
_UNCLOSED: Final = "is a quotation mark not closed?"
_SEPARATOR: Final = re.compile(r"sep=(.)\r?\n")  # Excel's, for itself


def table(path: Path) -> list[tuple[int, list[str]]]:
    """The lines of a CSV file that are not empty, each with its number; raises BadFile where there are none."""
    try:
        data = path.read_bytes()
        if data[:4] in _WORKBOOKS:
            raise BadFile(
                str(path), None, "this is a workbook, not CSV; save the table as CSV in UTF-8"
            )
        text = data.decode("utf-16" if data[:2] in _UTF_16 else "utf-8-sig")
    except OSError as error:
        raise BadFile(str(path), None, f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise BadFile(
            str(path), line, "this is not UTF-8 text; save the table as CSV in UTF-8"
        ) from None
    told = _SEPARATOR.match(text)
    text = text.removeprefix(told[0]) if told else text
    head = re.sub(r'"[^"]*"', "", text.lstrip("\r\n").partition("\n")[0])
    delimiter = told[1] if told else max(",;\t", key=head.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    found: list[tuple[int, list[str]]] = []
    before = at = 1 + bool(told)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                found.append((at, cells))
            at = reader.line_num + before
    except csv.Error as error:
        raise BadFile(str(path), at, f"this is not CSV: {error}; {_UNCLOSED}") from None
    if not found:
        raise BadFile(str(path), None, "it is empty")
    return found


def _number(cell: str) -> str:
    """Moodle's "Participant 1234", in whatever language, of which the names of its files have the number."""
    found = re.fullmatch(r"[^\W\d_][^\s\d]*\s+(\d+)", cell)
    return found[1] if found else cell


def _handed_in(headings: Sequence[str]) -> int | None:
    """The column that tells when each student handed in; None where there is none."""
    for number, heading in enumerate(headings):
        if _SUBMITTED.fullmatch(heading):
            return number
    # Moodle's worksheet has two that begin alike, in whatever language: of the submission, and then of the grade.
    begin = [
        found[1] if (found := re.fullmatch(_LAST_MODIFIED, heading)) else "" for heading in headings
    ]
    return next((number for number, one in enumerate(begin) if one and begin.count(one) == 2), None)


def _moment(text: str, zone: datetime.tzinfo) -> str:
    text = " ".join(unicodedata.normalize("NFC", text).split())
    for pattern in _DATES:
        if (told := re.fullmatch(pattern, text, re.IGNORECASE)) and (
            month := _MONTHS.get(told["month"].casefold())
        ):
            hour = (
                int(told["hour"]) % 12 + 12 * (told["half"] in "pP")
                if told["half"]
                else int(told["hour"])
            )
            with contextlib.suppress(ValueError):
                at = datetime.datetime(
                    int(told["year"]), month, int(told["day"]), hour, int(told["minute"])
                )
                return at.replace(tzinfo=zone).isoformat()
    for form in _DATES_IN_FIGURES:
        try:
            return datetime.datetime.strptime(text, form).replace(tzinfo=zone).isoformat()
        except ValueError:
            continue
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        return ""
    return (found if found.tzinfo else found.replace(tzinfo=zone)).isoformat()


NAME: Final = "course.toml"
DAY: Final = 86_400
YEARS: Final = range(2000, 3000)
MOST_DAYS: Final = 1000  # of an extension
PLACES: Final = 2  # of published points, as platforms show them
LEAST_POINTS: Final = 0.01
MOST_POINTS: Final = 1_000_000
SeedRule = Literal["per-class", "per-student"]
Base = Literal["maximum", "earned"]


class Worth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an exercise counts."""

    points: float | None = None  # None: those of its checks
    extra: bool = False


class LateRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What being late costs."""

    penalty: float = 0.0  # percent for each day that has begun
    grace: float = 0.0  # minutes
    cap: float = 100.0  # percent
    of: Base = "maximum"


class _Item(HandItem, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class _Visible(Visibility, frozen=True, forbid_unknown_fields=True):
    pass


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file as it is written; tables with free names are checked entry by entry."""

    title: str = ""
    day: str | None = None
    points: float | None = None
    deadline: datetime.datetime | None = None
    time_zone: str = ""
    attempt: AttemptRule | None = None
    seed: SeedRule = "per-class"
    roster: str = ""
    exercises: dict[str, Any] = {}
    late: LateRule = LateRule()
    extensions: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    visibility: _Visible = _Visible()
    by_hand: list[_Item] = []


NO_PENALTY: Final = LateRule()
ALL_VISIBLE: Final = Visibility()


@dataclass(frozen=True)
class CourseRules:
    """The rules of a course; without a file, those that change nothing."""

    path: Path | None = None
    title: str = ""
    day: str | None = None
    points: float | None = None
    deadline: datetime.datetime | None = None
    zone: datetime.tzinfo = datetime.UTC
    attempt: AttemptRule | None = None
    seed: SeedRule = "per-class"
    roster: Path | None = None
    worths: Mapping[str, Worth] = field(
        default_factory=dict
    )  # by what the file calls the exercise; empty: all count
    late: LateRule = NO_PENALTY
    extensions: Mapping[str, datetime.datetime] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    visibility: Visibility = ALL_VISIBLE
    by_hand: tuple[HandItem, ...] = ()
    text: str = ""

    @property
    def lateness(self) -> str:
        """What being late costs, in words; empty where it costs nothing."""
        rule = self.late
        if not rule.penalty:
            return ""
        base = "the maximum" if rule.of == "maximum" else "what was earned"
        said = f"{rule.penalty:g} % of {base} off for each day late"
        said += f", at most {rule.cap:g} %" * (rule.cap < 100)
        return said + f", after {rule.grace:g} minutes of grace" * bool(rule.grace)

    def refuse(self, reason: str, *path: str) -> BadFile:
        """The error for a setting."""
        return BadFile(str(self.path), line_of(self.text, path), reason)

    def chosen(self, exercises: Sequence[Exercise]) -> dict[str, Worth]:
        """By stem, what each exercise counts that is graded; raises BadFile for a name that is none."""
        found: dict[str, Worth] = {}
        for name, worth in self.worths.items():
            stem = exercise_named(name, [exercise.stem for exercise in exercises])
            if stem is None:
                hint = suggestion(name, [exercise.stem for exercise in exercises])
                raise self.refuse(f"there is no exercise {name!r}{hint}", "exercises", name)
            if stem in found:
                raise self.refuse(f"the exercise {stem} is listed twice", "exercises", name)
            found[stem] = worth
        for number, item in enumerate(self.by_hand):
            if exercise_named(item.name, [exercise.stem for exercise in exercises]):
                raise self.refuse(
                    f"{item.name!r} is the name of an exercise", "by_hand", str(number), "name"
                )
        return found or {exercise.stem: Worth() for exercise in exercises}

    def too_short(self) -> list[tuple[str, str]]:
        """The extensions that end before the deadline, each with a sentence about it."""
        due = self.deadline
        early = {
            who: date for who, date in self.extensions.items() if due is not None and date < due
        }
        said = f"before the deadline, {due:%Y-%m-%d %H:%M %Z}, which holds" if due else ""
        return [
            (who, f"the extension of {who!r} ends {date:%Y-%m-%d %H:%M %Z}, {said}")
            for who, date in early.items()
        ]

    def timing(
        self, submitted: str, told_by: str, marked: bool, names: Collection[str]
    ) -> Timing | None:
        """When it was handed in, for a student with these names; None where nothing is known and nothing is due."""
        own = next((date for who, date in self.extensions.items() if key(who) in names), None)
        # An extension that ends before the deadline changes nothing; `too_short` tells the teacher.
        due = max(filter(None, (self.deadline, own)), default=None)
        known = Timing(
            submitted,
            told_by,
            due.isoformat() if due else "",
            extended=own is not None and due == own,
        )
        if submitted and due:
            over = math.ceil((datetime.datetime.fromisoformat(submitted) - due).total_seconds())
            late = over > self.late.grace * 60
            return replace(known, late=late, late_seconds=over if late else None)
        if marked and not known.extended:
            return replace(known, late=True)
        return known if known != Timing() else None

    def graded(self, row: SubmissionRow, timing: Timing | None) -> SubmissionRow:
        """The row with what is published: on the scale of the course, less the penalty."""
        if self.points is None and (timing is None or not timing.late or not self.late.penalty):
            return replace(row, timing=timing)
        out_of = row.max_score if self.points is None else self.points
        points = row.score * (out_of / row.max_score) if row.max_score else 0.0
        if timing is not None and timing.late:
            begun = math.ceil((timing.late_seconds or 1) / DAY)
            share = min(self.late.penalty * begun, self.late.cap) / 100
            penalty = min(points, share * (out_of if self.late.of == "maximum" else points))
            timing = replace(timing, penalty=_to_publish(penalty))
            points = points - penalty
        return replace(row, timing=timing, grade=Grade(_to_publish(points), total([out_of])))


def _to_publish(points: float) -> float:
    """Rounded to the places that platforms show, as people round: 4.825 is 4.83, also as 7.125 - 2.3."""
    return math.floor(total([points * 10**PLACES]) + 0.5) / 10**PLACES


def key(name: str) -> str:
    """A name or id as it is compared: however accents are encoded, without marks of direction, the last name last."""
    if not name.isascii():
        name = "".join(
            c for c in unicodedata.normalize("NFC", name) if unicodedata.category(c) != "Cf"
        )
    last, comma, first = name.partition(",")
    return " ".join((f"{first} {last}" if comma else name).split()).casefold()


def exercise_named(name: str, stems: Iterable[str]) -> str | None:
    """The exercise of a stem, or of a number: `04_…` for 04, 4 or 04_…."""
    number = name.lstrip("0") or "0"
    return next(
        (
            stem
            for stem in stems
            if name == stem or number == (stem.partition("_")[0].lstrip("0") or "0")
        ),
        None,
    )


def weighed(exercise: ExerciseRow, worth: Worth, whole: float) -> ExerciseRow:
    """The exercise with its points as they count in the course; `whole` is what all its checks are worth."""
    if worth.points is None or not whole:
        return replace(exercise, extra=worth.extra) if worth.extra else exercise
    factor = worth.points / whole
    most = rounded([check.max_points * factor for check in exercise.checks])
    checks = [
        replace(
            check, max_points=points, points=points if check.points == check.max_points else 0.0
        )
        for check, points in zip(exercise.checks, most, strict=True)
    ]
    max_score = total(most) if checks else total([exercise.max_score * factor])
    score = total(check.points for check in checks)
    return replace(exercise, checks=checks, score=score, max_score=max_score, extra=worth.extra)


# Reading


def find(submissions: Sequence[Path], is_submission: Any) -> Path | None:
    """The course file beside submissions: in the folder of the class, or in the one above. Never in a student's own."""
    for path in submissions:
        folder = path.absolute()
        here = [] if folder.is_file() or is_submission(folder) else [folder]
        for place in (*here, folder.parent, folder.parent.parent):
            # The folder above a student's may be a checkout that holds it, and would be the student's, too.
            if (place / NAME).is_file() and (place == folder or not is_submission(place)):
                return place / NAME
    return None


# By what the message or the line has: what the mistake may be.
_HINTS: Final = (
    ("[\u201c\u201d\u201e\u2018\u2019]", 'use straight quotes: "day8"'),
    (r"=\s*\d+,\d", "numbers have a decimal point: 2.5"),
    ("Invalid date", "there is no such day or time; write it as 2026-11-20T23:59:00+01:00"),
    (
        r"after a statement\n.*=\s*\d{4}-\d",
        "there is no such day or time; write it as 2026-11-20T23:59:00+01:00",
    ),
    ("Invalid value", "texts and dates with a space need quotes"),
    ("after a key", 'a name with a space or @ needs quotes: "Ada Example" = 3'),
)


def load(path: Path) -> CourseRules:
    """The course in a file; raises BadFile with the line and a suggestion."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        raw = tomllib.loads(text)
    except OSError as error:
        raise BadFile(str(path), None, f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadFile(str(path), None, "it is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)", str(error))
        said = str(error).replace(place[0], "") if place else str(error)
        line = int(place[1] or len(text.rstrip().splitlines())) if place else None
        written = text.splitlines()[line - 1] if line and line <= len(text.splitlines()) else ""
        hint = next(
            (f"; {hint}" for sign, hint in _HINTS if re.search(sign, f"{said}\n{written}")), ""
        )
        raise BadFile(str(path), line, f"this is not TOML: {said}{hint}") from None
    file = _converted(path, text, raw, _File, ())
    bare = CourseRules(path, text=text)
    if file.day is not None and file.day not in days():
        raise bare.refuse(f"there is no day {file.day!r}{suggestion(file.day, days())}", "day")
    zone = _zone(bare, file)

    def moment(value: datetime.datetime, *at: str) -> datetime.datetime:
        if value.year not in YEARS:
            raise bare.refuse(
                f"the year must be from {YEARS[0]} to {YEARS[-1]}, not {value.year}", *at
            )
        if value.tzinfo is not None:
            # In the zone, if one is named: days of an extension may include a change of clocks.
            return value.astimezone(zone) if file.time_zone else value
        if not file.time_zone:
            zoned = f"{value.isoformat()}+01:00"
            raise bare.refuse(
                f'a time zone is missing: write {zoned}, or set time_zone = "Europe/Berlin"', *at
            )
        local = value.replace(tzinfo=zone)
        again = local.replace(fold=1)
        if local.astimezone(datetime.UTC).astimezone(zone).replace(tzinfo=None) != value:
            raise bare.refuse(
                f"there is no such time in {file.time_zone}: clocks are set forward then", *at
            )
        if local.utcoffset() != again.utcoffset():
            said = f"write {local.isoformat()} or {again.isoformat()}"
            raise bare.refuse(f"this time comes twice in {file.time_zone}: {said}", *at)
        return local

    deadline = moment(file.deadline, "deadline") if file.deadline else None
    worths = {}
    for name, value in file.exercises.items():
        value = (
            {} if value is True else {"points": value} if isinstance(value, int | float) else value
        )
        worths[name] = _converted(path, text, value, Worth, ("exercises", name))
        if (points := worths[name].points) is not None:
            _check_points(
                bare, points, "; leave an exercise out that does not count", "exercises", name
            )
    counted = [item for item in file.by_hand if item.points and not item.extra]
    if worths and all(worth.extra for worth in worths.values()) and not counted:
        raise bare.refuse("all of it is extra credit; something has to count", "exercises")
    extensions: dict[str, datetime.datetime] = {}
    for who, value in file.extensions.items():
        at = ("extensions", who)
        if not key(who) or key(who) in map(key, extensions):
            raise bare.refuse(f"{who!r} is listed twice" if key(who) else "a name is missing", *at)
        if isinstance(value, bool) or not isinstance(value, int | float):
            extensions[who] = moment(_converted(path, text, value, datetime.datetime, at), *at)
        elif deadline is None:
            raise bare.refuse("an extension in days needs a deadline", *at)
        elif not 0 <= value <= MOST_DAYS:
            raise bare.refuse(f"an extension is from 0 to {MOST_DAYS} days, not {value:g}", *at)
        else:
            extensions[who] = deadline + datetime.timedelta(days=value)
    groups: dict[str, tuple[str, ...]] = {}
    member_of: dict[str, str] = {}
    for name, members in file.groups.items():
        groups[name] = tuple(_converted(path, text, members, list[str], ("groups", name)))
        for one in groups[name]:
            if not key(one):
                raise bare.refuse("a name is missing", "groups", name)
            if taken := member_of.get(key(one)):
                said = "is listed twice" if taken == name else f"is in the group {taken}, too"
                raise bare.refuse(f"{one!r} {said}", "groups", name)
            member_of[key(one)] = name
    if file.points is not None:
        _check_points(bare, file.points, f", not {file.points:g}", "points")
    for what in ("results", "hints"):
        if deadline is None and getattr(file.visibility, what) == "after deadline":
            raise bare.refuse('"after deadline" needs a deadline', "visibility", what)
    for name in ("penalty", "grace", "cap"):
        if not 0 <= (value := getattr(file.late, name)) < math.inf:
            raise bare.refuse(f"{name} must be 0 or more, not {value:g}", "late", name)
    if file.late.cap > 100:
        raise bare.refuse(f"cap is in percent, at most 100, not {file.late.cap:g}", "late", "cap")
    for number, item in enumerate(file.by_hand):
        at_name = ("by_hand", str(number), "name")
        if not key(item.name) or "::" in item.name:
            raise bare.refuse("an item needs a name without ::, such as report", *at_name)
        if key(item.name) in COLUMNS:
            raise bare.refuse(
                f"{item.name!r} is a column of results.csv; choose another name", *at_name
            )
        if key(item.name) in [key(one.name) for one in file.by_hand[:number]]:
            raise bare.refuse(f"two items have the name {item.name!r}", *at_name)
        if item.points:
            _check_points(bare, item.points, "", "by_hand", str(number), "points")
    items = tuple(
        HandItem(i.name, i.points, i.title or i.name, i.rubric, i.extra) for i in file.by_hand
    )
    roster = path.parent / file.roster if file.roster else None
    if roster is not None and not roster.is_file():
        near = [each.name for each in path.parent.glob("*.csv")]
        raise bare.refuse(f"there is no file {roster}{suggestion(file.roster, near)}", "roster")
    return CourseRules(
        path,
        file.title,
        file.day,
        file.points,
        deadline,
        zone,
        file.attempt,
        file.seed,
        roster,
        worths,
        file.late,
        extensions,
        groups,
        Visibility(file.visibility.results, file.visibility.hints),
        items,
        text,
    )


def _check_points(bare: CourseRules, points: float, hint: str, *at: str) -> None:
    if not points > 0:
        raise bare.refuse(f"points must be more than 0{hint}", *at)
    if not LEAST_POINTS <= points <= MOST_POINTS:
        raise bare.refuse(
            f"points must be from {LEAST_POINTS:g} to {MOST_POINTS:,}, not {points:g}", *at
        )


def _zone(bare: CourseRules, file: _File) -> datetime.tzinfo:
    if not file.time_zone:
        return (file.deadline and file.deadline.tzinfo) or datetime.UTC
    try:
        return zoneinfo.ZoneInfo(file.time_zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        hint = suggestion(file.time_zone, zoneinfo.available_timezones())
        raise bare.refuse(f"there is no time zone {file.time_zone!r}{hint}", "time_zone") from None


_WHEN: Final = "a date and time, such as 2026-11-20T23:59:00+01:00"
_KINDS: Final = {
    "float": "a number",
    "int": "a number",
    "str": "text in quotes",
    "bool": "true or false",
    "datetime": _WHEN,
    "array": "a list",
    "object": "a table",
    "date": "a date without a time",
}
_CHOICES: Final = {
    "attempt": AttemptRule,
    "seed": SeedRule,
    "of": Base,
    "results": When,
    "hints": When,
}
_WHERE: Final = re.compile(r" - at `\$(.*)`$")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`")
_EXPECTED: Final = re.compile(r"Expected `(.+)`, got `(.+)`")
_BELOW: Final = re.compile(r"Expected `.+` >= ([0-9.]+)")
_MISSING: Final = re.compile(r"Object missing required field `(.+)`")


def _converted(path: Path, text: str, value: Any, kind: Any, within: tuple[str, ...]) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        said = str(error)
        inside = _WHERE.search(said)
        parts = re.findall(r"\w+", inside[1]) if inside else []
        at = [*within, *parts]
        said = said.replace(inside[0], "") if inside else said
        name = f"`{at[-1]}`" if at else "the file"
        if parts and parts[-1].isdigit():
            name = f"entry {int(parts[-1]) + 1} of `{at[-2]}`"
        days_or = "a number of days, or " * (within[:1] == ("extensions",))
        if unknown := _UNKNOWN.search(said):
            struct: Any = kind
            for part in parts:
                hint = (
                    typing.get_type_hints(struct).get(part, struct)
                    if not part.isdigit()
                    else struct
                )
                struct = (
                    next(iter(typing.get_args(hint)), hint)
                    if typing.get_origin(hint) is list
                    else hint
                )
            fields = getattr(struct, "__struct_fields__", ())
            at.append(unknown[1])
            said = f"there is no setting `{unknown[1]}` here{suggestion(unknown[1], fields)}"
        elif expected := _EXPECTED.search(said):
            wanted = [_KINDS.get(part, part) for part in expected[1].split(" | ") if part != "null"]
            said = f"{name} must be {days_or}{' or '.join(wanted)}, not {_KINDS.get(expected[2], expected[2])}"
            said += "; write [[by_hand]]" * (at == ["by_hand"])
        elif below := _BELOW.search(said):
            said = f"{name} must be {float(below[1]):g} or more"
        elif missing := _MISSING.search(said):
            said = f"`{missing[1]}` is missing"
        elif said.startswith("Invalid enum value") and at[-1] in _CHOICES:
            choices = typing.get_args(_CHOICES[at[-1]])
            given = said.removeprefix("Invalid enum value ").strip("'")
            said = f"{name} cannot be {given!r}; it is one of {', '.join(choices)}{suggestion(given, choices, '')}"
        elif "RFC3339" in said or kind is datetime.datetime:
            said = f"{name} must be {days_or}{_WHEN}"
        else:
            said = f"{name}: {said[:1].lower()}{said[1:]}"
        raise BadFile(str(path), line_of(text, at), said) from None


_KEY: Final = re.compile(
    r"""((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART: Final = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


def line_of(text: str, path: Sequence[str]) -> int | None:
    """The line of a setting, or of the table that it belongs to; None where neither is there."""
    best = 0
    found = None
    table: list[str] = []
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare.startswith("[[") and (name := bare.partition("]]")[0].strip("[ ")):
            table = full = [name, str(counts.get(name, 0))]
            counts[name] = counts.get(name, 0) + 1
        elif bare.startswith("["):
            table = full = [part.strip("\"'") for part in _PART.findall(bare.partition("]")[0])]
        elif assigned := _KEY.match(bare):
            full = [*table, *(part.strip("\"'") for part in _PART.findall(assigned[1]))]
        else:
            continue
        if full == list(path[: len(full)]) and len(full) > best:
            best = len(full)
            found = number
    return found


# Making


def save(path: Path, text: str) -> None:
    """Write the whole file or nothing."""
    with replacing(path) as file:
        file.write(text.encode())


def template(day: str, exercises: Sequence[Exercise]) -> str:
    """A course file in which nothing is set yet, and every setting is shown."""
    width = max((len(exercise.stem) for exercise in exercises), default=0) + 2
    worth = {
        e.stem: total(check.points for function in e.functions for check in function.checks)
        for e in exercises
    }
    lines = "\n".join(
        f"# {f'{chr(34)}{stem}{chr(34)}':{width}} = {points:g}" for stem, points in worth.items()
    )
    return _TEMPLATE.format(day=day, total=total(worth.values()), exercises=lines)


_TEMPLATE: Final = """\
# How this class is graded. Lines that begin with # are examples and do nothing: remove the # to use one.
# `dojo init` checks the file again.

day = "{day}"
# title = "GPU programming, autumn 2026"

# What the assignment is worth on the platform. Without it: {total:g} points.
# points = 20

# deadline = 2026-11-20T23:59:00+01:00
# time_zone = "Europe/Berlin"      # for dates without an offset

# Which submission of a student counts: "latest", "best" or "first".
# attempt = "latest"

# "per-student": each student's exercises are run with other numbers, the same each time.
# seed = "per-class"

# A CSV file of Canvas, Moodle, Gradescope, GitHub Classroom, or with the columns id, name, email, section, github.
# roster = "roster.csv"

# The exercises that count, and their points. Without this table: all, with the points below.
# Extra credit: "12_self_assessment" = {{ points = 5, extra = true }}
# [exercises]
{exercises}

# [late]
# penalty = 10                     # percent for each day that has begun
# grace = 15                       # minutes
# cap = 50                         # percent, at most
# of = "maximum"                   # of the maximum, or of what was "earned"

# By id, name, e-mail, GitHub name or name of the submission: days, or another deadline.
# [extensions]
# "ada@example.org" = 3
# "Bo Sample" = 2026-11-27T23:59:00+01:00

# One submission counts for all members.
# [groups]
# team-1 = ["ada@example.org", "Bo Sample"]

# When students see what: "always", "after deadline" or "never".
# [visibility]
# results = "always"
# hints = "after deadline"

# What a person grades; `dojo override` gives the points.
# [[by_hand]]
# name = "report"
# title = "Report on the profile"
# points = 10
# rubric = "4 for the trace, 6 for the explanation"
"""
