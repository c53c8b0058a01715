"""Texts from outside, as they may be kept and printed: names, and exceptions of a student's own
making.
"""

from __future__ import annotations

import msgspec
import pytest
from gpudojo.model.errors import describe_error, printable_text, without_addresses
from hypothesis import given
from hypothesis import strategies as st


@given(st.text(st.characters(codec=None)))
def test_any_text_can_be_printed(text: str) -> None:
    found = printable_text(text)
    assert found.isprintable()
    assert printable_text(found) == found
    assert found.encode().decode() == found


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Zoë 北京", "Zoë 北京"),
        ("a\x1b[2Jb", "a⟨U+001B⟩[2Jb"),
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("a\nb", "a⟨U+000A⟩b"),
        ("a\N{NO-BREAK SPACE}b", "a b"),
        ("a\udcffb", "a⟨U+DCFF⟩b"),
    ],
)
def test_what_would_change_a_line_is_shown_as_a_code_point(text: str, shown: str) -> None:
    assert printable_text(text) == shown
    assert printable_text("a\nb\x07", keep="\n") == "a\nb⟨U+0007⟩"


class Sly(str):
    def __getitem__(self, key: object) -> str:
        raise RuntimeError("no")

    def encode(self, *more: object) -> bytes:  # type: ignore[override]
        raise RuntimeError("no")


class Loud(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no")


class Hostile(Exception, metaclass=Loud):
    def __str__(self) -> str:
        found = self.args[0]
        if isinstance(found, BaseException):
            raise found
        return found  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Hostile("plain"), ("Hostile", "plain")),
        (Hostile(Sly("x" * 10)), ("Hostile", "xxxxxxxxxx")),
        (Hostile(ZeroDivisionError()), ("Hostile", "its text could not be made")),
        (Hostile(SystemExit(0)), ("Hostile", "its text could not be made")),
        (Hostile(3), ("Hostile", "its text could not be made")),
        (ValueError("\ud800\udfff"), ("ValueError", "\\ud800\\udfff")),
        (type("E" * 8_000_000, (Exception,), {})("m" * 8_000_000), ("E" * 100, "m" * 2000)),
    ],
)
def test_no_exception_can_keep_itself_from_being_described(
    error: BaseException, said: tuple[str, str]
) -> None:
    assert describe_error(error) == said
    assert all(type(text) is str for text in describe_error(error))
    assert msgspec.msgpack.encode(describe_error(error))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("'<generator object move.<locals>.<genexpr> at 0x7f996c3a1b40>'", "'<generator object>'"),
        ("<generator object move.<locals>.<genexpr> at 0x7f99", "<generator object>"),  # cut off
        ("[<a.Watch object at 0x1f>, <b.C object at 0x2A>]", "[<Watch object>, <C object>]"),
        ("<function f.<locals>.g at 0x000001F0A>", "<function f.<locals>.g>"),
        ("<bound method A.f of <A object at 0x1f>>", "<bound method A.f of <A object>>"),
        ("it is 3 at 0", "it is 3 at 0"),
    ],
)
def test_objects_stand_by_their_type_and_without_an_address(text: str, shown: str) -> None:
    assert without_addresses(text) == shown


def test_an_error_is_described_in_the_same_words_in_every_run() -> None:
    error = TypeError(f"not a tensor: {object()}")
    assert describe_error(error) == ("TypeError", "not a tensor: <object object>")
