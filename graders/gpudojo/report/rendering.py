"""Texts, names of students, templates of pages, and charts as SVG."""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import hashlib
import itertools
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape
from virtual_cuda.ledger import counted

from gpudojo.classes.store import FOLDER, write
from gpudojo.model.errors import printable_text
from gpudojo.model.results import SubmissionRow
from gpudojo.model.results_file import format_points, without_surrogates
from gpudojo.platforms._files import new_name

COLOURS: Final = (
    "amber azure beige black blue bronze brown coral cream crimson cyan emerald fawn golden green grey indigo ivory "
    "jade khaki lemon lilac lime maroon mauve mint ochre olive orange peach pearl pink plum purple red rose ruby rust "
    "sable sand scarlet sepia silver slate tan teal umber violet white yellow"
).split()
SPRITES: Final = (
    "acorn anchor apple arrow badge bell boot bridge candle castle chest cloud coin comet crown dice door dragon drum "
    "falcon feather flag flute fox gem ghost hammer harp hat heart helmet horn key kite knight lamp leaf lute mask "
    "moon mushroom oak orb owl pearl potion raft ring robot rocket scroll shell shield ship slime snail star sword "
    "tower torch wand wheel wolf"
).split()
SHORTEST: Final = (
    3  # letters of a part of a name that is hidden; shorter ones occur in ordinary words
)


@dataclass(frozen=True)
class Person:
    """The name of one submission on the pages, its page, and patterns to hide."""

    shown: str
    file: str  # inside the folder of the report
    hidden: tuple[re.Pattern[str], ...] = ()
    anonymous: bool = False
    sorted_as: str = ""  # where that is not as it is shown

    @property
    def link(self) -> str:
        return quote(self.file)

    def says(self, text: str) -> str:
        """The text with everything hidden that would identify this person."""
        for pattern in self.hidden:
            text = pattern.sub(self.shown, text)
        return text


class Roll:
    """The people of one class. No two share a page, even on file systems that ignore case."""

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secret
        self._taken: set[str] = set()
        self._shown: dict[str, str] = {}  # by each name, what is shown for it
        self._owner: dict[str, str] = {}  # by what is shown, the first submission with it

    def person(self, row: SubmissionRow) -> Person:
        name = row.submission if self._secret is None else pseudonym(row.submission, self._secret)
        file = new_name(name, self._taken)
        if self._secret is None:
            shown = shown_name(row)
            if self._owner.setdefault(shown, row.submission) != row.submission:
                shown = f"{shown} ({row.submission})"
            if shown != row.submission:
                self._shown |= {each.casefold(): shown for each in (row.submission, row.called)}
            family_first = (
                without_surrogates(row.roster.sorted_as) if row.roster and row.roster.family else ""
            )
            return Person(
                without_surrogates(shown),
                f"students/{without_surrogates(file)}.html",
                sorted_as=family_first,
            )
        every = {*names_of(row), row.called}
        self._shown |= {each.casefold(): file for each in every if len(each) >= SHORTEST}
        return Person(file, f"students/{file}.html", hidden(row), True)

    def says(self, text: str) -> str:
        """The text with what is shown of everybody for their names; to be asked when all are known."""
        return self._anybody.sub(lambda found: self._shown.get(found[0].casefold(), found[0]), text)

    @functools.cached_property
    def _anybody(self) -> re.Pattern[str]:
        longest = sorted(self._shown, key=len, reverse=True)
        return re.compile("|".join(map(_bounded, longest)) or "(?!)", re.IGNORECASE)


def shown_name(row: SubmissionRow) -> str:
    """A student's name on the roster; without one, that of the submission."""
    return (row.roster.name if row.roster else "") or row.submission


def names_of(row: SubmissionRow) -> set[str]:
    """Everything that a student and the submissions are called."""
    listed = row.roster
    of_roster = (
        (listed.id, listed.name, listed.email, listed.github, listed.login) if listed else ()
    )
    attempts = (attempt.submission for attempt in row.attempts)
    every = (row.submission, row.student or "", row.identifier or "", *of_roster, *attempts)
    return {text.strip() for text in every} - {""}


def pseudonym(name: str, secret: bytes) -> str:
    """A pseudonym, the same each time for the same name: "amber-fox-3f9a2"."""
    drawn = hashlib.blake2b(
        name.encode("utf-8", "surrogatepass"), key=secret[:64], digest_size=16
    ).digest()
    colour = COLOURS[int.from_bytes(drawn[:4], "big") % len(COLOURS)]
    sprite = SPRITES[int.from_bytes(drawn[4:8], "big") % len(SPRITES)]
    return f"{colour}-{sprite}-{drawn[8:].hex()[:5]}"


def anyone(row: SubmissionRow) -> Person:
    """The author of an example, without any name."""
    return Person("somebody", "", hidden(row), True)


def hidden(row: SubmissionRow) -> tuple[re.Pattern[str], ...]:
    """Patterns that would identify a student: whole names in any case, and parts of names as they are written."""
    names = {text for text in names_of(row) if len(text) >= SHORTEST or not text.isdigit()}
    words = {word for text in names for word in re.split(r"[\W_]+", text)}
    parts = {word for word in words if len(word) >= SHORTEST and word[0].isupper()}
    parts |= {part for text in names for part in re.findall(r"\d{4,}", text)}
    found = [
        re.compile(_bounded(text), re.IGNORECASE) for text in sorted(names, key=len, reverse=True)
    ]
    return (*found, *(re.compile(_bounded(text)) for text in sorted(parts, key=len, reverse=True)))


def _bounded(text: str) -> str:
    return rf"(?<![^\W_]){re.escape(text)}(?![^\W_])"


def kept_secret(results: Path) -> tuple[bytes, str]:
    """The secret that pseudonyms are made with, and a warning if it cannot be stored."""
    path = results.parent / FOLDER / "pseudonyms"
    with contextlib.suppress(OSError):
        found = path.read_bytes()
        if len(found) >= 16:
            return found, ""
    made = secrets.token_bytes(32)
    warning = ""
    try:
        write(path, made)
    except OSError as error:
        warning = (
            f"the next report will use other pseudonyms: cannot write {path}: {error.strerror}"
        )
    return made, warning


COLOUR_CODES: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
SIZES: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gpudojo.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=visible,
    )
    environment.filters.update(
        prose=prose,
        short_id=short_id,
        size=size,
        number=format_points,
        duration=duration,
        date=date,
    )
    environment.filters.update(in_short=in_short, numbered=numbered)
    environment.filters["px"] = "{:.1f}".format
    environment.globals.update(share=share, counted=counted)
    return environment


def page(template: str, script: str, **values: Any) -> str:
    """The text of a page; a browser refuses every style and script in it but these two, by their hashes."""
    style = _asset("style.css")
    code = _asset(script) + _asset("stops.js") if script else ""
    policy = f"default-src 'none'; style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"
    if code:
        policy += f"; script-src '{_hash(code)}'"
    made = _environment().get_template(template)
    return made.render(style=Markup(style), script=Markup(code), policy=policy, **values)


def drawing(name: str, **values: Any) -> Markup:
    """An SVG: what a macro of `charts.html` makes of some values."""
    made: Markup = getattr(_environment().get_template("charts.html").module, name)(**values)
    return made


@functools.cache
def _asset(name: str) -> str:
    """A style sheet or script of ours, which is not escaped."""
    return resources.files("gpudojo.report").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def visible(value: object) -> object:
    """What jinja puts on a page for a value: in a text, invisible characters are replaced by their code points."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return printable_text(
        COLOUR_CODES.sub("", value.replace("\r\n", "\n")), keep="\t\n\N{NO-BREAK SPACE}"
    )


def prose(text: str) -> Markup:
    """A text in which `code` is marked. All lines but the first are preformatted: code, or a drawing of values."""
    first, *rest = str(visible(text)).splitlines() or [""]
    # Escaped before code is searched for.
    marked = Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(first))))
    return marked + (Markup("<pre>{}</pre>").format("\n".join(rest)) if rest else Markup(""))


def short_id(id_: str) -> Markup:
    """A check's id with the number of its exercise for its name; a line may break between its parts."""
    exercise, _, rest = id_.partition("::")
    name = Markup("::<wbr>").join(str(visible(rest or id_)).split("::"))
    return Markup("{} {}").format(in_short(exercise), name) if rest else name


def in_short(exercise: str) -> str:
    """The number of an exercise; of an item that has none, its name."""
    number_ = exercise.partition("_")[0]
    return number_ if number_.isdigit() else exercise


def numbered(exercise: str) -> Markup:
    """The number of an exercise, as it stands before its title; empty for an item without."""
    return (
        Markup('<span class="quiet">{}</span>').format(in_short(exercise))
        if exercise[:1].isdigit()
        else Markup("")
    )


def said_once(status: str, reason: str) -> str:
    """Why something has a status, without the status said twice: "crashed in file 01.py", "to do: f is a stub"."""
    return reason if reason.casefold().startswith(status.casefold()) else f"{status}: {reason}"


def date(text: str) -> str:
    """2026-11-15 04:30 UTC, for a time in ISO 8601; the text itself where it is none."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{found:%Y-%m-%d %H:%M} {found.tzname() or ''}".rstrip()


def size(count: float) -> str:
    """1536 is 1.5 KiB."""
    unit = 0
    while abs(count) >= 1024 and unit < len(SIZES) - 1:
        count = count / 1024
        unit = unit + 1
    return (
        f"{count:.0f} {SIZES[unit]}" if unit == 0 or count >= 100 else f"{count:.1f} {SIZES[unit]}"
    )


def duration(seconds: float) -> str:
    """2.5 s, 120 ms, 0.25 ms."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.1 else f"{seconds * 1000:.2f} ms"


def share(value: float, most: float, kind: str = "") -> Markup:
    """A bar of a table. The number stands beside it, so screen readers skip it."""
    filled = 100 * min(max(value / most, 0.0), 1.0) if most > 0 else 0.0
    return Markup(
        '<svg class="share {}" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        '<rect class="ground" width="100" height="8"/><rect class="fill" width="{:.1f}" height="8"/></svg>'
    ).format(kind, filled)


@dataclass(frozen=True)
class Bar:
    """One bar of several that share a scale."""

    label: str
    value: float
    told: str
    kind: str = ""  # a class of the style sheet


def bars(title: str, entries: Sequence[Bar]) -> Markup:
    """Horizontal bars; the largest value is the longest."""
    told = "; ".join(f"{entry.label}: {entry.told}" for entry in entries)
    most = max((entry.value for entry in entries), default=0) or 1
    return drawing("bars", label=f"{title}. {told}", entries=entries, most=most)


def histogram(scores: Sequence[float], most: float, clickable: bool = False) -> Markup:
    """The score distribution, in ten equal steps of the points; a script lets a clickable bar show whose it is."""
    counts = [0] * 10
    for score in scores:
        counts[min(int(10 * score / most), 9) if most > 0 else 0] += 1
    edges = [most * number / 10 for number in range(11)]
    spans = [f"{one:g} to {other:g}" for one, other in itertools.pairwise(edges)]
    told = "; ".join(
        f"{span} points: {count}" for span, count in zip(spans, counts, strict=True) if count
    )
    label = f"Score distribution. {told or 'None.'}"
    marks = _marks(max(*counts, 1))
    given = {
        "spans": spans,
        "counts": counts,
        "edges": edges,
        "marks": marks,
        "clickable": clickable,
    }
    return drawing("histogram", label=label, **given)


def scatter(points: Sequence[tuple[float, int, str]]) -> Markup:
    """One dot per submission: its seconds, its bytes, and its status as a class of the style sheet."""
    longest = max((seconds for seconds, _, _ in points), default=0) or 1
    largest = max((peak for _, peak, _ in points), default=0) or 1
    smallest = min((peak for _, peak, _ in points), default=0)
    told = f"{counted(len(points), 'submission')}; at most {duration(longest)} and {size(largest)}"
    unit = max((place for place in range(len(SIZES)) if largest >= 1024**place), default=0)
    levels = [
        (n * 1024**unit, f"{n:g} {SIZES[unit]}")
        for n in _levels(smallest / 1024**unit, largest / 1024**unit)
    ]
    label = f"Time and memory of each submission: {told}."
    marks = _marks(longest)
    kinds = sorted(
        {kind for _, _, kind in points}, key=lambda kind: (kind != "graded", kind)
    )  # others are drawn over
    return drawing(
        "scatter",
        label=label,
        points=points,
        kinds=kinds,
        longest=longest,
        marks=marks,
        levels=levels,
    )


def _step(span: float) -> float:
    """The round number of which about four make up the span."""
    step = 10 ** math.floor(math.log10(span / 4)) if span > 0 else 1.0
    return step * next((factor for factor in (1, 2, 5) if span / (step * factor) <= 5), 10)


def _marks(highest: float) -> list[float]:
    """About four round numbers up to the highest, from 0."""
    step = _step(highest)
    if highest == int(highest) and step < 1 and highest <= 5:
        step = 1  # there is no half submission
    return [step * number for number in range(int(highest / step + 1e-9) + 1)]


def _levels(lowest: float, highest: float) -> list[float]:
    """Round numbers around all values, from 0, or from just below the values where they are far from 0."""
    lowest = lowest if lowest > highest / 2 else 0.0
    step = _step(highest - lowest if highest > lowest else highest)
    first = math.floor(lowest / step + 1e-9)
    return [
        step * number
        for number in range(first, max(math.ceil(highest / step - 1e-9), first + 1) + 1)
    ]


HEIGHT: Final = 216
TOP = 14
BASE = 174
LINE: Final = 15  # between the feet of two labels
MOST: Final = 200  # points that evidence may have
HIGHEST: Final = 1e15


@dataclass(frozen=True)
class Curve:
    """The bytes in use after each step; `backward` is the step at which the backward pass begins."""

    label: str
    points: tuple[float, ...]
    backward: int
    peak: float
    kind: str  # a class of the style sheet

    @property
    def steps(self) -> int:
        return len(self.points)

    def outline(self, left: float, foot: float, wide: float, tall: float) -> str:
        """The upper edge, as part of a path, from the left foot of a chart, for the width of a step and of a byte."""
        steps = (
            f"V{foot - tall * value:.1f}H{left + wide * n:.1f}"
            for n, value in enumerate(self.points, 1)
        )
        return "".join(steps)

    @property
    def told(self) -> str:
        steps = f", {counted(self.steps, 'operation')}" if self.steps < MOST else ""
        return f"peak {size(self.peak)}{steps}"

    @property
    def highest_in(self) -> str:
        return "backward" if self.points.index(max(self.points)) >= self.backward else "forward"


def curve(label: str, found: Any, kind: str) -> Curve | None:
    """A curve from evidence, which is untrusted; None where it cannot be drawn."""
    if not isinstance(found, Mapping):
        return None
    peak: Any = found.get("peak")
    points = found.get("bytes")
    backward = found.get("backward")
    if (
        not isinstance(points, list)
        or not 2 <= len(points) <= MOST
        or not all(map(drawable, points))
    ):
        return None
    if (
        type(backward) is not int
        or not 0 <= backward <= len(points)
        or not drawable(peak)
        or max(points) < 1
    ):
        return None
    return Curve(label, tuple(map(float, points)), backward, max(float(peak), *points), kind)


def drawable(value: Any) -> bool:
    """Whether it is a number that fits in a picture."""
    return type(value) in (int, float) and math.isfinite(value) and 0 <= value < HIGHEST


def curves(title: str, shown: Sequence[Curve]) -> Markup:
    """Several curves in one chart: areas, and the reference as a line."""
    told = "; ".join(f"{each.label}: {each.told}, highest in {each.highest_in}" for each in shown)
    # A line at each peak, and its size at the axis. Labels do not overlap; those without room are in the list below.
    labels: list[tuple[tuple[float, float], str]] = []
    peaks = sorted({each.peak for each in shown}, reverse=True)
    for peak in peaks:
        y = BASE - (BASE - TOP) * peak / peaks[0]
        foot = max(y + 4, labels[-1][0][1] + LINE if labels else 0)
        if foot <= BASE:
            labels.append(((y, foot), size(peak)))
    return drawing("curves", title=title, told=told, shown=shown, labels=labels)
