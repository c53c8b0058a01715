"""Dates as learning platforms write them into tables, in the languages of `months.toml`."""

from __future__ import annotations

import datetime
import functools
import re
import tomllib
import unicodedata
from pathlib import Path
from typing import Final

MONTHS_FILE: Final = Path(__file__).with_name("months.toml")
_TIME: Final = (
    r"(?P<year>\d{4})\D+(?P<hour>\d\d?)[:.h](?P<minute>\d\d)(?:\s*(?P<half>[ap])\.?\s?m\.?)?"
)
_MONTH_IN_WORDS: Final = (
    # Friday, 20 November 2026, 23:58; viernes, 20 de noviembre de 2026, 23:58
    re.compile(
        rf".*?\b(?P<day>\d\d?)\.?\s+(?:de\s+)?(?P<month>[^\W\d_]+)\s+(?:de\s+)?{_TIME}",
        re.IGNORECASE,
    ),
    # Friday, November 20, 2026, 11:58 PM
    re.compile(rf".*?\b(?P<month>[^\W\d_]+)\s+(?P<day>\d\d?),\s*{_TIME}", re.IGNORECASE),
)
_IN_FIGURES: Final = (
    "%d.%m.%Y, %H:%M",
    "%d.%m.%Y %H:%M",
    "%d/%m/%Y, %H:%M",
    "%d/%m/%Y %H:%M",
    "%Y-%m-%d %H:%M",
)


def parse_date(text: str, zone: datetime.tzinfo) -> datetime.datetime | None:
    """The date and time in a cell; without a time zone of its own it is in `zone`.

    Returns None where it cannot be read.
    """
    text = " ".join(unicodedata.normalize("NFC", text).split())
    date = _date_in_words(text) or _date_in_figures(text)
    if date is None:
        return None
    if date.tzinfo is None:
        return date.replace(tzinfo=zone)
    return date


def _date_in_words(text: str) -> datetime.datetime | None:
    """The date in a text with the name of a month, without a time zone.

    None where it is not one.
    """
    for pattern in _MONTH_IN_WORDS:
        parts = pattern.fullmatch(text)
        if parts is None:
            continue
        month = _numbers_of_months().get(parts["month"].casefold())
        if month is None:
            continue
        hour = int(parts["hour"])
        if parts["half"]:
            hour %= 12
            if parts["half"] in "pP":
                hour += 12
        try:
            return datetime.datetime(
                int(parts["year"]), month, int(parts["day"]), hour, int(parts["minute"])
            )
        except ValueError:  # such as 31 November
            continue
    return None


def _date_in_figures(text: str) -> datetime.datetime | None:
    """The date in a text of figures, such as 20.11.2026, 23:58; with a zone if it names one.

    Returns None where it is not one.
    """
    for form in _IN_FIGURES:
        try:
            return datetime.datetime.strptime(text, form)
        except ValueError:
            continue
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        return None


@functools.cache
def _numbers_of_months() -> dict[str, int]:
    """The number of a month, by its name in any of the languages; read from their file once."""
    languages = tomllib.loads(MONTHS_FILE.read_text(encoding="utf-8"))
    numbers = {}
    for names in languages.values():
        for number, name in enumerate(names.split(), 1):
            numbers[name] = number
    return numbers
