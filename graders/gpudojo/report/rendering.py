"""Templates of pages, and the texts on them."""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
import re
from importlib import resources
from typing import Any, Final

import jinja2
from markupsafe import Markup, escape
from virtual_cuda.ledger import count_phrase

from gpudojo.model.errors import printable_text
from gpudojo.model.results_file import format_points

COLOUR_CODES: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
SIZES: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


def render_page(template: str, script: str, **values: Any) -> str:
    """Return the text of a page: a template with these values.

    A browser refuses every style and script in it but these two, by their hashes. `script` is the
    name of a file, or empty. Raises OSError where a file of ours cannot be read, and an error of
    jinja2 for a value that is missing.
    """
    style = _read_asset("style.css")
    code = ""
    if script:
        code = _read_asset(script) + _read_asset("stops.js")
    policy = f"default-src 'none'; style-src '{_policy_hash(style)}'"
    policy += "; base-uri 'none'; form-action 'none'"
    if code:
        policy += f"; script-src '{_policy_hash(code)}'"
    loaded = _template_environment().get_template(template)
    return loaded.render(style=Markup(style), script=Markup(code), policy=policy, **values)


def draw_chart(name: str, **values: Any) -> Markup:
    """Return an SVG: what a macro of `charts.html` makes of some values.

    Raises AttributeError for a macro that is not there, and an error of jinja2 for a missing value.
    """
    macros = _template_environment().get_template("charts.html").module
    svg: Markup = getattr(macros, name)(**values)
    return svg


@functools.cache
def _template_environment() -> jinja2.Environment:
    """Return what renders templates: values are escaped, and an unknown name is an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gpudojo.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=visible_value,
    )
    environment.filters.update(
        prose=mark_code,
        short_id=short_id,
        size=format_size,
        number=format_points,
        duration=format_duration,
        date=format_date,
        in_short=short_exercise,
        numbered=number_before_title,
        px="{:.1f}".format,
    )
    environment.globals.update(share=share_bar, count_phrase=count_phrase)
    return environment


@functools.cache
def _read_asset(name: str) -> str:
    """Return a style sheet or script of ours, read once; it is not escaped. Raises OSError."""
    asset = resources.files("gpudojo.report").joinpath("templates", name)
    return asset.read_text(encoding="utf-8")


def _policy_hash(text: str) -> str:
    """Return the hash of a style or script, as a content security policy names it."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def visible_value(value: object) -> object:
    """Return what jinja puts on a page for a value.

    In a text, invisible characters are replaced by their code points.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    without_colours = COLOUR_CODES.sub("", value.replace("\r\n", "\n"))
    return printable_text(without_colours, keep="\t\n\N{NO-BREAK SPACE}")


def mark_code(text: str) -> Markup:
    """Return a text in which `code` is marked.

    All lines but the first are preformatted: code, or a drawing of values.
    """
    first, *others = str(visible_value(text)).splitlines() or [""]
    escaped = str(escape(first))  # before code is searched for
    marked = Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped))
    if others:
        marked += Markup("<pre>{}</pre>").format("\n".join(others))
    return marked


def short_id(check_id: str) -> Markup:
    """Return a check's id with the number of its exercise for its name.

    A line may break between its parts.
    """
    exercise, _, rest = check_id.partition("::")
    parts = str(visible_value(rest or check_id)).split("::")
    name = Markup("::<wbr>").join(parts)
    if not rest:
        return name
    return Markup("{} {}").format(short_exercise(exercise), name)


def short_exercise(exercise: str) -> str:
    """Return the number of an exercise; of an item that has none, its name."""
    number = exercise.partition("_")[0]
    if number.isdigit():
        return number
    return exercise


def number_before_title(exercise: str) -> Markup:
    """Return the number of an exercise, as it stands before its title; empty without one."""
    if not exercise[:1].isdigit():
        return Markup("")
    return Markup('<span class="quiet">{}</span>').format(short_exercise(exercise))


def status_and_reason(status: str, reason: str) -> str:
    """Return why something has a status, without the status said twice.

    That is "crashed in file 01.py", or "to do: f is a stub".
    """
    if reason.casefold().startswith(status.casefold()):
        return reason
    return f"{status}: {reason}"


def format_date(text: str) -> str:
    """Return "2026-11-15 04:30 UTC" for a time in ISO 8601; the text itself where it is none."""
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{time:%Y-%m-%d %H:%M} {time.tzname() or ''}".rstrip()


def format_size(count: float) -> str:
    """Return "1.5 KiB" for 1536."""
    unit, *larger_units = SIZES
    for larger_unit in larger_units:
        if abs(count) < 1024:
            break
        count /= 1024
        unit = larger_unit
    if unit == "bytes" or count >= 100:
        return f"{count:.0f} {unit}"
    return f"{count:.1f} {unit}"


def format_duration(seconds: float) -> str:
    """Return "2.5 s", "120 ms" or "0.25 ms"."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    if seconds >= 0.1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds * 1000:.2f} ms"


def share_bar(value: float, most: float, kind: str = "") -> Markup:
    """Return a bar of a table as SVG: `value` of `most`. `kind` is a class of the style sheet.

    The number stands beside it, so screen readers skip it.
    """
    filled = 0.0
    if most > 0:
        filled = 100 * min(max(value / most, 0.0), 1.0)
    return Markup(
        '<svg class="share {}" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" '
        'focusable="false"><rect class="ground" width="100" height="8"/>'
        '<rect class="fill" width="{:.1f}" height="8"/></svg>'
    ).format(kind, filled)
