"""Generated notebooks with answers in their stub cells."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "reference" / "day8"


def answers(*files: Path) -> dict[str, str]:
    """What each file binds at its top level, as it is written, with comments at its end."""
    found = {}
    for path in files:
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        body = ast.parse(source).body
        for statement, following in zip(body, [*body[1:], None], strict=True):
            end = following.lineno - 1 if following is not None else len(lines)
            text = "\n".join(lines[statement.lineno - 1 : end]).rstrip()
            if isinstance(statement, ast.FunctionDef):
                found[statement.name] = text
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                found[statement.targets[0].id] = text
    return found


def reference() -> dict[str, str]:
    return answers(*sorted(REFERENCE.glob("*.py")))


def filled(notebook: bytes, texts: Mapping[str, str]) -> bytes:
    """The notebook with these texts in the cells of the tasks.

    A cell's id says which task it is.
    """
    content = json.loads(notebook)
    filled = 0
    for cell in content["cells"]:
        name = cell["id"].partition("-")[2]
        if cell["cell_type"] == "code" and name in texts:
            cell["source"] = texts[name].splitlines(keepends=True)
            filled += 1
    assert filled, "no cell of this notebook is a task's"
    return json.dumps(content).encode()
