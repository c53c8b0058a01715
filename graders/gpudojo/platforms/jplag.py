"""JPlag: folders to compare, `java -jar jplag.jar -l python3 -bc OUT/base-code OUT/submissions`.

Each submission is a folder of Python files; a notebook becomes one file with its code cells. The base code, whose
matches JPlag leaves out, is the reference with the given code in it. The sources are those kept by `dojo grade`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

from gpudojo.classes.store import Store
from gpudojo.grading.load import NOTEBOOK_SUFFIX, NotANotebook, Unparsable
from gpudojo.model.errors import CannotExport
from gpudojo.model.results import ClassResults, SubmissionRow
from gpudojo.platforms import Options
from gpudojo.platforms._entries import new_name, save
from gpudojo.submissions.entries import SOURCES, suffix
from gpudojo.submissions.reading import parts

OF_CLASS: Final = True


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    store = Store(options.results or target)
    written: list[Path] = []
    taken: set[str] = set()
    for row in rows:
        if sources := store.sources(row.digest) if row.digest else {}:
            written += _folder(target / "submissions" / new_name(row.submission, taken), sources)
    if not written:
        where = options.results or "the results"
        raise CannotExport(
            "jplag", f"the sources were not kept beside {where}; grade the class again"
        )
    written += _folder(
        target / "base-code", store.sources(header.reference) if header.reference else {}
    )
    if not (target / "base-code").exists():
        options.say(
            "the reference was not kept, so there is no base code; give JPlag the stubs with -bc."
        )
    return written


def _folder(target: Path, sources: dict[str, bytes]) -> list[Path]:
    taken: set[str] = set()
    written = []
    for path, data in sorted(sources.items()):
        with contextlib.suppress(Unparsable, NotANotebook, RecursionError, MemoryError):
            if suffix(path, SOURCES):
                text = "\n\n".join(text for text, _, _ in parts(path, data))
                name = "-".join(
                    PurePosixPath(path.removesuffix(NOTEBOOK_SUFFIX).removesuffix(".py")).parts
                )
                written.append(save(target / f"{new_name(name, taken)}.py", f"{text.rstrip()}\n"))
    return written
