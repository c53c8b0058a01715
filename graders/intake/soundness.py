"""Can a source be read at all? Asked of its bytes alone; what a parser says is found out where student code runs."""

from __future__ import annotations

import re
from typing import Final

from graders.intake.names import suffix
from graders.intake.records import SourceFile

_CODING: Final = re.compile(rb"^[ \t\f]*#.*?coding[:=]", re.M)


def fault(file: SourceFile) -> str | None:
    """What is wrong with a source's bytes, as the rest of a sentence that its name begins."""
    data = file.data
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "is UTF-16 text; save it as UTF-8"
    if b"\0" in data:
        return "has a null byte in it, so that it is no text"
    notebook = bool(suffix(file.path, (".ipynb",)))
    # A Python file may name another encoding in its first two lines.
    if notebook or not any(_CODING.match(line) for line in data.split(b"\n", 2)[:2]):
        try:
            data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            return f"is not UTF-8 text: byte {data[error.start]:#04x} in line {line}; save it as UTF-8"
    if notebook:
        # nbformat and json are for the sandbox: ten megabytes of brackets take them a quarter of a gigabyte.
        text = data.removeprefix(b"\xef\xbb\xbf").strip()
        if not text.startswith(b"{"):
            return "is not a notebook"
        if not text.endswith(b"}"):
            return "is not a notebook, or one that is cut off"
        if b'"cells"' not in text and b'"worksheets"' not in text:
            return "is not a notebook: it has no cells"
    return None
