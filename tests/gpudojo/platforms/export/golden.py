"""The expected files of every export format, byte by byte.

``python -m tests.gpudojo.platforms.export.golden`` writes them; the tests never do.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path

from gpudojo.classes.store import Store
from gpudojo.platforms import exporter_of, format_names

from tests.gpudojo.platforms.export.classes import CLASS, OPTIONS

GOLDEN = Path(__file__).with_name("golden")
TABLES = Path(__file__).with_name("tables")


SOURCES = {
    "abc": {
        "01_one.py": b"def f(x):\n    return x + 1\n",
        "sub/one.py": b"Y = 2\n",
        "data.csv": b"1,2",
    },
    "r" * 40: {"01_one.py": b"def f(x):\n    return 1 + x\n"},
}


def export_all(target: Path) -> dict[str, list[str]]:
    """Every format of the class with everything; and what was said for each."""
    said: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as kept:
        for digest, sources in SOURCES.items():
            Store(Path(kept)).keep_sources(digest, sources)
        for format_ in format_names():
            own: list[str] = []
            options = dataclasses.replace(
                OPTIONS,
                title="Day 0",
                worksheet=(TABLES / "worksheet.csv",),
                gradebook=TABLES / "gradebook.csv",
                results=Path(kept),
                say=own.append,
            )
            exporter_of(format_)(CLASS, CLASS.submissions, target / format_, options)
            said[format_] = own
    return said


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".gitattributes"
    }


if __name__ == "__main__":
    for each in format_names():
        shutil.rmtree(GOLDEN / each, ignore_errors=True)
    for name, sentences in export_all(GOLDEN).items():
        print(f"{name}: {len(files(GOLDEN / name))} files", *sentences, sep="\n  ")
