"""Mistakes in a TOML file, in sentences, each with its line."""

from __future__ import annotations

import datetime
import re
import tomllib
import typing
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from gpudojo.model.errors import BadFile, suggest_name

_Kind = TypeVar("_Kind")
_DATE: Final = "a date and time, such as 2026-11-20T23:59:00+01:00"
_NO_SUCH_DATE: Final = "there is no such day or time; write it as 2026-11-20T23:59:00+01:00"
# How a message of tomllib ends, and one of msgspec.
_PLACE_OF_TOMLLIB: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")
_PLACE_OF_MSGSPEC: Final = re.compile(r" - at `\$(.*)`$")
# A pattern of tomllib's message and the line it is about, and what the mistake may be.
_HINTS: Final = (
    ("[\u201c\u201d\u201e\u2018\u2019]", 'use straight quotes: "day8"'),
    (r"=\s*\d+,\d", "numbers have a decimal point: 2.5"),
    (r"Illegal character '\\n'", "the text needs its closing quote on this line"),
    ("Invalid date", _NO_SUCH_DATE),
    (r"after a statement\n.*=\s*\d{4}-\d", _NO_SUCH_DATE),
    (
        r"Invalid hex value|Unescaped '\\\\'",
        r"in double quotes a backslash begins an escape: write 'C:\course\roster.csv' in single "
        "quotes, or slashes",
    ),
    ("Invalid value", "texts and dates with a space need quotes"),
    ("after a key", 'a name with a space or @ needs quotes: "Ada Example" = 3'),
)
_WORD_OF_TYPE: Final = {
    "float": "a number",
    "int": "a number",
    "str": "text in quotes",
    "bool": "true or false",
    "datetime": _DATE,
    "array": "a list",
    "object": "a table",
    "date": "a date without a time",
}


class TomlFile(NamedTuple):
    """The tables in a TOML file, and its text, in which lines are found."""

    tables: dict[str, Any]
    text: str


def parse_toml(path: Path) -> TomlFile:
    """The tables of a TOML file, and its text. Raises BadFile with the line and a hint.

    A file that cannot be read is an error without a line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadFile(str(path), None, f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise BadFile(str(path), line, "this is not UTF-8 text; save the file as UTF-8") from None
    try:
        return TomlFile(tomllib.loads(text), text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(path, text, str(error)) from None


def _syntax_error(path: Path, text: str, message: str) -> BadFile:
    """The error to raise for what tomllib said about a text; it is returned.

    It has the line, and advice where a known mistake fits.
    """
    line = None
    place = _PLACE_OF_TOMLLIB.search(message)
    if place:
        message = message.replace(place[0], "")
        last_line = len(text.rstrip().splitlines())
        line = int(place[1] or last_line)
    source = ""
    if line:
        source = _line_of(text, line)
    if message == "Cannot overwrite a value":
        key = source.partition("=")[0].strip()
        message = f"{key} is set a second time; leave one of the two out"
    message_and_line = f"{message}\n{source}"
    for pattern, advice in _HINTS:
        if re.search(pattern, message_and_line):
            message += f"; {advice}"
            break
    return BadFile(str(path), line, f"this is not TOML: {message}")


def _line_of(text: str, number: int) -> str:
    """A line of a text, counted from 1. Empty where it has fewer."""
    lines = text.splitlines()
    if number <= len(lines):
        return lines[number - 1]
    return ""


def convert_setting(path: Path, text: str, value: Any, kind: type[_Kind], *setting: str) -> _Kind:
    """The value of a setting as `kind`. Raises BadFile with its line and what it must be.

    `text` is that of the whole file, and `setting` leads to the value from its root.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        mistake = _SettingError(kind, setting, str(error))
    raise mistake.as_bad_file(path, text)


class _SettingError:
    """Says in a sentence what msgspec says of a value."""

    def __init__(self, kind: Any, setting: Sequence[str], message: str) -> None:
        """Take msgspec's message apart.

        `setting` leads to the value of type `kind` from the root.
        """
        self.kind = kind
        self.message = message
        self.within: list[str] = []  # from the value that was converted
        place = _PLACE_OF_MSGSPEC.search(message)
        if place:
            self.message = message.replace(place[0], "")
            self.within = re.findall(r"\w+", place[1])
        self.setting = [*setting, *self.within]  # from the root of the file

    def as_bad_file(self, path: Path, text: str) -> BadFile:
        """The error to raise, with the line of the setting; it is returned."""
        reason = self._make_reason()
        line = line_of_setting(text, self.setting)
        return BadFile(str(path), line, reason)

    @property
    def _name_of_setting(self) -> str:
        """The setting, as a sentence calls it."""
        if not self.setting:
            return "the file"
        last = self.setting[-1]
        if self.within and last.isdigit():
            number = int(last) + 1
            return f"entry {number} of `{self.setting[-2]}`"
        return f"`{last}`"

    @property
    def _must_be(self) -> str:
        """How a sentence about what is expected begins: an extension may be in days, too."""
        if self.setting[:1] == ["extensions"]:
            return f"{self._name_of_setting} must be a number of days, or "
        return f"{self._name_of_setting} must be "

    def _make_reason(self) -> str:
        """The sentence. The name of an unknown setting is added to `setting`."""
        message = self.message
        unknown = re.search(r"Object contains unknown field `(.*)`", message)
        if unknown:
            return self._unknown_setting(unknown[1])
        types = re.search(r"Expected `(.+)`, got `(.+)`", message)
        if types:
            return self._wrong_type(types[1], types[2])
        least = re.search(r"Expected `.+` >= ([0-9.]+)", message)
        if least:
            return f"{self._name_of_setting} must be {float(least[1]):g} or more"
        missing = re.search(r"Object missing required field `(.+)`", message)
        if missing:
            return f"`{missing[1]}` is missing"
        if message.startswith("Invalid enum value "):
            value = message.removeprefix("Invalid enum value ").strip("'")
            return self._no_choice(value)
        if "RFC3339" in message or self.kind is datetime.datetime:
            return f"{self._must_be}{_DATE}"
        return f"{self._name_of_setting}: {message[:1].lower()}{message[1:]}"

    def _unknown_setting(self, name: str) -> str:
        """The sentence for a setting that does not exist, which is added to `setting`."""
        hint = suggest_name(name, self._known_settings())
        self.setting.append(name)
        return f"there is no setting `{name}` here{hint}"

    def _wrong_type(self, expected: str, actual: str) -> str:
        """The sentence for a value of another type, in words for types that teachers know."""
        wanted = []
        for name in expected.split(" | "):
            if name != "null":
                wanted.append(_WORD_OF_TYPE.get(name, name))
        wanted_in_words = " or ".join(wanted)
        value = _WORD_OF_TYPE.get(actual, actual)
        reason = f"{self._must_be}{wanted_in_words}, not {value}"
        if self.setting == ["by_hand"]:
            reason += "; write [[by_hand]]"
        return reason

    def _no_choice(self, value: str) -> str:
        """The sentence for a text that is none of those that the setting may have."""
        choices = _choices_of(self._type_of_setting())
        listed = ", ".join(choices)
        hint = suggest_name(value, choices, "")
        return f"{self._name_of_setting} cannot be {value!r}; it is one of {listed}{hint}"

    def _type_of_setting(self) -> Any:
        """The type of the setting in the structs; an entry of a list has that of the list."""
        kind = self.kind
        for part in self.within:
            if not part.isdigit():
                kind = typing.get_type_hints(kind).get(part, kind)
            if typing.get_origin(kind) in (list, tuple):
                kind, *_ = typing.get_args(kind)
        return kind

    def _known_settings(self) -> Sequence[str]:
        """The names that the table of the setting may have; none for other values."""
        kind = self._type_of_setting()
        return getattr(kind, "__struct_fields__", ())


def _choices_of(kind: Any) -> list[str]:
    """The texts that a Literal allows, or one that is part of an optional type."""
    if typing.get_origin(kind) is typing.Literal:
        return list(typing.get_args(kind))
    choices = []
    for part in typing.get_args(kind):
        choices += _choices_of(part)
    return choices


_NAME: Final = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_ASSIGNMENT: Final = re.compile(rf"({_NAME}(?:\s*\.\s*{_NAME})*)\s*=")


def line_of_setting(text: str, setting: Sequence[str]) -> int | None:
    """The line of a setting, or of the table that it belongs to.

    Returns None where neither is there. The entries of `[[by_hand]]` are counted: `("by_hand", "1",
    "name")` is in the second one.
    """
    line_of_best = None
    best_length = 0  # of the name that is nearest so far
    table: list[str] = []  # the name of the table in which a line stands
    entries: Counter[str] = Counter()  # of each list of tables, so far
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        assignment = _ASSIGNMENT.match(line)
        if line.startswith("[["):
            name = line.partition("]]")[0].strip("[ ")
            table = [*_names_in(name), str(entries[name])]
            entries[name] += 1
            full_name = table
        elif line.startswith("["):
            table = _names_in(line.partition("]")[0])
            full_name = table
        elif assignment:
            full_name = table + _names_in(assignment[1])
        else:
            continue
        # The longest name that the setting begins with is nearest to it.
        length = len(full_name)
        if full_name == list(setting[:length]) and length > best_length:
            best_length = length
            line_of_best = number
    return line_of_best


def _names_in(text: str) -> list[str]:
    """The parts of a name with dots, without quotes."""
    return [name.strip("\"'") for name in re.findall(_NAME, text)]
