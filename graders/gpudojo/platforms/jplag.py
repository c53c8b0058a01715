"""JPlag: folders to compare, `java -jar jplag.jar -l python3 -bc OUT/base-code OUT/submissions`.

Each submission is a folder of Python files, and that of a group is one; a notebook becomes one
file with its code cells. The base code, whose matches JPlag leaves out, is the reference with the
given code in it. The sources are those kept by `dojo grade`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

from gpudojo.classes.store import Store
from gpudojo.grading.notebooks import NOTEBOOK_SUFFIX, NotANotebook
from gpudojo.grading.sources import Unparsable
from gpudojo.model.errors import CannotExport
from gpudojo.model.results import ClassResults, GroupFilter, SubmissionRow
from gpudojo.platforms import Options
from gpudojo.platforms._files import new_name, save_text
from gpudojo.submissions.choosing import source_parts
from gpudojo.submissions.names import SOURCES, ending_of

OF_CLASS: Final = True


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    """Write the sources of all submissions and the base code, and return the files.

    A missing reference is told by `options.say`. Raises CannotExport where no sources were kept,
    and OSError.
    """
    store = Store(options.results or target)
    written: list[Path] = []
    used: set[str] = set()
    groups = GroupFilter()
    # What students handed in; what a group did, once.
    for row in rows:
        if not row.digest or not groups.is_new_work(row):
            continue
        sources = store.load_sources(row.digest)
        if sources:
            name = row.group or row.submission
            folder = target / "submissions" / new_name(name, used)
            written += _write_sources(folder, sources)
    if not written:
        where = options.results or "the results"
        raise CannotExport(
            "jplag", f"the sources were not kept beside {where}; grade the class again"
        )
    # What they may share.
    base_code = target / "base-code"
    if header.reference:
        written += _write_sources(base_code, store.load_sources(header.reference))
    if not base_code.exists():
        options.say(
            "the reference was not kept, so there is no base code; give JPlag the stubs with -bc."
        )
    return written


def _write_sources(folder: Path, sources: dict[str, bytes]) -> list[Path]:
    """Write Python files and the code of notebooks into one folder, and return the files.

    `sources` are by path. What is neither, or cannot be parsed, is left out. Raises OSError.
    """
    used: set[str] = set()
    written = []
    for path, data in sorted(sources.items()):
        if not ending_of(path, SOURCES):
            continue
        try:
            texts = [text for text, _, _ in source_parts(path, data)]
        except (Unparsable, NotANotebook, RecursionError, MemoryError):
            continue
        stem = path.removesuffix(NOTEBOOK_SUFFIX).removesuffix(".py")
        name = new_name("-".join(PurePosixPath(stem).parts), used)
        code = "\n\n".join(texts).rstrip()
        written.append(save_text(folder / f"{name}.py", f"{code}\n"))
    return written
