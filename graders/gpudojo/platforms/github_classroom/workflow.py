"""The GitHub workflow of a student's repository: it installs the released grader by its hash and grades every push.

Its text follows from the manifest of the release alone, so the grader, which contains this module, can tell whether the
workflow in a checkout is still the released one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from gpudojo.model.catalogue import exercises_of
from gpudojo.release.manifest import WORKFLOW, Manifest, dumped, hashed, manifest

TEMPLATE: Final = Path(__file__).with_name("classroom.yml")
PYTHON: Final = "3.12"


def seal(files: Mapping[str, bytes], day: str) -> dict[str, bytes]:
    """The workflow, for a repository that is otherwise complete."""
    return {WORKFLOW: workflow(manifest(files, day)).encode()}


def workflow(released: Manifest) -> str:
    """The text of the workflow that grades a release."""
    runners = runner_ids(released.day)
    results = [
        f"{runner.upper()}_RESULTS: ${{{{ steps.grade.outputs.{runner} }}}}" for runner in runners
    ]
    # It cannot contain its own hash; whoever reads the manifest makes the text again and compares.
    others = {path: digest for path, digest in released.files.items() if path != WORKFLOW}
    filled = {
        "@DAY@": released.day,
        "@PYTHON@": PYTHON,
        "@HASH@": released.files[released.wheel],
        "@WHEEL@": released.wheel,
        "@REQUIREMENTS@": _indented("\n".join(released.requirements), 12),
        "@MANIFEST@": dumped(msgspec.structs.replace(released, files=others)).replace("'", "''"),
        "@RESULTS@": _indented("\n".join(results), 10),
        "@RUNNERS@": ",".join(runners),
    }
    return re.sub("@[A-Z]+@", lambda found: filled[found[0]], TEMPLATE.read_text(encoding="utf-8"))


def with_workflow(released: Manifest) -> Manifest:
    """The manifest with the hash of the workflow it stands in."""
    files = released.files | {WORKFLOW: hashed(workflow(released).encode())}
    return msgspec.structs.replace(released, files=files)


def runner_ids(day: str) -> list[str]:
    """The ids under which the exporter hands each exercise to GitHub Classroom's reporter."""
    return [f"exercise{exercise.stem.partition('_')[0]}" for exercise in exercises_of(day)]


def _indented(text: str, width: int) -> str:
    return "\n".join(" " * width + line for line in text.splitlines())
