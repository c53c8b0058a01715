"""No name of a class in `graders/` has two meanings."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

GRADERS = Path(__file__).parents[1] / "graders"
MODULES = sorted(GRADERS.rglob("*.py"))


def test_no_two_classes_have_the_same_name() -> None:
    named = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                named[node.name].append(f"{path.relative_to(GRADERS)}:{node.lineno}")
    assert not {name: places for name, places in named.items() if len(places) > 1}
