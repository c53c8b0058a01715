"""The GitHub workflow of a student's repository: it installs the grader and grades every push.

Its text follows from the manifest of the release alone, so the grader, which contains this module,
can tell whether the workflow in a checkout is still the released one.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gpudojo.model.catalogue import exercises_of
from gpudojo.release.manifest import (
    WORKFLOW,
    Manifest,
    encode_manifest,
    hash_of,
    make_manifest,
)

TEMPLATE: Final = Path(__file__).with_name("classroom.yml")
PYTHON: Final = "3.12"


def seal(files: Mapping[str, bytes], day: str) -> dict[str, bytes]:
    """Return the workflow, as a file by path, for a repository that is otherwise complete.

    `files` are all others of it. Raises CannotRelease where they are no release, BadDay where the
    day cannot be imported, and OSError.
    """
    return {WORKFLOW: workflow_text(make_manifest(files, day)).encode()}


def workflow_text(released: Manifest) -> str:
    """Return the text of the workflow that grades a release.

    It has the release's manifest in it, without the workflow itself. Raises BadDay where the day
    cannot be imported, OSError where the template cannot be read, and KeyError for a manifest
    without its wheel.
    """
    runners = runner_ids(released.day, released.only)
    results = []
    for runner in runners:
        results.append(f"{runner.upper()}_RESULTS: ${{{{ steps.grade.outputs.{runner} }}}}")
    # It cannot contain its own hash; whoever reads the manifest makes the text again and compares.
    other_files = {path: digest for path, digest in released.files.items() if path != WORKFLOW}
    without_workflow = msgspec.structs.replace(released, files=other_files)
    values = {
        "@DAY@": released.day,
        "@PYTHON@": PYTHON,
        "@HASH@": released.files[released.wheel],
        "@WHEEL@": released.wheel,
        "@REQUIREMENTS@": _indent_lines(released.requirements, 12),
        "@MANIFEST@": encode_manifest(without_workflow).replace("'", "''"),
        "@RESULTS@": _indent_lines(results, 10),
        "@RUNNERS@": ",".join(runners),
    }
    template = TEMPLATE.read_text(encoding="utf-8")
    return re.sub("@[A-Z]+@", lambda match: values[match[0]], template)


def add_workflow(released: Manifest) -> Manifest:
    """Return a new manifest, with the hash of the workflow that it stands in.

    Raises BadDay where the day cannot be imported, and OSError.
    """
    digest = hash_of(workflow_text(released).encode())
    return msgspec.structs.replace(released, files=released.files | {WORKFLOW: digest})


def runner_ids(day: str, only: Sequence[str] = ()) -> list[str]:
    """Return the ids under which the exporter hands each exercise to the reporter.

    `only` are the stems of those that are graded; empty: all. Raises BadDay where the day cannot be
    imported.
    """
    stems = only or [exercise.stem for exercise in exercises_of(day)]
    return [f"exercise{stem.partition('_')[0]}" for stem in stems]


def _indent_lines(lines: Sequence[str], width: int) -> str:
    """Return lines as one text, each indented by so many spaces."""
    return textwrap.indent("\n".join(lines), " " * width)
