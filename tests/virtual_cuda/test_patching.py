"""Patches are applied in order, refused when they clash, and undone without touching what others
have changed.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import virtual_cuda as package
from virtual_cuda import VirtualGpu, virtual_cuda
from virtual_cuda.errors import DuplicatePatch
from virtual_cuda.patching import Opening, PatchRegistry, Stage, patch, registry


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
        patch(
            [(Derived, "speak", lambda self: "one"), (Derived, "speak", lambda self: "two")], undo
        )
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
        applied = patch([(Derived, "speak", lambda self: "patched")], undo)
        del Derived.speak
        with applied.set_aside():
            assert Derived().speak() == "base"
    assert Derived().speak() == "base"


def test_a_target_is_patched_once_per_stage() -> None:
    class Target:
        name = "torch's"

    found = PatchRegistry()
    found.register(Stage.RECORD)(lambda opening: [(Target, "name", f"recorded {Target.name}")])
    found.register()(lambda opening: [(Target, "name", "ours")])
    with contextlib.ExitStack() as undo:
        opening = Opening(VirtualGpu(1, 1024, "a name"), undo, lambda *asked: None)
        patch(found.patches(opening), undo)
        assert Target.name == "recorded ours", (
            "a later stage wraps an earlier one, whichever was registered first"
        )
        found.register()(lambda opening: [(Target, "name", "mine")])
        with pytest.raises(
            DuplicatePatch,
            match=r"Target\.name is patched by both tests\.\S+ and tests\.\S+ in the same",
        ):
            list(found.patches(opening))
    assert Target.name == "torch's"


def test_every_module_that_patches_torch_is_found() -> None:
    """No list is kept by hand: importing the device imports every module of the two packages."""
    with virtual_cuda():
        modules = {maker.__module__ for makers in registry.makers.values() for maker in makers}
    folder = Path(package.__path__[0])
    patching = {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts)
        for path in folder.rglob("*.py")
        if "\n@torch_patches(" in path.read_text(encoding="utf-8")
    }
    assert modules == patching
    assert len(patching) > 8
