"""The first cell of every notebook that students are given: it installs gpudojo if need be.

It is run before everything else: by Jupyter, by Colab, and by pytest and `dojo grade`, where
nothing is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

TEMPLATE: Final = Path(__file__).with_name("opening_cell.txt")


def opening_code(package: str | None) -> str:
    """Return the code of the cell, where pip installs `package` unless there is a wheel.

    Raises OSError where our template cannot be read.
    """
    template = TEMPLATE.read_text(encoding="utf-8")
    return template.format(package=package)
