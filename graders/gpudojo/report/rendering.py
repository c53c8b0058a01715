"""Texts, names of students, and templates of pages."""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import hashlib
import re
import secrets
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from gpudojo.classes.store import FOLDER, write
from gpudojo.model.errors import printable
from gpudojo.model.results import SubmissionRow
from gpudojo.model.results_file import number, whole
from gpudojo.platforms._entries import new_name

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
SHORTEST: Final = 3  # letters of a part of a name that is hidden; shorter ones occur in ordinary words


@dataclass(frozen=True)
class Person:
    """The name of one submission on the pages, its page, and patterns to hide."""

    shown: str
    file: str  # inside the folder of the report
    hidden: tuple[re.Pattern[str], ...] = ()
    anonymous: bool = False

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

    def person(self, row: SubmissionRow) -> Person:
        name = row.submission if self._secret is None else pseudonym(row.submission, self._secret)
        file = new_name(name, self._taken)
        if self._secret is None:
            return Person(whole(row.submission), f"students/{whole(file)}.html")
        return Person(file, f"students/{file}.html", hidden(row), True)


def pseudonym(name: str, secret: bytes) -> str:
    """A pseudonym, the same each time for the same name: "amber-fox-3f9a2"."""
    drawn = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=secret[:64], digest_size=16).digest()
    colour = COLOURS[int.from_bytes(drawn[:4], "big") % len(COLOURS)]
    sprite = SPRITES[int.from_bytes(drawn[4:8], "big") % len(SPRITES)]
    return f"{colour}-{sprite}-{drawn[8:].hex()[:5]}"


def anyone(row: SubmissionRow) -> Person:
    """The author of an example, without any name."""
    return Person("somebody", "", hidden(row), True)


def hidden(row: SubmissionRow) -> tuple[re.Pattern[str], ...]:
    """Patterns that would identify a student: whole names in any case, and parts of names as they are written."""
    names = {text.strip() for text in (row.submission, row.student or "", row.identifier or "")} - {""}
    words = {word for text in names for word in re.split(r"[\W_]+", text)}
    parts = {word for word in words if len(word) >= SHORTEST and word[0].isupper()}
    parts |= {part for text in names for part in re.findall(r"\d{4,}", text)}
    found = [re.compile(_bounded(text), re.IGNORECASE) for text in sorted(names, key=len, reverse=True)]
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
    made, warning = secrets.token_bytes(32), ""
    try:
        write(path, made)
    except OSError as error:
        warning = f"the next report will use other pseudonyms: cannot write {path}: {error.strerror}"
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
    environment.filters.update(prose=prose, short_id=short_id, size=size, number=number, duration=duration)
    environment.filters["date"] = date
    environment.filters["px"] = "{:.1f}".format
    environment.globals.update(share=share, counted=counted)
    return environment


def page(template: str, script: str, **values: Any) -> str:
    """The text of a page; a browser refuses every style and script in it but these two, by their hashes."""
    style, code = _asset("style.css"), _asset(script) + _asset("stops.js") if script else ""
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
    return printable(COLOUR_CODES.sub("", value.replace("\r\n", "\n")), keep="\t\n\N{NO-BREAK SPACE}")


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
    return Markup("{} {}").format(exercise[:2], name) if rest else name


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
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {SIZES[unit]}" if unit == 0 or count >= 100 else f"{count:.1f} {SIZES[unit]}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """1 wait, 64 waits."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


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
