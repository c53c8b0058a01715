"""Is everything put back, and nothing that somebody else has put there taken away?"""

from __future__ import annotations

import contextlib
from typing import Any

from virtual_cuda.torch_api.patching import aside, patch


class Base:
    def speak(self) -> str:
        return "base"


class Derived(Base):
    pass


def test_what_was_inherited_is_inherited_again() -> None:
    with contextlib.ExitStack() as undo:
        patch([(Derived, "speak", lambda self: "patched")], undo)
        assert Derived().speak() == "patched"
    assert "speak" not in vars(Derived)
    assert Derived().speak() == "base"


def test_a_patch_over_a_patch_is_undone_in_turn() -> None:
    with contextlib.ExitStack() as undo:
        patch([(Derived, "speak", lambda self: "one"), (Derived, "speak", lambda self: "two")], undo)
        assert Derived().speak() == "two"
    assert "speak" not in vars(Derived)


def test_what_somebody_wrote_over_a_patch_is_there_for_whoever_looks() -> None:
    def own(self: Any) -> str:
        return "the student's"

    try:
        with contextlib.ExitStack() as undo:
            patch([(Derived, "speak", lambda self: "patched")], undo)
            Derived.speak = own  # type: ignore[method-assign]
        assert vars(Derived)["speak"] is own
    finally:
        del Derived.speak


def test_what_somebody_took_away_is_no_error() -> None:
    with contextlib.ExitStack() as undo:
        done = patch([(Derived, "speak", lambda self: "patched")], undo)
        del Derived.speak
        with aside(done):
            assert Derived().speak() == "base"
    assert Derived().speak() == "base"
