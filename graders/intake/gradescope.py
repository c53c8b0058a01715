"""Who handed in which of Gradescope's numbered folders? Its list says so, in a YAML of which only that is read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

METADATA: Final = "submission_metadata.yml"
_LARGEST: Final = 64_000_000  # results and histories are in it too
_SUBMISSION: Final = re.compile(r"""["']?(submission_\d+)["']?:\s*$""")
_KEY: Final = re.compile(r"""(\s+):?["']?(\w+)["']?:\s*$""")
_NAME: Final = re.compile(r"""\s*(?:-\s+)?:?["']?name["']?:\s+(.+?)\s*$""")


def submitters(path: Path) -> dict[str, str]:
    """The names behind each folder, as one text; empty where there is no such list, or none that can be read."""
    try:
        with path.open("rb") as file:
            lines = file.read(_LARGEST).decode("utf-8", "replace").splitlines()
    except OSError:
        return {}
    found: dict[str, list[str]] = {}
    names: list[str] | None = None  # of the submission whose list we are in
    inside = -1  # how far that list's heading is indented; -1 outside of one
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if heading := _SUBMISSION.match(line):
            names, inside = found.setdefault(heading[1], []), -1
        elif names is None:
            continue
        elif inside >= 0 and (indent > inside or (indent == inside and line.lstrip().startswith("- "))):
            if name := _NAME.match(line):
                names.append(_text(name[1]))
        else:
            # Only the submission's own: its history repeats the heading further in, for earlier attempts.
            key = _KEY.match(line)
            inside = indent if key and key[2] == "submitters" and indent <= 2 and not names else -1
    return {folder: " & ".join(names) for folder, names in found.items() if names}


def _text(value: str) -> str:
    """A YAML scalar of the simple kinds."""
    if len(value) >= 2 and value[0] == value[-1] == "'":
        value = value[1:-1].replace("''", "'")
    elif len(value) >= 2 and value[0] == value[-1] == '"':
        escape = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(.))")
        value = escape.sub(lambda m: chr(int(m[1] or m[2], 16)) if m[1] or m[2] else m[3], value[1:-1])
    return "".join(c if c.isprintable() else "_" for c in value).strip()
