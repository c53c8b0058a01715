"""Are sprites drawn pixel by pixel, in colour where there are colours, and readable where there are
none?
"""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from gpudojo.model.errors import NotSprites
from gpudojo.sprite_display import pictures_of, show

RED, BLACK = (255, 0, 0), (0, 0, 0)
# One sprite, 2 × 2: red and black above, black and red below.
CHEQUERED = [[[[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]]]


class Terminal(io.TextIOWrapper):
    """A terminal that writes in an encoding."""

    def __init__(self, encoding: str) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)

    def isatty(self) -> bool:
        return True

    @property
    def shown(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)  # type: ignore[attr-defined, no-any-return]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("COLUMNS", "40")


def test_two_pixels_share_a_cell_in_their_own_colours() -> None:
    terminal = Terminal("utf-8")
    show(CHEQUERED, file=terminal)
    red, black = (
        "38;2;255;0;0;48;2;255;0;0",
        "38;2;0;0;0;48;2;0;0;0",
    )  # twice as large, so above and below agree
    upper = f"\x1b[{red}m▀\x1b[0m" * 2 + f"\x1b[{black}m▀\x1b[0m" * 2
    lower = f"\x1b[{black}m▀\x1b[0m" * 2 + f"\x1b[{red}m▀\x1b[0m" * 2
    assert terminal.shown.splitlines() == [upper, lower]


def test_an_odd_last_row_leaves_the_background_alone() -> None:
    terminal = Terminal("utf-8")
    show([[[1.0] * 9] * 3], file=terminal)
    above, last = terminal.shown.splitlines()
    assert above.count("▀") == last.count("▀") == 9
    assert "48;2" in above
    assert "48;2" not in last


def test_a_terminal_without_blocks_gets_coloured_blanks() -> None:
    terminal = Terminal("ascii")
    show(CHEQUERED, ["rot → schwarz"], file=terminal)
    title, *rows = terminal.shown.splitlines()
    assert title == "rot ? schwarz"
    assert rows[0].startswith("\x1b[48;2;255;0;0m  \x1b[0m\x1b[48;2;0;0;0m  \x1b[0m")


def test_without_colours_brightness_is_shown_in_characters() -> None:
    written = io.StringIO()
    show([[[1.0, 0.5], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]], ["first", "second"], file=written)
    assert written.getvalue().splitlines() == ["first   second", "@@++", "  @@    @@@@"]


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal("utf-8")
    show(CHEQUERED, file=terminal)
    assert terminal.shown.splitlines() == ["::", "  ::"]


def test_more_sprites_than_the_terminal_is_wide_go_on_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "11")
    written = io.StringIO()
    show([[[1.0, 1.0]]] * 5, [1, 2, 3, 4, 5], file=written)
    assert written.getvalue().splitlines() == [
        "1     2",
        "@@@@  @@@@",
        "3     4",
        "@@@@  @@@@",
        "5",
        "@@@@",
    ]


def test_values_outside_and_no_values_are_drawn_as_the_nearest() -> None:
    nan = float("nan")
    inf = float("inf")
    assert pictures_of([[[[2.0, -1.0, nan, inf, 0.5]]] * 3])[0][0] == [
        (255,) * 3,
        (0,) * 3,
        (0,) * 3,
        (255,) * 3,
        (128,) * 3,
    ]


def test_tensors_of_any_kind_and_an_empty_batch() -> None:
    import torch

    sprites = torch.tensor(CHEQUERED, requires_grad=True)
    wanted = [[[RED, BLACK], [BLACK, RED]]]
    assert (
        pictures_of(sprites)
        == pictures_of(sprites.to(torch.bfloat16))
        == pictures_of(CHEQUERED)
        == wanted
    )
    assert pictures_of(torch.zeros(0, 3, 4, 4)) == pictures_of([]) == []
    show(torch.zeros(0, 3, 4, 4))


@pytest.mark.parametrize("shape", [(4,), (3, 8), (1, 2, 4, 4), (1, 3, 4, 4, 1), (1, 3, 0, 4)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    import torch

    with pytest.raises(NotSprites) as refused:
        show(torch.zeros(shape))
    assert str(refused.value).startswith(
        "sprites have the shape (N, 3, H, W), or (N, H, W) in grey; this has ("
    )


def test_importing_it_imports_neither_torch_nor_rich() -> None:
    question = "import sys, gpudojo.sprite_display; print({'torch', 'rich'} & set(sys.modules))"
    root = Path(__file__).parents[2]
    answer = subprocess.run(
        [sys.executable, "-c", question], cwd=root, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "set()\n"
