"""Grades one checkout."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

import gpudojo
from gpudojo.classes.class_grading import ClassGrading
from gpudojo.classes.display import Display
from gpudojo.classes.grading_options import GradingOptions
from gpudojo.grading.limits import SECONDS
from gpudojo.grading.references import SUFFIX, shipped
from gpudojo.model.errors import BadClass
from gpudojo.model.results import ClassResults, SubmissionRow
from gpudojo.model.results_file import read

BUNDLE: Final = "CLASSROOM50_BUNDLE_DIR"
MEMORY: Final = 2 << 30


@dataclass(frozen=True)
class JudgedBy:
    """What a submission is judged by: reference solutions, or recorded evidence of them."""

    reference: Path | None = None
    evidence: Path | None = None  # the folder it lies in; None: this installation
    secret: str | None = None
    note: str = ""  # what an instructor should know about the choice


@dataclass(frozen=True)
class Graded:
    """A checkout, graded."""

    results: ClassResults
    seed: int | None  # the public one that scenarios were drawn from; None where it is a secret

    @property
    def row(self) -> SubmissionRow:
        return self.results.submissions[0]


def graded(
    folder: Path,
    day: str,
    measure: JudgedBy,
    seconds: float = SECONDS,
    memory: int = MEMORY,
    require_isolation: bool = False,
) -> Graded:
    """One submission's results, whatever is in the folder. Raises DojoError where the grader fails."""
    if not folder.is_dir():
        raise BadClass(f"{folder} is not a folder")
    # Outside of the checkout: nothing that lies in it can be taken for a record of ours.
    with tempfile.TemporaryDirectory(prefix="dojo-classroom-") as out:
        asked = GradingOptions(
            submissions=[folder],
            out=Path(out),
            reference=measure.reference,
            day=day,
            secret=measure.secret,
            seconds=seconds,
            memory=memory,
            require_isolation=require_isolation,
            evidence=measure.evidence,
            alone=True,
        )
        grading = ClassGrading(asked, Display(Console(), quiet=True))
        results = read(grading.run().path)
    return Graded(results, grading.recorded.seed if grading.recorded else None)


def judged_by(day: str, environment: Mapping[str, str], reference: Path | None = None) -> JudgedBy:
    """What there is to judge by, never anything in the checkout, which is the student's. Raises BadClass.

    References, with a secret, where the instructor has put them; otherwise recorded evidence, from the bundle or from
    the release that is installed; and in a clone of gpudojo, its own references.
    """
    secret = environment.get("DOJO_SEED") or None
    bundle = environment.get(BUNDLE)
    hidden = Path(bundle) / "reference" / day if bundle else None
    if reference is None and hidden is not None and hidden.is_dir():
        reference = hidden
    if reference is not None:
        return JudgedBy(reference, secret=secret)
    unused = "DOJO_SEED is set, but there are no reference solutions to run with it: the public seed was used."
    note = unused if secret else ""
    if bundle and os.path.isfile(Path(bundle) / f"{day}{SUFFIX}"):
        return JudgedBy(evidence=Path(bundle), note=note)
    if shipped(day) is not None:
        return JudgedBy(note=note)
    own = Path(gpudojo.__file__).resolve().parents[2] / "reference" / day
    if own.is_dir():
        return JudgedBy(own, secret=secret)
    raise BadClass(
        "there is nothing to judge by: no reference solutions were given, and this gpudojo has no recorded evidence"
    )
